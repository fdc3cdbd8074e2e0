//! The audit: asks every drive for the names of the family's egroups and compares them with the map.
//! Promises: what no map record can ever name again is deleted, wherever it lies; what a member lacks is copied
//! to it; a former member keeps its copies until all members have theirs, and none of those is known to be bad.
//! Leaves to others: making copies (`copy`), deleting what has died since (`map/checkpoint.rs`).

use super::copy::Copies;
use crate::context::{Context, Purpose, earlier, is_up};
use crate::formats::record::Body;
use crate::identity::{DriveId, EgroupId, GroupId, Time};
use crate::interface::{Damage, DriveState, GroupView, Notice, View};
use crate::message::{Answer, Question, Refusal};
use crate::sabotage::{Bug, planted};
use crate::volume::Volume;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Names in one question to delete.
const DELETES_MAX: usize = 1024;

/// What of a view decides where egroups should be.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    drives: BTreeMap<DriveId, DriveState>,
    groups: Arc<BTreeMap<GroupId, GroupView>>,
}

/// Where egroups should be, and what drives have, does not change when one becomes slow.
fn without_slowness(state: DriveState) -> DriveState {
    if state == DriveState::Slow { DriveState::Up } else { state }
}

/// The drive that is being asked.
#[derive(Debug)]
struct Running {
    task: u64,
    drive: DriveId,
    /// The last name compared.
    after: EgroupId,
    /// The newest name given out when this began ...
    newest: EgroupId,
    /// ... and older ones that no durable record named yet. Neither may be in the drive's list.
    unfinished: BTreeSet<EgroupId>,
    /// It lacks something; and what of that cannot be owed yet.
    lacks: bool,
    missing: BTreeSet<EgroupId>,
    /// The view changed on the way: what was found out says nothing about the drive as it is now.
    outdated: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Audit {
    last: u64,
    seen: Option<Seen>,
    /// Drives moved, groups changed: every drive is asked soon.
    due: bool,
    /// When every drive is asked again anyway. None: it was never done.
    next_round: Option<Time>,
    /// Drives to be asked.
    wanted: BTreeSet<DriveId>,
    running: Option<Running>,
    /// Drives that were found to have everything, under the present view, and lost nothing we know of since.
    whole: BTreeSet<DriveId>,
    /// Named to nobody yet when the view last changed: they may have gone to members of before alone.
    early: BTreeSet<EgroupId>,
    /// Groups with former members that were not told to be whole under the present view.
    untold: BTreeSet<GroupId>,
    /// Groups of which a drive that is no member keeps copies, because members may lack them.
    kept: BTreeMap<DriveId, BTreeSet<GroupId>>,
    pub(super) copies: Copies,
}

impl Audit {
    /// Nothing is being asked, nothing wants to be, and no copy is owed that can be made.
    pub fn is_clean(&self) -> bool {
        let began = self.next_round.is_some() && !self.due;
        began && self.running.is_none() && self.wanted.is_empty() && self.copies.is_empty()
    }

    /// `unnamed`: egroups that no durable record names yet. Whether drives or groups have changed.
    pub fn on_view(&mut self, view: &View, unnamed: impl Iterator<Item = EgroupId>) -> bool {
        let seen = Seen {
            drives: view.drives.iter().map(|(&drive, view)| (drive, without_slowness(view.state))).collect(),
            groups: view.groups.clone(),
        };
        if self.seen.as_ref() == Some(&seen) {
            return false;
        }
        self.seen = Some(seen);
        self.due = true;
        self.whole.clear();
        self.kept.clear();
        self.early.extend(unnamed);
        let owing = view.groups.iter().filter(|(_, group)| !group.former.is_empty());
        self.untold = owing.map(|(&group, _)| group).collect();
        self.copies.on_view();
        if let Some(running) = &mut self.running {
            running.outdated = true;
        }
        true
    }

    pub fn wake_at(&self) -> Option<Time> {
        match (self.next_round, self.copies.wake_at()) {
            (Some(round), copies) => earlier(copies, round),
            (None, copies) => copies,
        }
    }

    pub(super) fn next_task(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// This drive is to be asked (again).
    pub(super) fn want(&mut self, drive: DriveId) {
        self.wanted.insert(drive);
    }

    /// A member needs a copy of this egroup. False: as many as `most` are owed already.
    fn owe(&mut self, egroup: EgroupId, drive: DriveId, most: usize) -> bool {
        self.whole.remove(&drive);
        self.copies.owe(egroup, drive, most)
    }

    /// An egroup was just named, and this member has not got it. The drive is perhaps just being listed, and what had no name when
    /// that began is not missed in the list.
    fn did_not_get(&mut self, egroup: EgroupId, drive: DriveId, most: usize) {
        let is_owed = self.owe(egroup, drive, most);
        if planted(Bug::LackForgotten) {
            return;
        }
        let listed = self.running.as_mut().filter(|running| running.drive == drive);
        if let Some(running) = listed {
            running.lacks = true;
            if !is_owed {
                running.missing.insert(egroup);
            }
        }
        // Else it is listed when the copy has been made.
        if !is_owed {
            self.want(drive);
        }
    }

    /// Whether this drive lacks the egroup, or has a bad copy, as far as is known.
    pub(crate) fn is_owed(&self, egroup: EgroupId, drive: DriveId) -> bool {
        self.copies.knows(egroup, drive)
    }

    /// Whether every member of the group is known to have everything.
    pub(super) fn is_whole(&self, group: &GroupView) -> bool {
        !group.members.is_empty() && group.members.iter().all(|drive| self.whole.contains(drive))
    }

    /// Drives that kept copies for the sake of groups that are whole by now: they can let go of them.
    fn want_keepers_of_needless_copies(&mut self, view: &View) {
        let whole = |group: &GroupId| view.groups.get(group).is_some_and(|group| self.is_whole(group));
        let ready: Vec<DriveId> = self
            .kept
            .iter()
            .filter(|(_, groups)| groups.iter().any(whole))
            .map(|(&drive, _)| drive)
            .collect();
        for drive in ready {
            self.kept.remove(&drive);
            self.wanted.insert(drive);
        }
    }
}

/// What is the matter with a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Damaged,
    Missing,
}

impl Volume {
    /// Asks the next drive, if it is time, and goes on copying.
    pub(crate) fn start_audit(&mut self, ctx: &mut Context) {
        if self.audit.due || self.audit.next_round.is_none_or(|at| at <= ctx.now) {
            self.audit.due = false;
            self.audit.next_round = Some(ctx.now.after(ctx.limits.audit_interval_us));
            self.audit.copies.forget_hopeless();
            self.forget_needless_bad_copies(ctx);
            // Not only members: any drive may hold what nobody wants any more.
            let up = ctx.view.drives.keys().copied().filter(|&drive| is_up(ctx.view, drive));
            self.audit.wanted.extend(up);
        }
        while self.audit.running.is_none()
            && let Some(drive) = self.audit.wanted.pop_first()
        {
            if ctx.is_up(drive) {
                self.begin_audit(drive, ctx);
            }
        }
        self.start_copies(ctx);
        self.tell_whole_groups(ctx);
    }

    fn begin_audit(&mut self, drive: DriveId, ctx: &mut Context) {
        // Before what is missing takes all places: that is found anew each time, and these are not.
        let (last, most) = (self.audit.last, ctx.limits.copies_owed_max);
        self.audit.copies.owe_bad_again(drive, last, most);
        let task = self.audit.next_task();
        self.audit.kept.remove(&drive);
        let unfinished: BTreeSet<EgroupId> = self.unnamed().collect();
        self.audit.running = Some(Running {
            task,
            drive,
            after: EgroupId(0),
            newest: self.placing.newest(),
            unfinished,
            lacks: false,
            missing: BTreeSet::new(),
            outdated: false,
        });
        // A drive that was away missed what was said about the log.
        let trim = Question::Trim { up_to: self.log.trim };
        ctx.ask(self.family, self.epoch, drive, trim, Purpose::Trim);
        // What is in the list may be counted on from now.
        ctx.calls.forget_deletions(self.family, drive, None);
        let question = Question::ListEgroups { after: EgroupId(0) };
        ctx.ask(self.family, self.epoch, drive, question, Purpose::Audit(task));
    }

    /// Egroups that are being made, up to the moment when a durable record names them.
    pub(crate) fn unnamed(&self) -> impl Iterator<Item = EgroupId> + '_ {
        self.placing.writing().chain(self.named_by_pending()).chain(self.compaction.naming())
    }

    /// Tells which groups owe nothing to anybody any more as far as this family goes: each member has everything, so the
    /// former ones can be forgotten when every owner says so.
    fn tell_whole_groups(&mut self, ctx: &mut Context) {
        let whole = |group: &GroupView| self.audit.is_whole(group) || planted(Bug::WholeTooEarly);
        let is_whole = |group: &GroupId| ctx.view.groups.get(group).is_some_and(whole);
        let groups: Vec<GroupId> = self.audit.untold.iter().copied().filter(is_whole).collect();
        if groups.is_empty() {
            return;
        }
        // What was on its way when the view changed is compared with the members when it is named, and only then is
        // it known whether a copy is owed.
        let unnamed: BTreeSet<EgroupId> = self.unnamed().collect();
        self.audit.early.retain(|egroup| unnamed.contains(egroup));
        if !self.audit.early.is_empty() && !planted(Bug::WholeTooEarly) {
            return;
        }
        self.audit.untold.retain(|group| !groups.contains(group));
        let (family, epoch, view) = (self.family, self.epoch, ctx.view.version);
        ctx.notice(Notice::GroupsWhole { family, epoch, view, groups });
    }

    /// Egroups in map records that are not durable yet.
    fn named_by_pending(&self) -> impl Iterator<Item = EgroupId> + '_ {
        self.log.pending().filter_map(|record| match &record.body {
            Body::Map(map) => map.named.map(|named| named.egroup),
            _ => None,
        })
    }

    pub(crate) fn on_audit(
        &mut self,
        task: u64,
        drive: DriveId,
        answer: Result<Answer, Refusal>,
        ctx: &mut Context,
    ) {
        if self.audit.copies.is_running(task) {
            return self.on_copy(task, drive, answer, ctx);
        }
        let Some(running) = self.audit.running.take_if(|running| running.task == task) else { return };
        assert_eq!(running.drive, drive, "the drive that was asked answers");
        match answer {
            Ok(Answer::Listed { egroups, end }) => self.on_listed(running, &egroups, end, ctx),
            Ok(other) => unreachable!("a question for names is answered by {other:?}"),
            // The drive went away; when it is back the view has changed, and it is asked again.
            Err(_) => {}
        }
    }

    /// A part of the drive's list: compared, and the next one asked for.
    fn on_listed(&mut self, mut running: Running, listed: &[EgroupId], end: bool, ctx: &mut Context) {
        assert!(listed.is_sorted_by(|a, b| a < b), "a keeper lists names in order");
        assert!(listed.first().is_none_or(|&first| first > running.after), "a list goes on where it ended");
        assert!(end || !listed.is_empty(), "a list that goes on has names");
        let last = match listed.last() {
            Some(&last) if !end => last,
            _ => EgroupId(u64::MAX),
        };
        self.copy_what_is_missing(&mut running, listed, last, ctx);
        self.look_for_suspects(&running, listed, last, ctx);
        self.delete_what_is_needless(&running, listed, ctx);
        running.after = last;
        if !end && !planted(Bug::FirstPartOnly) {
            let question = Question::ListEgroups { after: last };
            ctx.ask(self.family, self.epoch, running.drive, question, Purpose::Audit(running.task));
            self.audit.running = Some(running);
            return;
        }
        if running.outdated {
            return;
        }
        self.audit.copies.lacks_also(running.drive, running.missing);
        self.audit.copies.still_cramped(running.drive);
        if !running.lacks && !self.audit.copies.owes(running.drive) {
            self.audit.whole.insert(running.drive);
            self.factoring.on_whole();
            self.audit.want_keepers_of_needless_copies(ctx.view);
        }
    }

    fn copy_what_is_missing(
        &mut self,
        running: &mut Running,
        listed: &[EgroupId],
        last: EgroupId,
        ctx: &Context,
    ) {
        let first = EgroupId(running.after.0 + 1);
        let data = self.map.directory.range(first..=last).map(|(egroup, entry)| (egroup, entry.group));
        let pages = self.map.map_egroups.range(first..=last).map(|(&egroup, named)| (egroup, named.group));
        let mut missing: Vec<EgroupId> = Vec::new();
        for (egroup, group) in data.chain(pages) {
            let existed = egroup <= running.newest && !running.unfinished.contains(&egroup);
            if existed
                && ctx.members(group).contains(&running.drive)
                && listed.binary_search(&egroup).is_err()
            {
                missing.push(egroup);
            }
        }
        running.lacks |= !missing.is_empty();
        for egroup in missing {
            self.audit.copies.bad.not_there(egroup, running.drive, running.task);
            if !self.audit.owe(egroup, running.drive, ctx.limits.copies_owed_max) {
                running.missing.insert(egroup);
            }
        }
    }

    fn look_for_suspects(&mut self, running: &Running, listed: &[EgroupId], last: EgroupId, ctx: &Context) {
        let names = EgroupId(running.after.0 + 1)..=last;
        let mut bad = std::mem::take(&mut self.audit.copies.bad);
        let held = listed.iter().copied().filter(|&egroup| self.is_place_for(egroup, running.drive, ctx));
        bad.on_listed(running.drive, names, held, running.task);
        self.audit.copies.bad = bad;
    }

    /// Whether the egroup is to be on this drive.
    pub(super) fn is_place_for(&self, egroup: EgroupId, drive: DriveId, ctx: &Context) -> bool {
        self.map.group_of(egroup).is_some_and(|group| ctx.members(group).contains(&drive))
    }

    /// Forgets bad copies that nobody wants where they are: their egroup has died, or lies elsewhere by now.
    fn forget_needless_bad_copies(&mut self, ctx: &Context) {
        let mut bad = std::mem::take(&mut self.audit.copies.bad);
        let is_member = |drive| ctx.view.groups.values().any(|group| group.members.contains(&drive));
        bad.keep(|egroup, drive| self.is_place_for(egroup, drive, ctx), is_member);
        self.audit.copies.bad = bad;
    }

    fn delete_what_is_needless(&mut self, running: &Running, listed: &[EgroupId], ctx: &mut Context) {
        let named: BTreeSet<EgroupId> = self.named_by_pending().chain(self.compaction.naming()).collect();
        let mut needless: Vec<EgroupId> = Vec::new();
        let mut former: BTreeSet<EgroupId> = BTreeSet::new();
        for &egroup in listed {
            let Some(group) = self.map.group_of(egroup) else {
                // A name is given once, and goes from placing to a pending record to the map within one step
                // each. One that is in none of them will never be named.
                let coming = named.contains(&egroup) || self.placing.is_writing(egroup);
                let overlooked = planted(Bug::OldOrphansKept) && egroup.epoch() < self.epoch;
                if egroup.epoch() <= self.epoch && !coming && !overlooked && !planted(Bug::SpaceLeak) {
                    ctx.counters.orphans_deleted += 1;
                    needless.push(egroup);
                }
                continue;
            };
            let Some(view) = ctx.view.groups.get(&group) else { continue };
            if view.members.contains(&running.drive) {
                continue;
            }
            if self.audit.is_whole(view) || planted(Bug::FormerCopiesDropped) {
                needless.push(egroup);
                former.insert(egroup);
            } else {
                self.audit.kept.entry(running.drive).or_default().insert(group);
            }
        }
        if !former.is_empty() {
            self.copies_deleted(&former);
        }
        for egroups in needless.chunks(DELETES_MAX) {
            let question = Question::DeleteEgroups { egroups: egroups.to_vec() };
            ctx.ask(self.family, self.epoch, running.drive, question, Purpose::Forget);
        }
    }

    /// The copy of an egroup on this drive is no good: told once, and made anew. One that is missing is news only where it has its
    /// place, on a drive that was known to have everything: to one that has just got this place copies are still on their way, and
    /// one that has lost it has deleted them.
    pub(crate) fn on_bad_copy(&mut self, egroup: EgroupId, drive: DriveId, fault: Fault, ctx: &mut Context) {
        if self.map.group_of(egroup).is_none() || self.audit.copies.knows(egroup, drive) {
            return;
        }
        let has_place = self.is_place_for(egroup, drive, ctx);
        let is_news = fault == Fault::Damaged || (has_place && self.audit.whole.contains(&drive));
        let family = self.family;
        let damage =
            if is_news { Damage::CopyBad { family, egroup } } else { Damage::CopyAwaited { family, egroup } };
        ctx.counters.copies_bad += u64::from(is_news);
        ctx.notice(Notice::Damage { drive, damage });
        if has_place {
            self.audit.whole.remove(&drive);
            let task = self.audit.last;
            self.audit.copies.found_bad(egroup, drive, task, ctx.limits.copies_owed_max);
        }
    }

    /// An egroup was just named: members that did not get it, because they were away or joined the group
    /// while it was written, get a copy.
    pub(crate) fn check_copies(&mut self, egroup: EgroupId, group: GroupId, ctx: &mut Context) {
        // What recovery appends again was not written by us; the audit after the opening looks at it.
        let Some(written) = self.placing.take_written(egroup) else { return };
        for &drive in ctx.members(group) {
            // One that is away is asked for its list when it comes back.
            if !written.contains(&drive) && ctx.is_up(drive) {
                self.audit.did_not_get(egroup, drive, ctx.limits.copies_owed_max);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a drive that is being listed is known to lack what was named meanwhile, when as many copies are owed as may be.
    fn is_known_to_lack() -> bool {
        const MOST: usize = 2;
        let (here, elsewhere) = (DriveId(1), DriveId(2));
        let mut audit = Audit {
            running: Some(Running {
                task: 1,
                drive: here,
                after: EgroupId(0),
                newest: EgroupId(9),
                unfinished: [EgroupId(5)].into(),
                lacks: false,
                missing: BTreeSet::new(),
                outdated: false,
            }),
            whole: [here].into(),
            ..Audit::default()
        };
        while audit.owe(EgroupId(10 + audit.copies.owed.len() as u64), elsewhere, MOST) {}
        audit.did_not_get(EgroupId(5), here, MOST);
        assert!(!audit.whole.contains(&here));
        audit.running.is_some_and(|running| running.lacks)
    }

    #[test]
    fn a_drive_that_is_being_listed_does_not_become_whole_without_what_was_named_meanwhile() {
        assert!(is_known_to_lack());
    }

    #[cfg(feature = "sabotage")]
    #[test]
    fn forgetting_it_is_seen() {
        assert!(!crate::sabotage::with(Bug::LackForgotten, is_known_to_lack));
    }
}
