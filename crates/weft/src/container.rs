//! `weft container ...`: policies that vDisks are kept by.

use crate::arguments::{ColdArgs, ContainerCommand, ContainerLimitArgs};
use crate::client::{Client, path_part};
use crate::output::{self, Table};
use crate::status::{bytes, list, text};
use crate::trouble::Trouble;
use crate::usage;
use crate::vdisk::{limited, packed, say_packing, shared, tell, with_usage};
use serde_json::{Value, json};

pub fn run(command: ContainerCommand, json: bool) -> Result<(), Trouble> {
    match command {
        ContainerCommand::Create { name, compression, unit, cold, dedup, rf, limits, place } => {
            let mut body = said(compression, unit, &cold, dedup, rf, &limits);
            body["name"] = json!(name);
            let made = Client::find(&place)?.post("/v1/containers", &body)?;
            tell(json, &made, || format!("created {}", line(&made)));
        }
        ContainerCommand::Ls { place } => {
            let containers = Client::find(&place)?.get("/v1/containers")?;
            if json {
                output::json(&containers);
            } else {
                table(list(&containers)).print();
            }
        }
        ContainerCommand::Show { name, place } => {
            let client = Client::find(&place)?;
            let path = format!("/v1/containers/{}", path_part(&name));
            let container = client.get(&path)?;
            let usage = client.get(&format!("{path}/usage"))?;
            if json {
                output::json(&with_usage(container, usage)?);
            } else {
                show(&container, &usage);
            }
        }
        ContainerCommand::Set { name, compression, unit, cold, dedup, rf, limits, place } => {
            let body = said(compression, unit, &cold, dedup, rf, &limits);
            if body == json!({}) {
                return Err(Trouble::bad_input(
                    "nothing to set: write --compression METHOD, --unit SIZE, --cold-after TIME, --dedup on|off, --rf R, --iops-limit N or --bw-limit SIZE",
                ));
            }
            let path = format!("/v1/containers/{}/set", path_part(&name));
            let changed = Client::find(&place)?.post(&path, &body)?;
            tell(json, &changed, || line(&changed));
        }
        ContainerCommand::Rm { name, place } => {
            let answer = Client::find(&place)?.delete(&format!("/v1/containers/{}", path_part(&name)))?;
            tell(json, &answer, || format!("removed {name}"));
        }
    }
    Ok(())
}

fn said(
    compression: Option<String>,
    unit: Option<u64>,
    cold: &ColdArgs,
    dedup: Option<String>,
    rf: Option<u32>,
    limits: &ContainerLimitArgs,
) -> Value {
    let mut body = json!({});
    say_packing(compression.as_deref(), unit, cold, &mut body);
    if let Some(dedup) = dedup {
        body["dedup"] = json!(dedup == "on");
    }
    if let Some(factor) = rf {
        body["factor"] = json!(factor);
    }
    if let Some(iops) = limits.iops_limit {
        body["iops_limit"] = json!(iops);
    }
    if let Some(bytes) = limits.bw_limit {
        body["bw_limit"] = json!(bytes);
    }
    body
}

/// The policy, in a line.
fn line(container: &Value) -> String {
    format!(
        "{}: compression {}, dedup {}, copies {}, limits of each {}",
        text(&container["name"]),
        packed(container),
        shared(container),
        copies(container),
        limited(container)
    )
}

fn copies(container: &Value) -> String {
    container["factor"].as_u64().map_or_else(|| "as the node gave".to_string(), |factor| factor.to_string())
}

fn table(containers: &[Value]) -> Table {
    let mut table = Table::new(&["CONTAINER", "VDISKS", "SIZE", "COMPRESSION", "COPIES", "LIMITS"]);
    for container in containers {
        table.row(vec![
            text(&container["name"]),
            text(&container["vdisks"]),
            bytes(&container["vdisk_bytes"]),
            packed(container),
            copies(container),
            limited(container),
        ]);
    }
    table
}

fn show(container: &Value, usage: &Value) {
    let name = text(&container["name"]);
    let mut table = Table::new(&["name", &name]);
    table.row(vec!["compression".into(), packed(container)]);
    table.row(vec!["dedup".into(), shared(container).into()]);
    table.row(vec!["copies".into(), copies(container)]);
    table.row(vec!["limits".into(), format!("{} for each vDisk", limited(container))]);
    let (all, told) = (&usage["vdisks"], &usage["vdisks_told"]);
    let count =
        if all == told { text(all) } else { format!("{}, of which {} answered", text(all), text(told)) };
    table.row(vec!["vdisks".into(), count]);
    usage::rows(&mut table, usage);
    table.print();
}
