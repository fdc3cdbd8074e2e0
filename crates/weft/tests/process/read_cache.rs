//! The read cache of a real node: what is read again comes from memory, its size can be changed while clients read, and
//! a vDisk can be warmed.

use crate::support::checker::{BLOCK, content};
use crate::support::nbd::NbdClient;
use crate::support::{Node, Scratch, counted_by_shards, step};
use serde_json::Value;

const BLOCKS: usize = 4096;

/// Blocks of one request.
const CHUNK: usize = 16;

fn chunk(first: usize) -> Vec<u8> {
    (first..first + CHUNK).flat_map(|block| content(block, 1)).collect()
}

fn read_all(client: &mut NbdClient) {
    for first in (0..BLOCKS).step_by(CHUNK) {
        let bytes = client.read((first * BLOCK) as u64, (CHUNK * BLOCK) as u32).expect("it can be read");
        assert!(bytes == chunk(first), "the chunk at block {first} is as it was written");
    }
}

/// What all shards have counted under this name.
fn counted(node: &Node, name: &str) -> u64 {
    counted_by_shards(&node.json(&["stats"]), name)
}

fn drive_reads(node: &Node) -> u64 {
    let stats = node.json(&["stats"]);
    let drives = stats["drives"].as_array().expect("drives are listed").clone();
    drives.iter().filter_map(|drive| drive["reads"].as_u64()).sum()
}

fn of_vdisk(node: &Node, name: &str) -> u64 {
    let stats = node.json(&["stats", "v"]);
    stats["vdisks"][0]["engine"][name].as_u64().unwrap_or_else(|| panic!("{name} is counted: {stats}"))
}

/// A node with a vDisk whose data is in egroups, and nothing of it in memory.
fn a_written_vdisk(scratch: &Scratch, arguments: &[&str]) -> (Node, NbdClient) {
    let dir = scratch.file("node");
    let node = Node::start(&dir, arguments);
    node.export_new("v", "32M", &scratch.socket("v"));
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    for first in (0..BLOCKS).step_by(CHUNK) {
        client.write((first * BLOCK) as u64, &chunk(first)).expect("there is room");
    }
    client.disconnect();
    // A clean stop drains everything.
    node.stop();
    let node = Node::start(&dir, arguments);
    let client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    (node, client)
}

#[test]
fn what_is_read_again_comes_from_memory_whose_size_can_be_changed() {
    let scratch = Scratch::new("read-cache");
    let arguments = ["--drive-size", "256M", "--shards", "2", "--read-cache", "64M"];
    let (node, mut client) = a_written_vdisk(&scratch, &arguments);
    let view = node.json(&["cache", "show"]);
    assert_eq!((view["bytes"].as_u64(), view["used_bytes"].as_u64()), (Some(64 << 20), Some(0)));

    step("three passes in sequence: from drives with read-ahead, kept by the second, from memory");
    let before = drive_reads(&node);
    read_all(&mut client);
    assert!(counted(&node, "ahead_used") > BLOCKS as u64 / 2, "streams are read ahead");
    assert!(
        drive_reads(&node) - before < (BLOCKS / CHUNK) as u64,
        "in larger pieces than the client asks for"
    );
    read_all(&mut client);
    let (reads, hits) = (drive_reads(&node), counted(&node, "cache_hits"));
    read_all(&mut client);
    assert_eq!(drive_reads(&node), reads, "the third pass asks no drive");
    assert_eq!(counted(&node, "cache_hits"), hits + BLOCKS as u64);
    assert!(of_vdisk(&node, "blocks_read_from_cache") >= BLOCKS as u64);
    assert_eq!(of_vdisk(&node, "reads_from_overlay"), 0, "a clean stop left nothing in the log");

    step("smaller, at once");
    let shrunk = node.json(&["cache", "resize", "2M"]);
    assert!(shrunk["used_bytes"].as_u64().is_some_and(|used| used <= 2 << 20), "{shrunk}");
    read_all(&mut client);
    assert!(drive_reads(&node) > reads, "most of it has to come from drives again");
    assert!(counted(&node, "cache_bytes") <= 2 << 20);

    step("none");
    node.weft(&["cache", "resize", "0"]);
    let (ahead, reads) = (counted(&node, "ahead_issued"), drive_reads(&node));
    read_all(&mut client);
    assert_eq!((counted(&node, "ahead_issued"), counted(&node, "cache_bytes")), (ahead, 0));
    assert!(drive_reads(&node) >= reads + (BLOCKS / CHUNK) as u64, "every read goes to a drive");
    assert_eq!(counted(&node, "cache_bytes_max"), 0);
    client.disconnect();
    node.stop();
}

#[test]
fn a_vdisk_is_warmed_and_more_than_the_machine_has_is_refused() {
    let scratch = Scratch::new("warm");
    let (node, mut client) = a_written_vdisk(&scratch, &["--drive-size", "256M"]);
    let warmed = node.json(&["vdisk", "warm", "v"]);
    assert_eq!((warmed["pages"].as_u64(), warmed["bytes"].as_u64()), (Some(4), Some(0)), "{warmed}");
    let warmed = node.json(&["vdisk", "warm", "v", "--data"]);
    let all = (BLOCKS * BLOCK) as u64;
    assert_eq!((warmed["bytes"].as_u64(), warmed["full"].as_bool()), (Some(all), Some(false)), "{warmed}");
    let reads = drive_reads(&node);
    read_all(&mut client);
    assert_eq!(drive_reads(&node), reads, "what is warm asks no drive");

    node.weft(&["cache", "resize", "0"]);
    node.weft(&["cache", "resize", "4M"]);
    let warmed = node.json(&["vdisk", "warm", "v", "--data"]);
    assert_eq!(warmed["full"], Value::Bool(true), "{warmed}");
    assert!(warmed["bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20 && bytes < 4 << 20), "{warmed}");

    for refused in [
        &["cache", "resize", "4096T"][..],
        &["cache", "resize", "much"],
        &["cache", "resize"],
        &["vdisk", "warm", "nobody"],
    ] {
        let output = node.try_weft(refused);
        assert_eq!(output.status.code(), Some(2), "{refused:?}: {output:?}");
    }
    client.disconnect();
    node.stop();
}
