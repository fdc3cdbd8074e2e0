//! The documents of the HTTP API: what the node answers and what a client sends, shared with the command line.
//! Sizes are bytes, times microseconds. What is exported or attached is named `VDISK` or `VDISK@SNAPSHOT`. Every error is an [`ErrorView`] with a status that fits.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `GET /v1/status` | | [`StatusView`] |
//! | `GET /v1/vdisks` | | list of [`VdiskView`] |
//! | `POST /v1/vdisks` | [`CreateVdisk`] | 201 [`VdiskView`] |
//! | `GET /v1/vdisks/NAME` | | [`VdiskView`] |
//! | `DELETE /v1/vdisks/NAME?force=true&with_snapshots=true` | | [`DoneView`] |
//! | `POST /v1/vdisks/NAME/resize` | [`ResizeVdisk`] | [`VdiskView`] |
//! | `POST /v1/vdisks/NAME/set` | [`SetVdisk`] | [`VdiskView`] |
//! | `POST /v1/vdisks/NAME/exports` | [`ExportVdisk`] | 201 [`ExportView`] |
//! | `DELETE /v1/vdisks/NAME/exports?address=A` | | [`DoneView`]; without an address all exports |
//! | `POST /v1/vdisks/NAME/attach` | [`AttachVdisk`] | 201 [`AttachmentView`] |
//! | `DELETE /v1/vdisks/NAME/attach` | | [`DoneView`] |
//! | `POST /v1/vdisks/NAME/warm` | [`WarmVdisk`] | [`WarmView`], after a second at most: go on from where it came to |
//! | `GET /v1/vdisks/NAME/usage` | | [`UsageView`], asked of the owner |
//! | `GET /v1/containers` | | list of [`ContainerView`] |
//! | `POST /v1/containers` | [`CreateContainer`] | 201 [`ContainerView`] |
//! | `GET /v1/containers/NAME` | | [`ContainerView`] |
//! | `POST /v1/containers/NAME/set` | [`SetContainer`] | [`ContainerView`] |
//! | `GET /v1/containers/NAME/usage` | | [`ContainerUsageView`], asked of all owners |
//! | `DELETE /v1/containers/NAME` | | [`DoneView`] |
//! | `GET /v1/cache` | | [`CacheView`] of the node that is asked |
//! | `POST /v1/cache` | [`ResizeCache`] | [`CacheView`] |
//! | `GET /v1/snapshots?vdisk=NAME` | | list of [`SnapshotView`], the oldest first; without a name of all vDisks |
//! | `POST /v1/snapshots` | [`CreateSnapshot`] | 201 [`SnapshotView`], when it can be read |
//! | `GET /v1/snapshots/VDISK@SNAPSHOT` | | [`SnapshotView`] |
//! | `DELETE /v1/snapshots/VDISK@SNAPSHOT` | | [`DoneView`] |
//! | `GET /v1/diff?from=VDISK@SNAPSHOT&to=VDISK[@SNAPSHOT]&offset=N` | | [`DiffView`], from an offset on (0) |
//! | `POST /v1/clones` | [`CreateClones`] | 201 list of [`VdiskView`], when they are served |
//! | `POST /v1/rollbacks` | [`RollBack`] | [`VdiskView`], when it is what the snapshot is |
//! | `GET /v1/schedules` | | list of [`ScheduleView`] |
//! | `POST /v1/schedules` | [`SetSchedule`] | [`ScheduleView`] |
//! | `DELETE /v1/schedules/VDISK` | | [`DoneView`] |
//! | `GET /v1/consistency` | | list of [`ConsistencyView`] |
//! | `POST /v1/consistency` | [`CreateConsistency`] | 201 [`ConsistencyView`] |
//! | `POST /v1/consistency/GROUP` | [`ChangeConsistency`] | [`ConsistencyView`] |
//! | `DELETE /v1/consistency/GROUP` | | [`DoneView`] |
//! | `POST /v1/consistency/GROUP/snapshots` | [`GroupSnapshot`] | 201 list of [`SnapshotView`] |
//! | `GET /v1/stats` | | [`StatsView`] |
//! | `GET /v1/vdisk_stats` | | [`VdiskFiguresListView`] of the node that is asked |
//! | `GET /v1/vdisk_stats/NAME` | | [`VdiskFiguresView`], or 421 [`MisdirectedView`] if another node serves it |
//! | `GET /v1/latency` | | [`LatencyView`] of the node that is asked |
//! | `POST /v1/latency/reset` | | [`DoneView`]; `since_reset` begins again |
//! | `POST /v1/shutdown` | | [`DoneView`]; the node stops cleanly after it |
//! | `GET /v1/cluster` | | [`ClusterView`]; this and what follows on members of a cluster, 409 elsewhere |
//! | `POST /v1/cluster` | [`SetCluster`] | [`DoneView`] |
//! | `GET /v1/nodes` | | list of [`NodeView`] |
//! | `POST /v1/nodes/NODE/drain` | [`Drain`] | [`NodeView`] |
//! | `DELETE /v1/nodes/NODE?force=true` | | [`DoneView`] |
//! | `GET /v1/drives` | | list of [`ClusterDriveView`] |
//! | `POST /v1/drives` | [`AddDrives`] | 201 list of [`ClusterDriveView`] |
//! | `POST /v1/drives/DRIVE/drain` | [`Drain`] | [`ClusterDriveView`] |
//! | `DELETE /v1/drives/DRIVE?lost=true` | | [`DoneView`] |
//! | `GET /v1/groups` | | list of [`GroupPlaceView`] |
//! | `POST /v1/vdisks/NAME/move` | [`MoveVdisk`] | [`VdiskView`] |
//! | `GET /healthz` | | 200 `ok`: the process lives |
//! | `GET /readyz` | | 200 `ok`: the node serves; or 503 and why not. What else is wrong is in [`StatusView::trouble`] |
//! | `GET /`, `/latency`, `/cache_stats`, `/vdisk_stats`, `/vdisk_stats/NAME` | | pages for people |
//! | `POST /latency/reset` | | the same as with `/v1`, and 303 to the page |
//! | `GET /metrics` | | Prometheus text |

mod cluster;
mod containers;
mod figures;
mod snapshots;

pub use cluster::{
    AddDrives, ClusterDriveView, ClusterView, Drain, GroupPlaceView, MoveVdisk, NodeView, RepairView,
    ReportView, SetCluster, WholeView,
};
pub use containers::{
    ContainerUsageView, ContainerView, CopiesView, CreateContainer, OwnUsageView, SetContainer, UsageView,
};
pub use figures::{
    DestinationView, ElsewhereView, HistogramView, LatencyView, MinuteView, MisdirectedView, PatternView,
    SourceView, StageView, TimesView, TouchedView, VdiskFiguresListView, VdiskFiguresView, WorkingSetView,
};
pub use snapshots::{
    ChangeConsistency, ConsistencyView, CreateClones, CreateConsistency, CreateSnapshot, DiffView,
    GroupSnapshot, HoldVdisks, RangeView, RollBack, ScheduleView, SetSchedule, SnapshotView, TakeSnapshots,
};

use serde::{Deserialize, Serialize};

/// In the node's directory while it runs: where its API is, such as `127.0.0.1:7070`.
pub const API_FILE: &str = "api";

/// Beside it: which run of the node has that address. One that was killed leaves both behind.
pub const RUN_FILE: &str = "api.run";

/// The header that says which run is meant, if the asker knows. Another one answers [`OTHER_RUN`], and does nothing.
pub const RUN_HEADER: &str = "weft-run";

pub const OTHER_RUN: u16 = 412;

/// Why a request was refused: one line that says what, why and what to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ErrorView {
    pub error: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DoneView {
    pub done: bool,
    /// A remark for people; may be empty.
    #[serde(default)]
    pub note: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StatusView {
    pub version: String,
    pub pid: u32,
    pub dir: String,
    /// `starting`, `ready`, `without lease` (a member that serves nothing until etcd gives it a new one) or `stopping`.
    pub state: String,
    pub uptime_us: u64,
    pub shards: u32,
    /// Copies that a new vDisk gets when it does not ask for a number.
    pub factor: u32,
    pub drives: Vec<DriveStatusView>,
    pub vdisks: usize,
    /// Lines about what is not as it should be; empty when all is well.
    pub trouble: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DriveStatusView {
    pub drive: u32,
    pub shard: u32,
    /// The device, or the files without their ending.
    pub place: String,
    /// `up`, `slow`, `hangs` (it has not answered for seconds), `opening`, `down` or `lost`.
    pub state: String,
    /// Why it is down, slow or hangs; empty otherwise.
    pub reason: String,
    pub log_bytes: u64,
    pub data_bytes: u64,
    /// What new data could still take; none while nobody knows.
    #[serde(default)]
    pub free_bytes: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VdiskView {
    pub name: String,
    pub family: u32,
    pub size: u64,
    /// Copies of everything that there shall be; whether there are tells its usage.
    pub factor: u32,
    /// Who says so: `vdisk` or `container`.
    #[serde(default)]
    pub factor_from: String,
    pub epoch: u32,
    /// Seconds since 1970.
    pub created: u64,
    /// `opening`, `ready`, `failed` or `deleting`.
    pub state: String,
    /// Why it is not ready; empty otherwise.
    pub trouble: String,
    /// The container that it is in.
    #[serde(default)]
    pub container: String,
    /// `off`, `lz4` or `zstd:LEVEL`, and bytes packed together.
    #[serde(default)]
    pub compression: String,
    #[serde(default)]
    pub compression_unit: u32,
    /// When it is packed once more; not there: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold: Option<ColdWord>,
    /// Who says so: `vdisk` or `container`.
    #[serde(default)]
    pub compression_from: String,
    /// What lies on a drive already is not written there again; and who says so.
    #[serde(default)]
    pub dedup: bool,
    #[serde(default)]
    pub dedup_from: String,
    /// Requests, and bytes read and written, that its clients may ask for in a second; not there: as much as there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops_limit: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bw_limit: Option<u64>,
    /// Who says so: `vdisk` or `container`.
    #[serde(default)]
    pub iops_limit_from: String,
    #[serde(default)]
    pub bw_limit_from: String,
    pub exports: Vec<ExportView>,
    pub attached: Option<AttachmentView>,
    /// How many it has.
    #[serde(default)]
    pub snapshots: u64,
    /// In a cluster: the node and the shard that it was given to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_node: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_shard: Option<u32>,
    /// In a cluster: somebody serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<bool>,
    /// A remark about the request that gave this answer; empty otherwise.
    #[serde(default)]
    pub note: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExportView {
    /// `unix:PATH` or `tcp:HOST:PORT`.
    pub address: String,
    pub read_only: bool,
    /// What NBD clients are given.
    pub uri: String,
    /// In a cluster: the node that listens there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// Why nobody listens there now; empty otherwise.
    #[serde(default)]
    pub trouble: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AttachmentView {
    /// Such as `/dev/loop3`; empty: known to the node only that has it.
    pub device: String,
    pub read_only: bool,
    /// In a cluster: the node that has the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// In the answer to attaching: which boot of which machine gave it this name, as in `/proc/sys/kernel/random/boot_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
}

/// A number, or `inherit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a whole number or \"inherit\"")]
pub enum LimitWord {
    Number(u64),
    Word(InheritWord),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InheritWord {
    Inherit,
}

impl LimitWord {
    /// None: what the container says.
    pub fn number(self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(number),
            Self::Word(InheritWord::Inherit) => None,
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateVdisk {
    pub name: String,
    pub size: u64,
    #[serde(default)]
    pub factor: Option<u32>,
    /// The container that it is put into; `default` without it.
    #[serde(default)]
    pub container: Option<String>,
    /// `off`, `lz4`, `zstd` or `zstd:LEVEL`; without it, or with `inherit`, what the container says.
    #[serde(default)]
    pub compression: Option<String>,
    /// Bytes packed together: 4, 8, 16 or 32 KiB.
    #[serde(default)]
    pub compression_unit: Option<u64>,
    #[serde(default)]
    pub cold: Option<ColdWord>,
    #[serde(default)]
    pub dedup: Option<DedupWord>,
    /// Requests in a second, and bytes read and written in a second; 0 for no limit, `inherit` for what the container says.
    #[serde(default)]
    pub iops_limit: Option<LimitWord>,
    #[serde(default)]
    pub bw_limit: Option<LimitWord>,
}

/// Whether what lies on a drive already is written there again, or `inherit`: what the container says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DedupWord {
    On,
    Off,
    Inherit,
}

impl DedupWord {
    /// None: what the container says.
    pub fn own(self) -> Option<bool> {
        match self {
            Self::On => Some(true),
            Self::Off => Some(false),
            Self::Inherit => None,
        }
    }
}

/// After how many seconds in which no drive was asked for it data is packed once more, and with which level of zstd (9 without
/// it); 0 seconds: never.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColdWord {
    pub after_s: u64,
    #[serde(default)]
    pub level: Option<u8>,
}

/// What is not said stays. Limits count at once; data that was written before is packed again in the background.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetVdisk {
    /// Its policy is that of this container from now on, where it has none of its own.
    #[serde(default)]
    pub container: Option<String>,
    /// Copies of everything: 1, 2, 3, or `inherit` for what the container says.
    #[serde(default)]
    pub factor: Option<LimitWord>,
    /// `inherit`: what the container says.
    #[serde(default)]
    pub compression: Option<String>,
    #[serde(default)]
    pub compression_unit: Option<u64>,
    #[serde(default)]
    pub cold: Option<ColdWord>,
    #[serde(default)]
    pub dedup: Option<DedupWord>,
    /// Requests in a second, and bytes read and written in a second; 0 for no limit, `inherit` for what the container says.
    #[serde(default)]
    pub iops_limit: Option<LimitWord>,
    #[serde(default)]
    pub bw_limit: Option<LimitWord>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeVdisk {
    pub size: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportVdisk {
    pub address: String,
    #[serde(default)]
    pub read_only: bool,
    /// Under which clients find it; None: the vDisk's or snapshot's.
    #[serde(default)]
    pub name: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachVdisk {
    #[serde(default)]
    pub read_only: bool,
}

/// Has the vDisk's map brought into memory, from this offset on.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmVdisk {
    #[serde(default)]
    pub from: u64,
    /// Its data too, as far as there is room.
    #[serde(default)]
    pub data: bool,
}

/// What is in memory from the offset asked for up to `to`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WarmView {
    pub to: u64,
    /// Of the vDisk: there it is done.
    pub size: u64,
    /// Pages of the map.
    pub pages: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// There is no room for more data.
    pub full: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeCache {
    /// For all shards of the node together; 0 for none. Until the node is started again.
    pub bytes: u64,
}

/// The read caches of a node's shards together. Hits and misses are blocks since the node was started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheView {
    /// What they may take, and what they do take.
    pub bytes: u64,
    pub used_bytes: u64,
    pub hits: u64,
    pub misses: u64,
    /// Pages of the maps.
    pub page_hits: u64,
    pub page_misses: u64,
    /// Blocks read ahead of sequential streams, those of them that were read, and those dropped before they were.
    pub ahead_issued: u64,
    pub ahead_used: u64,
    pub ahead_wasted: u64,
    /// Maps of the drives' egroups: in memory whole, so a miss is an egroup that is not there (any more).
    #[serde(default)]
    pub egroup_map_hits: u64,
    #[serde(default)]
    pub egroup_map_misses: u64,
    #[serde(default)]
    pub shared: SharedView,
    #[serde(default)]
    pub minute: MinuteView,
}

/// What the drives of a node share, all together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedView {
    /// Frames of which the hashes are known, of at most how many, and the memory that takes.
    pub entries: u64,
    pub entries_max: u64,
    pub memory_bytes: u64,
    /// Since the start: what was hashed because it may be there already, and what of it was.
    pub bytes_hashed: u64,
    pub bytes_found: u64,
    /// What lies on the drives would take so much more without.
    pub saved_bytes: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StatsView {
    pub uptime_us: u64,
    pub drives: Vec<DriveStatsView>,
    /// In a cluster those that the node serves, on a node that is alone all.
    pub vdisks: Vec<VdiskStatsView>,
    /// The others.
    #[serde(default)]
    pub elsewhere: Vec<ElsewhereView>,
    pub shards: Vec<ShardStatsView>,
    /// Shards that did not answer in time: their drives and vDisks are missing here.
    #[serde(default)]
    pub silent_shards: Vec<u32>,
    pub damage: DamageView,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DriveStatsView {
    pub drive: u32,
    pub state: String,
    /// Bytes of the data area that new egroups could take, and those that are taken. Both are 0 while it is not up: nobody knows.
    pub free_bytes: u64,
    pub used_bytes: u64,
    pub log_bytes: u64,
    pub log_used_bytes: u64,
    /// What its egroups would take more if each had all of its own; what is there only because egroups refer to it.
    #[serde(default)]
    pub shared_saved_bytes: u64,
    #[serde(default)]
    pub shared_held_bytes: u64,
    /// Frames of which the hashes are known, of at most how many, and the memory that takes.
    #[serde(default)]
    pub shared_entries: u64,
    #[serde(default)]
    pub shared_entries_max: u64,
    #[serde(default)]
    pub shared_memory_bytes: u64,
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub faults: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct VdiskStatsView {
    pub name: String,
    pub family: u32,
    pub reads: u64,
    pub read_bytes: u64,
    pub read_us_total: u64,
    pub read_us_max: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub write_us_total: u64,
    pub write_us_max: u64,
    pub zeroes: u64,
    pub flushes: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
    /// What the engine counts about this vDisk, by name (see docs/operating.md).
    #[serde(default)]
    pub engine: std::collections::BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ShardStatsView {
    pub shard: u32,
    /// Turns of the loop, and system calls to the ring.
    pub turns: u64,
    pub enters: u64,
    /// Times the thread went to sleep.
    pub sleeps: u64,
    /// Inputs given to the engine.
    pub steps: u64,
    pub connections: u64,
    /// What it says to shards of other nodes.
    #[serde(default)]
    pub peers: PeerStatsView,
    /// What the engine counts about this shard, by name (see docs/operating.md).
    #[serde(default)]
    pub engine: std::collections::BTreeMap<String, u64>,
}

/// The connections of a shard to shards of other nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatsView {
    /// Connections there are now.
    pub links: u64,
    /// Connections that this shard began to make, those of them that took the place of one that had worked, and
    /// connections of others that it took.
    pub dials: u64,
    pub reconnects: u64,
    pub accepted: u64,
    /// Shards of other nodes that answer now, and those that are taken for lost.
    pub answering: u64,
    pub lost: u64,
    /// Messages that could not be sent. They are asked again.
    pub dropped: u64,
    /// By lane: `log`, `bulk` and `client`.
    pub lanes: std::collections::BTreeMap<String, LaneStatsView>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneStatsView {
    pub messages_sent: u64,
    pub bytes_sent: u64,
    pub messages_received: u64,
    pub bytes_received: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DamageView {
    pub log: u64,
    #[serde(default)]
    pub tables: u64,
    pub copies_bad: u64,
    /// Of those that were bad. Copies that are made because drives come and go are no damage, and not in here.
    pub copies_repaired: u64,
    /// Made without what no drive could give of them.
    #[serde(default)]
    pub copies_partial: u64,
    /// Writes that were damaged in every log that had them.
    #[serde(default)]
    pub writes_lost: u64,
    pub blocks_lost: u64,
    /// The newest lines about damage, oldest first.
    pub recent: Vec<String>,
}

/// Whether a drive that is told to be in this state answers: also one that is slow.
pub fn is_drive_up(state: &str) -> bool {
    matches!(state, "up" | "slow")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_none_is_told_in_words() {
        let refused = serde_json::from_str::<SetVdisk>("{\"iops_limit\":-4}").expect_err("it is no limit");
        assert!(refused.to_string().starts_with("expected a whole number or \"inherit\""), "{refused}");
    }
}
