//! Writes of which nobody has the blocks any more, but somebody knows where they went (decision 0061).
//! Promises: they are never taken for not written: a read of such a block fails, until it is written again. Everything else of the vDisk is
//! served.
//! Leaves to others: that nobody can give them (`recover`), what else is lost: then nobody knows what, and the opening fails.

use super::{Stage, segment_of};
use crate::context::Context;
use crate::identity::{DriveId, Seq};
use crate::interface::{Damage, Notice};
use crate::log::overlay::Content;
use crate::message::{Held, LostWrite};
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

/// A write that is done without.
pub(super) struct LostHere {
    pub write: LostWrite,
    /// Somebody is sure that the log ends before it. They may have forgotten it.
    pub is_behind: bool,
}

impl Volume {
    /// What is known of this record, if nobody may give it another time: all who can be asked were, and have it damaged, or not at all.
    /// Where the log ends before it for those who are sure, and they have not forgotten it, it was never acknowledged, nor was what is behind it.
    /// Nobody can tell whether they have, so what others have behind it is kept; the price is that of a write whose client was not told.
    pub(super) fn lost_write(&mut self, seq: Seq, ctx: &Context) -> Option<LostHere> {
        let is_behind = self.is_behind(seq);
        let (recovery, segments) = self.recovery_of();
        let lost = recovery.lost.get(&seq)?;
        // What it told before it was away may not be so any more.
        let has_changed = |drive: &DriveId, held: &Held| {
            let told = recovery.has_told(*drive, seq) || held.torn;
            told && recovery.gone.contains(drive) && ctx.is_up(*drive) && !planted(Bug::OldWordBelieved)
        };
        let may_give = |drive: &DriveId| match recovery.fenced.get(drive) {
            Some(held) => (held.incomplete || has_changed(drive, held)) && !lost.is_told_by(drive),
            None => true,
        };
        let mut drives = segment_of(segments, seq).drives().filter(|drive| !ctx.is_lost(*drive));
        let is_unread = recovery.unread.contains(&seq) || drives.any(|drive| may_give(&drive));
        let is_taken = match is_behind {
            true => !planted(Bug::LostCutOff),
            false => !is_unread || planted(Bug::UnreadTakenForLost),
        };
        (recovery.stage == Stage::Replay && is_taken).then_some(LostHere { write: lost.write, is_behind })
    }

    /// The next record is done without.
    pub(super) fn take_as_lost(&mut self, write: LostWrite) {
        let LostWrite { seq, block, count } = write;
        let (_, lowest) = self.ends();
        let (recovery, segments) = self.recovery_of();
        if seq > lowest {
            recovery.ends.sure_end.get_or_insert(lowest);
        }
        // Nobody can give it to those who lack it, nor anything behind it then.
        let lacking: Vec<DriveId> = recovery.lacking(seq, segments).collect();
        lacking.iter().for_each(|drive| recovery.ends.leave_out(drive));
        recovery.need = seq.next();
        recovery.tried.clear();
        if recovery.unread.contains(&seq) {
            // Another one that is not given has its own time.
            recovery.awaited = None;
        }
        recovery.replayed += 1;
        // What comes before it is in order, and on all who are left.
        let (map_to, tail) = (recovery.map_to, std::mem::take(&mut recovery.tail));
        for record in tail {
            self.apply(&record, record.seq > map_to);
        }
        if planted(Bug::LostWriteForgotten) {
            return;
        }
        self.overlay.insert(block, count, seq, Content::Lost(count));
        self.recovery().given_up.push(write);
    }

    /// Tells which blocks are lost, when everything is in the log again: what came later may have taken their place.
    pub(super) fn tell_given_up(&mut self, ctx: &mut Context) {
        for LostWrite { seq, block, count } in std::mem::take(&mut self.recovery().given_up) {
            let layers = self.overlay.iter();
            let left = layers.flat_map(|(_, overlay)| overlay.newest_of(block, count, seq));
            for (block, count) in left {
                let damage = Damage::WriteLost { family: self.family, block: block.0, count };
                ctx.notice(Notice::Damage { drive: DriveId::default(), damage });
            }
        }
    }
}
