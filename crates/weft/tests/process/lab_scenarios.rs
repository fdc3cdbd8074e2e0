//! `weft lab run` with scenarios on a real node: volumes and a group are made, snapshots taken under load, everything removed
//! again. Nothing here depends on speed.

use crate::support::{Node, Scratch, weft_output};
use serde_json::Value;

fn run(node: &Node, scenario: &str, arguments: &[&str]) -> (Value, String) {
    let mut all = vec!["lab", "run", scenario, "--json"];
    all.extend(arguments);
    let output = node.try_weft(&all);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{scenario} ended with {}: {said}", output.status);
    (serde_json::from_slice(&output.stdout).expect("--json prints JSON"), said)
}

fn nothing_is_left(node: &Node) {
    for what in [&["vdisk", "ls"][..], &["group", "ls"], &["snapshot", "ls"]] {
        let left = node.json(what);
        assert_eq!(left.as_array().map(Vec::len), Some(0), "{what:?}: {left}");
    }
}

#[test]
fn snapshots_of_a_group_under_load_are_taken_told_of_and_removed() {
    let scratch = Scratch::new("lab-snapshots");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "2G"]);
    let out = scratch.file("out");
    let out = out.to_str().expect("a plain name");
    let settings = ["--snapshots", "3", "--every", "2s", "--lead", "6s", "--rate", "160", "--size", "256M"];
    let (results, _) = run(
        &node,
        "snapshot-impact",
        &[&["--target", "db=weft:db", "--out", out, "--idle", "0"], &settings[..]].concat(),
    );
    let run = &results["runs"][0];
    assert_eq!(run["target"], "db");
    let events = run["events"].as_array().expect("a list");
    assert_eq!(events.len(), 3, "{run}");
    assert!(events.iter().all(|event| event["error"].is_null()), "{events:?}");
    assert_eq!(run["errors"], 0);
    assert_eq!(run["phases"].as_array().map(Vec::len), Some(3), "before, with and after: {run}");
    assert!(run["after_all"]["us_p"].as_f64().is_some_and(|p| p > 0.0 && p <= 1.0), "{run}");
    assert!(run["server"]["cpu_us"].as_u64().is_some_and(|us| us > 0), "the node's CPU is known: {run}");
    assert!(run["server"]["cpu_us_per_io"].as_f64().is_some_and(|us| us > 0.0), "{run}");
    let page = std::fs::read_to_string(format!("{out}/report.html")).expect("written");
    assert!(page.contains("snapshot 3"));
    nothing_is_left(&node);

    // What is there already is not the lab's to use.
    node.weft(&["vdisk", "create", "db-data-2", "--size", "16M"]);
    let output = node.try_weft(&["lab", "run", "snapshot-impact", "--target", "weft:db", "--out", out]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("db-data-2"), "{output:?}");
    let left = node.json(&["vdisk", "ls"]);
    assert_eq!(left.as_array().map(Vec::len), Some(1), "only what was there before: {left}");
    node.stop();
}

#[test]
fn a_neighbour_on_the_same_node_and_a_vdisk_that_compresses() {
    let scratch = Scratch::new("lab-others");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "2G"]);
    let out = scratch.file("out");
    let out = out.to_str().expect("a plain name");
    let (results, _) = run(
        &node,
        "noisy-neighbour",
        &[
            "--target",
            "weft:db",
            "--out",
            out,
            "--runtime",
            "9",
            "--rate",
            "160",
            "--size",
            "256M",
            "--idle",
            "0",
        ],
    );
    let phases = results["runs"][0]["phases"].as_array().expect("a list");
    assert_eq!(phases.len(), 3, "{results}");
    let server = &results["runs"][0]["server"];
    assert!(server["cpu_us"].as_u64().is_some_and(|us| us > 0), "{server}");
    assert!(server["cpu_us_per_io"].is_null(), "it read for the neighbour, too: {server}");
    assert!(phases[1]["window"]["scan_bytes_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{phases:?}");
    nothing_is_left(&node);

    node.export_new("plain", "32M", &scratch.socket("plain"));
    node.weft(&["vdisk", "create", "packed", "--size", "32M", "--compression", "lz4"]);
    node.export("packed", &scratch.socket("packed"));
    let small = ["--size", "32M", "--runtime", "1", "--warm-up", "0", "--idle", "0", "--compressible", "60"];
    let targets = ["--target", "weft:plain", "--target", "weft:packed", "--out", out];
    let (results, _) = run(&node, "compression", &[&targets[..], &small[..]].concat());
    assert_eq!(
        results["measurements"].as_array().map(Vec::len),
        Some(20),
        "five rows, two kinds of data, two vDisks"
    );
    assert_eq!(results["rows"][0]["compressible_percent"], 60);
    node.stop();
}

#[test]
fn what_means_nothing_to_a_scenario_is_refused() {
    let scratch = Scratch::new("lab-refused");
    let out = scratch.file("out");
    let out = out.to_str().expect("a plain name");
    for (arguments, part) in [
        (&["four-corners", "--target", "file:/x", "--snapshots", "3"][..], "--snapshots means nothing"),
        (&["noisy-neighbour", "--target", "file:/x", "--every", "3s"], "--every means nothing"),
        (&["snapshot-impact", "--target", "file:/x", "--destroy"], "--destroy means nothing"),
        (&["snapshot-impact", "--target", "file:/x", "--runtime", "9"], "--runtime means nothing"),
        (&["snapshot-impact", "--target", "file:/x", "--depth", "9"], "--depth means nothing"),
        (&["noisy-neighbour", "--target", "file:/x", "--baseline", "x"], "--baseline means nothing"),
        (&["noisy-neighbour", "--target", "file:/x", "--warm-up", "1"], "--warm-up means nothing"),
        (&["noisy-neighbour", "--target", "file:/x", "--prefill", "never"], "--prefill means nothing"),
        (&["compression", "--target", "file:/x", "--rows", "table"], "--rows means nothing"),
        (&["four-corners", "--target", "file:/x", "--rows", "table", "--depth", "9"], "rows of the table"),
        (&["four-corners", "--target", "nbd+unix:///x?socket=s"], "begin with a slash"),
        (&["snapshot-impact", "--target", "file:/x"], "no target takes snapshots"),
        (&["snapshot-impact", "--target", "nbd://host/x"], "weft:NAME"),
        (&["noisy-neighbour", "--target", "file:/x", "--runtime", "3"], "at least 9 seconds"),
        (&["compression", "--target", "file:/x", "--prefill", "never"], "leave out --prefill"),
    ] {
        let mut all = vec!["lab", "run"];
        all.extend(arguments);
        all.extend(["--out", out]);
        let output = weft_output(&all);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
    // A node that is not there is named, not the target.
    let nobody = scratch.file("nobody");
    let nobody = nobody.to_str().expect("a plain name");
    let output =
        weft_output(&["lab", "run", "snapshot-impact", "--target", "weft:db", "--out", out, "--dir", nobody]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no node runs"), "{output:?}");
}
