//! The files of drives, as the ring knows them: by numbers of its own where it has some left.
//! Promises: a file stays open, and its number its own, until nothing that names it is in flight; then the number is given to others.
//! Leaves to others: what is in flight (`drive_io`), opening files (`drives`).

use super::ring::{FILES_MAX, Ring};
use io_uring::types;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// A file that operations name. Each of them keeps it.
pub struct DriveFile {
    file: Arc<File>,
    number: Option<u32>,
}

/// As entries of the ring name it.
pub enum Named {
    Number(types::Fixed),
    File(types::Fd),
}

impl DriveFile {
    pub fn named(&self) -> Named {
        match self.number {
            Some(number) => Named::Number(types::Fixed(number)),
            None => Named::File(types::Fd(self.file.as_raw_fd())),
        }
    }
}

pub struct Files {
    /// Numbers that no file has.
    free: Vec<u32>,
    /// Files that nobody names any more when what is in flight has ended.
    leaving: Vec<Arc<DriveFile>>,
}

impl Files {
    pub fn new() -> Self {
        Self { free: (0..FILES_MAX).rev().collect(), leaving: Vec::new() }
    }

    pub fn add(&mut self, file: Arc<File>, ring: &Ring) -> Arc<DriveFile> {
        let number = self.free.pop_if(|number| ring.register_file(*number, file.as_raw_fd()));
        Arc::new(DriveFile { file, number })
    }

    /// From now on only what is in flight names it.
    pub fn remove(&mut self, file: Arc<DriveFile>) {
        self.leaving.push(file);
    }

    /// Something has ended: files that nobody names any more go.
    pub fn release(&mut self, ring: &Ring) {
        let Self { free, leaving } = self;
        leaving.retain(|file| {
            let is_named = Arc::strong_count(file) > 1;
            if !is_named
                && let Some(number) = file.number
                && ring.forget_file(number)
            {
                free.push(number);
            }
            is_named
        });
    }
}
