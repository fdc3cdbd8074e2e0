//! Kept seeds first, then some fixed ones of every plan; SIM_SEEDS says how many.

use weft_sim::kept::kept;
use weft_sim::plan::Plan;
use weft_sim::run::run;

#[global_allocator]
static MEMORY: weft_sim::memory::Recycler = weft_sim::memory::Recycler;

fn passes(plan: Plan, seed: u64) {
    let outcome = run(plan, seed, false);
    if let Some(failure) = &outcome.failure {
        panic!("{}\n  again: {}", failure, outcome.command());
    }
}

#[test]
fn seeds_that_failed_once_do_not_fail_again() {
    for kept in kept() {
        passes(kept.plan, kept.seed);
    }
}

#[test]
fn fixed_seeds_of_every_plan_pass() {
    let count = std::env::var("SIM_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    for plan in Plan::ALL {
        for seed in 1..=count {
            passes(plan, seed);
        }
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    for plan in [Plan::Calm, Plan::Power, Plan::Swarm, Plan::Snapshots] {
        let (one, two) = (run(plan, 7, false), run(plan, 7, false));
        assert_eq!(format!("{:?}", one.coverage), format!("{:?}", two.coverage));
    }
}
