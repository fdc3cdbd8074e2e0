//! What a cluster is made of, for tests; and its life in one story.

use crate::server::Server;
use std::time::Duration;
use weft_engine::ShardId;
use weft_node::config::cluster::{
    AliveRecord, Campaign, ClusterError, ClusterNodeRecord, Decided, NewVdisk, NodeLease, NodeState,
    SHARDS_PER_NODE,
};
use weft_node::config::{
    DEFAULT_CONTAINER, DriveRecord, DriveRecordState, GroupRecord, OwnPolicy, Place, SnapshotOrigin,
    SnapshotRecord, WEIGHT_WHOLE,
};

pub fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

pub fn a_node(name: &str) -> ClusterNodeRecord {
    ClusterNodeRecord {
        node: u32::MAX,
        name: name.to_string(),
        api: "127.0.0.1:7070".to_string(),
        transport: vec!["127.0.0.1:7071".to_string(), "127.0.0.1:7072".to_string()],
        shards: 2,
        zone: String::new(),
        rack: "r1".to_string(),
        storage_only: false,
        last_life: 0,
        starts: 0,
        state: NodeState::In,
    }
}

pub fn a_drive(node: u32) -> DriveRecord {
    DriveRecord {
        drive: u32::MAX,
        node,
        shard: 0,
        place: Place::Files,
        log: 1 << 20,
        data: 1 << 30,
        weight: WEIGHT_WHOLE,
        incarnation: None,
        state: DriveRecordState::Making,
    }
}

pub fn a_group(members: &[u32]) -> GroupRecord {
    GroupRecord {
        group: u32::MAX,
        factor: members.len() as u32,
        members: members.to_vec(),
        former: Vec::new(),
    }
}

pub fn a_vdisk(name: &str) -> NewVdisk {
    NewVdisk {
        name: name.to_string(),
        size: 1 << 30,
        factor: 2,
        created: 1,
        owner: None,
        container: DEFAULT_CONTAINER.to_string(),
        own: OwnPolicy::default(),
    }
}

pub fn a_snapshot(family: u32, name: &str, number: u64) -> SnapshotRecord {
    SnapshotRecord::new(number, family, name, 1 << 30, 1, SnapshotOrigin::Asked)
}

/// Groups that get no drives.
pub fn alone<T>(groups: Vec<T>) -> Vec<Decided<T>> {
    groups.into_iter().map(Decided::alone).collect()
}

pub fn alive(node: u32, incarnation: u64) -> AliveRecord {
    let (place, up, down, slow) = (String::new(), Vec::new(), Vec::new(), Vec::new());
    AliveRecord { node, incarnation, place, up, down, slow, stopping: false }
}

#[test]
fn a_cluster_lives() {
    let server = Server::start();
    let cluster = server.new_cluster();
    assert!(matches!(cluster.init(78), Err(ClusterError::NotEmpty { .. })), "it is made once");
    cluster.check(77).expect("it is the one that was made");
    assert!(matches!(cluster.check(78), Err(ClusterError::OtherCluster { found: 77, .. })));

    let node = cluster.join(&a_node("first")).expect("it joins").record.node;
    let lease = NodeLease::take(cluster.etcd(), five_seconds(), || ()).expect("a lease is granted");
    cluster.announce(&alive(node, 1), lease.lease(), None).expect("it lives");
    let drive = cluster.add_drive(&a_drive(node)).expect("it is added").record;
    cluster
        .change_drive(drive.id(), |record| record.state = DriveRecordState::Formatted)
        .expect("it was formatted");
    let Campaign::Won(leadership) = cluster.campaign(node, lease.lease()).expect("etcd answers") else {
        panic!("nobody else is there")
    };
    // More than one transaction takes.
    let groups = vec![a_group(&[drive.drive]); 250];
    let mut groups = cluster.add_groups(&alone(groups), &leadership).expect("they are made");
    for group in &mut groups {
        group.record.former.push(7);
    }
    cluster.put_groups(&alone(groups), &leadership).expect("they are changed");
    let vdisk = cluster.create_vdisk(&a_vdisk("one")).expect("it is made");
    let owner = ShardId::of(node, 1);
    assert_eq!(owner, ShardId(node * SHARDS_PER_NODE + 1));
    let served = cluster
        .take_epoch(vdisk.record.id(), vdisk.revision, Some(owner), Some(&leadership))
        .expect("it gets an owner");
    let grown = cluster.change_vdisk(served.record.id(), |record| record.size *= 2).expect("it grows");
    assert_eq!((grown.record.epoch, grown.record.owner), (2, Some(owner.0)));

    let loaded = cluster.load().expect("it loads");
    assert_eq!(loaded.revision, grown.revision, "nothing was written behind it");
    assert_eq!(loaded.families[&grown.record.id()], grown);
    assert_eq!(loaded.alive[&node].record, alive(node, 1));
    assert_eq!(loaded.controller.as_ref().map(|controller| controller.record.node), Some(node));
    assert_eq!(loaded.drives[&drive.id()].record.state, DriveRecordState::Formatted);
    assert_eq!(loaded.groups.len(), 250);
    assert!(loaded.groups.values().all(|group| group.record.former == [7]));

    cluster.change_node(node, |record| record.state = NodeState::Removed).expect("it is removed");
    let back = cluster.announce(&alive(node, 1), lease.lease(), None);
    assert!(matches!(back, Err(ClusterError::NodeRemoved { .. })), "a removed node does not come back");
    let seen = loaded.drives[&drive.id()].revision;
    cluster.remove_drive(drive.id(), seen).expect("its drive goes");
    cluster.remove_drive(drive.id(), seen).expect("a second time is fine");
}

/// A word in the node's record would stay for ever if the node died while it waits.
#[test]
fn who_waits_for_the_network_counts_until_it_is_back_or_dead() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let waiting = || cluster.load().expect("it loads").cut_off.into_keys().collect::<Vec<_>>();
    // As short as etcd has them.
    let tell = |name| {
        let node = cluster.join(&a_node(name)).expect("it joins").record.node;
        (node, cluster.tell_cut_off(node, Duration::from_secs(1)).expect("it is told"))
    };
    let ((back, back_word), (dead, dead_word)) = (tell("back"), tell("dead"));
    std::thread::sleep(2 * back_word.ttl());
    assert_eq!(waiting(), [back, dead], "each goes on telling");
    back_word.give_up().expect("etcd hears it");
    assert_eq!(waiting(), [dead]);
    drop(dead_word);
    for _ in 0..600 {
        if waiting().is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("it is dead, and counts as one that waits");
}

#[test]
fn everything_loads_at_one_revision_page_after_page() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let lease = NodeLease::take(cluster.etcd(), five_seconds(), || ()).expect("a lease is granted");
    let Campaign::Won(leadership) = cluster.campaign(0, lease.lease()).expect("etcd answers") else {
        panic!("nobody else is there")
    };
    // More keys than a page has.
    let wanted = vec![a_group(&[1]); 2_500];
    let groups = cluster.add_groups(&alone(wanted), &leadership).expect("they are made");
    let loaded = cluster.load().expect("it loads");
    assert_eq!(loaded.groups.len(), 2_500);
    assert!(groups.iter().all(|group| loaded.groups[&group.record.id()] == *group));
}
