//! Strangers at the door.

use super::cluster::{CLUSTER, Cluster, LONG, wait_until};
use crate::shard_loop::{News, PeerTrouble};
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use weft_engine::ShardId;
use weft_engine::checksum::crc32c;
use weft_engine::formats::wire::{HEADER_BYTES, Hello, Lane, VERSION};

fn hello(cluster: &Cluster, lane: Lane, number: u32) -> Hello {
    let to = cluster.nodes[0].shard;
    Hello { cluster: CLUSTER, life: 1, number, from: ShardId(999), to, lane }
}

/// Says something, and expects to be sent away.
fn is_sent_away(address: SocketAddr, words: &[&[u8]]) {
    let mut stream = TcpStream::connect(address).expect("the door is open");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket takes a limit");
    for word in words {
        // It may be closed already.
        if stream.write_all(word).is_err() {
            return;
        }
    }
    let mut byte = [0];
    match stream.read(&mut byte) {
        Ok(0) | Err(_) => {}
        Ok(_) => panic!("a stranger is not answered"),
    }
}

/// A header with a good checksum, whatever it says.
fn header(kind: u32, body_len: u32, payload_len: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    let numbers = [VERSION, kind, body_len, payload_len, crc32c(body), 0];
    for (number, place) in numbers.iter().zip(bytes[8..].chunks_exact_mut(4)) {
        place.copy_from_slice(&u32::to_le_bytes(*number));
    }
    bytes[..4].copy_from_slice(b"WfNW");
    let sum = crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn strangers_change_nothing() {
    let cluster = Cluster::start(2);
    let block = vec![7; 4096];
    cluster.write(0, 0, &block);
    let door = cluster.port(0);
    let mut random = SmallRng::seed_from_u64(31);
    let good = hello(&cluster, Lane::Log, 1).frame().head;
    // Half a hello, and nothing more: it is waited for while everything else goes on.
    let mut half = TcpStream::connect(door).expect("the door is open");
    half.write_all(&good[..20]).expect("it is listened to");
    for round in 0..20 {
        let mut garbage = vec![0; 1 + 37 * round];
        random.fill_bytes(&mut garbage);
        garbage.resize(garbage.len().max(64), 0);
        is_sent_away(door, &[&garbage]);
    }
    is_sent_away(
        door,
        &[b"GET /v1/status HTTP/1.1\r\nHost: weft\r\nAccept: application/json, text/plain\r\n\r\n"],
    );
    let mut other = hello(&cluster, Lane::Log, 2);
    other.cluster += 1;
    is_sent_away(door, &[&other.frame().head]);
    other = hello(&cluster, Lane::Log, 2);
    other.to = ShardId(3);
    is_sent_away(door, &[&other.frame().head]);
    let mut flipped = good.clone();
    flipped[40] ^= 1;
    is_sent_away(door, &[&flipped]);
    cluster.write(0, 4096, &block);
    assert_eq!(cluster.read(0, 0, 8192), [block.clone(), block].concat());
    // In the end its time is up too.
    half.set_read_timeout(Some(LONG)).expect("a socket takes a limit");
    assert_eq!(half.read(&mut [0]).unwrap_or(0), 0, "a stranger is not answered");
}

#[test]
fn who_knows_the_hello_is_still_not_believed() {
    let cluster = Cluster::start(2);
    let block = vec![9; 4096];
    cluster.write(0, 0, &block);
    let door = cluster.port(0);
    let mut random = SmallRng::seed_from_u64(32);
    let mut number = 0;
    let mut tell = |lane: Lane, words: &[&[u8]]| {
        number += 1;
        let hello = hello(&cluster, lane, number).frame().head;
        let mut all = vec![hello.as_slice()];
        all.extend(words);
        is_sent_away(door, &all);
    };
    for lane in Lane::ALL {
        let mut garbage = vec![0; 500];
        random.fill_bytes(&mut garbage);
        tell(lane, &[&garbage]);
        // Lengths that nobody may claim, and the largest that one may, with nothing behind.
        for (body, payload) in [(u32::MAX, 0), (0, u32::MAX), (5 << 20, 1), (1, 41 << 20)] {
            for kind in 1..=7 {
                tell(lane, &[&header(kind, body, payload, &[])]);
            }
        }
        // A second hello; answers that nobody asked for, where only questions come.
        tell(lane, &[&hello(&cluster, lane, 1).frame().head]);
        let body = [0; 40];
        for kind in [3, 4, 6] {
            tell(lane, &[&header(kind, 40, 0, &body), &body]);
        }
        // Questions with fields that make no sense.
        for kind in [2, 5] {
            let body = [0xff; 60];
            tell(lane, &[&header(kind, 60, 0, &body), &body]);
        }
    }
    // One that claims as much as it may, sends nothing, and stays: it costs nobody anything.
    let mut slow = TcpStream::connect(door).expect("the door is open");
    slow.write_all(&hello(&cluster, Lane::Bulk, 10_000).frame().head).expect("it is listened to");
    slow.write_all(&header(2, 4 << 20, 40 << 20, &[])).expect("it is listened to");
    cluster.write(0, 4096, &block);
    assert_eq!(cluster.read(0, 0, 8192), [block.clone(), block].concat());
    drop(slow);
}

/// Says this hello at the door of node 0, and waits until `count` connections were taken there in all.
fn is_taken(cluster: &Cluster, hello: Hello, count: u64) -> TcpStream {
    let stream = says(cluster, hello);
    wait_until("it is taken", || cluster.statistics(0).accepted == count);
    stream
}

fn says(cluster: &Cluster, hello: Hello) -> TcpStream {
    let mut stream = TcpStream::connect(cluster.port(0)).expect("the door is open");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket takes a limit");
    stream.write_all(&hello.frame().head).expect("it is listened to");
    stream
}

/// Whether the connection ends without a word.
fn ends(mut stream: TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Connections of one life may be handed over in the wrong order; nothing of the older one is heard then.
#[test]
fn of_two_connections_the_newer_one_counts() {
    let cluster = Cluster::start(2);
    let before = cluster.statistics(0).accepted;
    let client = |number| hello(&cluster, Lane::Client, number);
    let second = is_taken(&cluster, client(2), before + 1);
    assert!(ends(says(&cluster, client(1))), "an older one is not taken");
    let _third = is_taken(&cluster, client(3), before + 2);
    assert!(ends(second), "the newer one takes its place");
    // The next life of the same node begins to count anew.
    is_taken(&cluster, Hello { life: 2, ..client(1) }, before + 3);
}

/// What a process said before it died may come when its node lives again: an old write would land on a newer one.
#[test]
fn a_node_that_lives_again_is_not_heard_from_its_former_life() {
    let cluster = Cluster::start(2);
    let before = cluster.statistics(0).accepted;
    let client = |number| hello(&cluster, Lane::Client, number);
    let former = is_taken(&cluster, client(7), before + 1);
    let other_shard = is_taken(&cluster, Hello { from: ShardId(998), ..client(7) }, before + 2);
    // Whatever it is that comes first of the new life, and from whichever shard of the node.
    let _next = is_taken(&cluster, Hello { life: 2, ..hello(&cluster, Lane::Log, 1) }, before + 3);
    assert!(ends(former) && ends(other_shard), "what is left of the former life is not read");
    for lane in Lane::ALL {
        assert!(ends(says(&cluster, hello(&cluster, lane, 1000))), "a late connection is not taken");
    }
    assert_eq!(cluster.statistics(0).accepted, before + 3);
    // Another node counts its own lives.
    is_taken(&cluster, Hello { from: ShardId(1999), ..client(1) }, before + 4);
}

/// The clients of a lost node go on by way of others.
#[test]
fn what_clients_asked_through_a_node_that_is_lost_since_is_not_heard() {
    let mut cluster = Cluster::start(2);
    let (other, life) = (cluster.nodes[1].shard, cluster.nodes[1].life);
    let before = cluster.statistics(0).accepted;
    // Its end does not come with that of the others.
    let late = Hello { from: other, life, ..hello(&cluster, Lane::Client, 10_000) };
    let late = is_taken(&cluster, late, before + 1);
    cluster.stop_node(1);
    cluster.wait_for_news(0, &News::PeerLost { shard: other, why: PeerTrouble::Gone });
    assert!(ends(late), "what comes on it now is too late");
    cluster.start_node(1, false);
    cluster.write(1, 0, &[3; 4096]);
    assert_eq!(cluster.read(0, 0, 4096), [3; 4096]);
}
