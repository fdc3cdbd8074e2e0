//! Egroups that go: those that nothing names any more, and those of pages that a checkpoint empties.
//! Promises: an egroup is deleted only when no durable record names it.
//! Leaves to others: deciding when (`map/checkpoint.rs`); deleting on drives (keepers).

use crate::context::{Context, Purpose};
use crate::formats::record::NamedEgroup;
use crate::identity::{DriveId, EgroupId, GroupId};
use crate::limits::EGROUP_UNITS;
use crate::message::Question;
use crate::sabotage::{Bug, planted};
use crate::volume::Volume;
use std::collections::BTreeMap;

/// So many more egroups of pages than the pages need are nobody's concern, and fewer when the pool is full: it may be their entries that
/// others wait for.
const MAP_EGROUPS_SPARE: usize = 12;
const MAP_EGROUPS_SPARE_FULL: usize = 2;
/// Units of pages that one checkpoint writes again at most so that mostly dead egroups of pages become empty.
const REWRITTEN_UNITS_MAX: u32 = 4 * EGROUP_UNITS as u32;
/// Names in one question to delete.
const DELETES_MAX: usize = 1024;

impl Volume {
    /// Egroups without any live unit: no page and no edit names them any more.
    pub(crate) fn delete_dead(&mut self, ctx: &mut Context) {
        let mut dead: Vec<(EgroupId, GroupId)> = Vec::new();
        let data: Vec<EgroupId> =
            self.map.directory.dead().filter(|egroup| !self.map.fresh.contains(egroup)).collect();
        for egroup in data {
            let entry = self.map.directory.remove(egroup).expect("a dead egroup is in the directory");
            dead.push((egroup, entry.group));
        }
        let index = &self.map.index;
        self.map.map_egroups.retain(|egroup, named| {
            let live = index.live_units(*egroup) > 0;
            if !live {
                dead.push((*egroup, named.group));
            }
            live
        });
        if planted(Bug::SpaceLeak) {
            return;
        }
        ctx.counters.egroups_deleted += dead.len() as u64;
        let mut by_drive: BTreeMap<DriveId, Vec<EgroupId>> = BTreeMap::new();
        for (egroup, group) in dead {
            let Some(view) = ctx.view.groups.get(&group) else { continue };
            for &drive in view.members.iter().chain(&view.former) {
                by_drive.entry(drive).or_default().push(egroup);
            }
        }
        for (drive, egroups) in by_drive {
            for egroups in egroups.chunks(DELETES_MAX) {
                if ctx.is_up(drive) {
                    let question = Question::DeleteEgroups { egroups: egroups.to_vec() };
                    ctx.ask(self.family, self.epoch, drive, question, Purpose::Forget);
                }
            }
        }
    }

    /// Every checkpoint makes egroups of its own, mostly small, and each takes an entry in the tables of its drives as long as one
    /// page in it counts. Of too many the smallest become one with what this checkpoint writes.
    pub(super) fn gather_small_map_egroups(&mut self) {
        let index = &self.map.index;
        let mut small: Vec<(u64, EgroupId)> = Vec::new();
        let mut live = 0;
        for &egroup in self.map.map_egroups.keys() {
            let units = u64::from(index.live_units(egroup));
            live += units;
            small.push((units, egroup));
        }
        let needed = live as usize / EGROUP_UNITS + 1;
        let spare = if self.placing.is_full() { MAP_EGROUPS_SPARE_FULL } else { MAP_EGROUPS_SPARE };
        if small.len() <= spare + 2 * needed {
            return;
        }
        small.sort_unstable();
        let mut units = 0;
        for (live, egroup) in small {
            units += live;
            if units > EGROUP_UNITS as u64 {
                break;
            }
            self.checkpointing.rewrite.insert(egroup);
        }
    }

    /// Egroups of pages that are mostly dead: the next checkpoint writes what is left of them elsewhere.
    pub(super) fn empty_map_egroups(&mut self) {
        let (mut units, mut live) = (0, 0);
        for (egroup, named) in &self.map.map_egroups {
            units += u64::from(named.units);
            live += u64::from(self.map.index.live_units(*egroup));
        }
        // Half of the space of pages may be dead; then the emptiest go. Small maps are left alone.
        if units > 2 * live + EGROUP_UNITS as u64 / 4 {
            let live = |named: &NamedEgroup| self.map.index.live_units(named.egroup);
            let sparse = self.map.map_egroups.values().filter(|named| live(named) * 4 < named.units * 3);
            let mut sparse: Vec<_> = sparse.map(|named| (live(named), named.egroup)).collect();
            sparse.sort_unstable();
            // Not all at once: what is left of them takes new space before the old is free.
            let mut units = 0;
            let within = |&(live, _): &(u32, EgroupId)| {
                units += live;
                units <= REWRITTEN_UNITS_MAX || units == live
            };
            self.checkpointing.rewrite =
                sparse.into_iter().take_while(within).map(|(_, egroup)| egroup).collect();
        }
    }
}
