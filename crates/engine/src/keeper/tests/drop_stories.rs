//! A large family is dropped in pieces, one story at a time.

use super::egroup_stories::{read, write};
use super::share_stories::{MIB, marks, name, write as share};
use super::*;
use crate::identity::EgroupId;
use crate::message::Class;
use std::sync::Arc;

/// Egroups of the family.
const EGROUPS: u64 = 90;

/// A drive with a large family 1 that has records too, and a small family 2.
fn rig(seed: u64) -> Rig {
    let mut rig = Rig::small(seed);
    for number in 1..=EGROUPS {
        rig.ask(1, 1, write(name(number), number, 17, Class::Data, false)).expect("written");
    }
    rig.append_ok(1, 1, 1, vec![data(1, 1, 1)]);
    rig.ask(2, 1, write(name(1), 1, 3, Class::Data, false)).expect("written");
    rig
}

fn left(rig: &Rig) -> usize {
    rig.keeper.egroups().filter(|stored| stored.family == FamilyId(1)).count()
}

/// Nothing is on its way or lost, and only family 2 is there.
fn only_the_other_is_left(rig: &Rig) {
    assert_eq!(left(rig), 0);
    let (_, stored, moving) = rig.keeper.unit_blocks();
    assert_eq!((stored, moving), (4, 0));
}

fn of_data(rig: &Rig) -> usize {
    rig.drive.submitted.iter().filter(|submitted| submitted.operation.area == Area::Data).count()
}

#[test]
fn a_large_family_goes_in_pieces_and_is_answered_at_the_end() {
    for seed in 0..5 {
        let mut rig = rig(seed);
        let together = rig.keeper.limits.erased_together;
        let call = rig.begin(1, 2, Question::DropFamily);
        assert!(of_data(&rig) <= together, "{} operations in one step", of_data(&rig));
        let mut most = 0;
        while !rig.answers.contains_key(&call) {
            assert!(rig.step(), "it goes on");
            most = most.max(of_data(&rig));
        }
        // Erasures, and a flush.
        assert!((together..=together + 1).contains(&most), "{most} operations at the same time");
        assert_eq!(left(&rig), 0);
        rig.crash();
        only_the_other_is_left(&rig);
        assert_eq!(rig.read_log(1, 3), []);
    }
}

#[test]
fn who_drops_again_waits_for_all_that_came_meanwhile() {
    for seed in 0..60 {
        let mut rig = rig(seed);
        let mut calls = vec![rig.begin(1, 2, Question::DropFamily)];
        for _ in 0..seed * 5 {
            rig.step();
        }
        // A copy of one that may have gone or not, one that nobody knew, and one of another owner.
        let newest = EgroupId(4 << 32 | 1);
        for (egroup, replace) in [(name(EGROUPS / 2), true), (name(EGROUPS + 1), false), (newest, false)] {
            calls.push(rig.begin(1, 2, write(egroup, 1, 17, Class::Reserve, replace)));
        }
        calls.push(rig.begin(1, 2, Question::DeleteEgroups { egroups: vec![name(EGROUPS - 1), name(3)] }));
        for _ in 0..seed % 7 {
            rig.step();
        }
        let again = rig.begin(1, 3, Question::DropFamily);
        while !rig.answers.contains_key(&again) {
            assert!(rig.step(), "it goes on");
        }
        assert_eq!(left(&rig), 0, "seed {seed}: all that was asked for before");
        rig.run();
        assert!(calls.iter().all(|call| rig.answers[call].is_ok()), "{:?}", rig.answers);
        only_the_other_is_left(&rig);
        rig.crash();
        only_the_other_is_left(&rig);
    }
}

#[test]
fn many_families_together_go_in_pieces_too() {
    let mut rig = rig(1);
    let together = rig.keeper.limits.erased_together;
    rig.run();
    let mut calls = vec![rig.begin(1, 2, Question::DropFamily)];
    for family in 2..20 {
        rig.begin(family, 1, write(name(2), 2, 3, Class::Data, false));
    }
    for family in 2..20 {
        calls.push(rig.begin(family, 2, Question::DropFamily));
    }
    let erased = |rig: &Rig| rig.keeper.store.erasures;
    while rig.step() {
        assert!(erased(&rig) <= together, "{} at the same time", erased(&rig));
    }
    assert!(calls.iter().all(|call| rig.answers[call] == Ok(Answer::Dropped)), "{:?}", rig.answers);
    assert_eq!((rig.keeper.unit_blocks().1, rig.keeper.unit_blocks().2), (0, 0));
}

#[test]
fn a_drop_that_is_cut_is_done_by_whoever_asks_next() {
    let census =
        Census { next: FamilyId(3), families: Arc::new(BTreeSet::from([FamilyId(2)])), ..Census::default() };
    for cut in 0..60 {
        let mut rig = rig(cut);
        if cut % 2 == 0 {
            rig.begin(1, 2, Question::DropFamily);
        } else {
            rig.keeper.on_census(rig.now, census.clone(), &mut rig.effects);
            rig.keeper.drop_stray(rig.now, FamilyId(1), &mut rig.effects);
        }
        for _ in 0..cut * 5 {
            rig.step();
        }
        let strays = rig.crash_and_tell(census.clone());
        if cut % 4 < 2 {
            assert!(left(&rig) == 0 || strays == [FamilyId(1)], "cut {cut}: nobody would ever delete it");
            rig.drop_stray(1);
        } else {
            assert_eq!(rig.ask(1, 2, Question::DropFamily), Ok(Answer::Dropped), "cut {cut}");
        }
        only_the_other_is_left(&rig);
        assert_eq!(rig.tell(census.clone()), []);
        rig.crash();
        only_the_other_is_left(&rig);
    }
}

#[test]
fn what_others_refer_to_stays_when_its_family_goes() {
    let mut rig = Rig::new(1, MIB, 24 * MIB);
    let image = marks(0..320);
    for (number, part) in image.chunks(32).enumerate() {
        rig.ask(1, 1, share(name(number as u64 + 1), part)).expect("written");
    }
    // One refers to what is there, and one is written while that goes.
    rig.ask(2, 1, share(name(1), &image[..160])).expect("written");
    assert_eq!(rig.keeper.shared().saved_bytes, 160 * BLOCK as u64);
    let dropped = rig.begin(1, 2, Question::DropFamily);
    let written = rig.begin(2, 1, share(name(2), &image[160..]));
    rig.run();
    assert_eq!(rig.answers.remove(&dropped), Some(Ok(Answer::Dropped)));
    assert_eq!(rig.answers.remove(&written), Some(Ok(Answer::EgroupWritten)));
    for _ in 0..2 {
        assert_eq!(left(&rig), 0);
        for (number, part) in [(1, &image[..160]), (2, &image[160..])] {
            let answer = rig.ask(2, 1, read(name(number), &[(0, 160)]));
            let Ok(Answer::Units(units)) = answer else { panic!("{answer:?}") };
            let wanted: Vec<u8> = part.iter().flat_map(|&mark| unit(mark).bytes().to_vec()).collect();
            assert!(units[0].as_ref().is_ok_and(|bytes| *bytes.bytes() == wanted));
        }
        rig.crash();
    }
    assert_eq!(rig.ask(2, 2, Question::DropFamily), Ok(Answer::Dropped));
    assert_eq!((rig.keeper.unit_blocks().1, rig.keeper.unit_blocks().2), (0, 0), "nobody refers to it");
}
