//! Which shard serves a vDisk, as far as this shard has been told.
//! Promises: all that a node asks the owner of one vDisk elsewhere goes by one of its shards, and so over one connection, in order: what a
//! client had on its way when it went does not come behind what it asks for on its next connection, whichever shard has that.

use crate::shard_loop::owner_of;
use std::collections::BTreeMap;
use weft_engine::{Epoch, FamilyId, ShardId};

/// Who serves a vDisk, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    pub shard: ShardId,
    /// A request that was sent in one epoch is not carried out in another.
    pub epoch: Epoch,
}

/// The way from this shard to a vDisk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Here,
    /// Another shard of this node, by its index.
    Neighbour(usize),
    /// A shard of another node, which this one asks.
    Remote(Route),
    /// Nobody serves it now, as far as is known here.
    Nowhere,
}

pub(super) struct Routes {
    own: ShardId,
    /// The first shard of this node, and how many there are.
    base: u32,
    shards: usize,
    /// None: there is only this node, and vDisks are dealt to its shards in turn.
    table: Option<BTreeMap<FamilyId, Route>>,
}

impl Routes {
    pub fn new(own: ShardId, base: u32, shards: usize) -> Self {
        assert!(own.0 >= base && ((own.0 - base) as usize) < shards, "a shard is one of its node's");
        Self { own, base, shards, table: None }
    }

    pub fn set(&mut self, table: BTreeMap<FamilyId, Route>) {
        self.table = Some(table);
    }

    /// Whether a vDisk that nobody serves may soon be served by somebody.
    pub fn may_change(&self) -> bool {
        self.table.is_some()
    }

    /// The index of a shard of this node.
    pub fn neighbour(&self, shard: ShardId) -> Option<usize> {
        let index = shard.0.checked_sub(self.base)? as usize;
        (index < self.shards).then_some(index)
    }

    pub fn way(&self, family: FamilyId) -> Way {
        let dealt = owner_of(family, self.shards).0;
        let is_dealt_here = self.base + dealt == self.own.0;
        let Some(table) = &self.table else {
            return if is_dealt_here { Way::Here } else { Way::Neighbour(dealt as usize) };
        };
        match table.get(&family) {
            None => Way::Nowhere,
            Some(route) if route.shard == self.own => Way::Here,
            Some(route) => match self.neighbour(route.shard) {
                Some(index) => Way::Neighbour(index),
                None if is_dealt_here => Way::Remote(*route),
                None => Way::Neighbour(dealt as usize),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_alone_deals_vdisks_to_its_shards_and_a_cluster_is_told() {
        let mut routes = Routes::new(ShardId(65), 64, 2);
        assert_eq!(routes.way(FamilyId(7)), Way::Here);
        assert_eq!(routes.way(FamilyId(8)), Way::Neighbour(0));
        assert!(!routes.may_change());
        let route = |shard| Route { shard: ShardId(shard), epoch: Epoch(3) };
        routes.set(BTreeMap::from([
            (FamilyId(1), route(64)),
            (FamilyId(2), route(65)),
            (FamilyId(3), route(66)),
            (FamilyId(4), route(1)),
            (FamilyId(5), route(1)),
        ]));
        assert_eq!(routes.way(FamilyId(1)), Way::Neighbour(0));
        assert_eq!(routes.way(FamilyId(2)), Way::Here);
        assert_eq!(routes.way(FamilyId(3)), Way::Remote(route(66)));
        assert_eq!(routes.way(FamilyId(5)), Way::Remote(route(1)));
        // Two connections would not keep the order.
        assert_eq!(routes.way(FamilyId(4)), Way::Neighbour(0));
        assert_eq!(routes.way(FamilyId(7)), Way::Nowhere);
        assert!(routes.may_change());
    }
}
