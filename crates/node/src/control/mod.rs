//! The control plane of a node: which drives and vDisks there are, who serves them, and how people reach them.
//! Runs on one thread beside the shards. It is asked when something is created, opened or fails; never per I/O.
//! Promises: what is answered as done is in the config store; orders to a shard go out in the order of decisions.
//! Leaves to others: data (the shards), records (`config`), devices on this host (`attach`).

mod attachments;
mod drives;
mod exports;
mod groups;
mod listener;
mod metrics;
mod notices;
mod refusal;
mod server;
mod shutdown;
mod start;
mod statistics;
mod vdisks;

pub use start::{Settings, StartError, run};

use crate::api::DamageView;
use crate::config::{ConfigStore, DriveRecord, FamilyConfig, GroupRecord, NodeRecord};
use crate::shard_loop::{Mail, Mailbox, owner_of};
use attachments::AttachmentState;
use listener::Listener;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use weft_engine::cluster::whole::WholeGroups;
use weft_engine::interface::{DriveState, DriveView, Order, View};
use weft_engine::{DriveId, FamilyId, GroupId};

/// Everything the control plane knows.
pub struct Control {
    dir: PathBuf,
    began: Instant,
    /// Copies for vDisks that do not ask for a number.
    factor: u32,
    stage: Stage,
    store: Box<dyn ConfigStore>,
    node: NodeRecord,
    shards: Vec<Arc<Mailbox>>,
    drives: BTreeMap<DriveId, Drive>,
    groups: BTreeMap<GroupId, GroupRecord>,
    /// Of groups with former members: who has found everything on the present ones.
    whole: WholeGroups,
    families: BTreeMap<FamilyId, Family>,
    view_version: u64,
    /// By address.
    listeners: BTreeMap<String, Listener>,
    attachments: BTreeMap<FamilyId, AttachmentState>,
    damage: DamageView,
    /// vDisks that were told to settle and have not said that they did.
    unsettled: BTreeSet<FamilyId>,
    /// Told whenever a notice has changed something.
    changed: Arc<Notify>,
    /// Told when the node shall stop.
    stop: Arc<Notify>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Starting,
    Ready,
    Stopping,
}

pub struct Drive {
    record: DriveRecord,
    standing: Standing,
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

pub struct Family {
    config: FamilyConfig,
    serving: Serving,
    /// Exports of its record that could not be opened: address and why.
    export_trouble: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Serving {
    Opening,
    Ready,
    /// And why.
    Failed(String),
    Dropping,
}

/// The control plane as its tasks and the API share it. The lock is held for moments, never across a wait.
#[derive(Clone)]
pub struct SharedControl(Arc<Mutex<Control>>);

impl SharedControl {
    pub fn lock(&self) -> MutexGuard<'_, Control> {
        self.0.lock().expect("the control plane stops when one of its tasks panics")
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
    /// Sends an order to the shard that serves a vDisk.
    fn order_owner(&self, family: FamilyId, order: Order) {
        self.owner(family).send(Mail::Order(order));
    }

    fn owner(&self, family: FamilyId) -> &Arc<Mailbox> {
        &self.shards[owner_of(family, self.shards.len()).0 as usize]
    }

    /// The shard that keeps a drive: they are dealt in turn.
    fn keeper(&self, drive: DriveId) -> &Arc<Mailbox> {
        &self.shards[drive.0 as usize % self.shards.len()]
    }

    /// Tells all shards how things stand.
    fn send_view(&mut self) {
        self.view_version += 1;
        let drives = self
            .drives
            .iter()
            .map(|(&id, drive)| {
                let state = match drive.standing {
                    Standing::Up => DriveState::Up,
                    Standing::Opening | Standing::Down(_) => DriveState::Down,
                    Standing::Lost => DriveState::Lost,
                };
                // On a single node what fails together is a drive.
                (id, DriveView { shard: self.keeper(id).shard(), domain: id.0, state })
            })
            .collect();
        let groups = self.groups.iter().map(|(&id, group)| (id, group.view())).collect();
        let view = View { version: self.view_version, drives, groups };
        for shard in &self.shards {
            shard.send(Mail::Order(Order::View(view.clone())));
        }
    }

    fn family_named(&self, name: &str) -> Option<FamilyId> {
        self.families.iter().find(|(_, family)| family.config.name == name).map(|(&id, _)| id)
    }

    /// Lines about what is not as it should be.
    fn trouble(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (id, drive) in &self.drives {
            match &drive.standing {
                Standing::Down(reason) => lines.push(format!("drive {id} is down: {reason}")),
                Standing::Lost => {}
                Standing::Opening | Standing::Up => {}
            }
        }
        for family in self.families.values() {
            let name = &family.config.name;
            if let Serving::Failed(reason) = &family.serving {
                lines.push(format!("vDisk {name} is not served: {reason}"));
            }
            for (address, reason) in &family.export_trouble {
                lines.push(format!("vDisk {name} is not exported at {address}: {reason}"));
            }
        }
        if self.damage.blocks_lost > 0 {
            lines.push(format!("{} blocks were found without any good copy", self.damage.blocks_lost));
        }
        lines
    }
}
