//! What a shard keeps in memory of the egroups its vDisks read: units that may be read again (`fifo`), and what was read
//! ahead of sequential streams (`ahead`).
//! Units that lie in a compressed frame are kept as that frame: what compresses takes less memory too, and a hit costs
//! unpacking it.
//! Promises: never more than the limit, which may change at any time; a unit is the one that its place names, because a
//! place is written once and its name never used again: nothing in here has to be invalidated, it only ages (see
//! docs/decisions/0018-read-cache.md). What enters was verified by the keeper that gave it (I7).
//! Leaves to others: who looks here, and what may enter (`volume/read.rs`).

pub mod ahead;
pub mod fifo;
#[cfg(test)]
mod tests;

use crate::buffer::{BLOCK, Buffer, Pages};
use crate::codec::Decompressor;
use crate::identity::{EgroupId, FamilyId};
use crate::sabotage::{Bug, planted};
use ahead::Ahead;
use fifo::Fifo;

/// Of the limit, the part that read-ahead may have, and what it has at most: in a node these bytes lie in the memory
/// that drives are read into, which others need too.
const AHEAD_SHARE: u64 = 4;
const AHEAD_BYTES_MAX: u64 = 16 << 20;

/// Where a unit is: the name of content that never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub egroup: EgroupId,
    pub family: FamilyId,
    pub unit: u32,
}

impl Place {
    pub fn new(family: FamilyId, egroup: EgroupId, unit: u32) -> Self {
        let egroup = if planted(Bug::CacheWithoutEgroup) { EgroupId(0) } else { egroup };
        Self { egroup, family, unit }
    }

    /// `units` further on in the same egroup.
    pub fn plus(self, units: u32) -> Self {
        Self { unit: self.unit + units, ..self }
    }

    /// How many units it is behind `first`; None if that is of another egroup.
    fn units_behind(self, first: Place) -> Option<u32> {
        let same = (self.family, self.egroup) == (first.family, first.egroup);
        if same { self.unit.checked_sub(first.unit) } else { None }
    }
}

#[derive(Debug)]
pub struct Cache {
    limit: u64,
    pub units: Fifo,
    pub ahead: Ahead,
    decompressor: Decompressor,
    pub frames_unpacked: u64,
}

impl Cache {
    /// Keeps at most `limit` bytes; with 0 nothing is kept, and nothing read ahead.
    pub fn new(limit: u64) -> Self {
        let mut cache = Self {
            limit: 0,
            units: Fifo::default(),
            ahead: Ahead::default(),
            decompressor: Decompressor::default(),
            frames_unpacked: 0,
        };
        cache.set_limit(limit);
        cache
    }

    /// What is over the new limit goes at once.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        let ahead = (limit / AHEAD_SHARE).min(AHEAD_BYTES_MAX);
        self.ahead.set_limit(ahead);
        self.units.set_limit(limit - ahead);
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn used_bytes(&self) -> u64 {
        self.units.used_bytes() + self.ahead.used_bytes()
    }

    /// The unit of this place and those behind it, `most` at most, if they are kept: alone, or together in a frame.
    pub fn get(&mut self, place: Place, most: u32) -> Option<Buffer> {
        if let Some(unit) = self.units.get(place) {
            return Some(unit);
        }
        let Some(frame) = self.units.get_frame(place, most) else {
            self.units.count_miss();
            return None;
        };
        let first = if planted(Bug::FrameFromItsBeginning) { place.unit } else { frame.first };
        let skip = (place.unit - first) as usize * BLOCK;
        let count = most.min(frame.first + frame.units - place.unit);
        let mut units = Pages::zeroed(count as usize * BLOCK);
        let len = frame.units as usize * BLOCK;
        let sound = self.decompressor.unpack_part(frame.codec, frame.bytes, len, skip, units.bytes_mut());
        self.frames_unpacked += 1;
        if !sound {
            // Memory that fails, or a frame that was packed wrong and has a checksum of that: its drive is asked again, and says so.
            self.units.count_miss();
            return None;
        }
        Some(units.freeze())
    }

    /// A family was destroyed: what is kept of it is of no use to anybody.
    pub fn forget(&mut self, family: FamilyId) {
        self.units.forget(family);
        self.ahead.forget(family);
    }
}
