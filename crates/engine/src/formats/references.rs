//! Parts of an egroup that lie elsewhere on the same drive, because the same bytes were there already: runs of its frames,
//! each with the byte of the data area from which on they lie one behind the other. The rest is the egroup's own.
//!
//! Promises: what [`References::of`] takes is sound, whoever said it: in order, apart, inside the egroup.
//! Leaves to others: who else uses these blocks (`keeper/holds.rs`), whether the bytes are right (checksums, as ever).

use crate::buffer::BLOCK;
use crate::formats::packing::{Packing, frame_of};
use std::ops::Range;

/// Of one egroup at most: each may cost a read of its own.
pub const REFERENCES_MAX: usize = 19;

/// Bytes that each takes of a table page.
pub const REFERENCE_BYTES: usize = 10;

/// 10 bits each for the first frame and the number of frames less one, the rest for the place.
const FRAME_BITS: u32 = 10;
const PLACE_BITS: u32 = 60;
const _: () = assert!(2 * FRAME_BITS + PLACE_BITS == 8 * REFERENCE_BYTES as u32);

/// A run of frames that lie elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// The number of the first of them, and how many.
    pub frame: u32,
    pub frames: u32,
    /// Their bytes in the egroup, as if all of it were its own.
    pub at: u32,
    pub len: u32,
    /// The byte of the data area where they begin.
    pub place: u64,
}

impl Reference {
    /// The blocks of the data area that its bytes are on.
    pub fn blocks(&self) -> Range<u64> {
        self.place / BLOCK as u64..(self.place + u64::from(self.len)).div_ceil(BLOCK as u64)
    }

    pub fn encode(&self) -> [u8; REFERENCE_BYTES] {
        assert!(self.place < 1 << PLACE_BITS, "a place lies on a drive");
        let word = u128::from(self.frame)
            | u128::from(self.frames - 1) << FRAME_BITS
            | u128::from(self.place) << (2 * FRAME_BITS);
        let mut bytes = [0; REFERENCE_BYTES];
        bytes.copy_from_slice(&word.to_le_bytes()[..REFERENCE_BYTES]);
        bytes
    }
}

/// What is encoded of a reference: first frame, frames, place.
pub fn decode(bytes: &[u8; REFERENCE_BYTES]) -> (u32, u32, u64) {
    let mut word = [0; 16];
    word[..REFERENCE_BYTES].copy_from_slice(bytes);
    let word = u128::from_le_bytes(word);
    let mask = (1 << FRAME_BITS) - 1;
    ((word & mask) as u32, (word >> FRAME_BITS & mask) as u32 + 1, (word >> (2 * FRAME_BITS)) as u64)
}

/// All references of an egroup, in order of its frames.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct References(Box<[Reference]>);

impl References {
    /// None if these cannot be: first frame, frames and place of each, of an egroup of `units` that is packed or not.
    pub fn of(
        runs: impl IntoIterator<Item = (u32, u32, u64)>,
        packing: Option<&Packing>,
        units: u32,
    ) -> Option<Self> {
        // Where each frame begins, and the last one ends.
        let mut begins: Vec<u32> = Vec::new();
        let mut unit = 0;
        while unit < units {
            let frame = frame_of(packing, unit);
            begins.push(frame.offset);
            unit = frame.end();
        }
        begins.push(packing.map_or(units * BLOCK as u32, Packing::bytes));
        let (mut references, mut next): (Vec<Reference>, u32) = (Vec::new(), 0);
        for (frame, frames, place) in runs {
            let end = frame.checked_add(frames)?;
            let is_sound = frame >= next && frames > 0 && references.len() < REFERENCES_MAX;
            let (&at, &behind) = (begins.get(frame as usize)?, begins.get(end as usize)?);
            if !is_sound || place >= 1 << PLACE_BITS {
                return None;
            }
            references.push(Reference { frame, frames, at, len: behind - at, place });
            next = end;
        }
        Some(Self(references.into()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Reference> + '_ {
        self.0.iter()
    }

    /// Bytes that lie elsewhere.
    pub fn bytes(&self) -> u32 {
        self.0.iter().map(|reference| reference.len).sum()
    }

    /// The reference that the byte `at` of the egroup is in.
    pub fn find(&self, at: u32) -> Option<&Reference> {
        let behind = self.0.partition_point(|reference| reference.at <= at);
        self.0[..behind].last().filter(|reference| at < reference.at + reference.len)
    }

    /// Where the byte `at` of the egroup is, whose own bytes begin with block `first`.
    pub fn place_of(&self, first: u64, at: u32) -> u64 {
        match self.find(at) {
            Some(reference) => reference.place + u64::from(at - reference.at),
            None => first * BLOCK as u64 + u64::from(self.own_before(at)),
        }
    }

    /// How many of the bytes before `at` are the egroup's own.
    pub fn own_before(&self, at: u32) -> u32 {
        let elsewhere: u32 =
            self.0.iter().take_while(|reference| reference.at < at).map(|r| r.len.min(at - r.at)).sum();
        at - elsewhere
    }

    /// The parts of the egroup's `bytes` that are its own, in order.
    pub fn own(&self, bytes: u32) -> Vec<Range<u32>> {
        let mut parts = Vec::with_capacity(self.0.len() + 1);
        let mut next = 0;
        for reference in self.0.iter().filter(|reference| reference.at < bytes) {
            parts.push(next..reference.at);
            next = reference.at + reference.len;
        }
        parts.push(next.min(bytes)..bytes);
        parts.retain(|part| !part.is_empty());
        parts
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::formats::packing::tests::some_sizes;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    /// References that an egroup of so many frames could have.
    pub(crate) fn some_runs(random: &mut SmallRng, frames: u32) -> Vec<(u32, u32, u64)> {
        let (mut runs, mut next) = (Vec::new(), 0);
        while runs.len() < REFERENCES_MAX {
            next += random.random_range(0..frames / 4 + 2);
            let count = random.random_range(1..frames / 4 + 2);
            if next + count > frames {
                break;
            }
            runs.push((next, count, random.random_range(0..1 << 40)));
            next += count;
        }
        runs
    }

    #[test]
    fn every_byte_is_in_one_place_and_what_is_encoded_comes_back() {
        let mut random = SmallRng::seed_from_u64(11);
        for _ in 0..200 {
            let units = random.random_range(1..=300);
            let packing = random.random::<bool>().then(|| some_sizes(&mut random, units));
            let packing = packing.and_then(|sizes| Packing::of(Codec::Lz4, sizes));
            let frames = packing.as_ref().map_or(units, |packing| packing.frame_count() as u32);
            let bytes = packing.as_ref().map_or(units * BLOCK as u32, Packing::bytes);
            let runs = some_runs(&mut random, frames);
            let references = References::of(runs.clone(), packing.as_ref(), units).expect("they are sound");
            let again = references.iter().map(|reference| decode(&reference.encode()));
            assert_eq!(again.collect::<Vec<_>>(), runs);
            let own: u32 = references.own(bytes).iter().map(|part| part.end - part.start).sum();
            assert_eq!(own + references.bytes(), bytes);
            for at in (0..bytes).step_by(997) {
                let place = references.place_of(7, at);
                match references.find(at) {
                    Some(reference) => {
                        assert_eq!(place, reference.place + u64::from(at - reference.at));
                        assert!(reference.blocks().contains(&(place / BLOCK as u64)));
                    }
                    None => {
                        let own: usize = references.own(at).iter().map(|part| part.len()).sum();
                        assert_eq!(place, (7 * BLOCK + own) as u64, "own bytes have no gaps");
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let of = |runs: &[(u32, u32, u64)]| References::of(runs.iter().copied(), None, 10);
        assert!(of(&[(0, 10, 0)]).is_some() && of(&[(0, 4, 0), (4, 6, 9)]).is_some() && of(&[]).is_some());
        assert!(of(&[(0, 11, 0)]).is_none() && of(&[(10, 1, 0)]).is_none(), "outside");
        assert!(of(&[(0, 4, 0), (3, 2, 0)]).is_none() && of(&[(4, 1, 0), (0, 1, 0)]).is_none());
        assert!(of(&[(0, 0, 0)]).is_none() && of(&[(u32::MAX, 2, 0)]).is_none());
        assert!(of(&[(0, 1, 1 << 60)]).is_none(), "no drive is so large");
        let many = (0..=REFERENCES_MAX as u32).map(|frame| (frame, 1, 0));
        assert!(References::of(many, None, 100).is_none(), "too many");
    }
}
