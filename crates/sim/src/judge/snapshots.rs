//! A snapshot is what a vDisk was at one instant, between the order to take it and the first word that it is taken.
//! Promises: a read of a snapshot is accepted if and only if, as far as is known, one instant explains it and everything
//! that was read of this and of other snapshots before (I6): what is seen narrows where the instant can have been, a sector
//! that showed a value shows no other, and later snapshots do not go back behind earlier ones.
//!
//! How: a snapshot is a read of everything that began with the order and ended with the word. At the word the registers
//! are copied, with all values that are still possible; what is seen of a sector leaves one of them. A value tells that the
//! instant was after its write began, and before it was dead. Generations are the order of the instants.

use super::registers::{
    BLANK, Candidate, Moment, NEVER, Register, Registers, SECTORS, Stream, Write, describe,
};
use crate::layout::Layout;
use crate::stamp::number_in;
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::buffer::Buffer;
use weft_engine::identity::{Generation, SnapshotId};

/// Snapshots that are gone and can still be judged when a late read tells of them.
const DROPPED_KEPT: usize = 4;

struct Frozen {
    /// The instant lies between these.
    after: Moment,
    before: Moment,
    /// None when it is gone for so long that nobody asks any more.
    registers: Option<Registers>,
    snapshot: SnapshotId,
    /// Of the owner that first told of it.
    epoch: u32,
    drop_ordered: bool,
    /// Since when nobody may read it, at owners from this epoch on.
    dropped: Option<(u32, Moment)>,
}

/// All snapshots of one vDisk.
#[derive(Default)]
pub struct Snapshots {
    /// Ordered, and not known to be taken.
    asked: BTreeMap<SnapshotId, Moment>,
    taken: BTreeMap<Generation, Frozen>,
}

impl Snapshots {
    /// An owner was told to take it. True if it was the first one: until it is taken or forgotten this is a read under way.
    pub fn asked(&mut self, snapshot: SnapshotId, at: Moment) -> bool {
        let known = self.asked.contains_key(&snapshot) || self.generation_of(snapshot).is_some();
        if !known {
            self.asked.insert(snapshot, at);
        }
        !known
    }

    /// Nobody will take it any more. Gives when it was asked for.
    pub fn forget_asked(&mut self, snapshot: SnapshotId) -> Option<Moment> {
        self.asked.remove(&snapshot)
    }

    /// Those that were asked for and never taken, as far as anybody was told.
    pub fn all_asked(&self) -> Vec<SnapshotId> {
        self.asked.keys().copied().collect()
    }

    pub fn generation_of(&self, snapshot: SnapshotId) -> Option<Generation> {
        self.taken.iter().find(|(_, frozen)| frozen.snapshot == snapshot).map(|(generation, _)| *generation)
    }

    /// An owner of `epoch` says at `at` that it is taken. Gives the moment since when it was asked for, if that is over now.
    pub fn taken(
        &mut self,
        snapshot: SnapshotId,
        generation: Generation,
        epoch: u32,
        at: Moment,
        present: &Registers,
    ) -> Result<Option<Moment>, String> {
        if let Some(known) = self.generation_of(snapshot) {
            if known != generation {
                return Err(format!("snapshot {snapshot} is generation {known}, and now {generation}"));
            }
            return Ok(None);
        }
        let Some(after) = self.asked.remove(&snapshot) else {
            return Err(format!("snapshot {snapshot} is taken, and nobody asked for it"));
        };
        let frozen = Frozen {
            after,
            before: at,
            registers: Some(present.possible_after(after)),
            snapshot,
            epoch,
            drop_ordered: false,
            dropped: None,
        };
        if let Some(other) = self.taken.insert(generation, frozen) {
            return Err(format!(
                "snapshots {} and {snapshot} are both of generation {generation}",
                other.snapshot
            ));
        }
        self.interval(generation).map(|_| Some(after))
    }

    /// A served family tells its snapshots: none is missing, and none is back that was gone.
    pub fn told(&self, list: &[(Generation, SnapshotId)], epoch: u32) -> Result<(), String> {
        for (generation, frozen) in self.taken.iter().filter(|(_, frozen)| frozen.epoch <= epoch) {
            let is_there = list.contains(&(*generation, frozen.snapshot));
            if !is_there && !frozen.drop_ordered {
                return Err(format!(
                    "snapshot {} of generation {generation} was taken, and is lost",
                    frozen.snapshot
                ));
            }
            if is_there && frozen.dropped.is_some_and(|(since, _)| since <= epoch) {
                return Err(format!(
                    "snapshot {} of generation {generation} was dropped, and is back",
                    frozen.snapshot
                ));
            }
        }
        Ok(())
    }

    pub fn drop_ordered(&mut self, generation: Generation) {
        if let Some(frozen) = self.taken.get_mut(&generation) {
            frozen.drop_ordered = true;
        }
    }

    pub fn dropped(&mut self, generation: Generation, epoch: u32, at: Moment) -> Result<(), String> {
        let Some(frozen) = self.taken.get_mut(&generation) else { return Ok(()) };
        if !frozen.drop_ordered {
            return Err(format!("generation {generation} was dropped, and nobody ordered that"));
        }
        frozen.dropped.get_or_insert((epoch, at));
        let dropped = self.taken.iter().filter(|(_, f)| f.dropped.is_some() && f.registers.is_some());
        let dropped: Vec<Generation> = dropped.map(|(generation, _)| *generation).collect();
        for generation in dropped.iter().rev().skip(DROPPED_KEPT) {
            self.taken.get_mut(generation).expect("it was just found").registers = None;
        }
        Ok(())
    }

    /// Those that a client can ask for: also some that are gone.
    pub fn readable(&self) -> Vec<Generation> {
        let known = self.taken.iter().filter(|(_, frozen)| frozen.registers.is_some());
        known.map(|(generation, _)| *generation).collect()
    }

    /// Those that are there until somebody drops them.
    pub fn staying(&self) -> Vec<Generation> {
        let staying = self.taken.iter().filter(|(_, frozen)| !frozen.drop_ordered);
        staying.map(|(generation, _)| *generation).collect()
    }

    /// Those that may be there.
    pub fn there(&self) -> BTreeSet<Generation> {
        let there = self.taken.iter().filter(|(_, frozen)| frozen.dropped.is_none());
        there.map(|(generation, _)| *generation).collect()
    }

    pub fn grow(&mut self, blocks: usize) {
        for frozen in self.taken.values_mut() {
            frozen.registers.iter_mut().for_each(|registers| registers.grow(blocks));
        }
    }

    /// A write was refused: nobody may ever see it.
    pub fn refused(&mut self, layout: &Layout, write: Write) {
        for frozen in self.taken.values_mut() {
            frozen.registers.iter_mut().for_each(|registers| registers.refused(layout, write));
        }
    }

    /// Whether a request of this snapshot, made at `began` of an owner of `epoch`, may find none.
    pub fn may_be_missing(&self, generation: Generation, epoch: u32) -> bool {
        self.taken.get(&generation).is_none_or(|frozen| frozen.drop_ordered || epoch < frozen.epoch)
    }

    /// Whether a request of this snapshot, made at `began` of an owner of `epoch`, may find one.
    pub fn may_be_found(&self, generation: Generation, epoch: u32, began: Moment) -> bool {
        let dropped = self.taken.get(&generation).and_then(|frozen| frozen.dropped);
        dropped.is_none_or(|(since, at)| epoch < since || began < at)
    }

    /// Where the instant of a snapshot can have been, all others considered.
    fn interval(&self, generation: Generation) -> Result<(Moment, Moment), String> {
        let after = self.taken.range(..=generation).map(|(_, frozen)| frozen.after).max();
        let before = self.taken.range(generation..).map(|(_, frozen)| frozen.before).min();
        let (after, before) = (after.unwrap_or_default(), before.unwrap_or(NEVER));
        if after < before {
            return Ok((after, before));
        }
        Err(format!(
            "generation {generation} is of no instant: what was read of it and others was after moment {} and before {}",
            after.0, before.0
        ))
    }

    /// A read of a snapshot returned `pieces`.
    pub fn read(
        &mut self,
        generation: Generation,
        layout: &Layout,
        present: &mut Registers,
        first: u64,
        pieces: &[Buffer],
    ) -> Result<(), String> {
        let sectors =
            pieces.iter().map(|piece| piece.len() as u64).sum::<u64>() / crate::stamp::SECTOR as u64;
        let end = first + sectors;
        let mut stream = Stream::of(pieces);
        let mut interval = self.interval(generation)?;
        let frozen = self.taken.get_mut(&generation).expect("clients ask for known snapshots");
        // Late reads of snapshots that are long gone cannot be judged.
        let Some(mut registers) = frozen.registers.take() else { return Ok(()) };
        let mut learned = Vec::new();
        let span = end.div_ceil(SECTORS) - first / SECTORS;
        let mut judged = Ok(());
        'blocks: for (compact, real, blocks) in layout.used(first / SECTORS, span) {
            for index in 0..blocks {
                let block = real + index as u64;
                let sectors = (block * SECTORS).max(first)..((block + 1) * SECTORS).min(end);
                let register = &mut registers.registers[compact + index];
                let mut sight = Sight { interval, learned: &mut learned, place: compact + index };
                judged = sight.look(register, registers.family, sectors, &mut stream);
                interval = sight.interval;
                if judged.is_err() {
                    break 'blocks;
                }
            }
        }
        let frozen = self.taken.get_mut(&generation).expect("it was just found");
        frozen.registers = Some(registers);
        (frozen.after, frozen.before) = (frozen.after.max(interval.0), frozen.before.min(interval.1));
        judged
            .map_err(|what| format!("{what}; of an instant between {} and {}", interval.0.0, interval.1.0))?;
        let interval = self.interval(generation)?;
        for seen in &learned {
            self.tell_others(generation, interval, seen, present)?;
        }
        Ok(())
    }

    /// What a snapshot showed was the value at its instant: whatever had taken effect before that is gone in later ones, and
    /// in the present.
    fn tell_others(
        &mut self,
        generation: Generation,
        (after, before): (Moment, Moment),
        seen: &Seen,
        present: &mut Registers,
    ) -> Result<(), String> {
        let is_it =
            |candidate: &Candidate| seen.candidates.iter().any(|other| other.number == candidate.number);
        let later = self.taken.range_mut(generation.next()..);
        for (other, frozen) in later {
            let Some(registers) = &mut frozen.registers else { continue };
            let Some(candidates) = seen.place_in(&mut registers.registers) else { continue };
            if candidates.is_empty() {
                candidates.push(BLANK);
            }
            let told = describe(candidates);
            candidates.retain(|candidate| is_it(candidate) || candidate.settled >= after);
            if candidates.is_empty() {
                return Err(format!(
                    "generation {other} went back behind {generation}, which has {} in a sector of place {} of the \
                     layout: it showed {told}",
                    describe(&seen.candidates),
                    seen.place
                ));
            }
        }
        let Some(candidates) = seen.place_in(&mut present.registers) else { return Ok(()) };
        for candidate in candidates.iter_mut() {
            if !is_it(candidate) && candidate.settled < after {
                candidate.dead = candidate.dead.min(before);
            } else if is_it(candidate) && seen.candidates.len() == 1 {
                candidate.settled = candidate.settled.min(before);
            }
        }
        Ok(())
    }

    /// Whether the sectors may read as zeros in this snapshot.
    pub fn may_be_zero(
        &self,
        generation: Generation,
        layout: &Layout,
        first: u64,
        sectors: u64,
    ) -> Result<(), u64> {
        let Ok((after, before)) = self.interval(generation) else { return Err(first) };
        let Some(registers) = self.taken.get(&generation).and_then(|frozen| frozen.registers.as_ref()) else {
            return Ok(());
        };
        let zero =
            |candidate: &Candidate| candidate.zero && candidate.dead > after && candidate.began < before;
        registers.any_in_each(layout, first, sectors, zero)
    }
}

/// The values that one sector, or all of one block, can have after it was read.
struct Seen {
    /// Of the block in the layout.
    place: usize,
    /// None: all of the block.
    sector: Option<usize>,
    candidates: Vec<Candidate>,
}

impl Seen {
    /// The values of the same sectors elsewhere, if they are kept in the same way there.
    fn place_in<'a>(&self, registers: &'a mut [Register]) -> Option<&'a mut Vec<Candidate>> {
        match (&mut registers[self.place], self.sector) {
            (Register::Whole(candidates), None) => Some(candidates),
            (Register::Sectors(all), Some(sector)) => Some(&mut all[sector]),
            _ => None,
        }
    }
}

struct Sight<'a> {
    interval: (Moment, Moment),
    learned: &'a mut Vec<Seen>,
    place: usize,
}

impl Sight<'_> {
    fn look(
        &mut self,
        register: &mut Register,
        family: usize,
        sectors: std::ops::Range<u64>,
        stream: &mut Stream,
    ) -> Result<(), String> {
        let mut last = None;
        for sector in sectors {
            let found = number_in(family, sector, stream.next());
            let number = found.map_err(|mark| {
                format!("sector {sector} holds what no write of this family put there: {mark:#018x}")
            })?;
            let within = (sector % SECTORS) as usize;
            let (candidates, part) = match register {
                Register::Whole(_) if last == Some(number) => continue,
                Register::Whole(_) if last.is_some() => {
                    return Err(format!(
                        "sector {sector} and the one before it are of different writes of the whole block"
                    ));
                }
                Register::Whole(candidates) => (candidates, None),
                Register::Sectors(all) => (&mut all[within], Some(within)),
            };
            last = Some(number);
            self.see(candidates, number, part).map_err(|()| {
                format!("sector {sector} read as write {number}; possible: {}", describe(candidates))
            })?;
        }
        Ok(())
    }

    fn see(&mut self, candidates: &mut Vec<Candidate>, number: u32, sector: Option<usize>) -> Result<(), ()> {
        if candidates.is_empty() {
            return if number == 0 { Ok(()) } else { Err(()) };
        }
        let (after, before) = self.interval;
        let matches = |candidate: &Candidate| {
            let is_it =
                if number == 0 { candidate.zero } else { candidate.number == number && !candidate.zero };
            is_it && candidate.dead > after && candidate.began < before
        };
        if !candidates.iter().any(matches) {
            return Err(());
        }
        let news = candidates.len() > 1;
        candidates.retain(matches);
        // Of several writes of zeros nobody can tell which one was seen.
        let began = candidates.iter().map(|candidate| candidate.began).min().expect("one matched");
        let dead = candidates.iter().map(|candidate| candidate.dead).max().expect("one matched");
        self.interval = (after.max(began), before.min(dead));
        if news {
            self.learned.push(Seen { place: self.place, sector, candidates: candidates.clone() });
        }
        Ok(())
    }
}

impl Registers {
    /// A copy with what a read that began at `after` can still see.
    fn possible_after(&self, after: Moment) -> Registers {
        let mut copy = self.clone();
        let clear = |candidates: &mut Vec<Candidate>| candidates.retain(|candidate| candidate.dead > after);
        for register in &mut copy.registers {
            match register {
                Register::Whole(candidates) => clear(candidates),
                Register::Sectors(all) => all.iter_mut().for_each(clear),
            }
        }
        copy
    }
}
