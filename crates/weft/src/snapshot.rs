//! `weft snapshot ...`: each verb is one call of the node's API.

use crate::arguments::{CloneArguments, ScheduleCommand, SnapshotCommand};
use crate::client::{Client, path_part};
use crate::output::{self, Table};
use crate::status::{bytes, device, list, text};
use crate::trouble::Trouble;
use crate::vdisk::tell;
use serde_json::{Value, json};

pub fn run(command: SnapshotCommand, json: bool) -> Result<(), Trouble> {
    match command {
        SnapshotCommand::Create { vdisk, name, place } => {
            let body = wanted(&vdisk, name.as_deref())?;
            let made = Client::find(&place)?.post("/v1/snapshots", &body)?;
            tell(json, &made, || format!("took {}, {}", text(&made["name"]), bytes(&made["size"])));
        }
        SnapshotCommand::Ls { vdisk, place } => {
            let query = vdisk.map_or_else(String::new, |vdisk| format!("?vdisk={}", path_part(&vdisk)));
            let snapshots = Client::find(&place)?.get(&format!("/v1/snapshots{query}"))?;
            if json {
                output::json(&snapshots);
            } else if list(&snapshots).is_empty() {
                output::line("no snapshots; take one with `weft snapshot create VDISK`");
            } else {
                table(list(&snapshots)).print();
            }
        }
        SnapshotCommand::Show { name, place } => {
            let snapshot = Client::find(&place)?.get(&path(&name)?)?;
            if json {
                output::json(&snapshot);
            } else {
                show(&snapshot);
            }
        }
        SnapshotCommand::Rm { names, place } => {
            let client = Client::find(&place)?;
            // All names are looked at before the first one goes.
            let paths = names.iter().map(|name| path(name)).collect::<Result<Vec<_>, _>>()?;
            let (mut answers, mut lines) = (Vec::new(), String::new());
            for (name, path) in names.iter().zip(paths) {
                let answer = client.delete(&path).map_err(|trouble| {
                    // Those before it are gone, whatever becomes of this one.
                    match &names[..answers.len()] {
                        [] => trouble,
                        gone => trouble.and(format!("removed before that: {}", gone.join(", "))),
                    }
                })?;
                match answer["note"].as_str() {
                    None | Some("") => lines += &format!("removed {name}\n"),
                    Some(note) => lines += &format!("{note}\n"),
                }
                answers.push(answer);
            }
            // When all is done: a reader that goes away ends the command.
            if json {
                output::json(&Value::Array(answers));
            } else {
                output::write(lines.as_bytes());
            }
        }
        SnapshotCommand::Rollback { name, discard_newer, force, place } => {
            path(&name)?;
            let body = json!({ "snapshot": name, "discard_newer": discard_newer, "force": force });
            let vdisk = Client::find(&place)?.post("/v1/rollbacks", &body)?;
            tell(json, &vdisk, || match vdisk["note"].as_str() {
                None | Some("") => {
                    format!("{} is what {name} is, {}", text(&vdisk["name"]), bytes(&vdisk["size"]))
                }
                Some(note) => note.to_string(),
            });
        }
        SnapshotCommand::Diff { from, to, place } => diff(&Client::find(&place)?, &from, &to, json)?,
        SnapshotCommand::Schedule(command) => schedule(command, json)?,
    }
    Ok(())
}

pub fn clone(arguments: &CloneArguments, json: bool) -> Result<(), Trouble> {
    path(&arguments.snapshot)?;
    let names: Vec<String> = match arguments.count {
        None => vec![arguments.name.clone()],
        Some(count) => (1..=count).map(|number| format!("{}-{number}", arguments.name)).collect(),
    };
    let body = json!({ "snapshot": arguments.snapshot, "names": names });
    let made = Client::find(&arguments.place)?.post("/v1/clones", &body)?;
    if json {
        output::json(&made);
        return Ok(());
    }
    let clones = list(&made);
    match clones {
        [one] => output::line(&format!("made {}, {}", text(&one["name"]), bytes(&one["size"]))),
        [first, .., last] => output::line(&format!(
            "made {} vDisks, {} to {}, {} each",
            clones.len(),
            text(&first["name"]),
            text(&last["name"]),
            bytes(&first["size"])
        )),
        [] => {}
    }
    for clone in clones.iter().filter(|clone| clone["note"].as_str().is_some_and(|note| !note.is_empty())) {
        output::line(&format!("{}: {}", text(&clone["name"]), text(&clone["note"])));
    }
    Ok(())
}

/// `VDISK NAME`, `VDISK@NAME` or `VDISK` alone.
fn wanted(vdisk: &str, name: Option<&str>) -> Result<Value, Trouble> {
    match (vdisk.split_once('@'), name) {
        (Some((vdisk, name)), None) => Ok(json!({ "vdisk": vdisk, "name": name })),
        (Some(_), Some(name)) => Err(Trouble::bad_input(format!(
            "`{vdisk}` and `{name}` both name the snapshot; give VDISK NAME or VDISK@NAME"
        ))),
        (None, Some(name)) => Ok(json!({ "vdisk": vdisk, "name": name })),
        (None, None) => Ok(json!({ "vdisk": vdisk })),
    }
}

fn path(name: &str) -> Result<String, Trouble> {
    match name.split_once('@') {
        Some((vdisk, snapshot)) if !vdisk.is_empty() && !snapshot.is_empty() => {
            Ok(format!("/v1/snapshots/{}", path_part(name)))
        }
        _ => Err(Trouble::bad_input(format!(
            "`{name}` names no snapshot: write VDISK@SNAPSHOT; `weft snapshot ls` shows what there is"
        ))),
    }
}

fn table(snapshots: &[Value]) -> Table {
    let mut table = Table::new(&["SNAPSHOT", "SIZE", "STATE", "TAKEN", "ORIGIN", "EXPORTS", "DEVICE"]);
    for snapshot in snapshots {
        let exports: Vec<String> =
            list(&snapshot["exports"]).iter().map(|export| text(&export["address"])).collect();
        table.row(vec![
            text(&snapshot["name"]),
            bytes(&snapshot["size"]),
            text(&snapshot["state"]),
            date(&snapshot["created"]),
            text(&snapshot["origin"]),
            if exports.is_empty() { "-".to_string() } else { exports.join(",") },
            device(&snapshot["attached"]),
        ]);
    }
    table
}

fn show(snapshot: &Value) {
    let name = text(&snapshot["name"]);
    let mut table = Table::new(&["name", &name]);
    let size = format!("{} ({} bytes)", bytes(&snapshot["size"]), text(&snapshot["size"]));
    table.row(vec!["size".into(), size]);
    table.row(vec!["taken".into(), date(&snapshot["created"])]);
    for key in ["state", "trouble", "origin", "generation", "id"] {
        table.row(vec![key.into(), text(&snapshot[key])]);
    }
    table.row(vec!["device".into(), device(&snapshot["attached"])]);
    for export in list(&snapshot["exports"]) {
        table.row(vec!["export".into(), text(&export["uri"])]);
        if export["trouble"].as_str().is_some_and(|trouble| !trouble.is_empty()) {
            table.row(vec!["".into(), text(&export["trouble"])]);
        }
    }
    table.print();
}

fn date(seconds: &Value) -> String {
    seconds.as_u64().map_or_else(|| "-".to_string(), weft_lab::date)
}

/// All parts of the answer, one after the other.
fn diff(client: &Client, from: &str, to: &str, json: bool) -> Result<(), Trouble> {
    let (mut ranges, mut offset) = (Vec::new(), Some(0));
    let mut size = Value::Null;
    while let Some(at) = offset {
        let query = format!("from={}&to={}&offset={at}", path_part(from), path_part(to));
        let part = client.get(&format!("/v1/diff?{query}"))?;
        ranges.extend(list(&part["ranges"]).iter().cloned());
        size = part["size"].clone();
        offset = part["next"].as_u64();
    }
    let changed: u64 = ranges.iter().filter_map(|range| range["len"].as_u64()).sum();
    if json {
        let all = json!({ "from": from, "to": to, "size": size, "changed": changed, "ranges": ranges });
        output::json(&all);
        return Ok(());
    }
    let mut table = Table::new(&["OFFSET", "BYTES"]);
    for range in &ranges {
        table.row(vec![text(&range["offset"]), text(&range["len"])]);
    }
    if !ranges.is_empty() {
        table.print();
    }
    output::line(&format!("{} of {} may differ", crate::size::show(changed), bytes(&size)));
    Ok(())
}

fn schedule(command: ScheduleCommand, json: bool) -> Result<(), Trouble> {
    match command {
        ScheduleCommand::Set { vdisk, every, keep, place } => {
            let body = json!({ "vdisk": vdisk, "every_seconds": every, "keep": keep });
            let set = Client::find(&place)?.post("/v1/schedules", &body)?;
            tell(json, &set, || {
                format!(
                    "{vdisk}: a snapshot every {every} s, the newest {keep} stay; the next at {}",
                    date(&set["next"])
                )
            });
        }
        ScheduleCommand::Ls { place } => {
            let schedules = Client::find(&place)?.get("/v1/schedules")?;
            if json {
                output::json(&schedules);
            } else if list(&schedules).is_empty() {
                output::line(
                    "no schedules; set one with `weft snapshot schedule set VDISK --every 10m --keep 7`",
                );
            } else {
                let mut table = Table::new(&["VDISK", "EVERY", "KEEP", "SNAPSHOTS", "NEXT"]);
                for schedule in list(&schedules) {
                    table.row(vec![
                        text(&schedule["vdisk"]),
                        format!("{} s", text(&schedule["every_seconds"])),
                        text(&schedule["keep"]),
                        text(&schedule["snapshots"]),
                        date(&schedule["next"]),
                    ]);
                }
                table.print();
                for schedule in list(&schedules) {
                    if let Some(trouble) = schedule["trouble"].as_str().filter(|trouble| !trouble.is_empty())
                    {
                        output::line(&format!(
                            "{}: the last one was not taken: {trouble}",
                            text(&schedule["vdisk"])
                        ));
                    }
                }
            }
        }
        ScheduleCommand::Rm { vdisk, place } => {
            let answer = Client::find(&place)?.delete(&format!("/v1/schedules/{}", path_part(&vdisk)))?;
            tell(json, &answer, || {
                format!("no more snapshots of {vdisk} by themselves; those there are stay")
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_named_in_one_word_or_two() {
        assert_eq!(wanted("v", None).expect("it is fine"), json!({ "vdisk": "v" }));
        let named = json!({ "vdisk": "v", "name": "s" });
        assert_eq!(wanted("v", Some("s")).expect("it is fine"), named);
        assert_eq!(wanted("v@s", None).expect("it is fine"), named);
        assert!(wanted("v@s", Some("t")).is_err());
        assert_eq!(path("v@s").expect("it is fine"), "/v1/snapshots/v%40s");
        for bad in ["v", "@s", "v@", ""] {
            assert!(matches!(path(bad), Err(Trouble::BadInput(_))), "{bad:?}");
        }
    }
}
