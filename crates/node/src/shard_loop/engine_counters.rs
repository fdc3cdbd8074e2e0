//! The engine's own counters, by the names they have there.

use super::statistics::DriveStatistics;
use std::collections::BTreeMap;
use weft_engine::DriveId;
use weft_engine::counters::Counters;
use weft_engine::shard::Shard;

/// All counters of a shard.
pub fn named(counters: &Counters) -> BTreeMap<String, u64> {
    let mut named = BTreeMap::new();
    macro_rules! take {
        ($($name:ident),* $(,)?) => {
            $(named.insert(stringify!($name).to_string(), counters.$name);)*
        };
    }
    take!(
        reads,
        read_bytes,
        writes,
        write_bytes,
        zeroes,
        flushes,
        blocks_from_overlay,
        blocks_found_zeroes,
        blocks_from_egroups,
        page_misses,
        page_hits,
        bypassed,
        partial_writes,
        waited,
        refused_no_space,
        egroups_written,
        units_drained,
        checkpoints,
        pages_written,
        egroups_deleted,
        egroups_compacted,
        copies_bad,
        copies_repaired,
        orphans_deleted,
        blocks_lost,
        segments_changed,
        takeovers,
        records_replayed,
        records_appended_again,
        pack_bytes_in,
        pack_bytes_out,
        frames_tried,
        frames_kept,
        frames_skipped,
    );
    named
}

/// What the keeper of a drive knows about its space.
pub fn fill_drive(shard: &Shard, drive: DriveId, statistics: &mut DriveStatistics) {
    if let Some(keeper) = shard.keeper(drive) {
        statistics.free_bytes = keeper.free_bytes();
        statistics.log_used_bytes = keeper.log_bytes_used();
    }
}
