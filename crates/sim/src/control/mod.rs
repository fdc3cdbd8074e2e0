//! The control plane: what decides who serves what, and what of it has been told to whom.
//! Promises: a family gets a new owner only when no other serves it any more (leases), unless a stale owner is
//! wanted; every opening has a higher epoch.
//! Leaves to others: when things fail (`atlas`). It learns of failures late, as real ones do.

mod asleep;
mod ceilings;
mod clones;
mod cluster;
mod drives;
mod factors;
mod families;
mod following;
mod groups;
mod leases;
mod post;
mod rollback;
mod sight;
mod snapshots;
mod together;

use cluster::Table;
pub use leases::Lease;
pub use sight::{Sight, common_of};
pub use snapshots::SnapshotEntry;
use together::Together;

use crate::event::Event;
use crate::world::World;
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weft_engine::cluster::whole::WholeGroups;
use weft_engine::identity::{Generation, SnapshotId};
use weft_engine::interface::{Census, DriveState, DriveView, FamilyRecord, GroupView, View};
use weft_engine::{DriveId, FamilyId, GroupId, Order, Seq, ShardId};

#[derive(Clone, Debug)]
pub struct DriveEntry {
    pub shard: usize,
    shard_id: ShardId,
    pub domain: u32,
    /// Up, down or lost.
    pub state: DriveState,
    /// It is to be emptied.
    pub draining: bool,
    /// Everybody was told that it is slow.
    pub slow: bool,
    /// Whether it was ever ready: until then it may be formatted (again).
    formatted: bool,
    /// The engine of this process uses it.
    pub ready: bool,
    opening: bool,
    pub retired: bool,
    retry_at: u64,
    down_since: u64,
    /// The drive whose places in groups it takes.
    replaces: Option<DriveId>,
}

impl DriveEntry {
    /// New things go there.
    pub fn is_open(&self) -> bool {
        self.state == DriveState::Up && !self.draining && !self.slow
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FamilyPhase {
    Closed,
    Opening,
    Ready,
    /// To be destroyed; the shard that does it, once one was asked.
    Dropping,
    Dropped,
}

#[derive(Clone, Debug)]
pub struct FamilyEntry {
    pub record: FamilyRecord,
    pub owner: Option<usize>,
    pub phase: FamilyPhase,
    /// The lease of the owner's node when the family was given to it.
    pub lease: Option<u64>,
    /// Shards that have been told to serve it and not to stop: the truth, which the control plane knows only as far as
    /// leases tell it.
    pub serving: BTreeMap<usize, Serving>,
    pub retry_at: u64,
    /// Where it should go next; any shard if None.
    pub next: Option<usize>,
    /// Nobody is to serve it for now.
    pub asleep: bool,
    /// The next opening does not wait for the old owner to stop.
    pub stale: bool,
    /// Owners of older epochs may be answering although they were replaced.
    pub stale_before: u32,
    /// When the owner was chosen.
    since: u64,
    /// The shard it is being handed over to, and since when.
    moving_to: Option<(usize, u64)>,
    /// The only node where its clients are, and since when.
    clients_on: Option<(u32, u64)>,
    pub settled: bool,
    pub snapshots: BTreeMap<SnapshotId, SnapshotEntry>,
    /// The snapshot that it was last rolled back to, or is to be; and the epoch of the owner that was told.
    rolled_back: Option<Generation>,
    rollback_asked: u32,
    /// The record for want of which its newest owner could not open it.
    pub record_lost: Option<Seq>,
}

/// How a shard was told to serve a family.
#[derive(Clone, Copy, Debug)]
pub struct Serving {
    pub epoch: u32,
    /// Its node's lease at that time.
    lease: Option<u64>,
}

#[derive(Default)]
pub struct Control {
    pub drives: Vec<DriveEntry>,
    pub families: Vec<FamilyEntry>,
    pub groups: Arc<BTreeMap<GroupId, GroupView>>,
    /// The same with versions, in a cluster.
    table: Table,
    /// Of groups with former members.
    whole: WholeGroups,
    version: u64,
    last_order: BTreeMap<usize, u64>,
    last_notice: BTreeMap<usize, u64>,
    changed: bool,
    /// When a drive or node last came or went.
    unrest: u64,
    snapshots_made: u64,
    together: Option<Together>,
}

impl Control {
    pub fn add_drive(&mut self, shard: usize, shard_id: ShardId, domain: u32) {
        self.drives.push(DriveEntry {
            shard,
            shard_id,
            domain,
            state: DriveState::Down,
            draining: false,
            slow: false,
            formatted: false,
            ready: false,
            opening: false,
            retired: false,
            retry_at: 0,
            down_since: 0,
            replaces: None,
        });
    }

    pub fn view(&self) -> View {
        View {
            version: self.version,
            drives: self
                .drives
                .iter()
                .enumerate()
                .map(|(drive, entry)| {
                    let shard = entry.shard_id;
                    let state = match entry.state {
                        DriveState::Up if entry.draining => DriveState::Draining,
                        DriveState::Up if entry.slow => DriveState::Slow,
                        state => state,
                    };
                    (DriveId(drive as u32), DriveView { shard, domain: entry.domain, state })
                })
                .collect(),
            groups: self.groups.clone(),
        }
    }

    /// The shard a client asks: mostly the one that serves, sometimes one that does not (any more).
    pub fn route(&self, family: usize, rng: &mut SmallRng) -> Option<usize> {
        let entry = &self.families[family];
        if entry.serving.len() > 1 && rng.random_range(0..3) == 0 {
            return entry.serving.keys().nth(rng.random_range(0..entry.serving.len())).copied();
        }
        match entry.phase {
            FamilyPhase::Ready => entry.owner,
            _ if rng.random_range(0..10) == 0 => entry.owner,
            _ => None,
        }
    }

    /// The epoch in which a shard was told to serve a family, 0 if it was not.
    pub fn serving_epoch(&self, shard: usize, family: usize) -> u32 {
        self.families[family].serving.get(&shard).map_or(0, |serving| serving.epoch)
    }

    pub fn shard_died(&mut self, shard: usize) {
        for family in &mut self.families {
            family.serving.remove(&shard);
        }
        for drive in self.drives.iter_mut().filter(|drive| drive.shard == shard) {
            drive.ready = false;
            drive.opening = false;
        }
    }

    /// All drives have been in use since `time`.
    pub fn all_well_since(&self, time: u64) -> bool {
        self.unrest <= time && self.all_drives_up()
    }

    pub fn all_drives_up(&self) -> bool {
        self.drives.iter().all(|drive| drive.retired || (drive.ready && drive.state == DriveState::Up))
    }

    /// Drives in the pool that are to be emptied, or that stay.
    pub fn drives_draining(&self, draining: bool) -> Vec<usize> {
        let there = |entry: &DriveEntry| !entry.retired && entry.draining == draining;
        (0..self.drives.len()).filter(|&drive| there(&self.drives[drive])).collect()
    }

    /// Where new copies may be put.
    pub fn domains_up(&self) -> BTreeSet<u32> {
        self.domains_of(|drive| drive.state == DriveState::Up && !drive.draining)
    }

    /// Where they are put rather than elsewhere.
    pub fn domains_open(&self) -> BTreeSet<u32> {
        self.domains_of(DriveEntry::is_open)
    }

    fn domains_of(&self, takes: impl Fn(&DriveEntry) -> bool) -> BTreeSet<u32> {
        self.drives.iter().filter(|drive| takes(drive)).map(|drive| drive.domain).collect()
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn domain_of(&self, drive: DriveId) -> u32 {
        self.drives[drive.0 as usize].domain
    }
}

impl World {
    /// Compares what is with what should be, and gives orders.
    pub fn control_tick(&mut self) {
        self.queue.push(self.now + self.parameters.tick_us, Event::ControlTick);
        self.renew_leases();
        self.look_around();
        self.detect();
        self.note_alone();
        for entry in self.control.drives.iter_mut().filter(|entry| entry.state != DriveState::Down) {
            entry.down_since = self.now;
        }
        self.reconcile_drives();
        self.tell_slow_drives();
        for family in 0..self.control.families.len() {
            self.reconcile_family(family);
            self.reconcile_snapshots(family);
            self.reconcile_rollback(family);
        }
        self.reconcile_together();
        if self.is_cluster() {
            self.cluster_tick();
        } else {
            let settled = self.control.forget_former() as u64;
            self.coverage.add("groups without former members again", settled);
        }
        if self.control.changed {
            self.tell_view();
        }
    }

    /// Nodes that are away for long enough are noticed.
    fn detect(&mut self) {
        for node in 0..self.nodes.len() {
            let state = &self.nodes[node];
            // One that is dead closes its connections; one that is silent is believed to be away with its lease.
            let dead = state.away_since.is_some_and(|since| self.now >= since + self.parameters.detection_us);
            if !dead && state.lease.held(self.now).is_some() {
                continue;
            }
            for drive in 0..self.control.drives.len() {
                let entry = &mut self.control.drives[drive];
                if self.nodes[node].shards.contains(&entry.shard) && entry.state == DriveState::Up {
                    entry.state = DriveState::Down;
                    self.control.changed = true;
                    self.control.unrest = self.now;
                }
            }
        }
    }

    /// A process has started and asks for its orders.
    pub fn node_registers(&mut self, node: usize) {
        self.control.unrest = self.now;
        let noticed = self.rng.random_bool(0.5);
        for drive in 0..self.control.drives.len() {
            let entry = &mut self.control.drives[drive];
            if self.nodes[node].shards.contains(&entry.shard) {
                entry.retry_at = 0;
                if noticed && entry.state == DriveState::Up {
                    entry.state = DriveState::Down;
                    self.control.changed = true;
                }
            }
        }
        if self.nodes[node].store_cut.is_none() {
            self.get_lease(node);
        }
        self.tell_view();
        for shard in self.nodes[node].shards.clone() {
            self.tell_census(shard);
        }
        self.reconcile_drives();
    }

    /// Tells a shard which families there are. Alone among the orders it may overtake others, and draws nothing from the run's
    /// numbers.
    fn tell_census(&mut self, shard: usize) {
        let all = self.control.families.iter();
        let there = all.filter(|entry| entry.phase != FamilyPhase::Dropped).map(|entry| entry.record.family);
        let census = Census {
            next: FamilyId(self.control.families.len() as u32),
            families: Arc::new(there.collect()),
            unknown: Arc::default(),
        };
        let (time, incarnation) = (self.now + self.parameters.order_us, self.shards[shard].incarnation);
        self.queue.push(time, Event::Order { shard, incarnation, order: Order::Census(census) });
    }

    /// A family is no more.
    pub(super) fn tell_census_to_all(&mut self) {
        (0..self.shards.len()).for_each(|shard| self.tell_census(shard));
    }

    pub(super) fn tell_view(&mut self) {
        self.control.changed = false;
        self.control.version += 1;
        let view = self.control.view();
        for shard in 0..self.shards.len() {
            if self.shards[shard].engine.is_some() {
                self.order(shard, Order::View(view.clone()));
            }
        }
    }

    /// Shards that could serve: alive, and in touch with the store.
    pub fn live_shards(&self) -> Vec<usize> {
        (0..self.shards.len())
            .filter(|&shard| self.shards[shard].engine.is_some() && self.lease_of(shard).is_some())
            .collect()
    }
}
