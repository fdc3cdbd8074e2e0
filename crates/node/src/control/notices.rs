//! What the shards tell the control plane, and what it does about it.

use super::failure::Failure;
use super::{Control, Part, Serving, SharedControl, Standing};
use crate::config::{DriveRecordState, SegmentRecord};
use crate::shard_loop::{Mail, News};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;
use weft_engine::interface::{Damage, Notice, Order, Segment};
use weft_engine::{DriveId, Epoch, FamilyId, ShardId};

/// What the store of a single node could not take is given to it again after this time.
const STORE_AGAIN: Duration = Duration::from_secs(1);

/// A change of a vDisk's log that the store of a single node has not taken yet.
pub struct SegmentsWish {
    shard: ShardId,
    pub(super) family: FamilyId,
    epoch: Epoch,
    version: u64,
    segments: Vec<Segment>,
    /// Why not, once it was tried.
    pub(super) trouble: String,
}

/// Handles notices as they come, until the shards are gone.
pub async fn listen(control: SharedControl, mut notices: UnboundedReceiver<(ShardId, News)>) {
    let mut try_again: Option<Instant> = None;
    loop {
        let time = try_again.unwrap_or_else(Instant::now);
        let come = tokio::select! {
            come = notices.recv() => Some(come),
            () = tokio::time::sleep_until(time), if try_again.is_some() => None,
        };
        let mut control = control.lock();
        match come {
            Some(Some((shard, news))) => control.on_news(shard, news),
            Some(None) => return,
            None => {
                try_again = None;
                for wish in std::mem::take(&mut control.segment_wishes) {
                    control.change_segments(wish);
                }
                for family in control.records_to_remove.keys().copied().collect::<Vec<_>>() {
                    control.on_family_dropped(family);
                }
                control.open_failed_again();
            }
        }
        let store_failed = !control.segment_wishes.is_empty() || !control.records_to_remove.is_empty();
        if store_failed || control.has_failed() {
            try_again.get_or_insert_with(|| Instant::now() + STORE_AGAIN);
        }
        control.changed.notify_waiters();
    }
}

impl Control {
    fn on_news(&mut self, shard: ShardId, news: News) {
        match news {
            News::Engine(notice) => self.on_notice(shard, notice),
            News::PeerLost { shard: other, why } => self.on_peer_lost(shard, other, why.to_string()),
            News::PeerBack { shard: other } => self.on_peer_back(shard, other),
            News::WayPoor { shard: other, how } => self.on_way_poor(shard, other, how),
            News::DriveHangs { drive } => self.on_drive_hangs(drive, true),
            News::DriveAnswers { drive } => self.on_drive_hangs(drive, false),
            News::DriveSlow { drive, slow } => self.on_drive_slow(drive, slow),
        }
    }

    fn on_notice(&mut self, shard: ShardId, notice: Notice) {
        match notice {
            Notice::DriveReady { drive } => self.on_drive_ready(drive),
            Notice::DriveFailed { drive, reason } => self.on_drive_failed(drive, reason.to_string()),
            Notice::FamilyReady { family, epoch, replayed, snapshots } => {
                tracing::info!(%family, %epoch, replayed, snapshots = snapshots.len(), "a vDisk is served");
                if let Part::Member(_) = self.part {
                    self.on_served(family, epoch);
                } else {
                    self.set_serving(family, epoch, Serving::Ready);
                }
                self.on_snapshots_known(family, epoch, &snapshots);
                if let Part::Alone(_) = self.part {
                    self.restore_exports_of(family);
                }
            }
            Notice::FamilyFailed { family, epoch, reason } => {
                if let Part::Member(_) = self.part {
                    return self.on_not_served(family, epoch, reason);
                }
                tracing::error!(%family, %epoch, %reason, "a vDisk cannot be served; it is tried again");
                self.set_serving(family, epoch, Serving::Failed(reason.to_string()));
                self.note_failure(family, reason.to_string());
            }
            Notice::SnapshotTaken { family, snapshot, generation, .. } => {
                self.on_snapshot_taken(family, snapshot, generation);
            }
            Notice::SnapshotRefused { family, snapshot, reason, .. } => {
                self.on_snapshot_refused(family, snapshot, reason);
            }
            Notice::SnapshotDropped { family, generation, .. } => {
                self.on_snapshot_dropped(family, generation);
            }
            Notice::RolledBack { family, epoch, to } => self.on_rolled_back(family, epoch, to),
            Notice::RollbackRefused { family, epoch, to, reason } => {
                self.on_rollback_refused(family, epoch, to, reason);
            }
            Notice::FamilyDropped { family } => self.on_family_dropped(family),
            Notice::StrayFound { drive, family } => self.on_stray(drive, family),
            Notice::UnknownFound { drive, family } => self.on_unknown(drive, family),
            Notice::FamilySettled { family } => {
                tracing::debug!(%family, "a vDisk has settled");
                self.unsettled.remove(&family);
                if let Part::Member(_) = self.part {
                    self.on_settled(family);
                }
            }
            Notice::ChangeSegments { family, epoch, version, segments } => {
                if let Some(member) = self.part.member() {
                    return member.change_segments(shard, family, epoch, version, segments);
                }
                let trouble = String::new();
                self.change_segments(SegmentsWish { shard, family, epoch, version, segments, trouble });
            }
            Notice::FactorReached { family, epoch, factor } => {
                tracing::debug!(%family, %epoch, factor, "a vDisk has as many copies as it should");
                self.on_factor_reached(family, epoch, factor);
            }
            Notice::FactorMissed { family, epoch } => {
                tracing::debug!(%family, %epoch, "whether a vDisk has as many copies as it should is looked at again");
                self.on_factor_missed(family, epoch);
            }
            Notice::GroupsWhole { family, epoch, view, groups } => {
                if let Some(member) = self.part.member_mut() {
                    return member.told_whole(family, epoch, view, &groups);
                }
                self.part.alone().whole.told(family, epoch, view, &groups);
                self.forget_former();
            }
            Notice::Damage { drive, damage } => self.on_damage(drive, &damage),
        }
    }

    fn on_drive_ready(&mut self, drive: DriveId) {
        let Some(entry) = self.drives.get_mut(&drive) else { return };
        let is_new = entry.record.state == DriveRecordState::Making;
        // What an older version made is known by its number alone until now.
        let is_nameless = entry.record.incarnation.is_none();
        if is_new || is_nameless {
            // Only now: a drive that is not marked is formatted again at the next start.
            if let Some(member) = self.part.member() {
                // It is up when the store has that.
                entry.standing = Standing::Opening;
                return member.drive_formatted(drive);
            }
            if is_new {
                entry.record.state = DriveRecordState::Formatted;
            }
            entry.record.incarnation = crate::drives::incarnation(&self.dir, &entry.record);
            if let Err(error) = self.part.alone().store.put_drive(&entry.record) {
                entry.standing = Standing::Down(error.to_string());
                return;
            }
        }
        entry.standing = Standing::Up;
        tracing::info!(%drive, "a drive is up");
        self.drives_changed();
    }

    fn on_drive_failed(&mut self, drive: DriveId, reason: String) {
        let Some(entry) = self.drives.get_mut(&drive) else { return };
        tracing::error!(%drive, reason, "a drive failed");
        entry.standing = Standing::Down(reason);
        self.drives_changed();
    }

    /// A drive of this node has come or gone.
    pub(super) fn drives_changed(&mut self) {
        match &self.part {
            Part::Member(_) => {
                // Others hear of it by the store; here it is known now.
                self.tell_view();
                self.announce();
            }
            // Before the first view nobody has to be told: the start sends it.
            Part::Alone(alone) if alone.view_version > 0 => self.send_view(),
            Part::Alone(_) => {}
        }
    }

    fn set_serving(&mut self, family: FamilyId, epoch: Epoch, serving: Serving) {
        if let Some(entry) = self.families.get_mut(&family)
            && entry.config.epoch == epoch.0
            && entry.serving != Serving::Dropping
        {
            entry.serving = serving;
        }
    }

    fn note_failure(&mut self, family: FamilyId, reason: String) {
        let up = self.drive_numbers_up();
        let failures = &mut self.part.alone().failures;
        let failure = Failure::after(failures.get(&family), reason, std::time::Instant::now(), up);
        failures.insert(family, failure);
    }

    /// Whether a node that is alone has, or had not long ago, a vDisk that it could not serve.
    fn has_failed(&self) -> bool {
        matches!(&self.part, Part::Alone(alone) if !alone.failures.is_empty())
    }

    /// What was in the way may have passed: a read that a drive took too long for, a drive that is back.
    fn open_failed_again(&mut self) {
        let (now, up) = (std::time::Instant::now(), self.drive_numbers_up());
        let Part::Alone(alone) = &mut self.part else { return };
        let is_failed = |family: &FamilyId| {
            self.families.get(family).is_some_and(|entry| matches!(entry.serving, Serving::Failed(_)))
        };
        alone.failures.retain(|family, failure| is_failed(family) || failure.is_recent(now));
        let due = alone
            .failures
            .iter_mut()
            .filter(|(family, failure)| is_failed(family) && failure.is_due(now, &up));
        let due: Vec<FamilyId> = due
            .map(|(&family, failure)| {
                failure.tried(now);
                family
            })
            .collect();
        for family in due {
            if let Err(error) = self.open_family(family) {
                tracing::warn!(%family, error = error.line, "a vDisk that failed cannot be tried again yet");
            }
        }
    }

    /// Those that a node that is alone takes for up.
    fn drive_numbers_up(&self) -> BTreeSet<u32> {
        let is_left_out =
            |drive: &DriveId| matches!(&self.part, Part::Alone(alone) if alone.left_out.contains(drive));
        self.drives_up().into_iter().filter(|drive| !is_left_out(drive)).map(|drive| drive.0).collect()
    }

    fn on_family_dropped(&mut self, family: FamilyId) {
        let is_dropping = self.families.get(&family).is_some_and(|entry| entry.serving == Serving::Dropping);
        if !is_dropping {
            return;
        }
        if let Some(member) = self.part.member() {
            return member.remove_vdisk(family);
        }
        let alone = self.part.alone();
        match alone.store.remove_family(family) {
            Ok(()) => {
                alone.snapshots.retain(|(of, _), _| *of != family);
                alone.schedules.remove(&family);
                alone.reached.remove(&family);
                self.records_to_remove.remove(&family);
                self.families.remove(&family);
                self.tell_census();
                self.review_hanging();
            }
            // It stays for now: should the node stop before, it is dropped again at the next start.
            Err(error) => {
                if self.records_to_remove.insert(family, error.to_string()).is_none() {
                    tracing::error!(%family, %error, "the record of a deleted vDisk stays; that is tried again");
                }
            }
        }
    }

    /// That the store has an error does not say that somebody else serves the vDisk: then the shard is told nothing yet.
    fn change_segments(&mut self, mut wish: SegmentsWish) {
        let SegmentsWish { shard, family, epoch, version, ref segments, .. } = wish;
        let taken = match self.part.alone().store.change_segments(family, epoch, version, segments) {
            Ok(taken) => taken,
            Err(error) => {
                if wish.trouble.is_empty() {
                    tracing::error!(%family, %error, "the log's new drives could not be stored; that is tried again");
                }
                wish.trouble = error.to_string();
                return self.segment_wishes.push(wish);
            }
        };
        if taken && let Some(entry) = self.families.get_mut(&family) {
            entry.config.version = version;
            entry.config.segments = segments.iter().map(SegmentRecord::of).collect();
        }
        let order = Order::SegmentsChanged { family, epoch, version, taken };
        self.shards[shard.0 as usize].send(Mail::Order(order));
    }

    fn on_damage(&mut self, drive: DriveId, damage: &Damage) {
        let families = &self.families;
        let vdisk = |family: FamilyId| {
            let named = families.get(&family).map(|entry| format!("vDisk {}", entry.config.name));
            named.unwrap_or_else(|| format!("family {family}"))
        };
        if let Some(line) = self.damage.note(drive, damage, vdisk) {
            tracing::warn!("{line}");
        }
    }
}
