//! Groups with former members: which owners have said that their members have everything.
//! Promises: what was said counts only for the group as it was in that view, and only from an owner's present epoch.
//! Leaves to others: why that is enough to forget former members (`settled`), and forgetting them.

use crate::identity::{Epoch, FamilyId, GroupId};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct WholeGroups(BTreeMap<GroupId, Whole>);

#[derive(Debug)]
struct Whole {
    /// The first view that tells of the group's last change.
    since: u64,
    /// The families whose owners say so, and the epochs of those.
    told: BTreeMap<FamilyId, Epoch>,
}

impl WholeGroups {
    /// Members of the group change with the view of version `view`: what was said before does not count any more.
    pub fn changed(&mut self, group: GroupId, view: u64) {
        self.0.insert(group, Whole { since: view, told: BTreeMap::new() });
    }

    /// An owner says so; see [`crate::interface::Notice::GroupsWhole`].
    pub fn told(&mut self, family: FamilyId, epoch: Epoch, view: u64, groups: &[GroupId]) {
        for group in groups {
            if let Some(whole) = self.0.get_mut(group).filter(|whole| view >= whole.since) {
                // A word of a former owner may come late: it does not take back what the present one said.
                let newest = whole.told.entry(family).or_insert(epoch);
                *newest = epoch.max(*newest);
            }
        }
    }

    /// For people: what was said of a group since which view.
    pub fn describe(&self, group: GroupId) -> String {
        format!("{:?}", self.0.get(&group))
    }

    /// Takes out the groups of which every one of these owners has said so. `owners` are those of **all** families that
    /// are not being dropped; one without an owner is in it with an epoch that nobody speaks for.
    pub fn take_settled(&mut self, owners: &BTreeMap<FamilyId, Epoch>) -> Vec<GroupId> {
        let settled =
            |whole: &Whole| owners.iter().all(|(family, epoch)| whole.told.get(family) == Some(epoch));
        let taken: Vec<GroupId> =
            self.0.iter().filter(|(_, whole)| settled(whole)).map(|(&id, _)| id).collect();
        for group in &taken {
            self.0.remove(group);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_members_are_forgotten_when_the_present_owners_of_all_families_say_so() {
        let (one, two) = (FamilyId(1), FamilyId(2));
        let group = GroupId(7);
        let mut whole = WholeGroups::default();
        whole.changed(group, 10);
        let mut owners = BTreeMap::from([(one, Epoch(3)), (two, Epoch(1))]);
        whole.told(one, Epoch(3), 9, &[group]);
        whole.told(two, Epoch(1), 10, &[group]);
        assert!(whole.take_settled(&owners).is_empty(), "an older view knows nothing of the new member");
        whole.told(one, Epoch(3), 10, &[group]);
        owners.insert(two, Epoch(2));
        assert!(whole.take_settled(&owners).is_empty(), "a new owner has not looked yet");
        whole.changed(group, 12);
        whole.told(two, Epoch(2), 11, &[group]);
        assert!(whole.take_settled(&owners).is_empty(), "the group has changed once more");
        whole.told(one, Epoch(3), 12, &[group]);
        whole.told(two, Epoch(2), 13, &[group]);
        whole.told(two, Epoch(1), 13, &[group]);
        assert_eq!(whole.take_settled(&owners), [group]);
        assert!(whole.take_settled(&owners).is_empty(), "told once");
    }
}
