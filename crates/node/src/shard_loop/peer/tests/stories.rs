//! What a cluster of shards goes through: replication, cuts, restarts, clients far from their owner.

use super::client::Client;
use super::cluster::{Cluster, FAMILY, LONG, SIZE, wait_until};
use crate::shard_loop::Mail;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weft_engine::interface::{Reply, Request, RequestError};

const BLOCK: usize = 4096;

/// A block that says which write it is of.
fn stamp(block: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![version as u8; BLOCK];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes[8..16].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// Writes blocks at random with many requests in flight, each block by one request at a time, and checks what it reads.
struct Load {
    client: Client,
    random: SmallRng,
    /// What each block holds: the version last acknowledged.
    blocks: BTreeMap<u64, u64>,
    busy: BTreeMap<u64, (u64, u64, bool)>,
    version: u64,
}

impl Load {
    fn new(cluster: &Cluster, node: usize, seed: u64) -> Self {
        let client = Client::connect(cluster, node);
        let random = SmallRng::seed_from_u64(seed);
        Self { client, random, blocks: BTreeMap::new(), busy: BTreeMap::new(), version: 0 }
    }

    /// One more request, and one more reply.
    fn step(&mut self) {
        if self.client.in_flight() < 16 {
            let block = self.random.random_range(0..2000);
            if self.busy.values().all(|(other, _, _)| *other != block) {
                if self.random.random_bool(0.7) {
                    self.version += 1;
                    let cookie = self.client.submit_write(block * BLOCK as u64, &stamp(block, self.version));
                    self.busy.insert(cookie, (block, self.version, true));
                } else {
                    let cookie = self.client.submit_read(block * BLOCK as u64, BLOCK);
                    self.busy.insert(cookie, (block, 0, false));
                }
            }
            return;
        }
        self.take_reply();
    }

    fn take_reply(&mut self) {
        let (cookie, data) = self.client.reply();
        let (block, version, write) = self.busy.remove(&cookie).expect("a reply is for a request");
        if write {
            self.blocks.insert(block, version);
        } else {
            self.check(block, &data);
        }
    }

    fn check(&self, block: u64, data: &[u8]) {
        let expected = self.blocks.get(&block).map_or(vec![0; BLOCK], |&version| stamp(block, version));
        assert!(data == expected, "block {block} is not what was last acknowledged");
    }

    fn finish(&mut self) {
        while self.client.in_flight() > 0 {
            self.take_reply();
        }
    }

    fn check_all(&self, cluster: &Cluster, node: usize) {
        for &block in self.blocks.keys() {
            self.check(block, &cluster.read(node, block * BLOCK as u64, BLOCK as u32));
        }
    }
}

#[test]
fn a_family_lives_on_two_nodes_and_either_can_serve_it() {
    let mut cluster = Cluster::start(2);
    for at in 0..12u64 {
        cluster.write(0, at << 20, &vec![at as u8 + 1; 256 << 10]);
        cluster.write(0, (at << 20) + (512 << 10), &stamp(at, 1));
    }
    let log = cluster.statistics(1).lanes["log"].clone();
    assert!(log.bytes_received > 12 * (256 << 10), "each record went to the other node: {log:?}");
    cluster.settle();
    let bulk = cluster.statistics(1).lanes["bulk"].clone();
    assert!(bulk.bytes_received > 12 * (256 << 10), "each egroup went to the other node: {bulk:?}");
    // Some more that stays in the log.
    cluster.write(0, 60 << 20, &stamp(60, 7));
    for owner in [1, 0] {
        cluster.open_family(owner);
        // The shard that serves it and the other one give the same bytes.
        for node in 0..2 {
            for at in 0..12u64 {
                let bytes = cluster.read(node, at << 20, 1 << 20);
                assert!(bytes[..256 << 10].iter().all(|&byte| byte == at as u8 + 1), "MiB {at}");
                assert!(bytes[512 << 10..][..BLOCK] == stamp(at, 1), "MiB {at}");
                assert!(bytes[516 << 10..].iter().all(|&byte| byte == 0), "MiB {at}");
            }
            assert!(cluster.read(node, 60 << 20, BLOCK as u32) == stamp(60, 7));
        }
    }
    assert_eq!(
        cluster.statistics(0).dropped + cluster.statistics(1).dropped,
        0,
        "a sound wire loses nothing"
    );
}

#[test]
fn nothing_is_lost_when_connections_are_cut() {
    let mut cluster = Cluster::start(2);
    let mut load = Load::new(&cluster, 0, 21);
    for _ in 0..4 {
        for _ in 0..400 {
            load.step();
        }
        // In the middle of whatever is on its way.
        wait_until("there is something to cut", || cluster.nodes[1].wire.cut() > 0);
    }
    load.finish();
    assert!(cluster.statistics(0).reconnects >= 2, "{:?}", cluster.statistics(0));
    load.check_all(&cluster, 0);
    cluster.open_family(1);
    load.check_all(&cluster, 1);
}

#[test]
fn writes_go_on_when_a_member_comes_back() {
    let mut cluster = Cluster::start(2);
    let mut load = Load::new(&cluster, 0, 22);
    for _ in 0..500 {
        load.step();
    }
    cluster.stop_node(1);
    // Nothing can be acknowledged now, but questions are asked again and again.
    let waiting =
        cluster.ask(0, Request::Write { offset: 50 << 20, data: weft_engine::buffer::zeros(BLOCK) });
    cluster.start_node(1, false);
    assert_eq!(waiting.recv_timeout(LONG), Ok(Reply::Done));
    for _ in 0..500 {
        load.step();
    }
    load.finish();
    cluster.open_family(1);
    load.check_all(&cluster, 1);
}

#[test]
fn a_client_of_another_node_sees_no_more_of_a_hand_over_than_a_pause() {
    let mut cluster = Cluster::start(3);
    // Of a node that never serves the family.
    let mut far = Load::new(&cluster, 2, 23);
    let stop = AtomicBool::new(false);
    let steps = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                far.step();
                steps.fetch_add(1, Ordering::Relaxed);
            }
            far.finish();
        });
        for owner in [1, 0, 1] {
            let before = steps.load(Ordering::Relaxed);
            wait_until("the client gets on", || steps.load(Ordering::Relaxed) > before + 200);
            cluster.open_family(owner);
        }
        let before = steps.load(Ordering::Relaxed);
        wait_until("the client gets on", || steps.load(Ordering::Relaxed) > before + 200);
        stop.store(true, Ordering::Relaxed);
    });
    for node in 0..3 {
        far.check_all(&cluster, node);
    }
    assert!(cluster.statistics(2).lanes["client"].messages_sent > 600, "{:?}", cluster.statistics(2));
}

#[test]
fn a_forwarding_connection_may_be_cut_at_any_time() {
    let cluster = Cluster::start(2);
    let mut load = Load::new(&cluster, 1, 26);
    for _ in 0..6 {
        for _ in 0..300 {
            load.step();
        }
        // The wire of node 0 carries what node 1 forwards.
        wait_until("there is something to cut", || cluster.nodes[0].wire.cut() > 0);
    }
    load.finish();
    load.check_all(&cluster, 0);
    load.check_all(&cluster, 1);
    assert!(cluster.statistics(1).reconnects >= 3, "{:?}", cluster.statistics(1));
}

#[test]
fn a_request_waits_for_an_owner_and_fails_when_the_node_has_none_to_wait_for() {
    let cluster = Cluster::start(2);
    // Nobody is known to serve it: the request waits, and is answered when somebody does.
    cluster.send(1, Mail::Routes(BTreeMap::new()));
    let waiting = cluster.ask(1, Request::Write { offset: 0, data: weft_engine::buffer::zeros(BLOCK) });
    assert!(waiting.recv_timeout(Duration::from_millis(100)).is_err(), "nobody can answer it");
    cluster.send(1, Mail::Routes(cluster.routes()));
    assert_eq!(waiting.recv_timeout(LONG), Ok(Reply::Done));
    // The reply is that of the owner, whatever it is.
    let outside = cluster.ask(1, Request::Read { offset: SIZE, len: 1 });
    assert_eq!(outside.recv_timeout(LONG), Ok(Reply::Error(RequestError::OutOfRange)));
    let extents = cluster.ask(1, Request::Extents { offset: 0, len: SIZE, limit: 10 });
    assert!(matches!(extents.recv_timeout(LONG), Ok(Reply::Extents(extents)) if !extents.is_empty()));
    let warmed = cluster.ask(1, Request::Warm { offset: 0, len: SIZE, data: true });
    assert!(matches!(warmed.recv_timeout(LONG), Ok(Reply::Warmed(warmed)) if warmed.to > 0));
    // A request in an epoch that is over is not carried out.
    let mut routes = cluster.routes();
    routes.get_mut(&FAMILY).expect("it is served").epoch.0 -= 1;
    cluster.send(1, Mail::Routes(routes));
    let stale = cluster.ask(1, Request::Flush);
    assert!(stale.recv_timeout(Duration::from_millis(100)).is_err(), "that epoch is over");
    cluster.send(1, Mail::Routes(cluster.routes()));
    assert_eq!(stale.recv_timeout(LONG), Ok(Reply::Done));
    // A node that ends does not make its clients wait.
    cluster.send(1, Mail::Routes(BTreeMap::new()));
    let refused = cluster.ask(1, Request::Flush);
    let (done, _drained) = tokio::sync::oneshot::channel();
    cluster.send(1, Mail::Drain(done));
    // Well before its patience would be at an end.
    let soon = Duration::from_secs(20);
    assert_eq!(refused.recv_timeout(soon), Ok(Reply::Error(RequestError::NotServed)));
}

/// Has the owner take no requests of the family for so long.
fn hold(cluster: &Cluster, owner: usize, longest: Duration) {
    let (done, is_done) = tokio::sync::oneshot::channel();
    cluster.send(owner, Mail::Hold { holder: 1, families: vec![FAMILY], longest, done });
    let _ = is_done.blocking_recv().expect("the shard lives");
}

#[test]
fn what_a_client_that_has_gone_had_asked_is_not_done_later() {
    let cluster = Cluster::start(2);
    for node in 0..2 {
        hold(&cluster, 0, LONG);
        let mut client = Client::connect(&cluster, node);
        for block in 0..3 {
            client.submit_write(block * BLOCK as u64, &stamp(block, 9));
        }
        // Time enough to be told that the owner takes nothing, and to be asked again and again.
        std::thread::sleep(Duration::from_millis(300));
        drop(client);
        std::thread::sleep(Duration::from_millis(300));
        hold(&cluster, 0, Duration::ZERO);
        std::thread::sleep(Duration::from_millis(100));
        for block in 0..3 {
            let found = cluster.read(0, block * BLOCK as u64, BLOCK as u32);
            assert!(found.iter().all(|byte| *byte == 0), "by way of node {node}, block {block} was written");
        }
    }
}

#[test]
fn who_says_goodbye_is_told_what_is_not_done() {
    let cluster = Cluster::start(2);
    for node in 0..2 {
        hold(&cluster, 0, LONG);
        let mut client = Client::connect(&cluster, node);
        let asked = client.submit_write(0, &stamp(0, 9));
        client.say_goodbye();
        std::thread::sleep(Duration::from_millis(300));
        hold(&cluster, 0, Duration::ZERO);
        const EIO: u32 = 5;
        assert_eq!(client.last_words(), [(asked, EIO)], "by way of node {node}");
        assert!(cluster.read(0, 0, BLOCK as u32) == vec![0; BLOCK], "and it is not done");
    }
}

#[test]
fn a_node_that_is_not_known_any_more_is_disconnected() {
    let cluster = Cluster::start(2);
    cluster.write(0, 0, &stamp(0, 1));
    cluster.write(1, 0, &stamp(0, 2));
    assert!(cluster.statistics(0).links >= 2);
    for node in 0..2 {
        cluster.send(node, Mail::Peers(BTreeMap::new()));
    }
    wait_until("all connections are gone", || (0..2).all(|node| cluster.statistics(node).links == 0));
    let waiting = cluster.ask(0, Request::Write { offset: 0, data: weft_engine::buffer::zeros(BLOCK) });
    assert!(waiting.recv_timeout(Duration::from_millis(100)).is_err(), "one copy is not two");
    assert!(cluster.statistics(0).dropped > 0, "what cannot be said is counted");
    for node in 0..2 {
        cluster.send(node, Mail::Peers(cluster.addresses(node)));
    }
    assert_eq!(waiting.recv_timeout(LONG), Ok(Reply::Done), "questions are asked again");
    assert!(cluster.read(1, 0, BLOCK as u32) == vec![0; BLOCK]);
}

#[test]
fn a_flood_of_large_writes_is_taken_as_the_owner_can() {
    let cluster = Cluster::start(2);
    // Together more than one connection may have open.
    let data = weft_engine::buffer::Buffer::copied(&vec![3; 6 << 20]);
    let writes: Vec<_> = (0..14u64)
        .map(|at| {
            let offset = (at % 7) * (8 << 20) + 512;
            cluster.ask(1, Request::Write { offset, data: data.clone() })
        })
        .collect();
    for write in writes {
        assert_eq!(write.recv_timeout(LONG), Ok(Reply::Done));
    }
    for at in 0..7u64 {
        let bytes = cluster.read(1, at * (8 << 20), (6 << 20) + 1024);
        assert!(bytes[..512].iter().chain(&bytes[(6 << 20) + 512..]).all(|&byte| byte == 0));
        assert!(bytes[512..(6 << 20) + 512].iter().all(|&byte| byte == 3));
    }
}

#[test]
fn an_address_where_nobody_answers_is_given_up_and_tried_again() {
    let cluster = Cluster::start(2);
    // A listener that takes no more connections than it has: further ones are neither made nor refused.
    let any: std::net::SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let listener =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    listener.bind(&any.into()).expect("a port is free");
    listener.listen(0).expect("it can listen");
    let address = listener.local_addr().expect("it is bound").as_socket().expect("it is of the internet");
    let _full: Vec<_> = (0..4)
        .map(|_| {
            let filler = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
            let filler = filler.expect("a socket");
            filler.set_nonblocking(true).expect("a socket takes that");
            // It says that it is on its way, which is enough.
            let _ = filler.connect(&address.into());
            filler
        })
        .collect();
    cluster.send(1, Mail::Peers(BTreeMap::from([(cluster.nodes[0].shard, address)])));
    let before = cluster.statistics(1).dials;
    let waiting = cluster.ask(1, Request::Flush);
    wait_until("it is tried again", || cluster.statistics(1).dials > before + 1);
    cluster.send(1, Mail::Peers(cluster.addresses(1)));
    assert_eq!(waiting.recv_timeout(LONG), Ok(Reply::Done));
    // The shards end although somebody is being waited for.
    cluster.send(1, Mail::Peers(BTreeMap::from([(cluster.nodes[0].shard, address)])));
    let before = cluster.statistics(1).dials;
    let _waiting = cluster.ask(1, Request::Flush);
    wait_until("it is tried", || cluster.statistics(1).dials > before);
}

#[test]
fn an_owner_knows_where_its_clients_are() {
    let cluster = Cluster::start(3);
    assert_eq!(cluster.asked_by(0), BTreeMap::new());
    for (node, times) in [(0, 2), (1, 5), (2, 3)] {
        for at in 0..times {
            cluster.write(node, at << 20, &stamp(at, 1));
        }
    }
    assert_eq!(cluster.asked_by(0), BTreeMap::from([(0, 2), (1, 5), (2, 3)]));
    assert_eq!(cluster.asked_by(1), BTreeMap::new(), "who only forwards answers nobody");
}
