//! Clones of snapshots, clones of clones, and their own snapshots, against copies. Faults are the simulator's.

use crate::world::{FAMILY, World, data, pattern};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use weft_engine::buffer::{BLOCK, Buffer};
use weft_engine::identity::*;
use weft_engine::interface::*;
use weft_engine::limits::{LEAF_BLOCKS, Limits};

const SIZE: usize = 6 << 20;

fn read(world: &mut World, family: FamilyId, offset: usize, len: usize) -> Vec<u8> {
    data(world.ask_of(family, Request::Read { offset: offset as u64, len: len as u32 }))
}

/// A family, what it should hold, and what its snapshots should.
struct Model {
    family: FamilyId,
    bytes: Vec<u8>,
    snapshots: BTreeMap<Generation, Vec<u8>>,
}

#[test]
fn clones_live_on_their_own_from_the_snapshot_on() {
    for seed in 0..4 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut world = World::new(2, 1, Limits::small());
        let mut models = vec![Model { family: FAMILY, bytes: vec![0; SIZE], snapshots: BTreeMap::new() }];
        for round in 0..900u64 {
            let of = rng.random_range(0..models.len());
            let family = models[of].family;
            let len = match rng.random_range(0..20) {
                0 => 200 << 10,
                1..4 => rng.random_range(1..9000),
                _ => BLOCK * rng.random_range(1..8),
            };
            let offset = rng.random_range(0..SIZE - len);
            let offset = if len % BLOCK == 0 { offset - offset % BLOCK } else { offset };
            match rng.random_range(0..100) {
                0..45 => {
                    let bytes = pattern(round, len);
                    let write = Request::Write { offset: offset as u64, data: Buffer::copied(&bytes) };
                    assert_eq!(world.ask_of(family, write), Reply::Done);
                    models[of].bytes[offset..offset + len].copy_from_slice(&bytes);
                }
                45..55 => {
                    let len = if rng.random_bool(0.1) { SIZE - offset } else { len };
                    let zero = Request::Zero { offset: offset as u64, len: len as u64 };
                    assert_eq!(world.ask_of(family, zero), Reply::Done);
                    models[of].bytes[offset..offset + len].fill(0);
                }
                55..62 if models[of].snapshots.len() < 5 => {
                    let generation = world.take_snapshot(family, round);
                    let copy = models[of].bytes.clone();
                    models[of].snapshots.insert(generation, copy);
                }
                62..66 if models.len() < 6 => {
                    let Some((&snapshot, copy)) = models[of].snapshots.first_key_value() else { continue };
                    // Smaller than the vDisk: what is behind the end of the snapshot reads as zeros.
                    let size = SIZE as u64 - (BLOCK * rng.random_range(0..3)) as u64;
                    let mut bytes = copy.clone();
                    bytes[size as usize..].fill(0);
                    let clone = FamilyId(10 + models.len() as u32);
                    world.clone_snapshot(clone, Origin { family, snapshot, size });
                    world.clones.last_mut().expect("it was just made").size = SIZE as u64;
                    world.step(Input::Order(Order::Resize { family: clone, size: SIZE as u64 }));
                    models.push(Model { family: clone, bytes, snapshots: BTreeMap::new() });
                }
                66..90 => {
                    let found = read(&mut world, family, offset, len);
                    assert!(found == models[of].bytes[offset..offset + len], "seed {seed} round {round}");
                    let limit = rng.random_range(1..20);
                    holes_are_zeros(&mut world, &models[of], offset, limit);
                    for (&snapshot, copy) in &models[of].snapshots {
                        let request =
                            Request::ReadSnapshot { snapshot, offset: offset as u64, len: len as u32 };
                        let found = data(world.ask_of(family, request));
                        assert!(found == copy[offset..offset + len], "seed {seed} round {round} {snapshot}");
                    }
                }
                90..95 => world.pass(500_000),
                95..98 => world.settle_family(family),
                98 => world.restart(Limits::small()),
                _ => {}
            }
        }
        assert!(models.len() > 3, "there were clones");
        world.restart(Limits::small());
        for model in &models {
            world.settle_family(model.family);
            assert!(read(&mut world, model.family, 0, SIZE) == model.bytes, "seed {seed} {}", model.family);
        }
    }
}

/// What is told as a hole from there on reads as zeros. Gives the bytes that are.
fn holes_are_zeros(world: &mut World, model: &Model, offset: usize, limit: u32) -> usize {
    let len = (SIZE - offset) as u64;
    let Reply::Extents(extents) =
        world.ask_of(model.family, Request::Extents { offset: offset as u64, len, limit })
    else {
        panic!("extents are told")
    };
    assert!((1..=limit as usize).contains(&extents.len()) && extents.iter().all(|extent| extent.len > 0));
    let (mut at, mut holes) = (offset, 0);
    for extent in extents {
        let end = at + extent.len as usize;
        assert!(extent.data || model.bytes[at..end].iter().all(|&byte| byte == 0), "{at} is no hole");
        holes += if extent.data { 0 } else { end - at };
        at = end;
    }
    assert!(at <= SIZE, "no more than was asked for");
    holes
}

#[test]
fn what_is_a_hole_in_the_origin_is_one_in_its_clones() {
    let mut world = World::new(2, 1, Limits::small());
    let mib = 1 << 20;
    let mut bytes = vec![0; SIZE];
    let mut write = |world: &mut World, family, offset: usize, len: usize, round| {
        let content = pattern(round, len);
        bytes[offset..offset + len].copy_from_slice(&content);
        let write = Request::Write { offset: offset as u64, data: Buffer::copied(&content) };
        assert_eq!(world.ask_of(family, write), Reply::Done);
    };
    write(&mut world, FAMILY, mib, mib, 1);
    let snapshot = world.take_snapshot(FAMILY, 1);
    let (child, grandchild) = (FamilyId(11), FamilyId(12));
    world.clone_snapshot(child, Origin { family: FAMILY, snapshot, size: SIZE as u64 });
    write(&mut world, child, 3 * mib, 4096, 2);
    let snapshot = world.take_snapshot(child, 2);
    world.clone_snapshot(grandchild, Origin { family: child, snapshot, size: SIZE as u64 });
    write(&mut world, grandchild, 5 * mib, 4096, 3);
    let model = Model { family: grandchild, bytes, snapshots: BTreeMap::new() };
    for _ in 0..2 {
        // A MiB and two blocks are data, in three generations of clones; all else is known to be none.
        assert_eq!(holes_are_zeros(&mut world, &model, 0, 100), SIZE - mib - 2 * BLOCK);
        assert!(holes_are_zeros(&mut world, &model, mib + 100, 100) >= 3 * mib);
        world.settle_family(FAMILY);
        world.settle_family(child);
        world.settle_family(grandchild);
    }
}

#[test]
fn a_clone_takes_no_space_until_it_is_written() {
    let mut world = World::new(1, 1, Limits::small());
    assert_eq!(world.write(0, &pattern(1, 64 * BLOCK)), Reply::Done);
    let snapshot = world.take_snapshot(FAMILY, 1);
    world.settle();
    let egroups = |world: &World| world.shard.keeper(DriveId(0)).expect("it is open").egroups().count();
    let before = egroups(&world);
    for clone in 10..110 {
        let size = 32 << 20;
        world.clone_snapshot(FamilyId(clone), Origin { family: FAMILY, snapshot, size });
    }
    assert_eq!(egroups(&world), before);
    for clone in (10..110).map(FamilyId) {
        assert!(read(&mut world, clone, 0, 64 * BLOCK) == pattern(1, 64 * BLOCK));
    }
    let write = Request::Write { offset: 100, data: Buffer::copied(&pattern(2, 50)) };
    assert_eq!(world.ask_of(FamilyId(10), write), Reply::Done);
    let mut wanted = pattern(1, 64 * BLOCK);
    assert!(read(&mut world, FamilyId(11), 0, 64 * BLOCK) == wanted, "another clone");
    wanted[100..150].copy_from_slice(&pattern(2, 50));
    assert!(
        read(&mut world, FamilyId(10), 0, 64 * BLOCK) == wanted,
        "a part of a block is merged into the origin's"
    );
}

/// Blocks of a large vDisk, each in a leaf of its own, far from the next; a value of 0 stands for zeros.
const PLACES: usize = 24;
const PLACE_BYTES: u64 = 20 * LEAF_BLOCKS * BLOCK as u64;

struct Scattered {
    family: FamilyId,
    values: [u64; PLACES],
    snapshots: BTreeMap<Generation, [u64; PLACES]>,
}

impl Scattered {
    fn check(&self, world: &mut World, place: usize, when: &str) {
        let wanted = |value| if value == 0 { vec![0; BLOCK] } else { pattern(value, BLOCK) };
        let offset = place as u64 * PLACE_BYTES;
        let found = data(world.ask_of(self.family, Request::Read { offset, len: BLOCK as u32 }));
        assert!(found == wanted(self.values[place]), "{when}: place {place} of {}", self.family);
        for (&snapshot, values) in &self.snapshots {
            let request = Request::ReadSnapshot { snapshot, offset, len: BLOCK as u32 };
            let found = data(world.ask_of(self.family, request));
            assert!(found == wanted(values[place]), "{when}: place {place} of {} at {snapshot}", self.family);
        }
    }
}

#[test]
fn wide_trims_of_clones_stay_in_every_stage_of_their_life() {
    for seed in 0..6 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut world = World::new(1, 1, Limits::small());
        let size = PLACES as u64 * PLACE_BYTES;
        let resize = |world: &mut World, family| world.step(Input::Order(Order::Resize { family, size }));
        world.record.size = size;
        resize(&mut world, FAMILY);
        let mut models = vec![Scattered { family: FAMILY, values: [0; PLACES], snapshots: BTreeMap::new() }];
        for round in 1..700u64 {
            let of = rng.random_range(0..models.len());
            let (family, place) = (models[of].family, rng.random_range(0..PLACES));
            let offset = place as u64 * PLACE_BYTES;
            match rng.random_range(0..100) {
                0..35 => {
                    let write = Request::Write { offset, data: Buffer::copied(&pattern(round, BLOCK)) };
                    assert_eq!(world.ask_of(family, write), Reply::Done);
                    models[of].values[place] = round;
                }
                35..50 => {
                    let end = rng.random_range(place..PLACES) + 1;
                    // Not always from the beginning of a leaf on.
                    let skip = [0, BLOCK as u64][rng.random_range(0..2)];
                    let len = (end - place) as u64 * PLACE_BYTES - skip;
                    let zero = Request::Zero { offset: offset + skip, len };
                    assert_eq!(world.ask_of(family, zero), Reply::Done);
                    models[of].values[place + usize::from(skip > 0)..end].fill(0);
                }
                50..58 if models[of].snapshots.len() < 5 => {
                    let generation = world.take_snapshot(family, round);
                    let values = models[of].values;
                    models[of].snapshots.insert(generation, values);
                }
                58..63 if models.len() < 6 => {
                    let Some((&snapshot, &values)) = models[of].snapshots.first_key_value() else { continue };
                    let clone = FamilyId(10 + models.len() as u32);
                    world.clone_snapshot(clone, Origin { family, snapshot, size });
                    models.push(Scattered { family: clone, values, snapshots: BTreeMap::new() });
                }
                63..67 => {
                    let Some((&to, &values)) = models[of].snapshots.last_key_value() else { continue };
                    roll_back(&mut world, family, to);
                    models[of].values = values;
                }
                67..85 => models[of].check(&mut world, place, &format!("seed {seed} round {round}")),
                85..92 => world.pass(500_000),
                92..98 => world.settle_family(family),
                98 => world.restart(Limits::small()),
                _ => {}
            }
        }
        assert!(models.len() > 3, "there were clones");
        world.restart(Limits::small());
        for model in &models {
            world.settle_family(model.family);
            (0..PLACES).for_each(|place| model.check(&mut world, place, &format!("seed {seed} at the end")));
        }
    }
}

fn roll_back(world: &mut World, family: FamilyId, to: Generation) {
    world.step(Input::Order(Order::RollBack { family, to }));
    for _ in 0..100 {
        let told = |notice: &Notice| match notice {
            Notice::RolledBack { family: of, to: told, .. } => *of == family && *told == to,
            Notice::RollbackRefused { reason, .. } => panic!("it can be rolled back: {reason:?}"),
            _ => false,
        };
        if world.notices.iter().any(told) {
            world.notices.clear();
            return world.step(Input::Order(Order::Resume { family }));
        }
        world.pass(100_000);
    }
    panic!("a vDisk is rolled back: {:?}", world.notices);
}

#[test]
fn what_is_trimmed_beyond_the_origin_takes_no_page() {
    let mut world = World::new(1, 1, Limits::small());
    let (origin_size, size) = (world.record.size, 64 << 30);
    assert_eq!(world.write(0, &pattern(1, BLOCK)), Reply::Done);
    let snapshot = world.take_snapshot(FAMILY, 1);
    let clone = FamilyId(10);
    world.clone_snapshot(clone, Origin { family: FAMILY, snapshot, size: origin_size });
    world.step(Input::Order(Order::Resize { family: clone, size }));
    let leaves: Vec<u64> = (0..40).map(|at| size / 40 * at / BLOCK as u64 * BLOCK as u64).collect();
    let write = |offset, seed| Request::Write { offset, data: Buffer::copied(&pattern(seed, BLOCK)) };
    for &offset in &leaves {
        assert_eq!(world.ask_of(clone, write(offset, 2)), Reply::Done);
    }
    world.settle_family(clone);
    let seen = world.take_snapshot(clone, 2);
    assert_eq!(world.ask_of(clone, Request::Zero { offset: 0, len: size }), Reply::Done);
    world.settle_family(clone);
    let live = |world: &World| {
        let volume = world.shard.volume(clone).expect("it is served");
        volume.map().index.len()
    };
    // What the snapshot sees, and hardly more.
    assert!(live(&world) < leaves.len() * 3 / 2, "{} pages", live(&world));
    for &offset in &leaves {
        let read = world.ask_of(clone, Request::Read { offset, len: BLOCK as u32 });
        assert_eq!(data(read), vec![0; BLOCK], "at {offset}");
        let read = Request::ReadSnapshot { snapshot: seen, offset, len: BLOCK as u32 };
        assert_eq!(data(world.ask_of(clone, read)), pattern(2, BLOCK), "at {offset} in the snapshot");
    }
    world.step(Input::Order(Order::DropSnapshot { family: clone, generation: seen }));
    world.settle_family(clone);
    assert!(live(&world) < leaves.len() / 2, "{} pages", live(&world));
}

#[test]
fn trimming_a_huge_clone_takes_no_page_for_each_of_its_leaves() {
    let mut world = World::new(1, 1, Limits::small());
    let size = 8 << 40;
    world.record.size = size;
    world.step(Input::Order(Order::Resize { family: FAMILY, size }));
    let last = size - BLOCK as u64;
    assert_eq!(world.write(last, &pattern(1, BLOCK)), Reply::Done);
    let snapshot = world.take_snapshot(FAMILY, 1);
    let clone = FamilyId(10);
    world.clone_snapshot(clone, Origin { family: FAMILY, snapshot, size });
    let read_last =
        |world: &mut World| data(world.ask_of(clone, Request::Read { offset: last, len: BLOCK as u32 }));
    assert_eq!(read_last(&mut world), pattern(1, BLOCK));
    // Two million leaves: a page for each would be more than the drive holds.
    assert_eq!(world.ask_of(clone, Request::Zero { offset: 0, len: size }), Reply::Done);
    world.settle_family(clone);
    assert_eq!(read_last(&mut world), vec![0; BLOCK]);
    let volume = world.shard.volume(clone).expect("it is served");
    assert!(volume.map().index.len() <= 2, "{} pages", volume.map().index.len());
    world.restart(Limits::small());
    assert_eq!(read_last(&mut world), vec![0; BLOCK], "after a restart");
    assert_eq!(world.read(last, BLOCK as u32), pattern(1, BLOCK), "the origin is as it was");
}
