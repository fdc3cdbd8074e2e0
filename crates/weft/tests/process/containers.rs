//! Containers as a person uses them: policies for many vDisks at once, and what these take and save, with real nodes.

use crate::support::cluster::{Cluster, Options, wait_for};
use crate::support::{Node, Scratch, expect, nbd_uri, step, tool, write};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// What holds for a vDisk: its container, its compression, and who says so.
fn policy(vdisk: &Value) -> [&str; 3] {
    ["container", "compression", "compression_from"].map(|field| vdisk[field].as_str().unwrap_or("?"))
}

fn usage(shown: &Value, field: &str) -> u64 {
    shown["usage"][field].as_u64().unwrap_or(u64::MAX)
}

/// Waits until this holds for what a vDisk or container takes.
fn wait_for_usage(node: &Node, what: &str, name: &str, is_so: impl Fn(&dyn Fn(&str) -> u64) -> bool) {
    wait_for("it takes what it shall", || {
        let shown = node.json(&[what, "show", name]);
        if is_so(&|field| usage(&shown, field)) { Ok(()) } else { Err(format!("{name}: {shown:#}")) }
    });
}

#[test]
fn a_container_decides_where_its_vdisks_say_nothing() {
    let scratch = Scratch::new("containers");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "1G"]);
    let all = node.json(&["container", "ls"]);
    assert_eq!(all.as_array().map(Vec::len), Some(1), "{all}");
    assert_eq!((&all[0]["name"], &all[0]["compression"]), (&Value::from("default"), &Value::from("off")));
    let made = node.weft(&["container", "create", "packed", "--compression", "lz4", "--unit", "32K"]);
    assert!(made.contains("lz4, 32 KiB together"), "{made}");
    for (name, own) in [("a", &[][..]), ("b", &["--compression", "off"])] {
        let mut line = vec!["vdisk", "create", name, "--size", "64M", "--container", "packed"];
        line.extend(own);
        node.weft(&line);
    }
    node.weft(&["vdisk", "create", "c", "--size", "64M"]);
    assert_eq!(policy(&node.json(&["vdisk", "show", "a"])), ["packed", "lz4", "container"]);
    assert_eq!(policy(&node.json(&["vdisk", "show", "b"])), ["packed", "off", "vdisk"]);
    assert_eq!(policy(&node.json(&["vdisk", "show", "c"])), ["default", "off", "container"]);
    assert_eq!(node.json(&["container", "show", "packed"])["vdisks"], 2);
    let sockets = ["a", "b", "c"].map(|name| (name, scratch.socket(name)));
    let uris = sockets.clone().map(|(name, socket)| node.export(name, &socket));
    for uri in &uris {
        write(uri, 1, "0 16M");
    }
    let is_packed = |count: &dyn Fn(&str) -> u64| {
        count("placed_bytes") == 16 * MIB && count("stored_bytes") < 8 * MIB && count("log_bytes") == 0
    };
    let is_plain = |count: &dyn Fn(&str) -> u64| {
        count("placed_bytes") == 16 * MIB && count("stored_bytes") == 16 * MIB && count("log_bytes") == 0
    };
    wait_for_usage(&node, "vdisk", "a", is_packed);
    wait_for_usage(&node, "vdisk", "b", is_plain);
    wait_for_usage(&node, "vdisk", "c", is_plain);

    step("a change of the container holds at once, for those that say nothing themselves");
    node.weft(&["container", "set", "packed", "--compression", "off"]);
    node.weft(&["container", "set", "default", "--compression", "zstd:3", "--unit", "16K"]);
    assert_eq!(policy(&node.json(&["vdisk", "show", "a"])), ["packed", "off", "container"]);
    assert_eq!(policy(&node.json(&["vdisk", "show", "c"])), ["default", "zstd:3", "container"]);
    for uri in &uris {
        write(uri, 2, "16M 16M");
    }
    // What was written before follows.
    let is_plain = |count: &dyn Fn(&str) -> u64| {
        count("placed_bytes") == 32 * MIB && count("stored_bytes") == 32 * MIB && count("log_bytes") == 0
    };
    wait_for_usage(&node, "vdisk", "a", is_plain);
    wait_for_usage(&node, "vdisk", "b", is_plain);
    wait_for_usage(&node, "vdisk", "c", |count| {
        count("placed_bytes") == 32 * MIB && count("stored_bytes") < 16 * MIB && count("log_bytes") == 0
    });

    step("a vDisk gives its own word back, and goes to another container");
    node.weft(&["vdisk", "set", "b", "--compression", "inherit", "--container", "default"]);
    assert_eq!(policy(&node.json(&["vdisk", "show", "b"])), ["default", "zstd:3", "container"]);
    write(&uris[1], 3, "32M 16M");
    wait_for_usage(&node, "vdisk", "b", |count| {
        count("placed_bytes") == 48 * MIB && count("stored_bytes") < 24 * MIB
    });
    let in_use = node.refused(&["container", "rm", "packed"]);
    assert!(in_use.contains("1 vDisk(s)") && in_use.contains("(a)"), "{in_use}");
    assert!(node.refused(&["container", "rm", "default"]).contains("cannot be removed"));

    step("clones are kept as their origin is, and everything after a restart as before");
    node.weft(&["snapshot", "create", "a", "s"]);
    node.weft(&["clone", "a@s", "d"]);
    assert_eq!(policy(&node.json(&["vdisk", "show", "d"])), ["packed", "off", "container"]);
    node.weft(&["container", "set", "packed", "--compression", "lz4", "--rf", "1"]);
    let dir = node.dir.clone();
    node.kill();
    let node = Node::start(&dir, &[]);
    assert_eq!(policy(&node.json(&["vdisk", "show", "a"])), ["packed", "lz4", "container"]);
    write(&uris[0], 4, "32M 16M");
    wait_for_usage(&node, "vdisk", "a", |count| {
        count("placed_bytes") == 48 * MIB && count("stored_bytes") < 24 * MIB
    });
    for (pattern, range) in [(1, "0 16M"), (2, "16M 16M"), (4, "32M 16M")] {
        expect(&uris[0], pattern, range);
    }
    step("what was written under other policies is packed by the present one, while nobody asks");
    wait_for_usage(&node, "vdisk", "a", |count| {
        count("placed_bytes") == 48 * MIB && count("stored_bytes") < 8 * MIB
    });
    for (pattern, range) in [(1, "0 16M"), (2, "16M 16M"), (4, "32M 16M")] {
        expect(&uris[0], pattern, range);
    }
    for name in ["a", "d"] {
        node.weft(&["vdisk", "set", name, "--container", "default"]);
    }
    node.weft(&["container", "rm", "packed"]);
    assert_eq!(node.json(&["container", "ls"]).as_array().map(Vec::len), Some(1));
    node.stop();
    crate::support::run_weft(&["check", dir.to_str().expect("a plain name")]);
}

/// Limits that hold for a vDisk, and who says so.
fn limits(vdisk: &Value) -> (Option<u64>, Option<u64>, [&str; 2]) {
    let from = ["iops_limit_from", "bw_limit_from"].map(|field| vdisk[field].as_str().unwrap_or("?"));
    (vdisk["iops_limit"].as_u64(), vdisk["bw_limit"].as_u64(), from)
}

#[test]
fn limits_are_inherited_one_by_one() {
    let scratch = Scratch::new("container-limits");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "512M"]);
    node.weft(&["container", "create", "small", "--iops-limit", "500", "--bw-limit", "10M"]);
    node.weft(&["vdisk", "create", "v", "--size", "64M", "--container", "small"]);
    let (of_both, of_vdisk) = (["container", "container"], ["vdisk", "container"]);
    let shown = || node.json(&["vdisk", "show", "v"]);
    assert_eq!(limits(&shown()), (Some(500), Some(10 * MIB), of_both));
    let uri = node.export("v", &scratch.socket("v"));
    // One after the other: each waits until the one before is paid for.
    let write_pieces = |pattern: u8| {
        let pieces = (0..4).map(|piece| format!("write -P {pattern} {}M 4M", piece * 4));
        let mut line: Vec<String> = ["qemu-io", "-f", "raw"].map(str::to_string).to_vec();
        pieces.for_each(|piece| line.extend(["-c".to_string(), piece]));
        line.push(uri.clone());
        tool(&line.iter().map(String::as_str).collect::<Vec<_>>());
    };
    // What waits is counted.
    let throttled = || {
        let stats = node.json(&["stats", "v"]);
        stats["vdisks"][0]["engine"]["throttled"].as_u64().expect("it is counted")
    };
    write_pieces(1);
    let before = throttled();
    assert!(before > 0, "it was told when it was opened");
    node.weft(&["container", "set", "small", "--iops-limit", "none", "--bw-limit", "none"]);
    assert_eq!(limits(&shown()), (None, None, of_both));
    // What waits behind the limit of before is let in first.
    write(&uri, 2, "0 1M");
    let before = throttled();
    write_pieces(2);
    assert_eq!(throttled(), before, "nothing waits any more");
    node.weft(&["container", "set", "small", "--bw-limit", "4M"]);
    write_pieces(3);
    assert!(throttled() > before, "and again, while a client works");
    node.weft(&["vdisk", "set", "v", "--iops-limit", "7"]);
    assert_eq!(limits(&shown()), (Some(7), Some(4 * MIB), of_vdisk));
    node.weft(&["vdisk", "set", "v", "--iops-limit", "none"]);
    node.weft(&["container", "set", "small", "--iops-limit", "9"]);
    assert_eq!(limits(&shown()), (None, Some(4 * MIB), of_vdisk), "no limit is its own word");
    node.weft(&["vdisk", "set", "v", "--iops-limit", "inherit", "--bw-limit", "8M"]);
    assert_eq!(limits(&shown()), (Some(9), Some(8 * MIB), ["container", "vdisk"]));
    node.weft(&["vdisk", "set", "v", "--container", "default"]);
    assert_eq!(limits(&shown()), (None, Some(8 * MIB), ["container", "vdisk"]));
    let dir = node.dir.clone();
    node.kill();
    let node = Node::start(&dir, &[]);
    assert_eq!(limits(&node.json(&["vdisk", "show", "v"])), (None, Some(8 * MIB), ["container", "vdisk"]));
    let text = node.weft(&["container", "show", "small"]);
    assert!(text.contains("9 IOPS, 4 MiB/s for each vDisk"), "{text}");
    node.stop();
}

#[test]
fn what_is_saved_is_told_apart() {
    let scratch = Scratch::new("container-usage");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "1G"]);
    let (first, second) = (scratch.socket("v"), scratch.socket("c"));
    node.weft(&["vdisk", "create", "v", "--size", "64M"]);
    let uri = node.export("v", &first);
    write(&uri, 1, "0 16M");
    write(&uri, 0, "16M 16M");
    wait_for_usage(&node, "vdisk", "v", |count| count("mapped_bytes") == 16 * MIB && count("log_bytes") == 0);
    let shown = node.json(&["vdisk", "show", "v"]);
    assert_eq!(usage(&shown, "zero_bytes"), 16 * MIB, "zeros are not stored: {shown:#}");
    assert_eq!(usage(&shown, "placed_bytes"), 16 * MIB);
    node.weft(&["snapshot", "create", "v", "s"]);
    write(&uri, 2, "0 8M");
    node.weft(&["clone", "v@s", "c"]);
    let uri = node.export("c", &second);
    wait_for_usage(&node, "vdisk", "c", |count| {
        count("origin_bytes") == 16 * MIB && count("mapped_bytes") == 0
    });
    write(&uri, 3, "4M 4M");
    wait_for_usage(&node, "vdisk", "c", |count| {
        count("origin_bytes") == 12 * MIB && count("mapped_bytes") == 4 * MIB && count("log_bytes") == 0
    });
    // What the snapshot sees and the vDisk does not any more.
    wait_for_usage(&node, "vdisk", "v", |count| {
        count("snapshot_bytes") == 8 * MIB && count("mapped_bytes") == 16 * MIB && count("log_bytes") == 0
    });
    let (v, c) = (node.json(&["vdisk", "show", "v"]), node.json(&["vdisk", "show", "c"]));
    let together = node.json(&["container", "show", "default"]);
    assert_eq!(
        (&together["usage"]["vdisks"], &together["usage"]["vdisks_told"]),
        (&Value::from(2), &Value::from(2))
    );
    for field in
        ["size_bytes", "mapped_bytes", "origin_bytes", "snapshot_bytes", "zero_bytes", "copies_bytes"]
    {
        assert_eq!(usage(&together, field), usage(&v, field) + usage(&c, field), "{field}: {together:#}");
    }
    let text = node.weft(&["container", "show", "default"]);
    for line in
        ["20 MiB of 128 MiB", "12 MiB read and not stored", "8 MiB besides", "16 MiB written and not stored"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(node.weft(&["vdisk", "show", "v"]).contains("16 MiB of 64 MiB"));

    step("every second block of a write is zeros");
    let mixed = scratch.file("mixed");
    let pair: Vec<u8> = [vec![7; 4096], vec![0; 4096]].concat();
    std::fs::write(&mixed, pair.repeat(128)).expect("it can be written");
    let line = format!("write -s {} 48M 1M", mixed.display());
    tool(&["qemu-io", "-f", "raw", "-c", &line, &nbd_uri(&first, "v")]);
    wait_for_usage(&node, "vdisk", "v", |count| {
        count("zero_bytes") == 16 * MIB + MIB / 2 && count("mapped_bytes") == 16 * MIB + MIB / 2
    });
    node.stop();
}

#[test]
fn mistakes_are_told_in_a_line() {
    let scratch = Scratch::new("container-mistakes");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "512M"]);
    node.weft(&["container", "create", "c", "--rf", "1"]);
    node.weft(&["vdisk", "create", "v", "--size", "16M", "--container", "c"]);
    for (arguments, says) in [
        (&["container", "create", "c"][..], "exists already"),
        (&["container", "create", "default"], "exists already"),
        (&["container", "create", "a/b"], "cannot be the name of a container"),
        (&["container", "create", "d", "--compression", "gzip"], "lz4"),
        (&["container", "create", "d", "--unit", "5K"], "4K, 8K"),
        (&["container", "create", "d", "--rf", "4"], "4"),
        (&["container", "create", "d", "--bw-limit", "1"], "at least 4K"),
        (&["container", "create", "d", "--iops-limit", "inherit"], "none"),
        (&["vdisk", "set", "v", "--bw-limit", "0"], "--bw-limit"),
        (&["container", "set", "c"], "nothing to set"),
        (&["container", "set", "c", "--compression", "inherit"], "lz4"),
        (&["container", "set", "none", "--compression", "lz4"], "weft container ls"),
        (&["container", "show", "none"], "weft container ls"),
        (&["container", "rm", "none"], "weft container ls"),
        (&["container", "rm", "c"], "weft vdisk set"),
        (&["vdisk", "create", "w", "--size", "1M", "--container", "none"], "weft container ls"),
        (&["vdisk", "set", "v", "--container", "none"], "weft container ls"),
        (&["vdisk", "set", "v", "--compression", "inherit", "--unit", "8K"], "--unit"),
        (&["vdisk", "set", "none", "--container", "c"], "weft vdisk ls"),
    ] {
        let line = node.refused(arguments);
        assert_eq!(line.lines().count(), 1, "weft {arguments:?}: {line}");
        assert!(line.contains(says), "weft {arguments:?}: {line}");
    }
    assert_eq!(policy(&node.json(&["vdisk", "show", "v"])), ["c", "off", "container"], "nothing was done");
    node.weft(&["vdisk", "rm", "v"]);
    node.weft(&["container", "rm", "c"]);
    node.stop();
}

#[test]
fn in_a_cluster_every_owner_follows_and_any_node_tells() {
    let mut cluster = Cluster::start("cluster-containers", Options::default());
    let all = cluster.json(&["container", "ls"]).expect("they are listed");
    assert_eq!(all[0]["name"], "default", "it is there from the beginning");
    cluster.weft(&["container", "create", "packed", "--compression", "lz4", "--rf", "2"]);
    for name in ["a", "b"] {
        cluster.weft(&["vdisk", "create", name, "--size", "64M", "--container", "packed"]);
        cluster.wait_until_served(name);
    }
    cluster.wait_until_whole();
    let owner = cluster.wait_until_served("a");
    let other = cluster.other_than(&[owner]);
    cluster.weft(&["vdisk", "move", "b", "--to", &other.to_string()]);
    cluster.wait_for_owner("b", |now| now == other);
    let third = cluster.other_than(&[owner, other]);
    let (a, b) = (cluster.export("a", third), cluster.export("b", third));
    let (a, b) = (nbd_uri(&a, "a"), nbd_uri(&b, "b"));
    for uri in [&a, &b] {
        write(uri, 1, "0 16M");
    }
    // Asked of a node that serves neither.
    let shown =
        |cluster: &mut Cluster, what: &str, name: &str| cluster.member(third).json(&[what, "show", name]);
    wait_for("what both owners keep is told together", || {
        let told = shown(&mut cluster, "container", "packed")?;
        let is_so = told["usage"]["vdisks_told"] == 2
            && usage(&told, "placed_bytes") == 32 * MIB
            && usage(&told, "stored_bytes") < 16 * MIB
            && usage(&told, "copies_bytes") == 2 * usage(&told, "stored_bytes");
        if is_so { Ok(()) } else { Err(format!("{told:#}")) }
    });

    step("both owners follow a change of the container");
    cluster.member(third).weft(&["container", "set", "packed", "--compression", "off"]);
    for uri in [&a, &b] {
        write(uri, 2, "16M 16M");
    }
    for name in ["a", "b"] {
        wait_for("everything is stored as it is", || {
            let told = shown(&mut cluster, "vdisk", name)?;
            let is_so = usage(&told, "placed_bytes") == 32 * MIB && usage(&told, "stored_bytes") == 32 * MIB;
            if is_so { Ok(()) } else { Err(format!("{told:#}")) }
        });
    }

    step("the next owner keeps to it too");
    cluster.weft(&["container", "set", "packed", "--compression", "zstd:1"]);
    cluster.member(owner).kill();
    cluster.wait_for_owner("a", |now| now != owner);
    write(&a, 3, "32M 16M");
    wait_for("it is packed again", || {
        let told = shown(&mut cluster, "vdisk", "a")?;
        let is_so = usage(&told, "placed_bytes") == 48 * MIB && usage(&told, "stored_bytes") < 24 * MIB;
        if is_so { Ok(()) } else { Err(format!("{told:#}")) }
    });
    let told = shown(&mut cluster, "vdisk", "a").expect("it is shown");
    assert_eq!(policy(&told), ["packed", "zstd:1", "container"]);

    step("it goes when nothing is in it any more");
    let kept = cluster.member(other).try_weft(&["container", "rm", "packed"]);
    assert!(
        !kept.status.success() && String::from_utf8_lossy(&kept.stderr).contains("2 vDisk(s)"),
        "{kept:?}"
    );
    cluster.member(other).weft(&["vdisk", "set", "a", "--container", "default"]);
    cluster.member(third).weft(&["vdisk", "set", "b", "--container", "default", "--compression", "lz4"]);
    assert_eq!(policy(&shown(&mut cluster, "vdisk", "b").expect("it is shown")), ["default", "lz4", "vdisk"]);
    cluster.member(third).weft(&["container", "rm", "packed"]);
    let default = cluster.member(other).try_weft(&["container", "rm", "default"]);
    assert!(!default.status.success());
    cluster.start_all();
    cluster.wait_until_whole();
    for (pattern, range) in [(1, "0 16M"), (2, "16M 16M"), (3, "32M 16M")] {
        expect(&a, pattern, range);
    }
    cluster.cut_and_check();
}
