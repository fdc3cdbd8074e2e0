//! The map of a family: where every block is. Pages of it lie in egroups; what changed since they were
//! written stands beside them as edits.

pub mod checkpoint;
pub mod directory;
pub mod edit_layers;
pub mod edits;
pub mod holes;
pub mod index;
pub mod interval;
pub mod leaf;
pub mod lookup;
pub(crate) mod merge;
pub mod moves;
pub mod page;
pub mod past;
pub mod view;

use crate::formats::record::NamedEgroup;
use crate::identity::{EgroupId, Generation, GroupId};
use directory::Directory;
use edit_layers::EditLayers;
use holes::Holes;
use index::PageIndex;
use lookup::Pages;
use moves::Moves;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Default)]
pub struct Map {
    /// Newer than `merging`, which is newer than the pages.
    pub edits: EditLayers,
    /// The edits a running checkpoint is putting into pages.
    pub merging: Option<EditLayers>,
    /// Units that were copied elsewhere, not in the pages yet: since the last cut, and those that a running checkpoint is putting
    /// into pages.
    pub moves: Moves,
    pub moving: Moves,
    pub index: PageIndex,
    /// Of a clone, leaves without a page that are not the origin's any more.
    pub holes: Holes,
    pub directory: Directory,
    /// Egroups with pages in them.
    pub map_egroups: BTreeMap<EgroupId, NamedEgroup>,
    /// Egroups named since the last cut: nothing of them is counted as live yet, but they are.
    pub fresh: BTreeSet<EgroupId>,
    /// Those of before the cut of a running checkpoint, which is still counting them.
    pub fresh_before: BTreeSet<EgroupId>,
    /// Units of the egroups named since the last cut: what they replaced is free only after the next checkpoint.
    pub units_since_cut: u64,
    pub(crate) pages: Pages,
    pub(crate) views: view::Views,
}

impl Map {
    /// A durable record names this egroup.
    pub fn name(&mut self, named: NamedEgroup) {
        // A replay may name what a directory page already knows.
        if !self.directory.contains(named.egroup) {
            self.directory.insert(named);
        }
        self.fresh.insert(named.egroup);
        self.units_since_cut += u64::from(named.units);
    }

    /// The generation of the data in an egroup.
    pub fn born(&self, egroup: EgroupId) -> Option<Generation> {
        self.directory.born(egroup)
    }

    /// Whether a checkpoint would change a page.
    pub fn is_changed(&self) -> bool {
        !self.edits.is_empty() || !self.moves.is_empty()
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

    /// Blocks that they take on a drive.
    pub fn stored_of(&self, egroup: EgroupId) -> Option<u32> {
        let data = self.directory.get(egroup).map(|entry| entry.stored);
        data.or_else(|| self.map_egroups.get(&egroup).map(|named| named.stored))
    }
}
