//! A vDisk whose data is packed, from the first write to the repair of a frame.

use crate::world::{FAMILY, World, pattern};
use std::collections::BTreeMap;
use weft_engine::buffer::BLOCK;
use weft_engine::formats::recipe::Recipe;
use weft_engine::identity::*;
use weft_engine::interface::*;
use weft_engine::keeper::StoredEgroup;
use weft_engine::limits::Limits;

const MIB: usize = 1 << 20;

fn pack(world: &mut World, method: Method, frame_units: u8) {
    let compression = Compression { method, frame_units, cold: None, share: false };
    world.step(Input::Order(Order::SetCompression { family: FAMILY, compression }));
}

/// Units of data, and the blocks they take on one drive.
fn sizes(world: &World) -> (u64, u64) {
    let directory = &world.shard.volume(FAMILY).expect("it is served").map().directory;
    (directory.units(), directory.stored())
}

/// The name that was given last.
fn newest_egroup(world: &World) -> EgroupId {
    let directory = &world.shard.volume(FAMILY).expect("it is served").map().directory;
    directory.iter().last().map_or(EgroupId(0), |(egroup, _)| egroup)
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
fn a_change_is_for_what_is_written_from_then_on_at_once_and_lives_through_restarts() {
    let mut world = World::new(1, 1, Limits::small());
    let methods = [Method::Off, Method::Lz4, Method::Zstd { level: 3 }, Method::Lz4, Method::Off];
    for (round, method) in methods.into_iter().enumerate() {
        let frame_units = [4, 1, 8, 2, 4][round];
        pack(&mut world, method, frame_units);
        let newest = newest_egroup(&world);
        assert_eq!(world.write((round * MIB) as u64, &pattern(round as u64, MIB)), Reply::Done);
        world.settle();
        let directory = &world.shard.volume(FAMILY).expect("it is served").map().directory;
        // What was begun to be packed again before the change may come meanwhile.
        let recipe = Recipe::of(Compression { method, frame_units, cold: None, share: false });
        let new = directory.iter().filter(|(egroup, entry)| *egroup > newest && entry.recipe == recipe);
        let (units, blocks) = new.fold((0, 0), |sum, (_, entry)| (sum.0 + entry.units, sum.1 + entry.stored));
        assert!(units >= 256, "round {round}");
        match method {
            Method::Off => assert_eq!(blocks, units),
            _ => assert!(blocks < units / 2, "round {round}: {blocks} blocks"),
        }
        let told = |world: &World| -> BTreeMap<EgroupId, (u32, u32, Recipe)> {
            let directory = &world.shard.volume(FAMILY).expect("it is served").map().directory;
            directory.iter().map(|(id, entry)| (id, (entry.units, entry.stored, entry.recipe))).collect()
        };
        let present = told(&world);
        world.record.compression = Compression { method, frame_units: 4, cold: None, share: false };
        world.restart(Limits::small());
        let again = told(&world);
        assert!(again.keys().any(|egroup| present.contains_key(egroup)));
        for (egroup, entry) in again {
            assert!(present.get(&egroup).is_none_or(|old| *old == entry), "the directory tells it again");
        }
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

/// The blocks stored of all data, after so many seconds in which the curator has its turns.
fn stored_after(world: &mut World, seconds: u64) -> (u64, u64) {
    for _ in 0..seconds {
        world.pass(1_000_000);
    }
    sizes(world)
}

fn repacked(world: &World) -> u64 {
    world.shard.counters().egroups_repacked
}

#[test]
fn data_of_before_a_change_is_packed_again_once() {
    let mut world = World::new(2, 2, Limits::small());
    let noise: Vec<u8> = {
        use rand::{RngCore, SeedableRng};
        let mut noise = vec![0; MIB];
        rand::rngs::SmallRng::seed_from_u64(1).fill_bytes(&mut noise);
        noise
    };
    for at in 0..6 {
        let data = if at == 3 { noise.clone() } else { pattern(at, MIB) };
        assert_eq!(world.write(at * MIB as u64, &data), Reply::Done);
    }
    world.settle();
    assert_eq!(sizes(&world), (1536, 1536));
    let check = |world: &mut World| {
        for at in 0..6 {
            let data = if at == 3 { noise.clone() } else { pattern(at, MIB) };
            assert!(world.read(at * MIB as u64, MIB as u32) == data, "MiB {at}");
        }
    };
    let mut before = 0;
    for (method, frame_units) in
        [(Method::Lz4, 4), (Method::Zstd { level: 1 }, 8), (Method::Zstd { level: 1 }, 1), (Method::Off, 1)]
    {
        pack(&mut world, method, frame_units);
        let (units, blocks) = stored_after(&mut world, 120);
        assert_eq!(units, 1536, "{method:?}: what was moved is deleted where it was");
        match method {
            Method::Off => assert_eq!(blocks, units),
            _ => assert!(blocks < units / 2 + 256, "{method:?}: {blocks} blocks"),
        }
        check(&mut world);
        let work = repacked(&world);
        assert!(work > before, "{method:?}");
        stored_after(&mut world, 120);
        before = repacked(&world);
        assert_eq!(before, work, "{method:?}: what does not get smaller is not tried again and again");
        world.record.compression = Compression { method, frame_units, cold: None, share: false };
        world.restart(Limits::small());
        stored_after(&mut world, 60);
        assert_eq!(repacked(&world), 0, "{method:?}: also the next owner knows");
        check(&mut world);
        before = repacked(&world);
    }
}

#[test]
fn what_nobody_reads_for_long_is_packed_tightly_and_stays_so() {
    let mut world = World::new(1, 1, Limits::small());
    let lz4 = Compression { method: Method::Lz4, frame_units: 1, cold: None, share: false };
    world.step(Input::Order(Order::SetCompression { family: FAMILY, compression: lz4 }));
    for at in 0..6 {
        assert_eq!(world.write(at * MIB as u64, &pattern(at, MIB)), Reply::Done);
        world.settle();
    }
    let (units, warm) = sizes(&world);
    let ruled = Compression { cold: Some(Cold { after_s: 60, level: 3 }), ..lz4 };
    world.step(Input::Order(Order::SetCompression { family: FAMILY, compression: ruled }));
    // One MiB is read again and again.
    for _ in 0..20 {
        world.pass(10_000_000);
        assert!(world.read(MIB as u64, MIB as u32) == pattern(1, MIB));
    }
    let (_, cold) = stored_after(&mut world, 1);
    assert_eq!(sizes(&world).0, units);
    assert!(cold < warm, "{cold} blocks after {warm}");
    let directory = &world.shard.volume(FAMILY).expect("it is served").map().directory;
    let recipes: Vec<_> =
        directory.recipes().map(|recipe| (recipe, directory.of_recipe(recipe).count())).collect();
    assert_eq!(recipes.len(), 2, "what is read stays as it was: {recipes:?}");
    let work = repacked(&world);
    for at in 0..6 {
        assert!(world.read(at * MIB as u64, MIB as u32) == pattern(at, MIB), "MiB {at}");
    }
    stored_after(&mut world, 30);
    assert_eq!((repacked(&world), sizes(&world).1), (work, cold), "reading does not unpack what was cold");
    // Without the rule it is as everything else again.
    world.step(Input::Order(Order::SetCompression { family: FAMILY, compression: lz4 }));
    assert_eq!(stored_after(&mut world, 120), (units, warm));
}
