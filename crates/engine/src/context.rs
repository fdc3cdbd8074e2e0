//! What every part of the owner half works with: time, limits, the view, and the questions it has asked.
//! Promises: a question is repeated until it is answered or its drive is no longer up; then the asker hears
//! [`Refusal::DriveGone`] once. Questions to drives of the own shard never leave it.
//! Leaves to others: what an answer means (`volume`).

use crate::cache::Cache;
use crate::counters::Counters;
use crate::curator::budget::Budget;
use crate::egroup::asked::SpaceAsked;
use crate::identity::Ticket;
use crate::identity::{DriveId, EgroupId, Epoch, FamilyId, GroupId, ShardId, Time};
use crate::interface::{DriveState, Notice, Outputs, Reply, View};
use crate::limits::Limits;
use crate::message::{Answer, Message, Question, Refusal, UnitRun};
use crate::pace::{self, Paces};
use crate::sabotage::{Bug, planted};
use std::collections::{BTreeMap, VecDeque};

/// Names what an answer is for, inside one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    Fence,
    /// A piece of the log, for recovery.
    Replay,
    Append,
    /// A piece of an earlier segment, read or written.
    Late,
    /// What a member lacks of the end of the log, while the vDisk is opened.
    Give,
    Trim,
    /// The egroup of this placement job.
    Place(u64),
    /// Units for this read part.
    Units(u64),
    /// A page of the map, for this fetch.
    Page(u64),
    /// A page that an opening needs.
    Load(u64),
    Audit(u64),
    Compact(u64),
    /// What the drive has for client data: each answer says that.
    Space,
    /// Nobody waits for it, but for the space.
    Forget,
    /// What was written there in vain goes.
    TakeBack,
    /// Part of dropping the family.
    Drop,
}

/// A question that has no answer yet.
#[derive(Debug)]
struct Call {
    family: FamilyId,
    epoch: Epoch,
    drive: DriveId,
    purpose: Purpose,
    question: Question,
    asked: Time,
    ask_again: Time,
    /// Of a read: how many reads the drive had when it was asked.
    read: Option<u64>,
}

impl Call {
    /// Whether a client waits for it.
    fn is_of_client(&self) -> bool {
        matches!(self.purpose, Purpose::Units(_))
    }

    fn is_egroup(&self) -> bool {
        matches!(self.question, Question::WriteEgroup { .. })
    }
}

/// All questions of a shard.
#[derive(Debug, Default)]
pub struct Calls {
    last: u64,
    open: BTreeMap<u64, Call>,
    /// No question has to be asked again before this. May be too early, never too late.
    next_repeat: Option<Time>,
    /// Egroups on their way to each drive.
    writes: BTreeMap<DriveId, u32>,
    pub paces: Paces,
    pub budget: Budget,
}

/// An answer with what it was for.
pub struct Answered {
    pub family: FamilyId,
    pub drive: DriveId,
    pub purpose: Purpose,
    pub answer: Result<Answer, Refusal>,
    pub took_us: u64,
}

impl Calls {
    /// Call numbers of a shard that started at another time must differ, so that a late answer to an earlier
    /// life finds nothing; `seed` gives them another beginning.
    pub fn new(seed: u64) -> Self {
        Self {
            last: seed << 40,
            open: BTreeMap::new(),
            next_repeat: None,
            writes: BTreeMap::new(),
            paces: Paces::default(),
            budget: Budget::default(),
        }
    }

    /// A number that no other question of this shard's life has, and none of an earlier one.
    pub fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub fn len_of(&self, family: FamilyId) -> usize {
        self.open.values().filter(|call| call.family == family).count()
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Egroups that this shard is having written on the drive.
    pub fn writes(&self, drive: DriveId) -> u32 {
        self.writes.get(&drive).copied().unwrap_or(0)
    }

    /// A drive was closed or failed: what was asked of it in vain is asked again.
    pub fn revive(&mut self, drive: DriveId, now: Time) {
        for call in self.open.values_mut().filter(|call| call.drive == drive) {
            call.ask_again = now.after(1_000);
            self.next_repeat = earlier(self.next_repeat, call.ask_again);
        }
    }

    /// What was asked of the drives of this shard may not have arrived there: it is asked again at the next
    /// [`Calls::repeat`], except what was asked at this very moment.
    pub fn unheard(&mut self, shard: ShardId, view: &View, now: Time, retry_us: u64) {
        for call in self.open.values_mut() {
            let is_there = view.drives.get(&call.drive).is_some_and(|drive| drive.shard == shard);
            if is_there && call.ask_again != NEVER && call.ask_again < now.after(retry_us) {
                call.ask_again = now;
                self.next_repeat = Some(now);
            }
        }
    }

    /// A family is not served any more: nobody waits for these.
    pub fn forget(&mut self, family: FamilyId) {
        self.budget.forget(family);
        let of_family = self.open.iter().filter(|(_, call)| call.family == family);
        let numbers: Vec<u64> = of_family.map(|(&number, _)| number).collect();
        for number in numbers {
            self.end(number);
        }
    }

    /// Nobody waits for a deletion, and what it leaves is found by the next list: those asked of this drive are not asked
    /// again (of one egroup, or of all), because a drive that was started anew could not tell that they are of before
    /// what is asked of it now.
    pub fn forget_deletions(&mut self, family: FamilyId, drive: DriveId, of: Option<EgroupId>) {
        if planted(Bug::DeletionsRepeated) || planted(Bug::LateDeletion) {
            return;
        }
        self.open.retain(|_, call| {
            let Question::DeleteEgroups { egroups } = &call.question else { return true };
            call.family != family
                || call.drive != drive
                || of.is_some_and(|egroup| !egroups.contains(&egroup))
        });
    }

    /// An answer has come. None: it was answered before, or nobody waits any more.
    pub fn take(
        &mut self,
        call: u64,
        answer: Result<Answer, Refusal>,
        view: &View,
        now: Time,
        retry_us: u64,
    ) -> Option<Answered> {
        let open = self.open.get_mut(&call)?;
        // A keeper that says its drive is gone while the view says it is up is starting, or the view is
        // about to change: only the view decides who is a member, so ask again.
        if matches!(answer, Err(Refusal::DriveGone)) && is_up(view, open.drive) {
            open.ask_again = now.after(retry_us);
            self.next_repeat = earlier(self.next_repeat, open.ask_again);
            return None;
        }
        let call = self.end(call);
        let took_us = now.since(call.asked);
        if let Some(questions) = call.read
            && answer.is_ok()
            && is_small(&call.question)
        {
            self.paces.learn(call.drive, took_us, questions);
            if call.is_of_client() {
                self.budget.client_answered(call.drive, took_us, now);
            }
        }
        Some(Answered { family: call.family, drive: call.drive, purpose: call.purpose, answer, took_us })
    }

    /// Nobody waits for this one any more.
    fn end(&mut self, number: u64) -> Call {
        let call = self.open.remove(&number).expect("what ends was asked");
        if call.is_egroup() {
            *self.writes.get_mut(&call.drive).expect("it was counted when it was asked") -= 1;
        }
        if call.read.is_some() {
            self.paces.ended(call.drive);
            if call.is_of_client() {
                self.budget.client_ended(call.drive);
            }
        }
        call
    }

    /// Questions to drives that are no longer up.
    pub fn gone(&self, view: &View) -> Vec<u64> {
        self.open.iter().filter(|(_, call)| !is_up(view, call.drive)).map(|(&number, _)| number).collect()
    }

    pub fn wake_at(&self) -> Option<Time> {
        self.next_repeat
    }

    /// Asks again what has been without an answer for too long.
    pub fn repeat(
        &mut self,
        now: Time,
        limits: &Limits,
        view: &View,
        own: ShardId,
        out: &mut Outputs,
        local: &mut VecDeque<Message>,
    ) {
        if self.next_repeat.is_none_or(|at| at > now) {
            return;
        }
        self.next_repeat = None;
        for (&number, call) in &mut self.open {
            if call.ask_again > now {
                if call.ask_again != NEVER {
                    self.next_repeat = earlier(self.next_repeat, call.ask_again);
                }
                continue;
            }
            let Some(drive) = view.drives.get(&call.drive) else { continue };
            let message = Message::Ask {
                call: number,
                drive: call.drive,
                family: call.family,
                epoch: call.epoch,
                question: call.question.clone(),
            };
            if drive.shard == own {
                // The own keeper answers every question once; it is asked again only after it refused.
                call.ask_again = NEVER;
                local.push_back(message);
            } else {
                call.ask_again = now.after(limits.call_retry_us);
                self.next_repeat = earlier(self.next_repeat, call.ask_again);
                out.messages.push((drive.shard, message));
            }
        }
    }
}

const NEVER: Time = Time(u64::MAX);

/// Whether the time of the answer tells how busy the drive is, rather than how much was asked.
fn is_small(question: &Question) -> bool {
    let Question::ReadUnits { runs, .. } = question else { return false };
    let units = |run: &UnitRun| u64::from(run.count);
    runs.iter().map(units).sum::<u64>() <= u64::from(pace::UNITS_MAX)
}

/// The earlier of a wish to wake, if there is one, and `at`.
pub fn earlier(wish: Option<Time>, at: Time) -> Option<Time> {
    Some(wish.map_or(at, |wish| wish.min(at)))
}

pub fn is_up(view: &View, drive: DriveId) -> bool {
    view.drives.get(&drive).is_some_and(|drive| drive.state.is_up())
}

/// Whether nothing comes back from there any more: it is given up, or nobody knows of it.
pub fn is_lost(view: &View, drive: DriveId) -> bool {
    view.drives.get(&drive).is_none_or(|drive| drive.state == DriveState::Lost)
}

/// Whether it belongs to the pool for the time to come.
pub fn stays(view: &View, drive: DriveId) -> bool {
    view.drives.get(&drive).is_some_and(|drive| drive.state.stays())
}

/// Whether what lies there is there and need not be elsewhere.
pub fn keeps(view: &View, drive: DriveId) -> bool {
    view.drives.get(&drive).is_some_and(|drive| drive.state.keeps())
}

/// Numbers that look random and are the same in every run of the same seed (SplitMix64).
#[derive(Debug)]
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }
}

/// Clients that have asked for nothing so long are not there.
pub(crate) const IDLE_US: u64 = 1_000_000;

/// What a step of one volume may use.
pub struct Context<'a> {
    pub now: Time,
    pub shard: ShardId,
    pub limits: &'a Limits,
    pub view: &'a View,
    pub calls: &'a mut Calls,
    /// What each drive last said it could still take of client data, in bytes; the number beside it grows
    /// with every change.
    pub free: &'a BTreeMap<DriveId, u64>,
    pub free_changes: u64,
    /// See [`Volume::ask_for_space`](crate::volume::Volume).
    pub space_asked: &'a mut SpaceAsked,
    /// Bytes acknowledged or on their way, and not in egroups yet, of all families of this shard.
    pub dirty_bytes: u64,
    /// Families of this shard that were written to lately.
    pub writers: usize,
    /// When a client last asked for something of any family of this shard.
    pub last_asked: Time,
    pub draw: &'a mut Draw,
    pub counters: &'a mut Counters,
    pub cache: &'a mut Cache,
    pub out: &'a mut Outputs,
    /// Messages of this shard to itself.
    pub local: &'a mut VecDeque<Message>,
}

impl Context<'_> {
    /// Asks the keeper of `drive`. If the drive is not up, the answer is [`Refusal::DriveGone`].
    pub fn ask(
        &mut self,
        family: FamilyId,
        epoch: Epoch,
        drive: DriveId,
        question: Question,
        purpose: Purpose,
    ) {
        self.calls.last += 1;
        let call = self.calls.last;
        let shard = self.view.drives.get(&drive).map(|drive| drive.shard);
        let own = shard == Some(self.shard);
        if !is_up(self.view, drive) {
            let answer = Err(Refusal::DriveGone);
            self.local.push_back(Message::Answer { call, drive, family, free: 0, answer });
            let ask_again = NEVER;
            let question = Question::Trim { up_to: crate::identity::Seq(0) };
            let (asked, read) = (self.now, None);
            let open = Call { family, epoch, drive, purpose, question, asked, ask_again, read };
            self.calls.open.insert(call, open);
            return;
        }
        let shard = shard.expect("a drive that is up is in the view");
        // The question is kept to be asked again; its data is shared, not copied.
        let ask_again = if own { NEVER } else { self.now.after(self.limits.call_retry_us) };
        if !own {
            self.calls.next_repeat = earlier(self.calls.next_repeat, ask_again);
        }
        let message = Message::Ask { call, drive, family, epoch, question: question.clone() };
        // What waits behind others does not tell how fast the drive is.
        let is_read = matches!(question, Question::ReadUnits { behind: false, .. });
        let (asked, read) = (self.now, is_read.then(|| self.calls.paces.asked(drive)));
        if is_read && matches!(purpose, Purpose::Units(_)) {
            self.calls.budget.client_asked(drive, self.now);
        }
        let open = Call { family, epoch, drive, purpose, question, asked, ask_again, read };
        if open.is_egroup() {
            *self.calls.writes.entry(drive).or_default() += 1;
        }
        self.calls.open.insert(call, open);
        if own {
            self.local.push_back(message);
        } else {
            self.out.messages.push((shard, message));
        }
    }

    /// Whether a client has asked for something lately, of whichever family: work that can wait takes little of the shard then.
    pub fn is_asked(&self) -> bool {
        self.now < self.last_asked.after(IDLE_US)
    }

    pub fn is_up(&self, drive: DriveId) -> bool {
        is_up(self.view, drive)
    }

    pub fn is_lost(&self, drive: DriveId) -> bool {
        is_lost(self.view, drive)
    }

    /// Whether new things go there rather than to others: it is up, not about to be emptied, and not slow.
    pub fn is_open(&self, drive: DriveId) -> bool {
        self.view.drives.get(&drive).is_some_and(|drive| drive.state.is_open())
    }

    /// Whether this shard keeps the drive itself.
    pub fn is_own(&self, drive: DriveId) -> bool {
        self.view.drives.get(&drive).is_some_and(|view| view.shard == self.shard)
    }

    /// Whom of these to ask: an own drive, or the first.
    pub fn nearest(&self, drives: impl Iterator<Item = DriveId> + Clone) -> Option<DriveId> {
        drives.clone().find(|&drive| self.is_own(drive)).or_else(|| drives.clone().next())
    }

    /// Whether the drive is in the node of this shard.
    pub fn is_near(&self, drive: DriveId) -> bool {
        self.view.drives.get(&drive).is_some_and(|view| view.shard.node() == self.shard.node())
    }

    pub fn members(&self, group: GroupId) -> &[DriveId] {
        self.view.groups.get(&group).map_or(&[], |group| &group.members)
    }

    pub fn notice(&mut self, notice: Notice) {
        self.out.notices.push(notice);
    }

    pub fn reply(&mut self, ticket: Ticket, reply: Reply) {
        self.out.replies.push((ticket, reply));
    }
}

/// What a [`Context`] is made of where there is no shard: in tests of single parts.
#[cfg(test)]
pub(crate) struct Surroundings {
    pub now: Time,
    pub shard: ShardId,
    pub limits: Limits,
    pub view: View,
    pub calls: Calls,
    pub free: BTreeMap<DriveId, u64>,
    pub out: Outputs,
}

#[cfg(test)]
impl Surroundings {
    /// Shard 0, as it begins.
    pub fn new(view: View) -> Self {
        let (limits, calls) = (Limits::default(), Calls::new(0));
        let (free, out) = (BTreeMap::new(), Outputs::default());
        Self { now: Time(0), shard: ShardId(0), limits, view, calls, free, out }
    }

    pub fn with<T>(&mut self, work: impl FnOnce(&mut Context) -> T) -> T {
        work(&mut Context {
            now: self.now,
            shard: self.shard,
            limits: &self.limits,
            view: &self.view,
            calls: &mut self.calls,
            free: &self.free,
            free_changes: 0,
            space_asked: &mut SpaceAsked::default(),
            dirty_bytes: 0,
            writers: 0,
            last_asked: Time(0),
            draw: &mut Draw::new(1),
            counters: &mut Counters::default(),
            cache: &mut Cache::new(0),
            out: &mut self.out,
            local: &mut VecDeque::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::DriveView;

    /// Shard 0, and three drives of as many shards.
    struct Rig(Surroundings);

    impl Rig {
        fn new() -> Self {
            let view = |number| DriveView { shard: ShardId(number), domain: number, state: DriveState::Up };
            let drives = (0..3).map(|number| (DriveId(number), view(number))).collect();
            Self(Surroundings::new(View { version: 1, drives, ..View::default() }))
        }

        fn ask(&mut self, now: Time, family: u32, drive: u32, question: Question, purpose: Purpose) {
            self.0.now = now;
            self.0.with(|ctx| ctx.ask(FamilyId(family), Epoch(1), DriveId(drive), question, purpose));
        }

        /// What is asked again: the shard, and the number of the question.
        fn repeat(&mut self, now: Time) -> Vec<(ShardId, u64)> {
            let Surroundings { limits, view, calls, out, .. } = &mut self.0;
            out.messages.clear();
            let mut local = VecDeque::new();
            calls.repeat(now, limits, view, ShardId(0), out, &mut local);
            assert!(local.is_empty(), "what is asked of the own drives is not lost");
            let number = |message: &Message| match message {
                Message::Ask { call, .. } => *call,
                other => panic!("only questions are asked: {other:?}"),
            };
            out.messages.iter().map(|(to, message)| (*to, number(message))).collect()
        }
    }

    #[test]
    fn what_may_be_lost_is_asked_again_at_once_and_nothing_else() {
        let mut rig = Rig::new();
        for drive in 0..3 {
            rig.ask(Time(1_000), 1, drive, Question::DropFamily, Purpose::Drop);
        }
        let later = Time(5_000);
        rig.ask(later, 1, 1, Question::DropFamily, Purpose::Drop);
        let mut asked = Vec::new();
        for _ in 0..2 {
            // Two connections that end together are told of twice.
            rig.0.calls.unheard(ShardId(1), &rig.0.view, later, rig.0.limits.call_retry_us);
            asked.extend(rig.repeat(later));
        }
        assert_eq!(asked, [(ShardId(1), 2)], "the first question to that shard, once");
        let all_else = Time(1_000).after(rig.0.limits.call_retry_us);
        assert_eq!(rig.0.calls.wake_at(), Some(all_else), "as before");
    }

    #[test]
    fn a_deletion_is_not_asked_for_again_once_it_is_forgotten() {
        let delete = |egroups: &[u64]| {
            let egroups = egroups.iter().copied().map(EgroupId).collect();
            Question::DeleteEgroups { egroups }
        };
        let mut rig = Rig::new();
        rig.ask(Time(0), 1, 1, delete(&[1, 2]), Purpose::Forget);
        rig.ask(Time(0), 1, 1, delete(&[3]), Purpose::Forget);
        rig.ask(Time(0), 1, 2, delete(&[2]), Purpose::Forget);
        rig.ask(Time(0), 2, 1, delete(&[2]), Purpose::Forget);
        rig.ask(Time(0), 1, 1, Question::DropFamily, Purpose::Drop);
        let retry_us = rig.0.limits.call_retry_us;

        rig.0.calls.forget_deletions(FamilyId(1), DriveId(1), Some(EgroupId(2)));
        let others = [(ShardId(1), 2), (ShardId(2), 3), (ShardId(1), 4), (ShardId(1), 5)];
        assert_eq!(rig.repeat(Time(retry_us)), others, "all but what has the egroup in it");

        rig.0.calls.forget_deletions(FamilyId(1), DriveId(1), None);
        let others = [(ShardId(2), 3), (ShardId(1), 4), (ShardId(1), 5)];
        assert_eq!(
            rig.repeat(Time(2 * retry_us)),
            others,
            "of other drives and families, and other questions"
        );
    }
}
