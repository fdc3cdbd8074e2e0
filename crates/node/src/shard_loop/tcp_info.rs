//! What the kernel knows of a TCP connection.

use std::os::fd::{AsRawFd, BorrowedFd};

/// None: it does not say, as of a socket that is none of TCP.
pub fn tcp_info(socket: BorrowedFd) -> Option<libc::tcp_info> {
    // SAFETY: numbers only, for which zeros are values.
    let mut told: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&told) as libc::socklen_t;
    let into = (&raw mut told).cast();
    // SAFETY: the kernel writes at most `len` bytes.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, into, &raw mut len)
    };
    (result == 0 && len > 0).then_some(told)
}
