//! A record that an opening needs: who is asked for it, who is waited for, and what it means that nobody gives it.
//! Promises: nothing that was acknowledged is taken for not written as long as somebody may give it, or has it, damaged; nobody is waited for
//! for ever who may only know that there is more than those know who are sure.
//! Leaves to others: where the log ends (`ends`), writes that are done without (`lost`), what is done with records (`recover`).

use super::lost::LostHere;
use super::{Stage, segment_of};
use crate::context::{Context, Purpose};
use crate::identity::{DriveId, Seq};
use crate::interface::{FamilyTrouble, Segment};
use crate::message::Question;
use crate::sabotage::{Bug, planted};
use crate::volume::Volume;

/// So long a member that told of a record and has gone away is waited for, if the log can end without it; and so long in one opening those who
/// have told of nothing.
const MISSED_US_MAX: u64 = 5_000_000;

impl Volume {
    /// The next of a segment's drives to ask for a record: fenced, and holding that part of the log.
    fn next_source(&mut self, seq: Seq, segment: &Segment, ctx: &Context) -> Option<DriveId> {
        let recovery = self.recovery();
        let may_be_asked = |drive: &DriveId| {
            recovery.has_told(*drive, seq)
                && !recovery.tried.contains(drive)
                && !recovery.has_told_lost(*drive, seq)
                && ctx.is_up(*drive)
        };
        let members = segment.members.iter().copied().filter(may_be_asked);
        ctx.nearest(members).or_else(|| segment.absent.iter().copied().find(may_be_asked))
    }

    /// Asks for records from `seq` on. With no member left to ask, the record is lost unless one may come back. True: it is done without, and the
    /// next one is needed.
    pub(super) fn read_log(&mut self, seq: Seq, bytes: u32, ctx: &mut Context) -> bool {
        let segment = segment_of(&self.log.segments, seq).clone();
        if let Some(drive) = self.next_source(seq, &segment, ctx) {
            let recovery = self.recovery();
            recovery.reading = true;
            recovery.tried.insert(drive);
            let question = Question::ReadLog { from: seq, bytes };
            ctx.ask(self.family, self.epoch, drive, question, Purpose::Replay);
            return false;
        }
        let recovery = self.recovery();
        let may_come = |drive: &DriveId| {
            !ctx.is_lost(*drive) && !recovery.tried.contains(drive) && !recovery.has_told_lost(*drive, seq)
        };
        let may_answer = |drive: DriveId| {
            !recovery.fenced.contains_key(&drive) && !recovery.full.is_full_for_long(drive, ctx.now)
        };
        let may_have = |drive: DriveId| !segment.absent.contains(&drive) || recovery.has_told(drive, seq);
        let is_away = |drive: DriveId| may_answer(drive) || !ctx.is_up(drive) && may_have(drive);
        let may_give =
            |drive: DriveId| may_answer(drive) || !ctx.is_up(drive) && recovery.has_told(drive, seq);
        let away = segment.drives().filter(may_come).any(is_away);
        let may_be_given = segment.drives().filter(may_come).any(may_give);
        let waits = self.may_tell(seq, &segment, may_be_given, ctx);
        let lost = self.lost_write(seq, ctx).filter(|lost| !waits && (lost.is_behind || !away));
        if let Some(LostHere { write, .. }) = lost {
            self.take_as_lost(write);
            return true;
        }
        let is_end = !waits && self.end_before(seq, &segment, may_be_given);
        if is_end || self.ask_those_back(seq, &segment, waits || away, ctx) {
            self.advance_opening(ctx);
        } else if waits || away {
            self.recovery().again_at = Some(ctx.now.after(100_000));
        } else {
            self.fail(FamilyTrouble::RecordLost(seq), ctx);
        }
        false
    }

    /// Members that were away since they told what they have, and are back, are asked again; while somebody else is waited for only those who
    /// may bring this record: the word of others is not given away. False: there are none.
    fn ask_those_back(&mut self, seq: Seq, segment: &Segment, may_wait: bool, ctx: &Context) -> bool {
        let recovery = self.recovery();
        let may_bring = |drive: DriveId| {
            let is_unsure = recovery.fenced.get(&drive).is_some_and(|held| held.torn || held.incomplete);
            recovery.may_disturb(drive) && (is_unsure || recovery.has_told(drive, seq))
        };
        let is_back = |drive: &DriveId| {
            recovery.gone.contains(drive) && ctx.is_up(*drive) && (!may_wait || may_bring(*drive))
        };
        let back: Vec<DriveId> = segment.drives().filter(is_back).collect();
        self.fence_again(&back)
    }

    /// Those who are back and may give what was given up, or cut off, while they were away are asked again.
    pub(super) fn hear_those_back(&mut self, ctx: &Context) {
        let recovery = self.recovery();
        if recovery.gone.is_empty() || planted(Bug::LateGiverUnheard) {
            return;
        }
        let (recovery, segments) = self.recovery_of();
        let last = segments.last().expect("a family with a log has segments");
        let is_back = |drive: &DriveId| {
            ctx.is_up(*drive)
                && recovery.may_disturb(*drive)
                && (recovery.may_give_some(*drive, segments) || recovery.has_what_was_cut(*drive, last))
        };
        let back: Vec<DriveId> = recovery.gone.iter().copied().filter(is_back).collect();
        self.fence_again(&back);
    }

    /// Forgets what these have told, and where the log ends because of that.
    fn fence_again(&mut self, drives: &[DriveId]) -> bool {
        let recovery = self.recovery();
        for drive in drives {
            *recovery.returns.entry(*drive).or_default() += 1;
            recovery.gone.remove(drive);
            recovery.fenced.remove(drive);
            recovery.asked.remove(drive);
            recovery.fences.remove(drive);
        }
        if !drives.is_empty() {
            recovery.forget_end();
            self.read_anew(Stage::Fencing);
        }
        !drives.is_empty()
    }

    /// Whether the log ends before this record for those who are sure of its end.
    pub(super) fn is_behind(&mut self, seq: Seq) -> bool {
        let (_, lowest) = self.ends();
        self.recovery().ends.sure_end.map_or(lowest, |sure| sure.min(lowest)) < seq
    }

    /// Whether a drive may still give this record, and not for long: it is not nobody who can read it.
    fn may_tell(&mut self, seq: Seq, segment: &Segment, may_be_given: bool, ctx: &Context) -> bool {
        let is_behind = self.is_behind(seq);
        let recovery = self.recovery();
        // For those who are sure the log ends before it. Who has told of nothing yet may know more, and who could not read it may be able to soon.
        let may_know = is_behind && (may_be_given || recovery.unread.contains(&seq));
        let mut waits = false;
        if may_know && !planted(Bug::LateGiverUnheard) {
            let since = *recovery.awaited.get_or_insert(ctx.now);
            waits = ctx.now.since(since) < MISSED_US_MAX;
        }
        // Who told of it and has gone away since.
        let is_away = |drive: DriveId| !ctx.is_up(drive) && !ctx.is_lost(drive);
        let may_give = |drive: DriveId| recovery.has_told(drive, seq) && !recovery.has_told_lost(drive, seq);
        if !segment.drives().any(|drive| may_give(drive) && is_away(drive)) {
            return waits;
        }
        let missed = recovery.missed.filter(|(of, _)| *of == seq).unwrap_or((seq, ctx.now));
        recovery.missed = Some(missed);
        // What others say of the end is believed only if one of them is sure.
        let is_believed = recovery.ends.is_confirmed || planted(Bug::TornEndBelieved);
        waits || !is_believed || ctx.now.since(missed.1) < MISSED_US_MAX
    }

    /// A record that cannot be read was never acknowledged if some members do not have it: then the log ends in front of it. If
    /// it is the checkpoint that the map was to be read from, or is needed behind that one, an older one takes its place: what
    /// that needs was not given up before the newer one was on all members.
    fn end_before(&mut self, seq: Seq, segment: &Segment, may_be_given: bool) -> bool {
        let last_first = self.log.segments.last().map_or(Seq(0), |last| last.first);
        let (highest, _) = self.ends();
        let is_behind = self.is_behind(seq);
        let recovery = self.recovery();
        let has_base = recovery.stage == Stage::Replay && recovery.checkpoint < seq;
        // Whoever is behind may never have had it. If all had it, what the one before needs may be gone: nobody who may give it is left.
        let lacks_it = |drive: &DriveId| recovery.fenced[drive].high < seq;
        let is_end = !has_base && seq == highest && seq >= last_first;
        let may_go = is_end && !may_be_given && recovery.ends.behind.iter().any(lacks_it);
        // Somebody has trimmed it, behind a checkpoint that was on all members.
        let mut held = segment.members.iter().filter_map(|drive| recovery.fenced.get(drive));
        let was_trimmed = held.any(|held| held.low > seq);
        if has_base && recovery.checkpoint == Seq(0) && was_trimmed {
            return false;
        }
        if !is_behind && !may_go || (planted(Bug::FirstBaseKept) && !has_base) {
            return false;
        }
        (recovery.ends.cut, recovery.ends.is_found) = (Some(seq.previous()), true);
        if has_base {
            recovery.found.clear();
            recovery.tried.clear();
        } else {
            self.read_anew(Stage::Fencing);
        }
        true
    }
}
