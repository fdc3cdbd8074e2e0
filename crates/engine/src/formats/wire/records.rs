//! Records in a message: a small header of each in the body; the blocks they carry, padded, in the payload.

use super::fields::{Reader, Writer};
use crate::buffer::BLOCK;
use crate::formats::frame::RecordKind;
use crate::formats::payload;
use crate::formats::record::Record;
use crate::identity::Seq;
use crate::limits::RECORD_BLOCKS;

/// Bytes of one record's header.
const HEADER_BYTES: usize = 32;

pub(super) fn put(records: &[Record], writer: &mut Writer) {
    writer.count(records.len());
    for record in records {
        let (kind, block, count) = payload::header_fields(record);
        writer.u64(record.seq.0);
        writer.u32(kind as u32);
        writer.count(record.payload_bytes());
        writer.u64(block);
        writer.u64(count);
        if let Some(payload) = payload::encode(record) {
            writer.payload(&payload);
        }
    }
}

/// Records, each with a number, data in whole blocks.
pub(super) fn take(reader: &mut Reader) -> Option<Vec<Record>> {
    reader.list(HEADER_BYTES, |reader| {
        let seq = reader.seq().filter(|&seq| seq > Seq(0))?;
        let kind = logged(reader.u32()?)?;
        let len = reader.u32()? as usize;
        let (block, count) = match kind {
            RecordKind::Mark => (reader.u64()?, reader.u64()?),
            _ => reader.blocks()?,
        };
        let whole = match kind {
            RecordKind::Data => (1..=RECORD_BLOCKS).contains(&count) && len as u64 == count * BLOCK as u64,
            RecordKind::Zero => count > 0 && len == 0,
            RecordKind::Mark => len == 0,
            _ => true,
        };
        if !whole {
            return None;
        }
        let padded = reader.payload(len.next_multiple_of(BLOCK))?;
        payload::decode(seq, kind, block, count, padded.slice(0..len))
    })
}

/// The kinds that a family's log consists of.
fn logged(value: u32) -> Option<RecordKind> {
    [RecordKind::Data, RecordKind::Zero, RecordKind::Map, RecordKind::Checkpoint, RecordKind::Mark]
        .into_iter()
        .find(|kind| *kind as u32 == value)
}
