//! Older records are the newest that there are, somebody says: the cluster goes on with them.
//! Promises: no owner that comes after this has the epoch of one that there was before, whatever these records know of it; every node
//! knows that what it has seen does not count any more, and none goes on without that.

use super::change::Verdict;
use super::records::{AliveRecord, ClusterRecord};
use super::{ClusterError, ClusterStore, Versioned, json};
use crate::config::FamilyConfig;
use crate::config::etcd::{Compare, Transaction};
use crate::config::seen::epoch_passed_over;

/// vDisks in one transaction.
const AT_ONCE: usize = 100;

impl ClusterStore {
    /// How many vDisks the records have; refuses while a node lives by them.
    pub fn acceptable_records(&self) -> Result<usize, ClusterError> {
        self.acceptable().map(|families| families.len())
    }

    fn acceptable(&self) -> Result<Vec<Versioned<FamilyConfig>>, ClusterError> {
        let config = self.load()?;
        if let Some(Versioned { record: AliveRecord { node, .. }, .. }) = config.alive.values().next() {
            return Err(ClusterError::NodeLives { node: *node });
        }
        Ok(config.families.into_values().collect())
    }

    /// Accepts the records that there are. `number`: drawn at random; `now`: seconds since 1970. Gives how many vDisks they have.
    pub fn accept_records(&self, number: u64, now: u64) -> Result<usize, ClusterError> {
        let families = self.acceptable()?;
        for part in families.chunks(AT_ONCE) {
            let mut transaction = Transaction::new().when(self.nobody_lives());
            for Versioned { record, revision } in part {
                let key = self.keys.family(record.id());
                let passed = FamilyConfig { epoch: epoch_passed_over(record.epoch, now), ..record.clone() };
                transaction =
                    transaction.when(Compare::unchanged(&key, *revision)).put(&key, &json(&passed), None);
            }
            if !self.etcd.transact(&transaction)?.succeeded {
                return Err(self.not_accepted());
            }
        }
        // Last: cut before, no node goes on, and once more does no harm.
        let noted = self.change(&self.keys.cluster(), None, |record: &mut ClusterRecord, _| {
            record.note_accepted(number);
            Ok(Verdict::PutIf(vec![self.nobody_lives()]))
        });
        match noted {
            Ok(_) => Ok(families.len()),
            Err(ClusterError::Changed { .. }) => Err(self.not_accepted()),
            Err(error) => Err(error),
        }
    }

    fn nobody_lives(&self) -> Compare {
        let (first, end) = self.keys.lives();
        Compare::none_in(&first, &end)
    }

    /// Why, as far as that can be told.
    fn not_accepted(&self) -> ClusterError {
        self.acceptable().err().unwrap_or(ClusterError::Changed { key: "one of the records".to_string() })
    }
}
