//! What clients saw: means over stretches of time.

use super::hardware::SECOND;
use super::load::{Kind, Sample};

/// A stretch of time as the clients saw it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// Reads and writes of pages of all VMs a second; what is written to logs is not among them.
    pub iops: f64,
    pub read_ms: f64,
    pub read_p99_ms: f64,
    pub log_write_ms: f64,
    pub page_write_ms: f64,
}

/// What was seen from then to then.
pub fn seen(samples: &[Sample], from: u64, to: u64) -> Seen {
    let within = |kind: Kind| {
        let of = samples.iter().filter(move |sample| sample.kind == kind);
        let mut us: Vec<u32> =
            of.filter(|sample| (from..to).contains(&sample.at)).map(|sample| sample.us).collect();
        us.sort_unstable();
        us
    };
    let mean_ms = |us: &[u32]| us.iter().map(|&us| f64::from(us)).sum::<f64>() / us.len().max(1) as f64 / 1e3;
    let (reads, logs, pages) = (within(Kind::Read), within(Kind::LogWrite), within(Kind::PageWrite));
    let seconds = (to - from) as f64 / SECOND as f64;
    Seen {
        iops: (reads.len() + pages.len()) as f64 / seconds,
        read_ms: mean_ms(&reads),
        read_p99_ms: reads.get(reads.len() * 99 / 100).map_or(0.0, |&us| f64::from(us) / 1e3),
        log_write_ms: mean_ms(&logs),
        page_write_ms: mean_ms(&pages),
    }
}

/// One entry for each `step` from the beginning on.
pub fn series(samples: &[Sample], from: u64, to: u64, step: u64) -> Vec<(u64, Seen)> {
    let mut series = Vec::new();
    let (mut rest, mut at) = (samples, from);
    while at + step <= to {
        // Samples lie in order of time.
        let first = rest.partition_point(|sample| sample.at < at);
        let behind = rest.partition_point(|sample| sample.at < at + step);
        series.push((at, seen(&rest[first..behind], at, at + step)));
        rest = &rest[behind..];
        at += step;
    }
    series
}
