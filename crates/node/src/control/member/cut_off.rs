//! A node that reaches none of the others, but etcd. Its lease goes on, so nobody takes its vDisks, and nobody but its own clients can
//! use them; what these write would have one copy. So it gives its lease back, and takes another one when it reaches somebody.
//! Promises: a log is not left to the drives of a node that reaches nobody, while others live: they stay in the view, and what is
//! written waits for them, or for the next owner.
//! Leaves to others: two nodes, of which neither can tell which one is cut off (`view`); a node cut off from etcd (`life`).

use super::Member;
use super::life;
use super::requests::with_store;
use crate::config::cluster::{NodeLease, NodeState};
use crate::control::{SharedControl, Stage};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// So long behind the length of a lease a node has to reach nobody: others that crashed have no lease any more by then.
const BEHIND_LEASES: Duration = Duration::from_secs(1);

/// Answers that were looked at before the lease ended are out after this time.
const LAST_ANSWERS: Duration = Duration::from_millis(200);

const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Somebody who can be reached takes a connection within this time.
const CONNECT: Duration = Duration::from_secs(1);

/// Between a lease that was given back and the next one, at first and at most: it is doubled each time the node soon reaches nobody again.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// One that waits and dies is taken for waiting for so long. Etcd may be away for a while meanwhile.
const WORD: Duration = Duration::from_secs(60);

/// What is known about it.
pub(super) struct CutOff {
    since: Option<Instant>,
    /// When the lease was given back last.
    gave_up: Option<Instant>,
    /// It was, and there is no other yet.
    waits: bool,
    pause: Duration,
    /// That this node waits, as the others see it.
    word: Option<NodeLease>,
}

impl Default for CutOff {
    fn default() -> Self {
        Self { since: None, gave_up: None, waits: false, pause: PAUSE, word: None }
    }
}

impl Member {
    /// Whether there are others, at least two, that live or gave their leases back for the same reason, and no shard here reaches any
    /// shard of theirs.
    pub(super) fn reaches_nobody(&self) -> bool {
        let reached = self.reached();
        reached.len() >= 2 && reached.values().all(|reached| !reached)
    }

    /// The others that count, and whether they can be reached.
    pub(super) fn reached(&self) -> BTreeMap<u32, bool> {
        let is_cut_off = |node: &u32| *node != self.node && self.is_cut_off(*node);
        let mut reached: BTreeMap<u32, bool> =
            self.mirror.nodes.keys().copied().filter(is_cut_off).map(|node| (node, false)).collect();
        let shards = self.mirror.nodes.get(&self.node).map_or(1, |own| own.record.shards as usize);
        for shard in self.peers.keys() {
            let is_lost = self.unreachable.get(shard).is_some_and(|lost| lost.len() >= shards);
            *reached.entry(shard.node()).or_default() |= !is_lost;
        }
        reached
    }

    /// Whether a node gave its lease back because it reached nobody, and has no other yet.
    pub(super) fn is_cut_off(&self, node: u32) -> bool {
        let known = self.mirror.nodes.get(&node);
        let may_come = known.is_some_and(|known| known.record.state != NodeState::Removed);
        may_come && self.mirror.cut_off.contains_key(&node)
    }
}

/// Looks now and then whether this node reaches anybody, and gives its lease back if it does not for long.
pub async fn watch(control: SharedControl) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let (incarnation, deadline) = {
            let mut control = control.lock();
            let is_ready = control.stage == Stage::Ready;
            let Some(member) = control.part.member_mut() else { return };
            let Some(incarnation) = is_ready.then(|| look(member)).flatten() else { continue };
            let Some(life) = &member.life else { continue };
            (incarnation, life.lease.deadline())
        };
        tracing::error!(
            "no other node can be reached, only etcd: look at the network; the vDisks served here go to others"
        );
        // So that the others do not take it for dead, should the network be away for all of them. Without etcd the lease ends by itself.
        let word = tell(&control).await;
        // Etcd may have taken its time: another life, or a node that reaches somebody again, goes on. One whose lease has run out
        // meanwhile waits like one that gave it back.
        let goes_on = |member: &Member| {
            let is_another = member.life.as_ref().is_some_and(|life| life.incarnation != incarnation);
            is_another || !member.reaches_nobody()
        };
        if control.lock().part.member().is_none_or(goes_on) {
            take_back(word).await;
            if let Some(member) = control.lock().part.member_mut() {
                member.cut_off.waits = false;
            }
            continue;
        }
        if let Some(member) = control.lock().part.member_mut() {
            member.cut_off.word = word;
        }
        deadline.end();
        tokio::time::sleep(LAST_ANSWERS).await;
        life::leave(&control).await;
        if let Some(member) = control.lock().part.member() {
            // Whoever takes the next lease waits for it. Nobody listens any more when the node ends.
            let _ = member.losses.send(incarnation);
        }
    }
}

/// Without etcd nobody hears it.
async fn tell(control: &SharedControl) -> Option<NodeLease> {
    let node = control.lock().part.member()?.node;
    let told = with_store(control, move |store| store.tell_cut_off(node, WORD)).await;
    told.inspect_err(|refusal| {
        tracing::warn!(reason = refusal.line, "the others do not hear that this node waits")
    })
    .ok()
}

/// From here on the node counts as one that lives, or not at all.
async fn take_back(word: Option<NodeLease>) {
    if let Some(word) = word {
        // It ends by itself else.
        let _ = tokio::task::spawn_blocking(move || word.give_up()).await;
    }
}

/// The node has another life.
pub(super) async fn lives_again(control: &SharedControl) {
    let word = control.lock().part.member_mut().and_then(|member| member.cut_off.word.take());
    take_back(word).await;
}

/// The life that is to end, if its time has come.
fn look(member: &mut Member) -> Option<u64> {
    let now = Instant::now();
    let life = member.life.as_ref().filter(|_| member.reaches_nobody());
    let Some((incarnation, ttl)) = life.map(|life| (life.incarnation, life.lease.ttl())) else {
        member.cut_off.since = None;
        return None;
    };
    let cut_off = &mut member.cut_off;
    if now.duration_since(*cut_off.since.get_or_insert(now)) < ttl + BEHIND_LEASES {
        return None;
    }
    let is_again = cut_off.gave_up.is_some_and(|before| now.duration_since(before) < 2 * PAUSE_MAX);
    cut_off.pause = if is_again { (cut_off.pause * 2).min(PAUSE_MAX) } else { PAUSE };
    (cut_off.since, cut_off.gave_up, cut_off.waits) = (None, Some(now), true);
    Some(incarnation)
}

/// Before another lease is taken: waits until somebody can be reached, if the last one was given back because nobody could, or until the
/// others turn out to be dead. One that waits like this itself is not dead: if the network is away for all of them, none goes on alone.
pub async fn wait_for_others(control: &SharedControl) {
    let waits = || control.lock().part.member().filter(|member| member.cut_off.waits).map(others);
    while let Some((others, pause)) = waits() {
        tokio::time::sleep(pause).await;
        // Etcd may have ended it, or never have heard it.
        let is_told =
            |member: &Member| member.cut_off.word.as_ref().is_some_and(|word| !word.deadline().has_passed());
        if !control.lock().part.member().is_none_or(is_told) {
            let word = tell(control).await;
            if let Some(member) = control.lock().part.member_mut() {
                member.cut_off.word = word;
            }
        }
        let are_dead = control.lock().part.member().is_none_or(|member| member.reached().len() < 2);
        if are_dead || is_any_reached(others).await {
            break;
        }
    }
    if let Some(member) = control.lock().part.member_mut() {
        member.cut_off.waits = false;
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
    (addresses.into_iter().collect(), member.cut_off.pause)
}

async fn is_any_reached(others: Vec<SocketAddr>) -> bool {
    for other in others {
        if let Ok(Ok(_)) = tokio::time::timeout(CONNECT, TcpStream::connect(other)).await {
            return true;
        }
    }
    false
}
