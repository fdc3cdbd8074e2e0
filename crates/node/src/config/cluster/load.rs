//! Loading everything at one revision, in pages.

use super::contents::{Change, ClusterConfig};
use super::{ClusterError, ClusterStore};
use crate::config::etcd::{EtcdError, KeyValue};

impl ClusterStore {
    /// Everything the store holds now.
    pub fn load(&self) -> Result<ClusterConfig, ClusterError> {
        // Who has it is known then.
        let mut is_found = self.etcd.ours().is_some();
        if !is_found {
            self.cluster_record()?;
        }
        loop {
            match self.load_at_one_revision() {
                Err(ClusterError::NoCluster { .. } | ClusterError::OtherCluster { .. }) if is_found => {
                    self.cluster_record()?;
                    is_found = false;
                }
                // The revision was compacted away between two pages: the next one is newer.
                Err(ClusterError::Etcd(EtcdError::Compacted)) => {}
                result => return result,
            }
        }
    }

    fn load_at_one_revision(&self) -> Result<ClusterConfig, ClusterError> {
        let (first, end) = self.keys.all();
        let (floor, doubts, known) = (self.seen(), self.etcd.doubts(), self.etcd.revision_known());
        let (revision, entries) = self.entries(first, &end)?;
        let config = self.understand(revision, &entries)?;
        let keys = || entries.iter().map(|entry| (entry.key.as_str(), entry.mod_revision));
        let (seen, record) = (floor.as_ref(), &config.cluster.record);
        let judged = self.judge_seen(seen, record, revision);
        if let Err(error) = judged.and_then(|()| self.judge_keys(seen, record, keys())) {
            self.distrust_since(floor.as_ref(), revision);
            return Err(error);
        }
        // What this node has changed itself it may not have seen yet.
        self.etcd.check_age(revision, known)?;
        self.etcd.is_as_new(doubts);
        self.note_seen(&config.cluster.record, Some(revision));
        self.note_all_keys(revision, keys());
        Ok(config)
    }

    /// What is in [`first`, `end`), and the revision of the store at which that is so.
    pub(super) fn entries(&self, mut first: String, end: &str) -> Result<(u64, Vec<KeyValue>), ClusterError> {
        let mut entries: Vec<KeyValue> = Vec::new();
        // The first page is of now; the others are of the same revision.
        let mut revision = 0;
        loop {
            let page = self.etcd.range(&first, end, revision)?;
            if revision == 0 {
                revision = page.revision;
            }
            entries.extend(page.entries);
            match entries.last() {
                // Behind the last key, and before any other: that key and a zero byte.
                Some(last) if page.more => first = format!("{}\0", last.key),
                _ => return Ok((revision, entries)),
            }
        }
    }

    fn understand(&self, revision: u64, entries: &[KeyValue]) -> Result<ClusterConfig, ClusterError> {
        let mut changes = Vec::with_capacity(entries.len());
        let mut cluster = None;
        for entry in entries {
            match Change::read(&self.keys, &entry.key, Some(entry))? {
                Some(Change::Cluster(record)) => cluster = Some(record),
                Some(change) => changes.push(change),
                None => {}
            }
        }
        let cluster = cluster.ok_or_else(|| ClusterError::NoCluster { name: self.name().to_string() })?;
        self.accept(&cluster.record)?;
        let mut config = ClusterConfig::new(revision, cluster);
        config.apply(revision, changes);
        Ok(config)
    }
}
