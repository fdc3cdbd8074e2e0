//! The rows as a table for people (Markdown) and for programs (CSV).

use super::hardware::Hardware;
use super::row::Row;
use std::fmt::Write;

/// The same columns as the CSV's most telling ones, rounded.
pub fn markdown(rows: &[Row]) -> String {
    let mut text = String::new();
    text.push_str(
        "| copies | nodes | groups | places per drive | rebuild, TB | from/to drives | SSD, min | HDD, min | \
         moved to a new node, TB | its share, TB | SSD, min | HDD, min | fullest drive, before → after |\n",
    );
    text.push_str("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    for row in rows {
        writeln!(
            text,
            "| {} | {} | {} | {:.0} | {:.2} | {}/{} | {:.1} | {:.1} | {:.2} | {:.2} | {:.1} | {:.1} | {:.3} → {:.3} |",
            row.factor,
            row.nodes,
            row.groups,
            row.places_per_drive,
            row.rebuild_bytes / 1e12,
            row.sources,
            row.targets,
            row.rebuild_ssd_s / 60.0,
            row.rebuild_hdd_s / 60.0,
            row.moved_bytes / 1e12,
            row.share_bytes / 1e12,
            row.moved_ssd_s / 60.0,
            row.moved_hdd_s / 60.0,
            row.imbalance,
            row.imbalance_grown,
        )
        .expect("a string takes everything");
    }
    writeln!(
        text,
        "\nInto one spare node instead: {:.0} min (SSD), {:.0} min (HDD), at any size.",
        Hardware::SSD.spare_node_s() / 60.0,
        Hardware::HDD.spare_node_s() / 60.0
    )
    .expect("a string takes everything");
    text
}

pub fn csv(rows: &[Row]) -> String {
    let mut text = String::from(
        "copies,nodes,drives,groups,places_per_drive,imbalance,rebuild_bytes,rebuild_sources,rebuild_targets,\
         rebuild_ssd_seconds,rebuild_hdd_seconds,rebuild_extra_bytes,moved_bytes,share_bytes,moved_ssd_seconds,\
         moved_hdd_seconds,imbalance_grown\n",
    );
    for row in rows {
        writeln!(
            text,
            "{},{},{},{},{:.2},{:.4},{:.0},{},{},{:.1},{:.1},{:.0},{:.0},{:.0},{:.1},{:.1},{:.4}",
            row.factor,
            row.nodes,
            row.drives,
            row.groups,
            row.places_per_drive,
            row.imbalance,
            row.rebuild_bytes,
            row.sources,
            row.targets,
            row.rebuild_ssd_s,
            row.rebuild_hdd_s,
            row.rebuild_extra_bytes,
            row.moved_bytes,
            row.share_bytes,
            row.moved_ssd_s,
            row.moved_hdd_s,
            row.imbalance_grown,
        )
        .expect("a string takes everything");
    }
    text
}
