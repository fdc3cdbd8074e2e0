//! What counters have counted in the last minute.
//! Promises: exact to a second, whether the shard is busy or sleeps meanwhile; bounded memory.
//! Leaves to others: calling in every turn of the loop.

use std::collections::VecDeque;
use weft_engine::Time;

const WINDOW_US: u64 = 60_000_000;
const STEP_US: u64 = 1_000_000;

/// Of `N` counters that only grow.
#[derive(Debug)]
pub struct Recent<const N: usize> {
    /// What they were at some instants, the oldest first. All but the first are inside the window.
    samples: VecDeque<(Time, [u64; N])>,
    /// The turn before.
    seen: Time,
}

impl<const N: usize> Recent<N> {
    pub fn new() -> Self {
        Self { samples: VecDeque::from([(Time(0), [0; N])]), seen: Time(0) }
    }

    /// A turn begins, and nothing has been counted in it.
    pub fn note(&mut self, now: Time, counters: impl FnOnce() -> [u64; N]) {
        let seen = std::mem::replace(&mut self.seen, now);
        let (last, _) = self.samples.back().expect("there is always one");
        if now.since(*last) < STEP_US {
            return;
        }
        // All that was counted since the last turn was counted in it: a shard that has slept says so with the time at
        // which it fell asleep, or its last work would count as of now.
        let at = if now.since(seen) >= STEP_US { seen } else { now };
        self.samples.push_back((at, counters()));
        while self.samples.get(1).is_some_and(|(at, _)| now.since(*at) >= WINDOW_US) {
            self.samples.pop_front();
        }
    }

    /// What was counted in the last minute, and how long that really was: less than a minute at first.
    pub fn minute(&self, now: Time, counters: [u64; N]) -> ([u64; N], u64) {
        let old_enough = |(at, _): &&(Time, [u64; N])| now.since(*at) >= WINDOW_US;
        let first = self.samples.front().expect("there is always one");
        let (at, before) = self.samples.iter().take_while(old_enough).last().unwrap_or(first);
        // Counters of a drive that was closed are gone: nothing is less than nothing.
        let counted = std::array::from_fn(|index| counters[index].saturating_sub(before[index]));
        (counted, now.since(*at).min(WINDOW_US))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts one event in each turn, at the times given, and compares with looking at all of them.
    fn compare(turns: &[u64]) {
        let mut recent: Recent<1> = Recent::new();
        for (done, &at) in turns.iter().enumerate() {
            recent.note(Time(at), || [done as u64]);
            let counted = done as u64 + 1;
            let ([told], us) = recent.minute(Time(at), [counted]);
            let within = |us: u64| turns[..=done].iter().filter(|&&turn| turn + us > at).count() as u64;
            let (least, most) = (within(WINDOW_US), within(WINDOW_US + 2 * STEP_US));
            assert!((least..=most).contains(&told), "at {at}: {told}, not {least} to {most}");
            assert_eq!(us, at.min(WINDOW_US));
            assert!(recent.samples.len() <= 124);
        }
    }

    #[test]
    fn the_last_minute_of_a_busy_shard_is_exact_to_a_second() {
        compare(&(1..4_000).map(|turn| turn * 50_000).collect::<Vec<_>>());
    }

    #[test]
    fn what_was_counted_before_a_long_sleep_is_not_of_the_last_minute() {
        let mut turns: Vec<u64> = (1..100).map(|turn| turn * 100_000).collect();
        turns.extend([600_000_000, 600_000_100, 630_000_000, 659_000_000, 661_500_000, 10_000_000_000]);
        compare(&turns);
        let mut recent: Recent<1> = Recent::new();
        recent.note(Time(1_000_000), || [0]);
        // Five are counted in that turn; then the shard sleeps for ten minutes.
        recent.note(Time(600_000_000), || [5]);
        assert_eq!(recent.minute(Time(600_000_000), [5]), ([0], WINDOW_US));
    }

    #[test]
    fn turns_of_any_distance() {
        let mut at = 0;
        let turns: Vec<u64> = (0..3_000u64)
            .map(|turn| {
                at += 1 + turn.wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    % [10, 1_000, 900_000, 30_000_000][turn as usize % 4];
                at
            })
            .collect();
        compare(&turns);
    }
}
