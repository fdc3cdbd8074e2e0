//! One node for each directory: a lock that ends with the process, however it ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another process uses {dir}; stop that node first (weft down), or choose another directory")]
    Taken { dir: PathBuf },
    #[error("cannot lock {path}: {source}; check the directory and its permissions")]
    Io { path: PathBuf, source: io::Error },
}

/// Held as long as it lives.
pub struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    /// Never waits: a lock that somebody has is an error.
    pub fn take(dir: &Path) -> Result<Self, LockError> {
        let path = dir.join("lock");
        let failed = |source| LockError::Io { path: path.clone(), source };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        // SAFETY: a plain call on an open descriptor.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EWOULDBLOCK) => LockError::Taken { dir: dir.to_path_buf() },
                _ => failed(error),
            });
        }
        Ok(Self { _file: file })
    }
}
