//! Which drives are slow: they have something to do all the time, and get next to nothing done.
//! Promises: being slow and not being it any more are told once each, by turns; a drive for which many wait and that gets much done
//! is busy, not slow; time in which this shard itself stood still does not count.
//! Leaves to others: what the drives were asked (`drive_io`), when to look (`hangs`), what follows from it (the control plane).
//!
//! Measured is what a drive does while it has something to do, not how long a request takes: behind a deep queue each takes long,
//! on the best of drives. Any drive in order, a disk at 7,200 turns too, is far above these figures.

use super::News;
use std::collections::BTreeMap;
use weft_engine::{DriveId, Time};

/// A request may take so long ...
const REQUEST_US: u64 = 100_000;

/// ... and so long more for each of these bytes (5 MB/s).
const BYTES_PER_US: u64 = 5;

/// What a drive did is judged once in such a span.
const SPAN_US: u64 = 5_000_000;

/// After so many spans in a row it is slow, or is not any more.
const SPANS: u32 = 3;

/// Looks within a span at least; the shard stood still if there were fewer.
const LOOKS_LEAST: u32 = 8;

/// A drive that did so many requests in a span, and was not slow, is in order.
const REQUESTS_TO_TELL: u64 = 20;

/// A slow drive that is asked little has no occasion to show that it is slow no more. After this time it is not told to be slow any
/// more; then after twice as long, and so on.
const CHANCE_US: u64 = 600_000_000;
const CHANCES_DOUBLED: u32 = 4;

/// What a drive was asked and did until now.
#[derive(Debug, Clone, Copy, Default)]
pub struct Done {
    pub requests: u64,
    pub bytes: u64,
    /// Something is in flight.
    pub is_busy: bool,
}

#[derive(Default)]
pub struct Slowness(BTreeMap<DriveId, Watch>);

struct Watch {
    /// The span that is under way: since when, what had been done then, looks so far, and those that found it busy.
    since: Time,
    before: Done,
    looks: u32,
    busy: u32,
    /// Spans in a row.
    slow: u32,
    fine: u32,
    /// It was told to be slow; the end of the last span in which it was.
    told: Option<Time>,
    chances: u32,
}

impl Slowness {
    /// To be called every few hundred milliseconds while anything is in flight, with all drives.
    pub fn look(
        &mut self,
        now: Time,
        drives: impl Iterator<Item = (DriveId, Done)>,
        mut tell: impl FnMut(News),
    ) {
        for (drive, done) in drives {
            let watch = self.0.entry(drive).or_insert_with(|| Watch::new(now, done));
            if let Some(slow) = watch.look(now, done) {
                tell(News::DriveSlow { drive, slow });
            }
        }
    }
}

impl Watch {
    fn new(now: Time, done: Done) -> Self {
        Self { since: now, before: done, looks: 0, busy: 0, slow: 0, fine: 0, told: None, chances: 0 }
    }

    /// Whether it became slow, or is not any more; None if nothing has changed.
    fn look(&mut self, now: Time, done: Done) -> Option<bool> {
        self.looks += 1;
        self.busy += u32::from(done.is_busy);
        let us = now.since(self.since);
        if us < SPAN_US {
            return None;
        }
        let requests = done.requests.saturating_sub(self.before.requests);
        let bytes = done.bytes.saturating_sub(self.before.bytes);
        // Nobody looked, or nothing was in flight anywhere: it was not busy all the time, or nobody knows.
        let is_known = self.looks >= LOOKS_LEAST && us < 2 * SPAN_US;
        let was_busy = is_known && self.busy * 10 >= self.looks * 9;
        // One that does nothing at all hangs, which is told sooner, and ends with the first answer.
        let is_slow = was_busy && requests > 0 && requests * REQUEST_US + bytes / BYTES_PER_US < us;
        let is_fine = is_known && !is_slow && requests >= REQUESTS_TO_TELL;
        self.slow = if is_slow { self.slow + 1 } else { 0 };
        self.fine = if is_fine { self.fine + 1 } else { 0 };
        (self.since, self.before, self.looks, self.busy) = (now, done, 0, 0);
        match &mut self.told {
            None if self.slow >= SPANS => {
                self.told = Some(now);
                Some(true)
            }
            None => None,
            Some(last) if is_slow => {
                *last = now;
                None
            }
            Some(_) if self.fine >= SPANS => {
                (self.told, self.chances) = (None, 0);
                Some(false)
            }
            Some(last) if now.since(*last) >= CHANCE_US << self.chances => {
                self.told = None;
                self.chances = (self.chances + 1).min(CHANCES_DOUBLED);
                Some(false)
            }
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: DriveId = DriveId(1);
    const LOOK_US: u64 = 400_000;

    /// A drive that is asked so many requests of so many bytes in a second, and has something to do or not.
    struct Story {
        slowness: Slowness,
        now: Time,
        requests: f64,
        bytes: f64,
    }

    impl Story {
        fn new() -> Self {
            Self { slowness: Slowness::default(), now: Time(9_000_000), requests: 0.0, bytes: 0.0 }
        }

        /// What is told within so many seconds, and after how many.
        fn pass(&mut self, seconds: u64, per_second: f64, size: f64, is_busy: bool) -> Vec<(u64, bool)> {
            let began = self.now;
            let mut told = Vec::new();
            while self.now.since(began) < seconds * 1_000_000 {
                self.now = self.now.after(LOOK_US);
                self.requests += per_second * LOOK_US as f64 / 1e6;
                self.bytes += per_second * size * LOOK_US as f64 / 1e6;
                let done = Done { requests: self.requests as u64, bytes: self.bytes as u64, is_busy };
                let second = self.now.since(began) / 1_000_000;
                self.slowness.look(self.now, [(A, done)].into_iter(), |news| match news {
                    News::DriveSlow { drive: A, slow } => told.push((second, slow)),
                    other => panic!("{other:?} is told"),
                });
            }
            told
        }
    }

    #[test]
    fn a_drive_that_is_busy_and_does_nothing_is_slow_within_seconds() {
        let mut story = Story::new();
        assert_eq!(story.pass(60, 500.0, 4096.0, true), [], "an SSD at work");
        let told = story.pass(60, 5.0, 4096.0, true);
        assert!(matches!(told[..], [(10..=21, true)]), "{told:?}");
        let told = story.pass(60, 500.0, 4096.0, true);
        assert!(matches!(told[..], [(15..=21, false)]), "{told:?}");
        assert_eq!(story.pass(60, 0.0, 0.0, true), [], "it hangs");
    }

    #[test]
    fn what_is_busy_or_has_little_to_do_is_not_slow() {
        let mut story = Story::new();
        assert_eq!(story.pass(120, 40.0, 4096.0, true), [], "a disk with a deep queue of small writes");
        assert_eq!(story.pass(120, 8.0, 4e6, true), [], "few requests, and large ones");
        assert_eq!(story.pass(120, 2.0, 4096.0, false), [], "it has little to do");
        // Two spans and a half, and then it is in order for one.
        for _ in 0..10 {
            assert_eq!(story.pass(12, 1.0, 4096.0, true), []);
            assert_eq!(story.pass(12, 100.0, 4096.0, true), []);
        }
    }

    #[test]
    fn a_shard_that_stood_still_says_nothing_of_its_drives() {
        let mut story = Story::new();
        for _ in 0..20 {
            assert_eq!(story.pass(4, 1.0, 4096.0, true), []);
            story.now = story.now.after(30_000_000);
        }
    }

    #[test]
    fn a_slow_drive_that_has_nothing_to_do_gets_a_chance_and_later_ones() {
        let mut story = Story::new();
        assert_eq!(story.pass(30, 5.0, 4096.0, true).len(), 1);
        let mut waited = Vec::new();
        for _ in 0..3 {
            let told = story.pass(6_000, 1.0, 4096.0, false);
            let [(second, false)] = told[..] else { panic!("{told:?}") };
            waited.push(second);
            assert!(matches!(story.pass(30, 5.0, 4096.0, true)[..], [(_, true)]), "it is slow again");
        }
        let doubled = |(before, after): (&u64, &u64)| (before * 2 - 30..=before * 2 + 30).contains(after);
        assert!((580..620).contains(&waited[0]), "{waited:?}");
        assert!(waited.iter().zip(&waited[1..]).all(doubled), "{waited:?}");
    }
}
