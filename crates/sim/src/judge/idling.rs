//! Whether shards sleep while there is nothing to do: whoever wishes to be woken for nothing, again and again, holds a core.
//! Promises: of the wake-ups that led to nothing, those of one second of a shard are counted.

use std::collections::BTreeMap;

/// Of one shard in one second ...
const FRUITLESS_MAX: u32 = 500;
/// ... and of each vDisk that it serves: requests that wait for room look for it every 10 ms.
const FRUITLESS_OF_ONE: u32 = 150;

#[derive(Default)]
struct Account {
    second: u64,
    /// The most that it served in this second.
    volumes: u32,
    fruitless: u32,
    /// Since it was woken last nothing else has happened to it.
    is_left_alone: bool,
}

/// By shard.
#[derive(Default)]
pub struct Idling(BTreeMap<usize, Account>);

impl Idling {
    /// A shard that serves so many vDisks took an input, or was woken as it had wished. `did`: something that others see. `now`:
    /// microseconds.
    pub fn stepped(
        &mut self,
        shard: usize,
        volumes: usize,
        is_woken: bool,
        did: bool,
        now: u64,
    ) -> Result<(), String> {
        let account = self.0.entry(shard).or_default();
        let second = now / 1_000_000;
        if account.second != second {
            *account = Account { second, ..Account::default() };
        }
        account.volumes = account.volumes.max(volumes as u32);
        account.fruitless += u32::from(is_woken && !did && account.is_left_alone);
        account.is_left_alone = is_woken;
        if account.fruitless > FRUITLESS_MAX + FRUITLESS_OF_ONE * account.volumes {
            return Err(format!("was woken for nothing {} times within a second", account.fruitless));
        }
        Ok(())
    }
}
