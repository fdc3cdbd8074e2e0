//! Reads: newest first, from the overlay, the edits, the leaf pages; then from the good copy that answers first.
//! Promises: nothing is given that was not durable when it was looked up, or not verified (I7); the parts of a
//! read may be looked up at different instants, all of them between the request and its reply.
//! Leaves to others: fetching pages (`map/lookup.rs`), mending bad copies (`curator/audit.rs`).

use super::Volume;
use super::request::Work;
use crate::buffer::{BLOCK, Buffer, zeros};
use crate::context::{Context, Purpose};
use crate::identity::{Block, DriveId, EgroupId};
use crate::interface::{Damage, Notice, Reply, RequestError};
use crate::map::lookup::{PageWaiter, Where};
use crate::message::{Answer, Question, Refusal, UnitRun};
use std::collections::BTreeMap;

/// Zeros are given in pieces of at most this many blocks.
const ZERO_BLOCKS: u64 = 256;

/// The own copy is read unless another one is expected to answer so much sooner. As long as flash is not overloaded it
/// answers within this time, and then another node would only cost both of them CPU; a disk with a queue does not.
const REMOTE_US: u64 = 1_000;

#[derive(Debug)]
enum Target {
    Request(u64),
    /// The old content of a block that is about to be merged.
    Partial {
        work: Work,
        lock: u64,
    },
}

#[derive(Debug)]
struct Job {
    target: Target,
    /// Bytes to leave out at the beginning, and how many to give.
    skip: usize,
    len: usize,
    /// Pieces by their first block.
    ready: BTreeMap<u64, Buffer>,
    /// Blocks not ready yet.
    missing: u64,
}

/// Units asked of one drive, and the blocks they are for.
#[derive(Debug)]
struct Ask {
    job: u64,
    egroup: EgroupId,
    parts: Vec<(Block, UnitRun)>,
    tried: Vec<DriveId>,
}

#[derive(Debug, Default)]
pub(crate) struct Reads {
    last: u64,
    jobs: BTreeMap<u64, Job>,
    asks: BTreeMap<u64, Ask>,
}

impl Reads {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }
}

impl Volume {
    pub(crate) fn begin_read(&mut self, request: u64, offset: u64, len: u64, ctx: &mut Context) {
        let block_bytes = BLOCK as u64;
        let first = offset / block_bytes;
        let count = (offset + len).div_ceil(block_bytes) - first;
        let skip = (offset % block_bytes) as usize;
        self.begin_job(Target::Request(request), Block(first), count, skip, len as usize, ctx);
    }

    pub(crate) fn begin_partial_read(&mut self, work: Work, lock: u64, ctx: &mut Context) {
        let block = work.block;
        self.begin_job(Target::Partial { work, lock }, block, 1, 0, BLOCK, ctx);
    }

    fn begin_job(
        &mut self,
        target: Target,
        block: Block,
        count: u64,
        skip: usize,
        len: usize,
        ctx: &mut Context,
    ) {
        self.reads.last += 1;
        let number = self.reads.last;
        self.reads.jobs.insert(number, Job { target, skip, len, ready: BTreeMap::new(), missing: count });
        self.look_up(number, block, count, ctx);
        self.finish_job(number, ctx);
    }

    /// Looks up a part of a read and asks for what lies in egroups.
    pub(crate) fn look_up(&mut self, number: u64, block: Block, count: u64, ctx: &mut Context) {
        let mut asks: BTreeMap<EgroupId, Vec<(Block, UnitRun)>> = BTreeMap::new();
        for found in self.resolve(block, count, ctx) {
            // The job is gone when an earlier part failed.
            let Some(job) = self.reads.jobs.get_mut(&number) else { return };
            match found.place {
                Where::Dirty(data) => {
                    ctx.counters.blocks_from_overlay += found.count;
                    job.missing -= found.count;
                    job.ready.insert(found.block.0, data);
                }
                Where::Zeroes => {
                    ctx.counters.blocks_found_zeroes += found.count;
                    job.missing -= found.count;
                    let mut at = 0;
                    while at < found.count {
                        let blocks = (found.count - at).min(ZERO_BLOCKS);
                        job.ready.insert(found.block.0 + at, zeros(blocks as usize * BLOCK));
                        at += blocks;
                    }
                }
                Where::At { egroup, unit } => {
                    let run = UnitRun { first: unit, count: found.count as u32 };
                    asks.entry(egroup).or_default().push((found.block, run));
                }
                Where::Page { leaf, place } => {
                    let waiter = PageWaiter::Read { job: number, block: found.block, count: found.count };
                    self.fetch_leaf(leaf, place, waiter, ctx);
                }
            }
        }
        for (egroup, parts) in asks {
            self.ask_units(number, egroup, parts, Vec::new(), ctx);
        }
    }

    /// Asks the nearest member that was not tried yet.
    fn ask_units(
        &mut self,
        job: u64,
        egroup: EgroupId,
        parts: Vec<(Block, UnitRun)>,
        tried: Vec<DriveId>,
        ctx: &mut Context,
    ) {
        let Some(drive) = self.nearest_copy(egroup, &tried, ctx) else {
            // Every copy is bad, missing or away. If the egroup is not the place of these blocks any more, the
            // map has moved on while we asked; otherwise this is the end.
            let (block, run) = parts[0];
            if self.is_place_of(block, egroup, run.first) {
                ctx.counters.blocks_lost += 1;
                let drive = tried.first().copied().unwrap_or_default();
                let damage = Damage::BlockLost { family: self.family, block: block.0 };
                ctx.notice(Notice::Damage { drive, damage });
                return self.fail_job(job, RequestError::Damaged { block: block.0 }, ctx);
            }
            for (block, run) in parts {
                self.look_up(job, block, u64::from(run.count), ctx);
            }
            return self.finish_job(job, ctx);
        };
        self.reads.last += 1;
        let number = self.reads.last;
        let runs = parts.iter().map(|(_, run)| *run).collect();
        self.reads.asks.insert(number, Ask { job, egroup, parts, tried });
        ctx.ask(self.family, self.epoch, drive, Question::ReadUnits { egroup, runs }, Purpose::Units(number));
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
        let Some(mut ask) = self.reads.asks.remove(&number) else { return };
        ask.tried.push(drive);
        let mut again: Vec<(Block, UnitRun)> = Vec::new();
        match answer {
            Ok(Answer::Units(results)) => {
                assert_eq!(results.len(), ask.parts.len(), "each run has a result");
                for ((block, run), result) in ask.parts.into_iter().zip(results) {
                    match result {
                        Ok(data) => {
                            assert_eq!(data.len(), run.count as usize * BLOCK, "a run is answered whole");
                            if let Some(job) = self.reads.jobs.get_mut(&ask.job) {
                                ctx.counters.blocks_from_egroups += u64::from(run.count);
                                job.missing -= u64::from(run.count);
                                job.ready.insert(block.0, data);
                            }
                        }
                        Err(_) => {
                            self.on_bad_copy(ask.egroup, drive, ctx);
                            again.push((block, run));
                        }
                    }
                }
            }
            Ok(other) => unreachable!("a read of units is answered by {other:?}"),
            Err(refusal) => {
                // It may have been deleted because nothing is there any more, so look before complaining.
                let (block, run) = ask.parts[0];
                if refusal == Refusal::NotFound && self.is_place_of(block, ask.egroup, run.first) {
                    self.on_bad_copy(ask.egroup, drive, ctx);
                }
                again = ask.parts;
            }
        }
        if !again.is_empty() {
            self.ask_units(ask.job, ask.egroup, again, ask.tried, ctx);
        }
        self.finish_job(ask.job, ctx);
    }

    /// With the last block the read is answered.
    pub(crate) fn finish_job(&mut self, number: u64, ctx: &mut Context) {
        if self.reads.jobs.get(&number).is_none_or(|job| job.missing > 0) {
            return;
        }
        let job = self.reads.jobs.remove(&number).expect("it was just found");
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
            Target::Request(request) => self.reply(request, Reply::Data(pieces), ctx),
            Target::Partial { work, lock } => self.on_partial_read(work, lock, Ok(pieces), ctx),
        }
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
