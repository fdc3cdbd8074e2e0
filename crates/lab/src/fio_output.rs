//! What fio says: its JSON (one document per status interval) and its per-second logs.
//! Promises: figures in plain units; what is missing is zero or absent, and what is not fio's output is an error.

use crate::measurement::{Direction, Sample};
use crate::statistics::Latencies;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// One finished (or stopped) fio run.
#[derive(Clone, Debug, Default)]
pub struct FioResult {
    pub read: Direction,
    pub write: Direction,
    /// The flushes that were sent behind writes, where the load sends any.
    pub flush: Direction,
    /// How long the load ran.
    pub runtime_ms: u64,
    /// fio's own CPU use, percent of one core.
    pub client_cpu_percent: f64,
    /// The errno fio ended with; 0 is none.
    pub error: i64,
    /// I/Os that failed while the load went on.
    pub errors: u64,
}

/// Collects fio's stream of JSON documents line by line. fio writes other lines between them, which are kept apart.
#[derive(Default)]
pub struct Documents {
    open: Option<String>,
    pub said: String,
}

impl Documents {
    /// Takes one line (without its end) and gives a document if the line was the last of it.
    pub fn take(&mut self, line: &str) -> Option<String> {
        match &mut self.open {
            None if line == "{" => self.open = Some("{\n".to_string()),
            None => {
                if !line.trim().is_empty() {
                    self.said += line;
                    self.said.push('\n');
                }
            }
            Some(text) => {
                text.push_str(line);
                text.push('\n');
                if line == "}" {
                    return self.open.take();
                }
            }
        }
        None
    }
}

/// Cumulative counts of a status document, both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub ios: u64,
    pub bytes: u64,
    pub errors: u64,
}

/// For showing progress.
pub fn totals(document: &str) -> Option<Totals> {
    let value: Value = serde_json::from_str(document).ok()?;
    let job = value.get("jobs")?.get(0)?;
    let sum =
        |key: &str| ["read", "write"].iter().map(|way| job[*way][key].as_u64().unwrap_or(0)).sum::<u64>();
    Some(Totals { ios: sum("total_ios"), bytes: sum("io_bytes"), errors: errors(job) })
}

/// I/Os that failed while the load went on; fio tells them only of loads that may go on.
fn errors(job: &Value) -> u64 {
    job["total_err"].as_u64().unwrap_or(0)
}

/// Reads the last document. None if it is not one of fio's.
pub fn parse(document: &str) -> Option<FioResult> {
    let value: Value = serde_json::from_str(document).ok()?;
    let job = value.get("jobs")?.get(0)?;
    Some(FioResult {
        read: direction(job.get("read")?)?,
        write: direction(job.get("write")?)?,
        flush: latencies(&job["sync"]).unwrap_or_default(),
        runtime_ms: ["read", "write"]
            .iter()
            .filter_map(|way| job[*way]["runtime"].as_u64())
            .max()
            .unwrap_or(0),
        client_cpu_percent: job.get("usr_cpu")?.as_f64()? + job.get("sys_cpu")?.as_f64()?,
        error: job.get("error")?.as_i64()?,
        errors: errors(job),
    })
}

fn direction(value: &Value) -> Option<Direction> {
    Some(Direction {
        bytes: value.get("io_bytes")?.as_u64()?,
        iops: value.get("iops")?.as_f64()?,
        bytes_per_s: value.get("bw_bytes")?.as_f64()?,
        ..latencies(value)?
    })
}

/// What all I/Os have: a count, and how long they took.
fn latencies(value: &Value) -> Option<Direction> {
    let latency = value.get("lat_ns")?;
    let mut counts = Latencies::default();
    if let Some(bins) = latency.get("bins").and_then(Value::as_object) {
        for (nanoseconds, count) in bins {
            counts.0.insert(nanoseconds.parse().ok()?, count.as_u64()?);
        }
    }
    let us = |percent| counts.percentile(percent).unwrap_or(0) as f64 / 1000.0;
    Some(Direction {
        ios: value.get("total_ios")?.as_u64()?,
        latency_us_mean: latency.get("mean")?.as_f64()? / 1000.0,
        latency_us_p50: us(50.0),
        latency_us_p95: us(95.0),
        latency_us_p99: us(99.0),
        latency_us_p999: us(99.9),
        latency_us_max: latency.get("max")?.as_f64()? / 1000.0,
        latencies: counts,
        ..Direction::default()
    })
}

/// fio's logs are late now and then. Only where nothing was logged for this much more than a second there was no I/O in it.
const LATE_MS: u64 = 750;

/// The per-second samples of the logs with this prefix, put into the result.
pub fn add_series(result: &mut FioResult, prefix: &Path) {
    let log = |kind: &str| {
        let mut name = prefix.as_os_str().to_owned();
        name.push(format!("_{kind}.log"));
        read_log(&std::fs::read_to_string(name).unwrap_or_default())
    };
    let (iops, bytes, latency) = (log("iops"), log("bw"), log("lat"));
    let runtime_ms = result.runtime_ms;
    for (way, direction) in [(0, &mut result.read), (1, &mut result.write)] {
        // The same moment's line of another log, which may have been rounded to the next second.
        let value = |log: &Log, at_ms: u64| {
            let around = (way, second(at_ms).saturating_sub(1))..=(way, second(at_ms) + 1);
            let near = log.range(around).map(|(_, line)| line);
            near.min_by_key(|(at, _)| at.abs_diff(at_ms)).map_or(0.0, |(_, value)| *value)
        };
        let logged = iops.iter().filter(|((of, _), _)| *of == way);
        let mut before_ms = 0;
        for ((_, second), (at_ms, iops)) in logged {
            let at_ms = *at_ms;
            direction.series.extend(stalls(before_ms, at_ms));
            before_ms = at_ms;
            direction.series.push(Sample {
                second: *second,
                iops: *iops,
                // fio logs bandwidth in KiB/s and latency in nanoseconds.
                bytes_per_s: value(&bytes, at_ms) * 1024.0,
                latency_us: value(&latency, at_ms) / 1000.0,
            });
        }
        if before_ms > 0 {
            // Of the last second nothing is said: fio mostly logs none, and there was I/O in it all the same.
            direction.series.extend(stalls(before_ms, runtime_ms));
        }
    }
}

/// Seconds without any I/O between two lines of a log: fio writes none for them.
fn stalls(before_ms: u64, at_ms: u64) -> impl Iterator<Item = Sample> {
    let missing = (at_ms.saturating_sub(before_ms) + 1000 - LATE_MS) / 1000;
    (second(before_ms) + 1..second(at_ms))
        .take(missing.saturating_sub(1) as usize)
        .map(|second| Sample { second, ..Sample::default() })
}

/// A late sample falls into the second it is nearest to.
fn second(at_ms: u64) -> u64 {
    (at_ms + 500) / 1000
}

/// By direction and second: when exactly, and the value.
type Log = BTreeMap<(u8, u64), (u64, f64)>;

/// Reads lines of `milliseconds, value, direction, block size, offset`.
fn read_log(text: &str) -> Log {
    let mut samples = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(',').map(str::trim);
        let (Some(at), Some(value), Some(way)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if let (Ok(at), Ok(value), Ok(way)) = (at.parse::<u64>(), value.parse::<f64>(), way.parse::<u8>()) {
            samples.insert((way, second(at)), (at, value));
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What fio 3.33 wrote for `ioengine=null rw=randrw rwmixread=70 bs=8k iodepth=4 rate_iops=200`.
    const FIXTURE: &str = include_str!("../tests/fixtures/fio-3.33-mix.json");

    #[test]
    fn a_real_document_of_fio_is_read() {
        let result = parse(FIXTURE).expect("it is fio's");
        assert_eq!(result.error, 0);
        assert_eq!(result.read.ios, 600);
        assert_eq!(result.read.bytes, 600 * 8192);
        assert!((result.read.latency_us_mean - 5.706).abs() < 0.001, "{}", result.read.latency_us_mean);
        // fio's own percentiles of the same bins.
        assert_eq!(result.read.latency_us_p50, 6.88);
        assert_eq!(result.read.latency_us_p99, 11.072);
        assert_eq!(result.read.latencies.0.values().sum::<u64>(), 600);
        assert!(result.write.ios > 0);
        assert_eq!((result.runtime_ms, result.flush.ios), (3001, 0));
        assert!(result.client_cpu_percent > 1.0 && result.client_cpu_percent < 10.0);
        let ios = 600 + result.write.ios;
        assert_eq!(totals(FIXTURE), Some(Totals { ios, bytes: ios * 8192, errors: 0 }));
        let failing = FIXTURE.replacen("\"error\" : 0,", "\"error\" : 0, \"total_err\" : 3,", 1);
        assert_eq!(parse(&failing).expect("it is fio's").errors, 3);
        assert!(parse("{}").is_none());
        assert!(parse("fio: nothing").is_none());
    }

    #[test]
    fn documents_are_cut_out_of_the_stream() {
        let mut documents = Documents::default();
        let text = "fio: terminating on signal 2\n{\n  \"a\" : {\n  }\n}\n\n{\n}\n";
        let found: Vec<String> = text.lines().filter_map(|line| documents.take(line)).collect();
        assert_eq!(found, ["{\n  \"a\" : {\n  }\n}\n", "{\n}\n"]);
        assert_eq!(documents.said, "fio: terminating on signal 2\n");
    }

    #[test]
    fn log_lines_become_seconds_by_direction() {
        let log = read_log("1000, 5, 0, 0, 0\n1001, 7, 1, 0, 0\n1999, 6, 0, 0, 0\nnonsense\n");
        assert_eq!(log[&(0, 1)], (1000, 5.0));
        assert_eq!(log[&(1, 1)], (1001, 7.0));
        assert_eq!(log[&(0, 2)], (1999, 6.0));
        assert_eq!(log.len(), 3);
    }

    #[test]
    fn seconds_without_any_io_are_samples_too() {
        let prefix = std::env::temp_dir().join(format!("weft-stalls-{}", std::process::id()));
        let log = std::path::PathBuf::from(format!("{}_iops.log", prefix.display()));
        let seconds = |text: &str, runtime_ms| {
            std::fs::write(&log, text).expect("writable");
            let mut result = FioResult { runtime_ms, ..FioResult::default() };
            add_series(&mut result, &prefix);
            assert!(result.write.series.is_empty(), "of what there was none nothing is said");
            let samples = result.read.series.iter().map(|sample| (sample.second, sample.iops as u64));
            samples.collect::<Vec<_>>()
        };
        // Still from 2 to 5, and from 7 on.
        let still = seconds("1000, 9, 0, 0\n2001, 9, 0, 0\n6000, 9, 0, 0\n7000, 9, 0, 0\n", 9_001);
        assert_eq!(still, [(1, 9), (2, 9), (3, 0), (4, 0), (5, 0), (6, 9), (7, 9), (8, 0)]);
        // The log ends before the load does.
        assert_eq!(seconds("1001, 9, 0, 0\n", 2_001), [(1, 9)]);
        assert_eq!(seconds("1001, 9, 0, 0\n2001, 8, 0, 0\n", 3_000), [(1, 9), (2, 8)]);
        // A late line speaks for all the time since the one before it.
        let late = seconds("1000, 9, 0, 0\n2600, 8, 0, 0\n3600, 9, 0, 0\n", 4_020);
        assert_eq!(late, [(1, 9), (3, 8), (4, 9)]);
        let slow_to_begin = seconds("3000, 9, 0, 0\n", 3_000);
        assert_eq!(slow_to_begin, [(1, 0), (2, 0), (3, 9)]);
        std::fs::remove_file(&log).expect("the test made it");
    }
}
