//! Bits flipped on a drive: with two copies answered from the other one, repaired and reported; with one copy an I/O
//! error. Never wrong data.

use crate::support::checker::{BLOCK, content};
use crate::support::cluster::{Cluster, Options, wait_for};
use crate::support::nbd::{EIO, NbdClient};
use crate::support::{Node, Scratch, find_blocks, flip_bit, wait_until};
use std::ops::Range;
use std::path::{Path, PathBuf};

const BLOCKS: usize = 1024;

fn fill(client: &mut NbdClient, version: u64) {
    for first in (0..BLOCKS).step_by(16) {
        let data: Vec<u8> = (first..first + 16).flat_map(|block| content(block, version)).collect();
        client.write((first * BLOCK) as u64, &data).expect("a write works");
    }
}

fn read_block(client: &mut NbdClient, block: usize) -> Result<Vec<u8>, u32> {
    client.read((block * BLOCK) as u64, BLOCK as u32)
}

/// Every block is as it was written first, but for these, which cannot be read.
fn only_these_fail(client: &mut NbdClient, lost: &Range<usize>) {
    for block in 0..BLOCKS {
        match read_block(client, block) {
            Ok(bytes) => {
                assert!(!lost.contains(&block), "a damaged block is not answered: {block}");
                assert!(bytes == content(block, 1), "block {block} is as it was written");
            }
            Err(error) => {
                assert_eq!(error, EIO);
                assert!(lost.contains(&block), "block {block} is not damaged");
            }
        }
    }
}

/// Flips a bit in every copy of `block` in this file; how many there were.
fn flip_block(file: &Path, block: usize, version: u64) -> usize {
    let places = find_blocks(file, &content(block, version));
    for place in &places {
        flip_bit(file, place + 2000);
    }
    places.len()
}

/// Flips a bit in every page of a map, or back; how many there were.
fn flip_pages(file: &Path) -> usize {
    let bytes = std::fs::read(file).expect("the data area can be read");
    // The magic of a page is behind its checksum.
    let is_page = |block: &[u8]| block[4..8] == *b"WFMP";
    let pages = bytes.chunks_exact(BLOCK).enumerate().filter(|(_, block)| is_page(block));
    pages.map(|(number, _)| flip_bit(file, (number * BLOCK + 100) as u64)).count()
}

/// A stopped node whose vDisk `v` has version 1 of all blocks in egroups.
fn stopped_node(scratch: &Scratch, arguments: &[&str]) {
    let node = Node::start(&scratch.file("node"), arguments);
    node.export_new("v", "8M", &scratch.socket("v"));
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    fill(&mut client, 1);
    client.disconnect();
    // A clean stop drains the log.
    node.stop();
}

#[test]
fn with_two_copies_a_flipped_block_is_answered_repaired_and_reported() {
    let scratch = Scratch::new("flip-rf2");
    let arguments = ["--drives", "2", "--drive-size", "256M"];
    stopped_node(&scratch, &arguments);
    // Every 16th block is damaged in one of its two copies; a read asks either of them.
    let flipped: Vec<usize> = (0..BLOCKS).step_by(16).collect();
    for block in &flipped {
        let data = scratch.file("node").join(format!("drive-{}.data", block / 16 % 2));
        assert!(flip_block(&data, *block, 1) > 0, "block {block} lies on both drives");
    }
    let node = Node::start(&scratch.file("node"), &arguments);
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    for block in 0..BLOCKS {
        let bytes = read_block(&mut client, block).expect("the other copy answers");
        assert!(bytes == content(block, 1), "block {block} is as it was written");
    }
    let damage = |name: &str| node.json(&["stats"])["damage"][name].as_u64().expect("damage is counted");
    wait_until("what was read is reported", || damage("copies_bad") > 0);
    wait_until("what was read is repaired", || damage("copies_repaired") > 0);
    node.wait_for_log("damaged");
    // Once more: what was repaired stays so, and what was not read before is answered as well.
    for block in 0..BLOCKS {
        let bytes = read_block(&mut client, block).expect("the other copy answers");
        assert!(bytes == content(block, 1), "block {block} is as it was written");
    }
    client.disconnect();
    node.stop();
}

#[test]
fn with_one_copy_a_flipped_block_fails_and_the_others_do_not() {
    let scratch = Scratch::new("flip-rf1");
    let arguments = ["--drive-size", "256M"];
    stopped_node(&scratch, &arguments);
    let dir = scratch.file("node");
    let data = dir.join("drive-0.data");
    assert!(flip_block(&data, 77, 1) > 0, "the block lies on the drive");
    let checked = crate::support::weft_output(&["check", dir.to_str().expect("a plain name")]);
    assert_eq!(checked.status.code(), Some(1), "the offline check finds it");

    let node = Node::start(&dir, &arguments);
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    only_these_fail(&mut client, &(77..78));
    node.wait_for_log("77");
    // Writing it again heals it.
    client.write(77 * BLOCK as u64, &content(77, 2)).expect("a write works");
    assert!(read_block(&mut client, 77).expect("it is good again") == content(77, 2));
    client.disconnect();
    node.stop();
}

#[test]
fn a_block_that_is_bad_in_both_copies_does_not_keep_others_from_leaving_a_drive() {
    const BAD: usize = 777;
    let mut cluster = Cluster::start("flip-drain", Options::default());
    cluster.create("v", "8M");
    let owner = cluster.wait_until_served("v");
    let socket = cluster.export("v", owner);
    let mut client = NbdClient::connect_patiently(&socket, "v");
    fill(&mut client, 1);
    client.disconnect();
    let drives: Vec<u32> = cluster.numbers().into_iter().map(|number| cluster.drive_of(number)).collect();
    let file = |cluster: &mut Cluster, number: u32| {
        let dir = cluster.member(number).dir.clone();
        (drives[number as usize], dir.join(format!("drive-{}.data", drives[number as usize])))
    };
    let files: Vec<(u32, PathBuf)> =
        cluster.numbers().into_iter().map(|number| file(&mut cluster, number)).collect();
    wait_for("what was written is old enough to leave the log", || {
        let has = |(_, file): &&(u32, PathBuf)| !find_blocks(file, &content(BAD, 1)).is_empty();
        let there = files.iter().filter(has).count();
        if there == 2 { Ok(()) } else { Err(format!("it lies on {there} drives")) }
    });
    cluster.numbers().into_iter().for_each(|number| cluster.member(number).stop());
    let damaged: Vec<u32> =
        files.iter().filter(|(_, file)| flip_block(file, BAD, 1) > 0).map(|(drive, _)| *drive).collect();
    assert_eq!(damaged.len(), 2, "it lies on two drives");
    cluster.start_all();
    cluster.wait_until_served("v");
    let drive = damaged[0];
    cluster.weft(&["drive", "remove", &drive.to_string(), "--no-wait"]);
    let partial = |cluster: &mut Cluster| {
        let stats = cluster.numbers().into_iter().map(|number| cluster.member(number).json(&["stats"]));
        let stats: Result<Vec<serde_json::Value>, String> = stats.collect();
        let count = |stats: &serde_json::Value| stats["damage"]["copies_partial"].as_u64();
        stats.map(|stats| stats.iter().filter_map(count).sum::<u64>())
    };
    wait_for("what is good of its egroup has another copy", || match partial(&mut cluster)? {
        0 => Err("it has none".to_string()),
        _ => Ok(()),
    });
    let mut client = NbdClient::connect_patiently(&socket, "v");
    only_these_fail(&mut client, &(BAD..BAD + 1));
    client.write((BAD * BLOCK) as u64, &content(BAD, 1)).expect("a write works");
    only_these_fail(&mut client, &(0..0));
    client.disconnect();
}

/// Writes, and kills the node while the log has what no egroup has yet.
fn killed_node(scratch: &Scratch, arguments: &[&str]) {
    let node = Node::start(&scratch.file("node"), arguments);
    node.export_new("v", "8M", &scratch.socket("v"));
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    fill(&mut client, 1);
    node.kill();
}

#[test]
fn with_two_copies_a_flip_in_one_log_loses_nothing() {
    let scratch = Scratch::new("flip-log-rf2");
    let arguments = ["--drives", "2", "--drive-size", "256M"];
    killed_node(&scratch, &arguments);
    let log = scratch.file("node").join("drive-0.log");
    for block in [16, 400, BLOCKS - 1] {
        assert!(flip_block(&log, block, 1) > 0, "the log holds block {block}");
    }
    let node = Node::start(&scratch.file("node"), &arguments);
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    for block in 0..BLOCKS {
        let bytes = read_block(&mut client, block).expect("the other log answers");
        assert!(bytes == content(block, 1), "block {block} is as it was written");
    }
    client.disconnect();
    node.stop();
}

#[test]
fn with_one_copy_a_flip_in_the_log_costs_the_blocks_of_that_write_only() {
    let scratch = Scratch::new("flip-log-rf1");
    let arguments = ["--drive-size", "256M"];
    killed_node(&scratch, &arguments);
    assert!(flip_block(&scratch.file("node").join("drive-0.log"), 400, 1) > 0, "the log holds the block");
    // Sixteen blocks were written at once.
    let lost = 400..416;
    let node = Node::start(&scratch.file("node"), &arguments);
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    only_these_fail(&mut client, &lost);
    node.wait_for_log("a write of 16 blocks from block 400");
    let damage = node.json(&["stats"])["damage"].clone();
    assert_eq!(damage["writes_lost"], 1, "it is counted: {damage}");
    assert!(node.weft(&["status"]).contains("damaged in every log"), "it is told");
    client.disconnect();
    // A clean stop drains the log.
    node.stop();
    let checked =
        crate::support::weft_output(&["check", scratch.file("node").to_str().expect("a plain name")]);
    assert_eq!(checked.status.code(), Some(1), "the offline check finds it");
    let told = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(told.contains("damaged in the log, and is lost"), "and knows what it was: {told}");
    let node = Node::start(&scratch.file("node"), &arguments);
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    only_these_fail(&mut client, &lost);
    // Writing it again heals it.
    for block in lost.clone() {
        client.write((block * BLOCK) as u64, &content(block, 1)).expect("a write works");
    }
    for block in 0..BLOCKS {
        assert!(read_block(&mut client, block).expect("all is good again") == content(block, 1));
    }
    client.disconnect();
    node.stop();
}

#[test]
fn with_one_copy_a_flip_in_what_the_log_says_of_itself_is_never_answered_with_wrong_data() {
    let scratch = Scratch::new("flip-frame-rf1");
    let arguments = ["--drive-size", "256M"];
    killed_node(&scratch, &arguments);
    let log = scratch.file("node").join("drive-0.log");
    // What says which blocks of which vDisk follow: of those nobody knows any more where they went.
    let at = find_blocks(&log, &content(400, 1))[0];
    let bytes = std::fs::read(&log).expect("the log can be read");
    let is_header = |at: &u64| bytes[*at as usize..].starts_with(b"WfLG");
    let header = (0..=at).rev().step_by(BLOCK).find(is_header).expect("its frame has a header");
    flip_bit(&log, header + 40);
    // The node itself comes up and says what it cannot serve.
    let node = Node::start(&scratch.file("node"), &arguments);
    if let Ok(mut client) = NbdClient::connect(&scratch.socket("v"), "v") {
        for block in 0..BLOCKS {
            if let Ok(bytes) = read_block(&mut client, block) {
                assert!(bytes == content(block, 1), "block {block}: wrong data is never answered");
            }
        }
    }
    let told = format!("{}{}", node.weft(&["vdisk", "show", "v"]), node.log_text());
    assert!(told.contains("lost") || told.contains("damage"), "the trouble is told: {told}");
    // Some of what is in the way of an opening passes.
    wait_until("it is tried again", || node.log_text().matches("a vDisk cannot be served").count() > 2);
    // And deleting the vDisk is still possible.
    node.weft(&["vdisk", "rm", "v", "--force"]);
    node.stop();
}

#[test]
fn what_could_not_be_opened_is_served_and_exported_when_what_was_in_the_way_has_passed() {
    let scratch = Scratch::new("flip-passes");
    let arguments = ["--drive-size", "256M"];
    stopped_node(&scratch, &arguments);
    let data = scratch.file("node").join("drive-0.data");
    assert!(flip_pages(&data) > 0, "there is a map");
    let node = Node::start(&scratch.file("node"), &arguments);
    wait_until("it cannot be served", || node.weft(&["vdisk", "show", "v"]).contains("failed"));
    flip_pages(&data);
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    for block in 0..BLOCKS {
        assert!(
            read_block(&mut client, block) == Ok(content(block, 1).to_vec()),
            "block {block} is what it was"
        );
    }
    client.disconnect();
    node.stop();
}
