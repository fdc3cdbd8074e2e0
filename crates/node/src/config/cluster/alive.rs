//! Which nodes live: one key each, tied to the node's lease.
//! Promises: two processes that both take themselves for one node are not both alive: the second one is
//! refused, unless it knows that the first is dead.

use super::change::{Patience, Versioned, json, parse};
use super::records::{AliveRecord, ClusterNodeRecord, NodeState};
use super::{ClusterError, ClusterStore};
use crate::config::etcd::{Compare, LeaseId, Transaction};

impl ClusterStore {
    /// Tells everybody that the node lives, and which of its drives are up; again whenever that changes.
    /// `former` is the start of this node that is surely over (its directory tells, see
    /// `Membership::begin_life`): its key may still be there, and is replaced. Gives the revision.
    pub fn announce(
        &self,
        record: &AliveRecord,
        lease: LeaseId,
        former: Option<u64>,
    ) -> Result<u64, ClusterError> {
        let node = record.node;
        let (key, text) = (self.keys.alive(node), json(record));
        let mut patience = Patience::new(&key);
        loop {
            let known = self.living_member(node)?;
            let found = self.etcd.get(&key)?;
            if let Some(found) = &found {
                if found.value == text && found.lease == Some(lease) {
                    return Ok(found.mod_revision);
                }
                let incarnation = parse::<AliveRecord>(found)?.record.incarnation;
                if incarnation != record.incarnation && Some(incarnation) != former {
                    return Err(ClusterError::AliveElsewhere { node, incarnation });
                }
            }
            let transaction = Transaction::new()
                .when(Compare::unchanged(&self.keys.node(node), known.revision))
                .when(Compare::unchanged(&key, found.map_or(0, |found| found.mod_revision)))
                .put(&key, &text, Some(lease));
            let answer = self.etcd.transact(&transaction)?;
            if answer.succeeded {
                return Ok(answer.revision);
            }
            patience.wait()?;
        }
    }

    /// The node's record, if it may live.
    fn living_member(&self, node: u32) -> Result<Versioned<ClusterNodeRecord>, ClusterError> {
        let known = self.node(node)?.ok_or_else(|| ClusterError::NotThere { key: self.keys.node(node) })?;
        if known.record.state == NodeState::Removed {
            return Err(ClusterError::NodeRemoved { node });
        }
        Ok(known)
    }
}
