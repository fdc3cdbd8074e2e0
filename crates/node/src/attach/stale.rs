//! What a killed node left on this host: loop devices and mounts whose file system is gone.

use super::MOUNT_PREFIX;
use super::loop_device::LoopDevice;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Takes away all of it that belongs to the node in `dir`. Gives lines about what was found.
pub fn clean_up(dir: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let prefix = dir.join(MOUNT_PREFIX);
    let prefix = prefix.as_os_str().as_bytes();
    for device in LoopDevice::existing() {
        if device.file().is_some_and(|file| file.as_os_str().as_bytes().starts_with(prefix)) {
            device.detach_when_unused();
            lines.push(format!("released {}, left by a node that was killed", device.path().display()));
        }
    }
    for mount in mounts() {
        if mount.as_os_str().as_bytes().starts_with(prefix) {
            unmount(&mount);
            lines.push(format!("unmounted {}, left by a node that was killed", mount.display()));
        }
    }
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_name().as_bytes().starts_with(MOUNT_PREFIX.as_bytes()) {
            // Only an empty directory goes; anything else is not ours.
            let _ = std::fs::remove_dir(entry.path());
        }
    }
    lines
}

/// Unmounts at once for those who come, and for those who are there when they go.
pub(super) fn unmount(mount: &Path) {
    unmount_with(mount, libc::MNT_DETACH);
}

/// Whoever waits for the file below gets an error now, and so does who asks for it later.
pub(super) fn abort(mount: &Path) {
    // Refused as long as somebody has the file open; what was asked of FUSE has ended by then all the same.
    unmount_with(mount, libc::MNT_FORCE);
}

fn unmount_with(mount: &Path, flags: libc::c_int) {
    let Ok(name) = CString::new(mount.as_os_str().as_bytes()) else { return };
    // SAFETY: a plain call with a C string.
    if unsafe { libc::umount2(name.as_ptr(), flags) } != 0 {
        let error = std::io::Error::last_os_error();
        tracing::debug!(mount = %mount.display(), %error, "not unmounted");
    }
}

/// All mount points; the kernel writes blanks in them as octal numbers.
fn mounts() -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(|place| PathBuf::from(place.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")))
        .collect()
}
