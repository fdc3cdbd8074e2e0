//! Status and statistics: what the control plane knows, and what the shards have counted.
//! Promises: a shard that does not answer in time is named, and nothing is said of what only it knows.

use super::{Control, Serving, SharedControl, Stage, Standing};
use crate::api::{DriveStatusView, StatsView, StatusView, is_drive_up};
use crate::drives::describe;
use crate::shard_loop::{Mail, Mailbox, Question, ShardStatistics, owner_of};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use weft_engine::FamilyId;
use weft_engine::buffer::BLOCK;
use weft_engine::limits::EGROUP_UNITS;

/// A shard that does not answer somebody who looks at figures within this time is left out. Other nodes, which ask this one, wait
/// for longer.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(1);

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
    /// With what shards have told of their drives.
    pub(super) fn status_view(&self, stats: &StatsView) -> StatusView {
        let drives: Vec<DriveStatusView> = self
            .drives
            .iter()
            .map(|(&id, drive)| {
                let (state, reason) = self.standing_view(id, drive);
                let told = stats.drives.iter().find(|told| told.drive == id.0 && is_drive_up(&told.state));
                DriveStatusView {
                    drive: id.0,
                    shard: self.keeper(drive).shard().0,
                    place: describe(&self.dir, &drive.record),
                    state: state.to_string(),
                    reason,
                    log_bytes: drive.record.log,
                    data_bytes: drive.record.data,
                    free_bytes: told.map(|told| told.free_bytes),
                }
            })
            .collect();
        let mut trouble = self.trouble();
        trouble.extend(full_drives(&drives));
        StatusView {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            dir: self.dir.display().to_string(),
            state: match self.stage {
                Stage::Starting => "starting",
                Stage::Ready if self.check_serving().is_err() => "without lease",
                Stage::Ready => "ready",
                Stage::Stopping => "stopping",
            }
            .to_string(),
            uptime_us: self.began.elapsed().as_micros() as u64,
            shards: self.shards.len() as u32,
            factor: self.part.member().map_or(self.factor, |member| member.default_factor(self.factor)),
            drives,
            vdisks: self.families.values().filter(|entry| entry.serving != Serving::Dropping).count(),
            trouble,
        }
    }

    fn stats_view(&self, told: Vec<Option<ShardStatistics>>) -> StatsView {
        let mut view = StatsView {
            uptime_us: self.began.elapsed().as_micros() as u64,
            silent_shards: self.silent(&told),
            damage: self.damage.view().clone(),
            ..StatsView::default()
        };
        for (&id, drive) in &self.drives {
            let Some(shard) = &told[drive.keeper] else { continue };
            let counted = shard.drives.get(&id).cloned().unwrap_or_default();
            let (state, is_up) =
                (self.standing_view(id, drive).0.to_string(), drive.standing == Standing::Up);
            view.drives.push(counted.view(id, state, is_up, drive.record.log, drive.record.data));
        }
        let is_alone = self.part.member().is_none();
        for (&id, family) in &self.families {
            let counted = match self.teller(id, &told) {
                Teller::Shard(shard) => shard.families.get(&id),
                Teller::Silent(_) => continue,
                Teller::Elsewhere => None,
            };
            if counted.is_some() || is_alone {
                let mut vdisk = counted.map(|counted| counted.view.clone()).unwrap_or_default();
                vdisk.name = family.config.name.clone();
                vdisk.family = id.0;
                view.vdisks.push(vdisk);
            } else if family.serving != Serving::Dropping {
                view.elsewhere.push(self.elsewhere(id));
            }
        }
        view.shards = told.into_iter().flatten().map(|shard| shard.shard).collect();
        view
    }

    /// The numbers of the shards that did not answer.
    pub(super) fn silent<T>(&self, told: &[Option<T>]) -> Vec<u32> {
        let shards = self.shards.iter().zip(told).filter(|(_, told)| told.is_none());
        shards.map(|(shard, _)| shard.shard().0).collect()
    }

    /// Whose word about a vDisk counts: others may remember it from before.
    pub(super) fn teller<'a, T>(&self, family: FamilyId, told: &'a [Option<T>]) -> Teller<'a, T> {
        let index = match self.part.member() {
            Some(member) => member.shard_of(family),
            None => Some(owner_of(family, self.shards.len()).0 as usize),
        };
        match index.map(|index| (index, &told[index])) {
            None => Teller::Elsewhere,
            Some((_, Some(told))) => Teller::Shard(told),
            Some((index, None)) => Teller::Silent(self.shards[index].shard().0),
        }
    }
}

/// With less room than for one egroup a drive takes hardly any data.
const FULL_BYTES: u64 = (EGROUP_UNITS * BLOCK) as u64;

/// Drives that take no more data. What is stored there can still be read, trimmed and deleted.
fn full_drives(drives: &[DriveStatusView]) -> Option<String> {
    let full = drives.iter().filter(|drive| drive.free_bytes.is_some_and(|free| free < FULL_BYTES));
    let full: Vec<String> = full.map(|drive| drive.drive.to_string()).collect();
    (!full.is_empty()).then(|| {
        format!(
            "hardly any room for data is left on drive {}: writes that need it wait, and fail with \"no space\"; delete vDisks \
             or snapshots, trim, or add a drive",
            full.join(", ")
        )
    })
}

/// Who knows about a vDisk.
pub(super) enum Teller<'a, T> {
    /// A shard of this node, which told this.
    Shard(&'a T),
    /// One that did not answer.
    Silent(u32),
    /// Another node, if anybody.
    Elsewhere,
}

/// What each shard answers, in their order; None: nothing within `longest`.
pub(in crate::control) async fn ask_shards<T>(
    control: &SharedControl,
    longest: Duration,
    question: impl Fn(oneshot::Sender<T>) -> Question,
) -> Vec<Option<T>> {
    let asked: Vec<_> = {
        let control = control.lock();
        let ask = |shard: &Arc<Mailbox>| {
            let (to, answer) = oneshot::channel();
            shard.send(Mail::Question(question(to)));
            answer
        };
        control.shards.iter().map(ask).collect()
    };
    answers(asked, longest).await
}

/// All are waited for until the same moment: a node with many slow shards answers no later than one with a single one.
async fn answers<T>(asked: Vec<oneshot::Receiver<T>>, longest: Duration) -> Vec<Option<T>> {
    let until = tokio::time::Instant::now() + longest;
    let mut answers = Vec::with_capacity(asked.len());
    for answer in asked {
        let answer = tokio::time::timeout_at(until, answer).await;
        answers.push(answer.ok().and_then(Result::ok));
    }
    answers
}

/// Asks all shards for all their counters.
pub async fn gather(control: &SharedControl) -> StatsView {
    let told = ask_shards(control, ANSWER_WAIT, |to| Question::Statistics { details: true, to }).await;
    control.lock().stats_view(told)
}

/// The same without what the engine counts of each vDisk.
pub async fn gather_totals(control: &SharedControl) -> StatsView {
    let told = ask_shards(control, ANSWER_WAIT, |to| Question::Statistics { details: false, to }).await;
    control.lock().stats_view(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_that_do_not_answer_are_waited_for_once() {
        let longest = Duration::from_millis(200);
        let (mut kept, mut asked) = (Vec::new(), Vec::new());
        for number in 0..50 {
            let (to, answer) = oneshot::channel();
            asked.push(answer);
            match number {
                30 => assert!(to.send(number).is_ok()),
                40 => drop(to),
                _ => kept.push(to),
            }
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let began = std::time::Instant::now();
        let told = runtime.expect("a runtime is made").block_on(answers(asked, longest));
        // One after the other they would take ten seconds.
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert_eq!((told.len(), told[30]), (50, Some(30)), "also behind those that are silent");
        assert_eq!(told.iter().flatten().count(), 1);
    }
}
