//! The egroups of a drive, one story at a time.

use super::*;
use crate::identity::EgroupId;
use crate::interface::Damage;
use crate::message::{BadUnit, Class, Content, Lacking, UnitRun};
use std::sync::Arc;

const EGROUP: EgroupId = EgroupId(1 << 32 | 5);

pub(super) fn write(egroup: EgroupId, mark: u64, units: usize, class: Class, replace: bool) -> Question {
    let blocks = (0..units as u64).map(|unit| mark * 10_000 + unit).collect();
    let units = (0..units as u64).map(|index| unit(mark + index)).collect();
    let content = Content::Units(units);
    Question::WriteEgroup {
        egroup,
        class,
        content,
        blocks,
        replace,
        sharing: None,
        lacking: Lacking::default(),
    }
}

/// Whether each of many families still gets entries for two egroups of pages when data gets none any more.
pub(super) fn pages_of_all_find_entries() -> bool {
    let mut rig = Rig::new(1, 1 << 20, 160 << 20);
    let families = 1..=16;
    let mut next = 0;
    let mut fills = |rig: &mut Rig, family: u32, class: Class| {
        next += 1;
        rig.ask(family, 1, write(EgroupId(next), next, 1, class, false))
    };
    while families.clone().all(|family| fills(&mut rig, family, Class::Data).is_ok()) {}
    (0..2).all(|_| families.clone().all(|family| fills(&mut rig, family, Class::Pages).is_ok()))
}

#[test]
fn entries_are_kept_for_the_pages_of_all_families() {
    assert!(pages_of_all_find_entries());
}

pub(super) fn read(egroup: EgroupId, runs: &[(u32, u32)]) -> Question {
    let runs = runs.iter().map(|&(first, count)| UnitRun { first, count }).collect();
    Question::ReadUnits { egroup, runs, frames: false, behind: false }
}

/// Where the page of the only egroup lies.
pub(super) fn page_of(rig: &Rig) -> Place {
    let store = &rig.keeper.store;
    let slot = store.egroups.values().next().expect("something is stored").slot;
    (Area::Data, store.layout.page_offset(slot) / BLOCK as u64)
}

fn first_unit(rig: &Rig) -> u64 {
    rig.keeper.egroups().next().expect("something is stored").first
}

#[test]
fn an_egroup_is_read_as_it_was_written_also_after_a_crash() {
    let mut rig = Rig::small(1);
    assert_eq!(rig.ask(1, 1, write(EGROUP, 100, 600, Class::Data, false)), Ok(Answer::EgroupWritten));
    for _ in 0..2 {
        let answer = rig.ask(1, 1, read(EGROUP, &[(5, 2), (599, 1), (8, 1), (0, 1), (600, 1), (599, 2)]));
        let Ok(Answer::Units(units)) = answer else { panic!("{answer:?}") };
        let bytes = |index: usize| units[index].as_ref().expect("sound").bytes().to_vec();
        assert_eq!(bytes(0), [unit(105).bytes(), unit(106).bytes()].concat());
        assert_eq!(bytes(1), unit(699).bytes());
        assert_eq!(bytes(2), unit(108).bytes());
        assert_eq!(bytes(3), unit(100).bytes());
        assert_eq!(units[4], Err(BadUnit::damaged(600)), "there is no such unit");
        assert_eq!(units[5], Err(BadUnit::damaged(599)));
        let blocks = (0..600).map(|unit| 1_000_000 + unit).collect();
        let described = Answer::Egroup { blocks, packing: None };
        assert_eq!(rig.ask(1, 1, Question::DescribeEgroup { egroup: EGROUP }), Ok(described));
        let listed = rig.ask(1, 1, Question::ListEgroups { after: EgroupId(0) });
        assert_eq!(listed, Ok(Answer::Listed { egroups: vec![EGROUP], end: true }));
        rig.crash();
    }
}

#[test]
fn what_a_copy_lacks_is_damaged_from_the_first_moment_and_replaces_nothing() {
    let mut rig = Rig::small(1);
    let mut without = write(EGROUP, 100, 3, Class::Reserve, true);
    let Question::WriteEgroup { lacking, .. } = &mut without else { unreachable!("it is a write") };
    *lacking = Lacking { frames: vec![1], blocks: true };
    let has = |rig: &mut Rig, units: [bool; 3], blocks: Vec<u64>| {
        let Ok(Answer::Units(found)) = rig.ask(1, 1, read(EGROUP, &[(0, 1), (1, 1), (2, 1)])) else {
            panic!("it is there");
        };
        assert_eq!([0, 1, 2].map(|unit| found[unit].is_ok()), units);
        assert!(found.iter().flat_map(|unit| unit.as_ref().err()).all(|bad| !bad.is_lost));
        let described = Ok(Answer::Egroup { blocks, packing: None });
        assert_eq!(rig.ask(1, 1, Question::DescribeEgroup { egroup: EGROUP }), described);
    };
    for _ in 0..2 {
        assert_eq!(rig.ask(1, 1, without.clone()), Ok(Answer::EgroupWritten));
        has(&mut rig, [true, false, true], Vec::new());
        rig.crash();
    }
    // One that is whole takes its place, and is not replaced in its turn.
    rig.ask(1, 1, write(EGROUP, 100, 3, Class::Reserve, true)).expect("written");
    assert_eq!(rig.ask(1, 1, without), Ok(Answer::EgroupWritten));
    has(&mut rig, [true; 3], vec![1_000_000, 1_000_001, 1_000_002]);
}

#[test]
fn names_that_are_not_here_are_told_so() {
    let mut rig = Rig::small(2);
    assert_eq!(rig.ask(1, 1, read(EGROUP, &[(0, 1)])), Err(Refusal::NotFound));
    assert_eq!(rig.ask(1, 1, Question::DescribeEgroup { egroup: EGROUP }), Err(Refusal::NotFound));
    assert_eq!(rig.ask(1, 1, Question::DeleteEgroups { egroups: vec![EGROUP] }), Ok(Answer::Deleted));
    let listed = rig.ask(1, 1, Question::ListEgroups { after: EgroupId(u64::MAX) });
    assert_eq!(listed, Ok(Answer::Listed { egroups: vec![], end: true }));
}

/// A deletion was asked for and answered; its repetition comes when the copy is back. True if that is here then.
pub(super) fn a_copy_outlives_a_late_deletion() -> bool {
    let mut rig = Rig::small(2);
    rig.ask(1, 1, write(EGROUP, 1, 20, Class::Data, false)).expect("written");
    let delete = Question::DeleteEgroups { egroups: vec![EGROUP] };
    let call = rig.begin(1, 1, delete.clone());
    rig.run();
    assert_eq!(rig.answers.remove(&call), Some(Ok(Answer::Deleted)));
    // It comes back, and the repetition while that is under way, and once more when it is over.
    let back = rig.begin(1, 1, write(EGROUP, 1, 20, Class::Reserve, true));
    rig.repeat(call, 1, 1, delete.clone());
    rig.run();
    assert_eq!(rig.answers.remove(&back), Some(Ok(Answer::EgroupWritten)));
    assert_eq!(rig.answers.remove(&call), Some(Ok(Answer::Deleted)), "whoever waits for it hears the same");
    rig.repeat(call, 1, 1, delete.clone());
    rig.run();
    rig.answers.remove(&call);
    let is_there = rig.ask(1, 1, read(EGROUP, &[(0, 20)])).is_ok();
    // What is asked for now is done.
    assert_eq!(rig.ask(1, 1, delete), Ok(Answer::Deleted));
    assert_eq!(rig.ask(1, 1, read(EGROUP, &[(0, 1)])), Err(Refusal::NotFound));
    is_there
}

#[test]
fn a_late_deletion_does_not_take_what_was_listed_since() {
    let mut rig = Rig::small(3);
    rig.ask(1, 1, write(EGROUP, 1, 20, Class::Data, false)).expect("written");
    // Asked for now, it arrives when the owner has been told that the egroup is here.
    rig.call += 1;
    let late = rig.call;
    let list = Question::ListEgroups { after: EgroupId(0) };
    let listed = Ok(Answer::Listed { egroups: vec![EGROUP], end: true });
    assert_eq!(rig.ask(1, 1, list.clone()), listed);
    let delete = Question::DeleteEgroups { egroups: vec![EGROUP] };
    rig.repeat(late, 1, 1, delete.clone());
    rig.run();
    assert_eq!(rig.ask(1, 1, list.clone()), listed, "its owner relies on it");
    // A copy that is repeated late takes nothing back of that.
    rig.call += 1;
    let late = rig.call;
    assert_eq!(rig.ask(1, 1, list.clone()), listed);
    rig.answers.clear();
    rig.repeat(late - 3, 1, 1, write(EGROUP, 1, 20, Class::Reserve, true));
    rig.run();
    rig.repeat(late, 1, 1, delete.clone());
    rig.run();
    assert_eq!(rig.ask(1, 1, list.clone()), listed);
    // What is about to go is not named: its owner would count on it.
    let again = rig.begin(1, 1, write(EGROUP, 1, 20, Class::Reserve, true));
    rig.begin(1, 1, delete);
    let told = rig.begin(1, 1, list);
    assert_eq!(rig.answers.remove(&told), Some(Ok(Answer::Listed { egroups: Vec::new(), end: true })));
    rig.run();
    assert_eq!(rig.answers.remove(&again), Some(Ok(Answer::EgroupWritten)));
    assert_eq!(rig.ask(1, 1, read(EGROUP, &[(0, 1)])), Err(Refusal::NotFound));
}

#[test]
fn a_late_deletion_does_not_take_what_came_since() {
    assert!(a_copy_outlives_a_late_deletion());
    // Another owner counts from somewhere else.
    let mut rig = Rig::small(4);
    rig.call = u64::MAX / 2;
    rig.ask(1, 1, write(EGROUP, 1, 20, Class::Data, false)).expect("written");
    rig.call = 7;
    assert_eq!(rig.ask(1, 2, Question::DeleteEgroups { egroups: vec![EGROUP] }), Ok(Answer::Deleted));
    assert_eq!(rig.ask(1, 2, read(EGROUP, &[(0, 1)])), Err(Refusal::NotFound));
}

#[test]
fn only_what_is_bad_is_told_to_be_and_a_passing_fault_is_not() {
    let mut rig = Rig::small(3);
    rig.ask(1, 1, write(EGROUP, 1, 20, Class::Data, false)).expect("written");
    let first = first_unit(&rig);
    rig.drive.flips.insert((Area::Data, first + 3));
    let answer = rig.ask(1, 1, read(EGROUP, &[(0, 20)]));
    assert!(matches!(answer, Ok(Answer::Units(units)) if units[0].as_ref().is_ok_and(|b| b.blocks() == 20)));
    assert_eq!(rig.damages(), 0);
    rig.drive.unreadable.insert((Area::Data, first + 3));
    rig.drive.durable.get_mut(&(Area::Data, first + 9)).expect("written")[0] ^= 1;
    for _ in 0..2 {
        let answer = rig.ask(1, 1, read(EGROUP, &[(0, 3), (2, 3), (4, 5), (8, 2)]));
        let Ok(Answer::Units(units)) = answer else { panic!("{answer:?}") };
        assert_eq!(units[0].as_ref().expect("sound").blocks(), 3);
        assert_eq!(units[1], Err(BadUnit::damaged(3)));
        assert_eq!(units[2].as_ref().expect("sound").bytes()[..BLOCK], *unit(5).bytes());
        assert_eq!(units[3], Err(BadUnit::damaged(9)));
    }
    let damage = Damage::CopyBad { family: FamilyId(1), egroup: EGROUP };
    assert_eq!(
        rig.notices,
        [Notice::DriveReady { drive: DriveId(1) }, Notice::Damage { drive: DriveId(1), damage }]
    );
    // A repair brings a new copy, whatever is here.
    assert_eq!(rig.ask(1, 1, write(EGROUP, 1, 20, Class::Reserve, true)), Ok(Answer::EgroupWritten));
    let answer = rig.ask(1, 1, read(EGROUP, &[(0, 20)]));
    assert!(matches!(answer, Ok(Answer::Units(units)) if units[0].is_ok()));
    let (_, stored, moving) = rig.keeper.unit_blocks();
    assert_eq!((stored, moving), (21, 0), "the former copy is gone");
}

#[test]
fn a_page_of_the_table_that_is_misread_once_still_names_its_egroup() {
    let mut rig = Rig::small(5);
    rig.ask(1, 1, write(EGROUP, 1, 20, Class::Data, false)).expect("written");
    let page = page_of(&rig);
    for _ in 0..2 {
        rig.drive.flips.insert(page);
        rig.crash();
        assert!(rig.drive.flips.is_empty(), "the page was read");
        assert_eq!(rig.damages(), 0);
        let answer = rig.ask(1, 1, read(EGROUP, &[(0, 20)]));
        assert!(matches!(answer, Ok(Answer::Units(units)) if units[0].is_ok()));
    }
}

#[test]
fn a_page_of_the_table_that_is_not_sound_never_comes_back() {
    const OTHERS: [EgroupId; 2] = [EgroupId(1 << 32 | 1), EgroupId(1 << 32 | 9)];
    for unreadable in [false, true] {
        let mut rig = Rig::small(6);
        rig.ask(1, 1, write(OTHERS[0], 1, 1, Class::Data, false)).expect("written");
        rig.ask(1, 1, write(EGROUP, 1, 20, Class::Data, false)).expect("written");
        assert_eq!(rig.ask(1, 1, Question::DeleteEgroups { egroups: vec![OTHERS[0]] }), Ok(Answer::Deleted));
        let page = page_of(&rig);
        let flip = |rig: &mut Rig| rig.drive.durable.get_mut(&page).expect("written")[100] ^= 4;
        if unreadable {
            rig.drive.unreadable.insert(page);
        } else {
            flip(&mut rig);
        }
        rig.crash();
        let damage = Damage::Table { offset: page.1 * BLOCK as u64 };
        assert!(rig.notices.contains(&Notice::Damage { drive: DriveId(1), damage }));
        assert_eq!(rig.ask(1, 1, read(EGROUP, &[(0, 1)])), Err(Refusal::NotFound));
        // Another comes to lie where it was, with a page elsewhere; then the place is as it was once more.
        rig.ask(1, 1, write(OTHERS[1], 7, 30, Class::Data, false)).expect("written");
        assert_ne!(page_of(&rig), page);
        if unreadable {
            rig.drive.unreadable.clear()
        } else {
            flip(&mut rig)
        }
        rig.crash();
        assert_eq!(rig.ask(1, 1, read(EGROUP, &[(0, 1)])), Err(Refusal::NotFound));
        let answer = rig.ask(1, 1, read(OTHERS[1], &[(0, 30)]));
        assert!(matches!(answer, Ok(Answer::Units(units)) if units[0].is_ok()), "unreadable: {unreadable}");
    }
}

/// A drive says that a page was erased, and still has it: two pages name the same blocks.
#[test]
fn pages_that_name_the_same_blocks_are_told() {
    const OTHERS: [EgroupId; 2] = [EgroupId(1 << 32 | 8), EgroupId(1 << 32 | 9)];
    let mut rig = Rig::small(6);
    rig.ask(1, 1, write(OTHERS[0], 1, 1, Class::Data, false)).expect("written");
    rig.ask(1, 1, write(EGROUP, 1, 20, Class::Data, false)).expect("written");
    let store = &rig.keeper.store;
    let page = store.layout.page_offset(store.egroups[&(FamilyId(1), EGROUP)].slot) / BLOCK as u64;
    let page = (Area::Data, page);
    let bytes = rig.drive.read(page);
    let deleted = Question::DeleteEgroups { egroups: vec![OTHERS[0], EGROUP] };
    assert_eq!(rig.ask(1, 1, deleted), Ok(Answer::Deleted));
    rig.run();
    // It takes the first slot, and the blocks of both.
    rig.ask(1, 1, write(OTHERS[1], 7, 30, Class::Data, false)).expect("written");
    assert_ne!(page_of(&rig), page);
    rig.drive.cached.remove(&page);
    rig.drive.durable.insert(page, bytes);
    rig.reopen();
    assert_eq!(rig.damages(), 1, "{:?}", rig.notices);
    // The younger one lives.
    let stored: Vec<_> = rig.keeper.egroups().map(|stored| (stored.egroup, stored.units)).collect();
    assert_eq!(stored, [(OTHERS[1], 30)]);
}

#[test]
fn a_trailer_is_bad_only_if_it_is_so_twice() {
    for is_bad in [false, true] {
        let mut rig = Rig::small(6);
        rig.ask(1, 1, write(EGROUP, 1, 20, Class::Data, false)).expect("written");
        let trailer = (Area::Data, first_unit(&rig) + 20);
        if is_bad {
            rig.drive.unreadable.insert(trailer);
        } else {
            rig.drive.flips.insert(trailer);
        }
        let answer = rig.ask(1, 1, Question::DescribeEgroup { egroup: EGROUP });
        let blocks = if is_bad { Vec::new() } else { (10_000..10_020).collect() };
        assert_eq!(answer, Ok(Answer::Egroup { blocks, packing: None }), "it always tells how it is packed");
        assert_eq!(rig.damages(), usize::from(is_bad));
    }
}

/// The page of a former revision comes back, whose blocks are another's by now.
#[test]
fn a_former_revision_takes_nothing_from_others() {
    const OTHERS: [EgroupId; 2] = [EgroupId(1 << 32 | 2), EgroupId(1 << 32 | 3)];
    let mut rig = Rig::small(6);
    rig.ask(1, 1, write(EGROUP, 1, 20, Class::Data, false)).expect("written");
    let page = page_of(&rig);
    let bytes = rig.drive.read(page);
    rig.ask(1, 1, write(EGROUP, 2, 3, Class::Data, true)).expect("written");
    rig.run();
    // The first takes the slot and is gone again, the other has the blocks.
    rig.ask(1, 1, write(OTHERS[0], 7, 1, Class::Data, false)).expect("written");
    rig.ask(1, 1, write(OTHERS[1], 7, 15, Class::Data, false)).expect("written");
    rig.ask(1, 1, Question::DeleteEgroups { egroups: vec![OTHERS[0]] }).expect("deleted");
    rig.run();
    let store = &rig.keeper.store;
    let slots = store.egroups.values().map(|stored| store.layout.page_offset(stored.slot) / BLOCK as u64);
    assert!(slots.into_iter().all(|slot| slot != page.1), "it is nobody's now");
    let all =
        |rig: &Rig| rig.keeper.egroups().map(|stored| (stored.egroup, stored.units)).collect::<Vec<_>>();
    let before = all(&rig);
    assert_eq!(before, [(OTHERS[1], 15), (EGROUP, 3)]);
    rig.drive.cached.remove(&page);
    rig.drive.durable.insert(page, bytes);
    rig.reopen();
    assert_eq!(all(&rig), before);
}

#[test]
fn the_same_again_is_a_success_and_a_repeat_while_it_is_written_waits() {
    let mut rig = Rig::small(4);
    let a = rig.begin(1, 1, write(EGROUP, 1, 3, Class::Data, false));
    let b = rig.begin(1, 1, write(EGROUP, 1, 3, Class::Data, false));
    let c = rig.begin(1, 1, Question::DeleteEgroups { egroups: vec![EGROUP] });
    let d = rig.begin(1, 1, write(EGROUP, 2, 4, Class::Data, false));
    rig.run();
    for call in [a, b, d] {
        assert_eq!(rig.answers.remove(&call), Some(Ok(Answer::EgroupWritten)));
    }
    assert_eq!(rig.answers.remove(&c), Some(Ok(Answer::Deleted)));
    let stored: Vec<_> = rig.keeper.egroups().map(|stored| stored.units).collect();
    assert_eq!(stored, [4]);
    assert_eq!(rig.keeper.unit_blocks().2, 0);
}

#[test]
fn a_cut_at_any_point_of_a_replacement_leaves_one_sound_copy() {
    for steps in 0..12 {
        for seed in 0..8 {
            let mut rig = Rig::small(seed);
            rig.ask(1, 1, write(EGROUP, 1, 3, Class::Data, false)).expect("written");
            rig.begin(1, 1, write(EGROUP, 1, 3, Class::Reserve, true));
            for _ in 0..steps {
                rig.step();
            }
            rig.crash();
            let answer = rig.ask(1, 1, read(EGROUP, &[(0, 3)]));
            assert!(
                matches!(answer, Ok(Answer::Units(units)) if units[0].is_ok()),
                "step {steps} seed {seed}"
            );
            let (_, stored, moving) = rig.keeper.unit_blocks();
            assert_eq!((stored, moving), (4, 0));
        }
    }
}

#[test]
fn a_retry_after_a_cut_writes_again_what_may_not_be_durable() {
    for seed in 0..50 {
        let mut rig = Rig::small(seed);
        rig.begin(1, 1, write(EGROUP, 1, 3, Class::Data, false));
        rig.step();
        rig.step();
        rig.crash();
        assert_eq!(rig.ask(1, 1, write(EGROUP, 1, 3, Class::Data, false)), Ok(Answer::EgroupWritten));
        rig.crash();
        let answer = rig.ask(1, 1, read(EGROUP, &[(0, 3)]));
        assert!(matches!(answer, Ok(Answer::Units(units)) if units[0].is_ok()), "seed {seed}");
    }
}

#[test]
fn client_data_leaves_a_reserve_and_deletes_free_it() {
    let mut rig = Rig::small(5);
    let mut names = Vec::new();
    loop {
        let egroup = EgroupId(names.len() as u64 + 1);
        let free = rig.keeper.free_bytes();
        match rig.ask(1, 1, write(egroup, 1, 200, Class::Data, false)) {
            Ok(Answer::EgroupWritten) => names.push(egroup),
            Err(Refusal::NoSpace) => break assert!(free < 201 * BLOCK as u64),
            other => panic!("{other:?}"),
        }
    }
    assert!(names.len() > 5);
    // Of the reserve each class leaves something to those behind it: without pages nothing is ever deleted.
    for class in [Class::Pressed, Class::Reserve, Class::Pages] {
        let before = names.len();
        loop {
            let egroup = EgroupId(names.len() as u64 + 1);
            match rig.ask(1, 1, write(egroup, 1, 100, class, false)) {
                Ok(Answer::EgroupWritten) => names.push(egroup),
                Err(Refusal::NoSpace) => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(names.len() >= before + 3, "{class:?} has {} egroups", names.len() - before);
    }
    assert_eq!(rig.ask(1, 1, Question::DeleteEgroups { egroups: names }), Ok(Answer::Deleted));
    rig.crash();
    let (_, stored, moving) = rig.keeper.unit_blocks();
    assert_eq!((stored, moving), (0, 0));
}

#[test]
fn a_family_is_dropped_with_what_is_on_its_way() {
    let mut rig = Rig::small(6);
    rig.ask(1, 1, write(EGROUP, 1, 3, Class::Data, false)).expect("written");
    rig.ask(2, 1, write(EGROUP, 2, 3, Class::Data, false)).expect("written");
    let late = rig.begin(1, 1, write(EgroupId(77), 1, 3, Class::Data, false));
    assert_eq!(rig.ask(1, 1, Question::DropFamily), Ok(Answer::Dropped));
    assert_eq!(rig.answers.remove(&late), Some(Ok(Answer::EgroupWritten)));
    for _ in 0..2 {
        let left: Vec<_> = rig.keeper.egroups().map(|stored| stored.family).collect();
        assert_eq!(left, [FamilyId(2)]);
        rig.crash();
    }
}

/// Of the families below 3 only 2 is there.
fn census() -> Census {
    Census { next: FamilyId(3), families: Arc::new(BTreeSet::from([FamilyId(2)])), ..Census::default() }
}

#[test]
fn what_is_left_of_families_that_are_no_more_goes_and_nothing_of_them_comes_again() {
    for is_told_at_opening in [false, true] {
        let mut rig = Rig::small(13);
        for family in 1..=3 {
            rig.ask(family, 1, write(EGROUP, 1, 3, Class::Data, false)).expect("written");
            rig.append_ok(family, 1, 1, vec![data(1, 1, 1)]);
        }
        rig.fence(1, 2);
        let strays = if is_told_at_opening { rig.crash_and_tell(census()) } else { rig.tell(census()) };
        assert_eq!(strays, [FamilyId(1)]);
        assert_eq!(rig.tell(census()), strays, "until somebody says that it may go");
        assert_eq!(rig.unknown_found(), [FamilyId(3)]);
        let waits =
            rig.begin(1, 2, Question::Append { first: Seq(2), trim: Seq(0), records: vec![data(2, 2, 1)] });
        rig.drop_stray(1);
        let late = rig.answers.remove(&waits);
        assert!(matches!(late, Some(Ok(Answer::Appended { .. }) | Err(Refusal::Fenced(_)))), "{late:?}");
        assert_eq!(rig.tell(census()), []);
        // Nothing is known of numbers that the records do not know yet, or have found to be lost.
        let lost = Arc::new(vec![FamilyId(2)..FamilyId(4)]);
        assert_eq!(rig.tell(Census { next: FamilyId(4), unknown: lost, ..census() }), []);
        assert_eq!(rig.unknown_found(), [FamilyId(3)]);
        let left = |rig: &Rig| -> Vec<_> { rig.keeper.egroups().map(|stored| stored.family).collect() };
        assert_eq!(left(&rig), [FamilyId(2), FamilyId(3)]);
        assert!(rig.keeper.log_ranges().all(|(family, ..)| family != FamilyId(1)));
        let late = rig.ask(1, 2, write(EgroupId(EGROUP.0 + 1), 1, 3, Class::Data, false));
        assert!(matches!(late, Err(Refusal::Fenced(_))), "{late:?}");
        assert_eq!(rig.ask(1, 3, Question::DropFamily), Ok(Answer::Dropped), "said late");
        rig.ask(2, 1, write(EgroupId(EGROUP.0 + 1), 1, 3, Class::Data, false)).expect("written");
        // Without the census: it is durable.
        rig.crash();
        assert_eq!(left(&rig), [FamilyId(2), FamilyId(2), FamilyId(3)]);
        assert_eq!(rig.read_log(2, 1), [data(1, 1, 1)]);
        assert_eq!(rig.read_log(1, 4), []);
    }
}

#[test]
fn an_owner_that_slept_through_the_drop_writes_nothing_also_after_a_restart() {
    let mut rig = Rig::small(12);
    assert_eq!(rig.ask(1, 1, write(EGROUP, 1, 20, Class::Data, false)), Ok(Answer::EgroupWritten));
    assert_eq!(rig.ask(1, 3, Question::DropFamily), Ok(Answer::Dropped));
    rig.crash();
    let late = rig.ask(1, 1, write(EgroupId(EGROUP.0 + 1), 1, 20, Class::Data, false));
    assert_eq!(late, Err(Refusal::Fenced(Epoch(3))));
    assert_eq!(rig.keeper.egroups().count(), 0);
}
