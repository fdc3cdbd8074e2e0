//! Work that waits for the store, done by threads that may wait, and what follows from it, done under the lock.

use super::Member;
use crate::config::cluster::ClusterStore;
use crate::control::{Control, SharedControl};
use tokio::sync::mpsc::UnboundedReceiver;

type After = Box<dyn FnOnce(&mut Control) + Send>;

pub struct Job(Box<dyn FnOnce(&ClusterStore) -> After + Send>);

impl Member {
    /// Has `work` done by another thread, and then `then` with what came of it.
    pub(in crate::control) fn spawn<T>(
        &self,
        work: impl FnOnce(&ClusterStore) -> T + Send + 'static,
        then: impl FnOnce(&mut Control, T) + Send + 'static,
    ) where
        T: Send + 'static,
    {
        let job = Job(Box::new(move |store| {
            let result = work(store);
            Box::new(move |control| then(control, result))
        }));
        // Nobody takes it only when the node ends.
        let _ = self.jobs.send(job);
    }
}

/// Does jobs, many at once, until nobody gives any.
pub async fn run(control: SharedControl, store: ClusterStore, mut jobs: UnboundedReceiver<Job>) {
    while let Some(Job(work)) = jobs.recv().await {
        let (control, store) = (control.clone(), store.clone());
        tokio::spawn(async move {
            if let Ok(after) = tokio::task::spawn_blocking(move || work(&store)).await {
                let mut control = control.lock();
                after(&mut control);
                control.changed.notify_waiters();
            }
        });
    }
}
