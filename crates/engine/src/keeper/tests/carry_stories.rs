//! What pins the ring of a drive is carried on, so that others can go on beside it.

use super::*;
use crate::formats::frame::{Copied, RecordHeader};

/// Blocks of the ring of these stories.
const RING: u64 = 128;
/// Records that the family keeps that goes on.
const KEPT: u64 = 5;

/// A family that let go of nothing for long, and another that goes round the ring beside it.
struct Pinned {
    rig: Rig,
    stuck: Vec<Record>,
    next: u64,
    epoch: u32,
    first: u64,
}

impl Pinned {
    /// `records` of the first family, of a block each, in frames of some.
    fn new(seed: u64, records: u64) -> Self {
        Self::beside(Rig::new(seed, RING * BLOCK as u64, 16 << 20), records)
    }

    fn beside(mut rig: Rig, records: u64) -> Self {
        let stuck: Vec<Record> = (1..=records).map(|seq| data(seq, 1, 1)).collect();
        for some in stuck.chunks(3) {
            rig.append_ok(1, 1, 1, some.to_vec());
        }
        // Its next owner has fenced, and cannot do more.
        assert_eq!(rig.fence(1, 2).low, Seq(records.min(1)));
        Self { rig, stuck, next: 1, epoch: 1, first: 1 }
    }

    fn question(&self) -> Question {
        let records = vec![data(self.next, 2, 2)];
        Question::Append { first: Seq(self.first), trim: Seq(self.next.saturating_sub(KEPT)), records }
    }

    /// The other family appends a record and lets go of an older one. False if it was not let in for half a minute.
    fn goes_on(&mut self) -> bool {
        let until = self.rig.now.after(30_000_000);
        while self.rig.now < until {
            if self.rig.ask(2, self.epoch, self.question()).is_ok() {
                self.next += 1;
                return true;
            }
            self.rig.now = self.rig.now.after(100_000);
            self.rig.wake();
        }
        false
    }

    fn goes_round(&mut self, rings: u64) -> bool {
        let last = self.next + rings * RING / 3;
        while self.next < last {
            if !self.goes_on() {
                return false;
            }
        }
        true
    }

    /// The other family is let in until a frame that carries records on is on its way to the drive.
    fn carries(&mut self) {
        let loads = |rig: &Rig| {
            let reads = |submitted: &Submitted| {
                submitted.operation.area == Area::Log
                    && matches!(submitted.operation.work, DriveWork::Read { .. })
            };
            rig.drive.submitted.iter().position(reads)
        };
        for _ in 0..10_000 {
            if let Some(load) = loads(&self.rig) {
                self.rig.end(load);
                return;
            }
            self.goes_a_step();
        }
        panic!("nothing was carried on: {}", self.rig.keeper.describe());
    }

    /// The other family appends as long as it is let in, and lets go of nothing.
    fn fills(&mut self) {
        while self.rig.append(2, self.epoch, self.first, vec![data(self.next, 2, 1)]).is_ok() {
            self.next += 1;
        }
    }

    /// Owners of a family fence, one after the other, in no time.
    fn opens(&mut self, family: u32) {
        let mut refused = 0;
        for epoch in 3..200 {
            let fence = Question::Fence { first: Seq(1), since: Epoch(0) };
            match self.rig.ask(family, epoch, fence) {
                Ok(Answer::Fenced(_)) => assert_eq!(refused, 0, "there is no more room than before"),
                Err(Refusal::LogFull) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(refused > 0, "the ring is full");
    }

    /// One operation of the drive ends; if there is none, the other family appends, or time passes.
    fn goes_a_step(&mut self) {
        if !self.rig.drive.submitted.is_empty() {
            return self.rig.end(0);
        }
        self.rig.now = self.rig.now.after(100_000);
        let question = self.question();
        let call = self.rig.begin(2, self.epoch, question);
        if matches!(self.rig.answers.get(&call), Some(Err(_))) {
            self.rig.keeper.on_wake(self.rig.now, &mut self.rig.effects);
            self.rig.take_effects();
        } else {
            self.next += 1;
        }
    }
}

#[cfg(feature = "sabotage")]
pub(super) fn others_go_on(seed: u64) -> bool {
    Pinned::new(seed, 20).goes_round(8)
}

#[test]
fn others_go_round_the_ring_beside_a_family_that_lets_go_of_nothing() {
    for seed in 0..8 {
        let mut story = Pinned::new(seed, 20);
        assert!(story.goes_round(8), "seed {seed}: {}", story.rig.keeper.describe());
        assert_eq!(story.rig.read_log(1, 2), story.stuck, "seed {seed}");
        story.rig.crash();
        assert_eq!(story.rig.read_log(1, 2), story.stuck, "seed {seed}: after a crash");
        assert_eq!(story.rig.damages(), 0);
        assert_eq!(story.rig.fence(1, 3).high, Seq(20));
        // Its owner is there again, goes on, and lets go in the end.
        story.rig.append_ok(1, 3, 21, vec![data(21, 1, 1)]);
        story.rig.ask(1, 3, Question::Trim { up_to: Seq(21) }).expect("trims");
        assert!(story.goes_round(2));
        assert_eq!(story.rig.fence(1, 4).low, Seq(0));
    }
}

#[test]
fn a_crash_at_any_step_loses_nothing_that_is_carried_on() {
    for steps in 0..60 {
        let mut story = Pinned::new(steps, 20);
        story.carries();
        for _ in 0..steps {
            story.rig.step();
        }
        story.rig.crash();
        assert_eq!(story.rig.read_log(1, 2), story.stuck, "after {steps} steps");
        assert_eq!(story.rig.damages(), 0);
        assert!(story.goes_round(2), "after {steps} steps: {}", story.rig.keeper.describe());
        assert_eq!(story.rig.read_log(1, 2), story.stuck, "after {steps} steps and two more rounds");
    }
}

/// Whether a family is held as before while a frame carries some of it on.
pub(super) fn is_seen_on_its_way() -> bool {
    let mut story = Pinned::new(3, 20);
    story.carries();
    let fence = Question::Fence { first: Seq(1), since: Epoch(0) };
    let call = story.rig.begin(1, 2, fence);
    let Some(Ok(Answer::Fenced(held))) = story.rig.answers.remove(&call) else {
        panic!("this fence is durable");
    };
    (held.low, held.high) == (Seq(1), Seq(20))
}

#[test]
fn what_is_being_carried_on_is_held_meanwhile() {
    assert!(is_seen_on_its_way());
}

#[test]
fn a_read_that_is_overtaken_gives_the_record_from_where_it_lies_now() {
    let mut story = Pinned::new(5, 20);
    let call = story.rig.begin(1, 2, Question::ReadLog { from: Seq(1), bytes: 1 << 20 });
    let mut reads = std::mem::take(&mut story.rig.drive.submitted);
    assert!(!reads.is_empty());
    assert!(story.goes_round(3), "{}", story.rig.keeper.describe());
    // Where the records lay is something else by now.
    story.rig.drive.submitted.append(&mut reads);
    story.rig.run();
    let Some(Ok(Answer::Records { records, .. })) = story.rig.answers.remove(&call) else {
        panic!("every ask is answered");
    };
    assert_eq!(records, story.stuck);
    assert_eq!(story.rig.damages(), 0);
}

/// Whether records are still sound when the read of what was to be carried on gave flipped bits.
pub(super) fn flips_are_not_carried_on() -> bool {
    let mut story = Pinned::new(4, 20);
    // The second record of the first frame.
    story.rig.drive.flips.insert((Area::Log, 2));
    story.carries();
    assert!(story.rig.drive.flips.is_empty(), "it was read");
    story.goes_round(3) && story.rig.read_log(1, 2) == story.stuck
}

#[test]
fn only_what_is_sound_is_carried_on() {
    assert!(flips_are_not_carried_on());
}

/// Whether it is known that the log may have gone on behind what was carried on, when a frame before it is damaged.
pub(super) fn an_end_that_is_not_known_is_told() -> bool {
    let mut story = Pinned::new(6, 20);
    story.rig.append_ok(1, 2, 21, vec![data(21, 1, 1)]);
    story.stuck.push(data(21, 1, 1));
    assert!(story.goes_round(2));
    let position = (0..200).find_map(|_| {
        assert!(story.goes_on());
        before_the_end_of_the_stuck(&mut story.rig)
    });
    let position = position.expect("the last record was carried on behind others");
    story.rig.drive.write((Area::Log, position), vec![0; BLOCK].into(), true);
    story.rig.reopen();
    assert!(story.rig.damages() > 0, "a frame is missing");
    story.rig.fence(1, 3).incomplete
}

/// Where a frame of another family lies that counts and is older than the one that the last record was carried on to: for all that
/// can be told when it is missing, it may have been anybody's.
fn before_the_end_of_the_stuck(rig: &mut Rig) -> Option<u64> {
    let frames = rig.frames();
    let (&newest, header) = frames.last_key_value()?;
    let tail = header.tail;
    let mut counting = frames.range(tail..newest);
    let is_last = |record: &RecordHeader| record.copied == Copied::On && record.seq == Seq(21);
    let (&carried, _) = counting.find(|(_, header)| header.records.iter().any(is_last))?;
    let is_others = |header: &FrameHeader| {
        !header.records.is_empty() && header.records.iter().all(|record| record.family == FamilyId(2))
    };
    let others = frames.range(tail..carried).find(|(_, header)| is_others(header))?;
    Some(others.1.position)
}

#[test]
fn behind_damage_what_was_carried_on_is_no_end_of_a_log() {
    assert!(an_end_that_is_not_known_is_told());
}

#[test]
fn others_go_on_beside_a_log_whose_end_is_not_known_and_that_stays_so() {
    let mut story = Pinned::new(12, 20);
    assert!(story.goes_round(1));
    // A frame behind all of the first family, and before the last of the other.
    let frames = story.rig.frames();
    let (_, header) = frames.iter().rev().nth(1).expect("there are many");
    story.rig.drive.write((Area::Log, header.position), vec![0; BLOCK].into(), true);
    for lives in 1..4 {
        story.rig.reopen();
        assert!(story.rig.fence(1, 2).incomplete, "in life {lives}");
        // Whoever owns the other one looks, and writes again what is missing.
        let high = story.rig.fence(2, lives + 1).high;
        story.epoch = lives + 1;
        story.next = high.0 + 1;
        story.first = story.next;
        assert!(story.goes_round(2), "in life {lives}: {}", story.rig.keeper.describe());
        assert_eq!(story.rig.read_log(1, 2), story.stuck, "in life {lives}");
    }
    story.rig.append_ok(1, 3, 21, vec![data(21, 1, 1)]);
    story.rig.reopen();
    assert!(!story.rig.fence(1, 3).incomplete, "its owner has decided where it ends");
}

#[test]
fn that_a_record_was_lost_stays_known_when_what_is_before_it_is_carried_on() {
    let mut story = Pinned::new(8, 20);
    let last = story.rig.frames().into_iter().rev().find(|(_, header)| {
        header.records.iter().any(|record| record.family == FamilyId(1) && record.seq == Seq(20))
    });
    let (_, header) = last.expect("it was appended");
    let payload = header.position + header.blocks() - 1;
    story.rig.drive.write((Area::Log, payload), vec![0; BLOCK].into(), true);
    story.rig.reopen();
    assert_eq!((story.rig.damages(), story.rig.fence(1, 2).high), (1, Seq(20)), "it was there");
    story.next = 1;
    story
        .rig
        .ask(2, 1, Question::Append { first: Seq(1), trim: Seq(0), records: Vec::new() })
        .expect("it is there");
    for rounds in 1..4 {
        assert!(story.goes_round(2), "{}", story.rig.keeper.describe());
        story.rig.reopen();
        assert_eq!(story.rig.fence(1, 2).high, Seq(20), "after {rounds} more lives");
        assert_eq!(story.rig.read_log(1, 2), story.stuck[..19]);
    }
    story.rig.ask(1, 3, Question::Trim { up_to: Seq(20) }).expect("trims");
    assert!(story.goes_round(2));
    assert_eq!(story.rig.fence(1, 4).high, Seq(0));
}

#[test]
fn beside_what_cannot_be_read_the_rest_is_carried_on() {
    for block in 0..16 {
        let mut story = Pinned::new(10, 20);
        // In a frame of three records: its header, or a payload; or what is behind it.
        story.rig.drive.unreadable.insert((Area::Log, block));
        let frames = story.rig.frames();
        let bad = frames
            .values()
            .find(|header| (header.position..header.position + header.blocks()).contains(&block));
        let is_payload = bad.is_some_and(|header| block >= header.position + header.header_blocks());
        assert!(story.goes_round(2), "block {block}: {}", story.rig.keeper.describe());
        assert!(story.rig.damages() > 0 || !is_payload, "block {block}: what was lost is told");
        // At the next opening a payload that cannot be read is known to be lost, and others go on beside it.
        story.rig.reopen();
        story.rig.fence(2, story.next as u32 + 1);
        assert_eq!(story.rig.fence(1, 2).high, Seq(20));
    }
}

#[test]
fn what_could_not_be_read_for_a_while_is_carried_on_as_it_is() {
    for block in 1..8 {
        let mut story = Pinned::new(12, 20);
        story.rig.drive.unreadable.insert((Area::Log, block));
        story.rig.reopen();
        story.rig.fence(1, 2);
        story.rig.drive.unreadable.clear();
        (story.epoch, story.first) = (2, 1);
        assert!(story.goes_round(4), "block {block}: {}", story.rig.keeper.describe());
        let wanted = if block == 4 { &story.stuck[3..] } else { &story.stuck[..] };
        // (Block 4 is the header of a frame: of what was in it nothing is known.)
        let frames = story.rig.frames();
        assert!(frames.values().all(|header| header.records.iter().all(|r| r.copied != Copied::Lost)));
        story.rig.crash();
        assert_eq!(story.rig.read_log(1, 3).len(), wanted.len(), "block {block}");
    }
}

/// A frame is on its way that carries a record on as lost, and meanwhile somebody can read it. Whether it stays, also after a crash; None
/// if it was not read in between.
fn what_is_found_stays(seed: u64) -> Option<bool> {
    let mut story = Pinned::new(seed, 20);
    story.rig.drive.unreadable.insert((Area::Log, 2));
    story.rig.reopen();
    story.rig.fence(1, 2);
    (story.epoch, story.first) = (2, 1);
    story.fills();
    story.opens(3);
    let is_carried =
        |rig: &Rig| rig.keeper.ring.flying.iter().any(|flying| flying.carried.iter().any(|one| one.is_lost));
    for _ in 0..10_000 {
        if is_carried(&story.rig) {
            break;
        }
        story.goes_a_step();
    }
    assert!(is_carried(&story.rig), "seed {seed}: {}", story.rig.keeper.describe());
    story.rig.drive.unreadable.clear();
    let call = story.rig.begin(1, 2, Question::ReadLog { from: Seq(1), bytes: 1 << 20 });
    let is_read = |submitted: &Submitted| matches!(submitted.operation.work, DriveWork::Read { .. });
    while let Some(read) = story.rig.drive.submitted.iter().position(is_read) {
        story.rig.end(read);
    }
    let is_met = story.rig.answers.contains_key(&call) && is_carried(&story.rig);
    let mut stays = true;
    // As soon as the frame counts, and later.
    if seed.is_multiple_of(2) {
        while is_carried(&story.rig) {
            story.rig.end(0);
        }
        story.rig.crash();
        stays &= story.rig.read_log(1, 2) == story.stuck;
        (story.epoch, story.first) = (3, story.rig.fence(2, 3).high.0 + 1);
        story.next = story.first;
    }
    story.rig.run();
    stays &= story.rig.read_log(1, 2) == story.stuck;
    stays &= story.goes_round(4) && story.rig.read_log(1, 2) == story.stuck;
    story.rig.crash();
    stays &= story.rig.read_log(1, 2) == story.stuck;
    is_met.then_some(stays)
}

pub(super) fn found_stays() -> bool {
    let stay: Vec<bool> = (0..12).filter_map(what_is_found_stays).collect();
    assert!(!stay.is_empty(), "it was never read in between");
    stay.iter().all(|stays| *stays)
}

#[test]
fn what_is_read_while_it_is_carried_on_as_lost_stays_where_it_is() {
    assert!(found_stays());
}

#[test]
fn what_is_on_its_way_is_not_carried_on_once_more() {
    let mut story = Pinned::new(11, 20);
    story.carries();
    let writes = |rig: &Rig| {
        let is_write = |submitted: &&Submitted| matches!(submitted.operation.work, DriveWork::Write { .. });
        rig.drive.submitted.iter().filter(is_write).count()
    };
    let on_their_way = writes(&story.rig);
    for _ in 0..100 {
        story.rig.now = story.rig.now.after(20_000);
        story.rig.keeper.on_wake(story.rig.now, &mut story.rig.effects);
        story.rig.take_effects();
        let read = story
            .rig
            .drive
            .submitted
            .iter()
            .position(|submitted| matches!(submitted.operation.work, DriveWork::Read { .. }));
        if let Some(read) = read {
            story.rig.end(read);
        }
    }
    assert_eq!(writes(&story.rig), on_their_way);
}

/// The oldest records of a full ring are of so many blocks each, and their family lets go of nothing, while owners of a family are opened
/// again and again. Whether others go on in the end.
pub(super) fn others_go_on_beside_openings(family: u32, records: u64, blocks: usize) -> bool {
    let mut story = Pinned::new(u64::from(family), 0);
    for seq in 1..=records {
        story.stuck.push(data(seq, 1, blocks));
        story.rig.append_ok(1, 2, 1, vec![data(seq, 1, blocks)]);
    }
    story.fills();
    story.opens(family);
    story.goes_round(4) && story.rig.read_log(1, 200) == story.stuck
}

/// The same with frames of two blocks, of which so many lie before the large record: wherever the ring ends in what is left of it.
fn others_go_on_beside_openings_behind(frames: u64) -> bool {
    let limits = Limits { frame_bytes_max: 2 * BLOCK, ..Limits::small() };
    let mut story = Pinned::beside(Rig::with(1, RING * BLOCK as u64, 16 << 20, limits), 0);
    for _ in 0..frames {
        assert!(story.goes_on());
    }
    story.rig.append_ok(1, 2, 1, vec![data(1, 1, 6)]);
    story.stuck.push(data(1, 1, 6));
    story.fills();
    story.opens(3);
    story.goes_round(4) && story.rig.read_log(1, 200) == story.stuck
}

#[test]
fn what_carrying_on_needs_is_free_in_one_piece() {
    let stuck: Vec<u64> = (0..60).filter(|frames| !others_go_on_beside_openings_behind(*frames)).collect();
    assert!(stuck.is_empty(), "{stuck:?}");
}

#[test]
fn others_go_on_beside_owners_that_are_opened_again_and_again() {
    for family in [1, 3] {
        for (records, blocks) in [(1, 1), (1, 3), (1, 7), (3, 7), (7, 6), (12, 4), (25, 1)] {
            let go_on = others_go_on_beside_openings(family, records, blocks);
            assert!(go_on, "family {family}, {records} records of {blocks} blocks");
        }
    }
}

#[test]
fn a_family_with_more_than_half_of_the_ring_is_not_carried_round_and_round() {
    let mut story = Pinned::new(7, 70);
    assert!(!story.goes_round(4), "there is no room beside it");
    let mut writes = 0;
    for _ in 0..600 {
        story.rig.now = story.rig.now.after(100_000);
        story.rig.keeper.on_wake(story.rig.now, &mut story.rig.effects);
        story.rig.take_effects();
        writes += story.rig.drive.submitted.len();
        story.rig.run();
    }
    assert!(writes < 40, "{writes} operations in a minute in which nothing can be gained");
    assert_eq!(story.rig.read_log(1, 2), story.stuck);
}
