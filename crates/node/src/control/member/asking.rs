//! Asking the other nodes what only they know. Blocks: not for the control plane's own thread.

use crate::config::cluster::ClusterConfig;
use crate::control::statistics;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::io::Read;
use std::time::Duration;

/// Who does not answer by then is done without.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

// A node with a slow shard answers without it, and in time.
const _: () = assert!(ANSWER_WAIT.as_millis() > statistics::ANSWER_WAIT.as_millis());

/// No answer is larger; those of some thousand vDisks have several MiB.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Asks all living nodes, this one too, at the same time; the answers of those that gave one.
pub fn ask_living<T: DeserializeOwned + Send + 'static>(mirror: &ClusterConfig, path: &str) -> Vec<T> {
    ask_all_but(mirror, &BTreeSet::new(), path)
}

/// Likewise, without those that are `silent`: they are not waited for.
pub fn ask_all_but<T: DeserializeOwned + Send + 'static>(
    mirror: &ClusterConfig,
    silent: &BTreeSet<u32>,
    path: &str,
) -> Vec<T> {
    let is_asked = |node: &u32| mirror.alive.contains_key(node) && !silent.contains(node);
    let living = mirror.nodes.iter().filter(|(node, _)| is_asked(node));
    let asked: Vec<_> = living
        .map(|(_, node)| format!("http://{}{path}", node.record.api))
        .map(|url| std::thread::spawn(move || ask(&url)))
        .collect();
    asked.into_iter().filter_map(|asked| asked.join().ok().flatten()).collect()
}

/// None: no answer.
pub fn ask<T: DeserializeOwned>(url: &str) -> Option<T> {
    let answer = ureq::get(url).timeout(ANSWER_WAIT).call().ok()?;
    let mut bytes = Vec::new();
    answer.into_reader().take(ANSWER_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}
