//! The egroups of a drive against a map of what was acknowledged, through writes, deletes and crashes.

use super::egroup_stories::{read, write};
use super::*;
use crate::identity::EgroupId;
use crate::message::Class;

/// What the owner knows of a name.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    /// Asked for, not answered.
    Writing {
        mark: u64,
        units: usize,
        call: u64,
    },
    There {
        mark: u64,
        units: usize,
    },
    Deleting {
        call: u64,
    },
}

#[test]
fn egroups_are_there_or_gone_and_never_overlap() {
    let mut hints = 0;
    for seed in 0..40 {
        let mut rig = Rig::hinted(seed, 1 << 20, (16 + 32 * (seed / 3 % 2)) << 20);
        let mut known: BTreeMap<u64, Known> = BTreeMap::new();
        let mut reads: Vec<(u64, u64)> = Vec::new();
        let mut counter = 0;
        for _ in 0..600 {
            match rig.random.random_range(0..20) {
                0..4 => {
                    counter += 1;
                    let (mark, units) = (counter * 1000, rig.random.random_range(1..120));
                    let call = rig.begin(1, 1, write(EgroupId(counter), mark, units, Class::Data, false));
                    known.insert(counter, Known::Writing { mark, units, call });
                }
                4..6 => {
                    let there = known.iter().filter(|(_, known)| matches!(known, Known::There { .. }));
                    let names: Vec<u64> = there.map(|(name, _)| *name).collect();
                    if !names.is_empty() {
                        let name = names[rig.random.random_range(0..names.len())];
                        let delete = Question::DeleteEgroups { egroups: vec![EgroupId(name)] };
                        let call = rig.begin(1, 1, delete);
                        known.insert(name, Known::Deleting { call });
                    }
                }
                6..8 if counter > 0 => {
                    let name = rig.random.random_range(1..=counter);
                    reads.push((name, rig.begin(1, 1, read(EgroupId(name), &[(0, 1)]))));
                }
                8 if rig.random.random_range(0..5) == 0 => {
                    if rig.random.random() {
                        rig.crash()
                    } else {
                        rig.reopen()
                    }
                    reads.clear();
                    after_crash(&mut rig, &mut known);
                }
                _ => {
                    rig.step();
                }
            }
            collect(&mut rig, &mut known, &mut reads);
        }
        rig.run();
        collect(&mut rig, &mut known, &mut reads);
        assert!(reads.is_empty() && rig.answers.is_empty(), "everything is answered");
        check(&mut rig, &known);
        assert_eq!(rig.keeper.unit_blocks().2, 0, "seed {seed}: no block is lost");
        hints += rig.drive.hints;
    }
    assert!(hints > 100, "the drives were told of {hints} free runs");
}

fn collect(rig: &mut Rig, known: &mut BTreeMap<u64, Known>, reads: &mut Vec<(u64, u64)>) {
    known.retain(|_, state| match *state {
        Known::Writing { mark, units, call } => match rig.answers.remove(&call) {
            None => true,
            Some(Ok(Answer::EgroupWritten)) => {
                *state = Known::There { mark, units };
                true
            }
            Some(Err(Refusal::NoSpace)) => false,
            other => panic!("{other:?}"),
        },
        Known::Deleting { call } => rig.answers.remove(&call).is_none(),
        Known::There { .. } => true,
    });
    reads.retain(|(name, call)| match rig.answers.remove(call) {
        None => true,
        Some(Err(Refusal::NotFound)) => {
            assert!(!matches!(known.get(name), Some(Known::There { .. })) || *call < rig.call, "it is there");
            false
        }
        Some(Ok(Answer::Units(units))) => {
            let bytes = units[0].as_ref().expect("what is there is sound");
            assert_eq!(bytes.bytes(), unit(name * 1000).bytes());
            false
        }
        other => panic!("{other:?}"),
    });
}

/// What was acknowledged is there; what was asked for is there, gone, or garbage, which the owner deletes.
fn after_crash(rig: &mut Rig, known: &mut BTreeMap<u64, Known>) {
    let listed: Vec<u64> = rig.keeper.egroups().map(|stored| stored.egroup.0).collect();
    for name in &listed {
        assert!(known.contains_key(name), "what was deleted stays deleted");
    }
    let unsure = known.iter().filter(|(_, state)| !matches!(state, Known::There { .. }));
    let egroups: Vec<EgroupId> = unsure.map(|(name, _)| EgroupId(*name)).collect();
    rig.ask(1, 1, Question::DeleteEgroups { egroups }).expect("deletes");
    known.retain(|_, state| matches!(state, Known::There { .. }));
    check(rig, known);
}

fn check(rig: &mut Rig, known: &BTreeMap<u64, Known>) {
    let stored: Vec<_> = rig.keeper.egroups().collect();
    let mut runs: Vec<(u64, u64)> = stored.iter().map(|stored| (stored.first, stored.blocks)).collect();
    runs.sort_unstable();
    for pair in runs.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "two egroups overlap");
    }
    for (name, state) in known {
        let Known::There { mark, units } = *state else { continue };
        let answer = rig.ask(1, 1, read(EgroupId(*name), &[(0, units as u32)]));
        let Ok(Answer::Units(read)) = answer else { panic!("{answer:?}") };
        let bytes = read[0].as_ref().expect("what was acknowledged is sound").bytes();
        for (index, bytes) in bytes.chunks_exact(BLOCK).enumerate() {
            assert_eq!(bytes, unit(mark + index as u64).bytes());
        }
    }
}
