//! What a slow drive is asked so that it is seen when it is in order again.
//! Promises: nobody waits for it, it counts as no work, and a drive that is not in use is not asked.
//! Leaves to others: when to ask (`slow`), what follows from the answer (`slow`, the control plane).

use super::{Attached, DriveTable, Flight, Target, Work};
use crate::shard_loop::arena::Arena;
use crate::shard_loop::ring::Ring;
use std::sync::Arc;
use weft_engine::buffer::BLOCK;
use weft_engine::stages::Stage;
use weft_engine::{DriveId, Time};

impl DriveTable {
    /// When `probe` has something to do.
    pub fn probe_at(&self, is_used: impl Fn(DriveId) -> bool) -> Option<Time> {
        let at =
            |(drive, attached): (&DriveId, &Attached)| attached.pace.probe_at().filter(|_| is_used(*drive));
        self.drives.iter().filter_map(at).min()
    }

    /// Slow drives of which nobody wants anything are asked for a block now and then, if they are in use.
    pub fn probe(
        &mut self,
        now: Time,
        is_used: impl Fn(DriveId) -> bool,
        reads: &Arc<Arena>,
        ring: &mut Ring,
    ) {
        let is_due = |attached: &Attached| attached.pace.probe_at().is_some_and(|at| at <= now);
        let due = self.drives.iter().filter(|(drive, attached)| is_due(attached) && is_used(**drive));
        // Here and there in the log: one place may be bad, or in a memory of the drive's own.
        let place = |attached: &Attached| now.0 % (attached.open.geometry.log / BLOCK as u64) * BLOCK as u64;
        let due: Vec<(DriveId, Target, u64)> =
            due.map(|(&drive, attached)| (drive, attached.log.clone(), place(attached))).collect();
        for (drive, target, place) in due {
            let (space, offset) = (reads.take(BLOCK), target.base + place);
            let work = Work::Read { space, offset, len: BLOCK as u32, done: 0 };
            self.launch(Flight::new(now, None, drive, Stage::DriveRead, target, work), ring);
        }
    }
}
