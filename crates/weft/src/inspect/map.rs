//! `weft inspect map`: the checkpoint of a vDisk, and where its blocks are.

use super::{Place, Shown, elsewhere_line, problem_lines};
use crate::check::family::{Family, Missing};
use crate::check::findings::Findings;
use crate::output::Table;
use crate::size;
use anyhow::bail;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use weft_engine::buffer::BLOCK;
use weft_engine::formats::record::PageKind;
use weft_engine::interface::Origin;
use weft_engine::limits::LEAF_BLOCKS;
use weft_engine::map::edits::Edits;
use weft_engine::{Block, EgroupId, SnapshotId};
use weft_node::offline::Offline;

/// Rows shown without `--all`.
const ROWS: usize = 40;

#[derive(clap::Args, Debug)]
pub struct MapArgs {
    /// Name of the vDisk
    vdisk: String,
    /// Show where the data from this byte on is
    #[arg(long, value_name = "SIZE", value_parser = offset)]
    offset: Option<u64>,
    /// Up to so many bytes from there on
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "offset")]
    len: Option<u64>,
    /// Show all runs of mapped blocks, however many
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    place: Place,
}

/// A size, or 0.
fn offset(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { size::parse(text) }
}

/// `count` blocks from `block` on are at `unit` of `egroup` onwards.
struct Run {
    block: Block,
    count: u32,
    egroup: EgroupId,
    unit: u32,
    /// Said by a record behind the checkpoint.
    recent: bool,
}

pub fn show(arguments: &MapArgs) -> anyhow::Result<Shown> {
    let offline = arguments.place.open()?;
    let config = super::vdisk(&offline, &arguments.vdisk)?;
    let mut findings = Findings::default();
    let drives = super::read_drives(&offline, &mut findings)?;
    let family = Family::read(config, &offline, &drives, &mut findings);
    let first = arguments.offset.unwrap_or(0) / BLOCK as u64;
    if arguments.offset.is_some_and(|offset| offset >= config.size) {
        bail!("the vDisk {} has {} bytes; give a smaller --offset", config.name, config.size);
    }
    let end = match (arguments.offset, arguments.len) {
        (Some(offset), Some(len)) => offset.saturating_add(len).div_ceil(BLOCK as u64),
        (Some(_), None) => first + 1,
        _ => u64::MAX,
    };
    let rows = if arguments.all || arguments.offset.is_some() { usize::MAX } else { ROWS };
    let (runs, more) = find_runs(&family, first, end, rows, &mut findings);
    let known = offline.snapshots.iter().filter(|record| record.family() == family.id());
    let names: Names = known.map(|record| (record.id(), record.name.as_str())).collect();
    let (mut text, mut value) = summary(&family, &names);
    let origin = origin_of(&offline, &family);
    if let Some((name, origin)) = &origin {
        text.push_str(&format!(
            "clone: what is not mapped here is read from {name}, of which it is a clone\n"
        ));
        value["origin"] = json!({ "vdisk": name, "generation": origin.snapshot.0, "size": origin.size });
    }
    let mut table =
        Table::new(&["BLOCK", "BYTE", "BLOCKS", "EGROUP", "UNIT", "GROUP", "DRIVES", "SINCE CHECKPOINT"]);
    let mut values = Vec::new();
    for run in &runs {
        let entry = family.directory.get(run.egroup);
        let group = entry.and_then(|entry| family.groups.get(&entry.group));
        let holders: Vec<String> =
            group.map(|group| group.members.iter().map(ToString::to_string).collect()).unwrap_or_default();
        table.row(vec![
            run.block.to_string(),
            (run.block.0 * BLOCK as u64).to_string(),
            run.count.to_string(),
            run.egroup.to_string(),
            run.unit.to_string(),
            entry.map_or("?".into(), |entry| entry.group.to_string()),
            holders.join(", "),
            if run.recent { "yes".into() } else { "no".into() },
        ]);
        values.push(json!({
            "block": run.block.0, "blocks": run.count, "egroup": run.egroup.to_string(), "unit": run.unit,
            "group": entry.map(|entry| entry.group.0), "drives": holders, "since_checkpoint": run.recent,
        }));
    }
    if runs.is_empty() {
        text.push_str(&unmapped_line(
            origin.as_ref().filter(|(_, origin)| first * (BLOCK as u64) < origin.size),
        ));
    } else {
        text.push_str(&table.render());
    }
    if more {
        text.push_str("... and more: add --all, or --offset to look at one place\n");
    }
    // Without the log or pages, "nothing is mapped" above would be too much said.
    for note in findings.notes.iter().filter(|note| note.kind.ends_with("_elsewhere")) {
        text.push_str(&format!("note: {note}\n"));
    }
    text.push_str(&elsewhere_line(&offline));
    text.push_str(&problem_lines(&findings));
    value["complete"] = json!(offline.elsewhere.is_empty());
    value["runs"] = Value::Array(values);
    value["more"] = json!(more);
    value["problems"] = serde_json::to_value(&findings.problems)?;
    Ok(Shown { text, value })
}

/// What a clone is a clone of, by name.
fn origin_of(offline: &Offline, family: &Family) -> Option<(String, Origin)> {
    let origin = family.record.origin?;
    let config = offline.families.iter().find(|config| config.id() == origin.family);
    let name = config.map_or_else(|| "a vDisk that is not known".to_string(), |config| config.name.clone());
    Some((name, origin))
}

/// `origin`: of a clone, where that has something.
fn unmapped_line(origin: Option<&(String, Origin)>) -> String {
    match origin {
        Some((name, _)) => format!(
            "nothing is mapped there: it is read from {name}, unless it was trimmed here or a record of the log holds it\n"
        ),
        None => {
            "nothing is mapped there: it reads as zeros, unless a record of the log holds it\n".to_string()
        }
    }
}

/// Names of snapshots, as the config store has them.
type Names<'a> = BTreeMap<SnapshotId, &'a str>;

fn snapshot_lines(family: &Family, names: &Names) -> String {
    if family.snapshots.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["SNAPSHOT", "GENERATION", "ID"]);
    for (generation, id) in &family.snapshots {
        let name = names.get(id).map_or_else(|| "(no record)".to_string(), |name| (*name).to_string());
        table.row(vec![name, generation.to_string(), format!("{:016x}", id.0)]);
    }
    table.render()
}

fn summary(family: &Family, names: &Names) -> (String, Value) {
    let pages = |wanted| family.index.iter().filter(|(kind, ..)| *kind == wanted).count();
    let (leaves, past) = (pages(PageKind::Leaf), pages(PageKind::Past));
    let snapshots: Vec<Value> = family
        .snapshots
        .iter()
        .map(|(generation, id)| {
            json!({
                "name": names.get(id), "generation": generation.0, "id": format!("{:016x}", id.0),
            })
        })
        .collect();
    let mut text = match &family.checkpoint {
        Some((seq, checkpoint)) => format!(
            "checkpoint: record {seq}, map up to record {}, replay from {}, {} mapped ({} blocks)\n",
            checkpoint.map_to,
            checkpoint.replay_from,
            size::show(checkpoint.mapped * BLOCK as u64),
            checkpoint.mapped,
        ),
        None => "checkpoint: none yet\n".to_string(),
    };
    text.push_str(&format!(
        "log: all members hold up to record {}, the last is {}; {} records replayed with {} of data\n",
        family.ends.acknowledged,
        family.ends.end,
        family.replayed,
        size::show(family.replayed_bytes),
    ));
    text.push_str(&format!(
        "map: {leaves} leaf pages, {past} of the past, {} egroups of data, {} of pages, {} edits since the checkpoint\n",
        family.directory.len(),
        family.map_egroups.len(),
        family.edits.values().map(Edits::len).sum::<usize>(),
    ));
    text.push_str(&snapshot_lines(family, names));
    let value = json!({
        "vdisk": family.name, "family": family.id().0, "epoch": family.record.epoch.0, "size": family.record.size,
        "checkpoint": family.checkpoint.as_ref().map(|(seq, checkpoint)| json!({
            "record": seq.0, "map_to": checkpoint.map_to.0, "replay_from": checkpoint.replay_from.0,
            "mapped_blocks": checkpoint.mapped,
        })),
        "acknowledged": family.ends.acknowledged.0, "end": family.ends.end.0, "records_replayed": family.replayed,
        "replayed_bytes": family.replayed_bytes, "leaves": leaves, "egroups": family.directory.len(),
        "map_egroups": family.map_egroups.len(), "edits": family.edits.values().map(Edits::len).sum::<usize>(),
        "past_pages": past, "snapshots": snapshots,
    });
    (text, value)
}

/// The first `rows` runs in `first..end`, in order, and whether there are more.
fn find_runs(
    family: &Family,
    first: u64,
    end: u64,
    rows: usize,
    findings: &mut Findings,
) -> (Vec<Run>, bool) {
    let mut runs: Vec<Run> = Vec::new();
    let mut put = |recent, block: Block, count: u32, egroup, unit| {
        let (from, to) = (block.0.max(first), (block.0 + u64::from(count)).min(end));
        if from < to {
            let skipped = (from - block.0) as u32;
            let (block, count) = (Block(from), (to - from) as u32);
            runs.push(Run { block, count, egroup, unit: unit + skipped, recent });
        }
    };
    family.mapped_since(&mut |block, count, egroup, unit| put(true, block, count, egroup, unit));
    let mut leaves = 0;
    for (kind, number, place) in family.index.iter() {
        let here =
            number.saturating_mul(LEAF_BLOCKS) < end && (number + 1).saturating_mul(LEAF_BLOCKS) > first;
        if kind != PageKind::Leaf || !here {
            continue;
        }
        // Every leaf has a run, but all of them may be superseded: some more leaves than rows are enough.
        leaves += 1;
        if leaves > rows.saturating_mul(4) {
            break;
        }
        match family.leaf(number, place) {
            Ok(leaf) => {
                family.mapped(&leaf, number, &mut |block, count, egroup, unit| {
                    put(false, block, count, egroup, unit);
                });
            }
            Err(Missing::Unseen) => {
                let text = format!("leaf page {number} is on drives that are not here");
                findings.note("leaf_page_elsewhere", None, Some(family.name), text);
            }
            Err(Missing::Lost(reason)) => {
                let text = format!("leaf page {number} is lost: {reason}");
                findings.problem("leaf_page_lost", None, Some(family.name), text);
            }
        }
    }
    runs.sort_unstable_by_key(|run| run.block);
    let more = runs.len() > rows;
    runs.truncate(rows);
    (runs, more)
}
