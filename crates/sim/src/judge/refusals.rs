//! Writes that are refused for want of space, and how early that may be.
//! Promises: while something of the vDisk's shard is on its way into a pool that has refused none of it, a write is refused only when
//! the pool has been short for as long as owners have patience. (A pool is short while little is free; it is not when it takes data.)

use std::collections::BTreeMap;
use weft_engine::FamilyId;
use weft_engine::shard::Shard;

/// An owner waits at least so long, by its own clock, for a pool to get better.
const PATIENCE_US: u64 = 3_000_000;

/// A life of an owner: shard, its incarnation, vDisk and epoch.
pub type Life = (usize, u32, FamilyId, u32);

/// By owner, when that write of data was asked for that was asked last of those that were done: the pool was not short then.
#[derive(Default)]
pub struct Refusals(BTreeMap<Life, u64>);

impl Refusals {
    pub fn done(&mut self, life: Life, asked: u64) {
        let last = self.0.entry(life).or_default();
        *last = asked.max(*last);
    }

    /// Data is refused at `clock`.
    pub fn refused(&self, life: Life, engine: &Shard, clock: u64) -> Result<(), String> {
        let Some(volume) = engine.volume(life.2) else { return Ok(()) };
        let excused = volume.was_refused_room() || volume.dirty_bytes() == 0;
        let Some(short_us) = self.0.get(&life).map(|&asked| clock - asked) else { return Ok(()) };
        if short_us < PATIENCE_US && !excused {
            return Err(format!(
                "data was taken {short_us} us ago and waits to be drained, and there is no space any more, says an owner: {}",
                volume.describe()
            ));
        }
        Ok(())
    }
}
