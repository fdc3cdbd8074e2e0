//! Numbers of copies that change while a vDisk is used: what moves where, when it is said to be done, and what is read meanwhile.

use crate::world::{FAMILY, World, pattern, pattern_of};
use weft_engine::identity::*;
use weft_engine::interface::*;
use weft_engine::limits::Limits;

const MIB: usize = 1 << 20;
const CLONE: FamilyId = FamilyId(2);

fn set_factor(world: &mut World, factor: u32) {
    world.record.factor = factor;
    world.notices.clear();
    world.step(Input::Order(Order::SetFactor { family: FAMILY, factor }));
}

/// Whether the owner of a family says that everything has so many copies.
fn is_told(world: &World, family: FamilyId, factor: u32) -> bool {
    let epoch = world.shard.volume(family).expect("it is served").epoch();
    world.notices.contains(&Notice::FactorReached { family, epoch, factor })
}

fn wait_until_reached(world: &mut World, family: FamilyId, factor: u32) {
    for _ in 0..400 {
        let progress = world.shard.factor_progress(family, Time(world.now)).expect("it is served");
        if progress.reached && progress.wanted == factor {
            return;
        }
        world.pass(50_000);
    }
    let progress = world.shard.factor_progress(family, Time(world.now));
    panic!("it is reached: {progress:?}, {}", world.shard.describe());
}

fn all_have(world: &World, family: FamilyId, factor: usize) {
    let copies = world.copies(family);
    assert!(!copies.is_empty(), "there is something");
    assert!(copies.values().all(|&count| count == factor), "{factor} copies of everything: {copies:?}");
}

fn members(world: &World) -> usize {
    world.record.segments.last().expect("it has a log").members.len()
}

#[test]
fn everything_gets_more_copies_and_fewer_again() {
    let mut world = World::new(3, 1, Limits::small());
    let bytes = pattern(1, 8 * MIB);
    for part in 0..8 {
        world.write((part * MIB) as u64, &bytes[part * MIB..(part + 1) * MIB]);
    }
    world.settle();
    all_have(&world, FAMILY, 1);
    for factor in [2, 3, 1, 3, 2, 1] {
        set_factor(&mut world, factor);
        // While it changes it is written and read.
        let piece = pattern(u64::from(factor) + 7, MIB);
        assert_eq!(world.write(9 * MIB as u64, &piece), Reply::Done);
        assert!(world.read(0, 8 * MIB as u32) == bytes);
        assert!(!is_told(&world, FAMILY, factor), "most of it has another number");
        wait_until_reached(&mut world, FAMILY, factor);
        assert!(is_told(&world, FAMILY, factor), "{:?}", world.notices);
        assert_eq!(members(&world), factor as usize, "the log as well");
        let progress = world.shard.factor_progress(FAMILY, Time(world.now)).expect("it is served");
        assert!(progress.reached && progress.left_bytes == 0 && progress.log, "{progress:?}");
        world.settle();
        all_have(&world, FAMILY, factor as usize);
        assert!(world.read(0, 8 * MIB as u32) == bytes && world.read(9 * MIB as u64, MIB as u32) == piece);
    }
    // Nothing of what was before is left on any drive.
    let held: usize = world.shard.keepers().map(|(_, keeper)| keeper.egroups().count()).sum();
    world.pass(2_000_000);
    assert_eq!(world.copies(FAMILY).len(), held, "one copy of each, and nothing else");
}

#[test]
fn what_has_copies_survives_the_loss_of_the_other_drives() {
    let mut world = World::new(3, 1, Limits::small());
    let bytes = pattern(2, 4 * MIB);
    for part in 0..4 {
        world.write((part * MIB) as u64, &bytes[part * MIB..(part + 1) * MIB]);
    }
    world.settle();
    set_factor(&mut world, 3);
    let late = pattern(3, MIB);
    world.write(8 * MIB as u64, &late);
    wait_until_reached(&mut world, FAMILY, 3);
    // Two of the three are empty from one moment to the next.
    for drive in [0, 2] {
        let areas = world.areas.iter_mut().filter(|((of, _), _)| of.0 == drive);
        areas.for_each(|(_, area)| area.fill(0));
    }
    let drives: Vec<DriveId> = [DriveId(0), DriveId(2)].to_vec();
    world.lives += 1;
    world.record.epoch = Epoch(world.record.epoch.0 + 1);
    let settings =
        weft_engine::shard::Settings { shard: ShardId(0), seed: world.lives, limits: Limits::small() };
    world.shard = weft_engine::shard::Shard::new(settings);
    for drive in [0, 1, 2].map(DriveId) {
        world.open_drive(drive, drives.contains(&drive));
    }
    world.start_families();
    assert!(world.read(0, 4 * MIB as u32) == bytes && world.read(8 * MIB as u64, MIB as u32) == late);
    wait_until_reached(&mut world, FAMILY, 3);
    all_have(&world, FAMILY, 3);
}

#[test]
fn the_next_owner_goes_on_from_what_lies_where() {
    let bytes = pattern(4, 8 * MIB);
    for cut_after_us in [1, 20_000, 60_000, 100_000, 150_000, 300_000, 1_000_000] {
        for (from, to) in [(1, 3), (3, 2)] {
            let mut world = World::new(3, from, Limits::small());
            for part in 0..8 {
                world.write((part * MIB) as u64, &bytes[part * MIB..(part + 1) * MIB]);
            }
            world.settle();
            set_factor(&mut world, to);
            world.pass(cut_after_us);
            world.restart(Limits::small());
            wait_until_reached(&mut world, FAMILY, to);
            world.settle();
            all_have(&world, FAMILY, to as usize);
            assert!(world.read(0, 8 * MIB as u32) == bytes, "cut after {cut_after_us} us");
        }
    }
}

#[test]
fn snapshots_follow_and_the_origin_of_a_clone_keeps_its_own_number() {
    let mut world = World::new(3, 1, Limits::small());
    let old = pattern(5, 2 * MIB);
    world.write(0, &old);
    let generation = world.take_snapshot(FAMILY, 1);
    let new = pattern(6, MIB);
    world.write(0, &new);
    world.settle();
    world.clone_snapshot(CLONE, Origin { family: FAMILY, snapshot: generation, size: 2 * MIB as u64 });
    world.step(Input::Order(Order::SetFactor { family: CLONE, factor: 2 }));
    let own = pattern(7, MIB / 2);
    let request = Request::Write { offset: 0, data: weft_engine::buffer::Buffer::copied(&own) };
    assert_eq!(world.ask_of(CLONE, request), Reply::Done);
    wait_until_reached(&mut world, CLONE, 2);
    world.settle_family(CLONE);
    all_have(&world, CLONE, 2);
    all_have(&world, FAMILY, 1);
    set_factor(&mut world, 3);
    wait_until_reached(&mut world, FAMILY, 3);
    world.settle();
    all_have(&world, FAMILY, 3);
    all_have(&world, CLONE, 2);
    let snapshot = world.ask(Request::ReadSnapshot { snapshot: generation, offset: 0, len: 2 * MIB as u32 });
    assert!(crate::world::data(snapshot) == old, "the snapshot is what it was");
    assert!(world.read(0, MIB as u32) == new);
    let cloned = world.ask_of(CLONE, Request::Read { offset: 0, len: MIB as u32 });
    assert!(crate::world::data(cloned) == [&own[..], &pattern_of(5, MIB / 2..MIB)].concat());
}

#[test]
fn a_change_that_is_taken_back_on_the_way_ends_where_it_began() {
    let mut world = World::new(3, 2, Limits::small());
    let bytes = pattern(8, 6 * MIB);
    for part in 0..6 {
        world.write((part * MIB) as u64, &bytes[part * MIB..(part + 1) * MIB]);
    }
    world.settle();
    for on_the_way in [3, 1] {
        set_factor(&mut world, on_the_way);
        world.pass(30_000);
        set_factor(&mut world, 2);
        wait_until_reached(&mut world, FAMILY, 2);
        world.settle();
        all_have(&world, FAMILY, 2);
        assert_eq!(members(&world), 2);
        assert!(world.read(0, 6 * MIB as u32) == bytes);
    }
}
