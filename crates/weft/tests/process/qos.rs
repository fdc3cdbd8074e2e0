//! Limits and shares in a real node: a limit is kept, changed and ended while clients work, also over a restart; a vDisk that
//! reads all it can leaves others their share of the drive.

use crate::support::checker::{BLOCK, content};
use crate::support::nbd::NbdClient;
use crate::support::{Node, PATIENCE, Scratch, counted_by_shards, step};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a limit allows at once, beyond its rate.
const BURST: f64 = 0.1;

/// Reads blocks with `depth` in flight until the time is over, or so many are read; gives how many were answered, and the
/// seconds that took.
fn read_for(client: &mut NbdClient, len: u32, depth: usize, time: Duration, most: u64) -> (u64, f64) {
    let (begun, mut answered) = (Instant::now(), 0);
    while begun.elapsed() < time && answered < most {
        while client.in_flight() < depth {
            client.submit_read(0, len).expect("the connection holds");
        }
        assert_eq!(client.next_reply().expect("the connection holds").error, 0);
        answered += 1;
    }
    while client.in_flight() > 0 {
        assert_eq!(client.next_reply().expect("the connection holds").error, 0);
        answered += 1;
    }
    (answered, begun.elapsed().as_secs_f64())
}

fn throttled(node: &Node, name: &str) -> u64 {
    let stats = node.json(&["stats", name]);
    stats["vdisks"][0]["engine"]["throttled"].as_u64().unwrap_or_else(|| panic!("it is counted: {stats}"))
}

/// No slow machine can make this fail: the more time has passed, the more is allowed.
fn assert_within(answered: u64, seconds: f64, rate: f64, one_more: f64) {
    let allowed = rate * (seconds + BURST) + one_more;
    assert!(answered as f64 <= allowed, "{answered} in {seconds} s, at a limit of {rate}: {allowed} at most");
}

#[test]
fn a_limit_is_kept_changed_and_ended_while_clients_read() {
    let scratch = Scratch::new("qos-limit");
    let dir = scratch.file("node");
    let node = Node::start(&dir, &["--drive-size", "256M"]);
    node.weft(&["vdisk", "create", "v", "--size", "32M", "--iops-limit", "500"]);
    node.export("v", &scratch.socket("v"));
    let shown = node.json(&["vdisk", "show", "v"]);
    assert_eq!((shown["iops_limit"].as_u64(), shown["bw_limit"].as_u64()), (Some(500), None), "{shown}");
    assert!(node.weft(&["vdisk", "show", "v"]).contains("500 IOPS"));
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");

    step("requests");
    let (answered, seconds) = read_for(&mut client, BLOCK as u32, 16, Duration::from_secs(3), u64::MAX);
    assert_within(answered, seconds, 500.0, 1.0);
    // It is a limit, not a standstill.
    assert!(answered > 50, "{answered} in {seconds} s");
    assert!(throttled(&node, "v") > answered / 2, "most of them had to wait");

    step("another limit, while requests wait for the old one");
    for _ in 0..16 {
        client.submit_read(0, BLOCK as u32).expect("the connection holds");
    }
    node.weft(&["vdisk", "set", "v", "--iops-limit", "20"]);
    read_for(&mut client, BLOCK as u32, 16, PATIENCE, 1);
    let (answered, seconds) = read_for(&mut client, BLOCK as u32, 4, Duration::from_secs(3), u64::MAX);
    assert_within(answered, seconds, 20.0, 1.0);

    step("bytes, also over a restart, of reads and writes together");
    node.weft(&["vdisk", "set", "v", "--iops-limit", "none", "--bw-limit", "1M"]);
    client.disconnect();
    node.stop();
    let node = Node::start(&dir, &["--drive-size", "256M"]);
    let shown = node.json(&["vdisk", "show", "v"]);
    assert_eq!((shown["iops_limit"].as_u64(), shown["bw_limit"].as_u64()), (None, Some(1 << 20)), "{shown}");
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    let begun = Instant::now();
    for number in 0..8 {
        let bytes: Vec<u8> = (0..64).flat_map(|block| content(block, number)).collect();
        client.write(0, &bytes).expect("there is room");
        assert_eq!(client.read(0, bytes.len() as u32).expect("it can be read"), bytes);
    }
    // 4 MiB in pieces of 256 KiB, of which one is paid for afterwards.
    assert_within(4 << 20, begun.elapsed().as_secs_f64(), (1 << 20) as f64, (256 << 10) as f64);

    step("none");
    let before = throttled(&node, "v");
    node.weft(&["vdisk", "set", "v", "--bw-limit", "none"]);
    // More than any limit of before allows within the time that a test has.
    let (answered, _) = read_for(&mut client, 64 << 10, 16, PATIENCE, 4_000);
    assert!(answered >= 4_000, "{answered}");
    assert_eq!(throttled(&node, "v"), before, "nothing waits any more");

    for refused in
        [["--iops-limit", "few"], ["--iops-limit", "0"], ["--bw-limit", "1000"], ["--bw-limit", "fast"]]
    {
        let output = node.try_weft(&["vdisk", "set", "v", refused[0], refused[1]]);
        assert_eq!(output.status.code(), Some(2), "{refused:?}: {output:?}");
    }
    client.disconnect();
    node.stop();
}

/// Fills a vDisk, so that its data comes from drives.
fn fill(socket: &Path, name: &str, blocks: usize) {
    let mut client = NbdClient::connect_patiently(socket, name);
    for first in (0..blocks).step_by(256) {
        let bytes: Vec<u8> = (first..first + 256).flat_map(|block| content(block, 1)).collect();
        client.write((first * BLOCK) as u64, &bytes).expect("there is room");
    }
    client.disconnect();
}

#[test]
fn a_flood_of_large_reads_is_held_back_beside_small_ones() {
    const LARGE: u32 = 1 << 20;
    const DEPTH: u64 = 32;
    let scratch = Scratch::new("qos-shares");
    let dir = scratch.file("node");
    let arguments = ["--drive-size", "512M", "--read-cache", "0", "--shards", "2"];
    let node = Node::start(&dir, &arguments);
    for name in ["scan", "small"] {
        node.export_new(name, "32M", &scratch.socket(name));
        fill(&scratch.socket(name), name, 8192);
    }
    // A clean stop drains everything.
    node.stop();
    let node = Node::start(&dir, &arguments);
    let (large, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut between = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = NbdClient::connect_patiently(&scratch.socket("scan"), "scan");
            let mut at = 0;
            while !stop.load(Ordering::Relaxed) {
                while (client.in_flight() as u64) < DEPTH {
                    // Not in sequence, so that nothing is read ahead.
                    at = (at + 7) % 32;
                    client.submit_read(at * u64::from(LARGE), LARGE).expect("the connection holds");
                }
                assert_eq!(client.next_reply().expect("the connection holds").error, 0);
                large.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut client = NbdClient::connect_patiently(&scratch.socket("small"), "small");
        let mut between = Vec::new();
        for number in 0..300 {
            let before = large.load(Ordering::Relaxed);
            let block = number * 53 % 8192;
            let bytes = client.read((block * BLOCK) as u64, BLOCK as u32).expect("it can be read");
            assert!(bytes == content(block, 1), "block {block} is as it was written");
            between.push(large.load(Ordering::Relaxed) - before);
        }
        stop.store(true, Ordering::Relaxed);
        client.disconnect();
        between
    });
    let held = counted_by_shards(&node.json(&["stats"]), "turns_reads_held");
    assert!(held > 100, "the flood had to wait for its turns: {held}; {between:?}");
    // By order, not by time: a small read does not come behind all large ones that were asked before it.
    between.sort_unstable();
    let middle = between[between.len() / 2];
    assert!(
        middle < DEPTH / 2,
        "half of the small reads saw {middle} large ones or more before them: {between:?}"
    );
    node.stop();
}
