//! How the units of an egroup lie in its run when they are packed: in frames of 1 to 8 units, one behind the other without
//! gaps. A frame is compressed, or it is one unit as it is.
//!
//! Promises: what [`Packing::of`] takes is sound, whoever said it: 1 to 960 units, lengths that fit, a table that fits its
//! page; the frame of a unit is found by halving. With its checksums it takes no more memory than those of units that are not
//! packed, if frames are of 4 units or more.
//! Leaves to others: checksums (one for each frame, beside it), the bytes.

use crate::buffer::BLOCK;
use crate::codec::Codec;
use crate::limits::EGROUP_UNITS;
use std::ops::Range;

/// Units of a frame at most.
pub const FRAME_UNITS_MAX: u32 = 8;

/// Bytes of a table page for the frames of a packed egroup.
pub const TABLE_BYTES: usize = 3792;
/// There a frame takes its checksum, and its length if it is compressed.
const SUM_BYTES: usize = 4;
const LEN_BYTES: usize = 2;

/// Units of an egroup whose frames may all be of one unit, compressed: more would not fit the table page.
pub const SINGLE_UNITS_MAX: usize = TABLE_BYTES / (SUM_BYTES + LEN_BYTES);

/// A place is the number of a unit above, and a byte of the run in the low bits.
const OFFSET_BITS: u32 = 22;
const _: () = assert!(EGROUP_UNITS * BLOCK < 1 << OFFSET_BITS && EGROUP_UNITS < 1 << (32 - OFFSET_BITS));

/// What is told of a frame; the rest follows from those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameSize {
    pub units: u8,
    /// Bytes in the run.
    pub len: u16,
}

impl FrameSize {
    /// One unit as it is.
    pub const RAW: FrameSize = FrameSize { units: 1, len: BLOCK as u16 };

    pub fn is_raw(self) -> bool {
        self == Self::RAW
    }

    fn is_sound(self) -> bool {
        let (units, len) = (u32::from(self.units), usize::from(self.len));
        let packed = (1..=FRAME_UNITS_MAX).contains(&units) && len > 0 && len < units as usize * BLOCK;
        packed || self.is_raw()
    }
}

/// A frame in its egroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The number of its checksum.
    pub index: u32,
    /// Its units.
    pub first: u32,
    pub units: u32,
    /// Where it lies in the run, in bytes.
    pub offset: u32,
    pub len: u32,
}

impl Frame {
    /// Of an egroup that is not packed every unit is a frame.
    pub fn of_unit(unit: u32) -> Frame {
        Frame { index: unit, first: unit, units: 1, offset: unit * BLOCK as u32, len: BLOCK as u32 }
    }

    pub fn is_raw(&self) -> bool {
        self.len as usize == self.units as usize * BLOCK
    }

    pub fn end(&self) -> u32 {
        self.first + self.units
    }

    /// Its bytes in the run.
    pub fn bytes(&self) -> Range<usize> {
        self.offset as usize..(self.offset + self.len) as usize
    }

    /// The blocks of the run that it lies on.
    pub fn blocks(&self) -> Range<u32> {
        self.offset / BLOCK as u32..(self.offset + self.len).div_ceil(BLOCK as u32)
    }
}

/// The frames that these units lie in, in order. `frame_of`: the one of a unit.
pub fn frames_between(units: Range<u32>, frame_of: impl Fn(u32) -> Frame) -> impl Iterator<Item = Frame> {
    let mut next = units.start;
    std::iter::from_fn(move || {
        let frame = (next < units.end).then(|| frame_of(next))?;
        next = frame.end();
        Some(frame)
    })
}

/// The frame of a unit of an egroup that is packed or not.
pub fn frame_of(packing: Option<&Packing>, unit: u32) -> Frame {
    packing.map_or_else(|| Frame::of_unit(unit), |packing| packing.frame_of(unit))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packing {
    codec: Codec,
    /// Where each run begins (a compressed frame, or raw units one behind the other), and behind the last one the end.
    places: Box<[u32]>,
    /// The number of each run's first frame, and of all frames.
    frames: Box<[u16]>,
}

impl Packing {
    /// None if these frames are no egroup.
    pub fn of(codec: Codec, sizes: impl IntoIterator<Item = FrameSize>) -> Option<Packing> {
        let (mut places, mut frames): (Vec<u32>, Vec<u16>) = (Vec::new(), Vec::new());
        let (mut unit, mut offset, mut count, mut table) = (0_usize, 0_usize, 0_u16, 0_usize);
        let mut in_raw = false;
        for size in sizes {
            if !size.is_sound() || unit + usize::from(size.units) > EGROUP_UNITS {
                return None;
            }
            if !(in_raw && size.is_raw()) {
                places.push(place(unit, offset));
                frames.push(count);
            }
            in_raw = size.is_raw();
            table += SUM_BYTES + if in_raw { 0 } else { LEN_BYTES };
            unit += usize::from(size.units);
            offset += usize::from(size.len);
            count += 1;
        }
        if unit == 0 || table > TABLE_BYTES {
            return None;
        }
        places.push(place(unit, offset));
        frames.push(count);
        Some(Packing { codec, places: places.into(), frames: frames.into() })
    }

    pub fn codec(&self) -> Codec {
        self.codec
    }

    pub fn units(&self) -> u32 {
        self.last() >> OFFSET_BITS
    }

    /// Bytes of all frames.
    pub fn bytes(&self) -> u32 {
        offset_of(self.last())
    }

    /// Blocks of the run that they take.
    pub fn blocks(&self) -> u32 {
        self.bytes().div_ceil(BLOCK as u32)
    }

    fn last(&self) -> u32 {
        self.places[self.places.len() - 1]
    }

    /// Bytes of a table page that tell of the frames.
    pub fn table_bytes(&self) -> usize {
        let compressed = self.frames().filter(|frame| !frame.is_raw()).count();
        SUM_BYTES * self.frame_count() + LEN_BYTES * compressed
    }

    pub fn frame_count(&self) -> usize {
        usize::from(self.frames[self.frames.len() - 1])
    }

    /// The frame that this unit is in, which is one of the egroup's.
    pub fn frame_of(&self, unit: u32) -> Frame {
        assert!(unit < self.units(), "a unit of the egroup");
        let run = self.places.partition_point(|place| place >> OFFSET_BITS <= unit) - 1;
        let (begin, end) = (self.places[run], self.places[run + 1]);
        let (first, offset) = (begin >> OFFSET_BITS, offset_of(begin));
        let units = (end >> OFFSET_BITS) - first;
        let index = u32::from(self.frames[run]);
        let whole = Frame { index, first, units, offset, len: offset_of(end) - offset };
        if !whole.is_raw() {
            return whole;
        }
        let before = unit - first;
        let offset = offset + before * BLOCK as u32;
        Frame { index: index + before, first: unit, units: 1, offset, len: BLOCK as u32 }
    }

    /// All frames in order.
    pub fn frames(&self) -> impl Iterator<Item = Frame> + '_ {
        let mut next = 0;
        std::iter::from_fn(move || {
            let frame = (next < self.units()).then(|| self.frame_of(next))?;
            next = frame.end();
            Some(frame)
        })
    }

    pub fn sizes(&self) -> impl Iterator<Item = FrameSize> + '_ {
        self.frames().map(|frame| FrameSize { units: frame.units as u8, len: frame.len as u16 })
    }
}

fn place(unit: usize, offset: usize) -> u32 {
    (unit as u32) << OFFSET_BITS | offset as u32
}

fn offset_of(place: u32) -> u32 {
    place & ((1 << OFFSET_BITS) - 1)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    /// Frames of an egroup of at most `units`, as an owner could have packed them.
    pub(crate) fn some_sizes(random: &mut SmallRng, units: u32) -> Vec<FrameSize> {
        let grain = [2, 4, 8][random.random_range(0..3)];
        let raw_share = random.random_range(0.0..1.0);
        let (mut left, mut sizes) = (units, Vec::new());
        while left > 0 {
            let count = grain.min(left);
            left -= count;
            if random.random_bool(raw_share) {
                sizes.extend((0..count).map(|_| FrameSize::RAW));
            } else {
                let len = random.random_range(1..count * BLOCK as u32) as u16;
                sizes.push(FrameSize { units: count as u8, len });
            }
        }
        sizes
    }

    #[test]
    fn every_unit_is_found_in_its_frame() {
        let mut random = SmallRng::seed_from_u64(3);
        let mut packed = 0;
        for _ in 0..500 {
            let units = random.random_range(1..=EGROUP_UNITS as u32);
            let sizes = some_sizes(&mut random, units);
            let Some(packing) = Packing::of(Codec::Lz4, sizes.iter().copied()) else { continue };
            packed += 1;
            assert_eq!(packing.sizes().collect::<Vec<_>>(), sizes);
            assert_eq!((packing.units(), packing.frame_count()), (units, sizes.len()));
            let (mut unit, mut offset) = (0, 0);
            for (index, size) in (0..).zip(&sizes) {
                let (len, count) = (u32::from(size.len), u32::from(size.units));
                let frame = Frame { index, first: unit, units: count, offset, len };
                for unit in unit..unit + count {
                    assert_eq!(packing.frame_of(unit), frame);
                }
                unit += count;
                offset += len;
            }
            assert_eq!(packing.bytes(), offset);
        }
        assert!(packed > 300, "only {packed} fitted their table page");
    }

    #[test]
    fn what_is_no_egroup_is_refused() {
        let of = |sizes: &[(u8, u16)]| {
            Packing::of(Codec::Zstd, sizes.iter().map(|&(units, len)| FrameSize { units, len }))
        };
        assert!(of(&[]).is_none(), "nothing");
        assert!(of(&[(0, 1)]).is_none() && of(&[(1, 0)]).is_none() && of(&[(9, 100)]).is_none());
        assert!(of(&[(1, 4097)]).is_none() && of(&[(2, 8192)]).is_none(), "longer than unpacked");
        assert!(of(&[(8, 100); 121]).is_none() && of(&[(8, 100); 120]).is_some(), "960 units");
        assert!(
            of(&[(1, 100); SINGLE_UNITS_MAX + 1]).is_none() && of(&[(1, 100); SINGLE_UNITS_MAX]).is_some()
        );
        assert!(of(&[(1, 4096); 948]).is_some() && of(&[(1, 4096); 949]).is_none(), "the table page");
    }
}
