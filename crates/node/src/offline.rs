//! The directories of nodes that do not run: what the offline tools need to read drives.
//! Promises: nothing on a drive and nothing in etcd is changed; the directories are locked as long as the result lives.
//! Leaves to others: understanding what is read (`weft check`, `weft inspect`).

mod member;

use crate::config::cluster::ClusterError;
use crate::config::etcd::EtcdError;
use crate::config::{
    ConfigError, ContainerRecord, DirectoryLock, DriveRecord, DriveRecordState, LockError, Membership,
    MembershipError, RedbStore,
};
use crate::drives::{self, Access, AreaFile, DriveError, OpenDrive};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft_engine::DriveId;
use weft_engine::interface::{Area, Geometry};

pub use crate::config::{
    CONFIG_FILE, FamilyConfig, FamilyState, GroupRecord, MEMBERSHIP_FILE, Policy, SnapshotRecord,
    SnapshotState,
};
pub use member::OfflineNode;

#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    #[error(
        "{dir} holds no node: there is no {CONFIG_FILE} or {MEMBERSHIP_FILE} in it; give the directory that `weft up \
         --dir` was given"
    )]
    NoNode { dir: PathBuf },
    #[error(transparent)]
    Locked(#[from] LockError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Membership(#[from] MembershipError),
    #[error(
        "the records of the cluster {cluster} are in etcd, and it does not answer: {source}; start etcd, or say where \
         it is (--etcd)"
    )]
    NoEtcd { cluster: String, source: EtcdError },
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("{dir} is a node that is alone, in no cluster with the others; look at it alone")]
    Alone { dir: PathBuf },
    #[error(
        "{dir} is a node of the cluster {cluster} (id {id}), and others here are not; give nodes of one cluster"
    )]
    OtherCluster { dir: PathBuf, cluster: String, id: u64 },
    #[error("{first} and {second} are both node {node}: one of them is a copy; give the one that is in use")]
    Twice { first: PathBuf, second: PathBuf, node: u32 },
    #[error(
        "{dir} is being moved into the cluster {cluster}; finish that first with `weft cluster init --name {cluster} \
         --dir {dir}`"
    )]
    Importing { dir: PathBuf, cluster: String },
}

/// Everything of some nodes at rest: of one that is alone, or of one or more of a cluster.
pub struct Offline {
    pub dirs: Vec<PathBuf>,
    /// Formatted drives in these directories, also those that cannot be read.
    pub drives: Vec<OfflineDrive>,
    /// The other drives that are in use in the cluster, and the nodes they are in.
    pub elsewhere: BTreeMap<DriveId, u32>,
    /// The nodes of the cluster; none if the node is alone.
    pub nodes: BTreeMap<u32, OfflineNode>,
    pub groups: Vec<GroupRecord>,
    pub families: Vec<FamilyConfig>,
    pub snapshots: Vec<SnapshotRecord>,
    containers: Vec<ContainerRecord>,
    _locks: Vec<DirectoryLock>,
}

impl Offline {
    /// The node of a drive that is here, if that is one of a cluster.
    pub fn node_of(&self, drive: DriveId) -> Option<u32> {
        self.drives.iter().find(|known| known.drive == drive)?.node
    }

    /// By what a vDisk is kept.
    pub fn policy(&self, family: &FamilyConfig) -> Policy {
        family.policy(self.containers.iter().find(|container| container.name == family.container))
    }
}

/// A drive at rest.
pub struct OfflineDrive {
    pub drive: DriveId,
    /// The node it is in, if that is one of a cluster.
    pub node: Option<u32>,
    pub geometry: Geometry,
    /// The device, or the files without their ending.
    pub place: String,
    /// Its bytes, or why they cannot be read.
    pub present: Result<DriveReader, DriveError>,
}

/// Reads the bytes of a drive.
#[derive(Clone)]
pub struct DriveReader {
    log: AreaReader,
    data: AreaReader,
}

/// Reads the bytes of one area; offsets begin at 0.
#[derive(Clone)]
pub struct AreaReader {
    file: Arc<File>,
    base: u64,
    len: u64,
}

impl AreaReader {
    fn new(area: &AreaFile, len: u64) -> Self {
        Self { file: Arc::clone(&area.file), base: area.offset, len }
    }

    /// Bytes of the area.
    #[expect(clippy::len_without_is_empty, reason = "an area is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Fills `into` from `offset` on; it must lie inside the area.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "outside the area"));
        }
        self.file.read_exact_at(into, self.base + offset)
    }
}

impl DriveReader {
    fn new(open: &OpenDrive) -> Self {
        Self {
            log: AreaReader::new(&open.log, open.geometry.log),
            data: AreaReader::new(&open.data, open.geometry.data),
        }
    }

    pub fn area(&self, area: Area) -> &AreaReader {
        match area {
            Area::Log => &self.log,
            Area::Data => &self.data,
        }
    }
}

/// Opens the directories of nodes that do not run. `etcd` are the addresses of the cluster's etcd; none: those that the
/// directories know.
pub fn open(dirs: &[PathBuf], etcd: &[String]) -> Result<Offline, OfflineError> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut members = Vec::new();
    for given in dirs {
        let no_node = || OfflineError::NoNode { dir: given.clone() };
        let dir = given.canonicalize().map_err(|_| no_node())?;
        if found.contains(&dir) {
            continue;
        }
        // A directory that was moved into a cluster still has the records that it had before.
        match Membership::read(&dir)? {
            Some(membership) => members.push((dir.clone(), membership)),
            None if dir.join(CONFIG_FILE).is_file() => {}
            None => return Err(no_node()),
        }
        found.push(dir);
    }
    if !members.is_empty() {
        if let Some(dir) = found.into_iter().find(|dir| members.iter().all(|(member, _)| member != dir)) {
            return Err(OfflineError::Alone { dir });
        }
        return member::open(members, etcd);
    }
    let mut found = found.into_iter();
    let dir = found.next().ok_or_else(|| OfflineError::NoNode { dir: PathBuf::new() })?;
    match found.next() {
        Some(dir) => Err(OfflineError::Alone { dir }),
        None => open_alone(dir),
    }
}

fn open_alone(dir: PathBuf) -> Result<Offline, OfflineError> {
    let lock = DirectoryLock::look(&dir)?;
    let config = RedbStore::read_copy(&dir)?;
    let in_use = config.drives.iter().filter(|record| is_in_use(record));
    let drives = in_use.map(|record| offline_drive(&dir, record, None)).collect();
    Ok(Offline {
        drives,
        dirs: vec![dir],
        elsewhere: BTreeMap::new(),
        nodes: BTreeMap::new(),
        groups: config.groups,
        families: config.families,
        snapshots: config.snapshots,
        containers: config.containers,
        _locks: Vec::from_iter(lock),
    })
}

fn is_in_use(record: &DriveRecord) -> bool {
    match record.state {
        DriveRecordState::Formatted | DriveRecordState::Draining => true,
        DriveRecordState::Making | DriveRecordState::Lost => false,
    }
}

fn offline_drive(dir: &Path, record: &DriveRecord, node: Option<u32>) -> OfflineDrive {
    OfflineDrive {
        drive: record.id(),
        node,
        geometry: Geometry { log: record.log, data: record.data },
        place: drives::describe(dir, record),
        present: drives::open(dir, record, Access::ReadOnly).map(|open| DriveReader::new(&open)),
    }
}
