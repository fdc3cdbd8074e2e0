//! Which of the frames found on a drive count, and what they say. Replays them in the order they were
//! written, by the rules they were accepted by, so the outcome is what the keeper held before.
//! Promises: an acknowledged record that is sound on the drive is held again, and of one that is not it is known that it was
//! there; one that never settled is either held as if it had, or gone for ever.

use crate::buffer::BLOCK;
use crate::formats::frame::{ANYBODY, Copied, RecordHeader, RecordKind};
use crate::identity::{Epoch, FamilyId, Seq};
use crate::keeper::holding::{Holding, Home, Place};
use crate::keeper::ring::{Frame, Ring};
use crate::keeper::ring_scan::FoundFrame;
use crate::keeper::second_look::Findings;
use crate::keeper::torn_end;
use crate::sabotage::{Bug, planted};
use std::collections::BTreeMap;

/// Numbers left out after an opening, so that those of frames that were dropped are never used again.
const NUMBERS_SKIPPED: u64 = 1000;

/// The frames that count.
#[derive(Default)]
pub struct Chain {
    /// In order.
    pub kept: Vec<u64>,
    /// Numbers of settled frames that are missing or damaged.
    pub missing: Vec<u64>,
    /// The highest number of all frames found.
    pub seen: u64,
    /// The last frame that counts, whether it is there or not.
    pub last: u64,
    /// Behind that one some are there, and not one before them.
    pub has_gap_behind: bool,
}

/// What came out of a replay.
pub(super) struct Replayed {
    /// The bytes where something settled is missing or damaged.
    pub damage: Vec<u64>,
    /// Frames were found that do not count. The first frame of the new session has to be written before
    /// anything else, so that they cannot come back.
    pub dropped: bool,
}

/// Tells which frames count.
pub fn chain(found: &BTreeMap<u64, FoundFrame>) -> Chain {
    let Some((&seen, newest)) = found.last_key_value() else {
        return Chain::default();
    };
    // Of what was in flight at the end nothing counts from the first frame on that is not whole: a frame
    // settles only with all before it, so nothing of that was ever acknowledged.
    let newest = &newest.header;
    let whole = |number: &u64| found.get(number).is_some_and(|frame| frame.sound.iter().all(|sound| *sound));
    let unsettled = (newest.settled + 1).max(newest.session_first)..=seen;
    let last = match unsettled.clone().find(|number| !whole(number)) {
        Some(torn) if torn == newest.session_first => newest.session_after,
        Some(torn) => torn - 1,
        None => seen,
    };
    let has_gap_behind = unsettled.clone().any(|number| !found.contains_key(&number));
    let mut chain = Chain { kept: Vec::new(), missing: Vec::new(), seen, last, has_gap_behind };
    let mut top = last;
    let mut tail = None;
    while let Some((&number, frame)) = found.range(..=top).next_back() {
        let tail = *tail.get_or_insert(frame.header.tail);
        if number < tail {
            break;
        }
        let session_first = frame.header.session_first;
        for number in (session_first.max(tail)..=top).rev() {
            if found.contains_key(&number) {
                chain.kept.push(number);
            } else if chain.missing.len() < found.len() + 1000 {
                chain.missing.push(number);
            }
        }
        top = frame.header.session_after;
        if session_first <= tail || top < tail {
            break;
        }
    }
    chain.kept.reverse();
    chain.missing.reverse();
    chain
}

impl Ring {
    /// Makes an empty ring what the frames found say. Where a block could not be read there may have been more of them: then nobody knows
    /// here where any log ends.
    pub(super) fn replay(&mut self, findings: &Findings) -> Replayed {
        let Findings { found, unknown, .. } = findings;
        let mut chain = chain(found);
        let mut damage = Vec::new();
        let mut missing = chain.missing.iter().peekable();
        for number in &chain.kept {
            if missing.next_if(|lost| *lost < number).is_some() {
                damage.push(self.head * BLOCK as u64);
                while missing.next_if(|lost| *lost < number).is_some() {}
            }
            self.replay_frame(&found[number], &mut damage);
        }
        if missing.next().is_some() {
            damage.push(self.head * BLOCK as u64);
        }
        if let Some(block) = unknown.filter(|_| !planted(Bug::UnreadEndBelieved)) {
            damage.push(block * BLOCK as u64);
            // As if one were missing behind all that were seen. The next opening would not miss it: what that is to know is written.
            chain.missing.push(chain.seen + 1);
            self.is_end_unknown = true;
        }
        self.missing = chain.missing.last().copied();
        if chain.seen > 0 {
            self.settled = chain.last;
            self.session_after = chain.last;
            self.session_first = chain.seen + NUMBERS_SKIPPED;
            self.next_number = self.session_first;
        }
        self.put_floor(chain.missing.first().copied());
        self.note_torn_end(findings, &chain);
        self.count_dead();
        Replayed { damage, dropped: chain.seen > chain.last }
    }

    /// See [`Ring::floor`].
    fn put_floor(&mut self, first: Option<u64>) {
        let (Some(first), Some(last)) = (first, self.missing) else { return };
        let may_have_more = |holding: &Holding| {
            let has_some = !holding.places.is_empty() || !holding.lost.is_empty();
            (has_some || holding.trimmed > Seq(0) || holding.durable_fence.is_some())
                && holding.unsure.is_none_or(|place| place.is_torn())
                && holding.last_frame().is_none_or(|number| number < last)
        };
        let families = self.holdings.iter().filter(|(_, holding)| may_have_more(holding));
        let families: BTreeMap<FamilyId, Epoch> =
            families.map(|(family, holding)| (*family, holding.fence.max(holding.trimmed_in))).collect();
        self.floor = (!families.is_empty() && !planted(Bug::CarriedIsTheEnd)).then_some((first, families));
    }

    fn replay_frame(&mut self, found: &FoundFrame, damage: &mut Vec<u64>) {
        let header = &found.header;
        let (number, position, blocks) = (header.number, header.position, header.blocks());
        self.frames.push_back(Frame::new(number, position));
        self.put_head_behind(position, blocks);
        let mut payload = position + header.header_blocks();
        for (record, sound) in header.records.iter().zip(&found.sound) {
            match record.kind {
                RecordKind::Fence => self.replay_fence(number, record),
                RecordKind::Trim => self.replay_trim(record),
                RecordKind::Drop => self.replay_drop(record),
                _ if record.copied == Copied::Unsure && record.family == ANYBODY => {
                    self.put_anybody(number, torn_end::anybody_of(record, number))
                }
                _ if record.copied == Copied::Unsure => self.replay_unsure(number, payload, record),
                _ if record.copied == Copied::Lost => self.replay_lost(number, payload, record),
                _ if *sound => self.replay_record(number, payload, record),
                _ => {
                    self.replay_lost(number, payload, record);
                    damage.push(payload * BLOCK as u64);
                }
            }
            payload += record.payload_blocks();
            self.largest = self.largest.max(record.payload_blocks());
        }
    }

    /// What a record makes void is void, whether its own payload is sound or not. Gives whether it counts.
    fn enter(&mut self, record: &RecordHeader) -> bool {
        let holding = self.holdings.entry(record.family).or_default();
        holding.fence = holding.fence.max(record.epoch);
        let void = holding.enter(record.epoch, record.begin, record.seq);
        let overtaken = record.epoch < holding.run.epoch && record.seq >= holding.run.begin;
        let counts = record.seq > holding.trimmed && !overtaken;
        void.iter().for_each(|place| self.let_go(place));
        counts
    }

    /// It was here, and cannot be read any more: whoever asks where the log ended has to know.
    fn replay_lost(&mut self, number: u64, payload: u64, record: &RecordHeader) {
        if !self.enter(record) {
            return;
        }
        let holding = self.holdings.get_mut(&record.family).expect("just made");
        if holding.has(record.seq, record.epoch) {
            return;
        }
        let former = holding.lost.insert(record.seq, place_of(number, payload, record));
        self.frames.back_mut().expect("just added").hold(record.payload_blocks());
        former.iter().for_each(|former| self.let_go(former));
    }

    fn replay_unsure(&mut self, number: u64, payload: u64, record: &RecordHeader) {
        let holding = self.holdings.entry(record.family).or_default();
        holding.fence = holding.fence.max(record.epoch);
        let former = holding.unsure.replace(place_of(number, payload, record));
        self.frames.back_mut().expect("just added").hold(record.payload_blocks());
        former.iter().for_each(|former| self.let_go(former));
    }

    fn replay_record(&mut self, number: u64, payload: u64, record: &RecordHeader) {
        if !self.enter(record) {
            return;
        }
        let holding = self.holdings.get_mut(&record.family).expect("just made");
        let lost = holding.lost.remove(&record.seq);
        let place = place_of(number, payload, record);
        holding.was_carried |= place.carried;
        if record.copied == Copied::No {
            holding.doubt = None;
        }
        let former = holding.places.insert(record.seq, place);
        self.frames.back_mut().expect("just added").hold(record.payload_blocks());
        let unsure = holding.unsure.take_if(|_| record.copied == Copied::No);
        former.iter().chain(&lost).chain(&unsure).for_each(|place| self.let_go(place));
    }

    fn replay_fence(&mut self, number: u64, record: &RecordHeader) {
        let holding = self.holdings.entry(record.family).or_default();
        holding.fence = holding.fence.max(record.epoch);
        holding.doubt = torn_end::doubt_of(record);
        let void = holding.take_older(record.seq, Epoch(record.count as u32));
        let former = holding.durable_fence.replace((record.epoch, number));
        self.frames.back_mut().expect("just added").fences += 1;
        if let Some((_, former)) = former {
            self.frame_mut(former).expect("frames that count stay").fences -= 1;
        }
        void.iter().for_each(|place| self.let_go(place));
    }

    fn replay_trim(&mut self, record: &RecordHeader) {
        let holding = self.holdings.entry(record.family).or_default();
        let gone = holding.take_trimmed(record.seq);
        holding.trimmed_in = holding.trimmed_in.max(record.epoch);
        gone.iter().for_each(|place| self.let_go(place));
        self.end_doubts_before(record.family, record.epoch);
    }

    fn replay_drop(&mut self, record: &RecordHeader) {
        // Its fence counts also where nothing of its log was: an owner that slept through the drop would write egroups that nobody
        // ever deletes.
        let former = self.holdings.remove(&record.family).unwrap_or_default();
        let holding = Holding { fence: former.fence.max(record.epoch), ..Holding::default() };
        self.holdings.insert(record.family, holding);
        former.all_places().for_each(|place| self.let_go(place));
        if let Some((_, number)) = former.durable_fence {
            self.frame_mut(number).expect("frames that count stay").fences -= 1;
        }
    }

    /// The lowest and highest record held of each family; for judges and statistics.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (crate::FamilyId, Seq, Seq)> + '_ {
        self.holdings.iter().filter_map(|(family, holding)| {
            let (low, high) = (holding.places.first_key_value()?, holding.places.last_key_value()?);
            Some((*family, *low.0, *high.0))
        })
    }
}

pub(super) fn place_of(number: u64, payload: u64, record: &RecordHeader) -> Place {
    Place {
        home: Home::Frame(number),
        payload,
        payload_len: record.payload_len,
        payload_crc: record.payload_crc,
        epoch: record.epoch,
        kind: record.kind,
        block: record.block,
        count: record.count,
        carried: record.copied != Copied::No,
        told: false,
    }
}
