//! The keeper of one drive: the half of a shard that looks after a log ring, egroups and fences.
//! Promises: each ask gets one answer; what it answers as done is durable; what it gives out is verified.
//! Leaves to others: what the records and units mean (the owners), and touching the drive (the node).
//!
//! `turns` says who may use the drive, `ring*` is the log, `egroup*` are the egroups, `opening` and `sweep` find both again, `desk` knows which
//! calls and operations are open.

mod desk;
mod egroup_change;
mod egroup_drop;
mod egroup_load;
mod egroup_read;
mod egroups;
mod holding;
mod holds;
mod opening;
mod pressure;
mod proof;
mod refill;
mod ring;
mod ring_append;
mod ring_carry;
mod ring_read;
pub mod ring_replay;
pub mod ring_scan;
mod ring_tail;
mod ring_write;
mod second_look;
mod share_index;
mod sharing;
mod space;
mod sweep;
#[cfg(test)]
mod tests;
mod torn_end;
pub mod turns;
mod untold;
mod withheld;

pub use share_index::ENTRY_COST;
pub use untold::DISCARD_BLOCKS_MIN;

use crate::buffer::{BLOCK, Buffer};
use crate::formats::references::References;
use crate::identity::{DriveId, EgroupId, Epoch, FamilyId, Seq, ShardId, Time};
use crate::interface::{Census, DriveFault, DriveOperation, DriveResult, DriveTrouble, Notice};
use crate::limits::Limits;
use crate::message::{LostWrite, Message, Question, Refusal};
use crate::openings::Wish;
use crate::sabotage::{Bug, planted};
use desk::{Caller, Desk, Work};
use egroup_change::WriteOrder;
use egroups::Store;
use opening::{Opening, Progress};
use ring::Ring;
use ring_append::LateRecords;
use std::collections::{BTreeMap, BTreeSet};
use turns::{HeldBack, Turn, Turns};

/// Asks of other shards that wait for the drive to be opened at most; more are not answered, and come again. What the own shard asks comes
/// only once, and is no more than its vDisks have under way.
const WAITING_MAX: usize = 1024;

/// What a keeper wants done.
#[derive(Debug, Default)]
pub struct Effects {
    pub operations: Vec<DriveOperation>,
    pub messages: Vec<(ShardId, Message)>,
    pub notices: Vec<Notice>,
    pub tally: Tally,
}

/// The epoch of an owner that will never be.
const NOBODY: Epoch = Epoch(u32::MAX);

/// What a keeper counts on its way.
#[derive(Debug, Default)]
pub struct Tally {
    pub frames_unpacked: u64,
    /// Egroups that were read, and those that are not known here.
    pub map_hits: u64,
    pub map_misses: u64,
    /// What was hashed so that it may be shared, and what of that lay on the drive already.
    pub bytes_hashed: u64,
    pub bytes_shared: u64,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        let Tally { frames_unpacked, map_hits, map_misses, bytes_hashed, bytes_shared } = other;
        self.frames_unpacked += frames_unpacked;
        self.map_hits += map_hits;
        self.map_misses += map_misses;
        self.bytes_hashed += bytes_hashed;
        self.bytes_shared += bytes_shared;
    }
}

/// What sharing gives on a drive, and what it costs in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shared {
    /// Bytes that the egroups there would take more if each had all of its own.
    pub saved_bytes: u64,
    /// Bytes that are there only because egroups refer to them: the one that they were written in is gone.
    pub held_bytes: u64,
    /// What is known by its hash, of at most how much, and the memory of that.
    pub entries: u64,
    pub entries_max: u64,
    pub memory_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Opening,
    Ready,
    Failed,
}

/// One egroup as it lies on the drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEgroup {
    pub family: FamilyId,
    pub egroup: EgroupId,
    /// First 4 KiB block of its run, counted from the start of the data area.
    pub first: u64,
    /// Blocks of the run: those of its units, packed or not, that do not lie elsewhere, and the trailer behind them.
    pub blocks: u64,
    pub units: u32,
    /// Bytes that all of its units take, wherever they lie, and blocks.
    pub data_bytes: u32,
    pub data_blocks: u32,
    /// What lies elsewhere.
    pub references: References,
}

enum Phase {
    Opening(Box<Opening>),
    Ready,
    Failed,
}

/// An ask that came while the drive was being opened.
struct Waiting {
    caller: Caller,
    epoch: Epoch,
    question: Question,
}

pub struct Keeper {
    /// The shard that it is a part of.
    home: ShardId,
    phase: Phase,
    limits: Limits,
    desk: Desk,
    ring: Ring,
    store: Store,
    turns: Turns,
    waiting: Vec<Waiting>,
    /// Calls that drop a family and wait for a frame that says so.
    drops: BTreeMap<FamilyId, Vec<u64>>,
    census: Census,
    /// Families that were dropped because they are no more.
    gone: BTreeSet<FamilyId>,
}

impl Keeper {
    /// Begins to use a drive; `format` makes it empty first. Of another `incarnation` than the one that is meant nothing is used. Ends in
    /// `Notice::DriveReady` or `DriveFailed`. `token_base` is the part of all its tokens that tells the opening, see [`crate::openings`].
    pub fn open(
        drive: DriveId,
        home: ShardId,
        wish: Wish,
        token_base: u64,
        limits: &Limits,
        effects: &mut Effects,
    ) -> Keeper {
        let Wish { geometry, format, incarnation } = wish;
        let mut desk = Desk::new(drive, token_base);
        let opening = Opening::begin(geometry, format, incarnation, &mut desk);
        let mut keeper = Keeper {
            home,
            phase: Phase::Opening(Box::new(opening)),
            limits: limits.clone(),
            desk,
            // Both are made anew when it is known in which incarnation.
            ring: Ring::empty(geometry.log, 0, limits),
            store: Store::empty(geometry.data, 0, limits.shared_entries_max),
            turns: Turns::new(limits.turn_bytes),
            waiting: Vec::new(),
            drops: BTreeMap::new(),
            census: Census::default(),
            gone: BTreeSet::new(),
        };
        keeper.hand_over(effects);
        keeper
    }

    /// The operation `token` ended. Operations of an earlier keeper of this drive are ignored.
    pub fn on_drive_done(
        &mut self,
        now: Time,
        token: u64,
        result: Result<DriveResult, DriveFault>,
        effects: &mut Effects,
    ) {
        let Some(work) = self.desk.landed(token) else { return };
        let read = match (result, &work) {
            (Ok(DriveResult::Read(bytes)), _) => Some(bytes),
            (Ok(DriveResult::Done), _) => None,
            (Ok(DriveResult::Ignored), _) => {
                self.store.on_hint_ignored();
                None
            }
            // A part that cannot be read is what checksums and copies are for, and a hint is a hint.
            (Err(DriveFault::Unreadable), work) if work.is_read() || work.is_hint() => None,
            // A write or flush that failed may have done anything: nothing here is certain any more.
            (Err(_), _) => {
                self.fail(DriveTrouble::Gone);
                return self.hand_over(effects);
            }
        };
        self.on_landed(now, work, read);
        self.finish_step(now, effects);
    }

    fn on_landed(&mut self, now: Time, work: Work, read: Option<Buffer>) {
        let Self { ring, store, desk, .. } = self;
        match work {
            Work::Frame { number } if matches!(self.phase, Phase::Ready) => {
                for family in ring.on_frame_written(now, number, desk) {
                    for call in self.drops.remove(&family).unwrap_or_default() {
                        store.count_deleted(call, desk);
                    }
                }
            }
            Work::Load { piece } => ring.on_load_read(piece, read, desk),
            Work::LogPart { job, part } => ring.on_log_read(now, job, part, read, desk),
            Work::Stored { job } => store.on_written(job),
            Work::Flush => store.on_flushed(desk),
            Work::Units { job, part } => store.on_units_read(job, part, read, desk),
            Work::UnitsAgain { job, unit } => store.on_frame_read(job, unit, read, desk),
            Work::Trailer { job } => store.on_trailer_read(job, read, desk),
            Work::Refill { name, slot } => store.on_hashes_read(now, name, slot, read, desk),
            Work::Proof { job, run } => store.on_proof_read(job, run, read, desk),
            Work::Discard { first, blocks } => store.on_discarded(now, first, blocks),
            Work::Superblock { .. }
            | Work::Format
            | Work::FirstFlush
            | Work::Sweep { .. }
            | Work::Doubtful { .. }
            | Work::Erased
            | Work::Frame { .. } => {
                self.on_opened_further(now, work, read);
            }
        }
    }

    fn on_opened_further(&mut self, now: Time, work: Work, read: Option<Buffer>) {
        let Self { phase, limits, ring, store, desk, .. } = self;
        let Phase::Opening(opening) = phase else { unreachable!("a drive is opened once") };
        let progress = match work {
            Work::Superblock { copy } => opening.on_superblock(now, copy, read, limits, ring, store, desk),
            Work::Format => opening.on_formatted(),
            Work::FirstFlush => opening.on_first_flush(ring, store, desk),
            Work::Sweep { area, offset, len } => {
                opening.on_sweep(now, area, offset, len, read, ring, store, desk)
            }
            Work::Doubtful { slot } => opening.on_read_again(now, slot, read, ring, store, desk),
            Work::Erased => opening.clear_doubts(now, ring, store, desk),
            Work::Frame { number } => opening.on_first_frame(now, number, ring, desk),
            _ => unreachable!("the caller sorts them out"),
        };
        self.opened_further(now, progress);
    }

    fn opened_further(&mut self, now: Time, progress: Progress) {
        match progress {
            Progress::Waiting => {}
            Progress::Failed(trouble) => self.fail(trouble),
            Progress::Ready => {
                self.phase = Phase::Ready;
                self.desk.notice(Notice::DriveReady { drive: self.desk.drive });
                self.tell_strays();
                for Waiting { caller, epoch, question } in std::mem::take(&mut self.waiting) {
                    self.handle(now, caller, epoch, question);
                }
            }
        }
    }

    /// An owner asks. A call that is being worked on already is ignored; one that was answered before is
    /// done again, which changes nothing.
    #[expect(clippy::too_many_arguments, reason = "the fields of Message::Ask")]
    pub fn on_ask(
        &mut self,
        now: Time,
        from: ShardId,
        call: u64,
        family: FamilyId,
        epoch: Epoch,
        question: Question,
        effects: &mut Effects,
    ) {
        let caller = Caller { from, call, family };
        if matches!(self.phase, Phase::Opening(_)) && self.is_crowded(from) {
            return;
        }
        if !self.desk.begin(caller) {
            return;
        }
        match self.phase {
            Phase::Opening(_) => self.waiting.push(Waiting { caller, epoch, question }),
            Phase::Ready => self.handle(now, caller, epoch, question),
            Phase::Failed => self.desk.refuse(caller, Refusal::DriveGone),
        }
        self.finish_step(now, effects);
    }

    /// Whether whoever asks has to come again, as enough wait already.
    fn is_crowded(&self, from: ShardId) -> bool {
        let comes_again = from != self.home || planted(Bug::OwnAskForgotten);
        comes_again && self.waiting.len() >= WAITING_MAX
    }

    /// Now, or when its turn has come.
    fn handle(&mut self, now: Time, caller: Caller, epoch: Epoch, question: Question) {
        // What its owner wrote before has to be found being written: else it would stay behind.
        while let Some(turn) = self.turns.take_before(now, caller.family, &question) {
            self.carry_out(now, turn.caller, turn.epoch, turn.question);
        }
        if let Some(question) = self.turns.ask(now, caller, epoch, question) {
            self.carry_out(now, caller, epoch, question);
        }
    }

    /// Lets in whoever waits for a turn, as turns end.
    fn give_turns(&mut self, now: Time) {
        loop {
            for caller in self.desk.answered.drain(..) {
                self.turns.ended(caller);
            }
            let Some(Turn { caller, epoch, question, .. }) = self.turns.next(now) else { return };
            self.carry_out(now, caller, epoch, question);
        }
    }

    fn carry_out(&mut self, now: Time, caller: Caller, epoch: Epoch, question: Question) {
        let Self { limits, ring, store, desk, .. } = self;
        // What units say does not depend on who owns them.
        if let Question::ReadUnits { egroup, runs, frames, behind: _ } = question {
            return store.read_units(caller, egroup, runs, frames, desk);
        }
        // Whoever still owns what is no more would write what nobody ever deletes.
        if self.gone.contains(&caller.family) && !matches!(question, Question::DropFamily) {
            return desk.refuse(caller, Refusal::Fenced(NOBODY));
        }
        if let Some(fence) = ring.fenced(caller.family, epoch)
            && !(planted(Bug::StaleEpochAccepted) && matches!(question, Question::Append { .. }))
        {
            return desk.refuse(caller, Refusal::Fenced(fence));
        }
        ring.admit(caller.from, caller.family, epoch, desk);
        match question {
            Question::Fence { first, since } => ring.fence(now, caller, epoch, first, since, desk),
            Question::Append { first, trim, records } => {
                ring.trim(now, caller.family, epoch, trim);
                ring.append(now, caller, epoch, first, records, desk);
            }
            Question::AppendLate { first, since, records, urgent } => {
                ring.append_late(now, caller, epoch, LateRecords { first, since, records, urgent }, desk);
            }
            Question::Trim { up_to } => {
                ring.trim(now, caller.family, epoch, up_to);
                let room = ring.room(now);
                desk.answer(caller, Ok(crate::message::Answer::Trimmed { room }));
            }
            Question::ReadLog { from, bytes } => ring.read_log(now, caller, from, bytes, desk),
            Question::WriteEgroup { egroup, class, content, blocks, replace, sharing, lacking } => {
                let order = WriteOrder { egroup, class, content, blocks, replace, sharing, lacking };
                store.write(caller, order, desk);
            }
            Question::ReadUnits { .. } => unreachable!("answered above"),
            Question::ReadFrames { egroup, runs } => store.read_frames(caller, egroup, runs, desk),
            Question::DescribeEgroup { egroup } => store.describe(caller, egroup, desk),
            Question::DeleteEgroups { egroups } => store.delete(caller, &egroups, desk),
            Question::ListEgroups { after } => store.list(caller, after, limits.names_listed_max, desk),
            Question::DropFamily => self.drop_family(caller.family, Some(caller)),
        }
    }

    fn drop_family(&mut self, family: FamilyId, caller: Option<Caller>) {
        let call = self.store.delete_family(family, caller);
        // Without a word in the log its records would come back at the next opening, and nobody would ever
        // trim them.
        if self.ring.drop_family(family) {
            self.drops.entry(family).or_default().push(call);
        } else {
            self.store.count_deleted(call, &mut self.desk);
        }
    }

    /// Which families there are. Harmless at any time.
    pub fn on_census(&mut self, now: Time, census: Census, effects: &mut Effects) {
        self.census = census;
        if matches!(self.phase, Phase::Ready) {
            self.tell_strays();
        }
        self.finish_step(now, effects);
    }

    /// Tells what is here of families that are no more: a drive that lost what it had acknowledged has forgotten that they were
    /// dropped, or somebody who had slept through that wrote to it once more. And of families without a record that may be alive.
    fn tell_strays(&mut self) {
        let mut held = self.store.families();
        held.extend(self.ring.families());
        held.retain(|family| !self.gone.contains(family));
        let drive = self.desk.drive;
        for family in held {
            if self.census.is_deleted(family) {
                self.desk.notice(Notice::StrayFound { drive, family });
            } else if self.census.is_unknown(family) {
                self.desk.notice(Notice::UnknownFound { drive, family });
            }
        }
    }

    /// See [`crate::interface::Order::DropStray`].
    pub fn drop_stray(&mut self, now: Time, family: FamilyId, effects: &mut Effects) {
        if matches!(self.phase, Phase::Ready) && !planted(Bug::StraysStay) && self.gone.insert(family) {
            // Whoever waits for an answer must not get one as if nothing had happened.
            self.ring.shut_out(family, NOBODY, &mut self.desk);
            self.drop_family(family, None);
        }
        self.finish_step(now, effects);
    }

    /// See [`crate::interface::Order::Rest`].
    pub fn rest(&mut self, now: Time, effects: &mut Effects) {
        self.ring.rests = !self.ring.frames.is_empty();
        self.finish_step(now, effects);
    }

    /// Something is hashed in slices, so that others have their turn.
    pub fn is_hashing(&self) -> bool {
        self.store.sharing.is_waiting()
    }

    /// When something is to be done although nothing happens.
    pub fn wake_at(&self) -> Option<Time> {
        match &self.phase {
            Phase::Opening(opening) => return opening.wake_at(),
            Phase::Failed => return None,
            Phase::Ready => {}
        }
        if self.is_hashing() {
            return Some(Time(0));
        }
        let discards_at = self.store.discards_at(&self.limits);
        [self.ring.wake_at(), self.store.refill_at(), discards_at].into_iter().flatten().min()
    }

    /// The time of [`Keeper::wake_at`] has come. Harmless at any other time.
    pub fn on_wake(&mut self, now: Time, effects: &mut Effects) {
        match &mut self.phase {
            Phase::Opening(opening) => {
                let progress = opening.on_wake(now, &mut self.ring, &mut self.store, &mut self.desk);
                self.opened_further(now, progress);
            }
            Phase::Ready => {
                self.store.continue_hashing(now, &mut self.desk);
                self.store.continue_refill(now, &mut self.desk);
            }
            Phase::Failed => {}
        }
        self.finish_step(now, effects);
    }

    /// Begins what this step made possible, and hands everything over.
    fn finish_step(&mut self, now: Time, effects: &mut Effects) {
        if matches!(self.phase, Phase::Ready) {
            self.store.continue_drops(self.limits.erased_together, &mut self.desk);
            self.give_turns(now);
            self.ring.carry(now, &mut self.desk);
            self.ring.pump(now, &mut self.desk);
            self.ring.press(now, &mut self.desk);
            self.store.continue_discards(now, &self.limits, &mut self.desk);
        } else {
            self.desk.answered.clear();
        }
        if !matches!(self.phase, Phase::Failed) {
            self.store.pump_flush(&mut self.desk);
        }
        self.hand_over(effects);
    }

    fn hand_over(&mut self, effects: &mut Effects) {
        let free = self.free_bytes();
        self.desk.hand_over(free, |family| self.store.has_some_of(family), effects);
    }

    fn fail(&mut self, reason: DriveTrouble) {
        self.phase = Phase::Failed;
        self.waiting.clear();
        self.drops.clear();
        self.turns.abandon();
        self.desk.abandon();
        self.desk.notice(Notice::DriveFailed { drive: self.desk.drive, reason });
    }

    pub fn drive(&self) -> DriveId {
        self.desk.drive
    }

    pub fn state(&self) -> State {
        match self.phase {
            Phase::Opening(_) => State::Opening,
            Phase::Ready => State::Ready,
            Phase::Failed => State::Failed,
        }
    }

    /// Bytes that client data may still take.
    pub fn free_bytes(&self) -> u64 {
        if matches!(self.phase, Phase::Ready) { self.store.free_bytes() } else { 0 }
    }

    /// Everything stored, in order of family and name.
    pub fn egroups(&self) -> impl Iterator<Item = StoredEgroup> + '_ {
        self.store.iter()
    }

    /// What sharing gives and takes here.
    pub fn shared(&self) -> Shared {
        let (holds, index) = (&self.store.holds, &self.store.sharing.index);
        let saved = self.store.referred_blocks.saturating_sub(holds.left_blocks());
        Shared {
            saved_bytes: saved * BLOCK as u64,
            held_bytes: holds.left_blocks() * BLOCK as u64,
            entries: index.len() as u64,
            entries_max: index.limit() as u64,
            memory_bytes: index.len() as u64 * share_index::ENTRY_COST,
        }
    }

    /// Bytes of the log ring.
    pub fn log_bytes(&self) -> u64 {
        self.ring.blocks * BLOCK as u64
    }

    /// Bytes of the log ring that are not free.
    pub fn log_bytes_used(&self) -> u64 {
        self.ring.used() * BLOCK as u64
    }

    /// What waited here for its turn.
    pub fn held_back(&self) -> HeldBack {
        self.turns.held
    }

    /// vDisks whose reads wait for a turn, and bytes of each that are in flight; for judges.
    pub fn readers_waiting(&self) -> impl Iterator<Item = (FamilyId, u64)> + '_ {
        self.turns.readers_waiting()
    }

    /// Writes in the log of which any later opening knows that they were there, and the block of the log each begins at; for judges.
    pub fn settled_writes(&self) -> impl Iterator<Item = (FamilyId, LostWrite, u64)> + '_ {
        self.ring.settled_writes()
    }

    /// The lowest and highest record held of each family that has records here.
    pub fn log_ranges(&self) -> impl Iterator<Item = (FamilyId, Seq, Seq)> + '_ {
        self.ring.ranges()
    }

    /// What fills the drive, for people who wonder why it stands still.
    pub fn describe(&self) -> String {
        let (free, stored, moving) = self.unit_blocks();
        format!(
            "{}; {}; units: {free} blocks free of which data may take {}, {stored} stored, {moving} on their way, {} entries free",
            self.ring.describe(),
            self.turns.describe(),
            self.free_bytes() / BLOCK as u64,
            self.store.free_slots.len()
        )
    }

    /// Free blocks, blocks of egroups (of their runs, and those that only references hold) and blocks on their way in or out; together
    /// the whole unit area (I8).
    pub fn unit_blocks(&self) -> (u64, u64, u64) {
        let free = self.store.space.free_blocks();
        let runs: u64 = self.store.iter().map(|stored| stored.blocks).sum();
        let stored = runs + self.store.holds.left_blocks();
        (free, stored, self.store.layout.end - self.store.layout.units - free - stored)
    }
}
