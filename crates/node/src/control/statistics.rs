//! Status and statistics: what the control plane knows, and what the shards have counted.

use super::{Control, Serving, SharedControl, Stage, Standing};
use crate::api::{DriveStatusView, StatsView, StatusView};
use crate::drives::describe;
use crate::shard_loop::{Mail, Mailbox, ShardStatistics};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A shard that does not answer somebody who looks at figures within this time is left out.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(2);

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

/// What all shards answer; one that does not within `longest` is left out.
pub(in crate::control) async fn ask_shards<T>(
    control: &SharedControl,
    longest: Duration,
    question: impl Fn(oneshot::Sender<T>) -> Mail,
) -> Vec<T> {
    let asked: Vec<_> = {
        let control = control.lock();
        let ask = |shard: &Arc<Mailbox>| {
            let (to, answer) = oneshot::channel();
            shard.send(question(to));
            answer
        };
        control.shards.iter().map(ask).collect()
    };
    let mut answers = Vec::new();
    for answer in asked {
        if let Ok(Ok(answer)) = tokio::time::timeout(longest, answer).await {
            answers.push(answer);
        }
    }
    answers
}

/// Asks all shards for their counters.
pub async fn gather(control: &SharedControl) -> StatsView {
    let shards = ask_shards(control, ANSWER_WAIT, Mail::Statistics).await;
    control.lock().stats_view(shards)
}
