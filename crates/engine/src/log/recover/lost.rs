//! Writes of which nobody has the blocks any more, but somebody knows where they went (decision 0061).
//! Promises: they are never taken for not written: a read of such a block fails, until it is written again. Everything else of the vDisk is
//! served.
//! Leaves to others: that nobody can give them (`recover`), what else is lost: then nobody knows what, and the opening fails.

use super::Stage;
use crate::context::Context;
use crate::identity::{DriveId, Seq};
use crate::interface::{Damage, Notice};
use crate::log::overlay::Content;
use crate::message::LostWrite;
use crate::sabotage::{Bug, planted};
use crate::volume::Volume;

impl Volume {
    /// What is known of this record, if it may be taken as lost.
    pub(super) fn lost_write(&mut self, seq: Seq) -> Option<LostWrite> {
        let (_, lowest) = self.ends();
        let first = self.log.segments.last().map_or(Seq(0), |last| last.first);
        let recovery = self.recovery();
        // What some lack is given to them, or appended again, and that nobody can.
        let lacks_it = |drive| recovery.fenced[drive].high < seq;
        let are_alike = seq < first || seq <= lowest && !recovery.ends.lacking().any(lacks_it);
        let is_replayed = recovery.stage == Stage::Replay;
        recovery.lost.remove(&seq).filter(|_| is_replayed && are_alike)
    }

    /// The next record is done without.
    pub(super) fn take_as_lost(&mut self, write: LostWrite, ctx: &mut Context) {
        let LostWrite { seq, block, count } = write;
        let recovery = self.recovery();
        recovery.need = seq.next();
        recovery.tried.clear();
        recovery.replayed += 1;
        if planted(Bug::LostWriteForgotten) {
            return;
        }
        self.overlay.insert(block, count, seq, Content::Lost(count));
        let damage = Damage::WriteLost { family: self.family, block: block.0, count };
        ctx.notice(Notice::Damage { drive: DriveId::default(), damage });
    }
}
