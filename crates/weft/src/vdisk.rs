//! `weft vdisk ...`: each verb is one call of the node's API.

use crate::arguments::{ColdArgs, DedupArgs, LimitArgs, VdiskCommand};
use crate::cache;
use crate::client::{Client, path_part};
use crate::duration;
use crate::node;
use crate::output::{self, Table};
use crate::size;
use crate::status::{bytes, device, list, text};
use crate::trouble::Trouble;
use crate::usage;
use crate::vdisk_stats;
use serde_json::{Value, json};
use std::path::Path;

pub fn run(command: VdiskCommand, json: bool) -> Result<(), Trouble> {
    match command {
        VdiskCommand::Create { name, size, rf, container, compression, dedup, limits, place } => {
            let mut body = json!({ "name": name, "size": size });
            if let Some(factor) = rf {
                body["factor"] = json!(factor);
            }
            if let Some(container) = container {
                body["container"] = json!(container);
            }
            say_packing(compression.compression.as_deref(), compression.unit, &compression.cold, &mut body);
            say_dedup(&dedup, &mut body);
            say_limits(&limits, &mut body);
            let made = Client::find(&place)?.post("/v1/vdisks", &body)?;
            tell(json, &made, || {
                format!(
                    "created {name}, {}, copies {}{}",
                    bytes(&made["size"]),
                    text(&made["factor"]),
                    note(&made)
                )
            });
        }
        VdiskCommand::Ls { place } => {
            let vdisks = Client::find(&place)?.get("/v1/vdisks")?;
            if json {
                output::json(&vdisks);
            } else {
                list_table(&vdisks);
            }
        }
        VdiskCommand::Show { name, place } => {
            let client = Client::find(&place)?;
            let path = format!("/v1/vdisks/{}", path_part(&name));
            let vdisk = client.get(&path)?;
            // Its owner knows; without one the rest is told all the same.
            let usage = client.get(&format!("{path}/usage")).unwrap_or(Value::Null);
            if json {
                output::json(&with_usage(vdisk, usage)?);
            } else {
                show(&vdisk, &usage);
            }
        }
        VdiskCommand::Resize { name, size, place } => {
            let path = format!("/v1/vdisks/{}/resize", path_part(&name));
            let vdisk = Client::find(&place)?.post(&path, &json!({ "size": size }))?;
            tell(json, &vdisk, || format!("{name} is {} now{}", bytes(&vdisk["size"]), note(&vdisk)));
        }
        VdiskCommand::Set { name, rf, container, compression, dedup, limits, place } => {
            let mut body = json!({});
            if let Some(factor) = rf {
                body["factor"] = factor;
            }
            if let Some(container) = container {
                body["container"] = json!(container);
            }
            say_packing(compression.compression.as_deref(), compression.unit, &compression.cold, &mut body);
            say_dedup(&dedup, &mut body);
            say_limits(&limits, &mut body);
            if body == json!({}) {
                return Err(Trouble::bad_input(
                    "nothing to set: write --rf R, --container NAME, --compression METHOD, --unit SIZE, --cold-after TIME, --dedup on|off, --iops-limit N or --bw-limit \
                     SIZE",
                ));
            }
            let vdisk = Client::find(&place)?.post(&format!("/v1/vdisks/{}/set", path_part(&name)), &body)?;
            tell(json, &vdisk, || {
                format!(
                    "{name}: container {}, copies {} ({}), compression {} ({}); dedup {} ({}); limits {}",
                    text(&vdisk["container"]),
                    text(&vdisk["factor"]),
                    whose(&vdisk["factor_from"]),
                    packed(&vdisk),
                    whose(&vdisk["compression_from"]),
                    shared(&vdisk),
                    whose(&vdisk["dedup_from"]),
                    limited(&vdisk)
                )
            });
        }
        VdiskCommand::Rm { name, force, with_snapshots, place } => {
            let query = format!("?force={force}&with_snapshots={with_snapshots}");
            let answer = Client::find(&place)?.delete(&format!("/v1/vdisks/{}{query}", path_part(&name)))?;
            tell(json, &answer, || match answer["note"].as_str() {
                None | Some("") => format!("deleted {name}; its space is given back in the background"),
                Some(note) => note.to_string(),
            });
        }
        VdiskCommand::Forget { number, place } => {
            let answer = Client::find(&place)?.delete(&format!("/v1/lost-vdisks/{number}"))?;
            tell(json, &answer, || {
                format!("forgot number {number}; what drives hold of it goes in the background")
            });
        }
        VdiskCommand::Export { disk, nbd, read_only, name, place } => {
            let address = absolute(&nbd)?;
            let path = format!("/v1/vdisks/{}/exports", path_part(&disk));
            let mut body = json!({ "address": address, "read_only": read_only });
            if let Some(name) = name {
                body["name"] = json!(name);
            }
            let answer = Client::find(&place)?.post(&path, &body)?;
            tell(json, &answer, || format!("exported {disk}: {}", text(&answer["uri"])));
        }
        VdiskCommand::Unexport { name, nbd, place } => {
            let mut path = format!("/v1/vdisks/{}/exports", path_part(&name));
            if let Some(address) = &nbd {
                path.push_str(&format!("?address={}", path_part(&absolute(address)?)));
            }
            let answer = Client::find(&place)?.delete(&path)?;
            let there = if nbd.is_some() { " there" } else { "" };
            tell(json, &answer, || format!("{name} is no longer exported{there}"));
        }
        VdiskCommand::Attach { name, read_only, place } => {
            let path = format!("/v1/vdisks/{}/attach", path_part(&name));
            let answer = Client::find(&place)?.post(&path, &json!({ "read_only": read_only }))?;
            let device = text(&answer["device"]);
            if !is_of_this_machine(&answer) {
                let node =
                    answer["node"].as_u64().map_or("the node".to_string(), |node| format!("node {node}"));
                return Err(Trouble::failed(format!(
                    "{name} is attached now, on the machine of {node} and not on this one, where {device} is something else: use it \
                     there, or take it away again (weft vdisk detach {name})"
                )));
            }
            // Only the device, so that `mkfs.ext4 $(weft vdisk attach vol1)` works.
            tell(json, &answer, || device);
        }
        VdiskCommand::Move { name, to, place } => {
            let client = Client::find(&place)?;
            let to = node::resolve(&client, &to)?;
            let vdisk =
                client.post(&format!("/v1/vdisks/{}/move", path_part(&name)), &json!({ "to": to }))?;
            tell(json, &vdisk, || {
                let is_there = vdisk["owner_node"] == json!(to);
                if !is_there || vdisk["served"] == false || vdisk["state"] == "opening" {
                    format!(
                        "{name} moves to node {to}; `weft vdisk show {name}` tells when it is served there"
                    )
                } else {
                    format!("{name} is served by node {to} now{}", note(&vdisk))
                }
            });
        }
        VdiskCommand::Stats { name, place } => vdisk_stats::run(&place, &name, json)?,
        VdiskCommand::Warm { name, data, place } => cache::warm(&place, &name, data, json)?,
        VdiskCommand::Detach { name, place } => {
            let path = format!("/v1/vdisks/{}/attach", path_part(&name));
            let answer = Client::find(&place)?.delete(&path)?;
            tell(json, &answer, || format!("detached {name}{}", note(&answer)));
        }
    }
    Ok(())
}

/// How data shall be packed, as far as that was said.
pub fn say_packing(method: Option<&str>, unit: Option<u64>, cold: &ColdArgs, body: &mut Value) {
    if let Some(method) = method {
        body["compression"] = json!(method);
    }
    if let Some(unit) = unit {
        body["compression_unit"] = json!(unit);
    }
    if let Some(after_s) = cold.cold_after {
        body["cold"] = json!({ "after_s": after_s, "level": cold.cold_level });
    }
}

fn say_dedup(wanted: &DedupArgs, body: &mut Value) {
    if let Some(word) = &wanted.dedup {
        body["dedup"] = json!(word);
    }
}

fn say_limits(wanted: &LimitArgs, body: &mut Value) {
    if let Some(iops) = &wanted.iops_limit {
        body["iops_limit"] = iops.clone();
    }
    if let Some(bytes) = &wanted.bw_limit {
        body["bw_limit"] = bytes.clone();
    }
}

/// What the clients of a vDisk, or of each in a container, may ask for in a second.
pub fn limited(vdisk: &Value) -> String {
    let limits: Vec<String> = iops_limit(vdisk).into_iter().chain(bw_limit(vdisk)).collect();
    if limits.is_empty() { "none".to_string() } else { limits.join(", ") }
}

fn iops_limit(vdisk: &Value) -> Option<String> {
    vdisk["iops_limit"].as_u64().map(|iops| format!("{iops} IOPS"))
}

fn bw_limit(vdisk: &Value) -> Option<String> {
    vdisk["bw_limit"].as_u64().map(|limit| format!("{}/s", size::show(limit)))
}

/// How a vDisk packs its data, or those of a container do.
pub fn packed(vdisk: &Value) -> String {
    let method = match vdisk["compression"].as_str() {
        None | Some("" | "off") => "off".to_string(),
        Some(method) => format!("{method}, {} together", bytes(&vdisk["compression_unit"])),
    };
    match vdisk["cold"]["after_s"].as_u64() {
        Some(after_s) => {
            format!(
                "{method}; zstd:{} after {} without a read",
                vdisk["cold"]["level"],
                duration::show(after_s)
            )
        }
        None => method,
    }
}

/// Whether drives share what is alike.
pub fn shared(vdisk: &Value) -> &'static str {
    if vdisk["dedup"] == json!(true) { "on" } else { "off" }
}

/// Who says so.
fn whose(from: &Value) -> &'static str {
    if from == "container" { "as its container says" } else { "its own word" }
}

/// What was asked for, with how much it uses in it.
pub fn with_usage(mut answer: Value, usage: Value) -> Result<Value, Trouble> {
    let Some(fields) = answer.as_object_mut() else {
        return Err(Trouble::failed("something else than a Weft node answers there; check --api"));
    };
    fields.insert("usage".to_string(), usage);
    Ok(answer)
}

/// The answer as it is, or a line about it.
pub fn tell(json: bool, answer: &Value, line: impl FnOnce() -> String) {
    if json {
        output::json(answer);
    } else {
        output::line(&line());
    }
}

/// Whether the name of a device that was attached means that device here, too.
fn is_of_this_machine(attached: &Value) -> bool {
    match (attached["boot"].as_str(), weft_node::boot_id()) {
        (Some(there), Some(here)) => there == here,
        _ => true,
    }
}

fn note(answer: &Value) -> String {
    match answer["note"].as_str() {
        None | Some("") => String::new(),
        Some(note) => format!(" ({note})"),
    }
}

/// The node may run in another directory: a socket's path is made absolute here.
fn absolute(address: &str) -> Result<String, Trouble> {
    if let Some(path) = address.strip_prefix("unix:") {
        if path.is_empty() {
            return Err(Trouble::bad_input("unix: needs a path, like unix:/run/vol1.sock"));
        }
        let path = std::path::absolute(Path::new(path))
            .map_err(|error| Trouble::bad_input(format!("the path `{path}` cannot be used: {error}")))?;
        return Ok(format!("unix:{}", path.display()));
    }
    if address.starts_with("tcp:") {
        return Ok(address.to_string());
    }
    Err(Trouble::bad_input(format!(
        "`{address}` is no place to export to: write unix:PATH or tcp:ADDRESS:PORT"
    )))
}

fn list_table(vdisks: &Value) {
    if list(vdisks).is_empty() {
        output::line("no vDisks; make one with `weft vdisk create NAME --size 8G`");
        return;
    }
    table(list(vdisks)).print();
}

fn table(vdisks: &[Value]) -> Table {
    // Who serves it is of interest in a cluster only.
    let in_cluster = vdisks.iter().any(|vdisk| vdisk["owner_node"].is_u64() || vdisk["served"].is_boolean());
    let mut heading = vec!["NAME", "SIZE", "COPIES", "STATE"];
    heading.extend(in_cluster.then_some("NODE"));
    heading.extend(["CONTAINER", "EXPORTS", "DEVICE"]);
    let mut table = Table::new(&heading);
    for vdisk in vdisks {
        let exports: Vec<String> =
            list(&vdisk["exports"]).iter().map(|export| text(&export["address"])).collect();
        let mut row =
            vec![text(&vdisk["name"]), bytes(&vdisk["size"]), text(&vdisk["factor"]), text(&vdisk["state"])];
        row.extend(in_cluster.then(|| owner(vdisk)));
        row.push(text(&vdisk["container"]));
        row.push(if exports.is_empty() { "-".to_string() } else { exports.join(",") });
        row.push(device(&vdisk["attached"]));
        table.row(row);
    }
    table
}

/// The node that serves it, or shall.
fn owner(vdisk: &Value) -> String {
    let not_now = if vdisk["served"] == false { " (not served now)" } else { "" };
    format!("{}{not_now}", text(&vdisk["owner_node"]))
}

fn show(vdisk: &Value, usage: &Value) {
    let name = text(&vdisk["name"]);
    let mut table = Table::new(&["name", &name]);
    table.row(vec!["size".into(), format!("{} ({} bytes)", bytes(&vdisk["size"]), text(&vdisk["size"]))]);
    table.row(vec!["copies".into(), format!("{}, {}", text(&vdisk["factor"]), whose(&vdisk["factor_from"]))]);
    for (key, label) in [("state", "state"), ("epoch", "epoch"), ("trouble", "trouble")] {
        table.row(vec![label.into(), text(&vdisk[key])]);
    }
    table.row(vec!["container".into(), text(&vdisk["container"])]);
    table
        .row(vec!["compression".into(), format!("{}, {}", packed(vdisk), whose(&vdisk["compression_from"]))]);
    table.row(vec!["dedup".into(), format!("{}, {}", shared(vdisk), whose(&vdisk["dedup_from"]))]);
    for (label, limit, from) in [
        ("iops limit", iops_limit(vdisk), &vdisk["iops_limit_from"]),
        ("bandwidth limit", bw_limit(vdisk), &vdisk["bw_limit_from"]),
    ] {
        let limit = limit.unwrap_or_else(|| "none".to_string());
        table.row(vec![label.into(), format!("{limit}, {}", whose(from))]);
    }
    if vdisk["owner_node"].is_u64() || vdisk["served"].is_boolean() {
        table.row(vec!["node".into(), owner(vdisk)]);
        table.row(vec!["shard".into(), text(&vdisk["owner_shard"])]);
    }
    table.row(vec!["device".into(), device(&vdisk["attached"])]);
    table.row(vec!["snapshots".into(), text(&vdisk["snapshots"])]);
    for export in list(&vdisk["exports"]) {
        let how = if export["read_only"] == true { " (read-only)" } else { "" };
        table.row(vec!["export".into(), format!("{}{how}", text(&export["uri"]))]);
        if export["trouble"].as_str().is_some_and(|trouble| !trouble.is_empty()) {
            table.row(vec!["".into(), text(&export["trouble"])]);
        }
    }
    if usage.is_object() {
        usage::rows(&mut table, usage);
    }
    table.print();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_serves_a_vdisk_is_shown_in_a_cluster() {
        let mut vdisk = json!({ "name": "v", "size": 1 << 30, "factor": 2, "state": "ready", "exports": [] });
        assert!(
            !table(&[vdisk.clone()]).render().contains("NODE"),
            "a node that stands alone says nothing of it"
        );
        vdisk["owner_node"] = json!(3);
        assert!(table(&[vdisk.clone()]).render().contains("ready  3     -          -"));
        vdisk["served"] = json!(false);
        assert!(table(&[vdisk]).render().contains("3 (not served now)"));
    }

    #[test]
    fn a_device_is_of_the_machine_that_named_it() {
        let here = weft_node::boot_id().expect("every Linux tells");
        assert!(is_of_this_machine(&json!({ "device": "/dev/loop0", "boot": here })));
        assert!(!is_of_this_machine(&json!({ "device": "/dev/loop0", "boot": "another" })));
        assert!(is_of_this_machine(&json!({ "device": "/dev/loop0" })), "an older node does not tell");
    }

    #[test]
    fn an_address_of_no_known_kind_is_bad_input() {
        assert!(matches!(absolute("http://x"), Err(Trouble::BadInput(_))));
        assert!(matches!(absolute("unix:"), Err(Trouble::BadInput(_))));
        assert!(absolute("unix:relative.sock").is_ok_and(|address| address.starts_with("unix:/")));
    }
}
