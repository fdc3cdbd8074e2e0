//! A snapshot is what a vDisk was at one instant, between the order to take it and the first word that it is taken.
//! Promises: a read of a snapshot is accepted if and only if, as far as is known, one instant explains it and everything
//! that was read of this and of other snapshots before (I6): what is seen narrows where the instant can have been, a sector
//! that showed a value shows no other, and later snapshots do not go back behind earlier ones.
//!
//! How: a snapshot is a read of everything that began with the order and ended with the word. At the word the registers
//! are copied, with all values that are still possible; what is seen of a sector leaves one of them. A value tells that the
//! instant was after its write began, and before it was dead. Generations are the order of the instants.

use super::registers::{
    BLANK, Candidate, Moment, NEVER, Register, Registers, SECTORS, Write, describe, is_shown, value_in,
};
use crate::layout::Layout;
use crate::stamp::{Mark, Shown};
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::identity::{Generation, SnapshotId};

/// Snapshots that are gone and can still be judged when a late read tells of them.
const DROPPED_KEPT: usize = 4;

struct Frozen {
    /// The instant lies between these.
    after: Moment,
    before: Moment,
    /// When the newest of the writes that it has shown began.
    newest: Moment,
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
            newest: Moment(0),
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

    /// A read of a snapshot showed this. Gives what of it was there before anything was written, see [`Registers::read`].
    pub fn read(
        &mut self,
        generation: Generation,
        layout: &Layout,
        present: &mut Registers,
        shown: &[(u64, Mark)],
    ) -> Result<Shown, String> {
        let interval = self.interval(generation)?;
        let frozen = self.taken.get_mut(&generation).expect("clients ask for known snapshots");
        // Late reads of snapshots that are long gone cannot be judged.
        let Some(mut registers) = frozen.registers.take() else { return Ok(Vec::new()) };
        let (mut learned, mut inherited) = (Vec::new(), Vec::new());
        let mut judged = Ok(());
        let mut sight = Sight {
            family: registers.family,
            is_clone: registers.is_clone,
            interval,
            newest: Moment(0),
            learned: &mut learned,
            inherited: &mut inherited,
            place: 0,
        };
        for in_block in shown.chunk_by(|one, other| one.0 / SECTORS == other.0 / SECTORS) {
            sight.place = layout.place(in_block[0].0 / SECTORS);
            judged = sight.look(&mut registers.registers[sight.place], in_block);
            if judged.is_err() {
                break;
            }
        }
        let (interval, newest) = (sight.interval, sight.newest);
        let frozen = self.taken.get_mut(&generation).expect("it was just found");
        frozen.registers = Some(registers);
        frozen.newest = frozen.newest.max(newest);
        (frozen.after, frozen.before) = (frozen.after.max(interval.0), frozen.before.min(interval.1));
        judged
            .map_err(|what| format!("{what}; of an instant between {} and {}", interval.0.0, interval.1.0))?;
        let interval = self.interval(generation)?;
        for seen in &learned {
            self.tell_others(generation, interval, seen, present)?;
        }
        Ok(inherited)
    }

    /// Between which moments everything can have happened that a snapshot has shown: behind the beginning of its newest write, and before
    /// the word that it is taken, or anything that is not in it was acknowledged. (Not behind the order: with requests held off,
    /// those of a group come one after the other.)
    pub fn shown_between(&self, generation: Generation) -> (Moment, Moment) {
        // Of a vDisk that was dropped meanwhile nothing is known.
        let frozen = self.taken.get(&generation);
        frozen.map_or((Moment(0), NEVER), |frozen| (frozen.newest, frozen.before))
    }

    /// The present is again what this snapshot was.
    pub fn roll_back(
        &self,
        generation: Generation,
        present: &mut Registers,
        at: Moment,
    ) -> Result<(), String> {
        let (after, before) = self.interval(generation)?;
        let frozen = &self.taken[&generation];
        let registers = frozen.registers.clone().expect("it is there as long as it is rolled back to");
        present.roll_back(registers, at, |candidate| candidate.dead > after && candidate.began < before);
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

    /// Whether the sectors may read as zeros in this snapshot. See [`Registers::may_be_zero`].
    pub fn may_be_zero(
        &self,
        generation: Generation,
        layout: &Layout,
        first: u64,
        sectors: u64,
    ) -> Result<Vec<u64>, u64> {
        let Ok((after, before)) = self.interval(generation) else { return Err(first) };
        let Some(registers) = self.taken.get(&generation).and_then(|frozen| frozen.registers.as_ref()) else {
            return Ok(Vec::new());
        };
        let possible = |candidate: &Candidate| candidate.dead > after && candidate.began < before;
        registers.zeros_in_each(layout, first, sectors, possible)
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
    family: usize,
    is_clone: bool,
    interval: (Moment, Moment),
    newest: Moment,
    learned: &'a mut Vec<Seen>,
    inherited: &'a mut Shown,
    place: usize,
}

impl Sight<'_> {
    fn look(&mut self, register: &mut Register, shown: &[(u64, Mark)]) -> Result<(), String> {
        let mut last = None;
        for &(sector, mark) in shown {
            let number = value_in(mark, self.family, self.is_clone, sector)?;
            let within = (sector % SECTORS) as usize;
            let (candidates, part) = match register {
                Register::Whole(candidates) => (candidates, None),
                Register::Sectors(all) => (&mut all[within], Some(within)),
            };
            if part.is_none() && last.is_some_and(|last| last != number) {
                return Err(format!(
                    "sector {sector} and the one before it are of different writes of the whole block"
                ));
            }
            if part.is_some() || last != Some(number) {
                self.see(candidates, number, mark, part).map_err(|()| {
                    format!("sector {sector} read as {mark:?}; possible: {}", describe(candidates))
                })?;
            }
            last = Some(number);
            if self.is_clone && number == 0 && candidates.iter().all(|candidate| candidate.number == 0) {
                self.inherited.push((sector, mark));
            }
        }
        Ok(())
    }

    fn see(
        &mut self,
        candidates: &mut Vec<Candidate>,
        number: u32,
        mark: Mark,
        sector: Option<usize>,
    ) -> Result<(), ()> {
        if candidates.is_empty() {
            return if number == 0 { Ok(()) } else { Err(()) };
        }
        let (after, before) = self.interval;
        let matches = |candidate: &Candidate| {
            is_shown(candidate, number, mark) && candidate.dead > after && candidate.began < before
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
        self.newest = self.newest.max(began);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::{content, marks};

    const FAMILY: usize = 1;

    /// A vDisk of four blocks; moments are counted by hand.
    struct Story {
        layout: Layout,
        present: Registers,
        snapshots: Snapshots,
    }

    fn story() -> Story {
        let layout = Layout::dense(4);
        Story { layout, present: Registers::new(FAMILY, 4, false), snapshots: Snapshots::default() }
    }

    impl Story {
        fn began(&mut self, number: u32, block: u64, began: u64) -> Write {
            let write = Write {
                number,
                first: block * 8,
                sectors: 8,
                zero: false,
                image: None,
                began: Moment(began),
            };
            self.present.began(&self.layout, write);
            write
        }

        /// Nobody has finished a read since the beginning of time, so that nothing is forgotten.
        fn acknowledged(&mut self, write: Write, at: u64) {
            self.present.acknowledged(&self.layout, write, Moment(at), Moment(0));
        }

        fn written(&mut self, number: u32, block: u64, at: u64) {
            let write = self.began(number, block, at);
            self.acknowledged(write, at + 1);
        }

        fn taken(&mut self, generation: u32, asked: u64, told: u64) {
            let snapshot = SnapshotId(u64::from(generation) + 100);
            assert!(self.snapshots.asked(snapshot, Moment(asked)));
            self.told(generation, told);
        }

        fn told(&mut self, generation: u32, told: u64) {
            let snapshot = SnapshotId(u64::from(generation) + 100);
            let taken =
                self.snapshots.taken(snapshot, Generation(generation), 1, Moment(told), &self.present);
            taken.expect("it is taken once");
        }

        /// A read of a block of a snapshot shows write `number`, or zeros.
        fn read(&mut self, generation: u32, block: u64, number: u32) -> Result<(), String> {
            let data = if number == 0 {
                weft_engine::buffer::zeros(4096)
            } else {
                content(FAMILY, number, block * 8, 8)
            };
            let Self { layout, present, snapshots } = self;
            let shown = marks(block * 8, &[data])?;
            snapshots.read(Generation(generation), layout, present, &shown).map(drop)
        }
    }

    #[test]
    fn what_was_acknowledged_before_the_order_is_in_it_and_what_came_after_the_word_is_not() {
        let mut story = story();
        story.written(1, 0, 1);
        story.taken(5, 3, 4);
        story.written(2, 0, 5);
        assert!(story.read(5, 0, 2).is_err(), "it was begun after the word");
        assert!(story.read(5, 0, 0).is_err(), "the first write was acknowledged before the order");
        assert!(story.read(5, 0, 1).is_ok());
        assert!(story.read(5, 1, 0).is_ok(), "nobody wrote that");
    }

    #[test]
    fn a_write_under_way_is_in_it_or_not_and_that_never_changes() {
        for seen in [1, 2] {
            let mut story = story();
            story.written(1, 0, 1);
            assert!(story.snapshots.asked(SnapshotId(105), Moment(3)));
            let second = story.began(2, 0, 4);
            story.told(5, 5);
            story.acknowledged(second, 6);
            assert!(story.read(5, 0, seen).is_ok());
            assert!(story.read(5, 0, seen).is_ok());
            assert!(story.read(5, 0, 3 - seen).is_err(), "it has shown {seen}");
        }
    }

    #[test]
    fn it_is_one_instant_over_all_blocks() {
        let mut story = story();
        assert!(story.snapshots.asked(SnapshotId(105), Moment(1)));
        story.written(1, 0, 2);
        story.written(2, 1, 4);
        story.told(5, 6);
        assert!(story.read(5, 1, 2).is_ok(), "the second write is in it");
        assert!(story.read(5, 0, 0).is_err(), "so the first is, which was acknowledged before");

        let mut story = self::story();
        assert!(story.snapshots.asked(SnapshotId(105), Moment(1)));
        story.written(1, 0, 2);
        story.written(2, 1, 4);
        story.told(5, 6);
        assert!(story.read(5, 0, 0).is_ok(), "the first write is not in it");
        assert!(story.read(5, 1, 2).is_err(), "so the second is not, which began later");
    }

    #[test]
    fn a_later_snapshot_and_the_present_do_not_go_back_behind_an_earlier_one() {
        let mut story = story();
        story.written(1, 0, 1);
        // Its outcome is unknown: it may take effect at any time, or never.
        story.began(2, 0, 3);
        story.taken(5, 4, 5);
        story.taken(6, 6, 7);
        assert!(story.read(5, 0, 2).is_ok());
        assert!(story.read(6, 0, 1).is_err(), "the second write had taken effect");
        assert!(story.read(6, 0, 2).is_ok());
        let (old, layout) = (marks(0, &[content(FAMILY, 1, 0, 8)]).expect("a write"), &story.layout);
        assert!(story.present.read(layout, &old, Moment(8), Moment(9), Moment(8)).is_err());
    }

    #[test]
    fn generations_are_the_order_of_the_instants() {
        let mut story = story();
        assert!(story.snapshots.asked(SnapshotId(105), Moment(1)));
        assert!(story.snapshots.asked(SnapshotId(106), Moment(2)));
        story.written(1, 0, 3);
        story.told(6, 5);
        story.told(5, 6);
        assert!(story.read(6, 0, 0).is_ok(), "the later one does not have the write");
        assert!(story.read(5, 0, 1).is_err(), "so the earlier one does not");
    }

    #[test]
    fn one_that_was_taken_is_not_lost_and_one_that_was_dropped_does_not_come_back() {
        let mut story = story();
        story.taken(5, 1, 2);
        let list = [(Generation(5), SnapshotId(105))];
        assert!(story.snapshots.told(&list, 1).is_ok());
        assert!(story.snapshots.told(&[], 1).is_err(), "it is lost");
        assert!(!story.snapshots.may_be_missing(Generation(5), 1));
        assert!(story.snapshots.dropped(Generation(5), 1, Moment(3)).is_err(), "nobody ordered that");
        story.snapshots.drop_ordered(Generation(5));
        assert!(story.snapshots.told(&[], 1).is_ok());
        story.snapshots.dropped(Generation(5), 1, Moment(3)).expect("it was ordered");
        assert!(story.snapshots.told(&list, 1).is_err(), "it is back");
        assert!(!story.snapshots.may_be_found(Generation(5), 1, Moment(4)));
        assert!(story.snapshots.may_be_found(Generation(5), 1, Moment(2)), "it was asked for before");
    }

    #[test]
    fn a_hole_where_it_has_data_is_seen() {
        let mut story = story();
        story.written(1, 0, 1);
        story.taken(5, 3, 4);
        let Story { layout, snapshots, .. } = &story;
        assert_eq!(snapshots.may_be_zero(Generation(5), layout, 0, 8), Err(0));
        assert_eq!(snapshots.may_be_zero(Generation(5), layout, 8, 8), Ok(Vec::new()));
    }
}
