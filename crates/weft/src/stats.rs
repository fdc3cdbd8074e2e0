//! `weft stats`: the node's counters, as tables or as JSON.

use crate::arguments::StatsArguments;
use crate::client::Client;
use crate::output::{self, Table};
use crate::status::{bytes, text};
use crate::trouble::Trouble;
use serde_json::Value;

pub fn run(arguments: &StatsArguments, json: bool) -> Result<(), Trouble> {
    let mut stats = Client::find(&arguments.place)?.get("/v1/stats")?;
    if let Some(name) = &arguments.vdisk {
        let vdisks = stats["vdisks"].as_array().cloned().unwrap_or_default();
        let Some(vdisk) = vdisks.into_iter().find(|vdisk| vdisk["name"] == name.as_str()) else {
            return Err(not_here(&stats, name));
        };
        stats = serde_json::json!({ "vdisks": [vdisk] });
    }
    if json {
        output::json(&stats);
        return Ok(());
    }
    for (section, heading) in [("drives", "DRIVES"), ("vdisks", "VDISKS"), ("shards", "SHARDS")] {
        for entry in stats[section].as_array().map_or(&[][..], Vec::as_slice) {
            show_entry(heading, entry);
        }
    }
    if let Some(damage) = stats.get("damage") {
        show_entry("DAMAGE", damage);
    }
    Ok(())
}

/// Why there are no counters of this vDisk.
fn not_here(stats: &Value, name: &str) -> Trouble {
    let of = |section: &str| stats[section].as_array().cloned().unwrap_or_default();
    if let Some(elsewhere) = of("elsewhere").into_iter().find(|vdisk| vdisk["name"] == name) {
        return match (&elsewhere["node"], elsewhere["api"].as_str()) {
            (node, Some(api)) => {
                Trouble::failed(format!("node {node} serves {name}: weft stats {name} --api {api}"))
            }
            (_, None) => Trouble::failed(format!("nobody serves {name} at this moment; ask again later")),
        };
    }
    match of("silent_shards").first() {
        Some(shard) => {
            Trouble::failed(format!("shard {shard} did not answer, and may have {name}; ask again"))
        }
        None => Trouble::bad_input(format!("no vDisk `{name}` here: `weft vdisk ls` lists them")),
    }
}

/// Every counter on a line of its own: names are the same here and in the JSON, and behind their prefixes in the metrics.
fn show_entry(heading: &str, entry: &Value) {
    let mut table = Table::new(&[heading, ""]);
    flatten("", entry, &mut |name, value| {
        let is_bytes = name.ends_with("bytes");
        table.row(vec![name.to_string(), if is_bytes { bytes(value) } else { text(value) }]);
    });
    table.print();
    output::line("");
}

fn flatten(prefix: &str, value: &Value, row: &mut impl FnMut(&str, &Value)) {
    match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&name, inner, row);
            }
        }
        Value::Array(entries) => {
            for (number, inner) in entries.iter().enumerate() {
                flatten(&format!("{prefix}[{number}]"), inner, row);
            }
        }
        leaf => row(prefix, leaf),
    }
}
