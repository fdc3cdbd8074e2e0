//! One cluster: what happens when it loses a node, and when it gets one.

use super::cluster::{Cluster, GroupCopy};
use super::flow::{Flow, seconds};
use super::hardware::Hardware;
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::DriveId;

/// A line of the table. Bytes, seconds, and multiples of the mean.
#[derive(Debug, Clone)]
pub struct Row {
    pub factor: u32,
    pub nodes: u32,
    pub drives: usize,
    pub groups: usize,
    pub places_per_drive: f64,
    pub imbalance: f64,
    /// Copies to be made after a node was lost, and how many drives are read and written for it.
    pub rebuild_bytes: f64,
    pub sources: usize,
    pub targets: usize,
    pub rebuild_ssd_s: f64,
    pub rebuild_hdd_s: f64,
    /// Moved for balance when the rebuild was done.
    pub rebuild_extra_bytes: f64,
    /// Moved when a node was added, and what its fair share is.
    pub moved_bytes: f64,
    pub share_bytes: f64,
    pub moved_ssd_s: f64,
    pub moved_hdd_s: f64,
    pub imbalance_grown: f64,
}

impl Row {
    pub fn of(nodes: u32, factor: u32) -> Self {
        let before = Cluster::new(nodes, factor);
        let all_bytes = Hardware::SSD.node_bytes() * f64::from(nodes);
        // Groups keep equally much; what a place is worth is fixed before anything happens.
        let place_bytes = all_bytes / before.places() as f64;

        let mut lost = before.clone();
        lost.lose_node(nodes / 2);
        let rebuild = lost.step();
        let extra = lost.settle();
        let sources: BTreeSet<DriveId> =
            rebuild.iter().flat_map(|copy| copy.holders.iter().copied()).collect();
        let targets: BTreeSet<DriveId> = rebuild.iter().map(|copy| copy.to).collect();

        let mut grown = before.clone();
        grown.add_node(nodes);
        let moved = grown.settle();

        let time = |cluster: &Cluster, copies: &[GroupCopy], hardware| {
            seconds(flows(cluster, copies, place_bytes), &rates(cluster, hardware))
        };
        Self {
            factor,
            nodes,
            drives: before.drives_in(),
            groups: before.groups.len(),
            places_per_drive: before.places() as f64 / before.drives_in() as f64,
            imbalance: before.imbalance(),
            rebuild_bytes: rebuild.len() as f64 * place_bytes,
            sources: sources.len(),
            targets: targets.len(),
            rebuild_ssd_s: time(&lost, &rebuild, Hardware::SSD),
            rebuild_hdd_s: time(&lost, &rebuild, Hardware::HDD),
            rebuild_extra_bytes: extra.len() as f64 * place_bytes,
            moved_bytes: moved.len() as f64 * place_bytes,
            share_bytes: all_bytes / f64::from(nodes + 1),
            moved_ssd_s: time(&grown, &moved, Hardware::SSD),
            moved_hdd_s: time(&grown, &moved, Hardware::HDD),
            imbalance_grown: grown.imbalance(),
        }
    }
}

/// Resources are numbered: drives first, then for each node its way in and its way out.
fn rates(cluster: &Cluster, hardware: Hardware) -> Vec<f64> {
    let nodes = cluster.drives.last().map_or(0, |drive| drive.node as usize + 1);
    let drives = std::iter::repeat_n(hardware.drive_rate(), cluster.drives.len());
    drives.chain(std::iter::repeat_n(hardware.network_rate(), nodes * 2)).collect()
}

/// The engine copies by way of the owner: read by it, written by it. Owners are where groups are led (their data is
/// local) and read there; when that node was lost, its families were spread over all others, who read from whoever is
/// asked least.
fn flows(cluster: &Cluster, copies: &[GroupCopy], bytes: f64) -> Vec<Flow> {
    let way_in = |node: u32| cluster.drives.len() + node as usize * 2;
    let way_out = |node: u32| way_in(node) + 1;
    let living = cluster.nodes_in();
    let mut asked: BTreeMap<DriveId, usize> = BTreeMap::new();
    let mut flow = |(number, copy): (usize, &GroupCopy)| {
        let idle = |drive: &&DriveId| (asked.get(drive).copied().unwrap_or(0), **drive);
        let from = copy.leader.or_else(|| copy.holders.iter().min_by_key(idle).copied());
        let from = from.expect("somebody has it");
        *asked.entry(from).or_default() += 1;
        let (source, target) = (cluster.node_of(from), cluster.node_of(copy.to));
        let owner = if copy.leader.is_some() { source } else { living[number % living.len()] };
        let mut through = vec![from.0 as usize, copy.to.0 as usize];
        for (one, other) in [(source, owner), (owner, target)] {
            if one != other {
                through.extend([way_out(one), way_in(other)]);
            }
        }
        Flow { bytes, through }
    };
    copies.iter().enumerate().map(&mut flow).collect()
}
