//! `weft lab ...`: the command line of the lab. Finds the exports of vDisks and speaks to nodes for it; everything else is the
//! crate `lab`.

mod control;

use crate::arguments::{Fill, LabCommand, LabRunArguments, Place, Rows, Scenario};
use crate::client::{Client, path_part};
use crate::output;
use crate::status::list;
use crate::trouble::Trouble;
use serde::Serialize;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::process::ExitCode;
use std::sync::Arc;
use weft_lab::{
    Disturbance, LabError, NodeControl, Outcome, PROFILES, PlatformTarget, RowSet, RunSettings,
    ScenarioSettings, Target, WeftExport,
};

pub fn run(command: LabCommand, json: bool) -> Result<ExitCode, Trouble> {
    match command {
        LabCommand::Run(arguments) => measure(*arguments, json),
        LabCommand::Report { dir } => {
            let report = weft_lab::report(&dir).map_err(|error| told(&error))?;
            if json {
                output::json(&json!({ "report": report.display().to_string() }));
            } else {
                output::line(&format!("report: {}", report.display()));
            }
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Profiles => {
            profiles(json);
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn profiles(json: bool) {
    if json {
        let all = PROFILES.iter().map(|profile| json!({ "name": profile.name, "job": profile.text }));
        output::json(&all.collect());
        return;
    }
    for profile in PROFILES {
        output::line(&format!("# {}\n{}", profile.name, profile.text));
    }
}

fn measure(arguments: LabRunArguments, json: bool) -> Result<ExitCode, Trouble> {
    only_where_it_means_something(&arguments)?;
    match arguments.scenario {
        Scenario::FourCorners | Scenario::Compression => rows(arguments, json),
        Scenario::SnapshotImpact | Scenario::NoisyNeighbour => disturb(arguments, json),
    }
}

/// An option that another scenario has is a mistake better told than passed over.
fn only_where_it_means_something(arguments: &LabRunArguments) -> Result<(), Trouble> {
    use Scenario::*;
    let options: &[(&str, bool, &[Scenario])] = &[
        ("--snapshots", arguments.snapshots.is_some(), &[SnapshotImpact]),
        ("--every", arguments.every.is_some(), &[SnapshotImpact]),
        ("--lead", arguments.lead.is_some(), &[SnapshotImpact]),
        ("--rate", arguments.rate.is_some(), &[SnapshotImpact, NoisyNeighbour]),
        ("--compressible", arguments.compressible.is_some(), &[Compression]),
        ("--destroy", arguments.destroy, &[FourCorners, Compression]),
        ("--baseline", arguments.baseline.is_some(), &[FourCorners, Compression]),
        ("--rows", arguments.rows.is_some(), &[FourCorners]),
        ("--prefill", arguments.prefill.is_some(), &[FourCorners, Compression]),
        ("--warm-up", arguments.warm_up.is_some(), &[FourCorners, Compression]),
        ("--runtime", arguments.runtime.is_some(), &[FourCorners, Compression, NoisyNeighbour]),
        ("--depth", arguments.depth.is_some(), &[FourCorners, Compression, NoisyNeighbour]),
    ];
    if arguments.rows == Some(Rows::Table) && arguments.depth.is_some() {
        return Err(Trouble::bad_input(
            "--depth means nothing to the rows of the table, which have their own: leave it out, or choose --rows corners"
                .to_string(),
        ));
    }
    for (option, given, scenarios) in options {
        if *given && !scenarios.contains(&arguments.scenario) {
            return Err(Trouble::bad_input(format!(
                "{option} means nothing to this scenario: leave it out, or see `weft lab run --help`"
            )));
        }
    }
    Ok(())
}

/// A scenario of rows: each a load as fast as the target goes.
fn rows(arguments: LabRunArguments, json: bool) -> Result<ExitCode, Trouble> {
    let targets = targets(&arguments)?;
    let rows = match arguments.scenario {
        Scenario::Compression => RowSet::Compression { percent: arguments.compressible.unwrap_or(75) },
        _ => arguments.rows.unwrap_or(Rows::Corners).into(),
    };
    let mut settings = RunSettings {
        rows,
        targets,
        out: arguments.out,
        baseline: arguments.baseline,
        prefill: arguments.prefill.unwrap_or(Fill::Always).into(),
        destroy: arguments.destroy,
        ..RunSettings::default()
    };
    // What was not said keeps the lab's own default.
    let keep = |place: &mut u64, said: Option<u64>| *place = said.unwrap_or(*place);
    keep(&mut settings.size, arguments.size);
    keep(&mut settings.runtime_s, arguments.runtime.map(u64::from));
    keep(&mut settings.warm_up_s, arguments.warm_up.map(u64::from));
    settings.idle_s = arguments.idle.map(u64::from);
    keep(&mut settings.seed, arguments.seed);
    settings.depth = arguments.depth.unwrap_or(settings.depth);
    settings.repeats = arguments.repeats.unwrap_or(settings.repeats);
    weft_lab::run(settings).map_err(|error| told(&error)).map(|outcome| tell(&outcome, json))
}

/// A scenario that disturbs a load of a fixed rate.
fn disturb(arguments: LabRunArguments, json: bool) -> Result<ExitCode, Trouble> {
    let mut settings = ScenarioSettings { out: arguments.out.clone(), ..ScenarioSettings::default() };
    for text in &arguments.target {
        settings.targets.push(platform(&arguments.place, text)?);
    }
    settings.disturbance = match arguments.scenario {
        Scenario::NoisyNeighbour => Disturbance::Neighbour {
            runtime_s: arguments.runtime.map_or(180, u64::from),
            depth: arguments.depth.unwrap_or(16),
        },
        _ => Disturbance::Snapshots {
            count: arguments.snapshots.unwrap_or(30),
            every_s: arguments.every.unwrap_or(10),
        },
    };
    settings.size = arguments.size.unwrap_or(settings.size);
    settings.rate_iops = arguments.rate.unwrap_or(settings.rate_iops);
    settings.lead_s = arguments.lead.unwrap_or(settings.lead_s);
    settings.idle_s = arguments.idle.map_or(settings.idle_s, u64::from);
    settings.repeats = arguments.repeats.unwrap_or(settings.repeats);
    settings.seed = arguments.seed.unwrap_or(settings.seed);
    weft_lab::run_scenario(settings).map_err(|error| told(&error)).map(|outcome| tell(&outcome, json))
}

fn tell<R: Serialize>(outcome: &Outcome<R>, json: bool) -> ExitCode {
    let due = u8::from(outcome.failed || outcome.interrupted);
    let text = if json {
        let results = serde_json::to_value(&outcome.results).expect("results are plain data");
        output::json_text(&results) + "\n"
    } else {
        format!("{}report: {}\n", outcome.table, outcome.report.display())
    };
    output::write_due(text.as_bytes(), due);
    ExitCode::from(due)
}

fn platform(place: &Place, text: &str) -> Result<PlatformTarget, Trouble> {
    // As in `targets`: why there is no node is remembered here.
    let why_not = RefCell::new(None);
    let node = || -> Option<Arc<dyn NodeControl>> {
        match Client::find(place).and_then(|client| server_pid(&client).map(|pid| (client, pid))) {
            Ok((client, pid)) => Some(Arc::new(control::Node::new(client, pid))),
            Err(trouble) => {
                *why_not.borrow_mut() = Some(trouble);
                None
            }
        }
    };
    let parsed = PlatformTarget::parse(text, &node);
    parsed.map_err(|error| why_not.into_inner().unwrap_or_else(|| told(&error)))
}

/// The node's process, if it is one of this machine: by an address it may run elsewhere, or in a container, where this number
/// is that of something else.
fn server_pid(client: &Client) -> Result<Option<u32>, Trouble> {
    let pid = client.get("/v1/status")?["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let is_node = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("weft"))
    };
    Ok(pid.filter(is_node))
}

fn targets(arguments: &LabRunArguments) -> Result<Vec<Target>, Trouble> {
    let mut targets = Vec::new();
    for text in &arguments.target {
        // The lab asks for a vDisk by name and takes yes or no; why not is remembered here.
        let why_not = RefCell::new(None);
        let resolve = |name: &str| match export_of(&arguments.place, name) {
            Ok(export) => Some(export),
            Err(trouble) => {
                *why_not.borrow_mut() = Some(trouble);
                None
            }
        };
        let parsed = Target::parse(text, &resolve);
        match (parsed, why_not.into_inner()) {
            (Ok(target), _) => targets.push(target),
            (Err(_), Some(trouble)) => return Err(trouble),
            (Err(error), None) => return Err(told(&error)),
        }
    }
    Ok(targets)
}

fn export_of(place: &Place, name: &str) -> Result<WeftExport, Trouble> {
    let client = Client::find(place)?;
    let vdisk = client.get(&format!("/v1/vdisks/{}", path_part(name)))?;
    let exports = list(&vdisk["exports"]);
    let in_cluster = exports.iter().any(|export| export["node"].is_u64());
    let asked = if in_cluster { client.get("/v1/cluster")?["this_node"].as_u64() } else { None };
    let Some((uri, is_of_asked)) = choose_export(exports, asked) else {
        return Err(Trouble::bad_input(format!(
            "vDisk `{name}` has no writable export to measure: `weft vdisk export {name} --nbd unix:PATH` makes one"
        )));
    };
    // The process of the node that was asked is not the one that does the work for another's export.
    let server_pid = if is_of_asked { server_pid(&client)? } else { None };
    Ok(WeftExport { uri, server_pid, in_cluster })
}

/// The address of a writable export, best of the node that was asked (None: it is alone); and whether it is one of that node.
fn choose_export(exports: &[Value], asked: Option<u64>) -> Option<(String, bool)> {
    let writable = || exports.iter().filter(|export| export["read_only"] != true);
    let is_of_asked = |export: &&Value| export["node"].as_u64() == asked;
    let export = writable().find(is_of_asked).or_else(|| writable().next())?;
    Some((export["uri"].as_str()?.to_string(), is_of_asked(&export)))
}

fn told(error: &LabError) -> Trouble {
    if error.is_bad_input() {
        Trouble::bad_input(error.to_string())
    } else {
        Trouble::failed(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_export_of_the_node_that_was_asked_is_measured_if_it_has_one() {
        let export = |uri: &str, node: u64, read_only: bool| json!({ "uri": uri, "node": node, "read_only": read_only });
        let exports = [export("r", 1, true), export("zero", 0, false), export("one", 1, false)];
        assert_eq!(choose_export(&exports, Some(1)), Some(("one".to_string(), true)));
        assert_eq!(
            choose_export(&exports, Some(2)),
            Some(("zero".to_string(), false)),
            "its process does nothing for it"
        );
        assert_eq!(choose_export(&exports[..1], Some(1)), None);
        let alone = [json!({ "uri": "u", "read_only": false })];
        assert_eq!(choose_export(&alone, None), Some(("u".to_string(), true)));
    }
}
