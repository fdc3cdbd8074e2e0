//! What a cluster asks of etcd while nothing changes: nothing but its nodes' leases.

use crate::server::{Server, temporary_directory};
use crate::stories::{a_node, a_vdisk, alive};
use crate::wait_for;
use std::time::Duration;
use weft_node::config::cluster::{ClusterStore, News, NodeLease};
use weft_node::config::etcd::{Etcd, Request};

#[test]
fn an_idle_node_renews_its_lease_and_asks_nothing_else() {
    let server = Server::start();
    server.new_cluster();
    // As one node has it: one client for everything.
    let etcd: Etcd = server.client();
    let cluster = ClusterStore::new(etcd.clone(), "test").expect("it is a name");
    let cluster = cluster.remembering(&temporary_directory("quiet"), 77).expect("it can be read");
    let node = cluster.join(&a_node("first")).expect("it joins").record.node;
    for number in 0..50 {
        cluster.create_vdisk(&a_vdisk(&format!("vdisk-{number}"))).expect("it is made");
    }
    let mut news = cluster.follow();
    wait_for("everything is loaded", || matches!(news.try_recv(), Ok(News::Loaded(_))).then_some(()));
    wait_for("the watch was begun", || (etcd.traffic().of(Request::Watch) == 1).then_some(()));
    let lease = NodeLease::take(&etcd, Duration::from_secs(2), || ()).expect("a lease is granted");
    cluster.announce(&alive(node, 1), lease.lease(), None).expect("it lives");
    wait_for("its life is told", || matches!(news.try_recv(), Ok(News::Changed { .. })).then_some(()));

    let before = etcd.traffic();
    let renewals = |now: &weft_node::config::etcd::Traffic| {
        now.of(Request::LeaseKeepAlive) - before.of(Request::LeaseKeepAlive)
    };
    let after = wait_for("the lease is renewed some times", || {
        let now = etcd.traffic();
        (renewals(&now) >= 5).then_some(now)
    });
    // Each renewal is followed by one small read, which confirms that etcd's leader was one when it renewed.
    let reads = after.of(Request::Range) - before.of(Request::Range);
    assert!((renewals(&after) - 1..=renewals(&after)).contains(&reads), "{reads}");
    assert_eq!(after.total() - before.total(), renewals(&after) + reads, "nothing else was asked");
    let of_leases = [Request::LeaseKeepAlive, Request::Range];
    for request in Request::ALL.into_iter().filter(|request| !of_leases.contains(request)) {
        assert_eq!(after.of(request), before.of(request), "{request:?}");
    }
    assert!(!lease.deadline().has_passed());
}
