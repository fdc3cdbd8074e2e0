//! The life of a member in the store: its lease, the key that says which of its drives are up, and what becomes of both
//! when the lease is lost.
//! Promises: a life ends before the next one begins; what was served in the one is not in the other.

use super::{Member, Phase};
use crate::config::cluster::{AliveRecord, ClusterError, ClusterStore, NodeLease};
use crate::config::{DirectoryLock, Life, Membership};
use crate::control::{Control, SharedControl, Stage, Standing};
use crate::shard_loop::Mail;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::JoinError;
use weft_engine::DriveId;
use weft_engine::cluster::detection::LEASE_US;
use weft_engine::interface::Order;

/// Between two tries to get a new lease.
const PAUSE: Duration = Duration::from_millis(500);

pub struct Living {
    pub lease: NodeLease,
    pub incarnation: u64,
    /// The life before it, which is over.
    former: Option<u64>,
}

/// What was told about this node's drives, and whether that is still under way.
#[derive(Default)]
pub struct Announcing {
    told: Option<AliveRecord>,
    under_way: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum LifeError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Membership(#[from] crate::config::MembershipError),
}

/// Whether it is of no use to try again.
pub fn is_final(error: &ClusterError) -> bool {
    matches!(
        error,
        ClusterError::NodeRemoved { .. }
            | ClusterError::OldDirectory { .. }
            | ClusterError::RecordsAccepted { .. }
    )
}

/// What a life is begun with.
#[derive(Clone)]
pub struct Beginning {
    pub store: ClusterStore,
    pub membership: Membership,
    pub dir: PathBuf,
    pub lock: Arc<DirectoryLock>,
    pub losses: UnboundedSender<u64>,
}

impl Beginning {
    /// One try, on a thread that may wait. The outer error: an assertion failed.
    pub async fn begin(&mut self) -> Result<Result<Living, LifeError>, JoinError> {
        let Self { store, mut membership, dir, lock, losses } = self.clone();
        let tried = tokio::task::spawn_blocking(move || {
            let begun = begin(&store, &mut membership, &dir, &lock, &losses);
            (begun, membership)
        });
        let (begun, membership) = tried.await?;
        // It counts its lives, also those that came to nothing.
        self.membership = membership;
        Ok(begun)
    }
}

/// Begins a life: a new incarnation, and a lease under a key that nobody else has.
fn begin(
    store: &ClusterStore,
    membership: &mut Membership,
    dir: &Path,
    lock: &DirectoryLock,
    losses: &UnboundedSender<u64>,
) -> Result<Living, LifeError> {
    let place = lock.place();
    // Refused, a copy has counted nothing: it stays behind what the node itself has counted.
    store.may_begin(membership.node, &place, membership.former_life())?;
    let Life { incarnation, former } = membership.begin_life(dir, lock)?;
    let losses = losses.clone();
    let on_loss = move || {
        // Nobody listens any more when the node ends.
        let _ = losses.send(incarnation);
    };
    let lease = NodeLease::take(store.etcd(), Duration::from_micros(LEASE_US), on_loss)
        .map_err(ClusterError::from)?;
    let (up, down, slow) = (Vec::new(), Vec::new(), Vec::new());
    let record = AliveRecord { node: membership.node, incarnation, place, up, down, slow, stopping: false };
    store.announce(&record, lease.lease(), former)?;
    Ok(Living { lease, incarnation, former })
}

/// Begins another life whenever one was lost.
pub async fn keep(control: SharedControl, mut losses: UnboundedReceiver<u64>) {
    while let Some(lost) = losses.recv().await {
        // One that could not be begun, because its lease was over before it was announced, is not the present one.
        let present = control.lock().part.member().and_then(|member| Some(member.life.as_ref()?.incarnation));
        if present.is_some_and(|present| present != lost) {
            continue;
        }
        let Some(mut beginning) = control.lock().end_life() else { return };
        super::cut_off::wait_for_others(&control).await;
        let mut told = String::new();
        loop {
            // What is known to be older is not begun with: it may pass for newer before all of it has been read.
            while control.lock().part.member().is_some_and(|member| member.older_records.is_some()) {
                tokio::time::sleep(PAUSE).await;
            }
            let Ok(begun) = beginning.begin().await else {
                tracing::error!("beginning another life failed an assertion; it is tried again");
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            match begun {
                Ok(living) => {
                    control.lock().begin_life(living, beginning.membership);
                    super::cut_off::lives_again(&control).await;
                    break;
                }
                Err(LifeError::Cluster(error)) if is_final(&error) => {
                    control.lock().end(error);
                    return;
                }
                Err(error) => {
                    let line = error.to_string();
                    if told != line {
                        tracing::warn!(%error, "this node is not back in the cluster yet, and tries again");
                    }
                    told = line;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Ends this node's life for good: at once others may take what it served.
pub(in crate::control) async fn leave(control: &SharedControl) {
    let living = {
        let mut control = control.lock();
        let Some((life, served)) = control.part.member_mut().map(|member| {
            member.leadership = None;
            (member.life.take(), std::mem::take(&mut member.served))
        }) else {
            return;
        };
        for (family, served) in served {
            if !matches!(served.phase, Phase::HandingOver) {
                control.shards[served.shard].send(Mail::Order(Order::CloseFamily { family }));
            }
        }
        life
    };
    if let Some(living) = living {
        let given_up = tokio::task::spawn_blocking(move || living.lease.give_up()).await;
        if let Ok(Err(error)) = given_up {
            tracing::warn!(%error, "etcd did not hear that this node stops: others wait until its lease is over");
        }
    }
}

impl Member {
    /// Etcd may know this node's lease still, from the time of what was put back: nothing is to be served by that.
    pub(super) fn end_life_by_older_records(&self, error: &ClusterError) {
        if let Some(life) = &self.life {
            tracing::error!(%error, "nothing is served");
            self.end_deadline();
            // Nobody listens any more when the node ends.
            let _ = self.losses.send(life.incarnation);
        }
    }

    /// As far as it is known.
    pub(super) fn why_no_lease(&self) -> String {
        match &self.older_records {
            Some(error) => error.to_string(),
            None => "etcd does not answer it".to_string(),
        }
    }

    /// Nothing is served from now on, whatever is under way.
    pub(super) fn end_deadline(&self) {
        if let Some(life) = &self.life {
            life.lease.deadline().end();
        }
    }

    /// The cluster knows which drives of this node are up.
    pub(super) fn is_announced(&self) -> bool {
        self.announcing.told.is_some()
    }
}

impl Control {
    /// The lease is over: nothing is served any more. Gives what the next life needs; None: the node ends anyway.
    fn end_life(&mut self) -> Option<Beginning> {
        // It has been given up.
        if self.stage == Stage::Stopping && self.part.member().is_none_or(|member| member.life.is_none()) {
            return None;
        }
        let shards = self.shards.clone();
        let member = self.part.member_mut()?;
        tracing::warn!("the node's lease is over: its vDisks go to others until it has a new one");
        member.life = None;
        member.leadership = None;
        for (&family, served) in &member.served {
            if !matches!(served.phase, Phase::HandingOver) {
                shards[served.shard].send(Mail::Order(Order::CloseFamily { family }));
            }
        }
        member.served.clear();
        let member = self.part.member()?;
        Some(Beginning {
            store: member.store.clone(),
            membership: member.membership.clone(),
            dir: member.dir.clone(),
            lock: member.lock.clone(),
            losses: member.losses.clone(),
        })
    }

    pub(super) fn begin_life(&mut self, living: Living, membership: Membership) {
        // A lease that was lost while somebody was busy with it may have a successor already.
        let is_newer = |other: &Living| other.incarnation > living.incarnation;
        if self.part.member().and_then(|member| member.life.as_ref()).is_some_and(is_newer) {
            return;
        }
        let deadline = living.lease.deadline();
        for shard in &self.shards {
            shard.send(Mail::Lease(deadline.clone()));
        }
        let Some(member) = self.part.member_mut() else { return };
        tracing::info!(incarnation = living.incarnation, "the node has a new lease");
        member.life = Some(living);
        member.membership = membership;
        member.announcing.told = None;
        self.announce();
        self.reconcile();
    }

    /// From here on nobody gives this node anything more, and another one decides for the cluster: a stop takes its time, and clients of a
    /// node that dies meanwhile must not wait for it. Nothing waits for either of them, as etcd may be away.
    pub(in crate::control) fn begin_to_leave(&mut self) {
        self.announce();
        if let Some(member) = self.part.member_mut()
            && let Some(leadership) = member.leadership.take()
        {
            member.resign(leadership);
        }
    }

    /// Tells the cluster which drives of this node are up, if that has changed.
    pub(in crate::control) fn announce(&mut self) {
        let mut up = Vec::new();
        let mut down = Vec::new();
        let Some(member) = self.part.member_mut() else { return };
        for (id, drive) in &self.drives {
            match &drive.standing {
                Standing::Up if !self.hanging.contains_key(id) => up.push(id.0),
                Standing::Up | Standing::Down(_) => down.push(id.0),
                Standing::Opening | Standing::Lost => {}
            }
        }
        let Some(life) = &member.life else { return };
        let (node, place) = (member.node, member.lock.place());
        let stopping = self.stage == Stage::Stopping;
        let slow = up.iter().copied().filter(|&drive| self.slow.contains_key(&DriveId(drive))).collect();
        let record = AliveRecord { node, incarnation: life.incarnation, place, up, down, slow, stopping };
        // One at a time: the last word must be the newest.
        if member.announcing.under_way || member.announcing.told.as_ref() == Some(&record) {
            return;
        }
        let (lease, former) = (life.lease.lease(), life.former);
        member.announcing.under_way = true;
        let told = record.clone();
        member.spawn(
            move |store| store.announce(&told, lease, former),
            move |control, announced| {
                let Some(member) = control.part.member_mut() else { return };
                member.announcing.under_way = false;
                match announced {
                    Ok(_) => member.announcing.told = Some(record),
                    // The next tick tries again; without a lease the next life does.
                    Err(error) => tracing::warn!(%error, "the cluster was not told about this node's drives"),
                }
                control.announce_again();
            },
        );
    }

    /// After one announcement: what has changed meanwhile.
    fn announce_again(&mut self) {
        let Some(member) = self.part.member() else { return };
        if member.announcing.told.is_some() {
            self.announce();
        }
    }
}
