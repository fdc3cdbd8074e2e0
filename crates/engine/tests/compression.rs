//! A vDisk whose data is packed, from the first write to the repair of a frame.

mod world;

use weft_engine::buffer::BLOCK;
use weft_engine::identity::*;
use weft_engine::interface::*;
use weft_engine::keeper::StoredEgroup;
use weft_engine::limits::Limits;
use world::{FAMILY, World, pattern};

const MIB: usize = 1 << 20;

fn pack(world: &mut World, method: Method, frame_units: u8) {
    let compression = Compression { method, frame_units };
    world.step(Input::Order(Order::SetCompression { family: FAMILY, compression }));
}

/// Units of data, and the blocks they take on one drive.
fn sizes(world: &World) -> (u64, u64) {
    let directory = &world.shard.volume(FAMILY).expect("it is served").map().directory;
    (directory.units(), directory.stored())
}

fn stored(world: &World, drive: u32) -> Vec<StoredEgroup> {
    world.shard.keeper(DriveId(drive)).expect("it is open").egroups().collect()
}

/// The run of an egroup as it lies on a drive.
fn run(world: &World, drive: u32, egroup: &StoredEgroup) -> Vec<u8> {
    let first = egroup.first as usize * BLOCK;
    world.areas[&(DriveId(drive), Area::Data)][first..first + egroup.blocks as usize * BLOCK].to_vec()
}

#[test]
fn packed_data_takes_less_is_alike_on_all_members_and_is_repaired_as_it_was() {
    let mut world = World::new(2, 2, Limits::small());
    pack(&mut world, Method::Lz4, 4);
    let data: Vec<u8> = (0..8).flat_map(|at| pattern(at, MIB)).collect();
    for at in 0..8 {
        assert_eq!(world.write((at * MIB) as u64, &data[at * MIB..][..MIB]), Reply::Done);
    }
    world.settle();
    let (units, blocks) = sizes(&world);
    assert_eq!(units, 2048);
    assert!(blocks < units / 2, "{blocks} blocks hold {units} units");
    let counters = world.shard.counters();
    assert_eq!(
        (counters.pack_bytes_in, counters.pack_bytes_out),
        (units * BLOCK as u64, blocks * BLOCK as u64)
    );
    for at in [0, 4096, 5 * MIB + 12_288, 8 * MIB - 4096] {
        assert!(world.read(at as u64, 4096) == data[at..][..4096], "byte {at}");
    }
    let packed = stored(&world, 0).into_iter().filter(|egroup| egroup.data_blocks < egroup.units);
    let egroup = packed.max_by_key(|egroup| egroup.units).expect("something is packed");
    assert!(egroup.data_blocks > 1, "frames far enough apart");
    let other =
        stored(&world, 1).into_iter().find(|other| other.egroup == egroup.egroup).expect("two copies");
    let sound = run(&world, 0, &egroup);
    assert!(sound == run(&world, 1, &other), "both members store the same bytes");
    // A frame rots on each drive, each another one: every one is still good somewhere.
    for (drive, egroup, at) in [(0, &egroup, 100), (1, &other, other.data_blocks as usize / 2 * BLOCK)] {
        let byte = egroup.first as usize * BLOCK + at;
        world.areas.get_mut(&(DriveId(drive), Area::Data)).expect("it exists")[byte] ^= 0x10;
    }
    for block in 0..8 * 256 {
        let at = block * BLOCK;
        assert!(
            world.read(at as u64, BLOCK as u32) == data[at..][..BLOCK],
            "block {block} is good somewhere"
        );
    }
    world.pass(20_000_000);
    assert!(world.shard.counters().copies_repaired >= 1, "what was met is repaired");
    for at in 0..8 {
        assert!(world.read((at * MIB) as u64, MIB as u32) == data[at * MIB..][..MIB], "MiB {at} is whole");
    }
    let repaired =
        stored(&world, 0).into_iter().find(|copy| copy.egroup == egroup.egroup).expect("two copies");
    assert_eq!((repaired.units, repaired.data_blocks), (egroup.units, egroup.data_blocks), "still packed");
    let runs = [0, 1].map(|drive| {
        let copy =
            stored(&world, drive).into_iter().find(|copy| copy.egroup == egroup.egroup).expect("two copies");
        run(&world, drive, &copy)
    });
    assert!(runs.contains(&sound), "a copy was made again byte for byte");
}

#[test]
fn a_change_is_for_what_is_written_from_then_on_and_lives_through_restarts() {
    let mut world = World::new(1, 1, Limits::small());
    let methods = [Method::Off, Method::Lz4, Method::Zstd { level: 3 }, Method::Lz4, Method::Off];
    for (round, method) in methods.into_iter().enumerate() {
        pack(&mut world, method, [4, 1, 8, 2, 4][round]);
        let (units, blocks) = sizes(&world);
        assert_eq!(world.write((round * MIB) as u64, &pattern(round as u64, MIB)), Reply::Done);
        world.settle();
        let (new_units, new_blocks) = sizes(&world);
        let (units, blocks) = (new_units - units, new_blocks - blocks);
        assert_eq!(units, 256, "round {round}");
        match method {
            Method::Off => assert_eq!(blocks, units),
            _ => assert!(blocks < units / 2, "round {round}: {blocks} blocks"),
        }
        world.record.compression = Compression { method, frame_units: 4 };
        world.restart(Limits::small());
        assert_eq!(sizes(&world), (new_units, new_blocks), "the directory tells it again");
        for at in 0..=round {
            assert!(
                world.read((at * MIB) as u64, MIB as u32) == pattern(at as u64, MIB),
                "round {round}, MiB {at}"
            );
        }
    }
    // Overwritten in small pieces, under another policy than what lies there.
    for block in (0..5 * 256).step_by(3) {
        assert_eq!(world.write((block * BLOCK) as u64, &pattern(99, BLOCK)), Reply::Done);
    }
    world.settle();
    for block in (0..5 * 256).step_by(97) {
        let wanted = if block % 3 == 0 {
            pattern(99, BLOCK)
        } else {
            pattern(block as u64 / 256, MIB)[block % 256 * BLOCK..][..BLOCK].to_vec()
        };
        assert!(world.read((block * BLOCK) as u64, BLOCK as u32) == wanted, "block {block}");
    }
}
