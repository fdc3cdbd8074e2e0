//! The egroup map of a drive: one page for each egroup, with the place of its run, what of it lies elsewhere on the drive, and the
//! checksum of each unit, or of each frame if it is packed; and the trailer behind them, which tells what vDisk blocks the units were
//! written for, and the hashes of what may be shared.

use crate::buffer::{BLOCK, Buffer, Pages};
use crate::checksum::crc32c;
use crate::codec::Codec;
use crate::formats::fields::{is_sealed, put_u32, put_u64, seal, u32_at, u64_at};
use crate::formats::layout::{ENTRY_BYTES, HASH_BYTES, run_blocks, trailer_blocks};
use crate::formats::packing::{Frame, FrameSize, Packing, TABLE_BYTES, frame_of};
use crate::formats::references::{self, REFERENCE_BYTES, REFERENCES_MAX, References};
use crate::identity::{EgroupId, FamilyId};
use crate::limits::EGROUP_UNITS;
use std::sync::Arc;

const MAGIC: u32 = u32::from_le_bytes(*b"WfEG");
/// 2: packed egroups.
pub const VERSION: u32 = 2;
/// Byte of the page where the checksums begin.
const SUMS: usize = 256;

const _: () = assert!(SUMS + 4 * EGROUP_UNITS == BLOCK, "the checksums fill the page exactly");

/// References are in front of the checksums of units; of a packed egroup they are behind the lengths of its frames.
const REFERENCES: usize = 64;

const _: () = assert!(REFERENCES + REFERENCE_BYTES * REFERENCES_MAX <= SUMS, "references have room");

/// In the byte behind the codec: the trailer has hashes.
const HASHED: u8 = 1;

/// The hash of a frame's stored bytes, with a key that differs from drive to drive.
pub type Hash = [u8; HASH_BYTES];

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
    /// ... and of the hashes behind them, if there are any.
    pub hashes_crc: Option<u32>,
    /// What of it lies elsewhere.
    pub references: References,
    /// One for each frame, bound to its first unit, see [`crate::checksum::unit_checksum`].
    pub checksums: Box<[u32]>,
    /// None: every unit is a frame.
    pub packing: Option<Arc<Packing>>,
}

impl TablePage {
    /// Whether bytes that are no page may have been one of this life of the drive before something became of them.
    pub fn may_be_of(page: &[u8], incarnation: u64) -> bool {
        let is_ours = u64_at(page, 16) == incarnation;
        // One of an earlier life that says so, in whatever version it was written, is as good as none.
        is_ours || u32_at(page, 0) == MAGIC && !is_sealed(page, MAGIC)
    }

    pub fn units(&self) -> u32 {
        self.packing.as_ref().map_or(self.checksums.len() as u32, |packing| packing.units())
    }

    /// Blocks that all of its data takes, wherever that is.
    pub fn data_blocks(&self) -> u32 {
        self.packing.as_ref().map_or(self.checksums.len() as u32, |packing| packing.blocks())
    }

    /// Blocks of the run before the trailer: its own data.
    pub fn own_blocks(&self) -> u32 {
        own_blocks(self.packing.as_deref(), self.units(), &self.references)
    }

    /// Frames that the trailer has hashes of: all or none.
    pub fn hashes(&self) -> u32 {
        self.hashes_crc.map_or(0, |_| self.checksums.len() as u32)
    }

    /// Blocks of the run: own data and trailer.
    pub fn blocks(&self) -> u64 {
        run_blocks(self.own_blocks(), self.units(), self.hashes())
    }

    /// First block of the trailer, and how many it has.
    pub fn trailer(&self) -> (u64, u64) {
        (self.first + u64::from(self.own_blocks()), trailer_blocks(self.units(), self.hashes()))
    }

    pub fn frame_of(&self, unit: u32) -> Frame {
        frame_of(self.packing.as_deref(), unit)
    }

    /// The byte of the data area from which on the frame lies.
    pub fn place_of(&self, frame: &Frame) -> u64 {
        self.references.place_of(self.first, frame.offset)
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
        if let Some(crc) = self.hashes_crc {
            page[57] = HASHED;
            put_u32(page, 60, crc);
        }
        let (sums, mut at) = match &self.packing {
            None => (SUMS, REFERENCES),
            Some(packing) => {
                assert!(self.checksums.len() == packing.frame_count(), "each frame has a checksum");
                page[56] = packing.codec() as u8;
                (PACKED_SUMS, put_packing(page, packing))
            }
        };
        for (frame, sum) in self.checksums.iter().enumerate() {
            put_u32(page, sums + 4 * frame, *sum);
        }
        assert!(self.references.len() <= references_max(self.packing.as_deref()), "references have room");
        page[58] = self.references.len() as u8;
        for reference in self.references.iter() {
            page[at..at + REFERENCE_BYTES].copy_from_slice(&reference.encode());
            at += REFERENCE_BYTES;
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
        if page[57] & !HASHED != 0 || page[59] != 0 {
            return None;
        }
        let packing = match page[56] {
            0 => None,
            codec => Some(Arc::new(packing_at(page, Codec::of(codec.into())?, units)?)),
        };
        let (sums, frames) =
            packing.as_ref().map_or((SUMS, units), |packing| (PACKED_SUMS, packing.frame_count()));
        let references = references_at(page, packing.as_deref(), units as u32)?;
        Some(TablePage {
            slot: u32_at(page, 12),
            incarnation: u64_at(page, 16),
            egroup: EgroupId(u64_at(page, 24)),
            family: FamilyId(u32_at(page, 32)),
            revision: u32_at(page, 36),
            first: u64_at(page, 40),
            trailer_crc: u32_at(page, 52),
            hashes_crc: (page[57] & HASHED != 0).then(|| u32_at(page, 60)),
            references,
            checksums: (0..frames).map(|frame| u32_at(page, sums + 4 * frame)).collect(),
            packing,
        })
    }
}

/// Blocks of an egroup's own data.
pub fn own_blocks(packing: Option<&Packing>, units: u32, references: &References) -> u32 {
    let bytes = packing.map_or(units * BLOCK as u32, Packing::bytes);
    (bytes - references.bytes()).div_ceil(BLOCK as u32)
}

/// References that the page of an egroup has room for.
pub fn references_max(packing: Option<&Packing>) -> usize {
    let room = packing.map_or(REFERENCES_MAX, |packing| (BLOCK - behind_lengths(packing)) / REFERENCE_BYTES);
    room.min(REFERENCES_MAX)
}

/// The byte of the page behind all that is told of frames.
fn behind_lengths(packing: &Packing) -> usize {
    PACKED_SUMS + packing.table_bytes()
}

fn references_at(page: &[u8], packing: Option<&Packing>, units: u32) -> Option<References> {
    let count = usize::from(page[58]);
    if count > references_max(packing) {
        return None;
    }
    let begin = packing.map_or(REFERENCES, behind_lengths);
    let bytes = &page[begin..begin + count * REFERENCE_BYTES];
    let runs = bytes.chunks_exact(REFERENCE_BYTES).map(|run| {
        let mut bytes = [0; REFERENCE_BYTES];
        bytes.copy_from_slice(run);
        references::decode(&bytes)
    });
    References::of(runs, packing, units)
}

/// Gives the first byte behind what it has put.
fn put_packing(page: &mut [u8], packing: &Packing) -> usize {
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
    at
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

/// The trailer of an egroup, padded to whole blocks, and the checksums of its entries and of its hashes.
pub fn encode_trailer(blocks: &[u64], hashes: &[Hash]) -> (Buffer, u32, u32) {
    let whole = trailer_blocks(blocks.len() as u32, hashes.len() as u32);
    let mut pages = Pages::zeroed(whole as usize * BLOCK);
    let (entries, rest) = pages.bytes_mut().split_at_mut(ENTRY_BYTES * blocks.len());
    for (unit, block) in blocks.iter().enumerate() {
        put_u64(entries, ENTRY_BYTES * unit, *block);
    }
    let behind = &mut rest[..HASH_BYTES * hashes.len()];
    behind.chunks_exact_mut(HASH_BYTES).zip(hashes).for_each(|(place, hash)| place.copy_from_slice(hash));
    let crcs = (crc32c(entries), crc32c(behind));
    (pages.freeze(), crcs.0, crcs.1)
}

/// The entries of a trailer of `units`; None if they are not the ones that `crc` was computed of.
pub fn decode_trailer(bytes: &[u8], units: u32, crc: u32) -> Option<Vec<u64>> {
    let entries = bytes.get(..ENTRY_BYTES * units as usize)?;
    if crc32c(entries) != crc {
        return None;
    }
    Some(entries.chunks_exact(ENTRY_BYTES).map(|entry| u64_at(entry, 0)).collect())
}

/// The `count` hashes behind the entries of a trailer of `units`; None if they are not the ones that `crc` was computed of.
pub fn decode_hashes(bytes: &[u8], units: u32, count: u32, crc: u32) -> Option<Vec<Hash>> {
    let begin = ENTRY_BYTES * units as usize;
    let hashes = bytes.get(begin..begin + HASH_BYTES * count as usize)?;
    if crc32c(hashes) != crc {
        return None;
    }
    let hash = |bytes: &[u8]| {
        let mut hash = Hash::default();
        hash.copy_from_slice(bytes);
        hash
    };
    Some(hashes.chunks_exact(HASH_BYTES).map(hash).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::packing::tests::some_sizes;
    use crate::formats::references::tests::some_runs;
    use crate::identity::Epoch;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    #[test]
    fn pages_and_trailers_come_back_and_damage_is_seen() {
        let mut random = SmallRng::seed_from_u64(8);
        for units in [1, 2, 511, 512, 513, EGROUP_UNITS] {
            let runs = some_runs(&mut random, units as u32);
            let hashed = units % 2 == 0;
            let page = TablePage {
                slot: 9,
                incarnation: 77,
                family: FamilyId(3),
                egroup: EgroupId::new(Epoch(2), 5),
                revision: 4,
                first: 1000,
                trailer_crc: 0xdead_beef,
                hashes_crc: hashed.then_some(5),
                references: References::of(runs, None, units as u32).expect("they are sound"),
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
            let count = if hashed { units as u32 } else { 0 };
            let hashes: Vec<Hash> = (0..count).map(|frame| [frame as u8; HASH_BYTES]).collect();
            let (trailer, crc, hashes_crc) = encode_trailer(&blocks, &hashes);
            assert_eq!(trailer.len() as u64, trailer_blocks(units as u32, count) * BLOCK as u64);
            let told = decode_hashes(trailer.bytes(), units as u32, count, hashes_crc);
            assert_eq!(told, Some(hashes));
            assert_eq!(decode_hashes(trailer.bytes(), units as u32, count, hashes_crc ^ 1), None);
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
        let (mut packed, mut shared) = (0, 0);
        for _ in 0..300 {
            let units = random.random_range(1..=EGROUP_UNITS as u32);
            let sizes = some_sizes(&mut random, units);
            let codec = if random.random() { Codec::Lz4 } else { Codec::Zstd };
            let Some(packing) = Packing::of(codec, sizes) else { continue };
            packed += 1;
            let mut runs = some_runs(&mut random, packing.frame_count() as u32);
            runs.truncate(references_max(Some(&packing)));
            shared += usize::from(!runs.is_empty());
            let page = TablePage {
                slot: random.random(),
                incarnation: random.random(),
                family: FamilyId(random.random()),
                egroup: EgroupId(random.random()),
                revision: random.random(),
                first: random.random_range(0..1 << 40),
                trailer_crc: random.random(),
                hashes_crc: random.random::<bool>().then(|| random.random()),
                references: References::of(runs, Some(&packing), units).expect("they are sound"),
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
                    assert!(page.blocks() <= 966 && page.units() as usize <= EGROUP_UNITS);
                    assert_eq!(page.frame_of(page.units() - 1).index as usize + 1, page.checksums.len());
                }
            }
        }
        assert!(packed > 150 && shared > 100, "only {packed} fitted their page, {shared} with references");
    }
}
