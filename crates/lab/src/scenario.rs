//! Scenarios that disturb a platform while it serves a load of a fixed rate, and tell how little or how much the load felt.
//!
//! A run goes through the files in this order: `settings` (what was asked for), `session` (setup, timeline, teardown of each
//! target in turn) with `crate::platform` (the volumes and their snapshots) and `load` (the fio jobs), `recorded` (every I/O
//! that fio logged, by second), `verdict` (the formulas), `results` (what is kept), `table` and `page` (how it is shown).
//!
//! Promises: a load of a fixed rate goes on whatever happens, so a disturbance shows as missing I/Os and longer waits and not
//! as a load that politely gives way; every I/O's time and latency is kept; every formula is in `verdict`.

mod load;
mod page;
mod recorded;
mod results;
mod session;
mod settings;
mod table;
mod verdict;

pub use page::{is_scenario, report};
pub use results::{Event, ScenarioResults, Second, TargetRun, Window};
pub use session::run;
pub use settings::{Disturbance, ScenarioSettings};
pub use verdict::Verdict;
