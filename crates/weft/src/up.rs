//! `weft up`: runs a node in the foreground until it is told to stop.

use crate::arguments::UpArguments;
use crate::config_file;
use crate::trouble::Trouble;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

const DIR_DEFAULT: &str = "./weft-data";
const DRIVE_SIZE_DEFAULT: u64 = 16 << 30;
const LOG_DEFAULT: &str = "info";

pub fn run(arguments: UpArguments) -> Result<(), Trouble> {
    let options = config_file::complete(arguments.options, arguments.config.as_deref())?;
    // Logs go to stderr: stdout has the one line that says that the node serves.
    let log = options.log.as_deref().unwrap_or(LOG_DEFAULT);
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(log).unwrap_or_else(|_| EnvFilter::new(LOG_DEFAULT)))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    let settings = weft_node::Settings {
        dir: options.dir.unwrap_or_else(|| DIR_DEFAULT.into()),
        drives: options.drives,
        drive_size: options.drive_size.unwrap_or(DRIVE_SIZE_DEFAULT),
        drive_paths: options.drive,
        factor: options.rf,
        shards: options.shards.unwrap_or(1),
        read_cache: options.read_cache.unwrap_or(weft_node::READ_CACHE_DEFAULT),
        api: options.api,
        force: arguments.force,
        replace_lost: arguments.replace_lost,
    };
    weft_node::run(settings).map_err(|error| Trouble::bad_input(error.to_string()))
}
