//! A single node becomes the first of a cluster: every record arrives as it was, and numbers go on.

use crate::proxy::{Lost, Proxy};
use crate::server::{Server, client, temporary_directory};
use crate::stories::{a_drive, a_node, a_snapshot, a_vdisk};
use std::path::Path;
use weft_engine::FamilyId;
use weft_node::config::cluster::{ClusterError, ClusterStore, NodeState};
use weft_node::config::{
    CONFIG_FILE, CeilingRecord, CompressionRecord, Config, ConfigStore, ContainerRecord, DirectoryLock,
    DriveRecord, DriveRecordState, ExportRecord, FamilyConfig, FamilyState, GroupRecord, ImportError,
    Membership, MembershipStage, NodeRecord, Place, RedbStore, ScheduleRecord, SegmentRecord, import,
};

/// A node's own store with something of everything; more records than one transaction takes.
fn a_single_node(dir: &Path) -> Config {
    let mut store = RedbStore::open(dir, true).expect("a new store opens");
    let node =
        NodeRecord { node: 4711, next_drive: 6, next_family: 200, next_group: 90, ..NodeRecord::default() };
    store.put_node(&node).expect("it can be put");
    for drive in [0, 1, 2, 5] {
        let place = if drive == 5 { Place::Device("/dev/sdb".into()) } else { Place::Files };
        let state = if drive == 2 { DriveRecordState::Lost } else { DriveRecordState::Formatted };
        let record = DriveRecord { drive, place, state, ..a_drive(0) };
        store.put_drive(&record).expect("it can be put");
    }
    let groups: Vec<GroupRecord> = (0..80)
        .map(|group| GroupRecord { group, factor: 2, members: vec![group % 2, 5], former: vec![2] })
        .collect();
    store.put_groups(&groups).expect("they can be put");
    for family in 1..150 {
        let record = FamilyConfig {
            family,
            name: format!("vdisk-{family}"),
            size: 1 << 30,
            factor: 2,
            inherits_factor: family % 2 == 0,
            created: 1_700_000_000,
            epoch: family,
            owner: None,
            life: 0,
            moving_to: None,
            segments: vec![SegmentRecord { first: 7, epoch: 2, members: vec![0, 5], absent: Vec::new() }],
            version: 3,
            exports: vec![ExportRecord {
                address: "unix:/run/v.sock".to_string(),
                read_only: true,
                node: 0,
                name: None,
            }],
            state: if family == 9 { FamilyState::Dropping } else { FamilyState::Live },
            origin: None,
            rollback: None,
            clones_made: 0,
            attached: Vec::new(),
            rolled_back: None,
            container: if family % 2 == 0 { "fast" } else { "default" }.to_string(),
            dedup: (family % 3 == 0).then_some(family % 2 == 0),
            ceiling: CeilingRecord { iops: Some(family), bytes: None },
            compression: CompressionRecord::default().with(Some("zstd:5"), None).ok(),
        };
        store.put_family(&record).expect("it can be put");
    }
    let snapshots: Vec<_> = (1..9).map(|number| a_snapshot(number, "s", u64::from(number))).collect();
    store.put_snapshots(&snapshots).expect("they can be put");
    // The default container has no record: as an older version left it.
    let fast = ContainerRecord { name: "fast".to_string(), factor: Some(2), ..Default::default() };
    store.put_container(&fast).expect("it can be put");
    let schedule = ScheduleRecord { family: 3, every_seconds: 60, keep: 7, since: 5 };
    store.put_schedule(&schedule).expect("it can be put");
    store.load().expect("it loads")
}

fn expect_imported(cluster: &ClusterStore, single: &Config) {
    let loaded = cluster.load().expect("it loads");
    let families: Vec<_> = loaded.families.values().map(|found| found.record.clone()).collect();
    assert_eq!(families, single.families);
    let snapshots: Vec<_> = loaded.snapshots.values().map(|found| found.record.clone()).collect();
    assert_eq!(snapshots, single.snapshots);
    let schedules: Vec<_> = loaded.schedules.values().map(|found| found.record.clone()).collect();
    assert_eq!(schedules, single.schedules);
    let mut containers = single.containers.clone();
    containers.insert(0, ContainerRecord::default());
    assert_eq!(
        loaded.containers.values().map(|found| found.record.clone()).collect::<Vec<_>>(),
        containers,
        "the default one is made"
    );
    let groups: Vec<_> = loaded.groups.values().map(|found| found.record.clone()).collect();
    assert_eq!(groups, single.groups);
    let drives: Vec<_> = loaded.drives.values().map(|found| found.record.clone()).collect();
    let dealt = |drive: &DriveRecord| DriveRecord { shard: drive.drive % 2, ..drive.clone() };
    assert_eq!(
        drives,
        single.drives.iter().map(dealt).collect::<Vec<_>>(),
        "each with the shard that has it"
    );
    assert_eq!(loaded.nodes.keys().collect::<Vec<_>>(), [&0]);
    assert_eq!(loaded.nodes[&0].record.state, NodeState::In);
    assert_eq!(loaded.cluster.record.id, 4711);
}

#[test]
fn a_single_node_becomes_the_first_of_a_cluster() {
    let server = Server::start();
    let dir = temporary_directory("node");
    let single = a_single_node(&dir);
    let lock = DirectoryLock::take(&dir).expect("nobody has it");
    let cluster = ClusterStore::new(server.client(), "test").expect("it is a name");
    assert_eq!(Membership::read(&dir).expect("it can be asked"), None);
    let membership = import(&cluster, &dir, &lock, &a_node("first")).expect("it is moved");
    assert_eq!(Membership::read(&dir).expect("it can be asked"), Some(membership.clone()));
    assert_eq!((membership.node, membership.id, membership.stage), (0, 4711, MembershipStage::Member));
    expect_imported(&cluster, &single);

    assert_eq!(cluster.family_named("vdisk-7").expect("etcd answers"), Some(FamilyId(7)));
    let twice = cluster.create_vdisk(&a_vdisk("vdisk-7"));
    assert!(matches!(twice, Err(ClusterError::NameTaken { .. })), "names are taken");
    let next = cluster.create_vdisk(&a_vdisk("new")).expect("it is made");
    assert_eq!(next.record.family, 200, "numbers go on");
    assert_eq!(cluster.add_drive(&a_drive(1)).expect("it is added").record.drive, 6);
    assert_eq!(cluster.join(&a_node("second")).expect("it joins").record.node, 1);

    let again = import(&cluster, &dir, &lock, &a_node("first"));
    assert!(matches!(again, Err(ImportError::Member { .. })), "it is done once");
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn a_name_that_is_taken_is_refused_before_anything_is_done() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let before = cluster.load().expect("it loads");
    let dir = temporary_directory("node");
    a_single_node(&dir);
    let lock = DirectoryLock::take(&dir).expect("nobody has it");
    let refused = import(&cluster, &dir, &lock, &a_node("first"));
    assert!(matches!(refused, Err(ImportError::Cluster(ClusterError::NotEmpty { .. }))), "{refused:?}");
    assert_eq!(cluster.load().expect("it loads"), before);
    assert_eq!(Membership::read(&dir).expect("it can be asked"), None, "the node still stands alone");

    let fresh = temporary_directory("fresh");
    RedbStore::open(&fresh, true).expect("a new store opens");
    let lock = DirectoryLock::take(&fresh).expect("nobody has it");
    let refused = import(&cluster, &fresh, &lock, &a_node("first"));
    assert!(matches!(refused, Err(ImportError::NeverStarted)));
    let _ = (std::fs::remove_dir_all(dir), std::fs::remove_dir_all(fresh));
}

#[test]
fn an_import_that_was_cut_anywhere_is_finished_by_doing_it_again() {
    let server = Server::start();
    let template = temporary_directory("template");
    let single = a_single_node(&template);
    for lost in [Lost::Request, Lost::Answer] {
        // Cut after so many answers, until it comes through.
        let mut answers = 0;
        while import_cut_after(&server, (&template, &single), answers, lost) {
            answers += 1;
        }
        assert!(answers >= 5, "the claim, some records, and the end were cut: {answers}");
    }
    let _ = std::fs::remove_dir_all(template);
}

/// False: it came through before the cut.
fn import_cut_after(server: &Server, (template, single): (&Path, &Config), answers: u32, lost: Lost) -> bool {
    let name = format!("cut-{answers}-{lost:?}");
    let dir = temporary_directory("node");
    std::fs::copy(template.join(CONFIG_FILE), dir.join(CONFIG_FILE)).expect("it can be copied");
    let lock = DirectoryLock::take(&dir).expect("nobody has it");
    let wire = Proxy::to(server.port());
    wire.cut_after(answers, lost);
    let far = ClusterStore::new(client(&[wire.endpoint()]), &name).expect("it is a name");
    let cut = import(&far, &dir, &lock, &a_node("first")).is_err();
    let cluster = ClusterStore::new(server.client(), &name).expect("it is a name");
    if cut {
        let seen = cluster.load();
        let hidden = matches!(seen, Err(ClusterError::NoCluster { .. } | ClusterError::Importing { .. }));
        let finished = seen.is_ok_and(|seen| seen.families.len() == single.families.len());
        assert!(hidden || finished, "nobody sees half of it: {name}");
        import(&cluster, &dir, &lock, &a_node("first")).expect("it is finished");
    }
    expect_imported(&cluster, single);
    let membership = Membership::read(&dir).expect("it can be read").expect("it is there");
    assert_eq!(membership.stage, MembershipStage::Member);
    let _ = std::fs::remove_dir_all(dir);
    cut
}

#[test]
fn a_membership_counts_the_lives_of_a_node() {
    let dir = temporary_directory("node");
    let lock = DirectoryLock::take(&dir).expect("nobody has it");
    let mut membership = Membership {
        cluster: "test".to_string(),
        id: u64::MAX,
        endpoints: vec!["http://127.0.0.1:2379".to_string()],
        node: 3,
        stage: MembershipStage::Member,
        incarnation: 0,
    };
    let first = membership.begin_life(&dir, &lock).expect("it is written");
    assert_eq!((first.incarnation, first.former), (1, None));
    let mut read = Membership::read(&dir).expect("it can be read").expect("it is there");
    assert_eq!(read, membership);
    let second = read.begin_life(&dir, &lock).expect("it is written");
    assert_eq!((second.incarnation, second.former), (2, Some(1)), "the one before is known to be over");
    std::fs::write(dir.join("cluster.json"), b"{").expect("it can be written");
    assert!(Membership::read(&dir).expect_err("it is damaged").to_string().contains("put a good copy back"));
    let _ = std::fs::remove_dir_all(dir);
}
