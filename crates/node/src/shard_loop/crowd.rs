//! What comes in crowds, when a vDisk is deleted or trimmed: erased pages of a drive's table, and hints of what is not needed any more.
//! Nobody waits for one of them, and a drive that has thousands at once does nothing else for seconds, as if it hung.
//! Promises: few of a kind are at the drive at a time; those that wait go in the order in which they came.
//! Leaves to others: what they are (`drive_io`).

use std::collections::VecDeque;

pub struct Crowd {
    under_way: usize,
    most: usize,
    waiting: VecDeque<u32>,
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

    /// One has ended. Gives the next that has its turn, which is under way then.
    pub fn end(&mut self) -> Option<u32> {
        self.under_way -= 1;
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
        let order: Vec<u32> = std::iter::from_fn(|| crowd.end()).collect();
        assert_eq!(order, [3, 4, 5, 6, 7, 8, 9]);
        assert_eq!((crowd.end(), crowd.end()), (None, None));
        assert_eq!(crowd.under_way, 0);
        assert!(crowd.begin(10));
    }
}
