//! Writes of which nobody has the blocks any more, but somebody knows where they went (decision 0061).
//! Promises: they are never taken for not written: a read of such a block fails, until it is written again. Everything else of the vDisk is
//! served.
//! Leaves to others: that nobody can give them (`recover`), what else is lost: then nobody knows what, and the opening fails.

use super::{Stage, segment_of};
use crate::context::Context;
use crate::identity::{DriveId, Seq};
use crate::interface::{Damage, Notice};
use crate::log::overlay::Content;
use crate::message::LostWrite;
use crate::sabotage::{Bug, planted};
use crate::volume::Volume;
use std::collections::BTreeSet;

/// A write, and who has it, damaged.
#[derive(Debug)]
pub(super) struct Lost {
    write: LostWrite,
    drives: BTreeSet<DriveId>,
}

impl Lost {
    pub fn of(write: LostWrite) -> Self {
        Self { write, drives: BTreeSet::new() }
    }

    pub fn told_by(&mut self, drive: DriveId) {
        self.drives.insert(drive);
    }

    pub fn is_told_by(&self, drive: &DriveId) -> bool {
        self.drives.contains(drive)
    }
}

impl Volume {
    /// What is known of this record, if nobody may give it another time: all who can be asked were, and have it damaged, or not at all.
    pub(super) fn lost_write(&mut self, seq: Seq, ctx: &Context) -> Option<LostWrite> {
        // What is behind that is appended again, and that nobody can.
        let (_, lowest) = self.ends();
        let segments = self.log.segments.clone();
        let recovery = self.recovery();
        let lost = recovery.lost.get(&seq)?;
        let may_give = |drive: &DriveId| match recovery.fenced.get(drive) {
            Some(held) => held.incomplete && !lost.is_told_by(drive),
            None => true,
        };
        let mut drives = segment_of(&segments, seq).drives().filter(|drive| !ctx.is_lost(*drive));
        let is_unread = recovery.unread.contains(&seq) || drives.any(|drive| may_give(&drive));
        let are_sure = !is_unread || planted(Bug::UnreadTakenForLost);
        (recovery.stage == Stage::Replay && seq <= lowest && are_sure).then_some(lost.write)
    }

    /// The next record is done without.
    pub(super) fn take_as_lost(&mut self, write: LostWrite, ctx: &mut Context) {
        let LostWrite { seq, block, count } = write;
        let segments = self.log.segments.clone();
        let recovery = self.recovery();
        // Nobody can give it to those who lack it, nor anything behind it then.
        let lacking: Vec<DriveId> = recovery.lacking(seq, &segments).collect();
        lacking.iter().for_each(|drive| recovery.ends.leave_out(drive));
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
