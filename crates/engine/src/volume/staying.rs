//! What stays in the log because it has more copies there: members of groups are away, and a log finds others (decision 0054).
//! Promises: as long as the ring and memory have room for it and nobody waits for what only egroups and pages can give.
//! Leaves to others: what is drained (`drain`), checkpoints (`map/checkpoint.rs`), where egroups go (`egroup/place.rs`).

use super::Volume;
use super::snapshots::FROZEN_MAX;
use crate::context::Context;
use crate::interface::View;
use crate::sabotage::{Bug, planted};

/// When clients have waited for room in the log or in memory for so long, nothing stays there for its copies.
const PATIENCE_US: u64 = 5_000_000;

impl Volume {
    /// Whether the log can have more copies than what is placed now. What lacks copies there gets them by leaving.
    pub(crate) fn is_safer_in_log(&self, view: &View) -> bool {
        self.placing.log_reach() > self.placing.reach()
            && !self.lacks_copies(view)
            && !planted(Bug::LogLeftForLess)
    }

    /// ... and nothing makes it leave: then what is on its way to egroups waits as well.
    pub(crate) fn stays_in_log(&self, ctx: &Context) -> bool {
        // What is on its way pins a ring as well as what waits.
        self.is_safer_in_log(ctx.view)
            && !self.is_pressed()
            && !self.has_to_leave_log(ctx)
            && !self.is_checkpoint_pressing(ctx)
            && !self.wants_to_settle()
            && self.overlay.frozen() < FROZEN_MAX
    }

    /// Whether clients wait, or are about to, for what only a drain gives back; a full pool has to find out when it is full no more.
    pub(crate) fn has_to_leave_log(&self, ctx: &Context) -> bool {
        // A new member of the log has room as soon as it has said so.
        let waits_since = self.requests.waiting.front().and_then(|work| work.waits_since);
        waits_since.is_some_and(|since| ctx.now.since(since) >= PATIENCE_US)
            || ctx.dirty_bytes >= ctx.limits.dirty_bytes_shard
            || self.placing.is_full()
            || self.is_drain_pressing(ctx)
    }

    /// What is moved has its old copies deleted in the end: it waits for members as well (decision 0053).
    pub(crate) fn may_move(&self) -> bool {
        self.placing.is_any_whole() || planted(Bug::ThinMoves)
    }
}
