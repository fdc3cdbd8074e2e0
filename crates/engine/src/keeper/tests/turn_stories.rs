//! Whose turn it is on a drive, one story at a time. Here 64 KiB may be in flight while several share.

use super::egroup_stories::{read, write};
use super::*;
use crate::identity::EgroupId;
use crate::message::Class;

const ONE: EgroupId = EgroupId(1);
const TWO: EgroupId = EgroupId(2);

/// Two vDisks with an egroup each.
fn rig() -> Rig {
    let mut rig = Rig::small(1);
    for family in [1, 2] {
        assert_eq!(rig.ask(family, 1, write(ONE, 100, 64, Class::Data, false)), Ok(Answer::EgroupWritten));
    }
    rig.now = rig.now.after(1_000_000);
    rig
}

fn in_flight(rig: &Rig) -> usize {
    rig.drive.submitted.len()
}

/// Ends the oldest operation of a drive that keeps their order.
fn end_oldest(rig: &mut Rig) {
    let oldest = |(_, submitted): &(usize, &Submitted)| submitted.operation.token;
    let (index, _) =
        rig.drive.submitted.iter().enumerate().min_by_key(oldest).expect("something is in flight");
    rig.end(index);
}

#[test]
fn whoever_reads_alone_has_the_whole_drive() {
    let mut rig = rig();
    let calls: Vec<u64> = (0..100).map(|_| rig.begin(1, 1, read(ONE, &[(0, 8)]))).collect();
    assert_eq!(in_flight(&rig), 100);
    rig.run();
    assert!(calls.iter().all(|call| matches!(rig.answers[call], Ok(Answer::Units(_)))));
    assert_eq!(rig.keeper.held_back().reads, 0);
}

#[test]
fn a_flood_of_large_reads_leaves_others_their_share() {
    let mut rig = rig();
    rig.ask(2, 1, read(ONE, &[(0, 1)])).expect("it is read");
    let flood: Vec<u64> = (0..50).map(|_| rig.begin(1, 1, read(ONE, &[(0, 8)]))).collect();
    assert_eq!(in_flight(&rig), 1, "a second one does not fit beside it");
    for _ in 0..20 {
        let before = in_flight(&rig);
        let small = rig.begin(2, 1, read(ONE, &[(3, 1)]));
        assert_eq!(in_flight(&rig), before + 1, "it goes to the drive at once");
        let mut others = 0;
        while !rig.answers.contains_key(&small) {
            end_oldest(&mut rig);
            others += 1;
        }
        assert!(others <= 3, "{others} operations, itself among them");
    }
    assert!(rig.keeper.held_back().reads > 0);
    // What there is for two is there for one when the other is silent.
    rig.now = rig.now.after(200_000);
    end_oldest(&mut rig);
    assert!(in_flight(&rig) > 10, "{}", in_flight(&rig));
    rig.run();
    assert!(flood.iter().all(|call| rig.answers.contains_key(call)), "all of it is read in the end");
}

#[test]
fn equal_floods_have_equal_shares() {
    let mut rig = rig();
    for _ in 0..40 {
        rig.begin(1, 1, read(ONE, &[(0, 2)]));
        rig.begin(2, 1, read(ONE, &[(0, 2)]));
    }
    for _ in 0..40 {
        end_oldest(&mut rig);
    }
    let answered = rig.answers.len();
    let odd = rig.answers.keys().filter(|call| **call % 2 == 1).count();
    assert!(odd.abs_diff(answered - odd) <= 4, "{odd} of {answered}");
    rig.run();
}

#[test]
fn background_work_of_others_goes_beside_reads_one_at_a_time() {
    let mut rig = rig();
    rig.ask(2, 1, read(ONE, &[(0, 1)])).expect("it is read");
    let writes: Vec<u64> = (10..14)
        .map(|number| rig.begin(1, 1, write(EgroupId(number), number, 64, Class::Data, false)))
        .collect();
    // Its units and its page.
    assert_eq!(in_flight(&rig), 2);
    assert_eq!(rig.keeper.held_back().background, 0);
    rig.begin(2, 1, read(ONE, &[(0, 1)]));
    assert_eq!(in_flight(&rig), 3, "a read waits for no background work");
    rig.run();
    assert!(writes.iter().all(|call| rig.answers[call] == Ok(Answer::EgroupWritten)));
    assert_eq!(rig.keeper.held_back().background, 3);
}

#[test]
fn units_that_are_read_to_be_moved_go_behind_the_reads_of_clients() {
    let mut rig = rig();
    rig.ask(2, 1, read(ONE, &[(0, 1)])).expect("it is read");
    let behind = || match read(ONE, &[(0, 64)]) {
        Question::ReadUnits { egroup, runs, frames, .. } => {
            Question::ReadUnits { egroup, runs, frames, behind: true }
        }
        other => other,
    };
    let moved: Vec<u64> = (0..4).map(|_| rig.begin(1, 1, behind())).collect();
    assert_eq!(in_flight(&rig), 1, "one at a time");
    let wanted: Vec<u64> = (0..8).map(|_| rig.begin(2, 1, read(ONE, &[(0, 1)]))).collect();
    assert_eq!(in_flight(&rig), 9, "whoever reads for clients is alone among its like");
    rig.run();
    assert!(moved.iter().chain(&wanted).all(|call| matches!(rig.answers[call], Ok(Answer::Units(_)))));
    assert_eq!(rig.keeper.held_back().reads, 0);
    assert_eq!(rig.keeper.held_back().background, 3);
}

#[test]
fn what_is_deleted_while_its_write_waits_does_not_come_back() {
    let mut rig = rig();
    rig.ask(2, 1, read(ONE, &[(0, 1)])).expect("it is read");
    let first = rig.begin(1, 1, write(EgroupId(10), 10, 64, Class::Data, false));
    let second = rig.begin(1, 1, write(TWO, 20, 64, Class::Data, false));
    let deleted = rig.begin(1, 1, Question::DeleteEgroups { egroups: vec![TWO] });
    rig.run();
    for call in [first, second] {
        assert_eq!(rig.answers[&call], Ok(Answer::EgroupWritten));
    }
    assert_eq!(rig.answers[&deleted], Ok(Answer::Deleted));
    assert!(rig.keeper.egroups().all(|stored| stored.egroup != TWO), "it is gone");
}

#[test]
fn a_write_that_waits_is_refused_when_its_owner_has_been_fenced() {
    let mut rig = rig();
    rig.ask(2, 1, read(ONE, &[(0, 1)])).expect("it is read");
    rig.begin(1, 1, write(EgroupId(10), 10, 64, Class::Data, false));
    let late = rig.begin(1, 1, write(TWO, 20, 64, Class::Data, false));
    rig.begin(1, 2, Question::Fence { first: Seq(1), since: Epoch(0) });
    rig.run();
    assert_eq!(rig.answers[&late], Err(Refusal::Fenced(Epoch(2))));
}

#[test]
fn something_large_is_not_passed_by_for_ever() {
    let mut rig = rig();
    assert_eq!(rig.ask(3, 1, write(ONE, 300, 64, Class::Data, false)), Ok(Answer::EgroupWritten));
    rig.ask(2, 1, read(ONE, &[(0, 1)])).expect("it is read");
    let small = || match read(ONE, &[(0, 4)]) {
        Question::ReadUnits { egroup, runs, frames, .. } => {
            Question::ReadUnits { egroup, runs, frames, behind: true }
        }
        other => other,
    };
    for _ in 0..4 {
        rig.begin(3, 1, small());
    }
    let large = rig.begin(1, 1, write(TWO, 200, 64, Class::Data, false));
    // As one of them ends, the next one comes.
    for _ in 0..20 {
        if rig.answers.contains_key(&large) {
            break;
        }
        rig.begin(3, 1, small());
        end_oldest(&mut rig);
    }
    assert_eq!(rig.answers.get(&large), Some(&Ok(Answer::EgroupWritten)));
    rig.run();
}
