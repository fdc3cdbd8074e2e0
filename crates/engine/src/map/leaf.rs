//! Where the 1024 blocks of one leaf are.
//! Promises: runs are sorted, disjoint and as long as they can be; what is decoded is as sound as what was
//! made here; merging edits takes one pass and tells everything that lost its place.
//! Leaves to others: edits not merged yet (`edits`), counting live units (`directory`).

use crate::buffer::Buffer;
use crate::formats::record::PageKind;
use crate::identity::{EgroupId, FamilyId, Generation};
use crate::limits::{EGROUP_UNITS, LEAF_BLOCKS};
use crate::map::page::{self, ContentFault, Fields, PageError, PageRole};

const BLOCKS: u32 = LEAF_BLOCKS as u32;
const UNITS: u32 = EGROUP_UNITS as u32;

// A run is packed into 32 bits: start, count - 1 and unit take 10 each.
const _: () = assert!(BLOCKS == 1 << 10 && UNITS <= 1 << 10);
const TEN_BITS: u32 = (1 << 10) - 1;

/// `count` blocks from `start` on are in consecutive units of one egroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub egroup: EgroupId,
    start: u16,
    count: u16,
    unit: u16,
}

impl Run {
    fn new(start: u32, count: u32, egroup: EgroupId, unit: u32) -> Self {
        assert!(count > 0 && start + count <= BLOCKS, "a run lies inside its leaf");
        assert!(is_inside(egroup, unit, count), "a run lies inside its egroup");
        Run { egroup, start: start as u16, count: count as u16, unit: unit as u16 }
    }

    /// The first block, counted from the begin of the leaf.
    pub fn start(&self) -> u32 {
        u32::from(self.start)
    }

    pub fn count(&self) -> u32 {
        u32::from(self.count)
    }

    /// The unit of the first block.
    pub fn unit(&self) -> u32 {
        u32::from(self.unit)
    }

    fn end(&self) -> u32 {
        self.start() + self.count()
    }

    /// The part of it in `start..end`, which it has blocks in common with.
    fn clip(&self, start: u32, end: u32) -> Run {
        let (first, end) = (self.start().max(start), self.end().min(end));
        let unit = if self.egroup.is_hole() { 0 } else { self.unit() + first - self.start() };
        Run::new(first, end - first, self.egroup, unit)
    }

    fn is_continued_by(&self, next: &Run) -> bool {
        self.egroup == next.egroup
            && self.end() == next.start()
            && (self.egroup.is_hole() || self.unit() + self.count() == next.unit())
    }
}

/// Holes have one unit, and as many blocks as it takes.
fn is_inside(egroup: EgroupId, unit: u32, count: u32) -> bool {
    if egroup.is_hole() { unit == 0 } else { unit + count <= UNITS }
}

/// `count` blocks from `start` (in the leaf) on are now here, or nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafEdit {
    pub start: u32,
    pub count: u32,
    pub place: Option<(EgroupId, u32)>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leaf {
    runs: Vec<Run>,
}

impl Leaf {
    /// All of it was trimmed in this generation.
    pub fn hole(generation: Generation) -> Leaf {
        Leaf { runs: vec![Run::new(0, BLOCKS, EgroupId::hole(generation), 0)] }
    }

    /// When it was trimmed, if nothing else is in it.
    pub fn as_hole(&self) -> Option<Generation> {
        match self.runs[..] {
            [run] if run.egroup.is_hole() && run.count() == BLOCKS => Some(Generation(run.egroup.0 as u32)),
            _ => None,
        }
    }

    /// Where `block` (counted from the begin of the leaf) is: egroup, unit, and for how many blocks the
    /// units go on in order.
    pub fn find(&self, block: u32) -> Option<(EgroupId, u32, u32)> {
        assert!(block < BLOCKS, "the block is in the leaf");
        let run = self.runs.get(self.runs.partition_point(|run| run.end() <= block))?;
        let from = block.checked_sub(run.start())?;
        let unit = if run.egroup.is_hole() { 0 } else { run.unit() + from };
        Some((run.egroup, unit, run.count() - from))
    }

    /// The range in order, gaps as None: first block, count, egroup and unit.
    pub fn over(&self, start: u32, count: u32) -> impl Iterator<Item = LeafEdit> + '_ {
        assert!(count > 0 && start + count <= BLOCKS, "the range lies in the leaf");
        let end = start + count;
        let mut index = self.runs.partition_point(|run| run.end() <= start);
        let mut at = start;
        std::iter::from_fn(move || {
            if at == end {
                return None;
            }
            let first = at;
            let run = self.runs.get(index).filter(|run| run.start() < end);
            let place = match run {
                Some(run) if run.start() <= first => {
                    let run = run.clip(first, end);
                    at = run.end();
                    index += 1;
                    Some((run.egroup, run.unit()))
                }
                next => {
                    at = next.map_or(end, |run| run.start());
                    None
                }
            };
            Some(LeafEdit { start: first, count: at - first, place })
        })
    }

    /// The leaf with these edits, which come in order and do not overlap. `removed` is told which blocks lost which
    /// place (also when the edit gives the same place again).
    pub fn merge(&self, edits: impl IntoIterator<Item = LeafEdit>, removed: &mut impl FnMut(Run)) -> Leaf {
        let mut merged = Leaf { runs: Vec::with_capacity(self.runs.len() + 8) };
        let mut old = self.runs.iter().copied();
        let mut current = old.next();
        let mut done = 0;
        for edit in edits {
            assert!(edit.count > 0 && edit.start >= done, "edits come in order and do not overlap");
            let end = edit.start + edit.count;
            assert!(end <= BLOCKS, "an edit lies in its leaf");
            done = end;
            while let Some(run) = current.filter(|run| run.start() < end) {
                if run.start() < edit.start {
                    merged.push(run.clip(0, edit.start));
                }
                if run.end() > edit.start {
                    removed(run.clip(edit.start, end));
                }
                current = if run.end() > end { Some(run.clip(end, BLOCKS)) } else { old.next() };
            }
            if let Some((egroup, unit)) = edit.place {
                merged.push(Run::new(edit.start, edit.count, egroup, unit));
            }
        }
        current.into_iter().chain(old).for_each(|run| merged.push(run));
        merged.runs.shrink_to_fit();
        merged
    }

    /// One edit; see `merge`.
    pub fn set(
        &mut self,
        start: u32,
        count: u32,
        place: Option<(EgroupId, u32)>,
        removed: &mut impl FnMut(Run),
    ) {
        *self = self.merge([LeafEdit { start, count, place }], removed);
    }

    fn push(&mut self, run: Run) {
        match self.runs.last_mut() {
            Some(last) if last.is_continued_by(&run) => last.count += run.count,
            last => {
                assert!(last.is_none_or(|last| last.end() <= run.start()), "runs are disjoint and in order");
                self.runs.push(run);
            }
        }
    }

    /// How many blocks have a place.
    pub fn mapped(&self) -> u32 {
        self.runs.iter().map(Run::count).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The runs in order.
    pub fn iter(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter()
    }

    /// Bytes of memory it takes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.runs.capacity() * size_of::<Run>()
    }

    /// As a page of 1 to 4 units. Blocks written at random lie in few egroups, so these are told once.
    pub fn encode(&self, number: u64, family: FamilyId) -> Buffer {
        let mut egroups: Vec<EgroupId> = self.runs.iter().map(|run| run.egroup).collect();
        egroups.sort_unstable();
        egroups.dedup();
        let mut payload = Vec::with_capacity(4 + egroups.len() * 8 + self.runs.len() * 6);
        payload.extend((self.runs.len() as u16).to_le_bytes());
        payload.extend((egroups.len() as u16).to_le_bytes());
        for egroup in &egroups {
            payload.extend(egroup.0.to_le_bytes());
        }
        self.encode_runs(&egroups, &mut payload);
        page::encode(PageRole::Page(PageKind::Leaf), number, family, &payload)
    }

    /// The runs, with their egroups as indexes into this sorted table.
    pub(super) fn encode_runs(&self, egroups: &[EgroupId], payload: &mut Vec<u8>) {
        for run in &self.runs {
            let index = egroups.binary_search(&run.egroup).expect("every run's egroup is in the table");
            payload.extend((run.start() | (run.count() - 1) << 10 | run.unit() << 20).to_le_bytes());
            payload.extend((index as u16).to_le_bytes());
        }
    }

    /// What `encode` made of leaf `number` of this family, or why `page` is not that.
    pub fn decode(page: &[u8], number: u64, family: FamilyId) -> Result<Leaf, PageError> {
        let payload = page::decode(page, PageRole::Page(PageKind::Leaf), number, family)?;
        Ok(Self::decode_payload(payload)?)
    }

    fn decode_payload(payload: &[u8]) -> Result<Leaf, ContentFault> {
        let mut fields = Fields::of(payload);
        let (run_count, egroup_count) = (fields.u16()?, fields.u16()?);
        if u32::from(run_count) > BLOCKS || egroup_count > run_count {
            return Err(ContentFault::Range);
        }
        let mut egroups = Vec::with_capacity(egroup_count.into());
        for _ in 0..egroup_count {
            egroups.push(EgroupId(fields.u64()?));
        }
        if !egroups.is_sorted_by(|a, b| a < b) {
            return Err(ContentFault::Order);
        }
        let leaf = Self::decode_runs(run_count.into(), &egroups, &mut fields)?;
        fields.end()?;
        let mut named = vec![false; egroups.len()];
        for run in &leaf.runs {
            named[egroups.binary_search(&run.egroup).expect("runs name egroups of the table")] = true;
        }
        if named.contains(&false) {
            return Err(ContentFault::NotShortest);
        }
        Ok(leaf)
    }

    /// What `encode_runs` wrote.
    pub(super) fn decode_runs(
        run_count: u32,
        egroups: &[EgroupId],
        fields: &mut Fields,
    ) -> Result<Leaf, ContentFault> {
        if run_count > BLOCKS {
            return Err(ContentFault::Range);
        }
        let mut runs: Vec<Run> = Vec::with_capacity(run_count as usize);
        for _ in 0..run_count {
            let (packed, index) = (fields.u32()?, usize::from(fields.u16()?));
            let (start, count) = (packed & TEN_BITS, (packed >> 10 & TEN_BITS) + 1);
            let unit = packed >> 20;
            let egroup = *egroups.get(index).ok_or(ContentFault::Range)?;
            if start + count > BLOCKS || !is_inside(egroup, unit, count) {
                return Err(ContentFault::Range);
            }
            let run = Run::new(start, count, egroup, unit);
            match runs.last() {
                Some(last) if last.end() > run.start() => return Err(ContentFault::Order),
                Some(last) if last.is_continued_by(&run) => return Err(ContentFault::NotShortest),
                _ => {}
            }
            runs.push(run);
        }
        Ok(Leaf { runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Epoch, Generation};
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use std::collections::BTreeMap;

    const FAMILY: FamilyId = FamilyId(3);

    fn named(counter: u32) -> EgroupId {
        EgroupId::new(Epoch(1), counter)
    }

    #[test]
    fn a_hole_is_one_run_however_long_and_whatever_is_cut_from_it() {
        let hole = EgroupId::hole(Generation(7));
        let mut leaf = Leaf::default();
        leaf.set(0, 500, Some((hole, 0)), &mut |_| {});
        leaf.set(500, 524, Some((hole, 0)), &mut |_| {});
        assert_eq!(leaf.iter().count(), 1);
        assert_eq!(leaf.find(1000), Some((hole, 0, 24)));
        let mut lost = Vec::new();
        leaf.set(100, 3, Some((named(1), 5)), &mut |run| lost.push((run.egroup, run.start(), run.unit())));
        assert_eq!(lost, [(hole, 100, 0)]);
        assert_eq!(leaf.iter().count(), 3);
        let page = leaf.encode(9, FAMILY);
        assert_eq!(Leaf::decode(page.bytes(), 9, FAMILY), Ok(leaf));
    }

    type Model = BTreeMap<u32, (EgroupId, u32)>;

    fn random_edits(random: &mut SmallRng, longest: u32) -> Vec<LeafEdit> {
        let mut edits = Vec::new();
        let mut at = 0;
        loop {
            let start = at + random.random_range(0..=2 * longest);
            let count = random.random_range(1..=longest);
            if start + count > BLOCKS {
                return edits;
            }
            let place = random.random_bool(0.7).then(|| {
                let unit = if random.random_bool(0.5) {
                    start % 512
                } else {
                    random.random_range(0..=UNITS - count)
                };
                (named(random.random_range(0..4)), unit)
            });
            edits.push(LeafEdit { start, count, place });
            at = start + count;
        }
    }

    fn apply(model: &mut Model, edit: &LeafEdit, lost: &mut BTreeMap<EgroupId, u32>) {
        for i in 0..edit.count {
            let old = match edit.place {
                Some((egroup, unit)) => model.insert(edit.start + i, (egroup, unit + i)),
                None => model.remove(&(edit.start + i)),
            };
            if let Some((egroup, _)) = old {
                *lost.entry(egroup).or_default() += 1;
            }
        }
    }

    fn compare(leaf: &Leaf, model: &Model, random: &mut SmallRng) {
        assert_eq!(leaf.mapped() as usize, model.len());
        let runs: Vec<_> = leaf.iter().collect();
        assert!(!runs.windows(2).any(|pair| pair[0].is_continued_by(pair[1])), "runs are as long as can be");
        for block in 0..BLOCKS {
            let found = leaf.find(block);
            assert_eq!(found.map(|(egroup, unit, _)| (egroup, unit)), model.get(&block).copied());
            if let Some((egroup, unit, more)) = found {
                assert_eq!(model[&(block + more - 1)], (egroup, unit + more - 1));
            }
        }
        let start = random.random_range(0..BLOCKS);
        let count = random.random_range(1..=BLOCKS - start);
        let mut at = start;
        for piece in leaf.over(start, count) {
            assert_eq!(piece.start, at);
            assert!(piece.count > 0);
            for i in 0..piece.count {
                let told = piece.place.map(|(egroup, unit)| (egroup, unit + i));
                assert_eq!(told, model.get(&(at + i)).copied());
            }
            at += piece.count;
        }
        assert_eq!(at, start + count);
    }

    #[test]
    fn it_agrees_with_one_entry_per_block_under_random_input() {
        let mut random = SmallRng::seed_from_u64(5);
        for _ in 0..20 {
            let (mut leaf, mut model) = (Leaf::default(), Model::new());
            for _ in 0..30 {
                let longest = [1, 8, 300][random.random_range(0..3)];
                let edits = random_edits(&mut random, longest);
                let (mut lost, mut told) = (BTreeMap::new(), BTreeMap::new());
                for edit in &edits {
                    apply(&mut model, edit, &mut lost);
                }
                leaf = leaf.merge(edits, &mut |run| {
                    *told.entry(run.egroup).or_default() += run.count();
                });
                assert_eq!(told, lost);
                compare(&leaf, &model, &mut random);
                let page = leaf.encode(9, FAMILY);
                assert_eq!(Leaf::decode(page.bytes(), 9, FAMILY), Ok(leaf.clone()));
            }
        }
    }

    #[test]
    fn the_largest_leaf_fits_into_a_page() {
        let mut lost = |_| panic!("nothing was mapped before");
        let edits = (0..BLOCKS).map(|i| LeafEdit { start: i, count: 1, place: Some((named(i), 0)) });
        let leaf = Leaf::default().merge(edits, &mut lost);
        let page = leaf.encode(0, FAMILY);
        assert_eq!(page.blocks(), 4);
        assert_eq!(Leaf::decode(page.bytes(), 0, FAMILY), Ok(leaf));
        assert_eq!(Leaf::default().encode(0, FAMILY).blocks(), 1);
    }

    #[test]
    fn a_single_edit_tells_what_it_replaced() {
        let mut leaf = Leaf::default();
        leaf.set(0, 100, Some((named(1), 10)), &mut |_| panic!("nothing was mapped before"));
        let mut lost = Vec::new();
        leaf.set(40, 10, None, &mut |run| lost.push((run.egroup.0, run.start(), run.count())));
        assert_eq!(lost, [(named(1).0, 40, 10)]);
        assert_eq!((leaf.find(39), leaf.find(40)), (Some((named(1), 49, 1)), None));
    }

    fn payload(runs: &[(u32, u32, u32, u16)], egroups: &[u64]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((runs.len() as u16).to_le_bytes());
        bytes.extend((egroups.len() as u16).to_le_bytes());
        egroups.iter().for_each(|egroup| bytes.extend((1 << 32 | egroup).to_le_bytes()));
        for (start, count, unit, index) in runs {
            bytes.extend((start | (count - 1) << 10 | unit << 20).to_le_bytes());
            bytes.extend(index.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn odd_content_is_refused_by_what_is_odd() {
        use ContentFault::*;
        let refused = |runs: &[_], egroups: &[_]| Leaf::decode_payload(&payload(runs, egroups)).err();
        assert_eq!(refused(&[(0, 2, 0, 0), (2, 1, 3, 0)], &[1]), None);
        assert_eq!(refused(&[(0, 2, 0, 0), (1, 1, 3, 0)], &[1]), Some(Order), "overlap");
        assert_eq!(refused(&[(5, 2, 0, 0), (1, 1, 3, 0)], &[1]), Some(Order), "unsorted");
        assert_eq!(refused(&[(0, 2, 0, 0), (2, 1, 2, 0)], &[1]), Some(NotShortest), "not joined");
        assert_eq!(refused(&[(0, 1, 960, 0)], &[1]), Some(Range), "no such unit");
        assert_eq!(refused(&[(0, 2, 959, 0)], &[1]), Some(Range), "beyond the egroup");
        assert_eq!(refused(&[(1023, 2, 0, 0)], &[1]), Some(Range), "beyond the leaf");
        assert_eq!(refused(&[(0, 1, 1 << 10, 0)], &[1]), Some(Range), "spare bits");
        assert_eq!(refused(&[(0, 1, 0, 1)], &[1]), Some(Range), "no such egroup");
        assert_eq!(refused(&[(0, 1, 0, 0), (1, 1, 0, 1)], &[2, 1]), Some(Order), "egroups unsorted");
        assert_eq!(refused(&[(0, 1, 0, 0), (1, 1, 0, 0)], &[1, 2]), Some(NotShortest), "unused egroup");
        let mut long = payload(&[(0, 1, 0, 0)], &[1]);
        long.push(0);
        assert_eq!(Leaf::decode_payload(&long), Err(Length));
        for len in 0..long.len() - 1 {
            assert_eq!(Leaf::decode_payload(&long[..len]), Err(Length), "cut after {len} bytes");
        }
    }

    #[test]
    fn decoding_random_bytes_ends_in_an_answer() {
        let mut random = SmallRng::seed_from_u64(11);
        for _ in 0..20_000 {
            let mut bytes = payload(&[(0, 2, 0, 0), (2, 1, 3, 1), (9, 100, 500, 1)], &[1, 2]);
            for _ in 0..random.random_range(1..4) {
                let place = random.random_range(0..bytes.len());
                bytes[place] = random.random();
            }
            if let Ok(leaf) = Leaf::decode_payload(&bytes) {
                let page = leaf.encode(0, FAMILY);
                assert_eq!(Leaf::decode(page.bytes(), 0, FAMILY), Ok(leaf));
            }
        }
    }
}
