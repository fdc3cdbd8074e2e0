//! Copies that are known to be bad, and cannot be made anew at once: they are not forgotten, and nothing that must end waits for
//! them for ever.

use crate::world::{FAMILY, World, data, pattern};
use weft_engine::buffer::BLOCK;
use weft_engine::formats::record::PageKind;
use weft_engine::identity::*;
use weft_engine::interface::*;
use weft_engine::keeper::StoredEgroup;
use weft_engine::limits::{LEAF_BLOCKS, Limits};

const MIB: usize = 1 << 20;
const SIZE: usize = 4 * MIB;
/// The group that the stories are about. Drive 1 is a member or was one.
const GROUP: GroupId = GroupId(0);
const SECONDS: u64 = 1_000_000;

fn group(members: [u32; 2], former: &[u32]) -> GroupView {
    let drives = |of: &[u32]| of.iter().copied().map(DriveId).collect();
    GroupView { members: drives(&members), former: drives(former) }
}

/// Another view: who is there, and where the egroups of the group are to be.
fn see(world: &mut World, version: u64, down: &[u32], group_0: &GroupView) {
    let away: Vec<_> = down.iter().map(|&drive| (drive, DriveState::Down)).collect();
    see_states(world, version, &away, group_0);
}

fn see_states(world: &mut World, version: u64, away: &[(u32, DriveState)], group_0: &GroupView) {
    let state = |drive| away.iter().find(|(of, _)| *of == drive).map_or(DriveState::Up, |(_, state)| *state);
    world.notices.clear();
    world.see(version, &[0, 1, 2].map(state), [group_0.clone(), group([1, 2], &[]), group([2, 0], &[])]);
}

/// Whether the owner says that all members of the group have everything.
fn is_whole(world: &World) -> bool {
    world
        .notices
        .iter()
        .any(|notice| matches!(notice, Notice::GroupsWhole { groups, .. } if groups.contains(&GROUP)))
}

/// A vDisk with data in the group, of which nothing is in memory; and an egroup there.
fn vdisk() -> (World, EgroupId) {
    vdisk_of(SIZE)
}

fn vdisk_of(size: usize) -> (World, EgroupId) {
    let mut world = World::new(3, 2, Limits::small());
    for at in (0..size).step_by(MIB) {
        assert_eq!(world.write(at as u64, &pattern(at as u64, MIB)), Reply::Done);
    }
    world.settle();
    world.restart(Limits::small());
    world.pass(5 * SECONDS);
    let directory = &world.shard.volume(FAMILY).expect("it is served").map().directory;
    let egroup = directory.in_group(GROUP).next().expect("something lies in the group");
    (world, egroup)
}

fn copy_of(world: &World, drive: u32, egroup: EgroupId) -> StoredEgroup {
    let keeper = world.shard.keeper(DriveId(drive)).expect("it is open");
    keeper.egroups().find(|copy| copy.egroup == egroup).expect("it has a copy")
}

/// The units of a copy as they lie on a drive.
fn units(world: &World, drive: u32, egroup: EgroupId) -> Vec<u8> {
    let copy = copy_of(world, drive, egroup);
    let first = copy.first as usize * BLOCK;
    world.areas[&(DriveId(drive), Area::Data)][first..first + copy.units as usize * BLOCK].to_vec()
}

/// The first unit of a copy goes bad; or is good again if it was.
fn rot(world: &mut World, drive: u32, egroup: EgroupId) {
    let first = copy_of(world, drive, egroup).first;
    rot_at(world, drive, first);
}

fn rot_at(world: &mut World, drive: u32, block: u64) {
    world.areas.get_mut(&(DriveId(drive), Area::Data)).expect("it exists")[block as usize * BLOCK] ^= 0x10;
}

/// What tells for what blocks its units were written.
fn rot_trailer(world: &mut World, drive: u32, egroup: EgroupId) {
    let copy = copy_of(world, drive, egroup);
    rot_at(world, drive, copy.first + u64::from(copy.units));
}

/// Reads everything. Whether all of it was right.
fn read_all(world: &mut World) -> bool {
    let mut good = true;
    for at in (0..SIZE).step_by(MIB) {
        match world.ask(Request::Read { offset: at as u64, len: MIB as u32 }) {
            Reply::Error(_) => good = false,
            reply => assert!(data(reply) == pattern(at as u64, MIB), "what is read is right"),
        }
    }
    good
}

/// Drive 2 has got the place of drive 1, which is away with its copies. Those of both members go bad. Gives whether these are
/// said to have everything long after that was found.
fn who_has_the_last_good_copy_is_away(world: &mut World, egroup: EgroupId) -> bool {
    let moved = group([0, 2], &[1]);
    see(world, 2, &[1], &moved);
    world.pass(10 * SECONDS);
    assert!(is_whole(world), "drive 2 has got its copies");
    rot(world, 0, egroup);
    rot(world, 2, egroup);
    assert!(!read_all(world), "no good copy is to be had");
    world.pass(10 * SECONDS);
    // Another drive goes and comes, so all are asked what they have.
    see(world, 3, &[1, 2], &moved);
    see(world, 4, &[1], &moved);
    world.pass(60 * SECONDS);
    is_whole(world)
}

#[test]
fn a_former_member_keeps_the_last_good_copy_however_long_it_is_away() {
    let (mut world, egroup) = vdisk();
    assert!(!who_has_the_last_good_copy_is_away(&mut world, egroup), "what drive 1 has is needed");
    let sound = units(&world, 1, egroup);
    // Who settles does not wait for it.
    world.settle();
    see(&mut world, 5, &[], &group([0, 2], &[1]));
    world.pass(10 * SECONDS);
    assert!(is_whole(&world), "it is back: {:?}", world.notices);
    assert!(units(&world, 0, egroup) == sound && units(&world, 2, egroup) == sound, "made anew");
    see(&mut world, 6, &[1], &group([0, 2], &[]));
    world.pass(10 * SECONDS);
    assert!(read_all(&mut world));
}

#[test]
fn nobody_waits_for_a_copy_that_is_bad_everywhere() {
    let (mut world, egroup) = vdisk();
    rot(&mut world, 1, egroup);
    assert!(!who_has_the_last_good_copy_is_away(&mut world, egroup), "it might be good");
    see(&mut world, 5, &[], &group([0, 2], &[1]));
    world.pass(10 * SECONDS);
    assert!(is_whole(&world), "it is not: {:?}", world.notices);
    world.settle();
}

#[test]
fn nobody_waits_for_a_drive_that_is_given_up() {
    let (mut world, egroup) = vdisk();
    assert!(!who_has_the_last_good_copy_is_away(&mut world, egroup), "it may come back");
    see_states(&mut world, 5, &[(1, DriveState::Lost)], &group([0, 2], &[1]));
    world.pass(10 * SECONDS);
    assert!(is_whole(&world), "what is nowhere is not waited for: {:?}", world.notices);
    world.settle();
}

/// Each of two copies is bad in another place. Gives whether one read has all of it, and what another is told of that has what is bad in
/// both.
fn each_copy_is_bad_somewhere_else() -> (bool, Option<u64>) {
    let (mut world, egroup) = vdisk();
    let rot_unit = |world: &mut World, drive: u32, unit: u64| {
        let first = copy_of(world, drive, egroup).first;
        rot_at(world, drive, first + unit);
    };
    rot_unit(&mut world, 0, 3);
    rot_unit(&mut world, 1, 5);
    let is_read = read_all(&mut world);
    // They are made anew from each other.
    world.pass(10 * SECONDS);
    rot_unit(&mut world, 0, 70);
    rot_unit(&mut world, 1, 70);
    world.restart(Limits::small());
    for at in (0..SIZE).step_by(MIB) {
        if let Reply::Error(error) = world.ask(Request::Read { offset: at as u64, len: MIB as u32 }) {
            let RequestError::Damaged { block } = error else { panic!("{error:?}") };
            return (is_read, Some(block % (MIB / BLOCK) as u64));
        }
    }
    (is_read, None)
}

#[test]
fn a_read_takes_each_block_from_whoever_has_it_and_tells_which_one_nobody_has() {
    let (is_read, told) = each_copy_is_bad_somewhere_else();
    assert!(is_read);
    assert_eq!(told, Some(70));
}

#[cfg(feature = "sabotage")]
#[test]
fn giving_up_a_run_as_a_whole_is_seen() {
    use weft_engine::sabotage::{Bug, with};

    let (is_read, told) = with(Bug::RunsGivenUpWhole, each_copy_is_bad_somewhere_else);
    assert!(!is_read);
    assert_ne!(told, Some(70));
}

/// A page of the map has several units, and each of its two copies is bad in another of them. Gives whether what it tells of is read, and
/// whether what is written there comes into the map.
fn each_copy_of_a_page_is_bad_somewhere_else() -> (bool, bool) {
    let mut world = World::new(2, 2, Limits::small());
    // No block lies behind the one before it.
    let blocks: Vec<u64> = (0..LEAF_BLOCKS).step_by(2).chain((1..LEAF_BLOCKS).step_by(2)).collect();
    let write = |world: &mut World, block: u64, seed: u64| {
        let at = block * BLOCK as u64;
        assert_eq!(world.write(at, &pattern(seed, BLOCK)), Reply::Done);
    };
    for half in blocks.chunks(blocks.len() / 2) {
        half.iter().for_each(|&block| write(&mut world, block, block));
        world.settle();
    }
    let place_of_page = |world: &World| {
        let volume = world.shard.volume(FAMILY).filter(|volume| !volume.is_failed());
        volume.and_then(|volume| volume.map().index.get(PageKind::Leaf, 0))
    };
    let place = place_of_page(&world).expect("it is in the map");
    assert!(place.units > 1, "{place:?}");
    let rot_page = |world: &mut World| {
        for (drive, unit) in [(0, 0), (1, 1)] {
            let first = copy_of(world, drive, place.egroup).first;
            rot_at(world, drive, first + u64::from(place.unit) + unit);
        }
        world.restart(Limits::small());
    };
    rot_page(&mut world);
    let last = blocks[blocks.len() - 1];
    let read = Request::Read { offset: last * BLOCK as u64, len: BLOCK as u32 };
    let is_read = match world.ask(read) {
        Reply::Error(_) => false,
        reply => data(reply) == pattern(last, BLOCK),
    };
    world.pass(10 * SECONDS);
    assert!(units(&world, 0, place.egroup) == units(&world, 1, place.egroup), "both are made anew");
    rot_page(&mut world);
    write(&mut world, 1, 7);
    world.pass(60 * SECONDS);
    (is_read, place_of_page(&world).is_some_and(|merged| merged != place))
}

#[test]
fn a_page_of_the_map_is_put_together_from_what_each_copy_has() {
    assert_eq!(each_copy_of_a_page_is_bad_somewhere_else(), (true, true));
}

#[cfg(feature = "sabotage")]
#[test]
fn giving_up_a_page_as_a_whole_is_seen() {
    use weft_engine::sabotage::{Bug, with};
    assert_eq!(with(Bug::PagesGivenUpWhole, each_copy_of_a_page_is_bad_somewhere_else), (false, false));
}

/// Drive 1 is given up, and drive 2 has its place.
fn give_up_drive_1(world: &mut World) {
    see_states(world, 2, &[(1, DriveState::Lost)], &group([0, 2], &[1]));
    world.pass(30 * SECONDS);
}

/// The blocks that cannot be read; all others are right.
fn unreadable_blocks(world: &mut World) -> usize {
    let read = |at: usize| match world.ask(Request::Read { offset: at as u64, len: BLOCK as u32 }) {
        Reply::Error(RequestError::Damaged { .. }) => true,
        Reply::Error(error) => panic!("{error:?}"),
        reply => {
            let right = &pattern((at / MIB * MIB) as u64, MIB)[at % MIB..][..BLOCK];
            assert!(data(reply) == right, "what is read at {at} is right");
            false
        }
    };
    (0..SIZE).step_by(BLOCK).map(read).filter(|&is_bad| is_bad).count()
}

/// A unit is bad on the only drive that has its egroup. Gives whether the other member gets the rest.
fn what_is_left_is_copied() -> bool {
    let (mut world, egroup) = vdisk();
    rot(&mut world, 0, egroup);
    let good = units(&world, 1, egroup);
    give_up_drive_1(&mut world);
    if !is_whole(&world) {
        return false;
    }
    assert!(units(&world, 2, egroup)[BLOCK..] == good[BLOCK..], "all but that unit");
    assert_eq!(world.shard.counters().copies_partial, 1);
    let is_told = |notice: &Notice| {
        matches!(notice, Notice::Damage { drive: DriveId(2), damage: Damage::CopyPartial { .. } })
    };
    assert!(world.notices.iter().any(is_told), "{:?}", world.notices);
    assert_eq!(unreadable_blocks(&mut world), 1);
    // Whoever reads it finds both bad, and neither can be made better: nothing is written in vain.
    world.pass(10 * SECONDS);
    assert_eq!(world.shard.counters().copies_partial, 1);
    // The rest outlives the drive that it came from. (Drive 1 comes back with what it had, which is bad as well by now.)
    rot(&mut world, 1, egroup);
    see_states(&mut world, 3, &[(0, DriveState::Lost)], &group([1, 2], &[0]));
    world.pass(10 * SECONDS);
    assert_eq!(unreadable_blocks(&mut world), 1);
    true
}

#[test]
fn a_unit_that_is_bad_everywhere_keeps_nothing_else_from_having_its_copies() {
    assert!(what_is_left_is_copied());
}

#[test]
fn what_a_drive_gives_again_is_not_lost_because_a_copy_was_made_without_it() {
    let (mut world, egroup) = vdisk();
    let sound = units(&world, 1, egroup);
    rot(&mut world, 0, egroup);
    give_up_drive_1(&mut world);
    assert!(is_whole(&world) && units(&world, 2, egroup) != sound);
    rot(&mut world, 0, egroup);
    assert_eq!(unreadable_blocks(&mut world), 0, "drive 0 is asked whatever drive 2 says");
    world.pass(10 * SECONDS);
    // From memory nobody learns that a copy is bad.
    world.restart(Limits::small());
    for turn in 0..4 {
        assert_eq!(unreadable_blocks(&mut world), 0, "turn {turn}");
        world.pass(10 * SECONDS);
    }
    see_states(&mut world, 4, &[(0, DriveState::Lost)], &group([1, 2], &[0]));
    world.pass(10 * SECONDS);
    assert_eq!(unreadable_blocks(&mut world), 0, "drive 2 was given what it lacked");
}

/// Drive 0, the only one that has an egroup, does not give `all` of it, or its trailer and some units, for some seconds. Gives whether
/// all of it is on drive 2 when drive 0 may be forgotten.
fn a_drive_does_not_give_it_for_a_while(all: bool, seconds: u64) -> bool {
    let (mut world, egroup) = vdisk();
    let sound = units(&world, 1, egroup);
    let copy = copy_of(&world, 0, egroup);
    let change = |world: &mut World| {
        let bad = (0..u64::from(copy.units)).filter(|unit| all || unit % 2 == 0);
        bad.for_each(|unit| rot_at(world, 0, copy.first + unit));
        rot_trailer(world, 0, egroup);
    };
    change(&mut world);
    see_states(&mut world, 2, &[(1, DriveState::Lost)], &group([0, 2], &[1]));
    for _ in 0..10 * seconds {
        world.pass(SECONDS / 10);
        if is_whole(&world) {
            return false;
        }
    }
    assert!(world.shard.counters().copies_bad > 0, "it was asked for them");
    change(&mut world);
    world.pass(30 * SECONDS);
    assert!(is_whole(&world), "{:?}", world.notices);
    units(&world, 2, egroup) == sound
}

#[test]
fn what_a_drive_does_not_give_for_some_seconds_is_not_lost() {
    assert!(a_drive_does_not_give_it_for_a_while(false, 4));
}

#[test]
fn a_drive_that_gives_nothing_has_lost_nothing_however_long_it_is_so() {
    assert!(a_drive_does_not_give_it_for_a_while(true, 60));
}

#[cfg(feature = "sabotage")]
#[test]
fn believing_the_first_fault_or_a_silent_drive_is_seen() {
    use weft_engine::sabotage::{Bug, with};

    assert!(!with(Bug::FirstFaultBelieved, || a_drive_does_not_give_it_for_a_while(false, 4)));
    assert!(!with(Bug::SilentSourceBelieved, || a_drive_does_not_give_it_for_a_while(true, 60)));
}

#[test]
fn what_a_drive_gives_by_turns_is_put_together() {
    let (mut world, egroup) = vdisk();
    let sound = units(&world, 1, egroup);
    let copy = copy_of(&world, 0, egroup);
    // Each block of it is bad for a second and good for another one, the odd ones in the one, the others and the trailer in the other.
    let change = |world: &mut World, odd: u64| {
        let bad = (0..u64::from(copy.units)).filter(|unit| unit % 2 == odd);
        bad.for_each(|unit| rot_at(world, 0, copy.first + unit));
    };
    change(&mut world, 1);
    see_states(&mut world, 2, &[(1, DriveState::Lost)], &group([0, 2], &[1]));
    for turn in 0..30 {
        world.pass(SECONDS);
        change(&mut world, (turn + 1) % 2);
        change(&mut world, turn % 2);
        rot_trailer(&mut world, 0, egroup);
    }
    assert!(units(&world, 2, egroup) == sound);
    assert_eq!(world.shard.counters().copies_partial, 0);
}

/// Two drives have an egroup: of one the trailer is bad, of the other a unit. Gives whether a third one gets all of it.
fn each_source_has_something_bad(without_trailer: u32, without_unit: u32) -> bool {
    let (mut world, egroup) = vdisk();
    let sound = units(&world, 0, egroup);
    rot_trailer(&mut world, without_trailer, egroup);
    rot(&mut world, without_unit, egroup);
    see(&mut world, 2, &[], &group([0, 2], &[1]));
    world.pass(SECONDS);
    units(&world, 2, egroup) == sound && world.shard.counters().copies_partial == 0
}

#[test]
fn a_copy_without_a_trailer_gives_the_units_that_others_lack() {
    assert!(each_source_has_something_bad(0, 1));
    assert!(each_source_has_something_bad(1, 0));
}

#[test]
fn many_egroups_with_something_bad_have_their_turns() {
    let (mut world, _) = vdisk_of(20 * MIB);
    let directory = &world.shard.volume(FAMILY).expect("it is served").map().directory;
    let all: Vec<EgroupId> = directory.in_group(GROUP).collect();
    assert!(all.len() > 5, "more than are waited for at a time: {}", all.len());
    all.iter().for_each(|&egroup| rot(&mut world, 0, egroup));
    give_up_drive_1(&mut world);
    world.pass(30 * SECONDS);
    assert!(is_whole(&world), "{:?}", world.notices);
    assert_eq!(world.shard.counters().copies_partial, all.len() as u64);
}

#[test]
fn of_what_is_bad_on_two_drives_only_what_is_so_on_both_is_lacking() {
    let (mut world, egroup) = vdisk();
    let sound = units(&world, 0, egroup);
    // Of each drive another unit is bad, and the trailer of one of them; the one that both lack is bad everywhere.
    for (drive, also) in [(0, 1), (1, 2)] {
        let first = copy_of(&world, drive, egroup).first;
        rot_at(&mut world, drive, first + also);
        rot_at(&mut world, drive, first + 7);
    }
    rot_trailer(&mut world, 0, egroup);
    see(&mut world, 2, &[], &group([0, 2], &[1]));
    world.pass(30 * SECONDS);
    assert!(is_whole(&world), "{:?}", world.notices);
    let differs =
        |unit: &usize| units(&world, 2, egroup)[unit * BLOCK..][..BLOCK] != sound[unit * BLOCK..][..BLOCK];
    assert_eq!((0..200).filter(differs).collect::<Vec<_>>(), [7]);
}

/// Nobody can tell for what blocks the units of an egroup were written. Gives whether it gets a copy all the same.
fn a_trailer_is_bad_everywhere(is_unit_bad: bool) -> bool {
    let (mut world, egroup) = vdisk();
    rot_trailer(&mut world, 0, egroup);
    if is_unit_bad {
        rot(&mut world, 0, egroup);
    }
    let (good, skip) = (units(&world, 1, egroup), if is_unit_bad { BLOCK } else { 0 });
    give_up_drive_1(&mut world);
    if !is_whole(&world) {
        return false;
    }
    assert!(units(&world, 2, egroup)[skip..] == good[skip..], "all that is good");
    rot_trailer(&mut world, 1, egroup);
    if is_unit_bad {
        rot(&mut world, 1, egroup);
    }
    see_states(&mut world, 3, &[(0, DriveState::Lost)], &group([1, 2], &[0]));
    world.pass(30 * SECONDS);
    assert!(is_whole(&world), "what was copied once is copied again: {:?}", world.notices);
    assert_eq!(unreadable_blocks(&mut world), usize::from(is_unit_bad));
    // Nobody moves its units somewhere else, since nobody knows whose they are.
    for at in (0..SIZE).step_by(2 * BLOCK) {
        let block = &pattern((at / MIB * MIB) as u64, MIB)[at % MIB..][..BLOCK];
        assert_eq!(world.write(at as u64, block), Reply::Done);
    }
    world.settle();
    world.pass(60 * SECONDS);
    assert!(unreadable_blocks(&mut world) <= usize::from(is_unit_bad));
    true
}

#[test]
fn an_egroup_of_which_nobody_knows_for_what_it_was_written_is_copied() {
    assert!(a_trailer_is_bad_everywhere(false));
    assert!(a_trailer_is_bad_everywhere(true));
}

/// So the stories above see it when it happens.
#[cfg(feature = "sabotage")]
#[test]
fn giving_up_the_rest_is_seen() {
    use weft_engine::sabotage::{Bug, with};

    let copied =
        with(Bug::PartialCopiesGivenUp, || [what_is_left_is_copied(), a_trailer_is_bad_everywhere(false)]);
    assert_eq!(copied, [false; 2]);
}

#[cfg(feature = "sabotage")]
#[test]
#[should_panic(expected = "what is read at")]
fn taking_for_good_what_a_copy_lacks_is_seen() {
    use weft_engine::sabotage::{Bug, with};

    with(Bug::LackingUnitsSound, what_is_left_is_copied);
}

/// The copy on drive 0 is found bad while drive 1 is away, and when that is back drive 0 is not. Gives whether it is made
/// anew when both are there.
fn members_are_away_in_turn() -> bool {
    let (mut world, egroup) = vdisk();
    let members = group([0, 1], &[]);
    see(&mut world, 2, &[1], &members);
    rot(&mut world, 0, egroup);
    assert!(!read_all(&mut world), "the good copy is away");
    see(&mut world, 3, &[0], &members);
    world.pass(10 * SECONDS);
    see(&mut world, 4, &[], &members);
    world.pass(10 * SECONDS);
    units(&world, 0, egroup) == units(&world, 1, egroup)
}

#[test]
fn a_bad_copy_on_a_drive_that_is_away_at_its_turn_has_another_one() {
    assert!(members_are_away_in_turn());
}

/// Drive 0 goes away while its bad copy is being written anew. Gives whether that is done when it is back.
fn its_drive_goes_in_the_middle() -> bool {
    let (mut world, egroup) = vdisk();
    let members = group([0, 1], &[]);
    see(&mut world, 2, &[1], &members);
    rot(&mut world, 0, egroup);
    assert!(!read_all(&mut world), "the good copy is away");
    world.hung = Some((DriveId(0), Area::Data, 0));
    see(&mut world, 3, &[], &members);
    world.pass(3 * SECONDS);
    assert!(units(&world, 0, egroup) != units(&world, 1, egroup), "it is on its way");
    see(&mut world, 4, &[0], &members);
    world.open_drive(DriveId(0), false);
    assert!(world.shard.keeper(DriveId(0)).is_none(), "what was asked of it before has to end first");
    world.let_go();
    world.pass(3 * SECONDS);
    see(&mut world, 5, &[], &members);
    world.pass(10 * SECONDS);
    units(&world, 0, egroup) == units(&world, 1, egroup)
}

#[test]
fn a_bad_copy_whose_drive_goes_in_the_middle_is_made_when_that_is_back() {
    assert!(its_drive_goes_in_the_middle());
}

/// So the stories above see it when it happens.
#[cfg(feature = "sabotage")]
#[test]
fn forgetting_bad_copies_is_seen() {
    use weft_engine::sabotage::{Bug, with};

    let (is_told, mended) = with(Bug::BadCopyForgotten, || {
        let (mut world, egroup) = vdisk();
        let is_told = who_has_the_last_good_copy_is_away(&mut world, egroup);
        (is_told, [members_are_away_in_turn(), its_drive_goes_in_the_middle()])
    });
    assert!(is_told, "a former member may go although it has the last good copy");
    assert_eq!(mended, [false; 2], "nobody thinks of it again");
}
