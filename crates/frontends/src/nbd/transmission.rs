//! Requests on the chosen export: taken apart, and admitted or refused.
//! Promises: what is handed to the engine lies inside the export as the client knows it, changes nothing that is
//! read-only, and is within the limits of its kind.

use super::gather::Fields;
use super::limits::{EXTENTS_MAX, PAYLOAD_BYTES_MAX};
use super::open::Open;
use super::protocol::*;
use weft_engine::buffer::Buffer;
use weft_engine::interface::Request;
use weft_engine::{FamilyId, Generation};

/// What was agreed in the handshake.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) family: FamilyId,
    pub(super) snapshot: Option<Generation>,
    pub(super) size: u64,
    pub(super) read_only: bool,
    pub(super) structured: bool,
    /// The client may ask for the block status.
    pub(super) block_status: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    flags: u16,
    command: u16,
    pub(super) cookie: u64,
    offset: u64,
    pub(super) len: u32,
}

impl Header {
    /// None: this is no request.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        (fields.u32()? == REQUEST_MAGIC).then_some(())?;
        Some(Self {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            len: fields.u32()?,
        })
    }
}

/// A write that was admitted and waits for its payload.
#[derive(Debug)]
pub(super) struct WriteHeader {
    cookie: u64,
    offset: u64,
    pub(super) len: u32,
}

impl WriteHeader {
    pub(super) fn open(self, data: Buffer) -> Open {
        let request = Request::Write { offset: self.offset, data };
        let WriteHeader { cookie, offset, len } = self;
        Open { cookie, command: Command::Write, whole: false, offset, len, request }
    }
}

/// Why a request is not handed to the engine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    pub(super) errno: Errno,
    pub(super) why: &'static str,
}

pub(super) enum Admission {
    /// Hand it to the engine.
    Ask(Open),
    /// A write: its payload first.
    Payload(WriteHeader),
    /// There is nothing to do.
    Done,
    Refuse(Refusal),
    /// Refuse it when its payload has been thrown away.
    Skip(Refusal),
    /// The client has said goodbye.
    Goodbye,
}

impl Session {
    pub(super) fn admit(&self, header: &Header) -> Admission {
        if header.command == CMD_DISC {
            return Admission::Goodbye;
        }
        let Some(command) = Command::of(header.command) else {
            return Admission::Refuse(Refusal { errno: Errno::Invalid, why: "this command is not known" });
        };
        if let Some(refusal) = self.refusal(command, header) {
            // A write has payload whether it is admitted or not.
            return match command {
                Command::Write if header.len > 0 => Admission::Skip(refusal),
                _ => Admission::Refuse(refusal),
            };
        }
        let &Header { flags, cookie, offset, len, .. } = header;
        let (request, whole) = match command {
            // A snapshot does not change: what it holds is durable.
            Command::Flush if self.snapshot.is_some() => return Admission::Done,
            Command::Flush => (Request::Flush, false),
            // A read may not be answered with a simple reply then.
            Command::Read if len == 0 && self.structured => {
                return Admission::Refuse(Refusal { errno: Errno::Invalid, why: "nothing was asked for" });
            }
            // The protocol leaves requests of no length open; doing nothing is what they ask for.
            _ if len == 0 => return Admission::Done,
            // There is no cache to fill for one client only: reads are cached as they come.
            Command::Cache => return Admission::Done,
            Command::Write => return Admission::Payload(WriteHeader { cookie, offset, len }),
            // With structured replies, holes are told in parts of their own, unless the client forbids parts.
            Command::Read => (self.read(offset, len), flags & CMD_FLAG_DF != 0),
            // Trimmed ranges read as zeros from then on, which the protocol allows. Zeroing is always fast, and space
            // is never reserved, so NO_HOLE asks for nothing that could be given.
            Command::Trim | Command::WriteZeroes => (Request::Zero { offset, len: u64::from(len) }, false),
            Command::BlockStatus => {
                let one = flags & CMD_FLAG_REQ_ONE != 0;
                let limit = if one { 1 } else { EXTENTS_MAX };
                (self.extents(offset, u64::from(len), limit), one)
            }
        };
        Admission::Ask(Open { cookie, command, whole, offset, len, request })
    }

    fn read(&self, offset: u64, len: u32) -> Request {
        match self.snapshot {
            None => Request::Read { offset, len },
            Some(snapshot) => Request::ReadSnapshot { snapshot, offset, len },
        }
    }

    fn extents(&self, offset: u64, len: u64, limit: u32) -> Request {
        match self.snapshot {
            None => Request::Extents { offset, len, limit },
            Some(snapshot) => Request::SnapshotExtents { snapshot, offset, len, limit },
        }
    }

    fn refusal(&self, command: Command, header: &Header) -> Option<Refusal> {
        let refuse = |errno, why| Some(Refusal { errno, why });
        if header.flags & !self.flags_allowed(command) != 0 {
            return refuse(Errno::Invalid, "a flag of this command is not known");
        }
        if command == Command::Flush {
            return None;
        }
        if command.changes() && self.read_only {
            return refuse(Errno::Permission, "this export is read-only");
        }
        if matches!(command, Command::Read | Command::Write) && header.len > PAYLOAD_BYTES_MAX {
            return refuse(Errno::Invalid, "the request is larger than the largest block size");
        }
        if header.offset.checked_add(u64::from(header.len)).is_none_or(|end| end > self.size) {
            return match command {
                Command::Write | Command::WriteZeroes => {
                    refuse(Errno::NoSpace, "the range is outside the export")
                }
                _ => refuse(Errno::Invalid, "the range is outside the export"),
            };
        }
        if command == Command::BlockStatus && !self.block_status {
            return refuse(Errno::Invalid, "base:allocation was not asked for in the handshake");
        }
        if command == Command::BlockStatus && header.len == 0 {
            return refuse(Errno::Invalid, "the block status of nothing was asked for");
        }
        None
    }

    fn flags_allowed(&self, command: Command) -> u16 {
        // Every write is durable when it is answered: FUA asks for nothing more, wherever it stands.
        CMD_FLAG_FUA
            | match command {
                Command::Read if self.structured => CMD_FLAG_DF,
                Command::WriteZeroes => CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO,
                Command::BlockStatus => CMD_FLAG_REQ_ONE,
                _ => 0,
            }
    }
}
