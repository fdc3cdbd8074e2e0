//! Drives of this node that are slow: they answer, and get next to nothing done.
//! Promises: it is told to people, to the shards here, and in a cluster to the other nodes.
//! Leaves to others: which drives are slow (`shard_loop/slow.rs`), what is put elsewhere because of it (the engine: `DriveState::Slow`).

use super::Control;
use std::time::Instant;
use weft_engine::DriveId;

impl Control {
    pub(super) fn on_drive_slow(&mut self, drive: DriveId, slow: bool) {
        if slow {
            tracing::warn!(%drive, "a drive gets next to nothing done while it has something to do");
            self.slow.entry(drive).or_insert_with(Instant::now);
        } else {
            tracing::info!(%drive, "a drive is not slow any more");
            self.slow.remove(&drive);
        }
        self.drives_changed();
    }

    /// What is told to people of a drive that is slow.
    pub(super) fn slow_reason(since: Instant) -> String {
        format!(
            "{} s ago it needed more than 100 ms for a request, and 200 ms more for each MB of it",
            since.elapsed().as_secs()
        )
    }
}
