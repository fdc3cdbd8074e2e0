//! Loop devices, by the kernel's own calls (`linux/loop.h`).
//! Promises: a device that somebody else has set free meanwhile, and perhaps set up with a file of their own, is left alone.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// `_IO(0x12, 97)` of linux/fs.h: the file system on the device is synced, and the device's own cache written back.
const BLKFLSBUF: libc::c_ulong = 0x1261;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CLR_FD: libc::c_ulong = 0x4C01;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Another process may take the free device between our two calls; then the next one is tried.
const ATTEMPTS: usize = 64;

/// `struct loop_info64`.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct Configuration {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Info>() == 232 && size_of::<Configuration>() == 304, "as in linux/loop.h");

pub struct LoopDevice {
    path: PathBuf,
    /// The file behind it, as the kernel names it; None: it does not say.
    file: Option<PathBuf>,
}

impl LoopDevice {
    /// A device with the content of `file`, around the page cache.
    pub fn set_up(file: &Path, read_only: bool) -> io::Result<Self> {
        let backing =
            OpenOptions::new().read(true).write(!read_only).custom_flags(libc::O_DIRECT).open(file)?;
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        let mut last = io::Error::other("no loop device is free");
        for _ in 0..ATTEMPTS {
            // SAFETY: a call without an argument on an open descriptor.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new().read(true).write(!read_only).open(&path)?;
            match configure(&device, &backing, file, read_only) {
                Ok(()) => {
                    let file = file_behind(&path);
                    return Ok(Self { path, file });
                }
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Whether it is still what was set up. (Asked of the kernel's own tree: an answer of the device may come from the file.)
    fn is_there(&self) -> bool {
        self.file.is_none() || file_behind(&self.path) == self.file
    }

    /// Takes the file away from the device, unless somebody has done that. False: somebody uses the device.
    pub fn release(&self) -> io::Result<bool> {
        if !self.is_there() {
            tracing::warn!(device = %self.path.display(), "somebody else has taken the file away from a loop device");
            return Ok(true);
        }
        // O_EXCL: refused while a file system or anybody else who claims it has the device.
        let exclusive = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&self.path);
        let device = match exclusive {
            Ok(device) => device,
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Ok(false),
            Err(error) => return Err(error),
        };
        // Our clients' caches of the device are written back before it goes.
        let synced = in_a_process("sync", &[self.path.as_os_str()]);
        synced.unwrap_or_else(|| device.sync_all())?;
        clear(&device)?;
        Ok(true)
    }

    /// Writes back what a file system on the device keeps in memory, and what others have left in its cache, although it is in use.
    pub fn write_back(&self) -> io::Result<()> {
        if !self.is_there() {
            return Ok(());
        }
        let flush = ["--flushbufs".as_ref(), self.path.as_os_str()];
        if let Some(flushed) = in_a_process("blockdev", &flush) {
            return flushed;
        }
        let device = File::open(&self.path)?;
        // SAFETY: a call without an argument on an open descriptor.
        let result = unsafe { libc::ioctl(device.as_raw_fd(), BLKFLSBUF, 0) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The kernel takes the file away when the last user has gone.
    pub fn detach_when_unused(&self) {
        if !self.is_there() {
            return;
        }
        let result = File::open(&self.path).and_then(|device| clear(&device));
        if let Err(error) = result {
            tracing::warn!(device = %self.path.display(), %error, "a loop device stays");
        }
    }

    /// Devices that have a file, whoever has set them up.
    pub fn existing() -> impl Iterator<Item = Self> {
        let entries = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let path = Path::new("/dev").join(entry.file_name());
            let file = Some(file_behind(&path)?);
            Some(Self { path, file })
        })
    }
}

/// The file behind a loop device. None: it has none, or is none.
fn file_behind(device: &Path) -> Option<PathBuf> {
    let told = Path::new("/sys/block").join(device.file_name()?).join("loop/backing_file");
    let file = std::fs::read_to_string(told).ok()?;
    Some(PathBuf::from(file.trim_end_matches('\n')))
}

/// Runs a program of the system that waits for this process to carry out what it writes. A thread here that waits for that in the kernel
/// keeps the process, and with it the file system below the device, from ending: whoever is killed meanwhile hangs for ever, and all
/// users of the device with it. None: there is no such program.
fn in_a_process(program: &str, arguments: &[&OsStr]) -> Option<io::Result<()>> {
    let output = match Command::new(program).args(arguments).stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(Err(error)),
    };
    if output.status.success() {
        return Some(Ok(()));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Some(Err(io::Error::other(format!("{program}: {}", said.trim()))))
}

fn configure(device: &File, backing: &File, name: &Path, read_only: bool) -> io::Result<()> {
    // SAFETY: both structures are plain numbers, for which all zeros is valid.
    let mut configuration: Configuration = unsafe { std::mem::zeroed() };
    configuration.fd = backing.as_raw_fd() as u32;
    configuration.info.flags = LO_FLAGS_DIRECT_IO | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
    let name = name.as_os_str().as_encoded_bytes();
    let shown = name.len().min(configuration.info.file_name.len() - 1);
    configuration.info.file_name[..shown].copy_from_slice(&name[..shown]);
    // SAFETY: the call reads one structure of the kernel's layout (sizes are asserted above).
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const configuration) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn clear(device: &File) -> io::Result<()> {
    // SAFETY: a call without an argument on an open descriptor.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
