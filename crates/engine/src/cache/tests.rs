//! What the cache keeps, and that it never keeps more than it may.

use super::ahead::Ahead;
use super::fifo::{GHOST_COST, UNIT_COST};
use super::*;
use crate::buffer::{BLOCK, Buffer};
use crate::codec::{Compressor, packed_bytes_max};
use crate::identity::Time;
use crate::interface::Method;
use crate::message::PackedFrame;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// A limit with room for so many units.
fn room_for(units: u64) -> u64 {
    units * (UNIT_COST + GHOST_COST)
}

fn fifo(units: u64) -> Fifo {
    let mut fifo = Fifo::default();
    fifo.set_limit(room_for(units));
    fifo
}

/// Units of several families and egroups, told apart by what they hold.
fn place(number: u64) -> Place {
    let family = FamilyId((number % 3) as u32);
    Place::new(family, EgroupId(number / 960), (number % 960) as u32)
}

fn content(place: Place) -> [u8; BLOCK] {
    let number = place.egroup.0 * 7919 + u64::from(place.family.0) * 104_729 + u64::from(place.unit);
    let mut bytes = [number as u8; BLOCK];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A read as a vDisk does it: looks, and keeps what was not there. Whether it was.
fn read(fifo: &mut Fifo, number: u64) -> bool {
    let place = place(number);
    match fifo.get(place) {
        Some(data) => {
            assert_eq!(data.bytes(), content(place), "what is kept is what was put there");
            true
        }
        None => {
            fifo.insert(place, &content(place));
            false
        }
    }
}

fn read_all(fifo: &mut Fifo, units: u64) {
    for number in 0..units {
        read(fifo, number);
    }
}

#[test]
fn it_never_keeps_more_than_it_may_nor_anything_else_than_it_was_given() {
    let mut random = SmallRng::seed_from_u64(3);
    for _ in 0..20 {
        let mut limit = room_for(random.random_range(1..300));
        let mut cache = Cache::new(limit);
        let mut held: Vec<(Place, Buffer)> = Vec::new();
        for _ in 0..5_000 {
            // A hot part, and the rest.
            let number = if random.random_bool(0.5) {
                random.random_range(0..50)
            } else {
                random.random_range(0..5_000)
            };
            let at = place(number);
            match random.random_range(0..100) {
                0 => {
                    limit = if random.random_bool(0.2) { 0 } else { room_for(random.random_range(1..300)) };
                    cache.set_limit(limit);
                }
                1 => cache.forget(FamilyId(random.random_range(0..3))),
                2..10 => {
                    let was_full = cache.units.is_full();
                    let kept = cache.units.warm(at, &content(at));
                    assert!(kept || was_full, "where there is room it is used");
                }
                10..30 => cache.units.note(at, &content(at)),
                _ => {
                    read(&mut cache.units, number);
                    if limit > 0
                        && random.random_bool(0.05)
                        && let Some(data) = cache.units.get(at)
                    {
                        // Somebody is still sending it when its memory is wanted for another.
                        held.push((at, data));
                    }
                }
            }
            assert!(cache.used_bytes() <= limit, "{} bytes of {limit}", cache.used_bytes());
        }
        for (place, data) in held {
            assert_eq!(data.bytes(), content(place), "what was given out stays as it was");
        }
    }
}

#[test]
fn a_scan_of_a_hundred_times_its_size_does_not_displace_what_is_hot() {
    const UNITS: u64 = 1000;
    const HOT: u64 = 600;
    let mut fifo = fifo(UNITS);
    for _ in 0..5 {
        read_all(&mut fifo, HOT);
    }
    let mut hits = 0;
    let mut asked = 0;
    for scanned in 0..100 * UNITS {
        read(&mut fifo, 1_000_000 + scanned);
        // The hot ones are wanted now and then, meanwhile.
        if scanned % 10 == 0 {
            asked += 1;
            hits += u64::from(read(&mut fifo, scanned / 10 % HOT));
        }
    }
    assert_eq!(hits, asked, "every read of a hot unit was answered from memory");
    let after = (0..HOT).filter(|&number| read(&mut fifo, number)).count() as u64;
    assert_eq!(after, HOT, "and all are there in the end");
}

#[test]
fn what_comes_back_soon_after_it_left_stays() {
    const UNITS: u64 = 100;
    let mut fifo = fifo(UNITS);
    let through_small = |fifo: &mut Fifo, from: u64| {
        (from..from + 2 * UNITS).for_each(|number| fifo.insert(place(number), &content(place(number))));
    };
    through_small(&mut fifo, 1_000);
    assert!(!fifo.holds(place(1_000)), "seen once, it left");
    let recent = 1_000 + UNITS - 1;
    assert!(!fifo.holds(place(recent)));
    fifo.insert(place(recent), &content(place(recent)));
    assert_eq!(fifo.counters.returned, 1, "its name was still known");
    through_small(&mut fifo, 10_000);
    assert!(fifo.holds(place(recent)), "in the main queue nothing that passes by hurts it");
    let long_ago = 1_000;
    through_small(&mut fifo, 20_000);
    fifo.insert(place(long_ago), &content(place(long_ago)));
    assert_eq!(fifo.counters.returned, 1, "names are forgotten as well");
}

#[test]
fn what_is_read_in_sequence_is_kept_the_second_time() {
    let mut fifo = fifo(100);
    let pass = |fifo: &mut Fifo| {
        let numbers = 0..60;
        let hits = numbers.filter(|&number| fifo.get(place(number)).is_some()).count();
        (0..60).for_each(|number| fifo.note(place(number), &content(place(number))));
        hits
    };
    assert_eq!([pass(&mut fifo), pass(&mut fifo), pass(&mut fifo)], [0, 0, 60]);
}

#[test]
fn warming_takes_nothing_from_what_is_there() {
    let mut fifo = fifo(100);
    (0..50).for_each(|number| fifo.insert(place(number), &content(place(number))));
    let warmed = (1_000..1_200).filter(|&number| fifo.warm(place(number), &content(place(number)))).count();
    assert_eq!(warmed, 50);
    assert!((0..50).all(|number| fifo.holds(place(number))));
    assert_eq!(fifo.counters.evicted, 0);
}

#[test]
fn a_smaller_limit_holds_at_once_and_a_larger_one_is_used() {
    let mut fifo = fifo(1000);
    read_all(&mut fifo, 2_000);
    assert!(fifo.is_full());
    fifo.set_limit(room_for(10));
    assert!(fifo.len() == 10 && fifo.used_bytes() <= room_for(10));
    fifo.set_limit(room_for(500));
    read_all(&mut fifo, 2_000);
    assert_eq!(fifo.len(), 500);
    fifo.set_limit(0);
    assert!(fifo.is_empty() && !read(&mut fifo, 1) && !read(&mut fifo, 1));
}

/// A run of `units`, each of which says which it is.
fn run(first: Place, units: u32) -> Buffer {
    let bytes: Vec<u8> = (0..units).flat_map(|unit| content(first.plus(unit))).collect();
    Buffer::copied(&bytes)
}

#[test]
fn what_was_read_ahead_is_let_go_when_it_has_been_read() {
    let mut ahead = Ahead::default();
    ahead.set_limit(64 * BLOCK as u64);
    let first = place(100);
    assert!(ahead.begin(32, Time(1)));
    ahead.end(32);
    ahead.put(first, run(first, 32), Time(2));
    assert_eq!(ahead.holds(first.plus(30), 9), 2);
    for unit in 0..32 {
        // By half blocks: the first half does not end its unit.
        for whole in [0, 1] {
            let data = ahead.take(first.plus(unit), 1, whole).expect("it is here");
            assert_eq!(data.bytes(), content(first.plus(unit)));
        }
    }
    assert!(ahead.used_bytes() == 0 && ahead.take(first, 1, 1).is_none());
    assert_eq!((ahead.counters.used, ahead.counters.wasted), (32, 0));
}

#[test]
fn a_run_gives_only_units_of_its_own() {
    let mut ahead = Ahead::default();
    ahead.set_limit(1 << 20);
    let first = Place::new(FamilyId(1), EgroupId(5), 10);
    ahead.put(first, run(first, 4), Time(1));
    assert!(ahead.take(Place::new(FamilyId(2), EgroupId(5), 11), 1, 1).is_none());
    assert!(ahead.take(Place::new(FamilyId(1), EgroupId(6), 11), 1, 1).is_none());
    assert!(ahead.take(first.plus(4), 1, 1).is_none(), "behind its end");
    assert_eq!(ahead.take(first.plus(2), 9, 9).map(|data| data.blocks()), Some(2));
}

#[test]
fn what_nobody_reads_makes_room_in_time_and_not_at_once() {
    let mut ahead = Ahead::default();
    ahead.set_limit(32 * BLOCK as u64);
    for number in [0, 100] {
        assert!(ahead.begin(16, Time(1)));
        ahead.end(16);
        ahead.put(place(number), run(place(number), 16), Time(1));
    }
    assert!(!ahead.begin(16, Time(1_000)), "it was only just read");
    let later = Time(10_000_000);
    assert!(ahead.begin(16, later) && ahead.begin(16, later));
    assert!(!ahead.begin(1, later), "what is under way cannot be dropped");
    assert_eq!((ahead.counters.wasted, ahead.counters.refused), (32, 2));
    ahead.set_limit(0);
    ahead.end(16);
    ahead.put(place(0), run(place(0), 16), later);
    assert_eq!(ahead.counters.wasted, 48, "there is no room for it any more");
    ahead.end(16);
    assert_eq!(ahead.used_bytes(), 0);
}

/// What `units` units from `first` on hold, some of it noise, as a drive has it.
fn frame(first: Place, units: u32) -> PackedFrame {
    let bytes: Vec<u8> = (0..units).flat_map(|behind| content(first.plus(behind))).collect();
    let mut packer = Compressor::new(Method::Lz4).expect("it packs");
    let mut out = vec![0; packed_bytes_max(bytes.len())];
    let len = packer.pack(&bytes, &mut out).expect("there is room");
    let bytes = Buffer::copied(&out[..len]);
    PackedFrame { first: first.unit, units, codec: packer.codec(), bytes }
}

#[test]
fn of_frames_more_units_fit_and_each_gives_what_was_asked_for() {
    const ROOM: u64 = 400;
    let mut cache = Cache::new(room_for(ROOM));
    let mut random = SmallRng::seed_from_u64(9);
    let first = |number: u64| Place::new(FamilyId(1), EgroupId(number / 100), (number % 100 * 8) as u32);
    for number in 0..60 {
        cache.units.insert_frame(first(number), &frame(first(number), 8));
    }
    assert_eq!(cache.units.frames(), 60);
    for _ in 0..2_000 {
        let number = random.random_range(0..60);
        let (skip, most) = (random.random_range(0..8), random.random_range(1..12));
        let from = first(number).plus(skip);
        let units = cache.get(from, most).expect("all of them fit: 480 units where 400 would");
        assert_eq!(units.blocks() as u32, most.min(8 - skip));
        for (behind, unit) in (0..).zip(units.bytes().chunks_exact(BLOCK)) {
            assert_eq!(unit, content(from.plus(behind)));
        }
    }
    assert!(cache.get(first(70), 1).is_none() && !cache.units.holds(first(70)));
    assert!(cache.units.holds(first(3).plus(7)) && !cache.units.holds(Place { unit: 9999, ..first(3) }));
    cache.forget(FamilyId(1));
    assert_eq!((cache.units.frames(), cache.used_bytes()), (0, 0));
}

#[test]
fn units_and_frames_share_the_limit() {
    let mut random = SmallRng::seed_from_u64(10);
    for _ in 0..10 {
        let mut limit = room_for(random.random_range(1..60));
        let mut cache = Cache::new(limit);
        for _ in 0..3_000 {
            let at = place(random.random_range(0..300) * 8);
            match random.random_range(0..20) {
                0 => {
                    limit = if random.random_bool(0.2) { 0 } else { room_for(random.random_range(1..60)) };
                    cache.set_limit(limit);
                }
                1..4 => cache.units.insert(at, &content(at)),
                4..6 => cache.units.note_frame(at, &frame(at, 8)),
                6..8 => drop(cache.units.warm_frame(at, &frame(at, 4))),
                8..12 => cache.units.insert_frame(at, &frame(at, random.random_range(1..=8))),
                _ => {
                    if let Some(units) = cache.get(at, 8) {
                        let wanted = (0..units.blocks() as u32).flat_map(|behind| content(at.plus(behind)));
                        assert!(units.bytes().iter().copied().eq(wanted));
                    }
                }
            }
            assert!(cache.used_bytes() <= limit, "{} bytes of {limit}", cache.used_bytes());
        }
    }
}
