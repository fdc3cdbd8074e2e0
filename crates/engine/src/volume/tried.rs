//! Which drives have been asked for an egroup in vain, and whether one of them has a copy that is bad somewhere.
//! Promises: what a drive lacked when it was asked does not count any more once copies were deleted elsewhere because it has one now.
//! Leaves to others: asking (`volume/read.rs`, `map/lookup.rs`), copies and their deletion (`curator`).
//!
//! Copies move while questions are under way, and questions and deletions take different connections: a new member is asked
//! before its copy is there, and a former one after its own is gone. Only the owner deletes, and only when all members have
//! theirs; so if nothing was deleted since the first of them was asked, none of them had a copy at one and the same time.

use crate::identity::DriveId;
use crate::message::{Answer, Refusal};
use crate::sabotage::{Bug, planted};

#[derive(Debug, Default)]
pub(crate) struct Tried {
    drives: Vec<DriveId>,
    /// Copies of the egroup were deleted since the first of them was asked.
    is_stale: bool,
    /// One of them has a copy, and something of what it was asked for is bad there.
    found_bad: bool,
}

impl Tried {
    pub fn drives(&self) -> &[DriveId] {
        &self.drives
    }

    pub fn add(&mut self, drive: DriveId) {
        self.drives.push(drive);
    }

    /// What one of them has answered.
    pub fn note(&mut self, answer: &Result<Answer, Refusal>) {
        let Ok(Answer::Units(results)) = answer else { return };
        self.found_bad |= results.iter().any(|result| result.as_ref().is_err_and(|bad| !bad.is_lost));
    }

    /// Nobody is left to be asked. True: all may be asked again in pieces, for each copy may be bad somewhere else.
    pub fn begins_in_pieces(&mut self) -> bool {
        let found_bad = self.found_bad;
        if found_bad {
            self.clear();
        }
        found_bad
    }

    /// A copy on a former member is deleted: the members have theirs.
    pub fn copy_deleted(&mut self) {
        self.is_stale = true;
    }

    /// Nobody is left to be asked. True: all may be asked again, for the copies have moved meanwhile.
    pub fn begins_anew(&mut self) -> bool {
        let is_stale = std::mem::take(&mut self.is_stale);
        if is_stale {
            self.drives.clear();
        }
        is_stale && !planted(Bug::LackOfBeforeCounts)
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether all may be asked again when nobody is left, if a copy was deleted while they were asked or not.
    fn asks_again(is_deleted: bool) -> bool {
        let mut tried = Tried::default();
        tried.add(DriveId(1));
        if is_deleted {
            tried.copy_deleted();
        }
        tried.add(DriveId(2));
        let again = tried.begins_anew();
        assert_eq!(tried.drives().is_empty(), is_deleted);
        assert!(!tried.begins_anew(), "once for what was deleted");
        again
    }

    #[test]
    fn what_drives_lacked_counts_unless_copies_have_moved_since() {
        assert!(asks_again(true));
        assert!(!asks_again(false));
        #[cfg(feature = "sabotage")]
        {
            let again = crate::sabotage::with(Bug::LackOfBeforeCounts, || asks_again(true));
            assert!(!again, "the planted bug is there");
        }
    }
}
