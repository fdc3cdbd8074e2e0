//! How much of what was acknowledged waits in memory for a drive that takes nothing, and that it is less when others keep much or
//! the pool has little room.

use crate::world::{FAMILY, World, pattern};
use weft_engine::FamilyId;
use weft_engine::buffer::{BLOCK, Buffer};
use weft_engine::identity::{DriveId, Ticket};
use weft_engine::interface::*;
use weft_engine::limits::Limits;

const MIB: u64 = 1 << 20;
const PIECE: u64 = 64 << 10;

fn limits() -> Limits {
    Limits {
        dirty_bytes_max: 8 * MIB,
        dirty_bytes_shard: 11 * MIB,
        dirty_bytes_least: 2 * MIB,
        drain_bytes_begin: 4 * MIB,
        ..Limits::default()
    }
}

/// A drive that takes what is for its log, and nothing else any more, and this many vDisks.
fn world(vdisks: u32, geometry: Geometry) -> World {
    let mut world = World::sized(1, 1, limits(), geometry);
    for family in (FAMILY.0 + 1..FAMILY.0 + vdisks).map(FamilyId) {
        world.serve_empty(family);
    }
    world.hung = Some((DriveId(0), Area::Data, 0));
    world
}

/// Writes until one is not acknowledged. Gives that one, and the bytes that wait.
fn fill(world: &mut World, family: FamilyId) -> (Ticket, u64) {
    for at in 0..2 * limits().dirty_bytes_max / PIECE {
        let data = Buffer::copied(&pattern(at + u64::from(family.0), PIECE as usize));
        let ticket = world.submit(family, Request::Write { offset: at * PIECE, data });
        if world.replies.remove(&ticket).is_none() {
            return (ticket, world.shard.volume(family).expect("it is served").dirty_bytes());
        }
    }
    panic!("memory has no end");
}

fn is_about(bytes: u64, expected: u64) -> bool {
    // A write waits for a place for itself and its header.
    bytes <= expected && bytes + 2 * PIECE >= expected
}

#[test]
fn what_waits_is_bounded_for_each_and_for_all_and_everybody_has_a_little() {
    let mut world = world(4, Geometry { log: 64 << 20, data: 256 << 20 });
    let families = [1, 2, 3, 4].map(FamilyId);
    let filled = families.map(|family| fill(&mut world, family));
    let bytes = filled.map(|(_, bytes)| bytes / PIECE * PIECE);
    assert!(is_about(bytes[0], 8 * MIB), "alone it has all that one may have: {bytes:?}");
    assert!(is_about(bytes[1], 3 * MIB), "the next has what is left: {bytes:?}");
    assert!(is_about(bytes[2], 2 * MIB) && is_about(bytes[3], 2 * MIB), "others a little: {bytes:?}");
    world.carry_on();
    world.pass(10_000_000);
    for (ticket, _) in filled {
        assert_eq!(
            world.replies.remove(&ticket),
            Some(Reply::Done),
            "the drive is back, and so is everybody's turn"
        );
    }
}

#[test]
fn a_pool_with_little_room_has_little_waiting() {
    // A little over 32 MiB are for clients' data, an eighth of which is about 4 MiB.
    let mut world = world(1, Geometry { log: 64 << 20, data: 36 << 20 });
    let (ticket, bytes) = fill(&mut world, FAMILY);
    assert!((3 * MIB..5 * MIB).contains(&bytes), "{bytes} bytes wait");
    world.carry_on();
    world.pass(10_000_000);
    assert_eq!(world.replies.remove(&ticket), Some(Reply::Done));
}

/// Writes of a few bytes into many blocks, whose rest is read first, all at once, on a drive that does everything a little later. Gives the most that
/// waited in memory.
fn parts_at_once() -> u64 {
    let limits = Limits {
        dirty_bytes_max: MIB / 2,
        dirty_bytes_least: MIB / 2,
        drain_bytes_begin: MIB / 4,
        cache_bytes: 0,
        ..Limits::default()
    };
    let mut world = World::sized(1, 1, limits.clone(), Geometry { log: 64 << 20, data: 256 << 20 });
    for at in 0..MIB / PIECE {
        world.write(at * PIECE, &pattern(at, PIECE as usize));
    }
    world.settle();
    world.restart(limits);
    world.hung = Some((DriveId(0), Area::Data, 0));
    for block in 0..200 {
        let data = Buffer::copied(&pattern(block, 512));
        world.submit(FAMILY, Request::Write { offset: block * BLOCK as u64, data });
    }
    let mut most = 0;
    for _ in 0..200 {
        world.carry_on_so_far();
        most = most.max(world.shard.volume(FAMILY).expect("it is served").undrained_bytes());
    }
    most
}

#[test]
fn writes_of_parts_count_while_the_rest_is_read() {
    let most = parts_at_once();
    assert!((MIB / 8..=MIB / 2).contains(&most), "{most} bytes waited");
}

#[cfg(feature = "sabotage")]
#[test]
fn parts_that_do_not_count_are_seen() {
    use weft_engine::sabotage::{Bug, with};
    assert!(with(Bug::PartsNotCounted, parts_at_once) > MIB / 2 + MIB / 8);
}
