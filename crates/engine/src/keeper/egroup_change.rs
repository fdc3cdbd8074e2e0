//! Writing and deleting egroups, in steps that a cut may come between.
//! Promises: each step begins when what it relies on is durable. Flushes are shared: one in flight, which
//! covers what had ended before it was submitted.
//! Leaves to others: deleting whole families (`egroup_drop`).

use crate::buffer::{BLOCK, Buffer, zeros};
use crate::checksum::{bound, lacking_sum, lost_sum, unit_checksum};
use crate::formats::layout::{HASHED_RUN_BLOCKS_MAX, run_blocks};
use crate::formats::packing::{Frame, Packing};
use crate::formats::references::References;
use crate::formats::table::{Hash, TablePage, encode_trailer, own_blocks};
use crate::identity::EgroupId;
use crate::interface::{Area, DriveWork};
use crate::keeper::desk::{Caller, Desk, Work};
use crate::keeper::egroups::{Name, Run, Store, Stored};
use crate::keeper::proof::Found;
use crate::keeper::sharing::{Hashed, RUN_BYTES_MIN, own_entries, own_pieces};
use crate::limits::EGROUP_UNITS;
use crate::message::{Answer, Class, Content, Lacking, Refusal, Sharing};
use crate::sabotage::{Bug, planted};
use std::sync::Arc;

/// What is being made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It is being hashed; nothing of it is on its way yet.
    Hash,
    /// What it may refer to is being read; nothing of it is on its way yet.
    Prove,
    /// A new egroup: data and page at once. A cut may leave the page without the data: nobody was told of
    /// this egroup, so that is garbage that its owner will find in the list.
    All,
    /// A new copy of one that exists: the page may come only when the data is durable, because with it
    /// the former copy is gone. And an egroup with hashes: what the page of one tells after an opening is found by others, and by its
    /// owner who writes the same again.
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
    /// Of what is being written, if others may refer to it.
    hashes: Vec<Hash>,
    /// The copy that goes.
    old: Option<Run>,
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
    /// None: nobody waits for it.
    caller: Option<Caller>,
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
    pub sharing: Option<Sharing>,
    pub lacking: Lacking,
}

/// An egroup that is to be written.
pub(super) struct Prepared {
    pub name: Name,
    caller: Caller,
    class: Class,
    replace: bool,
    /// All of it, in whole blocks; where each piece ends.
    pieces: Vec<Buffer>,
    ends: Vec<usize>,
    pub packing: Option<Arc<Packing>>,
    pub checksums: Box<[u32]>,
    blocks: Vec<u64>,
    /// See [`Lacking`].
    lacks_blocks: bool,
    /// See [`Sharing`].
    pub moved_from: Vec<EgroupId>,
}

impl Prepared {
    pub fn units(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// The stored bytes of a frame.
    pub fn bytes_of(&self, frame: &Frame) -> Buffer {
        let bytes = frame.bytes();
        let piece = self.ends.partition_point(|&end| end <= bytes.start);
        let begin = self.ends[piece] - self.pieces[piece].len();
        self.pieces[piece].slice(bytes.start - begin..bytes.end - begin)
    }
}

/// Whether an owner asked the first before the second. A shard numbers what it asks from a number made up at its start, so what
/// others have asked is far away.
fn is_before(first: u64, second: u64) -> bool {
    (1..=u64::from(u32::MAX)).contains(&second.wrapping_sub(first))
}

/// The later of these calls. One of another owner counts from now on.
pub(super) fn newer(former: Option<u64>, call: u64) -> Option<u64> {
    former.filter(|former| is_before(call, *former)).or(Some(call))
}

impl DeleteCall {
    /// All egroups of a family go, and `left` things are to be done.
    pub fn of_family(caller: Option<Caller>, left: usize) -> Self {
        Self { caller, left, family: true }
    }
}

impl Later {
    pub(super) fn is_delete(&self) -> bool {
        matches!(self, Later::Delete(_))
    }
}

impl Store {
    pub fn write(&mut self, caller: Caller, order: WriteOrder, desk: &mut Desk) {
        let name = (caller.family, order.egroup);
        assert!((1..=EGROUP_UNITS).contains(&order.blocks.len()), "an egroup has 1 to {EGROUP_UNITS} units");
        assert!(order.content.units() == order.blocks.len(), "each unit of an egroup has one vDisk block");
        if self.changing.contains_key(&name) {
            return self.later.entry(name).or_default().push_back(Later::Write(caller, order));
        }
        if !order.lacking.is_nothing()
            && let Some(stored) = self.egroups.get_mut(&name)
        {
            // It was not here when its owner asked; by now, what was on its way came, or this very order. Nothing is made worse.
            stored.asked = newer(stored.asked, caller.call);
            return desk.answer(caller, Ok(Answer::EgroupWritten));
        }
        let (pieces, packing, is_lost) = match order.content {
            Content::Units(units) => (aligned(units), None, false),
            Content::Packed { packing, bytes } => (aligned(vec![bytes]), Some(packing), false),
            Content::Lost { units } => (aligned(vec![zeros(BLOCK); units as usize]), None, true),
        };
        let mut checksums = checksums(name, &pieces, packing.as_deref());
        if is_lost && !planted(Bug::LostUnitsSound) {
            checksums.iter_mut().for_each(|checksum| *checksum = lost_sum(*checksum));
        }
        for &frame in order.lacking.frames.iter().filter(|_| !planted(Bug::LackingUnitsSound)) {
            let checksum = &mut checksums[frame as usize];
            *checksum = lacking_sum(*checksum);
        }
        let (_, trailer_crc, _) = encode_trailer(&order.blocks, &[]);
        let same = |stored: &Stored| {
            *stored.checksums == *checksums
                && stored.packing == packing
                && stored.trailer_crc == trailer_crc
                && stored.flushed
        };
        if !order.replace
            && let Some(stored) = self.egroups.get_mut(&name).filter(|stored| same(stored))
        {
            stored.asked = newer(stored.asked, caller.call);
            return desk.answer(caller, Ok(Answer::EgroupWritten));
        }
        let ends = pieces.iter().scan(0, |end, piece| {
            *end += piece.len();
            Some(*end)
        });
        let ends: Vec<usize> = ends.collect();
        let is_worth_it = ends.last().is_some_and(|&bytes| bytes >= RUN_BYTES_MIN as usize);
        let is_whole = !is_lost && order.lacking.is_nothing();
        let sharing = order.sharing.filter(|_| is_worth_it && is_whole);
        let moved_from = sharing.as_ref().map_or(Vec::new(), |sharing| sharing.moved_from.clone());
        let WriteOrder { class, blocks, replace, lacking, .. } = order;
        let prepared = Prepared {
            name,
            caller,
            class,
            replace,
            pieces,
            ends,
            packing,
            checksums,
            blocks,
            lacks_blocks: lacking.blocks,
            moved_from,
        };
        let job = self.number();
        if sharing.is_none() {
            return self.begin_write(job, prepared, References::default(), Vec::new(), desk);
        }
        let change = Change {
            name,
            step: Step::Hash,
            left: 0,
            new: None,
            hashes: Vec::new(),
            old: None,
            writers: vec![caller],
            deleters: Vec::new(),
        };
        self.changing.insert(name, job);
        self.changes.insert(job, change);
        self.sharing.begin(job, prepared);
    }

    /// All of it is hashed: what lies here already is referred to, the rest is written. What of that nobody has seen is read first,
    /// and then it comes here again.
    pub fn write_shared(&mut self, job: u64, hashed: Hashed, desk: &mut Desk) {
        let name = hashed.prepared.name;
        let references = if self.egroups.contains_key(&name) {
            // Something of the copy that is here may be bad, wherever it lies: the new one is all its own, and what comes later finds
            // that.
            self.forget_place_of(name);
            References::default()
        } else {
            match self.look_up(&hashed) {
                Found::Proven(references) => references,
                Found::Doubtful(runs) => {
                    let change = self.changes.get_mut(&job).expect("what is hashed has a change");
                    change.step = Step::Prove;
                    return self.prove(job, hashed, runs, desk);
                }
            }
        };
        self.changes.remove(&job).expect("what is hashed has a change");
        self.changing.remove(&name);
        desk.effects.tally.bytes_shared += u64::from(references.bytes());
        let Hashed { prepared, hashes, .. } = hashed;
        self.begin_write(job, prepared, references, hashes, desk);
        if !self.changes.contains_key(&job) {
            // There was no room for it.
            self.changing.insert(name, job);
            self.end_change(job, name, desk);
        }
    }

    fn begin_write(
        &mut self,
        job: u64,
        prepared: Prepared,
        references: References,
        hashes: Vec<Hash>,
        desk: &mut Desk,
    ) {
        let units = prepared.units();
        let Prepared {
            name, caller, class, replace, pieces, packing, checksums, blocks, lacks_blocks, ..
        } = prepared;
        let own = own_blocks(packing.as_deref(), units, &references);
        let run = run_blocks(own, units, hashes.len() as u32);
        let Some((slot, first)) = self.allocate(run, class) else {
            return desk.refuse(caller, Refusal::NoSpace);
        };
        // Whoever is deleted from now on frees nothing of what this one refers to.
        references.iter().for_each(|reference| self.holds.raise(reference.blocks()));
        let former = self.egroups.get(&name);
        let revision = former.map_or(1, |former| former.revision + 1);
        let old = former.map(Stored::run);
        // The page of an egroup that a map record names already must not be durable before its units: a cut
        // in between would leave a copy that is listed and damaged. What is new is not named before it is
        // flushed whole, so there both go together; but not if others may refer to it after an opening.
        let is_hashed = !hashes.is_empty() && !planted(Bug::SharedBeforeDurable);
        let is_apart = old.is_some() || replace || is_hashed;
        let step = if is_apart { Step::Data } else { Step::All };
        let mut pieces = own_pieces(&pieces, packing.as_deref(), units, &references);
        let (trailer, trailer_crc, hashes_crc) = encode_trailer(&blocks, &hashes);
        pieces.push(trailer);
        let trailer_crc = if lacks_blocks { lacking_sum(trailer_crc) } else { trailer_crc };
        let hashes_crc = (!hashes.is_empty()).then_some(hashes_crc);
        let new = Stored {
            slot,
            revision,
            first,
            trailer_crc,
            hashes_crc,
            references,
            checksums,
            packing,
            flushed: true,
            is_found: false,
            told: false,
            asked: newer(former.and_then(|former| former.asked), caller.call),
        };
        if planted(Bug::SharedBeforeDurable) {
            self.learn(&new, &hashes);
        }
        let mut change = Change {
            name,
            step,
            left: 0,
            new: Some(new),
            hashes,
            old,
            writers: vec![caller],
            deleters: Vec::new(),
        };
        change.write(job, first * BLOCK as u64, pieces, desk);
        if step == Step::All {
            self.write_page(job, &mut change, desk);
        }
        self.changing.insert(name, job);
        self.changes.insert(job, change);
    }

    /// What this egroup has of its own is durable: others may refer to it.
    pub fn learn(&mut self, stored: &Stored, hashes: &[Hash]) {
        let packing = stored.packing.as_deref();
        let entries = own_entries(packing, stored.units(), &stored.references, hashes, true);
        self.sharing.index.add(stored.first * BLOCK as u64, entries);
    }

    /// What lies where this egroup lies is not found any more.
    fn forget_place_of(&mut self, name: Name) {
        let Self { sharing, egroups, .. } = self;
        let Some(stored) = egroups.get(&name) else { return };
        let own = stored.first..stored.first + u64::from(stored.own_blocks());
        let places = stored.references.iter().map(|reference| reference.blocks()).chain([own]);
        places.for_each(|blocks| {
            sharing.index.forget(blocks.start * BLOCK as u64..blocks.end * BLOCK as u64);
        });
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
            hashes_crc: new.hashes_crc,
            references: new.references.clone(),
            checksums: new.checksums.clone(),
            packing: new.packing.clone(),
        };
        let offset = self.layout.page_offset(new.slot);
        change.write(job, offset, vec![page.encode()], desk);
    }

    /// See [`crate::message::Question::DeleteEgroups`]. It may be a repetition that was under way for long, of what was done and
    /// answered: what its owner has put here since stays.
    pub fn delete(&mut self, caller: Caller, egroups: &[EgroupId], desk: &mut Desk) {
        let call = self.number();
        self.deletes.insert(call, DeleteCall { caller: Some(caller), left: 1, family: false });
        for name in egroups.iter().map(|egroup| (caller.family, *egroup)) {
            if planted(Bug::LateDeletion) || !self.was_put_since(caller.call, &name) {
                self.delete_one(call, name, desk);
            }
        }
        self.count_deleted(call, desk);
    }

    /// Whether its owner has asked for this egroup to be put here, or was told that it is here, after it asked for `call`.
    fn was_put_since(&self, call: u64, name: &Name) -> bool {
        let stored = self.egroups.get(name).and_then(|stored| stored.asked);
        let change = self.changing.get(name).map(|job| &self.changes[job]);
        let writers = change.into_iter().flat_map(|change| &change.writers).map(|writer| writer.call);
        let later = self.later.get(name).into_iter().flatten().filter_map(|later| match later {
            Later::Write(writer, _) => Some(writer.call),
            Later::Delete(_) => None,
        });
        stored.into_iter().chain(writers).chain(later).any(|asked| is_before(call, asked))
    }

    /// A name goes, now or when it has gone through its change: one more thing that a call waits for.
    pub fn delete_one(&mut self, call: u64, name: Name, desk: &mut Desk) {
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
        match self.take(name) {
            Some(stored) => {
                let job = self.erase_page(name, stored.run(), vec![call], desk);
                self.changing.insert(name, job);
            }
            None => self.count_deleted(call, desk),
        }
    }

    /// Erases a page found at opening that does not count, whatever its name is going through.
    pub fn erase_stray(&mut self, name: Name, run: Run, desk: &mut Desk) {
        self.erase_page(name, run, Vec::new(), desk);
    }

    /// Erases the page that names a run. The run stays taken until that is durable, and what it refers to: else a cut could
    /// leave two pages that name it.
    fn erase_page(&mut self, name: Name, run: Run, deleters: Vec<u64>, desk: &mut Desk) -> u64 {
        let job = self.number();
        let offset = self.layout.page_offset(run.slot);
        let mut change = Change {
            name,
            step: Step::Erase,
            left: 0,
            new: None,
            hashes: Vec::new(),
            old: Some(run),
            writers: Vec::new(),
            deleters,
        };
        change.write(job, offset, vec![zeros(BLOCK)], desk);
        self.changes.insert(job, change);
        self.erasures += 1;
        job
    }

    /// One of the things that a call to delete waits for is done.
    pub fn count_deleted(&mut self, call: u64, desk: &mut Desk) {
        let waiting = self.deletes.get_mut(&call).expect("a call is answered when nothing is left");
        waiting.left -= 1;
        if waiting.left == 0 {
            let waiting = self.deletes.remove(&call).expect("just seen");
            if let Some(caller) = waiting.caller {
                desk.answer(caller, Ok(if waiting.family { Answer::Dropped } else { Answer::Deleted }));
            }
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
            let is_submitted = |change: &Change| !matches!(change.step, Step::Hash | Step::Prove);
            let submitted = self.changes.iter().filter(|(_, change)| is_submitted(change));
            self.ended = submitted.map(|(job, _)| *job).collect();
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
            Step::Hash | Step::Prove => unreachable!("nothing of what is hashed has been submitted"),
            Step::All => self.tell_written(&mut change, desk),
            Step::Data => {
                change.step = Step::Page;
                self.write_page(job, &mut change, desk);
            }
            Step::Page => {
                self.tell_written(&mut change, desk);
                change.step = Step::EraseFormer;
                if let Some(slot) = change.old.as_ref().map(|old| old.slot) {
                    change.write(job, self.layout.page_offset(slot), vec![zeros(BLOCK)], desk);
                }
            }
            Step::EraseFormer | Step::Erase => {
                self.erasures -= usize::from(change.step == Step::Erase);
                let old = change.old.take().expect("something was erased");
                self.release(old);
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
        let mut new = change.new.take().expect("something new was written");
        let hashes = std::mem::take(&mut change.hashes);
        if !hashes.is_empty() {
            self.learn(&new, &hashes);
        }
        // The former one may have been listed while this one was written.
        if let Some(asked) = self.egroups.get(&change.name).and_then(|former| former.asked)
            && new.asked.is_none_or(|by| is_before(by, asked))
        {
            new.asked = Some(asked);
        }
        self.put(change.name, new);
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
        let write = DriveWork::Write { offset, pieces, durable: false, awaited: false };
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
    let units = pieces.iter().flat_map(Buffer::block_checksums);
    let sums = units.enumerate().map(|(unit, sum)| bound(family, egroup, unit as u32, sum));
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

const _: () = assert!(HASHED_RUN_BLOCKS_MAX < 1024, "the pieces of an egroup fit one vectored write");
