//! What happened between two looks at the same vDisks.
//! Promises: pure; what was not there before has done nothing yet, and a node that was started again counts from there.

use crate::vdisk_stats::share;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;
use weft_node::api::{HistogramView, VdiskFiguresListView, VdiskFiguresView};

/// One look at all vDisks.
pub struct Look {
    /// When the node at hand answered.
    pub at: Instant,
    vdisks: BTreeMap<String, Seen>,
    /// vDisks that nobody serves, or that nobody has told of.
    names: Vec<String>,
    /// Nodes that did not answer.
    pub silent: Vec<u32>,
}

/// A vDisk as its node told of it.
struct Seen {
    /// Nodes answer one later than the other: what each has counted goes by its own time.
    at: Instant,
    node: Option<u32>,
    vdisk: VdiskFiguresView,
}

impl Look {
    pub fn new(at: Instant) -> Self {
        Self { at, vdisks: BTreeMap::new(), names: Vec::new(), silent: Vec::new() }
    }

    /// What a node answered then.
    pub fn add(&mut self, at: Instant, list: VdiskFiguresListView) {
        let node = list.node;
        // What it has not told of is missing.
        self.silent.extend(node.filter(|_| !list.silent_shards.is_empty()));
        let seen = |vdisk: VdiskFiguresView| (vdisk.name.clone(), Seen { at, node, vdisk });
        self.vdisks.extend(list.vdisks.into_iter().map(seen));
        self.names.extend(list.elsewhere.into_iter().map(|vdisk| vdisk.name));
    }
}

/// What one vDisk did.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub name: String,
    pub node: Option<u32>,
    /// In a second.
    pub reads: f64,
    pub writes: f64,
    pub trims: f64,
    pub flushes: f64,
    pub read_bytes: f64,
    pub write_bytes: f64,
    /// None: there was none.
    pub read_us: Option<Percentiles>,
    pub write_us: Option<Percentiles>,
    pub outstanding: u32,
    pub errors: u64,
    /// Blocks, by source, the most first; and bytes, by destination.
    pub from: Vec<(String, u64)>,
    pub to: Vec<(String, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Percentiles {
    pub p50: u64,
    pub p99: u64,
}

pub struct Interval {
    /// Between two answers of the node at hand.
    pub seconds: f64,
    /// The busiest first.
    pub rows: Vec<Row>,
    /// vDisks of which nobody tells.
    pub unknown: Vec<String>,
    pub silent: Vec<u32>,
}

impl Interval {
    pub fn between(before: &Look, now: &Look) -> Self {
        let mut rows: Vec<Row> = now
            .vdisks
            .iter()
            .map(|(name, seen)| {
                // Of one that has just come here, or whose node did not answer before, it is not known when it did what
                // it has counted.
                let same = before.vdisks.get(name).filter(|other| other.node == seen.node).unwrap_or(seen);
                row(seen.node, &same.vdisk, &seen.vdisk, seconds(same.at, seen.at))
            })
            .collect();
        let load = |row: &Row| row.reads + row.writes + row.trims + row.flushes;
        rows.sort_by(|a, b| load(b).total_cmp(&load(a)).then_with(|| a.name.cmp(&b.name)));
        let mut unknown: Vec<String> =
            now.names.iter().filter(|name| !now.vdisks.contains_key(*name)).cloned().collect();
        unknown.sort();
        unknown.dedup();
        Self { seconds: seconds(before.at, now.at), rows, unknown, silent: now.silent.clone() }
    }

    /// One object for each interval.
    pub fn json(&self) -> Value {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
        json!({
            "time_ms": since.map_or(0, |since| since.as_millis() as u64),
            "seconds": rounded(self.seconds),
            "vdisks": rows,
            "not_known": self.unknown,
            "silent_nodes": self.silent,
        })
    }
}

/// Never nothing: it is divided by.
fn seconds(before: Instant, now: Instant) -> f64 {
    now.saturating_duration_since(before).as_secs_f64().max(0.001)
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

impl Row {
    fn json(&self) -> Value {
        let times = |times: &Option<Percentiles>| match times {
            Some(Percentiles { p50, p99 }) => json!({ "p50": p50, "p99": p99 }),
            None => Value::Null,
        };
        let parts = |parts: &[(String, u64)]| -> Value {
            let all: u64 = parts.iter().map(|(_, amount)| amount).sum();
            let part = |amount: u64| rounded(amount as f64 / all.max(1) as f64);
            parts.iter().map(|(name, amount)| (name.clone(), json!(part(*amount)))).collect()
        };
        json!({
            "name": self.name,
            "node": self.node,
            "reads_per_second": rounded(self.reads),
            "writes_per_second": rounded(self.writes),
            "trims_per_second": rounded(self.trims),
            "flushes_per_second": rounded(self.flushes),
            "read_bytes_per_second": rounded(self.read_bytes),
            "write_bytes_per_second": rounded(self.write_bytes),
            "read_us": times(&self.read_us),
            "write_us": times(&self.write_us),
            "outstanding": self.outstanding,
            "errors": self.errors,
            "reads_from": parts(&self.from),
            "writes_to": parts(&self.to),
        })
    }

    /// The three largest parts, such as `cache 80.0 %, local 20.0 %`.
    pub fn parts(parts: &[(String, u64)]) -> String {
        let all: u64 = parts.iter().map(|(_, amount)| amount).sum();
        if all == 0 {
            return "-".to_string();
        }
        let part =
            |(name, amount): &(String, u64)| format!("{name} {}", share(*amount, all).replace(' ', ""));
        parts.iter().take(3).map(part).collect::<Vec<_>>().join(" ")
    }
}

fn row(node: Option<u32>, before: &VdiskFiguresView, now: &VdiskFiguresView, seconds: f64) -> Row {
    let (old, new) = (&before.counts, &now.counts);
    let per_second = |before: u64, now: u64| since(before, now) as f64 / seconds;
    let blocks = |view: &VdiskFiguresView, name: &str| view.read_sources.get(name).map_or(0, |it| it.blocks);
    let bytes = |view: &VdiskFiguresView, name: &str| {
        view.write_destinations.get(name).map_or(0, |destination| destination.bytes)
    };
    let from = now.read_sources.keys().map(|name| (name, blocks(before, name), blocks(now, name)));
    let to = now.write_destinations.keys().map(|name| (name, bytes(before, name), bytes(now, name)));
    Row {
        name: now.name.clone(),
        node,
        reads: per_second(old.reads, new.reads),
        writes: per_second(old.writes, new.writes),
        trims: per_second(old.zeroes, new.zeroes),
        flushes: per_second(old.flushes, new.flushes),
        read_bytes: per_second(old.read_bytes, new.read_bytes),
        write_bytes: per_second(old.write_bytes, new.write_bytes),
        read_us: percentiles(&before.read_us, &now.read_us),
        write_us: percentiles(&before.write_us, &now.write_us),
        outstanding: now.outstanding_now,
        errors: since(old.errors, new.errors),
        from: amounts(from),
        to: amounts(to),
    }
}

/// Less than before: it began again.
fn since(before: u64, now: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

fn percentiles(before: &HistogramView, now: &HistogramView) -> Option<Percentiles> {
    let lately = now.histogram().since(&before.histogram());
    (lately.count() > 0).then(|| Percentiles { p50: lately.percentile(0.5), p99: lately.percentile(0.99) })
}

/// What there is some of, the most first.
fn amounts<'a>(of: impl Iterator<Item = (&'a String, u64, u64)>) -> Vec<(String, u64)> {
    let amount = |(name, before, now): (&String, u64, u64)| (name.clone(), since(before, now));
    let mut amounts: Vec<(String, u64)> = of.map(amount).filter(|(_, amount)| *amount > 0).collect();
    amounts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    amounts
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::time::Duration;
    use weft_engine::histogram::Histogram;
    use weft_node::api::{DestinationView, ElsewhereView, SourceView};

    fn a_vdisk(name: &str, reads: u64, read_us: &[u64]) -> VdiskFiguresView {
        let mut vdisk = VdiskFiguresView { name: name.to_string(), ..VdiskFiguresView::default() };
        let mut histogram = Histogram::default();
        read_us.iter().for_each(|&us| histogram.record(us));
        vdisk.counts.reads = reads;
        vdisk.counts.read_bytes = reads * 4096;
        vdisk.read_us = (&histogram).into();
        vdisk.read_sources.insert("cache".to_string(), SourceView { reads, blocks: reads * 3 });
        vdisk.read_sources.insert("local".to_string(), SourceView { reads, blocks: reads });
        vdisk.write_destinations.insert("log".to_string(), DestinationView { writes: 0, bytes: 0 });
        vdisk
    }

    /// Two seconds in which `busy` made a hundred reads and `idle` none; `new` came from elsewhere.
    pub fn an_interval() -> Interval {
        let at = Instant::now();
        let later = at + Duration::from_secs(2);
        let mut before = Look::new(at);
        before.add(
            at,
            VdiskFiguresListView {
                node: Some(0),
                vdisks: vec![a_vdisk("busy", 1000, &[5; 10]), a_vdisk("idle", 7, &[9])],
                ..VdiskFiguresListView::default()
            },
        );
        let mut now = Look::new(later);
        let nobody = ElsewhereView { name: "lost".to_string(), node: None, api: None };
        let told = ElsewhereView { name: "new".to_string(), node: Some(1), api: None };
        let mut busy_us = vec![5; 10];
        busy_us.extend([12; 99]);
        busy_us.push(1_000);
        now.add(
            later,
            VdiskFiguresListView {
                node: Some(0),
                vdisks: vec![a_vdisk("idle", 7, &[9]), a_vdisk("busy", 1100, &busy_us)],
                elsewhere: vec![nobody, told],
                ..VdiskFiguresListView::default()
            },
        );
        now.add(
            later,
            VdiskFiguresListView {
                node: Some(1),
                vdisks: vec![a_vdisk("new", 10, &[1])],
                ..VdiskFiguresListView::default()
            },
        );
        now.silent.push(2);
        Interval::between(&before, &now)
    }

    #[test]
    fn only_what_happened_in_between_counts() {
        let interval = an_interval();
        let names: Vec<&str> = interval.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["busy", "idle", "new"], "the busiest first");
        let busy = &interval.rows[0];
        assert_eq!((busy.reads, busy.read_bytes, busy.writes), (50.0, 50.0 * 4096.0, 0.0));
        assert_eq!(busy.read_us, Some(Percentiles { p50: 12, p99: 12 }), "not the ones of before");
        assert_eq!(busy.from, [("cache".to_string(), 300), ("local".to_string(), 100)]);
        assert_eq!(Row::parts(&busy.from), "cache 75.0% local 25.0%");
        assert_eq!((interval.rows[1].reads, interval.rows[1].read_us), (0.0, None));
        assert_eq!(
            (interval.rows[2].reads, interval.rows[2].node),
            (0.0, Some(1)),
            "it did nothing here yet"
        );
        assert_eq!((interval.unknown, interval.silent), (vec!["lost".to_string()], vec![2]));
    }

    #[test]
    fn the_json_of_an_interval_is_one_object() {
        let json = an_interval().json();
        assert_eq!(json["vdisks"][0]["name"], "busy");
        assert_eq!(json["vdisks"][0]["reads_per_second"], 50.0);
        assert_eq!(json["vdisks"][0]["reads_from"]["cache"], 0.75);
        assert_eq!(json["vdisks"][2]["read_us"], Value::Null);
        assert!(!json.to_string().contains('\n'));
    }

    #[test]
    fn a_node_that_was_started_again_counts_from_there() {
        let at = Instant::now();
        let look = |at: Instant, reads: u64, us: &[u64]| {
            let mut look = Look::new(at);
            let vdisks = vec![a_vdisk("v", reads, us)];
            look.add(at, VdiskFiguresListView { vdisks, ..VdiskFiguresListView::default() });
            look
        };
        let (before, now) = (look(at, 500, &[3, 3, 3]), look(at + Duration::from_secs(1), 20, &[8]));
        let row = &Interval::between(&before, &now).rows[0];
        assert_eq!((row.reads, row.read_us), (20.0, Some(Percentiles { p50: 8, p99: 8 })));
    }

    #[test]
    fn a_node_that_answers_late_has_counted_for_longer() {
        let at = Instant::now();
        let look = |at: Instant, answered: Instant, reads: u64| {
            let mut look = Look::new(at);
            let (node, vdisks) = (Some(1), vec![a_vdisk("v", reads, &[])]);
            look.add(answered, VdiskFiguresListView { node, vdisks, ..VdiskFiguresListView::default() });
            look
        };
        let second = Duration::from_secs(1);
        let interval = Interval::between(&look(at, at, 0), &look(at + second, at + 4 * second, 400));
        assert_eq!((interval.seconds, interval.rows[0].reads), (1.0, 100.0));
    }
}
