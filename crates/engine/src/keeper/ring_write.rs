//! Frames on their way to the drive: whatever is queued when a frame can be written goes into one (group
//! commit), and frames count only in order.

use crate::buffer::{BLOCK, Buffer};
use crate::formats::frame::{
    Copied, FrameHeader, HEADER_BLOCKS_MAX, RECORDS_IN_ONE_BLOCK, RecordHeader, RecordKind, header_blocks,
    records_in,
};
use crate::formats::payload;
use crate::identity::{Epoch, FamilyId, Seq, Time};
use crate::interface::{Area, DriveWork};
use crate::keeper::desk::{Desk, Work};
use crate::keeper::holding::Home;
use crate::keeper::ring::{DATA_RECORDS_MAX, Flying, Frame, LAST_BLOCKS, Ring};
use crate::keeper::ring_carry::{Carried, Copies};
use crate::keeper::torn_end;
use crate::message::{Answer, Refusal};
use crate::sabotage::{Bug, planted};
use std::collections::BTreeMap;

/// A trim is told in a frame of its own if no other frame came along for this long.
pub(super) const TRIM_TOLD_US: u64 = 1_000_000;

impl Ring {
    /// Writes as many frames as can be in flight.
    pub fn pump(&mut self, now: Time, desk: &mut Desk) {
        if self.flying.len() < self.frames_in_flight {
            self.write_carried(desk);
        }
        while self.flying.len() < self.frames_in_flight
            && self.is_worth_a_frame()
            && self.write_next(now, desk)
        {}
        // What became void in the queue may have been the last thing that somebody waited for.
        self.answer_settled(now, desk);
    }

    /// Each frame costs a flush of its drive, and flushes wait for each other. So one goes beside others only with as many
    /// records as the one before it, or filled: what comes in small pieces gathers until a frame has ended.
    fn is_worth_a_frame(&self) -> bool {
        self.flying.back().is_none_or(|last| {
            self.queue.len() >= last.entries || self.queued_blocks >= self.frame_blocks_max
        })
    }

    /// True if a frame was written.
    fn write_next(&mut self, now: Time, desk: &mut Desk) -> bool {
        self.skip_void();
        self.carry_fences(now);
        let (records, payload) = self.gather();
        let riders = self.riders();
        if records > 0 {
            let (riders, slack) = match self.queue.front() {
                // It was let in without riders: they come along as far as its header has room.
                Some(front) if front.frees => {
                    (riders.min(records_in(header_blocks(records)) - records), LAST_BLOCKS)
                }
                _ => (riders.min(DATA_RECORDS_MAX), self.slack()),
            };
            let blocks = header_blocks(records + riders) + payload;
            if let Some(position) = self.place(blocks, slack) {
                self.write_frame(position, records, riders, desk);
                return true;
            }
            if self.flying.is_empty() && self.dead == 0 && !planted(Bug::QueueKept) {
                self.refuse_queue(desk);
            }
        }
        let trims_due = self.untold_since.is_some_and(|since| now.since(since) >= TRIM_TOLD_US);
        let rests = self.rests && self.flying.is_empty();
        let is_told = !self.wanted_fences.is_empty() || !self.wanted_drops.is_empty() || self.wants_anybody();
        let urgent = is_told || trims_due || rests;
        // Dead frames are free only when a durable frame says so: if nothing else does, an empty one.
        let wanted = records > 0 || self.carrying.waits_for_room() || self.dead_blocks() >= self.blocks / 16;
        let reclaims = self.flying.is_empty() && self.dead > 0 && self.used() > self.blocks / 4 && wanted;
        if !urgent && !reclaims {
            return false;
        }
        let Some(position) = self.place_without_data() else {
            self.refuse_fences(now, desk);
            self.rests &= !rests;
            return false;
        };
        self.rests &= !rests;
        self.write_frame(position, 0, riders.min(RECORDS_IN_ONE_BLOCK), desk);
        true
    }

    /// What was let in has no place after all (gaps at the end of the ring, frames that only fence), and nothing will become free: it
    /// would stand before what lets go of the oldest record. Its owners ask again.
    fn refuse_queue(&mut self, desk: &mut Desk) {
        let mut from: BTreeMap<FamilyId, Seq> = BTreeMap::new();
        for queued in self.queue.iter().filter(|queued| !queued.void) {
            let low = from.entry(queued.family).or_insert(queued.record.seq);
            *low = (*low).min(queued.record.seq);
        }
        for (&family, &low) in &from {
            let holding = self.holdings.get_mut(&family).expect("a queued record that is not void is held");
            for place in holding.forget_queued(low) {
                self.let_go(&place);
            }
        }
        self.waiters.retain(|waiter| {
            let is_refused = from.contains_key(&waiter.caller.family);
            if is_refused {
                desk.refuse(waiter.caller, Refusal::LogFull);
            }
            !is_refused
        });
        self.skip_void();
    }

    /// Full, in spite of the slack: whoever wants to fence has to come back after trims.
    fn refuse_fences(&mut self, now: Time, desk: &mut Desk) {
        for (family, _) in std::mem::take(&mut self.wanted_fences) {
            let holding = self.holdings.get_mut(&family).expect("a fence belongs to a holding");
            for (caller, _) in std::mem::take(&mut holding.fence_waiters) {
                desk.refuse(caller, Refusal::LogFull);
            }
        }
        self.untold_since = self.untold_since.map(|_| now);
    }

    /// Drops what became void from the front of the queue.
    fn skip_void(&mut self) {
        while self.queue.front().is_some_and(|queued| queued.void) {
            self.queue.pop_front();
            self.framed_to += 1;
        }
        match self.flying.back_mut() {
            Some(last) => last.position = self.framed_to,
            None => self.settled_to = self.framed_to,
        }
    }

    /// How many entries of the queue make the next frame, and the blocks of their payloads.
    fn gather(&self) -> (usize, u64) {
        let (mut records, mut blocks) = (0, 0);
        for queued in &self.queue {
            let more = if queued.void { 0 } else { queued.blocks };
            // What may go into the slack goes alone.
            if queued.frees != self.queue[0].frees {
                break;
            }
            if !self.go_into_one_frame(records + 1, blocks + more) {
                break;
            }
            records += 1;
            blocks += more;
        }
        (records, blocks)
    }

    /// Records of the keeper's own that want to go with the next frame.
    fn riders(&self) -> usize {
        let anybody = usize::from(self.wants_anybody());
        self.wanted_fences.len() + self.wanted_drops.len() + self.untold_trims.len() + anybody
    }

    /// Writes a frame before anything else of this session, if one is needed: it says what counts if frames were `dropped`, and of which
    /// families nobody knows any more where their logs end.
    pub fn write_first(&mut self, dropped: bool, desk: &mut Desk) -> bool {
        // What lets go of the oldest frame needs the last block more, unless frames were dropped: then this one lies where they did.
        let left = if dropped || self.dead > 0 { 0 } else { LAST_BLOCKS };
        // All in one frame: once it counts, the next opening does not see what was torn any more.
        let fits = |&blocks: &u64| self.place(blocks, left).is_some();
        let blocks = (1..=HEADER_BLOCKS_MAX).rev().find(fits).unwrap_or(1);
        let told = self.first_to_tell(blocks);
        let anybody = usize::from(self.wants_anybody());
        let is_wanted = dropped || told.len() + anybody > 0;
        let blocks = header_blocks(told.len() + anybody);
        let Some(position) = self.place(blocks, left).filter(|_| is_wanted) else {
            assert!(!dropped, "where frames were dropped, there is space");
            return false;
        };
        self.write_frame_with(position, 0, anybody, Copies { held: told, frees: false }, desk);
        true
    }

    fn write_frame(&mut self, position: u64, entries: usize, riders: usize, desk: &mut Desk) {
        self.write_frame_with(position, entries, riders, Copies::default(), desk);
    }

    /// With records that are carried on from an older frame, and their payloads: then nothing else.
    pub(super) fn write_frame_with(
        &mut self,
        position: u64,
        entries: usize,
        riders: usize,
        copies: Copies,
        desk: &mut Desk,
    ) {
        let number = self.next_number;
        let anybody = if riders > 0 { self.take_anybody() } else { None };
        let riders = riders - usize::from(anybody.is_some());
        let fences = self.fences_next(riders);
        let leaving = if copies.frees { &copies.held[..] } else { &[] };
        let tail = self.tail_beside(&fences, anybody.is_some(), leaving);
        let mut flying = Flying {
            number,
            written: false,
            tail,
            entries,
            position: 0,
            fences: Vec::new(),
            drops: Vec::new(),
            carried: Vec::new(),
            anybody,
        };
        let mut header = FrameHeader {
            drive: desk.drive,
            incarnation: self.incarnation,
            number,
            position,
            tail,
            settled: self.settled,
            session_first: self.session_first,
            session_after: self.session_after,
            records: Vec::with_capacity(entries + riders + copies.held.len()),
        };
        self.take_riders(riders, fences, &mut header, &mut flying);
        let mut pieces = Vec::with_capacity(entries + 1);
        pieces.push(crate::buffer::zeros(0));
        let mut frame = Frame::new(number, position);
        self.take_data(entries, &mut header, &mut pieces, &mut frame);
        flying.position = self.framed_to;
        // Records of the map tell of what was written to egroups, by clients who have waited for that first.
        let is_small = |record: &RecordHeader| matches!(record.kind, RecordKind::Data | RecordKind::Zero);
        let awaited = header.records.iter().any(is_small);
        // Behind a header that is one record longer.
        let records = header.records.len() + usize::from(anybody.is_some());
        self.place_records(&header, number, position + header_blocks(records));
        for (from, record, payload) in copies.held {
            let (family, seq, payload_len) = (record.family, record.seq, record.payload_len);
            let is_lost = record.copied == Copied::Lost;
            let doubt = (record.epoch, record.count);
            frame.hold(record.payload_blocks());
            flying.carried.push(Carried { family, seq, is_lost, from, payload: 0, payload_len, doubt });
            header.records.push(record);
            if !payload.is_empty() {
                push_pieces(&mut pieces, payload);
            }
        }
        header.records.extend(anybody.map(torn_end::anybody));
        let mut payload = position + header.header_blocks();
        for (carried, record) in flying.carried.iter_mut().zip(&header.records) {
            carried.payload = payload;
            payload += record.payload_blocks();
        }
        let blocks = header.blocks();
        self.carrying.note_frame(blocks);
        pieces[0] = header.encode().freeze();
        self.frames.push_back(frame);
        if planted(Bug::CarriedUnseen) {
            self.settle_carried(number, std::mem::take(&mut flying.carried));
        }
        self.flying.push_back(flying);
        self.next_number += 1;
        self.put_head_behind(position, blocks);
        let durable = !planted(Bug::AckBeforeFlush);
        let write = DriveWork::Write { offset: position * BLOCK as u64, pieces, durable, awaited };
        desk.submit(Area::Log, write, Work::Frame { number });
    }

    /// Moves up to `limit` of the keeper's own records into the frame. They come before the data: what a
    /// drop or trim is about is in earlier frames.
    fn take_riders(
        &mut self,
        limit: usize,
        fences: Vec<FamilyId>,
        header: &mut FrameHeader,
        flying: &mut Flying,
    ) {
        let mut fences = fences.into_iter();
        while header.records.len() < limit {
            if let Some(family) = self.wanted_drops.pop_first() {
                flying.drops.push(family);
                let fence = self.holdings.get(&family).map_or(Epoch(0), |holding| holding.fence);
                header.records.push(own_record(family, RecordKind::Drop, fence, Seq(0), 0));
            } else if let Some(family) = fences.next() {
                let wanted = self.wanted_fences.remove(&family).expect("it was just looked at");
                let holding = self.holdings.get_mut(&family).expect("a fence belongs to a holding");
                holding.fence_moving = true;
                flying.fences.push((family, holding.fence));
                let since = u64::from(wanted.since.0);
                let fence = own_record(family, RecordKind::Fence, holding.fence, wanted.first, since);
                header.records.push(torn_end::fence_with(holding.doubt, fence));
            } else if let Some(family) = self.untold_trims.pop_first() {
                let holding = self.holdings.get(&family);
                let trimmed = holding.map_or(Seq(0), |holding| holding.trimmed);
                let epoch = holding.map_or(Epoch(0), |holding| holding.trimmed_in);
                header.records.push(own_record(family, RecordKind::Trim, epoch, trimmed, 0));
            } else {
                break;
            }
        }
        if self.untold_trims.is_empty() {
            self.untold_since = None;
        }
    }

    /// Moves entries of the queue that are not void into the frame.
    fn take_data(
        &mut self,
        entries: usize,
        header: &mut FrameHeader,
        pieces: &mut Vec<Buffer>,
        frame: &mut Frame,
    ) {
        for _ in 0..entries {
            let queued = self.queue.pop_front().expect("as many as were gathered");
            self.framed_to += 1;
            if queued.void {
                continue;
            }
            frame.hold(queued.blocks);
            self.queued_blocks -= super::ring::queued_cost(queued.blocks);
            let place = self.holdings.get(&queued.family).and_then(|h| h.places.get(&queued.record.seq));
            let place = place.expect("a queued record that is not void is held");
            let mut record = RecordHeader {
                family: queued.family,
                epoch: queued.epoch,
                seq: queued.record.seq,
                kind: place.kind,
                payload_crc: 0,
                payload_len: place.payload_len,
                block: place.block,
                count: place.count,
                begin: queued.begin,
                copied: queued.copied,
            };
            if let Some(payload) = payload::encode(&queued.record) {
                record.payload_crc = payload.slice(0..place.payload_len as usize).checksum();
                push_pieces(pieces, payload);
            }
            header.records.push(record);
        }
    }

    /// Tells the index where the records of a frame lie, the first `payload` in this block.
    fn place_records(&mut self, header: &FrameHeader, number: u64, mut payload: u64) {
        for record in &header.records {
            if record.kind.is_logged() {
                let holding = self.holdings.get_mut(&record.family).expect("its record is held");
                let place = holding.places.get_mut(&record.seq).expect("just taken from the queue");
                place.home = Home::Frame(number);
                place.payload = payload;
                place.payload_crc = record.payload_crc;
            }
            payload += record.payload_blocks();
        }
    }

    /// A frame is on the drive. Returns the families whose dropping is durable now.
    pub fn on_frame_written(&mut self, now: Time, number: u64, desk: &mut Desk) -> Vec<FamilyId> {
        let mut dropped = Vec::new();
        let flying = self.flying.iter_mut().find(|flying| flying.number == number);
        flying.expect("a frame in flight comes back once").written = true;
        // Recovery cuts the log at the first frame that is missing: one counts only with all before it.
        while self.flying.front().is_some_and(|front| front.written) {
            let flying = self.flying.pop_front().expect("just seen");
            assert!(flying.number > self.settled, "frames settle in order");
            self.settled = flying.number;
            self.settled_to = flying.position;
            // Twice: whoever is answered hears of the room there is, and these fences may be what keeps the oldest frames.
            self.free_before(flying.tail);
            self.settle_carried(flying.number, flying.carried);
            for (family, epoch) in flying.fences {
                self.on_fence_durable(now, family, epoch, flying.number, desk);
            }
            if let Some(anybody) = flying.anybody {
                self.put_anybody(flying.number, anybody);
            }
            self.count_dead();
            self.free_before(flying.tail);
            dropped.extend(flying.drops);
        }
        self.answer_settled(now, desk);
        dropped
    }

    fn answer_settled(&mut self, now: Time, desk: &mut Desk) {
        while self.waiters.front().is_some_and(|waiter| waiter.position <= self.settled_to) {
            let waiter = self.waiters.pop_front().expect("just seen");
            let room = self.room(now);
            desk.answer(waiter.caller, Ok(Answer::Appended { up_to: waiter.last, room }));
        }
    }

    fn on_fence_durable(&mut self, now: Time, family: FamilyId, epoch: Epoch, number: u64, desk: &mut Desk) {
        let holding = self.holdings.get_mut(&family).expect("holdings stay");
        holding.fence_moving = false;
        let former = holding.durable_fence.replace((epoch, number));
        let mut waiting = std::mem::take(&mut holding.fence_waiters);
        let ready: Vec<_> = waiting.extract_if(.., |(_, wanted)| *wanted <= epoch).collect();
        holding.fence_waiters = waiting;
        self.frame_mut(number).expect("a frame that settles now is there").fences += 1;
        if let Some((_, former)) = former {
            self.frame_mut(former).expect("a fence keeps its frame").fences -= 1;
        }
        for (caller, _) in ready {
            let held = self.held(now, family);
            desk.answer(caller, Ok(Answer::Fenced(held)));
        }
    }
}

/// A record of the keeper's own; it has no payload.
fn own_record(family: FamilyId, kind: RecordKind, epoch: Epoch, seq: Seq, count: u64) -> RecordHeader {
    let (payload_crc, payload_len, block, begin) = (0, 0, 0, Seq(0));
    let copied = Copied::No;
    RecordHeader { family, epoch, seq, kind, payload_crc, payload_len, block, count, begin, copied }
}

/// Adds a payload. Drives want page-aligned memory: what is not, is copied.
fn push_pieces(pieces: &mut Vec<Buffer>, payload: Buffer) {
    let aligned = (payload.bytes().as_ptr() as usize).is_multiple_of(BLOCK);
    let payload = if aligned { payload } else { Buffer::copied(payload.bytes()) };
    // The first piece is the header's place, and joins with nothing.
    match pieces[1..].last_mut() {
        Some(last) if last.is_followed_by(&payload) => *last = last.joined(&payload),
        _ => pieces.push(payload),
    }
}
