//! Packing the units of an egroup into frames, a slice at a time, before they are sent to anybody.
//! Promises: what does not get smaller by an eighth stays as it is, readable by block; a run of such data costs next to
//! nothing; when too little is saved in all, the egroup stays as it is.
//! Leaves to others: the codecs (`codec`), how frames lie (`formats/packing`), checksums (keepers).

use super::units::Units;
use crate::buffer::{BLOCK, Buffer, Pages};
use crate::codec::{Compressor, packed_bytes_max};
use crate::counters::Counters;
use crate::formats::packing::{FRAME_UNITS_MAX, FrameSize, Packing};
use crate::interface::{Compression, Method};
use crate::message::Content;
use std::sync::Arc;

/// After so many frames in a row that did not get smaller only one in a few is tried: a file that does not compress is
/// long. So is a disk full of them; then a few of each egroup are enough to see it end.
const MISSES_IN_A_ROW: usize = 8;
const MISSES_SKIP: usize = 4;
const MISSES_LONG: usize = 128;
const MISSES_LONG_SKIP: usize = 32;

/// An egroup is stored packed if that saves at least one block in so many.
const SAVED_SHARE: usize = 16;

/// Bytes packed in one step of a shard, which serves nobody meanwhile: about a quarter of a millisecond.
const SLICE_LZ4: usize = 128 << 10;
const SLICE_ZSTD: usize = 64 << 10;
const SLICE_ZSTD_SLOW: usize = 16 << 10;

/// Levels of zstd from here on take several times as long.
const SLOW_LEVEL: u8 = 5;

#[derive(Debug)]
pub struct Packer {
    compressor: Compressor,
    frame_units: usize,
    /// The same data is packed alike in every egroup, whatever is beside it: else drives would not see that they have it already.
    is_shared: bool,
    slice: usize,
    /// The first unit that was not looked at.
    next: usize,
    sizes: Vec<FrameSize>,
    /// The compressed frames one behind the other; raw ones are taken from where they are. Behind so many bytes is what was
    /// used and given up.
    packed: Vec<u8>,
    packed_len: usize,
    /// Memory in which units that lie apart are put together.
    gathered: Vec<u8>,
    misses: usize,
    /// Frames tried, got smaller, and left alone because those before them did not.
    tried: u64,
    kept: u64,
    skipped: u64,
}

impl Packer {
    /// None if nothing is to be packed. `misses`: how many frames of the same vDisk just before these did not get smaller.
    pub fn new(compression: Compression, misses: usize) -> Option<Self> {
        let compressor = Compressor::new(compression.method)?;
        let frame_units = u32::from(compression.frame_units).clamp(1, FRAME_UNITS_MAX) as usize;
        let slice = match compression.method {
            Method::Off | Method::Lz4 => SLICE_LZ4,
            Method::Zstd { level } if level < SLOW_LEVEL => SLICE_ZSTD,
            Method::Zstd { .. } => SLICE_ZSTD_SLOW,
        };
        Some(Self {
            compressor,
            frame_units,
            is_shared: compression.share,
            slice,
            next: 0,
            sizes: Vec::new(),
            packed: Vec::new(),
            packed_len: 0,
            gathered: Vec::new(),
            misses,
            tried: 0,
            kept: 0,
            skipped: 0,
        })
    }

    /// Packs some more; true when all units were looked at.
    pub fn advance(&mut self, units: &Units) -> bool {
        let mut left = self.slice;
        while self.next < units.len() && left > 0 {
            let count = self.next_frame(units);
            let tried = self.tried;
            self.pack_frame(&units.data[self.next..self.next + count]);
            self.next += count;
            if self.tried > tried {
                left = left.saturating_sub(count * BLOCK);
            }
        }
        self.next == units.len()
    }

    /// Units that are packed together next. What is to be shared is cut where its address says, as far as it lies together.
    fn next_frame(&self, units: &Units) -> usize {
        let most = self.frame_units.min(units.len() - self.next);
        let frame = self.frame_units as u64;
        let begins_a_frame = |at: usize| {
            let block = units.blocks[at];
            let last = units.blocks.get(at + self.frame_units - 1);
            block.is_multiple_of(frame) && last == Some(&(block + frame - 1))
        };
        let cut = (1..most).find(|&count| self.is_shared && begins_a_frame(self.next + count));
        cut.unwrap_or(most)
    }

    /// How many frames up to now, in a row, did not get smaller.
    pub fn misses(&self) -> usize {
        self.misses
    }

    fn pack_frame(&mut self, units: &[Buffer]) {
        let raw = units.len() * BLOCK;
        let is_tried = match self.misses {
            _ if self.is_shared => true,
            0..MISSES_IN_A_ROW => true,
            MISSES_IN_A_ROW..MISSES_LONG => self.misses.is_multiple_of(MISSES_SKIP),
            MISSES_LONG.. => self.misses.is_multiple_of(MISSES_LONG_SKIP),
        };
        if !is_tried {
            self.skipped += 1;
        } else {
            self.tried += 1;
            let begin = self.packed_len;
            // Only what was never used has to be made; what is behind is written over.
            let room = begin + packed_bytes_max(raw);
            if self.packed.len() < room {
                self.packed.resize(room, 0);
            }
            let neighbours = joined(units);
            let bytes = match &neighbours {
                Some(whole) => whole.bytes(),
                None => {
                    self.gathered.clear();
                    units.iter().for_each(|unit| self.gathered.extend_from_slice(unit.bytes()));
                    &self.gathered
                }
            };
            let len = self.compressor.pack(bytes, &mut self.packed[begin..room]);
            if let Some(len) = len.filter(|&len| len > 0 && len * 8 <= raw * 7) {
                self.packed_len = begin + len;
                self.sizes.push(FrameSize { units: units.len() as u8, len: len as u16 });
                self.misses = 0;
                self.kept += 1;
                return;
            }
        }
        self.misses += 1;
        self.sizes.extend(units.iter().map(|_| FrameSize::RAW));
    }

    /// All units were looked at: what is stored.
    pub fn finish(self, units: &Units, counters: &mut Counters) -> Content {
        assert!(self.next == units.len(), "every unit was looked at");
        counters.frames_tried += self.tried;
        counters.frames_kept += self.kept;
        counters.frames_skipped += self.skipped;
        let packing = (self.kept > 0).then(|| Packing::of(self.compressor.codec(), self.sizes)).flatten();
        let saved = |packing: &Packing| units.len().saturating_sub(packing.blocks() as usize);
        let packing = packing.filter(|packing| saved(packing) >= (units.len() / SAVED_SHARE).max(1));
        let Some(packing) = packing else { return Content::Units(units.data.clone()) };
        let mut pages = Pages::zeroed(packing.bytes() as usize);
        let mut packed = &self.packed[..self.packed_len];
        for frame in packing.frames() {
            let place = &mut pages.bytes_mut()[frame.bytes()];
            if frame.is_raw() {
                place.copy_from_slice(units.data[frame.first as usize].bytes());
            } else {
                let (bytes, rest) = packed.split_at(frame.len as usize);
                place.copy_from_slice(bytes);
                packed = rest;
            }
        }
        Content::Packed { packing: Arc::new(packing), bytes: pages.freeze() }
    }
}

/// The bytes of these units as one piece, if they are neighbours in memory.
fn joined(units: &[Buffer]) -> Option<Buffer> {
    let mut whole = units[0].clone();
    for unit in &units[1..] {
        whole = whole.is_followed_by(unit).then(|| whole.joined(unit))?;
    }
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Decompressor;
    use crate::formats::packing::SINGLE_UNITS_MAX;
    use crate::limits::EGROUP_UNITS;
    use rand::rngs::SmallRng;
    use rand::{Rng, RngCore, SeedableRng};

    fn pack(units: &Units, compression: Compression) -> (Content, Counters) {
        let mut counters = Counters::default();
        let mut packer = Packer::new(compression, 0).expect("it packs");
        while !packer.advance(units) {}
        (packer.finish(units, &mut counters), counters)
    }

    /// The bytes of all units, from what is stored.
    fn unpacked(content: &Content) -> Vec<u8> {
        let Content::Packed { packing, bytes } = content else { panic!("it is packed") };
        assert_eq!(bytes.blocks(), content.blocks());
        let mut unpacker = Decompressor::default();
        let mut all = Vec::new();
        for frame in packing.frames() {
            let mut out = vec![0; frame.units as usize * BLOCK];
            let stored = &bytes.bytes()[frame.bytes()];
            if frame.is_raw() {
                out.copy_from_slice(stored);
            } else {
                assert!(unpacker.unpack(packing.codec(), stored, &mut out));
            }
            all.extend(out);
        }
        all
    }

    /// Units of which about this share is noise, in runs of 256 KiB; neighbours in memory or not.
    fn units(random: &mut SmallRng, count: usize, noise: f64) -> Units {
        let mut units = Units::default();
        let mut pages = Pages::zeroed(count * BLOCK);
        let mut is_noise = false;
        for (at, unit) in pages.bytes_mut().chunks_exact_mut(BLOCK).enumerate() {
            if at % 64 == 0 {
                is_noise = random.random_bool(noise);
            }
            if is_noise {
                random.fill_bytes(unit);
            } else {
                unit[..1000].fill(random.random());
                random.fill_bytes(&mut unit[3900..]);
            }
        }
        let whole = pages.freeze();
        let scattered = random.random_bool(0.3);
        for at in 0..count {
            let unit = whole.block(at);
            units.push(at as u64, if scattered { Buffer::copied(unit.bytes()) } else { unit });
        }
        units
    }

    #[test]
    fn what_is_packed_is_smaller_and_comes_back() {
        let mut random = SmallRng::seed_from_u64(5);
        for round in 0..60 {
            let frame_units = [1, 2, 4, 8][random.random_range(0..4)];
            let most = if frame_units == 1 { SINGLE_UNITS_MAX } else { EGROUP_UNITS };
            let count = random.random_range(8..=most);
            let method = if random.random() { Method::Lz4 } else { Method::Zstd { level: 1 } };
            let noise = [0.0, 0.3, 0.6][random.random_range(0..3)];
            let units = units(&mut random, count, noise);
            let (content, counters) =
                pack(&units, Compression { method, frame_units, cold: None, share: false });
            assert_eq!(content.units(), count);
            if let Content::Units(data) = &content {
                assert!(noise > 0.0, "round {round}: all of it compresses");
                assert_eq!(data, &units.data);
                continue;
            }
            assert!(content.blocks() <= count - (count / SAVED_SHARE).max(1), "round {round}");
            let wanted: Vec<u8> = units.data.iter().flat_map(|unit| unit.bytes()).copied().collect();
            assert!(unpacked(&content) == wanted, "round {round}: other bytes came back");
            assert!(counters.frames_kept > 0 && counters.frames_kept <= counters.frames_tried);
        }
    }

    #[test]
    fn half_of_it_compressible_saves_about_half_of_that() {
        let mut random = SmallRng::seed_from_u64(6);
        let units = units(&mut random, EGROUP_UNITS, 0.5);
        for frame_units in [2, 4, 8] {
            let (content, counters) =
                pack(&units, Compression { method: Method::Lz4, frame_units, cold: None, share: false });
            assert!(matches!(content, Content::Packed { .. }), "frames of {frame_units} units fit the table");
            let noise = units.data.iter().filter(|unit| unit.bytes()[1..9] != [unit.bytes()[0]; 8]).count();
            let stored = content.blocks();
            assert!(
                (noise..noise + 2 * (EGROUP_UNITS - noise) / 3).contains(&stored),
                "{stored} of {noise} noise"
            );
            assert!(counters.frames_skipped > 0, "what does not compress is not tried over and over");
        }
    }

    #[test]
    fn what_is_to_be_shared_is_packed_alike_wherever_its_egroup_begins() {
        let mut random = SmallRng::seed_from_u64(9);
        let whole = units(&mut random, 200, 0.4);
        let stored = |from: usize| {
            let mut part = Units::default();
            for at in from..200 {
                // From the middle on there is a gap, behind which addresses are aligned otherwise.
                part.push(if at < 100 { at as u64 } else { at as u64 + 3 }, whole.data[at].clone());
            }
            let lz4 = Compression { method: Method::Lz4, frame_units: 4, cold: None, share: true };
            let Content::Packed { packing, bytes } = pack(&part, lz4).0 else { panic!("it compresses") };
            let frames = packing.frames().map(|frame| {
                let stored = bytes.bytes()[frame.bytes()].to_vec();
                (part.blocks[frame.first as usize], frame.units, stored)
            });
            frames.collect::<Vec<_>>()
        };
        let all = stored(0);
        for from in [1, 2, 3, 4, 37] {
            let part = stored(from);
            let different = part.iter().filter(|frame| !all.contains(frame)).count();
            assert!(different <= 3, "{different} of {} frames from {from} on are new", part.len());
        }
    }

    #[test]
    fn what_does_not_compress_stays_as_it_is() {
        let mut random = SmallRng::seed_from_u64(7);
        let units = units(&mut random, EGROUP_UNITS, 1.0);
        let (content, counters) =
            pack(&units, Compression { method: Method::Lz4, frame_units: 4, cold: None, share: false });
        assert!(matches!(content, Content::Units(_)));
        assert_eq!(counters.frames_kept, 0);
        assert!(counters.frames_tried < 80, "{} of 240 frames were tried", counters.frames_tried);
        let mut few = Units::default();
        few.push(1, Pages::zeroed(BLOCK).freeze());
        let (content, _) =
            pack(&few, Compression { method: Method::Lz4, frame_units: 4, cold: None, share: false });
        assert!(matches!(content, Content::Units(_)), "one unit takes one block in any case");
    }
}
