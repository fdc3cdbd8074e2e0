//! Who holds the blocks of the unit area besides the egroup whose run they are: references of other egroups, counted for
//! each block. A block is free when neither a run nor a reference names it.
//! Promises: a block that is referred to is never free, whatever becomes of the run that it was written in; with the last reference it
//! is, if the run went before (I8). Nothing of this is on the drive: it follows from the pages of the table.
//! Leaves to others: the runs themselves (`egroups`), the free space (`space`).

use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks with references.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hold {
    blocks: u64,
    references: u32,
    /// No run has them any more.
    is_left: bool,
}

#[derive(Debug, Default)]
pub(super) struct Holds {
    /// By first block; neighbours that are alike are one.
    ranges: BTreeMap<u64, Hold>,
    /// Blocks that only references hold.
    left: u64,
}

impl Holds {
    /// Blocks that only references hold.
    pub fn left_blocks(&self) -> u64 {
        self.left
    }

    /// One reference more to these blocks, which are not free.
    pub fn raise(&mut self, blocks: Range<u64>) {
        self.change(blocks, |hold| {
            let hold = hold.unwrap_or(Hold { blocks: 0, references: 0, is_left: false });
            Some(Hold { references: hold.references + 1, ..hold })
        });
    }

    /// One reference less. Gives the blocks that are free now.
    pub fn lower(&mut self, blocks: Range<u64>) -> Vec<Range<u64>> {
        let mut free = Vec::new();
        let mut left = 0;
        self.change_each(blocks, |range, hold| {
            let hold = hold.expect("only what is referred to loses a reference");
            let references = hold.references - 1;
            if references == 0 && hold.is_left {
                left += range.end - range.start;
                free.push(range);
            }
            (references > 0).then_some(Hold { references, ..hold })
        });
        self.left -= left;
        free
    }

    /// The run that has these blocks goes. Gives those that are free now: nobody refers to them.
    pub fn leave(&mut self, blocks: Range<u64>) -> Vec<Range<u64>> {
        let mut free = Vec::new();
        let mut left = 0;
        self.change_each(blocks, |range, hold| {
            let Some(hold) = hold else {
                free.push(range);
                return None;
            };
            assert!(!hold.is_left, "a block is in one run at most");
            left += range.end - range.start;
            Some(Hold { is_left: true, ..hold })
        });
        self.left += left;
        free
    }

    /// Whether any of these blocks is referred to.
    pub fn is_held(&self, blocks: Range<u64>) -> bool {
        let before = self.ranges.range(..blocks.end).next_back();
        before.is_some_and(|(&first, hold)| first + hold.blocks > blocks.start)
    }

    /// Whether any of these blocks is held by references only.
    pub fn is_left(&self, blocks: Range<u64>) -> bool {
        let reversed = self.ranges.range(..blocks.end).rev();
        let mut inside = reversed.take_while(|(first, hold)| **first + hold.blocks > blocks.start);
        inside.any(|(_, hold)| hold.is_left)
    }

    /// All blocks with references: how many, and whether a run has them.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, u32, bool)> + '_ {
        self.ranges.iter().map(|(&first, hold)| (first..first + hold.blocks, hold.references, !hold.is_left))
    }

    fn change(&mut self, blocks: Range<u64>, mut to: impl FnMut(Option<Hold>) -> Option<Hold>) {
        self.change_each(blocks, |_, hold| to(hold));
    }

    /// Goes over the parts of `blocks` that are alike, in order, and gives each what `to` says of it.
    fn change_each(
        &mut self,
        blocks: Range<u64>,
        mut to: impl FnMut(Range<u64>, Option<Hold>) -> Option<Hold>,
    ) {
        assert!(!blocks.is_empty(), "something is referred to");
        self.cut(blocks.start);
        self.cut(blocks.end);
        let mut next = blocks.start;
        while next < blocks.end {
            let (range, hold) = match self.ranges.range(next..blocks.end).next() {
                Some((&first, &hold)) if first == next => (next..next + hold.blocks, Some(hold)),
                Some((&first, _)) => (next..first, None),
                None => (next..blocks.end, None),
            };
            next = range.end;
            match to(range.clone(), hold) {
                Some(hold) => {
                    let hold = Hold { blocks: range.end - range.start, ..hold };
                    self.ranges.insert(range.start, hold);
                }
                None => drop(self.ranges.remove(&range.start)),
            }
            self.join(range.start);
        }
        self.join(blocks.end);
    }

    /// Makes two of the range that goes over the beginning of `at`.
    fn cut(&mut self, at: u64) {
        let Some((&first, hold)) = self.ranges.range_mut(..at).next_back() else { return };
        if first + hold.blocks > at {
            let behind = Hold { blocks: first + hold.blocks - at, ..*hold };
            hold.blocks = at - first;
            self.ranges.insert(at, behind);
        }
    }

    /// Makes one of the range that begins at `at` and the one before it, if they are alike.
    fn join(&mut self, at: u64) {
        let Some(&hold) = self.ranges.get(&at) else { return };
        let Some((&first, before)) = self.ranges.range_mut(..at).next_back() else { return };
        let is_alike = before.references == hold.references && before.is_left == hold.is_left;
        if first + before.blocks == at && is_alike {
            before.blocks += hold.blocks;
            self.ranges.remove(&at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn counts_are_those_of_an_array() {
        let mut random = SmallRng::seed_from_u64(4);
        for _ in 0..50 {
            let mut holds = Holds::default();
            let mut counts = vec![0_u32; 200];
            // Runs of ten blocks that have not gone.
            let mut there = vec![true; 20];
            let mut references: Vec<Range<u64>> = Vec::new();
            for _ in 0..400 {
                let is_free = |block: u64, counts: &[u32], there: &[bool]| {
                    counts[block as usize] == 0 && !there[block as usize / 10]
                };
                match random.random_range(0..5) {
                    0..2 => {
                        let first = random.random_range(0..200);
                        let blocks = first..random.random_range(first + 1..=(first + 25).min(200));
                        if !blocks.clone().any(|block| is_free(block, &counts, &there)) {
                            holds.raise(blocks.clone());
                            blocks.clone().for_each(|block| counts[block as usize] += 1);
                            references.push(blocks);
                        }
                    }
                    2..4 if !references.is_empty() => {
                        let blocks = references.swap_remove(random.random_range(0..references.len()));
                        blocks.clone().for_each(|block| counts[block as usize] -= 1);
                        let freed = holds.lower(blocks.clone());
                        let free: Vec<u64> =
                            blocks.filter(|&block| is_free(block, &counts, &there)).collect();
                        assert_eq!(freed.into_iter().flatten().collect::<Vec<_>>(), free);
                    }
                    _ => {
                        let run = random.random_range(0..20);
                        if std::mem::replace(&mut there[run], false) {
                            let blocks = run as u64 * 10..run as u64 * 10 + 10;
                            let freed = holds.leave(blocks.clone());
                            let free: Vec<u64> =
                                blocks.filter(|&block| is_free(block, &counts, &there)).collect();
                            assert_eq!(freed.into_iter().flatten().collect::<Vec<_>>(), free);
                        }
                    }
                }
                let told: Vec<(u64, u32, bool)> = holds
                    .iter()
                    .flat_map(|(blocks, count, home)| blocks.map(move |block| (block, count, home)))
                    .collect();
                let wanted: Vec<(u64, u32, bool)> = (0..200)
                    .filter(|&block| counts[block as usize] > 0)
                    .map(|block| (block, counts[block as usize], there[block as usize / 10]))
                    .collect();
                assert_eq!(told, wanted);
                let left = wanted.iter().filter(|(.., home)| !home).count() as u64;
                assert_eq!(holds.left_blocks(), left);
                let first = random.random_range(0..190);
                let any = |of: &dyn Fn(&(u64, u32, bool)) -> bool| {
                    wanted.iter().any(|held| (first..first + 10).contains(&held.0) && of(held))
                };
                assert_eq!(holds.is_held(first..first + 10), any(&|_| true));
                assert_eq!(holds.is_left(first..first + 10), any(&|held| !held.2));
            }
            let alike = holds.iter().collect::<Vec<_>>();
            assert!(
                alike
                    .windows(2)
                    .all(|two| two[0].0.end < two[1].0.start || (two[0].1, two[0].2) != (two[1].1, two[1].2)),
                "neighbours that are alike are one"
            );
        }
    }
}
