//! The election of the controller: one key that the first to come holds with its lease.
//! Promises: what a controller writes is written only while its key is there (`Leadership` is compared in the same
//! transaction), so a controller that was replaced without knowing changes nothing.

use super::change::{json, parse};
use super::records::ControllerRecord;
use super::{ClusterError, ClusterStore};
use crate::config::etcd::{Compare, LeaseId, Transaction};

/// Proof of having been elected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leadership {
    pub node: u32,
    /// The revision that made the controller's key.
    pub revision: u64,
}

/// How an election went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Campaign {
    Won(Leadership),
    /// Somebody else is the controller. Try again when its key goes.
    Lost(ControllerRecord),
}

impl ClusterStore {
    /// Becomes the controller if there is none.
    pub fn campaign(&self, node: u32, lease: LeaseId) -> Result<Campaign, ClusterError> {
        let key = self.keys.controller();
        let transaction = Transaction::new()
            .when(Compare::absent(&key))
            .put(&key, &json(&ControllerRecord { node }), Some(lease))
            .otherwise_get(&key);
        loop {
            let answer = self.etcd.transact(&transaction)?;
            if answer.succeeded {
                return Ok(Campaign::Won(Leadership { node, revision: answer.revision }));
            }
            // It went between the comparison and the look only if etcd were not serial; then the race is open again.
            let Some(found) = &answer.found[0] else { continue };
            if found.lease == Some(lease) {
                // By an attempt whose answer was lost, or asked for twice.
                return Ok(Campaign::Won(Leadership { node, revision: found.create_revision }));
            }
            return Ok(Campaign::Lost(parse::<ControllerRecord>(found)?.record));
        }
    }

    /// Gives the office up; harmless if it is lost already.
    pub fn resign(&self, leadership: &Leadership) -> Result<(), ClusterError> {
        let key = self.keys.controller();
        let transaction = Transaction::new()
            .when(Compare::created(&key, leadership.revision))
            .delete(&key)
            .otherwise_get(&key);
        self.etcd.transact(&transaction)?;
        Ok(())
    }
}
