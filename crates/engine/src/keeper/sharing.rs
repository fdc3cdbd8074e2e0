//! Sharing: what an egroup is made of may lie on the drive already; then it is not written, but referred to.
//! Promises: a step hashes a slice and no more; references are few and long, so that what is shared is read in long runs; what they
//! name was durable before and is not free (`share_index`, `holds`).
//! Leaves to others: a look at what nobody has seen yet (`proof`), writing the rest (`egroup_change`), what the owner wishes
//! (`message::Sharing`).

use crate::buffer::{BLOCK, Buffer};
use crate::formats::packing::{Frame, Packing, frame_of};
use crate::formats::references::{Reference, References};
use crate::formats::table::{Hash, references_max};
use crate::identity::Time;
use crate::keeper::desk::Desk;
use crate::keeper::egroup_change::Prepared;
use crate::keeper::egroups::Store;
use crate::keeper::share_index::{Entry, ShareIndex};
use std::collections::VecDeque;

/// A shorter run is rather written again: each reference may cost reads one operation of a drive, and takes one of the few places
/// of a page. At 32 KiB an operation moves enough for drives of any kind to be busy with bytes rather than with beginning.
pub(super) const RUN_BYTES_MIN: u32 = 8 * BLOCK as u32;

/// Bytes hashed in one step of a shard, which serves nobody meanwhile: about a tenth of a millisecond.
const SLICE_BYTES: usize = 128 << 10;

/// An egroup whose frames are being hashed.
pub(super) struct Hashing {
    pub job: u64,
    prepared: Prepared,
    hashes: Vec<Hash>,
    /// The first unit that was not hashed.
    next: u32,
}

/// An egroup whose frames are all hashed.
pub(super) struct Hashed {
    pub prepared: Prepared,
    pub hashes: Vec<Hash>,
    /// How often something was read of what it may refer to.
    pub proofs: u32,
}

/// What a keeper needs for sharing besides what it knows of egroups.
pub(super) struct Sharing {
    key: [u8; 32],
    pub index: ShareIndex,
    /// Oldest first.
    queue: VecDeque<Hashing>,
    /// When something was hashed last.
    hashed_at: Option<Time>,
}

impl Sharing {
    /// Of a drive in this incarnation.
    pub fn new(incarnation: u64, entries_max: usize) -> Self {
        // With a key of the drive nobody can know beforehand what has the same hash there.
        let key = blake3::derive_key(
            "Weft, hashes of frames that are shared on a drive",
            &incarnation.to_le_bytes(),
        );
        Self { key, index: ShareIndex::new(entries_max), queue: VecDeque::new(), hashed_at: None }
    }

    pub fn begin(&mut self, job: u64, prepared: Prepared) {
        let hashes = Vec::with_capacity(prepared.checksums.len());
        self.queue.push_back(Hashing { job, prepared, hashes, next: 0 });
    }

    /// Something is to be hashed.
    pub fn is_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Hashes a slice of the oldest egroup; gives it when all of it is hashed. Once in a moment.
    fn advance(&mut self, now: Time, bytes_hashed: &mut u64) -> Option<(u64, Hashed)> {
        if self.hashed_at == Some(now) {
            return None;
        }
        let hashing = self.queue.front_mut()?;
        self.hashed_at = Some(now);
        let Hashing { prepared, hashes, next, .. } = hashing;
        let mut bytes = 0;
        while bytes < SLICE_BYTES && *next < prepared.units() {
            let frame = frame_of(prepared.packing.as_deref(), *next);
            bytes += frame.len as usize;
            hashes.push(hash(&self.key, prepared.bytes_of(&frame).bytes()));
            *next = frame.end();
        }
        *bytes_hashed += bytes as u64;
        if *next < prepared.units() {
            return None;
        }
        let Hashing { job, prepared, hashes, .. } = self.queue.pop_front().expect("it was just there");
        Some((job, Hashed { prepared, hashes, proofs: 0 }))
    }
}

impl Store {
    /// Hashes some more, and writes what is hashed whole.
    pub fn continue_hashing(&mut self, now: Time, desk: &mut Desk) {
        let advanced = self.sharing.advance(now, &mut desk.effects.tally.bytes_hashed);
        if let Some((job, hashed)) = advanced {
            self.write_shared(job, hashed, desk);
        }
    }

    /// What an egroup may refer to, as far as is known.
    pub fn found_for(&mut self, Hashed { prepared, hashes, .. }: &Hashed) -> References {
        let Self { sharing, holds, egroups, .. } = self;
        let leaving: Vec<(u64, u64)> = prepared
            .moved_from
            .iter()
            .filter_map(|&egroup| egroups.get(&(prepared.name.0, egroup)))
            .map(|stored| (stored.first, stored.first + u64::from(stored.own_blocks())))
            .collect();
        let may_use = |place: u64, len: u32| {
            let blocks = place / BLOCK as u64..(place + u64::from(len)).div_ceil(BLOCK as u64);
            let goes = leaving.iter().any(|(first, end)| blocks.start < *end && *first < blocks.end);
            !goes || holds.is_held(blocks)
        };
        found(&mut sharing.index, prepared.packing.as_deref(), hashes, may_use)
    }
}

fn hash(key: &[u8; 32], stored: &[u8]) -> Hash {
    let mut hash = Hash::default();
    hash.copy_from_slice(&blake3::keyed_hash(key, stored).as_bytes()[..size_of::<Hash>()]);
    hash
}

/// Frames that lie one behind the other on the drive.
#[derive(Debug, Clone, Copy)]
struct Run {
    frame: u32,
    frames: u32,
    bytes: u32,
    place: u64,
}

/// What of an egroup lies on the drive already: the longest runs that its page has room for. `may_use` says whether the bytes at
/// a place may be referred to.
fn found(
    index: &mut ShareIndex,
    packing: Option<&Packing>,
    hashes: &[Hash],
    may_use: impl Fn(u64, u32) -> bool,
) -> References {
    let units = packing.map_or(hashes.len() as u32, Packing::units);
    let frames = all_frames(packing, units);
    let fits = |place: u64, len: u32| {
        // What is not packed is read by whole blocks.
        (packing.is_some() || place.is_multiple_of(BLOCK as u64)) && may_use(place, len)
    };
    let mut runs: Vec<Run> = Vec::new();
    for (number, (frame, hash)) in (0..).zip(frames.iter().zip(hashes)) {
        if let Some(last) = runs.last_mut()
            && last.frame + last.frames == number
        {
            let next = last.place + u64::from(last.bytes);
            if index.is_at(next, hash) && fits(next, frame.len) {
                last.frames += 1;
                last.bytes += frame.len;
                continue;
            }
        }
        let Some(place) = index.find(hash).filter(|&place| fits(place, frame.len)) else { continue };
        let mut run = Run { frame: number, frames: 1, bytes: frame.len, place };
        // What came before may lie before it too: blocks that are there many times were found elsewhere.
        while run.frame > 0 {
            let (before, hash) = (&frames[run.frame as usize - 1], &hashes[run.frame as usize - 1]);
            let last = runs.last_mut().filter(|last| last.frame + last.frames == run.frame);
            if last.as_ref().is_some_and(|last| last.bytes >= RUN_BYTES_MIN) {
                break;
            }
            let Some(place) = index.ending_at(run.place, before.len, hash) else { break };
            if !fits(place, before.len) {
                break;
            }
            run = Run { frame: run.frame - 1, frames: run.frames + 1, bytes: run.bytes + before.len, place };
            if let Some(last) = last {
                last.frames -= 1;
                last.bytes -= before.len;
                if last.frames == 0 {
                    runs.pop();
                }
            }
        }
        runs.push(run);
    }
    runs.retain(|run| run.bytes >= RUN_BYTES_MIN);
    runs.sort_by_key(|run| (std::cmp::Reverse(run.bytes), run.frame));
    runs.truncate(references_max(packing));
    runs.sort_by_key(|run| run.frame);
    let runs = runs.iter().map(|run| (run.frame, run.frames, run.place));
    References::of(runs, packing, units).expect("runs are in order and apart")
}

pub(super) fn all_frames(packing: Option<&Packing>, units: u32) -> Vec<Frame> {
    match packing {
        Some(packing) => packing.frames().collect(),
        None => (0..units).map(Frame::of_unit).collect(),
    }
}

/// What an egroup has of its own, as it lies behind the beginning of its run. `proven`: it was just written.
pub(super) fn own_entries(
    packing: Option<&Packing>,
    units: u32,
    references: &References,
    hashes: &[Hash],
    proven: bool,
) -> Vec<Entry> {
    let own = all_frames(packing, units).into_iter().zip(hashes);
    let own = own.filter(|(frame, _)| references.find(frame.offset).is_none());
    own.map(|(frame, hash)| Entry {
        at: references.own_before(frame.offset),
        len: frame.len as u16,
        proven,
        hash: *hash,
    })
    .collect()
}

/// The frames of one reference, as they lie behind its place.
pub(super) fn entries_of(
    packing: Option<&Packing>,
    units: u32,
    reference: &Reference,
    hashes: &[Hash],
    proven: bool,
) -> Vec<Entry> {
    let frames = all_frames(packing, units).into_iter().zip(hashes);
    let frames = frames.skip(reference.frame as usize).take(reference.frames as usize);
    let entries = frames.map(|(frame, hash)| Entry {
        at: frame.offset - reference.at,
        len: frame.len as u16,
        proven,
        hash: *hash,
    });
    entries.collect()
}

/// What is the egroup's own of its pieces, which are whole blocks and together all of it.
pub(super) fn own_pieces(
    pieces: &[Buffer],
    packing: Option<&Packing>,
    units: u32,
    references: &References,
) -> Vec<Buffer> {
    if references.is_empty() {
        return pieces.to_vec();
    }
    let bytes = packing.map_or(units * BLOCK as u32, Packing::bytes);
    let own = references.own(bytes);
    if packing.is_some() {
        // Frames lie one behind the other by bytes.
        let len: usize = own.iter().map(|part| part.len()).sum();
        if len == 0 {
            return Vec::new();
        }
        let mut pages = crate::buffer::Pages::zeroed(len.next_multiple_of(BLOCK));
        let mut at = 0;
        for part in own {
            let bytes = &pieces[0].bytes()[part.start as usize..part.end as usize];
            pages.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        return vec![pages.freeze()];
    }
    let (mut kept, mut begin) = (Vec::new(), 0);
    for piece in pieces {
        let end = begin + piece.len() as u32;
        for part in &own {
            let (from, to) = (part.start.max(begin), part.end.min(end));
            if from < to {
                kept.push(piece.slice((from - begin) as usize..(to - begin) as usize));
            }
        }
        begin = end;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK32: u32 = BLOCK as u32;

    fn hashes(of: impl IntoIterator<Item = u8>) -> Vec<Hash> {
        of.into_iter().map(|of| [of; 16]).collect()
    }

    fn index_of(copies: &[(u64, &[u8])]) -> ShareIndex {
        let mut index = ShareIndex::new(10_000);
        for (first, of) in copies {
            let entries = (0..).zip(hashes(of.iter().copied()));
            let entry = |(at, hash)| Entry { at: at * BLOCK32, len: BLOCK as u16, proven: true, hash };
            let entries = entries.map(entry);
            index.add(first * BLOCK as u64, entries.collect());
        }
        index
    }

    fn runs(index: &mut ShareIndex, of: Vec<Hash>) -> Vec<(u32, u32, u64)> {
        let references = found(index, None, &of, |_, _| true);
        references.iter().map(|run| (run.frame, run.frames, run.place / BLOCK as u64)).collect()
    }

    #[test]
    fn a_copy_is_found_in_one_run_also_where_blocks_repeat() {
        let image: Vec<u8> = (0..60).map(|at| if at % 5 == 0 { 200 } else { at }).collect();
        let mut index = index_of(&[(100, &image)]);
        assert_eq!(runs(&mut index, hashes(image.clone())), [(0, 60, 100)]);
        assert_eq!(runs(&mut index, hashes(image[13..50].to_vec())), [(0, 37, 113)]);
        // What was changed in the middle is its own.
        let mut changed = image.clone();
        changed[30] = 255;
        assert_eq!(runs(&mut index, hashes(changed)), [(0, 30, 100), (31, 29, 131)]);
    }

    #[test]
    fn short_runs_are_left_and_the_longest_are_taken() {
        let image: Vec<u8> = (0..250).collect();
        let mut index = index_of(&[(10, &image)]);
        assert_eq!(runs(&mut index, hashes(image[..7].to_vec())), []);
        assert_eq!(runs(&mut index, hashes(image[..8].to_vec())), [(0, 8, 10)]);
        // Two beside each other that lie apart, and more than a page can tell of.
        let mut copy: Vec<u8> = Vec::new();
        for run in 0..20 {
            copy.extend(&image[run * 12..run * 12 + 10]);
            copy.extend(if run == 7 { &image[run * 12 + 2..run * 12 + 2] } else { &[251, 252][..] });
        }
        let told = runs(&mut index, hashes(copy));
        assert_eq!(told.len(), 19);
        assert!(told.iter().all(|run| run.1 == 10) && told[7] == (84, 10, 94) && told[8] == (94, 10, 106));
    }

    #[test]
    fn what_may_not_be_used_is_not() {
        let image: Vec<u8> = (0..40).collect();
        let mut index = index_of(&[(10, &image)]);
        let of = hashes(image);
        let references = found(&mut index, None, &of, |place, _| place != 30 * BLOCK as u64);
        let runs: Vec<_> = references.iter().map(|run| (run.frame, run.frames)).collect();
        assert_eq!(runs, [(0, 20), (21, 19)]);
    }
}
