//! Etcd that cannot be reached, does not answer, or loses members: errors of the right kind, in bounded time.

use crate::proxy::{Lost, Proxy, Wire};
use crate::server::{Server, client};
use crate::stories::{a_group, a_node, a_vdisk, alive, alone};
use crate::wait_for;
use std::time::{Duration, Instant};
use weft_node::config::cluster::{Campaign, ClusterError, ClusterStore, News, NodeLease};
use weft_node::config::etcd::EtcdError;

/// One request longer than the client's patience, and something for a busy machine.
const BOUND: Duration = Duration::from_secs(10);

fn nobody() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    format!("http://{}", listener.local_addr().expect("it is bound"))
}

#[test]
fn nobody_there_is_an_error_at_once() {
    let cluster = ClusterStore::new(client(&[nobody(), nobody()]), "test").expect("it is a name");
    let began = Instant::now();
    let error = cluster.load().expect_err("nobody is there");
    assert!(matches!(&error, ClusterError::Etcd(error) if error.nothing_was_done()), "{error}");
    assert!(matches!(error, ClusterError::Etcd(EtcdError::Unreachable { .. })), "{error}");
    let lease = NodeLease::take(cluster.etcd(), Duration::from_secs(5), || ());
    assert!(matches!(lease, Err(EtcdError::Unreachable { .. })));
    assert!(began.elapsed() < BOUND);
}

#[test]
fn no_answer_is_an_error_in_bounded_time() {
    // Connections are taken by the kernel, and nobody ever reads them.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let endpoint = format!("http://{}", deaf.local_addr().expect("it is bound"));
    let cluster = ClusterStore::new(client(&[endpoint.clone(), endpoint.clone(), endpoint]), "test");
    let cluster = cluster.expect("it is a name");
    let began = Instant::now();
    let error = cluster.join(&a_node("first")).expect_err("nobody answers");
    assert!(matches!(&error, ClusterError::Etcd(EtcdError::NoQuorum { .. })), "{error}");
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
}

#[test]
fn one_wrong_address_does_not_end_what_the_others_can_do() {
    let server = Server::start();
    server.new_cluster();
    let endpoints = [somebody_else(), server.endpoint(), somebody_else()];
    let etcd = client(&endpoints);
    let told = etcd.look_at_all().expect_err("it is told when a node joins");
    assert!(matches!(&told, EtcdError::Nonsense { endpoint, .. } if *endpoint == endpoints[0]), "{told}");
    let cluster = ClusterStore::new(etcd.clone(), "test").expect("it is a name");
    cluster.join(&a_node("first")).expect("the second is an etcd");
    // And again when that one has been out of order for a moment.
    let wire = Proxy::to(server.port());
    let cluster = ClusterStore::new(client(&[wire.endpoint(), somebody_else()]), "test").expect("a name");
    let mut news = cluster.follow();
    wait_for("all is loaded", || matches!(news.try_recv(), Ok(News::Loaded(_))).then_some(()));
    wire.set(Wire::Cut);
    wait_for("it is noticed", || cluster.load().is_err().then_some(()));
    wire.set(Wire::Passes);
    cluster.create_vdisk(&a_vdisk("one")).expect("the first is asked again");
    wait_for("the watch goes on", || match news.try_recv() {
        Ok(News::Changed { .. } | News::Loaded(_)) => Some(()),
        _ => None,
    });
}

/// With the cluster 77, as the one of `Server::new_cluster`.
fn of_ours(endpoints: &[String]) -> ClusterStore {
    ClusterStore::new(client(endpoints), "test").expect("it is a name").expecting(77)
}

#[test]
fn an_etcd_that_is_another_one_is_not_believed_while_ours_is_away() {
    let (right, empty) = (Server::start(), Server::start());
    let cluster = right.new_cluster();
    let wire = Proxy::to(right.port());
    let far = of_ours(&[wire.endpoint(), empty.endpoint()]);
    far.check(77).expect("it is there");
    let mut news = far.follow();
    wait_for("all is loaded", || matches!(news.try_recv(), Ok(News::Loaded(_))).then_some(()));
    let etcd = far.etcd();
    let lease = etcd.grant_lease(Duration::from_secs(60)).expect("a lease is granted").lease;
    let renew = || etcd.keep_alive(lease, Duration::from_millis(500));

    wire.set(Wire::Cut);
    for _ in 0..3 {
        // There it is over, there is no cluster, and there is no lease to tie anything to.
        let renewed = renew().expect_err("ours does not answer");
        assert!(!matches!(renewed, EtcdError::LeaseOver), "{renewed}");
        let read = far.cluster_record().expect_err("ours does not answer");
        assert!(!matches!(read, ClusterError::NoCluster { .. }), "{read}");
        let won = far.campaign(0, lease).expect_err("ours does not answer");
        assert!(!matches!(won, ClusterError::Etcd(EtcdError::LeaseOver)), "{won}");
    }
    let told = etcd.strangers();
    assert!(
        matches!(&told[..], [EtcdError::OtherEtcd { endpoint, .. }] if *endpoint == empty.endpoint()),
        "{told:?}"
    );

    cluster.create_vdisk(&a_vdisk("one")).expect("by another way");
    wire.set(Wire::Passes);
    wait_for("the lease is renewed", || renew().ok());
    wait_for("news come", || match news.try_recv() {
        Ok(News::Changed { changes, .. }) => Some(changes),
        Ok(News::Loaded(_) | News::Older(_)) => panic!("nothing was missed"),
        Err(_) => None,
    });
    far.create_vdisk(&a_vdisk("two")).expect("all goes on");
    let strange = empty.client().range("/weft/", "/weft0", 0).expect("etcd answers").entries;
    assert!(strange.is_empty(), "nothing was put there: {strange:?}");
}

#[test]
fn an_etcd_that_was_made_anew_with_the_same_words_keeps_nobody() {
    let right = Server::start();
    let twin = right.twin();
    let cluster = right.new_cluster();
    let wire = Proxy::to(right.port());
    let far = of_ours(&[wire.endpoint(), twin.endpoint()]);
    let id = |cluster: &ClusterStore| cluster.etcd().look("/").expect("etcd answers").etcd;
    far.check(77).expect("it is there");
    assert_eq!(
        id(&cluster),
        twin.client().look("/").expect("etcd answers").etcd,
        "they cannot be told apart"
    );
    for load in [false, true] {
        wire.set(Wire::Cut);
        assert!(far.load().is_err(), "ours does not answer");
        wire.set(Wire::Passes);
        if load {
            assert_eq!(far.load().expect("it loads").cluster.record.id, 77);
        } else {
            far.check(77).expect("it is there");
        }
        far.create_vdisk(&a_vdisk(&format!("vdisk-{load}"))).expect("all goes on");
    }
}

#[test]
fn at_a_start_an_etcd_that_came_up_empty_does_not_speak_for_the_others() {
    let (right, empty) = (Server::start(), Server::start());
    right.new_cluster();
    let both = [empty.endpoint(), right.endpoint()];
    of_ours(&both).check(77).expect("the second has it");
    assert_eq!(of_ours(&both).load().expect("it loads").cluster.record.id, 77);
    let far = of_ours(&both);
    far.join(&a_node("first")).expect("it joins");
    far.create_vdisk(&a_vdisk("one")).expect("it is made");
    assert!(matches!(far.check(78), Err(ClusterError::OtherCluster { found: 77, .. })));
    let other = ClusterStore::new(client(&both), "other").expect("it is a name");
    assert!(matches!(other.load(), Err(ClusterError::NoCluster { .. })), "all say so");

    // Whoever begins something is told at once.
    let told = client(&both).look_at_all();
    assert!(matches!(told, Err(EtcdError::SeveralEtcds { .. })), "{told:?}");
    // One that was put back from a copy has our cluster as well: which of them goes on is not for us to say.
    let copy = empty.new_cluster();
    assert_eq!(copy.check(77).expect("it is there").record.id, 77);
    let told = of_ours(&both).check(77);
    assert!(matches!(told, Err(ClusterError::Etcd(EtcdError::SeveralEtcds { .. }))), "{told:?}");
    far.check(77).expect("who knows already goes on");
}

#[test]
fn somebody_else_is_told_from_etcd() {
    let cluster = ClusterStore::new(client(&[somebody_else()]), "test").expect("it is a name");
    assert!(matches!(cluster.load(), Err(ClusterError::Etcd(EtcdError::Nonsense { .. }))));
}

/// Speaks HTTP, and is no etcd. It reads to the end what it is asked: closed with something unread, the connection would be reset, perhaps
/// before the answer is read.
fn somebody_else() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let endpoint = format!("http://{}", listener.local_addr().expect("it is bound"));
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for mut connection in listener.incoming().flatten() {
            let _ = connection
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
            let _ = connection.shutdown(std::net::Shutdown::Write);
            // Whoever has the answer closes its end.
            let _ = connection.read_to_end(&mut Vec::new());
        }
    });
    endpoint
}

#[test]
fn a_cluster_that_is_not_there_is_told() {
    let server = Server::start();
    let cluster = ClusterStore::new(server.client(), "other").expect("it is a name");
    assert!(matches!(cluster.load(), Err(ClusterError::NoCluster { .. })));
    assert!(matches!(cluster.join(&a_node("first")), Err(ClusterError::NoCluster { .. })));
    assert!(matches!(cluster.create_vdisk(&a_vdisk("one")), Err(ClusterError::NoCluster { .. })));
}

#[test]
fn a_lost_answer_is_asked_for_again_and_done_once() {
    let server = Server::start();
    let cluster = server.new_cluster();
    for lost in [Lost::Request, Lost::Answer] {
        // Each of the requests that making a vDisk and taking it over need.
        for answers in 0..5 {
            let wire = Proxy::to(server.port());
            let far = ClusterStore::new(client(&[wire.endpoint(), server.endpoint()]), "test");
            let far = far.expect("it is a name");
            wire.cut_after(answers, lost);
            let name = format!("vdisk-{answers}-{lost:?}");
            let vdisk = far.create_vdisk(&a_vdisk(&name)).expect("it is made, at last by the other way");
            assert_eq!(cluster.family_named(&name).expect("etcd answers"), Some(vdisk.record.id()));
            let taken = far.take_epoch(vdisk.record.id(), vdisk.revision, None, None).expect("it is taken");
            assert_eq!(taken.record.epoch, 2, "once");
            let stored = cluster.family(vdisk.record.id()).expect("etcd answers").expect("it is there");
            assert_eq!(stored, taken);
        }
    }
    let loaded = cluster.load().expect("it loads");
    assert_eq!(loaded.families.len(), 10);
    assert_eq!(loaded.cluster.record.next_family, 11, "no number was taken twice for one vDisk");
}

#[test]
fn a_controller_whose_answers_are_lost_is_still_one_and_done_once() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let node = cluster.join(&a_node("first")).expect("it joins").record.node;
    let lease = NodeLease::take(cluster.etcd(), Duration::from_secs(60), || ()).expect("a lease is granted");
    let mut groups_made = 0;
    for lost in [Lost::Request, Lost::Answer] {
        for answers in 0..10 {
            let wire = Proxy::to(server.port());
            let far = ClusterStore::new(client(&[wire.endpoint(), server.endpoint()]), "test");
            let far = far.expect("it is a name");
            wire.cut_after(answers, lost);
            let Campaign::Won(leadership) = far.campaign(node, lease.lease()).expect("etcd answers") else {
                panic!("nobody else wants it")
            };
            let mut groups = far
                .add_groups(&alone(vec![a_group(&[1]), a_group(&[2])]), &leadership)
                .expect("they are made");
            groups.iter_mut().for_each(|group| group.record.former.push(3));
            let groups = far.put_groups(&alone(groups), &leadership).expect("they are changed");
            far.announce(&alive(node, 1 + groups_made), lease.lease(), Some(groups_made)).expect("it lives");
            far.resign(&leadership).expect("it stops");
            groups_made += 2;
            let loaded = cluster.load().expect("it loads");
            assert!(groups.iter().all(|group| loaded.groups[&group.record.id()] == *group));
            assert!(loaded.controller.is_none());
            assert_eq!(loaded.groups.len() as u64, groups_made, "none was made twice");
            cluster
                .announce(&alive(node, groups_made), lease.lease(), Some(groups_made - 1))
                .expect("it lives");
        }
    }
}

#[test]
fn one_member_of_three_may_fail() {
    let mut servers = Server::cluster(3);
    for server in &mut servers {
        server.launch();
    }
    for server in &mut servers {
        server.wait_until_ready();
    }
    let endpoints: Vec<String> = servers.iter().map(Server::endpoint).collect();
    let cluster = ClusterStore::new(client(&endpoints), "test").expect("it is a name");
    cluster.init(1).expect("it is made");
    let node = |name: &str| cluster.join(&a_node(name)).expect("it joins").record.node;
    assert_eq!(node("first"), 0);

    // The one that is asked first.
    servers[0].kill();
    let number = wait_for("the others go on", || cluster.join(&a_node("second")).ok()).record.node;
    assert!(number >= 1);
    let third = wait_for("and still do", || cluster.join(&a_node("third")).ok()).record.node;
    assert!(third > number, "and everything is there");

    // Without most of them nothing is done.
    servers[1].kill();
    let began = Instant::now();
    let error = cluster.join(&a_node("fourth")).expect_err("one of three decides nothing");
    assert!(matches!(&error, ClusterError::Etcd(EtcdError::NoQuorum { .. })), "{error}");
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());

    servers[0].launch();
    let number = wait_for("two of three go on", || cluster.join(&a_node("fifth")).ok()).record.node;
    assert!(cluster.load().expect("it loads").nodes.contains_key(&number));
}
