//! `weft inspect`: looks at what lies on the drives of nodes that do not run: one that is alone, or some or all of a cluster.
//! Promises: changes nothing; damaged places are shown as such, not hidden.
//! Leaves to others: verifying everything (`check`), whose reading of drives it uses.

mod drive;
mod egroup;
mod log;
mod map;

use crate::check::contents::{self, Contents};
use crate::check::findings::Findings;
use crate::output;
use crate::trouble::told;
use anyhow::{Context, bail};
use clap::Subcommand;
use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;
use weft_node::offline::{self, FamilyConfig, Offline};

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft inspect drive                       all drives: how they are divided, how full they are
  weft inspect log 1 --vdisk vol1          the records of vol1 in the log of drive 1
  weft inspect egroup vol1                 the egroups of vol1 on every drive
  weft inspect egroup vol1 3.17 --units    one egroup, unit by unit
  weft inspect map vol1 --offset 1G        where a byte of vol1 is")]
pub struct InspectArgs {
    #[command(subcommand)]
    what: What,
    #[arg(skip)]
    pub json: bool,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Superblock, division and use of drives
    #[command(after_help = "Examples:\n  weft inspect drive\n  weft inspect drive 1 --dir ./weft-data")]
    Drive(drive::DriveArgs),
    /// Frames and records in the log ring of a drive
    #[command(after_help = "Examples:\n  weft inspect log 1\n  weft inspect log 1 --vdisk vol1 --last 0")]
    Log(log::LogArgs),
    /// Egroups of a vDisk: where their copies are, and whether these are sound
    #[command(after_help = "Examples:\n  weft inspect egroup vol1\n  weft inspect egroup vol1 3.17 --units")]
    Egroup(egroup::EgroupArgs),
    /// The map of a vDisk: its checkpoint, and where blocks are
    #[command(
        after_help = "Examples:\n  weft inspect map vol1\n  weft inspect map vol1 --offset 1G --len 1M"
    )]
    Map(map::MapArgs),
}

/// Where the nodes are.
#[derive(clap::Args, Debug)]
struct Place {
    /// Directory of the node, which must not run; may be repeated for several of one cluster
    #[arg(long, env = "WEFT_DIR", default_value = "./weft-data", value_name = "DIR")]
    dir: Vec<PathBuf>,
    /// Addresses of the cluster's etcd [default: those that the directory knows]
    // Not from the environment: that may be of another cluster than the directory.
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',')]
    etcd: Vec<String>,
}

impl Place {
    fn open(&self) -> anyhow::Result<Offline> {
        Ok(offline::open(&self.dir, &self.etcd)?)
    }
}

/// What a command shows: text for people, or a value for programs.
struct Shown {
    text: String,
    value: Value,
}

pub fn run(arguments: InspectArgs) -> anyhow::Result<ExitCode> {
    let shown = match &arguments.what {
        What::Drive(arguments) => drive::show(arguments)?,
        What::Log(arguments) => log::show(arguments)?,
        What::Egroup(arguments) => egroup::show(arguments)?,
        What::Map(arguments) => map::show(arguments)?,
    };
    if arguments.json {
        output::json(&shown.value);
    } else {
        output::write(shown.text.as_bytes());
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads one drive. What is wrong with it becomes lines behind the rest.
fn read_drive(offline: &Offline, number: u32) -> anyhow::Result<(Contents, Findings)> {
    let drive = contents::find(offline, number)?;
    let mut findings = Findings::default();
    let contents = Contents::read(drive, &mut findings, &|_| {})
        .with_context(|| format!("drive {number} ({}) cannot be read", drive.place))?;
    Ok((contents, findings))
}

/// Reads all drives that can be read; at least one can.
fn read_drives(
    offline: &Offline,
    findings: &mut Findings,
) -> anyhow::Result<std::collections::BTreeMap<weft_engine::DriveId, Contents>> {
    let mut drives = std::collections::BTreeMap::new();
    for drive in &offline.drives {
        match Contents::read(drive, findings, &|_| {}) {
            Ok(contents) => drop(drives.insert(drive.drive, contents)),
            Err(error) => {
                findings.problem("drive_unreadable", Some(drive.drive), None, told(&error));
            }
        }
    }
    if drives.is_empty() {
        let dirs: Vec<String> = offline.dirs.iter().map(|dir| dir.display().to_string()).collect();
        bail!("no drive of {0} can be read; weft check {0} tells why", dirs.join(" "));
    }
    Ok(drives)
}

fn vdisk<'a>(offline: &'a Offline, name: &str) -> anyhow::Result<&'a FamilyConfig> {
    offline.families.iter().find(|family| family.name == name).with_context(|| {
        let names: Vec<&str> = offline.families.iter().map(|family| family.name.as_str()).collect();
        match names.is_empty() {
            true => format!("there is no vDisk {name}; there is none"),
            false => format!("there is no vDisk {name}; there is {}", names.join(", ")),
        }
    })
}

/// Problems as lines of text.
fn problem_lines(findings: &Findings) -> String {
    findings.problems.iter().map(|problem| format!("problem: {problem}\n")).collect()
}

/// What is not told because it is on nodes that were not given.
fn elsewhere_line(offline: &Offline) -> String {
    let mut nodes: Vec<u32> = offline.elsewhere.values().copied().collect();
    nodes.sort_unstable();
    nodes.dedup();
    if nodes.is_empty() {
        return String::new();
    }
    let named: Vec<String> = nodes
        .iter()
        .map(|node| {
            let name = offline.nodes.get(node).map_or("", |node| node.name.as_str());
            format!("{node} ({name})")
        })
        .collect();
    format!("note: copies on node {} are not shown: give their directories too (--dir)\n", named.join(", "))
}
