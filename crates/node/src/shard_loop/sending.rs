//! What a socket sends: at once as far as the other side takes it, and the rest by the ring.
//! Promises: at most one send is in flight; pieces that are sent together go out in one call; no call keeps the shard for long.
//! Leaves to others: what is sent and how much of it has been (`socket`, `peer/link`), and keeping it until then.

use super::ring::Ring;
use io_uring::{opcode, types};
use std::os::fd::RawFd;

/// Pieces sent by one call at most.
const SLICES_MAX: usize = 512;

/// Bytes sent by one call at most. The kernel copies them while the shard does nothing else: some 50 us.
pub const BYTES_MAX: usize = 256 << 10;

pub struct Sending {
    message: Box<libc::msghdr>,
    slices: Vec<libc::iovec>,
    in_flight: bool,
}

// SAFETY: the pointers in `message` and `slices` are only followed by the kernel between a send and its completion, and
// whoever sends keeps what they point to until then.
unsafe impl Send for Sending {}

impl Default for Sending {
    fn default() -> Self {
        // SAFETY: all zeros is a valid, empty message header.
        let message = Box::new(unsafe { std::mem::zeroed() });
        Self { message, slices: Vec::new(), in_flight: false }
    }
}

/// What came of an attempt.
pub enum Sent {
    Bytes(usize),
    /// The other side does not take it as fast: the ring goes on, and says how much was sent.
    Later,
    /// The socket is of no more use.
    Failed,
}

impl Sending {
    pub fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    /// Sends as many of the pieces as go into one call.
    ///
    /// # Safety
    /// After [`Sent::Later`], the socket, the pieces and `self` stay where they are until the completion with this tag has
    /// been taken.
    pub unsafe fn send<'a>(
        &mut self,
        socket: RawFd,
        pieces: impl Iterator<Item = &'a [u8]>,
        tag: u64,
        ring: &mut Ring,
    ) -> Sent {
        self.gather(pieces);
        loop {
            // Directly, not by the ring: a completion that comes at once would end the next wait at once.
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: the message, its slices and what they point to are alive and unchanged during the call.
            let count = unsafe { libc::sendmsg(socket, &raw const *self.message, flags) };
            if count >= 0 {
                return Sent::Bytes(count as usize);
            }
            match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) => break,
                _ => return Sent::Failed,
            }
        }
        self.push(socket, tag, ring);
        Sent::Later
    }

    /// The same by the ring: what else the shard has to do comes first.
    ///
    /// # Safety
    /// As after [`Sent::Later`].
    pub unsafe fn send_later<'a>(
        &mut self,
        socket: RawFd,
        pieces: impl Iterator<Item = &'a [u8]>,
        tag: u64,
        ring: &mut Ring,
    ) {
        self.gather(pieces);
        self.push(socket, tag, ring);
    }

    fn gather<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        assert!(!self.in_flight, "one send at a time");
        self.slices.clear();
        let mut left = BYTES_MAX;
        for piece in pieces.take(SLICES_MAX) {
            let iov_len = piece.len().min(left);
            self.slices.push(libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len });
            left -= iov_len;
            if left == 0 {
                break;
            }
        }
        self.message.msg_iov = self.slices.as_mut_ptr();
        self.message.msg_iovlen = self.slices.len();
    }

    fn push(&mut self, socket: RawFd, tag: u64, ring: &mut Ring) {
        self.in_flight = true;
        let entry = opcode::SendMsg::new(types::Fd(socket), &raw const *self.message)
            .flags((libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32);
        // SAFETY: whoever asked for it keeps what the message points to, and the message does not change while it is in flight.
        unsafe { ring.push(entry.build().user_data(tag)) };
    }

    /// The send in flight ended with this many bytes, or minus an error. None: the socket is of no more use.
    pub fn on_sent(&mut self, result: i32) -> Option<usize> {
        self.in_flight = false;
        if result == -libc::EINTR || result == -libc::EAGAIN {
            return Some(0);
        }
        usize::try_from(result).ok()
    }
}
