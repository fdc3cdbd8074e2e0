//! A node as a member of a cluster. What there is stands in the cluster's store; the member follows it, and does what it
//! says about this node: opens drives, serves vDisks, listens, tells its shards where everything is.
//! Promises: nothing is served that the store does not give to this life of this node, and nothing behind the deadline
//! of its lease (I2); whatever happens, doing what the store says again leads there.
//! Leaves to others: deciding for the cluster (`controller`, on whichever node is elected), records and leases
//! (`config::cluster`).

mod asking;
mod attachments;
mod audits;
mod controller;
mod cut_off;
mod decide;
mod exports;
mod families;
mod hand_over;
mod jobs;
mod last_copies;
mod leaving;
mod life;
mod locality;
mod mirror;
mod nodes;
mod requests;
pub(super) mod start;
mod status;
mod usage;
mod view;

pub(super) use attachments::{claim, release, release_at_the_end, take_from};
pub(in crate::control) use jobs::Chore;
pub use life::LifeError;
pub(super) use life::leave;
pub(super) use nodes::{GivesUp, add_drives, drain, drain_drive, remove, remove_drive, set};
pub(super) use requests::{
    add_export, answers, catch_up, changed, create, delete, move_vdisk, remove_exports, resize, seen,
    with_store,
};
pub(super) use status::{cluster as cluster_view, report};
pub(super) use usage::{usage_of, usage_of_all};

use crate::config::cluster::{
    ClusterConfig, ClusterError, ClusterStore, Leadership, SHARDS_PER_NODE, Versioned,
};
use crate::config::{
    ConsistencyRecord, ContainerRecord, DirectoryLock, FamilyConfig, LostNumbers, Membership, Policy,
    ScheduleRecord, SnapshotKey, SnapshotRecord,
};
use crate::control::failure::Failure;
use crate::shard_loop::{PeerListener, PoorWay, Route};
use jobs::Job;
use life::Living;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;
use weft_engine::interface::View;
use weft_engine::{Epoch, FamilyId, GroupId, ShardId};

pub struct Member {
    store: ClusterStore,
    node: u32,
    name: String,
    dir: PathBuf,
    lock: Arc<DirectoryLock>,
    membership: Membership,
    /// Work that waits for the store goes to threads that may wait.
    jobs: UnboundedSender<Job>,
    chores: jobs::Chores,
    /// Told when the lease is over although it was renewed.
    losses: UnboundedSender<u64>,
    /// None: the lease is over, and another one is being taken. Nothing is served meanwhile.
    life: Option<Living>,
    announcing: life::Announcing,
    /// When to look at what is attached, besides whenever something changes.
    attachments_at: Option<Instant>,
    /// What the store holds, as far as is known here.
    mirror: Arc<ClusterConfig>,
    /// What etcd has now is older than the mirror, and not taken.
    older_records: Option<ClusterError>,
    /// Shards of other nodes that cannot be reached from here: by which shards, and why.
    unreachable: BTreeMap<ShardId, BTreeMap<ShardId, String>>,
    /// Nodes that no shard here reaches, since when that is known.
    cuts: BTreeMap<u32, Instant>,
    /// Ways from shards here to others on which much gets lost or takes long.
    poor_ways: BTreeMap<(ShardId, ShardId), PoorWay>,
    cut_off: cut_off::CutOff,
    /// What the shards were told last.
    view: View,
    peers: BTreeMap<ShardId, SocketAddr>,
    /// None: nothing yet. Being told that there are none makes them wait for some.
    routes: Option<BTreeMap<FamilyId, Route>>,
    served: BTreeMap<FamilyId, Served>,
    /// How often in a row these could not be opened.
    failures: BTreeMap<FamilyId, u32>,
    /// What owners here have found about groups with former members.
    whole: BTreeMap<FamilyId, audits::Told>,
    /// Copying under way, as `weft cluster status` shows it.
    repair: Option<status::Repair>,
    /// This node decides for the cluster.
    leadership: Option<Leadership>,
    /// Other nodes' shards knock here.
    _listener: PeerListener,
}

/// A vDisk that the store has given to a shard of this node.
struct Served {
    /// The shard's index.
    shard: usize,
    epoch: Epoch,
    /// Bytes, as the engine was told.
    size: u64,
    policy: Policy,
    phase: Phase,
    since: Instant,
    clients: locality::Clients,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    Opening,
    Ready,
    /// Everything goes into egroups, so that the next owner finds little to replay. Not waited for longer than this.
    Settling {
        to: u32,
        until: Instant,
    },
    /// Closed here; the store is asked to give it to the next owner.
    HandingOver,
    Failed(Failure),
    /// Everything of it is being destroyed.
    Dropping,
}

impl Member {
    /// Who this node is, for people.
    pub(super) fn who(&self) -> String {
        let (node, name) = (self.node, &self.name);
        format!("node {node} ({name}) of the cluster {}", self.store.name())
    }

    /// The index of the shard that serves a vDisk here.
    pub(super) fn shard_of(&self, family: FamilyId) -> Option<usize> {
        self.served.get(&family).map(|served| served.shard)
    }

    /// The epoch in which a vDisk is served here.
    pub(super) fn epoch_of(&self, family: FamilyId) -> Option<Epoch> {
        self.served.get(&family).map(|served| served.epoch)
    }

    /// The records of all snapshots.
    pub(super) fn snapshots(&self) -> &BTreeMap<SnapshotKey, Versioned<SnapshotRecord>> {
        &self.mirror.snapshots
    }

    pub(super) fn schedules(&self) -> &BTreeMap<FamilyId, Versioned<ScheduleRecord>> {
        &self.mirror.schedules
    }

    pub(super) fn consistency(&self) -> &BTreeMap<String, Versioned<ConsistencyRecord>> {
        &self.mirror.consistency
    }

    pub(super) fn containers(&self) -> &BTreeMap<String, Versioned<ContainerRecord>> {
        &self.mirror.containers
    }

    pub(super) fn container(&self, name: &str) -> Option<&Versioned<ContainerRecord>> {
        self.mirror.containers.get(name)
    }

    /// By what a vDisk is kept.
    pub(super) fn policy(&self, config: &FamilyConfig) -> Policy {
        self.mirror.policy(config)
    }

    /// The number that the next vDisk gets, those of which no more is known, and those of vDisks that there are, of one revision.
    pub(super) fn numbers(&self) -> (u32, &LostNumbers, impl ExactSizeIterator<Item = FamilyId> + '_) {
        let cluster = &self.mirror.cluster.record;
        (cluster.next_family, &cluster.lost, self.mirror.families.keys().copied())
    }

    /// What is known here of the store.
    pub(super) fn revision(&self) -> u64 {
        self.mirror.revision
    }

    /// The address of the API of the node that a vDisk was given to; None: of nobody who lives.
    pub(super) fn api_of_owner(&self, family: FamilyId) -> Option<String> {
        let node = self.owner_node(family).filter(|node| self.mirror.alive.contains_key(node))?;
        self.mirror.nodes.get(&node).map(|node| node.record.api.clone())
    }

    fn incarnation(&self) -> Option<u64> {
        self.life.as_ref().map(|life| life.incarnation)
    }

    /// The index of this shard, if it is one of this node's.
    fn own_index(&self, shard: u32) -> Option<usize> {
        (ShardId(shard).node() == self.node).then_some((shard % SHARDS_PER_NODE) as usize)
    }
}

/// The number of a node's first shard.
fn shard_base(node: u32) -> u32 {
    ShardId::of(node, 0).0
}

/// Versions of views grow with the store's revisions, and in between with what this node finds out by itself.
const LOCAL_BITS: u32 = 20;

/// The store's revision that a view tells of.
fn revision_of(view: u64) -> u64 {
    view >> LOCAL_BITS
}

/// Groups and what of them was found whole, by the revision of the view under which it was.
type Found = BTreeMap<GroupId, u64>;
