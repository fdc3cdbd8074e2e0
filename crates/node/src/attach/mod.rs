//! A vDisk as a block device of this host: a FUSE file in a private mount, under a loop device with direct I/O.
//! That needs nothing but what every kernel has. A dead node gives I/O errors: the FUSE connection ends with the process.
//! Promises: what was made is taken away again, also after the process was killed (at the next start).
//! Leaves to others: the data (a shard, asked through its mailbox like by any frontend).

mod fuse;
mod loop_device;
mod stale;

pub use stale::clean_up;

use crate::shard_loop::{Disk, Mailbox};
use crate::words::say;
pub use fuse::End;
use fuse::{Mounted, VdiskFile};
use loop_device::LoopDevice;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// So long a node that stops waits for what the users of a device have written by way of the page cache.
const WRITE_BACK_WAIT: Duration = Duration::from_secs(10);

/// Mount points in the node's directory are called this and the vDisk's name.
const MOUNT_PREFIX: &str = "mnt-";

/// Tells the kernel that this process serves block devices of its own host: memory that it asks for must not be waited for until
/// a file system on such a device has written, which would wait for this process. Call it before threads are begun: they
/// are told with it. Without the right to say so attaching is only less safe.
pub fn serves_block_devices() {
    /// `PR_SET_IO_FLUSHER` of `linux/prctl.h`.
    const SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: a plain call, which only sets a flag of the calling thread.
    unsafe { libc::prctl(SET_IO_FLUSHER, 1, 0, 0, 0) };
}

/// Which boot of which machine this is. Names of loop devices mean something within it only.
pub fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim_end().to_string())
}

/// What is to be attached.
pub struct Target {
    pub dir: PathBuf,
    pub name: String,
    pub disk: Disk,
    pub size: u64,
    pub read_only: bool,
    /// The shard that serves it.
    pub shard: Arc<Mailbox>,
}

#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("{device} is in use; unmount what is on it first")]
    InUse { device: PathBuf },
    #[error("cannot {doing}: {source}; attaching needs root, /dev/fuse and /dev/loop-control")]
    Io { doing: String, source: io::Error },
}

fn failed(doing: impl Into<String>) -> impl FnOnce(io::Error) -> AttachError {
    let doing = doing.into();
    move |source| AttachError::Io { doing, source }
}

/// A device that is there as long as this is not ended.
pub struct Attachment {
    device: LoopDevice,
    mount: PathBuf,
    file: Mounted,
    read_only: bool,
}

impl Attachment {
    /// Takes a moment, and reads from the vDisk: never to be called where the shards or the control plane wait for it.
    pub fn make(target: Target) -> Result<Self, AttachError> {
        let mount = target.dir.join(format!("{MOUNT_PREFIX}{}", target.name));
        std::fs::create_dir_all(&mount).map_err(failed(format!("make {}", mount.display())))?;
        let read_only = target.read_only;
        let file = match VdiskFile::mount(target, &mount) {
            Ok(file) => file,
            Err(error) => {
                remove(&mount);
                return Err(failed(format!("mount FUSE at {}", mount.display()))(error));
            }
        };
        match LoopDevice::set_up(&mount.join(fuse::FILE_NAME), read_only) {
            Ok(device) => Ok(Self { device, mount, file, read_only }),
            Err(error) => {
                end_file(file, &mount);
                Err(failed("set up a loop device")(error))
            }
        }
    }

    pub fn device(&self) -> &Path {
        self.device.path()
    }

    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Takes the device away, unless somebody uses it: then it stays as it is.
    pub fn end(self) -> Result<(), Box<(Self, AttachError)>> {
        match self.device.release() {
            Ok(true) => {}
            Ok(false) => {
                let device = self.device.path().to_path_buf();
                return Err(Box::new((self, AttachError::InUse { device })));
            }
            Err(error) => {
                let doing = format!("release {}", self.device.path().display());
                return Err(Box::new((self, failed(doing)(error))));
            }
        }
        end_file(self.file, &self.mount);
        Ok(())
    }

    /// To be kept while the attachment is being taken away, which may take as long as the vDisk does.
    pub fn silencer(&self) -> End {
        self.file.end.clone()
    }

    /// Takes the device away in any case: who still uses it gets I/O errors. What its users have left in the page cache is written
    /// first, for [`WRITE_BACK_WAIT`].
    pub fn end_by_force(self) {
        let (is_over, over) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let this = &self;
            let wait = move || {
                if over.recv_timeout(WRITE_BACK_WAIT) == Err(RecvTimeoutError::Timeout) {
                    this.give_up_writing_back();
                }
            };
            let watchdog = std::thread::Builder::new().name("write-back".to_string());
            if let Err(error) = watchdog.spawn_scoped(scope, wait) {
                tracing::warn!(%error, "nothing limits how long what is in the page cache is written");
            }
            if !matches!(self.device.release(), Ok(true)) {
                let device = self.device.path().display();
                if let Err(error) = self.device.write_back() {
                    tracing::warn!(%device, %error, "what is in the page cache could not be written back");
                }
                say!("weft: {device} is still in use and gets I/O errors from now on");
                self.device.detach_when_unused();
            }
            drop(is_over);
        });
        end_file(self.file, &self.mount);
    }

    fn give_up_writing_back(&self) {
        let (device, seconds) = (self.device.path().display(), WRITE_BACK_WAIT.as_secs());
        say!(
            "weft: what was written to {device} through the page cache is not all on the vDisk after {seconds} s; the rest is lost, \
             as in a power cut"
        );
        self.file.end.set();
        // Also what the vDisk has been asked for already is not waited for.
        stale::abort(&self.mount);
    }
}

fn end_file(file: Mounted, mount: &Path) {
    // Who has opened the device without claiming it keeps it, and the file below, past all this.
    file.end.set();
    // Refused while the loop device still holds the file open, be it for another moment: then it goes lazily.
    if file.session.umount_and_join().is_err() {
        stale::unmount(mount);
    }
    remove(mount);
}

/// Removes an empty mount point.
fn remove(mount: &Path) {
    if let Err(error) = std::fs::remove_dir(mount) {
        tracing::debug!(mount = %mount.display(), %error, "a mount point stays until the next start");
    }
}
