//! Random clusters to which anything happens in any order: whatever is wanted next, the rules hold.

use super::Cluster;
use crate::cluster::placement::{Plan, Standing, is_emptied};
use crate::identity::DriveId;
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;

struct Walk {
    cluster: Cluster,
    rng: SmallRng,
    seed: u64,
    nodes: u32,
    racks: u32,
    zones: u32,
    weights: Vec<u64>,
}

impl Walk {
    fn new(seed: u64, nodes_max: u32) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let factors: Vec<u32> = [1, 2, 3].into_iter().filter(|_| rng.random_bool(0.6)).collect();
        let mut cluster = Cluster::new(if factors.is_empty() { &[2] } else { &factors });
        cluster.moves_max = *[16, 64, 1000].choose(&mut rng).expect("there are some");
        let weights = if rng.random_bool(0.5) { vec![1000] } else { vec![500, 1000, 1000, 2000] };
        let racks = rng.random_range(1..8);
        let zones = rng.random_range(1..4).min(racks);
        let mut walk = Self { cluster, rng, seed, nodes: 0, racks, zones, weights };
        for _ in 0..walk.rng.random_range(1..=nodes_max) {
            walk.add_node();
        }
        walk
    }

    fn add_node(&mut self) {
        let node = self.nodes;
        self.nodes += 1;
        let rack = self.rng.random_range(0..self.racks);
        for _ in 0..self.rng.random_range(1..=3) {
            let weight = *self.weights.choose(&mut self.rng).expect("there are weights");
            self.cluster.add(node, rack, rack % self.zones, weight);
        }
    }

    fn some_node(&mut self, standing: Standing) -> Option<u32> {
        let nodes: BTreeSet<u32> = self
            .cluster
            .drives
            .iter()
            .filter(|drive| drive.standing == standing)
            .map(|drive| drive.node)
            .collect();
        let nodes: Vec<u32> = nodes.into_iter().collect();
        nodes.choose(&mut self.rng).copied()
    }

    /// Whether every group would still have somebody with all its copies: else what is lost is nobody's fault.
    fn can_lose(&self, lost: &BTreeSet<DriveId>) -> bool {
        self.cluster.groups.values().all(|group| {
            let holders = &self.cluster.holders[&group.id];
            holders.is_empty() || holders.iter().any(|holder| !lost.contains(holder))
        })
    }

    fn happen(&mut self) {
        match self.rng.random_range(0..10) {
            0 | 1 => self.add_node(),
            2 | 3 => {
                if let Some(node) = self.some_node(Standing::In) {
                    let of_node = |drive: &&super::Drive| drive.node == node;
                    let drives = self.cluster.drives.iter().filter(of_node).map(|drive| drive.id);
                    let drives: BTreeSet<DriveId> =
                        if self.rng.random_bool(0.5) { drives.collect() } else { drives.take(1).collect() };
                    if self.can_lose(&drives) {
                        drives.iter().for_each(|&drive| self.cluster.set_drive(drive, Standing::Lost));
                    }
                }
            }
            4 => {
                if let Some(node) = self.some_node(Standing::In) {
                    self.cluster.set_node(node, Standing::Draining);
                }
            }
            5 => {
                if let Some(node) = self.some_node(Standing::Draining) {
                    self.cluster.set_node(node, Standing::In);
                }
            }
            6 => {
                if let Some(node) = self.some_node(Standing::In) {
                    self.cluster.set_node(node, Standing::Down);
                }
            }
            _ => {
                if let Some(node) = self.some_node(Standing::Down) {
                    self.cluster.set_node(node, Standing::In);
                }
            }
        }
    }

    /// Some of the plan is written, some copies are made, and some of what is true is known.
    fn step(&mut self) -> Plan {
        let known = self.rng.random_range(0.0..=1.0);
        let audited = self.cluster.audited();
        let rng = &mut self.rng;
        let audited = audited.into_iter().filter(|_| rng.random_bool(known)).collect();
        let plan = self.cluster.plan_knowing(&audited);
        assert_eq!(plan, self.cluster.plan_knowing(&audited), "the same question has the same answer");
        self.judge(&plan);
        let mut writes: Vec<_> = plan.changed.iter().chain(&plan.made).collect();
        writes.shuffle(&mut self.rng);
        if self.rng.random_bool(0.3) {
            writes.truncate(self.rng.random_range(0..=writes.len()));
        }
        for group in writes {
            self.cluster.write(group);
        }
        let share = self.rng.random_range(0.0..=1.0);
        let rng = &mut self.rng;
        self.cluster.copy(|_| rng.random_bool(share));
        plan
    }

    /// What must hold of every single change. Losing copies is judged where groups are written.
    fn judge(&self, plan: &Plan) {
        let seed = self.seed;
        let mut after = self.cluster.groups.clone();
        let mut moved = 0;
        let expected = |drive: &&super::Drive| matches!(drive.standing, Standing::In | Standing::Down);
        let nodes: BTreeSet<u32> =
            self.cluster.drives.iter().filter(expected).map(|drive| drive.node).collect();
        for group in &plan.changed {
            let before = &self.cluster.groups[&group.id];
            assert_eq!(group.version, before.version + 1, "seed {seed}: every change is counted");
            assert_eq!(group.factor, before.factor);
            let joined: Vec<_> =
                group.members.iter().filter(|member| !before.members.contains(member)).collect();
            let left: Vec<_> =
                before.members.iter().filter(|member| !group.members.contains(member)).collect();
            assert_eq!(joined.len(), left.len());
            for &&joined in &joined {
                assert_eq!(
                    self.cluster.standing(joined),
                    Standing::In,
                    "seed {seed}: only who works gets places"
                );
                let drive = &self.cluster.drives[joined.0 as usize];
                let has_copies = |member: DriveId| self.cluster.standing(member) != Standing::Lost;
                let others = group.members.iter().filter(|&&member| member != joined && has_copies(member));
                let beside =
                    others.filter(|member| self.cluster.drives[member.0 as usize].node == drive.node);
                let too_few = nodes.len() < group.factor as usize;
                assert!(too_few || beside.count() == 0, "seed {seed}: {group:?} joins where a copy is");
            }
            let by_choice =
                left.iter().filter(|drive| self.cluster.standing(***drive) != Standing::Lost).count();
            assert!(by_choice <= 1, "seed {seed}: {before:?} became {group:?}");
            moved += by_choice;
            after.insert(group.id, group.clone());
        }
        let moving = after.values().filter(|group| !group.former.is_empty()).count();
        assert!(moved == 0 || moving <= self.cluster.moves_max, "seed {seed}: too many groups move at once");
    }

    /// Everything is brought to rest: then it is even, spread, and without any debts.
    fn rest(&mut self) {
        let seed = self.seed;
        let down: Vec<u32> = self
            .cluster
            .drives
            .iter()
            .filter(|drive| drive.standing == Standing::Down)
            .map(|drive| drive.node)
            .collect();
        down.into_iter().for_each(|node| self.cluster.set_node(node, Standing::In));
        self.cluster.copy(|_| true);
        self.cluster.settle();
        let mut drives_in = 0;
        for drive in &self.cluster.drives {
            drives_in += usize::from(drive.standing == Standing::In);
        }
        for &factor in &self.cluster.factors {
            if drives_in < factor as usize {
                continue;
            }
            self.cluster.assert_apart(factor);
            let (part, places) = self.cluster.imbalance(factor);
            assert!(
                places <= 3.0 || part <= 0.06,
                "seed {seed} factor {factor}: {places:.1} places and {:.0} % over the share",
                part * 100.0
            );
        }
        let most = self.cluster.factors.iter().max().copied().unwrap_or(1) as usize;
        if drives_in >= most {
            let table = self.cluster.table();
            assert!(
                table.iter().all(|group| group.former.is_empty()),
                "seed {seed}: nothing is owed any more"
            );
            for drive in &self.cluster.drives {
                let gone = matches!(drive.standing, Standing::Draining | Standing::Lost);
                assert!(!gone || is_emptied(drive.id, &table), "seed {seed}: drive {} is empty", drive.id);
            }
        }
    }

    fn run(mut self, steps: usize) {
        self.cluster.settle();
        for _ in 0..steps {
            if self.rng.random_bool(0.4) {
                self.happen();
            }
            self.step();
        }
        self.rest();
    }
}

/// `PLACEMENT_SEEDS=500 cargo test --release -p weft-engine placement_walk` walks further.
fn seeds(usually: u64) -> u64 {
    std::env::var("PLACEMENT_SEEDS")
        .map_or(usually, |seeds| seeds.parse().expect("PLACEMENT_SEEDS is a number"))
}

#[test]
fn small_clusters_keep_the_rules_whatever_happens() {
    for seed in 0..seeds(10) {
        Walk::new(seed, 10).run(40);
    }
}

#[test]
fn a_middling_cluster_keeps_the_rules_whatever_happens() {
    for seed in 1000..1000 + seeds(30) / 30 {
        Walk::new(seed, 60).run(15);
    }
}

/// Adds a node to clusters of all sizes: what moves is its share and little more, and all stay even.
#[test]
fn growth_moves_at_most_a_fifth_more_than_the_share_of_the_new() {
    let mut rng = SmallRng::seed_from_u64(7);
    for nodes in [2, 5, 9, 16, 40, 120, 300] {
        let factor = rng.random_range(2..=3).min(nodes);
        let weights = [1000, 1000, 2000];
        let mut cluster = Cluster::new(&[factor]);
        cluster.moves_max = usize::MAX;
        for node in 0..nodes {
            cluster.add(node, 0, 0, *weights.choose(&mut rng).expect("there are weights"));
        }
        cluster.settle();
        let groups = cluster.groups.clone();
        let new = cluster.add(nodes, 0, 0, 1000);
        let mut shares = cluster.shares(factor);
        let ideal = shares.remove(&new).expect("a new drive has a share");
        cluster.copied = 0;
        cluster.settle();
        let joined: usize = groups
            .values()
            .map(|group| {
                let now = &cluster.groups[&group.id].members;
                now.iter().filter(|member| !group.members.contains(member)).count()
            })
            .sum();
        assert_eq!(joined, cluster.copied, "nothing moved twice");
        assert!(
            joined as f64 <= 1.2 * ideal + 1.0,
            "{nodes} nodes: {joined} places moved, {ideal:.1} is the share"
        );
        let (part, places) = cluster.imbalance(factor);
        assert!(places <= 2.0 || part <= 0.05, "{nodes} nodes: {places:.1} places, {:.1} %", part * 100.0);
    }
}
