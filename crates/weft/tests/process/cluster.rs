//! A cluster of real nodes whose processes, drives and config store fail under load: no client sees an error, nothing
//! acknowledged is lost, and afterwards every copy is where it should be.
//! WEFT_CLUSTER_ROUNDS says how often each test does it (1). Pauses are told, not judged.

use crate::support::checker::{BLOCK, Checker, content};
use crate::support::cluster::{Cluster, Load, Options, rounds, wait_for};
use crate::support::nbd::{ENOSPC, NbdClient};
use crate::support::{expect, nbd_uri, step, weft_output, write};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const VDISK_BYTES: usize = 64 << 20;

/// Requests that a client gets answered before, between and after troubles.
const SOME: u64 = 1500;

/// A cluster with the vDisk `v`, exported on every node, and an empty book.
pub fn cluster_of(name: &str, nodes: u32) -> (Cluster, Vec<PathBuf>, Checker) {
    let mut cluster = Cluster::start(name, Options { nodes, ..Options::default() });
    cluster.create("v", &VDISK_BYTES.to_string());
    let sockets = cluster.numbers().into_iter().map(|number| cluster.export("v", number)).collect();
    (cluster, sockets, Checker::new(VDISK_BYTES / BLOCK, 1))
}

/// Reads everything through every node, then ends the cluster and looks at all drives together.
#[test]
fn a_member_that_is_killed_is_left_out_and_comes_back() {
    let (mut cluster, sockets, checker) = cluster_of("cluster-member", 3);
    let owner = cluster.wait_until_served("v");
    let load = Load::start(checker, &sockets[owner as usize]);
    for _ in 0..rounds() {
        for victim in (0..3).filter(|number| *number != owner) {
            load.go_on(SOME);
            load.tell_pause("before");
            cluster.member(victim).kill();
            load.go_on(SOME);
            load.tell_pause("a member was killed");
            cluster.member(victim).start();
            load.go_on(SOME);
            cluster.wait_until_whole();
            load.tell_pause("it came back, and everything was copied");
        }
    }
    cluster.compare_and_check(&sockets, load.stop());
}

#[test]
fn a_member_that_stands_still_is_left_out_and_goes_on() {
    let (mut cluster, sockets, checker) = cluster_of("cluster-still", 3);
    let owner = cluster.wait_until_served("v");
    let load = Load::start(checker, &sockets[owner as usize]);
    for _ in 0..rounds() {
        for victim in (0..3).filter(|number| *number != owner) {
            load.go_on(SOME);
            load.tell_pause("before");
            cluster.member(victim).suspend();
            std::thread::sleep(Duration::from_secs(8));
            load.go_on(SOME);
            load.tell_pause("a member stood still");
            cluster.member(victim).resume();
            load.go_on(SOME);
            cluster.wait_until_whole();
            load.tell_pause("it went on, and everything was copied");
        }
    }
    cluster.compare_and_check(&sockets, load.stop());
}

#[test]
fn a_killed_owner_is_followed_by_another() {
    let (mut cluster, sockets, checker) = cluster_of("cluster-owner", 3);
    // The client stays where it is, on a node that is never killed.
    let place = cluster.other_than(&[cluster.wait_until_served("v")]);
    let load = Load::start(checker, &sockets[place as usize]);
    for _ in 0..2 * rounds() {
        let victim = match cluster.wait_until_served("v") {
            owner if owner == place => {
                let other = cluster.other_than(&[place]);
                cluster.weft(&["vdisk", "move", "v", "--to", &other.to_string()]);
                cluster.wait_for_owner("v", |owner| owner == other)
            }
            owner => owner,
        };
        load.go_on(SOME);
        load.tell_pause("before, forwarded");
        cluster.member(victim).kill();
        load.go_on(SOME);
        load.tell_pause("the owner was killed");
        cluster.member(victim).start();
        load.go_on(SOME);
        cluster.wait_until_whole();
        load.tell_pause("it came back");
    }
    cluster.compare_and_check(&sockets, load.stop());
}

#[test]
fn who_sees_that_a_vdisk_has_grown_can_use_what_it_got() {
    let (mut cluster, sockets, checker) = cluster_of("cluster-grown", 3);
    let owner = cluster.wait_until_served("v");
    let place = cluster.other_than(&[owner]);
    for number in 1..=4 * rounds() {
        let size = VDISK_BYTES as u64 + number * (8 << 20);
        // When it goes on, a client's request may reach it before the news of what was changed meanwhile.
        cluster.member(owner).suspend();
        cluster.member(place).weft(&["vdisk", "resize", "v", "--size", &size.to_string()]);
        let mut client = NbdClient::connect_patiently(&sockets[place as usize], "v");
        let at = size - BLOCK as u64;
        let data = vec![number as u8; BLOCK];
        client.submit_write(at, &data).expect("it is sent");
        cluster.member(owner).resume();
        let written = client.next_reply().expect("it is answered");
        assert_eq!(written.error, 0, "the new end can be written at once");
        assert_eq!(client.read(at, BLOCK as u32), Ok(data));
        client.disconnect();
        cluster.wait_until_served("v");
    }
    cluster.compare_and_check(&sockets, checker);
}

#[test]
fn an_owner_that_stood_still_serves_nothing_stale() {
    let (mut cluster, sockets, mut checker) = cluster_of("cluster-stale", 3);
    for _ in 0..rounds() {
        let old = cluster.wait_until_served("v");
        let place = cluster.other_than(&[old]);
        // Its reads shall be answered by the one who stood still.
        let mut late = NbdClient::connect_patiently(&sockets[old as usize], "v");
        late.read(0, BLOCK as u32).expect("it reads before");
        let load = Load::start(checker, &sockets[place as usize]);
        load.go_on(SOME);
        load.tell_pause("before, forwarded");
        cluster.member(old).suspend();
        load.go_on(2 * SOME);
        load.tell_pause("the owner stood still");
        checker = load.stop();
        // They lie in its socket when it wakes, before it has heard of anything.
        let blocks = 0..64_usize;
        for block in blocks.clone() {
            late.submit_read((block * BLOCK) as u64, BLOCK as u32).expect("there is room in the socket");
        }
        cluster.member(old).resume();
        for _ in blocks {
            let done = late.next_reply().expect("the node goes on");
            assert_eq!(done.error, 0, "it asks the new owner");
            // Cookies count requests from 1; the first was the read before.
            checker.check_read(done.cookie as usize - 2, &done.data);
        }
        checker.verify_all(&mut late);
        late.disconnect();
        cluster.wait_until_whole();
    }
    cluster.compare_and_check(&sockets, checker);
}

#[test]
fn a_drive_that_is_cut_off_and_lost_is_replaced() {
    let (mut cluster, sockets, checker) = cluster_of("cluster-drive", 3);
    let owner = cluster.wait_until_served("v");
    let victim = cluster.other_than(&[owner]);
    let load = Load::start(checker, &sockets[owner as usize]);
    load.go_on(SOME);
    load.tell_pause("before");
    let drive = cluster.drive_of(victim);
    let dir = cluster.member(victim).dir.clone();
    let files = ["log", "data"].map(|area| dir.join(format!("drive-{drive}.{area}")));
    for file in &files {
        let file = std::fs::File::options().write(true).open(file).expect("the drive is a file");
        file.set_len(0).expect("it can be cut");
    }
    load.go_on(SOME);
    load.tell_pause("a drive was cut to nothing under its node");
    // When it starts again it sees that this is no drive of its own.
    cluster.member(victim).kill();
    for file in &files {
        std::fs::remove_file(file).expect("it can be removed");
    }
    cluster.member(victim).start();
    load.go_on(SOME);
    load.tell_pause("its node started without it");
    cluster.weft(&["drive", "remove", &drive.to_string(), "--lost"]);
    cluster.member(victim).weft(&["drive", "add", "--files", "1", "--size", "1G"]);
    cluster.wait_until_whole();
    load.go_on(SOME);
    load.tell_pause("it was given up, another was added, and everything was copied");
    cluster.compare_and_check(&sockets, load.stop());
}

/// Blocks of one write.
const CHUNK: usize = 64;

fn chunk(first: usize, version: u64) -> Vec<u8> {
    (first..first + CHUNK).flat_map(|block| content(block, version)).collect()
}

#[test]
fn a_full_cluster_refuses_writes_and_loses_nothing() {
    let options = Options { drive_size: "192M", ..Options::default() };
    let mut cluster = Cluster::start("cluster-full", options);
    cluster.create("v", "1G");
    let owner = cluster.wait_until_served("v");
    let place = cluster.other_than(&[owner]);
    let socket = cluster.export("v", place);
    let mut client = NbdClient::connect_patiently(&socket, "v");
    let chunks = (1 << 30) / (CHUNK * BLOCK);
    let full = (0..chunks).find(|number| {
        match client.write((number * CHUNK * BLOCK) as u64, &chunk(number * CHUNK, 1)) {
            Ok(()) => false,
            Err(error) => {
                assert_eq!(error, ENOSPC, "a full pool is told as such");
                true
            }
        }
    });
    let full = full.expect("the vDisk is larger than the cluster");
    step(&format!("full after {full} writes of {} KiB", CHUNK * BLOCK / 1024));
    assert!(full > 100, "most of the drives could be used");
    let check_all = |client: &mut NbdClient, from: usize| {
        for number in from..full {
            let bytes = client.read((number * CHUNK * BLOCK) as u64, (CHUNK * BLOCK) as u32);
            let bytes = bytes.expect("reads go on");
            assert!(bytes == chunk(number * CHUNK, 1), "chunk {number} is as it was acknowledged");
        }
    };
    check_all(&mut client, 0);
    // The owner goes while everything is full.
    cluster.member(owner).kill();
    check_all(&mut client, 0);
    cluster.member(owner).start();
    step("everything reads back, also after the owner was killed; trims");
    for number in 0..full / 2 {
        client.trim((number * CHUNK * BLOCK) as u64, (CHUNK * BLOCK) as u32).expect("trims go on");
    }
    for number in 0..full / 4 {
        wait_for("writes go on after trims", || {
            let written = client.write((number * CHUNK * BLOCK) as u64, &chunk(number * CHUNK, 2));
            written.map_err(|error| {
                assert_eq!(error, ENOSPC, "nothing but a full pool stops a write");
                "still full".to_string()
            })
        });
    }
    check_all(&mut client, full / 2);
    client.disconnect();
    cluster.wait_until_whole();
    cluster.cut_and_check();
}

#[test]
fn the_config_store_may_go_and_come_back() {
    let (mut cluster, sockets, checker) = cluster_of("cluster-etcd", 3);
    let place = cluster.other_than(&[cluster.wait_until_served("v")]);
    let load = Load::start(checker, &sockets[place as usize]);
    for _ in 0..rounds() {
        load.go_on(SOME);
        load.tell_pause("before, forwarded");
        cluster.etcd.kill();
        std::thread::sleep(Duration::from_secs(1));
        cluster.etcd.launch();
        load.go_on(SOME);
        load.tell_pause("etcd was away for a second");
        cluster.wait_until_whole();
        load.go_on(SOME);
        cluster.etcd.kill();
        std::thread::sleep(Duration::from_secs(8));
        load.tell_pause("etcd is away for longer than leases last");
        let status = cluster.member(place).json(&["status"]).expect("a node answers without etcd");
        assert_eq!(status["state"], "without lease", "{status}");
        assert!(status["trouble"].to_string().contains("no lease"), "{status}");
        cluster.etcd.launch();
        load.go_on(SOME);
        load.tell_pause("etcd is back");
        cluster.wait_until_whole();
    }
    cluster.compare_and_check(&sockets, load.stop());
}

#[test]
fn a_vdisk_moves_under_load() {
    let (cluster, sockets, checker) = cluster_of("cluster-move", 3);
    let place = cluster.other_than(&[cluster.wait_until_served("v")]);
    let load = Load::start(checker, &sockets[place as usize]);
    for round in 0..4 * rounds() {
        load.go_on(SOME);
        load.tell_pause("before");
        let to = (cluster.wait_until_served("v") + 1 + (round % 2) as u32) % 3;
        cluster.weft(&["vdisk", "move", "v", "--to", &to.to_string()]);
        cluster.wait_for_owner("v", |owner| owner == to);
        load.go_on(SOME);
        load.tell_pause(&format!(
            "moved to {}",
            if to == place { "the client's node" } else { "another node" }
        ));
    }
    cluster.wait_until_whole();
    cluster.compare_and_check(&sockets, load.stop());
}

#[test]
fn a_node_is_drained_and_removed() {
    let (mut cluster, sockets, checker) = cluster_of("cluster-drain", 4);
    let leaving = cluster.wait_until_served("v");
    let place = cluster.other_than(&[leaving]);
    let load = Load::start(checker, &sockets[place as usize]);
    load.go_on(SOME);
    load.tell_pause("before");
    cluster.member(place).weft(&["node", "drain", &leaving.to_string(), "--no-wait"]);
    cluster.wait_for_owner("v", |owner| owner != leaving);
    load.go_on(SOME);
    load.tell_pause("the owner's node is being drained, and the vDisk has moved");
    wait_for("the node is empty", || {
        let view = cluster.node_view(leaving)?;
        if view["drained"].as_bool() == Some(true) { Ok(()) } else { Err(view.to_string()) }
    });
    load.tell_pause("everything was moved off it");
    let empty = cluster.drive_of(leaving);
    let drives = cluster.json(&["drive", "ls"]).expect("the cluster lists its drives");
    for drive in drives.as_array().expect("a list") {
        assert_eq!(drive["needed"], drive["drive"] != empty, "all but that of the drained node: {drive}");
    }
    cluster.member(place).weft(&["node", "remove", &leaving.to_string()]);
    let code = cluster.member(leaving).wait_for_the_end();
    assert_eq!(code, Some(2), "what was removed says so when it ends, as at every start");
    load.go_on(SOME);
    cluster.wait_until_whole();
    load.tell_pause("it was removed, and has ended");
    step("three nodes are left, and with a vDisk of three copies none can go");
    let drain = ["node", "drain", &place.to_string(), "--no-wait"];
    let is_refused = |cluster: &mut Cluster, arguments: &[&str], why: &str| {
        let refused = cluster.member(place).try_weft(arguments);
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && told.contains(why), "{arguments:?}: {told}");
    };
    cluster.member(place).weft(&["container", "create", "many"]);
    cluster.member(place).weft(&[
        "vdisk",
        "create",
        "w",
        "--size",
        "16M",
        "--container",
        "many",
        "--rf",
        "3",
    ]);
    is_refused(&mut cluster, &drain, "vDisk w has 3: ");
    step("what its container says is what counts, whatever it had before");
    cluster.member(place).weft(&["container", "set", "many", "--rf", "2"]);
    cluster.member(place).weft(&["vdisk", "set", "w", "--rf", "inherit"]);
    cluster.member(place).weft(&drain);
    cluster.member(place).weft(&["node", "drain", &place.to_string(), "--undo"]);
    cluster.member(place).weft(&["vdisk", "rm", "w", "--force"]);
    cluster.member(place).weft(&["vdisk", "create", "w", "--size", "16M", "--container", "many"]);
    cluster.member(place).weft(&["container", "set", "many", "--rf", "3"]);
    is_refused(&mut cluster, &drain, "vDisk w has 3, as container many says");
    step("nor can a drive, which is the only one of its node");
    let drive = cluster.drive_of(place).to_string();
    is_refused(&mut cluster, &["drive", "remove", &drive, "--no-wait"], "without drive");
    cluster.member(place).weft(&["vdisk", "rm", "w", "--force"]);
    cluster.wait_until_whole();
    let left: Vec<PathBuf> =
        cluster.numbers().iter().map(|number| sockets[*number as usize].clone()).collect();
    cluster.compare_and_check(&left, load.stop());
}

#[test]
fn a_vdisk_that_cannot_be_opened_does_not_keep_a_node_from_being_emptied() {
    let mut cluster = Cluster::start("cluster-stuck", Options::default());
    cluster.weft(&["vdisk", "create", "w", "--size", "16M", "--rf", "1"]);
    let lost = cluster.wait_until_served("w");
    let socket = cluster.export("w", lost);
    write(&nbd_uri(&socket, "w"), 7, "0 1M");
    cluster.member(lost).kill();
    let owner_is = |cluster: &Cluster, is_right: &dyn Fn(u64) -> bool| {
        let shown = cluster.json(&["vdisk", "show", "w"])?;
        let owner = shown["owner_node"].as_u64().filter(|owner| is_right(*owner));
        owner.ok_or_else(|| shown.to_string())
    };
    let mut stuck = 0;
    wait_for("another node is to serve it, and cannot", || {
        stuck = owner_is(&cluster, &|owner| owner != u64::from(lost))?;
        Ok(())
    });
    let third = cluster.other_than(&[lost, stuck as u32]);
    step(&format!("node {stuck}, which cannot open it, is emptied"));
    cluster.weft(&["node", "drain", &stuck.to_string(), "--no-wait"]);
    wait_for("it goes on", || owner_is(&cluster, &|owner| owner == u64::from(third)).map(drop));
    cluster.weft(&["node", "drain", &stuck.to_string(), "--undo"]);
    cluster.start_all();
    step("who exports it while it is being opened waits for that");
    let place = format!("unix:{}", cluster.socket("w", third).display());
    let began = Instant::now();
    let exported = cluster.member(third).try_weft(&["vdisk", "export", "w", "--nbd", &place]);
    assert!(exported.status.success() || began.elapsed() > Duration::from_secs(9), "{exported:?} at once");
    if !exported.status.success() {
        cluster.wait_until_served("w");
        cluster.export("w", third);
    }
    expect(&nbd_uri(&cluster.socket("w", third), "w"), 7, "0 1M");
    cluster.cut_and_check();
}

#[test]
fn all_nodes_restart_one_after_the_other() {
    let (mut cluster, sockets, checker) = cluster_of("cluster-rolling", 3);
    let mut checker = checker;
    for round in 0..rounds() {
        // The client is on one node while the others restart, and on another one for the last.
        let place = (round % 3) as u32;
        let next = (place + 1) % 3;
        let load = Load::start(checker, &sockets[place as usize]);
        for number in (0..3).filter(|number| *number != place) {
            restart(&mut cluster, &load, number);
        }
        checker = load.stop();
        let load = Load::start(checker, &sockets[next as usize]);
        restart(&mut cluster, &load, place);
        checker = load.stop();
    }
    cluster.compare_and_check(&sockets, checker);
}

fn restart(cluster: &mut Cluster, load: &Load, number: u32) {
    load.go_on(SOME);
    load.tell_pause("before");
    let was_owner = cluster.wait_until_served("v") == number;
    cluster.member(number).stop();
    load.go_on(SOME);
    load.tell_pause(if was_owner { "the owner's node was stopped" } else { "a node was stopped" });
    cluster.member(number).start();
    load.go_on(SOME);
    cluster.wait_until_whole();
    load.tell_pause("it was started again, and everything was copied");
}

#[test]
fn nothing_acknowledged_is_lost_when_clients_lose_their_nodes() {
    let (mut cluster, sockets, mut checker) = cluster_of("cluster-cut", 3);
    let mut random = SmallRng::seed_from_u64(3);
    for round in 0..4 * rounds() {
        let place = random.random_range(0..3);
        let mut client = NbdClient::connect_patiently(&sockets[place as usize], "v");
        checker.verify_all(&mut client);
        checker.load(&mut client, 16, random.random_range(200..3000)).expect("the connection holds");
        let what = match round % 4 {
            0 => {
                cluster.member(place).kill();
                "the client's node was killed"
            }
            1 => {
                let owner = cluster.wait_until_served("v");
                cluster.member(owner).kill();
                cluster.member(place).kill();
                "the client's node and the owner were killed"
            }
            2 => {
                cluster.kill_all();
                "all nodes were killed"
            }
            _ => {
                cluster.kill_all();
                cluster.etcd.kill();
                cluster.etcd.launch();
                "all nodes and etcd were killed"
            }
        };
        // What had been sent before the end counts as acknowledged.
        checker.drain(&mut client);
        checker.connection_lost();
        if round % 4 == 0 {
            let mut other = NbdClient::connect_patiently(&sockets[(place as usize + 1) % 3], "v");
            // The owner lives, and goes on with what it had got from the node that was killed.
            checker.look_at_all(&mut other);
        }
        cluster.start_all();
        cluster.wait_until_whole();
        step(&format!("round {round}: {what}; {} writes acknowledged so far", checker.acknowledged));
    }
    cluster.compare_and_check(&sockets, checker);
}

#[test]
fn troubles_of_all_kinds_follow_each_other() {
    let (mut cluster, sockets, checker) = cluster_of("cluster-all", 3);
    let mut random = SmallRng::seed_from_u64(9);
    let mut checker = checker;
    for round in 0..3 * rounds() {
        let place = random.random_range(0..3);
        let load = Load::start(checker, &sockets[place as usize]);
        load.go_on(SOME);
        load.tell_pause("before");
        let others: Vec<u32> = (0..3).filter(|number| *number != place).collect();
        let victim = *others.choose(&mut random).expect("there are others");
        let what = match random.random_range(0..4) {
            0 => {
                cluster.member(victim).kill();
                std::thread::sleep(Duration::from_millis(random.random_range(0..6000)));
                cluster.member(victim).start();
                "a node was killed and started"
            }
            1 => {
                cluster.member(victim).suspend();
                std::thread::sleep(Duration::from_millis(random.random_range(0..8000)));
                cluster.member(victim).resume();
                "a node stood still"
            }
            2 => {
                // Killed while the others have no config store to tell them what to do.
                cluster.etcd.kill();
                cluster.member(victim).kill();
                std::thread::sleep(Duration::from_millis(random.random_range(0..6000)));
                cluster.etcd.launch();
                cluster.member(victim).start();
                "a node and etcd were killed and started"
            }
            _ => {
                let to = (cluster.wait_until_served("v") + 1) % 3;
                // Refused as long as that node has no lease, after the trouble before.
                let by = cluster.other_than(&[]);
                wait_for("it moves", || {
                    let moved = cluster.member(by).try_weft(&["vdisk", "move", "v", "--to", &to.to_string()]);
                    moved.status.success().then_some(()).ok_or_else(|| format!("{moved:?}"))
                });
                cluster.member(victim).kill();
                cluster.member(victim).start();
                "a node was killed while the vDisk moved"
            }
        };
        load.go_on(SOME);
        load.tell_pause(&format!("round {round}: {what}"));
        checker = load.stop();
        // Every other time the next trouble comes while the repairs of this one are under way.
        if round % 2 == 1 {
            cluster.wait_until_whole();
        }
    }
    cluster.wait_until_whole();
    cluster.compare_and_check(&sockets, checker);
}

#[test]
fn who_sends_a_vdisk_elsewhere_last_has_the_last_word() {
    let (mut cluster, sockets, checker) = cluster_of("cluster-sent", 3);
    let load = Load::start(checker, &sockets[0]);
    for _ in 0..3 * rounds() {
        load.go_on(SOME);
        let owner = cluster.wait_until_served("v");
        let others: Vec<u32> = (0..3).filter(|number| *number != owner).collect();
        let send = |to: u32, by: &Path| {
            let (to, by) = (to.to_string(), by.to_str().expect("a plain name").to_string());
            std::thread::spawn(move || weft_output(&["vdisk", "move", "v", "--to", &to, "--dir", &by]))
        };
        let by = cluster.member(0).dir.clone();
        let first = send(others[0], &by);
        // It settles for a while under load: the second word comes in between, mostly.
        std::thread::sleep(Duration::from_millis(50));
        let second = send(others[1], &by);
        for (to, moved) in others.iter().zip([first, second]) {
            let moved = moved.join().expect("nothing panics");
            let words =
                [moved.stdout, moved.stderr].map(|words| String::from_utf8_lossy(&words).into_owned());
            let there = format!("is served by node {to} now\n");
            let is_there = moved.status.success() && words[0].ends_with(&there);
            let is_sent_on = words[1].contains("sent to another node meanwhile");
            assert!(
                is_there || is_sent_on,
                "it goes to node {to}, or whoever sent it is told otherwise: {words:?}"
            );
        }
        cluster.wait_for_owner("v", |now| now != owner);
    }
    cluster.compare_and_check(&sockets, load.stop());
}
