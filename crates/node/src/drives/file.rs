//! Drives in files: `drive-N.log` and `drive-N.data` in the node's directory.
//! Promises: the log file has been written once, whole, so that a durable write there never waits for the file
//! system to allocate or convert extents; a half-made drive is never taken for a whole one.

use super::{Access, AreaFile, DriveError, MIB, OpenDrive, file_paths, lock, make_unlike, superblock_in};
use crate::config::DriveRecord;
use crate::config::durable_file::is_no_file;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use weft_engine::buffer::zeros;
use weft_engine::formats::superblock::Superblock;
use weft_engine::interface::Geometry;

/// Creates both files anew; `progress` hears how many bytes of the log have been written.
pub fn make(dir: &Path, record: &DriveRecord, progress: &mut dyn FnMut(u64)) -> Result<(), DriveError> {
    let [log, data] = file_paths(dir, record.id());
    make_data(&data, record.data)?;
    make_log(&log, record.log, progress)?;
    let directory = File::open(dir).map_err(DriveError::io("open", dir))?;
    directory.sync_all().map_err(DriveError::io("flush", dir))
}

/// Takes the file away that did not fit. What it had taken counts as free again.
fn no_room(path: &Path, needed: u64) -> DriveError {
    let _ = std::fs::remove_file(path);
    DriveError::NoRoom { path: path.to_path_buf(), needed, free: free_bytes(path) }
}

fn make_data(path: &Path, len: u64) -> Result<(), DriveError> {
    let file = create(path, 0)?;
    // Else it would take all that others on this file system want to write to, if only for a moment.
    if free_bytes(path) < len {
        drop(file);
        return Err(no_room(path, len));
    }
    // Room is taken now, so that the pool is full when it says so and not when the file system is.
    // SAFETY: a plain call on an open descriptor.
    let error = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) };
    if error != 0 {
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EFBIG) => {
                drop(file);
                return Err(no_room(path, len));
            }
            Some(libc::EOPNOTSUPP) => {
                tracing::warn!(path = %path.display(), "the file system cannot reserve room: the drive is sparse");
                file.set_len(len).map_err(DriveError::io("size", path))?;
            }
            _ => return Err(DriveError::io("reserve room for", path)(error)),
        }
    }
    make_unlike(&file, 0).map_err(DriveError::io("write", path))?;
    file.sync_all().map_err(DriveError::io("flush", path))
}

/// The superblock of a drive in files, if its file is there and has a sound one.
pub fn superblock(dir: &Path, record: &DriveRecord) -> Option<Superblock> {
    let [_, data] = file_paths(dir, record.id());
    if is_no_file(&data) {
        return None;
    }
    superblock_in(&File::open(data).ok()?, 0).ok()?.ok()
}

fn make_log(path: &Path, len: u64, progress: &mut dyn FnMut(u64)) -> Result<(), DriveError> {
    let file = create(path, libc::O_DIRECT)?;
    let chunk = zeros(MIB as usize);
    let mut at = 0;
    while at < len {
        let count = MIB.min(len - at);
        if let Err(error) = file.write_all_at(&chunk.bytes()[..count as usize], at) {
            if error.raw_os_error() == Some(libc::ENOSPC) {
                drop(file);
                return Err(no_room(path, len));
            }
            return Err(DriveError::io("write", path)(error));
        }
        at += count;
        progress(at);
    }
    file.sync_all().map_err(DriveError::io("flush", path))
}

fn create(path: &Path, flags: i32) -> Result<File, DriveError> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) if flags & libc::O_DIRECT != 0 => {
                DriveError::NoDirectIo { path: path.to_path_buf() }
            }
            _ => DriveError::io("create", path)(error),
        })
}

/// What the file system of `path` has left.
fn free_bytes(path: &Path) -> u64 {
    use std::os::unix::ffi::OsStrExt;
    let Some(directory) = path.parent() else { return 0 };
    let Ok(name) = std::ffi::CString::new(directory.as_os_str().as_bytes()) else { return 0 };
    // SAFETY: all zeros is valid for this plain struct, which the call fills in; the name is a C string.
    unsafe {
        let mut statistics: libc::statvfs = std::mem::zeroed();
        if libc::statvfs(name.as_ptr(), &mut statistics) != 0 {
            return 0;
        }
        statistics.f_bavail * statistics.f_frsize
    }
}

/// Opens both files and checks that they are whole.
pub fn open(dir: &Path, record: &DriveRecord, access: Access) -> Result<OpenDrive, DriveError> {
    let [log, data] = file_paths(dir, record.id());
    Ok(OpenDrive {
        drive: record.id(),
        geometry: Geometry { log: record.log, data: record.data },
        log: open_whole(&log, record.log, access)?,
        data: open_whole(&data, record.data, access)?,
        takes_discards: false,
    })
}

fn open_whole(path: &Path, should: u64, access: Access) -> Result<AreaFile, DriveError> {
    if is_no_file(path) {
        return Err(DriveError::NoFile { path: path.to_path_buf() });
    }
    let mut options = OpenOptions::new();
    options.read(true);
    if access == Access::Node {
        options.write(true).custom_flags(libc::O_DIRECT);
    }
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => DriveError::Missing { path: path.to_path_buf() },
        Some(libc::EINVAL) => DriveError::NoDirectIo { path: path.to_path_buf() },
        _ => DriveError::io("open", path)(error),
    })?;
    let has = file.metadata().map_err(DriveError::io("look at", path))?.len();
    if has < should {
        return Err(DriveError::CutShort { path: path.to_path_buf(), has, should });
    }
    if !lock(&file, access).map_err(DriveError::io("lock", path))? {
        return Err(DriveError::InUse { path: path.to_path_buf() });
    }
    Ok(AreaFile { file: Arc::new(file), offset: 0 })
}
