//! Members that must be replaced: given up, to be emptied, or standing too close together.
//! Promises: a given-up drive's places go to all other drives, in proportion to their weights, so that many copy to
//! many; who still has copies leaves only when nothing is owed to its group.

use super::draft::Draft;
use super::placement::Standing;

/// Gives away the places of drives that were given up, all at once: that takes nothing from anybody, and until it
/// is done new data of these groups has fewer copies. Without anybody to take a place it stays as it is.
pub(super) fn replace_lost(draft: &mut Draft) {
    // Who is read for these repairs is known before who is written: the two loads shall lie on different drives.
    for number in 0..draft.groups.len() {
        let members = &draft.groups[number].members;
        let source = members.iter().copied().find(|&member| !draft.pool.is_lost(member));
        if let Some(source) = source
            && members.iter().any(|&member| draft.pool.is_lost(member))
        {
            draft.note_source(source);
        }
    }
    let narrowest = draft.spread.narrowest(draft.factor() as usize);
    for number in 0..draft.groups.len() {
        let members = draft.groups[number].members.clone();
        for lost in members.into_iter().filter(|&member| draft.pool.is_lost(member)) {
            let group = &draft.groups[number];
            let id = group.id;
            let others: Vec<usize> =
                group.members.iter().copied().filter(|&member| !draft.pool.is_lost(member)).collect();
            // A former member has most of the copies already: it comes back, if it was not asked to go for good.
            let former = group.former.iter().copied().find(|&former| {
                draft.pool.is_open(former) && draft.spread.allows(draft.pool, &others, former)
            });
            let next = former
                .or_else(|| draft.choose(&others, id, &draft.spread))
                .or_else(|| draft.choose(&others, id, &narrowest));
            if let Some(next) = next {
                draft.replace(number, lost, next);
            }
        }
    }
}

/// Moves places off drives that shall be emptied. True if none is left that could be moved, now or later.
pub(super) fn drain(draft: &mut Draft, moves_left: &mut usize) -> bool {
    let mut rests = true;
    let draining = |draft: &Draft, drive: usize| draft.pool.drives[drive].standing == Standing::Draining;
    for number in 0..draft.groups.len() {
        let group = &draft.groups[number];
        let leaving = group.members.iter().copied().find(|&member| draining(draft, member));
        let Some(leaving) = leaving else { continue };
        if group.is_moving() {
            rests = false;
            continue;
        }
        let others: Vec<usize> = group.members.iter().copied().filter(|&member| member != leaving).collect();
        let Some(next) = draft.choose(&others, group.id, &draft.spread) else { continue };
        if *moves_left == 0 {
            return false;
        }
        *moves_left -= 1;
        draft.replace(number, leaving, next);
    }
    rests
}

/// Brings members apart that stand closer together than they have to by now: a cluster begins as one node.
/// True if none is left that could be moved.
pub(super) fn part(draft: &mut Draft, moves_left: &mut usize) -> bool {
    for number in 0..draft.groups.len() {
        let group = &draft.groups[number];
        let crowding = draft.spread.crowding(draft.pool, &group.members);
        if crowding == 0 || group.is_moving() || !draft.is_well(number) {
            continue;
        }
        let step = group.members.iter().enumerate().filter_map(|(place, &member)| {
            let others: Vec<usize> = group.members.iter().copied().filter(|&other| other != member).collect();
            let next = draft.choose(&others, group.id, &draft.spread)?;
            let mut members = others;
            members.push(next);
            let crowding_then = draft.spread.crowding(draft.pool, &members);
            // Whoever leads stays, if another can go; then the fullest goes.
            let rank = (crowding_then, place == 0, -draft.surplus(member));
            (crowding_then < crowding).then_some((rank, member, next))
        });
        let best = step.min_by(|(one, ..), (other, ..)| {
            (one.0, one.1).cmp(&(other.0, other.1)).then(one.2.total_cmp(&other.2))
        });
        let Some((_, member, next)) = best else { continue };
        if *moves_left == 0 {
            return false;
        }
        *moves_left -= 1;
        draft.replace(number, member, next);
    }
    true
}
