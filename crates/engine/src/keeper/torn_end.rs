//! The end of a ring, where a frame is not whole. Most likely it was never finished, and nothing of it was ever acknowledged; but a frame
//! that settled and was damaged since looks no different, as long as no later one says that it had settled.
//! Promises: whoever asks where a log ends hears that this drive alone cannot tell, also after later openings, until an owner has found out;
//! so does who has nothing behind a frame of which nobody knows what was in it.
//! Leaves to others: when that matters (`log/recover.rs`: only while every other member is away), and what is known to have been there
//! (`ring_replay`).

use crate::buffer::{Buffer, zeros};
use crate::formats::frame::{ANYBODY, Copied, RECORDS_MAX, RecordHeader, RecordKind, TORN, records_in};
use crate::identity::{Epoch, FamilyId, Seq, Time};
use crate::keeper::holding::{Anybody, Doubt, Place};
use crate::keeper::ring::Ring;
use crate::keeper::ring_replay::Chain;
use crate::keeper::ring_scan::FoundFrame;
use crate::keeper::second_look::Findings;
use crate::sabotage::{Bug, planted};
use std::collections::BTreeMap;

/// What frames that are not whole may have had, as found when the drive was opened.
#[derive(Default)]
pub(super) struct TornEnd {
    /// Families for which that is to be written before anything else is, and the highest epoch of what they had there.
    pub untold: BTreeMap<FamilyId, Epoch>,
    /// What may have been anybody's, and the frame in which that is written, and which it keeps.
    anybody: Option<(Anybody, u64)>,
    /// The same, to be written with the next frame that has room for it: anew, or because the frame that says it is to be free.
    wanted: Option<Anybody>,
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
    /// Looks at what comes behind the last frame that counts, and before it where something is missing.
    pub(super) fn note_torn_end(&mut self, findings: &Findings, chain: &Chain) {
        if planted(Bug::TornEndBelieved) {
            return;
        }
        for (_, frame) in findings.found.range(chain.last + 1..) {
            self.note_torn(frame);
        }
        // Of whom more than that is missing, that is known, and what is written.
        let floor = self.floor.as_ref().filter(|_| self.is_end_unknown);
        let is_news = |family: &FamilyId| {
            let known = self.holdings.get(family).and_then(|holding| holding.unsure);
            known.is_none_or(|place| place.is_torn())
                && floor.is_none_or(|(_, families)| !families.contains_key(family))
        };
        self.torn_end.untold.retain(|family, _| is_news(family));
        let is_end_anybodys = findings.is_header_torn || self.is_end_unknown || chain.has_gap_behind;
        let before = match self.missing {
            _ if is_end_anybodys => Some(self.session_first),
            // What was in it is not known here as soon as the ring is free beyond it.
            missing => missing.map(|missing| missing + 1),
        };
        self.torn_end.wanted = before.and_then(|before| self.anybody_anew(before));
    }

    /// What is to be told if something may be missing `before` this frame, with what is known already; None: that says it.
    fn anybody_anew(&self, before: u64) -> Option<Anybody> {
        let known = self.known_anybody();
        let anew = Anybody {
            before: known.map_or(before, |known| known.before.max(before)),
            had_settled: self.missing.is_some() || known.is_some_and(|known| known.had_settled),
        };
        let is_news = known.is_none_or(|known| known < anew) && !planted(Bug::AnybodyForgotten);
        is_news.then_some(anew)
    }

    fn note_torn(&mut self, frame: &FoundFrame) {
        // What it carried on lies where it was, or what is missing there tells; so does what may have been anybody's.
        let is_own = |record: &&RecordHeader| {
            matches!(record.copied, Copied::No | Copied::Unsure) && record.family != ANYBODY
        };
        for record in frame.header.records.iter().filter(|record| record.kind.is_logged()).filter(is_own) {
            let epoch = self.torn_end.untold.entry(record.family).or_default();
            *epoch = (*epoch).max(record.epoch);
            // Whoever was there before has nothing to say any more.
            let holding = self.holdings.entry(record.family).or_default();
            holding.fence = holding.fence.max(record.epoch);
        }
    }

    /// A frame that counts says what may have been anybody's.
    pub(super) fn put_anybody(&mut self, told_in: u64, anybody: Anybody) {
        self.frame_mut(told_in).expect("a frame that counts is there").fences += 1;
        self.let_go_of_anybody();
        self.torn_end.anybody = Some((anybody, told_in));
    }

    fn let_go_of_anybody(&mut self) {
        if let Some((_, told_in)) = self.torn_end.anybody.take() {
            self.frame_mut(told_in).expect("what it says keeps it").fences -= 1;
        }
    }

    /// The ring is to be freed up to the frame of this number: what keeps it is told again, as long as somebody may ask.
    pub(super) fn carry_anybody(&mut self, now: Time, up_to: u64) {
        let Some((anybody, _)) = self.torn_end.anybody.filter(|(_, told_in)| *told_in <= up_to) else {
            return;
        };
        if self.torn_end.anybody_until.is_some_and(|until| now >= until) || planted(Bug::AnybodyForgotten) {
            self.let_go_of_anybody();
            self.count_dead();
        } else {
            self.torn_end.wanted = self.torn_end.wanted.max(Some(anybody));
        }
    }

    /// The frame that says it.
    pub(super) fn torn_anybody(&self) -> Option<u64> {
        self.torn_end.anybody.map(|(_, told_in)| told_in)
    }

    /// Whether the next frame is to say it.
    pub(super) fn wants_anybody(&self) -> bool {
        self.torn_end.wanted.is_some()
    }

    /// What the next frame is to say of it.
    pub(super) fn take_anybody(&mut self) -> Option<Anybody> {
        self.torn_end.wanted.take()
    }

    /// What may have been anybody's, wherever that is written or will be.
    fn known_anybody(&self) -> Option<Anybody> {
        let told = self.torn_end.anybody.map(|(anybody, _)| anybody);
        let on_its_way = self.flying.iter().filter_map(|flying| flying.anybody);
        told.into_iter().chain(on_its_way).chain(self.torn_end.wanted).max()
    }

    /// Whether a frame that is not whole may have had more of the family, in the last part of its log.
    pub(super) fn is_torn_for(&self, family: FamilyId) -> bool {
        let Some(holding) = self.holdings.get(&family) else { return false };
        let marked = holding.unsure.filter(Place::is_torn).map(|place| place.epoch);
        let untold = self.torn_end.untold.get(&family).copied();
        let anybody = holding.doubt.filter(|doubt| !doubt.anybody.had_settled).map(|doubt| doubt.since);
        marked.into_iter().chain(untold).chain(anybody).any(|epoch| epoch >= holding.log_since)
    }

    /// An owner of this epoch has begun a part of the log: what is doubted of older ones concerns nobody any more. Gives whether
    /// something was that takes room. (What it was told of with its fence stays: it is silent, and not noted anew.)
    pub(super) fn end_doubts_before(&mut self, family: FamilyId, epoch: Epoch) -> bool {
        self.end_doubts(family, |doubted| doubted < epoch)
    }

    /// An owner of this epoch knows where the log ends, as far as it was written by then.
    pub(super) fn end_doubts_up_to(&mut self, family: FamilyId, epoch: Epoch) {
        self.end_doubts(family, |doubted| doubted <= epoch);
        if let Some(holding) = self.holdings.get_mut(&family) {
            holding.doubt.take_if(|doubt| doubt.since <= epoch);
        }
    }

    /// The family is no more.
    pub(super) fn release(&mut self, family: FamilyId) {
        self.end_doubts_up_to(family, Epoch(u32::MAX));
    }

    fn end_doubts(&mut self, family: FamilyId, is_over: impl Fn(Epoch) -> bool) -> bool {
        let holding = self.holdings.get_mut(&family);
        let unsure = holding.and_then(|holding| holding.unsure.take_if(|place| is_over(place.epoch)));
        unsure.iter().for_each(|place| self.let_go(place));
        let untold = &mut self.torn_end.untold;
        let was_untold = untold.get(&family).is_some_and(|doubted| is_over(*doubted));
        if was_untold {
            untold.remove(&family);
        }
        let floor = self.floor.as_ref().and_then(|(_, families)| families.get(&family));
        let was_on_floor = floor.is_some_and(|doubted| is_over(*doubted));
        if was_on_floor {
            self.lift_floor(family);
        }
        unsure.is_some() || was_untold || was_on_floor
    }

    /// Owners reach this drive.
    pub(super) fn note_asked(&mut self, now: Time) {
        self.torn_end.anybody_until.get_or_insert(now.after(ASKED_US));
    }

    /// The last part of its log was begun in epoch `since`, says somebody who asks for it. Gives whether that it may be torn is to be
    /// written with the fence: another one who asks may come after the next opening.
    pub(super) fn note_since(&mut self, now: Time, family: FamilyId, since: Epoch) -> bool {
        self.note_asked(now);
        let until = self.torn_end.anybody_until;
        let anybody = self.known_anybody().filter(|_| until.is_some_and(|until| now < until));
        let holding = self.holdings.entry(family).or_default();
        holding.log_since = holding.log_since.max(since);
        let Some(anybody) = anybody else { return false };
        let is_later = holding.last_frame().is_some_and(|last| last >= anybody.before);
        // Once for each: who asks again has begun anew since. What was noted of another says nothing of this one.
        let is_noted = |noted: Doubt| noted.anybody.before >= anybody.before || planted(Bug::OldDoubtHides);
        if is_later || holding.doubt.is_some_and(is_noted) {
            return false;
        }
        // One kind does not end with another.
        let is_settled = |old: Doubt| old.anybody.had_settled && old.since >= since;
        let had_settled = anybody.had_settled || holding.doubt.is_some_and(is_settled);
        holding.doubt = Some(Doubt { since, anybody: Anybody { had_settled, ..anybody } });
        true
    }

    /// What is to be told before anything else is written, as far as it goes into a header of so many blocks.
    pub(super) fn first_to_tell(&mut self, blocks: u64) -> Vec<(u64, RecordHeader, Buffer)> {
        let floor = if self.is_end_unknown { self.unsure_of_the_floor(0) } else { Vec::new() };
        let torn = self.torn_end.untold.iter();
        let torn = torn.map(|(&family, &epoch)| (0, unsure(family, epoch, TORN), zeros(0)));
        let mut told: Vec<_> = floor.into_iter().chain(torn).collect();
        let room = records_in(blocks).min(RECORDS_MAX) - 1;
        if told.len() > room {
            // Once this frame counts, the next opening does not see any more what is left.
            if let Some(anew) = self.anybody_anew(self.session_first) {
                self.torn_end.wanted = Some(anew);
            }
            told.truncate(room);
        }
        told
    }
}

/// What says of anybody that records may be missing.
pub(super) fn anybody(anybody: Anybody) -> RecordHeader {
    let count = if anybody.had_settled { 0 } else { TORN };
    RecordHeader { begin: Seq(anybody.before), ..unsure(ANYBODY, Epoch(0), count) }
}

/// What such a record says, in the frame of this number. Before decision 0059 it was about the frame that it was in.
pub(super) fn anybody_of(record: &RecordHeader, number: u64) -> Anybody {
    let before = if record.begin == Seq(0) { number } else { record.begin.0 };
    Anybody { before, had_settled: record.count != TORN }
}

/// In the field of a fence's doubt, above the epoch: the frame had settled.
const HAD_SETTLED: u64 = 1 << 40;

/// The fence with what is doubted.
pub(super) fn fence_with(doubt: Option<Doubt>, fence: RecordHeader) -> RecordHeader {
    let Some(Doubt { since, anybody: Anybody { before, had_settled } }) = doubt else { return fence };
    let kind = if had_settled { HAD_SETTLED } else { 0 };
    RecordHeader { block: kind + u64::from(since.0) + 1, begin: Seq(before), ..fence }
}

/// What is doubted, as a fence says.
pub(super) fn doubt_of(fence: &RecordHeader) -> Option<Doubt> {
    let since = (fence.block % HAD_SETTLED).checked_sub(1)?;
    let anybody = Anybody { before: fence.begin.0, had_settled: fence.block >= HAD_SETTLED };
    Some(Doubt { since: Epoch(since as u32), anybody })
}

/// What says that nobody knows here where the log of a family ends. It has no number.
pub(super) fn unsure(family: FamilyId, epoch: Epoch, count: u64) -> RecordHeader {
    let (payload_crc, payload_len, block) = (0, 0, 0);
    let (seq, begin) = (Seq(0), Seq(0));
    let (kind, copied) = (RecordKind::Data, Copied::Unsure);
    RecordHeader { family, epoch, seq, kind, payload_crc, payload_len, block, count, begin, copied }
}
