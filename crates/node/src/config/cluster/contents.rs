//! Everything a cluster's config store holds, and how changes make one state of it into the next.
//! Promises: contents loaded at one revision, with the changes up to another applied in order, are what would
//! have been loaded at that.

use super::change::{Versioned, parse};
use super::keys::Key;
use super::records::{AliveRecord, ClusterNodeRecord, ClusterRecord, ControllerRecord, CutOffRecord};
use super::{ClusterError, Keys};
use crate::config::etcd::KeyValue;
use crate::config::{
    ConsistencyRecord, ContainerRecord, DriveRecord, FamilyConfig, GroupRecord, Policy, ScheduleRecord,
    SnapshotKey, SnapshotRecord,
};
use std::collections::BTreeMap;
use weft_engine::{DriveId, FamilyId, GroupId};

/// The store at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    pub revision: u64,
    pub cluster: Versioned<ClusterRecord>,
    pub nodes: BTreeMap<u32, Versioned<ClusterNodeRecord>>,
    pub alive: BTreeMap<u32, Versioned<AliveRecord>>,
    pub cut_off: BTreeMap<u32, Versioned<CutOffRecord>>,
    pub drives: BTreeMap<DriveId, Versioned<DriveRecord>>,
    pub groups: BTreeMap<GroupId, Versioned<GroupRecord>>,
    pub families: BTreeMap<FamilyId, Versioned<FamilyConfig>>,
    pub snapshots: BTreeMap<SnapshotKey, Versioned<SnapshotRecord>>,
    pub schedules: BTreeMap<FamilyId, Versioned<ScheduleRecord>>,
    pub consistency: BTreeMap<String, Versioned<ConsistencyRecord>>,
    pub containers: BTreeMap<String, Versioned<ContainerRecord>>,
    pub controller: Option<Versioned<ControllerRecord>>,
}

/// One record as it is now; None: it is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Cluster(Versioned<ClusterRecord>),
    Node(u32, Option<Versioned<ClusterNodeRecord>>),
    Alive(u32, Option<Versioned<AliveRecord>>),
    CutOff(u32, Option<Versioned<CutOffRecord>>),
    Drive(DriveId, Option<Versioned<DriveRecord>>),
    Group(GroupId, Option<Versioned<GroupRecord>>),
    Family(FamilyId, Option<Versioned<FamilyConfig>>),
    Snapshot(SnapshotKey, Option<Versioned<SnapshotRecord>>),
    Schedule(FamilyId, Option<Versioned<ScheduleRecord>>),
    Consistency(String, Option<Versioned<ConsistencyRecord>>),
    Container(String, Option<Versioned<ContainerRecord>>),
    Controller(Option<Versioned<ControllerRecord>>),
}

impl Change {
    /// What it means that `key` holds `value` now. None: nothing that anybody here has to know.
    pub(super) fn read(
        keys: &Keys,
        key: &str,
        value: Option<&KeyValue>,
    ) -> Result<Option<Self>, ClusterError> {
        let Some(key) = keys.read(key) else { return Ok(None) };
        Ok(Some(match key {
            Key::Cluster => match value {
                Some(value) => Self::Cluster(parse(value)?),
                None => return Err(ClusterError::NoCluster { name: keys.cluster_name().to_string() }),
            },
            Key::Node(node) => Self::Node(node, value.map(parse).transpose()?),
            Key::Alive(node) => Self::Alive(node, value.map(parse).transpose()?),
            Key::CutOff(node) => Self::CutOff(node, value.map(parse).transpose()?),
            Key::Drive(drive) => Self::Drive(drive, value.map(parse).transpose()?),
            Key::Group(group) => Self::Group(group, value.map(parse).transpose()?),
            Key::Family(family) => Self::Family(family, value.map(parse).transpose()?),
            Key::Snapshot(family, name) => Self::Snapshot((family, name), value.map(parse).transpose()?),
            Key::Schedule(family) => Self::Schedule(family, value.map(parse).transpose()?),
            Key::Consistency(group) => Self::Consistency(group, value.map(parse).transpose()?),
            Key::Container(name) => Self::Container(name, value.map(parse).transpose()?),
            Key::Controller => Self::Controller(value.map(parse).transpose()?),
            Key::Name => return Ok(None),
        }))
    }
}

impl ClusterConfig {
    pub(crate) fn new(revision: u64, cluster: Versioned<ClusterRecord>) -> Self {
        Self {
            revision,
            cluster,
            nodes: BTreeMap::new(),
            alive: BTreeMap::new(),
            cut_off: BTreeMap::new(),
            drives: BTreeMap::new(),
            groups: BTreeMap::new(),
            families: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            schedules: BTreeMap::new(),
            consistency: BTreeMap::new(),
            containers: BTreeMap::new(),
            controller: None,
        }
    }

    /// Whether a node lives, and is not about to end.
    pub fn stays(&self, node: u32) -> bool {
        self.alive.get(&node).is_some_and(|alive| !alive.record.stopping)
    }

    /// Whether a node that lives tells that this drive of it is up.
    pub fn is_up(&self, drive: &DriveRecord) -> bool {
        self.alive.get(&drive.node).is_some_and(|alive| alive.record.up.contains(&drive.drive))
    }

    /// By what a vDisk is kept.
    pub fn policy(&self, family: &FamilyConfig) -> Policy {
        family.policy(self.containers.get(&family.container).map(|entry| &entry.record))
    }

    /// Whether a container says how many copies its vDisks have.
    pub fn says_factor(&self, container: &str) -> bool {
        self.containers.get(container).is_some_and(|entry| entry.record.factor.is_some())
    }

    /// Takes the changes of the revisions up to `revision` over.
    pub fn apply(&mut self, revision: u64, changes: impl IntoIterator<Item = Change>) {
        assert!(revision >= self.revision, "changes come in order");
        self.revision = revision;
        for change in changes {
            match change {
                Change::Cluster(record) => self.cluster = record,
                Change::Node(node, record) => set(&mut self.nodes, node, record),
                Change::Alive(node, record) => set(&mut self.alive, node, record),
                Change::CutOff(node, record) => set(&mut self.cut_off, node, record),
                Change::Drive(drive, record) => set(&mut self.drives, drive, record),
                Change::Group(group, record) => set(&mut self.groups, group, record),
                Change::Family(family, record) => set(&mut self.families, family, record),
                Change::Snapshot(key, record) => set(&mut self.snapshots, key, record),
                Change::Schedule(family, record) => set(&mut self.schedules, family, record),
                Change::Consistency(group, record) => set(&mut self.consistency, group, record),
                Change::Container(name, record) => set(&mut self.containers, name, record),
                Change::Controller(record) => self.controller = record,
            }
        }
    }
}

fn set<K: Ord, T>(records: &mut BTreeMap<K, T>, key: K, record: Option<T>) {
    match record {
        Some(record) => records.insert(key, record),
        None => records.remove(&key),
    };
}
