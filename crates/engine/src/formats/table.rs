//! The egroup map of a drive: one page for each egroup, with the place of its run and the checksum of each
//! unit; and the trailer behind the units, which tells what vDisk blocks they were written for.

use crate::buffer::{BLOCK, Buffer, Pages};
use crate::checksum::crc32c;
use crate::formats::fields::{is_sealed, put_u32, put_u64, seal, u32_at, u64_at};
use crate::formats::layout::{run_blocks, trailer_blocks};
use crate::identity::{EgroupId, FamilyId};
use crate::limits::EGROUP_UNITS;

const MAGIC: u32 = u32::from_le_bytes(*b"WfEG");
pub const VERSION: u32 = 1;
/// Byte of the page where the checksums begin.
const SUMS: usize = 256;

const _: () = assert!(SUMS + 4 * EGROUP_UNITS == BLOCK, "the checksums fill the page exactly");

/// What a table page says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePage {
    /// The place of this page in the table: a page that a drive put elsewhere is not taken for another.
    pub slot: u32,
    /// Of the life of the drive, see [`crate::formats::superblock::Superblock`].
    pub incarnation: u64,
    pub family: FamilyId,
    pub egroup: EgroupId,
    /// Of two pages with one name the one with the higher revision counts.
    pub revision: u32,
    /// First block of the run, counted from the start of the data area.
    pub first: u64,
    /// CRC-32C of the trailer's entries.
    pub trailer_crc: u32,
    /// One for each unit, see [`crate::checksum::unit_checksum`].
    pub checksums: Box<[u32]>,
}

impl TablePage {
    pub fn units(&self) -> u32 {
        self.checksums.len() as u32
    }

    /// Blocks of the run: units and trailer.
    pub fn blocks(&self) -> u64 {
        run_blocks(self.units())
    }

    pub fn encode(&self) -> Buffer {
        let units = self.checksums.len();
        assert!((1..=EGROUP_UNITS).contains(&units), "an egroup has 1 to {EGROUP_UNITS} units");
        let mut pages = Pages::zeroed(BLOCK);
        let page = pages.bytes_mut();
        put_u32(page, 8, VERSION);
        put_u32(page, 12, self.slot);
        put_u64(page, 16, self.incarnation);
        put_u64(page, 24, self.egroup.0);
        put_u32(page, 32, self.family.0);
        put_u32(page, 36, self.revision);
        put_u64(page, 40, self.first);
        put_u32(page, 48, units as u32);
        put_u32(page, 52, self.trailer_crc);
        for (unit, sum) in self.checksums.iter().enumerate() {
            put_u32(page, SUMS + 4 * unit, *sum);
        }
        seal(page, MAGIC);
        pages.freeze()
    }

    /// None if the page is free or not sound. Whether it belongs to this drive's life, slot and area is for
    /// the caller to compare.
    pub fn decode(page: &[u8]) -> Option<TablePage> {
        if page.len() != BLOCK || !is_sealed(page, MAGIC) || u32_at(page, 8) != VERSION {
            return None;
        }
        let units = u32_at(page, 48) as usize;
        if !(1..=EGROUP_UNITS).contains(&units) {
            return None;
        }
        Some(TablePage {
            slot: u32_at(page, 12),
            incarnation: u64_at(page, 16),
            egroup: EgroupId(u64_at(page, 24)),
            family: FamilyId(u32_at(page, 32)),
            revision: u32_at(page, 36),
            first: u64_at(page, 40),
            trailer_crc: u32_at(page, 52),
            checksums: (0..units).map(|unit| u32_at(page, SUMS + 4 * unit)).collect(),
        })
    }
}

/// The trailer of an egroup, padded to whole blocks, and the checksum of its entries.
pub fn encode_trailer(blocks: &[u64]) -> (Buffer, u32) {
    let mut pages = Pages::zeroed(trailer_blocks(blocks.len() as u32) as usize * BLOCK);
    let bytes = pages.bytes_mut();
    for (unit, block) in blocks.iter().enumerate() {
        put_u64(bytes, 8 * unit, *block);
    }
    let crc = crc32c(&bytes[..8 * blocks.len()]);
    (pages.freeze(), crc)
}

/// The entries of a trailer of `units`; None if they are not the ones that `crc` was computed of.
pub fn decode_trailer(bytes: &[u8], units: u32, crc: u32) -> Option<Vec<u64>> {
    let entries = bytes.get(..8 * units as usize)?;
    if crc32c(entries) != crc {
        return None;
    }
    Some(entries.chunks_exact(8).map(|entry| u64_at(entry, 0)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Epoch;

    #[test]
    fn pages_and_trailers_come_back_and_damage_is_seen() {
        for units in [1, 2, 511, 512, 513, EGROUP_UNITS] {
            let page = TablePage {
                slot: 9,
                incarnation: 77,
                family: FamilyId(3),
                egroup: EgroupId::new(Epoch(2), 5),
                revision: 4,
                first: 1000,
                trailer_crc: 0xdead_beef,
                checksums: (0..units as u32).map(|unit| unit.wrapping_mul(2_654_435_761)).collect(),
            };
            let encoded = page.encode();
            assert_eq!(TablePage::decode(encoded.bytes()).as_ref(), Some(&page));
            let mut bad = encoded.bytes().to_vec();
            for at in (0..BLOCK).step_by(97) {
                bad[at] ^= 0x10;
                assert_eq!(TablePage::decode(&bad), None, "byte {at}");
                bad[at] ^= 0x10;
            }
            let blocks: Vec<u64> = (0..units as u64).map(|unit| unit * unit).collect();
            let (trailer, crc) = encode_trailer(&blocks);
            assert_eq!(trailer.len() as u64, trailer_blocks(units as u32) * BLOCK as u64);
            assert_eq!(decode_trailer(trailer.bytes(), units as u32, crc), Some(blocks));
            assert_eq!(decode_trailer(trailer.bytes(), units as u32, crc ^ 1), None);
            assert_eq!(decode_trailer(&[], units as u32, crc), None);
        }
        assert_eq!(TablePage::decode(&[0; BLOCK]), None);
        assert_eq!(TablePage::decode(&[]), None);
    }
}
