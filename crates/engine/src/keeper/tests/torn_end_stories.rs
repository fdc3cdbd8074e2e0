//! What a ring's end may have lost, and who hears of that (decisions 0058 to 0060).

use super::*;
use crate::formats::frame::{ANYBODY, RECORDS_IN_ONE_BLOCK};

/// Family 1 has three records, the last of which is behind one of family 2, in the last frame of the ring. A bit of this block of it
/// changes, and the drive is opened.
fn torn(block: u64, byte: usize) -> Rig {
    let mut rig = Rig::small(3);
    for (family, seq) in [(1, 1), (1, 2), (2, 1), (1, 3)] {
        rig.append_ok(family, 1, 1, vec![data(seq, 1, 1)]);
    }
    rig.flip(6 + block, byte);
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
                let last = last_frame(&mut rig).position;
                rig.flip(last + 1, 100);
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
    let last = last_frame(&mut rig);
    assert!(last.records.len() > RECORDS_IN_ONE_BLOCK, "{} records", last.records.len());
    let payload = last.position + last.header_blocks();
    rig.flip(payload, 5);
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
        rig.fence(1, 2);
        rig.ask(1, 2, Question::Trim { up_to: Seq(3) }).expect("trimmed");
        // A crowd comes and goes, in less than ten minutes, and in more.
        for (first, pause, is_told) in [(1, 100_000, block == 0), (400, 2_000_000, false)] {
            for seq in first..first + 400 {
                rig.append_ok(2, 2, 1, vec![data(seq, 1, 1)]);
                rig.ask(2, 2, Question::Trim { up_to: Seq(seq) }).expect("trimmed");
                rig.now = rig.now.after(pause);
            }
            rig.reopen();
            let held = fence(&mut rig, first as u32 + 3, 1, 0);
            assert_eq!(held.torn, is_told, "byte {byte} of block {block}, from {first} on");
        }
    }
}

/// The drive's last frame.
fn last_frame(rig: &mut Rig) -> FrameHeader {
    rig.frames().into_iter().next_back().expect("something was written").1
}

/// So many times the drive is opened while what was damaged can be read again: what was not known once stays so.
const LIVES: u32 = 3;

/// Whether a vDisk is doubted of which the only record lay in the last frame, of which this block cannot be read for a moment.
pub(super) fn an_only_record_is_missed(block: u64) -> bool {
    let mut rig = Rig::small(3);
    for (family, seq) in [(1, 1), (1, 2), (2, 1)] {
        rig.append_ok(family, 1, 1, vec![data(seq, 1, 1)]);
    }
    let last = last_frame(&mut rig).position;
    rig.drive.unreadable.insert((Area::Log, last + block));
    (0..LIVES).all(|life| {
        rig.reopen();
        let held = rig.fence_from(2, 2 + life, 1, 1);
        rig.drive.unreadable.clear();
        held.high == Seq(0) && (held.incomplete || held.torn)
    })
}

#[test]
fn an_end_that_cannot_be_read_was_perhaps_the_only_record_of_somebody() {
    assert!(an_only_record_is_missed(0) && an_only_record_is_missed(1));
}

#[test]
fn what_a_missing_frame_had_alone_is_missed_when_its_place_is_another_ones() {
    let mut rig = Rig::small(3);
    for (family, seq) in [(1, 1), (2, 1), (1, 2), (1, 3)] {
        rig.append_ok(family, 1, 1, vec![data(seq, 1, 1)]);
    }
    // The header of the second frame.
    rig.flip(2, 200);
    rig.reopen();
    let held = rig.fence_from(2, 2, 1, 1);
    assert!(held.incomplete, "{held:?}");
    rig.fence(1, 2);
    // Nobody needs what lies beside it.
    for seq in 4..200 {
        rig.append_ok(1, 2, 4, vec![data(seq, 1, 1)]);
        rig.ask(1, 2, Question::Trim { up_to: Seq(seq) }).expect("trimmed");
    }
    for life in 0..LIVES {
        rig.reopen();
        let held = rig.fence_from(2, 3 + life, 1, 1);
        assert!(held.incomplete, "life {life}: it had settled: {held:?}");
        assert!(!fence(&mut rig, 1, 3 + life, 2).torn, "it has later ones, so a gap would be noticed");
    }
}

#[test]
fn who_was_doubted_once_is_doubted_again_for_another_end() {
    for (block, byte) in TORN_AT {
        let mut rig = torn(0, 4);
        // It was taken over, has written since, and that is damaged too.
        assert!(fence(&mut rig, 1, 2, 1).torn);
        rig.append_ok(1, 2, 3, vec![data(3, 1, 1)]);
        assert!(!fence(&mut rig, 1, 3, 2).torn);
        rig.append_ok(1, 3, 4, vec![data(4, 1, 1)]);
        let last = last_frame(&mut rig).position;
        rig.flip(last + block, byte);
        for life in 0..LIVES {
            rig.reopen();
            let held = fence(&mut rig, 1, 4 + life, 3);
            assert!(held.torn, "byte {byte} of block {block}, life {life}: {held:?}");
        }
    }
}

/// Whether a vDisk is doubted again that was doubted without need, if its only record lay in a frame of which a bit has changed since.
pub(super) fn is_doubted_for_another_end(block: u64, byte: usize) -> bool {
    let mut rig = torn(0, 4);
    // It had nothing there. Its owner goes on elsewhere, the next one here as well.
    assert!(fence(&mut rig, 3, 2, 1).torn);
    rig.append_ok(3, 4, 1, vec![data(1, 1, 1)]);
    let last = last_frame(&mut rig).position;
    rig.flip(last + block, byte);
    (0..LIVES).all(|life| {
        rig.reopen();
        let held = rig.fence_from(3, 5 + life, 1, 4);
        held.high == Seq(0) && held.torn
    })
}

#[test]
fn who_was_doubted_without_need_is_doubted_again_for_another_end() {
    for (block, byte) in TORN_AT {
        assert!(is_doubted_for_another_end(block, byte), "byte {byte} of block {block}");
    }
}

/// Two frames are on their way at once, and come back. Then all of the first one's header is gone.
#[test]
fn a_frame_of_which_nothing_is_left_is_missed_if_a_later_one_is_there() {
    let mut rig = Rig::small(3);
    rig.append_ok(1, 1, 1, vec![data(1, 1, 1)]);
    for family in [2, 3] {
        let records = vec![data(1, 1, 1)];
        rig.begin(family, 1, Question::Append { first: Seq(1), trim: Seq(0), records });
    }
    rig.run();
    let frames = rig.frames();
    let (first, last) = (&frames[&2], &frames[&3]);
    assert_eq!((first.records[0].family.0, last.records[0].family.0, last.settled), (2, 3, 1));
    rig.drive.durable.insert((Area::Log, first.position), vec![7; BLOCK].into());
    for life in 0..LIVES {
        rig.reopen();
        for family in [2, 3] {
            let held = rig.fence_from(family, 2 + life, 1, 1);
            assert!(held.torn, "life {life}, family {family}: {held:?}");
        }
    }
}

/// A block in the middle cannot be read, and the last frame is torn. At the next opening that block is there again, but not the frame.
#[test]
fn what_is_torn_is_told_of_those_too_of_whom_more_is_missing() {
    let mut rig = Rig::small(3);
    for seq in 1..=4 {
        rig.append_ok(1, 1, 1, vec![data(seq, 1, 1)]);
    }
    let last = last_frame(&mut rig);
    rig.drive.unreadable.insert((Area::Log, 2));
    rig.flip(last.position + 1, 9);
    rig.reopen();
    for life in 0..LIVES {
        let held = fence(&mut rig, 1, 2 + life, 1);
        assert!(held.incomplete || held.torn, "life {life}: {held:?}");
        rig.drive.unreadable.clear();
        rig.reopen();
    }
}

/// As [`of_many_none_is_forgotten`], with an end that cannot be read: more is to be told than goes into one frame, and the drive dies
/// after any of its operations.
#[test]
fn of_many_none_is_forgotten_when_the_end_cannot_be_read() {
    let mut written_over = 0;
    for steps in 0..9 {
        let mut rig = Rig::small(3);
        for family in 1..1500 {
            let record = Record { seq: Seq(1), body: Body::Zero { block: Block(1), count: 9 } };
            rig.begin(family, 1, Question::Append { first: Seq(1), trim: Seq(0), records: vec![record] });
        }
        rig.run();
        rig.append_ok(2000, 1, 1, vec![data(1, 1, 1)]);
        let last = last_frame(&mut rig).position;
        rig.drive.unreadable.insert((Area::Log, last));
        rig.restart();
        // Until the first frame is on its way.
        while !rig
            .drive
            .submitted
            .iter()
            .any(|submitted| matches!(submitted.operation.work, DriveWork::Write { .. }))
        {
            if !rig.step() {
                rig.wake_only();
            }
        }
        for _ in 0..steps {
            if rig.keeper.state() == State::Opening && !rig.step() {
                rig.wake_only();
            }
        }
        rig.drive.unreadable.clear();
        rig.reopen();
        let held = rig.fence_from(2000, 2, 1, 1);
        if held.high == Seq(1) {
            continue;
        }
        written_over += 1;
        assert!(held.torn || held.incomplete, "after {steps} steps: {held:?}");
        for family in [1, 62, 700, 1100, 1499] {
            let held = rig.fence_from(family, 2, 1, 1);
            assert!(held.torn || held.incomplete, "family {family} after {steps} steps: {held:?}");
        }
    }
    assert!(written_over > 2, "{written_over} times");
}

#[test]
fn an_owner_that_has_begun_anew_elsewhere_ends_a_doubt() {
    for lives in [0, 1] {
        let mut rig = torn(1, 200);
        // It is the owner under whom that was written: only the record itself would say more.
        rig.ask(1, 1, Question::Trim { up_to: Seq(1) }).expect("trimmed");
        (0..lives).for_each(|_| rig.reopen());
        assert!(fence(&mut rig, 1, 2, 1).torn);
        // The next one has begun a part of the log, though not here.
        rig.ask(1, 2, Question::Trim { up_to: Seq(2) }).expect("trimmed");
        assert!(rig.keeper.ring.holdings[&FamilyId(1)].unsure.is_none(), "nothing is to be kept for it");
        (0..lives).for_each(|_| rig.reopen());
        assert!(!fence(&mut rig, 1, 3, 2).torn);
    }
}

/// The frame of a vDisk's only record is missing. Its owner lives, knows nothing of that, and trims what it has trimmed before.
#[test]
fn a_trim_of_who_was_not_told_says_nothing() {
    let mut rig = Rig::small(3);
    for seq in [1, 2] {
        rig.append_ok(1, 1, 1, vec![data(seq, 1, 1)]);
    }
    rig.ask(1, 1, Question::Trim { up_to: Seq(1) }).expect("trimmed");
    for seq in [1, 2] {
        rig.append_ok(2, 1, 1, vec![data(seq, 1, 1)]);
    }
    // The header of the second frame.
    rig.flip(2, 200);
    rig.reopen();
    rig.ask(1, 1, Question::Trim { up_to: Seq(1) }).expect("trimmed");
    assert!(rig.keeper.ring.has_floor_for(FamilyId(1)));
    // The ring goes round for more than ten minutes.
    for seq in 3..403 {
        rig.append_ok(2, 1, 1, vec![data(seq, 1, 1)]);
        rig.ask(2, 1, Question::Trim { up_to: Seq(seq) }).expect("trimmed");
        rig.ask(1, 1, Question::Trim { up_to: Seq(1) }).expect("trimmed");
        rig.now = rig.now.after(2_000_000);
        rig.wake();
    }
    for life in 0..LIVES {
        rig.reopen();
        let held = rig.fence_from(1, 2 + life, 1, 1);
        assert!(held.incomplete && held.high == Seq(0), "life {life}: {held:?}");
    }
}

/// The second owner's fence and its only record are missing, and that it has trimmed is known. It lives, has heard nothing of that, and trims
/// again.
#[test]
fn what_may_be_missing_is_no_older_than_what_was_trimmed() {
    let mut rig = Rig::small(3);
    for seq in [1, 2] {
        rig.append_ok(1, 1, 1, vec![data(seq, 1, 1)]);
    }
    let begin = rig.frames().len();
    rig.fence_from(1, 2, 3, 1);
    rig.append_ok(1, 2, 3, vec![data(3, 1, 1)]);
    let lost: Vec<u64> = rig.frames().values().skip(begin).map(|frame| frame.position).collect();
    rig.ask(1, 2, Question::Trim { up_to: Seq(1) }).expect("trimmed");
    for seq in [1, 2] {
        rig.append_ok(2, 1, 1, vec![data(seq, 1, 1)]);
    }
    assert_eq!(lost.len(), 2);
    lost.into_iter().for_each(|position| rig.flip(position, 200));
    rig.reopen();
    assert!(rig.keeper.ring.has_floor_for(FamilyId(1)));
    for seq in 3..403 {
        rig.append_ok(2, 1, 1, vec![data(seq, 1, 1)]);
        rig.ask(2, 1, Question::Trim { up_to: Seq(seq) }).expect("trimmed");
        rig.now = rig.now.after(2_000_000);
        rig.wake();
    }
    rig.ask(1, 2, Question::Trim { up_to: Seq(2) }).expect("trimmed");
    rig.append_ok(2, 1, 1, vec![data(403, 1, 1)]);
    for life in 0..LIVES {
        rig.reopen();
        let held = rig.fence_from(1, 3 + life, 3, 2);
        assert!(held.incomplete, "life {life}: {held:?}");
    }
}

/// The second owner had written one record, which is damaged; nothing else here tells of it. The first one, which was cut off meanwhile, tries to
/// write what it had on its way.
#[test]
fn who_comes_late_ends_no_doubt_of_what_is_newer() {
    for lives in [1, 2] {
        let mut rig = Rig::small(3);
        for seq in [1, 2] {
            rig.append_ok(1, 1, 1, vec![data(seq, 1, 1)]);
        }
        rig.append_ok(1, 2, 3, vec![data(3, 1, 1)]);
        let last = last_frame(&mut rig).position;
        rig.flip(last + 1, 100);
        (0..lives).for_each(|_| rig.reopen());
        assert_eq!(rig.append(1, 1, 1, vec![data(3, 1, 1)]), Err(Refusal::Fenced(Epoch(2))), "{lives} lives");
        let held = rig.fence_from(1, 3, 3, 2);
        assert_eq!((held.high, held.torn), (Seq(2), true), "{lives} lives");
    }
}

/// The same, and of the damaged record not even the header is left.
#[test]
fn what_is_taken_away_does_not_count_as_what_came_later() {
    let mut rig = Rig::small(3);
    for seq in [1, 2] {
        rig.append_ok(1, 1, 1, vec![data(seq, 1, 1)]);
    }
    rig.append_ok(1, 2, 3, vec![data(3, 1, 1)]);
    let last = last_frame(&mut rig).position;
    rig.flip(last, 200);
    rig.reopen();
    rig.append_ok(1, 1, 1, vec![data(3, 1, 1)]);
    let held = rig.fence_from(1, 3, 3, 2);
    assert_eq!((held.high, held.torn), (Seq(2), true));
}

#[test]
fn what_one_was_told_of_is_not_told_anew_when_it_has_begun() {
    let mut rig = torn(0, 200);
    assert!(fence(&mut rig, 1, 2, 1).torn && fence(&mut rig, 1, 3, 1).torn);
    rig.ask(1, 3, Question::Trim { up_to: Seq(0) }).expect("nothing is trimmed");
    for lives in 0..2 {
        assert!(!fence(&mut rig, 1, 4 + lives, 3).torn, "life {lives}");
        rig.reopen();
    }
}

#[test]
fn what_had_settled_is_not_forgotten_for_what_was_never_finished() {
    let mut rig = Rig::small(3);
    for (family, seq) in [(1, 1), (2, 1), (1, 2), (1, 3)] {
        rig.append_ok(family, 1, 1, vec![data(seq, 1, 1)]);
    }
    rig.flip(2, 200);
    rig.reopen();
    assert!(rig.fence_from(2, 2, 1, 1).incomplete);
    // Its time is over, and another frame was never finished.
    rig.ask(1, 1, Question::Trim { up_to: Seq(3) }).expect("trimmed");
    for seq in 4..404 {
        rig.append_ok(1, 1, 1, vec![data(seq, 1, 1)]);
        rig.ask(1, 1, Question::Trim { up_to: Seq(seq) }).expect("trimmed");
        rig.now = rig.now.after(2_000_000);
    }
    let last = last_frame(&mut rig).position;
    rig.flip(last, 200);
    for life in 0..LIVES {
        rig.reopen();
        let held = rig.fence_from(2, 3 + life, 1, 1);
        assert!(held.incomplete, "life {life}: {held:?}");
    }
}

#[test]
fn a_full_ring_goes_on_when_the_last_doubt_ends() {
    let mut rig = Rig::small(3);
    rig.fence(1, 1);
    for (family, seq) in [(1, 1), (2, 1), (2, 2)] {
        rig.append_ok(family, 1, 1, vec![data(seq, 1, 1)]);
    }
    rig.flip(1, 200);
    rig.reopen();
    assert!(rig.keeper.ring.has_floor_for(FamilyId(1)));
    let mut seq = 2;
    while rig.append(2, 1, 1, vec![data(seq + 1, 1, 1)]).is_ok() {
        seq += 1;
        rig.ask(2, 1, Question::Trim { up_to: Seq(seq) }).expect("trimmed");
        assert!(seq < 400, "the floor holds it");
    }
    // It has an owner that has begun anew.
    rig.fence_from(1, 3, 1, 2);
    rig.ask(1, 3, Question::Trim { up_to: Seq(0) }).expect("nothing is trimmed");
    rig.append_ok(2, 1, 1, vec![data(seq + 1, 1, 1)]);
}

#[test]
fn a_record_that_does_not_follow_says_nothing_of_the_end() {
    let mut rig = torn(1, 200);
    // Its owner has written the record that is damaged, and does not know that it is.
    assert!(matches!(rig.append(1, 1, 1, vec![data(4, 1, 1)]), Err(Refusal::Gap { .. })));
    for life in 0..LIVES {
        assert!(fence(&mut rig, 1, 2 + life, 1).torn, "life {life}");
        rig.reopen();
    }
}

/// What may have been anybody's goes round the ring, and with it a frame that has so many others, and data behind them.
fn it_goes_round_beside(others: u64) -> Rig {
    let mut rig = torn(0, 4);
    rig.keeper.ring.carry_anybody(rig.now, u64::MAX);
    let body = Body::Zero { block: Block(1), count: 9 };
    let mut records: Vec<Record> =
        (2..2 + others).map(|seq| Record { seq: Seq(seq), body: body.clone() }).collect();
    records.push(data(2 + others, 1, 1));
    rig.append_ok(2, 1, 1, records);
    let last = last_frame(&mut rig).records;
    assert_eq!(last.last().map(|record| record.family), Some(ANYBODY), "it is in {} records", last.len());
    rig
}

#[test]
fn records_beside_what_goes_round_are_where_they_are() {
    // It makes some headers a block longer.
    for others in 58..64 {
        let mut rig = it_goes_round_beside(others);
        assert_eq!(rig.read_log(2, 1).last().map(|record| record.seq.0), Some(2 + others));
        assert_eq!(rig.damages(), 0, "beside {others}");
    }
}

#[test]
fn what_goes_round_is_nobodys_record() {
    let mut rig = it_goes_round_beside(0);
    let last = last_frame(&mut rig);
    let payload = last.position + last.header_blocks();
    rig.flip(payload, 9);
    rig.reopen();
    // What was told before still holds, for its time.
    assert!(fence(&mut rig, 3, 1, 0).torn);
    assert!(!rig.keeper.ring.holdings.contains_key(&ANYBODY));
}
