//! How many copies may be under way on each drive, so that clients keep their share of it.
//! Promises: as clients wait longer than they do without copies, fewer are made at once, down to one at a
//! time with pauses; where no client reads, more and more, up to a limit; sums and shifts only, so the same answers make the same choices everywhere.
//! Leaves to others: which copies are made, and which cannot wait (`copy`).

use crate::identity::{DriveId, FamilyId, Time};
use std::collections::BTreeMap;

/// Copies that read or write one drive: at first, and at most.
const AT_FIRST: usize = 1;
const AT_MOST: usize = 16;
/// Copies of all families of a shard at once, however urgent they are: each keeps what it has read in memory, 4 MiB.
const OF_SHARD: usize = 48;
/// A limit is looked at so often.
const INTERVAL_US: u64 = 250_000;
/// Fewer reads say nothing about how long clients wait.
const READS_MIN: u64 = 4;
/// While copies follow each other without a gap, the drive is left to its clients so often, until so many reads tell what is calm now; for
/// so long at most.
const LISTEN_EVERY_US: u64 = 20_000_000;
const LISTEN_READS: u64 = 8;
const LISTEN_MOST_US: u64 = 1_000_000;
/// What clients wait longer than without copies, beside half as long again, before they are said to suffer.
const SLACK_US: u64 = 200;
/// Where even one copy is too much, the drive rests between them: so long at first, and at most.
const REST_US: u64 = 50_000;
const REST_MOST_US: u64 = 1_000_000;

#[derive(Debug)]
struct Share {
    limit: usize,
    under_way: usize,
    /// Some copy had to wait for this limit.
    used_up: bool,
    /// What a client's read takes while nothing is copied here; 0: not known.
    calm_us: u64,
    /// When that was found out last.
    calm_at: Time,
    /// No copy begins until it has been found out again: since then, what reads that began and ended with no copy under way took together, and
    /// how many they are.
    listens: Option<Listens>,
    /// Clients' reads that ended since the limit was looked at, and what they took together; those that are open.
    reads: u64,
    sum_us: u64,
    open: u64,
    /// Some client read here since then, copies or not.
    wanted: bool,
    looked_at: Time,
    rest_us: u64,
    rests_until: Time,
}

#[derive(Debug)]
struct Listens {
    since: Time,
    /// A read ended with no copy under way, and none has begun since.
    calm_since: Option<Time>,
    reads: u64,
    sum_us: u64,
}

impl Share {
    fn new(now: Time) -> Self {
        Self {
            limit: AT_FIRST,
            under_way: 0,
            used_up: false,
            calm_us: 0,
            calm_at: now,
            listens: None,
            reads: 0,
            sum_us: 0,
            open: 0,
            wanted: false,
            looked_at: now,
            rest_us: 0,
            rests_until: now,
        }
    }

    fn look(&mut self, now: Time) {
        if now.since(self.looked_at) < INTERVAL_US {
            return;
        }
        if self.reads >= READS_MIN {
            let mean = self.sum_us / self.reads;
            if self.calm_us == 0 {
                self.calm_us = mean;
            }
            if mean > self.calm_us + self.calm_us / 2 + SLACK_US {
                if self.limit == 1 {
                    self.rest_us = (self.rest_us * 2).clamp(REST_US, REST_MOST_US);
                }
                self.limit = (self.limit / 2).max(1);
            } else if self.rest_us > 0 {
                self.rest_us = Some(self.rest_us / 2).filter(|&us| us >= REST_US).unwrap_or(0);
            } else if self.used_up {
                self.limit = (self.limit + 1).min(AT_MOST);
            }
        } else if !self.wanted && self.open == 0 && self.used_up {
            self.limit = (self.limit * 2).min(AT_MOST);
            self.rest_us = 0;
        }
        // Clients may ask for more than they did, or for less: what was calm once need not be for ever.
        let is_due = self.under_way > 0 && now.since(self.calm_at) >= LISTEN_EVERY_US;
        if is_due && self.wanted && self.listens.is_none() {
            self.listens = Some(Listens { since: now, calm_since: None, reads: 0, sum_us: 0 });
        }
        if self.listens.as_ref().is_some_and(|listens| now.since(listens.since) >= LISTEN_MOST_US) {
            self.has_listened(now);
        }
        (self.reads, self.sum_us, self.used_up, self.looked_at) = (0, 0, false, now);
        self.wanted = false;
    }

    fn has_listened(&mut self, now: Time) {
        let Some(Listens { reads, sum_us, .. }) = self.listens.take() else { return };
        if let Some(mean) = sum_us.checked_div(reads) {
            self.calm_us = mean.max(1);
        }
        self.calm_at = now;
    }

    /// A client's read ended with no copy under way.
    fn calm_read(&mut self, us: u64, now: Time) {
        let Some(listens) = &mut self.listens else {
            self.calm_us = match self.calm_us {
                0 => us.max(1),
                calm => (calm - calm / 32 + us / 32).max(1),
            };
            self.calm_at = now;
            return;
        };
        // One that began beside the last copy tells nothing.
        if now.since(*listens.calm_since.get_or_insert(now)) >= us {
            listens.reads += 1;
            listens.sum_us += us;
        }
        if listens.reads >= LISTEN_READS {
            self.has_listened(now);
        }
    }
}

#[derive(Debug, Default)]
pub struct Budget {
    drives: BTreeMap<DriveId, Share>,
    /// What is read and what is written for each copy, by its family and task.
    under_way: BTreeMap<(FamilyId, u64), [DriveId; 2]>,
}

impl Budget {
    fn share(&mut self, drive: DriveId, now: Time) -> &mut Share {
        let share = self.drives.entry(drive).or_insert_with(|| Share::new(now));
        share.look(now);
        share
    }

    /// A client's read was asked of a drive.
    pub fn client_asked(&mut self, drive: DriveId, now: Time) {
        let share = self.share(drive, now);
        share.open += 1;
        // Also large ones, whose times say nothing: the limit must not grow beside them.
        share.wanted = true;
    }

    /// Nobody waits for it any more.
    pub fn client_ended(&mut self, drive: DriveId) {
        let share = self.drives.get_mut(&drive).expect("what ends was asked");
        assert!(share.open > 0, "a read ends once");
        share.open -= 1;
    }

    /// It was answered after `us`.
    pub fn client_answered(&mut self, drive: DriveId, us: u64, now: Time) {
        let share = self.share(drive, now);
        share.wanted = true;
        if share.under_way > 0 {
            share.reads += 1;
            share.sum_us += us;
        } else {
            share.calm_read(us, now);
        }
    }

    /// Whether so much is under way that nobody who makes a copy already begins another, whatever its drives have time for.
    pub fn is_full(&self) -> bool {
        self.under_way.len() >= OF_SHARD
    }

    /// Whether one more copy may read one of these drives and write the other.
    pub fn admits(&mut self, drives: [DriveId; 2], now: Time) -> bool {
        drives.into_iter().all(|drive| {
            let share = self.share(drive, now);
            let fits = share.under_way < share.limit && now >= share.rests_until && share.listens.is_none();
            share.used_up |= !fits;
            fits
        })
    }

    /// None of the family's copies is waited for any more.
    pub fn forget(&mut self, family: FamilyId) {
        let all = (family, 0)..=(family, u64::MAX);
        let ended: Vec<u64> = self.under_way.range(all).map(|((_, task), _)| *task).collect();
        ended.into_iter().for_each(|task| self.end(family, task));
    }

    fn end(&mut self, family: FamilyId, task: u64) {
        let drives = self.under_way.remove(&(family, task)).expect("what ends has begun");
        for drive in drives {
            self.drives.get_mut(&drive).expect("a copy counts on its drives").under_way -= 1;
        }
    }

    pub fn begin(&mut self, family: FamilyId, task: u64, drives: [DriveId; 2], now: Time) {
        let before = self.under_way.insert((family, task), drives);
        assert!(before.is_none(), "a copy begins once");
        for drive in drives {
            let share = self.share(drive, now);
            share.under_way += 1;
            if let Some(listens) = &mut share.listens {
                listens.calm_since = None;
            }
        }
    }

    /// Copies of the family that are not among those still under way have ended.
    pub fn keep(&mut self, family: FamilyId, now: Time, still: impl Fn(u64) -> bool) {
        let all = (family, 0)..=(family, u64::MAX);
        let ended: Vec<u64> =
            self.under_way.range(all).map(|((_, task), _)| *task).filter(|task| !still(*task)).collect();
        for task in ended {
            for drive in self.under_way[&(family, task)] {
                let share = self.share(drive, now);
                share.rests_until = now.after(share.rest_us);
            }
            self.end(family, task);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVES: [DriveId; 2] = [DriveId(1), DriveId(2)];

    /// A drive whose clients' reads take `calm_us`, and so much longer for each copy under way.
    struct Story {
        budget: Budget,
        now: Time,
        tasks: Vec<u64>,
        next: u64,
    }

    impl Story {
        fn new() -> Self {
            Self { budget: Budget::default(), now: Time(1_000_000), tasks: Vec::new(), next: 0 }
        }

        /// Seconds in which copies begin as soon as they may, each takes 100 ms, and clients read every 10 ms.
        fn pass(&mut self, seconds: u64, reads: bool, us: impl Fn(usize) -> u64) {
            for step in 0..seconds * 100 {
                self.now = self.now.after(10_000);
                if reads {
                    self.budget.client_asked(DRIVES[0], self.now);
                    self.budget.client_answered(DRIVES[0], us(self.tasks.len()), self.now);
                    self.budget.client_ended(DRIVES[0]);
                }
                if step % 10 == 0 {
                    self.tasks.clear();
                    self.budget.keep(FamilyId(1), self.now, |_| false);
                }
                while self.budget.admits(DRIVES, self.now) {
                    self.next += 1;
                    self.budget.begin(FamilyId(1), self.next, DRIVES, self.now);
                    self.tasks.push(self.next);
                }
            }
        }
    }

    #[test]
    fn without_clients_more_and_more_copies_are_made_at_once() {
        let mut story = Story::new();
        story.pass(5, false, |_| 0);
        assert_eq!(story.tasks.len(), AT_MOST);
    }

    #[test]
    fn copies_that_make_clients_wait_become_few() {
        let mut story = Story::new();
        for _ in 0..100 {
            story.budget.client_answered(DRIVES[0], 5_000, story.now);
        }
        story.pass(5, true, |copies| 5_000 + copies as u64 * 2_000);
        assert!(story.tasks.len() <= 2, "two make clients wait half as long again: {}", story.tasks.len());
        let before = story.next;
        story.pass(10, true, |copies| 5_000 + copies as u64 * 50_000);
        let made = story.next - before;
        assert!((8..50).contains(&made), "with pauses, and never none at all: {made}");
        // Also if that goes on for minutes, with never a moment without a copy.
        story.pass(300, true, |copies| 5_000 + copies as u64 * 2_000);
        assert!(story.tasks.len() <= 2, "they are used to it: {}", story.tasks.len());
        // Where clients do not notice, they are many again.
        story.pass(20, true, |_| 5_000);
        assert!(story.tasks.len() > 8, "{}", story.tasks.len());
    }

    #[test]
    fn what_ran_beside_copies_is_not_calm() {
        let mut story = Story::new();
        story.pass(1, true, |_| 5_000);
        let mut share = Share { calm_us: 5_000, ..Share::new(story.now) };
        share.listens = Some(Listens { since: story.now, calm_since: None, reads: 0, sum_us: 0 });
        // The copies end half a second later, and then what was asked beside them.
        let mut now = story.now.after(500_000);
        for _ in 0..2 * LISTEN_READS {
            now = now.after(1_000);
            share.calm_read(300_000, now);
        }
        for _ in 0..LISTEN_READS {
            assert!(share.listens.is_some());
            now = now.after(6_000);
            share.calm_read(6_000, now);
        }
        assert_eq!((share.calm_us, share.calm_at), (6_000, now));
    }

    #[test]
    fn a_family_that_is_gone_leaves_nothing_behind() {
        let mut story = Story::new();
        story.pass(1, false, |_| 0);
        story.budget.keep(FamilyId(2), story.now, |_| false);
        assert!(!story.budget.under_way.is_empty(), "another family's copies stay");
        story.budget.keep(FamilyId(1), story.now, |_| false);
        assert!(story.budget.drives.values().all(|share| share.under_way == 0));
    }
}
