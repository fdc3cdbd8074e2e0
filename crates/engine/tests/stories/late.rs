//! Parts of a log that were written on too few drives, while a node stands alone: another drive gets them as soon as there is one.

use crate::world::{World, pattern};
use weft_engine::buffer::BLOCK;
use weft_engine::identity::*;
use weft_engine::interface::*;
use weft_engine::limits::Limits;

const SECONDS: u64 = 1_000_000;
/// Bytes of one write.
const PIECE: u64 = 64 << 10;
const LOG: u64 = 32 << 20;

/// Drives 0 and 1 as they are told, in a node whose only neighbour is away with 2 and 3; every group has one drive of each.
fn see(world: &mut World, version: u64, first: DriveState, second: DriveState) {
    let states = [first, second, DriveState::Down, DriveState::Down];
    let members = [[0, 2], [1, 3], [2, 0], [3, 1]].map(|members| members.map(DriveId).to_vec());
    let groups = members.map(|members| GroupView { members, former: Vec::new() });
    world.see_in_nodes_of(2, version, &states, groups);
}

fn write(world: &mut World, pieces: std::ops::Range<u64>) {
    for at in pieces {
        assert_eq!(world.write(at * PIECE, &pattern(1 + at, PIECE as usize)), Reply::Done);
    }
}

/// The process is killed and comes back with these drives. Whether the vDisk is served then.
fn begin_again(world: &mut World, drives: &[u32], first: DriveState) -> bool {
    world.kill(Limits::default());
    drives.iter().for_each(|&drive| world.open_drive(DriveId(drive), false));
    see(world, 1, first, DriveState::Up);
    world.step(Input::Order(Order::OpenFamily(world.record.clone())));
    is_ready(world)
}

fn is_ready(world: &World) -> bool {
    world.notices.iter().any(|notice| matches!(notice, Notice::FamilyReady { .. }))
}

/// How many of so many pieces are read as they were written.
fn are_there(world: &mut World, pieces: u64) -> u64 {
    let is_there = |at: &u64| world.read(at * PIECE, PIECE as u32) == pattern(1 + at, PIECE as usize);
    (0..pieces).filter(is_there).count() as u64
}

/// A log is written on two drives, on one, on both again, and by its next owner. Until that one comes, what only the one drive has
/// cannot be read. Then that drive is lost. Gives how many of 16 pieces are there still.
fn a_drive_that_was_alone_is_lost() -> u64 {
    use DriveState::{Down, Lost, Up};
    let mut world = World::sized(4, 2, Limits::default(), Geometry { log: LOG, data: 64 << 20 });
    see(&mut world, 2, Up, Up);
    write(&mut world, 0..4);
    see(&mut world, 3, Up, Down);
    write(&mut world, 4..8);
    world.unreadable.extend((0..LOG as usize / BLOCK).map(|block| (DriveId(0), Area::Log, block)));
    see(&mut world, 4, Up, Up);
    write(&mut world, 8..12);
    world.unreadable.clear();
    assert!(begin_again(&mut world, &[0, 1], Up));
    write(&mut world, 12..16);
    world.pass(5 * SECONDS);
    if !begin_again(&mut world, &[1], Lost) {
        return 0;
    }
    are_there(&mut world, 16)
}

/// Three drives of a node whose neighbour is away: a log is written on the second alone, then, when that is down, on the first alone. The
/// third comes, and then the first is lost. What it alone had the third has; the rest is there when the second is back. Gives how many of
/// 8 pieces are read.
fn a_part_that_nobody_can_give_is_before_another() -> u64 {
    use DriveState::{Down, Lost, Up};
    let mut world = World::sized(6, 2, Limits::default(), Geometry { log: LOG, data: 64 << 20 });
    let members = [[0, 3], [1, 4], [2, 5]].map(|members| members.map(DriveId).to_vec());
    let see = |world: &mut World, version: u64, states: [DriveState; 3]| {
        let groups = members.clone().map(|members| GroupView { members, former: Vec::new() });
        let states = [states[0], states[1], states[2], Down, Down, Down];
        world.see_in_nodes_of(3, version, &states, groups);
    };
    see(&mut world, 2, [Down, Up, Down]);
    write(&mut world, 0..4);
    see(&mut world, 3, [Up, Down, Down]);
    write(&mut world, 4..8);
    see(&mut world, 4, [Up, Down, Up]);
    world.pass(5 * SECONDS);
    world.kill(Limits::default());
    [1, 2].into_iter().for_each(|drive| world.open_drive(DriveId(drive), false));
    see(&mut world, 1, [Lost, Up, Up]);
    world.step(Input::Order(Order::OpenFamily(world.record.clone())));
    world.pass(SECONDS);
    if !is_ready(&world) {
        return 0;
    }
    are_there(&mut world, 8)
}

#[test]
fn a_part_that_nobody_can_give_does_not_stand_before_another() {
    assert_eq!(a_part_that_nobody_can_give_is_before_another(), 8);
}

#[cfg(feature = "sabotage")]
#[test]
fn late_copies_that_wait_for_each_other_are_seen() {
    use weft_engine::sabotage::{Bug, with};
    assert_eq!(with(Bug::LateCopiesStuck, a_part_that_nobody_can_give_is_before_another), 0);
}

#[test]
fn what_was_written_on_one_drive_has_another_copy_when_there_is_another() {
    assert_eq!(a_drive_that_was_alone_is_lost(), 16);
}

#[cfg(feature = "sabotage")]
#[test]
fn parts_of_a_log_without_their_copies_are_seen() {
    use weft_engine::sabotage::{Bug, with};
    for bug in
        [Bug::ThinSegmentsStay, Bug::LateMemberNamedEarly, Bug::LateRecordsAsNew, Bug::OpeningDrivesForgotten]
    {
        assert!(with(bug, a_drive_that_was_alone_is_lost) < 16, "{bug:?}");
    }
}
