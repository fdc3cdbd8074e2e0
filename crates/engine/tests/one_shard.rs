//! One shard on drives that never fail, from the first write to the restart: the shortest story of all.
//! Faults are the simulator's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weft_engine::buffer::{BLOCK, Buffer};
use weft_engine::identity::*;
use weft_engine::interface::*;
use weft_engine::limits::Limits;
use weft_engine::shard::{Settings, Shard};

const FAMILY: FamilyId = FamilyId(1);

/// Drives as plain memory; every operation ends at once, in the order it was submitted.
struct World {
    shard: Shard,
    now: u64,
    areas: BTreeMap<(DriveId, Area), Vec<u8>>,
    replies: BTreeMap<Ticket, Reply>,
    notices: Vec<Notice>,
    last_ticket: u64,
    geometry: Geometry,
    factor: u32,
    record: FamilyRecord,
    lives: u64,
}

impl World {
    fn new(drives: u32, factor: u32, limits: Limits) -> Self {
        let geometry = Geometry { log: 4 << 20, data: 64 << 20 };
        let mut areas = BTreeMap::new();
        for drive in 0..drives {
            areas.insert((DriveId(drive), Area::Log), vec![0; geometry.log as usize]);
            areas.insert((DriveId(drive), Area::Data), vec![0; geometry.data as usize]);
        }
        let record = FamilyRecord {
            family: FAMILY,
            epoch: Epoch(1),
            size: 32 << 20,
            factor,
            segments: Vec::new(),
            version: 0,
        };
        let settings = Settings { shard: ShardId(0), seed: 1, limits };
        let mut world = World {
            shard: Shard::new(settings),
            now: 1_000_000,
            areas,
            replies: BTreeMap::new(),
            notices: Vec::new(),
            last_ticket: 0,
            geometry,
            factor,
            record,
            lives: 1,
        };
        world.start(true);
        world
    }

    fn start(&mut self, format: bool) {
        let drives: BTreeSet<DriveId> = self.areas.keys().map(|(drive, _)| *drive).collect();
        for &drive in &drives {
            self.step(Input::Order(Order::OpenDrive { drive, geometry: self.geometry, format }));
        }
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
        self.step(Input::Order(Order::View(view)));
        self.step(Input::Order(Order::OpenFamily(self.record.clone())));
        let ready = self.notices.iter().any(|notice| matches!(notice, Notice::FamilyReady { .. }));
        assert!(ready, "the family is served: {:?}", self.notices);
        self.notices.clear();
    }

    /// Forgets all memory and begins anew from the drives, as after `kill -9`.
    fn restart(&mut self, limits: Limits) {
        self.lives += 1;
        self.record.epoch = Epoch(self.record.epoch.0 + 1);
        self.shard = Shard::new(Settings { shard: ShardId(0), seed: self.lives, limits });
        self.start(false);
    }

    fn step(&mut self, input: Input) {
        let mut out = Outputs::default();
        self.shard.step(Time(self.now), input, &mut out);
        let mut rounds = 0;
        while !out.is_empty() {
            rounds += 1;
            assert!(rounds < 100_000, "the shard comes to rest");
            let mut inputs = Vec::new();
            for operation in std::mem::take(&mut out.operations) {
                let result = Ok(self.work(operation.drive, operation.area, operation.work));
                inputs.push(Input::DriveDone { token: operation.token, result });
            }
            assert!(out.messages.is_empty(), "one shard speaks to nobody");
            self.replies.extend(std::mem::take(&mut out.replies));
            for notice in std::mem::take(&mut out.notices) {
                if let Notice::ChangeSegments { family, epoch, version, segments } = notice.clone() {
                    self.record.segments = segments;
                    self.record.version = version;
                    inputs.push(Input::Order(Order::SegmentsChanged { family, epoch, version, taken: true }));
                }
                self.notices.push(notice);
            }
            for input in inputs {
                self.shard.step(Time(self.now), input, &mut out);
            }
        }
    }

    fn work(&mut self, drive: DriveId, area: Area, work: DriveWork) -> DriveResult {
        let bytes = self.areas.get_mut(&(drive, area)).expect("the drive exists");
        match work {
            DriveWork::Read { offset, len } => {
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

    /// Lets time pass.
    fn pass(&mut self, us: u64) {
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

    fn ask(&mut self, request: Request) -> Reply {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.step(Input::Request { ticket, family: FAMILY, request });
        if !self.replies.contains_key(&ticket) {
            self.pass(3_000_000);
        }
        let reply = self.replies.remove(&ticket).expect("every request has a reply");
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

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Reply {
        self.ask(Request::Write { offset, data: Buffer::copied(bytes) })
    }

    fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        match self.ask(Request::Read { offset, len }) {
            Reply::Data(pieces) => pieces.iter().flat_map(|piece| piece.bytes().to_vec()).collect(),
            other => panic!("a read gives data, not {other:?}"),
        }
    }

    fn settle(&mut self) {
        self.step(Input::Order(Order::Settle { family: FAMILY }));
        for _ in 0..100 {
            if self.notices.contains(&Notice::FamilySettled { family: FAMILY }) {
                self.notices.clear();
                return;
            }
            self.pass(1_000_000);
        }
        panic!("the family settles: {:?}", self.shard.volume(FAMILY));
    }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (seed.wrapping_mul(31) + (at / 512) as u64 * 7 + at as u64 % 251) as u8 | 1).collect()
}

#[test]
fn what_is_written_is_read_back_in_every_stage_of_its_life() {
    let mut world = World::new(1, 1, Limits::small());
    assert_eq!(world.read(0, 8192), vec![0; 8192], "a new vDisk reads as zeros");
    assert_eq!(world.write(4096, &pattern(1, 8192)), Reply::Done);
    assert_eq!(world.read(4096, 8192), pattern(1, 8192), "from the overlay");
    assert_eq!(world.write(5000, &pattern(2, 100)), Reply::Done);
    let mut expected = pattern(1, 8192);
    expected[904..1004].copy_from_slice(&pattern(2, 100));
    assert_eq!(world.read(4096, 8192), expected, "a part of a block");
    world.settle();
    assert_eq!(world.read(4096, 8192), expected, "from an egroup");
    world.restart(Limits::small());
    assert_eq!(world.read(4096, 8192), expected, "after a restart from pages");
    assert_eq!(world.write(0, &pattern(3, 4096)), Reply::Done);
    world.restart(Limits::small());
    assert_eq!(world.read(0, 4096), pattern(3, 4096), "after a restart from the log");
    assert_eq!(world.ask(Request::Zero { offset: 0, len: 32 << 20 }), Reply::Done);
    assert_eq!(world.read(0, 16384), vec![0; 16384]);
    world.settle();
    assert_eq!(world.read(0, 16384), vec![0; 16384]);
    world.settle();
    let egroups = world.shard.keeper(DriveId(0)).expect("it is open").egroups().count();
    assert!(egroups <= 2, "a trimmed vDisk keeps next to nothing, not {egroups} egroups");
}

#[test]
fn a_log_whose_members_are_all_given_up_is_told_as_lost() {
    let limits = Limits::default();
    let mut world = World::new(3, 1, limits.clone());
    assert_eq!(world.write(0, &pattern(1, BLOCK)), Reply::Done);
    let lost: BTreeSet<DriveId> =
        world.record.segments.iter().flat_map(|segment| segment.members.iter().copied()).collect();
    assert!(!lost.is_empty() && lost.len() < 3, "somebody is left: {lost:?}");
    world.record.epoch = Epoch(2);
    world.shard = Shard::new(Settings { shard: ShardId(0), seed: 2, limits });
    let mut view = View { version: 2, ..View::default() };
    for drive in (0..3).map(DriveId) {
        let mut state = DriveState::Lost;
        if !lost.contains(&drive) {
            state = DriveState::Up;
            let geometry = world.geometry;
            world.step(Input::Order(Order::OpenDrive { drive, geometry, format: false }));
        }
        view.drives.insert(drive, DriveView { shard: ShardId(0), domain: drive.0, state });
    }
    world.step(Input::Order(Order::View(view)));
    world.step(Input::Order(Order::OpenFamily(world.record.clone())));
    world.pass(3_000_000);
    // What was acknowledged there is nowhere: an empty vDisk in its place would be a lie (I3).
    let told = world.notices.iter().find_map(|notice| match notice {
        Notice::FamilyFailed { reason, .. } => Some(*reason),
        _ => None,
    });
    assert!(matches!(told, Some(FamilyTrouble::RecordLost(_))), "{:?}", world.notices);
}

#[test]
fn random_writes_over_the_whole_life_match_a_model() {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    for (drives, factor) in [(1, 1), (3, 2)] {
        let mut rng = SmallRng::seed_from_u64(7);
        let mut world = World::new(drives, factor, Limits::small());
        let size = 16usize << 20;
        let mut model = vec![0u8; size];
        for round in 0..3000u64 {
            let offset = if rng.random_bool(0.9) {
                rng.random_range(0..size / BLOCK - 64) * BLOCK
            } else {
                rng.random_range(0..size - 300_000)
            };
            match rng.random_range(0..100) {
                0..60 => {
                    let len = if rng.random_bool(0.9) {
                        BLOCK * rng.random_range(1..5)
                    } else {
                        rng.random_range(1..9000)
                    };
                    let bytes = pattern(round, len);
                    assert_eq!(world.write(offset as u64, &bytes), Reply::Done);
                    model[offset..offset + len].copy_from_slice(&bytes);
                }
                60..65 => {
                    let bytes = pattern(round, 256 << 10);
                    assert_eq!(world.write(offset as u64, &bytes), Reply::Done);
                    model[offset..offset + bytes.len()].copy_from_slice(&bytes);
                }
                65..70 => {
                    let len = rng.random_range(1..200_000);
                    assert_eq!(
                        world.ask(Request::Zero { offset: offset as u64, len: len as u64 }),
                        Reply::Done
                    );
                    model[offset..offset + len].fill(0);
                }
                70..95 => {
                    let len = rng.random_range(1..100_000);
                    assert!(
                        world.read(offset as u64, len as u32) == model[offset..offset + len],
                        "round {round}"
                    );
                }
                95..98 => world.pass(500_000),
                98 => world.settle(),
                _ => world.restart(Limits::small()),
            }
        }
        let all = world.read(0, size as u32);
        assert!(all == model, "the whole vDisk at the end");
        let Reply::Extents(extents) =
            world.ask(Request::Extents { offset: 0, len: size as u64, limit: 10_000 })
        else {
            panic!("extents are told");
        };
        let mut at = 0;
        for extent in extents {
            let part = &model[at..at + extent.len as usize];
            assert!(extent.data || part.iter().all(|&byte| byte == 0), "a hole reads as zeros");
            at += extent.len as usize;
        }
        assert_eq!(at, size);
    }
}
