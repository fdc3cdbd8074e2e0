//! What was damaged: counted, and the newest of it told.
//! Promises: a copy counts as repaired only if it was told to be bad; those that are made because drives come and go are no damage.
//! Leaves to others: finding and repairing it (the engine).

use crate::api::DamageView;
use std::collections::BTreeSet;
use weft_engine::interface::Damage;
use weft_engine::{DriveId, EgroupId, FamilyId};

/// Lines kept about what happened last.
const LINES_MAX: usize = 100;

/// Bad copies remembered until they are good again.
const BAD_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct Damages {
    view: DamageView,
    bad: BTreeSet<(FamilyId, EgroupId, DriveId)>,
}

impl Damages {
    pub(super) fn view(&self) -> &DamageView {
        &self.view
    }

    /// What is to be told of this, if anything. `vdisk`: how a vDisk is called.
    pub(super) fn note(
        &mut self,
        drive: DriveId,
        damage: &Damage,
        vdisk: impl Fn(FamilyId) -> String,
    ) -> Option<String> {
        let line = match *damage {
            Damage::Log { offset } => {
                self.view.log += 1;
                format!("drive {drive}: the log is damaged at byte {offset}")
            }
            Damage::Table { offset } => {
                self.view.tables += 1;
                format!(
                    "drive {drive}: the table of egroups is damaged at byte {offset} of its data area; an egroup may be missing"
                )
            }
            Damage::CopyBad { family, egroup } => {
                self.view.copies_bad += 1;
                if self.bad.len() < BAD_MAX {
                    self.bad.insert((family, egroup, drive));
                }
                format!(
                    "drive {drive}: the copy of egroup {egroup} of {} is damaged or missing",
                    vdisk(family)
                )
            }
            Damage::CopyAwaited { .. } => return None,
            Damage::CopyRepaired { family, egroup } => {
                if !self.bad.remove(&(family, egroup, drive)) {
                    return None;
                }
                self.view.copies_repaired += 1;
                format!("drive {drive}: the copy of egroup {egroup} of {} is good again", vdisk(family))
            }
            Damage::CopyPartial { family, egroup } => {
                self.view.copies_partial += 1;
                format!(
                    "drive {drive}: the copy of egroup {egroup} of {} was made without what no drive could give of it for a minute; \
                     whoever reads a block that nobody gives gets an error until it is written again",
                    vdisk(family)
                )
            }
            Damage::WriteLost { family, block, count } => {
                self.view.writes_lost += 1;
                format!(
                    "{}: a write of {count} blocks from block {block} (byte {}) on is damaged in every log that has it: what of it has not \
                     been written again since cannot be read",
                    vdisk(family),
                    block * 4096
                )
            }
            Damage::BlockLost { family, block } => {
                self.view.blocks_lost += 1;
                format!("{}: block {block} (byte {}) has no good copy", vdisk(family), block * 4096)
            }
        };
        self.view.recent.push(line.clone());
        if self.view.recent.len() > LINES_MAX {
            self.view.recent.remove(0);
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_are_made_because_a_drive_came_do_not_drown_what_is_damaged() {
        let (family, drive) = (FamilyId(3), DriveId(1));
        let name = |family: FamilyId| format!("vDisk {family}");
        let mut damages = Damages::default();
        let bad = Damage::CopyBad { family, egroup: EgroupId(7) };
        assert!(damages.note(drive, &bad, name).is_some());
        for egroup in 100..1_000 {
            let made = Damage::CopyRepaired { family, egroup: EgroupId(egroup) };
            assert_eq!(damages.note(drive, &made, name), None);
        }
        let repaired = Damage::CopyRepaired { family, egroup: EgroupId(7) };
        assert_eq!(damages.note(DriveId(2), &repaired, name), None, "it is another drive's");
        assert!(damages.note(drive, &repaired, name).is_some());
        let partial = Damage::CopyPartial { family, egroup: EgroupId(8) };
        assert!(
            damages.note(DriveId(2), &partial, name).is_some(),
            "nobody else tells that something is lost"
        );
        let view = damages.view();
        let copies = [view.copies_bad, view.copies_repaired, view.copies_partial];
        assert_eq!((copies, view.recent.len()), ([1, 1, 1], 3));
    }
}
