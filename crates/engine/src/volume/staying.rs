//! What stays in the log because it has more copies there: members of groups are away, and a log has found others (decision 0054).
//! Promises: as long as the ring and memory have room for it and nobody waits for what only egroups and pages can give.
//! Leaves to others: what is drained (`drain`), checkpoints (`map/checkpoint.rs`), where egroups go (`egroup/place.rs`).

use super::Volume;
use super::snapshots::FROZEN_MAX;
use crate::context::Context;
use crate::sabotage::{Bug, planted};

impl Volume {
    /// Whether some member of each group is away: records have a copy there that what is drained now would not have.
    pub(crate) fn is_safer_in_log(&self) -> bool {
        !self.placing.is_any_whole() && !planted(Bug::LogLeftForLess)
    }

    /// What is moved has its old copies deleted in the end: it waits for members as well (decision 0053).
    pub(crate) fn may_move(&self) -> bool {
        self.placing.is_any_whole() || planted(Bug::ThinMoves)
    }

    /// ... and nothing makes it leave: then what is on its way to egroups waits as well.
    pub(crate) fn stays_in_log(&self, ctx: &Context) -> bool {
        self.is_safer_in_log()
            && !self.is_drain_pressing(ctx)
            && !self.is_checkpoint_pressing(ctx)
            && !self.wants_to_settle()
            && self.overlay.frozen() < FROZEN_MAX
    }
}
