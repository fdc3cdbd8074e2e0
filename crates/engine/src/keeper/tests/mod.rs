//! A keeper on a pretend drive: operations end in any order, and a crash loses what was not made durable.

mod carry_stories;
mod discard_stories;
mod drop_stories;
mod egroup_model;
mod egroup_stories;
mod log_model;
mod log_stories;
mod packed_stories;
#[cfg(feature = "sabotage")]
mod planted_bugs;
mod proof_stories;
mod second_look_stories;
mod share_model;
mod share_stories;
mod torn_end_stories;
mod turn_stories;

use super::ring_scan::RingScan;
use super::{Effects, Keeper, State};
use crate::buffer::{BLOCK, Buffer, Pages};
use crate::formats::frame::FrameHeader;
use crate::formats::record::{Body, Record};
use crate::identity::{Block, DriveId, Epoch, FamilyId, Seq, ShardId, Time};
use crate::interface::{Area, Census, DriveFault, DriveOperation, DriveResult, DriveWork, Geometry, Notice};
use crate::limits::Limits;
use crate::message::{Answer, Message, Question, Refusal};
use crate::openings::{TOKEN_BITS, Wish};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

type Bytes = Box<[u8]>;
type Place = (Area, u64);

const OWNER: ShardId = ShardId(9);
/// The shard of the drive.
const HOME: ShardId = ShardId(1);

/// Begins to open the drive that all these tests are about.
fn open(wish: Wish, limits: &Limits, effects: &mut Effects) -> Keeper {
    Keeper::open(DriveId(1), HOME, wish, 1 << TOKEN_BITS, limits, effects)
}

struct Submitted {
    operation: DriveOperation,
    /// Writes that had ended when this was submitted.
    after: u64,
}

/// A drive with a cache. Blocks that were never written read as zeros.
#[derive(Default)]
struct PretendDrive {
    durable: BTreeMap<Place, Bytes>,
    /// What each block may hold after a crash, oldest first, with the number of the write.
    cached: BTreeMap<Place, Vec<(u64, Bytes)>>,
    ended: u64,
    submitted: Vec<Submitted>,
    unreadable: BTreeSet<Place>,
    /// Reads of these return flipped bits, once.
    flips: BTreeSet<Place>,
    /// Hints that it was given.
    hints: u64,
}

impl PretendDrive {
    fn read(&mut self, place: Place) -> Bytes {
        let cached = self.cached.get(&place).and_then(|writes| writes.last()).map(|(_, bytes)| bytes);
        let bytes = cached.or_else(|| self.durable.get(&place)).cloned();
        let mut bytes = bytes.unwrap_or_else(|| vec![0; BLOCK].into());
        if self.flips.remove(&place) {
            bytes[100] ^= 4;
        }
        bytes
    }

    fn write(&mut self, place: Place, bytes: Bytes, durable: bool) {
        if durable {
            self.cached.remove(&place);
            self.durable.insert(place, bytes);
        } else {
            self.cached.entry(place).or_default().push((self.ended, bytes));
        }
    }

    fn blocks_of(operation: &DriveOperation) -> Vec<(Place, Bytes)> {
        let DriveWork::Write { offset, pieces, .. } = &operation.work else { return Vec::new() };
        let mut bytes = Vec::new();
        for piece in pieces {
            assert_eq!(piece.bytes().as_ptr() as usize % BLOCK, 0, "drives want aligned memory");
            assert_eq!(piece.len() % BLOCK, 0, "drives want whole blocks");
            bytes.extend_from_slice(piece.bytes());
        }
        let places = (offset / BLOCK as u64..).map(|block| (operation.area, block));
        places.zip(bytes.chunks_exact(BLOCK).map(Bytes::from)).collect()
    }

    /// What a hint leaves behind.
    fn discarded_by(operation: &DriveOperation) -> Vec<(Place, Bytes)> {
        let DriveWork::Discard { offset, len } = operation.work else { return Vec::new() };
        let blocks = offset / BLOCK as u64..(offset + len) / BLOCK as u64;
        blocks.map(|block| ((operation.area, block), vec![0xdd; BLOCK].into())).collect()
    }

    /// Ends one operation.
    fn end(&mut self, index: usize) -> (u64, Result<DriveResult, DriveFault>) {
        let Submitted { operation, after } = self.submitted.swap_remove(index);
        let DriveOperation { token, area, .. } = operation;
        self.ended += 1;
        let result = match &operation.work {
            DriveWork::Read { offset, len } => {
                let first = offset / BLOCK as u64;
                let blocks: Vec<u64> = (first..first + u64::from(*len) / BLOCK as u64).collect();
                if blocks.iter().any(|block| self.unreadable.contains(&(area, *block))) {
                    return (token, Err(DriveFault::Unreadable));
                }
                let bytes: Vec<u8> =
                    blocks.iter().flat_map(|block| self.read((area, *block)).to_vec()).collect();
                Ok(DriveResult::Read(Pages::copied(&bytes).freeze()))
            }
            DriveWork::Write { durable, .. } => {
                for (place, bytes) in Self::blocks_of(&operation) {
                    self.write(place, bytes, *durable);
                }
                Ok(DriveResult::Done)
            }
            DriveWork::Flush => {
                for (place, writes) in self.cached.iter_mut().filter(|((a, _), _)| *a == area) {
                    while writes.first().is_some_and(|(number, _)| *number <= after) {
                        self.durable.insert(*place, writes.remove(0).1);
                    }
                }
                self.cached.retain(|_, writes| !writes.is_empty());
                Ok(DriveResult::Done)
            }
            DriveWork::Discard { .. } => {
                for (place, bytes) in Self::discarded_by(&operation) {
                    self.write(place, bytes, false);
                }
                self.hints += 1;
                Ok(DriveResult::Done)
            }
        };
        (token, result)
    }

    /// The power is cut: of what is not durable any part may have arrived.
    fn crash(&mut self, random: &mut SmallRng) {
        for Submitted { operation, .. } in std::mem::take(&mut self.submitted) {
            let keep = random.random_range(0..3);
            for (place, bytes) in
                Self::blocks_of(&operation).into_iter().chain(Self::discarded_by(&operation))
            {
                if keep == 1 || keep == 2 && random.random() {
                    self.write(place, bytes, false);
                }
            }
        }
        for (place, mut writes) in std::mem::take(&mut self.cached) {
            if let Some(kept) = random.random_range(0..=writes.len()).checked_sub(1) {
                self.durable.insert(place, writes.swap_remove(kept).1);
            }
        }
    }
}

struct Rig {
    keeper: Keeper,
    drive: PretendDrive,
    random: SmallRng,
    now: Time,
    geometry: Geometry,
    /// Which life of the drive is meant.
    incarnation: Option<u64>,
    limits: Limits,
    answers: BTreeMap<u64, Result<Answer, Refusal>>,
    pressed: Vec<(FamilyId, Seq)>,
    notices: Vec<Notice>,
    call: u64,
    effects: Effects,
}

impl Rig {
    /// A formatted drive that is ready.
    fn new(seed: u64, log: u64, data: u64) -> Self {
        Self::with(seed, log, data, Limits::small())
    }

    /// One that hears soon of what is free.
    fn hinted(seed: u64, log: u64, data: u64) -> Self {
        let discard_after_us = [0, 300, 2_000][seed as usize % 3];
        Self::with(
            seed,
            log,
            data,
            Limits { discard_after_us, discard_bytes_max: 64 << 10, ..Limits::small() },
        )
    }

    fn with(seed: u64, log: u64, data: u64, limits: Limits) -> Self {
        limits.check();
        let geometry = Geometry { log, data };
        let mut effects = Effects::default();
        let keeper = open(Wish { geometry, format: true, incarnation: None }, &limits, &mut effects);
        let mut rig = Self {
            keeper,
            drive: PretendDrive::default(),
            random: SmallRng::seed_from_u64(seed),
            now: Time(1_000_000),
            geometry,
            incarnation: None,
            limits,
            answers: BTreeMap::new(),
            pressed: Vec::new(),
            notices: Vec::new(),
            call: 0,
            effects,
        };
        rig.run();
        assert_eq!(rig.keeper.state(), State::Ready);
        rig
    }

    fn small(seed: u64) -> Self {
        Self::new(seed, 1 << 20, 16 << 20)
    }

    fn take_effects(&mut self) {
        for operation in self.effects.operations.drain(..) {
            self.drive.submitted.push(Submitted { operation, after: self.drive.ended });
        }
        for (to, message) in self.effects.messages.drain(..) {
            match message {
                Message::Answer { call, answer, .. } => {
                    assert!(to == OWNER || to == HOME);
                    assert!(self.answers.insert(call, answer).is_none(), "one answer for each call");
                }
                Message::Press { family, seq, .. } => self.pressed.push((family, seq)),
                Message::Ask { .. } => unreachable!("keepers ask nobody"),
            }
        }
        self.notices.append(&mut self.effects.notices);
    }

    /// Ends one operation, any of those in flight, or lets the keeper go on with what is due. False if there is nothing to do.
    fn step(&mut self) -> bool {
        self.take_effects();
        let is_due = self.keeper.wake_at().is_some_and(|at| at <= self.now);
        if is_due && (self.drive.submitted.is_empty() || self.random.random()) {
            self.now = self.now.after(1);
            self.keeper.on_wake(self.now, &mut self.effects);
            self.take_effects();
            return true;
        }
        if self.drive.submitted.is_empty() {
            return false;
        }
        let index = self.random.random_range(0..self.drive.submitted.len());
        self.end(index);
        true
    }

    fn end(&mut self, index: usize) {
        let (token, result) = self.drive.end(index);
        self.now = self.now.after(50);
        self.keeper.on_drive_done(self.now, token, result, &mut self.effects);
        self.take_effects();
    }

    fn run(&mut self) {
        while self.step() {}
    }

    fn begin(&mut self, family: u32, epoch: u32, question: Question) -> u64 {
        self.call += 1;
        let (family, epoch) = (FamilyId(family), Epoch(epoch));
        self.keeper.on_ask(self.now, OWNER, self.call, family, epoch, question, &mut self.effects);
        self.take_effects();
        self.call
    }

    /// What was asked before arrives once more.
    fn repeat(&mut self, call: u64, family: u32, epoch: u32, question: Question) {
        let (family, epoch) = (FamilyId(family), Epoch(epoch));
        self.keeper.on_ask(self.now, OWNER, call, family, epoch, question, &mut self.effects);
        self.take_effects();
    }

    fn ask(&mut self, family: u32, epoch: u32, question: Question) -> Result<Answer, Refusal> {
        let call = self.begin(family, epoch, question);
        self.run();
        self.answers.remove(&call).expect("every ask is answered")
    }

    fn wake(&mut self) {
        self.wake_only();
        self.run();
    }

    fn wake_only(&mut self) {
        if let Some(at) = self.keeper.wake_at() {
            self.now = self.now.max(at);
            self.keeper.on_wake(self.now, &mut self.effects);
            self.take_effects();
        }
    }

    /// Gives the families that the keeper says should not be there.
    fn tell(&mut self, census: Census) -> Vec<FamilyId> {
        self.notices.clear();
        self.keeper.on_census(self.now, census, &mut self.effects);
        self.run();
        let strays = self.notices.iter().filter_map(|notice| match notice {
            Notice::StrayFound { family, .. } => Some(*family),
            _ => None,
        });
        strays.collect()
    }

    /// Those of which it has said last that nothing is known.
    fn unknown_found(&self) -> Vec<FamilyId> {
        let found = self.notices.iter().filter_map(|notice| match notice {
            Notice::UnknownFound { family, .. } => Some(*family),
            _ => None,
        });
        found.collect()
    }

    fn drop_stray(&mut self, family: u32) {
        self.keeper.drop_stray(self.now, FamilyId(family), &mut self.effects);
        self.run();
    }

    /// The power is cut, and the keeper is told which families there are before it has opened the drive.
    fn crash_and_tell(&mut self, census: Census) -> Vec<FamilyId> {
        self.take_effects();
        let mut random = SmallRng::seed_from_u64(self.random.random());
        self.drive.crash(&mut random);
        self.restart();
        let strays = self.tell(census);
        self.open();
        strays
    }

    /// The power is cut and comes back.
    fn crash(&mut self) {
        self.take_effects();
        let mut random = SmallRng::seed_from_u64(self.random.random());
        self.drive.crash(&mut random);
        self.reopen();
    }

    /// The process ends and is started again; what is in the drive's cache stays there.
    fn reopen(&mut self) {
        self.restart();
        self.open();
        assert_eq!(self.keeper.state(), State::Ready, "{:?}", self.notices);
    }

    /// The opening of the drive comes to its end, however often something has to be looked at.
    fn open(&mut self) {
        self.run();
        while self.keeper.state() == State::Opening {
            assert!(self.keeper.wake_at().is_some(), "it waits for nothing");
            self.wake();
        }
    }

    fn restart(&mut self) {
        self.drive.submitted.clear();
        self.effects = Effects::default();
        self.answers.clear();
        self.notices.clear();
        self.begin_opening();
    }

    /// Begins to open the drive as it is.
    fn begin_opening(&mut self) {
        let wish = Wish { geometry: self.geometry, format: false, incarnation: self.incarnation };
        self.keeper = open(wish, &self.limits, &mut self.effects);
    }

    fn append(
        &mut self,
        family: u32,
        epoch: u32,
        first: u64,
        records: Vec<Record>,
    ) -> Result<Answer, Refusal> {
        self.ask(family, epoch, Question::Append { first: Seq(first), trim: Seq(0), records })
    }

    fn append_ok(&mut self, family: u32, epoch: u32, first: u64, records: Vec<Record>) {
        let last = records.last().expect("something is appended").seq;
        match self.append(family, epoch, first, records) {
            Ok(Answer::Appended { up_to, .. }) => assert_eq!(up_to, last),
            other => panic!("{other:?}"),
        }
    }

    fn fence(&mut self, family: u32, epoch: u32) -> crate::message::Held {
        self.fence_from(family, epoch, 1, 0)
    }

    /// By whom the last part of the log begins with `first`, in epoch `since`.
    fn fence_from(&mut self, family: u32, epoch: u32, first: u64, since: u32) -> crate::message::Held {
        match self.ask(family, epoch, Question::Fence { first: Seq(first), since: Epoch(since) }) {
            Ok(Answer::Fenced(held)) => held,
            other => panic!("{other:?}"),
        }
    }

    /// All records of a family, read in small pieces.
    fn read_log(&mut self, family: u32, epoch: u32) -> Vec<Record> {
        let mut all: Vec<Record> = Vec::new();
        loop {
            let from = all.last().map_or(Seq(0), |record| record.seq).next();
            match self.ask(family, epoch, Question::ReadLog { from, bytes: 40_000 }) {
                Ok(Answer::Records { records, end, .. }) => {
                    let stuck = records.is_empty();
                    all.extend(records);
                    if end {
                        return all;
                    }
                    assert!(!stuck, "a part of the records that is not the last has some");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// The headers of the frames that lie in the ring, by number.
    fn frames(&mut self) -> BTreeMap<u64, FrameHeader> {
        let mut scan = RingScan::new(DriveId(1), self.keeper.ring.incarnation);
        for block in 0..self.geometry.log / BLOCK as u64 {
            scan.feed(block, &self.drive.read((Area::Log, block)));
        }
        scan.finish().0.into_iter().map(|(number, found)| (number, found.header)).collect()
    }

    /// A bit of this block of the log changes.
    fn flip(&mut self, block: u64, byte: usize) {
        self.drive.durable.get_mut(&(Area::Log, block)).expect("it was written")[byte] ^= 1;
    }

    fn damages(&self) -> usize {
        self.notices.iter().filter(|notice| matches!(notice, Notice::Damage { .. })).count()
    }
}

/// A data record whose bytes tell its number and `mark`.
fn data(seq: u64, mark: u64, blocks: usize) -> Record {
    let mut pages = Pages::zeroed(blocks * BLOCK);
    for chunk in pages.bytes_mut().chunks_exact_mut(16) {
        chunk[..8].copy_from_slice(&seq.to_le_bytes());
        chunk[8..].copy_from_slice(&mark.to_le_bytes());
    }
    Record { seq: Seq(seq), body: Body::Data { block: Block(seq * 1000), data: pages.freeze() } }
}

fn unit(mark: u64) -> Buffer {
    match data(mark, mark, 1).body {
        Body::Data { data, .. } => data,
        _ => unreachable!("it makes data"),
    }
}
