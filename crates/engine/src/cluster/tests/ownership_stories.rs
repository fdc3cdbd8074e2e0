//! Nodes die, leave and come back, clients wander: who serves what then.

use crate::cluster::detection::{HAND_OVERS_MAX, LOCALITY_US, STAY_US};
use crate::cluster::ownership::{Clients, Cluster, Family, How, Move, Node, Owner, Why};
use crate::identity::{FamilyId, ShardId, Time};
use std::collections::BTreeMap;

const SHARDS: u32 = 2;

/// Nodes of two shards each, node `n` with lease `100 + n`; families served in turn by all shards.
fn cluster(nodes: u32, families: u32) -> Cluster {
    let node = |number: u32| Node {
        lease: Some(u64::from(100 + number)),
        is_storage_only: false,
        is_draining: false,
        is_stopping: false,
        shards: (0..SHARDS).map(|index| ShardId(number * 64 + index)).collect(),
    };
    let family = |number: u32| {
        let (node, index) = (number % nodes, number / nodes % SHARDS);
        let shard = ShardId(node * 64 + index);
        Family {
            owner: Some(Owner { node, shard, lease: u64::from(100 + node), since: Time(0) }),
            moving_to: None,
            clients: Clients::default(),
        }
    };
    Cluster {
        now: Time(1_000_000_000),
        nodes: (0..nodes).map(|number| (number, node(number))).collect(),
        families: (0..families).map(|number| (FamilyId(number), family(number))).collect(),
    }
}

fn node_of(shard: ShardId) -> u32 {
    shard.0 / 64
}

/// What the control plane does with moves, at once.
fn carry_out(cluster: &mut Cluster, moves: &[Move]) {
    for done in moves {
        let node = node_of(done.to);
        let lease = cluster.nodes[&node].lease.expect("a chosen node has a lease");
        let family = cluster.families.get_mut(&done.family).expect("a family that exists moves");
        family.owner = Some(Owner { node, shard: done.to, lease, since: cluster.now });
        family.moving_to = None;
    }
}

fn clients_on(cluster: &mut Cluster, family: u32, node: u32, for_us: u64) {
    let since = Time(cluster.now.0 - for_us);
    let family = cluster.families.get_mut(&FamilyId(family)).expect("the family exists");
    family.clients.only_on = Some((node, since));
}

#[test]
fn a_calm_cluster_moves_nothing() {
    assert!(cluster(4, 100).moves().is_empty());
}

#[test]
fn a_new_family_goes_where_its_clients_are_and_else_where_there_is_least() {
    let mut cluster = cluster(4, 7);
    let new = Family { owner: None, moving_to: None, clients: Clients::default() };
    cluster.families.insert(FamilyId(70), new.clone());
    cluster.families.insert(FamilyId(71), new);
    clients_on(&mut cluster, 71, 0, 0);
    let moves = cluster.moves();
    assert_eq!(moves.len(), 2);
    assert!(moves.iter().all(|done| done.how == How::Take && done.why == Why::Unserved));
    assert_eq!(moves[0].to, ShardId(3 * 64 + 1), "the only shard without a family");
    assert_eq!(node_of(moves[1].to), 0);
}

#[test]
fn families_of_a_dead_node_are_spread_over_all_others() {
    let mut cluster = cluster(5, 100);
    cluster.nodes.get_mut(&2).expect("it is there").lease = None;
    let moves = cluster.moves();
    assert_eq!(moves.len(), 20);
    let mut taken: BTreeMap<ShardId, usize> = BTreeMap::new();
    for done in &moves {
        assert_eq!((done.how, done.why), (How::Take, Why::NodeLost));
        *taken.entry(done.to).or_default() += 1;
    }
    assert_eq!(taken.len(), 8, "every shard that lives takes some");
    assert!(taken.values().all(|&count| (2..=3).contains(&count)), "{taken:?}");
    assert!(taken.keys().all(|&shard| node_of(shard) != 2));
    carry_out(&mut cluster, &moves);
    assert!(cluster.moves().is_empty());
}

#[test]
fn a_silent_node_keeps_its_families_as_long_as_its_lease_stands() {
    let mut cluster = cluster(3, 9);
    // Nobody has heard of node 1 for an hour, but the store still has its lease: it may be answering reads.
    cluster.now = Time(cluster.now.0 + 3_600_000_000);
    assert!(cluster.moves().is_empty());
    cluster.nodes.get_mut(&1).expect("it is there").lease = None;
    assert_eq!(cluster.moves().len(), 3);
}

#[test]
fn a_node_that_has_started_again_gets_its_families_back_under_its_new_lease() {
    let mut cluster = cluster(3, 9);
    cluster.nodes.get_mut(&1).expect("it is there").lease = Some(777);
    let moves = cluster.moves();
    assert_eq!(moves.len(), 3, "what it served before it does not serve now");
    assert!(moves.iter().all(|done| node_of(done.to) == 1 && done.how == How::Take), "its copies are there");
    carry_out(&mut cluster, &moves);
    assert!(cluster.moves().is_empty());
}

#[test]
fn a_node_that_was_removed_is_as_good_as_dead() {
    let mut cluster = cluster(3, 9);
    cluster.nodes.remove(&0);
    assert_eq!(cluster.moves().len(), 3);
}

#[test]
fn a_draining_node_hands_over_a_few_at_a_time() {
    let mut cluster = cluster(3, 30);
    cluster.nodes.get_mut(&0).expect("it is there").is_draining = true;
    let mut rounds = 0;
    loop {
        let moves = cluster.moves();
        if moves.is_empty() {
            break;
        }
        assert!(moves.len() <= HAND_OVERS_MAX, "{moves:?}");
        assert!(moves.iter().all(|done| done.how == How::HandOver && done.why == Why::NodeDraining));
        // While they are under way, no others begin, and these are not told again.
        for done in &moves {
            cluster.families.get_mut(&done.family).expect("it exists").moving_to = Some(node_of(done.to));
        }
        if moves.len() == HAND_OVERS_MAX {
            assert!(cluster.moves().is_empty());
        }
        carry_out(&mut cluster, &moves);
        rounds += 1;
    }
    assert_eq!(rounds, 10usize.div_ceil(HAND_OVERS_MAX));
    let owners = cluster.families.values().map(|family| family.owner.expect("all are served").node);
    let counts = owners.fold([0; 3], |mut counts, node| {
        counts[node as usize] += 1;
        counts
    });
    assert_eq!(counts, [0, 15, 15]);
}

#[test]
fn a_hand_over_whose_giver_died_is_finished_where_it_was_going() {
    let mut cluster = cluster(4, 4);
    cluster.families.get_mut(&FamilyId(1)).expect("it exists").moving_to = Some(3);
    cluster.nodes.get_mut(&1).expect("it is there").lease = None;
    let moves = cluster.moves();
    assert_eq!((moves.len(), node_of(moves[0].to), moves[0].how), (1, 3, How::Take));
}

#[test]
fn storage_only_nodes_serve_only_when_nobody_else_can() {
    let mut cluster = cluster(3, 6);
    cluster.nodes.get_mut(&2).expect("it is there").is_storage_only = true;
    let moves = cluster.moves();
    assert_eq!(moves.len(), 2, "what it served goes to others");
    assert!(moves.iter().all(|done| node_of(done.to) != 2 && done.how == How::HandOver));
    carry_out(&mut cluster, &moves);
    for node in [0, 1] {
        cluster.nodes.get_mut(&node).expect("it is there").lease = None;
    }
    let moves = cluster.moves();
    assert_eq!(moves.len(), 6, "better there than nowhere");
    assert!(moves.iter().all(|done| node_of(done.to) == 2));
    carry_out(&mut cluster, &moves);
    cluster.nodes.get_mut(&2).expect("it is there").is_draining = true;
    assert!(cluster.moves().is_empty(), "and it goes on while there is nobody else");
}

#[test]
fn a_node_that_stops_keeps_what_it_has_and_is_given_nothing() {
    let mut cluster = cluster(3, 30);
    cluster.nodes.get_mut(&0).expect("it is there").is_stopping = true;
    assert!(cluster.moves().is_empty(), "it goes on until it gives its lease back");
    clients_on(&mut cluster, 1, 0, LOCALITY_US);
    assert!(cluster.moves().is_empty(), "whoever asks there");
    cluster.families.get_mut(&FamilyId(2)).expect("it exists").moving_to = Some(0);
    cluster.nodes.get_mut(&2).expect("it is there").lease = None;
    let moves = cluster.moves();
    assert_eq!(moves.len(), 10);
    assert!(moves.iter().all(|done| node_of(done.to) == 1), "also what was on its way there: {moves:?}");
    cluster.nodes.get_mut(&1).expect("it is there").lease = None;
    assert!(cluster.moves().is_empty(), "nor if it is the last one");
    cluster.nodes.get_mut(&1).expect("it is there").lease = Some(900);
    let node = cluster.nodes.get_mut(&1).expect("it is there");
    (node.is_storage_only, node.is_draining) = (true, true);
    let moves = cluster.moves();
    assert_eq!(moves.len(), 20);
    assert!(moves.iter().all(|done| node_of(done.to) == 1), "whatever else there is, is better");
}

#[test]
fn a_vdisk_follows_its_clients_when_they_stay_elsewhere() {
    let mut cluster = cluster(3, 3);
    clients_on(&mut cluster, 0, 2, LOCALITY_US - 1);
    assert!(cluster.moves().is_empty(), "they may be passing by");
    clients_on(&mut cluster, 0, 2, LOCALITY_US);
    let moves = cluster.moves();
    assert_eq!(moves.len(), 1);
    assert_eq!((node_of(moves[0].to), moves[0].how, moves[0].why), (2, How::HandOver, Why::Locality));
    carry_out(&mut cluster, &moves);
    // They go back at once, and it does not follow them to and fro.
    cluster.now = Time(cluster.now.0 + LOCALITY_US + 1);
    clients_on(&mut cluster, 0, 0, LOCALITY_US);
    assert!(cluster.moves().is_empty());
    cluster.now = Time(cluster.now.0 + STAY_US);
    assert_eq!(cluster.moves().len(), 1, "but after a while it does");
}

#[test]
fn clients_on_several_nodes_or_on_a_bad_one_move_nothing() {
    let mut cluster = cluster(3, 3);
    cluster.families.get_mut(&FamilyId(0)).expect("it exists").clients.only_on = None;
    clients_on(&mut cluster, 1, 2, 2 * LOCALITY_US);
    cluster.nodes.get_mut(&2).expect("it is there").is_storage_only = true;
    cluster.families.remove(&FamilyId(2));
    assert!(cluster.moves().is_empty(), "a storage-only node does not get vDisks for its clients' sake");
}

#[test]
fn nobody_left_means_that_nothing_is_decided() {
    let mut cluster = cluster(2, 4);
    cluster.nodes.values_mut().for_each(|node| node.lease = None);
    assert!(cluster.moves().is_empty());
}
