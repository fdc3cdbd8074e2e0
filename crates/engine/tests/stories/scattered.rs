//! A large vDisk that is written here and there: each of its blocks lies in another leaf of the map.

use crate::world::{World, pattern};
use weft_engine::FamilyId;
use weft_engine::buffer::Buffer;
use weft_engine::interface::*;
use weft_engine::limits::Limits;

const BLOCK: usize = 4096;
/// Bytes of which one leaf tells.
const LEAF: u64 = 1024 * BLOCK as u64;
const LEAVES: u64 = 6 * 960;
const LARGE: FamilyId = FamilyId(2);

/// Egroups that are emptied when one block of each of many leaves was written, and most of them once more, with memory for few leaves.
fn emptied() -> u64 {
    let geometry = Geometry { log: 64 << 20, data: 512 << 20 };
    let limits = Limits { pages_bytes_max: 16 << 10, ..Limits::default() };
    let mut world = World::sized(1, 1, limits, geometry);
    world.serve(FamilyRecord { family: LARGE, size: LEAVES * LEAF, ..world.record.clone() });
    world.pass(1_000_000);
    let write = |world: &mut World, leaf: u64, seed: u64| {
        let request = Request::Write { offset: leaf * LEAF, data: Buffer::copied(&pattern(seed, BLOCK)) };
        assert_eq!(world.ask_of(LARGE, request), Reply::Done);
    };
    for leaf in 0..LEAVES {
        write(&mut world, leaf, leaf);
    }
    world.settle_family(LARGE);
    for leaf in (0..LEAVES).filter(|leaf| leaf % 8 != 0) {
        write(&mut world, leaf, leaf + LEAVES);
    }
    world.settle_family(LARGE);
    for _ in 0..60 {
        world.pass(1_000_000);
    }
    for leaf in (0..LEAVES).step_by(61) {
        let seed = if leaf % 8 == 0 { leaf } else { leaf + LEAVES };
        let read = Request::Read { offset: leaf * LEAF, len: BLOCK as u32 };
        assert_eq!(crate::world::data(world.ask_of(LARGE, read)), pattern(seed, BLOCK), "leaf {leaf}");
    }
    world.shard.counters().egroups_compacted
}

#[test]
fn what_is_left_of_scattered_writes_is_emptied_with_little_memory() {
    let emptied = emptied();
    assert!(emptied >= 4, "{emptied} egroups were emptied");
}

#[cfg(feature = "sabotage")]
#[test]
fn a_compaction_in_vain_is_seen() {
    use weft_engine::sabotage::{Bug, with};
    let emptied = with(Bug::CompactedInVain, emptied);
    assert_eq!(emptied, 0);
}
