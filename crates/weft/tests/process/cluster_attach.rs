//! Block devices in a cluster: every node knows where a vDisk is attached, and a node that comes back gives up what it has lost.

use crate::support::cluster::{Cluster, Options, wait_for};
use crate::support::{can_attach, step};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

fn refused(cluster: &mut Cluster, node: u32, arguments: &[&str]) -> String {
    let output = cluster.member(node).try_weft(arguments);
    assert!(!output.status.success(), "{arguments:?} is refused by node {node}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The node that has it, as this one says.
fn attached_to(cluster: &mut Cluster, node: u32, name: &str) -> Option<u64> {
    let command = if name.contains('@') { "snapshot" } else { "vdisk" };
    let shown = cluster.member(node).json(&[command, "show", name]).expect("it is shown");
    shown["attached"]["node"].as_u64()
}

/// As the kernel wants it for direct I/O.
#[repr(align(4096))]
struct Page([u8; 4096]);

/// Past the page cache, which would answer reads by itself.
fn open(device: &str) -> File {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_DIRECT);
    options.open(device).expect("the device is there")
}

fn wait_until_detached(cluster: &mut Cluster, node: u32) {
    wait_for("no record tells of a device", || match attached_to(cluster, node, "v") {
        None => Ok(()),
        Some(node) => Err(format!("it is attached to node {node}")),
    });
}

#[test]
fn every_node_knows_where_it_is_attached() {
    if !can_attach() {
        return;
    }
    let mut cluster = Cluster::start("cluster-attach", Options::default());
    cluster.create("v", "64M");
    cluster.wait_until_served("v");
    let [one, other] = [cluster.numbers()[0], cluster.numbers()[1]];
    cluster.member(other).weft(&["snapshot", "create", "v", "s"]);
    cluster.member(one).weft(&["vdisk", "attach", "v"]);
    for node in [one, other] {
        wait_for("it is known where it is attached", || match attached_to(&mut cluster, node, "v") {
            Some(told) if told == u64::from(one) => Ok(()),
            told => Err(format!("node {node} says {told:?}")),
        });
    }

    step("nothing happens to it behind its user's back");
    let place = format!("attached to node {one}");
    for arguments in [
        &["vdisk", "attach", "v"][..],
        &["vdisk", "detach", "v"],
        &["vdisk", "rm", "v", "--force", "--with-snapshots"],
        &["snapshot", "rollback", "v@s", "--force", "--discard-newer"],
        &["node", "remove", &one.to_string()],
    ] {
        let words = refused(&mut cluster, other, arguments);
        assert!(words.contains(&place), "{arguments:?}: {words}");
    }
    cluster.member(one).weft(&["vdisk", "detach", "v"]);
    wait_until_detached(&mut cluster, other);
    cluster.member(other).weft(&["snapshot", "rollback", "v@s"]);

    step("a snapshot may be attached to several, and stays as long");
    for node in [one, other] {
        cluster.member(node).weft(&["vdisk", "attach", "v@s"]);
    }
    cluster.member(other).weft(&["vdisk", "detach", "v@s"]);
    let words = refused(&mut cluster, other, &["snapshot", "rm", "v@s"]);
    assert!(words.contains(&place), "{words}");
    cluster.member(one).weft(&["vdisk", "detach", "v@s"]);

    step("a node that ends leaves nothing in the records");
    cluster.member(one).weft(&["vdisk", "attach", "v"]);
    cluster.member(one).kill();
    cluster.member(one).start();
    wait_until_detached(&mut cluster, other);

    step("what a silent node had is given to another");
    let other = cluster.wait_until_served("v");
    let one = cluster.other_than(&[other]);
    let device = cluster.member(one).weft(&["vdisk", "attach", "v"]);
    let file = open(device.trim());
    cluster.member(one).suspend();
    // The kernel has it, and the node takes it up when it goes on.
    let late = std::thread::spawn(move || file.write_at(&Page([1; 4096]).0, 0));
    wait_for("the node counts as gone", || {
        let nodes = cluster.member(other).json(&["node", "ls"])?;
        let mut all = nodes.as_array().ok_or("`node ls` gives no list")?.iter();
        let is_gone = all.any(|node| node["node"] == one && node["alive"] == false);
        if is_gone { Ok(()) } else { Err(nodes.to_string()) }
    });
    let told = cluster.member(other).weft(&["vdisk", "detach", "v"]);
    assert!(told.contains("does not live"), "{told}");
    let device = cluster.member(other).weft(&["vdisk", "attach", "v"]);
    let file = open(device.trim());
    file.write_at(&Page([2; 4096]).0, 0).expect("its new user writes");
    cluster.member(one).resume();
    late.join().expect("it does not panic").expect_err("the device of before has nothing to write to");
    let mut found = Page([0; 4096]);
    file.read_exact_at(&mut found.0, 0).expect("it is read");
    assert!(found.0 == [2; 4096], "it is what its present user wrote");
    drop(file);
    wait_for("its own device is gone for the node of before", || match attached_to(&mut cluster, one, "v") {
        Some(node) if node == u64::from(other) => Ok(()),
        node => Err(format!("it tells of {node:?}")),
    });
    cluster.member(other).weft(&["vdisk", "detach", "v"]);
    cluster.cut_and_check();
}
