//! Limits of vDisks as their clients meet them: who waits, for how long, and who does not.

use crate::world::{FAMILY, World, pattern};
use weft_engine::identity::*;
use weft_engine::interface::*;
use weft_engine::limits::Limits;

const CLONE: FamilyId = FamilyId(2);

fn limited(world: &mut World, iops: Option<u32>, bytes: Option<u64>) {
    let ceiling = Ceiling { iops, bytes };
    world.step(Input::Order(Order::SetCeiling { family: FAMILY, ceiling }));
}

/// Asks for so many blocks at once; their tickets.
fn ask_for(world: &mut World, blocks: u64) -> Vec<Ticket> {
    let asks =
        (0..blocks).map(|block| world.submit(FAMILY, Request::Read { offset: block * 4096, len: 4096 }));
    asks.collect()
}

fn answered(world: &World, tickets: &[Ticket]) -> Vec<bool> {
    tickets.iter().map(|ticket| world.replies.contains_key(ticket)).collect()
}

#[test]
fn what_is_beyond_a_limit_waits_in_order_and_goes_on_by_itself() {
    let mut world = World::new(1, 1, Limits::small());
    limited(&mut world, Some(10), None);
    let tickets = ask_for(&mut world, 5);
    assert_eq!(answered(&world, &tickets), [true, false, false, false, false]);
    assert_eq!(world.ask(Request::Flush), Reply::Done, "it has nothing to wait for");
    world.pass(150_000);
    assert_eq!(answered(&world, &tickets), [true, true, true, false, false]);
    let throttled = world.shard.volume(FAMILY).expect("it is served").throttled();
    assert_eq!(throttled.requests, 2);
    assert!((100_000..=150_000).contains(&throttled.us), "{throttled:?}");
    // Without the limit nobody waits, and those that did are answered at once.
    limited(&mut world, None, None);
    assert_eq!(answered(&world, &tickets), [true; 5]);
}

#[test]
fn a_limit_told_again_gives_nothing_back() {
    let mut world = World::new(1, 1, Limits::small());
    limited(&mut world, None, Some(40_960));
    let tickets = ask_for(&mut world, 5);
    for _ in 0..10 {
        limited(&mut world, None, Some(40_960));
    }
    assert_eq!(answered(&world, &tickets), [true, false, false, false, false]);
}

#[test]
fn a_limit_is_in_the_record_and_counts_from_the_opening() {
    let mut world = World::new(1, 1, Limits::small());
    world.record.ceiling = Ceiling { iops: Some(10), bytes: None };
    world.restart(Limits::small());
    let tickets = ask_for(&mut world, 3);
    assert_eq!(answered(&world, &tickets), [true, false, false]);
}

#[test]
fn whoever_waits_at_the_door_is_answered_when_the_vdisk_goes_elsewhere() {
    let mut world = World::new(1, 1, Limits::small());
    limited(&mut world, Some(1), None);
    let tickets = ask_for(&mut world, 4);
    world.step(Input::Order(Order::CloseFamily { family: FAMILY }));
    for ticket in &tickets[1..] {
        assert_eq!(world.replies[ticket], Reply::Error(RequestError::Fenced));
    }
}

#[test]
fn a_clone_pays_for_its_reads_and_not_at_its_origins_door() {
    let mut world = World::new(1, 1, Limits::small());
    let bytes = pattern(1, 4 << 12);
    assert_eq!(world.write(0, &bytes), Reply::Done);
    world.step(Input::Order(Order::TakeSnapshot { family: FAMILY, snapshot: SnapshotId(1) }));
    let taken = world.notices.iter().find_map(|notice| match notice {
        Notice::SnapshotTaken { generation, .. } => Some(*generation),
        _ => None,
    });
    let snapshot = taken.expect("it is taken at once");
    world.clone_snapshot(CLONE, Origin { family: FAMILY, snapshot, size: 32 << 20 });
    limited(&mut world, Some(1), None);
    let waiting = ask_for(&mut world, 20);
    let begun = world.now;
    for block in 0..4 {
        let read = Request::Read { offset: block << 12, len: 4096 };
        let Reply::Data(pieces) = world.ask_of(CLONE, read) else { panic!("it can be read") };
        let found: Vec<u8> = pieces.iter().flat_map(|piece| piece.bytes().to_vec()).collect();
        assert_eq!(found, bytes[(block << 12) as usize..][..4096]);
    }
    assert_eq!(world.now, begun, "the clone has no limit, and did not wait for its origin's");
    assert_eq!(answered(&world, &waiting).iter().filter(|done| **done).count(), 1);
    let ceiling = Ceiling { iops: Some(10), bytes: None };
    world.step(Input::Order(Order::SetCeiling { family: CLONE, ceiling }));
    for _ in 0..3 {
        let read = Request::Read { offset: 0, len: 4096 };
        assert!(matches!(world.ask_of(CLONE, read), Reply::Data(_)));
    }
    assert!(world.now > begun, "its own counts, also where it reads from its origin");
}
