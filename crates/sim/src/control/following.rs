//! The end of a round in which data follows its vDisks: everything is read again and again, and not from memory, until it is near.
//! Leaves to others: what is near (`judge/nearness.rs`), reading back (`phase.rs`).

use crate::world::World;
use weft_engine::Order;

/// Between two times of reading back at most: touches are counted for a few of these.
const PASSES_US: u64 = 1_000_000;

impl World {
    pub(crate) fn begin_following(&mut self) {
        if self.parameters.follows {
            self.progress.since = self.now;
            self.progress.passes = 0;
            self.set_caches(0);
        }
    }

    /// Everything was read back. Where data follows it does so in the end, if that is done again.
    pub(crate) fn all_followed(&mut self) -> Result<(), String> {
        if !self.parameters.follows {
            return Ok(());
        }
        let near = self.data_is_near();
        if near.is_err() && self.now >= self.progress.next_pass {
            // Further and further apart: what does not follow at once waits for something.
            self.progress.passes += 1;
            let pause = (u64::from(self.progress.passes) * self.parameters.tick_us).min(PASSES_US);
            self.progress.next_pass = self.now + pause;
            self.begin_read_back();
        }
        self.coverage.add("vDisks whose data had followed", near?);
        self.set_caches(self.parameters.limits.cache_bytes);
        Ok(())
    }

    fn set_caches(&mut self, bytes: u64) {
        for shard in 0..self.shards.len() {
            self.order(shard, Order::SetCache { bytes });
        }
    }
}
