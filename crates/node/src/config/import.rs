//! Moves the records of a single node into a new cluster, of which it becomes node 0. Data stays where it is:
//! drives, groups and vDisks keep their numbers, and so do the shards.
//! Promises: all records or none are to be seen in the cluster; cut anywhere, it is finished by doing it
//! again; from the moment a record is put, the directory says that the node does not stand alone any more.
//! Leaves to others: taking the families over (they have no owner), refusing to serve alone (the start of a node).

use super::cluster::{
    ClusterError, ClusterNodeRecord, ClusterRecord, ClusterStore, NameRecord, NodeState, json, parse,
};
use super::etcd::{Compare, Transaction};
use super::lock::DirectoryLock;
use super::membership::{Membership, MembershipError, MembershipStage};
use super::{Config, ConfigError, ConfigStore, RedbStore};
use std::path::Path;
use weft_engine::FamilyId;

/// Records in one transaction.
const RECORDS_AT_ONCE: usize = 100;

/// The number of the node that is the first of its cluster.
const FIRST_NODE: u32 = 0;

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Membership(#[from] MembershipError),
    #[error("this node is in the cluster {cluster} already")]
    Member { cluster: String },
    #[error("this node is being moved into the cluster {cluster}; finish that first")]
    Elsewhere { cluster: String },
    #[error("this node was never started, so there is nothing to move; start it once with `weft up`")]
    NeverStarted,
}

/// Moves the node in `dir` into the cluster of `store`, which must be empty, or left behind by a cut import
/// of the same node. `node`: its addresses and shards; the shards are as many as it had, or its drives are
/// dealt anew.
pub fn import(
    store: &ClusterStore,
    dir: &Path,
    _lock: &DirectoryLock,
    node: &ClusterNodeRecord,
) -> Result<Membership, ImportError> {
    let before = Membership::read(dir)?;
    if let Some(before) = &before {
        if before.stage == MembershipStage::Member {
            return Err(ImportError::Member { cluster: before.cluster.clone() });
        }
        if before.cluster != store.name() {
            return Err(ImportError::Elsewhere { cluster: before.cluster.clone() });
        }
    }
    let mut config = RedbStore::open(dir, false)?.load()?;
    // There, a name is a key.
    config.name_snapshots_apart();
    // The cluster gets the node's own id: that tells a cut import of this node from anything else.
    let id = config.node.node;
    if id == 0 {
        return Err(ImportError::NeverStarted);
    }
    let mut membership = Membership {
        cluster: store.name().to_string(),
        id,
        endpoints: store.etcd().endpoints().to_vec(),
        node: FIRST_NODE,
        stage: MembershipStage::Importing,
        incarnation: 0,
    };
    if let Some(revision) = begin(store, id, before.is_some())? {
        // Before the first record: from here on this node's own store is history.
        membership.write(dir)?;
        put_records(store, revision, &records(store, &config, node))?;
        finish(store, revision, &counters(&config))?;
    }
    membership.stage = MembershipStage::Member;
    membership.write(dir)?;
    Ok(membership)
}

/// Claims the cluster's name; gives the revision of the claim. None: all was done already, but for the node's
/// own file.
fn begin(store: &ClusterStore, id: u64, begun: bool) -> Result<Option<u64>, ClusterError> {
    let claim = ClusterRecord { importing: true, ..ClusterRecord::new(id) };
    let refused = match store.begin(claim) {
        Ok(claimed) => return Ok(Some(claimed.revision)),
        Err(refused @ ClusterError::NotEmpty { .. }) => refused,
        Err(error) => return Err(error),
    };
    let Some(found) = store.etcd.get(&store.keys.cluster())? else { return Err(refused) };
    let found = parse::<ClusterRecord>(&found)?;
    match found.record {
        ClusterRecord { id: other, .. } if other != id => Err(refused),
        ClusterRecord { importing: true, .. } => Ok(Some(found.revision)),
        // Only the last step is missing. A directory that knows of no import is a copy of the one that was moved.
        _ if begun => Ok(None),
        _ => Err(refused),
    }
}

/// Everything that goes below the cluster's name, besides its own record.
fn records(store: &ClusterStore, config: &Config, node: &ClusterNodeRecord) -> Vec<(String, String)> {
    let keys = &store.keys;
    let node = ClusterNodeRecord { node: FIRST_NODE, state: NodeState::In, ..node.clone() };
    assert!(node.shards > 0, "a node has shards");
    let mut records = vec![(keys.node(FIRST_NODE), json(&node))];
    for drive in &config.drives {
        let mut drive = drive.clone();
        drive.node = FIRST_NODE;
        // As the single node dealt them.
        drive.shard = drive.drive % node.shards;
        records.push((keys.drive(drive.id()), json(&drive)));
    }
    for group in &config.groups {
        records.push((keys.group(group.id()), json(group)));
    }
    for family in &config.families {
        let mut family = family.clone();
        family.owner = None;
        let name = NameRecord { family: family.family, stamp: rand::random() };
        records.push((keys.vdisk_name(&family.name), json(&name)));
        records.push((keys.family(family.id()), json(&family)));
    }
    for snapshot in &config.snapshots {
        records.push((keys.snapshot(snapshot.family(), &snapshot.name), json(snapshot)));
    }
    for schedule in &config.schedules {
        records.push((keys.schedule(FamilyId(schedule.family)), json(schedule)));
    }
    for group in &config.consistency {
        records.push((keys.consistency(&group.name), json(group)));
    }
    for container in &config.containers {
        records.push((keys.container(&container.name), json(container)));
    }
    records
}

fn put_records(store: &ClusterStore, claim: u64, records: &[(String, String)]) -> Result<(), ClusterError> {
    let cluster = store.keys.cluster();
    for part in records.chunks(RECORDS_AT_ONCE) {
        let mut transaction = Transaction::new().when(Compare::unchanged(&cluster, claim));
        for (key, text) in part {
            transaction = transaction.put(key, text, None);
        }
        // Done twice it is the same: nobody touches these records before the import is finished.
        if !store.etcd.transact(&transaction)?.succeeded {
            return Err(ClusterError::Changed { key: cluster });
        }
    }
    Ok(())
}

/// The cluster's record in the end: numbers go on where the node's own stopped.
fn counters(config: &Config) -> ClusterRecord {
    let behind =
        |next: u32, ids: &mut dyn Iterator<Item = u32>| ids.map(|id| id + 1).max().unwrap_or(0).max(next);
    let new = ClusterRecord::new(config.node.node);
    ClusterRecord {
        next_node: FIRST_NODE + 1,
        next_drive: behind(config.node.next_drive, &mut config.drives.iter().map(|drive| drive.drive)),
        next_group: behind(config.node.next_group, &mut config.groups.iter().map(|group| group.group)),
        next_family: behind(
            config.node.next_family.max(new.next_family),
            &mut config.families.iter().map(|family| family.family),
        ),
        ..new.with_lost(config.node.lost.clone())
    }
}

/// The one transaction that makes the cluster be there.
fn finish(store: &ClusterStore, claim: u64, record: &ClusterRecord) -> Result<(), ClusterError> {
    let (key, text) = (store.keys.cluster(), json(record));
    let transaction =
        Transaction::new().when(Compare::unchanged(&key, claim)).put(&key, &text, None).otherwise_get(&key);
    let answer = store.etcd.transact(&transaction)?;
    let came_through = answer.repeated && answer.found.iter().flatten().any(|found| found.value == text);
    if answer.succeeded || came_through { Ok(()) } else { Err(ClusterError::Changed { key }) }
}
