//! A vDisk that nobody serves for long, as one that cannot be served: what it has in the logs of drives stays there, and others have to
//! go on beside it.
//! Promises: in the round in which it sleeps it is served again only when all others are, and have answers.

use super::FamilyPhase;
use crate::phase::Phase;
use crate::world::World;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use weft_engine::{FamilyId, Order};

impl World {
    /// In the middle of the trouble one of the vDisks that clients write to is served no more.
    pub fn put_one_to_sleep(&mut self) {
        if !self.parameters.sleeps || self.progress.slept || self.now < self.progress.falls_asleep {
            return;
        }
        let served = |family: &usize| self.control.families[*family].phase == FamilyPhase::Ready;
        let families: Vec<usize> = self.clients.iter().map(|client| client.family).filter(served).collect();
        let mut rng = SmallRng::seed_from_u64(self.parameters.seed ^ (self.progress.round as u64) << 32);
        let Some(&family) = families.choose(&mut rng) else { return };
        self.progress.slept = true;
        self.coverage.count("vDisks that nobody served for long");
        let entry = &mut self.control.families[family];
        (entry.owner, entry.lease) = (None, None);
        entry.phase = FamilyPhase::Closed;
        entry.asleep = true;
        self.keep_asleep(family);
    }

    /// Whoever may still serve it stops.
    pub(super) fn keep_asleep(&mut self, family: usize) {
        let serving: Vec<usize> = self.control.families[family].serving.keys().copied().collect();
        for shard in serving {
            self.order(shard, Order::CloseFamily { family: FamilyId(family as u32) });
        }
    }

    pub fn is_asleep(&self, family: usize) -> bool {
        self.control.families[family].asleep
    }

    /// Whether one slept until now.
    pub fn wake_all(&mut self) -> bool {
        assert!(self.phase == Phase::Healing, "others are judged before");
        let mut slept = false;
        for entry in &mut self.control.families {
            slept |= std::mem::take(&mut entry.asleep);
        }
        slept
    }
}
