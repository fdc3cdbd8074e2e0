//! Answers to requests: simple replies where they will do, structured ones where they were agreed on.
//! Promises: payload is passed on as the engine gave it; parts that are zeros by nature are told as holes.

use super::open::Open;
use super::outgoing::Outgoing;
use super::protocol::*;
use super::transmission::{Refusal, Session};
use std::fmt::Write;
use weft_engine::buffer::{self, Buffer};
use weft_engine::interface::{Extent, Reply, RequestError};

/// Answers `open`, once and whole.
pub(super) fn answer(session: &Session, open: &Open, reply: Reply, outgoing: &mut Outgoing) {
    match (open.command, reply) {
        (Command::Read, Reply::Data(buffers)) => {
            assert!(!buffers.iter().any(Buffer::is_empty), "every piece of data holds some");
            let len: usize = buffers.iter().map(Buffer::len).sum();
            assert!(len == open.len as usize, "a read brings exactly what was asked for");
            if session.structured {
                structured_data(open, buffers, outgoing);
            } else {
                simple(open.cookie, 0, outgoing);
                buffers.into_iter().for_each(|buffer| outgoing.push_buffer(buffer));
            }
        }
        (Command::BlockStatus, Reply::Extents(extents)) => block_status(open, &extents, outgoing),
        (Command::Write | Command::Trim | Command::WriteZeroes | Command::Flush, Reply::Done) => {
            done(open.cookie, outgoing);
        }
        (command, Reply::Error(error)) => {
            let mut text = String::new();
            write!(text, "{error}").expect("a string takes all text");
            push_error(session, open.cookie, errno(command, error), &text, outgoing);
        }
        (command, reply) => panic!("the engine answers a {command:?} in its kind, not with {reply:?}"),
    }
}

/// Answers a request without data: it is done. Allowed as a simple reply also where structured ones were agreed on.
pub(super) fn done(cookie: u64, outgoing: &mut Outgoing) {
    simple(cookie, 0, outgoing);
}

/// Answers a request that the engine never saw.
pub(super) fn refuse(session: &Session, cookie: u64, refusal: Refusal, outgoing: &mut Outgoing) {
    push_error(session, cookie, refusal.errno, refusal.why, outgoing);
}

fn errno(command: Command, error: RequestError) -> Errno {
    match error {
        // The vDisk has become smaller since the handshake.
        RequestError::OutOfRange if matches!(command, Command::Write | Command::WriteZeroes) => {
            Errno::NoSpace
        }
        RequestError::OutOfRange => Errno::Invalid,
        RequestError::NoSpace => Errno::NoSpace,
        // To a client it makes no difference whether the place or the data is gone: kernels and guests know
        // what to do with an I/O error, and less with ESHUTDOWN.
        RequestError::NotServed | RequestError::Damaged { .. } | RequestError::Fenced => Errno::Io,
        // It was removed while somebody was reading it.
        RequestError::NoSnapshot => Errno::Io,
        RequestError::Busy => unreachable!("a busy engine is asked again, the client is not told"),
    }
}

fn push_error(session: &Session, cookie: u64, errno: Errno, text: &str, outgoing: &mut Outgoing) {
    if !session.structured {
        return simple(cookie, errno as u32, outgoing);
    }
    let text = text.as_bytes();
    chunk(REPLY_ERROR, true, cookie, 6 + text.len(), outgoing);
    outgoing.push_bytes(&(errno as u32).to_be_bytes());
    outgoing.push_bytes(&(text.len() as u16).to_be_bytes());
    outgoing.push_bytes(text);
}

fn simple(cookie: u64, error: u32, outgoing: &mut Outgoing) {
    let mut header = [0; 16];
    header[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    header[4..8].copy_from_slice(&error.to_be_bytes());
    header[8..].copy_from_slice(&cookie.to_be_bytes());
    outgoing.push_bytes(&header);
}

/// The header of one part of a structured reply; `last` ends the reply.
fn chunk(kind: u16, last: bool, cookie: u64, len: usize, outgoing: &mut Outgoing) {
    let flags = if last { REPLY_FLAG_DONE } else { 0 };
    let mut header = [0; 20];
    header[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    header[4..6].copy_from_slice(&flags.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..].copy_from_slice(&(len as u32).to_be_bytes());
    outgoing.push_bytes(&header);
}

fn structured_data(open: &Open, buffers: Vec<Buffer>, outgoing: &mut Outgoing) {
    let zeros = buffer::zeros(1 << 20);
    // Shared zeros are what the engine gives for what was never written. (What was written as zeros and stored is
    // not looked for: that would cost every read.)
    let hole_at =
        |buffer: &Buffer| !open.whole && zeros.bytes().as_ptr_range().contains(&buffer.bytes().as_ptr());
    let mut rest = buffers.as_slice();
    let mut offset = open.offset;
    while let Some(first) = rest.first() {
        let hole = hole_at(first);
        let count = rest.iter().take_while(|&buffer| hole_at(buffer) == hole).count();
        let (run, behind) = rest.split_at(count);
        let len: usize = run.iter().map(Buffer::len).sum();
        rest = behind;
        if hole {
            chunk(REPLY_OFFSET_HOLE, rest.is_empty(), open.cookie, 12, outgoing);
            outgoing.push_bytes(&offset.to_be_bytes());
            outgoing.push_bytes(&(len as u32).to_be_bytes());
        } else {
            chunk(REPLY_OFFSET_DATA, rest.is_empty(), open.cookie, 8 + len, outgoing);
            outgoing.push_bytes(&offset.to_be_bytes());
            run.iter().for_each(|buffer| outgoing.push_buffer(buffer.clone()));
        }
        offset += len as u64;
    }
    assert!(offset == open.offset + u64::from(open.len), "the parts are the whole");
}

fn block_status(open: &Open, extents: &[Extent], outgoing: &mut Outgoing) {
    let mut told: Vec<(u32, u32)> = Vec::with_capacity(extents.len());
    let mut remaining = u64::from(open.len);
    for extent in extents {
        // The engine may know more than was asked; what is not asked is not told.
        let len = extent.len.min(remaining) as u32;
        if len == 0 {
            continue;
        }
        remaining -= u64::from(len);
        let state = if extent.data { 0 } else { STATE_HOLE | STATE_ZERO };
        match told.last_mut() {
            Some((last_len, last_state)) if *last_state == state => *last_len += len,
            Some(_) if open.whole => break,
            _ => told.push((len, state)),
        }
    }
    assert!(!told.is_empty(), "the block status of something is something");
    chunk(REPLY_BLOCK_STATUS, true, open.cookie, 4 + 8 * told.len(), outgoing);
    outgoing.push_bytes(&BASE_ALLOCATION_ID.to_be_bytes());
    for (len, state) in told {
        outgoing.push_bytes(&len.to_be_bytes());
        outgoing.push_bytes(&state.to_be_bytes());
    }
}
