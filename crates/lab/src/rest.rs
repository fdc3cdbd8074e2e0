//! The rest after a measurement: what a server has put off is done in it, and counted for the one that caused it.
//! Leaves to others: whose work that is (`run`).

use crate::interrupt::Watch;
use crate::process;
use std::time::{Duration, Instant};

/// Seconds after what only reads.
const READ_S: u64 = 1;
/// Seconds after what writes: some servers begin with what they put off when nothing was asked of them for so long (Weft's log after five).
const WRITTEN_S: u64 = 6;
/// Seconds after which a server that is still at work is not waited for any more.
const WRITTEN_S_MAX: u64 = 30;
/// Percent of a core more than before any load that a server may use and count as done.
const QUIET_PERCENT: f64 = 5.0;

pub struct Rest {
    /// Seconds, if somebody has said so.
    pub asked_s: Option<u64>,
    /// What came before has written.
    pub writes: bool,
}

impl Rest {
    /// Rests until somebody asks to stop, or it is over. `server`: the process that is watched, and what it uses when nothing is asked of it.
    pub fn take(&self, watch: &Watch, server: Option<u32>, idle_percent: Option<f64>) {
        let (begun, watched) = (Instant::now(), self.asked_s.is_none() && self.writes);
        watch.rest(Duration::from_secs(self.asked_s.unwrap_or(if self.writes { WRITTEN_S } else { READ_S })));
        let Some(server) = server.filter(|_| watched) else { return };
        let quiet = idle_percent.unwrap_or(0.0) + QUIET_PERCENT;
        while !watch.asked() && begun.elapsed() < Duration::from_secs(WRITTEN_S_MAX) {
            let (before, since) = (process::usage(server), Instant::now());
            watch.rest(Duration::from_secs(1));
            let (Some(before), Some(after)) = (before, process::usage(server)) else { return };
            if after.percent_since(&before, since.elapsed()) <= quiet {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::PROFILES;
    use std::process::{Command, Stdio};

    #[test]
    fn a_server_that_is_at_work_is_waited_for() {
        // It is busy for some eight seconds of its own time, however little of the machine it gets.
        let busy = "i=0; while [ $i -lt 25000000 ]; do i=$((i+1)); done";
        let mut server = Command::new("sh").args(["-c", busy]).stdin(Stdio::null()).spawn().expect("a shell");
        let rest = Rest { asked_s: None, writes: true };
        let begun = Instant::now();
        rest.take(&Watch::begin(), Some(server.id()), Some(0.0));
        let (took, has_ended) = (begun.elapsed(), server.try_wait().expect("it is our child").is_some());
        let _ = server.kill();
        let _ = server.wait();
        assert!(has_ended || took >= Duration::from_secs(WRITTEN_S_MAX), "it was left after {took:?}");
    }

    #[test]
    fn what_writes_is_known() {
        let writes: Vec<&str> =
            PROFILES.iter().filter(|profile| profile.writes()).map(|profile| profile.name).collect();
        let wanted = [
            "random-write-8k",
            "sequential-write-1m",
            "durable-write-4k",
            "durable-write-1m",
            "mix-8k",
            "durable-mix-8k",
            "prefill",
        ];
        assert_eq!(writes, wanted);
    }
}
