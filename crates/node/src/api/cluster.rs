//! The documents about a cluster, which any of its nodes answers. A node that stands alone answers these requests with
//! 409 and a line.
//! A field that is missing reads as empty: a command line and a node may be of different versions.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// How the cluster is, as the node that was asked sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterView {
    pub name: String,
    pub id: u64,
    /// The revision of the config store that this was made from.
    pub revision: u64,
    /// The node that decides where things are; None: nobody does at this moment.
    pub controller: Option<u32>,
    /// The node that answers.
    pub this_node: u32,
    /// `ok`; `degraded`: something is away or being repaired, nothing is out of reach; `danger`: something is out of
    /// reach, or the next failure would lose data.
    pub health: String,
    /// Lines about what is not as it should be; empty when all is well.
    pub lines: Vec<String>,
    pub nodes_alive: u32,
    pub nodes: u32,
    pub drives_up: u32,
    pub drives: u32,
    pub vdisks: u32,
    /// Of these, those that somebody serves now.
    pub vdisks_served: u32,
    pub groups: u32,
    /// All members up, and all copies on them.
    pub groups_whole: u32,
    /// Former members are still needed: copies are on their way.
    pub groups_moving: u32,
    /// A member is down or lost.
    pub groups_thin: u32,
    /// Of the data areas of all drives that are up.
    pub capacity_bytes: u64,
    /// Of these, what is taken, all copies together.
    pub used_bytes: u64,
    /// A node, or a drive, that is away for longer is not waited for: its copies are made again on others.
    pub away_seconds: u64,
    /// The sizes of all vDisks, as clients see them.
    pub vdisk_bytes: u64,
    /// None: there is nothing to repair or move.
    pub repair: Option<RepairView>,
    /// vDisks that do not have as many copies as they should yet, a line for each: a factor was changed.
    pub copying: Vec<String>,
    /// What would happen if a node failed now: a line for each, the worst first, such as `if node 2 (db-2) fails now:
    /// 3 vDisks move, every block keeps a copy; room to copy everything again: yes`.
    pub failures: Vec<String>,
}

/// Copying under way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RepairView {
    pub groups_left: u32,
    /// Groups that this repair began with.
    pub groups_total: u32,
    /// None: not known yet.
    pub seconds_left: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeView {
    pub node: u32,
    pub name: String,
    pub api: String,
    /// Where its shards are reached by others, in the order of their indexes.
    pub transport: Vec<String>,
    /// Empty: not told.
    pub zone: String,
    pub rack: String,
    pub storage_only: bool,
    /// `in`, `draining` or `removed`.
    pub state: String,
    /// Its lease in the config store lasts.
    pub alive: bool,
    /// The node that answers has connections to it.
    pub reachable_from_here: bool,
    pub shards: u32,
    pub drives: u32,
    pub drives_up: u32,
    pub vdisks_served: u32,
    /// Counts its starts; 0: it was never started.
    pub incarnation: u64,
    pub is_controller: bool,
    /// It is being drained, serves nothing, and no group needs its drives any more: it can be removed.
    pub drained: bool,
}

/// Empties a node or a drive, or takes that back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    #[serde(default)]
    pub undo: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterDriveView {
    pub drive: u32,
    pub node: u32,
    /// The index of the shard in its node.
    pub shard: u32,
    /// The device, or the files without their ending, as its node names them.
    pub place: String,
    /// `up`, `slow`, `down`, `opening`, `draining` or `lost`.
    pub state: String,
    /// How much of the share that its size gives it, it shall get: in percent.
    pub weight: u32,
    pub log_bytes: u64,
    pub data_bytes: u64,
    /// Groups that it is a member of, and those of them that it is the first member of.
    pub groups: u32,
    pub groups_led: u32,
    /// Groups that it was a member of and that still need it.
    pub former: u32,
    /// Somebody's data may still be on it: of a group, or of the log of a vDisk. What is needed is not taken out.
    pub needed: bool,
    /// It is to be emptied by itself, not only with its node.
    pub leaving: bool,
    /// Why it is not up; empty otherwise.
    pub reason: String,
}

/// New drives for the node that is asked: files in its directory, devices, or both.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddDrives {
    /// File-backed drives to be made.
    #[serde(default)]
    pub files: u32,
    /// Bytes of each of them.
    #[serde(default)]
    pub size: u64,
    /// Block devices.
    #[serde(default)]
    pub paths: Vec<PathBuf>,
    /// Take devices that hold something else.
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupPlaceView {
    pub group: u32,
    pub factor: u32,
    pub members: Vec<u32>,
    /// Drives that are no members any more, and are still needed.
    pub former: Vec<u32>,
    /// Revision of its record.
    pub version: u64,
    /// All members are up and have everything.
    pub whole: bool,
    /// A member is down or lost.
    pub thin: bool,
}

/// Moves the serving of a vDisk to another node. Data that is read often follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveVdisk {
    pub to: u32,
}

/// Settings of the cluster; what is left out stays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetCluster {
    #[serde(default)]
    pub away_seconds: Option<u64>,
}

/// What a node tells another for its page about the cluster (`GET /v1/internal/report`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportView {
    /// Bytes taken on its drives, by drive.
    pub used: std::collections::BTreeMap<u32, u64>,
    /// vDisks that it owns and does not serve yet, by family, and why.
    pub waiting: std::collections::BTreeMap<u32, String>,
    /// vDisks that it serves and that do not have as many copies as they should, by family.
    pub copying: std::collections::BTreeMap<u32, super::CopiesView>,
    /// Ways to other nodes on which much gets lost or takes long, a line for each.
    pub ways: Vec<String>,
}

/// What the owner of a vDisk on the asked node has found; nodes ask each other (`GET /v1/internal/whole`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WholeView {
    pub family: u32,
    pub epoch: u32,
    /// Groups whose members have everything of it, with the revision of the config store as of which that was found.
    pub groups: std::collections::BTreeMap<u32, u64>,
}
