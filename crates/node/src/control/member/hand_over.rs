//! Handing a vDisk to another node while it is used: settle, close, give. Clients wait for as long as the last two take.
//! Promises: the next owner gets it only when nothing is answered here any more.

use super::Phase;
use crate::config::FamilyConfig;
use crate::config::cluster::{ClusterError, NodeState, Versioned};
use crate::control::Control;
use crate::control::failure::Failure;
use crate::shard_loop::Mail;
use std::time::{Duration, Instant};
use weft_engine::interface::Order;
use weft_engine::{FamilyId, ShardId};

/// A vDisk that is written to all the time never settles whole: what is left after this time the next owner replays.
const SETTLE_WAIT: Duration = Duration::from_secs(5);

/// One that is not served after this time goes as it is. If that fails it is tried again after the same time.
const STUCK_AFTER: Duration = Duration::from_secs(10);

impl Phase {
    /// It is not served here, and it is the engine that cannot open it.
    pub(super) fn is_stuck(&self) -> bool {
        match self {
            Phase::Opening => true,
            Phase::Failed(failure) => failure.is_of_engine,
            _ => false,
        }
    }
}

impl Control {
    /// The store says that this vDisk shall go to that node.
    pub(super) fn begin_hand_over(&mut self, family: FamilyId, to: u32) {
        let Some(member) = self.part.member_mut() else { return };
        let here = member.node;
        let Some(served) = member.served.get_mut(&family) else { return };
        // What cannot be opened here has nothing to settle, and may be opened there: else a node that is emptied would never be.
        let is_stuck = match &served.phase {
            Phase::Ready => false,
            phase if phase.is_stuck() && served.since.elapsed() >= STUCK_AFTER => true,
            _ => return,
        };
        if to == here || !member.mirror.stays(to) {
            return self.stay(family, to);
        }
        if is_stuck {
            tracing::warn!(%family, to, "a vDisk that cannot be opened here is handed over as it is");
            served.since = Instant::now();
            served.phase = Phase::Settling { to, until: Instant::now() };
            return self.hand_over(family);
        }
        tracing::info!(%family, to, "a vDisk is being handed over");
        served.phase = Phase::Settling { to, until: Instant::now() + SETTLE_WAIT };
        self.shards[served.shard].send(Mail::Order(Order::Settle { family }));
    }

    pub(in crate::control) fn on_settled(&mut self, family: FamilyId) {
        let phase = self.part.member().and_then(|member| member.served.get(&family));
        if phase.is_some_and(|served| matches!(served.phase, Phase::Settling { .. })) {
            self.hand_over(family);
        }
    }

    /// Closes it here, and asks the store to give it to the other node.
    pub(super) fn hand_over(&mut self, family: FamilyId) {
        let Some(member) = self.part.member_mut() else { return };
        let Some(served) = member.served.get_mut(&family) else { return };
        let Phase::Settling { to, .. } = served.phase else { return };
        let Some(seen) = member.mirror.families.get(&family).cloned() else { return };
        // It may have been sent elsewhere while it settled, or told to stay; and who was to have it may have begun to stop, or died.
        let to = seen.record.moving_to.unwrap_or(to);
        if to == member.node || !member.mirror.stays(to) {
            served.phase = Phase::Ready;
            self.shards[served.shard].send(Mail::Order(Order::StopSettling { family }));
            return self.stay(family, to);
        }
        let shard = served.shard;
        served.phase = Phase::HandingOver;
        let shards = member.mirror.nodes.get(&to).map_or(1, |node| node.record.shards.max(1));
        let claim = member.claim(ShardId::of(to, family.0 % shards));
        self.shards[shard].send(Mail::Order(Order::CloseFamily { family }));
        let Some(member) = self.part.member() else { return };
        member.spawn(
            move |store| match claim {
                Some(claim) => give(store, seen, &claim),
                None => Err(ClusterError::NotThere { key: format!("living node {to}") }),
            },
            move |control, given| {
                if let Err(error) = given {
                    tracing::warn!(%family, to, %error, "a vDisk could not be handed over and stays here");
                    control.take_back(family);
                }
            },
        );
        self.note_serving(family);
    }

    /// It was closed here, and nobody else has got it: it is opened again.
    fn take_back(&mut self, family: FamilyId) {
        let Some(member) = self.part.member_mut() else { return };
        let Some(served) = member.served.get_mut(&family) else { return };
        if served.phase == Phase::HandingOver {
            let reason = "it could not be handed over".to_string();
            served.phase = Phase::Failed(Failure::passing(reason, Instant::now()));
            self.look_after_families();
        }
    }

    /// There is no node `to` that it could go to, or it is there.
    fn stay(&mut self, family: FamilyId, to: u32) {
        let Some(member) = self.part.member() else { return };
        member.spawn(
            move |store| {
                // Who has sent it elsewhere meanwhile has the last word.
                store.change_vdisk(family, |record| {
                    record.moving_to = record.moving_to.filter(|now| *now != to)
                })
            },
            move |_, stayed| {
                if let Err(error) = stayed {
                    tracing::warn!(%family, %error, "a vDisk that stays is still said to move");
                }
            },
        );
    }
}

/// Gives a vDisk away that nobody serves. The record may have been changed meanwhile (its size, its exports); the epoch
/// tells that it is still ours to give, unless it shall go to another node now.
fn give(
    store: &crate::config::cluster::ClusterStore,
    mut seen: Versioned<FamilyConfig>,
    claim: &crate::config::cluster::NewOwner,
) -> Result<Versioned<FamilyConfig>, ClusterError> {
    let epoch = seen.record.epoch;
    loop {
        match store.give(&seen, claim, None) {
            Err(ClusterError::Changed { key }) => {
                let now = store.family(seen.record.id())?;
                let to = claim.shard.node();
                let now = now.filter(|now| now.record.epoch == epoch && now.revision != seen.revision);
                let now = now.filter(|now| now.record.moving_to.is_none_or(|wanted| wanted == to));
                seen = now.ok_or(ClusterError::Changed { key })?;
            }
            result => return result,
        }
    }
}

/// Whether a node takes vDisks that are handed to it by name.
pub(super) fn may_serve(state: NodeState, stays: bool) -> bool {
    stays && state == NodeState::In
}
