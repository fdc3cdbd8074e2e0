//! What a seed draws of each part of its parameters.
//! Promises: what was added later has a randomness of its own, so that it changes nothing else of a seed.

use super::{ClonePlan, FactorPlan, FamilyPlan, ImagePlan, Plan, SnapshotPlan};
use crate::coverage::Fault;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use weft_engine::Limits;

/// The ring of a plan that runs full: often so small that what finds no room in egroups soon pins all of it. Drawn on
/// its own, so that it changes nothing else of a seed.
pub(super) fn full_log(seed: u64) -> u64 {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x005e_ed0f_a716);
    *[4u64 << 20, 4 << 20, 2 << 20, 1 << 20, 1 << 20].choose(&mut rng).expect("not empty")
}

pub(super) fn chosen_faults(plan: Plan, rng: &mut SmallRng) -> Vec<Fault> {
    let share = if plan == Plan::Swarm { rng.random_range(0.1..0.6) } else { 0.7 };
    let mut faults: Vec<Fault> = plan.faults().iter().copied().filter(|_| rng.random_bool(share)).collect();
    if plan != Plan::Cluster {
        // Only there are rules that know what to do then.
        faults.retain(|fault| !matches!(fault, Fault::DrainNode | Fault::AddNode));
    }
    if faults.is_empty() && plan != Plan::Calm {
        faults.push(*plan.faults().choose(rng).expect("every plan but calm has faults"));
    }
    if plan != Plan::Calm {
        // What administrators do at any time.
        for fault in [Fault::FamilyGrow, Fault::FamilyCreate, Fault::FamilyDrop, Fault::ResizeCache] {
            if rng.random_bool(0.15) && !faults.contains(&fault) {
                faults.push(fault);
            }
        }
    }
    if matches!(plan, Plan::Swarm | Plan::Images) && rng.random_bool(0.5) {
        // Half of all mixtures keep every byte that was durable: those may fail on any number of drives.
        faults.retain(|fault| !fault.destroys());
    }
    faults
}

/// Memory for reads: none, a few units, some, and more than most vDisks of a seed have.
pub const CACHE_BYTES: [u64; 4] = [0, 32 << 10, 256 << 10, 4 << 20];

/// With a randomness of their own: seeds without snapshots are what they would be if there were none.
pub(super) fn chosen_snapshots(plan: Plan, seed: u64, round_us: u64) -> Option<SnapshotPlan> {
    let mut rng = SmallRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ !(plan as u64));
    let reads = *[10, 25, 50].choose(&mut rng).expect("not empty");
    if plan == Plan::Snapshots {
        let every_us = round_us / rng.random_range(20..200);
        return Some(SnapshotPlan {
            every_us,
            most: *[2, 6, 20].choose(&mut rng).expect("not empty"),
            reads,
        });
    }
    let every_us = round_us / rng.random_range(5..40);
    rng.random_bool(0.35).then(|| SnapshotPlan { every_us, most: rng.random_range(1..=3), reads })
}

/// Likewise, in half of the seeds where there are snapshots.
pub(super) fn chosen_clones(plan: Plan, seed: u64, round_us: u64, snapshots: bool) -> Option<ClonePlan> {
    let mut rng = SmallRng::seed_from_u64(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ (plan as u64) << 50);
    let every_us = round_us / rng.random_range(5..60);
    let (clones, rollbacks) = *[(1, 0), (0, 1), (1, 1), (3, 1)].choose(&mut rng).expect("not empty");
    (snapshots && matches!(seed % 4, 0 | 3)).then_some(ClonePlan { every_us, clones, rollbacks })
}

pub(super) fn chosen_factors(plan: Plan, seed: u64, round_us: u64) -> Option<FactorPlan> {
    let mut rng = SmallRng::seed_from_u64(seed.wrapping_mul(0xbf58_476d_1ce4_e5b9));
    let every_us = round_us / rng.random_range(2..24);
    (plan == Plan::Factors).then_some(FactorPlan { every_us })
}

/// In a quarter of all seeds so few that rebuilding a drive owes more.
pub(super) fn chosen_owed(seed: u64) -> usize {
    let mut rng = SmallRng::seed_from_u64(seed.wrapping_mul(0x94d0_49bb_1331_11eb) ^ 0x00ed);
    let few = *[1, 1, 2, 12].choose(&mut rng).expect("not empty");
    if rng.random_ratio(1, 4) { few } else { Limits::small().copies_owed_max }
}

/// In half of them so few names at a time that most lists of drives have several parts.
pub(super) fn chosen_listed(seed: u64) -> usize {
    let mut rng = SmallRng::seed_from_u64(seed.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ 0x0015);
    if rng.random_bool(0.5) { rng.random_range(1..12) } else { Limits::small().names_listed_max }
}

/// In a sixteenth so few names for egroups that owners come to the end of them.
pub(super) fn chosen_names(seed: u64) -> u32 {
    let mut rng = SmallRng::seed_from_u64(seed.wrapping_mul(0xaf25_1af3_b0f0_25b5) ^ 0x0a3e);
    let few = rng.random_range(60..400);
    if rng.random_ratio(1, 16) { few } else { Limits::small().egroup_names_max }
}

/// And how much of what lies on a drive may be known there: next to nothing, some, or all.
pub(super) fn chosen_images(plan: Plan, limits: &mut Limits, rng: &mut SmallRng) -> Option<ImagePlan> {
    if plan != Plan::Images {
        return None;
    }
    limits.shared_entries_max = *[48, 1024, 1 << 16].choose(rng).expect("not empty");
    let percent = *[60, 90, 98].choose(rng).expect("not empty");
    Some(ImagePlan { images: rng.random_range(1..=2), percent })
}

/// With a randomness of their own, likewise.
pub(super) fn chosen_ceilings(seed: u64) -> u32 {
    let mut rng = SmallRng::seed_from_u64(seed.wrapping_mul(0xd134_2543_de82_ef95));
    *[0, 0, 30, 100].choose(&mut rng).expect("not empty")
}

/// In half of those with several nodes.
pub(super) fn chosen_follows(seed: u64) -> bool {
    SmallRng::seed_from_u64(seed.wrapping_mul(0xc2b2_ae3d_27d4_eb4f) ^ 0xf011).random_bool(0.5)
}

/// In half of them.
pub(super) fn chosen_slow(seed: u64) -> bool {
    SmallRng::seed_from_u64(seed.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ 0x510e).random_bool(0.5)
}

pub(super) fn varied_limits(rng: &mut SmallRng) -> Limits {
    let mut limits = Limits::small();
    if rng.random_bool(0.5) {
        limits.requests_max = *[8, 64, 256].choose(rng).expect("not empty");
        limits.dirty_bytes_max = *[256u64 << 10, 512 << 10, 2 << 20].choose(rng).expect("not empty");
        limits.drain_bytes_begin = limits.dirty_bytes_max / rng.random_range(2..16);
        limits.dirty_bytes_shard = limits.dirty_bytes_max * rng.random_range(1..=4);
        limits.dirty_bytes_least = limits.dirty_bytes_max / *[1, 2, 4, 16].choose(rng).expect("not empty");
        limits.drain_age_us = *[20_000, 200_000, 2_000_000].choose(rng).expect("not empty");
        limits.drain_pause_us = limits.drain_age_us / 5;
        limits.drain_egroups_max = rng.random_range(1..=4);
        limits.edits_max = *[64, 512, 4096].choose(rng).expect("not empty");
        limits.pages_bytes_max = *[16usize << 10, 64 << 10, 1 << 20].choose(rng).expect("not empty");
        limits.log_bytes_checkpoint = *[128u64 << 10, 512 << 10, 1 << 20].choose(rng).expect("not empty");
        limits.frame_bytes_max = *[16usize << 10, 64 << 10, 256 << 10].choose(rng).expect("not empty");
        limits.frames_in_flight = rng.random_range(1..=4);
        limits.cache_bytes = *CACHE_BYTES.choose(rng).expect("not empty");
    }
    limits
}

pub(super) fn chosen_families(
    plan: Plan,
    tight: bool,
    destroys: bool,
    factor_max: u32,
    capacity: u64,
    domains: usize,
    rng: &mut SmallRng,
) -> Vec<FamilyPlan> {
    let count = if plan == Plan::Crowd { rng.random_range(6..=16) } else { rng.random_range(1..=4) };
    // What all copies of all vDisks may take, so that a pool that lost a domain still has room; a full
    // pool is what another plan is for.
    let share = if plan == Plan::Full {
        capacity * rng.random_range(80..160) / 100
    } else if plan == Plan::Away {
        // Without a node some of it has no room.
        capacity * rng.random_range(30..80) / 100
    } else if tight {
        // Snapshots fill the rest.
        capacity * rng.random_range(20..60) / 100
    } else {
        capacity * (domains as u64 - 1).max(1) / domains as u64 / 3
    };
    (0..count)
        .map(|_| {
            let factor_min = if destroys { 2.min(factor_max) } else { 1 };
            let factor = rng.random_range(factor_min..=factor_max);
            // Any of them may get more copies, and has the old ones as well until the new ones are there.
            let copies = if plan == Plan::Factors { 2 * factor_max } else { factor };
            let most = (share / count / u64::from(copies)).max(64);
            let most = match plan {
                Plan::Full => most,
                Plan::Snapshots if !tight => most.min(384),
                Plan::Crowd => most.min(256),
                _ => most.min(2048),
            };
            let blocks = rng.random_range(most / 2..=most) as usize;
            let runs = if rng.random_bool(0.3) { rng.random_range(2..=6) } else { 1 };
            FamilyPlan { factor, blocks, runs, clients: rng.random_range(1..=3) }
        })
        .collect()
}
