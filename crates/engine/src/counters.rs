//! What a shard has done, counted. Read by the node for statistics and by the simulator for coverage.

use crate::stages::{Stage, Stages};

/// Where a part of a read came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Acknowledged and not in egroups yet.
    Overlay,
    /// Never written, or written as zeros.
    Zeroes,
    /// Kept in memory since an earlier read.
    Cache,
    /// Read ahead of a sequential stream.
    Ahead,
    /// A drive of this node.
    Local,
    /// A drive of another node.
    Remote,
    /// The vDisk that this one was cloned from.
    Origin,
}

impl Source {
    pub const ALL: [Source; 7] = [
        Source::Overlay,
        Source::Zeroes,
        Source::Cache,
        Source::Ahead,
        Source::Local,
        Source::Remote,
        Source::Origin,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Source::Overlay => "overlay",
            Source::Zeroes => "zeroes",
            Source::Cache => "cache",
            Source::Ahead => "ahead",
            Source::Local => "local",
            Source::Remote => "remote",
            Source::Origin => "origin",
        }
    }

    /// The slowest of those that gave some blocks.
    pub fn slowest(blocks: &[u64; 7]) -> Option<Source> {
        Source::ALL.into_iter().rev().find(|&source| blocks[source as usize] > 0)
    }

    /// The time of whole reads that needed it.
    pub fn stage(self) -> Stage {
        match self {
            Source::Overlay => Stage::FromOverlay,
            Source::Zeroes => Stage::FoundZeroes,
            Source::Cache => Stage::FromCache,
            Source::Ahead => Stage::FromAhead,
            Source::Local => Stage::FromLocal,
            Source::Remote => Stage::FromRemote,
            Source::Origin => Stage::FromOrigin,
        }
    }
}

/// Where the reads of clients were answered from. A read counts for each source it got something from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadSources {
    /// In the order of [`Source::ALL`].
    pub reads: [u64; 7],
    pub blocks: [u64; 7],
}

impl ReadSources {
    /// A read got so many blocks from each.
    pub fn count(&mut self, blocks: &[u64; 7]) {
        for (index, &count) in blocks.iter().enumerate() {
            self.reads[index] += u64::from(count > 0);
            self.blocks[index] += count;
        }
    }
}

/// What the requests of a vDisk were like, and where its writes went.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pattern {
    /// Reads and writes that went on where another one ended, of up to 32 streams at once, and the others.
    pub reads_sequential: u64,
    pub reads_random: u64,
    pub writes_sequential: u64,
    pub writes_random: u64,
    /// Pieces of at most 1 MiB of writes that went into the log, and their bytes ...
    pub writes_to_log: u64,
    pub write_bytes_to_log: u64,
    /// ... those that went around it into egroups ...
    pub writes_to_bypass: u64,
    pub write_bytes_to_bypass: u64,
    /// ... and those that were zeros, of which only that is noted.
    pub writes_to_zeroes: u64,
    pub write_bytes_to_zeroes: u64,
}

/// What limits have cost the clients of a vDisk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Throttled {
    /// Requests that waited.
    pub requests: u64,
    /// Microseconds that they waited, all together.
    pub us: u64,
}

/// Numbers since the shard began; bytes where the name says so.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub zeroes: u64,
    pub flushes: u64,
    /// Blocks of reads answered from the overlay, as zeros without touching a drive, and from egroups.
    pub blocks_from_overlay: u64,
    pub blocks_found_zeroes: u64,
    pub blocks_from_egroups: u64,
    /// Where reads of clients came from, of all vDisks together.
    pub sources: ReadSources,
    /// Blocks that clones have read from their origins.
    pub blocks_from_origin: u64,
    /// Leaf pages looked for in memory and not found there.
    pub page_misses: u64,
    pub page_hits: u64,
    /// Writes that went around the log.
    pub bypassed: u64,
    /// Parts of blocks that were read, merged and written.
    pub partial_writes: u64,
    /// Requests that had to wait for room.
    pub waited: u64,
    /// Requests that waited because of a limit of their vDisk.
    pub throttled: Throttled,
    pub refused_no_space: u64,
    pub egroups_written: u64,
    pub units_drained: u64,
    pub checkpoints: u64,
    pub pages_written: u64,
    pub egroups_deleted: u64,
    pub egroups_compacted: u64,
    /// Of those, such as a checkpoint found living: it should not happen.
    pub victims_living: u64,
    /// Begun to be packed again, because it is wanted otherwise now or because they are cold.
    pub egroups_repacked: u64,
    /// Begun to be moved to the node of their owner, because they are read often there.
    pub egroups_followed: u64,
    pub copies_bad: u64,
    pub copies_repaired: u64,
    /// Made without what no drive could give.
    pub copies_partial: u64,
    pub orphans_deleted: u64,
    pub blocks_lost: u64,
    pub segments_changed: u64,
    /// Copies of parts of logs, given to members that came late.
    pub late_copies: u64,
    pub takeovers: u64,
    pub records_replayed: u64,
    pub records_appended_again: u64,
    pub snapshots_taken: u64,
    /// Data that was to be packed when it was placed, and what is stored of it.
    pub pack_bytes_in: u64,
    pub pack_bytes_out: u64,
    /// Frames that were compressed, those of them that became smaller and stayed so, and those that were not tried because
    /// the ones before them did not.
    pub frames_tried: u64,
    pub frames_kept: u64,
    pub frames_skipped: u64,
    /// Compressed frames that were unpacked for reads.
    pub frames_unpacked: u64,
    /// Egroups looked for in the maps of the shard's drives, which are in memory whole: found, and not known there.
    pub egroup_map_hits: u64,
    pub egroup_map_misses: u64,
    /// What the shard's drives hashed of what they were to write, because it may be there already; and what of that was.
    pub share_bytes_hashed: u64,
    pub share_bytes_found: u64,
    /// What the owners on this shard waited for.
    pub stages: Stages,
}
