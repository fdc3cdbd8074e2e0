//! Requests of clients on their way to the shard that serves their vDisk, and the replies.

use super::fields::{Reader, Writer};
use super::header::PAYLOAD_BYTES_MAX;
use crate::buffer::{Buffer, zeros};
use crate::identity::Generation;
use crate::interface::{Extent, Reply, Request, RequestError, Warmed};

const READ: u32 = 1;
const WRITE: u32 = 2;
const ZERO: u32 = 3;
const FLUSH: u32 = 4;
const EXTENTS: u32 = 5;
const READ_SNAPSHOT: u32 = 6;
const SNAPSHOT_EXTENTS: u32 = 7;
const DIFFERENCES: u32 = 8;
const WARM: u32 = 9;
const READ_ORIGIN: u32 = 10;

/// Stands for the present where a generation is told.
const PRESENT: u32 = u32::MAX;

const DONE: u32 = 1;
const DATA: u32 = 2;
const TOLD_EXTENTS: u32 = 3;
const WARMED: u32 = 4;
const OUT_OF_RANGE: u32 = 101;
const NOT_SERVED: u32 = 102;
const NO_SPACE: u32 = 103;
const DAMAGED: u32 = 104;
const FENCED: u32 = 105;
const BUSY: u32 = 106;
const NO_SNAPSHOT: u32 = 107;

/// Shared zeros are given out in pieces of at most this size.
const ZEROS_BYTES_MAX: usize = 1 << 20;

/// Extents that one reply can tell.
const EXTENTS_MAX: u32 = 1 << 16;

pub(super) fn put(request: &Request, writer: &mut Writer) {
    match request {
        Request::Read { offset, len } => {
            writer.u32(READ);
            writer.u64(*offset);
            writer.u32(*len);
        }
        Request::Write { offset, data } => {
            writer.u32(WRITE);
            writer.u64(*offset);
            writer.payload(data);
        }
        Request::Zero { offset, len } => {
            writer.u32(ZERO);
            writer.u64(*offset);
            writer.u64(*len);
        }
        Request::Flush => writer.u32(FLUSH),
        Request::Extents { offset, len, limit } => {
            writer.u32(EXTENTS);
            writer.u64(*offset);
            writer.u64(*len);
            writer.u32(*limit);
        }
        Request::Warm { offset, len, data } => {
            writer.u32(WARM);
            writer.u64(*offset);
            writer.u64(*len);
            writer.u32(u32::from(*data));
        }
        Request::ReadSnapshot { snapshot, offset, len } => {
            writer.u32(READ_SNAPSHOT);
            writer.u32(snapshot.0);
            writer.u64(*offset);
            writer.u32(*len);
        }
        Request::ReadOrigin { snapshot, offset, len } => {
            writer.u32(READ_ORIGIN);
            writer.u32(snapshot.0);
            writer.u64(*offset);
            writer.u32(*len);
        }
        Request::SnapshotExtents { snapshot, offset, len, limit } => {
            writer.u32(SNAPSHOT_EXTENTS);
            writer.u32(snapshot.0);
            writer.u64(*offset);
            writer.u64(*len);
            writer.u32(*limit);
        }
        Request::Differences { from, to, offset, len, limit } => {
            writer.u32(DIFFERENCES);
            writer.u32(from.0);
            writer.u32(to.map_or(PRESENT, |to| to.0));
            writer.u64(*offset);
            writer.u64(*len);
            writer.u32(*limit);
        }
    }
}

pub(super) fn take(reader: &mut Reader) -> Option<Request> {
    Some(match reader.u32()? {
        READ => {
            let (offset, len) = (reader.u64()?, reader.u32()?);
            // What is longer could be read, but not sent back.
            (len as usize <= PAYLOAD_BYTES_MAX).then_some(Request::Read { offset, len })?
        }
        WRITE => Request::Write { offset: reader.u64()?, data: reader.rest_of_payload() },
        ZERO => Request::Zero { offset: reader.u64()?, len: reader.u64()? },
        FLUSH => Request::Flush,
        EXTENTS => {
            let (offset, len) = (reader.u64()?, reader.u64()?);
            Request::Extents { offset, len, limit: reader.u32()?.min(EXTENTS_MAX) }
        }
        WARM => Request::Warm { offset: reader.u64()?, len: reader.u64()?, data: reader.flag()? },
        READ_SNAPSHOT => {
            let (snapshot, offset, len) = (Generation(reader.u32()?), reader.u64()?, reader.u32()?);
            (len as usize <= PAYLOAD_BYTES_MAX).then_some(Request::ReadSnapshot { snapshot, offset, len })?
        }
        READ_ORIGIN => {
            let (snapshot, offset, len) = (Generation(reader.u32()?), reader.u64()?, reader.u32()?);
            (len as usize <= PAYLOAD_BYTES_MAX).then_some(Request::ReadOrigin { snapshot, offset, len })?
        }
        SNAPSHOT_EXTENTS => {
            let (snapshot, offset, len) = (Generation(reader.u32()?), reader.u64()?, reader.u64()?);
            Request::SnapshotExtents { snapshot, offset, len, limit: reader.u32()?.min(EXTENTS_MAX) }
        }
        DIFFERENCES => {
            let (from, to) = (Generation(reader.u32()?), reader.u32()?);
            let (offset, len) = (reader.u64()?, reader.u64()?);
            let to = (to != PRESENT).then_some(Generation(to));
            Request::Differences { from, to, offset, len, limit: reader.u32()?.min(EXTENTS_MAX) }
        }
        _ => return None,
    })
}

pub(super) fn put_reply(reply: &Reply, writer: &mut Writer) {
    match reply {
        Reply::Done => writer.u32(DONE),
        Reply::Data(pieces) => {
            writer.u32(DATA);
            put_data(pieces, writer);
        }
        Reply::Extents(extents) => {
            writer.u32(TOLD_EXTENTS);
            writer.count(extents.len());
            for extent in extents {
                writer.u64(extent.len);
                writer.u32(u32::from(extent.data));
            }
        }
        Reply::Warmed(Warmed { to, pages, bytes, full }) => {
            writer.u32(WARMED);
            writer.u64(*to);
            writer.u64(*pages);
            writer.u64(*bytes);
            writer.u32(u32::from(*full));
        }
        Reply::Error(error) => match error {
            RequestError::OutOfRange => writer.u32(OUT_OF_RANGE),
            RequestError::NotServed => writer.u32(NOT_SERVED),
            RequestError::NoSpace => writer.u32(NO_SPACE),
            RequestError::Damaged { block } => {
                writer.u32(DAMAGED);
                writer.u64(*block);
            }
            RequestError::Fenced => writer.u32(FENCED),
            RequestError::Busy => writer.u32(BUSY),
            RequestError::NoSnapshot => writer.u32(NO_SNAPSHOT),
        },
    }
}

/// Runs of data and of holes. What was never written comes as shared zeros, and does not cross the network.
fn put_data(pieces: &[Buffer], writer: &mut Writer) {
    let shared = zeros(ZEROS_BYTES_MAX);
    let shared = shared.bytes().as_ptr_range();
    let mut runs: Vec<(bool, usize)> = Vec::new();
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        let hole = shared.contains(&piece.bytes().as_ptr());
        if !hole {
            writer.payload(piece);
        }
        match runs.last_mut() {
            Some((last, len)) if *last == hole => *len += piece.len(),
            _ => runs.push((hole, piece.len())),
        }
    }
    writer.count(runs.len());
    for (hole, len) in runs {
        writer.u32(u32::from(hole));
        writer.count(len);
    }
}

fn take_data(reader: &mut Reader) -> Option<Vec<Buffer>> {
    let runs = reader.list(8, |reader| Some((reader.flag()?, reader.u32()? as usize)))?;
    let mut pieces = Vec::with_capacity(runs.len());
    let mut total = 0usize;
    for (hole, len) in runs {
        total += len;
        if len == 0 || total > PAYLOAD_BYTES_MAX {
            return None;
        }
        if hole {
            let whole = (0..len / ZEROS_BYTES_MAX).map(|_| zeros(ZEROS_BYTES_MAX));
            pieces.extend(whole.chain(Some(zeros(len % ZEROS_BYTES_MAX)).filter(|rest| !rest.is_empty())));
        } else {
            pieces.push(reader.payload(len)?);
        }
    }
    Some(pieces)
}

pub(super) fn take_reply(reader: &mut Reader) -> Option<Reply> {
    Some(match reader.u32()? {
        DONE => Reply::Done,
        DATA => Reply::Data(take_data(reader)?),
        TOLD_EXTENTS => Reply::Extents(
            reader.list(12, |reader| Some(Extent { len: reader.u64()?, data: reader.flag()? }))?,
        ),
        WARMED => {
            let (to, pages, bytes) = (reader.u64()?, reader.u64()?, reader.u64()?);
            Reply::Warmed(Warmed { to, pages, bytes, full: reader.flag()? })
        }
        OUT_OF_RANGE => Reply::Error(RequestError::OutOfRange),
        NOT_SERVED => Reply::Error(RequestError::NotServed),
        NO_SPACE => Reply::Error(RequestError::NoSpace),
        DAMAGED => Reply::Error(RequestError::Damaged { block: reader.u64()? }),
        FENCED => Reply::Error(RequestError::Fenced),
        BUSY => Reply::Error(RequestError::Busy),
        NO_SNAPSHOT => Reply::Error(RequestError::NoSnapshot),
        _ => return None,
    })
}
