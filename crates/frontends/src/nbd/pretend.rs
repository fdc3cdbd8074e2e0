//! For tests: a connection with a small vDisk in memory behind it, and a client that writes messages by hand.

use super::protocol::*;
use super::{Connection, Event, ExportInfo, Exports, Handle, Outgoing, Want};
use std::sync::Arc;
use weft_engine::buffer::{self, Buffer};
use weft_engine::interface::{Extent, Reply, Request, RequestError};
use weft_engine::{FamilyId, Generation};

pub(super) const SIZE: u64 = 1 << 20;
/// What the pretended vDisk can tell apart as a hole.
const GRAIN: usize = 4096;

/// The snapshot of the vDisk. It holds nothing.
pub(super) const PAST: Generation = Generation(3);

pub(super) struct Two;

impl Exports for Two {
    fn list(&self) -> Vec<String> {
        vec!["disk".into(), "frozen".into()]
    }

    fn find(&self, name: &str) -> Option<ExportInfo> {
        let (name, read_only) = match name {
            "disk" | "" => ("disk", false),
            "frozen" => ("frozen", true),
            "disk@past" => ("disk@past", false),
            _ => return None,
        };
        let snapshot = (name == "disk@past").then_some(PAST);
        let description = "a test".into();
        Some(ExportInfo {
            name: name.into(),
            description,
            family: FamilyId(7),
            snapshot,
            size: SIZE,
            read_only,
        })
    }
}

pub(super) struct Server {
    pub(super) connection: Connection,
    pub(super) disk: Vec<u8>,
    /// Requests handed out, not answered.
    pub(super) waiting: Vec<(Handle, Request)>,
    /// Everything that was sent to the client and not looked at yet.
    pub(super) sent: Vec<u8>,
    /// Most memory seen waiting to be sent.
    pub(super) unsent_max: usize,
    pub(super) answered: u64,
}

impl Server {
    pub(super) fn new() -> Self {
        Self {
            connection: Connection::new(Arc::new(Two)),
            disk: vec![0; SIZE as usize],
            waiting: Vec::new(),
            sent: Vec::new(),
            unsent_max: 0,
            answered: 0,
        }
    }

    /// Gives `bytes` in parts of at most `part`; the engine answers by itself when `eager`, or the connection waits.
    pub(super) fn deliver(&mut self, bytes: &[u8], part: usize, eager: bool) {
        let mut stream = bytes;
        while !stream.is_empty() {
            let now = stream.len().min(part);
            let mut input = &stream[..now];
            stream = &stream[now..];
            loop {
                while let Some(event) = self.connection.next_event(&mut input) {
                    self.took(event);
                }
                if eager {
                    self.answer_all();
                }
                match self.connection.want() {
                    Want::Payload { len } => {
                        assert!(len > 0 && len <= super::limits::PAYLOAD_BYTES_MAX as usize);
                        let (mut payload, missing) = (input.to_vec(), len.saturating_sub(input.len()));
                        if missing > stream.len() {
                            return; // The client went away in the middle.
                        }
                        payload.extend_from_slice(&stream[..missing]);
                        stream = &stream[missing..];
                        input = &input[(len.min(input.len()))..];
                        payload.truncate(len);
                        let event = self.connection.payload(Buffer::copied(&payload));
                        self.took(event);
                        if eager {
                            self.answer_all();
                        }
                    }
                    Want::Bytes | Want::Close => break,
                    Want::Wait => self.answer_all(),
                }
            }
            assert!(input.is_empty(), "what is wanted is taken");
        }
        self.flush();
    }

    fn took(&mut self, event: Event) {
        let Event::Request { handle, family, request } = event;
        assert_eq!(family, FamilyId(7));
        assert!(!self.waiting.iter().any(|(other, _)| *other == handle), "handles of open requests differ");
        self.waiting.push((handle, request));
    }

    pub(super) fn answer_all(&mut self) {
        for (handle, request) in std::mem::take(&mut self.waiting) {
            let reply = self.carry_out(&request);
            self.connection.reply(handle, reply);
            self.answered += 1;
        }
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        self.unsent_max = self.unsent_max.max(self.connection.outgoing().len());
        let mut outgoing = Outgoing::default();
        self.connection.swap_outgoing(&mut outgoing);
        outgoing.slices().for_each(|slice| self.sent.extend_from_slice(slice));
        outgoing.sent(outgoing.len());
        self.connection.set_unsent(0);
    }

    fn carry_out(&mut self, request: &Request) -> Reply {
        let range = |offset: u64, len: u64| {
            assert!(offset + len <= SIZE && len > 0, "only what is inside reaches the engine");
            offset as usize..(offset + len) as usize
        };
        match request {
            Request::Read { offset, len } => {
                let bytes = &self.disk[range(*offset, u64::from(*len))];
                let pieces = bytes.chunks(GRAIN).map(|piece| match buffer::is_zero(piece) {
                    true => buffer::zeros(piece.len()),
                    false => Buffer::copied(piece),
                });
                Reply::Data(pieces.collect())
            }
            Request::Write { offset, data } => {
                self.disk[range(*offset, data.len() as u64)].copy_from_slice(data.bytes());
                Reply::Done
            }
            Request::Zero { offset, len } => {
                self.disk[range(*offset, *len)].fill(0);
                Reply::Done
            }
            Request::Flush => Reply::Done,
            Request::Warm { .. } => unreachable!("no NBD client can ask for it"),
            Request::Extents { offset, len, limit } => {
                let pieces = self.disk[range(*offset, *len)].chunks(GRAIN).take(*limit as usize);
                let extent = |piece: &[u8]| Extent { len: piece.len() as u64, data: !buffer::is_zero(piece) };
                Reply::Extents(pieces.map(extent).collect())
            }
            Request::ReadSnapshot { .. }
            | Request::ReadOrigin { .. }
            | Request::SnapshotExtents { .. }
            | Request::Differences { .. } => {
                unreachable!("this export is no snapshot")
            }
        }
    }

    /// The next `len` bytes that were sent to the client.
    pub(super) fn sent(&mut self, len: usize) -> Vec<u8> {
        assert!(self.sent.len() >= len, "{len} bytes expected, {} there: {:?}", self.sent.len(), self.sent);
        self.sent.drain(..len).collect()
    }

    /// The next option reply: option, type, data.
    pub(super) fn option_reply(&mut self) -> (u32, u32, Vec<u8>) {
        let header = self.sent(20);
        assert_eq!(header[..8], OPTION_REPLY_MAGIC.to_be_bytes());
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
        (word(8), word(12), self.sent(word(16) as usize))
    }

    /// The next simple reply without data: error and cookie.
    pub(super) fn simple_reply(&mut self) -> (u32, u64) {
        let header = self.sent(16);
        assert_eq!(header[..4], SIMPLE_REPLY_MAGIC.to_be_bytes());
        let error = u32::from_be_bytes(header[4..8].try_into().unwrap());
        (error, u64::from_be_bytes(header[8..].try_into().unwrap()))
    }

    /// The next part of a structured reply: flags, type, cookie, payload.
    pub(super) fn chunk(&mut self) -> (u16, u16, u64, Vec<u8>) {
        let header = self.sent(20);
        assert_eq!(header[..4], STRUCTURED_REPLY_MAGIC.to_be_bytes());
        let short = |at: usize| u16::from_be_bytes(header[at..at + 2].try_into().unwrap());
        let cookie = u64::from_be_bytes(header[8..16].try_into().unwrap());
        let len = u32::from_be_bytes(header[16..].try_into().unwrap());
        (short(4), short(6), cookie, self.sent(len as usize))
    }
}

pub(super) fn client_flags(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

pub(super) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

pub(super) fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

pub(super) fn go(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|number| data.extend(number.to_be_bytes()));
    data
}

pub(super) fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(string(query)));
    data
}

pub(super) fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes.extend(data);
    bytes
}

/// The bytes of a whole handshake as `qemu` would do it.
pub(super) fn full_handshake(name: &str) -> Vec<u8> {
    let mut bytes = client_flags(3);
    bytes.extend(option(OPT_STRUCTURED_REPLY, &[]));
    bytes.extend(option(OPT_SET_META_CONTEXT, &contexts(name, &[BASE_ALLOCATION])));
    bytes.extend(option(OPT_GO, &go(name, &[INFO_BLOCK_SIZE])));
    bytes
}

/// A server that has been through the handshake.
pub(super) fn ready(name: &str, structured: bool) -> Server {
    let mut server = Server::new();
    let bytes = match structured {
        true => full_handshake(name),
        false => [client_flags(3), option(OPT_GO, &go(name, &[]))].concat(),
    };
    server.deliver(&bytes, usize::MAX, true);
    assert!(!server.connection.is_negotiating());
    server.sent.clear();
    server
}

/// The engine says no, once.
pub(super) fn refuse(server: &mut Server, error: RequestError) {
    let (handle, _) = server.waiting.remove(0);
    server.connection.reply(handle, Reply::Error(error));
    server.flush();
}
