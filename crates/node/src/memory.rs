//! How much memory this machine has, and what a shard may take of it for writes.

use weft_engine::limits::Limits;

/// Of the machine's memory all shards of a node keep no more than this part for what is acknowledged and not drained.
const DIRTY_PART: u64 = 8;

/// ... and for what clients have asked and not been answered, or been answered and not taken.
const CLIENTS_PART: u64 = 8;

/// Each shard may keep so much of that: a few connections with all that one may have open.
const CLIENTS_BYTES_LEAST: u64 = 256 << 20;

/// The machine's memory, where the kernel tells.
pub fn machine_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The engine's limits for each of `shards` shards of a node on a machine with so much memory.
pub fn limits(shards: u32, memory: Option<u64>) -> Limits {
    let mut limits = Limits::default();
    if let Some(memory) = memory {
        let each = memory / DIRTY_PART / u64::from(shards.max(1));
        limits.dirty_bytes_shard = each.clamp(limits.dirty_bytes_least, limits.dirty_bytes_shard);
    }
    limits
}

/// Bytes that the clients of each of `shards` shards may make it keep.
pub fn clients_bytes(shards: u32, memory: Option<u64>) -> usize {
    let each = memory.unwrap_or(0) / CLIENTS_PART / u64::from(shards.max(1));
    each.max(CLIENTS_BYTES_LEAST) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_machine_keeps_less_in_memory() {
        let shard = |shards, memory| limits(shards, memory).dirty_bytes_shard;
        let most = Limits::default().dirty_bytes_shard;
        assert_eq!((shard(1, None), shard(2, Some(256 << 30))), (most, most));
        assert_eq!(shard(2, Some(4 << 30)), 256 << 20);
        assert_eq!(
            shard(8, Some(1 << 30)),
            Limits::default().dirty_bytes_least,
            "each may always do something"
        );
        limits(8, Some(1 << 20)).check();
        assert_eq!((clients_bytes(2, Some(32 << 30)), clients_bytes(2, None)), (2 << 30, 256 << 20));
    }

    #[test]
    fn the_machine_tells_how_much_it_has() {
        assert!(machine_bytes().is_some_and(|bytes| bytes > 64 << 20));
    }
}
