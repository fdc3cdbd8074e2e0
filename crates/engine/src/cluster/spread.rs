//! How far apart the members of a group stand.
//! At each level (zone, rack, node) members are spread over as many domains as there are: of `n` domains one may
//! hold `factor / n` members, rounded up, so one each where there are enough. Drives are always distinct.
//! A level is left out if keeping it would put much more on some drives than on others: three racks of which one
//! is a single node would make that node keep a third of everything.

use super::pool::{LEVELS, NODE, Pool, RACK, ZONE};
use super::shares::shares;
use std::collections::BTreeSet;

/// Spreading over racks or zones may give a drive this many times the share it would have without that.
const STRAIN_MAX: f64 = 1.5;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spread {
    /// Members of a group that may stand in one domain of each level.
    pub limits: [usize; LEVELS],
}

impl Spread {
    /// The widest spread that the drives allow.
    pub fn of(pool: &Pool, factor: usize) -> Self {
        let mut limits = [factor; LEVELS];
        let limit = |level: usize| {
            // Drives that are down count: a node that is being restarted does not bring copies together.
            let drives = (0..pool.len()).filter(|&drive| pool.counts(drive));
            let domains: BTreeSet<usize> = drives.map(|drive| pool.sites[drive][level]).collect();
            factor.div_ceil(domains.len().max(1))
        };
        limits[NODE] = limit(NODE);
        let Some(plain) = shares(pool, factor, &limits, 1.0) else {
            return Self { limits: [factor; LEVELS] };
        };
        for level in [ZONE, RACK] {
            let mut wider = limits;
            wider[level] = limit(level);
            let bearable = |strained: Vec<f64>| {
                strained.iter().zip(&plain).all(|(strained, plain)| *strained <= plain * STRAIN_MAX)
            };
            if shares(pool, factor, &wider, 1.0).is_some_and(bearable) {
                limits = wider;
            }
        }
        Self { limits }
    }

    /// Only what must not be given up even for a repair.
    pub fn narrowest(&self, factor: usize) -> Self {
        Self { limits: [factor, factor, self.limits[NODE]] }
    }

    /// Whether `drive` may join `others`.
    pub fn allows(&self, pool: &Pool, others: &[usize], drive: usize) -> bool {
        (0..LEVELS).all(|level| {
            let there = others.iter().filter(|&&other| pool.sites[other][level] == pool.sites[drive][level]);
            there.count() < self.limits[level]
        })
    }

    /// How many members stand too close to others, over all levels.
    pub fn crowding(&self, pool: &Pool, members: &[usize]) -> usize {
        let site = |member: usize, level: usize| pool.sites[members[member]][level];
        let mut crowding = 0;
        for level in 0..LEVELS {
            for member in 0..members.len() {
                let before = (0..member).filter(|&other| site(other, level) == site(member, level)).count();
                crowding += usize::from(before >= self.limits[level]);
            }
        }
        crowding
    }
}
