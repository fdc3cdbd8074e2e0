//! Snapshots of one vDisk against frozen copies, over its whole life. Faults are the simulator's.

use crate::world::{FAMILY, World, data, pattern};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use weft_engine::buffer::BLOCK;
use weft_engine::identity::*;
use weft_engine::interface::*;
use weft_engine::limits::Limits;

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
            let read = Request::Read { offset: 0, len: 4096 };
            let early = world.ask(read);
            assert_eq!(early, Reply::Error(RequestError::Busy), "nobody is served before it is written down");
            world.step(Input::Order(Order::Resume { family: FAMILY }));
            return world.notices.clear();
        }
        world.pass(100_000);
    }
    panic!("it is rolled back: {:?}", world.notices);
}

fn read(world: &mut World, snapshot: Generation, offset: u64, len: u32) -> Vec<u8> {
    data(world.ask(Request::ReadSnapshot { snapshot, offset, len }))
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
    let first = world.take_snapshot(FAMILY, 11);
    assert_eq!(world.take_snapshot(FAMILY, 11), first, "asked again, it is the same one");
    assert_eq!(world.write(0, &pattern(2, BLOCK)), Reply::Done);
    let second = world.take_snapshot(FAMILY, 12);
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
                    let generation = world.take_snapshot(FAMILY, round);
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
                        world.record.rollback = Some(to);
                        world.restart(Limits::small());
                        world.record.rollback = None;
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
    let snapshot = world.take_snapshot(FAMILY, 1);
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

/// Asks until the whole range is told: for each byte range whether it may differ.
fn differences(world: &mut World, from: Generation, to: Option<Generation>, size: u64) -> Vec<Extent> {
    let mut told = Vec::new();
    let mut offset = 0;
    while offset < size {
        let request = Request::Differences { from, to, offset, len: size - offset, limit: 7 };
        let Reply::Extents(extents) = world.ask(request) else { panic!("extents are told") };
        assert!(!extents.is_empty());
        offset += extents.iter().map(|extent| extent.len).sum::<u64>();
        told.extend(extents);
    }
    assert_eq!(offset, size);
    told
}

#[test]
fn what_is_told_as_equal_is_and_little_else_is_told_as_different() {
    let mut rng = SmallRng::seed_from_u64(77);
    let mut world = World::new(1, 1, Limits::small());
    let size = 24usize << 20;
    let mut model = vec![0u8; size];
    let mut frozen: Vec<(Generation, Vec<u8>)> = Vec::new();
    for round in 0..240u64 {
        let blocks = rng.random_range(1..40);
        let offset = BLOCK * rng.random_range(0..size / BLOCK - blocks);
        let part = offset..offset + blocks * BLOCK;
        if rng.random_bool(0.2) {
            let zero = Request::Zero { offset: offset as u64, len: part.len() as u64 };
            assert_eq!(world.ask(zero), Reply::Done);
            model[part].fill(0);
        } else {
            let bytes = pattern(round, part.len());
            assert_eq!(world.write(offset as u64, &bytes), Reply::Done);
            model[part].copy_from_slice(&bytes);
        }
        match rng.random_range(0..100) {
            0..10 if frozen.len() < 6 => frozen.push((world.take_snapshot(FAMILY, round), model.clone())),
            10..20 => world.pass(500_000),
            20..23 => world.settle(),
            23 => world.restart(Limits::small()),
            _ => {}
        }
        if round % 20 != 19 || frozen.is_empty() {
            continue;
        }
        let (from, old) = frozen[rng.random_range(0..frozen.len())].clone();
        let other = rng.random_range(0..=frozen.len());
        let (to, new) = frozen.get(other).map_or((None, &model), |(to, copy)| (Some(*to), copy));
        let (mut at, mut told) = (0, 0);
        for extent in differences(&mut world, from, to, size as u64) {
            let part = at..at + extent.len as usize;
            at = part.end;
            if extent.data {
                told += extent.len;
            } else {
                assert!(old[part.clone()] == new[part.clone()], "round {round}: {part:?} differs");
            }
        }
        if Some(from) == to {
            assert_eq!(told, 0, "a snapshot does not differ from itself");
        }
    }
    assert!(frozen.len() > 2, "there was something to compare");
    let gone = Request::Differences { from: Generation(999), to: None, offset: 0, len: 4096, limit: 1 };
    assert_eq!(world.ask(gone), Reply::Error(RequestError::NoSnapshot));
    // One block that is written behind a snapshot is all that is told.
    world.settle();
    let last = world.take_snapshot(FAMILY, 1000);
    assert_eq!(world.write(8 << 20, &pattern(5000, BLOCK)), Reply::Done);
    for _ in 0..2 {
        let told = differences(&mut world, last, None, size as u64);
        let told: u64 = told.iter().filter(|extent| extent.data).map(|extent| extent.len).sum();
        assert_eq!(told, BLOCK as u64);
        world.settle();
    }
}

#[test]
fn a_vdisk_with_many_small_generations_comes_to_rest() {
    let mut world = World::new(1, 1, Limits::small());
    for snapshot in 0..40 {
        assert_eq!(world.write(snapshot * BLOCK as u64, &pattern(snapshot, BLOCK)), Reply::Done);
        world.take_snapshot(FAMILY, snapshot);
        world.pass(500_000);
    }
    world.settle();
    let egroups = |world: &World| -> Vec<EgroupId> {
        let volume = world.shard.volume(FAMILY).expect("it is served");
        volume.map().directory.iter().map(|(egroup, _)| egroup).collect()
    };
    world.pass(30_000_000);
    let before = egroups(&world);
    assert!(before.len() >= 40, "an egroup holds data of one generation");
    world.pass(60_000_000);
    assert_eq!(egroups(&world), before, "nothing can be merged, so nothing is written again");
}

#[test]
fn a_read_of_a_snapshot_that_reaches_no_copy_fails() {
    // Nothing is kept in memory, which would answer.
    let mut world = World::new(1, 1, Limits { cache_bytes: 0, ..Limits::small() });
    assert_eq!(world.write(0, &pattern(1, BLOCK)), Reply::Done);
    let snapshot = world.take_snapshot(FAMILY, 1);
    assert_eq!(world.write(0, &pattern(2, BLOCK)), Reply::Done);
    world.settle();
    // From here on the pages are in memory.
    assert_eq!(read(&mut world, snapshot, 0, BLOCK as u32), pattern(1, BLOCK));
    let drive = DriveId(0);
    let group = GroupView { members: vec![drive], former: Vec::new() };
    let states = [
        (DriveState::Down, RequestError::NotServed, "it may come back"),
        (DriveState::Lost, RequestError::Damaged { block: 0 }, "it will not"),
    ];
    for (version, (state, error, why)) in (2..).zip(states) {
        world.step(Input::Order(Order::View(View {
            version,
            drives: BTreeMap::from([(drive, DriveView { shard: ShardId(0), domain: 0, state })]),
            groups: BTreeMap::from([(GroupId(0), group.clone())]).into(),
        })));
        let request = Request::ReadSnapshot { snapshot, offset: 0, len: BLOCK as u32 };
        assert_eq!(world.ask(request), Reply::Error(error), "{why}");
    }
}

#[test]
fn a_record_that_asks_for_what_cannot_be_is_refused_and_changes_nothing() {
    let mut world = World::new(1, 1, Limits::small());
    assert_eq!(world.write(0, &pattern(1, BLOCK)), Reply::Done);
    let old = world.take_snapshot(FAMILY, 1);
    assert_eq!(world.write(0, &pattern(2, BLOCK)), Reply::Done);
    let newer = world.take_snapshot(FAMILY, 2);
    assert_eq!(world.write(0, &pattern(3, BLOCK)), Reply::Done);
    world.record.rollback = Some(old);
    world.try_to_restart(Limits::small());
    let (family, epoch, reason) = (FAMILY, world.record.epoch, RollbackTrouble::NewerSnapshots);
    let refused = Notice::RollbackRefused { family, epoch, to: old, reason };
    assert!(world.notices.contains(&refused), "{:?}", world.notices);
    let early = world.ask(Request::Read { offset: 0, len: BLOCK as u32 });
    assert_eq!(early, Reply::Error(RequestError::Busy), "the record still says so");
    world.step(Input::Order(Order::Resume { family }));
    assert_eq!(world.read(0, BLOCK as u32), pattern(3, BLOCK));
    assert_eq!(read(&mut world, newer, 0, BLOCK as u32), pattern(2, BLOCK));
    assert_eq!(read(&mut world, old, 0, BLOCK as u32), pattern(1, BLOCK));
}

/// A rollback is done again by a new owner, and a snapshot is ordered while it waits for a drive. Gives whether that rollback was refused.
fn a_snapshot_is_ordered_during_a_rollback() -> bool {
    let mut world = World::new(1, 1, Limits::small());
    assert_eq!(world.write(0, &pattern(1, BLOCK)), Reply::Done);
    let old = world.take_snapshot(FAMILY, 1);
    assert_eq!(world.write(0, &pattern(2, BLOCK)), Reply::Done);
    world.record.rollback = Some(old);
    world.kill(Limits::small());
    world.open_drives(false);
    world.hung = Some((DriveId(0), Area::Data, 0));
    world.open_families();
    let snapshot = SnapshotId(2);
    world.step(Input::Order(Order::TakeSnapshot { family: FAMILY, snapshot }));
    world.pass(100_000);
    let epoch = world.record.epoch;
    let done = Notice::RolledBack { family: FAMILY, epoch, to: old };
    assert!(!world.notices.contains(&done), "the drive has written nothing");
    world.carry_on();
    world.pass(3_000_000);
    let refused = |notice: &Notice| matches!(notice, Notice::RollbackRefused { .. });
    if world.notices.iter().any(refused) {
        return true;
    }
    assert!(world.notices.contains(&done), "{:?}", world.notices);
    world.step(Input::Order(Order::Resume { family: FAMILY }));
    let taken = world.take_snapshot(FAMILY, snapshot.0);
    assert_eq!(world.read(0, BLOCK as u32), pattern(1, BLOCK));
    assert_eq!(read(&mut world, taken, 0, BLOCK as u32), pattern(1, BLOCK), "it is of what came back");
    false
}

#[test]
fn a_rollback_that_has_begun_is_not_refused_for_a_snapshot_that_waits_for_it() {
    assert!(!a_snapshot_is_ordered_during_a_rollback());
}

/// So the story above sees it when it is.
#[cfg(feature = "sabotage")]
#[test]
fn refusing_a_rollback_that_has_begun_is_seen() {
    use weft_engine::sabotage::{Bug, with};

    let refused = with(Bug::WaitingSnapshotInTheWay, a_snapshot_is_ordered_during_a_rollback);
    assert!(refused, "the snapshot that waits counts as a newer one");
}

/// A mark that the checkpoint knows, and that a drive has lost which lied about a flush: an opening gives it again, or, if the drive takes too
/// long over that, appends it again. Gives whether the vDisk comes to rest afterwards.
fn comes_to_rest_after_a_known_mark_was_lost(is_slow: bool) -> bool {
    let mut world = World::new(2, 2, Limits::small());
    assert_eq!(world.write(0, &pattern(1, BLOCK)), Reply::Done);
    let snapshot = world.take_snapshot(FAMILY, 1);
    assert_eq!(world.write(0, &pattern(2, BLOCK)), Reply::Done);
    world.settle();
    // It waits for the drain, so that records behind it are read again although a checkpoint tells of them.
    assert_eq!(world.write(0, &pattern(3, BLOCK)), Reply::Done);
    let log = (DriveId(1), Area::Log);
    let before = world.areas[&log].clone();
    drop_snapshot(&mut world, snapshot);
    // Long enough for a checkpoint, too short for the drain.
    world.pass(100_000);
    world.kill(Limits::small());
    world.areas.insert(log, before);
    world.open_drives(false);
    world.hung = is_slow.then_some((DriveId(1), Area::Log, 2));
    world.open_families();
    world.pass(6_000_000);
    world.hung = None;
    world.carry_on();
    let again = world.shard.counters().records_appended_again;
    assert_eq!(again > 1, is_slow, "the mark, and the checkpoint that knows it: {again}");
    world.step(Input::Order(Order::Settle { family: FAMILY }));
    world.pass(30_000_000);
    world.notices.contains(&Notice::FamilySettled { family: FAMILY })
}

#[test]
fn a_mark_that_the_checkpoint_knows_is_not_waited_for_when_it_was_lost() {
    assert!(comes_to_rest_after_a_known_mark_was_lost(true));
    assert!(comes_to_rest_after_a_known_mark_was_lost(false));
}

#[cfg(feature = "sabotage")]
#[test]
fn waiting_for_a_mark_that_is_known_is_seen() {
    use weft_engine::sabotage::{Bug, with};

    let rests = with(Bug::KnownMarkAwaited, || comes_to_rest_after_a_known_mark_was_lost(true));
    assert!(!rests);
}

#[test]
fn a_snapshot_that_many_leaves_tell_of_is_cleared_in_several_checkpoints() {
    // More leaves than one checkpoint clears, a block in each.
    const LEAVES: u64 = 700;
    const LEAF_BYTES: u64 = 1024 * BLOCK as u64;
    let mut world = World::new(1, 1, Limits::default());
    let write_all = |world: &mut World, seed: u64| {
        for leaf in 0..LEAVES {
            assert_eq!(world.write(leaf * LEAF_BYTES, &pattern(seed + leaf, BLOCK)), Reply::Done);
        }
        world.settle();
    };
    world.record.size = LEAVES * LEAF_BYTES;
    world.step(Input::Order(Order::Resize { family: FAMILY, size: LEAVES * LEAF_BYTES }));
    write_all(&mut world, 1_000);
    let (first, second) = (world.take_snapshot(FAMILY, 1), world.take_snapshot(FAMILY, 2));
    write_all(&mut world, 2_000);
    let third = world.take_snapshot(FAMILY, 3);
    write_all(&mut world, 3_000);
    let past = |world: &World| world.shard.volume(FAMILY).expect("it is served").map().directory.past();
    let checkpoints = |world: &World| world.shard.counters().checkpoints;
    assert_eq!(past(&world), 2 * LEAVES);

    let before = checkpoints(&world);
    drop_snapshot(&mut world, second);
    world.settle();
    assert!(checkpoints(&world) - before >= LEAVES / 256, "a slice at a time");
    assert_eq!(past(&world), 2 * LEAVES, "what it saw the first one sees");
    drop_snapshot(&mut world, third);
    world.pass(5_000);
    assert!((LEAVES + 1..2 * LEAVES).contains(&past(&world)), "the process dies in the middle of it");
    world.restart(Limits::default());
    world.settle();
    assert_eq!(past(&world), LEAVES);
    for leaf in 0..LEAVES {
        assert_eq!(read(&mut world, first, leaf * LEAF_BYTES, BLOCK as u32), pattern(1_000 + leaf, BLOCK));
    }
    drop_snapshot(&mut world, first);
    world.settle();
    assert_eq!(past(&world), 0);
    for leaf in 0..LEAVES {
        assert_eq!(world.read(leaf * LEAF_BYTES, BLOCK as u32), pattern(3_000 + leaf, BLOCK));
    }
}

#[test]
fn a_flood_of_snapshots_leaves_room_for_what_frees_the_ring() {
    let mut world = World::new(1, 1, Limits::small());
    assert_eq!(world.write(0, &pattern(1, BLOCK)), Reply::Done);
    // More marks than the ring has blocks, in no time at all: behind them the checkpoint that trims them would find no room.
    const SNAPSHOTS: u64 = 3000;
    for snapshot in (0..SNAPSHOTS).map(SnapshotId) {
        world.step(Input::Order(Order::TakeSnapshot { family: FAMILY, snapshot }));
    }
    let told =
        |world: &World, is: fn(&Notice) -> bool| world.notices.iter().filter(|notice| is(notice)).count();
    let is_taken = |notice: &Notice| matches!(notice, Notice::SnapshotTaken { .. });
    for _ in 0..600 {
        world.pass(100_000);
    }
    assert_eq!(told(&world, is_taken), SNAPSHOTS as usize, "each is taken when there is room");
    world.notices.clear();
    world.settle();
    // Whoever does not hear that one is gone says again that it shall go.
    let snapshots = world.shard.volume(FAMILY).expect("it is served").snapshots();
    for _ in 0..3 {
        for &(generation, _) in &snapshots {
            world.step(Input::Order(Order::DropSnapshot { family: FAMILY, generation }));
        }
    }
    for _ in 0..600 {
        world.pass(100_000);
    }
    assert!(world.shard.volume(FAMILY).expect("it is served").snapshots().is_empty());
    assert_eq!(world.write(0, &pattern(2, BLOCK)), Reply::Done);
    world.settle();
    assert_eq!(world.read(0, BLOCK as u32), pattern(2, BLOCK));
}

#[test]
fn a_table_full_of_small_generations_still_takes_the_pages_that_empty_it() {
    let mut world = World::new(1, 1, Limits::small());
    let bytes = |round: u64| pattern(round + 1, BLOCK);
    let mut generations = Vec::new();
    // Each generation has an egroup of its own, and nothing can be merged: the table has 256 entries.
    let is_full = (0..400u64).any(|round| {
        let reply = world.write(round * BLOCK as u64, &bytes(round));
        if reply == Reply::Done {
            generations.push(world.take_snapshot(FAMILY, round));
            world.pass(400_000);
        }
        reply == Reply::Error(RequestError::NoSpace)
    });
    assert!(is_full, "entries end long before blocks do");
    for &generation in &generations {
        world.step(Input::Order(Order::DropSnapshot { family: FAMILY, generation }));
        world.pass(1_000);
    }
    world.settle();
    assert_eq!(world.write(0, &bytes(1000)), Reply::Done, "what was dropped has given its entries back");
    for round in 1..generations.len() as u64 {
        assert_eq!(world.read(round * BLOCK as u64, BLOCK as u32), bytes(round));
    }
}
