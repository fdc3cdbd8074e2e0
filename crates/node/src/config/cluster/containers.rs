//! The containers of a cluster: policies by name.
//! Promises: the default one is there from the beginning, and stays; no vDisk is put into one that is not there, and none is
//! removed that a vDisk is in: whoever puts one in counts it in the container's record, so of the two the later one notices.

use super::change::{Patience, Verdict, Versioned, json, parse};
use super::create::New;
use super::{ClusterError, ClusterStore};
use crate::config::etcd::{Compare, Transaction};
use crate::config::{ContainerRecord, DEFAULT_CONTAINER, FamilyConfig};
use weft_engine::FamilyId;

impl ClusterStore {
    pub fn container(&self, name: &str) -> Result<Option<Versioned<ContainerRecord>>, ClusterError> {
        self.etcd.get(&self.keys.container(name))?.as_ref().map(parse).transpose()
    }

    pub fn create_container(
        &self,
        wanted: &ContainerRecord,
    ) -> Result<Versioned<ContainerRecord>, ClusterError> {
        let (key, text) = (self.keys.container(&wanted.name), json(wanted));
        let transaction =
            Transaction::new().when(Compare::absent(&key)).put(&key, &text, None).otherwise_get(&key);
        let answer = self.etcd.transact(&transaction)?;
        if answer.succeeded {
            return Ok(Versioned { record: wanted.clone(), revision: answer.revision });
        }
        match &answer.found[0] {
            // The attempt whose answer was lost came through, or somebody made the very same: it is there.
            Some(found) if answer.repeated && found.value == text => {
                Ok(Versioned { record: wanted.clone(), revision: found.mod_revision })
            }
            _ => Err(ClusterError::ContainerExists { name: wanted.name.clone() }),
        }
    }

    /// Of a cluster that an older version made. Fine if it is there.
    pub fn make_default_container(&self) -> Result<(), ClusterError> {
        if self.container(DEFAULT_CONTAINER)?.is_some() {
            return Ok(());
        }
        match self.create_container(&ContainerRecord::default()) {
            Ok(_) | Err(ClusterError::ContainerExists { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Changes the policy.
    pub fn change_container(
        &self,
        name: &str,
        mut alter: impl FnMut(&mut ContainerRecord),
    ) -> Result<Versioned<ContainerRecord>, ClusterError> {
        let changed = self.change(&self.keys.container(name), None, |record: &mut ContainerRecord, _| {
            let before = record.clone();
            alter(record);
            assert_eq!(
                (&record.name, record.joined),
                (&before.name, before.joined),
                "a container stays itself"
            );
            Ok(if *record == before { Verdict::Leave } else { Verdict::Put })
        });
        changed.map_err(|error| match error {
            ClusterError::NotThere { .. } => ClusterError::NoContainer { name: name.to_string() },
            other => other,
        })
    }

    /// Takes a container away that had no vDisk when its record was `seen`, if it is still as it was then. Fine if it is gone
    /// already. Gives the store's revision behind it.
    pub fn remove_container(&self, seen: &Versioned<ContainerRecord>) -> Result<u64, ClusterError> {
        assert!(!seen.record.is_default(), "the default container stays");
        let name = &seen.record.name;
        let key = self.keys.container(name);
        let transaction =
            Transaction::new().when(Compare::unchanged(&key, seen.revision)).delete(&key).otherwise_get(&key);
        let answer = self.etcd.transact(&transaction)?;
        if answer.succeeded || answer.found[0].is_none() {
            return Ok(answer.revision);
        }
        Err(ClusterError::ContainerChanged { name: name.clone() })
    }

    /// Changes the record of a vDisk, and puts it into a container.
    pub fn put_into_container(
        &self,
        family: FamilyId,
        container: &str,
        mut alter: impl FnMut(&mut FamilyConfig),
    ) -> Result<Versioned<FamilyConfig>, ClusterError> {
        let key = self.keys.family(family);
        let mut patience = Patience::new(&key);
        loop {
            let found = self.family(family)?.ok_or_else(|| ClusterError::NotThere { key: key.clone() })?;
            let mut record = found.record.clone();
            alter(&mut record);
            record.container = container.to_string();
            if record == found.record {
                // There already: also by an attempt whose answer was lost.
                return Ok(found);
            }
            let mut transaction = Transaction::new().when(Compare::unchanged(&key, found.revision)).put(
                &key,
                &json(&record),
                None,
            );
            if found.record.container != container
                && let Some(new) = self.joining(container, 1)?
            {
                transaction = new.with(transaction);
            }
            let answer = self.etcd.transact(&transaction)?;
            if answer.succeeded {
                return Ok(Versioned { record, revision: answer.revision });
            }
            patience.wait()?;
        }
    }

    /// What changes along when so many vDisks are put into a container.
    pub(super) fn joining(&self, name: &str, count: usize) -> Result<Option<New>, ClusterError> {
        if name == DEFAULT_CONTAINER {
            return Ok(None);
        }
        let found = self.container(name)?;
        let mut found = found.ok_or_else(|| ClusterError::NoContainer { name: name.to_string() })?;
        found.record.joined += count as u64;
        Ok(Some(New::changed(self.keys.container(name), &found)))
    }
}
