//! One engine on one core: hands every input to the keeper or volume it concerns, and runs what follows from it.
//! Promises: a step leaves nothing half-done inside; questions to an own drive are answered without leaving.
//! Leaves to others: everything else.

mod orders;
#[cfg(test)]
mod tests;

use crate::cache::Cache;
use crate::context::{Calls, Context, Draw, Purpose, earlier};
use crate::counters::Counters;
use crate::egroup::asked::SpaceAsked;
use crate::identity::{DriveId, FamilyId, ShardId, Time};
use crate::interface::{
    Census, DriveFault, DriveResult, FactorProgress, Input, Notice, Outputs, Reply, RequestError, View,
};
use crate::keeper::{Effects, Keeper, Tally};
use crate::limits::Limits;
use crate::message::{Answer, Message, Refusal};
use crate::openings::{Ended, Openings};
use crate::volume::Volume;
use orders::Dropping;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A drive's free space counts as changed when it has crossed a multiple of so many bytes, or there is none any more. Far less
/// than what is kept between a pool and what is on its way there. Of a drive with much space the steps are larger.
const FREE_STEP: u64 = 128 << 10;

/// Which step of free space it is: one of 128 KiB below 8 MiB, a sixty-fourth to a thirty-second of the whole above.
fn coarse(free: u64) -> (u32, u64) {
    let steps = free.div_ceil(FREE_STEP);
    let dropped = (u64::BITS - steps.leading_zeros()).saturating_sub(6);
    (dropped, steps >> dropped)
}

/// No step of free space of about so many bytes is larger.
pub(crate) fn step_at(free: u64) -> u64 {
    FREE_STEP.max(free / 32)
}

/// Families that are written to are counted so often.
const WRITERS_COUNTED_US: u64 = 20_000;

#[derive(Debug, Clone)]
pub struct Settings {
    pub shard: ShardId,
    /// Differs between the lives of a shard; all that looks random follows from it.
    pub seed: u64,
    pub limits: Limits,
}

/// What all volumes of a shard share.
struct World {
    shard: ShardId,
    limits: Limits,
    view: View,
    calls: Calls,
    free: BTreeMap<DriveId, u64>,
    free_changes: u64,
    space_asked: SpaceAsked,
    dirty_bytes: u64,
    /// Families that were written to lately, as counted then.
    writers: usize,
    writers_counted: Time,
    /// When a client last asked for something of any family.
    last_asked: Time,
    draw: Draw,
    counters: Counters,
    cache: Cache,
    local: VecDeque<Message>,
}

impl World {
    fn context<'a>(&'a mut self, now: Time, out: &'a mut Outputs) -> Context<'a> {
        Context {
            now,
            shard: self.shard,
            limits: &self.limits,
            view: &self.view,
            calls: &mut self.calls,
            free: &self.free,
            free_changes: self.free_changes,
            space_asked: &mut self.space_asked,
            dirty_bytes: self.dirty_bytes,
            writers: self.writers,
            last_asked: self.last_asked,
            draw: &mut self.draw,
            counters: &mut self.counters,
            cache: &mut self.cache,
            out,
            local: &mut self.local,
        }
    }
}

pub struct Shard {
    world: World,
    keepers: BTreeMap<DriveId, Keeper>,
    openings: Openings,
    volumes: BTreeMap<FamilyId, Volume>,
    dropping: BTreeMap<FamilyId, Dropping>,
    census: Census,
    /// Volumes that something happened to.
    touched: BTreeSet<FamilyId>,
    /// When each volume wants to go on by itself.
    wakes: BTreeSet<(Time, FamilyId)>,
    wake_of: BTreeMap<FamilyId, Time>,
    effects: Effects,
}

impl Shard {
    pub fn new(settings: Settings) -> Self {
        let Settings { shard, seed, limits } = settings;
        limits.check();
        let cache = Cache::new(limits.cache_bytes);
        Self {
            world: World {
                shard,
                limits,
                view: View::default(),
                // Calls of different lives of a shard must not be taken for each other.
                calls: Calls::new(Draw::new(seed).number() & 0xff_ffff),
                free: BTreeMap::new(),
                free_changes: 0,
                space_asked: SpaceAsked::default(),
                dirty_bytes: 0,
                writers: 0,
                writers_counted: Time(0),
                last_asked: Time(0),
                draw: Draw::new(seed),
                counters: Counters::default(),
                cache,
                local: VecDeque::new(),
            },
            keepers: BTreeMap::new(),
            openings: Openings::default(),
            volumes: BTreeMap::new(),
            dropping: BTreeMap::new(),
            census: Census::default(),
            touched: BTreeSet::new(),
            wakes: BTreeSet::new(),
            wake_of: BTreeMap::new(),
            effects: Effects::default(),
        }
    }

    /// What its drives and vDisks are at, a line each, for people who wonder why something stands still.
    pub fn describe(&self) -> String {
        let drives =
            self.keepers.iter().map(|(drive, keeper)| format!("drive {drive}: {}", keeper.describe()));
        let families =
            self.volumes.iter().map(|(family, volume)| format!("family {family}: {}", volume.describe()));
        drives.chain(families).collect::<Vec<_>>().join("\n")
    }

    /// Something happened. All that follows from it now is done, and the rest is in `out`.
    pub fn step(&mut self, now: Time, input: Input, out: &mut Outputs) {
        self.take(now, input, out);
        self.settle(now, out);
    }

    /// Something happened, and more comes at once: what follows is left to [`Self::settle`]. Writes that come
    /// together so leave together, in one frame of the log.
    pub fn take(&mut self, now: Time, input: Input, out: &mut Outputs) {
        match input {
            Input::Request { ticket, family, request } => {
                if self.volumes.contains_key(&family) {
                    self.count_writers(now);
                    self.world.last_asked = now;
                    self.with_volume(now, family, out, |volume, ctx| volume.on_request(ticket, request, ctx));
                    self.touched.insert(family);
                } else {
                    out.replies.push((ticket, Reply::Error(RequestError::NotServed)));
                }
            }
            Input::DriveDone { token, result } => self.on_drive_done(now, token, result, out),
            Input::Message { from, message } => self.on_message(now, from, message, out),
            Input::Unheard { shard } => self.on_unheard(now, shard, out),
            Input::Told { family, ask, reply } => {
                // One that was given up has answered its clients already.
                if self.volumes.get(&family).is_some_and(|volume| !volume.is_failed()) {
                    self.with_volume(now, family, out, |volume, ctx| volume.on_told(ask, reply, ctx));
                    self.touched.insert(family);
                }
            }
            Input::Order(order) => self.on_order(now, order, out),
            Input::Wake => self.on_wake(now, out),
        }
    }

    /// The earliest time at which [`Input::Wake`] is wanted.
    pub fn wake_at(&self) -> Option<Time> {
        if !self.is_settled() {
            // Something was taken and is not settled.
            return Some(Time(0));
        }
        let mut wish = self.world.calls.wake_at();
        if let Some((at, _)) = self.wakes.first() {
            wish = earlier(wish, *at);
        }
        for keeper in self.keepers.values() {
            if let Some(at) = keeper.wake_at() {
                wish = earlier(wish, at);
            }
        }
        wish
    }

    pub fn keeper(&self, drive: DriveId) -> Option<&Keeper> {
        self.keepers.get(&drive)
    }

    pub fn keepers(&self) -> impl Iterator<Item = (DriveId, &Keeper)> {
        self.keepers.iter().map(|(&drive, keeper)| (drive, keeper))
    }

    pub fn volume(&self, family: FamilyId) -> Option<&Volume> {
        self.volumes.get(&family)
    }

    pub fn volumes(&self) -> impl Iterator<Item = (FamilyId, &Volume)> {
        self.volumes.iter().map(|(&family, volume)| (family, volume))
    }

    /// What it was told last of drives and groups.
    pub fn view(&self) -> &View {
        &self.world.view
    }

    /// How far the copies of a family are what they should be; None: it is not served here.
    pub fn factor_progress(&self, family: FamilyId, now: Time) -> Option<FactorProgress> {
        let volume = self.volumes.get(&family).filter(|volume| volume.is_serving())?;
        Some(volume.factor_progress(&self.world.view, now))
    }

    pub fn counters(&self) -> &Counters {
        &self.world.counters
    }

    pub fn cache(&self) -> &Cache {
        &self.world.cache
    }

    /// No question is open and no volume has anything under way.
    pub fn is_quiet(&self) -> bool {
        self.world.calls.is_empty() && self.dropping.is_empty() && self.volumes.values().all(Volume::is_quiet)
    }

    /// Whether a small write to this vDisk would find room in pool and log, as far as drives have told. For judges: it looks at all
    /// groups.
    pub fn has_room(&mut self, family: FamilyId) -> bool {
        let free = self.world.free.clone();
        self.would_have_room(family, &free)
    }

    /// The same, if the drives had told of this.
    pub fn would_have_room(&mut self, family: FamilyId, free: &BTreeMap<DriveId, u64>) -> bool {
        let mut out = Outputs::default();
        let ctx = Context { free, ..self.world.context(Time(0), &mut out) };
        self.volumes.get(&family).is_some_and(|volume| volume.has_room(&ctx))
    }

    /// Whether all has come of what was taken in with [`Self::take`].
    pub fn is_settled(&self) -> bool {
        self.touched.is_empty() && self.world.local.is_empty()
    }

    /// Runs messages to ourselves and volumes that were touched, until nothing is left.
    pub fn settle(&mut self, now: Time, out: &mut Outputs) {
        loop {
            while let Some(message) = self.world.local.pop_front() {
                let own = self.world.shard;
                self.on_message(now, own, message, out);
            }
            let Some(family) = self.touched.pop_first() else {
                if self.world.local.is_empty() {
                    return;
                }
                continue;
            };
            self.with_volume(now, family, out, Volume::advance);
            if let Some(volume) = self.volumes.get(&family) {
                let wish = volume.wake_at(now);
                // A wish for the past would be granted again and again without time passing. Whoever packs works in slices so
                // that others have their turn, not because there is something to wait for.
                let earliest = now.after(if volume.is_packing() { 1 } else { 100 });
                self.note_wake(family, wish.map(|at| at.max(earliest)));
            }
        }
    }

    /// Lends a volume, if it is here, together with what all volumes share, and counts what that did to the bytes that
    /// are not drained.
    fn with_volume(
        &mut self,
        now: Time,
        family: FamilyId,
        out: &mut Outputs,
        lend: impl FnOnce(&mut Volume, &mut Context),
    ) {
        let Some(volume) = self.volumes.get_mut(&family) else { return };
        let before = volume.undrained_bytes();
        let mut ctx = self.world.context(now, out);
        volume.see_view(&mut ctx);
        lend(volume, &mut ctx);
        volume.let_go_if_failed();
        self.world.dirty_bytes = self.world.dirty_bytes + volume.undrained_bytes() - before;
    }

    /// Now and then: a shard may have thousands of volumes.
    fn count_writers(&mut self, now: Time) {
        if now.since(self.world.writers_counted) >= WRITERS_COUNTED_US {
            self.world.writers_counted = now;
            self.world.writers = self.volumes.values().filter(|volume| volume.is_written_to(now)).count();
        }
    }

    fn note_wake(&mut self, family: FamilyId, wish: Option<Time>) {
        let before = match wish {
            Some(at) => self.wake_of.insert(family, at),
            None => self.wake_of.remove(&family),
        };
        if before == wish {
            return;
        }
        if let Some(at) = before {
            self.wakes.remove(&(at, family));
        }
        if let Some(at) = wish {
            self.wakes.insert((at, family));
        }
    }

    fn on_drive_done(
        &mut self,
        now: Time,
        token: u64,
        result: Result<DriveResult, DriveFault>,
        out: &mut Outputs,
    ) {
        let drive = match self.openings.ended(token) {
            Ended::Own(drive) => drive,
            // What became of it concerns nobody, but somebody may wait for its end.
            Ended::Closed(drive) => {
                if let Some(wish) = self.openings.may_open(drive) {
                    self.open_drive(now, drive, wish, out);
                }
                return;
            }
            Ended::Unknown => return,
        };
        let keeper = self.keepers.get_mut(&drive).expect("an opening has a keeper");
        keeper.on_drive_done(now, token, result, &mut self.effects);
        self.take_effects(now, out);
    }

    fn on_message(&mut self, now: Time, from: ShardId, message: Message, out: &mut Outputs) {
        match message {
            Message::Ask { call, drive, family, epoch, question } => {
                let Some(keeper) = self.keepers.get_mut(&drive) else {
                    let answer =
                        Message::Answer { call, drive, family, free: 0, answer: Err(Refusal::DriveGone) };
                    return self.send(from, answer, out);
                };
                keeper.on_ask(now, from, call, family, epoch, question, &mut self.effects);
                self.take_effects(now, out);
            }
            Message::Answer { call, drive, family: _, free, answer } => {
                if answer.is_ok() {
                    let before = self.world.free.insert(drive, free);
                    // Whoever looks at all groups need not do so for every few blocks.
                    self.world.free_changes += u64::from(before.map(coarse) != Some(coarse(free)));
                }
                self.on_answer(now, call, answer, out);
            }
            Message::Press { drive: _, family, seq } => {
                if let Some(volume) = self.volumes.get_mut(&family) {
                    volume.on_pressed(seq);
                    self.touched.insert(family);
                }
            }
        }
    }

    fn on_answer(&mut self, now: Time, call: u64, answer: Result<Answer, Refusal>, out: &mut Outputs) {
        let World { calls, view, limits, .. } = &mut self.world;
        let Some(answered) = calls.take(call, answer, view, now, limits.call_retry_us) else { return };
        let family = answered.family;
        if answered.purpose == Purpose::Drop {
            return self.on_dropped(now, family, answered.drive, answered.answer, out);
        }
        if self.volumes.get(&family).is_some_and(|volume| !volume.is_failed()) {
            self.with_volume(now, family, out, |volume, ctx| volume.on_answer(answered, ctx));
            self.touched.insert(family);
        }
    }

    fn send(&mut self, to: ShardId, message: Message, out: &mut Outputs) {
        if to == self.world.shard {
            self.world.local.push_back(message);
        } else {
            out.messages.push((to, message));
        }
    }

    /// What keepers want done.
    fn take_effects(&mut self, now: Time, out: &mut Outputs) {
        for operation in &self.effects.operations {
            self.openings.begins(operation);
        }
        out.operations.append(&mut self.effects.operations);
        let Tally { frames_unpacked, map_hits, map_misses, bytes_hashed, bytes_shared } =
            std::mem::take(&mut self.effects.tally);
        let counters = &mut self.world.counters;
        counters.frames_unpacked += frames_unpacked;
        counters.egroup_map_hits += map_hits;
        counters.egroup_map_misses += map_misses;
        counters.share_bytes_hashed += bytes_hashed;
        counters.share_bytes_found += bytes_shared;
        for (to, message) in std::mem::take(&mut self.effects.messages) {
            self.send(to, message, out);
        }
        for notice in std::mem::take(&mut self.effects.notices) {
            if let Notice::DriveFailed { drive, .. } = notice {
                self.world.calls.revive(drive, now);
            }
            out.notices.push(notice);
        }
    }

    fn on_view(&mut self, now: Time, view: View, out: &mut Outputs) {
        if view.version <= self.world.view.version {
            return;
        }
        self.world.view = view;
        // Whoever waits for a drive that is no longer up hears so.
        for call in self.world.calls.gone(&self.world.view) {
            self.on_answer(now, call, Err(Refusal::DriveGone), out);
        }
        self.touched.extend(self.volumes.keys().copied());
        self.advance_dropping(now, out);
    }

    fn on_unheard(&mut self, now: Time, other: ShardId, out: &mut Outputs) {
        let World { calls, limits, view, shard, local, .. } = &mut self.world;
        calls.unheard(other, view, now, limits.call_retry_us);
        calls.repeat(now, limits, view, *shard, out, local);
    }

    fn on_wake(&mut self, now: Time, out: &mut Outputs) {
        let drives: Vec<DriveId> = self.keepers.keys().copied().collect();
        for drive in drives {
            let keeper = self.keepers.get_mut(&drive).expect("it was just listed");
            if keeper.wake_at().is_some_and(|at| at <= now) {
                keeper.on_wake(now, &mut self.effects);
                self.take_effects(now, out);
            }
        }
        let World { calls, limits, view, shard, local, .. } = &mut self.world;
        calls.repeat(now, limits, view, *shard, out, local);
        while let Some(&(at, family)) = self.wakes.first()
            && at <= now
        {
            self.note_wake(family, None);
            self.touched.insert(family);
        }
    }
}
