//! Disjoint ranges of blocks, each with a value that can be cut: the shape of everything kept per block.
//! Promises: every operation costs a tree search for each range it touches, never a step for each block, so
//! a trim of 2^50 blocks is as cheap as a write of one. Ranges come out in order of address.
//! Leaves to others: what the values mean.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// A value that covers a range of blocks and can be cut to a part of it.
pub trait Slice: Clone {
    /// The value for `count` blocks, `from` blocks behind the begin of the range it covers now.
    fn slice(&self, from: u64, count: u64) -> Self;

    /// Whether [`Slice::joins`] ever says yes. Where it does not, nobody looks for neighbours.
    const JOINS: bool = false;

    /// Whether this value, covering `count` blocks, would be right for the range of `next` behind it as
    /// well: then the two ranges become one, under this value.
    fn joins(&self, _count: u64, _next: &Self) -> bool {
        false
    }
}

/// A range and its value, cut to the range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece<V> {
    pub start: u64,
    pub count: u64,
    pub value: V,
}

#[derive(Debug, Clone)]
pub struct IntervalMap<V> {
    /// By first block: how many blocks, never 0, and the value. No two overlap.
    ranges: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for IntervalMap<V> {
    fn default() -> Self {
        Self { ranges: BTreeMap::new() }
    }
}

impl<V: Slice> IntervalMap<V> {
    /// Covers `count` blocks from `start` with `value`. What was there is replaced and given back, in order.
    pub fn insert(&mut self, start: u64, count: u64, value: V) -> Vec<Piece<V>> {
        let removed = self.remove(start, count);
        let (mut start, mut count, mut value) = (start, count, value);
        if V::JOINS
            && let Some((&at, (length, before))) = self.ranges.range(..start).next_back()
            && at + length == start
            && before.joins(*length, &value)
        {
            (start, count) = (at, length + count);
            value = before.clone();
        }
        if V::JOINS
            && let Some((length, after)) = self.ranges.get(&(start + count))
            && value.joins(count, after)
        {
            let joined = *length;
            self.ranges.remove(&(start + count));
            count += joined;
        }
        self.ranges.insert(start, (count, value));
        removed
    }

    /// Uncovers the range; gives back what was there, in order.
    pub fn remove(&mut self, start: u64, count: u64) -> Vec<Piece<V>> {
        let end = end_of(start, count);
        let mut removed = Vec::new();
        match self.last_touching(start, end) {
            None => return removed,
            Some((at, length)) if at == start && length == count => {
                let (_, value) = self.ranges.remove(&at).expect("it was found just now");
                removed.push(Piece { start, count, value });
                return removed;
            }
            Some(_) => {}
        }
        if let Some((&at, (length, value))) = self.ranges.range_mut(..start).next_back()
            && at + *length > start
        {
            // This range began before: its head stays, and perhaps a tail.
            let (whole, from) = (*length, start - at);
            let cut = (whole - from).min(count);
            removed.push(Piece { start, count: cut, value: value.slice(from, cut) });
            let tail = whole - from - cut;
            let behind = (tail > 0).then(|| value.slice(from + cut, tail));
            *value = value.slice(0, from);
            *length = from;
            if let Some(behind) = behind {
                self.ranges.insert(end, (tail, behind));
                return removed;
            }
        }
        while let Some((&at, _)) = self.ranges.range(start..end).next() {
            let (length, value) = self.ranges.remove(&at).expect("it was found just now");
            if at + length <= end {
                removed.push(Piece { start: at, count: length, value });
                continue;
            }
            let inside = end - at;
            self.ranges.insert(end, (length - inside, value.slice(inside, length - inside)));
            removed.push(Piece { start: at, count: inside, value: value.slice(0, inside) });
        }
        removed
    }

    /// Like `remove`, but only of what `wanted` says yes to.
    pub fn extract(&mut self, start: u64, count: u64, wanted: impl Fn(&V) -> bool) -> Vec<Piece<V>> {
        if let Entry::Occupied(range) = self.ranges.entry(start)
            && range.get().0 == count
        {
            // Nearly always the range is just what was put in.
            let is_wanted = wanted(&range.get().1);
            return is_wanted.then(|| Piece { start, count, value: range.remove().1 }).into_iter().collect();
        }
        let found: Vec<(u64, u64)> = self
            .touching(start, count)
            .filter(|(_, _, value)| wanted(value))
            .map(|(at, length, _)| clip(at, length, start, count))
            .collect();
        let mut removed = Vec::with_capacity(found.len());
        for (at, length) in found {
            removed.append(&mut self.remove(at, length));
        }
        removed
    }

    /// Changes the values in the range that `wanted` says yes to, cut to the range; gives how many blocks that were. What is
    /// changed joins with nothing.
    pub fn change(
        &mut self,
        start: u64,
        count: u64,
        wanted: impl Fn(&V) -> bool,
        change: impl Fn(&mut V),
    ) -> u64 {
        if let Some((length, value)) = self.ranges.get_mut(&start)
            && *length == count
        {
            // Nearly always the range is just what was put in.
            return if wanted(value) {
                change(value);
                count
            } else {
                0
            };
        }
        let mut changed = 0;
        for mut piece in self.extract(start, count, wanted) {
            change(&mut piece.value);
            changed += piece.count;
            self.ranges.insert(piece.start, (piece.count, piece.value));
        }
        changed
    }

    /// The value at `block`, cut to begin there, and for how many blocks it goes on.
    pub fn get(&self, block: u64) -> Option<(u64, V)> {
        let (&at, (length, value)) = self.ranges.range(..=block).next_back()?;
        let from = block - at;
        (from < *length).then(|| (length - from, value.slice(from, length - from)))
    }

    /// The value whose range covers `block`, as it is.
    pub fn peek(&self, block: u64) -> Option<&V> {
        let (&at, (length, value)) = self.ranges.range(..=block).next_back()?;
        (block - at < *length).then_some(value)
    }

    /// The whole range in order, gaps as None: first block, count, value cut to it.
    pub fn over(&self, start: u64, count: u64) -> Over<'_, V> {
        Over { map: self, at: start, end: end_of(start, count) }
    }

    /// What is covered of the range, in order, each cut to it.
    pub fn pieces(&self, start: u64, count: u64) -> impl Iterator<Item = Piece<V>> + '_ {
        self.touching(start, count).map(move |(at, length, value)| {
            let (first, inside) = clip(at, length, start, count);
            Piece { start: first, count: inside, value: value.slice(first - at, inside) }
        })
    }

    /// Whether anything in the range is covered.
    pub fn overlaps(&self, start: u64, count: u64) -> bool {
        self.touching(start, count).next().is_some()
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// All ranges in order: first block, count, value.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, &V)> {
        self.ranges.iter().map(|(&at, (length, value))| (at, *length, value))
    }

    /// The ranges that cover `start` or lie behind it, whole, in order.
    pub fn ranges_from(&self, start: u64) -> impl Iterator<Item = (u64, u64, &V)> {
        self.touching(start, u64::MAX - start)
    }

    /// The parts of the range that are covered, in order: first block, count, and the value of the whole range that they are
    /// a part of.
    pub fn parts(&self, start: u64, count: u64) -> impl Iterator<Item = (u64, u64, &V)> {
        self.touching(start, count).map(move |(at, length, value)| {
            let (first, inside) = clip(at, length, start, count);
            (first, inside, value)
        })
    }

    /// The ranges that have a block in common with this one, whole.
    fn touching(&self, start: u64, count: u64) -> impl Iterator<Item = (u64, u64, &V)> {
        let end = end_of(start, count);
        let last = self.ranges.range(..end).next_back().filter(|(at, (length, _))| **at + length > start);
        // Mostly there is none, or just one, and one search has shown it.
        let several = last.is_some_and(|(at, _)| *at > start);
        let first = if several {
            self.ranges.range(..start).next_back().filter(|(at, (length, _))| **at + length > start)
        } else {
            last
        };
        let others = several.then(|| self.ranges.range(start..end));
        first
            .into_iter()
            .chain(others.into_iter().flatten())
            .map(|(&at, (length, value))| (at, *length, value))
    }

    /// The last range that has a block in common with the one from `start` to `end`: where it begins, and how many blocks.
    fn last_touching(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let (&at, (length, _)) = self.ranges.range(..end).next_back()?;
        (at + length > start).then_some((at, *length))
    }
}

/// See [`IntervalMap::over`].
pub struct Over<'a, V> {
    map: &'a IntervalMap<V>,
    at: u64,
    end: u64,
}

impl<V: Slice> Iterator for Over<'_, V> {
    type Item = (u64, u64, Option<V>);

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.at;
        if start == self.end {
            return None;
        }
        // A search for each piece: the piece before `start` can only matter for the first of them, but
        // asking again is as cheap as remembering.
        let Some((at, length, value)) = self.map.touching(start, self.end - start).next() else {
            self.at = self.end;
            return Some((start, self.end - start, None));
        };
        if at > start {
            self.at = at;
            return Some((start, at - start, None));
        }
        let (first, inside) = clip(at, length, start, self.end - start);
        self.at = first + inside;
        Some((first, inside, Some(value.slice(first - at, inside))))
    }
}

/// The block behind a range.
fn end_of(start: u64, count: u64) -> u64 {
    assert!(count > 0, "a range has at least one block");
    start.checked_add(count).expect("a range ends inside the address space")
}

/// The part of `at, length` inside `start, count`; the two overlap.
fn clip(at: u64, length: u64, start: u64, count: u64) -> (u64, u64) {
    let first = at.max(start);
    (first, (at + length).min(start + count) - first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    /// A value that knows where it stands, so that a wrong cut shows.
    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Marked {
        name: u32,
        offset: u64,
    }

    impl Slice for Marked {
        fn slice(&self, from: u64, _count: u64) -> Self {
            Marked { name: self.name, offset: self.offset + from }
        }

        const JOINS: bool = true;

        fn joins(&self, count: u64, next: &Self) -> bool {
            self.name == next.name && self.offset + count == next.offset
        }
    }

    fn blocks(pieces: impl IntoIterator<Item = Piece<Marked>>) -> Vec<(u64, Marked)> {
        pieces
            .into_iter()
            .flat_map(|piece| (0..piece.count).map(move |i| (piece.start + i, piece.value.slice(i, 1))))
            .collect()
    }

    #[test]
    fn it_agrees_with_one_entry_per_block_under_random_input() {
        let mut random = SmallRng::seed_from_u64(1);
        for round in 0..40 {
            let space = if round % 2 == 0 { 64 } else { 1000 };
            let mut map = IntervalMap::default();
            let mut model: BTreeMap<u64, Marked> = BTreeMap::new();
            for _ in 0..800 {
                let start = random.random_range(0..space);
                let count = random.random_range(1..=space / 4);
                let end = start + count;
                let name = random.random_range(0..4);
                let present: Vec<_> = model.range(start..end).map(|(b, v)| (*b, v.clone())).collect();
                match random.random_range(0..7) {
                    0..3 => {
                        // Offsets tied to the address make neighbours of one name join.
                        let value = Marked { name, offset: start };
                        assert_eq!(blocks(map.insert(start, count, value.clone())), present);
                        model.extend((0..count).map(|i| (start + i, value.slice(i, 1))));
                    }
                    3 => {
                        assert_eq!(blocks(map.remove(start, count)), present);
                        model.retain(|b, _| *b < start || *b >= end);
                    }
                    4 => {
                        let wanted: Vec<_> = present.into_iter().filter(|(_, v)| v.name == name).collect();
                        assert_eq!(blocks(map.extract(start, count, |v| v.name == name)), wanted);
                        model.retain(|b, v| *b < start || *b >= end || v.name != name);
                    }
                    5 => {
                        // Also of a range that was put in as it is, if there is one.
                        let (start, count) = match map.iter().next() {
                            Some((at, length, _)) if random.random_bool(0.5) => (at, length),
                            _ => (start, count),
                        };
                        let wanted = |value: &Marked| value.name == name;
                        let changed = map.change(start, count, wanted, |value| value.name = 9);
                        let concerned = model.range_mut(start..start + count).filter(|(_, v)| v.name == name);
                        assert_eq!(changed, concerned.map(|(_, value)| value.name = 9).count() as u64);
                    }
                    _ => {
                        assert_eq!(blocks(map.pieces(start, count)), present);
                        let parts: u64 = map.parts(start, count).map(|(_, blocks, _)| blocks).sum();
                        assert_eq!(parts, present.len() as u64);
                        assert_eq!(map.overlaps(start, count), !present.is_empty());
                        let mut at = start;
                        let mut over = Vec::new();
                        for (first, length, value) in map.over(start, count) {
                            assert_eq!(first, at, "no part of the range is left out");
                            at += length;
                            over.extend(value.map(|value| Piece { start: first, count: length, value }));
                        }
                        assert_eq!(at, end);
                        assert_eq!(blocks(over), present);
                        assert_eq!(map.get(start).map(|(_, v)| v), model.get(&start).cloned());
                        assert_eq!(map.peek(start).map(|v| v.name), model.get(&start).map(|v| v.name));
                    }
                }
                check_shape(&map);
            }
        }
    }

    fn check_shape(map: &IntervalMap<Marked>) {
        let ranges: Vec<_> = map.iter().collect();
        assert_eq!(ranges.len(), map.len());
        for pair in ranges.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "ranges are disjoint and in order");
        }
    }

    #[test]
    fn neighbours_that_continue_each_other_are_one_range() {
        let mut map = IntervalMap::default();
        map.insert(2, 1, Marked { name: 1, offset: 2 });
        map.insert(0, 1, Marked { name: 1, offset: 0 });
        assert_eq!(map.len(), 2);
        map.insert(1, 1, Marked { name: 1, offset: 1 });
        assert_eq!(map.iter().collect::<Vec<_>>(), vec![(0, 3, &Marked { name: 1, offset: 0 })]);
    }

    #[test]
    fn a_huge_range_is_one_step() {
        let mut map = IntervalMap::default();
        map.insert(0, 1 << 51, Marked { name: 1, offset: 0 });
        map.insert(1 << 40, 1, Marked { name: 2, offset: 0 });
        assert_eq!(map.len(), 3);
        assert_eq!(map.over(0, 1 << 51).count(), 3);
        assert_eq!(map.remove(5, 1 << 50).len(), 3);
        assert_eq!(map.len(), 2);
    }
}
