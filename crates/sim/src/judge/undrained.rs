//! How much of what clients wrote waits in a shard's memory, and how much may (decision 0035).
//! Promises: whenever a vDisk lets data in and comes to hold more, it is judged by the limits alone whether it may: because it holds
//! little, or because all that are served hold no more than they may together. What owners found in their logs is excused.

use weft_engine::buffer::BLOCK;
use weft_engine::identity::Epoch;
use weft_engine::interface::Input;
use weft_engine::limits::RECORD_BLOCKS;
use weft_engine::shard::Shard;
use weft_engine::{FamilyId, Limits, Request};

/// Records of the drain and of compaction count while they are on their way, and nobody refuses them.
const MAP_RECORDS: u64 = 32 << 10;

/// What a vDisk that is served holds after a step.
struct Held {
    family: FamilyId,
    epoch: Epoch,
    undrained: u64,
    /// What clients wrote that went into its log, since it was opened.
    let_in: u64,
}

#[derive(Default)]
struct Account {
    held: Vec<Held>,
    before: Vec<Held>,
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
            account.held.push(Held {
                family,
                epoch: volume.epoch(),
                undrained: volume.undrained_bytes(),
                let_in: volume.pattern().write_bytes_to_log,
            });
        }
        let all: u64 = account.held.iter().map(|held| held.undrained).sum();
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
    /// Which it is, what it holds and by how much that is more than before the step, if it is and data was let in. (Records of the
    /// drain are let in always, also while others hold too much.)
    fn growth(&self, now: &Held) -> Option<(FamilyId, u64, u64)> {
        let before = self.before.iter().find(|it| it.family == now.family && it.epoch == now.epoch)?;
        let growth = now.undrained.checked_sub(before.undrained).filter(|&growth| growth > 0)?;
        (now.let_in > before.let_in).then_some((now.family, now.undrained, growth))
    }
}
