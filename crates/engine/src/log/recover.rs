//! Opening a family: fence the former owner, load the map, read the log, complete it.
//! Promises: every record that was ever acknowledged is found, or the opening fails and says which one is lost (I3); but for writes of which
//! somebody knows where they went, and nobody what they were: reads of those blocks fail (`recover/lost.rs`);
//! nothing is served before every record that is served is on all members (I1, I2).
//! Leaves to others: whose word counts (`recover/ends.rs`), who is asked for a record (`recover/needed.rs`), reading the map (`recover/loading.rs`), what records do to memory
//! (`Volume::apply`), what members get before a new segment begins (`recover/giving.rs`), and the new one (`recover/completing.rs`).
//!
//! An acknowledged record is on all members of its segment, so each member that has its data knows them all. The
//! end of the log is the highest record any of them holds; what is above the lowest of their ends is on some
//! only, and was never acknowledged, unless somebody lost it: the others are given it, or it is appended again.

mod completing;
mod ends;
mod full;
mod giving;
mod loading;
mod lost;
mod needed;

use crate::context::{Context, Purpose};
use crate::drain::Drain;
use crate::formats::record::{Body, Record};
use crate::identity::{DriveId, Epoch, Generation, Seq, Time};
use crate::interface::{FamilyTrouble, Segment};
use crate::log::layers::Layers;
use crate::map::Map;
use crate::message::{Answer, Held, LostWrite, Question, Refusal};
use crate::sabotage::{Bug, planted};
use crate::volume::snapshots::{Rollback, Snapshots};
use crate::volume::{Phase, Volume};
use ends::{Ends, Members};
use full::FullMembers;
use giving::Giving;
use loading::Load;
use lost::Lost;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes of log asked for at once.
const READ_BYTES: u32 = 4 << 20;

/// So often in one opening a drive that was away is heard again while others could do without it.
const RETURNS_MAX: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Asking all members that are up to refuse the former owner.
    Fencing,
    /// Reading the newest checkpoint record.
    Checkpoint(Seq),
    /// Loading index pages, then directory pages.
    Index,
    Directory,
    /// Reading records.
    Replay,
    /// Giving members what they lack of the end.
    Giving,
    /// Waiting for the config store and for records appended again.
    Completing {
        until: Seq,
    },
}

#[derive(Debug)]
pub(crate) struct Recovery {
    stage: Stage,
    fenced: BTreeMap<DriveId, Held>,
    asked: BTreeSet<DriveId>,
    /// Those who have answered and were away since: what they hold may not be what they told any more.
    gone: BTreeSet<DriveId>,
    /// How often each was asked again for that.
    returns: BTreeMap<DriveId, u32>,
    /// Fences that were answered by drives that get several: see [`fences_of`].
    fences: BTreeMap<DriveId, usize>,
    full: FullMembers,
    /// Whose word counts for where the log ends, and where it was cut, see [`Volume::end_before`].
    ends: Ends,
    /// What the opening began with, for reading anew.
    rollback: Option<Rollback>,
    /// Members tried for the record that is needed now.
    tried: BTreeSet<DriveId>,
    reading: bool,
    /// The record that is waited for although some members never had it, and since when.
    missed: Option<(Seq, Time)>,
    /// Since when those are waited for who have told of nothing yet and may know more than who is sure.
    awaited: Option<Time>,
    to_load: VecDeque<Load>,
    loading: BTreeMap<u64, Load>,
    loads: u64,
    /// The record that the map is read from.
    checkpoint: Seq,
    map_to: Seq,
    replay_from: Seq,
    need: Seq,
    /// Read, not applied yet.
    found: BTreeMap<Seq, Record>,
    /// Writes that some have, damaged, and what somebody has, and did not give.
    lost: BTreeMap<Seq, Lost>,
    unread: BTreeSet<Seq>,
    giving: Giving,
    /// Writes that were taken as lost: their blocks are, unless something newer is found.
    given_up: Vec<LostWrite>,
    /// Records that some members lack: they are appended again if those cannot be given them.
    tail: VecDeque<Record>,
    replayed: u64,
    /// Reading waits until then for who may come.
    again_at: Option<Time>,
}

impl Recovery {
    fn new(stage: Stage) -> Self {
        Self {
            stage,
            fenced: BTreeMap::new(),
            asked: BTreeSet::new(),
            gone: BTreeSet::new(),
            returns: BTreeMap::new(),
            fences: BTreeMap::new(),
            full: FullMembers::default(),
            ends: Ends::default(),
            rollback: None,
            tried: BTreeSet::new(),
            reading: false,
            missed: None,
            awaited: None,
            to_load: VecDeque::new(),
            loading: BTreeMap::new(),
            loads: 0,
            checkpoint: Seq(0),
            map_to: Seq(0),
            replay_from: Seq(1),
            need: Seq(1),
            found: BTreeMap::new(),
            lost: BTreeMap::new(),
            unread: BTreeSet::new(),
            giving: Giving::default(),
            given_up: Vec::new(),
            tail: VecDeque::new(),
            replayed: 0,
            again_at: None,
        }
    }

    /// The newest checkpoint that members of this segment have told of, as far as the log is known to go.
    fn newest_of(&self, segments: &[Segment], index: usize, cut: Option<Seq>) -> Option<Seq> {
        let segment = &segments[index];
        let end = segments.get(index + 1).map_or(Seq(u64::MAX), |next| next.first);
        let inside = |seq: &Seq| segment.first <= *seq && *seq < end && cut.is_none_or(|cut| *seq <= cut);
        let told = segment.drives().filter_map(|drive| self.fenced.get(&drive));
        told.flat_map(|held| held.checkpoints.iter().copied().filter(inside)).max()
    }

    fn newest_told(&self, segments: &[Segment]) -> Option<Seq> {
        (0..segments.len()).rev().find_map(|index| self.newest_of(segments, index, self.ends.cut))
    }

    /// Whether a member has told that it has this record, or had it before some damage.
    fn has_told(&self, drive: DriveId, seq: Seq) -> bool {
        self.fenced.get(&drive).is_some_and(|held| held.low <= seq && seq <= held.high)
    }

    /// Whether it has this write, damaged: it has nothing better to give.
    fn has_told_lost(&self, drive: DriveId, seq: Seq) -> bool {
        self.lost.get(&seq).is_some_and(|lost| lost.is_told_by(&drive))
    }

    /// Whether a drive has told of a write that was given up, and not that it is damaged there.
    fn may_give_some(&self, drive: DriveId, segments: &[Segment]) -> bool {
        self.given_up.iter().any(|write| {
            let mut drives = segment_of(segments, write.seq).drives();
            self.has_told(drive, write.seq)
                && !self.has_told_lost(drive, write.seq)
                && drives.any(|other| other == drive)
        })
    }

    /// Whether a sure member of the last part has more of it than is taken for its end.
    fn has_more(&self, drive: DriveId, last: &Segment) -> bool {
        let held = self.fenced.get(&drive).filter(|held| !held.incomplete);
        last.members.contains(&drive)
            && held.is_some_and(|held| held.high > self.ends.range(last, &self.fenced).0)
    }

    /// The same, where that end was found out by reading.
    fn has_what_was_cut(&self, drive: DriveId, last: &Segment) -> bool {
        self.ends.is_found && self.has_more(drive, last)
    }

    /// Where the log ends is found out again, and who may know more is waited for again.
    fn forget_end(&mut self) {
        (self.ends, self.awaited) = (Ends::default(), None);
    }

    /// Whether everything may be read anew because this drive has come back: one that comes and goes does not keep a vDisk from being served.
    fn may_disturb(&self, drive: DriveId) -> bool {
        self.returns.get(&drive).is_none_or(|&times| times < RETURNS_MAX)
    }

    /// Those who have answered and are away now may come back with less than they have told of.
    pub fn see_view(&mut self, ctx: &Context) {
        let away = self.fenced.keys().filter(|drive| !ctx.is_up(**drive));
        self.gone.extend(away);
    }

    /// Those that are members where this record belongs, and are to be given it.
    fn lacking<'a>(&'a self, seq: Seq, segments: &'a [Segment]) -> impl Iterator<Item = DriveId> + 'a {
        let members = &segment_of(segments, seq).members;
        let lacks_it = move |drive: &&DriveId| self.fenced[drive].high < seq && members.contains(drive);
        self.ends.lacking().filter(lacks_it).copied()
    }

    /// Whether the map that was read knows of what a record says.
    pub fn is_in_map(&self, seq: Seq) -> bool {
        seq <= self.map_to
    }

    /// Whether the log has been read and can be written again.
    pub fn has_log(&self) -> bool {
        matches!(self.stage, Stage::Completing { .. })
    }

    /// What members said about their room when they were fenced.
    pub fn rooms(&self) -> BTreeMap<DriveId, u64> {
        self.fenced.iter().map(|(&drive, held)| (drive, held.room)).collect()
    }

    pub fn wake_at(&self) -> Option<Time> {
        self.full.wake_at().into_iter().chain(self.again_at).chain(self.giving.wake_at()).min()
    }

    pub fn describe(&self) -> String {
        format!("{:?}, needs record {}, fenced {:?}", self.stage, self.need, self.fenced.keys())
    }
}

impl Volume {
    fn recovery(&mut self) -> &mut Recovery {
        self.recovery_of().0
    }

    /// The same, with the parts of the log.
    fn recovery_of(&mut self) -> (&mut Recovery, &[Segment]) {
        match &mut self.phase {
            Phase::Opening(recovery) => (recovery, &self.log.segments),
            Phase::Serving | Phase::Failed => unreachable!("only an opening recovers"),
        }
    }

    pub(crate) fn begin_opening(&mut self, ctx: &mut Context) {
        if self.log.segments.is_empty() {
            // A new family: there is nothing to fence and nothing to read.
            self.phase = Phase::Opening(Box::new(Recovery::new(Stage::Completing { until: Seq(0) })));
        } else {
            ctx.counters.takeovers += 1;
            let rollback = self.snapshots.rollback;
            self.phase = Phase::Opening(Box::new(Recovery { rollback, ..Recovery::new(Stage::Fencing) }));
        }
    }

    pub(crate) fn advance_opening(&mut self, ctx: &mut Context) {
        let recovery = self.recovery();
        recovery.full.end_pauses(ctx.now);
        if let Some(at) = recovery.again_at
            && at <= ctx.now
        {
            recovery.again_at = None;
            recovery.tried.clear();
        }
        if !recovery.has_log() {
            self.hear_those_back(ctx);
            self.fence_members(ctx);
        }
        match self.recovery().stage {
            Stage::Fencing => self.end_fencing(ctx),
            Stage::Checkpoint(seq) => self.read_checkpoint(seq, ctx),
            Stage::Index | Stage::Directory => self.load_pages(ctx),
            Stage::Replay => self.replay(ctx),
            Stage::Giving => self.give_ends(ctx),
            Stage::Completing { until } => self.end_completing(until, ctx),
        }
    }

    /// Fences every member that is up and was not yet: also those that come back while we read.
    fn fence_members(&mut self, ctx: &mut Context) {
        let drives: BTreeSet<DriveId> = self.log.segments.iter().flat_map(Segment::drives).collect();
        for drive in drives {
            let fences = fences_of(&self.log.segments, drive);
            let recovery = self.recovery();
            if !ctx.is_up(drive) {
                recovery.full.gone(drive);
                recovery.fences.remove(&drive);
                continue;
            }
            if !recovery.full.is_pausing(drive) && recovery.asked.insert(drive) {
                let (first, since) = fences[recovery.fences.get(&drive).copied().unwrap_or(0)];
                ctx.ask(self.family, self.epoch, drive, Question::Fence { first, since }, Purpose::Fence);
            }
        }
    }

    pub(crate) fn on_fenced(&mut self, drive: DriveId, answer: Result<Answer, Refusal>, ctx: &mut Context) {
        let Phase::Opening(recovery) = &mut self.phase else { return };
        match answer {
            Ok(Answer::Fenced(held)) => {
                let answered = recovery.fences.entry(drive).or_default();
                if *answered + 1 < fences_of(&self.log.segments, drive).len() {
                    *answered += 1;
                    recovery.asked.remove(&drive);
                    return;
                }
                recovery.fenced.insert(drive, held);
                recovery.tried.clear();
                let last = self.log.segments.last().expect("a family with a log has segments");
                let base = match recovery.stage {
                    Stage::Fencing => {
                        if recovery.has_what_was_cut(drive, last) && !planted(Bug::LateEndUnheard) {
                            recovery.forget_end();
                        }
                        return;
                    }
                    Stage::Completing { .. } => return,
                    Stage::Checkpoint(seq) => seq,
                    Stage::Index | Stage::Directory | Stage::Replay | Stage::Giving => recovery.checkpoint,
                };
                let newest = recovery.newest_told(&self.log.segments);
                let has_more = recovery.has_more(drive, last) && !planted(Bug::LateEndUnheard);
                let may_give_some = recovery.may_give_some(drive, &self.log.segments);
                // Those who had answered before could not tell it. What is not in an older map may be told by nothing else; and they may
                // have forgotten what was acknowledged.
                if has_more || may_give_some && !planted(Bug::LateGiverUnheard) {
                    recovery.forget_end();
                    self.read_anew(Stage::Fencing);
                } else if newest.is_some_and(|newest| newest > base) && !planted(Bug::FirstBaseKept) {
                    self.read_anew(Stage::Fencing);
                }
            }
            Ok(other) => unreachable!("a fence is answered by {other:?}"),
            // It went away, or its ring is full to the last block: it is asked again. Reading goes on meanwhile.
            Err(refusal) => {
                recovery.asked.remove(&drive);
                recovery.fences.remove(&drive);
                if refusal != Refusal::DriveGone {
                    let is_urgent = recovery.stage == Stage::Fencing;
                    recovery.full.refused(drive, is_urgent, ctx.now);
                }
            }
        }
    }

    fn end_fencing(&mut self, ctx: &mut Context) {
        let segments = self.log.segments.clone();
        let recovery = self.recovery();
        if recovery.asked.iter().any(|drive| !recovery.fenced.contains_key(drive)) {
            return;
        }
        let may_answer = |drive: DriveId| ctx.is_up(drive) && !recovery.fenced.contains_key(&drive);
        if recovery.full.awaited(ctx.now).any(may_answer) && !planted(Bug::FullMemberLeftOut) {
            return;
        }
        let last = segments.last().expect("a family with a log has segments");
        let is_lost = |drive: &DriveId| ctx.is_lost(*drive);
        let members = Members::of(last, &recovery.fenced, is_lost);
        if members.wait() {
            return;
        }
        // Their word is where the log was found to end too.
        let ends = Ends::of(last, &recovery.fenced, &members);
        let cut = if recovery.ends.is_found { recovery.ends.cut } else { ends.cut };
        // From the last segment back to that with the newest checkpoint, one member of each has to answer: it
        // knows every acknowledged record of its segment, so a newer checkpoint cannot hide from us.
        let mut newest = None;
        for (index, segment) in segments.iter().enumerate().rev() {
            let answered: Vec<&Held> =
                segment.members.iter().filter_map(|drive| recovery.fenced.get(drive)).collect();
            // Who was absent at its end knows all that was acknowledged in it, and is waited for when nobody else is left.
            let has_come = |drive: &DriveId| recovery.fenced.contains_key(drive);
            let may_come = !segment.absent.iter().any(has_come) && !segment.absent.iter().all(is_lost);
            if answered.is_empty() && (!segment.members.iter().all(is_lost) || may_come) {
                return;
            }
            if answered.is_empty() && index + 1 == segments.len() {
                // Nobody is left who knows where the log ended, so what was acknowledged there is lost.
                return self.fail(FamilyTrouble::RecordLost(segment.first), ctx);
            }
            newest = recovery.newest_of(&segments, index, cut);
            if newest.is_some() {
                break;
            }
        }
        if !recovery.ends.is_found {
            recovery.ends = ends;
        }
        // Of a log that ever had a record one is left, a checkpoint at least, and there is no egroup before the first one.
        let is_empty = newest.is_none()
            && last.first == Seq(1)
            && last
                .members
                .iter()
                .all(|drive| recovery.fenced.get(drive).is_none_or(|held| held.high == Seq(0)));
        // So these are not its members, as sure as they are: older records were put back.
        let is_believed = members.are_sure() && planted(Bug::EmptyLogBelieved);
        if is_empty && !is_believed && recovery.fenced.values().any(|held| held.egroups) {
            return self.fail(FamilyTrouble::RecordLost(last.first), ctx);
        }
        recovery.tried.clear();
        recovery.stage = newest.map_or(Stage::Replay, Stage::Checkpoint);
        self.advance_opening(ctx);
    }

    /// What has been read so far is forgotten: it is read again from another checkpoint.
    fn read_anew(&mut self, stage: Stage) {
        self.overlay = Layers::new(Generation(0));
        self.map = Map::default();
        self.drain = Drain::default();
        let recovery = self.recovery();
        let before = std::mem::replace(recovery, Recovery::new(stage));
        // What members said stays, and what is on its way: pages are nobody's when they come, by their numbers.
        *recovery = Recovery {
            fenced: before.fenced,
            asked: before.asked,
            gone: before.gone,
            returns: before.returns,
            fences: before.fences,
            full: before.full,
            ends: before.ends,
            rollback: before.rollback,
            missed: before.missed,
            awaited: before.awaited,
            reading: before.reading,
            loads: before.loads,
            ..Recovery::new(stage)
        };
        let rollback = recovery.rollback;
        self.snapshots = Snapshots::default();
        self.snapshots.rollback = rollback;
    }

    pub(crate) fn on_replayed(
        &mut self,
        drive: DriveId,
        answer: Result<Answer, Refusal>,
        _ctx: &mut Context,
    ) {
        let segments = &self.log.segments;
        let Phase::Opening(recovery) = &mut self.phase else { return };
        recovery.reading = false;
        match answer {
            Ok(Answer::Records { records, lost, unread, .. }) => {
                // Who was no member where a record belongs may have one of an older epoch there, that was never acknowledged.
                let is_member = |seq: Seq| segment_of(segments, seq).drives().any(|member| member == drive);
                let (need, stage) = (recovery.need, recovery.stage);
                let is_needed = |seq: Seq| seq >= need || matches!(stage, Stage::Checkpoint(_));
                let counts = |seq: Seq| is_member(seq) && is_needed(seq);
                for record in records.into_iter().filter(|record| counts(record.seq)) {
                    recovery.found.entry(record.seq).or_insert(record);
                }
                recovery.unread.extend(unread.into_iter().filter(|seq| counts(*seq)));
                for write in lost.into_iter().filter(|write| counts(write.seq)) {
                    recovery.lost.entry(write.seq).or_insert(Lost::of(write)).told_by(drive);
                }
            }
            // It may come back with what it holds.
            Err(Refusal::DriveGone) => drop(recovery.tried.remove(&drive)),
            _ => {}
        }
    }

    fn read_checkpoint(&mut self, seq: Seq, ctx: &mut Context) {
        let recovery = self.recovery();
        if recovery.reading || recovery.again_at.is_some() {
            return;
        }
        let found = std::mem::take(&mut recovery.found).remove(&seq);
        let Some(Record { body: Body::Checkpoint(checkpoint), .. }) = found else {
            self.read_log(seq, 1, ctx);
            return;
        };
        recovery.tried.clear();
        self.begin_loading(seq, &checkpoint);
        self.advance_opening(ctx);
    }

    fn is_lacked(&self, seq: Seq) -> bool {
        matches!(&self.phase, Phase::Opening(recovery) if recovery.lacking(seq, &self.log.segments).next().is_some())
    }

    /// The highest record that counts, and the lowest of the ends.
    fn ends(&mut self) -> (Seq, Seq) {
        let last = self.log.segments.last().expect("a family with a log has segments").clone();
        let recovery = self.recovery();
        let (highest, lowest) = recovery.ends.range(&last, &recovery.fenced);
        // What is below `replay_from` is not needed: a member whose records were all trimmed lacks nothing.
        (highest, lowest.max(recovery.replay_from.previous()))
    }

    fn replay(&mut self, ctx: &mut Context) {
        let (mut highest, mut lowest) = self.ends();
        loop {
            let recovery = self.recovery();
            let need = recovery.need;
            let map_to = recovery.map_to;
            if need > highest {
                break;
            }
            if let Some(record) = recovery.found.remove(&need) {
                if matches!(record.body, Body::Checkpoint(_)) && need > recovery.checkpoint {
                    // Its own member had not told of it: it could not read it.
                    self.read_anew(Stage::Checkpoint(need));
                    self.recovery().found.insert(need, record);
                    return self.advance_opening(ctx);
                }
                recovery.need = need.next();
                recovery.tried.clear();
                recovery.replayed += 1;
                if self.is_lacked(need) {
                    self.recovery().giving.keep(&record);
                }
                let recovery = self.recovery();
                if need > lowest {
                    recovery.tail.push_back(record);
                } else {
                    self.apply(&record, need > map_to);
                }
                continue;
            }
            if recovery.reading || recovery.again_at.is_some() {
                return;
            }
            if !self.read_log(need, READ_BYTES, ctx) {
                return;
            }
            // Who lacks what is lost does not count any more.
            (highest, lowest) = self.ends();
        }
        self.recovery().stage = Stage::Giving;
        self.give_ends(ctx);
    }

    pub(crate) fn opening_wake_at(&self) -> Option<Time> {
        match &self.phase {
            Phase::Opening(recovery) => recovery.wake_at(),
            Phase::Serving | Phase::Failed => None,
        }
    }
}

/// What a drive is fenced with: from where on, and since what epoch records count. Of who was absent at the end of a segment nobody knows
/// that it had anything of it: it may have older records there, which are taken away as well.
fn fences_of(segments: &[Segment], drive: DriveId) -> Vec<(Seq, Epoch)> {
    let last = segments.last().into_iter();
    let absent = segments.iter().filter(|segment| segment.absent.contains(&drive));
    last.chain(absent).map(|segment| (segment.first, segment.epoch)).collect()
}

/// The segment that a record belongs to.
fn segment_of(segments: &[Segment], seq: Seq) -> &Segment {
    let after = segments.partition_point(|segment| segment.first <= seq);
    &segments[after.saturating_sub(1)]
}
