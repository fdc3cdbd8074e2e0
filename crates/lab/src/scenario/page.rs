//! The files a scenario leaves: `results.json`, `results.csv` (seconds), `events.csv`, `results.md`, and `report.html`.
//! Promises: the page is made from `results.json` alone, so it can be rewritten later by a newer program.

use super::results::ScenarioResults;
use super::{session, table};
use crate::error::LabError;
use crate::provenance;
use crate::report::{filled, write};
use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../report/timeline.html");
const SCRIPT: &str = include_str!("../report/timeline.js");

/// Whether these results are of a scenario with a timeline.
pub fn is_scenario(results: &serde_json::Value) -> bool {
    matches!(results["scenario"].as_str(), Some("snapshot-impact" | "noisy-neighbour"))
}

/// Writes CSV, Markdown and page of an earlier run again. Returns the place of the page.
pub fn report(dir: &Path, results: serde_json::Value) -> Result<PathBuf, LabError> {
    let unreadable = |why: String| LabError::NoResults { dir: dir.to_path_buf(), why };
    let results: ScenarioResults =
        serde_json::from_value(results).map_err(|why| unreadable(why.to_string()))?;
    if results.format != session::FORMAT {
        return Err(unreadable(format!(
            "its format is {}, this program knows {}",
            results.format,
            session::FORMAT
        )));
    }
    write_derived(dir, &results)
}

pub(super) fn write_all(dir: &Path, results: &ScenarioResults) -> Result<PathBuf, LabError> {
    keep(dir, results)?;
    write_derived(dir, results)
}

/// Writes the results alone, of which [`report`] makes the rest.
pub(super) fn keep(dir: &Path, results: &ScenarioResults) -> Result<(), LabError> {
    let json = serde_json::to_string(results).expect("plain data has a JSON form");
    write(&dir.join("results.json"), &json)
}

fn write_derived(dir: &Path, results: &ScenarioResults) -> Result<PathBuf, LabError> {
    write(&dir.join("results.csv"), &table::csv(results))?;
    write(&dir.join("events.csv"), &table::events_csv(results))?;
    write(&dir.join("results.md"), &table::markdown(results))?;
    let place = dir.join("report.html");
    write(&place, &page(results))?;
    Ok(place)
}

fn page(results: &ScenarioResults) -> String {
    let explained = |columns: &[(&str, &str)]| -> Vec<serde_json::Value> {
        columns.iter().map(|(title, meaning)| serde_json::json!([title, meaning])).collect()
    };
    let data = serde_json::json!({
        "results": results,
        "columns": explained(table::COLUMNS),
        "phaseColumns": explained(table::PHASE_COLUMNS),
        "sentences": table::sentences(results),
        "degraded": table::degraded_explained(),
        "started": provenance::date(results.provenance.started_unix_s),
    });
    filled(PAGE, SCRIPT, &data)
}
