//! Checkpoints: put the edits into pages, name the pages in one record, then let go of what came before.
//! Promises: pages are durable before the record that names them; records are trimmed and egroups deleted only
//! when that record is durable on all members; reads go on meanwhile and see the same map throughout.
//! Leaves to others: writing egroups (`egroup/place.rs`), reading pages (`map/lookup.rs`).

use crate::buffer::{BLOCK, Buffer};
use crate::context::{Context, Purpose};
use crate::curator::compact::ROOM_AGAIN_US;
use crate::egroup::place::{Intent, Units};
use crate::formats::record::{Body, Checkpoint, NamedEgroup, PageKind, PagePlace};
use crate::identity::{DriveId, EgroupId, GroupId, Seq, Time};
use crate::limits::EGROUP_UNITS;
use crate::map::leaf::Leaf;
use crate::map::lookup::PageWaiter;
use crate::message::{Class, Question};
use crate::sabotage::{Bug, planted};
use crate::volume::{Volume, Waiter};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Leaf pages being fetched for merging at once.
const FETCHES_MAX: usize = 8;
/// Leaf pages merged in one step at most: others get a turn in between.
const MERGES_MAX: usize = 8;
/// Egroups of pages being placed at once.
const PLACED_AT_ONCE: usize = 2;
/// Bytes written since the last checkpoint that are not worth one of their own.
const GARBAGE_MIN: u64 = 4 << 20;
/// Names in one question to delete.
const DELETES_MAX: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Leaves,
    Directory,
    Index,
    Record,
}

#[derive(Debug)]
enum Page {
    Leaf(u64, Arc<Leaf>),
    Directory(u64),
    Chunk(PageKind, u64),
}

/// Pages gathered in an egroup, each with its first unit and how many it takes.
type Gathered = Vec<(Page, u32, u32)>;

#[derive(Debug)]
struct Job {
    stage: Stage,
    map_to: Seq,
    replay_from: Seq,
    leaves: VecDeque<u64>,
    fetching: usize,
    /// It only gave way to others.
    more: bool,
    units: Units,
    gathered: Gathered,
    placing: BTreeMap<u64, Gathered>,
}

#[derive(Debug, Default)]
pub(crate) struct Checkpointing {
    job: Option<Job>,
    /// Since when there are edits.
    edits_since: Option<Time>,
    last_begun: Option<Time>,
    /// Pages in map egroups that are to be emptied.
    rewrite: BTreeSet<EgroupId>,
    age_us: u64,
    /// One that waits for room in the log looks again then.
    room_at: Option<Time>,
}

impl Checkpointing {
    pub fn is_running(&self) -> bool {
        self.job.is_some()
    }

    pub fn describe(&self) -> String {
        self.job.as_ref().map_or("none".into(), |job| {
            let Job { stage, fetching, placing, replay_from, .. } = job;
            format!("{stage:?}, fetching {fetching}, placing {}, replay from {replay_from}", placing.len())
        })
    }

    pub fn wake_at(&self) -> Option<Time> {
        match &self.job {
            Some(job) => job.more.then_some(Time(0)),
            None => {
                let aged = self.edits_since.map(|since| since.after(self.age_us));
                aged.into_iter().chain(self.room_at).min()
            }
        }
    }
}

impl Volume {
    /// Where a replay would have to begin if a checkpoint were cut now.
    fn replay_from(&self) -> Seq {
        let next = self.log.durable().next();
        self.overlay.oldest().map_or(next, |oldest| oldest.min(next))
    }

    fn wants_checkpoint(&mut self, ctx: &mut Context) -> bool {
        self.checkpointing.age_us = ctx.limits.drain_age_us * 6;
        self.checkpointing.room_at = None;
        if self.map.edits.is_empty() {
            self.checkpointing.edits_since = None;
        } else {
            self.checkpointing.edits_since.get_or_insert(ctx.now);
        }
        let soon = self.checkpointing.last_begun.is_some_and(|begun| ctx.now.since(begun) < 20_000);
        if self.map.edits.len() >= ctx.limits.edits_max / 2 {
            return true;
        }
        let aged = self
            .checkpointing
            .edits_since
            .is_some_and(|since| ctx.now.since(since) >= self.checkpointing.age_us);
        if aged || self.settling && self.overlay.is_empty() && !self.map.edits.is_empty() {
            return true;
        }
        if soon {
            return false;
        }
        // Overwriting leaves dead egroups behind: the less is free, the sooner they are found.
        let garbage = self.map.units_since_cut * BLOCK as u64 > (self.placing.pool() / 4).max(GARBAGE_MIN);
        let helps = self.replay_from() > self.log.trim.next();
        let pressed = self.pressed > self.log.trim;
        let long = self.log.bytes_since_checkpoint >= ctx.limits.log_bytes_checkpoint;
        let full = self.placing.is_full()
            && (!self.map.edits.is_empty() || self.map.directory.dead().next().is_some());
        if helps && (pressed || long || self.log.is_thin(ctx.view)) {
            return true;
        }
        let wanted = garbage || full || !self.checkpointing.rewrite.is_empty() || self.owes_compacted_space();
        if wanted && self.room() == 0 {
            // It takes of what is left of the log, and frees little of it: seldom, and if it frees something.
            self.log.ask_for_room(ROOM_AGAIN_US, ctx);
            self.checkpointing.room_at = Some(ctx.now.after(ROOM_AGAIN_US));
            let lately =
                self.checkpointing.last_begun.is_some_and(|begun| ctx.now.since(begun) < ROOM_AGAIN_US);
            return helps && !lately;
        }
        wanted
    }

    pub(crate) fn start_checkpoint(&mut self, ctx: &mut Context) {
        if self.checkpointing.job.as_ref().is_some_and(|job| job.more) {
            return self.continue_checkpoint(ctx);
        }
        if self.checkpointing.is_running() || !self.wants_checkpoint(ctx) {
            return;
        }
        let edits = std::mem::take(&mut self.map.edits);
        self.map.fresh.clear();
        self.map.units_since_cut = 0;
        self.checkpointing.edits_since = None;
        self.checkpointing.last_begun = Some(ctx.now);
        self.log.bytes_since_checkpoint = 0;
        let existing = |range| self.map.index.existing(PageKind::Leaf, range);
        let mut leaves: BTreeSet<u64> = edits.leaves(&existing).into_iter().collect();
        // Pages that keep a nearly empty egroup alive are written again, and so move.
        for egroup in std::mem::take(&mut self.checkpointing.rewrite) {
            for (kind, number) in self.map.index.pages_in(egroup) {
                match kind {
                    PageKind::Leaf => drop(leaves.insert(number)),
                    PageKind::Directory => self.map.directory.touch_page(number),
                }
            }
            for (kind, chunk) in self.map.index.chunks_in(egroup) {
                self.map.index.touch_chunk(kind, chunk);
            }
        }
        let job = Job {
            stage: Stage::Leaves,
            map_to: self.log.durable(),
            replay_from: self.replay_from(),
            leaves: leaves.into_iter().collect(),
            fetching: 0,
            more: false,
            units: Units::default(),
            gathered: Vec::new(),
            placing: BTreeMap::new(),
        };
        self.map.merging = Some(edits);
        self.checkpointing.job = Some(job);
        self.continue_checkpoint(ctx);
    }

    /// Goes on as far as possible without waiting.
    fn continue_checkpoint(&mut self, ctx: &mut Context) {
        let mut merges = 0;
        loop {
            let Some(job) = &mut self.checkpointing.job else { return };
            job.more = false;
            match job.stage {
                Stage::Leaves => {
                    if job.placing.len() < PLACED_AT_ONCE
                        && job.fetching < FETCHES_MAX
                        && let Some(number) = job.leaves.pop_front()
                    {
                        if merges == MERGES_MAX {
                            job.leaves.push_front(number);
                            job.more = true;
                            return;
                        }
                        merges += 1;
                        self.merge_leaf(number, ctx);
                        continue;
                    }
                    if !job.leaves.is_empty() || job.fetching > 0 {
                        return;
                    }
                }
                Stage::Directory | Stage::Index => {}
                Stage::Record => return,
            }
            self.flush_pages(ctx);
            let Some(job) = &mut self.checkpointing.job else { return };
            if !job.placing.is_empty() {
                return;
            }
            // Each stage needs the places that the one before has found.
            match job.stage {
                Stage::Leaves => {
                    job.stage = Stage::Directory;
                    self.gather_directory(ctx);
                }
                Stage::Directory => {
                    job.stage = Stage::Index;
                    self.gather_index(ctx);
                }
                Stage::Index => {
                    job.stage = Stage::Record;
                    self.append_checkpoint();
                    return;
                }
                Stage::Record => return,
            }
        }
    }

    fn merge_leaf(&mut self, number: u64, ctx: &mut Context) {
        let Some(place) = self.map.index.get(PageKind::Leaf, number) else {
            return self.put_leaf(number, &Leaf::default(), ctx);
        };
        if let Some(leaf) = self.map.pages.get(place) {
            return self.put_leaf(number, &leaf, ctx);
        }
        self.checkpointing.job.as_mut().expect("a checkpoint is running").fetching += 1;
        self.fetch_leaf(number, place, PageWaiter::Merge, ctx);
    }

    pub(crate) fn on_leaf_to_merge(&mut self, number: u64, leaf: &Arc<Leaf>, ctx: &mut Context) {
        self.checkpointing.job.as_mut().expect("a checkpoint is running").fetching -= 1;
        self.put_leaf(number, leaf, ctx);
        self.continue_checkpoint(ctx);
    }

    /// Merges the edits of one leaf, counts what died and what is live now, and gathers the page.
    fn put_leaf(&mut self, number: u64, old: &Leaf, ctx: &mut Context) {
        let merging = self.map.merging.as_ref().expect("a checkpoint has edits to merge");
        let edits: Vec<_> = merging.in_leaf(number).collect();
        let mut removed: Vec<(EgroupId, u32)> = Vec::new();
        let leaf = old.merge(edits.iter().copied(), &mut |egroup, count| removed.push((egroup, count)));
        for (egroup, count) in removed {
            self.map.directory.remove_live(egroup, count);
        }
        for edit in edits {
            if let Some((egroup, _)) = edit.place {
                self.map.directory.add_live(egroup, edit.count);
            }
        }
        if leaf.is_empty() {
            self.map.index.remove(PageKind::Leaf, number);
            return;
        }
        let page = leaf.encode(number, self.family);
        self.gather(Page::Leaf(number, Arc::new(leaf)), page, ctx);
    }

    fn gather_directory(&mut self, ctx: &mut Context) {
        for number in self.map.directory.dirty_pages() {
            match self.map.directory.encode_page(number, self.family) {
                Some(page) => self.gather(Page::Directory(number), page, ctx),
                None => drop(self.map.index.remove(PageKind::Directory, number)),
            }
            self.map.directory.page_written(number);
        }
    }

    fn gather_index(&mut self, ctx: &mut Context) {
        for (kind, chunk) in self.map.index.changed_chunks() {
            match self.map.index.encode_chunk(kind, chunk, self.family) {
                Some(page) => self.gather(Page::Chunk(kind, chunk), page, ctx),
                None => drop(self.map.index.set_chunk(kind, chunk, None)),
            }
        }
    }

    fn gather(&mut self, page: Page, bytes: Buffer, ctx: &mut Context) {
        let job = self.checkpointing.job.as_mut().expect("a checkpoint is running");
        if job.units.len() + bytes.blocks() > EGROUP_UNITS {
            self.flush_pages(ctx);
        }
        let job = self.checkpointing.job.as_mut().expect("a checkpoint is running");
        let first = job.units.len() as u32;
        for index in 0..bytes.blocks() {
            // Units of pages are told from those of blocks by the highest bit.
            job.units.push(1 << 63, bytes.block(index));
        }
        job.gathered.push((page, first, bytes.blocks() as u32));
    }

    fn flush_pages(&mut self, ctx: &mut Context) {
        let job = self.checkpointing.job.as_mut().expect("a checkpoint is running");
        if job.units.is_empty() {
            return;
        }
        let (units, gathered) = (std::mem::take(&mut job.units), std::mem::take(&mut job.gathered));
        ctx.counters.pages_written += gathered.len() as u64;
        let number = self.place(units, Class::Pages, Intent::Pages, ctx);
        let job = self.checkpointing.job.as_mut().expect("placing takes messages, so it cannot be done yet");
        job.placing.insert(number, gathered);
    }

    /// An egroup of pages is durable on all members: reads may find them there from now on.
    pub(crate) fn on_pages_placed(&mut self, number: u64, named: NamedEgroup, ctx: &mut Context) {
        let job = self.checkpointing.job.as_mut().expect("pages are placed for a checkpoint");
        let gathered = job.placing.remove(&number).expect("the egroup was placed for this checkpoint");
        self.map.map_egroups.insert(named.egroup, named);
        for (page, unit, units) in gathered {
            let place = PagePlace { egroup: named.egroup, unit, units };
            match page {
                Page::Leaf(number, leaf) => {
                    self.map.index.set(PageKind::Leaf, number, place);
                    self.map.pages.put(place, leaf, ctx.limits.pages_bytes_max);
                }
                Page::Directory(number) => drop(self.map.index.set(PageKind::Directory, number, place)),
                Page::Chunk(kind, chunk) => drop(self.map.index.set_chunk(kind, chunk, Some(place))),
            }
        }
        self.check_copies(named.egroup, named.group, ctx);
        self.continue_checkpoint(ctx);
    }

    fn append_checkpoint(&mut self) {
        let job = self.checkpointing.job.as_ref().expect("a checkpoint is running");
        let checkpoint = Checkpoint {
            map_to: job.map_to,
            replay_from: job.replay_from,
            mapped: self.map.directory.live(),
            map_egroups: self.map.map_egroups.values().copied().collect(),
            index: self.map.index.chunks(),
        };
        let seq = self.log.push(Body::Checkpoint(Arc::new(checkpoint)));
        self.waiters.insert(seq, Waiter::Checkpoint);
    }

    /// The record is durable on all members: the pages are the map, and what came before may go.
    pub(crate) fn on_checkpoint_durable(&mut self, seq: Seq, ctx: &mut Context) {
        let job = self.checkpointing.job.take().expect("a checkpoint ends once");
        self.map.merging = None;
        ctx.counters.checkpoints += 1;
        let up_to = if planted(Bug::TrimTooEarly) { seq.previous() } else { job.replay_from.previous() };
        self.log.trim = self.log.trim.max(up_to);
        self.log.send_trim(ctx);
        self.delete_dead(ctx);
        self.placing.expect_space(ctx.now);
        self.empty_map_egroups();
    }

    /// Egroups without any live unit: no page and no edit names them any more.
    pub(crate) fn delete_dead(&mut self, ctx: &mut Context) {
        let mut dead: Vec<(EgroupId, GroupId)> = Vec::new();
        let data: Vec<EgroupId> =
            self.map.directory.dead().filter(|egroup| !self.map.fresh.contains(egroup)).collect();
        for egroup in data {
            let entry = self.map.directory.remove(egroup).expect("a dead egroup is in the directory");
            dead.push((egroup, entry.group));
        }
        let index = &self.map.index;
        self.map.map_egroups.retain(|egroup, named| {
            let live = index.live_units(*egroup) > 0;
            if !live {
                dead.push((*egroup, named.group));
            }
            live
        });
        if planted(Bug::SpaceLeak) {
            return;
        }
        ctx.counters.egroups_deleted += dead.len() as u64;
        let mut by_drive: BTreeMap<DriveId, Vec<EgroupId>> = BTreeMap::new();
        for (egroup, group) in dead {
            let Some(view) = ctx.view.groups.get(&group) else { continue };
            for &drive in view.members.iter().chain(&view.former) {
                by_drive.entry(drive).or_default().push(egroup);
            }
        }
        for (drive, egroups) in by_drive {
            for egroups in egroups.chunks(DELETES_MAX) {
                if ctx.is_up(drive) {
                    let question = Question::DeleteEgroups { egroups: egroups.to_vec() };
                    ctx.ask(self.family, self.epoch, drive, question, Purpose::Forget);
                }
            }
        }
    }

    /// Egroups of pages that are mostly dead: the next checkpoint writes what is left of them elsewhere.
    fn empty_map_egroups(&mut self) {
        let (mut units, mut live) = (0, 0);
        for (egroup, named) in &self.map.map_egroups {
            units += u64::from(named.units);
            live += u64::from(self.map.index.live_units(*egroup));
        }
        // Half of the space of pages may be dead; then the emptiest go. Small maps are left alone.
        if units > 2 * live + EGROUP_UNITS as u64 / 4 {
            let sparse = self
                .map
                .map_egroups
                .values()
                .filter(|named| self.map.index.live_units(named.egroup) * 4 < named.units * 3);
            self.checkpointing.rewrite = sparse.map(|named| named.egroup).collect();
        }
    }
}
