//! New groups: their number grows with the cluster. None is ever removed, because egroups name them.

use super::draft::Draft;
use super::pool::NODE;
use crate::identity::GroupId;
use std::collections::BTreeSet;

/// Groups led by each drive in a small cluster: with fewer, copies would be uneven.
const LED_MIN: usize = 8;

/// Places each drive has in a big one: so many other drives take part when it has to be copied. (Ceph recommends 100
/// placement groups per drive for the same reasons.) More would be more to keep, for little.
const PLACES_BIG: usize = 100;

/// Groups led by each drive for every node there is, in between: a drive shall have partners on all other nodes.
const LED_PER_NODE: usize = 2;

/// New groups are made when this part of what there should be is lacking, not one by one.
const LACKING: f64 = 0.1;

/// How many groups of `factor` copies there should be for so many nodes and drives.
pub(super) fn groups_wanted(nodes: usize, drives: usize, factor: usize) -> usize {
    let led_max = (PLACES_BIG / factor).max(LED_MIN);
    drives * (nodes * LED_PER_NODE).clamp(LED_MIN, led_max)
}

/// Makes the groups that are lacking, numbered from `first_new`. Gives their number.
pub(super) fn grow(draft: &mut Draft, first_new: u32) -> u32 {
    let factor = draft.factor() as usize;
    let drives: Vec<usize> = (0..draft.pool.len()).filter(|&drive| draft.pool.counts(drive)).collect();
    let nodes: BTreeSet<usize> = drives.iter().map(|&drive| draft.pool.sites[drive][NODE]).collect();
    let wanted = groups_wanted(nodes.len(), drives.len(), factor);
    let present = draft.groups.len();
    if present as f64 > wanted as f64 * (1.0 - LACKING) {
        return 0;
    }
    draft.expect_groups(wanted);
    if draft.shares.is_empty() {
        return 0;
    }
    let mut made = 0;
    for _ in present..wanted {
        let id = GroupId(first_new + made);
        let Some(members) = new_members(draft, id, factor) else { break };
        draft.add(id, members, Vec::new(), 1);
        made += 1;
    }
    made
}

/// Of the drives with the fewest places for their share the one that leads least, and those it goes best with.
fn new_members(draft: &Draft, id: GroupId, factor: usize) -> Option<Vec<usize>> {
    let mut leaders: Vec<usize> =
        draft.pool.open.iter().copied().filter(|&drive| draft.shares[drive] > 0.0).collect();
    let filled = |drive: usize, places: f64| (draft.held(drive) + places) / draft.shares[drive];
    let emptiest = leaders.iter().map(|&drive| filled(drive, 1.0)).min_by(f64::total_cmp)?;
    let rank = |drive: usize| (filled(drive, 0.5) > emptiest, (draft.led(drive) + 1.0) / draft.shares[drive]);
    while !leaders.is_empty() {
        let ranks = leaders.iter().map(|&drive| rank(drive)).enumerate();
        let first = ranks.min_by(|(_, one), (_, other)| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
        let (place, _) = first.expect("there is a drive");
        // Whoever finds no partners is passed over.
        let members = complete(draft, id, leaders.swap_remove(place), factor);
        if members.is_some() {
            return members;
        }
    }
    None
}

fn complete(draft: &Draft, id: GroupId, leader: usize, factor: usize) -> Option<Vec<usize>> {
    let mut members = vec![leader];
    while members.len() < factor {
        members.push(draft.choose(&members, id, &draft.spread)?);
    }
    Some(members)
}
