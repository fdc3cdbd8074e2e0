//! The engine's own counters, by the names they have there.

use super::statistics::DriveStatistics;
use std::collections::BTreeMap;
use weft_engine::DriveId;
use weft_engine::buffer::BLOCK;
use weft_engine::counters::{ReadSources, Source};
use weft_engine::interface::FactorProgress;
use weft_engine::shard::Shard;
use weft_engine::volume::Volume;

/// Names of what goes down as well as up.
pub const GAUGES: [&str; 4] = ["cache_bytes", "cache_bytes_max", "cache_frames", "pages_bytes"];

/// All counters of a shard.
pub fn named(shard: &Shard) -> BTreeMap<String, u64> {
    let counters = shard.counters();
    let mut named = BTreeMap::new();
    put_sources(&counters.sources, &mut named);
    let (cache, mut put) = (shard.cache(), |name: &str, value| named.insert(name.to_string(), value));
    put("cache_bytes", cache.used_bytes());
    put("cache_bytes_max", cache.limit());
    put("cache_frames", cache.units.frames() as u64);
    put("cache_frames_unpacked", cache.frames_unpacked);
    put("pages_bytes", shard.volumes().map(|(_, volume)| volume.pages_bytes()).sum());
    let units = &cache.units.counters;
    put("cache_hits", units.hits);
    put("cache_misses", units.misses);
    put("cache_inserted", units.inserted);
    put("cache_returned", units.returned);
    put("cache_evicted", units.evicted);
    let ahead = &cache.ahead.counters;
    put("ahead_issued", ahead.issued);
    put("ahead_used", ahead.used);
    put("ahead_wasted", ahead.wasted);
    put("ahead_waited", ahead.waited);
    put("ahead_refused", ahead.refused);
    let held: Vec<_> = shard.keepers().map(|(_, keeper)| keeper.held_back()).collect();
    put("turns_reads_held", held.iter().map(|held| held.reads).sum());
    put("turns_read_us", held.iter().map(|held| held.read_us).sum());
    put("turns_background_held", held.iter().map(|held| held.background).sum());
    put("turns_background_us", held.iter().map(|held| held.background_us).sum());
    put("throttled", counters.throttled.requests);
    put("throttled_us", counters.throttled.us);
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
        victims_living,
        egroups_repacked,
        egroups_followed,
        copies_bad,
        copies_repaired,
        copies_partial,
        orphans_deleted,
        blocks_lost,
        segments_changed,
        late_copies,
        takeovers,
        records_replayed,
        records_appended_again,
        pack_bytes_in,
        pack_bytes_out,
        frames_tried,
        frames_kept,
        frames_skipped,
        frames_unpacked,
        egroup_map_hits,
        egroup_map_misses,
        share_bytes_hashed,
        share_bytes_found,
    );
    named
}

/// What a volume counts by itself.
pub fn named_of(volume: &Volume) -> BTreeMap<String, u64> {
    let mut named = BTreeMap::new();
    put_sources(volume.read_sources(), &mut named);
    named.insert("page_hits".to_string(), volume.page_hits());
    named.insert("page_misses".to_string(), volume.page_misses());
    named.insert("pages_bytes".to_string(), volume.pages_bytes());
    let pattern = volume.pattern();
    macro_rules! take {
        ($($name:ident),* $(,)?) => {
            $(named.insert(stringify!($name).to_string(), pattern.$name);)*
        };
    }
    take!(
        reads_sequential,
        reads_random,
        writes_sequential,
        writes_random,
        writes_to_log,
        write_bytes_to_log,
        writes_to_bypass,
        write_bytes_to_bypass,
        writes_to_zeroes,
        write_bytes_to_zeroes,
    );
    let throttled = volume.throttled();
    named.insert("throttled".to_string(), throttled.requests);
    named.insert("throttled_us".to_string(), throttled.us);
    if volume.is_serving() {
        put_space(volume, &mut named);
    }
    named
}

/// What its data takes. Blocks count as live or past from the next checkpoint on, until then as fresh.
fn put_space(volume: &Volume, named: &mut BTreeMap<String, u64>) {
    let directory = &volume.map().directory;
    let mut put = |name: &str, blocks: u64| named.insert(name.to_string(), blocks * BLOCK as u64);
    put("placed_bytes", directory.units());
    put("stored_bytes", directory.stored());
    put("live_bytes", directory.live());
    put("past_bytes", directory.past());
    put("fresh_bytes", volume.map().units_since_cut);
    named.insert("dirty_bytes".to_string(), volume.dirty_bytes());
    named.insert("zero_bytes".to_string(), volume.zero_bytes());
}

/// Reads of clients, and blocks of them, by where they came from.
fn put_sources(sources: &ReadSources, named: &mut BTreeMap<String, u64>) {
    for source in Source::ALL {
        named.insert(format!("reads_from_{}", source.name()), sources.reads[source as usize]);
        named.insert(format!("blocks_read_from_{}", source.name()), sources.blocks[source as usize]);
    }
}

/// How far a vDisk has as many copies as it should.
pub fn put_copies(progress: &FactorProgress, named: &mut BTreeMap<String, u64>) {
    let FactorProgress { wanted, log, left_bytes, copies_bytes, whole, short, reached, remaining_us } =
        *progress;
    let mut put = |name: &str, value: u64| named.insert(name.to_string(), value);
    put("factor", wanted.into());
    put("factor_left_bytes", left_bytes);
    put("factor_log", log.into());
    put("factor_whole", whole.into());
    put("factor_short", short.into());
    put("factor_reached", reached.into());
    put("copies_bytes", copies_bytes);
    if let Some(us) = remaining_us {
        put("factor_remaining_us", us);
    }
}

/// What the keeper of a drive knows about its space.
pub fn fill_drive(shard: &Shard, drive: DriveId, statistics: &mut DriveStatistics) {
    if let Some(keeper) = shard.keeper(drive) {
        statistics.free_bytes = keeper.free_bytes();
        statistics.log_used_bytes = keeper.log_bytes_used();
        statistics.shared = keeper.shared();
    }
}
