//! What a keeper holds of one family's log: where each record lies, who may write, what was trimmed.
//! Leaves to others: the frames that the records lie in (`ring`).

use crate::formats::frame::{RecordKind, payload_blocks};
use crate::identity::{Epoch, Seq, ShardId, Time};
use crate::keeper::desk::Caller;
use crate::sabotage::{Bug, planted};
use std::collections::BTreeMap;

/// Where a record is: queued, or in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Home {
    /// The position in the queue.
    Queued(u64),
    /// The number of the frame; it may still be in flight.
    Frame(u64),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub home: Home,
    /// First block of the payload in the ring.
    pub payload: u64,
    pub payload_len: u32,
    pub payload_crc: u32,
    pub epoch: Epoch,
    pub kind: RecordKind,
    pub block: u64,
    pub count: u64,
    /// It was carried on: see [`crate::formats::frame::RecordHeader`].
    pub carried: bool,
    /// The damage was told already.
    pub told: bool,
}

impl Place {
    /// Blocks of its payload.
    pub fn blocks(&self) -> u64 {
        payload_blocks(self.payload_len)
    }

    pub fn is_settled(&self, settled: u64) -> bool {
        matches!(self.home, Home::Frame(number) if number <= settled)
    }
}

/// What was accepted in the newest epoch.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Run {
    pub epoch: Epoch,
    /// The lowest record accepted in it: older epochs count only below.
    pub begin: Seq,
    /// The highest.
    pub high: Seq,
}

/// Nobody knows whose records a frame had that is not whole, or not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Anybody {
    /// Who has something in this frame, or a later one, is not meant.
    pub before: u64,
    /// A frame that had settled is missing; otherwise it is one that was most likely never finished.
    pub had_settled: bool,
}

/// Records may be missing in the part of the log that was begun in epoch `since`, as its owner said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Doubt {
    pub since: Epoch,
    pub anybody: Anybody,
}

#[derive(Default)]
pub(super) struct Holding {
    pub places: BTreeMap<Seq, Place>,
    /// Records that would be held if they could be read.
    pub lost: BTreeMap<Seq, Place>,
    /// Where it is written that nobody knows here where its log ends.
    pub unsure: Option<Place>,
    pub run: Run,
    pub trimmed: Seq,
    /// The highest epoch of an owner that has trimmed and knew what is doubted here: it had begun its part of the log.
    pub trimmed_in: Epoch,
    /// The highest epoch in which somebody has fenced since the drive was opened, and was told what is doubted. Another owner may have
    /// written what is damaged now.
    pub told_in: Epoch,
    /// The lowest epoch that may ask; in memory, perhaps not durable yet.
    pub fence: Epoch,
    /// The highest fence that is durable, and the frame it is in.
    pub durable_fence: Option<(Epoch, u64)>,
    /// The highest epoch in which the last part of the log was begun, as those said who have fenced since the drive was opened.
    pub log_since: Epoch,
    /// A frame of which nobody knows whose records it had may have had some of this family.
    pub doubt: Option<Doubt>,
    /// A frame with a newer fence, or a new copy of the durable one, is in flight.
    pub fence_moving: bool,
    pub fence_waiters: Vec<(Caller, Epoch)>,
    /// When it let go of something last.
    pub let_go_at: Time,
    /// Some of it was carried on, so that its places do not follow each other in the ring.
    pub was_carried: bool,
    /// Who asked last in the highest epoch.
    pub owner: Option<ShardId>,
    pub asked_at: Time,
}

impl Holding {
    /// The frame in which the last record was written that its owner appended in its turn. Of those that were carried on, or came late, that
    /// is not known: others may have come behind them since, and lie before them.
    pub fn last_frame(&self) -> Option<u64> {
        let counts = |place: &&Place| !place.carried || planted(Bug::CarriedIsTheEnd);
        let last = self.places.values().rev().find(counts)?;
        match last.home {
            Home::Frame(number) => Some(number),
            Home::Queued(_) => None,
        }
    }

    /// All that keeps frames because of records of this family.
    pub fn all_places(&self) -> impl Iterator<Item = &Place> {
        self.places.values().chain(self.lost.values()).chain(&self.unsure)
    }

    pub fn is_there(&self, seq: Seq) -> bool {
        self.places.contains_key(&seq) || self.lost.contains_key(&seq)
    }

    /// Whether the record is trimmed, or here in that epoch or a newer one.
    pub fn has(&self, seq: Seq, epoch: Epoch) -> bool {
        seq <= self.trimmed || self.places.get(&seq).is_some_and(|place| place.epoch >= epoch)
    }

    /// Takes out the records up to `up_to`.
    pub fn take_trimmed(&mut self, up_to: Seq) -> Vec<Place> {
        self.trimmed = self.trimmed.max(up_to);
        let mut gone = Vec::new();
        for places in [&mut self.lost, &mut self.places] {
            if places.first_key_value().is_some_and(|(low, _)| *low <= up_to) {
                let kept = places.split_off(&up_to.next());
                gone.extend(std::mem::replace(places, kept).into_values());
            }
        }
        gone
    }

    /// Takes out the records at and after `from` that are older than `epoch`.
    pub fn take_older(&mut self, from: Seq, epoch: Epoch) -> Vec<Place> {
        let mut void = Vec::new();
        for places in [&mut self.lost, &mut self.places] {
            void.extend(places.extract_if(from.., |_, place| place.epoch < epoch).map(|(_, place)| place));
        }
        void
    }

    /// Takes out what is still queued, `low` being the lowest: as if it had not been accepted.
    pub fn forget_queued(&mut self, low: Seq) -> Vec<Place> {
        let queued = |place: &Place| matches!(place.home, Home::Queued(_));
        let gone: Vec<Place> =
            self.places.extract_if(low.., |_, place| queued(place)).map(|(_, place)| place).collect();
        // What comes next has to follow what is left.
        let epoch = self.run.epoch;
        let left = self.places.iter().rev().find(|(_, place)| place.epoch == epoch);
        self.run.high = left.map_or(low.previous(), |(seq, _)| *seq);
        gone
    }

    /// A record of `epoch` is accepted, the first of its epoch at `begin`: takes out what it makes void.
    pub fn enter(&mut self, epoch: Epoch, begin: Seq, seq: Seq) -> Vec<Place> {
        if epoch < self.run.epoch {
            return Vec::new();
        }
        let mut void = Vec::new();
        if epoch > self.run.epoch {
            void = self.take_older(begin, epoch);
            self.run = Run { epoch, begin, high: seq };
        } else if begin < self.run.begin {
            void = self.take_older(begin, epoch);
            self.run.begin = begin;
        }
        self.run.high = self.run.high.max(seq);
        void
    }
}
