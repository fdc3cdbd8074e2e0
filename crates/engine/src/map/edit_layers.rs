//! The edits of a vDisk with snapshots, by the generation of the data that they are about.
//! Promises: of two edits of a block the one of the later generation counts; a snapshot sees those up to its own.
//! Leaves to others: the edits of one generation (`edits`).

use super::edits::{Edits, Place};
use crate::identity::{Block, Generation};
use std::collections::BTreeMap;
use std::ops::Range;

#[derive(Debug, Clone, Default)]
pub struct EditLayers {
    layers: BTreeMap<Generation, Edits>,
}

impl EditLayers {
    /// Of this generation, `count` blocks from `block` on are at `place` now.
    pub fn set(&mut self, generation: Generation, block: Block, count: u64, place: Place) {
        self.layers.entry(generation).or_default().set(block, count, place);
    }

    /// Where the block is; None: not changed, ask the leaf.
    pub fn get(&self, block: Block) -> Option<Place> {
        self.layers.values().rev().find_map(|edits| edits.get(block)).map(|(_, place)| place)
    }

    /// The range as it was at the end of generation `at`, with None where nothing was changed. The parts come in no order.
    pub fn over(
        &self,
        at: Generation,
        block: Block,
        count: u64,
        each: &mut impl FnMut(Block, u64, Option<Place>),
    ) {
        // The range `..=at` again and again: with few layers that costs less than keeping them in a list.
        let Some((&newest, edits)) = self.layers.range(..=at).next_back() else {
            return each(block, count, None);
        };
        for (block, count, place) in edits.over(block, count) {
            match (place, newest.0.checked_sub(1)) {
                (None, Some(before)) => self.over(Generation(before), block, count, each),
                _ => each(block, count, place),
            }
        }
    }

    /// How many edits there are in all generations.
    pub fn len(&self) -> usize {
        self.layers.values().map(Edits::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.layers.values().all(Edits::is_empty)
    }

    /// How many generations have edits.
    pub fn generations(&self) -> usize {
        self.layers.len()
    }

    /// Oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (Generation, &Edits)> {
        self.layers.iter().map(|(generation, edits)| (*generation, edits))
    }

    /// The numbers of the leaves that the edits change, in order; see [`Edits::leaves`].
    pub fn leaves(&self, existing: &dyn Fn(Generation, Range<u64>) -> Vec<u64>) -> Vec<u64> {
        let of =
            |(generation, edits): (&Generation, &Edits)| edits.leaves(&|range| existing(*generation, range));
        let mut leaves: Vec<u64> = self.layers.iter().flat_map(of).collect();
        leaves.sort_unstable();
        leaves.dedup();
        leaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::EgroupId;

    #[test]
    fn a_generation_sees_its_own_edits_and_older_ones() {
        let at = |egroup| Place::At { egroup: EgroupId(egroup), unit: 0 };
        let mut edits = EditLayers::default();
        edits.set(Generation(3), Block(4), 2, Place::Nowhere);
        edits.set(Generation(1), Block(4), 1, at(1));
        edits.set(Generation(5), Block(5), 1, at(5));
        let seen = |generation, block| {
            let mut seen = Vec::new();
            edits.over(Generation(generation), Block(block), 1, &mut |_, count, place| {
                seen.push((count, place));
            });
            assert_eq!(seen.len(), 1);
            seen[0].1
        };
        assert_eq!((seen(0, 4), seen(1, 4), seen(2, 4)), (None, Some(at(1)), Some(at(1))));
        assert_eq!(
            (seen(3, 4), seen(9, 4), edits.get(Block(4))),
            (Some(Place::Nowhere), Some(Place::Nowhere), Some(Place::Nowhere))
        );
        assert_eq!((seen(2, 5), seen(4, 5), seen(5, 5)), (None, Some(Place::Nowhere), Some(at(5))));
        assert_eq!((edits.len(), edits.generations()), (3, 3));
        assert_eq!(edits.get(Block(6)), None);
    }
}
