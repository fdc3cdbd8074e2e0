//! Changing one record: read it, alter it, put it if nobody else did meanwhile; if somebody did, begin again.
//! Promises: an alteration is done once, or not at all, also when an answer was lost and it was asked twice. An error
//! that does not promise that nothing was done leaves it open; the record itself tells.

use super::{ClusterError, ClusterStore, Leadership};
use crate::config::etcd::{Compare, KeyValue, Transaction, TransactionAnswer};
use rand::Rng;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::{Duration, Instant};

/// A record and the store's revision when it was last put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned<T> {
    pub record: T,
    pub revision: u64,
}

pub fn json(record: &impl Serialize) -> String {
    serde_json::to_string(record).expect("records are plain data with text keys")
}

pub fn parse<T: DeserializeOwned>(found: &KeyValue) -> Result<Versioned<T>, ClusterError> {
    match serde_json::from_str(&found.value) {
        Ok(record) => Ok(Versioned { record, revision: found.mod_revision }),
        Err(source) => Err(ClusterError::Record { key: found.key.clone(), source }),
    }
}

/// What an alteration comes to.
pub(super) enum Verdict {
    Put,
    /// ... if this holds too.
    PutIf(Vec<Compare>),
    /// The record stays as it is.
    Leave,
}

impl ClusterStore {
    /// Alters the record at `key`. `alter` is given the record and its revision, perhaps more than once.
    pub(super) fn change<T: Serialize + DeserializeOwned>(
        &self,
        key: &str,
        leadership: Option<&Leadership>,
        mut alter: impl FnMut(&mut T, u64) -> Result<Verdict, ClusterError>,
    ) -> Result<Versioned<T>, ClusterError> {
        let mut patience = Patience::new(key);
        let mut found = self.etcd.get(key)?;
        loop {
            let current = found.ok_or_else(|| ClusterError::NotThere { key: key.to_string() })?;
            let mut versioned: Versioned<T> = parse(&current)?;
            let also = match alter(&mut versioned.record, versioned.revision)? {
                Verdict::Leave => return Ok(versioned),
                Verdict::Put => Vec::new(),
                Verdict::PutIf(also) => also,
            };
            let text = json(&versioned.record);
            let is_conditional = !also.is_empty();
            let unchanged = Transaction::new().when(Compare::unchanged(key, current.mod_revision));
            let transaction = also.into_iter().fold(unchanged, Transaction::when);
            let transaction = transaction.put(key, &text, current.lease).otherwise_get(key);
            let mut answer = self.transact_as(leadership, transaction)?;
            if answer.succeeded {
                return Ok(Versioned { record: versioned.record, revision: answer.revision });
            }
            found = answer.found.swap_remove(0);
            if let Some(now) = &found
                && answer.repeated
                && now.value == text
            {
                // The attempt whose answer was lost came through, or somebody did the very same: it is done.
                return Ok(Versioned { record: versioned.record, revision: now.mod_revision });
            }
            if is_conditional && found.as_ref().is_some_and(|now| now.mod_revision == current.mod_revision) {
                // The record is as it was, so it is what else has to hold.
                return Err(ClusterError::Changed { key: key.to_string() });
            }
            patience.wait()?;
        }
    }

    /// Does a transaction only while `leadership` lasts; [`ClusterError::NotController`] if it does not.
    pub(super) fn transact_as(
        &self,
        leadership: Option<&Leadership>,
        transaction: Transaction,
    ) -> Result<TransactionAnswer, ClusterError> {
        let Some(leadership) = leadership else { return Ok(self.etcd.transact(&transaction)?) };
        let key = self.keys.controller();
        let guarded = transaction.when(Compare::created(&key, leadership.revision)).otherwise_get(&key);
        let mut answer = self.etcd.transact(&guarded)?;
        if !answer.succeeded {
            let controller = answer.found.pop().expect("the controller's key was asked for");
            if controller.is_none_or(|found| found.create_revision != leadership.revision) {
                return Err(ClusterError::NotController);
            }
        }
        Ok(answer)
    }
}

/// How long others are given way to, when all change the same record. Waits are random: otherwise they would meet
/// again and again.
pub(super) struct Patience<'a> {
    key: &'a str,
    until: Instant,
    wait_ms_max: u64,
}

const PATIENCE: Duration = Duration::from_secs(10);
const WAIT_MS_MAX: u64 = 100;

impl<'a> Patience<'a> {
    pub fn new(key: &'a str) -> Self {
        Self { key, until: Instant::now() + PATIENCE, wait_ms_max: 2 }
    }

    pub fn wait(&mut self) -> Result<(), ClusterError> {
        if Instant::now() > self.until {
            return Err(ClusterError::Contended { key: self.key.to_string() });
        }
        std::thread::sleep(Duration::from_millis(rand::rng().random_range(0..=self.wait_ms_max)));
        self.wait_ms_max = (self.wait_ms_max * 2).min(WAIT_MS_MAX);
        Ok(())
    }
}
