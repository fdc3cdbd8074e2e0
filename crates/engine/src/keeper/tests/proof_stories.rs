//! What is known by its hash from a trailer only, and may be bad or gone by now, one story at a time.

use super::share_stories::{delete, is_as_written, marks, name, references, refill, rig, rot, stored, write};
use super::*;
use crate::identity::EgroupId;
use crate::interface::Damage;

#[test]
fn what_was_found_bad_is_not_given_to_others_although_trailers_tell_of_it_again() {
    for (found_before, first_goes) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut rig = rig(8);
        let image = marks(0..100);
        // The first trailer that is read after an opening is another's.
        rig.ask(1, 1, write(name(9), &marks(500..560))).expect("written");
        for number in 1..=3 {
            rig.ask(1, 1, write(name(number), &image)).expect("written");
        }
        let first = stored(&rig, name(1)).first;
        if first_goes {
            delete(&mut rig, name(1));
        }
        rot(&mut rig, first + 50);
        if !found_before {
            rig.crash();
            assert_eq!(rig.keeper.shared().entries, 60);
        }
        assert!(!is_as_written(&mut rig, name(2), &image));
        if found_before {
            rig.crash();
        }
        refill(&mut rig);
        assert_eq!(rig.keeper.shared().entries, 160, "it is told again");
        rig.ask(1, 1, write(name(4), &image)).expect("written");
        assert!(is_as_written(&mut rig, name(4), &image), "found before: {found_before}");
        assert_eq!(references(&rig, name(4)), [(0, 50, first), (51, 49, first + 51)]);
    }
}

#[test]
fn what_cannot_be_read_is_written_again_and_what_was_read_once_is_believed() {
    let mut rig = rig(9);
    let image = marks(0..100);
    rig.ask(1, 1, write(name(1), &image)).expect("written");
    let first = stored(&rig, name(1)).first;
    rig.crash();
    refill(&mut rig);
    rig.drive.unreadable.insert((Area::Data, first + 70));
    rig.ask(1, 1, write(name(2), &image[..40])).expect("written");
    assert_eq!(references(&rig, name(2)), [(0, 40, first)]);
    rig.ask(1, 1, write(name(3), &image)).expect("written");
    assert_eq!(references(&rig, name(3)), [(0, 40, first)], "of the rest something could not be read");
    assert!(is_as_written(&mut rig, name(2), &image[..40]) && is_as_written(&mut rig, name(3), &image));
}

#[test]
fn whatever_becomes_of_a_home_while_it_is_looked_at_copies_are_whole() {
    let mut are_shared = 0;
    for seed in 0..120 {
        let mut rig = rig(seed);
        let image = marks(0..60);
        rig.ask(1, 1, write(name(1), &image)).expect("written");
        rig.crash();
        refill(&mut rig);
        let copies = [2, 3].map(|number| rig.begin(1, 1, write(name(number), &image)));
        for _ in 0..seed % 9 {
            rig.step();
        }
        // The home and a copy go, and what is free is given to others.
        let delete = |number| Question::DeleteEgroups { egroups: vec![name(number)] };
        let gone = [1, 3].map(|number| rig.begin(1, 1, delete(number)));
        let again = rig.begin(1, 1, write(name(2), &image));
        let others: Vec<u64> =
            (10..14).map(|number| rig.begin(1, 1, write(name(number), &[number; 60]))).collect();
        if seed % 3 == 0 {
            for _ in 0..seed % 20 {
                rig.step();
            }
            let is_copied = [copies[0], again].iter().any(|call| rig.answers.contains_key(call));
            rig.crash();
            if is_copied || rig.keeper.egroups().any(|stored| stored.egroup == name(2)) {
                assert!(is_as_written(&mut rig, name(2), &image), "seed {seed}");
            }
        } else {
            rig.run();
            for call in copies.into_iter().chain([again]).chain(others) {
                assert_eq!(rig.answers.remove(&call), Some(Ok(Answer::EgroupWritten)));
            }
            assert!(gone.iter().all(|call| rig.answers.remove(call) == Some(Ok(Answer::Deleted))));
            are_shared += usize::from(!references(&rig, name(2)).is_empty());
            assert!(is_as_written(&mut rig, name(2), &image));
            assert!((10..14).all(|number| is_as_written(&mut rig, name(number), &[number; 60])));
        }
        assert_eq!(rig.keeper.unit_blocks().2, 0, "no block is lost");
    }
    assert!((10..80).contains(&are_shared), "{are_shared} were in time");
}

#[test]
fn what_comes_to_lie_where_somebody_looks_is_taken_for_what_it_is() {
    for is_same in [false, true] {
        let mut rig = rig(12);
        let image = marks(0..60);
        rig.ask(1, 1, write(name(1), &image)).expect("written");
        let first = stored(&rig, name(1)).first;
        rig.crash();
        refill(&mut rig);
        let copy = rig.begin(1, 1, write(name(2), &image));
        while rig.drive.submitted.is_empty() {
            rig.step();
        }
        // Everything ends before the look at the home does.
        let all_but_the_look = |rig: &mut Rig| {
            loop {
                while rig.keeper.wake_at().is_some_and(|at| at <= rig.now) {
                    rig.now = rig.now.after(1);
                    rig.keeper.on_wake(rig.now, &mut rig.effects);
                    rig.take_effects();
                }
                let is_look = |work: &DriveWork| matches!(work, DriveWork::Read { .. });
                let mut submitted = rig.drive.submitted.iter();
                let Some(index) = submitted.position(|one| !is_look(&one.operation.work)) else { break };
                rig.end(index);
            }
            assert_eq!(rig.drive.submitted.len(), 1);
        };
        let gone = rig.begin(1, 1, Question::DeleteEgroups { egroups: vec![name(1)] });
        all_but_the_look(&mut rig);
        assert_eq!(rig.answers.remove(&gone), Some(Ok(Answer::Deleted)));
        let new = if is_same { image.clone() } else { marks(200..260) };
        let other = rig.begin(1, 1, write(name(3), &new));
        all_but_the_look(&mut rig);
        assert_eq!(rig.answers.remove(&other), Some(Ok(Answer::EgroupWritten)));
        assert_eq!((stored(&rig, name(3)).first, references(&rig, name(3)).len()), (first, 0));
        rig.run();
        assert_eq!(rig.answers.remove(&copy), Some(Ok(Answer::EgroupWritten)));
        let shared: &[_] = if is_same { &[(0, 60, first)] } else { &[] };
        assert_eq!(references(&rig, name(2)), shared);
        rig.ask(1, 1, write(name(4), &new)).expect("written");
        assert_eq!(references(&rig, name(4)), [(0, 60, first)], "the other is known");
        assert!(is_as_written(&mut rig, name(2), &image) && is_as_written(&mut rig, name(3), &new));
        assert!(is_as_written(&mut rig, name(4), &new));
    }
}

/// As if the trailer of this egroup had been read once more.
fn tell_again(rig: &mut Rig, egroup: EgroupId) {
    let Keeper { store, desk, .. } = &mut rig.keeper;
    let stored = &store.egroups[&(FamilyId(1), egroup)];
    let (slot, (first, blocks)) = (stored.slot, stored.trailer());
    let blocks = (first..first + blocks).map(|block| &rig.drive.durable[&(Area::Data, block)]);
    let trailer: Vec<u8> = blocks.flat_map(|block| block.to_vec()).collect();
    store.readers[slot as usize] += 1;
    store.on_hashes_read(rig.now, (FamilyId(1), egroup), slot, Some(Buffer::copied(&trailer)), desk);
}

#[test]
fn what_is_told_over_and_over_is_written_in_the_end() {
    let mut rig = rig(10);
    let image = marks(0..60);
    rig.ask(1, 1, write(name(1), &image)).expect("written");
    rig.crash();
    refill(&mut rig);
    let mut changed = image.clone();
    changed[30] = 900;
    let copy = rig.begin(1, 1, write(name(2), &changed));
    // Of two runs, the one that was read first is doubtful again when the other one was read.
    while !rig.answers.contains_key(&copy) {
        rig.step();
        tell_again(&mut rig, name(1));
    }
    assert_eq!(references(&rig, name(2)), []);
    assert!(is_as_written(&mut rig, name(2), &changed));
}

#[test]
fn a_trailer_that_is_bad_is_told_and_one_that_was_misread_is_read_again() {
    for is_bad in [false, true] {
        let mut rig = rig(11);
        let image = marks(0..10);
        rig.ask(1, 1, write(name(1), &image)).expect("written");
        let trailer = stored(&rig, name(1)).first + 10;
        if is_bad {
            rot(&mut rig, trailer);
        } else {
            rig.drive.flips.insert((Area::Data, trailer));
        }
        rig.crash();
        refill(&mut rig);
        let damage = Damage::CopyBad { family: FamilyId(1), egroup: name(1) };
        let notice = Notice::Damage { drive: DriveId(1), damage };
        assert_eq!((rig.notices.contains(&notice), rig.damages()), (is_bad, usize::from(is_bad)));
        assert_eq!(rig.keeper.shared().entries, if is_bad { 0 } else { 10 });
        assert!(is_as_written(&mut rig, name(1), &image), "only its trailer is bad");
    }
}
