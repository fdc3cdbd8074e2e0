//! Reading ahead of sequential streams.
//! Promises: only what lies in egroups is read, once, and never more than the shard's room for it; what no drive could
//! give is left to the read that wants it, which tries every copy.
//! Leaves to others: when, and how far (`pattern.rs`).

use super::Volume;
use super::read::{Reader, Waiting};
use crate::buffer::{BLOCK, Buffer};
use crate::cache::Place;
use crate::context::Context;
use crate::identity::{Block, EgroupId};
use crate::map::lookup::{PageWaiter, Where};
use crate::message::UnitRun;
use crate::stages::Stage;
use std::collections::BTreeMap;
use std::ops::Range;

impl Volume {
    /// Reads these bytes of the vDisk ahead, as far as there is room and the map is in memory; a page of the map that is
    /// not is fetched.
    pub(super) fn read_ahead(&mut self, wanted: Range<u64>, ctx: &mut Context) {
        let block_bytes = BLOCK as u64;
        let (first, end) = (wanted.start.div_ceil(block_bytes), wanted.end.min(self.size) / block_bytes);
        if first >= end || self.is_failed() {
            return;
        }
        let mut asks: BTreeMap<EgroupId, Vec<(Block, UnitRun)>> = BTreeMap::new();
        'range: for found in self.resolve(Block(first), end - first, ctx) {
            match found.place {
                Where::Dirty(_) | Where::Zeroes | Where::Lost | Where::Origin | Where::View { .. } => {}
                Where::Page { leaf, place } => {
                    self.streams.stopped_at(found.block.0 * block_bytes);
                    self.fetch_leaf(leaf, place, PageWaiter::Nobody, ctx);
                    break;
                }
                Where::At { egroup, unit } => {
                    let run = UnitRun { first: unit, count: found.count as u32 };
                    for (block, run) in self.not_cached(found.block, egroup, run, ctx) {
                        // Several blocks may have one place.
                        let parts = asks.entry(egroup).or_default();
                        if parts.iter().any(|(_, other)| other.overlaps(run)) {
                            continue;
                        }
                        if !ctx.cache.ahead.begin(run.count, ctx.now) {
                            self.streams.stopped_at(block.0 * block_bytes);
                            break 'range;
                        }
                        parts.push((block, run));
                    }
                }
            }
        }
        for (egroup, parts) in asks.into_iter().filter(|(_, parts)| !parts.is_empty()) {
            let runs: Vec<UnitRun> = parts.iter().map(|(_, run)| *run).collect();
            let ask = self.fetch_units(Reader::Ahead(Vec::new()), egroup, parts, ctx);
            for run in runs {
                match ask {
                    Some(ask) => drop(self.reads.aheads.insert((egroup, run.first), (run.count, ask))),
                    None => ctx.cache.ahead.end(run.count),
                }
            }
        }
    }

    /// What was read ahead has come, or could not be read.
    pub(super) fn on_ahead(
        &mut self,
        egroup: EgroupId,
        units: Vec<(Block, UnitRun, Option<Buffer>)>,
        waiting: Vec<Waiting>,
        ctx: &mut Context,
    ) {
        for (_, run, data) in units {
            self.reads.aheads.remove(&(egroup, run.first)).expect("what comes was under way");
            ctx.cache.ahead.end(run.count);
            if let Some(data) = data {
                ctx.cache.ahead.put(Place::new(self.family, egroup, run.first), data, ctx.now);
            }
        }
        // They look again: the map may have moved on, and a copy that is bad here has to be looked for elsewhere.
        for Waiting { job, block, count, since } in waiting {
            ctx.counters.stages.record_us(Stage::AheadWait, ctx.now.since(since));
            self.look_up(job, block, count, ctx);
            self.finish_job(job, ctx);
        }
    }

    /// Nothing that is under way will come any more.
    pub(super) fn forget_aheads(&mut self, ctx: &mut Context) {
        for (count, _) in std::mem::take(&mut self.reads.aheads).into_values() {
            ctx.cache.ahead.end(count);
        }
    }
}
