//! How long drives take to give what is asked of them, as this shard has seen it: for choosing which copy to read.
//! Promises: a drive that was not asked yet counts as fast, and one that was slow is tried again in time; sums and
//! shifts only, so the same answers make the same choices everywhere.
//! Leaves to others: which drives have a copy (`volume/read.rs`).

use crate::identity::DriveId;
use std::collections::BTreeMap;

/// Answers to larger questions tell how large they were, not how busy the drive is.
pub const UNITS_MAX: u32 = 64;

/// A new answer counts for one part in this many of what is known.
const MEMORY: u64 = 8;
/// Passed over so many times, a drive is taken for about a third as slow as before.
const PATIENCE: u64 = 64;

#[derive(Debug, Default)]
struct Drive {
    /// Questions without an answer.
    open: u64,
    /// Nanoseconds that one answer keeps the next one waiting.
    turn_ns: u64,
}

#[derive(Debug, Default)]
pub struct Paces(BTreeMap<DriveId, Drive>);

impl Paces {
    /// A drive was asked. Gives how many questions it has now.
    pub fn asked(&mut self, drive: DriveId) -> u64 {
        let drive = self.0.entry(drive).or_default();
        drive.open += 1;
        drive.open
    }

    /// Nobody waits for this question any more.
    pub fn ended(&mut self, drive: DriveId) {
        let drive = self.0.get_mut(&drive).expect("what ends was asked");
        assert!(drive.open > 0, "a question ends once");
        drive.open -= 1;
    }

    /// An answer took `us` when the drive had `questions`, this one among them.
    pub fn learn(&mut self, drive: DriveId, us: u64, questions: u64) {
        let turn_ns = us * 1000 / questions.max(1);
        let drive = self.0.entry(drive).or_default();
        drive.turn_ns = drive.turn_ns - drive.turn_ns / MEMORY + turn_ns / MEMORY;
    }

    /// Microseconds that an answer will take from now.
    pub fn expected_us(&self, drive: DriveId) -> u64 {
        self.0.get(&drive).map_or(0, |drive| (drive.open + 1) * drive.turn_ns / 1000)
    }

    /// It had a copy, and another one was chosen: what was slow once need not stay slow.
    pub fn passed_over(&mut self, drive: DriveId) {
        if let Some(drive) = self.0.get_mut(&drive) {
            drive.turn_ns -= drive.turn_ns / PATIENCE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: DriveId = DriveId(1);

    #[test]
    fn the_more_is_asked_the_longer_an_answer_is_expected_to_take() {
        let mut paces = Paces::default();
        assert_eq!(paces.expected_us(ONE), 0, "nobody knows better");
        for _ in 0..50 {
            let questions = paces.asked(ONE);
            paces.learn(ONE, 10_000, questions);
            paces.ended(ONE);
        }
        let alone = paces.expected_us(ONE);
        assert!((9_000..=10_000).contains(&alone), "{alone}");
        paces.asked(ONE);
        paces.asked(ONE);
        let third = paces.expected_us(ONE);
        assert!((alone * 3..alone * 3 + 3).contains(&third), "{third}, and {alone} alone");
    }

    #[test]
    fn who_was_slow_is_tried_again() {
        let mut paces = Paces::default();
        (0..50).for_each(|_| paces.learn(ONE, 4_000_000, 1));
        let slow = paces.expected_us(ONE);
        (0..640).for_each(|_| paces.passed_over(ONE));
        assert!(paces.expected_us(ONE) < slow / 1000, "{}", paces.expected_us(ONE));
    }
}
