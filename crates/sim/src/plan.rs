//! What a seed is made of: a plan says which kinds of trouble there may be, the seed chooses everything else.
//! Promises: parameters depend on plan and seed only. Fault classes are switched on and off per seed (swarm
//! testing): a run with few kinds of fault reaches states that a run with all of them never does.

mod chosen;

pub use chosen::CACHE_BYTES;

use crate::coverage::Fault;
use chosen::*;
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use weft_engine::Limits;
use weft_engine::interface::Geometry;
use weft_engine::limits::Touches;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Plan {
    /// No faults; limits small or as in a node.
    Calm,
    /// Power cuts and killed processes.
    Power,
    /// Rot, slow, hung, missing and replaced drives.
    Drives,
    /// Loss, delay, repetition, partitions.
    Network,
    /// Owners move, also while the old one lives on.
    Takeover,
    /// Tiny drives: the pool runs full.
    Full,
    /// Anything, in random combinations.
    Swarm,
    /// 3 to 12 nodes under the rules of a real cluster; nodes come, are emptied and go. Some seeds last hours.
    Cluster,
    /// Many snapshots of small vDisks, some in pools that run full.
    Snapshots,
    /// Numbers of copies change at any time; in a third of the seeds under the rules of a real cluster.
    Factors,
    /// Copies of few images, in vDisks that share what is alike on a drive.
    Images,
    /// Many vDisks on small logs, so that all of them wait for room again and again. In logs half as small they would wait for ever, once
    /// in a hundred seeds: see decision 0040.
    Crowd,
    /// One node of three or four is away for long, again and again, while a drive of another one is lost for good; one of the others has
    /// less room. Or one of two nodes with several drives each: logs and memory take all that is written meanwhile, or they are small, and
    /// nothing is lost.
    Away,
}

impl Plan {
    pub const ALL: [Plan; 13] = [
        Plan::Calm,
        Plan::Power,
        Plan::Drives,
        Plan::Network,
        Plan::Takeover,
        Plan::Full,
        Plan::Swarm,
        Plan::Cluster,
        Plan::Snapshots,
        Plan::Factors,
        Plan::Images,
        Plan::Crowd,
        Plan::Away,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Plan::Calm => "calm",
            Plan::Power => "power",
            Plan::Drives => "drives",
            Plan::Network => "network",
            Plan::Takeover => "takeover",
            Plan::Full => "full",
            Plan::Swarm => "swarm",
            Plan::Cluster => "cluster",
            Plan::Snapshots => "snapshots",
            Plan::Factors => "factors",
            Plan::Images => "images",
            Plan::Crowd => "crowd",
            Plan::Away => "away",
        }
    }

    pub fn named(name: &str) -> Option<Plan> {
        Plan::ALL.into_iter().find(|plan| plan.name() == name)
    }

    fn faults(self) -> &'static [Fault] {
        use Fault::*;
        match self {
            Plan::Calm => &[Settle],
            Plan::Power => &[PowerCutNode, PowerCutAll, KillNode, KillAll, Settle, OwnerMove],
            Plan::Drives => &[
                UnreadableBlock,
                FlipInStore,
                FlipOnRead,
                LostWrite,
                MisdirectedWrite,
                SlowDrive,
                HungDrive,
                MissingDrive,
                ReplacedDrive,
                GroupChange,
                DrainDrive,
                PowerCutNode,
                KillNode,
            ],
            Plan::Network => {
                &[NetworkWeather, Partition, StoreCut, PauseNode, ClockJump, GroupChange, DrainDrive]
            }
            Plan::Takeover => &[
                OwnerMove,
                StaleOwner,
                StoreCut,
                KillNode,
                PauseNode,
                Partition,
                NetworkWeather,
                GroupChange,
                DrainDrive,
            ],
            Plan::Full => &[Settle, PowerCutNode, KillAll, OwnerMove, FamilyDrop, FamilyCreate],
            // All but the last, which wants a plan of its own.
            Plan::Swarm => Fault::ALL.split_last().expect("there are some").1,
            Plan::Cluster => &[
                DrainNode,
                AddNode,
                DrainDrive,
                PowerCutNode,
                PowerCutAll,
                KillNode,
                KillAll,
                PauseNode,
                StoreCut,
                Partition,
                NetworkWeather,
                SlowDrive,
                HungDrive,
                MissingDrive,
                OwnerMove,
                Settle,
            ],
            Plan::Snapshots => &[
                PowerCutNode,
                PowerCutAll,
                KillNode,
                KillAll,
                OwnerMove,
                StaleOwner,
                StoreCut,
                NetworkWeather,
                MissingDrive,
                ReplacedDrive,
                FlipInStore,
                GroupChange,
                DrainDrive,
                Settle,
                FamilyGrow,
                FamilyCreate,
                FamilyDrop,
            ],
            Plan::Factors => &[
                PowerCutNode,
                PowerCutAll,
                KillNode,
                KillAll,
                PauseNode,
                OwnerMove,
                StaleOwner,
                StoreCut,
                Partition,
                NetworkWeather,
                MissingDrive,
                ReplacedDrive,
                SlowDrive,
                FlipInStore,
                GroupChange,
                DrainDrive,
                Settle,
                FamilyGrow,
                FamilyCreate,
                FamilyDrop,
            ],
            Plan::Images => &[
                PowerCutNode,
                PowerCutAll,
                KillNode,
                KillAll,
                OwnerMove,
                UnreadableBlock,
                FlipInStore,
                FlipOnRead,
                MissingDrive,
                ReplacedDrive,
                NetworkWeather,
                GroupChange,
                DrainDrive,
                Settle,
                FamilyCreate,
                FamilyDrop,
            ],
            Plan::Crowd => &[
                PowerCutNode,
                PowerCutAll,
                KillNode,
                KillAll,
                OwnerMove,
                StaleOwner,
                NetworkWeather,
                SlowDrive,
                GroupChange,
                Settle,
                FamilyCreate,
                FamilyDrop,
            ],
            Plan::Away => &[
                AbsentNode,
                ReplacedDrive,
                MissingDrive,
                HungDrive,
                UnreadableBlock,
                FlipInStore,
                FlipOnRead,
                PowerCutNode,
                KillNode,
                SlowDrive,
                NetworkWeather,
                OwnerMove,
                StaleOwner,
                DrainDrive,
                Settle,
                FamilyCreate,
                FamilyDrop,
            ],
        }
    }
}

/// One vDisk of a run.
#[derive(Clone, Debug)]
pub struct FamilyPlan {
    pub factor: u32,
    pub blocks: usize,
    /// Runs it is scattered over; 1 means dense.
    pub runs: usize,
    pub clients: usize,
}

/// How often somebody takes snapshots or drops them.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotPlan {
    pub every_us: u64,
    /// Of one vDisk at a time.
    pub most: usize,
    /// Percent of requests that are reads of snapshots.
    pub reads: u32,
}

/// How often somebody makes or drops clones, or has a vDisk rolled back; the last two are weights.
#[derive(Clone, Copy, Debug)]
pub struct ClonePlan {
    pub every_us: u64,
    pub clones: u32,
    pub rollbacks: u32,
}

/// How often somebody wants another number of copies of a vDisk.
#[derive(Clone, Copy, Debug)]
pub struct FactorPlan {
    pub every_us: u64,
}

/// Images that clients copy parts of, in percent of their writes; their vDisks share what is alike on a drive.
#[derive(Clone, Copy, Debug)]
pub struct ImagePlan {
    pub images: u8,
    pub percent: u32,
}

/// How clients behave; the numbers are weights.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    pub read: u32,
    pub write: u32,
    pub zero: u32,
    pub flush: u32,
    pub extents: u32,
    /// Percent of requests that are not whole blocks.
    pub unaligned: u32,
    /// Percent of writes that are part of a sequential stream.
    pub stream: u32,
    /// Percent of requests that go to the hot tenth.
    pub hot: u32,
    pub blocks_max: u32,
    pub depth: usize,
    /// Percent of trims that take a huge range.
    pub huge_zero: u32,
    /// Percent of reads that go on where the client's last such read ended.
    pub read_stream: u32,
    pub warm: u32,
}

#[derive(Clone, Debug)]
pub struct Parameters {
    pub plan: Plan,
    pub seed: u64,
    pub nodes: usize,
    pub shards: Vec<usize>,
    pub drives: usize,
    pub racks: u32,
    /// Nodes that serve vDisks only when nobody else can.
    pub storage_only: Vec<usize>,
    /// Groups that may move at once, and how long a drive may be away before its places are given to others.
    pub moves_max: usize,
    pub away_us: u64,
    pub geometry: Geometry,
    pub limits: Limits,
    pub families: Vec<FamilyPlan>,
    pub load: LoadPlan,
    pub snapshots: Option<SnapshotPlan>,
    pub clones: Option<ClonePlan>,
    pub factors: Option<FactorPlan>,
    /// Groups and owners are as the rules of a real cluster say.
    pub by_rules: bool,
    pub images: Option<ImagePlan>,
    /// Percent of vDisks that have limits, others in each round.
    pub ceilings: u32,
    /// Data that is read often follows its vDisk to other nodes.
    pub follows: bool,
    /// Shards are told which drives are slow, rightly or not.
    pub tells_slow: bool,
    /// In each round one vDisk is served by nobody for a while, and others go on beside it.
    pub sleeps: bool,
    pub rounds: usize,
    /// Virtual microseconds of trouble per round, and requests wanted in them.
    pub round_us: u64,
    pub requests: u64,
    pub faults: Vec<Fault>,
    pub fault_every_us: u64,
    /// Whether drives may lose for good what they hold: then one drive per round is the victim.
    pub destroys: bool,
    /// Writes become bad in every log that has them.
    pub rots: bool,
    /// Units of egroups become bad in all copies.
    pub units_rot: bool,
    /// Copies of egroups become bad, each somewhere else.
    pub copies_rot: bool,
    /// Whether another node than the victim's may be away meanwhile: one per round, the absentee. Where there are three nodes and two
    /// copies, what is written has one on a node that stays and is to be trusted.
    pub absences: bool,
    /// Drives of this node have half of the room.
    pub small_node: Option<usize>,
    /// In each round the power goes everywhere once, and the victim is lost soon after.
    pub blackouts: bool,
    pub network_us: u64,
    pub detection_us: u64,
    pub lease_us: u64,
    /// How often the control plane looks; in seeds that last hours all its spans are so many times longer.
    pub tick_us: u64,
    pub slowness: u64,
    /// Time in which everything must be well again.
    pub convergence_us: u64,
    pub order_us: u64,
    /// How long it takes a node at most to believe that it cannot reach another.
    pub sight_us: u64,
    /// Whether a node closes its vDisks when its deadline has passed, or waits for what the store says.
    pub closes_at_deadline: bool,
    /// Engine clocks begin anywhere.
    pub clock_origin: u64,
}

impl Parameters {
    /// Whether owners may fail although nothing else does. Data that follows gets new names, of which there are few in some seeds: with
    /// none left the owner is opened again.
    pub fn may_lose_owners_at_rest(&self) -> bool {
        self.follows && self.limits.egroup_names_max < Limits::small().egroup_names_max
    }

    pub fn of(plan: Plan, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed ^ (plan as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let rng = &mut rng;
        let mut faults = chosen_faults(plan, rng);
        let by_rules = plan == Plan::Cluster || plan == Plan::Factors && seed.is_multiple_of(3);
        if by_rules {
            // Groups change by the rules only.
            faults.retain(|fault| !matches!(fault, Fault::GroupChange | Fault::ReplacedDrive));
            if faults.is_empty() {
                faults.push(Fault::KillNode);
            }
        }
        if plan == Plan::Crowd && seed % 4 == 2 {
            // Beside a vDisk that nobody serves, so that logs with damage are carried on.
            faults.extend([Fault::FlipInStore, Fault::UnreadableBlock, Fault::FlipOnRead, Fault::KillNode]);
        }
        let absences = plan == Plan::Away;
        if absences {
            faults.extend([Fault::AbsentNode, Fault::AbsentNode, Fault::ReplacedDrive, Fault::ReplacedDrive]);
        }
        let is_pair = absences && seed % 4 == 2;
        let is_roomy_pair = is_pair && seed % 8 == 2;
        if is_roomy_pair {
            // What is handed over or emptied leaves the log, and has one copy then.
            faults.retain(|fault| !matches!(fault, Fault::OwnerMove | Fault::Settle | Fault::DrainDrive));
        } else if is_pair {
            faults.retain(|fault| !fault.destroys());
        }
        let copies_rot = plan == Plan::Snapshots && matches!(seed % 8, 4 | 5);
        if copies_rot {
            // Each copy is needed.
            faults.retain(|fault| !fault.destroys());
            faults.push(Fault::KillNode);
        }
        let destroys = faults.iter().any(|fault| fault.destroys());
        if destroys {
            // While one drive's copies are not to be trusted, no other may be away: a write that went to the
            // bad drive alone, because the good one was out of reach, would rightly be lost.
            faults.retain(|fault| {
                use Fault::*;
                !matches!(fault, PowerCutAll | KillAll | StoreCut | Partition | PauseNode)
            });
        }
        let nodes = match plan {
            Plan::Network | Plan::Takeover => rng.random_range(2..=4),
            Plan::Drives | Plan::Snapshots | Plan::Images => rng.random_range(1..=3),
            Plan::Factors if by_rules => rng.random_range(3..=5),
            Plan::Factors => rng.random_range(1..=4),
            Plan::Away if is_pair => 2,
            Plan::Away => rng.random_range(3..=4),
            Plan::Cluster => *[3, 3, 4, 5, 6, 8, 12].choose(rng).expect("not empty"),
            _ => *[1, 1, 2, 3].choose(rng).expect("the list is not empty"),
        };
        let shards: Vec<usize> =
            (0..nodes).map(|_| rng.random_range(1..=if nodes > 2 { 2 } else { 3 })).collect();
        let mut drives = rng.random_range(1..=if nodes == 1 { 3 } else { 2 });
        let shard_count: usize = shards.iter().sum();
        if nodes > 4 || matches!(plan, Plan::Crowd | Plan::Away) {
            drives = if is_pair { rng.random_range(2..=3) } else { 1 };
        }
        if (destroys || plan == Plan::Factors) && nodes == 1 {
            drives = drives.max(3usize.div_ceil(shard_count));
        }
        let domains = if nodes == 1 { shard_count * drives } else { nodes };
        let factor_max = domains.min(3) as u32;
        let large = plan == Plan::Calm && rng.random_bool(0.3);
        let tight = absences && !is_pair
            || plan == Plan::Full
            || matches!(plan, Plan::Snapshots | Plan::Images) && rng.random_bool(0.25);
        let geometry = if tight {
            let log = if plan == Plan::Full { full_log(seed) } else { 2 << 20 };
            // What is kept for pages and copies is about 8 MiB of any drive.
            let least = if absences { 22 } else { 14 };
            Geometry { log, data: rng.random_range(least..=least + 10) << 20 }
        } else if large {
            Geometry { log: 32 << 20, data: 96 << 20 }
        } else if is_roomy_pair {
            // Of half of a ring that is full owners are told, and empty it: some seeds write 120 MiB.
            Geometry { log: 256 << 20, data: 64 << 20 }
        } else if plan == Plan::Crowd {
            Geometry { log: *[1u64, 1, 2].choose(rng).expect("not empty") << 20, data: 160 << 20 }
        } else {
            Geometry { log: *[1u64, 2, 4].choose(rng).expect("not empty") << 20, data: 48 << 20 }
        };
        let mut limits = if large { Limits::default() } else { varied_limits(rng) };
        if is_roomy_pair {
            let shard = 256 << 20;
            limits.dirty_bytes_shard = shard;
            (limits.dirty_bytes_max, limits.drain_bytes_begin) = (shard, shard / 2);
            limits.dirty_bytes_least = shard / 4;
            limits.edits_max = 1 << 16;
        }
        limits.check();
        let capacity = geometry.data / 4096 * (shard_count * drives) as u64;
        let mut families = chosen_families(plan, tight, destroys, factor_max, capacity, domains, rng);
        let mut load = LoadPlan {
            read: rng.random_range(20..60),
            write: rng.random_range(20..60),
            zero: *[0, 2, 5, 15].choose(rng).expect("not empty"),
            flush: 2,
            extents: *[0, 1, 4].choose(rng).expect("not empty"),
            unaligned: *[0, 5, 20].choose(rng).expect("not empty"),
            stream: *[0, 10, 40].choose(rng).expect("not empty"),
            hot: *[0, 30, 80].choose(rng).expect("not empty"),
            // Mostly small: what large requests find is found with few of them, and bytes take most of the time.
            blocks_max: match rng.random_range(0..16) {
                0..6 => 1,
                6..12 => 4,
                12..15 => 16,
                _ => 48,
            },
            depth: rng.random_range(1..=8),
            huge_zero: *[0, 0, 10].choose(rng).expect("not empty"),
            read_stream: *[0, 10, 60].choose(rng).expect("not empty"),
            warm: *[0, 0, 1].choose(rng).expect("not empty"),
        };
        let hours = plan == Plan::Cluster && rng.random_ratio(1, 16);
        let slowness = if hours { 25 } else { 1 };
        if hours {
            limits.audit_interval_us = 60_000_000;
        }
        let mut rounds = if hours { 1 } else { rng.random_range(1..=3) };
        let round_us = rng.random_range(3_000_000..12_000_000);
        let fault_every_us = rng.random_range(100_000..1_500_000);
        let has_large_pages = copies_rot && seed % 16 == 5;
        let fragments = plan == Plan::Snapshots && !tight && (rng.random_ratio(1, 6) || has_large_pages);
        let mut share = 1;
        if fragments {
            // So many small pieces of one leaf that its past takes several pages.
            families.truncate(1);
            families[0] = FamilyPlan { blocks: 1024, runs: 1, ..families[0].clone() };
            load = LoadPlan { read: 20, write: 60, blocks_max: 1, stream: 0, hot: 0, depth: 8, ..load };
            (rounds, share) = (1, 4);
        }
        if copies_rot {
            families.iter_mut().for_each(|family| family.factor = family.factor.max(2).min(factor_max));
        }
        if is_roomy_pair {
            families.iter_mut().for_each(|family| family.blocks = family.blocks.min(512));
            load.blocks_max = load.blocks_max.min(16);
        }
        let images = chosen_images(plan, &mut limits, rng);
        limits.copies_owed_max = chosen_owed(seed);
        limits.names_listed_max = chosen_listed(seed);
        limits.egroup_names_max = chosen_names(seed);
        let follows = nodes > 1 && !large && !hours && chosen_follows(seed);
        if !follows {
            limits.touches = Touches::NEVER;
        }
        let spread = if hours { rng.random_range(600..7_200) } else { 1 };
        let round_us = round_us * spread;
        let mut snapshots = chosen_snapshots(plan, seed, round_us);
        if fragments {
            snapshots = Some(SnapshotPlan { every_us: round_us / 60, most: 20, reads: 10 });
        }
        // Each snapshot freezes a layer of the log, and many of them are drained.
        let snapshots = snapshots.filter(|_| !is_roomy_pair);
        let clones = chosen_clones(plan, seed, round_us, snapshots.is_some());
        Self {
            plan,
            seed,
            nodes,
            shards,
            drives,
            racks: rng.random_range(1..=4),
            storage_only: if rng.random_bool(0.3) { vec![0] } else { Vec::new() },
            moves_max: *[1, 4, 64].choose(rng).expect("not empty"),
            away_us: rng.random_range(500_000..20_000_000) * slowness,
            geometry,
            limits,
            families,
            load,
            rounds,
            round_us,
            snapshots,
            clones,
            factors: chosen_factors(plan, seed, round_us),
            by_rules,
            images,
            ceilings: chosen_ceilings(seed),
            follows,
            tells_slow: chosen_slow(seed),
            absences,
            small_node: (absences && !is_pair).then(|| rng.random_range(0..nodes)),
            blackouts: plan == Plan::Drives && destroys && nodes > 1 && seed % 4 == 1,
            units_rot: plan == Plan::Drives && seed % 8 == 2,
            copies_rot,
            rots: plan == Plan::Power && seed % 4 == 3 && clones.is_none(),
            sleeps: plan == Plan::Crowd && seed.is_multiple_of(2),
            requests: rng.random_range(1000..4000) * share / rounds as u64,
            fault_every_us: fault_every_us * spread,
            faults,
            destroys,
            network_us: rng.random_range(20..500),
            detection_us: rng.random_range(50_000..600_000) * slowness,
            lease_us: rng.random_range(200_000..800_000) * slowness,
            tick_us: 20_000 * slowness,
            slowness,
            convergence_us: if matches!(plan, Plan::Cluster | Plan::Factors) {
                600_000_000 * slowness
            } else {
                120_000_000
            },
            order_us: rng.random_range(100..5_000),
            sight_us: *[100_000, 500_000, 2_000_000].choose(rng).expect("not empty"),
            closes_at_deadline: rng.random_bool(0.5),
            clock_origin: rng.random_range(0..1 << 40),
        }
    }

    /// Whether this seed may do `fault`.
    pub fn may(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}
