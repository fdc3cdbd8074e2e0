//! Reads: newest first, from the overlay, the edits, the leaf pages; then from the good copy that answers first.
//! Promises: nothing is given that was not durable when it was looked up, or not verified (I7); the parts of a
//! read may be looked up at different instants, all of them between the request and its reply.
//! Leaves to others: what is in memory already (`cached.rs`), reading ahead (`ahead.rs`), fetching pages
//! (`map/lookup.rs`), mending bad copies (`curator/audit.rs`).

use super::Volume;
use super::cached::join;
use super::extents::OriginExtents;
use super::origin::OriginAsk;
use super::pattern::Seen;
use super::request::Work;
use super::tried::Tried;
use super::warm::Warming;
use crate::buffer::{BLOCK, Buffer, zeros};
use crate::cache::Place;
use crate::context::{Context, Purpose};
use crate::counters::{ReadSources, Source};
use crate::curator::audit::Fault;
use crate::curator::follow::Touch;
use crate::identity::{Block, DriveId, EgroupId, Generation, Time};
use crate::interface::{Damage, Notice, Reply, RequestError};
use crate::map::lookup::{PRESENT, PageWaiter, Where, may_come_back};
use crate::map::view::ViewWaiter;
use crate::message::{Answer, BadUnit, PackedFrame, Question, Refusal, UnitRun};
use crate::sabotage::{Bug, planted};
use std::collections::{BTreeMap, BTreeSet};

/// Zeros are given in pieces of at most this many blocks.
const ZERO_BLOCKS: u64 = 256;

/// The own copy is read unless another one is expected to answer so much sooner. As long as flash is not overloaded it
/// answers within this time, and then another node would only cost both of them CPU; a disk with a queue does not.
const REMOTE_US: u64 = 1_000;

/// Reads of at least so many bytes are not kept in memory the first time: they would push out what many small ones need,
/// and drives give them quickly.
const LARGE_BYTES: u64 = 256 << 10;

#[derive(Debug)]
enum Target {
    Request(u64),
    /// The old content of a block that is about to be merged.
    Partial {
        work: Work,
        lock: u64,
    },
}

/// What becomes of units when a drive has given them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// They may be read again soon.
    Units,
    /// As a rule they are not: only their names are remembered.
    Names,
    /// The block is about to be written.
    Nothing,
}

#[derive(Debug)]
pub(super) struct Job {
    target: Target,
    /// The present, or the snapshot that is read.
    at: Generation,
    keep: Keep,
    /// Bytes to leave out at the beginning, and how many to give.
    skip: usize,
    len: usize,
    /// Blocks before this one are read to their end.
    pub(super) whole_to: u64,
    /// Pieces by their first block.
    ready: BTreeMap<u64, Buffer>,
    /// Blocks not ready yet.
    missing: u64,
    /// Blocks by where they came from, in the order of [`Source::ALL`].
    blocks: [u64; 7],
}

impl Job {
    /// A part of it is here.
    pub(super) fn give(&mut self, block: Block, data: Buffer, source: Source) {
        self.count(data.blocks() as u64, source);
        self.ready.insert(block.0, data);
    }

    fn count(&mut self, blocks: u64, source: Source) {
        self.missing -= blocks;
        self.blocks[source as usize] += blocks;
    }
}

/// Whom units are asked for.
#[derive(Debug)]
pub(super) enum Reader {
    Job(u64),
    /// A stream that will want them, and reads that do already.
    Ahead(Vec<Waiting>),
    Warming(u64),
}

/// A part of a read that waits for what is read ahead.
#[derive(Debug)]
pub(super) struct Waiting {
    pub job: u64,
    pub block: Block,
    pub count: u64,
    pub since: Time,
}

/// Units asked of one drive, and the blocks they are for.
#[derive(Debug)]
pub(super) struct Ask {
    pub reader: Reader,
    egroup: EgroupId,
    parts: Vec<(Block, UnitRun)>,
    tried: Tried,
}

#[derive(Debug, Default)]
pub(crate) struct Reads {
    last: u64,
    pub(super) jobs: BTreeMap<u64, Job>,
    pub(super) asks: BTreeMap<u64, Ask>,
    /// Runs on their way that were asked for ahead: by egroup and first unit, how many there are, and the ask.
    pub(super) aheads: BTreeMap<(EgroupId, u32), (u32, u64)>,
    pub(super) warmings: BTreeMap<u64, Warming>,
    /// Parts that the origin is asked for.
    pub(super) origin_asks: BTreeMap<u64, OriginAsk>,
    /// Questions for extents that wait for the origin.
    pub(super) origin_extents: BTreeMap<u64, OriginExtents>,
    /// Of this vDisk.
    pub sources: ReadSources,
}

impl Reads {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty() && self.warmings.is_empty()
    }

    /// Whether a read of a client waits for this ask.
    pub(super) fn is_for_client(&self, ask: u64) -> bool {
        self.asks.get(&ask).is_some_and(|ask| matches!(ask.reader, Reader::Job(_)))
    }

    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// Which of these frames, which are in order, the unit lies in.
pub(super) fn frame_of(frames: &[PackedFrame], unit: u32) -> Option<usize> {
    let at = frames.partition_point(|frame| frame.first + frame.units <= unit);
    frames.get(at).is_some_and(|frame| frame.first <= unit).then_some(at)
}

impl Volume {
    pub(crate) fn begin_read(
        &mut self,
        request: u64,
        at: Generation,
        offset: u64,
        len: u64,
        ctx: &mut Context,
    ) {
        let block_bytes = BLOCK as u64;
        let first = offset / block_bytes;
        let count = (offset + len).div_ceil(block_bytes) - first;
        let skip = (offset % block_bytes) as usize;
        let number = self.reads.number();
        let room = ctx.cache.ahead.limit();
        // Of snapshots nothing is read ahead.
        let seen = if at == PRESENT {
            let jobs = &self.reads.jobs;
            self.streams.on_read(offset, len, number, room, ctx.limits, |job| jobs.contains_key(&job))
        } else {
            Seen::default()
        };
        self.pattern.reads_sequential += u64::from(seen.sequential);
        self.pattern.reads_random += u64::from(!seen.sequential);
        // Who reads parts of blocks comes back for the rest.
        let is_whole = skip == 0 && (offset + len).is_multiple_of(block_bytes);
        let keep = if len >= LARGE_BYTES || seen.sequential && is_whole { Keep::Names } else { Keep::Units };
        let job = Job {
            target: Target::Request(request),
            at,
            keep,
            skip,
            len: len as usize,
            whole_to: (offset + len) / block_bytes,
            ready: BTreeMap::new(),
            missing: count,
            blocks: [0; 7],
        };
        self.begin_job(number, job, Block(first), count, ctx);
        if let Some(wanted) = seen.wanted.filter(|_| room > 0) {
            self.read_ahead(wanted, ctx);
        }
    }

    pub(crate) fn begin_partial_read(&mut self, work: Work, lock: u64, ctx: &mut Context) {
        let block = work.block;
        let number = self.reads.number();
        let job = Job {
            target: Target::Partial { work, lock },
            at: PRESENT,
            keep: Keep::Nothing,
            skip: 0,
            len: BLOCK,
            whole_to: 0,
            ready: BTreeMap::new(),
            missing: 1,
            blocks: [0; 7],
        };
        self.begin_job(number, job, block, 1, ctx);
    }

    fn begin_job(&mut self, number: u64, job: Job, block: Block, count: u64, ctx: &mut Context) {
        self.reads.jobs.insert(number, job);
        self.look_up(number, block, count, ctx);
        self.finish_job(number, ctx);
    }

    /// Looks up a part of a read and asks for what lies in egroups.
    pub(crate) fn look_up(&mut self, number: u64, block: Block, count: u64, ctx: &mut Context) {
        let Some(at) = self.reads.jobs.get(&number).map(|job| job.at) else { return };
        if !self.has_version(at) {
            // Dropped meanwhile: what it saw may be gone.
            return self.fail_job(number, RequestError::NoSnapshot, ctx);
        }
        let mut asks: BTreeMap<EgroupId, Vec<(Block, UnitRun)>> = BTreeMap::new();
        for found in self.resolve_at(at, block, count, ctx) {
            // The job is gone when an earlier part failed.
            let Some(job) = self.reads.jobs.get_mut(&number) else { return };
            match found.place {
                Where::Dirty(data) => {
                    ctx.counters.blocks_from_overlay += found.count;
                    job.give(found.block, data, Source::Overlay);
                }
                Where::Zeroes => {
                    ctx.counters.blocks_found_zeroes += found.count;
                    job.count(found.count, Source::Zeroes);
                    let mut at = 0;
                    while at < found.count {
                        let blocks = (found.count - at).min(ZERO_BLOCKS);
                        job.ready.insert(found.block.0 + at, zeros(blocks as usize * BLOCK));
                        at += blocks;
                    }
                }
                Where::Lost => {
                    self.tell_lost(found.block, DriveId::default(), ctx);
                    return self.fail_read(number, found.block, false, ctx);
                }
                Where::At { egroup, unit } => {
                    let run = UnitRun { first: unit, count: found.count as u32 };
                    let missing = self.give_cached(number, found.block, egroup, run, ctx);
                    if !missing.is_empty() {
                        asks.entry(egroup).or_default().extend(missing);
                    }
                }
                Where::Page { leaf, place } => {
                    let waiter = PageWaiter::Read { job: number, block: found.block, count: found.count };
                    self.fetch_leaf(leaf, place, waiter, ctx);
                }
                Where::Origin => self.ask_origin(number, found.block, found.count, ctx),
                Where::View { leaf } => {
                    let waiter = ViewWaiter::Read { job: number, block: found.block, count: found.count };
                    self.fetch_view(at, leaf, waiter, ctx);
                }
            }
        }
        for (egroup, parts) in asks {
            self.read_units(number, egroup, parts, Tried::default(), ctx);
        }
    }

    /// Asks for units of a read, of the nearest member that was not tried yet.
    fn read_units(
        &mut self,
        job: u64,
        egroup: EgroupId,
        parts: Vec<(Block, UnitRun)>,
        mut tried: Tried,
        ctx: &mut Context,
    ) {
        if !self.reads.jobs.contains_key(&job) {
            // Another part of it has failed.
            return;
        }
        let Some(drive) = self.nearest_copy(egroup, tried.drives(), ctx) else {
            if tried.begins_anew() {
                return self.read_units(job, egroup, parts, tried, ctx);
            }
            let has_pieces = parts.iter().any(|(_, run)| run.count > 1) && !planted(Bug::RunsGivenUpWhole);
            if has_pieces && tried.begins_in_pieces() {
                // What is told of is the block that is bad in all of them.
                let units = parts.into_iter().flat_map(|(block, run)| {
                    (0..run.count).map(move |unit| {
                        (block.plus(unit.into()), UnitRun { first: run.first + unit, count: 1 })
                    })
                });
                return self.read_units(job, egroup, units.collect(), tried, ctx);
            }
            // Every copy is bad, missing or away. If the egroup is not the place of these blocks any more, the
            // map has moved on while we asked; otherwise this is the end.
            let away = may_come_back(self, egroup, tried.drives(), ctx);
            let drive = tried.drives().first().copied().unwrap_or_default();
            return self.end_of_copies(job, egroup, parts, (drive, away), ctx);
        };
        self.ask_units(drive, Ask { reader: Reader::Job(job), egroup, parts, tried }, ctx);
    }

    /// No copy has these units; the last one that was asked is on this drive, and some may be on drives that come back.
    fn end_of_copies(
        &mut self,
        job: u64,
        egroup: EgroupId,
        parts: Vec<(Block, UnitRun)>,
        (drive, away): (DriveId, bool),
        ctx: &mut Context,
    ) {
        let (block, run) = parts[0];
        let Some(at) = self.reads.jobs.get(&job).map(|job| job.at) else { return };
        if self.is_place_of(at, block, egroup, run.first) {
            if !away {
                self.tell_lost(block, drive, ctx);
            }
            return self.fail_read(job, block, away, ctx);
        }
        let mut joined: Vec<(Block, UnitRun)> = Vec::new();
        for (block, run) in parts {
            join(&mut joined, block, run);
        }
        for (block, run) in joined {
            self.look_up(job, block, u64::from(run.count), ctx);
        }
        self.finish_job(job, ctx);
    }

    fn tell_lost(&self, block: Block, drive: DriveId, ctx: &mut Context) {
        let damage = Damage::BlockLost { family: self.family, block: block.0 };
        ctx.notice(Notice::Damage { drive, damage });
    }

    /// Asks for units that no read waits for yet. None if nobody can be asked.
    pub(super) fn fetch_units(
        &mut self,
        reader: Reader,
        egroup: EgroupId,
        parts: Vec<(Block, UnitRun)>,
        ctx: &mut Context,
    ) -> Option<u64> {
        let drive = self.nearest_copy(egroup, &[], ctx)?;
        Some(self.ask_units(drive, Ask { reader, egroup, parts, tried: Tried::default() }, ctx))
    }

    /// Copies of these egroups are deleted at a former member.
    pub(crate) fn copies_deleted(&mut self, egroups: &BTreeSet<EgroupId>) {
        for ask in self.reads.asks.values_mut().filter(|ask| egroups.contains(&ask.egroup)) {
            ask.tried.copy_deleted();
        }
        self.map.pages.copies_deleted(egroups);
    }

    fn ask_units(&mut self, drive: DriveId, ask: Ask, ctx: &mut Context) -> u64 {
        self.repacking.note_use(ask.egroup, ctx.now);
        if !ctx.is_near(drive)
            && let Some(touch) = self.touch_of(&ask.reader)
        {
            self.note_touch(ask.egroup, touch, ctx);
        }
        let number = self.reads.number();
        let egroup = ask.egroup;
        let runs = ask.parts.iter().map(|(_, run)| *run).collect();
        // What is read ahead is unpacked already when it is wanted.
        let frames = ctx.cache.limit() > 0 && !matches!(ask.reader, Reader::Ahead(_));
        self.reads.asks.insert(number, ask);
        let question = Question::ReadUnits { egroup, runs, frames, behind: false };
        ctx.ask(self.family, self.epoch, drive, question, Purpose::Units(number));
        number
    }

    /// None: nobody has asked for it.
    fn touch_of(&self, reader: &Reader) -> Option<Touch> {
        match reader {
            Reader::Job(job) => self.reads.jobs.get(job).map(|job| match job.keep {
                Keep::Names => Touch::Sequential,
                Keep::Units | Keep::Nothing => Touch::Random,
            }),
            Reader::Ahead(_) => Some(Touch::Sequential),
            Reader::Warming(_) => None,
        }
    }

    /// The copy to read: on a drive that is up and was not tried; the one that is expected to answer first, where a
    /// question to another node counts for more; spread over equals.
    pub(crate) fn nearest_copy(
        &self,
        egroup: EgroupId,
        tried: &[DriveId],
        ctx: &mut Context,
    ) -> Option<DriveId> {
        let group = self.map.group_of(egroup)?;
        let view = ctx.view.groups.get(&group)?;
        let mut best: Option<((bool, bool, u64, u64), DriveId)> = None;
        // Former members may be the only ones that have it, while the audit copies it to the new ones.
        for (position, &drive) in view.members.iter().chain(&view.former).enumerate() {
            if tried.contains(&drive) || !ctx.is_up(drive) {
                continue;
            }
            let former = position >= view.members.len();
            let way_us = if ctx.is_own(drive) { 0 } else { REMOTE_US };
            // It would only say that it lacks it.
            let lacks = self.audit.is_owed(egroup, drive);
            let rank = (lacks, former, ctx.calls.paces.expected_us(drive) + way_us, ctx.draw.below(1 << 16));
            if best.is_none_or(|(other, _)| rank < other) {
                if let Some((_, other)) = best {
                    ctx.calls.paces.passed_over(other);
                }
                best = Some((rank, drive));
            } else {
                ctx.calls.paces.passed_over(drive);
            }
        }
        best.map(|(_, drive)| drive)
    }

    pub(crate) fn on_units(
        &mut self,
        number: u64,
        drive: DriveId,
        answer: Result<Answer, Refusal>,
        ctx: &mut Context,
    ) {
        let Some(Ask { reader, egroup, parts, mut tried }) = self.reads.asks.remove(&number) else { return };
        let at = match &reader {
            Reader::Job(job) => self.reads.jobs.get(job).map_or(PRESENT, |job| job.at),
            Reader::Ahead(_) | Reader::Warming(_) => PRESENT,
        };
        let (answer, frames) = match answer {
            Ok(Answer::UnitsAndFrames(units, frames)) => (Ok(Answer::Units(units)), frames),
            other => (other, Vec::new()),
        };
        // A drive that is away may come back with its copy.
        let is_away = answer == Err(Refusal::DriveGone);
        let lost = lost_runs(&parts, &answer);
        tried.note(&answer);
        let units = self.units_of(at, egroup, parts, drive, answer, ctx);
        let job = match reader {
            Reader::Job(job) => job,
            Reader::Ahead(waiting) => return self.on_ahead(egroup, units, waiting, ctx),
            Reader::Warming(warming) => return self.on_warm_units(warming, egroup, units, &frames, ctx),
        };
        self.keep_frames(job, egroup, &frames, ctx);
        let source = if ctx.is_near(drive) { Source::Local } else { Source::Remote };
        let mut again: Vec<(Block, UnitRun)> = Vec::new();
        for (block, run, data) in units {
            let Some(data) = data else {
                if !lost.contains(&(block, run)) {
                    again.push((block, run));
                }
                continue;
            };
            let Some(job) = self.reads.jobs.get_mut(&job) else { continue };
            ctx.counters.blocks_from_egroups += u64::from(run.count);
            let first = Place::new(self.family, egroup, run.first);
            for (index, bytes) in (0..).zip(data.bytes().chunks_exact(BLOCK)) {
                if frame_of(&frames, run.first + index).is_some() {
                    continue;
                }
                match job.keep {
                    Keep::Units => ctx.cache.units.insert(first.plus(index), bytes),
                    Keep::Names => ctx.cache.units.note(first.plus(index), bytes),
                    Keep::Nothing => {}
                }
            }
            job.give(block, data, source);
        }
        if !lost.is_empty() {
            // No copy is better, also none that is away.
            self.end_of_copies(job, egroup, lost, (drive, false), ctx);
        }
        if !again.is_empty() {
            if !is_away {
                tried.add(drive);
            }
            self.read_units(job, egroup, again, tried, ctx);
        }
        self.finish_job(job, ctx);
    }

    fn keep_frames(&mut self, job: u64, egroup: EgroupId, frames: &[PackedFrame], ctx: &mut Context) {
        let Some(job) = self.reads.jobs.get(&job) else { return };
        for frame in frames {
            let place = Place::new(self.family, egroup, frame.first);
            match job.keep {
                Keep::Units => ctx.cache.units.insert_frame(place, frame),
                Keep::Names => ctx.cache.units.note_frame(place, frame),
                Keep::Nothing => {}
            }
        }
    }

    /// What a drive gave of each run, verified; None where it has no good copy, which is seen to.
    fn units_of(
        &mut self,
        at: Generation,
        egroup: EgroupId,
        parts: Vec<(Block, UnitRun)>,
        drive: DriveId,
        answer: Result<Answer, Refusal>,
        ctx: &mut Context,
    ) -> Vec<(Block, UnitRun, Option<Buffer>)> {
        let results = match answer {
            Ok(Answer::Units(results)) => results,
            Ok(other) => unreachable!("a read of units is answered by {other:?}"),
            Err(refusal) => {
                // It may have been deleted because nothing is there any more, so look before complaining.
                let (block, run) = parts[0];
                if refusal == Refusal::NotFound && self.is_place_of(at, block, egroup, run.first) {
                    self.on_bad_copy(egroup, drive, Fault::Missing, ctx);
                }
                return parts.into_iter().map(|(block, run)| (block, run, None)).collect();
            }
        };
        assert_eq!(results.len(), parts.len(), "each run has a result");
        let mut units = Vec::with_capacity(parts.len());
        for ((block, run), result) in parts.into_iter().zip(results) {
            match &result {
                Ok(data) => {
                    assert_eq!(data.len(), run.count as usize * BLOCK, "a run is answered whole");
                }
                Err(bad) if bad.is_lost => {}
                Err(_) => self.on_bad_copy(egroup, drive, Fault::Damaged, ctx),
            }
            units.push((block, run, result.ok()));
        }
        units
    }

    /// With the last block the read is answered.
    pub(crate) fn finish_job(&mut self, number: u64, ctx: &mut Context) {
        if self.reads.jobs.get(&number).is_none_or(|job| job.missing > 0) {
            return;
        }
        let job = self.reads.jobs.remove(&number).expect("it was just found");
        if !self.has_version(job.at)
            && let Target::Request(request) = job.target
        {
            // Dropped meanwhile: parts that were looked up late may have found it incomplete.
            return self.reply(request, Reply::Error(RequestError::NoSnapshot), ctx);
        }
        let mut pieces: Vec<Buffer> = Vec::with_capacity(job.ready.len());
        let (mut skip, mut left) = (job.skip, job.len);
        for piece in job.ready.into_values() {
            let from = skip.min(piece.len());
            let to = (from + left).min(piece.len());
            skip -= from;
            left -= to - from;
            if to > from {
                pieces.push(if from == 0 && to == piece.len() { piece } else { piece.slice(from..to) });
            }
        }
        assert_eq!(left, 0, "a read gives all its bytes");
        match job.target {
            Target::Request(request) => {
                self.reads.sources.count(&job.blocks);
                ctx.counters.sources.count(&job.blocks);
                if let Some(source) = Source::slowest(&job.blocks) {
                    self.note_source(request, source, ctx);
                }
                self.reply(request, Reply::Data(pieces), ctx);
            }
            Target::Partial { work, lock } => self.on_partial_read(work, lock, Ok(pieces), ctx),
        }
    }

    /// Blocks that the origin has given.
    pub(super) fn take_from_origin(&mut self, number: u64, block: Block, pieces: Vec<Buffer>) {
        let Some(job) = self.reads.jobs.get_mut(&number) else { return };
        let mut at = block;
        for piece in pieces {
            assert_eq!(piece.len() % BLOCK, 0, "a read of whole blocks is answered in whole blocks");
            let blocks = piece.blocks() as u64;
            job.give(at, piece, Source::Origin);
            at = at.plus(blocks);
        }
    }

    /// A read needs a block of which no copy is to be had: for now, if one is on a drive that may come back.
    pub(crate) fn fail_read(&mut self, number: u64, block: Block, away: bool, ctx: &mut Context) {
        ctx.counters.blocks_lost += u64::from(!away);
        // Part of a write may have been done already: of such a one nobody may be told that it was not.
        let is_partial =
            self.reads.jobs.get(&number).is_some_and(|job| matches!(job.target, Target::Partial { .. }));
        let error = match (away, is_partial) {
            (false, _) => RequestError::Damaged { block: block.0 },
            (true, false) => RequestError::NotServed,
            (true, true) => RequestError::Fenced,
        };
        self.fail_job(number, error, ctx);
    }

    pub(crate) fn fail_job(&mut self, number: u64, error: RequestError, ctx: &mut Context) {
        // Other parts may still be asked for; their answers find no job.
        let Some(job) = self.reads.jobs.remove(&number) else { return };
        match job.target {
            Target::Request(request) => self.reply(request, Reply::Error(error), ctx),
            Target::Partial { work, lock } => self.on_partial_read(work, lock, Err(error), ctx),
        }
    }
}

/// The runs of which a copy says that what they had is lost.
fn lost_runs(parts: &[(Block, UnitRun)], answer: &Result<Answer, Refusal>) -> Vec<(Block, UnitRun)> {
    let Ok(Answer::Units(results)) = answer else { return Vec::new() };
    let is_lost = |result: &Result<Buffer, BadUnit>| result.as_ref().is_err_and(|bad| bad.is_lost);
    let lost =
        parts.iter().zip(results).filter(|(_, result)| is_lost(result) && !planted(Bug::LostAskedAgain));
    lost.map(|(part, _)| *part).collect()
}
