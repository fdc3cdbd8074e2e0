//! How many pieces of large writes a drive has at a time while clients wait for its log, or read from it.
//! Promises: something is under way while anything waits; what has begun ends before anything else begins; a drive that takes
//! long for a piece gets fewer together, a quick one more.
//! Leaves to others: cutting, and what a piece is of (`drive_io`).

use super::crowd::Crowd;

/// Pieces together at most: 4 MiB of them.
const MOST: usize = 16;

/// A frame of the log, or a read, waits behind all pieces that the drive has: they get so few that it takes about this long.
const TARGET_US: u64 = 1_500;

pub struct Pieces(Crowd);

impl Default for Pieces {
    fn default() -> Self {
        Self(Crowd::new(MOST / 4))
    }
}

impl Pieces {
    /// Whether the next piece of flight `index` goes to the drive now; otherwise it has its turn later.
    pub fn begin(&mut self, index: u32) -> bool {
        self.0.begin(index)
    }

    /// A piece of flight `index` ended after `us`; it has more or not.
    pub fn end(&mut self, index: u32, has_more: bool, us: u64) {
        let crowd = &mut self.0;
        crowd.end();
        if us > TARGET_US {
            crowd.most = (crowd.most - 1).max(1);
        } else if us < TARGET_US / 2 {
            crowd.most = (crowd.most + 1).min(MOST);
        }
        if has_more {
            // What has begun ends before anything else begins.
            crowd.waiting.push_front(index);
        }
    }

    /// The next that has its turn. It is under way then.
    pub fn take_next(&mut self) -> Option<u32> {
        self.0.take_next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_drive_has_one_piece_at_a_time_and_ends_what_it_has_begun() {
        let mut pieces = Pieces::default();
        let begun: Vec<bool> = (0..6).map(|index| pieces.begin(index)).collect();
        assert_eq!(begun, [true, true, true, true, false, false]);
        for index in 0..4 {
            pieces.end(index, true, TARGET_US + 1);
        }
        let waits = |pieces: &Pieces, index: u32| pieces.0.waiting.contains(&index);
        assert!((0..6).all(|index| waits(&pieces, index)), "also those that the drive has a part of");
        let mut order = Vec::new();
        let mut left = [1, 1, 1, 1, 2, 2];
        while let Some(index) = pieces.take_next() {
            assert_eq!((pieces.take_next(), pieces.0.under_way), (None, 1), "one at a time");
            assert!(!waits(&pieces, index));
            order.push(index);
            left[index as usize] -= 1;
            pieces.end(index, left[index as usize] > 0, TARGET_US + 1);
        }
        assert_eq!(order, [3, 2, 1, 0, 4, 4, 5, 5]);
        assert_eq!((pieces.0.under_way, pieces.0.most), (0, 1));
    }

    #[test]
    fn a_quick_drive_has_ever_more_at_a_time_and_a_limit() {
        let mut pieces = Pieces::default();
        for _ in 0..100 {
            assert!(pieces.begin(0));
            pieces.end(0, false, 100);
        }
        let begun = (0..100).filter(|&index| pieces.begin(index)).count();
        assert_eq!(begun, MOST);
    }

    #[test]
    fn nothing_waits_while_nothing_is_under_way() {
        let mut pieces = Pieces::default();
        let mut draw = 1_u32;
        let mut under_way: Vec<u32> = Vec::new();
        for index in 0..10_000 {
            draw = draw.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if (draw >> 16).is_multiple_of(3) || under_way.is_empty() {
                under_way.extend(pieces.begin(index).then_some(index));
            } else {
                let ended = under_way.swap_remove(draw as usize % under_way.len());
                pieces.end(ended, (draw >> 20).is_multiple_of(2), u64::from(draw >> 16) % 3_000);
            }
            under_way.extend(std::iter::from_fn(|| pieces.take_next()));
            assert_eq!(pieces.0.under_way, under_way.len());
            assert!(pieces.0.waiting.is_empty() || !under_way.is_empty());
        }
    }
}
