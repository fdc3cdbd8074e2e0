//! What a vDisk or a container takes and saves, as lines of a table.

use crate::output::Table;
use crate::size;
use serde_json::Value;
use weft_node::api::CopiesView;

/// Each saving for itself, and all of them together: what clients could read, against what one copy takes.
pub fn rows(table: &mut Table, usage: &Value) {
    let count = |name: &str| usage[name].as_u64().unwrap_or(0);
    let mut row = |label: &str, value: String| table.row(vec![label.into(), value]);
    let (mapped, snapshots, origin) = (count("mapped_bytes"), count("snapshot_bytes"), count("origin_bytes"));
    row("data", format!("{} of {}", size::show(mapped), size::show(count("size_bytes"))));
    if count("log_bytes") > 0 {
        row("in the log", size::show(count("log_bytes")));
    }
    row("zeros", format!("{} written and not stored", size::show(count("zero_bytes"))));
    row("of origins", format!("{} read and not stored", size::show(origin)));
    row("of snapshots", format!("{} besides", size::show(snapshots)));
    row("replaced", format!("{} not free yet", size::show(count("dead_bytes"))));
    let (placed, stored) = (count("placed_bytes"), count("stored_bytes"));
    row("packed", format!("{} in {}{}", size::show(placed), size::show(stored), ratio(placed, stored)));
    let copies = count("copies_bytes");
    row("stored", format!("{} with all copies", size::show(copies)));
    if let Ok(copies) = serde_json::from_value::<CopiesView>(usage["copies"].clone()) {
        row("copies now", copies.line());
    }
    let copying = count("vdisks_copying");
    if copying > 0 {
        row(
            "copies now",
            format!("{copying} vDisk(s) do not have as many as they should yet (weft vdisk show)"),
        );
    }
    row("together", together(mapped + snapshots + origin, stored));
}

fn together(seen: u64, stored: u64) -> String {
    format!("{} of data takes {} for each copy{}", size::show(seen), size::show(stored), ratio(seen, stored))
}

/// Nothing is said about next to nothing.
fn ratio(of: u64, to: u64) -> String {
    if of == 0 || to == 0 { String::new() } else { format!(", {:.2} : 1", of as f64 / to as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn savings_are_told_apart() {
        let mut table = Table::new(&["name", "v"]);
        let usage = json!({
            "size_bytes": 1 << 30, "mapped_bytes": 8 << 20, "log_bytes": 0, "zero_bytes": 4096, "origin_bytes": 0,
            "snapshot_bytes": 4 << 20, "dead_bytes": 0, "placed_bytes": 12 << 20, "stored_bytes": 6 << 20,
            "copies_bytes": 12 << 20,
        });
        rows(&mut table, &usage);
        let text = table.render();
        for line in
            ["8 MiB of 1 GiB", "4 KiB written and not stored", "12 MiB in 6 MiB, 2.00 : 1", "4 MiB besides"]
        {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains("in the log"));
    }
}
