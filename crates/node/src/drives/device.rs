//! Drives that are block devices: the log lies first, the data behind it.
//! Promises: a device that holds something, or that somebody uses, is not written; one that holds another drive than the one
//! it should hold is not opened.

use super::{
    Access, AreaFile, DRIVE_BYTES_MIN, DriveError, MIB, OpenDrive, divide, logs_up_to, make_unlike,
    patiently, superblock_in,
};
use crate::config::DriveRecord;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use weft_engine::buffer::{BLOCK, Pages, is_zero};
use weft_engine::formats::superblock::{COPIES, Superblock, SuperblockFault};
use weft_engine::interface::Geometry;

/// `_IO(0x12, 104)`: bytes of a logical sector.
const BLKSSZGET: libc::c_ulong = 0x1268;

/// `_IOR(0x12, 114, size_t)`: bytes of the device.
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;

/// Checks that a device can become a drive, and gives its size in bytes.
pub fn examine(path: &Path, force: bool) -> Result<u64, DriveError> {
    let file = open_free_device(path, Access::Node).map_err(|error| match error {
        // Nothing was lost: there was no drive there.
        DriveError::Missing { path } => DriveError::NoSuchDevice { path },
        error => error,
    })?;
    let bytes = size(&file, path)?;
    if bytes < DRIVE_BYTES_MIN {
        return Err(DriveError::TooSmall {
            place: path.display().to_string(),
            has: bytes,
            least: DRIVE_BYTES_MIN,
        });
    }
    if !force {
        // First, because nothing else may lie there: a drive of copies alone has an empty log, and its end is used last.
        let log = divide(bytes).map_or(0, |geometry| geometry.log);
        let refuse_drive = |found: Result<Superblock, SuperblockFault>| {
            let number = match found {
                Ok(superblock) => superblock.drive.to_string(),
                Err(SuperblockFault::OtherVersion(_)) => "of another version".to_string(),
                Err(SuperblockFault::NotSound) => return Ok(()),
            };
            Err(DriveError::IsDrive { path: path.to_path_buf(), number })
        };
        refuse_drive(superblock_in(&file, log).map_err(DriveError::io("read", path))?)?;
        // Up to the very end: what a RAID or a partition table keeps there need not begin at a whole MiB.
        let end = (bytes - MIB) / BLOCK as u64 * BLOCK as u64;
        for (from, to, what) in [
            (0, MIB, "its first MiB is not empty: a file system or a partition table, perhaps"),
            (end, bytes, "its last MiB is not empty: a RAID or partition table, perhaps"),
        ] {
            let mut pages = Pages::zeroed((to - from).next_multiple_of(BLOCK as u64) as usize);
            let wanted = &mut pages.bytes_mut()[..(to - from) as usize];
            file.read_exact_at(wanted, from).map_err(DriveError::io("read", path))?;
            if !is_zero(wanted) {
                return Err(DriveError::NotEmpty { path: path.to_path_buf(), what });
            }
        }
        // The log of a small drive ends earlier if the device had another size when it was made.
        for log in logs_up_to(bytes) {
            superblock_in(&file, log).map_or(Ok(()), refuse_drive)?;
        }
    }
    Ok(bytes)
}

/// Prepares a device for its first format. What lay at both of its ends, by which others would know what it held, is gone then.
pub fn make(path: &Path) -> Result<(), DriveError> {
    let file = open_free_device(path, Access::Node)?;
    let bytes = size(&file, path)?;
    let geometry = divide(bytes).ok_or_else(|| DriveError::NoDevice { path: path.to_path_buf() })?;
    let mut nothing = Pages::zeroed(MIB as usize);
    let mut write = || {
        // Both are whole sectors of the device.
        for offset in [0, bytes - MIB] {
            file.write_all_at(nothing.bytes_mut(), offset)?;
        }
        make_unlike(&file, geometry.log)?;
        file.sync_data()
    };
    write().map_err(DriveError::io("write", path))
}

/// How long a device may take to say what it holds. One that hangs is left to the shard, which can wait without the others.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// The superblock of a device with a log of so many bytes. None if there is none, or it cannot be read in time.
pub fn superblock(path: &Path, log: u64) -> Option<Superblock> {
    look(path, move |file, _| superblock_in(file, log).ok()?.ok())
}

/// The superblock of a device, whatever drive it is: its log has the size that one of this size has.
pub fn any_superblock(path: &Path) -> Option<Superblock> {
    look(path, |file, path| superblock_in(file, divide(size(file, path).ok()?)?.log).ok()?.ok())
}

/// Whether nothing lies at the beginning of the log, nor of the table of egroups behind the superblocks: both are filled from
/// there on.
pub fn is_unused(path: &Path, log: u64) -> bool {
    let is_unused = look(path, move |file, _| {
        let mut pages = Pages::zeroed(MIB as usize);
        for offset in [0, log + (COPIES * BLOCK) as u64] {
            file.read_exact_at(pages.bytes_mut(), offset).ok()?;
            if !is_zero(pages.bytes_mut()) {
                return Some(false);
            }
        }
        Some(true)
    });
    is_unused == Some(true)
}

/// What is found on a device that is only looked at. None also if that took too long; then it goes on by itself.
fn look<T: Send + 'static>(
    path: &Path,
    look: impl FnOnce(&File, &Path) -> Option<T> + Send + 'static,
) -> Option<T> {
    let path = path.to_path_buf();
    let (told, answer) = channel();
    let looked = move || {
        let file = options(&path, Access::ReadOnly).ok()?.custom_flags(libc::O_DIRECT).open(&path).ok()?;
        look(&file, &path)
    };
    std::thread::Builder::new().name("device".to_string()).spawn(move || told.send(looked())).ok()?;
    answer.recv_timeout(ANSWER_WAIT).ok()?
}

/// Opens a device that was made a drive earlier.
pub fn open(path: &Path, record: &DriveRecord, access: Access) -> Result<OpenDrive, DriveError> {
    let file = open_device(path, access)?;
    let (has, should) = (size(&file, path)?, record.log + record.data);
    if has < should {
        return Err(DriveError::CutShort { path: path.to_path_buf(), has, should });
    }
    let takes_discards = takes_discards(&file);
    let file = Arc::new(file);
    Ok(OpenDrive {
        drive: record.id(),
        geometry: Geometry { log: record.log, data: record.data },
        log: AreaFile { file: Arc::clone(&file), offset: 0 },
        data: AreaFile { file, offset: record.log },
        takes_discards,
    })
}

/// Whether the device can forget what is not needed: others would be told in vain.
fn takes_discards(file: &File) -> bool {
    let Ok(number) = file.metadata().map(|metadata| metadata.rdev()) else { return false };
    let device = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
    has_discards(Path::new(&device))
}

/// As the kernel says in this directory of the device.
fn has_discards(device: &Path) -> bool {
    // A partition has no queue of its own.
    let queues = [device.join("queue"), device.join("../queue")];
    let told = queues.iter().find_map(|queue| std::fs::read_to_string(queue.join("discard_max_bytes")).ok());
    told.is_some_and(|bytes| bytes.trim().parse().is_ok_and(|bytes: u64| bytes > 0))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_say_whether_they_take_discards() {
        let place = std::env::temp_dir().join(format!("weft-discards-{}", std::process::id()));
        let says = |device: &str, bytes: &str| {
            std::fs::create_dir_all(place.join(device).join("queue")).expect("a directory can be made");
            std::fs::write(place.join(device).join("queue/discard_max_bytes"), bytes).expect("writable");
            std::fs::create_dir_all(place.join(device).join("part")).expect("a directory can be made");
        };
        says("ssd", "1073741824\n");
        says("disk", "0\n");
        std::fs::create_dir_all(place.join("other")).expect("a directory can be made");
        let told = ["ssd", "ssd/part", "disk", "disk/part", "other"].map(|it| has_discards(&place.join(it)));
        std::fs::remove_dir_all(&place).expect("it was made here");
        assert_eq!(told, [true, true, false, false, false]);
    }
}
