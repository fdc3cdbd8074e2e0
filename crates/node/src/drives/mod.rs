//! The drives of a node: files in its directory, or block devices. Making, opening and checking them.
//! Promises: a drive is opened only if it is there whole; nothing that holds something else is written without being
//! told to.
//! Leaves to others: what lies on a drive (the engine's keeper), its I/O (`shard_loop`).

mod device;
mod error;
mod file;
mod geometry;

pub use error::DriveError;
pub use geometry::{DRIVE_BYTES_MIN, MIB, divide, logs_up_to};

use crate::config::{DriveRecord, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weft_engine::DriveId;
use weft_engine::buffer::{BLOCK, Pages};
use weft_engine::formats::superblock::{COPIES, Superblock, SuperblockFault};
use weft_engine::interface::Geometry;

/// A drive whose bytes can be reached.
#[derive(Clone)]
pub struct OpenDrive {
    pub drive: DriveId,
    pub geometry: Geometry,
    pub log: AreaFile,
    pub data: AreaFile,
    /// Whether it hears about ranges that are not needed any more. Files do not: a hole would have to be allocated
    /// again, slowly, and perhaps when the file system has no room left.
    pub takes_discards: bool,
}

/// Where the bytes of an area are: behind `offset` of a file or device.
#[derive(Clone)]
pub struct AreaFile {
    pub file: Arc<File>,
    pub offset: u64,
}

/// How a drive is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// By the node: around the page cache, and by nobody else.
    Node,
    /// By the offline tools.
    ReadOnly,
}

/// Opens a drive that was made earlier.
pub fn open(dir: &Path, record: &DriveRecord, access: Access) -> Result<OpenDrive, DriveError> {
    match &record.place {
        Place::Files => {
            let found = file::superblock(dir, record);
            if let Some(found) = found.filter(|found| is_other(found, record)) {
                let [_, path] = file_paths(dir, record.id());
                return Err(DriveError::ForeignFile { path, drive: found.drive });
            }
            file::open(dir, record, access)
        }
        Place::Device(path) => {
            // A node has looked at all of its devices already.
            let found = if access == Access::ReadOnly { found_at(path) } else { None };
            if let Some(found) = found.filter(|found| is_other(found, record)) {
                return Err(DriveError::Foreign { path: path.clone(), drive: found.drive });
            }
            device::open(path, record, access)
        }
    }
}

/// Makes the files of a new drive, or prepares the device that it will be: its content is the engine's business.
pub fn make(dir: &Path, record: &DriveRecord, progress: &mut dyn FnMut(u64)) -> Result<(), DriveError> {
    match &record.place {
        Place::Files => file::make(dir, record, progress),
        Place::Device(path) => device::make(path),
    }
}

/// What a drive is known by besides its number, as it lies there now. None if it does not tell.
pub fn incarnation(dir: &Path, record: &DriveRecord) -> Option<u64> {
    let found = match &record.place {
        Place::Files => file::superblock(dir, record)?,
        Place::Device(path) => device::superblock(path, record.log)?,
    };
    (found.drive == record.id()).then_some(found.incarnation)
}

/// What lies where a superblock will be is made like nothing else: the engine makes what a drive is known by from it, and new drives
/// would all be alike.
fn make_unlike(file: &File, data: u64) -> std::io::Result<()> {
    let mut pages = Pages::zeroed(COPIES * BLOCK);
    rand::fill(pages.bytes_mut());
    file.write_all_at(pages.bytes_mut(), data)
}

/// The superblock of a drive whose data area begins there.
fn superblock_in(file: &File, data: u64) -> std::io::Result<Result<Superblock, SuperblockFault>> {
    let mut pages = Pages::zeroed(COPIES * BLOCK);
    let mut unread = None;
    // One by one: of two copies one may be readable.
    for (copy, block) in pages.bytes_mut().chunks_exact_mut(BLOCK).enumerate() {
        let mut one = Pages::zeroed(BLOCK);
        match file.read_exact_at(one.bytes_mut(), data + (copy * BLOCK) as u64) {
            Ok(()) => block.copy_from_slice(one.bytes_mut()),
            Err(error) => unread = Some(error),
        }
    }
    match (Superblock::newest(pages.bytes_mut()), unread) {
        (Err(SuperblockFault::NotSound), Some(error)) => Err(error),
        (found, _) => Ok(found),
    }
}

/// What the device at this path says that it is, if it is a drive.
pub fn found_at(path: &Path) -> Option<Superblock> {
    device::any_superblock(path)
}

/// The same of many, which are looked at all at once: those that hang take no more time together than one.
pub fn look_at(paths: BTreeSet<PathBuf>) -> BTreeMap<PathBuf, Superblock> {
    std::thread::scope(|scope| {
        let looks = paths.into_iter().map(|path| scope.spawn(move || Some((found_at(&path)?, path))));
        let looks: Vec<_> = looks.collect();
        let found = looks.into_iter().filter_map(|look| look.join().expect("it does not panic"));
        found.map(|(superblock, path)| (path, superblock)).collect()
    })
}

/// Whether another drive is found where this one should be. What an older version made is known by its number alone.
pub fn is_other(found: &Superblock, record: &DriveRecord) -> bool {
    record.incarnation.is_some_and(|expected| (found.drive, found.incarnation) != (record.id(), expected))
}

/// Whether that is this drive: by what lies there, not by a name.
pub fn is_of(found: &Superblock, record: &DriveRecord) -> bool {
    found.drive == record.id()
        && found.geometry == Geometry { log: record.log, data: record.data }
        && record.incarnation.is_none_or(|incarnation| incarnation == found.incarnation)
}

/// Takes away that a device passes for a drive, if it is this one and nothing was ever put there.
pub fn unmake(path: &Path, record: &DriveRecord) {
    if found_at(path).is_some_and(|found| is_of(&found, record)) && device::is_unused(path, record.log) {
        // If not, it is told when somebody wants to make a drive of it.
        let _ = device::make(path);
    }
}

/// Whether a device can become a drive, and its size in bytes.
pub fn examine_device(path: &Path, force: bool) -> Result<u64, DriveError> {
    device::examine(path, force)
}

/// Where a drive is, for people.
pub fn describe(dir: &Path, record: &DriveRecord) -> String {
    match &record.place {
        Place::Files => dir.join(format!("drive-{}", record.drive)).display().to_string(),
        Place::Device(path) => path.display().to_string(),
    }
}

/// The files of a file-backed drive.
pub fn file_paths(dir: &Path, drive: DriveId) -> [PathBuf; 2] {
    [dir.join(format!("drive-{drive}.log")), dir.join(format!("drive-{drive}.data"))]
}

/// How long a node that was killed may hold its drives: the kernel ends its io_uring, and what was in flight there, a
/// moment after the process.
const RELEASE_WAIT: Duration = Duration::from_secs(10);

/// Locks the file for this open file description, as long as it is open. False: another process has it, and keeps it.
fn lock(file: &File, access: Access) -> std::io::Result<bool> {
    Ok(patiently(|| Ok(try_lock(file, access)?.then_some(())))?.is_some())
}

/// Asks again until there is an answer or the time is up.
fn patiently<T>(mut ask: impl FnMut() -> std::io::Result<Option<T>>) -> std::io::Result<Option<T>> {
    let deadline = Instant::now() + RELEASE_WAIT;
    loop {
        let answer = ask()?;
        if answer.is_some() || Instant::now() > deadline {
            return Ok(answer);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn try_lock(file: &File, access: Access) -> std::io::Result<bool> {
    let operation = match access {
        Access::Node => libc::LOCK_EX | libc::LOCK_NB,
        Access::ReadOnly => libc::LOCK_SH | libc::LOCK_NB,
    };
    // SAFETY: a plain call on an open descriptor.
    if unsafe { libc::flock(file.as_raw_fd(), operation) } == 0 {
        return Ok(true);
    }
    let error = std::io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EWOULDBLOCK) { Ok(false) } else { Err(error) }
}
