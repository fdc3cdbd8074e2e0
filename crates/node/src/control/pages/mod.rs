//! Pages for people who want to see into a node: where time goes, what is found in memory, what each vDisk does.
//! Promises: a page is whole in itself (no script, nothing fetched from elsewhere), well-formed, shows names as text
//! whatever is in them, and comes again by itself every few seconds. Pure: the same documents make the same page.
//! Leaves to others: the figures (`control/figures.rs`), the paths (`control/server/pages.rs`).

mod cache;
mod html;
mod latency;
mod vdisk;
mod vdisks;

#[cfg(test)]
mod tests;

pub use cache::cache;
pub use latency::latency;
pub use vdisk::{vdisk, vdisk_elsewhere};
pub use vdisks::vdisks;

use crate::api::StatusView;
use html::{Page, duration, escape};

/// Where everything is. `node`: its number in a cluster.
pub fn index(status: &StatusView, node: Option<u32>) -> String {
    let mut page = Page::new("Weft", "");
    let who = node.map_or_else(|| "a node that stands alone".to_string(), |node| format!("node {node}"));
    page.line(&format!("{who}, {}, up for {}", status.state, duration(status.uptime_us)));
    for trouble in &status.trouble {
        page.warning(trouble);
    }
    page.raw("<table>");
    for (path, what) in [
        (
            "/vdisk_stats",
            "vDisks: load, latency, sizes, randomness, working set, where data comes from and goes to",
        ),
        ("/latency", "where time goes, stage by stage"),
        ("/cache_stats", "what is found in memory: read cache, maps of vDisks, maps of egroups"),
        ("/metrics", "everything for Prometheus"),
        ("/v1/stats", "counters as JSON"),
    ] {
        page.raw(&format!(
            "<tr><td><a href=\"{path}\">{path}</a></td><td class=\"t\">{}</td></tr>",
            escape(what)
        ));
    }
    page.raw("</table>");
    page.end()
}
