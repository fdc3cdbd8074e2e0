//! The table of placement groups: what about it should change now.
//! Promises: copies lie as far apart as the drives allow; drives have places in proportion to their weight;
//! nothing moves that need not; no change takes away a copy before another is known to exist; a plan that is
//! carried out in part, or not at all, is simply made again.
//! Leaves to others: giving out group numbers, writing the table (each group may be written alone, with a
//! compare-and-set), and finding out what has been copied (`curator/audit.rs` on behalf of every owner).

use super::balance::balance;
use super::draft::Draft;
use super::growth::grow;
use super::leaders::share_leading;
use super::pool::Pool;
use super::repair::{drain, part, replace_lost};
use super::settled::may_forget_former;
use crate::identity::{DriveId, GroupId};
use crate::interface::GroupView;
use std::collections::{BTreeMap, BTreeSet};

/// Groups that may be moving at once, if nothing else is wished: enough to keep many drives busy, few enough that
/// former members, which keep their copies until the move is over, take little space.
pub const MOVES_MAX: usize = 64;

/// What placement knows of a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drive {
    pub id: DriveId,
    pub node: u32,
    /// Numbers for the names that were told with `--rack` and `--zone`; the same number where none was told.
    /// Racks of different zones are different racks.
    pub rack: u32,
    pub zone: u32,
    /// Bytes of its data area; any unit will do if it is the same for all.
    pub weight: u64,
    pub standing: Standing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    In,
    /// Does not answer now; expected back. Keeps its places and gets no new ones.
    Down,
    /// Works, and shall be emptied.
    Draining,
    /// Given up: its data is gone, or it has been away for so long that its places are given to others. If it comes
    /// back after all, it may be a former member that still helps.
    Lost,
}

/// A placement group as the config store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// An egroup names one group for ever: groups are made and never removed.
    pub id: GroupId,
    /// Copies kept by this group.
    pub factor: u32,
    /// The first one leads: owners on its node write here first.
    pub members: Vec<DriveId>,
    /// Not empty: copies are owed to some member. Who was a member before, and may hold what that one lacks; given-up
    /// drives too, as a reminder.
    pub former: Vec<DriveId>,
    /// Grows with every change of the above.
    pub version: u64,
}

/// What the caller wants beside order.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// Factors in use: for these there shall be groups.
    pub factors: BTreeSet<u32>,
    /// Groups that may be in the middle of a move at once. Replacing given-up members is not a move: it takes
    /// nothing away from anybody, so all places are given away at once.
    pub moves_max: usize,
    /// The number of the first new group; the numbers after it are free too.
    pub next_group: u32,
}

/// Changes wanted now. Each group may be written by itself, in any order; what was not written is planned again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Groups as they shall be, each one version further.
    pub changed: Vec<Group>,
    pub made: Vec<Group>,
    /// No move is under way or wanted. (Drives that are down, or have nowhere to go, may still have to wait.)
    pub is_at_rest: bool,
}

impl Group {
    pub fn view(&self) -> GroupView {
        GroupView { members: self.members.clone(), former: self.former.clone() }
    }
}

/// What should change in the table. `audited` tells the groups of which **every** owner has found every copy on
/// every member, in that version (see `settled.rs` for what counts as every owner).
pub fn plan(drives: &[Drive], groups: &[Group], audited: &BTreeSet<(GroupId, u64)>, wishes: &Wishes) -> Plan {
    let pool = Pool::new(drives, groups);
    let mut groups: BTreeMap<GroupId, Group> = groups.iter().map(|group| (group.id, group.clone())).collect();
    assert!(
        groups.last_key_value().is_none_or(|(last, _)| last.0 < wishes.next_group),
        "a new group gets a number that no group ever had"
    );
    let before = groups.clone();
    for group in groups.values_mut() {
        if may_forget_former(group, &pool, audited) {
            group.former.clear();
        }
    }
    let mut factors: BTreeSet<u32> = groups.values().map(|group| group.factor).collect();
    factors.extend(&wishes.factors);
    let mut plan = Plan { is_at_rest: true, ..Plan::default() };
    let mut drafts = Vec::new();
    // Repairs of all factors come before moves of any: a move waits for the copies of the repairs.
    for &factor in &factors {
        let own = groups.values().filter(|group| group.factor == factor);
        let mut draft = Draft::new(&pool, factor, own);
        replace_lost(&mut draft);
        drafts.push(draft);
    }
    let moving: usize = drafts.iter().map(Draft::moving).sum();
    let mut moves_left = wishes.moves_max.saturating_sub(moving);
    plan.is_at_rest &= moving == 0;
    let mut next_group = wishes.next_group;
    for mut draft in drafts {
        // One after the other: what is drained may fill what a balance would have filled with something else.
        let rests = drain(&mut draft, &mut moves_left)
            && part(&mut draft, &mut moves_left)
            && balance(&mut draft, &mut moves_left);
        plan.is_at_rest &= rests;
        if rests && draft.moving() == 0 {
            share_leading(&mut draft);
        }
        // Only when the old groups have the members they shall have: new ones are empty, so places in them are no
        // substitute for places in full ones.
        if rests && wishes.factors.contains(&draft.factor()) {
            next_group += grow(&mut draft, next_group);
        }
        for group in draft.into_groups() {
            groups.insert(group.id, group);
        }
    }
    for (id, mut group) in groups {
        match before.get(&id) {
            None => plan.made.push(group),
            Some(before) if *before != group => {
                group.version = before.version + 1;
                plan.changed.push(group);
            }
            Some(_) => {}
        }
    }
    for group in plan.changed.iter().chain(&plan.made) {
        check(group, before.get(&group.id), &pool, audited);
    }
    plan
}

/// Whether a drive has neither a place nor copies that anybody may still need: a drained one can be removed.
pub fn is_emptied(drive: DriveId, groups: &[Group]) -> bool {
    !groups.iter().any(|group| group.members.contains(&drive) || group.former.contains(&drive))
}

/// What must be true of every change, whatever led to it.
fn check(group: &Group, before: Option<&Group>, pool: &Pool, audited: &BTreeSet<(GroupId, u64)>) {
    assert_eq!(group.members.len(), group.factor as usize, "a group has as many members as copies");
    let members: BTreeSet<DriveId> = group.members.iter().copied().collect();
    assert_eq!(members.len(), group.members.len(), "members are distinct drives");
    assert!(group.former.iter().all(|drive| !members.contains(drive)), "a member is not a former one");
    let Some(before) = before else {
        assert!(group.former.is_empty(), "a new group owes nothing");
        return;
    };
    let left: Vec<DriveId> =
        before.members.iter().copied().filter(|drive| !members.contains(drive)).collect();
    assert!(
        left.iter().all(|drive| group.former.contains(drive)),
        "who leaves is remembered until copies exist"
    );
    let given_up = |drive: &DriveId| pool.standing(*drive) == Standing::Lost;
    let taken = left.iter().filter(|drive| !given_up(drive)).count();
    assert!(taken <= 1, "a change takes away one member that has its copies, not more");
    let owed = !before.former.is_empty() && !may_forget_former(before, pool, audited);
    assert!(taken == 0 || !owed, "while copies are owed nobody who has them leaves");
}
