//! What people ask of the simulator: `weft sim`, and the command of this crate alone, which is built sooner.

use crate::coverage::Coverage;
use crate::growth::Growth;
use crate::kept::kept;
use crate::plan::Plan;
use crate::run::{Outcome, run};
use crate::scale::Scale;
use clap::{Args, Subcommand};
use std::process::ExitCode;
use std::time::Instant;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Run new seeds for this many seconds (when neither --seed nor --seeds is given).
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Run this one seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Only this plan; all in turn without it.
    #[arg(long, value_enum)]
    plan: Option<Plan>,
    /// Run this many seeds of every plan.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first of the seeds.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Run only the seeds that failed once.
    #[arg(long)]
    kept: bool,
    /// Print everything that goes into and comes out of shards.
    #[arg(long)]
    trace: bool,
    /// Do not stop at the first failing seed.
    #[arg(long)]
    keep_going: bool,
}

#[derive(Subcommand, Debug)]
enum Command {
    Scale(Scale),
    Growth(Growth),
}

/// What all seeds of this call met.
struct Tally {
    coverage: Coverage,
    failures: u64,
    /// Seeds that failed once, and were run before new ones.
    kept: u64,
    keep_going: bool,
    /// Virtual microseconds of each plan, in the order of [`Plan::ALL`].
    virtual_us: [u64; Plan::ALL.len()],
}

impl Tally {
    /// Adds one seed; true if it is time to stop.
    fn add(&mut self, outcome: &Outcome) -> bool {
        self.virtual_us[outcome.plan as usize] += outcome.coverage.virtual_us;
        self.coverage.merge(&outcome.coverage);
        let Some(failure) = &outcome.failure else { return false };
        self.failures += 1;
        println!("FAILED: plan {} seed {}: {failure}", outcome.plan.name(), outcome.seed);
        println!("  again: {} [--trace]", outcome.command());
        !self.keep_going
    }

    /// How long each plan has lived, by the clock of the pretend machines.
    fn hours(&self) -> String {
        let lived = Plan::ALL.iter().zip(self.virtual_us).filter(|(_, us)| *us > 0);
        let told: Vec<String> =
            lived.map(|(plan, us)| format!("{} {:.1}", plan.name(), us as f64 / 3.6e9)).collect();
        told.join(", ")
    }
}

/// A trace is long, and often looked at through `head`: a reader who has seen enough ends this process silently, as it
/// ends any other.
fn end_with_the_reader() {
    // SAFETY: a plain call, made before there is a second thread.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

impl Arguments {
    /// Exit code 0: all was well; 1: a seed failed, and how to see it again was printed, or a file cannot be written. To be called before
    /// there is a second thread.
    pub fn run(&self) -> ExitCode {
        end_with_the_reader();
        let done = match &self.command {
            None => return self.run_seeds(),
            Some(Command::Scale(scale)) => scale.run(),
            Some(Command::Growth(growth)) => growth.run(),
        };
        done.map_or_else(
            |error| {
                eprintln!("weft: the result cannot be written: {error}");
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        )
    }

    fn run_seeds(&self) -> ExitCode {
        let began = Instant::now();
        let mut tally = Tally {
            coverage: Coverage::default(),
            failures: 0,
            kept: 0,
            keep_going: self.keep_going,
            virtual_us: [0; Plan::ALL.len()],
        };
        all(self, &mut tally, began);
        println!("{}", tally.coverage.report(began.elapsed().as_secs_f64()));
        println!("virtual hours: {}", tally.hours());
        if tally.kept > 0 {
            println!(
                "{} of the seeds are kept ones, which failed once and are run first each time",
                tally.kept
            );
        }
        if tally.failures > 0 {
            println!("{} seeds FAILED", tally.failures);
            return ExitCode::from(1);
        }
        println!("all judges are content");
        ExitCode::SUCCESS
    }
}

fn all(arguments: &Arguments, tally: &mut Tally, began: Instant) {
    let plans = arguments.plan.map_or(Plan::ALL.to_vec(), |plan| vec![plan]);
    let trace = arguments.trace;
    if let Some(seed) = arguments.seed {
        for plan in plans {
            if tally.add(&run(plan, seed, trace)) {
                return;
            }
        }
        return;
    }
    for kept in kept() {
        if arguments.plan.is_some_and(|plan| plan != kept.plan) {
            continue;
        }
        tally.kept += 1;
        if tally.add(&run(kept.plan, kept.seed, trace)) {
            println!("  kept because: {}", kept.why);
            return;
        }
    }
    if arguments.kept {
        return;
    }
    let mut seed = arguments.from;
    loop {
        for &plan in &plans {
            let over = match arguments.seeds {
                Some(count) => seed >= arguments.from.saturating_add(count),
                None => began.elapsed().as_secs() >= arguments.seconds,
            };
            if over || tally.add(&run(plan, seed, trace)) {
                return;
            }
        }
        seed += 1;
    }
}
