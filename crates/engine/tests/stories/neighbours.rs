//! What is done about what a vDisk left behind while it, or another, is asked.

use crate::world::{World, pattern};
use weft_engine::FamilyId;
use weft_engine::interface::*;
use weft_engine::limits::Limits;

/// What one egroup takes.
const PIECE: usize = 960 * 4096;
const PIECES: u64 = 16;
const OTHER: FamilyId = FamilyId(2);

/// Egroups that are emptied within so many microseconds, with requests to another vDisk or without, of one that was written over.
fn emptied_within(us: u64, is_other_asked: bool) -> u64 {
    let geometry = Geometry { log: 16 << 20, data: 256 << 20 };
    let mut world = World::sized(1, 1, Limits::default(), geometry);
    world.serve_empty(OTHER);
    world.pass(1_000_000);
    for at in 0..PIECES {
        assert_eq!(world.write(at * PIECE as u64, &pattern(at, PIECE)), Reply::Done);
    }
    world.settle();
    // Most of each egroup.
    for at in 0..PIECES {
        assert_eq!(world.write(at * PIECE as u64, &pattern(at + 100, PIECE * 3 / 4)), Reply::Done);
    }
    // Drained, and counted by a checkpoint.
    for _ in 0..100 {
        world.pass(500_000);
        world.read(0, 4096);
    }
    assert_eq!(world.shard.counters().egroups_compacted, 0, "its clients are there");
    for _ in 0..us / 10_000 {
        if is_other_asked {
            let read = Request::Read { offset: 0, len: 4096 };
            assert!(matches!(world.ask_of(OTHER, read), Reply::Data(_)));
        }
        world.pass(10_000);
    }
    world.shard.counters().egroups_compacted
}

#[test]
fn what_an_idle_vdisk_left_behind_is_little_work_while_another_is_asked() {
    let alone = emptied_within(1_150_000, false);
    let beside = emptied_within(1_150_000, true);
    assert!(beside > 0, "it is done all the same");
    assert!(alone >= 2 * beside, "{alone} egroups emptied alone, {beside} beside a vDisk in use");
}

#[test]
fn what_a_busy_vdisk_leaves_behind_waits_while_there_is_space() {
    const PIECES: u64 = 20;
    let geometry = Geometry { log: 256 << 20, data: 1 << 30 };
    let mut world = World::sized(1, 1, Limits::default(), geometry);
    for at in 0..PIECES {
        assert_eq!(world.write(at * PIECE as u64, &pattern(at, PIECE)), Reply::Done);
    }
    // Less of it each time: large egroups that are mostly dead, and none is quite.
    for round in 1..7 {
        for at in (0..PIECES * PIECE as u64).step_by(32 << 10) {
            let written = pattern(round + at, (8 - round as usize) << 12);
            assert_eq!(world.write(at + (round << 12), &written), Reply::Done);
        }
        for _ in 0..30 {
            world.pass(500_000);
            world.read(0, 4096);
        }
    }
    assert_eq!(world.shard.counters().egroups_compacted, 0, "its clients are there");
    world.pass(20_000_000);
    assert!(world.shard.counters().egroups_compacted > 0, "now they are gone");
}
