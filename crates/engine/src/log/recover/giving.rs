//! What members lack of the end of a log is given to them, before a new part of it begins (decision 0060). As a rule it was never
//! acknowledged; but a torn end may have been damaged since, and a drive may have forgotten what it wrote. Appended again in a new part it would
//! be lost where that is cut short; left where it is it would have fewer copies than anything else that a client was told is safe.
//! Promises: the part of the log that they are members of stays as it is until they have all of it, so whoever opens next finds it as it
//! was; nobody is waited for for long.
//! Leaves to others: whom this is for (`ends`), what becomes of those who could not be given it (`completing`).

use crate::buffer::BLOCK;
use crate::context::{Context, Purpose};
use crate::formats::record::Record;
use crate::identity::{DriveId, Seq, Time};
use crate::interface::Segment;
use crate::limits::Limits;
use crate::message::{Answer, Question, Refusal};
use crate::sabotage::{Bug, planted};
use crate::volume::{Phase, Volume};
use std::collections::{BTreeMap, BTreeSet};

/// So long a member may take: its ring may be full, and wait for this very vDisk.
const GIVING_US_MAX: u64 = 5_000_000;
/// One that had no room is asked again after this time.
const AGAIN_US: u64 = 50_000;

#[derive(Debug, Default)]
pub(super) struct Giving {
    /// What was read that some of them lack.
    records: BTreeMap<Seq, Record>,
    since: Option<Time>,
    /// Those who have not answered, and those who are to be asked again.
    asked: BTreeSet<DriveId>,
    again_at: BTreeMap<DriveId, Time>,
}

impl Giving {
    /// A record was read that somebody lacks.
    pub fn keep(&mut self, record: &Record) {
        self.records.insert(record.seq, record.clone());
    }

    pub fn wake_at(&self) -> Option<Time> {
        let end = self.since.map(|since| since.after(GIVING_US_MAX)).filter(|_| !self.asked.is_empty());
        self.again_at.values().copied().chain(end).min()
    }

    /// The next of these records, as many as go into a frame.
    fn piece(&self, from: Seq, to: Seq, limits: &Limits) -> Vec<Record> {
        let blocks = |record: &Record| 1 + record.payload_bytes().div_ceil(BLOCK);
        let mut room = limits.frame_bytes_max / BLOCK;
        let mut piece: Vec<Record> = Vec::new();
        for record in self.records.range(from..=to).map(|(_, record)| record) {
            if !piece.is_empty() && blocks(record) > room {
                break;
            }
            room = room.saturating_sub(blocks(record));
            piece.push(record.clone());
        }
        piece
    }
}

impl Volume {
    /// Everything is read. Members that lack some of the end get it; then a new part of the log begins.
    pub(super) fn give_ends(&mut self, ctx: &mut Context) {
        let (to, _) = self.ends();
        let segments = self.log.segments.clone();
        let (family, epoch) = (self.family, self.epoch);
        let recovery = self.recovery();
        let since = *recovery.giving.since.get_or_insert(ctx.now);
        let is_over = ctx.now.since(since) >= GIVING_US_MAX || planted(Bug::EndsNotGiven);
        recovery.giving.again_at.retain(|_, at| *at > ctx.now);
        let mut waits = false;
        let lacking: Vec<DriveId> = recovery.ends.lacking().copied().collect();
        for drive in lacking {
            let from = recovery.fenced[&drive].high.next().max(recovery.replay_from);
            let Some(Piece { segment, from, to }) = next_piece(&segments, drive, from, to) else {
                recovery.ends.behind.remove(&drive);
                recovery.ends.short.remove(&drive);
                continue;
            };
            if !ctx.is_up(drive) {
                // As if it had not been there at all.
                recovery.ends.leave_out(&drive);
                continue;
            }
            if is_over {
                continue;
            }
            waits = true;
            if recovery.giving.again_at.contains_key(&drive) || !recovery.giving.asked.insert(drive) {
                continue;
            }
            let records = recovery.giving.piece(from, to, ctx.limits);
            let (first, since) = (segment.first, segment.epoch);
            ctx.ask(
                family,
                epoch,
                drive,
                Question::AppendLate { first, since, records, urgent: true },
                Purpose::Give,
            );
        }
        if !waits {
            self.complete(ctx);
        }
    }

    pub(crate) fn on_given(&mut self, drive: DriveId, answer: Result<Answer, Refusal>, now: Time) {
        let Phase::Opening(recovery) = &mut self.phase else { return };
        if !recovery.giving.asked.remove(&drive) {
            // Everything was read anew since.
            return;
        }
        match answer {
            Ok(Answer::Appended { up_to, .. }) => {
                let held = recovery.fenced.get_mut(&drive).expect("whoever was asked is fenced");
                held.high = held.high.max(up_to);
            }
            Ok(other) => unreachable!("pieces of a log are answered by {other:?}"),
            Err(_) => drop(recovery.giving.again_at.insert(drive, now.after(AGAIN_US))),
        }
    }
}

/// What a drive lacks of one part of a log.
struct Piece<'a> {
    segment: &'a Segment,
    from: Seq,
    to: Seq,
}

/// The first part of a log that this drive is a member of and that has something from `from` to `to`: it is given all that it lacks in order,
/// so what it has last tells, whatever becomes of this opening, what it has of all that is before.
fn next_piece(segments: &[Segment], drive: DriveId, from: Seq, to: Seq) -> Option<Piece<'_>> {
    let ends = segments.iter().skip(1).map(|next| next.first.previous()).chain([to]);
    let pieces = segments.iter().zip(ends).map(|(segment, end)| Piece {
        segment,
        from: from.max(segment.first),
        to: end.min(to),
    });
    pieces.filter(|piece| piece.from <= piece.to).find(|piece| piece.segment.members.contains(&drive))
}
