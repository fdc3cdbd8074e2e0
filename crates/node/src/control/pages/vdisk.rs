//! `/vdisk_stats/NAME`: everything about one vDisk.

use super::html::{Page, Scale, bar, bytes, number, share};
use super::vdisks::place;
use crate::api::{ElsewhereView, VdiskFiguresView};

/// Sources with what they are, the quickest first.
const SOURCES: [(&str, &str); 7] = [
    ("zeroes", "never written, or zeros: no drive is asked"),
    ("overlay", "acknowledged and not in egroups yet: in memory"),
    ("cache", "the read cache"),
    ("ahead", "read ahead of a stream"),
    ("local", "drives of this node"),
    ("remote", "drives of other nodes"),
    ("origin", "the vDisk that it was cloned from"),
];

const DESTINATIONS: [(&str, &str); 3] = [
    ("log", "the log, and egroups later"),
    ("bypass", "egroups at once, around the log"),
    ("zeroes", "nowhere: zeros take no space"),
];

pub fn vdisk(view: &VdiskFiguresView) -> String {
    let mut page = Page::new(&view.name, "");
    let counts = &view.counts;
    page.line(&format!(
        "{}; {} requests outstanding now; since it came here: {} reads of {}, {} writes of {}, {} trims, {} flushes, \
         {} errors",
        bytes(view.size),
        view.outstanding_now,
        number(counts.reads),
        bytes(counts.read_bytes),
        number(counts.writes),
        bytes(counts.write_bytes),
        number(counts.zeroes),
        number(counts.flushes),
        number(counts.errors)
    ));
    page.raw("<div class=\"side\">");
    page.histogram("Latency of reads", &view.read_us, Scale::Time);
    page.histogram("Latency of writes", &view.write_us, Scale::Time);
    page.histogram("Latency of flushes", &view.flush_us, Scale::Time);
    page.histogram("Sizes of reads", &view.read_size, Scale::Size);
    page.histogram("Sizes of writes", &view.write_size, Scale::Size);
    page.histogram("Requests outstanding when another one came", &view.outstanding, Scale::Number);
    page.raw("</div>");
    pattern(&mut page, view);
    working_set(&mut page, view);
    sources(&mut page, view);
    destinations(&mut page, view);
    page.end()
}

fn pattern(page: &mut Page, view: &VdiskFiguresView) {
    let pattern = &view.pattern;
    page.heading("Randomness");
    page.line("sequential is what goes on where another request ended, of up to 32 streams at once");
    page.begin_table(&["", "sequential", "random", "random part", " "]);
    for (name, sequential, random) in [
        ("reads", pattern.reads_sequential, pattern.reads_random),
        ("writes", pattern.writes_sequential, pattern.writes_random),
    ] {
        let all = sequential + random;
        page.row(&[
            name.to_string(),
            number(sequential),
            number(random),
            share(random, all),
            bar(random, all, true),
        ]);
    }
    page.end_table();
}

fn working_set(page: &mut Page, view: &VdiskFiguresView) {
    let (minutes, hour) = (&view.working_set.minutes, &view.working_set.hour);
    page.heading("Working set");
    page.line("distinct ranges of 64 KiB that were touched: an estimate, mostly within 5 %");
    page.begin_table(&["", "read", "written", "either", "of the vDisk", " "]);
    for (name, set) in [("last 2 minutes", minutes), ("last hour", hour)] {
        page.row(&[
            name.to_string(),
            bytes(set.read_bytes),
            bytes(set.written_bytes),
            bytes(set.bytes),
            share(set.bytes, view.size),
            bar(set.bytes, view.size, false),
        ]);
    }
    page.end_table();
}

fn sources(page: &mut Page, view: &VdiskFiguresView) {
    let all: u64 = view.read_sources.values().map(|source| source.blocks).sum();
    page.heading("Where reads came from");
    page.begin_table(&["source", "reads", "data", "part of the data", " ", " what it is"]);
    for (name, what) in SOURCES {
        let source = view.read_sources.get(name).copied().unwrap_or_default();
        page.row(&[
            name.to_string(),
            number(source.reads),
            bytes(source.blocks * 4096),
            share(source.blocks, all),
            bar(source.blocks, all, false),
            format!("<span class=\"dim\">{what}</span>"),
        ]);
    }
    page.end_table();
}

fn destinations(page: &mut Page, view: &VdiskFiguresView) {
    let all: u64 = view.write_destinations.values().map(|destination| destination.bytes).sum();
    page.heading("Where writes went");
    page.begin_table(&["destination", "writes", "data", "part of the data", " ", " what it is"]);
    for (name, what) in DESTINATIONS {
        let destination = view.write_destinations.get(name).copied().unwrap_or_default();
        page.row(&[
            name.to_string(),
            number(destination.writes),
            bytes(destination.bytes),
            share(destination.bytes, all),
            bar(destination.bytes, all, false),
            format!("<span class=\"dim\">{what}</span>"),
        ]);
    }
    page.end_table();
}

/// Another node knows.
pub fn vdisk_elsewhere(view: &ElsewhereView) -> String {
    let mut page = Page::new(&view.name, "");
    page.raw(&format!("<p>served by {}</p>", place(view)));
    page.end()
}
