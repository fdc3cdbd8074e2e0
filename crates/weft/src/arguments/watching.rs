//! What commands that look into a running node take.

use super::Place;
use clap::Args;

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  weft top                        a table that is drawn again every second; Ctrl-C ends it
  weft top --interval 5 | tee log one table after the other, because stdout is no terminal
  weft top --once --json          one second as one JSON object, for scripts

R/S, W/S: reads and writes in a second; p50, p99: half and 99 % of them took up to so long; QD: requests outstanding now.
FROM: where the data of reads came from (zeroes, overlay: acknowledged and not drained yet, cache, ahead: read ahead, local and
remote drives, origin of a clone). TO: where writes went (log, bypass: egroups at once, zeroes: nowhere).
The busiest vDisk is the first. In a cluster all nodes are asked; those that do not answer are named.")]
pub struct TopArguments {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: f64,
    /// Look once (over one interval), and end
    #[arg(long)]
    pub once: bool,
    #[command(flatten)]
    pub place: Place,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err(format!("`{text}` is no interval: give seconds from 0.1 to 3600")),
    }
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  weft latency            where time went since the last reset
  weft latency --reset    begin again; what is counted since the start stays

Stages of the group `request` are whole requests, by the slowest thing they needed: FoundZeroes are reads of blocks that were
never written. The others are parts of these, and of work in the background. The same as a page: /latency of the node's API.")]
pub struct LatencyArguments {
    /// Count from now on
    #[arg(long)]
    pub reset: bool,
    /// Stages that nothing has passed, too
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub place: Place,
}
