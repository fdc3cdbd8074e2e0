//! Directories become nodes: new ones, one that brings its data, and some that were cut on the way.

use crate::proxy::{Lost, Proxy};
use crate::server::{Server, temporary_directory};
use std::path::{Path, PathBuf};
use weft_node::config::cluster::{ClusterError, ClusterStore, NodeState};
use weft_node::config::etcd::EtcdError;
use weft_node::config::{ConfigStore, Membership, MembershipStage, NodeRecord, RedbStore};
use weft_node::join::{
    Brought, InitSettings, JoinError, JoinSettings, Made, NodeOptions, init, join, refuse_unfinished,
};

fn options(name: &str, port: u16) -> NodeOptions {
    NodeOptions {
        name: Some(name.to_string()),
        api: ([127, 0, 0, 1], port).into(),
        transport: ([127, 0, 0, 1], port + 1).into(),
        shards: 2,
        zone: "z1".to_string(),
        rack: String::new(),
        storage_only: false,
    }
}

fn init_at(endpoint: &str, dir: Option<&Path>, node: NodeOptions) -> Result<Made, JoinError> {
    let dir = dir.map(Path::to_path_buf);
    init(&InitSettings { endpoints: vec![endpoint.to_string()], name: "test".to_string(), dir, node })
}

fn join_at(endpoint: &str, dir: &Path, node: NodeOptions) -> Result<Made, JoinError> {
    let (endpoints, name) = (vec![endpoint.to_string()], "test".to_string());
    join(&JoinSettings { endpoints, name, dir: dir.to_path_buf(), node })
}

fn node_of(made: &Made) -> (u32, &str) {
    let record = &made.node.as_ref().expect("a node was made").record;
    (record.node, &record.name)
}

fn membership(dir: &Path) -> Membership {
    Membership::read(dir).expect("it can be read").expect("it is there")
}

fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("it can be listed");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn a_used_directory() -> PathBuf {
    let dir = temporary_directory("used");
    let mut store = RedbStore::open(&dir, true).expect("a new store opens");
    store
        .put_node(&NodeRecord { node: 4711, next_family: 5, ..NodeRecord::default() })
        .expect("it can be put");
    dir
}

#[test]
fn new_directories_become_nodes() {
    let server = Server::start();
    let (first, second) = (temporary_directory("first"), temporary_directory("second"));
    let made = init_at(&server.endpoint(), Some(&first), options("a", 7000)).expect("a cluster is made");
    assert_eq!(node_of(&made), (0, "a"));
    let made = join_at(&server.endpoint(), &second, options("b", 7010)).expect("it joins");
    assert_eq!(node_of(&made), (1, "b"));

    let store = ClusterStore::new(server.client(), "test").expect("it is a name");
    let config = store.load().expect("it loads");
    let record = &config.nodes[&1].record;
    assert_eq!((record.name.as_str(), record.state, record.zone.as_str()), ("b", NodeState::In, "z1"));
    assert_eq!(record.transport, ["127.0.0.1:7011", "127.0.0.1:7011"], "one address for both shards");
    let member = membership(&second);
    assert_eq!((member.node, member.id, member.incarnation), (1, config.cluster.record.id, 0));
    assert_eq!((member.stage, member.endpoints), (MembershipStage::Member, vec![server.endpoint()]));
    assert_eq!(files(&second), ["cluster.json", "lock"], "nothing is left of the way there");

    let again = join_at(&server.endpoint(), &second, options("b", 7010));
    assert!(matches!(again, Err(JoinError::Member { node: 1, .. })), "{again:?}");
    let again = init_at(&server.endpoint(), None, options("c", 7020));
    assert!(matches!(again, Err(JoinError::Exists { .. })), "{again:?}");
    assert_eq!(store.load().expect("it loads").nodes, config.nodes);
    let _ = (std::fs::remove_dir_all(first), std::fs::remove_dir_all(second));
}

#[test]
fn who_cannot_be_reached_is_told_when_it_joins() {
    let server = Server::start();
    let note = |made: Made| made.node.expect("a node was made").note;
    let far = |name: &str, port| NodeOptions {
        api: ([10, 0, 0, 1], port).into(),
        transport: ([10, 0, 0, 1], port + 1).into(),
        ..options(name, port)
    };
    let dirs = [temporary_directory("a"), temporary_directory("b"), temporary_directory("c")];
    let made = init_at(&server.endpoint(), Some(&dirs[0]), far("a", 7000)).expect("a cluster is made");
    assert_eq!(note(made), "", "nothing keeps others from it");
    let made = join_at(&server.endpoint(), &dirs[1], options("b", 7010)).expect("it joins");
    assert!(note(made).contains("only nodes on this machine"));
    let made = join_at(&server.endpoint(), &dirs[2], far("c", 7020)).expect("it joins");
    assert!(note(made).contains("node 1 (b)"));
    for dir in dirs {
        let _ = std::fs::remove_dir_all(dir);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_nothing() {
    let server = Server::start();
    let dir = temporary_directory("new");
    let early = join_at(&server.endpoint(), &dir, options("b", 7010));
    assert!(matches!(early, Err(JoinError::Cluster(ClusterError::NoCluster { .. }))), "{early:?}");
    init_at(&server.endpoint(), None, options("", 7000)).expect("an empty cluster is made");
    let first = temporary_directory("a");
    join_at(&server.endpoint(), &first, options("a", 7000)).expect("it joins");

    let refused = |dir: &Path, options| join_at(&server.endpoint(), dir, options).expect_err("it is refused");
    assert!(matches!(refused(&dir, options("a", 7010)), JoinError::NameTaken { node: 0, .. }));
    assert!(matches!(refused(&dir, options("17", 7010)), JoinError::BadName { .. }));
    assert!(matches!(refused(&dir, options("b", 7000)), JoinError::AddressTaken { option: "--api", .. }));
    let shifted = NodeOptions { api: ([127, 0, 0, 1], 1).into(), ..options("b", 7000) };
    assert!(matches!(refused(&dir, shifted), JoinError::AddressTaken { option: "--transport", .. }));
    let anywhere = NodeOptions { transport: ([0, 0, 0, 0], 7011).into(), ..options("b", 7010) };
    assert!(matches!(refused(&dir, anywhere), JoinError::Unspecified { .. }));
    assert_eq!(files(&dir), ["lock"]);

    let used = a_used_directory();
    assert!(matches!(refused(&used, options("b", 7010)), JoinError::HoldsData { .. }));
    let drives = temporary_directory("drives");
    std::fs::write(drives.join("drive-3.data"), b"x").expect("it can be written");
    assert!(matches!(refused(&drives, options("b", 7010)), JoinError::HoldsDrives { .. }));
    assert_eq!(
        ClusterStore::new(server.client(), "test").expect("a name").load().expect("it loads").nodes.len(),
        1
    );

    join_at(&server.endpoint(), &dir, options("b", 7010)).expect("then it fits");
    for dir in [dir, first, used, drives] {
        let _ = std::fs::remove_dir_all(dir);
    }
}

#[test]
fn a_single_node_brings_what_it_has() {
    let server = Server::start();
    let dir = a_used_directory();
    let made = init_at(&server.endpoint(), Some(&dir), options("a", 7000)).expect("it is moved");
    assert_eq!((made.id, node_of(&made)), (4711, (0, "a")));
    assert_eq!(made.node.expect("it is there").brought, Some(Brought { drives: 0, vdisks: 0 }));
    let again = init_at(&server.endpoint(), Some(&dir), options("a", 7000));
    assert!(matches!(again, Err(JoinError::Member { node: 0, .. })), "{again:?}");
    let other = join_at(&server.endpoint(), &dir, options("b", 7010));
    assert!(matches!(other, Err(JoinError::Member { node: 0, .. })), "{other:?}");
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn joining_that_was_cut_anywhere_is_finished_by_doing_it_again() {
    for lost in [Lost::Request, Lost::Answer] {
        let mut answers = 0;
        while cut_after(answers, lost) {
            answers += 1;
        }
        assert!(answers >= 4, "the cluster, the record and its name were cut: {answers}");
    }
}

/// A cluster and its first node in one command, and a second node. False: all came through before the cut.
fn cut_after(answers: u32, lost: Lost) -> bool {
    let server = Server::start();
    let (first, second) = (temporary_directory("first"), temporary_directory("second"));
    let what = format!("cut after {answers}, {lost:?}");
    let wire = Proxy::to(server.port());
    wire.cut_after(answers, lost);
    let cut = init_at(&wire.endpoint(), Some(&first), options("a", 7000)).is_err();
    if cut {
        match init_at(&server.endpoint(), Some(&first), options("a", 7000)) {
            Ok(made) => assert_eq!(node_of(&made), (0, "a"), "{what}"),
            // All that was missing was the answer that it is done.
            Err(JoinError::Member { node: 0, .. }) => {}
            Err(error) => panic!("{what}: {error}"),
        }
    }
    let wire = Proxy::to(server.port());
    wire.cut_after(answers, lost);
    let cut_again = join_at(&wire.endpoint(), &second, options("b", 7010)).is_err();
    if cut_again {
        match join_at(&server.endpoint(), &second, options("b", 7010)) {
            Ok(made) => assert_eq!(node_of(&made), (1, "b"), "{what}"),
            Err(JoinError::Member { node: 1, .. }) => {}
            Err(error) => panic!("{what}: {error}"),
        }
    }
    let store = ClusterStore::new(server.client(), "test").expect("it is a name");
    let names: Vec<String> =
        store.load().expect("it loads").nodes.values().map(|found| found.record.name.clone()).collect();
    assert_eq!(names, ["a", "b"], "{what}: no node is there twice, and no stamp is left");
    assert_eq!((membership(&first).node, membership(&second).node), (0, 1), "{what}");
    for dir in [first, second] {
        assert_eq!(files(&dir), ["cluster.json", "lock"], "{what}");
        let _ = std::fs::remove_dir_all(dir);
    }
    cut || cut_again
}

#[test]
fn what_a_cut_leaves_behind_can_be_removed_and_the_directory_joins_anew() {
    let server = Server::start();
    init_at(&server.endpoint(), None, options("", 7000)).expect("an empty cluster is made");
    let store = ClusterStore::new(server.client(), "test").expect("it is a name");
    let dir = temporary_directory("node");
    for answers in 0.. {
        let wire = Proxy::to(server.port());
        wire.cut_after(answers, Lost::Answer);
        join_at(&wire.endpoint(), &dir, options("b", 7010)).expect_err("it was cut");
        let left = store.load().expect("it loads").nodes;
        if let Some(left) = left.get(&0) {
            assert!(left.record.name.starts_with("b (joining, "), "people see what it is: {:?}", left.record);
            break;
        }
    }
    assert!(!dir.join("cluster.json").exists());
    store.change_node(0, |record| record.state = NodeState::Removed).expect("it is removed");
    let made = join_at(&server.endpoint(), &dir, options("b", 7010)).expect("it joins anew");
    assert_eq!(node_of(&made), (1, "b"));
    let _ = std::fs::remove_dir_all(dir);
}

/// Answers of an etcd before anything is done with it: whether it is one, and which, and then which cluster is there.
const LOOKS: u32 = 3;

/// A directory whose `weft node join` was cut before its record was there, so that it has a mark only.
fn cut_join(server: &Server) -> PathBuf {
    let dir = temporary_directory("cut");
    let wire = Proxy::to(server.port());
    wire.cut_after(LOOKS, Lost::Request);
    join_at(&wire.endpoint(), &dir, options("b", 7010)).expect_err("it was cut");
    assert!(dir.join("joining.json").exists() && !dir.join("cluster.json").exists(), "{:?}", files(&dir));
    dir
}

#[test]
fn a_cut_join_does_not_make_a_second_cluster_of_the_same_id() {
    let (server, other) = (Server::start(), Server::start());
    let made = init_at(&server.endpoint(), None, options("", 7000)).expect("an empty cluster is made");
    let dir = cut_join(&server);
    for etcd in [&server, &other] {
        let refused = init_at(&etcd.endpoint(), Some(&dir), options("b", 7010)).expect_err("it is refused");
        assert!(matches!(refused, JoinError::Begun { .. }) && refused.is_of_input(), "{refused:?}");
        assert!(refused.to_string().contains("weft node join --cluster test --dir "), "{refused}");
    }
    // Of an older version, which did not say what it was.
    let mark = std::fs::read_to_string(dir.join("joining.json")).expect("it is there");
    let mut mark: serde_json::Value = serde_json::from_str(&mark).expect("it is JSON");
    mark.as_object_mut().expect("an object").remove("way");
    std::fs::write(dir.join("joining.json"), mark.to_string()).expect("it can be written");
    let second = init_at(&other.endpoint(), Some(&dir), options("b", 7010)).expect("a cluster is made");
    assert_ne!(made.id, second.id, "no two clusters have one id");
    let _ = std::fs::remove_dir_all(dir);

    let dir = cut_join(&server);
    let joined = join_at(&server.endpoint(), &dir, options("b", 7010)).expect("it is finished");
    assert_eq!((joined.id, node_of(&joined)), (made.id, (0, "b")));
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn a_cut_init_is_finished_by_itself_only_and_nothing_starts_before() {
    let server = Server::start();
    let dir = temporary_directory("cut");
    let wire = Proxy::to(server.port());
    wire.cut_after(LOOKS, Lost::Answer);
    init_at(&wire.endpoint(), Some(&dir), options("a", 7000)).expect_err("it was cut");
    let refused = refuse_unfinished(&dir).expect_err("it is on its way");
    assert!(refused.to_string().contains("weft cluster init --name test --dir "), "{refused}");
    assert!(refused.is_of_input());
    let refused = join_at(&server.endpoint(), &dir, options("a", 7000)).expect_err("it is refused");
    assert!(matches!(refused, JoinError::Begun { .. }), "{refused:?}");
    let made = init_at(&server.endpoint(), Some(&dir), options("a", 7000)).expect("it is finished");
    assert_eq!(node_of(&made), (0, "a"));
    refuse_unfinished(&dir).expect("nothing is left to do");
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn only_what_was_asked_for_wrongly_is_bad_input() {
    let io = |kind: std::io::ErrorKind| JoinError::Io { path: "/x".into(), source: kind.into() };
    let refused = EtcdError::Refused { code: 8, message: "etcdserver: too many requests".to_string() };
    for error in [
        ClusterError::from(refused).into(),
        ClusterError::from(EtcdError::NoQuorum { tried: String::new() }).into(),
        ClusterError::Contended { key: "it".to_string() }.into(),
        io(std::io::ErrorKind::StorageFull),
        io(std::io::ErrorKind::PermissionDenied),
        JoinError::DamagedMark { path: "/x".into() },
    ] {
        assert!(!error.is_of_input(), "{error}");
    }
    for error in [
        ClusterError::from(EtcdError::BadEndpoint { endpoint: "x".to_string() }).into(),
        ClusterError::NoCluster { name: "x".to_string() }.into(),
        JoinError::BadName { name: "1".to_string() },
        io(std::io::ErrorKind::NotADirectory),
    ] {
        assert!(JoinError::is_of_input(&error), "{error}");
    }
}
