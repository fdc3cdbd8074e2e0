//! A write becomes bad in every log that has it, or is not given any more, and whoever serves its vDisk is killed: what is left is where
//! it went. Or units of an egroup become bad in all its copies, or what tells for what they were written. Or each copy of one becomes bad
//! somewhere else.
//! Promises: only writes of which any opening knows that they were there, and only units of data; and nothing else becomes bad: no read of
//! anything else may fail for it, no vDisk may be refused, and no drive may be waited for. Of what is bad on some drives only, nothing is lost.
//! Leaves to others: all other faults (`atlas`), what answers are right (`answers`).

use crate::event::Event;
use crate::judge::placement::page_of;
use crate::phase::Phase;
use crate::world::World;
use rand::Rng;
use rand::seq::{IndexedRandom, IteratorRandom};
use std::collections::BTreeMap;
use weft_engine::formats::packing::{Frame, frames_between};
use weft_engine::formats::record::PagePlace;
use weft_engine::formats::table::decode_trailer;
use weft_engine::interface::Area;
use weft_engine::keeper::{Keeper, StoredEgroup};
use weft_engine::{DriveId, EgroupId, FamilyId};

/// Writes that become bad in a round.
const WRITES: u32 = 4;
/// Blocks of egroups that do.
const BLOCKS: u32 = 6;
/// Egroups of which each copy does somewhere else.
const EGROUPS: u32 = 12;
/// Of smaller egroups a drive gives nothing when it has lost some of it and the trailer: such a drive has lost nothing, and is waited for.
const FRAMES_LEAST: usize = 3;
/// Blocks that are only out of reach can be read again before this time has passed: who takes what a drive does not give for lost has to
/// have asked for longer.
const PASSES_US: u64 = 5_000_000;

type Copies = BTreeMap<(FamilyId, EgroupId), Vec<(usize, StoredEgroup)>>;

impl World {
    /// In seeds that have it.
    pub fn plan_rot(&mut self) {
        let writes = if self.parameters.rots { WRITES } else { 0 };
        let blocks = if self.parameters.units_rot { BLOCKS } else { 0 };
        let egroups = if self.parameters.copies_rot { EGROUPS } else { 0 };
        let mut plan = |count: u32, event: fn() -> Event| {
            for _ in 0..count {
                let at = self.rng.random_range(0..self.parameters.round_us);
                self.queue.push(self.now + at, event());
            }
        };
        plan(writes, || Event::WriteRots);
        plan(blocks, || Event::UnitsRot);
        plan(egroups, || Event::CopiesRot);
    }

    /// A block of an egroup becomes bad in every second copy that somebody has open, and another one, which no frame has in common with it,
    /// in the others.
    pub fn copies_rot(&mut self) {
        if self.phase != Phase::Trouble {
            return;
        }
        let mut egroups = self.open_copies(|_| true);
        egroups.retain(|name, copies| !self.scattered.contains(name) && self.are_all_copies(*name, copies));
        let pages = self.large_pages();
        let pages = pages.iter().filter(|(family, page)| egroups.contains_key(&(*family, page.egroup)));
        let page = pages.choose(&mut self.rng).filter(|_| self.rng.random_bool(0.5));
        let name = page.map(|(family, page)| (*family, page.egroup));
        let Some(name) = name.or_else(|| egroups.keys().choose(&mut self.rng).copied()) else { return };
        let copies = &egroups[&name];
        let (drive, stored) = &copies[0];
        let Some(written) = page_of(&self.drives[*drive], name.0, name.1, stored.first) else { return };
        let frames: Vec<Frame> = frames_between(0..written.units(), |unit| written.frame_of(unit)).collect();
        let blocks = match page {
            Some((_, page)) => page.unit..page.unit + page.units,
            None => 0..stored.data_blocks,
        };
        let Some(one) = blocks.clone().choose(&mut self.rng) else { return };
        let is_apart = |other: &u32| {
            !frames.iter().any(|frame| frame.blocks().contains(&one) && frame.blocks().contains(other))
        };
        let Some(other) = blocks.filter(is_apart).choose(&mut self.rng) else { return };
        self.coverage.count(match page {
            Some(_) => "pages of which each copy became bad somewhere else",
            None => "egroups of which each copy became bad somewhere else",
        });
        self.scattered.insert(name);
        for ((drive, stored), block) in copies.iter().zip([one, other].into_iter().cycle()) {
            self.block_rots(*drive, (stored.first + u64::from(block)) as usize);
        }
    }

    /// Copies of egroups on drives that somebody has open.
    fn open_copies(&self, is_wanted: impl Fn(&StoredEgroup) -> bool) -> Copies {
        let mut egroups = Copies::new();
        for (drive, keeper) in self.keepers() {
            for stored in keeper.egroups().filter(|stored| is_wanted(stored)) {
                egroups.entry((stored.family, stored.egroup)).or_default().push((drive, stored));
            }
        }
        egroups
    }

    /// Whether these are those of all members of its group, which are several, and nobody else has one that is about to go: with that, what
    /// is good there would go as well.
    fn are_all_copies(
        &self,
        (family, egroup): (FamilyId, EgroupId),
        copies: &[(usize, StoredEgroup)],
    ) -> bool {
        let group = self.owned(family).and_then(|volume| volume.map().group_of(egroup));
        let Some(view) = group.and_then(|group| self.control.groups.get(&group)) else { return false };
        let is_held = |member: &DriveId| copies.iter().any(|(drive, _)| *drive == member.0 as usize);
        copies.len() > 1
            && copies.len() == view.members.len()
            && view.former.is_empty()
            && view.members.iter().all(is_held)
    }

    /// Pages of the map that have several units, as far as those know that serve their vDisks.
    fn large_pages(&self) -> Vec<(FamilyId, PagePlace)> {
        let engines = self.shards.iter().filter_map(|shard| shard.engine.as_ref());
        let volumes = engines.flat_map(|engine| engine.volumes());
        let pages = volumes
            .flat_map(|(family, volume)| volume.map().index.iter().map(move |(_, _, place)| (family, place)));
        pages.filter(|(_, place)| place.units > 1).collect()
    }

    /// A block of a drive's data area is not what it was, or is not given any more.
    fn block_rots(&mut self, drive: usize, at: usize) {
        let is_written = self.drives[drive].area(Area::Data).content(at).is_some();
        if is_written && self.rng.random_bool(0.5) {
            self.flip(drive, Area::Data, at);
        } else {
            self.drives[drive].area_mut(Area::Data).make_unreadable(at);
        }
    }

    /// A block of an egroup of data becomes bad in each copy that somebody has open.
    pub fn units_rot(&mut self) {
        if self.phase != Phase::Trouble {
            return;
        }
        let egroups = self.open_copies(|stored| stored.references.is_empty() && self.is_data(stored));
        let Some((&(family, egroup), copies)) = egroups.iter().choose(&mut self.rng) else { return };
        let (drive, stored) = &copies[0];
        let data = self.drives[*drive].area(Area::Data);
        let Some(page) = page_of(&self.drives[*drive], family, egroup, stored.first) else { return };
        let (first, blocks) = page.trailer();
        let trailer: Vec<u8> = (first..first + blocks)
            .filter_map(|at| data.content(at as usize).as_ref())
            .flat_map(|block| block.bytes().iter().copied())
            .collect();
        let Some(written_for) = decode_trailer(&trailer, page.units(), page.trailer_crc) else { return };
        let block = match self.rng.random_ratio(1, 4) {
            true => first - stored.first + self.rng.random_range(0..blocks),
            false => self.rng.random_range(0..u64::from(stored.data_blocks)),
        };
        let frames: Vec<Frame> = frames_between(0..page.units(), |unit| page.frame_of(unit)).collect();
        if frames.len() < FRAMES_LEAST {
            return;
        }
        let there: Vec<&Frame> =
            frames.iter().filter(|frame| frame.blocks().contains(&(block as u32))).collect();
        let units = there.iter().flat_map(|frame| frame.first..frame.end());
        let rotten: Vec<u64> = units.map(|unit| written_for[unit as usize]).collect();
        self.coverage.count(match rotten.is_empty() {
            true => "trailers that became bad in all copies",
            false => "blocks of units that became bad in all copies",
        });
        if self.rng.random_ratio(1, 3) {
            self.coverage.count("of these, that were good again after a while");
            self.families[family.0 as usize].faltered.extend(rotten);
            let places: Vec<(usize, usize)> =
                copies.iter().map(|(drive, stored)| (*drive, (stored.first + block) as usize)).collect();
            for &(drive, at) in &places {
                self.drives[drive].area_mut(Area::Data).make_unreadable(at);
            }
            self.faltering.extend(&places);
            let time = self.rng.random_range(100_000..PASSES_US);
            self.queue.push(self.now + time, Event::UnitsHeal(places));
            return;
        }
        let spoiled: Vec<u64> = there.iter().flat_map(|frame| frame.blocks()).map(u64::from).collect();
        self.rotten_egroups.entry((family, egroup)).or_default().extend(spoiled);
        self.families[family.0 as usize].rotten.extend(rotten);
        for (drive, stored) in copies {
            self.block_rots(*drive, (stored.first + block) as usize);
        }
    }

    /// What could not be read for a while can be again.
    pub fn units_heal(&mut self, places: &[(usize, usize)]) {
        for &(drive, at) in places {
            if self.faltering.remove(&(drive, at)) {
                self.drives[drive].area_mut(Area::Data).make_readable(at);
            }
        }
    }

    /// Whether whoever serves its vDisk knows it as one of data: without a page of the map a vDisk ends.
    fn is_data(&self, stored: &StoredEgroup) -> bool {
        self.owned(stored.family).is_some_and(|volume| volume.map().directory.contains(stored.egroup))
    }

    pub fn write_rots(&mut self) {
        if self.phase != Phase::Trouble {
            return;
        }
        let written: Vec<_> = self.keepers().flat_map(|(_, keeper)| keeper.settled_writes()).collect();
        let Some(&(family, write, _)) = written.choose(&mut self.rng) else { return };
        let there = |(drive, keeper): (usize, &Keeper)| {
            let mut writes = keeper.settled_writes();
            let found = writes.find(|(of, other, _)| *of == family && other.seq == write.seq);
            found.map(|(_, _, at)| (drive, at))
        };
        let places: Vec<(usize, u64)> = self.keepers().filter_map(there).collect();
        let index = self.rng.random_range(0..write.count);
        for (drive, at) in places {
            let block = (at + index) as usize;
            if self.rng.random_bool(0.5) {
                self.flip(drive, Area::Log, block);
                continue;
            }
            self.drives[drive].area_mut(Area::Log).make_unreadable(block);
            self.families[family.0 as usize].is_withheld = true;
            self.coverage.count("writes that a drive does not give any more");
        }
        self.families[family.0 as usize].rotten.extend(write.block.0..write.block.0 + write.count);
        self.coverage.count("writes that became bad in all logs");
        // It is known by heart to whoever serves it.
        if let Some(owner) = self.control.families[family.0 as usize].owner {
            let node = self.shards[owner].node;
            let mood = self.rng.random_bool(0.5).then(|| self.mood());
            self.node_stops(node, mood);
            let time = self.rng.random_range(1_000..50_000);
            self.queue.push(self.now + time, Event::NodeStarts(node));
        }
    }

    /// All drives that are open somewhere.
    fn keepers(&self) -> impl Iterator<Item = (usize, &Keeper)> {
        let engines = self.shards.iter().filter_map(|shard| shard.engine.as_ref());
        engines.flat_map(|engine| engine.keepers()).map(|(drive, keeper)| (drive.0 as usize, keeper))
    }
}
