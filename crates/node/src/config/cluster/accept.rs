//! Older records are the newest that there are, somebody says: the cluster goes on with them.
//! Promises: no owner that comes after this has the epoch of one that there was before, whatever these records know of it; every node
//! knows that what it has seen does not count any more, and none goes on without that.

use super::records::AliveRecord;
use super::{ClusterError, ClusterStore, Versioned, json};
use crate::config::FamilyConfig;
use crate::config::etcd::{Compare, Transaction};
use crate::config::seen::EPOCHS_PASSED_OVER;

/// vDisks in one transaction.
const AT_ONCE: usize = 100;

impl ClusterStore {
    /// How many vDisks the records have; refuses while a node lives by them.
    pub fn acceptable(&self) -> Result<Vec<Versioned<FamilyConfig>>, ClusterError> {
        let config = self.load()?;
        if let Some(Versioned { record: AliveRecord { node, .. }, .. }) = config.alive.values().next() {
            return Err(ClusterError::NodeLives { node: *node });
        }
        Ok(config.families.into_values().collect())
    }

    /// Accepts the records that there are. `number`: drawn at random. Gives how many vDisks they have.
    pub fn accept_records(&self, number: u64) -> Result<usize, ClusterError> {
        let families = self.acceptable()?;
        for part in families.chunks(AT_ONCE) {
            let mut transaction = Transaction::new();
            for Versioned { record, revision } in part {
                let key = self.keys.family(record.id());
                let passed = FamilyConfig { epoch: record.epoch_passed_over(), ..record.clone() };
                transaction =
                    transaction.when(Compare::unchanged(&key, *revision)).put(&key, &json(&passed), None);
            }
            if !self.etcd.transact(&transaction)?.succeeded {
                // By another one who accepts them, if not by the first of two attempts: once more does no harm.
                return Err(ClusterError::Changed { key: "a vDisk's record".to_string() });
            }
        }
        // Last: cut before, no node goes on.
        self.change_cluster(|record| record.note_accepted(number))?;
        Ok(families.len())
    }
}

impl FamilyConfig {
    /// An epoch that no owner had of whom these records do not know.
    pub fn epoch_passed_over(&self) -> u32 {
        self.epoch.checked_add(EPOCHS_PASSED_OVER).expect("older records are not accepted thousands of times")
    }
}
