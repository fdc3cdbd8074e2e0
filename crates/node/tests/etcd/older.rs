//! Etcd has older records than there were: they are known as such, until somebody accepts them.

use crate::server::{Server, temporary_directory};
use crate::stories::{a_node, a_vdisk, alive, five_seconds};
use crate::wait_for;
use std::time::Duration;
use weft_node::config::cluster::{ClusterError, ClusterStore, News, NodeLease};
use weft_node::config::etcd::{Compare, EtcdError, Transaction};

/// Seconds since 1970.
const NOW: u64 = 1_800_000_000;

/// What a node of the cluster 77 has of it, when it is started in `dir`.
fn node_in(dir: &std::path::Path, server: &Server) -> ClusterStore {
    let store = ClusterStore::new(server.client(), "test").expect("it is a name").expecting(77);
    store.remembering(dir, 77).expect("its directory can be read")
}

#[test]
fn what_a_node_has_seen_outlives_it_and_older_records_are_refused() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let dir = temporary_directory("seen");
    let node = node_in(&dir, &server);
    (0..20).for_each(|at| drop(cluster.create_vdisk(&a_vdisk(&format!("v{at}"))).expect("it is made")));
    node.load().expect("it loads");
    node.keep_seen();
    node_in(&dir, &server).load().expect("nothing has changed");

    // Of the same words and the same id, and less has happened there.
    let twin = server.twin();
    twin.new_cluster();
    let node = node_in(&dir, &twin);
    for refused in [node.load().map(drop), node.cluster_record().map(drop)] {
        assert!(matches!(refused, Err(ClusterError::OlderRecords { .. })), "{refused:?}");
    }
    node.keep_seen();
    let elsewhere = node_in(&temporary_directory("seen"), &twin);
    elsewhere.load().expect("who has seen nothing takes what there is");

    let accepting = ClusterStore::new(twin.client(), "test").expect("it is a name");
    assert_eq!(accepting.accept_records(5, NOW).expect("nobody lives by them"), 0);
    let refused = elsewhere.load().map(drop);
    assert!(matches!(refused, Err(ClusterError::RecordsAccepted { .. })), "{refused:?}");
    let node = node_in(&dir, &twin);
    node.load().expect("they are accepted now");
    node.keep_seen();
    let refused = node_in(&dir, &server).load().map(drop);
    assert!(matches!(refused, Err(ClusterError::RecordsBefore { .. })), "{refused:?}");
}

/// Whoever writes raises the revision, and an older store may come past what was seen.
#[test]
fn older_records_are_known_after_others_have_written_there() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let dir = temporary_directory("seen");
    let node = node_in(&dir, &server);
    (0..20).for_each(|at| drop(cluster.create_vdisk(&a_vdisk(&format!("v{at}"))).expect("it is made")));
    let newest = node.load().expect("it loads").revision;
    node.keep_seen();

    let twin = server.twin();
    twin.new_cluster();
    let (etcd, mut revision) = (twin.client(), 0);
    while revision <= newest {
        let write = Transaction::new().when(Compare::absent("/nothing")).put("/others", "x", None);
        revision = etcd.transact(&write).expect("it is written").revision;
    }
    let refused = node_in(&dir, &twin).load().map(drop);
    assert!(matches!(refused, Err(ClusterError::OlderRecords { .. })), "{refused:?}");
    node_in(&dir, &server).load().expect("the newest are taken");
}

/// Of a record that is not there nobody knows whether it had been made, or was removed: all is read once, and not again and again.
#[test]
fn who_remembers_records_that_were_removed_follows_the_store_in_peace() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let dir = temporary_directory("seen");
    let node = node_in(&dir, &server);
    let family = cluster.create_vdisk(&a_vdisk("v")).expect("it is made").record.id();
    node.load().expect("it loads");
    node.keep_seen();
    cluster.remove_vdisk(family).expect("it is removed");

    let node = node_in(&dir, &server);
    let mut news = node.follow();
    wait_for("all is loaded", || matches!(news.try_recv(), Ok(News::Loaded(_))).then_some(()));
    cluster.create_vdisk(&a_vdisk("w")).expect("it is made");
    wait_for("the watch tells of it", || match news.try_recv() {
        Ok(News::Changed { changes, .. }) => Some(changes),
        Ok(other) => panic!("nothing was missed: {other:?}"),
        Err(_) => None,
    });
}

/// Etcd is put back while somebody uses it: nothing counts that is answered from then on.
#[test]
fn an_etcd_that_goes_back_while_it_is_asked_is_not_believed() {
    let mut server = Server::start();
    server.new_cluster();
    let dir = temporary_directory("seen");
    let node = node_in(&dir, &server);
    let family = node.create_vdisk(&a_vdisk("v")).expect("it is made").record.id();
    let etcd = node.etcd().clone();
    let lease = etcd.grant_lease(Duration::from_secs(60)).expect("a lease is granted").lease;
    let mut news = node.follow();
    wait_for("all is loaded", || matches!(news.try_recv(), Ok(News::Loaded(_))).then_some(()));
    server.copy("before");
    let alter = |size: u64| node.change_vdisk(family, |record| record.size = size).map(drop);
    (1..20).for_each(|step| alter(step << 20).expect("it is changed"));
    server.copy("newest");

    server.put_back("before");
    let is_older = |error: &EtcdError| matches!(error, EtcdError::Older { .. });
    let refused = alter(99 << 20);
    assert!(matches!(&refused, Err(ClusterError::Etcd(error)) if is_older(error)), "{refused:?}");
    let renewed = etcd.keep_alive(lease, Duration::from_secs(1));
    assert!(matches!(&renewed, Err(error) if is_older(error)), "the lease of then is there: {renewed:?}");
    wait_for("it is told", || match news.try_recv() {
        Ok(News::Older(error)) => Some(error),
        _ => None,
    });

    server.put_back("newest");
    wait_for("the newest are taken", || match news.try_recv() {
        Ok(News::Loaded(config)) => Some(config),
        _ => None,
    });
    alter(99 << 20).expect("all goes on");
}

#[test]
fn records_are_accepted_all_together_when_nobody_lives_by_them() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let node = cluster.join(&a_node("one")).expect("it joins").record.node;
    // More than fit in one transaction.
    let vdisks = 230;
    (0..vdisks).for_each(|at| drop(cluster.create_vdisk(&a_vdisk(&format!("v{at}"))).expect("it is made")));
    let lease = NodeLease::take(&server.client(), five_seconds(), || ()).expect("a lease is had");
    cluster.announce(&alive(node, 1), lease.lease(), None).expect("it lives");
    let refused = cluster.accept_records(5, NOW);
    assert!(matches!(refused, Err(ClusterError::NodeLives { .. })), "{refused:?}");

    lease.give_up().expect("it ends");
    let before = cluster.load().expect("it loads");
    assert_eq!(cluster.accept_records(5, NOW).expect("nobody lives by them"), vdisks);
    let after = cluster.load().expect("it loads");
    assert_eq!((&after.cluster.record.accepted, after.cluster.record.format), (&vec![5], 3));
    for (family, entry) in &before.families {
        let epoch = after.families[family].record.epoch;
        assert!(epoch > entry.record.epoch + 1_000_000, "no owner of whom they do not know had {epoch}");
    }
}
