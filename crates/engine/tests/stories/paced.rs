//! A drain without haste leaves clients their share: one egroup goes for each that comes, or after a pause, and sooner only when
//! the log or memory would be full before it is through.

use crate::world::{FAMILY, World, pattern};
use weft_engine::DriveId;
use weft_engine::buffer::Buffer;
use weft_engine::interface::*;
use weft_engine::limits::Limits;

const MIB: u64 = 1 << 20;
/// A shorter time than what is written waits for the drain when nothing hurries it.
const SOON_US: u64 = 1_000_000;
const PIECE: u64 = 64 << 10;

fn world(log: u64) -> World {
    let limits = Limits {
        dirty_bytes_max: 64 * MIB,
        dirty_bytes_least: 64 * MIB,
        drain_bytes_begin: 32 * MIB,
        drain_pause_us: 20_000,
        ..Limits::default()
    };
    World::sized(1, 1, limits, Geometry { log, data: 1 << 30 })
}

/// Writes so much more in pieces, no time passing. Gives what waits for the drain then.
fn write(world: &mut World, at: &mut u64, bytes: u64) -> u64 {
    let end = *at + bytes;
    while *at < end {
        let data = Buffer::copied(&pattern(*at, PIECE as usize));
        let reply = world.ask_of(FAMILY, Request::Write { offset: *at, data });
        assert_eq!(reply, Reply::Done);
        *at += PIECE;
    }
    dirty(world)
}

fn dirty(world: &World) -> u64 {
    world.shard.volume(FAMILY).expect("it is served").dirty_bytes()
}

#[test]
fn a_sweep_is_spread_over_what_clients_write_and_goes_on_when_they_stop() {
    let (mut world, mut at) = (world(512 * MIB), 0);
    assert!(write(&mut world, &mut at, 31 * MIB) == 31 * MIB, "below the mark nothing is drained");
    let while_writing = write(&mut world, &mut at, 9 * MIB);
    assert!(
        (25 * MIB..35 * MIB).contains(&while_writing),
        "about as much went as came, and not the whole sweep: {while_writing}"
    );
    world.pass(30_000);
    let soon = dirty(&world);
    assert!((20 * MIB..while_writing).contains(&soon), "one or two after a pause: {soon}");
    world.pass(500_000);
    assert!(dirty(&world) <= 9 * MIB, "the sweep was through although nobody wrote: {}", dirty(&world));
}

#[test]
fn with_memory_nearly_full_the_drain_is_faster_than_its_clients() {
    let (mut world, mut at) = (world(512 * MIB), 0);
    let most = (0..64).map(|_| write(&mut world, &mut at, 4 * MIB)).max().expect("there are some");
    assert!(most < 50 * MIB, "it stays well below what may wait: {most}");
}

#[test]
fn a_small_log_is_emptied_before_it_is_full() {
    // Half of it, where its owners would be asked for room, is as much as the mark is at.
    let (mut world, mut at) = (world(64 * MIB), 0);
    let most = (0..64).map(|_| write(&mut world, &mut at, 4 * MIB)).max().expect("there are some");
    assert!(most < 32 * MIB, "the drain has begun before the mark: {most}");
}

/// What waits for the drain soon after a settling that writes kept from ending, if it is called off or not.
fn left_after_a_settling(is_called_off: bool) -> u64 {
    let mut world = world(256 * MIB);
    let mut at = 0;
    write(&mut world, &mut at, MIB);
    world.hung = Some((DriveId(0), Area::Data, 1));
    world.step(Input::Order(Order::Settle { family: FAMILY }));
    if is_called_off {
        world.step(Input::Order(Order::StopSettling { family: FAMILY }));
    }
    write(&mut world, &mut at, MIB);
    world.carry_on();
    world.pass(SOON_US);
    dirty(&world)
}

#[test]
fn a_settling_that_is_called_off_hurries_nothing_any_more() {
    assert_eq!(left_after_a_settling(false), 0);
    assert_eq!(left_after_a_settling(true), MIB);
}
