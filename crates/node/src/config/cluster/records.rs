//! Records that only a cluster has. Drives, groups and families are those of a single node.

use super::ClusterError;
use crate::config::LostNumbers;
use serde::{Deserialize, Serialize};
use weft_engine::FamilyId;
use weft_engine::cluster::detection::AWAY_US;

/// Of the form of all records together. Raised when an older version would misread them.
pub const CLUSTER_FORMAT: u32 = 3;

/// Of a cluster without lost numbers.
const FIRST_FORMAT: u32 = 1;
/// Versions that do not know of lost numbers would take them for those of deleted vDisks.
const LOST_FORMAT: u32 = 2;
/// Those that do not know that older records were accepted would forget it.
const ACCEPTED_FORMAT: u32 = 3;

/// Shards of one node at most: a shard's number tells its node.
pub use weft_engine::identity::SHARDS_PER_NODE;

/// What there is one of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    /// Made up once; tells this cluster from others of its name.
    pub id: u64,
    pub format: u32,
    /// The next numbers to be given out; none is ever used again.
    pub next_node: u32,
    pub next_drive: u32,
    pub next_family: u32,
    pub next_group: u32,
    #[serde(default, skip_serializing_if = "LostNumbers::is_empty")]
    pub lost: LostNumbers,
    /// Each time that older records were accepted, in order: a number drawn at random. A node that has acted by records with a number
    /// that is not here does not act by these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<u64>,
    /// A node, or a drive, that has been away for so long is not waited for any more: its copies are made again on others.
    #[serde(default = "away_seconds")]
    pub away_seconds: u64,
    /// The records of a single node are being moved here, and are not all here yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub importing: bool,
}

fn away_seconds() -> u64 {
    AWAY_US / 1_000_000
}

impl ClusterRecord {
    pub fn new(id: u64) -> Self {
        Self {
            id,
            format: FIRST_FORMAT,
            next_node: 0,
            next_drive: 0,
            next_family: 1,
            next_group: 0,
            lost: LostNumbers::default(),
            accepted: Vec::new(),
            away_seconds: away_seconds(),
            importing: false,
        }
    }

    /// See [`LostNumbers::note`].
    pub(super) fn note_lost(&mut self, found: FamilyId) {
        if self.lost.note(&mut self.next_family, found) {
            self.format = self.format.max(LOST_FORMAT);
        }
    }

    /// These are to be acted by, although there have been newer ones.
    pub(super) fn note_accepted(&mut self, number: u64) {
        self.accepted.push(number);
        self.format = self.format.max(ACCEPTED_FORMAT);
    }

    /// With those of a single node.
    pub fn with_lost(self, lost: LostNumbers) -> Self {
        let format = if lost.is_empty() { self.format } else { LOST_FORMAT };
        Self { lost, format, ..self }
    }

    /// Refuses a cluster that this version must not touch.
    pub(super) fn check(&self, name: &str) -> Result<(), ClusterError> {
        let name = name.to_string();
        if self.format > CLUSTER_FORMAT {
            return Err(ClusterError::NewerFormat { name, found: self.format, known: CLUSTER_FORMAT });
        }
        if self.importing {
            return Err(ClusterError::Importing { name });
        }
        Ok(())
    }
}

/// A node of the cluster, alive or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterNodeRecord {
    pub node: u32,
    /// For people.
    pub name: String,
    /// Where its API is, such as `10.0.0.1:7070`.
    pub api: String,
    /// Where its shards are reached by others, in the order of their indexes.
    pub transport: Vec<String>,
    pub shards: u32,
    /// What fails together beyond a node; empty: not told.
    #[serde(default)]
    pub zone: String,
    #[serde(default)]
    pub rack: String,
    /// It holds data and serves no vDisks.
    #[serde(default)]
    pub storage_only: bool,
    /// Its newest life, written when that was announced; 0: it was never started. A directory that has counted fewer starts
    /// is an old copy.
    #[serde(default)]
    pub last_life: u64,
    /// How often its process was begun: of two connections of its shards, this says which one is of the process that lives.
    #[serde(default)]
    pub starts: u64,
    pub state: NodeState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    In,
    /// Being emptied: it gets nothing new.
    Draining,
    /// Its number is never used again.
    Removed,
}

/// Exists as long as a node's lease does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliveRecord {
    pub node: u32,
    /// Counts the node's starts: another one means that its shards know nothing any more.
    pub incarnation: u64,
    /// The directory that it runs in, as `DirectoryLock::place` names it; empty: not told.
    #[serde(default)]
    pub place: String,
    /// Its drives that can be used, and those that cannot. One in neither is still being opened.
    pub up: Vec<u32>,
    pub down: Vec<u32>,
    /// Those of `up` that get next to nothing done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<u32>,
    /// It is about to end, and opens nothing that it is given.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopping: bool,
}

/// The node gave its lease back because it reached none of the others, and takes no other yet. Exists as long as a lease that it
/// has for this alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutOffRecord {
    pub node: u32,
}

/// Which node decides for the cluster. Exists as long as that node's lease does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerRecord {
    pub node: u32,
}

/// Makes the name of a vDisk unique.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRecord {
    pub family: u32,
    /// Made up by who created it: tells its own creation from another's after a lost answer.
    pub stamp: u64,
}
