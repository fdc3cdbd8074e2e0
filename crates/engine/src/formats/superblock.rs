//! The superblock: whose drive this is and how it is divided. Two copies, in the first two blocks of the
//! data area. Of two sound copies the one with the higher `formatted` counts: a format that was cut
//! between them has happened.

use crate::buffer::{BLOCK, Buffer, Pages};
use crate::formats::fields::{is_sealed, put_u32, put_u64, seal, u32_at, u64_at};
use crate::identity::DriveId;
use crate::interface::Geometry;

const MAGIC: u32 = u32::from_le_bytes(*b"WfSB");
/// 2: generations in map records, pages and checkpoints.
pub const VERSION: u32 = 2;
/// Copies at the start of the data area.
pub const COPIES: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    pub drive: DriveId,
    pub geometry: Geometry,
    /// Salt of this life of the drive: frames and table pages of earlier lives carry another one.
    pub incarnation: u64,
    /// How often the drive was formatted.
    pub formatted: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuperblockFault {
    /// Not a superblock, or a damaged one.
    NotSound,
    /// A sound superblock of a version that is not known here.
    OtherVersion(u32),
}

impl Superblock {
    /// Both copies, to be written at the start of the data area.
    pub fn encode(&self) -> Buffer {
        let mut pages = Pages::zeroed(COPIES * BLOCK);
        for copy in pages.bytes_mut().chunks_exact_mut(BLOCK) {
            put_u32(copy, 8, VERSION);
            put_u32(copy, 12, self.drive.0);
            put_u64(copy, 16, self.incarnation);
            put_u64(copy, 24, self.formatted);
            put_u64(copy, 32, self.geometry.log);
            put_u64(copy, 40, self.geometry.data);
            seal(copy, MAGIC);
        }
        pages.freeze()
    }

    /// One copy.
    pub fn decode(block: &[u8]) -> Result<Superblock, SuperblockFault> {
        if block.len() != BLOCK || !is_sealed(block, MAGIC) {
            return Err(SuperblockFault::NotSound);
        }
        let version = u32_at(block, 8);
        if version != VERSION {
            return Err(SuperblockFault::OtherVersion(version));
        }
        Ok(Superblock {
            drive: DriveId(u32_at(block, 12)),
            incarnation: u64_at(block, 16),
            formatted: u64_at(block, 24),
            geometry: Geometry { log: u64_at(block, 32), data: u64_at(block, 40) },
        })
    }

    /// The newest sound copy of those at the start of the data area.
    pub fn newest(blocks: &[u8]) -> Result<Superblock, SuperblockFault> {
        let mut best: Result<Superblock, SuperblockFault> = Err(SuperblockFault::NotSound);
        for block in blocks.chunks(BLOCK).take(COPIES) {
            match (Self::decode(block), &best) {
                (Ok(copy), Ok(other)) if copy.formatted <= other.formatted => {}
                (Ok(copy), _) => best = Ok(copy),
                (Err(fault @ SuperblockFault::OtherVersion(_)), Err(_)) => best = Err(fault),
                (Err(_), _) => {}
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(formatted: u64) -> Superblock {
        let geometry = Geometry { log: 1 << 30, data: 1 << 34 };
        Superblock { drive: DriveId(7), geometry, incarnation: 0x1234_5678_9abc_def0, formatted }
    }

    #[test]
    fn the_newest_sound_copy_counts() {
        let mut blocks = example(1).encode().bytes()[..BLOCK].to_vec();
        blocks.extend_from_slice(&example(2).encode().bytes()[..BLOCK]);
        assert_eq!(Superblock::newest(&blocks), Ok(example(2)));
        blocks[BLOCK + 20] ^= 1;
        assert_eq!(Superblock::newest(&blocks), Ok(example(1)));
        blocks[0] ^= 1;
        assert_eq!(Superblock::newest(&blocks), Err(SuperblockFault::NotSound));
        assert_eq!(Superblock::newest(&[]), Err(SuperblockFault::NotSound));
    }
}
