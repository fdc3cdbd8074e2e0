//! What a process and those it started (also those that have ended meanwhile) use: CPU time and memory, from /proc.
//! Promises: a process that is gone is `None`, never an error.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Ticks per second of the times in /proc/PID/stat; the kernel has reported 100 on every platform for decades.
const TICKS_PER_SECOND: u64 = 100;

/// A look at a process and its descendants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// User and system time since they started, never less at a later look unless a child ends unwaited for.
    pub cpu_us: u64,
    pub resident_bytes: u64,
}

impl Usage {
    /// Percent of a core that was used since an earlier look, so long ago.
    pub fn percent_since(&self, before: &Usage, time: Duration) -> f64 {
        self.cpu_us.saturating_sub(before.cpu_us) as f64 / time.as_micros() as f64 * 100.0
    }
}

/// Sums up the process and everything below it.
pub fn usage(pid: u32) -> Option<Usage> {
    let own = stat(pid)?;
    let mut family = vec![pid];
    let mut total = Usage { cpu_us: own.cpu_us, resident_bytes: resident_bytes(pid) };
    let mut others: Vec<(u32, Stat)> = std::fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|other| Some((other, stat(other)?)))
        .collect();
    // Children of children may come in any order, so look again as long as somebody new belongs to the family.
    while let Some(at) =
        others.iter().position(|(other, facts)| family.contains(&facts.parent) && *other != pid)
    {
        let (child, facts) = others.swap_remove(at);
        family.push(child);
        total.cpu_us += facts.cpu_us;
        total.resident_bytes += resident_bytes(child);
    }
    Some(total)
}

struct Stat {
    parent: u32,
    cpu_us: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The name in parentheses may hold anything, also blanks and parentheses; the last one ends it.
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_whitespace().collect();
    // Its own user and system time, and both of the children that it has waited for: what a server does in a child for each
    // client would be gone with the client otherwise.
    let ticks = (11..15).map(|field| fields.get(field)?.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(Stat { parent: fields.get(1)?.parse().ok()?, cpu_us: ticks * (1_000_000 / TICKS_PER_SECOND) })
}

fn resident_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_an_odd_name_is_read_right() {
        let stat =
            parse_stat("12 (a) b (c)) S 7 1 1 0 -1 4194304 1 2 3 4 30 12 5 6 20 0").expect("well formed");
        assert_eq!(stat.parent, 7);
        assert_eq!(stat.cpu_us, 530_000, "30 and 12 of its own, 5 and 6 of children that have ended");
        assert!(parse_stat("nothing").is_none());
    }

    #[test]
    fn this_process_uses_memory_and_a_gone_one_is_none() {
        assert!(usage(std::process::id()).expect("it runs").resident_bytes > 100_000);
        assert_eq!(usage(u32::MAX), None);
    }
}
