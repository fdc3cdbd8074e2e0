//! How soon a drain that has a reason begins its next egroup. A sweep of hundreds of MiB at the speed of the drives would take them,
//! and the core, from clients for a third of a second; spread over what clients write meanwhile it is hardly felt.
//! Promises: begun at the latest after a pause, and before what clients may still write has become short.

use crate::buffer::BLOCK;
use crate::identity::Time;
use crate::limits::EGROUP_UNITS;

#[derive(Debug, Default)]
pub(super) struct Pace {
    begun_at: Time,
    /// What the last egroup took.
    bytes: u64,
    /// What clients have written since.
    written: u64,
}

/// What there is room for while an egroup waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Headroom {
    pub dirty: u64,
    /// Bytes that may be dirty, and how many of them may be before there is haste.
    pub most: u64,
    pub begin: u64,
    /// Bytes that the log takes. It gives room back at the end of a sweep, when all that is dirty now is drained.
    pub room: u64,
}

impl Pace {
    pub fn on_begun(&mut self, bytes: u64, now: Time) {
        *self = Self { begun_at: now, bytes, written: 0 };
    }

    pub fn on_written(&mut self, bytes: u64) {
        self.written += bytes;
    }

    pub fn is_due(&self, headroom: Headroom, pause_us: u64, now: Time) -> bool {
        now >= self.due_at(pause_us) || self.written >= self.pause_bytes(headroom)
    }

    /// When it is due if nobody writes. `pause_us` is for a whole egroup: where only small ones find room they come as much sooner.
    pub fn due_at(&self, pause_us: u64) -> Time {
        self.begun_at.after(pause_us * self.bytes / (EGROUP_UNITS * BLOCK) as u64)
    }

    /// What clients may write between the beginnings of two egroups: as much as the last one took, so that one goes for
    /// each that comes; less when memory or the log would be full before a sweep at this pace is through.
    fn pause_bytes(&self, headroom: Headroom) -> u64 {
        let Headroom { dirty, most, begin, room } = headroom;
        let memory = self.bytes * (2 * most.saturating_sub(dirty)) / most.saturating_sub(begin).max(1);
        // Room is told as if each block came alone, with a header of its own: there is nearly twice as much.
        let log = self.bytes * (room + room / 2) / dirty.max(1);
        self.bytes.min(memory).min(log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const WHOLE: u64 = (EGROUP_UNITS * BLOCK) as u64;

    fn headroom(dirty: u64, room: u64) -> Headroom {
        Headroom { dirty: dirty * MIB, most: 448 * MIB, begin: 320 * MIB, room: room * MIB }
    }

    #[test]
    fn one_goes_for_each_that_comes() {
        let mut pace = Pace::default();
        pace.on_begun(4 * MIB, Time(1_000));
        pace.on_written(4 * MIB - 1);
        assert!(!pace.is_due(headroom(330, 400), 20_000, Time(2_000)));
        pace.on_written(1);
        assert!(pace.is_due(headroom(330, 400), 20_000, Time(2_000)));
    }

    #[test]
    fn without_writes_it_is_due_after_a_pause() {
        let mut pace = Pace::default();
        pace.on_begun(WHOLE, Time(1_000));
        assert!(!pace.is_due(headroom(10, 400), 20_000, Time(20_999)));
        assert!(pace.is_due(headroom(10, 400), 20_000, Time(21_000)));
        pace.on_begun(WHOLE / 10, Time(30_000));
        assert_eq!(pace.due_at(20_000), Time(32_000), "a small one is followed soon");
    }

    #[test]
    fn the_less_may_be_written_the_sooner_it_is_due() {
        let pause = |dirty, room| {
            let mut pace = Pace::default();
            pace.on_begun(4 * MIB, Time(1_000));
            pace.pause_bytes(headroom(dirty, room))
        };
        assert_eq!(pause(320, 400), 4 * MIB);
        assert_eq!(pause(416, 400), 2 * MIB, "half of the memory above the mark is gone");
        assert_eq!(pause(448, 400), 0);
        assert_eq!(pause(320, 64), 4 * MIB * 96 / 320, "the log would be full in the middle of a sweep");
        assert_eq!(pause(320, 0), 0);
        assert_eq!(pause(0, 0), 0, "nothing divides by nothing");
    }
}
