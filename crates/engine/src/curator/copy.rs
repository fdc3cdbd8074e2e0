//! Copies of egroups made anew: read from whoever has good frames, written to the member that lacks them as they are.
//! Promises: a few at a time, fewer where clients wait for the drives, and what only one drive has before all else; frames are taken
//! from several sources if no single one is good; who has nothing gets all that anybody gives: what nobody gives for long keeps nothing else
//! from having its copies. A copy that cannot be made is given up until the next round of the audit, so nothing waits for it for ever.
//! Only a bad one of which a good copy may be on a drive that is away keeps its own drive from counting as whole until then.
//! Leaves to others: finding out which copies are bad or missing (`audit`, and whoever reads), remembering the bad ones (`bad`).

use super::bad::BadCopies;
use super::factor::is_move;
use super::gather::{Copy, Step};
use crate::context::{Context, Purpose, earlier};
use crate::curator::audit::Fault;
use crate::identity::{DriveId, EgroupId, Time};
use crate::interface::{Damage, Notice};
use crate::map::lookup::may_come_back;
use crate::message::{Answer, Class, Question, Refusal, Sharing, UnitRun};
use crate::sabotage::{Bug, planted};
use crate::volume::Volume;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Copies of a family being made at once; and those of which nobody else has a copy to spare.
const COPIES_MAX: usize = 4;
const URGENT_MAX: usize = 8;
/// Owed copies looked at for one that drives have time for.
const CHOICE: usize = 64;
/// When drives have no time they are asked again after so long.
const NO_TIME_US: u64 = 20_000;
/// A drive without room may have some after this time.
const NO_ROOM_US: u64 = 1_000_000;
/// Where nothing else is owed, they are asked so often, for one copy after the other: each is read and sent in vain.
const ASKED_ON_US: u64 = 100_000;
/// How often and how many times a copy is tried for which there is no source or no room.
const AGAIN_US: u64 = 250_000;
const ATTEMPTS_MAX: u32 = 20;
/// So many times everybody is asked anew in the time before a copy is written without what no drive gives; and so many times at least.
const PARTIAL_ATTEMPTS: u64 = 10;
const PARTIAL_ASKED_LEAST: u32 = 5;
/// Of so many such copies of a family what was read is kept meanwhile: a poor drive gives this now and that then. Others wait.
const KEPT_MAX: usize = 4;

type Key = (EgroupId, DriveId);

#[derive(Debug, Default)]
pub(super) struct Copies {
    /// To be made, with how often it was tried.
    pub(super) owed: BTreeMap<Key, u32>,
    /// Those of them that may be the second copy there is; and those not looked at since drives came or went.
    urgent: BTreeSet<Key>,
    unsorted: BTreeSet<Key>,
    /// No drive had time for a copy: somebody looks again then.
    no_time_until: Option<Time>,
    /// To be tried again at that time.
    later: BTreeMap<Key, (Time, u32)>,
    running: BTreeMap<u64, Copy>,
    /// What was read of some of those to be tried again.
    kept: BTreeMap<Key, Copy>,
    /// Given up until the next round of the audit.
    hopeless: BTreeSet<Key>,
    /// Drives that had no room for a copy they are owed; and until when they are not taken to have any.
    cramped: BTreeSet<DriveId>,
    no_room: BTreeMap<DriveId, Time>,
    /// When one of these was asked last, and for which copy: the next one is for one behind it.
    asked_on: Option<(Time, Key)>,
    /// Also those that are owed.
    pub(super) bad: BadCopies,
    /// What drives were found to lack, and cannot be owed yet. As many as the directory has names at most.
    missing: BTreeMap<DriveId, BTreeSet<EgroupId>>,
}

impl Copies {
    /// Nothing is owed that can be made: what nobody gives is not waited for.
    pub fn is_empty(&self) -> bool {
        let is_waiting = self.later.keys().all(|key| self.kept.contains_key(key));
        self.owed.is_empty() && is_waiting && self.running.is_empty()
    }

    pub fn is_running(&self, task: u64) -> bool {
        self.running.contains_key(&task)
    }

    /// Whether this copy is known to be bad or missing.
    pub fn knows(&self, egroup: EgroupId, drive: DriveId) -> bool {
        self.is_queued((egroup, drive))
            || self.bad.has(egroup, drive)
            || self.missing.get(&drive).is_some_and(|missing| missing.contains(&egroup))
    }

    fn is_queued(&self, key: Key) -> bool {
        self.owed.contains_key(&key)
            || self.later.contains_key(&key)
            || self.hopeless.contains(&key)
            || self.running.values().any(|copy| copy.key() == key)
    }

    /// Whether some copy for this drive is to be made, or was given up in this round.
    pub fn awaits(&self, drive: DriveId) -> bool {
        self.owed.keys().chain(self.later.keys()).chain(&self.hopeless).any(|(_, to)| *to == drive)
            || self.running.values().any(|copy| copy.drive == drive)
    }

    /// Whether some copy is owed to this drive, be it in its turn or not.
    pub fn owes(&self, drive: DriveId) -> bool {
        self.awaits(drive) || self.bad.has_some_of(drive)
    }

    /// The drive was listed: if nothing waits for room there any more, it is not cramped any more either. What waited may have
    /// been deleted since.
    pub fn still_cramped(&mut self, drive: DriveId) {
        if !self.awaits(drive) {
            self.cramped.remove(&drive);
        }
    }

    pub fn cramped(&self) -> &BTreeSet<DriveId> {
        &self.cramped
    }

    /// False: as many as `most` are owed already.
    pub fn owe(&mut self, egroup: EgroupId, drive: DriveId, most: usize) -> bool {
        let is_queued = self.is_queued((egroup, drive));
        // A drive without room does not take the places of others.
        let most = if self.cramped.contains(&drive) { most.div_ceil(4) } else { most };
        if !is_queued && self.owed.len() < most {
            self.queue((egroup, drive), 0);
            return true;
        }
        is_queued
    }

    fn queue(&mut self, (egroup, drive): Key, attempts: u32) {
        self.owed.insert((egroup, drive), attempts);
        self.unsorted.insert((egroup, drive));
        if let Some(missing) = self.missing.get_mut(&drive) {
            missing.remove(&egroup);
        }
    }

    /// A copy was read and is bad. `task`: the last one that was begun.
    pub fn found_bad(&mut self, egroup: EgroupId, drive: DriveId, task: u64, most: usize) {
        self.bad.note(egroup, drive, task);
        // One that has no place is owed when its drive is listed again.
        self.owe(egroup, drive, most);
    }

    /// Bad copies of a drive that wait for nothing, because there was no place for them, they were given up, or their drive
    /// was away: those whose last turn is longest ago are owed again, and tried once.
    pub fn owe_bad_again(&mut self, drive: DriveId, task: u64, most: usize) {
        let waits = |&(_, egroup): &(u64, EgroupId)| !self.is_queued((egroup, drive));
        let mut waiting: Vec<(u64, EgroupId)> = self.bad.of(drive).filter(waits).collect();
        waiting.sort_unstable();
        for (_, egroup) in waiting.into_iter().take(most.saturating_sub(self.owed.len())) {
            self.queue((egroup, drive), ATTEMPTS_MAX - 1);
            self.bad.had_turn(egroup, drive, task);
        }
    }

    /// What else than what is owed the drive lacks.
    pub fn lacks_also(&mut self, drive: DriveId, missing: BTreeSet<EgroupId>) {
        self.missing.insert(drive, missing);
        self.missing.retain(|_, missing| !missing.is_empty());
    }

    /// Drives came or went: what waited for one may go on.
    pub fn on_view(&mut self) {
        self.hopeless.clear();
        self.cramped.clear();
        self.no_room.clear();
        self.missing.clear();
        let waiting = std::mem::take(&mut self.later);
        self.owed.extend(waiting.into_keys().map(|key| (key, 0)));
        let Self { kept, owed, .. } = self;
        kept.retain(|key, _| owed.contains_key(key));
        self.urgent.clear();
        self.unsorted = self.owed.keys().copied().collect();
    }

    /// What was given up may be tried once more.
    pub fn forget_hopeless(&mut self) {
        self.hopeless.clear();
    }

    pub fn wake_at(&self) -> Option<Time> {
        self.later.values().map(|(at, _)| *at).chain(self.no_time_until).fold(None, earlier)
    }

    fn take(&mut self, key: Key) -> u32 {
        self.urgent.remove(&key);
        self.unsorted.remove(&key);
        self.owed.remove(&key).expect("only what is owed is taken")
    }

    /// The next copy for a drive without room, behind the last one that was tried, and whether it is urgent. None: it is too soon.
    fn ask_on(&mut self, now: Time) -> Option<(Key, bool)> {
        let mut behind = Bound::Unbounded;
        if let Some((at, key)) = self.asked_on {
            let next = at.after(ASKED_ON_US);
            if next > now {
                self.no_time_until = Some(next);
                return None;
            }
            behind = Bound::Excluded(key);
        }
        let range = (behind, Bound::Unbounded);
        let urgent = self.urgent.range(range).next().or(self.urgent.first());
        let others = self.owed.range(range).chain(self.owed.iter()).map(|(key, _)| key);
        let (&key, is_urgent) = (urgent.or(others.into_iter().next())?, urgent.is_some());
        self.asked_on = Some((now, key));
        Some((key, is_urgent))
    }

    /// It cannot be made now; perhaps later.
    fn put_off(&mut self, copy: &Copy, now: Time) {
        let attempts = copy.attempts + 1;
        if attempts < ATTEMPTS_MAX {
            self.later.insert(copy.key(), (now.after(AGAIN_US), attempts));
        } else {
            self.hopeless.insert(copy.key());
        }
    }
}

impl Volume {
    pub(super) fn start_copies(&mut self, ctx: &mut Context) {
        let copies = &mut self.audit.copies;
        if !copies.later.is_empty() {
            let due: Vec<Key> =
                copies.later.iter().filter(|(_, (at, _))| *at <= ctx.now).map(|(&key, _)| key).collect();
            for key in due {
                let (_, attempts) = copies.later.remove(&key).expect("it was just found");
                copies.owed.insert(key, attempts);
                copies.unsorted.insert(key);
            }
        }
        let running = &self.audit.copies.running;
        ctx.calls.budget.keep(self.family, ctx.now, |task| is_move(task) || running.contains_key(&task));
        self.audit.copies.no_time_until = None;
        self.find_urgent(ctx);
        while let Some(((egroup, drive), source)) = self.next_copy(ctx) {
            let attempts = self.audit.copies.take((egroup, drive));
            let task = self.audit.next_task();
            ctx.calls.budget.begin(self.family, task, [source, drive], ctx.now);
            let copy = match self.audit.copies.kept.remove(&(egroup, drive)) {
                Some(kept) => kept.goes_on(attempts),
                None => Copy::new(egroup, drive, attempts),
            };
            self.continue_copy(task, copy, ctx);
        }
        let running = &self.audit.copies.running;
        ctx.calls.budget.keep(self.family, ctx.now, |task| is_move(task) || running.contains_key(&task));
    }

    /// The copy to be made next, and who will probably be read for it: first what only one drive has; else one that both
    /// drives have time for. What goes to a drive that had no room a moment ago comes behind all else: it would be read in vain.
    fn next_copy(&mut self, ctx: &mut Context) -> Option<(Key, DriveId)> {
        let copies = &self.audit.copies;
        let running = copies.running.len();
        let is_enough = running >= URGENT_MAX || running >= COPIES_MAX && copies.urgent.is_empty();
        if is_enough || copies.owed.is_empty() {
            return None;
        }
        // Each family may always make one: those who came first would take every place that becomes free.
        if running > 0 && ctx.calls.budget.is_full() {
            self.audit.copies.no_time_until = Some(ctx.now.after(NO_TIME_US));
            return None;
        }
        let has_room = |&&(_, drive): &&Key| copies.no_room.get(&drive).is_none_or(|&until| until <= ctx.now);
        let mut urgent = copies.urgent.iter().find(has_room).copied();
        let mut keys: Vec<Key> = Vec::new();
        if urgent.is_none() {
            keys.extend(copies.owed.keys().filter(has_room).take(CHOICE));
        }
        if urgent.is_none() && keys.is_empty() {
            let (key, is_urgent) = self.audit.copies.ask_on(ctx.now)?;
            (urgent, keys) = (is_urgent.then_some(key), vec![key]);
        }
        if let Some(key) = urgent {
            return Some((key, self.likely_source(key, ctx)));
        }
        if running >= COPIES_MAX {
            return None;
        }
        let choice: Vec<(Key, DriveId)> =
            keys.into_iter().map(|key| (key, self.likely_source(key, ctx))).collect();
        let fits =
            choice.into_iter().find(|&((_, drive), from)| ctx.calls.budget.admits([from, drive], ctx.now));
        if fits.is_none() {
            self.audit.copies.no_time_until = Some(ctx.now.after(NO_TIME_US));
        }
        fits
    }

    /// Who will probably be read. Without anybody its turn finds out what is to be done.
    fn likely_source(&self, (egroup, drive): Key, ctx: &Context) -> DriveId {
        let group = self.map.group_of(egroup).and_then(|group| ctx.view.groups.get(&group));
        let others = group.into_iter().flat_map(|group| group.members.iter().chain(&group.former).copied());
        let others = others.filter(|&other| other != drive && ctx.is_up(other));
        let copies = &self.audit.copies;
        others
            .min_by_key(|&other| (copies.knows(egroup, other), ctx.calls.paces.expected_us(other)))
            .unwrap_or(drive)
    }

    /// Finds out which of the copies that became owed may be the second one there is.
    fn find_urgent(&mut self, ctx: &Context) {
        for (egroup, drive) in std::mem::take(&mut self.audit.copies.unsorted) {
            let copies = &self.audit.copies;
            let group = self.map.group_of(egroup).and_then(|group| ctx.view.groups.get(&group));
            let Some(group) = group.filter(|_| copies.owed.contains_key(&(egroup, drive))) else { continue };
            let others = group
                .members
                .iter()
                .chain(&group.former)
                .filter(|&&other| other != drive && ctx.is_up(other) && !copies.knows(egroup, other));
            if group.members.len() > 1 && others.count() <= 1 {
                self.audit.copies.urgent.insert((egroup, drive));
            }
        }
    }

    /// Asks the next source, or writes when everything is there.
    fn continue_copy(&mut self, task: u64, mut copy: Copy, ctx: &mut Context) {
        if !self.is_place_for(copy.egroup, copy.drive, ctx) {
            // It died, or its place is elsewhere by now.
            self.audit.copies.bad.forget(copy.egroup, copy.drive);
            return self.end_copy(copy.drive);
        }
        if !ctx.is_up(copy.drive) {
            return self.end_copy(copy.drive);
        }
        if copy.is_complete() {
            return self.write_copy(task, copy, ctx);
        }
        let mut others = copy.tried.clone();
        others.push(copy.drive);
        // The bad copy itself comes last: its other frames may be good.
        let itself = (!copy.tried.contains(&copy.drive)).then_some(copy.drive);
        let Some(source) = self.nearest_copy(copy.egroup, &others, ctx).or(itself) else {
            if may_come_back(self, copy.egroup, &others, ctx) {
                self.audit.copies.put_off(&copy, ctx.now);
            } else if copy.takes_what_there_is() {
                self.take_what_there_is(task, copy, ctx);
            } else {
                // Nobody has a good one, so nothing is better for waiting: whoever reads it finds it again.
                self.audit.copies.bad.forget(copy.egroup, copy.drive);
                self.audit.copies.hopeless.insert(copy.key());
            }
            return;
        };
        if !copy.is_to_be_described(source) {
            let runs = copy.next_runs();
            return self.ask_for_frames(task, copy, source, runs, ctx);
        }
        copy.step = Step::Describing;
        let question = Question::DescribeEgroup { egroup: copy.egroup };
        ctx.ask(self.family, self.epoch, source, question, Purpose::Audit(task));
        self.audit.copies.running.insert(task, copy);
    }

    fn ask_for_frames(
        &mut self,
        task: u64,
        mut copy: Copy,
        source: DriveId,
        runs: Vec<UnitRun>,
        ctx: &mut Context,
    ) {
        copy.step = Step::Reading;
        copy.asked = runs.clone();
        let question = Question::ReadFrames { egroup: copy.egroup, runs };
        ctx.ask(self.family, self.epoch, source, question, Purpose::Audit(task));
        self.audit.copies.running.insert(task, copy);
    }

    /// Everybody was asked, and something was given by nobody. Or it is a path that is gone for some seconds (decisions 0042 and
    /// 0064), so everybody is asked again and again before the rest is written.
    fn take_what_there_is(&mut self, task: u64, mut copy: Copy, ctx: &mut Context) {
        let patience = ctx.limits.partial_after_us;
        let copies = &mut self.audit.copies;
        // Those that are being asked for keep their places.
        let waiting = copies.kept.len() + copies.running.values().filter(|copy| copy.since.is_some()).count();
        let has_place = copy.since.is_some() || waiting < KEPT_MAX;
        let since = *copy.since.get_or_insert(ctx.now);
        copy.asked_in_vain += 1;
        let is_long = ctx.now >= since.after(patience) && copy.asked_in_vain >= PARTIAL_ASKED_LEAST;
        let is_given = copy.is_given_something();
        if is_given && (is_long || planted(Bug::FirstFaultBelieved)) {
            self.write_copy(task, copy, ctx);
        } else if is_given && has_place {
            copies.later.insert(copy.key(), (ctx.now.after(patience / PARTIAL_ATTEMPTS), copy.attempts));
            copies.kept.insert(copy.key(), copy);
        } else {
            copies.hopeless.insert(copy.key());
        }
    }

    fn write_copy(&mut self, task: u64, mut copy: Copy, ctx: &mut Context) {
        let lacking = copy.lacks();
        copy.is_partial = !lacking.is_nothing();
        let content = copy.content();
        let mut blocks = std::mem::take(&mut copy.blocks);
        blocks.resize(copy.units as usize, 0);
        // Else a drive that is made anew would need more room than the one before it.
        let shares = self.map.directory.get(copy.egroup).is_some_and(|entry| entry.recipe.shares());
        copy.step = Step::Writing;
        let question = Question::WriteEgroup {
            egroup: copy.egroup,
            class: Class::Reserve,
            content,
            blocks,
            replace: true,
            sharing: shares.then(Sharing::default),
            lacking,
        };
        ctx.calls.forget_deletions(self.family, copy.drive, Some(copy.egroup));
        ctx.ask(self.family, self.epoch, copy.drive, question, Purpose::Audit(task));
        self.audit.copies.running.insert(task, copy);
    }

    pub(super) fn on_copy(
        &mut self,
        task: u64,
        drive: DriveId,
        answer: Result<Answer, Refusal>,
        ctx: &mut Context,
    ) {
        let mut copy = self.audit.copies.running.remove(&task).expect("a copy that runs is in the table");
        match (copy.step, answer) {
            (Step::Describing, Ok(Answer::Egroup { blocks, packing })) => {
                // None: it died meanwhile.
                copy.units = self.map.units_of(copy.egroup).unwrap_or(0);
                let fits = packing.as_ref().is_none_or(|packing| packing.units() == copy.units);
                let is_alike = copy.frames.is_empty() || packing == copy.packing;
                let is_told = blocks.len() == copy.units as usize;
                if fits && is_alike && copy.units > 0 && (is_told || blocks.is_empty()) {
                    copy.described.push(drive);
                    if copy.frames.is_empty() {
                        copy.begin_reading(packing);
                    }
                    let runs = if is_told {
                        copy.gave.push(drive);
                        copy.blocks = blocks;
                        copy.next_runs()
                    } else {
                        self.tell_bad_source(&copy, drive, Fault::Damaged, ctx);
                        copy.next_runs_and_known_ones()
                    };
                    if !copy.is_complete() && !runs.is_empty() {
                        return self.ask_for_frames(task, copy, drive, runs, ctx);
                    }
                }
                copy.tried.push(drive);
            }
            (Step::Reading, Ok(Answer::Frames(results))) => {
                let several = copy.asked.iter().any(|&run| copy.frames_of(run).nth(1).is_some());
                // What was lost before it came there is as good as given.
                if results.iter().any(|result| result.as_ref().map_or_else(|bad| bad.is_lost, |_| true)) {
                    copy.gave.push(drive);
                }
                if !copy.take(results) && !copy.is_lost {
                    if several {
                        // Some frames of these runs may be good.
                        let runs = copy.lacking(1);
                        return self.ask_for_frames(task, copy, drive, runs, ctx);
                    }
                    if !copy.gave.contains(&drive) && !copy.described.contains(&drive) {
                        // It was asked for little, after another one that gave the rest.
                        copy.described.push(drive);
                        let runs = copy.next_runs_and_known_ones();
                        return self.ask_for_frames(task, copy, drive, runs, ctx);
                    }
                    self.on_bad_source(&mut copy, drive, Fault::Damaged, ctx);
                } else if copy.is_read() || copy.is_lost {
                    // All that this one could still tell is for what they were written, and that it was asked.
                    copy.tried.push(drive);
                }
            }
            (Step::Writing, Ok(Answer::EgroupWritten)) => return self.on_copied(&copy, ctx),
            (Step::Writing, Err(Refusal::NoSpace)) => {
                self.audit.copies.cramped.insert(copy.drive);
                let until = self.audit.copies.no_room.insert(copy.drive, ctx.now.after(NO_ROOM_US));
                if copy.attempts > 0 || until.is_some_and(|until| until > ctx.now) {
                    // The others have their turn, on other drives as well, before this one is tried once more.
                    self.audit.copies.hopeless.insert(copy.key());
                    return;
                }
                return self.audit.copies.put_off(&copy, ctx.now);
            }
            // The member went away; it is audited when it is back, and if its copy is bad, that is owed again.
            (Step::Writing, Err(_)) => return self.end_copy(copy.drive),
            (_, Err(Refusal::NotFound)) => self.on_bad_source(&mut copy, drive, Fault::Missing, ctx),
            // Of its copy nothing is known: it may come back with a good one, and is asked what it has then.
            (_, Err(Refusal::DriveGone)) => copy.described.retain(|&other| other != drive),
            (_, Err(_)) => copy.tried.push(drive),
            (step, Ok(other)) => unreachable!("a copy in step {step:?} is not answered by {other:?}"),
        }
        self.continue_copy(task, copy, ctx);
    }

    fn on_bad_source(&mut self, copy: &mut Copy, drive: DriveId, fault: Fault, ctx: &mut Context) {
        copy.tried.push(drive);
        if fault == Fault::Missing {
            copy.absent.push(drive);
        }
        self.tell_bad_source(copy, drive, fault, ctx);
    }

    fn tell_bad_source(&mut self, copy: &Copy, drive: DriveId, fault: Fault, ctx: &mut Context) {
        if drive != copy.drive && !copy.is_again {
            self.on_bad_copy(copy.egroup, drive, fault, ctx);
        }
    }

    fn on_copied(&mut self, copy: &Copy, ctx: &mut Context) {
        self.audit.copies.bad.forget(copy.egroup, copy.drive);
        self.compaction.may_read(copy.egroup);
        if self.map.group_of(copy.egroup).is_none() {
            // It died while it was written, and the order to delete it may have come before the copy.
            let question = Question::DeleteEgroups { egroups: vec![copy.egroup] };
            ctx.ask(self.family, self.epoch, copy.drive, question, Purpose::Forget);
        } else {
            let (family, egroup) = (self.family, copy.egroup);
            let (counter, damage) = match copy.is_partial {
                false => (&mut ctx.counters.copies_repaired, Damage::CopyRepaired { family, egroup }),
                true => (&mut ctx.counters.copies_partial, Damage::CopyPartial { family, egroup }),
            };
            *counter += 1;
            ctx.notice(Notice::Damage { drive: copy.drive, damage });
        }
        self.end_copy(copy.drive);
    }

    /// With the last copy that a drive was owed, its list is looked at again: then it counts as whole, or is owed more.
    fn end_copy(&mut self, drive: DriveId) {
        if !self.audit.copies.awaits(drive) {
            self.audit.copies.cramped.remove(&drive);
            self.audit.want(drive);
        }
    }
}
