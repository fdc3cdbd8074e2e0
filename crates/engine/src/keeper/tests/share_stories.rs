//! What egroups share on a drive, one story at a time.

use super::egroup_stories::read;
use super::*;
use crate::counters::Counters;
use crate::egroup::pack::Packer;
use crate::egroup::units::Units;
use crate::formats::table::TablePage;
use crate::identity::EgroupId;
use crate::interface::{Compression, Damage, Method};
use crate::keeper::StoredEgroup;
use crate::message::{Class, Content, Lacking, Sharing};
use rand::RngCore;

pub(super) const MIB: u64 = 1 << 20;

/// A rig whose drive knows much by its hash.
pub(super) fn rig(seed: u64) -> Rig {
    Rig::new(seed, MIB, 24 * MIB)
}

pub(super) fn name(number: u64) -> EgroupId {
    EgroupId(3 << 32 | number)
}

/// An egroup of units with these marks, that shares.
pub(super) fn write(egroup: EgroupId, marks: &[u64]) -> Question {
    write_as(egroup, marks, false, Some(Sharing::default()))
}

fn write_as(egroup: EgroupId, marks: &[u64], replace: bool, sharing: Option<Sharing>) -> Question {
    let content = Content::Units(marks.iter().map(|&mark| unit(mark)).collect());
    Question::WriteEgroup {
        egroup,
        class: Class::Data,
        content,
        blocks: marks.to_vec(),
        replace,
        sharing,
        lacking: Lacking::default(),
    }
}

pub(super) fn marks(range: std::ops::Range<u64>) -> Vec<u64> {
    range.collect()
}

pub(super) fn stored(rig: &Rig, egroup: EgroupId) -> StoredEgroup {
    rig.keeper.egroups().find(|stored| stored.egroup == egroup).expect("it is stored")
}

/// Frames, and blocks of the drive where they lie.
pub(super) fn references(rig: &Rig, egroup: EgroupId) -> Vec<(u32, u32, u64)> {
    let stored = stored(rig, egroup);
    stored.references.iter().map(|run| (run.frame, run.frames, run.place / BLOCK as u64)).collect()
}

/// Flips a bit of a block that is durable.
pub(super) fn rot(rig: &mut Rig, block: u64) {
    rig.drive.durable.get_mut(&(Area::Data, block)).expect("it was written")[100] ^= 4;
}

pub(super) fn is_as_written(rig: &mut Rig, egroup: EgroupId, marks: &[u64]) -> bool {
    let Ok(Answer::Units(units)) = rig.ask(1, 1, read(egroup, &[(0, marks.len() as u32)])) else {
        return false;
    };
    let wanted: Vec<u8> = marks.iter().flat_map(|&mark| unit(mark).bytes().to_vec()).collect();
    units[0].as_ref().is_ok_and(|bytes| *bytes.bytes() == wanted)
}

pub(super) fn delete(rig: &mut Rig, egroup: EgroupId) {
    let deleted = rig.ask(1, 1, Question::DeleteEgroups { egroups: vec![egroup] });
    assert_eq!(deleted, Ok(Answer::Deleted));
}

/// Reads all trailers there are.
pub(super) fn refill(rig: &mut Rig) {
    while rig.keeper.store.refill_at().is_some() {
        rig.now = rig.now.after(2_000);
        rig.run();
    }
}

#[test]
fn a_copy_takes_no_room_and_stays_when_the_first_one_goes() {
    let mut rig = rig(1);
    let image = marks(0..300);
    rig.ask(1, 1, write(name(1), &image)).expect("written");
    assert_eq!(stored(&rig, name(1)).blocks, 300 + 2, "hashes are in the trailer");
    rig.ask(1, 1, write(name(2), &image[40..280])).expect("written");
    let first = stored(&rig, name(1)).first;
    assert_eq!(references(&rig, name(2)), [(0, 240, first + 40)]);
    assert_eq!((stored(&rig, name(2)).blocks, stored(&rig, name(2)).data_blocks), (2, 240));
    assert_eq!(rig.keeper.shared().saved_bytes, 240 * BLOCK as u64);
    for _ in 0..2 {
        assert!(
            is_as_written(&mut rig, name(1), &image) && is_as_written(&mut rig, name(2), &image[40..280])
        );
        rig.crash();
    }
    let (free, ..) = rig.keeper.unit_blocks();
    delete(&mut rig, name(1));
    assert_eq!(rig.keeper.unit_blocks().0, free + 302 - 240, "what nobody refers to is free");
    assert_eq!((rig.keeper.shared().saved_bytes, rig.keeper.shared().held_bytes), (0, 240 * BLOCK as u64));
    for _ in 0..2 {
        assert!(is_as_written(&mut rig, name(2), &image[40..280]));
        rig.crash();
        assert_eq!(rig.keeper.shared().held_bytes, 240 * BLOCK as u64, "that follows from the pages");
    }
    delete(&mut rig, name(2));
    let (_, stored, moving) = rig.keeper.unit_blocks();
    assert_eq!((stored, moving), (0, 0), "with the last reference everything is free");
    assert_eq!(rig.keeper.shared().entries, 0, "and nothing of it is found any more");
}

#[test]
fn what_differs_is_written_and_what_is_not_wished_is_not_shared() {
    let mut rig = rig(2);
    let image = marks(0..100);
    rig.ask(1, 1, write(name(1), &image)).expect("written");
    let first = stored(&rig, name(1)).first;
    let mut changed = image.clone();
    (changed[30], changed[70], changed[74]) = (900, 901, 902);
    rig.ask(2, 1, write(name(1), &changed)).expect("written");
    let all: Vec<_> = rig.keeper.egroups().collect();
    let runs: Vec<_> = all[1].references.iter().map(|run| (run.frame, run.frames, run.place)).collect();
    let place = |block: u64| (first + block) * BLOCK as u64;
    assert_eq!(runs, [(0, 30, place(0)), (31, 39, place(31)), (75, 25, place(75))], "short runs are written");
    assert_eq!(all[1].blocks, 1 + 5 + 1);
    rig.ask(1, 1, write_as(name(2), &image, false, None)).expect("written");
    assert_eq!(references(&rig, name(2)), []);
    let whole = rig.ask(2, 1, read(name(1), &[(0, 100), (29, 3), (69, 8)]));
    let Ok(Answer::Units(units)) = whole else { panic!("{whole:?}") };
    for (units, range) in units.iter().zip([0..100, 29..32, 69..77]) {
        let wanted: Vec<u8> = changed[range].iter().flat_map(|&mark| unit(mark).bytes().to_vec()).collect();
        assert!(units.as_ref().is_ok_and(|bytes| *bytes.bytes() == wanted));
    }
}

#[test]
fn what_is_not_durable_yet_is_not_shared() {
    let mut rig = rig(3);
    let image = marks(0..60);
    // Both at once: neither finds the other.
    let calls = [rig.begin(1, 1, write(name(1), &image)), rig.begin(1, 1, write(name(2), &image))];
    rig.run();
    assert!(calls.iter().all(|call| rig.answers.remove(call) == Some(Ok(Answer::EgroupWritten))));
    assert!(references(&rig, name(1)).is_empty() && references(&rig, name(2)).is_empty());
    rig.ask(1, 1, write(name(3), &image)).expect("written");
    assert_eq!(references(&rig, name(3)).len(), 1);
}

#[test]
fn a_home_that_goes_while_a_copy_is_written_leaves_what_the_copy_refers_to() {
    for seed in 0..60 {
        let mut rig = rig(seed);
        let image = marks(0..60);
        rig.ask(1, 1, write(name(1), &image)).expect("written");
        let copy = rig.begin(1, 1, write(name(2), &image));
        // Sooner or later.
        for _ in 0..seed % 6 {
            rig.step();
        }
        let gone = rig.begin(1, 1, Question::DeleteEgroups { egroups: vec![name(1)] });
        let others: Vec<u64> =
            (10..14).map(|number| rig.begin(1, 1, write(name(number), &[number; 60]))).collect();
        for _ in 0..rig.random.random_range(0..30) {
            rig.step();
        }
        let is_copied = rig.answers.contains_key(&copy);
        if seed % 2 == 0 {
            rig.run();
            assert_eq!(rig.answers.remove(&copy), Some(Ok(Answer::EgroupWritten)));
            assert_eq!(rig.answers.remove(&gone), Some(Ok(Answer::Deleted)));
            assert!(others.iter().all(|call| rig.answers.contains_key(call)));
            assert!(is_as_written(&mut rig, name(2), &image));
        }
        rig.crash();
        if is_copied || rig.keeper.egroups().any(|stored| stored.egroup == name(2)) {
            assert!(is_as_written(&mut rig, name(2), &image), "seed {seed}");
        }
        assert_eq!(rig.keeper.unit_blocks().2, 0, "no block is lost");
    }
}

#[test]
fn after_an_opening_what_was_written_before_is_found_again() {
    let mut rig = rig(4);
    let (image, other) = (marks(0..200), marks(500..560));
    rig.ask(1, 1, write(name(1), &image)).expect("written");
    rig.ask(1, 1, write(name(2), &image)).expect("written");
    rig.ask(1, 1, write(name(3), &other)).expect("written");
    delete(&mut rig, name(1));
    rig.crash();
    refill(&mut rig);
    assert_eq!(rig.keeper.shared().entries, 260);
    rig.ask(1, 1, write(name(4), &image[10..150])).expect("written");
    rig.ask(1, 1, write(name(5), &other)).expect("written");
    assert_eq!(references(&rig, name(4)).len(), 1, "also what only a reference has kept");
    assert_eq!(references(&rig, name(5)).len(), 1);
    assert!(is_as_written(&mut rig, name(4), &image[10..150]) && is_as_written(&mut rig, name(5), &other));
}

#[test]
fn what_is_found_bad_is_not_given_to_others_and_a_repair_has_all_of_its_own() {
    let mut rig = rig(5);
    let image = marks(0..100);
    rig.ask(1, 1, write(name(1), &image)).expect("written");
    rig.ask(1, 1, write(name(2), &image)).expect("written");
    let first = stored(&rig, name(1)).first;
    rot(&mut rig, first + 50);
    assert!(!is_as_written(&mut rig, name(2), &image));
    let damage = Damage::CopyBad { family: FamilyId(1), egroup: name(2) };
    assert!(rig.notices.contains(&Notice::Damage { drive: DriveId(1), damage }));
    rig.ask(1, 1, write(name(3), &image)).expect("written");
    assert_eq!(references(&rig, name(3)), [(0, 50, first), (51, 49, first + 51)]);
    assert!(is_as_written(&mut rig, name(3), &image));
    let repair = write_as(name(2), &image, true, Some(Sharing::default()));
    assert_eq!(rig.ask(1, 1, repair), Ok(Answer::EgroupWritten));
    assert!(references(&rig, name(2)).is_empty() && is_as_written(&mut rig, name(2), &image));
    // The next one finds the good copy.
    rig.ask(1, 1, write(name(4), &image)).expect("written");
    assert!(is_as_written(&mut rig, name(4), &image));
    assert_eq!(references(&rig, name(4)), [(0, 100, stored(&rig, name(2)).first)]);
    // A copy that was not here at all need not have anything of its own.
    rig.ask(1, 1, write_as(name(5), &image, true, Some(Sharing::default()))).expect("written");
    assert_eq!(references(&rig, name(5)).len(), 1);
    for number in 1..=5 {
        delete(&mut rig, name(number));
    }
    assert_eq!(rig.keeper.unit_blocks().1, 0);
}

#[test]
fn what_moves_does_not_refer_to_where_it_comes_from_unless_others_do() {
    let mut rig = rig(6);
    let image = marks(0..100);
    rig.ask(1, 1, write(name(1), &image)).expect("written");
    rig.ask(1, 1, write(name(2), &image[..40])).expect("written");
    let first = stored(&rig, name(1)).first;
    let moved = Sharing { moved_from: vec![name(1)] };
    rig.ask(1, 1, write_as(name(3), &image, false, Some(moved))).expect("written");
    assert_eq!(references(&rig, name(3)), [(0, 40, first)], "the rest would stay where it is");
    delete(&mut rig, name(1));
    assert!(is_as_written(&mut rig, name(3), &image) && is_as_written(&mut rig, name(2), &image[..40]));
    assert_eq!(rig.keeper.shared().held_bytes, 40 * BLOCK as u64);
}

#[test]
fn a_cut_at_any_point_leaves_copies_whole_and_no_block_lost() {
    for steps in 0..40 {
        for seed in 0..4 {
            let mut rig = rig(seed);
            let image = marks(0..40);
            rig.ask(1, 1, write(name(1), &image)).expect("written");
            rig.ask(1, 1, write(name(2), &image)).expect("written");
            rig.begin(1, 1, Question::DeleteEgroups { egroups: vec![name(1)] });
            rig.begin(1, 1, write(name(3), &image));
            rig.begin(1, 1, write_as(name(2), &image, true, Some(Sharing::default())));
            rig.begin(1, 1, write(name(4), &marks(1000..1050)));
            for _ in 0..steps {
                rig.step();
            }
            rig.crash();
            for egroup in [name(2), name(3)] {
                if egroup == name(2) || rig.keeper.egroups().any(|stored| stored.egroup == egroup) {
                    assert!(is_as_written(&mut rig, egroup, &image), "step {steps} seed {seed}: {egroup}");
                }
            }
            let (_, stored, moving) = rig.keeper.unit_blocks();
            assert_eq!(moving, 0, "{stored} blocks stored");
        }
    }
}

#[test]
fn packed_egroups_share_frames_at_any_byte() {
    for (seed, frame_units) in [(1, 4), (2, 8), (3, 1)] {
        let mut rig = rig(seed);
        let mut random = SmallRng::seed_from_u64(seed);
        let mut all = Units::default();
        for at in 0..300 {
            let mut pages = Pages::zeroed(BLOCK);
            let noise = if at / 16 % 4 == 1 { BLOCK } else { 1500 };
            random.fill_bytes(&mut pages.bytes_mut()[..noise]);
            all.push(at, pages.freeze());
        }
        let packed = |range: std::ops::Range<usize>| {
            let mut units = Units::default();
            for at in range {
                units.push(all.blocks[at], all.data[at].clone());
            }
            let lz4 = Compression { method: Method::Lz4, frame_units, cold: None, share: true };
            let mut packer = Packer::new(lz4, 0).expect("it packs");
            while !packer.advance(&units) {}
            (packer.finish(&units, &mut Counters::default()), units)
        };
        let ask = |rig: &mut Rig, number: u64, range: std::ops::Range<usize>| {
            let (content, units) = packed(range);
            assert!(matches!(content, Content::Packed { .. }));
            let question = Question::WriteEgroup {
                egroup: name(number),
                class: Class::Data,
                content,
                blocks: units.blocks,
                replace: false,
                sharing: Some(Sharing::default()),
                lacking: Lacking::default(),
            };
            rig.ask(1, 1, question).expect("written");
        };
        let wanted = |range: std::ops::Range<usize>| -> Vec<u8> {
            all.data[range].iter().flat_map(|unit| unit.bytes()).copied().collect()
        };
        ask(&mut rig, 1, 0..250);
        // It begins in the middle of a frame, and ends with what is new.
        ask(&mut rig, 2, 37..300);
        let copy = stored(&rig, name(2));
        assert_eq!(copy.references.len(), 1);
        let own = copy.blocks - 1 - u64::from(frame_units == 1);
        assert!(own < u64::from(copy.data_blocks) / 2, "{own} of {} blocks are its own", copy.data_blocks);
        for _ in 0..2 {
            for (number, all) in [(1, 0..250), (2, 37..300)] {
                for _ in 0..20 {
                    let first = rig.random.random_range(0..all.len());
                    let count = rig.random.random_range(1..=all.len() - first);
                    let answer = rig.ask(1, 1, read(name(number), &[(first as u32, count as u32)]));
                    let Ok(Answer::Units(units)) = answer else { panic!("{answer:?}") };
                    let from = all.start + first;
                    assert!(
                        units[0].as_ref().is_ok_and(|bytes| *bytes.bytes() == wanted(from..from + count))
                    );
                }
            }
            rig.crash();
        }
        delete(&mut rig, name(1));
        let Ok(Answer::Units(units)) = rig.ask(1, 1, read(name(2), &[(0, 263)])) else {
            panic!("it is there")
        };
        assert!(units[0].as_ref().is_ok_and(|bytes| *bytes.bytes() == wanted(37..300)));
        refill(&mut rig);
        // What is not packed shares single units with what is, where those lie at whole blocks.
        ask(&mut rig, 3, 37..250);
        assert!(!stored(&rig, name(3)).references.is_empty(), "what is held is found");
        delete(&mut rig, name(2));
        let Ok(Answer::Units(units)) = rig.ask(1, 1, read(name(3), &[(0, 213)])) else {
            panic!("it is there")
        };
        assert!(units[0].as_ref().is_ok_and(|bytes| *bytes.bytes() == wanted(37..250)));
        delete(&mut rig, name(3));
        let (_, stored, moving) = rig.keeper.unit_blocks();
        assert_eq!((stored, moving), (0, 0));
    }
}

#[test]
fn a_page_that_refers_outside_the_drive_is_no_page() {
    let mut rig = rig(7);
    let image = marks(0..60);
    rig.ask(1, 1, write(name(1), &image)).expect("written");
    rig.ask(1, 1, write(name(2), &image)).expect("written");
    let table = 2..2 + crate::formats::layout::Layout::of(24 * MIB).entries as u64;
    let found = table.clone().find_map(|block| {
        let page = TablePage::decode(rig.drive.durable.get(&(Area::Data, block))?)?;
        (!page.references.is_empty()).then_some((block, page))
    });
    let (block, mut page) = found.expect("one page has references");
    let end = 24 * MIB / BLOCK as u64;
    let outside = crate::formats::references::References::of([(0, 60, (end - 59) * BLOCK as u64)], None, 60);
    page.references = outside.expect("on another drive it could be");
    rig.drive.durable.insert((Area::Data, block), page.encode().bytes().into());
    rig.reopen();
    assert_eq!(rig.keeper.egroups().map(|stored| stored.egroup).collect::<Vec<_>>(), [name(1)]);
}
