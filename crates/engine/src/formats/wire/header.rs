//! The header of a frame: what follows, how long it is, and its checksums. All lengths are limited here, before
//! anybody takes memory for them.

use super::WireFault;
use crate::formats::fields::{is_sealed, put_u32, seal, u32_at};

const MAGIC: u32 = u32::from_le_bytes(*b"WfNW");
/// Of the whole protocol: both sides of a connection speak the same.
pub const VERSION: u32 = 7;
pub const HEADER_BYTES: usize = 32;

/// The longest body. A piece of a log with nothing but small records needs the most.
pub const BODY_BYTES_MAX: usize = 4 << 20;

/// The longest payload: the largest write of a client (32 MiB), and more than any message of the engine.
pub const PAYLOAD_BYTES_MAX: usize = 40 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    Hello = 1,
    Ask = 2,
    Answer = 3,
    Press = 4,
    Request = 5,
    Reply = 6,
    Ping = 7,
    Pong = 8,
}

impl Kind {
    fn decode(value: u32) -> Option<Kind> {
        Some(match value {
            1 => Kind::Hello,
            2 => Kind::Ask,
            3 => Kind::Answer,
            4 => Kind::Press,
            5 => Kind::Request,
            6 => Kind::Reply,
            7 => Kind::Ping,
            8 => Kind::Pong,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    pub body_len: u32,
    pub payload_len: u32,
    pub body_crc: u32,
    pub payload_crc: u32,
}

impl Header {
    /// Writes it to the first [`HEADER_BYTES`] of `bytes`.
    pub(super) fn put(&self, bytes: &mut [u8]) {
        let bytes = &mut bytes[..HEADER_BYTES];
        put_u32(bytes, 8, VERSION);
        put_u32(bytes, 12, self.kind as u32);
        put_u32(bytes, 16, self.body_len);
        put_u32(bytes, 20, self.payload_len);
        put_u32(bytes, 24, self.body_crc);
        put_u32(bytes, 28, self.payload_crc);
        seal(bytes, MAGIC);
    }

    /// The header in exactly these [`HEADER_BYTES`].
    pub fn decode(bytes: &[u8]) -> Result<Header, WireFault> {
        assert!(bytes.len() == HEADER_BYTES, "a header is received whole");
        if u32_at(bytes, 0) != MAGIC {
            return Err(WireFault::NotOurs);
        }
        if !is_sealed(bytes, MAGIC) {
            return Err(WireFault::Damaged);
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(WireFault::OtherVersion(version));
        }
        let kind = u32_at(bytes, 12);
        let header = Header {
            kind: Kind::decode(kind).ok_or(WireFault::UnknownKind(kind))?,
            body_len: u32_at(bytes, 16),
            payload_len: u32_at(bytes, 20),
            body_crc: u32_at(bytes, 24),
            payload_crc: u32_at(bytes, 28),
        };
        if header.body_len as usize > BODY_BYTES_MAX || header.payload_len as usize > PAYLOAD_BYTES_MAX {
            return Err(WireFault::TooLong);
        }
        Ok(header)
    }
}
