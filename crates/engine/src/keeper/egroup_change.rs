//! Writing and deleting egroups, in steps that a cut may come between.
//! Promises: each step begins when what it relies on is durable. Flushes are shared: one in flight, which
//! covers what had ended before it was submitted.

use crate::buffer::{BLOCK, Buffer, zeros};
use crate::checksum::unit_checksum;
use crate::formats::layout::{RUN_BLOCKS_MAX, run_blocks};
use crate::formats::packing::Packing;
use crate::formats::table::{TablePage, encode_trailer};
use crate::identity::EgroupId;
use crate::interface::{Area, DriveWork};
use crate::keeper::desk::{Caller, Desk, Work};
use crate::keeper::egroups::{Name, Store, Stored};
use crate::limits::EGROUP_UNITS;
use crate::message::{Answer, Class, Content, Refusal};
use crate::sabotage::{Bug, planted};

/// What is being made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// A new egroup: data and page at once. A cut may leave the page without the data: nobody was told of
    /// this egroup, so that is garbage that its owner will find in the list.
    All,
    /// A new copy of one that exists: the page may come only when the data is durable, because with it
    /// the former copy is gone.
    Data,
    /// The page of the new copy.
    Page,
    /// The page of the former copy goes.
    EraseFormer,
    /// The page goes.
    Erase,
}

/// An egroup on its way to the drive or away from it.
pub(super) struct Change {
    name: Name,
    step: Step,
    /// Writes of this step that have not ended.
    left: usize,
    /// What is being written; None when it is only erased.
    new: Option<Stored>,
    /// The copy that goes: its slot, first block and blocks.
    old: Option<(u32, u64, u64)>,
    writers: Vec<Caller>,
    deleters: Vec<u64>,
}

/// What waits until a name has gone through its change.
pub(super) enum Later {
    Write(Caller, WriteOrder),
    Delete(u64),
}

/// A call that waits until egroups are gone.
pub(super) struct DeleteCall {
    caller: Caller,
    left: usize,
    /// The whole family goes.
    family: bool,
}

/// See [`crate::message::Question::WriteEgroup`].
pub(super) struct WriteOrder {
    pub egroup: EgroupId,
    pub class: Class,
    pub content: Content,
    pub blocks: Vec<u64>,
    pub replace: bool,
}

impl Store {
    pub fn write(&mut self, caller: Caller, order: WriteOrder, desk: &mut Desk) {
        let name = (caller.family, order.egroup);
        assert!((1..=EGROUP_UNITS).contains(&order.blocks.len()), "an egroup has 1 to {EGROUP_UNITS} units");
        assert!(order.content.units() == order.blocks.len(), "each unit of an egroup has one vDisk block");
        if self.changing.contains_key(&name) {
            return self.later.entry(name).or_default().push_back(Later::Write(caller, order));
        }
        let blocks = run_blocks(order.content.blocks() as u32, order.blocks.len() as u32);
        let (pieces, packing) = match order.content {
            Content::Units(units) => (aligned(units), None),
            Content::Packed { packing, bytes } => (aligned(vec![bytes]), Some(packing)),
        };
        let checksums = checksums(name, &pieces, packing.as_deref());
        let (trailer, trailer_crc) = encode_trailer(&order.blocks);
        let former = self.egroups.get(&name);
        let same = |stored: &Stored| {
            *stored.checksums == *checksums
                && stored.packing == packing
                && stored.trailer_crc == trailer_crc
                && stored.flushed
        };
        if !order.replace && former.is_some_and(same) {
            return desk.answer(caller, Ok(Answer::EgroupWritten));
        }
        let revision = former.map_or(1, |former| former.revision + 1);
        let old = former.map(|former| (former.slot, former.first, former.blocks()));
        let Some((slot, first)) = self.allocate(blocks, order.class) else {
            return desk.refuse(caller, Refusal::NoSpace);
        };
        // The page of an egroup that a map record names already must not be durable before its units: a cut
        // in between would leave a copy that is listed and damaged. What is new is not named before it is
        // flushed whole, so there both go together.
        let step = if old.is_some() || order.replace { Step::Data } else { Step::All };
        let new =
            Stored { slot, revision, first, trailer_crc, checksums, packing, flushed: true, told: false };
        let job = self.number();
        let mut change =
            Change { name, step, left: 0, new: Some(new), old, writers: vec![caller], deleters: Vec::new() };
        let mut pieces = pieces;
        pieces.push(trailer);
        change.write(job, first * BLOCK as u64, pieces, desk);
        if step == Step::All {
            self.write_page(job, &mut change, desk);
        }
        self.changing.insert(name, job);
        self.changes.insert(job, change);
    }

    fn write_page(&self, job: u64, change: &mut Change, desk: &mut Desk) {
        let (family, egroup) = change.name;
        let new = change.new.as_ref().expect("a page is written of something new");
        let page = TablePage {
            slot: new.slot,
            incarnation: self.incarnation,
            family,
            egroup,
            revision: new.revision,
            first: new.first,
            trailer_crc: new.trailer_crc,
            checksums: new.checksums.clone(),
            packing: new.packing.clone(),
        };
        let offset = self.layout.page_offset(new.slot);
        change.write(job, offset, vec![page.encode()], desk);
    }

    /// See [`crate::message::Question::DeleteEgroups`].
    pub fn delete(&mut self, caller: Caller, egroups: &[EgroupId], desk: &mut Desk) {
        let call = self.number();
        self.deletes.insert(call, DeleteCall { caller, left: 1, family: false });
        for egroup in egroups {
            self.delete_one(call, (caller.family, *egroup), desk);
        }
        self.count_deleted(call, desk);
    }

    /// All egroups of a family go. Returns the number of the call, which waits for one more
    /// [`Store::count_deleted`].
    pub fn delete_family(&mut self, caller: Caller, desk: &mut Desk) -> u64 {
        let call = self.number();
        self.deletes.insert(call, DeleteCall { caller, left: 1, family: true });
        let all = (caller.family, EgroupId(0))..=(caller.family, EgroupId(u64::MAX));
        let stored = self.egroups.range(all.clone()).map(|(name, _)| *name);
        let mut names: Vec<Name> = stored.chain(self.changing.range(all).map(|(name, _)| *name)).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            self.delete_one(call, name, desk);
        }
        call
    }

    fn delete_one(&mut self, call: u64, name: Name, desk: &mut Desk) {
        self.deletes.get_mut(&call).expect("the call is still waiting").left += 1;
        if let Some(job) = self.changing.get(&name) {
            let change = self.changes.get_mut(job).expect("a name that changes has a change");
            if change.step == Step::Erase && !self.later.contains_key(&name) {
                change.deleters.push(call);
            } else {
                self.later.entry(name).or_default().push_back(Later::Delete(call));
            }
            return;
        }
        match self.egroups.remove(&name) {
            Some(stored) => self.erase(name, stored.slot, stored.first, stored.blocks(), vec![call], desk),
            None => self.count_deleted(call, desk),
        }
    }

    fn erase(&mut self, name: Name, slot: u32, first: u64, blocks: u64, deleters: Vec<u64>, desk: &mut Desk) {
        let job = self.erase_page(name, slot, first, blocks, deleters, desk);
        self.changing.insert(name, job);
    }

    /// Erases a page found at opening that does not count, whatever its name is going through.
    pub fn erase_stray(&mut self, name: Name, slot: u32, first: u64, blocks: u64, desk: &mut Desk) {
        self.erase_page(name, slot, first, blocks, Vec::new(), desk);
    }

    /// Erases the page that names a run. The run stays taken until that is durable: else a cut could leave
    /// two pages that name it.
    fn erase_page(
        &mut self,
        name: Name,
        slot: u32,
        first: u64,
        blocks: u64,
        deleters: Vec<u64>,
        desk: &mut Desk,
    ) -> u64 {
        let job = self.number();
        let old = Some((slot, first, blocks));
        let mut change =
            Change { name, step: Step::Erase, left: 0, new: None, old, writers: Vec::new(), deleters };
        change.write(job, self.layout.page_offset(slot), vec![zeros(BLOCK)], desk);
        self.changes.insert(job, change);
        job
    }

    /// One of the things that a call to delete waits for is done.
    pub fn count_deleted(&mut self, call: u64, desk: &mut Desk) {
        let waiting = self.deletes.get_mut(&call).expect("a call is answered when nothing is left");
        waiting.left -= 1;
        if waiting.left == 0 {
            let waiting = self.deletes.remove(&call).expect("just seen");
            desk.answer(waiting.caller, Ok(if waiting.family { Answer::Dropped } else { Answer::Deleted }));
        }
    }

    /// A write of a change ended. It is in the drive's cache.
    pub fn on_written(&mut self, job: u64) {
        let Some(change) = self.changes.get_mut(&job) else {
            assert!(planted(Bug::FlushCoversInFlight), "a change stays until its writes have ended");
            return;
        };
        change.left = change.left.saturating_sub(1);
        if change.left == 0 {
            self.ended.push(job);
        }
    }

    /// Submits a flush if something waits for one and none is in flight.
    pub fn pump_flush(&mut self, desk: &mut Desk) {
        if planted(Bug::FlushCoversInFlight) && self.covered.is_none() {
            self.ended = self.changes.keys().copied().collect();
        }
        if self.covered.is_none() && !self.ended.is_empty() {
            self.covered = Some(std::mem::take(&mut self.ended));
            desk.submit(Area::Data, DriveWork::Flush, Work::Flush);
        }
    }

    /// What had ended before the flush was submitted is durable now.
    pub fn on_flushed(&mut self, desk: &mut Desk) {
        let covered = self.covered.take().expect("a flush comes back only when one is in flight");
        for job in covered {
            self.advance(job, desk);
        }
    }

    fn advance(&mut self, job: u64, desk: &mut Desk) {
        let mut change = self.changes.remove(&job).expect("a change stays until its last step");
        if planted(Bug::FlushCoversInFlight) {
            // As if the writes had ended: the bug is to be found by what it does to data.
            change.left = 0;
        }
        match change.step {
            Step::All => self.tell_written(&mut change, desk),
            Step::Data => {
                change.step = Step::Page;
                self.write_page(job, &mut change, desk);
            }
            Step::Page => {
                self.tell_written(&mut change, desk);
                change.step = Step::EraseFormer;
                if let Some((slot, ..)) = change.old {
                    change.write(job, self.layout.page_offset(slot), vec![zeros(BLOCK)], desk);
                }
            }
            Step::EraseFormer | Step::Erase => {
                let (slot, first, blocks) = change.old.take().expect("something was erased");
                self.release(slot, first, blocks, desk);
                for call in std::mem::take(&mut change.deleters) {
                    self.count_deleted(call, desk);
                }
            }
        }
        if change.left > 0 {
            self.changes.insert(job, change);
        } else {
            self.end_change(job, change.name, desk);
        }
    }

    fn tell_written(&mut self, change: &mut Change, desk: &mut Desk) {
        let new = change.new.take().expect("something new was written");
        self.egroups.insert(change.name, new);
        for caller in std::mem::take(&mut change.writers) {
            desk.answer(caller, Ok(Answer::EgroupWritten));
        }
    }

    /// A name has gone through its change: what waited for that comes next.
    fn end_change(&mut self, job: u64, name: Name, desk: &mut Desk) {
        if self.changing.get(&name) != Some(&job) {
            return;
        }
        self.changing.remove(&name);
        while !self.changing.contains_key(&name) {
            let Some(waiting) = self.later.get_mut(&name) else { return };
            let next = waiting.pop_front();
            if waiting.is_empty() {
                self.later.remove(&name);
            }
            match next {
                Some(Later::Write(caller, order)) => self.write(caller, order, desk),
                Some(Later::Delete(call)) => {
                    self.delete_one(call, name, desk);
                    self.count_deleted(call, desk);
                }
                None => return,
            }
        }
    }
}

impl Change {
    fn write(&mut self, job: u64, offset: u64, pieces: Vec<Buffer>, desk: &mut Desk) {
        self.left += 1;
        let write = DriveWork::Write { offset, pieces, durable: false };
        desk.submit(Area::Data, write, Work::Stored { job });
    }
}

/// One for each frame of the content; what is packed is one piece.
fn checksums((family, egroup): Name, pieces: &[Buffer], packing: Option<&Packing>) -> Box<[u32]> {
    if let (Some(packing), [bytes]) = (packing, pieces) {
        let sums = packing.frames().map(|frame| {
            let bytes = &bytes.bytes()[frame.bytes()];
            unit_checksum(family, egroup, frame.first, bytes)
        });
        return sums.collect();
    }
    let units = pieces.iter().flat_map(|buffer| buffer.bytes().chunks_exact(BLOCK));
    let sums = units.enumerate().map(|(unit, bytes)| unit_checksum(family, egroup, unit as u32, bytes));
    sums.collect()
}

/// The same bytes in page-aligned memory, neighbours joined; copied only where they are not aligned.
fn aligned(units: Vec<Buffer>) -> Vec<Buffer> {
    let mut pieces: Vec<Buffer> = Vec::with_capacity(units.len() + 1);
    for unit in units {
        let is_aligned = (unit.bytes().as_ptr() as usize).is_multiple_of(BLOCK);
        let unit = if is_aligned { unit } else { Buffer::copied(unit.bytes()) };
        match pieces.last_mut() {
            Some(last) if last.is_followed_by(&unit) => *last = last.joined(&unit),
            _ => pieces.push(unit),
        }
    }
    pieces
}

const _: () = assert!(RUN_BLOCKS_MAX < 1024, "the pieces of an egroup fit one vectored write");
