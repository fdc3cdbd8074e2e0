//! Many threads want the same thing at once: numbers are given out once, and of everything there is one winner.

use crate::server::Server;
use crate::stories::{a_drive, a_group, a_node, a_vdisk, alive, alone, five_seconds};
use std::collections::BTreeSet;
use std::thread;
use weft_engine::interface::Segment;
use weft_engine::{Epoch, FamilyId, Seq, ShardId};
use weft_node::config::DriveRecordState;
use weft_node::config::cluster::{Campaign, Claim, ClusterError, Decided, NewOwner, NodeLease};

const THREADS: u32 = 12;

/// Runs `work` on all threads at once and gives what each came to.
fn all_at_once<T: Send>(work: impl Fn(u32) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS).map(|at| scope.spawn(move || work(at))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    })
}

#[test]
fn numbers_are_given_out_once() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let nodes = all_at_once(|_| cluster.join(&a_node("same")).expect("it joins").record.node);
    assert_eq!(nodes.iter().collect::<BTreeSet<_>>().len(), THREADS as usize, "{nodes:?}");
    let drives: Vec<u32> = all_at_once(|at| {
        let add = |_| cluster.add_drive(&a_drive(at)).expect("it is added").record.drive;
        (0..4).map(add).collect::<Vec<_>>()
    })
    .concat();
    assert_eq!(drives.iter().collect::<BTreeSet<_>>().len(), 4 * THREADS as usize, "{drives:?}");
    let loaded = cluster.load().expect("it loads");
    assert_eq!(loaded.nodes.len(), THREADS as usize);
    assert_eq!(loaded.drives.len(), 4 * THREADS as usize, "every number has its record");
    assert_eq!(loaded.cluster.record.next_drive, 4 * THREADS, "none was wasted, as nothing failed");
}

#[test]
fn a_device_is_taken_once_and_with_it_what_was_asked_through_it() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let family = cluster.create_vdisk(&a_vdisk("v")).expect("it is made").record.id();
    let attached = cluster.change_vdisk(family, |record| record.attached = vec![1, 2]).expect("it is said");
    let results = all_at_once(|_| cluster.take_device(family, 1).expect("it is taken").record);
    let owner = attached.record.owner;
    for record in results {
        assert_eq!((record.epoch, record.owner), (attached.record.epoch + 1, owner), "fenced, once");
        assert_eq!(record.attached, [2]);
    }
}

#[test]
fn a_name_belongs_to_one_vdisk() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let results = all_at_once(|_| cluster.create_vdisk(&a_vdisk("wanted")));
    let (made, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!(made.len(), 1, "one of them has it");
    assert!(refused.into_iter().all(|result| matches!(result, Err(ClusterError::NameTaken { .. }))));
    let family = cluster.family_named("wanted").expect("it can be asked").expect("it is there");
    assert_eq!(cluster.load().expect("it loads").families.keys().collect::<Vec<_>>(), [&family]);

    let is_deleted = |family| cluster.is_deleted(family).expect("etcd says");
    let next = FamilyId(family.0 + 1);
    assert!(!is_deleted(family) && !is_deleted(next), "it is there, and of the next nothing is known");
    cluster.remove_vdisk(family).expect("it can be removed");
    cluster.remove_vdisk(family).expect("a second time is fine");
    assert!(is_deleted(family) && !is_deleted(next));
    let again = cluster.create_vdisk(&a_vdisk("wanted")).expect("the name is free again");
    assert_ne!(again.record.id(), family, "the number is not used again");
}

#[test]
fn an_epoch_is_given_to_one_owner() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let vdisk = cluster.create_vdisk(&a_vdisk("one")).expect("it is made");
    let family = vdisk.record.id();
    let results = all_at_once(|at| cluster.take_epoch(family, vdisk.revision, Some(ShardId(at)), None));
    let won: Vec<_> = results.into_iter().flatten().collect();
    assert_eq!(won.len(), 1, "one of them takes it");
    let now = cluster.family(family).expect("it can be asked").expect("it is there");
    assert_eq!(now, won[0]);
    assert_eq!(now.record.epoch, 2);
}

#[test]
fn segments_are_changed_one_version_after_the_other() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let family = cluster.create_vdisk(&a_vdisk("one")).expect("it is made").record.id();
    let drives: Vec<_> =
        (0..THREADS).map(|_| cluster.add_drive(&a_drive(1)).expect("it is added").record.id()).collect();
    let segments = |at: u32| vec![Segment::new(Seq(1), Epoch(1), vec![drives[at as usize]])];
    let taken: Vec<_> = all_at_once(|at| {
        cluster.change_segments(family, Epoch(1), 1, &segments(at)).expect("etcd answers").map(|_| at)
    });
    let taken: Vec<u32> = taken.into_iter().flatten().collect();
    assert_eq!(taken.len(), 1, "of many changes to version 1 one is taken: {taken:?}");
    let again = cluster.change_segments(family, Epoch(1), 1, &segments(taken[0])).expect("etcd answers");
    assert!(
        again.is_some(),
        "who asks for the same again, because an answer was lost, hears that it is done"
    );

    let seen = cluster.family(family).expect("it can be asked").expect("it is there");
    cluster.take_epoch(family, seen.revision, Some(ShardId(9)), None).expect("nobody else does");
    let late = cluster.change_segments(family, Epoch(1), 2, &segments(0)).expect("etcd answers");
    assert!(late.is_none(), "an old owner is refused");
    assert!(!cluster.give_up(family, Epoch(1)).expect("etcd answers"), "and has nothing to give up");
    assert!(cluster.give_up(family, Epoch(2)).expect("etcd answers"));
    let deleted = cluster.change_segments(FamilyId(99), Epoch(1), 1, &segments(0)).expect("etcd answers");
    assert!(deleted.is_none(), "of a vDisk that is gone nobody is the owner");
}

#[test]
fn what_is_given_to_one_node_and_sent_to_another_goes_on_from_there() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let family = cluster.create_vdisk(&a_vdisk("v")).expect("it is made").record.id();
    let sent = cluster.change_vdisk(family, |record| record.moving_to = Some(7)).expect("it is sent");
    let to = |node| NewOwner { shard: ShardId::of(node, 0), life: 1, alive: Vec::new() };
    let given = cluster.give(&sent, &to(3), None).expect("nobody else does");
    assert_eq!((given.record.owner, given.record.moving_to), (Some(ShardId::of(3, 0).0), Some(7)));
    let there = cluster.give(&given, &to(7), None).expect("nobody else does");
    assert_eq!((there.record.owner, there.record.moving_to), (Some(ShardId::of(7, 0).0), None));
}

#[test]
fn what_somebody_has_sent_elsewhere_is_not_sent_again_by_who_has_not_heard_of_it() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let lease = NodeLease::take(cluster.etcd(), five_seconds(), || ()).expect("a lease is granted");
    let Campaign::Won(leader) = cluster.campaign(1, lease.lease()).expect("etcd answers") else {
        panic!("nobody else is there")
    };
    let vdisk = cluster.create_vdisk(&a_vdisk("v")).expect("it is made");
    let family = vdisk.record.id();
    let to = |node| NewOwner { shard: ShardId::of(node, 0), life: 1, alive: Vec::new() };
    let seen = cluster.give(&vdisk, &to(1), None).expect("nobody else does").record;
    let by = (ShardId::of(1, 0), Epoch(seen.epoch));
    let moving_to = || cluster.family(family).expect("etcd answers").expect("it is there").record.moving_to;
    // All at once, with the same knowledge: one of them has it.
    let sent = all_at_once(|at| cluster.send(family, by, 10 + at, Some(&leader)).map(|_| 10 + at));
    let sent: Vec<u32> = sent.into_iter().flatten().collect();
    assert_eq!((sent.len(), moving_to()), (1, Some(sent[0])));
    // By people: the last word.
    let said = cluster.change_vdisk(family, |record| record.moving_to = Some(7)).expect("it is sent");
    let late = cluster.send(family, by, 3, Some(&leader));
    assert!(matches!(late, Err(ClusterError::Changed { .. })), "{late:?}");
    assert_eq!(moving_to(), Some(7));
    assert_eq!(cluster.send(family, by, 7, Some(&leader)).expect("it is so already"), said);

    // It has come there, and what was seen at its former owner says nothing any more, nor what another life of that saw.
    let there = cluster.give(&said, &to(7), None).expect("nobody else does").record;
    for by in [by, (ShardId::of(1, 0), Epoch(there.epoch)), (ShardId::of(7, 0), Epoch(seen.epoch))] {
        let late = cluster.send(family, by, 3, None);
        assert!(matches!(late, Err(ClusterError::Changed { .. })), "{late:?}");
    }
    assert_eq!(moving_to(), None);

    // Who does not decide any more sends nothing.
    cluster.resign(&leader).expect("etcd answers");
    let by = (ShardId::of(7, 0), Epoch(there.epoch));
    let late = cluster.send(family, by, 3, Some(&leader));
    assert!(matches!(late, Err(ClusterError::NotController)), "{late:?}");
    assert_eq!(moving_to(), None);
    cluster.send(family, by, 3, None).expect("its owner may");
    assert_eq!(moving_to(), Some(3));
}

#[test]
fn there_is_one_controller_and_only_it_decides() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let lease = |_| NodeLease::take(cluster.etcd(), five_seconds(), || ()).expect("a lease is granted");
    let leases: Vec<_> = (0..THREADS).map(lease).collect();
    let results = all_at_once(|at| cluster.campaign(at, leases[at as usize].lease()).expect("etcd answers"));
    let won: Vec<_> = results
        .iter()
        .filter_map(|result| match result {
            Campaign::Won(leadership) => Some(leadership.clone()),
            Campaign::Lost(_) => None,
        })
        .collect();
    assert_eq!(won.len(), 1, "one of them is elected");
    let first = &won[0];
    for result in &results {
        assert!(
            matches!(result, Campaign::Won(_))
                || matches!(result, Campaign::Lost(other) if other.node == first.node)
        );
    }
    let same = cluster.campaign(first.node, leases[first.node as usize].lease()).expect("etcd answers");
    assert_eq!(same, Campaign::Won(first.clone()), "who is elected stays so");

    let group = a_group(&[1, 2]);
    let made = cluster.add_groups(&alone(vec![group.clone()]), first).expect("the controller makes groups");
    // It stops, without a word; another is elected.
    let mut leases = leases;
    leases.remove(first.node as usize).give_up().expect("etcd answers");
    let other = (first.node + 1) % THREADS;
    let Campaign::Won(second) = cluster.campaign(other, leases[0].lease()).expect("etcd answers") else {
        panic!("the office is free")
    };
    assert!(matches!(cluster.put_groups(&alone(made.clone()), first), Err(ClusterError::NotController)));
    let vdisk = cluster.create_vdisk(&a_vdisk("one")).expect("it is made");
    let late = cluster.take_epoch(vdisk.record.id(), vdisk.revision, None, Some(first));
    assert!(matches!(late, Err(ClusterError::NotController)), "who was replaced changes nothing");
    assert!(matches!(cluster.add_groups(&alone(vec![group]), first), Err(ClusterError::NotController)));
    let put = cluster.put_groups(&alone(made.clone()), &second).expect("the new one does");
    assert!(
        matches!(cluster.put_groups(&alone(made.clone()), &second), Err(ClusterError::Changed { .. })),
        "as they are now"
    );
    cluster.put_groups(&alone(put), &second).expect("again, as they are now");
    cluster.resign(&second).expect("etcd answers");
    assert!(cluster.load().expect("it loads").controller.is_none());
}

#[test]
fn a_drive_that_goes_is_given_nothing_and_one_that_was_given_something_stays() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let node = cluster.join(&a_node("first")).expect("it joins");
    let lease = NodeLease::take(cluster.etcd(), five_seconds(), || ()).expect("a lease is granted");
    let Campaign::Won(leader) = cluster.campaign(node.record.node, lease.lease()).expect("etcd answers")
    else {
        panic!("nobody else is there")
    };
    let drive = cluster.add_drive(&a_drive(node.record.node)).expect("it is added");
    let group =
        Decided { what: a_group(&[drive.record.drive]), grounds: cluster.grounds(&drive, &node).into() };
    let vdisk = cluster.create_vdisk(&a_vdisk("one")).expect("it is made").record.id();
    let drive = drive.record.id();

    // Whoever takes the drive out has looked; then it is given something.
    let looked = cluster.load().expect("it loads");
    let mut made = cluster.add_groups(std::slice::from_ref(&group), &leader).expect("all is as it was");
    let late = cluster.give_up_unneeded(drive, &looked);
    assert!(matches!(late, Err(ClusterError::Changed { .. })), "a group names it by now");
    let looked = cluster.load().expect("it loads");
    let segments = [Segment::new(Seq(1), Epoch(1), vec![drive])];
    let named = cluster.change_segments(vdisk, Epoch(1), 1, &segments).expect("etcd answers");
    assert!(named.is_some(), "nobody else owns it");
    let late = cluster.give_up_unneeded(drive, &looked);
    assert!(matches!(late, Err(ClusterError::Changed { .. })), "a log names it by now");

    // And the other way round: what was decided before it went is not written behind that.
    let looked = cluster.load().expect("it loads");
    let lost = cluster.give_up_unneeded(drive, &looked).expect("nothing has changed");
    assert_eq!(lost.record.state, DriveRecordState::Lost);
    let refused = cluster.add_groups(std::slice::from_ref(&group), &leader);
    assert!(matches!(refused, Err(ClusterError::Changed { .. })), "{refused:?}");
    let changed = Decided { what: made.remove(0), grounds: group.grounds.clone() };
    let refused = cluster.put_groups(std::slice::from_ref(&changed), &leader);
    assert!(matches!(refused, Err(ClusterError::Changed { .. })), "{refused:?}");
    let third = cluster.create_vdisk(&a_vdisk("three")).expect("it is made").record.id();
    let named = cluster.change_segments(third, Epoch(1), 1, &segments).expect("etcd answers");
    assert!(named.is_none(), "no log begins to name it between the two steps of its going");
    cluster.remove_drive(drive, lost.revision).expect("it goes");
    let refused = cluster.add_groups(&[group], &leader);
    assert!(matches!(refused, Err(ClusterError::Changed { .. })), "{refused:?}");
    assert_eq!(cluster.load().expect("it loads").groups.len(), 1);
    let other = cluster.create_vdisk(&a_vdisk("two")).expect("it is made").record.id();
    let named = cluster.change_segments(other, Epoch(1), 1, &segments).expect("etcd answers");
    assert!(named.is_none(), "no log begins to name it");
}

#[test]
fn what_a_dead_node_served_is_given_away_many_at_once() {
    const VDISKS: usize = 250;
    let server = Server::start();
    let cluster = server.new_cluster();
    let node = cluster.join(&a_node("first")).expect("it joins").record.node;
    let lease = NodeLease::take(cluster.etcd(), five_seconds(), || ()).expect("a lease is granted");
    let alive = cluster.announce(&alive(node, 1), lease.lease(), None).expect("it lives");
    let Campaign::Won(leader) = cluster.campaign(node, lease.lease()).expect("etcd answers") else {
        panic!("nobody else is there")
    };
    let name = |at: usize| format!("v{at}");
    let made = (0..VDISKS).map(|at| cluster.create_vdisk(&a_vdisk(&name(at))).expect("it is made"));
    let mut claims: Vec<Claim> = made
        .map(|seen| {
            let to = NewOwner { shard: ShardId::of(node, 0), life: 1, alive: vec![(node, alive), (77, 0)] };
            Claim { seen, to }
        })
        .collect();
    // Somebody changes one of them meanwhile: that one waits, and nobody else.
    let other = claims[70].seen.record.id();
    cluster.change_vdisk(other, |record| record.size *= 2).expect("it grows");
    let before = cluster.load().expect("it loads").revision;
    let given = cluster.give_all(claims.clone(), &leader).expect("etcd answers");
    assert_eq!(given.len(), VDISKS);
    assert!(given.iter().enumerate().all(|(at, given)| given.is_some() == (at != 70)), "{given:?}");
    let loaded = cluster.load().expect("it loads");
    let is_given = |at: usize| loaded.families[&claims[at].seen.record.id()].record.epoch == 2;
    assert!((0..VDISKS).all(|at| is_given(at) == (at != 70)));
    let transactions = loaded.revision - before;
    assert!(transactions < VDISKS as u64 * 2 / 3, "{transactions} transactions");

    // Nobody is given to who has died since, or by who does not decide any more.
    for claim in &mut claims {
        claim.seen = loaded.families[&claim.seen.record.id()].clone();
    }
    claims[3].to.alive[0].1 += 1;
    let given = cluster.give_all(claims[..4].to_vec(), &leader).expect("etcd answers");
    assert!(given[..3].iter().all(Option::is_some) && given[3].is_none());
    cluster.resign(&leader).expect("etcd answers");
    let late = cluster.give_all(claims[10..].to_vec(), &leader);
    assert!(matches!(late, Err(ClusterError::NotController)), "{late:?}");
}

#[test]
fn a_number_that_was_found_without_a_record_is_not_given_out_and_not_deleted() {
    let server = Server::start();
    let cluster = server.new_cluster();
    let make = |name: &str| cluster.create_vdisk(&a_vdisk(name)).expect("it is made").record.family;
    let is_deleted = |family: u32| cluster.is_deleted(FamilyId(family)).expect("etcd says");
    let format = || cluster.cluster_record().expect("it is there").record.format;
    let (made, first_format) = (make("before"), format());
    cluster.note_lost(FamilyId(made)).expect("it can be noted");
    assert_eq!(format(), first_format, "it has a record: nothing is lost");
    all_at_once(|_| cluster.note_lost(FamilyId(made + 3)).expect("it can be noted"));
    assert!(format() > first_format, "older versions would take them for deleted");
    let next = make("after");
    assert_eq!(next, made + 4);
    assert!((made..=next).all(|family| !is_deleted(family)));
    let forget = |family: u32| cluster.forget_lost(FamilyId(family)).expect("it can be said");
    assert!(forget(made + 2) && !forget(made + 2));
    assert!(!forget(made) && !forget(next), "they have records");
    let deleted: Vec<u32> = (made..=next).filter(|family| is_deleted(*family)).collect();
    assert_eq!(deleted, [made + 2]);
}
