//! Following the store: everything once, then every change as it happens, for as long as somebody listens.
//! Promises: who takes the news in order has the store's contents of some revision, always of a later one; a
//! lost connection, a member that hangs, a restart and a compaction delay news and never lose any. Nothing is
//! sent while nothing happens.

use super::contents::{Change, ClusterConfig};
use super::memory::Age;
use super::{ClusterError, ClusterStore};
use crate::config::etcd::{EtcdError, Event, Watch, WatchNews};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{self, Receiver, Sender};

/// News that wait to be taken; then the follower waits, and etcd keeps the rest.
const NEWS_WAITING_MAX: usize = 64;

/// Between a failure and the next try.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How long the store may be known to have gone on without a word of the watch, before another one is begun. Doubled
/// each time that brought nothing: others may write into the same etcd.
const LAG: Duration = Duration::from_secs(1);
const LAG_MAX: Duration = Duration::from_secs(60);

/// A watch that etcd has not begun by then is given up.
const BEGIN_WAIT: Duration = Duration::from_secs(5);

/// Older records are believed in when nothing else was to be had for so long: before 3.4.31 and 3.5.13 a read may be old while ownership
/// moves in etcd.
pub const OLDER_WAIT: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub enum News {
    /// The whole store; what was told before does not count. Comes first, and again when changes in between
    /// are not to be had any more.
    Loaded(Box<ClusterConfig>),
    /// What changed in the revisions up to this one.
    Changed { revision: u64, changes: Vec<Change> },
    /// What the store has now is older than what was told, and not taken.
    Older(ClusterError),
}

/// Why a watch ended.
enum End {
    /// Nobody listens any more.
    Unheard,
    /// Another watch can go on where it ended.
    Broken(String),
    /// Changes are missing: all has to be loaded again.
    Gap(ClusterError),
}

/// A thread that follows the store. It ends a moment after its news are not wanted any more.
struct Follower {
    store: ClusterStore,
    news: Sender<News>,
    /// What was told so far.
    position: u64,
    lag: Duration,
    pause: Duration,
}

impl ClusterStore {
    /// Follows the store from a thread of its own. To end it, drop the receiver.
    pub fn follow(&self) -> Receiver<News> {
        let (news, receiver) = mpsc::channel(NEWS_WAITING_MAX);
        let follower = Follower { store: self.clone(), news, position: 0, lag: LAG, pause: PAUSE };
        std::thread::Builder::new()
            .name("weft-follow".to_string())
            .spawn(move || follower.run())
            .expect("a thread can be started");
        receiver
    }
}

impl Follower {
    fn run(mut self) {
        let mut older_since = None;
        while !self.news.is_closed() {
            let loaded = self.load();
            if loaded.is_ok() {
                older_since = None;
            }
            match loaded {
                Err(error @ ClusterError::RecordsAccepted { .. }) => {
                    let _ = self.news.blocking_send(News::Older(error));
                }
                Err(error) if error.is_of_older_records() => {
                    if older_since.get_or_insert_with(Instant::now).elapsed() >= OLDER_WAIT {
                        // If nobody listens the loop around sees it.
                        let _ = self.news.blocking_send(News::Older(error));
                    }
                }
                Ok(()) => match self.watch_again_and_again() {
                    Some(error) => tracing::info!(%error, "the config store is loaded again"),
                    None => return,
                },
                Err(error) => tracing::warn!(%error, "the config store cannot be loaded"),
            }
            self.rest();
        }
    }

    fn load(&mut self) -> Result<(), ClusterError> {
        let config = self.store.load()?;
        self.position = config.revision;
        self.pause = PAUSE;
        self.store.keep_seen_soon();
        // If nobody listens the loop around sees it.
        let _ = self.news.blocking_send(News::Loaded(Box::new(config)));
        Ok(())
    }

    /// Until all has to be loaded again (and why), or nobody listens.
    fn watch_again_and_again(&mut self) -> Option<ClusterError> {
        loop {
            match self.watch() {
                End::Unheard => return None,
                End::Gap(error) => return Some(error),
                End::Broken(reason) => {
                    tracing::debug!(reason, "the config store is watched anew");
                    if self.news.is_closed() {
                        return None;
                    }
                    self.rest();
                }
            }
        }
    }

    fn rest(&mut self) {
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// One watch, from behind the position to its end.
    fn watch(&mut self) -> End {
        let disturbances = self.store.etcd.disturbances();
        let (first, end) = self.store.keys.all();
        match self.store.has_gone_back() {
            Ok(false) => {}
            Ok(true) => return End::Gap(EtcdError::Compacted.into()),
            Err(error) if error.is_of_older_records() => return End::Gap(error),
            Err(error) => return End::Broken(error.to_string()),
        }
        let mut watch = match self.store.etcd.watch(&first, &end, self.position + 1) {
            Ok(watch) => watch,
            Err(error) => return end_of(error),
        };
        match self.listen(&mut watch, disturbances) {
            Ok(end) => end,
            Err(error) => end_of(error),
        }
    }

    fn listen(&mut self, watch: &mut Watch, disturbances: u64) -> Result<End, EtcdError> {
        let began = Instant::now();
        // The store's revision that is no sign of lag: nothing of ours need have happened up to it.
        let mut begun_at = None;
        let mut lagging_since = None;
        loop {
            let heard = watch.listen()?;
            if let Some(error) = self.store.etcd.distrust() {
                // Loading tells whether it is as new as it was.
                return Ok(End::Gap(error.into()));
            }
            match heard {
                WatchNews::Begun { revision } if revision < self.position => {
                    // Etcd was put back to an older state, or this member is behind; loading tells.
                    return Ok(End::Gap(EtcdError::Compacted.into()));
                }
                WatchNews::Begun { revision } => {
                    begun_at = Some(revision);
                    self.pause = PAUSE;
                }
                WatchNews::Events(events) => {
                    lagging_since = None;
                    match self.tell(&events) {
                        Ok(true) => self.lag = LAG,
                        Ok(false) => return Ok(End::Unheard),
                        Err(error) => return Ok(End::Gap(error)),
                    }
                }
                WatchNews::Silence if self.news.is_closed() => return Ok(End::Unheard),
                WatchNews::Silence => {
                    self.store.keep_seen_soon();
                    // Requests on their own connections tell whether silence is peace or a dead connection.
                    if self.store.etcd.disturbances() != disturbances {
                        return Ok(End::Broken("an endpoint did not answer".to_string()));
                    }
                    if begun_at.is_none() && began.elapsed() > BEGIN_WAIT {
                        return Ok(End::Broken("etcd did not begin".to_string()));
                    }
                    let known = self.position.max(begun_at.unwrap_or(0));
                    if self.store.etcd.revision_heard() <= known {
                        lagging_since = None;
                    } else if lagging_since.get_or_insert_with(Instant::now).elapsed() >= self.lag {
                        self.lag = (self.lag * 2).min(LAG_MAX);
                        return Ok(End::Broken("the store has gone on without a word".to_string()));
                    }
                }
            }
        }
    }

    /// False: nobody listens.
    fn tell(&mut self, events: &[Event]) -> Result<bool, ClusterError> {
        let Some(last) = events.last() else { return Ok(!self.news.is_closed()) };
        let revision = last.revision;
        if revision <= self.position {
            // Taking it over could bring back what was replaced; loading tells what is true.
            return Err(ClusterError::Etcd(EtcdError::Compacted));
        }
        let floor = self.store.seen().map(Age::of_any_revision);
        let mut changes = Vec::new();
        for event in events {
            let change = Change::read(&self.store.keys, &event.key, event.value.as_ref())?;
            if let Some(Change::Cluster(cluster)) = &change {
                self.store.accept(&cluster.record)?;
                self.store.judge_seen(floor.as_ref(), &cluster.record, revision)?;
            }
            changes.extend(change);
        }
        self.position = revision;
        let put = events.iter().filter(|event| event.value.is_some());
        self.store.note_keys(put.map(|event| (event.key.as_str(), event.revision)));
        let removed = events.iter().filter(|event| event.value.is_none());
        self.store.forget_keys(removed.map(|event| event.key.as_str()));
        self.store.keep_seen_soon();
        Ok(changes.is_empty() || self.news.blocking_send(News::Changed { revision, changes }).is_ok())
    }
}

fn end_of(error: EtcdError) -> End {
    match error {
        EtcdError::Compacted => End::Gap(error.into()),
        other => End::Broken(other.to_string()),
    }
}
