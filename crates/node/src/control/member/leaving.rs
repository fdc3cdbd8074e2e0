//! What hangs on a node that is taken out: block devices, which somebody uses, and exports, which end with it.

use crate::config::cluster::{ClusterConfig, ClusterError, ClusterStore};
use crate::config::{ExportRecord, SnapshotKey};
use crate::control::snapshots::DiskName;
use weft_engine::{FamilyId, SnapshotId};

/// A vDisk or snapshot that a node has as a block device.
pub(super) fn attached_at(mirror: &ClusterConfig, node: u32) -> Option<String> {
    let vdisks = mirror.families.values().map(|entry| &entry.record);
    let vdisk = { vdisks }.find(|record| record.attached.contains(&node)).map(|record| record.name.clone());
    vdisk.or_else(|| {
        let mut snapshots = mirror.snapshots.values().map(|entry| &entry.record);
        let record = snapshots.find(|record| record.attached.contains(&node))?;
        let vdisk = mirror.families.get(&record.family())?.record.name.clone();
        Some(DiskName { vdisk, snapshot: Some(record.name.clone()) }.to_string())
    })
}

/// What a node exports: it does not any more when it is out, and should not stand in anybody's way then.
pub(super) struct Exporting {
    vdisks: Vec<FamilyId>,
    snapshots: Vec<(SnapshotKey, SnapshotId)>,
}

impl Exporting {
    pub fn of(mirror: &ClusterConfig, node: u32) -> Self {
        let is_there = |exports: &[ExportRecord]| exports.iter().any(|export| export.node == node);
        let vdisks = mirror.families.iter().filter(|(_, entry)| is_there(&entry.record.exports));
        let snapshots = mirror.snapshots.values().map(|entry| &entry.record);
        let snapshots = snapshots.filter(|record| is_there(&record.exports));
        Self {
            vdisks: vdisks.map(|(&family, _)| family).collect(),
            snapshots: snapshots.map(|record| (record.key(), record.id())).collect(),
        }
    }

    pub fn end(&self, store: &ClusterStore, node: u32) -> Result<(), ClusterError> {
        // What is gone meanwhile has no exports.
        let unless_gone = |changed: Result<(), ClusterError>| match changed {
            Err(ClusterError::NotThere { .. }) => Ok(()),
            other => other,
        };
        for &family in &self.vdisks {
            let changed =
                store.change_vdisk(family, |record| record.exports.retain(|export| export.node != node));
            unless_gone(changed.map(drop))?;
        }
        for (key, id) in &self.snapshots {
            let changed =
                store.change_snapshot(key, *id, |record| record.exports.retain(|export| export.node != node));
            unless_gone(changed.map(drop))?;
        }
        Ok(())
    }
}
