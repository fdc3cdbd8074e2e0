//! The memory that clients of one shard may make it keep: what they have asked and not been answered, and answers that they have not
//! taken.
//! Promises: beyond the limit nobody gets more but those who keep little; who takes no answers while others wait is sent away.
//! Leaves to others: the limits of one connection (`weft_frontends::nbd::limits`), what is acknowledged and not drained (the engine).

use weft_engine::Time;

/// Beyond the limit a connection that keeps less than this ...
const LITTLE_BYTES: usize = 1 << 20;

/// ... is still given requests up to this size.
const SMALL_BYTES: usize = 64 << 10;

/// So long a client may take no byte of its answers while memory is short.
const PATIENCE_US: u64 = 10_000_000;

pub(super) struct Budget {
    most: usize,
    held: usize,
}

/// What one connection keeps.
#[derive(Debug, Default)]
pub(super) struct Share {
    held: usize,
    /// Bytes sent to the client so far, as last seen, and when that was other than before.
    sent: u64,
    since: Time,
}

impl Budget {
    pub fn new(most: usize) -> Self {
        Self { most, held: 0 }
    }

    /// The connection keeps so much now.
    pub fn count(&mut self, share: &mut Share, held: usize) {
        self.held = self.held - share.held + held;
        share.held = held;
    }

    /// Whether there is room for one more request of this size.
    pub fn has_room(&self, share: &Share, bytes: usize) -> bool {
        self.held < self.most || (share.held < LITTLE_BYTES && bytes <= SMALL_BYTES)
    }

    /// Looks at a connection now and then: it has sent so much in all, and more waits to be sent, or not. True: its client takes
    /// nothing while others wait for the memory.
    pub fn is_in_the_way(&self, share: &mut Share, now: Time, sent: u64, waits: bool) -> bool {
        if !waits || sent != share.sent {
            (share.sent, share.since) = (sent, now);
        }
        self.held >= self.most && share.held >= LITTLE_BYTES && now.since(share.since) >= PATIENCE_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_limit_those_who_keep_little_go_on() {
        let mut budget = Budget::new(10 << 20);
        let (mut much, mut little) = (Share::default(), Share::default());
        assert!(budget.has_room(&much, 32 << 20), "the last one may go over it");
        budget.count(&mut much, 42 << 20);
        assert!(!budget.has_room(&much, 4096) && !budget.has_room(&little, 1 << 20));
        assert!(budget.has_room(&little, 4096));
        budget.count(&mut little, 1 << 20);
        assert!(!budget.has_room(&little, 4096));
        budget.count(&mut much, 3 << 20);
        assert!(budget.has_room(&little, 1 << 20), "what is given back is there again");
        budget.count(&mut much, 0);
        budget.count(&mut little, 0);
        assert_eq!(budget.held, 0);
    }

    #[test]
    fn who_takes_nothing_goes_when_others_wait() {
        let mut budget = Budget::new(10 << 20);
        let mut share = Share::default();
        let mut at = |budget: &Budget, seconds: u64, sent, waits| {
            budget.is_in_the_way(&mut share, Time(seconds * 1_000_000), sent, waits)
        };
        assert!(!at(&budget, 1, 0, true) && !at(&budget, 60, 0, true), "nobody waits for it");
        let mut other = Share::default();
        budget.count(&mut other, 10 << 20);
        assert!(!at(&budget, 61, 0, true), "it keeps nothing itself");
        let mut own = Share { since: Time(61_000_000), ..Share::default() };
        budget.count(&mut own, 2 << 20);
        let mut at = |seconds: u64, sent, waits| {
            budget.is_in_the_way(&mut own, Time(seconds * 1_000_000), sent, waits)
        };
        assert!(!at(70, 0, true));
        assert!(!at(72, 5, true), "it takes something, slowly");
        assert!(!at(81, 5, true) && at(82, 5, true));
        assert!(!at(83, 5, false), "nothing waits to be taken: it is we who are slow");
        assert!(!at(92, 5, true) && at(93, 5, true));
    }
}
