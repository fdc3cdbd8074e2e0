//! What comes in crowds, when a vDisk is deleted or trimmed: erased pages of a drive's table.
//! Nobody waits for one of them, and a drive that has thousands at once does nothing else for seconds, as if it hung.
//! Promises: few are at the drive at a time; those that wait go in the order in which they came.
//! Leaves to others: what they are (`drive_io`).

use std::collections::VecDeque;

pub struct Crowd {
    pub(super) under_way: usize,
    /// Together at most.
    pub(super) most: usize,
    pub(super) waiting: VecDeque<u32>,
}

impl Crowd {
    pub fn new(most: usize) -> Self {
        Self { under_way: 0, most, waiting: VecDeque::new() }
    }

    /// Whether flight `index` goes to the drive now; otherwise it has its turn later.
    pub fn begin(&mut self, index: u32) -> bool {
        let goes = self.under_way < self.most && self.waiting.is_empty();
        if goes {
            self.under_way += 1;
        } else {
            self.waiting.push_back(index);
        }
        goes
    }

    /// One has ended.
    pub fn end(&mut self) {
        self.under_way -= 1;
    }

    /// The next that has its turn. It is under way then.
    pub fn take_next(&mut self) -> Option<u32> {
        if self.under_way >= self.most {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.under_way += 1;
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_under_way_and_all_have_their_turn_in_order() {
        let mut crowd = Crowd::new(3);
        let begun: Vec<bool> = (0..10).map(|index| crowd.begin(index)).collect();
        assert_eq!(begun.iter().filter(|goes| **goes).count(), 3);
        assert_eq!(crowd.take_next(), None, "they have not ended");
        let mut end = || {
            crowd.end();
            crowd.take_next()
        };
        let order: Vec<u32> = std::iter::from_fn(&mut end).collect();
        assert_eq!(order, [3, 4, 5, 6, 7, 8, 9]);
        assert_eq!((end(), end()), (None, None));
        assert_eq!(crowd.under_way, 0);
        assert!(crowd.begin(10));
    }
}
