//! How a cluster scales: how long a lost node takes to rebuild, and what a new one moves, from 4 to 256 nodes.
//! Promises: the tables of groups are those that a real cluster would have, because the real placement makes them
//! (`weft_engine::cluster`); the same figures on every machine.
//! Leaves to others: whether hardware is as fast as `hardware` says; `docs/scale.md` tells what is left out.

mod cluster;
mod flow;
mod hardware;
mod plot;
mod row;
mod table;

use clap::Args;
use row::Row;
use std::path::PathBuf;

/// Nodes of the clusters that are looked at.
pub const SIZES: [u32; 13] = [4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];

pub const FACTORS: [u32; 2] = [2, 3];

/// How rebuilding and growing change with the size of a cluster.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  weft sim scale
  weft sim scale --nodes-max 64 --csv scale.csv --svg scale.svg")]
pub struct Scale {
    /// The biggest cluster.
    #[arg(long, default_value_t = 256)]
    nodes_max: u32,
    /// Write the table here as CSV.
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Write the plot here as SVG.
    #[arg(long)]
    svg: Option<PathBuf>,
}

impl Scale {
    /// Prints the table as Markdown, and writes the files that were asked for.
    pub fn run(&self) -> std::io::Result<()> {
        let rows = rows(self.nodes_max);
        print!("{}", table::markdown(&rows));
        if let Some(path) = &self.csv {
            std::fs::write(path, table::csv(&rows))?;
        }
        if let Some(path) = &self.svg {
            std::fs::write(path, plot::svg(&rows))?;
        }
        Ok(())
    }
}

/// One row for each factor and size up to `nodes_max`.
fn rows(nodes_max: u32) -> Vec<Row> {
    let sizes = || SIZES.into_iter().filter(|&nodes| nodes <= nodes_max);
    FACTORS.into_iter().flat_map(|factor| sizes().map(move |nodes| Row::of(nodes, factor))).collect()
}

#[cfg(test)]
mod tests {
    use super::hardware::Hardware;
    use super::*;

    /// Rebuilding gets faster because more drives take part, which nobody told the model.
    #[test]
    fn a_lost_node_is_rebuilt_faster_by_a_bigger_cluster() {
        for factor in FACTORS {
            let rows: Vec<Row> = [4, 8, 16, 32].into_iter().map(|nodes| Row::of(nodes, factor)).collect();
            for two in rows.windows(2) {
                let (small, big) = (&two[0], &two[1]);
                assert!(big.rebuild_ssd_s < small.rebuild_ssd_s * 0.8, "{small:?} {big:?}");
                assert!(big.rebuild_hdd_s < small.rebuild_hdd_s * 0.8, "{small:?} {big:?}");
                assert!(big.targets > small.targets);
            }
            for row in &rows {
                assert!(
                    (row.rebuild_bytes / Hardware::SSD.node_bytes() - 1.0).abs() < 0.1,
                    "all of a node: {row:?}"
                );
                assert!(row.moved_bytes <= row.share_bytes * 1.2, "{row:?}");
                assert!(row.imbalance < 1.1 && row.imbalance_grown < 1.1, "{row:?}");
            }
        }
    }

    #[test]
    fn the_table_in_the_documents_is_what_the_model_says() {
        let written = include_str!("../../../../docs/scale.csv");
        let now = table::csv(&rows(16));
        for line in now.lines() {
            assert!(
                written.lines().any(|other| other == line),
                "docs/scale.csv is old (scripts/scale): {line}"
            );
        }
        let page = include_str!("../../../../docs/scale.md");
        for line in table::markdown(&rows(16)).lines() {
            assert!(page.lines().any(|other| other == line), "docs/scale.md is old (scripts/scale): {line}");
        }
    }
}
