//! A drive that is put back as it was before a vDisk was deleted, as one is that loses what it had acknowledged: what it still holds of
//! that vDisk goes, and nothing else does.

use crate::support::checker::{BLOCK, content};
use crate::support::nbd::NbdClient;
use crate::support::{Node, Scratch, wait_until};
use std::path::{Path, PathBuf};

const BLOCKS: usize = 512;
const ARGUMENTS: [&str; 4] = ["--drives", "2", "--drive-size", "256M"];

fn write_all(socket: &Path, name: &str, version: u64) {
    let mut client = NbdClient::connect_patiently(socket, name);
    for block in 0..BLOCKS {
        client.write((block * BLOCK) as u64, &content(block, version)).expect("a write works");
    }
    client.disconnect();
}

fn read_all(socket: &Path, name: &str, version: u64) {
    let mut client = NbdClient::connect_patiently(socket, name);
    for block in 0..BLOCKS {
        let bytes = client.read((block * BLOCK) as u64, BLOCK as u32).expect("a read works");
        assert!(bytes == content(block, version), "block {block} is as it was written");
    }
    client.disconnect();
}

#[test]
fn what_an_old_drive_holds_of_a_deleted_vdisk_goes() {
    let scratch = Scratch::new("old-drive");
    let dir = scratch.file("node");
    let node = Node::start(&dir, &ARGUMENTS);
    for name in ["gone", "kept"] {
        node.export_new(name, "8M", &scratch.socket(name));
        write_all(&scratch.socket(name), name, 1);
    }
    node.stop();
    let files = ["drive-1.data", "drive-1.log"];
    let aside = |name: &str| scratch.file(&format!("{name}.aside"));
    for name in files {
        std::fs::copy(dir.join(name), aside(name)).expect("a drive is a file");
    }
    let node = Node::start(&dir, &ARGUMENTS);
    node.weft(&["vdisk", "rm", "gone", "--force"]);
    node.stop();
    for name in files {
        std::fs::copy(aside(name), dir.join(name)).expect("a drive is a file");
    }

    let node = Node::start(&dir, &ARGUMENTS);
    node.wait_for_log("something of a vDisk that was deleted");
    let free = || -> Vec<u64> {
        let stats = node.json(&["stats"]);
        let drives = stats["drives"].as_array().expect("statistics list the drives").iter();
        drives.map(|drive| drive["free_bytes"].as_u64().expect("it is known")).collect()
    };
    wait_until("both drives hold the same again", || free()[0] == free()[1]);
    read_all(&scratch.socket("kept"), "kept", 1);
    node.stop();
    // Once is enough: it has gone for good.
    let node = Node::start(&dir, &ARGUMENTS);
    assert_eq!(node.log_text().matches("something of a vDisk that was deleted").count(), 1);
    node.stop();
}

/// The directory of a node that was stopped, with a vDisk `v` full of this version.
fn filled(scratch: &Scratch, name: &str, version: u64) -> PathBuf {
    let dir = scratch.file(name);
    let node = Node::start(&dir, &ARGUMENTS);
    let socket = scratch.socket(&format!("{name}-v"));
    node.export_new("v", "8M", &socket);
    write_all(&socket, "v", version);
    node.stop();
    dir
}

#[test]
fn another_nodes_drive_of_the_same_number_is_not_taken_for_its_own() {
    let scratch = Scratch::new("other-drive");
    let (own, other) = (filled(&scratch, "own", 5), filled(&scratch, "other", 9));
    let files = ["drive-0.data", "drive-0.log"];
    for name in files {
        std::fs::rename(own.join(name), scratch.file(name)).expect("it can be put aside");
        std::fs::copy(other.join(name), own.join(name)).expect("a drive is a file");
    }
    let reads_well = || read_all(&scratch.socket("own-v"), "v", 5);
    let node = Node::start(&own, &ARGUMENTS);
    node.wait_for_log("of another node or of another life");
    assert!(node.ready.contains("drives up 1 of 2"), "{}", node.ready);
    reads_well();
    node.stop();

    for name in files {
        std::fs::rename(scratch.file(name), own.join(name)).expect("it can be put back");
    }
    let node = Node::start(&own, &ARGUMENTS);
    assert!(node.ready.contains("drives up 2 of 2"), "{}", node.ready);
    reads_well();
    node.stop();

    // Nor is what a node knows of its drives taken for another's.
    std::fs::rename(own.join("config.redb"), scratch.file("config.redb")).expect("it can be put aside");
    std::fs::copy(other.join("config.redb"), own.join("config.redb")).expect("it is a file");
    if let Ok(node) = Node::try_start(&own, &ARGUMENTS) {
        assert!(node.ready.contains("drives up 0 of 2"), "{}", node.ready);
        node.kill();
    }
}
