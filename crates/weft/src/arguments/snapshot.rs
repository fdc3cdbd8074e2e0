//! What may be said about snapshots.

use super::Place;
use crate::duration;
use clap::Subcommand;

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
    Ls {
        /// Only those of this vDisk
        vdisk: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Tell everything about one snapshot
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
    Ls {
        #[command(flatten)]
        place: Place,
    },
    /// Take no more snapshots of a vDisk by themselves; those that there are stay
    Rm {
        vdisk: String,
        #[command(flatten)]
        place: Place,
    },
}
