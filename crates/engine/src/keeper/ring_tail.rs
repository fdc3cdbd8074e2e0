//! What the next frame may say of the oldest ones: how far the ring is free once it counts, and whether it may take space for that of what is
//! kept for it. A frame counts as a whole or not at all, so what it moves away from the oldest frames need not stay there behind it.
//! Promises: no frame says that one is free in which something is still held once it counts.
//! Leaves to others: what is written (`ring_write`), and what is carried on (`ring_carry`).

use crate::formats::frame::{Copied, RECORDS_IN_ONE_BLOCK, RecordHeader, header_blocks};
use crate::identity::{FamilyId, Time};
use crate::keeper::holding::{Home, Place};
use crate::keeper::ring::{DATA_RECORDS_MAX, Frame, LAST_BLOCKS, Ring, blocks_to_carry};
use crate::keeper::ring_carry::Held;
use crate::sabotage::{Bug, planted};
use std::collections::{BTreeMap, BTreeSet};

/// What is free: blocks that the largest frame may have which fits, and all of them, with those that a frame left free at the end of the ring.
#[derive(Clone, Copy)]
struct Room {
    in_one_piece: u64,
    in_all: u64,
}

impl Ring {
    /// A fence in the oldest frames, all else of which is dead, keeps them from being freed. When space
    /// is wanted, it moves on: the newest fence of a family is always in the ring.
    pub(super) fn carry_fences(&mut self, now: Time) {
        if self.used() <= self.blocks / 4 || !self.flying.is_empty() || self.is_on_the_floor() {
            return;
        }
        let still = self.frames.iter().skip(self.dead).take_while(|frame| frame.live == 0);
        let Some(last) = still.last().map(|frame| frame.number) else { return };
        self.carry_anybody(now, last);
        for (family, holding) in &mut self.holdings {
            if holding.durable_fence.is_some_and(|(_, number)| number <= last) && !holding.fence_moving {
                self.wanted_fences.entry(*family).or_default();
            }
        }
    }

    /// The families whose fences go with the next frame if it takes so many records of the keeper's own: behind what is dropped, and
    /// those in the oldest frames first.
    pub(super) fn fences_next(&self, riders: usize) -> Vec<FamilyId> {
        let limit = riders.saturating_sub(self.wanted_drops.len());
        let mut families: Vec<FamilyId> = self.wanted_fences.keys().copied().collect();
        if families.len() > limit {
            let durable =
                |family: &FamilyId| self.holdings.get(family).and_then(|holding| holding.durable_fence);
            families.sort_by_key(|family| durable(family).map_or(u64::MAX, |(_, number)| number));
            families.truncate(limit);
        }
        families
    }

    /// Where a frame without data goes: into the last blocks if it says that at least as many are free, or else leaving what others need that
    /// free some.
    pub(super) fn place_without_data(&self) -> Option<u64> {
        let is_news = self.dead > 0 && self.tail_number() > self.told_tail();
        if is_news || self.frees_by_fencing() {
            return self.place(1, 0);
        }
        let oldest = self.frames.get(self.dead);
        if oldest.is_none_or(|oldest| oldest.live == 0 && !self.is_on_the_floor()) {
            return self.place(1, LAST_BLOCKS);
        }
        let is_waited_for = self.wanted_fences.keys().any(|family| self.waits_for(*family));
        let left = if is_waited_for { LAST_BLOCKS } else { self.last_slack() };
        self.place(1, left).filter(|position| self.can_carry_behind(*position, 1, is_waited_for))
    }

    /// Whether what is held in the frames can still be carried on behind a frame of so many blocks there, as far as it can be now. Owners that
    /// are opened again and again fence each time, while it may be just one of them that lets go of nothing. For one that the ring waits
    /// for only what can be carried on before all else counts: it may be the only one to free any.
    pub(super) fn can_carry_behind(&self, position: u64, blocks: u64, is_waited_for: bool) -> bool {
        if !self.is_urgent() || self.carrying.is_in_vain() || planted(Bug::FencesTakeAll) {
            return true;
        }
        let (now, then) = (self.room_now(), self.room_behind(position, blocks));
        // Before all else goes what says that the ends of logs are not known.
        let unsure = self.floor.as_ref().map_or(0, |(_, families)| families.len());
        let unsure = unsure.div_ceil(RECORDS_IN_ONE_BLOCK - 1) as u64;
        let kept = unsure + self.kept_in_one_piece();
        if then.in_one_piece >= kept && then.in_all >= 2 * kept {
            return true;
        }
        let stays_so = |now: u64, then: u64, blocks: u64| now < blocks || then >= blocks;
        // Where what is free lies around the end of the ring only the larger part is of use.
        let still_goes = |(least, wanted): (u64, u64)| {
            stays_so(now.in_one_piece, then.in_one_piece, wanted)
                && stays_so(now.in_one_piece, then.in_one_piece, least)
                && (stays_so(now.in_all, then.in_all, 2 * wanted) || planted(Bug::SlackInPieces))
        };
        let mut held = self.frames.iter().skip(self.dead).filter(|frame| frame.live > 0).map(|frame| {
            let wanted = unsure + blocks_to_carry(frame.live as usize, frame.held_blocks);
            // The last of them is not needed by a frame that says itself what it frees.
            let frees = unsure == 0 && frame.fences == 0;
            (if frees { wanted - LAST_BLOCKS } else { wanted }, wanted)
        });
        let goes = |(least, _): &(u64, u64)| now.in_one_piece >= *least;
        if is_waited_for { held.take_while(goes).all(still_goes) } else { held.all(still_goes) }
    }

    /// No frame takes more to be carried on, but for what was written before there was a bound ([`Ring::go_into_one_frame`]).
    fn kept_in_one_piece(&self) -> u64 {
        let of_many = blocks_to_carry(DATA_RECORDS_MAX, self.frame_blocks_max).min(self.slack());
        of_many.max(blocks_to_carry(1, self.largest))
    }

    /// Where the first frame that is not free will be when one counts that tells of this tail.
    fn position_of_tail(&self, tail: u64) -> Option<u64> {
        let at = self.frames.partition_point(|frame| frame.number < tail);
        // A floor is missing: the frame before it stays.
        let is_floor = self.frames.get(at).is_some_and(|frame| frame.number > tail);
        let at = if is_floor { at.saturating_sub(1) } else { at };
        self.frames.get(at).map(|frame| frame.position)
    }

    /// What is free now, with all that frames on their way free.
    fn room_now(&self) -> Room {
        self.room_at(self.head, self.left_at_the_end)
    }

    /// The same behind a frame of so many blocks there.
    fn room_behind(&self, position: u64, blocks: u64) -> Room {
        self.room_at((position + blocks) % self.blocks, self.left_behind(position, blocks))
    }

    fn room_at(&self, head: u64, left_at_the_end: u64) -> Room {
        let Some(tail) = self.position_of_tail(self.tail_number().max(self.told_tail())) else {
            return Room { in_one_piece: self.blocks - 1, in_all: self.blocks };
        };
        // The head may never reach the tail.
        let in_one_piece = match tail {
            _ if head <= tail => (tail - head).saturating_sub(1),
            0 => self.blocks - head - 1,
            _ => (self.blocks - head).max(tail - 1),
        };
        let left_at_the_end = if head < tail { left_at_the_end } else { 0 };
        Room { in_one_piece, in_all: (tail + self.blocks - head) % self.blocks + left_at_the_end }
    }

    /// Where a frame goes that carries these on, the blocks it takes, and whether it is to say itself that what it frees is free: it does that
    /// where there is hardly room for another one. Into the slack as well, as it lets go of the oldest record.
    pub(super) fn place_to_carry(&self, held: &[Held]) -> Option<(u64, u64, bool)> {
        let payload: u64 = held.iter().map(|(_, record, _)| record.payload_blocks()).sum();
        let anybody = self.wants_anybody();
        let blocks = header_blocks(held.len() + usize::from(anybody)) + payload;
        let is_of_one = held.last().is_some_and(|(from, ..)| *from == held[0].0);
        if !is_of_one && !self.go_into_one_frame(held.len(), payload) {
            return None;
        }
        let position = self.place(blocks, 0)?;
        let room = self.room_behind(position, blocks);
        let is_short = room.in_all < 2 * self.kept_in_one_piece() + LAST_BLOCKS;
        let frees_enough = || {
            let frees = self.blocks_before(self.tail_beside(&[], anybody, held));
            frees >= blocks + self.blocks_before(self.told_tail())
        };
        if is_short && !self.is_on_the_floor() && frees_enough() && !planted(Bug::CopiesNeedMore) {
            return Some((position, blocks, true));
        }
        self.place(blocks, LAST_BLOCKS).map(|position| (position, blocks, false))
    }

    /// Blocks from the first frame that is not free to what will be the first when one counts that tells of this tail.
    fn blocks_before(&self, tail: u64) -> u64 {
        let Some(front) = self.frames.front() else { return 0 };
        let position = self.position_of_tail(tail);
        position.map_or(self.used(), |position| (position + self.blocks - front.position) % self.blocks)
    }

    /// Whether an empty frame with as many fences as it takes lets go of the oldest one.
    pub(super) fn frees_by_fencing(&self) -> bool {
        let oldest = self.frames.get(self.dead);
        if planted(Bug::LastBlockTaken) {
            return oldest.is_none_or(|oldest| oldest.live == 0);
        }
        let anybody = self.wants_anybody();
        let fences = self.fences_next(RECORDS_IN_ONE_BLOCK - usize::from(anybody));
        let told = self.told_tail();
        let lets_go = |oldest: &Frame| self.tail_beside(&fences, anybody, &[]) > oldest.number.max(told);
        !self.is_on_the_floor() && oldest.is_some_and(lets_go)
    }

    /// What frames on their way say of it.
    fn told_tail(&self) -> u64 {
        self.flying.back().map_or(0, |flying| flying.tail)
    }

    /// The oldest frame still needed beside a frame with these fences, perhaps what may have been anybody's, which says so, and records that
    /// are carried on. What earlier frames on their way say stays said: they count before it does.
    pub(super) fn tail_beside(&self, fences: &[FamilyId], anybody: bool, carried: &[Held]) -> u64 {
        let tail = self.tail_number().max(self.told_tail());
        let settled = self.frames.len() - self.flying.len();
        let leaving = self.leaving(carried);
        let is_emptied = |frame: &Frame| frame.live == leaving.get(&frame.number).copied().unwrap_or(0);
        let is_free = |at: usize| at < settled && is_emptied(&self.frames[at]);
        let moves = !fences.is_empty() || anybody || !leaving.is_empty();
        if !moves || !is_free(self.dead) || planted(Bug::LastBlockTaken) {
            return tail;
        }
        let fences: BTreeSet<&FamilyId> = fences.iter().collect();
        let others = self.holdings.iter().filter(|(family, _)| !fences.contains(family));
        let needed = others.filter_map(|(_, holding)| holding.durable_fence).map(|(_, number)| number);
        let needed = needed.chain(self.torn_anybody().filter(|_| !anybody)).min();
        let needed = needed.filter(|_| !planted(Bug::FencesLeftBehind));
        let is_carried =
            |at: usize| is_free(at) && needed.is_none_or(|needed| self.frames[at].number < needed);
        let first = (self.dead..).find(|&at| !is_carried(at)).expect("there are not so many frames");
        let first = self.frames.get(first).map_or(self.next_number, |frame| frame.number);
        tail.max(self.not_beyond_the_floor(first))
    }

    /// How many of these records leave each of the frames that they are carried on from, once the frame with the copies counts.
    fn leaving(&self, carried: &[Held]) -> BTreeMap<u64, u32> {
        let mut leaving = BTreeMap::new();
        for (from, ..) in carried.iter().filter(|(from, record, _)| self.leaves(*from, record)) {
            *leaving.entry(*from).or_default() += 1;
        }
        leaving
    }

    /// One that is carried on as lost and can be read meanwhile stays where it lies.
    fn leaves(&self, from: u64, record: &RecordHeader) -> bool {
        let Some(holding) = self.holdings.get(&record.family) else { return false };
        let is_there = |place: &Place| place.home == Home::Frame(from) && place.epoch == record.epoch;
        let lost = holding.lost.get(&record.seq).copied().filter(is_there);
        match record.copied {
            Copied::Unsure => holding.unsure.is_some_and(|place| place.home == Home::Frame(from)),
            Copied::Lost => lost.is_some_and(|place| place.payload_len == 0 || planted(Bug::FoundLeftBehind)),
            _ => lost.is_some() || holding.places.get(&record.seq).is_some_and(is_there),
        }
    }
}
