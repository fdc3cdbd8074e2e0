//! Reading units and trailers of egroups.
//! Promises: no unit leaves without its checksum verified (I7). A fault is read again, unit by unit, so that
//! only what is bad is told to be.

use crate::buffer::{BLOCK, Buffer, Pages, zeros};
use crate::checksum::unit_checksum;
use crate::formats::layout::trailer_blocks;
use crate::formats::table::decode_trailer;
use crate::identity::EgroupId;
use crate::interface::{Area, Damage, DriveWork, Notice};
use crate::keeper::desk::{Caller, Desk, Work};
use crate::keeper::egroups::{Name, Store, Stored};
use crate::message::{Answer, BadUnit, Refusal, UnitRun};
use crate::sabotage::{Bug, planted};

/// Units between two runs that are rather read along than left for a read of their own.
const GAP_UNITS: u32 = 4;

pub(super) struct UnitRead {
    caller: Caller,
    egroup: EgroupId,
    slot: u32,
    runs: Vec<UnitRun>,
    /// In order, not overlapping.
    parts: Vec<Part>,
    /// Reads that have not ended.
    left: usize,
    /// What was bad is being read for the second time.
    again: bool,
}

/// Units read together.
struct Part {
    first: u32,
    count: u32,
    content: Content,
}

enum Content {
    Nothing,
    Whole(Buffer),
    /// Read one by one.
    Units(Vec<Option<Buffer>>),
}

pub(super) struct Describe {
    caller: Caller,
    egroup: EgroupId,
    slot: u32,
}

impl Store {
    /// See [`crate::message::Question::ReadUnits`].
    pub fn read(&mut self, caller: Caller, egroup: EgroupId, runs: Vec<UnitRun>, desk: &mut Desk) {
        let Some(stored) = self.egroups.get(&(caller.family, egroup)) else {
            return Self::refuse_unknown(caller, desk);
        };
        let (slot, first, units) = (stored.slot, stored.first, stored.units());
        let parts = parts_of(&runs, units);
        let job = self.number();
        let mut read = UnitRead { caller, egroup, slot, runs, parts, left: 0, again: false };
        for (index, part) in read.parts.iter().enumerate() {
            let offset = (first + u64::from(part.first)) * BLOCK as u64;
            let len = part.count * BLOCK as u32;
            desk.submit(Area::Data, DriveWork::Read { offset, len }, Work::Units { job, part: index });
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
        if let Some(bytes) = bytes {
            assert!(bytes.len() == part.count as usize * BLOCK, "a drive reads as much as was asked for");
            part.content = Content::Whole(bytes);
        }
        read.left -= 1;
        if read.left == 0 {
            self.finish_read(job, desk);
        }
    }

    /// One unit was read again; None if it could not be.
    pub fn on_unit_read(
        &mut self,
        job: u64,
        part: usize,
        index: usize,
        bytes: Option<Buffer>,
        desk: &mut Desk,
    ) {
        let read = self.reads.get_mut(&job).expect("a read stays until all of it has ended");
        match &mut read.parts[part].content {
            Content::Units(units) => units[index] = bytes,
            Content::Nothing | Content::Whole(_) => {
                unreachable!("single units are read of parts that were bad")
            }
        }
        read.left -= 1;
        if read.left == 0 {
            self.finish_read(job, desk);
        }
    }

    fn finish_read(&mut self, job: u64, desk: &mut Desk) {
        let mut read = self.reads.remove(&job).expect("the caller knows it");
        let name = (read.caller.family, read.egroup);
        let Some(stored) = self.egroups.get_mut(&name).filter(|stored| stored.slot == read.slot) else {
            // Deleted or replaced while it was read: what was read means nothing. Look again.
            self.end_reading(read.slot, desk);
            return self.read(read.caller, read.egroup, read.runs, desk);
        };
        let outcome: Vec<_> = read.runs.iter().map(|run| read.units(name, stored, *run)).collect();
        if outcome.iter().any(Result::is_err) {
            if !read.again && read.read_bad_ones_again(job, name, stored, desk) {
                self.reads.insert(job, read);
                return;
            }
            tell_damage(name, stored, desk);
        }
        self.end_reading(read.slot, desk);
        desk.answer(read.caller, Ok(Answer::Units(outcome)));
    }

    /// See [`crate::message::Question::DescribeEgroup`].
    pub fn describe(&mut self, caller: Caller, egroup: EgroupId, desk: &mut Desk) {
        let Some(stored) = self.egroups.get(&(caller.family, egroup)) else {
            return Self::refuse_unknown(caller, desk);
        };
        let (slot, units) = (stored.slot, stored.units());
        let offset = (stored.first + u64::from(units)) * BLOCK as u64;
        let len = trailer_blocks(units) as u32 * BLOCK as u32;
        let job = self.number();
        desk.submit(Area::Data, DriveWork::Read { offset, len }, Work::Trailer { job });
        self.readers[slot as usize] += 1;
        self.describes.insert(job, Describe { caller, egroup, slot });
    }

    /// A trailer was read; None if it could not be.
    pub fn on_trailer_read(&mut self, job: u64, bytes: Option<Buffer>, desk: &mut Desk) {
        let Describe { caller, egroup, slot } = self.describes.remove(&job).expect("a read ends once");
        self.end_reading(slot, desk);
        let name = (caller.family, egroup);
        let Some(stored) = self.egroups.get_mut(&name).filter(|stored| stored.slot == slot) else {
            return self.describe(caller, egroup, desk);
        };
        let bytes = bytes.unwrap_or_else(|| zeros(0));
        match decode_trailer(bytes.bytes(), stored.units(), stored.trailer_crc) {
            Some(blocks) => desk.answer(caller, Ok(Answer::Egroup { blocks })),
            None => {
                // Without its trailer the copy is not whole; another member has to say.
                tell_damage(name, stored, desk);
                desk.refuse(caller, Refusal::NotFound);
            }
        }
    }
}

/// What has to be read for `runs` of an egroup of `units`.
fn parts_of(runs: &[UnitRun], units: u32) -> Vec<Part> {
    let inside = |run: &&UnitRun| run.count > 0 && run.first < units && run.count <= units - run.first;
    let part = |run: &UnitRun| Part { first: run.first, count: run.count, content: Content::Nothing };
    if let [run] = runs {
        return std::iter::once(run).filter(inside).map(part).collect();
    }
    let mut sorted: Vec<&UnitRun> = runs.iter().filter(inside).collect();
    sorted.sort_unstable();
    let mut parts: Vec<Part> = Vec::with_capacity(sorted.len());
    for run in sorted {
        match parts.last_mut() {
            Some(last) if run.first <= last.first + last.count + GAP_UNITS => {
                last.count = last.count.max(run.first + run.count - last.first);
            }
            _ => parts.push(part(run)),
        }
    }
    parts
}

fn is_sound((family, egroup): Name, stored: &Stored, unit: u32, bytes: &[u8]) -> bool {
    planted(Bug::ChecksumNotChecked)
        || unit_checksum(family, egroup, unit, bytes) == stored.checksums[unit as usize]
}

fn tell_damage((family, egroup): Name, stored: &mut Stored, desk: &mut Desk) {
    if !stored.told {
        stored.told = true;
        let damage = Damage::CopyBad { family, egroup };
        desk.notice(Notice::Damage { drive: desk.drive, damage });
    }
}

impl UnitRead {
    /// The bytes of one run, verified.
    fn units(&self, name: Name, stored: &Stored, run: UnitRun) -> Result<Buffer, BadUnit> {
        if run.count == 0 {
            return Ok(zeros(0));
        }
        let at = self.parts.partition_point(|part| part.first + part.count <= run.first);
        let holds =
            |part: &&Part| part.first <= run.first && run.first + run.count <= part.first + part.count;
        let part = self.parts.get(at).filter(holds).ok_or(BadUnit { unit: run.first })?;
        let start = (run.first - part.first) as usize;
        match &part.content {
            Content::Nothing => Err(BadUnit { unit: run.first }),
            Content::Whole(bytes) => {
                let bytes = bytes.slice(start * BLOCK..(start + run.count as usize) * BLOCK);
                let mut units = (run.first..).zip(bytes.bytes().chunks_exact(BLOCK));
                match units.find(|(unit, bytes)| !is_sound(name, stored, *unit, bytes)) {
                    Some((unit, _)) => Err(BadUnit { unit }),
                    None => Ok(bytes),
                }
            }
            Content::Units(units) => {
                let mut pages = Pages::zeroed(run.count as usize * BLOCK);
                let places = pages.bytes_mut().chunks_exact_mut(BLOCK);
                for ((unit, bytes), place) in (run.first..).zip(&units[start..]).zip(places) {
                    let bytes = bytes.as_ref().filter(|bytes| is_sound(name, stored, unit, bytes.bytes()));
                    place.copy_from_slice(bytes.ok_or(BadUnit { unit })?.bytes());
                }
                Ok(pages.freeze())
            }
        }
    }

    /// Reads each unit that is wanted and bad again alone: the fault may be a neighbour's, or have
    /// passed. False if there is nothing to read again.
    fn read_bad_ones_again(&mut self, job: u64, name: Name, stored: &Stored, desk: &mut Desk) -> bool {
        self.again = true;
        for (index, part) in self.parts.iter_mut().enumerate() {
            let whole = match std::mem::replace(&mut part.content, Content::Nothing) {
                Content::Whole(bytes) => Some(bytes),
                Content::Nothing | Content::Units(_) => None,
            };
            let mut units = Vec::with_capacity(part.count as usize);
            for at in 0..part.count {
                let unit = part.first + at;
                let bytes = whole.as_ref().map(|bytes| bytes.block(at as usize));
                let bytes = bytes.filter(|bytes| is_sound(name, stored, unit, bytes.bytes()));
                let wanted = self.runs.iter().any(|run| (run.first..run.first + run.count).contains(&unit));
                if bytes.is_none() && wanted {
                    let offset = (stored.first + u64::from(unit)) * BLOCK as u64;
                    let read = DriveWork::Read { offset, len: BLOCK as u32 };
                    desk.submit(Area::Data, read, Work::Unit { job, part: index, index: at as usize });
                    self.left += 1;
                }
                units.push(bytes);
            }
            part.content = Content::Units(units);
        }
        self.left > 0
    }
}
