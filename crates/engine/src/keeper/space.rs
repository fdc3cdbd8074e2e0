//! The free space of the unit area: runs of blocks, given out by best fit.
//! Promises: no block is given out twice, or taken back that is free already (I8).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

#[derive(Default)]
pub(super) struct Space {
    /// First block and length of each free run. Neighbours are always joined.
    runs: BTreeMap<u64, u64>,
    /// The same by length and first block.
    by_length: BTreeSet<(u64, u64)>,
    free: u64,
}

impl Space {
    /// Blocks `first..end`, all free.
    pub fn all_free(first: u64, end: u64) -> Self {
        let mut space = Self::default();
        if first < end {
            space.release(first, end - first);
        }
        space
    }

    pub fn free_blocks(&self) -> u64 {
        self.free
    }

    /// First block and length of the first free run.
    pub fn first(&self) -> Option<(u64, u64)> {
        self.runs.first_key_value().map(|(first, length)| (*first, *length))
    }

    /// A run of `blocks`: part of the shortest free run that is long enough.
    pub fn allocate(&mut self, blocks: u64) -> Option<u64> {
        assert!(blocks > 0, "a run has blocks");
        let &(length, first) = self.by_length.range((blocks, 0)..).next()?;
        self.remove(first, length);
        if length > blocks {
            self.insert(first + blocks, length - blocks);
        }
        Some(first)
    }

    /// Takes exactly these blocks; false if one of them is not free.
    pub fn take(&mut self, first: u64, blocks: u64) -> bool {
        let Some((&start, &length)) = self.runs.range(..=first).next_back() else { return false };
        let (end, run_end) = (first + blocks, start + length);
        if end > run_end || blocks == 0 {
            return false;
        }
        self.remove(start, length);
        if start < first {
            self.insert(start, first - start);
        }
        if end < run_end {
            self.insert(end, run_end - end);
        }
        true
    }

    /// Takes those of these blocks that are free, and gives them.
    pub fn take_free(&mut self, blocks: Range<u64>) -> Vec<Range<u64>> {
        let reversed = self.runs.range(..blocks.end).rev();
        let overlapping = reversed.take_while(|(first, length)| **first + **length > blocks.start);
        let free: Vec<Range<u64>> = overlapping
            .map(|(&first, &length)| first.max(blocks.start)..(first + length).min(blocks.end))
            .collect();
        for part in &free {
            let taken = self.take(part.start, part.end - part.start);
            assert!(taken, "it was just found to be free");
        }
        free
    }

    pub fn release(&mut self, first: u64, blocks: u64) {
        assert!(blocks > 0, "a run has blocks");
        let (mut start, mut end) = (first, first + blocks);
        if let Some((&before, &length)) = self.runs.range(..first).next_back() {
            assert!(before + length <= first, "a block that is free is not freed again");
            if before + length == first {
                self.remove(before, length);
                start = before;
            }
        }
        if let Some((&after, &length)) = self.runs.range(first..).next() {
            assert!(after >= end, "a block that is free is not freed again");
            if after == end {
                self.remove(after, length);
                end = after + length;
            }
        }
        self.insert(start, end - start);
    }

    fn insert(&mut self, first: u64, length: u64) {
        self.runs.insert(first, length);
        self.by_length.insert((length, first));
        self.free += length;
    }

    fn remove(&mut self, first: u64, length: u64) {
        self.runs.remove(&first);
        self.by_length.remove(&(length, first));
        self.free -= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn runs_never_overlap_and_nothing_is_lost() {
        let mut random = SmallRng::seed_from_u64(5);
        let mut space = Space::all_free(100, 1100);
        let mut taken: Vec<(u64, u64)> = Vec::new();
        let mut owned = vec![false; 1100];
        for _ in 0..20_000 {
            if random.random() {
                let blocks = random.random_range(1..60);
                let Some(first) = space.allocate(blocks) else { continue };
                for block in first..first + blocks {
                    assert!(
                        !std::mem::replace(&mut owned[block as usize], true),
                        "block {block} given out twice"
                    );
                }
                taken.push((first, blocks));
                // What is free around it can be taken too, and given back.
                let around = first.saturating_sub(20).max(100)..(first + blocks + 20).min(1100);
                let parts = space.take_free(around.clone());
                let owned = around.filter(|&block| owned[block as usize]).count() as u64;
                let free: u64 = parts.iter().map(|part| part.end - part.start).sum();
                assert_eq!(free + owned, (first + blocks + 20).min(1100) - first.saturating_sub(20).max(100));
                parts.into_iter().for_each(|part| space.release(part.start, part.end - part.start));
            } else if !taken.is_empty() {
                let (first, blocks) = taken.swap_remove(random.random_range(0..taken.len()));
                owned[first as usize..(first + blocks) as usize].fill(false);
                space.release(first, blocks);
                assert!(space.take(first, blocks) && !space.take(first, blocks));
                space.release(first, blocks);
            }
            let used: u64 = taken.iter().map(|(_, blocks)| blocks).sum();
            assert_eq!(space.free_blocks() + used, 1000);
        }
        taken.iter().for_each(|(first, blocks)| space.release(*first, *blocks));
        assert_eq!(space.allocate(1000), Some(100), "everything joins again");
    }
}
