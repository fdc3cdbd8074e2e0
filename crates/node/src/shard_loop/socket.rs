//! One client connection of a shard: the protocol's state, and the memory the kernel fills and empties for it.
//! Promises: at most one receive and one send in flight; small requests come many at a time, large payload lands
//! where the drive can take it; replies of one turn go out in one call.
//! Leaves to others: the protocol (`weft_frontends::nbd`), tickets (`worker`).

use super::arena::{Arena, Space};
use super::ring::Ring;
use super::sending::{Sending, Sent};
use super::tcp_info::tcp_info;
use io_uring::{opcode, types};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_engine::FamilyId;
use weft_frontends::nbd::{Connection, Event, Exports, Outgoing, Want};

/// Bytes received at once: many small requests with their payload.
const SCRATCH_BYTES: usize = 256 << 10;

/// A client that sends payload of at least this size gets its headers received alone, so that the payload goes
/// straight to its place instead of through the scratch memory.
const LARGE_PAYLOAD: usize = 128 << 10;

/// So much is sent at once of the replies of one connection; the rest by the ring, so that who takes them as fast as they come
/// does not keep the shard from its other work: some 800 us.
const AT_ONCE_BYTES_MAX: usize = 4 << 20;

/// So much that a client has sent is taken from its socket at most when it ends: more than lies in one, and no more than a few milliseconds' work,
/// should it go on sending.
const UNREAD_BYTES_MAX: usize = 16 << 20;

/// The length of a request's header on the wire.
const HEADER_BYTES: usize = 28;

pub struct Socket {
    fd: OwnedFd,
    pub connection: Connection,
    pub address: Arc<str>,
    /// When it was accepted, in the shard's time.
    pub since_us: u64,
    receive: Receive,
    scratch: Box<[u8]>,
    /// What is in `scratch` and not consumed.
    rest: std::ops::Range<usize>,
    payload: Option<Payload>,
    last_payload: usize,
    sending: Sending,
    outgoing: Outgoing,
    /// Bytes sent, and received as payload, in all.
    moved_bytes: u64,
    /// The socket is of no more use: nothing is received or sent any more.
    broken: bool,
    /// No more requests are taken.
    finished: bool,
    /// It stood still, perhaps with something of the client's unread, and whether the client is still there has not been looked at since.
    stood_still: bool,
    /// Set when the client has gone: what was asked for it elsewhere and not begun is not done any more.
    ended: Arc<AtomicBool>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Receive {
    Idle,
    Bytes,
    Payload,
}

/// A write's payload that is being received.
struct Payload {
    space: Space,
    len: usize,
    filled: usize,
}

/// What a client is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// It has announced a write and not given all of it.
    ToGive,
    /// It has not taken its answers.
    ToTake,
}

/// What can be done next with a socket.
pub enum Next {
    Event(Event),
    /// What the client wants to write has no room now.
    NoRoom,
    /// Wait for completions or replies.
    Nothing,
    /// Another shard serves the vDisk that was chosen: the connection goes there.
    Elsewhere(FamilyId),
    /// All is over; it can go as soon as nothing is in flight.
    Over,
}

impl Socket {
    pub fn new(fd: OwnedFd, exports: Arc<dyn Exports>, address: Arc<str>, now_us: u64) -> Self {
        Self {
            fd,
            connection: Connection::new(exports),
            address,
            since_us: now_us,
            receive: Receive::Idle,
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            rest: 0..0,
            payload: None,
            last_payload: 0,
            sending: Sending::default(),
            outgoing: Outgoing::default(),
            moved_bytes: 0,
            broken: false,
            finished: false,
            stood_still: false,
            ended: Arc::default(),
        }
    }

    /// Whether the kernel still works on memory of this socket.
    pub fn is_in_flight(&self) -> bool {
        self.receive != Receive::Idle || self.sending.is_in_flight()
    }

    /// Ends everything: what is in flight comes back at once, with an error.
    pub fn break_off(&mut self) {
        if !self.broken {
            self.broken = true;
            self.leave();
            // SAFETY: a plain call on an open descriptor; an error means that the peer was faster.
            unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_RDWR) };
        }
    }

    /// The client has ended its side, or is sent away: what was not begun is given up, and what the engine has is answered if
    /// somebody listens.
    pub fn leave(&mut self) {
        self.connection.leave();
        self.ended.store(true, Ordering::SeqCst);
        take_unread(self.fd.as_fd(), UNREAD_BYTES_MAX);
    }

    /// What says, also to others, that the client has gone.
    pub fn ended(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.ended)
    }

    /// No more requests are taken; what is open is answered.
    pub fn finish(&mut self) {
        self.finished = true;
        self.connection.hang_up();
        // SAFETY: as above. A receive in flight ends.
        unsafe { libc::shutdown(self.fd.as_raw_fd(), libc::SHUT_RD) };
    }

    /// The next request of what has been received, or a receive for more. `is_here`: whether this shard serves a vDisk;
    /// `has_room`: whether there is memory for so much of what a client writes to this one.
    pub fn next(
        &mut self,
        is_here: impl Fn(FamilyId) -> bool,
        has_room: impl Fn(FamilyId, usize) -> bool,
        payloads: &Arc<Arena>,
        tag: u64,
        ring: &mut Ring,
    ) -> Next {
        if self.stood_still && matches!(self.connection.want(), Want::Bytes | Want::Payload { .. }) {
            self.leave_if_closed();
        }
        loop {
            if self.broken {
                return Next::Over;
            }
            if let Some(payload) = &self.payload {
                if !matches!(self.connection.want(), Want::Payload { .. }) {
                    // The connection was told to end in the middle of a write; that write was never begun.
                    if self.receive == Receive::Payload {
                        return Next::Nothing;
                    }
                    self.payload = None;
                    continue;
                }
                if payload.filled < payload.len {
                    self.receive_payload(tag, ring);
                    return Next::Nothing;
                }
                let payload = self.payload.take().expect("it was just looked at");
                let event = self.connection.payload(payload.space.freeze(payload.len));
                return Next::Event(event);
            }
            if let Some(family) = self.connection.family().filter(|&family| !is_here(family))
                && self.receive == Receive::Idle
                && self.connection.open_requests() == 0
                && self.connection.want() == Want::Bytes
            {
                // The last word of the handshake goes out first: nothing may be in flight when it moves.
                let has_sent = !self.sending.is_in_flight()
                    && self.outgoing.is_empty()
                    && self.connection.outgoing().is_empty();
                return if has_sent { Next::Elsewhere(family) } else { Next::Nothing };
            }
            // While bytes are being received, `rest` is empty: there is nothing to look at, except what a busy
            // engine gave back.
            let mut input = &self.scratch[self.rest.clone()];
            let before = input.len();
            let event = self.connection.next_event(&mut input);
            self.rest.start += before - input.len();
            if let Some(event) = event {
                return Next::Event(event);
            }
            match self.connection.want() {
                Want::Bytes => {
                    self.receive_bytes(tag, ring);
                    return Next::Nothing;
                }
                Want::Payload { len } if !self.connection.family().is_some_and(|to| has_room(to, len)) => {
                    self.stood_still = true;
                    return Next::NoRoom;
                }
                Want::Payload { len } => self.begin_payload(len, payloads),
                Want::Wait => {
                    // A receive in flight tells when the client goes, and what it brings has just come.
                    self.stood_still |= self.receive == Receive::Idle;
                    return Next::Nothing;
                }
                Want::Close if self.connection.outgoing().is_empty() && self.outgoing.is_empty() => {
                    return Next::Over;
                }
                Want::Close => return Next::Nothing,
            }
        }
    }

    fn begin_payload(&mut self, len: usize, payloads: &Arc<Arena>) {
        let mut space = payloads.take(len);
        let here = self.rest.len().min(len);
        let from = self.rest.start;
        space.bytes_mut()[..here].copy_from_slice(&self.scratch[from..from + here]);
        self.rest.start += here;
        self.last_payload = len;
        self.payload = Some(Payload { space, len, filled: here });
    }

    fn receive_bytes(&mut self, tag: u64, ring: &mut Ring) {
        if self.receive != Receive::Idle {
            return;
        }
        assert!(self.rest.is_empty(), "all that was received has been consumed when more is wanted");
        let len = if self.last_payload >= LARGE_PAYLOAD { HEADER_BYTES } else { SCRATCH_BYTES };
        // A later small request is received with its neighbours again.
        self.last_payload = 0;
        self.rest = 0..0;
        self.receive = Receive::Bytes;
        let entry = opcode::Recv::new(types::Fd(self.fd.as_raw_fd()), self.scratch.as_mut_ptr(), len as u32);
        // SAFETY: the scratch memory and the socket live until the receive has come back (`is_in_flight`).
        unsafe { ring.push(entry.build().user_data(tag)) };
    }

    fn receive_payload(&mut self, tag: u64, ring: &mut Ring) {
        if self.receive != Receive::Idle {
            return;
        }
        self.receive = Receive::Payload;
        let payload = self.payload.as_mut().expect("payload is received into its place");
        let left = &mut payload.space.bytes_mut()[payload.filled..payload.len];
        let entry = opcode::Recv::new(types::Fd(self.fd.as_raw_fd()), left.as_mut_ptr(), left.len() as u32)
            .flags(libc::MSG_WAITALL);
        // SAFETY: the payload's memory stays in `self.payload` until the receive has come back.
        unsafe { ring.push(entry.build().user_data(tag)) };
    }

    /// A receive ended with this many bytes, or minus an error.
    pub fn on_received(&mut self, result: i32) {
        let what = std::mem::replace(&mut self.receive, Receive::Idle);
        if result == -libc::EINTR || result == -libc::EAGAIN {
            return;
        }
        if result <= 0 {
            if result == 0 && self.finished {
                // It is we who receive no more: what is open is answered, and a write of which a part is missing was none.
                self.payload = None;
                return;
            }
            // The client has gone. What the engine has of it is still done and, if somebody listens, answered.
            if self.payload.take().is_some() || result < 0 {
                self.break_off();
            } else {
                self.leave();
            }
            return;
        }
        match what {
            Receive::Bytes => self.rest = 0..result as usize,
            Receive::Payload => {
                self.moved_bytes += result as u64;
                if let Some(payload) = &mut self.payload {
                    payload.filled += result as usize;
                    assert!(payload.filled <= payload.len, "no more is received than was asked for");
                }
            }
            Receive::Idle => panic!("only what is in flight comes back"),
        }
    }

    /// Bytes in memory for this connection, or soon: also of a write that is still being received.
    pub fn memory_bytes(&self) -> usize {
        self.connection.memory_bytes() + self.payload.as_ref().map_or(0, |payload| payload.len)
    }

    /// Bytes that the client has taken and given so far, and what it is waited for, if for anything.
    pub fn progress(&self) -> (u64, Option<Waits>) {
        let waits = if self.receive == Receive::Payload {
            Some(Waits::ToGive)
        } else {
            self.sending.is_in_flight().then_some(Waits::ToTake)
        };
        (self.moved_bytes, waits)
    }

    /// Whether the payload of a write is to be received, and there was no room for it.
    pub fn waits_for_room(&self) -> bool {
        self.payload.is_none() && matches!(self.connection.want(), Want::Payload { .. })
    }

    /// Nobody looked at it for a while: before anything more of its client's is taken, also the write that is being received, it is
    /// looked whether that is still there.
    pub fn note_stand(&mut self) {
        self.stood_still = true;
    }

    /// Leaves if the client has closed its side; true if so. While a connection stands still nothing is received, so nothing else
    /// tells; and what lies unread may not come behind what the client, back on another connection, has had answered since.
    pub fn leave_if_closed(&mut self) -> bool {
        self.stood_still = false;
        let is_closed = self.is_closed_by_client();
        if is_closed {
            // It may still listen: libnbd ends its side behind its goodbye, and waits for what is open.
            self.leave();
        }
        is_closed
    }

    fn is_closed_by_client(&self) -> bool {
        // That we receive no more ourselves looks the same as a client that sends no more.
        if self.finished && self.has_fin() {
            return true;
        }
        let events = if self.finished { 0 } else { libc::POLLRDHUP };
        let mut look = libc::pollfd { fd: self.fd.as_raw_fd(), events, revents: 0 };
        // SAFETY: one entry, alive during the call, which does not wait.
        unsafe { libc::poll(&raw mut look, 1, 0) > 0 }
    }

    /// Whether a TCP connection is not whole any more while our side has not ended it. Of a Unix socket that is not known here; it
    /// hangs up when its client goes.
    fn has_fin(&self) -> bool {
        const ESTABLISHED: u8 = 1;
        tcp_info(self.fd.as_fd()).is_some_and(|told| told.tcpi_state != ESTABLISHED)
    }

    /// Replies wait to be sent, and nothing is in the way.
    pub fn has_replies(&mut self) -> bool {
        !self.sending.is_in_flight() && !self.broken && !self.connection.outgoing().is_empty()
    }

    /// Sends all replies so far, or hands them to the ring if the client does not take them as fast. True if the
    /// connection should be looked at again because of it.
    pub fn send(&mut self, tag: u64, ring: &mut Ring) -> bool {
        let (mut has_sent, mut sent) = (false, 0);
        while !self.sending.is_in_flight() && !self.broken {
            if self.outgoing.is_empty() {
                if self.connection.outgoing().is_empty() {
                    break;
                }
                self.connection.swap_outgoing(&mut self.outgoing);
            }
            let (fd, pieces) = (self.fd.as_raw_fd(), self.outgoing.slices());
            if sent >= AT_ONCE_BYTES_MAX {
                // SAFETY: see below.
                unsafe { self.sending.send_later(fd, pieces, tag, ring) };
                break;
            }
            // SAFETY: replies stay in `outgoing` until they are sent, and the socket until the send has come back.
            match unsafe { self.sending.send(fd, pieces, tag, ring) } {
                Sent::Bytes(count) => {
                    has_sent = true;
                    sent += count;
                    self.sent(count);
                }
                Sent::Later => {}
                Sent::Failed => self.break_off(),
            }
        }
        // With a receive in flight, its completion is what it waits for.
        (has_sent && self.receive == Receive::Idle) || (self.broken && !self.is_in_flight())
    }

    fn sent(&mut self, count: usize) {
        self.outgoing.sent(count);
        self.moved_bytes += count as u64;
        self.connection.set_unsent(self.outgoing.memory_bytes());
    }

    /// A send ended with this many bytes, or minus an error.
    pub fn on_sent(&mut self, result: i32) {
        match self.sending.on_sent(result) {
            Some(count) => self.sent(count),
            None => self.break_off(),
        }
    }
}

/// What lies unread when a socket is closed makes the kernel reset the connection, and what we say last is lost with it.
fn take_unread(socket: BorrowedFd, most: usize) {
    let (mut unread, mut taken) = ([0_u8; 16 << 10], 0);
    while taken < most {
        // SAFETY: the kernel writes at most so many bytes, and does not wait.
        let count = unsafe {
            libc::recv(socket.as_raw_fd(), unread.as_mut_ptr().cast(), unread.len(), libc::MSG_DONTWAIT)
        };
        let Some(count) = usize::try_from(count).ok().filter(|&count| count > 0) else { return };
        taken += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn what_a_client_goes_on_sending_is_not_taken_for_ever() {
        let (mut client, mut served) = UnixStream::pair().expect("a pair of sockets");
        client.write_all(&[1; 64 << 10]).expect("it has room for that");
        take_unread(served.as_fd(), 32 << 10);
        drop(client);
        let mut left = Vec::new();
        served.read_to_end(&mut left).expect("it can be read");
        assert_eq!(left.len(), 32 << 10, "the rest is left");
    }
}
