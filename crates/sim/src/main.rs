//! `weft sim` without the rest of `weft`: it is built sooner, and its memory is the simulator's own.

use clap::Parser;
use std::process::ExitCode;
use weft_sim::command::Arguments;

#[global_allocator]
static MEMORY: weft_sim::memory::Recycler = weft_sim::memory::Recycler;

/// Runs the engine of Weft on pretend drives and networks that fail as real ones do.
#[derive(Parser)]
#[command(name = "weft-sim", version)]
struct Alone {
    #[command(flatten)]
    arguments: Arguments,
}

fn main() -> ExitCode {
    Alone::parse().arguments.run()
}
