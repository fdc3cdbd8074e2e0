//! Large writes go around the log also over what is still in it: they take its place, whatever is drained meanwhile and whoever
//! takes a snapshot.

use crate::world::{FAMILY, World, pattern};
use weft_engine::buffer::Buffer;
use weft_engine::identity::{DriveId, Ticket};
use weft_engine::interface::*;
use weft_engine::limits::Limits;

const KIB: u64 = 1 << 10;
const SECONDS: u64 = 1_000_000;

fn limits() -> Limits {
    let limits = Limits::default();
    Limits { bypass_outstanding_bytes: limits.bypass_write_bytes, ..limits }
}

fn large(tag: u64) -> Vec<u8> {
    pattern(tag, limits().bypass_write_bytes as usize)
}

fn submit(world: &mut World, offset: u64, bytes: &[u8]) -> Ticket {
    world.submit(FAMILY, Request::Write { offset, data: Buffer::copied(bytes) })
}

fn is_as_written(world: &mut World, bytes: &[u8]) -> bool {
    world.read(0, bytes.len() as u32) == bytes
}

/// Small writes, and a large one over them. Whether that is what is read at once, from another life's log, and from egroups.
fn over_what_is_dirty() -> bool {
    let (mut world, large) = (World::new(1, 1, limits()), large(9));
    for at in 0..8 {
        world.write(at * 12 * KIB, &pattern(at, 4096));
    }
    // The first begins before it, and keeps what it does not reach.
    world.write(large.len() as u64 - 4096, &pattern(20, 8192));
    assert_eq!(world.write(0, &large), Reply::Done);
    assert_eq!(world.shard.counters().bypassed, 1, "it went around the log");
    let mut all = large;
    all.extend(&pattern(20, 8192)[4096..]);
    let at_once = is_as_written(&mut world, &all);
    world.restart(limits());
    let replayed = is_as_written(&mut world, &all);
    world.settle();
    at_once && replayed && is_as_written(&mut world, &all)
}

#[test]
fn a_large_write_takes_the_place_of_what_is_dirty() {
    assert!(over_what_is_dirty());
}

/// The very first write is a large one, and is cut short before the log has anything of it. Part of the ring cannot be read afterwards.
/// Gives whether the vDisk, which never had anything, is served.
fn the_very_first_is_cut_short() -> bool {
    let mut world = World::new(1, 1, limits());
    world.hung = Some((DriveId(0), Area::Log, 0));
    submit(&mut world, 0, &large(9));
    world.pass(SECONDS);
    assert_eq!(world.hanging(), [Area::Log]);
    world.hung = None;
    world.unreadable = [(DriveId(0), Area::Log, 0)].into();
    world.try_to_restart(limits());
    world.pass(60 * SECONDS);
    world.notices.iter().any(|notice| matches!(notice, Notice::FamilyReady { .. }))
}

#[test]
fn the_very_first_write_goes_through_the_log() {
    assert!(the_very_first_is_cut_short());
}

#[test]
fn what_it_took_the_place_of_is_not_drained() {
    let mut world = World::new(1, 1, limits());
    world.write(0, &pattern(1, 4096));
    world.write(0, &large(2));
    let volume = world.shard.volume(FAMILY).expect("it is served");
    assert_eq!((volume.dirty_bytes(), world.shard.counters().units_drained), (0, 0));
}

#[test]
fn trims_are_overwritten_there_as_well_and_zeros_written_are_counted() {
    let (mut world, large) = (World::new(1, 1, limits()), large(9));
    world.write(0, &pattern(1, 64 << 10));
    world.settle();
    // One reaches further than the write.
    world.ask(Request::Zero { offset: 4096, len: 8192 });
    world.ask(Request::Zero { offset: large.len() as u64 - 4096, len: 8192 });
    world.write(0, &large);
    world.write(large.len() as u64 * 2, &vec![0; large.len()]);
    assert_eq!(world.shard.counters().bypassed, 2);
    let mut all = large.clone();
    all.extend(vec![0; 2 * large.len()]);
    assert!(is_as_written(&mut world, &all));
    let volume = world.shard.volume(FAMILY).expect("it is served");
    assert_eq!(volume.zero_bytes(), large.len() as u64);
    world.settle();
    world.restart(limits());
    assert!(is_as_written(&mut world, &all));
}

/// An old version is on its way from the log to a drive that is slow, a large write takes its place on another drive, and while its map
/// record is on its way the slow drive has the old one. What is read then, if the two went to different drives.
fn overtakes_a_drain(slow: DriveId, before: u64) -> Option<bool> {
    let (mut world, large) = (World::new(2, 1, limits()), large(9));
    for at in 0..before {
        world.write((1 << 20) + at * 4096, &pattern(at, 4096));
        world.settle();
    }
    world.write(0, &pattern(1, 4096));
    world.hung = Some((slow, Area::Data, 0));
    world.pass(6 * SECONDS);
    let drained = world.hanging();
    let log = world.record.segments.last().expect("it has a log").members[0];
    world.hung = Some((log, Area::Log, 0));
    let ticket = submit(&mut world, 0, &large);
    // Both wait: the drain for its drive, the map record of the other for the log.
    let is_so = !drained.is_empty() && world.hanging()[drained.len()..] == [Area::Log];
    world.carry_on_so_far();
    world.carry_on();
    world.pass(6 * SECONDS);
    assert_eq!(world.replies.remove(&ticket), Some(Reply::Done));
    let at_once = is_as_written(&mut world, &large);
    world.restart(limits());
    is_so.then(|| at_once && is_as_written(&mut world, &large))
}

/// Whether it is right wherever it comes to that.
fn never_overtaken() -> bool {
    let tries = (0..12).flat_map(|before| [(0, before), (1, before)]);
    let seen: Vec<bool> =
        tries.filter_map(|(slow, before)| overtakes_a_drain(DriveId(slow), before)).collect();
    assert!(!seen.is_empty(), "it came to that");
    seen.into_iter().all(|right| right)
}

#[test]
fn what_was_drained_meanwhile_is_not_named_behind_it() {
    assert!(never_overtaken());
}

/// A snapshot is taken while a large write is on its way to a drive, over what is in the log. Whether the snapshot has what was there
/// before, and the present what was written.
fn a_snapshot_between() -> bool {
    let (mut world, large) = (World::new(1, 1, limits()), large(9));
    let before = pattern(1, 4096);
    world.write(0, &before);
    world.hung = Some((DriveId(0), Area::Data, 0));
    let ticket = submit(&mut world, 0, &large);
    assert!(!world.hanging().is_empty(), "it goes around the log");
    let snapshot = world.take_snapshot(FAMILY, 1);
    world.carry_on();
    world.pass(SECONDS / 10);
    assert_eq!(world.replies.remove(&ticket), Some(Reply::Done));
    let is_right = |world: &mut World| {
        let request = Request::ReadSnapshot { snapshot, offset: 0, len: 4096 };
        let Reply::Data(pieces) = world.ask(request) else { panic!("the snapshot is read") };
        let read: Vec<u8> = pieces.iter().flat_map(|piece| piece.bytes().to_vec()).collect();
        read == before && is_as_written(world, &large)
    };
    let at_once = is_right(&mut world);
    world.settle();
    let drained = is_right(&mut world);
    world.restart(limits());
    at_once && drained && is_right(&mut world)
}

#[test]
fn a_snapshot_taken_meanwhile_keeps_what_was_there() {
    assert!(a_snapshot_between());
}

#[test]
fn a_large_write_over_what_a_snapshot_has_in_the_log_goes_through_the_log() {
    let (mut world, large) = (World::new(1, 1, limits()), large(9));
    world.write(0, &pattern(1, 4096));
    world.take_snapshot(FAMILY, 1);
    world.write(0, &large);
    assert_eq!(world.shard.counters().bypassed, 0);
    assert!(is_as_written(&mut world, &large));
}

#[cfg(feature = "sabotage")]
#[test]
fn planted_bugs_are_seen() {
    use weft_engine::sabotage::{Bug, with};
    assert!(!with(Bug::DirtyOutlivesBypass, over_what_is_dirty));
    assert!(!with(Bug::DrainedAfterBypass, never_overtaken));
    assert!(!with(Bug::FrozenBypassed, a_snapshot_between));
    assert!(!with(Bug::FirstWriteBypasses, the_very_first_is_cut_short));
}
