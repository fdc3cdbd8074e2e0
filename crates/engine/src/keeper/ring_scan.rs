//! Finding frames again: the whole ring is looked through once, block by block, and payloads are verified
//! on the way. Leaves to others: which of the frames count (`ring_replay`).

use crate::buffer::BLOCK;
use crate::formats::frame::FrameHeader;
use crate::identity::DriveId;
use crc_fast::{CrcAlgorithm, Digest};
use std::collections::{BTreeMap, BTreeSet};

/// A frame with a sound header.
pub struct FoundFrame {
    pub header: FrameHeader,
    /// For each record, whether its payload is sound.
    pub sound: Vec<bool>,
}

/// Takes the blocks of a ring in order, and keeps what frames it finds.
pub struct RingScan {
    drive: DriveId,
    incarnation: u64,
    found: BTreeMap<u64, FoundFrame>,
    /// Blocks that look like the beginning of a header, and of none that is sound.
    suspects: BTreeSet<u64>,
    header: Option<HeaderBlocks>,
    payload: Option<PayloadBlocks>,
}

/// A header of more than one block, of which not all have come.
struct HeaderBlocks {
    position: u64,
    bytes: Vec<u8>,
    len: usize,
}

/// A payload of which not all blocks have come.
struct PayloadBlocks {
    number: u64,
    record: usize,
    /// Bytes to come, without padding.
    left: usize,
    digest: Digest,
}

impl RingScan {
    pub fn new(drive: DriveId, incarnation: u64) -> Self {
        let (found, suspects) = (BTreeMap::new(), BTreeSet::new());
        Self { drive, incarnation, found, suspects, header: None, payload: None }
    }

    /// The blocks from block `position` on, which is right behind those that were fed before.
    pub fn feed(&mut self, position: u64, bytes: &[u8]) {
        for (index, block) in bytes.chunks_exact(BLOCK).enumerate() {
            self.feed_block(position + index as u64, block);
        }
    }

    /// The frames found, by number, and the blocks where there may have been more.
    pub fn finish(mut self) -> (BTreeMap<u64, FoundFrame>, BTreeSet<u64>) {
        self.give_up_header();
        (self.found, self.suspects)
    }

    fn feed_block(&mut self, position: u64, block: &[u8]) {
        if let Some(header) = &mut self.header {
            header.bytes.extend_from_slice(block);
            if header.bytes.len() == header.len {
                match FrameHeader::decode(&header.bytes) {
                    Some(frame) => {
                        self.header = None;
                        self.open(frame);
                    }
                    None => self.give_up_header(),
                }
            }
            return;
        }
        match FrameHeader::claimed_blocks(block, self.drive, self.incarnation, position) {
            Some(1) => match FrameHeader::decode(block) {
                Some(frame) => self.open(frame),
                None => self.suspect(position, block),
            },
            Some(blocks) => {
                let len = blocks as usize * BLOCK;
                self.header = Some(HeaderBlocks { position, bytes: block.to_vec(), len });
            }
            None if FrameHeader::resembles(block, self.drive, self.incarnation, position) => {
                self.suspect(position, block)
            }
            None => self.take_payload(block),
        }
    }

    fn suspect(&mut self, position: u64, block: &[u8]) {
        self.suspects.insert(position);
        self.take_payload(block);
    }

    /// What looked like the first block of a header is none: the blocks behind it are looked at again.
    fn give_up_header(&mut self) {
        let Some(header) = self.header.take() else { return };
        let (first, rest) = header.bytes.split_at(BLOCK);
        self.suspect(header.position, first);
        self.feed(header.position + 1, rest);
    }

    fn open(&mut self, header: FrameHeader) {
        let number = header.number;
        let sound = header.records.iter().map(|record| record.payload_len == 0).collect();
        self.found.insert(number, FoundFrame { header, sound });
        self.next_payload(number, 0);
    }

    /// Awaits the payload of the first record from `record` on that has one.
    fn next_payload(&mut self, number: u64, record: usize) {
        let frame = &self.found[&number];
        let next = frame.header.records.iter().enumerate().skip(record).find(|(_, r)| r.payload_len > 0);
        self.payload = next.map(|(record, header)| PayloadBlocks {
            number,
            record,
            left: header.payload_len as usize,
            digest: Digest::new(CrcAlgorithm::Crc32Iscsi),
        });
    }

    fn take_payload(&mut self, block: &[u8]) {
        let Some(payload) = &mut self.payload else { return };
        let len = payload.left.min(BLOCK);
        payload.digest.update(&block[..len]);
        payload.left -= len;
        if payload.left > 0 {
            return;
        }
        let payload = self.payload.take().expect("just seen");
        let frame = self.found.get_mut(&payload.number).expect("its header was found");
        let crc = payload.digest.finalize() as u32;
        frame.sound[payload.record] = crc == frame.header.records[payload.record].payload_crc;
        self.next_payload(payload.number, payload.record + 1);
    }
}
