//! Rolling back as the control plane does it: the record says so before anything happens and until it is done; then clients are
//! let in again.
//! Promises: whoever serves the vDisk meanwhile is told of it, by the record or by an order.
//! Leaves to others: what the vDisk has to be afterwards (`judge`).

use super::FamilyPhase;
use super::snapshots::Stage;
use crate::judge::registers::Moment;
use crate::world::World;
use rand::Rng;
use rand::seq::IteratorRandom;
use weft_engine::identity::Generation;
use weft_engine::{Epoch, FamilyId, Order};

impl World {
    /// Some vDisk is to be again what its newest snapshot is.
    pub(super) fn begin_rollback(&mut self) {
        let any_how = self.clone_rng.random_ratio(1, 8);
        let newest = self.control.families.iter().enumerate().filter_map(|(family, entry)| {
            let ready = |stage: Stage| match stage {
                Stage::Ready(generation) => Some(generation),
                _ => None,
            };
            let newest = entry.snapshots.values().filter_map(|snapshot| ready(snapshot.stage)).max()?;
            // Newer ones are in the way: then it is refused.
            let alone = entry.snapshots.values().all(|snapshot| match snapshot.stage {
                Stage::Ready(_) => true,
                Stage::Deleting(generation) => generation < newest,
                Stage::Creating { .. } => false,
            });
            let free = entry.record.rollback.is_none()
                && entry.rolled_back != Some(newest)
                && self.control.waits_for_others(family).is_none();
            (self.families[family].exists && free && (alone || any_how)).then_some((family, newest))
        });
        let Some((family, newest)) = newest.choose(&mut self.clone_rng) else { return };
        let entry = &mut self.control.families[family];
        entry.record.rollback = Some(newest);
        entry.rolled_back = Some(newest);
        entry.rollback_asked = 0;
        self.coverage.count("rollbacks begun");
    }

    /// Orders what the record asks for, of every owner.
    pub(super) fn reconcile_rollback(&mut self, family: usize) {
        let entry = &mut self.control.families[family];
        let Some(to) = entry.record.rollback else { return };
        let Some(owner) = entry.owner.filter(|_| entry.phase == FamilyPhase::Ready) else { return };
        let first = entry.rollback_asked != entry.record.epoch.0;
        if !first && !self.clone_rng.random_ratio(1, 20) {
            return;
        }
        entry.rollback_asked = entry.record.epoch.0;
        self.order(owner, Order::RollBack { family: FamilyId(family as u32), to });
    }

    /// A shard is about to be told to roll back: from this moment on it serves nobody.
    pub(super) fn rollback_order_received(&mut self, shard: usize, family: FamilyId) {
        let engine = self.shards[shard].engine.as_ref();
        let volume = engine.and_then(|engine| engine.volume(family));
        if volume.is_some_and(|volume| volume.is_serving()) {
            let (at, epoch) = (self.moment(), self.control.serving_epoch(shard, family.0 as usize));
            self.families[family.0 as usize].rolling_back.entry(epoch).or_insert(at);
        }
    }

    /// An owner is about to be told that clients may be let in again.
    pub(super) fn resume_received(&mut self, shard: usize, family: FamilyId) {
        let epoch = self.control.serving_epoch(shard, family.0 as usize);
        let family = &mut self.families[family.0 as usize];
        family.rolling_back.remove(&epoch);
        family.rolled_back = family.rolled_back.filter(|(of, _)| *of != epoch);
    }

    /// An owner says that it is done: the judge hears it at once.
    pub(super) fn judge_rolled_back(&mut self, family: FamilyId, epoch: Epoch, to: Generation) {
        let at: Moment = self.moment();
        let state = &mut self.families[family.0 as usize];
        if !state.exists {
            return;
        }
        if let Err(what) = state.rolled_back(to, epoch.0, at) {
            self.fail(format!("family {family}: {what}"));
        }
    }

    /// The control plane hears of the end, by the owner that it knows: it writes it down, and lets clients in.
    pub(super) fn rollback_ended(&mut self, family: FamilyId, epoch: Epoch, to: Generation, done: bool) {
        let entry = &mut self.control.families[family.0 as usize];
        if entry.record.epoch != epoch {
            return;
        }
        if entry.record.rollback == Some(to) {
            entry.record.rollback = None;
            self.coverage.count(if done { "rollbacks done" } else { "rollbacks refused" });
        }
        let entry = &self.control.families[family.0 as usize];
        if let Some(owner) = entry.owner.filter(|_| entry.record.rollback.is_none()) {
            self.order(owner, Order::Resume { family });
        }
    }

    /// No vDisk is on its way back.
    pub fn rollbacks_done(&self) -> Result<(), String> {
        let under_way = self
            .control
            .families
            .iter()
            .find(|entry| entry.phase == FamilyPhase::Ready && entry.record.rollback.is_some());
        match under_way {
            Some(entry) => Err(format!("family {} is not rolled back", entry.record.family)),
            None => Ok(()),
        }
    }
}
