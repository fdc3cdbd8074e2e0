//! What was not sound when a drive was opened is looked at again, and where nobody can look it is known that nobody knows.

use super::*;
use crate::formats::frame::RECORDS_IN_ONE_BLOCK;
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
            rig.drive.durable.get_mut(&(Area::Log, block)).expect("written")[200] ^= 1;
            rig.reopen();
            let held = rig.fence(1, 2);
            // Otherwise a frame that was acknowledged looks like one that never settled.
            let is_last = block >= 4;
            let is_missed = rig.damages() == 1 && (held.high == Seq(3) || held.incomplete);
            assert_eq!(is_missed, rests || !is_last, "block {block}");
        }
    }
}

/// Family 1 has three records, the last of which is behind one of family 2, in the last frame of the ring. A bit of this block of it
/// changes, and the drive is opened.
fn torn(block: u64, byte: usize) -> Rig {
    let mut rig = Rig::small(3);
    for (family, seq) in [(1, 1), (1, 2), (2, 1), (1, 3)] {
        rig.append_ok(family, 1, 1, vec![data(seq, 1, 1)]);
    }
    rig.drive.durable.get_mut(&(Area::Log, 6 + block)).expect("written")[byte] ^= 1;
    rig.reopen();
    assert_eq!(rig.damages(), 0, "most likely it was never finished");
    rig
}

fn fence(rig: &mut Rig, family: u32, epoch: u32, since: u32) -> crate::message::Held {
    rig.fence_from(family, epoch, 3, since)
}

/// The header with any of its marks, or its checksum, and the payload.
const TORN_AT: [(u64, usize); 6] = [(0, 0), (0, 4), (0, 16), (0, 32), (0, 200), (1, 200)];

#[test]
fn a_torn_end_is_the_end_for_who_knows_better_and_doubtful_for_others() {
    for (block, byte) in TORN_AT {
        let mut rig = torn(block, byte);
        for lives in 0..4 {
            let held = fence(&mut rig, 1, 2 + lives, 1);
            let at = format!("byte {byte} of block {block}, life {lives}");
            assert_eq!((held.high, held.incomplete, held.torn), (Seq(2), false, true), "{at}");
            // Without its header nobody can tell whose it was.
            assert_eq!(fence(&mut rig, 2, 5 + lives, 4).torn, block == 0 || lives == 3, "{at}");
            assert_eq!(fence(&mut rig, 3, 2 + lives, 1).torn, block == 0, "{at}");
            if lives == 2 {
                // Another end of the same kind: nothing of what was known is forgotten.
                rig.append_ok(2, 7, 2, vec![data(2, 1, 1)]);
                let last = rig.frames().last_key_value().expect("just written").1.position;
                rig.drive.durable.get_mut(&(Area::Log, last + 1)).expect("written")[100] ^= 1;
            }
            rig.reopen();
        }
        // Its owner goes on behind what it found elsewhere.
        rig.append_ok(1, 9, 3, vec![data(3, 1, 1)]);
        for lives in 0..2 {
            let held = fence(&mut rig, 1, 10 + lives, 9);
            assert_eq!((held.high, held.torn), (Seq(3), false), "byte {byte} of block {block}");
            rig.reopen();
        }
    }
}

#[test]
fn a_log_that_has_begun_anew_since_is_not_doubted() {
    for (block, byte) in TORN_AT {
        for lives in [0, 1] {
            let mut rig = torn(block, byte);
            assert!(fence(&mut rig, 1, 2, 1).torn && fence(&mut rig, 1, 3, 1).torn);
            (0..lives).for_each(|_| rig.reopen());
            // What the owner of epoch 3 began is not what was torn, if that has written nothing here.
            assert!(!fence(&mut rig, 1, 4, 3).torn, "byte {byte} of block {block}");
            assert!(!fence(&mut rig, 1, 5, 4).torn, "byte {byte} of block {block}");
        }
    }
}

#[test]
fn who_was_not_waited_for_is_not_doubted_because_of_what_may_have_been_anybodys() {
    for (block, byte) in TORN_AT {
        let mut rig = torn(block, byte);
        assert!(fence(&mut rig, 1, 2, 1).torn);
        // All who had no owner have one, or wait for one.
        rig.now = rig.now.after(700_000_000);
        assert!(fence(&mut rig, 1, 3, 1).torn, "byte {byte} of block {block}: it was asked for before");
        assert!(!fence(&mut rig, 2, 3, 1).torn && !fence(&mut rig, 3, 1, 0).torn);
    }
}

/// So many families have a record in the last frame, which is torn, and the drive dies again and again while it is opened.
#[test]
fn of_many_none_is_forgotten() {
    let mut rig = Rig::small(3);
    rig.append_ok(1, 1, 1, vec![data(1, 1, 1)]);
    for family in 2..100 {
        let zero = Record { seq: Seq(1), body: Body::Zero { block: Block(1), count: 9 } };
        let record = if family == 90 { data(1, 1, 1) } else { zero };
        rig.begin(family, 1, Question::Append { first: Seq(1), trim: Seq(0), records: vec![record] });
    }
    rig.run();
    let last = rig.frames().into_iter().next_back().expect("just written").1;
    assert!(last.records.len() > RECORDS_IN_ONE_BLOCK, "{} records", last.records.len());
    let payload = last.position + last.header_blocks();
    rig.drive.durable.get_mut(&(Area::Log, payload)).expect("written")[5] ^= 1;
    for steps in 0..40 {
        rig.restart();
        (0..steps).for_each(|_| {
            rig.step();
        });
    }
    rig.reopen();
    let had: Vec<u32> = last.records.iter().map(|record| record.family.0).collect();
    let told: Vec<u32> = had.iter().copied().filter(|&family| fence(&mut rig, family, 2, 1).torn).collect();
    assert_eq!(told, had);
    assert!(!fence(&mut rig, 200, 2, 1).torn);
}

#[test]
fn what_was_torn_once_does_not_keep_the_ring() {
    for (block, byte) in TORN_AT {
        let mut rig = torn(block, byte);
        rig.ask(1, 2, Question::Trim { up_to: Seq(3) }).expect("trimmed");
        // A crowd comes and goes.
        for seq in 1..400 {
            rig.append_ok(2, 2, 1, vec![data(seq, 1, 1)]);
            rig.ask(2, 2, Question::Trim { up_to: Seq(seq) }).expect("trimmed");
            rig.now = rig.now.after(100_000);
        }
        rig.reopen();
        assert!(!fence(&mut rig, 3, 1, 0).torn, "byte {byte} of block {block}: its frame is free");
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
