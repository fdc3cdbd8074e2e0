//! Free runs that the drive has not been told of, so that it may forget what was there.
//! Promises: a run is told when it has been free for so long and nobody wants it; while the drive is being told it is given to nobody, as drives may
//! take hints and writes in any order; one run at a time, and no more than an eighth of the space that is there in plenty.
//! Leaves to others: when a run is free (`egroups`). What is untold when a drive is closed is told when it has been used again. Decision 0070.

use crate::buffer::BLOCK;
use crate::identity::Time;
use crate::interface::{Area, DriveWork};
use crate::keeper::desk::{Desk, Work};
use crate::keeper::egroups::Store;
use crate::keeper::space::Space;
use crate::limits::Limits;
use crate::sabotage::{Bug, planted};
use std::ops::Range;

/// Runs of at least this many blocks are worth a hint.
pub const DISCARD_BLOCKS_MIN: u64 = 16;

/// Behind each hint, so that a drive does other things as well.
const PAUSE_US: u64 = 1_000;

/// Both parts are free in the store's own space, too.
#[derive(Default)]
pub(super) struct Untold {
    /// What has become free since the others are counted ...
    young: Space,
    /// ... which are told from this time on.
    old: Space,
    due: Time,
    is_telling: bool,
    /// The drive does not want to know.
    is_deaf: bool,
}

impl Untold {
    pub fn note_free(&mut self, blocks: Range<u64>) {
        if self.is_deaf {
            return;
        }
        if planted(Bug::UsedIsUntold) {
            self.forget(blocks.clone());
        }
        self.young.release(blocks.start, blocks.end - blocks.start);
    }

    /// Somebody writes there.
    pub fn note_used(&mut self, blocks: Range<u64>) {
        if !planted(Bug::UsedIsUntold) {
            self.forget(blocks);
        }
    }

    fn forget(&mut self, blocks: Range<u64>) {
        self.young.take_free(blocks.clone());
        self.old.take_free(blocks);
    }

    /// Nothing is told any more as long as the drive is open.
    fn give_up(&mut self) {
        *self = Self { is_telling: self.is_telling, is_deaf: true, ..Self::default() };
    }

    /// The next run to tell of, no longer than `blocks_max`.
    fn take_due(&mut self, now: Time, after_us: u64, blocks_max: u64) -> Option<Range<u64>> {
        loop {
            let Some((first, length)) = self.old.first() else {
                if self.young.free_blocks() == 0 {
                    return None;
                }
                self.old = std::mem::take(&mut self.young);
                self.due = self.due.max(now.after(after_us));
                continue;
            };
            if now < self.due || blocks_max < DISCARD_BLOCKS_MIN {
                return None;
            }
            let blocks = length.min(blocks_max);
            assert!(self.old.take(first, blocks), "it was just found");
            if blocks >= DISCARD_BLOCKS_MIN {
                return Some(first..first + blocks);
            }
        }
    }
}

impl Store {
    /// Tells the drive of one more run, if none is being told and one is due.
    pub fn continue_discards(&mut self, now: Time, limits: &Limits, desk: &mut Desk) {
        if self.untold.is_telling {
            return;
        }
        let blocks_max = self.discard_blocks_max(limits);
        let Some(run) = self.untold.take_due(now, limits.discard_after_us, blocks_max) else { return };
        let (first, blocks) = (run.start, run.end - run.start);
        if !is_told_unguarded() {
            assert!(self.space.take(first, blocks), "what is untold is free");
        }
        self.untold.is_telling = true;
        let (offset, len) = (first * BLOCK as u64, blocks * BLOCK as u64);
        desk.submit(Area::Data, DriveWork::Discard { offset, len }, Work::Discard { first, blocks });
    }

    /// The hint has ended, whatever came of it.
    pub fn on_discarded(&mut self, now: Time, first: u64, blocks: u64) {
        if !is_told_unguarded() {
            self.space.release(first, blocks);
        }
        self.untold.is_telling = false;
        self.untold.due = self.untold.due.max(now.after(PAUSE_US));
    }

    /// The drive has said that it knows no hints.
    pub fn on_hint_ignored(&mut self) {
        self.untold.give_up();
    }

    /// When the drive is to be told of more although nothing happens.
    pub fn discards_at(&self, limits: &Limits) -> Option<Time> {
        let untold = &self.untold;
        let is_possible = !untold.is_telling && self.discard_blocks_max(limits) >= DISCARD_BLOCKS_MIN;
        (is_possible && untold.old.free_blocks() > 0).then_some(untold.due)
    }

    /// Where space is short, what becomes free is used again soon, and is not to be withheld: as much again as the reserve is left alone.
    fn discard_blocks_max(&self, limits: &Limits) -> u64 {
        let plenty = self.spare_blocks().saturating_sub(self.reserve_blocks());
        (limits.discard_bytes_max / BLOCK as u64).min(plenty / 8)
    }
}

/// Whether what is told is not taken out of the free space: these bugs are to be found by what they do to data.
fn is_told_unguarded() -> bool {
    planted(Bug::ToldIsGivenOut) || planted(Bug::UsedIsUntold)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: u64 = 10;

    /// All that is told at this time, in pieces of 32 blocks.
    fn told(untold: &mut Untold, now: u64) -> Vec<(u64, u64)> {
        let runs = std::iter::from_fn(|| untold.take_due(Time(now), AFTER, 32));
        runs.map(|run| (run.start, run.end)).collect()
    }

    #[test]
    fn what_stays_free_is_told_once_in_pieces() {
        let mut untold = Untold::default();
        untold.note_free(100..170);
        assert_eq!(told(&mut untold, 5), []);
        untold.note_free(300..320);
        assert_eq!(told(&mut untold, 14), []);
        // The last six are not worth a hint. What came later waits for as long from here on.
        assert_eq!(told(&mut untold, 15), [(100, 132), (132, 164)]);
        assert_eq!(told(&mut untold, 24), []);
        assert_eq!(told(&mut untold, 25), [(300, 320)]);
        assert_eq!(told(&mut untold, 1_000), []);
    }

    #[test]
    fn small_runs_are_told_together_with_their_neighbours() {
        let mut untold = Untold::default();
        untold.note_free(10..19);
        untold.note_free(30..39);
        untold.note_free(19..27);
        assert_eq!(told(&mut untold, 0), []);
        assert_eq!(told(&mut untold, AFTER), [(10, 27)]);
    }

    #[test]
    fn what_is_used_again_is_not_told() {
        let mut untold = Untold::default();
        untold.note_free(100..164);
        told(&mut untold, 0);
        untold.note_free(200..264);
        untold.note_used(116..132);
        untold.note_used(190..248);
        assert_eq!(told(&mut untold, AFTER), [(100, 116), (132, 164)]);
        untold.note_free(116..132);
        assert_eq!(told(&mut untold, 2 * AFTER), [(248, 264)]);
        assert_eq!(told(&mut untold, 3 * AFTER), [(116, 132)]);
    }

    #[test]
    fn nothing_is_told_where_space_is_short() {
        let mut untold = Untold::default();
        untold.note_free(100..164);
        for now in [0, AFTER] {
            assert_eq!(untold.take_due(Time(now), AFTER, DISCARD_BLOCKS_MIN - 1), None);
        }
        assert_eq!(untold.take_due(Time(AFTER), AFTER, 64), Some(100..164));
    }
}
