//! Units that have been copied elsewhere: the next checkpoint has every page that tells of them say so.
//! Promises: until then both places hold the same bytes, so nobody has to know; who the unit is seen by does not matter.
//! Leaves to others: which units are moved, and when the old ones go (`curator`), changing pages (`merge`).

use super::directory::Directory;
use super::leaf::{Leaf, LeafEdit};
use super::past::Past;
use crate::formats::record::UnitMove;
use crate::identity::EgroupId;
use crate::limits::LEAF_BLOCKS;
use std::collections::{BTreeMap, BTreeSet};

/// Where one unit is now.
type Places = BTreeMap<(EgroupId, u32), (EgroupId, u32)>;

#[derive(Debug, Clone, Default)]
pub struct Moves {
    /// By leaf.
    leaves: BTreeMap<u64, Places>,
}

impl Moves {
    /// What a durable record says of its egroup.
    pub fn add(&mut self, to: EgroupId, moved: &UnitMove) {
        for index in 0..moved.count {
            let leaf = (moved.block.0 + u64::from(index)) / LEAF_BLOCKS;
            let places = self.leaves.entry(leaf).or_default();
            // Named twice, the first place counts: a page may have it already.
            places.entry((moved.from, moved.from_unit + index)).or_insert((to, moved.unit + index));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// The leaves whose pages tell of units that have moved.
    pub fn leaves(&self) -> impl Iterator<Item = u64> + '_ {
        self.leaves.keys().copied()
    }

    pub fn concern(&self, leaf: u64) -> bool {
        self.leaves.contains_key(&leaf)
    }

    /// The leaf page with the new places; counts them in the directory.
    pub(super) fn apply(&self, number: u64, leaf: Leaf, directory: &mut Directory) -> Leaf {
        let Some(places) = self.leaves.get(&number) else { return leaf };
        let (leaf, moved) = translate(&leaf, places);
        for (from, to) in moved {
            directory.remove_live(from, 1);
            directory.add_live(to, 1);
        }
        leaf
    }

    /// The same for a page of the past.
    pub(super) fn apply_to_past(&self, number: u64, past: &Past, directory: &mut Directory) -> Past {
        let Some(places) = self.leaves.get(&number) else { return past.clone() };
        past.map_groups(|group| {
            let (group, moved) = translate(group, places);
            for (from, to) in moved {
                directory.remove_past(from, 1);
                directory.add_live(to, 1);
                directory.add_past(to, 1);
            }
            group
        })
    }
}

/// The leaf with the new places, and for each unit that moved where it was and is.
fn translate(leaf: &Leaf, places: &Places) -> (Leaf, Vec<(EgroupId, EgroupId)>) {
    let left: BTreeSet<EgroupId> = places.keys().map(|(from, _)| *from).collect();
    let (mut edits, mut moved) = (Vec::new(), Vec::new());
    for run in leaf.iter().filter(|run| left.contains(&run.egroup)) {
        for (&(_, unit), &(egroup, new)) in
            places.range((run.egroup, run.unit())..(run.egroup, run.unit() + run.count()))
        {
            let start = run.start() + unit - run.unit();
            edits.push(LeafEdit { start, count: 1, place: Some((egroup, new)) });
            moved.push((run.egroup, egroup));
        }
    }
    (leaf.merge(edits, &mut |_| {}), moved)
}
