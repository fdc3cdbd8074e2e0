//! Which families there are, for drives that hold something of others.

use crate::identity::FamilyId;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Which families there are, as the records of one moment say. An older one is as true as a newer one: numbers are never used
/// twice, so that what was deleted once stays deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// All lower numbers have been given out. Of higher ones nothing is known: records that were put back to an older state
    /// leave out what was made since.
    pub next: FamilyId,
    /// Every family with a record, those being destroyed among them.
    pub families: Arc<BTreeSet<FamilyId>>,
}

impl Census {
    /// Whether it was there once and is not any more.
    pub fn is_deleted(&self, family: FamilyId) -> bool {
        family < self.next && !self.families.contains(&family)
    }
}
