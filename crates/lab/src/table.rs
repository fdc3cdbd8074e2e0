//! The figures as text: a table for the terminal, the same as Markdown, and CSV with everything.
//! Leaves to others: the page with charts (`report`).

use crate::measurement::{LatencySummary, Measurement, Results};
use crate::plan::Figure;
use crate::statistics::Range;

/// The columns of the terminal's and the Markdown table, with what they mean. One place, so that pages cannot disagree.
pub const COLUMNS: &[(&str, &str)] = &[
    (
        "target",
        "What was measured; the first line of each row is the one the others are divided by, unless told otherwise.",
    ),
    (
        "IOPS",
        "I/Os per second: the mean of each run, and of these the median over all repeats. Reads and writes together.",
    ),
    ("MiB/s", "The same in bytes (1 MiB = 1,048,576 bytes)."),
    (
        "ratio",
        "IOPS (MiB/s in rows of 1 MiB I/Os) divided by those of the baseline target in the same row of the same run.",
    ),
    (
        "mean us",
        "Mean time from the attempt to submit an I/O to its completion, in microseconds. In a mix: reads / writes. Where a flush is sent behind every write: write + flush, and the write is durable after both.",
    ),
    (
        "p99 us",
        "99 of 100 I/Os took no longer than this. Counted over all I/Os of all repeats, not an average of averages.",
    ),
    ("min-max per s", "Least and greatest one-second sample of IOPS (MiB/s in rows of 1 MiB I/Os)."),
    (
        "spread",
        "Best repeat minus worst, divided by the median. Differences between targets smaller than this mean nothing.",
    ),
    (
        "server CPU us",
        "User and system time of the target's server process and its children per I/O, in microseconds, the rest after the row included. Of a cluster only the node that exports the vDisk counts. A dash: the work is done by the kernel, or the process is not known.",
    ),
    ("RSS MiB", "Resident memory of the server process after the row."),
];

/// Whole numbers with separators, small ones with digits behind the point.
pub fn thousands(value: f64) -> String {
    if value.abs() < 10.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{:.0}", value);
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 && digit != '-' {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn cells(results: &Results, measurement: &Measurement) -> Vec<String> {
    let dash = || "-".to_string();
    let Some(summary) = &measurement.summary else {
        let error = measurement.runs.iter().find_map(|run| run.error.clone()).unwrap_or_default();
        let mut cells = vec![measurement.target.clone(), format!("failed: {error}")];
        cells.resize(COLUMNS.len(), String::new());
        return cells;
    };
    let latency = |of: fn(&LatencySummary) -> f64| {
        let own = match (&summary.read, &summary.write) {
            (Some(read), Some(write)) => format!("{} / {}", thousands(of(read)), thousands(of(write))),
            _ => thousands(of(&summary.first_latency())),
        };
        summary.flush.as_ref().map_or(own.clone(), |flush| format!("{own} + {}", thousands(of(flush))))
    };
    let (range, unit) = match results.row(&measurement.row).figure {
        Figure::Iops => (summary.iops_per_second, 1.0),
        Figure::BytesPerSecond => (summary.bytes_per_s_per_second, 1048576.0),
    };
    let ends = |range: Range| format!("{}-{}", thousands(range.min / unit), thousands(range.max / unit));
    vec![
        measurement.target.clone(),
        thousands(summary.iops_median),
        thousands(summary.bytes_per_s_median / 1048576.0),
        results.ratio(measurement).map_or_else(dash, |ratio| format!("{ratio:.2}")),
        latency(|latency| latency.us_mean),
        latency(|latency| latency.us_p99),
        range.map_or_else(dash, ends),
        summary.spread.map_or_else(dash, |spread| format!("{:.0} %", spread * 100.0)),
        summary.server_cpu_us_per_io.map_or_else(dash, |us| format!("{us:.1}")),
        summary.server_resident_bytes.map_or_else(dash, |bytes| (bytes >> 20).to_string()),
    ]
}

/// For the terminal: a heading per row, a line per target, warnings below.
pub fn terminal(results: &Results) -> String {
    let titles: Vec<String> = COLUMNS.iter().map(|(title, _)| title.to_string()).collect();
    let lines: Vec<Vec<String>> = results.measurements.iter().map(|one| cells(results, one)).collect();
    let width = |column: usize| {
        let own = lines.iter().filter(|line| !line[1].starts_with("failed")).map(|line| line[column].len());
        own.chain([titles[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..COLUMNS.len()).map(width).collect();
    let mut text = String::new();
    let mut line = |cells: &[String]| {
        let mut out = format!("  {:<width$}", cells[0], width = widths[0]);
        if cells[1].starts_with("failed") {
            out += &format!("  {}", cells[1]);
        } else {
            for (cell, width) in cells.iter().zip(&widths).skip(1) {
                out += &format!("  {cell:>width$}");
            }
        }
        text += out.trim_end();
        text.push('\n');
    };
    line(&titles);
    for row in &results.rows {
        let mut first = true;
        for (measurement, cells) in results.measurements.iter().zip(&lines) {
            if measurement.row == row.key {
                if std::mem::take(&mut first) {
                    line(&[vec![row.title.clone()], vec![String::new(); COLUMNS.len() - 1]].concat());
                }
                line(cells);
            }
        }
    }
    let mut text = text.lines().map(|line| headings_out(line, results)).collect::<Vec<_>>().join("\n");
    text.push('\n');
    for target in &results.targets {
        if let (Some(cpu), Some(bytes)) = (target.idle_cpu_percent, target.idle_resident_bytes) {
            text += &format!("idle {}: {cpu:.1} % of a core, {} MiB of memory\n", target.label, bytes >> 20);
        }
    }
    for sentence in against_baseline(results) {
        text += &format!("{sentence}\n");
    }
    for warning in &results.warnings {
        text += &format!("warning: {warning}\n");
    }
    text
}

/// Of rows that differ by their data: rate and latency of each target against the baseline's, in words.
fn against_baseline(results: &Results) -> Vec<String> {
    let mut sentences = Vec::new();
    for row in results.rows.iter().filter(|row| row.compressible_percent.is_some()) {
        let mean = |one: &Measurement| Some(one.summary.as_ref()?.us_mean());
        let base = results.of_row(&row.key).find(|one| one.target == results.baseline).and_then(mean);
        for one in results.of_row(&row.key).filter(|one| one.target != results.baseline) {
            if let (Some(rate), Some(own), Some(base)) = (results.ratio(one), mean(one), base)
                && base > 0.0
            {
                sentences.push(format!(
                    "{}: {} has {rate:.2} of the rate of {} and {:.2} of its latency.",
                    row.title,
                    one.target,
                    results.baseline,
                    own / base
                ));
            }
        }
    }
    sentences
}

/// Row titles stand at the left edge.
fn headings_out(line: &str, results: &Results) -> String {
    let bare = line.trim();
    if results.rows.iter().any(|row| row.title == bare) { bare.to_string() } else { line.to_string() }
}

/// The same table in Markdown.
pub fn markdown(results: &Results) -> String {
    let titles: Vec<&str> = COLUMNS.iter().map(|(title, _)| *title).collect();
    let mut text = format!("| row | {} |\n", titles.join(" | "));
    text += &format!("|---|---|{}\n", "---:|".repeat(COLUMNS.len() - 1));
    for row in &results.rows {
        for measurement in results.of_row(&row.key) {
            text += &markdown_line(&[vec![row.title.clone()], cells(results, measurement)].concat());
        }
    }
    let against = against_baseline(results);
    if !against.is_empty() {
        text += &format!("\n- {}\n", against.join("\n- "));
    }
    let idle: Vec<String> = results
        .targets
        .iter()
        .filter_map(|target| {
            let mib = target.idle_resident_bytes? >> 20;
            Some(format!("{} {:.1} % of a core, {mib} MiB", target.label, target.idle_cpu_percent?))
        })
        .collect();
    if !idle.is_empty() {
        text += &format!("\nServers before any load: {}.\n", idle.join("; "));
    }
    text += &results.provenance.sentence("per target", " per run");
    if !results.warnings.is_empty() {
        text += "\nWarnings of the run:\n\n";
        for warning in &results.warnings {
            text += &format!("- {warning}\n");
        }
    }
    text
}

/// One line per run and direction, for other programs.
pub fn csv(results: &Results) -> String {
    let mut text = String::from(
        "row,target,repeat,direction,ios,bytes,iops,bytes_per_s,latency_us_mean,latency_us_p50,latency_us_p95,\
         latency_us_p99,latency_us_p999,latency_us_max,client_cpu_percent,server_cpu_us_per_io,server_resident_bytes,error\n",
    );
    for measurement in &results.measurements {
        for run in &measurement.runs {
            for (name, way) in [("read", &run.read), ("write", &run.write), ("flush", &run.flush)] {
                // A failed run gets one line, a direction without I/Os none.
                if way.ios == 0 && !(run.error.is_some() && name == "read") {
                    continue;
                }
                let server = run.server.map_or((String::new(), String::new()), |server| {
                    let cpu_us = server.cpu_us_per_io.map_or(String::new(), |us| format!("{us:.3}"));
                    (cpu_us, server.resident_bytes.to_string())
                });
                let fields = [
                    measurement.row.clone(),
                    quoted(&measurement.target),
                    run.repeat.to_string(),
                    name.to_string(),
                    way.ios.to_string(),
                    way.bytes.to_string(),
                    format!("{:.1}", way.iops),
                    format!("{:.0}", way.bytes_per_s),
                    format!("{:.3}", way.latency_us_mean),
                    format!("{:.3}", way.latency_us_p50),
                    format!("{:.3}", way.latency_us_p95),
                    format!("{:.3}", way.latency_us_p99),
                    format!("{:.3}", way.latency_us_p999),
                    format!("{:.3}", way.latency_us_max),
                    format!("{:.1}", run.client_cpu_percent),
                    server.0,
                    server.1,
                    quoted(run.error.as_deref().unwrap_or_default()),
                ];
                text += &fields.join(",");
                text.push('\n');
            }
        }
    }
    text
}

/// A line of a table in Markdown.
pub(crate) fn markdown_line(cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

pub(crate) fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(thousands(0.0), "0.0");
        assert_eq!(thousands(9.96), "10.0");
        assert_eq!(thousands(999.6), "1,000");
        assert_eq!(thousands(1234567.0), "1,234,567");
        assert_eq!(markdown_line(&["a|b".into(), "c".into()]), "| a\\|b | c |\n");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
