//! Requests whose clients went while the engine had them: nothing takes them back, so what they carry stays in memory until they are
//! answered.
//! Promises: until then it is part of what all clients keep, and counts for whoever comes to the same vDisk: to go and come again
//! gives nobody more.
//! Leaves to others: how much there may be (`budget`).

use super::budget::{Budget, Share};
use std::collections::BTreeMap;
use weft_engine::FamilyId;
use weft_frontends::nbd::Handle;

/// The place and the generation that a connection had.
type Place = (u32, u32);

#[derive(Default)]
pub(super) struct Departed {
    left: BTreeMap<Place, Left>,
    /// Bytes of the requests of each vDisk; none has 0.
    of_family: BTreeMap<FamilyId, usize>,
}

/// What one client has left behind.
struct Left {
    family: FamilyId,
    share: Share,
    /// Those of its open requests that keep something, and how many bytes. The engine limits how many are open in all.
    open: BTreeMap<Handle, usize>,
}

impl Departed {
    /// A connection is gone, and these of its requests have not been answered.
    pub fn leave(
        &mut self,
        place: Place,
        family: FamilyId,
        open: impl Iterator<Item = (Handle, usize)>,
        budget: &mut Budget,
    ) {
        let open: BTreeMap<Handle, usize> = open.filter(|(_, bytes)| *bytes > 0).collect();
        if open.is_empty() {
            return;
        }
        let (bytes, mut share) = (open.values().sum(), Share::default());
        budget.count(&mut share, bytes);
        *self.of_family.entry(family).or_default() += bytes;
        let before = self.left.insert(place, Left { family, share, open });
        assert!(before.is_none(), "a place has another generation each time");
    }

    /// One of them has been answered, if it is one of them.
    pub fn on_answered(&mut self, place: Place, handle: Handle, budget: &mut Budget) {
        let Some(left) = self.left.get_mut(&place) else { return };
        let Some(bytes) = left.open.remove(&handle) else { return };
        budget.count(&mut left.share, left.open.values().sum());
        let all = self.of_family.get_mut(&left.family).expect("it is part of what its vDisk has");
        *all -= bytes;
        if *all == 0 {
            self.of_family.remove(&left.family);
        }
        if left.open.is_empty() {
            self.left.remove(&place);
        }
    }

    /// Bytes that former clients of a vDisk keep.
    pub fn bytes_of(&self, family: FamilyId) -> usize {
        self.of_family.get(&family).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_behind_counts_until_it_is_answered() {
        let (mut departed, mut budget) = (Departed::default(), Budget::new(100));
        let (one, other, nobody) = (FamilyId(1), FamilyId(2), Share::default());
        let open = |sizes: [usize; 3]| (0..3).map(move |index| (Handle(index), sizes[index as usize]));
        departed.leave((5, 0), one, open([60, 0, 30]), &mut budget);
        departed.leave((5, 1), one, open([7, 0, 0]), &mut budget);
        departed.leave((6, 0), other, open([5, 0, 0]), &mut budget);
        departed.leave((6, 1), other, open([0, 0, 0]), &mut budget);
        assert_eq!((departed.bytes_of(one), departed.bytes_of(other), departed.left.len()), (97, 5, 3));
        assert!(!budget.has_room(&nobody, 1 << 20, 1), "102 bytes are kept");
        departed.on_answered((5, 1), Handle(0), &mut budget);
        departed.on_answered((5, 1), Handle(0), &mut budget);
        assert!(budget.has_room(&nobody, 1 << 20, 1), "95");
        departed.on_answered((5, 0), Handle(1), &mut budget);
        departed.on_answered((5, 0), Handle(0), &mut budget);
        assert_eq!(departed.bytes_of(one), 30);
        departed.on_answered((5, 0), Handle(2), &mut budget);
        departed.on_answered((6, 0), Handle(0), &mut budget);
        assert!(departed.left.is_empty() && departed.of_family.is_empty());
        budget.count(&mut Share::default(), 99);
        assert!(budget.has_room(&nobody, 1 << 20, 1), "nothing is kept of them any more");
    }
}
