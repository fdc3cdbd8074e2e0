//! Bringing a vDisk's map, and its data if that is wanted, into memory before anybody reads it.
//! Promises: one request does a bounded step and says how far it came; nothing that is kept already is pushed out
//! for it, but for the one page of the map that a step with data needs.
//! Leaves to others: asking for the next step (the control plane), what is kept and for how long (`cache`).

use super::Volume;
use super::read::{Reader, frame_of};
use crate::buffer::{BLOCK, Buffer};
use crate::cache::Place;
use crate::context::Context;
use crate::identity::{Block, EgroupId};
use crate::interface::{Reply, Warmed};
use crate::limits::LEAF_BLOCKS;
use crate::map::leaf::Run;
use crate::map::lookup::{PageWaiter, Where};
use crate::message::{PackedFrame, UnitRun};
use std::collections::BTreeMap;

/// Pages that one step brings.
const STEP_LEAVES: u64 = 64;
/// Memory that the largest of them takes.
const LEAF_BYTES_MAX: usize = LEAF_BLOCKS as usize * size_of::<Run>();

#[derive(Debug)]
pub(crate) struct Warming {
    request: u64,
    first: Block,
    /// Blocks that this step covers.
    count: u64,
    data: bool,
    /// Pages or runs on their way.
    waits: u64,
    warmed: Warmed,
}

impl Volume {
    pub(crate) fn begin_warm(&mut self, request: u64, offset: u64, len: u64, data: bool, ctx: &mut Context) {
        let block_bytes = BLOCK as u64;
        let (first, end) = (offset / block_bytes, (offset + len).div_ceil(block_bytes));
        // Data comes a leaf at a time: as much as a few large reads.
        let leaves = if data { 1 } else { STEP_LEAVES };
        let step_end = ((first / LEAF_BLOCKS + leaves) * LEAF_BLOCKS).min(end);
        let warmed = Warmed { to: (step_end * block_bytes).min(offset + len), ..Warmed::default() };
        let number = self.reads.number();
        let warming =
            Warming { request, first: Block(first), count: step_end - first, data, waits: 1, warmed };
        self.reads.warmings.insert(number, warming);
        let room = ctx.limits.pages_bytes_max.saturating_sub(self.map.pages.bytes());
        let mut pages_left = if data { leaves } else { (room / LEAF_BYTES_MAX) as u64 };
        for found in self.resolve(Block(first), step_end - first, ctx) {
            if let Where::Page { leaf, place } = found.place {
                if pages_left == 0 {
                    self.warming(number).warmed.full = true;
                    break;
                }
                pages_left -= 1;
                self.warming(number).waits += 1;
                self.fetch_leaf(leaf, place, PageWaiter::Warm(number), ctx);
                if self.is_failed() {
                    return;
                }
            }
        }
        self.on_warm_page(number, ctx);
    }

    fn warming(&mut self, number: u64) -> &mut Warming {
        self.reads.warmings.get_mut(&number).expect("a step stays until nothing of it is on its way")
    }

    /// A page is there, or cannot be had now.
    pub(crate) fn on_warm_page(&mut self, number: u64, ctx: &mut Context) {
        let warming = self.warming(number);
        warming.waits -= 1;
        if warming.waits > 0 {
            return;
        }
        let (first, count, data) = (warming.first, warming.count, warming.data);
        self.warming(number).warmed.pages = self.pages_in_memory(first, count);
        if data {
            self.warm_data(number, first, count, ctx);
        } else {
            self.finish_warm(number, ctx);
        }
    }

    fn warm_data(&mut self, number: u64, first: Block, count: u64, ctx: &mut Context) {
        let mut asks: BTreeMap<EgroupId, Vec<(Block, UnitRun)>> = BTreeMap::new();
        let mut units = 0;
        for found in self.resolve(first, count, ctx) {
            let Where::At { egroup, unit } = found.place else { continue };
            let run = UnitRun { first: unit, count: found.count as u32 };
            let missing = self.not_cached(found.block, egroup, run, ctx);
            let missing_units: u64 = missing.iter().map(|(_, run)| u64::from(run.count)).sum();
            units += found.count - missing_units;
            if !missing.is_empty() {
                asks.entry(egroup).or_default().extend(missing);
            }
        }
        let is_full = ctx.cache.units.is_full();
        let warming = self.warming(number);
        warming.warmed.bytes = units * BLOCK as u64;
        warming.warmed.full = is_full && !asks.is_empty();
        warming.waits = 1;
        if !is_full {
            for (egroup, parts) in asks {
                if self.fetch_units(Reader::Warming(number), egroup, parts, ctx).is_some() {
                    self.warming(number).waits += 1;
                }
            }
        }
        self.on_warm_part(number, ctx);
    }

    pub(super) fn on_warm_units(
        &mut self,
        number: u64,
        egroup: EgroupId,
        units: Vec<(Block, UnitRun, Option<Buffer>)>,
        frames: &[PackedFrame],
        ctx: &mut Context,
    ) {
        let family = self.family;
        let place = |unit| Place::new(family, egroup, unit);
        let mut keep = |frame: &PackedFrame| ctx.cache.units.warm_frame(place(frame.first), frame);
        let kept: Vec<bool> = frames.iter().map(&mut keep).collect();
        for (_, run, data) in units {
            // What no good copy of was met is for a read to look for.
            let Some(data) = data else { continue };
            for (unit, bytes) in (run.first..).zip(data.bytes().chunks_exact(BLOCK)) {
                let kept = match frame_of(frames, unit) {
                    Some(frame) => kept[frame],
                    None => ctx.cache.units.warm(place(unit), bytes),
                };
                let warmed = &mut self.warming(number).warmed;
                warmed.bytes += if kept { BLOCK as u64 } else { 0 };
                warmed.full |= !kept;
            }
        }
        self.on_warm_part(number, ctx);
    }

    fn on_warm_part(&mut self, number: u64, ctx: &mut Context) {
        let warming = self.warming(number);
        warming.waits -= 1;
        if warming.waits == 0 {
            self.finish_warm(number, ctx);
        }
    }

    fn finish_warm(&mut self, number: u64, ctx: &mut Context) {
        let warming = self.reads.warmings.remove(&number).expect("a step ends once");
        self.reply(warming.request, Reply::Warmed(warming.warmed), ctx);
    }
}
