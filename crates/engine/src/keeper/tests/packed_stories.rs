//! Packed egroups on a drive, one story at a time.

use super::egroup_stories::read;
use super::*;
use crate::counters::Counters;
use crate::egroup::pack::Packer;
use crate::egroup::units::Units;
use crate::formats::packing::Packing;
use crate::identity::EgroupId;
use crate::interface::{Compression, Method};
use crate::message::{BadUnit, Class, Content, Lacking, UnitRun};
use rand::RngCore;
use std::sync::Arc;

const EGROUP: EgroupId = EgroupId(2 << 32 | 7);

/// Units of which some compress, in runs of four.
fn mixed(seed: u64, count: usize) -> Units {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut units = Units::default();
    for at in 0..count {
        let mut pages = Pages::zeroed(BLOCK);
        if at / 4 % 3 == 1 {
            random.fill_bytes(pages.bytes_mut());
        } else {
            random.fill_bytes(&mut pages.bytes_mut()[..900]);
        }
        units.push(at as u64 + 100, pages.freeze());
    }
    units
}

fn packed(units: &Units, method: Method, frame_units: u8) -> (Arc<Packing>, Buffer) {
    let lz4 = Compression { method, frame_units, cold: None, share: false };
    let mut packer = Packer::new(lz4, 0).expect("it packs");
    while !packer.advance(units) {}
    match packer.finish(units, &mut Counters::default()) {
        Content::Packed { packing, bytes } => (packing, bytes),
        Content::Units(_) | Content::Lost { .. } => panic!("a part of it compresses"),
    }
}

fn write(units: &Units, packing: &Arc<Packing>, bytes: &Buffer, replace: bool) -> Question {
    let content = Content::Packed { packing: Arc::clone(packing), bytes: bytes.clone() };
    Question::WriteEgroup {
        egroup: EGROUP,
        class: Class::Data,
        content,
        blocks: units.blocks.clone(),
        replace,
        sharing: None,
        lacking: Lacking::default(),
    }
}

fn frames(runs: &[(u32, u32)]) -> Question {
    let runs = runs.iter().map(|&(first, count)| UnitRun { first, count }).collect();
    Question::ReadFrames { egroup: EGROUP, runs }
}

fn units_read(rig: &mut Rig, runs: &[(u32, u32)]) -> Vec<Result<Buffer, BadUnit>> {
    match rig.ask(1, 1, read(EGROUP, runs)) {
        Ok(Answer::Units(units)) => units,
        other => panic!("{other:?}"),
    }
}

fn wanted(units: &Units, first: u32, count: u32) -> Vec<u8> {
    let range = first as usize..(first + count) as usize;
    units.data[range].iter().flat_map(|unit| unit.bytes()).copied().collect()
}

#[test]
fn any_units_of_a_packed_egroup_are_read_as_they_were_also_after_a_crash() {
    for (seed, method, frame_units) in
        [(1, Method::Lz4, 4), (2, Method::Zstd { level: 3 }, 8), (3, Method::Lz4, 1), (4, Method::Lz4, 2)]
    {
        let mut rig = Rig::small(seed);
        let count = 250;
        let units = mixed(seed, count as usize);
        let (packing, bytes) = packed(&units, method, frame_units);
        assert_eq!(rig.ask(1, 1, write(&units, &packing, &bytes, false)), Ok(Answer::EgroupWritten));
        for _ in 0..2 {
            let stored = rig.keeper.egroups().next().expect("it is stored");
            assert_eq!((stored.units, stored.data_blocks), (count, packing.blocks()));
            assert!(stored.blocks < u64::from(count), "it takes less than its units would");
            for _ in 0..40 {
                let runs: Vec<(u32, u32)> = (0..rig.random.random_range(1..5))
                    .map(|_| {
                        let first = rig.random.random_range(0..count);
                        (first, rig.random.random_range(1..=(count - first).min(40)))
                    })
                    .collect();
                for (&(first, count), read) in runs.iter().zip(units_read(&mut rig, &runs)) {
                    assert!(read.expect("sound").bytes() == wanted(&units, first, count), "other bytes");
                }
            }
            let outside = units_read(&mut rig, &[(count, 1), (count - 1, 2), (3, 0)]);
            assert_eq!(outside[..2], [Err(BadUnit::damaged(count)), Err(BadUnit::damaged(count - 1))]);
            let described =
                Answer::Egroup { blocks: units.blocks.clone(), packing: Some(Arc::clone(&packing)) };
            assert_eq!(rig.ask(1, 1, Question::DescribeEgroup { egroup: EGROUP }), Ok(described));
            let Ok(Answer::Frames(all)) = rig.ask(1, 1, frames(&[(0, count)])) else {
                panic!("frames are given")
            };
            let all = all[0].as_ref().expect("sound");
            assert!(*all.bytes() == bytes.bytes()[..packing.bytes() as usize], "as they are stored");
            rig.crash();
        }
        // The same again changes nothing; another name for the same is another egroup.
        assert_eq!(rig.ask(1, 1, write(&units, &packing, &bytes, false)), Ok(Answer::EgroupWritten));
        assert_eq!(rig.keeper.egroups().count(), 1);
        assert_eq!(rig.keeper.unit_blocks().2, 0, "no block is lost");
    }
}

#[test]
fn units_of_one_frame_are_unpacked_together() {
    let mut rig = Rig::small(8);
    let units = mixed(8, 120);
    let (packing, bytes) = packed(&units, Method::Lz4, 8);
    rig.ask(1, 1, write(&units, &packing, &bytes, false)).expect("written");
    let of_eight = |unit: &u32| packing.frame_of(*unit).units == 8 && !packing.frame_of(*unit).is_raw();
    let first = packing.frame_of((0..120).find(of_eight).expect("a compressed frame")).first;
    let runs = [(first, 1), (first + 1, 2), (first + 5, 1), (first + 6, 2), (first + 6, 1), (first + 4, 5)];
    let before = rig.effects.tally.frames_unpacked;
    for (&(first, count), read) in runs.iter().zip(units_read(&mut rig, &runs)) {
        assert!(read.expect("sound").bytes() == wanted(&units, first, count), "other bytes");
    }
    let behind = packing.frame_of(first + 8);
    let last = if behind.is_raw() { 1 } else { 2 };
    assert_eq!(
        rig.effects.tally.frames_unpacked - before,
        2 + last,
        "those in front, the same again, and what goes beyond it"
    );
    // What is bad is told of each.
    let first_block = rig.keeper.egroups().next().expect("it is stored").first;
    let at = u64::from(packing.frame_of(first).offset + 20);
    let at_drive = (Area::Data, first_block + at / BLOCK as u64);
    rig.drive.durable.get_mut(&at_drive).expect("written")[at as usize % BLOCK] ^= 1;
    let bad = |unit: u32| Err(BadUnit::damaged(unit));
    assert_eq!(units_read(&mut rig, &[(first, 1), (first + 3, 4)]), [bad(first), bad(first + 3)]);
}

#[test]
fn only_the_frame_that_is_bad_is_told_to_be_and_a_repair_mends_it() {
    let mut rig = Rig::small(5);
    let units = mixed(5, 120);
    let (packing, bytes) = packed(&units, Method::Lz4, 4);
    rig.ask(1, 1, write(&units, &packing, &bytes, false)).expect("written");
    let first = rig.keeper.egroups().next().expect("it is stored").first;
    let frame = packing.frame_of(44);
    assert!(frame.units == 4 && !frame.is_raw(), "a compressed frame");
    // A fault that passes is nobody's business.
    let at = (Area::Data, first + u64::from(frame.blocks().start));
    rig.drive.flips.insert(at);
    assert!(units_read(&mut rig, &[(0, 120)])[0].is_ok());
    assert_eq!(rig.damages(), 0);
    let at = (Area::Data, first + u64::from(frame.offset + 20) / BLOCK as u64);
    rig.drive.durable.get_mut(&at).expect("written")[(frame.offset as usize + 20) % BLOCK] ^= 1;
    let read = units_read(&mut rig, &[(frame.first, 2), (frame.first + 2, 2), (frame.end(), 4), (0, 20)]);
    assert_eq!(read[..2], [Err(BadUnit::damaged(frame.first)), Err(BadUnit::damaged(frame.first + 2))]);
    assert!(read[2].as_ref().expect("sound").bytes() == wanted(&units, frame.end(), 4), "its neighbour");
    assert!(read[3].is_ok());
    assert_eq!(rig.damages(), 1);
    let bad = rig.ask(1, 1, frames(&[(frame.first, 4), (0, 8)]));
    assert!(matches!(bad, Ok(Answer::Frames(runs)) if runs[0].is_err() && runs[1].is_ok()));
    assert_eq!(rig.ask(1, 1, write(&units, &packing, &bytes, true)), Ok(Answer::EgroupWritten));
    let read = units_read(&mut rig, &[(0, 120)]);
    assert!(read[0].as_ref().expect("mended").bytes() == wanted(&units, 0, 120));
    let (_, stored, moving) = rig.keeper.unit_blocks();
    assert_eq!((stored, moving), (u64::from(packing.blocks()) + 1, 0), "the former copy is gone");
}

#[test]
fn frames_that_do_not_unpack_are_bad_whatever_their_checksum_says() {
    let mut rig = Rig::small(6);
    let units = mixed(6, 40);
    let (packing, bytes) = packed(&units, Method::Zstd { level: 1 }, 4);
    let mut nonsense = Pages::copied(bytes.bytes());
    rig.random.fill_bytes(nonsense.bytes_mut());
    rig.ask(1, 1, write(&units, &packing, &nonsense.freeze(), false)).expect("keepers do not look inside");
    let bad = (0..40).find(|&unit| !packing.frame_of(unit).is_raw()).expect("something is compressed");
    assert_eq!(units_read(&mut rig, &[(bad, 1)]), [Err(BadUnit::damaged(bad))]);
}

#[cfg(feature = "sabotage")]
#[test]
fn planted_bugs_give_out_what_is_damaged_or_another_frame() {
    use crate::sabotage::{Bug, with};
    let mut rig = Rig::small(7);
    let units = mixed(7, 120);
    let (packing, bytes) = packed(&units, Method::Lz4, 2);
    rig.ask(1, 1, write(&units, &packing, &bytes, false)).expect("written");
    let other =
        |read: &[Result<Buffer, BadUnit>]| read[0].as_ref().is_ok_and(|b| b.bytes() != wanted(&units, 0, 8));
    assert!(!other(&units_read(&mut rig, &[(0, 8)])));
    let swapped = with(Bug::OtherFrame, || units_read(&mut rig, &[(0, 8)]));
    assert!(other(&swapped), "the frame behind is given");
    // The first bytes of a frame are literals: damage there unpacks.
    let first = rig.keeper.egroups().next().expect("it is stored").first;
    rig.drive.durable.get_mut(&(Area::Data, first)).expect("written")[50] ^= 1;
    assert!(units_read(&mut rig, &[(0, 8)])[0].is_err());
    let unchecked = with(Bug::FrameNotChecked, || units_read(&mut rig, &[(0, 8)]));
    assert!(other(&unchecked), "damage is given out");
}
