//! Snapshots as the control plane has them: a record is written before the snapshot is ordered, and goes when it is dropped.
//! Promises: every order is given again to whoever is owner then, until it is done; what owners tell of and no record names
//! is dropped.
//! Leaves to others: what a snapshot may hold (`judge/snapshots.rs`), who is owner (`families`).

use super::FamilyPhase;
use crate::event::Event;
use crate::phase::Phase;
use crate::world::World;
use rand::Rng;
use rand::seq::IteratorRandom;
use weft_engine::identity::{Generation, SnapshotId};
use weft_engine::{Epoch, FamilyId, Order};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// `unwanted`: it is to be dropped as soon as it is known by a generation.
    Creating {
        unwanted: bool,
    },
    Ready(Generation),
    Deleting(Generation),
}

#[derive(Clone, Copy, Debug)]
pub struct SnapshotEntry {
    pub stage: Stage,
    /// The epoch of the owner that was asked last.
    pub(super) asked: u32,
}

impl World {
    /// What administrators do: they take a snapshot of some vDisk, or want one gone.
    pub fn snapshot_tick(&mut self) {
        let Some(plan) = self.parameters.snapshots.filter(|_| self.phase == Phase::Trouble) else { return };
        let rng = &mut self.snapshot_rng;
        let next = rng.random_range(plan.every_us / 4..plan.every_us * 2);
        self.queue.push(self.now + next, Event::Snapshot);
        let existing = (0..self.families.len()).filter(|&family| self.families[family].exists);
        let Some(family) = existing.choose(rng) else { return };
        let records = &mut self.control.families[family].snapshots;
        if records.len() < plan.most && rng.random_range(0..5) < 3 {
            self.control.snapshots_made += 1;
            let stage = Stage::Creating { unwanted: false };
            records.insert(SnapshotId(self.control.snapshots_made), SnapshotEntry { stage, asked: 0 });
            self.coverage.count("snapshots ordered");
            return;
        }
        let Some(&snapshot) = records.keys().choose(rng) else { return };
        if self.is_needed_snapshot(family, snapshot) {
            return;
        }
        let records = &mut self.control.families[family].snapshots;
        let entry = records.get_mut(&snapshot).expect("it was just chosen");
        match entry.stage {
            // Its record is gone at once: should it be taken nevertheless, nobody knows it.
            Stage::Creating { .. } if self.snapshot_rng.random_bool(0.5) => {
                records.remove(&snapshot);
                self.coverage.count("snapshots forgotten while they were taken");
            }
            Stage::Creating { .. } => entry.stage = Stage::Creating { unwanted: true },
            Stage::Ready(generation) => entry.stage = Stage::Deleting(generation),
            Stage::Deleting(_) => {}
        }
        // The order is given at the next look.
        if let Some(entry) = records.get_mut(&snapshot) {
            entry.asked = 0;
        }
    }

    /// Whether there are clones of it, or its vDisk goes back to it.
    fn is_needed_snapshot(&self, family: usize, snapshot: SnapshotId) -> bool {
        let entry = &self.control.families[family];
        match entry.snapshots[&snapshot].stage {
            Stage::Ready(generation) => {
                entry.record.rollback == Some(generation)
                    || self.has_clones(family, Some(generation))
                    || self.control.waits_for_others(family) == Some(snapshot)
            }
            Stage::Creating { .. } => self.control.waits_for_others(family) == Some(snapshot),
            Stage::Deleting(_) => false,
        }
    }

    /// All of them are to go that nobody needs. False: there are none.
    pub fn drop_all_snapshots(&mut self) -> bool {
        let mut any = false;
        for family in 0..self.control.families.len() {
            let all: Vec<SnapshotId> = self.control.families[family].snapshots.keys().copied().collect();
            for snapshot in all {
                let needed = self.is_needed_snapshot(family, snapshot);
                let entry = self.control.families[family].snapshots.get_mut(&snapshot);
                let entry = entry.expect("it was just listed");
                match entry.stage {
                    Stage::Creating { .. } if !needed => entry.stage = Stage::Creating { unwanted: true },
                    Stage::Ready(generation) if !needed => {
                        *entry = SnapshotEntry { stage: Stage::Deleting(generation), asked: 0 };
                    }
                    _ => continue,
                }
                any = true;
            }
        }
        any
    }

    /// What takes space and is needed least goes: all snapshots, then a clone. False: there is nothing.
    pub fn make_room(&mut self) -> bool {
        self.drop_all_snapshots() || self.drop_a_clone()
    }

    /// Orders what is not done, once of every owner and sometimes again.
    pub(super) fn reconcile_snapshots(&mut self, family: usize) {
        let entry = &self.control.families[family];
        let Some(owner) = entry.owner.filter(|_| entry.phase == FamilyPhase::Ready) else { return };
        let epoch = entry.record.epoch.0;
        let mut orders = Vec::new();
        let waiting = self.control.waits_for_others(family);
        for (&snapshot, entry) in &mut self.control.families[family].snapshots {
            let waits = waiting == Some(snapshot) && matches!(entry.stage, Stage::Creating { .. });
            if matches!(entry.stage, Stage::Ready(_)) || waits {
                continue;
            }
            let first = entry.asked != epoch;
            if first || self.snapshot_rng.random_ratio(1, 50) {
                entry.asked = epoch;
                let twice = self.snapshot_rng.random_ratio(1, 8);
                orders.extend(std::iter::repeat_n((snapshot, entry.stage), if twice { 2 } else { 1 }));
            }
        }
        for (snapshot, stage) in orders {
            match stage {
                Stage::Creating { .. } => {
                    self.order(owner, Order::TakeSnapshot { family: FamilyId(family as u32), snapshot });
                }
                Stage::Deleting(generation) => self.order_drop(family, owner, generation),
                Stage::Ready(_) => {}
            }
        }
    }

    fn order_drop(&mut self, family: usize, owner: usize, generation: Generation) {
        self.families[family].snapshots.drop_ordered(generation);
        self.order(owner, Order::DropSnapshot { family: FamilyId(family as u32), generation });
    }

    /// A shard is about to be told to take a snapshot: from this moment on it can be taken, if the shard serves.
    pub(super) fn snapshot_order_received(&mut self, shard: usize, family: FamilyId, snapshot: SnapshotId) {
        let engine = self.shards[shard].engine.as_ref();
        let volume = engine.and_then(|engine| engine.volume(family));
        let state = &self.families[family.0 as usize];
        if state.exists && volume.is_some_and(|volume| volume.is_serving()) {
            let at = self.moment();
            self.families[family.0 as usize].snapshot_asked(snapshot, at);
        }
    }

    /// The control plane hears that a snapshot is there, by a word of its own or in the list of a new owner.
    pub(super) fn snapshot_taken(&mut self, family: FamilyId, snapshot: SnapshotId, generation: Generation) {
        let index = family.0 as usize;
        let entry = &mut self.control.families[index];
        match entry.snapshots.get_mut(&snapshot) {
            Some(record) => {
                let stage = match record.stage {
                    Stage::Creating { unwanted: true } => Stage::Deleting(generation),
                    Stage::Creating { unwanted: false } => Stage::Ready(generation),
                    stage => stage,
                };
                if stage != record.stage {
                    *record = SnapshotEntry { stage, asked: 0 };
                    self.coverage.count("snapshots ready");
                }
            }
            None => {
                if let Some(owner) = entry.owner.filter(|_| entry.phase == FamilyPhase::Ready) {
                    self.coverage.count("snapshots that nobody knows, dropped");
                    self.order_drop(index, owner, generation);
                }
            }
        }
    }

    /// Nobody will take it.
    pub(super) fn snapshot_refused(&mut self, family: FamilyId, snapshot: SnapshotId) {
        self.control.families[family.0 as usize].snapshots.remove(&snapshot);
    }

    pub(super) fn snapshot_dropped(&mut self, family: FamilyId, generation: Generation) {
        let records = &mut self.control.families[family.0 as usize].snapshots;
        records.retain(|_, entry| entry.stage != Stage::Deleting(generation));
        self.coverage.count("snapshots dropped");
    }

    /// A snapshot was taken or dropped, or a new owner tells which there are: the judge hears it at once.
    pub(super) fn judge_snapshot_taken(
        &mut self,
        family: FamilyId,
        epoch: Epoch,
        snapshot: SnapshotId,
        generation: Generation,
    ) {
        let at = self.moment();
        let state = &mut self.families[family.0 as usize];
        if !state.exists {
            return;
        }
        if let Err(what) = state.snapshot_taken(snapshot, generation, epoch.0, at) {
            self.fail(format!("family {family}: {what}"));
        }
    }

    pub(super) fn judge_snapshot_list(
        &mut self,
        family: FamilyId,
        epoch: Epoch,
        list: &[(Generation, SnapshotId)],
    ) {
        if !self.families[family.0 as usize].exists {
            return;
        }
        for &(generation, snapshot) in list {
            self.judge_snapshot_taken(family, epoch, snapshot, generation);
        }
        self.coverage.count("lists of snapshots judged");
        if let Err(what) = self.families[family.0 as usize].snapshots.told(list, epoch.0) {
            self.fail(format!("family {family}, opened in epoch {epoch}: {what}"));
        }
    }

    pub(super) fn judge_snapshot_dropped(&mut self, family: FamilyId, epoch: Epoch, generation: Generation) {
        let at = self.moment();
        let state = &mut self.families[family.0 as usize];
        if let Err(what) = state.snapshots.dropped(generation, epoch.0, at) {
            self.fail(format!("family {family}: {what}"));
        }
    }

    /// Every order about snapshots is done, or the first that is not. `early`: only those that nothing may keep waiting
    /// as long as there is room in the log.
    pub fn snapshots_done(&self, early: bool) -> Result<(), String> {
        for (family, entry) in self.control.families.iter().enumerate() {
            if entry.phase != FamilyPhase::Ready {
                continue;
            }
            let volume = self.owned(FamilyId(family as u32));
            let frozen = volume.map_or(0, |volume| volume.frozen_generations());
            // Of a full ring nothing is left for them before something is drained or freed.
            let may_wait = early && volume.is_none_or(|volume| volume.lacks_room());
            let waits = |stage: Stage| match stage {
                Stage::Creating { .. } => !may_wait && (!early || frozen < FROZEN_MAX),
                Stage::Deleting(_) => !may_wait,
                Stage::Ready(_) => false,
            };
            if let Some((snapshot, entry)) = entry.snapshots.iter().find(|(_, entry)| waits(entry.stage)) {
                return Err(format!(
                    "snapshot {snapshot} of family {family} is {:?}, with {frozen} generations in the log",
                    entry.stage
                ));
            }
        }
        Ok(())
    }

    /// What was ordered, never taken, and is known to nobody any more: with everything quiet it never will be taken.
    pub fn forget_snapshot_orders(&mut self) {
        for family in 0..self.families.len() {
            for snapshot in self.families[family].snapshots.all_asked() {
                if !self.control.families[family].snapshots.contains_key(&snapshot) {
                    self.families[family].snapshot_forgotten(snapshot);
                }
            }
        }
    }
}

/// With so many generations waiting for the drain, a snapshot waits too.
const FROZEN_MAX: usize = 4;
