//! What a scenario has found out, as it is kept in `results.json`.
//! Promises: every figure's unit is the end of its name; times are seconds since the database's first I/O.

use super::load::Stream;
use super::verdict::{Band, Verdict};
use crate::measurement::ServerUse;
use crate::provenance::Provenance;
use serde::{Deserialize, Serialize};

/// I/Os of one second of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    pub ios: u64,
    pub bytes: u64,
    pub us_mean: f64,
    pub us_p50: f64,
    pub us_p99: f64,
    pub us_p999: f64,
    pub us_max: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamSeries {
    pub stream: Stream,
    /// From second 0 on.
    pub seconds: Vec<Second>,
}

/// The database between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    pub from_s: u64,
    pub to_s: u64,
    /// Whole seconds in it.
    pub seconds: usize,
    pub iops_mean: f64,
    pub in_band_share: f64,
    /// Of all I/Os in it.
    pub us_mean: f64,
    pub us_p50: f64,
    pub us_p99: f64,
    pub us_p999: f64,
    pub us_max: f64,
    /// The mean latency of its middle second; none if that had no I/O, which is slower than any.
    pub us_middle: Option<f64>,
    /// What the neighbour read meanwhile; of the phase beside it: while it was reading.
    pub scan_bytes_per_s: f64,
}

/// Something that was done to the platform, and how the time until the next one was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// From 1 on.
    pub number: u32,
    pub text: String,
    pub at_s: f64,
    /// How long the platform took for it.
    pub took_s: f64,
    pub error: Option<String>,
    /// From here to the next one.
    pub after: Window,
    /// The same number of seconds before it (at most back to the one before).
    pub before: Window,
    pub degraded: bool,
    pub recovery_s: Option<u64>,
}

/// A part of the timeline with a name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    pub name: String,
    pub window: Window,
    /// The log's writes in it: what a commit waits for.
    pub log_us_p50: f64,
    pub log_us_p99: f64,
}

/// One run on one target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetRun {
    pub target: String,
    pub repeat: u32,
    /// When the database began, seconds since 1970.
    pub began_unix_s: u64,
    pub series: Vec<StreamSeries>,
    pub events: Vec<Event>,
    pub phases: Vec<Phase>,
    pub verdict: Option<Verdict>,
    pub first_degraded: Option<u32>,
    /// Before the first snapshot and after the last one; of a target that takes none, at the same times.
    #[serde(default)]
    pub after_all: Option<super::verdict::Comparison>,
    /// I/Os that failed, and the seconds in which they were noticed with how many.
    pub errors: u64,
    pub errors_by_second: Vec<(u64, u64)>,
    /// All I/Os of the database.
    pub whole: Second,
    pub server: Option<ServerUse>,
    /// Why there are no figures, or why they are incomplete.
    pub error: Option<String>,
    /// Name of its files under `raw`, without ending.
    pub files: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlatformFacts {
    pub label: String,
    pub place: String,
    pub snapshots: String,
    #[serde(default)]
    pub takes_snapshots: bool,
    pub durable_writes: String,
    /// What other nodes do for it is not in its CPU.
    #[serde(default)]
    pub in_cluster: bool,
}

/// Everything a run has found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScenarioResults {
    /// Version of this format.
    pub format: u32,
    pub scenario: String,
    /// What was done, in a sentence.
    pub explanation: String,
    pub interrupted: bool,
    pub provenance: Provenance,
    /// The same load on nothing: mean and deviation over mean of its seconds. None if that could not be measured.
    pub client: Option<ClientFloor>,
    pub band: Band,
    pub targets: Vec<PlatformFacts>,
    pub runs: Vec<TargetRun>,
    pub warnings: Vec<String>,
}

/// What this client makes of the load where no target is in its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientFloor {
    pub iops_mean: f64,
    pub variation: f64,
    pub in_band_share: f64,
}

impl TargetRun {
    /// Some of it gave no figures, or something failed that figures do not show: a database that gets errors is no healthy one.
    pub fn is_troubled(&self) -> bool {
        self.error.is_some()
            || self.errors > 0
            || self.verdict.is_none()
            || self.events.iter().any(|event| event.error.is_some())
    }

    /// The seconds of a stream; empty if it had no I/O.
    pub fn seconds(&self, stream: Stream) -> &[Second] {
        self.series.iter().find(|one| one.stream == stream).map_or(&[], |one| &one.seconds)
    }

    /// The longest that the platform took for a disturbance.
    pub fn took_s_max(&self) -> Option<f64> {
        self.events
            .iter()
            .filter(|event| event.error.is_none())
            .map(|event| event.took_s)
            .max_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_troubled_if_one_io_has_failed() {
        let calm = TargetRun { verdict: Some(Verdict::default()), ..TargetRun::default() };
        assert!(!calm.is_troubled());
        let failed = TargetRun { errors: 1, ..calm };
        assert!(failed.is_troubled(), "whatever its figures are");
    }
}
