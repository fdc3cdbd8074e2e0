//! A cluster whose copies are made at once, lately or never: what the table of groups does to them.

mod ownership_stories;
mod placement_stories;
mod placement_walk;

use super::placement::{Drive, Group, Plan, Standing, Wishes, plan};
use super::pool::{NODE, Pool};
use super::shares::shares;
use super::spread::Spread;
use crate::identity::{DriveId, GroupId};
use std::collections::{BTreeMap, BTreeSet};

/// The table with what the drives really hold.
struct Cluster {
    drives: Vec<Drive>,
    groups: BTreeMap<GroupId, Group>,
    /// Who has everything of a group.
    holders: BTreeMap<GroupId, BTreeSet<DriveId>>,
    factors: BTreeSet<u32>,
    moves_max: usize,
    /// Copies made so far.
    copied: usize,
}

impl Cluster {
    fn new(factors: &[u32]) -> Self {
        Self {
            drives: Vec::new(),
            groups: BTreeMap::new(),
            holders: BTreeMap::new(),
            factors: factors.iter().copied().collect(),
            moves_max: 64,
            copied: 0,
        }
    }

    /// So many nodes with a drive each in one rack.
    fn of_nodes(nodes: u32, factors: &[u32]) -> Self {
        let mut cluster = Self::new(factors);
        for node in 0..nodes {
            cluster.add(node, 0, 0, 1000);
        }
        cluster
    }

    fn add(&mut self, node: u32, rack: u32, zone: u32, weight: u64) -> DriveId {
        let id = DriveId(self.drives.len() as u32);
        self.drives.push(Drive { id, node, rack, zone, weight, standing: Standing::In });
        id
    }

    fn set_node(&mut self, node: u32, standing: Standing) {
        for number in 0..self.drives.len() {
            if self.drives[number].node == node && self.drives[number].standing != Standing::Lost {
                self.set_drive(DriveId(number as u32), standing);
            }
        }
    }

    fn set_drive(&mut self, drive: DriveId, standing: Standing) {
        self.drives[drive.0 as usize].standing = standing;
        if standing == Standing::Lost {
            self.holders.values_mut().for_each(|holders| {
                holders.remove(&drive);
            });
        }
    }

    fn standing(&self, drive: DriveId) -> Standing {
        self.drives[drive.0 as usize].standing
    }

    fn answers(&self, drive: DriveId) -> bool {
        matches!(self.standing(drive), Standing::In | Standing::Draining)
    }

    fn table(&self) -> Vec<Group> {
        self.groups.values().cloned().collect()
    }

    /// What all owners can say truthfully at this moment.
    fn audited(&self) -> BTreeSet<(GroupId, u64)> {
        let whole = |group: &&Group| {
            let holders = &self.holders[&group.id];
            group.members.iter().all(|&member| holders.contains(&member) && self.answers(member))
        };
        self.groups.values().filter(whole).map(|group| (group.id, group.version)).collect()
    }

    fn plan(&self) -> Plan {
        self.plan_knowing(&self.audited())
    }

    fn plan_knowing(&self, audited: &BTreeSet<(GroupId, u64)>) -> Plan {
        let next_group = self.groups.last_key_value().map_or(1, |(last, _)| last.0 + 1);
        let wishes = Wishes { factors: self.factors.clone(), moves_max: self.moves_max, next_group };
        plan(&self.drives, &self.table(), audited, &wishes)
    }

    /// Writes one group of a plan, and takes from drives what they need not keep.
    fn write(&mut self, group: &Group) {
        let new = !self.groups.contains_key(&group.id);
        let holders = self.holders.entry(group.id).or_default();
        if new {
            // It is empty, so everybody has everything.
            holders.extend(&group.members);
        }
        let could = holders.iter().any(|holder| self.drives[holder.0 as usize].standing != Standing::Lost);
        holders.retain(|holder| group.members.contains(holder) || group.former.contains(holder));
        assert!(!could || !holders.is_empty(), "the last copies of group {} were given away", group.id);
        self.groups.insert(group.id, group.clone());
    }

    /// Makes the copies that can be made, of those groups that `chosen` likes.
    fn copy(&mut self, mut chosen: impl FnMut(GroupId) -> bool) {
        for group in self.groups.values() {
            let holders = &self.holders[&group.id];
            let readable = holders.iter().any(|&holder| {
                matches!(self.drives[holder.0 as usize].standing, Standing::In | Standing::Draining)
            });
            if !readable || !chosen(group.id) {
                continue;
            }
            let lacking: Vec<DriveId> = group
                .members
                .iter()
                .copied()
                .filter(|&member| !holders.contains(&member) && self.answers(member))
                .collect();
            self.copied += lacking.len();
            self.holders.get_mut(&group.id).expect("every group has holders").extend(lacking);
        }
    }

    /// Plans, writes and copies until nothing more is wanted. Gives the rounds it took.
    fn settle(&mut self) -> usize {
        for round in 0..10_000 {
            self.copy(|_| true);
            let plan = self.plan();
            if plan.changed.is_empty() && plan.made.is_empty() {
                return round;
            }
            for group in plan.changed.iter().chain(&plan.made) {
                self.write(group);
            }
        }
        panic!("placement never comes to rest");
    }

    fn held(&self, factor: u32) -> BTreeMap<DriveId, usize> {
        let mut held: BTreeMap<DriveId, usize> = self.drives.iter().map(|drive| (drive.id, 0)).collect();
        for group in self.groups.values().filter(|group| group.factor == factor) {
            for member in &group.members {
                *held.get_mut(member).expect("members are drives") += 1;
            }
        }
        held
    }

    fn led(&self, factor: u32) -> BTreeMap<DriveId, usize> {
        let mut led: BTreeMap<DriveId, usize> = self.drives.iter().map(|drive| (drive.id, 0)).collect();
        for group in self.groups.values().filter(|group| group.factor == factor) {
            *led.get_mut(&group.members[0]).expect("members are drives") += 1;
        }
        led
    }

    /// Places each drive should have, as the spread allows.
    fn shares(&self, factor: u32) -> BTreeMap<DriveId, f64> {
        let pool = Pool::new(&self.drives, &[]);
        let groups = self.groups.values().filter(|group| group.factor == factor).count();
        let spread = Spread::of(&pool, factor as usize);
        let shares = shares(&pool, factor as usize, &spread.limits, groups as f64);
        let shares = shares.unwrap_or_else(|| vec![0.0; self.drives.len()]);
        self.drives.iter().map(|drive| drive.id).zip(shares).collect()
    }

    /// The most that a drive is over its share, as a part of it, and in places.
    fn imbalance(&self, factor: u32) -> (f64, f64) {
        let held = self.held(factor);
        let mut worst: (f64, f64) = (0.0, 0.0);
        for (drive, share) in self.shares(factor) {
            if share > 0.0 && self.standing(drive) == Standing::In {
                let over = held[&drive] as f64 - share;
                worst = (worst.0.max(over / share), worst.1.max(over));
            }
        }
        worst
    }

    fn nodes_of(&self, group: &Group) -> BTreeSet<u32> {
        group.members.iter().map(|member| self.drives[member.0 as usize].node).collect()
    }

    /// Members stand as far apart as the drives allow, wherever all of them are in.
    fn assert_apart(&self, factor: u32) {
        let pool = Pool::new(&self.drives, &[]);
        let spread = Spread::of(&pool, factor as usize);
        for group in self.groups.values().filter(|group| group.factor == factor) {
            if group.members.iter().any(|&member| self.standing(member) != Standing::In) {
                continue;
            }
            let members: Vec<usize> = group.members.iter().map(|&member| pool.number(member)).collect();
            assert_eq!(
                spread.crowding(&pool, &members),
                0,
                "{group:?} stands too close, limits {:?}",
                spread.limits
            );
            let nodes = members.iter().map(|&member| pool.sites[member][NODE]).collect::<BTreeSet<_>>().len();
            assert_eq!(nodes, self.nodes_of(group).len(), "domains are counted as they are");
        }
    }
}
