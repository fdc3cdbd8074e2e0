//! The election of the controller, and its turns: what the store holds, what owners have found, a decision, again when
//! something has changed.

use super::Member;
use super::asking::ask_all_but;
use super::decide::{Memory, decide};
use crate::api::WholeView;
use crate::config::cluster::{Campaign, ClusterConfig, ClusterError, ClusterStore, Leadership};
use crate::config::etcd::LeaseId;
use crate::control::{Control, SharedControl, Stage};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Without any change the controller looks again after this time: what has been away for long enough is found by time.
const TURN: Duration = Duration::from_secs(1);

/// After a turn that failed or had nothing to do although something changed.
const PAUSE: Duration = Duration::from_millis(20);

/// Between two tries to become the controller, when nobody seems to be it.
const CAMPAIGN_AGAIN: Duration = Duration::from_millis(500);

enum Turn {
    /// Somebody else decides.
    None,
    Campaign {
        store: ClusterStore,
        node: u32,
        lease: LeaseId,
    },
    Decide {
        store: ClusterStore,
        mirror: Arc<ClusterConfig>,
        leadership: Leadership,
        /// Nodes that do not answer the shards of this one.
        silent: BTreeSet<u32>,
    },
}

pub async fn run(control: SharedControl) {
    let mut memory = Memory::new();
    // What this controller has written up to this revision must have come back before it decides again.
    let mut written = 0;
    let mut seen = 0;
    loop {
        control
            .wait_for(TURN, |control| {
                let revision = control.part.member()?.mirror.revision;
                (revision > seen).then_some(())
            })
            .await;
        let turn = {
            let control = control.lock();
            seen = control.part.member().map_or(0, |member| member.mirror.revision);
            control.turn(written)
        };
        match turn {
            Turn::None => {}
            Turn::Campaign { store, node, lease } => {
                let campaign = tokio::task::spawn_blocking(move || store.campaign(node, lease)).await;
                if let Ok(Ok(Campaign::Won(leadership))) = campaign {
                    tracing::info!("this node decides for the cluster");
                    memory = Memory::new();
                    written = 0;
                    // Decided at once, with what is known already.
                    seen = 0;
                    control.lock().set_leadership(Some(leadership));
                } else {
                    tokio::time::sleep(CAMPAIGN_AGAIN).await;
                }
                continue;
            }
            Turn::Decide { store, mirror, leadership, silent } => {
                let decided = tokio::task::spawn_blocking(move || {
                    let whole = || gather(&mirror, &silent);
                    let decided = decide(&store, &mirror, &leadership, &mut memory, whole);
                    (decided, memory)
                });
                // A rule that fails an assertion decides nothing; the next turn begins afresh.
                let (decided, kept) = match decided.await {
                    Ok(result) => result,
                    Err(_) => (Ok(0), Memory::new()),
                };
                memory = kept;
                match decided {
                    Ok(revision) => written = written.max(revision),
                    Err(ClusterError::NotController) => {
                        tracing::warn!("another node decides for the cluster now");
                        control.lock().set_leadership(None);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "what was decided for the cluster could not be written");
                    }
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl Control {
    fn turn(&self, written: u64) -> Turn {
        let Some(member) = self.part.member() else { return Turn::None };
        let Some(life) = member.life.as_ref().filter(|_| self.stage == Stage::Ready) else {
            return Turn::None;
        };
        let store = member.store.clone();
        match &member.leadership {
            Some(leadership) if member.mirror.revision >= written.max(leadership.revision) => Turn::Decide {
                store,
                mirror: Arc::clone(&member.mirror),
                leadership: leadership.clone(),
                silent: member.unreachable.keys().map(|shard| shard.node()).collect(),
            },
            Some(_) => Turn::None,
            // It may hold the office without knowing, if the answer to its campaign was lost.
            None if member
                .mirror
                .controller
                .as_ref()
                .is_none_or(|found| found.record.node == member.node) =>
            {
                Turn::Campaign { store, node: member.node, lease: life.lease.lease() }
            }
            None => Turn::None,
        }
    }

    fn set_leadership(&mut self, leadership: Option<Leadership>) {
        let is_stopping = self.stage == Stage::Stopping;
        let Some(member) = self.part.member_mut() else { return };
        match leadership {
            // It was asked for before.
            Some(leadership) if is_stopping => member.resign(leadership),
            leadership => member.leadership = leadership,
        }
    }
}

impl Member {
    pub(super) fn resign(&self, leadership: Leadership) {
        tracing::info!("this node stops, and decides for the cluster no more");
        self.spawn(
            move |store| store.resign(&leadership),
            |_, resigned| {
                if let Err(error) = resigned {
                    tracing::warn!(%error, "nobody decides for the cluster before this node has ended");
                }
            },
        );
    }
}

/// Asks every living node what its owners have found, if anybody has to know. One that does not answer this node's shards would only
/// keep those waiting whose vDisks have to go elsewhere.
fn gather(mirror: &ClusterConfig, silent: &BTreeSet<u32>) -> Vec<WholeView> {
    if mirror.groups.values().all(|group| group.record.former.is_empty()) {
        return Vec::new();
    }
    // Who says nothing has found nothing, as far as is known: nothing is forgotten meanwhile.
    ask_all_but::<Vec<WholeView>>(mirror, silent, "/v1/internal/whole").into_iter().flatten().collect()
}
