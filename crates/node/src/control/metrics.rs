//! The statistics as Prometheus wants them.

use crate::api::{HistogramView, ShardStatsView, StatsView, StatusView, VdiskFiguresView};
use crate::shard_loop::GAUGES;
use std::fmt::Write;
use weft_engine::histogram::Histogram;
use weft_engine::stages::{Stage, Stages};

/// The text format, version 0.0.4.
pub fn text(status: &StatusView, stats: &StatsView, stages: &Stages, vdisks: &[VdiskFiguresView]) -> String {
    let mut page = Page::default();
    page.family("weft_up", "gauge", "1 when the node is ready");
    page.sample("weft_up", "", u64::from(status.state == "ready"));
    page.family("weft_drive_up", "gauge", "1 when the drive is up");
    for drive in &status.drives {
        page.sample("weft_drive_up", &format!("drive=\"{}\"", drive.drive), u64::from(drive.state == "up"));
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
    each!(stats.drives, drive, "weft_drive_":
        free_bytes "gauge" "Bytes that new egroups could take",
        used_bytes "gauge" "Bytes of the data area in use",
        log_bytes "gauge" "Bytes of the log area",
        log_used_bytes "gauge" "Bytes of the log area that are still needed",
        shared_saved_bytes "gauge" "Bytes that egroups would take more if each had all of its own",
        shared_held_bytes "gauge" "Bytes that are there only because egroups refer to them",
        shared_entries "gauge" "Frames of which the hashes are known",
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
    times(&mut page, stages, vdisks);
    page.family("weft_damage", "counter", "Damage met, by kind");
    for (kind, value) in [
        ("log", stats.damage.log),
        ("table", stats.damage.tables),
        ("copy_bad", stats.damage.copies_bad),
        ("copy_repaired", stats.damage.copies_repaired),
        ("block_lost", stats.damage.blocks_lost),
    ] {
        page.sample("weft_damage", &format!("kind=\"{kind}\""), value);
    }
    page.0
}

/// How long requests and stages took.
fn times(page: &mut Page, stages: &Stages, vdisks: &[VdiskFiguresView]) {
    for (name, help, of) in [
        (
            "weft_vdisk_read_seconds",
            "Time of reads from the socket to the reply",
            (|vdisk| &vdisk.read_us) as fn(&VdiskFiguresView) -> &HistogramView,
        ),
        ("weft_vdisk_write_seconds", "Time of writes from the socket to the reply", |vdisk| &vdisk.write_us),
    ] {
        page.family(name, "histogram", help);
        for vdisk in vdisks {
            page.histogram(name, &format!("name=\"{}\"", vdisk.name), &of(vdisk).histogram(), 4..=24, 1e-6);
        }
    }
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
