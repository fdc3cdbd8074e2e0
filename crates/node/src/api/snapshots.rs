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
}
