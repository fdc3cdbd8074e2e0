//! What was read ahead of sequential streams and is waiting for them: whole runs, as drives gave them, not copied.
//! Promises: what is here and what is under way stay within the limit together; what has been read to its end is let go;
//! what was just read ahead is not pushed out by more of the same.
//! Leaves to others: when to read ahead (`volume/pattern.rs`), and how (`volume/ahead.rs`).

use super::Place;
use crate::buffer::{BLOCK, Buffer};
use crate::identity::{FamilyId, Time};
use std::collections::BTreeMap;

/// Unread for so long, it gives way to what streams need now.
const PATIENCE_US: u64 = 2_000_000;

/// In units since the shard began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AheadCounters {
    pub issued: u64,
    pub used: u64,
    /// Dropped before anybody had read them.
    pub wasted: u64,
    /// Times that a read came while what it wanted was still under way.
    pub waited: u64,
    /// Times that there was no room.
    pub refused: u64,
}

#[derive(Debug)]
struct Run {
    data: Buffer,
    /// Units before this one were read to their end.
    used_to: u32,
    number: u64,
    came: Time,
}

impl Run {
    fn units(&self) -> u32 {
        self.data.blocks() as u32
    }
}

#[derive(Debug, Default)]
pub struct Ahead {
    limit: u64,
    under_way: u64,
    here: u64,
    /// By the place of their first unit.
    runs: BTreeMap<Place, Run>,
    /// In the order in which they came.
    order: BTreeMap<u64, Place>,
    last: u64,
    pub counters: AheadCounters,
}

/// Memory that a run takes: pieces of memory for drives come in powers of two.
fn cost(units: u32) -> u64 {
    u64::from(units.next_power_of_two()) * BLOCK as u64
}

impl Ahead {
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        while self.used_bytes() > self.limit && self.drop_oldest(None) {}
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn used_bytes(&self) -> u64 {
        self.here + self.under_way
    }

    /// So many units in a row are about to be read. False if there is no room for them now.
    pub fn begin(&mut self, units: u32, now: Time) -> bool {
        while self.used_bytes() + cost(units) > self.limit {
            if !self.drop_oldest(Some(now)) {
                self.counters.refused += 1;
                return false;
            }
        }
        self.under_way += cost(units);
        self.counters.issued += u64::from(units);
        true
    }

    /// What was begun has come, or will not come; [`Ahead::put`] may follow.
    pub fn end(&mut self, units: u32) {
        assert!(self.under_way >= cost(units), "what ends was begun");
        self.under_way -= cost(units);
    }

    /// A run came.
    pub fn put(&mut self, place: Place, data: Buffer, now: Time) {
        let units = data.blocks() as u32;
        if self.used_bytes() + cost(units) > self.limit || self.runs.contains_key(&place) {
            self.counters.wasted += u64::from(units);
            return;
        }
        self.here += cost(units);
        self.last += 1;
        self.order.insert(self.last, place);
        self.runs.insert(place, Run { data, used_to: 0, number: self.last, came: now });
    }

    /// Up to `count` units from `place` on, as many as are here in one run. `whole` of those asked for are read to their
    /// end: nobody who reads in sequence comes back to them.
    pub fn take(&mut self, place: Place, count: u32, whole: u32) -> Option<Buffer> {
        let (&first, run) = self.runs.range_mut(..=place).next_back()?;
        let from = place.units_behind(first).filter(|&from| from < run.units())?;
        let to = (from + count).min(run.units());
        let data = run.data.slice(from as usize * BLOCK..to as usize * BLOCK);
        let read_to = to.min(from + whole);
        if read_to > run.used_to {
            self.counters.used += u64::from(read_to - run.used_to.max(from));
            run.used_to = read_to;
        }
        if run.used_to == run.units() {
            self.drop_run(first);
        }
        Some(data)
    }

    /// Units from `place` on that are here, `count` at most.
    pub fn holds(&self, place: Place, count: u32) -> u32 {
        let Some((first, run)) = self.runs.range(..=place).next_back() else { return 0 };
        place.units_behind(*first).map_or(0, |from| run.units().saturating_sub(from).min(count))
    }

    pub fn forget(&mut self, family: FamilyId) {
        let gone: Vec<Place> = self.runs.keys().filter(|place| place.family == family).copied().collect();
        gone.into_iter().for_each(|place| self.drop_run(place));
    }

    /// Drops the run that came first; with a time, only if it was waited with for long enough. False if none went.
    fn drop_oldest(&mut self, now: Option<Time>) -> bool {
        let Some((_, &place)) = self.order.first_key_value() else { return false };
        let came = self.runs[&place].came;
        if now.is_some_and(|now| now.since(came) < PATIENCE_US) {
            return false;
        }
        self.drop_run(place);
        true
    }

    fn drop_run(&mut self, place: Place) {
        let run = self.runs.remove(&place).expect("only what is here is dropped");
        self.order.remove(&run.number);
        self.here -= cost(run.units());
        self.counters.wasted += u64::from(run.units() - run.used_to);
    }
}
