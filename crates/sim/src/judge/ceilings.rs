//! What a vDisk's clients were given in a span of time, and what its limits allow in that span.
//! Promises: judged is what came to the owner after it was told of a limit, by the owner's own clock, so neither jumps of
//! clocks nor takeovers excuse anything or are blamed for anything.

use std::collections::BTreeMap;
use weft_engine::interface::{Ceiling, Input};
use weft_engine::{FamilyId, Order};

/// What a burst may have beyond the rate: as in the engine, told again here.
const BURST_US: u64 = 100_000;

struct Account {
    ceiling: Ceiling,
    /// The owner's clock and the world's, when it was told.
    clock: u64,
    since: u64,
    ios: u64,
    bytes: u64,
    largest: u64,
}

/// By shard and family.
#[derive(Default)]
pub struct Ceilings(BTreeMap<(usize, FamilyId), Account>);

impl Ceilings {
    /// A shard is given something.
    pub fn told(&mut self, shard: usize, input: &Input, clock: u64, now: u64) {
        let Input::Order(order) = input else { return };
        let (family, ceiling) = match order {
            Order::OpenFamily(record) => (record.family, record.ceiling),
            Order::SetCeiling { family, ceiling } => (*family, *ceiling),
            Order::CloseFamily { family } | Order::DropFamily { family, .. } => {
                self.0.remove(&(shard, *family));
                return;
            }
            _ => return,
        };
        let account = Account { ceiling, clock, since: now, ios: 0, bytes: 0, largest: 0 };
        self.0.insert((shard, family), account);
    }

    /// A request of so many bytes, asked at `since`, is done. True if there was a limit to judge by.
    pub fn answered(
        &mut self,
        shard: usize,
        family: FamilyId,
        bytes: u64,
        since: u64,
        clock: u64,
    ) -> Result<bool, String> {
        let Some(account) = self.0.get_mut(&(shard, family)) else { return Ok(false) };
        // What was let in under the limit of before is answered later.
        if since <= account.since || account.ceiling == Ceiling::default() {
            return Ok(false);
        }
        account.ios += 1;
        account.bytes += bytes;
        account.largest = account.largest.max(bytes);
        let us = u128::from(clock.saturating_sub(account.clock) + BURST_US);
        let allowed = |rate: u64| (u128::from(rate) * us).div_ceil(1_000_000) as u64;
        if let Some(iops) = account.ceiling.iops
            && account.ios > allowed(u64::from(iops)) + 1
        {
            return Err(format!("{} requests in {us} us, at a limit of {iops} in a second", account.ios));
        }
        if let Some(rate) = account.ceiling.bytes
            && account.bytes > allowed(rate) + account.largest
        {
            return Err(format!("{} bytes in {us} us, at a limit of {rate} in a second", account.bytes));
        }
        Ok(true)
    }
}
