//! `weft up`: runs a node in the foreground until it is told to stop.

use crate::arguments::UpArguments;
use crate::trouble::Trouble;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

pub fn run(arguments: UpArguments) -> Result<(), Trouble> {
    // Logs go to stderr: stdout has the one line that says that the node serves.
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_env("WEFT_LOG").unwrap_or_else(|_| EnvFilter::new("info")))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    let settings = weft_node::Settings {
        dir: arguments.dir,
        drives: arguments.drives,
        drive_size: arguments.drive_size,
        drive_paths: arguments.drive,
        factor: arguments.rf,
        shards: arguments.shards,
        api: arguments.api,
        force: arguments.force,
        replace_lost: arguments.replace_lost,
    };
    weft_node::run(settings).map_err(|error| Trouble::bad_input(error.to_string()))
}
