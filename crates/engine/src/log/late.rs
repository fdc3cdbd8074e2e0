//! Copies of earlier segments for members that came late (decision 0057). What was written while a log had fewer drives than it has now, or
//! lost one of them since, and is safer in the log than anywhere else: another drive is given all of it, and is a member then.
//! Promises: a drive counts for a segment when it holds, durably, every record of it that is still needed; until then nobody knows of
//! it. Clients and the log go on meanwhile.
//! Leaves to others: what stays in the log (`volume/staying.rs`), members of what is written now (`append`), how records lie that
//! come late (`keeper/ring_append.rs`).

use crate::buffer::BLOCK;
use crate::context::{Context, Purpose, is_lost};
use crate::formats::record::Record;
use crate::identity::{DriveId, Epoch, Seq, Time};
use crate::interface::Segment;
use crate::message::{Answer, Question, Refusal};
use crate::sabotage::{Bug, planted};
use crate::volume::Volume;
use std::collections::{BTreeMap, BTreeSet};

/// When a ring had no room, or no member could give a record, it is tried again after this time.
const AGAIN_US: u64 = 500_000;

/// A segment, and the drive that is to have a copy of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wish {
    first: Seq,
    since: Epoch,
    last: Seq,
    drive: DriveId,
}

#[derive(Debug)]
struct Job {
    wish: Wish,
    /// The first record that the drive may lack.
    next: Seq,
    /// Members that did not give it.
    tried: BTreeSet<DriveId>,
}

#[derive(Debug, Default)]
pub(crate) struct LateCopies {
    job: Option<Job>,
    /// Jobs that nobody could go on with: others have their turn.
    passed: BTreeMap<Seq, Job>,
    /// A question is on its way: one at a time.
    is_asking: bool,
    again_at: Option<Time>,
}

impl LateCopies {
    pub fn wake_at(&self) -> Option<Time> {
        self.again_at
    }
}

impl Volume {
    /// Goes on with the copy that is made, or begins the next one.
    pub(crate) fn make_late_copies(&mut self, ctx: &mut Context) {
        // A change of segments may be another than its owner thinks until it is taken.
        if self.late.is_asking || self.log.is_changing() || self.late.again_at.is_some_and(|at| at > ctx.now)
        {
            return;
        }
        self.late.again_at = None;
        if !self.is_safer_in_log(ctx.view) || planted(Bug::ThinSegmentsStay) {
            (self.late.job, self.late.passed) = (None, BTreeMap::new());
            return;
        }
        if !self.stays_in_log(ctx) {
            return;
        }
        let wishes = self.wanted_late_copies(ctx);
        self.late.passed.retain(|_, job| wishes.contains(&job.wish));
        for wish in wishes {
            let begun = self.late.job.take_if(|job| job.wish == wish);
            let begun = begun.or_else(|| self.late.passed.remove(&wish.first));
            let mut job = begun.unwrap_or(Job { wish, next: wish.first, tried: BTreeSet::new() });
            let needed = self.log.trim.next();
            if job.next < needed {
                job.next = needed;
                job.tried.clear();
            }
            if job.next > wish.last || planted(Bug::LateMemberNamedEarly) {
                ctx.counters.late_copies += 1;
                return self.log.add_member(wish.first, wish.drive, ctx);
            }
            if let Some(source) = self.late_source(&job, ctx) {
                let bytes = u32::try_from(ctx.limits.frame_bytes_max).expect("frames are smaller than 4 GiB");
                self.ask_late(source, Question::ReadLog { from: job.next, bytes }, ctx);
                let other = self.late.job.replace(job);
                self.late.passed.extend(other.map(|other| (other.wish.first, other)));
                return;
            }
            self.late.passed.insert(wish.first, job);
            if planted(Bug::LateCopiesStuck) {
                break;
            }
        }
        self.late.job = None;
        // Who could not give a record is asked again. Who is away is as soon as the view says that it came.
        for job in self.late.passed.values_mut().filter(|job| !job.tried.is_empty()) {
            job.tried.clear();
            self.late.again_at = Some(ctx.now.after(AGAIN_US));
        }
    }

    /// Segments that are needed and have fewer copies than there could be, the oldest first, each with a present member that lacks it.
    fn wanted_late_copies(&self, ctx: &Context) -> Vec<Wish> {
        let copies = self.placing.log_reach();
        let wish = |two: &[Segment]| {
            let [segment, next] = two else { unreachable!("windows of two") };
            let left = segment.members.iter().filter(|&&drive| !is_lost(ctx.view, drive)).count();
            let last = next.first.previous();
            let is_thin = last > self.log.trim && left < copies;
            let lacks_it = |drive: &DriveId| ctx.is_up(*drive) && !segment.members.contains(drive);
            let drive = if is_thin { self.log.members().find(lacks_it) } else { None };
            Some(Wish { first: segment.first, since: segment.epoch, last, drive: drive? })
        };
        self.log.segments.windows(2).filter_map(wish).collect()
    }

    /// A member of the segment that may give the next record; own drives first.
    fn late_source(&self, job: &Job, ctx: &Context) -> Option<DriveId> {
        let segment = self.log.segments.iter().find(|segment| segment.first == job.wish.first)?;
        let may_give = |drive: &DriveId| ctx.is_up(*drive) && !job.tried.contains(drive);
        ctx.nearest(segment.members.iter().copied().filter(may_give))
    }

    fn ask_late(&mut self, drive: DriveId, question: Question, ctx: &mut Context) {
        self.late.is_asking = true;
        ctx.ask(self.family, self.epoch, drive, question, Purpose::Late);
    }

    /// A piece was read, or written.
    pub(crate) fn on_late(&mut self, drive: DriveId, answer: Result<Answer, Refusal>, ctx: &mut Context) {
        self.late.is_asking = false;
        let Some(job) = &mut self.late.job else { return };
        match answer {
            Ok(Answer::Records { records, .. }) => {
                let Wish { first, since, last, drive: to } = job.wish;
                let wanted = (job.next.0..=last.0).map(Seq);
                let piece = records.into_iter().zip(wanted).take_while(|(record, seq)| record.seq == *seq);
                let mut records: Vec<Record> = piece.map(|(record, _)| record).collect();
                // Those without a payload take a block of a ring as well, at worst, and more of them were read than of others.
                let fits = (ctx.limits.frame_bytes_max / BLOCK).max(1);
                records.truncate(fits);
                if records.is_empty() {
                    job.tried.insert(drive);
                } else {
                    self.ask_late(to, Question::AppendLate { first, since, records, urgent: false }, ctx);
                }
            }
            Ok(Answer::Appended { up_to, .. }) => {
                job.next = up_to.next();
                job.tried.clear();
            }
            Ok(other) => unreachable!("pieces of a log are answered by {other:?}"),
            Err(_) => self.late.again_at = Some(ctx.now.after(AGAIN_US)),
        }
    }
}
