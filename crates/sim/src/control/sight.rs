//! What each node sees of the others: the view that the control plane tells is the same for all, but a drive that a node
//! cannot reach is down for that node.
//! Promises: versions of views grow at every shard, and tell which common view they were made from.
//! Leaves to others: what the common view says (`drives`, `groups`).

use crate::world::World;
use rand::Rng;
use weft_engine::interface::{DriveState, View};
use weft_engine::{Input, Order};

/// Local changes that a common view may have.
const LOCAL_BITS: u32 = 20;

/// The common view that a shard's view was made from.
pub fn common_of(version: u64) -> u64 {
    version >> LOCAL_BITS
}

/// What one node thinks of another.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sight {
    /// Messages have not come through since that time; or, if it is taken for lost, they have come through again.
    differs_since: Option<u64>,
    /// How long that has to last until it is believed.
    patience: u64,
    pub lost: bool,
}

impl World {
    /// Nodes look at each other.
    pub(super) fn look_around(&mut self) {
        for node in 0..self.nodes.len() {
            if !self.nodes[node].up || self.nodes[node].waiting.is_some() {
                continue;
            }
            let mut changed = false;
            for other in 0..self.nodes.len() {
                if other == node || self.nodes[other].removed {
                    continue;
                }
                changed |= self.look(node, other);
            }
            if changed {
                self.control.unrest = self.now;
                for shard in self.nodes[node].shards.clone() {
                    self.show_view(shard);
                }
            }
        }
    }

    /// True if it thinks otherwise now.
    fn look(&mut self, node: usize, other: usize) -> bool {
        let peer = &self.nodes[other];
        // What goes only one way is no connection.
        let cut = self.network.is_cut(self.now, node, other) || self.network.is_cut(self.now, other, node);
        let there = peer.up && peer.waiting.is_none() && !cut;
        let sight = &mut self.nodes[node].sights[other];
        if there != sight.lost {
            sight.differs_since = None;
            return false;
        }
        if sight.differs_since.is_none() {
            let most = if there { 10 * self.parameters.tick_us } else { self.parameters.sight_us };
            sight.patience = self.rng.random_range(most / 6..=most);
        }
        let since = *sight.differs_since.get_or_insert(self.now);
        if self.now < since + sight.patience {
            return false;
        }
        sight.differs_since = None;
        sight.lost = !there;
        self.coverage.count(if there { "nodes seen again" } else { "nodes lost from sight" });
        true
    }

    /// Nobody misses anybody.
    pub fn all_in_sight(&self) -> bool {
        !self.nodes.iter().any(|node| !node.removed && node.sights.iter().any(|sight| sight.lost))
    }

    /// The control plane has told a shard another view.
    pub(super) fn view_received(&mut self, shard: usize, view: View) {
        assert!(
            self.shards[shard].common.as_ref().is_none_or(|before| before.version < view.version),
            "common views come in their order"
        );
        self.shards[shard].common = Some(view);
        self.show_view(shard);
    }

    /// The shard gets the common view with what its node cannot see.
    fn show_view(&mut self, shard: usize) {
        let state = &self.shards[shard];
        let Some(mut view) = state.common.clone().filter(|_| state.engine.is_some()) else { return };
        let sights = &self.nodes[state.node].sights;
        for drive in view.drives.values_mut() {
            if sights[drive.shard.node() as usize].lost && drive.state.is_up() {
                drive.state = DriveState::Down;
            }
        }
        view.version = (view.version << LOCAL_BITS).max(state.view + 1);
        self.shards[shard].view = view.version;
        let incarnation = self.shards[shard].incarnation;
        self.deliver(shard, incarnation, Input::Order(Order::View(view)));
    }
}
