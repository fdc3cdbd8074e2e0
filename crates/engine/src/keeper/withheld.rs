//! Writes of the log that a drive does not give, though it gives what lies beside them: after some attempts they are lost, as if
//! they were damaged. A sector of which that is so stays so until it is written again, and its vDisk could be served by nobody.
//! `docs/decisions/0064-what-a-drive-does-not-give-for-long-is-lost.md`.
//! Promises: a drive that gives nothing has lost nothing.

use crate::identity::{FamilyId, Seq, Time};
use std::collections::BTreeMap;

/// What could not be read so often ...
const TIMES_MAX: u32 = 3;
/// ... each time so long after the last one, is taken for lost.
const PAUSE_US: u64 = 5_000_000;

#[derive(Default)]
pub(super) struct Withheld {
    counted: BTreeMap<(FamilyId, Seq), Attempts>,
}

struct Attempts {
    times: u32,
    at: Time,
}

impl Withheld {
    /// It was not given once more. Says whether it is lost.
    pub fn count(&mut self, family: FamilyId, seq: Seq, now: Time) -> bool {
        let attempts = self.counted.entry((family, seq)).or_insert(Attempts { times: 1, at: now });
        if now.since(attempts.at) >= PAUSE_US {
            attempts.times += 1;
            attempts.at = now;
        }
        attempts.times >= TIMES_MAX
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
        let mut count = |seconds: u64| withheld.count(FamilyId(1), Seq(7), Time(seconds * 1_000_000));
        for second in 0..5 {
            assert!(!count(second));
        }
        assert!(!count(5));
        assert!(!count(6));
        assert!(count(10));
        // It stays so.
        assert!(count(11));
        withheld.keep(|_, _| false);
        assert!(!withheld.count(FamilyId(1), Seq(7), Time(20_000_000)));
    }
}
