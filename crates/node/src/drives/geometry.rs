//! How the bytes of a drive are divided between log and data.

use weft_engine::interface::Geometry;

pub const MIB: u64 = 1 << 20;

/// Below this a drive has no room for its own tables and a reserve.
pub const DRIVE_BYTES_MIN: u64 = 128 * MIB;

/// More log than this is not drained in time to be of use, and makes starts slow.
const LOG_BYTES_MAX: u64 = 1024 * MIB;

const LOG_BYTES_MIN: u64 = 16 * MIB;

/// Log and data of a drive of `bytes`, both whole MiB; None if it is too small.
pub fn divide(bytes: u64) -> Option<Geometry> {
    let whole = bytes / MIB * MIB;
    if whole < DRIVE_BYTES_MIN {
        return None;
    }
    let log = (whole / 8 / MIB * MIB).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX);
    Some(Geometry { log, data: whole - log })
}

/// The logs that drives of up to `bytes` have: of each length there is.
pub fn logs_up_to(bytes: u64) -> impl Iterator<Item = u64> {
    let most = divide(bytes).map_or(0, |geometry| geometry.log);
    (LOG_BYTES_MIN..=most).step_by(MIB as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_an_eighth_up_to_a_limit() {
        assert_eq!(divide(127 * MIB), None);
        assert_eq!(divide(128 * MIB + 7), Some(Geometry { log: 16 * MIB, data: 112 * MIB }));
        assert_eq!(divide(16 << 30), Some(Geometry { log: 1024 * MIB, data: (16 << 30) - 1024 * MIB }));
        assert!(logs_up_to(144 * MIB).eq([16 * MIB, 17 * MIB, 18 * MIB]));
    }
}
