//! vDisks that could not be opened: when they are tried again.
//! Promises: soon at first, and when a drive has come or gone; else more and more rarely. An attempt costs an epoch in the store and a
//! frame in the ring of each drive that has a part of the log, which others need too.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The second attempt comes after this time; each pause is twice as long as the one before ...
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// ... up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// An attempt that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// In a row, this one included.
    times: u32,
    pub reason: String,
    /// The engine could not open it here; else it was closed, and is about to be opened again.
    pub is_of_engine: bool,
    since: Instant,
    pause: Duration,
    /// The drives that were up: what was missing may come back with another.
    up: BTreeSet<u32>,
}

impl Failure {
    /// The `times`th in a row.
    pub fn new(reason: String, times: u32, now: Instant, up: BTreeSet<u32>) -> Self {
        let doubled = 2_u32.saturating_pow(times.saturating_sub(1));
        let pause = FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE);
        Self { times, reason, is_of_engine: true, since: now, pause, up }
    }

    /// To be tried again at once.
    pub fn passing(reason: String, now: Instant) -> Self {
        Self { times: 0, reason, is_of_engine: false, since: now, pause: Duration::ZERO, up: BTreeSet::new() }
    }

    /// One that comes soon after `before`, whether the vDisk was served between them or not.
    pub fn after(before: Option<&Self>, reason: String, now: Instant, up: BTreeSet<u32>) -> Self {
        let recent = before.filter(|before| before.is_recent(now));
        Self::new(reason, recent.map_or(1, |before| before.times.saturating_add(1)), now, up)
    }

    /// Whether the next one is one more of the same.
    pub fn is_recent(&self, now: Instant) -> bool {
        now.duration_since(self.since) < 2 * LONGEST_PAUSE
    }

    pub fn is_due(&self, now: Instant, up: &BTreeSet<u32>) -> bool {
        let waited = now.duration_since(self.since);
        waited >= self.pause || (waited >= FIRST_PAUSE && *up != self.up)
    }

    /// It is being tried again: not once more while that is on its way.
    pub fn tried(&mut self, now: Instant) {
        self.since = now;
        self.pause = self.pause.max(FIRST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_lost_is_tried_more_and_more_rarely() {
        let (now, up) = (Instant::now(), BTreeSet::from([1, 2]));
        let mut pauses = Vec::new();
        for times in [1, 2, 3, 8, 9, 10, 100] {
            let failure = Failure::new("lost".to_string(), times, now, up.clone());
            assert!(failure.is_due(now + failure.pause, &up));
            assert!(!failure.is_due(now + failure.pause - Duration::from_millis(1), &up));
            pauses.push(failure.pause.as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 128, 256, 300, 300]);
    }

    #[test]
    fn what_fails_again_soon_after_it_was_served_is_tried_more_rarely_too() {
        let (now, up) = (Instant::now(), BTreeSet::from([1]));
        let first = Failure::after(None, "lost".to_string(), now, up.clone());
        let second =
            Failure::after(Some(&first), "lost".to_string(), now + Duration::from_secs(5), up.clone());
        assert_eq!([first.pause, second.pause], [FIRST_PAUSE, 2 * FIRST_PAUSE]);
        let later = now + 3 * LONGEST_PAUSE;
        assert_eq!(Failure::after(Some(&second), "lost".to_string(), later, up).pause, FIRST_PAUSE);
    }

    #[test]
    fn a_drive_that_comes_or_goes_is_a_reason_to_try() {
        let (now, up) = (Instant::now(), BTreeSet::from([1, 2]));
        let failure = Failure::new("lost".to_string(), 9, now, up.clone());
        let soon = now + FIRST_PAUSE;
        assert!(!failure.is_due(soon, &up));
        assert!(failure.is_due(soon, &BTreeSet::from([1, 2, 3])));
        assert!(failure.is_due(soon, &BTreeSet::from([2])));
        assert!(
            !failure.is_due(now, &BTreeSet::from([2])),
            "one that comes and goes costs an attempt a second"
        );
    }
}
