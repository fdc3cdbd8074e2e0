//! Older records are put back beneath drives that know more. Nothing is served by them, and with the newest everything is as it was; once
//! somebody has accepted them, nothing of what was made since is given to somebody else, or taken for deleted.

use crate::support::cluster::{Cluster, Options, wait_for};
use crate::support::{Node, Scratch, expect, nbd_uri, step, tool, try_tool, wait_until, write};
use serde_json::Value;

const ARGUMENTS: [&str; 4] = ["--drives", "2", "--drive-size", "256M"];
const ACCEPTING: [&str; 5] = ["--drives", "2", "--drive-size", "256M", "--accept-records"];
const ALL: &str = "0 8M";

/// The lines of trouble that name a lost vDisk, which has this number.
fn tells_of(status: &Value, number: u32) -> bool {
    let lines = status["trouble"].as_array().expect("trouble is a list").iter();
    let names_it = |line: &Value| {
        let line = line.as_str().expect("it is told in words");
        line.contains("no record names") && line.contains(&format!("`weft vdisk forget {number}`"))
    };
    { lines }.any(names_it)
}

/// Names of the snapshots that there are.
fn names(snapshots: &Value) -> Vec<String> {
    let all = snapshots.as_array().expect("they are a list").iter();
    all.map(|snapshot| snapshot["name"].as_str().expect("it has a name").to_string()).collect()
}

#[test]
fn a_node_with_its_config_of_before_keeps_what_was_made_since() {
    let scratch = Scratch::new("old-records");
    let dir = scratch.file("node");
    let node = Node::start(&dir, &ARGUMENTS);
    node.export_new("a", "8M", &scratch.socket("a"));
    node.export_new("d", "8M", &scratch.socket("d"));
    write(&nbd_uri(&scratch.socket("d"), "d"), 4, ALL);
    node.stop();
    let config = dir.join("config.redb");
    std::fs::copy(&config, scratch.file("config.before")).expect("it is a file");

    let node = Node::start(&dir, &ARGUMENTS);
    write(&nbd_uri(&scratch.socket("a"), "a"), 1, ALL);
    node.weft(&["snapshot", "create", "a", "since"]);
    write(&nbd_uri(&scratch.socket("a"), "a"), 2, ALL);
    // The second one of two: of the number between nobody has anything.
    node.weft(&["vdisk", "create", "empty", "--size", "8M"]);
    node.export_new("b", "8M", &scratch.socket("b"));
    write(&nbd_uri(&scratch.socket("b"), "b"), 3, ALL);
    node.weft(&["vdisk", "rm", "d", "--force"]);
    node.stop();
    std::fs::copy(&config, scratch.file("config.newest")).expect("it is a file");
    std::fs::copy(scratch.file("config.before"), &config).expect("it is a file");

    let told = Node::try_start(&dir, &ARGUMENTS).err().expect("it does not serve by older records");
    assert!(told.contains("older than the node has seen it (1 starts are missing)"), "{told}");
    std::fs::copy(scratch.file("config.newest"), &config).expect("it is a file");
    let told = Node::try_start(&dir, &ACCEPTING).err().expect("there is nothing to accept");
    assert!(told.contains("no older than this node has seen them"), "{told}");
    let node = Node::start(&dir, &ARGUMENTS);
    expect(&nbd_uri(&scratch.socket("a"), "a"), 2, ALL);
    expect(&nbd_uri(&scratch.socket("b"), "b"), 3, ALL);
    assert_eq!(names(&node.json(&["snapshot", "ls"])), ["a@since"]);
    node.stop();
    std::fs::copy(scratch.file("config.before"), &config).expect("it is a file");

    let node = Node::start(&dir, &ACCEPTING);
    wait_until("what is lost is told", || tells_of(&node.json(&["status"]), 4));
    node.export_new("c", "8M", &scratch.socket("c"));
    expect(&nbd_uri(&scratch.socket("c"), "c"), 0, ALL);
    expect(&nbd_uri(&scratch.socket("a"), "a"), 2, ALL);
    // Deleted since, it is there again.
    expect(&nbd_uri(&scratch.socket("d"), "d"), 0, ALL);
    node.weft(&["vdisk", "rm", "d", "--force"]);
    wait_until("the snapshot has a record", || names(&node.json(&["snapshot", "ls"])) == ["a@found-0"]);
    node.export("a@found-0", &scratch.socket("past"));
    expect(&nbd_uri(&scratch.socket("past"), "a@found-0"), 1, ALL);
    assert_eq!(node.log_text().matches("something of a vDisk that was deleted").count(), 0);

    let refused = node.try_weft(&["vdisk", "forget", "1"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    node.weft(&["vdisk", "forget", "4"]);
    node.wait_for_log("something of a vDisk that was deleted");
    wait_until("nothing is lost any more", || !tells_of(&node.json(&["status"]), 4));
    node.stop();
    let node = Node::start(&dir, &ARGUMENTS);
    expect(&nbd_uri(&scratch.socket("c"), "c"), 0, ALL);
    node.stop();
}

/// What the etcd that is stopped has, beside it.
fn copy_etcd(cluster: &Cluster, from: &str, to: &str) {
    let [from, to] = [from, to].map(|name| cluster.scratch.file(name).display().to_string());
    tool(&["cp", "-r", &from, &to]);
}

#[test]
fn a_cluster_with_an_older_etcd_keeps_what_was_made_since() {
    let mut cluster = Cluster::start("old-etcd", Options::default());
    cluster.create("a", "64M");
    let a: Vec<_> = cluster.numbers().into_iter().map(|number| cluster.export("a", number)).collect();
    cluster.wait_until_served("a");
    let stop_all = |cluster: &mut Cluster| {
        for number in cluster.numbers() {
            cluster.member(number).stop();
        }
        cluster.etcd.kill();
    };
    stop_all(&mut cluster);
    copy_etcd(&cluster, "etcd", "etcd.before");
    cluster.etcd.launch();
    cluster.start_all();
    cluster.wait_until_whole();

    write(&nbd_uri(&a[0], "a"), 1, ALL);
    cluster.weft(&["snapshot", "create", "a", "since"]);
    write(&nbd_uri(&a[0], "a"), 2, ALL);
    cluster.create("b", "64M");
    let b = cluster.export("b", 0);
    cluster.wait_until_served("b");
    write(&nbd_uri(&b, "b"), 3, ALL);
    // Owners of which the older records know nothing.
    for _ in 0..2 {
        cluster.kill_all();
        cluster.start_all();
        cluster.wait_until_whole();
    }
    stop_all(&mut cluster);
    step("no node goes by older records");
    cluster.etcd.replace("etcd.before");
    for number in 0..2 {
        let member = cluster.member(number);
        member.launch();
        assert_eq!(member.wait_for_the_end(), Some(1), "another try may find others");
        let told = member.log_text();
        assert!(told.contains("are older than those that this node has seen"), "{told}");
    }
    step("with the newest, everything is there");
    cluster.etcd.replace("etcd");
    cluster.start_all();
    cluster.wait_until_whole();
    expect(&nbd_uri(&a[0], "a"), 2, ALL);
    expect(&nbd_uri(&b, "b"), 3, ALL);
    assert_eq!(cluster.json(&["snapshot", "ls"]).map(|all| names(&all)), Ok(vec!["a@since".to_string()]));
    stop_all(&mut cluster);

    step("somebody says that there are none newer");
    cluster.etcd.replace("etcd.before");
    let url = cluster.etcd.url.clone();
    let accept = ["cluster", "accept-records", "--etcd", &url];
    let asked = cluster.member(0).run(&accept);
    let says = String::from_utf8_lossy(&asked.stderr).to_string();
    assert!(asked.status.code() == Some(2) && says.contains("have 1 vDisks"), "{says}");
    let accepted = cluster.member(0).run(&[&accept[..], &["--lose-data"]].concat());
    assert!(accepted.status.success(), "{accepted:?}");
    cluster.start_all();
    cluster.wait_until_whole();
    let refused = cluster.member(0).run(&accept);
    let says = String::from_utf8_lossy(&refused.stderr).to_string();
    assert!(refused.status.code() == Some(1) && says.contains("lives by these records"), "{says}");

    wait_for("what is lost is told by the nodes that hold it", || {
        let told: Vec<u32> = cluster.numbers();
        let status = |number: &u32| cluster.asking(*number, &["status", "--json"]).output();
        let holders = told.iter().filter(|number| {
            let output = status(number).expect("a command can be started");
            serde_json::from_slice(&output.stdout).is_ok_and(|status: Value| tells_of(&status, 2))
        });
        match holders.count() {
            0 | 1 => Err("fewer than two say so".to_string()),
            _ => Ok(()),
        }
    });
    cluster.create("c", "64M");
    let c = cluster.export("c", 0);
    cluster.wait_until_served("c");
    expect(&nbd_uri(&c, "c"), 0, ALL);
    expect(&nbd_uri(&a[0], "a"), 2, ALL);
    wait_for("the snapshot has a record", || {
        match cluster.json(&["snapshot", "ls"]).map(|all| names(&all)) {
            Ok(names) if names == ["a@found-0"] => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    let past = cluster.export("a@found-0", 1);
    expect(&nbd_uri(&past, "a@found-0"), 1, ALL);

    cluster.weft(&["vdisk", "forget", "2"]);
    wait_for("nothing is lost any more", || {
        let status = cluster.json(&["status"])?;
        if tells_of(&status, 2) { Err(status["trouble"].to_string()) } else { Ok(()) }
    });
    expect(&nbd_uri(&c, "c"), 0, ALL);

    step("what was served by what was accepted is not served by what was there before");
    stop_all(&mut cluster);
    cluster.etcd.replace("etcd");
    let member = cluster.member(0);
    member.launch();
    assert_eq!(member.wait_for_the_end(), Some(1), "another try may find others");
    let told = member.log_text();
    assert!(told.contains("are of a time before others were accepted"), "{told}");
}

/// Etcd is put back while nodes run: it knows their leases, and the vDisks as they were.
#[test]
fn nodes_that_run_while_older_records_are_put_back_serve_nothing_until_the_newest_are() {
    let mut cluster = Cluster::start("old-etcd-beneath", Options::default());
    cluster.create("a", "64M");
    let a: Vec<_> = cluster.numbers().into_iter().map(|number| cluster.export("a", number)).collect();
    cluster.wait_until_served("a");
    write(&nbd_uri(&a[0], "a"), 1, ALL);
    cluster.etcd.kill();
    copy_etcd(&cluster, "etcd", "etcd.before");
    cluster.etcd.launch();
    cluster.wait_until_whole();
    cluster.weft(&["snapshot", "create", "a", "since"]);
    write(&nbd_uri(&a[0], "a"), 2, ALL);
    // What nodes still write there by mistake shall not be taken for the newest.
    for minutes in 10..60 {
        cluster.weft(&["cluster", "set", "--away-after", &format!("{minutes}m")]);
    }

    cluster.etcd.replace("etcd.before");
    wait_for("all nodes say that they serve nothing, and why", || {
        let status = |number: u32| cluster.asking(number, &["status", "--json"]).output();
        let says =
            |number: u32| status(number).map(|output| String::from_utf8_lossy(&output.stdout).to_string());
        let silent =
            |number: &u32| !says(*number).is_ok_and(|text| text.contains("nothing is served: the records"));
        match cluster.numbers().into_iter().find(silent) {
            Some(number) => Err(format!("node {number}: {:?}", says(number))),
            None => Ok(()),
        }
    });
    let read = ["timeout", "3", "nbdcopy", &nbd_uri(&a[0], "a"), "null:"];
    assert!(!try_tool(&read).status.success(), "nobody is served by older records");

    cluster.etcd.replace("etcd");
    cluster.wait_until_whole();
    cluster.wait_until_served("a");
    for socket in &a {
        expect(&nbd_uri(socket, "a"), 2, ALL);
    }
    assert_eq!(cluster.json(&["snapshot", "ls"]).map(|all| names(&all)), Ok(vec!["a@since".to_string()]));
}
