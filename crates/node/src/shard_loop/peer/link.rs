//! One connection between two shards: frames on their way out, and the one that is coming in.
//! Promises: at most one receive and one send in flight; what is said in one turn leaves in one call, as far as it is short; payload is sent
//! from where it lies and lands where a drive can take it; whatever arrives, no more memory is taken than its
//! header may claim.
//! Leaves to others: what frames say (`weft_engine::formats::wire`), which connections there are (`peer`).

use super::options;
use super::ways::Counted;
use crate::api::LaneStatsView;
use crate::shard_loop::arena::{Arena, Space};
use crate::shard_loop::ring::Ring;
use crate::shard_loop::sending::{self, Sending, Sent};
use io_uring::{opcode, types};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use weft_engine::buffer::{Buffer, zeros};
use weft_engine::formats::wire::{self, Frame, HEADER_BYTES, Header, Lane, Packet, WireFault};
use weft_engine::{ShardId, Time};

/// Bytes received at once: many small frames. What of a payload comes along is copied from here.
const SCRATCH_BYTES: usize = 64 << 10;

/// Behind a payload of this size the next header is received alone, so that the next payload goes straight to its place.
const LARGE_PAYLOAD: usize = 64 << 10;

/// What may wait to be sent. The frame that crosses the limit still goes.
const QUEUE_BYTES_MAX: usize = 64 << 20;
const QUEUE_FRAMES_MAX: usize = 4096;

/// Requests of clients taken from one connection and not answered, and their bytes. Whoever asks keeps to half of that by itself
/// (`worker/windows`); here it is what a shard is protected by from one that does not.
pub(in crate::shard_loop) const OPEN_REQUESTS_MAX: usize = 2048;
pub(in crate::shard_loop) const OPEN_BYTES_MAX: usize = 128 << 20;

pub struct Link {
    socket: socket2::Socket,
    /// The shard on the other side.
    pub shard: ShardId,
    pub lane: Lane,
    /// Whether this side made the connection.
    pub dialled: bool,
    pub since: Time,
    connecting: bool,
    receive: Receive,
    scratch: Box<[u8]>,
    /// What is in `scratch` and not consumed.
    rest: Range<usize>,
    stage: Stage,
    body: Vec<u8>,
    last_payload: usize,
    sending: Sending,
    queue: VecDeque<Frame>,
    queued_bytes: usize,
    /// A whole frame has been sent.
    has_sent: bool,
    /// Bytes of the first frame in the queue that have been sent.
    front_sent: usize,
    /// Requests taken from here and not answered, and what they carry or will.
    open_requests: usize,
    open_bytes: usize,
    /// Too much is open: nothing more is taken until something was answered or sent.
    parked: bool,
    /// Something sound has arrived: the other side takes us for what we are.
    heard: bool,
    broken: bool,
    /// What the kernel had counted when it was asked last.
    counted: Counted,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Receive {
    Idle,
    Bytes,
    Payload,
}

/// The part of a frame that is expected next.
enum Stage {
    Header,
    Body(Header),
    Payload { header: Header, space: Space, filled: usize },
}

pub enum Next {
    Packet(Packet),
    /// Wait for completions.
    Nothing,
    /// All is over; it can go as soon as nothing is in flight.
    Over,
}

impl Link {
    /// A connection that is being made (`connecting`), or one that has been.
    pub fn new(
        socket: socket2::Socket,
        shard: ShardId,
        lane: Lane,
        dialled: bool,
        connecting: bool,
        now: Time,
    ) -> Self {
        Self {
            socket,
            shard,
            lane,
            dialled,
            since: now,
            connecting,
            receive: Receive::Idle,
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            rest: 0..0,
            stage: Stage::Header,
            body: Vec::new(),
            last_payload: 0,
            sending: Sending::default(),
            queue: VecDeque::new(),
            queued_bytes: 0,
            has_sent: false,
            front_sent: 0,
            open_requests: 0,
            open_bytes: 0,
            parked: false,
            heard: false,
            broken: false,
            counted: Counted::default(),
        }
    }

    /// Whether the kernel still works on memory of this link.
    pub fn is_in_flight(&self) -> bool {
        self.receive != Receive::Idle || self.sending.is_in_flight() || self.connecting
    }

    /// Whether anything sound was ever received here.
    pub fn was_heard(&self) -> bool {
        self.heard
    }

    /// Whether it has been made, and not broken since.
    pub fn stands(&self) -> bool {
        !self.connecting && !self.broken
    }

    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Frames that wait to be sent, without the hello.
    pub fn unsent(&self) -> usize {
        let says_hello = self.dialled && !self.has_sent;
        self.queue.len() - usize::from(says_hello && !self.queue.is_empty())
    }

    /// Ends everything: what is in flight comes back at once, with an error.
    pub fn break_off(&mut self) {
        if !self.broken {
            self.broken = true;
            // An error means that the other side was faster.
            let _ = self.socket.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Asks the ring to say when the connection stands, or will never.
    pub fn wait_for_connection(&mut self, tag: u64, ring: &mut Ring) {
        assert!(self.connecting, "only what is being made is waited for");
        let entry = opcode::PollAdd::new(types::Fd(self.socket.as_raw_fd()), libc::POLLOUT as u32);
        // SAFETY: the socket stays open until the poll has come back (`is_in_flight`).
        unsafe { ring.push(entry.build().user_data(tag)) };
    }

    /// What was sent here since this was asked last, as the kernel has counted. None: it does not stand.
    pub fn count_segments(&mut self) -> Option<Counted> {
        if !self.stands() {
            return None;
        }
        let counted = options::counted(&self.socket)?;
        let before = std::mem::replace(&mut self.counted, counted);
        Some(counted.after(before))
    }

    pub fn on_connected(&mut self) {
        self.connecting = false;
        let failure = match self.socket.take_error() {
            Ok(None) => options::make_blocking(&self.socket).err(),
            Ok(error) => error,
            Err(error) => Some(error),
        };
        if let Some(error) = failure {
            tracing::debug!(shard = self.shard.0, %error, "a shard cannot be reached");
            self.break_off();
        }
    }

    /// Puts an answer behind the frames that wait, however many there are: there are no more than requests were taken.
    pub fn push_answer(&mut self, frame: Frame) {
        self.queued_bytes += frame.bytes();
        self.queue.push_back(frame);
    }

    /// Puts a frame behind those that wait. False: there are too many, and this one is not taken.
    pub fn push(&mut self, frame: Frame) -> bool {
        if self.broken || self.is_queue_full() {
            return false;
        }
        self.queued_bytes += frame.bytes();
        self.queue.push_back(frame);
        true
    }

    pub fn is_queue_full(&self) -> bool {
        self.queue.len() >= QUEUE_FRAMES_MAX || self.queued_bytes >= QUEUE_BYTES_MAX
    }

    /// A request was taken from here that carries, or asks for, so many bytes.
    pub fn open_request(&mut self, bytes: usize) {
        self.open_requests += 1;
        self.open_bytes += bytes;
    }

    /// ... and answered. True if the link should be looked at again because of it.
    pub fn close_request(&mut self, bytes: usize) -> bool {
        assert!(self.open_requests > 0 && self.open_bytes >= bytes, "a request is answered once");
        self.open_requests -= 1;
        self.open_bytes -= bytes;
        self.unpark()
    }

    /// No more requests are taken. (Answers always are, or two sides could wait for each other.)
    fn is_full(&self) -> bool {
        let much = self.open_bytes + self.queued_bytes >= OPEN_BYTES_MAX;
        self.lane == Lane::Client && !self.dialled && (much || self.open_requests >= OPEN_REQUESTS_MAX)
    }

    /// True if it has waited for room, and there is some again.
    fn unpark(&mut self) -> bool {
        self.parked && !self.is_full() && std::mem::replace(&mut self.parked, false)
    }

    /// The next packet of what has been received, or a receive for more.
    pub fn next(
        &mut self,
        payloads: &Arc<Arena>,
        counted: &mut LaneStatsView,
        tag: u64,
        ring: &mut Ring,
    ) -> Next {
        loop {
            if self.broken {
                return Next::Over;
            }
            if self.connecting || self.receive != Receive::Idle {
                return Next::Nothing;
            }
            match self.advance(payloads, tag, ring) {
                Ok(Progress::Packet(packet, bytes)) => {
                    self.heard = true;
                    counted.messages_received += 1;
                    counted.bytes_received += bytes as u64;
                    return Next::Packet(packet);
                }
                Ok(Progress::Further) => {}
                Ok(Progress::Waiting) => return Next::Nothing,
                Err(fault) => {
                    tracing::warn!(shard = self.shard.0, lane = ?self.lane, %fault, "a connection to a shard is given up");
                    self.break_off();
                }
            }
        }
    }

    fn advance(&mut self, payloads: &Arc<Arena>, tag: u64, ring: &mut Ring) -> Result<Progress, WireFault> {
        match std::mem::replace(&mut self.stage, Stage::Header) {
            Stage::Header => {
                if self.is_full() {
                    self.parked = true;
                    return Ok(Progress::Waiting);
                }
                if self.rest.len() < HEADER_BYTES {
                    self.receive_bytes(HEADER_BYTES - self.rest.len(), tag, ring);
                    return Ok(Progress::Waiting);
                }
                let end = self.rest.start + HEADER_BYTES;
                let header = Header::decode(&self.scratch[self.rest.start..end])?;
                self.rest.start = end;
                if !self.lane.carries(header.kind, !self.dialled) {
                    return Err(WireFault::Malformed);
                }
                self.body.clear();
                self.stage = Stage::Body(header);
                Ok(Progress::Further)
            }
            Stage::Body(header) => {
                let missing = header.body_len as usize - self.body.len();
                let here = self.rest.len().min(missing);
                // Memory is taken for what has arrived, not for what was announced.
                self.body.extend_from_slice(&self.scratch[self.rest.start..self.rest.start + here]);
                self.rest.start += here;
                if here < missing {
                    self.stage = Stage::Body(header);
                    self.receive_bytes(missing - here, tag, ring);
                    return Ok(Progress::Waiting);
                }
                let len = header.payload_len as usize;
                self.last_payload = len;
                if len == 0 {
                    return self.packet(&header, &zeros(0));
                }
                let mut space = payloads.take(len);
                let filled = self.rest.len().min(len);
                space.bytes_mut()[..filled].copy_from_slice(&self.scratch[self.rest.start..][..filled]);
                self.rest.start += filled;
                self.stage = Stage::Payload { header, space, filled };
                Ok(Progress::Further)
            }
            Stage::Payload { header, space, filled } if filled == header.payload_len as usize => {
                self.packet(&header, &space.freeze(filled))
            }
            payload @ Stage::Payload { .. } => {
                self.stage = payload;
                self.receive_payload(tag, ring);
                Ok(Progress::Waiting)
            }
        }
    }

    fn packet(&mut self, header: &Header, payload: &Buffer) -> Result<Progress, WireFault> {
        let packet = wire::decode(header, &self.body, payload)?;
        Ok(Progress::Packet(packet, HEADER_BYTES + self.body.len() + payload.len()))
    }

    /// Receives what comes; behind a large payload only the `needed` bytes.
    fn receive_bytes(&mut self, needed: usize, tag: u64, ring: &mut Ring) {
        self.scratch.copy_within(self.rest.clone(), 0);
        self.rest = 0..self.rest.len();
        let free = &mut self.scratch[self.rest.end..];
        let len = if self.last_payload >= LARGE_PAYLOAD { needed.min(free.len()) } else { free.len() };
        assert!(len > 0, "there is room for what is needed");
        self.receive = Receive::Bytes;
        let entry = opcode::Recv::new(types::Fd(self.socket.as_raw_fd()), free.as_mut_ptr(), len as u32);
        // SAFETY: the scratch memory and the socket live until the receive has come back (`is_in_flight`).
        unsafe { ring.push(entry.build().user_data(tag)) };
    }

    fn receive_payload(&mut self, tag: u64, ring: &mut Ring) {
        let Stage::Payload { header, space, filled } = &mut self.stage else {
            panic!("payload is received into its place");
        };
        let left = &mut space.bytes_mut()[*filled..header.payload_len as usize];
        self.receive = Receive::Payload;
        let fd = types::Fd(self.socket.as_raw_fd());
        let entry = opcode::Recv::new(fd, left.as_mut_ptr(), left.len() as u32).flags(libc::MSG_WAITALL);
        // SAFETY: the payload's memory stays in `self.stage` until the receive has come back.
        unsafe { ring.push(entry.build().user_data(tag)) };
    }

    /// A receive ended with this many bytes, or minus an error.
    pub fn on_received(&mut self, result: i32) {
        let what = std::mem::replace(&mut self.receive, Receive::Idle);
        if result == -libc::EINTR || result == -libc::EAGAIN {
            return;
        }
        if result <= 0 {
            return self.break_off();
        }
        match what {
            Receive::Bytes => self.rest.end += result as usize,
            Receive::Payload => {
                let Stage::Payload { header, filled, .. } = &mut self.stage else {
                    panic!("payload was received into its place");
                };
                *filled += result as usize;
                assert!(*filled <= header.payload_len as usize, "no more is received than was asked for");
            }
            Receive::Idle => panic!("only what is in flight comes back"),
        }
    }

    /// Sends what waits: at once as much as goes into one call, and the rest by the ring, so that an egroup does not keep the
    /// shard from its logs. True if the link should be looked at again because of it.
    pub fn send(&mut self, counted: &mut LaneStatsView, tag: u64, ring: &mut Ring) -> bool {
        let mut sent = 0;
        while !self.sending.is_in_flight() && !self.broken && !self.connecting && !self.queue.is_empty() {
            let (fd, pieces) = (self.socket.as_raw_fd(), unsent(&self.queue, self.front_sent));
            if sent >= sending::BYTES_MAX {
                // SAFETY: see below.
                unsafe { self.sending.send_later(fd, pieces, tag, ring) };
                break;
            }
            // SAFETY: frames leave the queue only when they are sent, and a longer queue does not move what its frames
            // point to; the socket stays open until the send has come back (`is_in_flight`).
            match unsafe { self.sending.send(fd, pieces, tag, ring) } {
                Sent::Bytes(count) => {
                    sent += count;
                    self.sent(count, counted);
                }
                Sent::Later => {}
                Sent::Failed => self.break_off(),
            }
        }
        self.broken || self.unpark()
    }

    /// A send ended with this many bytes, or minus an error.
    pub fn on_sent(&mut self, result: i32, counted: &mut LaneStatsView) {
        match self.sending.on_sent(result) {
            Some(count) => self.sent(count, counted),
            None => self.break_off(),
        }
    }

    fn sent(&mut self, count: usize, counted: &mut LaneStatsView) {
        counted.bytes_sent += count as u64;
        self.front_sent += count;
        while let Some(front) = self.queue.front() {
            let len = front.bytes();
            if self.front_sent < len {
                break;
            }
            self.front_sent -= len;
            self.queued_bytes -= len;
            counted.messages_sent += 1;
            self.has_sent = true;
            self.queue.pop_front();
        }
        assert!(!self.queue.is_empty() || self.front_sent == 0, "no more is sent than there was");
    }
}

enum Progress {
    /// With its length on the wire.
    Packet(Packet, usize),
    /// Go on.
    Further,
    /// A receive is in flight, or too much is open.
    Waiting,
}

/// The pieces of these frames behind the first `sent` bytes.
fn unsent(queue: &VecDeque<Frame>, sent: usize) -> impl Iterator<Item = &[u8]> {
    let pieces = queue.iter().flat_map(|frame| {
        std::iter::once(frame.head.as_slice()).chain(frame.payload.iter().map(Buffer::bytes))
    });
    let left = pieces.scan(sent, |skip, piece| {
        let skipped = piece.len().min(*skip);
        *skip -= skipped;
        Some(&piece[skipped..])
    });
    left.filter(|left| !left.is_empty())
}
