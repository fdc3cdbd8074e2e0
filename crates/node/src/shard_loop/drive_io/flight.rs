//! One operation of a drive: how the kernel is asked, and what it says.
//! Promises: short transfers go on where they ended; what the entry of an operation points to is in it, on the heap.
//! Leaves to others: when it goes to the drive, and what follows (`drive_io`).

use super::Turn;
use crate::shard_loop::arena::Space;
use crate::shard_loop::files::{DriveFile, Named};
use io_uring::{opcode, squeue, types};
use std::sync::Arc;
use weft_engine::buffer::{BLOCK, Buffer};
use weft_engine::interface::DriveFault;
use weft_engine::stages::Stage;
use weft_engine::{DriveId, Time};

/// Pieces handed to the kernel in one call at most (IOV_MAX).
const PIECES_MAX: usize = 1024;

/// `BLOCK_URING_CMD_DISCARD`, `_IO(0x12, 0)`.
const DISCARD_COMMAND: u32 = 0x1200;

/// Where an area's bytes are.
#[derive(Clone)]
pub(super) struct Target {
    pub file: Arc<DriveFile>,
    pub base: u64,
}

pub(super) struct Flight {
    /// None: it was asked only to see how long it takes.
    pub token: Option<u64>,
    pub drive: DriveId,
    pub stage: Stage,
    pub began: Time,
    /// When the kernel got it, or last did a part of it.
    pub since: Time,
    /// The drive has nothing of it, because others have their turn.
    pub waits: bool,
    /// As what the kernel got it last.
    pub turn: Turn,
    pub target: Target,
    pub work: Work,
}

pub(super) enum Work {
    Read { space: Space, offset: u64, len: u32, done: u32 },
    Write { pieces: Vec<Buffer>, rest: Vec<libc::iovec>, first: usize, offset: u64, flags: i32 },
    Flush,
    Discard { offset: u64, len: u64, way: Way },
}

/// How the kernel is asked to discard.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Since Linux 6.12 ...
    Command,
    /// ... and before: zeros, which devices that can unmap blocks need not write.
    Hole,
    /// In vain.
    Refused,
}

// SAFETY: the pointers in `rest` point into `pieces`, which travel with them.
unsafe impl Send for Work {}

impl Flight {
    pub fn new(
        now: Time,
        token: Option<u64>,
        drive: DriveId,
        stage: Stage,
        target: Target,
        work: Work,
    ) -> Self {
        Self { token, drive, stage, began: now, since: now, waits: false, turn: Turn::Alone, target, work }
    }
}

impl Work {
    /// As many as are moved to the drive or from it.
    pub fn bytes(&self) -> u64 {
        match self {
            Work::Read { len, .. } => u64::from(*len),
            Work::Write { pieces, .. } => pieces.iter().map(|piece| piece.len() as u64).sum(),
            Work::Flush | Work::Discard { .. } => 0,
        }
    }

    /// A block of zeros: nobody is told before all of them are written and flushed, so it may take its time.
    pub fn erases(&self) -> bool {
        let Work::Write { pieces, .. } = self else { return false };
        matches!(pieces.as_slice(), [block] if block.len() == ZEROS.len() && *block.bytes() == ZEROS)
    }
}

/// As a page of a table is erased.
static ZEROS: [u8; BLOCK] = [0; BLOCK];

/// Pieces as the kernel wants them; neighbours in memory become one, of `longest` bytes at most.
pub(super) fn vectors(pieces: &[Buffer], longest: usize) -> Vec<libc::iovec> {
    let mut vectors: Vec<libc::iovec> = Vec::with_capacity(pieces.len());
    for part in pieces.iter().flat_map(|piece| piece.bytes().chunks(longest)) {
        let (base, len) = (part.as_ptr(), part.len());
        match vectors.last_mut() {
            Some(last)
                if last.iov_base.cast_const().wrapping_byte_add(last.iov_len) == base.cast()
                    && last.iov_len <= longest - len =>
            {
                last.iov_len += len;
            }
            _ => vectors.push(libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len }),
        }
    }
    vectors
}

/// How many of these are handed over in one call: `bytes` in all, or one.
pub(super) fn vectors_in(left: &[libc::iovec], bytes: usize) -> usize {
    let mut sum = 0_usize;
    let fits = |vector: &&libc::iovec| {
        sum = sum.saturating_add(vector.iov_len);
        sum <= bytes
    };
    left.iter().take(PIECES_MAX).take_while(fits).count().max(1)
}

pub(super) enum Progress {
    GoOn,
    /// Not now: later.
    Again,
    Ended(Result<(), DriveFault>),
}

impl Flight {
    /// The entry for what is left to do; of a write, so many bytes at most.
    pub fn entry(&mut self, write_max: usize) -> squeue::Entry {
        macro_rules! with_file {
            ($file:ident => $build:expr) => {
                match self.target.file.named() {
                    Named::Number($file) => $build,
                    Named::File($file) => $build,
                }
            };
        }
        match &mut self.work {
            Work::Read { space, offset, len, done } => {
                let registered = space.registered();
                let bytes = &mut space.bytes_mut()[*done as usize..*len as usize];
                let (start, count, at) = (bytes.as_mut_ptr(), *len - *done, *offset + u64::from(*done));
                match registered {
                    Some(number) => with_file!(file =>
                        opcode::ReadFixed::new(file, start, count, number).offset(at).build()),
                    None => with_file!(file => opcode::Read::new(file, start, count).offset(at).build()),
                }
            }
            Work::Write { pieces, rest, first, offset, flags } => {
                let left = &rest[*first..];
                let is_one = pieces.len() == 1 && rest.len() == 1;
                let registered = if is_one { pieces[0].registered() } else { None };
                match registered {
                    Some(number) => {
                        let (start, count) = (left[0].iov_base as *const u8, left[0].iov_len as u32);
                        with_file!(file => opcode::WriteFixed::new(file, start, count, number)
                            .offset(*offset).rw_flags(*flags).build())
                    }
                    None => {
                        let count = vectors_in(left, write_max) as u32;
                        with_file!(file => opcode::Writev::new(file, left.as_ptr(), count)
                            .offset(*offset).rw_flags(*flags).build())
                    }
                }
            }
            Work::Flush => {
                with_file!(file => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build())
            }
            Work::Discard { offset, len, way: Way::Command } => {
                let mut command = [0; 16];
                command[..8].copy_from_slice(&len.to_ne_bytes());
                // Devices that know no requests without waiting (of the device mapper, for one) would refuse it, and what has to
                // be asked again is read from the ring a second time by some kernels, when something else may be there.
                with_file!(file => opcode::UringCmd16::new(file, DISCARD_COMMAND)
                    .addr(Some(*offset)).cmd(command).build().flags(squeue::Flags::ASYNC))
            }
            Work::Discard { offset, len, way: _ } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                with_file!(file => opcode::Fallocate::new(file, *len).offset(*offset).mode(mode).build())
            }
        }
    }

    pub fn advance(&mut self, result: i32) -> Progress {
        if result == -libc::EINTR || result == -libc::EAGAIN {
            return Progress::GoOn;
        }
        // That memory is short says nothing of the drive. A flush that failed cannot be repeated: what it did not write may be
        // taken for written by then.
        let is_repeatable = matches!(self.work, Work::Read { .. } | Work::Write { .. });
        if is_repeatable && (result == -libc::ENOMEM || result == -libc::ENOBUFS) {
            return Progress::Again;
        }
        match &mut self.work {
            Work::Read { len, done, .. } => match result {
                // The file is shorter than it was: the drive has lost its end.
                0 => Progress::Ended(Err(DriveFault::Unreadable)),
                count if count > 0 => {
                    *done += count as u32;
                    assert!(*done <= *len, "no more is read than was asked for");
                    if *done == *len { Progress::Ended(Ok(())) } else { Progress::GoOn }
                }
                error => Progress::Ended(Err(fault(-error))),
            },
            Work::Write { rest, first, offset, .. } => match result {
                0 => Progress::Ended(Err(DriveFault::Gone)),
                count if count > 0 => {
                    let mut count = count as usize;
                    *offset += count as u64;
                    while *first < rest.len() && count >= rest[*first].iov_len {
                        count -= rest[*first].iov_len;
                        *first += 1;
                    }
                    if *first == rest.len() {
                        assert!(count == 0, "no more is written than was asked for");
                        return Progress::Ended(Ok(()));
                    }
                    rest[*first].iov_base = rest[*first].iov_base.wrapping_byte_add(count);
                    rest[*first].iov_len -= count;
                    Progress::GoOn
                }
                // A drive that cannot be written is no use any more, whatever the reason; a file system under
                // file-backed drives that has run full counts as that too.
                error => {
                    tracing::error!(drive = self.drive.0, error = -error, "a drive refuses to be written");
                    Progress::Ended(Err(DriveFault::Gone))
                }
            },
            Work::Flush if result < 0 => {
                tracing::error!(drive = self.drive.0, error = -result, "a drive refuses to flush");
                Progress::Ended(Err(DriveFault::Gone))
            }
            Work::Discard { way, .. } if result < 0 && *way == Way::Command => {
                *way = Way::Hole;
                Progress::GoOn
            }
            Work::Discard { way, .. } if result < 0 => {
                *way = Way::Refused;
                let error = -result;
                tracing::warn!(
                    drive = self.drive.0,
                    error,
                    "a drive refuses discards: it is told of no more free space"
                );
                Progress::Ended(Ok(()))
            }
            Work::Flush | Work::Discard { .. } => Progress::Ended(Ok(())),
        }
    }
}

/// What a read that failed says of its drive.
fn fault(error: i32) -> DriveFault {
    match error {
        libc::EIO | libc::EILSEQ | libc::ENODATA | libc::EREMOTEIO | libc::EBADMSG | libc::EUCLEAN => {
            DriveFault::Unreadable
        }
        // The drive took too long over this sector, or a way to it was in use or cut: the next read may be well.
        libc::ETIMEDOUT | libc::ETIME | libc::EBUSY | libc::ENOLINK => DriveFault::Unreadable,
        _ => DriveFault::Gone,
    }
}
