//! The fault atlas: one bad thing after another, of the kinds this seed has switched on.
//! Promises: what was acknowledged always has a good copy left. Faults that can destroy a copy hit one drive
//! per round, the victim, in runs where everything has two copies, and while they are on no other drive is
//! taken away, but those of one node where there are three (the absentee); the round ends with everything repaired before there
//! is another victim.

use crate::coverage::Fault;
use crate::event::Event;
use crate::network::Weather;
use crate::phase::Phase;
use crate::plan::{CACHE_BYTES, FamilyPlan};
use crate::platter::{Mood, flipped};
use crate::world::World;
use rand::Rng;
use rand::seq::IndexedRandom;
use std::collections::BTreeSet;
use weft_engine::interface::Area;
use weft_engine::{DriveId, FamilyId, GroupId, Order};

impl World {
    /// The next bad thing, and the plan for the one after.
    pub fn fault(&mut self) {
        if self.phase != Phase::Trouble {
            return;
        }
        let every = self.parameters.fault_every_us;
        let next = self.rng.random_range(every / 4..every * 2);
        self.queue.push(self.now + next, Event::Fault);
        let Some(&fault) = self.parameters.faults.choose(&mut self.rng) else { return };
        if self.trace {
            println!("{:>10} fault {fault:?}", self.now);
        }
        if self.do_fault(fault) {
            self.coverage.fault(fault);
        }
    }

    /// False if it was not possible now (or counts itself).
    fn do_fault(&mut self, fault: Fault) -> bool {
        match fault {
            Fault::PowerCutNode | Fault::KillNode => self.stop_node(fault == Fault::PowerCutNode),
            Fault::PowerCutAll | Fault::KillAll => self.stop_all(fault == Fault::PowerCutAll),
            Fault::PauseNode => self.pause_node(),
            Fault::ClockJump => self.jump_clock(),
            Fault::UnreadableBlock | Fault::FlipInStore => self.damage_block(fault == Fault::UnreadableBlock),
            Fault::FlipOnRead | Fault::LostWrite | Fault::MisdirectedWrite => self.begin_rot(fault),
            Fault::SlowDrive => {
                let drive = self.rng.random_range(0..self.drives.len());
                self.drives[drive].slowness = *[1, 5, 20, 100].choose(&mut self.rng).expect("not empty");
                true
            }
            Fault::HungDrive => self.hang_drive(),
            Fault::MissingDrive => self.take_drive(false),
            // With an absentee the loss that matters is one that comes late, while that is away.
            Fault::ReplacedDrive
                if self.absentee.is_some_and(|node| self.nodes[node].up || self.is_early()) =>
            {
                false
            }
            Fault::ReplacedDrive => self.take_drive(true),
            Fault::AbsentNode => self.send_away(),
            Fault::NetworkWeather => self.change_weather(),
            Fault::Partition => self.cut_network(),
            Fault::StoreCut => {
                let node = self.rng.random_range(0..self.nodes.len());
                let time = self.rng.random_range(10_000..self.parameters.lease_us * 5);
                self.store_cut(node, self.now + time);
                true
            }
            Fault::OwnerMove | Fault::StaleOwner => self.move_owner(fault == Fault::StaleOwner),
            Fault::GroupChange => self.change_group(),
            Fault::DrainDrive => self.drain_some_drive(),
            Fault::DrainNode => self.drain_some_node(),
            Fault::AddNode => self.add_some_node(),
            Fault::Settle => self.settle_one(),
            Fault::FamilyCreate => self.create_one(),
            Fault::FamilyDrop => self.drop_one(),
            Fault::FamilyGrow => self.grow_one(),
            Fault::ResizeCache => {
                let shard = self.rng.random_range(0..self.shards.len());
                let bytes = *CACHE_BYTES.choose(&mut self.rng).expect("not empty");
                self.order(shard, Order::SetCache { bytes });
                true
            }
        }
    }

    pub(crate) fn mood(&mut self) -> Mood {
        match self.rng.random_range(0..4) {
            0 => Mood::LosesAll,
            1 => Mood::KeepsAll,
            _ => Mood::Mixed(self.rng.random_range(10..95)),
        }
    }

    fn stop_node(&mut self, cut: bool) -> bool {
        let node = match self.victim {
            // Only the victim's node may go, and only if others are left.
            Some(_) if self.nodes.len() == 1 => return false,
            Some(drive) => self.node_of(drive),
            None => self.rng.random_range(0..self.nodes.len()),
        };
        if !self.nodes[node].up {
            return false;
        }
        let mood = cut.then(|| self.mood());
        self.node_stops(node, mood);
        let time = if self.rng.random_bool(0.7) {
            self.rng.random_range(1_000..300_000)
        } else {
            self.rng.random_range(300_000..3_000_000) * self.parameters.slowness
        };
        self.queue.push(self.now + time, Event::NodeStarts(node));
        true
    }

    pub(crate) fn flip(&mut self, drive: usize, area: Area, at: usize) {
        let platter = self.drives[drive].area_mut(area);
        let bad = flipped(platter.content(at).as_ref().expect("it was written"), &mut self.rng);
        platter.damage(at, Some(bad));
        if self.trace {
            println!("{:>10} flipped drive {drive} {area:?} block {at}", self.now);
        }
    }

    /// Most of the round is still to come.
    fn is_early(&self) -> bool {
        self.now + self.parameters.round_us / 2 < self.progress.until
    }

    fn stop_all(&mut self, cut: bool) -> bool {
        let mood = cut.then(|| self.mood());
        for node in 0..self.nodes.len() {
            self.node_stops(node, mood);
            let time = self.rng.random_range(1_000..400_000);
            self.queue.push(self.now + time, Event::NodeStarts(node));
        }
        true
    }

    fn pause_node(&mut self) -> bool {
        let node = self.rng.random_range(0..self.nodes.len());
        if !self.nodes[node].up || self.nodes[node].waiting.is_some() {
            return false;
        }
        let time = self.rng.random_range(1_000..self.parameters.lease_us * 4);
        self.nodes[node].waiting = Some(Vec::new());
        self.nodes[node].pauses += 1;
        let pause = self.nodes[node].pauses;
        self.queue.push(self.now + time, Event::NodeWakes { node, pause });
        true
    }

    fn jump_clock(&mut self) -> bool {
        let node = self.rng.random_range(0..self.nodes.len());
        let jump = self.rng.random_range(1_000..20_000_000);
        for shard in self.nodes[node].shards.clone() {
            self.shards[shard].clock_ahead += jump;
            self.plan_wake(shard);
        }
        true
    }

    /// A drive that may be damaged: the victim, where there is one.
    pub(crate) fn damageable(&self) -> Option<usize> {
        self.victim.filter(|&drive| !self.control.drives[drive].retired)
    }

    fn damage_block(&mut self, unreadable: bool) -> bool {
        let Some(drive) = self.damageable() else { return false };
        for _ in 0..self.rng.random_range(1..8) {
            let area = if self.rng.random_bool(0.4) { Area::Log } else { Area::Data };
            let platter = self.drives[drive].area_mut(area);
            let Some(at) = platter.any_written(&mut self.rng) else { continue };
            if unreadable {
                platter.make_unreadable(at);
            } else {
                self.flip(drive, area, at);
            }
        }
        true
    }

    fn begin_rot(&mut self, fault: Fault) -> bool {
        let Some(drive) = self.damageable() else { return false };
        let chance = self.rng.random_range(1..400);
        let rot = &mut self.drives[drive].rot;
        match fault {
            Fault::FlipOnRead => rot.flip_on_read = chance,
            Fault::LostWrite => rot.lost_write = chance,
            _ => rot.misdirected_write = chance,
        }
        // The drive itself counts what it does.
        false
    }

    /// A drive to take away: the victim, or any.
    fn removable(&mut self) -> Option<usize> {
        if self.parameters.destroys {
            return self.damageable();
        }
        let drive = self.rng.random_range(0..self.drives.len());
        let entry = &self.control.drives[drive];
        (!entry.retired && !self.drives[drive].gone).then_some(drive)
    }

    fn hang_drive(&mut self) -> bool {
        let Some(drive) = self.removable() else { return false };
        let time = if self.rng.random_bool(0.5) {
            self.rng.random_range(10_000..200_000)
        } else {
            self.rng.random_range(200_000..4_000_000)
        };
        self.drives[drive].hung_since = self.now;
        let drive = &mut self.drives[drive];
        drive.hung_until = drive.hung_until.max(self.now + time);
        true
    }

    fn take_drive(&mut self, replace: bool) -> bool {
        let Some(drive) = self.removable() else { return false };
        if self.drives[drive].gone || replace && !self.may_lose(drive) {
            return false;
        }
        self.drives[drive].gone = true;
        let time = self.rng.random_range(10_000..3_000_000);
        let event = if replace { Event::DriveReplaced(drive) } else { Event::DriveReturns(drive) };
        self.queue.push(self.now + time, event);
        // A replaced drive counts itself.
        !replace
    }

    fn change_weather(&mut self) -> bool {
        if self.nodes.len() == 1 {
            return false;
        }
        let rng = &mut self.rng;
        let chance = [0, 50, 500, 3_000];
        self.network.weather = Weather {
            loss: *chance.choose(rng).expect("not empty"),
            repeat: *chance.choose(rng).expect("not empty"),
            late: *chance.choose(rng).expect("not empty"),
            late_us: *[1_000, 50_000, 1_000_000].choose(rng).expect("not empty"),
        };
        self.network.weather_until = self.now + rng.random_range(100_000..2_000_000);
        true
    }

    fn cut_network(&mut self) -> bool {
        if self.nodes.len() == 1 {
            return false;
        }
        let from = self.rng.random_range(0..self.nodes.len());
        let both = self.rng.random_bool(0.5);
        let one = self.rng.random_bool(0.5).then(|| self.rng.random_range(0..self.nodes.len()));
        let until = self.now + self.rng.random_range(20_000..2_000_000) * self.parameters.slowness;
        for to in (0..self.nodes.len()).filter(|&to| to != from && one.is_none_or(|one| one == to)) {
            self.network.cut(from, to, until);
            if both {
                self.network.cut(to, from, until);
            }
        }
        true
    }

    fn move_owner(&mut self, stale: bool) -> bool {
        let family = self.rng.random_range(0..self.families.len());
        let Some(owner) = self.control.families[family].owner else { return false };
        let live = self.live_shards();
        let others: Vec<usize> = live.iter().copied().filter(|&shard| !stale || shard != owner).collect();
        let Some(&to) = others.choose(&mut self.rng) else { return false };
        self.move_family(family, Some(to), stale);
        true
    }

    /// One member of a group is exchanged for another drive, while it is still there.
    fn change_group(&mut self) -> bool {
        if self.parameters.destroys {
            return false;
        }
        let groups: Vec<_> = self.control.groups.keys().copied().collect();
        let group = *groups.choose(&mut self.rng).expect("there are groups");
        let members = &self.control.groups[&group].members;
        let at = self.rng.random_range(0..members.len());
        if self.rng.random_bool(0.7) {
            return self.exchange_member(group, at);
        }
        self.leave_groups(members[at])
    }

    /// A drive leaves every group that has somebody else to take its place.
    fn leave_groups(&mut self, leaving: DriveId) -> bool {
        let groups: Vec<_> = self.control.groups.keys().copied().collect();
        let mut changed = false;
        for group in groups {
            let place = self.control.groups[&group].members.iter().position(|&member| member == leaving);
            if let Some(at) = place {
                changed |= self.exchange_member(group, at);
            }
        }
        changed
    }

    /// A drive is to be emptied; or one that was may stay after all.
    fn drain_some_drive(&mut self) -> bool {
        let draining = self.control.drives_draining(true);
        if let Some(&drive) = draining.choose(&mut self.rng)
            && self.rng.random_bool(0.5)
        {
            self.drain_drive(drive, false);
            return true;
        }
        let staying = self.control.drives_draining(false);
        let Some(&drive) = staying.choose(&mut self.rng) else { return false };
        // As a node does it: where the rules place copies, as many domains have to stay as there shall be copies.
        let domains = staying.iter().filter(|&&other| other != drive);
        let domains: BTreeSet<u32> = domains.map(|&other| self.control.drives[other].domain).collect();
        let existing = self.control.families.iter().zip(&self.families).filter(|(_, family)| family.exists);
        let most = existing.map(|(entry, _)| entry.record.factor as usize).max().unwrap_or(0);
        if self.is_cluster() && domains.len() < most {
            return false;
        }
        self.drain_drive(drive, true);
        if !self.parameters.destroys && !self.is_cluster() && self.rng.random_bool(0.7) {
            self.leave_groups(DriveId(drive as u32));
        }
        true
    }

    fn exchange_member(&mut self, group: GroupId, at: usize) -> bool {
        let view = self.control.groups[&group].clone();
        let domain = |drive: DriveId| self.control.domain_of(drive);
        let fits = |&drive: &DriveId| {
            let others = view.members.iter().enumerate().filter(|(index, _)| *index != at);
            !view.members.contains(&drive)
                && self.control.drives[drive.0 as usize].ready
                && !self.control.drives[drive.0 as usize].draining
                && others.map(|(_, member)| domain(*member)).all(|other| other != domain(drive))
        };
        let fitting: Vec<DriveId> = (0..self.drives.len() as u32).map(DriveId).filter(fits).collect();
        let Some(&new) = fitting.choose(&mut self.rng) else { return false };
        self.control.change_member(group, at, new);
        true
    }

    fn settle_one(&mut self) -> bool {
        let family = self.rng.random_range(0..self.families.len());
        let Some(owner) = self.control.families[family].owner else { return false };
        self.order(owner, Order::Settle { family: FamilyId(family as u32) });
        true
    }

    fn create_one(&mut self) -> bool {
        let alive = self.families.iter().filter(|family| family.exists).count();
        if alive >= 5 || self.families.len() >= 12 {
            return false;
        }
        let domains = self.control.domains_up().len().max(1) as u32;
        let least = if self.parameters.destroys { 2 } else { 1 };
        if domains < least || !self.control.all_drives_up() {
            return false;
        }
        let plan = FamilyPlan {
            factor: self.rng.random_range(least..=domains.min(3)),
            blocks: self.rng.random_range(64..256),
            runs: 1,
            clients: 1,
        };
        self.create_family(&plan);
        true
    }

    fn drop_one(&mut self) -> bool {
        let alive: Vec<usize> =
            (0..self.families.len()).filter(|&family| self.families[family].exists).collect();
        if alive.len() < 2 {
            return false;
        }
        let family = *alive.choose(&mut self.rng).expect("there are two");
        if self.has_clones(family, None) {
            return false;
        }
        self.drop_family(family);
        true
    }

    fn grow_one(&mut self) -> bool {
        let family = self.rng.random_range(0..self.families.len());
        if !self.families[family].exists || self.families[family].layout.runs.len() > 8 {
            return false;
        }
        let blocks = self.rng.random_range(1..64);
        self.grow_family(family, blocks);
        true
    }
}
