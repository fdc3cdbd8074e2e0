//! What of a read is in memory already, or on its way to a stream.
//! Promises: a place names content that never changes, so what is kept under it is what the drive would give; a read
//! that wants what is being read ahead waits for it instead of reading it twice.
//! Leaves to others: where blocks are (`map/lookup.rs`), what is kept and for how long (`cache`).

use super::Volume;
use super::read::{Reader, Waiting};
use crate::cache::Place;
use crate::context::Context;
use crate::counters::Source;
use crate::identity::{Block, EgroupId};
use crate::message::UnitRun;

impl Volume {
    /// Gives a read what is in memory of these units, and has it wait for what is on its way. The rest is returned: it is
    /// to be asked of a drive.
    pub(super) fn give_cached(
        &mut self,
        number: u64,
        block: Block,
        egroup: EgroupId,
        run: UnitRun,
        ctx: &mut Context,
    ) -> Vec<(Block, UnitRun)> {
        let mut missing: Vec<(Block, UnitRun)> = Vec::new();
        let mut at = 0;
        while at < run.count {
            let here = block.plus(u64::from(at));
            let (unit, left) = (run.first + at, run.count - at);
            let place = Place::new(self.family, egroup, unit);
            let job = self.reads.jobs.get_mut(&number).expect("who looks up has a job");
            let whole = job.whole_to.saturating_sub(here.0).min(u64::from(left)) as u32;
            if let Some(data) = ctx.cache.ahead.take(place, left, whole) {
                let units = data.blocks();
                for index in 0..units {
                    ctx.cache.units.note(place.plus(index as u32), data.block(index).bytes());
                }
                job.give(here, data, Source::Ahead);
                at += units as u32;
                continue;
            }
            if let Some(data) = ctx.cache.get(place, left) {
                at += data.blocks() as u32;
                job.give(here, data, Source::Cache);
                continue;
            }
            if let Some((count, ask)) = self.under_way(egroup, unit) {
                let count = count.min(left);
                ctx.cache.ahead.counters.waited += 1;
                let ask = self.reads.asks.get_mut(&ask).expect("what is under way was asked for");
                let Reader::Ahead(waiting) = &mut ask.reader else {
                    unreachable!("only what is read ahead is noted as under way");
                };
                let (job, since) = (number, ctx.now);
                waiting.push(Waiting { job, block: here, count: u64::from(count), since });
                at += count;
                continue;
            }
            join(&mut missing, here, UnitRun { first: unit, count: 1 });
            at += 1;
        }
        missing
    }

    /// Of these units, those that are neither in memory nor on their way.
    pub(super) fn not_cached(
        &self,
        block: Block,
        egroup: EgroupId,
        run: UnitRun,
        ctx: &Context,
    ) -> Vec<(Block, UnitRun)> {
        let mut missing = Vec::new();
        let mut at = 0;
        while at < run.count {
            let (unit, left) = (run.first + at, run.count - at);
            let place = Place::new(self.family, egroup, unit);
            let held = match ctx.cache.ahead.holds(place, left) {
                0 if ctx.cache.units.holds(place) => 1,
                0 => self.under_way(egroup, unit).map_or(0, |(count, _)| count),
                held => held,
            };
            if held == 0 {
                join(&mut missing, block.plus(u64::from(at)), UnitRun { first: unit, count: 1 });
            }
            at += held.max(1);
        }
        missing
    }

    /// From this unit on, how many are being read ahead in one run, and by which ask.
    fn under_way(&self, egroup: EgroupId, unit: u32) -> Option<(u32, u64)> {
        let (&(other, first), &(count, ask)) = self.reads.aheads.range(..=(egroup, unit)).next_back()?;
        (other == egroup && unit < first + count).then(|| (first + count - unit, ask))
    }
}

/// One run more; it joins the one before it where both its block and its place follow.
pub(super) fn join(runs: &mut Vec<(Block, UnitRun)>, block: Block, run: UnitRun) {
    match runs.last_mut() {
        Some((first, last))
            if first.plus(u64::from(last.count)) == block && last.first + last.count == run.first =>
        {
            last.count += run.count;
        }
        _ => runs.push((block, run)),
    }
}
