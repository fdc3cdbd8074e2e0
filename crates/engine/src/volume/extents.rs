//! Which parts of a range hold data: from the overlay and the map, without touching data.
//! Promises: what is told as a hole reads as zeros. The answer may end before the range does.

use super::Volume;
use crate::buffer::{BLOCK, Buffer};
use crate::context::Context;
use crate::identity::{Block, Generation};
use crate::interface::{Extent, Reply, RequestError};
use crate::limits::LEAF_BLOCKS;
use crate::map::lookup::{Located, PageWaiter, Where};
use crate::map::view::ViewWaiter;

/// Leaves looked at for one answer: the rest is asked for again.
const LEAVES_MAX: u64 = 4096;

/// Pages that one question waits for at most.
const FETCHED_MAX: u32 = 64;

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

/// What is known of a part of the range.
enum Found {
    /// Blocks, and whether they are to be told as data; in order, without gaps.
    Ranges(Vec<(u64, bool)>),
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
        let mut ranges: Vec<(u64, bool)> = Vec::new();
        while at < end && at / LEAF_BLOCKS < last_leaf && ranges.len() <= job.limit as usize {
            let count = (LEAF_BLOCKS - at % LEAF_BLOCKS).min(end - at);
            match self.find_extents(&mut job, Block(at), count, ctx) {
                Found::Later => return,
                Found::Unknown => {
                    // Tell what is known, or, if that is nothing, the safe answer.
                    if ranges.is_empty() {
                        ranges.push((count, true));
                    }
                    break;
                }
                Found::Ranges(found) => {
                    for (count, data) in found {
                        match ranges.last_mut() {
                            Some((blocks, same)) if *same == data => *blocks += count,
                            _ => ranges.push((count, data)),
                        }
                    }
                }
            }
            at += count;
        }
        ranges.truncate(job.limit as usize);
        // From blocks to bytes: the first and the last range are cut where the question begins and ends.
        let (mut from, stop) = (job.offset, job.offset + job.len);
        let mut block = job.offset / block_bytes;
        let mut extents = Vec::with_capacity(ranges.len());
        for (blocks, data) in ranges {
            block += blocks;
            let to = (block * block_bytes).min(stop);
            extents.push(Extent { len: to - from, data });
            from = to;
        }
        self.reply(job.request, Reply::Extents(extents), ctx);
    }

    /// Blocks of one leaf.
    fn find_extents(&mut self, job: &mut ExtentsJob, block: Block, count: u64, ctx: &mut Context) -> Found {
        let now = match self.locate_whole(job, job.at, block, count, ctx) {
            Ok(now) => now,
            Err(found) => return found,
        };
        let Some(than) = job.than else {
            // What is a hole in the origin is not known here; to call it data is right, if not helpful.
            let told = |part: &Located| (part.count, !matches!(part.place, Where::Zeroes));
            return Found::Ranges(now.iter().map(told).collect());
        };
        match self.locate_whole(job, than, block, count, ctx) {
            Ok(before) => Found::Ranges(differences(&before, &now)),
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
                Where::Dirty(_) | Where::At { .. } | Where::Zeroes | Where::Origin => {}
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
