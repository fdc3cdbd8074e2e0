//! What shards of different nodes say to each other: messages of the engine, and requests of clients that are forwarded
//! to the shard that serves their vDisk. `docs/formats.md` tells the same in prose, byte by byte.
//!
//! Promises: a frame that decodes is what was encoded, checksums and all; any bytes whatever may be decoded, and what is
//! not sound is a [`WireFault`]; no length is believed before it was checked against a limit, and what keepers assert
//! about questions was checked here. Payload is never copied: it is sent from where it lies, and slices of one
//! page-aligned buffer are handed on.
//! Leaves to others: connections (the node), what is said (`message`), whether an answer fits its question.

mod answer;
mod fields;
mod header;
mod hello;
mod lane;
mod packing;
mod question;
mod records;
mod request;

#[cfg(test)]
mod tests;

use crate::buffer::Buffer;
use crate::checksum::crc32c;
use crate::identity::{Epoch, FamilyId};
use crate::interface::{Reply, Request};
use crate::message::Message;
use fields::{Reader, Writer};
pub use header::{BODY_BYTES_MAX, HEADER_BYTES, Header, Kind, PAYLOAD_BYTES_MAX, VERSION};
pub use hello::{HELLO_BYTES, Hello};
pub use lane::{Lane, lane_of};

/// One thing said.
#[derive(Debug, Clone)]
pub enum Packet {
    /// The first thing on every connection, said by the side that made it.
    Hello(Hello),
    Message(Message),
    /// A client's request for a family, as the asker believes served in `epoch`. The reply carries the number back.
    Request {
        number: u64,
        family: FamilyId,
        epoch: Epoch,
        request: Request,
    },
    Reply {
        number: u64,
        reply: Reply,
    },
    /// Is anybody there?
    Ping,
    /// Yes: the loop of the shard turns, whatever its drives do.
    Pong,
}

/// A packet as it is sent: header and body in one piece, then the payload as it lies in memory.
#[derive(Debug)]
pub struct Frame {
    pub head: Vec<u8>,
    pub payload: Vec<Buffer>,
}

impl Frame {
    /// Bytes of all pieces.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.payload.iter().map(Buffer::len).sum::<usize>()
    }
}

/// Why something that was received is no packet. The connection it came on is of no more use: nobody knows where
/// the next frame begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireFault {
    #[error("this is not the protocol of Weft's shards")]
    NotOurs,
    #[error("the other side speaks version {0} of the protocol, this one {VERSION}")]
    OtherVersion(u32),
    #[error("a checksum is wrong: bytes were changed on the way")]
    Damaged,
    #[error("a frame of kind {0} is not known")]
    UnknownKind(u32),
    #[error("a frame is longer than any may be")]
    TooLong,
    #[error("a frame's fields contradict each other")]
    Malformed,
}

/// A packet that is longer than the other side would take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a packet with {body} bytes and {payload} bytes of payload is too long for the wire")]
pub struct TooLong {
    pub body: usize,
    pub payload: usize,
}

/// The frame of a packet. Nothing of its payload is copied.
pub fn encode(packet: &Packet) -> Result<Frame, TooLong> {
    let mut writer = Writer::new();
    let kind = match packet {
        Packet::Hello(hello) => {
            hello.put(&mut writer);
            Kind::Hello
        }
        Packet::Message(Message::Ask { call, drive, family, epoch, question }) => {
            writer.u64(*call);
            writer.u32(drive.0);
            writer.u32(family.0);
            writer.u32(epoch.0);
            question::put(question, &mut writer);
            Kind::Ask
        }
        Packet::Message(Message::Answer { call, drive, family, free, answer }) => {
            writer.u64(*call);
            writer.u32(drive.0);
            writer.u32(family.0);
            writer.u64(*free);
            answer::put(answer, &mut writer);
            Kind::Answer
        }
        Packet::Message(Message::Press { drive, family, seq }) => {
            writer.u32(drive.0);
            writer.u32(family.0);
            writer.u64(seq.0);
            Kind::Press
        }
        Packet::Request { number, family, epoch, request } => {
            writer.u64(*number);
            writer.u32(family.0);
            writer.u32(epoch.0);
            request::put(request, &mut writer);
            Kind::Request
        }
        Packet::Reply { number, reply } => {
            writer.u64(*number);
            request::put_reply(reply, &mut writer);
            Kind::Reply
        }
        Packet::Ping => Kind::Ping,
        Packet::Pong => Kind::Pong,
    };
    writer.finish(kind)
}

/// The packet of a frame whose header was decoded before. `body` and `payload` are as long as the header says;
/// `payload` is page-aligned, and what is decoded shares its memory.
pub fn decode(header: &Header, body: &[u8], payload: &Buffer) -> Result<Packet, WireFault> {
    assert!(body.len() == header.body_len as usize, "a body is received whole");
    assert!(payload.len() == header.payload_len as usize, "a payload is received whole");
    if crc32c(body) != header.body_crc || payload.checksum() != header.payload_crc {
        return Err(WireFault::Damaged);
    }
    let mut reader = Reader::new(body, payload);
    packet(header.kind, &mut reader).filter(|_| reader.is_finished()).ok_or(WireFault::Malformed)
}

fn packet(kind: Kind, reader: &mut Reader) -> Option<Packet> {
    Some(match kind {
        Kind::Hello => Packet::Hello(Hello::take(reader)?),
        Kind::Ask => Packet::Message(Message::Ask {
            call: reader.u64()?,
            drive: reader.drive()?,
            family: reader.family()?,
            epoch: reader.epoch()?,
            question: question::take(reader)?,
        }),
        Kind::Answer => Packet::Message(Message::Answer {
            call: reader.u64()?,
            drive: reader.drive()?,
            family: reader.family()?,
            free: reader.u64()?,
            answer: answer::take(reader)?,
        }),
        Kind::Press => Packet::Message(Message::Press {
            drive: reader.drive()?,
            family: reader.family()?,
            seq: reader.seq()?,
        }),
        Kind::Request => Packet::Request {
            number: reader.u64()?,
            family: reader.family()?,
            epoch: reader.epoch()?,
            request: request::take(reader)?,
        },
        Kind::Reply => Packet::Reply { number: reader.u64()?, reply: request::take_reply(reader)? },
        Kind::Ping => Packet::Ping,
        Kind::Pong => Packet::Pong,
    })
}
