//! The lab: measures any block target with a real load (fio) and tells what the figures are worth.
//!
//! A run goes through the files in this order: `settings` (what was asked for), `target` and `label` (what is measured,
//! and that nothing is destroyed by mistake), `plan` (which rows in which order), `profile` (the fio job files),
//! `fio` (one run of it) with `fio_output` (what it said), `measurement` (figures and statistics), `caution` (when not to
//! trust them), `table` and `report` (how they are shown). Scenarios that disturb a platform while it serves a load have a way
//! of their own: `scenario`.
//!
//! Promises: every raw sample is kept under the output directory; nothing it started runs on after it returns;
//! a target that holds somebody's data is refused.
//! Leaves to others: finding the export of a vDisk by name, and the command line (`crates/weft`).
//!
//! ```no_run
//! let target = weft_lab::Target::parse("file:/var/tmp/raw.img", &|_| None).expect("a file target");
//! let settings = weft_lab::RunSettings { targets: vec![target], ..Default::default() };
//! let outcome = weft_lab::run(settings).expect("fio is installed");
//! println!("{}", outcome.table);
//! ```

mod caution;
mod error;
mod fio;
mod fio_output;
pub mod interrupt;
mod label;
mod measurement;
mod nbd_client;
mod plan;
mod platform;
mod process;
mod profile;
mod progress;
mod provenance;
mod qmp;
mod report;
mod rest;
mod run;
mod scenario;
mod settings;
mod statistics;
mod table;
mod target;

pub use error::LabError;
pub use measurement::{Direction, Measurement, Results, RunFigures, Sample, Summary};
pub use platform::{NodeControl, PlatformKind, PlatformTarget, Volume};
pub use profile::{PROFILES, Profile};
pub use provenance::date;
pub use report::report;
pub use run::{Outcome, run};
pub use scenario::{
    Disturbance, Event, ScenarioResults, ScenarioSettings, Second, TargetRun, Verdict, Window,
    run as run_scenario,
};
pub use settings::{Prefill, RowSet, RunSettings};
pub use target::{Durability, Kind, Target, WeftExport};
