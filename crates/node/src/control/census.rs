//! Telling the shards which vDisks there are, so that their drives find what is left of others: a drive that lost what it had
//! acknowledged, and an owner that slept through the end of a vDisk, know nothing of that.
//! Promises: nothing goes on the word of what this node has heard of the store, which may be wrong after somebody put back an older one:
//! the store is asked.

use super::member::Chore;
use super::{Control, Part};
use crate::shard_loop::Mail;
use std::sync::Arc;
use weft_engine::interface::{Census, Order};
use weft_engine::{DriveId, FamilyId};

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

    /// A drive holds something of a vDisk that is no more, by what it was told.
    pub(super) fn on_stray(&mut self, drive: DriveId, family: FamilyId) {
        self.strays.insert((drive, family));
        self.look_after_strays();
    }

    /// Asks the store about every stray, until it has said whether it may go.
    pub(super) fn look_after_strays(&mut self) {
        for (drive, family) in self.strays.clone() {
            match &mut self.part {
                Part::Alone(alone) => {
                    let deleted = alone.store.load().map(|config| {
                        let is_there = config.families.iter().any(|record| record.id() == family);
                        family.0 < config.node.next_family && !is_there
                    });
                    self.stray_judged(drive, family, deleted);
                }
                Part::Member(member) => member.spawn_chore(
                    Chore::AskOfStray(drive, family),
                    move |store| store.is_deleted(family),
                    move |control, deleted| control.stray_judged(drive, family, deleted),
                ),
            }
        }
    }

    fn stray_judged<E: std::fmt::Display>(
        &mut self,
        drive: DriveId,
        family: FamilyId,
        deleted: Result<bool, E>,
    ) {
        match deleted {
            Ok(true) => {
                tracing::warn!(%drive, %family, "a drive holds something of a vDisk that was deleted; it goes");
                if let Some(keeper) = self.drives.get(&drive).map(|entry| entry.keeper) {
                    self.shards[keeper].send(Mail::Order(Order::DropStray { drive, family }));
                }
            }
            Ok(false) => {
                tracing::error!(%drive, %family, "a vDisk was taken for deleted and is not; nothing of it was touched");
            }
            Err(error) => {
                return tracing::warn!(%drive, %family, %error, "whether a vDisk was deleted is not known yet");
            }
        }
        self.strays.remove(&(drive, family));
    }
}
