//! Many vDisks of a real cluster that nobody uses: their nodes ask etcd for nothing but their leases.
//! WEFT_IDLE_VDISKS says how many (300; with 10,000 it takes three minutes).

use crate::support::cluster::{Cluster, Options, wait_for};
use crate::support::http;
use crate::support::step;
use std::time::{Duration, Instant};

/// Clones that one command makes at most.
const AT_ONCE: u64 = 1000;
const QUIET: Duration = Duration::from_secs(10);

/// How often etcd was asked for each kind of thing, as it says itself.
fn asked(cluster: &Cluster, method: &str) -> u64 {
    let address = cluster.etcd.url.trim_start_matches("http://");
    let metrics = http::request(address, "GET", "/metrics", "").body;
    let wanted = format!("grpc_server_started_total{{grpc_method=\"{method}\",");
    let lines = metrics.lines().filter(|line| line.starts_with(&wanted));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
}

#[test]
fn idle_vdisks_leave_etcd_alone() {
    let wanted = std::env::var("WEFT_IDLE_VDISKS").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let cluster = Cluster::start("cluster-idle", Options::default());
    cluster.create("v", "64M");
    cluster.weft(&["snapshot", "create", "v", "s"]);
    let began = Instant::now();
    for first in (0..wanted).step_by(AT_ONCE as usize) {
        let count = AT_ONCE.min(wanted - first).to_string();
        cluster.weft(&["clone", "v@s", &format!("w{first}"), "--count", &count]);
    }
    cluster.wait_until_whole();
    step(&format!("{wanted} vDisks were made and are served after {:.1} s", began.elapsed().as_secs_f64()));
    assert!(asked(&cluster, "Txn") >= wanted, "making them asked for something");
    // What follows their beginning ends some time.
    let mut last = asked(&cluster, "Txn");
    wait_for("nothing is written any more", || {
        std::thread::sleep(QUIET);
        let now = asked(&cluster, "Txn");
        let written = now - std::mem::replace(&mut last, now);
        if written == 0 { Ok(()) } else { Err(format!("{written} transactions in {QUIET:?}")) }
    });
    let nodes = cluster.numbers().len() as u64;
    let methods = ["Txn", "Put", "DeleteRange", "Watch", "LeaseGrant", "LeaseRevoke", "Range"];
    let (began, before) = (Instant::now(), methods.map(|method| asked(&cluster, method)));
    std::thread::sleep(QUIET);
    let after = methods.map(|method| asked(&cluster, method));
    let passed = began.elapsed();
    for ((method, before), after) in methods.into_iter().zip(before).zip(after) {
        // Each node renews its lease once a second, which a small read confirms.
        let most = if method == "Range" { nodes * (passed.as_secs() + 2) } else { 0 };
        assert!(after - before <= most, "{} times {method} in {passed:?}", after - before);
        step(&format!("{method}: {} in {:.1} s", after - before, passed.as_secs_f64()));
    }
}
