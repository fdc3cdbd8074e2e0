//! Etcd has older records than there were: they are known as such, until somebody accepts them.

use crate::server::{Server, temporary_directory};
use crate::stories::{a_node, a_vdisk, alive, five_seconds};
use weft_node::config::cluster::{ClusterError, ClusterStore, NodeLease};

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
    assert_eq!(accepting.accept_records(5).expect("nobody lives by them"), 0);
    let refused = elsewhere.load().map(drop);
    assert!(matches!(refused, Err(ClusterError::RecordsAccepted { .. })), "{refused:?}");
    let node = node_in(&dir, &twin);
    node.load().expect("they are accepted now");
    node.keep_seen();
    let refused = node_in(&dir, &server).load().map(drop);
    assert!(matches!(refused, Err(ClusterError::RecordsBefore { .. })), "{refused:?}");
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
    let refused = cluster.accept_records(5);
    assert!(matches!(refused, Err(ClusterError::NodeLives { .. })), "{refused:?}");

    lease.give_up().expect("it ends");
    let before = cluster.load().expect("it loads");
    assert_eq!(cluster.accept_records(5).expect("nobody lives by them"), vdisks);
    let after = cluster.load().expect("it loads");
    assert_eq!((&after.cluster.record.accepted, after.cluster.record.format), (&vec![5], 3));
    for (family, entry) in &before.families {
        let epoch = after.families[family].record.epoch;
        assert!(epoch > entry.record.epoch + 1_000_000, "no owner of whom they do not know had {epoch}");
    }
}
