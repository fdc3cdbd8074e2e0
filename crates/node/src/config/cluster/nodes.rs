//! The nodes of a cluster: joining, and what is written about one later.

use super::change::{Verdict, Versioned, parse};
use super::create::New;
use super::records::{ClusterNodeRecord, NodeState, SHARDS_PER_NODE};
use super::{ClusterError, ClusterStore};

impl ClusterStore {
    /// Takes a new node in. Its number is given by the cluster; that of `wanted` does not count.
    pub fn join(&self, wanted: &ClusterNodeRecord) -> Result<Versioned<ClusterNodeRecord>, ClusterError> {
        assert!((1..=SHARDS_PER_NODE).contains(&wanted.shards), "a node has 1 to {SHARDS_PER_NODE} shards");
        let mut record = wanted.clone();
        let revision = self.create(None, |cluster| {
            record.node = cluster.next_node;
            cluster.next_node += 1;
            Ok(vec![New::numbered(self.keys.node(record.node), &record)])
        })?;
        Ok(Versioned { record, revision })
    }

    pub fn node(&self, node: u32) -> Result<Option<Versioned<ClusterNodeRecord>>, ClusterError> {
        self.etcd.get(&self.keys.node(node))?.as_ref().map(parse).transpose()
    }

    /// Whether a node was taken out for good.
    pub fn is_removed(&self, node: u32) -> Result<bool, ClusterError> {
        Ok(self.node(node)?.is_none_or(|found| found.record.state == NodeState::Removed))
    }

    /// Changes what is written about a node: its addresses, its state.
    pub fn change_node(
        &self,
        node: u32,
        mut alter: impl FnMut(&mut ClusterNodeRecord),
    ) -> Result<Versioned<ClusterNodeRecord>, ClusterError> {
        self.change(&self.keys.node(node), None, |record: &mut ClusterNodeRecord, _| {
            let before = record.clone();
            alter(record);
            assert_eq!(record.node, node, "a node keeps its number");
            Ok(if *record == before { Verdict::Leave } else { Verdict::Put })
        })
    }
}
