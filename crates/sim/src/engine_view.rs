//! What the judges see of the engine's insides: which egroups its keepers hold and its families name.

use crate::control::FamilyPhase;
use crate::judge::placement::{Held, Named};
use crate::world::World;
use weft_engine::keeper::StoredEgroup;
use weft_engine::{DriveId, FamilyId};

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
            let StoredEgroup { family, egroup, first, blocks, units, data_blocks } = stored;
            let (units, stored) = (u64::from(units), u64::from(data_blocks));
            all.push(Held { drive, family, egroup, first, blocks, units, stored });
        }
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
