//! The door of a vDisk: what its clients ask for waits here, in order, while its limits are used up.
//! Promises: in any span of time no more is let in than the limits allow in that span and a burst, and one request on top
//! (a large one is let in as a whole, and paid for afterwards); nothing fails because of a limit.
//! Leaves to others: what becomes of what is let in (`request.rs`).
//!
//! One request is one I/O, however large. Trims move no bytes. What costs nothing passes those that wait: flushes (all that
//! was acknowledged is durable already), questions about the map, and reads of clones, who have paid at their own door. So
//! nobody who waits here is waited for by somebody who was let in elsewhere.

use super::Volume;
use crate::context::Context;
use crate::counters::Throttled;
use crate::identity::{Ticket, Time};
use crate::interface::{Ceiling, Reply, Request, RequestError};
use crate::sabotage::{Bug, planted};
use std::collections::VecDeque;

/// What was not used for so long can be made up for at once. Short enough for small limits to be smooth, long enough for
/// bursts of clients that are within their limit on average.
pub const BURST_US: u64 = 100_000;

const NS_OF_SECOND: u64 = 1_000_000_000;

/// What a request takes of the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cost {
    ios: u64,
    bytes: u64,
}

impl Cost {
    /// None: it costs nothing.
    fn of(request: &Request) -> Option<Self> {
        match request {
            Request::Read { len, .. } | Request::ReadSnapshot { len, .. } => {
                Some(Self { ios: 1, bytes: u64::from(*len) })
            }
            Request::Write { data, .. } => Some(Self { ios: 1, bytes: data.len() as u64 }),
            Request::Zero { .. } => Some(Self { ios: 1, bytes: 0 }),
            Request::Flush
            | Request::Extents { .. }
            | Request::Warm { .. }
            | Request::ReadOrigin { .. }
            | Request::SnapshotExtents { .. }
            | Request::Differences { .. } => None,
        }
    }
}

/// A token bucket, told as the time at which all that was taken is paid for.
#[derive(Debug, Default)]
struct Bucket {
    /// In a second; None: no limit.
    rate: Option<u64>,
    paid_ns: u64,
}

impl Bucket {
    fn new(rate: Option<u64>) -> Self {
        Self { rate: rate.filter(|&rate| rate > 0), paid_ns: 0 }
    }

    fn is_open(&self, now: Time) -> bool {
        self.rate.is_none() || self.paid_ns < (now.0 + BURST_US) * 1_000
    }

    fn take(&mut self, now: Time, count: u64) {
        let Some(rate) = self.rate else { return };
        // Rounded up: never more than the limit.
        let price_ns = (count * NS_OF_SECOND).div_ceil(rate);
        self.paid_ns = self.paid_ns.max(now.0 * 1_000) + price_ns;
    }

    /// When it is open again.
    fn opens_at(&self) -> Time {
        if self.rate.is_none() { Time(0) } else { Time((self.paid_ns / 1_000 + 1).saturating_sub(BURST_US)) }
    }
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    request: Request,
    cost: Cost,
    since: Time,
}

#[derive(Debug)]
pub(crate) struct Door {
    ceiling: Ceiling,
    ios: Bucket,
    bytes: Bucket,
    waiting: VecDeque<Waiting>,
    pub throttled: Throttled,
}

impl Door {
    pub fn new(ceiling: Ceiling) -> Self {
        Self {
            ceiling,
            ios: Bucket::new(ceiling.iops.map(u64::from)),
            bytes: Bucket::new(ceiling.bytes),
            waiting: VecDeque::new(),
            throttled: Throttled::default(),
        }
    }

    /// Whether the request does not wait for anybody here.
    pub fn is_passed(request: &Request) -> bool {
        Cost::of(request).is_none()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// When the first that waits can be let in.
    pub fn wake_at(&self) -> Option<Time> {
        let opens_at = self.ios.opens_at().max(self.bytes.opens_at());
        (!self.waiting.is_empty()).then_some(opens_at)
    }

    fn is_open(&self, now: Time) -> bool {
        self.ios.is_open(now) && self.bytes.is_open(now)
    }

    fn take(&mut self, cost: Cost, now: Time) {
        self.ios.take(now, cost.ios);
        if !planted(Bug::LargeRequestsFree) {
            self.bytes.take(now, cost.bytes);
        }
    }

    /// Gives the request back if it may go on at once.
    fn knock(&mut self, ticket: Ticket, request: Request, now: Time) -> Option<Request> {
        let Some(cost) = Cost::of(&request) else { return Some(request) };
        if self.waiting.is_empty() && self.is_open(now) {
            self.take(cost, now);
            return Some(request);
        }
        self.waiting.push_back(Waiting { ticket, request, cost, since: now });
        None
    }

    /// The next that may go on now.
    fn next(&mut self, now: Time) -> Option<Waiting> {
        if !self.is_open(now) {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.take(next.cost, now);
        Some(next)
    }

    /// Answers everybody who waits.
    pub fn answer_all(&mut self, error: RequestError, ctx: &mut Context) {
        for waiting in std::mem::take(&mut self.waiting) {
            ctx.reply(waiting.ticket, Reply::Error(error));
        }
    }
}

impl Volume {
    pub fn set_ceiling(&mut self, ceiling: Ceiling) {
        // Told again, it changes nothing: what was used up stays used up.
        if self.door.ceiling == ceiling {
            return;
        }
        let (waiting, throttled) = (std::mem::take(&mut self.door.waiting), self.door.throttled);
        self.door = Door { waiting, throttled, ..Door::new(ceiling) };
    }

    /// A request that is in order. It goes on now or later.
    pub(super) fn knock(&mut self, ticket: Ticket, request: Request, ctx: &mut Context) {
        if let Some(request) = self.door.knock(ticket, request, ctx.now) {
            self.begin_request(ticket, request, ctx);
        }
    }

    /// Lets in those that wait, as far as the limits allow.
    pub(crate) fn open_door(&mut self, ctx: &mut Context) {
        if planted(Bug::DoorStaysShut) {
            return;
        }
        while let Some(Waiting { ticket, request, since, .. }) = self.door.next(ctx.now) {
            let waited_us = ctx.now.since(since);
            for throttled in [&mut self.door.throttled, &mut ctx.counters.throttled] {
                throttled.requests += 1;
                throttled.us += waited_us;
            }
            // The vDisk may have changed meanwhile.
            match self.answer_at_once(&request, ctx) {
                Some(reply) => ctx.reply(ticket, reply),
                None => self.begin_request(ticket, request, ctx),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(len: u32) -> Request {
        Request::Read { offset: 0, len }
    }

    /// Requests that were let in, when as many as can be are asked for all the time, for `seconds`.
    fn let_in(door: &mut Door, len: u32, seconds: u64) -> u64 {
        let begin = Time(1 << 40);
        let (mut now, mut count) = (begin, 0);
        while now.since(begin) < seconds * 1_000_000 {
            while door.waiting.len() < 32 {
                count += u64::from(door.knock(Ticket(0), read(len), now).is_some());
            }
            while door.next(now).is_some() {
                count += 1;
            }
            // A shard wakes no more often than that.
            now = door.wake_at().unwrap_or(now).max(now.after(100));
        }
        count
    }

    #[test]
    fn no_more_is_let_in_than_the_limit_and_a_burst() {
        for (iops, seconds) in [(1, 20), (7, 10), (500, 4), (20_000, 2), (1_000_000, 1)] {
            let mut door = Door::new(Ceiling { iops: Some(iops), bytes: None });
            let count = let_in(&mut door, 4096, seconds);
            let most = u64::from(iops) * seconds + u64::from(iops) / 10 + 1;
            assert!(count <= most, "{count} of {most} at {iops}");
            assert!(count >= u64::from(iops) * seconds * 9 / 10, "{count} at {iops}");
        }
    }

    #[test]
    fn a_request_larger_than_the_burst_is_paid_for_afterwards() {
        let mut door = Door::new(Ceiling { iops: None, bytes: Some(1 << 20) });
        let count = let_in(&mut door, 4 << 20, 40);
        assert!((10..=11).contains(&count), "{count} times 4 MiB in 40 s");
    }

    #[test]
    fn whoever_waits_is_let_in_in_order_and_what_costs_nothing_does_not_wait() {
        let now = Time(5_000_000);
        let mut door = Door::new(Ceiling { iops: Some(10), bytes: None });
        assert!(door.knock(Ticket(1), read(1), now).is_some());
        for ticket in 2..5 {
            assert!(door.knock(Ticket(ticket), read(1), now).is_none());
        }
        assert!(door.knock(Ticket(9), Request::Flush, now).is_some());
        assert!(door.next(now).is_none());
        for ticket in 2..5 {
            let at = door.wake_at().expect("somebody waits");
            assert!(door.next(Time(at.0 - 1)).is_none(), "not earlier than it says");
            assert_eq!(door.next(at).map(|next| next.ticket), Some(Ticket(ticket)));
        }
        assert!(door.is_empty() && door.wake_at().is_none());
    }
}
