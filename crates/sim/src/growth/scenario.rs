//! The two experiments: a cluster of 4 nodes that grows to 8 under load, and, as the published one was made, a new
//! cluster of 8 filled with the same data.

use super::hardware::{DISKS_PER_NODE, SECOND};
use super::load::Load;
use super::meter::{Seen, seen};
use super::world::World;

/// Nodes that serve vDisks, with a VM each; and those that only keep copies.
pub const OWNERS: usize = 4;
pub const STORAGE_ONLY: usize = 4;
/// vDisks of a VM: each database has one for its data and one for its log.
pub const DATABASES: usize = 4;

#[derive(Debug, Clone)]
pub struct Settings {
    pub threads: usize,
    /// Of a database; its log has an eighth of that.
    pub data_bytes: u64,
    /// How full the first four nodes are, with both copies of everything.
    pub full: f64,
    pub warm_up_s: u64,
    pub measure_s: u64,
    pub seed: u64,
}

/// A steady state.
#[derive(Debug, Clone, Copy)]
pub struct Steady {
    pub seen: Seen,
    /// How busy disks were, of the nodes that serve vDisks and of those that only keep copies.
    pub owners_busy: f64,
    pub storage_busy: f64,
}

pub struct Growth {
    pub world: World,
    pub small: Steady,
    pub grown: Steady,
    /// When the load began, the nodes joined, and all copies were where they belong.
    pub began: u64,
    pub joined: u64,
    pub moved: u64,
    /// Seconds that filling took.
    pub filled_s: f64,
}

fn begin(settings: &Settings, nodes: usize) -> (World, f64) {
    let log_bytes = settings.data_bytes / 8;
    let client = (settings.data_bytes + log_bytes) * (DATABASES * OWNERS) as u64;
    let per_disk = client * u64::from(super::control::FACTOR) / (OWNERS * DISKS_PER_NODE) as u64;
    let load = Load::new(settings.data_bytes, log_bytes, settings.seed);
    let mut world = World::new((per_disk as f64 / settings.full) as u64, load, settings.seed);
    (0..nodes).for_each(|_| world.add_node());
    wait(&mut world, 600, |world| world.control.is_at_rest());
    for owner in 0..OWNERS {
        let mut databases = Vec::new();
        for _ in 0..DATABASES {
            let [data, log] = [settings.data_bytes, log_bytes].map(|size| {
                let (family, order) = world.control.add_family(size, owner);
                world.order(owner, order);
                family
            });
            databases.push((data, log));
        }
        world.load.add_vm(&databases);
    }
    wait(&mut world, 60, |world| world.control.all_serving());
    let began = world.now;
    for (family, ticket, request) in world.load.fill(world.now) {
        world.ask(family, ticket, request);
    }
    wait(&mut world, 36_000, |world| world.load.is_quiet());
    let filled_s = (world.now - began) as f64 / SECOND as f64;
    // What is still in logs goes to the disks.
    world.run_until(world.now + 30 * SECOND);
    (world, filled_s)
}

/// Lets time pass until it is so, which must come within these seconds.
fn wait(world: &mut World, seconds: u64, is_so: impl Fn(&World) -> bool) {
    let end = world.now + seconds * SECOND;
    while !is_so(world) {
        assert!(world.now < end, "what was waited for has not come in {seconds} simulated seconds");
        world.run_until(world.now + SECOND / 4);
    }
}

fn start(world: &mut World, threads: usize) {
    for (family, ticket, request) in world.load.start(world.now, threads) {
        world.ask(family, ticket, request);
    }
}

fn steady(world: &mut World, settings: &Settings) -> Steady {
    world.run_until(world.now + settings.warm_up_s * SECOND);
    let nodes = world.nodes();
    let busy = |world: &World| [world.disks_busy(0..OWNERS), world.disks_busy(OWNERS..nodes)];
    let (from, before) = (world.now, busy(world));
    world.run_until(world.now + settings.measure_s * SECOND);
    let after = busy(world);
    let part = |kind: usize, nodes: usize| {
        let time = (nodes * DISKS_PER_NODE) as f64 * (world.now - from) as f64;
        if nodes == 0 { 0.0 } else { (after[kind] - before[kind]) as f64 / time }
    };
    Steady {
        seen: seen(&world.load.samples, from, world.now),
        owners_busy: part(0, OWNERS),
        storage_busy: part(1, nodes - OWNERS),
    }
}

/// Four nodes under load; four more join; the load goes on meanwhile.
pub fn grow(settings: &Settings) -> Growth {
    let (mut world, filled_s) = begin(settings, OWNERS);
    let began = world.now;
    start(&mut world, settings.threads);
    let small = steady(&mut world, settings);
    let joined = world.now;
    (0..STORAGE_ONLY).for_each(|_| world.add_node());
    wait(&mut world, 36_000, |world| world.control.is_at_rest());
    let moved = world.now;
    let grown = steady(&mut world, settings);
    Growth { world, small, grown, began, joined, moved, filled_s }
}

/// So many nodes from the beginning. Gives the steady state and the seconds that filling took.
pub fn fresh(settings: &Settings, nodes: usize) -> (Steady, f64) {
    let (mut world, filled_s) = begin(settings, nodes);
    start(&mut world, settings.threads);
    (steady(&mut world, settings), filled_s)
}
