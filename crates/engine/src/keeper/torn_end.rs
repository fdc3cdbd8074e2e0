//! The end of a ring, where a frame is not whole. Most likely it was never finished, and nothing of it was ever acknowledged; but a frame
//! that settled and was damaged since looks no different, as long as no later one says that it had settled.
//! Promises: whoever asks where a log ends hears that this drive alone cannot tell, also after later openings, until an owner has found out.
//! Leaves to others: when that matters (`log/recover.rs`: only while every other member is away).

use crate::buffer::{Buffer, zeros};
use crate::formats::frame::{ANYBODY, Copied, RECORDS_MAX, RecordHeader, RecordKind, TORN, records_in};
use crate::identity::{Epoch, FamilyId, Seq, Time};
use crate::keeper::holding::Place;
use crate::keeper::ring::Ring;
use crate::keeper::ring_scan::FoundFrame;
use crate::keeper::second_look::Findings;
use crate::sabotage::{Bug, planted};
use std::collections::BTreeMap;

/// What frames that are not whole may have had, as found when the drive was opened.
#[derive(Default)]
pub(super) struct TornEnd {
    /// Families for which that is to be written before anything else is, and the highest epoch of what they had there.
    pub untold: BTreeMap<FamilyId, Epoch>,
    /// Of one nobody knows whose records it had: of families without anything in this frame or later. It is written in that frame, which
    /// that keeps until a quarter of the ring lies behind it.
    anybody: Option<u64>,
    /// Who has not been asked for until then was not waited for: its owner lives, and knows better.
    anybody_until: Option<Time>,
}

/// So long after somebody came who knows of a log here, all have come who look for one.
const ASKED_US: u64 = 600_000_000;

impl Place {
    /// Whether it only says that a frame was not whole.
    pub fn is_torn(&self) -> bool {
        self.count == TORN
    }
}

impl Ring {
    /// Looks at what comes behind the last frame that counts. What is missing before that is known already.
    pub(super) fn note_torn_end(&mut self, findings: &Findings, last: u64) {
        if planted(Bug::TornEndBelieved) {
            return;
        }
        for (_, frame) in findings.found.range(last + 1..) {
            self.note_torn(frame);
        }
        if findings.is_header_torn {
            self.torn_end.untold.insert(ANYBODY, Epoch(0));
        }
        let (holdings, floor) = (&self.holdings, self.floor.as_ref());
        // Of whom more than that is missing, that is known, and what is written.
        let is_news = |family: &FamilyId| {
            let known = holdings.get(family).and_then(|holding| holding.unsure);
            known.is_none_or(|place| place.is_torn())
                && floor.is_none_or(|(_, families)| !families.contains(family))
        };
        self.torn_end.untold.retain(|family, _| is_news(family));
    }

    fn note_torn(&mut self, frame: &FoundFrame) {
        // What it carried on lies where it was.
        let is_own = |record: &&RecordHeader| matches!(record.copied, Copied::No | Copied::Unsure);
        for record in frame.header.records.iter().filter(|record| record.kind.is_logged()).filter(is_own) {
            let epoch = self.torn_end.untold.entry(record.family).or_default();
            *epoch = (*epoch).max(record.epoch);
        }
    }

    /// A frame that counts says that one that was not whole may have been anybody's.
    pub(super) fn put_torn_anybody(&mut self, number: u64) {
        self.frame_mut(number).expect("a frame that counts is there").fences += 1;
        self.let_go_of_anybody();
        self.torn_end.anybody = Some(number);
    }

    fn let_go_of_anybody(&mut self) {
        if let Some(number) = self.torn_end.anybody.take() {
            self.frame_mut(number).expect("what it says keeps it").fences -= 1;
        }
    }

    /// The ring is to be freed up to the frame of this number.
    pub(super) fn forget_torn_anybody(&mut self, up_to: u64) {
        let Some(number) = self.torn_end.anybody.filter(|number| *number <= up_to) else { return };
        let position = self.frame_mut(number).expect("what it says keeps it").position;
        let behind = (self.head + self.blocks - position) % self.blocks;
        if behind > self.blocks / 4 {
            self.let_go_of_anybody();
            self.count_dead();
        }
    }

    /// The frame that says it.
    pub(super) fn torn_anybody(&self) -> Option<u64> {
        self.torn_end.anybody
    }

    /// Whether a frame that is not whole may have had more of the family, in the last part of its log.
    pub(super) fn is_torn_for(&self, family: FamilyId) -> bool {
        let Some(holding) = self.holdings.get(&family) else { return false };
        let marked = holding.unsure.filter(Place::is_torn).map(|place| place.epoch);
        let untold = self.torn_end.untold.get(&family).copied();
        marked.into_iter().chain(untold).chain(holding.torn).any(|epoch| epoch >= holding.log_since)
    }

    /// Owners reach this drive.
    pub(super) fn note_asked(&mut self, now: Time) {
        self.torn_end.anybody_until.get_or_insert(now.after(ASKED_US));
    }

    /// The last part of its log was begun in epoch `since`, says somebody who asks for it. Gives whether that it may be torn is to be
    /// written with the fence: another one who asks may come after the next opening.
    pub(super) fn note_since(&mut self, now: Time, family: FamilyId, since: Epoch) -> bool {
        self.note_asked(now);
        let torn = &self.torn_end;
        let anybody = torn.anybody.or(torn.untold.contains_key(&ANYBODY).then_some(self.session_first));
        let anybody = anybody.filter(|_| torn.anybody_until.is_some_and(|until| now < until));
        let holding = self.holdings.entry(family).or_default();
        holding.log_since = holding.log_since.max(since);
        let has_later = |number| holding.last_frame().is_some_and(|last| last >= number);
        if holding.torn.is_some() || anybody.is_none_or(has_later) {
            return false;
        }
        holding.torn = Some(since);
        true
    }

    /// Those that are not told yet, as far as they go into a header of so many blocks.
    pub(super) fn untold_torn(&self, blocks: u64) -> Vec<(u64, RecordHeader, Buffer)> {
        let untold = self.torn_end.untold.iter().take(records_in(blocks).min(RECORDS_MAX));
        untold.map(|(&family, &epoch)| (0, unsure(family, epoch, TORN), zeros(0))).collect()
    }
}

/// What says that nobody knows here where the log of a family ends. It has no number.
pub(super) fn unsure(family: FamilyId, epoch: Epoch, count: u64) -> RecordHeader {
    let (payload_crc, payload_len, block) = (0, 0, 0);
    let (seq, begin) = (Seq(0), Seq(0));
    let (kind, copied) = (RecordKind::Data, Copied::Unsure);
    RecordHeader { family, epoch, seq, kind, payload_crc, payload_len, block, count, begin, copied }
}
