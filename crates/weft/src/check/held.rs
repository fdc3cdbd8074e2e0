//! Which records of the families' logs a drive holds, from the frames that count.
//! The rules are those of the keeper (`weft_engine::keeper::ring_replay`), written down a second time in the most
//! obvious way, so that a mistake in one of the two shows as a difference.

use super::contents::Contents;
use std::collections::BTreeMap;
use weft_engine::buffer::{BLOCK, Buffer};
use weft_engine::checksum::crc32c;
use weft_engine::formats::frame::{Copied, RecordHeader, RecordKind};
use weft_engine::formats::payload;
use weft_engine::formats::record::Record;
use weft_engine::interface::Area;
use weft_engine::keeper::ring_replay::Chain;
use weft_engine::keeper::ring_scan::FoundFrame;
use weft_engine::{Epoch, FamilyId, Seq};

/// A record as it lies in the ring.
#[derive(Debug, Clone, Copy)]
pub struct HeldRecord {
    pub header: RecordHeader,
    /// First block of the payload in the ring.
    pub payload: u64,
    /// The number of its frame.
    pub frame: u64,
    /// The payload passes its checksum.
    pub sound: bool,
}

/// What a drive holds of one family's log.
#[derive(Debug, Default)]
pub struct Held {
    pub records: BTreeMap<Seq, HeldRecord>,
    /// The lowest epoch that may still write here.
    pub fence: Epoch,
    /// Records up to this are not needed any more.
    pub trimmed: Seq,
    /// The newest epoch that wrote here, and the lowest record it wrote.
    run: (Epoch, Seq),
}

impl Held {
    /// Takes away the records from `first` on that epochs before `since` wrote.
    pub fn void(&mut self, first: Seq, since: Epoch) {
        self.records.retain(|seq, record| *seq < first || record.header.epoch >= since);
    }

    fn on_record(&mut self, record: HeldRecord) {
        let RecordHeader { seq, epoch, begin, .. } = record.header;
        self.fence = self.fence.max(epoch);
        let (run_epoch, run_begin) = self.run;
        if epoch > run_epoch || epoch == run_epoch && begin < run_begin {
            self.void(begin, epoch);
            self.run = (epoch, begin);
        }
        let overtaken = epoch < run_epoch && seq >= run_begin;
        // A copy that is damaged stands in for nothing.
        let has_better = self.records.get(&seq).is_some_and(|had| had.header.epoch == epoch && had.sound);
        if seq > self.trimmed && !overtaken && (record.sound || !has_better) {
            self.records.insert(seq, record);
        }
    }

    fn on_trim(&mut self, up_to: Seq) {
        self.trimmed = self.trimmed.max(up_to);
        self.records.retain(|seq, _| *seq > up_to);
    }
}

/// Replays the frames that count, in the order they were written.
pub fn replay(frames: &BTreeMap<u64, FoundFrame>, chain: &Chain) -> BTreeMap<FamilyId, Held> {
    let mut families: BTreeMap<FamilyId, Held> = BTreeMap::new();
    for number in &chain.kept {
        let frame = &frames[number];
        let mut payload = frame.header.position + frame.header.header_blocks();
        for (header, sound) in frame.header.records.iter().zip(&frame.sound) {
            // No record, and of anybody, perhaps.
            if header.copied == Copied::Unsure {
                continue;
            }
            let held = families.entry(header.family).or_default();
            match header.kind {
                RecordKind::Fence => {
                    held.fence = held.fence.max(header.epoch);
                    held.void(header.seq, Epoch(header.count as u32));
                }
                RecordKind::Trim => held.on_trim(header.seq),
                RecordKind::Drop => {
                    *held = Held { fence: held.fence.max(header.epoch), ..Held::default() };
                }
                RecordKind::Data
                | RecordKind::Zero
                | RecordKind::Map
                | RecordKind::Checkpoint
                | RecordKind::Mark => {
                    let sound = *sound && header.copied != Copied::Lost;
                    let record = HeldRecord { header: *header, payload, frame: *number, sound };
                    held.on_record(record);
                }
            }
            payload += header.payload_blocks();
        }
    }
    families
}

/// The whole record; None if it is damaged.
pub fn read(contents: &Contents, record: &HeldRecord) -> Option<Record> {
    let header = &record.header;
    let mut bytes = vec![0; header.payload_len as usize];
    if !bytes.is_empty() {
        contents.reader.area(Area::Log).read(record.payload * BLOCK as u64, &mut bytes).ok()?;
        if crc32c(&bytes) != header.payload_crc {
            return None;
        }
    }
    payload::decode(header.seq, header.kind, header.block, header.count, Buffer::copied(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(seq: u64, epoch: u32, begin: u64) -> HeldRecord {
        let header = RecordHeader {
            family: FamilyId(1),
            epoch: Epoch(epoch),
            seq: Seq(seq),
            kind: RecordKind::Data,
            payload_crc: 0,
            payload_len: 0,
            block: 0,
            count: 1,
            begin: Seq(begin),
            copied: Copied::No,
        };
        HeldRecord { header, payload: 0, frame: 1, sound: true }
    }

    fn seqs(held: &Held) -> Vec<(u64, u32)> {
        held.records.iter().map(|(seq, record)| (seq.0, record.header.epoch.0)).collect()
    }

    #[test]
    fn a_new_owner_voids_what_older_ones_wrote_behind_its_first_record() {
        let mut held = Held::default();
        (1..=6).for_each(|seq| held.on_record(record(seq, 1, 1)));
        held.on_record(record(4, 2, 4));
        assert_eq!(seqs(&held), [(1, 1), (2, 1), (3, 1), (4, 2)]);
        held.on_record(record(5, 1, 1));
        assert_eq!(seqs(&held), [(1, 1), (2, 1), (3, 1), (4, 2)], "the old owner comes too late");
        held.on_record(record(3, 1, 1));
        assert_eq!(held.records.len(), 4, "below, a copy of an old record still counts");
    }

    #[test]
    fn what_was_trimmed_stays_away() {
        let mut held = Held::default();
        (1..=6).for_each(|seq| held.on_record(record(seq, 1, 1)));
        held.on_trim(Seq(4));
        held.on_record(record(3, 1, 1));
        assert_eq!(seqs(&held), [(5, 1), (6, 1)]);
    }

    #[test]
    fn a_damaged_record_is_held_like_any_other() {
        use crate::check::ends::MemberEnd;
        let mut held = Held::default();
        (1..=5).for_each(|seq| held.on_record(record(seq, 1, 1)));
        held.on_record(HeldRecord { sound: false, frame: 7, ..record(6, 1, 1) });
        let end = |missing| MemberEnd::of(&held.records, missing, Seq(0));
        assert_eq!(end(None), MemberEnd { last: Seq(6), incomplete: false }, "it was there");
        assert!(end(Some(3)).incomplete, "nothing behind the missing frame can be read");
        held.on_record(record(6, 1, 1));
        assert!(!MemberEnd::of(&held.records, Some(0), Seq(0)).incomplete, "a gap would have been noticed");
    }
}
