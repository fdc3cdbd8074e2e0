//! Deleting all egroups of a family, in pieces: a large vDisk has some hundred thousand on a drive.
//! Promises: what is here of it when it is dropped is gone when that is answered; so much is on its way at once and no more,
//! however many families are dropped; of each only a place in the order of its egroups is remembered.
//! Leaves to others: deleting one (`egroup_change`); the log (`ring`). After a cut what is left is dropped again: its owner was not answered, or
//! the next census tells of it.

use crate::identity::{EgroupId, FamilyId};
use crate::keeper::desk::{Caller, Desk};
use crate::keeper::egroup_change::DeleteCall;
use crate::keeper::egroups::{Name, Store};

/// A call that deletes a family, from one egroup to the next.
pub(super) struct FamilyDrop {
    family: FamilyId,
    /// Those before it are being deleted, or were.
    next: EgroupId,
    /// Newer ones were not here when the family was dropped.
    last: EgroupId,
}

impl Store {
    /// All egroups of a family go, by and by: see [`Store::continue_drops`]. Returns the number of the call, which waits for one more
    /// [`Store::count_deleted`].
    pub fn delete_family(&mut self, family: FamilyId, caller: Option<Caller>) -> u64 {
        let call = self.number();
        let all = (family, EgroupId(0))..=(family, EgroupId(u64::MAX));
        let stored = self.egroups.range(all.clone()).next_back().map(|(name, _)| *name);
        let changing = self.changing.range(all).next_back().map(|(name, _)| *name);
        let last = stored.max(changing);
        // Until the last one is found the call waits for that as well.
        let left = 1 + usize::from(last.is_some());
        self.deletes.insert(call, DeleteCall::of_family(caller, left));
        if let Some((_, last)) = last {
            self.drops.insert(call, FamilyDrop { family, next: EgroupId(0), last });
        }
        call
    }

    /// Deletes more of the families that are dropped, the one that has waited longest first, until so many erasures are on their way. Whatever is deleted
    /// here ends with a step of the drive, after which it goes on.
    pub fn continue_drops(&mut self, together: usize, desk: &mut Desk) {
        if self.drops.is_empty() {
            return;
        }
        let mut room = together.saturating_sub(self.erasures);
        while room > 0
            && let Some((&call, drop)) = self.drops.first_key_value()
        {
            let names = self.names_between((drop.family, drop.next), (drop.family, drop.last), room);
            room -= names.len();
            match names.last() {
                Some(&(_, name)) if name < drop.last => {
                    let drop = self.drops.get_mut(&call).expect("just seen");
                    drop.next = EgroupId(name.0 + 1);
                    names.into_iter().for_each(|name| self.delete_one(call, name, desk));
                }
                _ => {
                    self.drops.remove(&call);
                    names.into_iter().for_each(|name| self.delete_one(call, name, desk));
                    self.count_deleted(call, desk);
                }
            }
        }
    }

    /// The first names that are stored, or on their way to the drive or away from it: of what another call is deleting, this one waits for the
    /// end.
    fn names_between(&self, first: Name, last: Name, most: usize) -> Vec<Name> {
        let stored = self.egroups.range(first..=last).map(|(name, _)| *name).take(most);
        let changing = self.changing.range(first..=last).map(|(name, _)| *name).take(most);
        let mut names: Vec<Name> = stored.chain(changing).collect();
        names.sort_unstable();
        names.dedup();
        names.truncate(most);
        names
    }
}
