//! The control plane of a node: which drives and vDisks there are, who serves them, and how people reach them.
//! Runs on one thread beside the shards. It is asked when something is created, opened or fails; never per I/O.
//! Promises: what is answered as done is in the config store; orders to a shard go out in the order of decisions.
//! Leaves to others: data (the shards), records (`config`), devices on this host (`attach`).

mod attachments;
mod cache;
mod census;
mod change;
mod clones;
mod containers;
mod damage;
mod drives;
mod exports;
mod failure;
mod figures;
mod groups;
mod hanging;
mod listener;
mod member;
mod metrics;
mod notices;
mod older;
mod pages;
mod policy;
mod refusal;
mod server;
mod shutdown;
mod slow;
mod snapshots;
mod start;
mod statistics;
mod usage;
mod vdisks;

pub use cache::READ_CACHE_DEFAULT;
pub use drives::DRIVES_MAX;
pub use start::{Settings, StartError, run};

use crate::config::cluster::ClusterError;
use crate::config::{
    ConfigStore, ConsistencyRecord, ContainerRecord, DriveRecord, ExportRecord, FamilyConfig, GroupRecord,
    NodeRecord, ScheduleRecord, SnapshotKey, SnapshotRecord,
};
use crate::shard_loop::{Answer, Disk, Mail, Mailbox, owner_of};
use crate::words::say;
use attachments::AttachmentState;
use failure::Failure;
use listener::Listener;
use member::Member;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use weft_engine::cluster::whole::WholeGroups;
use weft_engine::interface::{Census, DriveState, DriveView, Order, Reply, Request, View};
use weft_engine::{DriveId, Epoch, FamilyId, GroupId, SnapshotId};

/// Everything the control plane knows.
pub struct Control {
    dir: PathBuf,
    /// Tells this run of the node from others that answered, or will, at the same address.
    run: String,
    began: Instant,
    /// Copies for vDisks that do not ask for a number.
    factor: u32,
    /// Bytes that all shards together may keep in memory for reads.
    read_cache: u64,
    stage: Stage,
    part: Part,
    shards: Vec<Arc<Mailbox>>,
    /// The drives in this node.
    drives: BTreeMap<DriveId, Drive>,
    /// All vDisks, also those that other nodes of the cluster serve.
    families: BTreeMap<FamilyId, Family>,
    /// What the shards were last told of that.
    census: Census,
    /// What drives hold of vDisks that are no more, as far as is known here; the store is asked before it goes.
    strays: BTreeSet<(DriveId, FamilyId)>,
    /// What drives of this node hold of vDisks of which no record is known.
    unknown_found: BTreeMap<FamilyId, BTreeSet<DriveId>>,
    /// By address.
    listeners: BTreeMap<String, Listener>,
    /// Those that are open and whose records are on their way to the store: by address.
    exports_being_made: BTreeSet<(String, Disk)>,
    /// Drives of this node that have not answered for long, since when that is known.
    hanging: BTreeMap<DriveId, Instant>,
    /// Drives of this node that are slow, since when that is known.
    slow: BTreeMap<DriveId, Instant>,
    attachments: BTreeMap<Disk, AttachmentState>,
    /// What was ordered about snapshots that are not finished.
    snapshot_orders: snapshots::Orders,
    /// Rollbacks that are done, though the news of that may still be on their way here.
    rolled_back: BTreeSet<u64>,
    /// vDisks that are rolled back or stay as they are, and wait until the store has that.
    to_resume: BTreeSet<FamilyId>,
    /// Snapshots of groups that are taken, until somebody who waits for them has seen it.
    taken_together: BTreeSet<SnapshotId>,
    /// How much snapshots hold that clones read from, as far as somebody has counted.
    origins: usage::Origins,
    damage: damage::Damages,
    /// Of a node that is alone: what its store could not take yet.
    segment_wishes: Vec<notices::SegmentsWish>,
    /// Deleted vDisks whose record the store of a single node could not remove yet, and why.
    records_to_remove: BTreeMap<FamilyId, String>,
    /// vDisks that were told to settle and have not said that they did.
    unsettled: BTreeSet<FamilyId>,
    /// Told whenever a notice has changed something.
    changed: Arc<Notify>,
    /// Told when the node shall stop.
    stop: Arc<Notify>,
    /// Why it stops, if it is for good and nobody has asked this node to.
    ended_by: Option<ClusterError>,
}

/// Whether the node decides for itself.
enum Part {
    Alone(Box<Alone>),
    Member(Box<Member>),
}

/// What a node has that is alone: all records.
struct Alone {
    store: Box<dyn ConfigStore>,
    node: NodeRecord,
    groups: BTreeMap<GroupId, GroupRecord>,
    snapshots: BTreeMap<SnapshotKey, SnapshotRecord>,
    schedules: BTreeMap<FamilyId, ScheduleRecord>,
    consistency: BTreeMap<String, ConsistencyRecord>,
    containers: BTreeMap<String, ContainerRecord>,
    /// Of groups with former members: who has found everything on the present ones.
    whole: WholeGroups,
    view_version: u64,
    /// Of vDisks that could not be served.
    failures: BTreeMap<FamilyId, Failure>,
    /// How many copies of everything vDisks were last found to have, and in which epoch.
    reached: BTreeMap<FamilyId, (Epoch, u32)>,
    /// Drives that count as down because they hang.
    left_out: BTreeSet<DriveId>,
}

impl Part {
    /// For what only a node does that is alone.
    fn alone(&mut self) -> &mut Alone {
        match self {
            Part::Alone(alone) => alone,
            Part::Member(_) => unreachable!("a member of a cluster does this by way of the cluster's store"),
        }
    }

    fn member(&self) -> Option<&Member> {
        match self {
            Part::Alone(_) => None,
            Part::Member(member) => Some(member),
        }
    }

    fn member_mut(&mut self) -> Option<&mut Member> {
        match self {
            Part::Alone(_) => None,
            Part::Member(member) => Some(member),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Starting,
    Ready,
    Stopping,
}

pub struct Drive {
    record: DriveRecord,
    /// The index of the shard that keeps it.
    keeper: usize,
    standing: Standing,
    /// Of a member: the store was seen to have it.
    in_news: bool,
}

/// How a drive stands in this life of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    Opening,
    Up,
    /// And why.
    Down(String),
    Lost,
}

impl Standing {
    /// Not in use now, and perhaps later.
    fn is_away(&self) -> bool {
        matches!(self, Standing::Down(_) | Standing::Opening)
    }
}

pub struct Family {
    config: FamilyConfig,
    serving: Serving,
    /// Exports of its record that could not be opened: address and why.
    export_trouble: BTreeMap<String, String>,
}

impl Family {
    /// Exports that are ended are no trouble any more; others of the vDisk, and of its snapshots, may be.
    fn forget_trouble_of(&mut self, ended: &[ExportRecord]) {
        self.export_trouble.retain(|address, _| !ended.iter().any(|export| export.address == *address));
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Serving {
    Opening,
    Ready,
    /// And why.
    Failed(String),
    Dropping,
    /// Another node serves it, or nobody does now; see [`Member`].
    Elsewhere,
}

/// The control plane as its tasks and the API share it. The lock is held for moments, never across a wait.
#[derive(Clone)]
pub struct SharedControl(Arc<Mutex<Control>>);

impl SharedControl {
    /// Inside the runtime of the control plane's thread.
    fn new(control: Control) -> Self {
        Self(Arc::new(Mutex::new(control)))
    }

    /// If a task has failed an assertion while it held the lock, the node ends, as in a crash: others take over when its lease is, and
    /// whoever looks after it starts it again. A node that only went on serving what it serves would be in everybody's way.
    pub fn lock(&self) -> MutexGuard<'_, Control> {
        self.0.lock().unwrap_or_else(|_| {
            say!("weft: the control plane failed an assertion: this node ends, as in a crash");
            crate::words::last_words();
            std::process::abort()
        })
    }

    /// Waits until `done` gives something, looking again after every change; None when `longest` has passed.
    pub async fn wait_for<T>(
        &self,
        longest: Duration,
        mut done: impl FnMut(&mut Control) -> Option<T>,
    ) -> Option<T> {
        let changed = Arc::clone(&self.lock().changed);
        let deadline = tokio::time::Instant::now() + longest;
        loop {
            // Asked to be told before looking: a change in between is not missed.
            let news = changed.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            if let Some(result) = done(&mut self.lock()) {
                return Some(result);
            }
            if tokio::time::timeout_at(deadline, news).await.is_err() {
                return done(&mut self.lock());
            }
        }
    }
}

impl Control {
    /// Without any vDisk; nothing is told to anybody yet.
    fn new(
        dir: &Path,
        factor: u32,
        part: Part,
        shards: &[Arc<Mailbox>],
        drives: BTreeMap<DriveId, Drive>,
    ) -> Self {
        Self {
            dir: dir.to_path_buf(),
            run: format!("{:016x}", rand::random::<u64>()),
            began: Instant::now(),
            factor,
            read_cache: 0,
            stage: Stage::Starting,
            part,
            shards: shards.to_vec(),
            drives,
            families: BTreeMap::new(),
            census: Census::default(),
            strays: BTreeSet::new(),
            unknown_found: BTreeMap::new(),
            listeners: BTreeMap::new(),
            exports_being_made: BTreeSet::new(),
            hanging: BTreeMap::new(),
            slow: BTreeMap::new(),
            attachments: BTreeMap::new(),
            snapshot_orders: snapshots::Orders::default(),
            rolled_back: BTreeSet::new(),
            taken_together: BTreeSet::new(),
            origins: usage::Origins::default(),
            damage: damage::Damages::default(),
            unsettled: BTreeSet::new(),
            segment_wishes: Vec::new(),
            records_to_remove: BTreeMap::new(),
            to_resume: BTreeSet::new(),
            changed: Arc::new(Notify::new()),
            stop: Arc::new(Notify::new()),
            ended_by: None,
        }
    }

    /// This node is none of the cluster's any more. One that stops anyway does as it was asked.
    fn end(&mut self, why: ClusterError) {
        if self.stage == Stage::Stopping || self.ended_by.is_some() {
            return;
        }
        tracing::error!(%why, "this node ends");
        self.ended_by = Some(why);
        self.stop.notify_one();
    }

    /// Sends an order to the shard that serves a vDisk.
    fn order_owner(&self, family: FamilyId, order: Order) {
        self.owner(family).send(Mail::Order(order));
    }

    /// Asks the owner of a vDisk, wherever that is. The reply comes when somebody serves it.
    fn ask_owner(&self, family: FamilyId, request: Request) -> tokio::sync::oneshot::Receiver<Reply> {
        let (sender, reply) = tokio::sync::oneshot::channel();
        let answer = Answer::new(move |reply| {
            // Who asked may have given up.
            let _ = sender.send(reply);
        });
        self.owner(family).send(Mail::Request { family, request, answer });
        reply
    }

    /// The shard of this node that serves a vDisk, or passes requests for it on.
    fn owner(&self, family: FamilyId) -> &Arc<Mailbox> {
        let served = self.part.member().and_then(|member| member.shard_of(family));
        let index = served.unwrap_or_else(|| owner_of(family, self.shards.len()).0 as usize);
        &self.shards[index]
    }

    /// The shard that keeps a drive of this node.
    fn keeper(&self, drive: &Drive) -> &Arc<Mailbox> {
        &self.shards[drive.keeper]
    }

    /// Tells all shards of a node that is alone how things stand.
    fn send_view(&mut self) {
        self.leave_out_hanging();
        let shards = self.shards.iter().map(|shard| shard.shard()).collect::<Vec<_>>();
        let alone = self.part.alone();
        alone.view_version += 1;
        let drives = self
            .drives
            .iter()
            .map(|(&id, drive)| {
                let state = match drive.standing {
                    Standing::Up if alone.left_out.contains(&id) => DriveState::Down,
                    Standing::Up if self.slow.contains_key(&id) => DriveState::Slow,
                    Standing::Up => DriveState::Up,
                    Standing::Opening | Standing::Down(_) => DriveState::Down,
                    Standing::Lost => DriveState::Lost,
                };
                // On a single node what fails together is a drive.
                (id, DriveView { shard: shards[drive.keeper], domain: id.0, state })
            })
            .collect();
        let groups = alone.groups.iter().map(|(&id, group)| (id, group.view())).collect();
        let view = View { version: alone.view_version, drives, groups: Arc::new(groups) };
        for shard in &self.shards {
            shard.send(Mail::Order(Order::View(view.clone())));
        }
    }

    fn family_named(&self, name: &str) -> Option<FamilyId> {
        self.families.iter().find(|(_, family)| family.config.name == name).map(|(&id, _)| id)
    }

    /// What a vDisk that is being opened may wait for, and what to do about that; None: for nothing but its opening.
    fn awaited_by(&self, family: FamilyId) -> Option<String> {
        if let Part::Member(member) = &self.part {
            return member.awaited_by(family);
        }
        let away = self.drives.iter().filter(|(_, drive)| drive.standing.is_away());
        let away: Vec<String> = away.map(|(id, _)| id.to_string()).collect();
        if !away.is_empty() {
            return Some(format!(
                "what it needs may be on a drive that is away (drive {}); bring that back, and start the node again if the drive was \
                 missing when it started",
                away.join(", ")
            ));
        }
        let hanging: Vec<String> = self.hanging.keys().map(ToString::to_string).collect();
        (!hanging.is_empty()).then(|| {
            format!(
                "what it needs may be on a drive that does not answer (drive {}); see to that, or take it out of the machine",
                hanging.join(", ")
            )
        })
    }

    /// Lines about what is not as it should be.
    fn trouble(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.stage == Stage::Ready
            && let Err(refusal) = self.check_serving()
        {
            lines.push(refusal.line);
        }
        for (id, drive) in &self.drives {
            match self.standing_view(*id, drive) {
                ("down", reason) => lines.push(format!("drive {id} is down: {reason}")),
                ("hangs", reason) => lines.push(format!("drive {id} hangs: {reason}")),
                ("slow", reason) => lines.push(format!("drive {id} is slow: {reason}")),
                _ => {}
            }
        }
        lines.extend(self.part.member().into_iter().flat_map(Member::poor_ways));
        for wish in &self.segment_wishes {
            let name = self.families.get(&wish.family).map_or("of before", |family| &family.config.name);
            lines.push(format!(
                "vDisk {name}: its log cannot go to other drives, and what waits for that is not done: {}",
                wish.trouble
            ));
        }
        for (family, trouble) in &self.records_to_remove {
            let name = self.families.get(family).map_or("of before", |family| &family.config.name);
            lines.push(format!("vDisk {name} is deleted, and its record cannot be removed yet: {trouble}"));
        }
        for (id, family) in &self.families {
            let name = &family.config.name;
            if let Serving::Failed(reason) = &family.serving {
                lines.push(format!(
                    "vDisk {name} is not served: {reason}; what it has in the logs of drives stays there and leaves less room for \
                     others, until it is served again or deleted"
                ));
            }
            if family.serving == Serving::Opening
                && self.stage == Stage::Ready
                && let Some(awaited) = self.awaited_by(*id)
            {
                lines.push(format!("vDisk {name} is not served yet: {awaited}"));
            }
            for (address, reason) in &family.export_trouble {
                lines.push(format!("vDisk {name} is not exported at {address}: {reason}"));
            }
        }
        lines.extend(self.copies_without_a_drive());
        lines.extend(self.found_without_a_record());
        for view in self.schedule_views().iter().filter(|view| !view.trouble.is_empty()) {
            lines.push(format!("vDisk {}: its schedule takes no snapshots: {}", view.vdisk, view.trouble));
        }
        let writes_lost = self.damage.view().writes_lost;
        if writes_lost > 0 {
            lines.push(format!(
                "{writes_lost} writes are damaged in every log that has them: `weft stats` names their blocks"
            ));
        }
        let blocks_lost = self.damage.view().blocks_lost;
        if blocks_lost > 0 {
            lines.push(format!("{blocks_lost} reads found no good copy"));
        }
        lines
    }

    /// On a node alone: vDisks that want more copies than there are drives for, which nothing but a drive can change.
    fn copies_without_a_drive(&self) -> Option<String> {
        const NAMES_MAX: usize = 5;
        if self.part.member().is_some() || self.stage != Stage::Ready {
            return None;
        }
        let up = self.drives_up().len();
        let wanting = self
            .families
            .values()
            .filter(|family| family.serving != Serving::Dropping && family.config.factor as usize > up);
        let names: Vec<&str> = wanting.map(|family| family.config.name.as_str()).collect();
        let (told, more) = names.split_at(names.len().min(NAMES_MAX));
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        (!names.is_empty()).then(|| {
            format!(
                "vDisks {}{more} want more copies than drives are up ({up}): one more failure may lose data; bring drives back, or start \
                 the node with more (`weft up --drives N`, `--drive DEVICE`)",
                told.join(", ")
            )
        })
    }
}
