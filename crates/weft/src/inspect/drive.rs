//! `weft inspect drive`: superblock, division and use.

use super::{Place, Shown, problem_lines};
use crate::check::contents::Contents;
use crate::check::findings::Findings;
use crate::output::Table;
use crate::size;
use crate::trouble::told;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use weft_engine::FamilyId;
use weft_engine::buffer::BLOCK;
use weft_node::offline::Offline;

#[derive(clap::Args, Debug)]
pub struct DriveArgs {
    /// Number of the drive [default: all]
    drive: Option<u32>,
    #[command(flatten)]
    place: Place,
}

pub fn show(arguments: &DriveArgs) -> anyhow::Result<Shown> {
    let offline = arguments.place.open()?;
    let mut values: Vec<Value> = Vec::new();
    let mut text = String::new();
    let mut wanted: Vec<u32> = offline.drives.iter().map(|drive| drive.drive.0).collect();
    if let Some(number) = arguments.drive {
        wanted = vec![number];
    }
    for number in wanted {
        match super::read_drive(&offline, number) {
            Ok((contents, findings)) => values.push(one(&offline, &contents, &findings, &mut text)),
            // Asked for by number, it is an error; in a list of all, a line.
            Err(error) if arguments.drive.is_some() => return Err(error),
            Err(error) => {
                writeln!(text, "drive {number}: {}\n", told(&error))?;
                values.push(json!({ "drive": number, "error": told(&error) }));
            }
        }
    }
    Ok(Shown { text, value: Value::Array(values) })
}

fn one(offline: &Offline, contents: &Contents, findings: &Findings, text: &mut String) -> Value {
    let superblock = &contents.superblock;
    let layout = &contents.layout;
    let data = (layout.end - layout.units) * BLOCK as u64;
    let (shared, held) = contents.shared_bytes();
    let used = contents.egroup_bytes() + held;
    let mut families: BTreeMap<FamilyId, (u64, u64, u64)> = BTreeMap::new();
    for ((family, _), page) in &contents.egroups {
        let entry = families.entry(*family).or_default();
        entry.0 += 1;
        entry.1 += page.blocks() * BLOCK as u64;
    }
    for (family, held) in &contents.held {
        families.entry(*family).or_default().2 += held.records.len() as u64;
    }
    let mut lines = vec![
        match offline.node_of(contents.drive) {
            Some(node) => format!("drive {} of node {node}: {}", contents.drive, contents.place),
            None => format!("drive {}: {}", contents.drive, contents.place),
        },
        format!("  incarnation   {:016x}, formatted {} times", superblock.incarnation, superblock.formatted),
        format!("  log ring      {}", size::show(superblock.geometry.log)),
        format!("  data area     {}", size::show(superblock.geometry.data)),
        format!("  egroup table  {} entries from byte {}", layout.entries, layout.table * BLOCK as u64),
        format!(
            "  units         from byte {}, {} of {} used",
            layout.units * BLOCK as u64,
            size::show(used),
            size::show(data)
        ),
        format!(
            "  shared        {} that egroups need not have of their own; {} is there only because of that",
            size::show(shared),
            size::show(held)
        ),
        format!(
            "  log frames    {} count, the newest is {}; {} found beside them",
            contents.chain.kept.len(),
            contents.chain.last,
            contents.frames.len() - contents.chain.kept.len()
        ),
    ];
    lines.push(String::new());
    text.push_str(&lines.join("\n"));
    let mut table = Table::new(&["VDISK", "FAMILY", "EGROUPS", "BYTES", "RECORDS"]);
    let name = |family: &FamilyId| {
        let config = offline.families.iter().find(|config| config.id() == *family);
        config.map_or("(unknown)".to_string(), |config| config.name.clone())
    };
    for (family, (egroups, bytes, records)) in &families {
        table.row(vec![
            name(family),
            family.to_string(),
            egroups.to_string(),
            size::show(*bytes),
            records.to_string(),
        ]);
    }
    if !families.is_empty() {
        text.push_str(&table.render());
    }
    text.push_str(&problem_lines(findings));
    text.push('\n');
    let families: Vec<Value> = families
        .iter()
        .map(|(family, (egroups, bytes, records))| {
            json!({ "vdisk": name(family), "family": family.0, "egroups": egroups, "bytes": bytes, "records": records })
        })
        .collect();
    json!({
        "drive": contents.drive.0,
        "node": offline.node_of(contents.drive),
        "place": contents.place,
        "incarnation": format!("{:016x}", superblock.incarnation),
        "formatted": superblock.formatted,
        "log_bytes": superblock.geometry.log,
        "data_bytes": superblock.geometry.data,
        "table_entries": layout.entries,
        "table_offset": layout.table * BLOCK as u64,
        "units_offset": layout.units * BLOCK as u64,
        "egroups": contents.egroups.len(),
        "egroup_bytes": used,
        "shared_bytes": shared,
        "held_bytes": held,
        "free_bytes": data - used.min(data),
        "log_frames": contents.chain.kept.len(),
        "log_newest_frame": contents.chain.last,
        "log_missing_frames": contents.chain.missing.len(),
        "families": families,
        "problems": findings.problems,
    })
}
