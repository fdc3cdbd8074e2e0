//! What a shard counts, as it is handed to the control plane.

mod figures;
mod recent;
mod working_set;

pub use figures::{FamilyFigures, Observer, RATED, Rated, ShardFigures};
pub use working_set::TouchedSet;

use crate::api::{DriveStatsView, ShardStatsView, VdiskStatsView};
use std::collections::BTreeMap;
use weft_engine::interface::{Reply, Request};
use weft_engine::keeper::Shared;
use weft_engine::{DriveId, FamilyId};

/// A copy of all counters of one shard.
#[derive(Debug, Default)]
pub struct ShardStatistics {
    pub shard: ShardStatsView,
    pub drives: BTreeMap<DriveId, DriveStatistics>,
    pub families: BTreeMap<FamilyId, FamilyStatistics>,
}

#[derive(Debug, Default, Clone)]
pub struct DriveStatistics {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub faults: u64,
    /// From the keeper; 0 while the drive is not open.
    pub free_bytes: u64,
    pub log_used_bytes: u64,
    pub shared: Shared,
}

impl DriveStatistics {
    pub fn view(&self, drive: DriveId, state: String, log_bytes: u64, data_bytes: u64) -> DriveStatsView {
        DriveStatsView {
            drive: drive.0,
            state,
            free_bytes: self.free_bytes,
            used_bytes: data_bytes.saturating_sub(self.free_bytes),
            log_bytes,
            log_used_bytes: self.log_used_bytes,
            shared_saved_bytes: self.shared.saved_bytes,
            shared_held_bytes: self.shared.held_bytes,
            shared_entries: self.shared.entries,
            shared_entries_max: self.shared.entries_max,
            shared_memory_bytes: self.shared.memory_bytes,
            reads: self.reads,
            read_bytes: self.read_bytes,
            writes: self.writes,
            write_bytes: self.write_bytes,
            flushes: self.flushes,
            discards: self.discards,
            faults: self.faults,
        }
    }
}

/// What a request was, for counting when it is answered.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    Read {
        bytes: u64,
    },
    Write {
        bytes: u64,
    },
    Zero,
    Flush,
    /// From this offset on.
    Warm {
        offset: u64,
    },
    Other,
}

impl Kind {
    pub fn of(request: &Request) -> Self {
        match request {
            Request::Read { len, .. }
            | Request::ReadSnapshot { len, .. }
            | Request::ReadOrigin { len, .. } => Kind::Read { bytes: u64::from(*len) },
            Request::Write { data, .. } => Kind::Write { bytes: data.len() as u64 },
            Request::Zero { .. } => Kind::Zero,
            Request::Flush => Kind::Flush,
            Request::Warm { offset, .. } => Kind::Warm { offset: *offset },
            Request::Extents { .. } | Request::SnapshotExtents { .. } | Request::Differences { .. } => {
                Kind::Other
            }
        }
    }
}

#[derive(Debug, Default, Clone)]
pub struct FamilyStatistics {
    pub view: VdiskStatsView,
    /// Requests answered, by the node whose client asked: where the clients are.
    pub asked_by: BTreeMap<u32, u64>,
}

impl FamilyStatistics {
    /// A request of this kind, by a client of this node, took so long from the socket to its reply.
    pub fn count(&mut self, node: u32, kind: Kind, took_us: u64, reply: &Reply) {
        *self.asked_by.entry(node).or_default() += 1;
        let view = &mut self.view;
        if matches!(reply, Reply::Error(_)) {
            view.errors += 1;
            return;
        }
        match kind {
            Kind::Read { bytes } => {
                view.reads += 1;
                view.read_bytes += bytes;
                view.read_us_total += took_us;
                view.read_us_max = view.read_us_max.max(took_us);
            }
            Kind::Write { bytes } => {
                view.writes += 1;
                view.write_bytes += bytes;
                view.write_us_total += took_us;
                view.write_us_max = view.write_us_max.max(took_us);
            }
            Kind::Zero => view.zeroes += 1,
            Kind::Flush => view.flushes += 1,
            Kind::Warm { .. } | Kind::Other => {}
        }
    }
}
