//! The clock that leases are measured with. It goes on while the machine sleeps: the lease in the store does so too.

use std::time::Duration;

/// Microseconds since this machine was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    pub fn now() -> Self {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the clock exists on every Linux that has io_uring, and `time` is written whole.
        let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
        assert_eq!(result, 0, "the clock of the machine can be read");
        Self(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000)
    }

    pub fn after(self, duration: Duration) -> Self {
        Self(self.0 + duration.as_micros() as u64)
    }

    /// Nothing if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}
