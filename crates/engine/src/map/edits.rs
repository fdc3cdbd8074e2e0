//! What map records have changed since the pages were written: it stands beside the tree, before it in reads.
//! Promises: the newest place of every changed block; a trim of 2^50 blocks is one edit.
//! Leaves to others: merging into leaves (`leaf`), when (`checkpoint`).

use crate::identity::{Block, EgroupId};
use crate::limits::LEAF_BLOCKS;
use crate::map::interval::{IntervalMap, Piece, Slice};
use crate::map::leaf::LeafEdit;
use std::ops::Range;

/// Where a range of blocks is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At `unit` onwards of this egroup.
    At { egroup: EgroupId, unit: u32 },
    /// Reads as zeros.
    Nowhere,
}

impl Slice for Place {
    fn slice(&self, from: u64, _count: u64) -> Self {
        match *self {
            Place::At { egroup, unit } => Place::At { egroup, unit: unit + from as u32 },
            Place::Nowhere => Place::Nowhere,
        }
    }

    const JOINS: bool = true;

    fn joins(&self, count: u64, next: &Self) -> bool {
        match (*self, *next) {
            (Place::At { egroup, unit }, Place::At { egroup: other, unit: following }) => {
                egroup == other && u64::from(unit) + count == u64::from(following)
            }
            (Place::Nowhere, Place::Nowhere) => true,
            _ => false,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Edits {
    places: IntervalMap<Place>,
}

impl Edits {
    /// `count` blocks from `block` on are at `place` now. Gives back the edits this replaced, in order.
    pub fn set(&mut self, block: Block, count: u64, place: Place) -> Vec<Piece<Place>> {
        self.places.insert(block.0, count, place)
    }

    /// Where the block is, and for how many blocks that goes on in order; None: not changed, ask the leaf.
    pub fn get(&self, block: Block) -> Option<(u64, Place)> {
        self.places.get(block.0)
    }

    /// The range in order: first block, count, and the place, or None where nothing was changed.
    pub fn over(&self, block: Block, count: u64) -> impl Iterator<Item = (Block, u64, Option<Place>)> + '_ {
        self.places.over(block.0, count).map(|(at, count, place)| (Block(at), count, place))
    }

    pub fn overlaps(&self, block: Block, count: u64) -> bool {
        self.places.overlaps(block.0, count)
    }

    /// How many edits there are; neighbours that continue each other count as one.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// All edits in order of address.
    pub fn iter(&self) -> impl Iterator<Item = (Block, u64, Place)> + '_ {
        self.places.iter().map(|(at, count, place)| (Block(at), count, *place))
    }

    /// The edits of `newer` replace those here: what became of a checkpoint that failed is put back this way
    /// (`old.absorb(newer)`).
    pub fn absorb(&mut self, newer: Edits) {
        for (block, count, place) in newer.iter() {
            self.set(block, count, place);
        }
    }

    /// The numbers of the leaves that the edits change, in order. `existing` gives the leaves in a range of
    /// numbers that have a page, in order: unmapping changes no others, so a trim of everything costs as much
    /// as there is.
    pub fn leaves(&self, existing: &dyn Fn(Range<u64>) -> Vec<u64>) -> Vec<u64> {
        let mut leaves: Vec<u64> = Vec::new();
        for (block, count, place) in self.iter() {
            let mut first = block.0 / LEAF_BLOCKS;
            let end = (block.0 + count - 1) / LEAF_BLOCKS + 1;
            if leaves.last() == Some(&first) {
                first += 1;
            }
            if first == end {
                continue;
            }
            match place {
                Place::At { .. } => leaves.extend(first..end),
                Place::Nowhere => leaves.append(&mut existing(first..end)),
            }
        }
        assert!(leaves.is_sorted_by(|a, b| a < b), "leaves are told in order, and once");
        leaves
    }

    /// The edits of leaf `number`, in order, as positions in the leaf.
    pub fn in_leaf(&self, number: u64) -> impl Iterator<Item = LeafEdit> + '_ {
        let base = number * LEAF_BLOCKS;
        self.places.pieces(base, LEAF_BLOCKS).map(move |piece| LeafEdit {
            start: (piece.start - base) as u32,
            count: piece.count as u32,
            place: match piece.value {
                Place::At { egroup, unit } => Some((egroup, unit)),
                Place::Nowhere => None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use std::collections::{BTreeMap, BTreeSet};

    fn at(egroup: u64, unit: u32) -> Place {
        Place::At { egroup: EgroupId(egroup), unit }
    }

    #[test]
    fn it_agrees_with_one_entry_per_block_under_random_input() {
        let mut random = SmallRng::seed_from_u64(3);
        for _ in 0..10 {
            let (mut old, mut newer) = (Edits::default(), Edits::default());
            let mut model: BTreeMap<u64, Place> = BTreeMap::new();
            for step in 0..300 {
                let block = random.random_range(0..12_000);
                let (count, place) = if random.random_bool(0.2) {
                    (random.random_range(1..5000), Place::Nowhere)
                } else {
                    (random.random_range(1..200), at(random.random_range(1..3), random.random_range(0..700)))
                };
                let edits = if step < 150 { &mut old } else { &mut newer };
                edits.set(Block(block), count, place);
                model.extend((0..count).map(|i| (block + i, place.slice(i, 1))));
            }
            old.absorb(newer);
            let found: BTreeMap<u64, Place> = old
                .iter()
                .flat_map(|(block, count, place)| (0..count).map(move |i| (block.0 + i, place.slice(i, 1))))
                .collect();
            assert_eq!(found, model);

            let pages = BTreeSet::from([1_u64, 3, 4, 9, 13, 40]);
            let leaves = old.leaves(&|range| pages.range(range).copied().collect());
            let wanted: BTreeSet<u64> = model
                .iter()
                .filter(|(b, place)| **place != Place::Nowhere || pages.contains(&(*b / LEAF_BLOCKS)))
                .map(|(b, _)| b / LEAF_BLOCKS)
                .collect();
            assert_eq!(leaves, wanted.into_iter().collect::<Vec<_>>());

            for leaf in leaves {
                for edit in old.in_leaf(leaf) {
                    for i in 0..edit.count {
                        let place = model[&(leaf * LEAF_BLOCKS + u64::from(edit.start + i))];
                        let told = edit.place.map_or(Place::Nowhere, |(e, unit)| at(e.0, unit + i));
                        assert_eq!(told, place);
                    }
                }
            }
        }
    }

    #[test]
    fn a_trim_of_everything_names_only_leaves_that_exist() {
        let mut edits = Edits::default();
        edits.set(Block(0), 1 << 50, Place::Nowhere);
        edits.set(Block(1 << 30), 1, at(1, 0));
        assert_eq!(edits.len(), 3);
        let leaves = edits.leaves(&|range| [7, 1 << 38].into_iter().filter(|n| range.contains(n)).collect());
        assert_eq!(leaves, [7, 1 << 20, 1 << 38]);
    }

    #[test]
    fn a_sequential_drain_makes_one_edit() {
        let mut edits = Edits::default();
        for i in 0..100 {
            edits.set(Block(i), 1, at(1, i as u32));
        }
        assert_eq!(edits.len(), 1);
        assert_eq!(edits.get(Block(40)), Some((60, at(1, 40))));
        assert_eq!(edits.get(Block(100)), None);
    }
}
