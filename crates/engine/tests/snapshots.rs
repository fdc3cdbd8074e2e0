//! Snapshots of one vDisk against frozen copies, over its whole life. Faults are the simulator's.

mod world;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use weft_engine::buffer::BLOCK;
use weft_engine::identity::*;
use weft_engine::interface::*;
use weft_engine::limits::Limits;
use world::{FAMILY, World, pattern};

fn take(world: &mut World, snapshot: u64) -> Generation {
    let snapshot = SnapshotId(snapshot);
    world.step(Input::Order(Order::TakeSnapshot { family: FAMILY, snapshot }));
    for _ in 0..100 {
        let taken = world.notices.iter().find_map(|notice| match notice {
            Notice::SnapshotTaken { snapshot: told, generation, .. } if *told == snapshot => {
                Some(*generation)
            }
            _ => None,
        });
        if let Some(generation) = taken {
            world.notices.clear();
            return generation;
        }
        world.pass(100_000);
    }
    panic!("a snapshot is taken: {:?}", world.notices);
}

fn drop_snapshot(world: &mut World, generation: Generation) {
    world.step(Input::Order(Order::DropSnapshot { family: FAMILY, generation }));
    let told = Notice::SnapshotDropped { family: FAMILY, epoch: world.record.epoch, generation };
    assert!(world.notices.contains(&told), "{:?}", world.notices);
    world.notices.clear();
}

fn roll_back(world: &mut World, to: Generation) {
    world.step(Input::Order(Order::RollBack { family: FAMILY, to }));
    for _ in 0..100 {
        let told = Notice::RolledBack { family: FAMILY, epoch: world.record.epoch, to };
        if world.notices.contains(&told) {
            return world.notices.clear();
        }
        world.pass(100_000);
    }
    panic!("it is rolled back: {:?}", world.notices);
}

fn read(world: &mut World, snapshot: Generation, offset: u64, len: u32) -> Vec<u8> {
    match world.ask(Request::ReadSnapshot { snapshot, offset, len }) {
        Reply::Data(pieces) => pieces.iter().flat_map(|piece| piece.bytes().to_vec()).collect(),
        other => panic!("a read gives data, not {other:?}"),
    }
}

/// Units of egroups that hold data, on all drives.
fn units_on_drives(world: &World) -> u64 {
    let volume = world.shard.volume(FAMILY).expect("it is served");
    let map = volume.map();
    let keeper = world.shard.keeper(DriveId(0)).expect("it is open");
    let data = keeper.egroups().filter(|stored| !map.map_egroups.contains_key(&stored.egroup));
    data.map(|stored| u64::from(stored.units)).sum()
}

#[test]
fn a_snapshot_stays_as_it_is_in_every_stage_of_its_life() {
    let mut world = World::new(1, 1, Limits::small());
    let block = BLOCK as u32;
    assert_eq!(world.write(0, &pattern(1, 2 * BLOCK)), Reply::Done);
    let first = take(&mut world, 11);
    assert_eq!(take(&mut world, 11), first, "asked again, it is the same one");
    assert_eq!(world.write(0, &pattern(2, BLOCK)), Reply::Done);
    let second = take(&mut world, 12);
    assert!(second > first);
    assert_eq!(world.ask(Request::Zero { offset: 0, len: 2 * BLOCK as u64 }), Reply::Done);
    for stage in ["in the overlay", "in egroups", "after a restart"] {
        match stage {
            "in egroups" => world.settle(),
            "after a restart" => world.restart(Limits::small()),
            _ => {}
        }
        assert_eq!(read(&mut world, first, 0, 2 * block), pattern(1, 2 * BLOCK), "{stage}");
        assert_eq!(read(&mut world, second, 0, block), pattern(2, BLOCK), "{stage}");
        assert_eq!(read(&mut world, second, 4096, block), pattern(1, 2 * BLOCK)[BLOCK..], "{stage}");
        assert_eq!(world.read(0, 2 * block), vec![0; 2 * BLOCK], "{stage}");
    }
    drop_snapshot(&mut world, first);
    let request = Request::ReadSnapshot { snapshot: first, offset: 0, len: block };
    assert_eq!(world.ask(request), Reply::Error(RequestError::NoSnapshot));
    world.settle();
    assert_eq!(read(&mut world, second, 0, block), pattern(2, BLOCK));
    assert_eq!(read(&mut world, second, 4096, block), pattern(1, 2 * BLOCK)[BLOCK..]);
    drop_snapshot(&mut world, second);
    world.settle();
    world.settle();
    assert_eq!(world.shard.volume(FAMILY).expect("it is served").map().directory.live(), 0);
    assert_eq!(units_on_drives(&world), 0, "what only snapshots held is free");
}

#[test]
fn snapshots_are_dropped_in_any_order_and_the_others_stay_exact() {
    for seed in 0..4 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (drives, factor) = if seed % 2 == 0 { (1, 1) } else { (3, 2) };
        let mut world = World::new(drives, factor, Limits::small());
        let size = 8usize << 20;
        let mut model = vec![0u8; size];
        let mut frozen: BTreeMap<Generation, Vec<u8>> = BTreeMap::new();
        for round in 0..700u64 {
            let len = match rng.random_range(0..20) {
                0 => 256 << 10,
                1 => rng.random_range(1..9000),
                _ => BLOCK * rng.random_range(1..6),
            };
            let mut offset = rng.random_range(0..size - len);
            if len % BLOCK == 0 {
                offset -= offset % BLOCK;
            }
            match rng.random_range(0..100) {
                0..55 => {
                    let bytes = pattern(round, len);
                    assert_eq!(world.write(offset as u64, &bytes), Reply::Done);
                    model[offset..offset + len].copy_from_slice(&bytes);
                }
                55..60 => {
                    let zero = Request::Zero { offset: offset as u64, len: len as u64 };
                    assert_eq!(world.ask(zero), Reply::Done);
                    model[offset..offset + len].fill(0);
                }
                60..70 if frozen.len() < 12 => {
                    let generation = take(&mut world, round);
                    assert!(frozen.insert(generation, model.clone()).is_none());
                }
                70..76 if !frozen.is_empty() => {
                    let index = rng.random_range(0..frozen.len());
                    let generation = *frozen.keys().nth(index).expect("there are as many");
                    frozen.remove(&generation);
                    drop_snapshot(&mut world, generation);
                }
                76..78 if !frozen.is_empty() => {
                    // The newer ones have to go first.
                    let index = frozen.len() - 1 - rng.random_range(0..frozen.len()).min(2);
                    let to = *frozen.keys().nth(index).expect("there are as many");
                    for generation in frozen.split_off(&to.next()).into_keys() {
                        let refused = Order::RollBack { family: FAMILY, to };
                        world.step(Input::Order(refused));
                        let reason = RollbackTrouble::NewerSnapshots;
                        let (family, epoch) = (FAMILY, world.record.epoch);
                        let told = Notice::RollbackRefused { family, epoch, to, reason };
                        assert!(world.notices.contains(&told), "{:?}", world.notices);
                        drop_snapshot(&mut world, generation);
                    }
                    if rng.random_bool(0.3) {
                        // Killed somewhere on the way, it begins anew or is finished.
                        world.step(Input::Order(Order::RollBack { family: FAMILY, to }));
                        world.pass(rng.random_range(0..100_000));
                        world.restart(Limits::small());
                    }
                    roll_back(&mut world, to);
                    model = frozen[&to].clone();
                }
                78..92 => {
                    for (&generation, copy) in &frozen {
                        let found = read(&mut world, generation, offset as u64, len as u32);
                        assert!(
                            found == copy[offset..offset + len],
                            "seed {seed} round {round}: {generation}"
                        );
                    }
                    assert!(world.read(offset as u64, len as u32) == model[offset..offset + len]);
                }
                92..97 => world.pass(500_000),
                97..99 => world.settle(),
                99 => world.restart(Limits::small()),
                _ => {}
            }
        }
        world.settle();
        for (&generation, copy) in &frozen {
            assert!(read(&mut world, generation, 0, size as u32) == *copy, "seed {seed}: {generation}");
            let limit = 10_000;
            let extents =
                Request::SnapshotExtents { snapshot: generation, offset: 0, len: size as u64, limit };
            let Reply::Extents(extents) = world.ask(extents) else { panic!("extents are told") };
            let mut at = 0;
            for extent in extents {
                let part = &copy[at..at + extent.len as usize];
                assert!(extent.data || part.iter().all(|&byte| byte == 0), "a hole reads as zeros");
                at += extent.len as usize;
            }
            assert_eq!(at, size);
        }
        // With the last snapshot gone, exactly what the present has is left.
        for generation in std::mem::take(&mut frozen).into_keys() {
            drop_snapshot(&mut world, generation);
        }
        world.settle();
        assert!(world.read(0, size as u32) == model);
        let mapped = model.chunks(BLOCK).filter(|block| block.iter().any(|&byte| byte != 0)).count();
        let directory = &world.shard.volume(FAMILY).expect("it is served").map().directory;
        assert_eq!((directory.live(), directory.past()), (mapped as u64, 0), "seed {seed}");
    }
}

#[test]
fn what_only_snapshots_see_is_moved_out_of_nearly_empty_egroups() {
    let mut world = World::new(1, 1, Limits::small());
    let blocks = 3000;
    let chunk = 50 * BLOCK;
    for at in 0..blocks / 50 {
        let bytes = pattern(at as u64, chunk);
        assert_eq!(world.write((at * chunk) as u64, &bytes), Reply::Done);
        world.pass(300_000);
    }
    world.settle();
    // Most of what the present has is trimmed, so that only a snapshot keeps some of each egroup.
    for at in 0..blocks as u64 {
        if at % 10 != 0 {
            let zero = Request::Zero { offset: at * BLOCK as u64, len: BLOCK as u64 };
            assert_eq!(world.ask(zero), Reply::Done);
            world.pass(1_000);
        }
    }
    let snapshot = take(&mut world, 1);
    assert_eq!(world.ask(Request::Zero { offset: 0, len: (blocks * BLOCK) as u64 }), Reply::Done);
    world.settle();
    for _ in 0..60 {
        world.pass(1_000_000);
    }
    world.settle();
    let directory = &world.shard.volume(FAMILY).expect("it is served").map().directory;
    assert_eq!((directory.live(), directory.past()), (300, 300));
    let units = units_on_drives(&world);
    assert!(units < 300 + 2 * 960, "the rest is free again, not {units} units");
    assert!(world.shard.counters().egroups_compacted > 0);
    for at in (0..blocks).step_by(10) {
        let whole = pattern((at / 50) as u64, chunk);
        let within = at % 50 * BLOCK;
        let found = read(&mut world, snapshot, (at * BLOCK) as u64, BLOCK as u32);
        assert!(found == whole[within..within + BLOCK], "block {at}");
    }
    assert_eq!(read(&mut world, snapshot, BLOCK as u64, BLOCK as u32), vec![0; BLOCK]);
}
