//! Leaves of a clone that were trimmed whole and have no page: told as ranges of leaves, not by a page for each.
//! Promises: trimming terabytes of a clone takes one range, so no checkpoint needs more room than there are pages to change;
//! there are no more ranges than a checkpoint record can tell.
//! Leaves to others: narrower holes, which stand in leaf pages (`merge`), and where the ranges are kept (`checkpoint`).
//!
//! What is said here of a leaf counts only while it has no page: whatever else comes into the leaf gives it one, which says
//! all. In a vDisk that is no clone what was trimmed has no place, and nothing is said here.

use super::edit_layers::EditLayers;
use super::edits::Place;
use super::interval::{IntervalMap, Slice};
use crate::formats::record::TrimmedLeaves;
use crate::identity::Generation;
use crate::limits::LEAF_BLOCKS;
use std::collections::BTreeMap;
use std::ops::Range;

/// Fewer leaves than this in a row get pages as any others do.
const LEAVES_MIN: u64 = 16;
/// Ranges at most, roughly: each takes 24 bytes of every checkpoint record.
const RANGES_MAX: usize = 1024;

impl Slice for Generation {
    fn slice(&self, _from: u64, _count: u64) -> Self {
        *self
    }

    const JOINS: bool = true;

    fn joins(&self, _count: u64, next: &Self) -> bool {
        self == next
    }
}

/// Ranges of leaves, each with the generation in which it was trimmed.
#[derive(Debug, Clone, Default)]
pub struct Holes {
    ranges: IntervalMap<Generation>,
}

impl Holes {
    /// As a checkpoint record tells them.
    pub fn restore(told: &[TrimmedLeaves]) -> Self {
        let mut holes = Self::default();
        for TrimmedLeaves { first, count, generation } in told {
            holes.ranges.insert(*first, *count, *generation);
        }
        holes
    }

    pub fn list(&self) -> Vec<TrimmedLeaves> {
        let told = |(first, count, generation): (u64, u64, &Generation)| TrimmedLeaves {
            first,
            count,
            generation: *generation,
        };
        self.ranges.iter().map(told).collect()
    }

    /// When this leaf, if it has no page, was trimmed whole.
    pub fn get(&self, leaf: u64) -> Option<Generation> {
        self.ranges.peek(leaf).copied()
    }

    /// The wide trims among these edits of a clone, by generation: whole leaves, of those that the origin may have
    /// something of.
    pub(super) fn wide_trims(&self, edits: &EditLayers, origin_leaves: u64) -> BTreeMap<Generation, Holes> {
        let mut trims: BTreeMap<Generation, Holes> = BTreeMap::new();
        let mut ranges = self.ranges.len();
        for (generation, edits) in edits.iter() {
            for (block, count, place) in edits.iter() {
                let first = block.0.div_ceil(LEAF_BLOCKS);
                let end = ((block.0 + count) / LEAF_BLOCKS).min(origin_leaves);
                if place == Place::Nowhere && end >= first + LEAVES_MIN && ranges < RANGES_MAX {
                    ranges += 1;
                    trims.entry(generation).or_default().ranges.insert(first, end - first, generation);
                }
            }
        }
        trims
    }

    /// The leaves of this range that nothing is said of here, in order.
    pub(super) fn outside(&self, leaves: Range<u64>) -> Vec<u64> {
        if leaves.is_empty() {
            return Vec::new();
        }
        let parts = self.ranges.over(leaves.start, leaves.end - leaves.start);
        parts.filter(|(.., told)| told.is_none()).flat_map(|(first, count, _)| first..first + count).collect()
    }

    /// Adds trims; what was trimmed before stays so, because trimming it again changes nothing.
    pub(super) fn add(&mut self, trims: &Holes) {
        for (first, count, generation) in trims.ranges.iter() {
            let missing: Vec<(u64, u64)> = self
                .ranges
                .over(first, count)
                .filter(|(.., told)| told.is_none())
                .map(|(first, count, _)| (first, count))
                .collect();
            for (first, count) in missing {
                self.ranges.insert(first, count, *generation);
            }
        }
    }

    /// As it was at the end of this generation.
    pub(super) fn until(&self, generation: Generation) -> Self {
        let mut holes = Self::default();
        for (first, count, trimmed) in self.ranges.iter().filter(|(.., trimmed)| **trimmed <= generation) {
            holes.ranges.insert(first, count, *trimmed);
        }
        holes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Block;

    fn told(holes: &Holes) -> Vec<(u64, u64, u32)> {
        holes.list().iter().map(|told| (told.first, told.count, told.generation.0)).collect()
    }

    #[test]
    fn only_whole_leaves_in_long_rows_are_told_and_the_first_trim_counts() {
        let mut edits = EditLayers::default();
        // Whole leaves 1 to 99; then some that are too few; then up to the end of what the origin has.
        edits.set(Generation(3), Block(5), 100 * LEAF_BLOCKS - 5, Place::Nowhere);
        edits.set(Generation(3), Block(200 * LEAF_BLOCKS), 15 * LEAF_BLOCKS, Place::Nowhere);
        edits.set(Generation(5), Block(50 * LEAF_BLOCKS), 1 << 40, Place::Nowhere);
        let mut holes = Holes::default();
        let trims = holes.wide_trims(&edits, 1000);
        assert_eq!(told(&trims[&Generation(3)]), [(1, 99, 3)]);
        assert_eq!(told(&trims[&Generation(5)]), [(50, 950, 5)]);
        for trimmed in trims.values() {
            holes.add(trimmed);
        }
        assert_eq!(told(&holes), [(1, 99, 3), (100, 900, 5)]);
        assert_eq!(
            (holes.get(0), holes.get(1), holes.get(999)),
            (None, Some(Generation(3)), Some(Generation(5)))
        );
        assert_eq!(holes.outside(0..3), [0]);
        assert_eq!(holes.outside(998..1002), [1000, 1001]);
        assert_eq!(told(&holes.until(Generation(4))), [(1, 99, 3)]);
        assert_eq!(told(&Holes::restore(&holes.list())), told(&holes));
    }

    #[test]
    fn there_are_no_more_ranges_than_a_record_can_tell() {
        let mut edits = EditLayers::default();
        for trim in 0..2 * RANGES_MAX as u64 {
            let block = Block(trim * (LEAVES_MIN + 1) * LEAF_BLOCKS);
            edits.set(Generation(1), block, LEAVES_MIN * LEAF_BLOCKS, Place::Nowhere);
        }
        let trims = Holes::default().wide_trims(&edits, 1 << 30);
        assert_eq!(trims[&Generation(1)].list().len(), RANGES_MAX);
    }
}
