//! Evens out: places go from drives that have more than their share to drives that have less.
//! Promises: every move makes it more even, so there is an end to it; what moves is what a new drive lacks, and no
//! place moves twice, as long as any group can go where a place is lacking; small differences are left alone.

use super::draft::Draft;

/// A drive may be off its share by this part of it, or by one place, before anything moves for it.
const SLACK: f64 = 0.03;

fn slack(share: f64) -> f64 {
    (share * SLACK).max(1.0)
}

/// True if no move is left that would make it more even.
pub(super) fn balance(draft: &mut Draft, moves_left: &mut usize) -> bool {
    if draft.shares.is_empty() {
        return true;
    }
    let was_moving = draft.moving() > 0;
    while let Some((number, donor, receiver)) = next_move(draft, Way::Straight) {
        if *moves_left == 0 {
            return false;
        }
        *moves_left -= 1;
        draft.replace(number, donor, receiver);
    }
    // A group moves once at a time. Only if none does, what found no way now will find none later either.
    if was_moving || draft.moving() > 0 {
        return true;
    }
    while let Some((number, donor, receiver)) = next_move(draft, Way::Detour)
        && *moves_left > 0
    {
        *moves_left -= 1;
        draft.replace(number, donor, receiver);
    }
    draft.moving() == 0
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// From above a share to below one.
    Straight,
    /// From fuller to emptier, whatever the shares: where racks are so unequal that nearly all groups must use two of
    /// them, a full drive may have no group that an emptier one could join, but one for a third that has.
    Detour,
}

/// The group, the member that leaves it and the drive that takes its place. The neediest drive first, from the fullest.
fn next_move(draft: &Draft, way: Way) -> Option<(usize, usize, usize)> {
    let relative = |drive: usize| draft.surplus(drive) / draft.shares[drive];
    let open = || draft.pool.open.iter().copied().filter(|&drive| draft.shares[drive] > 0.0);
    let off = |drive: usize| draft.surplus(drive).abs() > slack(draft.shares[drive]) + 1e-6;
    if !open().any(off) {
        return None;
    }
    let detour = way == Way::Detour;
    let mut receivers: Vec<usize> = open().filter(|&drive| detour || draft.surplus(drive) < 0.0).collect();
    let mut donors: Vec<usize> = open().filter(|&drive| detour || draft.surplus(drive) > 0.0).collect();
    receivers.sort_by(|&one, &other| relative(one).total_cmp(&relative(other)));
    donors.sort_by(|&one, &other| relative(other).total_cmp(&relative(one)));
    for &receiver in &receivers {
        for &donor in &donors {
            // Less than one place apart, the move would only exchange who is full. (More: the sum of squares of all
            // surpluses falls with every move, so they come to an end.)
            let apart = draft.surplus(donor) - draft.surplus(receiver) > 1.0 + 1e-6;
            if apart
                && (off(donor) || off(receiver))
                && let Some(number) = group_to_move(draft, donor, receiver)
            {
                return Some((number, donor, receiver));
            }
        }
    }
    None
}

/// Of the donor's groups one that the receiver can join: rather one that the donor does not lead, for the sake of
/// owners that have their copies there; then one whose other members the receiver has met least.
fn group_to_move(draft: &Draft, donor: usize, receiver: usize) -> Option<usize> {
    let candidates = draft.groups_of(donor).iter().copied().filter_map(|number| {
        let group = &draft.groups[number];
        if group.is_moving() || group.members.contains(&receiver) || !draft.is_well(number) {
            return None;
        }
        let others: Vec<usize> = group.members.iter().copied().filter(|&member| member != donor).collect();
        if !draft.spread.allows(draft.pool, &others, receiver) {
            return None;
        }
        let leads = group.members[0] == donor;
        Some(((leads, draft.meetings(&others, receiver), draft.draw(group.id, receiver)), number))
    });
    candidates.min().map(|(_, number)| number)
}
