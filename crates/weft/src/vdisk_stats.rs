//! `weft vdisk stats NAME`: what a vDisk's requests were like, and where they went.

use crate::arguments::Place;
use crate::client::{Client, path_part};
use crate::cluster::document;
use crate::latency::time;
use crate::output::{self, Table};
use crate::size;
use crate::trouble::Trouble;
use serde_json::Value;
use weft_node::api::{HistogramView, VdiskFiguresListView, VdiskFiguresView};

/// Columns of the longest bar.
const BAR: u64 = 40;

pub fn run(place: &Place, name: &str, json: bool) -> Result<(), Trouble> {
    let answer = ask(place, name)?;
    if json {
        output::json(&answer);
    } else {
        output::write(render(&document(answer)?).as_bytes());
    }
    Ok(())
}

/// The node that serves it is asked, by way of the one at hand.
fn ask(place: &Place, name: &str) -> Result<Value, Trouble> {
    let client = Client::find(place)?;
    let list: VdiskFiguresListView = document(client.get("/v1/vdisk_stats")?)?;
    let path = format!("/v1/vdisk_stats/{}", path_part(name));
    let Some(elsewhere) = list.elsewhere.into_iter().find(|vdisk| vdisk.name == name) else {
        return client.get(&path);
    };
    let Some(api) = elsewhere.api else {
        return Err(Trouble::failed(format!(
            "nobody serves vDisk {name} at this moment; `weft vdisk show {name}` tells why"
        )));
    };
    Client::find(&Place { api: Some(api), ..place.clone() })?.get(&path)
}

fn render(view: &VdiskFiguresView) -> String {
    let counts = &view.counts;
    let mut text = format!(
        "{}, {}: {} requests outstanding; since it came here {} reads of {}, {} writes of {}, {} trims, {} flushes, {} errors\n",
        view.name,
        size::show(view.size),
        view.outstanding_now,
        counts.reads,
        size::show(counts.read_bytes),
        counts.writes,
        size::show(counts.write_bytes),
        counts.zeroes,
        counts.flushes,
        counts.errors
    );
    let us = |value: u64| time(value as f64);
    for (title, histogram, show) in [
        ("LATENCY OF READS", &view.read_us, &us as &dyn Fn(u64) -> String),
        ("LATENCY OF WRITES", &view.write_us, &us),
        ("LATENCY OF FLUSHES", &view.flush_us, &us),
        ("SIZES OF READS", &view.read_size, &size::show),
        ("SIZES OF WRITES", &view.write_size, &size::show),
        ("REQUESTS OUTSTANDING", &view.outstanding, &|value: u64| value.to_string()),
    ] {
        if histogram.count > 0 {
            text.push_str(&bars(title, histogram, show));
        }
    }
    let pattern = &view.pattern;
    let mut table = Table::new(&["", "SEQUENTIAL", "RANDOM", "RANDOM PART"]);
    for (name, sequential, random) in [
        ("reads", pattern.reads_sequential, pattern.reads_random),
        ("writes", pattern.writes_sequential, pattern.writes_random),
    ] {
        let part = share(random, random + sequential);
        table.row(vec![name.to_string(), sequential.to_string(), random.to_string(), part]);
    }
    text.push('\n');
    text.push_str(&table.render());
    let mut table = Table::new(&["WORKING SET", "READ", "WRITTEN", "EITHER"]);
    for (name, set) in [("last 2 minutes", &view.working_set.minutes), ("last hour", &view.working_set.hour)]
    {
        let cells = [set.read_bytes, set.written_bytes, set.bytes].map(size::show);
        table.row([vec![name.to_string()], cells.to_vec()].concat());
    }
    text.push('\n');
    text.push_str(&table.render());
    let blocks: u64 = view.read_sources.values().map(|source| source.blocks).sum();
    let mut table = Table::new(&["READS FROM", "READS", "DATA", "PART"]);
    for (name, source) in &view.read_sources {
        let data = size::show(source.blocks * 4096);
        table.row(vec![name.clone(), source.reads.to_string(), data, share(source.blocks, blocks)]);
    }
    text.push('\n');
    text.push_str(&table.render());
    let bytes: u64 = view.write_destinations.values().map(|destination| destination.bytes).sum();
    let mut table = Table::new(&["WRITES TO", "WRITES", "DATA", "PART"]);
    for (name, destination) in &view.write_destinations {
        let data = size::show(destination.bytes);
        table.row(vec![name.clone(), destination.writes.to_string(), data, share(destination.bytes, bytes)]);
    }
    text.push('\n');
    text.push_str(&table.render());
    text
}

pub fn share(part: u64, all: u64) -> String {
    if all == 0 { "-".to_string() } else { format!("{:.1} %", part as f64 * 100.0 / all as f64) }
}

/// A bar for each power of two.
fn bars(title: &str, view: &HistogramView, show: &dyn Fn(u64) -> String) -> String {
    let histogram = view.histogram();
    let is_size = title.starts_with("SIZES");
    let (mut rows, mut before) = (Vec::new(), 0);
    for power in 0..=41 {
        let below = histogram.below(power);
        if below > 0 && before < view.count {
            rows.push((power, below - before));
        }
        before = below;
    }
    let most = rows.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
    let heading = format!("{title}: {}, p50 {}, p99 {}", view.count, show(view.p50), show(view.p99));
    let mut table = Table::new(&["", "", ""]);
    for (power, count) in rows {
        let length = (count * BAR).div_ceil(most) as usize;
        // Sizes are mostly powers of two: a bar says where it begins.
        let label = if is_size {
            format!("from {}", show(1 << power >> 1))
        } else {
            format!("below {}", show(1 << power))
        };
        table.row(vec![label, count.to_string(), "#".repeat(length)]);
    }
    let table = table.render();
    let (_, rows) = table.split_once('\n').expect("a table has a heading");
    format!("\n{heading}\n{rows}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_engine::histogram::Histogram;

    #[test]
    fn bars_are_as_long_as_their_part_and_count_everything() {
        let mut histogram = Histogram::default();
        [100, 120, 70, 65, 300, 5_000].into_iter().for_each(|us| histogram.record(us));
        let mut sizes = Histogram::default();
        sizes.record(4096);
        let view = VdiskFiguresView {
            name: "db".to_string(),
            size: 1 << 30,
            read_us: HistogramView::from(&histogram),
            write_size: HistogramView::of_sizes(&sizes),
            ..VdiskFiguresView::default()
        };
        let text = render(&view);
        assert!(text.starts_with("db, 1 GiB: 0 requests outstanding"), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        let at = lines.iter().position(|line| line.starts_with("LATENCY OF READS: 6")).expect("it is there");
        assert_eq!(lines[at + 1].trim_end(), format!("below 128us   4  {}", "#".repeat(40)), "{text}");
        assert!(lines[at + 2].contains("256us") && lines[at + 2].ends_with('0'), "a gap is shown: {text}");
        assert_eq!(lines[at + 3].matches('#').count(), 10, "{text}");
        assert!(text.contains("SIZES OF WRITES: 1, p50 4 KiB, p99 4 KiB\nfrom 4 KiB  1  ##"), "{text}");
        assert!(!text.contains("LATENCY OF WRITES"), "what never was has no bars");
        assert!(text.contains("last 2 minutes"));
    }
}
