//! The egroup map of a drive: one page for each egroup, with the place of its run and the checksum of each
//! unit, or of each frame if it is packed; and the trailer behind them, which tells what vDisk blocks the units were
//! written for.

use crate::buffer::{BLOCK, Buffer, Pages};
use crate::checksum::crc32c;
use crate::codec::Codec;
use crate::formats::fields::{is_sealed, put_u32, put_u64, seal, u32_at, u64_at};
use crate::formats::layout::{run_blocks, trailer_blocks};
use crate::formats::packing::{Frame, FrameSize, Packing, TABLE_BYTES, frame_of};
use crate::identity::{EgroupId, FamilyId};
use crate::limits::EGROUP_UNITS;
use std::sync::Arc;

const MAGIC: u32 = u32::from_le_bytes(*b"WfEG");
/// 2: packed egroups.
pub const VERSION: u32 = 2;
/// Byte of the page where the checksums begin.
const SUMS: usize = 256;

const _: () = assert!(SUMS + 4 * EGROUP_UNITS == BLOCK, "the checksums fill the page exactly");

/// Of a packed egroup: a bit for each unit that begins a frame, and one for each that begins a compressed frame; then the
/// checksums of all frames, and the lengths of the compressed ones.
const BEGINS: usize = 64;
const BITS: usize = EGROUP_UNITS / 8;
const COMPRESSED: usize = BEGINS + BITS;
const PACKED_SUMS: usize = COMPRESSED + BITS;

const _: () = assert!(PACKED_SUMS + TABLE_BYTES == BLOCK, "frames have the rest of the page");

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
    /// One for each frame, bound to its first unit, see [`crate::checksum::unit_checksum`].
    pub checksums: Box<[u32]>,
    /// None: every unit is a frame.
    pub packing: Option<Arc<Packing>>,
}

impl TablePage {
    pub fn units(&self) -> u32 {
        self.packing.as_ref().map_or(self.checksums.len() as u32, |packing| packing.units())
    }

    /// Blocks of the run before the trailer.
    pub fn data_blocks(&self) -> u32 {
        self.packing.as_ref().map_or(self.checksums.len() as u32, |packing| packing.blocks())
    }

    /// Blocks of the run: data and trailer.
    pub fn blocks(&self) -> u64 {
        run_blocks(self.data_blocks(), self.units())
    }

    pub fn frame_of(&self, unit: u32) -> Frame {
        frame_of(self.packing.as_deref(), unit)
    }

    pub fn encode(&self) -> Buffer {
        let units = self.units();
        assert!((1..=EGROUP_UNITS as u32).contains(&units), "an egroup has 1 to {EGROUP_UNITS} units");
        let mut pages = Pages::zeroed(BLOCK);
        let page = pages.bytes_mut();
        put_u32(page, 8, VERSION);
        put_u32(page, 12, self.slot);
        put_u64(page, 16, self.incarnation);
        put_u64(page, 24, self.egroup.0);
        put_u32(page, 32, self.family.0);
        put_u32(page, 36, self.revision);
        put_u64(page, 40, self.first);
        put_u32(page, 48, units);
        put_u32(page, 52, self.trailer_crc);
        let sums = match &self.packing {
            None => SUMS,
            Some(packing) => {
                assert!(self.checksums.len() == packing.frame_count(), "each frame has a checksum");
                put_u32(page, 56, packing.codec() as u32);
                put_packing(page, packing);
                PACKED_SUMS
            }
        };
        for (frame, sum) in self.checksums.iter().enumerate() {
            put_u32(page, sums + 4 * frame, *sum);
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
        let packing = match u32_at(page, 56) {
            0 => None,
            codec => Some(Arc::new(packing_at(page, Codec::of(codec)?, units)?)),
        };
        let (sums, frames) =
            packing.as_ref().map_or((SUMS, units), |packing| (PACKED_SUMS, packing.frame_count()));
        Some(TablePage {
            slot: u32_at(page, 12),
            incarnation: u64_at(page, 16),
            egroup: EgroupId(u64_at(page, 24)),
            family: FamilyId(u32_at(page, 32)),
            revision: u32_at(page, 36),
            first: u64_at(page, 40),
            trailer_crc: u32_at(page, 52),
            checksums: (0..frames).map(|frame| u32_at(page, sums + 4 * frame)).collect(),
            packing,
        })
    }
}

fn put_packing(page: &mut [u8], packing: &Packing) {
    let mut at = PACKED_SUMS + 4 * packing.frame_count();
    for frame in packing.frames() {
        let (byte, bit) = (frame.first as usize / 8, 1 << (frame.first % 8));
        page[BEGINS + byte] |= bit;
        if !frame.is_raw() {
            page[COMPRESSED + byte] |= bit;
            page[at..at + 2].copy_from_slice(&(frame.len as u16).to_le_bytes());
            at += 2;
        }
    }
}

fn packing_at(page: &[u8], codec: Codec, units: usize) -> Option<Packing> {
    let is_set = |bits: usize, unit: usize| page[bits + unit / 8] & 1 << (unit % 8) != 0;
    let begins: Vec<usize> = (0..EGROUP_UNITS).filter(|&unit| is_set(BEGINS, unit)).collect();
    if begins.first() != Some(&0) || begins.last().is_some_and(|&last| last >= units) {
        return None;
    }
    let mut at = PACKED_SUMS + 4 * begins.len();
    let mut sizes = Vec::with_capacity(begins.len());
    let ends = begins.iter().skip(1).chain([&units]);
    for (&first, &end) in begins.iter().zip(ends) {
        let units = u8::try_from(end - first).ok()?;
        let len = if is_set(COMPRESSED, first) {
            let bytes = page.get(at..at + 2)?;
            at += 2;
            u16::from_le_bytes([bytes[0], bytes[1]])
        } else {
            FrameSize::RAW.len
        };
        sizes.push(FrameSize { units, len });
    }
    Packing::of(codec, sizes)
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
    use crate::formats::packing::tests::some_sizes;
    use crate::identity::Epoch;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

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
                packing: None,
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

    #[test]
    fn packed_pages_come_back_and_any_sealed_bytes_may_come() {
        let mut random = SmallRng::seed_from_u64(9);
        let mut packed = 0;
        for _ in 0..300 {
            let units = random.random_range(1..=EGROUP_UNITS as u32);
            let sizes = some_sizes(&mut random, units);
            let codec = if random.random() { Codec::Lz4 } else { Codec::Zstd };
            let Some(packing) = Packing::of(codec, sizes) else { continue };
            packed += 1;
            let page = TablePage {
                slot: random.random(),
                incarnation: random.random(),
                family: FamilyId(random.random()),
                egroup: EgroupId(random.random()),
                revision: random.random(),
                first: random.random_range(0..1 << 40),
                trailer_crc: random.random(),
                checksums: (0..packing.frame_count()).map(|_| random.random()).collect(),
                packing: Some(Arc::new(packing)),
            };
            let encoded = page.encode();
            assert_eq!(TablePage::decode(encoded.bytes()).as_ref(), Some(&page));
            // What is sealed and wrong was written by something else: no panic, and nothing that is not sound.
            let mut other = encoded.bytes().to_vec();
            for _ in 0..20 {
                let at = random.random_range(8..BLOCK);
                other[if random.random() { at } else { random.random_range(48..304) }] = random.random();
                seal(&mut other, MAGIC);
                if let Some(page) = TablePage::decode(&other) {
                    assert!(page.blocks() <= 962 && page.units() as usize <= EGROUP_UNITS);
                    assert_eq!(page.frame_of(page.units() - 1).index as usize + 1, page.checksums.len());
                }
            }
        }
        assert!(packed > 150, "only {packed} fitted their page");
    }
}
