//! One node for each directory: a lock that ends with the process, however it ends.

use super::durable_file::is_no_file;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A killed process keeps its locks until the kernel has taken it apart.
const DYING_WAIT: Duration = Duration::from_secs(2);
const DYING_LOOK: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another process uses {dir}; stop that node first (weft down), or choose another directory")]
    Taken { dir: PathBuf },
    #[error("cannot lock {path}: {source}; check the directory and its permissions")]
    Io { path: PathBuf, source: io::Error },
}

/// Held as long as it lives.
pub struct DirectoryLock {
    file: File,
}

impl DirectoryLock {
    /// A lock that somebody keeps is an error; one whose holder is just dying is waited for.
    pub fn take(dir: &Path) -> Result<Self, LockError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        Self::take_file(dir, &options, libc::LOCK_EX)
    }

    /// For somebody who changes nothing, also where nothing can be changed: keeps nodes out, and not others who only look. None: no
    /// node has ever run there, as in a copy without the file.
    pub fn look(dir: &Path) -> Result<Option<Self>, LockError> {
        match Self::take_file(dir, OpenOptions::new().read(true), libc::LOCK_SH) {
            Err(LockError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            taken => taken.map(Some),
        }
    }

    fn take_file(dir: &Path, options: &OpenOptions, kind: libc::c_int) -> Result<Self, LockError> {
        let path = dir.join("lock");
        let failed = |source| LockError::Io { path: path.clone(), source };
        if is_no_file(&path) {
            return Err(failed(io::Error::other("it is no file; move it away")));
        }
        let file = options.open(&path).map_err(failed)?;
        let patience = Instant::now() + DYING_WAIT;
        loop {
            // SAFETY: a plain call on an open descriptor.
            if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } == 0 {
                break;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EWOULDBLOCK) if Instant::now() < patience => std::thread::sleep(DYING_LOOK),
                Some(libc::EWOULDBLOCK) => return Err(LockError::Taken { dir: dir.to_path_buf() }),
                _ => return Err(failed(error)),
            }
        }
        Ok(Self { file })
    }

    /// Tells this directory from copies of it, until the machine is started anew: a process that runs elsewhere at the same
    /// time has another place.
    pub fn place(&self) -> String {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let (device, inode) =
            self.file.metadata().map_or((0, 0), |metadata| (metadata.dev(), metadata.ino()));
        format!("{}:{device}:{inode}", boot.trim())
    }
}
