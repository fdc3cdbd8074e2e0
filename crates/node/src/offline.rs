//! Directories of nodes that do not run: what the offline tools need to read drives.
//! Promises: nothing on a drive is changed; the directories are locked as long as the result lives.
//! Leaves to others: understanding what is read (`weft check`, `weft inspect`).

use crate::config::cluster::{ClusterConfig, ClusterError, ClusterStore};
use crate::config::etcd::Etcd;
use crate::config::{
    ConfigError, ConfigStore, DirectoryLock, DriveRecord, DriveRecordState, LockError, Membership,
    MembershipError, MembershipStage, RedbStore,
};
use crate::drives::{self, Access, AreaFile, DriveError, OpenDrive};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weft_engine::DriveId;
use weft_engine::interface::{Area, Geometry};

pub use crate::config::{CONFIG_FILE, FamilyConfig, FamilyState, GroupRecord};

#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    #[error(
        "{dir} holds no node: there is no {CONFIG_FILE} in it; give the directory that `weft up --dir` was given"
    )]
    NoNode { dir: PathBuf },
    #[error(transparent)]
    Locked(#[from] LockError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Membership(#[from] MembershipError),
    #[error(
        "{dir} is being moved into the cluster {cluster}; finish that with `weft cluster init --name {cluster}`"
    )]
    Importing { dir: PathBuf, cluster: String },
    #[error("the records of the cluster {cluster} are in its etcd, which is needed here: {source}")]
    Etcd { cluster: String, source: ClusterError },
    #[error("{dir} and {other} are not of one cluster; give directories of one, or one directory")]
    NotTogether { dir: PathBuf, other: PathBuf },
}

/// Everything of nodes at rest.
pub struct Offline {
    pub dirs: Vec<PathBuf>,
    /// Formatted drives, also those that cannot be read.
    pub drives: Vec<OfflineDrive>,
    /// Drives that the groups and vDisks may need as well and that other nodes of the cluster have.
    pub drives_elsewhere: usize,
    pub groups: Vec<GroupRecord>,
    pub families: Vec<FamilyConfig>,
    _locks: Vec<DirectoryLock>,
}

/// A drive at rest.
pub struct OfflineDrive {
    pub drive: DriveId,
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

/// Opens the directory of a node that does not run.
pub fn open(dir: &Path) -> Result<Offline, OfflineError> {
    open_all(&[dir.to_path_buf()])
}

/// Opens directories together: of several nodes of one cluster, or one.
pub fn open_all(dirs: &[PathBuf]) -> Result<Offline, OfflineError> {
    assert!(!dirs.is_empty(), "there is something to open");
    let mut found = Vec::new();
    for dir in dirs {
        let no_node = || OfflineError::NoNode { dir: dir.clone() };
        let dir = dir.canonicalize().map_err(|_| no_node())?;
        let membership = Membership::read(&dir)?;
        if membership.is_none() && !dir.join(CONFIG_FILE).is_file() {
            return Err(no_node());
        }
        let lock = DirectoryLock::take(&dir)?;
        found.push((dir, membership, lock));
    }
    let (first_dir, first, _) = &found[0];
    for (dir, membership, _) in &found[1..] {
        let id = |membership: &Option<Membership>| membership.as_ref().map(|membership| membership.id);
        if id(membership).is_none() || id(membership) != id(first) {
            return Err(OfflineError::NotTogether { dir: dir.clone(), other: first_dir.clone() });
        }
    }
    match first {
        Some(membership) => {
            let config = load_cluster(first_dir, membership)?;
            Ok(of_cluster(config, found))
        }
        None => of_single(found),
    }
}

type Found = (PathBuf, Option<Membership>, DirectoryLock);

fn of_single(found: Vec<Found>) -> Result<Offline, OfflineError> {
    let dir = &found[0].0;
    let config = RedbStore::open(dir, false)?.load()?;
    let kept = config.drives.iter().filter(|record| is_kept(record));
    let drives = kept.map(|record| offline_drive(dir, record)).collect();
    Ok(Offline {
        drives,
        drives_elsewhere: 0,
        groups: config.groups,
        families: config.families,
        dirs: found.iter().map(|(dir, ..)| dir.clone()).collect(),
        _locks: found.into_iter().map(|(.., lock)| lock).collect(),
    })
}

fn load_cluster(dir: &Path, membership: &Membership) -> Result<ClusterConfig, OfflineError> {
    let cluster = membership.cluster.clone();
    if membership.stage != MembershipStage::Member {
        return Err(OfflineError::Importing { dir: dir.to_path_buf(), cluster });
    }
    let load = || -> Result<ClusterConfig, ClusterError> {
        let etcd = Etcd::new(&membership.endpoints)?;
        let store = ClusterStore::new(etcd, &membership.cluster)?;
        store.check(membership.id)?;
        store.load()
    };
    load().map_err(|source| OfflineError::Etcd { cluster, source })
}

fn of_cluster(config: ClusterConfig, found: Vec<Found>) -> Offline {
    let mut drives = Vec::new();
    let mut drives_elsewhere = 0;
    for record in config.drives.values().map(|drive| &drive.record).filter(|record| is_kept(record)) {
        let is_here = |(_, membership, _): &&Found| {
            membership.as_ref().is_some_and(|membership| membership.node == record.node)
        };
        match found.iter().find(is_here) {
            Some((dir, ..)) => drives.push(offline_drive(dir, record)),
            None => drives_elsewhere += 1,
        }
    }
    Offline {
        drives,
        drives_elsewhere,
        groups: config.groups.into_values().map(|group| group.record).collect(),
        families: config.families.into_values().map(|family| family.record).collect(),
        dirs: found.iter().map(|(dir, ..)| dir.clone()).collect(),
        _locks: found.into_iter().map(|(.., lock)| lock).collect(),
    }
}

/// It may hold something of value.
fn is_kept(record: &DriveRecord) -> bool {
    match record.state {
        DriveRecordState::Formatted | DriveRecordState::Draining => true,
        DriveRecordState::Making | DriveRecordState::Lost => false,
    }
}

fn offline_drive(dir: &Path, record: &DriveRecord) -> OfflineDrive {
    OfflineDrive {
        drive: record.id(),
        geometry: Geometry { log: record.log, data: record.data },
        place: drives::describe(dir, record),
        present: drives::open(dir, record, Access::ReadOnly).map(|open| DriveReader::new(&open)),
    }
}
