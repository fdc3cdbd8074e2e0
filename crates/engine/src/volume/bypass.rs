//! Large writes that go around the log: straight into egroups, with only their map record in the log.
//! Promises: nothing in flight or locked overlaps a bypassing write, and of what is dirty there all is older, of the generation of the
//! present, and covered by its map record; once that is in the log nothing older is named any more;
//! it is acknowledged when its map record is durable.

use super::request::{Change, Work};
use super::{Volume, Waiter};
use crate::buffer::BLOCK;
use crate::context::Context;
use crate::egroup::place::Intent;
use crate::egroup::units::{Units, units_max};
use crate::formats::record::{Edit, MapRecord};
use crate::identity::{Block, Seq, Time};
use crate::log::overlay::Content;
use crate::message::Class;
use crate::sabotage::{Bug, planted};
use std::collections::{BTreeMap, VecDeque};

/// Large writes go through the log for so long after a pool had no room for one: drained in smaller pieces they may have.
const REFUSED_US: u64 = 1_000_000;

/// Egroups of bypassing writes being placed at once: enough to keep the drives busy.
const PLACED_AT_ONCE: usize = 2;

#[derive(Debug)]
struct Queued {
    work: Work,
    lock: u64,
}

/// Writes on their way around the log.
#[derive(Debug, Default)]
pub(crate) struct Bypass {
    queue: VecDeque<Queued>,
    placing: usize,
    /// What is being placed or named, by the number of its lock.
    under_way: BTreeMap<u64, Work>,
    not_before: Time,
}

impl Volume {
    pub(crate) fn may_bypass(&self, work: &Work, ctx: &Context) -> bool {
        let bytes = work.count * BLOCK as u64;
        matches!(work.change, Change::Whole(Content::Data(_)))
            && work.count <= self.bypass_units() as u64
            && ctx.now >= self.requests.bypass.not_before
            && bytes >= ctx.limits.bypass_write_bytes
            && self.requests.outstanding >= ctx.limits.bypass_outstanding_bytes
            && !self.placing.is_full()
            && !self.is_bypass_thin()
            // Its map record takes room as well.
            && self.room() > 0
            && self.map.edits.len() < ctx.limits.edits_max
            && self.is_present_only(work.block, work.count)
            && !self.is_being_written(work.block, work.count)
    }

    /// Whether nothing that is dirty in the range has to be in the map before what is written now: a block's generations get there in
    /// their order.
    fn is_present_only(&self, block: Block, count: u64) -> bool {
        self.overlay.is_clear_before(self.snapshots.next(), block, count) || planted(Bug::FrozenBypassed)
    }

    /// Whether the log has, or had, a record. Before its first one there is no egroup: of egroups without any, whoever opens the vDisk can
    /// tell that a record is lost. So the first write around the log waits for one.
    fn has_record(&self) -> bool {
        self.log.durable() > Seq(0) || planted(Bug::FirstWriteBypasses)
    }

    /// Whether it would have fewer copies than in the log.
    pub(crate) fn is_bypass_thin(&self) -> bool {
        self.log.members().count() > self.placing.reach() && !planted(Bug::BypassForLess)
    }

    /// Units of an egroup of bypassing writes at most: not more than drains found room for.
    fn bypass_units(&self) -> usize {
        units_max(self.compression).min(self.drain.units_max.get())
    }

    pub(crate) fn take_bypass(&mut self, work: Work, ctx: &mut Context) {
        ctx.counters.bypassed += 1;
        self.pattern.writes_to_bypass += 1;
        self.pattern.write_bytes_to_bypass += work.count * BLOCK as u64;
        let lock = self.requests.lock(work.block, work.count);
        self.requests.bypass.queue.push_back(Queued { work, lock });
    }

    /// Packs what is queued into egroups. What comes while others are being placed gathers into larger ones.
    pub(crate) fn start_bypass(&mut self, ctx: &mut Context) {
        if !self.requests.bypass.queue.is_empty() && !self.has_record() {
            if self.log.next() == Seq(1) {
                // One that says nothing. The write itself may be larger than what many new vDisks find room for in small rings.
                self.push_map(MapRecord::default(), Waiter::Drain);
            }
            return;
        }
        // In a range that is locked, and of which nothing is in flight, all that is dirty is older.
        let covers = if planted(Bug::DirtyOutlivesBypass) { Seq(0) } else { self.log.durable() };
        while self.requests.bypass.placing < PLACED_AT_ONCE && !self.requests.bypass.queue.is_empty() {
            let mut units = Units::default();
            let mut edits = Vec::new();
            let mut locks = Vec::new();
            while let Some(next) = self.requests.bypass.queue.front() {
                if !units.is_empty() && units.len() + next.work.count as usize > self.bypass_units() {
                    break;
                }
                let Queued { work, lock } = self.requests.bypass.queue.pop_front().expect("there is a front");
                let Change::Whole(Content::Data(data)) = &work.change else {
                    unreachable!("only data bypasses")
                };
                for index in 0..work.count {
                    let block = data.block(index as usize);
                    add_block(&mut units, &mut edits, work.block.plus(index), block, covers);
                }
                self.requests.bypass.under_way.insert(lock, work);
                locks.push(lock);
            }
            self.requests.bypass.placing += 1;
            self.place(units, Class::Data, Intent::Bypass { edits, locks }, ctx);
        }
    }

    /// Whether an egroup that is durable on all members may be named: not if a snapshot has come between, and what is dirty there is of
    /// the snapshot.
    pub(crate) fn may_name_bypass(&self, edits: &[Edit]) -> bool {
        edits.iter().all(|edit| self.is_present_only(edit.block, edit.count))
    }

    /// It is named.
    pub(crate) fn on_bypass_placed(&mut self, locks: Vec<u64>) -> Waiter {
        self.requests.bypass.placing -= 1;
        self.requests.name(&locks);
        Waiter::Bypass(locks)
    }

    /// There is no room for an egroup so large. The writes go through the log, before all that came behind them: a pool in pieces has
    /// room for what is drained from there, and one that is full is found to be by them as by any other.
    pub(crate) fn on_bypass_refused(&mut self, locks: Vec<u64>, ctx: &mut Context) {
        self.requests.bypass.not_before = ctx.now.after(REFUSED_US);
        self.take_back_bypass(locks, ctx);
    }

    /// Nothing was named, and the writes go through the log.
    pub(crate) fn take_back_bypass(&mut self, locks: Vec<u64>, ctx: &mut Context) {
        self.requests.bypass.placing -= 1;
        for lock in locks.into_iter().rev() {
            let work = self.take_under_way(lock);
            self.requests.wait_in_front(work, ctx.now);
        }
    }

    /// Named: the writes are done.
    pub(crate) fn on_bypassed(&mut self, locks: Vec<u64>, ctx: &mut Context) {
        for lock in locks {
            let work = self.take_under_way(lock);
            self.finish_part(work.request, None, ctx);
        }
    }

    fn take_under_way(&mut self, lock: u64) -> Work {
        let work = self.requests.bypass.under_way.remove(&lock).expect("a bypassing write ends once");
        self.requests.unlock(lock);
        work
    }
}

/// Adds a block to an egroup to be, and the edit that will name it; blocks of zeros take no unit.
pub(crate) fn add_block(
    units: &mut Units,
    edits: &mut Vec<Edit>,
    block: Block,
    data: crate::buffer::Buffer,
    covers: Seq,
) {
    let unit = if data.is_zero() { None } else { Some(units.push(block.0, data)) };
    if let Some(last) = edits.last_mut() {
        let follows = last.block.plus(last.count) == block && last.covers == covers;
        let unit_follows = match (last.unit, unit) {
            (Some(before), Some(unit)) => u64::from(before) + last.count == u64::from(unit),
            (None, None) => true,
            _ => false,
        };
        if follows && unit_follows {
            last.count += 1;
            return;
        }
    }
    edits.push(Edit { block, count: 1, unit, covers });
}
