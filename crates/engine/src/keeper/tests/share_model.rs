//! Egroups that share against a map of what was acknowledged, through writes, deletes, repairs, damage and crashes; and a count of who
//! holds each block of the drive.

use super::share_stories::{MIB, is_as_written, name, refill, rot, write};
use super::*;
use crate::keeper::StoredEgroup;
use crate::message::Sharing;

/// A copy of a part of one of two images, now and then with a change.
fn some_marks(random: &mut SmallRng) -> Vec<u64> {
    let image = random.random_range(0..2) * 10_000;
    let first = random.random_range(0..150);
    let mut marks: Vec<u64> = (first..first + random.random_range(1..100)).map(|at| image + at).collect();
    for _ in 0..random.random_range(0..3) {
        let at = random.random_range(0..marks.len());
        marks[at] = random.random_range(100_000..1_000_000);
    }
    marks
}

/// Each block is free, or in one run, or referred to; and the keeper counts the same.
fn blocks_add_up(rig: &Rig) {
    let mut held: BTreeSet<u64> = BTreeSet::new();
    let mut runs = 0;
    for stored in rig.keeper.egroups() {
        for block in stored.first..stored.first + stored.blocks {
            assert!(held.insert(block), "two egroups have block {block} in their runs");
            runs += 1;
        }
    }
    for stored in rig.keeper.egroups() {
        held.extend(stored.references.iter().flat_map(|reference| reference.blocks()));
    }
    let (_, stored, moving) = rig.keeper.unit_blocks();
    assert_eq!((stored, moving), (held.len() as u64, 0));
    assert_eq!(rig.keeper.shared().held_bytes, (held.len() as u64 - runs) * BLOCK as u64);
}

/// A block of a run rots. Gives the egroups that may need it.
fn some_rot(rig: &mut Rig) -> Vec<u64> {
    let runs: Vec<(u64, u64)> = rig.keeper.egroups().map(|stored| (stored.first, stored.blocks)).collect();
    if runs.is_empty() {
        return Vec::new();
    }
    let (first, blocks) = runs[rig.random.random_range(0..runs.len())];
    let bad = rig.random.random_range(first..first + blocks);
    rot(rig, bad);
    let is_hit = |stored: &StoredEgroup| {
        (stored.first..stored.first + stored.blocks).contains(&bad)
            || stored.references.iter().any(|reference| reference.blocks().contains(&bad))
    };
    let hit = rig.keeper.egroups().filter(is_hit);
    hit.map(|stored| stored.egroup.0 & u64::from(u32::MAX)).collect()
}

#[test]
fn what_is_shared_is_there_as_long_as_anybody_needs_it() {
    let (mut found, mut hints) = (0, 0);
    for seed in 0..12 {
        let mut rig = Rig::hinted(seed, MIB, (24 + 24 * (seed / 3 % 2)) * MIB);
        let mut there: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        // What is asked for and not answered; None: it is being deleted.
        let mut open: BTreeMap<u64, (u64, Option<Vec<u64>>)> = BTreeMap::new();
        let mut counter = 0;
        for _ in 0..1200 {
            match rig.random.random_range(0..60) {
                0..4 => {
                    counter += 1;
                    let marks = some_marks(&mut rig.random);
                    let call = rig.begin(1, 1, write(name(counter), &marks));
                    open.insert(call, (counter, Some(marks)));
                }
                4..6 if !there.is_empty() => {
                    let number = *there.keys().nth(rig.random.random_range(0..there.len())).expect("inside");
                    let marks = there.remove(&number).expect("just seen");
                    let mut question = write(name(number), &marks);
                    if rig.random.random_range(0..4) > 0 {
                        question = Question::DeleteEgroups { egroups: vec![name(number)] };
                        let call = rig.begin(1, 1, question);
                        open.insert(call, (number, None));
                        continue;
                    }
                    if let Question::WriteEgroup { replace, sharing, .. } = &mut question {
                        (*replace, *sharing) = (true, Some(Sharing::default()));
                    }
                    let call = rig.begin(1, 1, question);
                    open.insert(call, (number, Some(marks)));
                }
                6 if rig.random.random_range(0..4) == 0 => {
                    if rig.random.random() {
                        rig.crash()
                    } else {
                        rig.reopen()
                    }
                    // What was not acknowledged is garbage, which its owner deletes; a repair leaves one of two copies.
                    let unsure: Vec<u64> =
                        std::mem::take(&mut open).into_values().map(|(number, _)| number).collect();
                    let egroups = unsure.into_iter().map(name).collect();
                    rig.ask(1, 1, Question::DeleteEgroups { egroups }).expect("deletes");
                    // What is bad stays there, and its trailers tell of it; whatever is written from now on has to be good. Now and then
                    // somebody finds it.
                    if rig.random.random() {
                        for number in some_rot(&mut rig) {
                            let marks = there.remove(&number).unwrap_or_default();
                            if rig.random.random() {
                                is_as_written(&mut rig, name(number), &marks);
                            }
                        }
                    }
                    match rig.random.random_range(0..4) {
                        0 => {}
                        1 => {
                            rig.now = rig.now.after(10_000);
                            rig.run();
                        }
                        _ => refill(&mut rig),
                    }
                    blocks_add_up(&rig);
                    for (number, marks) in &there {
                        assert!(is_as_written(&mut rig, name(*number), marks), "seed {seed}: {number}");
                    }
                }
                _ => drop(rig.step()),
            }
            let answered: Vec<u64> =
                open.keys().copied().filter(|call| rig.answers.contains_key(call)).collect();
            for call in answered {
                let (number, marks) = open.remove(&call).expect("just seen");
                match (rig.answers.remove(&call).expect("just seen"), marks) {
                    (Ok(Answer::EgroupWritten), Some(marks)) => drop(there.insert(number, marks)),
                    (Ok(Answer::Deleted), None) | (Err(Refusal::NoSpace), Some(_)) => {}
                    (other, _) => panic!("{other:?}"),
                }
            }
        }
        rig.run();
        for (number, marks) in &there {
            assert!(is_as_written(&mut rig, name(*number), marks), "seed {seed}: {number}");
        }
        found += rig.keeper.shared().saved_bytes / BLOCK as u64;
        blocks_add_up(&rig);
        let egroups = rig.keeper.egroups().map(|stored| stored.egroup).collect();
        rig.ask(1, 1, Question::DeleteEgroups { egroups }).expect("deletes");
        let (_, stored, moving) = rig.keeper.unit_blocks();
        assert_eq!((stored, moving), (0, 0), "seed {seed}: nothing is left over");
        assert_eq!(rig.keeper.shared().entries, 0);
        hints += rig.drive.hints;
    }
    assert!(found > 1000, "only {found} blocks were shared in the end");
    assert!(hints > 100, "the drives were told of {hints} free runs");
}
