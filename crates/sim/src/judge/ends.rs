//! Ends of logs that a lost drive alone had (decision 0053): such a vDisk does not open, and is right not to.
//! Promises: what was acknowledged is never excused: each drive that was absent when its segment ended has to lack the record.

use crate::control::{FamilyEntry, FamilyPhase};
use crate::world::World;
use weft_engine::DriveId;

impl World {
    /// Whether a vDisk cannot be opened for want of a record that was never acknowledged by who wrote it: a member of its segment lacks it
    /// that was away when somebody else found it on the others, which are lost. Nobody promises more than that such a vDisk says so.
    pub fn is_end_lost_rightly(&self) -> bool {
        self.absentee.is_some()
            && self.control.families.iter().any(|entry| self.is_end_lost(entry) == Some(true))
    }

    fn is_end_lost(&self, entry: &FamilyEntry) -> Option<bool> {
        let seq = entry.record_lost.filter(|_| entry.phase == FamilyPhase::Closed)?;
        let segment = entry.record.segments.iter().rev().find(|segment| segment.first <= seq)?;
        let is_lost = |drive: &DriveId| self.control.drives[drive.0 as usize].retired;
        let lacks = |drive: &DriveId| {
            let engine = self.shards[self.control.drives[drive.0 as usize].shard].engine.as_ref()?;
            let mut ranges = engine.keeper(*drive)?.log_ranges();
            let held = ranges.find(|(family, ..)| *family == entry.record.family);
            Some(held.is_none_or(|(_, _, high)| high < seq))
        };
        let absent: Vec<bool> = segment.absent.iter().map(lacks).collect::<Option<_>>()?;
        Some(!absent.is_empty() && absent.iter().all(|&lacks| lacks) && segment.members.iter().all(is_lost))
    }
}
