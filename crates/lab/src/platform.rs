//! What a scenario disturbs: a place that can make volumes, serve them, and take a snapshot of all of them at one instant.
//! Promises: volumes are new (what is there already is refused, never overwritten), and gone again when the platform is dropped.
//! Leaves to others: the load on the volumes (`scenario`), and speaking to a node (`NodeControl`, in `crates/weft`).

mod files;
mod node;
mod qcow2;

pub use node::NodeControl;

use crate::error::LabError;
use crate::target::{Durability, NOT_FOR_JOB_FILES, Target, survives_a_job_file};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A kind of platform and where it is.
#[derive(Clone, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlatformKind {
    /// vDisks of a node that runs already. Snapshots are those of a group.
    Weft {
        name: String,
        #[serde(skip)]
        control: Arc<dyn NodeControl>,
    },
    /// qcow2 images served by a `qemu-storage-daemon`; snapshots lie inside of them.
    Qcow2Internal(PathBuf),
    /// qcow2 images likewise; a snapshot is a new image on top of the one before.
    Qcow2Chain(PathBuf),
    /// Files, without snapshots: the control.
    File(PathBuf),
}

/// A platform of a run, and the name it has in tables.
#[derive(Clone, Serialize)]
pub struct PlatformTarget {
    pub label: String,
    pub kind: PlatformKind,
}

/// A volume to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// `data-1`, `log-1`, ...: part of names of files and vDisks.
    pub name: String,
    pub bytes: u64,
    /// Whether each write has to be durable before it is acknowledged: a database's log.
    pub durable: bool,
}

/// Volumes that are served, and their snapshots.
pub(crate) trait Platform {
    /// Where the load goes, in the order in which the volumes were asked for.
    fn targets(&self) -> &[Target];
    /// A snapshot of all volumes of one instant.
    fn snapshot(&mut self, number: u32) -> Result<(), String>;
    /// Takes everything away again.
    fn remove(&mut self) -> Result<(), String>;
}

impl PlatformTarget {
    /// Reads `[LABEL=]KIND:PLACE`. `node` gives what speaks to the node that is meant, for `weft:NAME`.
    pub fn parse(
        text: &str,
        node: &dyn Fn() -> Option<Arc<dyn NodeControl>>,
    ) -> Result<PlatformTarget, LabError> {
        let bad = |why: &'static str| LabError::BadTarget { text: text.to_string(), why };
        let (label, place) = crate::target::split_label(text);
        let (kind, rest) = place.split_once(':').ok_or_else(|| bad(FORMS))?;
        if rest.is_empty() {
            return Err(bad("a name or a directory has to follow the colon"));
        }
        let kind = match kind {
            "weft" => {
                let control = node().ok_or_else(|| bad("no node can be asked"))?;
                PlatformKind::Weft { name: rest.to_string(), control }
            }
            "qcow2-internal" => PlatformKind::Qcow2Internal(rest.into()),
            "qcow2-chain" => PlatformKind::Qcow2Chain(rest.into()),
            "file" => PlatformKind::File(rest.into()),
            _ => return Err(bad(FORMS)),
        };
        // A vDisk's name has none of it, and its addresses are looked at when they are known.
        if let PlatformKind::Qcow2Internal(dir) | PlatformKind::Qcow2Chain(dir) | PlatformKind::File(dir) =
            &kind
            && !std::path::absolute(dir).is_ok_and(|dir| dir.to_str().is_some_and(survives_a_job_file))
        {
            return Err(bad(NOT_FOR_JOB_FILES));
        }
        let default = match &kind {
            PlatformKind::Weft { .. } => place,
            // The directory says nothing in a table.
            _ => place.split(':').next().unwrap_or(place),
        };
        Ok(PlatformTarget { label: label.unwrap_or(default).to_string(), kind })
    }

    /// Where it is, for the report.
    pub fn place(&self) -> String {
        match &self.kind {
            PlatformKind::Weft { name, .. } => format!("weft:{name}"),
            PlatformKind::Qcow2Internal(dir) | PlatformKind::Qcow2Chain(dir) | PlatformKind::File(dir) => {
                dir.display().to_string()
            }
        }
    }

    /// One line on what a snapshot is here.
    pub fn snapshots_explained(&self) -> &'static str {
        match &self.kind {
            PlatformKind::Weft { .. } => "a snapshot of a group of vDisks",
            PlatformKind::Qcow2Internal(_) => "an internal snapshot of every qcow2 image, in one transaction",
            PlatformKind::Qcow2Chain(_) => "a new qcow2 image on top of each, in one transaction",
            PlatformKind::File(_) => "none: the control",
        }
    }

    pub(crate) fn takes_snapshots(&self) -> bool {
        !matches!(self.kind, PlatformKind::File(_))
    }

    /// Whether it needs an fio that speaks NBD.
    pub(crate) fn over_nbd(&self) -> bool {
        self.takes_snapshots()
    }

    /// One line on when a write of the log is acknowledged.
    pub fn durability_explained(&self) -> &'static str {
        match &self.kind {
            PlatformKind::Weft { .. } => "every acknowledged write is durable",
            PlatformKind::File(_) => "log opened with O_DSYNC, data not flushed",
            _ => "log exported write-through, data not flushed",
        }
    }

    /// Where its volumes lie, if they are files.
    pub(crate) fn dir(&self) -> Option<&Path> {
        match &self.kind {
            PlatformKind::Weft { .. } => None,
            PlatformKind::Qcow2Internal(dir) | PlatformKind::Qcow2Chain(dir) | PlatformKind::File(dir) => {
                Some(dir)
            }
        }
    }

    /// Whether others than the process that is watched work for it too.
    pub(crate) fn in_cluster(&self) -> bool {
        match &self.kind {
            PlatformKind::Weft { control, .. } => control.in_cluster(),
            PlatformKind::Qcow2Internal(_) | PlatformKind::Qcow2Chain(_) | PlatformKind::File(_) => false,
        }
    }

    /// Makes the volumes, where there is room for them and for as many bytes more, if it takes snapshots. What is made before something fails is
    /// taken away again.
    pub(crate) fn open(
        &self,
        volumes: &[Volume],
        snapshot_bytes: u64,
    ) -> Result<Box<dyn Platform>, LabError> {
        match &self.kind {
            PlatformKind::Weft { name, control } => {
                Ok(Box::new(node::Vdisks::open(self, name, control.clone(), volumes)?))
            }
            PlatformKind::Qcow2Internal(dir) => {
                Ok(Box::new(qcow2::Images::open(self, dir, qcow2::Way::Internal, volumes, snapshot_bytes)?))
            }
            PlatformKind::Qcow2Chain(dir) => {
                Ok(Box::new(qcow2::Images::open(self, dir, qcow2::Way::Chain, volumes, snapshot_bytes)?))
            }
            PlatformKind::File(dir) => Ok(Box::new(files::Files::open(self, dir, volumes)?)),
        }
    }

    /// A step of bringing it up that failed.
    fn failed(&self, step: &'static str, why: impl ToString) -> LabError {
        LabError::Platform { label: self.label.clone(), step, why: why.to_string() }
    }
}

const FORMS: &str = "it should be weft:NAME, qcow2-internal:DIR, qcow2-chain:DIR or file:DIR";

/// A target at an NBD address.
fn nbd(volume: &Volume, uri: String, server_pid: Option<u32>, in_cluster: bool) -> Target {
    Target {
        label: volume.name.clone(),
        kind: crate::target::Kind::Nbd { uri, server_pid, in_cluster },
        durability: Durability::EveryWrite,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_understood_or_refused() {
        let parse = |text: &str| PlatformTarget::parse(text, &|| None);
        let chain = parse("qcow2-chain:/srv/images").expect("well formed");
        assert_eq!((chain.label.as_str(), chain.place()), ("qcow2-chain", "/srv/images".to_string()));
        assert!(chain.takes_snapshots());
        let raw = parse("raw=file:./here").expect("well formed");
        assert_eq!(raw.label, "raw");
        assert!(!raw.takes_snapshots());
        for (text, part) in [
            ("qcow2:/x", "qcow2-internal:DIR"),
            ("demo", "weft:NAME"),
            ("file:", "has to follow"),
            ("weft:db", "no node"),
            ("nbd://host/x", "weft:NAME"),
            ("file:/srv/x#1", "another name"),
        ] {
            let error = parse(text).err().expect(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
            assert!(!error.contains('\n'), "one line: {error}");
        }
    }
}
