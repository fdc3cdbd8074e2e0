//! What may be said about snapshots.

use super::Place;
use crate::duration;
use clap::{Args, Subcommand};

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  weft clone golden@ready web1
  weft clone golden@ready web --count 100          web-1 to web-100

A clone is a vDisk of its own that begins as the snapshot. It takes no space until it is written; what it has not written is read
from the snapshot, which therefore stays until its clones are deleted.")]
pub struct CloneArguments {
    /// VDISK@SNAPSHOT
    pub snapshot: String,
    /// Of the new vDisk; with --count what their names begin with
    pub name: String,
    /// Make so many, named NAME-1 and so on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub count: Option<u32>,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Subcommand, Debug)]
pub enum SnapshotCommand {
    /// Take a snapshot: everything acknowledged before is in it; clients go on meanwhile
    #[command(after_help = "Examples:
  weft snapshot create vol1                 named after the time
  weft snapshot create vol1 before-upgrade
  weft vdisk export vol1@before-upgrade --nbd unix:/run/old.sock

It takes no time and, at first, no space: only what is overwritten later is kept twice.")]
    Create {
        /// The vDisk, or VDISK@NAME
        vdisk: String,
        /// Letters, digits, dot, dash, underscore; at most 63 [default: the time]
        name: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// List snapshots, the oldest first
    #[command(
        after_help = "Examples:\n  weft snapshot ls\n  weft snapshot ls vol1 --json | jq -r '.[].name'"
    )]
    Ls {
        /// Only those of this vDisk
        vdisk: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Tell everything about one snapshot
    #[command(after_help = "Example:\n  weft snapshot show vol1@before-upgrade")]
    Show {
        /// VDISK@SNAPSHOT
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Remove snapshots, in any order; what only they held becomes free in the background
    #[command(after_help = "Example:\n  weft snapshot rm vol1@monday vol1@tuesday")]
    Rm {
        /// VDISK@SNAPSHOT
        #[arg(required = true, value_name = "VDISK@SNAPSHOT")]
        names: Vec<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Make a vDisk again what a snapshot of it is; what was written since is gone
    #[command(after_help = "Example:
  weft vdisk unexport vol1
  weft snapshot rollback vol1@before-upgrade

Newer snapshots of the vDisk would lose what they are made of, so they have to go (--discard-newer). To keep them, clone the
snapshot instead: weft clone vol1@before-upgrade vol2")]
    Rollback {
        /// VDISK@SNAPSHOT
        name: String,
        /// Remove newer snapshots
        #[arg(long)]
        discard_newer: bool,
        /// Also while the vDisk is exported: connected clients see another disk from then on
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Tell which ranges may have changed between two snapshots, or a snapshot and the vDisk now
    #[command(after_help = "Examples:
  weft snapshot diff vol1@monday vol1@tuesday --json
  weft snapshot diff vol1@tuesday vol1

For backup tools: what is not told has not changed. What is told may be the same after all, if it was written again.")]
    Diff {
        /// VDISK@SNAPSHOT
        from: String,
        /// VDISK@SNAPSHOT, or the VDISK as it is now
        to: String,
        #[command(flatten)]
        place: Place,
    },
    /// Take snapshots by themselves
    #[command(subcommand)]
    Schedule(ScheduleCommand),
}

#[derive(Subcommand, Debug)]
pub enum ScheduleCommand {
    /// Take a snapshot every so often, and keep the newest; takes the place of the schedule before
    #[command(after_help = "Example:
  weft snapshot schedule set vol1 --every 10m --keep 7

The first one is taken after one interval. One that is late (nobody served the vDisk) is left out. Only the schedule's own
snapshots are removed, and not while they are exported or attached.")]
    Set {
        vdisk: String,
        /// For example 10m, 2h, 1d
        #[arg(long, value_name = "TIME", value_parser = duration::parse_seconds)]
        every: u64,
        /// How many of its own snapshots stay
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
        #[command(flatten)]
        place: Place,
    },
    /// List schedules
    #[command(after_help = "Example:\n  weft snapshot schedule ls")]
    Ls {
        #[command(flatten)]
        place: Place,
    },
    /// Take no more snapshots of a vDisk by themselves; those that there are stay
    #[command(after_help = "Example:\n  weft snapshot schedule rm vol1")]
    Rm {
        vdisk: String,
        #[command(flatten)]
        place: Place,
    },
}
