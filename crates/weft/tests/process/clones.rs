//! Clones of snapshots, and rolling back, with real nodes.

use crate::support::cluster::{Cluster, Options};
use crate::support::nbd::NbdClient;
use crate::support::{Node, PATIENCE, Scratch, expect, nbd_uri, step, tool, write};
use std::path::Path;
use std::sync::mpsc::channel;

#[test]
fn clones_begin_as_their_snapshot_and_keep_it() {
    let scratch = Scratch::new("clones");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "512M"]);
    let golden = scratch.socket("golden");
    node.export_new("golden", "64M", &golden);
    let golden = nbd_uri(&golden, "golden");
    write(&golden, 1, "0 16M");
    node.weft(&["snapshot", "create", "golden", "ready"]);
    write(&golden, 9, "0 64M");
    let free = node.free_bytes();
    let made = node.weft(&["clone", "golden@ready", "web", "--count", "20"]);
    assert!(made.contains("made 20 vDisks, web-1 to web-20"), "{made}");
    assert!(node.free_bytes() + (4 << 20) > free, "clones take no space");
    let (one, two) = (scratch.socket("one"), scratch.socket("two"));
    let (one, two) = (node.export("web-1", &one), node.export("web-2", &two));
    expect(&one, 1, "0 16M");
    expect(&one, 0, "16M 48M");
    // A part of a block, a whole one, and a hole in what is the origin's.
    write(&one, 2, "100 200");
    write(&one, 3, "8M 1M");
    tool(&["qemu-io", "-f", "raw", "-c", "discard 4M 1M", &one]);
    let check = |uri: &str| {
        for (pattern, range) in [
            (1, "0 100"),
            (2, "100 200"),
            (1, "300 2M"),
            (0, "4M 1M"),
            (1, "5M 3M"),
            (3, "8M 1M"),
            (1, "9M 7M"),
        ] {
            expect(uri, pattern, range);
        }
    };
    check(&one);
    expect(&two, 1, "0 16M");
    expect(&golden, 9, "0 64M");

    step("a clone of the clone");
    node.weft(&["snapshot", "create", "web-1", "s"]);
    write(&one, 4, "0 16M");
    node.weft(&["clone", "web-1@s", "child"]);
    let child = scratch.socket("child");
    let child = node.export("child", &child);
    check(&child);

    step("what clones read from stays");
    let kept = node.refused(&["snapshot", "rm", "golden@ready"]);
    assert!(kept.contains("clone") && kept.contains("weft vdisk rm"), "{kept}");
    let kept = node.refused(&["vdisk", "rm", "golden", "--force", "--with-snapshots"]);
    assert!(kept.contains("clone"), "{kept}");
    let taken = node.refused(&["clone", "golden@ready", "web-3"]);
    assert!(taken.contains("exists already"), "{taken}");
    let unknown = node.refused(&["clone", "golden@none", "x"]);
    assert!(unknown.contains("weft snapshot ls"), "{unknown}");

    let dir = node.dir.clone();
    node.stop();
    let node = Node::start(&dir, &[]);
    check(&child);
    expect(&two, 1, "0 16M");
    for name in (1..=20).map(|number| format!("web-{number}")).filter(|name| name != "web-1") {
        node.weft(&["vdisk", "rm", &name, "--force"]);
    }
    node.weft(&["vdisk", "rm", "child", "--force"]);
    node.weft(&["vdisk", "rm", "web-1", "--force", "--with-snapshots"]);
    node.weft(&["snapshot", "rm", "golden@ready"]);
    node.stop();
    let report = crate::support::weft_output(&["check", dir.to_str().expect("a plain name")]);
    assert!(report.status.success(), "{report:?}");
}

#[test]
fn rolling_back_makes_a_vdisk_what_it_was() {
    let scratch = Scratch::new("rollback");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "512M"]);
    let socket = scratch.socket("v");
    node.export_new("v", "64M", &socket);
    let uri = nbd_uri(&socket, "v");
    write(&uri, 1, "0 16M");
    node.weft(&["snapshot", "create", "v", "good"]);
    node.weft(&["vdisk", "resize", "v", "--size", "96M"]);
    write(&uri, 2, "8M 16M");
    node.weft(&["snapshot", "create", "v", "bad"]);
    write(&uri, 3, "0 4M");
    let used = node.refused(&["snapshot", "rollback", "v@good", "--discard-newer"]);
    assert!(used.contains("weft vdisk unexport v"), "{used}");
    node.weft(&["vdisk", "unexport", "v"]);
    let newer = node.refused(&["snapshot", "rollback", "v@good"]);
    assert!(newer.contains("v@bad") && newer.contains("--discard-newer"), "{newer}");
    node.weft(&["snapshot", "create", "v", "cloned"]);
    node.weft(&["clone", "v@cloned", "c"]);
    let cloned = node.refused(&["snapshot", "rollback", "v@good", "--discard-newer"]);
    assert!(cloned.contains("v@cloned"), "{cloned}");
    let there = node.json(&["snapshot", "ls"]).as_array().map(Vec::len);
    assert_eq!(there, Some(3), "none of them goes, if one has to stay");
    node.weft(&["vdisk", "rm", "c"]);
    let done = node.weft(&["snapshot", "rollback", "v@good", "--discard-newer"]);
    assert!(done.contains("v is what v@good is, 64 MiB"), "{done}");
    let uri = node.export("v", &socket);
    assert_eq!(tool(&["nbdinfo", "--size", &uri]).trim(), "67108864");
    expect(&uri, 1, "0 16M");
    expect(&uri, 0, "16M 48M");
    write(&uri, 5, "0 1M");
    node.kill();
    let node = Node::start(&scratch.file("node"), &[]);
    expect(&uri, 5, "0 1M");
    expect(&uri, 1, "1M 15M");
    node.weft(&["vdisk", "unexport", "v"]);
    node.weft(&["snapshot", "rollback", "v@good"]);
    let uri = node.export("v", &socket);
    expect(&uri, 1, "0 16M");
    node.stop();
}

#[test]
fn in_a_cluster_any_node_serves_clones_and_the_next_owner_rolls_back() {
    let mut cluster = Cluster::start("cluster-clones", Options::default());
    cluster.create("v", "64M");
    let sockets: Vec<_> = cluster.numbers().into_iter().map(|number| cluster.export("v", number)).collect();
    let owner = cluster.wait_until_served("v");
    let one = cluster.other_than(&[owner]);
    let uri = nbd_uri(&sockets[one as usize], "v");
    write(&uri, 1, "0 16M");
    cluster.member(one).weft(&["snapshot", "create", "v", "s"]);
    write(&uri, 2, "0 16M");
    cluster.member(one).weft(&["clone", "v@s", "c", "--count", "30"]);
    cluster.member(one).weft(&["clone", "v@s", "x-30"]);
    let taken = cluster.member(one).try_weft(&["clone", "v@s", "x", "--count", "30"]);
    assert_eq!(taken.status.code(), Some(2), "one of the names is taken");
    let all = cluster.member(one).weft(&["vdisk", "ls"]);
    assert!(!all.contains("x-1 "), "of the others none is made: {all}");
    cluster.member(one).weft(&["vdisk", "rm", "x-30"]);
    let mut exported = Vec::new();
    for name in ["c-1", "c-30"] {
        cluster.wait_until_served(name);
        for number in cluster.numbers() {
            exported.push((number, nbd_uri(&cluster.export(name, number), name)));
        }
    }
    exported.iter().for_each(|(_, uri)| expect(uri, 1, "0 16M"));
    write(&exported[0].1, 3, "1M 1M");

    step("the owner of the origin is killed");
    cluster.member(owner).kill();
    cluster.wait_for_owner("v", |now| now != owner);
    for (_, uri) in exported.iter().filter(|(number, _)| *number != owner) {
        expect(uri, 1, "2M 14M");
    }
    let kept = cluster.member(one).try_weft(&["snapshot", "rm", "v@s"]);
    assert!(!kept.status.success(), "what clones read from stays");
    let forced = ["snapshot", "rollback", "v@s", "--force"];
    assert!(cluster.member(one).weft(&forced).contains("v is what v@s is"));
    expect(&uri, 1, "0 16M");
    cluster.start_all();
    cluster.wait_until_whole();
    expect(&nbd_uri(&sockets[owner as usize], "v"), 1, "0 16M");
    for name in (1..=30).map(|number| format!("c-{number}")) {
        cluster.member(one).weft(&["vdisk", "rm", &name, "--force"]);
    }
    cluster.member(one).weft(&["snapshot", "rm", "v@s"]);
    cluster.cut_and_check();
}

/// As many reads of 1 MiB at once as one connection may have open, from the start of the vDisk on.
fn read_much(socket: &Path, name: &str) -> NbdClient {
    let mut client = NbdClient::connect_patiently(socket, name);
    for index in 0..64 {
        client.submit_read(index << 20, 1 << 20).expect("the connection holds");
    }
    client
}

/// Takes all answers; false if they do not come.
fn all_answered(mut client: NbdClient) -> bool {
    let (done, answered) = channel();
    std::thread::spawn(move || {
        while client.in_flight() > 0 {
            client.next_reply().expect("the connection holds");
        }
        client.disconnect();
        done.send(())
    });
    answered.recv_timeout(PATIENCE).is_ok()
}

#[test]
fn what_owners_ask_each_other_does_not_wait_for_clients_nor_these_for_each_other() {
    let mut cluster = Cluster::start("cluster-crosswise", Options::default());
    // z at one node, its clone y at another, and y's clone x at the first: a read of x goes there, back, and there again.
    for (name, size) in [("z", "64M"), ("w", "64M")] {
        cluster.create(name, size);
        let socket = cluster.export(name, 1);
        cluster.wait_until_served(name);
        write(&nbd_uri(&socket, name), 7, "0 64M");
    }
    for (origin, clone) in [("z", "y"), ("y", "x")] {
        cluster.weft(&["snapshot", "create", origin, "s"]);
        cluster.weft(&["clone", &format!("{origin}@s"), clone]);
        cluster.wait_until_served(clone);
    }
    let socket = cluster.export("x", 1);
    for (name, node) in [("z", 0), ("y", 1), ("x", 0), ("w", 0)] {
        if cluster.owner(name) != Ok(Some(node)) {
            cluster.weft(&["vdisk", "move", name, "--to", &node.to_string()]);
        }
        cluster.wait_for_owner(name, |now| now == node);
    }
    step("all the reads that a connection may have open");
    assert!(all_answered(read_much(&socket, "x")), "an origin was waited for that could not be asked");
    expect(&nbd_uri(&socket, "x"), 7, "0 64M");

    step("a vDisk that has to wait for its limit, and another one on the same way");
    cluster.weft(&["vdisk", "set", "x", "--bw-limit", "1M"]);
    cluster.wait_until_whole();
    let slow = read_much(&socket, "x");
    let other = cluster.socket("w", 1);
    let mut quick = NbdClient::connect_patiently(&other, "w");
    for _ in 0..100 {
        quick.submit_read(0, 4096).expect("the connection holds");
        quick.next_reply().expect("the connection holds");
    }
    quick.disconnect();
    cluster.weft(&["vdisk", "set", "x", "--bw-limit", "none"]);
    assert!(all_answered(slow), "a limit that is taken away holds nobody");
}
