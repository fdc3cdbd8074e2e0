//! Which group an egroup goes to, and how much the groups can take.
//! Promises: the same view and the same draws make the same choice; each drive is looked up once in a choice; client data
//! goes to groups with as many members up as any has, also if only others have room.
//! Leaves to others: writing it there (`egroup/place.rs`).

use crate::buffer::BLOCK;
use crate::context::{Context, is_lost, is_up};
use crate::identity::{DriveId, GroupId};
use crate::interface::{DriveState, DriveView, GroupView, View};
use crate::sabotage::{Bug, planted};
use std::collections::BTreeSet;

/// What a choice among all groups asks of every drive, looked up once for each and not for each place in a group.
struct Standings(Vec<(DriveId, Standing)>);

struct Standing {
    up: bool,
    open: bool,
    /// It is not about to be emptied.
    stays: bool,
    own: bool,
    free: Option<u64>,
    /// Egroups on their way there.
    queue: u64,
}

impl Standings {
    fn of(ctx: &Context) -> Self {
        let standing = |(&drive, view): (&DriveId, &DriveView)| {
            let (up, open, stays) = (view.state.is_up(), view.state.is_open(), view.state.stays());
            let own = view.shard == ctx.shard;
            let queue = u64::from(ctx.calls.writes(drive));
            (drive, Standing { up, open, stays, own, free: ctx.free.get(&drive).copied(), queue })
        };
        Self(ctx.view.drives.iter().map(standing).collect())
    }

    /// None: nobody knows the drive.
    fn get(&self, drive: DriveId) -> Option<&Standing> {
        let at = self.0.binary_search_by_key(&drive, |(drive, _)| *drive).ok()?;
        Some(&self.0[at].1)
    }
}

/// How many members of a group have to be up, so that what is written to them now is as safe as it can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copies {
    /// As many as in any group of its size.
    Most,
    AtLeast(usize),
}

/// Bytes of client data that the emptiest group of this factor could take.
pub(super) fn roomiest(factor: usize, ctx: &Context) -> u64 {
    let standings = Standings::of(ctx);
    let groups = ctx.view.groups.values().filter(|group| group.members.len() == factor);
    let room = |members: &[DriveId]| {
        let up = members.iter().filter_map(|&drive| standings.get(drive)).filter(|drive| drive.up);
        // A drive that has told nothing yet is taken for empty: it will tell soon.
        up.fold((0, u64::MAX), |(up, room), drive| (up + 1, room.min(drive.free.unwrap_or(u64::MAX))))
    };
    // Nothing goes to groups with fewer members up than others have (see `choose`).
    let rooms = groups.map(|group| room(&group.members)).filter(|(up, _)| *up > 0);
    let best = rooms.max_by_key(|&(up, room)| (if planted(Bug::ThinDrains) { 1 } else { up }, room));
    best.map_or(u64::MAX, |(_, room)| room)
}

/// How many copies there will be of what lies in this group, when all that may come back has come back.
pub(super) fn expected_copies(group: &GroupView, view: &View) -> usize {
    let former = group.former.iter().filter(|&drive| !group.members.contains(drive));
    let drives = group.members.iter().chain(former);
    drives.filter(|&&drive| !is_lost(view, drive)).count().min(group.members.len())
}

fn members_up(group: &GroupView, view: &View) -> usize {
    group.members.iter().filter(|&&drive| is_up(view, drive)).count()
}

/// Whether some group of this factor misses nobody: what is written there now has as many copies as what lies there will ever have.
pub(super) fn is_any_whole(factor: usize, view: &View) -> bool {
    let mut groups = view.groups.values().filter(|group| group.members.len() == factor);
    groups.any(|group| members_up(group, view) >= expected_copies(group, view).max(1))
}

/// The most members that are up in any group of this factor, and how many a log of it can have, now or in a moment.
pub(super) fn most_up(factor: usize, view: &View) -> (usize, usize) {
    let log = view.drives.values().filter(|drive| is_up_soon(drive, view)).take(factor).count();
    let mut most = 0;
    for group in view.groups.values().filter(|group| group.members.len() == factor) {
        most = most.max(members_up(group, view));
        if most == factor {
            break;
        }
    }
    (most, log)
}

/// Whether a drive is up, or down where another one is up: that is being opened, or hangs, and will be up or given up soon.
fn is_up_soon(drive: &DriveView, view: &View) -> bool {
    let is_neighbour = |other: &DriveView| other.domain == drive.domain && other.state.is_up();
    let is_opening = drive.state == DriveState::Down && !planted(Bug::OpeningDrivesForgotten);
    drive.state.is_up() || is_opening && view.drives.values().any(is_neighbour)
}

/// Whether some group of this factor will have so much room when members that may come back have come back.
pub(super) fn is_room_away(factor: usize, room: u64, ctx: &Context) -> bool {
    let groups = ctx.view.groups.values().filter(|group| group.members.len() == factor);
    let has_room = |drive: &DriveId| ctx.free.get(drive).is_none_or(|&free| free >= room);
    groups
        .filter(|group| members_up(group, ctx.view) < expected_copies(group, ctx.view))
        .any(|group| group.members.iter().filter(|&&drive| ctx.is_up(drive)).all(has_room))
}

/// Whether what is written now gets a copy on a drive of this shard: in a group of this factor with so much room, all of whose
/// members are up, stay and are not slow.
pub(crate) fn is_here(factor: usize, room: u64, ctx: &Context) -> bool {
    let standings = Standings::of(ctx);
    let has_room = |drive: &Standing| drive.open && drive.free.is_none_or(|free| free >= room);
    ctx.view.groups.values().filter(|group| group.members.len() == factor).any(|group| {
        let mut members = group.members.iter().map(|&drive| standings.get(drive));
        members.clone().flatten().any(|drive| drive.own) && members.all(|drive| drive.is_some_and(has_room))
    })
}

/// A group of this factor that was not tried yet, with so many members up: members all up before some, without a drive that is to
/// be emptied before with, without a slow one before with, the first member own before others', then by a draw weighted with free
/// space and with how little is on its way to the members: a drive that is slower than others to take what it has gets less.
pub(super) fn choose(
    factor: usize,
    copies: Copies,
    tried: &BTreeSet<GroupId>,
    ctx: &mut Context,
) -> Option<GroupId> {
    let mut best: Option<(u32, u64, GroupId)> = None;
    let view = ctx.view;
    let standings = Standings::of(ctx);
    let mut most_up_of_tried = 0;
    for (&group, members) in view.groups.iter() {
        if members.members.len() != factor {
            continue;
        }
        let (mut up, mut own, mut stays, mut quick, mut free, mut queues) = (0, false, true, true, None, 1);
        for drive in members.members.iter().filter_map(|&drive| standings.get(drive)) {
            up += u32::from(drive.up);
            own |= drive.own && !planted(Bug::FirstCopyAnywhere);
            stays &= drive.stays || !drive.up;
            quick &= drive.open || !drive.up;
            free = free.into_iter().chain(drive.free).min();
            // A product, so that the own drive, which is in all of them, counts alike in all.
            queues *= drive.queue + 1;
        }
        if tried.contains(&group) {
            most_up_of_tried = most_up_of_tried.max(up);
            continue;
        }
        if up == 0 || matches!(copies, Copies::AtLeast(least) if (up as usize) < least) {
            continue;
        }
        // Two draws weighted by free space and the better one taken would herd; one draw spreads.
        let weight = free.unwrap_or(1 << 30) / BLOCK as u64 / queues + 1;
        let drawn = ctx.draw.below(weight);
        let rank = up * 8 + u32::from(stays) * 4 + u32::from(quick) * 2 + u32::from(own);
        if best.is_none_or(|(best_rank, best_drawn, _)| (rank, drawn) > (best_rank, best_drawn)) {
            best = Some((rank, drawn, group));
        }
    }
    // The rank begins with how many are up.
    let has_most = |rank: u32| copies != Copies::Most || rank / 8 >= most_up_of_tried;
    best.filter(|&(rank, _, _)| has_most(rank)).map(|(_, _, group)| group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{Purpose, Surroundings};
    use crate::identity::{EgroupId, Epoch, FamilyId, ShardId};
    use crate::interface::DriveState;
    use crate::message::{Class, Content, Lacking, Question};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    const GIB: u64 = 1 << 30;

    /// Drive 0 of shard 0, and three of as many other nodes; every pair with drive 0 is a group, named by the other one, and so is
    /// one pair without it.
    fn view() -> View {
        let drive = |number: u32| {
            let shard = ShardId::of(number, 0);
            (DriveId(number), DriveView { shard, domain: number, state: DriveState::Up })
        };
        let pair = |a: u32, b: u32| GroupView { members: vec![DriveId(a), DriveId(b)], former: Vec::new() };
        let mut groups: BTreeMap<GroupId, GroupView> = (1..4).map(|b| (GroupId(b), pair(0, b))).collect();
        groups.insert(GroupId(9), pair(1, 2));
        View { version: 1, drives: (0..4).map(drive).collect(), groups: Arc::new(groups) }
    }

    /// A shard of this node whose drives have told of so much room.
    fn surroundings(node: u32, free: [u64; 4]) -> Surroundings {
        let (shard, free) = (ShardId::of(node, 0), (0..).map(DriveId).zip(free).collect());
        Surroundings { shard, free, ..Surroundings::new(view()) }
    }

    /// How often each group is chosen, of a thousand times, while so many egroups are on their way to drive 2.
    fn chosen(queue: u32, free: [u64; 4]) -> BTreeMap<GroupId, u32> {
        surroundings(0, free).with(|ctx| chosen_in(queue, ctx))
    }

    fn chosen_in(queue: u32, ctx: &mut Context) -> BTreeMap<GroupId, u32> {
        for number in 0..queue {
            let question = Question::WriteEgroup {
                egroup: EgroupId(u64::from(number)),
                class: Class::Data,
                content: Content::Units(Vec::new()),
                blocks: Vec::new(),
                replace: false,
                sharing: None,
                lacking: Lacking::default(),
            };
            ctx.ask(FamilyId(1), Epoch(1), DriveId(2), question, Purpose::Place(u64::from(number)));
        }
        let mut counts = BTreeMap::new();
        for _ in 0..1000 {
            let group = choose(2, Copies::Most, &BTreeSet::new(), ctx).expect("there are groups");
            *counts.entry(group).or_default() += 1;
        }
        assert!(!counts.contains_key(&GroupId(9)), "the first copy is local");
        ctx.calls.forget(FamilyId(1));
        assert_eq!(
            ctx.calls.writes(DriveId(2)),
            0,
            "nothing is on its way for a vDisk that is served no more"
        );
        counts
    }

    #[test]
    fn groups_are_drawn_by_free_space_and_by_what_is_on_its_way() {
        let even = chosen(0, [GIB; 4]);
        assert!(even.values().all(|&count| count > 250), "three alike: {even:?}");
        let slow = chosen(3, [GIB; 4]);
        assert!(slow[&GroupId(2)] < 60 && slow[&GroupId(1)] > 400, "it has three egroups to write: {slow:?}");
        let fuller = chosen(0, [GIB, GIB / 4, GIB, GIB]);
        assert!(fuller[&GroupId(1)] < 60 && fuller[&GroupId(2)] > 400, "it has little room: {fuller:?}");
    }

    #[test]
    fn what_is_written_here_has_a_place_only_where_all_members_have_room() {
        let is_here_with = |free, node| surroundings(node, free).with(|ctx| is_here(2, GIB, ctx));
        assert!(is_here_with([GIB; 4], 0));
        assert!(is_here_with([GIB, GIB, 0, 0], 0), "one pair is enough");
        assert!(!is_here_with([GIB, 0, 0, 0], 0), "its partners have none");
        assert!(!is_here_with([GIB; 4], 5), "who has no drive");
    }

    /// Drives 2 and 3 are away; so only the pair of 0 and 1 is whole.
    fn two_away(free: [u64; 4]) -> Surroundings {
        let mut view = view();
        for drive in [2, 3].map(DriveId) {
            view.drives.get_mut(&drive).expect("it is there").state = DriveState::Down;
        }
        Surroundings { view, ..surroundings(0, free) }
    }

    #[test]
    fn full_groups_whose_members_are_up_are_not_left_for_others() {
        two_away([GIB, 0, GIB, GIB]).with(|ctx| {
            assert_eq!(roomiest(2, ctx), 0, "what the others could take is not counted");
            assert!(is_room_away(2, GIB, ctx), "it comes back with them");
            assert!(!is_room_away(2, 2 * GIB, ctx));
            let none = BTreeSet::new();
            assert_eq!(choose(2, Copies::Most, &none, ctx), Some(GroupId(1)));
            let tried = BTreeSet::from([GroupId(1)]);
            assert_eq!(choose(2, Copies::Most, &tried, ctx), None);
            assert_eq!(choose(2, Copies::AtLeast(2), &tried, ctx), None);
            assert!(choose(2, Copies::AtLeast(1), &tried, ctx).is_some());
        });
    }

    #[test]
    fn a_slow_drive_is_written_to_last_and_rather_than_none() {
        let with = |states: [DriveState; 4]| {
            let mut view = view();
            view.drives.values_mut().zip(states).for_each(|(drive, state)| drive.state = state);
            let mut around = Surroundings { view, ..surroundings(0, [GIB; 4]) };
            around.with(|ctx| {
                let mut tried = BTreeSet::new();
                let each = std::iter::from_fn(|| {
                    choose(2, Copies::Most, &tried, ctx).inspect(|&group| _ = tried.insert(group))
                });
                each.map(|group| group.0).collect::<Vec<_>>()
            })
        };
        let [up, slow, drained, down] =
            [DriveState::Up, DriveState::Slow, DriveState::Draining, DriveState::Down];
        assert_eq!(with([up, up, slow, slow])[0], 1, "nothing of it is slow");
        assert_eq!(with([up, slow, up, up])[2..], [1, 9], "what is full counts as tried");
        assert_eq!(with([up, up, slow, down])[..2], [1, 2], "two copies, one of them late, before one");
        assert_eq!(with([up, slow, down, down]), [1]);
        assert_eq!(with([up, drained, slow, up]), [3, 2, 1, 9], "what is to be emptied comes last");
    }

    #[test]
    fn copies_that_may_come_back_are_expected() {
        let mut around = two_away([GIB; 4]);
        let pair = |a: u32, b: u32, former: &[u32]| GroupView {
            members: vec![DriveId(a), DriveId(b)],
            former: former.iter().copied().map(DriveId).collect(),
        };
        let copies = |view: &View, group: &GroupView| expected_copies(group, view);
        assert_eq!(copies(&around.view, &pair(0, 2, &[])), 2);
        assert!(is_any_whole(2, &around.view), "to the pair that is whole");
        around.view.groups = Arc::new(BTreeMap::from([(GroupId(2), pair(0, 2, &[]))]));
        assert!(!is_any_whole(2, &around.view));
        around.view.drives.get_mut(&DriveId(2)).expect("it is there").state = DriveState::Lost;
        assert_eq!(copies(&around.view, &pair(0, 2, &[])), 1);
        assert!(is_any_whole(2, &around.view), "nothing comes back from there");
        assert_eq!(copies(&around.view, &pair(0, 2, &[3])), 2, "who was a member may have the other copy");
        assert_eq!(copies(&around.view, &pair(0, 1, &[3])), 2, "no more than there shall be");
    }
}
