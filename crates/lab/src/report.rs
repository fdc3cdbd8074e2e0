//! The files a run leaves: `results.json`, `results.csv`, `results.md`, and `report.html`, one page that needs no network.
//! Promises: the page is made from `results.json` alone, so it can be rewritten later by a newer program.

use crate::error::LabError;
use crate::measurement::Results;
use crate::provenance::Provenance;
use crate::{provenance, run, scenario, table};
use serde::Serialize;
use std::path::{Path, PathBuf};

const HEAD: &str = include_str!("report/head.html");
const PAGE: &str = include_str!("report/page.html");
const STYLE: &str = include_str!("report/page.css");
const COMMON: &str = include_str!("report/common.js");
const SCRIPT: &str = include_str!("report/page.js");

/// Reads the results of an earlier run and writes its CSV, Markdown and page again. Returns the place of the page.
pub fn report(dir: &Path) -> Result<PathBuf, LabError> {
    let unreadable = |why: String| LabError::NoResults { dir: dir.to_path_buf(), why };
    let text =
        std::fs::read_to_string(dir.join("results.json")).map_err(|why| unreadable(why.to_string()))?;
    let kept: serde_json::Value = serde_json::from_str(&text).map_err(|why| unreadable(why.to_string()))?;
    if scenario::is_scenario(&kept) {
        return scenario::report(dir, kept);
    }
    let results: Results = serde_json::from_value(kept).map_err(|why| unreadable(why.to_string()))?;
    if results.format != run::FORMAT {
        return Err(unreadable(format!(
            "its format is {}, this program knows {}",
            results.format,
            run::FORMAT
        )));
    }
    let known = |measurement: &crate::Measurement| results.rows.iter().any(|row| row.key == measurement.row);
    if !results.measurements.iter().all(known) {
        return Err(unreadable("a measurement names a row that is not in it".to_string()));
    }
    write_derived(dir, &results)
}

/// What a run leaves in its directory, besides `run.json` and `raw`.
const FILES: [&str; 5] = ["results.json", "results.csv", "events.csv", "results.md", "report.html"];

/// Says what was asked for, and that what lies beside it is the lab's.
pub(crate) fn write_run_file(
    dir: &Path,
    settings: &impl Serialize,
    provenance: &Provenance,
) -> Result<(), LabError> {
    let run = serde_json::json!({ "settings": settings, "provenance": provenance });
    write(&dir.join("run.json"), &serde_json::to_string_pretty(&run).expect("plain data has a JSON form"))
}

/// Refuses a directory in which a file of somebody else has the name of one of ours.
pub(crate) fn check_own(dir: &Path) -> Result<(), LabError> {
    let run = std::fs::read(dir.join("run.json")).unwrap_or_default();
    let run: serde_json::Value = serde_json::from_slice(&run).unwrap_or_default();
    if run["settings"].is_object() && run["provenance"].is_object() {
        return Ok(());
    }
    let other = ["run.json"].iter().chain(&FILES).map(|name| dir.join(name)).find(|path| path.exists());
    other.map_or(Ok(()), |path| Err(LabError::NotOurs { path }))
}

/// Takes away what an earlier run left here: it would pass for the figures of this one, should this one end without any.
pub(crate) fn remove_old(dir: &Path) -> Result<(), LabError> {
    for name in FILES {
        let path = dir.join(name);
        match std::fs::remove_file(&path) {
            Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
                return Err(LabError::File { path, why });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Writes everything. Returns the place of the page.
pub fn write_all(dir: &Path, results: &Results) -> Result<PathBuf, LabError> {
    keep(dir, results)?;
    write_derived(dir, results)
}

/// Writes the results alone, of which [`report`] makes the rest.
pub(crate) fn keep(dir: &Path, results: &Results) -> Result<(), LabError> {
    let json = serde_json::to_string_pretty(results).expect("plain data has a JSON form");
    write(&dir.join("results.json"), &json)
}

fn write_derived(dir: &Path, results: &Results) -> Result<PathBuf, LabError> {
    write(&dir.join("results.csv"), &table::csv(results))?;
    write(&dir.join("results.md"), &table::markdown(results))?;
    let place = dir.join("report.html");
    write(&place, &page(results))?;
    Ok(place)
}

/// Whole or not at all: what was there stays until the new is complete.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), LabError> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    written.map_err(|why| {
        let _ = std::fs::remove_file(&new);
        LabError::File { path: path.to_path_buf(), why }
    })
}

/// The page: style, script and data in one file.
pub fn page(results: &Results) -> String {
    let columns: Vec<serde_json::Value> =
        table::COLUMNS.iter().map(|(title, meaning)| serde_json::json!([title, meaning])).collect();
    let data = serde_json::json!({
        "results": results,
        "columns": columns,
        "started": provenance::date(results.provenance.started_unix_s),
    });
    filled(PAGE, SCRIPT, &data)
}

/// A page: what every page begins with, this body, and style, script and data in them.
pub(crate) fn filled(page: &str, script: &str, data: &serde_json::Value) -> String {
    // A label could hold "</script>", which would end the element early.
    let data = data.to_string().replace("</", "<\\/").replace("<!--", "<\\u0021--");
    // The data last: what it holds must not be taken for a place to fill.
    let script = format!("{COMMON}{script}");
    let page = format!("{HEAD}{page}");
    page.replacen("/*STYLE*/", STYLE, 1).replacen("/*SCRIPT*/", &script, 1).replacen("/*DATA*/", &data, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::*;
    use crate::settings::RunSettings;

    fn results(label: &str) -> Results {
        let settings = RunSettings::default();
        let rows = crate::plan::rows(&settings);
        let sample = Sample { second: 1, iops: 10.0, bytes_per_s: 81920.0, latency_us: 5.0 };
        let run = RunFigures {
            repeat: 0,
            started_s: 0.0,
            read: Direction { ios: 10, iops: 10.0, series: vec![sample], ..Default::default() },
            write: Direction::default(),
            flush: Direction::default(),
            client_cpu_percent: 1.0,
            server: None,
            cut: false,
            error: None,
            files: "x".into(),
        };
        let summary = Summary::of(std::slice::from_ref(&run), rows[0].figure);
        let row = rows[0].key.clone();
        Results {
            format: run::FORMAT,
            scenario: "four-corners".into(),
            baseline: label.into(),
            interrupted: false,
            provenance: Default::default(),
            targets: Vec::new(),
            rows,
            null: Vec::new(),
            measurements: vec![Measurement { row, target: label.into(), runs: vec![run], summary }],
            warnings: vec!["take care".into()],
        }
    }

    #[test]
    fn the_page_holds_its_data_and_asks_nobody_else() {
        let page = page(&results("a</script><script>alert(1)"));
        assert!(!page.contains("</script><script>alert"), "labels cannot end the element");
        for outside in ["src=\"http", "href=\"http", "@import", "fetch("] {
            assert!(!page.contains(outside), "{outside}");
        }
        for place in ["/*STYLE*/", "/*SCRIPT*/", "/*DATA*/"] {
            assert!(!page.contains(place), "{place} is filled");
        }
        assert!(page.contains("take care"));
    }

    #[test]
    fn a_report_can_be_written_again_from_the_results() {
        let dir = std::env::temp_dir().join(format!("weft-report-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("writable");
        assert!(matches!(report(&dir), Err(LabError::NoResults { .. })));
        check_own(&dir).expect("nothing is there");
        let place = write_all(&dir, &results("raw")).expect("writable");
        let first = std::fs::read(&place).expect("written");
        std::fs::remove_file(&place).expect("there");
        assert_eq!(report(&dir).expect("results are there"), place);
        assert_eq!(std::fs::read(&place).expect("written again"), first);
        let csv = std::fs::read_to_string(dir.join("results.csv")).expect("written");
        assert_eq!(csv.lines().count(), 2, "{csv}");
        assert_eq!(csv.lines().next().map(|line| line.split(',').count()), Some(18));
        std::fs::write(dir.join("results.json"), "{}").expect("writable");
        assert!(matches!(report(&dir), Err(LabError::NoResults { .. })));
        assert!(
            matches!(check_own(&dir), Err(LabError::NotOurs { .. })),
            "no run.json says that these are ours"
        );
        std::fs::write(dir.join("run.json"), r#"{"settings": 1}"#).expect("writable");
        assert!(matches!(check_own(&dir), Err(LabError::NotOurs { .. })), "nor does somebody else's");
        std::fs::write(dir.join("run.json"), r#"{"settings": {}, "provenance": {}}"#).expect("writable");
        check_own(&dir).expect("now it is ours");
        remove_old(&dir).expect("they can be removed");
        std::fs::remove_file(dir.join("run.json")).expect("there");
        assert_eq!(std::fs::read_dir(&dir).expect("there").count(), 0, "nothing passes for the next run's");
        std::fs::remove_dir_all(&dir).expect("there");
    }

    #[test]
    fn the_tables_show_ratios_to_the_baseline() {
        let mut results = results("raw");
        let mut twice = results.measurements[0].clone();
        twice.target = "fast".into();
        twice.summary.as_mut().expect("figures").iops_median = 20.0;
        let mut failed = results.measurements[0].clone();
        failed.target = "broken".into();
        failed.summary = None;
        failed.runs[0].error = Some("connection refused".into());
        results.measurements.extend([twice, failed]);
        let text = crate::table::terminal(&results);
        let line = |name: &str| text.lines().find(|line| line.contains(name)).expect(name).to_string();
        assert!(line("fast").contains("2.00"), "{text}");
        assert!(line("raw").contains("1.00"), "{text}");
        let flushed = Some(LatencySummary { us_mean: 2000.0, us_p99: 3000.0, ..Default::default() });
        results.measurements[1].summary.as_mut().expect("figures").flush = flushed;
        let with_flush = crate::table::terminal(&results);
        assert!(with_flush.contains("+ 2,000") && with_flush.contains("+ 3,000"), "{with_flush}");
        assert!(line("broken").contains("failed: connection refused"), "{text}");
        assert!(line("take care").starts_with("warning: "), "{text}");
        assert!(!text.contains("of its latency"), "only rows that differ by their data are told in words");
        for one in &mut results.measurements {
            if let Some(summary) = &mut one.summary {
                summary.read =
                    Some(LatencySummary { us_mean: summary.iops_median * 3.0, ..Default::default() });
            }
        }
        results.rows[0].compressible_percent = Some(75);
        let told = "fast has 2.00 of the rate of raw and 68.67 of its latency.";
        assert!(crate::table::terminal(&results).contains(told), "{}", crate::table::terminal(&results));
        results.measurements[1].summary.as_mut().expect("figures").flush = None;
        let told = "fast has 2.00 of the rate of raw and 2.00 of its latency.";
        assert!(crate::table::terminal(&results).contains(told), "{}", crate::table::terminal(&results));
        assert!(crate::table::markdown(&results).contains(told));
        let markdown = crate::table::markdown(&results);
        let columns = |line: &str| line.matches('|').count();
        let lines: Vec<&str> = markdown.lines().take_while(|line| !line.is_empty()).collect();
        assert!(lines.iter().all(|line| columns(line) == columns(lines[0])), "{markdown}");
    }
}
