//! Units that may be read again, and compressed frames of such as they are stored, by S3-FIFO (Yang and others, "FIFO queues are all you need for cache eviction", SOSP 2023):
//! what is new passes a small queue, what is asked for again meanwhile goes on to the main one, and of what left the small
//! one the names are kept for a while (ghosts), so that it enters the main one when it comes back. A scan only ever fills
//! the small queue.
//! Promises: never more than the limit, names included; no order of a hash is ever seen.
//! Leaves to others: what units mean.

use super::Place;
use crate::buffer::{BLOCK, Buffer, Memory};
use crate::codec::Codec;
use crate::formats::packing::FRAME_UNITS_MAX;
use crate::identity::FamilyId;
use crate::message::PackedFrame;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Memory that a unit takes: its bytes, counts and the allocator's header in front of them, its entries in the table
/// (at the load at which that grows) and in a queue.
pub const UNIT_COST: u64 = BLOCK as u64 + ENTRY_COST;
const ENTRY_COST: u64 = 272;

/// For each unit that would fit there may be so many entries: frames are smaller. Their table is made for as many.
const ENTRIES_PER_UNIT: usize = 2;

/// ... and that a name alone takes.
pub const GHOST_COST: u64 = 88;

/// One part in this many is the small queue.
const SMALL_SHARE: u64 = 10;

/// Asked for so often in the small queue, a unit goes on to the main one. Once is not enough: whoever reads a block by
/// sectors asks for it several times and never again.
const HITS_TO_STAY: u8 = 2;

/// More are not counted: what was read often leaves after so many turns of the main queue.
const HITS_MAX: u8 = 3;

/// One unit of memory, in the same allocation as its count of holders.
struct Unit([u8; BLOCK]);

impl Memory for Unit {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Unit")
    }
}

/// What is kept under a place.
#[derive(Debug)]
enum Kept {
    Unit(Arc<Unit>),
    /// The frame that begins with the unit of this place.
    Frame {
        bytes: Box<[u8]>,
        units: u8,
        codec: Codec,
    },
}

impl Kept {
    fn cost(&self) -> u64 {
        match self {
            Kept::Unit(_) => UNIT_COST,
            Kept::Frame { bytes, .. } => bytes.len() as u64 + ENTRY_COST,
        }
    }
}

/// A frame that is kept, and the number of its first unit.
pub struct KeptFrame<'a> {
    pub first: u32,
    pub units: u32,
    pub codec: Codec,
    pub bytes: &'a [u8],
}

#[derive(Debug)]
enum Entry {
    Kept {
        kept: Kept,
        hits: u8,
    },
    /// Only the name; the number tells it from an older one of the same name.
    Ghost(u64),
}

/// What the cache did since the shard began, in units; a frame counts as one that is put in or leaves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FifoCounters {
    pub hits: u64,
    pub misses: u64,
    pub inserted: u64,
    /// Of these, those that were known from before and went to the main queue at once.
    pub returned: u64,
    pub evicted: u64,
}

#[derive(Debug, Default)]
pub struct Fifo {
    limit: u64,
    entries_max: usize,
    ghosts_max: usize,
    known: HashMap<Place, Entry, BuildHasherDefault<Mix>>,
    small: Queue,
    main: Queue,
    ghosts: VecDeque<(Place, u64)>,
    ghosts_named: u64,
    /// Entries that are frames.
    frames: usize,
    /// The memory of the unit that left last, for the next one.
    spare: Option<Arc<Unit>>,
    pub counters: FifoCounters,
}

/// Places of what is kept, oldest first, and what it takes.
#[derive(Debug, Default)]
struct Queue {
    places: VecDeque<(Place, u32)>,
    bytes: u64,
}

impl Queue {
    fn push(&mut self, place: Place, cost: u64) {
        self.bytes += cost;
        self.places.push_back((place, cost as u32));
    }

    fn pop(&mut self) -> Option<(Place, u64)> {
        let (place, cost) = self.places.pop_front()?;
        self.bytes -= u64::from(cost);
        Some((place, u64::from(cost)))
    }

    fn forget(&mut self, family: FamilyId) {
        self.places.retain(|(place, _)| place.family != family);
        self.bytes = self.places.iter().map(|(_, cost)| u64::from(*cost)).sum();
    }
}

impl Fifo {
    pub fn set_limit(&mut self, limit: u64) {
        let units_max = (limit / (UNIT_COST + GHOST_COST)) as usize;
        self.ghosts_max = units_max;
        self.entries_max = units_max * ENTRIES_PER_UNIT;
        self.limit = units_max as u64 * UNIT_COST;
        self.make_room(0);
        self.trim_ghosts();
        self.spare = None;
        // Sized once: a table that grows is moved as a whole, and everybody would wait for it.
        let entries = self.entries_max + self.ghosts_max;
        self.known.shrink_to(entries);
        let room = (entries + 1).saturating_sub(self.known.len());
        self.known.reserve(if units_max == 0 { 0 } else { room });
        for queue in [&mut self.small, &mut self.main] {
            queue.places.shrink_to(self.entries_max);
        }
        self.ghosts.shrink_to(self.ghosts_max);
    }

    /// Units and frames that are kept.
    pub fn len(&self) -> usize {
        self.small.places.len() + self.main.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Of these, frames.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Not one unit more fits without something leaving.
    pub fn is_full(&self) -> bool {
        !self.has_room(UNIT_COST)
    }

    fn has_room(&self, cost: u64) -> bool {
        self.len() < self.entries_max && self.kept_bytes() + cost <= self.limit
    }

    fn kept_bytes(&self) -> u64 {
        self.small.bytes + self.main.bytes
    }

    pub fn used_bytes(&self) -> u64 {
        self.kept_bytes() + self.ghosts.len() as u64 * GHOST_COST
    }

    /// The unit, if it is kept as such; that it was asked for counts.
    pub fn get(&mut self, place: Place) -> Option<Buffer> {
        let Some(Entry::Kept { kept: Kept::Unit(unit), hits }) = self.known.get_mut(&place) else {
            return None;
        };
        *hits = (*hits + 1).min(HITS_MAX);
        self.counters.hits += 1;
        let unit: Arc<Unit> = Arc::clone(unit);
        Some(Buffer::of(unit, BLOCK))
    }

    /// The frame that the unit lies in, if that is kept; that it was asked for counts, and for how many of its units.
    pub fn get_frame(&mut self, place: Place, wanted: u32) -> Option<KeptFrame<'_>> {
        let begin = self.frame_around(place)?;
        let Some(Entry::Kept { kept: Kept::Frame { bytes, units, codec }, hits }) =
            self.known.get_mut(&begin)
        else {
            unreachable!("it was just found");
        };
        *hits = (*hits + 1).min(HITS_MAX);
        let units = u32::from(*units);
        self.counters.hits += u64::from(wanted.min(begin.unit + units - place.unit));
        Some(KeptFrame { first: begin.unit, units, codec: *codec, bytes })
    }

    pub fn count_miss(&mut self) {
        self.counters.misses += 1;
    }

    /// Where the frame begins that this unit lies in, if it is kept.
    fn frame_around(&self, place: Place) -> Option<Place> {
        if self.frames == 0 {
            return None;
        }
        (0..FRAME_UNITS_MAX).map_while(|back| place.unit.checked_sub(back)).find_map(|first| {
            let begin = Place { unit: first, ..place };
            let Some(Entry::Kept { kept: Kept::Frame { units, .. }, .. }) = self.known.get(&begin) else {
                return None;
            };
            (place.unit - first < u32::from(*units)).then_some(begin)
        })
    }

    /// Whether the unit is kept, alone or in a frame, asked for by nobody.
    pub fn holds(&self, place: Place) -> bool {
        let alone = matches!(self.known.get(&place), Some(Entry::Kept { kept: Kept::Unit(_), .. }));
        alone || self.frame_around(place).is_some()
    }

    /// A unit was read, and may be again.
    pub fn insert(&mut self, place: Place, bytes: &[u8]) {
        self.take(place, UNIT_COST, true, |fifo| fifo.unit_of(bytes));
    }

    /// A frame was read, and may be again.
    pub fn insert_frame(&mut self, place: Place, frame: &PackedFrame) {
        self.take(place, frame.bytes.len() as u64 + ENTRY_COST, true, |_| kept_frame(frame));
    }

    /// A unit was read by somebody who reads much, once as a rule: only its name is noted. When it is read again while that
    /// is known, it is kept.
    pub fn note(&mut self, place: Place, bytes: &[u8]) {
        self.take(place, UNIT_COST, false, |fifo| fifo.unit_of(bytes));
    }

    /// The same for a frame.
    pub fn note_frame(&mut self, place: Place, frame: &PackedFrame) {
        self.take(place, frame.bytes.len() as u64 + ENTRY_COST, false, |_| kept_frame(frame));
    }

    /// Something of this cost was read. `keep`: also if it was never heard of.
    fn take(&mut self, place: Place, cost: u64, keep: bool, make: impl FnOnce(&mut Self) -> Kept) {
        if cost > self.limit {
            return;
        }
        match self.known.get(&place) {
            Some(Entry::Kept { .. }) => {}
            Some(Entry::Ghost(_)) => {
                self.counters.returned += 1;
                self.keep(place, cost, make);
                self.main.push(place, cost);
            }
            None if keep => {
                self.keep(place, cost, make);
                self.small.push(place, cost);
            }
            None => self.name_ghost(place),
        }
    }

    /// Keeps a unit that somebody wants to have here, without anything else leaving. False if there is no room.
    pub fn warm(&mut self, place: Place, bytes: &[u8]) -> bool {
        self.warm_up(place, UNIT_COST, |fifo| fifo.unit_of(bytes))
    }

    /// The same for a frame.
    pub fn warm_frame(&mut self, place: Place, frame: &PackedFrame) -> bool {
        self.warm_up(place, frame.bytes.len() as u64 + ENTRY_COST, |_| kept_frame(frame))
    }

    fn warm_up(&mut self, place: Place, cost: u64, make: impl FnOnce(&mut Self) -> Kept) -> bool {
        if self.holds(place) {
            return true;
        }
        if !self.has_room(cost) {
            return false;
        }
        self.keep(place, cost, make);
        self.main.push(place, cost);
        true
    }

    /// Lets go of everything of a family.
    pub fn forget(&mut self, family: FamilyId) {
        self.small.forget(family);
        self.main.forget(family);
        self.ghosts.retain(|(place, _)| place.family != family);
        self.known.retain(|place, _| place.family != family);
        let is_frame = |entry: &&Entry| matches!(entry, Entry::Kept { kept: Kept::Frame { .. }, .. });
        self.frames = self.known.values().filter(is_frame).count();
    }

    /// Makes room and keeps something; it is about to join a queue.
    fn keep(&mut self, place: Place, cost: u64, make: impl FnOnce(&mut Self) -> Kept) {
        self.make_room(cost);
        self.counters.inserted += 1;
        let kept = make(self);
        assert_eq!(kept.cost(), cost, "what is kept takes what was made room for");
        self.frames += usize::from(matches!(kept, Kept::Frame { .. }));
        self.known.insert(place, Entry::Kept { kept, hits: 0 });
        assert!(self.has_room(cost), "room was made for what is about to join a queue");
    }

    /// Copies the bytes: a buffer of a large read would keep all of it in memory, and in a node the memory that drives are
    /// read into (see docs/decisions/0018-read-cache.md).
    fn unit_of(&mut self, bytes: &[u8]) -> Kept {
        let bytes: &[u8; BLOCK] = bytes.try_into().expect("a unit is a whole block");
        let mut unit = self.spare.take();
        // Somebody may still be sending what left; then its memory is theirs.
        Kept::Unit(match unit.as_mut().and_then(Arc::get_mut) {
            Some(memory) => {
                memory.0.copy_from_slice(bytes);
                unit.expect("its memory was just written")
            }
            None => Arc::new(Unit(*bytes)),
        })
    }

    /// Lets things go until something of this cost may come (with 0: until no more is kept than may be).
    fn make_room(&mut self, cost: u64) {
        let is_over = |fifo: &Self| match cost {
            0 => fifo.len() > fifo.entries_max || fifo.kept_bytes() > fifo.limit,
            _ => !fifo.has_room(cost),
        };
        while is_over(self) && !self.is_empty() {
            let small_max = (self.limit / SMALL_SHARE).max(UNIT_COST);
            if self.small.bytes >= small_max || self.main.places.is_empty() {
                self.evict_small();
            } else {
                self.evict_main();
            }
        }
    }

    /// The oldest of the small queue that nobody wanted goes; what was wanted goes on to the main one.
    fn evict_small(&mut self) {
        while let Some((place, cost)) = self.small.pop() {
            let hits = self.hits(place);
            if *hits >= HITS_TO_STAY {
                *hits = 0;
                self.main.push(place, cost);
                continue;
            }
            self.let_go(place);
            return self.name_ghost(place);
        }
    }

    /// The oldest of the main queue that was not wanted since its last turn goes.
    fn evict_main(&mut self) {
        while let Some((place, cost)) = self.main.pop() {
            let hits = self.hits(place);
            if *hits > 0 {
                *hits -= 1;
                self.main.push(place, cost);
                continue;
            }
            return self.let_go(place);
        }
    }

    fn hits(&mut self, place: Place) -> &mut u8 {
        match self.known.get_mut(&place) {
            Some(Entry::Kept { hits, .. }) => hits,
            Some(Entry::Ghost(_)) | None => unreachable!("what is in a queue is kept"),
        }
    }

    fn let_go(&mut self, place: Place) {
        let Some(Entry::Kept { kept, .. }) = self.known.remove(&place) else {
            unreachable!("what is in a queue is kept");
        };
        self.counters.evicted += 1;
        match kept {
            Kept::Unit(unit) => self.spare = Some(unit),
            Kept::Frame { .. } => self.frames -= 1,
        }
    }

    fn name_ghost(&mut self, place: Place) {
        self.ghosts_named += 1;
        self.known.insert(place, Entry::Ghost(self.ghosts_named));
        self.ghosts.push_back((place, self.ghosts_named));
        self.trim_ghosts();
    }

    fn trim_ghosts(&mut self) {
        while self.ghosts.len() > self.ghosts_max {
            let (place, number) = self.ghosts.pop_front().expect("it has more than it may");
            // It may be kept by now, or have left again under a newer number.
            if matches!(self.known.get(&place), Some(Entry::Ghost(newest)) if *newest == number) {
                self.known.remove(&place);
            }
        }
    }
}

fn kept_frame(frame: &PackedFrame) -> Kept {
    Kept::Frame { bytes: frame.bytes.bytes().into(), units: frame.units as u8, codec: frame.codec }
}

/// A hash that is the same in every run. Places are not chosen by anybody who could gain by making them collide.
#[derive(Default)]
pub struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The product's upper bits are its good ones; the table looks at both ends.
        self.0 ^ (self.0 >> 32)
    }
}
