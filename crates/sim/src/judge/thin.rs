//! Whether what lost a copy in a log for good has it again soon, once nothing fails any more: it is drained, also to a full pool,
//! if what is kept there has room.
//! Leaves to others: how many copies there are in the end (`judge/placement.rs`).

use crate::world::World;
use std::collections::BTreeMap;
use weft_engine::{FamilyId, Time};

/// What is drained at once waits for egroups that were begun before, and for slow drives.
const PATIENCE_US: u64 = 20_000_000;

/// What was refused there too is tried again sooner than this.
const REFUSED_US: u64 = 2_000_000;

/// Since when something of a vDisk lacks a copy, while nothing fails.
#[derive(Default)]
pub struct Thin(BTreeMap<FamilyId, u64>);

impl World {
    pub fn judge_thin(&mut self) {
        let mut lacking: Vec<FamilyId> = Vec::new();
        for shard in &self.shards {
            let Some(engine) = &shard.engine else { continue };
            let now = Time(self.now + shard.clock_ahead);
            let served = engine.volumes().filter(|(_, volume)| volume.is_serving());
            let thin = served.filter(|(_, volume)| volume.lacks_copies(engine.view()));
            let tries = thin.filter(|(_, volume)| !volume.was_reserve_refused(now, REFUSED_US));
            lacking.extend(tries.map(|(family, _)| family));
        }
        self.thin.0.retain(|family, _| lacking.contains(family));
        for family in lacking {
            let since = *self.thin.0.entry(family).or_insert(self.now);
            if self.now - since.max(self.progress.since) > PATIENCE_US {
                let all = self.what_all_are_at();
                self.fail(format!(
                    "family {family} has had records with too few copies since {since} us{all}"
                ));
            }
        }
    }
}
