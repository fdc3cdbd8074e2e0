//! Status and statistics: what the control plane knows, and what the shards have counted.

use super::{Control, Serving, SharedControl, Stage, Standing};
use crate::api::{DriveStatusView, StatsView, StatusView};
use crate::drives::describe;
use crate::shard_loop::{Mail, ShardStatistics};
use std::time::Duration;

/// A shard that does not answer within this time is left out of the statistics.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

impl Standing {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Standing::Opening => "opening",
            Standing::Up => "up",
            Standing::Down(_) => "down",
            Standing::Lost => "lost",
        }
    }
}

impl Control {
    pub(super) fn status_view(&self) -> StatusView {
        let drives = self
            .drives
            .iter()
            .map(|(&id, drive)| DriveStatusView {
                drive: id.0,
                shard: self.keeper(drive).shard().0,
                place: describe(&self.dir, &drive.record),
                state: drive.standing.word().to_string(),
                reason: match &drive.standing {
                    Standing::Down(reason) => reason.clone(),
                    _ => String::new(),
                },
                log_bytes: drive.record.log,
                data_bytes: drive.record.data,
            })
            .collect();
        StatusView {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            dir: self.dir.display().to_string(),
            state: match self.stage {
                Stage::Starting => "starting",
                Stage::Ready => "ready",
                Stage::Stopping => "stopping",
            }
            .to_string(),
            uptime_us: self.began.elapsed().as_micros() as u64,
            shards: self.shards.len() as u32,
            factor: self.factor,
            drives,
            vdisks: self.families.values().filter(|entry| entry.serving != Serving::Dropping).count(),
            trouble: self.trouble(),
        }
    }

    fn stats_view(&self, shards: Vec<ShardStatistics>) -> StatsView {
        let mut drives = Vec::new();
        let mut vdisks = Vec::new();
        for (&id, drive) in &self.drives {
            let counted = shards.iter().find_map(|shard| shard.drives.get(&id)).cloned().unwrap_or_default();
            let state = drive.standing.word().to_string();
            drives.push(counted.view(id, state, drive.record.log, drive.record.data));
        }
        for (&id, family) in &self.families {
            let counted =
                shards.iter().find_map(|shard| shard.families.get(&id)).cloned().unwrap_or_default();
            let mut view = counted.view;
            view.name = family.config.name.clone();
            view.family = id.0;
            vdisks.push(view);
        }
        StatsView {
            uptime_us: self.began.elapsed().as_micros() as u64,
            drives,
            vdisks,
            shards: shards.into_iter().map(|shard| shard.shard).collect(),
            damage: self.damage.clone(),
        }
    }
}

/// Asks all shards for their counters.
pub async fn gather(control: &SharedControl) -> StatsView {
    let questions: Vec<_> = {
        let control = control.lock();
        control
            .shards
            .iter()
            .map(|shard| {
                let (to, answer) = tokio::sync::oneshot::channel();
                shard.send(Mail::Statistics(to));
                answer
            })
            .collect()
    };
    let mut shards = Vec::new();
    for question in questions {
        if let Ok(Ok(statistics)) = tokio::time::timeout(ANSWER_WAIT, question).await {
            shards.push(statistics);
        }
    }
    control.lock().stats_view(shards)
}
