//! Packing again what is not packed as its family wants it now: data from before a change of policy, and data that nobody has
//! read from a drive for long, which may be packed more tightly.
//! Promises: an egroup is packed once for each policy, whether it gets smaller or not; with a pool that is filling up
//! nothing is written anew; while clients ask, one job begins now and then.
//! Leaves to others: moving the units (`moves`), packing (`egroup/pack.rs`), what is wanted (the container's policy).

use super::compact::pause_us;
use super::moves::Whereto;
use crate::buffer::BLOCK;
use crate::context::Context;
use crate::egroup::units::units_max;
use crate::formats::recipe::Recipe;
use crate::identity::{EgroupId, Time};
use crate::interface::{Compression, Method};
use crate::limits::EGROUP_UNITS;
use crate::map::directory::Directory;
use crate::volume::Volume;
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

/// Nothing is packed again if the emptiest group has less room: what is emptied is free only after a checkpoint.
const ROOM_MIN: u64 = 8 * (EGROUP_UNITS * BLOCK) as u64;
/// Egroups looked at for cold ones in one step.
const LOOKS: usize = 256;
/// ... beside those that are left alone for now.
const NAMES: usize = 64 * LOOKS;
/// The next walk over all, in search of cold ones, begins after a quarter of the time that makes cold, within these.
const WALK_AGAIN_US: RangeInclusive<u64> = 1_000_000..=60_000_000;
/// When those that should be packed again cannot be now.
const LOOK_AGAIN_US: u64 = 5_000_000;

/// Which egroups were read from a drive lately. Known only while there is a rule for cold data: whoever opens a family, or
/// gives it a rule, has seen nothing, so everything counts as read then.
#[derive(Debug, Default)]
pub(crate) struct Repacking {
    /// Since when reads are noted.
    since: Option<Time>,
    read_at: BTreeMap<EgroupId, Time>,
    /// The walk over the directory goes on behind this one.
    cursor: EgroupId,
    /// No walk before this.
    walk_at: Time,
    not_before: Time,
    wake_at: Option<Time>,
}

impl Repacking {
    /// Of a family that is packed so from now on.
    pub fn new(compression: Compression, now: Time) -> Self {
        Self { since: compression.cold.map(|_| now), wake_at: Some(now), ..Self::default() }
    }

    pub fn wake_at(&self) -> Option<Time> {
        self.wake_at
    }

    /// It was written, or read from a drive.
    pub fn note_use(&mut self, egroup: EgroupId, now: Time) {
        if self.since.is_some() {
            self.read_at.insert(egroup, now);
        }
    }

    /// What is wanted may have changed.
    pub fn on_policy(&mut self, compression: Compression, now: Time) {
        match (compression.cold, self.since) {
            (Some(_), Some(_)) => (self.not_before, self.walk_at, self.wake_at) = (now, now, Some(now)),
            _ => *self = Self::new(compression, now),
        }
    }

    fn is_cold(&self, egroup: EgroupId, after_us: u64, now: Time) -> bool {
        let Some(since) = self.since else { return false };
        now.since(self.read_at.get(&egroup).copied().unwrap_or(since)) >= after_us
    }

    fn forget_deleted(&mut self, directory: &Directory) {
        if self.read_at.len() > 2 * directory.len() + LOOKS {
            self.read_at.retain(|&egroup, _| directory.contains(egroup));
        }
    }
}

impl Volume {
    /// How units that are moved are packed: those of cold egroups stay packed tightly.
    pub(super) fn packing_of_moved(&self, victims: &VecDeque<EgroupId>) -> Compression {
        match self.compression.packing_of_cold() {
            Some(cold) if victims.iter().all(|&egroup| self.is_packed_as(egroup, cold)) => cold,
            _ => self.compression,
        }
    }

    fn is_packed_as(&self, egroup: EgroupId, wanted: Compression) -> bool {
        self.map.directory.get(egroup).is_some_and(|entry| entry.recipe.serves(Recipe::of(wanted)))
    }

    /// Begins a job if something is packed otherwise than is wanted, and it is time.
    pub(crate) fn start_repacking(&mut self, ctx: &mut Context) {
        self.repacking.wake_at = None;
        self.repacking.forget_deleted(&self.map.directory);
        let is_full = self.placing.is_full() || self.placing.pool() < ROOM_MIN;
        let is_busy = !self.compaction.is_empty() || self.checkpointing.is_running();
        let base = Recipe::of(self.compression);
        let cold = self.compression.packing_of_cold();
        let is_wanted =
            |recipe: Recipe| recipe.serves(base) || cold.is_some_and(|cold| recipe.serves(Recipe::of(cold)));
        let is_changed = self.map.directory.recipes().any(|recipe| !is_wanted(recipe));
        if is_busy || !(is_changed || cold.is_some()) {
            // Each of these ends with an input that comes here again.
            return;
        }
        if is_full || self.wants_to_settle() {
            // Others may make room. And what settles would never come to rest: what is moved has to go into pages, and by then the
            // next may begin.
            self.repacking.wake_at = Some(ctx.now.after(LOOK_AGAIN_US));
            return;
        }
        let mut not_before = self.repacking.not_before;
        let due = self.is_due(&mut not_before, ctx);
        self.repacking.not_before = not_before;
        if let Err(again) = due {
            self.repacking.wake_at = again;
            return;
        }
        let found = if is_changed { self.changed_egroups(is_wanted) } else { None };
        let (victims, packing) = match (found, cold) {
            (Some(victims), _) => (victims, self.compression),
            (None, Some(cold)) => match self.cold_egroup(cold, ctx.now) {
                Some(victim) => (VecDeque::from([victim]), cold),
                None => return,
            },
            (None, None) => {
                self.repacking.wake_at = Some(ctx.now.after(LOOK_AGAIN_US));
                return;
            }
        };
        self.repacking.not_before = ctx.now.after(pause_us(ctx));
        self.repacking.wake_at = Some(self.repacking.not_before);
        ctx.counters.egroups_repacked += victims.len() as u64;
        self.start_moving(victims, packing, Whereto::Anywhere, ctx);
    }

    /// Some that are packed by another policy than the present one, and fit into one egroup together.
    fn changed_egroups(&self, is_wanted: impl Fn(Recipe) -> bool) -> Option<VecDeque<EgroupId>> {
        let directory = &self.map.directory;
        let mut victims = VecDeque::new();
        let (mut live, mut between) = (0, None);
        let recipes = directory.recipes().filter(|&recipe| !is_wanted(recipe));
        let names = recipes.flat_map(|recipe| directory.of_recipe(recipe)).take(NAMES);
        for egroup in names.filter(|&egroup| !self.compaction.avoids(egroup)).take(LOOKS) {
            let entry = directory.get(egroup).expect("it was just listed");
            let after = self.snapshot_before(entry.generation);
            if !self.may_be_victim(egroup, entry) || *between.get_or_insert(after) != after {
                continue;
            }
            live += entry.live as usize;
            if !victims.is_empty() && live > units_max(self.compression).min(self.compaction.units_max.get())
            {
                break;
            }
            victims.push_back(egroup);
        }
        (!victims.is_empty()).then_some(victims)
    }

    /// One that was not read for as long as the rule says, and is not packed for that yet.
    fn cold_egroup(&mut self, cold: Compression, now: Time) -> Option<EgroupId> {
        let after_us = self.compression.cold.map_or(u64::MAX, |rule| u64::from(rule.after_s) * 1_000_000);
        if now < self.repacking.walk_at {
            self.repacking.wake_at = Some(self.repacking.walk_at);
            return None;
        }
        let names = EgroupId(self.repacking.cursor.0 + 1)..=EgroupId(u64::MAX);
        let mut looked = 0;
        for (egroup, entry) in self.map.directory.range(names).take(LOOKS) {
            looked += 1;
            self.repacking.cursor = egroup;
            if !entry.recipe.serves(Recipe::of(cold))
                && self.repacking.is_cold(egroup, after_us, now)
                && self.may_be_victim(egroup, entry)
            {
                return Some(egroup);
            }
        }
        let is_over = looked < LOOKS;
        if is_over {
            self.repacking.cursor = EgroupId(0);
            self.repacking.walk_at =
                now.after((after_us / 4).clamp(*WALK_AGAIN_US.start(), *WALK_AGAIN_US.end()));
        }
        self.repacking.wake_at = Some(if is_over { self.repacking.walk_at } else { now });
        None
    }
}

impl Compression {
    /// How data that has become cold is packed: in the largest frames, because hardly anybody reads it.
    pub fn packing_of_cold(self) -> Option<Self> {
        let rule = self.cold?;
        Some(Self { method: Method::Zstd { level: rule.level }, frame_units: 8, cold: None, ..self })
    }
}
