//! A full pool: writes end with ENOSPC, everything else goes on, and nothing is lost.

use crate::support::checker::{BLOCK, content};
use crate::support::nbd::{ENOSPC, NbdClient};
use crate::support::{Node, Scratch, step, wait_until};

/// Blocks of one write.
const CHUNK: usize = 64;

fn chunk(first: usize, version: u64) -> Vec<u8> {
    (first..first + CHUNK).flat_map(|block| content(block, version)).collect()
}

fn check_chunk(client: &mut NbdClient, first: usize, version: u64) {
    let bytes = client.read((first * BLOCK) as u64, (CHUNK * BLOCK) as u32).expect("reads go on");
    assert!(bytes == chunk(first, version), "the chunk at block {first} is as it was acknowledged");
}

/// Writes chunk after chunk until the pool is full; where it stopped.
fn fill(client: &mut NbdClient, chunks: usize) -> usize {
    for number in 0..chunks {
        match client.write((number * CHUNK * BLOCK) as u64, &chunk(number * CHUNK, 1)) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, ENOSPC, "a full pool is told as such");
                return number;
            }
        }
    }
    panic!("the vDisk is larger than the pool, so it cannot take everything");
}

#[test]
fn a_full_pool_refuses_writes_and_loses_nothing() {
    let scratch = Scratch::new("full");
    let arguments = ["--drive-size", "192M"];
    let dir = scratch.file("node");
    let mut node = Node::start(&dir, &arguments);
    node.export_new("v", "1G", &scratch.socket("v"));
    node.export_new("w", "16M", &scratch.socket("w"));
    let mut other = NbdClient::connect_patiently(&scratch.socket("w"), "w");
    other.write(0, &chunk(0, 9)).expect("there is room at first");
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    let full_at = fill(&mut client, (1 << 30) / (CHUNK * BLOCK));
    step(&format!("full after {full_at} writes of {} KiB", CHUNK * BLOCK / 1024));
    assert!(full_at > 100, "most of the drive could be used");
    let no_room = |node: &Node| {
        let status = node.json(&["status"]);
        let free = status["drives"][0]["free_bytes"].as_u64().expect("its shard answers");
        free < 4 << 20
            && status["trouble"].to_string().contains("hardly any room for data is left on drive 0")
    };
    wait_until("the status tells that the drive is full", || no_room(&node));
    for number in 0..full_at {
        check_chunk(&mut client, number * CHUNK, 1);
    }
    check_chunk(&mut other, 0, 9);

    step("everything reads back; a kill while full");
    // A kill while full, and a restart: still the same.
    node.kill();
    node = Node::start(&dir, &arguments);
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    for number in 0..full_at {
        check_chunk(&mut client, number * CHUNK, 1);
    }

    step("everything is there again; trims");
    // Trimming half makes room, in the background.
    for number in 0..full_at / 2 {
        client.trim((number * CHUNK * BLOCK) as u64, (CHUNK * BLOCK) as u32).expect("trims go on");
    }
    let again = full_at / 4;
    for number in 0..again {
        wait_until("writes go on after trims", || {
            match client.write((number * CHUNK * BLOCK) as u64, &chunk(number * CHUNK, 2)) {
                Ok(()) => true,
                Err(error) => {
                    assert_eq!(error, ENOSPC, "nothing but a full pool stops a write");
                    false
                }
            }
        });
    }
    step("writes went on");
    for number in 0..full_at {
        match number {
            _ if number < again => check_chunk(&mut client, number * CHUNK, 2),
            _ if number >= full_at / 2 => check_chunk(&mut client, number * CHUNK, 1),
            _ => {
                let bytes = client
                    .read((number * CHUNK * BLOCK) as u64, (CHUNK * BLOCK) as u32)
                    .expect("reads go on");
                assert!(bytes.iter().all(|byte| *byte == 0), "what was trimmed reads as zeros");
            }
        }
    }

    step("deletes the vDisk");
    // Deleting the vDisk gives everything back.
    client.disconnect();
    node.weft(&["vdisk", "rm", "v", "--force"]);
    let mut other = NbdClient::connect_patiently(&scratch.socket("w"), "w");
    check_chunk(&mut other, 0, 9);
    wait_until("the space of a deleted vDisk is free", || node.free_bytes() > 96 << 20);
    assert!(!no_room(&node), "and is told");
    for number in 1..64 {
        other.write((number * CHUNK * BLOCK) as u64, &chunk(number * CHUNK, 3)).expect("there is room again");
    }
    other.disconnect();
    node.stop();
    crate::support::run_weft(&["check", dir.to_str().expect("a plain name")]);
}
