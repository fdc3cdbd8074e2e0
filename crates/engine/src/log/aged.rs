//! The records of which something is still in the overlay, by their numbers.
//! Promises: a record is found without a search, and the oldest that waits for the drain is known. Numbers follow each other,
//! and those between are of records in the same log that put nothing into the overlay: gaps take a slot each, and cost
//! less than what the log holds of them.

use crate::identity::{Block, Seq};
use std::collections::VecDeque;

/// A record of which something is still the newest version.
#[derive(Debug)]
pub struct Aged {
    pub block: Block,
    pub count: u64,
    pub zero: bool,
    /// Blocks still here, and how many of them the drain has not got in hand.
    pub present: u64,
    pub waiting: u64,
}

#[derive(Debug, Default)]
pub struct AgedRecords {
    /// The number of the first slot. The first and the last slot are never empty.
    first: u64,
    slots: VecDeque<Option<Aged>>,
    /// What is before this number does not wait; it is that of the first record that does, or behind the last.
    waiting_from: u64,
}

impl AgedRecords {
    /// The newest of all.
    pub fn push(&mut self, seq: Seq, record: Aged) {
        assert!(record.waiting > 0, "what is new waits");
        if self.slots.is_empty() {
            (self.first, self.waiting_from) = (seq.0, seq.0);
        }
        let slot = seq.0.checked_sub(self.first).expect("records come in order") as usize;
        assert!(slot >= self.slots.len(), "a record comes once, in order");
        if self.waiting_from == self.end() {
            self.waiting_from = seq.0;
        }
        self.slots.resize_with(slot, || None);
        self.slots.push_back(Some(record));
    }

    /// `blocks` of a record are taken in hand. Panics if fewer wait.
    pub fn take(&mut self, seq: Seq, blocks: u64) {
        let record = self.get_mut(seq);
        assert!(record.waiting >= blocks, "only what waits can be taken in hand");
        record.waiting -= blocks;
        self.pass_over(seq);
    }

    /// ... and wait again.
    pub fn give_back(&mut self, seq: Seq, blocks: u64) {
        let record = self.get_mut(seq);
        record.waiting += blocks;
        assert!(record.waiting <= record.present, "only what is here can wait");
        self.waiting_from = self.waiting_from.min(seq.0);
    }

    /// `blocks` of a record, in hand or not, are gone. Gives the record when nothing is left of it.
    pub fn forget(&mut self, seq: Seq, blocks: u64, in_hand: bool) -> Option<Aged> {
        let record = self.get_mut(seq);
        record.present -= blocks;
        if !in_hand {
            record.waiting -= blocks;
        }
        let is_gone = record.present == 0;
        assert!(record.waiting <= record.present, "what is gone cannot wait");
        self.pass_over(seq);
        if !is_gone {
            return None;
        }
        let gone = self.slots[(seq.0 - self.first) as usize].take();
        while self.slots.front().is_some_and(Option::is_none) {
            self.slots.pop_front();
            self.first += 1;
        }
        while self.slots.back().is_some_and(Option::is_none) {
            self.slots.pop_back();
        }
        if self.slots.is_empty() {
            // A burst is over: its memory is not kept.
            self.slots = VecDeque::new();
        }
        self.waiting_from = self.waiting_from.clamp(self.first, self.end());
        gone
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn oldest(&self) -> Option<Seq> {
        (!self.slots.is_empty()).then_some(Seq(self.first))
    }

    pub fn newest(&self) -> Option<Seq> {
        (!self.slots.is_empty()).then(|| Seq(self.end() - 1))
    }

    pub fn oldest_waiting(&self) -> Option<Seq> {
        (self.waiting_from < self.end()).then_some(Seq(self.waiting_from))
    }

    /// Those of which something waits, oldest first.
    pub fn waiting(&self) -> impl Iterator<Item = (Seq, &Aged)> {
        let from = (self.waiting_from - self.first) as usize;
        let slots = self.slots.range(from..).zip(self.waiting_from..);
        let records = slots.filter_map(|(slot, seq)| Some((Seq(seq), slot.as_ref()?)));
        records.filter(|(_, record)| record.waiting > 0)
    }

    fn end(&self) -> u64 {
        self.first + self.slots.len() as u64
    }

    /// Panics if it is not here.
    fn get_mut(&mut self, seq: Seq) -> &mut Aged {
        self.slots[(seq.0 - self.first) as usize].as_mut().expect("a version's record is known")
    }

    /// If it was the first that waited and does not any more, another one is. Each slot is passed once, unless what was in hand is given back.
    fn pass_over(&mut self, seq: Seq) {
        if seq.0 != self.waiting_from {
            return;
        }
        let slots = self.slots.range((self.waiting_from - self.first) as usize..);
        let passed = slots.take_while(|slot| slot.as_ref().is_none_or(|record| record.waiting == 0)).count();
        self.waiting_from += passed as u64;
    }
}
