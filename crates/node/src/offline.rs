//! A node's directory while no node runs: what the offline tools need to read drives.
//! Promises: nothing on a drive is changed; the directory is locked as long as the result lives.
//! Leaves to others: understanding what is read (`weft check`, `weft inspect`).

use crate::config::{
    ConfigError, ConfigStore, DirectoryLock, DriveRecord, DriveRecordState, LockError, RedbStore,
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
}

/// Everything of a node at rest.
pub struct Offline {
    pub dir: PathBuf,
    /// Formatted drives, also those that cannot be read.
    pub drives: Vec<OfflineDrive>,
    pub groups: Vec<GroupRecord>,
    pub families: Vec<FamilyConfig>,
    _lock: DirectoryLock,
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
    let no_node = || OfflineError::NoNode { dir: dir.to_path_buf() };
    let dir = dir.canonicalize().map_err(|_| no_node())?;
    if !dir.join(CONFIG_FILE).is_file() {
        return Err(no_node());
    }
    let lock = DirectoryLock::take(&dir)?;
    let config = RedbStore::open(&dir, false)?.load()?;
    let drives = config
        .drives
        .iter()
        .filter(|record| record.state == DriveRecordState::Formatted)
        .map(|record| offline_drive(&dir, record))
        .collect();
    Ok(Offline { dir, drives, groups: config.groups, families: config.families, _lock: lock })
}

fn offline_drive(dir: &Path, record: &DriveRecord) -> OfflineDrive {
    OfflineDrive {
        drive: record.id(),
        geometry: Geometry { log: record.log, data: record.data },
        place: drives::describe(dir, record),
        present: drives::open(dir, record, Access::ReadOnly).map(|open| DriveReader::new(&open)),
    }
}
