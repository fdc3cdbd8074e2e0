//! One shard and its drives as plain memory, for stories in which nothing fails.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weft_engine::buffer::{BLOCK, Buffer};
use weft_engine::counters::Source;
use weft_engine::identity::*;
use weft_engine::interface::*;
use weft_engine::keeper::Keeper;
use weft_engine::limits::Limits;
use weft_engine::message::{Message, Question, UnitRun};
use weft_engine::shard::{Settings, Shard};

pub const FAMILY: FamilyId = FamilyId(1);

/// The shard of another node, whose questions are asked by hand.
pub const STRANGER: ShardId = ShardId(7);

/// Drives as plain memory; every operation ends at once, in the order it was submitted.
pub struct World {
    pub shard: Shard,
    pub now: u64,
    pub areas: BTreeMap<(DriveId, Area), Vec<u8>>,
    pub replies: BTreeMap<Ticket, Reply>,
    pub notices: Vec<Notice>,
    pub last_ticket: u64,
    pub geometry: Geometry,
    pub factor: u32,
    pub record: FamilyRecord,
    pub lives: u64,
    /// Reads that drives were asked for.
    pub drive_reads: u64,
    /// Other families, and what they have asked their origins.
    pub clones: Vec<FamilyRecord>,
    pub asks: BTreeMap<Ticket, OriginRequest>,
    /// What was told of replies to reads.
    pub sources: Vec<(Ticket, Source)>,
    /// Of what is begun there so much ends, and no more.
    pub hung: Option<(DriveId, Area, u32)>,
    /// Nor does a read of data.
    reads_hang: bool,
    /// Blocks that a drive does not give until they are written again.
    pub unreadable: BTreeSet<(DriveId, Area, usize)>,
    /// Operations that it did not come back to.
    stuck: Vec<DriveOperation>,
    /// The config store takes changes of segments, and nobody hears that it did.
    pub unheard: bool,
}

impl World {
    pub fn new(drives: u32, factor: u32, limits: Limits) -> Self {
        Self::sized(drives, factor, limits, Geometry { log: 4 << 20, data: 64 << 20 })
    }

    /// With drives of this size, and a vDisk of half of one.
    pub fn sized(drives: u32, factor: u32, limits: Limits, geometry: Geometry) -> Self {
        let mut areas = BTreeMap::new();
        for drive in 0..drives {
            areas.insert((DriveId(drive), Area::Log), vec![0; geometry.log as usize]);
            areas.insert((DriveId(drive), Area::Data), vec![0; geometry.data as usize]);
        }
        let record = FamilyRecord {
            family: FAMILY,
            epoch: Epoch(1),
            size: geometry.data / 2,
            factor,
            segments: Vec::new(),
            compression: Compression::default(),
            ceiling: Ceiling::default(),
            version: 0,
            origin: None,
            rollback: None,
        };
        let settings = Settings { shard: ShardId(0), seed: 1, limits };
        let mut world = World {
            shard: Shard::new(settings),
            now: 1_000_000,
            areas,
            replies: BTreeMap::new(),
            sources: Vec::new(),
            hung: None,
            reads_hang: false,
            unreadable: BTreeSet::new(),
            stuck: Vec::new(),
            unheard: false,
            notices: Vec::new(),
            last_ticket: 0,
            geometry,
            factor,
            record,
            lives: 1,
            drive_reads: 0,
            clones: Vec::new(),
            asks: BTreeMap::new(),
        };
        world.start(true);
        world
    }

    pub fn start(&mut self, format: bool) {
        self.open_drives(format);
        self.start_families();
    }

    pub fn open_drives(&mut self, format: bool) {
        let drives: BTreeSet<DriveId> = self.areas.keys().map(|(drive, _)| *drive).collect();
        drives.into_iter().for_each(|drive| self.open_drive(drive, format));
    }

    pub fn open_drive(&mut self, drive: DriveId, format: bool) {
        let (geometry, incarnation) = (self.geometry, None);
        self.step(Input::Order(Order::OpenDrive { drive, geometry, format, incarnation }));
    }

    /// Tells who is there, and has everything served.
    pub fn start_families(&mut self) {
        self.open_families();
        let ready = self.notices.iter().any(|notice| matches!(notice, Notice::FamilyReady { .. }));
        assert!(ready, "the family is served: {:?}", self.notices);
        self.notices.clear();
    }

    pub fn open_families(&mut self) {
        let drives: BTreeSet<DriveId> = self.areas.keys().map(|(drive, _)| *drive).collect();
        let mut view = View { version: 1, ..View::default() };
        for &drive in &drives {
            view.drives
                .insert(drive, DriveView { shard: ShardId(0), domain: drive.0, state: DriveState::Up });
        }
        let all: Vec<DriveId> = drives.iter().copied().collect();
        for group in 0..all.len() {
            let members = (0..self.factor as usize).map(|at| all[(group + at) % all.len()]).collect();
            let group = (GroupId(group as u32), GroupView { members, former: Vec::new() });
            Arc::make_mut(&mut view.groups).insert(group.0, group.1);
        }
        // ... and one of each other size for every drive.
        for size in (1..=all.len().min(3)).filter(|&size| size != self.factor as usize) {
            for first in 0..all.len() {
                let members = (0..size).map(|at| all[(first + at) % all.len()]).collect();
                let group = GroupId((100 * size + first) as u32);
                Arc::make_mut(&mut view.groups).insert(group, GroupView { members, former: Vec::new() });
            }
        }
        self.step(Input::Order(Order::View(view)));
        self.step(Input::Order(Order::OpenFamily(self.record.clone())));
        for record in self.clones.clone() {
            self.step(Input::Order(Order::OpenFamily(record)));
        }
    }

    /// Tells another view: what the drives are like, and which groups there are.
    pub fn see(&mut self, version: u64, states: &[DriveState], groups: impl IntoIterator<Item = GroupView>) {
        self.see_in_nodes_of(1, version, states, groups);
    }

    /// Likewise; so many drives that follow each other are in one fault domain.
    pub fn see_in_nodes_of(
        &mut self,
        size: u32,
        version: u64,
        states: &[DriveState],
        groups: impl IntoIterator<Item = GroupView>,
    ) {
        let view = |drive, state| DriveView { shard: ShardId(0), domain: drive / size, state };
        let drives = (0..).zip(states).map(|(drive, &state)| (DriveId(drive), view(drive, state)));
        let groups: BTreeMap<GroupId, GroupView> = (0..).map(GroupId).zip(groups).collect();
        let view = View { version, drives: drives.collect(), groups: groups.into() };
        self.step(Input::Order(Order::View(view)));
    }

    /// How many drives hold each egroup of a family that it names.
    pub fn copies(&self, family: FamilyId) -> BTreeMap<EgroupId, usize> {
        let named = self.shard.volume(family).expect("it is served").egroups();
        let count = |egroup: EgroupId| {
            let holds = |keeper: &Keeper| {
                keeper.egroups().any(|stored| stored.family == family && stored.egroup == egroup)
            };
            self.shard.keepers().filter(|(_, keeper)| holds(keeper)).count()
        };
        named.map(|egroup| (egroup, count(egroup))).collect()
    }

    /// Begins anew from the drives, as after `kill -9`.
    pub fn restart(&mut self, limits: Limits) {
        self.kill(limits);
        self.start(false);
    }

    /// Begins anew, and gets as far as it gets: see `notices`.
    pub fn try_to_restart(&mut self, limits: Limits) {
        self.kill(limits);
        self.open_drives(false);
        self.open_families();
    }

    /// Forgets all memory, and opens nothing.
    pub fn kill(&mut self, limits: Limits) {
        self.notices.clear();
        self.stuck.clear();
        self.lives += 1;
        self.record.epoch = Epoch(self.record.epoch.0 + 1);
        self.clones.iter_mut().for_each(|record| record.epoch = Epoch(record.epoch.0 + 1));
        self.shard = Shard::new(Settings { shard: ShardId(0), seed: self.lives, limits });
    }

    pub fn step(&mut self, input: Input) {
        let mut out = Outputs::default();
        self.shard.step(Time(self.now), input, &mut out);
        let mut rounds = 0;
        while !out.is_empty() {
            rounds += 1;
            assert!(rounds < 100_000, "the shard comes to rest");
            let mut inputs = Vec::new();
            for operation in std::mem::take(&mut out.operations) {
                let is_read =
                    matches!(operation.work, DriveWork::Read { .. }) && operation.area == Area::Data;
                if self.reads_hang && is_read {
                    self.stuck.push(operation);
                    continue;
                }
                if let Some((drive, area, left)) = &mut self.hung
                    && (*drive, *area) == (operation.drive, operation.area)
                {
                    if *left == 0 {
                        self.stuck.push(operation);
                        continue;
                    }
                    *left -= 1;
                }
                let result = if self.is_unreadable(&operation) {
                    Err(DriveFault::Unreadable)
                } else {
                    Ok(self.work(operation.drive, operation.area, operation.work))
                };
                inputs.push(Input::DriveDone { token: operation.token, result });
            }
            let answers = std::mem::take(&mut out.messages);
            assert!(
                answers.iter().all(|(to, _)| *to == STRANGER),
                "one shard speaks to nobody who has not asked"
            );
            for OriginRequest { asker, ask, family, request } in std::mem::take(&mut out.requests) {
                self.last_ticket += 1;
                let ticket = Ticket(self.last_ticket);
                self.asks.insert(ticket, OriginRequest { asker, ask, family, request: request.clone() });
                inputs.push(Input::Request { ticket, family, request });
            }
            for (ticket, reply) in std::mem::take(&mut out.replies) {
                match self.asks.remove(&ticket) {
                    // As a node does it.
                    Some(again) if reply == Reply::Error(RequestError::Busy) => {
                        let (family, request) = (again.family, again.request.clone());
                        self.asks.insert(ticket, again);
                        inputs.push(Input::Request { ticket, family, request });
                    }
                    Some(OriginRequest { asker: family, ask, .. }) => {
                        inputs.push(Input::Told { family, ask, reply });
                    }
                    None => drop(self.replies.insert(ticket, reply)),
                }
            }
            for notice in std::mem::take(&mut out.notices) {
                if let Notice::ChangeSegments { family, epoch, version, segments } = notice.clone() {
                    let clones = self.clones.iter_mut();
                    for record in clones.chain([&mut self.record]).filter(|record| record.family == family) {
                        record.segments = segments.clone();
                        record.version = version;
                    }
                    if !self.unheard {
                        let order = Order::SegmentsChanged { family, epoch, version, taken: true };
                        inputs.push(Input::Order(order));
                    }
                }
                self.notices.push(notice);
            }
            for input in inputs {
                self.shard.step(Time(self.now), input, &mut out);
            }
        }
        self.sources.append(&mut out.sources);
    }

    fn is_unreadable(&mut self, operation: &DriveOperation) -> bool {
        let DriveOperation { drive, area, .. } = *operation;
        let blocks = |offset: u64, len: usize| offset as usize / BLOCK..(offset as usize + len) / BLOCK;
        match &operation.work {
            DriveWork::Read { offset, len } => {
                blocks(*offset, *len as usize).any(|block| self.unreadable.contains(&(drive, area, block)))
            }
            DriveWork::Write { offset, pieces, .. } => {
                for block in blocks(*offset, pieces.iter().map(Buffer::len).sum()) {
                    self.unreadable.remove(&(drive, area, block));
                }
                false
            }
            DriveWork::Flush | DriveWork::Discard { .. } => false,
        }
    }

    pub fn work(&mut self, drive: DriveId, area: Area, work: DriveWork) -> DriveResult {
        let bytes = self.areas.get_mut(&(drive, area)).expect("the drive exists");
        match work {
            DriveWork::Read { offset, len } => {
                self.drive_reads += 1;
                DriveResult::Read(Buffer::copied(&bytes[offset as usize..offset as usize + len as usize]))
            }
            DriveWork::Write { offset, pieces, .. } => {
                let mut at = offset as usize;
                for piece in pieces {
                    bytes[at..at + piece.len()].copy_from_slice(piece.bytes());
                    at += piece.len();
                }
                DriveResult::Done
            }
            DriveWork::Flush | DriveWork::Discard { .. } => DriveResult::Done,
        }
    }

    /// What hung comes back: the drive was not there.
    pub fn let_go(&mut self) {
        self.hung = None;
        for DriveOperation { token, .. } in std::mem::take(&mut self.stuck) {
            self.step(Input::DriveDone { token, result: Err(DriveFault::Gone) });
        }
    }

    /// Another shard asks the drives for the first unit of each egroup that they hold of a family. These reads hang.
    pub fn read_each_egroup_slowly(&mut self, family: FamilyId) {
        self.reads_hang = true;
        let held = |(_, keeper): (DriveId, &Keeper)| {
            let drive = keeper.drive();
            let egroups: Vec<_> = keeper.egroups().filter(|stored| stored.family == family).collect();
            egroups.into_iter().map(move |stored| (drive, stored.egroup))
        };
        let all: Vec<(DriveId, EgroupId)> = self.shard.keepers().flat_map(held).collect();
        for (call, (drive, egroup)) in (1..).zip(all) {
            let runs = vec![UnitRun { first: 0, count: 1 }];
            let question = Question::ReadUnits { egroup, runs, frames: false, behind: false };
            let epoch = self.record.epoch;
            let message = Message::Ask { call, drive, family, epoch, question };
            self.step(Input::Message { from: STRANGER, message });
        }
        self.reads_hang = false;
    }

    /// Where operations hang, in the order in which they were begun.
    pub fn hanging(&self) -> Vec<Area> {
        self.stuck.iter().map(|operation| operation.area).collect()
    }

    /// What hung is done after all: the drive was slow.
    pub fn carry_on(&mut self) {
        self.hung = None;
        self.carry_on_so_far();
    }

    /// What hung until now is done; what is begun meanwhile hangs.
    pub fn carry_on_so_far(&mut self) {
        for operation in std::mem::take(&mut self.stuck) {
            let result = Ok(self.work(operation.drive, operation.area, operation.work));
            self.step(Input::DriveDone { token: operation.token, result });
        }
    }

    /// Lets time pass.
    pub fn pass(&mut self, us: u64) {
        let end = self.now + us;
        while let Some(at) = self.shard.wake_at() {
            if at.0 > end {
                break;
            }
            self.now = self.now.max(at.0) + 1;
            self.step(Input::Wake);
        }
        self.now = self.now.max(end);
    }

    pub fn ask(&mut self, request: Request) -> Reply {
        self.ask_of(FAMILY, request)
    }

    /// Asks, and does not wait for the reply.
    pub fn submit(&mut self, family: FamilyId, request: Request) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.step(Input::Request { ticket, family, request });
        ticket
    }

    pub fn ask_of(&mut self, family: FamilyId, request: Request) -> Reply {
        let ticket = self.submit(family, request);
        for _ in 0..10 {
            if !self.replies.contains_key(&ticket) {
                self.pass(3_000_000);
            }
        }
        let reply = self.replies.remove(&ticket);
        let reply = reply.expect("every request has a reply");
        if let Reply::Error(_) = reply {
            for (drive, keeper) in self.shard.keepers() {
                let used: u64 = keeper.egroups().map(|egroup| u64::from(egroup.units)).sum();
                println!(
                    "drive {drive}: {} egroups of {used} units, {} bytes free",
                    keeper.egroups().count(),
                    keeper.free_bytes()
                );
            }
        }
        reply
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Reply {
        self.ask(Request::Write { offset, data: Buffer::copied(bytes) })
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        match self.ask(Request::Read { offset, len }) {
            Reply::Data(pieces) => pieces.iter().flat_map(|piece| piece.bytes().to_vec()).collect(),
            other => panic!("a read gives data, not {other:?}"),
        }
    }

    /// Takes a snapshot of a family, and tells its generation.
    pub fn take_snapshot(&mut self, family: FamilyId, snapshot: u64) -> Generation {
        let snapshot = SnapshotId(snapshot);
        self.step(Input::Order(Order::TakeSnapshot { family, snapshot }));
        for _ in 0..100 {
            let taken = self.notices.iter().find_map(|notice| match notice {
                Notice::SnapshotTaken { snapshot: told, generation, .. } if *told == snapshot => {
                    Some(*generation)
                }
                _ => None,
            });
            if let Some(generation) = taken {
                self.notices.clear();
                return generation;
            }
            self.pass(100_000);
        }
        panic!("a snapshot is taken: {:?}", self.notices);
    }

    /// Serves one more family.
    pub fn serve(&mut self, record: FamilyRecord) {
        self.clones.push(record.clone());
        self.step(Input::Order(Order::OpenFamily(record)));
    }

    /// Serves a new family that is empty.
    pub fn serve_empty(&mut self, family: FamilyId) {
        self.serve(FamilyRecord { family, segments: Vec::new(), version: 0, ..self.record.clone() });
    }

    /// Serves a new family that begins as this snapshot.
    pub fn clone_snapshot(&mut self, family: FamilyId, origin: Origin) {
        let record = FamilyRecord {
            family,
            epoch: Epoch(1),
            size: origin.size,
            segments: Vec::new(),
            version: 0,
            origin: Some(origin),
            ..self.record.clone()
        };
        self.serve(record);
        self.notices.clear();
    }

    pub fn settle(&mut self) {
        self.settle_family(FAMILY);
    }

    pub fn settle_family(&mut self, family: FamilyId) {
        self.step(Input::Order(Order::Settle { family }));
        for _ in 0..100 {
            if self.notices.contains(&Notice::FamilySettled { family }) {
                self.notices.clear();
                return;
            }
            self.pass(1_000_000);
        }
        panic!("the family settles: {:?}", self.shard.volume(FAMILY));
    }
}

/// The bytes of a reply to a read.
pub fn data(reply: Reply) -> Vec<u8> {
    match reply {
        Reply::Data(pieces) => pieces.iter().flat_map(|piece| piece.bytes().to_vec()).collect(),
        other => panic!("a read gives data, not {other:?}"),
    }
}

pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    pattern_of(seed, 0..len)
}

/// A part of it.
pub fn pattern_of(seed: u64, range: std::ops::Range<usize>) -> Vec<u8> {
    range.map(|at| (seed.wrapping_mul(31) + (at / 512) as u64 * 7 + at as u64 % 251) as u8 | 1).collect()
}
