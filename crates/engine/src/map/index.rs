//! Where the pages of a family's map are: the page index, kept in memory whole.
//! Promises: it knows at any time what a checkpoint has to write again, how many units of each map egroup are
//! still in use, and what lies in an egroup that is to be emptied.
//! Leaves to others: writing pages and naming the index pages in the checkpoint record (`checkpoint`). What is
//! said here to be free may be deleted only when that record is durable: the one before still names it.
//!
//! Pages are counted in chunks; the places of a chunk's pages make one index page of one unit.

use crate::buffer::{BLOCK, Buffer};
use crate::formats::record::{IndexPlace, PageKind, PagePlace};
use crate::identity::{EgroupId, FamilyId, Generation};
use crate::limits::EGROUP_UNITS;
use crate::map::page::{self, ContentFault, Fields, PAGE_UNITS_MAX, PageError, PageRole};
use crate::map::past;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Pages whose places one index page tells.
pub const fn chunk_pages(kind: PageKind) -> u64 {
    match kind {
        PageKind::Leaf | PageKind::Directory => 256,
        // Their entries are longer.
        PageKind::Past => 128,
    }
}

/// The highest page number: more than the blocks of the largest vDisk, or all egroups, need. (It keeps sums
/// with page numbers from a damaged page inside 64 bits.)
const NUMBER_MAX: u64 = (1 << 63) - 1;

#[derive(Debug, Default)]
pub struct PageIndex {
    pages: BTreeMap<(PageKind, u64), PagePlace>,
    /// Of pages of the past, by leaf and number in it, the generations of the first and last group.
    past: BTreeMap<(u64, u32), (Generation, Generation)>,
    /// The index pages written last.
    chunks: BTreeMap<(PageKind, u64), PagePlace>,
    /// Chunks that differ from their index page.
    changed: BTreeSet<(PageKind, u64)>,
    /// The same places by egroup, index pages included.
    inside: BTreeSet<(EgroupId, PageRole, u64)>,
    live_units: BTreeMap<EgroupId, u32>,
}

impl PageIndex {
    /// Where the page is; None: it does not exist, and tells nothing.
    pub fn get(&self, kind: PageKind, number: u64) -> Option<PagePlace> {
        self.pages.get(&(kind, number)).copied()
    }

    /// The page is here now. Gives where it was.
    pub fn set(&mut self, kind: PageKind, number: u64, place: PagePlace) -> Option<PagePlace> {
        assert!(kind != PageKind::Past, "a page of the past is set with its generations");
        self.put(kind, number, place)
    }

    /// Like `set`, for a page of the past with groups from `range.0` to `range.1`.
    pub fn set_past(
        &mut self,
        number: u64,
        place: PagePlace,
        range: (Generation, Generation),
    ) -> Option<PagePlace> {
        self.past.insert((past::leaf_of(number), past::page_of(number)), range);
        self.put(PageKind::Past, number, place)
    }

    fn put(&mut self, kind: PageKind, number: u64, place: PagePlace) -> Option<PagePlace> {
        assert!(number <= NUMBER_MAX, "page numbers have a limit");
        check_place(&place).expect("a page lies inside its egroup");
        let old = self.pages.insert((kind, number), place);
        self.moved(PageRole::Page(kind), number, old, Some(place));
        self.changed.insert((kind, number / chunk_pages(kind)));
        old
    }

    /// The pages of the past of this leaf, oldest first, with the generations of their first and last group.
    pub fn past_of(
        &self,
        leaf: u64,
    ) -> impl Iterator<Item = (u64, PagePlace, (Generation, Generation))> + '_ {
        self.past.range((leaf, 0)..=(leaf, u32::MAX)).map(|(&(leaf, page), &range)| {
            let number = past::page_number(leaf, page);
            (number, self.pages[&(PageKind::Past, number)], range)
        })
    }

    /// Leaves from `leaf` on, in order, that have pages with groups of about these generations, once for each page; perhaps also
    /// others.
    pub fn leaves_with_past<'a>(
        &'a self,
        leaf: u64,
        generations: &'a BTreeSet<Generation>,
    ) -> impl Iterator<Item = u64> + 'a {
        let touched =
            |(first, last): &(Generation, Generation)| generations.range(first..=last).next().is_some();
        self.past.range((leaf, 0)..).filter(move |(_, range)| touched(range)).map(|((leaf, _), _)| *leaf)
    }

    /// The page tells nothing any more. Gives where it was.
    pub fn remove(&mut self, kind: PageKind, number: u64) -> Option<PagePlace> {
        let old = self.pages.remove(&(kind, number))?;
        if kind == PageKind::Past {
            self.past.remove(&(past::leaf_of(number), past::page_of(number)));
        }
        self.moved(PageRole::Page(kind), number, Some(old), None);
        self.changed.insert((kind, number / chunk_pages(kind)));
        Some(old)
    }

    /// The numbers of the pages of this kind in a range of numbers, in order.
    pub fn existing(&self, kind: PageKind, range: Range<u64>) -> Vec<u64> {
        if range.is_empty() {
            return Vec::new();
        }
        self.pages.range((kind, range.start)..(kind, range.end)).map(|((_, number), _)| *number).collect()
    }

    /// All pages in order of kind and number.
    pub fn iter(&self) -> impl Iterator<Item = (PageKind, u64, PagePlace)> + '_ {
        self.pages.iter().map(|(&(kind, number), &place)| (kind, number, place))
    }

    /// How many pages there are, index pages not counted.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The chunks whose index page has to be written again.
    pub fn changed_chunks(&self) -> Vec<(PageKind, u64)> {
        self.changed.iter().copied().collect()
    }

    /// Has the chunk's index page written again, though nothing in it changed: to empty the egroup it is in.
    pub fn touch_chunk(&mut self, kind: PageKind, chunk: u64) {
        assert!(self.chunks.contains_key(&(kind, chunk)), "only what was written can be written again");
        self.changed.insert((kind, chunk));
    }

    /// The index page of the chunk as it is now, one unit; None if no page is left in it.
    pub fn encode_chunk(&self, kind: PageKind, chunk: u64, family: FamilyId) -> Option<Buffer> {
        let first = chunk * chunk_pages(kind);
        let mut payload = Vec::new();
        for (&(_, number), place) in self.pages.range((kind, first)..(kind, first + chunk_pages(kind))) {
            payload.push((number - first) as u8);
            payload.push(place.units as u8);
            payload.extend((place.unit as u16).to_le_bytes());
            payload.extend(place.egroup.0.to_le_bytes());
            if kind == PageKind::Past {
                let (first, last) = self.past[&(past::leaf_of(number), past::page_of(number))];
                payload.extend(first.0.to_le_bytes());
                payload.extend(last.0.to_le_bytes());
            }
        }
        if payload.is_empty() {
            return None;
        }
        let page = page::encode(PageRole::Index(kind), chunk, family, &payload);
        assert_eq!(page.len(), BLOCK, "an index page is one unit");
        Some(page)
    }

    /// The chunk's index page, as encoded last, gets this place (None: the chunk is empty and has no page).
    /// It counts as written from here on. Gives where it was.
    pub fn set_chunk(&mut self, kind: PageKind, chunk: u64, place: Option<PagePlace>) -> Option<PagePlace> {
        let old = match place {
            Some(place) => {
                assert_eq!(place.units, 1, "an index page is one unit");
                check_place(&place).expect("a page lies inside its egroup");
                self.chunks.insert((kind, chunk), place)
            }
            None => {
                let range = chunk * chunk_pages(kind)..(chunk + 1) * chunk_pages(kind);
                assert!(self.existing(kind, range).is_empty(), "only an empty chunk has no index page");
                self.chunks.remove(&(kind, chunk))
            }
        };
        self.moved(PageRole::Index(kind), chunk, old, place);
        self.changed.remove(&(kind, chunk));
        old
    }

    /// The index pages written last, in order: what a checkpoint record tells.
    pub fn chunks(&self) -> Vec<IndexPlace> {
        self.chunks.iter().map(|(&(kind, number), &place)| IndexPlace { kind, number, place }).collect()
    }

    /// Takes in an index page that a checkpoint record names, when a family is opened. On an error nothing
    /// has changed.
    pub fn load_chunk(&mut self, named: &IndexPlace, page: &[u8], family: FamilyId) -> Result<(), PageError> {
        let (kind, chunk) = (named.kind, named.number);
        if chunk >= NUMBER_MAX / chunk_pages(kind) {
            return Err(ContentFault::Range.into());
        }
        assert!(!self.chunks.contains_key(&(kind, chunk)), "an index page is read once");
        let payload = page::decode(page, PageRole::Index(kind), chunk, family)?;
        let places = decode_places(kind, payload)?;
        for (slot, place, range) in places {
            let number = chunk * chunk_pages(kind) + u64::from(slot);
            let old = match kind {
                PageKind::Past => self.set_past(number, place, range),
                PageKind::Leaf | PageKind::Directory => self.set(kind, number, place),
            };
            assert!(old.is_none(), "each page is in one chunk");
        }
        self.set_chunk(kind, chunk, Some(named.place));
        Ok(())
    }

    /// Units of the egroup that hold pages or index pages still in use.
    pub fn live_units(&self, egroup: EgroupId) -> u32 {
        self.live_units.get(&egroup).copied().unwrap_or(0)
    }

    /// The egroups with pages in use, and how many units those take.
    pub fn egroups(&self) -> impl Iterator<Item = (EgroupId, u32)> + '_ {
        self.live_units.iter().map(|(egroup, units)| (*egroup, *units))
    }

    /// The pages in use in this egroup: written elsewhere, they (and `chunks_in`) leave it empty.
    pub fn pages_in(&self, egroup: EgroupId) -> Vec<(PageKind, u64)> {
        self.roles_in(egroup)
            .filter_map(|(role, number)| match role {
                PageRole::Page(kind) => Some((kind, number)),
                PageRole::Index(_) => None,
            })
            .collect()
    }

    /// The chunks whose index page is in this egroup.
    pub fn chunks_in(&self, egroup: EgroupId) -> Vec<(PageKind, u64)> {
        self.roles_in(egroup)
            .filter_map(|(role, number)| match role {
                PageRole::Index(kind) => Some((kind, number)),
                PageRole::Page(_) => None,
            })
            .collect()
    }

    fn roles_in(&self, egroup: EgroupId) -> impl Iterator<Item = (PageRole, u64)> + '_ {
        let (low, high) = (PageRole::Page(PageKind::Leaf), PageRole::Index(PageKind::Directory));
        self.inside
            .range((egroup, low, 0)..=(egroup, high, u64::MAX))
            .map(|(_, role, number)| (*role, *number))
    }

    /// Keeps the view by egroup in step.
    fn moved(&mut self, role: PageRole, number: u64, old: Option<PagePlace>, new: Option<PagePlace>) {
        if let Some(old) = old {
            let known = self.inside.remove(&(old.egroup, role, number));
            assert!(known, "the old place was counted");
            let units = self.live_units.get_mut(&old.egroup).expect("the old place was counted");
            *units -= old.units;
            if *units == 0 {
                self.live_units.remove(&old.egroup);
            }
        }
        if let Some(new) = new {
            self.inside.insert((new.egroup, role, number));
            *self.live_units.entry(new.egroup).or_default() += new.units;
        }
    }
}

fn check_place(place: &PagePlace) -> Result<(), ContentFault> {
    let sound = (1..=PAGE_UNITS_MAX).contains(&place.units)
        && place.unit < EGROUP_UNITS as u32
        && place.unit + place.units <= EGROUP_UNITS as u32;
    if sound { Ok(()) } else { Err(ContentFault::Range) }
}

type PlaceEntry = (u8, PagePlace, (Generation, Generation));

/// Slot in the chunk, place, and generations of pages of the past (of others 0), in order.
fn decode_places(kind: PageKind, payload: &[u8]) -> Result<Vec<PlaceEntry>, ContentFault> {
    let entry = if kind == PageKind::Past { 20 } else { 12 };
    if payload.is_empty() || !payload.len().is_multiple_of(entry) {
        return Err(ContentFault::Length);
    }
    let mut fields = Fields::of(payload);
    let mut places: Vec<PlaceEntry> = Vec::with_capacity(payload.len() / entry);
    for _ in 0..payload.len() / entry {
        let (slot, units, unit) = (fields.u8()?, fields.u8()?, fields.u16()?);
        let place = PagePlace { egroup: EgroupId(fields.u64()?), unit: unit.into(), units: units.into() };
        check_place(&place)?;
        if places.last().is_some_and(|(last, ..)| *last >= slot) {
            return Err(ContentFault::Order);
        }
        let mut range = (Generation(0), Generation(0));
        if kind == PageKind::Past {
            range = (Generation(fields.u32()?), Generation(fields.u32()?));
        }
        if range.0 > range.1 || u64::from(slot) >= chunk_pages(kind) {
            return Err(ContentFault::Range);
        }
        places.push((slot, place, range));
    }
    fields.end()?;
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    const FAMILY: FamilyId = FamilyId(4);
    const KINDS: [PageKind; 3] = [PageKind::Leaf, PageKind::Past, PageKind::Directory];

    fn random_place(random: &mut SmallRng, units: u32) -> PagePlace {
        let unit = random.random_range(0..=EGROUP_UNITS as u32 - units);
        PagePlace { egroup: EgroupId(random.random_range(1..6)), unit, units }
    }

    /// Counts everything anew and compares.
    fn compare(index: &PageIndex, model: &BTreeMap<(PageKind, u64), PagePlace>) {
        assert_eq!(index.len(), model.len());
        let all: BTreeMap<_, _> = index.iter().map(|(kind, number, place)| ((kind, number), place)).collect();
        assert_eq!(&all, model);
        let chunks = index.chunks();
        for egroup in (0..7).map(EgroupId) {
            let pages = model.iter().filter(|(_, place)| place.egroup == egroup);
            let tables = chunks.iter().filter(|chunk| chunk.place.egroup == egroup);
            let units: u32 =
                pages.clone().map(|(_, p)| p.units).chain(tables.clone().map(|c| c.place.units)).sum();
            assert_eq!(index.live_units(egroup), units);
            assert_eq!(index.egroups().any(|(e, _)| e == egroup), units > 0);
            assert_eq!(index.pages_in(egroup), pages.map(|(name, _)| *name).collect::<Vec<_>>());
            assert_eq!(index.chunks_in(egroup), tables.map(|c| (c.kind, c.number)).collect::<Vec<_>>());
        }
    }

    /// A checkpoint: writes what changed, and reads everything as an opening would.
    fn write_and_read_again(
        index: &mut PageIndex,
        written: &mut BTreeMap<PagePlace, Buffer>,
        random: &mut SmallRng,
    ) {
        for (kind, chunk) in index.changed_chunks() {
            let page = index.encode_chunk(kind, chunk, FAMILY);
            let place = page.as_ref().map(|_| {
                loop {
                    let place = random_place(random, 1);
                    if !written.contains_key(&place) {
                        break place;
                    }
                }
            });
            if let Some(old) = index.set_chunk(kind, chunk, place) {
                written.remove(&old).expect("it was written");
            }
            written.extend(place.zip(page));
        }
        assert!(index.changed_chunks().is_empty());
        assert_eq!(index.chunks().len(), written.len(), "only what is named is kept");
        let mut again = PageIndex::default();
        for named in index.chunks() {
            again.load_chunk(&named, written[&named.place].bytes(), FAMILY).expect("the page is sound");
        }
        assert!(again.changed_chunks().is_empty(), "what was read is not changed");
        assert_eq!(again.chunks(), index.chunks());
        compare(&again, &index.pages);
    }

    #[test]
    fn it_agrees_with_counting_anew_under_random_input_and_opens_as_it_was() {
        let mut random = SmallRng::seed_from_u64(13);
        for _ in 0..10 {
            let (mut index, mut model, mut written) =
                (PageIndex::default(), BTreeMap::new(), BTreeMap::new());
            for _ in 0..300 {
                let kind = KINDS[random.random_range(0..3)];
                let number = random.random_range(0..600) + if random.random_bool(0.1) { 1 << 40 } else { 0 };
                match random.random_range(0..20) {
                    0..12 => {
                        let units = random.random_range(1..=4);
                        let place = random_place(&mut random, units);
                        let old = if kind == PageKind::Past {
                            let range = (Generation(number as u32), Generation(number as u32 + 5));
                            index.set_past(number, place, range)
                        } else {
                            index.set(kind, number, place)
                        };
                        assert_eq!(old, model.insert((kind, number), place));
                        assert!(index.changed_chunks().contains(&(kind, number / chunk_pages(kind))));
                    }
                    12..17 => assert_eq!(index.remove(kind, number), model.remove(&(kind, number))),
                    17 => {
                        let wanted: Vec<u64> =
                            model.range((kind, 0)..(kind, number)).map(|(n, _)| n.1).collect();
                        assert_eq!(index.existing(kind, 0..number), wanted);
                    }
                    18 => write_and_read_again(&mut index, &mut written, &mut random),
                    _ => {
                        let chunks = index.chunks();
                        if let Some(chunk) = chunks.first() {
                            index.touch_chunk(chunk.kind, chunk.number);
                        }
                    }
                }
                assert_eq!(index.get(kind, number), model.get(&(kind, number)).copied());
                compare(&index, &model);
            }
        }
    }

    #[test]
    fn a_full_chunk_is_one_unit() {
        let mut index = PageIndex::default();
        for number in 256..512 {
            index.set(PageKind::Leaf, number, PagePlace { egroup: EgroupId(u64::MAX), unit: 956, units: 4 });
        }
        assert_eq!(index.changed_chunks(), [(PageKind::Leaf, 1)]);
        let page = index.encode_chunk(PageKind::Leaf, 1, FAMILY).expect("there are pages");
        assert_eq!(page.len(), BLOCK);
    }

    #[test]
    fn odd_content_is_refused() {
        let entry = |slot: u8, units: u8, unit: u16| {
            let mut bytes = vec![slot, units];
            bytes.extend(unit.to_le_bytes());
            bytes.extend(7_u64.to_le_bytes());
            bytes
        };
        let joined = |entries: &[Vec<u8>]| decode_places(PageKind::Leaf, &entries.concat()).err();
        assert_eq!(joined(&[entry(1, 1, 0), entry(2, 4, 956)]), None);
        assert_eq!(joined(&[entry(2, 1, 0), entry(1, 1, 0)]), Some(ContentFault::Order));
        assert_eq!(joined(&[entry(2, 1, 0), entry(2, 1, 0)]), Some(ContentFault::Order));
        for (units, unit) in [(0, 0), (5, 0), (1, 960), (4, 957), (1, 65_535)] {
            assert_eq!(joined(&[entry(0, units, unit)]), Some(ContentFault::Range));
        }
        assert_eq!(joined(&[entry(0, 1, 0)[..11].to_vec()]), Some(ContentFault::Length));
        assert_eq!(joined(&[]), Some(ContentFault::Length));
    }

    #[test]
    fn pages_of_the_past_are_found_by_leaf_and_by_generation() {
        let mut index = PageIndex::default();
        let place = |unit| PagePlace { egroup: EgroupId(9), unit, units: 1 };
        for (leaf, page, first, last) in [(5, 0, 1, 3), (5, 7, 4, 9), (6, 0, 2, 2), (1 << 40, 3, 9, 9)] {
            let range = (Generation(first), Generation(last));
            index.set_past(past::page_number(leaf, page), place(page), range);
        }
        let pages: Vec<_> =
            index.past_of(5).map(|(number, place, range)| (number, place.unit, range.1.0)).collect();
        assert_eq!(pages, [(past::page_number(5, 0), 0, 3), (past::page_number(5, 7), 7, 9)]);
        let leaves = |index: &PageIndex, from, generations: &[u32]| {
            let wanted: BTreeSet<Generation> = generations.iter().copied().map(Generation).collect();
            index.leaves_with_past(from, &wanted).collect::<Vec<_>>()
        };
        assert_eq!(leaves(&index, 0, &[2]), [5, 6]);
        assert_eq!(leaves(&index, 0, &[9]), [5, 1 << 40]);
        assert_eq!(leaves(&index, 6, &[2, 9]), [6, 1 << 40]);
        assert_eq!(leaves(&index, 0, &[]), [0; 0]);
        index.remove(PageKind::Past, past::page_number(5, 0));
        assert_eq!(index.past_of(5).count(), 1);
        assert_eq!(leaves(&index, 0, &[2]), [6]);
    }

    #[test]
    fn a_chunk_number_out_of_this_world_is_refused() {
        let place = PagePlace { egroup: EgroupId(1), unit: 0, units: 1 };
        let named = IndexPlace { kind: PageKind::Leaf, number: u64::MAX, place };
        let mut index = PageIndex::default();
        let refused = index.load_chunk(&named, &[], FAMILY);
        assert_eq!(refused, Err(PageError::Content(ContentFault::Range)));
        assert!(index.is_empty());
    }
}
