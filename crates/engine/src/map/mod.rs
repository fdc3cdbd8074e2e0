//! The map of a family: where every block is. Pages of it lie in egroups; what changed since they were
//! written stands beside them as edits.

pub mod checkpoint;
pub mod directory;
pub mod edits;
pub mod index;
pub mod interval;
pub mod leaf;
pub mod lookup;
pub mod page;

use crate::formats::record::NamedEgroup;
use crate::identity::{EgroupId, GroupId};
use directory::Directory;
use edits::Edits;
use index::PageIndex;
use lookup::Pages;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub struct Map {
    /// Newer than `merging`, which is newer than the pages.
    pub edits: Edits,
    /// The edits a running checkpoint is putting into pages.
    pub merging: Option<Edits>,
    pub index: PageIndex,
    pub directory: Directory,
    /// Egroups with pages in them.
    pub map_egroups: BTreeMap<EgroupId, NamedEgroup>,
    /// Egroups named since the last cut: nothing of them is counted as live yet, but they are.
    pub fresh: BTreeSet<EgroupId>,
    /// Units of the egroups named since the last cut: what they replaced is free only after the next checkpoint.
    pub units_since_cut: u64,
    pub(crate) pages: Pages,
}

impl Map {
    /// A durable record names this egroup.
    pub fn name(&mut self, egroup: EgroupId, group: GroupId, units: u32) {
        // A replay may name what a directory page already knows.
        if !self.directory.contains(egroup) {
            self.directory.insert(egroup, group, units);
        }
        self.fresh.insert(egroup);
        self.units_since_cut += u64::from(units);
    }

    /// The group of an egroup in use.
    pub fn group_of(&self, egroup: EgroupId) -> Option<GroupId> {
        let data = self.directory.get(egroup).map(|entry| entry.group);
        data.or_else(|| self.map_egroups.get(&egroup).map(|named| named.group))
    }

    /// Units of an egroup in use.
    pub fn units_of(&self, egroup: EgroupId) -> Option<u32> {
        let data = self.directory.get(egroup).map(|entry| entry.units);
        data.or_else(|| self.map_egroups.get(&egroup).map(|named| named.units))
    }
}
