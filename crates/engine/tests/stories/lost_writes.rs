//! Writes that are damaged in every log that has them (decision 0061): their blocks cannot be read, and all others can.

use crate::reopened::{begin_a_frame, has_block, is_failed, is_ready, log, see};
use crate::world::{FAMILY, World, data, pattern};
use weft_engine::buffer::BLOCK;
use weft_engine::interface::{Area, Damage, DriveState, Input, Notice, Order, Reply, Request, RequestError};
use weft_engine::limits::Limits;
use weft_engine::{DriveId, Epoch};

const BLOCKS: u64 = 6;

fn at(block: u64) -> u64 {
    block * BLOCK as u64
}

/// Blocks 0 to 5 in the log, each by a write of its own, but for 3 and 4, which one write has put there.
fn written(drives: u32) -> World {
    let mut world = World::new(drives, drives, Limits::small());
    for block in [0, 1, 2, 5] {
        assert_eq!(world.write(at(block), &pattern(block, BLOCK)), Reply::Done);
    }
    let both = [pattern(3, BLOCK), pattern(4, BLOCK)].concat();
    assert_eq!(world.write(at(3), &both), Reply::Done);
    // What is settled is damage, if it is not sound any more; the last frame of a ring might be one that was never finished.
    assert_eq!(world.write(at(20), &pattern(20, BLOCK)), Reply::Done);
    assert_eq!(world.write(at(21), &pattern(21, BLOCK)), Reply::Done);
    world
}

/// Where this block lies in the log of a drive.
fn places(world: &World, drive: u32, block: u64) -> Vec<usize> {
    let log = world.areas[&(DriveId(drive), Area::Log)].chunks(BLOCK).enumerate();
    let wanted = pattern(block, BLOCK);
    let places: Vec<usize> = log.filter(|(_, found)| *found == wanted).map(|(place, _)| place).collect();
    assert!(!places.is_empty(), "block {block} is in the log");
    places
}

/// Changes a bit of this block there.
fn damage(world: &mut World, drive: u32, block: u64) {
    for place in places(world, drive, block) {
        world.areas.get_mut(&(DriveId(drive), Area::Log)).expect("it is there")[place * BLOCK + 99] ^= 4;
    }
}

/// Only these blocks cannot be read.
fn reads_all_but(world: &mut World, lost: &[u64]) {
    for block in (0..BLOCKS).chain([20, 21]) {
        let reply = world.ask(Request::Read { offset: at(block), len: BLOCK as u32 });
        if lost.contains(&block) {
            assert_eq!(reply, Reply::Error(RequestError::Damaged { block }));
        } else {
            assert!(data(reply) == pattern(block, BLOCK), "block {block}");
        }
    }
}

/// What was told of writes that are lost, when the vDisk was served again.
fn reopened(world: &mut World) -> Vec<(u64, u64)> {
    world.try_to_restart(Limits::small());
    assert!(is_ready(world));
    writes_lost(world)
}

fn writes_lost(world: &World) -> Vec<(u64, u64)> {
    let lost = |notice: &Notice| match *notice {
        Notice::Damage { damage: Damage::WriteLost { block, count, .. }, .. } => Some((block, count)),
        _ => None,
    };
    world.notices.iter().filter_map(lost).collect()
}

#[test]
fn a_damaged_write_costs_its_own_blocks_only_in_the_log_in_egroups_and_after_any_restart() {
    let mut world = written(1);
    damage(&mut world, 0, 4);
    assert_eq!(reopened(&mut world), [(3, 2)], "its blocks are named");
    reads_all_but(&mut world, &[3, 4]);
    assert_eq!(
        world.ask(Request::Read { offset: at(2), len: 3 * BLOCK as u32 }),
        Reply::Error(RequestError::Damaged { block: 3 })
    );
    world.restart(Limits::small());
    reads_all_but(&mut world, &[3, 4]);
    // Out of the log, which is trimmed.
    world.settle();
    reads_all_but(&mut world, &[3, 4]);
    assert_eq!(reopened(&mut world), [], "nothing of it is read any more");
    reads_all_but(&mut world, &[3, 4]);
    // Written again it is sound.
    assert_eq!(world.write(at(4), &pattern(4, BLOCK)), Reply::Done);
    reads_all_but(&mut world, &[3]);
    // Half of an egroup that nobody can read is not looked at again and again, to make room of the other half.
    world.settle();
    world.pass(10_000_000);
    let before = world.drive_reads;
    world.pass(120_000_000);
    assert!(world.drive_reads < before + 100, "{} reads", world.drive_reads - before);
    assert_eq!(world.ask(Request::Zero { offset: at(3), len: BLOCK as u64 }), Reply::Done);
    assert_eq!(world.read(at(3), BLOCK as u32), vec![0; BLOCK]);
    world.settle();
    world.restart(Limits::small());
    assert_eq!(world.read(at(4), BLOCK as u32), pattern(4, BLOCK));
}

#[test]
fn what_was_written_over_or_drained_since_is_not_missed() {
    let mut world = written(1);
    assert_eq!(world.write(at(1), &pattern(101, BLOCK)), Reply::Done);
    assert_eq!(world.write(at(30), &pattern(30, BLOCK)), Reply::Done);
    assert_eq!(world.write(at(31), &pattern(31, BLOCK)), Reply::Done);
    damage(&mut world, 0, 1);
    assert_eq!(reopened(&mut world), [], "nobody is told that something is lost");
    assert_eq!(world.read(at(1), BLOCK as u32), pattern(101, BLOCK));
    assert_eq!(world.read(at(2), BLOCK as u32), pattern(2, BLOCK));
}

/// Both copies of a drained block say that it is lost, and one of them is away. Gives whether a read is told so at once.
fn a_lost_block_is_read_while_a_copy_is_away() -> bool {
    let mut world = written(2);
    damage(&mut world, 0, 1);
    damage(&mut world, 1, 1);
    world.restart(Limits::small());
    world.settle();
    see(&mut world, 5, &[DriveState::Up, DriveState::Down]);
    let reply = world.ask(Request::Read { offset: at(1), len: BLOCK as u32 });
    assert_eq!(world.read(at(2), BLOCK as u32), pattern(2, BLOCK));
    reply == Reply::Error(RequestError::Damaged { block: 1 })
}

#[test]
fn nobody_is_waited_for_who_knows_no_better() {
    assert!(a_lost_block_is_read_while_a_copy_is_away());
}

/// A write is damaged on the first drive. The second has less; its last frame is one that was never finished, as far as it knows.
fn damaged_here_and_never_there(is_damaged: bool) -> World {
    let mut world = World::new(2, 2, Limits::small());
    assert_eq!(world.write(at(0), &pattern(0, BLOCK)), Reply::Done);
    let before = log(&world, 1).to_vec();
    for block in [1, 2, 3, 4, 5, 20, 21] {
        assert_eq!(world.write(at(block), &pattern(block, BLOCK)), Reply::Done);
    }
    if is_damaged {
        damage(&mut world, 0, 1);
    }
    world.areas.insert((DriveId(1), Area::Log), before);
    begin_a_frame(&mut world, 1);
    world
}

/// What could not be read can be now. Gives whether this block is there, in the log or where it was drained to meanwhile.
fn is_there_when_it_can_be_read(world: &mut World, block: u64) -> bool {
    if is_ready(world) {
        world.settle();
    }
    world.unreadable.clear();
    world.restart(Limits::small());
    has_block(world, at(block), &pattern(block, BLOCK))
}

/// It is damaged on one drive. The other was away since it was asked what it has, and cannot read the end of its log for a while. Gives whether it
/// is there when that has passed.
fn it_was_away_since_it_told_what_it_has() -> bool {
    let mut world = written(2);
    damage(&mut world, 0, 20);
    let ends: Vec<usize> = [20, 21].iter().flat_map(|block| places(&world, 1, *block)).collect();
    world.kill(Limits::small());
    world.open_drives(false);
    // The fence, and then nothing comes of what is read.
    world.hung = Some((DriveId(1), Area::Log, 1));
    world.open_families();
    world.pass(100_000);
    assert_eq!(world.hanging(), [Area::Log], "it is asked for it");
    see(&mut world, 5, &[DriveState::Up, DriveState::Down]);
    world.let_go();
    world.hung = None;
    world.unreadable = ends.into_iter().map(|place| (DriveId(1), Area::Log, place - 1)).collect();
    world.open_drive(DriveId(1), false);
    world.pass(60_000_000);
    see(&mut world, 6, &[DriveState::Up; 2]);
    world.pass(60_000_000);
    is_there_when_it_can_be_read(&mut world, 20)
}

#[test]
fn who_never_had_it_and_blinks_keeps_no_vdisk_from_being_served() {
    let mut world = damaged_here_and_never_there(true);
    world.kill(Limits::small());
    world.open_drives(false);
    world.hung = Some((DriveId(0), Area::Log, 1));
    world.open_families();
    world.pass(100_000);
    assert_eq!(world.hanging(), [Area::Log], "it is being read");
    see(&mut world, 5, &[DriveState::Up, DriveState::Down]);
    world.open_drive(DriveId(1), false);
    see(&mut world, 6, &[DriveState::Up; 2]);
    world.carry_on();
    world.pass(10_000_000);
    assert!(is_ready(&world));
    reads_all_but(&mut world, &[1]);
}

#[test]
fn what_a_drive_told_before_it_went_away_gives_nothing_up() {
    assert!(it_was_away_since_it_told_what_it_has());
}

#[test]
fn a_snapshot_misses_it_and_what_came_later_does_not() {
    let mut world = written(1);
    let generation = world.take_snapshot(FAMILY, 7);
    assert_eq!(world.write(at(2), &pattern(102, BLOCK)), Reply::Done);
    assert_eq!(world.write(at(30), &pattern(30, BLOCK)), Reply::Done);
    assert_eq!(world.write(at(31), &pattern(31, BLOCK)), Reply::Done);
    damage(&mut world, 0, 2);
    world.restart(Limits::small());
    for _ in 0..2 {
        assert_eq!(world.read(at(2), BLOCK as u32), pattern(102, BLOCK));
        let seen =
            |block| Request::ReadSnapshot { snapshot: generation, offset: at(block), len: BLOCK as u32 };
        assert_eq!(world.ask(seen(2)), Reply::Error(RequestError::Damaged { block: 2 }));
        assert_eq!(data(world.ask(seen(1))), pattern(1, BLOCK));
        world.settle();
    }
    world.step(Input::Order(Order::DropSnapshot { family: FAMILY, generation }));
    world.pass(10_000_000);
    assert_eq!(world.read(at(2), BLOCK as u32), pattern(102, BLOCK));
}

#[test]
fn with_two_copies_both_have_to_be_damaged() {
    let mut world = written(2);
    damage(&mut world, 0, 1);
    damage(&mut world, 1, 1);
    damage(&mut world, 0, 2);
    damage(&mut world, 1, 5);
    assert_eq!(reopened(&mut world), [(1, 1)]);
    reads_all_but(&mut world, &[1]);
    world.settle();
    world.restart(Limits::small());
    reads_all_but(&mut world, &[1]);
    assert_eq!(world.write(at(1), &pattern(1, BLOCK)), Reply::Done);
    reads_all_but(&mut world, &[]);
}

#[test]
fn who_never_had_it_does_not_keep_it_from_being_given_up() {
    let mut world = damaged_here_and_never_there(true);
    assert_eq!(reopened(&mut world), [(1, 1)]);
    reads_all_but(&mut world, &[1]);
    // It has what comes now, and a gap.
    assert_eq!(world.write(at(20), &pattern(20, BLOCK)), Reply::Done);
    assert_eq!(reopened(&mut world), [], "it is out of the log, and told already");
    reads_all_but(&mut world, &[1]);
}

/// The ring of the other drive has no room for a fence, so it is not heard, and the write is damaged on this one. Gives whether it is there when
/// the other is heard.
fn whoever_was_not_heard_may_have_it() -> bool {
    let mut world = written(2);
    damage(&mut world, 0, 1);
    world.hung = Some((DriveId(1), Area::Log, 0));
    world.try_to_restart(Limits::small());
    world.pass(60_000_000);
    let is_given_up = !writes_lost(&world).is_empty();
    world.hung = None;
    world.restart(Limits::small());
    reads_all_but(&mut world, &[]);
    !is_given_up
}

#[test]
fn what_somebody_may_have_who_was_not_heard_is_not_given_up() {
    assert!(whoever_was_not_heard_may_have_it());
}

/// It is damaged on one drive, and cannot be read on the other for a while. Gives whether it is there when that has passed.
fn it_is_damaged_here_and_not_read_there() -> bool {
    let mut world = written(2);
    damage(&mut world, 0, 1);
    world.unreadable = places(&world, 1, 1).into_iter().map(|place| (DriveId(1), Area::Log, place)).collect();
    world.try_to_restart(Limits::small());
    world.pass(10_000_000);
    is_there_when_it_can_be_read(&mut world, 1)
}

#[test]
fn what_one_has_damaged_is_not_given_up_because_the_other_does_not_give_it() {
    assert!(it_is_damaged_here_and_not_read_there());
}

#[test]
fn a_drive_that_does_not_give_it_may_give_it_the_next_time() {
    let mut world = written(1);
    let places: Vec<usize> = places(&world, 0, 1);
    world.unreadable = places.iter().map(|&place| (DriveId(0), Area::Log, place)).collect();
    // The vDisk is not served, and none of it is given up.
    world.try_to_restart(Limits::small());
    world.pass(10_000_000);
    assert!(is_failed(&world));
    world.unreadable.clear();
    assert_eq!(reopened(&mut world), []);
    reads_all_but(&mut world, &[]);
}

/// Attempts to open the vDisk, the first of which is under way, until it is served; at most five.
fn attempts(world: &mut World) -> Option<u32> {
    for attempt in 1..=5 {
        world.pass(10_000_000);
        if is_ready(world) {
            return Some(attempt);
        }
        assert!(is_failed(world));
        world.notices.clear();
        world.record.epoch = Epoch(world.record.epoch.0 + 1);
        world.step(Input::Order(Order::OpenFamily(world.record.clone())));
    }
    None
}

/// A sector of each log that has a write is not given any more, since before the drives were opened or since then.
fn a_sector_is_bad(drives: u32, since_before: bool) -> World {
    let mut world = written(drives);
    let places =
        |drive| places(&world, drive, 1).into_iter().map(move |place| (DriveId(drive), Area::Log, place));
    let bad: Vec<_> = (0..drives).flat_map(places).collect();
    world.kill(Limits::small());
    if since_before {
        world.unreadable.extend(bad.clone());
    }
    world.open_drives(false);
    world.pass(10_000_000);
    world.unreadable.extend(bad);
    world.open_families();
    world
}

#[test]
fn what_a_drive_does_not_give_for_long_is_lost() {
    for (drives, since_before) in [(1, true), (1, false), (2, true), (2, false)] {
        let mut world = a_sector_is_bad(drives, since_before);
        assert_eq!(attempts(&mut world), Some(3), "{drives} {since_before}");
        assert_eq!(writes_lost(&world), [(1, 1)]);
        reads_all_but(&mut world, &[1]);
        world.settle();
        reads_all_but(&mut world, &[1]);
        assert_eq!(reopened(&mut world), []);
        reads_all_but(&mut world, &[1]);
        assert_eq!(world.write(at(1), &pattern(1, BLOCK)), Reply::Done);
        reads_all_but(&mut world, &[]);
    }
}

/// One drive does not give a write, and the other has forgotten it, and all behind it. Gives whether what is behind it is there.
fn not_given_here_and_never_there() -> bool {
    let mut world = damaged_here_and_never_there(false);
    world.unreadable = places(&world, 0, 1).into_iter().map(|place| (DriveId(0), Area::Log, place)).collect();
    world.kill(Limits::small());
    world.open_drives(false);
    world.open_families();
    attempts(&mut world).is_some()
        && [2, 3, 4, 5, 20, 21].iter().all(|&block| has_block(&mut world, at(block), &pattern(block, BLOCK)))
        && world.ask(Request::Read { offset: at(1), len: BLOCK as u32 })
            == Reply::Error(RequestError::Damaged { block: 1 })
}

#[test]
fn what_a_drive_does_not_give_is_not_the_end_of_the_log() {
    assert!(not_given_here_and_never_there());
}

/// A drive is there, and cannot be read at all for a while. Gives whether nothing is missed after that.
fn it_gives_nothing_for_a_while() -> bool {
    let mut world = written(1);
    world.kill(Limits::small());
    world.open_drives(false);
    let blocks = log(&world, 0).len() / BLOCK;
    world.unreadable.extend((0..blocks).map(|block| (DriveId(0), Area::Log, block)));
    world.open_families();
    if attempts(&mut world).is_some() {
        return false;
    }
    world.unreadable.clear();
    attempts(&mut world).is_some() && writes_lost(&world).is_empty()
}

#[test]
fn a_drive_that_gives_nothing_has_lost_nothing() {
    assert!(it_gives_nothing_for_a_while());
}

#[cfg(feature = "sabotage")]
#[test]
fn giving_up_what_was_only_not_read_is_seen() {
    use weft_engine::sabotage::{Bug, with};
    assert!(!with(Bug::UnreadTakenForLost, it_is_damaged_here_and_not_read_there));
    assert!(!with(Bug::OldWordBelieved, it_was_away_since_it_told_what_it_has));
    assert!(!with(Bug::SilentDriveBelieved, it_gives_nothing_for_a_while));
    assert!(!with(Bug::WithheldForEver, not_given_here_and_never_there));
    assert!(!with(Bug::LostAskedAgain, a_lost_block_is_read_while_a_copy_is_away));
}
