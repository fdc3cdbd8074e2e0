//! The config store of a cluster: records in etcd below `/weft/<name>/`, for all nodes the same.
//! Promises: each call that changes something is one transaction that compares first, so that of two who
//! change the same record one has to look again; what a call gave back as done is durable on most members of
//! etcd. Numbers are given out once.
//! Leaves to others: deciding (the controller and the nodes' control planes), talking to etcd (`etcd`).

mod accept;
mod alive;
mod boot_clock;
mod change;
mod clones;
mod containers;
mod contents;
mod controller;
mod create;
mod decided;
mod drives;
mod error;
mod families;
mod follow;
mod groups;
mod keys;
mod lease;
mod load;
mod memory;
mod nodes;
mod records;
mod snapshots;

pub use boot_clock::Moment;
pub use change::Versioned;
pub use clones::CLONES_MAX;
pub use contents::{Change, ClusterConfig};
pub use controller::{Campaign, Leadership};
pub use decided::{Decided, Ground};
pub use error::ClusterError;
pub use families::{Claim, NewOwner, NewVdisk};
pub use follow::{News, OLDER_WAIT};
pub use lease::{Deadline, NodeLease};
pub use records::{
    AliveRecord, CLUSTER_FORMAT, ClusterNodeRecord, ClusterRecord, ControllerRecord, CutOffRecord,
    NameRecord, NodeState, SHARDS_PER_NODE,
};

pub(super) use change::{json, parse};
pub(super) use keys::Keys;

use super::ContainerRecord;
use super::etcd::{Compare, Etcd, Page, Transaction, is_one};
use change::Verdict;
use memory::{Age, Memory};

/// Cheap to clone, and usable from any thread. Calls wait for etcd, some seconds at most: not for threads that serve
/// I/O.
#[derive(Clone)]
pub struct ClusterStore {
    pub(super) etcd: Etcd,
    pub(super) keys: Keys,
    /// The cluster that it has to be, whatever has come to be at etcd's address; None: any of the name.
    expected: Option<u64>,
    /// What a node remembers of it; None: it is asked for no node.
    memory: Option<Memory>,
}

impl ClusterStore {
    /// The cluster of this name, whether it exists or not; nothing is asked yet.
    pub fn new(etcd: Etcd, name: &str) -> Result<Self, ClusterError> {
        let keys = Keys::new(name).ok_or_else(|| ClusterError::BadName { name: name.to_string() })?;
        Ok(Self { etcd, keys, expected: None, memory: None })
    }

    /// Only the cluster of this id counts: another one of the same name, in an etcd that was made anew or behind another
    /// address, is an error to whoever reads records, and nothing is put there.
    pub fn expecting(self, id: u64) -> Self {
        Self { expected: Some(id), ..self }
    }

    pub fn name(&self) -> &str {
        self.keys.cluster_name()
    }

    pub fn etcd(&self) -> &Etcd {
        &self.etcd
    }

    /// Makes an empty cluster. `id` is drawn at random by the caller: it tells this cluster from any other of
    /// its name.
    pub fn init(&self, id: u64) -> Result<Versioned<ClusterRecord>, ClusterError> {
        self.begin(ClusterRecord::new(id))
    }

    /// Puts the first records of a cluster; refuses if there is anything.
    pub(super) fn begin(&self, record: ClusterRecord) -> Result<Versioned<ClusterRecord>, ClusterError> {
        let (key, text) = (self.keys.cluster(), json(&record));
        let (first, end) = self.keys.all();
        let container = ContainerRecord::default();
        let transaction = Transaction::new()
            .when(Compare::none_in(&first, &end))
            .put(&key, &text, None)
            .put(&self.keys.container(&container.name), &json(&container), None)
            .otherwise_get(&key);
        let answer = self.etcd.transact(&transaction)?;
        if answer.succeeded {
            return Ok(Versioned { record, revision: answer.revision });
        }
        match &answer.found[0] {
            // An earlier attempt came through: nobody else would draw this id.
            Some(found) if answer.repeated && found.value == text => {
                Ok(Versioned { record, revision: found.mod_revision })
            }
            _ => Err(ClusterError::NotEmpty { name: self.name().to_string() }),
        }
    }

    /// The cluster's own record, if this version understands the cluster and `id` is its id.
    pub fn check(&self, id: u64) -> Result<Versioned<ClusterRecord>, ClusterError> {
        let found = self.cluster_record()?;
        self.refuse_other(id, found.record.id)?;
        Ok(found)
    }

    fn refuse_other(&self, id: u64, found: u64) -> Result<(), ClusterError> {
        if found == id {
            return Ok(());
        }
        Err(ClusterError::OtherCluster { name: self.name().to_string(), id, found })
    }

    /// Refuses a cluster that is not the expected one, or that this version must not touch.
    pub(super) fn accept(&self, record: &ClusterRecord) -> Result<(), ClusterError> {
        record.check(self.name())?;
        self.expected.map_or(Ok(()), |id| self.refuse_other(id, record.id))
    }

    /// Changes the cluster's settings.
    pub fn change_cluster(
        &self,
        mut alter: impl FnMut(&mut ClusterRecord),
    ) -> Result<Versioned<ClusterRecord>, ClusterError> {
        self.change(&self.keys.cluster(), None, |record: &mut ClusterRecord, _| {
            let before = record.clone();
            alter(record);
            assert_eq!(record.id, before.id, "a cluster keeps its id");
            Ok(if *record == before { Verdict::Leave } else { Verdict::Put })
        })
    }

    /// The cluster's own record. The etcd that has it is ours from then on.
    pub fn cluster_record(&self) -> Result<Versioned<ClusterRecord>, ClusterError> {
        let (key, floor) = (self.keys.cluster(), self.seen());
        let is_one_way = self.etcd.endpoints().len() == 1;
        if self.etcd.ours().is_some() || is_one_way {
            let page = self.etcd.look(&key)?;
            match self.record_in(&page, floor.as_ref()) {
                // Made anew with the same words, another etcd has the id of ours.
                Err(ClusterError::NoCluster { .. } | ClusterError::OtherCluster { .. }) if !is_one_way => {}
                Ok(record) => {
                    self.etcd.pin(&page);
                    self.note_seen(&record.record, None);
                    return Ok(record);
                }
                Err(error) => return Err(error),
            }
        }
        // It is not known which etcd is ours. One that came up empty, or with an old state, must not speak for the others.
        let mut first = None;
        let mut ours = None;
        let mut refused = None;
        for (endpoint, page) in self.etcd.look_everywhere(&key)? {
            match self.record_in(&page, floor.as_ref()) {
                Ok(record) => {
                    is_one(&mut first, endpoint, page.etcd)?;
                    ours = Some((record, endpoint, page));
                }
                // That there is none says least.
                Err(error) if refused.is_none() || !matches!(error, ClusterError::NoCluster { .. }) => {
                    refused = Some(error);
                }
                Err(_) => {}
            }
        }
        match (ours, refused) {
            (Some((record, endpoint, page)), _) => {
                self.etcd.prefer(endpoint);
                self.etcd.pin(&page);
                self.note_seen(&record.record, None);
                Ok(record)
            }
            (None, Some(error)) => Err(error),
            (None, None) => unreachable!("somebody has answered"),
        }
    }

    fn record_in(&self, page: &Page, floor: Option<&Age>) -> Result<Versioned<ClusterRecord>, ClusterError> {
        let found = page.entries.first();
        let found = found.ok_or_else(|| ClusterError::NoCluster { name: self.name().to_string() })?;
        let record: Versioned<ClusterRecord> = parse(found)?;
        self.accept(&record.record)?;
        self.judge_seen(floor, &record.record, page.revision)?;
        let key = (found.key.as_str(), found.mod_revision);
        self.judge_keys(floor, &record.record, std::iter::once(key))?;
        Ok(record)
    }

    /// The store's revision: nothing that had happened when this was asked has a later one.
    pub fn revision_now(&self) -> Result<u64, ClusterError> {
        self.cluster_record()?;
        self.etcd.check_trust()?;
        Ok(self.etcd.revision_heard())
    }
}
