//! `weft inspect log`: frames of a ring, or the records of one vDisk in it.

use super::{Place, Shown, problem_lines};
use crate::check::contents::Contents;
use crate::check::held::{self, HeldRecord};
use crate::output::Table;
use serde_json::{Value, json};
use weft_engine::FamilyId;
use weft_engine::buffer::BLOCK;
use weft_engine::formats::record::{Body, Mark, Record};

#[derive(clap::Args, Debug)]
pub struct LogArgs {
    /// Number of the drive
    drive: u32,
    /// Show the records of this vDisk instead of frames
    #[arg(long, value_name = "NAME")]
    vdisk: Option<String>,
    /// Show the newest so many; 0 shows all
    #[arg(long, default_value_t = 40, value_name = "N")]
    last: usize,
    #[command(flatten)]
    place: Place,
}

pub fn show(arguments: &LogArgs) -> anyhow::Result<Shown> {
    let offline = arguments.place.open()?;
    let family = match &arguments.vdisk {
        Some(name) => Some(super::vdisk(&offline, name)?.id()),
        None => None,
    };
    let (contents, findings) = super::read_drive(&offline, arguments.drive)?;
    let last = if arguments.last == 0 { usize::MAX } else { arguments.last };
    let mut shown = match family {
        Some(family) => records(&contents, family, last),
        None => frames(&contents, last),
    };
    shown.text.push_str(&problem_lines(&findings));
    Ok(shown)
}

fn frames(contents: &Contents, last: usize) -> Shown {
    let mut table = Table::new(&["FRAME", "BYTE", "BLOCKS", "RECORDS", "DAMAGED", "TAIL", "SETTLED"]);
    let mut values = Vec::new();
    let kept = &contents.chain.kept;
    for number in &kept[kept.len().saturating_sub(last)..] {
        let frame = &contents.frames[number];
        let header = &frame.header;
        let damaged = frame.sound.iter().filter(|sound| !**sound).count();
        let byte = header.position * BLOCK as u64;
        table.row(vec![
            number.to_string(),
            byte.to_string(),
            header.blocks().to_string(),
            header.records.len().to_string(),
            damaged.to_string(),
            header.tail.to_string(),
            header.settled.to_string(),
        ]);
        values.push(json!({
            "frame": number, "byte": byte, "blocks": header.blocks(), "records": header.records.len(),
            "damaged": damaged, "tail": header.tail, "settled": header.settled,
        }));
    }
    let text = format!("{}{} frames count\n", table.render(), kept.len());
    let value =
        json!({ "frames_count": kept.len(), "missing": contents.chain.missing.len(), "frames": values });
    Shown { text, value }
}

fn records(contents: &Contents, family: FamilyId, last: usize) -> Shown {
    let mut table = Table::new(&["RECORD", "EPOCH", "FRAME", "KIND", "WHAT"]);
    let mut values = Vec::new();
    let Some(held) = contents.held.get(&family).filter(|held| !held.records.is_empty()) else {
        let value = json!({ "records_count": 0, "records": [] });
        return Shown { text: "this drive holds no records of this vDisk\n".into(), value };
    };
    let skipped = held.records.len().saturating_sub(last);
    for (seq, record) in held.records.iter().skip(skipped) {
        let kind = format!("{:?}", record.header.kind).to_lowercase();
        let what = describe(contents, record);
        table.row(vec![
            seq.to_string(),
            record.header.epoch.to_string(),
            record.frame.to_string(),
            kind.clone(),
            what.clone(),
        ]);
        values.push(json!({
            "record": seq.0, "epoch": record.header.epoch.0, "frame": record.frame, "kind": kind,
            "byte": record.payload * BLOCK as u64, "bytes": record.header.payload_len, "sound": record.sound,
            "what": what,
        }));
    }
    let text = format!(
        "{}{} records, trimmed up to {}, writers of epochs before {} are refused\n",
        table.render(),
        held.records.len(),
        held.trimmed,
        held.fence
    );
    let value: Value = json!({
        "records_count": held.records.len(), "trimmed": held.trimmed.0, "fence": held.fence.0, "records": values,
    });
    Shown { text, value }
}

fn describe(contents: &Contents, record: &HeldRecord) -> String {
    let Some(Record { body, .. }) = held::read(contents, record) else { return "DAMAGED".into() };
    match body {
        Body::Data { block, data } => format!("{} blocks from {block} on", data.blocks()),
        Body::Zero { block, count } => format!("{count} blocks from {block} on are zeros"),
        Body::Map(map) => match map.named {
            Some(named) => format!(
                "{} edits into egroup {} of group {} ({} units)",
                map.edits.len(),
                named.egroup,
                named.group,
                named.units
            ),
            None => format!("{} edits that unmap", map.edits.len()),
        },
        Body::Mark(Mark::Taken { generation, snapshot }) => {
            format!("snapshot {snapshot} taken as {generation}")
        }
        Body::Mark(Mark::RolledBack { to, .. }) => format!("rolled back to snapshot {to}"),
        Body::Mark(Mark::Dropped { generation }) => format!("snapshot {generation} dropped"),
        Body::Checkpoint(checkpoint) => format!(
            "map up to record {}, replay from {}, {} blocks mapped, {} index pages",
            checkpoint.map_to,
            checkpoint.replay_from,
            checkpoint.mapped,
            checkpoint.index.len()
        ),
    }
}
