//! The time of day, for records that people read.

use std::time::SystemTime;

/// Seconds since 1970; 0 where the clock is before that.
pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
