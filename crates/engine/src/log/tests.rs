//! Which drives a log lies on, when drives are to be emptied or are slow; openings beside a member that has no room.

use super::append::{Appender, Changed};
use crate::context::{Context, Surroundings};
use crate::formats::record::{Body, Record};
use crate::identity::{Block, DriveId, Epoch, FamilyId, Seq, ShardId, Time};
use crate::interface::{
    Ceiling, Compression, DriveState, DriveView, FamilyRecord, FamilyTrouble, Input, Notice, Order, Outputs,
    Segment, View,
};
use crate::limits::Limits;
use crate::message::{Answer, Held, Message, Question, Refusal};
use crate::shard::{Settings, Shard};
use crate::volume::Volume;
use std::collections::{BTreeMap, VecDeque};

/// The log of an owner with two copies, in a pool of drives that a story changes.
struct Story {
    log: Appender,
    view: View,
    now: Time,
}

impl Story {
    /// Drive 0 in domain `domains[0]`, and so on; all up.
    fn new(domains: &[u32]) -> Self {
        Self::with_factor(2, domains)
    }

    fn with_factor(factor: u32, domains: &[u32]) -> Self {
        let drive = |(number, &domain): (usize, &u32)| {
            let view = DriveView { shard: ShardId(number as u32), domain, state: DriveState::Up };
            (DriveId(number as u32), view)
        };
        let drives = domains.iter().enumerate().map(drive).collect();
        let log = Appender::new(FamilyId(0), Epoch(1), factor, 0, Vec::new(), Seq(1));
        let mut story = Self { log, view: View { version: 1, drives, ..View::default() }, now: Time(1) };
        story.change();
        story
    }

    fn set(&mut self, drive: u32, state: DriveState) {
        self.view.version += 1;
        self.view.drives.get_mut(&DriveId(drive)).expect("the story has this drive").state = state;
    }

    fn with<T>(&mut self, what: impl FnOnce(&mut Appender, &mut Context) -> T) -> (T, Outputs) {
        let mut around =
            Surroundings { now: self.now, limits: Limits::small(), ..Surroundings::new(self.view.clone()) };
        let result = around.with(|ctx| what(&mut self.log, ctx));
        (result, around.out)
    }

    fn wants_others(&mut self) -> bool {
        self.with(|log, ctx| log.wants_other_members(false, ctx)).0
    }

    /// New members, which the config store takes.
    fn change(&mut self) {
        self.with(|log, ctx| {
            assert!(log.wants_other_members(false, ctx), "nobody changes members for nothing");
            let members = log.choose_members(ctx);
            log.change(log.segments.clone(), members, ctx);
        });
        assert_eq!(self.log.on_changed(self.log.version(), true, &BTreeMap::new()), Changed::Taken);
    }

    /// A record that all members hold.
    fn append(&mut self) {
        let seq = self.log.push(Body::Zero { block: Block(0), count: 1 });
        for drive in self.members() {
            self.log.on_appended(DriveId(drive), seq, 1 << 20);
        }
        assert_eq!(self.log.take_durable().map(|record| record.seq), Some(seq));
    }

    fn members(&self) -> Vec<u32> {
        self.log.members().map(|drive| drive.0).collect()
    }

    /// Drives that the config record names.
    fn named(&self) -> Vec<u32> {
        let mut named: Vec<u32> = self
            .log
            .segments
            .iter()
            .flat_map(|segment| segment.members.iter().map(|drive| drive.0))
            .collect();
        named.sort_unstable();
        named.dedup();
        named
    }
}

#[test]
fn a_log_leaves_a_drive_that_is_to_be_emptied() {
    let mut story = Story::new(&[0, 1, 2]);
    assert_eq!(story.members(), [0, 1]);
    story.append();
    story.set(1, DriveState::Draining);
    story.change();
    assert_eq!(story.members(), [0, 2]);
    assert!(!story.wants_others(), "once is enough");
    assert!(story.log.is_thin(&story.view), "what lies there is drained first");
    assert!(!story.log.names_leaving_drives(&story.view), "its records are still needed");
    story.log.trim = Seq(1);
    assert!(!story.log.is_thin(&story.view));
    assert!(story.log.names_leaving_drives(&story.view));
    let ((), out) = story.with(|log, ctx| log.forget_trimmed(ctx));
    let told = out.notices.iter().any(|notice| matches!(notice, Notice::ChangeSegments { .. }));
    assert!(told && story.log.is_changing());
    assert_eq!(story.log.on_changed(story.log.version(), true, &BTreeMap::new()), Changed::Taken);
    assert_eq!(story.named(), [0, 2]);
    story.append();
    assert_eq!(story.log.durable(), Seq(2), "it goes on where it was");
}

#[test]
fn a_log_stays_on_a_drive_that_is_to_be_emptied_while_there_are_not_enough_others() {
    let mut story = Story::new(&[0, 1]);
    story.set(1, DriveState::Draining);
    assert!(!story.wants_others(), "two copies are better than one");
    // Another drive of the domain that stays: not apart any more, but nothing else is left to be apart from.
    let mut story = Story::new(&[0, 1, 0]);
    assert_eq!(story.members(), [0, 1]);
    story.set(1, DriveState::Draining);
    story.change();
    assert_eq!(story.members(), [0, 2]);
}

#[test]
fn a_log_leaves_a_slow_drive_and_what_lies_there_stays() {
    let mut story = Story::new(&[0, 1, 2]);
    story.append();
    story.set(1, DriveState::Slow);
    story.change();
    assert_eq!(story.members(), [0, 2]);
    assert!(!story.wants_others(), "once is enough");
    assert!(!story.log.is_thin(&story.view), "it has its copies");
    story.set(1, DriveState::Up);
    assert!(!story.wants_others(), "nothing is better where it was");
}

#[test]
fn a_log_stays_on_a_slow_drive_rather_than_give_up_a_copy_or_a_domain() {
    let mut story = Story::new(&[0, 1]);
    story.set(1, DriveState::Slow);
    assert!(!story.wants_others());
    let mut story = Story::new(&[0, 1, 0]);
    story.set(1, DriveState::Slow);
    assert!(!story.wants_others(), "two copies of one domain are lost together");
    story.set(2, DriveState::Slow);
    assert!(!story.wants_others(), "nor if others are slow too");
}

#[test]
fn a_slow_drive_is_better_than_one_that_is_to_be_emptied() {
    let mut story = Story::new(&[0, 1, 2]);
    // Which of the others is taken first is the family's own order.
    let (taken, other) = if story.members() == [0, 1] { (1, 2) } else { (2, 1) };
    story.set(other, DriveState::Slow);
    story.set(taken, DriveState::Draining);
    story.change();
    assert_eq!(story.members(), [0, other]);
    assert!(!story.wants_others(), "once is enough");
}

#[test]
fn a_drive_that_is_to_be_emptied_is_left_also_if_others_are_slow() {
    let mut story = Story::with_factor(3, &[0, 1, 2, 2, 2]);
    let before = story.members();
    assert!(before.contains(&0) && before.contains(&1));
    story.set(0, DriveState::Slow);
    story.set(1, DriveState::Draining);
    story.change();
    let members = story.members();
    assert!(members.contains(&0) && !members.contains(&1), "two domains stay, and it has both: {members:?}");
    assert!(!story.wants_others(), "once is enough");
}

#[test]
fn a_log_whose_copies_had_to_come_together_is_spread_again() {
    let mut story = Story::new(&[0, 1, 0]);
    story.set(1, DriveState::Down);
    story.change();
    assert_eq!(story.members(), [0, 2], "two copies in one domain are better than one");
    assert!(!story.wants_others(), "there is nowhere else to go");
    story.set(1, DriveState::Up);
    story.change();
    assert_eq!(story.members(), [0, 1]);
    assert!(!story.wants_others(), "once is enough");
}

#[test]
fn copies_stay_in_distinct_domains_while_one_of_them_is_away_only_for_now() {
    let mut story = Story::new(&[0, 1, 0, 2]);
    // Which of the others is taken first is the family's own order.
    let (taken, other) = if story.members() == [0, 1] { (1, 3) } else { (3, 1) };
    assert_eq!(story.members(), [0, taken]);
    story.set(other, DriveState::Down);
    story.set(taken, DriveState::Draining);
    assert!(!story.wants_others(), "the other domain is expected back");
    story.set(other, DriveState::Up);
    story.change();
    assert_eq!(story.members(), [0, other]);
}

#[test]
fn a_drive_that_is_to_be_emptied_is_better_than_none() {
    let mut story = Story::new(&[0, 1, 2]);
    story.set(0, DriveState::Draining);
    story.set(2, DriveState::Draining);
    assert!(!story.wants_others());
    story.set(1, DriveState::Down);
    story.change();
    assert_eq!(story.members(), [0, 2]);
    story.set(1, DriveState::Up);
    story.change();
    assert_eq!(story.members(), [1, 0], "as few of them as possible");
}

#[test]
fn an_owner_that_opens_leaves_a_member_that_has_no_room_for_long() {
    let mut story = Story::new(&[0, 1, 2]);
    assert_eq!(story.members(), [0, 1]);
    let opening = |story: &mut Story| story.with(|log, ctx| log.wants_other_members(true, ctx)).0;
    story.log.push(Body::Zero { block: Block(0), count: 1 });
    for _ in 0..5 {
        story.log.on_append_refused(DriveId(1), Refusal::LogFull, story.now);
        assert!(!opening(&mut story), "it may have room soon");
        story.now = story.now.after(1_000_000);
    }
    assert!(!story.wants_others(), "who is open can make room itself");
    assert!(opening(&mut story));
    assert_eq!(story.with(|log, ctx| log.choose_members(ctx)).0, [DriveId(0), DriveId(2)]);
    story.set(2, DriveState::Slow);
    assert!(opening(&mut story), "what it writes late, it writes");
    assert_eq!(story.with(|log, ctx| log.choose_members(ctx)).0, [DriveId(0), DriveId(2)]);
    story.set(2, DriveState::Down);
    assert!(!opening(&mut story), "a member without room is better than none");
    assert_eq!(story.with(|log, ctx| log.choose_members(ctx)).0, [DriveId(0), DriveId(1)]);
    story.set(2, DriveState::Up);
    story.log.on_appended(DriveId(1), Seq(1), 1 << 20);
    assert!(!opening(&mut story), "it has room again");
}

#[test]
fn nobody_is_woken_for_a_member_that_cannot_be_sent_to() {
    let mut story = Story::new(&[0, 1, 2]);
    let pump = |story: &mut Story| drop(story.with(|log, ctx| log.pump(ctx)));
    story.log.push(Body::Zero { block: Block(0), count: 1 });
    pump(&mut story);
    assert_eq!(story.log.wake_at(story.now), None, "everything is on its way");
    story.log.on_append_refused(DriveId(1), Refusal::DriveGone, story.now);
    let again = story.now.after(10_000);
    assert_eq!(story.log.wake_at(story.now), Some(again));
    story.set(1, DriveState::Down);
    story.now = again;
    pump(&mut story);
    assert_eq!(story.log.wake_at(story.now), None, "of one that is down the view tells when it is back");
    story.log.on_append_refused(DriveId(0), Refusal::DriveGone, story.now);
    story.with(|log, ctx| log.change(log.segments.clone(), vec![DriveId(0), DriveId(2)], ctx));
    assert_eq!(story.log.wake_at(story.now), None, "the config store has the word, and may be away for long");
}

/// How many are asked for their room of 0 (a drive of this shard) and 1: at first, while 1 is silent, when it has answered, and when
/// it has refused to.
fn asked_for_room() -> [usize; 4] {
    let mut story = Story::new(&[0, 1]);
    let asked = |story: &mut Story| {
        story.now = story.now.after(10_000);
        story.with(|log, ctx| log.ask_for_room(10_000, ctx)).1.messages.len()
    };
    let (first, silent) = (asked(&mut story), asked(&mut story));
    story.log.on_trimmed(DriveId(1), Some(1 << 20));
    let answered = asked(&mut story);
    story.log.on_trimmed(DriveId(1), None);
    [first, silent, answered, asked(&mut story)]
}

#[test]
fn a_member_that_is_silent_is_not_asked_for_its_room_again_and_again() {
    assert_eq!(asked_for_room(), [1, 0, 1, 1], "the question is repeated until it is answered");
}

#[cfg(feature = "sabotage")]
#[test]
fn asking_a_silent_member_again_is_seen() {
    use crate::sabotage::{Bug, with};
    assert_eq!(with(Bug::SilentAskedAgain, asked_for_room), [1, 1, 1, 1]);
}

/// When a member is asked again that had no room for the first of two appends, and so missed it when it got the second.
fn asked_again_after_us() -> Option<u64> {
    let mut story = Story::new(&[0, 1]);
    for _ in 0..2 {
        story.log.push(Body::Zero { block: Block(0), count: 1 });
        story.with(|log, ctx| log.pump(ctx));
    }
    story.log.on_append_refused(DriveId(1), Refusal::LogFull, story.now);
    story.log.on_append_refused(DriveId(1), Refusal::Gap { expected: Seq(1) }, story.now);
    story.log.wake_at(story.now).map(|at| at.since(story.now))
}

#[test]
fn a_member_without_room_is_left_alone_also_by_what_was_sent_behind() {
    assert_eq!(asked_again_after_us(), Some(10_000));
}

#[cfg(feature = "sabotage")]
#[test]
fn asking_a_full_member_at_once_is_seen() {
    use crate::sabotage::{Bug, with};
    let after_us = with(Bug::FullAgainAtOnce, asked_again_after_us);
    assert_eq!(after_us, Some(1_000));
}

/// A vDisk with this log, to be opened in epoch 2.
fn record(segments: Vec<Segment>) -> FamilyRecord {
    FamilyRecord {
        family: FamilyId(1),
        epoch: Epoch(2),
        size: 1 << 30,
        factor: 2,
        segments,
        version: 1,
        origin: None,
        rollback: None,
        compression: Compression::default(),
        ceiling: Ceiling::default(),
    }
}

/// Opens a vDisk whose log lies on two drives that both know it, one of which has no room for a fence at first, and at last after this
/// time. Gives the members that its old segment is left with.
fn opened_with_a_full_member(full_us: u64) -> Vec<DriveId> {
    let mut story = Story::new(&[0, 1]);
    let members = vec![DriveId(0), DriveId(1)];
    let segments = vec![Segment::new(Seq(1), Epoch(1), members)];
    let mut volume = story.with(|_, ctx| Volume::open(record(segments), ctx)).0;
    let fenced = || Ok(Answer::Fenced(Held { room: 1 << 20, ..Held::default() }));
    let begin = story.now;
    story.with(|_, ctx| {
        volume.advance(ctx);
        volume.on_fenced(DriveId(0), fenced(), ctx);
        volume.on_fenced(DriveId(1), Err(Refusal::LogFull), ctx);
        volume.advance(ctx);
    });
    while story.now.since(begin) < full_us {
        story.now = story.now.after(10_000);
        story.with(|_, ctx| {
            volume.advance(ctx);
            volume.on_fenced(DriveId(1), Err(Refusal::LogFull), ctx);
            volume.advance(ctx);
        });
    }
    story.now = story.now.after(10_000);
    story.with(|_, ctx| {
        volume.advance(ctx);
        volume.on_fenced(DriveId(1), fenced(), ctx);
        volume.advance(ctx);
    });
    volume.log.segments.first().expect("it has one").members.clone()
}

#[test]
fn an_opening_waits_for_a_member_whose_ring_has_no_room_for_a_fence() {
    assert_eq!(
        opened_with_a_full_member(12_000_000),
        [DriveId(0), DriveId(1)],
        "it counts as a copy of the log"
    );
    assert_eq!(
        opened_with_a_full_member(20_000_000),
        [DriveId(0)],
        "what fills its ring may be this very vDisk"
    );
}

/// What became of an opening of which one member cannot give the first record, and one refuses every fence; `lacking`: one more
/// member, which never had any. Gives its end, if it has one within twenty seconds, and how often records were asked for.
fn opened_beside_a_member_that_refuses(lacking: bool) -> (Option<Notice>, usize) {
    const READER: DriveId = DriveId(1);
    const FULL: DriveId = DriveId(2);
    const LACKING: DriveId = DriveId(3);
    let mut rig = Opening::new(if lacking { vec![READER, FULL, LACKING] } else { vec![READER, FULL] });
    let mut reads = 0;
    let held = |high: u64| Held { low: Seq(high.min(1)), high: Seq(high), room: 1 << 20, ..Held::default() };
    while let Some((at, drive, question)) = rig.next_question(Time(20_000_000)) {
        let (after, answer) = match (drive, question) {
            (FULL, _) => (0, Err(Refusal::LogFull)),
            (READER, Question::Fence { .. }) => (1_000, Ok(Answer::Fenced(held(3)))),
            (LACKING, Question::Fence { .. }) => (1_000, Ok(Answer::Fenced(held(0)))),
            (READER, Question::ReadLog { .. }) => {
                reads += 1;
                let record = |seq| Record { seq: Seq(seq), body: Body::Zero { block: Block(0), count: 1 } };
                (
                    15_000,
                    Ok(Answer::Records {
                        records: vec![record(2), record(3)],
                        lost: Vec::new(),
                        unread: Vec::new(),
                        end: true,
                    }),
                )
            }
            (_, question) => unreachable!("{drive} is asked {question:?}"),
        };
        rig.answer(at, after, answer);
    }
    (rig.end, reads)
}

#[test]
fn an_opening_beside_a_member_that_refuses_comes_to_an_end() {
    let (end, reads) = opened_beside_a_member_that_refuses(false);
    let reason = FamilyTrouble::RecordLost(Seq(1));
    let told = Notice::FamilyFailed { family: FamilyId(1), epoch: Epoch(2), reason };
    assert_eq!(end, Some(told), "after {reads} reads");
    assert!(reads < 5, "{reads} times");
    let (end, reads) = opened_beside_a_member_that_refuses(true);
    assert!(matches!(end, Some(Notice::ChangeSegments { .. })), "the log ends before it: {end:?}");
    assert!(reads < 5, "{reads} times");
}

#[cfg(feature = "sabotage")]
#[test]
fn an_opening_that_leaves_a_full_member_out_at_once_is_seen() {
    use crate::sabotage::{Bug, with};
    let members = with(Bug::FullMemberLeftOut, || opened_with_a_full_member(0));
    assert_eq!(members, [DriveId(0)]);
}

#[test]
fn who_was_absent_gives_up_what_is_older_than_the_segment_too() {
    let mut story = Story::new(&[0, 1]);
    let first = Segment { absent: vec![DriveId(1)], ..Segment::new(Seq(5), Epoch(2), vec![DriveId(0)]) };
    let last = Segment::new(Seq(9), Epoch(4), vec![DriveId(0), DriveId(1)]);
    let record = FamilyRecord { epoch: Epoch(7), ..record(vec![first, last]) };
    let mut volume = story.with(|_, ctx| Volume::open(record, ctx)).0;
    let held = Held { low: Seq(9), high: Seq(9), room: 1 << 20, ..Held::default() };
    let mut fences = Vec::new();
    for _ in 0..5 {
        let ((), out) = story.with(|_, ctx| volume.advance(ctx));
        let asked: Vec<(DriveId, Seq, Epoch)> = out
            .messages
            .iter()
            .filter_map(|(_, message)| match message {
                Message::Ask { drive, question: Question::Fence { first, since }, .. } => {
                    Some((*drive, *first, *since))
                }
                _ => None,
            })
            .collect();
        for (drive, ..) in asked.iter().rev() {
            story.with(|_, ctx| volume.on_fenced(*drive, Ok(Answer::Fenced(held.clone())), ctx));
        }
        fences.extend(asked);
    }
    // (The own drive's question is no message.)
    assert_eq!(fences, [(DriveId(1), Seq(9), Epoch(4)), (DriveId(1), Seq(5), Epoch(2))]);
}

/// An owner's shard that opens a vDisk whose log lies on drives of other shards, which a story answers for.
struct Opening {
    shard: Shard,
    now: Time,
    /// What comes to the shard, and when.
    coming: BTreeMap<(Time, u64), Message>,
    /// What it has asked and was not answered, and when.
    asked: VecDeque<(Time, ShardId, Message)>,
    end: Option<Notice>,
}

impl Opening {
    fn new(members: Vec<DriveId>) -> Self {
        let shard = Shard::new(Settings { shard: ShardId(0), seed: 1, limits: Limits::default() });
        let mut opening =
            Self { shard, now: Time(1), coming: BTreeMap::new(), asked: VecDeque::new(), end: None };
        let drive = |&drive: &DriveId| {
            (drive, DriveView { shard: ShardId(drive.0), domain: drive.0, state: DriveState::Up })
        };
        let drives = members.iter().map(drive).collect();
        let segments = vec![Segment::new(Seq(1), Epoch(1), members)];
        opening.step(Input::Order(Order::View(View { version: 1, drives, ..View::default() })));
        opening.step(Input::Order(Order::OpenFamily(record(segments))));
        opening
    }

    fn step(&mut self, input: Input) {
        let mut out = Outputs::default();
        self.shard.step(self.now, input, &mut out);
        self.asked.extend(out.messages.into_iter().map(|(to, message)| (self.now, to, message)));
        self.end = self.end.take().or(out.notices.pop());
    }

    /// The next thing that is asked for until then, if the opening has not come to its end.
    fn next_question(&mut self, until: Time) -> Option<(Time, DriveId, Question)> {
        while self.end.is_none() {
            if let Some((at, _, Message::Ask { drive, question, .. })) = self.asked.front() {
                return Some((*at, *drive, question.clone()));
            }
            let next = self.coming.first_key_value().map(|(&(at, _), _)| at);
            let at = [next, self.shard.wake_at()].into_iter().flatten().min().filter(|at| *at <= until)?;
            self.now = self.now.max(at);
            let due = self.coming.first_entry().filter(|entry| entry.key().0 <= self.now);
            match due.map(|entry| entry.remove()) {
                Some(message) => self.step(Input::Message { from: ShardId(1), message }),
                None => {
                    self.now = self.now.after(1);
                    self.step(Input::Wake);
                }
            }
        }
        None
    }

    /// Answers it.
    fn answer(&mut self, at: Time, after_us: u64, answer: Result<Answer, Refusal>) {
        let Some((_, _, Message::Ask { call, drive, family, .. })) = self.asked.pop_front() else {
            unreachable!("what is answered was asked");
        };
        self.coming
            .insert((at.after(after_us), call), Message::Answer { call, drive, family, free: 0, answer });
    }
}

#[cfg(feature = "sabotage")]
#[test]
fn an_owner_that_opens_and_stays_with_a_full_member_is_seen() {
    use crate::sabotage::{Bug, with};
    let leaves = || {
        let mut story = Story::new(&[0, 1, 2]);
        story.log.push(Body::Zero { block: Block(0), count: 1 });
        story.log.on_append_refused(DriveId(1), Refusal::LogFull, story.now);
        story.now = story.now.after(10_000_000);
        story.with(|log, ctx| log.wants_other_members(true, ctx)).0
    };
    assert!(leaves());
    let with_bug = with(Bug::FullMemberKept, leaves);
    assert!(!with_bug);
}
