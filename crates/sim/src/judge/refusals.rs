//! Writes that are refused for want of space, and how early that may be.
//! Promises: while something of the vDisk's shard is on its way into a pool that has refused none of it, a write is refused only when
//! the pool has been short for as long as owners have patience. (A pool is short while little is free; it is not when it takes data.)
//! None is refused at once while the drives have told the owner's shard that there is room; nor for long while they have some, whomever
//! they have told of it.

use std::collections::BTreeMap;
use weft_engine::shard::Shard;
use weft_engine::{FamilyId, Input, Ticket};

/// An owner waits at least so long, by its own clock, for a pool to get better.
const PATIENCE_US: u64 = 3_000_000;

/// An owner that wants to write asks drives for what they have within this, and hears of it.
const HEARD_US: u64 = 4_000_000;

/// A life of an owner: shard, its incarnation, vDisk and epoch.
pub type Life = (usize, u32, FamilyId, u32);

/// By owner, when that write of data was asked for that was asked last of those that were done: the pool was not short then.
#[derive(Default)]
pub struct Refusals {
    done: BTreeMap<Life, u64>,
    /// A request that is being given to its owner, and that there is room for.
    roomy: Option<Ticket>,
    /// Owners that have refused data since then, each time although the drives had room for it.
    unheard: BTreeMap<Life, u64>,
}

impl Refusals {
    pub fn done(&mut self, life: Life, asked: u64) {
        let last = self.done.entry(life).or_default();
        *last = asked.max(*last);
        self.unheard.remove(&life);
    }

    /// A shard is about to be given something.
    pub fn given(&mut self, input: &Input, engine: &mut Shard) {
        self.roomy = None;
        if let &Input::Request { ticket, family, .. } = input {
            // Only who takes the pool for full refuses anything.
            let is_full = engine.volume(family).is_some_and(|volume| volume.is_pool_full());
            self.roomy = (is_full && engine.has_room(family)).then_some(ticket);
        }
    }

    /// Data is refused at `clock`. `has_room`: the drives have room, and nothing keeps them from telling it; `at_rest`: nothing has
    /// happened for long that may be on its way to be told.
    pub fn refused_beside(
        &mut self,
        has_room: bool,
        at_rest: bool,
        life: Life,
        clock: u64,
    ) -> Result<(), String> {
        if !has_room {
            self.unheard.remove(&life);
            return Ok(());
        }
        let for_us = clock - *self.unheard.entry(life).or_insert(clock);
        if for_us > HEARD_US || at_rest {
            return Err(format!(
                "for {for_us} us drives have had room, and there is none, says an owner: {life:?}"
            ));
        }
        Ok(())
    }

    /// Data is refused at `clock`.
    pub fn refused(&self, ticket: Ticket, life: Life, engine: &Shard, clock: u64) -> Result<(), String> {
        let Some(volume) = engine.volume(life.2) else { return Ok(()) };
        if self.roomy == Some(ticket) {
            return Err(format!(
                "the drives have told of room, and there is none, says an owner: {}",
                volume.describe()
            ));
        }
        let excused = volume.was_refused_room() || volume.dirty_bytes() == 0;
        let Some(short_us) = self.done.get(&life).map(|&asked| clock - asked) else { return Ok(()) };
        if short_us < PATIENCE_US && !excused {
            return Err(format!(
                "data was taken {short_us} us ago and waits to be drained, and there is no space any more, says an owner: {}",
                volume.describe()
            ));
        }
        Ok(())
    }
}
