//! Drives that are block devices: the log lies first, the data behind it.
//! Promises: a device that holds something, or that somebody uses, is not written.

use super::{Access, AreaFile, DRIVE_BYTES_MIN, DriveError, MIB, OpenDrive, patiently};
use crate::config::DriveRecord;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use weft_engine::buffer::is_zero;
use weft_engine::interface::Geometry;

/// `_IO(0x12, 104)`: bytes of a logical sector.
const BLKSSZGET: libc::c_ulong = 0x1268;

/// `_IOR(0x12, 114, size_t)`: bytes of the device.
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;

/// Checks that a device can become a drive, and gives its size in bytes.
pub fn examine(path: &Path, force: bool) -> Result<u64, DriveError> {
    let file = open_free_device(path, Access::Node)?;
    let bytes = size(&file, path)?;
    if bytes < DRIVE_BYTES_MIN {
        return Err(DriveError::TooSmall {
            place: path.display().to_string(),
            has: bytes,
            least: DRIVE_BYTES_MIN,
        });
    }
    if !force {
        for (offset, what) in [
            (0, "its first MiB is not empty: a file system or a partition table, perhaps"),
            (bytes / MIB * MIB - MIB, "its last MiB is not empty: a RAID or partition table, perhaps"),
        ] {
            let mut pages = weft_engine::buffer::Pages::zeroed(MIB as usize);
            file.read_exact_at(pages.bytes_mut(), offset).map_err(DriveError::io("read", path))?;
            if !is_zero(pages.bytes_mut()) {
                return Err(DriveError::NotEmpty { path: path.to_path_buf(), what });
            }
        }
    }
    Ok(bytes)
}

/// Opens a device that was made a drive earlier.
pub fn open(path: &Path, record: &DriveRecord, access: Access) -> Result<OpenDrive, DriveError> {
    let file = open_device(path, access)?;
    let (has, should) = (size(&file, path)?, record.log + record.data);
    if has < should {
        return Err(DriveError::CutShort { path: path.to_path_buf(), has, should });
    }
    let file = Arc::new(file);
    Ok(OpenDrive {
        drive: record.id(),
        geometry: Geometry { log: record.log, data: record.data },
        log: AreaFile { file: Arc::clone(&file), offset: 0 },
        data: AreaFile { file, offset: record.log },
        takes_discards: true,
    })
}

/// A device that should be ours: the node that had it may only just have been killed.
fn open_device(path: &Path, access: Access) -> Result<File, DriveError> {
    let options = options(path, access)?;
    opened(path, patiently(|| try_open(&options, path)))
}

/// One that nobody should have: who has it keeps it.
fn open_free_device(path: &Path, access: Access) -> Result<File, DriveError> {
    opened(path, try_open(&options(path, access)?, path))
}

/// None: somebody has it.
fn try_open(options: &OpenOptions, path: &Path) -> std::io::Result<Option<File>> {
    match options.open(path) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(None),
        opened => opened.map(Some),
    }
}

fn opened(path: &Path, file: std::io::Result<Option<File>>) -> Result<File, DriveError> {
    file.map_err(DriveError::io("open", path))?.ok_or_else(|| DriveError::InUse { path: path.to_path_buf() })
}

/// How a device is opened, if it is one.
fn options(path: &Path, access: Access) -> Result<OpenOptions, DriveError> {
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => DriveError::Missing { path: path.to_path_buf() },
        _ => DriveError::io("look at", path)(error),
    })?;
    if !metadata.file_type().is_block_device() {
        return Err(DriveError::NoDevice { path: path.to_path_buf() });
    }
    let mut options = OpenOptions::new();
    options.read(true);
    if access == Access::Node {
        // O_EXCL on a block device: the kernel refuses if a file system, a RAID or another of us has it.
        options.write(true).custom_flags(libc::O_DIRECT | libc::O_EXCL);
    }
    Ok(options)
}

fn size(file: &File, path: &Path) -> Result<u64, DriveError> {
    let (mut bytes, mut sector) = (0u64, 0i32);
    // SAFETY: both calls write one number of the size given into a live variable.
    let results = unsafe {
        [
            libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes),
            libc::ioctl(file.as_raw_fd(), BLKSSZGET, &raw mut sector),
        ]
    };
    if results != [0, 0] {
        return Err(DriveError::io("ask the size of", path)(std::io::Error::last_os_error()));
    }
    if sector > 4096 {
        return Err(DriveError::LargeSectors { path: path.to_path_buf(), sector: sector as u64 });
    }
    Ok(bytes)
}
