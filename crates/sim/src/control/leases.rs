//! Leases, as nodes have them: renewed at the config store; a node gives replies only until its own clock says that
//! the last renewal that succeeded was sent too long ago.
//! Promises: nothing but that deadline keeps a node from answering, and nothing but the end of the lease in the store
//! gives what it served to others. A process that slept knows nothing of either until it looks.
//! Leaves to others: giving families to others (`families`).

use crate::event::Event;
use crate::phase::Phase;
use crate::world::World;
use rand::Rng;
use rand::rngs::SmallRng;
use weft_engine::cluster::detection::{CLOCK_DRIFT_PER_MILLE, LEASE_US, RENEW_EVERY_US, SERVE_US};
use weft_engine::interface::DriveState;
use weft_engine::sabotage::{Bug, planted};
use weft_engine::{FamilyId, Input, Order};

/// What a node and the store know of the node's lease.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Its clock gains so many thousandths on the store's, which is the world's.
    drift: i64,
    /// Of the node, by its clock: from then on it gives no replies.
    deadline: u64,
    /// Of the node: when it renews again, by the world's clock.
    renew_at: u64,
    /// Whether the answer to the last renewal was lost.
    unanswered: bool,
    /// Of the node: this process has got it.
    own: bool,
    /// Of the store: every lease has another number, and ends at this time unless it is renewed.
    number: u64,
    ends: u64,
}

impl Lease {
    pub fn new(rng: &mut SmallRng) -> Self {
        let most = CLOCK_DRIFT_PER_MILLE as i64;
        let drift = rng.random_range(-most..=most);
        Self { drift, deadline: 0, renew_at: 0, unanswered: false, own: false, number: 0, ends: 0 }
    }

    fn clock(&self, now: u64) -> u64 {
        now * (1000 + self.drift) as u64 / 1000
    }

    /// Whether the node may still answer, as far as it knows.
    pub fn may_reply(&self, now: u64) -> bool {
        self.clock(now) < self.deadline || planted(Bug::DeadlineIgnored)
    }

    /// The process is dead; its lease lives on for a while.
    pub fn forget(&mut self) {
        self.own = false;
        self.deadline = 0;
        self.renew_at = 0;
    }

    /// The lease that the store holds for the node, if any.
    pub fn held(&self, now: u64) -> Option<u64> {
        (now < self.ends).then_some(self.number)
    }
}

/// A span of the real control plane, in seeds where leases last `lease_us`.
fn scaled(span_us: u64, lease_us: u64) -> u64 {
    span_us * lease_us / LEASE_US
}

impl World {
    pub fn store_cut(&mut self, node: usize, until: u64) {
        if self.nodes[node].store_cut.is_none() {
            self.nodes[node].store_cut = Some(Vec::new());
            self.queue.push(until, Event::StoreHeals(node));
        }
    }

    pub fn store_heals(&mut self, node: usize) {
        let Some(waiting) = self.nodes[node].store_cut.take() else { return };
        for (shard, incarnation, order) in waiting {
            self.order_received(shard, incarnation, order);
        }
    }

    /// Nodes that are awake look at their leases.
    pub(super) fn renew_leases(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].up && self.nodes[node].waiting.is_none() {
                self.look_at_lease(node);
            }
        }
    }

    fn look_at_lease(&mut self, node: usize) {
        let state = &self.nodes[node];
        if self.parameters.closes_at_deadline && !state.lease.may_reply(self.now) {
            // The store does not know that it has stopped, and would not give its vDisks to anybody while this lease
            // lives: it asks for another.
            self.close_all_families(node);
            self.nodes[node].lease.own = false;
        }
        let state = &self.nodes[node];
        if state.store_cut.is_some() || self.now < state.lease.renew_at {
            return;
        }
        if state.lease.own && state.lease.held(self.now).is_some() {
            self.renew(node);
        } else {
            // The store has forgotten it: what it served may be served elsewhere by now.
            self.close_all_families(node);
            self.get_lease(node);
        }
    }

    fn renew(&mut self, node: usize) {
        let lease_us = self.parameters.lease_us;
        let sent = self.now - self.rng.random_range(0..=self.parameters.order_us).min(self.now);
        let lose = self.phase == Phase::Trouble && self.rng.random_range(0..16) == 0;
        let now = self.now;
        let lease = &mut self.nodes[node].lease;
        lease.ends = lease.ends.max(now + lease_us);
        // The store has taken it, but the node does not always hear so.
        lease.unanswered = lose && !lease.unanswered;
        if lease.unanswered {
            return;
        }
        lease.deadline = lease.deadline.max(lease.clock(sent) + scaled(SERVE_US, lease_us));
        lease.renew_at = now + scaled(RENEW_EVERY_US, lease_us);
    }

    /// Another lease; the one before, if there was any, is over.
    pub(super) fn get_lease(&mut self, node: usize) {
        self.nodes[node].lease.number += 1;
        self.nodes[node].lease.ends = 0;
        self.nodes[node].lease.own = true;
        self.nodes[node].lease.unanswered = true;
        self.renew(node);
        self.coverage.count("leases given out");
        for drive in 0..self.control.drives.len() {
            let entry = &mut self.control.drives[drive];
            let here = self.nodes[node].shards.contains(&entry.shard);
            if here && entry.ready && entry.state == DriveState::Down {
                entry.state = DriveState::Up;
                self.control.changed = true;
                self.control.unrest = self.now;
            }
        }
    }

    /// The lease that the store holds for the node of `shard`.
    pub fn lease_of(&self, shard: usize) -> Option<u64> {
        self.nodes[self.shards[shard].node].lease.held(self.now)
    }

    fn close_all_families(&mut self, node: usize) {
        for shard in self.nodes[node].shards.clone() {
            for family in 0..self.control.families.len() {
                if self.control.families[family].serving.remove(&shard).is_some() {
                    self.coverage.count("owners stopped with their lease");
                    let incarnation = self.shards[shard].incarnation;
                    let order = Order::CloseFamily { family: FamilyId(family as u32) };
                    self.deliver(shard, incarnation, Input::Order(order));
                }
            }
        }
    }
}
