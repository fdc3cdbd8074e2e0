//! Limits in a cluster: set anywhere, kept by whoever serves the vDisk, over a move and a takeover.

use crate::support::cluster::{Cluster, Options, wait_for};
use crate::support::nbd::NbdClient;
use crate::support::step;
use std::path::Path;
use std::time::{Duration, Instant};

const LIMIT: f64 = 100.0;

/// Reads with eight in flight for two seconds, and sees that no more are answered than the limit allows.
fn expect_limited(socket: &Path) {
    let mut client = NbdClient::connect_patiently(socket, "v");
    // The first answer may have waited for an owner; from then on time counts.
    client.read(0, 4096).expect("it can be read");
    let (begun, mut answered) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(2) {
        while client.in_flight() < 8 {
            client.submit_read(0, 4096).expect("the connection holds");
        }
        assert_eq!(client.next_reply().expect("the connection holds").error, 0);
        answered += 1;
    }
    let seconds = begun.elapsed().as_secs_f64();
    // A burst of 100 ms, and one on top; what is in flight at the end is not counted.
    let allowed = LIMIT * (seconds + 0.1) + 1.0;
    assert!(f64::from(answered) <= allowed, "{answered} in {seconds} s: {allowed} at most");
    assert!(answered > 8, "{answered} in {seconds} s: it is a limit, not a standstill");
    client.disconnect();
}

#[test]
fn a_limit_goes_with_its_vdisk_wherever_that_is_served() {
    let mut cluster = Cluster::start("cluster-qos", Options::default());
    cluster.create("v", "64M");
    let owner = cluster.wait_until_served("v");
    let asker = cluster.other_than(&[owner]);
    let socket = cluster.export("v", asker);

    step("set at another node than the one that serves it");
    cluster.member(asker).weft(&["vdisk", "set", "v", "--iops-limit", "100"]);
    let mut client = NbdClient::connect_patiently(&socket, "v");
    // It hears of it a moment later than who asked.
    wait_for("the owner lets requests wait", || {
        for _ in 0..40 {
            client.submit_read(0, 4096).expect("the connection holds");
        }
        while client.in_flight() > 0 {
            client.next_reply().expect("the connection holds");
        }
        let owner = cluster.owner("v")?.ok_or("nobody serves it")?;
        let stats = cluster.member(owner).json(&["stats", "v"])?;
        match stats["vdisks"][0]["engine"]["throttled"].as_u64() {
            Some(1..) => Ok(()),
            _ => Err(stats.to_string()),
        }
    });
    client.disconnect();
    let shown = cluster.member(owner).json(&["vdisk", "show", "v"]).expect("it answers");
    assert_eq!(shown["iops_limit"].as_u64(), Some(100), "{shown}");
    expect_limited(&socket);

    step("a move");
    let next = cluster.other_than(&[owner, asker]);
    cluster.member(asker).weft(&["vdisk", "move", "v", "--to", &next.to_string()]);
    cluster.wait_for_owner("v", |now| now == next);
    expect_limited(&socket);

    step("a takeover");
    cluster.member(next).kill();
    cluster.wait_for_owner("v", |now| now != next);
    expect_limited(&socket);
    cluster.start_all();
    cluster.wait_until_whole();
}
