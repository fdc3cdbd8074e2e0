//! Pools that were full, and are not any more.

use crate::world::*;
use weft_engine::FamilyId;
use weft_engine::buffer::{BLOCK, Buffer};
use weft_engine::identity::{DriveId, Epoch, Generation, Ticket};
use weft_engine::interface::*;
use weft_engine::limits::Limits;

const MIB: u64 = 1 << 20;
/// Bytes of one write.
const CHUNK: u64 = MIB / 2;
/// Bytes of one that goes through the log.
const PIECE: usize = 4 * BLOCK;

/// One drive, and a vDisk of half of it.
fn small_pool(limits: Limits) -> World {
    World::sized(1, 1, limits, Geometry { log: 4 * MIB, data: 32 * MIB })
}

/// Writes all of the vDisk. False if something was refused for want of space.
fn fill(world: &mut World, seed: u64) -> bool {
    fill_from(world, 0, seed)
}

fn fill_from(world: &mut World, first: u64, seed: u64) -> bool {
    (first..world.record.size / CHUNK).all(|chunk| {
        match world.write(chunk * CHUNK, &pattern(seed + chunk, CHUNK as usize)) {
            Reply::Done => true,
            Reply::Error(RequestError::NoSpace) => false,
            other => panic!("{other:?}"),
        }
    })
}

fn holds(world: &mut World, seed: u64) {
    for chunk in 0..world.record.size / CHUNK {
        let expected = pattern(seed + chunk, CHUNK as usize);
        assert_eq!(world.read(chunk * CHUNK, CHUNK as u32), expected, "chunk {chunk}");
    }
}

/// Large writes fill a pool, a snapshot holds all of it, and is dropped, while another node reads that: it is free a while after its deletion
/// was answered. Gives whether all can be written again then, in a vDisk that reads nothing meanwhile.
fn filled_by_large_writes() -> bool {
    let mut limits = Limits::default();
    limits.bypass_outstanding_bytes = limits.bypass_write_bytes;
    let mut world = small_pool(limits);
    // Some of it stays in the log.
    for (at, piece) in (0..).step_by(PIECE).zip(pattern(1, CHUNK as usize).chunks(PIECE)) {
        assert_eq!(world.write(at, piece), Reply::Done);
    }
    assert!(fill_from(&mut world, 1, 1));
    assert!(world.shard.counters().bypassed > 0, "they go around the log");
    let generation = world.take_snapshot(FAMILY, 1);
    assert!(
        !fill(&mut world, 100),
        "a snapshot holds what was there, and the log has no room for as much again"
    );
    world.read_each_egroup_slowly(FAMILY);
    world.step(Input::Order(Order::DropSnapshot { family: FAMILY, generation }));
    world.settle();
    // What is overwritten comes back with the checkpoints.
    world.pass(10_000_000);
    world.carry_on();
    let takes_all = (0..20).any(|_| {
        world.pass(1_000_000);
        fill(&mut world, 200)
    });
    if takes_all {
        holds(&mut world, 200);
    }
    takes_all
}

#[test]
fn a_pool_that_large_writes_have_filled_takes_them_again_when_it_has_space() {
    assert!(filled_by_large_writes());
}

#[cfg(feature = "sabotage")]
#[test]
fn waiting_for_drives_to_tell_of_space_by_chance_is_seen() {
    use weft_engine::sabotage::{Bug, with};
    assert!(!with(Bug::SpaceNotAsked, filled_by_large_writes));
}

/// A pool that has long been full, the snapshot that holds half of it, and a block that somebody wants to write there.
fn one_who_writes_to_a_full_pool() -> (World, Generation, Ticket) {
    let mut world = small_pool(Limits::small());
    assert!(fill(&mut world, 1));
    let generation = world.take_snapshot(FAMILY, 1);
    assert!(!fill(&mut world, 100));
    world.settle();
    world.pass(20_000_000);
    let block = Request::Write { offset: 0, data: Buffer::copied(&pattern(7, BLOCK)) };
    let ticket = world.submit(FAMILY, block);
    (world, generation, ticket)
}

/// Who wants to write asks drives. Meanwhile a snapshot goes; that its egroups are deleted is answered while another node still reads
/// them, which takes so long. Gives what is heard of the write.
fn one_whose_space_is_free_a_little_after_it_was_deleted(read_us: u64) -> Option<Reply> {
    let (mut world, generation, ticket) = one_who_writes_to_a_full_pool();
    assert!(!world.replies.contains_key(&ticket), "it asks first");
    world.read_each_egroup_slowly(FAMILY);
    let held = |world: &World| world.shard.keepers().flat_map(|(_, keeper)| keeper.egroups()).count();
    let before = held(&world);
    world.step(Input::Order(Order::DropSnapshot { family: FAMILY, generation }));
    while held(&world) == before {
        world.pass(1_000);
    }
    world.pass(read_us);
    world.carry_on();
    world.pass(1_000_000);
    world.replies.remove(&ticket)
}

#[test]
fn what_is_free_after_its_deletion_was_answered_is_waited_for() {
    for read_us in [80_000, 150_000, 350_000] {
        let reply = one_whose_space_is_free_a_little_after_it_was_deleted(read_us);
        assert_eq!(reply, Some(Reply::Done), "a read of {read_us} us");
    }
}

#[cfg(feature = "sabotage")]
#[test]
fn asking_drives_only_before_they_have_freed_it_is_seen() {
    use weft_engine::sabotage::{Bug, with};
    let reply =
        with(Bug::LateSpaceNotAsked, || one_whose_space_is_free_a_little_after_it_was_deleted(80_000));
    assert_eq!(reply, Some(Reply::Error(RequestError::NoSpace)));
}

/// Meanwhile something is deleted again and again of which nothing comes: vDisks without data. Gives whether the write is refused within
/// some seconds.
fn one_beside_deletions_without_end() -> bool {
    let (mut world, _, ticket) = one_who_writes_to_a_full_pool();
    for family in 100..200 {
        world.step(Input::Order(Order::DropFamily { family: FamilyId(family), epoch: Epoch(1) }));
        world.pass(50_000);
    }
    world.replies.remove(&ticket) == Some(Reply::Error(RequestError::NoSpace))
}

#[test]
fn a_write_is_refused_although_something_is_deleted_all_the_time() {
    assert!(one_beside_deletions_without_end());
}

#[cfg(feature = "sabotage")]
#[test]
fn waiting_for_deletions_without_end_is_seen() {
    use weft_engine::sabotage::{Bug, with};
    assert!(!with(Bug::DeletionsWaitedFor, one_beside_deletions_without_end));
}

#[test]
fn what_was_refused_and_is_trimmed_leaves_no_full_pool_behind() {
    let mut world = small_pool(Limits::small());
    assert!(fill(&mut world, 1));
    world.take_snapshot(FAMILY, 1);
    assert!(!fill(&mut world, 100));
    // The snapshot keeps what it has; all that is newer goes, wherever it is by now.
    let len = world.record.size;
    assert_eq!(world.ask(Request::Zero { offset: 0, len }), Reply::Done);
    world.settle();
    world.pass(1_000_000);
    assert_eq!(world.write(0, &pattern(7, BLOCK)), Reply::Done);
    assert_eq!(world.read(0, BLOCK as u32), pattern(7, BLOCK));
}

#[test]
fn a_vdisk_goes_back_to_a_snapshot_although_the_pool_is_full() {
    let mut world = small_pool(Limits::small());
    assert!(fill(&mut world, 1));
    let to = world.take_snapshot(FAMILY, 1);
    assert!(!fill(&mut world, 100));
    world.step(Input::Order(Order::RollBack { family: FAMILY, to }));
    let told = Notice::RolledBack { family: FAMILY, epoch: world.record.epoch, to };
    let ended = (0..100).any(|_| {
        world.pass(100_000);
        world.notices.contains(&told)
    });
    assert!(ended, "it frees all that it waits for");
    world.step(Input::Order(Order::Resume { family: FAMILY }));
    holds(&mut world, 1);
    assert_eq!(world.write(0, &pattern(7, BLOCK)), Reply::Done);
}

/// What one vDisk has written and a drive does not take fills the pool as far as anybody knows: it counts twice. Then another
/// begins, with nothing of its own that could come back. Gives what it hears of the first write that is not taken at once.
fn one_beside_another_that_waits() -> Option<Reply> {
    let limits = Limits {
        dirty_bytes_max: 10 * MIB,
        dirty_bytes_shard: 20 * MIB,
        dirty_bytes_least: 10 * MIB,
        drain_bytes_begin: 8 * MIB,
        ..Limits::default()
    };
    // Larger ones would go around the log.
    let piece = limits.bypass_write_bytes / 2;
    let mut world = World::sized(1, 1, limits, Geometry { log: 64 * MIB, data: 36 * MIB });
    let (first, other) = (FAMILY, FamilyId(2));
    world.serve_empty(other);
    world.hung = Some((DriveId(0), Area::Data, 0));
    let mut fill = |family: FamilyId| {
        for at in 0..world.record.size / piece {
            let data = Buffer::copied(&pattern(1000 * u64::from(family.0) + at, piece as usize));
            let ticket = world.submit(family, Request::Write { offset: at * piece, data });
            if world.replies.get(&ticket) != Some(&Reply::Done) {
                return ticket;
            }
        }
        panic!("the pool has no end");
    };
    fill(first);
    let ticket = fill(other);
    world.carry_on();
    world.pass(10_000_000);
    world.replies.remove(&ticket)
}

#[test]
fn who_has_nothing_to_reclaim_waits_for_what_others_drain() {
    assert_eq!(one_beside_another_that_waits(), Some(Reply::Done));
}

/// One vDisk fills the pool, and another finds it full. Then the first is trimmed, while nothing happens to the other. Gives
/// what that hears of its next write.
fn one_whose_neighbour_made_room() -> Reply {
    let mut world = small_pool(Limits::default());
    let other = FamilyId(2);
    world.serve_empty(other);
    let block = || Request::Write { offset: 0, data: Buffer::copied(&pattern(7, BLOCK)) };
    assert_eq!(world.ask_of(other, block()), Reply::Done);
    world.settle_family(other);
    assert!(fill(&mut world, 1));
    world.take_snapshot(FAMILY, 1);
    assert!(!fill(&mut world, 100));
    world.settle();
    // What it has heard so far is from before the pool was full.
    for _ in 0..2 {
        world.ask_of(other, block());
    }
    world.pass(20_000_000);
    assert_eq!(world.ask_of(other, block()), Reply::Error(RequestError::NoSpace));
    let len = world.record.size;
    assert_eq!(world.ask(Request::Zero { offset: 0, len }), Reply::Done);
    world.settle();
    world.pass(2_000_000);
    world.ask_of(other, block())
}

#[test]
fn a_write_is_not_refused_by_what_was_known_of_the_pool_before() {
    assert_eq!(one_whose_neighbour_made_room(), Reply::Done);
}

#[cfg(feature = "sabotage")]
#[test]
fn looking_at_the_pool_of_last_time_is_seen() {
    use weft_engine::sabotage::{Bug, with};
    let reply = with(Bug::PoolOfLastTime, one_whose_neighbour_made_room);
    assert_eq!(reply, Reply::Error(RequestError::NoSpace));
}

#[cfg(feature = "sabotage")]
#[test]
fn looking_at_its_own_only_is_seen() {
    use weft_engine::sabotage::{Bug, with};
    let reply = with(Bug::OwnReclaimingOnly, one_beside_another_that_waits);
    assert_eq!(reply, Some(Reply::Error(RequestError::NoSpace)));
}

/// A write waits for space in a full pool, where some may still come, and what is trimmed behind it would free enough. Gives what both hear
/// within two seconds, and the write later.
fn a_trim_behind_a_write_that_waits() -> [Option<Reply>; 3] {
    let limits = Limits { bypass_write_bytes: MIB, ..Limits::default() };
    let mut world = World::sized(1, 1, limits, Geometry { log: 64 * MIB, data: 36 * MIB });
    let size = 40 * MIB;
    world.record.size = size;
    world.step(Input::Order(Order::Resize { family: FAMILY, size }));
    let mut waiting = None;
    for at in (0..size).step_by(CHUNK as usize) {
        let data = Buffer::copied(&pattern(at, CHUNK as usize));
        let ticket = world.submit(FAMILY, Request::Write { offset: at, data });
        world.pass(10_000);
        if !world.replies.contains_key(&ticket) {
            waiting = Some(ticket);
            break;
        }
        assert_eq!(world.replies.remove(&ticket), Some(Reply::Done), "{at}");
    }
    let waiting = waiting.expect("the pool has an end");
    let trim = world.submit(FAMILY, Request::Zero { offset: 0, len: 8 * MIB });
    world.pass(2_000_000);
    let heard = [world.replies.get(&trim).cloned(), world.replies.get(&waiting).cloned()];
    world.pass(10_000_000);
    let [trim, soon] = heard;
    [trim, soon, world.replies.remove(&waiting)]
}

#[test]
fn a_trim_does_not_wait_for_writes_that_wait_for_space() {
    let [trim, _, write] = a_trim_behind_a_write_that_waits();
    assert_eq!((trim, write), (Some(Reply::Done), Some(Reply::Done)));
}

#[cfg(feature = "sabotage")]
#[test]
fn a_trim_that_waits_for_what_it_frees_is_seen() {
    use weft_engine::sabotage::{Bug, with};
    let [trim, ..] = with(Bug::TrimsWaitForSpace, a_trim_behind_a_write_that_waits);
    assert_ne!(trim, Some(Reply::Done));
}
