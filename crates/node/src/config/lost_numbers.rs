//! Numbers of vDisks of which the records know nothing, though they were given out: somebody has put older records back.
//! Promises: such a number is given to nobody else, and what drives hold under it is not taken for that of a vDisk that was deleted, until
//! somebody says that it may go.

use serde::{Deserialize, Serialize};
use std::ops::Range;
use weft_engine::FamilyId;

/// Ranges, each from its first number to the one behind its last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LostNumbers(Vec<(u32, u32)>);

impl LostNumbers {
    /// No vDisk ever has this number or a higher one: numbers never end because a drive tells nonsense.
    pub const END: FamilyId = FamilyId(1 << 31);

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, family: FamilyId) -> bool {
        self.ranges().any(|range| range.contains(&family))
    }

    pub fn ranges(&self) -> impl Iterator<Item = Range<FamilyId>> + '_ {
        self.0.iter().map(|&(first, end)| FamilyId(first)..FamilyId(end))
    }

    /// A drive holds something of `found`, which `next`, the next number to be given out, has not come to: of all between them somebody may
    /// hold something. Whether anything has changed.
    pub fn note(&mut self, next: &mut u32, found: FamilyId) -> bool {
        if found.0 < *next || found >= Self::END {
            return false;
        }
        let end = found.0 + 1;
        match self.0.last_mut() {
            Some((_, last)) if last == next => *last = end,
            _ => self.0.push((*next, end)),
        }
        *next = end;
        true
    }

    /// What is held under this number may go. Whether it was lost.
    pub fn forget(&mut self, family: FamilyId) -> bool {
        let is_lost = self.contains(family);
        if is_lost {
            let parts = std::mem::take(&mut self.0).into_iter().flat_map(|(first, end)| {
                if (first..end).contains(&family.0) {
                    vec![(first, family.0), (family.0 + 1, end)]
                } else {
                    vec![(first, end)]
                }
            });
            self.0 = parts.filter(|(first, end)| first < end).collect();
        }
        is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_were_given_out_before_are_not_given_out_again_and_not_deleted() {
        let (mut lost, mut next) = (LostNumbers::default(), 3);
        assert!(!lost.note(&mut next, FamilyId(2)) && !lost.note(&mut next, FamilyId(u32::MAX)));
        assert!(lost.note(&mut next, FamilyId(5)) && !lost.note(&mut next, FamilyId(4)));
        assert!(lost.note(&mut next, FamilyId(6)));
        assert_eq!(next, 7);
        let all = |lost: &LostNumbers| -> Vec<u32> {
            (0..10).filter(|family| lost.contains(FamilyId(*family))).collect()
        };
        assert_eq!(all(&lost), [3, 4, 5, 6]);
        assert!(lost.forget(FamilyId(4)) && !lost.forget(FamilyId(4)) && !lost.forget(FamilyId(7)));
        assert_eq!(all(&lost), [3, 5, 6]);
        let text = serde_json::to_string(&lost).expect("it is JSON");
        assert_eq!(text, "[[3,4],[5,7]]");
        assert_eq!(serde_json::from_str::<LostNumbers>(&text).expect("it is read"), lost);
        for family in [3, 5, 6] {
            assert!(lost.forget(FamilyId(family)));
        }
        assert!(lost.is_empty());
    }
}
