//! The documents about snapshots and their schedules.

use super::{AttachmentView, ExportView};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SnapshotView {
    /// `VDISK@SNAPSHOT`, by which it is asked for.
    pub name: String,
    pub vdisk: String,
    pub snapshot: String,
    /// Never used again; hexadecimal.
    pub id: String,
    /// `creating`, `ready` or `deleting`.
    pub state: String,
    /// Why it could not be taken; empty otherwise.
    #[serde(default)]
    pub trouble: String,
    /// Grows with every snapshot of the vDisk; None: it is not taken yet.
    pub generation: Option<u32>,
    /// Bytes that the vDisk had.
    pub size: u64,
    /// Seconds since 1970.
    pub created: u64,
    /// `asked`, `schedule`, or `group` and its name.
    pub origin: String,
    pub exports: Vec<ExportView>,
    pub attached: Option<AttachmentView>,
}

/// A vDisk becomes again what a snapshot of it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollBack {
    /// `VDISK@SNAPSHOT`.
    pub snapshot: String,
    /// Newer snapshots are removed.
    #[serde(default)]
    pub discard_newer: bool,
    /// Also while it is exported.
    #[serde(default)]
    pub force: bool,
}

/// vDisks that begin as a snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateClones {
    /// `VDISK@SNAPSHOT`.
    pub snapshot: String,
    pub names: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    pub vdisk: String,
    /// None: the time, such as `20260131-120000`.
    #[serde(default)]
    pub name: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetSchedule {
    pub vdisk: String,
    pub every_seconds: u64,
    /// So many of its own snapshots stay, the newest.
    pub keep: u32,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ScheduleView {
    pub vdisk: String,
    pub every_seconds: u64,
    pub keep: u32,
    /// Its own that there are.
    pub snapshots: u64,
    /// Seconds since 1970: when the next one is due.
    pub next: u64,
    /// Why the last one could not be taken; empty: it was, or none was due yet.
    #[serde(default)]
    pub trouble: String,
}

/// What may have changed between a snapshot and another one, or the present.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DiffView {
    pub from: String,
    pub to: String,
    /// Bytes of the larger of the two.
    pub size: u64,
    /// In order, apart from each other. What lies in none of them is the same in both.
    pub ranges: Vec<RangeView>,
    /// If there is more: ask again from this offset on.
    pub next: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeView {
    pub offset: u64,
    pub len: u64,
}

/// vDisks whose snapshots are taken together.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ConsistencyView {
    pub name: String,
    pub vdisks: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateConsistency {
    pub name: String,
    #[serde(default)]
    pub vdisks: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeConsistency {
    #[serde(default)]
    pub add: Vec<String>,
    #[serde(default)]
    pub remove: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSnapshot {
    /// None: the time.
    #[serde(default)]
    pub name: Option<String>,
}

/// What the node that takes a group's snapshots asks of those that serve its vDisks (`POST /v1/internal/hold`).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct HoldVdisks {
    /// Drawn at random by who takes the snapshots: others may hold the same vDisks, and each ends its own holds only.
    pub holder: u64,
    pub families: Vec<u32>,
    /// The config store up to this revision is to be known first; 0: nothing.
    pub revision: u64,
    /// The holds end.
    pub release: bool,
}

/// ... and then (`POST /v1/internal/take`).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TakeSnapshots {
    /// Family and number of each snapshot.
    pub snapshots: Vec<(u32, u64)>,
}
