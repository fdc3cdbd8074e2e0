//! What may be said about containers.

use super::{ColdArgs, Place};
use crate::size;
use clap::Subcommand;

#[derive(Subcommand, Debug)]
pub enum ContainerCommand {
    /// Make a container: a policy with a name, for many vDisks
    #[command(after_help = "Examples:
  weft container create databases --compression lz4 --rf 3
  weft container create desktops --compression lz4 --dedup on     drives share what is alike
  weft container create tests --iops-limit 500 --bw-limit 50M     for each of its vDisks
  weft vdisk create pg1 --size 100G --container databases

A vDisk does what its container says, unless it was told something else itself (weft vdisk set). vDisks for which no
container is named are in `default`, which always exists.")]
    Create {
        /// Letters, digits, dot, dash, underscore; at most 63
        name: String,
        /// How data is packed: off, lz4, zstd or zstd:LEVEL (1 to 19) [default: off]
        #[arg(long, value_name = "METHOD")]
        compression: Option<String>,
        /// How much is packed together: 4K, 8K, 16K or 32K [default: 8K]
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        unit: Option<u64>,
        #[command(flatten)]
        cold: ColdArgs,
        /// Whether what lies on a drive already is not written there again: on or off
        #[arg(long, value_name = "on|off", value_parser = ["on", "off"])]
        dedup: Option<String>,
        /// Copies of everything of its vDisks [default: of each as many as the node gives when it is made]
        #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=3))]
        rf: Option<u32>,
        #[command(flatten)]
        limits: ContainerLimitArgs,
        #[command(flatten)]
        place: Place,
    },
    /// List containers
    #[command(after_help = "Example:\n  weft container ls")]
    Ls {
        #[command(flatten)]
        place: Place,
    },
    /// Tell everything about a container, and what its vDisks take and save
    #[command(
        after_help = "Examples:\n  weft container show databases\n  weft container show databases --json | jq .usage"
    )]
    Show {
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Change the policy of a container; at once for what its vDisks write
    #[command(after_help = "Examples:
  weft container set databases --compression zstd:3 --unit 32K
  weft container set default --compression lz4 --cold-after 12h
  weft container set databases --rf 3                  copies are made in the background (weft container show)

What was written before is packed again in the background. vDisks that were told something else themselves stay with that
(weft vdisk set NAME --compression inherit ends it).")]
    Set {
        name: String,
        /// How data is packed: off, lz4, zstd or zstd:LEVEL (1 to 19)
        #[arg(long, value_name = "METHOD")]
        compression: Option<String>,
        /// How much is packed together: 4K, 8K, 16K or 32K
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        unit: Option<u64>,
        #[command(flatten)]
        cold: ColdArgs,
        /// Whether what lies on a drive already is not written there again: on or off
        #[arg(long, value_name = "on|off", value_parser = ["on", "off"])]
        dedup: Option<String>,
        /// Copies of everything, also of vDisks that are there, or `inherit`: of each as many as the node gave when it was made
        #[arg(long, value_name = "R", value_parser = copies)]
        rf: Option<u32>,
        #[command(flatten)]
        limits: ContainerLimitArgs,
        #[command(flatten)]
        place: Place,
    },
    /// Remove a container that no vDisk is in
    #[command(
        after_help = "Example:\n  weft vdisk set pg1 --container default\n  weft container rm databases"
    )]
    Rm {
        name: String,
        #[command(flatten)]
        place: Place,
    },
}

#[derive(clap::Args, Debug)]
pub struct ContainerLimitArgs {
    /// Reads, writes and trims in a second, of any size, that each of its vDisks gets, or `none`
    #[arg(long, value_name = "N|none", value_parser = size::parse_count_limit)]
    pub iops_limit: Option<u64>,
    /// Bytes read and written in a second, like 100M, that each of its vDisks gets, or `none`
    #[arg(long, value_name = "SIZE|none", value_parser = size::parse_limit)]
    pub bw_limit: Option<u64>,
}

/// 0 for those of the node.
fn copies(text: &str) -> Result<u32, String> {
    match text {
        "inherit" => Ok(0),
        "1" | "2" | "3" => Ok(text.parse().expect("it is a number")),
        _ => Err(format!("`{text}` is no number of copies: write 1, 2, 3 or inherit")),
    }
}
