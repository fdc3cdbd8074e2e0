//! Which parts of a range hold data: from the overlay and the map, without touching data. A clone asks its origin about what
//! it has from there.
//! Promises: what is told as a hole reads as zeros. The answer may end before the range does.

use super::Volume;
use super::origin::Wanted;
use crate::buffer::{BLOCK, Buffer};
use crate::context::Context;
use crate::identity::{Block, Generation};
use crate::interface::{Extent, Reply, RequestError};
use crate::limits::LEAF_BLOCKS;
use crate::map::lookup::{Located, PageWaiter, Where};
use crate::map::view::ViewWaiter;
use std::collections::BTreeMap;

/// Leaves looked at for one answer: the rest is asked for again.
const LEAVES_MAX: u64 = 4096;

/// Pages that one question waits for at most.
const FETCHED_MAX: u32 = 64;

/// Shorter runs of a clone's origin are told as data, and so are those beyond so many: each would be a question of its own.
const ORIGIN_BLOCKS_MIN: u64 = 16;
const ORIGIN_RUNS_MAX: usize = 32;

/// A question that waits for a page. It begins anew when the page is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExtentsJob {
    pub request: u64,
    /// The present, or a snapshot.
    pub at: Generation,
    /// If only what may differ from this snapshot is to be told as data.
    pub than: Option<Generation>,
    pub offset: u64,
    pub len: u64,
    pub limit: u32,
    /// Pages fetched for it so far: a bound, should the cache be too small to hold them all.
    pub fetched: u32,
}

/// What is known of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Data,
    Hole,
    /// The origin has to say.
    Origin,
}

impl Told {
    fn data(is_data: bool) -> Self {
        if is_data { Told::Data } else { Told::Hole }
    }
}

/// A question whose answer waits for what the origin says of some of its ranges. These were known at one instant, and an
/// origin never changes.
#[derive(Debug)]
pub(super) struct OriginExtents {
    job: ExtentsJob,
    ranges: Vec<(u64, Told)>,
    /// By the number of the range.
    answers: BTreeMap<usize, Vec<Extent>>,
    left: usize,
}

/// What is known of a part of the range.
enum Found {
    /// Blocks, and what they are; in order, without gaps.
    Ranges(Vec<(u64, Told)>),
    /// A page is on its way, and the question goes on when it is there.
    Later,
    /// Enough pages were waited for.
    Unknown,
}

impl Volume {
    pub(crate) fn begin_extents(
        &mut self,
        request: u64,
        at: Generation,
        offset: u64,
        len: u64,
        limit: u32,
        ctx: &mut Context,
    ) {
        let job = ExtentsJob { request, at, than: None, offset, len, limit, fetched: 0 };
        self.continue_extents(job, ctx);
    }

    /// Tells as data what may differ between `than` and `at`.
    #[allow(clippy::too_many_arguments, reason = "all of them are the question")]
    pub(crate) fn begin_differences(
        &mut self,
        request: u64,
        than: Generation,
        at: Generation,
        offset: u64,
        len: u64,
        limit: u32,
        ctx: &mut Context,
    ) {
        let job = ExtentsJob { request, at, than: Some(than), offset, len, limit, fetched: 0 };
        self.continue_extents(job, ctx);
    }

    pub(crate) fn continue_extents(&mut self, mut job: ExtentsJob, ctx: &mut Context) {
        if !self.has_version(job.at) || job.than.is_some_and(|than| !self.has_version(than)) {
            return self.reply(job.request, Reply::Error(RequestError::NoSnapshot), ctx);
        }
        let block_bytes = BLOCK as u64;
        let end = (job.offset + job.len).div_ceil(block_bytes);
        let mut at = job.offset / block_bytes;
        let last_leaf = at / LEAF_BLOCKS + LEAVES_MAX;
        // Ranges of blocks, told apart only by whether they hold data.
        let mut ranges: Vec<(u64, Told)> = Vec::new();
        while at < end && at / LEAF_BLOCKS < last_leaf && ranges.len() <= job.limit as usize {
            let count = (LEAF_BLOCKS - at % LEAF_BLOCKS).min(end - at);
            match self.find_extents(&mut job, Block(at), count, ctx) {
                Found::Later => return,
                Found::Unknown => {
                    // Tell what is known, or, if that is nothing, the safe answer.
                    if ranges.is_empty() {
                        ranges.push((count, Told::Data));
                    }
                    break;
                }
                Found::Ranges(found) => {
                    for (count, told) in found {
                        match ranges.last_mut() {
                            Some((blocks, same)) if *same == told => *blocks += count,
                            _ => ranges.push((count, told)),
                        }
                    }
                }
            }
            at += count;
        }
        self.ask_origin_of_extents(job, ranges, ctx);
    }

    /// Asks the origin about its ranges, or answers if there are none.
    fn ask_origin_of_extents(&mut self, job: ExtentsJob, mut ranges: Vec<(u64, Told)>, ctx: &mut Context) {
        let mut runs = Vec::new();
        let mut at = job.offset / BLOCK as u64;
        for (number, (count, told)) in ranges.iter_mut().enumerate() {
            if *told == Told::Origin {
                if *count >= ORIGIN_BLOCKS_MIN && runs.len() < ORIGIN_RUNS_MAX {
                    runs.push((number, Block(at), *count));
                } else {
                    *told = Told::Data;
                }
            }
            at += *count;
        }
        if runs.is_empty() {
            let extents = in_bytes(&job, &ranges, &BTreeMap::new());
            return self.reply(job.request, Reply::Extents(extents), ctx);
        }
        let question = self.reads.number();
        let waits = OriginExtents { job, ranges, answers: BTreeMap::new(), left: runs.len() };
        self.reads.origin_extents.insert(question, waits);
        for (range, block, count) in runs {
            self.ask_origin_extents(Wanted::Extents { question, range }, block, count, job.limit, ctx);
        }
    }

    /// The origin has said what one of the ranges holds; None: it cannot say, and data is always right.
    pub(super) fn on_origin_extents(
        &mut self,
        question: u64,
        range: usize,
        told: Option<Vec<Extent>>,
        ctx: &mut Context,
    ) {
        let waits = self.reads.origin_extents.get_mut(&question).expect("it stays until all is said");
        waits.answers.extend(told.map(|told| (range, told)));
        waits.left -= 1;
        if waits.left == 0 {
            let OriginExtents { job, ranges, answers, .. } =
                self.reads.origin_extents.remove(&question).expect("it was just found");
            self.reply(job.request, Reply::Extents(in_bytes(&job, &ranges, &answers)), ctx);
        }
    }

    /// Blocks of one leaf.
    fn find_extents(&mut self, job: &mut ExtentsJob, block: Block, count: u64, ctx: &mut Context) -> Found {
        let now = match self.locate_whole(job, job.at, block, count, ctx) {
            Ok(now) => now,
            Err(found) => return found,
        };
        let Some(than) = job.than else {
            let told = |part: &Located| match part.place {
                Where::Zeroes => (part.count, Told::Hole),
                Where::Origin => (part.count, Told::Origin),
                _ => (part.count, Told::Data),
            };
            return Found::Ranges(now.iter().map(told).collect());
        };
        match self.locate_whole(job, than, block, count, ctx) {
            Ok(before) => {
                let differences = differences(&before, &now).into_iter();
                Found::Ranges(differences.map(|(count, differs)| (count, Told::data(differs))).collect())
            }
            Err(found) => found,
        }
    }

    /// Where all of the blocks are in this version, or what has to be done before that is known.
    fn locate_whole(
        &mut self,
        job: &mut ExtentsJob,
        version: Generation,
        block: Block,
        count: u64,
        ctx: &mut Context,
    ) -> Result<Vec<Located>, Found> {
        let located = self.resolve_at(version, block, count, ctx);
        for part in &located {
            match part.place {
                Where::Dirty(_) | Where::At { .. } | Where::Zeroes | Where::Lost | Where::Origin => {}
                Where::View { .. } | Where::Page { .. } if job.fetched >= FETCHED_MAX => {
                    return Err(Found::Unknown);
                }
                Where::View { leaf } => {
                    job.fetched += 1;
                    self.fetch_view(version, leaf, ViewWaiter::Extents(*job), ctx);
                    return Err(Found::Later);
                }
                Where::Page { leaf, place } => {
                    job.fetched += 1;
                    self.fetch_leaf(leaf, place, PageWaiter::Extents(*job), ctx);
                    return Err(Found::Later);
                }
            }
        }
        Ok(located)
    }
}

/// From blocks to bytes: what the origin has said is put in its place, and the first and the last extent are cut where the
/// question begins and ends.
fn in_bytes(job: &ExtentsJob, ranges: &[(u64, Told)], answers: &BTreeMap<usize, Vec<Extent>>) -> Vec<Extent> {
    let (mut from, stop) = (job.offset, job.offset + job.len);
    let mut at = job.offset - job.offset % BLOCK as u64;
    let mut extents: Vec<Extent> = Vec::new();
    let mut push = |to: u64, data: bool| {
        let to = to.min(stop);
        if to <= from {
            return;
        }
        match extents.last_mut() {
            Some(last) if last.data == data => last.len += to - from,
            _ => extents.push(Extent { len: to - from, data }),
        }
        from = to;
    };
    for (number, (count, told)) in ranges.iter().enumerate() {
        let end = at + count * BLOCK as u64;
        for Extent { len, data } in answers.get(&number).into_iter().flatten() {
            at = (at + len).min(end);
            push(at, *data);
        }
        if at < end && answers.contains_key(&number) {
            // It has not said more: the rest is asked for again.
            break;
        }
        push(end, *told != Told::Hole);
        at = end;
    }
    extents.truncate(job.limit as usize);
    extents
}

/// Compares two versions of the same blocks by where they are: what is in one place is the same.
fn differences(before: &[Located], now: &[Located]) -> Vec<(u64, bool)> {
    let mut ranges = Vec::new();
    let (mut before, mut now) = (before.iter(), now.iter());
    let (mut old, mut new) = (before.next(), now.next());
    let mut at = old.map_or(0, |part| part.block.0);
    while let (Some(one), Some(other)) = (old, new) {
        let (one_end, other_end) = (one.block.0 + one.count, other.block.0 + other.count);
        let end = one_end.min(other_end);
        let skipped = |part: &Located| at - part.block.0;
        let same = match (&one.place, &other.place) {
            (Where::Zeroes, Where::Zeroes) | (Where::Origin, Where::Origin) => true,
            (Where::At { egroup, unit }, Where::At { egroup: of, unit: there }) => {
                egroup == of && u64::from(*unit) + skipped(one) == u64::from(*there) + skipped(other)
            }
            // Of one write, in memory.
            (Where::Dirty(data), Where::Dirty(there)) => {
                let place =
                    |data: &Buffer, part| data.bytes().as_ptr() as usize + BLOCK * skipped(part) as usize;
                place(data, one) == place(there, other)
            }
            _ => false,
        };
        ranges.push((end - at, !same));
        at = end;
        old = if one_end == end { before.next() } else { Some(one) };
        new = if other_end == end { now.next() } else { Some(other) };
    }
    ranges
}
