//! How much of what clients wrote waits in a shard's memory, and how much may (decision 0035).
//! Promises: whenever a vDisk comes to hold more, it is judged by the limits alone whether it may: because it holds little, or
//! because all that are served hold no more than they may together. What owners found in their logs is excused.

use weft_engine::buffer::BLOCK;
use weft_engine::identity::Epoch;
use weft_engine::interface::Input;
use weft_engine::limits::RECORD_BLOCKS;
use weft_engine::shard::Shard;
use weft_engine::{FamilyId, Limits, Request};

/// Records of the drain and of compaction count while they are on their way, and nobody refuses them.
const MAP_RECORDS: u64 = 32 << 10;

#[derive(Default)]
struct Account {
    /// What each held after the last step that was served then.
    held: Vec<(FamilyId, Epoch, u64)>,
    before: Vec<(FamilyId, Epoch, u64)>,
    /// The largest write so far, as one record: a vDisk that holds nothing takes one record of any size.
    record: u64,
}

/// By shard.
#[derive(Default)]
pub struct Undrained(Vec<Account>);

impl Undrained {
    /// A shard is given something.
    pub fn told(&mut self, shard: usize, input: &Input) {
        if let Input::Request { request: Request::Write { data, .. }, .. } = input {
            let record = (data.len() as u64).min(RECORD_BLOCKS * BLOCK as u64);
            let account = self.account(shard);
            account.record = account.record.max(record);
        }
    }

    /// A shard has done a step. Returns whether its vDisks feel what others hold.
    pub fn stepped(&mut self, shard: usize, engine: &Shard, limits: &Limits) -> Result<bool, String> {
        let account = self.account(shard);
        std::mem::swap(&mut account.held, &mut account.before);
        account.held.clear();
        for (family, volume) in engine.volumes().filter(|(_, volume)| volume.is_serving()) {
            account.held.push((family, volume.epoch(), volume.undrained_bytes()));
        }
        let all: u64 = account.held.iter().map(|(_, _, bytes)| bytes).sum();
        if all <= limits.dirty_bytes_shard.saturating_sub(limits.dirty_bytes_max) {
            return Ok(false);
        }
        let grown: Vec<(FamilyId, u64, u64)> =
            account.held.iter().filter_map(|now| account.growth(now)).collect();
        let growth: u64 = grown.iter().map(|(_, _, growth)| growth).sum();
        let little = limits.dirty_bytes_least.max(account.record);
        for (family, bytes, own) in grown {
            // Others may have come to hold more in the same step, after it.
            let then = (all - (growth - own)).saturating_sub(MAP_RECORDS);
            let bytes = bytes.saturating_sub(MAP_RECORDS);
            if bytes > limits.dirty_bytes_max.max(little) || bytes > little && then > limits.dirty_bytes_shard
            {
                return Err(format!(
                    "family {family} came to hold over {bytes} undrained bytes, of {then} of all"
                ));
            }
        }
        Ok(true)
    }

    fn account(&mut self, shard: usize) -> &mut Account {
        if self.0.len() <= shard {
            self.0.resize_with(shard + 1, Account::default);
        }
        &mut self.0[shard]
    }
}

impl Account {
    /// Which it is, what it holds and by how much that is more than before the step, if it is.
    fn growth(&self, &(family, epoch, bytes): &(FamilyId, Epoch, u64)) -> Option<(FamilyId, u64, u64)> {
        let known = self.before.iter().find(|before| before.0 == family && before.1 == epoch);
        let (_, _, before) = known?;
        (bytes > *before).then(|| (family, bytes, bytes - before))
    }
}
