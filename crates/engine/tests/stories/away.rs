//! Drives that are away and come back: meanwhile nothing gets fewer copies than it had, and the other drive may be lost.

use crate::world::{FAMILY, World, pattern};
use weft_engine::buffer::Buffer;
use weft_engine::identity::*;
use weft_engine::interface::*;
use weft_engine::limits::Limits;

const MIB: u64 = 1 << 20;
const SECONDS: u64 = 1_000_000;
/// Bytes of one write.
const PIECE: u64 = 64 << 10;
const OTHER: FamilyId = FamilyId(2);

fn see(world: &mut World, version: u64, states: &[DriveState], groups: &[&[u32]]) {
    let group = |members: &&[u32]| GroupView {
        members: members.iter().copied().map(DriveId).collect(),
        former: Vec::new(),
    };
    world.see(version, states, groups.iter().map(group));
}

/// Writes every such piece of the vDisk. Whether all of it was taken.
fn write(world: &mut World, pieces: impl Iterator<Item = u64>, seed: u64) -> bool {
    let mut all = true;
    for at in pieces {
        let reply = world.write(at * PIECE, &pattern(seed + at, PIECE as usize));
        assert!(matches!(reply, Reply::Done | Reply::Error(RequestError::NoSpace)), "{reply:?}");
        all &= reply == Reply::Done;
    }
    all
}

/// How few drives hold an egroup that the vDisk names, of all of them.
fn fewest_copies(world: &World) -> usize {
    world.copies(FAMILY).into_values().min().expect("it names something")
}

fn moved(world: &World) -> u64 {
    world.shard.counters().egroups_compacted + world.shard.counters().egroups_repacked
}

/// A full vDisk on two drives, of which one is like that from then on; its pieces, and what was moved so far.
fn beside_one_that_is(state: DriveState) -> (World, u64, u64) {
    let mut world = World::new(2, 2, Limits::default());
    let pieces = world.record.size / PIECE;
    assert!(write(&mut world, 0..pieces, 1));
    world.settle();
    assert_eq!(fewest_copies(&world), 2);
    let moved = moved(&world);
    see(&mut world, 2, &[DriveState::Up, state], &[&[0, 1], &[1, 0]]);
    (world, pieces, moved)
}

/// A vDisk on two drives of which one goes away, most of which is overwritten then, more than its log takes. Gives what was
/// moved without that drive, and what was within some minutes of its return.
fn garbage_beside_a_drive_that_is_away() -> (u64, u64) {
    let (mut world, pieces, before) = beside_one_that_is(DriveState::Down);
    assert!(write(&mut world, (0..pieces).filter(|at| at % 8 < 5), 1000));
    world.pass(60 * SECONDS);
    let away = moved(&world) - before;
    see(&mut world, 3, &[DriveState::Up; 2], &[&[0, 1], &[1, 0]]);
    world.pass(300 * SECONDS);
    let back = moved(&world) - before - away;
    world.settle();
    assert_eq!(fewest_copies(&world), 2);
    for at in 0..pieces {
        let seed = if at % 8 < 5 { 1000 + at } else { 1 + at };
        assert!(world.read(at * PIECE, PIECE as u32) == pattern(seed, PIECE as usize), "piece {at}");
    }
    (away, back)
}

#[test]
fn what_has_a_copy_on_a_drive_that_is_away_stays_where_it_is_until_that_is_back() {
    let (away, back) = garbage_beside_a_drive_that_is_away();
    assert_eq!(away, 0);
    assert!(back > 0, "then it is moved");
}

#[test]
fn beside_a_drive_that_is_lost_for_good_space_comes_back() {
    let (mut world, pieces, before) = beside_one_that_is(DriveState::Lost);
    assert!(write(&mut world, (0..pieces).step_by(2), 1000));
    world.pass(60 * SECONDS);
    assert!(moved(&world) > before, "nothing has a copy there that could be missed");
}

#[test]
fn a_full_pool_does_not_wait_for_ever_for_a_drive_that_is_away() {
    let (mut world, pieces, before) = beside_one_that_is(DriveState::Down);
    // Half of each egroup is replaced, and half of what is left, until nothing fits any more.
    let strides = [(0, 2), (1, 4), (3, 8), (7, 16), (15, 32)];
    let all = strides.iter().all(|&(first, step)| write(&mut world, (first..pieces).step_by(step), 1000));
    assert!(!all, "the pool is full");
    world.pass(10 * 60 * SECONDS);
    assert_eq!(moved(&world) - before, 0);
    world.pass(10 * 60 * SECONDS);
    assert!(moved(&world) > before, "who keeps one copy alone may as well put it in order");
    assert!(write(&mut world, 0..pieces / 8, 2000));
}

/// Serves a second vDisk of one copy, of so many bytes.
fn serve_other(world: &mut World, size: u64) {
    let record = FamilyRecord {
        family: OTHER,
        factor: 1,
        size,
        segments: Vec::new(),
        version: 0,
        ..world.record.clone()
    };
    world.serve(record);
}

/// Writes this piece of it.
fn write_other(world: &mut World, at: u64) -> Reply {
    let data = Buffer::copied(&pattern(at, PIECE as usize));
    world.ask_of(OTHER, Request::Write { offset: at * PIECE, data })
}

/// Two groups with a drive in common. A member of one is away, and one of the other is filled by a vDisk of one copy. Gives how few
/// copies something has when the vDisk of two has been written as far as it goes, and whether it was taken whole.
fn a_full_group_beside_one_without_a_member() -> (usize, bool) {
    let mut world = World::new(3, 2, Limits::default());
    let states = [DriveState::Up, DriveState::Up, DriveState::Down];
    let groups: [&[u32]; 3] = [&[0, 1], &[0, 2], &[1]];
    see(&mut world, 2, &[DriveState::Up; 3], &groups);
    serve_other(&mut world, 48 * MIB);
    for at in 0..44 * MIB / PIECE {
        assert_eq!(write_other(&mut world, at), Reply::Done);
    }
    world.settle_family(OTHER);
    see(&mut world, 3, &states, &groups);
    let pieces = world.record.size / PIECE;
    let mut taken = true;
    for at in 0..pieces {
        taken = taken && write(&mut world, at..at + 1, 1);
    }
    world.pass(10 * SECONDS);
    (fewest_copies(&world), taken)
}

#[test]
fn while_a_group_is_whole_nothing_goes_to_others_though_it_is_full() {
    let (copies, taken) = a_full_group_beside_one_without_a_member();
    assert_eq!(copies, 2);
    assert!(!taken, "what has no room on two drives is refused");
}

/// An owner takes over while a member of its log is away, and dies before it has drained anything. The other member is lost, and the
/// first comes back. Gives what becomes of the vDisk, and whether it waited for that one.
fn a_member_that_was_away_is_the_last_one() -> (Notice, bool) {
    let groups: [&[u32]; 3] = [&[0, 1], &[1, 2], &[2, 0]];
    let mut world = World::new(3, 2, Limits::default());
    assert_eq!(world.write(0, &pattern(5, PIECE as usize)), Reply::Done);
    let members = &world.record.segments[0].members;
    assert_eq!(members.len(), 2);
    let (away, other) = (members[0], members[1]);
    let states = |away_is: DriveState, other_is: DriveState| {
        [0, 1, 2].map(|drive| match DriveId(drive) {
            drive if drive == away => away_is,
            drive if drive == other => other_is,
            _ => DriveState::Up,
        })
    };
    let mut version = 1;
    let mut open = |world: &mut World, away_is: DriveState, other_is: DriveState, hung| {
        version += 1;
        world.kill(Limits::default());
        let states = states(away_is, other_is);
        for drive in (0..3).filter(|&drive| states[drive as usize] == DriveState::Up) {
            world.open_drive(DriveId(drive), false);
        }
        world.hung = hung;
        see(world, version, &states, &groups);
        world.step(Input::Order(Order::OpenFamily(world.record.clone())));
        world.pass(10 * SECONDS);
    };
    let is_end = |notice: &Notice| matches!(notice, Notice::FamilyReady { .. } | Notice::FamilyFailed { .. });
    // What is drained would be safe.
    open(&mut world, DriveState::Down, DriveState::Up, Some((other, Area::Data, 0)));
    assert!(world.notices.iter().any(|notice| matches!(notice, Notice::FamilyReady { .. })));
    assert_eq!(world.record.segments[0].members, [other], "only this one is known to have all of it");
    world.hung = None;
    open(&mut world, DriveState::Down, DriveState::Lost, None);
    if let Some(end) = world.notices.iter().find(|notice| is_end(notice)) {
        return (end.clone(), false);
    }
    open(&mut world, DriveState::Up, DriveState::Lost, None);
    let end =
        world.notices.iter().find(|notice| is_end(notice)).expect("nobody is waited for any more").clone();
    if matches!(end, Notice::FamilyReady { .. }) {
        assert!(world.read(0, PIECE as u32) == pattern(5, PIECE as usize));
        assert!(world.record.segments.iter().all(|segment| !segment.drives().any(|drive| drive == other)));
    }
    (end, true)
}

#[test]
fn a_member_that_did_not_answer_is_asked_when_the_others_are_lost() {
    let (end, waited) = a_member_that_was_away_is_the_last_one();
    assert!(waited && matches!(end, Notice::FamilyReady { .. }), "{end:?}");
}

#[cfg(feature = "sabotage")]
#[test]
fn a_member_that_is_forgotten_is_seen() {
    use weft_engine::sabotage::{Bug, with};
    let (end, waited) = with(Bug::AbsentForgotten, a_member_that_was_away_is_the_last_one);
    let reason = FamilyTrouble::RecordLost(Seq(1));
    assert!(
        !waited && matches!(&end, Notice::FamilyFailed { reason: told, .. } if *told == reason),
        "{end:?}"
    );
}

#[cfg(feature = "sabotage")]
#[test]
fn few_copies_are_seen() {
    use weft_engine::sabotage::{Bug, with};
    let (away, _) = with(Bug::ThinMoves, garbage_beside_a_drive_that_is_away);
    assert!(away > 0);
    let (copies, _) = with(Bug::ThinDrains, a_full_group_beside_one_without_a_member);
    assert_eq!(copies, 1);
}

/// Four drives of which two can be away together, and groups of one of them and one of the others each.
const ACROSS: [&[u32]; 4] = [&[0, 2], &[1, 3], &[2, 0], &[3, 1]];
const BOTH_UP: [DriveState; 4] = [DriveState::Up; 4];
const HALF_AWAY: [DriveState; 4] = [DriveState::Up, DriveState::Up, DriveState::Down, DriveState::Down];

/// A vDisk with something in the log, in edits and in pages when half of the drives go away, that is written on with small and large
/// writes. Gives what happened meanwhile: egroups written, checkpoints, and writes around the log.
fn half_of_the_drives_away() -> [u64; 3] {
    let geometry = Geometry { log: 32 << 20, data: 64 << 20 };
    let mut world = World::sized(4, 2, Limits::default(), geometry);
    see(&mut world, 2, &BOTH_UP, &ACROSS);
    assert!(write(&mut world, 0..32, 1));
    world.settle();
    assert!(write(&mut world, 32..48, 1));
    // It is drained by its age, and is named in edits only.
    world.pass(15 * SECONDS);
    assert!(write(&mut world, 48..64, 1));
    let counted = |world: &World| {
        let counters = world.shard.counters();
        [counters.egroups_written, counters.checkpoints, counters.bypassed]
    };
    let before = counted(&world);
    see(&mut world, 3, &HALF_AWAY, &ACROSS);
    world.pass(SECONDS);
    let large = 4 * PIECE as usize;
    let data = Buffer::copied(&pattern(7, large));
    let at = |number: u64| (64 + 4 * number) * PIECE;
    // So that they come to be under way together.
    world.hung = Some((DriveId(0), Area::Log, 0));
    let tickets: Vec<Ticket> = (0..16)
        .map(|number| world.submit(FAMILY, Request::Write { offset: at(number), data: data.clone() }))
        .collect();
    world.carry_on();
    world.pass(120 * SECONDS);
    assert!(tickets.iter().all(|ticket| world.replies[ticket] == Reply::Done));
    let after = counted(&world);
    let dirty = world.shard.volume(FAMILY).expect("it is served").dirty_bytes();
    if after == before {
        assert_eq!(dirty, 16 * PIECE + 16 * large as u64, "all that was not in egroups is in the log still");
    }
    see(&mut world, 4, &BOTH_UP, &ACROSS);
    world.pass(120 * SECONDS);
    assert_eq!(world.shard.volume(FAMILY).expect("it is served").dirty_bytes(), 0, "then it is drained");
    world.settle();
    assert_eq!(fewest_copies(&world), 2);
    for piece in 0..64 {
        assert!(world.read(piece * PIECE, PIECE as u32) == pattern(1 + piece, PIECE as usize));
    }
    for number in 0..16 {
        assert!(world.read(at(number), large as u32) == pattern(7, large));
    }
    [0, 1, 2].map(|counter| after[counter] - before[counter])
}

#[test]
fn where_every_group_misses_a_member_data_and_map_stay_in_the_log() {
    assert_eq!(half_of_the_drives_away(), [0, 0, 0]);
}

#[test]
fn a_log_that_has_no_room_is_drained_though_members_are_away() {
    let geometry = Geometry { log: 4 << 20, data: 64 << 20 };
    let mut world = World::sized(4, 2, Limits::default(), geometry);
    see(&mut world, 2, &HALF_AWAY, &ACROSS);
    // Some times the ring.
    let pieces = world.record.size / PIECE;
    assert!(write(&mut world, 0..pieces, 1));
    assert!(world.shard.counters().egroups_written > 0);
    see(&mut world, 3, &BOTH_UP, &ACROSS);
    for piece in 0..pieces {
        assert!(world.read(piece * PIECE, PIECE as u32) == pattern(1 + piece, PIECE as usize));
    }
}

/// A MiB is in the log when one of its members is lost, and the drive goes away with which there would be room for it. Gives how much
/// of it has only the copy of the other member some seconds later.
fn a_lost_member_beside_a_full_pool() -> u64 {
    let mut world = World::new(5, 2, Limits::default());
    let log = world.record.segments[0].members.clone();
    let others: Vec<u32> = (0..5).filter(|&drive| !log.contains(&DriveId(drive))).collect();
    let [first, full, roomy] = others[..] else { panic!("a log has two members") };
    let groups: [&[u32]; 3] = [&[first, full], &[first, roomy], &[full]];
    see(&mut world, 2, &[DriveState::Up; 5], &groups);
    serve_other(&mut world, 60 * MIB);
    assert!(
        (0..60 * MIB / PIECE).any(|at| write_other(&mut world, at) == Reply::Error(RequestError::NoSpace))
    );
    world.settle_family(OTHER);
    assert!(write(&mut world, 0..MIB / PIECE, 1));
    assert_eq!(world.shard.volume(FAMILY).expect("it is served").dirty_bytes(), MIB);
    let mut states = [DriveState::Up; 5];
    (states[roomy as usize], states[log[0].0 as usize]) = (DriveState::Down, DriveState::Lost);
    see(&mut world, 3, &states, &groups);
    world.pass(10 * SECONDS);
    world.shard.volume(FAMILY).expect("it is served").dirty_bytes()
}

#[test]
fn what_lost_a_copy_in_the_log_goes_into_the_reserve_of_a_full_pool() {
    assert_eq!(a_lost_member_beside_a_full_pool(), 0);
}

#[cfg(feature = "sabotage")]
#[test]
fn leaving_the_log_for_fewer_copies_is_seen() {
    use weft_engine::sabotage::{Bug, with};
    let [drained, ..] = with(Bug::LogLeftForLess, half_of_the_drives_away);
    assert!(drained > 0);
    let [_, checkpoints, _] = with(Bug::PagesForLess, half_of_the_drives_away);
    assert!(checkpoints > 0);
    let [.., bypassed] = with(Bug::BypassForLess, half_of_the_drives_away);
    assert!(bypassed > 0);
    assert!(with(Bug::LostCopiesWait, a_lost_member_beside_a_full_pool) > 0);
}

/// What hangs on pages does not wait for members: with half of the drives away a snapshot is dropped, and an older one rolled back to.
#[test]
fn a_rollback_behind_a_dropped_snapshot_ends_though_members_are_away() {
    let mut world = World::new(4, 2, Limits::default());
    see(&mut world, 2, &BOTH_UP, &ACROSS);
    assert!(write(&mut world, 0..8, 1));
    let to = world.take_snapshot(FAMILY, 11);
    assert!(write(&mut world, 0..8, 100));
    let newer = world.take_snapshot(FAMILY, 12);
    assert!(write(&mut world, 0..8, 200));
    world.settle();
    see(&mut world, 3, &HALF_AWAY, &ACROSS);
    world.step(Input::Order(Order::DropSnapshot { family: FAMILY, generation: newer }));
    world.pass(SECONDS);
    world.step(Input::Order(Order::RollBack { family: FAMILY, to }));
    world.pass(30 * SECONDS);
    let is_done = |notice: &Notice| matches!(notice, Notice::RolledBack { .. });
    assert!(world.notices.iter().any(is_done), "{:?}", world.notices);
    world.step(Input::Order(Order::Resume { family: FAMILY }));
    for piece in 0..8 {
        assert!(world.read(piece * PIECE, PIECE as u32) == pattern(1 + piece, PIECE as usize));
    }
}
