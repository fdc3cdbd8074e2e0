//! Following the store: whatever happens to etcd and the wires, who takes the news has in the end what is stored.

use crate::proxy::{Proxy, Wire};
use crate::server::{Server, client};
use crate::stories::{a_drive, a_node, a_vdisk, alive, five_seconds};
use crate::wait_for;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Receiver;
use weft_node::config::cluster::{ClusterConfig, ClusterStore, News, NodeLease};
use weft_node::config::etcd::{Compare, EtcdError, Request, Transaction};

/// What a follower knows.
struct Mirror {
    news: Receiver<News>,
    config: Option<ClusterConfig>,
    /// How often everything was loaded.
    loads: u32,
}

impl Mirror {
    fn of(cluster: &ClusterStore) -> Self {
        Self { news: cluster.follow(), config: None, loads: 0 }
    }

    fn take_news(&mut self) {
        while let Ok(news) = self.news.try_recv() {
            match news {
                News::Loaded(config) => {
                    self.loads += 1;
                    self.config = Some(*config);
                }
                News::Changed { revision, changes } => {
                    self.config.as_mut().expect("all comes before changes").apply(revision, changes);
                }
                News::Older(error) => panic!("nobody remembers anything: {error}"),
            }
        }
    }

    /// Waits until it knows what `cluster` holds.
    fn expect_contents_of(&mut self, cluster: &ClusterStore) {
        let stored = cluster.load().expect("it loads");
        wait_for("the follower knows what is stored", || {
            self.take_news();
            (self.config.as_ref()? == &stored).then_some(())
        });
    }
}

/// Some changes of every kind.
fn live_a_little(cluster: &ClusterStore, turn: u32) {
    let node = cluster.join(&a_node("n")).expect("it joins").record.node;
    let drive = cluster.add_drive(&a_drive(node)).expect("it is added");
    let second = cluster.add_drive(&a_drive(node)).expect("it is added");
    cluster.change_drive(drive.record.id(), |drive| drive.weight = 50).expect("it is changed");
    cluster.remove_drive(second.record.id(), second.revision).expect("it is removed");
    let vdisk = cluster.create_vdisk(&a_vdisk(&format!("vdisk-{turn}"))).expect("it is made");
    cluster.take_epoch(vdisk.record.id(), vdisk.revision, None, None).expect("nobody else does");
    if turn.is_multiple_of(2) {
        cluster.remove_vdisk(vdisk.record.id()).expect("it is removed");
    }
}

#[test]
fn a_follower_knows_what_is_stored() {
    let server = Server::start();
    let cluster = server.new_cluster();
    live_a_little(&cluster, 0);
    let mut mirror = Mirror::of(&cluster);
    for turn in 1..6 {
        live_a_little(&cluster, turn);
        mirror.expect_contents_of(&cluster);
    }
    let lease = NodeLease::take(cluster.etcd(), five_seconds(), || ()).expect("a lease is granted");
    cluster.announce(&alive(0, 1), lease.lease(), None).expect("it lives");
    cluster.campaign(0, lease.lease()).expect("etcd answers");
    mirror.expect_contents_of(&cluster);
    lease.give_up().expect("etcd answers");
    mirror.expect_contents_of(&cluster);
    assert_eq!(mirror.loads, 1, "nothing went wrong, so everything was told once");
}

#[test]
fn a_restart_of_etcd_loses_no_news() {
    let mut server = Server::start();
    let cluster = server.new_cluster();
    let mut mirror = Mirror::of(&cluster);
    for turn in 0..3 {
        live_a_little(&cluster, 2 * turn);
        mirror.expect_contents_of(&cluster);
        live_a_little(&cluster, 2 * turn + 1);
        // News may be under way.
        server.restart();
        live_a_little(&cluster, 100 + turn);
        mirror.expect_contents_of(&cluster);
    }
    assert_eq!(mirror.loads, 1, "each watch went on where the one before ended");
}

#[test]
fn a_follower_that_was_away_while_etcd_forgot_begins_anew() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let wire = Proxy::to(server.port());
    let far = ClusterStore::new(client(&[wire.endpoint()]), "test").expect("it is a name");
    let mut mirror = Mirror::of(&far);
    live_a_little(&cluster, 1);
    mirror.expect_contents_of(&cluster);

    wire.set(Wire::Cut);
    live_a_little(&cluster, 2);
    let revision = cluster.load().expect("it loads").revision;
    server.compact(revision);
    live_a_little(&cluster, 3);
    wire.set(Wire::Passes);
    mirror.expect_contents_of(&cluster);
    assert_eq!(mirror.loads, 2, "what was forgotten could only be loaded");

    let (first, end) = ("/weft/test/".to_string(), "/weft/test0".to_string());
    let mut late = cluster.etcd().watch(&first, &end, 1).expect("etcd answers");
    let refused = wait_for("etcd says that the revision is gone", || late.listen().err());
    assert_eq!(refused, EtcdError::Compacted);
    assert_eq!(cluster.etcd().range(&first, &end, 1).err(), Some(EtcdError::Compacted));
}

#[test]
fn a_wire_that_goes_silent_is_left() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let wire = Proxy::to(server.port());
    // The silent one first, then another way.
    let two_ways = client(&[wire.endpoint(), server.endpoint()]);
    let far = ClusterStore::new(two_ways.clone(), "test").expect("it is a name");
    let mut mirror = Mirror::of(&far);
    mirror.expect_contents_of(&cluster);
    // A node's lease is what notices.
    let _lease = NodeLease::take(&two_ways, five_seconds(), || ()).expect("a lease is granted");
    wire.set(Wire::Silent);
    live_a_little(&cluster, 1);
    mirror.expect_contents_of(&cluster);
    assert_eq!(mirror.loads, 1, "nothing was lost on the way");
}

/// For longer than one of them lasts. It is longer than a node's, so that a slow machine is not taken for a silent endpoint; all times
/// of its renewal are parts of it.
const LEASE: Duration = Duration::from_secs(6);

fn expect_to_last(lease: &NodeLease, what: &str) {
    let (deadline, until) = (lease.deadline(), Instant::now() + 2 * LEASE);
    while Instant::now() < until {
        assert!(!deadline.has_passed(), "{what}: the lease is over");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn endpoints_that_go_silent_cost_neither_the_lease_nor_news() {
    let server = Server::start();
    let cluster = server.new_cluster();
    for silent in [1, 2] {
        let wires: Vec<Proxy> = (0..silent).map(|_| Proxy::to(server.port())).collect();
        let mut endpoints: Vec<String> = wires.iter().map(Proxy::endpoint).collect();
        endpoints.push(server.endpoint());
        let etcd = client(&endpoints);
        let mut mirror = Mirror::of(&ClusterStore::new(etcd.clone(), "test").expect("it is a name"));
        mirror.expect_contents_of(&cluster);
        let lease = NodeLease::take(&etcd, LEASE, || ()).expect("a lease is granted");
        wires.iter().for_each(|wire| wire.set(Wire::Silent));
        live_a_little(&cluster, silent);
        expect_to_last(&lease, &format!("{silent} silent"));
        mirror.expect_contents_of(&cluster);
        assert_eq!(mirror.loads, 1, "nothing was lost on the way");
    }
}

#[test]
fn an_etcd_that_is_slow_is_not_taken_for_one_that_is_silent() {
    let server = Server::start();
    for ways in [1, 3] {
        let wires: Vec<Proxy> = (0..ways).map(|_| Proxy::to(server.port())).collect();
        let endpoints: Vec<String> = wires.iter().map(Proxy::endpoint).collect();
        let lease = NodeLease::take(&client(&endpoints), LEASE, || ()).expect("a lease is granted");
        wires.iter().for_each(|wire| wire.set(Wire::Slow));
        expect_to_last(&lease, &format!("{ways} slow"));
    }
}

#[test]
fn a_watch_that_hears_nothing_is_noticed_by_what_the_lease_hears() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let wire = Proxy::to(server.port());
    let etcd = client(&[wire.endpoint()]);
    let mut mirror = Mirror::of(&ClusterStore::new(etcd.clone(), "test").expect("it is a name"));
    live_a_little(&cluster, 1);
    mirror.expect_contents_of(&cluster);
    let _lease = NodeLease::take(&etcd, five_seconds(), || ()).expect("a lease is granted");
    assert_eq!(wire.deafen_watches(), 1);
    live_a_little(&cluster, 2);
    mirror.expect_contents_of(&cluster);
    assert_eq!((mirror.loads, etcd.disturbances()), (1, 0), "no request failed, and nothing was lost");
    assert_eq!(etcd.traffic().of(Request::Watch), 2, "another watch was begun");
}

#[test]
fn what_others_keep_in_the_same_etcd_is_left_alone() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let mut mirror = Mirror::of(&cluster);
    mirror.expect_contents_of(&cluster);
    let neighbour = ClusterStore::new(server.client(), "test2").expect("it is a name");
    neighbour.init(5).expect("there is room beside it");
    live_a_little(&neighbour, 0);
    let foreign =
        Transaction::new().when(Compare::absent("/weft/test/tiers/1")).put("/weft/test/tiers/1", "{}", None);
    cluster.etcd().transact(&foreign).expect("etcd answers");
    live_a_little(&cluster, 1);
    mirror.expect_contents_of(&cluster);
    assert_eq!(mirror.config.expect("it knows something").nodes.len(), 1);
    assert!(cluster.etcd().traffic().of(Request::Watch) >= 1);
}
