//! What may be said about measuring.

use super::Place;
use crate::{duration, size};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum LabCommand {
    /// Run a scenario on one or more targets, and compare them
    #[command(after_help = "Scenarios:
  four-corners      random and sequential reads and writes, as fast as the target goes
  compression       the same kind of rows on data that compresses and on data that does not: name a vDisk with and one without
  snapshot-impact   a database at a fixed rate, and snapshots of all its volumes meanwhile: how much does it feel them?
  noisy-neighbour   a database at a fixed rate, and for the middle third a scan of another volume beside it

Targets of four-corners and compression:
  weft:NAME                          a vDisk of the node of --dir; it must be exported
  nbd+unix:///NAME?socket=PATH       any NBD server on a Unix socket
  nbd://HOST:PORT/EXPORT             any NBD server on TCP
  file:PATH                          a file, made when it is not there
  /dev/...                           a block device
  LABEL=TARGET                       any of these under a name of its own in the tables
NBD targets may end in ,pid=N (the server's process, for its CPU and memory) and ,durable=always, ,durable=flush
or ,durable=URI (how a durable write is asked of it).

The first target is what the others are compared with, unless --baseline names another by its label.
A file or device that holds something else is refused unless --destroy is given.

Targets of snapshot-impact and noisy-neighbour are places where the lab makes volumes of its own, and removes them afterwards:
  weft:NAME                          vDisks NAME-data-1, NAME-log-1, ... and a group NAME on the node of --dir
  qcow2-internal:DIR                 images served by qemu-storage-daemon; snapshots inside of them
  qcow2-chain:DIR                    images likewise; each snapshot is a new image on top
  file:DIR                           files without snapshots: the control

Examples:
  weft lab run four-corners --target file:./raw.img --target weft:vol1 --out ./report
  weft lab run compression --target weft:plain --target weft:packed --size 4G --out ./report
  weft lab run snapshot-impact --target weft:db --target qcow2-chain:./images --snapshots 30 --every 10s --out ./report
  weft lab run noisy-neighbour --target weft:db --target file:./files --rate 1600 --runtime 180 --out ./report")]
    Run(Box<LabRunArguments>),
    /// Write the report of a finished run again
    #[command(after_help = "Example:\n  weft lab report ./report")]
    Report { dir: PathBuf },
    /// Show the load profiles: the fio jobs that the scenarios are made of
    #[command(after_help = "Example:\n  weft lab profiles")]
    Profiles,
}

#[derive(Args, Debug)]
pub struct LabRunArguments {
    /// The scenario
    #[arg(value_enum, default_value_t = Scenario::FourCorners)]
    pub scenario: Scenario,
    /// What to measure (may be repeated)
    #[arg(long, required = true, value_name = "TARGET")]
    pub target: Vec<String>,
    /// Directory for raw samples, results and the report
    #[arg(long, env = "WEFT_LAB_OUT", value_name = "DIR")]
    pub out: PathBuf,
    /// How much of each target is used; of a scenario with a database: by that [default: 1G, with a database 2G]
    #[arg(long, env = "WEFT_LAB_SIZE", value_name = "SIZE", value_parser = size::parse)]
    pub size: Option<u64>,
    /// Seconds of each measurement; of noisy-neighbour: of the whole; snapshot-impact lasts as long as its snapshots [default: 10, noisy-neighbour 180]
    #[arg(long, env = "WEFT_LAB_RUNTIME", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub runtime: Option<u32>,
    /// Requests outstanding; of noisy-neighbour: of the scan; the rows of the longer table have their own [default: 32, there 16]
    #[arg(long, env = "WEFT_LAB_DEPTH", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: Option<u32>,
    /// How often everything is measured [default: 1]
    #[arg(long, env = "WEFT_LAB_REPEATS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: Option<u32>,
    /// The target that ratios refer to
    #[arg(long, env = "WEFT_LAB_BASELINE", value_name = "TARGET")]
    pub baseline: Option<String>,
    /// Which rows: the four corners, or the longer table of docs/benchmarks.md [default: corners]
    #[arg(long, env = "WEFT_LAB_ROWS", value_enum)]
    pub rows: Option<Rows>,
    /// Whether the touched range is written before anything is measured [default: always]
    #[arg(long, env = "WEFT_LAB_PREFILL", value_enum)]
    pub prefill: Option<Fill>,
    /// Seconds of random reads before the first measurement, after everything was read once; 0: neither [default: 3]
    #[arg(long, env = "WEFT_LAB_WARM_UP", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86400))]
    pub warm_up: Option<u32>,
    /// snapshot-impact: how many snapshots are taken [default: 30]
    #[arg(long, env = "WEFT_LAB_SNAPSHOTS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10000))]
    pub snapshots: Option<u32>,
    /// snapshot-impact: time from one snapshot to the next, like 10s or 5m [default: 10s]
    #[arg(long, env = "WEFT_LAB_EVERY", value_name = "TIME", value_parser = duration::parse_seconds)]
    pub every: Option<u64>,
    /// snapshot-impact: time before the first snapshot, which all later ones are compared with [default: 10s]
    #[arg(long, env = "WEFT_LAB_LEAD", value_name = "TIME", value_parser = duration::parse_seconds)]
    pub lead: Option<u64>,
    /// With a database: its I/Os per second, all its volumes together [default: 1600]
    #[arg(long, env = "WEFT_LAB_RATE", value_name = "IOPS", value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: Option<u64>,
    /// compression: how much of each block compresses away, in percent [default: 75]
    #[arg(long, env = "WEFT_LAB_COMPRESSIBLE", value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=99))]
    pub compressible: Option<u32>,
    /// Seconds of rest after each measurement [default: 1; after one that writes 6, and longer, up to 30, as long as a server whose process
    /// is known is at work; with a database 5]
    #[arg(long, env = "WEFT_LAB_IDLE", value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86400))]
    pub idle: Option<u32>,
    /// Seed of fio's random offsets [default: 1]
    #[arg(long, env = "WEFT_LAB_SEED")]
    pub seed: Option<u64>,
    /// Measure also where something else lies: it is overwritten
    #[arg(long)]
    pub destroy: bool,
    #[command(flatten)]
    pub place: Place,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    FourCorners,
    Compression,
    SnapshotImpact,
    NoisyNeighbour,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    Corners,
    Table,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum Fill {
    Always,
    /// Only if no earlier run has filled the target as far
    IfNeeded,
    Never,
}

impl From<Rows> for weft_lab::RowSet {
    fn from(rows: Rows) -> Self {
        match rows {
            Rows::Corners => Self::Corners,
            Rows::Table => Self::Table,
        }
    }
}

impl From<Fill> for weft_lab::Prefill {
    fn from(fill: Fill) -> Self {
        match fill {
            Fill::Always => Self::Always,
            Fill::IfNeeded => Self::IfNeeded,
            Fill::Never => Self::Never,
        }
    }
}
