//! A clone reads what it has not written itself from its origin: a snapshot of another family.
//! Promises: a block is the origin's until the clone has written or trimmed it; the origin may be served anywhere, and change
//! hands meanwhile.
//! Leaves to others: finding who serves the origin, and asking again when that changes (the node).
//!
//! The origin is asked as a client would ask it. So clones of one image share its owner's cache, and moving units about in the
//! origin concerns nobody else.

use super::Volume;
use crate::buffer::BLOCK;
use crate::context::Context;
use crate::identity::{Block, Time};
use crate::interface::{Origin, OriginRequest, Reply, Request, RequestError};
use crate::limits::LEAF_BLOCKS;
use crate::map::lookup::{Located, Where};
use crate::sabotage::{Bug, planted};
use crate::stages::Stage;

/// What the origin is asked.
#[derive(Debug)]
pub(super) struct OriginAsk {
    wanted: Wanted,
    since: Time,
}

#[derive(Debug)]
pub(super) enum Wanted {
    /// A part of a read.
    Blocks { job: u64, block: Block, count: u64 },
    /// What it holds there, for one range of a question for extents.
    Extents { question: u64, range: usize },
}

impl Origin {
    /// Blocks that the origin may have something of.
    pub(crate) fn blocks(&self) -> u64 {
        self.size.div_ceil(BLOCK as u64)
    }

    /// Leaves that may have something of the origin.
    pub(crate) fn leaves(&self) -> u64 {
        self.blocks().div_ceil(LEAF_BLOCKS)
    }
}

impl Volume {
    /// Of a clone, leaves that its origin may have something of.
    pub(crate) fn origin_leaves(&self) -> u64 {
        self.origin.map_or(0, |origin| origin.leaves())
    }

    /// Where blocks are that this family's map has no place for.
    pub(crate) fn locate_unmapped(&self, block: Block, count: u64, located: &mut Vec<Located>) {
        let end = self.origin.map_or(0, |origin| origin.blocks()).clamp(block.0, block.0 + count);
        if end > block.0 {
            located.push(Located { block, count: end - block.0, place: Where::Origin });
        }
        if end < block.0 + count {
            let count = block.0 + count - end;
            located.push(Located { block: Block(end), count, place: Where::Zeroes });
        }
    }

    /// Asks the origin for a part of a read.
    pub(super) fn ask_origin(&mut self, job: u64, block: Block, count: u64, ctx: &mut Context) {
        let origin = self.origin.expect("only a clone has an origin");
        ctx.counters.blocks_from_origin += count;
        let offset = block.0 * BLOCK as u64;
        let len = u32::try_from(count * BLOCK as u64).expect("a read is shorter than 4 GiB");
        let request = if planted(Bug::CloneOfPresent) {
            Request::Read { offset, len }
        } else {
            Request::ReadOrigin { snapshot: origin.snapshot, offset, len }
        };
        self.send_to_origin(Wanted::Blocks { job, block, count }, request, ctx);
    }

    /// Asks the origin what it holds there.
    pub(super) fn ask_origin_extents(
        &mut self,
        wanted: Wanted,
        block: Block,
        count: u64,
        limit: u32,
        ctx: &mut Context,
    ) {
        let origin = self.origin.expect("only a clone has an origin");
        let (offset, len) = (block.0 * BLOCK as u64, count * BLOCK as u64);
        let request = Request::SnapshotExtents { snapshot: origin.snapshot, offset, len, limit };
        self.send_to_origin(wanted, request, ctx);
    }

    fn send_to_origin(&mut self, wanted: Wanted, request: Request, ctx: &mut Context) {
        let origin = self.origin.expect("only a clone has an origin");
        let ask = ctx.calls.number();
        self.reads.origin_asks.insert(ask, OriginAsk { wanted, since: ctx.now });
        let (asker, family) = (self.family, origin.family);
        ctx.out.requests.push(OriginRequest { asker, ask, family, request });
    }

    /// The origin has answered. Asks that are not known are of a read that failed, or of an earlier life.
    pub fn on_told(&mut self, ask: u64, reply: Reply, ctx: &mut Context) {
        let Some(OriginAsk { wanted, since }) = self.reads.origin_asks.remove(&ask) else { return };
        let (job, block, count) = match wanted {
            Wanted::Blocks { job, block, count } => (job, block, count),
            Wanted::Extents { question, range } => {
                let told = if let Reply::Extents(extents) = reply { Some(extents) } else { None };
                return self.on_origin_extents(question, range, told, ctx);
            }
        };
        match reply {
            Reply::Data(pieces) => {
                ctx.counters.stages.record_us(Stage::OriginAsk, ctx.now.since(since));
                let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
                assert_eq!(bytes as u64, count * BLOCK as u64, "a read is answered whole");
                self.take_from_origin(job, block, pieces);
                self.finish_job(job, ctx);
            }
            // It may be taken away only when no clone needs it, and its owner changes hands behind the node's back.
            Reply::Error(error @ (RequestError::NoSnapshot | RequestError::Damaged { .. })) => {
                ctx.counters.blocks_lost += 1;
                // It numbers its blocks alike.
                let block = if let RequestError::Damaged { block } = error { block } else { block.0 };
                self.fail_job(job, RequestError::Damaged { block }, ctx);
            }
            // Nobody serves it for too long. A part of a block that waits for this may be of a write of which the rest is done:
            // nobody may take it for one that was not begun.
            Reply::Error(_) => self.fail_job(job, RequestError::Fenced, ctx),
            other => unreachable!("a read is not answered by {other:?}"),
        }
    }
}
