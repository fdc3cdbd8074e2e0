//! Which drives hang: what was asked of them is neither done nor refused.
//! Promises: hanging and answering again are told once each, by turns; time in which this shard itself stood still does not
//! count; nothing is looked at while nothing is in flight.
//! Leaves to others: what is in flight (`drive_io`), what follows from it (the control plane).

use super::News;
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::{DriveId, Time};

/// A drive that has not done something after this time hangs.
const HANGS_US: u64 = 2_000_000;

/// While something is in flight, that is looked at so often.
const LOOK_US: u64 = 400_000;

/// If looks lie further apart than that, this shard stood still: what has ended meanwhile may not be known yet.
pub const PAUSE_US: u64 = 900_000;

#[derive(Default)]
pub struct Hangs {
    told: BTreeSet<DriveId>,
    looked: Time,
    /// None while nothing is in flight.
    look_at: Option<Time>,
    /// What is older counts from here.
    awake_since: Time,
}

impl Hangs {
    /// Something is in flight.
    pub fn begin(&mut self, now: Time) {
        if self.look_at.is_none() {
            self.looked = now;
            self.look_at = Some(now.after(LOOK_US));
        }
    }

    pub fn look_at(&self) -> Option<Time> {
        self.look_at
    }

    pub fn is_due(&self, now: Time) -> bool {
        self.look_at.is_some_and(|at| at <= now)
    }

    /// By how much a look at this time comes too late.
    pub fn late_us(&self, now: Time) -> u64 {
        self.look_at.map_or(0, |at| now.since(at))
    }

    /// To be called when it is due, with the drive and the age of all that is in flight.
    pub fn look(
        &mut self,
        now: Time,
        in_flight: impl Iterator<Item = (DriveId, Time)>,
        mut tell: impl FnMut(News),
    ) {
        if now.since(self.looked) > PAUSE_US {
            self.awake_since = now;
        }
        self.looked = now;
        let mut oldest: BTreeMap<DriveId, Time> = BTreeMap::new();
        for (drive, since) in in_flight {
            let entry = oldest.entry(drive).or_insert(since);
            *entry = since.min(*entry);
        }
        self.told.retain(|drive| {
            // Not by `awake_since`: a pause is no answer.
            let hangs = oldest.get(drive).is_some_and(|since| now.since(*since) > HANGS_US);
            if !hangs {
                tell(News::DriveAnswers { drive: *drive });
            }
            hangs
        });
        for (drive, since) in &oldest {
            if now.since(self.awake_since.max(*since)) > HANGS_US && self.told.insert(*drive) {
                tell(News::DriveHangs { drive: *drive });
            }
        }
        self.look_at = (!oldest.is_empty()).then(|| now.after(LOOK_US));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: DriveId = DriveId(1);
    const B: DriveId = DriveId(2);

    fn look(hangs: &mut Hangs, now: u64, in_flight: &[(DriveId, u64)]) -> Vec<News> {
        assert!(hangs.is_due(Time(now)), "it is looked when it is due");
        let mut news = Vec::new();
        let in_flight = in_flight.iter().map(|(drive, since)| (*drive, Time(*since)));
        hangs.look(Time(now), in_flight, |told| news.push(told));
        news
    }

    #[test]
    fn a_drive_that_hangs_is_told_once_and_so_is_that_it_answers() {
        let mut hangs = Hangs::default();
        assert_eq!(hangs.look_at(), None);
        let began = 10_000_000;
        hangs.begin(Time(began));
        let mut now = began;
        let mut told = Vec::new();
        while now < began + 4_000_000 {
            now += 500_000;
            // Of the other drive something is always in flight, and nothing for long.
            for news in look(&mut hangs, now, &[(A, began), (B, now - 1_900_000), (A, now - 5)]) {
                told.push((now - began, news));
            }
        }
        assert_eq!(told, [(2_500_000, News::DriveHangs { drive: A })]);
        assert_eq!(look(&mut hangs, now + 500_000, &[(A, now)]), [News::DriveAnswers { drive: A }]);
        assert_eq!(look(&mut hangs, now + 1_000_000, &[]), []);
        assert_eq!(hangs.look_at(), None, "nothing is in flight");
    }

    #[test]
    fn the_last_operation_of_a_hanging_drive_may_end() {
        let mut hangs = Hangs::default();
        hangs.begin(Time(1));
        for at in 1..5 {
            look(&mut hangs, at * 500_000, &[(A, 1)]);
        }
        assert_eq!(look(&mut hangs, 2_500_000, &[(A, 1)]), [News::DriveHangs { drive: A }]);
        assert_eq!(look(&mut hangs, 3_000_000, &[]), [News::DriveAnswers { drive: A }]);
        assert_eq!(hangs.look_at(), None);
    }

    #[test]
    fn a_pause_of_the_shard_is_no_hang_of_its_drives() {
        let mut hangs = Hangs::default();
        hangs.begin(Time(1));
        assert_eq!(look(&mut hangs, 60_000_000, &[(A, 1)]), []);
        assert_eq!(look(&mut hangs, 60_500_000, &[(A, 1)]), []);
        for at in 122..125 {
            assert_eq!(look(&mut hangs, at * 500_000, &[(A, 1)]), []);
        }
        assert_eq!(look(&mut hangs, 62_500_000, &[(A, 1)]), [News::DriveHangs { drive: A }]);
        // ... nor does it make one answer.
        assert_eq!(look(&mut hangs, 90_000_000, &[(A, 1)]), []);
        assert_eq!(look(&mut hangs, 90_500_000, &[(A, 90_400_000)]), [News::DriveAnswers { drive: A }]);
    }
}
