//! The offline tools on nodes of a cluster that do not run: all of them together, and each alone.

use crate::support::checker::{BLOCK, Checker, content};
use crate::support::cluster::{Cluster, Load, Options, wait_for};
use crate::support::nbd::NbdClient;
use crate::support::{Scratch, find_blocks, flip_bit, weft_output};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Output;

const VDISK_BYTES: usize = 64 << 20;
const NODES: u32 = 3;

fn cluster_of(name: &str) -> (Cluster, Vec<PathBuf>) {
    let mut cluster = Cluster::start(name, Options { nodes: NODES, ..Options::default() });
    cluster.create("v", &VDISK_BYTES.to_string());
    let sockets = cluster.numbers().into_iter().map(|number| cluster.export("v", number)).collect();
    (cluster, sockets)
}

/// The owner stops, so that everything is in egroups while there are drives for two copies; then the power of the others
/// fails, when the log has two members again.
fn end(cluster: &mut Cluster) {
    let owner = cluster.wait_until_served("v");
    // A stop waits for that too, but not for ever.
    wait_for("nothing is left in the log", || {
        let shown = cluster.member(owner).json(&["vdisk", "show", "v"])?;
        (shown["usage"]["log_bytes"] == 0).then_some(()).ok_or_else(|| shown["usage"].to_string())
    });
    cluster.member(owner).stop();
    wait_for("all that is written has two copies in the log", || {
        let next = cluster.owner("v")?.filter(|next| *next != owner).ok_or("nobody else serves it")?;
        let stats = cluster.member(next).json(&["stats", "v"])?;
        match stats["vdisks"][0]["engine"]["factor_log"].as_u64() {
            Some(1) => Ok(()),
            _ => Err(stats.to_string()),
        }
    });
    cut(cluster, &(0..NODES).filter(|number| *number != owner).collect::<Vec<_>>());
}

fn cut(cluster: &mut Cluster, nodes: &[u32]) {
    for number in nodes {
        cluster.member(*number).suspend();
    }
    for number in nodes {
        cluster.member(*number).kill();
    }
}

/// `weft check --json` of some nodes: its exit code and what it told.
fn check(cluster: &mut Cluster, nodes: &[u32]) -> (Option<i32>, Value) {
    let mut line = vec!["--json".to_string(), "check".to_string()];
    line.extend(nodes.iter().map(|number| cluster.member(*number).dir_text().to_string()));
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let output = weft_output(&line);
    let told = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no report: {}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), told)
}

/// All together sound and complete; each alone and two of three sound as far as it goes, and saying so.
fn expect_sound(cluster: &mut Cluster) {
    let (code, told) = check(cluster, &[0, 1, 2]);
    assert_eq!((code, &told["sound"], &told["complete"]), (Some(0), &true.into(), &true.into()), "{told:#}");
    let mapped = told["vdisks"][0]["mapped_blocks"].as_u64();
    assert!(mapped.is_some_and(|blocks| blocks > 0), "the map was looked at: {told:#}");
    let mut seen_alone = 0;
    for nodes in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[2, 0]] {
        let (code, told) = check(cluster, nodes);
        let state = (code, &told["sound"], &told["complete"]);
        assert_eq!(state, (Some(0), &true.into(), &false.into()), "nodes {nodes:?}: {told:#}");
        let units = told["drives"].as_array().expect("a list").iter().map(|drive| &drive["units_verified"]);
        assert!(units.filter_map(Value::as_u64).sum::<u64>() > 0, "units were verified: {told:#}");
        let notes = told["notes"].as_array().expect("a list");
        assert!(notes.iter().any(|note| note["kind"] == "drives_elsewhere"), "{told:#}");
        let seen = told["vdisks"][0]["seen"] == true;
        seen_alone += u32::from(nodes.len() == 1 && seen);
        assert!(nodes.len() == 1 || seen, "of two copies of the log, one is on two of three nodes: {told:#}");
    }
    // The log has two members, and each of them can tell the whole map.
    assert_eq!(seen_alone, 2, "nodes that know the log");
}

#[test]
fn nodes_of_a_cluster_are_checked_together_and_each_alone() {
    let (mut cluster, sockets) = cluster_of("offline-check");
    let load = Load::start(Checker::new(VDISK_BYTES / BLOCK, 1), &sockets[0]);
    load.go_on(3000);
    load.stop();
    end(&mut cluster);
    expect_sound(&mut cluster);

    for number in 0..NODES {
        cluster.member(number).launch();
    }
    for number in 0..NODES {
        cluster.member(number).await_ready();
    }
    cluster.wait_until_whole();
    let mut checker = Checker::new(VDISK_BYTES / BLOCK, 2);
    let mut client = NbdClient::connect_patiently(&sockets[1], "v");
    // What was there before is unknown to this book, so all is written once.
    for block in 0..VDISK_BYTES / BLOCK {
        if block % 64 == 0 {
            client.trim((block * BLOCK) as u64, (64 * BLOCK) as u32).expect("a trim works");
        }
    }
    checker.load(&mut client, 16, 2000).expect("the connection holds");
    assert!(client.in_flight() > 0, "the power fails in the midst of requests");
    cut(&mut cluster, &[0, 1, 2]);
    expect_sound(&mut cluster);
}

#[test]
fn a_flipped_byte_is_named_with_its_drive_and_node() {
    let (mut cluster, sockets) = cluster_of("offline-flip");
    let mut client = NbdClient::connect_patiently(&sockets[0], "v");
    for block in 0..512 {
        client.write((block * BLOCK) as u64, &content(block, 1)).expect("a write works");
    }
    client.disconnect();
    let drives: Vec<u32> = (0..NODES).map(|number| cluster.drive_of(number)).collect();
    end(&mut cluster);
    let data = |cluster: &mut Cluster, number: u32| {
        cluster.member(number).dir.join(format!("drive-{}.data", drives[number as usize]))
    };
    let places: Vec<(u32, u64)> = (0..NODES)
        .flat_map(|number| {
            let places = find_blocks(&data(&mut cluster, number), &content(77, 1));
            places.into_iter().map(move |offset| (number, offset))
        })
        .collect();
    assert_eq!(places.len(), 2, "the block has two copies: {places:?}");
    let (victim, offset) = places[0];
    flip_bit(&data(&mut cluster, victim), offset + 123);

    for nodes in [&[0, 1, 2][..], &[victim]] {
        let (code, told) = check(&mut cluster, nodes);
        assert_eq!(code, Some(1), "nodes {nodes:?}: {told:#}");
        assert_eq!(told["problems_by_kind"], serde_json::json!({ "units_damaged": 1 }), "{told:#}");
        let problem = &told["problems"][0];
        assert_eq!(problem["node"].as_u64(), Some(u64::from(victim)), "{told:#}");
        assert_eq!(problem["drive"].as_u64(), Some(u64::from(drives[victim as usize])), "{told:#}");
    }
    for number in (0..NODES).filter(|number| *number != victim) {
        let (code, told) = check(&mut cluster, &[number]);
        assert_eq!(code, Some(0), "node {number} has nothing to do with it: {told:#}");
    }

    // Where the last good copy is gone too, the block is lost, and only who has all directories can say so.
    let (other, offset) = places[1];
    flip_bit(&data(&mut cluster, other), offset + 123);
    let (_, told) = check(&mut cluster, &[0, 1, 2]);
    assert_eq!(told["problems_by_kind"]["block_lost"], 1, "{told:#}");
    let (_, told) = check(&mut cluster, &[victim]);
    assert_eq!(told["problems_by_kind"], serde_json::json!({ "units_damaged": 1 }), "{told:#}");
}

fn expect_told(output: &Output, what: &str) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains(what) && told.trim().lines().count() == 1, "{told} should say {what:?}");
}

#[test]
fn members_are_inspected_and_mistakes_are_told() {
    let (mut cluster, sockets) = cluster_of("offline-inspect");
    let mut client = NbdClient::connect_patiently(&sockets[0], "v");
    for block in 0..512 {
        client.write((block * BLOCK) as u64, &content(block, 1)).expect("a write works");
    }
    client.disconnect();
    let drive = cluster.drive_of(1);
    let dirs: Vec<String> = (0..NODES).map(|number| cluster.member(number).dir_text().to_string()).collect();
    expect_told(&weft_output(&["check", &dirs[1]]), "another process uses");
    end(&mut cluster);
    let inspect = |arguments: &[&str], dirs: &[String]| {
        let mut line = vec!["--json", "inspect"];
        line.extend(arguments);
        line.extend(dirs.iter().flat_map(|dir| ["--dir", dir.as_str()]));
        let output = weft_output(&line);
        assert!(output.status.success(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).expect("it is JSON")
    };
    let length = |value: &Value| value.as_array().map_or(0, Vec::len);
    assert_eq!(length(&inspect(&["drive"], &dirs)), 3);
    let shown = inspect(&["drive"], &dirs[1..2]);
    assert_eq!((length(&shown), &shown[0]["node"], &shown[0]["drive"]), (1, &1.into(), &drive.into()));
    assert!(inspect(&["log", &drive.to_string()], &dirs[1..2])["frames_count"].as_u64().is_some());
    let egroups = inspect(&["egroup", "v"], &dirs);
    assert!(length(&egroups) > 0);
    for egroup in egroups.as_array().expect("a list") {
        assert_eq!(length(&egroup["copies"]), 2, "{egroup:#}");
    }
    let map = inspect(&["map", "v", "--offset", "0"], &dirs);
    assert_eq!((length(&map["runs"]), &map["complete"]), (1, &true.into()), "{map:#}");
    assert_eq!(inspect(&["map", "v"], &dirs[..1])["complete"], false);

    let elsewhere = weft_output(&["inspect", "log", &drive.to_string(), "--dir", &dirs[0]]);
    expect_told(&elsewhere, "is in node 1");
    let scratch = Scratch::new("offline-copies");
    let copy = scratch.file("copy");
    std::fs::create_dir_all(&copy).expect("a directory can be made");
    std::fs::copy(cluster.member(0).dir.join("cluster.json"), copy.join("cluster.json"))
        .expect("it is there");
    let copy = copy.to_str().expect("a plain name").to_string();
    expect_told(&weft_output(&["check", &dirs[0], &copy]), "are both node 0");
    expect_told(&weft_output(&["check", &dirs[0], "/nothing/here"]), "holds no node");
    expect_told(&weft_output(&["check", "--etcd", "http://127.0.0.1:1", &dirs[0]]), "--etcd");
    cluster.etcd.kill();
    expect_told(&weft_output(&["check", &dirs[0]]), "start etcd");
    let away = weft_output(&["inspect", "drive", "--dir", &dirs[0]]);
    assert_eq!(
        away.status.code(),
        Some(1),
        "it may be back later: {}",
        String::from_utf8_lossy(&away.stderr)
    );
}
