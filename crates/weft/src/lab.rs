//! `weft lab ...`: the command line of the lab. Finds the exports of vDisks; everything else is the crate `lab`.

use crate::arguments::{LabCommand, LabRunArguments, Place};
use crate::client::{Client, path_part};
use crate::output;
use crate::status::list;
use crate::trouble::Trouble;
use std::cell::RefCell;
use std::process::ExitCode;
use weft_lab::{LabError, PROFILES, RunSettings, Target, WeftExport};

pub fn run(command: LabCommand, json: bool) -> Result<ExitCode, Trouble> {
    match command {
        LabCommand::Run(arguments) => measure(arguments, json),
        LabCommand::Report { dir } => {
            let report = weft_lab::report(&dir).map_err(|error| told(&error))?;
            if json {
                output::json(&serde_json::json!({ "report": report }));
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
        let all =
            PROFILES.iter().map(|profile| serde_json::json!({ "name": profile.name, "job": profile.text }));
        output::json(&all.collect());
        return;
    }
    for profile in PROFILES {
        output::line(&format!("# {}\n{}", profile.name, profile.text));
    }
}

fn measure(arguments: LabRunArguments, json: bool) -> Result<ExitCode, Trouble> {
    if arguments.scenario != "four-corners" {
        return Err(Trouble::bad_input(format!(
            "no scenario `{}`: the one there is, is four-corners",
            arguments.scenario
        )));
    }
    let targets = targets(&arguments)?;
    let mut settings = RunSettings {
        rows: arguments.rows.into(),
        targets,
        out: arguments.out,
        baseline: arguments.baseline,
        prefill: arguments.prefill.into(),
        destroy: arguments.destroy,
        ..RunSettings::default()
    };
    // What was not said keeps the lab's own default.
    let keep = |place: &mut u64, said: Option<u64>| *place = said.unwrap_or(*place);
    keep(&mut settings.size, arguments.size);
    keep(&mut settings.runtime_s, arguments.runtime.map(u64::from));
    keep(&mut settings.warm_up_s, arguments.warm_up.map(u64::from));
    keep(&mut settings.idle_s, arguments.idle.map(u64::from));
    keep(&mut settings.seed, arguments.seed);
    settings.depth = arguments.depth.unwrap_or(settings.depth);
    settings.repeats = arguments.repeats.unwrap_or(settings.repeats);
    let outcome = weft_lab::run(settings).map_err(|error| told(&error))?;
    if json {
        output::json(&serde_json::to_value(&outcome.results).expect("results are plain data"));
    } else {
        output::write(outcome.table.as_bytes());
        output::line(&format!("report: {}", outcome.report.display()));
    }
    Ok(ExitCode::from(u8::from(outcome.failed || outcome.interrupted)))
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
    let writable = list(&vdisk["exports"]).iter().find(|export| export["read_only"] != true);
    let Some(uri) = writable.and_then(|export| export["uri"].as_str()) else {
        return Err(Trouble::bad_input(format!(
            "vDisk `{name}` has no writable export to measure: `weft vdisk export {name} --nbd unix:PATH` makes one"
        )));
    };
    let pid = client.get("/v1/status")?["pid"].as_u64();
    let server_pid = pid.and_then(|pid| u32::try_from(pid).ok());
    Ok(WeftExport { uri: uri.to_string(), server_pid })
}

fn told(error: &LabError) -> Trouble {
    if error.is_bad_input() {
        Trouble::bad_input(error.to_string())
    } else {
        Trouble::failed(error.to_string())
    }
}
