//! The drives of a cluster. A drive is put in by its node, before it is formatted.

use super::change::{Verdict, Versioned};
use super::create::New;
use super::records::ClusterNodeRecord;
use super::{ClusterConfig, ClusterError, ClusterStore, Ground};
use crate::config::etcd::{Compare, Transaction};
use crate::config::{DriveRecord, DriveRecordState};
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

    /// What a decision rests on that gives something to a drive of this node.
    pub fn grounds(
        &self,
        drive: &Versioned<DriveRecord>,
        node: &Versioned<ClusterNodeRecord>,
    ) -> [Ground; 2] {
        let ground = |key, revision| Ground { key, revision };
        [
            ground(self.keys.drive(drive.record.id()), drive.revision),
            ground(self.keys.node(node.record.node), node.revision),
        ]
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

    /// A drive that is not needed goes: it counts as lost from now on, if neither it nor any group or vDisk was changed since `seen` was
    /// loaded, and found not to need it.
    pub fn give_up_unneeded(
        &self,
        drive: DriveId,
        seen: &ClusterConfig,
    ) -> Result<Versioned<DriveRecord>, ClusterError> {
        let key = self.keys.drive(drive);
        let gone = || ClusterError::NotThere { key: key.clone() };
        let known = seen.drives.get(&drive).ok_or_else(gone)?.revision;
        let ((group, groups), (family, families)) = (self.keys.groups(), self.keys.families());
        self.change(&key, None, |record: &mut DriveRecord, revision| {
            if revision != known {
                return Err(ClusterError::Changed { key: key.clone() });
            }
            if std::mem::replace(&mut record.state, DriveRecordState::Lost) == DriveRecordState::Lost {
                return Ok(Verdict::Leave);
            }
            Ok(Verdict::PutIf(vec![
                Compare::none_put_since(&group, &groups, seen.revision),
                Compare::none_put_since(&family, &families, seen.revision),
            ]))
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
