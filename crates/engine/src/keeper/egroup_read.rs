//! Reading units, frames and trailers of egroups.
//! Promises: nothing leaves without its checksum verified (I7). A fault is read again, frame by frame, so that
//! only what is bad is told to be. (Of an egroup that is not packed every unit is a frame.)

use crate::buffer::{BLOCK, Buffer, Pages, zeros};
use crate::checksum::{bound, lost_sum};
use crate::codec::{Codec, Decompressor};
use crate::formats::packing::{Frame, frames_between};
use crate::formats::table::decode_trailer;
use crate::identity::EgroupId;
use crate::interface::{Area, Damage, DriveWork, Notice};
use crate::keeper::desk::{Caller, Desk, Work};
use crate::keeper::egroups::{Name, Store, Stored};
use crate::message::{Answer, BadUnit, PackedFrame, UnitRun};
use crate::sabotage::{Bug, planted};
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks between two runs that are rather read along than left for a read of their own.
const GAP_BLOCKS: u64 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Units,
    /// And those frames that are compressed.
    UnitsAndFrames,
    /// As they are stored.
    Frames,
}

pub(super) struct UnitRead {
    caller: Caller,
    egroup: EgroupId,
    slot: u32,
    wanted: Wanted,
    runs: Vec<UnitRun>,
    /// In order, not overlapping.
    parts: Vec<Part>,
    /// Blocks of frames that were read again alone, by their first unit.
    again: BTreeMap<u32, Buffer>,
    /// Reads that have not ended.
    left: usize,
    /// What was bad is being read for the second time.
    is_again: bool,
}

/// Blocks of the data area read together.
struct Part {
    blocks: Range<u64>,
    /// None if they could not be read.
    bytes: Option<Buffer>,
}

pub(super) struct Describe {
    caller: Caller,
    egroup: EgroupId,
    slot: u32,
    /// It was not sound at first: a bit may have changed on its way.
    is_again: bool,
}

impl Store {
    /// See [`crate::message::Question::ReadUnits`].
    pub fn read_units(
        &mut self,
        caller: Caller,
        egroup: EgroupId,
        runs: Vec<UnitRun>,
        frames: bool,
        desk: &mut Desk,
    ) {
        let wanted = if frames { Wanted::UnitsAndFrames } else { Wanted::Units };
        self.read(caller, egroup, wanted, runs, desk);
    }

    /// See [`crate::message::Question::ReadFrames`].
    pub fn read_frames(&mut self, caller: Caller, egroup: EgroupId, runs: Vec<UnitRun>, desk: &mut Desk) {
        self.read(caller, egroup, Wanted::Frames, runs, desk);
    }

    fn read(
        &mut self,
        caller: Caller,
        egroup: EgroupId,
        wanted: Wanted,
        runs: Vec<UnitRun>,
        desk: &mut Desk,
    ) {
        let Some(stored) = self.egroups.get(&(caller.family, egroup)) else {
            desk.effects.tally.map_misses += 1;
            return Self::refuse_unknown(caller, desk);
        };
        desk.effects.tally.map_hits += 1;
        let slot = stored.slot;
        let parts = parts_of(&runs, stored);
        let job = self.number();
        let again = BTreeMap::new();
        let mut read =
            UnitRead { caller, egroup, slot, wanted, runs, parts, again, left: 0, is_again: false };
        for (index, part) in read.parts.iter().enumerate() {
            desk.submit(Area::Data, read_of(&part.blocks), Work::Units { job, part: index });
            read.left += 1;
        }
        self.readers[slot as usize] += 1;
        let waits = read.left > 0;
        self.reads.insert(job, read);
        if !waits {
            self.finish_read(job, desk);
        }
    }

    /// A part was read; None if it could not be.
    pub fn on_units_read(&mut self, job: u64, part: usize, bytes: Option<Buffer>, desk: &mut Desk) {
        let read = self.reads.get_mut(&job).expect("a read stays until all of it has ended");
        let part = &mut read.parts[part];
        let whole =
            |bytes: &Buffer| bytes.len() as u64 == (part.blocks.end - part.blocks.start) * BLOCK as u64;
        assert!(bytes.as_ref().is_none_or(whole), "a drive reads as much as was asked for");
        part.bytes = bytes;
        read.left -= 1;
        if read.left == 0 {
            self.finish_read(job, desk);
        }
    }

    /// The frame that begins with `unit` was read again; None if it could not be.
    pub fn on_frame_read(&mut self, job: u64, unit: u32, bytes: Option<Buffer>, desk: &mut Desk) {
        let read = self.reads.get_mut(&job).expect("a read stays until all of it has ended");
        read.again.extend(bytes.map(|bytes| (unit, bytes)));
        read.left -= 1;
        if read.left == 0 {
            self.finish_read(job, desk);
        }
    }

    fn finish_read(&mut self, job: u64, desk: &mut Desk) {
        let Self { reads, egroups, decompressor, sharing, .. } = self;
        let mut read = reads.remove(&job).expect("the caller knows it");
        let name = (read.caller.family, read.egroup);
        let Some(stored) = egroups.get_mut(&name).filter(|stored| stored.slot == read.slot) else {
            // Deleted or replaced while it was read: what was read means nothing. Look again.
            self.end_reading(read.slot);
            return self.read(read.caller, read.egroup, read.wanted, read.runs, desk);
        };
        let outcome: Vec<_> = match read.wanted {
            Wanted::Units | Wanted::UnitsAndFrames => {
                let unpacked = &mut desk.effects.tally.frames_unpacked;
                let together = read.runs.chunk_by(|one, next| is_one_frame(stored, one, next));
                let units = together.map(|runs| read.units_of(name, stored, runs, decompressor, unpacked));
                units.flatten().collect()
            }
            Wanted::Frames => read.runs.iter().map(|run| read.frames(name, stored, *run)).collect(),
        };
        if outcome.iter().any(Result::is_err) {
            if !read.is_again && read.read_bad_ones_again(job, name, stored, desk) {
                self.reads.insert(job, read);
                return;
            }
            // Nobody else is to be given what is bad.
            for frame in read.bad_frames(name, stored) {
                let place = stored.place_of(&frame);
                sharing.index.forget(place..place + u64::from(frame.len));
            }
            if outcome.iter().any(|run| run.as_ref().is_err_and(|bad| !bad.is_lost)) {
                tell_damage(name, stored, desk);
            }
        }
        let frames = match &stored.packing {
            Some(packing) if read.wanted == Wanted::UnitsAndFrames => {
                read.packed(name, stored, packing.codec())
            }
            _ => Vec::new(),
        };
        self.end_reading(read.slot);
        let answer = match read.wanted {
            Wanted::UnitsAndFrames if !frames.is_empty() => Answer::UnitsAndFrames(outcome, frames),
            Wanted::Units | Wanted::UnitsAndFrames => Answer::Units(outcome),
            Wanted::Frames => Answer::Frames(outcome),
        };
        desk.answer(read.caller, Ok(answer));
    }

    /// See [`crate::message::Question::DescribeEgroup`].
    pub fn describe(&mut self, caller: Caller, egroup: EgroupId, desk: &mut Desk) {
        self.read_trailer(caller, egroup, false, desk);
    }

    fn read_trailer(&mut self, caller: Caller, egroup: EgroupId, is_again: bool, desk: &mut Desk) {
        let Some(stored) = self.egroups.get(&(caller.family, egroup)) else {
            return Self::refuse_unknown(caller, desk);
        };
        let slot = stored.slot;
        let (first, blocks) = stored.trailer();
        let (offset, len) = (first * BLOCK as u64, blocks as u32 * BLOCK as u32);
        let job = self.number();
        desk.submit(Area::Data, DriveWork::Read { offset, len }, Work::Trailer { job });
        self.readers[slot as usize] += 1;
        self.describes.insert(job, Describe { caller, egroup, slot, is_again });
    }

    /// A trailer was read; None if it could not be.
    pub fn on_trailer_read(&mut self, job: u64, bytes: Option<Buffer>, desk: &mut Desk) {
        let Describe { caller, egroup, slot, is_again } =
            self.describes.remove(&job).expect("a read ends once");
        self.end_reading(slot);
        let name = (caller.family, egroup);
        let Some(stored) = self.egroups.get_mut(&name).filter(|stored| stored.slot == slot) else {
            return self.describe(caller, egroup, desk);
        };
        let bytes = bytes.unwrap_or_else(|| zeros(0));
        let blocks = decode_trailer(bytes.bytes(), stored.units(), stored.trailer_crc);
        match blocks {
            None if !is_again => return self.read_trailer(caller, egroup, true, desk),
            None => tell_damage(name, stored, desk),
            Some(_) => {}
        }
        // Without its trailer the copy is not whole; another member has to say.
        let (blocks, packing) = (blocks.unwrap_or_default(), stored.packing.clone());
        desk.answer(caller, Ok(Answer::Egroup { blocks, packing }));
    }
}

pub(super) fn read_of(blocks: &Range<u64>) -> DriveWork {
    let offset = blocks.start * BLOCK as u64;
    DriveWork::Read { offset, len: (blocks.end - blocks.start) as u32 * BLOCK as u32 }
}

/// The blocks of the data area that a frame lies on.
fn blocks_of(stored: &Stored, frame: &Frame) -> Range<u64> {
    let place = stored.place_of(frame);
    place / BLOCK as u64..(place + u64::from(frame.len)).div_ceil(BLOCK as u64)
}

/// Whether the egroup has the units of this run, which are some.
fn is_inside(run: &UnitRun, stored: &Stored) -> bool {
    let units = stored.units();
    run.count > 0 && run.first < units && run.count <= units - run.first
}

/// The frames that the units of `run` lie in, which are the egroup's.
fn frames_of<'a>(stored: &'a Stored, run: &UnitRun) -> impl Iterator<Item = Frame> + 'a {
    frames_between(run.first..run.first + run.count, |unit| stored.frame_of(unit))
}

/// Whether both runs lie in one frame of several units, the second behind the first.
fn is_one_frame(stored: &Stored, one: &UnitRun, next: &UnitRun) -> bool {
    stored.packing.is_some()
        && is_inside(one, stored)
        && is_inside(next, stored)
        && one.first + one.count <= next.first
        && next.first + next.count <= stored.frame_of(one.first).end()
}

/// What has to be read for `runs` of an egroup.
fn parts_of(runs: &[UnitRun], stored: &Stored) -> Vec<Part> {
    let mut wanted: Vec<Range<u64>> = Vec::new();
    for run in runs.iter().filter(|run| is_inside(run, stored)) {
        if stored.references.is_empty() {
            let last = stored.frame_of(run.first + run.count - 1);
            let first = blocks_of(stored, &stored.frame_of(run.first));
            wanted.push(first.start..blocks_of(stored, &last).end);
            continue;
        }
        // Some of it may lie elsewhere.
        for frame in frames_of(stored, run) {
            let blocks = blocks_of(stored, &frame);
            match wanted.last_mut() {
                Some(last) if (last.start..=last.end).contains(&blocks.start) => {
                    last.end = last.end.max(blocks.end);
                }
                _ => wanted.push(blocks),
            }
        }
    }
    wanted.sort_unstable_by_key(|blocks| (blocks.start, blocks.end));
    let mut parts: Vec<Part> = Vec::with_capacity(wanted.len());
    for blocks in wanted {
        match parts.last_mut() {
            Some(last) if blocks.start <= last.blocks.end + GAP_BLOCKS => {
                last.blocks.end = last.blocks.end.max(blocks.end);
            }
            _ => parts.push(Part { blocks, bytes: None }),
        }
    }
    parts
}

/// `sum`: the CRC-32C of what was read.
fn is_sound((family, egroup): Name, stored: &Stored, frame: &Frame, sum: u32) -> bool {
    if planted(Bug::ChecksumNotChecked) || planted(Bug::FrameNotChecked) && !frame.is_raw() {
        return true;
    }
    bound(family, egroup, frame.first, sum) == stored.checksums[frame.index as usize]
}

/// Whether it is as it was when it came, and was lost by then: see [`lost_sum`].
fn is_lost((family, egroup): Name, stored: &Stored, frame: &Frame, sum: u32) -> bool {
    lost_sum(bound(family, egroup, frame.first, sum)) == stored.checksums[frame.index as usize]
}

pub(super) fn tell_damage((family, egroup): Name, stored: &mut Stored, desk: &mut Desk) {
    if !stored.told {
        stored.told = true;
        let damage = Damage::CopyBad { family, egroup };
        desk.notice(Notice::Damage { drive: desk.drive, damage });
    }
}

impl UnitRead {
    /// What was read of these blocks.
    fn blocks(&self, blocks: Range<u64>) -> Option<Buffer> {
        let at = self.parts.partition_point(|part| part.blocks.end <= blocks.start);
        let part = self.parts.get(at).filter(|part| part.blocks.start <= blocks.start)?;
        let (start, end) = (blocks.start - part.blocks.start, blocks.end - part.blocks.start);
        let bytes = part.bytes.as_ref().filter(|_| blocks.end <= part.blocks.end)?;
        Some(bytes.slice(start as usize * BLOCK..end as usize * BLOCK))
    }

    /// What is told of a frame that is not sound.
    fn bad(&self, name: Name, stored: &Stored, frame: &Frame, unit: u32) -> BadUnit {
        let is_lost =
            self.bytes_of(stored, frame).is_some_and(|bytes| is_lost(name, stored, frame, bytes.checksum()));
        BadUnit { unit, is_lost }
    }

    /// The stored bytes of a frame, as they were read.
    fn bytes_of(&self, stored: &Stored, frame: &Frame) -> Option<Buffer> {
        let blocks = blocks_of(stored, frame);
        let start = (stored.place_of(frame) - blocks.start * BLOCK as u64) as usize;
        let bytes = self.again.get(&frame.first).cloned().or_else(|| self.blocks(blocks))?;
        Some(bytes.slice(start..start + frame.len as usize))
    }

    /// The stored bytes of a frame, verified.
    fn frame(&self, name: Name, stored: &Stored, frame: &Frame) -> Option<Buffer> {
        let bytes = self.bytes_of(stored, frame)?;
        is_sound(name, stored, frame, bytes.checksum()).then_some(bytes)
    }

    /// The bytes of each of these runs, which lie in one frame if they are several: it is unpacked once.
    fn units_of(
        &self,
        name: Name,
        stored: &Stored,
        runs: &[UnitRun],
        decompressor: &mut Decompressor,
        unpacked: &mut u64,
    ) -> Vec<Result<Buffer, BadUnit>> {
        if let [run] = runs {
            return vec![self.units(name, stored, *run, decompressor, unpacked)];
        }
        let (first, last) = (runs[0], runs[runs.len() - 1]);
        let all = UnitRun { first: first.first, count: last.first + last.count - first.first };
        let units = self.units(name, stored, all, decompressor, unpacked);
        let of = |run: &UnitRun| match &units {
            Ok(bytes) => {
                let from = (run.first - all.first) as usize * BLOCK;
                Ok(bytes.slice(from..from + run.count as usize * BLOCK))
            }
            // A frame is sound or not as a whole.
            Err(bad) => Err(BadUnit { unit: run.first, ..*bad }),
        };
        runs.iter().map(of).collect()
    }

    /// The bytes of one run, verified and unpacked.
    fn units(
        &self,
        name: Name,
        stored: &Stored,
        run: UnitRun,
        decompressor: &mut Decompressor,
        unpacked: &mut u64,
    ) -> Result<Buffer, BadUnit> {
        if run.count == 0 {
            return Ok(zeros(0));
        }
        if !is_inside(&run, stored) {
            return Err(BadUnit::damaged(run.first));
        }
        if let Some(bytes) = self.units_as_they_lie(name, stored, run) {
            return Ok(bytes);
        }
        let mut pages = Pages::zeroed(run.count as usize * BLOCK);
        let mut rest = pages.bytes_mut();
        for frame in frames_of(stored, &run) {
            let (from, to) = (frame.first.max(run.first), frame.end().min(run.first + run.count));
            let (out, behind) = rest.split_at_mut((to - from) as usize * BLOCK);
            rest = behind;
            let skip = (from - frame.first) as usize * BLOCK;
            let frame = if planted(Bug::OtherFrame) { self.other_frame(name, stored, frame) } else { frame };
            let bytes =
                self.frame(name, stored, &frame).ok_or_else(|| self.bad(name, stored, &frame, from))?;
            let sound = match &stored.packing {
                Some(packing) if !frame.is_raw() => {
                    let len = frame.units as usize * BLOCK;
                    *unpacked += 1;
                    decompressor.unpack_part(packing.codec(), bytes.bytes(), len, skip, out)
                }
                _ => {
                    out.copy_from_slice(bytes.bytes());
                    true
                }
            };
            if !sound && !planted(Bug::FrameNotChecked) {
                return Err(BadUnit::damaged(from));
            }
        }
        Ok(pages.freeze())
    }

    /// The compressed frames in which what is wanted lies, verified.
    fn packed(&self, name: Name, stored: &Stored, codec: Codec) -> Vec<PackedFrame> {
        let mut packed: Vec<PackedFrame> = Vec::new();
        for run in self.runs.iter().filter(|run| is_inside(run, stored)) {
            for frame in frames_of(stored, run).filter(|frame| !frame.is_raw()) {
                let Frame { first, units, .. } = frame;
                packed.extend(self.frame(name, stored, &frame).map(|bytes| PackedFrame {
                    first,
                    units,
                    codec,
                    bytes,
                }));
            }
        }
        packed.sort_unstable_by_key(|frame| frame.first);
        packed.dedup_by_key(|frame| frame.first);
        packed
    }

    /// Units that are not packed need no copy if all is well.
    fn units_as_they_lie(&self, name: Name, stored: &Stored, run: UnitRun) -> Option<Buffer> {
        if stored.packing.is_some() {
            return None;
        }
        let first = stored.place_of(&Frame::of_unit(run.first)) / BLOCK as u64;
        let lies_at = |unit: u32| stored.place_of(&Frame::of_unit(run.first + unit)) / BLOCK as u64;
        let is_joined = |unit: u32| lies_at(unit) == first + u64::from(unit);
        if !stored.references.is_empty() && !(0..run.count).all(is_joined) {
            return None;
        }
        let bytes = self.blocks(first..first + u64::from(run.count))?;
        let all_sound = (run.first..)
            .zip(bytes.block_checksums())
            .all(|(unit, sum)| is_sound(name, stored, &Frame::of_unit(unit), sum));
        all_sound.then_some(bytes)
    }

    /// The frames of one run as they are stored, verified.
    fn frames(&self, name: Name, stored: &Stored, run: UnitRun) -> Result<Buffer, BadUnit> {
        if !is_inside(&run, stored) {
            return Err(BadUnit::damaged(run.first));
        }
        let mut bytes = Vec::new();
        for frame in frames_of(stored, &run) {
            let sound = self
                .frame(name, stored, &frame)
                .ok_or_else(|| self.bad(name, stored, &frame, frame.first))?;
            bytes.extend_from_slice(sound.bytes());
        }
        Ok(Buffer::copied(&bytes))
    }

    /// Reads each frame that is wanted and bad again alone: the fault may be a neighbour's, or have
    /// passed. False if there is nothing to read again.
    fn read_bad_ones_again(&mut self, job: u64, name: Name, stored: &Stored, desk: &mut Desk) -> bool {
        self.is_again = true;
        for frame in self.bad_frames(name, stored) {
            let work = Work::UnitsAgain { job, unit: frame.first };
            desk.submit(Area::Data, read_of(&blocks_of(stored, &frame)), work);
            self.left += 1;
        }
        self.left > 0
    }

    /// The frames that are wanted and not sound, each once.
    fn bad_frames(&self, name: Name, stored: &Stored) -> Vec<Frame> {
        let mut bad: BTreeMap<u32, Frame> = BTreeMap::new();
        for run in self.runs.iter().filter(|run| is_inside(run, stored)) {
            for frame in frames_of(stored, run) {
                if self.frame(name, stored, &frame).is_none() {
                    bad.insert(frame.first, frame);
                }
            }
        }
        bad.into_values().collect()
    }

    /// A planted bug: the compressed frame behind the one that was meant, if it was read too and has as many units.
    fn other_frame(&self, name: Name, stored: &Stored, frame: Frame) -> Frame {
        let next = (frame.end() < stored.units()).then(|| stored.frame_of(frame.end()));
        let alike = |next: &Frame| !frame.is_raw() && !next.is_raw() && next.units == frame.units;
        next.filter(|next| alike(next) && self.frame(name, stored, next).is_some()).unwrap_or(frame)
    }
}
