//! Moving the live units of some egroups into a new one, so that the old ones die whole.
//! Promises: it does not matter who sees a unit, the present or snapshots, or whether somebody still does when the record of its
//! move is durable: the record only says where there is a copy. A job ends, whatever drives and pages do.
//! Leaves to others: which egroups (`compact`), writing the new one (`egroup/place.rs`), telling the pages (`map/moves.rs`).

use crate::buffer::{BLOCK, Buffer};
use crate::context::{Context, Purpose};
use crate::curator::audit::Fault;
use crate::egroup::place::Intent;
use crate::egroup::units::Units;
use crate::formats::record::{MapRecord, NamedEgroup, PageKind, PagePlace, UnitMove};
use crate::identity::{Block, DriveId, EgroupId, Generation, Time};
use crate::interface::Compression;
use crate::limits::{EGROUP_UNITS, LEAF_BLOCKS};
use crate::map::lookup::{MapPage, PageWaiter};
use crate::message::{Answer, Class, Question, Refusal, UnitRun};
use crate::sabotage::{Bug, planted};
use crate::volume::{Volume, Waiter};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

/// A job that has fetched so many pages takes no further victim.
const FETCHES_MAX: usize = 4 * EGROUP_UNITS;
/// For one victim at most: its units may lie in as many leaves, each with pages of the past. Each fetch is an answer, so a job ends.
const VICTIM_FETCHES_MAX: usize = 64 * EGROUP_UNITS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Asking for what blocks the victim's units were written.
    Describing,
    /// Finding out which of them are still there.
    Looking,
    Reading,
    Placing,
    Naming,
}

/// A block on its way to a new egroup.
#[derive(Debug)]
struct Move {
    block: Block,
    from: EgroupId,
    unit: u32,
    data: Option<Buffer>,
}

/// Which groups may take what is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whereto {
    Anywhere,
    /// It is moved for the sake of a copy on a drive of this shard.
    Here,
}

#[derive(Debug)]
pub(super) struct Job {
    step: Step,
    whereto: Whereto,
    /// Of all victims, and so of the new egroup.
    generation: Generation,
    packing: Compression,
    /// Still to be read, the first one now.
    victims: VecDeque<EgroupId>,
    /// Read: without live blocks when the job is done.
    done: Vec<EgroupId>,
    /// Of the present victim: sources that failed, the blocks of its units, how many of them were looked up, which
    /// of them are live, and the runs asked for.
    tried: Vec<DriveId>,
    blocks: Vec<u64>,
    looked: usize,
    live: BTreeMap<u32, Move>,
    asked: Vec<UnitRun>,
    /// In the order of the new egroup once that is being placed.
    moves: Vec<Move>,
    named: Option<NamedEgroup>,
    /// Pages looked at for the present leaf, so that a small cache does not have them fetched again and again.
    pages: BTreeMap<PagePlace, MapPage>,
    leaf: u64,
    /// Pages fetched for the job, and for the present victim.
    fetches: usize,
    victim_fetches: usize,
}

impl Job {
    pub fn new(
        generation: Generation,
        victims: VecDeque<EgroupId>,
        packing: Compression,
        whereto: Whereto,
    ) -> Self {
        Self {
            step: Step::Describing,
            whereto,
            generation,
            packing,
            victims,
            done: Vec::new(),
            tried: Vec::new(),
            blocks: Vec::new(),
            looked: 0,
            live: BTreeMap::new(),
            asked: Vec::new(),
            moves: Vec::new(),
            named: None,
            pages: BTreeMap::new(),
            leaf: 0,
            fetches: 0,
            victim_fetches: 0,
        }
    }

    /// The new egroup, when it is durable.
    pub fn naming(&self) -> Option<EgroupId> {
        self.named.map(|named| named.egroup)
    }

    pub fn is_busy_with(&self, egroup: EgroupId) -> bool {
        self.victims.contains(&egroup) || self.done.contains(&egroup)
    }

    fn begin_victim(&mut self) {
        self.step = Step::Describing;
        self.tried.clear();
        self.blocks.clear();
        self.live.clear();
        self.looked = 0;
        self.pages.clear();
        self.victim_fetches = 0;
    }

    /// Live units that were not read yet, in runs.
    fn unread(&self) -> Vec<UnitRun> {
        let mut runs: Vec<UnitRun> = Vec::new();
        for (&unit, _) in self.live.iter().filter(|(_, found)| found.data.is_none()) {
            match runs.last_mut() {
                Some(run) if run.first + run.count == unit => run.count += 1,
                _ => runs.push(UnitRun { first: unit, count: 1 }),
            }
        }
        runs
    }
}

/// Whether a unit is worth moving.
enum Seen {
    Yes,
    No,
    /// The page that knows is not in memory.
    InPage(PageKind, u64, PagePlace),
}

impl Volume {
    /// Asks what the first victim's units were written for; without a victim left, the new egroup is placed.
    pub(super) fn describe_victim(&mut self, number: u64, mut job: Job, ctx: &mut Context) {
        while let Some(&victim) = job.victims.front() {
            let tried = job.tried.clone();
            if self.map.directory.contains(victim)
                && let Some(drive) = self.nearest_copy(victim, &tried, ctx)
            {
                let question = Question::DescribeEgroup { egroup: victim };
                ctx.ask(self.family, self.epoch, drive, question, Purpose::Compact(number));
                self.compaction.jobs.insert(number, job);
                return;
            }
            self.give_up_victim(&mut job, ctx.now);
        }
        self.place_moves(number, job, ctx);
    }

    fn give_up_victim(&mut self, job: &mut Job, now: Time) {
        let victim = job.victims.pop_front().expect("only a victim is given up");
        self.compaction.leave_unreadable(victim, now);
        job.begin_victim();
    }

    pub(crate) fn on_compact(
        &mut self,
        number: u64,
        drive: DriveId,
        answer: Result<Answer, Refusal>,
        ctx: &mut Context,
    ) {
        let Some(mut job) = self.compaction.jobs.remove(&number) else { return };
        let victim = *job.victims.front().expect("a job that asks has a victim");
        match (job.step, answer) {
            (Step::Describing, Ok(Answer::Egroup { blocks, .. })) => {
                if self.map.units_of(victim).is_some_and(|units| units as usize == blocks.len()) {
                    job.blocks = blocks;
                    job.step = Step::Looking;
                    return self.look_for_live_units(number, job, ctx);
                }
                job.tried.push(drive);
                if blocks.is_empty() {
                    self.on_bad_copy(victim, drive, Fault::Damaged, ctx);
                }
                self.describe_victim(number, job, ctx);
            }
            (Step::Reading, Ok(Answer::Units(results))) => {
                assert_eq!(results.len(), job.asked.len(), "each run has a result");
                let (mut good, mut lost) = (true, true);
                for (run, result) in job.asked.iter().zip(results) {
                    let data = match result {
                        Ok(data) => data,
                        Err(bad) => {
                            good = false;
                            lost &= bad.is_lost;
                            continue;
                        }
                    };
                    assert_eq!(data.len(), run.count as usize * BLOCK, "a run is answered whole");
                    for index in 0..run.count {
                        let found = job.live.get_mut(&(run.first + index)).expect("only live units are read");
                        found.data = Some(data.block(index as usize));
                    }
                }
                if !good {
                    job.tried.push(drive);
                    if !lost {
                        self.on_bad_copy(victim, drive, Fault::Damaged, ctx);
                    }
                }
                self.read_live_units(number, job, ctx);
            }
            (step, Err(refusal)) => {
                job.tried.push(drive);
                if refusal == Refusal::NotFound {
                    self.on_bad_copy(victim, drive, Fault::Missing, ctx);
                }
                match step {
                    Step::Describing => self.describe_victim(number, job, ctx),
                    _ => self.read_live_units(number, job, ctx),
                }
            }
            (step, Ok(other)) => unreachable!("a compaction in step {step:?} is not answered by {other:?}"),
        }
    }

    /// Finds out which units of the victim are still the place of their block. A unit that is dead stays dead, so
    /// this need not happen in one step.
    fn look_for_live_units(&mut self, number: u64, mut job: Job, ctx: &mut Context) {
        let victim = *job.victims.front().expect("a job that looks has a victim");
        while job.looked < job.blocks.len() {
            let (unit, block) = (job.looked as u32, Block(job.blocks[job.looked]));
            if block.0 / LEAF_BLOCKS != job.leaf {
                job.leaf = block.0 / LEAF_BLOCKS;
                job.pages.clear();
            }
            match self.is_seen(block, victim, unit, &mut job.pages) {
                Seen::InPage(kind, page, place) => {
                    return self.fetch_for_compaction(number, job, (kind, page, place), ctx);
                }
                Seen::Yes => {
                    job.live.insert(unit, Move { block, from: victim, unit, data: None });
                }
                Seen::No => {}
            }
            job.looked += 1;
        }
        if job.moves.len() + job.live.len() > EGROUP_UNITS {
            // More of it is live than was counted when it was chosen: this one and the rest have their turn later.
            assert!(!job.moves.is_empty(), "the units of one egroup fit into one egroup");
            job.victims.clear();
            return self.place_moves(number, job, ctx);
        }
        self.read_live_units(number, job, ctx);
    }

    fn read_live_units(&mut self, number: u64, mut job: Job, ctx: &mut Context) {
        let victim = *job.victims.front().expect("a job that reads has a victim");
        job.asked = job.unread();
        if job.asked.is_empty() {
            job.moves.extend(std::mem::take(&mut job.live).into_values());
            job.done.push(victim);
            job.victims.pop_front();
            if job.fetches > FETCHES_MAX && !planted(Bug::CompactedInVain) {
                // What was found so far is not thrown away for the rest, which has its turn later.
                job.victims.clear();
            }
            job.begin_victim();
            return self.describe_victim(number, job, ctx);
        }
        let tried = job.tried.clone();
        let Some(drive) = self.nearest_copy(victim, &tried, ctx) else {
            self.give_up_victim(&mut job, ctx.now);
            return self.describe_victim(number, job, ctx);
        };
        job.step = Step::Reading;
        let runs = job.asked.clone();
        // In a full pool clients wait for what this gives back.
        let behind = !self.placing.is_full();
        let question = Question::ReadUnits { egroup: victim, runs, frames: false, behind };
        ctx.ask(self.family, self.epoch, drive, question, Purpose::Compact(number));
        self.compaction.jobs.insert(number, job);
    }

    fn place_moves(&mut self, number: u64, mut job: Job, ctx: &mut Context) {
        if job.moves.is_empty() {
            self.compaction.emptied.extend(job.done);
            return;
        }
        // Neighbours in the address space become neighbours on the drive.
        job.moves.sort_by_key(|moved| moved.block);
        let mut units = Units::default();
        for moved in &mut job.moves {
            let data = moved.data.take().expect("what is moved was read");
            units.push(moved.block.0, data);
        }
        job.step = Step::Placing;
        let from = job.done.clone();
        let (generation, packing, whereto) = (job.generation, job.packing, job.whereto);
        let intent = Intent::Compact { generation, job: number, packing, whereto, from };
        self.compaction.jobs.insert(number, job);
        self.place(units, Class::Reserve, intent, ctx);
    }

    /// The new egroup is durable on all members.
    pub(crate) fn on_compact_placed(&mut self, number: u64, named: Option<NamedEgroup>) {
        let named = named.expect("a compaction places units");
        let mut job = self.compaction.jobs.remove(&number).expect("a placed egroup has its compaction");
        assert_eq!(job.step, Step::Placing, "an egroup is placed once");
        assert_eq!(named.units as usize, job.moves.len(), "each unit has a block that moved");
        self.compaction.found_room();
        if job.whereto == Whereto::Here {
            self.following.found_place();
        }
        job.named = Some(named);
        job.step = Step::Naming;
        let mut moves: Vec<UnitMove> = Vec::new();
        for (unit, moved) in job.moves.iter().enumerate() {
            add_move(&mut moves, moved, unit as u32);
        }
        let generation = job.generation;
        self.compaction.jobs.insert(number, job);
        let record = MapRecord { generation, named: Some(named), edits: Vec::new(), moves };
        self.push_map(record, Waiter::Compact(number));
    }

    fn drop_new_egroup(&mut self, job: &Job, ctx: &mut Context) {
        let Some(named) = job.named else { return };
        for drive in self.placing.take_written(named.egroup).unwrap_or_default() {
            let question = Question::DeleteEgroups { egroups: vec![named.egroup] };
            ctx.ask(self.family, self.epoch, drive, question, Purpose::Forget);
        }
    }

    fn fetch_for_compaction(
        &mut self,
        number: u64,
        mut job: Job,
        (kind, page, place): (PageKind, u64, PagePlace),
        ctx: &mut Context,
    ) {
        job.fetches += 1;
        job.victim_fetches += 1;
        if job.victim_fetches > VICTIM_FETCHES_MAX {
            self.give_up_victim(&mut job, ctx.now);
            return self.describe_victim(number, job, ctx);
        }
        let fetches = job.fetches;
        self.compaction.jobs.insert(number, job);
        if planted(Bug::CompactedInVain) && fetches > FETCHES_MAX {
            return self.abandon_compaction(number, ctx);
        }
        self.fetch_page(kind, page, place, PageWaiter::Compact { job: number }, ctx);
    }

    /// The page is in memory, or is not the page any more.
    pub(crate) fn on_compact_page(&mut self, number: u64, ctx: &mut Context) {
        let Some(job) = self.compaction.jobs.remove(&number) else { return };
        match job.step {
            Step::Looking => self.look_for_live_units(number, job, ctx),
            step => unreachable!("a compaction in step {step:?} waits for no page"),
        }
    }

    /// A page cannot be read, or there is no room: its victims are left alone for a while.
    pub(crate) fn abandon_compaction(&mut self, number: u64, ctx: &mut Context) {
        let Some(job) = self.compaction.jobs.remove(&number) else { return };
        assert_ne!(job.step, Step::Naming, "a record that was given a number cannot be taken back");
        self.drop_new_egroup(&job, ctx);
        self.compaction.leave_alone(job.victims.into_iter().chain(job.done), ctx.now);
    }

    /// The map record is durable: the victims have no live unit any more, as the next checkpoint will count.
    pub(crate) fn on_compacted(&mut self, number: u64, ctx: &mut Context) {
        let job = self.compaction.jobs.remove(&number).expect("a compaction ends once");
        assert_eq!(job.step, Step::Naming, "a compaction ends when its record is durable");
        ctx.counters.egroups_compacted += job.done.len() as u64;
        self.compaction.emptied.extend(job.done);
    }

    /// Whether the present or a snapshot has this unit as the place of its block, as far as the pages tell. What only the edits
    /// know is too new to be moved, and what they hide is worth it only if a snapshot may see it.
    fn is_seen(
        &mut self,
        block: Block,
        egroup: EgroupId,
        unit: u32,
        pages: &mut BTreeMap<PagePlace, MapPage>,
    ) -> Seen {
        let Some(entry) = self.map.directory.get(egroup) else { return Seen::No };
        let number = block.0 / LEAF_BLOCKS;
        let within = (block.0 - number * LEAF_BLOCKS) as u32;
        let edited = self.map.edits.get(block).is_some()
            || self.map.merging.as_ref().is_some_and(|merging| merging.get(block).is_some());
        let may_be_past = self.snapshots.taken.range(entry.generation..).next().is_some();
        let mut wanted: Vec<(PageKind, u64, PagePlace)> = Vec::new();
        // A running checkpoint counts before its pages come: what it has counted as live again may still be in the past here, and
        // what it has put into the past still in the leaf.
        let is_counting = self.checkpointing.is_running();
        if !edited || may_be_past || is_counting {
            let place = self.map.index.get(PageKind::Leaf, number);
            wanted.extend(place.map(|place| (PageKind::Leaf, number, place)));
        }
        if entry.past > 0 || is_counting {
            wanted
                .extend(self.map.index.past_of(number).map(|(page, place, _)| (PageKind::Past, page, place)));
        }
        for (kind, page, place) in wanted {
            let known = match pages.entry(place) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => match self.map.pages.get(place) {
                    Some(page) => unknown.insert(page),
                    None => return Seen::InPage(kind, page, place),
                },
            };
            let tells = match known {
                MapPage::Leaf(leaf) => {
                    leaf.find(within).is_some_and(|(of, at, _)| of == egroup && at == unit)
                }
                MapPage::Past(past) => past.tells_of(within, egroup, unit),
            };
            if tells {
                return Seen::Yes;
            }
        }
        Seen::No
    }
}

/// Adds that a unit is at `unit` of the new egroup too.
fn add_move(moves: &mut Vec<UnitMove>, moved: &Move, unit: u32) {
    if let Some(last) = moves.last_mut()
        && last.block.plus(last.count.into()) == moved.block
        && last.from == moved.from
        && last.from_unit + last.count == moved.unit
        && last.unit + last.count == unit
    {
        last.count += 1;
        return;
    }
    moves.push(UnitMove { block: moved.block, count: 1, from: moved.from, from_unit: moved.unit, unit });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_that_follow_each_other_are_one() {
        let mut moves = Vec::new();
        for (unit, (block, from, from_unit)) in
            [(5, 1, 9), (6, 1, 10), (8, 1, 11), (9, 1, 13), (10, 2, 14)].into_iter().enumerate()
        {
            let moved = Move { block: Block(block), from: EgroupId(from), unit: from_unit, data: None };
            add_move(&mut moves, &moved, unit as u32);
        }
        let told: Vec<_> = moves.iter().map(|m| (m.block.0, m.count, m.from_unit, m.unit)).collect();
        assert_eq!(told, [(5, 2, 9, 0), (8, 1, 11, 2), (9, 1, 13, 3), (10, 1, 14, 4)]);
    }
}
