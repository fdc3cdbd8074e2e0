//! Requests of clients from their arrival to their one reply.
//! Promises: every request is answered exactly once (I9); no more than the limit are open (I10).
//! Leaves to others: the limits of the vDisk (`door`), what a write, a read, a question for extents or warming takes (`write`,
//! `read`, `extents`, `warm`).

use super::Volume;
use super::door::Door;
use crate::buffer::{BLOCK, Buffer};
use crate::context::Context;
use crate::counters::Source;
use crate::identity::{Block, Generation, Ticket, Time};
use crate::interface::{Reply, Request, RequestError, Warmed};
use crate::limits::VDISK_BYTES_MAX;
use crate::log::overlay::Content;
use crate::map::lookup::PRESENT;
use crate::sabotage::{Bug, planted};
use std::collections::{BTreeMap, VecDeque};

/// A request that has no reply yet. It has one when all its parts are done.
#[derive(Debug)]
pub(crate) struct Open {
    ticket: Ticket,
    parts: u32,
    /// Bytes it writes; they count as outstanding until the reply.
    bytes: u64,
    error: Option<RequestError>,
}

/// A piece of a write that has not got its numbers yet.
#[derive(Debug)]
pub(crate) struct Work {
    pub request: u64,
    pub block: Block,
    pub count: u64,
    pub change: Change,
    /// When it had to wait for room or a lock.
    pub waits_since: Option<Time>,
}

impl Work {
    /// Whether it takes no space, and lets go of some in the end.
    pub fn frees(&self) -> bool {
        matches!(self.change, Change::Whole(Content::Zero))
    }
}

#[derive(Debug)]
pub(crate) enum Change {
    /// Whole blocks.
    Whole(Content),
    /// These bytes of the one block, `from` its beginning.
    Part { from: usize, bytes: Buffer },
}

/// A range in which nobody else may write now.
#[derive(Debug)]
struct Lock {
    number: u64,
    block: Block,
    count: u64,
    /// The map record of a write that went around the log is in the log, and not durable yet.
    named: bool,
}

impl Lock {
    fn overlaps(&self, block: Block, count: u64) -> bool {
        self.block.0 < block.0 + count && block.0 < self.block.0 + self.count
    }
}

#[derive(Debug, Default)]
pub(crate) struct Requests {
    last: u64,
    open: BTreeMap<u64, Open>,
    /// Writes that wait for room, or for a lock to end; in the order of their arrival.
    pub waiting: VecDeque<Work>,
    locks: Vec<Lock>,
    /// Writes on their way around the log.
    pub bypass: super::bypass::Bypass,
    /// Bytes of open writes.
    pub outstanding: u64,
    /// When a client last asked for something.
    pub last_asked: Time,
    pub last_written: Time,
    /// Those that wait leave the log to others; there is room.
    pub crowded: bool,
    /// Writes of parts of blocks that were let in and have no number yet: they read what is around them.
    pub parts_reading: usize,
    pub waited_since: Option<Time>,
    /// Since when the log has had no room for those that wait, not even for one of them.
    pub without_room_since: Option<Time>,
    /// Zero records and marks of dropped snapshots that went into the log since it last had room.
    pub freeing_without_room: u32,
}

impl Requests {
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub fn wake_at(&self) -> Option<Time> {
        self.waited_since.map(|since| since.after(10_000))
    }

    fn begin(&mut self, ticket: Ticket, bytes: u64) -> u64 {
        self.last += 1;
        self.outstanding += bytes;
        self.open.insert(self.last, Open { ticket, parts: 0, bytes, error: None });
        self.last
    }

    pub fn add_part(&mut self, request: u64) {
        self.open.get_mut(&request).expect("a part belongs to an open request").parts += 1;
    }

    /// It goes before all that wait.
    pub fn wait_in_front(&mut self, mut work: Work, now: Time) {
        work.waits_since = Some(now);
        self.waiting.push_front(work);
        self.waited_since.get_or_insert(now);
    }

    pub fn lock(&mut self, block: Block, count: u64) -> u64 {
        assert!(!self.is_locked(block, count), "a range is locked once");
        self.last += 1;
        self.locks.push(Lock { number: self.last, block, count, named: false });
        self.last
    }

    pub fn unlock(&mut self, number: u64) {
        let before = self.locks.len();
        self.locks.retain(|lock| lock.number != number);
        assert_eq!(self.locks.len() + 1, before, "a lock ends once");
    }

    pub fn is_locked(&self, block: Block, count: u64) -> bool {
        self.locks.iter().any(|lock| lock.overlaps(block, count))
    }

    /// What holds these locks is named: from here on nothing of before is.
    pub fn name(&mut self, numbers: &[u64]) {
        for lock in self.locks.iter_mut().filter(|lock| numbers.contains(&lock.number)) {
            lock.named = true;
        }
    }

    /// The parts of a range for which no map record is on its way, in order.
    pub fn each_not_being_named(&self, block: Block, count: u64, each: &mut impl FnMut(Block, u64)) {
        let found = self.locks.iter().find(|lock| lock.named && lock.overlaps(block, count));
        let Some(lock) = found.filter(|_| !planted(Bug::DrainedAfterBypass)) else {
            return each(block, count);
        };
        let (end, to) = (block.0 + count, lock.block.0 + lock.count);
        if block.0 < lock.block.0 {
            self.each_not_being_named(block, lock.block.0 - block.0, each);
        }
        if to < end {
            self.each_not_being_named(Block(to), end - to, each);
        }
    }

    /// How many writes hold a lock: each of them still needs a number, and room in the log.
    pub fn locked(&self) -> usize {
        self.locks.len()
    }

    /// Answers and forgets everything.
    pub fn answer_all(&mut self, error: RequestError, ctx: &mut Context) {
        for open in std::mem::take(&mut self.open).into_values() {
            ctx.reply(open.ticket, Reply::Error(error));
        }
        *self = Self { last: self.last, ..Self::default() };
    }
}

impl Volume {
    /// A client asks.
    pub fn on_request(&mut self, ticket: Ticket, request: Request, ctx: &mut Context) {
        if !self.is_serving() {
            return ctx.reply(ticket, Reply::Error(RequestError::NotServed));
        }
        self.requests.last_asked = ctx.now;
        // What waits at the door is in nobody's way who need not wait there.
        let waiting = if Door::is_passed(&request) { 0 } else { self.door.len() };
        if self.requests.open.len() + waiting >= ctx.limits.requests_max {
            return ctx.reply(ticket, Reply::Error(RequestError::Busy));
        }
        match self.answer_at_once(&request, ctx) {
            Some(reply) => ctx.reply(ticket, reply),
            None => self.knock(ticket, request, ctx),
        }
    }

    /// The reply to what cannot be done now, or takes nothing to do.
    pub(super) fn answer_at_once(&self, request: &Request, ctx: &mut Context) -> Option<Reply> {
        if self.snapshots.is_rolling_back() {
            return Some(Reply::Error(RequestError::Busy));
        }
        let (snapshot, offset, len) = match request {
            Request::Read { offset, len } => (None, *offset, u64::from(*len)),
            Request::Write { offset, data } => (None, *offset, data.len() as u64),
            Request::Zero { offset, len }
            | Request::Extents { offset, len, .. }
            | Request::Warm { offset, len, .. } => (None, *offset, *len),
            Request::ReadSnapshot { snapshot, offset, len }
            | Request::ReadOrigin { snapshot, offset, len } => (Some(*snapshot), *offset, u64::from(*len)),
            Request::SnapshotExtents { snapshot, offset, len, .. }
            | Request::Differences { from: snapshot, offset, len, .. } => (Some(*snapshot), *offset, *len),
            Request::Flush => {
                ctx.counters.flushes += 1;
                return Some(Reply::Done);
            }
        };
        if snapshot.is_some_and(|snapshot| snapshot == PRESENT || !self.has_version(snapshot)) {
            return Some(Reply::Error(RequestError::NoSnapshot));
        }
        // A snapshot may be larger than the vDisk is now.
        let size = if snapshot.is_some() { VDISK_BYTES_MAX } else { self.size };
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Some(Reply::Error(RequestError::OutOfRange));
        }
        (len == 0).then(|| match request {
            Request::Read { .. } | Request::ReadSnapshot { .. } | Request::ReadOrigin { .. } => {
                Reply::Data(Vec::new())
            }
            Request::Extents { .. } | Request::SnapshotExtents { .. } | Request::Differences { .. } => {
                Reply::Extents(Vec::new())
            }
            Request::Warm { offset, .. } => Reply::Warmed(Warmed { to: *offset, ..Warmed::default() }),
            Request::Write { .. } | Request::Zero { .. } | Request::Flush => Reply::Done,
        })
    }

    /// What was let in, and cannot be answered at once.
    pub(super) fn begin_request(&mut self, ticket: Ticket, request: Request, ctx: &mut Context) {
        match request {
            Request::Read { offset, len } => self.begin_client_read(ticket, PRESENT, offset, len, ctx),
            Request::ReadSnapshot { snapshot, offset, len }
            | Request::ReadOrigin { snapshot, offset, len } => {
                self.begin_client_read(ticket, snapshot, offset, len, ctx);
            }
            Request::Write { offset, data } => {
                self.requests.last_written = ctx.now;
                ctx.counters.writes += 1;
                let len = data.len() as u64;
                ctx.counters.write_bytes += len;
                self.note_write(offset, len, ctx);
                let request = self.requests.begin(ticket, len);
                self.begin_write(request, offset, data, ctx);
            }
            Request::Zero { offset, len } => {
                ctx.counters.zeroes += 1;
                let request = self.requests.begin(ticket, 0);
                self.begin_zero(request, offset, len, ctx);
            }
            Request::Extents { offset, len, limit } => {
                let request = self.requests.begin(ticket, 0);
                self.begin_extents(request, PRESENT, offset, len, limit.max(1), ctx);
            }
            Request::SnapshotExtents { snapshot, offset, len, limit } => {
                let request = self.requests.begin(ticket, 0);
                self.begin_extents(request, snapshot, offset, len, limit.max(1), ctx);
            }
            Request::Differences { from, to, offset, len, limit } => {
                let request = self.requests.begin(ticket, 0);
                let to = to.unwrap_or(PRESENT);
                self.begin_differences(request, from, to, offset, len, limit.max(1), ctx);
            }
            Request::Warm { offset, len, data } => {
                let request = self.requests.begin(ticket, 0);
                self.begin_warm(request, offset, len, data, ctx);
            }
            Request::Flush => unreachable!("it was answered at once"),
        }
    }

    fn begin_client_read(
        &mut self,
        ticket: Ticket,
        at: Generation,
        offset: u64,
        len: u32,
        ctx: &mut Context,
    ) {
        ctx.counters.reads += 1;
        ctx.counters.read_bytes += u64::from(len);
        let request = self.requests.begin(ticket, 0);
        self.begin_read(request, at, offset, u64::from(len), ctx);
    }

    /// A part of a write is done or has failed; with the last one the request is answered.
    pub(crate) fn finish_part(&mut self, request: u64, error: Option<RequestError>, ctx: &mut Context) {
        // A request that was answered when the family was given up is not here any more.
        let Some(open) = self.requests.open.get_mut(&request) else { return };
        open.error = open.error.or(error);
        open.parts -= 1;
        if open.parts == 0 {
            let reply = open.error.map_or(Reply::Done, Reply::Error);
            self.reply(request, reply, ctx);
        }
    }

    /// Whether it goes on where another write ended.
    fn note_write(&mut self, offset: u64, len: u64, ctx: &Context) {
        let seen = self.write_streams.on_read(offset, len, 0, 0, ctx.limits, |_| true);
        self.pattern.writes_sequential += u64::from(seen.sequential);
        self.pattern.writes_random += u64::from(!seen.sequential);
    }

    /// Where the data of a read came from, which is answered next.
    pub(crate) fn note_source(&mut self, request: u64, source: Source, ctx: &mut Context) {
        let Some(open) = self.requests.open.get(&request) else { return };
        ctx.out.sources.push((open.ticket, source));
    }

    /// The one reply.
    pub(crate) fn reply(&mut self, request: u64, reply: Reply, ctx: &mut Context) {
        let Some(open) = self.requests.open.remove(&request) else {
            assert!(self.is_failed(), "a request is answered once");
            return;
        };
        self.requests.outstanding -= open.bytes;
        ctx.reply(open.ticket, reply);
    }

    fn begin_write(&mut self, request: u64, offset: u64, data: Buffer, ctx: &mut Context) {
        let mut works = Vec::new();
        let block_bytes = BLOCK as u64;
        let (mut at, end) = (offset, offset + data.len() as u64);
        while at < end {
            let block = Block(at / block_bytes);
            let within = at % block_bytes;
            let taken = (at - offset) as usize;
            if within != 0 || end - at < block_bytes {
                let len = (block_bytes - within).min(end - at);
                let bytes = data.slice(taken..taken + len as usize);
                let change = Change::Part { from: within as usize, bytes };
                works.push(Work { request, block, count: 1, change, waits_since: None });
                at += len;
            } else {
                let blocks = (end - at) / block_bytes;
                let bytes = data.slice(taken..taken + (blocks * block_bytes) as usize);
                works.push(Work {
                    request,
                    block,
                    count: blocks,
                    change: Change::Whole(Content::Data(bytes)),
                    waits_since: None,
                });
                at += blocks * block_bytes;
            }
        }
        self.admit_all(request, works, ctx);
    }

    fn begin_zero(&mut self, request: u64, offset: u64, len: u64, ctx: &mut Context) {
        let block_bytes = BLOCK as u64;
        let end = offset + len;
        let whole = offset.div_ceil(block_bytes)..end / block_bytes;
        let mut works = Vec::new();
        let mut part = |from: u64, to: u64| {
            let bytes = crate::buffer::zeros((to - from) as usize);
            let change = Change::Part { from: (from % block_bytes) as usize, bytes };
            let block = Block(from / block_bytes);
            works.push(Work { request, block, count: 1, change, waits_since: None });
        };
        if whole.start > whole.end {
            part(offset, end);
        } else {
            if whole.start * block_bytes > offset {
                part(offset, whole.start * block_bytes);
            }
            if end > whole.end * block_bytes {
                part(whole.end * block_bytes, end);
            }
            if whole.start < whole.end {
                let count = whole.end - whole.start;
                works.push(Work {
                    request,
                    block: Block(whole.start),
                    count,
                    change: Change::Whole(Content::Zero),
                    waits_since: None,
                });
            }
        }
        self.admit_all(request, works, ctx);
    }

    fn admit_all(&mut self, request: u64, works: Vec<Work>, ctx: &mut Context) {
        for _ in &works {
            self.requests.add_part(request);
        }
        for work in works {
            self.admit(work, ctx);
        }
    }
}
