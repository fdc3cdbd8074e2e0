//! Who lives: the lease ends in the store only after its holder has stopped believing in it.

use crate::server::Server;
use crate::stories::{a_node, a_vdisk, alive};
use crate::wait_for;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use weft_node::config::cluster::{Change, ClusterError, ClusterStore, Moment, News, NodeLease};
use weft_node::config::etcd::EtcdError;

/// The least that etcd grants with its usual election timeout.
const SHORT: Duration = Duration::from_secs(2);

fn joined(cluster: &ClusterStore) -> u32 {
    cluster.join(&a_node("first")).expect("it joins").record.node
}

#[test]
fn a_lease_ends_in_the_store_after_its_holder_stopped() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let node = joined(&cluster);
    let mut news = cluster.follow();
    let lease = NodeLease::take(cluster.etcd(), SHORT, || ()).expect("a lease is granted");
    cluster.announce(&alive(node, 1), lease.lease(), None).expect("it lives");
    let granted = lease.deadline().moment();
    let deadline = lease.deadline();
    // It is renewed, well beyond what was granted first.
    wait_for("the lease is renewed twice", || {
        (deadline.moment().since(granted) > SHORT / 2 && !deadline.has_passed()).then_some(())
    });

    // The node dies: nobody renews any more.
    drop(lease);
    let gone = wait_for("a watcher sees the node go", || match news.try_recv() {
        Ok(News::Changed { changes, .. }) => changes.contains(&Change::Alive(node, None)).then(Moment::now),
        _ => None,
    });
    assert!(deadline.moment() < gone, "it had stopped before anybody could know");
    assert!(deadline.has_passed());
    assert!(!cluster.load().expect("it loads").alive.contains_key(&node));
}

#[test]
fn a_holder_that_reaches_nobody_stops_in_time() {
    let mut server = Server::start();
    let cluster = server.new_cluster();
    let sent = Moment::now();
    let lost = Arc::new(AtomicBool::new(false));
    let on_loss = Arc::clone(&lost);
    let lease = NodeLease::take(cluster.etcd(), SHORT, move || on_loss.store(true, Ordering::SeqCst));
    let lease = lease.expect("a lease is granted");
    server.kill();
    let deadline = lease.deadline();
    wait_for("the deadline passes", || deadline.has_passed().then_some(()));
    assert!(deadline.moment() > sent, "and it did hold before");
    assert!(!lost.load(Ordering::SeqCst), "nobody said that it is over: it may live on in the store");
    // A store that comes back gives its leases a whole time again, and so does this holder come back.
    server.launch();
    server.wait_until_ready();
    wait_for("the lease holds again", || (!deadline.has_passed()).then_some(()));
}

#[test]
fn a_lease_that_was_taken_away_is_noticed() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let lost = Arc::new(AtomicBool::new(false));
    let on_loss = Arc::clone(&lost);
    let lease = NodeLease::take(cluster.etcd(), SHORT, move || on_loss.store(true, Ordering::SeqCst));
    let lease = lease.expect("a lease is granted");
    assert!(cluster.etcd().time_to_live(lease.lease()).expect("etcd answers").is_some());
    cluster.etcd().revoke_lease(lease.lease()).expect("etcd answers");
    assert_eq!(cluster.etcd().time_to_live(lease.lease()).expect("etcd answers"), None);
    wait_for("the holder is told", || lost.load(Ordering::SeqCst).then_some(()));
    assert!(lease.deadline().has_passed(), "at once, not when its time is up");
    let node = joined(&cluster);
    let late = cluster.announce(&alive(node, 1), lease.lease(), None);
    assert!(
        matches!(late, Err(ClusterError::Etcd(EtcdError::LeaseOver))),
        "nothing is tied to it any more: {late:?}"
    );
}

/// An etcd that renews every lease from its memory, and whose leader is confirmed only in the term it is told.
fn a_member_of_its_own(confirmed: Arc<AtomicU64>) -> String {
    use std::io::{BufRead, BufReader, Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let endpoint = format!("http://{}", listener.local_addr().expect("it is bound"));
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let mut reader = BufReader::new(connection.try_clone().expect("a descriptor is free"));
            let (mut path, mut length) = (String::new(), 0);
            let mut lines = reader.by_ref().lines().map_while(Result::ok);
            if let Some(first) = lines.next() {
                path = first.split(' ').nth(1).unwrap_or_default().to_string();
            }
            for line in lines.take_while(|line| !line.is_empty()) {
                if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
                    length = value.parse().expect("a number");
                }
            }
            let _ = reader.read_exact(&mut vec![0; length]);
            let header =
                |term| format!(r#""header":{{"member_id":"7","revision":"3","raft_term":"{term}"}}"#);
            let answer = match path.as_str() {
                "/v3/lease/grant" => format!(r#"{{{},"ID":"5","TTL":"2"}}"#, header(1)),
                "/v3/lease/keepalive" => format!(r#"{{"result":{{{},"ID":"5","TTL":"2"}}}}"#, header(1)),
                _ => format!("{{{}}}", header(confirmed.load(Ordering::SeqCst))),
            };
            let length = answer.len();
            let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
            let _ = (&connection).write_all((head + &answer).as_bytes());
        }
    });
    endpoint
}

#[test]
fn a_leader_that_is_none_any_more_renews_nothing() {
    let term = Arc::new(AtomicU64::new(1));
    let etcd = crate::server::client(&[a_member_of_its_own(Arc::clone(&term))]);
    let lease = NodeLease::take(&etcd, SHORT, || ()).expect("a lease is granted");
    let (deadline, granted) = (lease.deadline(), lease.deadline().moment());
    wait_for("it is renewed", || (deadline.moment() > granted).then_some(()));
    term.store(2, Ordering::SeqCst);
    wait_for("the deadline passes", || deadline.has_passed().then_some(()));
    term.store(1, Ordering::SeqCst);
    wait_for("the lease holds again", || (!deadline.has_passed()).then_some(()));
}

#[test]
fn a_node_lives_once() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let node = joined(&cluster);
    let take =
        || NodeLease::take(cluster.etcd(), Duration::from_secs(60), || ()).expect("a lease is granted");
    let first = take();
    cluster.announce(&alive(node, 1), first.lease(), None).expect("it lives");
    let mut with_drives = alive(node, 1);
    with_drives.up.push(5);
    cluster.announce(&with_drives, first.lease(), None).expect("it says more of itself");

    let second = take();
    let copied = cluster.announce(&alive(node, 2), second.lease(), None);
    assert!(
        matches!(copied, Err(ClusterError::AliveElsewhere { incarnation: 1, .. })),
        "the first may still live"
    );
    let started = cluster.announce(&alive(node, 2), second.lease(), Some(1));
    started.expect("who knows that the first is dead need not wait for its lease");
    let returned = cluster.announce(&with_drives, first.lease(), None);
    assert!(matches!(returned, Err(ClusterError::AliveElsewhere { incarnation: 2, .. })));

    second.give_up().expect("etcd answers");
    assert!(cluster.load().expect("it loads").alive.is_empty(), "who leaves is gone at once");
    cluster.announce(&alive(node, 3), take().lease(), None).expect("the place is free");
}

#[test]
fn no_device_is_taken_from_a_node_that_lives() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let node = joined(&cluster);
    let family = cluster.create_vdisk(&a_vdisk("v")).expect("it is made").record.id();
    let attached = cluster.change_vdisk(family, |record| record.attached = vec![node]).expect("it is said");
    let lease = NodeLease::take(cluster.etcd(), SHORT, || ()).expect("a lease is granted");
    cluster.announce(&alive(node, 1), lease.lease(), None).expect("it lives");
    // Whoever asks for it has not heard of that yet.
    let refused = cluster.take_device(family, node);
    assert!(matches!(refused, Err(ClusterError::Changed { .. })), "{refused:?}");
    let now = cluster.family(family).expect("etcd answers").expect("it is there");
    assert_eq!(now, attached, "the device stays, and what is under way through it is not fenced");
    lease.give_up().expect("the node says that it stops");
    let taken = cluster.take_device(family, node).expect("nobody can be asked").record;
    assert_eq!((taken.attached, taken.epoch), (Vec::new(), attached.record.epoch + 1));
}
