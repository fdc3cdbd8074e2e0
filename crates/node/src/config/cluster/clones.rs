//! Making vDisks that begin as a snapshot.
//! Promises: a clone is made only of a snapshot that is ready and stays: both records change in one transaction, so that whoever
//! removes the snapshot, or its vDisk, knows of every clone or comes before it.

use super::change::{Versioned, parse};
use super::create::New;
use super::{ClusterError, ClusterStore, NewVdisk};
use crate::config::{CloneOrigin, FamilyConfig, FamilyState, SnapshotKey, SnapshotRecord};
use weft_engine::SnapshotId;

/// Clones made in one transaction: each takes four of its operations.
pub const CLONES_MAX: usize = 24;

/// Former clones that are looked for with every transaction: more than it adds.
const LOOKED_FOR: usize = 48;

impl ClusterStore {
    /// Makes all of these vDisks or none; they are in one container. Gives their records, in the same order, and the store's
    /// revision behind them.
    pub fn create_clones(
        &self,
        key: &SnapshotKey,
        snapshot: SnapshotId,
        wanted: &[NewVdisk],
    ) -> Result<Versioned<Vec<FamilyConfig>>, ClusterError> {
        assert!((1..=CLONES_MAX).contains(&wanted.len()), "a transaction has a limit");
        let (path, family_key) = (self.keys.snapshot(key.0, &key.1), self.keys.family(key.0));
        let stamp = rand::random();
        let mut records = Vec::new();
        let revision = self.create(None, |cluster| {
            let parent = self.family(key.0)?.filter(|parent| parent.record.state == FamilyState::Live);
            let mut parent = parent.ok_or_else(|| ClusterError::NotThere { key: family_key.clone() })?;
            let gone = || ClusterError::NotThere { key: path.clone() };
            let found = self.etcd.get(&path)?.ok_or_else(gone)?;
            let mut found: Versioned<SnapshotRecord> = parse(&found)?;
            let generation =
                found.record.ready().filter(|_| found.record.id() == snapshot).ok_or_else(gone)?;
            let origin = CloneOrigin { family: key.0.0, generation: generation.0, size: found.record.size };
            records.clear();
            let mut news = Vec::new();
            for wanted in wanted {
                let record = FamilyConfig { origin: Some(origin), ..wanted.record(cluster.next_family) };
                cluster.next_family += 1;
                news.extend(self.new_vdisk(&record, stamp));
                records.push(record);
            }
            news.extend(self.joining(&wanted[0].container, wanted.len())?);
            self.forget_gone_clones(&mut found.record)?;
            found.record.clones.extend(records.iter().map(|record| record.family));
            parent.record.clones_made += records.len() as u64;
            news.push(New::changed(path.clone(), &found));
            news.push(New::changed(family_key.clone(), &parent));
            Ok(news)
        })?;
        Ok(Versioned { record: records, revision })
    }

    /// The list of an image whose clones come and go stays about as long as those that are there: each time some of it, anywhere,
    /// are looked for.
    fn forget_gone_clones(&self, record: &mut SnapshotRecord) -> Result<(), ClusterError> {
        if record.clones.len() < LOOKED_FOR {
            return Ok(());
        }
        let from = rand::random_range(0..record.clones.len());
        record.clones.rotate_left(from);
        let gone = self.gone_of(&record.clones[..LOOKED_FOR])?;
        record.clones.retain(|clone| !gone.contains(clone));
        record.clones.sort_unstable();
        Ok(())
    }
}
