//! The config store of a cluster, against real etcd processes that this test starts, kills and cuts off.

mod containers;
mod imports;
mod joins;
mod leases;
mod older;
mod outages;
mod proxy;
mod quiet;
mod races;
mod server;
mod snapshots;
mod stories;
mod watching;

use std::time::{Duration, Instant};

/// Long enough for the slowest machine; nothing that works waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks again until there is an answer.
fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "this never came: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
