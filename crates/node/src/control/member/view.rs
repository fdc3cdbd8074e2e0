//! What the shards of a member are told: where the shards of others are, how drives stand and which groups there are,
//! and who serves what.
//! A node believes the store, except where it knows better: a drive that others call up is down for a node that cannot
//! reach it. That is always safe (writes go on without it), and much sooner known than a lease is over. One that reaches nobody waits
//! instead (`cut_off`).

use super::LOCAL_BITS;
use super::status::is_slow;
use crate::config::cluster::NodeState;
use crate::config::{DriveRecord, DriveRecordState, FamilyState};
use crate::control::{Control, Standing};
use crate::shard_loop::{Mail, PoorWay, Route};
use std::collections::BTreeMap;
use std::sync::Arc;
use weft_engine::interface::{DriveState, DriveView, Order, View};
use weft_engine::{Epoch, ShardId};

impl Control {
    pub(super) fn tell_peers(&mut self) {
        let Some(member) = self.part.member_mut() else { return };
        let mut peers = BTreeMap::new();
        for (&node, record) in &member.mirror.nodes {
            // Who has no lease may be anybody by now.
            if node == member.node || !member.mirror.alive.contains_key(&node) {
                continue;
            }
            for (index, address) in record.record.transport.iter().enumerate() {
                match address.parse() {
                    Ok(address) => {
                        peers.insert(ShardId::of(node, index as u32), address);
                    }
                    Err(_) => tracing::warn!(node, address, "a node's address is none"),
                }
            }
        }
        if peers == member.peers {
            return;
        }
        member.unreachable.retain(|shard, _| peers.contains_key(shard));
        member.peers = peers;
        for shard in &self.shards {
            shard.send(Mail::Peers(member.peers.clone()));
        }
    }

    /// A shard here cannot reach one of another node.
    pub(in crate::control) fn on_peer_lost(&mut self, own: ShardId, other: ShardId, why: String) {
        let Some(member) = self.part.member_mut() else { return };
        tracing::warn!(node = other.node(), shard = other.0, why, "a node cannot be reached");
        if member.peers.contains_key(&other) {
            member.unreachable.entry(other).or_default().insert(own, why);
        }
        self.tell_view();
    }

    pub(in crate::control) fn on_peer_back(&mut self, own: ShardId, other: ShardId) {
        let Some(member) = self.part.member_mut() else { return };
        tracing::info!(node = other.node(), shard = other.0, "a node can be reached again");
        if let Some(lost) = member.unreachable.get_mut(&other) {
            lost.remove(&own);
            if lost.is_empty() {
                member.unreachable.remove(&other);
            }
        }
        self.tell_view();
    }

    /// Much of what a shard here sends to another gets lost, or takes long; or that is over, also by losing it. That is told and decides
    /// nothing: reads go where answers come from soon anyway, and what has no other way is better served slowly than not at all.
    pub(in crate::control) fn on_way_poor(&mut self, own: ShardId, other: ShardId, how: Option<PoorWay>) {
        let Some(member) = self.part.member_mut() else { return };
        match how {
            Some(how) => {
                tracing::warn!(node = other.node(), shard = other.0, ?how, "the way to a node is poor");
                member.poor_ways.insert((own, other), how);
            }
            None => {
                tracing::info!(
                    node = other.node(),
                    shard = other.0,
                    "the way to a node is not poor any more"
                );
                member.poor_ways.remove(&(own, other));
            }
        }
    }

    /// Tells all shards how things stand, if that has changed.
    pub(in crate::control) fn tell_view(&mut self) {
        let Some(member) = self.part.member_mut() else { return };
        let mirror = &member.mirror;
        let reaches_nobody = member.reaches_nobody();
        let mut drives = BTreeMap::new();
        for (&id, record) in &mirror.drives {
            let record = &record.record;
            if record.state == DriveRecordState::Making {
                continue;
            }
            let shard = ShardId::of(record.node, record.shard);
            let is_up = if record.node == member.node {
                let own = self.drives.get(&id);
                own.is_some_and(|drive| drive.standing == Standing::Up) && !self.hanging.contains_key(&id)
            } else {
                let is_up = mirror.is_up(record);
                match reaches_nobody {
                    true => is_up || member.is_cut_off(record.node),
                    false => is_up && !member.unreachable.contains_key(&shard),
                }
            };
            let slow = match record.node == member.node {
                true => self.slow.contains_key(&id),
                false => is_slow(mirror, record),
            };
            let state = match () {
                () if record.state == DriveRecordState::Lost => DriveState::Lost,
                () if !is_up => DriveState::Down,
                () if is_leaving(member, record) => DriveState::Draining,
                () if slow => DriveState::Slow,
                () => DriveState::Up,
            };
            drives.insert(id, DriveView { shard, domain: record.node, state });
        }
        let groups = mirror.groups.iter().map(|(&id, group)| (id, group.record.view())).collect();
        if drives == member.view.drives && groups == *member.view.groups {
            return;
        }
        let version = (mirror.revision << LOCAL_BITS).max(member.view.version + 1);
        member.view = View { version, drives, groups: Arc::new(groups) };
        for shard in &self.shards {
            shard.send(Mail::Order(Order::View(member.view.clone())));
        }
    }

    /// Tells all shards who serves what, if that has changed. Comes behind the orders to open what is served here.
    pub(super) fn tell_routes(&mut self) {
        let Some(member) = self.part.member_mut() else { return };
        let mut routes = BTreeMap::new();
        for (&id, family) in &member.mirror.families {
            let record = &family.record;
            let Some(owner) = record.owner.map(ShardId) else { continue };
            let life = member.mirror.alive.get(&owner.node()).map(|alive| alive.record.incarnation);
            if record.state == FamilyState::Live && life == Some(record.life) {
                routes.insert(id, Route { shard: owner, epoch: Epoch(record.epoch) });
            }
        }
        if member.routes.as_ref() == Some(&routes) {
            return;
        }
        for shard in &self.shards {
            shard.send(Mail::Routes(routes.clone()));
        }
        member.routes = Some(routes);
    }
}

/// Whether a drive is to be emptied.
fn is_leaving(member: &super::Member, record: &DriveRecord) -> bool {
    let node = member.mirror.nodes.get(&record.node);
    record.state == DriveRecordState::Draining || node.is_none_or(|node| node.record.state != NodeState::In)
}
