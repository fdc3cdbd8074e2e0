//! Writes of the log that a drive does not give, though it gives what lies beside them: after some attempts they are lost, as if
//! they were damaged. A sector of which that is so stays so until it is written again, and its vDisk could be served by nobody.
//! `docs/decisions/0064-what-a-drive-does-not-give-for-long-is-lost.md`.
//! Promises: a drive that gives nothing has lost nothing.

use crate::identity::{FamilyId, Seq, Time};
use crate::keeper::holding::Home;
use std::collections::BTreeMap;

/// What could not be read so often ...
const TIMES_MAX: u32 = 3;
/// ... each time so long after the last one, is taken for lost. An opening waits for longer where others end before it (`log/recover/needed`): else
/// what is behind it would be cut off with it.
const PAUSE_US: u64 = 2_000_000;

#[derive(Default)]
pub(super) struct Withheld {
    counted: BTreeMap<(FamilyId, Seq), Attempts>,
}

struct Attempts {
    /// Where it lay.
    home: Home,
    times: u32,
    at: Time,
}

impl Withheld {
    /// It was not given once more. Says whether it is lost.
    pub fn count(&mut self, family: FamilyId, seq: Seq, home: Home, now: Time) -> bool {
        let first = Attempts { home, times: 1, at: now };
        let attempts = self.counted.entry((family, seq)).or_insert(first);
        if attempts.home != home {
            *attempts = Attempts { home, times: 1, at: now };
        }
        if now.since(attempts.at) >= PAUSE_US {
            attempts.times += 1;
            attempts.at = now;
        }
        attempts.times >= TIMES_MAX
    }

    /// It was given.
    pub fn forget(&mut self, family: FamilyId, seq: Seq) {
        self.counted.remove(&(family, seq));
    }

    /// Of what is not held any more nothing is known.
    pub fn keep(&mut self, is_held: impl Fn(FamilyId, Seq) -> bool) {
        self.counted.retain(|(family, seq), _| is_held(*family, *seq));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_lost_when_it_was_not_given_for_the_third_time_and_not_by_asking_often() {
        let mut withheld = Withheld::default();
        let (family, seq) = (FamilyId(1), Seq(7));
        let mut count_at =
            |home, seconds: u64| withheld.count(family, seq, Home::Frame(home), Time(seconds * 1_000_000));
        assert!(!count_at(1, 0) && !count_at(1, 2), "it lies elsewhere by now");
        let mut count = |seconds: u64| count_at(2, seconds);
        for second in 10..14 {
            assert!(!count(second));
        }
        assert!(count(14));
        // It stays so, until it is given, or not there any more.
        assert!(count(15));
        withheld.forget(family, seq);
        assert!(!withheld.count(family, seq, Home::Frame(2), Time(30_000_000)));
        withheld.keep(|_, _| false);
        assert!(withheld.counted.is_empty());
    }
}
