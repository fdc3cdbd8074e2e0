//! What people do to a cluster, and what its groups do then.

use super::Cluster;
use crate::cluster::placement::{Standing, is_emptied};
use crate::identity::DriveId;
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn one_node_with_one_drive_has_groups_of_one() {
    let mut cluster = Cluster::of_nodes(1, &[1, 2]);
    cluster.settle();
    assert_eq!(cluster.held(1)[&DriveId(0)], 8);
    assert!(cluster.groups.values().all(|group| group.factor == 1), "two copies need two drives");
}

#[test]
fn four_nodes_share_copies_and_leading_evenly() {
    let mut cluster = Cluster::of_nodes(4, &[1, 2, 3]);
    cluster.settle();
    for factor in 1..=3 {
        let led = cluster.led(factor);
        assert!(led.values().all(|led| (7..=9).contains(led)), "each leads 8 or so: {led:?}");
        assert!(cluster.imbalance(factor).1 <= 1.0, "{:?}", cluster.held(factor));
        cluster.assert_apart(factor);
    }
    assert!(cluster.plan().is_at_rest);
}

#[test]
fn a_big_cluster_has_about_a_hundred_places_on_every_drive() {
    for factor in [2, 3] {
        let mut cluster = Cluster::of_nodes(60, &[factor]);
        cluster.settle();
        let held = cluster.held(factor);
        assert!(held.values().all(|places| (97..=103).contains(places)), "{held:?}");
    }
}

#[test]
fn a_bigger_drive_gets_more_but_not_more_than_spread_allows() {
    let mut cluster = Cluster::new(&[2]);
    for (node, weight) in [(0, 1000), (1, 1000), (2, 2000), (3, 4000)] {
        cluster.add(node, 0, 0, weight);
    }
    cluster.settle();
    let held: Vec<usize> = cluster.held(2).into_values().collect();
    let about = |held: &usize, share: usize| held.abs_diff(share) <= 1;
    let shares = [8, 8, 16, 32];
    assert!(
        held.iter().zip(shares).all(|(held, share)| about(held, share)),
        "half the bytes, half the places: {held:?}"
    );
    cluster.add(4, 0, 0, 80_000);
    cluster.settle();
    let biggest = cluster.held(2)[&DriveId(4)];
    assert!(
        about(&biggest, cluster.groups.len()),
        "a drive holds one copy of a group, whatever its size: {biggest}"
    );
}

#[test]
fn a_node_that_joins_gets_its_share_and_nobody_else_moves() {
    for nodes in [2, 3, 4, 7, 12, 30] {
        let mut cluster = Cluster::of_nodes(nodes, &[2]);
        cluster.settle();
        let before = cluster.groups.clone();
        let places = before.len() * 2;
        let ideal = places as f64 / f64::from(nodes + 1);
        let new = cluster.add(nodes, 0, 0, 1000);
        cluster.copied = 0;
        cluster.settle();
        for (id, group) in &before {
            let members: BTreeSet<DriveId> = group.members.iter().copied().collect();
            let joined = cluster.groups[id].members.iter().filter(|member| !members.contains(member));
            assert!(
                joined.clone().all(|&member| member == new),
                "{nodes} nodes: only the new drive gets places"
            );
        }
        let moved = cluster.copied as f64;
        assert!(moved <= ideal * 1.2, "{nodes} nodes: {moved} moved, the share is {ideal}");
        assert!(moved >= ideal * 0.8 - 1.0, "{nodes} nodes: {moved} moved, the share is {ideal}");
        assert!(cluster.imbalance(2).1 <= 1.5, "{nodes} nodes: {:?}", cluster.held(2));
        assert!(cluster.led(2)[&new] > 0, "a new drive leads too: {:?}", cluster.led(2));
    }
}

#[test]
fn few_groups_move_at_a_time_and_a_stopped_controller_is_continued() {
    let mut cluster = Cluster::of_nodes(8, &[2]);
    cluster.settle();
    cluster.moves_max = 3;
    cluster.add(8, 0, 0, 1000);
    let plan = cluster.plan();
    assert_eq!(plan.changed.len(), 3, "no more than may move");
    assert!(
        !plan.is_at_rest && plan.made.is_empty(),
        "new groups wait until the old ones are where they belong"
    );
    // The controller dies after the first write. The next one goes on from what is there.
    cluster.write(&plan.changed[0]);
    let next = cluster.plan();
    assert_eq!(next.changed.len(), 2, "one is still moving");
    assert!(next.changed.iter().all(|group| group.id != plan.changed[0].id), "and is left alone");
    for group in &next.changed {
        cluster.write(group);
    }
    assert!(cluster.plan().changed.is_empty(), "three are moving");
    cluster.copy(|_| true);
    let plan = cluster.plan();
    let forgotten = plan.changed.iter().filter(|group| group.former.is_empty()).count();
    assert_eq!((forgotten, plan.changed.len()), (3, 6), "as copies exist, the next ones move");
    assert!(cluster.settle() > 3);
}

#[test]
fn a_lost_node_is_replaced_by_all_others_at_once() {
    let mut cluster = Cluster::of_nodes(12, &[2]);
    cluster.settle();
    let before = cluster.groups.clone();
    let lost = DriveId(5);
    let places = cluster.held(2)[&lost];
    cluster.set_node(5, Standing::Lost);
    let plan = cluster.plan();
    assert_eq!(plan.changed.len(), places, "every place it had, and nothing else");
    let mut targets: BTreeMap<DriveId, usize> = BTreeMap::new();
    let mut sources: BTreeMap<DriveId, usize> = BTreeMap::new();
    for group in &plan.changed {
        let new = group.members.iter().find(|member| !before[&group.id].members.contains(member));
        let old = group.members.iter().find(|member| before[&group.id].members.contains(member));
        *targets.entry(*new.expect("one is new")).or_default() += 1;
        *sources.entry(*old.expect("one stays")).or_default() += 1;
        assert_eq!(group.former, [lost]);
        assert_eq!(Some(&group.members[0]), old, "who has the copies leads");
    }
    assert_eq!((targets.len(), sources.len()), (11, 11), "many copy to many: {targets:?} {sources:?}");
    assert!(
        targets.values().chain(sources.values()).all(|&count| count <= places / 11 + 3),
        "{targets:?} {sources:?}"
    );
    cluster.copied = 0;
    cluster.settle();
    assert!(cluster.copied <= places + places / 5, "{} copies for {places} places", cluster.copied);
    assert!(is_emptied(lost, &cluster.table()));
}

#[test]
fn a_drained_node_keeps_its_copies_until_others_have_them() {
    let mut cluster = Cluster::of_nodes(5, &[2, 3]);
    cluster.settle();
    cluster.set_node(2, Standing::Draining);
    let drained = DriveId(2);
    let plan = cluster.plan();
    assert!(!plan.changed.is_empty());
    for group in &plan.changed {
        assert!(!group.members.contains(&drained) && group.former == [drained]);
        cluster.write(group);
    }
    assert!(!is_emptied(drained, &cluster.table()), "its copies are the only second ones");
    cluster.settle();
    let left: Vec<_> = cluster
        .table()
        .into_iter()
        .filter(|group| !is_emptied(drained, std::slice::from_ref(group)))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(cluster.plan().is_at_rest);
}

#[test]
fn a_drive_is_not_drained_without_a_place_to_go_to() {
    let mut cluster = Cluster::of_nodes(2, &[2]);
    cluster.settle();
    cluster.set_node(1, Standing::Draining);
    cluster.settle();
    assert!(
        cluster.groups.values().all(|group| group.members.contains(&DriveId(1))),
        "it has the second copies"
    );
    assert_eq!(cluster.led(2)[&DriveId(1)], 0, "but leads nowhere");
    cluster.add(2, 0, 0, 1000);
    cluster.settle();
    assert!(is_emptied(DriveId(1), &cluster.table()), "with a third node there is one");
}

#[test]
fn while_copies_are_owed_nobody_who_has_them_leaves() {
    let mut cluster = Cluster::of_nodes(4, &[2]);
    cluster.settle();
    cluster.set_node(0, Standing::Draining);
    let plan = cluster.plan();
    for group in &plan.changed {
        cluster.write(group);
    }
    // Nothing is copied yet, and the next node shall go too.
    cluster.set_node(1, Standing::Draining);
    let moving: BTreeSet<_> = plan.changed.iter().map(|group| group.id).collect();
    let next = cluster.plan();
    assert!(next.changed.iter().all(|group| !moving.contains(&group.id)), "those that are moving wait");
    cluster.settle();
    assert!(is_emptied(DriveId(0), &cluster.table()) && is_emptied(DriveId(1), &cluster.table()));
}

#[test]
fn a_new_member_that_dies_is_replaced_by_the_one_who_still_has_the_copies() {
    let mut cluster = Cluster::of_nodes(6, &[2]);
    cluster.settle();
    cluster.moves_max = 1;
    let new = cluster.add(6, 0, 0, 1000);
    let moved = cluster.plan().changed.remove(0);
    let left = moved.former[0];
    cluster.write(&moved);
    cluster.set_drive(new, Standing::Lost);
    let plan = cluster.plan();
    assert_eq!(plan.changed.len(), 1);
    assert!(plan.changed[0].members.contains(&left) && plan.changed[0].former == [new]);
}

#[test]
fn former_members_are_forgotten_only_for_the_version_that_was_audited() {
    let mut cluster = Cluster::of_nodes(4, &[2]);
    cluster.settle();
    cluster.set_node(3, Standing::Draining);
    let moved = cluster.plan().changed.remove(0);
    cluster.write(&moved);
    let forgets = |plan: &crate::cluster::placement::Plan| {
        plan.changed.iter().any(|group| group.id == moved.id && group.former.is_empty())
    };
    assert!(!forgets(&cluster.plan_knowing(&BTreeSet::new())), "nobody has looked");
    let before: BTreeSet<_> = [(moved.id, moved.version - 1)].into();
    assert!(
        !forgets(&cluster.plan_knowing(&before)),
        "an audit of the members before says nothing about the new one"
    );
    let audited: BTreeSet<_> = [(moved.id, moved.version)].into();
    assert!(forgets(&cluster.plan_knowing(&audited)));
    let new = *moved.members.last().expect("a group has members");
    for (standing, why) in [
        (Standing::Lost, "who was audited and died since has nothing"),
        (Standing::Down, "and nobody knows whether it will"),
    ] {
        cluster.set_drive(new, standing);
        assert!(!forgets(&cluster.plan_knowing(&audited)), "{why}");
    }
}

#[test]
fn a_node_that_restarts_moves_nothing() {
    let mut cluster = Cluster::of_nodes(5, &[2, 3]);
    cluster.settle();
    cluster.set_node(1, Standing::Down);
    assert!(cluster.plan().changed.is_empty());
    cluster.set_node(1, Standing::In);
    assert!(cluster.plan().changed.is_empty());
}

#[test]
fn copies_of_a_cluster_that_began_as_one_node_come_apart() {
    let mut cluster = Cluster::new(&[2]);
    for _ in 0..3 {
        cluster.add(0, 0, 0, 1000);
    }
    cluster.settle();
    assert!(cluster.groups.values().all(|group| cluster.nodes_of(group).len() == 1));
    for _ in 0..3 {
        cluster.add(1, 0, 0, 1000);
    }
    cluster.copied = 0;
    let places = cluster.groups.len() * 2;
    cluster.settle();
    assert!(cluster.groups.values().all(|group| cluster.nodes_of(group).len() == 2), "one copy on each node");
    assert!(cluster.copied <= places * 6 / 10, "half of the places move: {} of {places}", cluster.copied);
}

#[test]
fn racks_and_zones_keep_one_copy_each() {
    let mut cluster = Cluster::new(&[2, 3]);
    for node in 0..12 {
        cluster.add(node, node % 4, node % 2, 1000);
    }
    cluster.settle();
    for group in cluster.groups.values() {
        let zones: Vec<u32> = group.members.iter().map(|member| member.0 % 2).collect();
        let racks: BTreeSet<u32> = group.members.iter().map(|member| member.0 % 4).collect();
        assert_eq!(racks.len(), group.members.len(), "every copy has a rack of its own");
        let first = zones.iter().filter(|&&zone| zone == 0).count();
        assert!(first > 0 && first < zones.len(), "both zones have copies");
    }
    let before = cluster.groups.clone();
    // A whole rack dies: of four racks three are left, and three copies still have one each.
    for node in [1, 5, 9] {
        cluster.set_node(node, Standing::Lost);
    }
    let plan = cluster.plan();
    assert!(
        plan.changed.iter().all(|group| before[&group.id].members.iter().any(|member| member.0 % 4 == 1))
    );
    cluster.settle();
    assert!(cluster.table().iter().all(|group| !group.members.iter().any(|member| member.0 % 4 == 1)));
    cluster.assert_apart(2);
    cluster.assert_apart(3);
}

#[test]
fn a_rack_of_one_node_is_not_crushed_by_a_third_of_everything() {
    let mut cluster = Cluster::new(&[3]);
    for node in 0..9 {
        cluster.add(node, if node == 8 { 2 } else { node % 2 }, 0, 1000);
    }
    cluster.settle();
    let held = cluster.held(3);
    let mean = cluster.groups.len() as f64 * 3.0 / 9.0;
    assert!(held.values().all(|&held| (held as f64) < mean * 1.2), "{held:?}");
}

#[test]
fn the_drives_of_the_only_node_that_is_left_keep_the_copies_together() {
    let mut cluster = Cluster::new(&[2]);
    for node in [0, 0, 0, 1, 1, 1] {
        cluster.add(node, 0, 0, 1000);
    }
    cluster.settle();
    cluster.assert_apart(2);
    // Whatever is written while it may come back has one copy; its places are not for others.
    cluster.set_node(1, Standing::Down);
    assert!(cluster.plan().changed.is_empty());
    cluster.set_node(1, Standing::Lost);
    cluster.settle();
    let is_left = |drive: &DriveId| cluster.standing(*drive) == Standing::In;
    assert!(cluster.groups.values().all(|group| group.members.iter().all(is_left)), "all have two copies");
}
