//! `weft inspect egroup`: the egroups of a vDisk on all drives, or one of them unit by unit.

use super::{Place, Shown, elsewhere_line, problem_lines};
use crate::check::contents::Contents;
use crate::check::findings::Findings;
use crate::check::units;
use crate::output::Table;
use anyhow::{Context, bail};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::buffer::BLOCK;
use weft_engine::formats::table::TablePage;
use weft_engine::{DriveId, EgroupId, Epoch, FamilyId};

#[derive(clap::Args, Debug)]
pub struct EgroupArgs {
    /// Name of the vDisk
    vdisk: String,
    /// Name of the egroup, as EPOCH.NUMBER [default: a list of all]
    #[arg(value_parser = parse_name)]
    egroup: Option<EgroupId>,
    /// Show every unit
    #[arg(long, requires = "egroup")]
    units: bool,
    #[command(flatten)]
    place: Place,
}

fn parse_name(text: &str) -> Result<EgroupId, String> {
    let numbers = text.split_once('.').and_then(|(epoch, counter)| {
        let epoch: u32 = epoch.parse().ok()?;
        Some(EgroupId::new(Epoch(epoch), counter.parse().ok()?))
    });
    numbers.ok_or_else(|| format!("`{text}` is no egroup: write it like 3.17"))
}

pub fn show(arguments: &EgroupArgs) -> anyhow::Result<Shown> {
    let offline = arguments.place.open()?;
    let family = super::vdisk(&offline, &arguments.vdisk)?.id();
    let mut findings = Findings::default();
    let drives = super::read_drives(&offline, &mut findings)?;
    let mut shown = match arguments.egroup {
        Some(egroup) => one(&drives, family, egroup, arguments)?,
        None => all(&drives, family),
    };
    shown.text.push_str(&elsewhere_line(&offline));
    shown.text.push_str(&problem_lines(&findings));
    Ok(shown)
}

fn all(drives: &BTreeMap<DriveId, Contents>, family: FamilyId) -> Shown {
    let mut copies: BTreeMap<EgroupId, Vec<(DriveId, &TablePage)>> = BTreeMap::new();
    for contents in drives.values() {
        for ((_, egroup), page) in contents.egroups.iter().filter(|((owner, _), _)| *owner == family) {
            copies.entry(*egroup).or_default().push((contents.drive, page));
        }
    }
    let mut table = Table::new(&["EGROUP", "UNITS", "STORED", "DRIVES"]);
    let mut values = Vec::new();
    for (egroup, copies) in &copies {
        let units: BTreeSet<u32> = copies.iter().map(|(_, page)| page.units()).collect();
        let units: Vec<String> = units.iter().map(u32::to_string).collect();
        let drives: Vec<String> = copies.iter().map(|(drive, _)| drive.to_string()).collect();
        let stored: BTreeSet<u32> = copies.iter().map(|(_, page)| page.data_blocks()).collect();
        let stored: Vec<String> = stored.iter().map(u32::to_string).collect();
        table.row(vec![egroup.to_string(), units.join(" or "), stored.join(" or "), drives.join(", ")]);
        let copies: Vec<_> = copies
            .iter()
            .map(|(drive, page)| {
                json!({
                    "drive": drive.0, "units": page.units(), "stored_blocks": page.data_blocks(),
                    "byte": page.first * BLOCK as u64,
                })
            })
            .collect();
        values.push(json!({ "egroup": egroup.to_string(), "copies": copies }));
    }
    let text = format!("{}{} egroups\n", table.render(), copies.len());
    Shown { text, value: json!(values) }
}

fn one(
    drives: &BTreeMap<DriveId, Contents>,
    family: FamilyId,
    egroup: EgroupId,
    arguments: &EgroupArgs,
) -> anyhow::Result<Shown> {
    let mut text = String::new();
    let mut values = Vec::new();
    for contents in drives.values() {
        let Some(page) = contents.egroups.get(&(family, egroup)) else { continue };
        let blocks = units::trailer(contents, page);
        let sound: Vec<bool> =
            (0..page.units()).map(|unit| units::read(contents, page, unit, 1).is_some()).collect();
        let damaged = sound.iter().filter(|sound| !**sound).count();
        text.push_str(&format!(
            "drive {}: slot {}, revision {}, {} units{} from byte {}{}, {damaged} damaged, trailer {}\n",
            contents.drive,
            page.slot,
            page.revision,
            page.units(),
            how_packed(page),
            page.first * BLOCK as u64,
            how_shared(page),
            if blocks.is_some() { "sound" } else { "DAMAGED" },
        ));
        if arguments.units {
            let mut table = Table::new(&["UNIT", "BYTE", "STORED", "BLOCK", "CHECKSUM", "STATE"]);
            for (unit, sound) in (0u32..).zip(&sound) {
                let frame = page.frame_of(unit);
                table.row(vec![
                    unit.to_string(),
                    page.place_of(&frame).to_string(),
                    if frame.is_raw() { "raw".into() } else { format!("{} in {}", frame.units, frame.len) },
                    blocks.as_ref().map_or("?".into(), |blocks| written_for(blocks[unit as usize])),
                    format!("{:08x}", page.checksums[frame.index as usize]),
                    if *sound { "sound".into() } else { "DAMAGED".into() },
                ]);
            }
            text.push_str(&table.render());
        }
        values.push(json!({
            "drive": contents.drive.0, "slot": page.slot, "revision": page.revision, "units": page.units(),
            "stored_blocks": page.data_blocks(), "codec": page.packing.as_ref().map(|packing| format!("{:?}", packing.codec())),
            "byte": page.first * BLOCK as u64, "damaged_units": damaged, "trailer_sound": blocks.is_some(),
            "references": page.references.iter().map(|run| json!({
                "frame": run.frame, "frames": run.frames, "bytes": run.len, "byte": run.place,
            })).collect::<Vec<_>>(),
            "unit_states": (0..).zip(&sound).map(|(unit, sound): (u32, &bool)| json!({
                "unit": unit, "sound": sound,
                "written_for": blocks.as_ref().map(|blocks| written_for(blocks[unit as usize])),
            })).collect::<Vec<_>>(),
        }));
    }
    if values.is_empty() {
        bail!(
            "no drive holds an egroup {egroup} of this vDisk; weft inspect egroup {} lists them",
            arguments.vdisk
        );
    }
    let value = serde_json::to_value(values).context("plain values")?;
    Ok(Shown { text, value })
}

/// Of a packed egroup: how much it takes, and in how many frames.
fn how_packed(page: &TablePage) -> String {
    let Some(packing) = &page.packing else { return String::new() };
    let codec = format!("{:?}", packing.codec()).to_lowercase();
    format!(" packed with {codec} into {} frames, {} blocks,", packing.frame_count(), page.data_blocks())
}

/// What of it lies elsewhere on the drive.
fn how_shared(page: &TablePage) -> String {
    if page.references.is_empty() {
        return String::new();
    }
    let (all, own) = (page.data_blocks(), page.own_blocks());
    format!(" ({} of {all} blocks elsewhere, in {} runs)", all - own, page.references.len())
}

/// What a unit was written for: a block of the vDisk, or (told by the highest bit) a page of its map.
fn written_for(block: u64) -> String {
    if block >> 63 == 1 { "map page".into() } else { block.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_shown() {
        let egroup = EgroupId::new(Epoch(3), 17);
        assert_eq!(parse_name(&egroup.to_string()), Ok(egroup));
        for text in ["", "3", "3.", ".7", "3.x", "-1.2", "3.99999999999"] {
            assert!(parse_name(text).is_err(), "{text:?} was taken");
        }
    }
}
