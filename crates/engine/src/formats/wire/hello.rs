//! The first frame of every connection: who speaks to whom, about what, and which attempt it is.

use super::fields::{Reader, Writer};
use super::header::HEADER_BYTES;
use super::{Frame, Header, Kind, Lane, Packet, WireFault, decode, encode};
use crate::buffer::zeros;
use crate::identity::ShardId;

/// Bytes of a hello's whole frame; it has no payload.
pub const HELLO_BYTES: usize = HEADER_BYTES + BODY_BYTES;
const BODY_BYTES: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Made up when the cluster was; nodes of another one are sent away.
    pub cluster: u64,
    /// Which start of the dialling node this is; they are counted.
    pub life: u64,
    /// Counts the connections that this life of the shard has made: of two, the one with the higher number counts.
    pub number: u32,
    pub from: ShardId,
    pub to: ShardId,
    pub lane: Lane,
}

impl Hello {
    /// The whole frame.
    pub fn frame(self) -> Frame {
        let frame = encode(&Packet::Hello(self)).expect("a hello is short");
        assert!(frame.bytes() == HELLO_BYTES, "all hellos are equally long");
        frame
    }

    /// The hello in exactly these [`HELLO_BYTES`].
    pub fn decode(bytes: &[u8]) -> Result<Hello, WireFault> {
        assert!(bytes.len() == HELLO_BYTES, "a hello is received whole");
        let (head, body) = bytes.split_at(HEADER_BYTES);
        let header = Header::decode(head)?;
        if header.kind != Kind::Hello || header.body_len as usize != BODY_BYTES || header.payload_len != 0 {
            return Err(WireFault::Malformed);
        }
        match decode(&header, body, &zeros(0))? {
            Packet::Hello(hello) => Ok(hello),
            _ => Err(WireFault::Malformed),
        }
    }

    pub(super) fn put(&self, writer: &mut Writer) {
        writer.u64(self.cluster);
        writer.u64(self.life);
        writer.u32(self.number);
        writer.u32(self.from.0);
        writer.u32(self.to.0);
        writer.u32(self.lane as u32);
    }

    pub(super) fn take(reader: &mut Reader) -> Option<Hello> {
        Some(Hello {
            cluster: reader.u64()?,
            life: reader.u64()?,
            number: reader.u32()?,
            from: ShardId(reader.u32()?),
            to: ShardId(reader.u32()?),
            lane: Lane::decode(reader.u32()?)?,
        })
    }
}
