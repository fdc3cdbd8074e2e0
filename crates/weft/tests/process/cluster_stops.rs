//! What a node of a cluster leaves to others when it is stopped, and in which order.

use crate::support::cluster::{Cluster, Options, wait_for};
use crate::support::nbd::NbdClient;
use std::collections::BTreeMap;
use weft_engine::ShardId;
use weft_node::config::cluster::{Change, ClusterStore, News};
use weft_node::config::etcd::Etcd;

#[test]
fn a_node_that_stops_leaves_its_office_first_and_is_given_nothing_more() {
    let mut cluster = Cluster::start("stopping", Options::default());
    cluster.weft(&["vdisk", "create", "v", "--size", "16M", "--rf", "3"]);
    let etcd = Etcd::new(std::slice::from_ref(&cluster.etcd.url)).expect("it is an address");
    let store = ClusterStore::new(etcd, "main").expect("it is a name");
    let stopped = store.load().expect("it loads").controller.expect("somebody decides").record.node;
    let killed = cluster.other_than(&[stopped]);
    let third = cluster.other_than(&[stopped, killed]);
    cluster.weft(&["vdisk", "move", "v", "--to", &killed.to_string()]);
    cluster.wait_for_owner("v", |owner| owner == killed);
    // A client whose answers take long: the stop waits for them for some seconds.
    cluster.weft(&["vdisk", "create", "slow", "--size", "16M", "--rf", "3", "--iops-limit", "1"]);
    let socket = cluster.export("slow", stopped);
    let mut client = NbdClient::connect_patiently(&socket, "slow");
    for _ in 0..64 {
        client.submit_read(0, 4096).expect("the connection holds");
    }
    let mut news = store.follow();
    let mut epochs = BTreeMap::new();
    wait_for("all is loaded", || match news.try_recv() {
        Ok(News::Loaded(config)) => {
            epochs.extend(config.families.iter().map(|(&family, entry)| (family, entry.record.epoch)));
            Ok(())
        }
        other => Err(format!("{other:?}")),
    });
    cluster.member(killed).kill();
    cluster.member(stopped).stop();
    cluster.wait_for_owner("v", |owner| owner == third);

    // In which order it was, whatever time it took.
    let (mut resigned, mut told, mut ended) = (None, None, None);
    wait_for("all is heard of", || {
        while let Ok(News::Changed { revision, changes }) = news.try_recv() {
            for change in changes {
                match change {
                    Change::Controller(now) if now.as_ref().is_none_or(|now| now.record.node != stopped) => {
                        resigned = resigned.or(Some(revision));
                    }
                    Change::Alive(node, Some(alive)) if node == stopped && alive.record.stopping => {
                        told = told.or(Some(revision));
                    }
                    Change::Alive(node, None) if node == stopped => ended = ended.or(Some(revision)),
                    Change::Family(id, Some(family)) => {
                        let epoch = family.record.epoch;
                        let is_given = epochs.insert(id, epoch).is_none_or(|before| before < epoch);
                        let owner = family.record.owner.map(|shard| ShardId(shard).node());
                        assert!(!is_given || told.is_none() || owner != Some(stopped), "{id} is given to it");
                    }
                    _ => {}
                }
            }
        }
        ended.map(drop).ok_or_else(|| "it has not ended".to_string())
    });
    assert!(
        resigned.is_some() && resigned < ended,
        "another can decide while it stops: {resigned:?}, {ended:?}"
    );
    assert!(told.is_some() && told < ended, "all know that it stops: {told:?}, {ended:?}");
    cluster.start_all();
    cluster.wait_until_whole();
}
