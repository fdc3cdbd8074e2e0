//! Making vDisks that begin as a snapshot.
//! Promises: a clone is made only of a snapshot that is ready and stays: both records change in one transaction, so that whoever
//! removes the snapshot, or its vDisk, knows of every clone or comes before it.

use super::change::{Patience, Versioned, json, parse};
use super::records::NameRecord;
use super::{ClusterError, ClusterStore, NewVdisk};
use crate::config::etcd::{Compare, Transaction};
use crate::config::{CloneOrigin, FamilyConfig, FamilyState, SnapshotKey, SnapshotRecord};
use weft_engine::SnapshotId;

/// Clones made in one transaction: each takes four of its operations.
pub const CLONES_MAX: usize = 24;

impl ClusterStore {
    /// Makes all of these vDisks or none. Gives their records, in the same order, and the store's revision behind them.
    pub fn create_clones(
        &self,
        key: &SnapshotKey,
        snapshot: SnapshotId,
        wanted: &[NewVdisk],
    ) -> Result<Versioned<Vec<FamilyConfig>>, ClusterError> {
        assert!((1..=CLONES_MAX).contains(&wanted.len()), "a transaction has a limit");
        let (cluster_key, path) = (self.keys.cluster(), self.keys.snapshot(key.0, &key.1));
        let family_key = self.keys.family(key.0);
        let stamp = rand::random();
        let mut patience = Patience::new(&path);
        loop {
            let mut cluster = self.cluster_record()?;
            let parent = self.family(key.0)?.filter(|parent| parent.record.state == FamilyState::Live);
            let mut parent = parent.ok_or_else(|| ClusterError::NotThere { key: family_key.clone() })?;
            let gone = || ClusterError::NotThere { key: path.clone() };
            let found = self.etcd.get(&path)?.ok_or_else(gone)?;
            let mut found: Versioned<SnapshotRecord> = parse(&found)?;
            let generation =
                found.record.ready().filter(|_| found.record.id() == snapshot).ok_or_else(gone)?;
            let origin = CloneOrigin { family: key.0.0, generation: generation.0, size: found.record.size };
            let mut records = Vec::new();
            let mut transaction = Transaction::new();
            for wanted in wanted {
                let family = cluster.record.next_family;
                cluster.record.next_family += 1;
                let record = FamilyConfig { origin: Some(origin), ..wanted.record(family) };
                let (name_key, record_key) =
                    (self.keys.vdisk_name(&wanted.name), self.keys.family(record.id()));
                let name = NameRecord { family, stamp };
                transaction = transaction
                    .when(Compare::absent(&name_key))
                    .put(&name_key, &json(&name), None)
                    .put(&record_key, &json(&record), None)
                    .otherwise_get(&name_key);
                records.push(record);
            }
            found.record.clones.extend(records.iter().map(|record| record.family));
            parent.record.clones_made += records.len() as u64;
            let transaction = transaction
                .when(Compare::unchanged(&cluster_key, cluster.revision))
                .when(Compare::unchanged(&path, found.revision))
                .when(Compare::unchanged(&family_key, parent.revision))
                .put(&cluster_key, &json(&cluster.record), None)
                .put(&path, &json(&found.record), None)
                .put(&family_key, &json(&parent.record), None);
            let answer = self.etcd.transact(&transaction)?;
            if answer.succeeded {
                return Ok(Versioned { record: records, revision: answer.revision });
            }
            for (wanted, there) in wanted.iter().zip(&answer.found) {
                let Some(there) = there else { continue };
                let there: Versioned<NameRecord> = parse(there)?;
                if there.record.stamp != stamp {
                    return Err(ClusterError::NameTaken { name: wanted.name.clone() });
                }
                // An earlier attempt came through, and its answer was lost.
                return self.clones_made(wanted, answer.revision, &answer.found);
            }
            patience.wait()?;
        }
    }

    fn clones_made(
        &self,
        first: &NewVdisk,
        revision: u64,
        names: &[Option<crate::config::etcd::KeyValue>],
    ) -> Result<Versioned<Vec<FamilyConfig>>, ClusterError> {
        let mut records = Vec::new();
        for name in names.iter().flatten() {
            let name: Versioned<NameRecord> = parse(name)?;
            let record = self.family(weft_engine::FamilyId(name.record.family))?;
            let missing = || ClusterError::NotThere { key: self.keys.vdisk_name(&first.name) };
            records.push(record.ok_or_else(missing)?.record);
        }
        Ok(Versioned { record: records, revision })
    }
}
