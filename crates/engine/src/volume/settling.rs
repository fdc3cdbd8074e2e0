//! Whether a vDisk is at rest, and getting it there: everything drained and in pages, so that the next owner replays nothing.
//! Promises: whoever asked for it is told once; a settling that is not wanted any more hurries nothing.
//! Leaves to others: draining (`drain`), checkpoints (`map/checkpoint.rs`).

use super::Volume;
use crate::context::Context;
use crate::interface::Notice;

impl Volume {
    pub fn settle(&mut self) {
        self.settling = true;
    }

    pub fn stop_settling(&mut self) {
        self.settling = false;
    }

    /// Nothing is under way, waiting or owed.
    pub fn is_quiet(&self) -> bool {
        self.is_still() && self.audit.is_clean()
    }

    /// Nothing is under way or waiting, but perhaps copies.
    fn is_still(&self) -> bool {
        self.is_serving()
            && self.requests.is_empty()
            && self.door.is_empty()
            && self.reads.is_empty()
            && self.log.is_idle()
            && self.placing.is_empty()
            && !self.checkpointing.is_running()
            && self.compaction.is_empty()
            && self.snapshots.is_done_dropping()
            && self.snapshots.to_roll_back().is_none()
    }

    /// Quiet, and everything is in pages: nothing would have to be replayed.
    pub fn is_settled(&self) -> bool {
        self.is_in_pages() && self.audit.is_clean()
    }

    /// The same, whatever copies are owed.
    pub(crate) fn is_in_pages(&self) -> bool {
        self.is_still() && self.overlay.is_empty() && !self.map.is_changed()
    }

    /// Everything is to go into pages, without waiting for more.
    pub(crate) fn wants_to_settle(&self) -> bool {
        self.settling || self.snapshots.wants_pages()
    }

    pub(super) fn finish_settling(&mut self, ctx: &mut Context) {
        if self.settling && self.is_settled() {
            self.settling = false;
            ctx.notice(Notice::FamilySettled { family: self.family });
        }
    }
}
