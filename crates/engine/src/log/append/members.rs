//! Which drives a log is written to.
//! Promises: as many as there should be copies, on drives of different fault domains as long as there are some; as little change as
//! that allows.
//! Leaves to others: what a change of members does to the log (`log/append.rs`).

use crate::context::{Context, Draw, stays};
use crate::identity::DriveId;
use crate::interface::{DriveState, View};
use crate::log::append::{Appender, GAPS_MAX, Member};
use crate::sabotage::{Bug, planted};
use std::collections::BTreeSet;

/// An owner that opens looks for another member when one has had no room for so long.
const FULL_PATIENCE_US: u64 = 5_000_000;

impl Appender {
    /// Whether members should be others: some are not up, they could be more or should be fewer, or one that is to be emptied or
    /// is slow could go; or one has no room for what an owner that opens writes again. It may be what this owner has in that ring that
    /// holds it up, and that can go only when the vDisk is open.
    pub fn wants_other_members(&mut self, is_opening: bool, ctx: &Context) -> bool {
        if self.changing.is_some() {
            return false;
        }
        if is_opening && !planted(Bug::FullMemberKept) && self.avoid_full_members(ctx) {
            return true;
        }
        if self.members.iter().any(|member| member.gaps >= GAPS_MAX && ctx.is_up(member.drive)) {
            return true;
        }
        // All else follows from the members, the view and the factor, and is asked in every step.
        let now = (ctx.view.version, self.factor);
        if self.right_for == Some(now) {
            return false;
        }
        let wants = self.are_others_better(ctx);
        self.right_for = (!wants).then_some(now);
        wants
    }

    /// From now on those are taken last that have had no room for long. Whether that makes a difference.
    fn avoid_full_members(&mut self, ctx: &Context) -> bool {
        let is_stuck = |member: &&Member| {
            member.full_since.is_some_and(|since| ctx.now.since(since) >= FULL_PATIENCE_US)
        };
        let stuck: Vec<DriveId> = self.members.iter().filter(is_stuck).map(|member| member.drive).collect();
        if stuck.is_empty() {
            return false;
        }
        self.avoided.extend(&stuck);
        let wanted = self.choose_members(ctx);
        wanted.len() >= self.members.len() && !stuck.iter().all(|drive| wanted.contains(drive))
    }

    fn are_others_better(&self, ctx: &Context) -> bool {
        let now: Vec<DriveId> = self.members.iter().map(|member| member.drive).collect();
        let apart = |members: &[DriveId]| domains(ctx.view, members.iter().copied());
        let is_full = now.len() >= self.factor.max(1) as usize;
        let too_many = now.len() > self.factor.max(1) as usize;
        if is_full && !too_many && now.iter().all(|&drive| ctx.is_open(drive)) && apart(&now) == now.len() {
            return false;
        }
        let wanted = self.choose_members(ctx);
        // Leaving those that are to be emptied comes before leaving slow ones.
        let bad = |members: &[DriveId]| {
            let leave = members.iter().filter(|&&drive| !stays(ctx.view, drive)).count();
            let slow = members.iter().filter(|&&drive| is_slow(ctx.view, drive)).count();
            (leave, if planted(Bug::SlowMemberKept) { 0 } else { slow })
        };
        !wanted.is_empty()
            && (now.is_empty()
                || too_many
                || wanted.len() > now.len()
                || now.iter().any(|&drive| !ctx.is_up(drive))
                || bad(&wanted) < bad(&now)
                // They came together when there was nowhere else to go, and now there is.
                || apart(&wanted) > apart(&now))
    }

    /// Members that are up stay; then own drives, then others, never two of one fault domain while others exist.
    /// Drives that are to be emptied are left out where that costs neither a copy nor a fault domain: a domain that
    /// is away at the moment is waited for, and one whose drives are slow is there.
    pub fn choose_members(&self, ctx: &Context) -> Vec<DriveId> {
        let candidates = self.candidates(ctx);
        let best = self.choose(&candidates, ctx);
        let leaves = |drive: &DriveId| {
            !stays(ctx.view, *drive) || planted(Bug::SlowCostsDomain) && is_slow(ctx.view, *drive)
        };
        if !best.iter().any(leaves) {
            return best;
        }
        let others: Vec<DriveId> = candidates.into_iter().filter(|drive| !leaves(drive)).collect();
        let without = self.choose(&others, ctx);
        let staying =
            ctx.view.drives.keys().copied().filter(|drive| stays(ctx.view, *drive) && !leaves(drive));
        let wide_enough = domains(ctx.view, best.iter().copied()).min(domains(ctx.view, staying));
        let costs_nothing =
            without.len() == best.len() && domains(ctx.view, without.iter().copied()) >= wide_enough;
        if costs_nothing { without } else { best }
    }

    /// Drives that are up, those to be taken first in front; some twice.
    fn candidates(&self, ctx: &Context) -> Vec<DriveId> {
        let mut candidates: Vec<DriveId> = self.members.iter().map(|member| member.drive).collect();
        if candidates.is_empty() {
            candidates
                .extend(self.segments.last().iter().flat_map(|segment| segment.members.iter().copied()));
        }
        let mut up: Vec<DriveId> =
            ctx.view.drives.keys().copied().filter(|&drive| ctx.is_up(drive)).collect();
        // Every family has an order of its own, so that logs spread over all drives, and so do their other copies.
        up.sort_unstable_by_key(|drive| {
            Draw::new(u64::from(self.family.0) << 32 | u64::from(drive.0)).number()
        });
        candidates.extend(up.iter().copied().filter(|&drive| ctx.is_own(drive)));
        candidates.extend(up);
        candidates.retain(|&drive| ctx.is_up(drive));
        candidates.sort_by_key(|&drive| self.rank(drive, ctx.view));
        candidates
    }

    /// Who has had no room for long comes behind those who are slow, and who is to be emptied behind all.
    fn rank(&self, drive: DriveId, view: &View) -> u32 {
        match () {
            () if !stays(view, drive) => 3,
            () if self.avoided.contains(&drive) => 2,
            () if is_slow(view, drive) => 1,
            () => 0,
        }
    }

    /// As many of them as there should be copies, those in front first; apart if possible.
    fn choose(&self, candidates: &[DriveId], ctx: &Context) -> Vec<DriveId> {
        let mut chosen: Vec<DriveId> = Vec::new();
        let domain = |drive: &DriveId| ctx.view.drives.get(drive).map(|view| view.domain);
        for distinct in [true, false] {
            for drive in candidates {
                let apart = !chosen.iter().any(|other| domain(other) == domain(drive));
                if !chosen.contains(drive) && (apart || !distinct) && chosen.len() < self.factor as usize {
                    chosen.push(*drive);
                }
            }
        }
        chosen
    }
}

fn is_slow(view: &View, drive: DriveId) -> bool {
    view.drives.get(&drive).is_some_and(|drive| drive.state == DriveState::Slow)
}

/// Fault domains of these drives.
fn domains(view: &View, drives: impl Iterator<Item = DriveId>) -> usize {
    drives.filter_map(|drive| view.drives.get(&drive)).map(|view| view.domain).collect::<BTreeSet<_>>().len()
}
