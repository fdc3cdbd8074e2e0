//! What reads find in memory: what was read before, what was read ahead, what was warmed.

use crate::world::{FAMILY, World, pattern, pattern_of};
use weft_engine::buffer::BLOCK;
use weft_engine::counters::Source;
use weft_engine::interface::*;
use weft_engine::limits::Limits;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A vDisk with 16 MiB in egroups.
fn filled(limits: Limits) -> World {
    let mut world = World::new(1, 1, limits);
    for at in 0..16 {
        assert_eq!(world.write(at * MIB, &pattern(at, MIB as usize)), Reply::Done);
        world.settle();
    }
    world.drive_reads = 0;
    world
}

/// What `filled` wrote there.
fn expected(offset: u64, len: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in offset / MIB..(offset + len).div_ceil(MIB) {
        let from = offset.max(piece * MIB) - piece * MIB;
        let to = (offset + len).min((piece + 1) * MIB) - piece * MIB;
        bytes.extend(pattern_of(piece, from as usize..to as usize));
    }
    bytes
}

fn blocks_from(world: &World, source: Source) -> u64 {
    world.shard.volume(FAMILY).expect("it is served").read_sources().blocks[source as usize]
}

/// Drive reads that a read takes.
fn drive_reads_of(world: &mut World, offset: u64, len: u64) -> u64 {
    let before = world.drive_reads;
    assert_eq!(world.read(offset, len as u32), expected(offset, len), "{len} bytes at {offset}");
    world.drive_reads - before
}

#[test]
fn what_was_read_is_given_from_memory_until_it_is_written_again() {
    let mut world = filled(Limits::default());
    assert_eq!(drive_reads_of(&mut world, 5 * MIB, 64 * KIB), 1);
    assert_eq!(drive_reads_of(&mut world, 5 * MIB, 64 * KIB), 0);
    assert_eq!(drive_reads_of(&mut world, 5 * MIB + 1000, 100), 0, "nor a part of it");
    assert_eq!((blocks_from(&world, Source::Local), blocks_from(&world, Source::Cache)), (16, 17));
    let new = pattern(99, 8192);
    assert_eq!(world.write(5 * MIB + 4 * KIB, &new), Reply::Done);
    assert_eq!(world.read(5 * MIB + 4 * KIB, 8192), new, "from the overlay");
    world.settle();
    assert_eq!(world.read(5 * MIB + 4 * KIB, 8192), new, "from its new place");
    assert_eq!(drive_reads_of(&mut world, 5 * MIB, 4 * KIB), 0, "its neighbour is where it was");
}

#[test]
fn with_no_memory_every_read_goes_to_a_drive() {
    let mut world = filled(Limits::default());
    assert_eq!(drive_reads_of(&mut world, 0, 4 * KIB), 1);
    assert_eq!(drive_reads_of(&mut world, 0, 4 * KIB), 0);
    world.step(Input::Order(Order::SetCache { bytes: 0 }));
    for _ in 0..3 {
        assert_eq!(drive_reads_of(&mut world, 0, 4 * KIB), 1);
    }
    assert_eq!(world.shard.cache().used_bytes(), 0);
    for at in 0..64 {
        assert_eq!(drive_reads_of(&mut world, MIB + at * 16 * KIB, 16 * KIB), 1, "nothing is read ahead");
    }
}

#[test]
fn sequential_reads_find_what_was_read_ahead() {
    const PIECE: u64 = 16 * KIB;
    let mut world = filled(Limits::default());
    // Two streams, interleaved.
    for at in 0..4 * MIB / PIECE {
        drive_reads_of(&mut world, at * PIECE, PIECE);
        drive_reads_of(&mut world, 8 * MIB + at * PIECE, PIECE);
    }
    let reads = 2 * 4 * MIB / PIECE;
    assert!(world.drive_reads < reads / 8, "{} reads of drives for {reads} reads", world.drive_reads);
    let ahead = world.shard.cache().ahead.counters;
    assert!(
        blocks_from(&world, Source::Ahead) > 1900,
        "{:?}",
        world.shard.volume(FAMILY).map(|v| v.read_sources())
    );
    assert!(ahead.issued - ahead.used <= 2 * MIB / BLOCK as u64, "no further than a window each: {ahead:?}");
    assert_eq!((ahead.wasted, ahead.refused), (0, 0));
}

#[test]
fn who_reads_by_sectors_gets_them_from_memory() {
    let mut world = filled(Limits::default());
    for at in 0..1024 {
        drive_reads_of(&mut world, at * 512, 512);
    }
    assert!(world.drive_reads < 16, "{} reads of drives for 128 blocks", world.drive_reads);
}

#[test]
fn random_reads_are_not_read_ahead() {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    let mut rng = SmallRng::seed_from_u64(5);
    let mut world = filled(Limits::default());
    for _ in 0..2000 {
        let block = rng.random_range(0..16 * MIB / BLOCK as u64 - 1);
        drive_reads_of(&mut world, block * BLOCK as u64, 4096);
    }
    assert_eq!(world.shard.cache().ahead.counters.issued, 0);
}

#[test]
fn a_large_read_is_kept_when_it_is_made_again() {
    let mut world = filled(Limits::default());
    assert_eq!(drive_reads_of(&mut world, 2 * MIB + MIB / 2, MIB / 2), 1);
    assert!(world.shard.cache().units.is_empty(), "who knows whether it is read again");
    assert_eq!(drive_reads_of(&mut world, 2 * MIB + MIB / 2, MIB / 2), 1);
    assert_eq!(drive_reads_of(&mut world, 2 * MIB + MIB / 2, MIB / 2), 0);
}

/// Warms the whole vDisk. The pages and bytes that are in memory then, and whether all had room.
fn warm(world: &mut World, data: bool) -> (u64, u64, bool) {
    let (mut at, mut pages, mut bytes) = (0, 0, 0);
    let size = world.record.size;
    while at < size {
        let reply = world.ask(Request::Warm { offset: at, len: size - at, data });
        let Reply::Warmed(warmed) = reply else { panic!("{reply:?}") };
        assert!(warmed.to > at && warmed.to <= size, "every step comes further");
        (at, pages, bytes) = (warmed.to, pages + warmed.pages, bytes + warmed.bytes);
        if warmed.full {
            return (pages, bytes, false);
        }
    }
    (pages, bytes, true)
}

#[test]
fn a_vdisk_is_warmed_before_anybody_reads() {
    let limits = Limits::default();
    let mut world = filled(limits.clone());
    world.restart(limits);
    let misses = world.shard.counters().page_misses;
    assert_eq!(warm(&mut world, false), (4, 0, true));
    assert_eq!(world.shard.counters().page_misses, misses + 4);
    world.drive_reads = 0;
    drive_reads_of(&mut world, 9 * MIB, 4 * KIB);
    assert_eq!((world.drive_reads, world.shard.counters().page_misses), (1, misses + 4), "the map is there");
    assert_eq!(warm(&mut world, true), (4, 16 * MIB, true));
    assert_eq!(warm(&mut world, true), (4, 16 * MIB, true), "twice does not matter");
    world.drive_reads = 0;
    for at in 0..256 {
        assert_eq!(drive_reads_of(&mut world, at * 64 * KIB, 64 * KIB), 0);
    }
}

#[test]
fn pages_of_the_map_are_warmed_as_far_as_there_is_room() {
    let limits = Limits { pages_bytes_max: 40 * KIB as usize, ..Limits::default() };
    let mut world = filled(limits.clone());
    world.restart(limits);
    let (pages, _, all) = warm(&mut world, false);
    assert!(!all && (1..4).contains(&pages), "{pages}");
}

#[test]
fn warming_ends_when_there_is_no_more_room() {
    let limits = Limits { cache_bytes: 4 * MIB, ..Limits::default() };
    let mut world = filled(limits.clone());
    world.restart(limits);
    let (_, bytes, all) = warm(&mut world, true);
    assert!(!all && (2 * MIB..4 * MIB).contains(&bytes), "{bytes}");
    assert!(world.shard.cache().used_bytes() <= 4 * MIB);
    assert_eq!(world.shard.cache().units.counters.evicted, 0);
}
