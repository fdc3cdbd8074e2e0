//! Writes of a part of a block: the block is read, merged and written whole.
//! Promises: between reading and writing nothing else writes the block, so no neighbour's bytes go back in time.

use super::request::{Change, Work};
use super::{Volume, Waiter};
use crate::buffer::{BLOCK, Buffer, Pages};
use crate::context::Context;
use crate::formats::record::Body;
use crate::interface::RequestError;

impl Volume {
    /// The block is not locked and nothing of it is being written: it is ours until it is durable.
    pub(crate) fn start_partial(&mut self, work: Work, ctx: &mut Context) {
        ctx.counters.partial_writes += 1;
        let lock = self.requests.lock(work.block, 1);
        self.requests.parts_reading += 1;
        self.begin_partial_read(work, lock, ctx);
    }

    /// The block as it is now, or why it cannot be known.
    pub(crate) fn on_partial_read(
        &mut self,
        work: Work,
        lock: u64,
        block: Result<Vec<Buffer>, RequestError>,
        ctx: &mut Context,
    ) {
        self.requests.parts_reading -= 1;
        let pieces = match block {
            Ok(pieces) => pieces,
            Err(error) => {
                self.requests.unlock(lock);
                return self.finish_part(work.request, Some(error), ctx);
            }
        };
        let Change::Part { from, bytes } = work.change else { unreachable!("only parts are merged") };
        self.pattern.writes_to_log += 1;
        self.pattern.write_bytes_to_log += bytes.len() as u64;
        let mut whole = Pages::zeroed(BLOCK);
        let mut at = 0;
        for piece in pieces {
            whole.bytes_mut()[at..at + piece.len()].copy_from_slice(piece.bytes());
            at += piece.len();
        }
        assert_eq!(at, BLOCK, "a block was read whole");
        whole.bytes_mut()[from..from + bytes.len()].copy_from_slice(bytes.bytes());
        let data = whole.freeze();
        // Room was there when the work was let in; one block more or less is within the slack of the reserve.
        let seq = self.log.push(Body::Data { block: work.block, data });
        self.waiters.insert(seq, Waiter::Partial { request: work.request, lock });
    }
}
