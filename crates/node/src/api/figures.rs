//! The documents behind the pages `/latency`, `/cache_stats` and `/vdisk_stats`, and behind `weft top`.
//! A field that is missing reads as empty: a command line and a node may be of different versions.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weft_engine::histogram::Histogram;

use super::VdiskStatsView;

/// How often values of each size came. Percentiles are at most 12.5 % too high (those of sizes of requests too low, so that
/// 4096 is told as 4096), and exact below 16.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistogramView {
    pub count: u64,
    pub total: u64,
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
    /// Those with something in them: the lowest value, and how many came.
    pub buckets: Vec<(u64, u64)>,
}

impl From<&Histogram> for HistogramView {
    fn from(histogram: &Histogram) -> Self {
        Self {
            count: histogram.count(),
            total: histogram.total(),
            mean: (histogram.mean() * 1000.0).round() / 1000.0,
            p50: histogram.percentile(0.5),
            p90: histogram.percentile(0.9),
            p99: histogram.percentile(0.99),
            p999: histogram.percentile(0.999),
            max: histogram.max(),
            buckets: histogram.buckets().map(|bucket| (bucket.low, bucket.count)).collect(),
        }
    }
}

impl HistogramView {
    /// Of values that are mostly powers of two.
    pub fn of_sizes(histogram: &Histogram) -> Self {
        Self {
            p50: histogram.floor(0.5),
            p90: histogram.floor(0.9),
            p99: histogram.floor(0.99),
            p999: histogram.floor(0.999),
            max: histogram.floor(1.0),
            ..Self::from(histogram)
        }
    }

    /// What it was made of.
    pub fn histogram(&self) -> Histogram {
        Histogram::from_parts(self.total, self.buckets.iter().copied())
    }
}

/// Where the time of this node's shards goes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyView {
    pub uptime_us: u64,
    /// Since `since_reset` was made empty; the time since the start if it never was.
    pub since_reset_us: u64,
    pub stages: Vec<StageView>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StageView {
    /// Such as `FoundZeroes` or `map_page`.
    pub stage: String,
    /// `request` (whole requests), `wait`, `drive` or `core`: parts of those, and work in the background.
    pub group: String,
    pub meaning: String,
    pub since_start: TimesView,
    pub since_reset: TimesView,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimesView {
    pub count: u64,
    pub total_us: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    /// Nanoseconds, and how many.
    pub buckets_ns: Vec<(u64, u64)>,
}

impl From<&Histogram> for TimesView {
    /// Of nanoseconds.
    fn from(histogram: &Histogram) -> Self {
        let us = |ns: u64| ns as f64 / 1000.0;
        Self {
            count: histogram.count(),
            total_us: us(histogram.total()),
            mean_us: histogram.mean().round() / 1000.0,
            p50_us: us(histogram.percentile(0.5)),
            p99_us: us(histogram.percentile(0.99)),
            max_us: us(histogram.max()),
            buckets_ns: histogram.buckets().map(|bucket| (bucket.low, bucket.count)).collect(),
        }
    }
}

/// What caches and maps in memory were asked, in the last minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MinuteView {
    /// How long it is: less than a minute at first.
    pub us: u64,
    pub hits: u64,
    pub misses: u64,
    pub page_hits: u64,
    pub page_misses: u64,
    pub egroup_map_hits: u64,
    pub egroup_map_misses: u64,
    pub ahead_issued: u64,
    pub ahead_used: u64,
}

/// The vDisks that the node serves, and those that others do.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VdiskFiguresListView {
    /// In a cluster: the node that answers.
    pub node: Option<u32>,
    /// Of the node's process: figures are since then, or since the vDisk came here.
    pub uptime_us: u64,
    pub vdisks: Vec<VdiskFiguresView>,
    pub elsewhere: Vec<ElsewhereView>,
    /// Shards that did not answer in time: vDisks that they serve are missing in both lists.
    pub silent_shards: Vec<u32>,
}

/// A vDisk that this node does not serve.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ElsewhereView {
    pub name: String,
    /// None: nobody serves it at this moment.
    pub node: Option<u32>,
    /// Where that node answers.
    pub api: Option<String>,
}

/// Another node is to be asked.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MisdirectedView {
    pub error: String,
    #[serde(flatten)]
    pub elsewhere: ElsewhereView,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VdiskFiguresView {
    pub name: String,
    pub size: u64,
    /// Plain counters.
    pub counts: VdiskStatsView,
    /// From the socket (of this node, or from another one that passed the request on) to the reply, in microseconds.
    pub read_us: HistogramView,
    pub write_us: HistogramView,
    pub flush_us: HistogramView,
    /// Bytes of each request.
    pub read_size: HistogramView,
    pub write_size: HistogramView,
    /// Requests that were outstanding when another one came, that one included; and how many are now.
    pub outstanding: HistogramView,
    pub outstanding_now: u32,
    pub pattern: PatternView,
    pub working_set: WorkingSetView,
    /// By source: `overlay`, `zeroes`, `cache`, `ahead`, `local`, `remote`, `origin`.
    pub read_sources: BTreeMap<String, SourceView>,
    /// By destination: `log`, `bypass`, `zeroes`.
    pub write_destinations: BTreeMap<String, DestinationView>,
}

/// Requests that went on where another one ended, of up to 32 streams at once, and the others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PatternView {
    pub reads_sequential: u64,
    pub reads_random: u64,
    pub writes_sequential: u64,
    pub writes_random: u64,
}

/// Bytes in distinct ranges of 64 KiB that were touched, about (standard error 2.3 %).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkingSetView {
    /// In the last 120 to 150 seconds.
    pub minutes: TouchedView,
    /// In the last 60 to 70 minutes.
    pub hour: TouchedView,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TouchedView {
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Read, written or both.
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceView {
    /// Reads that got something from there.
    pub reads: u64,
    /// Blocks of 4 KiB.
    pub blocks: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DestinationView {
    /// Writes, or pieces of at most 1 MiB of larger ones.
    pub writes: u64,
    pub bytes: u64,
}
