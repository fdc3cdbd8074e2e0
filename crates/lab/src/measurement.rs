//! The figures of a run, as they are kept in `results.json`, and how several runs of one row become one line.
//! Promises: reads and writes apart; every figure's unit is the end of its name.
//! Leaves to others: judging them (`caution`), showing them (`table`, `report`).

use crate::plan::{Figure, Row};
use crate::process::Usage;
use crate::provenance::Provenance;
use crate::statistics::{self, Latencies, Range};
use serde::{Deserialize, Serialize};

/// One second of one direction, as fio logged it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the row began; the sample covers the second before.
    pub second: u64,
    pub iops: f64,
    pub bytes_per_s: f64,
    pub latency_us: f64,
}

/// Reads or writes of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Direction {
    pub ios: u64,
    pub bytes: u64,
    pub iops: f64,
    pub bytes_per_s: f64,
    pub latency_us_mean: f64,
    pub latency_us_p50: f64,
    pub latency_us_p95: f64,
    pub latency_us_p99: f64,
    pub latency_us_p999: f64,
    pub latency_us_max: f64,
    pub series: Vec<Sample>,
    /// Only while running, to add up; the raw files keep them.
    #[serde(skip)]
    pub latencies: Latencies,
}

/// What the target's server used for one run, the rest after it included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerUse {
    pub cpu_us: u64,
    /// None where the server did other I/Os too, which are not known: a neighbour's.
    pub cpu_us_per_io: Option<f64>,
    pub resident_bytes: u64,
}

/// One run of one row on one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunFigures {
    pub repeat: u32,
    /// Seconds since the whole run began.
    pub started_s: f64,
    pub read: Direction,
    pub write: Direction,
    /// Flushes sent behind writes: their count and latency. A durable write of such a target takes both.
    #[serde(default)]
    pub flush: Direction,
    pub client_cpu_percent: f64,
    pub server: Option<ServerUse>,
    /// Somebody stopped the run while this was measured: it covers less than it should.
    #[serde(default)]
    pub cut: bool,
    /// Why there are no figures.
    pub error: Option<String>,
    /// Name of its files under `raw`, without ending.
    pub files: String,
}

/// Several runs in one line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Of the runs' means.
    pub iops_median: f64,
    pub bytes_per_s_median: f64,
    /// Of the one-second samples of all runs; none if the runs were too short to have any.
    pub iops_per_second: Option<Range>,
    pub bytes_per_s_per_second: Option<Range>,
    pub read: Option<LatencySummary>,
    pub write: Option<LatencySummary>,
    /// Of the flushes behind writes, which the latency of the writes does not hold.
    #[serde(default)]
    pub flush: Option<LatencySummary>,
    /// Distance of the best and worst run divided by the median.
    pub spread: Option<f64>,
    /// Standard deviation of the one-second samples divided by their mean; the worst run's.
    pub variation: Option<f64>,
    pub client_cpu_percent: f64,
    pub server_cpu_us_per_io: Option<f64>,
    pub server_resident_bytes: Option<u64>,
}

/// Latency of one direction, over all I/Os of all runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    pub us_mean: f64,
    pub us_p50: f64,
    pub us_p95: f64,
    pub us_p99: f64,
    pub us_p999: f64,
    pub us_max: f64,
}

/// One row on one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub row: String,
    pub target: String,
    pub runs: Vec<RunFigures>,
    /// None if no run gave figures.
    pub summary: Option<Summary>,
}

/// What is known about a target besides its figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetFacts {
    pub label: String,
    pub place: String,
    pub kind: String,
    pub durable_writes: String,
    pub capacity_bytes: u64,
    pub server_pid: Option<u32>,
    /// That process is one of several that do the work.
    #[serde(default)]
    pub in_cluster: bool,
    /// Before any load, percent of one core.
    pub idle_cpu_percent: Option<f64>,
    pub idle_resident_bytes: Option<u64>,
    pub prefilled: bool,
    /// Bytes of the touched range that hold nothing; none if that could not be found out.
    pub never_written_bytes: Option<u64>,
    /// Whether some run of the lab has filled the touched range, as the label says. Not in older results.
    #[serde(default)]
    pub was_filled: Option<bool>,
}

/// Everything a run has found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Version of this format.
    pub format: u32,
    pub scenario: String,
    pub baseline: String,
    /// True if somebody stopped the run before its end.
    pub interrupted: bool,
    pub provenance: Provenance,
    pub targets: Vec<TargetFacts>,
    pub rows: Vec<Row>,
    /// The rate of the same load on nothing, by row: what this client could do at most.
    pub null: Vec<NullRate>,
    pub measurements: Vec<Measurement>,
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NullRate {
    pub row: String,
    pub iops: f64,
}

impl Direction {
    fn figure(&self, figure: Figure) -> f64 {
        match figure {
            Figure::Iops => self.iops,
            Figure::BytesPerSecond => self.bytes_per_s,
        }
    }
}

impl RunFigures {
    pub fn ios(&self) -> u64 {
        self.read.ios + self.write.ios
    }

    pub fn has_figures(&self) -> bool {
        self.error.is_none() && self.ios() > 0
    }

    /// Both directions together, second by second.
    pub fn samples(&self, figure: Figure) -> Vec<f64> {
        let mut seconds = std::collections::BTreeMap::<u64, f64>::new();
        for sample in self.read.series.iter().chain(&self.write.series) {
            *seconds.entry(sample.second).or_default() += match figure {
                Figure::Iops => sample.iops,
                Figure::BytesPerSecond => sample.bytes_per_s,
            };
        }
        seconds.into_values().collect()
    }
}

impl Summary {
    /// None if no run has figures.
    pub fn of(runs: &[RunFigures], figure: Figure) -> Option<Summary> {
        let mut good: Vec<&RunFigures> = runs.iter().filter(|run| run.has_figures()).collect();
        if good.iter().any(|run| !run.cut) {
            // What was cut short counts only where there is nothing else.
            good.retain(|run| !run.cut);
        }
        let means = |figure| -> Vec<f64> {
            good.iter().map(|run| run.read.figure(figure) + run.write.figure(figure)).collect()
        };
        let samples = |figure| -> Vec<f64> { good.iter().flat_map(|run| run.samples(figure)).collect() };
        let server = |of: &dyn Fn(&ServerUse) -> Option<f64>| -> Option<f64> {
            let values: Vec<f64> = good.iter().filter_map(|run| run.server.as_ref().and_then(of)).collect();
            statistics::median(&values)
        };
        let client: Vec<f64> = good.iter().map(|run| run.client_cpu_percent).collect();
        Some(Summary {
            iops_median: statistics::median(&means(Figure::Iops))?,
            bytes_per_s_median: statistics::median(&means(Figure::BytesPerSecond))?,
            iops_per_second: statistics::range(&samples(Figure::Iops)),
            bytes_per_s_per_second: statistics::range(&samples(Figure::BytesPerSecond)),
            read: LatencySummary::of(&good, |run| &run.read),
            write: LatencySummary::of(&good, |run| &run.write),
            flush: LatencySummary::of(&good, |run| &run.flush),
            spread: statistics::spread(&means(figure)),
            variation: good
                .iter()
                .filter_map(|run| statistics::coefficient_of_variation(&run.samples(figure)))
                .max_by(f64::total_cmp),
            client_cpu_percent: statistics::median(&client)?,
            server_cpu_us_per_io: server(&|server| server.cpu_us_per_io),
            server_resident_bytes: server(&|server| Some(server.resident_bytes as f64))
                .map(|bytes| bytes as u64),
        })
    }

    /// What the row is compared by.
    pub fn figure(&self, figure: Figure) -> f64 {
        match figure {
            Figure::Iops => self.iops_median,
            Figure::BytesPerSecond => self.bytes_per_s_median,
        }
    }

    /// How long an I/O takes on average, with the flush behind it if it takes one.
    pub fn us_mean(&self) -> f64 {
        self.first_latency().us_mean + self.flush.map_or(0.0, |flush| flush.us_mean)
    }

    /// The direction to show where only one has room: reads, unless there are none.
    pub fn first_latency(&self) -> LatencySummary {
        self.read.or(self.write).unwrap_or_default()
    }
}

impl LatencySummary {
    fn of(runs: &[&RunFigures], way: impl Fn(&RunFigures) -> &Direction) -> Option<LatencySummary> {
        let ios: u64 = runs.iter().map(|run| way(run).ios).sum();
        if ios == 0 {
            return None;
        }
        let mut all = Latencies::default();
        for run in runs {
            all.add(&way(run).latencies);
        }
        let us = |percent| all.percentile(percent).unwrap_or(0) as f64 / 1000.0;
        let weighted: f64 = runs.iter().map(|run| way(run).latency_us_mean * way(run).ios as f64).sum();
        Some(LatencySummary {
            us_mean: weighted / ios as f64,
            us_p50: us(50.0),
            us_p95: us(95.0),
            us_p99: us(99.0),
            us_p999: us(99.9),
            us_max: runs.iter().map(|run| way(run).latency_us_max).fold(0.0, f64::max),
        })
    }
}

impl ServerUse {
    /// From a look before and one after. `ios`: all that the server did in between, if that is known.
    pub fn between(before: Usage, after: Usage, ios: Option<u64>) -> ServerUse {
        let cpu_us = after.cpu_us.saturating_sub(before.cpu_us);
        ServerUse {
            cpu_us,
            cpu_us_per_io: ios.map(|ios| cpu_us as f64 / ios.max(1) as f64),
            resident_bytes: after.resident_bytes,
        }
    }
}

impl Results {
    pub fn row(&self, key: &str) -> &Row {
        self.rows.iter().find(|row| row.key == key).expect("a measurement names a row of its run")
    }

    /// The measurements of a row, in the order of the targets.
    pub fn of_row<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Measurement> {
        self.measurements.iter().filter(move |measurement| measurement.row == key)
    }

    /// The figure of a measurement divided by that of the baseline in the same row.
    pub fn ratio(&self, measurement: &Measurement) -> Option<f64> {
        let figure = self.row(&measurement.row).figure;
        let base = self.of_row(&measurement.row).find(|other| other.target == self.baseline)?;
        let base = base.summary.as_ref()?.figure(figure);
        let own = measurement.summary.as_ref()?.figure(figure);
        (base > 0.0).then(|| own / base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(repeat: u32, iops: f64, latency_ns: u64) -> RunFigures {
        let mut latencies = Latencies::default();
        latencies.0.insert(latency_ns, iops as u64 * 2);
        let sample = |second| Sample { second, iops, bytes_per_s: iops * 4096.0, latency_us: 1.0 };
        RunFigures {
            repeat,
            started_s: 0.0,
            read: Direction {
                ios: iops as u64 * 2,
                iops,
                bytes_per_s: iops * 4096.0,
                latency_us_mean: latency_ns as f64 / 1000.0,
                latency_us_max: latency_ns as f64 / 1000.0,
                series: vec![sample(1), sample(2)],
                latencies,
                ..Default::default()
            },
            write: Direction::default(),
            flush: Direction::default(),
            client_cpu_percent: 50.0,
            server: Some(ServerUse { cpu_us: 10, cpu_us_per_io: Some(5.0), resident_bytes: 7 }),
            cut: false,
            error: None,
            files: String::new(),
        }
    }

    #[test]
    fn a_run_that_was_cut_short_counts_only_where_there_is_no_whole_one() {
        let mut cut = figures(1, 900.0, 1000);
        cut.cut = true;
        let both = Summary::of(&[figures(0, 100.0, 1000), cut.clone()], Figure::Iops).expect("figures");
        assert_eq!((both.iops_median, both.spread), (100.0, None));
        assert_eq!(Summary::of(&[cut], Figure::Iops).expect("figures").iops_median, 900.0);
    }

    #[test]
    fn several_runs_become_one_line() {
        let mut failed = figures(3, 9.0, 1);
        failed.error = Some("gone".into());
        let runs = [figures(0, 100.0, 1000), figures(1, 120.0, 2000), figures(2, 110.0, 3000), failed];
        let summary = Summary::of(&runs, Figure::Iops).expect("three runs are good");
        assert_eq!(summary.iops_median, 110.0);
        assert_eq!(summary.iops_per_second, Some(Range { min: 100.0, median: 110.0, max: 120.0 }));
        assert!((summary.spread.expect("three runs") - 20.0 / 110.0).abs() < 1e-9);
        assert_eq!(summary.variation, Some(0.0));
        let read = summary.read.expect("there were reads");
        assert_eq!(read.us_p50, 2.0);
        assert_eq!(read.us_max, 3.0);
        assert!(summary.write.is_none());
        assert_eq!(summary.server_cpu_us_per_io, Some(5.0));
        assert!(Summary::of(&runs[3..], Figure::Iops).is_none());
    }
}
