//! What was not sound when a drive was opened is looked at again, and where nobody can look it is known that nobody knows.

use super::*;
use crate::identity::EgroupId;
use crate::interface::DriveTrouble;
use crate::message::Class;

/// Frames of a record of a block each, so that frame n has its header at block 2n - 2, and its payload behind it.
fn three_frames() -> Rig {
    let mut rig = Rig::small(3);
    for seq in 1..=3 {
        rig.append_ok(1, 1, 1, vec![data(seq, 1, 1)]);
    }
    rig
}

fn records(rig: &mut Rig) -> Vec<u64> {
    rig.read_log(1, 9).iter().map(|record| record.seq.0).collect()
}

#[test]
fn a_bit_that_changed_on_its_way_from_the_drive_is_no_damage() {
    for block in 0..6 {
        let mut rig = three_frames();
        rig.drive.flips.insert((Area::Log, block));
        rig.reopen();
        assert_eq!(rig.damages(), 0, "block {block}");
        assert_eq!((rig.fence(1, 2).high, rig.fence(1, 2).incomplete), (Seq(3), false), "block {block}");
        assert_eq!(records(&mut rig), [1, 2, 3], "block {block}");
    }
}

#[test]
fn a_drive_that_is_away_for_a_moment_has_lost_nothing() {
    const EGROUP: EgroupId = EgroupId(1 << 32 | 5);
    for block in 0..6 {
        let mut rig = three_frames();
        rig.ask(1, 1, egroup_stories::write(EGROUP, 7, 3, Class::Data, false)).expect("written");
        rig.drive.unreadable.insert((Area::Log, block));
        let page = egroup_stories::page_of(&rig);
        rig.drive.unreadable.insert(page);
        rig.restart();
        rig.run();
        rig.wake();
        assert_eq!(rig.keeper.state(), State::Opening, "it is asked again");
        rig.drive.unreadable.clear();
        rig.open();
        assert_eq!(rig.keeper.state(), State::Ready);
        assert_eq!(rig.damages(), 0, "block {block}: {:?}", rig.notices);
        assert!(!rig.fence(1, 2).incomplete);
        assert_eq!(records(&mut rig), [1, 2, 3], "block {block}");
        assert_eq!(rig.keeper.egroups().map(|stored| stored.egroup).collect::<Vec<_>>(), [EGROUP]);
    }
}

#[test]
fn a_drive_that_gives_nothing_for_a_moment_is_opened_as_soon_as_it_does() {
    const EGROUP: EgroupId = EgroupId(1 << 32 | 5);
    let layout = three_frames().keeper.store.layout;
    let superblocks = 0..crate::formats::superblock::COPIES as u64;
    for part in [superblocks, layout.table..layout.units, 0..layout.units] {
        let mut rig = three_frames();
        rig.ask(1, 1, egroup_stories::write(EGROUP, 7, 3, Class::Data, false)).expect("written");
        rig.drive.unreadable.extend(part.map(|block| (Area::Data, block)));
        rig.restart();
        rig.run();
        for _ in 0..2 {
            rig.wake();
            assert_eq!(rig.keeper.state(), State::Opening, "it is asked again");
        }
        rig.drive.unreadable.clear();
        rig.open();
        assert_eq!((rig.keeper.state(), rig.damages()), (State::Ready, 0));
        assert_eq!(rig.keeper.egroups().map(|stored| stored.egroup).collect::<Vec<_>>(), [EGROUP]);
        assert_eq!(records(&mut rig), [1, 2, 3]);
    }
}

#[test]
fn a_drive_that_does_not_give_its_table_is_not_opened_and_nothing_of_it_is_erased() {
    let mut rig = Rig::new(3, 1 << 20, 1 << 30);
    rig.append_ok(1, 1, 1, vec![data(1, 1, 1)]);
    let blocks = rig.keeper.store.layout.table..rig.keeper.store.layout.units;
    rig.drive.unreadable.extend(blocks.map(|block| (Area::Data, block)));
    let before = rig.drive.durable.clone();
    rig.restart();
    rig.run();
    while rig.keeper.state() == State::Opening {
        rig.wake();
    }
    let told = Notice::DriveFailed { drive: DriveId(1), reason: DriveTrouble::TableDamaged };
    assert!(rig.notices.contains(&told), "{:?}", rig.notices);
    assert!(rig.drive.durable == before);
}

#[test]
fn an_end_that_cannot_be_read_is_not_taken_for_the_end() {
    // The header or the payload of the last frame.
    for block in [4, 5] {
        let mut rig = three_frames();
        rig.append_ok(2, 1, 1, vec![data(1, 1, 1)]);
        rig.append_ok(1, 1, 1, vec![data(4, 1, 1)]);
        rig.drive.unreadable.insert((Area::Log, 4 + block));
        rig.reopen();
        assert!(rig.damages() > 0);
        for lives in 0..3 {
            assert_eq!((rig.fence(1, 2).high, rig.fence(1, 2).incomplete), (Seq(3), true), "life {lives}");
            assert!(rig.fence(2, 2).incomplete, "life {lives}: it may have been anybody's");
            // What is written since lies where it was, and nothing is missing any more.
            rig.drive.unreadable.clear();
            rig.reopen();
        }
        // Whoever knows where the log ends goes on behind that.
        rig.append_ok(1, 3, 4, vec![data(4, 1, 1)]);
        assert_eq!((rig.fence(1, 4).high, rig.fence(1, 4).incomplete), (Seq(4), false));
        rig.reopen();
        assert_eq!((rig.fence(1, 5).high, rig.fence(1, 5).incomplete), (Seq(4), false));
        assert!(rig.fence(2, 5).incomplete);
    }
}

#[test]
fn where_nothing_in_flight_can_have_been_no_end_is_unknown() {
    // The ring is nearly full, and its oldest frames, which are needed, lie close behind its end.
    let mut rig = Rig::small(3);
    let ring = rig.geometry.log / BLOCK as u64;
    let mut seq = 0;
    while rig.append(1, 1, 1, vec![data(seq + 1, 1, 1)]).is_ok() {
        seq += 1;
    }
    assert!(seq * 2 > ring / 2, "{seq} records in a ring of {ring} blocks");
    rig.drive.unreadable.insert((Area::Log, 1));
    rig.reopen();
    let held = rig.fence(1, 2);
    assert_eq!((held.low, held.high, held.incomplete), (Seq(1), Seq(seq), false));
}

#[test]
fn the_very_first_frame_is_missed_if_it_cannot_be_read() {
    let mut rig = Rig::small(3);
    rig.append_ok(1, 1, 1, vec![data(1, 1, 1)]);
    rig.drive.unreadable.insert((Area::Log, 0));
    rig.reopen();
    assert!(rig.damages() > 0 && rig.fence(1, 2).incomplete);
}

#[test]
fn what_was_written_before_a_rest_is_missed_if_it_is_damaged() {
    for rests in [false, true] {
        for block in [2, 3, 4, 5] {
            let mut rig = three_frames();
            if rests {
                rig.keeper.rest(rig.now, &mut rig.effects);
                rig.run();
            }
            rig.flip(block, 200);
            rig.reopen();
            let held = rig.fence(1, 2);
            // Otherwise a frame that was acknowledged looks like one that never settled.
            let is_last = block >= 4;
            let is_missed = rig.damages() == 1 && (held.high == Seq(3) || held.incomplete);
            assert_eq!(is_missed, rests || !is_last, "block {block}");
        }
    }
}

#[test]
fn a_record_that_could_not_be_read_when_the_drive_was_opened_is_found_again() {
    let mut rig = three_frames();
    rig.drive.unreadable.insert((Area::Log, 1));
    rig.reopen();
    assert_eq!(rig.damages(), 1);
    assert_eq!(rig.fence(1, 2).high, Seq(3));
    assert_eq!(records(&mut rig), [2, 3]);
    rig.drive.unreadable.clear();
    assert_eq!(records(&mut rig), [1, 2, 3]);
    assert_eq!(rig.fence(1, 9).low, Seq(1));
    rig.reopen();
    assert_eq!(rig.damages(), 0);
    assert_eq!(records(&mut rig), [1, 2, 3]);
}

#[test]
fn a_drive_of_another_life_is_left_as_it_is() {
    let mut rig = three_frames();
    let own = rig.keeper.ring.incarnation;
    rig.incarnation = Some(own);
    rig.reopen();
    rig.incarnation = Some(own + 1);
    // Even if one of its superblocks cannot be read.
    rig.drive.unreadable.insert((Area::Data, 0));
    let before = rig.drive.durable.clone();
    rig.restart();
    rig.run();
    assert_eq!(rig.keeper.state(), State::Failed);
    let told = Notice::DriveFailed { drive: DriveId(1), reason: DriveTrouble::OtherLife };
    assert!(rig.notices.contains(&told), "{:?}", rig.notices);
    assert!(rig.drive.durable == before && rig.drive.submitted.is_empty());
}
