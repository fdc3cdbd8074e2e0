//! Numbers of copies changed while clients work, with real nodes: no client sees an error, nothing acknowledged is lost whenever
//! the process is killed, and what is said to have copies survives the loss of a drive or a node.

use crate::support::checker::{BLOCK, Checker};
use crate::support::cluster::{Cluster, Load, Options, wait_for};
use crate::support::nbd::NbdClient;
use crate::support::{Node, PATIENCE, Scratch, step};
use serde_json::Value;
use std::time::{Duration, Instant};

const DEPTH: usize = 16;
const VDISK_BYTES: usize = 64 << 20;

fn refused(node: &Node, arguments: &[&str]) -> String {
    let output = node.try_weft(arguments);
    assert_eq!(output.status.code(), Some(2), "weft {arguments:?}: {output:?}");
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(line.lines().count(), 1, "weft {arguments:?}: {line}");
    line
}

/// Whether the owner says that everything has so many copies.
fn has_copies(shown: &Value, factor: u64) -> bool {
    let copies = &shown["usage"]["copies"];
    shown["factor"] == factor && copies["wanted"] == factor && copies["reached"] == true
}

/// Takes the answers that are on their way, then reads everything.
fn verify(checker: &mut Checker, client: &mut NbdClient) {
    while client.in_flight() > 0 {
        checker.take_reply(client).expect("the connection holds");
    }
    checker.verify_all(client);
}

/// Works on until it is so.
fn load_until_reached(node: &Node, client: &mut NbdClient, checker: &mut Checker, factor: u64) {
    let deadline = Instant::now() + 2 * PATIENCE;
    loop {
        checker.load(client, DEPTH, 300).expect("the connection holds");
        let shown = node.json(&["vdisk", "show", "v"]);
        if has_copies(&shown, factor) {
            return;
        }
        assert!(Instant::now() < deadline, "there are never {factor} copies: {shown:#}\n{}", node.log_text());
    }
}

#[test]
fn copies_come_and_go_under_load_and_kills() {
    let scratch = Scratch::new("factors");
    let (dir, socket) = (scratch.file("node"), scratch.socket("v"));
    let mut node = Node::start(&dir, &["--drives", "3", "--drive-size", "512M"]);
    node.weft(&["vdisk", "create", "v", "--size", &VDISK_BYTES.to_string(), "--rf", "1"]);
    node.export("v", &socket);
    let mut checker = Checker::new(VDISK_BYTES / BLOCK, 3);
    let mut client = NbdClient::connect_patiently(&socket, "v");
    checker.load(&mut client, DEPTH, 3000).expect("the connection holds");
    // When the process is killed: so long after the order.
    for (factor, kill_after_ms) in [(2, None), (3, Some(150)), (1, Some(40)), (2, Some(400))] {
        let said = node.weft(&["vdisk", "set", "v", "--rf", &factor.to_string()]);
        assert!(said.contains(&format!("copies {factor} (its own word)")), "{said}");
        if let Some(after_ms) = kill_after_ms {
            let until = Instant::now() + Duration::from_millis(after_ms);
            while Instant::now() < until {
                checker.load(&mut client, DEPTH, 20).expect("the connection holds while the node lives");
            }
            node.kill();
            checker.drain(&mut client);
            checker.connection_lost();
            node = Node::start(&dir, &[]);
            client = NbdClient::connect_patiently(&socket, "v");
            verify(&mut checker, &mut client);
        }
        load_until_reached(&node, &mut client, &mut checker, factor);
        step(&format!("{factor} copies of everything, {} writes acknowledged so far", checker.acknowledged));
        let text = node.weft(&["vdisk", "show", "v"]);
        assert!(text.contains(&format!("{factor} of everything")), "{text}");
    }
    verify(&mut checker, &mut client);
    let line = refused(&node, &["vdisk", "set", "v", "--rf", "4"]);
    assert!(line.contains("1, 2, 3"), "{line}");

    step("a drive is gone for good");
    node.kill();
    checker.drain(&mut client);
    checker.connection_lost();
    for area in ["log", "data"] {
        std::fs::remove_file(dir.join(format!("drive-1.{area}"))).expect("the drive is a file");
    }
    let node = Node::start(&dir, &[]);
    let mut client = NbdClient::connect_patiently(&socket, "v");
    verify(&mut checker, &mut client);
    let line = refused(&node, &["vdisk", "set", "v", "--rf", "3"]);
    assert!(line.contains("3 copies need 3 drives") && line.contains("there are 2"), "{line}");
    assert_eq!(node.json(&["vdisk", "show", "v"])["factor"], 2, "nothing was done");
    checker.load(&mut client, DEPTH, 1000).expect("writes go on");
    verify(&mut checker, &mut client);
    client.disconnect();
    node.stop();
}

#[test]
fn a_container_says_how_many_copies_its_vdisks_have() {
    let scratch = Scratch::new("factor-containers");
    let dir = scratch.file("node");
    let node = Node::start(&dir, &["--drives", "3", "--drive-size", "512M"]);
    node.weft(&["container", "create", "c"]);
    for (name, own) in [("a", &[][..]), ("b", &["--rf", "1"])] {
        let mut line = vec!["vdisk", "create", name, "--size", "16M", "--container", "c"];
        line.extend(own);
        node.weft(&line);
    }
    let factor = |node: &Node, name: &str| {
        let shown = node.json(&["vdisk", "show", name]);
        (
            shown["factor"].as_u64().expect("a number"),
            shown["factor_from"].as_str().unwrap_or("?").to_string(),
        )
    };
    let (own, container) = ("vdisk".to_string(), "container".to_string());
    assert_eq!(factor(&node, "a"), (2, container.clone()), "what the node gave");
    assert_eq!(factor(&node, "b"), (1, own.clone()));
    node.weft(&["container", "set", "c", "--rf", "3"]);
    assert_eq!(factor(&node, "a"), (3, container.clone()));
    assert_eq!(factor(&node, "b"), (1, own));
    wait_for("it has its copies", || {
        let shown = node.json(&["vdisk", "show", "a"]);
        if has_copies(&shown, 3) { Ok(()) } else { Err(format!("{shown:#}")) }
    });
    node.weft(&["vdisk", "set", "b", "--rf", "inherit"]);
    assert_eq!(factor(&node, "b"), (3, container.clone()));
    node.weft(&["container", "create", "d", "--rf", "2"]);
    node.weft(&["vdisk", "set", "b", "--container", "d"]);
    assert_eq!(factor(&node, "b"), (2, container.clone()));
    node.kill();
    let node = Node::start(&dir, &[]);
    assert_eq!(factor(&node, "a"), (3, container.clone()));
    assert_eq!(factor(&node, "b"), (2, container.clone()));
    node.weft(&["container", "set", "c", "--rf", "inherit"]);
    assert_eq!(factor(&node, "a"), (2, container), "what the node gave when it was made");
    for name in ["a", "b"] {
        wait_for("it has its copies", || {
            let shown = node.json(&["vdisk", "show", name]);
            if has_copies(&shown, 2) { Ok(()) } else { Err(format!("{shown:#}")) }
        });
    }
    node.stop();
}

#[test]
fn in_a_cluster_a_second_copy_outlives_a_node() {
    let mut cluster = Cluster::start("cluster-factors", Options::default());
    let size = VDISK_BYTES.to_string();
    cluster.weft(&["vdisk", "create", "v", "--size", &size, "--rf", "1"]);
    let owner = cluster.wait_until_served("v");
    let (near, far) = (cluster.export("v", owner), cluster.other_than(&[owner]));
    let socket = cluster.export("v", far);
    let load = Load::start(Checker::new(VDISK_BYTES / BLOCK, 5), &near);
    load.go_on(2000);
    load.tell_pause("one copy");
    let wait_until_reached = |cluster: &mut Cluster, asked: u32, factor: u64| {
        wait_for("there are so many copies", || {
            let shown = cluster.member(asked).json(&["vdisk", "show", "v"])?;
            if has_copies(&shown, factor) { Ok(()) } else { Err(format!("{shown:#}")) }
        });
    };
    // Asked of a node that does not serve it.
    cluster.member(far).weft(&["vdisk", "set", "v", "--rf", "3"]);
    load.go_on(200);
    cluster.member(far).weft(&["vdisk", "set", "v", "--rf", "2"]);
    wait_until_reached(&mut cluster, far, 2);
    load.tell_pause("two copies are there");
    load.go_on(500);
    let mut checker = load.stop();

    step("the node that had the only copy is killed");
    cluster.member(owner).kill();
    cluster.wait_for_owner("v", |now| now != owner);
    let mut client = NbdClient::connect_patiently(&socket, "v");
    verify(&mut checker, &mut client);
    checker.load(&mut client, DEPTH, 1000).expect("writes go on");
    verify(&mut checker, &mut client);
    client.disconnect();
    cluster.start_all();
    cluster.wait_until_whole();
    wait_until_reached(&mut cluster, far, 2);
    cluster.cut_and_check();
}
