//! Where things are in the data area of a drive: two superblocks, the egroup table, the units.
//! Everything is derived from the length of the area; nothing of it is stored.

use crate::buffer::BLOCK;
use crate::formats::superblock::COPIES;
use crate::limits::EGROUP_UNITS;

/// Bytes of a trailer for each unit: the block of the vDisk that it was written for.
pub const ENTRY_BYTES: usize = 8;
/// ... and for each frame of an egroup that shares what lies on its drive already: the hash of its stored bytes.
pub const HASH_BYTES: usize = 16;

/// Blocks that the trailer of an egroup of `units` takes, which tells the hashes of so many frames.
pub const fn trailer_blocks(units: u32, hashes: u32) -> u64 {
    (units as u64 * ENTRY_BYTES as u64 + hashes as u64 * HASH_BYTES as u64).div_ceil(BLOCK as u64)
}

/// Blocks that an egroup of `units` takes: its own `data` blocks (as many as units, or fewer if they are packed or lie
/// elsewhere), and the trailer behind them.
pub const fn run_blocks(data: u32, units: u32, hashes: u32) -> u64 {
    data as u64 + trailer_blocks(units, hashes)
}

/// Blocks that an egroup without hashes takes at most.
pub const RUN_BLOCKS_MAX: u64 = run_blocks(EGROUP_UNITS as u32, EGROUP_UNITS as u32, 0);

/// ... and one with them.
pub const HASHED_RUN_BLOCKS_MAX: u64 =
    run_blocks(EGROUP_UNITS as u32, EGROUP_UNITS as u32, EGROUP_UNITS as u32);

const _: () = assert!(RUN_BLOCKS_MAX == 962, "a whole egroup takes 962 blocks");
const _: () = assert!(HASHED_RUN_BLOCKS_MAX == 966, "four more with the hashes of all units");

/// The division of one data area, in blocks of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Entries of the egroup table, one block each.
    pub entries: u32,
    /// First block of the table.
    pub table: u64,
    /// First block of the units.
    pub units: u64,
    /// First block behind the units.
    pub end: u64,
}

impl Layout {
    /// The division of a data area of `bytes`; there is one table entry for each half MiB, at least 256.
    pub fn of(bytes: u64) -> Layout {
        let entries = u32::try_from((bytes >> 19).max(256)).expect("a drive is smaller than 4 PiB");
        let table = COPIES as u64;
        let units = table + u64::from(entries);
        let end = bytes / BLOCK as u64;
        Layout { entries, table, units: units.min(end), end }
    }

    /// Byte of the table page of `slot`.
    pub fn page_offset(&self, slot: u32) -> u64 {
        assert!(slot < self.entries, "a slot lies inside the table");
        (self.table + u64::from(slot)) * BLOCK as u64
    }

    /// Whether a run of `blocks` from `first` on lies inside the units.
    pub fn holds(&self, first: u64, blocks: u64) -> bool {
        first >= self.units && first.checked_add(blocks).is_some_and(|end| end <= self.end)
    }
}
