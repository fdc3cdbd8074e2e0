//! Frames, the pieces of which a log ring consists: header blocks with a small header for each record, then
//! the payloads of the records, each from a block boundary on.

use crate::buffer::{BLOCK, Pages};
use crate::formats::fields::{is_sealed, put_u32, put_u64, seal, u32_at, u64_at};
use crate::identity::{DriveId, Epoch, FamilyId, Seq};

const MAGIC: u32 = u32::from_le_bytes(*b"WfLG");
pub const VERSION: u32 = 1;
/// Bytes of the frame's own header.
pub const FRAME_HEADER: usize = 128;
/// Bytes of each record's header behind it.
pub const RECORD_HEADER: usize = 64;
/// Records of one frame at most.
pub const RECORDS_MAX: usize = 1024;
/// Records that fit a header of one block.
pub const RECORDS_IN_ONE_BLOCK: usize = records_in(1);
/// Header blocks of one frame at most.
pub const HEADER_BLOCKS_MAX: u64 = header_blocks(RECORDS_MAX);

/// Of 28 bytes that tell a header. What lay there before differs in more: in those of the incarnation, at least.
const MARKS_CHANGED_MAX: usize = 4;

const _: () = assert!(HEADER_BLOCKS_MAX == 17 && RECORDS_IN_ONE_BLOCK == 62, "as docs/formats.md says");

/// Header blocks of a frame of `records`.
pub const fn header_blocks(records: usize) -> u64 {
    (FRAME_HEADER + RECORD_HEADER * records).div_ceil(BLOCK) as u64
}

/// Records that fit so many header blocks.
pub const fn records_in(header_blocks: u64) -> usize {
    (header_blocks as usize * BLOCK - FRAME_HEADER) / RECORD_HEADER
}

/// What a record header is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum RecordKind {
    Data = 1,
    Zero = 2,
    Map = 3,
    Checkpoint = 4,
    /// `epoch` is the lowest epoch that `family` accepts from here on.
    Fence = 5,
    /// Records of `family` up to `seq`, in earlier frames, are not needed any more.
    Trim = 6,
    /// Everything of `family` in earlier frames is not needed any more, its fence included.
    Drop = 7,
    /// A snapshot of `family` comes or goes. See [`crate::formats::record::Mark`].
    Mark = 8,
}

impl RecordKind {
    fn decode(value: u32) -> Option<RecordKind> {
        Some(match value {
            1 => RecordKind::Data,
            2 => RecordKind::Zero,
            3 => RecordKind::Map,
            4 => RecordKind::Checkpoint,
            5 => RecordKind::Fence,
            6 => RecordKind::Trim,
            7 => RecordKind::Drop,
            8 => RecordKind::Mark,
            _ => return None,
        })
    }

    /// Whether it is a record of the family's log, as opposed to one of the keeper's own.
    pub fn is_logged(self) -> bool {
        matches!(
            self,
            RecordKind::Data | RecordKind::Zero | RecordKind::Map | RecordKind::Checkpoint | RecordKind::Mark
        )
    }
}

/// Where a record comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Copied {
    /// Its owner appended it.
    No = 0,
    /// It lay in an older frame, and was carried on so that this one can be freed: later records may lie before it.
    On = 1,
    /// Likewise, but it could not be read any more: without a payload it says that there was one.
    Lost = 2,
    /// No record: of the family records may be missing behind what is there, so nobody knows here where its log ends. With a count of
    /// [`TORN`] a frame was not whole that had some, up to this epoch: it was damaged, or, more likely, never finished.
    Unsure = 3,
}

/// See [`Copied::Unsure`].
pub const TORN: u64 = 1;
/// Stands for whoever had records in a frame that was not whole, where nobody knows who that was.
pub const ANYBODY: FamilyId = FamilyId(u32::MAX);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    pub family: FamilyId,
    pub epoch: Epoch,
    pub seq: Seq,
    pub kind: RecordKind,
    /// CRC-32C of the payload without its padding; 0 without a payload.
    pub payload_crc: u32,
    /// Bytes of the payload without its padding.
    pub payload_len: u32,
    /// Data and zero records: the range. Marks: what [`crate::formats::payload::mark_fields`] tells.
    pub block: u64,
    pub count: u64,
    /// The lowest record accepted in this epoch: those of older epochs from there on are void.
    pub begin: Seq,
    pub copied: Copied,
}

/// Blocks of a payload of so many bytes.
pub fn payload_blocks(len: u32) -> u64 {
    u64::from(len).div_ceil(BLOCK as u64)
}

impl RecordHeader {
    pub fn payload_blocks(&self) -> u64 {
        payload_blocks(self.payload_len)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameHeader {
    pub drive: DriveId,
    pub incarnation: u64,
    pub number: u64,
    /// Block of the ring it was written at: a frame found elsewhere is a copy, not a frame.
    pub position: u64,
    /// The oldest frame still needed when this was written.
    pub tail: u64,
    /// Every frame up to this was complete when this was written.
    pub settled: u64,
    /// Number of the first frame since the drive was opened ...
    pub session_first: u64,
    /// ... and of the last frame before it that counts. Numbers between are void.
    pub session_after: u64,
    pub records: Vec<RecordHeader>,
}

impl FrameHeader {
    pub fn header_blocks(&self) -> u64 {
        header_blocks(self.records.len())
    }

    pub fn payload_blocks(&self) -> u64 {
        self.records.iter().map(RecordHeader::payload_blocks).sum()
    }

    /// Blocks of header and payloads.
    pub fn blocks(&self) -> u64 {
        self.header_blocks() + self.payload_blocks()
    }

    pub fn encode(&self) -> Pages {
        assert!(self.records.len() <= RECORDS_MAX, "a frame has at most {RECORDS_MAX} records");
        let mut pages = Pages::zeroed(self.header_blocks() as usize * BLOCK);
        let bytes = pages.bytes_mut();
        put_u32(bytes, 8, VERSION);
        put_u32(bytes, 12, self.drive.0);
        put_u64(bytes, 16, self.incarnation);
        put_u64(bytes, 24, self.number);
        put_u64(bytes, 32, self.position);
        put_u64(bytes, 40, self.tail);
        put_u64(bytes, 48, self.settled);
        put_u64(bytes, 56, self.session_first);
        put_u64(bytes, 64, self.session_after);
        put_u32(bytes, 72, self.records.len() as u32);
        for (record, bytes) in self.records.iter().zip(bytes[FRAME_HEADER..].chunks_exact_mut(RECORD_HEADER))
        {
            put_u32(bytes, 0, record.family.0);
            put_u32(bytes, 4, record.epoch.0);
            put_u64(bytes, 8, record.seq.0);
            put_u32(bytes, 16, record.kind as u32);
            put_u32(bytes, 20, record.payload_crc);
            put_u32(bytes, 24, record.payload_len);
            put_u32(bytes, 28, record.copied as u32);
            put_u64(bytes, 32, record.block);
            put_u64(bytes, 40, record.count);
            put_u64(bytes, 48, record.begin.0);
        }
        seal(bytes, MAGIC);
        pages
    }

    /// How many header blocks a frame that begins with this block claims to have; None if no frame of
    /// this life of this drive begins here. A claim: only [`FrameHeader::decode`] verifies it.
    pub fn claimed_blocks(block: &[u8], drive: DriveId, incarnation: u64, position: u64) -> Option<u64> {
        let ours = block.len() >= FRAME_HEADER
            && u32_at(block, 0) == MAGIC
            && u32_at(block, 8) == VERSION
            && u32_at(block, 12) == drive.0
            && u64_at(block, 16) == incarnation
            && u64_at(block, 32) == position;
        let records = if ours { u32_at(block, 72) as usize } else { return None };
        (records <= RECORDS_MAX).then(|| header_blocks(records))
    }

    /// Whether this block was the first one of a header, if some of its bytes have changed since.
    pub fn resembles(block: &[u8], drive: DriveId, incarnation: u64, position: u64) -> bool {
        let mut marks = [0; 40];
        put_u32(&mut marks, 0, MAGIC);
        put_u32(&mut marks, 8, VERSION);
        put_u32(&mut marks, 12, drive.0);
        put_u64(&mut marks, 16, incarnation);
        put_u64(&mut marks, 32, position);
        // Between them are the checksum and the number.
        let at = (0..4).chain(8..24).chain(32..40);
        block.len() >= FRAME_HEADER && at.filter(|&at| block[at] != marks[at]).count() <= MARKS_CHANGED_MAX
    }

    /// The header in exactly these blocks.
    pub fn decode(bytes: &[u8]) -> Option<FrameHeader> {
        if bytes.len() < BLOCK || u32_at(bytes, 8) != VERSION {
            return None;
        }
        let records = u32_at(bytes, 72) as usize;
        if records > RECORDS_MAX
            || bytes.len() != header_blocks(records) as usize * BLOCK
            || !is_sealed(bytes, MAGIC)
        {
            return None;
        }
        let headers = bytes[FRAME_HEADER..].chunks_exact(RECORD_HEADER).take(records);
        let header = FrameHeader {
            drive: DriveId(u32_at(bytes, 12)),
            incarnation: u64_at(bytes, 16),
            number: u64_at(bytes, 24),
            position: u64_at(bytes, 32),
            tail: u64_at(bytes, 40),
            settled: u64_at(bytes, 48),
            session_first: u64_at(bytes, 56),
            session_after: u64_at(bytes, 64),
            records: headers.map(decode_record).collect::<Option<Vec<_>>>()?,
        };
        let orderly = header.number >= header.session_first
            && header.session_first > header.session_after
            && header.tail <= header.number
            && header.settled < header.number;
        orderly.then_some(header)
    }
}

fn decode_record(bytes: &[u8]) -> Option<RecordHeader> {
    Some(RecordHeader {
        family: FamilyId(u32_at(bytes, 0)),
        epoch: Epoch(u32_at(bytes, 4)),
        seq: Seq(u64_at(bytes, 8)),
        kind: RecordKind::decode(u32_at(bytes, 16))?,
        payload_crc: u32_at(bytes, 20),
        payload_len: u32_at(bytes, 24),
        block: u64_at(bytes, 32),
        count: u64_at(bytes, 40),
        begin: Seq(u64_at(bytes, 48)),
        copied: match u32_at(bytes, 28) {
            0 => Copied::No,
            1 => Copied::On,
            2 => Copied::Lost,
            3 => Copied::Unsure,
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, RngCore, SeedableRng};

    fn random_frame(random: &mut SmallRng) -> FrameHeader {
        let number = random.random_range(10..1000);
        let records = (0..random.random_range(0..200)).map(|index| RecordHeader {
            family: FamilyId(random.random()),
            epoch: Epoch(random.random()),
            seq: Seq(random.random()),
            kind: RecordKind::decode(index % 7 + 1).expect("one of seven"),
            payload_crc: random.random(),
            payload_len: random.random_range(0..1 << 20),
            block: random.random(),
            count: random.random(),
            begin: Seq(random.random()),
            copied: [Copied::No, Copied::On, Copied::Lost, Copied::Unsure][random.random_range(0..4)],
        });
        FrameHeader {
            records: records.collect(),
            drive: DriveId(4),
            incarnation: 99,
            number,
            position: random.random(),
            tail: number - 3,
            settled: number - 2,
            session_first: number - 1,
            session_after: 2,
        }
    }

    #[test]
    fn headers_come_back_and_no_flipped_bit_passes() {
        let mut random = SmallRng::seed_from_u64(1);
        for _ in 0..200 {
            let frame = random_frame(&mut random);
            let position = frame.position;
            let mut bytes = frame.encode().bytes_mut().to_vec();
            let claimed = FrameHeader::claimed_blocks(&bytes[..BLOCK], DriveId(4), 99, frame.position);
            assert_eq!(claimed, Some(frame.header_blocks()));
            assert_eq!(FrameHeader::decode(&bytes), Some(frame));
            let at = random.random_range(0..bytes.len());
            bytes[at] ^= 1 << random.random_range(0..8);
            assert_eq!(FrameHeader::decode(&bytes), None, "byte {at}");
            let resembles = |position, incarnation| {
                FrameHeader::resembles(&bytes[..BLOCK], DriveId(4), incarnation, position)
            };
            assert!(resembles(position, 99), "byte {at}");
            assert!(
                !resembles(position ^ 0x0101_0101_0101, 99) && !resembles(position, 99 ^ 0x0101_0101_0101)
            );
        }
    }

    #[test]
    fn any_bytes_may_come() {
        let mut random = SmallRng::seed_from_u64(2);
        for _ in 0..300 {
            let mut bytes = vec![0; random.random_range(0..3) * BLOCK + random.random_range(0..200)];
            random.fill_bytes(&mut bytes);
            if bytes.len() >= BLOCK {
                put_u32(&mut bytes, 8, VERSION);
                put_u32(&mut bytes, 72, random.random_range(0..2000));
                seal(&mut bytes, MAGIC);
            }
            let _ = FrameHeader::decode(&bytes);
            let _ = FrameHeader::claimed_blocks(&bytes, DriveId(4), 99, 0);
        }
    }
}
