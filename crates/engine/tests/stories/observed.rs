//! What the engine tells about requests that nobody needs to answer them: where data came from and went, how long
//! owners waited.

use crate::world::{FAMILY, World, pattern};
use weft_engine::counters::Source;
use weft_engine::identity::Ticket;
use weft_engine::interface::*;
use weft_engine::limits::Limits;
use weft_engine::stages::Stage;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The slowest source of a read, as it was told with its reply.
fn source_of(world: &mut World, offset: u64, len: u64) -> Source {
    world.sources.clear();
    world.read(offset, len as u32);
    let told: Vec<_> = world.sources.iter().map(|(ticket, source)| (ticket.0, *source)).collect();
    assert_eq!(told.len(), 1, "each read that is answered with data has one");
    assert_eq!(told[0].0, world.last_ticket, "with its own ticket");
    told[0].1
}

#[test]
fn a_read_says_the_slowest_place_that_it_needed() {
    let mut world = World::new(1, 1, Limits::default());
    assert_eq!(source_of(&mut world, 5 * MIB, 4 * KIB), Source::Zeroes);
    world.write(0, &pattern(1, 64 << 10));
    assert_eq!(source_of(&mut world, 8 * KIB, 4 * KIB), Source::Overlay);
    world.settle();
    assert_eq!(source_of(&mut world, 32 * KIB, 4 * KIB), Source::Local);
    assert_eq!(source_of(&mut world, 32 * KIB, 4 * KIB), Source::Cache);
    assert_eq!(
        source_of(&mut world, 28 * KIB, 8 * KIB),
        Source::Local,
        "one block of memory, one of a drive"
    );
    world.ask(Request::Zero { offset: 32 * KIB, len: 4 * KIB });
    assert_eq!(source_of(&mut world, 32 * KIB, 4 * KIB), Source::Zeroes);
    world.sources.clear();
    assert_eq!(world.read(0, 0), Vec::<u8>::new());
    assert_eq!(world.ask(Request::Read { offset: 32 * MIB, len: 1 }), Reply::Error(RequestError::OutOfRange));
    assert!(world.sources.is_empty(), "nothing was read from anywhere");
}

#[test]
fn destinations_of_writes_and_the_pattern_of_requests_are_counted() {
    let mut world = World::new(1, 1, Limits::default());
    for piece in 0..10 {
        world.write(8 * MIB + piece * 16 * KIB, &pattern(piece, 16 << 10));
    }
    world.write(3 * MIB, &pattern(7, (1 << 20) + 4096));
    world.write(20 * MIB, &[0; 8192]);
    world.write(25 * MIB + 100, &pattern(9, 50));
    for at in [1, 9, 17, 4] {
        world.read(at * MIB + 64 * KIB, 4096);
    }
    let pattern = world.shard.volume(FAMILY).expect("it is served").pattern().clone();
    assert_eq!((pattern.writes_sequential, pattern.writes_random), (8, 5), "{pattern:?}");
    assert_eq!((pattern.reads_sequential, pattern.reads_random), (0, 4), "{pattern:?}");
    assert_eq!((pattern.writes_to_log, pattern.writes_to_zeroes, pattern.writes_to_bypass), (13, 1, 0));
    assert_eq!(pattern.write_bytes_to_log, 10 * 16 * KIB + MIB + 4096 + 50);
    assert_eq!(pattern.write_bytes_to_zeroes, 8192);
    let stages = &world.shard.counters().stages;
    assert!(stages.of(Stage::LogLocal).count() >= 12, "each write waited for the log");
    assert_eq!(stages.of(Stage::LogRemote).count(), 0);
    assert_eq!(stages.of(Stage::Throttled).count(), 0);
}

#[test]
fn large_writes_with_much_outstanding_go_around_the_log_and_are_counted_there() {
    let mut limits = Limits::default();
    limits.bypass_outstanding_bytes = limits.bypass_write_bytes;
    let bytes = limits.bypass_write_bytes;
    let mut world = World::new(1, 1, limits);
    // The very first write goes through the log in any case.
    world.write(0, &pattern(1, 4096));
    world.write(4 * MIB, &pattern(3, bytes as usize));
    let pattern = world.shard.volume(FAMILY).expect("it is served").pattern();
    assert_eq!((pattern.writes_to_bypass, pattern.write_bytes_to_bypass), (1, bytes));
    assert_eq!(pattern.writes_to_log, 1);
    assert!(world.shard.counters().stages.of(Stage::EgroupWrite).count() >= 1);
}

#[test]
fn the_maps_of_drives_are_asked_and_what_is_not_known_there_is_told_apart() {
    let mut world = World::new(1, 1, Limits::default());
    world.write(0, &pattern(1, 64 << 10));
    world.settle();
    let before = world.shard.counters().egroup_map_hits;
    world.read(0, 4096);
    let counters = world.shard.counters();
    assert_eq!((counters.egroup_map_hits - before, counters.egroup_map_misses), (1, 0));
    assert_eq!(counters.stages.of(Stage::UnitsLocal).count(), 1);
    assert_eq!(counters.stages.of(Stage::UnitsAhead).count(), 0);
}

#[test]
fn what_a_limit_holds_back_is_counted_as_throttled() {
    let mut world = World::new(1, 1, Limits::default());
    let ceiling = Ceiling { iops: Some(10), bytes: None };
    world.step(Input::Order(Order::SetCeiling { family: FAMILY, ceiling }));
    let mut tickets = Vec::new();
    for at in 0..3 {
        let ticket = Ticket(1_000 + at);
        let request = Request::Read { offset: at * MIB, len: 4096 };
        world.step(Input::Request { ticket, family: FAMILY, request });
        tickets.push(ticket);
    }
    world.pass(2_000_000);
    assert!(tickets.iter().all(|ticket| world.replies.contains_key(ticket)), "nobody waits for ever");
    let throttled = world.shard.counters().stages.of(Stage::Throttled);
    assert_eq!(throttled.count(), 2, "the first one was within the limit");
    // The second one was within the burst, but for a moment; the third waited for a tenth of a second.
    assert!((90_000_000..150_000_000).contains(&throttled.max()), "{throttled:?}");
}
