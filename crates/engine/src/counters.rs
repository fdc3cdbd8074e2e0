//! What a shard has done, counted. Read by the node for statistics and by the simulator for coverage.

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
    /// Leaf pages looked for in memory and not found there.
    pub page_misses: u64,
    pub page_hits: u64,
    /// Writes that went around the log.
    pub bypassed: u64,
    /// Parts of blocks that were read, merged and written.
    pub partial_writes: u64,
    /// Requests that had to wait for room.
    pub waited: u64,
    pub refused_no_space: u64,
    pub egroups_written: u64,
    pub units_drained: u64,
    pub checkpoints: u64,
    pub pages_written: u64,
    pub egroups_deleted: u64,
    pub egroups_compacted: u64,
    pub copies_bad: u64,
    pub copies_repaired: u64,
    pub orphans_deleted: u64,
    pub blocks_lost: u64,
    pub segments_changed: u64,
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
}
