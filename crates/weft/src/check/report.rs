//! What a check tells: for people, and as JSON.

use super::findings::Finding;
use crate::output::Table;
use crate::size;
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Debug, Serialize)]
pub struct Report {
    pub sound: bool,
    /// Everything was looked at; otherwise there are drives in nodes of the cluster that were not given.
    pub complete: bool,
    /// All problems, also those not listed.
    pub problems_count: u64,
    pub problems_by_kind: BTreeMap<&'static str, u64>,
    pub problems: Vec<Finding>,
    pub notes: Vec<Finding>,
    pub drives: Vec<DriveReport>,
    pub vdisks: Vec<VdiskReport>,
    pub bytes_read: u64,
    pub seconds: f64,
}

#[derive(Debug, Serialize)]
pub struct DriveReport {
    /// In a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    pub drive: u32,
    pub place: String,
    pub readable: bool,
    pub log_frames: u64,
    pub log_records: u64,
    pub egroups: u64,
    pub egroup_bytes: u64,
    /// What egroups need not have of their own; and what is there only because they refer to it.
    pub shared_bytes: u64,
    pub held_bytes: u64,
    pub units_verified: u64,
    pub units_damaged: u64,
}

#[derive(Debug, Serialize)]
pub struct VdiskReport {
    pub name: String,
    pub family: u32,
    pub size: u64,
    pub factor: u32,
    pub epoch: u32,
    /// Its log and map were found; otherwise they are on nodes that were not given, and the rest says nothing.
    pub seen: bool,
    /// The record of the newest checkpoint; 0 if there is none.
    pub checkpoint: u64,
    /// The last record that every member holds, and the last that any holds.
    pub acknowledged: u64,
    pub end: u64,
    pub records_replayed: u64,
    pub replayed_bytes: u64,
    pub leaves: u64,
    pub mapped_blocks: u64,
    pub egroups: u64,
    pub copies: u64,
    pub orphans: u64,
    pub orphan_bytes: u64,
}

impl Report {
    /// Lines for people, without the last line break.
    pub fn text(&self) -> String {
        let mut drives =
            Table::new(&["DRIVE", "PLACE", "FRAMES", "RECORDS", "EGROUPS", "BYTES", "UNITS", "DAMAGED"]);
        for drive in &self.drives {
            let count = |number: u64| if drive.readable { number.to_string() } else { "-".into() };
            drives.row(vec![
                drive.drive.to_string(),
                drive.place.clone(),
                count(drive.log_frames),
                count(drive.log_records),
                count(drive.egroups),
                if drive.readable { size::show(drive.egroup_bytes) } else { "unreadable".into() },
                count(drive.units_verified),
                count(drive.units_damaged),
            ]);
        }
        let mut text = drives.render();
        let mut vdisks = Table::new(&[
            "VDISK",
            "SIZE",
            "COPIES",
            "CHECKPOINT",
            "REPLAYED",
            "MAPPED",
            "EGROUPS",
            "ORPHANS",
        ]);
        for vdisk in &self.vdisks {
            let shown = |text: String| if vdisk.seen { text } else { "-".into() };
            vdisks.row(vec![
                vdisk.name.clone(),
                size::show(vdisk.size),
                vdisk.factor.to_string(),
                if vdisk.seen { vdisk.checkpoint.to_string() } else { "elsewhere".into() },
                shown(format!("{} records", vdisk.records_replayed)),
                shown(size::show(vdisk.mapped_blocks * weft_engine::buffer::BLOCK as u64)),
                shown(vdisk.egroups.to_string()),
                shown(vdisk.orphans.to_string()),
            ]);
        }
        if !self.vdisks.is_empty() {
            text.push('\n');
            text.push_str(&vdisks.render());
        }
        text.push('\n');
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        for problem in &self.problems {
            text.push_str(&format!("problem: {problem}\n"));
        }
        let told = self.problems.len() as u64;
        if told < self.problems_count {
            text.push_str(&format!("and {} problems more of the same kinds\n", self.problems_count - told));
        }
        let read = size::show(self.bytes_read);
        match self.problems_count {
            0 => {
                let how_far = if self.complete { "sound" } else { "sound as far as it was seen" };
                text.push_str(&format!("{how_far}: {read} read in {:.1} s, no problem found", self.seconds));
            }
            count => {
                let kinds: Vec<String> =
                    self.problems_by_kind.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
                text.push_str(&format!(
                    "NOT SOUND: {read} read in {:.1} s, {count} problems: {}",
                    self.seconds,
                    kinds.join(", ")
                ));
            }
        }
        text
    }
}
