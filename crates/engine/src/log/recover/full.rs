//! Members whose rings have no room for a fence, and when each is asked again.
//! Promises: each has a pause of its own, which holds up nothing else; nobody is waited for for ever.
//! Leaves to others: asking them (`log/recover.rs`).

use crate::identity::{DriveId, Time};
use std::collections::BTreeMap;

/// So long a member is waited for: it knows the log, and would not count as a copy of it any more. A ring goes on beside what pins it after
/// five seconds, or ten (`keeper/ring_carry.rs`). Not for ever: what its ring waits for may be this very vDisk.
const FULL_US_MAX: u64 = 15_000_000;

/// It is asked again after so long while everything waits for it ...
const AGAIN_US: u64 = 10_000;
/// ... and while others are read, after twice as long each time, up to this.
const AGAIN_US_MAX: u64 = 1_000_000;

#[derive(Debug, Default)]
pub(super) struct FullMembers(BTreeMap<DriveId, Full>);

#[derive(Debug)]
struct Full {
    since: Time,
    /// The latest pause, and its end until it is over.
    pause_us: u64,
    again_at: Option<Time>,
}

impl FullMembers {
    /// It has refused. `urgent`: nothing goes on without it.
    pub fn refused(&mut self, drive: DriveId, urgent: bool, now: Time) {
        let full = self.0.entry(drive).or_insert(Full { since: now, pause_us: 0, again_at: None });
        let longer = (2 * full.pause_us).clamp(AGAIN_US, AGAIN_US_MAX);
        full.pause_us = if urgent { AGAIN_US } else { longer };
        full.again_at = Some(now.after(full.pause_us));
    }

    /// It has gone away: when it is back its ring is another, and so is the wait.
    pub fn gone(&mut self, drive: DriveId) {
        self.0.remove(&drive);
    }

    /// Pauses that are over end here.
    pub fn end_pauses(&mut self, now: Time) {
        for full in self.0.values_mut() {
            full.again_at = full.again_at.filter(|at| *at > now);
        }
    }

    pub fn is_pausing(&self, drive: DriveId) -> bool {
        self.0.get(&drive).is_some_and(|full| full.again_at.is_some())
    }

    /// Whether nobody waits for it any more.
    pub fn is_full_for_long(&self, drive: DriveId, now: Time) -> bool {
        self.0.get(&drive).is_some_and(|full| now.since(full.since) >= FULL_US_MAX)
    }

    /// Those that are waited for.
    pub fn awaited(&self, now: Time) -> impl Iterator<Item = DriveId> + '_ {
        self.0.keys().copied().filter(move |drive| !self.is_full_for_long(*drive, now))
    }

    pub fn wake_at(&self) -> Option<Time> {
        self.0.values().filter_map(|full| full.again_at).min()
    }
}
