//! `weft check`: verifies everything on the drives of nodes that do not run: one that is alone, or some or all of a cluster.
//! Promises: changes nothing; exit code 0 if all is sound, 1 if something is not, 2 if it could not begin. What is on nodes
//! of the cluster that are not looked at is told as such, and is no problem.
//!
//! It reads like the keeper and the owner of each vDisk do when they open: superblocks, the whole log ring, the egroup
//! table (`contents`, `held`), every unit (`units`), then for each vDisk the newest checkpoint, the pages and
//! the records behind it (`family`), and holds what the map names against what is there (`copies`).

pub mod contents;
mod copies;
mod ends;
pub mod family;
pub mod findings;
pub mod held;
mod progress;
mod report;
mod sight;
pub mod units;

use crate::output;
use crate::trouble::told;
use contents::{Contents, Name};
use findings::Findings;
use progress::Progress;
use report::{DriveReport, Report, VdiskReport};
use sight::Sight;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use units::{Damaged, Fault};
use weft_engine::{DriveId, FamilyId};
use weft_node::offline::{self, FamilyState, Offline, OfflineDrive};

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft check ./weft-data
  weft --json check ./weft-data | jq .problems_by_kind
  weft check /mnt/a/weft /mnt/b/weft /mnt/c/weft      nodes of one cluster together

The records of a cluster are read from etcd, which must run. With the directories of all its nodes everything is
compared with everything; with some, what is there is verified, and it is said what could not be seen.

Exit code 0: all is sound. 1: problems were found. 2: it could not begin, for example because the node runs.")]
pub struct CheckArgs {
    /// Directory of the node, which must not run; several of one cluster are checked together
    #[arg(env = "WEFT_DIR", default_value = "./weft-data", value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// Addresses of the cluster's etcd [default: those that the directory knows]
    // Not from the environment: that may be of another cluster than the directory.
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',')]
    pub etcd: Vec<String>,
    #[arg(skip)]
    pub json: bool,
}

pub fn run(arguments: CheckArgs) -> anyhow::Result<ExitCode> {
    let offline = offline::open(&arguments.dirs, &arguments.etcd)?;
    let names: Vec<String> = offline.dirs.iter().map(|dir| dir.display().to_string()).collect();
    let names = names.join(", ");
    if offline.nodes.is_empty() {
        anyhow::ensure!(
            !(offline.drives.is_empty() && offline.families.is_empty()),
            "the config store of {names} holds no drives, so there is nothing to check; put the right config.redb back",
        );
    } else {
        anyhow::ensure!(
            !offline.drives.is_empty(),
            "the cluster knows no drives in {names}, so there is nothing to check; give the directory of a node that has some",
        );
    }
    let report = check(&offline);
    let mut text =
        if arguments.json { output::json_text(&serde_json::to_value(&report)?) } else { report.text() };
    text.push('\n');
    // Decided before anything is printed: whoever reads the first lines only gets the same.
    let code = u8::from(!report.sound);
    output::write_due(text.as_bytes(), code);
    Ok(ExitCode::from(code))
}

/// Everything about one drive.
struct Checked {
    report: DriveReport,
    contents: Option<(Contents, Damaged)>,
    findings: Findings,
}

fn check(offline: &Offline) -> Report {
    let progress = Progress::begin();
    let mut findings = Findings::default();
    let checked = check_drives(&offline.drives, &progress);
    let mut drives: BTreeMap<DriveId, Contents> = BTreeMap::new();
    let mut damaged: BTreeMap<DriveId, Damaged> = BTreeMap::new();
    let mut drive_reports = Vec::new();
    for drive in checked {
        findings.append(drive.findings);
        drive_reports.push(drive.report);
        if let Some((contents, bad)) = drive.contents {
            damaged.insert(contents.drive, bad);
            drives.insert(contents.drive, contents);
        }
    }
    let mut vdisks = Vec::new();
    let mut unnamed: BTreeSet<Name> = BTreeSet::new();
    let mut of_vdisks = Findings::default();
    let mut sight = Sight::new(offline);
    for config in &offline.families {
        if config.state == FamilyState::Dropping {
            let text = "it is being deleted; the node goes on with that when it starts".to_string();
            of_vdisks.note("dropping", None, Some(&config.name), text);
            continue;
        }
        // Its own: what another vDisk has lost says nothing of what names its egroups.
        let mut own = Findings::default();
        let family = family::Family::read(config, offline, &drives, &mut own);
        let mut counted = copies::check(&family, &damaged, &mut own);
        of_vdisks.append(own);
        unnamed.append(&mut counted.unnamed);
        sight.add(&family.unseen, &counted.unseen);
        vdisks.push(VdiskReport {
            name: config.name.clone(),
            family: config.family,
            size: config.size,
            factor: offline.policy(config).factor,
            epoch: config.epoch,
            seen: !family.unseen.log,
            checkpoint: family.checkpoint.as_ref().map_or(0, |(seq, _)| seq.0),
            acknowledged: family.ends.acknowledged.0,
            end: family.ends.end.0,
            records_replayed: family.replayed,
            replayed_bytes: family.replayed_bytes,
            leaves: counted.leaves,
            mapped_blocks: counted.mapped_blocks,
            egroups: counted.egroups,
            copies: counted.copies,
            orphans: counted.orphans,
            orphan_bytes: counted.orphan_bytes,
        });
    }
    // Of a vDisk that is being deleted, or is not known any more, nothing is named.
    let lives = offline.families.iter().filter(|config| config.state != FamilyState::Dropping);
    let living: BTreeSet<FamilyId> = lives.map(|config| config.id()).collect();
    let all = drives.values().flat_map(|contents| contents.egroups.keys());
    unnamed.extend(all.filter(|(family, _)| !living.contains(family)).copied());
    tell_damage(&damaged, &unnamed, &mut findings);
    findings.append(of_vdisks);
    unknown_families(offline, &drives, &mut findings);
    sight.tell(offline, &mut findings);
    if findings.counts.contains_key("copy_missing") {
        let text = "copies that are missing are made again while the nodes run, from those that are there: the last nodes that \
                    were stopped had nowhere to put a second one";
        findings.note("copies_missing", None, None, text.to_string());
    }
    let nodes = offline.drives.iter().filter_map(|drive| Some((drive.drive, drive.node?)));
    findings.name_nodes(&nodes.collect());
    Report {
        complete: sight.is_complete(),
        sound: findings.count() == 0,
        problems_count: findings.count(),
        problems_by_kind: findings.counts,
        problems: findings.problems,
        notes: findings.notes,
        drives: drive_reports,
        vdisks,
        bytes_read: progress.bytes(),
        seconds: progress.seconds(),
    }
}

/// All drives at once, each on a thread of its own.
fn check_drives(drives: &[OfflineDrive], progress: &Progress) -> Vec<Checked> {
    at_once(drives, progress, |drive| check_drive(drive, progress))
}

fn at_once<T: Sync, R: Send>(all: &[T], progress: &Progress, read: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let read = &read;
    std::thread::scope(|scope| {
        let shower = scope.spawn(|| progress.show());
        let readers: Vec<_> = all.iter().map(|one| scope.spawn(move || read(one))).collect();
        let ended: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        // Whatever came of it: the scope waits for the line's thread, also when it is left by a panic.
        progress.end();
        shower.thread().unpark();
        ended.into_iter().map(|one| one.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

fn check_drive(drive: &OfflineDrive, progress: &Progress) -> Checked {
    let mut findings = Findings::default();
    let mut report = DriveReport {
        node: drive.node,
        drive: drive.drive.0,
        place: drive.place.clone(),
        readable: false,
        log_frames: 0,
        log_records: 0,
        egroups: 0,
        egroup_bytes: 0,
        shared_bytes: 0,
        held_bytes: 0,
        units_verified: 0,
        units_damaged: 0,
    };
    progress.expect(drive.geometry.log);
    let add = |bytes| progress.add(bytes);
    let contents = match Contents::read(drive, &mut findings, &add) {
        Ok(contents) => contents,
        Err(error) => {
            findings.problem("drive_unreadable", Some(drive.drive), None, told(&error));
            return Checked { report, contents: None, findings };
        }
    };
    progress.expect(contents.egroup_bytes());
    let damaged = units::verify(&contents, &add);
    report.readable = true;
    report.log_frames = contents.chain.kept.len() as u64;
    report.log_records = contents.held.values().map(|held| held.records.len() as u64).sum();
    report.egroups = contents.egroups.len() as u64;
    report.egroup_bytes = contents.egroup_bytes();
    (report.shared_bytes, report.held_bytes) = contents.shared_bytes();
    report.units_verified = damaged.verified;
    report.units_damaged = damaged.units.values().map(|units| units.len() as u64).sum();
    Checked { report, contents: Some((contents, damaged)), findings }
}

/// What was being written when a node was killed is not whole, but then nothing names it yet.
fn tell_damage(damaged: &BTreeMap<DriveId, Damaged>, unnamed: &BTreeSet<Name>, findings: &mut Findings) {
    for (&drive, damaged) in damaged {
        let (unfinished, others): (Vec<&Fault>, Vec<&Fault>) =
            damaged.faults.iter().partition(|fault| unnamed.contains(&fault.name));
        for fault in others {
            findings.problem(fault.kind, Some(drive), None, fault.text.clone());
        }
        let unfinished: BTreeSet<Name> = unfinished.iter().map(|fault| fault.name).collect();
        if !unfinished.is_empty() {
            let text = format!(
                "{} egroups that nothing names are not whole: they were being written at the end; the node deletes them",
                unfinished.len()
            );
            findings.note("egroups_unfinished", Some(drive), None, text);
        }
    }
}

/// Egroups of vDisks that the config store does not know: they were deleted while a drive was away.
fn unknown_families(offline: &Offline, drives: &BTreeMap<DriveId, Contents>, findings: &mut Findings) {
    let known: BTreeSet<FamilyId> = offline.families.iter().map(|family| family.id()).collect();
    for contents in drives.values() {
        let strangers = contents.egroups.keys().filter(|(family, _)| !known.contains(family)).count();
        if strangers > 0 {
            let text = format!("{strangers} egroups belong to vDisks that do not exist any more");
            findings.note("egroups_of_unknown_vdisks", Some(contents.drive), None, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_panics_ends_the_check_also_where_progress_is_shown() {
        let progress = Progress::on_a_terminal();
        let work = || at_once(&[1, 2, 3], &progress, |drive| assert_ne!(*drive, 2, "as this test wants it"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err());
        assert_eq!(at_once(&[1, 2], &Progress::on_a_terminal(), |drive| drive * 2), [2, 4]);
    }
}
