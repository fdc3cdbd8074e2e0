//! The documents about containers, and about what vDisks take.

use super::ColdWord;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ContainerView {
    pub name: String,
    /// Seconds since 1970; 0: it was always there.
    pub created: u64,
    /// `off`, `lz4` or `zstd:LEVEL`, and bytes packed together.
    pub compression: String,
    pub compression_unit: u32,
    /// When it is packed once more; not there: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold: Option<ColdWord>,
    /// What lies on a drive already is not written there again.
    #[serde(default)]
    pub dedup: bool,
    /// Copies of its vDisks; None: what the node or cluster gave when each was made.
    pub factor: Option<u32>,
    /// What the clients of each of its vDisks may ask for in a second: requests, and bytes read and written. Not there: as much as
    /// there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops_limit: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bw_limit: Option<u64>,
    /// How many are in it, and their sizes together.
    pub vdisks: u64,
    pub vdisk_bytes: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateContainer {
    pub name: String,
    /// `off`, `lz4`, `zstd` or `zstd:LEVEL`; off without it.
    #[serde(default)]
    pub compression: Option<String>,
    #[serde(default)]
    pub compression_unit: Option<u64>,
    #[serde(default)]
    pub cold: Option<ColdWord>,
    #[serde(default)]
    pub dedup: Option<bool>,
    #[serde(default)]
    pub factor: Option<u32>,
    /// For each of its vDisks; 0 for no limit.
    #[serde(default)]
    pub iops_limit: Option<u64>,
    #[serde(default)]
    pub bw_limit: Option<u64>,
}

/// What is not said stays.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetContainer {
    #[serde(default)]
    pub compression: Option<String>,
    #[serde(default)]
    pub compression_unit: Option<u64>,
    #[serde(default)]
    pub cold: Option<ColdWord>,
    #[serde(default)]
    pub dedup: Option<bool>,
    /// Of all its vDisks that have no word of their own, also those there; 0: what the node or cluster gave when each was made.
    #[serde(default)]
    pub factor: Option<u32>,
    /// For each of its vDisks; 0 for no limit.
    #[serde(default)]
    pub iops_limit: Option<u64>,
    #[serde(default)]
    pub bw_limit: Option<u64>,
}

/// What a vDisk takes and saves, in bytes. Data that was written lately is in `log_bytes`. What it replaces counts until the next
/// checkpoint, half a minute later at most.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageView {
    /// As clients see it.
    pub size_bytes: u64,
    /// Data that the vDisk has now, its own.
    pub mapped_bytes: u64,
    /// Written, and without a place yet.
    pub log_bytes: u64,
    /// Of writes since its owner opened it: blocks that were zeros, and so were not stored.
    pub zero_bytes: u64,
    /// Of a clone: what the snapshot holds that it began as, less what it has of its own: it reads that from there and does not
    /// store it. Of a large one that nobody has asked about before, only a part.
    pub origin_bytes: u64,
    /// Data that only snapshots see.
    pub snapshot_bytes: u64,
    /// Data that was replaced or trimmed, and whose place is not free yet.
    pub dead_bytes: u64,
    /// All data that has a place, before it was packed: mapped, of snapshots, and dead.
    pub placed_bytes: u64,
    /// What that takes packed, one copy, and all copies together.
    pub stored_bytes: u64,
    pub copies_bytes: u64,
    /// How far it has as many copies as it should; of a container not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<CopiesView>,
}

/// How far a vDisk has as many copies as it should.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CopiesView {
    pub wanted: u32,
    /// Log, data and pages have so many, and every one of them was found.
    pub reached: bool,
    /// Bytes of one copy that have another number of copies.
    pub left_bytes: u64,
    /// What is written from now on, and what the log still holds, has so many.
    pub log: bool,
    /// All drives in use are up and were found to have everything.
    pub whole: bool,
    /// There is no room for more copies.
    pub short: bool,
    /// None: not known yet.
    pub seconds_left: Option<u64>,
}

impl CopiesView {
    /// For people: how many there shall be, what is left, and what it waits for.
    pub fn line(&self) -> String {
        let Self { wanted, reached, left_bytes, log, whole, short, seconds_left } = *self;
        if reached {
            return format!("{wanted} of everything");
        }
        if left_bytes > 0 {
            let left =
                format!("{wanted} wanted; {} MiB still have another number", left_bytes.div_ceil(1 << 20));
            return match seconds_left {
                _ if short => format!("{left}, and there is no room: delete something or add drives"),
                Some(seconds) => format!("{left}, about {seconds} s left"),
                None => left,
            };
        }
        match (log, whole) {
            (false, true) => format!("{wanted} wanted; the log has another number until it is drained"),
            (false, false) => {
                format!(
                    "{wanted} wanted; the log has another number until it is drained, and as long as a drive is away"
                )
            }
            (true, false) if short => {
                format!("{wanted} wanted; a drive has no room for its copies: delete something or add drives")
            }
            (true, false) => {
                format!(
                    "{wanted} wanted; a drive is away, or not all were asked yet whether they have everything"
                )
            }
            (true, true) => format!("{wanted} wanted; almost there"),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerUsageView {
    /// How many are in it, and how many of these have an owner that answered.
    pub vdisks: u64,
    pub vdisks_told: u64,
    /// Of these, those that do not have as many copies as they should yet.
    #[serde(default)]
    pub vdisks_copying: u64,
    /// Of those together.
    #[serde(flatten)]
    pub usage: UsageView,
}

/// What a node tells another about a vDisk that it serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OwnUsageView {
    pub family: u32,
    pub usage: UsageView,
}
