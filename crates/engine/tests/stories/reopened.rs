//! Openings from another checkpoint than the one that was found first: it cannot be read, or a member that comes later knows of a newer one.
//! And one that nothing but the end of an epoch's names makes necessary.

use crate::world::{FAMILY, World, data, pattern};
use weft_engine::buffer::BLOCK;
use weft_engine::identity::*;
use weft_engine::interface::*;
use weft_engine::limits::Limits;

const SECONDS: u64 = 1_000_000;

/// Three blocks of a vDisk with two members, drained and in pages, and everything at rest.
pub fn settled() -> World {
    settled_on(2)
}

/// As many copies as drives.
pub fn settled_on(drives: u32) -> World {
    let mut world = World::new(drives, drives, Limits::small());
    for at in 0..3 {
        assert_eq!(world.write(at << 20, &pattern(at, BLOCK)), Reply::Done);
    }
    world.settle();
    world.pass(10 * SECONDS);
    world
}

pub fn log(world: &World, drive: u32) -> &[u8] {
    &world.areas[&(DriveId(drive), Area::Log)]
}

/// The last block of a log that something was written to.
pub fn last_block(world: &World, drive: u32) -> usize {
    let mut blocks = log(world, drive).chunks(BLOCK);
    blocks.rposition(|block| block.iter().any(|&b| b != 0)).expect("something was written")
}

/// Changes the last byte of a block of a log, which belongs to what the frame carries.
pub fn damage(world: &mut World, drive: u32, block: usize) {
    let log = world.areas.get_mut(&(DriveId(drive), Area::Log)).expect("it is there");
    let bytes = &mut log[block * BLOCK..(block + 1) * BLOCK];
    let last = bytes.iter().rposition(|&b| b != 0).expect("something is in it");
    bytes[last] ^= 1;
}

pub fn is_failed(world: &World) -> bool {
    world.notices.iter().any(|notice| matches!(notice, Notice::FamilyFailed { .. }))
}

pub fn is_ready(world: &World) -> bool {
    world.notices.iter().any(|notice| matches!(notice, Notice::FamilyReady { .. }))
}

/// Whether a block can be read, and is this.
pub fn has_block(world: &mut World, offset: u64, wanted: &[u8]) -> bool {
    let reply = world.ask(Request::Read { offset, len: BLOCK as u32 });
    matches!(reply, Reply::Data(_)) && data(reply) == wanted
}

pub fn reads_well(world: &mut World, last: &[u8]) {
    for at in 0..2 {
        assert_eq!(world.read(at << 20, BLOCK as u32), pattern(at, BLOCK));
    }
    assert_eq!(world.read(2 << 20, BLOCK as u32), last);
}

/// The newest checkpoint came to one member only, and becomes bad there when its keeper has looked at it already. Gives whether
/// the vDisk is served.
fn nobody_can_read_the_checkpoint_that_one_has() -> (bool, World) {
    let mut world = settled();
    assert_eq!(world.write(2 << 20, &pattern(7, BLOCK)), Reply::Done);
    // What drains it comes to both members; the checkpoint record behind that to one only.
    world.hung = Some((DriveId(1), Area::Log, 1));
    world.step(Input::Order(Order::Settle { family: FAMILY }));
    world.pass(2 * SECONDS);
    assert!(!world.notices.contains(&Notice::FamilySettled { family: FAMILY }), "it is not on both");
    world.hung = None;
    let blocks = log(&world, 0).chunks(BLOCK).zip(log(&world, 1).chunks(BLOCK));
    let block = blocks.map(|(one, other)| one != other).collect::<Vec<_>>();
    let block = block.iter().rposition(|&differs| differs).expect("one has what the other has not");
    world.kill(Limits::small());
    world.open_drives(false);
    damage(&mut world, 0, block);
    world.open_families();
    // Perhaps it can be read soon.
    world.pass(10 * SECONDS);
    (is_ready(&world), world)
}

#[test]
fn a_checkpoint_that_was_never_acknowledged_is_not_missed() {
    let (is_served, mut world) = nobody_can_read_the_checkpoint_that_one_has();
    assert!(is_served, "{:?}", world.notices);
    reads_well(&mut world, &pattern(7, BLOCK));
    // Its number is used again.
    assert_eq!(world.write(2 << 20, &pattern(8, BLOCK)), Reply::Done);
    world.notices.clear();
    world.settle();
    world.restart(Limits::small());
    reads_well(&mut world, &pattern(8, BLOCK));
}

/// A view with these drives, each of which is the first of a group of all.
pub fn see(world: &mut World, version: u64, states: &[DriveState]) {
    let all = 0..states.len() as u32;
    let members = |first| all.clone().map(move |at| DriveId((first + at) % states.len() as u32)).collect();
    let group = |first| GroupView { members: members(first), former: Vec::new() };
    world.see(version, states, all.clone().map(group));
}

/// A member whose log is damaged somewhere answers first, and the other when the first has nothing more to read. Gives whether the
/// vDisk is whole then, wherever the damage is, and how often the other was waited for.
fn the_other_comes_late() -> (bool, usize) {
    let world = settled();
    let (mut whole, mut waited) = (true, 0);
    for block in 0..=last_block(&world, 0) {
        let mut world = settled();
        if log(&world, 0)[block * BLOCK..(block + 1) * BLOCK].iter().all(|&b| b == 0) {
            continue;
        }
        damage(&mut world, 0, block);
        world.kill(Limits::small());
        world.open_drive(DriveId(0), false);
        see(&mut world, 1, &[DriveState::Up, DriveState::Down]);
        world.step(Input::Order(Order::OpenFamily(world.record.clone())));
        world.pass(SECONDS);
        assert!(!is_failed(&world), "block {block}: the other may come back: {:?}", world.notices);
        waited += usize::from(!is_ready(&world));
        world.open_drive(DriveId(1), false);
        see(&mut world, 2, &[DriveState::Up; 2]);
        world.pass(SECONDS);
        if !is_ready(&world) || is_failed(&world) {
            whole = false;
            continue;
        }
        reads_well(&mut world, &pattern(2, BLOCK));
        assert_eq!(world.write(2 << 20, &pattern(8, BLOCK)), Reply::Done);
        world.restart(Limits::small());
        reads_well(&mut world, &pattern(8, BLOCK));
    }
    (whole, waited)
}

#[test]
fn a_member_that_comes_late_is_heard_about_checkpoints() {
    let (whole, waited) = the_other_comes_late();
    assert!(whole && waited > 0, "{waited}");
}

/// Blocks of the log of drive 0 that are not as they were.
fn changed(world: &World, before: &[u8]) -> Vec<usize> {
    let blocks = before.chunks(BLOCK).zip(log(world, 0).chunks(BLOCK)).enumerate();
    blocks.filter(|(_, (before, after))| before != after).map(|(block, _)| block).collect()
}

/// The vDisk is opened beside drive 0 alone. If nothing comes of that for a minute, the other drive comes. Gives whether it was waited for.
fn waits_for_the_other(world: &mut World) -> bool {
    see(world, 1, &[DriveState::Up, DriveState::Down]);
    world.step(Input::Order(Order::OpenFamily(world.record.clone())));
    world.pass(60 * SECONDS);
    if is_ready(world) {
        return false;
    }
    world.open_drive(DriveId(1), false);
    see(world, 2, &[DriveState::Up; 2]);
    world.pass(SECONDS);
    true
}

/// The last thing written was acknowledged by both members. One of them comes back first, once or again, and its newest frame is bad
/// somewhere. Gives whether it was waited for the other, wherever that is, and nothing was lost.
fn a_bad_end(make_bad: fn(&mut World, usize), lives: usize) -> bool {
    let mut world = settled();
    let before = log(&world, 0).to_vec();
    assert_eq!(world.write(2 << 20, &pattern(7, BLOCK)), Reply::Done);
    let changed = changed(&world, &before);
    assert!(changed.len() >= 2, "a frame has a header and a payload: {changed:?}");
    let crashed = (world.areas.clone(), world.record.clone());
    for block in changed {
        (world.areas, world.record) = crashed.clone();
        make_bad(&mut world, block);
        for _ in 0..lives {
            world.kill(Limits::small());
            world.open_drive(DriveId(0), false);
            world.pass(20 * SECONDS);
        }
        if !waits_for_the_other(&mut world) {
            return false;
        }
        assert!(is_ready(&world), "block {block}: {:?}", world.notices);
        reads_well(&mut world, &pattern(7, BLOCK));
    }
    true
}

fn an_end_that_cannot_be_read() -> bool {
    a_bad_end(|world, block| world.unreadable = [(DriveId(0), Area::Log, block)].into(), 1)
}

fn an_end_that_is_damaged(lives: usize) -> bool {
    a_bad_end(|world, block| damage(world, 0, block), lives)
}

/// The very first thing that was ever written, with a header of which this byte has changed. Gives whether it was read.
fn a_first_write_that_is_damaged(byte: usize) -> bool {
    let mut world = World::new(2, 2, Limits::small());
    assert_eq!(world.write(0, &pattern(7, BLOCK)), Reply::Done);
    world.areas.get_mut(&(DriveId(0), Area::Log)).expect("it is there")[byte] ^= 1;
    world.kill(Limits::small());
    world.open_drive(DriveId(0), false);
    if !waits_for_the_other(&mut world) {
        return false;
    }
    assert!(is_ready(&world), "byte {byte}: {:?}", world.notices);
    world.read(0, BLOCK as u32) == pattern(7, BLOCK)
}

#[test]
fn a_member_whose_end_is_damaged_does_not_say_alone_where_the_log_ends() {
    assert!(an_end_that_is_damaged(1) && an_end_that_is_damaged(2));
    // The checksum, a mark, what follows them, and the payload.
    for byte in [4, 0, 200, BLOCK] {
        assert!(a_first_write_that_is_damaged(byte), "byte {byte}");
    }
}

/// What was written last is on both members, and damaged on the first one.
fn last_write_damaged() -> World {
    let mut world = settled();
    let before = log(&world, 0).to_vec();
    assert_eq!(world.write(2 << 20, &pattern(7, BLOCK)), Reply::Done);
    let last = changed(&world, &before).pop().expect("something was written");
    damage(&mut world, 0, last);
    world
}

/// A frame is begun behind the last one, and never finished.
pub fn begin_a_frame(world: &mut World, drive: u32) {
    // Blocks begin with a magic only where a header does.
    let blocks: Vec<&[u8]> = log(world, drive).chunks(BLOCK).collect();
    let end = last_block(world, drive) + 1;
    let header = blocks[..end].iter().rfind(|block| block[..4] == blocks[0][..4]).expect("a frame has one");
    let mut torn = header.to_vec();
    torn[32..40].copy_from_slice(&(end as u64).to_le_bytes());
    let area = world.areas.get_mut(&(DriveId(drive), Area::Log)).expect("it is there");
    area[end * BLOCK..][..BLOCK].copy_from_slice(&torn);
}

/// The vDisk is opened, and the second drive is away for a minute as soon as its fence is written, before anything is read there. Gives
/// whether it was waited for.
fn is_waited_for_when_it_has_told(world: &mut World) -> bool {
    world.hung = Some((DriveId(1), Area::Log, 1));
    world.open_families();
    assert_eq!(world.hanging(), [Area::Log]);
    world.hung = None;
    see(world, 3, &[DriveState::Up, DriveState::Down]);
    world.let_go();
    world.pass(60 * SECONDS);
    if is_ready(world) || is_failed(world) {
        return false;
    }
    world.open_drive(DriveId(1), false);
    see(world, 4, &[DriveState::Up; 2]);
    world.pass(SECONDS);
    assert!(is_ready(world), "{:?}", world.notices);
    true
}

/// Neither member is sure of its end. The one that has the last record is gone as soon as it has told of it, and comes back in a minute.
/// Gives whether it was waited for, and the record read.
fn the_one_that_has_more_goes_away() -> bool {
    let mut world = last_write_damaged();
    begin_a_frame(&mut world, 1);
    world.kill(Limits::small());
    world.open_drives(false);
    if !is_waited_for_when_it_has_told(&mut world) {
        return false;
    }
    world.read(2 << 20, BLOCK as u32) == pattern(7, BLOCK)
}

#[test]
fn an_end_that_nobody_is_sure_of_is_not_believed_because_time_passes() {
    assert!(the_one_that_has_more_goes_away());
}

/// Both members are there, and the newest frame of one is damaged; the other one may have begun one that was never finished, so that neither is
/// sure. The opening ends when the config store has taken its new part of the log, before anything is written there. Gives whether the last
/// write is there for the next owner.
fn an_opening_beside_a_damaged_end_is_cut_short(is_other_torn: bool) -> bool {
    let mut world = last_write_damaged();
    if is_other_torn {
        begin_a_frame(&mut world, 1);
    }
    world.kill(Limits::small());
    world.open_drives(false);
    world.unheard = true;
    world.open_families();
    world.pass(SECONDS);
    assert!(!is_ready(&world), "it has not heard that it may write");
    world.kill(Limits::small());
    world.unheard = false;
    world.open_drives(false);
    world.open_families();
    world.pass(SECONDS);
    assert!(is_ready(&world), "{:?}", world.notices);
    world.read(2 << 20, BLOCK as u32) == pattern(7, BLOCK)
}

/// The newest checkpoint came to the first member only, and nobody lives any more.
pub fn a_checkpoint_on_one() -> World {
    let mut world = settled();
    assert_eq!(world.write(2 << 20, &pattern(7, BLOCK)), Reply::Done);
    world.hung = Some((DriveId(1), Area::Log, 1));
    world.step(Input::Order(Order::Settle { family: FAMILY }));
    world.pass(2 * SECONDS);
    world.hung = None;
    world.kill(Limits::small());
    world
}

/// The newest checkpoint came to one member only, and behind it that one has a header that was never finished. The vDisk is opened with
/// both, written to, and opened once more. Gives whether it is whole.
fn a_checkpoint_lies_before_a_torn_end() -> bool {
    let mut world = a_checkpoint_on_one();
    begin_a_frame(&mut world, 0);
    world.open_drives(false);
    world.open_families();
    world.pass(SECONDS);
    assert!(is_ready(&world) && !is_failed(&world), "{:?}", world.notices);
    assert_eq!(world.write(3 << 20, &pattern(8, BLOCK)), Reply::Done);
    world.kill(Limits::small());
    world.open_drives(false);
    world.open_families();
    world.pass(SECONDS);
    if !is_ready(&world) || is_failed(&world) {
        return false;
    }
    reads_well(&mut world, &pattern(7, BLOCK));
    world.read(3 << 20, BLOCK as u32) == pattern(8, BLOCK)
}

#[test]
fn a_checkpoint_of_which_only_a_torn_member_knows_is_not_read_from() {
    assert!(a_checkpoint_lies_before_a_torn_end());
}

#[test]
fn what_is_behind_a_damaged_end_is_not_taken_for_what_was_never_acknowledged() {
    assert!(an_opening_beside_a_damaged_end_is_cut_short(false));
    assert!(an_opening_beside_a_damaged_end_is_cut_short(true));
}

/// Writes a block at 2 MiB, which the first drive acknowledges and forgets. Nobody lives any more.
pub fn the_first_forgot() -> World {
    let mut world = settled();
    let before = log(&world, 0).to_vec();
    assert_eq!(world.write(2 << 20, &pattern(7, BLOCK)), Reply::Done);
    world.areas.insert((DriveId(0), Area::Log), before);
    world.kill(Limits::small());
    world
}

/// The one drive is lost, and the vDisk is opened with the other.
pub fn open_without(world: &mut World, lost: u32) {
    world.kill(Limits::small());
    world.open_drive(DriveId(1 - lost), false);
    let mut states = [DriveState::Up; 2];
    states[lost as usize] = DriveState::Lost;
    see(world, 9, &states);
    world.step(Input::Order(Order::OpenFamily(world.record.clone())));
    world.pass(60 * SECONDS);
}

/// The newest checkpoint came to one member only before the power went, which left a frame of the other unfinished. Both are there when the
/// vDisk is opened, and that is cut short, by the config store or when so many things were done with the log of the other. Then the member that
/// had the checkpoint is lost. Gives whether the other one has all.
fn the_other_member_is_lost_later(unheard: bool, left: u32) -> bool {
    let mut world = a_checkpoint_on_one();
    begin_a_frame(&mut world, 1);
    world.open_drives(false);
    world.unheard = unheard;
    world.hung = Some((DriveId(1), Area::Log, left));
    world.open_families();
    let is_cut_short = unheard || !world.hanging().is_empty();
    (world.unheard, world.hung) = (false, None);
    open_without(&mut world, 0);
    if !is_ready(&world) || is_failed(&world) {
        return false;
    }
    assert!(is_cut_short || left > 1, "it is fenced and given something");
    reads_well(&mut world, &pattern(7, BLOCK));
    true
}

/// Whether it has all, wherever the opening was cut short.
fn the_other_member_is_lost_at_any_time() -> bool {
    let cuts = [(true, u32::MAX)].into_iter().chain((0..12).map(|left| (false, left)));
    cuts.into_iter().all(|(unheard, left)| the_other_member_is_lost_later(unheard, left))
}

/// The same, and nobody is lost: what the one has becomes bad when its keeper has looked at it already.
fn nobody_can_read_what_a_torn_member_lacks() -> bool {
    let mut world = a_checkpoint_on_one();
    begin_a_frame(&mut world, 1);
    world.open_drives(false);
    let last = last_block(&world, 0);
    damage(&mut world, 0, last);
    world.open_families();
    world.pass(60 * SECONDS);
    if !is_ready(&world) || is_failed(&world) {
        return false;
    }
    reads_well(&mut world, &pattern(7, BLOCK));
    true
}

/// Both members have acknowledged the newest checkpoint, and it is damaged on the first. The other one goes away when it has told of it, and comes
/// back in a minute. Gives whether it was waited for.
fn the_one_that_has_the_checkpoint_goes_away() -> bool {
    let mut world = settled();
    assert_eq!(world.write(2 << 20, &pattern(7, BLOCK)), Reply::Done);
    // What is trimmed behind it is not told yet.
    world.settle();
    let last = last_block(&world, 0);
    damage(&mut world, 0, last);
    world.kill(Limits::small());
    world.open_drives(false);
    if !is_waited_for_when_it_has_told(&mut world) {
        return false;
    }
    reads_well(&mut world, &pattern(7, BLOCK));
    true
}

#[test]
fn a_checkpoint_is_not_done_without_while_somebody_may_give_it() {
    assert!(the_one_that_has_the_checkpoint_goes_away());
}

#[test]
fn what_a_torn_member_lacks_is_given_to_it_before_a_new_part_begins() {
    assert!(the_other_member_is_lost_at_any_time());
}

#[test]
fn a_checkpoint_that_only_a_torn_member_may_lack_is_done_without_if_nobody_can_read_it() {
    assert!(nobody_can_read_what_a_torn_member_lacks());
}

/// A drive has forgotten the last write that it had acknowledged, and does not know. The opening is cut short when the config store has taken the
/// new part of the log, and that drive is lost. Gives whether the other one still has the write.
fn what_a_liar_forgot_is_kept_by_others() -> bool {
    let mut world = the_first_forgot();
    world.open_drives(false);
    world.unheard = true;
    world.open_families();
    world.pass(SECONDS);
    world.unheard = false;
    open_without(&mut world, 0);
    is_ready(&world) && world.read(2 << 20, BLOCK as u32) == pattern(7, BLOCK)
}

#[test]
fn what_one_member_forgot_is_not_taken_from_the_others() {
    assert!(what_a_liar_forgot_is_kept_by_others());
}

/// All that was ever written was in one frame, whose payload has changed since it was drained. Gives whether the opening says so.
fn all_that_was_written_is_damaged() -> bool {
    let mut world = World::new(1, 1, Limits::small());
    assert_eq!(world.write(0, &pattern(7, BLOCK)), Reply::Done);
    // What names the egroup does not come to the log any more.
    world.hung = Some((DriveId(0), Area::Log, 0));
    world.step(Input::Order(Order::Settle { family: FAMILY }));
    world.pass(2 * SECONDS);
    assert_eq!(world.shard.counters().egroups_written, 1, "it was drained");
    damage(&mut world, 0, 1);
    world.hung = None;
    world.try_to_restart(Limits::small());
    world.pass(60 * SECONDS);
    !is_ready(&world) && is_failed(&world)
}

#[test]
fn an_egroup_without_any_record_says_that_one_is_lost() {
    assert!(all_that_was_written_is_damaged());
}

#[test]
fn an_end_that_was_never_finished_is_the_end_when_nobody_else_is_left() {
    let mut world = last_write_damaged();
    world.kill(Limits::small());
    world.open_drive(DriveId(0), false);
    see(&mut world, 1, &[DriveState::Up, DriveState::Lost]);
    world.step(Input::Order(Order::OpenFamily(world.record.clone())));
    world.pass(SECONDS);
    assert!(is_ready(&world) && !is_failed(&world), "{:?}", world.notices);
    reads_well(&mut world, &pattern(2, BLOCK));
}

#[cfg(feature = "sabotage")]
#[test]
fn believing_an_end_that_is_damaged_is_seen() {
    use weft_engine::sabotage::{Bug, with};

    let waited = with(Bug::TornEndBelieved, || {
        let first = [a_first_write_that_is_damaged(4), a_first_write_that_is_damaged(BLOCK)];
        [an_end_that_is_damaged(1), first[0], first[1], the_one_that_has_more_goes_away()]
    });
    assert_eq!(waited, [false; 4]);
    for is_other_torn in [false, true] {
        assert!(!with(Bug::TornEndCounts, || an_opening_beside_a_damaged_end_is_cut_short(is_other_torn)));
    }
}

#[test]
fn a_member_that_cannot_read_its_end_does_not_say_where_the_log_ends() {
    assert!(an_end_that_cannot_be_read());
}

#[cfg(feature = "sabotage")]
#[test]
fn believing_an_end_that_cannot_be_read_is_seen() {
    use weft_engine::sabotage::{Bug, with};

    let waited = with(Bug::UnreadEndBelieved, an_end_that_cannot_be_read);
    assert!(!waited);
}

/// So the stories above see it when it happens.
#[cfg(feature = "sabotage")]
#[test]
fn staying_with_the_checkpoint_that_was_found_first_is_seen() {
    use weft_engine::sabotage::{Bug, with};

    let served = with(Bug::FirstBaseKept, || {
        [nobody_can_read_the_checkpoint_that_one_has().0, the_other_comes_late().0]
    });
    assert_eq!(served, [false; 2]);
}

#[test]
fn who_has_used_all_names_of_egroups_goes_on_in_the_next_epoch() {
    let names = 40;
    let mut world = World::new(2, 2, Limits { egroup_names_max: names, ..Limits::small() });
    let (mut written, mut openings) = (0, 0);
    for round in 0..200u64 {
        let at = round % 8;
        if world.write(at << 20, &pattern(round, 4 * BLOCK)) == Reply::Done {
            written = round;
        }
        world.pass(SECONDS);
        if !is_failed(&world) {
            continue;
        }
        let reason = FamilyTrouble::NamesUsed;
        let told = Notice::FamilyFailed { family: FAMILY, epoch: world.record.epoch, reason };
        assert!(world.notices.contains(&told), "{:?}", world.notices);
        // As the control plane does it.
        world.notices.clear();
        world.record.epoch = Epoch(world.record.epoch.0 + 1);
        world.step(Input::Order(Order::OpenFamily(world.record.clone())));
        world.pass(SECONDS);
        assert!(is_ready(&world), "{:?}", world.notices);
        assert_eq!(world.read((written % 8) << 20, 4 * BLOCK as u32), pattern(written, 4 * BLOCK));
        openings += 1;
    }
    assert!(openings >= 2, "{openings} openings of {} epochs", world.record.epoch);
    let keeper = world.shard.keeper(DriveId(0)).expect("it is open");
    let counter = |egroup: EgroupId| egroup.0 as u32;
    assert!(keeper.egroups().all(|stored| counter(stored.egroup) <= names + 8), "no name is beyond the last");
}

/// How often the shard has something to do within ten seconds, after everything of a vDisk was asked for whose drive is away.
#[test]
fn nobody_asks_again_for_pages_that_nobody_waits_for() {
    let limits = Limits { cache_bytes: 0, ..Limits::small() };
    let mut world = World::new(1, 1, limits.clone());
    for at in 0..8 {
        assert_eq!(world.write(at << 22, &pattern(at, BLOCK)), Reply::Done);
    }
    world.settle();
    world.restart(limits);
    see(&mut world, 2, &[DriveState::Down]);
    for at in 0..8 {
        let request = Request::Read { offset: at << 22, len: BLOCK as u32 };
        assert_eq!(world.ask(request), Reply::Error(RequestError::NotServed));
    }
    let end = world.now + 10 * SECONDS;
    let mut wakes = 0;
    while let Some(at) = world.shard.wake_at().filter(|at| at.0 <= end) {
        world.now = world.now.max(at.0) + 1;
        world.step(Input::Wake);
        wakes += 1;
    }
    assert!(wakes < 60, "{wakes} times in ten seconds");
    see(&mut world, 3, &[DriveState::Up]);
    for at in 0..8 {
        assert_eq!(world.read(at << 22, BLOCK as u32), pattern(at, BLOCK));
    }
}

#[cfg(feature = "sabotage")]
#[test]
fn leaving_a_torn_member_without_the_end_is_seen() {
    use weft_engine::sabotage::{Bug, with};
    assert!(!with(Bug::EndsNotGiven, the_other_member_is_lost_at_any_time));
    assert!(!with(Bug::EndsNotGiven, what_a_liar_forgot_is_kept_by_others));
}

/// Records are put back that are older than the place of a log: where they look for it is nothing, though drives hold data of the
/// vDisk. Gives whether it is opened as one without any.
fn a_log_that_older_records_look_for_elsewhere() -> bool {
    let mut world = World::new(3, 1, Limits::small());
    for at in 0..8 {
        assert_eq!(world.write(at * (1 << 20), &pattern(at, 1 << 20)), Reply::Done);
    }
    world.settle();
    let last = world.record.segments.last().expect("it has a log").clone();
    let other =
        (0..3).map(DriveId).find(|drive| !last.members.contains(drive)).expect("its log has one copy");
    let held = |world: &World, drive| {
        world.shard.keeper(drive).is_some_and(|keeper| keeper.egroups().next().is_some())
    };
    assert!(held(&world, other), "data lies everywhere");
    world.record.segments = vec![Segment { first: Seq(1), members: vec![other], ..last }];
    world.notices.clear();
    world.try_to_restart(Limits::small());
    world.pass(30_000_000);
    let is_refused = |notice: &Notice| {
        matches!(notice, Notice::FamilyFailed { reason: FamilyTrouble::RecordLost(Seq(1)), .. })
    };
    let is_opened = !world.notices.iter().any(is_refused);
    assert!(is_opened || held(&world, other), "nothing of it is touched");
    is_opened
}

#[test]
fn a_vdisk_with_data_is_not_opened_as_one_without() {
    assert!(!a_log_that_older_records_look_for_elsewhere());
}

#[cfg(feature = "sabotage")]
#[test]
fn believing_in_an_empty_log_is_seen() {
    use weft_engine::sabotage::{Bug, with};
    assert!(with(Bug::EmptyLogBelieved, a_log_that_older_records_look_for_elsewhere));
}
