//! Which nodes live: one key each, tied to the node's lease.
//! Promises: two processes that both take themselves for one node are not both alive: the second one is
//! refused, unless it knows that the first is dead. No two lives of a node have one number, and a directory that is older
//! than what the node did since never lives again, so copies of a directory harm nobody.

use super::change::{Patience, Versioned, json, parse};
use super::lease::NodeLease;
use super::records::{AliveRecord, ClusterNodeRecord, CutOffRecord, NodeState};
use super::{ClusterError, ClusterStore};
use crate::config::etcd::{Compare, EtcdError, LeaseId, Transaction};
use std::time::Duration;

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
                // A life has one lease, so another one is of another life, whatever its number.
                if found.lease != Some(lease) {
                    refuse_other(&parse::<AliveRecord>(found)?.record, &record.place, former)?;
                }
            }
            let is_own = found.as_ref().is_some_and(|found| found.lease == Some(lease));
            let life = known.record.last_life;
            if record.incarnation < life {
                return Err(ClusterError::OldDirectory { node, known: record.incarnation, life });
            }
            if record.incarnation == life && !is_own {
                // It lived, and its key has gone with its lease.
                return Err(EtcdError::LeaseOver.into());
            }
            let mut transaction = Transaction::new()
                .when(Compare::unchanged(&self.keys.node(node), known.revision))
                .when(Compare::unchanged(&key, found.map_or(0, |found| found.mod_revision)))
                .put(&key, &text, Some(lease));
            if record.incarnation > life {
                let noted = ClusterNodeRecord { last_life: record.incarnation, ..known.record };
                transaction = transaction.put(&self.keys.node(node), &json(&noted), None);
            }
            let answer = self.etcd.transact(&transaction)?;
            if answer.succeeded {
                return Ok(answer.revision);
            }
            patience.wait()?;
        }
    }

    /// Tells everybody that the node lives, has no lease, and waits until it reaches somebody. It counts as long as what this gives
    /// lives, and for `ttl` after the node died.
    pub fn tell_cut_off(&self, node: u32, ttl: Duration) -> Result<NodeLease, ClusterError> {
        // Whoever has it looks whether it is over.
        let lease = NodeLease::take(&self.etcd, ttl, || ())?;
        let (key, text) = (self.keys.cut_off(node), json(&CutOffRecord { node }));
        let mut patience = Patience::new(&key);
        loop {
            let known = self.living_member(node)?;
            let found = self.etcd.get(&key)?;
            if found.as_ref().is_some_and(|found| found.lease == Some(lease.lease())) {
                return Ok(lease);
            }
            let transaction = Transaction::new()
                .when(Compare::unchanged(&self.keys.node(node), known.revision))
                .when(Compare::unchanged(&key, found.map_or(0, |found| found.mod_revision)))
                .put(&key, &text, Some(lease.lease()));
            if self.etcd.transact(&transaction)?.succeeded {
                return Ok(lease);
            }
            patience.wait()?;
        }
    }

    /// Refuses a directory in which the node must not begin a life: its last one was `former`, and the directory is
    /// `place`. To be asked before anything is done in the node's name.
    pub fn may_begin(&self, node: u32, place: &str, former: Option<u64>) -> Result<(), ClusterError> {
        let known = self.living_member(node)?;
        if let Some(found) = self.etcd.get(&self.keys.alive(node))? {
            refuse_other(&parse::<AliveRecord>(&found)?.record, place, former)?;
        }
        let (counted, life) = (former.unwrap_or(0), known.record.last_life);
        if counted < life {
            return Err(ClusterError::OldDirectory { node, known: counted, life });
        }
        Ok(())
    }

    /// The node's record, if it may live.
    fn living_member(&self, node: u32) -> Result<Versioned<ClusterNodeRecord>, ClusterError> {
        // A node of the same number in another cluster is another node.
        self.cluster_record()?;
        let known = self.node(node)?.ok_or_else(|| ClusterError::NotThere { key: self.keys.node(node) })?;
        if known.record.state == NodeState::Removed {
            return Err(ClusterError::NodeRemoved { node });
        }
        Ok(known)
    }
}

/// Refuses if `found` may be the life of another process: it is not the one whose end the lock of this directory proves. A
/// copy of the directory counts the same starts, but it is in another place.
fn refuse_other(found: &AliveRecord, place: &str, former: Option<u64>) -> Result<(), ClusterError> {
    if Some(found.incarnation) == former && found.place == place {
        return Ok(());
    }
    Err(ClusterError::AliveElsewhere { node: found.node, incarnation: found.incarnation })
}
