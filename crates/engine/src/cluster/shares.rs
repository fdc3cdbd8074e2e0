//! How many places each drive should have: in proportion to its weight, as far as the spread of copies allows.
//! A node of half the bytes of a cluster cannot keep two thirds of three copies that lie on different nodes: what is
//! too much for one domain goes to the others, in proportion to their weights.

use super::pool::{LEVELS, Pool};
use std::collections::BTreeMap;

/// Rounding of sums.
const NEARLY: f64 = 1e-6;

/// A fault domain, or at the bottom a drive, with what it can take at most.
struct Domain {
    weight: f64,
    most: f64,
    inside: Vec<Domain>,
    drive: usize,
}

/// Places wanted on each drive so that `groups` groups of `factor` members have all they need, when a domain of a
/// level may hold `limits` members of a group. None if there are not enough drives for that.
pub(super) fn shares(pool: &Pool, factor: usize, limits: &[usize; LEVELS], groups: f64) -> Option<Vec<f64>> {
    let drives: Vec<usize> = (0..pool.len()).filter(|&drive| pool.counts(drive)).collect();
    let all = domain(pool, &drives, 0, limits, groups, f64::INFINITY);
    let amount = groups * factor as f64;
    if all.most + NEARLY < amount {
        return None;
    }
    let mut shares = vec![0.0; pool.len()];
    pour(&all, amount, &mut shares);
    Some(shares)
}

fn domain(
    pool: &Pool,
    drives: &[usize],
    level: usize,
    limits: &[usize; LEVELS],
    groups: f64,
    limit: f64,
) -> Domain {
    let inside: Vec<Domain> = if level == LEVELS {
        let drive = |&drive: &usize| Domain {
            weight: pool.drives[drive].weight as f64,
            most: groups,
            inside: Vec::new(),
            drive,
        };
        drives.iter().map(drive).collect()
    } else {
        let mut parts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &drive in drives {
            parts.entry(pool.sites[drive][level]).or_default().push(drive);
        }
        let most = limits[level] as f64 * groups;
        parts.values().map(|part| domain(pool, part, level + 1, limits, groups, most)).collect()
    };
    let weight = inside.iter().map(|part| part.weight).sum();
    let most = limit.min(inside.iter().map(|part| part.most).sum());
    Domain { weight, most, inside, drive: usize::MAX }
}

/// Divides `amount` by weight; who would get more than it can take gets that, and the others share the rest.
fn pour(domain: &Domain, amount: f64, shares: &mut [f64]) {
    if domain.inside.is_empty() {
        if domain.drive != usize::MAX {
            shares[domain.drive] = amount;
        }
        return;
    }
    let mut left = amount;
    let mut open: Vec<&Domain> = domain.inside.iter().collect();
    loop {
        let weight: f64 = open.iter().map(|part| part.weight).sum();
        let (full, rest): (Vec<&Domain>, Vec<&Domain>) =
            open.into_iter().partition(|part| left * part.weight > part.most * weight);
        if full.is_empty() {
            for part in rest {
                pour(part, left * part.weight / weight, shares);
            }
            return;
        }
        for part in full {
            pour(part, part.most, shares);
            left -= part.most;
        }
        open = rest;
    }
}
