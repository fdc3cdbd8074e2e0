//! Who leads: every drive its part of the groups it is in, so that every node finds groups for its own data first.
//! Leading is only an order: changing it moves no data.

use super::draft::Draft;

/// A drive may lead so much more or less than its part, or one group, before the order is changed anywhere.
const SLACK: f64 = 0.1;

/// Groups are gone through so many times at most; after three or four nothing changes any more.
const ROUNDS_MAX: usize = 8;

pub(super) fn share_leading(draft: &mut Draft) {
    let off = |drive: usize| {
        let slack = (SLACK * part(draft, drive)).max(1.0) + 1e-6;
        if draft.pool.counts(drive) { excess(draft, drive).abs() > slack } else { draft.led(drive) > 0.0 }
    };
    if !(0..draft.pool.len()).any(off) {
        return;
    }
    for _ in 0..ROUNDS_MAX {
        let mut changed = false;
        for number in 0..draft.groups.len() {
            // Who just joined has no copies to lead with.
            if draft.groups[number].is_moving() {
                continue;
            }
            let members = &draft.groups[number].members;
            let (place, least) = (0..members.len())
                .map(|place| (place, excess(draft, members[place])))
                .min_by(|one, other| one.1.total_cmp(&other.1))
                .expect("a group has members");
            if excess(draft, members[0]) - least > 1.0 + 1e-6 {
                draft.lead(number, place);
                changed = true;
            }
        }
        if !changed {
            return;
        }
    }
}

/// How many groups it should lead: one of `factor` that it is in.
fn part(draft: &Draft, drive: usize) -> f64 {
    draft.held(drive) / f64::from(draft.factor())
}

/// How many it leads beyond that. A drive that shall be emptied, or is lost, leads only if all members are such.
fn excess(draft: &Draft, drive: usize) -> f64 {
    if draft.pool.counts(drive) { draft.led(drive) - part(draft, drive) } else { f64::MAX }
}
