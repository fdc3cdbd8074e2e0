//! What the drive is told of free space, one story at a time.

use super::egroup_stories::write;
use super::share_stories::{delete, is_as_written};
use super::*;
use crate::identity::EgroupId;
use crate::message::Class;

const UNITS: u64 = 40;

fn rig() -> Rig {
    Rig::new(1, 1 << 20, 48 << 20)
}

fn put(rig: &mut Rig, egroup: u64) {
    let written = rig.ask(1, 1, write(EgroupId(egroup), egroup, UNITS as usize, Class::Data, false));
    assert_eq!(written, Ok(Answer::EgroupWritten));
}

fn is_whole(rig: &mut Rig, egroup: u64) -> bool {
    let marks: Vec<u64> = (egroup..egroup + UNITS).collect();
    is_as_written(rig, EgroupId(egroup), &marks)
}

fn place(rig: &Rig, egroup: u64) -> u64 {
    rig.keeper.egroups().find(|stored| stored.egroup == EgroupId(egroup)).expect("it is stored").first
}

/// First block and length of what the drive is being told of.
fn told(rig: &Rig) -> Vec<(u64, u64)> {
    let hint = |submitted: &Submitted| match submitted.operation.work {
        DriveWork::Discard { offset, len } => Some((offset / BLOCK as u64, len / BLOCK as u64)),
        _ => None,
    };
    rig.drive.submitted.iter().filter_map(hint).collect()
}

/// Until the drive is being told something, or nothing is left to do: the keeper is woken when it wants to be, and not before.
fn wait(rig: &mut Rig) {
    for _ in 0..100 {
        while told(rig).is_empty() && rig.step() {}
        match rig.keeper.wake_at() {
            Some(at) if told(rig).is_empty() => rig.now = rig.now.max(at),
            _ => return,
        }
    }
    panic!("it never comes to rest");
}

#[test]
fn what_is_deleted_is_free_at_once_and_the_drive_hears_of_it_later() {
    let mut rig = rig();
    (1..=3).for_each(|egroup| put(&mut rig, egroup));
    let first = place(&rig, 1);
    let (free, ..) = rig.keeper.unit_blocks();
    let began = rig.now;
    delete(&mut rig, EgroupId(1));
    delete(&mut rig, EgroupId(2));
    let run = UNITS + 1;
    assert_eq!(rig.keeper.unit_blocks().0, free + 2 * run);
    assert_eq!(told(&rig), []);
    wait(&mut rig);
    assert!(rig.now.since(began) >= rig.keeper.limits.discard_after_us);
    assert_eq!(told(&rig), [(first, run)], "one after the other");
    assert_eq!((rig.keeper.unit_blocks().0, rig.keeper.unit_blocks().2), (free + run, run));
    rig.end(0);
    wait(&mut rig);
    assert_eq!(told(&rig), [(first + run, run)]);
    rig.run();
    assert_eq!((rig.keeper.unit_blocks().0, rig.keeper.unit_blocks().2), (free + 2 * run, 0));
    wait(&mut rig);
    assert_eq!((told(&rig), rig.keeper.wake_at()), (vec![], None), "nothing is told twice");
}

#[test]
fn a_drive_is_told_one_thing_at_a_time_and_no_more_than_an_eighth() {
    let mut rig = Rig::with(1, 1 << 20, 24 << 20, Limits { discard_bytes_max: 4 << 20, ..Limits::small() });
    // Every other one goes, so that none are neighbours; with them goes a large one.
    (1..=9).for_each(|egroup| put(&mut rig, egroup));
    rig.ask(1, 1, write(EgroupId(10), 10, 600, Class::Data, false)).expect("written");
    let egroups = [2, 4, 6, 8, 10].map(EgroupId).to_vec();
    assert_eq!(rig.ask(1, 1, Question::DeleteEgroups { egroups }), Ok(Answer::Deleted));
    let (free, ..) = rig.keeper.unit_blocks();
    let plenty = free - 2 * rig.keeper.store.reserve_blocks();
    assert!(plenty / 8 < 600, "what an eighth is is seen");
    let mut all = 0;
    for _ in 0..100 {
        wait(&mut rig);
        let [(_, blocks)] = told(&rig)[..] else { break };
        assert!(blocks <= plenty / 8, "{blocks} of {plenty}");
        assert_eq!(rig.keeper.wake_at(), None, "nothing more is due before this has ended");
        rig.keeper.on_wake(rig.now.after(60_000_000), &mut rig.effects);
        rig.take_effects();
        assert_eq!(told(&rig).len(), 1);
        all += blocks;
        rig.end(0);
        assert_eq!(told(&rig), [], "there is a pause");
    }
    assert!(all >= 4 * (UNITS + 1) + 585, "{all}: all but what a piece leaves over");
}

#[test]
fn a_drive_that_wants_no_hints_is_given_no_more() {
    let mut rig = rig();
    (1..=3).for_each(|egroup| put(&mut rig, egroup));
    let (free, ..) = rig.keeper.unit_blocks();
    delete(&mut rig, EgroupId(1));
    delete(&mut rig, EgroupId(2));
    wait(&mut rig);
    let token = rig.drive.submitted.remove(0).operation.token;
    rig.keeper.on_drive_done(rig.now, token, Ok(DriveResult::Ignored), &mut rig.effects);
    delete(&mut rig, EgroupId(3));
    wait(&mut rig);
    assert_eq!((told(&rig), rig.keeper.wake_at()), (vec![], None));
    assert_eq!(rig.keeper.unit_blocks().0, free + 3 * (UNITS + 1));
    // It may be another drive next time.
    rig.reopen();
    put(&mut rig, 1);
    delete(&mut rig, EgroupId(1));
    wait(&mut rig);
    assert_eq!(told(&rig).len(), 1);
}

/// Something is deleted, and another egroup takes its place before the drive is told. Gives whether that one is whole in the end.
pub(super) fn what_is_used_again_stays() -> bool {
    let mut rig = rig();
    put(&mut rig, 1);
    let first = place(&rig, 1);
    delete(&mut rig, EgroupId(1));
    put(&mut rig, 2);
    assert_eq!(place(&rig, 2), first, "it fits");
    wait(&mut rig);
    rig.run();
    is_whole(&mut rig, 2)
}

/// Something is deleted, and written while the drive is being told; it hears of that last. Gives whether that is whole in the end.
pub(super) fn what_is_written_meanwhile_stays() -> bool {
    let mut rig = rig();
    put(&mut rig, 1);
    delete(&mut rig, EgroupId(1));
    wait(&mut rig);
    assert_eq!(told(&rig).len(), 1);
    let call = rig.begin(1, 1, write(EgroupId(2), 2, UNITS as usize, Class::Data, false));
    while !rig.answers.contains_key(&call) {
        let is_hint = |submitted: &Submitted| matches!(submitted.operation.work, DriveWork::Discard { .. });
        let next = rig.drive.submitted.iter().position(|submitted| !is_hint(submitted));
        rig.end(next.expect("it goes on"));
    }
    rig.run();
    is_whole(&mut rig, 2)
}

#[test]
fn the_drive_is_told_of_nothing_that_is_in_use() {
    assert!(what_is_used_again_stays());
    assert!(what_is_written_meanwhile_stays());
}

#[test]
fn a_full_drive_keeps_its_space_for_clients() {
    let mut rig = rig();
    let mut last = 0;
    // Large ones first, so that blocks run out before entries of the table do.
    for units in [400, UNITS] {
        while rig.ask(1, 1, write(EgroupId(last + 1), last + 1, units as usize, Class::Data, false)).is_ok() {
            last += 1;
        }
    }
    delete(&mut rig, EgroupId(last));
    wait(&mut rig);
    assert_eq!(told(&rig), []);
    // As soon as there is more, it hears of what it has not heard of.
    (2..last / 2).for_each(|egroup| delete(&mut rig, EgroupId(egroup)));
    wait(&mut rig);
    assert_eq!(told(&rig).len(), 1);
}

#[test]
fn a_hint_that_fails_is_a_hint() {
    let mut rig = rig();
    put(&mut rig, 1);
    let (free, ..) = rig.keeper.unit_blocks();
    delete(&mut rig, EgroupId(1));
    wait(&mut rig);
    let token = rig.drive.submitted.remove(0).operation.token;
    rig.keeper.on_drive_done(rig.now, token, Err(DriveFault::Unreadable), &mut rig.effects);
    assert_eq!((rig.keeper.state(), rig.keeper.unit_blocks().0), (State::Ready, free + UNITS + 1));
}
