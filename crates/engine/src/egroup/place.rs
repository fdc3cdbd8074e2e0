//! Placing egroups: has all members of a group write the egroup, and says when it may be named.
//! Promises: it is packed once, and stored alike on all members; an egroup is handed on only when every member has flushed it (I4);
//! what is moved has no fewer copies there than where it comes from, as far as drives may come back, and client data as many as it
//! can have (decision 0053); what was begun elsewhere and given up is deleted; when no group has room for client data the pool counts
//! as full until that changes; no name is given out twice, also not after a refusal: the question may be on its way somewhere once more.
//! Leaves to others: which group (`egroup/groups.rs`); naming it in a map record (`drain`, `volume/bypass.rs`, `curator`), pages (`map/checkpoint.rs`).

use super::groups::{Copies, choose, expected_copies, is_room_away, roomiest};
use super::pack::Packer;
use super::placing::Job;
use super::shortage::Shortage;
use super::units::{Units, fitting};
use crate::buffer::BLOCK;
use crate::context::{Context, Purpose};
use crate::curator::moves::Whereto;
use crate::drain::UNITS_LEAST;
use crate::formats::recipe::Recipe;
use crate::formats::record::{Body, Edit, MapRecord, NamedEgroup};
use crate::identity::{DriveId, EgroupId, Generation, GroupId, Time};
use crate::interface::Compression;
use crate::message::{Answer, Class, Content, Lacking, Question, Refusal};
use crate::sabotage::{Bug, planted};
use crate::shard::step_at;
use crate::volume::{Volume, Waiter};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What an egroup is for, and what is done when it is placed.
#[derive(Debug)]
pub(crate) enum Intent {
    Drain {
        generation: Generation,
        edits: Vec<Edit>,
    },
    Bypass {
        edits: Vec<Edit>,
        locks: Vec<u64>,
    },
    /// `from`: where the units are moved from.
    Compact {
        generation: Generation,
        job: u64,
        packing: Compression,
        whereto: Whereto,
        from: Vec<EgroupId>,
    },
    Pages,
}

/// What has nowhere to go tries again after so long.
const AGAIN_US: u64 = 50_000;
/// What stays in the log is looked at with all else that happens to its vDisk, and at the latest after this.
const PUT_OFF_US: u64 = 1_000_000;
/// Pages that found no room so often, within a second, go in small pieces.
const WAITS_MAX: u32 = 20;
/// Bytes kept between what is in the log and what the pool can take: for the small egroups of a slow drain.
const POOL_SLACK: u64 = 1 << 20;

/// So long after a refusal client data is tried again.
const PROBE_AGAIN_US: u64 = 200_000;

/// A pool that has been full for so long without getting better is taken for really full.
const RECLAIM_PATIENCE_US: u64 = 3_000_000;

/// The same where a member is away without which there would be room: it may only be started again.
const MEMBER_PATIENCE_US: u64 = 30_000_000;

/// Bytes that the emptiest group has to have for what the log holds. (Twice that, because other shards fill the same drives,
/// and egroups have headers.)
fn pool_wanted(ctx: &Context) -> u64 {
    2 * ctx.dirty_bytes + POOL_SLACK
}

/// Planted bugs.
fn is_space_not_asked() -> bool {
    [Bug::SpaceNotAsked, Bug::PoolOfLastTime, Bug::OwnReclaimingOnly].into_iter().any(planted)
}

impl Volume {
    /// Compares what the log holds with what the pool can take.
    pub(crate) fn note_pool(&mut self, ctx: &Context) {
        if self.placing.pool_known != Some(ctx.free_changes) {
            self.placing.pool_known = Some(ctx.free_changes);
            let pool = roomiest(self.factor as usize, ctx);
            if pool > self.placing.pool && !planted(Bug::OwnReclaimingOnly) {
                // Somebody deletes, perhaps on another node: more may follow.
                self.placing.expecting_until = ctx.now.after(RECLAIM_PATIENCE_US);
            }
            self.placing.pool = pool;
        }
        // Nothing is left that could find out by being drained: what is let in next will.
        if self.overlay.is_empty() && ctx.now >= self.placing.probe_at && !planted(Bug::FullForEver) {
            self.placing.full_since = None;
        }
        self.placing.short = self.is_pool_short(ctx);
        if !self.placing.is_full() {
            self.placing.shortage = None;
            return;
        }
        let (pool, dirty) = (self.placing.pool, ctx.dirty_bytes);
        self.placing.shortage.get_or_insert(Shortage::new(ctx.now, pool, dirty)).note(ctx.now, pool, dirty);
    }

    /// Whether what the log holds would about fill the pool.
    pub(crate) fn is_pool_short(&self, ctx: &Context) -> bool {
        self.placing.pool < pool_wanted(ctx)
    }

    /// Whether pool and log have room for a small write, going by what drives said last and not by what this vDisk knows of it.
    pub(crate) fn has_room(&self, ctx: &Context) -> bool {
        let pool = roomiest(self.factor as usize, ctx);
        // A vDisk need not know of less than a step.
        let is_pool_short = pool < pool_wanted(ctx).saturating_add(step_at(pool));
        !self.placing.was_refused() && !is_pool_short && self.room() >= 2 * BLOCK as u64
    }

    /// Somebody wants to write, and the pool has no room as far as anybody has told. But drives tell it with their answers only, and what
    /// others delete, or is free a while after it was deleted, comes with none: who has nothing to ask them would never hear of it.
    pub(crate) fn ask_for_space(&mut self, ctx: &mut Context) {
        let is_bare = (self.placing.is_full() || self.is_pool_short(ctx)) && !self.is_room_being_made(ctx);
        self.placing.bare_since = is_bare.then(|| self.placing.bare_since.unwrap_or(ctx.now));
        if !is_bare || !ctx.space_asked.is_due(ctx.now) || is_space_not_asked() {
            return;
        }
        let drives = ctx.view.drives.keys().copied().filter(|drive| ctx.is_up(*drive)).collect();
        for drive in ctx.space_asked.ask(drives, ctx.now) {
            // The shortest of all lists.
            let question = Question::ListEgroups { after: EgroupId(u64::MAX) };
            ctx.ask(self.family, self.epoch, drive, question, Purpose::Space);
        }
    }

    /// Whether the pool may have room again soon: then what has waited since `waits_since`, if it has, waits a little more instead of failing.
    pub(crate) fn is_room_coming(&self, waits_since: Option<Time>, ctx: &Context) -> bool {
        let since = waits_since.zip(self.placing.bare_since).map(|(waits, bare)| waits.max(bare));
        let bare_us = since.map_or(0, |since| ctx.now.since(since));
        let may_be_told = ctx.space_asked.may_be_told(ctx.now, bare_us) && !is_space_not_asked();
        may_be_told || self.is_room_being_made(ctx)
    }

    /// Whether somebody is at work that makes room, and has not been for long without any coming of it.
    fn is_room_being_made(&self, ctx: &Context) -> bool {
        // Twice what waits to be drained counts as taken. Some of it is other families', who begin at an age.
        let drains = !self.placing.was_refused() && ctx.dirty_bytes > 0 && !planted(Bug::OwnReclaimingOnly);
        let patience_us = RECLAIM_PATIENCE_US + if drains { ctx.limits.drain_age_us } else { 0 };
        let lasts_less_than = |patience_us: u64| {
            self.placing.shortage.is_none_or(|shortage| ctx.now.since(shortage.better_at()) < patience_us)
        };
        let reclaims = self.map.units_since_cut > 0 || self.checkpointing.is_running();
        let is_coming = drains || reclaims || ctx.now < self.placing.expecting_until;
        if is_coming && lasts_less_than(patience_us) {
            return true;
        }
        // Room that is there and may not be used without a member comes when that is back, if it is about to.
        lasts_less_than(MEMBER_PATIENCE_US) && is_room_away(self.factor as usize, pool_wanted(ctx), ctx)
    }

    /// Writes `units` to a group. The intent tells what follows.
    pub(crate) fn place(&mut self, units: Units, class: Class, intent: Intent, ctx: &mut Context) -> u64 {
        self.placing.last += 1;
        let number = self.placing.last;
        let mut job = Job {
            egroup: EgroupId::default(),
            group: GroupId::default(),
            class,
            units,
            recipe: Recipe::PLAIN,
            packer: None,
            content: Content::Units(Vec::new()),
            intent,
            waiting: BTreeSet::new(),
            written: BTreeSet::new(),
            tried: BTreeSet::new(),
            refused: false,
            again_at: None,
            put_off: false,
            waits: 0,
        };
        if job.units.is_empty() {
            // Nothing but zeros: there is nothing to write, only to name.
            self.placing.jobs.insert(number, job);
            self.on_placed(number, ctx);
            return number;
        }
        // Pages of the map are read more often than anything else, and are small.
        let packing = match job.intent {
            _ if job.units.are_lost => None,
            Intent::Pages => None,
            Intent::Compact { packing, .. } => Some(packing),
            Intent::Drain { .. } | Intent::Bypass { .. } => Some(self.compression),
        };
        job.recipe = packing.map_or(Recipe::PLAIN, Recipe::of);
        job.packer =
            packing.and_then(|packing| Packer::new(fitting(packing, job.units.len()), self.placing.misses));
        if job.packer.is_some() {
            self.placing.jobs.insert(number, job);
            self.continue_packing(ctx);
        } else {
            job.content = job.units.content();
            self.send(number, job, ctx);
        }
        number
    }

    /// There is something to be packed, and nothing to be waited for.
    pub fn is_packing(&self) -> bool {
        self.placing.is_packing()
    }

    /// Packs one slice of the oldest egroup that is not packed yet. Only one at a time: clients have their turn between.
    pub(crate) fn continue_packing(&mut self, ctx: &mut Context) {
        if self.placing.packed_at == Some(ctx.now) {
            return;
        }
        let Some((&number, job)) = self.placing.jobs.iter_mut().find(|(_, job)| job.packer.is_some()) else {
            return;
        };
        self.placing.packed_at = Some(ctx.now);
        let packer = job.packer.as_mut().expect("it was just found");
        if !packer.advance(&job.units) {
            return;
        }
        let mut job = self.placing.jobs.remove(&number).expect("it was just found");
        let packer = job.packer.take().expect("it was just seen");
        self.placing.misses = packer.misses();
        job.content = packer.finish(&job.units, ctx.counters);
        ctx.counters.pack_bytes_in += (job.units.len() * BLOCK) as u64;
        ctx.counters.pack_bytes_out += (job.content.blocks() * BLOCK) as u64;
        self.send(number, job, ctx);
    }

    fn send(&mut self, number: u64, mut job: Job, ctx: &mut Context) {
        job.waiting.clear();
        job.written.clear();
        job.refused = false;
        (job.again_at, job.put_off) = (None, false);
        let leaves = match &job.intent {
            Intent::Drain { .. } => !self.stays_in_log(ctx),
            Intent::Pages => !self.stays_in_log(ctx) || planted(Bug::PagesForLess),
            Intent::Bypass { .. } => !self.is_bypass_thin(),
            Intent::Compact { .. } => true,
        };
        if !leaves {
            return self.put_off(number, job, ctx);
        }
        let forgotten = planted(Bug::FactorWithoutPages) && matches!(job.intent, Intent::Pages);
        let factor = if forgotten { 1 } else { self.factor as usize };
        let copies = self.copies_needed(&job, ctx);
        let chosen = choose(factor, copies, &job.tried, ctx);
        let Some(group) = chosen.filter(|&group| job.may_go_to(group, ctx)) else {
            return self.on_no_group(number, job, ctx);
        };
        self.placing.counter += 1;
        job.egroup = EgroupId::new(self.placing.epoch, self.placing.counter);
        job.group = group;
        let members: Vec<DriveId> =
            ctx.members(group).iter().copied().filter(|&drive| ctx.is_up(drive)).collect();
        for drive in members {
            job.waiting.insert(drive);
            let question = Question::WriteEgroup {
                egroup: job.egroup,
                class: job.class,
                content: job.content.clone(),
                blocks: job.units.blocks.clone(),
                replace: false,
                sharing: job.sharing(),
                lacking: Lacking::default(),
            };
            ctx.ask(self.family, self.epoch, drive, question, Purpose::Place(number));
        }
        self.placing.jobs.insert(number, job);
    }

    /// How many copies it must get at once, because others go for it: those of the log, of a page, or of what is moved.
    fn copies_needed(&self, job: &Job, ctx: &Context) -> Copies {
        match &job.intent {
            Intent::Drain { .. } | Intent::Bypass { .. } if planted(Bug::ThinDrains) => Copies::AtLeast(1),
            Intent::Drain { .. } | Intent::Bypass { .. } => Copies::Most,
            Intent::Compact { .. } if planted(Bug::ThinMoves) => Copies::AtLeast(1),
            Intent::Compact { .. } if self.compaction.goes_without(self.placing.is_full(), ctx.now) => {
                Copies::Most
            }
            Intent::Compact { from, .. } => {
                let groups =
                    from.iter().filter_map(|&egroup| ctx.view.groups.get(&self.map.group_of(egroup)?));
                let there = groups.map(|group| expected_copies(group, ctx.view)).max().unwrap_or(0);
                Copies::AtLeast(there.min(self.factor as usize))
            }
            // Where they find no room for long nothing goes on without them, not even what makes room.
            Intent::Pages if job.waits >= WAITS_MAX => Copies::AtLeast(1),
            Intent::Pages => Copies::Most,
        }
    }

    /// It has more copies where it is; what has been acknowledged waits there for members, and what has not goes there.
    fn put_off(&mut self, number: u64, mut job: Job, ctx: &mut Context) {
        if matches!(job.intent, Intent::Bypass { .. }) {
            return self.on_place_refused(job, ctx);
        }
        job.tried.clear();
        (job.again_at, job.put_off) = (Some(ctx.now.after(PUT_OFF_US)), true);
        self.placing.jobs.insert(number, job);
    }

    fn on_no_group(&mut self, number: u64, mut job: Job, ctx: &mut Context) {
        let no_room = !job.tried.is_empty();
        if matches!(job.class, Class::Data | Class::Pressed) && no_room {
            return self.on_place_refused(job, ctx);
        }
        if let Intent::Compact { job: number, whereto, .. } = job.intent {
            // Nobody needs it now.
            match whereto {
                Whereto::Anywhere if !no_room => self.compaction.found_no_members(ctx.now),
                Whereto::Anywhere => self.compaction.found_no_room(job.units.len(), ctx.now),
                Whereto::Here => self.following.found_no_place(ctx.now),
            }
            return self.abandon_compaction(number, ctx);
        }
        if matches!(job.intent, Intent::Pages)
            && no_room
            && let Some(stay) = self.split_pages(number, &job.units, job.waits >= WAITS_MAX, ctx)
        {
            job.units.data.truncate(stay);
            job.units.blocks.truncate(stay);
            job.content = Content::Units(job.units.data.clone());
            job.tried.clear();
            return self.send(number, job, ctx);
        }
        // Pages have nowhere else to go: they wait until something is deleted or a drive is up.
        job.tried.clear();
        job.again_at = Some(ctx.now.after(AGAIN_US));
        job.waits += u32::from(no_room);
        self.placing.jobs.insert(number, job);
    }

    /// Jobs that found no group try again.
    pub(crate) fn retry_placing(&mut self, ctx: &mut Context) {
        let leaves = self.placing.jobs.values().any(|job| job.put_off) && !self.stays_in_log(ctx);
        let due: Vec<u64> = self
            .placing
            .jobs
            .iter()
            .filter(|(_, job)| job.again_at.is_some_and(|at| at <= ctx.now || leaves && job.put_off))
            .map(|(&number, _)| number)
            .collect();
        for number in due {
            let job = self.placing.jobs.remove(&number).expect("it was just found");
            self.send(number, job, ctx);
        }
    }

    pub(crate) fn on_egroup_written(
        &mut self,
        number: u64,
        drive: DriveId,
        answer: Result<Answer, Refusal>,
        ctx: &mut Context,
    ) {
        let Some(job) = self.placing.jobs.get_mut(&number) else { return };
        if !job.waiting.remove(&drive) {
            return;
        }
        match answer {
            Ok(_) => {
                job.written.insert(drive);
            }
            Err(refusal) => {
                job.refused = true;
                if refusal == Refusal::NoSpace {
                    let group = job.group;
                    job.tried.insert(group);
                }
            }
        }
        if planted(Bug::MapBeforeData) && !job.refused {
            job.written.append(&mut job.waiting);
        }
        if !job.waiting.is_empty() {
            return;
        }
        if !job.refused {
            ctx.counters.egroups_written += 1;
            if job.class == Class::Data {
                self.placing.full_since = None;
            }
            return self.on_placed(number, ctx);
        }
        let job = self.placing.jobs.remove(&number).expect("it was just found");
        self.forget_written(&job, Purpose::TakeBack, ctx);
        self.send(number, job, ctx);
    }

    /// Copies exist under a name that will never be used: they go.
    fn forget_written(&self, job: &Job, purpose: Purpose, ctx: &mut Context) {
        for &drive in &job.written {
            let question = Question::DeleteEgroups { egroups: vec![job.egroup] };
            ctx.ask(self.family, self.epoch, drive, question, purpose);
        }
    }

    /// All members have it.
    fn on_placed(&mut self, number: u64, ctx: &mut Context) {
        let job = self.placing.jobs.remove(&number).expect("a placed egroup has a job");
        if let Intent::Bypass { edits, locks } = &job.intent
            && !self.may_name_bypass(edits)
        {
            self.forget_written(&job, Purpose::Forget, ctx);
            return self.take_back_bypass(locks.clone(), ctx);
        }
        let (units, stored) = (job.units.len() as u32, job.content.blocks() as u32);
        let generation = match job.intent {
            Intent::Drain { generation, .. } | Intent::Compact { generation, .. } => generation,
            // Nothing older is dirty there, or it would not be named.
            Intent::Bypass { .. } => self.snapshots.next(),
            Intent::Pages => self.snapshots.present,
        };
        let (egroup, group, recipe) = (job.egroup, job.group, job.recipe);
        let named = (units > 0).then_some(NamedEgroup { egroup, group, units, stored, recipe, generation });
        if named.is_some() {
            if job.written.len() < ctx.members(group).len() {
                self.note_thin(egroup, ctx);
            }
            self.repacking.note_use(egroup, ctx.now);
            self.placing.written.insert(job.egroup, job.written);
        }
        if let Intent::Drain { edits, .. } | Intent::Bypass { edits, .. } = &job.intent
            && (units > 0 || matches!(job.intent, Intent::Bypass { .. }))
        {
            // Beside data, and around the log, these are blocks of zeros in writes; what was trimmed is named by itself.
            let zeroes = edits.iter().filter(|edit| edit.unit.is_none());
            self.zero_blocks += zeroes.map(|edit| edit.count).sum::<u64>();
        }
        match job.intent {
            Intent::Drain { edits, .. } => {
                ctx.counters.units_drained += u64::from(units);
                self.drain.on_placed();
                let edits = self.still_newest(generation, &edits);
                if named.is_none() && edits.is_empty() {
                    return;
                }
                self.push_map(MapRecord { generation, named, edits, moves: Vec::new() }, Waiter::Drain);
            }
            Intent::Bypass { edits, locks } => {
                let waiter = self.on_bypass_placed(locks);
                self.push_map(MapRecord { generation, named, edits, moves: Vec::new() }, waiter);
            }
            Intent::Compact { job, .. } => self.on_compact_placed(job, named),
            Intent::Pages => {
                let named = named.expect("pages take units");
                self.on_pages_placed(number, named, ctx);
            }
        }
    }

    pub(crate) fn push_map(&mut self, map: MapRecord, waiter: Waiter) {
        // Data first, then the record that names it: the egroup is flushed on all members by now. A cut in
        // between leaves unnamed bytes, which the audit frees.
        let seq = self.log.push(Body::Map(Arc::new(map)));
        self.waiters.insert(seq, waiter);
    }

    /// No group has room for it.
    fn on_place_refused(&mut self, job: Job, ctx: &mut Context) {
        let Job { class, units, intent, content, .. } = job;
        match intent {
            Intent::Drain { generation, edits } => {
                // A pool in pieces has no run of this length, and is not full for that: smaller ones are tried at once.
                let bytes = (content.blocks() * BLOCK) as u64;
                let in_pieces = units.len() > UNITS_LEAST && self.placing.pool >= 2 * bytes + POOL_SLACK;
                if !in_pieces {
                    self.placing.full_since.get_or_insert(ctx.now);
                    if class == Class::Data {
                        self.placing.probe_at = ctx.now.after(PROBE_AGAIN_US);
                    }
                }
                let again_at = if in_pieces { ctx.now } else { ctx.now.after(PROBE_AGAIN_US) };
                self.on_drain_refused(generation, edits, class, again_at);
            }
            Intent::Bypass { locks, .. } => self.on_bypass_refused(locks, ctx),
            Intent::Compact { .. } | Intent::Pages => unreachable!("what uses the reserve waits"),
        }
    }
}
