//! The ring of a shard: one system call hands in all that is to be done and takes out all that is done.
//! Promises: entries are pushed in order and never lost; falls back to a plain ring on kernels without the newer flags.
//! Leaves to others: what the entries mean, and that memory they point to lives until they end.

use io_uring::{EnterFlags, IoUring, cqueue, squeue, types};
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Entries handed in by one call at most; more are handed in by several.
const ENTRIES: u32 = 1024;

/// Completions that wait to be taken; what is more waits in the kernel.
const COMPLETIONS: u32 = 8192;

/// Files that can be registered: two for each drive.
pub const FILES_MAX: u32 = 128;

pub struct Ring {
    inner: IoUring,
    /// System calls made, for the statistics.
    pub enters: u64,
    files_registered: bool,
}

impl Ring {
    /// To be called on the thread that uses it: newer kernels then save work.
    pub fn new() -> io::Result<Self> {
        let newest = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_coop_taskrun()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(ENTRIES);
        let inner = match newest {
            Ok(ring) => ring,
            Err(_) => IoUring::builder().setup_cqsize(COMPLETIONS).build(ENTRIES)?,
        };
        let files_registered = inner.submitter().register_files_sparse(FILES_MAX).is_ok();
        Ok(Self { inner, enters: 0, files_registered })
    }

    /// Makes the kernel know this memory as number 0. False if it does not want to.
    ///
    /// # Safety
    /// The memory stays mapped as long as the ring lives.
    pub unsafe fn register_memory(&self, span: libc::iovec) -> bool {
        // SAFETY: the caller keeps the memory.
        unsafe { self.inner.submitter().register_buffers(&[span]) }.is_ok()
    }

    /// Makes the kernel know this file as number `index`. False: use the file itself.
    pub fn register_file(&self, index: u32, file: RawFd) -> bool {
        self.files_registered
            && index < FILES_MAX
            && self.inner.submitter().register_files_update(index, &[file]).is_ok()
    }

    /// Makes the kernel forget file number `index`, which no entry names any more. False if it does not want to.
    pub fn forget_file(&self, index: u32) -> bool {
        self.inner.submitter().register_files_update(index, &[-1]).is_ok()
    }

    /// Queues an entry; it is handed in by the next [`Ring::enter`].
    ///
    /// # Safety
    /// All memory and files that the entry names stay until its completion has been taken.
    pub unsafe fn push(&mut self, entry: squeue::Entry) {
        loop {
            // SAFETY: the caller keeps what the entry names.
            if unsafe { self.inner.submission().push(&entry) }.is_ok() {
                return;
            }
            self.enters += 1;
            // EBUSY and EINTR pass; the queue is emptied in the end.
            if let Err(error) = self.inner.submit() {
                assert!(is_passing(&error), "the ring takes entries: {error}");
            }
        }
    }

    /// Hands in what is queued; then waits for a completion if `wait` is given, at most so long.
    pub fn enter(&mut self, wait: Option<Duration>) {
        self.enters += 1;
        let result = match wait {
            // What has ended is only told to whoever enters for it: a loop that is always due would never hear of it.
            None if self.inner.submission().taskrun() => self.reap(),
            None => self.inner.submit(),
            Some(Duration::MAX) => self.inner.submit_and_wait(1),
            Some(longest) => {
                let time = types::Timespec::from(longest);
                self.inner.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&time))
            }
        };
        if let Err(error) = result {
            assert!(is_passing(&error), "the ring can be entered: {error}");
        }
    }

    /// Hands in what is queued, and takes what has ended, without waiting.
    fn reap(&mut self) -> io::Result<usize> {
        let queued = self.inner.submission().len() as u32;
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: no signal mask is given; what is queued was vouched for when it was pushed.
        unsafe { self.inner.submitter().enter::<libc::sigset_t>(queued, 0, flags, None) }
    }

    /// Whether anything is queued to be handed in.
    pub fn has_queued(&mut self) -> bool {
        !self.inner.submission().is_empty()
    }

    /// Whether completions can be taken, perhaps after one more call of [`Ring::enter`].
    pub fn has_news(&mut self) -> bool {
        self.inner.submission().taskrun() || !self.inner.completion().is_empty()
    }

    /// Takes all completions: what was asked for (`user_data`) and what came of it (a count, or minus the error).
    pub fn completions(&mut self, into: &mut Vec<(u64, i32)>) {
        into.extend(self.inner.completion().map(|entry: cqueue::Entry| (entry.user_data(), entry.result())));
    }
}

/// Errors of a call that mean "not now": nothing is lost, the next call goes on.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN))
}
