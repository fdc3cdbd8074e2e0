//! Nodes that cannot reach the config store: each stops serving when its lease ends.
//! Promises: a node stops at its own clock's expiry, before anybody else is given what it served.
//! Leaves to others: giving it to others (`families`).

use crate::event::Event;
use crate::world::World;
use weft_engine::interface::DriveState;
use weft_engine::{FamilyId, Input, Order};

impl World {
    pub fn store_cut(&mut self, node: usize, until: u64) {
        let state = &mut self.nodes[node];
        if state.store_cut.is_some() {
            return;
        }
        state.store_cut = Some(Vec::new());
        state.store_cuts += 1;
        state.away_since.get_or_insert(self.now);
        let cut = state.store_cuts;
        self.queue.push(self.now + self.parameters.lease_us, Event::LeaseEnds { node, cut });
        self.queue.push(until, Event::StoreHeals(node));
    }

    /// The holder of a lease stops at its own clock's expiry.
    pub fn lease_ends(&mut self, node: usize, cut: u32) {
        let state = &mut self.nodes[node];
        if state.store_cut.is_none() || state.store_cuts != cut {
            return;
        }
        state.lease_over = true;
        if state.waiting.is_some() {
            // It sleeps. It looks at its clock before anything else when it wakes.
            return;
        }
        self.close_all_families(node);
    }

    pub fn close_all_families(&mut self, node: usize) {
        for shard in self.nodes[node].shards.clone() {
            for family in 0..self.control.families.len() {
                if self.control.families[family].serving.remove(&shard).is_some() {
                    let incarnation = self.shards[shard].incarnation;
                    let order = Order::CloseFamily { family: FamilyId(family as u32) };
                    self.deliver(shard, incarnation, Input::Order(order));
                }
            }
        }
    }

    pub fn store_heals(&mut self, node: usize) {
        let Some(waiting) = self.nodes[node].store_cut.take() else { return };
        self.nodes[node].lease_over = false;
        if self.nodes[node].up {
            self.nodes[node].away_since = None;
        }
        for (shard, incarnation, order) in waiting {
            self.order_received(shard, incarnation, order);
        }
        if self.nodes[node].up {
            self.families_leave(node);
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
    }
}
