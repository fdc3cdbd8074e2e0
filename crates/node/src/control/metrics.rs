//! The statistics as Prometheus wants them.
//! Promises: what is not known is not there. A 0 in its place would be taken for a counter that began again.

use crate::api::{DriveStatsView, ShardStatsView, StatsView, StatusView, is_drive_up};
use crate::shard_loop::{GAUGES, Latencies};
use std::collections::BTreeMap;
use std::fmt::Write;
use weft_engine::histogram::Histogram;
use weft_engine::stages::{Stage, Stages};

/// The text format, version 0.0.4. `stages`: None if not all shards have told theirs.
pub fn text(
    status: &StatusView,
    stats: &StatsView,
    stages: Option<&Stages>,
    latencies: &BTreeMap<String, Latencies>,
) -> String {
    let mut page = Page::default();
    page.family("weft_up", "gauge", "1 when the node is ready");
    page.sample("weft_up", "", u64::from(status.state == "ready"));
    page.family("weft_drive_up", "gauge", "1 when the drive is up");
    for drive in &status.drives {
        let up = u64::from(is_drive_up(&drive.state));
        page.sample("weft_drive_up", &format!("drive=\"{}\"", drive.drive), up);
    }
    page.family("weft_drive_slow", "gauge", "1 when the drive gets next to nothing done");
    for drive in &status.drives {
        let slow = u64::from(drive.state == "slow");
        page.sample("weft_drive_slow", &format!("drive=\"{}\"", drive.drive), slow);
    }
    page.family("weft_drive_hangs", "gauge", "1 when the drive has not answered for seconds");
    for drive in &status.drives {
        let hangs = u64::from(drive.state == "hangs");
        page.sample("weft_drive_hangs", &format!("drive=\"{}\"", drive.drive), hangs);
    }
    macro_rules! each {
        ($list:expr, $label:ident, $prefix:literal: $($field:ident $kind:literal $help:literal),* $(,)?) => {
            $(
                let name = concat!($prefix, stringify!($field));
                page.family(name, $kind, $help);
                for item in &$list {
                    page.sample(name, &format!("{}=\"{}\"", stringify!($label), item.$label), item.$field);
                }
            )*
        };
    }
    let drives_up: Vec<&DriveStatsView> =
        stats.drives.iter().filter(|drive| is_drive_up(&drive.state) || drive.state == "hangs").collect();
    each!(drives_up, drive, "weft_drive_":
        free_bytes "gauge" "Bytes that new egroups could take",
        used_bytes "gauge" "Bytes of the data area in use",
        log_bytes "gauge" "Bytes of the log area",
        log_used_bytes "gauge" "Bytes of the log area that are still needed",
        shared_saved_bytes "gauge" "Bytes that egroups would take more if each had all of its own",
        shared_held_bytes "gauge" "Bytes that are there only because egroups refer to them",
        shared_entries "gauge" "Frames of which the hashes are known",
    );
    each!(stats.drives, drive, "weft_drive_":
        reads "counter" "Reads of the drive",
        read_bytes "counter" "Bytes read from the drive",
        writes "counter" "Writes to the drive",
        write_bytes "counter" "Bytes written to the drive",
        flushes "counter" "Flushes of the drive",
        discards "counter" "Discards of the drive",
        faults "counter" "Operations that the drive refused",
    );
    each!(stats.vdisks, name, "weft_vdisk_":
        reads "counter" "Reads answered",
        read_bytes "counter" "Bytes read",
        read_us_total "counter" "Microseconds all reads together took",
        writes "counter" "Writes answered",
        write_bytes "counter" "Bytes written",
        write_us_total "counter" "Microseconds all writes together took",
        zeroes "counter" "Trims and writes of zeros answered",
        flushes "counter" "Flushes answered",
        errors "counter" "Requests answered with an error",
    );
    each!(stats.shards, shard, "weft_shard_":
        turns "counter" "Turns of the shard's loop",
        enters "counter" "System calls to the shard's ring",
        sleeps "counter" "Times the shard's thread went to sleep",
        steps "counter" "Inputs given to the engine",
        connections "gauge" "Connections of clients",
    );
    let names: std::collections::BTreeSet<&String> =
        stats.shards.iter().flat_map(|shard| shard.engine.keys()).collect();
    for counter in names {
        let name = format!("weft_engine_{counter}");
        let kind = if GAUGES.contains(&counter.as_str()) { "gauge" } else { "counter" };
        page.family(&name, kind, "Counted by the engine, see docs/operating.md");
        for shard in &stats.shards {
            if let Some(&value) = shard.engine.get(counter) {
                page.sample(&name, &format!("shard=\"{}\"", shard.shard), value);
            }
        }
    }
    peers(&mut page, &stats.shards);
    times(&mut page, stages, latencies);
    page.family("weft_damage", "counter", "Damage met, by kind");
    for (kind, value) in [
        ("log", stats.damage.log),
        ("table", stats.damage.tables),
        ("copy_bad", stats.damage.copies_bad),
        ("copy_repaired", stats.damage.copies_repaired),
        ("copy_partial", stats.damage.copies_partial),
        ("write_lost", stats.damage.writes_lost),
        ("block_lost", stats.damage.blocks_lost),
    ] {
        page.sample("weft_damage", &format!("kind=\"{kind}\""), value);
    }
    page.0
}

/// How long requests and stages took.
fn times(page: &mut Page, stages: Option<&Stages>, latencies: &BTreeMap<String, Latencies>) {
    for (name, help, of) in [
        (
            "weft_vdisk_read_seconds",
            "Time of reads from the socket to the reply",
            (|latencies| &latencies.read) as fn(&Latencies) -> &Histogram,
        ),
        ("weft_vdisk_write_seconds", "Time of writes from the socket to the reply", |latencies| {
            &latencies.write
        }),
    ] {
        page.family(name, "histogram", help);
        for (vdisk, latencies) in latencies {
            page.histogram(name, &format!("name=\"{vdisk}\""), of(latencies), 4..=24, 1e-6);
        }
    }
    let Some(stages) = stages else { return };
    page.family("weft_stage_seconds", "histogram", "Time of the stages of /latency");
    for stage in Stage::ALL.into_iter().filter(|&stage| stages.of(stage).count() > 0) {
        let labels = format!("stage=\"{}\"", stage.name());
        page.histogram("weft_stage_seconds", &labels, stages.of(stage), 8..=34, 1e-9);
    }
}

/// What shards say to those of other nodes, by lane.
fn peers(page: &mut Page, shards: &[ShardStatsView]) {
    macro_rules! each {
        ($($field:ident $kind:literal $help:literal),* $(,)?) => {
            $(
                let name = concat!("weft_peer_", stringify!($field));
                page.family(name, $kind, $help);
                for shard in shards {
                    page.sample(name, &format!("shard=\"{}\"", shard.shard), shard.peers.$field);
                }
            )*
        };
    }
    each!(
        links "gauge" "Connections to shards of other nodes",
        dials "counter" "Connections that the shard began to make",
        reconnects "counter" "Those that took the place of one that had worked",
        accepted "counter" "Connections of others that the shard took",
        dropped "counter" "Messages that could not be sent and are asked again",
    );
    macro_rules! each_lane {
        ($($field:ident $help:literal),* $(,)?) => {
            $(
                let name = concat!("weft_peer_", stringify!($field));
                page.family(name, "counter", $help);
                for shard in shards {
                    for (lane, counted) in &shard.peers.lanes {
                        let labels = format!("shard=\"{}\",lane=\"{lane}\"", shard.shard);
                        page.sample(name, &labels, counted.$field);
                    }
                }
            )*
        };
    }
    each_lane!(
        messages_sent "Messages sent to shards of other nodes",
        bytes_sent "Bytes of them",
        messages_received "Messages received from shards of other nodes",
        bytes_received "Bytes of them",
    );
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}.\n# TYPE {name} {kind}");
    }

    /// With a bucket for every second power of two in `powers`. `unit`: of the values, in seconds. Values were rounded down,
    /// so those below a bound are the ones that did not exceed it.
    fn histogram(
        &mut self,
        name: &str,
        labels: &str,
        histogram: &Histogram,
        powers: std::ops::RangeInclusive<u32>,
        unit: f64,
    ) {
        let bucket = format!("{name}_bucket");
        for power in powers.step_by(2) {
            let bound = 2f64.powi(power as i32) * unit;
            self.sample(&bucket, &format!("{labels},le=\"{bound:.9}\""), histogram.below(power));
        }
        self.sample(&bucket, &format!("{labels},le=\"+Inf\""), histogram.count());
        self.sample(&format!("{name}_count"), labels, histogram.count());
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{name}_sum{{{labels}}} {:.9}", histogram.total() as f64 * unit);
    }

    fn sample(&mut self, name: &str, labels: &str, value: u64) {
        let _ = if labels.is_empty() {
            writeln!(self.0, "{name} {value}")
        } else {
            writeln!(self.0, "{name}{{{labels}}} {value}")
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::VdiskStatsView;

    fn a_drive(drive: u32, state: &str) -> DriveStatsView {
        DriveStatsView { drive, state: state.to_string(), faults: 3, ..DriveStatsView::default() }
    }

    fn page(stats: &StatsView, stages: Option<&Stages>) -> String {
        let status = StatusView {
            version: String::new(),
            pid: 1,
            dir: String::new(),
            state: "ready".to_string(),
            uptime_us: 1,
            shards: 2,
            factor: 1,
            drives: Vec::new(),
            vdisks: 1,
            trouble: Vec::new(),
        };
        let mut latencies = Latencies::default();
        latencies.write.record(100);
        text(&status, stats, stages, &BTreeMap::from([("v".to_string(), latencies)]))
    }

    #[test]
    fn space_is_told_of_drives_that_are_up_and_counters_of_all() {
        let vdisk = VdiskStatsView { name: "v".to_string(), reads: 7, ..VdiskStatsView::default() };
        let drives = vec![a_drive(1, "up"), a_drive(2, "down"), a_drive(3, "lost")];
        let page = page(&StatsView { drives, vdisks: vec![vdisk], ..StatsView::default() }, None);
        for there in ["used_bytes{drive=\"1\"} 0", "free_bytes{drive=\"1\"} 0", "faults{drive=\"2\"} 3"] {
            assert!(page.contains(&format!("\nweft_drive_{there}\n")), "{there} in {page}");
        }
        for gone in ["used_bytes{drive=\"2\"}", "free_bytes{drive=\"3\"}"] {
            assert!(!page.contains(&format!("weft_drive_{gone}")), "{gone} in {page}");
        }
        assert!(page.contains("\nweft_vdisk_reads{name=\"v\"} 7\n"), "{page}");
        assert!(page.contains("\nweft_vdisk_write_seconds_count{name=\"v\"} 1\n"), "{page}");
    }

    #[test]
    fn stages_that_not_all_shards_have_told_are_not_there() {
        let mut stages = Stages::default();
        stages.record_us(Stage::Write, 10);
        let whole = page(&StatsView::default(), Some(&stages));
        let count = format!("weft_stage_seconds_count{{stage=\"{}\"}} 1\n", Stage::Write.name());
        assert!(whole.contains(&count), "{whole}");
        assert!(!page(&StatsView::default(), None).contains("weft_stage_seconds"));
    }
}
