//! Whether data follows its vDisk: once everything was read often enough, all of it has a copy in the node of its owner, as far as
//! there is a place for it.
//! Promises: nothing is asked of owners without a drive that takes new things, or whose groups are nearly full.

use crate::engine_view::volumes;
use crate::world::World;
use weft_engine::DriveId;
use weft_engine::curator::follow::ROOM_MIN;
use weft_engine::keeper::Keeper;
use weft_engine::volume::Volume;

/// Drives tell of their room in steps, and what moves takes some of it until the next checkpoint.
const ROOM: u64 = 2 * ROOM_MIN;

impl World {
    /// Every vDisk that was read back has its data near. Gives how many have a place for it.
    pub(crate) fn data_is_near(&self) -> Result<u64, String> {
        let mut count = 0;
        for (family, volume) in volumes(self) {
            let entry = &self.control.families[family];
            let owner = entry.owner.expect("a served family has an owner");
            // What nobody can read stays where it is.
            let is_rotten = !self.families[family].rotten.is_empty();
            if is_rotten || volume.is_pool_full() || !self.has_place_at(owner, entry.record.factor) {
                continue;
            }
            if let Some(what) = self.lies_elsewhere(volume, self.shards[owner].node) {
                return Err(format!("family {family}, served by shard {owner}: {what}"));
            }
            count += 1;
        }
        Ok(count)
    }

    /// Whether what the shard writes anew gets a copy on a drive of its own.
    fn has_place_at(&self, shard: usize, factor: u32) -> bool {
        let takes = |&drive: &DriveId| {
            let entry = &self.control.drives[drive.0 as usize];
            let engine = self.shards[entry.shard].engine.as_ref();
            let free = engine.and_then(|engine| engine.keeper(drive)).map_or(0, Keeper::free_bytes);
            !entry.retired && entry.is_open() && free >= ROOM
        };
        let is_own = |drive: &DriveId| self.control.drives[drive.0 as usize].shard == shard;
        let mut groups = self.control.groups.values().map(|group| &group.members);
        groups.any(|members| {
            members.len() == factor as usize && members.iter().any(is_own) && members.iter().all(takes)
        })
    }

    fn lies_elsewhere(&self, volume: &Volume, node: usize) -> Option<String> {
        let is_near = |drive: &DriveId| self.shards[self.control.drives[drive.0 as usize].shard].node == node;
        volume.map().directory.iter().filter(|(_, entry)| entry.live > 0).find_map(|(egroup, entry)| {
            let members = &self.control.groups[&entry.group].members;
            let is_away = !members.iter().any(is_near);
            is_away
                .then(|| format!("egroup {egroup} with {} live units lies on {members:?} only", entry.live))
        })
    }
}
