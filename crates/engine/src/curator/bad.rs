//! Copies that were read and found bad. A drive's list names them like good ones, so no audit would ever find them again.
//! Promises: a drive has bad copies until each was made good, is not wanted there any more, or turned out not to be there at
//! all; this holds also when more are met than are remembered.
//! Leaves to others: making them anew, and giving up those of which nobody has a good copy (`copy`); what is missing (`audit`).

use crate::identity::{DriveId, EgroupId};
use crate::sabotage::{Bug, planted};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Copies remembered at most: 256 GiB of a family, and some megabytes of memory.
const BAD_MAX: usize = 65_536;
/// Suspects are not added to more than these: what is met needs room too.
const SUSPECTS_MAX: usize = BAD_MAX / 2;

/// More was met on a drive than is remembered: each of its egroups from the one name to the other may be bad.
#[derive(Debug)]
struct Suspects {
    first: EgroupId,
    last: EgroupId,
    /// The last task begun before the newest of them was met.
    met: u64,
}

#[derive(Debug, Default)]
pub(super) struct BadCopies {
    /// With the last task begun before it was met, or before its last turn.
    known: BTreeMap<(DriveId, EgroupId), u64>,
    suspects: BTreeMap<DriveId, Suspects>,
}

impl BadCopies {
    pub fn has(&self, egroup: EgroupId, drive: DriveId) -> bool {
        self.known.contains_key(&(drive, egroup))
    }

    /// Whether some copy on this drive is bad, or may be.
    pub fn has_some_of(&self, drive: DriveId) -> bool {
        self.of(drive).next().is_some() || self.suspects.contains_key(&drive)
    }

    /// The bad copies of a drive, with the task before their last turn.
    pub fn of(&self, drive: DriveId) -> impl Iterator<Item = (u64, EgroupId)> + '_ {
        let all = (drive, EgroupId(0))..=(drive, EgroupId(u64::MAX));
        self.known.range(all).map(|(&(_, egroup), &task)| (task, egroup))
    }

    /// `task`: the last one that was begun.
    pub fn note(&mut self, egroup: EgroupId, drive: DriveId, task: u64) {
        if planted(Bug::BadCopyForgotten) {
            return;
        }
        if self.known.len() < BAD_MAX || self.has(egroup, drive) {
            self.known.insert((drive, egroup), task);
            return;
        }
        let new = Suspects { first: egroup, last: egroup, met: task };
        let suspects = self.suspects.entry(drive).or_insert(new);
        suspects.first = suspects.first.min(egroup);
        suspects.last = suspects.last.max(egroup);
        suspects.met = task;
    }

    /// Its turn to be made anew has come; the next one is behind those of the others.
    pub fn had_turn(&mut self, egroup: EgroupId, drive: DriveId, task: u64) {
        let last = self.known.get_mut(&(drive, egroup)).expect("only a bad copy has a turn");
        *last = task;
    }

    /// It was made good, or nothing is to be done about it.
    pub fn forget(&mut self, egroup: EgroupId, drive: DriveId) {
        self.known.remove(&(drive, egroup));
    }

    /// The drive does not list it, as it answers to this task: so it is missing, which each audit finds anew. One that was met since
    /// then may have been written since then.
    pub fn not_there(&mut self, egroup: EgroupId, drive: DriveId, task: u64) {
        if self.known.get(&(drive, egroup)).is_some_and(|&met| met < task) {
            self.known.remove(&(drive, egroup));
        }
    }

    /// Keeps what is wanted where it is; of suspects, those of drives that anything is wanted of.
    pub fn keep(
        &mut self,
        is_wanted: impl Fn(EgroupId, DriveId) -> bool,
        is_member: impl Fn(DriveId) -> bool,
    ) {
        self.known.retain(|&(drive, egroup), _| is_wanted(egroup, drive));
        self.suspects.retain(|&drive, _| is_member(drive));
    }

    /// Of the names in this range a drive has these, as it answers to this task: suspects among them count as bad from now on,
    /// as far as there is room for them. Nobody can tell which of them were met, and reading costs little less than copying.
    pub fn on_listed(
        &mut self,
        drive: DriveId,
        names: RangeInclusive<EgroupId>,
        held: impl Iterator<Item = EgroupId>,
        task: u64,
    ) {
        // What was met since the task began may not be in its list; and no name may be passed over.
        let is_due = |suspects: &&mut Suspects| suspects.met < task && names.contains(&suspects.first);
        let Some(suspects) = self.suspects.get_mut(&drive).filter(is_due) else { return };
        let range = suspects.first..=suspects.last;
        for egroup in held.filter(|egroup| range.contains(egroup)) {
            if self.known.len() >= SUSPECTS_MAX {
                suspects.first = egroup;
                return;
            }
            self.known.entry((drive, egroup)).or_insert(task);
        }
        if suspects.last <= *names.end() {
            self.suspects.remove(&drive);
        } else {
            suspects.first = EgroupId(names.end().0 + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::copy::Copies;
    use super::*;

    const MOST: usize = 4096;
    const HERE: DriveId = DriveId(3);

    fn full() -> BadCopies {
        let mut bad = BadCopies::default();
        for name in 0..BAD_MAX as u64 {
            bad.note(EgroupId(name), DriveId(1), 1);
        }
        bad
    }

    #[test]
    fn what_is_bad_is_remembered_until_it_is_made_good() {
        let mut bad = BadCopies::default();
        bad.note(EgroupId(7), HERE, 1);
        bad.note(EgroupId(8), HERE, 1);
        assert!(bad.has(EgroupId(7), HERE) && !bad.has(EgroupId(7), DriveId(4)));
        bad.forget(EgroupId(7), HERE);
        assert!(bad.has_some_of(HERE) && !bad.has_some_of(DriveId(2)) && !bad.has_some_of(DriveId(4)));
        bad.keep(|egroup, _| egroup != EgroupId(8), |_| true);
        assert!(!bad.has_some_of(HERE));
    }

    #[test]
    fn what_a_drive_does_not_list_is_missing_unless_it_was_met_since() {
        let mut bad = BadCopies::default();
        bad.note(EgroupId(7), HERE, 4);
        bad.note(EgroupId(8), HERE, 5);
        bad.not_there(EgroupId(7), HERE, 5);
        bad.not_there(EgroupId(8), HERE, 5);
        assert!(!bad.has(EgroupId(7), HERE) && bad.has(EgroupId(8), HERE));
    }

    #[test]
    fn a_drive_with_more_bad_copies_than_are_remembered_has_some_until_all_suspects_are_among_them() {
        let mut bad = full();
        bad.note(EgroupId(20), HERE, 2);
        bad.note(EgroupId(10), HERE, 2);
        assert!(bad.has_some_of(HERE) && !bad.has(EgroupId(20), HERE), "there is no room for them");
        let held = [5, 10, 15, 20, 25].map(EgroupId);
        let all = EgroupId(1)..=EgroupId(u64::MAX);
        bad.on_listed(HERE, all.clone(), held.into_iter(), 3);
        assert!(bad.has_some_of(HERE), "there still is none");
        bad.keep(|egroup, drive| drive == HERE || egroup.0 < SUSPECTS_MAX as u64 - 2, |_| true);
        bad.on_listed(HERE, all.clone(), held.into_iter(), 2);
        assert_eq!(bad.of(HERE).count(), 0, "they were met after that list was asked for");
        bad.on_listed(HERE, EgroupId(12)..=EgroupId(u64::MAX), held.into_iter().skip(2), 3);
        assert_eq!(bad.of(HERE).count(), 0, "the first would be passed over");
        bad.on_listed(HERE, all.clone(), held.into_iter(), 3);
        assert!(bad.of(HERE).map(|(_, egroup)| egroup.0).eq([10, 15]), "as many as there is room for");
        bad.forget(EgroupId(10), HERE);
        bad.on_listed(HERE, EgroupId(1)..=EgroupId(19), held.into_iter().take(3), 4);
        assert!(bad.of(HERE).map(|(_, egroup)| egroup.0).eq([15]), "that one had its turn");
        bad.on_listed(HERE, EgroupId(20)..=EgroupId(u64::MAX), held.into_iter().skip(3), 4);
        assert!(bad.of(HERE).map(|(_, egroup)| egroup.0).eq([15, 20]));
        bad.forget(EgroupId(15), HERE);
        bad.forget(EgroupId(20), HERE);
        assert!(!bad.has_some_of(HERE));
    }

    #[test]
    fn suspects_on_a_drive_of_which_nothing_is_wanted_are_forgotten() {
        let mut bad = full();
        bad.note(EgroupId(20), HERE, 2);
        bad.keep(|_, _| true, |drive| drive != HERE);
        assert!(!bad.has_some_of(HERE));
    }

    #[test]
    fn a_bad_copy_that_finds_no_place_in_the_queue_is_owed_when_there_is_one() {
        let mut copies = Copies::default();
        let mut name = 0;
        while copies.owe(EgroupId(name), DriveId(1), MOST) {
            name += 1;
        }
        copies.found_bad(EgroupId(7), HERE, 1, MOST);
        assert!(copies.knows(EgroupId(7), HERE) && copies.owes(HERE) && !copies.awaits(HERE));
        copies.owe_bad_again(HERE, 1, MOST);
        assert!(!copies.awaits(HERE), "all places are taken");
        // What was missing has been made.
        copies.owed.clear();
        copies.owe_bad_again(HERE, 1, MOST);
        assert!(copies.owes(HERE) && copies.awaits(HERE), "it has one now");
    }

    #[test]
    fn what_finds_no_place_because_it_is_missing_is_known_and_not_taken_for_bad() {
        let mut copies = Copies::default();
        copies.lacks_also(HERE, [7, 8].map(EgroupId).into());
        assert!(copies.knows(EgroupId(7), HERE) && !copies.knows(EgroupId(7), DriveId(4)));
        assert!(!copies.owes(HERE), "the next audit finds it");
        assert!(copies.owe(EgroupId(7), HERE, MOST));
        copies.owed.clear();
        assert!(!copies.knows(EgroupId(7), HERE), "it is there by now, and may turn out to be bad");
        copies.lacks_also(HERE, [8].map(EgroupId).into());
        copies.on_view();
        assert!(!copies.knows(EgroupId(8), HERE), "its place may be elsewhere");
    }

    #[test]
    fn those_that_waited_longest_have_the_next_places() {
        let mut copies = Copies::default();
        for name in 0..3 * 4096 {
            copies.found_bad(EgroupId(name), HERE, 1, MOST);
        }
        let mut seen = std::collections::BTreeSet::new();
        for round in 2..5 {
            copies.owed.clear();
            copies.owe_bad_again(HERE, round, MOST);
            seen.extend(copies.owed.keys().copied());
        }
        assert_eq!(seen.len(), 3 * 4096, "none waits for ever");
    }
}
