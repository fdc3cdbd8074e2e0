//! Bodies as they are written and read: little-endian numbers one behind the other, and pieces of payload beside them.

use super::header::{BODY_BYTES_MAX, HEADER_BYTES, Header, Kind, PAYLOAD_BYTES_MAX};
use super::{Frame, TooLong};
use crate::buffer::{BLOCK, Buffer};
use crate::checksum::{crc32c, with_block};
use crate::identity::{DriveId, EgroupId, Epoch, FamilyId, Seq};
use crate::limits::VDISK_BYTES_MAX;
use crc_fast::{CrcAlgorithm, Digest};

/// Record numbers above this were never given out; below it, numbers can be counted on from without care.
const SEQ_MAX: u64 = 1 << 62;

/// No vDisk has more blocks.
const BLOCKS_MAX: u64 = VDISK_BYTES_MAX / BLOCK as u64;

pub(super) struct Writer {
    /// The header's place, then the body.
    head: Vec<u8>,
    payload: Vec<Buffer>,
}

impl Writer {
    pub fn new() -> Self {
        let mut head = Vec::with_capacity(128);
        head.resize(HEADER_BYTES, 0);
        Self { head, payload: Vec::new() }
    }

    pub fn u32(&mut self, value: u32) {
        self.head.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.head.extend_from_slice(&value.to_le_bytes());
    }

    /// How many of something follow. (More than a u32 can count are too long in any case.)
    pub fn count(&mut self, count: usize) {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// The next piece of payload; neighbours in memory become one.
    pub fn payload(&mut self, piece: &Buffer) {
        if piece.is_empty() {
            return;
        }
        match self.payload.last_mut() {
            Some(last) if last.is_followed_by(piece) => *last = last.joined(piece),
            _ => self.payload.push(piece.clone()),
        }
    }

    pub fn finish(mut self, kind: Kind) -> Result<Frame, TooLong> {
        let body = self.head.len() - HEADER_BYTES;
        let payload = self.payload.iter().map(Buffer::len).sum();
        if body > BODY_BYTES_MAX || payload > PAYLOAD_BYTES_MAX {
            return Err(TooLong { body, payload });
        }
        let header = Header {
            kind,
            body_len: body as u32,
            payload_len: payload as u32,
            body_crc: crc32c(&self.head[HEADER_BYTES..]),
            payload_crc: crc32c_of_all(&self.payload),
        };
        header.put(&mut self.head);
        Ok(Frame { head: self.head, payload: self.payload })
    }
}

fn crc32c_of_all(pieces: &[Buffer]) -> u32 {
    if let [piece] = pieces {
        return piece.checksum();
    }
    if pieces.iter().all(|piece| piece.len().is_multiple_of(BLOCK)) {
        let sums = pieces.iter().flat_map(Buffer::block_checksums);
        return sums.reduce(with_block).unwrap_or(crc32c(&[]));
    }
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    pieces.iter().for_each(|piece| digest.update(piece.bytes()));
    digest.finalize() as u32
}

/// Every method gives None if the bytes are not there, or not sound.
pub(super) struct Reader<'a> {
    body: &'a [u8],
    payload: &'a Buffer,
    /// Bytes of the payload that have been given out.
    taken: usize,
}

impl<'a> Reader<'a> {
    pub fn new(body: &'a [u8], payload: &'a Buffer) -> Self {
        Self { body, payload, taken: 0 }
    }

    /// Nothing is left over.
    pub fn is_finished(&self) -> bool {
        self.body.is_empty() && self.taken == self.payload.len()
    }

    pub fn u32(&mut self) -> Option<u32> {
        let (value, rest) = self.body.split_first_chunk()?;
        self.body = rest;
        Some(u32::from_le_bytes(*value))
    }

    pub fn u64(&mut self) -> Option<u64> {
        let (value, rest) = self.body.split_first_chunk()?;
        self.body = rest;
        Some(u64::from_le_bytes(*value))
    }

    pub fn flag(&mut self) -> Option<bool> {
        match self.u32()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub fn drive(&mut self) -> Option<DriveId> {
        self.u32().map(DriveId)
    }

    pub fn family(&mut self) -> Option<FamilyId> {
        self.u32().map(FamilyId)
    }

    pub fn epoch(&mut self) -> Option<Epoch> {
        self.u32().map(Epoch)
    }

    pub fn egroup(&mut self) -> Option<EgroupId> {
        self.u64().map(EgroupId)
    }

    pub fn seq(&mut self) -> Option<Seq> {
        self.u64().filter(|&seq| seq <= SEQ_MAX).map(Seq)
    }

    /// A range of blocks that could be of a vDisk.
    pub fn blocks(&mut self) -> Option<(u64, u64)> {
        let (block, count) = (self.u64()?, self.u64()?);
        block.checked_add(count).filter(|&end| end <= BLOCKS_MAX)?;
        Some((block, count))
    }

    /// As many things as the count says, which is believed only if as many can follow: each takes `bytes` at least.
    pub fn list<T>(&mut self, bytes: usize, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u32()? as usize;
        if count > self.body.len() / bytes {
            return None;
        }
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            list.push(one(self)?);
        }
        Some(list)
    }

    /// The next `len` bytes of the payload.
    pub fn payload(&mut self, len: usize) -> Option<Buffer> {
        let end = self.taken.checked_add(len).filter(|&end| end <= self.payload.len())?;
        let piece = self.payload.slice(self.taken..end);
        self.taken = end;
        Some(piece)
    }

    /// What of the payload has not been given out.
    pub fn rest_of_payload(&mut self) -> Buffer {
        let rest = self.payload.slice(self.taken..self.payload.len());
        self.taken = self.payload.len();
        rest
    }
}
