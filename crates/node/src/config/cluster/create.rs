//! Making records under new numbers: the numbers are taken and the records put in one transaction.
//! Promises: a number is given out once, and never without its record; a name is taken once.

use super::change::{Patience, json, parse};
use super::records::ClusterRecord;
use super::{ClusterError, ClusterStore, Leadership};
use crate::config::etcd::{Compare, Transaction};

/// A record to be made.
pub(super) struct New {
    key: String,
    text: String,
    /// If its key can be taken already: the vDisk that would have the name.
    name: Option<String>,
}

impl New {
    pub fn numbered(key: String, record: &impl serde::Serialize) -> Self {
        Self { key, text: json(record), name: None }
    }

    pub fn named(key: String, record: &impl serde::Serialize, name: &str) -> Self {
        Self { key, text: json(record), name: Some(name.to_string()) }
    }
}

impl ClusterStore {
    /// Makes what `plan` asks for; it takes its numbers from the cluster's record, perhaps more than once. Gives the
    /// revision of the new records.
    pub(super) fn create(
        &self,
        leadership: Option<&Leadership>,
        mut plan: impl FnMut(&mut ClusterRecord) -> Vec<New>,
    ) -> Result<u64, ClusterError> {
        let cluster_key = self.keys.cluster();
        let mut patience = Patience::new(&cluster_key);
        let mut cluster = self.cluster_record()?;
        loop {
            let mut record = cluster.record.clone();
            let news = plan(&mut record);
            let mut transaction = Transaction::new()
                .when(Compare::unchanged(&cluster_key, cluster.revision))
                .put(&cluster_key, &json(&record), None)
                .otherwise_get(&cluster_key);
            for new in &news {
                transaction = transaction
                    .when(Compare::absent(&new.key))
                    .put(&new.key, &new.text, None)
                    .otherwise_get(&new.key);
            }
            let answer = self.transact_as(leadership, transaction)?;
            if answer.succeeded {
                return Ok(answer.revision);
            }
            let (found_cluster, found) =
                answer.found.split_first().expect("the cluster's record was asked for");
            let mine = |(new, found): (&New, &Option<_>)| found.as_ref().is_some_and(|at| is_of(at, new));
            if answer.repeated && news.iter().zip(found).all(mine) {
                // The attempt whose answer was lost came through.
                let made = found.first().and_then(Option::as_ref).expect("what was made is there");
                return Ok(made.mod_revision);
            }
            for (new, found) in news.iter().zip(found) {
                if let (Some(name), Some(_)) = (&new.name, found) {
                    return Err(ClusterError::NameTaken { name: name.clone() });
                }
            }
            let found_cluster = found_cluster
                .as_ref()
                .ok_or_else(|| ClusterError::NoCluster { name: self.name().to_string() })?;
            cluster = parse(found_cluster)?;
            cluster.record.check(self.name())?;
            patience.wait()?;
        }
    }
}

fn is_of(found: &crate::config::etcd::KeyValue, new: &New) -> bool {
    found.value == new.text
}
