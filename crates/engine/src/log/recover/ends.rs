//! Where a log ends, and whose word counts for that (decisions 0030, 0058 and 0060).
//! Promises: nothing that was acknowledged is behind the end, nor appended again, as long as one member knows it.
//! Leaves to others: asking the members, and reading what they hold (`log/recover.rs`).

use crate::identity::{DriveId, Seq};
use crate::interface::Segment;
use crate::message::Held;
use crate::sabotage::{Bug, planted};
use std::collections::{BTreeMap, BTreeSet};

/// Members of the last segment, by what they know of its end.
pub(super) struct Members {
    sound: usize,
    /// Their newest frame is not whole: they know, if that was never finished; if it was damaged since, only somebody else can tell.
    torn: Vec<DriveId>,
    /// They have lost a part of their ring.
    unsound: Vec<DriveId>,
    /// They have not answered, and may come.
    silent: usize,
}

impl Members {
    pub fn of(last: &Segment, fenced: &BTreeMap<DriveId, Held>, is_lost: impl Fn(&DriveId) -> bool) -> Self {
        let mut members = Self { sound: 0, torn: Vec::new(), unsound: Vec::new(), silent: 0 };
        for drive in &last.members {
            match fenced.get(drive) {
                Some(held) if held.incomplete => members.unsound.push(*drive),
                Some(held) if held.torn => members.torn.push(*drive),
                Some(_) => members.sound += 1,
                None if !is_lost(drive) => members.silent += 1,
                None => {}
            }
        }
        members
    }

    /// Whether nobody who has answered is sure, and somebody may come who is.
    pub fn wait(&self) -> bool {
        self.sound == 0 && self.torn.len() + self.unsound.len() > 0 && self.silent > 0
    }

    /// Whether somebody has answered who has lost nothing.
    pub fn are_sure(&self) -> bool {
        self.sound > 0
    }
}

#[derive(Debug, Default)]
pub(super) struct Ends {
    /// Those whose word counts: later ones are only read from.
    counted: BTreeSet<DriveId>,
    /// Those of them that may lack what was acknowledged at the end, and others have: it is given to them.
    pub behind: BTreeSet<DriveId>,
    /// Those that are sure of their ends, and have less than others: what they lack was never acknowledged, unless they forgot it. It is
    /// given to them, or appended again.
    pub short: BTreeSet<DriveId>,
    /// Somebody is sure.
    pub is_confirmed: bool,
    /// Where the log ended for those who were sure, and were left out because of what is lost behind it.
    pub sure_end: Option<Seq>,
    /// Known to be the last record.
    pub cut: Option<Seq>,
    /// Found out by reading: what members say does not change it.
    pub is_found: bool,
}

impl Ends {
    pub fn of(last: &Segment, fenced: &BTreeMap<DriveId, Held>, members: &Members) -> Self {
        let Members { sound, torn, unsound, .. } = members;
        let (counted, is_confirmed) = (fenced.keys().copied().collect(), *sound > 0);
        let mut ends = Self { counted, is_confirmed, ..Self::default() };
        let end = |drive: &DriveId| fenced.get(drive).map_or(Seq(0), |held| held.high);
        if *sound > 0 {
            ends.counted.retain(|drive| !unsound.contains(drive));
            // What others have behind such an end may have been acknowledged: it is not written again, which may be cut short.
            ends.behind.extend(torn.iter().filter(|_| !planted(Bug::TornEndCounts)));
            let counted = || last.members.iter().filter(|drive| ends.counted.contains(drive));
            let highest = counted().map(end).max();
            let lacks_some = |drive: &&DriveId| Some(end(drive)) < highest && !ends.behind.contains(drive);
            ends.short =
                counted().filter(lacks_some).filter(|_| !planted(Bug::TornEndCounts)).copied().collect();
        } else if unsound.is_empty() {
            let highest = torn.iter().map(end).max();
            let lacks_some = |drive: &&DriveId| Some(end(drive)) < highest && !planted(Bug::TornEndCounts);
            ends.behind.extend(torn.iter().filter(lacks_some));
        } else {
            // Something was damaged, and nobody knows better: none of what they have is given up.
            let highest = torn.iter().chain(unsound).map(end).max().expect("there are some");
            let has_all = |drive: &DriveId| !last.members.contains(drive) || end(drive) == highest;
            ends.counted.retain(|drive| has_all(drive) || torn.contains(drive));
            ends.behind.extend(torn.iter().filter(|drive| !has_all(drive)));
        }
        if ends.counted.len() < fenced.len() {
            // What only they have who do not count, a checkpoint as well, was never acknowledged.
            ends.cut = Some(ends.range(last, fenced).0);
        }
        ends
    }

    /// Those that are given what they lack.
    pub fn lacking(&self) -> impl Iterator<Item = &DriveId> {
        self.behind.iter().chain(&self.short)
    }

    /// The highest record any counted member of the last segment holds, and the lowest of the ends of those who are not behind.
    pub fn range(&self, last: &Segment, fenced: &BTreeMap<DriveId, Held>) -> (Seq, Seq) {
        let before = last.first.previous();
        let (mut highest, mut lowest) = (before, Seq(u64::MAX));
        for drive in last.members.iter().filter(|drive| self.counted.contains(drive)) {
            let end = fenced[drive].high.max(before);
            highest = highest.max(end);
            if !self.behind.contains(drive) {
                lowest = lowest.min(end);
            }
        }
        // Nobody may be left of it who counts.
        let lowest = lowest.min(highest);
        self.cut.map_or((highest, lowest), |cut| (cut.min(highest), cut.min(lowest)))
    }

    /// Whether this drive has all that was acknowledged in the last segment.
    pub fn has_end(&self, drive: &DriveId) -> bool {
        self.counted.contains(drive) && !self.behind.contains(drive)
    }

    /// Whether it has all of an earlier one that ends with `last`: what it lacks of that it is given before anything that is newer.
    pub fn has_all(&self, drive: &DriveId, last: Seq, fenced: &BTreeMap<DriveId, Held>) -> bool {
        self.counted.contains(drive) && fenced.get(drive).is_some_and(|held| held.high >= last)
    }

    /// It counts as one that is away, as far as it has not all.
    pub fn leave_out(&mut self, drive: &DriveId) {
        self.behind.remove(drive);
        self.short.remove(drive);
        self.counted.remove(drive);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Epoch;

    /// Drives 0, 1 and so on, by the highest record of each and whether its newest frame is not whole, after a part that ended with 100.
    fn ends_of(told: &[(u64, bool)]) -> (Ends, BTreeMap<DriveId, Held>) {
        let drives: Vec<DriveId> = (0..told.len() as u32).map(DriveId).collect();
        let last = Segment::new(Seq(101), Epoch(1), drives.clone());
        let held = told.iter().map(|&(high, torn)| Held { high: Seq(high), torn, ..Held::default() });
        let fenced: BTreeMap<DriveId, Held> = drives.into_iter().zip(held).collect();
        let members = Members::of(&last, &fenced, |_| false);
        (Ends::of(&last, &fenced, &members), fenced)
    }

    #[test]
    fn whoever_lacks_some_of_the_end_counts_where_it_has_all() {
        let (mut ends, mut told) = ends_of(&[(120, false), (50, true), (110, false)]);
        assert_eq!(ends.lacking().copied().collect::<Vec<_>>(), [DriveId(1), DriveId(2)]);
        assert!(!ends.has_end(&DriveId(1)) && ends.has_end(&DriveId(2)));
        let has_all =
            |ends: &Ends, told: &_, drive: u32, last: u64| ends.has_all(&DriveId(drive), Seq(last), told);
        assert!(
            !has_all(&ends, &told, 1, 100) && has_all(&ends, &told, 1, 50) && has_all(&ends, &told, 2, 100)
        );
        ends.behind.clear();
        told.get_mut(&DriveId(1)).expect("it has told").high = Seq(120);
        assert!(ends.has_end(&DriveId(1)) && has_all(&ends, &told, 1, 100), "it was given all");
        ends.leave_out(&DriveId(2));
        assert!(!ends.has_end(&DriveId(2)) && !has_all(&ends, &told, 2, 100));
    }

    #[test]
    fn of_those_who_are_not_sure_the_one_with_more_gives_it() {
        let (ends, _) = ends_of(&[(110, true), (120, true)]);
        assert_eq!(ends.lacking().copied().collect::<Vec<_>>(), [DriveId(0)]);
        assert!(!ends.is_confirmed);
    }
}
