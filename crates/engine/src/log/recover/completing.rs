//! The end of an opening: a new part of the log begins behind what all members have, and what some still lack is appended again there.
//! Promises: nothing that whoever opens next may need, should this opening be cut short, is trimmed or deleted.
//! Leaves to others: what was read, and what was given to whom (`recover`, `giving`).

use super::Stage;
use super::giving::Giving;
use crate::context::Context;
use crate::formats::record::{Body, Record};
use crate::identity::{DriveId, Seq};
use crate::interface::{Notice, Segment};
use crate::log::append::Appender;
use crate::sabotage::{Bug, planted};
use crate::volume::{Phase, Volume};

impl Volume {
    /// Everything is read: a new segment begins behind what all members have.
    pub(super) fn complete(&mut self, ctx: &mut Context) {
        let (highest, lowest) = self.ends();
        let recovery = self.recovery();
        recovery.giving = Giving::default();
        let mut tail = std::mem::take(&mut recovery.tail);
        let ends = std::mem::take(&mut recovery.ends);
        let fenced = recovery.fenced.clone();
        let (replayed, replay_from, map_to) = (recovery.replayed, recovery.replay_from, recovery.map_to);
        let is_settled = recovery.checkpoint <= lowest;
        recovery.stage = Stage::Completing { until: highest };
        recovery.found.clear();
        ctx.counters.records_replayed += replayed;
        // Members that were away may lack the end of a segment: they do not count for it. What was acknowledged they have, should those
        // who count be lost before it is drained.
        let mut old: Vec<Segment> = self.log.segments.clone();
        let lasts: Vec<Option<Seq>> =
            old.iter().skip(1).map(|next| Some(next.first.previous())).chain([None]).collect();
        for (segment, last) in old.iter_mut().zip(lasts) {
            let has_all = |drive: &&DriveId| match last {
                Some(last) => ends.has_all(drive, last, &fenced),
                None => ends.has_end(drive),
            };
            let (answered, silent): (Vec<DriveId>, Vec<DriveId>) = segment.members.iter().partition(has_all);
            if !answered.is_empty() {
                segment.members = answered;
                segment.absent.extend(silent);
            }
            segment.absent.retain(|&drive| !ctx.is_lost(drive) && !planted(Bug::AbsentForgotten));
        }
        // All have these by now.
        while let Some(given) = tail.pop_front_if(|record| record.seq <= lowest) {
            self.apply(&given, given.seq > map_to);
        }
        ctx.counters.records_appended_again += tail.len() as u64;
        let version = self.log.version();
        self.log = Appender::new(self.family, self.epoch, self.factor, version, old, lowest.next());
        // A checkpoint that only some have counts when it is on all members again. Until then whoever opens next, should this
        // opening not come to its end, may need the one before and the segments of that.
        if is_settled {
            self.log.trim = replay_from.previous();
        }
        for Record { body, .. } in tail {
            // Of what the checkpoint has told nothing is on its way any more.
            let is_known = self.log.next() <= map_to && !planted(Bug::KnownMarkAwaited);
            if let Body::Mark(mark) = &body
                && !is_known
            {
                self.snapshots.on_push(*mark);
            }
            self.log.push(body);
        }
        assert_eq!(self.log.next(), highest.max(lowest).next(), "records keep their numbers");
        // `advance` finds the log without members and gives it some.
    }

    pub(super) fn end_completing(&mut self, until: Seq, ctx: &mut Context) {
        if self.log.is_changing() || !self.log.has_members() || self.log.durable() < until {
            return;
        }
        self.tell_given_up(ctx);
        let (replayed, replay_from) = (self.recovery().replayed, self.recovery().replay_from);
        self.log.trim = self.log.trim.max(replay_from.previous());
        self.phase = Phase::Serving;
        // The checkpoint tells of egroups that died with it; whether the former owner came to delete them all
        // is not known.
        self.delete_dead(ctx);
        ctx.notice(Notice::FamilyReady {
            family: self.family,
            epoch: self.epoch,
            replayed,
            snapshots: self.snapshots(),
        });
    }
}
