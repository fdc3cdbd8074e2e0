//! The page of `weft cluster status`: health first, then copies and repair, space, nodes, and what a failure would do.
//! Promises: pure; the same documents make the same page.

use crate::node::standing;
use crate::output::Table;
use crate::size;
use std::io::IsTerminal;
use weft_node::api::{ClusterView, NodeView, RepairView};

/// What the place it is shown on can do.
#[derive(Debug, Clone, Copy)]
pub struct Looks {
    pub color: bool,
    /// Bars of full blocks.
    pub unicode: bool,
}

impl Looks {
    pub fn of_stdout() -> Self {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let language = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default();
        let language = language.to_ascii_lowercase();
        Self {
            color: std::io::stdout().is_terminal() && set("NO_COLOR").is_none(),
            unicode: language.contains("utf-8") || language.contains("utf8"),
        }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }

    fn health(self, health: &str) -> String {
        let code = match health {
            "ok" => "1;32",
            "degraded" => "1;33",
            _ => "1;31",
        };
        self.paint(code, &health.to_uppercase())
    }

    fn heading(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// `done` of `total` as a bar and in percent, rounded down: 100 % is all of it.
    fn bar(self, done: u64, total: u64) -> String {
        const WIDTH: u64 = 20;
        let part =
            |of: u64| (u128::from(done.min(total)) * u128::from(of) / u128::from(total.max(1))) as usize;
        let (full, empty) = if self.unicode { ("█", "░") } else { ("#", "-") };
        let filled = part(WIDTH);
        format!("{}{} {:>3} %", full.repeat(filled), empty.repeat(WIDTH as usize - filled), part(100))
    }
}

pub fn render(cluster: &ClusterView, nodes: &[NodeView], looks: Looks) -> String {
    let mut page = format!("cluster {}: {}\n", cluster.name, looks.health(&cluster.health));
    for line in &cluster.lines {
        page.push_str(&format!("  {line}\n"));
    }
    page.push('\n');
    for (label, text) in facts(cluster, looks) {
        page.push_str(&format!("  {label:<8} {text}\n"));
    }
    page.push('\n');
    page.push_str(&node_table(cluster, nodes, looks));
    if !cluster.failures.is_empty() {
        page.push_str(&format!("\n{}\n", looks.heading("What a failure would do")));
        for line in &cluster.failures {
            page.push_str(&format!("  {line}\n"));
        }
    }
    page
}

fn facts(cluster: &ClusterView, looks: Looks) -> Vec<(&'static str, String)> {
    let mut facts = vec![("copies", copies(cluster))];
    if let Some(repair) = &cluster.repair {
        facts.push(("repair", repair_line(repair, looks)));
    }
    facts.extend(cluster.copying.iter().map(|line| ("factor", line.clone())));
    let served = format!("{} of {} served", cluster.vdisks_served, cluster.vdisks);
    facts.push(("vDisks", format!("{served}, {} as clients see them", size::show(cluster.vdisk_bytes))));
    facts.push(("drives", format!("{} of {} up", cluster.drives_up, cluster.drives)));
    facts.push((
        "space",
        format!(
            "{}  {} of {}",
            looks.bar(cluster.used_bytes, cluster.capacity_bytes),
            size::show(cluster.used_bytes),
            size::show(cluster.capacity_bytes)
        ),
    ));
    facts
}

fn copies(cluster: &ClusterView) -> String {
    if cluster.groups == 0 {
        return "no placement groups yet: they come with the first vDisk".to_string();
    }
    let mut text = if cluster.groups_whole == cluster.groups {
        format!("all {} groups whole", cluster.groups)
    } else {
        format!("{} of {} groups whole", cluster.groups_whole, cluster.groups)
    };
    if cluster.groups_moving > 0 {
        text.push_str(&format!(", {} moving", cluster.groups_moving));
    }
    if cluster.groups_thin > 0 {
        text.push_str(&format!(", {} with a member away", cluster.groups_thin));
    }
    text
}

fn repair_line(repair: &RepairView, looks: Looks) -> String {
    let done = repair.groups_total.saturating_sub(repair.groups_left);
    let left = match repair.seconds_left {
        Some(seconds) => format!("about {} left", duration(seconds)),
        None => "time not known yet".to_string(),
    };
    format!(
        "{}  {} of {} groups to go, {left}",
        looks.bar(done.into(), repair.groups_total.into()),
        repair.groups_left,
        repair.groups_total
    )
}

/// As people say it: no more than is known.
fn duration(seconds: u64) -> String {
    match seconds {
        0..100 => format!("{seconds} s"),
        100..6000 => format!("{} min", seconds.div_ceil(60)),
        6000..172_800 => format!("{} h", seconds.div_ceil(3600)),
        _ => format!("{} days", seconds.div_ceil(86_400)),
    }
}

fn node_table(cluster: &ClusterView, nodes: &[NodeView], looks: Looks) -> String {
    let there: Vec<&NodeView> = nodes.iter().filter(|node| node.state != "removed").collect();
    if there.is_empty() {
        return "no nodes; make one with `weft node join`\n".to_string();
    }
    // Columns that say nothing are left away.
    let has_zones = there.iter().any(|node| !node.zone.is_empty());
    let has_racks = there.iter().any(|node| !node.rack.is_empty());
    let mut heading = vec!["NODE", "NAME", "STATE", "DRIVES", "VDISKS"];
    heading.extend(has_zones.then_some("ZONE"));
    heading.extend(has_racks.then_some("RACK"));
    heading.extend(["API", ""]);
    let mut table = Table::new(&heading);
    for node in &there {
        let dash = |text: &str| if text.is_empty() { "-".to_string() } else { text.to_string() };
        let mut row = vec![node.node.to_string(), dash(&node.name), standing(node).to_string()];
        row.push(format!("{} of {} up", node.drives_up, node.drives));
        row.push(if node.storage_only { "-".to_string() } else { node.vdisks_served.to_string() });
        row.extend(has_zones.then(|| dash(&node.zone)));
        row.extend(has_racks.then(|| dash(&node.rack)));
        row.extend([dash(&node.api), remarks(cluster, node)]);
        table.row(row);
    }
    let text = table.render();
    let (first, rest) = text.split_once('\n').expect("a table has a heading");
    format!("{}\n{rest}", looks.heading(first))
}

fn remarks(cluster: &ClusterView, node: &NodeView) -> String {
    let mut remarks = Vec::new();
    if node.is_controller || cluster.controller == Some(node.node) {
        remarks.push("controller");
    }
    if node.storage_only {
        remarks.push("storage only");
    }
    if node.node == cluster.this_node {
        remarks.push("answers here");
    }
    remarks.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Looks = Looks { color: false, unicode: false };

    fn a_node(node: u32, name: &str) -> NodeView {
        NodeView {
            node,
            name: name.to_string(),
            api: format!("10.0.0.{}:7070", node + 1),
            rack: format!("r{node}"),
            state: "in".to_string(),
            alive: true,
            reachable_from_here: true,
            drives: 4,
            drives_up: 4,
            vdisks_served: 3,
            incarnation: 7,
            ..NodeView::default()
        }
    }

    fn a_cluster() -> ClusterView {
        ClusterView {
            name: "main".to_string(),
            health: "ok".to_string(),
            controller: Some(0),
            this_node: 1,
            nodes_alive: 3,
            nodes: 3,
            drives_up: 12,
            drives: 12,
            vdisks: 9,
            vdisks_served: 9,
            groups: 96,
            groups_whole: 96,
            capacity_bytes: 12 << 40,
            used_bytes: 3 << 40,
            vdisk_bytes: 9 << 40,
            failures: vec!["if node 2 (db-2) fails now: 3 vDisks move, every block keeps a copy".to_string()],
            ..ClusterView::default()
        }
    }

    #[test]
    fn the_page_of_a_cluster_that_is_well() {
        let nodes = [a_node(0, "db-0"), a_node(1, "db-1"), a_node(2, "db-2")];
        let page = render(&a_cluster(), &nodes, PLAIN);
        assert_eq!(
            page,
            "\
cluster main: OK

  copies   all 96 groups whole
  vDisks   9 of 9 served, 9 TiB as clients see them
  drives   12 of 12 up
  space    #####---------------  25 %  3 TiB of 12 TiB

NODE  NAME  STATE  DRIVES     VDISKS  RACK  API
0     db-0  up     4 of 4 up  3       r0    10.0.0.1:7070  controller
1     db-1  up     4 of 4 up  3       r1    10.0.0.2:7070  answers here
2     db-2  up     4 of 4 up  3       r2    10.0.0.3:7070

What a failure would do
  if node 2 (db-2) fails now: 3 vDisks move, every block keeps a copy
"
        );
    }

    #[test]
    fn the_page_of_a_cluster_that_repairs() {
        let cluster = ClusterView {
            health: "degraded".to_string(),
            lines: vec!["node 2 (db-2) is away".to_string()],
            groups_whole: 80,
            groups_moving: 12,
            groups_thin: 16,
            repair: Some(RepairView { groups_left: 12, groups_total: 16, seconds_left: Some(130) }),
            failures: Vec::new(),
            ..a_cluster()
        };
        let away = NodeView { alive: false, drives_up: 0, storage_only: true, ..a_node(2, "db-2") };
        let page = render(&cluster, &[a_node(0, "db-0"), away], PLAIN);
        for line in [
            "cluster main: DEGRADED\n  node 2 (db-2) is away\n",
            "  copies   80 of 96 groups whole, 12 moving, 16 with a member away\n",
            "  repair   #####---------------  25 %  12 of 16 groups to go, about 3 min left\n",
            "2     db-2  away   0 of 4 up  -       r2    10.0.0.3:7070  storage only\n",
        ] {
            assert!(page.contains(line), "{line}\nis not in\n{page}");
        }
    }

    #[test]
    fn an_empty_cluster_and_an_empty_answer_make_a_page() {
        let page = render(&ClusterView::default(), &[], Looks { color: true, unicode: true });
        assert!(page.contains("no nodes") && page.contains("0 B of 0 B"), "{page}");
    }

    #[test]
    fn a_bar_is_full_only_when_all_is_done() {
        assert!(PLAIN.bar(999, 1000).ends_with("-  99 %"));
        assert!(PLAIN.bar(1000, 1000).ends_with("# 100 %"));
        assert!(PLAIN.bar(u64::MAX, u64::MAX).ends_with("# 100 %"));
    }

    #[test]
    fn times_are_told_as_people_do() {
        let told: Vec<String> = [0, 99, 100, 5400, 6000, 86_400, 172_800].map(duration).to_vec();
        assert_eq!(told, ["0 s", "99 s", "2 min", "90 min", "2 h", "24 h", "2 days"]);
    }
}
