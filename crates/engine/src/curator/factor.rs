//! Another number of copies than there are: what lies in groups of another size is moved to groups of the wanted one.
//! Promises: that a factor is reached is told only when the log, data and pages have so many copies and all of them were
//! found; nothing about it is durable but the wish, in the family's record: what remains is seen from the directory. More copies go
//! before compaction, within the budget of copies; fewer are made when there is time.
//! Leaves to others: the log's members (`log/append.rs`), moving units (`moves`), writing pages elsewhere
//! (`map/checkpoint.rs`), that there are groups of the wanted size (the control plane).

use super::compact::{EMPTIED_MAX, EMPTIED_MAX_WHEN_FULL, PAUSE_US, ROOM_AGAIN_US, VICTIMS_MAX};
use super::moves::Whereto;
use crate::buffer::BLOCK;
use crate::context::{Context, IDLE_US};
use crate::egroup::units::units_max;
use crate::identity::{DriveId, EgroupId, GroupId, Time};
use crate::interface::{FactorProgress, Notice, View};
use crate::limits::EGROUP_UNITS;
use crate::sabotage::{Bug, planted};
use crate::volume::Volume;
use std::collections::{BTreeSet, VecDeque};

/// Between the beginnings of two jobs that make fewer copies, while clients ask: some 20 MiB/s.
const PAUSE_LEISURELY_US: u64 = 200_000;
/// When nothing can be begun now: something else has to end first, or a drive to come back.
const LOOK_AGAIN_US: u64 = 200_000;
/// When only drives have to be looked at, which is told.
const LOOK_IDLY_US: u64 = 5_000_000;
/// Egroups looked at in one step.
const LOOKS: usize = 1024;
/// ... beside those that are left alone for now.
const NAMES: usize = 64 * LOOKS;
/// Units of pages that one checkpoint writes elsewhere: it must not take for ever.
const PAGES_AT_ONCE: u32 = 4 * EGROUP_UNITS as u32;
/// Checkpoints for the sake of copies come no closer: for more of them, and for fewer; and so much further apart while clients ask.
const CHECKPOINTS_US: [u64; 2] = [100_000, 500_000];
const CHECKPOINTS_BUSY: u64 = 5;
/// Jobs are told from copies in the budget by this bit.
const MOVES: u64 = 1 << 63;

/// Whether this task of the budget is a job that makes more copies.
pub(super) fn is_move(task: u64) -> bool {
    task & MOVES != 0
}

#[derive(Debug, Default)]
pub(crate) struct Factoring {
    /// There is nothing to do, and that was told.
    told: bool,
    /// It was told before, and drives have come or gone since.
    taken_back: bool,
    /// Not named yet, and perhaps with fewer copies: written to groups of before when the wish changed, or without a member.
    early: BTreeSet<EgroupId>,
    /// Jobs begun here.
    moving: BTreeSet<u64>,
    not_before: Time,
    wake_at: Option<Time>,
    /// Only a checkpoint leads on.
    checkpoint: bool,
    checkpoint_begun: Time,
    /// Emptied when the last checkpoint began.
    emptied: BTreeSet<EgroupId>,
    /// What was left when it was looked at first.
    first: Option<(Time, u64)>,
    /// What waits finds no room.
    short: bool,
}

impl Factoring {
    pub fn wake_at(&self) -> Option<Time> {
        self.wake_at
    }

    /// A drive was found to have everything.
    pub fn on_whole(&mut self) {
        self.not_before = Time(0);
    }

    pub fn wants_checkpoint(&self) -> bool {
        self.checkpoint
    }
}

/// What a look at the egroups in groups of another size found.
#[derive(Default)]
struct Look {
    victims: VecDeque<EgroupId>,
    /// Some are as good as gone, or can be moved, with the next checkpoint.
    awaits_checkpoint: bool,
    short: bool,
}

impl Volume {
    /// So many copies of everything from now on.
    pub(crate) fn set_factor(&mut self, factor: u32, ctx: &mut Context) {
        if self.is_failed() || self.factor == factor {
            return;
        }
        self.take_factor_back(ctx);
        self.factor = factor;
        if !planted(Bug::FactorWithoutLog) {
            self.log.set_factor(factor);
        }
        self.placing.on_groups_changed(factor, ctx.view);
        let early = std::mem::take(&mut self.factoring.early);
        let moving = std::mem::take(&mut self.factoring.moving);
        self.factoring = Factoring { early, moving, ..Factoring::default() };
    }

    /// It was placed without a member that is away.
    pub(crate) fn note_thin(&mut self, egroup: EgroupId, ctx: &mut Context) {
        if self.factoring.told {
            self.take_factor_back(ctx);
        }
        // Its group counts as soon as it is named.
        self.factoring.early.insert(egroup);
    }

    /// Drives have come or gone, or there shall be another number: all is to be found once more.
    pub(crate) fn take_factor_back(&mut self, ctx: &mut Context) {
        if self.factoring.told && !planted(Bug::FactorToldForEver) {
            self.factoring = Factoring { taken_back: true, ..Factoring::default() };
            ctx.notice(Notice::FactorMissed { family: self.family, epoch: self.epoch });
        }
        // What was on its way to a member that went, or to groups of before, counts as soon as it is named.
        let unnamed: Vec<EgroupId> = self.unnamed().collect();
        self.factoring.early.extend(unnamed);
    }

    /// How far it is.
    pub fn factor_progress(&self, view: &View, now: Time) -> FactorProgress {
        let Factoring { told, first, short, .. } = self.factoring;
        let left = self.left_elsewhere(view);
        let copies = self.map.directory.groups().map(|(group, stored)| {
            stored * view.groups.get(&group).map_or(0, |group| group.members.len()) as u64
        });
        let copies_bytes = copies.sum::<u64>() * BLOCK as u64;
        let done = first.map(|(since, first)| (now.since(since), first.saturating_sub(left)));
        FactorProgress {
            wanted: self.factor,
            log: self.log.has_factor(),
            left_bytes: left,
            copies_bytes,
            whole: self.groups_are_whole(view),
            // Where all lies in groups of that size, a member may have no room for its copies.
            short: short || left == 0 && !self.audit.copies.cramped().is_empty(),
            reached: told,
            remaining_us: match done {
                _ if left == 0 => Some(0),
                Some((us, done)) if done > 0 => {
                    Some((u128::from(us) * u128::from(left) / u128::from(done)) as u64)
                }
                _ => None,
            },
        }
    }

    /// Begins a job if something has another number of copies and it is time; tells when nothing has.
    pub(crate) fn start_factoring(&mut self, ctx: &mut Context) {
        self.factoring.wake_at = None;
        if self.factoring.told {
            return;
        }
        if ctx.now < self.factoring.not_before {
            self.factoring.wake_at = Some(self.factoring.not_before);
            return;
        }
        self.end_moves(ctx);
        let data = self.groups_of_other_size(ctx.view);
        let pages = self.has_pages_elsewhere(ctx.view);
        let pause_us = if data.is_empty() && !pages {
            if self.has_reached(ctx) {
                self.factoring.told = true;
                let (family, epoch, factor) = (self.family, self.epoch, self.factor);
                return ctx.notice(Notice::FactorReached { family, epoch, factor });
            }
            // Who only waits for all drives to be looked at is told when they were.
            let is_log_changing = !self.log.has_factor() && !self.factoring.taken_back;
            let is_changing = self.factoring.first.is_some() || is_log_changing;
            if is_changing { LOOK_AGAIN_US } else { LOOK_IDLY_US }
        } else {
            self.continue_factoring(&data, pages, ctx)
        };
        self.factoring.not_before = ctx.now.after(pause_us);
        self.factoring.wake_at = Some(self.factoring.not_before);
    }

    /// Begins what can be begun now. Gives the time until the next look.
    fn continue_factoring(&mut self, data: &[GroupId], pages: bool, ctx: &mut Context) -> u64 {
        let left = self.left_elsewhere(ctx.view);
        self.factoring.first.get_or_insert((ctx.now, left));
        // Whoever settles is about to leave, or goes back to a snapshot: the next owner goes on.
        if !self.may_move() || self.wants_to_settle() {
            return LOOK_AGAIN_US;
        }
        let is_raising = self.is_raising(ctx.view);
        let is_busy = ctx.now < self.requests.last_asked.after(IDLE_US);
        let full = self.placing.is_full();
        let tight = full || self.placing.pool() < (2 * EMPTIED_MAX * EGROUP_UNITS * BLOCK) as u64;
        let emptied_max = if tight { EMPTIED_MAX_WHEN_FULL } else { EMPTIED_MAX };
        let look = if self.compaction.has_emptied(emptied_max, &self.map.directory, ctx.now) {
            Look { awaits_checkpoint: true, ..Look::default() }
        } else {
            self.look_elsewhere(data, is_raising, ctx)
        };
        self.factoring.short = look.short;
        if !self.checkpointing.is_running() {
            let ended = look.victims.is_empty() && look.awaits_checkpoint && self.factoring.moving.is_empty();
            let apart = CHECKPOINTS_US[usize::from(!is_raising)] * if is_busy { CHECKPOINTS_BUSY } else { 1 };
            let is_time = ctx.now >= self.factoring.checkpoint_begun.after(apart);
            self.factoring.checkpoint = is_time && (ended || pages);
        }
        if look.victims.is_empty() && !look.awaits_checkpoint && self.factoring.moving.is_empty() {
            return LOOK_AGAIN_US;
        }
        if look.victims.is_empty() || self.compaction.jobs.len() >= ctx.limits.compact_egroups_max {
            return PAUSE_US;
        }
        if self.room() == 0 {
            // What is left of the log is for what frees some of it.
            self.log.ask_for_room(ROOM_AGAIN_US, ctx);
            return ROOM_AGAIN_US;
        }
        if !is_raising && (!self.compaction.is_empty() || self.checkpointing.is_running()) {
            return PAUSE_US;
        }
        if is_raising && !self.has_budget_for(look.victims[0], ctx) {
            return PAUSE_US;
        }
        let packing = self.packing_of_moved(&look.victims);
        let source = self.nearest_copy(look.victims[0], &[], ctx);
        self.start_moving(look.victims, packing, Whereto::Anywhere, ctx);
        let job = self.compaction.last;
        self.factoring.moving.insert(job);
        if let Some(drive) = source.filter(|_| is_raising) {
            ctx.calls.budget.begin(self.family, MOVES | job, [drive, drive], ctx.now);
        }
        match () {
            // Somewhere there was no room for as much as this.
            () if self.compaction.units_max.get() < EGROUP_UNITS => 2 * LOOK_AGAIN_US,
            () if is_busy && !is_raising => PAUSE_LEISURELY_US,
            () => PAUSE_US,
        }
    }

    /// Whether the drive that will probably be read for this egroup has time for it beside its clients.
    fn has_budget_for(&self, egroup: EgroupId, ctx: &mut Context) -> bool {
        let source: Option<DriveId> = self.nearest_copy(egroup, &[], ctx);
        // Without any the job finds out, and leaves it alone for a while.
        source.is_none_or(|drive| ctx.calls.budget.admits([drive, drive], ctx.now))
    }

    /// Takes note of what has ended since the last look.
    fn end_moves(&mut self, ctx: &mut Context) {
        let jobs = &self.compaction.jobs;
        self.factoring.moving.retain(|job| jobs.contains_key(job));
        if !self.factoring.early.is_empty() {
            let unnamed: BTreeSet<EgroupId> = self.unnamed().collect();
            self.factoring.early.retain(|egroup| unnamed.contains(egroup));
        }
        let still = |task: u64| !is_move(task) || jobs.contains_key(&(task & !MOVES));
        ctx.calls.budget.keep(self.family, ctx.now, still);
        if !self.checkpointing.is_running() {
            // What was emptied and is still there has live units after all, as after a rollback.
            for egroup in std::mem::take(&mut self.factoring.emptied) {
                self.compaction.emptied.remove(&egroup);
            }
        }
    }

    /// A checkpoint begins: some of the pages that lie elsewhere go with it. Gives the egroups that they lie in.
    pub(crate) fn pages_to_take_along(&mut self, ctx: &Context) -> Vec<EgroupId> {
        if self.factoring.told {
            return Vec::new();
        }
        self.factoring.checkpoint = false;
        self.factoring.checkpoint_begun = ctx.now;
        self.factoring.emptied = self.compaction.emptied.clone();
        if planted(Bug::FactorWithoutPages) {
            return Vec::new();
        }
        let mut units = 0;
        let mut taken = Vec::new();
        for (&egroup, named) in &self.map.map_egroups {
            let live = self.map.index.live_units(egroup);
            if units > 0 && units + live > PAGES_AT_ONCE {
                break;
            }
            if ctx.members(named.group).len() != self.factor as usize && live > 0 {
                units += live;
                taken.push(egroup);
            }
        }
        taken
    }

    /// Groups with data in them and another number of members, those with fewer first.
    fn groups_of_other_size(&self, view: &View) -> Vec<GroupId> {
        let size = |group: GroupId| view.groups.get(&group).map_or(0, |group| group.members.len());
        let groups = self.map.directory.groups().map(|(group, _)| group);
        let mut others: Vec<GroupId> = groups.filter(|&group| size(group) != self.factor as usize).collect();
        others.sort_by_key(|&group| (size(group), group));
        others
    }

    /// Whether something has fewer copies than it should.
    fn is_raising(&self, view: &View) -> bool {
        let data = self.map.directory.groups().map(|(group, _)| group);
        let pages = self.map.map_egroups.values().map(|named| named.group);
        let size = |group: GroupId| view.groups.get(&group).map_or(0, |group| group.members.len());
        data.chain(pages).any(|group| size(group) < self.factor as usize)
    }

    fn has_pages_elsewhere(&self, view: &View) -> bool {
        let is_elsewhere = |group: GroupId| {
            view.groups.get(&group).is_none_or(|group| group.members.len() != self.factor as usize)
        };
        !planted(Bug::FactorWithoutPages)
            && self.map.map_egroups.values().any(|named| is_elsewhere(named.group))
    }

    /// Bytes, as one member holds them, in groups of another size.
    fn left_elsewhere(&self, view: &View) -> u64 {
        let is_elsewhere = |group: GroupId| {
            view.groups.get(&group).is_none_or(|group| group.members.len() != self.factor as usize)
        };
        let data = self.map.directory.groups().filter(|(group, _)| is_elsewhere(*group));
        let pages = self.map.map_egroups.values().filter(|named| is_elsewhere(named.group));
        let blocks = data.map(|(_, stored)| stored).sum::<u64>()
            + pages.map(|named| u64::from(named.stored)).sum::<u64>();
        blocks * BLOCK as u64
    }

    /// The next that fit into one egroup together.
    fn look_elsewhere(&self, groups: &[GroupId], is_raising: bool, ctx: &Context) -> Look {
        let mut look = Look::default();
        let (mut live, mut between) = (0, None);
        let pool = self.placing.pool() / 2 / BLOCK as u64;
        let room = match (is_raising, self.placing.is_full()) {
            // More copies take space for good: none of the reserve.
            (true, true) => 0,
            (true, false) => pool.min(EGROUP_UNITS as u64) as usize,
            (false, _) => EGROUP_UNITS,
        };
        let most = room.min(self.compaction.units_max.get());
        let directory = &self.map.directory;
        let names = groups.iter().flat_map(|&group| directory.in_group(group)).take(NAMES);
        let mut looks = 0;
        for egroup in names {
            let entry = directory.get(egroup).expect("it was just listed");
            look.awaits_checkpoint |= entry.live == 0
                || self.map.fresh.contains(&egroup)
                || self.compaction.emptied.contains(&egroup);
            // Many that nobody can read are not to be in the way of those behind them.
            if self.compaction.avoids(egroup) {
                continue;
            }
            looks += 1;
            if looks > LOOKS {
                break;
            }
            let after = self.snapshot_before(entry.generation);
            if !self.may_be_victim(egroup, entry) || between.is_some_and(|between| between != after) {
                continue;
            }
            // What found no room once may have some by now, and only trying finds that out.
            let again = look.victims.is_empty() && ctx.now >= self.compaction.no_room_until;
            let most = if again { room } else { most };
            if entry.live as usize > most {
                look.short = true;
                continue;
            }
            // One that is too full to be packed is better moved less packed than left.
            let too_many = live + entry.live as usize > units_max(self.compression).min(most);
            let too_far = !look.victims.is_empty()
                && ctx.members(directory.get(look.victims[0]).expect("it was listed").group).len()
                    != ctx.members(entry.group).len();
            if !look.victims.is_empty() && (too_many || too_far) || look.victims.len() == VICTIMS_MAX {
                break;
            }
            between = Some(after);
            live += entry.live as usize;
            look.victims.push_back(egroup);
        }
        look
    }

    /// Whether everything has as many copies as it should, as far as anybody can know.
    fn has_reached(&mut self, ctx: &Context) -> bool {
        self.factoring.early.is_empty()
            && self.factoring.moving.is_empty()
            && (self.log.has_factor() || planted(Bug::FactorWithoutLog))
            && self.log.members().all(|drive| ctx.is_up(drive))
            && !self.log.is_thin(ctx.view)
            && (self.groups_are_whole(ctx.view) || planted(Bug::FactorUnseen))
    }

    /// Whether every member of the groups in use was found to have everything.
    fn groups_are_whole(&self, view: &View) -> bool {
        let data = self.map.directory.groups().map(|(group, _)| group);
        let pages = self.map.map_egroups.values().map(|named| named.group);
        let used: BTreeSet<GroupId> = data.chain(pages).collect();
        used.iter().all(|group| view.groups.get(group).is_some_and(|group| self.audit.is_whole(group)))
    }
}
