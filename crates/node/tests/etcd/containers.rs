//! Containers in a cluster: the default one is there from the beginning, and none goes that a vDisk is in or comes into.

use crate::proxy::{Lost, Proxy};
use crate::server::{Server, client};
use crate::stories::{a_snapshot, a_vdisk};
use crate::wait_for;
use weft_engine::SnapshotId;
use weft_node::config::cluster::{ClusterError, ClusterStore, NewVdisk, News};
use weft_node::config::etcd::{Compare, Transaction};
use weft_node::config::{CompressionRecord, ContainerRecord, DEFAULT_CONTAINER, SnapshotState};

fn a_container(name: &str) -> ContainerRecord {
    ContainerRecord { name: name.to_string(), created: 7, ..ContainerRecord::default() }
}

fn inside(name: &str, container: &str) -> NewVdisk {
    NewVdisk { container: container.to_string(), ..a_vdisk(name) }
}

#[test]
fn what_a_container_says_holds_for_its_vdisks_and_everybody_hears_of_it() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let mut news = cluster.follow();
    let mut mirror = None;
    let made = cluster.create_container(&a_container("fast")).expect("it is made");
    assert_eq!(made.record.joined, 0);
    let twice = cluster.create_container(&ContainerRecord { created: 8, ..a_container("fast") });
    assert!(matches!(twice, Err(ClusterError::ContainerExists { .. })), "{twice:?}");
    let family = cluster.create_vdisk(&inside("v", "fast")).expect("it is made").record.id();
    let lz4 = CompressionRecord::default().with(Some("lz4"), None).expect("it is one");
    let changed = cluster
        .change_container("fast", |record| {
            record.compression = lz4;
            record.ceiling.iops = Some(500);
        })
        .expect("it is changed");
    assert_eq!(changed.record.joined, 1, "one is in it");
    let missing = cluster.change_container("slow", |_| panic!("there is none"));
    assert!(matches!(missing, Err(ClusterError::NoContainer { .. })));
    wait_for("the mirror is the store", || {
        match news.try_recv() {
            Ok(News::Loaded(config)) => mirror = Some(*config),
            Ok(News::Changed { revision, changes }) => {
                mirror.as_mut().expect("all comes first").apply(revision, changes);
            }
            Ok(News::Older(error)) => panic!("etcd is one: {error}"),
            Err(_) => {}
        }
        mirror.as_ref().filter(|mirror| mirror.revision >= changed.revision).map(|mirror| {
            assert_eq!(mirror.containers.keys().collect::<Vec<_>>(), [DEFAULT_CONTAINER, "fast"]);
            let policy = mirror.policy(&mirror.families[&family].record);
            assert_eq!((policy.compression, policy.ceiling.iops), (lz4, Some(500)));
        })
    });
    let off = CompressionRecord::default();
    let own = cluster.change_vdisk(family, |record| record.compression = Some(off)).expect("it is changed");
    let loaded = cluster.load().expect("it loads");
    assert_eq!(loaded.policy(&own.record).compression, off, "its own word counts");
    let moved = cluster
        .put_into_container(family, DEFAULT_CONTAINER, |record| record.compression = None)
        .expect("it goes to the default one");
    assert_eq!((moved.record.container.as_str(), moved.record.compression), (DEFAULT_CONTAINER, None));
}

#[test]
fn a_container_goes_only_if_nobody_came_into_it_since_it_was_looked_at() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let nowhere = cluster.create_vdisk(&inside("v", "fast"));
    assert!(matches!(nowhere, Err(ClusterError::NoContainer { .. })), "{nowhere:?}");
    let seen = |name: &str| cluster.container(name).expect("etcd answers").expect("it is there");
    for round in 0..3 {
        let name = format!("c{round}");
        cluster.create_container(&a_container(&name)).expect("it is made");
        let empty = seen(&name);
        let family = match round {
            0 => cluster.create_vdisk(&inside("made", &name)).expect("it is made").record.id(),
            1 => {
                let family = cluster.create_vdisk(&a_vdisk("moved")).expect("it is made").record.id();
                cluster.put_into_container(family, &name, |_| {}).expect("it moves");
                cluster.put_into_container(family, &name, |_| {}).expect("twice is fine");
                assert_eq!(seen(&name).record.joined, 1, "and is counted once");
                family
            }
            _ => {
                let parent = cluster.create_vdisk(&inside("parent", &name)).expect("it is made").record.id();
                let snapshot = cluster.create_snapshot(&a_snapshot(parent.0, "s", 5)).expect("it is made");
                let key = snapshot.record.key();
                cluster
                    .change_snapshot(&key, SnapshotId(5), |record| {
                        record.state = SnapshotState::Ready;
                        record.generation = Some(1);
                    })
                    .expect("it is ready");
                let before = seen(&name);
                let wanted = [inside("one", &name), inside("two", &name)];
                let clones = cluster.create_clones(&key, SnapshotId(5), &wanted).expect("they are made");
                assert_eq!(seen(&name).record.joined, before.record.joined + 2);
                let numbers: Vec<u32> = clones.record.iter().map(|record| record.family).collect();
                let loaded = cluster.load().expect("it loads");
                assert_eq!(loaded.snapshots[&key].record.clones, numbers);
                assert_eq!(loaded.families[&parent].record.clones_made, 2);
                let again = cluster.create_clones(&key, SnapshotId(5), &wanted);
                assert!(matches!(again, Err(ClusterError::NameTaken { .. })), "{again:?}");
                parent
            }
        };
        let refused = cluster.remove_container(&empty);
        assert!(matches!(refused, Err(ClusterError::ContainerChanged { .. })), "round {round}: {refused:?}");
        cluster.remove_vdisk(family).expect("it is gone");
    }
    let full = seen("c0");
    cluster.remove_container(&full).expect("it is empty again");
    cluster.remove_container(&full).expect("a second time is fine");
    assert!(!cluster.load().expect("it loads").containers.contains_key("c0"));
}

#[test]
fn a_cluster_of_an_older_version_gets_its_default_container() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let family = cluster.create_vdisk(&a_vdisk("v")).expect("it is made").record;
    let default = cluster.container(DEFAULT_CONTAINER).expect("etcd answers").expect("it is there");
    let key = "/weft/test/containers/default";
    let gone = Transaction::new().when(Compare::unchanged(key, default.revision)).delete(key);
    assert!(cluster.etcd().transact(&gone).expect("etcd answers").succeeded);
    let loaded = cluster.load().expect("it loads without it");
    assert_eq!(
        loaded.policy(&family).compression,
        default.record.compression,
        "nothing else holds meanwhile"
    );
    cluster.make_default_container().expect("it is made");
    let lz4 = CompressionRecord::default().with(Some("lz4"), None).expect("it is one");
    cluster.change_container(DEFAULT_CONTAINER, |record| record.compression = lz4).expect("it is changed");
    cluster.make_default_container().expect("it stays");
    assert_eq!(cluster.load().expect("it loads").policy(&family).compression, lz4);
}

#[test]
fn a_vdisk_whose_answer_was_lost_is_made_and_counted_once() {
    let server = Server::start();
    let cluster = server.new_cluster();
    cluster.create_container(&a_container("fast")).expect("it is made");
    // Behind these answers the line is cut, until all of it comes through.
    for answers in 0..6 {
        let wire = Proxy::to(server.port());
        wire.cut_after(answers, Lost::Answer);
        let far =
            ClusterStore::new(client(&[wire.endpoint(), server.endpoint()]), "test").expect("it is a name");
        let name = format!("v{answers}");
        let made = far.create_vdisk(&inside(&name, "fast")).expect("the other way is open");
        assert_eq!(cluster.family_named(&name).expect("etcd answers"), Some(made.record.id()));
        let counted = cluster.container("fast").expect("etcd answers").expect("it is there").record.joined;
        assert_eq!(counted, u64::from(answers) + 1, "after {answers} answers");
    }
}
