//! The log ring of one drive: a chain of frames that goes round the log area, shared by all families.
//! Promises: a frame's place is written again only when a durable frame says that it is not needed.
//! Leaves to others: what is appended (`ring_append`), how frames are written (`ring_write`) and what they say is free (`ring_tail`),
//! how they are found again (`ring_scan`, `ring_replay`) and read (`ring_read`), asking owners for space (`pressure`), and going on
//! where one gives none (`ring_carry`).

use crate::buffer::BLOCK;
use crate::formats::frame::{Copied, header_blocks};
use crate::formats::record::Record;
use crate::identity::{Epoch, FamilyId, Seq, Time};
use crate::keeper::desk::Caller;
use crate::keeper::holding::{Anybody, Holding, Home, Place};
use crate::keeper::ring_carry::{Carried, Carrying};
use crate::keeper::ring_read::LogReads;
use crate::keeper::torn_end::TornEnd;
use crate::limits::Limits;
use crate::sabotage::{Bug, planted};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A frame whose place is not free yet.
#[derive(Debug)]
pub(super) struct Frame {
    pub number: u64,
    pub position: u64,
    /// Records in it that are still held, and blocks of their payloads.
    pub live: u32,
    pub held_blocks: u64,
    /// Fences in it that are the newest of their families.
    pub fences: u32,
}

impl Frame {
    /// One in which nothing is held yet.
    pub fn new(number: u64, position: u64) -> Self {
        Self { number, position, live: 0, held_blocks: 0, fences: 0 }
    }

    /// A record with a payload of so many blocks is held in it.
    pub fn hold(&mut self, blocks: u64) {
        self.live += 1;
        self.held_blocks += blocks;
    }

    /// It is not any more.
    pub fn let_go(&mut self, blocks: u64) {
        assert!(self.live > 0 && self.held_blocks >= blocks, "a record counts in its frame");
        self.live -= 1;
        self.held_blocks -= blocks;
    }
}

/// The frames that are in flight, or wait for an earlier one.
pub(super) struct Flying {
    pub number: u64,
    pub written: bool,
    /// As its header says.
    pub tail: u64,
    /// Entries of the queue that it took.
    pub entries: usize,
    /// When it is settled, so is the queue up to here.
    pub position: u64,
    pub fences: Vec<(FamilyId, Epoch)>,
    pub drops: Vec<FamilyId>,
    pub carried: Vec<Carried>,
    /// What it says of records that may have been anybody's.
    pub anybody: Option<Anybody>,
}

/// A record that waits for a frame.
pub(super) struct Queued {
    pub family: FamilyId,
    pub epoch: Epoch,
    pub begin: Seq,
    pub copied: Copied,
    pub record: Record,
    pub blocks: u64,
    /// Of the family that the ring waits for: it may go into the slack.
    pub frees: bool,
    /// Trimmed or fenced off before it was written.
    pub void: bool,
}

/// An append that waits for its records to be settled.
pub(super) struct Waiter {
    pub caller: Caller,
    pub epoch: Epoch,
    pub position: u64,
    pub last: Seq,
}

/// A fence that waits for a frame: see [`crate::message::Question::Fence`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WantedFence {
    pub first: Seq,
    pub since: Epoch,
}

/// Data records of one frame at most; with these the pieces of a write stay well under 1024.
pub(super) const DATA_RECORDS_MAX: usize = 512;
/// Blocks that stay free for the frame that tells of a new tail, without which nothing is ever free again.
pub(super) const LAST_BLOCKS: u64 = 1;

pub(super) struct Ring {
    pub incarnation: u64,
    /// Blocks of the log area.
    pub blocks: u64,
    pub frame_blocks_max: u64,
    pub frames_in_flight: usize,
    /// Blocks of the largest payload that was ever queued or found here.
    pub largest: u64,

    pub holdings: BTreeMap<FamilyId, Holding>,
    /// Oldest first, numbers ascending.
    pub frames: VecDeque<Frame>,
    /// This many frames at the front are not needed, but nothing durable says so yet.
    pub dead: usize,
    /// Those at the back of `frames` that are not settled.
    pub flying: VecDeque<Flying>,
    /// Where the next frame goes if it fits.
    pub head: u64,
    /// Blocks between the last frame before the end of the ring and the end, once one has begun at its beginning.
    pub left_at_the_end: u64,
    pub next_number: u64,
    pub settled: u64,
    pub session_first: u64,
    pub session_after: u64,
    /// The last frame that was needed when the drive was opened, and could not be found.
    pub missing: Option<u64>,
    /// The first of them, and the families that may have had something in one, up to which epoch. As long as one of these has no
    /// owner that knows where its log ends, the ring is not freed beyond that: else nobody would know any more, at the next opening,
    /// that something is missing.
    pub floor: Option<(u64, BTreeMap<FamilyId, Epoch>)>,

    /// A block could not be read behind the last frame, when the drive was opened: of the families on the floor it is to be written that
    /// nobody knows where their logs end, before anything else is.
    pub is_end_unknown: bool,
    pub torn_end: TornEnd,

    pub queue: VecDeque<Queued>,
    /// Blocks of what is queued and not void, with room for their headers.
    pub queued_blocks: u64,
    /// Position of the last record that was ever queued, framed, settled: `settled <= framed <= queued`.
    pub queued_to: u64,
    pub framed_to: u64,
    pub settled_to: u64,
    /// In order of position.
    pub waiters: VecDeque<Waiter>,

    pub wanted_fences: BTreeMap<FamilyId, WantedFence>,
    pub wanted_drops: BTreeSet<FamilyId>,
    /// Families whose trims no frame has told yet, and since when.
    pub untold_trims: BTreeSet<FamilyId>,
    pub untold_since: Option<Time>,
    /// A frame is to say that all before it have settled: only then one of them that is damaged later is missed.
    pub rests: bool,

    pub reads: LogReads,
    pub carrying: Carrying,
    pub pressed_at: Option<Time>,
    /// Families that share the room, as counted at this time.
    pub sharing: (u64, Option<Time>),
}

/// Where a frame is among those that are needed, if it is one of them.
pub(super) fn place_of_frame(frames: &VecDeque<Frame>, number: u64) -> Option<usize> {
    frames.binary_search_by_key(&number, |frame| frame.number).ok()
}

impl Ring {
    /// An empty ring of `bytes`.
    pub fn empty(bytes: u64, incarnation: u64, limits: &Limits) -> Self {
        let blocks = bytes / BLOCK as u64;
        assert!(blocks >= 64, "a log ring has at least 64 blocks");
        Self {
            incarnation,
            blocks,
            frame_blocks_max: (limits.frame_bytes_max as u64 / BLOCK as u64).clamp(1, blocks / 8),
            frames_in_flight: limits.frames_in_flight,
            largest: 0,
            holdings: BTreeMap::new(),
            frames: VecDeque::new(),
            dead: 0,
            flying: VecDeque::new(),
            head: 0,
            left_at_the_end: 0,
            next_number: 1,
            settled: 0,
            session_first: 1,
            session_after: 0,
            missing: None,
            floor: None,
            is_end_unknown: false,
            torn_end: TornEnd::default(),
            queue: VecDeque::new(),
            queued_blocks: 0,
            queued_to: 0,
            framed_to: 0,
            settled_to: 0,
            waiters: VecDeque::new(),
            wanted_fences: BTreeMap::new(),
            wanted_drops: BTreeSet::new(),
            untold_trims: BTreeSet::new(),
            untold_since: None,
            rests: false,
            reads: LogReads::default(),
            carrying: Carrying::default(),
            pressed_at: None,
            sharing: (1, None),
        }
    }

    /// What is where, for people who wonder why the ring stands still.
    pub fn describe(&self) -> String {
        let mut text = format!(
            "ring: {} of {} blocks used, {} dead, {} records queued with {} blocks, {} frames in flight",
            self.used(),
            self.blocks,
            self.dead_blocks(),
            self.queue.len(),
            self.queued_blocks,
            self.flying.len()
        );
        let tail = self.frames.get(self.dead);
        if let Some(frame) = tail {
            text += &format!("; its oldest frame has {} records and {} fences", frame.live, frame.fences);
            text += &format!("; {}", self.carrying.describe());
        }
        for (family, holding) in &self.holdings {
            if !holding.fence_waiters.is_empty() {
                let wanted = if self.wanted_fences.contains_key(family) { "wanted" } else { "not wanted" };
                let durable = holding.durable_fence;
                text += &format!(
                    "; family {family}: {} wait for a fence ({wanted}; durable {durable:?}, moving {})",
                    holding.fence_waiters.len(),
                    holding.fence_moving
                );
            }
            let (Some((low, _)), Some((high, _))) =
                (holding.places.first_key_value(), holding.places.last_key_value())
            else {
                continue;
            };
            let blocks: u64 = holding.places.values().map(Place::blocks).sum();
            let at_tail = tail.map_or(0, |frame| {
                let there = |place: &&Place| place.home == Home::Frame(frame.number);
                holding.places.values().filter(there).count()
            });
            text += &format!(
                "; family {family}: {} records {low} to {high}, {blocks} blocks, {at_tail} in the oldest frame",
                holding.places.len()
            );
        }
        text
    }

    /// Blocks from the oldest frame that is not free to the head.
    pub fn used(&self) -> u64 {
        match self.frames.front() {
            None => 0,
            Some(front) if self.head > front.position => self.head - front.position,
            Some(front) => self.head + self.blocks - front.position,
        }
    }

    /// Blocks that only frames without data may take: fences, and what frees space.
    pub fn slack(&self) -> u64 {
        (self.blocks / 16).max(4)
    }

    /// Blocks of the slack that only what frees space may take: else those who come and go while the ring is full use up what the one
    /// family needs that it waits for.
    pub fn last_slack(&self) -> u64 {
        self.slack() / 2
    }

    /// Whether so many records, whose payloads have so many blocks, share a frame. Carrying them on, all at once, takes no more than there is
    /// room for when nothing else has any.
    pub fn go_into_one_frame(&self, records: usize, payloads: u64) -> bool {
        let may_be_carried =
            blocks_to_carry(records, payloads) <= self.slack() || planted(Bug::FramesTooLarge);
        records == 1 || payloads <= self.frame_blocks_max && records <= DATA_RECORDS_MAX && may_be_carried
    }

    /// Whether the oldest frame that is still needed is so because of a record of this family.
    pub fn waits_for(&self, family: FamilyId) -> bool {
        let oldest = self.frames.get(self.dead).map(|frame| Home::Frame(frame.number));
        let Some(holding) = self.holdings.get(&family) else { return false };
        // Those that were carried on lie behind others.
        let looked_at = if holding.was_carried { usize::MAX } else { 1 };
        let places =
            holding.places.values().take(looked_at).chain(holding.lost.values()).chain(&holding.unsure);
        places.into_iter().any(|place| Some(place.home) == oldest)
    }

    /// Blocks that client data leaves for map and checkpoint records: a quarter, and what no record can use, because
    /// of a gap at the end of the ring and the slack.
    pub fn reserve(&self) -> u64 {
        self.blocks / 4 + self.gap() + self.slack()
    }

    /// Blocks that the next frame may leave free at the end of the ring; and as many that what has room in the slack finds it in one piece,
    /// wherever the ring ends.
    pub fn gap(&self) -> u64 {
        let in_one_piece = match planted(Bug::SlackInPieces) {
            true => 0,
            false => blocks_to_carry(1, self.largest).min(self.slack()),
        };
        in_one_piece.max(self.frame_blocks_max + header_blocks(1) + LAST_BLOCKS)
    }

    /// Blocks that nothing lies in and nothing is queued for.
    pub fn free(&self) -> u64 {
        self.blocks.saturating_sub(self.used() + self.queued_blocks)
    }

    /// Blocks at the tail that are free as soon as a durable frame says so.
    pub fn dead_blocks(&self) -> u64 {
        let needed = self.frames.get(self.dead).map_or(self.head, |frame| frame.position);
        match self.frames.front() {
            None => 0,
            Some(_) if self.dead == self.frames.len() => self.used(),
            Some(front) => (needed + self.blocks - front.position) % self.blocks,
        }
    }

    /// Where a frame of `blocks` can go so that `slack` blocks stay free behind it. A frame never wraps.
    pub fn place(&self, blocks: u64, slack: u64) -> Option<u64> {
        let want = blocks + slack;
        let Some(tail) = self.frames.front().map(|frame| frame.position) else {
            if self.head + blocks <= self.blocks {
                return (want <= self.blocks).then_some(self.head);
            }
            return (want <= self.blocks).then_some(0);
        };
        // The head may never reach the tail: full and empty would look the same.
        if self.head <= tail {
            return (self.head + want < tail).then_some(self.head);
        }
        if self.head + blocks <= self.blocks {
            let behind = self.blocks - self.head - blocks + tail;
            return (slack < behind).then_some(self.head);
        }
        (want < tail).then_some(0)
    }

    /// A frame lies there, and the head behind it.
    pub fn put_head_behind(&mut self, position: u64, blocks: u64) {
        self.left_at_the_end = self.left_behind(position, blocks);
        self.head = (position + blocks) % self.blocks;
    }

    /// What is left at the end of the ring behind such a frame.
    pub fn left_behind(&self, position: u64, blocks: u64) -> u64 {
        match position {
            0 => (self.blocks - self.head) % self.blocks,
            _ if position + blocks == self.blocks => 0,
            _ => self.left_at_the_end,
        }
    }

    /// The oldest frame still needed, as the next frame will say.
    pub fn tail_number(&self) -> u64 {
        self.not_beyond_the_floor(self.frames.get(self.dead).map_or(self.next_number, |frame| frame.number))
    }

    pub fn not_beyond_the_floor(&self, tail: u64) -> u64 {
        self.floor.as_ref().map_or(tail, |(floor, _)| tail.min(*floor))
    }

    /// Whether the oldest frame is needed because of the floor, whatever is in it.
    pub fn is_on_the_floor(&self) -> bool {
        let next = self.frames.get(self.dead + 1).map_or(self.next_number, |next| next.number);
        self.not_beyond_the_floor(next) < next
    }

    pub fn has_floor_for(&self, family: FamilyId) -> bool {
        self.floor.as_ref().is_some_and(|(_, families)| families.contains_key(&family))
    }

    pub fn lift_floor(&mut self, family: FamilyId) {
        if let Some((_, families)) = &mut self.floor
            && families.remove(&family).is_some()
            && families.is_empty()
        {
            self.floor = None;
        }
    }

    pub fn frame_mut(&mut self, number: u64) -> Option<&mut Frame> {
        let at = place_of_frame(&self.frames, number)?;
        self.frames.get_mut(at)
    }

    /// A record is not held any more.
    pub fn let_go(&mut self, place: &Place) {
        match place.home {
            Home::Frame(number) => {
                self.frame_mut(number).expect("a held record keeps its frame").let_go(place.blocks());
            }
            Home::Queued(position) => {
                let at = (position - self.framed_to - 1) as usize;
                let queued = &mut self.queue[at];
                assert!(!queued.void, "a queued record is let go of once");
                queued.void = true;
                self.queued_blocks -= queued_cost(queued.blocks);
            }
        }
    }

    /// Counts the frames at the tail that are not needed any more.
    pub fn count_dead(&mut self) {
        let settled = self.frames.len() - self.flying.len();
        while self.dead < settled && self.frames[self.dead].live == 0 && self.frames[self.dead].fences == 0 {
            if self.is_on_the_floor() {
                return;
            }
            self.dead += 1;
        }
    }

    /// The tail that a settled frame tells is durable: what is before it, and not needed, may be written again.
    pub fn free_before(&mut self, tail: u64) {
        while self.dead > 0 && self.frames.front().is_some_and(|front| front.number < tail) {
            let front = self.frames.pop_front().expect("just seen");
            assert!(front.live == 0 && front.fences == 0, "a frame that is needed is not freed");
            self.dead -= 1;
        }
    }
}

/// What carrying on so many records takes whose payloads have so many blocks, beside what may have been anybody's, and telling that the
/// frame which they lie in is free.
pub(super) fn blocks_to_carry(records: usize, payloads: u64) -> u64 {
    header_blocks(records + 1) + payloads + LAST_BLOCKS
}

/// Blocks to set aside for a queued record: its payload, and a header block of its own at worst.
pub(super) fn queued_cost(payload_blocks: u64) -> u64 {
    payload_blocks + header_blocks(1)
}
