//! Writes: who may go on now, who waits, who is refused; then into the log.
//! Promises: data gets a number only when the log has room for it, so that map and checkpoint records, which
//! free room, never queue behind data that cannot be placed; as memory fills, fewer writes are let in at once; and so while
//! several vDisks are written to, because whatever is in the log's queue goes before what others write next.
//! Leaves to others: parts of blocks (`partial`), going around the log (`bypass`).

use super::request::{Change, Work};
use super::{Volume, Waiter};
use crate::buffer::{BLOCK, Buffer};
use crate::context::Context;
use crate::formats::record::Body;
use crate::identity::{Block, DriveId, Time};
use crate::interface::RequestError;
use crate::limits::{EGROUP_UNITS, RECORD_BLOCKS};
use crate::log::overlay::Content;
use crate::sabotage::{Bug, planted};
use crate::stages::Stage;

/// Records of one vDisk that free space in the end and may go into the log while it has no room: zeros, and the marks of
/// snapshots that are dropped. Each takes a block or two of the reserve; more of them would use up what map and checkpoint
/// records need to make room.
const FREEING_WITHOUT_ROOM: u32 = 4;

/// When somebody waits for room it is asked for so often.
const ROOM_AGAIN_US: u64 = 10_000;

/// A ring that gave no room for so long, on a drive without space, is taken for full.
const RING_PATIENCE_US: u64 = 3_000_000;

/// A ring that gave no room for so long is held by what finds none in the pool, and gives none until somebody makes some.
const ROOM_PATIENCE_US: u64 = 30_000_000;

enum Verdict {
    Go,
    /// Wait; those behind may go if they do not touch the same blocks.
    Locked,
    /// Wait, and all behind too.
    NoRoom,
    /// Likewise, so that what others write does not wait behind all of this.
    NoTurn,
    Refuse(RequestError),
}

impl Volume {
    /// A write may go on, or has to wait.
    pub(crate) fn admit(&mut self, work: Work, ctx: &mut Context) {
        if !self.requests.waiting.is_empty() {
            self.wait(work, ctx);
            return;
        }
        if !planted(Bug::PoolOfLastTime) {
            // What others of the shard deleted since something happened here last.
            self.note_pool(ctx);
        }
        self.ask_for_space(ctx);
        match self.verdict(&work, ctx) {
            Verdict::Go => self.start(work, ctx),
            Verdict::Refuse(error) => self.refuse(work, error, ctx),
            Verdict::Locked | Verdict::NoRoom => self.wait(work, ctx),
            Verdict::NoTurn => {
                self.requests.crowded = true;
                self.wait(work, ctx);
            }
        }
    }

    fn wait(&mut self, mut work: Work, ctx: &mut Context) {
        ctx.counters.waited += 1;
        work.waits_since = Some(ctx.now);
        self.requests.waiting.push_back(work);
        self.requests.waited_since.get_or_insert(ctx.now);
    }

    fn refuse(&mut self, work: Work, error: RequestError, ctx: &mut Context) {
        ctx.counters.refused_no_space += u64::from(error == RequestError::NoSpace);
        self.finish_part(work.request, Some(error), ctx);
    }

    /// Lets in those that wait, in order, as far as there is room.
    pub(crate) fn start_waiting(&mut self, ctx: &mut Context) {
        if self.requests.waiting.is_empty() {
            self.requests.waited_since = None;
            self.requests.without_room_since = None;
            return;
        }
        if self.room() >= record_bytes(1) {
            self.requests.without_room_since = None;
        } else {
            self.requests.without_room_since.get_or_insert(ctx.now);
        }
        self.requests.crowded = false;
        self.ask_for_space(ctx);
        let mut held: Vec<Work> = Vec::new();
        // Nothing but what frees may go on any more.
        let mut only_frees = false;
        while let Some(work) = self.requests.waiting.pop_front() {
            if only_frees && !work.frees() {
                held.push(work);
                continue;
            }
            let behind = held.iter().any(|earlier| {
                earlier.block.0 < work.block.0 + work.count && work.block.0 < earlier.block.0 + earlier.count
            });
            if behind {
                held.push(work);
                continue;
            }
            match self.verdict(&work, ctx) {
                Verdict::Go => self.start(work, ctx),
                Verdict::Refuse(error) => self.refuse(work, error, ctx),
                Verdict::Locked => held.push(work),
                verdict @ (Verdict::NoRoom | Verdict::NoTurn) => {
                    only_frees |= !work.frees();
                    self.requests.crowded |= matches!(verdict, Verdict::NoTurn);
                    held.push(work);
                    // In a full pool those in front wait for what trims behind them free, and would fail in front of them.
                    let frees_later = self.is_out_of_space(ctx)
                        && self.requests.waiting.iter().any(Work::frees)
                        && !planted(Bug::TrimsWaitForSpace);
                    if !only_frees || !frees_later {
                        break;
                    }
                }
            }
        }
        for work in held.into_iter().rev() {
            self.requests.waiting.push_front(work);
        }
        if self.requests.waiting.is_empty() {
            self.requests.waited_since = None;
        } else {
            self.requests.waited_since = Some(ctx.now);
            // Too little for the next record is as good as none: trims make more, but say so only when asked.
            if self.log.room() < (RECORD_BLOCKS + 1) * BLOCK as u64 {
                self.log.ask_for_room(ROOM_AGAIN_US, ctx);
            }
        }
    }

    /// Bytes of new data that may be given numbers now: what the log has room for, without what writes need that hold a
    /// lock and have no number yet.
    pub(crate) fn room(&self) -> u64 {
        self.log.room().saturating_sub(self.requests.locked() as u64 * record_bytes(1))
    }

    fn is_out_of_space(&self, ctx: &Context) -> bool {
        self.placing.is_full() || self.is_pool_short(ctx)
    }

    fn verdict(&self, work: &Work, ctx: &Context) -> Verdict {
        if self.requests.is_locked(work.block, work.count) {
            return Verdict::Locked;
        }
        let frees = work.frees();
        if self.is_out_of_space(ctx) && !frees {
            return if self.is_room_coming(work.waits_since, ctx) {
                Verdict::NoRoom
            } else {
                Verdict::Refuse(RequestError::NoSpace)
            };
        }
        let partial = matches!(work.change, Change::Part { .. });
        if partial && self.is_being_written(work.block, 1) {
            return Verdict::Locked;
        }
        let pending = self.log.pending_bytes();
        let room = self.room();
        if frees {
            return if self.may_free(room) {
                Verdict::Go
            } else if self.is_room_stuck(ctx) {
                Verdict::Refuse(RequestError::NoSpace)
            } else {
                Verdict::NoRoom
            };
        }
        let bytes = record_bytes(work.count.min(RECORD_BLOCKS));
        // A small ring that many share never has room for a large record: alone, a smaller one will do.
        let least = if pending == 0 { record_bytes(1) } else { bytes };
        // Fewer and fewer bytes may be on their way as memory fills, down to one record at a time: writers feel
        // a drain that falls behind early and smoothly, not at a cliff.
        let (dirty, most) = (self.overlay.dirty_bytes(), self.dirty_bytes_max(ctx));
        let window = most.saturating_sub(dirty) / 4;
        let parts = if planted(Bug::PartsNotCounted) { 0 } else { self.requests.parts_reading };
        let to_come = pending + parts as u64 * record_bytes(1);
        let memory =
            if to_come == 0 { dirty == 0 || dirty + bytes <= most } else { to_come + bytes <= window };
        let has_turn = ctx.writers <= 1 || pending == 0 || pending + bytes <= ctx.limits.turn_bytes / 3;
        if room >= least && memory && has_turn || self.may_bypass(work, ctx) {
            return Verdict::Go;
        }
        if room >= least && memory {
            return Verdict::NoTurn;
        }
        let stuck = room < least && (self.is_ring_full(ctx) || self.is_room_stuck(ctx));
        if stuck { Verdict::Refuse(RequestError::NoSpace) } else { Verdict::NoRoom }
    }

    /// Whether a record that frees space in the end may go into the log now.
    pub(super) fn may_free(&self, room: u64) -> bool {
        room > 0 || self.requests.freeing_without_room < FREEING_WITHOUT_ROOM
    }

    /// One gets its number.
    pub(super) fn note_freeing(&mut self) {
        let without_room = &mut self.requests.freeing_without_room;
        *without_room = if self.log.room() > 0 { 0 } else { *without_room + 1 };
    }

    /// A ring hardly empties while its drive has no space for anybody. But what is in it may go to other drives, and be deleted.
    fn is_ring_full(&self, ctx: &Context) -> bool {
        let lasts = |since: Time| ctx.now.since(since) >= RING_PATIENCE_US || planted(Bug::FullRingAtOnce);
        let is_full = |drive: DriveId| ctx.free.get(&drive) == Some(&0);
        self.requests.without_room_since.is_some_and(lasts) && self.log.members().any(is_full)
    }

    /// Others hold the ring who find no space on other drives: who does, nobody tells. Where all drives have space, the ring
    /// waits for something that comes back, such as a member, and so do clients.
    fn is_room_stuck(&self, ctx: &Context) -> bool {
        let is_full = |drive: &DriveId, free: u64| ctx.is_up(*drive) && free < (EGROUP_UNITS * BLOCK) as u64;
        let is_some_drive_full = || ctx.free.iter().any(|(drive, &free)| is_full(drive, free));
        let impatient = |since: Time| ctx.now.since(since) > ROOM_PATIENCE_US && is_some_drive_full();
        self.requests.without_room_since.is_some_and(impatient)
    }

    /// Gives the work its records.
    fn start(&mut self, work: Work, ctx: &mut Context) {
        if let Some(since) = work.waits_since {
            ctx.counters.stages.record_us(Stage::Room, ctx.now.since(since));
        }
        let Work { request, block, count, change, .. } = &work;
        match change {
            Change::Part { .. } => self.start_partial(work, ctx),
            Change::Whole(Content::Zero) => {
                self.note_freeing();
                let seq = self.log.push(Body::Zero { block: *block, count: *count });
                self.waiters.insert(seq, Waiter::Request(*request));
            }
            Change::Whole(Content::Data(data)) => {
                if self.may_bypass(&work, ctx) {
                    return self.take_bypass(work, ctx);
                }
                if data.is_zero() {
                    self.pattern.writes_to_zeroes += 1;
                    self.pattern.write_bytes_to_zeroes += data.len() as u64;
                    self.zero_blocks += *count;
                    let seq = self.log.push(Body::Zero { block: *block, count: *count });
                    self.waiters.insert(seq, Waiter::Request(*request));
                    return;
                }
                let (request, block, data) = (*request, *block, data.clone());
                self.push_data(request, block, data, ctx);
            }
            Change::Whole(Content::Lost(_)) => unreachable!("no client asks for that"),
        }
    }

    /// Cuts data into records; what finds no room any more waits at the front.
    fn push_data(&mut self, request: u64, block: Block, data: Buffer, ctx: &mut Context) {
        let fits = (self.room() / BLOCK as u64).saturating_sub(1);
        let first = (data.blocks() as u64).min(RECORD_BLOCKS).min(fits.max(1));
        let rest = data.blocks() as u64 - first;
        self.pattern.writes_to_log += 1;
        self.pattern.write_bytes_to_log += first * BLOCK as u64;
        let seq = self.log.push(Body::Data { block, data: aligned(data.slice(0..first as usize * BLOCK)) });
        self.waiters.insert(seq, Waiter::Request(request));
        if rest > 0 {
            let bytes = data.slice(first as usize * BLOCK..data.len());
            let change = Change::Whole(Content::Data(bytes));
            self.requests.add_part(request);
            let work = Work { request, block: block.plus(first), count: rest, change, waits_since: None };
            match self.verdict(&work, ctx) {
                Verdict::Go => self.start(work, ctx),
                Verdict::Refuse(error) => self.refuse(work, error, ctx),
                verdict @ (Verdict::Locked | Verdict::NoRoom | Verdict::NoTurn) => {
                    self.requests.crowded = matches!(verdict, Verdict::NoTurn);
                    self.requests.wait_in_front(work, ctx.now);
                }
            }
        }
    }
}

/// What a record of so many blocks takes in the log, with its header.
fn record_bytes(blocks: u64) -> u64 {
    (blocks + 1) * BLOCK as u64
}

/// The same bytes, beginning at a page of memory: drives transfer whole pages.
pub(crate) fn aligned(data: Buffer) -> Buffer {
    if (data.bytes().as_ptr() as usize).is_multiple_of(BLOCK) { data } else { Buffer::copied(data.bytes()) }
}
