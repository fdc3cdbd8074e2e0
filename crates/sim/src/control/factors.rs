//! Numbers of copies: others at any time, told to owners while clients work.
//! Promises: what is written down is what the next owner is told; whoever says that it is done is judged at that moment.
//! Leaves to others: what owners do about it (the engine), what is right (`judge/factors.rs`).

use super::FamilyPhase;
use crate::engine_view::volumes;
use crate::event::Event;
use crate::judge::factors::all_have_copies;
use crate::judge::placement::Named;
use crate::phase::Phase;
use crate::world::World;
use rand::Rng;
use rand::seq::IteratorRandom;
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::buffer::BLOCK;
use weft_engine::interface::{FactorProgress, View};
use weft_engine::keeper::Keeper;
use weft_engine::limits::EGROUP_UNITS;
use weft_engine::volume::Volume;
use weft_engine::{DriveId, Epoch, FamilyId, GroupId, Order, Time};

/// There are groups of so many drives at most.
const FACTOR_MAX: usize = 3;

impl World {
    /// What administrators do: they want more copies of some vDisk, or fewer.
    pub fn factor_tick(&mut self) {
        let Some(plan) = self.parameters.factors.filter(|_| self.phase == Phase::Trouble) else { return };
        let next = self.factor_rng.random_range(plan.every_us / 4..plan.every_us * 2);
        self.queue.push(self.now + next, Event::Factor);
        let staying = self.control.drives_draining(false);
        let domains: BTreeSet<u32> =
            staying.into_iter().map(|drive| self.control.drives[drive].domain).collect();
        let most = domains.len().min(FACTOR_MAX) as u32;
        // What was damaged on purpose needs another copy.
        let least = if self.parameters.destroys { 2 } else { 1 };
        let existing = (0..self.families.len()).filter(|&family| self.families[family].exists);
        let Some(family) = existing.choose(&mut self.factor_rng).filter(|_| least < most) else { return };
        let factor = self.factor_rng.random_range(least..=most);
        let entry = &mut self.control.families[family];
        if entry.record.factor == factor {
            return;
        }
        self.coverage.count(if entry.record.factor < factor {
            "more copies wanted"
        } else {
            "fewer copies wanted"
        });
        entry.record.factor = factor;
        // More are due when the owner says that they are there.
        let due = &mut self.families[family].factor;
        *due = factor.min(*due);
        let Some(owner) = entry.owner else { return };
        self.order(owner, Order::SetFactor { family: FamilyId(family as u32), factor });
    }

    /// The owner says that everything has so many copies.
    pub(super) fn judge_factor(&mut self, shard: usize, family: FamilyId, epoch: Epoch, factor: u32) {
        let index = family.0 as usize;
        let entry = &self.control.families[index];
        // Who was replaced, or has not heard of the present wish, knows only what was so before.
        if entry.record.epoch != epoch || entry.owner != Some(shard) || entry.record.factor != factor {
            return;
        }
        let members = entry.record.segments.last().map_or(0, |segment| segment.members.len());
        if members != factor as usize {
            return self.fail(format!(
                "family {family} is said to have {factor} copies, and its log has {members} members"
            ));
        }
        let (Some(engine), Some(view)) = (&self.shards[shard].engine, &self.shards[shard].common) else {
            return;
        };
        let volume = engine.volume(family).expect("who says something of a family serves it");
        let named: Vec<Named> = named_by(volume, view, family).map(|(_, named)| named).collect();
        let judged = all_have_copies(&named, factor, &self.drives, |drive| self.lied.contains(&drive));
        if let Err(what) = judged {
            return self.fail(format!("family {family}: {what}"));
        }
        self.coverage.count("numbers of copies reached");
        self.coverage.add("egroups of which copies were counted", named.len() as u64);
        self.families[index].factor = factor;
    }

    /// No owner says that everything has its copies while it knows that a drive with some of them is away.
    pub(crate) fn judge_reached(&mut self) {
        if let Some((family, drive)) = self.said_too_much() {
            self.fail(format!("family {family} is said to have all its copies, and drive {drive} is away"));
        }
    }

    fn said_too_much(&self) -> Option<(FamilyId, DriveId)> {
        // What has just taken in a view, and not settled, says nothing yet.
        for engine in
            self.shards.iter().filter_map(|shard| shard.engine.as_ref().filter(|engine| engine.is_settled()))
        {
            let view = engine.view();
            let is_up = |drive: &DriveId| view.drives.get(drive).is_some_and(|drive| drive.state.is_up());
            let is_said = |volume: &Volume| volume.factor_progress(view, Time(0)).reached;
            let served = engine.volumes().filter(|(_, volume)| volume.is_serving());
            for (family, volume) in served.filter(|(_, volume)| is_said(volume)) {
                let mut members = named_by(volume, view, family).flat_map(|(_, named)| named.members);
                if let Some(away) = members.find(|drive| !is_up(drive)) {
                    return Some((family, away));
                }
            }
        }
        None
    }

    /// The owner says that each member of these groups has everything: former ones may let go of what they have.
    pub(super) fn judge_whole(&mut self, shard: usize, family: FamilyId, epoch: Epoch, groups: &[GroupId]) {
        let entry = &self.control.families[family.0 as usize];
        let state = &self.shards[shard];
        let (Some(engine), Some(view)) = (&state.engine, &state.common) else { return };
        // Who was replaced, or destroys it, knows only what was so before.
        let is_owner = entry.record.epoch == epoch && entry.owner == Some(shard);
        let Some(volume) = engine.volume(family).filter(|_| is_owner) else { return };
        let mut named: BTreeMap<usize, Vec<Named>> = BTreeMap::new();
        for (group, egroup) in named_by(volume, view, family) {
            if groups.contains(&group) && view.groups.contains_key(&group) {
                named.entry(egroup.members.len()).or_default().push(egroup);
            }
        }
        let mut count = 0;
        for (members, named) in named {
            count += named.len() as u64;
            let lied = |drive| self.lied.contains(&drive);
            if let Err(what) = all_have_copies(&named, members as u32, &self.drives, lied) {
                return self.fail(format!("groups of family {family} are said to be whole: {what}"));
            }
        }
        self.coverage.add("egroups of groups that were said to be whole", count);
    }

    /// Every vDisk has as many copies as it should, and its owner has said so.
    pub(crate) fn factors_reached(&self) -> Result<(), String> {
        for (family, _) in volumes(self) {
            let entry = &self.control.families[family];
            let owner = entry.owner.expect("a served family has an owner");
            let state = &self.shards[owner];
            let engine = state.engine.as_ref().expect("an owner lives");
            let now = Time(self.now + state.clock_ahead);
            let progress = engine.factor_progress(FamilyId(family as u32), now);
            let wanted = entry.record.factor;
            let is_done = |progress: FactorProgress| {
                let is_told = progress.short && !self.has_room_for(wanted);
                progress.wanted == wanted && (progress.reached || is_told)
            };
            if entry.phase == FamilyPhase::Ready && !progress.is_some_and(is_done) {
                return Err(format!("family {family} has not got its copies: {progress:?}"));
            }
        }
        Ok(())
    }

    /// Whether some group of so many members has room for any egroup, as its drives count it.
    fn has_room_for(&self, factor: u32) -> bool {
        let free = |drive: &DriveId| {
            let engine = self.shards[self.control.drives[drive.0 as usize].shard].engine.as_ref();
            engine.and_then(|engine| engine.keeper(*drive)).map_or(0, Keeper::free_bytes)
        };
        let groups = self.control.groups.values().filter(|group| group.members.len() == factor as usize);
        let mut room = groups.filter_map(|group| group.members.iter().map(free).min());
        room.any(|bytes| bytes >= ROOM_FOR_COPIES)
    }
}

/// More copies are made in half of the room that there is, an egroup at a time.
const ROOM_FOR_COPIES: u64 = 2 * (EGROUP_UNITS * BLOCK) as u64;

/// All egroups that the owner's map names, each with its group and the members of that in `view`.
fn named_by(volume: &Volume, view: &View, family: FamilyId) -> impl Iterator<Item = (GroupId, Named)> {
    volume.egroups().map(move |egroup| {
        let group = volume.map().group_of(egroup).expect("what is named has a group");
        let members = view.groups.get(&group).map_or_else(Vec::new, |group| group.members.clone());
        (group, Named { family, egroup, units: 0, stored: 0, members, former: Vec::new() })
    })
}
