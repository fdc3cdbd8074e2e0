//! A node that is alone and finds its records older than it has seen them: somebody has put another `config.redb` back.
//! Promises: it is not served by them before somebody says so, and then in epochs that no owner of before has had.

use super::start::StartError;
use crate::calendar;
use crate::config::seen::{Seen, epoch_passed_over};
use crate::config::{Config, ConfigStore};
use std::path::Path;

/// Counts a start, in the records and then beside them. `accept`: older records too.
pub(super) fn count_start(
    dir: &Path,
    store: &mut dyn ConfigStore,
    config: &mut Config,
    accept: bool,
) -> Result<(), StartError> {
    let missing = Seen::read(dir)?.and_then(|seen| seen.starts_missing(&config.node));
    match missing {
        Some(starts) if !accept => {
            return Err(StartError::OlderRecords { dir: dir.to_path_buf(), starts });
        }
        Some(starts) => {
            config.node.starts += starts;
            let now = calendar::now();
            for record in &mut config.families {
                record.epoch = epoch_passed_over(record.epoch, now);
            }
            store.put_families(&config.families)?;
        }
        None if accept => {
            return Err(StartError::BadInput(format!(
                "the records in {} are no older than this node has seen them: start it without --accept-records",
                dir.display()
            )));
        }
        None => {}
    }
    config.node.starts += 1;
    store.put_node(&config.node)?;
    let seen = Seen::Alone { node: config.node.node, starts: config.node.starts };
    Ok(seen.write(dir)?)
}
