//! What owners do to the log: append, trim, fence, drop. ARCHITECTURE.md, "The rules of the log".
//! Leaves to others: writing what is queued (`ring_write`), which every caller makes happen afterwards.

use crate::buffer::BLOCK;
use crate::formats::frame::{Copied, RecordKind, header_blocks, payload_blocks};
use crate::formats::payload;
use crate::formats::record::{Body, Record};
use crate::identity::{Epoch, FamilyId, Seq, ShardId, Time};
use crate::keeper::desk::{Caller, Desk};
use crate::keeper::holding::{Holding, Home, Place};
use crate::keeper::ring::{DATA_RECORDS_MAX, LAST_BLOCKS, Queued, Ring, Waiter, WantedFence, queued_cost};
use crate::message::{Answer, Held, Refusal};
use crate::sabotage::{Bug, planted};

/// See [`crate::message::Question::AppendLate`].
pub(super) struct LateRecords {
    pub first: Seq,
    pub since: Epoch,
    pub records: Vec<Record>,
    pub urgent: bool,
}

/// What records are queued as.
#[derive(Clone, Copy)]
struct Entry {
    family: FamilyId,
    epoch: Epoch,
    begin: Seq,
    copied: Copied,
    frees: bool,
}

impl Ring {
    /// The fence that refuses `epoch`, if one does.
    pub fn fenced(&self, family: FamilyId, epoch: Epoch) -> Option<Epoch> {
        self.holdings.get(&family).map(|holding| holding.fence).filter(|fence| epoch < *fence)
    }

    /// Somebody asks in an epoch that is not fenced: from now on older ones are.
    pub fn admit(&mut self, from: ShardId, family: FamilyId, epoch: Epoch, desk: &mut Desk) {
        let holding = self.holdings.entry(family).or_default();
        if epoch >= holding.fence {
            holding.owner = Some(from);
        }
        if epoch > holding.fence && !planted(Bug::FenceForgotten) {
            holding.fence = epoch;
            self.shut_out(family, epoch, desk);
        }
    }

    /// Lets go of what owners before `epoch` have queued. It was not acknowledged, and if it were written
    /// later, it would come after a fence was answered.
    pub fn shut_out(&mut self, family: FamilyId, epoch: Epoch, desk: &mut Desk) {
        let Some(holding) = self.holdings.get_mut(&family) else { return };
        let late = |place: &Place| place.epoch < epoch && matches!(place.home, Home::Queued(_));
        let late: Vec<Seq> =
            holding.places.iter().rev().filter(|(_, place)| late(place)).map(|(seq, _)| *seq).collect();
        let late: Vec<Place> = late.iter().filter_map(|seq| holding.places.remove(seq)).collect();
        for (caller, older) in std::mem::take(&mut holding.fence_waiters) {
            if older < epoch {
                desk.refuse(caller, Refusal::Fenced(epoch));
            } else {
                holding.fence_waiters.push((caller, older));
            }
        }
        late.iter().for_each(|place| self.let_go(place));
        self.waiters.retain(|waiter| {
            let stale = waiter.caller.family == family && waiter.epoch < epoch;
            if stale {
                desk.refuse(waiter.caller, Refusal::Fenced(epoch));
            }
            !stale
        });
    }

    /// See [`crate::message::Question::Fence`]. Answered when the fence is durable.
    pub fn fence(
        &mut self,
        now: Time,
        caller: Caller,
        epoch: Epoch,
        first: Seq,
        since: Epoch,
        desk: &mut Desk,
    ) {
        let holding = self.holdings.get_mut(&caller.family).expect("whoever asks was admitted");
        holding.told_in = holding.told_in.max(epoch);
        let older = holding.take_older(first, since);
        for place in &older {
            self.let_go(place);
        }
        self.count_dead();
        let is_news = self.note_since(now, caller.family, since);
        let holding = self.holdings.get_mut(&caller.family).expect("still there");
        // What was taken away now is not to be back after a crash.
        let durable = older.is_empty()
            && !is_news
            && holding.durable_fence.is_some_and(|(durable, _)| durable >= epoch);
        if durable || planted(Bug::FenceForgotten) {
            let held = self.held(now, caller.family);
            return desk.answer(caller, Ok(Answer::Fenced(held)));
        }
        holding.fence_waiters.push((caller, epoch));
        self.wanted_fences.insert(caller.family, WantedFence { first, since });
    }

    /// What is held and settled of a family.
    pub fn held(&mut self, now: Time, family: FamilyId) -> Held {
        let room = self.room(now);
        let Some(holding) = self.holdings.get(&family) else {
            return Held { room, incomplete: self.missing.is_some(), ..Held::default() };
        };
        // What is behind the damage follows it: a gap would be noticed.
        let incomplete =
            self.missing.is_some_and(|missing| holding.last_frame().is_none_or(|number| number < missing))
                || holding.unsure.is_some_and(|place| !place.is_torn())
                || holding
                    .doubt
                    .is_some_and(|doubt| doubt.anybody.had_settled && doubt.since >= holding.log_since);
        let mut held = Held { room, incomplete, torn: self.is_torn_for(family), ..Held::default() };
        for (seq, place) in holding.places.iter().filter(|(_, place)| place.is_settled(self.settled)) {
            if held.low == Seq(0) {
                held.low = *seq;
            }
            held.high = *seq;
            if place.kind == RecordKind::Checkpoint {
                held.checkpoints.push(*seq);
            }
        }
        if let (Some((low, _)), Some((high, _))) =
            (holding.lost.first_key_value(), holding.lost.last_key_value())
        {
            held.low = if held.low == Seq(0) { *low } else { held.low.min(*low) };
            held.high = held.high.max(*high);
        }
        held
    }

    /// See [`crate::message::Question::Append`]. Answered when everything is settled, or refused at once.
    pub fn append(
        &mut self,
        now: Time,
        caller: Caller,
        epoch: Epoch,
        first: Seq,
        records: Vec<Record>,
        desk: &mut Desk,
    ) {
        self.note_asked(now);
        let holding = self.holdings.get_mut(&caller.family).expect("whoever asks was admitted");
        holding.asked_at = now;
        let (Some(low), Some(last)) = (records.first().map(|r| r.seq), records.last().map(|r| r.seq)) else {
            let up_to = if holding.run.epoch == epoch { holding.run.high } else { first.previous() };
            return self.answer_when_settled(now, caller, epoch, up_to, desk);
        };
        assert!(low > Seq(0), "records are numbered from 1 on");
        assert!(records.is_sorted_by(|a, b| a.seq.next() == b.seq), "records follow each other without gaps");
        // What older epochs left here does not count: it may differ from what the owner of this epoch has
        // on its way, so records have to follow those of their own epoch, or the beginning.
        let mut expected = first.max(holding.trimmed.next());
        if holding.run.epoch == epoch {
            expected = expected.max(holding.run.high.next());
        }
        if low > expected {
            return desk.refuse(caller, Refusal::Gap { expected });
        }
        let fresh = |record: &&Record| !holding.has(record.seq, epoch);
        let Some(begin) = records.iter().find(fresh).map(|record| record.seq) else {
            return self.answer_when_settled(now, caller, epoch, last, desk);
        };
        let cost = cost_of(records.iter().filter(fresh));
        let frees = !self.has_space(cost);
        if frees && !self.may_use_slack(caller.family, &records) {
            return desk.refuse(caller, Refusal::LogFull);
        }
        let holding = self.holdings.get_mut(&caller.family).expect("still there");
        for place in holding.enter(epoch, begin, last) {
            self.let_go(&place);
        }
        // Its owner knows where the log of its day ends.
        self.end_doubts_up_to(caller.family, epoch);
        let family = caller.family;
        let begin = self.holdings[&family].run.begin;
        let entry = Entry { family, epoch, begin, copied: Copied::No, frees };
        self.queue_for(caller, epoch, entry, records, last);
    }

    /// See [`crate::message::Question::AppendLate`]. Answered when everything is settled, or refused at once.
    pub fn append_late(
        &mut self,
        now: Time,
        caller: Caller,
        epoch: Epoch,
        late: LateRecords,
        desk: &mut Desk,
    ) {
        let LateRecords { first, since, mut records, urgent } = late;
        let family = caller.family;
        let holding = self.holdings.get_mut(&family).expect("whoever asks was admitted");
        holding.asked_at = now;
        let last = records.last().expect("something is appended").seq;
        assert!(records.is_sorted_by(|a, b| a.seq.next() == b.seq), "records follow each other without gaps");
        // Nobody knows of epochs to come.
        let since = if planted(Bug::LateRecordsAsNew) { epoch } else { since.min(epoch) };
        records.retain(|record| !holding.has(record.seq, since));
        if records.is_empty() {
            return self.answer_when_settled(now, caller, epoch, last, desk);
        }
        let cost = cost_of(records.iter());
        // They are data that has a copy: what lets go of records goes first, unless nothing goes on before they are here.
        let urgent = urgent && !planted(Bug::EndsWaitForRoom);
        let has_room = urgent || self.free() + self.dead_blocks() >= cost + self.reserve();
        let frees = !self.has_space(cost);
        let fits = !frees || urgent && self.may_use_slack(family, &records);
        if !fits || !has_room && !planted(Bug::LateCopiesTakeAll) {
            return desk.refuse(caller, Refusal::LogFull);
        }
        let holding = self.holdings.get_mut(&family).expect("still there");
        // What is newer may lie before it.
        holding.was_carried = true;
        let void = holding.enter(since, first, last);
        void.iter().for_each(|place| self.let_go(place));
        // As where it is found again after a crash: with a newer one its family's log ends, if there is one.
        let entry = Entry { family, epoch: since, begin: first, copied: Copied::On, frees };
        self.queue_for(caller, epoch, entry, records, last);
    }

    /// Whether `cost` more blocks fit, at worst with a gap at the end of the ring, when what is dead is free. What was let in because
    /// of that counts although it takes more than is free now: else everything would be let in until then.
    fn has_space(&self, cost: u64) -> bool {
        let gap = cost.max(self.gap());
        if planted(Bug::MoreThanFits) || planted(Bug::QueueKept) {
            return self.free() + self.dead_blocks() >= cost + gap + self.slack();
        }
        self.blocks + self.dead_blocks() >= self.used() + self.queued_blocks + cost + gap + self.slack()
    }

    /// Whether these records may be added although there is no space for others: their family has what the whole ring waits for, they
    /// are part of letting that go, or come before what is, and nothing is before them that would need more.
    fn may_use_slack(&self, family: FamilyId, records: &[Record]) -> bool {
        let Some(holding) = self.holdings.get(&family) else { return false };
        let blocks: u64 = records.iter().map(|record| record.payload_bytes().div_ceil(BLOCK) as u64).sum();
        // Data that a new owner writes again takes the place of what is here. Other data got its number when there was room, which
        // others have taken since: what lets go of the oldest record comes behind it, and needs some of what is left.
        let is_late = |record: &Record| {
            matches!(record.body, Body::Data { .. }) && !holding.places.contains_key(&record.seq)
        };
        let is_late = records.iter().any(is_late);
        let kept = match is_late {
            true if planted(Bug::LateDataRefused) || planted(Bug::FullMemberKept) => return false,
            true => self.slack() * 3 / 8,
            false => LAST_BLOCKS,
        };
        let has_place = || {
            let blocks = self.blocks_in_frames(records);
            let position = self.place(blocks, kept);
            position.is_some_and(|position| !is_late || self.can_carry_behind(position, blocks, true))
        };
        self.waits_for(family)
            && records.len() <= DATA_RECORDS_MAX
            && (records.len() == 1 || blocks <= self.frame_blocks_max)
            && self.queue.iter().all(|queued| queued.void)
            && has_place()
    }

    /// Blocks of the frames that these records go into, with nothing else.
    fn blocks_in_frames(&self, records: &[Record]) -> u64 {
        let (mut blocks, mut count, mut payloads) = (0, 0, 0);
        for record in records {
            let more = record.payload_bytes().div_ceil(BLOCK) as u64;
            if count > 0 && !self.go_into_one_frame(count + 1, payloads + more) {
                blocks += header_blocks(count) + payloads;
                (count, payloads) = (0, 0);
            }
            (count, payloads) = (count + 1, payloads + more);
        }
        blocks + header_blocks(count) + payloads
    }

    /// Queues what was let in; who asked, in this epoch, is answered when all up to `last` is settled.
    fn queue_for(&mut self, caller: Caller, epoch: Epoch, entry: Entry, records: Vec<Record>, last: Seq) {
        records.into_iter().for_each(|record| self.enqueue(entry, record));
        self.count_dead();
        self.waiters.push_back(Waiter { caller, epoch, position: self.queued_to, last });
    }

    fn enqueue(&mut self, entry: Entry, record: Record) {
        let Entry { family, epoch, begin, copied, frees } = entry;
        let holding = self.holdings.get_mut(&family).expect("whoever appends was admitted");
        if holding.has(record.seq, epoch) {
            return;
        }
        let (kind, block, count) = payload::header_fields(&record);
        if let Body::Data { data, .. } = &record.body {
            assert!(!data.is_empty() && data.len() % BLOCK == 0, "data records hold whole blocks");
        }
        let payload_len = u32::try_from(record.payload_bytes()).expect("a record is smaller than 4 GiB");
        let blocks = payload_blocks(payload_len);
        self.queued_to += 1;
        let place = Place {
            home: Home::Queued(self.queued_to),
            payload: 0,
            payload_len,
            payload_crc: 0,
            epoch,
            kind,
            block,
            count,
            carried: copied != Copied::No,
            told: false,
        };
        let former = holding.places.insert(record.seq, place);
        let lost = holding.lost.remove(&record.seq);
        self.queued_blocks += queued_cost(blocks);
        self.largest = self.largest.max(blocks);
        self.queue.push_back(Queued { family, epoch, begin, copied, record, blocks, frees, void: false });
        former.iter().chain(&lost).for_each(|place| self.let_go(place));
    }

    fn answer_when_settled(&mut self, now: Time, caller: Caller, epoch: Epoch, last: Seq, desk: &mut Desk) {
        if self.settled_to == self.queued_to {
            let room = self.room(now);
            return desk.answer(caller, Ok(Answer::Appended { up_to: last, room }));
        }
        self.waiters.push_back(Waiter { caller, epoch, position: self.queued_to, last });
    }

    /// Records up to `up_to` are not needed any more.
    pub fn trim(&mut self, now: Time, family: FamilyId, epoch: Epoch, up_to: Seq) {
        let holding = self.holdings.get_mut(&family).expect("whoever asks was admitted");
        let gone = holding.take_trimmed(up_to);
        let knows = holding.told_in >= epoch;
        if knows {
            holding.trimmed_in = epoch;
        }
        let is_news = knows && self.end_doubts_before(family, epoch);
        if !is_news && gone.is_empty() {
            return;
        }
        gone.iter().for_each(|place| self.let_go(place));
        self.lets_go(now, family);
        self.count_dead();
        self.untold_trims.insert(family);
        self.untold_since.get_or_insert(now);
    }

    /// The families of which records are held, or a fence that keeps its frame.
    pub fn families(&self) -> impl Iterator<Item = FamilyId> + '_ {
        let held = |holding: &Holding| {
            !holding.places.is_empty()
                || !holding.lost.is_empty()
                || holding.unsure.is_some()
                || holding.durable_fence.is_some()
        };
        self.holdings.iter().filter(move |(_, holding)| held(holding)).map(|(family, _)| *family)
    }

    /// Everything of the family goes. False if nothing of it was ever here, so that no frame has to tell.
    pub fn drop_family(&mut self, family: FamilyId) -> bool {
        let Some(holding) = self.holdings.remove(&family) else { return false };
        // The fence stays in memory, so that a straggler does not begin anew what was dropped.
        let fence = holding.fence;
        self.holdings.insert(family, Holding { fence, ..Holding::default() });
        holding.all_places().for_each(|place| self.let_go(place));
        if let Some((_, number)) = holding.durable_fence {
            self.frame_mut(number).expect("a fence keeps its frame").fences -= 1;
        }
        // Whoever waits for a fence still gets one.
        let fresh = self.holdings.entry(family).or_default();
        fresh.fence_waiters = holding.fence_waiters;
        let waited_for = !fresh.fence_waiters.is_empty();
        for flying in &mut self.flying {
            flying.fences.retain(|(fenced, _)| *fenced != family);
        }
        if waited_for {
            self.wanted_fences.insert(family, WantedFence::default());
        } else {
            self.wanted_fences.remove(&family);
        }
        self.untold_trims.remove(&family);
        self.release(family);
        self.lets_go(Time(0), family);
        self.wanted_drops.insert(family);
        self.count_dead();
        true
    }

    /// Bytes of new client data that one family may have outstanding here.
    pub fn room(&mut self, now: Time) -> u64 {
        let (_, counted_at) = self.sharing;
        if counted_at.is_none_or(|at| now.since(at) >= 100_000) {
            let shares =
                |holding: &Holding| !holding.places.is_empty() || now.since(holding.asked_at) < 60_000_000;
            let count = self.holdings.values().filter(|holding| shares(holding)).count() as u64;
            self.sharing = (count.max(1), Some(now));
        }
        let bytes = self.free().saturating_sub(self.reserve()) * BLOCK as u64;
        // Single blocks take two, with their header. One of them is always allowed, or many families would wait for
        // ever for their shares of a ring that is not full enough to be emptied.
        if bytes == 0 { 0 } else { (bytes / 2 / self.sharing.0).max(2 * BLOCK as u64) }
    }
}

/// Blocks to set aside for these records.
fn cost_of<'a>(records: impl Iterator<Item = &'a Record>) -> u64 {
    records.map(|record| queued_cost(record.payload_bytes().div_ceil(BLOCK) as u64)).sum()
}
