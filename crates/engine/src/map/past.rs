//! Where blocks of a leaf were when snapshots were taken, if the present has them elsewhere or not at all.
//! Promises: a unit is told of in the leaf of the present or in one page of the past, never in two places; every snapshot
//! finds each block at most once.
//! Leaves to others: what the present holds (`leaf`), when something becomes past or is forgotten (`checkpoint`).
//!
//! A page holds groups. What is in the group of generation g is seen by snapshot g, and by earlier ones back to the
//! generation of the egroup that it lies in; the snapshot after g does not see it. A leaf has as many pages of the past as it
//! takes; they are counted, and the index keeps the generations of the first and last group of each.

use crate::buffer::Buffer;
use crate::formats::record::PageKind;
use crate::identity::{EgroupId, FamilyId, Generation};
use crate::limits::LEAF_BLOCKS;
use crate::map::leaf::{Leaf, LeafEdit, Run};
use crate::map::page::{self, ContentFault, Fields, PAYLOAD_MAX, PageError, PageRole};
use std::collections::BTreeMap;

/// A page number is the page's number in its leaf, then the number of the leaf in so many bits.
const LEAF_BITS: u32 = 41;
/// Pages of the past that a leaf can have had.
pub const PAGES_MAX: u32 = 1 << 22;

const _: () = assert!(crate::limits::VDISK_BYTES_MAX >> 12 >> 10 < 1 << LEAF_BITS, "every leaf has a number");
const _: () = assert!(LEAF_BLOCKS == 1 << 10);

/// The number of page `page` of the past of this leaf.
pub fn page_number(leaf: u64, page: u32) -> u64 {
    assert!(leaf < 1 << LEAF_BITS && page < PAGES_MAX, "leaves and their pages have limits");
    u64::from(page) << LEAF_BITS | leaf
}

/// The leaf that a page of this number tells of.
pub fn leaf_of(number: u64) -> u64 {
    number & ((1 << LEAF_BITS) - 1)
}

/// Which of the leaf's pages this number is.
pub fn page_of(number: u64) -> u32 {
    (number >> LEAF_BITS) as u32
}

/// The groups of one page, or of several that are put together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Past {
    groups: BTreeMap<Generation, Leaf>,
}

impl Past {
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The generations of the first and the last group.
    pub fn range(&self) -> Option<(Generation, Generation)> {
        Some((*self.groups.first_key_value()?.0, *self.groups.last_key_value()?.0))
    }

    /// Oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (Generation, &Leaf)> {
        self.groups.iter().map(|(generation, leaf)| (*generation, leaf))
    }

    /// Adds runs to the group of `generation`. They overlap neither each other nor what is there.
    pub fn add(&mut self, generation: Generation, mut runs: Vec<Run>) {
        if runs.is_empty() {
            return;
        }
        runs.sort_unstable_by_key(Run::start);
        let group = self.groups.entry(generation).or_default();
        let edits = runs.iter().map(|run| LeafEdit {
            start: run.start(),
            count: run.count(),
            place: Some((run.egroup, run.unit())),
        });
        *group = group.merge(edits, &mut |_| unreachable!("a snapshot sees a block in one place"));
    }

    /// Every group as `change` gives it.
    pub(super) fn map_groups(&self, mut change: impl FnMut(&Leaf) -> Leaf) -> Past {
        let groups = self.groups.iter().map(|(generation, group)| (*generation, change(group)));
        Past { groups: groups.collect() }
    }

    /// Takes a group away.
    pub fn take(&mut self, generation: Generation) -> Option<Leaf> {
        self.groups.remove(&generation)
    }

    /// Whether the unit is told of as the place of this block of the leaf.
    pub fn tells_of(&self, block: u32, egroup: EgroupId, unit: u32) -> bool {
        let is_there = |group: &Leaf| group.find(block).is_some_and(|(of, at, _)| of == egroup && at == unit);
        self.groups.values().any(is_there)
    }

    /// Adds what snapshot `at` sees of this to `view`, which has nothing for these blocks yet.
    pub fn show(&self, at: Generation, born: impl Fn(EgroupId) -> Option<Generation>, view: &mut Vec<Run>) {
        for (_, group) in self.groups.range(at..) {
            view.extend(group.iter().filter(|run| born(run.egroup).is_some_and(|born| born <= at)));
        }
    }

    /// As few pages as it takes. Groups share one if it stays within so many bytes.
    pub fn into_pages(self, bytes_max: usize) -> Vec<Past> {
        let mut pages: Vec<Past> = Vec::new();
        for (generation, group) in self.groups {
            let mut alone = Past::default();
            alone.groups.insert(generation, group);
            match pages.last_mut() {
                Some(last) if last.payload_bytes_with(&alone) <= bytes_max.min(PAYLOAD_MAX) => {
                    last.groups.append(&mut alone.groups);
                }
                _ => pages.push(alone),
            }
        }
        pages
    }

    /// An upper bound of the bytes of a page with both.
    fn payload_bytes_with(&self, other: &Past) -> usize {
        let mut bytes = 4;
        for group in self.groups.values().chain(other.groups.values()) {
            bytes += 8 + 6 * group.iter().count();
        }
        bytes + 8 * self.egroups().len() + 8 * other.egroups().len()
    }

    fn egroups(&self) -> Vec<EgroupId> {
        let mut egroups: Vec<EgroupId> =
            self.groups.values().flat_map(|group| group.iter().map(|run| run.egroup)).collect();
        egroups.sort_unstable();
        egroups.dedup();
        egroups
    }

    /// Bytes of memory it takes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.groups.values().map(|group| group.bytes() + 48).sum::<usize>()
    }

    /// As a page of 1 to 4 units.
    pub fn encode(&self, number: u64, family: FamilyId) -> Buffer {
        let egroups = self.egroups();
        let mut payload = Vec::new();
        payload.extend((self.groups.len() as u16).to_le_bytes());
        payload.extend((egroups.len() as u16).to_le_bytes());
        for egroup in &egroups {
            payload.extend(egroup.0.to_le_bytes());
        }
        for (generation, group) in &self.groups {
            payload.extend(generation.0.to_le_bytes());
            payload.extend((group.iter().count() as u32).to_le_bytes());
            group.encode_runs(&egroups, &mut payload);
        }
        page::encode(PageRole::Page(PageKind::Past), number, family, &payload)
    }

    /// What `encode` made as page `number` of this family, or why `page` is not that.
    pub fn decode(page: &[u8], number: u64, family: FamilyId) -> Result<Past, PageError> {
        let payload = page::decode(page, PageRole::Page(PageKind::Past), number, family)?;
        let mut fields = Fields::of(payload);
        let (group_count, egroup_count) = (fields.u16()?, fields.u16()?);
        let mut egroups = Vec::with_capacity(egroup_count.into());
        for _ in 0..egroup_count {
            egroups.push(EgroupId(fields.u64()?));
        }
        if !egroups.is_sorted_by(|a, b| a < b) {
            return Err(ContentFault::Order.into());
        }
        let mut past = Past::default();
        for _ in 0..group_count {
            let (generation, runs) = (Generation(fields.u32()?), fields.u32()?);
            if past.groups.last_key_value().is_some_and(|(last, _)| *last >= generation) {
                return Err(ContentFault::Order.into());
            }
            let group = Leaf::decode_runs(runs, &egroups, &mut fields)?;
            if group.is_empty() {
                return Err(ContentFault::NotShortest.into());
            }
            past.groups.insert(generation, group);
        }
        fields.end()?;
        if past.is_empty() || past.egroups() != egroups {
            return Err(ContentFault::NotShortest.into());
        }
        Ok(past)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::BLOCK;
    use rand::rngs::SmallRng;
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng};

    const FAMILY: FamilyId = FamilyId(3);

    fn run(start: u32, count: u32, egroup: u64, unit: u32) -> Run {
        let mut leaf = Leaf::default();
        leaf.set(start, count, Some((EgroupId(1 << 32 | egroup), unit)), &mut |_| {});
        *leaf.iter().next().expect("one run was put in")
    }

    #[test]
    fn any_past_is_cut_into_pages_that_come_back() {
        let mut random = SmallRng::seed_from_u64(4);
        for round in 0..12 {
            let mut past = Past::default();
            for generation in 0..random.random_range(1..30) {
                let mut starts: Vec<u32> = (0..1024).collect();
                starts.shuffle(&mut random);
                starts.truncate(if round % 3 == 0 { 1024 } else { random.random_range(1..60) });
                let runs = starts
                    .iter()
                    .map(|&start| run(start, 1, random.random_range(0..5000), random.random_range(0..960)));
                past.add(Generation(generation), runs.collect());
            }
            let wanted = past.clone();
            let mut together = Past::default();
            let mut last = None;
            for (index, page) in past.into_pages(PAYLOAD_MAX).into_iter().enumerate() {
                let number = page_number(77, index as u32);
                assert_eq!((leaf_of(number), page_of(number)), (77, index as u32));
                let bytes = page.encode(number, FAMILY);
                assert!(bytes.len() <= 4 * BLOCK);
                assert_eq!(Past::decode(bytes.bytes(), number, FAMILY), Ok(page.clone()));
                assert!(Past::decode(bytes.bytes(), number + 1, FAMILY).is_err());
                let (first, end) = page.range().expect("a page has groups");
                assert!(last < Some(first));
                last = Some(end);
                together.groups.extend(page.groups);
            }
            assert_eq!(together, wanted);
        }
    }

    #[test]
    fn a_snapshot_sees_what_was_born_before_it_and_was_there_at_its_end() {
        let mut past = Past::default();
        // Egroups are named by their generation here.
        past.add(Generation(2), vec![run(0, 1, 1, 0), run(1, 1, 2, 0)]);
        past.add(Generation(5), vec![run(0, 1, 4, 0)]);
        let shown = |at| {
            let mut view = Vec::new();
            past.show(Generation(at), |egroup| Some(Generation(egroup.0 as u32)), &mut view);
            view.iter().map(|run| (run.start(), run.egroup.0 as u32)).collect::<Vec<_>>()
        };
        assert_eq!(shown(0), []);
        assert_eq!(shown(1), [(0, 1)]);
        assert_eq!(shown(2), [(0, 1), (1, 2)]);
        assert_eq!(shown(3), []);
        assert_eq!(shown(4), [(0, 4)]);
        assert_eq!(shown(6), []);
    }

    #[test]
    #[should_panic(expected = "a snapshot sees a block in one place")]
    fn a_block_is_in_a_group_once() {
        let mut past = Past::default();
        past.add(Generation(2), vec![run(0, 2, 1, 0)]);
        past.add(Generation(2), vec![run(1, 1, 2, 0)]);
    }
}
