//! What a shard counts, as it is handed to the control plane.

mod figures;
mod recent;
mod working_set;

pub use figures::{FamilyFigures, Latencies, Observer, RATED, Rated, ShardFigures};
pub use working_set::TouchedSet;

use crate::api::{DriveStatsView, ShardStatsView, VdiskStatsView};
use std::collections::BTreeMap;
use tokio::sync::oneshot::Sender;
use weft_engine::interface::{Reply, Request};
use weft_engine::keeper::Shared;
use weft_engine::{DriveId, FamilyId};

/// What the control plane wants to know of a shard. Its thread does nothing else meanwhile, so a question asks for no more than
/// is needed.
pub enum Question {
    /// Counters. With `details` also what the engine counts of each vDisk, by name: much work where there are many.
    Statistics { details: bool, to: Sender<ShardStatistics> },
    /// The shard's own stages, and what its caches were asked.
    Figures(Sender<ShardFigures>),
    /// How long the reads and writes of its vDisks took.
    Latencies(Sender<BTreeMap<FamilyId, Latencies>>),
    /// All that was observed of its vDisks: much work where there are many.
    VdiskFigures(Sender<BTreeMap<FamilyId, FamilyFigures>>),
}

/// A copy of all counters of one shard.
#[derive(Debug, Default)]
pub struct ShardStatistics {
    pub shard: ShardStatsView,
    pub drives: BTreeMap<DriveId, DriveStatistics>,
    /// vDisks that are open here.
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
    /// Of a drive that is not up nobody knows how full it is: it has nothing free and nothing used.
    pub fn view(
        &self,
        drive: DriveId,
        state: String,
        is_up: bool,
        log_bytes: u64,
        data_bytes: u64,
    ) -> DriveStatsView {
        let free_bytes = if is_up { self.free_bytes } else { 0 };
        DriveStatsView {
            drive: drive.0,
            state,
            free_bytes,
            used_bytes: if is_up { data_bytes.saturating_sub(free_bytes) } else { 0 },
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
    /// For a clone, which counts it among the reads of its own clients.
    ReadOrigin {
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
            Request::Read { len, .. } | Request::ReadSnapshot { len, .. } => {
                Kind::Read { bytes: u64::from(*len) }
            }
            Request::ReadOrigin { len, .. } => Kind::ReadOrigin { bytes: u64::from(*len) },
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
        if matches!(kind, Kind::ReadOrigin { .. }) {
            // Whoever adds up vDisks has it from the clone. Where it came from counts: an origin is best near its clones.
            return;
        }
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
            Kind::ReadOrigin { .. } | Kind::Warm { .. } | Kind::Other => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_engine::Generation;
    use weft_engine::interface::RequestError;

    #[test]
    fn a_drive_that_is_not_up_is_neither_full_nor_empty() {
        let counted = DriveStatistics { free_bytes: 300, ..DriveStatistics::default() };
        let up = counted.view(DriveId(1), "up".to_string(), true, 10, 1_000);
        assert_eq!((up.free_bytes, up.used_bytes), (300, 700));
        for counted in [counted, DriveStatistics::default()] {
            let down = counted.view(DriveId(1), "down".to_string(), false, 10, 1_000);
            assert_eq!((down.free_bytes, down.used_bytes), (0, 0));
        }
    }

    #[test]
    fn a_read_for_a_clone_is_counted_by_the_clone_alone() {
        let mut counted = FamilyStatistics::default();
        let own = Kind::of(&Request::Read { offset: 0, len: 4096 });
        let other = Kind::of(&Request::ReadOrigin { snapshot: Generation(3), offset: 0, len: 8192 });
        counted.count(1, own, 10, &Reply::Data(Vec::new()));
        counted.count(2, other, 70, &Reply::Data(Vec::new()));
        counted.count(2, other, 70, &Reply::Error(RequestError::NoSnapshot));
        let view = &counted.view;
        assert_eq!((view.reads, view.read_bytes, view.read_us_max, view.errors), (1, 4096, 10, 0));
        assert_eq!(counted.asked_by, BTreeMap::from([(1, 1), (2, 2)]), "where it is read from is known");
    }
}
