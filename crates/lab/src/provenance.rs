//! Where figures come from: program, machine, drive, settings. Kept beside them in `run.json` and `results.json`.

use crate::settings::{RowSet, RunSettings};
use crate::target::Kind;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    pub weft_version: String,
    pub fio_version: String,
    pub command_line: String,
    pub started_unix_s: u64,
    pub ended_unix_s: u64,
    pub host_kernel: String,
    pub host_system: String,
    pub cpu_model: String,
    pub cpu_count: u32,
    pub memory_bytes: u64,
    /// Device, type and size of the file systems that hold what is measured, as far as it is files, and the output directory.
    pub file_system: String,
    /// The drives the machine has.
    pub drives: String,
    pub size_bytes: u64,
    pub runtime_s: u64,
    pub warm_up_s: u64,
    /// None: as long as what was put off took, within limits.
    pub idle_s: Option<u64>,
    pub repeats: u32,
    /// None where rows have their own.
    pub depth: Option<u32>,
    pub seed: u64,
}

impl Provenance {
    /// In a line of Markdown, between empty ones: `size_of` and `time_of` say what sizes and times are meant.
    pub fn sentence(&self, size_of: &str, time_of: &str) -> String {
        format!(
            "\n{}; {} with {} CPUs, {} GiB; {}, kernel {}; file system {}; {} bytes {size_of}, {} s{time_of}, {} repeats, seed {}.\n",
            self.fio_version,
            self.cpu_model,
            self.cpu_count,
            self.memory_bytes >> 30,
            self.host_system,
            self.host_kernel,
            self.file_system,
            self.size_bytes,
            self.runtime_s,
            self.repeats,
            self.seed
        )
    }
}

/// Looks around. What cannot be found out is left empty.
pub fn gather(settings: &RunSettings, fio_version: &str) -> Provenance {
    let files = settings.targets.iter().filter_map(|target| match &target.kind {
        Kind::File(path) => Some(path.as_path()),
        Kind::Nbd { .. } | Kind::Device(_) => None,
    });
    let places: Vec<&Path> = std::iter::once(settings.out.as_path()).chain(files).collect();
    Provenance {
        size_bytes: settings.size,
        runtime_s: settings.runtime_s,
        warm_up_s: settings.warm_up_s,
        idle_s: settings.idle_s,
        repeats: settings.repeats,
        depth: (settings.rows != RowSet::Table).then_some(settings.depth),
        seed: settings.seed,
        ..machine(&places, &settings.command_line, fio_version)
    }
}

/// The part that no settings are needed for. `places`: whose file systems are told.
pub fn machine(places: &[&Path], command_line: &str, fio_version: &str) -> Provenance {
    let cpu = read("/proc/cpuinfo");
    let memory = read("/proc/meminfo");
    let memory_kib =
        value_of(&memory, "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    let system = read("/etc/os-release");
    let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    Provenance {
        weft_version: env!("CARGO_PKG_VERSION").to_string(),
        fio_version: fio_version.to_string(),
        command_line: command_line.to_string(),
        started_unix_s: now(),
        ended_unix_s: now(),
        host_kernel: read("/proc/sys/kernel/osrelease").trim().to_string(),
        host_system: system.unwrap_or_default().trim_matches('"').to_string(),
        cpu_model: value_of(&cpu, "model name").unwrap_or_default(),
        cpu_count: std::thread::available_parallelism().map_or(0, |count| count.get() as u32),
        memory_bytes: memory_kib.unwrap_or(0) * 1024,
        file_system: file_systems(places),
        drives: drives(),
        ..Provenance::default()
    }
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The value behind the first `key : value` line.
fn value_of(text: &str, key: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// Of each once.
fn file_systems(places: &[&Path]) -> String {
    let mut told: Vec<String> = Vec::new();
    for place in places {
        let found = file_system(place);
        if !found.is_empty() && !told.contains(&found) {
            told.push(found);
        }
    }
    told.join("; ")
}

/// Of the directory that it will be made in, if it is not there yet.
fn file_system(path: &Path) -> String {
    let path = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let output = Command::new("df").args(["--output=source,fstype,size", "-h"]).arg(path).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().nth(1).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn drives() -> String {
    let output = Command::new("lsblk").args(["-dno", "NAME,SIZE,ROTA,MODEL"]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("; ")
}

/// Seconds since 1970 as `2026-01-31 12:00:00 UTC`.
pub fn date(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.unwrap_or(Timestamp::MAX).strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59:59 UTC");
    }

    #[test]
    fn the_machine_is_known() {
        let found = gather(&RunSettings::default(), "fio-3.33");
        assert!(found.cpu_count >= 1);
        assert!(!found.host_kernel.is_empty());
        assert!(found.memory_bytes > 0);
    }
}
