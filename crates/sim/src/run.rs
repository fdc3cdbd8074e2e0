//! One seed, from the first event to the last verdict.
//! Promises: a broken assertion in the engine is a failure of the seed, not the end of the simulator.

use crate::coverage::Coverage;
use crate::plan::{Parameters, Plan};
use crate::world::World;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// How a seed went.
#[derive(Debug)]
pub struct Outcome {
    pub plan: Plan,
    pub seed: u64,
    pub coverage: Coverage,
    /// What was wrong, if anything.
    pub failure: Option<String>,
}

impl Outcome {
    /// The command that shows the same again.
    pub fn command(&self) -> String {
        format!("weft sim --plan {} --seed {}", self.plan.name(), self.seed)
    }
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Panics of this thread are kept instead of printed: the seed's report tells them once.
fn keep_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let running = RUNNING.with(|running| *running.borrow());
            if !running {
                before(info);
                return;
            }
            let mut text = info.to_string();
            if std::env::var_os("RUST_BACKTRACE").is_some() {
                text.push_str(&format!("\n{}", std::backtrace::Backtrace::force_capture()));
            }
            PANIC.with(|panic| *panic.borrow_mut() = Some(text));
        }));
    });
}

thread_local! {
    static RUNNING: RefCell<bool> = const { RefCell::new(false) };
}

/// Runs one seed of one plan.
pub fn run(plan: Plan, seed: u64, trace: bool) -> Outcome {
    keep_panics();
    RUNNING.with(|running| *running.borrow_mut() = true);
    let parameters = Parameters::of(plan, seed);
    if trace {
        println!("{parameters:#?}");
    }
    let mut world = World::new(parameters, trace);
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    RUNNING.with(|running| *running.borrow_mut() = false);
    let mut failure = world.failure.take();
    if ended.is_err() {
        let panic = PANIC.with(|panic| panic.borrow_mut().take()).unwrap_or_default();
        failure = Some(format!("at {} us, event {}: {panic}", world.now, world.coverage.events));
        // Half-changed state may panic again when it is dropped.
        let mut coverage = std::mem::take(&mut world.coverage);
        coverage.seeds = 1;
        let _ = catch_unwind(AssertUnwindSafe(move || drop(world)));
        return Outcome { plan, seed, coverage, failure };
    }
    let coverage = std::mem::take(&mut world.coverage);
    Outcome { plan, seed, coverage, failure }
}
