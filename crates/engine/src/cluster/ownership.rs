//! Which shard serves which family: who gets a new owner now.
//! Promises: a family is taken from a shard only when the lease under which that shard serves has certainly ended;
//! from a shard that lives it is only handed over, by its own hand; families of a dead node are spread over all
//! others; nothing moves to and fro.
//! Leaves to others: epochs and compare-and-set in the config store, telling shards, and the hand-over itself
//! (settle, close, open elsewhere).

use super::detection::{HAND_OVERS_MAX, LOCALITY_US, STAY_US};
use crate::context::Draw;
use crate::identity::{FamilyId, ShardId, Time};
use std::collections::{BTreeMap, BTreeSet};

/// A node as the config store and its own heartbeat tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The lease it holds **now**, as the store says. None: it has none. Every start of a node has another lease.
    pub lease: Option<u64>,
    /// It keeps copies, and serves no vDisks as long as anybody else can.
    pub is_storage_only: bool,
    /// To be left alone: its vDisks go to others.
    pub is_draining: bool,
    /// It is about to end: it goes on with what it has until its lease is given back, and is given nothing.
    pub is_stopping: bool,
    pub shards: Vec<ShardId>,
}

/// Who serves a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub node: u32,
    pub shard: ShardId,
    /// The lease of the node when the family was given to it.
    pub lease: u64,
    /// When that was, on the clock of [`Cluster::now`] (or when this was first seen).
    pub since: Time,
}

/// Where the clients of a family are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clients {
    /// The only node they have been connected to, and since when. None: on several, or nowhere.
    pub only_on: Option<(u32, Time)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Family {
    pub owner: Option<Owner>,
    /// A hand-over is under way, to this node.
    pub moving_to: Option<u32>,
    pub clients: Clients,
}

/// What is known, from one revision of the config store.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    pub now: Time,
    pub nodes: BTreeMap<u32, Node>,
    pub families: BTreeMap<FamilyId, Family>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    pub family: FamilyId,
    pub to: ShardId,
    pub how: How,
    pub why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// Nobody serves it (any more): the new owner opens it under a higher epoch, as soon as the store takes it. The
    /// store must be asked to take it only if the old owner's lease is still absent and the record unchanged.
    Take,
    /// The owner is asked to settle and close it, and then to let it go.
    HandOver,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// It has never been served, or was let go.
    Unserved,
    NodeLost,
    NodeDraining,
    /// Its clients are elsewhere.
    Locality,
}

impl Cluster {
    /// The families that should get a new owner now. Each is told again until it is done.
    pub fn moves(&self) -> Vec<Move> {
        let mut load = self.load();
        let mut moves = Vec::new();
        // First those that nobody serves: their clients are waiting.
        for (&family, entry) in &self.families {
            let why = match entry.owner {
                None => Why::Unserved,
                Some(owner) if self.has_certainly_ended(&owner) => Why::NodeLost,
                Some(_) => continue,
            };
            // Where it was on its way to; else where its clients are; else where its copies are.
            let clients = entry.clients.only_on.map(|(node, _)| node);
            let wish = entry.moving_to.or(clients).or(entry.owner.map(|owner| owner.node));
            if let Some(to) = self.choose(family, wish, &load) {
                *load.entry(to).or_default() += 1;
                moves.push(Move { family, to, how: How::Take, why });
            }
        }
        let mut moving: BTreeSet<FamilyId> = moves.iter().map(|decided: &Move| decided.family).collect();
        let mut busy = self.hand_overs();
        for why in [Why::NodeDraining, Why::Locality] {
            for (&family, entry) in &self.families {
                let Some(owner) = entry.owner.filter(|owner| !self.has_certainly_ended(owner)) else {
                    continue;
                };
                if entry.moving_to.is_some() || moving.contains(&family) {
                    continue;
                }
                let Some(to) = self.better_place(family, entry, &owner, why, &load) else { continue };
                let there = self.node_of(to).expect("a chosen shard is of a node");
                let room = |node: u32| busy.get(&node).copied().unwrap_or(0) < HAND_OVERS_MAX;
                if !room(owner.node) || !room(there) {
                    continue;
                }
                *busy.entry(owner.node).or_default() += 1;
                *busy.entry(there).or_default() += 1;
                *load.entry(to).or_default() += 1;
                *load.entry(owner.shard).or_default() -= 1;
                moving.insert(family);
                moves.push(Move { family, to, how: How::HandOver, why });
            }
        }
        moves
    }

    /// Whether nobody can be serving under this owner's lease any more.
    ///
    /// The lease is no longer in the store. The store ends a lease [`super::detection::LEASE_US`] after it took the
    /// last renewal; the node stops [`super::detection::SERVE_US`] after it **sent** that renewal, which was before;
    /// and the second span is shorter by more than clocks differ. A node that gives its lease back stops first.
    /// A node that has started again has another lease: what it served before, it does not serve now.
    fn has_certainly_ended(&self, owner: &Owner) -> bool {
        self.nodes.get(&owner.node).and_then(|node| node.lease) != Some(owner.lease)
    }

    /// Families of each shard that can serve, also those on their way to it or to be taken from it.
    fn load(&self) -> BTreeMap<ShardId, usize> {
        let mut load = BTreeMap::new();
        for node in self.nodes.values().filter(|node| node.lease.is_some()) {
            load.extend(node.shards.iter().map(|&shard| (shard, 0)));
        }
        let owners = self.families.values().filter_map(|family| family.owner);
        for owner in owners.filter(|owner| !self.has_certainly_ended(owner)) {
            *load.entry(owner.shard).or_default() += 1;
        }
        load
    }

    fn hand_overs(&self) -> BTreeMap<u32, usize> {
        let mut busy = BTreeMap::new();
        for family in self.families.values() {
            if let (Some(owner), Some(to)) = (family.owner, family.moving_to) {
                *busy.entry(owner.node).or_default() += 1;
                *busy.entry(to).or_default() += 1;
            }
        }
        busy
    }

    fn node_of(&self, shard: ShardId) -> Option<u32> {
        self.nodes.iter().find(|(_, node)| node.shards.contains(&shard)).map(|(&number, _)| number)
    }

    /// Where a family that is served should rather be, for this reason.
    fn better_place(
        &self,
        family: FamilyId,
        entry: &Family,
        owner: &Owner,
        why: Why,
        load: &BTreeMap<ShardId, usize>,
    ) -> Option<ShardId> {
        let here = &self.nodes[&owner.node];
        if why == Why::NodeDraining {
            if !here.is_draining && !here.is_storage_only {
                return None;
            }
            let wish = entry.clients.only_on.map(|(node, _)| node);
            let to = self.choose(family, wish, load)?;
            // With nowhere better to go it stays: a drained node serves as long as it is there.
            let there = &self.nodes[&self.node_of(to)?];
            return (rank(there) < rank(here)).then_some(to);
        }
        let (wish, since) = entry.clients.only_on?;
        let there = self.nodes.get(&wish)?;
        let is_settled = self.now.since(since) >= LOCALITY_US && self.now.since(owner.since) >= STAY_US;
        if wish == owner.node || !is_settled || rank(there) != Some(0) {
            return None;
        }
        self.choose(family, Some(wish), load)
    }

    /// The shard with the fewest families on the wished node, if that one can serve; else on any node of the best
    /// kind there is.
    fn choose(
        &self,
        family: FamilyId,
        wish: Option<u32>,
        load: &BTreeMap<ShardId, usize>,
    ) -> Option<ShardId> {
        let best = self.nodes.values().filter(|node| !node.is_stopping).filter_map(rank).min()?;
        let fitting = |node: &Node| rank(node) == Some(best);
        let wished = wish.filter(|wish| self.nodes.get(wish).is_some_and(fitting));
        let nodes: BTreeSet<u32> = match wished {
            Some(wish) => [wish].into(),
            None => self.nodes.iter().filter(|(_, node)| fitting(node)).map(|(&number, _)| number).collect(),
        };
        let shards = nodes.iter().flat_map(|node| &self.nodes[node].shards).copied();
        // Ties are broken by a draw, or all would begin with the first node.
        shards.min_by_key(|shard| {
            let seed = u64::from(family.0) << 32 | u64::from(shard.0);
            (load.get(shard).copied().unwrap_or(0), Draw::new(seed).number())
        })
    }
}

/// How well a node serves vDisks, 0 best. None: not at all.
fn rank(node: &Node) -> Option<u32> {
    if node.lease.is_none() || node.shards.is_empty() {
        return None;
    }
    if node.is_stopping {
        return Some(3);
    }
    Some(match (node.is_draining, node.is_storage_only) {
        (false, false) => 0,
        (false, true) => 1,
        (true, _) => 2,
    })
}
