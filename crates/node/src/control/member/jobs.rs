//! Work that waits for the store, done by threads that may wait, and what follows from it, done under the lock.
//! Promises: of a chore, which is asked for again and again until a look finds it done, one is under way at a time, and it is not
//! begun again right after it ended, so that a slow store is not given more and more of the same.

use super::Member;
use crate::config::cluster::ClusterStore;
use crate::control::{Control, SharedControl};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedReceiver;
use weft_engine::{DriveId, FamilyId, SnapshotId};

type After = Box<dyn FnOnce(&mut Control) + Send>;

pub struct Job {
    work: Box<dyn FnOnce(&ClusterStore) -> After + Send>,
    chore: Option<Chore>,
}

/// What looks ask for as long as they find it undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::control) enum Chore {
    /// Beginning the next snapshot of a schedule.
    Scheduled(FamilyId),
    LetSnapshotGo(SnapshotId),
    /// Asking whether what a drive holds may go.
    AskOfStray(DriveId, FamilyId),
    /// Writing down that the rollback of this number is over. Clients wait for it.
    EndRollback(u64),
}

/// What was done is heard of by then.
const HEARD_OF: Duration = Duration::from_secs(1);

impl Chore {
    /// After trouble it is left for so long.
    fn again_after(self) -> Duration {
        match self {
            Self::Scheduled(_) | Self::LetSnapshotGo(_) | Self::AskOfStray(..) => Duration::from_secs(2),
            Self::EndRollback(_) => Duration::from_millis(500),
        }
    }
}

/// Chores under way, and those that are not begun again before a time.
#[derive(Debug, Default)]
pub(super) struct Chores(BTreeMap<Chore, Option<Instant>>);

impl Chores {
    /// Whether it is begun now.
    fn begin(&mut self, chore: Chore, now: Instant) -> bool {
        self.0.retain(|_, not_before| not_before.is_none_or(|at| at > now));
        let is_due = !self.0.contains_key(&chore);
        if is_due {
            self.0.insert(chore, None);
        }
        is_due
    }

    fn end(&mut self, chore: Chore, is_done: bool, now: Instant) {
        self.0.insert(chore, Some(now + if is_done { HEARD_OF } else { chore.again_after() }));
    }
}

impl Member {
    /// Like [`Self::spawn`], unless the same is under way, or ended just now.
    pub(in crate::control) fn spawn_chore<T, E>(
        &mut self,
        chore: Chore,
        work: impl FnOnce(&ClusterStore) -> Result<T, E> + Send + 'static,
        then: impl FnOnce(&mut Control, Result<T, E>) + Send + 'static,
    ) where
        T: Send + 'static,
        E: Send + 'static,
    {
        if !self.chores.begin(chore, Instant::now()) {
            return;
        }
        let then = move |control: &mut Control, result: Result<T, E>| {
            control.chore_ended(chore, result.is_ok());
            then(control, result);
        };
        self.hand_on(Some(chore), work, then);
    }

    /// Has `work` done by another thread, and then `then` with what came of it.
    pub(in crate::control) fn spawn<T>(
        &self,
        work: impl FnOnce(&ClusterStore) -> T + Send + 'static,
        then: impl FnOnce(&mut Control, T) + Send + 'static,
    ) where
        T: Send + 'static,
    {
        self.hand_on(None, work, then);
    }

    fn hand_on<T: Send + 'static>(
        &self,
        chore: Option<Chore>,
        work: impl FnOnce(&ClusterStore) -> T + Send + 'static,
        then: impl FnOnce(&mut Control, T) + Send + 'static,
    ) {
        let work = Box::new(move |store: &ClusterStore| -> After {
            let result = work(store);
            Box::new(move |control| then(control, result))
        });
        // Nobody takes it only when the node ends.
        let _ = self.jobs.send(Job { work, chore });
    }
}

impl Control {
    fn chore_ended(&mut self, chore: Chore, is_done: bool) {
        if let Some(member) = self.part.member_mut() {
            member.chores.end(chore, is_done, Instant::now());
        }
    }
}

/// Does jobs, many at once, until nobody gives any.
pub async fn run(control: SharedControl, store: ClusterStore, mut jobs: UnboundedReceiver<Job>) {
    while let Some(Job { work, chore }) = jobs.recv().await {
        let (control, store) = (control.clone(), store.clone());
        tokio::spawn(async move {
            let done = tokio::task::spawn_blocking(move || work(&store)).await;
            let mut control = control.lock();
            match (done, chore) {
                (Ok(after), _) => {
                    after(&mut control);
                    control.changed.notify_waiters();
                }
                // An assertion failed; whoever looks after it asks for it again.
                (Err(_), Some(chore)) => control.chore_ended(chore, false),
                (Err(_), None) => {}
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chore_is_under_way_once_and_rests_after_trouble() {
        let mut chores = Chores::default();
        let (one, other) = (Chore::Scheduled(FamilyId(1)), Chore::Scheduled(FamilyId(2)));
        let now = Instant::now();
        assert!(chores.begin(one, now));
        assert!(!chores.begin(one, now + Duration::from_secs(3600)), "it is under way, however long");
        assert!(chores.begin(other, now));
        chores.end(one, false, now);
        assert!(!chores.begin(one, now + one.again_after() / 2));
        assert!(chores.begin(one, now + one.again_after()));
        chores.end(other, true, now);
        assert!(!chores.begin(other, now), "that it is done may not have been heard of");
        assert!(chores.begin(other, now + HEARD_OF));
    }
}
