//! What of a cluster a check could not see, because it is on nodes that were not given.

use super::copies::UnseenCopies;
use super::family::Unseen;
use super::findings::Findings;
use weft_node::offline::{Offline, OfflineNode};

/// Sums over all vDisks.
#[derive(Debug, Default)]
pub struct Sight {
    drives: usize,
    logs: u64,
    pages: u64,
    copies: u64,
    units: u64,
}

impl Sight {
    pub fn new(offline: &Offline) -> Self {
        Self { drives: offline.elsewhere.len(), ..Self::default() }
    }

    pub fn add(&mut self, family: &Unseen, copies: &UnseenCopies) {
        self.logs += u64::from(family.log);
        self.pages += family.records + family.index_pages + family.directory_pages + copies.leaf_pages;
        self.copies += copies.copies;
        self.units += copies.units;
    }

    /// Everything that there is was looked at.
    pub fn is_complete(&self) -> bool {
        self.drives == 0
    }

    pub fn tell(&self, offline: &Offline, findings: &mut Findings) {
        if self.is_complete() {
            return;
        }
        let mut missing: Vec<u32> = offline.elsewhere.values().copied().collect();
        missing.sort_unstable();
        missing.dedup();
        let named: Vec<String> = missing.iter().map(|node| name(offline, *node)).collect();
        let text = format!(
            "{} drives of {} were not looked at: give the directories of these nodes too for a full check",
            self.drives,
            named.join(", ")
        );
        findings.note("drives_elsewhere", None, None, text);
        let parts = [
            (self.logs, "vDisks of which nothing here tells the map"),
            (self.pages, "records and pages of the map"),
            (self.copies, "copies of egroups"),
            (self.units, "blocks and pages of which no sound copy is here"),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        if !parts.is_empty() {
            findings.note(
                "unseen",
                None,
                None,
                format!("not seen, because it is there: {}", parts.join("; ")),
            );
        }
        let alive: Vec<String> = missing
            .iter()
            .filter(|node| offline.nodes.get(node).is_some_and(|node| node.is_alive))
            .map(|node| name(offline, *node))
            .collect();
        if !alive.is_empty() {
            let text = format!(
                "{} still runs or ended a moment ago: what it does meanwhile is not seen",
                alive.join(", ")
            );
            findings.note("nodes_alive", None, None, text);
        }
    }
}

fn name(offline: &Offline, node: u32) -> String {
    match offline.nodes.get(&node) {
        Some(OfflineNode { name, .. }) => format!("node {node} ({name})"),
        None => format!("node {node}"),
    }
}
