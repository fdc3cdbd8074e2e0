//! The egroups that hold a family's data: in which group, how large, and how many of their units are in use.
//! Promises: live units are never more than there are and never fewer than none; the emptiest egroups, those
//! of a group, and the pages a checkpoint has to write are found without a walk over all.
//! Leaves to others: egroups that hold pages (`index`), deleting and compacting (`checkpoint`, `curator`).
//!
//! A directory page tells 128 consecutive egroup numbers, those made one after the other by one owner.

use crate::buffer::{BLOCK, Buffer};
use crate::formats::recipe::Recipe;
use crate::formats::record::{NamedEgroup, PageKind};
use crate::identity::{EgroupId, FamilyId, Generation, GroupId};
use crate::limits::EGROUP_UNITS;
use crate::map::page::{self, ContentFault, Fields, PageError, PageRole};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// A page covers `1 << PAGE_SHIFT` egroup numbers.
const PAGE_SHIFT: u32 = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub group: GroupId,
    pub units: u32,
    /// Blocks that they take on a drive.
    pub stored: u32,
    /// Units that a block is mapped to, now or in a snapshot.
    pub live: u32,
    /// Those of them that only snapshots see.
    pub past: u32,
    pub recipe: Recipe,
    /// Of the data in it.
    pub generation: Generation,
}

impl Entry {
    /// The live share in units of 2^-24. Shares that differ at all differ here too: fractions with
    /// denominators up to 960 lie more than 2^-20 apart.
    fn share(&self) -> u32 {
        ((u64::from(self.live) << 24) / u64::from(self.units)) as u32
    }
}

/// What lies in one group.
#[derive(Debug, Default)]
struct InGroup {
    egroups: BTreeSet<EgroupId>,
    /// Blocks that they take on one member.
    stored: u64,
}

#[derive(Debug, Default)]
pub struct Directory {
    entries: BTreeMap<EgroupId, Entry>,
    by_share: BTreeSet<(u32, EgroupId)>,
    by_group: BTreeMap<GroupId, InGroup>,
    by_recipe: BTreeMap<Recipe, BTreeSet<EgroupId>>,
    /// Pages that differ from what was written last.
    dirty: BTreeSet<u64>,
    /// How many egroups there are of each generation.
    generations: BTreeMap<Generation, usize>,
    units: u64,
    live: u64,
    past: u64,
    stored: u64,
}

impl Directory {
    /// The number of the page that tells of this egroup.
    pub fn page_of(egroup: EgroupId) -> u64 {
        egroup.0 >> PAGE_SHIFT
    }

    /// A new egroup, in which nothing is live yet.
    pub fn insert(&mut self, named: NamedEgroup) {
        let NamedEgroup { egroup, group, units, stored, recipe, generation } = named;
        assert!(units > 0 && units <= EGROUP_UNITS as u32, "an egroup has 1 to 960 units");
        assert!(stored > 0 && stored <= units, "packing makes nothing larger");
        self.add(egroup, Entry { group, units, stored, live: 0, past: 0, recipe, generation });
        self.dirty.insert(Self::page_of(egroup));
    }

    /// `count` more units of it are mapped.
    pub fn add_live(&mut self, egroup: EgroupId, count: u32) {
        let entry = self.get(egroup).expect("a mapped egroup is in the directory");
        let live = entry.live.checked_add(count).expect("an egroup has few units");
        assert!(live <= entry.units, "no more units are live than there are");
        self.change(egroup, entry, live, entry.past);
    }

    /// `count` of the mapped units are seen by snapshots only, from now on.
    pub fn add_past(&mut self, egroup: EgroupId, count: u32) {
        let entry = self.get(egroup).expect("a mapped egroup is in the directory");
        let past = entry.past.checked_add(count).expect("an egroup has few units");
        assert!(past <= entry.live, "what a snapshot sees is mapped");
        self.change(egroup, entry, entry.live, past);
    }

    /// The present sees `count` units again that only snapshots saw.
    pub fn leave_past(&mut self, egroup: EgroupId, count: u32) {
        let entry = self.get(egroup).expect("a mapped egroup is in the directory");
        let past = entry.past.checked_sub(count).expect("no more units leave the past than were there");
        self.change(egroup, entry, entry.live, past);
    }

    /// `count` units that only snapshots saw are seen by none any more.
    pub fn remove_past(&mut self, egroup: EgroupId, count: u32) {
        let entry = self.get(egroup).expect("a mapped egroup is in the directory");
        let past = entry.past.checked_sub(count).expect("no more units leave the past than were there");
        let live = entry.live.checked_sub(count).expect("no more units are unmapped than were live");
        self.change(egroup, entry, live, past);
    }

    /// `count` units of it are not mapped any more. Gives how many still are.
    pub fn remove_live(&mut self, egroup: EgroupId, count: u32) -> u32 {
        let entry = self.get(egroup).expect("a mapped egroup is in the directory");
        let live = entry.live.checked_sub(count).expect("no more units are unmapped than were live");
        assert!(entry.past <= live, "what a snapshot sees is not unmapped by the present");
        self.change(egroup, entry, live, entry.past);
        live
    }

    /// Forgets the egroup. Gives what was known.
    pub fn remove(&mut self, egroup: EgroupId) -> Option<Entry> {
        let entry = self.entries.remove(&egroup)?;
        self.by_share.remove(&(entry.share(), egroup));
        let in_group = self.by_group.get_mut(&entry.group).expect("this one was counted");
        in_group.egroups.remove(&egroup);
        in_group.stored -= u64::from(entry.stored);
        if in_group.egroups.is_empty() {
            self.by_group.remove(&entry.group);
        }
        let of_recipe = self.by_recipe.get_mut(&entry.recipe).expect("this one was counted");
        of_recipe.remove(&egroup);
        if of_recipe.is_empty() {
            self.by_recipe.remove(&entry.recipe);
        }
        let of_generation = self.generations.get_mut(&entry.generation).expect("this one was counted");
        *of_generation -= 1;
        if *of_generation == 0 {
            self.generations.remove(&entry.generation);
        }
        self.units -= u64::from(entry.units);
        self.stored -= u64::from(entry.stored);
        self.live -= u64::from(entry.live);
        self.past -= u64::from(entry.past);
        self.dirty.insert(Self::page_of(egroup));
        Some(entry)
    }

    pub fn get(&self, egroup: EgroupId) -> Option<Entry> {
        self.entries.get(&egroup).copied()
    }

    /// The generation of the data in an egroup; what stands for a hole has it in its name.
    pub fn born(&self, egroup: EgroupId) -> Option<Generation> {
        if egroup.is_hole() {
            return Some(Generation(egroup.0 as u32));
        }
        self.get(egroup).map(|entry| entry.generation)
    }

    pub fn contains(&self, egroup: EgroupId) -> bool {
        self.entries.contains_key(&egroup)
    }

    /// All egroups in order of number.
    pub fn iter(&self) -> impl Iterator<Item = (EgroupId, Entry)> + '_ {
        self.entries.iter().map(|(egroup, entry)| (*egroup, *entry))
    }

    /// Those in this range of names, in order.
    pub fn range(&self, names: RangeInclusive<EgroupId>) -> impl Iterator<Item = (EgroupId, Entry)> + '_ {
        self.entries.range(names).map(|(egroup, entry)| (*egroup, *entry))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Of how many generations there is data.
    pub fn generations(&self) -> usize {
        self.generations.len()
    }

    /// Units of all egroups together.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// Blocks that they take on one member of each group.
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// Live units of all egroups together: the blocks that are mapped, now or in a snapshot.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Those of them that only snapshots see.
    pub fn past(&self) -> u64 {
        self.past
    }

    /// The egroups of which less than `percent` percent is live, the emptiest first.
    pub fn least_live(&self, percent: u32) -> impl Iterator<Item = EgroupId> + '_ {
        self.by_share.iter().map(|(_, egroup)| *egroup).take_while(move |egroup| {
            let entry = &self.entries[egroup];
            u64::from(entry.live) * 100 < u64::from(entry.units) * u64::from(percent)
        })
    }

    /// The egroups with no live unit.
    pub fn dead(&self) -> impl Iterator<Item = EgroupId> + '_ {
        self.by_share.range(..(1, EgroupId(0))).map(|(_, egroup)| *egroup)
    }

    /// The egroups of this group, in order of number.
    pub fn in_group(&self, group: GroupId) -> impl Iterator<Item = EgroupId> + '_ {
        self.by_group.get(&group).into_iter().flat_map(|in_group| &in_group.egroups).copied()
    }

    /// The groups with egroups in them, and how many blocks these take on one member.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, u64)> + '_ {
        self.by_group.iter().map(|(&group, in_group)| (group, in_group.stored))
    }

    /// What egroups were packed by.
    pub fn recipes(&self) -> impl Iterator<Item = Recipe> + '_ {
        self.by_recipe.keys().copied()
    }

    /// The egroups that were packed by this one, in order of number.
    pub fn of_recipe(&self, recipe: Recipe) -> impl Iterator<Item = EgroupId> + '_ {
        self.by_recipe.get(&recipe).into_iter().flatten().copied()
    }

    /// The pages that have to be written again, in order.
    pub fn dirty_pages(&self) -> Vec<u64> {
        self.dirty.iter().copied().collect()
    }

    /// Has this page written again, though nothing in it changed: to move it, or because writing it failed.
    pub fn touch_page(&mut self, number: u64) {
        self.dirty.insert(number);
    }

    /// Page `number` as encoded last counts as written from here on.
    pub fn page_written(&mut self, number: u64) {
        self.dirty.remove(&number);
    }

    /// Page `number` as it is now, one unit; None if no egroup is left in it: then the page goes.
    pub fn encode_page(&self, number: u64, family: FamilyId) -> Option<Buffer> {
        let (first, last) = page_range(number);
        let mut payload = Vec::new();
        for (egroup, entry) in self.entries.range(first..=last) {
            payload.extend(((egroup.0 - first.0) as u16).to_le_bytes());
            payload.extend((entry.units as u16).to_le_bytes());
            payload.extend((entry.live as u16).to_le_bytes());
            payload.extend((entry.past as u16).to_le_bytes());
            payload.extend(entry.group.0.to_le_bytes());
            payload.extend(entry.generation.0.to_le_bytes());
            payload.extend((entry.stored as u16).to_le_bytes());
            payload.extend([entry.recipe.byte(), 0]);
        }
        if payload.is_empty() {
            return None;
        }
        let page = page::encode(PageRole::Page(PageKind::Directory), number, family, &payload);
        assert_eq!(page.len(), BLOCK, "a directory page is one unit");
        Some(page)
    }

    /// Takes in page `number`, when a family is opened. On an error nothing has changed.
    pub fn load_page(&mut self, page: &[u8], number: u64, family: FamilyId) -> Result<(), PageError> {
        let payload = page::decode(page, PageRole::Page(PageKind::Directory), number, family)?;
        if number > u64::MAX >> PAGE_SHIFT {
            return Err(ContentFault::Range.into());
        }
        let (first, last) = page_range(number);
        assert!(self.entries.range(first..=last).next().is_none(), "a directory page is read once");
        for (slot, entry) in decode_entries(payload)? {
            self.add(EgroupId(first.0 + u64::from(slot)), entry);
        }
        Ok(())
    }

    fn add(&mut self, egroup: EgroupId, entry: Entry) {
        let old = self.entries.insert(egroup, entry);
        assert!(old.is_none(), "an egroup's name is given once");
        self.by_share.insert((entry.share(), egroup));
        let in_group = self.by_group.entry(entry.group).or_default();
        in_group.egroups.insert(egroup);
        in_group.stored += u64::from(entry.stored);
        self.by_recipe.entry(entry.recipe).or_default().insert(egroup);
        *self.generations.entry(entry.generation).or_default() += 1;
        self.units += u64::from(entry.units);
        self.stored += u64::from(entry.stored);
        self.live += u64::from(entry.live);
        self.past += u64::from(entry.past);
    }

    fn change(&mut self, egroup: EgroupId, old: Entry, live: u32, past: u32) {
        let new = Entry { live, past, ..old };
        if new == old {
            return;
        }
        self.entries.insert(egroup, new);
        self.by_share.remove(&(old.share(), egroup));
        self.by_share.insert((new.share(), egroup));
        self.live = self.live - u64::from(old.live) + u64::from(live);
        self.past = self.past - u64::from(old.past) + u64::from(past);
        self.dirty.insert(Self::page_of(egroup));
    }
}

/// The first and last egroup number of a page.
fn page_range(number: u64) -> (EgroupId, EgroupId) {
    assert!(number <= u64::MAX >> PAGE_SHIFT, "a page of egroup numbers");
    let first = number << PAGE_SHIFT;
    (EgroupId(first), EgroupId(first | ((1 << PAGE_SHIFT) - 1)))
}

/// Slot in the page and entry, in order.
fn decode_entries(payload: &[u8]) -> Result<Vec<(u16, Entry)>, ContentFault> {
    const ENTRY: usize = 20;
    if payload.is_empty() || !payload.len().is_multiple_of(ENTRY) {
        return Err(ContentFault::Length);
    }
    let mut fields = Fields::of(payload);
    let mut entries: Vec<(u16, Entry)> = Vec::with_capacity(payload.len() / ENTRY);
    for _ in 0..payload.len() / ENTRY {
        let (slot, units, live, past) = (fields.u16()?, fields.u16()?, fields.u16()?, fields.u16()?);
        let (group, generation) = (GroupId(fields.u32()?), Generation(fields.u32()?));
        let (stored, [recipe, reserved]) = (fields.u16()?, fields.u16()?.to_le_bytes());
        let recipe = Recipe::from_byte(recipe).ok_or(ContentFault::Range)?;
        let sound = slot < 1 << PAGE_SHIFT
            && reserved == 0
            && (1..=units).contains(&stored)
            && units > 0
            && usize::from(units) <= EGROUP_UNITS
            && live <= units
            && past <= live;
        if !sound {
            return Err(ContentFault::Range);
        }
        if entries.last().is_some_and(|(last, _)| *last >= slot) {
            return Err(ContentFault::Order);
        }
        let (units, stored, live, past) = (units.into(), stored.into(), live.into(), past.into());
        entries.push((slot, Entry { group, units, stored, live, past, recipe, generation }));
    }
    fields.end()?;
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    const FAMILY: FamilyId = FamilyId(6);

    fn named(egroup: u64, units: u32) -> NamedEgroup {
        NamedEgroup {
            egroup: EgroupId(egroup),
            group: GroupId(u32::MAX),
            units,
            stored: units,
            recipe: Recipe::PLAIN,
            generation: Generation(u32::MAX),
        }
    }

    fn compare(directory: &Directory, model: &BTreeMap<EgroupId, Entry>, percent: u32) {
        assert_eq!(&directory.iter().collect::<BTreeMap<_, _>>(), model);
        assert_eq!(directory.len(), model.len());
        let generations: BTreeSet<Generation> = model.values().map(|entry| entry.generation).collect();
        assert_eq!(directory.generations(), generations.len());
        assert_eq!(directory.units(), model.values().map(|e| u64::from(e.units)).sum());
        assert_eq!(directory.stored(), model.values().map(|e| u64::from(e.stored)).sum());
        assert_eq!(directory.live(), model.values().map(|e| u64::from(e.live)).sum());
        assert_eq!(directory.past(), model.values().map(|e| u64::from(e.past)).sum());
        let under = |egroup: &EgroupId| model[egroup].live * 100 < model[egroup].units * percent;
        let mut wanted: Vec<EgroupId> = model.keys().copied().filter(under).collect();
        // By cross multiplication: a/b < c/d.
        wanted.sort_by(|a, b| {
            let (x, y) = (&model[a], &model[b]);
            (x.live * y.units).cmp(&(y.live * x.units)).then(a.cmp(b))
        });
        assert_eq!(directory.least_live(percent).collect::<Vec<_>>(), wanted);
        let dead: Vec<EgroupId> =
            model.iter().filter(|(_, e)| e.live == 0).map(|(egroup, _)| *egroup).collect();
        assert_eq!(directory.dead().collect::<Vec<_>>(), dead);
        let recipes: BTreeSet<Recipe> = model.values().map(|e| e.recipe).collect();
        assert_eq!(directory.recipes().collect::<Vec<_>>(), recipes.iter().copied().collect::<Vec<_>>());
        for recipe in recipes {
            let packed: Vec<_> =
                model.iter().filter(|(_, e)| e.recipe == recipe).map(|(id, _)| *id).collect();
            assert_eq!(directory.of_recipe(recipe).collect::<Vec<_>>(), packed);
        }
        for group in (0..4).map(GroupId) {
            let inside: Vec<_> = model.iter().filter(|(_, e)| e.group == group).map(|(id, _)| *id).collect();
            assert_eq!(directory.in_group(group).collect::<Vec<_>>(), inside);
            let stored = model.values().filter(|e| e.group == group).map(|e| u64::from(e.stored)).sum();
            let told = directory.groups().find(|(of, _)| *of == group).map_or(0, |(_, stored)| stored);
            assert_eq!(told, stored, "blocks are counted by group");
        }
    }

    /// A checkpoint: writes what changed, and reads everything as an opening would.
    fn write_and_read_again(directory: &mut Directory, written: &mut BTreeMap<u64, Buffer>) {
        for number in directory.dirty_pages() {
            match directory.encode_page(number, FAMILY) {
                Some(page) => written.insert(number, page),
                None => written.remove(&number),
            };
            directory.page_written(number);
        }
        let mut again = Directory::default();
        for (number, page) in written {
            again.load_page(page.bytes(), *number, FAMILY).expect("the page is sound");
        }
        assert!(again.dirty_pages().is_empty(), "what was read is not changed");
        compare(&again, &directory.entries, 75);
    }

    #[test]
    fn it_agrees_with_counting_anew_under_random_input_and_opens_as_it_was() {
        let mut random = SmallRng::seed_from_u64(17);
        for _ in 0..20 {
            let (mut directory, mut model, mut written) =
                (Directory::default(), BTreeMap::new(), BTreeMap::new());
            for _ in 0..300 {
                let far = if random.random_bool(0.2) { 5 << 32 } else { 0 };
                let egroup = EgroupId(random.random_range(0..300) + far);
                match model.get_mut(&egroup) {
                    None => {
                        let (group, units) =
                            (GroupId(random.random_range(0..4)), random.random_range(1..=960));
                        let generation = Generation(random.random_range(0..3));
                        let stored = random.random_range(1..=units);
                        let recipe =
                            Recipe::from_byte([0, 4, 11][random.random_range(0..3)]).expect("it is one");
                        directory.insert(NamedEgroup { egroup, group, units, stored, recipe, generation });
                        let entry = Entry { group, units, stored, live: 0, past: 0, recipe, generation };
                        model.insert(egroup, entry);
                    }
                    Some(entry) if random.random_bool(0.5) => {
                        let count = random.random_range(0..=entry.units - entry.live);
                        directory.add_live(egroup, count);
                        entry.live += count;
                    }
                    Some(entry) if random.random_bool(0.3) => {
                        let count = random.random_range(0..=entry.live - entry.past);
                        directory.add_past(egroup, count);
                        entry.past += count;
                    }
                    Some(entry) if random.random_bool(0.3) => {
                        let count = random.random_range(0..=entry.past);
                        directory.remove_past(egroup, count);
                        entry.past -= count;
                        entry.live -= count;
                    }
                    Some(entry) if random.random_bool(0.6) => {
                        let count = random.random_range(0..=entry.live - entry.past);
                        entry.live -= count;
                        assert_eq!(directory.remove_live(egroup, count), entry.live);
                    }
                    Some(_) => assert_eq!(directory.remove(egroup), model.remove(&egroup)),
                }
                assert_eq!(directory.get(egroup), model.get(&egroup).copied());
                if random.random_bool(0.1) {
                    write_and_read_again(&mut directory, &mut written);
                    compare(&directory, &model, random.random_range(0..=101));
                }
            }
            compare(&directory, &model, random.random_range(0..=101));
        }
    }

    #[test]
    fn a_full_page_is_one_unit_even_at_the_end_of_the_numbers() {
        let mut directory = Directory::default();
        let last = u64::MAX >> PAGE_SHIFT;
        for slot in 0..1 << PAGE_SHIFT {
            directory.insert(named((last << PAGE_SHIFT) + slot, 960));
        }
        assert_eq!(directory.dirty_pages(), [last]);
        let page = directory.encode_page(last, FAMILY).expect("there are egroups");
        let mut again = Directory::default();
        assert_eq!(again.load_page(page.bytes(), last, FAMILY), Ok(()));
        assert_eq!(again.len(), 128);
    }

    #[test]
    fn odd_content_is_refused() {
        let entry = |slot: u16, units: u16, live: u16, zero: u16| {
            let mut bytes: Vec<u8> = [slot, units, live, zero].iter().flat_map(|n| n.to_le_bytes()).collect();
            bytes.extend([0; 8]);
            bytes.extend(units.to_le_bytes());
            bytes.extend([0; 2]);
            bytes
        };
        let joined = |entries: &[Vec<u8>]| decode_entries(&entries.concat()).err();
        assert_eq!(joined(&[entry(0, 960, 960, 0), entry(127, 1, 0, 0)]), None);
        assert_eq!(joined(&[entry(1, 1, 0, 0), entry(0, 1, 0, 0)]), Some(ContentFault::Order));
        for (slot, units, live, zero) in
            [(128, 1, 0, 0), (0, 0, 0, 0), (0, 961, 0, 0), (0, 5, 6, 0), (0, 1, 1, 2)]
        {
            assert_eq!(joined(&[entry(slot, units, live, zero)]), Some(ContentFault::Range));
        }
        let mut packed = entry(0, 5, 0, 0);
        packed[16] = 6;
        assert_eq!(joined(&[packed.clone()]), Some(ContentFault::Range), "more is stored than there is");
        packed[16] = 0;
        let mut strange = entry(0, 5, 0, 0);
        strange[18] = 1;
        assert_eq!(joined(&[strange]), Some(ContentFault::Range), "packed by nothing known");
        assert_eq!(joined(&[packed]), Some(ContentFault::Range), "nothing is stored");
        assert_eq!(joined(&[vec![0; 13]]), Some(ContentFault::Length));
        assert_eq!(joined(&[]), Some(ContentFault::Length));
    }

    #[test]
    #[should_panic(expected = "no more units are unmapped than were live")]
    fn what_is_not_live_cannot_be_unmapped() {
        let mut directory = Directory::default();
        directory.insert(named(1, 10));
        directory.add_live(EgroupId(1), 3);
        directory.remove_live(EgroupId(1), 4);
    }
}
