//! Who does not answer, and how that is told.

use super::cluster::{Cluster, LONG};
use super::proxy::Direction;
use crate::shard_loop::{Mail, News, PeerTrouble};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use weft_engine::ShardId;
use weft_engine::buffer::zeros;
use weft_engine::cluster::detection::{CRASHED_US, SILENT_US};
use weft_engine::interface::{Reply, Request};

fn lost(shard: ShardId, why: PeerTrouble) -> News {
    News::PeerLost { shard, why }
}

fn write() -> Request {
    Request::Write { offset: 0, data: zeros(4096) }
}

/// Sleeps so long. False: this thread had to wait for the machine meanwhile.
fn stays_awake(duration: Duration) -> bool {
    let began = Instant::now();
    let mut longest = Duration::ZERO;
    while began.elapsed() < duration {
        let fell_asleep = Instant::now();
        std::thread::sleep(Duration::from_millis(10));
        longest = longest.max(fell_asleep.elapsed());
    }
    longest < Duration::from_millis(300)
}

#[test]
fn nobody_is_lost_in_a_quiet_cluster() {
    let cluster = Cluster::start(3);
    let mut before = cluster.statistics(0);
    while !stays_awake(Duration::from_micros(2 * SILENT_US)) {
        // The machine stood still, which may well look like loss: once more.
        (0..3).for_each(|node| drop(cluster.take_news(node)));
        before = cluster.statistics(0);
    }
    for node in 0..3 {
        assert_eq!(cluster.take_news(node), [], "node {node}");
    }
    let after = cluster.statistics(0);
    let said = after.lanes["log"].messages_sent - before.lanes["log"].messages_sent;
    assert!((2..=100).contains(&said), "{said} frames to ask after two shards, and to answer them");
    assert_eq!((after.reconnects, after.dropped), (before.reconnects, before.dropped));
}

#[test]
fn a_node_that_stops_is_gone_and_comes_back() {
    let mut cluster = Cluster::start(2);
    let other = cluster.nodes[1].shard;
    let began = Instant::now();
    cluster.stop_node(1);
    assert_eq!(cluster.wait_for_news(0, &lost(other, PeerTrouble::Gone)).len(), 1);
    assert!(began.elapsed() >= Duration::from_micros(CRASHED_US), "not before its time");
    let waiting = cluster.ask(0, write());
    // Told once, however long it lasts.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(cluster.take_news(0), []);
    assert_eq!(cluster.statistics(0).lost, 1);
    cluster.start_node(1, false);
    assert_eq!(cluster.wait_for_news(0, &News::PeerBack { shard: other }).len(), 1);
    assert_eq!(waiting.recv_timeout(LONG), Ok(Reply::Done));
}

#[test]
fn a_wire_that_is_cut_and_made_again_at_once_loses_nobody() {
    let cluster = Cluster::start(2);
    for _ in 0..3 {
        let before = cluster.statistics(0).reconnects;
        cluster.nodes[1].wire.cut();
        assert_eq!(cluster.ask(0, write()).recv_timeout(LONG), Ok(Reply::Done));
        assert!(cluster.statistics(0).reconnects > before);
    }
    assert_eq!(cluster.take_news(0), []);
}

#[test]
fn a_node_that_stands_still_is_silent_although_its_connections_stand() {
    let cluster = Cluster::start(2);
    let (node, other) = (cluster.nodes[0].shard, cluster.nodes[1].shard);
    let hold = |held| {
        for wire in [&cluster.nodes[0].wire, &cluster.nodes[1].wire] {
            wire.hold(Direction::ToNode, held);
            wire.hold(Direction::FromNode, held);
        }
    };
    let began = Instant::now();
    hold(true);
    assert_eq!(cluster.wait_for_news(0, &lost(other, PeerTrouble::Silent)).len(), 1);
    assert_eq!(cluster.wait_for_news(1, &lost(node, PeerTrouble::Silent)).len(), 1);
    assert!(began.elapsed() > Duration::from_micros(SILENT_US / 2), "not before its time");
    let waiting = cluster.ask(0, write());
    hold(false);
    assert_eq!(cluster.wait_for_news(0, &News::PeerBack { shard: other }).len(), 1);
    assert_eq!(cluster.wait_for_news(1, &News::PeerBack { shard: node }).len(), 1);
    assert_eq!(waiting.recv_timeout(LONG), Ok(Reply::Done));
}

#[test]
fn a_node_that_speaks_and_does_not_hear_is_silent() {
    let cluster = Cluster::start(2);
    let (node, other) = (cluster.nodes[0].shard, cluster.nodes[1].shard);
    // Node 1 hears nothing of node 0 any more: neither what is asked of it nor what it is answered.
    let hold = |held| {
        cluster.nodes[1].wire.hold(Direction::ToNode, held);
        cluster.nodes[0].wire.hold(Direction::FromNode, held);
    };
    hold(true);
    cluster.wait_for_news(0, &lost(other, PeerTrouble::Silent));
    cluster.wait_for_news(1, &lost(node, PeerTrouble::Silent));
    hold(false);
    cluster.wait_for_news(0, &News::PeerBack { shard: other });
    cluster.wait_for_news(1, &News::PeerBack { shard: node });
    // Only the questions of node 0 do not arrive. Node 1 has nothing to complain of.
    cluster.nodes[1].wire.hold(Direction::ToNode, true);
    cluster.wait_for_news(0, &lost(other, PeerTrouble::Silent));
    assert_eq!(cluster.take_news(1), []);
    // A connection that is cut meanwhile changes nothing, and nothing is told twice.
    cluster.nodes[1].wire.cut();
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(cluster.take_news(0), []);
    cluster.nodes[1].wire.hold(Direction::ToNode, false);
    cluster.wait_for_news(0, &News::PeerBack { shard: other });
}

#[test]
fn who_was_never_reached_is_lost_too_and_who_is_not_known_any_more_is_forgotten() {
    let cluster = Cluster::start(2);
    let nobody = ShardId(640);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = closed.local_addr().expect("it is bound");
    drop(closed);
    let mut addresses = cluster.addresses(0);
    addresses.insert(nobody, address);
    cluster.send(0, Mail::Peers(addresses));
    assert_eq!(cluster.wait_for_news(0, &lost(nobody, PeerTrouble::NeverReached)).len(), 1);
    assert_eq!((cluster.statistics(0).answering, cluster.statistics(0).lost), (1, 1));
    cluster.send(0, Mail::Peers(BTreeMap::new()));
    assert_eq!((cluster.statistics(0).answering, cluster.statistics(0).lost), (0, 0));
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(cluster.take_news(0), []);
}
