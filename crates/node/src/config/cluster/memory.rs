//! What a node remembers of the cluster's records, so that older ones, which somebody has put back into etcd, are known as such.
//! Promises: records that are older than those by which the node has acted are not taken; nor are those of before somebody accepted
//! older ones, when these have been served since. The node's directory is no more than about a second behind.
//! Leaves to others: what becomes of the node then (`control::member`).

use super::records::ClusterRecord;
use super::{ClusterError, ClusterStore};
use crate::config::MembershipError;
use crate::config::seen::Seen;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What was seen is written down this long after it was the last time: each change of a record is news.
const PAUSE: Duration = Duration::from_secs(1);
/// ... and if that failed: it is told each time.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(60);

/// How new records are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Age {
    /// Of [`ClusterRecord::accepted`] the last; 0: there is none.
    accepted: u64,
    revision: u64,
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
    not_before: Instant,
    /// Since this process was begun the store has been read, and what it said was taken.
    is_in_use: bool,
}

impl Memory {
    fn read(dir: &Path, id: u64) -> Result<Self, MembershipError> {
        let newest = match Seen::read(dir)? {
            Some(Seen::Cluster { id: of, accepted, revision }) if of == id => {
                Some(Age { accepted, revision })
            }
            Some(Seen::Cluster { .. } | Seen::Alone { .. }) | None => None,
        };
        let dir = dir.to_path_buf();
        Ok(Self(Arc::new(Mutex::new(Remembered {
            dir,
            id,
            newest,
            kept: newest,
            not_before: Instant::now(),
            is_in_use: false,
        }))))
    }

    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Remembered {
    /// Takes note of records; refuses older ones than `floor`, which was seen before they were asked for.
    fn take(
        &mut self,
        name: &str,
        floor: Option<Age>,
        record: &ClusterRecord,
        revision: u64,
    ) -> Result<(), ClusterError> {
        let now = Age { accepted: record.accepted.last().copied().unwrap_or(0), revision };
        let name = name.to_string();
        if let Some(floor) = floor {
            let is_same = floor.accepted == now.accepted;
            let is_known = floor.accepted == 0 || record.accepted.contains(&floor.accepted);
            if is_same && now.revision < floor.revision {
                let known = floor.revision;
                return Err(ClusterError::OlderRecords { name, found: revision, known });
            }
            if !is_same && !is_known {
                return Err(ClusterError::RecordsBefore { name });
            }
            if !is_same && self.is_in_use {
                return Err(ClusterError::RecordsAccepted { name });
            }
        }
        self.is_in_use = true;
        self.newest = match self.newest {
            // Answers do not come in the order of the questions.
            Some(newest) if newest.accepted == now.accepted => {
                Some(Age { revision: newest.revision.max(revision), ..newest })
            }
            _ => Some(now),
        };
        Ok(())
    }

    fn keep(&mut self) {
        let Some(newest) = self.newest.filter(|newest| Some(*newest) != self.kept) else { return };
        let Age { accepted, revision } = newest;
        let written = Seen::Cluster { id: self.id, accepted, revision }.write(&self.dir);
        let pause = match &written {
            Ok(()) => PAUSE,
            Err(error) => {
                tracing::warn!(%error, "how new the cluster's records are is not written down");
                PAUSE_AFTER_FAILURE
            }
        };
        if written.is_ok() {
            self.kept = Some(newest);
        }
        self.not_before = Instant::now() + pause;
    }
}

impl ClusterStore {
    /// What it says is compared with what the node of this directory has seen. `id`: of the cluster.
    pub fn remembering(self, dir: &Path, id: u64) -> Result<Self, MembershipError> {
        Ok(Self { memory: Some(Memory::read(dir, id)?), ..self })
    }

    /// To be asked for before the store is.
    pub(super) fn seen(&self) -> Option<Age> {
        self.memory.as_ref().and_then(|memory| memory.lock().newest)
    }

    /// Takes note of what the store said, at this revision of it, after [`ClusterStore::seen`] was `floor`.
    pub(super) fn note_seen(
        &self,
        floor: Option<Age>,
        record: &ClusterRecord,
        revision: u64,
    ) -> Result<(), ClusterError> {
        let Some(memory) = &self.memory else { return Ok(()) };
        memory.lock().take(self.name(), floor, record, revision)
    }

    /// Something has changed at this revision, and the cluster's own record has not.
    pub(super) fn note_seen_since(&self, revision: u64) {
        let mut memory = self.memory.as_ref().map(Memory::lock);
        if let Some(newest) = memory.as_mut().and_then(|memory| memory.newest.as_mut()) {
            newest.revision = newest.revision.max(revision);
        }
    }

    /// Writes down in the node's directory what was seen, if it is time.
    pub fn keep_seen(&self) {
        let mut memory = self.memory.as_ref().map(Memory::lock);
        if let Some(memory) = memory.as_mut().filter(|memory| Instant::now() >= memory.not_before) {
            memory.keep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembered(newest: Option<Age>) -> Remembered {
        let (dir, not_before) = (PathBuf::new(), Instant::now());
        Remembered { dir, id: 1, newest, kept: newest, not_before, is_in_use: false }
    }

    fn records(accepted: &[u64]) -> ClusterRecord {
        ClusterRecord { accepted: accepted.to_vec(), ..ClusterRecord::new(1) }
    }

    fn age(accepted: u64, revision: u64) -> Option<Age> {
        Some(Age { accepted, revision })
    }

    #[test]
    fn older_records_are_refused_until_somebody_accepts_them() {
        let mut node = remembered(None);
        node.take("c", None, &records(&[]), 50).expect("nothing is known yet");
        node.take("c", age(0, 50), &records(&[]), 50).expect("they are the same");
        let older = node.take("c", age(0, 50), &records(&[]), 49);
        assert!(matches!(older, Err(ClusterError::OlderRecords { found: 49, known: 50, .. })), "{older:?}");
        let accepted = node.take("c", age(0, 50), &records(&[9]), 45);
        assert!(matches!(accepted, Err(ClusterError::RecordsAccepted { .. })), "it began with others");
        assert_eq!(node.newest, age(0, 50), "what was refused was not seen");

        let mut node = remembered(age(0, 50));
        node.take("c", age(0, 50), &records(&[9]), 45).expect("they were accepted");
        assert_eq!(node.newest, age(9, 45), "revisions count from there");
        let mut node = remembered(age(9, 60));
        node.take("c", age(9, 60), &records(&[9, 12]), 20).expect("older ones were accepted once more");
    }

    #[test]
    fn newer_records_that_know_nothing_of_what_was_accepted_are_refused() {
        let mut node = remembered(age(9, 60));
        for others in [&[][..], &[8]] {
            let before = node.take("c", age(9, 60), &records(others), 500);
            assert!(matches!(before, Err(ClusterError::RecordsBefore { .. })), "{before:?}");
        }
        node.take("c", age(9, 60), &records(&[8, 9]), 60).expect("they are the same");
    }

    #[test]
    fn an_answer_that_comes_late_is_not_taken_for_an_older_store() {
        let mut node = remembered(age(0, 50));
        let floor = node.newest;
        node.take("c", floor, &records(&[]), 70).expect("it is newer");
        node.take("c", floor, &records(&[]), 60).expect("it was asked for before");
        assert_eq!(node.newest, age(0, 70));
    }
}
