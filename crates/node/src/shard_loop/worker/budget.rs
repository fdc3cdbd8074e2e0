//! The memory that clients of one shard may make it keep: what they have asked and not been answered, and answers that they have not
//! taken.
//! Promises: beyond the limit nobody gets more but those who keep little; who takes no answers, or does not give what it has
//! announced, while others wait is sent away.
//! Leaves to others: the limits of one connection (`weft_frontends::nbd::limits`), what is acknowledged and not drained (the engine).

use crate::shard_loop::socket::Waits;
use weft_engine::Time;

/// Beyond the limit a connection that keeps less than this ...
const LITTLE_BYTES: usize = 1 << 20;

/// ... is still given requests up to this size, and one that keeps nothing a request of up to `LITTLE_BYTES`: nobody stands still
/// because of what others keep.
const SMALL_BYTES: usize = 64 << 10;

/// So long a client may take no byte of its answers while memory is short ...
const TAKE_US: u64 = 10_000_000;

/// ... and so long it may take to give a whole write. (How much of it has come is known when all has.)
const GIVE_US: u64 = 30_000_000;

pub(super) struct Budget {
    most: usize,
    held: usize,
}

/// What one connection keeps.
#[derive(Debug, Default)]
pub(super) struct Share {
    held: usize,
    /// Bytes that the client had taken and given, as last seen, and since when that is so.
    moved: u64,
    since: Time,
}

impl Budget {
    pub fn new(most: usize) -> Self {
        Self { most, held: 0 }
    }

    /// The connection keeps so much now.
    pub fn count(&mut self, share: &mut Share, held: usize) {
        assert!(self.held >= share.held, "what a connection keeps is part of what all keep");
        self.held = self.held - share.held + held;
        share.held = held;
    }

    /// Whether there is room for one more request of this size. `left`: bytes that clients of the same vDisk who went keep still, as
    /// if this one kept them. Or one could come, leave a little behind, and come again, without end. What needs none always has: a trim may be
    /// what makes room for the others.
    pub fn has_room(&self, share: &Share, left: usize, bytes: usize) -> bool {
        let kept = share.held + left;
        let is_modest = bytes <= SMALL_BYTES || (kept == 0 && bytes <= LITTLE_BYTES);
        // Who keeps much takes at once what it gives back, so the others would never see room for a request that is larger than
        // that. Of them each may have one, of any size, until all keep twice of what they should.
        let is_alone = kept == 0 && self.held < self.most * 2;
        bytes == 0 || self.held < self.most || is_alone || (kept < LITTLE_BYTES && is_modest)
    }

    /// Looks at a connection now and then: so much was moved over it in all, and its client is waited for, or not. True: it does
    /// nothing while others wait for the memory.
    pub fn is_in_the_way(&self, share: &mut Share, now: Time, moved: u64, waits: Option<Waits>) -> bool {
        let patience = match waits {
            Some(Waits::ToTake) => TAKE_US,
            Some(Waits::ToGive) => GIVE_US,
            None => u64::MAX,
        };
        if waits.is_none() || moved != share.moved {
            (share.moved, share.since) = (moved, now);
        }
        self.held >= self.most && share.held >= LITTLE_BYTES && now.since(share.since) >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_limit_those_who_keep_little_go_on() {
        let mut budget = Budget::new(10 << 20);
        let (mut much, mut little) = (Share::default(), Share::default());
        assert!(budget.has_room(&much, 0, 32 << 20), "the last one may go over it");
        budget.count(&mut much, 42 << 20);
        assert!(!budget.has_room(&much, 0, 4096) && !budget.has_room(&little, 0, 2 << 20));
        assert!(
            budget.has_room(&little, 0, 4096) && budget.has_room(&little, 0, 1 << 20),
            "nobody stands still"
        );
        budget.count(&mut little, 4096);
        assert!(budget.has_room(&little, 0, 4096) && !budget.has_room(&little, 0, 1 << 20));
        budget.count(&mut little, 1 << 20);
        assert!(!budget.has_room(&little, 0, 4096));
        budget.count(&mut much, 3 << 20);
        assert!(budget.has_room(&little, 0, 1 << 20), "what is given back is there again");
        budget.count(&mut much, 0);
        budget.count(&mut little, 0);
        assert_eq!(budget.held, 0);
    }

    #[test]
    fn who_keeps_nothing_gets_one_request_of_any_size() {
        let mut budget = Budget::new(100 << 20);
        let (mut much, mut other) = (Share::default(), Share::default());
        budget.count(&mut much, 110 << 20);
        assert!(!budget.has_room(&much, 0, 4096), "it takes what it gives back as soon as there is room");
        assert!(budget.has_room(&other, 0, 32 << 20), "and the other would never see any");
        budget.count(&mut other, 32 << 20);
        assert!(!budget.has_room(&other, 0, 32 << 20), "one");
        budget.count(&mut much, 168 << 20);
        assert!(!budget.has_room(&Share::default(), 0, 32 << 20), "but not without end");
        budget.count(&mut much, 110 << 20);
        let new = Share::default();
        assert!(!budget.has_room(&new, 4096, 1 << 20) && budget.has_room(&new, 4096, 4096));
        assert!(!budget.has_room(&new, 1 << 20, 4096), "who went and came again keeps what it kept");
    }

    #[test]
    fn who_takes_nothing_goes_when_others_wait() {
        let mut budget = Budget::new(10 << 20);
        let mut share = Share::default();
        let (take, give) = (Some(Waits::ToTake), Some(Waits::ToGive));
        let mut at = |budget: &Budget, seconds: u64, moved, waits| {
            budget.is_in_the_way(&mut share, Time(seconds * 1_000_000), moved, waits)
        };
        assert!(!at(&budget, 1, 0, take) && !at(&budget, 60, 0, take), "nobody waits for it");
        let mut other = Share::default();
        budget.count(&mut other, 10 << 20);
        assert!(!at(&budget, 61, 0, take), "it keeps nothing itself");
        let mut own = Share { since: Time(61_000_000), ..Share::default() };
        budget.count(&mut own, 2 << 20);
        let mut at = |seconds: u64, moved, waits| {
            budget.is_in_the_way(&mut own, Time(seconds * 1_000_000), moved, waits)
        };
        assert!(!at(70, 0, take));
        assert!(!at(72, 5, take), "it takes something, slowly");
        assert!(!at(81, 5, take) && at(82, 5, take));
        assert!(!at(83, 5, None), "nothing waits to be taken: it is we who are slow");
        assert!(!at(92, 5, take) && at(93, 5, take));
        assert!(!at(112, 5, give) && at(113, 5, give), "a large write may take longer to come");
    }
}
