//! The log of a drive, one story at a time.

use super::*;
use crate::formats::record::{Checkpoint, MapRecord};
use crate::interface::Damage;
use std::sync::Arc;

#[test]
fn an_append_survives_a_crash() {
    let mut rig = Rig::small(1);
    let checkpoint = Checkpoint { replay_from: Seq(1), mapped: 5, ..Checkpoint::default() };
    let records = vec![
        data(1, 7, 1),
        Record { seq: Seq(2), body: Body::Zero { block: Block(3), count: 1 << 40 } },
        Record { seq: Seq(3), body: Body::Map(Arc::new(MapRecord::default())) },
        Record { seq: Seq(4), body: Body::Checkpoint(Arc::new(checkpoint)) },
        data(5, 7, 3),
    ];
    rig.append_ok(1, 1, 1, records.clone());
    rig.crash();
    assert_eq!(rig.damages(), 0);
    assert_eq!(rig.read_log(1, 1), records);
    let held = rig.fence(1, 2);
    assert_eq!((held.low, held.high, held.checkpoints), (Seq(1), Seq(5), vec![Seq(4)]));
}

#[test]
fn a_frame_goes_beside_another_only_with_as_many_records() {
    let mut rig = Rig::small(1);
    let append = |seqs: std::ops::RangeInclusive<u64>| {
        let records = seqs.map(|seq| data(seq, 7, 1)).collect();
        Question::Append { first: Seq(1), trim: Seq(0), records }
    };
    rig.begin(1, 1, append(1..=3));
    assert_eq!(rig.drive.submitted.len(), 1, "nothing is in its way");
    rig.begin(1, 1, append(4..=4));
    assert_eq!(rig.drive.submitted.len(), 1, "a flush for one record, beside one for three");
    rig.begin(1, 1, append(5..=6));
    assert_eq!(rig.drive.submitted.len(), 2, "now they are three, too");
    rig.begin(1, 1, append(7..=7));
    rig.run();
    assert_eq!(rig.read_log(1, 1).len(), 7, "what waited goes when a frame has ended");
}

#[test]
fn only_frames_with_small_writes_are_awaited() {
    let mut rig = Rig::small(1);
    let mut next = 1;
    for (kinds, expected) in [("m", false), ("d", true), ("z", true), ("md", true), ("mm", false)] {
        let record = |(kind, seq)| match kind {
            'm' => Record { seq: Seq(seq), body: Body::Map(Arc::new(MapRecord::default())) },
            'z' => Record { seq: Seq(seq), body: Body::Zero { block: Block(3), count: 1 } },
            _ => data(seq, 7, 1),
        };
        let records: Vec<_> = kinds.chars().zip(next..).map(record).collect();
        next += records.len() as u64;
        rig.begin(1, 1, Question::Append { first: Seq(1), trim: Seq(0), records });
        let is_awaited = |submitted: &Submitted| match submitted.operation.work {
            DriveWork::Write { awaited, .. } => awaited,
            _ => panic!("only its frame is under way"),
        };
        let awaited: Vec<bool> = rig.drive.submitted.iter().map(is_awaited).collect();
        assert_eq!(awaited, [expected], "{kinds}");
        rig.run();
    }
}

#[test]
fn a_torn_tail_is_dropped_and_never_comes_back() {
    for seed in 0..200 {
        let mut rig = Rig::small(seed);
        rig.append_ok(1, 1, 1, vec![data(1, 1, 1)]);
        for seq in 2..5 {
            let question = Question::Append { first: Seq(1), trim: Seq(0), records: vec![data(seq, 1, 2)] };
            rig.begin(1, 1, question);
        }
        rig.crash();
        let first = rig.read_log(1, 1);
        assert!(!first.is_empty(), "the first one was acknowledged");
        let next = first.len() as u64 + 1;
        rig.append_ok(1, 1, 1, vec![data(next, 2, 1)]);
        rig.crash();
        let mut wanted = first;
        wanted.push(data(next, 2, 1));
        assert_eq!(rig.read_log(1, 1), wanted);
        assert_eq!(rig.damages(), 0);
    }
}

#[test]
fn damage_in_the_middle_is_told_and_what_is_later_is_kept() {
    for unreadable in [false, true] {
        for header in [false, true] {
            let mut rig = Rig::small(3);
            for seq in 1..=9 {
                rig.append_ok(1, 1, 1, vec![data(seq, 1, 1)]);
            }
            // Each took a block of header and one of payload.
            let place = (Area::Log, if header { 8 } else { 9 });
            if unreadable {
                rig.drive.unreadable.insert(place);
            } else {
                rig.drive.durable.get_mut(&place).expect("written")[200] ^= 1;
            }
            rig.reopen();
            assert_eq!(rig.damages(), 1, "{:?}", rig.notices);
            let seqs: Vec<u64> = rig.read_log(1, 1).iter().map(|record| record.seq.0).collect();
            assert_eq!(seqs, [1, 2, 3, 4, 6, 7, 8, 9]);
            // The owner may bring it again.
            rig.append_ok(1, 1, 1, vec![data(5, 1, 1)]);
            assert_eq!(rig.read_log(1, 1).len(), 9);
        }
    }
}

#[test]
fn damage_at_the_end_of_a_log_is_told_to_whoever_asks_where_it_ends() {
    for header in [false, true] {
        let mut rig = Rig::small(3);
        for (family, seq) in [(1, 1), (1, 2), (2, 1)] {
            rig.append_ok(family, 1, 1, vec![data(seq, 1, 1)]);
        }
        let place = (Area::Log, if header { 2 } else { 3 });
        rig.drive.durable.get_mut(&place).expect("written")[200] ^= 1;
        rig.reopen();
        let held = rig.fence(1, 2);
        // Without its header nobody can tell whose record it was.
        assert_eq!((held.high, held.incomplete), if header { (Seq(1), true) } else { (Seq(2), false) });
        assert_eq!(
            (rig.fence(2, 2).high, rig.fence(2, 2).incomplete),
            (Seq(1), false),
            "it has what is later"
        );
        assert_eq!(rig.fence(3, 1).incomplete, header, "it may have been anybody's");
        // Whoever owns it now writes it again, or needs it no more.
        rig.append_ok(1, 2, 2, vec![data(2, 2, 1)]);
        assert_eq!((rig.fence(1, 3).high, rig.fence(1, 3).incomplete), (Seq(2), false));
        assert!(rig.ask(1, 3, Question::Trim { up_to: Seq(2) }).is_ok());
        assert_eq!(rig.fence(1, 4).high, Seq(0));
    }
}

#[test]
fn damage_met_while_reading_is_told_once_and_a_passing_one_not_at_all() {
    let mut rig = Rig::small(4);
    rig.append_ok(1, 1, 1, (1..=4).map(|seq| data(seq, 1, 1)).collect());
    rig.drive.flips.insert((Area::Log, 2));
    assert_eq!(rig.read_log(1, 1).len(), 4);
    assert_eq!(rig.damages(), 0);
    rig.drive.unreadable.insert((Area::Log, 3));
    for _ in 0..2 {
        let seqs: Vec<u64> = rig.read_log(1, 1).iter().map(|record| record.seq.0).collect();
        assert_eq!(seqs, [1, 2, 4]);
    }
    let told = Notice::Damage { drive: DriveId(1), damage: Damage::Log { offset: 3 * BLOCK as u64 } };
    assert_eq!(rig.notices.iter().filter(|notice| **notice == told).count(), 1);
}

#[test]
fn a_fence_survives_and_shuts_older_owners_out() {
    let mut rig = Rig::small(5);
    rig.append_ok(1, 3, 1, vec![data(1, 1, 1)]);
    assert_eq!(rig.fence(1, 5).high, Seq(1));
    rig.crash();
    let fenced = Refusal::Fenced(Epoch(5));
    assert_eq!(rig.append(1, 4, 1, vec![data(2, 1, 1)]), Err(fenced));
    assert_eq!(rig.ask(1, 4, Question::Trim { up_to: Seq(1) }), Err(fenced));
    assert_eq!(rig.ask(1, 4, Question::ReadLog { from: Seq(1), bytes: 1 }), Err(fenced));
    assert_eq!(rig.ask(1, 3, Question::Fence { first: Seq(1), since: Epoch(0) }), Err(fenced));
    rig.append_ok(1, 5, 2, vec![data(2, 2, 1)]);
}

#[test]
fn what_an_older_owner_has_queued_is_refused_when_a_fence_comes() {
    let mut rig = Rig::small(6);
    let append = |seq| Question::Append { first: Seq(1), trim: Seq(0), records: vec![data(seq, 1, 1)] };
    let calls: Vec<u64> = (1..=6).map(|seq| rig.begin(1, 1, append(seq))).collect();
    let held = rig.fence(1, 2);
    // Two frames were in flight, with one record each; the rest was queued.
    assert_eq!(held.high, Seq(2));
    for call in &calls {
        assert_eq!(rig.answers.remove(call), Some(Err(Refusal::Fenced(Epoch(2)))));
    }
    rig.crash();
    assert_eq!(rig.fence(1, 2).high, Seq(2));
}

#[test]
fn a_record_of_a_newer_epoch_voids_older_ones_for_good() {
    let mut rig = Rig::small(7);
    rig.append_ok(1, 1, 1, (1..=6).map(|seq| data(seq, 1, 1)).collect());
    rig.fence(1, 2);
    rig.append_ok(1, 2, 4, vec![data(4, 2, 1)]);
    let wanted = vec![data(1, 1, 1), data(2, 1, 1), data(3, 1, 1), data(4, 2, 1)];
    assert_eq!(rig.read_log(1, 2), wanted);
    rig.crash();
    assert_eq!(rig.read_log(1, 2), wanted);
    // Leftovers of a segment that was made in epoch 3 go with the fence.
    let held = rig.ask(1, 4, Question::Fence { first: Seq(3), since: Epoch(3) });
    assert!(matches!(held, Ok(Answer::Fenced(held)) if held.high == Seq(2)));
    rig.crash();
    assert_eq!(rig.read_log(1, 4), wanted[..2]);
}

#[test]
fn records_follow_each_other_or_are_refused() {
    let mut rig = Rig::small(8);
    assert_eq!(rig.append(1, 1, 5, vec![data(6, 1, 1)]), Err(Refusal::Gap { expected: Seq(5) }));
    rig.append_ok(1, 1, 5, vec![data(5, 1, 1), data(6, 1, 1)]);
    assert_eq!(rig.append(1, 1, 5, vec![data(8, 1, 1)]), Err(Refusal::Gap { expected: Seq(7) }));
    // Asked again, with one more: what is held is not written again.
    let used = rig.keeper.log_bytes_used();
    rig.append_ok(1, 1, 5, vec![data(5, 1, 1), data(6, 1, 1), data(7, 1, 1)]);
    assert_eq!(rig.keeper.log_bytes_used(), used + 2 * BLOCK as u64);
    rig.append_ok(1, 1, 5, vec![data(5, 1, 1), data(6, 1, 1)]);
    // A new owner's records may not sit on what an older one left behind the beginning of the segment.
    rig.fence(1, 2);
    assert_eq!(rig.append(1, 2, 6, vec![data(7, 2, 1)]), Err(Refusal::Gap { expected: Seq(6) }));
    rig.append_ok(1, 2, 6, vec![data(6, 2, 1)]);
    assert_eq!(rig.read_log(1, 2), [data(5, 1, 1), data(6, 2, 1)]);
    // After everything was trimmed and forgotten, the trim says where it goes on.
    rig.ask(1, 2, Question::Trim { up_to: Seq(6) }).expect("trims");
    rig.append_ok(1, 2, 6, vec![data(7, 2, 1)]);
}

#[test]
fn a_dropped_family_stays_dropped() {
    let mut rig = Rig::small(9);
    rig.append_ok(1, 1, 1, vec![data(1, 1, 1), data(2, 1, 1)]);
    rig.append_ok(2, 1, 1, vec![data(1, 5, 1)]);
    rig.fence(1, 2);
    assert_eq!(rig.ask(1, 2, Question::DropFamily), Ok(Answer::Dropped));
    rig.crash();
    assert_eq!(rig.read_log(1, 3), []);
    assert_eq!(rig.read_log(2, 1), [data(1, 5, 1)]);
}

#[test]
fn trims_are_remembered_and_the_ring_becomes_free() {
    let mut rig = Rig::small(10);
    rig.append_ok(1, 1, 1, (1..=40).map(|seq| data(seq, 1, 1)).collect());
    rig.ask(1, 1, Question::Trim { up_to: Seq(39) }).expect("trims");
    rig.wake();
    rig.crash();
    assert_eq!(rig.read_log(1, 1), [data(40, 1, 1)]);
}

#[test]
fn one_quiet_family_is_pressed_and_then_the_ring_is_free_again() {
    let mut rig = Rig::small(11);
    rig.append_ok(1, 1, 1, vec![data(1, 1, 1)]);
    let mut refused = false;
    for seq in 1..200 {
        let question = Question::Append { first: Seq(1), trim: Seq(seq - 1), records: vec![data(seq, 1, 3)] };
        if rig.ask(2, 1, question) == Err(Refusal::LogFull) {
            refused = true;
            break;
        }
    }
    assert!(refused, "the record of family 1 keeps the ring from going round");
    assert!(rig.pressed.contains(&(FamilyId(1), Seq(1))), "{:?}", rig.pressed);
    assert!(matches!(rig.ask(1, 1, Question::Trim { up_to: Seq(1) }), Ok(Answer::Trimmed { .. })));
    rig.append_ok(3, 1, 1, vec![data(1, 1, 3)]);
    rig.wake();
    assert!(rig.keeper.log_bytes_used() < 1 << 19, "{}", rig.keeper.log_bytes_used());
}

#[test]
fn the_family_that_a_full_ring_waits_for_comes_in_whatever_others_did() {
    let checkpoint = |seq| Record { seq: Seq(seq), body: Body::Checkpoint(Arc::new(Checkpoint::default())) };
    let full = Err(Refusal::LogFull);
    for is_written_again in [false, true] {
        let mut rig = Rig::small(16);
        rig.append_ok(1, 1, 1, vec![data(1, 1, 1)]);
        let fills = |rig: &mut Rig, blocks: usize| {
            (1..200).any(|seq| {
                let records = vec![data(seq, 1, blocks)];
                let question = Question::Append { first: Seq(1), trim: Seq(seq - 1), records };
                rig.ask(1_000 + blocks as u32, 1, question) == full
            })
        };
        assert!(fills(&mut rig, 3) && fills(&mut rig, 1), "the record of family 1 keeps it from going round");
        // Others come and go meanwhile, as nodes are restarted.
        let fence = Question::Fence { first: Seq(1), since: Epoch(0) };
        assert!((2..200).any(|family| rig.ask(family, 1, fence.clone()) == full), "not all of them");
        // Its next owner is let in, and what it needs to let go.
        assert!(rig.ask(1, 2, fence.clone()).is_ok());
        assert_eq!(rig.append(1, 2, 2, vec![data(2, 1, 1)]), full, "this would not help");
        if is_written_again {
            assert!(matches!(rig.append(1, 2, 1, vec![data(1, 1, 1)]), Ok(Answer::Appended { .. })));
        } else {
            assert!(matches!(rig.append(1, 2, 2, vec![checkpoint(2)]), Ok(Answer::Appended { .. })));
            assert_eq!(rig.append(5, 1, 1, vec![checkpoint(1)]), full);
            rig.ask(1, 2, Question::Trim { up_to: Seq(1) }).expect("trims");
        }
        rig.wake();
        rig.append_ok(3, 1, 1, vec![data(1, 1, 3)]);
    }
}

#[test]
fn data_that_others_took_the_room_of_comes_in_before_what_it_stands_in_the_way_of() {
    let mut rig = Rig::small(17);
    rig.append_ok(1, 1, 1, vec![data(1, 1, 1)]);
    // Others take what there is room for, and what is still left for records without data.
    for seq in 1.. {
        let question = Question::Append { first: Seq(1), trim: Seq(seq - 1), records: vec![data(seq, 1, 9)] };
        if rig.ask(2, 1, question) == Err(Refusal::LogFull) {
            break;
        }
    }
    assert_eq!(
        rig.append(3, 1, 1, vec![data(1, 1, 12)]),
        Err(Refusal::LogFull),
        "the ring does not wait for it"
    );
    // Family 1 has given this record its number, and what lets go of its first one comes behind.
    assert!(matches!(rig.append(1, 1, 1, vec![data(2, 1, 12)]), Ok(Answer::Appended { .. })));
    assert_eq!(
        rig.append(1, 1, 1, vec![data(3, 1, 40)]),
        Err(Refusal::LogFull),
        "something is left for that"
    );
    let checkpoint = Record { seq: Seq(3), body: Body::Checkpoint(Arc::new(Checkpoint::default())) };
    assert!(matches!(rig.append(1, 1, 1, vec![checkpoint]), Ok(Answer::Appended { .. })));
    rig.ask(1, 1, Question::Trim { up_to: Seq(2) }).expect("trims");
    rig.wake();
    rig.append_ok(4, 1, 1, vec![data(1, 1, 9)]);
}

/// A ring is full, much of it is let go of while a frame is on its way, and many families ask before that frame says so. Gives how
/// many are refused after they were let in.
pub(super) fn many_ask_while_a_frame_frees() -> usize {
    let mut rig = Rig::small(18);
    (1..=7).for_each(|seq| rig.append_ok(1, 1, 1, vec![data(seq, 1, 15)]));
    (1..=6).for_each(|seq| rig.append_ok(2, 1, 1, vec![data(seq, 1, 15)]));
    assert_eq!(rig.append(3, 1, 1, vec![data(1, 1, 15)]), Err(Refusal::LogFull));
    let zero = Record { seq: Seq(1), body: Body::Zero { block: Block(3), count: 1 } };
    rig.begin(3, 1, Question::Append { first: Seq(1), trim: Seq(0), records: vec![zero] });
    rig.begin(1, 1, Question::Trim { up_to: Seq(7) });
    let one = Question::Append { first: Seq(1), trim: Seq(0), records: vec![data(1, 1, 15)] };
    let calls: Vec<u64> = (10..40).map(|family| rig.begin(family, 1, one.clone())).collect();
    let refused = |rig: &Rig| {
        let refused = |call: &&u64| rig.answers.get(call) == Some(&Err(Refusal::LogFull));
        calls.iter().filter(refused).count()
    };
    let at_once = refused(&rig);
    rig.run();
    for _ in 0..100 {
        rig.wake();
    }
    assert!(calls.iter().all(|call| rig.answers.contains_key(call)), "{}", rig.keeper.describe());
    let late = refused(&rig) - at_once;
    // What the ring waits for comes in.
    let map = Record { seq: Seq(7), body: Body::Map(Arc::new(MapRecord::default())) };
    rig.append_ok(2, 1, 1, vec![map]);
    // Who was refused late comes in behind it, when it is let go of.
    rig.ask(2, 1, Question::Trim { up_to: Seq(6) }).expect("trims");
    rig.append_ok(39, 1, 1, vec![data(1, 1, 15)]);
    late
}

#[test]
fn no_more_is_let_in_than_fits_when_what_is_let_go_of_is_free() {
    assert_eq!(many_ask_while_a_frame_frees(), 0);
}

#[test]
fn a_family_with_only_its_checkpoint_is_left_alone_until_it_is_at_the_tail() {
    let mut rig = Rig::small(14);
    let checkpoint = |seq| Record { seq: Seq(seq), body: Body::Checkpoint(Arc::new(Checkpoint::default())) };
    rig.append_ok(1, 1, 1, vec![data(1, 1, 1)]);
    rig.append_ok(2, 1, 1, (1..=40).map(|seq| data(seq, 1, 1)).collect());
    rig.append_ok(3, 1, 1, vec![checkpoint(1)]);
    for seq in 41..200 {
        rig.now = rig.now.after(100_000);
        let question = Question::Append { first: Seq(1), trim: Seq(seq - 1), records: vec![data(seq, 1, 3)] };
        if rig.ask(2, 1, question) == Err(Refusal::LogFull) {
            break;
        }
    }
    let was_asked = |rig: &Rig, family| rig.pressed.iter().any(|(asked, _)| *asked == FamilyId(family));
    assert!(was_asked(&rig, 1) && was_asked(&rig, 2), "{:?}", rig.pressed);
    assert!(!was_asked(&rig, 3), "its checkpoint would only take more of the ring: {:?}", rig.pressed);
    // With what is before it gone, it is what keeps the ring from going round.
    for family in [1, 2] {
        rig.ask(family, 1, Question::Trim { up_to: Seq(150) }).expect("trims");
    }
    for seq in 1..200 {
        rig.now = rig.now.after(100_000);
        let question = Question::Append { first: Seq(1), trim: Seq(seq - 1), records: vec![data(seq, 1, 3)] };
        if rig.ask(4, 1, question) == Err(Refusal::LogFull) {
            break;
        }
    }
    assert!(was_asked(&rig, 3), "{:?}", rig.pressed);
}

#[test]
fn among_however_many_each_gets_room_for_a_block_while_there_is_any() {
    let mut rig = Rig::small(15);
    let rooms: Vec<u64> = (1..=60)
        .map(|family| {
            rig.now = rig.now.after(1_000_000);
            rig.fence(family, 1).room
        })
        .collect();
    assert!(rooms.iter().all(|room| *room >= 2 * BLOCK as u64), "{rooms:?}");
    for seq in 1..=80 {
        rig.append_ok(1, 1, 1, vec![data(seq, 1, 1)]);
    }
    assert_eq!(rig.fence(2, 1).room, 0, "what is left is for map and checkpoint records");
}

#[test]
fn room_is_shared_and_leaves_a_quarter_that_can_be_used() {
    let mut rig = Rig::small(12);
    let all = rig.fence(1, 1).room;
    let (quarter, gap, slack) = (64, 16 + 2, 16);
    assert_eq!(all, (256 - quarter - gap - slack - 1) * BLOCK as u64 / 2, "one block has the fence");
    rig.now = rig.now.after(1_000_000);
    let half = rig.fence(2, 1).room;
    assert!(half < all * 51 / 100 && half > all * 48 / 100, "{half} of {all}");
}

#[test]
fn a_formatted_drive_is_empty_and_a_wrong_one_is_refused() {
    let mut rig = Rig::small(13);
    rig.append_ok(1, 1, 1, vec![data(1, 1, 1)]);
    let mut effects = Effects::default();
    let geometry = rig.geometry;
    rig.keeper = open(Wish { geometry, format: true, incarnation: None }, &Limits::small(), &mut effects);
    rig.effects = effects;
    rig.run();
    assert_eq!(rig.read_log(1, 1), []);
    rig.crash();
    assert_eq!(rig.read_log(1, 1), []);

    use crate::interface::DriveTrouble;
    let other = Geometry { log: 2 << 20, ..geometry };
    let cases = [
        (DriveId(2), geometry, DriveTrouble::OtherDrive(DriveId(1))),
        (DriveId(1), other, DriveTrouble::OtherGeometry),
    ];
    for (drive, geometry, reason) in cases {
        let wish = Wish { geometry, format: false, incarnation: None };
        rig.keeper = Keeper::open(drive, HOME, wish, 1 << TOKEN_BITS, &Limits::small(), &mut rig.effects);
        rig.run();
        assert_eq!(rig.notices.pop(), Some(Notice::DriveFailed { drive, reason }));
        assert_eq!(rig.append(1, 1, 1, vec![data(1, 1, 1)]), Err(Refusal::DriveGone));
    }
    rig.drive = PretendDrive::default();
    rig.keeper =
        open(Wish { geometry, format: false, incarnation: None }, &Limits::small(), &mut rig.effects);
    rig.run();
    let reason = DriveTrouble::NoSuperblock;
    assert_eq!(rig.notices.pop(), Some(Notice::DriveFailed { drive: DriveId(1), reason }));
}

#[test]
fn one_superblock_is_enough_and_is_repaired() {
    let mut rig = Rig::small(14);
    for copy in 0..2 {
        rig.append_ok(1, 1, 1, vec![data(copy + 1, 1, 1)]);
        rig.drive.durable.insert((Area::Data, copy), vec![0xff; BLOCK].into());
        rig.reopen();
    }
    assert_eq!(rig.read_log(1, 1).len(), 2);
}

#[test]
fn a_drive_that_goes_answers_everybody() {
    let mut rig = Rig::small(15);
    let append = Question::Append { first: Seq(1), trim: Seq(0), records: vec![data(1, 1, 1)] };
    let call = rig.begin(1, 1, append);
    let token = rig.drive.submitted[0].operation.token;
    rig.keeper.on_drive_done(rig.now, token, Err(DriveFault::Gone), &mut rig.effects);
    rig.take_effects();
    assert_eq!(rig.answers.remove(&call), Some(Err(Refusal::DriveGone)));
    assert_eq!(rig.keeper.state(), State::Failed);
    assert_eq!(rig.keeper.wake_at(), None);
}

#[test]
fn asks_that_come_early_are_answered_and_repeats_are_ignored() {
    let mut rig = Rig::small(16);
    rig.begin_opening();
    let append = Question::Append { first: Seq(1), trim: Seq(0), records: vec![data(1, 1, 1)] };
    let call = rig.begin(1, 1, append.clone());
    for _ in 0..3 {
        rig.keeper.on_ask(rig.now, OWNER, call, FamilyId(1), Epoch(1), append.clone(), &mut rig.effects);
    }
    rig.run();
    assert!(matches!(rig.answers.remove(&call), Some(Ok(Answer::Appended { .. }))));
    rig.keeper.on_ask(rig.now, OWNER, call, FamilyId(1), Epoch(1), append, &mut rig.effects);
    rig.run();
    assert!(
        matches!(rig.answers.remove(&call), Some(Ok(Answer::Appended { .. }))),
        "asked again, answered again"
    );
    assert_eq!(rig.read_log(1, 1), [data(1, 1, 1)]);
}

/// Whether the own shard, which asks only once, is answered by a drive of which many have asked while it was opened.
pub(super) fn the_own_shard_is_heard_among_many() -> bool {
    let mut rig = Rig::small(17);
    rig.begin_opening();
    let fence = Question::Fence { first: Seq(1), since: Epoch(0) };
    let own = 1 << 32;
    for call in 1..=2_000 {
        rig.keeper.on_ask(rig.now, OWNER, call, FamilyId(1), Epoch(1), fence.clone(), &mut rig.effects);
    }
    rig.keeper.on_ask(rig.now, HOME, own, FamilyId(2), Epoch(1), fence, &mut rig.effects);
    rig.run();
    let early = |call: &u64| *call != own;
    assert!(rig.answers.keys().copied().filter(early).count() < 2_000, "not all of them are kept");
    matches!(rig.answers.get(&own), Some(Ok(Answer::Fenced(_))))
}

#[test]
fn what_the_own_shard_asks_of_a_drive_that_is_being_opened_is_kept() {
    assert!(the_own_shard_is_heard_among_many());
}

/// Whether data that comes when others have taken its room is let in, if the ring waits for its family.
pub(super) fn late_data_is_let_in() -> bool {
    let mut rig = Rig::small(9);
    rig.append_ok(1, 1, 1, vec![data(1, 1, 1)]);
    let mut next = 1;
    while rig.append(2, 1, 1, vec![data(next, 2, 4)]).is_ok() {
        next += 1;
    }
    assert_eq!(rig.append(3, 1, 1, vec![data(1, 3, 1)]), Err(Refusal::LogFull), "others wait");
    rig.append(1, 1, 1, vec![data(2, 1, 2)]).is_ok()
}

#[test]
fn data_that_comes_too_late_goes_before_what_lets_go_of_the_oldest_record() {
    assert!(late_data_is_let_in());
}

/// A ring gets copies of another log's records as long as it takes them, and then what its own families write. Gives whether that fits.
fn a_ring_that_is_given_copies_late() -> bool {
    let mut rig = Rig::small(3);
    // Whose record is the oldest one may take more.
    rig.append_ok(3, 1, 1, vec![data(1, 1, 1)]);
    rig.append_ok(1, 1, 1, vec![data(1, 1, 1)]);
    for seq in 1.. {
        let late = Question::AppendLate {
            first: Seq(1),
            since: Epoch(1),
            records: vec![data(seq, 1, 1)],
            urgent: false,
        };
        if rig.ask(2, 2, late).is_err() {
            break;
        }
    }
    (2..10).all(|seq| rig.append(1, 1, 1, vec![data(seq, 1, 1)]).is_ok())
}

#[test]
fn copies_that_come_late_leave_room_for_what_lets_go() {
    assert!(a_ring_that_is_given_copies_late());
}

/// Nothing goes in any more that has a copy, or as much as clients may write. Gives whether what an opening waits for does.
fn a_pressed_ring_is_given_an_end() -> bool {
    let mut rig = Rig::small(3);
    rig.append_ok(3, 1, 1, vec![data(1, 1, 1)]);
    let mut late = |seq, urgent| {
        let records = vec![data(seq, 1, 1)];
        rig.ask(2, 2, Question::AppendLate { first: Seq(1), since: Epoch(1), records, urgent })
    };
    let full = (1..).find(|&seq| late(seq, false).is_err()).expect("it does not take all");
    (full..full + 4).all(|seq| late(seq, true).is_ok())
}

#[test]
fn what_an_opening_waits_for_goes_into_a_ring_that_is_pressed() {
    assert!(a_pressed_ring_is_given_an_end());
}

#[cfg(feature = "sabotage")]
#[test]
fn ends_that_wait_for_room_are_seen() {
    use crate::sabotage::{Bug, with};
    assert!(!with(Bug::EndsWaitForRoom, a_pressed_ring_is_given_an_end));
}

#[cfg(feature = "sabotage")]
#[test]
fn copies_that_take_all_are_seen() {
    use crate::sabotage::{Bug, with};
    assert!(!with(Bug::LateCopiesTakeAll, a_ring_that_is_given_copies_late));
}
