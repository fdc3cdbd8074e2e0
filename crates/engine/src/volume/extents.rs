//! Which parts of a range hold data: from the overlay and the map, without touching data.
//! Promises: what is told as a hole reads as zeros. The answer may end before the range does.

use super::Volume;
use crate::buffer::BLOCK;
use crate::context::Context;
use crate::identity::{Block, Generation};
use crate::interface::{Extent, Reply, RequestError};
use crate::limits::LEAF_BLOCKS;
use crate::map::lookup::{PageWaiter, Where};
use crate::map::view::ViewWaiter;

/// Leaves looked at for one answer: the rest is asked for again.
const LEAVES_MAX: u64 = 4096;

/// A question that waits for a page. It begins anew when the page is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExtentsJob {
    pub request: u64,
    /// The present, or a snapshot.
    pub at: Generation,
    pub offset: u64,
    pub len: u64,
    pub limit: u32,
    /// Pages fetched for it so far: a bound, should the cache be too small to hold them all.
    pub fetched: u32,
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
        self.continue_extents(ExtentsJob { request, at, offset, len, limit, fetched: 0 }, ctx);
    }

    pub(crate) fn continue_extents(&mut self, mut job: ExtentsJob, ctx: &mut Context) {
        if !self.has_version(job.at) {
            return self.reply(job.request, Reply::Error(RequestError::NoSnapshot), ctx);
        }
        let block_bytes = BLOCK as u64;
        let end = (job.offset + job.len).div_ceil(block_bytes);
        let mut at = job.offset / block_bytes;
        let last_leaf = at / LEAF_BLOCKS + LEAVES_MAX;
        // Ranges of blocks, told apart only by whether they hold data.
        let mut ranges: Vec<(u64, bool)> = Vec::new();
        'leaves: while at < end && at / LEAF_BLOCKS < last_leaf && ranges.len() <= job.limit as usize {
            let count = (LEAF_BLOCKS - at % LEAF_BLOCKS).min(end - at);
            for found in self.resolve_at(job.at, Block(at), count, ctx) {
                let data = match found.place {
                    Where::Dirty(_) | Where::At { .. } => true,
                    Where::Zeroes => false,
                    // What is a hole there is not known here; to call it data is right, if not helpful.
                    Where::Origin => true,
                    Where::View { leaf } if job.fetched < 64 => {
                        job.fetched += 1;
                        return self.fetch_view(job.at, leaf, ViewWaiter::Extents(job), ctx);
                    }
                    Where::Page { leaf, place } if job.fetched < 64 => {
                        job.fetched += 1;
                        return self.fetch_leaf(leaf, place, PageWaiter::Extents(job), ctx);
                    }
                    Where::Page { .. } | Where::View { .. } => {
                        // Enough waiting: tell what is known, or, if that is nothing, the safe answer.
                        if ranges.is_empty() {
                            ranges.push((found.count, true));
                        }
                        break 'leaves;
                    }
                };
                match ranges.last_mut() {
                    Some((blocks, same)) if *same == data => *blocks += found.count,
                    _ => ranges.push((found.count, data)),
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
}
