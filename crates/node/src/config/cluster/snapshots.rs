//! The snapshots of vDisks, and the schedules that take them.
//! Promises: of the snapshots of a vDisk one has a name; none is made of a vDisk that is being deleted or goes back to another, and
//! none is of another size than its vDisk had when it was taken; a record changes only as long as it is of the same snapshot.

use super::change::{Patience, Verdict, Versioned, json, parse};
use super::{ClusterError, ClusterStore};
use crate::config::etcd::{Compare, Transaction};
use crate::config::{
    ConsistencyRecord, FamilyState, ScheduleRecord, SnapshotKey, SnapshotRecord, SnapshotState,
};
use weft_engine::{FamilyId, SnapshotId};

impl ClusterStore {
    /// Makes the record of a snapshot that is to be taken. It gets the size that its vDisk has.
    pub fn create_snapshot(
        &self,
        wanted: &SnapshotRecord,
    ) -> Result<Versioned<SnapshotRecord>, ClusterError> {
        let (family, name) = wanted.key();
        let (family_key, key) = (self.keys.family(family), self.keys.snapshot(family, &name));
        let mut patience = Patience::new(&key);
        loop {
            let found = self.family(family)?;
            let of = found
                .filter(|of| of.record.state == FamilyState::Live)
                .ok_or_else(|| ClusterError::NotThere { key: family_key.clone() })?;
            if of.record.rollback.is_some() {
                return Err(ClusterError::GoingBack { name: of.record.name });
            }
            let record = SnapshotRecord { size: of.record.size, ..wanted.clone() };
            let text = json(&record);
            let transaction = Transaction::new()
                .when(Compare::unchanged(&family_key, of.revision))
                .when(Compare::absent(&key))
                .put(&key, &text, None)
                .otherwise_get(&key);
            let answer = self.etcd.transact(&transaction)?;
            if answer.succeeded {
                return Ok(Versioned { record, revision: answer.revision });
            }
            match &answer.found[0] {
                // An earlier attempt came through: nobody else would draw this number.
                Some(found) => {
                    let there: Versioned<SnapshotRecord> = parse(found)?;
                    if there.record.snapshot == record.snapshot {
                        return Ok(there);
                    }
                    return Err(ClusterError::SnapshotExists { name });
                }
                // The vDisk's record was changed: by its owner, most likely.
                None => patience.wait()?,
            }
        }
    }

    /// Changes the record of this very snapshot; [`ClusterError::NotThere`] if it is gone, or another has its name now.
    pub fn change_snapshot(
        &self,
        key: &SnapshotKey,
        snapshot: SnapshotId,
        mut alter: impl FnMut(&mut SnapshotRecord),
    ) -> Result<Versioned<SnapshotRecord>, ClusterError> {
        let path = self.keys.snapshot(key.0, &key.1);
        self.change(&path, None, |record: &mut SnapshotRecord, _| {
            if record.id() != snapshot {
                return Err(ClusterError::NotThere { key: path.clone() });
            }
            let before = record.clone();
            alter(record);
            assert_eq!((record.id(), record.key()), (before.id(), before.key()), "a snapshot stays itself");
            Ok(if *record == before { Verdict::Leave } else { Verdict::Put })
        })
    }

    /// Its owner is to drop this very snapshot, unless it is exported or attached or a clone of it is there: then only clones and
    /// nodes that are not there any more leave its record. It stays as well while its vDisk is on its way back to it.
    pub fn let_snapshot_go(
        &self,
        key: &SnapshotKey,
        snapshot: SnapshotId,
    ) -> Result<Versioned<SnapshotRecord>, ClusterError> {
        let (family_key, path) = (self.keys.family(key.0), self.keys.snapshot(key.0, &key.1));
        let mut patience = Patience::new(&path);
        loop {
            let of = self.family(key.0)?;
            let of_revision = of.as_ref().map_or(0, |of| of.revision);
            let goes_back_to = of.and_then(|of| of.record.rollback).map(|rollback| rollback.generation);
            let (mut gone, mut removed) = (Vec::new(), Vec::new());
            if let Some(found) = self.etcd.get(&path)? {
                let found: Versioned<SnapshotRecord> = parse(&found)?;
                gone = self.gone_of(&found.record.clones)?;
                for node in found.record.attached {
                    if self.is_removed(node)? {
                        removed.push(node);
                    }
                }
            }
            let changed = self.change(&path, None, |record: &mut SnapshotRecord, _| {
                if record.id() != snapshot {
                    return Err(ClusterError::NotThere { key: path.clone() });
                }
                let before = record.clone();
                record.clones.retain(|family| !gone.contains(family));
                record.attached.retain(|node| !removed.contains(node));
                let is_target = record.generation.is_some() && record.generation == goes_back_to;
                // A clone that was made since stands in the record.
                let is_free =
                    record.exports.is_empty() && record.clones.is_empty() && record.attached.is_empty();
                if is_free && !is_target {
                    record.state = SnapshotState::Deleting;
                }
                Ok(match () {
                    () if *record == before => Verdict::Leave,
                    () if record.state == before.state => Verdict::Put,
                    // That its vDisk goes back to it stands in the vDisk's record only.
                    () => Verdict::PutIf(vec![Compare::unchanged(&family_key, of_revision)]),
                })
            });
            match changed {
                // The vDisk's record was changed: by its owner, most likely.
                Err(ClusterError::Changed { .. }) => patience.wait()?,
                changed => return changed,
            }
        }
    }

    /// The snapshots of this vDisk, none of which is being taken, and the revision of the store at which that was so; refused if one is.
    pub(super) fn snapshots_at_rest(
        &self,
        family: FamilyId,
    ) -> Result<(u64, Vec<Versioned<SnapshotRecord>>), ClusterError> {
        let (first, end) = self.keys.snapshots(family);
        let (revision, entries) = self.entries(first, &end)?;
        let snapshots = entries.iter().map(parse).collect::<Result<Vec<Versioned<SnapshotRecord>>, _>>()?;
        match snapshots.iter().find(|snapshot| snapshot.record.state == SnapshotState::Creating) {
            Some(creating) => Err(ClusterError::SnapshotUnderWay { name: creating.record.name.clone() }),
            None => Ok((revision, snapshots)),
        }
    }

    /// Takes the record away: the engine does not have the snapshot any more. Fine if it is gone already.
    pub fn remove_snapshot(&self, key: &SnapshotKey, snapshot: SnapshotId) -> Result<(), ClusterError> {
        let path = self.keys.snapshot(key.0, &key.1);
        let mut patience = Patience::new(&path);
        loop {
            let Some(found) = self.etcd.get(&path)? else { return Ok(()) };
            let found: Versioned<SnapshotRecord> = parse(&found)?;
            if found.record.id() != snapshot {
                return Ok(());
            }
            let transaction =
                Transaction::new().when(Compare::unchanged(&path, found.revision)).delete(&path);
            if self.etcd.transact(&transaction)?.succeeded {
                return Ok(());
            }
            patience.wait()?;
        }
    }

    /// Puts the schedule of a vDisk that lives, in the place of the one before. Gives the store's revision behind it.
    pub fn put_schedule(&self, schedule: &ScheduleRecord) -> Result<u64, ClusterError> {
        let family = FamilyId(schedule.family);
        let (family_key, key) = (self.keys.family(family), self.keys.schedule(family));
        let mut patience = Patience::new(&key);
        loop {
            let found = self.family(family)?;
            let of = found
                .filter(|of| of.record.state == FamilyState::Live)
                .ok_or_else(|| ClusterError::NotThere { key: family_key.clone() })?;
            let transaction = Transaction::new().when(Compare::unchanged(&family_key, of.revision)).put(
                &key,
                &json(schedule),
                None,
            );
            let answer = self.etcd.transact(&transaction)?;
            if answer.succeeded {
                return Ok(answer.revision);
            }
            patience.wait()?;
        }
    }

    /// Makes a consistency group. Gives the store's revision behind it.
    pub fn create_consistency(&self, group: &ConsistencyRecord) -> Result<u64, ClusterError> {
        let (key, text) = (self.keys.consistency(&group.name), json(group));
        let transaction =
            Transaction::new().when(Compare::absent(&key)).put(&key, &text, None).otherwise_get(&key);
        let mut answer = self.etcd.transact(&transaction)?;
        if answer.succeeded {
            return Ok(answer.revision);
        }
        match answer.found.swap_remove(0) {
            // The attempt whose answer was lost came through, or somebody made the very same.
            Some(there) if answer.repeated && there.value == text => Ok(there.mod_revision),
            _ => Err(ClusterError::GroupExists { name: group.name.clone() }),
        }
    }

    /// Changes the vDisks of a group. `alter` may be called again, with what somebody else has put meanwhile.
    pub fn change_consistency(
        &self,
        group: &str,
        mut alter: impl FnMut(&mut ConsistencyRecord),
    ) -> Result<Versioned<ConsistencyRecord>, ClusterError> {
        self.change(&self.keys.consistency(group), None, |record: &mut ConsistencyRecord, _| {
            let before = record.clone();
            alter(record);
            Ok(if *record == before { Verdict::Leave } else { Verdict::Put })
        })
    }

    /// Fine if there is none. Gives the store's revision behind it.
    pub fn remove_consistency(&self, group: &str) -> Result<u64, ClusterError> {
        self.delete(&self.keys.consistency(group))
    }

    /// Fine if there is none. Gives the store's revision behind it.
    pub fn remove_schedule(&self, family: FamilyId) -> Result<u64, ClusterError> {
        self.delete(&self.keys.schedule(family))
    }

    /// Whatever it says.
    fn delete(&self, key: &str) -> Result<u64, ClusterError> {
        let mut patience = Patience::new(key);
        loop {
            let found = self.etcd.get(key)?;
            let revision = found.as_ref().map_or(0, |found| found.mod_revision);
            let transaction = Transaction::new().when(Compare::unchanged(key, revision)).delete(key);
            let answer = self.etcd.transact(&transaction)?;
            if answer.succeeded {
                return Ok(answer.revision);
            }
            patience.wait()?;
        }
    }
}
