//! Which drives are used: opening them, missing them, replacing them.
//! Promises: a drive is formatted only until it was ready once; one that was replaced is never used again.
//! Leaves to others: what drives do to their data (`drive.rs`), when they fail (`atlas`).

use crate::coverage::Fault;
use crate::phase::Phase;
use crate::world::World;
use rand::Rng;
use weft_engine::interface::{DriveState, DriveTrouble, GroupView};
use weft_engine::{DriveId, Order};

/// So many times slower than in order is slow.
const SLOW: u64 = 20;

impl World {
    pub(super) fn drive_ready(&mut self, drive: DriveId) {
        let entry = &mut self.control.drives[drive.0 as usize];
        entry.opening = false;
        if entry.retired {
            return;
        }
        entry.ready = true;
        entry.formatted = true;
        entry.state = DriveState::Up;
        let replaces = entry.replaces.take();
        self.control.changed = true;
        self.control.unrest = self.now;
        // Where the real rule has the table, it sees that one is lost and another there.
        if let Some(old) = replaces.filter(|_| !self.is_cluster()) {
            let concerned = |group: &GroupView| group.members.iter().position(|&member| member == old);
            let groups: Vec<_> =
                self.control.groups.iter().filter_map(|(&id, group)| Some((id, concerned(group)?))).collect();
            for (group, at) in groups {
                self.control.change_member(group, at, drive);
            }
        }
    }

    pub(super) fn drive_failed(&mut self, drive: DriveId, reason: DriveTrouble) {
        let entry = &mut self.control.drives[drive.0 as usize];
        entry.ready = false;
        entry.opening = false;
        entry.retry_at = self.now + 100_000;
        self.control.unrest = self.now;
        self.coverage.count("drives failed");
        if entry.state == DriveState::Up {
            entry.state = DriveState::Down;
            self.control.changed = true;
        }
        if reason != DriveTrouble::Gone && entry.formatted {
            if self.victim != Some(drive.0 as usize) {
                self.fail(format!(
                    "drive {drive} cannot be used any more, though nothing was done to it: {reason}"
                ));
            } else if !entry.retired {
                self.drive_replaced(drive.0 as usize);
            }
        }
    }

    /// A drive is taken out for good, an empty one put into its place.
    pub fn drive_replaced(&mut self, drive: usize) {
        let entry = &mut self.control.drives[drive];
        if entry.retired {
            return;
        }
        entry.retired = true;
        entry.ready = false;
        entry.state = DriveState::Lost;
        let (shard, domain) = (entry.shard, entry.domain);
        self.control.changed = true;
        self.control.unrest = self.now;
        self.drives[drive].gone = true;
        self.coverage.fault(Fault::ReplacedDrive);
        self.order(shard, Order::CloseDrive { drive: DriveId(drive as u32) });
        let new = self.add_drive(shard);
        let entry = &mut self.control.drives[new.0 as usize];
        entry.domain = domain;
        entry.replaces = Some(DriveId(drive as u32));
    }

    /// A drive is to be emptied, or is not any more.
    pub fn drain_drive(&mut self, drive: usize, draining: bool) {
        self.control.drives[drive].draining = draining;
        self.control.changed = true;
        self.coverage.count(if draining { "drains of drives begun" } else { "drains of drives undone" });
    }

    /// A drive's process stops using it, though it may come back.
    pub fn close_drive(&mut self, drive: usize) {
        let entry = &mut self.control.drives[drive];
        if entry.retired || !entry.ready {
            return;
        }
        entry.ready = false;
        entry.state = DriveState::Down;
        let shard = entry.shard;
        self.control.changed = true;
        self.control.unrest = self.now;
        self.order(shard, Order::CloseDrive { drive: DriveId(drive as u32) });
    }

    /// That a drive is slow is told after a while, and so is its end; and now and then it is told of one that is not.
    pub(super) fn tell_slow_drives(&mut self) {
        if !self.parameters.tells_slow || self.phase != Phase::Trouble {
            return;
        }
        for drive in 0..self.drives.len() {
            let is_slow = self.drives[drive].slowness >= SLOW;
            let entry = &mut self.control.drives[drive];
            let mean_ticks = match (entry.slow, is_slow) {
                (false, true) => 10,
                (true, false) => 50,
                (false, false) => 1000,
                (true, true) => 500,
            };
            if !entry.retired && self.slow_rng.random_ratio(1, mean_ticks) {
                self.tell_slow(drive, !self.control.drives[drive].slow);
            }
        }
    }

    fn tell_slow(&mut self, drive: usize, slow: bool) {
        self.control.drives[drive].slow = slow;
        self.control.changed = true;
        self.coverage.count(if slow { "drives told to be slow" } else { "drives told to be slow no more" });
    }

    /// Faults have stopped. Some drives count as slow until the next round all the same: nobody asks them for anything.
    pub fn end_slowness(&mut self) {
        if !self.parameters.tells_slow || self.slow_rng.random_bool(0.5) {
            return;
        }
        for drive in 0..self.drives.len() {
            if self.control.drives[drive].slow {
                self.tell_slow(drive, false);
            }
        }
    }

    pub(super) fn reconcile_drives(&mut self) {
        for drive in 0..self.control.drives.len() {
            let hung = self.drives[drive].hung_until;
            let there = !self.drives[drive].gone && hung + 2_000 < self.now;
            if hung > self.now && self.drives[drive].hung_since + self.parameters.detection_us * 2 < self.now
            {
                self.close_drive(drive);
            }
            let entry = &self.control.drives[drive];
            let node = &self.nodes[self.shards[entry.shard].node];
            if entry.ready || entry.opening || entry.retired || !node.up || node.store_cut.is_some() {
                continue;
            }
            if !there || entry.retry_at > self.now {
                continue;
            }
            let format = !entry.formatted;
            let shard = entry.shard;
            self.control.drives[drive].opening = true;
            let geometry = self.drives[drive].geometry;
            self.order(
                shard,
                Order::OpenDrive { drive: DriveId(drive as u32), geometry, format, incarnation: None },
            );
        }
    }
}
