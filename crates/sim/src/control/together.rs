//! Snapshots of several vDisks of one instant, as the control plane takes them: their owners take no request while the marks are put
//! into the logs.
//! Promises: they are kept only if every mark was durable before the first hold can have ended, at the owners that were held;
//! otherwise all of them go.
//! Leaves to others: whether they are of one instant (`judge/snapshots.rs`).

use super::snapshots::{SnapshotEntry, Stage};
use super::{Control, FamilyPhase};
use crate::event::Event;
use crate::world::World;
use rand::Rng;
use rand::seq::IteratorRandom;
use std::collections::BTreeMap;
use weft_engine::identity::{Generation, SnapshotId};
use weft_engine::sabotage::{Bug, planted};
use weft_engine::{Epoch, FamilyId, Order};

/// Nobody is held longer.
const HOLD_US: u64 = 300_000;

/// One vDisk of the group.
#[derive(Clone, Copy, Debug)]
struct Member {
    snapshot: SnapshotId,
    owner: usize,
    epoch: u32,
    held: bool,
    taken: Option<Generation>,
}

/// A group whose snapshots are being taken.
#[derive(Clone, Debug)]
pub struct Together {
    began: u64,
    members: BTreeMap<usize, Member>,
}

impl Control {
    /// The snapshot of this vDisk that is being taken with others, which nobody else orders, drops or builds upon.
    pub(super) fn waits_for_others(&self, family: usize) -> Option<SnapshotId> {
        let together = self.together.as_ref()?;
        together.members.get(&family).map(|member| member.snapshot)
    }
}

impl World {
    pub(super) fn begin_together(&mut self) {
        if self.control.together.is_some() {
            return;
        }
        let usable = |family: &usize| {
            let entry = &self.control.families[*family];
            self.families[*family].exists
                && entry.phase == FamilyPhase::Ready
                && entry.owner.is_some()
                && entry.record.rollback.is_none()
        };
        let families: Vec<usize> = (0..self.families.len()).filter(usable).collect();
        let families = families.into_iter().choose_multiple(&mut self.clone_rng, 3);
        if families.len() < 2 {
            return;
        }
        let mut members = BTreeMap::new();
        for family in families {
            self.control.snapshots_made += 1;
            let snapshot = SnapshotId(self.control.snapshots_made);
            let entry = &mut self.control.families[family];
            let (owner, epoch) = (entry.owner.expect("it was just seen"), entry.record.epoch.0);
            // Its order comes when all are held.
            let stage = Stage::Creating { unwanted: false };
            entry.snapshots.insert(snapshot, SnapshotEntry { stage, asked: epoch });
            members.insert(family, Member { snapshot, owner, epoch, held: false, taken: None });
            let time = self.now + self.clone_rng.random_range(1..=self.parameters.order_us);
            let incarnation = self.shards[owner].incarnation;
            self.queue.push(time, Event::Hold { shard: owner, incarnation, family });
        }
        self.coverage.count("groups snapshots were ordered of");
        self.control.together = Some(Together { began: self.now, members });
    }

    /// A shard is told to take no request for this vDisk for a while.
    pub fn hold(&mut self, shard: usize, incarnation: u32, family: usize) {
        let state = &self.shards[shard];
        if state.incarnation != incarnation || state.engine.is_none() {
            return;
        }
        if let Some(waiting) = &mut self.nodes[state.node].waiting {
            waiting.push(Event::Hold { shard, incarnation, family });
            return;
        }
        if !planted(Bug::HoldsForgotten) {
            self.shards[shard].holds.insert(family, self.now + HOLD_US);
        }
        let time = self.now + self.clone_rng.random_range(1..=self.parameters.order_us);
        self.queue.push(time, Event::Held { family });
    }

    /// It is held. When all are, the marks are ordered.
    pub fn held(&mut self, family: usize) {
        let Some(together) = &mut self.control.together else { return };
        let Some(member) = together.members.get_mut(&family) else { return };
        member.held = true;
        if !together.members.values().all(|member| member.held) {
            return;
        }
        for (family, member) in together.members.clone() {
            let order = Order::TakeSnapshot { family: FamilyId(family as u32), snapshot: member.snapshot };
            self.order(member.owner, order);
        }
    }

    /// The control plane hears of a mark.
    pub(super) fn taken_together(
        &mut self,
        family: FamilyId,
        epoch: Epoch,
        snapshot: SnapshotId,
        generation: Generation,
    ) {
        let Some(together) = &mut self.control.together else { return };
        let Some(member) = together.members.get_mut(&(family.0 as usize)) else { return };
        if member.snapshot == snapshot && member.epoch == epoch.0 {
            member.taken = Some(generation);
        }
        let taken: Option<Vec<_>> =
            together.members.iter().map(|(&family, member)| Some((family, member.taken?))).collect();
        if let Some(taken) = taken.filter(|_| self.now < together.began + HOLD_US) {
            self.coverage.count("snapshots of groups taken together");
            self.together.push(taken);
            self.end_together();
        }
    }

    /// Whether nobody waits for the others of a group: if that is in vain, those that were taken go.
    pub fn together_is_over(&self) -> Result<(), String> {
        self.control
            .together
            .as_ref()
            .map_or(Ok(()), |together| Err(format!("snapshots of a group are being taken: {together:?}")))
    }

    /// What was not in time goes.
    pub(super) fn reconcile_together(&mut self) {
        let Some(together) = &self.control.together else { return };
        if self.now < together.began + HOLD_US {
            return;
        }
        for (family, member) in together.members.clone() {
            let Some(entry) = self.control.families[family].snapshots.get_mut(&member.snapshot) else {
                continue;
            };
            let stage = match entry.stage {
                Stage::Creating { .. } => Stage::Creating { unwanted: true },
                Stage::Ready(generation) | Stage::Deleting(generation) => Stage::Deleting(generation),
            };
            *entry = SnapshotEntry { stage, asked: 0 };
        }
        self.coverage.count("snapshots of groups given up");
        self.end_together();
    }

    fn end_together(&mut self) {
        let Some(together) = self.control.together.take() else { return };
        for (family, member) in together.members {
            self.shards[member.owner].holds.remove(&family);
        }
    }

    /// All snapshots of a group are of one instant, as far as they have shown what they are.
    pub fn judge_together(&mut self, family: usize, generation: Generation) -> Result<(), String> {
        for group in self.together.iter().filter(|group| group.contains(&(family, generation))) {
            let span = |&(family, generation): &(usize, Generation)| {
                self.families[family].snapshots.shown_between(generation)
            };
            let after = group.iter().map(|member| span(member).0).max();
            let before = group.iter().map(|member| span(member).1).min();
            if after >= before {
                return Err(format!(
                    "the snapshots {group:?} of a group are of no one instant: after {after:?}, and before {before:?}"
                ));
            }
            self.coverage.count("snapshots of groups judged together");
        }
        Ok(())
    }
}
