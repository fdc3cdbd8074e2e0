//! The offline tools on a node with snapshots: what only those see is verified and shown like everything else.

use crate::support::checker::{BLOCK, content};
use crate::support::nbd::NbdClient;
use crate::support::{Node, Scratch, find_blocks, flip_bit, weft_output};
use serde_json::Value;
use std::path::{Path, PathBuf};

const BLOCKS: usize = 1024;

fn fill(socket: &Path, version: u64) {
    let mut client = NbdClient::connect_patiently(socket, "v");
    for first in (0..BLOCKS).step_by(16) {
        let data: Vec<u8> = (first..first + 16).flat_map(|block| content(block, version)).collect();
        client.write((first * BLOCK) as u64, &data).expect("a write works");
    }
    client.disconnect();
}

/// A node whose vDisk `v` has three snapshots and other content now; everything in pages if it is `stopped`, otherwise
/// killed.
fn node_with_snapshots(scratch: &Scratch, stopped: bool) -> PathBuf {
    let (dir, socket) = (scratch.file("node"), scratch.socket("v"));
    let node = Node::start(&dir, &["--drive-size", "256M"]);
    node.export_new("v", "8M", &socket);
    fill(&socket, 1);
    // Version 1 is in pages when it becomes past.
    node.stop();
    let node = Node::start(&dir, &[]);
    for version in 2..5 {
        node.weft(&["snapshot", "create", "v", &format!("of-{}", version - 1)]);
        fill(&socket, version);
    }
    node.weft(&["snapshot", "rm", "v@of-2"]);
    if stopped {
        node.stop();
    } else {
        node.kill();
    }
    dir
}

fn check(dir: &Path) -> (Option<i32>, Value) {
    let output = weft_output(&["--json", "check", dir.to_str().expect("a plain name")]);
    let told = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no report: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), told)
}

fn expect_sound(dir: &Path) {
    let (code, told) = check(dir);
    assert_eq!((code, &told["sound"]), (Some(0), &Value::from(true)), "{told:#}");
}

fn problems(dir: &Path) -> Vec<String> {
    let (code, told) = check(dir);
    assert_eq!(code, Some(1), "{told:#}");
    let kinds = told["problems_by_kind"].as_object().expect("problems are counted by kind");
    kinds.keys().cloned().collect()
}

/// Flips a bit in every copy of a block of this version.
fn damage(dir: &Path, block: usize, version: u64) {
    let data = dir.join("drive-0.data");
    let places = find_blocks(&data, &content(block, version));
    assert!(!places.is_empty(), "version {version} of block {block} is in an egroup");
    for place in places {
        flip_bit(&data, place + 2000);
    }
}

#[test]
fn snapshots_are_shown_and_what_only_they_see_is_verified() {
    for version in [1, 3] {
        let scratch = Scratch::new("offline-snapshots");
        let dir = node_with_snapshots(&scratch, true);
        expect_sound(&dir);
        let shown =
            weft_output(&["inspect", "map", "v", "--json", "--dir", dir.to_str().expect("a plain name")]);
        let shown: Value = serde_json::from_slice(&shown.stdout).expect("--json prints JSON");
        let names: Vec<_> = shown["snapshots"]
            .as_array()
            .expect("snapshots are listed")
            .iter()
            .map(|snapshot| snapshot["name"].as_str().expect("it has a name"))
            .collect();
        assert_eq!(names, ["of-1", "of-3"], "{shown:#}");
        assert!(shown["past_pages"].as_u64().is_some_and(|pages| pages > 0), "{shown:#}");
        damage(&dir, 77, version);
        let found = problems(&dir);
        assert!(found.contains(&"block_lost".to_string()), "version {version}: {found:?}");
    }
}

#[test]
fn a_clone_shows_where_it_reads_what_it_has_not() {
    let scratch = Scratch::new("offline-clone");
    let dir = scratch.file("node");
    let node = Node::start(&dir, &["--drive-size", "256M"]);
    node.export_new("v", "8M", &scratch.socket("v"));
    fill(&scratch.socket("v"), 1);
    node.weft(&["snapshot", "create", "v", "s"]);
    node.weft(&["clone", "v@s", "c"]);
    node.weft(&["vdisk", "resize", "c", "--size", "16M"]);
    node.stop();
    let inspect = |arguments: &[&str]| {
        let place = ["--dir", dir.to_str().expect("a plain name")];
        let output = weft_output(&[&["inspect", "map", "c"], arguments, &place].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("it is text")
    };
    let shown = inspect(&["--offset", "4096"]);
    assert!(shown.contains("it is read from v") && !shown.contains("reads as zeros"), "{shown}");
    let behind = inspect(&["--offset", "12M"]);
    assert!(behind.contains("it reads as zeros"), "the origin has nothing there: {behind}");
    let shown: Value = serde_json::from_str(&inspect(&["--json"])).expect("it is JSON");
    assert_eq!(shown["origin"]["vdisk"], "v", "{shown:#}");
}

#[test]
fn after_a_kill_what_edits_hide_from_the_present_is_verified_too() {
    let scratch = Scratch::new("offline-snapshots-kill");
    let dir = node_with_snapshots(&scratch, false);
    expect_sound(&dir);
    damage(&dir, 500, 1);
    let found = problems(&dir);
    assert!(found.contains(&"block_lost".to_string()), "{found:?}");
}

#[test]
fn a_damaged_page_of_the_past_is_named() {
    let scratch = Scratch::new("offline-past");
    let dir = node_with_snapshots(&scratch, true);
    let data = dir.join("drive-0.data");
    let bytes = std::fs::read(&data).expect("the data area can be read");
    // The head of a map page: its magic behind the checksum, and in byte 10 what it tells (5: the past).
    let is_past = |block: &[u8]| block[4..8] == *b"WFMP" && block[10] == 5;
    let blocks = bytes.chunks_exact(BLOCK).enumerate();
    let pages: Vec<u64> =
        blocks.filter(|(_, block)| is_past(block)).map(|(number, _)| (number * BLOCK) as u64).collect();
    assert!(!pages.is_empty(), "snapshots of other content have pages of the past");
    for page in pages {
        flip_bit(&data, page + 100);
    }
    let found = problems(&dir);
    assert!(found.contains(&"past_page_lost".to_string()), "{found:?}");
    let (_, told) = check(&dir);
    let lines = told["problems"].to_string();
    assert!(lines.contains("what snapshots see of the blocks from 0 on is lost"), "{lines}");
}
