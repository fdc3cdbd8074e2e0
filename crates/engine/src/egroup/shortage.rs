//! A pool without room for what waits, and whether it gets better (decision 0012).
//! Leaves to others: when that is so, and for how long a write waits (`egroup/place.rs`).

use crate::identity::Time;

/// A pool that is full or short, and when that last got better.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shortage {
    better_at: Time,
    /// The most that the pool could take since it began, and the least that waited to be drained.
    pool: u64,
    dirty: u64,
}

impl Shortage {
    pub fn new(now: Time, pool: u64, dirty: u64) -> Self {
        Self { better_at: now, pool, dirty }
    }

    /// Only what was never there before is progress: free space goes up and down while egroups are moved in a full pool.
    pub fn note(&mut self, now: Time, pool: u64, dirty: u64) {
        if pool > self.pool || dirty < self.dirty {
            *self = Self::new(now, pool.max(self.pool), dirty.min(self.dirty));
        }
    }

    pub fn better_at(&self) -> Time {
        self.better_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_goes_up_and_down_does_not_get_better() {
        let mut shortage = Shortage::new(Time(0), 100, 50);
        for (now, pool, dirty, better_at) in [
            (1, 90, 50, 0),
            (2, 100, 60, 0),
            (3, 101, 60, 3),
            (4, 90, 50, 3),
            (5, 101, 50, 3),
            (6, 80, 49, 6),
            (7, 101, 49, 6),
            (8, 102, 49, 8),
        ] {
            shortage.note(Time(now), pool, dirty);
            assert_eq!(shortage.better_at, Time(better_at), "after {now}");
        }
    }
}
