//! A family as its owner serves it: the one place where its requests, log, map and background work meet.
//! Promises: every request gets one reply (I9); nothing is acknowledged that is not durable everywhere (I1);
//! nothing is served before the log of the former owner has been fenced and read (I2).
//! Leaves to others: keeping bytes (`keeper`), deciding who is owner and who is up (the control plane).

mod ahead;
pub(crate) mod bypass;
mod cached;
mod door;
pub(crate) mod extents;
mod origin;
mod partial;
mod pattern;
mod read;
mod request;
mod settling;
pub(crate) mod snapshots;
mod staying;
pub(crate) mod tried;
pub(crate) mod warm;
pub(crate) mod write;

use crate::buffer::BLOCK;
use crate::context::{Answered, Context, Purpose};
use crate::counters::{self, ReadSources, Throttled};
use crate::curator::audit::Audit;
use crate::curator::compact::Compaction;
use crate::curator::factor::Factoring;
use crate::curator::follow::Following;
use crate::curator::repack::Repacking;
use crate::drain::Drain;
use crate::egroup::placing::Placing;
use crate::formats::record::{Body, MapRecord, Mark, Record};
use crate::identity::{Block, DriveId, EgroupId, Epoch, FamilyId, Generation, Seq, Time};
use crate::interface::{Compression, FamilyRecord, FamilyTrouble, Notice, Origin, RequestError};
use crate::log::append::{Appender, Changed};
use crate::log::late::LateCopies;
use crate::log::layers::Layers;
use crate::log::overlay::Content;
use crate::log::recover::Recovery;
use crate::map::Map;
use crate::map::checkpoint::Checkpointing;
use crate::map::edits::Place;
use crate::message::{Answer, Refusal};
use crate::sabotage::{Bug, planted};
use crate::stages::Stage;
use door::Door;
use pattern::Streams;
use read::Reads;
use request::Requests;
use snapshots::Snapshots;
use std::collections::BTreeMap;

/// Who wrote within this time shares the log with others who did.
const WRITTEN_LATELY_US: u64 = 100_000;

/// Where a family is in its life on this shard.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Fencing the former owner, reading its log, completing it.
    Opening(Box<Recovery>),
    Serving,
    /// Given up; the control plane has been told.
    Failed,
}

/// Who is told when a record is durable.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// A part of this request.
    Request(u64),
    /// Parts of these requests, whose locks end too.
    Bypass(Vec<u64>),
    /// A block was merged under this lock for this request.
    Partial {
        request: u64,
        lock: u64,
    },
    Drain,
    Compact(u64),
    Checkpoint,
    Mark(Mark),
}

#[derive(Debug)]
pub struct Volume {
    pub(crate) family: FamilyId,
    pub(crate) epoch: Epoch,
    pub(crate) size: u64,
    pub(crate) factor: u32,
    pub(crate) origin: Option<Origin>,
    /// Of what is placed from now on.
    pub(crate) compression: Compression,
    pub(crate) door: Door,
    pub(crate) phase: Phase,
    pub(crate) log: Appender,
    pub(crate) late: LateCopies,
    pub(crate) waiters: BTreeMap<Seq, Waiter>,
    pub(crate) overlay: Layers,
    pub(crate) snapshots: Snapshots,
    pub(crate) map: Map,
    pub(crate) requests: Requests,
    pub(crate) reads: Reads,
    /// Sequential reads of clients.
    streams: Streams,
    /// Likewise writes, for statistics only.
    write_streams: Streams,
    /// What clients did.
    pub(crate) pattern: counters::Pattern,
    pub(crate) drain: Drain,
    pub(crate) placing: Placing,
    pub(crate) checkpointing: Checkpointing,
    pub(crate) audit: Audit,
    pub(crate) compaction: Compaction,
    pub(crate) repacking: Repacking,
    pub(crate) factoring: Factoring,
    pub(crate) following: Following,
    /// The control plane wants everything drained and in pages.
    pub(crate) settling: bool,
    /// A keeper wants records up to here gone.
    pub(crate) pressed: Seq,
    /// Blocks of writes that were zeros, and so got no place.
    pub(crate) zero_blocks: u64,
    view_version: u64,
}

impl Volume {
    /// Begins to open the family in `record.epoch`.
    pub fn open(record: FamilyRecord, ctx: &mut Context) -> Self {
        let FamilyRecord {
            family,
            epoch,
            size,
            factor,
            mut segments,
            version,
            origin,
            rollback,
            compression,
            ceiling,
        } = record;
        if planted(Bug::SegmentsOfBefore) && segments.len() > 1 {
            segments.pop();
        }
        let mut volume = Self {
            family,
            epoch,
            size,
            factor,
            origin,
            compression,
            door: Door::new(ceiling),
            phase: Phase::Serving,
            log: Appender::new(family, epoch, factor, version, segments, Seq(1)),
            late: LateCopies::default(),
            waiters: BTreeMap::new(),
            overlay: Layers::new(Generation(0)),
            snapshots: Snapshots::default(),
            map: Map::default(),
            requests: Requests::default(),
            reads: Reads::default(),
            streams: Streams::default(),
            write_streams: Streams::default(),
            pattern: counters::Pattern::default(),
            drain: Drain::default(),
            placing: Placing::new(epoch),
            checkpointing: Checkpointing::default(),
            audit: Audit::default(),
            compaction: Compaction::default(),
            repacking: Repacking::new(compression, ctx.now),
            factoring: Factoring::default(),
            following: Following::default(),
            settling: false,
            pressed: Seq(0),
            zero_blocks: 0,
            view_version: ctx.view.version,
        };
        volume.open_rolling_back(rollback);
        volume.on_view(ctx);
        volume.begin_opening(ctx);
        volume
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn is_serving(&self) -> bool {
        matches!(self.phase, Phase::Serving)
    }

    pub fn is_failed(&self) -> bool {
        matches!(self.phase, Phase::Failed)
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn resize(&mut self, size: u64) {
        self.size = size;
    }

    /// Bytes acknowledged and not yet in egroups.
    pub fn dirty_bytes(&self) -> u64 {
        self.overlay.dirty_bytes()
    }

    /// Bytes of writes, since it was opened, that were zeros and so are not stored.
    pub fn zero_bytes(&self) -> u64 {
        self.zero_blocks * BLOCK as u64
    }

    /// Bytes that will need space in egroups: acknowledged or on their way.
    pub fn undrained_bytes(&self) -> u64 {
        self.overlay.dirty_bytes() + self.log.pending_bytes()
    }

    /// Whether clients have written to it lately.
    pub(crate) fn is_written_to(&self, now: Time) -> bool {
        let at = self.requests.last_written;
        at != Time(0) && now.since(at) < WRITTEN_LATELY_US
    }

    pub fn map(&self) -> &Map {
        &self.map
    }

    /// Bytes of leaf pages in memory.
    pub fn pages_bytes(&self) -> u64 {
        self.map.pages.bytes() as u64
    }

    /// Times that a leaf page was looked for in memory and found there, or not.
    pub fn page_hits(&self) -> u64 {
        self.map.pages.hits
    }

    pub fn page_misses(&self) -> u64 {
        self.map.pages.misses
    }

    /// What clients did, and where their writes went.
    pub fn pattern(&self) -> &counters::Pattern {
        &self.pattern
    }

    /// Where the reads of clients came from.
    pub fn read_sources(&self) -> &ReadSources {
        &self.reads.sources
    }

    /// Requests that its limits made wait, and how long together.
    pub fn throttled(&self) -> Throttled {
        self.door.throttled
    }

    pub fn is_pool_full(&self) -> bool {
        self.placing.is_full()
    }

    /// Data was refused, and has not been tried since. Nothing stays so that has nothing in its log.
    pub fn was_refused_room(&self) -> bool {
        self.placing.was_refused()
    }

    /// What it is at and waits for, for people who wonder why it stands still.
    pub fn describe(&self) -> String {
        let phase = match &self.phase {
            Phase::Opening(recovery) => format!("opening ({})", recovery.describe()),
            Phase::Serving => "serving".to_string(),
            Phase::Failed => "failed".to_string(),
        };
        format!(
            "{phase}; {}; {} dirty bytes, oldest record {:?}, pressed up to {}, {} requests waiting; {} edits; checkpoint: {}; \
             placing: {}; pool full {}, {} bytes known free",
            self.log.describe(),
            self.overlay.dirty_bytes(),
            self.overlay.oldest(),
            self.pressed,
            self.requests.waiting.len(),
            self.map.edits.len(),
            self.checkpointing.describe(),
            self.placing.describe(),
            self.placing.is_full(),
            self.placing.pool(),
        )
    }

    /// The answer to one of this volume's questions.
    pub fn on_answer(&mut self, answered: Answered, ctx: &mut Context) {
        let Answered { drive, purpose, answer, took_us, .. } = answered;
        if let Err(Refusal::Fenced(newer)) = &answer {
            // Somebody serves it elsewhere. Everything open here has an unknown outcome. (A keeper may also
            // say so to late questions of a former life; those carry older epochs and were forgotten.)
            assert!(*newer > self.epoch, "an owner is fenced by newer ones only");
            return self.fail(FamilyTrouble::Fenced, ctx);
        }
        if answer.is_ok()
            && let Some(stage) = self.stage_of(purpose, drive, ctx)
        {
            ctx.counters.stages.record_us(stage, took_us);
        }
        match purpose {
            Purpose::Fence => self.on_fenced(drive, answer, ctx),
            Purpose::Replay => self.on_replayed(drive, answer, ctx),
            Purpose::Append => match answer {
                Ok(Answer::Appended { up_to, room }) => self.log.on_appended(drive, up_to, room),
                Ok(other) => unreachable!("an append is answered by {other:?}"),
                Err(refusal) => self.log.on_append_refused(drive, refusal, ctx.now),
            },
            Purpose::Late => self.on_late(drive, answer, ctx),
            Purpose::Give => self.on_given(drive, answer, ctx.now),
            Purpose::Trim => {
                let room = if let Ok(Answer::Trimmed { room }) = answer { Some(room) } else { None };
                self.log.on_trimmed(drive, room);
            }
            Purpose::Place(job) => self.on_egroup_written(job, drive, answer, ctx),
            Purpose::Units(ask) => self.on_units(ask, drive, answer, ctx),
            // What was asked for before everything was read anew comes late, and is nobody's.
            Purpose::Load(load) if matches!(self.phase, Phase::Opening(_)) => {
                self.on_loaded(load, drive, answer)
            }
            Purpose::Load(_) => {}
            Purpose::Page(fetch) => self.on_page(fetch, drive, answer, ctx),
            Purpose::Audit(task) => self.on_audit(task, drive, answer, ctx),
            Purpose::Compact(job) => self.on_compact(job, drive, answer, ctx),
            Purpose::Space => ctx.space_asked.answered(drive),
            Purpose::Forget if answer.is_ok() => ctx.space_asked.note_deletion(ctx.now),
            Purpose::Forget | Purpose::TakeBack | Purpose::Drop => {}
        }
    }

    /// What an answer's time is counted as.
    fn stage_of(&self, purpose: Purpose, drive: DriveId, ctx: &Context) -> Option<Stage> {
        let near = |here, elsewhere| if ctx.is_near(drive) { here } else { elsewhere };
        match purpose {
            Purpose::Append => Some(near(Stage::LogLocal, Stage::LogRemote)),
            Purpose::Place(_) => Some(Stage::EgroupWrite),
            Purpose::Page(_) | Purpose::Load(_) => Some(Stage::MapPage),
            Purpose::Units(ask) if self.reads.is_for_client(ask) => {
                Some(near(Stage::UnitsLocal, Stage::UnitsRemote))
            }
            Purpose::Units(_) => Some(Stage::UnitsAhead),
            _ => None,
        }
    }

    pub fn on_pressed(&mut self, seq: Seq) {
        self.pressed = self.pressed.max(seq);
    }

    pub fn on_segments_changed(&mut self, version: u64, taken: bool, ctx: &mut Context) {
        // Members tell their room when they are fenced; of others it is asked when somebody waits for it.
        let rooms = match &self.phase {
            Phase::Opening(recovery) => recovery.rooms(),
            Phase::Serving | Phase::Failed => BTreeMap::new(),
        };
        match self.log.on_changed(version, taken, &rooms) {
            Changed::Taken => {}
            Changed::Refused => self.fail(FamilyTrouble::Fenced, ctx),
            Changed::Stale => {}
        }
    }

    /// Takes note of a view that has changed. Called before anything else is done with the volume: what was found out under
    /// the old view must not meet the new one. (Inputs that came together are settled together, so `advance` is too late.)
    pub fn see_view(&mut self, ctx: &mut Context) {
        if !self.is_failed() && self.view_version != ctx.view.version {
            self.view_version = ctx.view.version;
            self.on_view(ctx);
        }
    }

    /// Does whatever can be done now. Called after every input that concerns this volume.
    pub fn advance(&mut self, ctx: &mut Context) {
        if self.is_failed() {
            return;
        }
        // Applying a durable record can free room, and room lets new records in; each round makes progress,
        // and stops when nothing became durable.
        loop {
            let mut applied = false;
            while let Some(record) = self.log.take_durable() {
                self.on_durable(record, ctx);
                applied = true;
                if self.is_failed() {
                    return;
                }
            }
            if matches!(self.phase, Phase::Opening(_)) {
                self.advance_opening(ctx);
            }
            if self.is_serving() {
                if self.placing.is_out_of_names(ctx.limits) {
                    // Whoever opens it next has a new epoch, and so names that nobody has used.
                    return self.fail(FamilyTrouble::NamesUsed, ctx);
                }
                self.note_pool(ctx);
                self.continue_packing(ctx);
                self.retry_placing(ctx);
                self.retry_pages(ctx);
                self.open_door(ctx);
                // Before writes: these would take all the room there is.
                self.start_snapshots(ctx);
                self.start_waiting(ctx);
                self.continue_rollback(ctx);
                self.start_bypass(ctx);
                self.start_drain(ctx);
                self.start_checkpoint(ctx);
                self.start_factoring(ctx);
                self.start_compaction(ctx);
                self.start_repacking(ctx);
                self.start_following(ctx);
                self.start_audit(ctx);
                self.finish_settling(ctx);
            }
            if self.is_failed() {
                return;
            }
            // While there is no log yet, it wants members in every step.
            if !matches!(&self.phase, Phase::Opening(recovery) if !recovery.has_log())
                && self.log.wants_other_members(!self.is_serving(), ctx)
            {
                let members = self.log.choose_members(ctx);
                let old = self.log.segments.clone();
                self.log.change(old, members, ctx);
            } else if self.is_serving() && self.log.names_leaving_drives(ctx.view) {
                self.log.forget_trimmed(ctx);
            } else if self.is_serving() {
                self.make_late_copies(ctx);
            }
            self.log.pump(ctx);
            if !applied {
                break;
            }
        }
    }

    /// A record is held by all members.
    fn on_durable(&mut self, record: Record, ctx: &mut Context) {
        // Of what is appended again while the vDisk is opened the map may know already.
        let is_new = !matches!(&self.phase, Phase::Opening(recovery) if recovery.is_in_map(record.seq));
        self.apply(&record, is_new);
        if let Body::Map(map) = &record.body
            && is_new
        {
            self.on_named(map, ctx);
        }
        let seq = record.seq;
        match self.waiters.remove(&seq) {
            Some(Waiter::Request(request)) => self.finish_part(request, None, ctx),
            Some(Waiter::Partial { request, lock }) => {
                self.requests.unlock(lock);
                self.finish_part(request, None, ctx);
            }
            Some(Waiter::Bypass(requests)) => self.on_bypassed(requests, ctx),
            Some(Waiter::Compact(job)) => self.on_compacted(job, ctx),
            Some(Waiter::Checkpoint) => self.on_checkpoint_durable(seq, ctx),
            Some(Waiter::Mark(mark)) => self.on_marked(mark, ctx),
            // Nobody waits for the drain's records, nor for those that recovery appended again.
            Some(Waiter::Drain) | None => {}
        }
    }

    /// Puts a durable record into memory, now or when it is replayed. `edit`: its map edits are not in the
    /// pages yet.
    pub(crate) fn apply(&mut self, record: &Record, edit: bool) {
        match &record.body {
            Body::Data { block, data } => {
                let content = Content::Data(data.clone());
                self.overlay.insert(*block, data.blocks() as u64, record.seq, content);
                self.drain.on_written(data.len() as u64);
            }
            Body::Zero { block, count } => self.overlay.insert(*block, *count, record.seq, Content::Zero),
            Body::Map(map) => self.apply_map(map, edit),
            Body::Checkpoint(_) => {}
            Body::Mark(mark) => self.apply_mark(*mark, !edit),
        }
    }

    fn apply_map(&mut self, map: &MapRecord, edit: bool) {
        if let Some(named) = map.named
            && edit
        {
            self.map.name(named);
        }
        if let Some(named) = map.named
            && edit
        {
            map.moves.iter().for_each(|moved| self.map.moves.add(named.egroup, moved));
        }
        for change in &map.edits {
            self.overlay.release(map.generation, change.block, change.count, change.covers);
            if edit {
                let place = match (change.unit, map.named) {
                    (Some(unit), Some(named)) => Place::At { egroup: named.egroup, unit },
                    _ => Place::Nowhere,
                };
                self.map.edits.set(map.generation, change.block, change.count, place);
            }
        }
    }

    /// Egroups named by a record: their groups may have changed while they were written.
    pub(crate) fn on_named(&mut self, map: &MapRecord, ctx: &mut Context) {
        if let Some(named) = map.named {
            self.check_copies(named.egroup, named.group, ctx);
        }
    }

    /// The view has changed.
    fn on_view(&mut self, ctx: &mut Context) {
        if let Phase::Opening(recovery) = &mut self.phase {
            recovery.see_view(ctx);
        }
        let unnamed: Vec<EgroupId> = self.unnamed().collect();
        self.placing.on_groups_changed(self.factor, ctx.view);
        if self.audit.on_view(ctx.view, unnamed.into_iter()) {
            self.compaction.on_view(self.may_move());
            self.take_factor_back(ctx);
        }
    }

    /// Gives up: open requests are answered, and the control plane is told.
    pub(crate) fn fail(&mut self, reason: FamilyTrouble, ctx: &mut Context) {
        if self.is_failed() {
            return;
        }
        self.phase = Phase::Failed;
        self.close(RequestError::Fenced, ctx);
        ctx.notice(Notice::FamilyFailed { family: self.family, epoch: self.epoch, reason });
    }

    /// Answers everything that is open; nothing is done for it any more.
    pub fn close(&mut self, error: RequestError, ctx: &mut Context) {
        self.phase = Phase::Failed;
        self.requests.answer_all(error, ctx);
        self.door.answer_all(error, ctx);
        self.forget_aheads(ctx);
        ctx.calls.forget(self.family);
        // What it has asked drives for others as well, nobody hears any more.
        ctx.space_asked.forget_open();
    }

    /// If it was given up: what it had in its log is in no memory any more, and takes nothing from what the others of the shard may
    /// have there. Called when nothing of it runs: what finds out that it has to be given up may go on for a moment.
    pub fn let_go_if_failed(&mut self) {
        if self.is_failed() && self.undrained_bytes() > 0 {
            self.overlay = Layers::new(Generation(0));
            self.log.forget_pending();
            self.waiters.clear();
        }
    }

    /// The earliest time at which something is to be done without an input.
    pub fn wake_at(&self, now: Time) -> Option<Time> {
        if self.is_failed() {
            return None;
        }
        let log = [self.log.wake_at(now), self.opening_wake_at()];
        // What is done for a vDisk that is served is not due before: it would be asked for again and again.
        let served = [
            self.map.pages.wake_at(),
            self.late.wake_at().filter(|_| !self.log.is_changing()),
            self.drain.wake_at(&self.overlay),
            self.checkpointing.wake_at(),
            self.placing.wake_at(now),
            self.audit.wake_at(),
            self.compaction.wake_at(),
            self.repacking.wake_at(),
            self.following.wake_at(),
            self.factoring.wake_at(),
            self.requests.wake_at(),
            self.snapshots.wake_at(),
            self.door.wake_at(),
        ];
        let is_due = self.is_serving() || planted(Bug::WokenForNothing);
        log.into_iter().chain(served.into_iter().filter(|_| is_due)).flatten().min()
    }

    /// Whether a data or zero record of this range is not durable yet.
    pub(crate) fn is_being_written(&self, block: Block, count: u64) -> bool {
        self.log.pending().any(|record| {
            let (from, blocks) = match &record.body {
                Body::Data { block, data } => (*block, data.blocks() as u64),
                Body::Zero { block, count } => (*block, *count),
                Body::Map(_) | Body::Checkpoint(_) | Body::Mark(_) => return false,
            };
            from.0 < block.0 + count && block.0 < from.0 + blocks
        })
    }

    pub fn egroups(&self) -> impl Iterator<Item = EgroupId> + '_ {
        self.map.directory.iter().map(|(egroup, _)| egroup).chain(self.map.map_egroups.keys().copied())
    }
}
