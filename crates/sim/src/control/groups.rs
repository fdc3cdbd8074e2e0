//! The table of groups: which drives keep copies together.
//! Promises: members are in distinct fault domains; whoever was a member is remembered until all is where it belongs.
//! Leaves to others: making the copies (the engine's curator).

use super::{Control, FamilyEntry, FamilyPhase};
use crate::world::World;
use std::collections::BTreeSet;
use std::sync::Arc;
use weft_engine::interface::GroupView;
use weft_engine::{DriveId, GroupId};

impl Control {
    /// `new` takes the place of a member, whose copies may lie there for a while.
    pub fn change_member(&mut self, group: GroupId, at: usize, new: DriveId) {
        let view = Arc::make_mut(&mut self.groups).get_mut(&group).expect("the group exists");
        let old = std::mem::replace(&mut view.members[at], new);
        view.former.retain(|&drive| drive != new);
        view.former.push(old);
        self.changed = true;
        self.whole.changed(group, self.version + 1);
    }

    /// Groups that the present owner of every family has called whole; told once.
    pub(super) fn take_settled(&mut self) -> Vec<GroupId> {
        let living =
            |entry: &&FamilyEntry| !matches!(entry.phase, FamilyPhase::Dropping | FamilyPhase::Dropped);
        let owners = self.families.iter().filter(living);
        let owners = owners.map(|entry| (entry.record.family, entry.record.epoch)).collect();
        self.whole.take_settled(&owners)
    }

    /// Former members of such groups are forgotten. Returns how many groups it were.
    pub(super) fn forget_former(&mut self) -> usize {
        let settled = self.take_settled();
        for group in &settled {
            Arc::make_mut(&mut self.groups).get_mut(group).expect("groups stay").former.clear();
            self.changed = true;
        }
        settled.len()
    }

    /// What is known of a group with former members.
    pub fn describe_whole(&self, group: GroupId) -> String {
        let epochs: Vec<_> = self
            .families
            .iter()
            .map(|entry| (entry.record.family, entry.phase, entry.record.epoch))
            .collect();
        format!(
            "{:?}, owners said {}, families are {epochs:?}",
            self.groups[&group],
            self.whole.describe(group)
        )
    }

    /// Groups that remember former members.
    pub fn unsettled_groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.groups.iter().filter(|(_, group)| !group.former.is_empty()).map(|(&id, _)| id)
    }
}

impl World {
    /// Groups of every factor that has enough fault domains, each drive first in some.
    pub fn make_groups(&mut self) {
        let drives: Vec<(DriveId, u32)> = self
            .control
            .drives
            .iter()
            .enumerate()
            .map(|(at, entry)| (DriveId(at as u32), entry.domain))
            .collect();
        let domains = drives.iter().map(|(_, domain)| *domain).collect::<BTreeSet<_>>().len();
        for factor in 1..=domains.min(3) {
            for repeat in 0..if factor == 1 { 1 } else { 2 } {
                for at in 0..drives.len() {
                    let mut members = vec![drives[at]];
                    let mut next = at + 1 + repeat;
                    while members.len() < factor {
                        let candidate = drives[next % drives.len()];
                        if members.iter().all(|member| member.1 != candidate.1) {
                            members.push(candidate);
                        }
                        next += 1;
                    }
                    let members = members.into_iter().map(|(drive, _)| drive).collect();
                    let group = GroupId(self.control.groups.len() as u32 + 1);
                    Arc::make_mut(&mut self.control.groups)
                        .insert(group, GroupView { members, former: Vec::new() });
                }
            }
        }
        self.control.changed = true;
    }
}
