//! One shard on drives that never fail, from the first write to the restart: the shortest story of all.
//! Faults are the simulator's.

use crate::world::{FAMILY, World, pattern};
use std::collections::BTreeSet;
use weft_engine::buffer::{BLOCK, Buffer};
use weft_engine::identity::*;
use weft_engine::interface::*;
use weft_engine::limits::Limits;
use weft_engine::shard::{Settings, Shard};

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
            world.open_drive(drive, false);
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
fn an_opening_that_ends_early_leaves_a_checkpoint_to_the_next_one() {
    let limits = Limits::small();
    let mut world = World::new(2, 2, limits.clone());
    assert_eq!(world.write(0, &pattern(1, BLOCK)), Reply::Done);
    world.settle();
    assert_eq!(world.write(BLOCK as u64, &pattern(2, BLOCK)), Reply::Done);
    // What drains it comes to both members; the checkpoint record behind that to one only.
    world.hung = Some((DriveId(1), Area::Log, 1));
    world.step(Input::Order(Order::Settle { family: FAMILY }));
    world.pass(2_000_000);
    assert!(!world.notices.contains(&Notice::FamilySettled { family: FAMILY }), "it is not on both");
    world.hung = None;
    // A new owner finds it, and is killed when the config store has its new segment, before any record is in that.
    world.unheard = true;
    let before = world.record.segments.clone();
    world.try_to_restart(limits.clone());
    assert_ne!(world.record.segments, before, "the store has taken something");
    world.unheard = false;
    world.restart(limits);
    assert_eq!(world.read(0, BLOCK as u32), pattern(1, BLOCK));
    assert_eq!(world.read(BLOCK as u64, BLOCK as u32), pattern(2, BLOCK));
}

/// Three vDisk's blocks, drained and checkpointed, and the log at rest.
fn settled(drives: u32, limits: &Limits) -> World {
    let mut world = World::new(drives, drives, limits.clone());
    for at in 0..3 {
        assert_eq!(world.write(at << 20, &pattern(at, BLOCK)), Reply::Done);
        world.settle();
    }
    world.pass(10_000_000);
    world
}

#[test]
fn one_damaged_block_of_the_log_never_makes_an_older_vdisk_of_it() {
    let limits = Limits::small();
    for drives in [1, 2] {
        let world = settled(drives, &limits);
        let used = world.areas[&(DriveId(0), Area::Log)]
            .chunks(BLOCK)
            .rposition(|block| block.iter().any(|&b| b != 0));
        let mut lost = 0;
        for block in 0..=used.expect("something was written") {
            let mut world = settled(drives, &limits);
            let egroups =
                |world: &World| world.shard.keeper(DriveId(0)).expect("it is open").egroups().count();
            let before = egroups(&world);
            world.areas.get_mut(&(DriveId(0), Area::Log)).expect("it is there")[block * BLOCK + 40] ^= 1;
            world.try_to_restart(limits.clone());
            world.pass(2_000_000);
            let failed = world.notices.iter().any(|notice| matches!(notice, Notice::FamilyFailed { .. }));
            if failed {
                assert_eq!(drives, 1, "block {block}: the other drive has it all: {:?}", world.notices);
                assert_eq!(egroups(&world), before, "block {block}: what is not served is not deleted");
                lost += 1;
                continue;
            }
            for at in 0..3 {
                assert!(
                    world.read(at << 20, BLOCK as u32) == pattern(at, BLOCK),
                    "block {block} at {at} MiB"
                );
            }
        }
        assert_eq!(lost > 0, drives == 1, "the checkpoint is in some block");
    }
}

#[test]
fn a_damaged_record_that_was_never_acknowledged_is_not_missed() {
    let limits = Limits::small();
    let mut world = World::new(2, 2, limits.clone());
    assert_eq!(world.write(0, &pattern(1, BLOCK)), Reply::Done);
    world.hung = Some((DriveId(1), Area::Log, 0));
    for at in [1, 2, 3] {
        let data = Buffer::copied(&pattern(at + 1, BLOCK));
        let request = Request::Write { offset: at * BLOCK as u64, data };
        world.step(Input::Request { ticket: Ticket(1000 + at), family: FAMILY, request });
    }
    assert!(world.replies.is_empty(), "one member has none of it");
    let log = world.areas.get_mut(&(DriveId(0), Area::Log)).expect("it is there");
    let second = log.chunks(BLOCK).position(|block| block == pattern(3, BLOCK)).expect("it is there");
    log[second * BLOCK] ^= 1;
    world.hung = None;
    world.restart(limits);
    assert_eq!(world.read(0, BLOCK as u32), pattern(1, BLOCK));
    assert_eq!(world.write(BLOCK as u64, &pattern(5, BLOCK)), Reply::Done);
    assert_eq!(world.read(BLOCK as u64, BLOCK as u32), pattern(5, BLOCK));
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

#[test]
fn a_flood_of_trims_leaves_room_for_what_frees_the_ring() {
    let mut world = World::new(1, 1, Limits::small());
    for at in 0..8 {
        assert_eq!(world.write(at << 18, &pattern(at, 64 * BLOCK)), Reply::Done);
        world.settle();
    }
    // More records than the ring has blocks, in no time at all: nothing but trims can make the log empty again.
    for at in 0..3000 {
        let zero = Request::Zero { offset: at % 512 * BLOCK as u64, len: BLOCK as u64 };
        assert_eq!(world.ask(zero), Reply::Done, "trim {at}");
    }
    world.settle();
    assert_eq!(world.write(0, &pattern(9, BLOCK)), Reply::Done);
    assert_eq!(world.read(0, BLOCK as u32), pattern(9, BLOCK));
}
