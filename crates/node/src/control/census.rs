//! Telling the shards which vDisks there are, so that their drives find what is left of others: a drive that lost what it had
//! acknowledged, and an owner that slept through the end of a vDisk, know nothing of that.
//! Promises: nothing goes on the word of what this node has heard of the store, which may be wrong after somebody put back an older one:
//! the store is asked.

use super::member::{Chore, with_store};
use super::refusal::Refusal;
use super::{Control, Part, SharedControl};
use crate::config::LostNumbers;
use crate::shard_loop::Mail;
use std::collections::BTreeSet;
use std::sync::Arc;
use weft_engine::interface::{Census, Order};
use weft_engine::{DriveId, FamilyId};

/// Lets go what drives hold of a vDisk that no record names.
pub async fn forget(control: &SharedControl, family: FamilyId) -> Result<(), Refusal> {
    control.lock().check_ready()?;
    let is_lost = if control.lock().part.member().is_some() {
        with_store(control, move |store| store.forget_lost(family)).await?
    } else {
        control.lock().forget_lost_alone(family)?
    };
    if is_lost {
        return Ok(());
    }
    Err(Refusal::not_found(format!(
        "there is no lost vDisk of number {family}: `weft status` names those of which drives of its node hold something"
    )))
}

impl Control {
    /// Tells all shards, if anything has changed.
    pub(super) fn tell_census(&mut self) {
        let told = &self.census;
        // Every new vDisk has a new number: with as many numbers given out, and as many left, they are the same.
        let same = |next: u32, lost: &LostNumbers, count: usize| {
            told.next.0 == next
                && told.families.len() == count
                && lost.ranges().eq(told.unknown.iter().cloned())
        };
        let (next, lost, families) = match &self.part {
            Part::Alone(alone) if same(alone.node.next_family, &alone.node.lost, self.families.len()) => {
                return;
            }
            Part::Alone(alone) => {
                let node = &alone.node;
                (node.next_family, &node.lost, self.families.keys().copied().collect())
            }
            Part::Member(member) => match member.numbers() {
                (next, lost, families) if same(next, lost, families.len()) => return,
                (next, lost, families) => (next, lost, families.collect()),
            },
        };
        let unknown = Arc::new(lost.ranges().collect());
        self.census = Census { next: FamilyId(next), families: Arc::new(families), unknown };
        // Each drive tells it again.
        self.unknown_found.clear();
        for shard in &self.shards {
            shard.send(Mail::Order(Order::Census(self.census.clone())));
        }
    }

    /// A drive holds something of a vDisk of which nothing is known, by what it was told.
    pub(super) fn on_unknown(&mut self, drive: DriveId, family: FamilyId) {
        self.unknown_found.entry(family).or_default().insert(drive);
        self.note_lost();
    }

    /// Sees to it that the numbers of such vDisks are not given out, once the store has said that they were not.
    fn note_lost(&mut self) {
        let next = self.census.next.min(LostNumbers::END);
        // With the greatest all lower ones are noted.
        let Some((&family, _)) = self.unknown_found.range(next..LostNumbers::END).next_back() else { return };
        match &mut self.part {
            Part::Alone(alone) => {
                let node = &mut alone.node;
                if node.lost.note(&mut node.next_family, family)
                    && let Err(error) = alone.store.put_node(node)
                {
                    tracing::error!(%family, %error, "that a vDisk was found without a record cannot be written down");
                }
                self.tell_census();
            }
            Part::Member(member) => member.spawn_chore(
                Chore::NoteLost(family),
                move |store| store.note_lost(family),
                move |_, noted| {
                    if let Err(error) = noted {
                        tracing::warn!(%family, %error, "that a vDisk was found without a record is not written down yet");
                    }
                },
            ),
        }
    }

    /// Lines about what drives of this node hold of vDisks without a record.
    pub(super) fn found_without_a_record(&self) -> Vec<String> {
        let lost = match &self.part {
            Part::Alone(alone) => &alone.node.lost,
            Part::Member(member) => member.numbers().1,
        };
        let found = self.unknown_found.iter().filter(|(family, _)| lost.contains(**family));
        let line = |(family, drives): (&FamilyId, &BTreeSet<DriveId>)| {
            let drives: Vec<String> = drives.iter().map(DriveId::to_string).collect();
            let (family, drives) = (family.0, drives.join(", "));
            format!(
                "drive(s) {drives} hold data of a vDisk that no record names, of number {family}: older records were put back; it is kept, and its \
                 number is given to nobody, until `weft vdisk forget {family}` deletes it"
            )
        };
        found.map(line).collect()
    }

    /// What drives hold of a vDisk that no record names may go.
    pub(super) fn forget_lost_alone(&mut self, family: FamilyId) -> Result<bool, Refusal> {
        let alone = self.part.alone();
        let mut node = alone.node.clone();
        let is_lost = node.lost.forget(family);
        if is_lost {
            alone.store.put_node(&node)?;
            alone.node = node;
        }
        self.tell_census();
        Ok(is_lost)
    }

    /// A drive holds something of a vDisk that is no more, by what it was told.
    pub(super) fn on_stray(&mut self, drive: DriveId, family: FamilyId) {
        self.strays.insert((drive, family));
        self.look_after_strays();
    }

    /// Asks the store about every stray, until it has said whether it may go.
    pub(super) fn look_after_strays(&mut self) {
        self.note_lost();
        for (drive, family) in self.strays.clone() {
            match &mut self.part {
                Part::Alone(alone) => {
                    let deleted = alone.store.load().map(|config| {
                        let is_there = config.families.iter().any(|record| record.id() == family);
                        family.0 < config.node.next_family && !config.node.lost.contains(family) && !is_there
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
