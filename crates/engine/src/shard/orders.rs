//! What the control plane orders of a shard: drives and vDisks come and go, and change what they are.
//! Promises: an order of an older epoch does nothing; a vDisk is destroyed when every drive that is not lost has confirmed it.
//! Leaves to others: doing it (`volume`, `keeper`), the view (`shard`).

use super::Shard;
use crate::context::{Context, Purpose, is_lost};
use crate::identity::{DriveId, Epoch, FamilyId, Time};
use crate::interface::{Census, DriveState, FamilyRecord, Notice, Order, Outputs, RequestError};
use crate::keeper::Keeper;
use crate::message::{Answer, Question, Refusal};
use crate::openings::Wish;
use crate::volume::Volume;
use std::collections::BTreeSet;

/// A family being destroyed: these drives have not confirmed yet.
pub(super) struct Dropping {
    epoch: Epoch,
    drives: BTreeSet<DriveId>,
    asked: BTreeSet<DriveId>,
}

impl Shard {
    pub(super) fn on_order(&mut self, now: Time, order: Order, out: &mut Outputs) {
        match order {
            Order::View(view) => self.on_view(now, view, out),
            Order::OpenDrive { drive, geometry, format, incarnation } => {
                self.open_drive(now, drive, Wish { geometry, format, incarnation }, out)
            }
            Order::Rest => {
                for keeper in self.keepers.values_mut() {
                    keeper.rest(now, &mut self.effects);
                }
                self.take_effects(now, out);
            }
            Order::CloseDrive { drive } => self.close_drive(now, drive),
            Order::OpenFamily(record) => self.open_family(now, record, out),
            Order::CloseFamily { family } => self.close_family(now, family, out),
            Order::DropFamily { family, epoch } => {
                self.close_family(now, family, out);
                self.world.cache.forget(family);
                let all = self.world.view.drives.iter();
                let drives =
                    all.filter(|(_, view)| view.state != DriveState::Lost).map(|(&drive, _)| drive).collect();
                self.dropping.insert(family, Dropping { epoch, drives, asked: BTreeSet::new() });
                self.advance_dropping(now, out);
            }
            Order::Census(census) => self.on_census(now, census, out),
            Order::DropStray { drive, family } => {
                if let Some(keeper) = self.keepers.get_mut(&drive) {
                    keeper.drop_stray(now, family, &mut self.effects);
                    self.take_effects(now, out);
                }
            }
            Order::SetCache { bytes } => self.world.cache.set_limit(bytes),
            Order::Resize { family, size } => {
                if let Some(volume) = self.volumes.get_mut(&family) {
                    volume.resize(size);
                }
            }
            Order::SetCompression { family, compression } => {
                if let Some(volume) = self.volumes.get_mut(&family) {
                    volume.compression = compression;
                    volume.repacking.on_policy(compression, now);
                    self.touched.insert(family);
                }
            }
            Order::SetCeiling { family, ceiling } => {
                self.order_volume(now, family, out, |volume, _| volume.set_ceiling(ceiling));
            }
            Order::SetFactor { family, factor } => {
                self.order_volume(now, family, out, |volume, ctx| volume.set_factor(factor, ctx));
            }
            Order::SegmentsChanged { family, epoch, version, taken } => {
                let is_asker = |volume: &Volume| volume.epoch() == epoch && !volume.is_failed();
                if self.volumes.get(&family).is_some_and(is_asker) {
                    self.with_volume(now, family, out, |volume, ctx| {
                        volume.on_segments_changed(version, taken, ctx);
                    });
                    self.touched.insert(family);
                }
            }
            Order::TakeSnapshot { family, snapshot } => {
                self.order_volume(now, family, out, |volume, ctx| volume.take_snapshot(snapshot, ctx));
            }
            Order::DropSnapshot { family, generation } => {
                self.order_volume(now, family, out, |volume, ctx| volume.drop_snapshot(generation, ctx));
            }
            Order::RollBack { family, to } => {
                self.order_volume(now, family, out, |volume, ctx| volume.roll_back(to, ctx));
            }
            Order::Resume { family } => {
                if let Some(volume) = self.volumes.get_mut(&family) {
                    volume.resume();
                    self.touched.insert(family);
                }
            }
            Order::Settle { family } => {
                if let Some(volume) = self.volumes.get_mut(&family) {
                    volume.settle();
                    self.touched.insert(family);
                }
            }
            Order::StopSettling { family } => {
                if let Some(volume) = self.volumes.get_mut(&family) {
                    volume.stop_settling();
                }
            }
        }
    }

    /// Has a volume do something that it may go on with by itself.
    fn order_volume(
        &mut self,
        now: Time,
        family: FamilyId,
        out: &mut Outputs,
        order: impl FnOnce(&mut Volume, &mut Context),
    ) {
        self.with_volume(now, family, out, order);
        self.touched.extend(self.volumes.contains_key(&family).then_some(family));
    }

    fn on_census(&mut self, now: Time, census: Census, out: &mut Outputs) {
        self.census = census;
        for keeper in self.keepers.values_mut() {
            keeper.on_census(now, self.census.clone(), &mut self.effects);
        }
        self.take_effects(now, out);
    }

    pub(super) fn open_drive(&mut self, now: Time, drive: DriveId, wish: Wish, out: &mut Outputs) {
        self.close_drive(now, drive);
        let Some(base) = self.openings.open(drive, wish) else { return };
        let (home, limits) = (self.world.shard, &self.world.limits);
        let mut keeper = Keeper::open(drive, home, wish, base, limits, &mut self.effects);
        keeper.on_census(now, self.census.clone(), &mut self.effects);
        self.keepers.insert(drive, keeper);
        self.take_effects(now, out);
    }

    fn close_drive(&mut self, now: Time, drive: DriveId) {
        self.openings.close(drive);
        if self.keepers.remove(&drive).is_some() {
            self.world.calls.revive(drive, now);
        }
    }

    fn open_family(&mut self, now: Time, record: FamilyRecord, out: &mut Outputs) {
        let family = record.family;
        if self.volumes.get(&family).is_some_and(|volume| volume.epoch() >= record.epoch) {
            return;
        }
        self.close_family(now, family, out);
        let volume = Volume::open(record, &mut self.world.context(now, out));
        self.volumes.insert(family, volume);
        self.touched.insert(family);
    }

    fn close_family(&mut self, now: Time, family: FamilyId, out: &mut Outputs) {
        if let Some(mut volume) = self.volumes.remove(&family) {
            self.world.dirty_bytes -= volume.undrained_bytes();
            volume.close(RequestError::Fenced, &mut self.world.context(now, out));
            self.note_wake(family, None);
        }
    }

    /// Asks every drive that is up and has not confirmed. Those that are away are asked when they come back.
    pub(super) fn advance_dropping(&mut self, now: Time, out: &mut Outputs) {
        let mut done = Vec::new();
        for (&family, dropping) in &mut self.dropping {
            dropping.drives.retain(|drive| !is_lost(&self.world.view, *drive));
            let waiting: Vec<DriveId> = dropping.drives.iter().copied().collect();
            for drive in waiting {
                let mut ctx = self.world.context(now, out);
                if ctx.is_up(drive) && dropping.asked.insert(drive) {
                    ctx.ask(family, dropping.epoch, drive, Question::DropFamily, Purpose::Drop);
                }
            }
            if dropping.drives.is_empty() {
                done.push(family);
            }
        }
        for family in done {
            self.dropping.remove(&family);
            out.notices.push(Notice::FamilyDropped { family });
        }
    }

    pub(super) fn on_dropped(
        &mut self,
        now: Time,
        family: FamilyId,
        drive: DriveId,
        answer: Result<Answer, Refusal>,
        out: &mut Outputs,
    ) {
        if answer.is_ok() {
            self.world.space_asked.note_deletion(now);
        }
        let Some(dropping) = self.dropping.get_mut(&family) else { return };
        match answer {
            Ok(_) => drop(dropping.drives.remove(&drive)),
            Err(_) => drop(dropping.asked.remove(&drive)),
        }
        if dropping.drives.is_empty() {
            self.dropping.remove(&family);
            out.notices.push(Notice::FamilyDropped { family });
        }
    }
}
