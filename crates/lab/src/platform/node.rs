//! vDisks of a Weft node that runs already, with snapshots of them as a group.

use super::{Platform, PlatformTarget, Volume, nbd};
use crate::error::LabError;
use crate::target::Target;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the lab asks of a node. The words of a refusal are the node's.
pub trait NodeControl: Send + Sync {
    /// A new vDisk, served at this socket; its NBD address.
    fn create(&self, vdisk: &str, bytes: u64, socket: &Path) -> Result<String, String>;
    /// A new group of vDisks.
    fn group(&self, group: &str, vdisks: &[String]) -> Result<(), String>;
    /// A snapshot of every vDisk of the group, of one instant.
    fn snapshot(&self, group: &str, name: &str) -> Result<(), String>;
    fn remove_group(&self, group: &str) -> Result<(), String>;
    /// The vDisk with all its snapshots.
    fn remove(&self, vdisk: &str) -> Result<(), String>;
    /// The node's process, if it is one of this machine.
    fn pid(&self) -> Option<u32>;
    /// Whether it is one of a cluster: others work for what it serves.
    fn in_cluster(&self) -> bool;
}

pub struct Vdisks {
    control: Arc<dyn NodeControl>,
    name: String,
    made: Vec<String>,
    grouped: bool,
    targets: Vec<Target>,
    sockets: PathBuf,
}

impl Vdisks {
    pub fn open(
        platform: &PlatformTarget,
        name: &str,
        control: Arc<dyn NodeControl>,
        volumes: &[Volume],
    ) -> Result<Vdisks, LabError> {
        let sockets =
            super::qcow2::short_directory().map_err(|why| platform.failed("making sockets", why))?;
        let (pid, in_cluster) = (control.pid(), control.in_cluster());
        let mut vdisks = Vdisks {
            control,
            name: name.to_string(),
            made: Vec::new(),
            grouped: false,
            targets: Vec::new(),
            sockets,
        };
        for volume in volumes {
            let vdisk = format!("{name}-{}", volume.name);
            let socket = vdisks.sockets.join(&volume.name);
            let uri = vdisks
                .control
                .create(&vdisk, volume.bytes, &socket)
                .map_err(|why| platform.failed("making the vDisks", why))?;
            vdisks.made.push(vdisk);
            vdisks.targets.push(nbd(volume, uri, pid, in_cluster));
        }
        vdisks
            .control
            .group(name, &vdisks.made)
            .map_err(|why| platform.failed("making a group of the vDisks", why))?;
        vdisks.grouped = true;
        Ok(vdisks)
    }
}

impl Platform for Vdisks {
    fn targets(&self) -> &[Target] {
        &self.targets
    }

    fn snapshot(&mut self, number: u32) -> Result<(), String> {
        self.control.snapshot(&self.name, &format!("lab-{number}"))
    }

    fn remove(&mut self) -> Result<(), String> {
        let mut outcome = Ok(());
        if std::mem::take(&mut self.grouped) {
            outcome = outcome.and(self.control.remove_group(&self.name));
        }
        // All are tried, whatever becomes of the first.
        for vdisk in self.made.drain(..) {
            outcome = outcome.and(self.control.remove(&vdisk));
        }
        let _ = std::fs::remove_dir_all(&self.sockets);
        outcome
    }
}

impl Drop for Vdisks {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}
