//! The file system with one file, whose bytes are a vDisk.
//! Promises: each request of the kernel is answered exactly once, also when the shard is gone (EIO); after the end
//! none is carried out that was not before, also if the kernel keeps the file open for somebody.

use super::Target;
use crate::shard_loop::{Answer, Disk, Mail, Mailbox};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, ReplyXattr, SessionACL, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};
use weft_engine::buffer::Buffer;
use weft_engine::interface::{Reply, Request, RequestError};

/// The file's name in the mount.
pub const FILE_NAME: &str = "disk";

const FILE: INodeNo = INodeNo(2);

/// Attributes never change while mounted.
const TTL: Duration = Duration::from_secs(3600);

/// Threads that take requests from the kernel; they only pass them on.
const THREADS: usize = 2;

/// The largest request the kernel sends at once.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// Requests the kernel has open at once.
const REQUESTS_MAX: u16 = 256;

pub struct VdiskFile {
    disk: Disk,
    size: u64,
    read_only: bool,
    shard: Arc<Mailbox>,
    /// Set when it is not to be used any more.
    has_ended: Arc<AtomicBool>,
}

/// The file in its place.
pub struct Mounted {
    pub session: BackgroundSession,
    pub end: End,
}

/// Ends the use of a file from wherever it is known, also while another thread waits for what it has asked for.
#[derive(Clone)]
pub struct End(Arc<AtomicBool>);

impl End {
    /// Nothing more is read from the vDisk or written to it, which somebody else may use by now: whoever has the file open still gets
    /// I/O errors from now on.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl VdiskFile {
    /// Mounts at `mount`; the file is there until the session is dropped or unmounted.
    pub fn mount(target: Target, mount: &Path) -> io::Result<Mounted> {
        let Target { name, disk, size, read_only, shard, .. } = target;
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(format!("weft-{name}")),
            MountOption::Subtype("weft".to_string()),
            MountOption::NoAtime,
        ];
        config.acl = SessionACL::Owner;
        config.n_threads = Some(THREADS);
        config.clone_fd = true;
        let has_ended = Arc::new(AtomicBool::new(false));
        let file = Self { disk, size, read_only, shard, has_ended: Arc::clone(&has_ended) };
        Ok(Mounted { session: fuser::spawn_mount(file, mount, &config)?, end: End(has_ended) })
    }

    fn ask(&self, request: Request, deliver: impl FnOnce(Reply) + Send + 'static) {
        if self.has_ended.load(Ordering::SeqCst) {
            return deliver(Reply::Error(RequestError::NotServed));
        }
        // What waits for an owner when it ends is not carried out either.
        let answer = Answer::until(Arc::clone(&self.has_ended), deliver);
        self.shard.send(Mail::Request { family: self.disk.family, request, answer });
    }

    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let is_file = inode == FILE;
        FileAttr {
            ino: inode,
            size: if is_file { self.size } else { 0 },
            blocks: if is_file { self.size / 512 } else { 0 },
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: match (is_file, self.read_only) {
                (false, _) => 0o700,
                (true, true) => 0o400,
                (true, false) => 0o600,
            },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

/// What the kernel hears instead of a reply's data.
fn errno(error: RequestError) -> Errno {
    match error {
        RequestError::OutOfRange => Errno::EINVAL,
        RequestError::NoSpace => Errno::ENOSPC,
        RequestError::NotServed
        | RequestError::Damaged { .. }
        | RequestError::Fenced
        | RequestError::NoSnapshot
        | RequestError::Busy => Errno::EIO,
    }
}

/// For requests whose success carries nothing.
fn give(reply: ReplyEmpty) -> impl FnOnce(Reply) + Send {
    move |answer| match answer {
        Reply::Error(error) => reply.error(errno(error)),
        _ => reply.ok(),
    }
}

impl Filesystem for VdiskFile {
    fn init(&mut self, _request: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        // Each of these gives the nearest value the kernel allows if it does not like ours, and that is fine too.
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(REQUESTS_MAX);
        let _ = config.set_congestion_threshold(REQUESTS_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == FILE_NAME {
            reply.entry(&TTL, &self.attributes(FILE), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(
        &self,
        _request: &fuser::Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        if inode == INodeNo::ROOT || inode == FILE {
            reply.attr(&TTL, &self.attributes(inode));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn open(&self, _request: &fuser::Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        if inode == FILE {
            // No page cache between the loop device and us, and writes at different places at once.
            let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
            reply.opened(FileHandle(0), flags);
        } else {
            reply.error(Errno::EISDIR);
        }
    }

    fn read(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = u64::from(size).min(self.size.saturating_sub(offset)) as u32;
        if len == 0 {
            reply.data(&[]);
            return;
        }
        let request = match self.disk.snapshot {
            None => Request::Read { offset, len },
            Some(snapshot) => Request::ReadSnapshot { snapshot, offset, len },
        };
        self.ask(request, move |answer| match answer {
            Reply::Data(pieces) if pieces.len() == 1 => reply.data(pieces[0].bytes()),
            Reply::Data(pieces) => {
                let mut whole = Vec::with_capacity(len as usize);
                pieces.iter().for_each(|piece| whole.extend_from_slice(piece.bytes()));
                reply.data(&whole);
            }
            Reply::Error(error) => reply.error(errno(error)),
            Reply::Done | Reply::Extents(_) | Reply::Warmed(_) => reply.error(Errno::EIO),
        });
    }

    fn write(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.read_only {
            reply.error(Errno::EROFS);
            return;
        }
        let len = data.len() as u32;
        if len == 0 {
            reply.written(0);
            return;
        }
        self.ask(Request::Write { offset, data: Buffer::copied(data) }, move |answer| match answer {
            Reply::Error(error) => reply.error(errno(error)),
            _ => reply.written(len),
        });
    }

    fn fsync(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.ask(Request::Flush, give(reply));
    }

    fn flush(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // A close of the file: every answered write is durable already.
        reply.ok();
    }

    fn fallocate(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let zeroes = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if self.read_only {
            reply.error(Errno::EROFS);
        } else if mode & zeroes != 0 {
            let len = length.min(self.size.saturating_sub(offset));
            if len == 0 {
                reply.ok();
            } else {
                self.ask(Request::Zero { offset, len }, give(reply));
            }
        } else if mode & !libc::FALLOC_FL_KEEP_SIZE == 0 && offset.saturating_add(length) <= self.size {
            // Room inside is promised by nothing but the pool: as on any thin disk.
            reply.ok();
        } else {
            reply.error(Errno::EOPNOTSUPP);
        }
    }

    fn getxattr(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _name: &OsStr,
        _size: u32,
        reply: ReplyXattr,
    ) {
        // The kernel asks no more after this answer.
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _request: &fuser::Request, _inode: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn access(
        &self,
        _request: &fuser::Request,
        _inode: INodeNo,
        _mask: fuser::AccessFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
