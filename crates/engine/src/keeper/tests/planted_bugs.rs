//! Bugs planted on purpose do what they say: else the simulator's canaries would prove nothing.

use super::carry_stories::{
    an_end_that_is_not_known_is_told, flips_are_not_carried_on, found_stays, is_seen_on_its_way,
    others_go_on, others_go_on_beside_openings,
};
use super::discard_stories::{what_is_used_again_stays, what_is_written_meanwhile_stays};
use super::egroup_stories::{a_copy_outlives_a_late_deletion, pages_of_all_find_entries, read, write};
use super::log_model::{
    a_fence_is_lost, a_ring_stands_still, let_in_beside_a_stuck_family, openings_beside_a_stuck_family,
};
use super::log_stories::{
    late_data_is_let_in, many_ask_while_a_frame_frees, the_own_shard_is_heard_among_many,
};
use super::share_stories::{is_as_written, refill, rot, write as share};
use super::torn_end_stories::{an_only_record_is_missed, is_doubted_for_another_end};
use super::*;
use crate::identity::EgroupId;
use crate::message::Class;
use crate::sabotage::{Bug, with};

/// Whether in any of many runs an acknowledged record is lost in a crash.
fn loses_records() -> bool {
    (0..20).any(|seed| {
        let mut rig = Rig::small(seed);
        rig.append_ok(1, 1, 1, vec![data(1, 1, 1)]);
        rig.crash();
        rig.read_log(1, 1).is_empty()
    })
}

/// Whether in any of many runs an acknowledged egroup is lost or damaged in a crash.
fn loses_egroups() -> bool {
    (0..40).any(|seed| {
        let mut rig = Rig::small(seed);
        for name in 1..6 {
            rig.begin(1, 1, write(EgroupId(name), name, 2, Class::Data, false));
        }
        for _ in 0..9 {
            rig.step();
        }
        let written: Vec<u64> = (1..6).filter(|call| rig.answers.contains_key(call)).collect();
        rig.crash();
        written.into_iter().any(|name| {
            let answer = rig.ask(1, 1, read(EgroupId(name), &[(0, 2)]));
            !matches!(answer, Ok(Answer::Units(units)) if units[0].is_ok())
        })
    })
}

#[test]
fn an_acknowledgement_before_the_flush_loses_records() {
    assert!(with(Bug::AckBeforeFlush, loses_records));
    assert!(!loses_records());
}

#[test]
fn a_flush_that_covers_what_is_in_flight_loses_egroups() {
    assert!(with(Bug::FlushCoversInFlight, loses_egroups));
    assert!(!loses_egroups());
}

#[test]
fn a_late_deletion_that_is_obeyed_takes_what_came_since() {
    assert!(!with(Bug::LateDeletion, a_copy_outlives_a_late_deletion));
}

#[test]
fn an_ignored_fence_lets_an_older_owner_write() {
    let mut rig = Rig::small(1);
    rig.append_ok(1, 1, 1, vec![data(1, 1, 1)]);
    rig.fence(1, 2);
    let late = |rig: &mut Rig| rig.append(1, 1, 1, vec![data(2, 1, 1)]);
    assert_eq!(late(&mut rig), Err(Refusal::Fenced(Epoch(2))));
    assert!(with(Bug::StaleEpochAccepted, || late(&mut rig)).is_ok());
}

#[test]
fn an_unchecked_checksum_gives_out_what_is_damaged() {
    let mut rig = Rig::small(1);
    let egroup = EgroupId(1);
    rig.ask(1, 1, write(egroup, 1, 2, Class::Data, false)).expect("written");
    let first = rig.keeper.egroups().next().expect("just written").first;
    rig.drive.durable.get_mut(&(Area::Data, first)).expect("just written")[7] ^= 1;
    let sound = |answer| matches!(answer, Ok(Answer::Units(units)) if units[0].is_ok());
    assert!(!sound(rig.ask(1, 1, read(egroup, &[(0, 1)]))));
    assert!(with(Bug::ChecksumNotChecked, || sound(rig.ask(1, 1, read(egroup, &[(0, 1)])))));
}

/// Whether in any of many runs a copy is lost that refers to what was being written when the power was cut.
fn shares_what_is_lost() -> bool {
    (0..60).any(|seed| {
        let mut rig = Rig::new(seed, 1 << 20, 24 << 20);
        let image: Vec<u64> = (0..40).collect();
        rig.begin(1, 1, share(EgroupId(1), &image));
        // Two slices are hashed; then the copy may come first.
        for _ in 0..2 {
            rig.step();
        }
        let copy = rig.begin(1, 1, share(EgroupId(2), &image));
        while !rig.answers.contains_key(&copy) {
            rig.step();
        }
        rig.crash();
        !is_as_written(&mut rig, EgroupId(2), &image)
    })
}

#[test]
fn sharing_what_is_not_durable_loses_copies() {
    assert!(with(Bug::SharedBeforeDurable, shares_what_is_lost));
    assert!(!shares_what_is_lost());
}

#[test]
fn sharing_what_nobody_has_looked_at_gives_out_what_was_found_bad() {
    let loses = |bug| {
        let mut rig = Rig::new(1, 1 << 20, 24 << 20);
        let image: Vec<u64> = (0..40).collect();
        rig.ask(1, 1, share(EgroupId(1), &image)).expect("written");
        let first = rig.keeper.egroups().next().expect("just written").first;
        rot(&mut rig, first + 20);
        assert!(!is_as_written(&mut rig, EgroupId(1), &image));
        with(bug, || {
            rig.crash();
            refill(&mut rig);
        });
        rig.ask(1, 1, share(EgroupId(2), &image)).expect("written");
        !is_as_written(&mut rig, EgroupId(2), &image)
    };
    assert!(loses(Bug::UnprovenShared) && !loses(Bug::SpaceLeak));
}

#[test]
fn blocks_that_are_freed_although_they_are_shared_are_given_to_others() {
    let loses = |bug| {
        let mut rig = Rig::new(1, 1 << 20, 24 << 20);
        let image: Vec<u64> = (0..40).collect();
        rig.ask(1, 1, share(EgroupId(1), &image)).expect("written");
        rig.ask(1, 1, share(EgroupId(2), &image)).expect("written");
        let delete = Question::DeleteEgroups { egroups: vec![EgroupId(1)] };
        with(bug, || rig.ask(1, 1, delete)).expect("deleted");
        let other: Vec<u64> = (100..140).collect();
        rig.ask(1, 1, share(EgroupId(3), &other)).expect("written");
        !is_as_written(&mut rig, EgroupId(2), &image)
    };
    assert!(loses(Bug::SharedFreed) && !loses(Bug::SpaceLeak));
}

#[test]
fn telling_of_space_that_is_in_use_loses_what_is_there() {
    assert!(!with(Bug::UsedIsUntold, what_is_used_again_stays));
    assert!(!with(Bug::ToldIsGivenOut, what_is_written_meanwhile_stays));
}

#[test]
fn a_ring_that_stands_still_is_seen() {
    for bug in [Bug::QueueKept, Bug::LastBlockTaken] {
        assert!(with(bug, a_ring_stands_still), "{bug:?}");
    }
    assert!(with(Bug::FencesLeftBehind, a_fence_is_lost));
    assert!(!with(Bug::MoreThanFits, a_ring_stands_still), "what has no place after all is refused");
    assert!(with(Bug::MoreThanFits, many_ask_while_a_frame_frees) > 0);
}

#[test]
fn a_ring_that_is_pinned_or_carries_on_what_it_should_not_is_seen() {
    assert!(others_go_on(1) && !with(Bug::PinsStay, || others_go_on(1)));
    assert!(with(Bug::PinsStay, let_in_beside_a_stuck_family) < 6_000);
    assert!(!with(Bug::CarriedUnseen, is_seen_on_its_way));
    assert!(!with(Bug::CarriedIsTheEnd, an_end_that_is_not_known_is_told));
    assert!(!with(Bug::CarriedUnchecked, flips_are_not_carried_on));
    for (bug, records, blocks) in [(Bug::CopiesNeedMore, 12, 4), (Bug::FencesTakeAll, 3, 7)] {
        assert!(!with(bug, || others_go_on_beside_openings(1, records, blocks)), "{bug:?}");
    }
    for (bug, seed) in [(Bug::FencesTakeAll, 6), (Bug::SlackInPieces, 531), (Bug::FramesTooLarge, 32)] {
        assert!(with(bug, || openings_beside_a_stuck_family(seed)).is_some(), "{bug:?}");
    }
    assert!(found_stays() && !with(Bug::FoundLeftBehind, found_stays));
}

#[test]
fn an_own_ask_that_is_forgotten_is_seen() {
    assert!(!with(Bug::OwnAskForgotten, the_own_shard_is_heard_among_many));
}

#[test]
fn entries_that_are_not_kept_are_seen() {
    assert!(!with(Bug::ReserveOfFew, pages_of_all_find_entries));
}

#[test]
fn late_data_that_is_refused_is_seen() {
    assert!(!with(Bug::LateDataRefused, late_data_is_let_in));
}

#[test]
fn what_may_have_been_anybodys_is_forgotten() {
    assert!(!with(Bug::AnybodyForgotten, || an_only_record_is_missed(0)));
    assert!(an_only_record_is_missed(0));
}

#[test]
fn an_old_doubt_hides_a_new_one() {
    assert!(!with(Bug::OldDoubtHides, || is_doubted_for_another_end(0, 200)));
    assert!(is_doubted_for_another_end(0, 200));
}
