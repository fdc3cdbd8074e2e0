//! Directories of nodes of a cluster: the records are in etcd, and are read there once, all at one revision.
//! Promises: of the cluster only what is in these directories is looked at; what else there is, is told as elsewhere.

use super::{Offline, OfflineError, is_in_use, offline_drive};
use crate::config::cluster::{ClusterConfig, ClusterError, ClusterStore, NodeState};
use crate::config::etcd::{Etcd, EtcdError};
use crate::config::{DirectoryLock, Membership, MembershipStage};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A node of the cluster, looked at or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfflineNode {
    pub name: String,
    /// One of the directories is its.
    pub is_here: bool,
    /// It holds a lease, so it runs or ended a moment ago.
    pub is_alive: bool,
}

pub(super) fn open(members: Vec<(PathBuf, Membership)>, etcd: &[String]) -> Result<Offline, OfflineError> {
    check(&members)?;
    // Locked before the records are read: what is on the drives here does not change behind them.
    let locks = members.iter().map(|(dir, _)| DirectoryLock::look(dir)).collect::<Result<Vec<_>, _>>()?;
    let config = load(&members, etcd)?;
    let dirs: BTreeMap<u32, &PathBuf> = members.iter().map(|(dir, member)| (member.node, dir)).collect();
    let mut drives = Vec::new();
    let mut elsewhere = BTreeMap::new();
    for record in config.drives.values().map(|drive| &drive.record).filter(|record| is_in_use(record)) {
        match dirs.get(&record.node) {
            Some(dir) => drives.push(offline_drive(dir, record, Some(record.node))),
            None => drop(elsewhere.insert(record.id(), record.node)),
        }
    }
    let there = config.nodes.values().map(|node| &node.record);
    let nodes = there.filter(|record| record.state != NodeState::Removed).map(|record| {
        let (is_here, is_alive) = (dirs.contains_key(&record.node), config.alive.contains_key(&record.node));
        (record.node, OfflineNode { name: record.name.clone(), is_here, is_alive })
    });
    Ok(Offline {
        drives,
        elsewhere,
        nodes: nodes.collect(),
        dirs: members.iter().map(|(dir, _)| dir.clone()).collect(),
        groups: config.groups.values().map(|group| group.record.clone()).collect(),
        families: config.families.values().map(|family| family.record.clone()).collect(),
        snapshots: config.snapshots.values().map(|snapshot| snapshot.record.clone()).collect(),
        containers: config.containers.values().map(|container| container.record.clone()).collect(),
        _locks: locks.into_iter().flatten().collect(),
    })
}

/// All of one cluster, wholly in it, and each node once.
fn check(members: &[(PathBuf, Membership)]) -> Result<(), OfflineError> {
    let mut nodes: BTreeMap<u32, &PathBuf> = BTreeMap::new();
    let id = members[0].1.id;
    for (dir, membership) in members {
        let (dir, cluster) = (dir.clone(), membership.cluster.clone());
        if membership.id != id {
            return Err(OfflineError::OtherCluster { dir, cluster, id: membership.id });
        }
        if membership.stage == MembershipStage::Importing {
            return Err(OfflineError::Importing { dir, cluster });
        }
    }
    for (dir, membership) in members {
        let node = membership.node;
        if let Some(first) = nodes.insert(node, dir) {
            return Err(OfflineError::Twice { first: first.clone(), second: dir.clone(), node });
        }
    }
    Ok(())
}

fn load(members: &[(PathBuf, Membership)], etcd: &[String]) -> Result<ClusterConfig, OfflineError> {
    let mut endpoints = etcd.to_vec();
    if endpoints.is_empty() {
        for endpoint in members.iter().flat_map(|(_, membership)| &membership.endpoints) {
            if !endpoints.contains(endpoint) {
                endpoints.push(endpoint.clone());
            }
        }
    }
    let membership = &members[0].1;
    let explain = |error| match error {
        ClusterError::Etcd(source @ (EtcdError::Unreachable { .. } | EtcdError::NoQuorum { .. })) => {
            OfflineError::NoEtcd { cluster: membership.cluster.clone(), source }
        }
        error => error.into(),
    };
    let etcd = Etcd::new(&endpoints).map_err(ClusterError::from).map_err(explain)?;
    let store = ClusterStore::new(etcd, &membership.cluster)?;
    store.check(membership.id).map_err(explain)?;
    store.load().map_err(explain)
}
