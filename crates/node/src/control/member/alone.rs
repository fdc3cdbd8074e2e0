//! A node that reaches none of the others, but etcd. Its lease goes on, so nobody takes its vDisks, and nobody but its own clients can
//! use them; what these write would have one copy. So it gives its lease back, and takes another one when it reaches somebody.
//! Promises: a log is not left to the drives of a node that is alone among others that live: they stay in the view, and what is
//! written waits for them, or for the next owner.
//! Leaves to others: two nodes, of which neither can tell which one is cut off (`view`); a node cut off from etcd (`life`).

use super::Member;
use super::life;
use crate::config::cluster::NodeState;
use crate::control::{SharedControl, Stage};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use weft_engine::cluster::detection::LEASE_US;

/// Others that crashed before they were missed have no lease any more after this time, and are none that live.
const ALONE_AFTER: Duration = Duration::from_micros(LEASE_US + 1_000_000);

const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Somebody who can be reached takes a connection within this time.
const CONNECT: Duration = Duration::from_secs(1);

/// Between a lease that was given back and the next one, at first and at most: it is doubled each time the node is soon alone again.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What is known about it.
pub(super) struct Alone {
    since: Option<Instant>,
    /// When the lease was given back last.
    gave_up: Option<Instant>,
    /// It was, and there is no other yet.
    waits: bool,
    pause: Duration,
}

impl Default for Alone {
    fn default() -> Self {
        Self { since: None, gave_up: None, waits: false, pause: PAUSE }
    }
}

impl Member {
    /// Whether others live, at least two, and no shard here reaches any shard of theirs.
    pub(super) fn is_alone(&self) -> bool {
        let mut reached: BTreeMap<u32, bool> = BTreeMap::new();
        for shard in self.peers.keys() {
            *reached.entry(shard.node()).or_default() |= !self.unreachable.contains_key(shard);
        }
        reached.len() >= 2 && reached.values().all(|reached| !reached)
    }
}

/// Looks now and then whether this node is alone, and gives its lease back if it stays so.
pub async fn watch(control: SharedControl) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let incarnation = {
            let mut control = control.lock();
            let is_ready = control.stage == Stage::Ready;
            let Some(member) = control.part.member_mut() else { return };
            if is_ready { look(member) } else { None }
        };
        let Some(incarnation) = incarnation else { continue };
        tracing::error!(
            "no other node can be reached, only etcd: look at the network; the vDisks served here go to others"
        );
        life::leave(&control).await;
        if let Some(member) = control.lock().part.member() {
            // Whoever takes the next lease waits for it. Nobody listens any more when the node ends.
            let _ = member.losses.send(incarnation);
        }
    }
}

/// The life that is to end, if its time has come.
fn look(member: &mut Member) -> Option<u64> {
    let now = Instant::now();
    let is_alone = member.is_alone();
    let incarnation = member.life.as_ref()?.incarnation;
    let alone = &mut member.alone;
    if !is_alone {
        alone.since = None;
        return None;
    }
    if now.duration_since(*alone.since.get_or_insert(now)) < ALONE_AFTER {
        return None;
    }
    let is_again = alone.gave_up.is_some_and(|before| now.duration_since(before) < 2 * PAUSE_MAX);
    alone.pause = if is_again { (alone.pause * 2).min(PAUSE_MAX) } else { PAUSE };
    (alone.since, alone.gave_up, alone.waits) = (None, Some(now), true);
    Some(incarnation)
}

/// Before another lease is taken: waits until somebody can be reached, if the last one was given back because nobody could. Also a node that
/// has no lease itself counts: if the network is away for all of them, none shall go on by itself.
pub async fn wait_for_others(control: &SharedControl) {
    let waits = || control.lock().part.member().filter(|member| member.alone.waits).map(others);
    while let Some((others, pause)) = waits() {
        tokio::time::sleep(pause).await;
        if others.is_empty() || is_any_reached(others).await {
            break;
        }
    }
    if let Some(member) = control.lock().part.member_mut() {
        member.alone.waits = false;
    }
}

/// Where the other nodes of the cluster can be reached, and when to try.
fn others(member: &Member) -> (Vec<SocketAddr>, Duration) {
    let nodes = member
        .mirror
        .nodes
        .iter()
        .filter(|(node, known)| **node != member.node && known.record.state != NodeState::Removed);
    let addresses = nodes.flat_map(|(_, known)| &known.record.transport);
    let addresses: BTreeSet<SocketAddr> = addresses.filter_map(|address| address.parse().ok()).collect();
    (addresses.into_iter().collect(), member.alone.pause)
}

async fn is_any_reached(others: Vec<SocketAddr>) -> bool {
    for other in others {
        if let Ok(Ok(_)) = tokio::time::timeout(CONNECT, TcpStream::connect(other)).await {
            return true;
        }
    }
    false
}
