//! Which families there are, for drives that hold something of others.

use crate::identity::FamilyId;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Which families there are, as the records of one moment say. An older one is as true as a newer one: numbers are never used
/// twice, so that what was deleted once stays deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// All lower numbers have been given out. Of higher ones nothing is known: records that were put back to an older state
    /// leave out what was made since. 0: nothing has been told yet.
    pub next: FamilyId,
    /// Every family with a record, those being destroyed among them.
    pub families: Arc<BTreeSet<FamilyId>>,
    /// Lower numbers of which no more is known: somebody found something of them when records had been put back.
    pub unknown: Arc<Vec<Range<FamilyId>>>,
}

impl Census {
    /// Whether it was there once and is not any more.
    pub fn is_deleted(&self, family: FamilyId) -> bool {
        family < self.next && !self.families.contains(&family) && !self.is_in_gap(family)
    }

    /// Whether there is no record of it, and it may be alive all the same.
    pub fn is_unknown(&self, family: FamilyId) -> bool {
        let is_told = self.next > FamilyId(0);
        let is_lost = family >= self.next || self.is_in_gap(family);
        is_told && is_lost && !self.families.contains(&family)
    }

    fn is_in_gap(&self, family: FamilyId) -> bool {
        self.unknown.iter().any(|gap| gap.contains(&family))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_records_leave_out_is_not_deleted() {
        let known = BTreeSet::from([FamilyId(2), FamilyId(6)]);
        let gap = FamilyId(4)..FamilyId(7);
        let census = Census { next: FamilyId(8), families: Arc::new(known), unknown: Arc::new(vec![gap]) };
        let of = |is_it: &dyn Fn(FamilyId) -> bool| -> Vec<u32> {
            (1..10).filter(|&family| is_it(FamilyId(family))).collect()
        };
        assert_eq!(of(&|family| census.is_deleted(family)), [1, 3, 7]);
        assert_eq!(of(&|family| census.is_unknown(family)), [4, 5, 8, 9]);
        assert!(!Census::default().is_unknown(FamilyId(1)), "nothing was told yet");
    }
}
