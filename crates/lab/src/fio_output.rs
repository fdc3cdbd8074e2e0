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
        client_cpu_percent: job.get("usr_cpu")?.as_f64()? + job.get("sys_cpu")?.as_f64()?,
        error: job.get("error")?.as_i64()?,
        errors: errors(job),
    })
}

fn direction(value: &Value) -> Option<Direction> {
    let latency = value.get("lat_ns")?;
    let mut latencies = Latencies::default();
    if let Some(bins) = latency.get("bins").and_then(Value::as_object) {
        for (nanoseconds, count) in bins {
            latencies.0.insert(nanoseconds.parse().ok()?, count.as_u64()?);
        }
    }
    let us = |percent| latencies.percentile(percent).unwrap_or(0) as f64 / 1000.0;
    Some(Direction {
        ios: value.get("total_ios")?.as_u64()?,
        bytes: value.get("io_bytes")?.as_u64()?,
        iops: value.get("iops")?.as_f64()?,
        bytes_per_s: value.get("bw_bytes")?.as_f64()?,
        latency_us_mean: latency.get("mean")?.as_f64()? / 1000.0,
        latency_us_p50: us(50.0),
        latency_us_p95: us(95.0),
        latency_us_p99: us(99.0),
        latency_us_p999: us(99.9),
        latency_us_max: latency.get("max")?.as_f64()? / 1000.0,
        series: Vec::new(),
        latencies,
    })
}

/// The per-second samples of the logs with this prefix, put into the result.
pub fn add_series(result: &mut FioResult, prefix: &Path) {
    let log = |kind: &str| {
        let mut name = prefix.as_os_str().to_owned();
        name.push(format!("_{kind}.log"));
        read_log(&std::fs::read_to_string(name).unwrap_or_default())
    };
    let (iops, bytes, latency) = (log("iops"), log("bw"), log("lat"));
    for (way, direction) in [(0, &mut result.read), (1, &mut result.write)] {
        direction.series = iops
            .iter()
            .filter(|((of, _), _)| *of == way)
            .map(|((_, second), iops)| Sample {
                second: *second,
                iops: *iops,
                // fio logs bandwidth in KiB/s and latency in nanoseconds.
                bytes_per_s: bytes.get(&(way, *second)).copied().unwrap_or(0.0) * 1024.0,
                latency_us: latency.get(&(way, *second)).copied().unwrap_or(0.0) / 1000.0,
            })
            .collect();
    }
}

/// Lines of `milliseconds, value, direction, block size, offset`, by direction and second. A late sample falls into the
/// second it is nearest to.
fn read_log(text: &str) -> BTreeMap<(u8, u64), f64> {
    let mut samples = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(',').map(str::trim);
        let (Some(at), Some(value), Some(way)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if let (Ok(at), Ok(value), Ok(way)) = (at.parse::<u64>(), value.parse::<f64>(), way.parse::<u8>()) {
            samples.insert((way, (at + 500) / 1000), value);
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
        assert_eq!(log[&(0, 1)], 5.0);
        assert_eq!(log[&(1, 1)], 7.0);
        assert_eq!(log[&(0, 2)], 6.0);
        assert_eq!(log.len(), 3);
    }
}
