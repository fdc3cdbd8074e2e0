//! Clones as the control plane has them: records that name a snapshot of another vDisk.
//! Promises: a snapshot stays as long as a clone of it is there, and so does its vDisk.
//! Leaves to others: asking the origin (`origins`), going back to a snapshot (`rollback`).

use super::FamilyPhase;
use super::snapshots::Stage;
use crate::event::Event;
use crate::phase::Phase;
use crate::world::World;
use rand::Rng;
use rand::seq::IteratorRandom;
use weft_engine::FamilyId;
use weft_engine::identity::Generation;
use weft_engine::interface::Origin;

/// vDisks at a time, and in all.
const ALIVE_MAX: usize = 7;
const FAMILIES_MAX: usize = 20;

impl World {
    /// What administrators do: they clone a snapshot, want a clone gone, or a vDisk as it was, or snapshots of several
    /// vDisks of one instant.
    pub fn clone_tick(&mut self) {
        let Some(plan) = self.parameters.clones.filter(|_| self.phase == Phase::Trouble) else { return };
        let rng = &mut self.clone_rng;
        let next = rng.random_range(plan.every_us / 4..plan.every_us * 2);
        self.queue.push(self.now + next, Event::Clone);
        let dice = self.clone_rng.random_range(0..plan.clones + plan.rollbacks + 1);
        if dice == plan.clones + plan.rollbacks {
            self.begin_together();
        } else if dice >= plan.clones {
            self.begin_rollback();
        } else if self.clone_rng.random_range(0..4) > 0 {
            self.make_clone();
        } else {
            self.drop_a_clone();
        }
    }

    fn make_clone(&mut self) {
        let alive = self.families.iter().filter(|family| family.exists).count();
        if alive >= ALIVE_MAX || self.families.len() >= FAMILIES_MAX {
            return;
        }
        let ready = self.control.families.iter().enumerate().flat_map(|(family, entry)| {
            let waiting = self.control.waits_for_others(family);
            entry.snapshots.iter().filter_map(move |(&id, snapshot)| match snapshot.stage {
                // One of a group that is given up goes.
                Stage::Ready(generation) if waiting != Some(id) => Some((family, generation)),
                _ => None,
            })
        });
        let exist = ready.filter(|(family, _)| self.families[*family].exists);
        let Some((family, snapshot)) = exist.choose(&mut self.clone_rng) else { return };
        let layout = self.families[family].layout.clone();
        let mut size = layout.size_blocks;
        if self.clone_rng.random_ratio(1, 4) {
            // The snapshot was smaller: what is behind its end is zeros.
            let run = layout.runs[self.clone_rng.random_range(0..layout.runs.len())];
            size = run.real + self.clone_rng.random_range(0..run.blocks) as u64;
        }
        self.coverage.count("clones made");
        if self.families[family].origin.is_some() {
            self.coverage.count("clones of clones made");
        }
        let origin = Origin { family: FamilyId(family as u32), snapshot, size: size * 4096 };
        let factor = self.control.families[family].record.factor;
        let clients = self.clone_rng.random_range(1..=2);
        self.add_family(layout, factor, Some(origin), clients);
    }

    /// A clone that is no origin itself is to go. False: there is none.
    pub fn drop_a_clone(&mut self) -> bool {
        let is_last = |family: &usize| {
            let state = &self.families[*family];
            state.exists && state.origin.is_some() && !self.has_clones(*family, None)
        };
        let clones: Vec<usize> = (0..self.families.len()).filter(is_last).collect();
        let Some(clone) = clones.into_iter().choose(&mut self.clone_rng) else { return false };
        self.coverage.count("clones dropped");
        self.drop_family(clone);
        true
    }

    /// Whether there are clones of a vDisk, or of one snapshot of it.
    pub fn has_clones(&self, family: usize, snapshot: Option<Generation>) -> bool {
        self.control.families.iter().any(|entry| {
            let of = |origin: Origin| {
                origin.family.0 as usize == family && snapshot.is_none_or(|wanted| origin.snapshot == wanted)
            };
            entry.phase != FamilyPhase::Dropped && entry.record.origin.is_some_and(of)
        })
    }
}
