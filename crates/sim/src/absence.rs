//! A node that is away for long, and the drive of another that is lost meanwhile.
//! Promises: that drive is lost when others have what it has. Of two nodes the one that stands alone may have written on it alone, as
//! long as its other drives were not there; soon after they are back they have to have all of that.
//! Leaves to others: all other faults (`atlas`).

use crate::control::FamilyPhase;
use crate::event::Event;
use crate::phase::Phase;
use crate::platter::Mood;
use crate::world::World;
use rand::Rng;
use weft_engine::DriveId;
use weft_engine::interface::Area;

/// So long after all was in order again, what one drive had alone has to be on another one.
const ALONE_US: u64 = 3_000_000;

/// A drive that is slower than this takes longer.
const SLOW: u64 = 20;

impl World {
    /// The absentee goes, mostly for seconds.
    pub fn send_away(&mut self) -> bool {
        let Some(node) = self.absentee.filter(|&node| self.nodes[node].up) else { return false };
        let mood = self.rng.random_bool(0.5).then(|| self.mood());
        self.node_stops(node, mood);
        let time = self.rng.random_range(200_000..self.parameters.round_us);
        self.queue.push(self.now + time, Event::NodeStarts(node));
        if let Some(victim) = self.damageable()
            && self.rng.random_ratio(1, 3)
        {
            self.end_badly(victim, mood);
        }
        true
    }

    /// The victim's node ends at the same moment, with the other member of its logs, and comes back without that. What its drive
    /// wrote last has become bad.
    fn end_badly(&mut self, victim: usize, mood: Option<Mood>) {
        let home = self.node_of(victim);
        if !self.nodes[home].up {
            return;
        }
        self.node_stops(home, mood);
        if let Some(at) = self.drives[victim].area_mut(Area::Log).newest_written(&mut self.rng) {
            self.flip(victim, Area::Log, at);
        }
        let time = self.rng.random_range(1_000..100_000);
        self.queue.push(self.now + time, Event::NodeStarts(home));
        if self.rng.random_ratio(1, 3) {
            let again = time + self.rng.random_range(1_000..1_000_000);
            self.queue.push(self.now + again, Event::EndsBadly(victim));
        }
    }

    /// It ends so once more, with what it has written since: what it has said of that end is bad too.
    pub fn end_badly_again(&mut self, victim: usize) {
        let is_away = self.absentee.is_some_and(|node| !self.nodes[node].up);
        if is_away && self.damageable() == Some(victim) && self.phase == Phase::Trouble {
            let mood = self.rng.random_bool(0.5).then(|| self.mood());
            self.end_badly(victim, mood);
        }
    }

    fn is_pair(&self) -> bool {
        self.nodes.len() == 2 && self.victim.is_some()
    }

    /// The node that a drive is in.
    pub(crate) fn node_of(&self, drive: usize) -> usize {
        self.shards[self.drives[drive].shard].node
    }

    /// Notes whether the drives that are left may be behind with what the victim has.
    pub fn note_alone(&mut self) {
        let Some(absentee) = self.absentee.filter(|_| self.is_pair()) else { return };
        let (drives, control) = (&self.drives, &self.control);
        let is_there = |&drive: &usize| {
            let state = &drives[drive];
            let is_quick = state.hung_until < self.now && state.slowness < SLOW && !state.gone;
            self.node_of(drive) != absentee && control.drives[drive].ready && is_quick
        };
        let is_served = control
            .families
            .iter()
            .all(|entry| matches!(entry.phase, FamilyPhase::Ready | FamilyPhase::Dropped));
        let node = &self.nodes[1 - absentee];
        let is_heard = node.up && node.waiting.is_none() && node.store_cut.is_none();
        if !is_served || !is_heard || (0..drives.len()).filter(is_there).count() < 2 {
            self.alone_at = self.now;
        }
    }

    /// Whether this drive was the only one for a part of the vDisk's log, as the config store knows it.
    pub fn is_alone(&self, family: usize, drive: usize) -> bool {
        let is_other =
            |other: DriveId| other.0 as usize != drive && !self.control.drives[other.0 as usize].retired;
        let segments = &self.control.families[family].record.segments;
        segments.iter().any(|segment| !segment.drives().any(is_other))
    }

    /// Whether no log was written on this drive alone, or only so long ago that others have all of it by now.
    pub fn may_lose(&self, drive: usize) -> bool {
        !self.is_pair()
            || self.now >= self.alone_at + ALONE_US * self.parameters.slowness
            || !(0..self.control.families.len()).any(|family| self.is_alone(family, drive))
    }

    /// Somebody has taken over what perhaps the absentee served, and has drained nothing of it yet.
    pub fn taken_over(&mut self) {
        let is_away = self.absentee.is_some_and(|node| !self.nodes[node].up);
        if let Some(victim) = self.victim.filter(|_| is_away)
            && self.rng.random_ratio(1, 4)
        {
            let soon = self.rng.random_range(0..20_000);
            self.queue.push(self.now + soon, Event::DriveLost(victim));
        }
    }

    /// The victim is lost at once, and with it the process of its node: whoever serves from there has in memory what the drive had.
    pub fn lose(&mut self, drive: usize) {
        if self.victim != Some(drive) || self.phase != Phase::Trouble || !self.may_lose(drive) {
            return;
        }
        let node = self.node_of(drive);
        self.node_stops(node, None);
        self.queue.push(self.now + 10_000, Event::NodeStarts(node));
        self.drive_replaced(drive);
    }
}
