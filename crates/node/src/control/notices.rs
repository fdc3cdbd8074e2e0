//! What the shards tell the control plane, and what it does about it.

use super::{Control, Serving, SharedControl, Standing};
use crate::config::{DriveRecordState, SegmentRecord};
use crate::shard_loop::{Mail, News};
use tokio::sync::mpsc::UnboundedReceiver;
use weft_engine::interface::{Damage, Notice, Order, Segment};
use weft_engine::{DriveId, Epoch, FamilyId, ShardId};

/// Lines about damage that are kept to be shown.
const DAMAGE_LINES_MAX: usize = 100;

/// Handles notices as they come, until the shards are gone.
pub async fn listen(control: SharedControl, mut notices: UnboundedReceiver<(ShardId, News)>) {
    while let Some((shard, news)) = notices.recv().await {
        let mut control = control.lock();
        control.on_news(shard, news);
        control.changed.notify_waiters();
    }
}

impl Control {
    fn on_news(&mut self, shard: ShardId, news: News) {
        match news {
            News::Engine(notice) => self.on_notice(shard, notice),
            News::PeerLost { shard: other, why } => {
                tracing::warn!(%shard, %other, ?why, "a shard of another node does not answer");
            }
            News::PeerBack { shard: other } => {
                tracing::info!(%shard, %other, "a shard of another node answers again");
            }
            News::DriveHangs { drive } => {
                tracing::warn!(%drive, "a drive hangs: what was asked of it is not done in time");
            }
            News::DriveAnswers { drive } => tracing::info!(%drive, "a drive answers again"),
        }
    }

    fn on_notice(&mut self, shard: ShardId, notice: Notice) {
        match notice {
            Notice::DriveReady { drive } => self.on_drive_ready(drive),
            Notice::DriveFailed { drive, reason } => self.on_drive_failed(drive, reason.to_string()),
            Notice::FamilyReady { family, epoch, replayed } => {
                tracing::info!(%family, %epoch, replayed, "a vDisk is served");
                self.set_serving(family, epoch, Serving::Ready);
            }
            Notice::FamilyFailed { family, epoch, reason } => {
                tracing::error!(%family, %epoch, %reason, "a vDisk cannot be served");
                self.set_serving(family, epoch, Serving::Failed(reason.to_string()));
            }
            Notice::FamilyDropped { family } => self.on_family_dropped(family),
            Notice::FamilySettled { family } => {
                tracing::debug!(%family, "a vDisk has settled");
                self.unsettled.remove(&family);
            }
            Notice::ChangeSegments { family, epoch, version, segments } => {
                let taken = self.change_segments(family, epoch, version, &segments);
                let order = Order::SegmentsChanged { family, epoch, version, taken };
                self.shards[shard.0 as usize].send(Mail::Order(order));
            }
            Notice::GroupsWhole { family, epoch, view, groups } => {
                self.whole.told(family, epoch, view, &groups);
                self.forget_former();
            }
            Notice::Damage { drive, damage } => self.on_damage(drive, damage),
        }
    }

    fn on_drive_ready(&mut self, drive: DriveId) {
        let Some(entry) = self.drives.get_mut(&drive) else { return };
        if entry.record.state == DriveRecordState::Making {
            // Only now: a drive that is not marked is formatted again at the next start.
            entry.record.state = DriveRecordState::Formatted;
            if let Err(error) = self.store.put_drive(&entry.record) {
                entry.standing = Standing::Down(error.to_string());
                return;
            }
        }
        entry.standing = Standing::Up;
        tracing::info!(%drive, "a drive is up");
        if self.view_version > 0 {
            self.send_view();
        }
    }

    fn on_drive_failed(&mut self, drive: DriveId, reason: String) {
        let Some(entry) = self.drives.get_mut(&drive) else { return };
        tracing::error!(%drive, reason, "a drive failed");
        entry.standing = Standing::Down(reason);
        if self.view_version > 0 {
            self.send_view();
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

    fn on_family_dropped(&mut self, family: FamilyId) {
        let is_dropping = self.families.get(&family).is_some_and(|entry| entry.serving == Serving::Dropping);
        if !is_dropping {
            return;
        }
        match self.store.remove_family(family) {
            Ok(()) => {
                self.families.remove(&family);
            }
            // It stays, and is dropped again at the next start.
            Err(error) => tracing::error!(%family, %error, "the record of a deleted vDisk stays"),
        }
    }

    fn change_segments(
        &mut self,
        family: FamilyId,
        epoch: Epoch,
        version: u64,
        segments: &[Segment],
    ) -> bool {
        let taken = match self.store.change_segments(family, epoch, version, segments) {
            Ok(taken) => taken,
            Err(error) => {
                tracing::error!(%family, %error, "segments could not be stored");
                false
            }
        };
        if taken && let Some(entry) = self.families.get_mut(&family) {
            entry.config.version = version;
            entry.config.segments = segments.iter().map(SegmentRecord::of).collect();
        }
        taken
    }

    fn on_damage(&mut self, drive: DriveId, damage: Damage) {
        let name = |family: FamilyId| {
            self.families
                .get(&family)
                .map_or_else(|| format!("family {family}"), |entry| format!("vDisk {}", entry.config.name))
        };
        let line = match damage {
            Damage::Log { offset } => {
                self.damage.log += 1;
                format!("drive {drive}: the log is damaged at byte {offset}")
            }
            Damage::CopyBad { family, egroup } => {
                self.damage.copies_bad += 1;
                format!(
                    "drive {drive}: the copy of egroup {egroup} of {} is damaged or missing",
                    name(family)
                )
            }
            Damage::CopyRepaired { family, egroup } => {
                self.damage.copies_repaired += 1;
                format!("drive {drive}: the copy of egroup {egroup} of {} is good again", name(family))
            }
            Damage::BlockLost { family, block } => {
                self.damage.blocks_lost += 1;
                format!("{}: block {block} (byte {}) has no good copy", name(family), block * 4096)
            }
        };
        tracing::warn!("{line}");
        self.damage.recent.push(line);
        if self.damage.recent.len() > DAMAGE_LINES_MAX {
            self.damage.recent.remove(0);
        }
    }
}
