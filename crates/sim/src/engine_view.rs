//! What the judges see of the engine's insides: which egroups its keepers hold and its families name.

use crate::control::FamilyPhase;
use crate::judge::placement::{Counted, Held, Named};
use crate::judge::space::Pages;
use crate::world::World;
use std::collections::BTreeMap;
use weft_engine::buffer::BLOCK;
use weft_engine::formats::record::{PageKind, PagePlace};
use weft_engine::interface::Area;
use weft_engine::keeper::StoredEgroup;
use weft_engine::map::leaf::Leaf;
use weft_engine::map::past::{self, Past};
use weft_engine::volume::Volume;
use weft_engine::{DriveId, EgroupId, FamilyId};

/// All egroups on all drives in use.
pub fn held(world: &World) -> Result<Vec<Held>, String> {
    let mut all = Vec::new();
    for (drive, entry) in world.control.drives.iter().enumerate() {
        if entry.retired {
            continue;
        }
        let drive = DriveId(drive as u32);
        let engine =
            world.shards[entry.shard].engine.as_ref().ok_or(format!("shard {} is down", entry.shard))?;
        let keeper = engine.keeper(drive).ok_or(format!("drive {drive} has no keeper"))?;
        for stored in keeper.egroups() {
            let StoredEgroup { family, egroup, first, blocks, units, data_bytes, data_blocks, references } =
                stored;
            let (units, stored) = (u64::from(units), u64::from(data_blocks));
            all.push(Held {
                drive,
                family,
                egroup,
                first,
                blocks,
                units,
                stored,
                bytes: data_bytes,
                references,
            });
        }
    }
    Ok(all)
}

/// What the keepers of all drives in use say of their blocks.
pub fn counted(world: &World) -> Result<Vec<Counted>, String> {
    let mut all = Vec::new();
    for (drive, entry) in world.control.drives.iter().enumerate() {
        if entry.retired {
            continue;
        }
        let drive = DriveId(drive as u32);
        let engine = world.shards[entry.shard].engine.as_ref();
        let keeper = engine.and_then(|engine| engine.keeper(drive)).ok_or("a drive is not open")?;
        let (free, stored, moving) = keeper.unit_blocks();
        let held_bytes = keeper.shared().held_bytes;
        all.push(Counted { drive, free, stored, moving, held: held_bytes / BLOCK as u64 });
    }
    Ok(all)
}

/// All egroups that families name, and where they should be.
pub fn named(world: &World) -> Result<Vec<Named>, String> {
    let mut all = Vec::new();
    for (family, entry) in world.control.families.iter().enumerate() {
        if entry.phase != FamilyPhase::Ready {
            continue;
        }
        let family = FamilyId(family as u32);
        let owner = entry.owner.expect("a served family has an owner");
        let engine = world.shards[owner].engine.as_ref().ok_or(format!("shard {owner} is down"))?;
        let volume = engine.volume(family).ok_or(format!("family {family} is not served"))?;
        for egroup in volume.egroups() {
            let group = volume.map().group_of(egroup).ok_or(format!("egroup {egroup} has no group"))?;
            let units = volume.map().units_of(egroup).ok_or(format!("egroup {egroup} has no size"))?;
            let stored = volume.map().stored_of(egroup).ok_or(format!("egroup {egroup} has no size"))?;
            let view = &world.control.groups[&group];
            all.push(Named {
                family,
                egroup,
                units: u64::from(units),
                stored: u64::from(stored),
                members: view.members.clone(),
                former: view.former.clone(),
            });
        }
    }
    Ok(all)
}

/// The volumes that are served.
pub fn volumes(world: &World) -> impl Iterator<Item = (usize, &Volume)> {
    let ready = world.control.families.iter().enumerate().filter(|(_, e)| e.phase == FamilyPhase::Ready);
    ready.filter_map(|(family, _)| Some((family, world.owned(FamilyId(family as u32))?)))
}

impl World {
    /// A vDisk as its owner has it, served or not.
    pub fn owned(&self, family: FamilyId) -> Option<&Volume> {
        let owner = self.control.families[family.0 as usize].owner?;
        self.shards[owner].engine.as_ref()?.volume(family)
    }
}

/// The pages of a family's map, as they lie on the drives. None if one of them cannot be read where it should be: then
/// there is damage that nobody has met.
pub fn pages(world: &World, volume: &Volume, family: FamilyId, held: &[Held]) -> Option<Pages> {
    let mut copies: BTreeMap<EgroupId, Vec<&Held>> = BTreeMap::new();
    for held in held.iter().filter(|held| held.family == family) {
        copies.entry(held.egroup).or_default().push(held);
    }
    let read = |held: &Held, place: PagePlace| {
        let first = (held.first + u64::from(place.unit)) as usize;
        world.drives[held.drive.0 as usize].area(Area::Data).read(first, place.units as usize)
    };
    let mut pages = Pages::default();
    for (kind, number, place) in volume.map().index.iter() {
        let mut bytes = copies.get(&place.egroup)?.iter().filter_map(|held| read(held, place));
        match kind {
            PageKind::Leaf => {
                let leaf = bytes.find_map(|bytes| Leaf::decode(bytes.bytes(), number, family).ok())?;
                pages.leaves.push(leaf);
            }
            PageKind::Past => {
                let past = bytes.find_map(|bytes| Past::decode(bytes.bytes(), number, family).ok())?;
                pages.past.push((past::leaf_of(number), past));
            }
            PageKind::Directory => {}
        }
    }
    Some(pages)
}
