//! Checkpoints: put the edits into pages, name the pages in one record, then let go of what came before.
//! Promises: pages are durable before the record that names them; records are trimmed and egroups deleted only
//! when that record is durable on all members; reads go on meanwhile and see the same map throughout.
//! Leaves to others: what goes into one egroup (`checkpoint/pages.rs`), what goes when nothing names it (`checkpoint/release.rs`), writing
//! egroups (`egroup/place.rs`), reading pages (`map/lookup.rs`).

mod pages;
mod release;

pub(super) use pages::Page;
use pages::{Gathered, Placed};

use crate::buffer::{BLOCK, Buffer};
use crate::context::Context;
use crate::curator::compact::ROOM_AGAIN_US;
use crate::egroup::units::Units;
use crate::formats::record::{Body, Checkpoint, PageKind, PagePlace};
use crate::identity::{EgroupId, Generation, Seq, SnapshotId, Time};
use crate::limits::Limits;
use crate::map::Map;
use crate::map::directory::Directory;
use crate::map::holes::Holes;
use crate::map::lookup::{MapPage, PageWaiter};
use crate::map::merge::{Changes, LeafMerge, Merged, Rest};
use crate::map::moves::Moves;
use crate::map::past;
use crate::sabotage::{Bug, planted};
use crate::volume::snapshots::Snapshots;
use crate::volume::{Volume, Waiter};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Leaf pages being fetched for merging at once.
const FETCHES_MAX: usize = 8;
/// Leaf pages merged in one step at most: others get a turn in between.
const MERGES_MAX: usize = 8;
/// Egroups of pages being placed at once.
const PLACED_AT_ONCE: usize = 2;
/// Bytes written since the last checkpoint that are not worth one of their own.
const GARBAGE_MIN: u64 = 4 << 20;
/// With so many pages of the past to be cleared of dropped snapshots, no more leaves are begun: a checkpoint must not take for ever.
const PURGED_PAGES_MAX: usize = 256;
/// With edits of more generations than this, reads would have to look too often.
const GENERATIONS_MAX: usize = 8;
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Leaves,
    Directory,
    Index,
    Record,
}

#[derive(Debug)]
struct Job {
    stage: Stage,
    map_to: Seq,
    replay_from: Seq,
    replay_generation: Generation,
    /// As of `map_to`.
    generation: Generation,
    snapshots: Vec<(Generation, SnapshotId)>,
    dropped: BTreeSet<Generation>,
    leaves: VecDeque<u64>,
    /// Pages of the past of leaves that were merged, which are still to be looked at: these come first.
    rest: Vec<Rest>,
    /// Leaves of which pages are being fetched.
    merges: BTreeMap<u64, LeafMerge>,
    fetching: usize,
    /// Pages of the past that are to be written elsewhere.
    moving: BTreeSet<u64>,
    /// Of a clone, leaves without a page that are trimmed behind this one.
    holes: Holes,
    /// Pages go back to what they were for this snapshot.
    rollback: Option<Generation>,
    /// Emptied before it was cut: it finds them dead.
    emptied: BTreeSet<EgroupId>,
    /// This one clears the past of the last leaves that tell of dropped snapshots.
    ends_purge: bool,
    /// It only gave way to others.
    more: bool,
    units: Units,
    gathered: Gathered,
    /// The number of the last batch of pages.
    batch: u64,
    placing: BTreeMap<u64, Gathered>,
}

/// From the beginning of one to that of the next, unless something cannot wait.
const PAUSE_US: u64 = 20_000;

#[derive(Debug, Default)]
pub(crate) struct Checkpointing {
    job: Option<Job>,
    /// Since when there are edits.
    edits_since: Option<Time>,
    last_begun: Option<Time>,
    /// Pages in map egroups that are to be emptied.
    rewrite: BTreeSet<EgroupId>,
    age_us: u64,
    purge: Option<Purge>,
    /// One that waits for room in the log, or follows another too soon, looks again then.
    room_at: Option<Time>,
}

/// The past is being cleared of snapshots that were dropped, some leaves in each checkpoint.
#[derive(Debug)]
struct Purge {
    generations: BTreeSet<Generation>,
    next_leaf: u64,
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

    /// The generation of the first record of such a replay.
    fn replay_generation(&self) -> Generation {
        let (generation, overlay) = self.overlay.oldest_layer();
        if overlay.is_empty() { self.snapshots.present } else { generation }
    }

    /// Whether there are so many edits that reads or memory suffer, or a vDisk goes back to a snapshot.
    fn is_checkpoint_overdue(&self, ctx: &Context) -> bool {
        self.map.edits.len() >= ctx.limits.edits_max / 2
            || self.map.edits.generations() > GENERATIONS_MAX
            || self.snapshots.to_roll_back().is_some()
    }

    /// Whether a checkpoint cannot wait for better days: for one of these reasons, or because a ring or the pool has no room without it.
    pub(crate) fn is_checkpoint_pressing(&self, ctx: &Context) -> bool {
        self.is_checkpoint_overdue(ctx)
            || self.is_pressed() && self.trims_log()
            || self.frees_full_pool()
            || self.placing.is_full() && self.checkpointing.is_running()
    }

    /// Whether one that was cut now would let go of records.
    fn trims_log(&self) -> bool {
        self.replay_from() > self.log.trim.next()
    }

    /// Whether a ring waits for records of this vDisk to go.
    pub(crate) fn is_pressed(&self) -> bool {
        self.pressed > self.log.trim
    }

    fn frees_full_pool(&self) -> bool {
        self.placing.is_full() && (self.map.is_changed() || self.map.directory.dead().next().is_some())
    }

    fn wants_checkpoint(&mut self, ctx: &mut Context) -> bool {
        self.checkpointing.age_us = ctx.limits.drain_age_us * 6;
        self.checkpointing.room_at = None;
        if !self.map.is_changed() {
            self.checkpointing.edits_since = None;
        } else {
            self.checkpointing.edits_since.get_or_insert(ctx.now);
        }
        if self.is_checkpoint_overdue(ctx) {
            return true;
        }
        // The map has more copies there than pages would have, also of what has not changed.
        let stays = self.is_safer_in_log(ctx.view) && !self.wants_to_settle() && !planted(Bug::PagesForLess);
        if stays {
            self.checkpointing.edits_since = None;
        }
        let aged = self
            .checkpointing
            .edits_since
            .is_some_and(|since| ctx.now.since(since) >= self.checkpointing.age_us);
        if aged || self.wants_to_settle() && self.overlay.is_empty() && self.map.is_changed() {
            return true;
        }
        // Overwriting leaves dead egroups behind: the less is free, the sooner they are found.
        let garbage = self.map.units_since_cut * BLOCK as u64 > (self.placing.pool() / 4).max(GARBAGE_MIN);
        let helps = self.trims_log();
        let long = self.log.bytes_since_checkpoint >= ctx.limits.log_bytes_checkpoint;
        let urgent = helps && (self.is_pressed() || !stays && (long || self.log.is_thin(ctx.view)));
        let tidies = garbage
            || !self.checkpointing.rewrite.is_empty()
            || !self.snapshots.dropped.is_empty()
            || self.owes_compacted_space()
            || self.factoring.wants_checkpoint();
        let wanted = self.frees_full_pool() || !stays && tidies;
        let next = self.checkpointing.last_begun.map(|begun| begun.after(PAUSE_US));
        if (urgent || wanted) && next.is_some_and(|next| ctx.now < next) {
            // Nothing else may happen here for long.
            self.checkpointing.room_at = next;
            return false;
        }
        if urgent {
            return true;
        }
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
        self.map.fresh_before = std::mem::take(&mut self.map.fresh);
        self.map.units_since_cut = 0;
        self.checkpointing.edits_since = None;
        self.checkpointing.last_begun = Some(ctx.now);
        self.log.bytes_since_checkpoint = 0;
        let origin_leaves = self.origin_leaves();
        let trims = self.map.holes.wide_trims(&edits, origin_leaves);
        let existing = |generation: Generation, range: Range<u64>| {
            // Of a clone, trimming what its origin has is news as well; of many leaves in a row it takes no pages.
            let origins = range.start..range.end.min(origin_leaves);
            let mut leaves: Vec<u64> = match trims.get(&generation) {
                Some(wide) => wide.outside(origins),
                None => origins.collect(),
            };
            leaves.append(&mut self.map.index.existing(PageKind::Leaf, range));
            leaves.sort_unstable();
            leaves.dedup();
            leaves
        };
        let mut leaves: BTreeSet<u64> = edits.leaves(&existing).into_iter().collect();
        let mut moving = BTreeSet::new();
        self.map.moving = std::mem::take(&mut self.map.moves);
        leaves.extend(self.map.moving.leaves());
        let ends_purge = self.continue_purge(&mut leaves);
        let rollback = self.snapshots.to_roll_back();
        if let Some(to) = rollback {
            self.add_changed_since(to, &mut leaves);
        }
        let mut holes = rollback.map_or_else(|| self.map.holes.clone(), |to| self.map.holes.until(to));
        trims.values().for_each(|trims| holes.add(trims));
        self.gather_small_map_egroups();
        let elsewhere = self.pages_to_take_along(ctx);
        self.checkpointing.rewrite.extend(elsewhere);
        // Pages that keep a nearly empty egroup alive are written again, and so move.
        for egroup in std::mem::take(&mut self.checkpointing.rewrite) {
            for (kind, number) in self.map.index.pages_in(egroup) {
                match kind {
                    PageKind::Leaf => drop(leaves.insert(number)),
                    PageKind::Past => {
                        leaves.insert(past::leaf_of(number));
                        moving.insert(number);
                    }
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
            replay_generation: self.replay_generation(),
            generation: self.snapshots.present,
            snapshots: self.snapshots.taken.iter().map(|(&generation, &id)| (generation, id)).collect(),
            dropped: self.snapshots.dropped.clone(),
            merges: BTreeMap::new(),
            moving,
            holes,
            emptied: self.compaction.emptied().clone(),
            ends_purge,
            rollback,
            leaves: leaves.into_iter().collect(),
            rest: Vec::new(),
            fetching: 0,
            more: false,
            units: Units::default(),
            gathered: Vec::new(),
            batch: 0,
            placing: BTreeMap::new(),
        };
        self.map.merging = Some(edits);
        self.checkpointing.job = Some(job);
        self.continue_checkpoint(ctx);
    }

    /// Adds leaves whose past is to be cleared; says whether they are the last ones.
    fn continue_purge(&mut self, leaves: &mut BTreeSet<u64>) -> bool {
        if self.snapshots.dropped.is_empty() {
            return false;
        }
        let dropped = &self.snapshots.dropped;
        let begin = || Purge { generations: dropped.clone(), next_leaf: 0 };
        let purge = self.checkpointing.purge.get_or_insert_with(begin);
        let mut next_leaf = purge.next_leaf;
        let pages = self.map.index.leaves_with_past(purge.next_leaf, &purge.generations);
        for (found, leaf) in pages.enumerate() {
            if leaf >= next_leaf {
                if found >= PURGED_PAGES_MAX {
                    purge.next_leaf = next_leaf;
                    return false;
                }
                next_leaf = leaf + 1;
                leaves.insert(leaf);
            }
        }
        purge.next_leaf = next_leaf;
        true
    }

    /// Adds the leaves that are not what they were when the snapshot was taken.
    fn add_changed_since(&self, to: Generation, leaves: &mut BTreeSet<u64>) {
        let snapshot = BTreeSet::from([to]);
        leaves.extend(self.map.index.leaves_with_past(0, &snapshot));
        // A page tells of nothing that is newer than the egroup it lies in.
        let is_newer = |place: &PagePlace| {
            self.map.map_egroups.get(&place.egroup).is_none_or(|named| named.generation > to)
        };
        let pages =
            self.map.index.iter().filter(|(kind, _, place)| *kind == PageKind::Leaf && is_newer(place));
        leaves.extend(pages.map(|(_, number, _)| number));
    }

    /// Goes on as far as possible without waiting.
    fn continue_checkpoint(&mut self, ctx: &mut Context) {
        let mut merges = 0;
        loop {
            let Some(job) = &mut self.checkpointing.job else { return };
            job.more = false;
            match job.stage {
                Stage::Leaves => {
                    let has_more = !job.rest.is_empty() || !job.leaves.is_empty();
                    if has_more && job.placing.len() < PLACED_AT_ONCE && job.fetching < FETCHES_MAX {
                        if merges == MERGES_MAX {
                            job.more = true;
                            return;
                        }
                        merges += 1;
                        self.merge_next(ctx);
                        if self.is_failed() {
                            return;
                        }
                        continue;
                    }
                    if has_more || job.fetching > 0 {
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

    fn merge_next(&mut self, ctx: &mut Context) {
        let job = self.checkpointing.job.as_mut().expect("a checkpoint is running");
        let rest = job.rest.pop();
        let number = rest.as_ref().map_or_else(|| job.leaves.pop_front(), |rest| Some(rest.leaf));
        let number = number.expect("the caller has seen that there is more");
        let origin_leaves = self.origin_leaves();
        let (_, changes) =
            changes(&mut self.map, &self.checkpointing, &self.snapshots, origin_leaves, ctx.limits);
        let together = ctx.limits.past_pages_together;
        let mut merge = match rest {
            None => LeafMerge::new(number, together, &changes),
            Some(rest) => LeafMerge::of_rest(rest, together, &changes),
        };
        let mut asked = Vec::new();
        for (kind, page, place) in merge.missing(number) {
            match self.map.pages.get(place) {
                Some(page) => merge.give(place, page),
                None => asked.push((kind, page, place)),
            }
        }
        if asked.is_empty() {
            return self.put_leaf(number, merge, ctx);
        }
        let job = self.checkpointing.job.as_mut().expect("a checkpoint is running");
        job.fetching += asked.len();
        job.merges.insert(number, merge);
        for (kind, page, place) in asked {
            self.fetch_page(kind, page, place, PageWaiter::Merge { leaf: number }, ctx);
            if self.is_failed() {
                return;
            }
        }
    }

    pub(crate) fn on_page_to_merge(
        &mut self,
        number: u64,
        place: PagePlace,
        page: MapPage,
        ctx: &mut Context,
    ) {
        let job = self.checkpointing.job.as_mut().expect("a checkpoint is running");
        job.fetching -= 1;
        let merge = job.merges.get_mut(&number).expect("a leaf waits for its pages");
        merge.give(place, page);
        if merge.missing(number).is_empty() {
            let merge = job.merges.remove(&number).expect("it was just found");
            self.put_leaf(number, merge, ctx);
        }
        self.continue_checkpoint(ctx);
    }

    /// Merges the edits of one leaf and gathers its pages.
    fn put_leaf(&mut self, number: u64, merge: LeafMerge, ctx: &mut Context) {
        let origin_leaves = self.origin_leaves();
        let (directory, changes) =
            changes(&mut self.map, &self.checkpointing, &self.snapshots, origin_leaves, ctx.limits);
        let Merged { pages, gone, rest } = merge.finish(number, &changes, directory);
        let job = self.checkpointing.job.as_mut().expect("a checkpoint is running");
        job.rest.extend(rest);
        if pages.is_empty() {
            for (kind, page) in gone {
                self.map.index.remove(kind, page);
            }
            return;
        }
        // A snapshot finds a block in the leaf or in its past: these have to change at the same instant.
        let family = self.family;
        let encoded: Vec<(Page, Buffer)> = pages
            .into_iter()
            .map(|page| {
                let bytes = match &page {
                    Page::Leaf(number, leaf) => leaf.encode(*number, family),
                    Page::Past(number, past) => past.encode(*number, family),
                    Page::Directory(_) | Page::Chunk(..) | Page::Gone(..) => {
                        unreachable!("a leaf has pages of two kinds")
                    }
                };
                (page, bytes)
            })
            .collect();
        let units: usize = encoded.iter().map(|(_, bytes)| bytes.blocks()).sum();
        self.make_room(units, ctx);
        self.begin_batch();
        for (page, bytes) in encoded {
            self.gather(page, bytes, ctx);
            if planted(Bug::PastApart) {
                self.flush_pages(ctx);
            }
        }
        let job = self.checkpointing.job.as_mut().expect("a checkpoint is running");
        let batch = job.batch;
        let gone = gone.into_iter().map(|(kind, number)| Page::Gone(kind, number));
        job.gathered.extend(gone.map(|page| Placed { page, first: 0, units: 0, batch }));
    }

    fn append_checkpoint(&mut self) {
        let job = self.checkpointing.job.as_mut().expect("a checkpoint is running");
        if job.ends_purge
            && let Some(purge) = self.checkpointing.purge.take()
        {
            job.dropped.retain(|generation| !purge.generations.contains(generation));
            self.snapshots.dropped.retain(|generation| !purge.generations.contains(generation));
        }
        let checkpoint = Checkpoint {
            map_to: job.map_to,
            replay_from: job.replay_from,
            replay_generation: job.replay_generation,
            generation: job.generation,
            snapshots: job.snapshots.clone(),
            dropped: job.dropped.iter().copied().collect(),
            mapped: self.map.directory.live(),
            map_egroups: self.map.map_egroups.values().copied().collect(),
            index: self.map.index.chunks(),
            holes: if planted(Bug::WideTrimForgotten) { Vec::new() } else { job.holes.list() },
        };
        let seq = self.log.push(Body::Checkpoint(Arc::new(checkpoint)));
        self.waiters.insert(seq, Waiter::Checkpoint);
    }

    /// The record is durable on all members: the pages are the map, and what came before may go.
    pub(crate) fn on_checkpoint_durable(&mut self, seq: Seq, ctx: &mut Context) {
        let job = self.checkpointing.job.take().expect("a checkpoint ends once");
        self.map.merging = None;
        self.map.holes = job.holes;
        self.map.moving = Moves::default();
        self.map.fresh_before.clear();
        if let Some(to) = job.rollback {
            self.on_rolled_back(to, ctx);
        }
        ctx.counters.checkpoints += 1;
        let up_to = if planted(Bug::TrimTooEarly) { seq.previous() } else { job.replay_from.previous() };
        self.log.trim = self.log.trim.max(up_to);
        self.log.send_trim(ctx);
        self.delete_dead(ctx);
        ctx.counters.victims_living += self.compaction.note_living(job.emptied, &self.map.directory, ctx.now);
        self.placing.expect_space(ctx.now);
        self.empty_map_egroups();
    }
}

/// What the running checkpoint does to leaves, and the directory, in which it counts.
fn changes<'a>(
    map: &'a mut Map,
    checkpointing: &'a Checkpointing,
    snapshots: &'a Snapshots,
    origin_leaves: u64,
    limits: &Limits,
) -> (&'a mut Directory, Changes<'a>) {
    let job = checkpointing.job.as_ref().expect("a checkpoint is running");
    let purge = checkpointing.purge.as_ref().map(|purge| &purge.generations);
    let Map { merging, moving, index, holes, directory, .. } = map;
    let changes = Changes {
        edits: merging.as_ref().expect("a checkpoint has edits to merge"),
        moves: moving,
        snapshots: &snapshots.taken,
        index,
        // Whatever is not there any more may go, whether the purge has come to it or not.
        purged: purge.unwrap_or(&snapshots.dropped),
        rewritten: &job.moving,
        rollback: job.rollback,
        past_page_bytes: limits.past_page_bytes,
        origin_leaves,
        holes,
        holes_behind: &job.holes,
    };
    (directory, changes)
}
