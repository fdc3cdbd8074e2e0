//! Snapshots in a cluster of real nodes: asked for anywhere, taken by the owner, read everywhere, finished by the next owner.

use crate::support::cluster::{Cluster, Options, rounds, wait_for};
use crate::support::counting::{Counting, told};
use crate::support::http::{api_of, request};
use crate::support::{WEFT, expect, nbd_uri, step, tool, try_tool, write};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn snapshots(cluster: &Cluster) -> Result<Vec<(String, String)>, String> {
    let all = cluster.json(&["snapshot", "ls"])?;
    let all = all.as_array().ok_or("`snapshot ls` gives no list")?;
    let text = |snapshot: &Value, field: &str| snapshot[field].as_str().unwrap_or("?").to_string();
    Ok(all.iter().map(|snapshot| (text(snapshot, "name"), text(snapshot, "state"))).collect())
}

#[test]
fn any_node_is_asked_for_any_snapshot_and_the_next_owner_has_them() {
    let mut cluster = Cluster::start("cluster-snapshots", Options::default());
    cluster.create("v", "64M");
    let sockets: Vec<_> = cluster.numbers().into_iter().map(|number| cluster.export("v", number)).collect();
    let owner = cluster.wait_until_served("v");
    let (one, other) =
        (cluster.other_than(&[owner]), cluster.other_than(&[owner, cluster.other_than(&[owner])]));
    write(&nbd_uri(&sockets[one as usize], "v"), 1, "0 16M");
    cluster.member(one).weft(&["snapshot", "create", "v", "s1"]);
    write(&nbd_uri(&sockets[other as usize], "v"), 2, "0 16M");
    // Through a node that does not serve the vDisk.
    let past = cluster.export("v@s1", other);
    expect(&nbd_uri(&past, "v@s1"), 1, "0 16M");
    assert!(tool(&["nbdinfo", &nbd_uri(&past, "v@s1")]).contains("is_read_only: true"));

    step("the owner is killed");
    cluster.member(owner).kill();
    cluster.wait_for_owner("v", |now| now != owner);
    expect(&nbd_uri(&past, "v@s1"), 1, "0 16M");
    cluster.member(one).weft(&["snapshot", "create", "v", "s2"]);
    write(&nbd_uri(&sockets[one as usize], "v"), 3, "0 16M");
    cluster.start_all();
    cluster.wait_until_whole();
    let past = cluster.export("v@s2", owner);
    expect(&nbd_uri(&past, "v@s2"), 2, "0 16M");

    step("they are removed");
    for name in ["v@s1", "v@s2"] {
        let refused = cluster.member(one).try_weft(&["snapshot", "rm", name]);
        assert!(!refused.status.success(), "what is exported somewhere stays");
        cluster.member(one).weft(&["vdisk", "unexport", name]);
        cluster.member(one).weft(&["snapshot", "rm", name]);
    }
    assert_eq!(snapshots(&cluster), Ok(Vec::new()));
    wait_for("nobody listens any more", || {
        let there = try_tool(&["nbdinfo", &nbd_uri(&past, "v@s2")]).status.success();
        if there { Err("it is still exported".to_string()) } else { Ok(()) }
    });
    for socket in &sockets {
        tool(&["qemu-io", "-r", "-f", "raw", "-c", "read -P 3 0 16M", &nbd_uri(socket, "v")]);
    }
    cluster.cut_and_check();
}

#[test]
fn what_a_killed_owner_began_the_next_one_finishes() {
    let mut cluster = Cluster::start("cluster-snapshot-kill", Options::default());
    cluster.create("v", "16M");
    let sockets: Vec<_> = cluster.numbers().into_iter().map(|number| cluster.export("v", number)).collect();
    for round in 0..3u8 {
        let owner = cluster.wait_until_served("v");
        let place = cluster.other_than(&[owner]);
        write(&nbd_uri(&sockets[place as usize], "v"), round + 1, "0 16M");
        let name = format!("s{round}");
        let mut asked = Command::new(WEFT)
            .args(["snapshot", "create", "v", &name, "--dir"])
            .arg(&cluster.member(place).dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("weft can be run");
        std::thread::sleep(Duration::from_millis(10 * u64::from(round)));
        cluster.member(owner).kill();
        cluster.wait_for_owner("v", |now| now != owner);
        let was_told = asked.wait().expect("it ends").success();
        wait_for("nothing is left half done", || {
            let all = snapshots(&cluster)?;
            if all.iter().all(|(_, state)| state == "ready") { Ok(()) } else { Err(format!("{all:?}")) }
        });
        let name = format!("v@{name}");
        let is_there = snapshots(&cluster).expect("they are listed").iter().any(|(there, _)| *there == name);
        step(&format!("round {round}: told {was_told}, there {is_there}"));
        assert!(is_there || !was_told, "what was told as taken is there");
        if is_there {
            let past = cluster.export(&name, place);
            expect(&nbd_uri(&past, &name), round + 1, "0 16M");
        }
        cluster.start_all();
        cluster.wait_until_whole();
    }
    // Something has to be left that can be looked at.
    cluster.create("w", "16M");
    let other = cluster.export("w", 0);
    tool(&["qemu-io", "-f", "raw", "-c", "write -P 1 0 1M", &nbd_uri(&other, "w")]);
    cluster.weft(&["vdisk", "rm", "v", "--force", "--with-snapshots"]);
    assert_eq!(snapshots(&cluster), Ok(Vec::new()));
    cluster.cut_and_check();
}

#[test]
fn a_group_is_whole_or_not_there_when_who_takes_it_is_killed() {
    let mut cluster = Cluster::start("cluster-group-kill", Options::default());
    let names = ["a", "b", "c", "d", "e", "f"];
    for (at, name) in names.iter().enumerate() {
        cluster.create(name, "16M");
        cluster.weft(&["vdisk", "move", name, "--to", &(at % 3).to_string()]);
    }
    cluster.weft(&["group", "create", "g", "a", "b", "c", "d", "e", "f"]);
    let began = Instant::now();
    cluster.member(0).weft(&["group", "snapshot", "g", "calm"]);
    let longest = began.elapsed();
    let rounds = 3 * rounds() as u32;
    for round in 0..rounds {
        let who = round % 3;
        let name = format!("s{round}");
        let mut asked = Command::new(WEFT)
            .args(["group", "snapshot", "g", &name, "--dir"])
            .arg(&cluster.member(who).dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("weft can be run");
        // Somewhere in the middle of what it does.
        std::thread::sleep(longest * (round + 1) / (rounds + 1));
        cluster.member(who).kill();
        let was_told = asked.wait().expect("it ends").success();
        cluster.start_all();
        for name in names {
            cluster.wait_until_served(name);
        }
        wait_for("nothing is left half done", || {
            let all = snapshots(&cluster)?;
            if all.iter().all(|(_, state)| state == "ready") { Ok(()) } else { Err(format!("{all:?}")) }
        });
        let all = snapshots(&cluster).expect("they are listed");
        let there = all.iter().filter(|(there, _)| there.ends_with(&format!("@{name}"))).count();
        step(&format!("round {round}: told {was_told}, {there} there"));
        assert!(
            there == names.len() || there == 0 && !was_told,
            "{there} of the group's snapshots are there: {all:?}"
        );
    }
    let calm = snapshots(&cluster).expect("they are listed");
    assert_eq!(calm.iter().filter(|(there, _)| there.ends_with("@calm")).count(), names.len());
    let socket = cluster.export("a", 0);
    write(&nbd_uri(&socket, "a"), 1, "0 1M");
    cluster.cut_and_check();
}

#[test]
fn the_snapshots_of_a_group_are_of_one_instant_across_owners() {
    let mut cluster = Cluster::start("cluster-group", Options::default());
    for name in ["a", "b"] {
        cluster.create(name, "16M");
    }
    let owner = cluster.wait_until_served("a");
    let other = cluster.other_than(&[owner]);
    cluster.weft(&["vdisk", "move", "b", "--to", &other.to_string()]);
    cluster.wait_for_owner("b", |now| now == other);
    // Asked of a node that serves neither; clients are on yet another way.
    let third = cluster.other_than(&[owner, other]);
    let (first, second) = (cluster.export("a", other), cluster.export("b", third));
    cluster.member(third).weft(&["group", "create", "g", "a", "b"]);
    let counting = Counting::start(&first, &second);
    let mut taken = 0;
    for round in 0..8 {
        let begun = counting.count.load(Ordering::Relaxed);
        wait_for("the client counts", || {
            let count = counting.count.load(Ordering::Relaxed);
            if count > begun + 5 { Ok(()) } else { Err(format!("{count} of {begun}")) }
        });
        let name = format!("s{round}");
        let output = cluster.member(third).try_weft(&["group", "snapshot", "g", &name]);
        if !output.status.success() {
            step(&format!("round {round}: {}", String::from_utf8_lossy(&output.stderr).trim()));
            wait_for("what failed is removed", || {
                let all = snapshots(&cluster)?;
                let left = all.iter().any(|(there, _)| there.ends_with(&format!("@{name}")));
                if left { Err(format!("{all:?}")) } else { Ok(()) }
            });
            continue;
        }
        taken += 1;
        let numbers = ["a", "b"].map(|vdisk| {
            let name = format!("{vdisk}@{name}");
            let socket = cluster.export(&name, owner);
            told(&socket, &name)
        });
        assert!(numbers[0] == numbers[1] || numbers[0] == numbers[1] + 1, "round {round}: {numbers:?}");
        assert!(numbers[0] > begun, "what was acknowledged before is in it");
    }
    assert!(taken > 0, "some were taken within a second");
    counting.stop();
    cluster.cut_and_check();
}

/// Whoever takes a group's snapshots may have stood still, and its clock with it: what it holds elsewhere was let go meanwhile, and it
/// hears so when it ends its holds.
#[test]
fn who_holds_a_vdisk_for_too_long_is_told_that_it_was_let_go() {
    let mut cluster = Cluster::start("cluster-holds", Options::default());
    cluster.create("v", "16M");
    let owner = cluster.wait_until_served("v");
    let family = cluster.json(&["vdisk", "show", "v"]).expect("it is there")["family"].clone();
    let api = api_of(&cluster.member(owner).dir);
    let hold = |holder: u32, release: bool| {
        let wanted = json!({ "holder": holder, "families": [family], "revision": 0, "release": release });
        request(&api, "POST", "/v1/internal/hold", &wanted.to_string())
    };
    // On a busy machine a second may be over before the second question.
    let in_time = (1..50).any(|holder| {
        assert_eq!(hold(holder, false).status, 200);
        hold(holder, true).status == 200
    });
    assert!(in_time, "a hold that stood until it was ended");
    assert_eq!(hold(100, false).status, 200);
    std::thread::sleep(Duration::from_millis(1_100));
    let late = hold(100, true);
    assert!(late.status == 500 && late.body.contains("within a second"), "{}: {}", late.status, late.body);
}
