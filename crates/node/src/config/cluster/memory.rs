//! What a node remembers of the cluster's records, so that older ones, which somebody has put back into etcd, are known as such.
//! Promises: records that are older than those by which the node has acted are not taken; nor are those of before somebody accepted
//! older ones, when these have been served since. The node's directory is about a second behind.
//! Leaves to others: what becomes of the node then (`control::member`); an etcd that goes back while it is asked (`etcd`).

use super::records::ClusterRecord;
use super::{ClusterError, ClusterStore};
use crate::config::MembershipError;
use crate::config::etcd::EtcdError;
use crate::config::seen::Seen;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What was seen is written down this long after it was the last time: each change of a record is news.
const PAUSE: Duration = Duration::from_secs(1);
/// ... and if that failed: it is told each time.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(60);

/// So many of the keys that were put last are remembered. Revisions count on whoever writes, so an older store may come past what was
/// seen; a key that had been put later than it was there still tells.
const PUTS_REMEMBERED: usize = 8;

/// How new records are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Age {
    /// Of [`ClusterRecord::accepted`] the last; 0: there is none.
    accepted: u64,
    revision: u64,
    /// Lasting records, and the revisions at which they were put: the cluster's own, and others.
    put: BTreeMap<String, u64>,
}

impl Age {
    /// As far as it is known of events: those come in order.
    pub fn of_any_revision(self) -> Self {
        Self { revision: 0, put: BTreeMap::new(), ..self }
    }

    fn note_put(&mut self, key: &str, revision: u64) {
        let known = self.put.entry(key.to_string()).or_default();
        *known = revision.max(*known);
        // That of the cluster is there in all states, and is put with whatever is made.
        let others = self.put.iter().filter(|(key, _)| !key.ends_with("/cluster"));
        if self.put.len() > PUTS_REMEMBERED
            && let Some(first) = others.min_by_key(|(_, revision)| **revision)
        {
            let first = first.0.clone();
            self.put.remove(&first);
        }
    }
}

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub(super) struct Memory(Arc<Mutex<Remembered>>);

struct Remembered {
    dir: PathBuf,
    id: u64,
    newest: Option<Age>,
    /// In the node's directory.
    kept: Option<Age>,
    is_being_kept: bool,
    not_before: Instant,
    /// Since this process was begun the store has been read, and what it said was taken.
    is_in_use: bool,
}

impl Memory {
    fn read(dir: &Path, id: u64) -> Result<Self, MembershipError> {
        let newest = match Seen::read(dir)? {
            Some(Seen::Cluster { id: of, accepted, revision, put }) if of == id => {
                Some(Age { accepted, revision, put })
            }
            Some(Seen::Cluster { .. } | Seen::Alone { .. }) | None => None,
        };
        Ok(Self(Arc::new(Mutex::new(Remembered::new(dir, id, newest)))))
    }

    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what was seen, if that is not under way, and it is time. Not under the lock: everybody needs it.
    fn keep(&self) {
        let (dir, id, newest) = {
            let mut memory = self.lock();
            let Some(newest) = memory.newest.clone().filter(|_| memory.is_due()) else { return };
            memory.is_being_kept = true;
            (memory.dir.clone(), memory.id, newest)
        };
        let Age { accepted, revision, put } = newest.clone();
        let written = Seen::Cluster { id, accepted, revision, put }.write(&dir);
        if let Err(error) = &written {
            tracing::warn!(%error, "how new the cluster's records are is not written down");
        }
        let mut memory = self.lock();
        memory.is_being_kept = false;
        memory.not_before = Instant::now() + if written.is_ok() { PAUSE } else { PAUSE_AFTER_FAILURE };
        if written.is_ok() {
            memory.kept = Some(newest);
        }
    }
}

impl Remembered {
    /// `kept` is in the node's directory.
    fn new(dir: &Path, id: u64, kept: Option<Age>) -> Self {
        let (dir, newest, not_before) = (dir.to_path_buf(), kept.clone(), Instant::now());
        Self { dir, id, newest, kept, is_being_kept: false, not_before, is_in_use: false }
    }

    /// Whether what was seen is to be written down.
    fn is_due(&self) -> bool {
        self.newest != self.kept && !self.is_being_kept && Instant::now() >= self.not_before
    }

    /// Refuses records that are older than `floor`, which was seen before they were asked for.
    fn judge(
        &self,
        name: &str,
        floor: &Age,
        record: &ClusterRecord,
        revision: u64,
    ) -> Result<(), ClusterError> {
        let name = name.to_string();
        let is_same = floor.accepted == last_accepted(record);
        let is_known = floor.accepted == 0 || record.accepted.contains(&floor.accepted);
        if is_same && revision < floor.revision {
            return Err(ClusterError::OlderRecords { name, found: revision, known: floor.revision });
        }
        if !is_same && !is_known {
            return Err(ClusterError::RecordsBefore { name });
        }
        if !is_same && self.is_in_use {
            return Err(ClusterError::RecordsAccepted { name });
        }
        Ok(())
    }

    /// Takes note of records that were judged; with `revision` if all of them were.
    fn take(&mut self, record: &ClusterRecord, revision: Option<u64>) {
        self.is_in_use = true;
        let accepted = last_accepted(record);
        let is_same = self.newest.as_ref().is_some_and(|newest| newest.accepted == accepted);
        if !is_same {
            self.newest = None;
        }
        let newest = self.newest.get_or_insert_with(|| Age { accepted, revision: 0, put: BTreeMap::new() });
        // Answers do not come in the order of the questions.
        newest.revision = newest.revision.max(revision.unwrap_or(0));
    }
}

fn last_accepted(record: &ClusterRecord) -> u64 {
    record.accepted.last().copied().unwrap_or(0)
}

impl ClusterStore {
    /// What it says is compared with what the node of this directory has seen. `id`: of the cluster.
    pub fn remembering(self, dir: &Path, id: u64) -> Result<Self, MembershipError> {
        Ok(Self { memory: Some(Memory::read(dir, id)?), ..self })
    }

    /// To be asked for before the store is.
    pub(super) fn seen(&self) -> Option<Age> {
        self.memory.as_ref().and_then(|memory| memory.lock().newest.clone())
    }

    /// Refuses what the store said, at this revision of it, if [`ClusterStore::seen`] had been newer.
    pub(super) fn judge_seen(
        &self,
        floor: Option<&Age>,
        record: &ClusterRecord,
        revision: u64,
    ) -> Result<(), ClusterError> {
        match (&self.memory, floor) {
            (Some(memory), Some(floor)) => memory.lock().judge(self.name(), floor, record, revision),
            _ => Ok(()),
        }
    }

    /// The same of records, and when each was put last: none goes back.
    pub(super) fn judge_keys<'a>(
        &self,
        floor: Option<&Age>,
        record: &ClusterRecord,
        keys: impl Iterator<Item = (&'a str, u64)>,
    ) -> Result<(), ClusterError> {
        // Where older ones were accepted, it is about others.
        let Some(floor) = floor.filter(|floor| floor.accepted == last_accepted(record)) else {
            return Ok(());
        };
        for (key, found) in keys {
            if let Some(&known) = floor.put.get(key).filter(|known| **known > found) {
                return Err(ClusterError::OlderRecords { name: self.name().to_string(), found, known });
            }
        }
        Ok(())
    }

    /// What etcd has come to is not what the node has acted by, whatever it comes to from now on.
    pub(super) fn distrust_since(&self, floor: Option<&Age>, found: u64) {
        if let Some(floor) = floor {
            let (endpoint, known) = (self.etcd.endpoints().join(", "), floor.revision);
            self.etcd.goes_back(EtcdError::Older { endpoint, found, known }, known);
        }
    }

    /// Takes note of what was judged: of the cluster's own record, and with `revision` of all others.
    pub(super) fn note_seen(&self, record: &ClusterRecord, revision: Option<u64>) {
        if let Some(memory) = &self.memory {
            memory.lock().take(record, revision);
        }
    }

    /// And of records that were put at these revisions.
    pub(super) fn note_keys<'a>(&self, put: impl Iterator<Item = (&'a str, u64)>) {
        let mut memory = self.memory.as_ref().map(Memory::lock);
        let Some(newest) = memory.as_mut().and_then(|memory| memory.newest.as_mut()) else { return };
        for (key, revision) in put {
            newest.revision = newest.revision.max(revision);
            if self.keys.is_lasting(key) {
                newest.note_put(key, revision);
            }
        }
    }

    /// And that these records are all that there are: what was remembered of others that were removed since tells nothing any more.
    /// `revision`: of the store then.
    pub(super) fn note_all_keys<'a>(&self, revision: u64, put: impl Iterator<Item = (&'a str, u64)> + Clone) {
        let mut memory = self.memory.as_ref().map(Memory::lock);
        if let Some(newest) = memory.as_mut().and_then(|memory| memory.newest.as_mut()) {
            let there: BTreeSet<&str> = put.clone().map(|(key, _)| key).collect();
            // Others may have told of what is newer meanwhile.
            newest.put.retain(|key, known| there.contains(key.as_str()) || *known > revision);
        }
        drop(memory);
        self.note_keys(put);
    }

    /// And of those that were removed.
    pub(super) fn forget_keys<'a>(&self, removed: impl Iterator<Item = &'a str>) {
        let mut memory = self.memory.as_ref().map(Memory::lock);
        let Some(newest) = memory.as_mut().and_then(|memory| memory.newest.as_mut()) else { return };
        for key in removed {
            newest.put.remove(key);
        }
    }

    /// Whether something that was put is as it was before: the store may have been another for a while, and be as far now. (What is
    /// not there may have been removed. The cluster's own record is there.)
    pub(super) fn has_gone_back(&self) -> Result<bool, ClusterError> {
        for (key, known) in self.seen().map(|seen| seen.put).unwrap_or_default() {
            if self.etcd.get(&key)?.is_some_and(|found| found.mod_revision < known) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes down in the node's directory what was seen, if it is time.
    pub fn keep_seen(&self) {
        if let Some(memory) = &self.memory {
            memory.keep();
        }
    }

    /// The same, and does not wait for the directory's drive.
    pub(super) fn keep_seen_soon(&self) {
        if let Some(memory) = self.memory.clone().filter(|memory| memory.lock().is_due()) {
            let thread = std::thread::Builder::new().name("weft-seen".to_string());
            // Without a thread it is written down with what comes next.
            let _ = thread.spawn(move || memory.keep());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembered(newest: Option<Age>) -> Remembered {
        Remembered::new(Path::new(""), 1, newest)
    }

    fn records(accepted: &[u64]) -> ClusterRecord {
        ClusterRecord { accepted: accepted.to_vec(), ..ClusterRecord::new(1) }
    }

    fn age(accepted: u64, revision: u64) -> Age {
        Age { accepted, revision, put: BTreeMap::new() }
    }

    #[test]
    fn older_records_are_refused_until_somebody_accepts_them() {
        let mut node = remembered(None);
        node.take(&records(&[]), Some(50));
        let judge = |node: &Remembered, accepted: &[u64], revision| {
            let floor = node.newest.clone().expect("something was seen");
            node.judge("c", &floor, &records(accepted), revision)
        };
        judge(&node, &[], 50).expect("they are the same");
        let older = judge(&node, &[], 49);
        assert!(matches!(older, Err(ClusterError::OlderRecords { found: 49, known: 50, .. })), "{older:?}");
        let accepted = judge(&node, &[9], 45);
        assert!(matches!(accepted, Err(ClusterError::RecordsAccepted { .. })), "it began with others");

        let mut node = remembered(Some(age(0, 50)));
        judge(&node, &[9], 45).expect("they were accepted");
        node.take(&records(&[9]), Some(45));
        assert_eq!(node.newest, Some(age(9, 45)), "revisions count from there");
        let node = remembered(Some(age(9, 60)));
        judge(&node, &[9, 12], 20).expect("older ones were accepted once more");
        for others in [&[][..], &[8]] {
            let before = judge(&node, others, 500);
            assert!(matches!(before, Err(ClusterError::RecordsBefore { .. })), "{before:?}");
        }
        judge(&node, &[8, 9], 60).expect("they are the same");
    }

    #[test]
    fn an_answer_that_comes_late_is_not_taken_for_an_older_store() {
        let mut node = remembered(Some(age(0, 50)));
        let floor = node.newest.clone().expect("something was seen");
        node.take(&records(&[]), Some(70));
        node.judge("c", &floor, &records(&[]), 60).expect("it was asked for before");
        node.take(&records(&[]), Some(60));
        node.take(&records(&[]), None);
        assert_eq!(node.newest, Some(age(0, 70)));
    }

    #[test]
    fn what_was_put_last_is_remembered() {
        let mut seen = age(0, 1);
        seen.note_put("/weft/c/cluster", 1);
        (1..20).for_each(|at| seen.note_put(&format!("k{at}"), at));
        seen.note_put("k15", 30);
        seen.note_put("k15", 29);
        assert_eq!(seen.put.len(), PUTS_REMEMBERED);
        assert_eq!((seen.put.get("k15"), seen.put.get("k12")), (Some(&30), None));
        assert_eq!((seen.put.get("k13"), seen.put.get("/weft/c/cluster")), (Some(&13), Some(&1)));
    }
}
