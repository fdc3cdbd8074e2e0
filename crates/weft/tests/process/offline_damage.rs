//! What `weft check` says of a node whose drives have lost something at the end of the log, or are lost themselves.

use crate::support::checker::{BLOCK, content};
use crate::support::nbd::NbdClient;
use crate::support::{Node, Scratch, find_blocks, flip_bit, weft_output};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const BLOCKS: usize = 64;

/// `weft check --json` of a directory: its exit code and what it told.
fn check(dir: &Path) -> (Option<i32>, Value) {
    let output = weft_output(&["--json", "check", dir.to_str().expect("a plain name")]);
    let told = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no report: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), told)
}

fn write(scratch: &Scratch, vdisk: &str, version: u64) {
    let mut client = NbdClient::connect_patiently(&scratch.socket(vdisk), vdisk);
    for block in 0..BLOCKS {
        client.write((block * BLOCK) as u64, &content(block, version)).expect("a write works");
    }
    client.disconnect();
}

/// A killed node whose log has everything that was written to the vDisk `a`, and then to `b`: the last record of `a` is in a frame
/// that was settled long before the end.
fn killed_node(scratch: &Scratch, arguments: &[&str]) -> PathBuf {
    let dir = scratch.file("node");
    let node = Node::start(&dir, arguments);
    for (vdisk, version) in [("a", 1), ("b", 2)] {
        node.export_new(vdisk, "8M", &scratch.socket(vdisk));
        write(scratch, vdisk, version);
    }
    node.kill();
    let (code, told) = check(&dir);
    assert_eq!((code, &told["sound"]), (Some(0), &true.into()), "a kill damages nothing: {told:#}");
    dir
}

fn damage_last_record(dir: &Path, drive: u32) {
    let log = dir.join(format!("drive-{drive}.log"));
    let places = find_blocks(&log, &content(BLOCKS - 1, 1));
    assert_eq!(places.len(), 1, "the log of drive {drive} has the last block of the vDisk once");
    flip_bit(&log, places[0] + 100);
}

#[test]
fn a_damaged_last_record_is_told_and_lost_with_one_copy() {
    let scratch = Scratch::new("end-rf1");
    let dir = killed_node(&scratch, &["--drive-size", "256M"]);
    damage_last_record(&dir, 0);
    let (code, told) = check(&dir);
    assert_eq!(code, Some(1), "{told:#}");
    assert_eq!(told["problems_by_kind"], json!({ "record_copy_missing": 1, "write_lost": 1 }), "{told:#}");
    assert_eq!((&told["problems"][0]["vdisk"], &told["problems"][0]["drive"]), (&"a".into(), &0.into()));
}

#[test]
fn a_damaged_last_record_is_told_with_two_copies_and_lost_without_any() {
    let scratch = Scratch::new("end-rf2");
    let dir = killed_node(&scratch, &["--drives", "2", "--drive-size", "256M"]);
    damage_last_record(&dir, 1);
    let (code, told) = check(&dir);
    assert_eq!(code, Some(1), "{told:#}");
    assert_eq!(
        told["problems_by_kind"],
        json!({ "record_copy_missing": 1 }),
        "the other copy is good: {told:#}"
    );
    assert_eq!((&told["problems"][0]["vdisk"], &told["problems"][0]["drive"]), (&"a".into(), &1.into()));
    damage_last_record(&dir, 0);
    let (code, told) = check(&dir);
    assert_eq!(code, Some(1), "{told:#}");
    assert_eq!(told["problems_by_kind"], json!({ "record_copy_missing": 2, "write_lost": 1 }), "{told:#}");
}

#[test]
fn copies_that_went_with_a_lost_drive_are_missed() {
    let scratch = Scratch::new("lost-drive");
    let dir = scratch.file("node");
    let node = Node::start(&dir, &["--drives", "2", "--drive-size", "256M"]);
    node.export_new("a", "8M", &scratch.socket("a"));
    write(&scratch, "a", 1);
    // A clean stop drains the log.
    node.stop();
    assert_eq!(check(&dir).0, Some(0), "two copies of everything");
    for file in ["drive-1.log", "drive-1.data"] {
        std::fs::remove_file(dir.join(file)).expect("it is there");
    }
    let node = Node::start(&dir, &["--replace-lost"]);
    let trouble = || node.json(&["status"])["trouble"].to_string();
    crate::support::wait_until("the node is ready", || trouble().contains("vDisks a want more copies"));
    node.stop();
    let (code, told) = check(&dir);
    assert_eq!((code, &told["sound"]), (Some(1), &false.into()), "there is one copy of two: {told:#}");
    assert_eq!(told["problems_by_kind"], json!({ "copies_lost": 1 }), "one line for all of them: {told:#}");
    let problem = &told["problems"][0];
    assert_eq!((&problem["drive"], &problem["vdisk"]), (&1.into(), &"a".into()), "{told:#}");
    // With another drive in its place everything is copied.
    let node = Node::start(&dir, &["--drives", "2", "--drive-size", "256M"]);
    node.wait_for_log("all copies are where they belong");
    assert_eq!(node.json(&["status"])["trouble"], json!([]), "there is a drive for each copy");
    node.stop();
    let (code, told) = check(&dir);
    assert_eq!(code, Some(0), "{told:#}");
}

#[test]
fn whoever_only_looks_changes_nothing() {
    let scratch = Scratch::new("offline-looks");
    let dir = killed_node(&scratch, &["--drive-size", "256M"]);
    let state = || -> Vec<(String, std::time::SystemTime, u64)> {
        let entries = std::fs::read_dir(&dir).expect("readable").flatten();
        let mut all: Vec<_> = entries
            .map(|entry| {
                let facts = entry.metadata().expect("readable");
                (
                    entry.file_name().to_string_lossy().into_owned(),
                    facts.modified().expect("known"),
                    facts.len(),
                )
            })
            .collect();
        all.sort();
        all
    };
    let config = || std::fs::read(dir.join("config.redb")).expect("readable");
    // As in a copy on a medium that cannot be written, made from a node that never ran there.
    std::fs::remove_file(dir.join("lock")).expect("it is there");
    let (before, stored) = (state(), config());
    assert_eq!(check(&dir).0, Some(0));
    let shown = weft_output(&["inspect", "drive", "--dir", dir.to_str().expect("a plain name")]);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    assert_eq!(state(), before, "no file was made, written or repaired");
    assert!(config() == stored, "a store that was not closed is repaired by the node, not by who looks");
}
