//! What may be said about consistency groups.

use super::Place;
use clap::Subcommand;

#[derive(Subcommand, Debug)]
pub enum GroupCommand {
    /// Make a group of vDisks whose snapshots are taken together
    #[command(
        after_help = "Example:\n  weft group create db vol-data vol-wal\n  weft group snapshot db before-upgrade"
    )]
    Create {
        /// Letters, digits, dot, dash, underscore; at most 63
        group: String,
        vdisks: Vec<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Add vDisks to a group
    #[command(after_help = "Example:\n  weft group add db vol-index vol-temp")]
    Add {
        group: String,
        #[arg(required = true)]
        vdisks: Vec<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Take vDisks out of a group; nothing happens to them
    #[command(after_help = "Example:\n  weft group remove db vol-temp")]
    Remove {
        group: String,
        #[arg(required = true)]
        vdisks: Vec<String>,
        #[command(flatten)]
        place: Place,
    },
    /// List groups
    #[command(after_help = "Example:\n  weft group ls")]
    Ls {
        #[command(flatten)]
        place: Place,
    },
    /// Forget a group; its vDisks and snapshots stay
    #[command(after_help = "Example:\n  weft group rm db")]
    Rm {
        group: String,
        #[command(flatten)]
        place: Place,
    },
    /// Take a snapshot of every vDisk of a group, all of one instant
    #[command(after_help = "Examples:
  weft group snapshot db                   named after the time
  weft group snapshot db before-upgrade

Each vDisk gets a snapshot VDISK@NAME. Of two writes of which one was acknowledged before the other was sent, none of the
snapshots has the second one without the first. Clients wait for an instant, never longer than a second: if that is not
enough, the command fails and no snapshot is left.")]
    Snapshot {
        group: String,
        /// Letters, digits, dot, dash, underscore; at most 63 [default: the time]
        name: Option<String>,
        #[command(flatten)]
        place: Place,
    },
}
