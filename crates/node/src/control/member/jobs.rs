//! Work that waits for the store, done by threads that may wait, and what follows from it, done under the lock.
//! Promises: the store is asked for so much at a time and no more, so that what cannot wait, such as the renewal of a lease, does not
//! come behind thousands of others; who asks again and again takes its turn each time. Of a chore, which is asked for again and again
//! until a look finds it done, one is under way at a time, and it is not begun again right after it ended, so that a slow store is not
//! given more and more of the same.

use super::Member;
use crate::config::cluster::ClusterStore;
use crate::control::{Control, SharedControl};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinError;
use weft_engine::{DriveId, FamilyId, SnapshotId};

type After = Box<dyn FnOnce(&mut Control) + Send>;
type Work = Box<dyn FnMut(&ClusterStore) -> Option<After> + Send>;

pub struct Job {
    /// None: it is to be done again in a moment.
    work: Work,
    chore: Option<Chore>,
}

/// Jobs under way at a time. A node that takes over thousands of vDisks has as many at once.
const AT_ONCE: usize = 32;

/// What is to be done again is left for so long.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// What looks ask for as long as they find it undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::control) enum Chore {
    /// Beginning the next snapshot of a schedule.
    Scheduled(FamilyId),
    LetSnapshotGo(SnapshotId),
    /// Asking whether what a drive holds may go.
    AskOfStray(DriveId, FamilyId),
    /// Writing down that a number is not to be given out.
    NoteLost(FamilyId),
    /// Writing down that the rollback of this number is over. Clients wait for it.
    EndRollback(u64),
}

/// What was done is heard of by then.
const HEARD_OF: Duration = Duration::from_secs(1);

impl Chore {
    /// After trouble it is left for so long.
    fn again_after(self) -> Duration {
        match self {
            Self::Scheduled(_) | Self::LetSnapshotGo(_) | Self::AskOfStray(..) | Self::NoteLost(_) => {
                Duration::from_secs(2)
            }
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
        let mut whole = Some((work, then));
        self.hand_on_until_done(chore, move |store| {
            let (work, then) = whole.take().expect("what is done is not done again");
            let result = work(store);
            Some(Box::new(move |control: &mut Control| then(control, result)))
        });
    }

    /// Has `work` done by another thread, again and again until it gives what follows.
    pub(super) fn hand_on_until_done(
        &self,
        chore: Option<Chore>,
        work: impl FnMut(&ClusterStore) -> Option<After> + Send + 'static,
    ) {
        // Nobody takes it only when the node ends.
        let _ = self.jobs.send(Job { work: Box::new(work), chore });
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
    let places = Arc::new(Semaphore::new(AT_ONCE));
    while let Some(Job { work, chore }) = jobs.recv().await {
        let (control, store, places) = (control.clone(), store.clone(), Arc::clone(&places));
        tokio::spawn(async move {
            let done = until_done(work, store, places).await;
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

/// An error: an assertion failed.
async fn until_done(mut work: Work, store: ClusterStore, places: Arc<Semaphore>) -> Result<After, JoinError> {
    loop {
        let place = places.acquire().await.expect("the places are never closed");
        let store = store.clone();
        let done = tokio::task::spawn_blocking(move || {
            let after = work(&store);
            (work, after)
        });
        let (again, after) = done.await?;
        drop(place);
        if let Some(after) = after {
            return Ok(after);
        }
        work = again;
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::etcd::Etcd;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Nobody is there.
    fn a_store() -> ClusterStore {
        let etcd = Etcd::new(&["http://127.0.0.1:1".to_string()]).expect("an address is one");
        ClusterStore::new(etcd, "c").expect("a name is one")
    }

    #[test]
    fn so_many_are_done_at_once_and_who_asks_again_lets_others_have_a_turn() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (store, places) = (a_store(), Arc::new(Semaphore::new(2)));
        let (now, most, asked) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let counts: &'static _ = Box::leak(Box::new((now, most, asked)));
        let job = |times: usize| -> Work {
            let mut left = times;
            Box::new(move |_| {
                let (now, most, asked) = counts;
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(2));
                now.fetch_sub(1, Ordering::SeqCst);
                asked.fetch_add(1, Ordering::SeqCst);
                left -= 1;
                let after: After = Box::new(|_| {});
                (left == 0).then_some(after)
            })
        };
        runtime.block_on(async {
            let begin = |times| tokio::spawn(until_done(job(times), store.clone(), Arc::clone(&places)));
            // These would hold all places for ever.
            let stubborn: Vec<_> = (0..4).map(|_| begin(usize::MAX)).collect();
            let others: Vec<_> = (0..20).map(|at| begin(1 + at % 2)).collect();
            for other in others {
                assert!(other.await.is_ok_and(|done| done.is_ok()));
            }
            stubborn.into_iter().for_each(|stubborn| stubborn.abort());
        });
        assert_eq!(counts.1.load(Ordering::SeqCst), 2);
        assert!(counts.2.load(Ordering::SeqCst) >= 30);
    }

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
