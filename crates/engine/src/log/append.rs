//! The write log of one family as its owner sees it: numbers, members, what is not yet durable everywhere.
//! Promises: a record counts as durable only when every member of the segment has flushed it (I1), and records
//! become durable in the order of their numbers (I3).
//! Leaves to others: which drives are members (`append/members.rs`), what a durable record means (`volume`), reading the log after a
//! takeover (`log/recover.rs`).

mod members;

use crate::context::{Context, Purpose, is_lost, keeps, stays};
use crate::formats::record::{Body, Record};
use crate::identity::{DriveId, Epoch, FamilyId, Seq, Time};
use crate::interface::{Notice, Segment, View};
use crate::message::{Question, Refusal};
use crate::sabotage::{Bug, planted};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Appends of one family on their way to one member at most: enough to keep its drive busy.
const APPENDS_IN_FLIGHT: usize = 4;

/// A record that some member has not confirmed.
#[derive(Debug)]
struct Pending {
    record: Record,
    bytes: u64,
}

#[derive(Debug)]
struct Member {
    drive: DriveId,
    /// The highest record sent to it, and the highest it has confirmed.
    sent: Seq,
    acked: Seq,
    room: u64,
    /// It was asked for its room, and has not answered yet.
    room_asked: bool,
    in_flight: usize,
    /// After a refusal it is left alone until then.
    pause_until: Time,
    /// How often in a row it asked for records that it had confirmed.
    gaps: u32,
    /// Since when it has had no room for anything that it was sent.
    full_since: Option<Time>,
}

/// So many such questions are no late answer of a slow network: the member has forgotten what it confirmed.
const GAPS_MAX: u32 = 3;

#[derive(Debug)]
pub struct Appender {
    family: FamilyId,
    epoch: Epoch,
    factor: u32,
    pub segments: Vec<Segment>,
    version: u64,
    next: Seq,
    durable: Seq,
    pending: VecDeque<Pending>,
    pending_bytes: u64,
    members: Vec<Member>,
    /// Records up to here are not needed any more.
    pub trim: Seq,
    /// A new list of segments that the config store has not confirmed yet.
    changing: Option<Change>,
    /// Bytes appended since the last checkpoint.
    pub bytes_since_checkpoint: u64,
    /// A member has forgotten records up to here that it had confirmed: they have fewer copies than they should.
    forgotten: Seq,
    /// When a member that has no room was last asked whether it has some again.
    room_asked: Time,
    /// The version of the view, and the number of copies, for which the members were found to be the right ones.
    right_for: Option<(u64, u32)>,
    /// Drives that become members only when there are no others: see [`Self::wants_other_members`].
    avoided: BTreeSet<DriveId>,
}

/// A wish for other segments.
#[derive(Debug)]
struct Change {
    segments: Vec<Segment>,
    /// The last of them is new; otherwise only old ones are left out.
    begins: bool,
}

/// What became of an attempt to change the segments.
#[derive(Debug, PartialEq, Eq)]
pub enum Changed {
    Taken,
    Refused,
    /// It was about an earlier wish.
    Stale,
}

impl Appender {
    /// A log whose next record is `next`, and that has no members yet: [`Self::change`] gives it some.
    pub fn new(
        family: FamilyId,
        epoch: Epoch,
        factor: u32,
        version: u64,
        segments: Vec<Segment>,
        next: Seq,
    ) -> Self {
        Self {
            family,
            epoch,
            factor,
            segments,
            version,
            next,
            durable: next.previous(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            members: Vec::new(),
            trim: Seq(0),
            changing: None,
            bytes_since_checkpoint: 0,
            forgotten: Seq(0),
            room_asked: Time(0),
            right_for: None,
            avoided: BTreeSet::new(),
        }
    }

    /// So many copies from now on: a segment with as many members begins when [`Self::wants_other_members`] is asked next.
    pub fn set_factor(&mut self, factor: u32) {
        self.factor = factor;
    }

    /// Whether every record that is still needed has at least as many copies as it should, and new ones get exactly so many.
    pub fn has_factor(&self) -> bool {
        let factor = self.factor as usize;
        let old = &self.segments[..self.segments.len().saturating_sub(1)];
        let is_thin = |(number, segment): (usize, &Segment)| {
            self.segments[number + 1].first > self.trim.next() && segment.members.len() < factor
        };
        self.changing.is_none()
            && self.members.len() == factor
            && self.forgotten <= self.trim
            && !old.iter().enumerate().any(is_thin)
    }

    /// The number of the next record.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// The highest record that all members hold.
    pub fn durable(&self) -> Seq {
        self.durable
    }

    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.changing.is_none()
    }

    pub fn has_members(&self) -> bool {
        !self.members.is_empty()
    }

    /// The drives of the current segment.
    pub fn members(&self) -> impl Iterator<Item = DriveId> + '_ {
        self.members.iter().map(|member| member.drive)
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn is_changing(&self) -> bool {
        self.changing.is_some()
    }

    pub fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// The family was given up: what is not durable is nobody's.
    pub fn forget_pending(&mut self) {
        self.pending.clear();
        self.pending_bytes = 0;
    }

    /// Records given a number but not durable yet, oldest first.
    pub fn pending(&self) -> impl Iterator<Item = &Record> {
        self.pending.iter().map(|pending| &pending.record)
    }

    /// Bytes of client data that may be added now.
    pub fn room(&self) -> u64 {
        let room = self.members.iter().map(|member| member.room).min().unwrap_or(0);
        room.saturating_sub(self.pending_bytes)
    }

    pub fn describe(&self) -> String {
        let members = self.members.iter().map(|member| {
            format!("{} has {} of {} sent, room {}", member.drive, member.acked, member.sent, member.room)
        });
        format!(
            "log: durable up to {}, trimmed up to {}, {} pending with {} bytes, changing {}, members: {}",
            self.durable,
            self.trim,
            self.pending.len(),
            self.pending_bytes,
            self.changing.is_some(),
            members.collect::<Vec<_>>().join(", ")
        )
    }

    /// Gives `body` the next number. It is sent by [`Self::pump`].
    pub fn push(&mut self, body: Body) -> Seq {
        let record = Record { seq: self.next, body };
        let bytes = record.payload_bytes() as u64 + 4096;
        self.next = self.next.next();
        self.pending_bytes += bytes;
        self.bytes_since_checkpoint += bytes;
        let seq = record.seq;
        self.pending.push_back(Pending { record, bytes });
        seq
    }

    /// Sends every member what it has not been sent yet.
    pub fn pump(&mut self, ctx: &mut Context) {
        if self.changing.is_some() || self.pending.is_empty() {
            return;
        }
        let first = self.segments.last().expect("a log that can be pumped has a segment").first;
        for member in &mut self.members {
            // Of one that is not up the view will say whether it comes back or is left out.
            while member.in_flight < APPENDS_IN_FLIGHT
                && member.pause_until <= ctx.now
                && ctx.is_up(member.drive)
            {
                let from = member.sent.next();
                if from >= self.next {
                    break;
                }
                let front = self.pending.front().expect("pending is not empty").record.seq;
                assert!(from >= front, "what a member was not sent is still pending");
                let mut bytes = 0;
                let mut records = Vec::new();
                for pending in self.pending.iter().skip((from.0 - front.0) as usize) {
                    if !records.is_empty() && bytes + pending.bytes > ctx.limits.frame_bytes_max as u64 {
                        break;
                    }
                    bytes += pending.bytes;
                    member.sent = pending.record.seq;
                    records.push(pending.record.clone());
                }
                member.in_flight += 1;
                let question = Question::Append { first, trim: self.trim, records };
                ctx.ask(self.family, self.epoch, member.drive, question, Purpose::Append);
            }
        }
    }

    /// A member has made everything up to `up_to` durable.
    pub fn on_appended(&mut self, drive: DriveId, up_to: Seq, room: u64) {
        let Some(member) = self.members.iter_mut().find(|member| member.drive == drive) else { return };
        assert!(up_to < self.next, "a member cannot have what was never sent");
        member.in_flight = member.in_flight.saturating_sub(1);
        member.gaps = 0;
        member.full_since = None;
        member.acked = member.acked.max(up_to);
        member.sent = member.sent.max(member.acked);
        member.room = room;
    }

    pub fn on_append_refused(&mut self, drive: DriveId, refusal: Refusal, now: Time) {
        let Some(member) = self.members.iter_mut().find(|member| member.drive == drive) else { return };
        member.in_flight = member.in_flight.saturating_sub(1);
        // Whatever the reason, it goes on behind what it has confirmed: repeats cost little and are harmless.
        member.sent = member.acked;
        // But not at once: an own keeper would refuse again before time has passed. What was sent behind records that it had no room
        // for misses those, and says nothing new.
        let pause_us = if matches!(refusal, Refusal::Gap { .. }) { 1_000 } else { 10_000 };
        let before = if planted(Bug::FullAgainAtOnce) { Time(0) } else { member.pause_until };
        member.pause_until = before.max(now.after(pause_us));
        match refusal {
            Refusal::LogFull => {
                member.room = 0;
                member.full_since.get_or_insert(now);
            }
            Refusal::Gap { expected } if expected <= member.acked => {
                // A drive that lost what it had flushed. What is not yet durable everywhere is sent again; if
                // more than that is missing, a new segment begins behind it, and it is drained first.
                member.gaps += 1;
                if member.gaps >= GAPS_MAX && expected > self.durable {
                    member.acked = expected.previous();
                    member.sent = member.acked;
                    member.gaps = 0;
                }
            }
            _ => {}
        }
    }

    /// The answer to [`Self::send_trim`] or [`Self::ask_for_room`]. None: it was refused.
    pub fn on_trimmed(&mut self, drive: DriveId, room: Option<u64>) {
        if let Some(member) = self.members.iter_mut().find(|member| member.drive == drive) {
            member.room_asked = false;
            member.room = room.unwrap_or(member.room);
        }
    }

    /// Whether records wait for this member: for every one of them.
    fn counts(&self, drive: DriveId) -> bool {
        if !planted(Bug::NewMemberNotCounted) {
            return true;
        }
        let before = self.segments.iter().nth_back(1);
        before.is_none_or(|segment| segment.members.contains(&drive))
    }

    /// The next record that all members hold by now, in order.
    pub fn take_durable(&mut self) -> Option<Record> {
        let everywhere =
            self.members.iter().filter(|member| self.counts(member.drive)).map(|member| member.acked);
        let everywhere = everywhere.min()?;
        let front = self.pending.front()?;
        if front.record.seq > everywhere || self.changing.is_some() {
            return None;
        }
        let pending = self.pending.pop_front().expect("there is a front");
        assert_eq!(pending.record.seq, self.durable.next(), "records become durable in order");
        self.durable = pending.record.seq;
        self.pending_bytes -= pending.bytes;
        Some(pending.record)
    }

    /// Tells every drive that has some of this log what it may forget.
    pub fn send_trim(&mut self, ctx: &mut Context) {
        let drives: BTreeSet<DriveId> = self.segments.iter().flat_map(Segment::drives).collect();
        for drive in drives {
            if ctx.is_up(drive) {
                ctx.ask(self.family, self.epoch, drive, Question::Trim { up_to: self.trim }, Purpose::Trim);
            }
        }
    }

    /// Asks members without room whether they have some again, when nothing else would tell; not again within `every_us`. The
    /// question stays until it is answered, so who is silent is not asked another.
    pub fn ask_for_room(&mut self, every_us: u64, ctx: &mut Context) {
        if self.changing.is_none() && ctx.now.since(self.room_asked) >= every_us {
            self.room_asked = ctx.now;
            let is_due = |member: &&mut Member| !member.room_asked || planted(Bug::SilentAskedAgain);
            for member in self.members.iter_mut().filter(is_due) {
                member.room_asked = true;
                let trim = Question::Trim { up_to: self.trim };
                ctx.ask(self.family, self.epoch, member.drive, trim, Purpose::Trim);
            }
        }
    }

    /// Begins a new segment with `members` behind what is durable; `old` are the segments before it.
    pub fn change(&mut self, old: Vec<Segment>, members: Vec<DriveId>, ctx: &mut Context) {
        assert!(self.changing.is_none(), "one change at a time");
        assert!(!members.is_empty(), "a segment has members");
        let first = self.durable.next();
        if self.members.iter().any(|member| member.gaps >= GAPS_MAX) {
            self.forgotten = self.durable;
        }
        let mut segments: Vec<Segment> = Vec::new();
        for segment in old {
            // A segment that ends where it begins, or whose records are all trimmed, is not needed.
            while segments.last().is_some_and(|last| last.first >= segment.first) {
                segments.pop();
            }
            segments.push(segment);
        }
        while segments.last().is_some_and(|last| last.first >= first) {
            segments.pop();
        }
        segments.push(Segment::new(first, self.epoch, members));
        segments.drain(..trimmed(&segments, self.trim));
        self.ask_for_change(Change { segments, begins: true }, ctx);
    }

    /// Whether the config record still names drives that are gone or shall go, in segments that nobody needs any more.
    pub fn names_leaving_drives(&self, view: &View) -> bool {
        let unneeded = &self.segments[..trimmed(&self.segments, self.trim)];
        !planted(Bug::OldSegmentsKept)
            && self.changing.is_none()
            && unneeded.iter().any(|segment| !segment.drives().all(|drive| stays(view, drive)))
    }

    /// Leaves segments out whose records are all trimmed.
    pub fn forget_trimmed(&mut self, ctx: &mut Context) {
        assert!(self.changing.is_none(), "one change at a time");
        let segments = self.segments[trimmed(&self.segments, self.trim)..].to_vec();
        self.ask_for_change(Change { segments, begins: false }, ctx);
    }

    /// `drive` has all that is needed of the segment that begins at `first`: it takes the place of who is lost.
    pub fn add_member(&mut self, first: Seq, drive: DriveId, ctx: &mut Context) {
        assert!(self.changing.is_none(), "one change at a time");
        let mut segments = self.segments.clone();
        let segment = segments.iter_mut().find(|segment| segment.first == first);
        let segment = segment.expect("a segment stays until this owner changes them");
        segment.members.retain(|&member| !ctx.is_lost(member));
        segment.absent.retain(|&absent| absent != drive);
        segment.members.push(drive);
        segments.drain(..trimmed(&segments, self.trim));
        self.ask_for_change(Change { segments, begins: false }, ctx);
    }

    fn ask_for_change(&mut self, change: Change, ctx: &mut Context) {
        self.version += 1;
        ctx.counters.segments_changed += 1;
        ctx.notice(Notice::ChangeSegments {
            family: self.family,
            epoch: self.epoch,
            version: self.version,
            segments: change.segments.clone(),
        });
        self.changing = Some(change);
    }

    pub fn on_changed(&mut self, version: u64, taken: bool, rooms: &BTreeMap<DriveId, u64>) -> Changed {
        if version != self.version || self.changing.is_none() {
            return Changed::Stale;
        }
        if !taken {
            return Changed::Refused;
        }
        let change = self.changing.take().expect("a change is under way");
        self.segments = change.segments;
        if !change.begins {
            return Changed::Taken;
        }
        self.right_for = None;
        let first = self.segments.last().expect("a log has a segment").first;
        let before = std::mem::take(&mut self.members);
        for &drive in &self.segments.last().expect("a log has a segment").members {
            let known = before.iter().find(|member| member.drive == drive);
            // A member that stays keeps what it confirmed; to a new one everything from the segment's
            // beginning on is sent, and nothing it may have said in another life counts.
            let acked = known.map_or(Seq(0), |member| if member.gaps > 0 { Seq(0) } else { member.acked });
            let acked = acked.max(first.previous());
            let told = rooms.get(&drive).copied().unwrap_or(0);
            let room = known.map_or(told, |member| member.room);
            self.members.push(Member {
                drive,
                sent: acked,
                acked,
                room,
                room_asked: known.is_some_and(|member| member.room_asked),
                in_flight: 0,
                pause_until: Time(0),
                gaps: 0,
                full_since: None,
            });
        }
        Changed::Taken
    }

    /// Whether some records that are still needed have fewer copies than they should and could have, or lie on a drive
    /// that is to be emptied.
    pub fn is_thin(&self, view: &View) -> bool {
        let leaves = |drive: DriveId| !keeps(view, drive);
        if self.forgotten > self.trim {
            return true;
        }
        let old = &self.segments[..self.segments.len().saturating_sub(1)];
        old.iter().enumerate().any(|(number, segment)| {
            let end = self.segments[number + 1].first;
            end > self.trim.next()
                && (segment.members.len() < self.factor as usize || segment.drives().any(leaves))
        })
    }

    /// The last record that is still needed and has fewer copies than so many, also when all drives are back that may come back.
    pub fn lacking_until(&self, copies: usize, view: &View) -> Option<Seq> {
        let lacks = |segment: &Segment| {
            segment.members.iter().filter(|&&drive| !is_lost(view, drive)).count() < copies
        };
        let old =
            self.segments.windows(2).filter(|pair| lacks(&pair[0])).map(|pair| pair[1].first.previous());
        let forgotten = (copies >= self.factor as usize).then_some(self.forgotten);
        old.chain(forgotten).filter(|&end| end > self.trim).max()
    }

    /// When a member that is left alone for a while is sent more. Whoever else waits does so for an answer, the view, or the config
    /// store.
    pub fn wake_at(&self, now: Time) -> Option<Time> {
        if self.changing.is_some() {
            return None;
        }
        let more = |member: &&Member| member.sent.next() < self.next && member.in_flight < APPENDS_IN_FLIGHT;
        self.members.iter().filter(more).map(|member| member.pause_until).filter(|&at| at > now).min()
    }
}

/// How many segments at the beginning hold nothing that is still needed.
fn trimmed(segments: &[Segment], trim: Seq) -> usize {
    segments.windows(2).take_while(|two| two[1].first <= trim.next()).count()
}
