//! Members of a log that know less of its end than others, because the power went, or because a drive forgot what it had acknowledged (decision
//! 0060): what becomes of that when they answer late, go away while they are given it, have full rings, or lack more than the end.

use crate::reopened::{
    a_checkpoint_on_one, begin_a_frame, damage, has_block, is_failed, is_ready, last_block, log,
    open_without, reads_well, see, settled, settled_on, the_first_forgot,
};
use crate::world::{World, data, pattern};
use weft_engine::buffer::BLOCK;
use weft_engine::identity::*;
use weft_engine::interface::*;
use weft_engine::limits::Limits;

const SECONDS: u64 = 1_000_000;
const BOTH: [DriveState; 2] = [DriveState::Up; 2];

fn open_family(world: &mut World) {
    world.step(Input::Order(Order::OpenFamily(world.record.clone())));
}

fn has_the_write(world: &mut World) -> bool {
    is_ready(world) && !is_failed(world) && world.read(2 << 20, BLOCK as u32) == pattern(7, BLOCK)
}

/// Who has forgotten answers first; the other comes when the log is read already. Gives whether what it has is there.
fn the_other_answers_while_the_log_is_read() -> bool {
    let mut world = the_first_forgot();
    world.open_drive(DriveId(0), false);
    see(&mut world, 1, &[DriveState::Up, DriveState::Down]);
    // The fence, and then nothing comes of what is read.
    world.hung = Some((DriveId(0), Area::Log, 1));
    open_family(&mut world);
    assert_eq!(world.hanging(), [Area::Log], "it is being read");
    world.open_drive(DriveId(1), false);
    see(&mut world, 2, &BOTH);
    world.pass(SECONDS);
    assert!(!is_ready(&world));
    world.carry_on();
    world.pass(SECONDS);
    has_the_write(&mut world)
}

#[test]
fn who_answers_while_the_log_is_read_is_heard_about_its_end() {
    assert!(the_other_answers_while_the_log_is_read());
}

/// Who has forgotten goes away when it is given that, and the opening is cut short when the config store has taken a new part of the log. Then
/// that drive is lost. Gives whether the other one still has the write.
fn it_goes_away_when_it_is_given_something() -> bool {
    let mut world = the_first_forgot();
    world.open_drives(false);
    world.unheard = true;
    world.hung = Some((DriveId(0), Area::Log, 1));
    world.open_families();
    world.pass(SECONDS);
    assert_eq!(world.hanging(), [Area::Log], "it is given what it lacks");
    see(&mut world, 3, &[DriveState::Down, DriveState::Up]);
    world.let_go();
    world.pass(10 * SECONDS);
    world.unheard = false;
    open_without(&mut world, 0);
    has_the_write(&mut world)
}

#[test]
fn what_somebody_forgot_is_not_taken_from_the_others_when_it_goes_away() {
    assert!(it_goes_away_when_it_is_given_something());
}

/// The first drive forgets the last write of a part of the log, and all of the part behind that. Openings are cut short `times`, and one goes
/// well; then the other drive is lost. Gives whether all was given back to the first.
fn it_lacks_more_than_the_end(times: usize) -> bool {
    let mut world = settled();
    let before = log(&world, 0).to_vec();
    assert_eq!(world.write(2 << 20, &pattern(7, BLOCK)), Reply::Done);
    world.restart(Limits::small());
    assert_eq!(world.write(3 << 20, &pattern(8, BLOCK)), Reply::Done);
    world.areas.insert((DriveId(0), Area::Log), before);
    for _ in 0..times {
        world.kill(Limits::small());
        world.open_drives(false);
        world.unheard = true;
        world.open_families();
        world.unheard = false;
    }
    world.restart(Limits::small());
    open_without(&mut world, 1);
    has_the_write(&mut world) && world.read(3 << 20, BLOCK as u32) == pattern(8, BLOCK)
}

#[test]
fn whoever_lacks_more_than_the_end_is_given_all_of_it() {
    for times in 0..3 {
        assert!(it_lacks_more_than_the_end(times), "cut short {times} times");
    }
}

/// The newest checkpoint came to the first member only. A block behind it cannot be read there, and the other has begun a frame that was never
/// finished: nobody is sure. The vDisk is opened, and the other does no more than so much; then the first drive is lost. Gives whether the other
/// has all.
fn a_torn_member_beside_a_damaged_one(area: Area, left: u32) -> bool {
    let mut world = a_checkpoint_on_one();
    begin_a_frame(&mut world, 1);
    world.unreadable = [(DriveId(0), Area::Log, last_block(&world, 0) + 1)].into();
    world.open_drives(false);
    // It tries to read it for a while.
    world.pass(60 * SECONDS);
    world.hung = Some((DriveId(1), area, left));
    world.open_families();
    world.pass(100_000);
    world.hung = None;
    open_without(&mut world, 0);
    if !is_ready(&world) || is_failed(&world) {
        return false;
    }
    reads_well(&mut world, &pattern(7, BLOCK));
    true
}

#[test]
fn a_torn_member_is_given_what_it_lacks_when_nobody_is_sure() {
    for left in 0..24 {
        assert!(a_torn_member_beside_a_damaged_one(Area::Log, left), "{left} things done with its log");
        assert!(a_torn_member_beside_a_damaged_one(Area::Data, left), "{left} things done with its data");
    }
}

/// The block of the drive's log where this write is.
fn place_of(world: &World, drive: u32, seed: u64) -> usize {
    let wanted = pattern(seed, BLOCK);
    log(world, drive).chunks(BLOCK).rposition(|block| block == wanted).expect("it is in the log")
}

/// Changes what this write has put into the log of the drive.
fn damage_write(world: &mut World, drive: u32, seed: u64) {
    let place = place_of(world, drive, seed);
    damage(world, drive, place);
}

/// Writes at 2 to 6 MiB can be read, but for those that are lost.
fn reads_all_but(world: &mut World, lost: &[u64]) {
    for at in 2..7 {
        let reply = world.ask(Request::Read { offset: at << 20, len: BLOCK as u32 });
        if lost.contains(&at) {
            assert!(matches!(reply, Reply::Error(RequestError::Damaged { .. })), "{at}: {reply:?}");
        } else {
            assert!(data(reply) == pattern(at, BLOCK), "{at} MiB");
        }
    }
}

#[test]
fn what_is_lost_is_given_to_nobody_and_the_rest_is_served() {
    let mut world = settled();
    let before = log(&world, 0).to_vec();
    assert_eq!(world.write(2 << 20, &pattern(2, BLOCK)), Reply::Done);
    world.restart(Limits::small());
    for at in 3..7 {
        assert_eq!(world.write(at << 20, &pattern(at, BLOCK)), Reply::Done);
    }
    // The first drive has forgotten everything since, and two of the writes are damaged on the other.
    world.areas.insert((DriveId(0), Area::Log), before);
    for lost in [2, 4] {
        damage_write(&mut world, 1, lost);
    }
    world.restart(Limits::small());
    reads_all_but(&mut world, &[2, 4]);
}

/// The first of so many drives forgets what came last, of which a write is damaged on the second one.
fn forgotten_and_damaged(drives: u32) -> World {
    let mut world = settled_on(drives);
    for at in 2..4 {
        assert_eq!(world.write(at << 20, &pattern(at, BLOCK)), Reply::Done);
    }
    let before = log(&world, 0).to_vec();
    for at in 4..7 {
        assert_eq!(world.write(at << 20, &pattern(at, BLOCK)), Reply::Done);
    }
    world.areas.insert((DriveId(0), Area::Log), before);
    damage_write(&mut world, 1, 4);
    world
}

/// Gives whether everything else is there, also after another opening and out of the log.
fn what_one_forgot_and_another_has_damaged_is_lost() -> bool {
    let mut world = forgotten_and_damaged(2);
    world.restart(Limits::small());
    let is_lost = |world: &mut World| {
        let reply = world.ask(Request::Read { offset: 4 << 20, len: BLOCK as u32 });
        matches!(reply, Reply::Error(RequestError::Damaged { .. }))
    };
    if !is_lost(&mut world) {
        return false;
    }
    reads_all_but(&mut world, &[4]);
    world.restart(Limits::small());
    reads_all_but(&mut world, &[4]);
    world.settle();
    world.restart(Limits::small());
    reads_all_but(&mut world, &[4]);
    true
}

#[test]
fn a_log_does_not_end_before_what_is_damaged_because_one_has_less() {
    assert!(what_one_forgot_and_another_has_damaged_is_lost());
}

/// A third one has all of it, and is away when the vDisk is opened.
fn opened_without_the_third() -> World {
    let mut world = forgotten_and_damaged(3);
    world.kill(Limits::small());
    world.open_drive(DriveId(0), false);
    world.open_drive(DriveId(1), false);
    see(&mut world, 1, &[DriveState::Up, DriveState::Up, DriveState::Down]);
    open_family(&mut world);
    world
}

/// It comes when the others have been asked. Gives whether what it has is there.
fn a_third_one_comes_later() -> bool {
    let mut world = opened_without_the_third();
    world.pass(SECONDS);
    world.open_drive(DriveId(2), false);
    see(&mut world, 2, &[DriveState::Up; 3]);
    world.pass(60 * SECONDS);
    is_ready(&world)
        && !is_failed(&world)
        && (2..7).all(|at| has_block(&mut world, at << 20, &pattern(at, BLOCK)))
}

#[test]
fn a_log_does_not_end_before_what_somebody_may_still_give() {
    assert!(a_third_one_comes_later());
}

/// The last write is on the second drive alone, which has told so and goes away; the third lacks the one before as well, and takes its time when it is
/// given that. Meanwhile the second is back. Gives whether what it has is there.
fn who_has_more_is_back_before_the_opening_is_done() -> bool {
    let mut world = settled_on(3);
    let mut before = Vec::new();
    for (at, drive) in [(3, 2), (4, 0)] {
        before.push((DriveId(drive), log(&world, drive).to_vec()));
        assert_eq!(world.write(at << 20, &pattern(at, BLOCK)), Reply::Done);
    }
    for (drive, log) in before {
        world.areas.insert((drive, Area::Log), log);
    }
    world.kill(Limits::small());
    world.open_drives(false);
    see(&mut world, 1, &[DriveState::Up; 3]);
    world.hung = Some((DriveId(1), Area::Log, 1));
    open_family(&mut world);
    world.pass(100_000);
    assert_eq!(world.hanging(), [Area::Log], "it is asked for what only it has");
    see(&mut world, 2, &[DriveState::Up, DriveState::Down, DriveState::Up]);
    world.let_go();
    world.hung = Some((DriveId(2), Area::Log, 0));
    world.pass(6 * SECONDS);
    assert_eq!(world.hanging(), [Area::Log], "the other is given what it lacks");
    world.open_drive(DriveId(1), false);
    see(&mut world, 3, &[DriveState::Up; 3]);
    world.pass(100_000);
    world.carry_on();
    world.pass(60 * SECONDS);
    assert!(is_ready(&world) && !is_failed(&world));
    assert_eq!(world.read(3 << 20, BLOCK as u32), pattern(3, BLOCK));
    world.read(4 << 20, BLOCK as u32) == pattern(4, BLOCK)
}

#[test]
fn who_is_back_is_heard_about_what_was_cut_off() {
    assert!(who_has_more_is_back_before_the_opening_is_done());
}

#[test]
fn a_vdisk_is_served_though_nobody_comes_who_has_what_is_damaged() {
    let mut world = opened_without_the_third();
    world.pass(60 * SECONDS);
    assert!(is_ready(&world) && !is_failed(&world));
    reads_all_but(&mut world, &[4]);
}

#[test]
fn who_is_sure_is_believed_where_nobody_knows_what_was_there() {
    let mut world = forgotten_and_damaged(2);
    // Behind what is damaged a frame is, of which not even the header says anything.
    let header = place_of(&world, 1, 5) - 1;
    damage(&mut world, 1, header);
    world.restart(Limits::small());
    for at in 2..7_u64 {
        let reply = world.ask(Request::Read { offset: at << 20, len: BLOCK as u32 });
        match at {
            4 => assert!(matches!(reply, Reply::Error(RequestError::Damaged { .. })), "{reply:?}"),
            5.. => assert!(data(reply) == vec![0; BLOCK], "{at} MiB: as if it had never been written"),
            _ => assert!(data(reply) == pattern(at, BLOCK), "{at} MiB"),
        }
    }
}

/// All that is in the last part of a log are two who lack the end of the one before, of which a write is damaged where it is.
#[test]
fn a_log_whose_last_part_nobody_has_whole_is_opened() {
    let mut world = settled_on(3);
    let mut before = Vec::new();
    for at in 2..7 {
        assert_eq!(world.write(at << 20, &pattern(at, BLOCK)), Reply::Done);
        if [3, 4].contains(&at) {
            before.push(log(&world, at as u32 - 2).to_vec());
        }
    }
    // A part of the log that the first drive has nothing of.
    world.kill(Limits::small());
    world.open_drive(DriveId(1), false);
    world.open_drive(DriveId(2), false);
    see(&mut world, 1, &[DriveState::Down, DriveState::Up, DriveState::Up]);
    open_family(&mut world);
    world.pass(10 * SECONDS);
    assert!(is_ready(&world));
    world.kill(Limits::small());
    for (drive, before) in (1..).zip(before) {
        world.areas.insert((DriveId(drive), Area::Log), before);
    }
    begin_a_frame(&mut world, 2);
    damage_write(&mut world, 0, 5);
    world.restart(Limits::small());
    reads_all_but(&mut world, &[5]);
}

#[cfg(feature = "sabotage")]
#[test]
fn not_hearing_who_answers_late_is_seen() {
    use weft_engine::sabotage::{Bug, with};
    assert!(!with(Bug::LateEndUnheard, the_other_answers_while_the_log_is_read));
}

#[cfg(feature = "sabotage")]
#[test]
fn ends_before_what_is_damaged_are_seen() {
    use weft_engine::sabotage::{Bug, with};
    assert!(!with(Bug::LostCutOff, what_one_forgot_and_another_has_damaged_is_lost));
    assert!(!with(Bug::LateGiverUnheard, a_third_one_comes_later));
    assert!(!with(Bug::LateGiverUnheard, who_has_more_is_back_before_the_opening_is_done));
}
