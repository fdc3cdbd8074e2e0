//! What may be said about clusters: `weft cluster`, `node`, `drive` and `pg`.

use super::Place;
use crate::{duration, size};
use clap::builder::FalseyValueParser;
use clap::{Args, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;
use weft_node::DRIVES_MAX;

#[derive(Subcommand, Debug)]
pub enum ClusterCommand {
    /// Make a cluster in an etcd, empty or with a first node
    #[command(after_help = "Examples:
  weft cluster init --etcd http://10.0.0.1:2379                                    an empty cluster; nodes join it
  weft cluster init --etcd http://10.0.0.1:2379,http://10.0.0.2:2379 --dir ./weft-data \\
      --api 10.0.0.1:7070 --transport 10.0.0.1:7071                                with a first node

With --dir the directory becomes node 0. If a single node ran there, stop it first: its drives, vDisks and data come
along and stay where they are. Nodes that join later start empty. Cut anywhere, the same command finishes it.")]
    Init(InitArguments),
    /// Say how the cluster is: health, copies, repair, space, nodes, and what a failure would do now
    #[command(after_help = "Health is one of
  ok        every copy is where it shall be
  degraded  something is away or being repaired; everything can be reached
  danger    something cannot be reached, or the next failure could lose data

Example:\n  weft cluster status --watch")]
    Status {
        /// Show it again every two seconds, until Ctrl-C
        #[arg(long)]
        watch: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Go on with records that are older than those that nodes have seen: a backup of etcd that was put back
    #[command(after_help = "Examples:
  weft cluster accept-records --etcd http://10.0.0.1:2379                says what there is, and changes nothing
  weft cluster accept-records --etcd http://10.0.0.1:2379 --lose-data    the nodes may be started by these records

A node that has seen newer records than those in etcd serves nothing, and nothing of what drives hold is touched: put the newest
records back, and everything is as it was. Only when there are none any more, these can be accepted. Older records do not know where
logs and data have gone since. A vDisk whose log has moved is not served, is served as it was then, or as zeros; what it
has had since may be deleted, and records that are put back later do not mend that. Keep copies of the drives if you can.
Stop all nodes first. Start them afterwards, all of them, and look at `weft status` before you make anything new.")]
    AcceptRecords {
        #[command(flatten)]
        etcd: EtcdArguments,
        /// Name of the cluster
        #[arg(long, env = "WEFT_CLUSTER", value_name = "NAME", default_value = "main")]
        name: String,
        /// Do it, although what was done since may be lost
        #[arg(long)]
        lose_data: bool,
    },
    /// Change a setting of the cluster
    #[command(after_help = "Example:\n  weft cluster set --away-after 30m")]
    Set {
        /// How long a node, or a drive of one that lives, may be away before its copies are made again on others, like 90s, 10m or 2h
        #[arg(long, value_name = "TIME", value_parser = duration::parse_seconds)]
        away_after: u64,
        #[command(flatten)]
        place: Place,
    },
}

/// Where the cluster's records are.
#[derive(Args, Debug)]
pub struct EtcdArguments {
    /// Addresses of etcd's members, like http://10.0.0.1:2379
    #[arg(long, env = "WEFT_ETCD", value_name = "URL[,URL]", required = true, value_delimiter = ',')]
    pub etcd: Vec<String>,
}

#[derive(Args, Debug)]
pub struct InitArguments {
    #[command(flatten)]
    pub etcd: EtcdArguments,
    /// Name of the cluster; several may share an etcd
    #[arg(long, env = "WEFT_CLUSTER", value_name = "NAME", default_value = "main")]
    pub name: String,
    /// Directory that becomes the first node [default: none, an empty cluster]
    // Not from the environment: moving a node into a cluster is not undone, so it is asked for in so many words.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Name of that node [default: the machine's, and the directory's]
    #[arg(long, env = "WEFT_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,
    #[command(flatten)]
    pub node: NodeArguments,
}

/// How a new node shall be.
#[derive(Args, Debug)]
pub struct NodeArguments {
    /// Address of the node's HTTP API; one that the other machines reach, if there are any
    #[arg(long, env = "WEFT_API", value_name = "ADDR", default_value = "127.0.0.1:7070")]
    pub api: SocketAddr,
    /// Address where its shards talk to those of other nodes; the other machines must reach it
    #[arg(long, env = "WEFT_TRANSPORT", value_name = "ADDR", default_value = "127.0.0.1:7071")]
    pub transport: SocketAddr,
    /// Engine threads
    #[arg(long, env = "WEFT_SHARDS", value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    pub shards: u32,
    /// What fails together beyond a rack, such as a room or a building: copies go to distinct ones
    #[arg(long, env = "WEFT_ZONE", value_name = "ZONE", default_value = "", hide_default_value = true)]
    pub zone: String,
    /// What fails together beyond a node: copies go to distinct ones
    #[arg(long, env = "WEFT_RACK", value_name = "RACK", default_value = "", hide_default_value = true)]
    pub rack: String,
    /// The node holds data for others and serves no vDisks itself
    #[arg(long, env = "WEFT_STORAGE_ONLY", value_parser = FalseyValueParser::new())]
    pub storage_only: bool,
}

#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    /// Make a directory a node of a cluster; start it with `weft up` then
    #[command(after_help = "Examples:
  weft node join --etcd http://10.0.0.1:2379 --dir ./weft-data --api 10.0.0.2:7070 --transport 10.0.0.2:7071
  weft node join --etcd http://10.0.0.1:2379 --dir ./weft-data --zone east --rack r7 --storage-only

The directory must be new or empty: only the first node of a cluster can bring data (`weft cluster init --dir`).
After that, `weft up --dir DIR` runs the node: it makes a drive of 16 GiB there, or the drives that you say (--drives N
--drive-size SIZE, or --drive DEVICE); `weft drive add` gives it more. Cut anywhere, the same command finishes it.")]
    Join(JoinArguments),
    /// List the nodes
    #[command(
        after_help = "Examples:\n  weft node ls\n  weft node ls --json | jq '.[] | select(.alive | not) | .name'"
    )]
    Ls {
        #[command(flatten)]
        place: Place,
    },
    /// Empty a node: its vDisks are served elsewhere, its copies are made elsewhere; it serves until that is done
    #[command(after_help = "Examples:
  weft node drain 2              waits until node 2 is empty, showing how far it is
  weft node drain db-2 --undo    takes it back: the node gets its share again

Ending the command does not end the draining.")]
    Drain {
        /// Number or name
        node: String,
        /// Take it back
        #[arg(long, conflicts_with = "no_wait")]
        undo: bool,
        /// Only begin; `weft node ls` shows when it is drained
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Take a node out of the cluster for good; drain it first
    #[command(after_help = "Examples:
  weft node remove 2             a node that was drained
  weft node remove 2 --force     a node that is gone for good: what it had is copied from the others

A node that is alive and not drained is refused. With --force its drives are given up, unless other drives that
have the same data are away: then these come first. If they are gone for good as well, add --lose-data.")]
    Remove {
        /// Number or name
        node: String,
        /// Also if it is not drained: give up what it holds
        #[arg(long)]
        force: bool,
        /// Also what nobody else who is up has a copy of
        #[arg(long, requires = "force")]
        lose_data: bool,
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Args, Debug)]
pub struct JoinArguments {
    #[command(flatten)]
    pub etcd: EtcdArguments,
    /// Name of the cluster
    #[arg(long, env = "WEFT_CLUSTER", value_name = "NAME", default_value = "main")]
    pub cluster: String,
    /// Directory of the node; made if it is not there
    #[arg(long, env = "WEFT_DIR", value_name = "DIR")]
    pub dir: PathBuf,
    /// Name of the node [default: the machine's, and the directory's]
    #[arg(long, env = "WEFT_NODE_NAME", value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub node: NodeArguments,
}

#[derive(Subcommand, Debug)]
pub enum DriveCommand {
    /// List the drives of the cluster
    #[command(
        after_help = "Examples:\n  weft drive ls\n  weft drive ls --json | jq '.[] | select(.node == 2)'"
    )]
    Ls {
        #[command(flatten)]
        place: Place,
    },
    /// Give the node of --dir more drives; data is spread over them
    #[command(after_help = "Examples:
  weft drive add --files 2 --size 100G
  weft drive add --path /dev/sdb --path /dev/sdc")]
    Add {
        /// How many file-backed drives to make in the node's directory (or give --path)
        #[arg(long, value_name = "N", required_unless_present = "path",
            value_parser = clap::value_parser!(u32).range(1..=i64::from(DRIVES_MAX)))]
        files: Option<u32>,
        /// Size of each file-backed drive
        #[arg(long, env = "WEFT_DRIVE_SIZE", value_name = "SIZE", default_value = "16G", value_parser = size::parse)]
        size: u64,
        /// Use this block device of the node's machine (may be repeated)
        #[arg(long, value_name = "DEV")]
        path: Vec<PathBuf>,
        /// Take devices that hold something else; what they hold is destroyed
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Empty a drive and take it out of the cluster
    #[command(after_help = "Examples:
  weft drive remove 7            copies what it holds to others, waits for that, and forgets it
  weft drive remove 7 --undo     takes that back while it is being emptied
  weft drive remove 7 --lost     the drive is dead: what it held is copied from the others

Ending the command does not end the emptying; the same command goes on waiting. --lost is refused while other drives that
have the same data are away: these come first. If they are gone for good as well, add --lose-data.")]
    Remove {
        drive: u32,
        /// Give up a drive that is gone for good
        #[arg(long, conflicts_with_all = ["undo", "no_wait"])]
        lost: bool,
        /// Also what nobody else who is up has a copy of
        #[arg(long, requires = "lost")]
        lose_data: bool,
        /// Take it back
        #[arg(long, conflicts_with = "no_wait")]
        undo: bool,
        /// Only begin to empty it; do it again later to forget it
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Subcommand, Debug)]
pub enum PgCommand {
    /// List the placement groups: which drives hold copies together
    #[command(after_help = "Example:\n  weft pg ls --unsettled")]
    Ls {
        /// Only those where something is missing or moving
        #[arg(long)]
        unsettled: bool,
        #[command(flatten)]
        place: Place,
    },
}
