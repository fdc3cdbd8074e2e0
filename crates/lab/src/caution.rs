//! When the figures should not be trusted: what was read was never written, the client was the bottleneck, or the
//! samples are too far apart. Each warning is one sentence that says what to do.

use crate::measurement::{Measurement, Results, TargetFacts};
use std::collections::BTreeMap;

/// Above this share of what the client reaches on nothing, the client is part of the answer.
const NULL_SHARE_MAX: f64 = 0.5;
const CLIENT_CPU_PERCENT_MAX: f64 = 90.0;
/// Differences smaller than the spread mean nothing, so beyond this a comparison is of little use.
const SPREAD_MAX: f64 = 0.10;
/// Standard deviation of the one-second samples over their mean.
const VARIATION_MAX: f64 = 0.25;

/// All that should be said about a run.
pub fn warnings(results: &Results) -> Vec<String> {
    let mut warnings = Vec::new();
    for target in &results.targets {
        if let Some(bytes) = target.never_written_bytes
            && bytes > 0
        {
            warnings.push(format!(
                "{}: {} of the range that is read were never written; reads of them measure nothing. \
                 Prefill the target (--prefill always).",
                target.label,
                mib(bytes)
            ));
        }
        if !target.prefilled && target.was_filled == Some(false) && target.never_written_bytes.is_none() {
            warnings.push(format!(
                "{}: no run of the lab has filled it, and it does not tell what was never written there: reads of that measure \
                 nothing. Prefill the target (--prefill always).",
                target.label
            ));
        } else if !target.prefilled {
            warnings.push(format!(
                "{}: not freshly filled before this run, so its data lies as earlier runs left it.",
                target.label
            ));
        }
        if target.in_cluster && target.server_pid.is_some() {
            warnings.push(format!(
                "{}: of its cluster only the node that exports it is in the CPU and the memory; what other nodes do for it is not \
                 counted.",
                target.label
            ));
        }
    }
    warnings.extend(shared_servers(&results.targets));
    // The same trouble in many rows is one warning that names them: a wall of text is read by nobody.
    let mut grouped = Grouped::default();
    for measurement in &results.measurements {
        about(results, measurement, &mut grouped);
    }
    warnings.extend(grouped.sentences());
    if results.interrupted {
        warnings.push(
            "The run was stopped before its end; the figures cover what was measured until then.".into(),
        );
    }
    warnings
}

/// Work that is put off is done by the process, whichever target is measured then.
fn shared_servers(targets: &[TargetFacts]) -> Vec<String> {
    let mut labels = BTreeMap::<u32, Vec<&str>>::new();
    for target in targets {
        if let Some(pid) = target.server_pid {
            labels.entry(pid).or_default().push(&target.label);
        }
    }
    labels.retain(|_, labels| labels.len() > 1);
    labels
        .into_values()
        .map(|labels| {
            format!(
                "{}: these targets share a server process, so each may pay for what the one before has left to be done, in time \
                 and in CPU. Rest longer (--idle), repeat (--repeats: each repeat begins with another target), or give each a \
                 server of its own.",
                labels.join(", ")
            )
        })
        .collect()
}

/// What is wrong in which rows.
#[derive(Default)]
struct Grouped {
    failed: Vec<String>,
    cut: Vec<String>,
    slow_client: Vec<String>,
    apart: Vec<String>,
    unsteady: Vec<String>,
}

impl Grouped {
    fn sentences(self) -> impl Iterator<Item = String> {
        [
            (self.failed, "Runs without figures"),
            (self.cut, "Cut short by whoever stopped the run, and so measured for less time than the others"),
            (
                self.slow_client,
                "The client is the bottleneck, so the target may be able to do more; use a faster client",
            ),
            (
                self.apart,
                "The repeats are further apart than 10 %, so smaller differences mean nothing; run longer or more often",
            ),
            (
                self.unsteady,
                "The samples vary a lot from second to second; look at the time series before comparing",
            ),
        ]
        .into_iter()
        .filter(|(rows, _)| !rows.is_empty())
        .map(|(rows, sentence)| format!("{sentence}: {}.", rows.join("; ")))
    }
}

fn about(results: &Results, measurement: &Measurement, grouped: &mut Grouped) {
    let row = results.row(&measurement.row);
    let place = format!("{}, {}", row.title, measurement.target);
    for run in &measurement.runs {
        if let Some(error) = &run.error {
            grouped.failed.push(format!("{place}, run {}: {error}", run.repeat + 1));
        }
    }
    if measurement.runs.iter().any(|run| run.cut) {
        let has_whole = measurement.runs.iter().any(|run| !run.cut && run.has_figures());
        let rest = if has_whole { "left out of its line" } else { "all there is of it" };
        grouped.cut.push(format!("{place} ({rest})"));
    }
    let Some(summary) = &measurement.summary else { return };
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let null = results.null.iter().find(|null| null.row == row.key).map_or(0.0, |null| null.iops);
    if null > 0.0 && summary.iops_median > null * NULL_SHARE_MAX {
        let share = percent(summary.iops_median / null);
        grouped.slow_client.push(format!("{place} ({share} of what fio alone reaches on nothing)"));
    } else if summary.client_cpu_percent > CLIENT_CPU_PERCENT_MAX {
        grouped.slow_client.push(format!("{place} (fio used {:.0} % of a core)", summary.client_cpu_percent));
    }
    if let Some(spread) = summary.spread.filter(|spread| *spread > SPREAD_MAX) {
        grouped.apart.push(format!("{place} ({})", percent(spread)));
    }
    if let Some(variation) = summary.variation.filter(|variation| *variation > VARIATION_MAX) {
        grouped.unsteady.push(format!("{place} ({})", percent(variation)));
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / 1048576.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::{NullRate, RunFigures, Summary};

    fn results(summary: Summary) -> Results {
        let rows = crate::plan::rows(&Default::default());
        let row = rows[0].key.clone();
        let facts = TargetFacts {
            label: "x".into(),
            place: "file:x".into(),
            kind: "file".into(),
            durable_writes: String::new(),
            capacity_bytes: 0,
            server_pid: None,
            in_cluster: false,
            idle_cpu_percent: None,
            idle_resident_bytes: None,
            prefilled: true,
            never_written_bytes: None,
            was_filled: Some(true),
        };
        Results {
            format: 1,
            scenario: String::new(),
            baseline: "x".into(),
            interrupted: false,
            provenance: Default::default(),
            targets: vec![facts],
            null: vec![NullRate { row: row.clone(), iops: 1000.0 }],
            measurements: vec![Measurement {
                row,
                target: "x".into(),
                runs: Vec::<RunFigures>::new(),
                summary: Some(summary),
            }],
            rows,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn a_calm_run_raises_no_warning() {
        let summary =
            Summary { iops_median: 400.0, spread: Some(0.05), variation: Some(0.1), ..Default::default() };
        assert_eq!(warnings(&results(summary)), Vec::<String>::new());
    }

    #[test]
    fn a_part_of_a_cluster_is_not_taken_for_all_of_it() {
        let mut results = results(Summary::default());
        results.targets[0].in_cluster = true;
        assert_eq!(warnings(&results), Vec::<String>::new(), "nothing of it is counted");
        results.targets[0].server_pid = Some(7);
        assert!(warnings(&results).join("").contains("only the node that exports it"));
    }

    #[test]
    fn targets_of_one_server_process_are_told_of() {
        let mut results = results(Summary::default());
        let target = |label: &str, server_pid| TargetFacts {
            label: label.into(),
            server_pid,
            ..results.targets[0].clone()
        };
        results.targets = [("a", Some(7)), ("b", Some(8)), ("c", Some(7)), ("d", None), ("e", None)]
            .map(|(label, pid)| target(label, pid))
            .into();
        let warned = warnings(&results);
        assert_eq!(warned.len(), 1, "{warned:?}");
        assert!(warned[0].starts_with("a, c: these targets share a server process"), "{warned:?}");
    }

    #[test]
    fn each_trouble_is_named() {
        let with = |summary: Summary| warnings(&results(summary)).join("\n");
        assert!(
            with(Summary { iops_median: 501.0, ..Default::default() }).contains("50 % of what fio alone")
        );
        assert!(with(Summary { client_cpu_percent: 95.0, ..Default::default() }).contains("95 % of a core"));
        assert!(with(Summary { spread: Some(0.3), ..Default::default() }).contains("(30 %)"));
        assert!(
            with(Summary { variation: Some(0.3), ..Default::default() }).contains("from second to second")
        );
        let mut unwritten = results(Summary::default());
        unwritten.targets[0].never_written_bytes = Some(5 << 20);
        unwritten.targets[0].prefilled = false;
        unwritten.interrupted = true;
        let text = warnings(&unwritten).join("\n");
        for part in ["5 MiB of the range", "not freshly filled", "stopped before its end"] {
            assert!(text.contains(part), "{text}");
        }
        unwritten.targets[0].never_written_bytes = None;
        unwritten.targets[0].was_filled = Some(false);
        let text = warnings(&unwritten).join("\n");
        assert!(text.contains("no run of the lab has filled it") && !text.contains("earlier runs"), "{text}");
    }
}
