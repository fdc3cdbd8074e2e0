//! `weft drive ...`: the drives of a cluster.

use crate::arguments::{DriveCommand, Place};
use crate::client::Client;
use crate::cluster::document;
use crate::emptying::{self, Begun, Left};
use crate::node::tell;
use crate::output::{self, Table};
use crate::size;
use crate::status::{list, text};
use crate::trouble::Trouble;
use serde_json::{Value, json};
use std::path::PathBuf;
use weft_node::api::{AddDrives, ClusterDriveView};

pub fn run(command: DriveCommand, json: bool) -> Result<(), Trouble> {
    match command {
        DriveCommand::Ls { place } => {
            let drives = Client::find(&place)?.get("/v1/drives")?;
            if json {
                output::json(&drives);
                return Ok(());
            }
            show(&document::<Vec<ClusterDriveView>>(drives)?);
            Ok(())
        }
        DriveCommand::Add { files, size, path, force, place } => {
            add(&place, files.unwrap_or(0), size, path, force, json)
        }
        DriveCommand::Remove { drive, lost: true, lose_data, place, .. } => {
            let with_data = if lose_data { "&lose_data=true" } else { "" };
            let path = format!("/v1/drives/{drive}?lost=true{with_data}");
            let answer = Client::find(&place)?.delete(&path)?;
            tell(json, &answer, || {
                format!("drive {drive} is given up; what it held is copied from the others")
            });
            Ok(())
        }
        DriveCommand::Remove { drive, undo, no_wait, place, .. } => {
            remove(&place, drive, undo, !no_wait, json)
        }
    }
}

fn show(drives: &[ClusterDriveView]) {
    if drives.is_empty() {
        output::line("no drives; add some with `weft drive add --files 1 --size 100G` or `--path DEV`");
        return;
    }
    let mut table = Table::new(&[
        "DRIVE", "NODE", "SHARD", "STATE", "DATA", "LOG", "WEIGHT", "GROUPS", "LEADS", "FORMER", "PLACE",
        "REASON",
    ]);
    for drive in drives {
        let dash = |text: &str| if text.is_empty() { "-".to_string() } else { text.to_string() };
        table.row(vec![
            drive.drive.to_string(),
            drive.node.to_string(),
            drive.shard.to_string(),
            dash(&drive.state),
            size::show(drive.data_bytes),
            size::show(drive.log_bytes),
            format!("{} %", drive.weight),
            drive.groups.to_string(),
            drive.groups_led.to_string(),
            drive.former.to_string(),
            dash(&drive.place),
            dash(&drive.reason),
        ]);
    }
    table.print();
}

fn add(
    place: &Place,
    files: u32,
    size: u64,
    paths: Vec<PathBuf>,
    force: bool,
    json: bool,
) -> Result<(), Trouble> {
    // The node may run in another directory: a path is made absolute here.
    let paths = paths.iter().map(|path| {
        std::path::absolute(path).map_err(|error| {
            Trouble::bad_input(format!("the path `{}` cannot be used: {error}", path.display()))
        })
    });
    let paths = paths.collect::<Result<Vec<_>, _>>()?;
    if let Some(path) = paths.iter().find(|path| path.to_str().is_none()) {
        return Err(Trouble::bad_input(format!(
            "the path `{}` is not text (UTF-8), so it cannot be kept in records; give the drive another name",
            path.display()
        )));
    }
    let wanted = AddDrives { files, size, paths, force };
    let body = serde_json::to_value(&wanted).expect("a request is plain data");
    let answer = Client::find(place)?.post("/v1/drives", &body)?;
    tell(json, &answer, || {
        let numbers: Vec<String> = list(&answer).iter().map(|drive| text(&drive["drive"])).collect();
        let word = if numbers.len() == 1 { "drive" } else { "drives" };
        format!("added {word} {}; data is spread over them in the background", numbers.join(", "))
    });
    Ok(())
}

fn remove(place: &Place, drive: u32, undo: bool, wait: bool, json: bool) -> Result<(), Trouble> {
    let client = Client::find(place)?;
    let (_, found) = left(&client, drive)?;
    if undo && found["state"] == "lost" {
        return Err(Trouble::bad_input(format!(
            "drive {drive} was given up as lost, and that is not taken back: its copies are made again from the others; add it as a new \
             drive (`weft drive add`)"
        )));
    }
    if found["state"] != "lost" {
        let answer = client.post(&format!("/v1/drives/{drive}/drain"), &json!({ "undo": undo }))?;
        if undo {
            tell(json, &answer, || format!("drive {drive} gets its share again"));
            return Ok(());
        }
        if !wait {
            tell(json, &answer, || {
                format!(
                    "drive {drive} is being emptied; `weft drive remove {drive}` forgets it when it is empty"
                )
            });
            return Ok(());
        }
        let undoing = format!("`weft drive remove {drive} --undo` takes it back");
        let (what, mut begun) = (format!("drive {drive}"), Begun::default());
        emptying::wait(&what, &undoing, || {
            let (left, found) = left(&client, drive)?;
            begun.note(&what, found["leaving"] == true, "somebody took it back, or gave it up as lost")?;
            Ok((left, found))
        })?;
    }
    let answer = client.delete(&format!("/v1/drives/{drive}"))?;
    tell(json, &answer, || {
        format!(
            "drive {drive} is empty and no longer in the cluster; its files or device can be taken away when its node has stopped"
        )
    });
    Ok(())
}

/// What is still on the drive, and its document.
fn left(client: &Client, drive: u32) -> Result<(Left, Value), Trouble> {
    let drives = client.get("/v1/drives")?;
    let Some(found) = list(&drives).iter().find(|entry| entry["drive"] == drive) else {
        return Err(Trouble::bad_input(format!("no drive {drive}: `weft drive ls` lists them")));
    };
    let view: ClusterDriveView = document(found.clone())?;
    let groups = view.groups + view.former;
    // Behind its last group it is needed until no log names it.
    Ok((Left { vdisks: 0, groups, done: groups == 0 && !view.needed }, found.clone()))
}
