//! Limits of vDisks: others in each round, told to owners while clients work.

use crate::phase::Phase;
use crate::world::World;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use weft_engine::interface::Ceiling;
use weft_engine::{FamilyId, Order};

impl World {
    /// Sets the limits of this round, or ends them when everything is read back.
    pub fn set_ceilings(&mut self) {
        for family in 0..self.families.len() {
            let ceiling = self.ceiling_of(family);
            let entry = &mut self.control.families[family];
            if entry.record.ceiling == ceiling {
                continue;
            }
            entry.record.ceiling = ceiling;
            let Some(owner) = entry.owner else { continue };
            self.coverage.count("limits set while a vDisk is served");
            self.order(owner, Order::SetCeiling { family: FamilyId(family as u32), ceiling });
        }
    }

    /// Draws nothing from the run's numbers, so that old seeds stay what they were.
    fn ceiling_of(&self, family: usize) -> Ceiling {
        let parameters = &self.parameters;
        let seed = parameters.seed ^ (family as u64) << 32 ^ (self.progress.round as u64) << 48;
        let mut rng = SmallRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if self.phase != Phase::Trouble || rng.random_range(0..100) >= parameters.ceilings {
            return Ceiling::default();
        }
        let iops = rng.random_bool(0.6).then(|| *[5, 20, 50, 200].choose(&mut rng).expect("not empty"));
        let bytes = rng
            .random_bool(0.6)
            .then(|| *[256u64 << 10, 1 << 20, 4 << 20].choose(&mut rng).expect("not empty"));
        Ceiling { iops, bytes }
    }
}
