//! The power goes everywhere at once, and a drive is lost soon after it is back, when it goes again.
//! Promises: what was acknowledged has another copy then. The victim's node comes back when all others have, so nothing is written on that
//! drive alone.
//! Leaves to others: all other faults (`atlas`).

use crate::coverage::Fault;
use crate::event::Event;
use crate::phase::Phase;
use crate::world::World;
use rand::Rng;
use weft_engine::DriveId;

/// How often it is looked whether the others are back.
const LOOK_US: u64 = 5_000;

impl World {
    /// Once in a round, in seeds that have it.
    pub fn plan_blackout(&mut self) {
        if self.parameters.blackouts && self.victim.is_some() {
            let at = self.rng.random_range(0..self.parameters.round_us);
            self.queue.push(self.now + at, Event::Blackout);
        }
    }

    pub fn blackout(&mut self) {
        let Some(victim) = self.damageable().filter(|&drive| !self.drives[drive].gone) else { return };
        if self.phase != Phase::Trouble || !self.nodes.iter().all(|node| node.up || node.removed) {
            return;
        }
        let home = self.node_of(victim);
        if self.may_have_lied() && self.has_a_log_only_at(home, victim) {
            return;
        }
        for node in 0..self.nodes.len() {
            let mood = self.mood();
            self.node_stops(node, Some(mood));
            if node != home {
                let time = self.rng.random_range(1_000..50_000);
                self.queue.push(self.now + time, Event::NodeStarts(node));
            }
        }
        self.coverage.count("times that the power went everywhere before a drive was lost");
        self.queue.push(self.now + LOOK_US, Event::PowerIsBack(victim));
    }

    /// Whether the victim may lack what it said was written.
    fn may_have_lied(&self) -> bool {
        [Fault::LostWrite, Fault::MisdirectedWrite].iter().any(|fault| self.parameters.faults.contains(fault))
    }

    /// Whether the copies of a log that the victim has are all on drives of its node, as where all others are being drained: then it would
    /// be the first that is asked, and what it has lost the other would tell too late.
    fn has_a_log_only_at(&self, home: usize, victim: usize) -> bool {
        let is_home = |drive: &DriveId| self.node_of(drive.0 as usize) == home;
        let victim = DriveId(victim as u32);
        let segments = self.control.families.iter().flat_map(|entry| &entry.record.segments);
        segments
            .map(|segment| &segment.members)
            .any(|members| members.len() > 1 && members.contains(&victim) && members.iter().all(is_home))
    }

    /// The victim's node follows the others.
    pub fn power_is_back(&mut self, victim: usize) {
        let home = self.node_of(victim);
        let is_there = |drive: usize| self.control.drives[drive].retired || self.control.drives[drive].ready;
        if !(0..self.drives.len()).all(|drive| self.node_of(drive) == home || is_there(drive)) {
            if self.phase == Phase::Trouble {
                self.queue.push(self.now + LOOK_US, Event::PowerIsBack(victim));
            }
            return;
        }
        self.node_starts(home);
        self.blacked_out = true;
        let soon = self.rng.random_range(1_000..1_000_000);
        self.queue.push(self.now + soon, Event::BlackoutAgain(victim));
    }

    /// Somebody begins a new part of a log, and has drained nothing of what was before.
    pub fn opened_after_blackout(&mut self) {
        if !self.blacked_out {
            return;
        }
        self.blacked_out = false;
        if let Some(victim) = self.victim {
            let soon = self.rng.random_range(0..3_000);
            self.queue.push(self.now + soon, Event::BlackoutAgain(victim));
        }
    }

    /// It goes once more, and the victim is not there any more when it is back. Nobody has in memory what that had.
    pub fn blackout_again(&mut self, victim: usize) {
        if self.victim != Some(victim) || self.phase != Phase::Trouble || self.control.drives[victim].retired
        {
            return;
        }
        for node in 0..self.nodes.len() {
            let mood = self.rng.random_bool(0.5).then(|| self.mood());
            self.node_stops(node, mood);
            let time = self.rng.random_range(1_000..50_000);
            self.queue.push(self.now + time, Event::NodeStarts(node));
        }
        self.drive_replaced(victim);
    }
}
