//! Drives of this node that are slow: they answer, and get next to nothing done.
//! Promises: logs and new data go to others as long as there are others enough; what lies there stays, and is read elsewhere
//! if it is elsewhere as well. Of many drives that are slow together none is avoided: that is the machine, or the load.
//! Leaves to others: which drives are slow (`shard_loop/slow.rs`); what shards do about a drive that is to be emptied, as which
//! they see one that is slow.

use super::{Control, Part, Standing};
use std::collections::BTreeSet;
use std::time::Instant;
use weft_engine::DriveId;
use weft_engine::interface::DriveState;

impl Control {
    pub(super) fn on_drive_slow(&mut self, drive: DriveId, slow: bool) {
        if slow {
            tracing::warn!(%drive, "a drive has something to do all the time and gets next to nothing done");
            self.slow.entry(drive).or_insert_with(Instant::now);
        } else {
            tracing::info!(%drive, "a drive is not slow any more");
            self.slow.remove(&drive);
        }
        match &self.part {
            Part::Member(_) => {
                self.announce();
                self.tell_view();
            }
            // Before the first view nobody has to be told: the start sends it.
            Part::Alone(alone) if alone.view_version > 0 => self.send_view(),
            Part::Alone(_) => {}
        }
    }

    /// Those that are up.
    pub(super) fn slow_ones(&self) -> impl Iterator<Item = DriveId> {
        let is_up =
            move |id: &DriveId| self.drives.get(id).is_some_and(|drive| drive.standing == Standing::Up);
        self.slow.keys().copied().filter(is_up)
    }

    /// What is told to people of a drive that is slow.
    pub(super) fn slow_reason(since: Instant) -> String {
        format!(
            "for {} s it has got less done than 10 requests and 5 MB in a second, though it always had something to do; logs and new data \
             go to other drives, if there are enough",
            since.elapsed().as_secs()
        )
    }
}

/// How shards are to see a drive that is up. `slow`, `up`: of the whole pool.
pub(super) fn state_when_up(drive: DriveId, slow: &BTreeSet<DriveId>, up: usize) -> DriveState {
    let is_avoided = slow.contains(&drive) && slow.len() * 2 < up;
    if is_avoided { DriveState::Draining } else { DriveState::Up }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_drives_are_avoided_while_most_are_not() {
        let slow = |drives: &[u32]| drives.iter().map(|&drive| DriveId(drive)).collect::<BTreeSet<_>>();
        assert_eq!(state_when_up(DriveId(1), &slow(&[1]), 3), DriveState::Draining);
        assert_eq!(state_when_up(DriveId(2), &slow(&[1]), 3), DriveState::Up);
        assert_eq!(state_when_up(DriveId(1), &slow(&[1]), 2), DriveState::Up, "there are not enough others");
        assert_eq!(state_when_up(DriveId(1), &slow(&[1, 2, 3]), 5), DriveState::Up, "it is not the drives");
        assert_eq!(state_when_up(DriveId(1), &slow(&[1, 2]), 5), DriveState::Draining);
    }
}
