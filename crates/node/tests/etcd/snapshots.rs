//! Records of snapshots and schedules: one of a name, none of a vDisk that goes, and gone with it.

use crate::server::Server;
use crate::stories::{a_snapshot, a_vdisk};
use crate::wait_for;
use weft_engine::SnapshotId;
use weft_node::config::cluster::{ClusterError, ClusterStore, News};
use weft_node::config::{
    ConsistencyRecord, ExportRecord, FamilyConfig, FamilyState, RollbackRecord, ScheduleRecord, SnapshotKey,
    SnapshotRecord, SnapshotState,
};

#[test]
fn snapshots_are_made_changed_and_removed_by_those_who_know_them() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let family = cluster.create_vdisk(&a_vdisk("v")).expect("it is made").record.id();
    cluster.change_vdisk(family, |record| record.size = 2 << 30).expect("it grows");
    let wanted = a_snapshot(family.0, "monday", 11);
    let made = cluster.create_snapshot(&wanted).expect("it is made");
    assert_eq!(made.record.size, 2 << 30, "it has the size of now, not the one that somebody remembers");
    let key = made.record.key();
    let again = cluster.create_snapshot(&a_snapshot(family.0, "monday", 12));
    assert!(matches!(again, Err(ClusterError::SnapshotExists { .. })), "{again:?}");
    let changed = cluster
        .change_snapshot(&key, SnapshotId(11), |record| {
            record.state = SnapshotState::Ready;
            record.generation = Some(3);
        })
        .expect("it is changed");
    assert_eq!(cluster.load().expect("it loads").snapshots[&key], changed);
    let other = cluster.change_snapshot(&key, SnapshotId(12), |_| panic!("it is not that snapshot"));
    assert!(matches!(other, Err(ClusterError::NotThere { .. })));
    cluster.remove_snapshot(&key, SnapshotId(12)).expect("what is gone is gone");
    assert_eq!(cluster.load().expect("it loads").snapshots.len(), 1, "another one of the name stays");
    cluster.remove_snapshot(&key, SnapshotId(11)).expect("it is removed");
    assert!(cluster.load().expect("it loads").snapshots.is_empty());
    let nowhere = cluster.create_snapshot(&a_snapshot(family.0 + 1, "x", 1));
    assert!(matches!(nowhere, Err(ClusterError::NotThere { .. })));
}

#[test]
fn a_vdisk_does_not_grow_between_the_record_of_a_snapshot_and_its_instant() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let family = cluster.create_vdisk(&a_vdisk("v")).expect("it is made").record.id();
    let size = || cluster.family(family).expect("etcd answers").expect("it is there").record.size;
    let key = cluster.create_snapshot(&a_snapshot(family.0, "s", 5)).expect("it is made").record.key();
    let refused = cluster.resize_vdisk(family, 2 << 30);
    assert!(matches!(refused, Err(ClusterError::SnapshotUnderWay { .. })), "{refused:?}");
    assert_eq!(size(), 1 << 30);
    // Nobody serves the vDisk, so it would be under way for ever; whoever wants to can let it go.
    cluster.let_snapshot_go(&key, SnapshotId(5)).expect("nobody needs it");
    assert_eq!(cluster.resize_vdisk(family, 2 << 30).expect("it grows").record.size, 2 << 30);
    assert_eq!(
        cluster.resize_vdisk(family, 1 << 30).expect("it stays").record.size,
        2 << 30,
        "and never shrinks"
    );
    let key = cluster.create_snapshot(&a_snapshot(family.0, "t", 6)).expect("it is made").record.key();
    let ready = |record: &mut SnapshotRecord| record.state = SnapshotState::Ready;
    cluster.change_snapshot(&key, SnapshotId(6), ready).expect("it is taken");
    cluster.resize_vdisk(family, 3 << 30).expect("it is in nobody's way");
    assert_eq!(size(), 3 << 30);
}

#[test]
fn whatever_comes_first_a_snapshot_has_the_size_of_its_instant() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let family = cluster.create_vdisk(&a_vdisk("v")).expect("it is made").record.id();
    for round in 0..20u64 {
        let size = (2 + round) << 30;
        // Until it is said to be taken its vDisk keeps the size that the record has.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while let Err(error) = cluster.resize_vdisk(family, size) {
                    assert!(matches!(error, ClusterError::SnapshotUnderWay { .. }), "{error}");
                }
            });
            scope.spawn(|| {
                let made = cluster.create_snapshot(&a_snapshot(family.0, &format!("s{round}"), round));
                let made = made.expect("it is made").record;
                for _ in 0..3 {
                    let of = cluster.family(family).expect("etcd answers").expect("it is there");
                    assert_eq!(of.record.size, made.size, "round {round}");
                }
                let ready = |record: &mut SnapshotRecord| record.state = SnapshotState::Ready;
                cluster.change_snapshot(&made.key(), made.id(), ready).expect("it is taken");
            });
        });
    }
}

#[test]
fn a_vdisk_goes_back_or_has_a_snapshot_taken_but_not_both() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let family = cluster.create_vdisk(&a_vdisk("v")).expect("it is made").record.id();
    let goes_back = |record: &mut FamilyConfig| {
        record.rollback = Some(RollbackRecord { id: 1, generation: 0, size: 1 << 30 });
    };
    let key = cluster.create_snapshot(&a_snapshot(family.0, "s", 5)).expect("it is made").record.key();
    let refused = cluster.change_between_snapshots(family, goes_back);
    assert!(matches!(refused, Err(ClusterError::SnapshotUnderWay { .. })), "{refused:?}");
    let ready = |record: &mut SnapshotRecord| {
        record.state = SnapshotState::Ready;
        record.generation = Some(0);
    };
    cluster.change_snapshot(&key, SnapshotId(5), ready).expect("it is taken");
    cluster.change_between_snapshots(family, goes_back).expect("it goes back");
    // Of which size would it be?
    let refused = cluster.create_snapshot(&a_snapshot(family.0, "t", 6));
    assert!(matches!(refused, Err(ClusterError::GoingBack { .. })), "{refused:?}");
    let is_back = |record: &mut FamilyConfig| record.rollback = None;
    cluster.change_vdisk(family, is_back).expect("it is back");
    cluster.create_snapshot(&a_snapshot(family.0, "t", 6)).expect("it is made");
}

/// Snapshot 5 of a new vDisk.
fn a_ready_snapshot(cluster: &ClusterStore) -> SnapshotKey {
    let parent = cluster.create_vdisk(&a_vdisk("parent")).expect("it is made").record.id();
    let key = cluster.create_snapshot(&a_snapshot(parent.0, "s", 5)).expect("it is made").record.key();
    let ready = cluster.change_snapshot(&key, SnapshotId(5), |record| {
        record.state = SnapshotState::Ready;
        record.generation = Some(1);
    });
    ready.expect("it is ready");
    key
}

#[test]
fn a_snapshot_stays_as_long_as_a_clone_of_it_is_there() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let key = a_ready_snapshot(&cluster);
    let wanted = [a_vdisk("one"), a_vdisk("two")];
    let clones = cluster.create_clones(&key, SnapshotId(5), &wanted).expect("they are made").record;
    for (gone, left) in clones.iter().zip([2, 1]) {
        let record = cluster.let_snapshot_go(&key, SnapshotId(5)).expect("it is looked at").record;
        assert_eq!((record.state, record.clones.len()), (SnapshotState::Ready, left));
        cluster.remove_vdisk(gone.id()).expect("it is gone");
    }
    let record = cluster.let_snapshot_go(&key, SnapshotId(5)).expect("nobody needs it").record;
    assert_eq!((record.state, record.clones), (SnapshotState::Deleting, Vec::new()));
}

#[test]
fn a_snapshot_stays_as_long_as_its_vdisk_goes_back_to_it() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let key = a_ready_snapshot(&cluster);
    let other = cluster.create_snapshot(&a_snapshot(key.0.0, "t", 6)).expect("it is made").record.key();
    let ready = |record: &mut SnapshotRecord| {
        record.state = SnapshotState::Ready;
        record.generation = Some(2);
    };
    cluster.change_snapshot(&other, SnapshotId(6), ready).expect("it is ready");
    let goes_back = |record: &mut FamilyConfig| {
        record.rollback = Some(RollbackRecord { id: 1, generation: 1, size: 1 << 30 });
    };
    cluster.change_between_snapshots(key.0, goes_back).expect("it goes back");
    let record = cluster.let_snapshot_go(&key, SnapshotId(5)).expect("it is looked at").record;
    assert_eq!(record.state, SnapshotState::Ready, "the vDisk would have nothing to go back to");
    let record = cluster.let_snapshot_go(&other, SnapshotId(6)).expect("nobody needs it").record;
    assert_eq!(record.state, SnapshotState::Deleting);
    cluster.change_vdisk(key.0, |record| record.rollback = None).expect("it is back");
    let record = cluster.let_snapshot_go(&key, SnapshotId(5)).expect("nobody needs it").record;
    assert_eq!(record.state, SnapshotState::Deleting);
}

#[test]
fn a_vdisk_does_not_begin_to_go_back_to_what_goes_or_is_gone() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let key = a_ready_snapshot(&cluster);
    // Whoever wants that has seen the snapshot ready.
    let goes_back = |record: &mut FamilyConfig| {
        record.rollback = Some(RollbackRecord { id: 1, generation: 1, size: 1 << 30 });
    };
    let rollback = || cluster.family(key.0).expect("etcd answers").expect("it is there").record.rollback;
    cluster.let_snapshot_go(&key, SnapshotId(5)).expect("nobody needs it");
    let refused = cluster.change_between_snapshots(key.0, goes_back);
    assert!(matches!(refused, Err(ClusterError::NothingToGoBackTo { .. })), "{refused:?}");
    assert_eq!(rollback(), None);
    cluster.remove_snapshot(&key, SnapshotId(5)).expect("it is removed");
    let refused = cluster.change_between_snapshots(key.0, goes_back);
    assert!(matches!(refused, Err(ClusterError::NothingToGoBackTo { .. })), "{refused:?}");
    assert_eq!(rollback(), None);
}

#[test]
fn a_snapshot_goes_or_its_vdisk_goes_back_to_it_but_not_both() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let key = a_ready_snapshot(&cluster);
    for round in 0..20u64 {
        let goes_back = move |record: &mut FamilyConfig| {
            record.rollback = Some(RollbackRecord { id: round, generation: 1, size: 1 << 30 });
        };
        let (left, begun) = std::thread::scope(|scope| {
            let letting =
                scope.spawn(|| cluster.let_snapshot_go(&key, SnapshotId(5)).expect("it is looked at"));
            let beginning = scope.spawn(|| cluster.change_between_snapshots(key.0, goes_back));
            (letting.join().expect("it ends").record, beginning.join().expect("it ends"))
        });
        assert_eq!(left.state == SnapshotState::Ready, begun.is_ok(), "round {round}: {left:?}, {begun:?}");
        cluster.change_vdisk(key.0, |record| record.rollback = None).expect("it is over");
        let ready = |record: &mut SnapshotRecord| record.state = SnapshotState::Ready;
        cluster.change_snapshot(&key, SnapshotId(5), ready).expect("it is there again");
    }
}

#[test]
fn an_image_whose_clones_come_and_go_does_not_remember_all_of_them() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let key = a_ready_snapshot(&cluster);
    let stays = cluster.create_clones(&key, SnapshotId(5), &[a_vdisk("stays")]).expect("it is made").record;
    let mut longest = 0;
    for round in 0..12 {
        let wanted: Vec<_> = (0..24).map(|number| a_vdisk(&format!("c{round}-{number}"))).collect();
        for clone in cluster.create_clones(&key, SnapshotId(5), &wanted).expect("they are made").record {
            cluster.remove_vdisk(clone.id()).expect("it is gone");
        }
        longest = longest.max(cluster.load().expect("it loads").snapshots[&key].record.clones.len());
    }
    assert!(longest < 150, "{longest} of 289 are remembered");
    let record = cluster.let_snapshot_go(&key, SnapshotId(5)).expect("it is looked at").record;
    assert_eq!((record.state, record.clones), (SnapshotState::Ready, vec![stays[0].family]));
}

#[test]
fn a_vdisk_goes_only_if_it_may_as_etcd_says() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let family = cluster.create_vdisk(&a_vdisk("v")).expect("it is made").record.id();
    // Whoever wants to delete it has not heard of these.
    let export = ExportRecord { address: "unix:/s".to_string(), read_only: false, node: 1, name: None };
    cluster.change_vdisk(family, |record| record.exports.push(export.clone())).expect("it is exported");
    let key = cluster.create_snapshot(&a_snapshot(family.0, "s", 5)).expect("it is made").record.key();
    let unexported = |record: &FamilyConfig| record.exports.is_empty();
    let state = || cluster.load().expect("it loads").families[&family].record.state;
    let now = || cluster.revision_now().expect("etcd answers");
    assert_eq!(cluster.begin_removal(family, Some(now()), unexported).expect("etcd answers"), None);
    assert_eq!(
        cluster.begin_removal(family, None, |_| true).expect("etcd answers"),
        None,
        "its snapshot stays"
    );
    let before = now();
    let attached = cluster
        .change_snapshot(&key, SnapshotId(5), |record| record.attached.push(2))
        .expect("it is attached");
    assert_eq!(
        cluster.begin_removal(family, Some(before), |_| true).expect("etcd answers"),
        None,
        "it was attached since"
    );
    assert_eq!(state(), FamilyState::Live);
    let looked_at = Some(attached.revision);
    let removed = cluster.begin_removal(family, looked_at, |_| true).expect("etcd answers").expect("it goes");
    assert_eq!((removed.record.state, removed.record.exports.len()), (FamilyState::Dropping, 0));
    assert_eq!(state(), FamilyState::Dropping);
    let again = cluster.begin_removal(family, None, |_| false).expect("etcd answers");
    assert_eq!(again.expect("it goes already").record.state, FamilyState::Dropping);
    cluster.remove_snapshot(&key, SnapshotId(5)).expect("it is removed");
}

#[test]
fn whoever_follows_hears_of_snapshots_and_they_go_with_their_vdisk() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let one = cluster.create_vdisk(&a_vdisk("one")).expect("it is made").record.id();
    let other = cluster.create_vdisk(&a_vdisk("other")).expect("it is made").record.id();
    let mut news = cluster.follow();
    let mut mirror = None;
    for (family, name) in [(one, "a"), (one, "b"), (other, "a")] {
        cluster.create_snapshot(&a_snapshot(family.0, name, 7)).expect("it is made");
    }
    let schedule = ScheduleRecord { family: one.0, every_seconds: 600, keep: 7, since: 1 };
    let put = cluster.put_schedule(&schedule).expect("it is put");
    assert_eq!(cluster.load().expect("it loads").schedules[&one].revision, put);
    cluster.change_vdisk(one, |record| record.state = FamilyState::Dropping).expect("it goes");
    let late = cluster.create_snapshot(&a_snapshot(one.0, "late", 9));
    assert!(matches!(late, Err(ClusterError::NotThere { .. })), "of what goes there is none");
    assert!(cluster.put_schedule(&schedule).is_err());
    cluster.remove_vdisk(one).expect("it is gone");
    let loaded = cluster.load().expect("it loads");
    assert_eq!(loaded.snapshots.keys().cloned().collect::<Vec<_>>(), [(other, "a".to_string())]);
    assert!(loaded.schedules.is_empty());
    wait_for("the mirror is the store", || {
        match news.try_recv() {
            Ok(News::Loaded(config)) => mirror = Some(*config),
            Ok(News::Changed { revision, changes }) => {
                mirror.as_mut().expect("all comes first").apply(revision, changes);
            }
            Ok(News::Older(error)) => panic!("etcd is one: {error}"),
            Err(_) => {}
        }
        mirror.as_ref().filter(|mirror| mirror.revision >= loaded.revision).map(|mirror| {
            assert_eq!((&mirror.snapshots, &mirror.schedules), (&loaded.snapshots, &loaded.schedules));
        })
    });
    let schedule = ScheduleRecord { family: other.0, ..schedule };
    cluster.put_schedule(&schedule).expect("it is put");
    cluster.remove_schedule(other).expect("it is removed");
    cluster.remove_schedule(other).expect("twice is fine");
    assert!(cluster.load().expect("it loads").schedules.is_empty());
}

#[test]
fn whoever_changes_a_group_keeps_what_others_change() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let group = |families: &[u32]| ConsistencyRecord { name: "db".to_string(), families: families.to_vec() };
    assert!(cluster.change_consistency("db", |record| record.families.push(1)).is_err(), "there is none");
    cluster.create_consistency(&group(&[1])).expect("it is made");
    let again = cluster.create_consistency(&group(&[2]));
    assert!(matches!(again, Err(ClusterError::GroupExists { .. })), "{again:?}");
    let mut is_first = true;
    let changed = cluster.change_consistency("db", |record| {
        if std::mem::take(&mut is_first) {
            // Between the look and the change.
            cluster.change_consistency("db", |record| record.families.push(2)).expect("it is changed");
        }
        record.families.push(3);
    });
    assert_eq!(changed.expect("it is changed").record, group(&[1, 2, 3]));
    let same = cluster.change_consistency("db", |_| ()).expect("nothing to do");
    assert_eq!(cluster.load().expect("it loads").consistency["db"], same);
    cluster.remove_consistency("db").expect("it is removed");
    cluster.remove_consistency("db").expect("twice is fine");
    assert!(cluster.load().expect("it loads").consistency.is_empty());
}
