//! The drain: moves acknowledged data from the log to egroups.
//! Promises: in sweeps over the address space, each up to the newest record of its beginning, so that neighbours end
//! up as neighbours and nothing old is left behind; one egroup is begun in a step, at a pace that leaves clients their share;
//! data leaves the overlay only under a durable map record; data written meanwhile stays.
//! Leaves to others: choosing a group and writing (`egroup/place.rs`), trimming the log (`map/checkpoint.rs`).

mod pace;

use self::pace::{Headroom, Pace};
use crate::buffer::{BLOCK, zeros};
use crate::context::Context;
use crate::egroup::place::Intent;
use crate::egroup::units::{Units, UnitsMax, units_max};
use crate::formats::record::Edit;
use crate::identity::{Block, Generation, Seq, Time};
use crate::interface::View;
use crate::limits::{EGROUP_UNITS, Limits};
use crate::log::layers::Layers;
use crate::log::overlay::{Content, Dirty};
use crate::message::Class;
use crate::sabotage::{Bug, planted};
use crate::volume::snapshots::FROZEN_MAX;
use crate::volume::{Volume, bypass::add_block};

/// Smaller egroups than this would use up the tables of drives.
pub(crate) const UNITS_LEAST: usize = 8;

/// The log holds no more of a family than the pool has room for, divided by this.
const POOL_PARTS: u64 = 8;

/// Blocks that go into the reserve at once: what is left of it is for others.
const PRESSED_UNITS: usize = EGROUP_UNITS / 4;

#[derive(Debug, Default)]
pub(crate) struct Drain {
    /// Egroups being placed.
    placing: usize,
    /// Since when the oldest dirty record is known.
    oldest: Option<(Seq, Time)>,
    /// Of the next egroups.
    pub(crate) units_max: UnitsMax,
    /// After a refusal, client data is left alone until then.
    blocked_until: Time,
    /// ... and what pins a ring until then, after the reserve refused it as well.
    pressed_after: Time,
    sweep: Option<Sweep>,
    pace: Pace,
    /// When more is to be begun: at once, after others had a turn, or when its time has come. None: when what it waits for is there,
    /// which comes with an input.
    more_at: Option<Time>,
}

/// How much a reason to drain is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Haste {
    AtOnce,
    AtItsPace,
}

/// One passage over the address space.
#[derive(Debug, Clone, Copy)]
struct Sweep {
    /// What is before has been taken.
    at: Block,
    /// What came after its beginning is left to the next.
    up_to: Seq,
}

impl Drain {
    pub fn on_placed(&mut self) {
        self.placing -= 1;
        self.units_max.fitted();
    }

    pub fn wake_at(&self, overlay: &Layers) -> Option<Time> {
        overlay.oldest_layer().1.oldest_waiting()?;
        Some(self.more_at?.max(self.blocked_until))
    }

    /// Clients have written so much more.
    pub fn on_written(&mut self, bytes: u64) {
        self.pace.on_written(bytes);
    }
}

impl Volume {
    /// Whether no more may be begun until something else has ended.
    fn is_drain_held(&self, ctx: &Context) -> bool {
        // Each egroup takes a record of a log that is short of room: fewer, with more in them.
        let is_short_of_room = self.drain.placing > 0 && self.room() == 0;
        self.drain.placing >= ctx.limits.drain_egroups_max || self.is_full_of_edits(ctx) || is_short_of_room
    }

    /// A checkpoint is on its way, or about to begin; until it is there, the log holds what comes.
    fn is_full_of_edits(&self, ctx: &Context) -> bool {
        self.map.edits.len() >= ctx.limits.edits_max
    }

    /// Whether there is a reason to drain.
    fn wants_drain(&self, ctx: &Context) -> Option<Haste> {
        let (_, since) = self.drain.oldest?;
        // What snapshots froze is drained when it would have been without them: at once it would be felt by whoever writes
        // while one is taken. When there are many, reads have too many places to look: then one egroup after the other goes.
        let frozen = self.overlay.frozen();
        let many = frozen >= FROZEN_MAX || frozen >= FROZEN_MAX / 2 && self.drain.placing == 0;
        let waiting = !self.requests.waiting.is_empty() && !self.requests.crowded;
        if self.wants_to_settle() || frozen >= FROZEN_MAX {
            return Some(Haste::AtOnce);
        }
        if self.is_safer_in_log(ctx.view) {
            return self.has_to_leave_log(ctx).then_some(Haste::AtItsPace);
        }
        if many || waiting || self.log.is_thin(ctx.view) {
            return Some(Haste::AtOnce);
        }
        // Below the mark a sweep goes on, one egroup after the other: what is left of it is as old as what was taken.
        let under_way = self.drain.sweep.is_some() && self.drain.placing == 0;
        let reason =
            under_way || ctx.now.since(since) >= ctx.limits.drain_age_us || self.is_drain_pressing(ctx);
        reason.then_some(Haste::AtItsPace)
    }

    /// Whether the ring, memory or the pool is about to have no room for what the log holds.
    pub(crate) fn is_drain_pressing(&self, ctx: &Context) -> bool {
        self.is_pinning()
            || self.overlay.dirty_bytes() >= self.drain_bytes_begin(ctx)
            || self.placing.is_short()
    }

    /// Whether clients have had their share since the last egroup was begun.
    fn is_next_due(&self, ctx: &Context) -> bool {
        let headroom = Headroom {
            dirty: self.overlay.dirty_bytes(),
            most: self.dirty_bytes_max(ctx),
            begin: self.drain_bytes_begin(ctx),
            room: self.room(),
        };
        self.drain.pace.is_due(headroom, ctx.limits.drain_pause_us, ctx.now)
    }

    /// What this family may keep in memory: less than the limit when other families of the shard keep much, and when the
    /// pool is short of room, so that a little of it is enough for all that is acknowledged.
    pub(crate) fn dirty_bytes_max(&self, ctx: &Context) -> u64 {
        let Limits { dirty_bytes_max, dirty_bytes_shard, dirty_bytes_least, .. } = *ctx.limits;
        let others = if planted(Bug::OthersNotCounted) {
            0
        } else {
            ctx.dirty_bytes.saturating_sub(self.undrained_bytes())
        };
        let left = dirty_bytes_shard.saturating_sub(others).min(self.placing.pool() / POOL_PARTS);
        left.clamp(dirty_bytes_least, dirty_bytes_max)
    }

    fn drain_bytes_begin(&self, ctx: &Context) -> u64 {
        let Limits { dirty_bytes_max, drain_bytes_begin, .. } = *ctx.limits;
        self.dirty_bytes_max(ctx) * drain_bytes_begin / dirty_bytes_max
    }

    pub(crate) fn start_drain(&mut self, ctx: &mut Context) {
        let (generation, overlay) = self.overlay.oldest_layer();
        match (overlay.oldest_waiting(), self.drain.oldest) {
            (None, _) => self.drain.oldest = None,
            (Some(oldest), Some((known, _))) if oldest == known => {}
            (Some(oldest), _) => self.drain.oldest = Some((oldest, ctx.now)),
        }
        self.drain.more_at = planted(Bug::WokenForNothing).then_some(Time(0));
        if self.is_drain_held(ctx) {
            if self.is_full_of_edits(ctx) && !self.checkpointing.is_running() {
                // The checkpoint that begins now takes them all.
                self.drain.more_at = Some(Time(0));
            }
            return;
        }
        let Some(haste) = self.wants_drain(ctx) else {
            // What stays in the log does not leave it for its age.
            let aging = self.drain.oldest.filter(|_| !self.is_safer_in_log(ctx.view));
            self.drain.more_at = aging.map(|(_, since)| since.after(ctx.limits.drain_age_us));
            return;
        };
        if haste == Haste::AtItsPace && !self.is_next_due(ctx) {
            self.drain.more_at = Some(self.drain.pace.due_at(ctx.limits.drain_pause_us));
            return;
        }
        let mut class = Class::Data;
        let dirty = if self.placing.may_try_data(ctx.now) {
            let units = self.drain.units_max.get().min(units_max(self.compression));
            let dirty = self.sweep(units as u64);
            self.drain.more_at = (!dirty.is_empty()).then_some(Time(0));
            dirty
        } else if self.goes_into_reserve(ctx) && ctx.now >= self.drain.pressed_after {
            class = Class::Pressed;
            let (_, overlay) = self.overlay.oldest_layer();
            let pinning =
                overlay.take_oldest(self.drain.units_max.get().min(PRESSED_UNITS) as u64, |_, _| false);
            self.drain.more_at = (!pinning.is_empty()).then_some(Time(0));
            sorted(pinning)
        } else {
            // A full pool still takes what frees space. When data may be tried again is known where it is placed.
            self.drain.more_at = self.goes_into_reserve(ctx).then_some(self.drain.pressed_after);
            return self.drain_zeroes(ctx);
        };
        let (mut units, mut edits) = (Units::default(), Vec::new());
        let (mut lost_units, mut lost) = (Units::lost(), Vec::new());
        let mut zeroes: Vec<Edit> = Vec::new();
        let Some(overlay) = self.overlay.layer_mut(generation) else { return };
        for piece in dirty {
            overlay.mark_draining(piece.block, piece.count, piece.seq);
            match piece.content {
                Content::Zero => {
                    zeroes.push(Edit {
                        block: piece.block,
                        count: piece.count,
                        unit: None,
                        covers: piece.seq,
                    });
                }
                Content::Data(data) => {
                    for index in 0..piece.count {
                        let block = data.block(index as usize);
                        add_block(&mut units, &mut edits, piece.block.plus(index), block, piece.seq);
                    }
                }
                Content::Lost(_) => {
                    let unit = Some(lost_units.len() as u32);
                    let blocks = piece.block.0..piece.block.0 + piece.count;
                    blocks.for_each(|block| _ = lost_units.push(block, zeros(BLOCK)));
                    lost.push(Edit { block: piece.block, count: piece.count, unit, covers: piece.seq });
                }
            }
        }
        if !edits.is_empty() {
            self.drain.pace.on_begun((units.len() * BLOCK) as u64, ctx.now);
            self.drain_egroup(generation, units, edits, class, ctx);
        }
        if !lost.is_empty() {
            // By themselves: nothing sound is to lie in an egroup that is damaged.
            self.drain_egroup(generation, lost_units, lost, class, ctx);
        }
        for zeroes in zeroes.chunks(EGROUP_UNITS) {
            self.drain_egroup(generation, Units::default(), zeroes.to_vec(), class, ctx);
        }
    }

    /// Names zeros of any generation, but for blocks of which something older is to be named first.
    fn drain_zeroes(&mut self, ctx: &mut Context) {
        let mut found: Vec<(Generation, Vec<Dirty>)> = Vec::new();
        for (generation, overlay) in self.overlay.iter() {
            let zeroes = sorted(overlay.take_zeroes(EGROUP_UNITS as u64));
            let clear = |piece: &Dirty| {
                let parts = self.overlay.clear_before(generation, piece.block, piece.count);
                let seq = piece.seq;
                let zeroes = move |(block, count)| Dirty { block, count, seq, content: Content::Zero };
                parts.into_iter().map(zeroes)
            };
            found.push((generation, zeroes.iter().flat_map(clear).take(EGROUP_UNITS).collect()));
        }
        for (generation, zeroes) in found {
            let overlay = self.overlay.layer_mut(generation).expect("it was just looked at");
            let mut edits = Vec::with_capacity(zeroes.len());
            for piece in zeroes {
                overlay.mark_draining(piece.block, piece.count, piece.seq);
                edits.push(Edit { block: piece.block, count: piece.count, unit: None, covers: piece.seq });
            }
            if !edits.is_empty() {
                self.drain_egroup(generation, Units::default(), edits, Class::Data, ctx);
            }
        }
    }

    /// Whether what goes into the reserve as well was refused there within this time.
    pub fn was_reserve_refused(&self, now: Time, within_us: u64) -> bool {
        self.drain.pressed_after.after(within_us) > now
    }

    /// Whether a ring that runs full waits for data of this family.
    fn is_pinning(&self) -> bool {
        self.overlay.oldest_layer().1.oldest_waiting().is_some_and(|oldest| oldest <= self.pressed)
    }

    /// Whether what waits is drained also when the pool is full: nothing in a ring behind what pins it can be let go of before it
    /// goes, neither what would free the pool; a vDisk that goes back to a snapshot frees what it has written since; and what lost a copy
    /// for good gets it back there only.
    fn goes_into_reserve(&self, ctx: &Context) -> bool {
        self.is_pinning()
            || self.snapshots.wants_pages()
            || self.lacks_copies(ctx.view) && !planted(Bug::LostCopiesWait)
    }

    /// Whether what would be drained next has fewer copies, also if all that may come back does, than it gets there.
    pub fn lacks_copies(&self, view: &View) -> bool {
        let lacking = self.log.lacking_until(self.placing.reach(), view);
        let oldest = self.overlay.oldest_layer().1.oldest_waiting();
        oldest.zip(lacking).is_some_and(|(oldest, lacking)| oldest <= lacking)
    }

    /// The next pieces of the present sweep, or of a new one; none when nothing waits.
    fn sweep(&mut self, units_max: u64) -> Vec<Dirty> {
        for _ in 0..2 {
            let (_, overlay) = self.overlay.oldest_layer();
            let Some(newest) = overlay.newest() else { break };
            let Sweep { at, up_to } = self.drain.sweep.unwrap_or(Sweep { at: Block(0), up_to: newest });
            let (dirty, next) = overlay.take_from(at, up_to, units_max);
            self.drain.sweep = next.map(|at| Sweep { at, up_to });
            if !dirty.is_empty() {
                return dirty;
            }
        }
        self.drain.sweep = None;
        Vec::new()
    }

    fn drain_egroup(
        &mut self,
        generation: Generation,
        units: Units,
        edits: Vec<Edit>,
        class: Class,
        ctx: &mut Context,
    ) {
        self.drain.placing += 1;
        self.place(units, class, Intent::Drain { generation, edits }, ctx);
    }

    /// What of these edits still is the newest version of its blocks in its generation. Egroups are placed side by side, so a
    /// newer version may be named before an older one; the older must not be named after it. What a write that went around the log
    /// takes the place of is in the overlay until that is durable, and is not named either.
    pub(crate) fn still_newest(&self, generation: Generation, edits: &[Edit]) -> Vec<Edit> {
        let mut newest: Vec<Edit> = Vec::with_capacity(edits.len());
        let Some(overlay) = self.overlay.layer(generation) else { return newest };
        for edit in edits {
            let mut add = |block: Block, count: u64| {
                let unit = edit.unit.map(|unit| unit + (block.0 - edit.block.0) as u32);
                match newest.last_mut() {
                    // Pieces of one edit, cut apart in the overlay only.
                    Some(last)
                        if last.covers == edit.covers
                            && last.block.plus(last.count) == block
                            && last.unit.map(|unit| unit + last.count as u32) == unit =>
                    {
                        last.count += count;
                    }
                    _ => newest.push(Edit { block, count, unit, covers: edit.covers }),
                }
            };
            for (block, count) in overlay.newest_of(edit.block, edit.count, edit.covers) {
                self.requests.each_not_being_named(block, count, &mut add);
            }
        }
        newest
    }

    /// No group has room for an egroup of this size: the data stays in the log, and smaller ones are tried.
    pub(crate) fn on_drain_refused(
        &mut self,
        generation: Generation,
        edits: Vec<Edit>,
        class: Class,
        again_at: Time,
    ) {
        self.drain.placing -= 1;
        if class == Class::Pressed {
            self.drain.pressed_after = again_at;
        }
        // What pins a ring goes into the reserve at once.
        if class == Class::Pressed || !self.is_pinning() {
            self.drain.blocked_until = again_at;
        }
        self.drain.units_max.refused(self.drain.units_max.get(), UNITS_LEAST);
        let Some(overlay) = self.overlay.layer_mut(generation) else { return };
        for edit in edits {
            overlay.unmark(edit.block, edit.count, edit.covers);
        }
    }
}

/// In order of address: neighbours end up as neighbours.
fn sorted(mut pieces: Vec<Dirty>) -> Vec<Dirty> {
    pieces.sort_by_key(|piece| piece.block);
    pieces
}
