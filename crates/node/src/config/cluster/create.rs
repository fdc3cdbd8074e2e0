//! Making records under new numbers: the numbers are taken and the records put in one transaction, with what else has to change.
//! Promises: a number is given out once, and never without its record; a name is taken once; records that change along are those
//! that the plan has seen.

use super::change::{Patience, Versioned, json, parse};
use super::decided::Ground;
use super::records::ClusterRecord;
use super::{ClusterError, ClusterStore, Leadership};
use crate::config::etcd::{Compare, KeyValue, Transaction};

/// A record to be put.
pub(super) struct New {
    key: String,
    text: String,
    kind: Kind,
}

enum Kind {
    /// Nobody else has its key, as the number in it was given out once.
    Numbered,
    /// Its key may be taken already: by the vDisk that has this name.
    Named(String),
    /// It is there, last put at this revision.
    Changed(u64),
    /// The same, and it stays as it is.
    Seen(u64),
}

impl New {
    pub fn numbered(key: String, record: &impl serde::Serialize) -> Self {
        Self { key, text: json(record), kind: Kind::Numbered }
    }

    pub fn named(key: String, record: &impl serde::Serialize, name: &str) -> Self {
        Self { key, text: json(record), kind: Kind::Named(name.to_string()) }
    }

    /// Not a new one, but one that changes along with them.
    pub fn changed<T: serde::Serialize>(key: String, changed: &Versioned<T>) -> Self {
        Self { key, text: json(&changed.record), kind: Kind::Changed(changed.revision) }
    }

    /// Not a new one: what these rest on.
    pub fn seen(ground: &Ground) -> Self {
        Self { key: ground.key.clone(), text: String::new(), kind: Kind::Seen(ground.revision) }
    }

    /// The transaction that puts it too, if it may.
    pub fn with(&self, transaction: Transaction) -> Transaction {
        let compare = match self.kind {
            Kind::Numbered | Kind::Named(_) => Compare::absent(&self.key),
            Kind::Changed(revision) => Compare::unchanged(&self.key, revision),
            Kind::Seen(revision) => {
                let compare = Compare::unchanged(&self.key, revision);
                return transaction.when(compare).otherwise_get(&self.key);
            }
        };
        transaction.when(compare).put(&self.key, &self.text, None).otherwise_get(&self.key)
    }

    /// Whether it can only be there because this very transaction was done. (Who is numbered is changed by others at once; a name
    /// has a stamp.)
    fn tells(&self, news: &[New]) -> bool {
        let are_names = news.iter().any(|new| matches!(new.kind, Kind::Named(_)));
        match self.kind {
            Kind::Named(_) => true,
            Kind::Numbered => !are_names,
            Kind::Changed(_) | Kind::Seen(_) => false,
        }
    }
}

impl ClusterStore {
    /// Puts what `plan` asks for; it takes its numbers from the cluster's record, and reads what it wants to change along,
    /// perhaps more than once. Gives the revision of the new records.
    pub(super) fn create(
        &self,
        leadership: Option<&Leadership>,
        mut plan: impl FnMut(&mut ClusterRecord) -> Result<Vec<New>, ClusterError>,
    ) -> Result<u64, ClusterError> {
        let cluster_key = self.keys.cluster();
        let mut patience = Patience::new(&cluster_key);
        let mut cluster = self.cluster_record()?;
        loop {
            let mut record = cluster.record.clone();
            let news = plan(&mut record)?;
            let mut transaction = Transaction::new()
                .when(Compare::unchanged(&cluster_key, cluster.revision))
                .put(&cluster_key, &json(&record), None)
                .otherwise_get(&cluster_key);
            for new in &news {
                transaction = new.with(transaction);
            }
            let answer = self.transact_as(leadership, transaction)?;
            if answer.succeeded {
                return Ok(answer.revision);
            }
            let (found_cluster, found) =
                answer.found.split_first().expect("the cluster's record was asked for");
            let telling: Vec<(&New, Option<&KeyValue>)> = news
                .iter()
                .zip(found)
                .filter(|(new, _)| new.tells(&news))
                .map(|(new, found)| (new, found.as_ref()))
                .collect();
            let is_mine =
                |(new, found): &(&New, Option<&KeyValue>)| found.is_some_and(|at| at.value == new.text);
            if answer.repeated && telling.iter().all(is_mine) {
                // The attempt whose answer was lost came through.
                let made = telling.first().and_then(|(_, found)| *found);
                return Ok(made.expect("what was made is there").mod_revision);
            }
            for (new, found) in telling {
                if let (Kind::Named(name), Some(_)) = (&new.kind, found) {
                    return Err(ClusterError::NameTaken { name: name.clone() });
                }
            }
            for (new, found) in news.iter().zip(found) {
                if let Kind::Seen(revision) = new.kind
                    && found.as_ref().map(|now| now.mod_revision) != Some(revision)
                {
                    return Err(ClusterError::Changed { key: new.key.clone() });
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
