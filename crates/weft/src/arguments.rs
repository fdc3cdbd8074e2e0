//! The command line: what may be said, with the help that teaches it.

mod cluster;
mod container;
mod group;
mod lab;
mod place;
mod snapshot;
mod transfer;
mod watching;

pub use cluster::{
    ClusterCommand, DriveCommand, InitArguments, JoinArguments, NodeArguments, NodeCommand, PgCommand,
};
pub use container::{ContainerCommand, ContainerLimitArgs};
pub use group::GroupCommand;
pub use lab::{Fill, LabCommand, LabRunArguments, Rows, Scenario};
pub use place::Place;
pub use snapshot::{CloneArguments, ScheduleCommand, SnapshotCommand};
pub use transfer::{ExportArguments, Format, ImportArguments};
pub use watching::{LatencyArguments, TopArguments};

use crate::{duration, size, up};
use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::PathBuf;
use weft_node::DRIVES_MAX;

#[derive(Parser, Debug)]
#[command(
    name = "weft",
    version,
    about = "Virtual disks on ordinary drives, and a lab that measures any storage",
    arg_required_else_help = true,
    after_help = "Examples:
  weft up --dir ./weft-data --drive-size 16G         run a node on one file-backed drive
  weft vdisk create vol1 --size 8G                   make a virtual disk
  weft vdisk export vol1 --nbd unix:/run/vol1.sock   serve it to NBD clients
  weft vdisk attach vol1                             make it a block device of this machine
  weft snapshot create vol1 before-upgrade           keep it as it is now, and read it as vol1@before-upgrade
  weft lab run four-corners --target weft:vol1 --target file:./raw.img --out ./report
  weft check ./weft-data                             verify everything while the node is stopped
  weft cluster init --etcd http://10.0.0.1:2379      make a cluster; nodes come with `weft node join`

Exit codes: 0 done, 1 failed, 2 bad input. Errors are one line on stderr."
)]
pub struct Arguments {
    /// Print JSON instead of text for people
    #[arg(long, global = true, env = "WEFT_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a node in the foreground; Ctrl-C stops it cleanly
    Up(UpArguments),
    /// Stop a running node cleanly
    #[command(after_help = "Examples:
  weft down --dir ./weft-data
  weft down --api 10.0.0.2:7070     a node of another machine")]
    Down(Place),
    /// Say how a node is: drives, vDisks, trouble
    #[command(after_help = "Examples:
  weft status --dir ./weft-data
  weft status --json | jq .drives")]
    Status(Place),
    /// Create, list, change, export and attach virtual disks
    #[command(subcommand)]
    Vdisk(VdiskCommand),
    /// Make, list and change containers: policies that virtual disks are kept by
    #[command(subcommand)]
    Container(ContainerCommand),
    /// Take, list and remove snapshots of virtual disks, by hand or by a schedule
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Make vDisks that begin as a snapshot and take no space until they are written
    Clone(CloneArguments),
    /// Take snapshots of several virtual disks at one instant
    #[command(subcommand)]
    Group(GroupCommand),
    /// Make a vDisk of a disk image (raw or qcow2)
    Import(ImportArguments),
    /// Make a disk image (raw or qcow2) of a vDisk or a snapshot
    Export(ExportArguments),
    /// Make a cluster, and see how it is
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Join, list, empty and remove the nodes of a cluster
    #[command(subcommand)]
    Node(NodeCommand),
    /// List, add and remove the drives of a cluster
    #[command(subcommand)]
    Drive(DriveCommand),
    /// Look at the placement groups of a cluster
    #[command(subcommand)]
    Pg(PgCommand),
    /// See and change how much memory a node keeps data in for reads
    #[command(subcommand)]
    Cache(CacheCommand),
    /// Counters of drives, shards and vDisks
    Stats(StatsArguments),
    /// Watch what every vDisk does: load, latency, where reads come from and writes go
    Top(TopArguments),
    /// Where time goes, stage by stage
    Latency(LatencyArguments),
    /// Look at what lies on the drives of a stopped node
    Inspect(crate::inspect::InspectArgs),
    /// Verify everything on the drives of a stopped node; changes nothing
    Check(crate::check::CheckArgs),
    /// Measure storage: Weft, files, devices, anything that speaks NBD
    #[command(subcommand)]
    Lab(LabCommand),
    /// Run the engine on pretend drives and networks that fail as real ones do
    #[command(after_help = "\
Examples:
  weft sim --seconds 600                       ten minutes of new seeds of all plans
  weft sim --plan swarm --seed 4711 --trace    one seed, and everything that goes into and comes out of shards
  weft sim scale --svg scale.svg               how clusters of 4 to 256 nodes rebuild and grow")]
    Sim(weft_sim::command::Arguments),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  weft completions bash > /etc/bash_completion.d/weft")]
    Completions { shell: clap_complete::Shell },
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  weft up --dir ./weft-data                            one file-backed drive of 16G, one copy of everything
  weft up --dir ./weft-data --drives 3                 three drives, every byte on two of them
  weft up --dir ./weft-data --drive /dev/sdb --drive /dev/sdc
  weft up --dir ./weft-data --replace-lost             a drive is gone for good: rebuild its copies on the others

With one drive the replication factor is 1: data survives a crash or power cut, but not the loss of the drive.
What is not said here is taken from the environment, then from the configuration file, then from the defaults. Keys of the
file are the names of the options: drive-size = \"16G\". Options that destroy something are taken from here only.")]
pub struct UpArguments {
    /// Configuration file [default: /etc/weft/weft.toml, if it is there]
    #[arg(long, env = "WEFT_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub options: UpOptions,
    /// Take devices that hold something else; what they hold is destroyed
    #[arg(long)]
    pub force: bool,
    /// Treat drives that are missing as gone for good, and rebuild their copies on the others
    #[arg(long)]
    pub replace_lost: bool,
    /// Serve by a config.redb that is older than the node has seen it; what was done since may be lost
    #[arg(long)]
    pub accept_records: bool,
}

/// What may also come from the configuration file. Defaults are not filled in here, so that the file can.
#[derive(Args, Debug, Default, Clone, PartialEq, Eq)]
pub struct UpOptions {
    /// Directory for the config, the API address and file-backed drives; made if it is not there [default: ./weft-data]
    #[arg(long, env = "WEFT_DIR", value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// How many file-backed drives to have; more than before adds drives [default: 1 without --drive]
    #[arg(long, env = "WEFT_DRIVES", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(DRIVES_MAX)))]
    pub drives: Option<u32>,
    /// Size of each file-backed drive that is made now [default: 16G]
    #[arg(long, env = "WEFT_DRIVE_SIZE", value_name = "SIZE", value_parser = size::parse)]
    pub drive_size: Option<u64>,
    /// Use this block device as a drive (may be repeated, or several with commas)
    #[arg(long, env = "WEFT_DRIVE", value_name = "PATH", value_delimiter = ',')]
    pub drive: Vec<PathBuf>,
    /// Copies of everything on new vDisks [default: 2, or 1 with one drive]
    #[arg(long, env = "WEFT_RF", value_name = "R", value_parser = clap::value_parser!(u32).range(1..=3))]
    pub rf: Option<u32>,
    /// Engine threads [default: 1]
    #[arg(long, env = "WEFT_SHARDS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub shards: Option<u32>,
    /// Memory to keep data in for reads, of all shards together; 0 keeps none and reads nothing ahead [default: 256M]
    #[arg(long, env = "WEFT_READ_CACHE", value_name = "SIZE", value_parser = size::parse_or_none)]
    pub read_cache: Option<u64>,
    /// Address of the HTTP API; port 0 takes any free one [default: 127.0.0.1:7070]
    #[arg(long, env = "WEFT_API", value_name = "ADDR")]
    pub api: Option<SocketAddr>,
    /// Where a member of a cluster hears the other nodes from now on, if its address has changed [default: as before]
    #[arg(long, env = "WEFT_TRANSPORT", value_name = "ADDR")]
    pub transport: Option<SocketAddr>,
    /// What is logged to stderr: error, warn, info, debug or trace [default: info]
    #[arg(long, env = "WEFT_LOG", value_name = "LEVEL", value_parser = up::log_level)]
    pub log: Option<String>,
}

#[derive(clap::Args, Debug)]
pub struct CompressionArgs {
    /// off, lz4, zstd or zstd:LEVEL (1 to 19), or inherit: what the container says
    #[arg(long, value_name = "METHOD")]
    pub compression: Option<String>,
    /// How much is packed together: 4K, 8K, 16K or 32K. More compresses better, and more is read for one block
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub unit: Option<u64>,
    #[command(flatten)]
    pub cold: ColdArgs,
}

#[derive(clap::Args, Debug)]
pub struct DedupArgs {
    /// Whether what lies on a drive already is not written there again: on, off, or inherit: what the container says
    #[arg(long, value_name = "on|off|inherit", value_parser = ["on", "off", "inherit"])]
    pub dedup: Option<String>,
}

#[derive(clap::Args, Debug)]
pub struct ColdArgs {
    /// Pack data once more, with zstd, when no drive was asked for it in so long (such as 12h), or `never`
    #[arg(long, value_name = "TIME", value_parser = cold_after)]
    pub cold_after: Option<u64>,
    /// The level of zstd for that, 1 to 19 [default: 9]
    #[arg(long, value_name = "LEVEL", requires = "cold_after", value_parser = clap::value_parser!(u8).range(1..=19))]
    pub cold_level: Option<u8>,
}

/// Seconds; 0: never.
fn cold_after(text: &str) -> Result<u64, String> {
    if text == "never" { Ok(0) } else { duration::parse_seconds(text) }
}

/// A limit as the API takes it.
fn own_limit(text: &str) -> Result<Value, String> {
    if text == "inherit" { Ok(Value::from(text)) } else { size::parse_limit(text).map(Value::from) }
}

/// A number of copies as the API takes it.
fn own_factor(text: &str) -> Result<Value, String> {
    match text {
        "inherit" => Ok(Value::from(text)),
        "1" | "2" | "3" => Ok(Value::from(text.parse::<u64>().expect("it is a number"))),
        _ => Err(format!("`{text}` is no number of copies: write 1, 2, 3 or inherit")),
    }
}

fn own_count_limit(text: &str) -> Result<Value, String> {
    if text == "inherit" { Ok(Value::from(text)) } else { size::parse_count_limit(text).map(Value::from) }
}

#[derive(clap::Args, Debug)]
pub struct LimitArgs {
    /// Reads, writes and trims in a second, of any size, or `none`, or `inherit`: what the container says
    #[arg(long, value_name = "N|none", value_parser = own_count_limit)]
    pub iops_limit: Option<Value>,
    /// Bytes read and written in a second, like 100M, or `none`, or `inherit`: what the container says
    #[arg(long, value_name = "SIZE|none", value_parser = own_limit)]
    pub bw_limit: Option<Value>,
}

#[derive(Subcommand, Debug)]
pub enum VdiskCommand {
    /// Make a vDisk
    #[command(
        after_help = "Examples:\n  weft vdisk create vol1 --size 8G --rf 2\n  weft vdisk create pg1 --size 8G --container databases"
    )]
    Create {
        /// Letters, digits, dot, dash, underscore; at most 63
        name: String,
        /// For example 8G, 512M, 1T; only what is written takes space
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        size: u64,
        /// Copies of everything, on distinct drives [default: the container's, or the node's]
        #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=3))]
        rf: Option<u32>,
        /// Whose policy it has where it is told nothing else (see weft container) [default: default]
        #[arg(long, value_name = "NAME")]
        container: Option<String>,
        #[command(flatten)]
        compression: CompressionArgs,
        #[command(flatten)]
        dedup: DedupArgs,
        #[command(flatten)]
        limits: LimitArgs,
        #[command(flatten)]
        place: Place,
    },
    /// List vDisks
    #[command(after_help = "Examples:\n  weft vdisk ls\n  weft vdisk ls --json | jq -r '.[].name'")]
    Ls {
        #[command(flatten)]
        place: Place,
    },
    /// Tell everything about one vDisk
    #[command(after_help = "Examples:\n  weft vdisk show vol1\n  weft vdisk show vol1 --json | jq .usage")]
    Show {
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Change the size; connections made later see it
    #[command(after_help = "Example:\n  weft vdisk resize vol1 --size 16G")]
    Resize {
        name: String,
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        size: u64,
        #[command(flatten)]
        place: Place,
    },
    /// Change copies, how data is packed, limits, and the container; what was written before follows in the background
    #[command(after_help = "Examples:
  weft vdisk set vol1 --compression zstd:3 --unit 32K
  weft vdisk set vol1 --compression lz4 --cold-after 12h
  weft vdisk set vol1 --compression inherit            what its container says
  weft vdisk set vol1 --dedup on                       drives share what is alike, old data too
  weft vdisk set vol1 --container databases
  weft vdisk set vol1 --iops-limit 500 --bw-limit 100M
  weft vdisk set vol1 --iops-limit none
  weft vdisk set vol1 --rf 3                           three copies of everything; weft vdisk show tells when it is done
  weft vdisk set vol1 --rf inherit

Requests beyond a limit wait; none fails because of it.")]
    Set {
        name: String,
        /// Copies of everything, on distinct drives, or inherit: what the container says
        #[arg(long, value_name = "R", value_parser = own_factor)]
        rf: Option<Value>,
        /// Its policy is that of this container from now on, where it is told nothing else
        #[arg(long, value_name = "NAME")]
        container: Option<String>,
        #[command(flatten)]
        compression: CompressionArgs,
        #[command(flatten)]
        dedup: DedupArgs,
        #[command(flatten)]
        limits: LimitArgs,
        #[command(flatten)]
        place: Place,
    },
    /// Delete a vDisk and everything on it
    #[command(after_help = "Examples:
  weft vdisk rm vol1
  weft vdisk rm vol1 --force --with-snapshots     also while it is exported, and with its snapshots")]
    Rm {
        name: String,
        /// Also while it is exported
        #[arg(long)]
        force: bool,
        /// With all its snapshots
        #[arg(long)]
        with_snapshots: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Delete what drives hold of a vDisk that no record names
    #[command(after_help = "Example:
  weft vdisk forget 7

After older records of the cluster were put back, drives may hold data of vDisks made since, under numbers that the
records do not know. It is kept, and `weft status` names it, until you say that it may go.")]
    Forget {
        /// Its number, as `weft status` says
        number: u32,
        #[command(flatten)]
        place: Place,
    },
    /// Serve a vDisk to NBD clients, now and after every restart of the node
    #[command(after_help = "Examples:
  weft vdisk export vol1 --nbd unix:/run/vol1.sock
  weft vdisk export vol1 --nbd tcp:127.0.0.1:10809 --read-only
  weft vdisk export vol1@monday --nbd unix:/run/monday.sock

Several vDisks and snapshots may share one TCP address: clients choose by export name. Snapshots are read-only.")]
    Export {
        /// The vDisk, or VDISK@SNAPSHOT
        #[arg(value_name = "NAME")]
        disk: String,
        /// unix:PATH or tcp:ADDRESS:PORT
        #[arg(long, value_name = "WHERE")]
        nbd: String,
        #[arg(long)]
        read_only: bool,
        /// Under which clients find it [default: NAME]
        #[arg(long, value_name = "EXPORT")]
        name: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Stop serving a vDisk to NBD clients
    #[command(after_help = "Examples:
  weft vdisk unexport vol1
  weft vdisk unexport vol1 --nbd tcp:127.0.0.1:10809     its other exports stay")]
    Unexport {
        /// The vDisk, or VDISK@SNAPSHOT
        name: String,
        /// Only this address [default: all of them]
        #[arg(long, value_name = "WHERE")]
        nbd: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Make a vDisk a block device of this machine, and print the device
    #[command(
        after_help = "Examples:\n  mkfs.ext4 $(weft vdisk attach vol1)\n  mount -o ro $(weft vdisk attach vol1@monday) /mnt"
    )]
    Attach {
        /// The vDisk, or VDISK@SNAPSHOT
        name: String,
        #[arg(long)]
        read_only: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Let another node of the cluster serve a vDisk; clients go on, and data that is read often follows
    #[command(after_help = "Example:\n  weft vdisk move vol1 --to db-2")]
    Move {
        name: String,
        /// Number or name of the node
        #[arg(long, value_name = "NODE")]
        to: String,
        #[command(flatten)]
        place: Place,
    },
    /// Bring the map of a vDisk into memory before anybody reads, with --data what it holds too
    #[command(after_help = "Examples:
  weft vdisk warm vol1
  weft vdisk warm vol1 --data     as much as the read cache has room for")]
    Warm {
        name: String,
        /// Its data too, as far as the read cache has room
        #[arg(long)]
        data: bool,
        #[command(flatten)]
        place: Place,
    },
    /// What its requests were like: latencies, sizes, randomness, working set, where they went
    #[command(
        after_help = "Example:\n  weft vdisk stats vol1\n\nThe same as a page: /vdisk_stats/NAME of the node's API. `weft top` shows what happens now."
    )]
    Stats {
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Take the block device away; unmount it before
    #[command(after_help = "Example:\n  umount /mnt && weft vdisk detach vol1")]
    Detach {
        /// The vDisk, or VDISK@SNAPSHOT
        name: String,
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Subcommand, Debug)]
pub enum CacheCommand {
    /// How large it is, how full, and how often it was of use
    #[command(
        after_help = "Example:\n  weft cache show\n\nThe same as a page: /cache_stats of the node's API."
    )]
    Show {
        #[command(flatten)]
        place: Place,
    },
    /// Make it larger or smaller, at once and until the node is started again
    #[command(after_help = "Examples:
  weft cache resize 2G
  weft cache resize 0     keep nothing, and read nothing ahead")]
    Resize {
        /// For all shards of the node together
        #[arg(value_name = "SIZE", value_parser = size::parse_or_none)]
        size: u64,
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  weft stats
  weft stats vol1
  weft stats --json | jq '.drives[].free_bytes'")]
pub struct StatsArguments {
    /// Only this vDisk
    pub vdisk: Option<String>,
    #[command(flatten)]
    pub place: Place,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// The commands that do something, each under its whole name.
    fn leaves(command: &clap::Command, name: &str, found: &mut Vec<(String, String)>) {
        if !command.has_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            found.push((name.to_string(), help));
        }
        for inner in command.get_subcommands() {
            leaves(inner, &format!("{name} {}", inner.get_name()), found);
        }
    }

    #[test]
    fn the_help_of_every_command_has_an_example_of_it() {
        let mut found = Vec::new();
        leaves(&Arguments::command(), "weft", &mut found);
        assert!(found.len() > 50, "all of them are looked at");
        for (name, help) in found {
            assert!(help.contains("Example") && help.contains(&name), "{name}: {help}");
        }
    }
}
