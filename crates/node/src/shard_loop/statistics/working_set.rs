//! How much of a vDisk was touched lately: an estimate of the distinct ranges of 64 KiB that requests overlapped in the
//! last two minutes and the last hour, read and written.
//! Promises: at most 48 KiB for each vDisk, taken slot by slot as it is touched; a few nanoseconds for each range; the
//! standard error of an estimate is 2.3 % (HyperLogLog with 2048 registers, Flajolet et al. 2007; below some 5,000 ranges,
//! 320 MiB, linear counting, which errs less).
//! Leaves to others: which requests count.
//!
//! Time is cut into slots, because a sketch can be joined with others and forgotten, but nothing can be taken out of it:
//! "two minutes" are the slot of 30 s that has begun and the four before it, so 120 to 150 s; "an hour" is the slot of ten
//! minutes that has begun and the six before it, 60 to 70 minutes.

use std::collections::VecDeque;
use weft_engine::Time;

const RANGE_BITS: u32 = 16;

const INDEX_BITS: u32 = 11;
const REGISTERS: usize = 1 << INDEX_BITS;

const SHORT_US: u64 = 30_000_000;
const SHORT_SLOTS: u64 = 4;

/// Short slots in a long one.
const SHORTS: u64 = 20;
const LONG_SLOTS: u64 = 6;

/// A set of which only its size can be told, about.
#[derive(Debug, Clone)]
pub struct Sketch(Box<[u8; REGISTERS]>);

impl Default for Sketch {
    fn default() -> Self {
        Self(Box::new([0; REGISTERS]))
    }
}

impl Sketch {
    fn insert(&mut self, number: u64) {
        let hash = mixed(number);
        let register = &mut self.0[(hash >> (64 - INDEX_BITS)) as usize];
        // The bit behind the rest of the hash bounds the rank.
        let rank = (hash << INDEX_BITS | 1 << (INDEX_BITS - 1)).leading_zeros() as u8 + 1;
        *register = (*register).max(rank);
    }

    pub fn join(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(other.0.iter()) {
            *own = (*own).max(*other);
        }
    }

    /// About how many distinct numbers were put in.
    pub fn len(&self) -> u64 {
        let mut ranks = [0u32; 64];
        self.0.iter().for_each(|&rank| ranks[rank as usize] += 1);
        let registers = REGISTERS as f64;
        let sum: f64 =
            ranks.iter().enumerate().map(|(rank, &count)| f64::from(count) * 0.5f64.powi(rank as i32)).sum();
        let raw = 0.7213 / (1.0 + 1.079 / registers) * registers * registers / sum;
        let empty = f64::from(ranks[0]);
        let estimate =
            if raw <= 2.5 * registers && empty > 0.0 { registers * (registers / empty).ln() } else { raw };
        estimate.round() as u64
    }

    pub fn bytes(&self) -> u64 {
        self.len() << RANGE_BITS
    }
}

/// Neighbours become numbers that look random (the end of SplitMix64).
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Sketches of slots that were touched, by the number of the slot, the newest last.
#[derive(Debug, Default)]
struct Slots(VecDeque<(u64, Sketch)>);

impl Slots {
    /// The sketch of this slot, and what was the newest if the slot is new. Slots that are older than `kept` go.
    fn begin(&mut self, slot: u64, kept: u64) -> Option<(u64, Sketch)> {
        if self.0.back().is_some_and(|(newest, _)| *newest >= slot) {
            return None;
        }
        let before = self.0.back().cloned();
        self.0.push_back((slot, Sketch::default()));
        while self.0.front().is_some_and(|(oldest, _)| oldest + kept < slot) {
            self.0.pop_front();
        }
        before
    }

    fn newest(&mut self) -> &mut Sketch {
        &mut self.0.back_mut().expect("a slot was begun").1
    }

    fn join_into(&self, sketch: &mut Sketch, first: u64) {
        self.0.iter().filter(|(slot, _)| *slot >= first).for_each(|(_, slot)| sketch.join(slot));
    }
}

/// What was touched in one way: read, or written.
#[derive(Debug, Default)]
struct Windows {
    short: Slots,
    /// Without the newest short slot: it is joined when it ends.
    long: Slots,
}

impl Windows {
    fn touch(&mut self, now: Time, offset: u64, len: u64) {
        let slot = now.0 / SHORT_US;
        if let Some((ended, sketch)) = self.short.begin(slot, SHORT_SLOTS) {
            self.long.begin(ended / SHORTS, LONG_SLOTS);
            self.long.newest().join(&sketch);
        }
        let sketch = self.short.newest();
        for range in offset >> RANGE_BITS..=(offset + len.max(1) - 1) >> RANGE_BITS {
            sketch.insert(range);
        }
    }

    /// Two minutes, and an hour.
    fn lately(&self, now: Time) -> (Sketch, Sketch) {
        let slot = now.0 / SHORT_US;
        let (mut short, mut long) = (Sketch::default(), Sketch::default());
        self.short.join_into(&mut short, slot.saturating_sub(SHORT_SLOTS));
        let first = (slot / SHORTS).saturating_sub(LONG_SLOTS);
        self.long.join_into(&mut long, first);
        // The newest one is not in a long slot yet.
        self.short.join_into(&mut long, first * SHORTS);
        (short, long)
    }
}

/// Of one vDisk.
#[derive(Debug, Default)]
pub struct WorkingSet {
    reads: Windows,
    writes: Windows,
}

/// What was touched in two minutes and in an hour.
#[derive(Debug, Clone, Default)]
pub struct Touched {
    pub minutes: TouchedSet,
    pub hour: TouchedSet,
}

#[derive(Debug, Clone, Default)]
pub struct TouchedSet {
    pub read: Sketch,
    pub written: Sketch,
}

impl TouchedSet {
    /// Read, written, or both.
    pub fn any(&self) -> Sketch {
        let mut any = self.read.clone();
        any.join(&self.written);
        any
    }
}

impl WorkingSet {
    pub fn read(&mut self, now: Time, offset: u64, len: u64) {
        self.reads.touch(now, offset, len);
    }

    pub fn written(&mut self, now: Time, offset: u64, len: u64) {
        self.writes.touch(now, offset, len);
    }

    pub fn lately(&self, now: Time) -> Touched {
        let (read, read_hour) = self.reads.lately(now);
        let (written, written_hour) = self.writes.lately(now);
        let minutes = TouchedSet { read, written };
        Touched { minutes, hour: TouchedSet { read: read_hour, written: written_hour } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const RANGE: u64 = 1 << RANGE_BITS;

    fn seconds(seconds: u64) -> Time {
        Time(seconds * 1_000_000)
    }

    #[test]
    fn an_estimate_is_near_the_exact_number() {
        for count in [0, 1, 2, 10, 100, 1_000, 3_000, 6_000, 20_000, 100_000, 1_000_000] {
            let mut sketch = Sketch::default();
            for number in 0..count {
                sketch.insert(number * 7);
                sketch.insert(number * 7);
            }
            let (told, error) = (sketch.len(), sketch.len().abs_diff(count) as f64 / count.max(1) as f64);
            // Three times the standard error; the numbers are fixed, so it never fails by chance.
            assert!(error <= 0.07, "{told} instead of {count}");
        }
    }

    #[test]
    fn what_was_touched_is_told_for_two_minutes_and_for_an_hour() {
        let mut touched = WorkingSet::default();
        let mut history: Vec<(u64, u64, bool)> = Vec::new();
        // Each minute some other ranges, read and written, with some that come again and again.
        for minute in 0..180 {
            let now = seconds(minute * 60 + 7);
            for index in 0..40 {
                let (range, write) = (if index < 10 { index } else { minute * 40 + index }, index % 3 == 0);
                let (offset, len) = (range * RANGE + 512, 4096);
                if write {
                    touched.written(now, offset, len)
                } else {
                    touched.read(now, offset, len)
                }
                history.push((now.0, range, write));
            }
            let lately = touched.lately(now);
            let exact = |since: u64, want: &dyn Fn(bool) -> bool| {
                let inside = history.iter().filter(|(at, _, write)| *at >= since && want(*write));
                inside.map(|(_, range, _)| *range).collect::<BTreeSet<_>>().len() as u64
            };
            let short = (now.0 / SHORT_US).saturating_sub(SHORT_SLOTS) * SHORT_US;
            let long = (now.0 / SHORT_US / SHORTS).saturating_sub(LONG_SLOTS) * SHORT_US * SHORTS;
            for (sketch, since, want) in [
                (&lately.minutes.read, short, &(|write: bool| !write) as &dyn Fn(bool) -> bool),
                (&lately.minutes.written, short, &|write| write),
                (&lately.minutes.any(), short, &|_| true),
                (&lately.hour.read, long, &|write| !write),
                (&lately.hour.any(), long, &|_| true),
            ] {
                let (told, is) = (sketch.len(), exact(since, want));
                assert!(told.abs_diff(is) as f64 <= 0.07 * is as f64 + 1.0, "minute {minute}: {told}, {is}");
            }
            assert!(touched.reads.short.0.len() <= 5 && touched.reads.long.0.len() <= 7, "it is bounded");
        }
        let later = touched.lately(seconds(183 * 60));
        assert_eq!(later.minutes.any().bytes(), 0, "nothing was touched for three minutes");
        assert!(later.hour.any().bytes() > 60 * 30 * RANGE);
        assert_eq!(touched.lately(seconds(300 * 60)).hour.any().bytes(), 0);
    }

    #[test]
    fn a_request_touches_all_that_it_overlaps() {
        let mut touched = WorkingSet::default();
        touched.read(seconds(1), RANGE - 1, 2);
        assert_eq!(touched.lately(seconds(1)).minutes.read.bytes(), 2 * RANGE);
        touched.written(seconds(1), 0, 1 << 20);
        let lately = touched.lately(seconds(2));
        assert_eq!((lately.minutes.written.bytes(), lately.minutes.any().bytes()), (1 << 20, 1 << 20));
        assert_eq!(lately.hour.any().bytes(), 1 << 20);
    }
}
