//! Which parts of a vDisk are written: some runs of blocks, that may lie far from each other, so that a vDisk of
//! terabytes has a sparse map while the judge keeps an array of a few thousand blocks.

use rand::Rng;
use rand::rngs::SmallRng;

/// A run of blocks that are used.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Its first block on the vDisk.
    pub real: u64,
    /// The place of that block in the judge's array.
    pub compact: usize,
    pub blocks: usize,
}

#[derive(Clone, Debug)]
pub struct Layout {
    pub runs: Vec<Run>,
    pub blocks: usize,
    /// Blocks of the vDisk.
    pub size_blocks: u64,
}

impl Layout {
    /// One run from the beginning to the end.
    pub fn dense(blocks: usize) -> Self {
        let runs = vec![Run { real: 0, compact: 0, blocks }];
        Self { runs, blocks, size_blocks: blocks as u64 }
    }

    /// `count` runs scattered over `size_blocks`, the last one at the very end.
    pub fn sparse(blocks: usize, count: usize, size_blocks: u64, rng: &mut SmallRng) -> Self {
        assert!(size_blocks >= blocks as u64 * 4, "a sparse layout needs room between its runs");
        let each = (blocks / count).max(1);
        let share = size_blocks / count as u64;
        let mut runs = Vec::with_capacity(count);
        for index in 0..count {
            let room = share - each as u64;
            let within = if index + 1 == count { room } else { rng.random_range(0..=room) };
            runs.push(Run { real: index as u64 * share + within, compact: index * each, blocks: each });
        }
        let last = runs.last().expect("there is at least one run");
        let size_blocks = last.real + last.blocks as u64;
        Self { runs, blocks: each * count, size_blocks }
    }

    /// The used parts of `count` blocks from `first` on: (place in the array, first block, blocks).
    pub fn used(&self, first: u64, count: u64) -> impl Iterator<Item = (usize, u64, usize)> + '_ {
        let end = first.saturating_add(count);
        self.runs.iter().filter_map(move |run| {
            let from = run.real.max(first);
            let to = (run.real + run.blocks as u64).min(end);
            (from < to).then(|| (run.compact + (from - run.real) as usize, from, (to - from) as usize))
        })
    }

    /// The place of a used block.
    pub fn place(&self, block: u64) -> usize {
        let run = self.runs.iter().find(|run| (run.real..run.real + run.blocks as u64).contains(&block));
        let run = run.expect("clients use only what the layout does");
        run.compact + (block - run.real) as usize
    }

    /// The vDisk grows by `blocks` blocks, all of them used.
    pub fn grow(&mut self, blocks: usize) {
        self.runs.push(Run { real: self.size_blocks, compact: self.blocks, blocks });
        self.blocks += blocks;
        self.size_blocks += blocks as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn every_used_block_has_its_own_place() {
        let mut layout = Layout::sparse(1000, 7, 1 << 28, &mut SmallRng::seed_from_u64(1));
        layout.grow(50);
        let mut places = Vec::new();
        for (compact, _, blocks) in layout.used(0, layout.size_blocks) {
            places.extend(compact..compact + blocks);
        }
        assert_eq!(places, (0..layout.blocks).collect::<Vec<_>>());
    }
}
