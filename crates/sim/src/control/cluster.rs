//! The rules of a real cluster, in the plan `cluster`: placement and ownership are those of the engine's `cluster`, carried
//! out in pieces, while nodes and drives come, are emptied and go for good.
//! Promises: a drive is taken away only when no group and no log names it any more; a node only when it serves nothing
//! and has no drives left.
//! Leaves to others: what goes wrong meanwhile (`atlas`), opening and closing families (`families`).

use super::{DriveEntry, FamilyPhase};
use crate::phase::Phase;
use crate::world::World;
use rand::Rng;
use rand::seq::IndexedRandom;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use weft_engine::cluster::ownership::{self, Clients, Cluster, How, Owner};
use weft_engine::cluster::placement::{self, Group, Standing, Wishes, is_emptied, plan};
use weft_engine::interface::DriveState;
use weft_engine::{DriveId, FamilyId, GroupId, Order, Time};

/// Ticks between two looks at the whole.
const LOOK_EVERY: u64 = 5;
/// Percent of changes that are not carried out this time: each is written alone, and any may fail.
const UNDONE_PERCENT: u32 = 10;
/// How long, in ticks, the old owner of a hand-over may take to settle.
const PATIENCE: u64 = 100;
const NODES_MAX: usize = 12;
/// Nodes that stay are never fewer: so many copies there may be.
const NODES_MIN: usize = 3;

/// The table of groups, as the config store has it.
#[derive(Default)]
pub struct Table {
    groups: BTreeMap<GroupId, Group>,
    /// Groups of which every owner has said, in this version, that their members have everything.
    audited: BTreeSet<(GroupId, u64)>,
    looked_at: u64,
    at_rest: bool,
    /// Grows with every change of the groups and of what was audited.
    changes: u64,
    /// What the rule was last asked, if it wanted nothing: asked the same, it would want nothing again.
    content_with: Option<Question>,
}

/// What decides, beside the number of the next group, what the rule of placement wants.
#[derive(PartialEq, Eq)]
struct Question {
    drives: Vec<placement::Drive>,
    factors: BTreeSet<u32>,
    changes: u64,
}

impl World {
    pub fn is_cluster(&self) -> bool {
        self.parameters.by_rules
    }

    /// Nothing moves any more, and nothing wants to.
    pub fn placement_rests(&self) -> Result<(), String> {
        if !self.is_cluster() {
            return Ok(());
        }
        if !self.control.table.at_rest {
            return Err("placement is not at rest".into());
        }
        let draining = self.control.drives_draining(true);
        if draining.is_empty() {
            return Ok(());
        }
        let groups: Vec<Group> = self.control.table.groups.values().cloned().collect();
        let staying = self.control.drives_draining(false).len();
        for drive in draining {
            let enough = groups.iter().all(|group| group.factor as usize <= staying);
            if enough && !is_emptied(DriveId(drive as u32), &groups) {
                return Err(format!("drive {drive} is not emptied"));
            }
        }
        Ok(())
    }

    pub(super) fn cluster_tick(&mut self) {
        if !self.is_cluster()
            || self.now < self.control.table.looked_at + LOOK_EVERY * self.parameters.tick_us
        {
            return;
        }
        self.control.table.looked_at = self.now;
        self.place_groups();
        self.move_owners();
        self.take_emptied_drives();
        self.take_emptied_nodes();
    }

    fn standing(&self, entry: &DriveEntry) -> Standing {
        match entry.state {
            _ if entry.retired => Standing::Lost,
            DriveState::Up | DriveState::Slow | DriveState::Draining if entry.draining => Standing::Draining,
            DriveState::Up | DriveState::Slow | DriveState::Draining => Standing::In,
            DriveState::Down if self.now > entry.down_since + self.parameters.away_us => Standing::Lost,
            DriveState::Down => Standing::Down,
            DriveState::Lost => Standing::Lost,
        }
    }

    fn place_groups(&mut self) {
        for (group, version) in self.control.settled_groups() {
            let is_new = self.control.table.audited.insert((group, version));
            self.control.table.changes += u64::from(is_new);
        }
        let known = self.control.drives.iter().enumerate().filter(|(_, entry)| entry.formatted);
        let drives: Vec<placement::Drive> = known
            .map(|(drive, entry)| placement::Drive {
                id: DriveId(drive as u32),
                node: self.shards[entry.shard].node as u32,
                rack: self.nodes[self.shards[entry.shard].node].rack,
                zone: 0,
                weight: self.drives[drive].geometry.data,
                standing: self.standing(entry),
            })
            .collect();
        let factors = self.control.families.iter().filter(|family| family.phase != FamilyPhase::Dropped);
        let table = &self.control.table;
        let factors: BTreeSet<u32> = factors.map(|family| family.record.factor).collect();
        let question = Question { drives, factors, changes: table.changes };
        if table.content_with.as_ref() == Some(&question) {
            return;
        }
        let wishes = Wishes {
            factors: question.factors.clone(),
            moves_max: self.parameters.moves_max,
            next_group: table.groups.last_key_value().map_or(1, |(last, _)| last.0 + 1),
        };
        let groups: Vec<Group> = table.groups.values().cloned().collect();
        let wanted = plan(&question.drives, &groups, &table.audited, &wishes);
        let wants_nothing = wanted.changed.is_empty() && wanted.made.is_empty();
        self.control.table.at_rest = wanted.is_at_rest && wants_nothing;
        self.control.table.content_with = wants_nothing.then_some(question);
        self.coverage.add("groups made", wanted.made.len() as u64);
        for group in wanted.made {
            self.control.write_group(group);
        }
        for group in wanted.changed {
            if self.rng.random_range(0..100) >= UNDONE_PERCENT {
                self.coverage.count("groups changed by the real rule");
                self.control.write_group(group);
            }
        }
        let versions: BTreeSet<(GroupId, u64)> =
            self.control.table.groups.values().map(|group| (group.id, group.version)).collect();
        self.control.table.audited.retain(|audited| versions.contains(audited));
    }

    fn cluster(&mut self) -> Cluster {
        let present = self.nodes.iter().enumerate().filter(|(_, node)| !node.removed);
        let nodes = present.map(|(number, node)| {
            let shards = node.shards.clone().map(|shard| self.shards[shard].id).collect();
            let lease = node.lease.held(self.now);
            let (is_storage_only, is_draining) = (node.storage_only, node.draining);
            let is_stopping = false;
            (number as u32, ownership::Node { lease, is_storage_only, is_draining, is_stopping, shards })
        });
        let nodes = nodes.collect();
        let mut families = BTreeMap::new();
        for entry in &self.control.families {
            if matches!(entry.phase, FamilyPhase::Dropping | FamilyPhase::Dropped) {
                continue;
            }
            let owner = entry.owner.map(|shard| Owner {
                node: self.shards[shard].node as u32,
                shard: self.shards[shard].id,
                // A shard that was chosen while it had no lease does not hold it.
                lease: entry.lease.unwrap_or(u64::MAX),
                since: Time(entry.since),
            });
            let moving_to = entry.moving_to.map(|(shard, _)| self.shards[shard].node as u32);
            let clients = Clients { only_on: entry.clients_on.map(|(node, since)| (node, Time(since))) };
            families.insert(entry.record.family, ownership::Family { owner, moving_to, clients });
        }
        Cluster { now: Time(self.now), nodes, families }
    }

    fn move_owners(&mut self) {
        if self.phase == Phase::ReadBack {
            // Who reads everything back asks the owner there is, and none of these reads may fail.
            return self.take_what_ran_out_of_names();
        }
        for family in 0..self.control.families.len() {
            if self.rng.random_range(0..200) == 0 {
                let node = self.rng.random_range(0..self.nodes.len()) as u32;
                self.control.families[family].clients_on =
                    self.rng.random_bool(0.8).then_some((node, self.now));
            }
        }
        for wanted in self.cluster().moves() {
            let to = self.shard_of(wanted.to);
            let entry = &mut self.control.families[wanted.family.0 as usize];
            match wanted.how {
                How::Take => entry.next = Some(to),
                How::HandOver => {
                    entry.moving_to = Some((to, self.now));
                    entry.settled = false;
                    let owner = entry.owner.expect("what is handed over has an owner");
                    self.coverage.count("hand-overs begun");
                    self.order(owner, Order::Settle { family: wanted.family });
                }
            }
        }
        for family in 0..self.control.families.len() {
            let entry = &self.control.families[family];
            let Some((to, since)) = entry.moving_to else { continue };
            if entry.phase != FamilyPhase::Ready {
                continue;
            }
            let patient = self.now < since + PATIENCE * self.parameters.tick_us;
            if self.rng.random_range(0..100) == 0 {
                self.call_back(family);
            } else if entry.settled || !patient {
                self.move_family(family, Some(to), false);
            }
        }
    }

    fn take_what_ran_out_of_names(&mut self) {
        if !self.parameters.may_lose_owners_at_rest() {
            return;
        }
        for wanted in self.cluster().moves().into_iter().filter(|wanted| wanted.how == How::Take) {
            let to = self.shard_of(wanted.to);
            self.control.families[wanted.family.0 as usize].next = Some(to);
        }
    }

    /// Somebody wants the vDisk to stay where it is, after all.
    fn call_back(&mut self, family: usize) {
        let entry = &mut self.control.families[family];
        entry.moving_to = None;
        let owner = entry.owner.expect("what is handed over has an owner");
        self.coverage.count("hand-overs called back");
        self.order(owner, Order::StopSettling { family: FamilyId(family as u32) });
    }

    /// Whether anything still needs this drive.
    fn is_needed(&self, drive: usize, groups: &[Group]) -> bool {
        let drive = DriveId(drive as u32);
        let named = self.control.families.iter().any(|entry| {
            entry.phase != FamilyPhase::Dropped
                && entry.record.segments.iter().any(|segment| segment.drives().any(|named| named == drive))
        });
        named || !is_emptied(drive, groups)
    }

    fn take_emptied_drives(&mut self) {
        let draining = self.control.drives_draining(true);
        if draining.is_empty() {
            return;
        }
        let groups: Vec<Group> = self.control.table.groups.values().cloned().collect();
        for drive in draining {
            if self.control.drives[drive].ready
                && !self.is_needed(drive, &groups)
                && self.rng.random_range(0..10) == 0
            {
                self.coverage.count("drives emptied and taken away");
                let entry = &mut self.control.drives[drive];
                entry.retired = true;
                entry.ready = false;
                entry.state = DriveState::Lost;
                let shard = entry.shard;
                self.control.changed = true;
                self.control.unrest = self.now;
                self.drives[drive].gone = true;
                self.order(shard, Order::CloseDrive { drive: DriveId(drive as u32) });
            }
        }
    }

    fn take_emptied_nodes(&mut self) {
        for node in 0..self.nodes.len() {
            let state = &self.nodes[node];
            if !state.draining || state.removed {
                continue;
            }
            let here = |shard: &usize| state.shards.contains(shard);
            let has_drives = self.control.drives.iter().any(|entry| here(&entry.shard) && !entry.retired);
            let serves = self.control.families.iter().any(|entry| {
                let moving_here = entry.moving_to.is_some_and(|(shard, _)| here(&shard));
                entry.owner.as_ref().is_some_and(here) || entry.serving.keys().any(here) || moving_here
            });
            if !has_drives && !serves {
                self.coverage.count("nodes emptied and taken away");
                self.node_stops(node, None);
                self.nodes[node].removed = true;
                for other in &mut self.nodes {
                    other.sights[node].lost = false;
                }
            }
        }
    }

    /// A node is to be left alone, or is not any more.
    pub fn drain_some_node(&mut self) -> bool {
        let present: Vec<usize> = (0..self.nodes.len()).filter(|&node| !self.nodes[node].removed).collect();
        let staying = present.iter().filter(|&&node| !self.nodes[node].draining).count();
        let Some(&node) = present.choose(&mut self.rng) else { return false };
        let draining = !self.nodes[node].draining;
        if draining && staying <= NODES_MIN {
            return false;
        }
        self.drain_node(node, draining);
        true
    }

    pub fn drain_node(&mut self, node: usize, draining: bool) {
        self.nodes[node].draining = draining;
        for drive in self.control.drives_draining(!draining) {
            if self.nodes[node].shards.contains(&self.control.drives[drive].shard) {
                self.drain_drive(drive, draining);
            }
        }
    }

    /// A node joins the cluster.
    pub fn add_some_node(&mut self) -> bool {
        if self.nodes.iter().filter(|node| !node.removed).count() >= NODES_MAX
            || self.nodes.len() >= 2 * NODES_MAX
        {
            return false;
        }
        let shards = self.rng.random_range(1..=2);
        let node = self.add_node(shards);
        self.node_starts(node);
        true
    }

    /// A family is opened by another shard: where it was going to, it is.
    pub(super) fn arrived(&mut self, family: FamilyId) {
        let entry = &mut self.control.families[family.0 as usize];
        entry.moving_to = None;
        entry.since = self.now;
    }
}

impl super::Control {
    /// The members of every group, for people who wonder why a pool is full.
    pub fn describe_groups(&self) -> String {
        let groups = self.groups.iter().map(|(group, view)| {
            let members: Vec<_> = view.members.iter().map(|drive| drive.0).collect();
            format!("{}: {members:?}", group.0)
        });
        groups.collect::<Vec<_>>().join(", ")
    }

    fn write_group(&mut self, group: Group) {
        self.changed = true;
        if !group.former.is_empty() {
            self.whole.changed(group.id, self.version + 1);
        }
        Arc::make_mut(&mut self.groups).insert(group.id, group.view());
        self.table.groups.insert(group.id, group);
        self.table.changes += 1;
    }

    /// Groups that the present owner of every family has called whole, in their present versions.
    fn settled_groups(&mut self) -> Vec<(GroupId, u64)> {
        let settled = self.take_settled();
        settled.into_iter().map(|group| (group, self.table.groups[&group].version)).collect()
    }
}
