//! When drives were asked what they have for client data, for whichever family of a shard, and when they are to be asked once more.
//! Promises: who wants to write to a full pool hears of what drives have within a second and an answer's time, and of what was deleted for
//! the shard soon after it is free, though nobody tells it; but it waits for deletions for a second at most.
//! Leaves to others: asking, and whether the pool is full (`egroup/place.rs`).

use crate::identity::{DriveId, Time};
use crate::sabotage::{Bug, planted};
use std::collections::BTreeMap;

/// A pool without room is asked so often for what it has by now, as long as somebody wants to write ...
const AGAIN_US: u64 = 1_000_000;
/// ... who waits for the answers for so long.
const ANSWER_US: u64 = 200_000;
/// What a drive has deleted may be free a while after it has answered: who reads it still does. So long after the answer it is asked.
const FREED_US: [u64; 3] = [100_000, 200_000, 400_000];
/// A drive that does not answer is not asked once more before this: nobody may be left whom it would tell.
const SILENT_US: u64 = 60_000_000;

#[derive(Debug, Default)]
pub struct SpaceAsked {
    /// When all were because it was time.
    at: Option<Time>,
    /// When they were because something had been deleted.
    again_at: Option<Time>,
    /// When one last answered that it has deleted what was of use before.
    deleted_at: Option<Time>,
    /// Those that have not answered, and when each was asked.
    open: BTreeMap<DriveId, Time>,
}

impl SpaceAsked {
    pub fn note_deletion(&mut self, now: Time) {
        if !planted(Bug::LateSpaceNotAsked) {
            self.deleted_at = Some(now);
        }
    }

    pub fn is_due(&self, now: Time) -> bool {
        self.is_time(now) || self.again().is_some_and(|at| now >= at)
    }

    /// Of `drives`, which are all that are up, those that are to be asked now: the others have not answered.
    pub fn ask(&mut self, mut drives: Vec<DriveId>, now: Time) -> Vec<DriveId> {
        let at = if self.is_time(now) { &mut self.at } else { &mut self.again_at };
        *at = Some(now);
        self.open.retain(|_, asked| now < asked.after(SILENT_US));
        drives.retain(|drive| !self.open.contains_key(drive));
        self.open.extend(drives.iter().map(|drive| (*drive, now)));
        drives
    }

    pub fn answered(&mut self, drive: DriveId) {
        self.open.remove(&drive);
    }

    /// The family that has asked for all hears of nothing any more: another one asks.
    pub fn forget_open(&mut self) {
        if !self.open.is_empty() {
            self.at = None;
        }
        self.open.clear();
    }

    /// Whether somebody who has waited for nothing else for so long may yet hear of space.
    pub fn may_be_told(&self, now: Time, bare_us: u64) -> bool {
        let is_within = |at: Option<Time>| at.is_some_and(|at| now < at.after(ANSWER_US));
        // Deletions may go on for ever, in a pool that is none the better for them.
        let waits = bare_us < AGAIN_US || planted(Bug::DeletionsWaitedFor);
        is_within(self.at) || waits && (self.again().is_some() || is_within(self.again_at))
    }

    fn is_time(&self, now: Time) -> bool {
        self.at.is_none_or(|at| now >= at.after(AGAIN_US))
    }

    /// When drives are to be asked because of the last deletion.
    fn again(&self) -> Option<Time> {
        let deleted = self.deleted_at?;
        let asked_us = self.at.max(self.again_at).map_or(0, |at| at.since(deleted));
        FREED_US.into_iter().find(|us| *us > asked_us).map(|us| deleted.after(us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks every 10 ms from `from` to `to` as one who wants to write does, and gives when drives were asked.
    fn look(asked: &mut SpaceAsked, from: u64, to: u64, deleted: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut times = Vec::new();
        for now in (from..to).step_by(10) {
            if deleted(now) {
                asked.note_deletion(Time(now * 1_000));
            }
            if asked.is_due(Time(now * 1_000)) {
                asked.ask(Vec::new(), Time(now * 1_000));
                times.push(now);
            }
        }
        times
    }

    #[test]
    fn drives_are_asked_every_second_and_some_times_after_a_deletion() {
        let mut asked = SpaceAsked::default();
        assert_eq!(look(&mut asked, 5_000, 5_400, |now| now == 5_040), [5_000, 5_140, 5_240]);
        assert_eq!(look(&mut asked, 5_400, 8_000, |_| false), [5_440, 6_000, 7_000]);
        // Each deletion tells of what was free before it: the last one matters.
        assert_eq!(look(&mut asked, 8_000, 9_000, |now| now <= 8_500), [8_000, 8_600, 8_700, 8_900]);
        // What is asked because it is time takes the place of none that comes later.
        assert_eq!(
            look(&mut asked, 9_000, 10_300, |now| now == 9_740),
            [9_000, 9_840, 9_940, 10_000, 10_140]
        );
        // Whoever wants to write long after one asks at once.
        look(&mut asked, 11_000, 11_100, |now| now == 11_050);
        assert_eq!(look(&mut asked, 11_600, 11_800, |_| false), [11_600]);
    }

    #[test]
    fn deletions_are_waited_for_while_drives_are_to_be_asked_but_not_for_ever() {
        let mut asked = SpaceAsked::default();
        asked.ask(Vec::new(), Time(0));
        assert!(asked.may_be_told(Time(199_999), 0) && !asked.may_be_told(Time(200_000), 0));
        asked.note_deletion(Time(150_000));
        assert!(asked.may_be_told(Time(200_000), 999_999) && !asked.may_be_told(Time(200_000), 1_000_000));
        look(&mut asked, 200, 700, |_| false);
        assert!(
            asked.may_be_told(Time(749_999), 0) && !asked.may_be_told(Time(750_000), 0),
            "the last answer"
        );
        // Who asked for all is gone before it has heard.
        asked.ask(vec![DriveId(1)], Time(2_000_000));
        assert!(!asked.is_due(Time(2_000_001)));
        asked.forget_open();
        assert!(asked.is_due(Time(2_000_001)));
    }

    #[test]
    fn a_drive_that_is_silent_is_not_asked_again_for_long() {
        let mut asked = SpaceAsked::default();
        let (silent, other) = (DriveId(1), DriveId(2));
        let heard = [0, 2_000_000, SILENT_US].map(|now| {
            let heard = asked.ask(vec![silent, other], Time(now));
            asked.answered(other);
            heard
        });
        assert_eq!(heard, [vec![silent, other], vec![other], vec![silent, other]]);
    }
}
