//! Units that may be read again, by S3-FIFO (Yang and others, "FIFO queues are all you need for cache eviction", SOSP 2023):
//! what is new passes a small queue, what is asked for again meanwhile goes on to the main one, and of what left the small
//! one the names are kept for a while (ghosts), so that it enters the main one when it comes back. A scan only ever fills
//! the small queue.
//! Promises: never more than the limit, names included; no order of a hash is ever seen.
//! Leaves to others: what units mean.

use super::Place;
use crate::buffer::{BLOCK, Buffer, Memory};
use crate::identity::FamilyId;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Memory that a unit takes: its bytes, counts and the allocator's header in front of them, its entries in the table
/// (at the load at which that grows) and in a queue.
pub const UNIT_COST: u64 = BLOCK as u64 + 128;

/// ... and that a name alone takes.
pub const GHOST_COST: u64 = 88;

/// One part in this many is the small queue.
const SMALL_SHARE: usize = 10;

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

#[derive(Debug)]
enum Entry {
    Kept {
        unit: Arc<Unit>,
        hits: u8,
    },
    /// Only the name; the number tells it from an older one of the same name.
    Ghost(u64),
}

/// What the cache did since the shard began, in units.
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
    units_max: usize,
    small_max: usize,
    ghosts_max: usize,
    known: HashMap<Place, Entry, BuildHasherDefault<Mix>>,
    /// Places of units that are kept, oldest first.
    small: VecDeque<Place>,
    main: VecDeque<Place>,
    ghosts: VecDeque<(Place, u64)>,
    ghosts_named: u64,
    /// The memory of the unit that left last, for the next one.
    spare: Option<Arc<Unit>>,
    pub counters: FifoCounters,
}

impl Fifo {
    pub fn set_limit(&mut self, limit: u64) {
        self.units_max = (limit / (UNIT_COST + GHOST_COST)) as usize;
        self.small_max = (self.units_max / SMALL_SHARE).max(1);
        self.ghosts_max = self.units_max;
        self.make_room(0);
        self.trim_ghosts();
        self.spare = None;
        // Sized once: a table that grows is moved as a whole, and everybody would wait for it.
        self.known.shrink_to(self.units_max + self.ghosts_max);
        let room = (self.units_max + self.ghosts_max + 1).saturating_sub(self.known.len());
        self.known.reserve(if self.units_max == 0 { 0 } else { room });
        for queue in [&mut self.small, &mut self.main] {
            queue.shrink_to(self.units_max);
        }
        self.ghosts.shrink_to(self.ghosts_max);
    }

    /// Units that are kept.
    pub fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Nothing more fits without something leaving.
    pub fn is_full(&self) -> bool {
        self.len() >= self.units_max
    }

    pub fn used_bytes(&self) -> u64 {
        self.len() as u64 * UNIT_COST + self.ghosts.len() as u64 * GHOST_COST
    }

    /// The unit, if it is kept; that it was asked for counts.
    pub fn get(&mut self, place: Place) -> Option<Buffer> {
        let Some(Entry::Kept { unit, hits }) = self.known.get_mut(&place) else {
            self.counters.misses += 1;
            return None;
        };
        *hits = (*hits + 1).min(HITS_MAX);
        self.counters.hits += 1;
        let unit: Arc<Unit> = Arc::clone(unit);
        Some(Buffer::of(unit, BLOCK))
    }

    /// Whether the unit is kept, asked for by nobody.
    pub fn holds(&self, place: Place) -> bool {
        matches!(self.known.get(&place), Some(Entry::Kept { .. }))
    }

    /// A unit was read, and may be again.
    pub fn insert(&mut self, place: Place, bytes: &[u8]) {
        if self.units_max == 0 {
            return;
        }
        match self.known.get(&place) {
            Some(Entry::Kept { .. }) => {}
            Some(Entry::Ghost(_)) => self.keep_returned(place, bytes),
            None => {
                self.keep(place, bytes, 0);
                self.small.push_back(place);
            }
        }
    }

    /// A unit was read by somebody who reads much, once as a rule: only its name is noted. When it is read again while that
    /// is known, it is kept.
    pub fn note(&mut self, place: Place, bytes: &[u8]) {
        if self.units_max == 0 {
            return;
        }
        match self.known.get(&place) {
            Some(Entry::Kept { .. }) => {}
            Some(Entry::Ghost(_)) => self.keep_returned(place, bytes),
            None => self.name_ghost(place),
        }
    }

    /// Keeps a unit that somebody wants to have here, without anything else leaving. False if there is no room.
    pub fn warm(&mut self, place: Place, bytes: &[u8]) -> bool {
        if self.holds(place) {
            return true;
        }
        if self.is_full() {
            return false;
        }
        self.keep(place, bytes, 0);
        self.main.push_back(place);
        true
    }

    /// Lets go of everything of a family.
    pub fn forget(&mut self, family: FamilyId) {
        self.small.retain(|place| place.family != family);
        self.main.retain(|place| place.family != family);
        self.ghosts.retain(|(place, _)| place.family != family);
        self.known.retain(|place, _| place.family != family);
    }

    fn keep_returned(&mut self, place: Place, bytes: &[u8]) {
        self.counters.returned += 1;
        self.keep(place, bytes, 0);
        self.main.push_back(place);
    }

    /// Copies the bytes: a buffer of a large read would keep all of it in memory, and in a node the memory that drives are
    /// read into (see docs/decisions/0018-read-cache.md).
    fn keep(&mut self, place: Place, bytes: &[u8], hits: u8) {
        self.make_room(1);
        self.counters.inserted += 1;
        let bytes: &[u8; BLOCK] = bytes.try_into().expect("a unit is a whole block");
        let mut unit = self.spare.take();
        // Somebody may still be sending what left; then its memory is theirs.
        let unit = match unit.as_mut().and_then(Arc::get_mut) {
            Some(memory) => {
                memory.0.copy_from_slice(bytes);
                unit.expect("its memory was just written")
            }
            None => Arc::new(Unit(*bytes)),
        };
        self.known.insert(place, Entry::Kept { unit, hits });
        assert!(self.len() < self.units_max, "room was made for the unit that is about to join a queue");
    }

    /// Lets units go until `count` more may come.
    fn make_room(&mut self, count: usize) {
        while self.len() + count > self.units_max && !self.is_empty() {
            if self.small.len() >= self.small_max || self.main.is_empty() {
                self.evict_small();
            } else {
                self.evict_main();
            }
        }
    }

    /// The oldest of the small queue that nobody wanted goes; what was wanted goes on to the main one.
    fn evict_small(&mut self) {
        while let Some(place) = self.small.pop_front() {
            let hits = self.hits(place);
            if *hits >= HITS_TO_STAY {
                *hits = 0;
                self.main.push_back(place);
                continue;
            }
            self.drop_unit(place);
            return self.name_ghost(place);
        }
    }

    /// The oldest of the main queue that was not wanted since its last turn goes.
    fn evict_main(&mut self) {
        while let Some(place) = self.main.pop_front() {
            let hits = self.hits(place);
            if *hits > 0 {
                *hits -= 1;
                self.main.push_back(place);
                continue;
            }
            return self.drop_unit(place);
        }
    }

    fn hits(&mut self, place: Place) -> &mut u8 {
        match self.known.get_mut(&place) {
            Some(Entry::Kept { hits, .. }) => hits,
            Some(Entry::Ghost(_)) | None => unreachable!("a place in a queue has a unit"),
        }
    }

    fn drop_unit(&mut self, place: Place) {
        let Some(Entry::Kept { unit, .. }) = self.known.remove(&place) else {
            unreachable!("a place in a queue has a unit");
        };
        self.counters.evicted += 1;
        self.spare = Some(unit);
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
