//! The drives of a cluster. A drive is put in by its node, before it is formatted.

use super::change::{Verdict, Versioned};
use super::create::New;
use super::{ClusterError, ClusterStore};
use crate::config::DriveRecord;
use crate::config::etcd::{Compare, Transaction};
use weft_engine::DriveId;

impl ClusterStore {
    /// Adds a drive. Its number is given by the cluster; that of `wanted` does not count.
    pub fn add_drive(&self, wanted: &DriveRecord) -> Result<Versioned<DriveRecord>, ClusterError> {
        let mut record = wanted.clone();
        let revision = self.create(None, |cluster| {
            record.drive = cluster.next_drive;
            cluster.next_drive += 1;
            Ok(vec![New::numbered(self.keys.drive(record.id()), &record)])
        })?;
        Ok(Versioned { record, revision })
    }

    /// Changes what is written about a drive: its state, its weight, the shard that keeps it.
    pub fn change_drive(
        &self,
        drive: DriveId,
        mut alter: impl FnMut(&mut DriveRecord),
    ) -> Result<Versioned<DriveRecord>, ClusterError> {
        self.change(&self.keys.drive(drive), None, |record: &mut DriveRecord, _| {
            let before = record.clone();
            alter(record);
            assert_eq!(record.id(), drive, "a drive keeps its number");
            Ok(if *record == before { Verdict::Leave } else { Verdict::Put })
        })
    }

    /// Takes a drive's record away, if it is still as it was at `seen`. No group or segment may name it any more.
    pub fn remove_drive(&self, drive: DriveId, seen: u64) -> Result<(), ClusterError> {
        let key = self.keys.drive(drive);
        let transaction =
            Transaction::new().when(Compare::unchanged(&key, seen)).delete(&key).otherwise_get(&key);
        let answer = self.etcd.transact(&transaction)?;
        // Its number is never used again: who finds nothing knows that it was removed.
        if answer.succeeded || answer.found[0].is_none() {
            return Ok(());
        }
        Err(ClusterError::Changed { key })
    }
}
