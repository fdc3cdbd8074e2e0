//! Telling the control plane what it wants to know of a shard.
//! Promises: an answer costs what was asked for, and nothing if nobody waits for it any more.
//! Leaves to others: counting (`statistics`, the engine), what is made of it (`control`).

use super::Worker;
use crate::shard_loop::engine_counters;
use crate::shard_loop::statistics::{Question, ShardStatistics};
use tokio::sync::oneshot::Sender;
use weft_engine::Time;

impl Worker {
    pub(super) fn tell_figures(&self, now: Time, question: Question) {
        let (observer, shard) = (&self.observer, &self.shard);
        match question {
            Question::Statistics { details, to } => tell(to, || self.counters(now, details)),
            Question::Figures(to) => tell(to, || observer.report(now, shard)),
            Question::Latencies(to) => tell(to, || observer.latencies(shard)),
            Question::VdiskFigures(to) => tell(to, || observer.of_vdisks(now, shard, &self.families)),
        }
    }

    fn counters(&self, now: Time, details: bool) -> ShardStatistics {
        let mut shard = self.statistics.clone();
        shard.enters = self.ring.enters;
        shard.peers = self.peers.statistics();
        shard.engine = engine_counters::named(&self.shard);
        let mut drives = self.drives.statistics();
        for (&drive, statistics) in &mut drives {
            engine_counters::fill_drive(&self.shard, drive, statistics);
        }
        let families = self.shard.volumes().map(|(family, volume)| {
            let mut counted = self.families.get(&family).cloned().unwrap_or_default();
            if details {
                counted.view.engine = engine_counters::named_of(volume);
                if let Some(progress) = self.shard.factor_progress(family, now) {
                    engine_counters::put_copies(&progress, &mut counted.view.engine);
                }
            }
            (family, counted)
        });
        ShardStatistics { shard, drives, families: families.collect() }
    }
}

/// A shard that was slow finds questions of those who have given up.
fn tell<T>(to: Sender<T>, answer: impl FnOnce() -> T) {
    if !to.is_closed() {
        // Whoever asked may go away just now.
        let _ = to.send(answer());
    }
}
