//! Snapshots as a person uses them, with a real node: taken, read through exports, removed, kept over kills and restarts.
//! WEFT_SNAPSHOT_KILLS says how often a node is killed while one is taken (4).

use crate::support::counting::{Counting, told};
use crate::support::{
    Node, Scratch, WEFT, expect, nbd_uri, send_signal, step, tool, try_tool, wait_until, write,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A copy of all that is exported there.
fn copy(uri: &str, to: &Path) -> PathBuf {
    tool(&["nbdcopy", uri, to.to_str().expect("a plain name")]);
    to.to_path_buf()
}

fn same(one: &Path, other: &Path) -> bool {
    try_tool(&["cmp", one.to_str().expect("a plain name"), other.to_str().expect("a plain name")])
        .status
        .success()
}

fn names(node: &Node) -> Vec<String> {
    let all = node.json(&["snapshot", "ls"]);
    let all = all.as_array().expect("a list").iter();
    all.map(|snapshot| snapshot["name"].as_str().expect("it has a name").to_string()).collect()
}

#[test]
fn a_snapshot_stays_as_it_was_and_is_read_through_an_export() {
    let scratch = Scratch::new("snapshot-export");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "512M"]);
    let vdisk = scratch.socket("v");
    node.export_new("v", "64M", &vdisk);
    let uri = nbd_uri(&vdisk, "v");
    write(&uri, 1, "0 8M");
    write(&uri, 2, "60M 4M");
    let before = copy(&uri, &scratch.file("before"));
    let made = node.json(&["snapshot", "create", "v", "monday"]);
    assert_eq!((&made["name"], &made["state"]), (&Value::from("v@monday"), &Value::from("ready")));
    write(&uri, 3, "4M 8M");
    tool(&["qemu-io", "-f", "raw", "-c", "write -z 60M 4M", &uri]);
    node.weft(&["vdisk", "resize", "v", "--size", "96M"]);
    let second = node.weft(&["snapshot", "create", "v@tuesday"]);
    assert!(second.contains("v@tuesday") && second.contains("96 MiB"), "{second}");

    let socket = scratch.socket("monday");
    let monday = node.export("v@monday", &socket);
    let info = tool(&["nbdinfo", &monday]);
    for line in ["is_read_only: true", "can_multi_conn: true", "export-size: 67108864"] {
        assert!(info.contains(line), "{line}: {info}");
    }
    assert!(same(&copy(&monday, &scratch.file("monday")), &before), "it is the vDisk as it was");
    assert!(!try_tool(&["qemu-io", "-f", "raw", "-c", "write 0 4k", &monday]).status.success());
    // What holds nothing is told as a hole.
    let map = tool(&["nbdinfo", "--map", "--totals", &monday]);
    assert!(map.contains("hole"), "{map}");
    let shared = scratch.socket("shared");
    for (name, export) in [("v@monday", "old"), ("v@tuesday", "older")] {
        let address = format!("unix:{}", shared.display());
        node.weft(&["vdisk", "export", name, "--nbd", &address, "--name", export]);
    }
    assert_eq!(tool(&["nbdinfo", "--size", &nbd_uri(&shared, "older")]).trim(), "100663296");
    expect(&nbd_uri(&shared, "old"), 2, "60M 4M");
    let taken = node.refused(&[
        "vdisk",
        "export",
        "v",
        "--nbd",
        &format!("unix:{}", shared.display()),
        "--name",
        "old",
    ]);
    assert!(taken.contains("--name"), "{taken}");

    let dir = node.dir.clone();
    node.stop();
    let node = Node::start(&dir, &[]);
    assert!(same(&copy(&monday, &scratch.file("again")), &before), "the export comes back with the node");
    expect(&nbd_uri(&shared, "older"), 3, "4M 8M");
    let in_use = node.refused(&["snapshot", "rm", "v@monday"]);
    assert!(in_use.contains("weft vdisk unexport v@monday"), "{in_use}");
    node.weft(&["vdisk", "unexport", "v@monday", "--nbd", &format!("unix:{}", socket.display())]);
    assert!(!try_tool(&["nbdinfo", &monday]).status.success(), "it is no longer exported there");
    expect(&nbd_uri(&shared, "old"), 1, "0 8M");
    node.weft(&["vdisk", "unexport", "v@monday"]);
    node.weft(&["snapshot", "rm", "v@monday"]);
    assert_eq!(names(&node), ["v@tuesday"]);
    expect(&nbd_uri(&shared, "older"), 0, "60M 36M");
    expect(&uri, 3, "4M 8M");
    node.stop();
    crate::support::run_weft(&["check", dir.to_str().expect("a plain name")]);
}

#[test]
fn mistakes_are_told_in_a_line() {
    let scratch = Scratch::new("snapshot-mistakes");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "512M"]);
    node.weft(&["vdisk", "create", "v", "--size", "16M"]);
    for (arguments, says) in [
        (&["snapshot", "create", "w"][..], "weft vdisk ls"),
        (&["snapshot", "create", "v", "a/b"], "cannot be the name"),
        (&["snapshot", "create", "v@a", "b"], "both name"),
        (&["snapshot", "show", "v@nothing"], "weft snapshot ls v"),
        (&["snapshot", "rm", "v"], "VDISK@SNAPSHOT"),
        (&["vdisk", "export", "v@nothing", "--nbd", "unix:/tmp/x"], "weft snapshot ls v"),
        (&["snapshot", "schedule", "set", "v", "--every", "1s", "--keep", "2"], "--every"),
        (&["snapshot", "schedule", "set", "v", "--every", "4000d", "--keep", "2"], "--every"),
        (&["snapshot", "schedule", "rm", "v"], "weft snapshot schedule ls"),
    ] {
        let line = node.refused(arguments);
        assert!(line.contains(says) && line.lines().count() == 1, "weft {arguments:?}: {line}");
    }
    node.weft(&["snapshot", "create", "v", "a"]);
    let twice = node.refused(&["snapshot", "create", "v", "a"]);
    assert!(twice.contains("exists already"), "{twice}");
    // Two of one second have different names.
    for _ in 0..3 {
        node.weft(&["snapshot", "create", "v"]);
    }
    assert_eq!(names(&node).len(), 4);
    let half = node.refused(&["snapshot", "rm", "v@a", "v@nothing", "--json"]);
    assert!(half.contains("weft snapshot ls v") && half.contains("removed before that: v@a"), "{half}");
    node.weft(&["snapshot", "create", "v", "a"]);
    let all = node.refused(&["vdisk", "rm", "v"]);
    assert!(all.contains("4 snapshots") && all.contains("--with-snapshots"), "{all}");
    node.weft(&["vdisk", "rm", "v", "--with-snapshots"]);
    assert!(names(&node).is_empty());
    node.weft(&["vdisk", "create", "v", "--size", "16M"]);
    assert!(names(&node).is_empty(), "a new vDisk of the name has none of them");
    node.stop();
}

#[test]
fn a_vdisk_does_not_grow_while_a_snapshot_of_it_is_being_taken() {
    let scratch = Scratch::new("snapshot-grows");
    let dir = scratch.file("node");
    let node = Node::start(&dir, &["--drives", "2", "--drive-size", "256M", "--rf", "1"]);
    let vdisks: Vec<String> = (0..8).map(|number| format!("v{number}")).collect();
    for name in &vdisks {
        let socket = scratch.socket(name);
        node.export_new(name, "16M", &socket);
        write(&nbd_uri(&socket, name), 3, "0 1M");
    }
    node.kill();
    // Some have their log on the second drive: nobody serves them, so that a snapshot waits for ever.
    let (data, away) = (dir.join("drive-1.data"), dir.join("drive-1.away"));
    std::fs::rename(&data, &away).expect("a drive can be taken away");
    let node = Node::start(&dir, &[]);
    let is_waiting = |name: &&String| node.json(&["vdisk", "show", name])["state"] == "opening";
    let name = vdisks.iter().find(is_waiting).expect("one has its log on the drive that is away");
    let begin = |arguments: &[&str]| {
        let mut command = Command::new(WEFT);
        command.args(arguments).args(["--dir", node.dir_text()]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("weft can be run")
    };
    let snapshot = format!("{name}@s");
    let taking = begin(&["snapshot", "create", name, "s"]);
    wait_until("its record is there", || names(&node).contains(&snapshot));
    let grow = ["vdisk", "resize", name, "--size", "32M"];
    let told = node.refused(&grow);
    assert!(told.contains("is being taken; try again"), "{told}");
    // It will be dropped when somebody can; that is in nobody's way.
    let removing = begin(&["snapshot", "rm", &snapshot]);
    wait_until("it grows", || node.try_weft(&grow).status.success());
    assert_eq!(node.json(&["vdisk", "show", name])["size"], 32 << 20);
    for mut asked in [taking, removing] {
        asked.kill().expect("it was started");
        asked.wait().expect("it was started");
    }
    node.stop();
}

#[test]
fn removed_in_any_order_their_space_comes_back() {
    let scratch = Scratch::new("snapshot-space");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "1G"]);
    let vdisk = scratch.socket("v");
    node.export_new("v", "32M", &vdisk);
    let uri = nbd_uri(&vdisk, "v");
    // Tables and reserves count as used.
    let empty = used(&node);
    for round in 1..=5u8 {
        write(&uri, round, "0 32M");
        node.weft(&["snapshot", "create", "v", &format!("s{round}")]);
    }
    write(&uri, 6, "0 32M");
    // Six times the vDisk, when all of it has left the log.
    wait_until("everything is kept", || used(&node) >= empty + 6 * 32 * MIB);
    let all = used(&node);
    node.weft(&["snapshot", "rm", "v@s2", "v@s4", "v@s1"]);
    // Less than three times the vDisk: the last egroup of each drain stays as large as it is.
    wait_until("the space of three comes back", || used(&node) < all - 80 * MIB);
    for round in [3u8, 5] {
        let name = format!("v@s{round}");
        let uri = node.export(&name, &scratch.socket(&name));
        expect(&uri, round, "0 32M");
        node.weft(&["vdisk", "unexport", &name]);
    }
    node.weft(&["snapshot", "rm", "v@s5", "v@s3"]);
    wait_until("the space of all comes back", || used(&node) < all - 110 * MIB);
    expect(&uri, 6, "0 32M");
    let dir = node.dir.clone();
    node.stop();
    crate::support::run_weft(&["check", dir.to_str().expect("a plain name")]);
}

fn used(node: &Node) -> u64 {
    let stats = node.json(&["stats"]);
    let drives = stats["drives"].as_array().expect("statistics list the drives").iter();
    drives.map(|drive| drive["used_bytes"].as_u64().unwrap_or(0)).sum()
}

#[test]
fn a_node_that_is_killed_while_it_takes_one_has_it_whole_or_not_at_all() {
    let kills = std::env::var("WEFT_SNAPSHOT_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(4u32);
    let scratch = Scratch::new("snapshot-kill");
    let mut random = SmallRng::seed_from_u64(4);
    let dir = scratch.file("node");
    let mut node = Node::start(&dir, &["--drive-size", "1G"]);
    let socket = scratch.socket("v");
    node.export_new("v", "16M", &socket);
    let uri = nbd_uri(&socket, "v");
    let mut whole = 0;
    for round in 0..kills {
        let pattern = round as u8 + 1;
        write(&uri, pattern, "0 16M");
        let name = format!("s{round}");
        let mut asked = Command::new(WEFT)
            .args(["snapshot", "create", "v", &name, "--dir", node.dir_text()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("weft can be run");
        std::thread::sleep(Duration::from_millis(random.random_range(0..60)));
        node.kill();
        let was_told = asked.wait().expect("it ends").success();
        node = Node::start(&dir, &[]);
        write(&uri, 200, "0 16M");
        // Begun is finished, by the node that comes back.
        wait_until("nothing is left half done", || {
            let all = node.json(&["snapshot", "ls", "v"]);
            all.as_array().expect("a list").iter().all(|snapshot| snapshot["state"] == "ready")
        });
        let name = format!("v@{name}");
        let is_there = names(&node).contains(&name);
        assert!(is_there || !was_told, "what was told as taken is there");
        step(&format!("round {round}: told {was_told}, there {is_there}"));
        if is_there && was_told {
            let uri = node.export(&name, &scratch.socket(&name));
            expect(&uri, pattern, "0 16M");
            node.weft(&["vdisk", "unexport", &name]);
        }
        if is_there {
            whole += 1;
            node.weft(&["snapshot", "rm", &name]);
        }
    }
    step(&format!("{whole} of {kills} were taken"));
    assert!(names(&node).is_empty());
    node.stop();
    crate::support::run_weft(&["check", dir.to_str().expect("a plain name")]);
}

#[test]
fn a_schedule_takes_snapshots_keeps_the_newest_and_goes_on_after_a_restart() {
    let scratch = Scratch::new("snapshot-schedule");
    let dir = scratch.file("node");
    let mut node = Node::start(&dir, &["--drive-size", "512M"]);
    let socket = scratch.socket("v");
    node.export_new("v", "16M", &socket);
    let uri = nbd_uri(&socket, "v");
    write(&uri, 1, "0 1M");
    node.weft(&["snapshot", "create", "v", "by-hand"]);
    node.weft(&["snapshot", "schedule", "set", "v", "--every", "5s", "--keep", "2"]);
    let mut seen = std::collections::BTreeSet::new();
    let mut look = |node: &Node, enough: usize| {
        wait_until("the schedule takes snapshots", || {
            seen.extend(names(node).into_iter().filter(|name| name.contains("@auto-")));
            seen.len() >= enough
        });
        seen.len()
    };
    let count = look(&node, 1);
    let cloned = names(&node).into_iter().find(|name| name.contains("@auto-")).expect("it was just seen");
    node.weft(&["clone", &cloned, "c"]);
    write(&uri, 2, "0 1M");
    let count = look(&node, count + 2);
    node.kill();
    node = Node::start(&dir, &[]);
    look(&node, count + 2);
    node.weft(&["snapshot", "schedule", "rm", "v"]);
    wait_until("one too many goes", || {
        let all = node.json(&["snapshot", "ls", "v"]);
        let all = all.as_array().expect("a list");
        all.iter().all(|snapshot| snapshot["state"] == "ready") && all.len() <= 5
    });
    let left = names(&node);
    assert!(left.contains(&"v@by-hand".to_string()), "only its own go: {left:?}");
    assert!(left.contains(&cloned), "a clone needs {cloned}: {left:?}");
    let clone = node.export("c", &scratch.socket("c"));
    expect(&clone, 1, "0 1M");
    assert!(node.json(&["snapshot", "schedule", "ls"]).as_array().is_some_and(Vec::is_empty));
    node.stop();
}

#[test]
fn a_schedule_is_not_in_the_way_of_a_rollback() {
    let scratch = Scratch::new("snapshot-rollback");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "512M"]);
    node.weft(&["vdisk", "create", "v", "--size", "16M"]);
    node.weft(&["snapshot", "create", "v", "good"]);
    node.weft(&["snapshot", "schedule", "set", "v", "--every", "5s", "--keep", "2"]);
    // As soon as what it took is gone it takes the next one.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(12) {
        node.weft(&["snapshot", "rollback", "v@good", "--discard-newer"]);
    }
    wait_until("the schedule goes on", || names(&node).iter().any(|name| name.contains("@auto-")));
    assert!(names(&node).contains(&"v@good".to_string()));
    node.stop();
}

#[test]
fn a_diff_tells_what_was_written_in_between() {
    let scratch = Scratch::new("snapshot-diff");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "512M"]);
    let socket = scratch.socket("v");
    node.export_new("v", "64M", &socket);
    let uri = nbd_uri(&socket, "v");
    write(&uri, 1, "0 16M");
    node.weft(&["snapshot", "create", "v", "a"]);
    write(&uri, 2, "3M 1M");
    tool(&["qemu-io", "-f", "raw", "-c", "write -z 8M 64k", &uri]);
    node.weft(&["snapshot", "create", "v", "b"]);
    write(&uri, 3, "40M 4k");
    let ranges = |from: &str, to: &str| {
        let told = node.json(&["snapshot", "diff", from, to]);
        assert_eq!(told["size"], 64 * MIB, "{told}");
        let ranges = told["ranges"].as_array().expect("a list").iter();
        ranges
            .map(|range| {
                (range["offset"].as_u64().expect("a number"), range["len"].as_u64().expect("a number"))
            })
            .collect::<Vec<_>>()
    };
    let (between, since) = (vec![(3 * MIB, MIB), (8 * MIB, 64 << 10)], vec![(40 * MIB, 4096)]);
    for _ in 0..2 {
        assert_eq!(ranges("v@a", "v@b"), between);
        assert_eq!(ranges("v@b", "v@a"), between);
        assert_eq!(ranges("v@b", "v"), since);
        assert_eq!(ranges("v@a", "v"), [between.clone(), since.clone()].concat());
        // Once more when all of it is in egroups.
        std::thread::sleep(Duration::from_secs(8));
    }
    let other = node.refused(&["snapshot", "diff", "v", "v@a"]);
    assert!(other.contains("names no snapshot"), "{other}");
    node.stop();
}

#[test]
fn the_snapshots_of_a_group_are_of_one_instant() {
    let scratch = Scratch::new("snapshot-group");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "512M", "--shards", "2"]);
    let sockets = ["a", "b"].map(|name| {
        node.export_new(name, "16M", &scratch.socket(name));
        scratch.socket(name)
    });
    node.weft(&["group", "create", "g", "a"]);
    node.weft(&["group", "add", "g", "b"]);
    let groups = node.json(&["group", "ls"]);
    assert_eq!(groups[0]["vdisks"], serde_json::json!(["a", "b"]));
    let counting = Counting::start(&sockets[0], &sockets[1]);
    let mut taken = 0;
    for round in 0..12 {
        let begun = counting.count.load(Ordering::Relaxed);
        wait_until("the client counts", || counting.count.load(Ordering::Relaxed) > begun + 5);
        let name = format!("s{round}");
        let output = node.try_weft(&["group", "snapshot", "g", &name]);
        if !output.status.success() {
            // A machine that is too slow for a second: then nothing is left.
            let line = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(line.contains("second"), "{line}");
            wait_until("what failed is removed", || !names(&node).contains(&format!("a@{name}")));
            continue;
        }
        taken += 1;
        let numbers = ["a", "b"].map(|vdisk| {
            let (name, socket) = (format!("{vdisk}@{name}"), scratch.socket(&format!("{vdisk}-{name}")));
            node.export(&name, &socket);
            let number = told(&socket, &name);
            node.weft(&["vdisk", "unexport", &name]);
            number
        });
        assert!(numbers[0] == numbers[1] || numbers[0] == numbers[1] + 1, "round {round}: {numbers:?}");
        assert!(numbers[0] > begun, "what was acknowledged before is in it");
    }
    assert!(taken > 0, "some were taken within a second");
    counting.stop();
    let twice = node.refused(&["group", "snapshot", "h"]);
    assert!(twice.contains("weft group ls"), "{twice}");
    node.weft(&["group", "remove", "g", "b"]);
    node.weft(&["group", "snapshot", "g", "alone"]);
    assert!(!names(&node).contains(&"b@alone".to_string()));
    // Two of one second have different names.
    for _ in 0..3 {
        node.weft(&["group", "snapshot", "g"]);
    }
    assert_eq!(names(&node).iter().filter(|name| name.starts_with("a@20")).count(), 3);
    let dir = node.dir.clone();
    node.kill();
    let node = Node::start(&dir, &[]);
    assert_eq!(node.json(&["group", "ls"])[0]["vdisks"], serde_json::json!(["a"]), "groups are kept");
    node.weft(&["group", "rm", "g"]);
    assert!(names(&node).contains(&"a@alone".to_string()), "snapshots stay");
    node.stop();
}

#[test]
fn an_import_that_is_stopped_leaves_nothing_behind() {
    let scratch = Scratch::new("snapshot-stopped");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "512M"]);
    let image = scratch.file("a.img");
    let image = image.to_str().expect("a plain name");
    tool(&["qemu-img", "create", "-q", "-f", "raw", image, "64M"]);
    tool(&["qemu-io", "-f", "raw", "-c", "write -P 7 0 64M", image]);
    node.weft(&["container", "create", "slow", "--bw-limit", "2M"]);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let mut import = Command::new(WEFT);
        import.args(["import", image, "v", "--container", "slow", "--dir"]).arg(&node.dir);
        // Whoever runs the tests may have had the signal ignored (nohup), and that would be respected.
        // SAFETY: between fork and exec nothing but a call that is safe there.
        unsafe {
            import.pre_exec(move || {
                libc::signal(signal, libc::SIG_DFL);
                Ok(())
            });
        }
        let mut import = import.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("weft runs");
        wait_until("it is being copied", || {
            let all = node.json(&["vdisk", "ls"]);
            all.as_array().is_some_and(|all| all.iter().any(|vdisk| vdisk["exports"] != Value::Array(vec![])))
        });
        send_signal(&import, signal);
        let ended = import.wait().expect("it is waited for");
        assert_eq!(ended.code(), Some(1), "it says that it did not finish");
        assert_eq!(node.json(&["vdisk", "ls"]), Value::Array(vec![]), "no half image, and no export of it");
    }
    node.stop();
}

#[test]
fn images_come_and_go_with_their_holes() {
    let scratch = Scratch::new("snapshot-images");
    let node = Node::start(&scratch.file("node"), &["--drive-size", "512M"]);
    let text = |path: &Path| path.to_str().expect("a plain name").to_string();
    let (raw, qcow2) = (text(&scratch.file("a.img")), text(&scratch.file("a.qcow2")));
    tool(&["truncate", "--size", "200M", &raw]);
    tool(&["qemu-io", "-f", "raw", "-c", "write -P 7 5M 3M", "-c", "write -P 8 199M 1M", &raw]);
    tool(&["qemu-img", "convert", "-f", "raw", "-O", "qcow2", &raw, &qcow2]);
    for (image, name) in [(&raw, "r"), (&qcow2, "q")] {
        node.weft(&["import", image, name]);
        let back = text(&scratch.file(&format!("{name}.qcow2")));
        node.weft(&["export", name, &back]);
        tool(&["qemu-img", "compare", &raw, &back]);
    }
    let odd = text(&scratch.file("odd.img"));
    tool(&["truncate", "--size", "5000", &odd]);
    let told = node.try_weft(&["import", "--format", "raw", &odd, "odd"]);
    let stderr = String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success() && stderr.contains("vDisk odd 8192"), "it is told to be larger: {stderr}");
    wait_until("holes take no space", || used(&node) < 40 * MIB);
    let taken = node.refused(&["import", &raw, "r"]);
    assert!(taken.contains("--overwrite"), "{taken}");
    let there = node.refused(&["export", "r", &raw]);
    assert!(there.contains("--force"), "{there}");
    let (above, vmdk) = (text(&scratch.file("above.qcow2")), text(&scratch.file("a.vmdk")));
    tool(&["qemu-img", "create", "-q", "-f", "qcow2", "-b", &raw, "-F", "raw", &above]);
    let backed = node.refused(&["import", &above, "n"]);
    assert!(backed.contains(&raw) && backed.contains("--follow"), "{backed}");
    node.weft(&["import", "--follow", &above, "n"]);
    node.weft(&["vdisk", "rm", "n"]);
    tool(&["qemu-img", "convert", "-f", "raw", "-O", "vmdk", &raw, &vmdk]);
    let foreign = node.refused(&["import", &vmdk, "n"]);
    assert!(foreign.contains("vmdk") && foreign.contains("qemu-img convert"), "{foreign}");
    let nothing = node.refused(&["import", &text(&scratch.file("nothing")), "n"]);
    assert!(nothing.contains("no image"), "{nothing}");
    let pipe = text(&scratch.file("pipe"));
    tool(&["mkfifo", &pipe]);
    let waits = node.refused(&["import", &pipe, "n"]);
    assert!(waits.contains("neither a file nor a block device"), "{waits}");
    node.weft(&["snapshot", "create", "r", "old"]);
    let other = text(&scratch.file("other.img"));
    tool(&["truncate", "--size", "100M", &other]);
    let overwrite = ["import", "--overwrite", "--format", "raw", &other, "r"];
    node.export("r", &scratch.socket("r"));
    let used = node.refused(&overwrite);
    assert!(used.contains("weft vdisk unexport r"), "{used}");
    node.weft(&["vdisk", "unexport", "r"]);
    node.weft(&overwrite);
    let old = text(&scratch.file("old.img"));
    node.weft(&["export", "r@old", &old]);
    tool(&["cmp", &raw, &old]);
    assert_eq!(names(&node), ["r@old"], "the snapshots that exports were made of are gone");
    assert!(node.json(&["vdisk", "show", "r"])["exports"].as_array().is_some_and(Vec::is_empty));
    node.stop();
}
