//! What owners on this node have found about groups with former members. The controller asks every node for it: only when
//! all owners have said the same are former members forgotten. Kept here, not in the store: it is not worth a record.

use super::{Found, Member, revision_of};
use crate::api::WholeView;
use weft_engine::{Epoch, FamilyId, GroupId};

/// Of one family.
pub struct Told {
    epoch: Epoch,
    groups: Found,
}

impl Member {
    /// See `Notice::GroupsWhole`.
    pub(in crate::control) fn told_whole(
        &mut self,
        family: FamilyId,
        epoch: Epoch,
        view: u64,
        groups: &[GroupId],
    ) {
        let told = self.whole.entry(family).or_insert_with(|| Told { epoch, groups: Found::new() });
        if told.epoch != epoch {
            *told = Told { epoch, groups: Found::new() };
        }
        let mirror = &self.mirror;
        // Of a group without former members nobody will ask.
        let is_asked =
            |group: &GroupId| mirror.groups.get(group).is_none_or(|group| !group.record.former.is_empty());
        told.groups.retain(|group, _| is_asked(group));
        told.groups.extend(groups.iter().map(|&group| (group, revision_of(view))));
    }

    pub(in crate::control) fn whole_view(&self) -> Vec<WholeView> {
        self.whole
            .iter()
            .map(|(family, told)| WholeView {
                family: family.0,
                epoch: told.epoch.0,
                groups: told.groups.iter().map(|(group, &revision)| (group.0, revision)).collect(),
            })
            .collect()
    }
}
