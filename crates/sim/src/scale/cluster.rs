//! A cluster that is only its table of groups, arranged by the real placement.

use super::hardware::DRIVES_PER_NODE;
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::cluster::placement::{Drive, Group, Plan, Standing, Wishes, plan};
use weft_engine::{DriveId, GroupId};

/// One copy of a group to be made.
#[derive(Debug, Clone)]
pub struct GroupCopy {
    /// The first member, which owners are beside, if it lives.
    pub leader: Option<DriveId>,
    /// Everybody who has it.
    pub holders: Vec<DriveId>,
    pub to: DriveId,
}

#[derive(Clone)]
pub struct Cluster {
    pub drives: Vec<Drive>,
    pub groups: BTreeMap<GroupId, Group>,
    factor: u32,
}

impl Cluster {
    /// So many nodes of equal drives, arranged from the beginning.
    pub fn new(nodes: u32, factor: u32) -> Self {
        let mut cluster = Self { drives: Vec::new(), groups: BTreeMap::new(), factor };
        (0..nodes).for_each(|node| cluster.add_node(node));
        let copies = cluster.settle();
        assert!(copies.is_empty(), "new groups have nothing to copy");
        cluster
    }

    pub fn add_node(&mut self, node: u32) {
        for _ in 0..DRIVES_PER_NODE {
            let id = DriveId(self.drives.len() as u32);
            self.drives.push(Drive { id, node, rack: 0, zone: 0, weight: 1, standing: Standing::In });
        }
    }

    pub fn lose_node(&mut self, node: u32) {
        for drive in self.drives.iter_mut().filter(|drive| drive.node == node) {
            drive.standing = Standing::Lost;
        }
    }

    pub fn node_of(&self, drive: DriveId) -> u32 {
        self.drives[drive.0 as usize].node
    }

    /// Drives that work.
    pub fn drives_in(&self) -> usize {
        self.drives.iter().filter(|drive| drive.standing == Standing::In).count()
    }

    pub fn nodes_in(&self) -> Vec<u32> {
        let working = self.drives.iter().filter(|drive| drive.standing == Standing::In);
        working.map(|drive| drive.node).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Changes the table until nothing more is wanted, as if every copy were made at once. Gives the copies.
    pub fn settle(&mut self) -> Vec<GroupCopy> {
        let mut copies = Vec::new();
        loop {
            let plan = self.next_plan();
            if plan.changed.is_empty() && plan.made.is_empty() {
                return copies;
            }
            copies.extend(self.write(plan));
        }
    }

    /// Does what is wanted now. Gives the copies that have to be made for it.
    pub fn step(&mut self) -> Vec<GroupCopy> {
        let plan = self.next_plan();
        self.write(plan)
    }

    fn next_plan(&self) -> Plan {
        let next_group = self.groups.last_key_value().map_or(1, |(last, _)| last.0 + 1);
        let wishes = Wishes { factors: [self.factor].into(), moves_max: usize::MAX, next_group };
        let groups: Vec<Group> = self.groups.values().cloned().collect();
        let audited: BTreeSet<(GroupId, u64)> =
            groups.iter().map(|group| (group.id, group.version)).collect();
        plan(&self.drives, &groups, &audited, &wishes)
    }

    fn write(&mut self, plan: Plan) -> Vec<GroupCopy> {
        let mut copies = Vec::new();
        for group in plan.changed.iter().chain(&plan.made) {
            let Some(before) = self.groups.insert(group.id, group.clone()) else { continue };
            let works = |drive: &&DriveId| self.drives[drive.0 as usize].standing == Standing::In;
            let holders: Vec<DriveId> = before.members.iter().filter(works).copied().collect();
            for &to in group.members.iter().filter(|member| !before.members.contains(member)) {
                let leader = holders.first().copied().filter(|&leader| leader == before.members[0]);
                copies.push(GroupCopy { leader, holders: holders.clone(), to });
            }
        }
        copies
    }

    /// The most places on a drive that works, as a multiple of the mean.
    pub fn imbalance(&self) -> f64 {
        let mut held = vec![0u32; self.drives.len()];
        for member in self.groups.values().flat_map(|group| &group.members) {
            held[member.0 as usize] += 1;
        }
        let most = held.iter().max().copied().unwrap_or(0);
        f64::from(most) * self.drives_in() as f64 / self.places() as f64
    }

    /// Places in all groups.
    pub fn places(&self) -> usize {
        self.groups.len() * self.factor as usize
    }
}
