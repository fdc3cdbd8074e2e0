//! Telling the shards which vDisks there are, so that their drives let go of what is left of others: a drive that was away, or lost what
//! it had acknowledged, while a vDisk was deleted, and an owner that slept through that, know nothing of it.
//! Promises: what is told is true of one moment. The number that was given out last, and the records, are of one revision of the store.

use super::{Control, Part};
use crate::shard_loop::Mail;
use std::sync::Arc;
use weft_engine::FamilyId;
use weft_engine::interface::{Census, Order};

impl Control {
    /// Tells all shards, if anything has changed.
    pub(super) fn tell_census(&mut self) {
        let told = &self.census;
        // Every new vDisk has a new number: with as many numbers given out, and as many left, they are the same.
        let same = |next: u32, count: usize| told.next.0 == next && told.families.len() == count;
        let (next, families) = match &self.part {
            Part::Alone(alone) if same(alone.node.next_family, self.families.len()) => return,
            Part::Alone(alone) => (alone.node.next_family, self.families.keys().copied().collect()),
            Part::Member(member) => match member.numbers() {
                (next, families) if same(next, families.len()) => return,
                (next, families) => (next, families.collect()),
            },
        };
        self.census = Census { next: FamilyId(next), families: Arc::new(families) };
        for shard in &self.shards {
            shard.send(Mail::Order(Order::Census(self.census.clone())));
        }
    }
}
