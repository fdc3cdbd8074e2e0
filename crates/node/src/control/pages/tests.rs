//! Pages are well-formed, show names as text, and say what the documents say.

use super::*;
use crate::api::{
    CacheView, ElsewhereView, HistogramView, LatencyView, MinuteView, SharedView, SourceView, StageView,
    TimesView, VdiskFiguresListView, VdiskFiguresView,
};
use weft_engine::histogram::Histogram;
use weft_engine::stages::Stage;

const HOSTILE: &str = "<script>alert('1')</script>\"&";

/// Every element ends, in the right order; nothing is fetched from elsewhere.
fn assert_well_formed(page: &str) {
    assert!(page.starts_with("<!DOCTYPE html>\n"), "{page}");
    assert!(!page.contains("<script") && !page.contains("src="), "a page is whole in itself");
    let mut open: Vec<&str> = Vec::new();
    for tag in page["<!DOCTYPE html>".len()..].split('<').skip(1) {
        let (tag, text) = tag.split_once('>').expect("a tag ends");
        assert!(!text.contains('>'), "text is escaped: {text}");
        assert_eq!(tag.matches('"').count() % 2, 0, "attributes are quoted: {tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "elements end in the right order");
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().expect("an element has a name"));
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

fn a_histogram(values: impl IntoIterator<Item = u64>) -> HistogramView {
    let mut histogram = Histogram::default();
    values.into_iter().for_each(|value| histogram.record(value));
    HistogramView::from(&histogram)
}

fn a_vdisk(name: &str) -> VdiskFiguresView {
    let mut vdisk = VdiskFiguresView { name: name.to_string(), size: 1 << 30, ..Default::default() };
    vdisk.counts.reads = 12_345;
    vdisk.read_us = a_histogram([0, 100, 100, 200, 5_000]);
    let mut sizes = Histogram::default();
    [4096, 4096, 8192].into_iter().for_each(|bytes| sizes.record(bytes));
    vdisk.read_size = HistogramView::of_sizes(&sizes);
    vdisk.pattern.reads_random = 3;
    vdisk.pattern.reads_sequential = 1;
    vdisk.working_set.minutes.bytes = 3 << 20;
    vdisk.read_sources.insert("zeroes".to_string(), SourceView { reads: 9, blocks: 12 });
    vdisk.read_sources.insert("cache".to_string(), SourceView { reads: 1, blocks: 4 });
    vdisk
}

#[test]
fn the_page_of_a_vdisk_shows_what_it_did() {
    let page = vdisk(&a_vdisk("db-1"));
    assert_well_formed(&page);
    for part in [
        "<h1>db-1</h1>",
        "12\u{202f}345 reads",
        "75.0 %</td>",
        "3 MiB</td>",
        "5 in all; half up to 103 µs",
        "below 8.2 ms",
        "from 4 KiB",
        "3 in all; half up to 4 KiB, 99 % up to 8 KiB",
        "48 KiB</td><td>75.0 %",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
    // 64 to 127: two of five; the largest bar is whole.
    assert!(page.contains(
        "below 128 µs</td><td class=\"t\"><span class=\"track\"><span class=\"bar\" style=\"width:100.0%\">"
    ));
    assert_well_formed(&vdisk(&VdiskFiguresView::default()));
}

#[test]
fn a_histogram_of_a_page_counts_everything_once() {
    let view = a_histogram([0, 1, 2, 3, 4, 7, 8, 100, 1 << 20, (1 << 20) + 1]);
    let mut page = html::Page::new("t", "");
    page.histogram("h", &view, html::Scale::Number);
    let page = page.end();
    assert_well_formed(&page);
    let shares = page.split("%</td>").filter_map(|part| part.rsplit_once("<td>"));
    let sum: f64 = shares.filter_map(|(_, share)| share.trim().parse::<f64>().ok()).sum();
    assert!((sum - 100.0).abs() < 0.5, "{sum}: {page}");
}

#[test]
fn names_are_text_whatever_is_in_them() {
    let elsewhere =
        ElsewhereView { name: HOSTILE.to_string(), node: Some(3), api: Some("10.0.0.3:7070".to_string()) };
    let nowhere = ElsewhereView { name: "lost".to_string(), ..Default::default() };
    let list = VdiskFiguresListView {
        node: Some(1),
        vdisks: vec![a_vdisk(HOSTILE), a_vdisk("plain")],
        elsewhere: vec![elsewhere.clone(), nowhere],
        silent_shards: vec![65],
        ..Default::default()
    };
    let page = vdisks(&list);
    assert!(page.contains("shard 65 did not answer"), "{page}");
    for page in [&page, &vdisk(&a_vdisk(HOSTILE)), &vdisk_elsewhere(&elsewhere)] {
        assert_well_formed(page);
        assert!(page.contains("&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&quot;&amp;"), "{page}");
    }
    assert!(page.contains("<a href=\"/vdisk_stats/plain\">plain</a>"));
    assert!(page.contains("href=\"http://10.0.0.3:7070/vdisk_stats/%3Cscript%3E"), "{page}");
    assert!(page.contains("nobody at this moment"));
    let status = StatusView {
        version: String::new(),
        pid: 1,
        dir: String::new(),
        state: "ready".to_string(),
        uptime_us: 300_000_000,
        shards: 1,
        factor: 1,
        drives: Vec::new(),
        vdisks: 0,
        trouble: vec![HOSTILE.to_string()],
    };
    let page = index(&status, Some(1));
    assert_well_formed(&page);
    assert!(page.contains("node 1, ready, up for 5 min") && page.contains("/cache_stats"));
}

#[test]
fn the_page_of_latencies_has_every_stage_in_its_group() {
    let mut times = Histogram::default();
    times.record(1_500);
    times.record(2_500_000);
    let stage = |stage: Stage| StageView {
        stage: stage.name().to_string(),
        group: stage.group().name().to_string(),
        meaning: stage.meaning().to_string(),
        since_start: TimesView::from(&times),
        since_reset: TimesView::default(),
    };
    let stages = Stage::ALL.into_iter().map(stage).collect();
    let view = LatencyView { uptime_us: 600_000_000, since_reset_us: 60_000_000, stages };
    let page = latency(&view);
    assert_well_formed(&page);
    for stage in Stage::ALL {
        assert_eq!(page.matches(&format!("<td>{}</td>", stage.name())).count(), 1, "{stage:?}");
    }
    assert!(page.contains("60 s ago it was reset") && page.contains("<td>2</td><td>1.3 ms</td>"), "{page}");
    assert!(page.contains("action=\"/latency/reset\""));
}

#[test]
fn the_page_of_caches_tells_the_last_minute_apart() {
    let view = CacheView {
        bytes: 256 << 20,
        used_bytes: 1 << 20,
        hits: 900,
        misses: 100,
        page_hits: 0,
        page_misses: 0,
        ahead_issued: 10,
        ahead_used: 4,
        ahead_wasted: 1,
        egroup_map_hits: 7,
        egroup_map_misses: 0,
        shared: SharedView { bytes_found: 3 << 20, ..Default::default() },
        minute: MinuteView { us: 60_000_000, hits: 1, misses: 3, ..Default::default() },
    };
    let page = cache(&view);
    assert_well_formed(&page);
    for part in
        ["25.0 %", "90.0 %", "40.0 %", "100.0 %", "1 MiB of 256 MiB", "60 s long", "3 MiB lay there already"]
    {
        assert!(page.contains(part), "{part}");
    }
}
