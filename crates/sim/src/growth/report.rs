//! What came out: a table for people (Markdown), the course of one run for programs (CSV).

use super::hardware::SECOND;
use super::load::Sample;
use super::meter::{Seen, series};
use super::scenario::{Growth, OWNERS, Settings, Steady};
use std::fmt::Write;

/// Seconds of one entry of the course.
pub const STEP_S: u64 = 2;

/// A row of the table: a number of threads, before and after.
pub struct Row {
    pub threads: usize,
    pub how: &'static str,
    pub small: Steady,
    pub grown: Steady,
}

pub const HEAD: &str = "| threads of a VM | 8 nodes by | IOPS of a VM, 4 → 8 nodes | ratio | read, ms | ratio | 99th percentile, ms | \
     ratio | log write, ms | ratio | page write, ms | ratio | disks busy: 4 nodes; of 8 the owners', the others' |\n\
     |--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";

pub fn row(row: &Row) -> String {
    let mut text = format!("| {} | {} |", row.threads, row.how);
    let (small, grown) = (&row.small.seen, &row.grown.seen);
    let mut put = |value: fn(&Seen) -> f64, scale: f64, digits: usize| {
        let (one, other) = (value(small) / scale, value(grown) / scale);
        write!(text, " {one:.digits$} → {other:.digits$} | {:.2} |", other / one)
            .expect("a string takes everything");
    };
    put(|seen| seen.iops, OWNERS as f64, 0);
    put(|seen| seen.read_ms, 1.0, 1);
    put(|seen| seen.read_p99_ms, 1.0, 0);
    put(|seen| seen.log_write_ms, 1.0, 3);
    put(|seen| seen.page_write_ms, 1.0, 3);
    let percent = |part: f64| (part * 100.0).round();
    let (four, owners, others) = (row.small.owners_busy, row.grown.owners_busy, row.grown.storage_busy);
    writeln!(text, " {} %; {} %, {} % |", percent(four), percent(owners), percent(others))
        .expect("a string takes everything");
    text
}

/// The course of a run, in seconds since the load began.
pub fn course(growth: &Growth) -> Vec<(f64, Seen)> {
    let samples: &[Sample] = &growth.world.load.samples;
    let entries = series(samples, growth.began, growth.world.now, STEP_S * SECOND);
    entries.into_iter().map(|(at, seen)| ((at - growth.began) as f64 / SECOND as f64, seen)).collect()
}

pub fn csv(growth: &Growth) -> String {
    let mut text = String::from("second,iops,read_ms,read_p99_ms,log_write_ms,page_write_ms\n");
    for (second, seen) in course(growth) {
        writeln!(
            text,
            "{second:.0},{:.1},{:.3},{:.3},{:.4},{:.4}",
            seen.iops, seen.read_ms, seen.read_p99_ms, seen.log_write_ms, seen.page_write_ms
        )
        .expect("a string takes everything");
    }
    text
}

/// What was simulated, in a sentence.
pub fn conditions(settings: &Settings, growth: &Growth) -> String {
    let since = |from: u64, to: u64| (to - from) as f64 / SECOND as f64;
    format!(
        "{} databases of {} MiB, each with a log, in {OWNERS} VMs; first nodes {:.0} % full; {} s to warm up, {} s measured; with {} \
         threads the cluster was at rest again {:.0} s after the nodes had joined.",
        OWNERS * super::scenario::DATABASES,
        settings.data_bytes >> 20,
        settings.full * 100.0,
        settings.warm_up_s,
        settings.measure_s,
        settings.threads,
        since(growth.joined, growth.moved),
    )
}
