//! `weft up`: runs a node in the foreground until it is told to stop.

use crate::arguments::UpArguments;
use crate::config_file;
use crate::trouble::Trouble;
use std::io::IsTerminal;
use std::path::Path;
use tracing_subscriber::EnvFilter;
use weft_node::StartError;
use weft_node::config::cluster::ClusterError;

const DIR_DEFAULT: &str = "./weft-data";
const DRIVE_SIZE_DEFAULT: u64 = 16 << 30;
const LOG_DEFAULT: &str = "info";

/// From little to everything.
const LOG_LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

pub fn run(arguments: UpArguments) -> Result<(), Trouble> {
    let options = config_file::complete(arguments.options, arguments.config.as_deref())?;
    // Logs go to stderr: stdout has the one line that says that the node serves.
    let log = options.log.as_deref().unwrap_or(LOG_DEFAULT);
    let (stderr, _listener) = weft_node::stderr_without_waiting();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(log))
        .with_writer(move || stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // A line that cannot be written (a full drive, a closed pipe) is lost. To tell of that would fail too, with a panic.
        .log_internal_errors(false)
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
        transport: options.transport,
        force: arguments.force,
        replace_lost: arguments.replace_lost,
        accept_records: arguments.accept_records,
    };
    let dir = settings.dir.clone();
    weft_node::run(settings).map_err(|error| trouble(&error, &dir))
}

/// A level of the log. One that is not understood would silence the node, and nobody would know before the log is needed.
pub fn log_level(text: &str) -> Result<String, String> {
    let level = LOG_LEVELS.iter().find(|level| level.eq_ignore_ascii_case(text));
    level
        .map(|level| (*level).to_string())
        .ok_or_else(|| format!("`{text}` is no level of the log: write error, warn, info, debug or trace"))
}

/// What was named wrongly is bad input. What is not as it should be where the node runs is not: etcd that is away, a port or a
/// directory that is in use, a drive that fails.
fn trouble(error: &StartError, dir: &Path) -> Trouble {
    let is_of_input = match error {
        StartError::BadInput(_) => true,
        StartError::Drive(error) => error.is_of_input(),
        StartError::Refused(refusal) => refusal.status.is_client_error(),
        StartError::Join(error) => error.is_of_input(),
        // This directory will never be a node again.
        StartError::Cluster(ClusterError::NodeRemoved { .. } | ClusterError::OldDirectory { .. }) => true,
        // One that could not be made.
        StartError::Io { .. } => !dir.is_dir(),
        StartError::Locked(_)
        | StartError::Config(_)
        | StartError::Membership(_)
        | StartError::Cluster(_)
        | StartError::OlderRecords { .. }
        | StartError::NoDrive { .. }
        | StartError::Api { .. } => false,
    };
    if is_of_input { Trouble::bad_input(error.to_string()) } else { Trouble::failed(error.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};
    use std::net::SocketAddr;
    use weft_node::config::LockError;

    #[test]
    fn a_level_of_the_log_is_understood_or_refused() {
        assert_eq!(log_level("debug").as_deref(), Ok("debug"));
        assert_eq!(log_level("INFO").as_deref(), Ok("info"));
        for bad in ["", "verbose", "inf", "weft_node=debug", "info,"] {
            assert!(log_level(bad).is_err_and(|line| line.contains(&format!("`{bad}`"))), "{bad:?}");
        }
    }

    #[test]
    fn only_what_was_named_wrongly_is_bad_input() {
        let here = Path::new("/");
        let nowhere = Path::new("/nonexistent/weft");
        let io = || StartError::Io { doing: "do it".to_string(), source: Error::from(ErrorKind::Other) };
        let in_use = Error::from(ErrorKind::AddrInUse);
        let address = SocketAddr::from(([127, 0, 0, 1], 7070));
        for (error, dir) in [
            (StartError::BadInput("no".to_string()), here),
            (StartError::Cluster(ClusterError::NodeRemoved { node: 1 }), here),
            (io(), nowhere),
        ] {
            assert!(matches!(trouble(&error, dir), Trouble::BadInput(_)), "{error}");
        }
        for error in [
            StartError::Locked(LockError::Taken { dir: here.to_path_buf() }),
            StartError::Cluster(ClusterError::Contended { key: "it".to_string() }),
            StartError::NoDrive { first: "away".to_string() },
            StartError::Api { address, source: in_use },
            io(),
        ] {
            assert!(matches!(trouble(&error, here), Trouble::Failed(_)), "{error}");
        }
    }
}
