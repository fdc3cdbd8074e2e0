//! A cluster of real nodes on a network that is cut, in one direction or both, loses packets and is slow. Each node has a
//! network namespace of its own; where there are none for us (they take root), the tests say so and end.

use crate::support::checker::{BLOCK, Checker};
use crate::support::cluster::{Cluster, Load, Options, rounds};
use crate::support::net::Net;
use crate::support::{step, wait_until};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const VDISK_BYTES: usize = 64 << 20;
const SOME: u64 = 1000;

fn cluster_of(name: &str, nodes: u32) -> Option<(Cluster, Vec<PathBuf>, Checker)> {
    let net = Net::make(nodes)?;
    let mut cluster = Cluster::start(name, Options { nodes, net: Some(net), ..Options::default() });
    cluster.create("v", &VDISK_BYTES.to_string());
    let sockets = cluster.numbers().into_iter().map(|number| cluster.export("v", number)).collect();
    Some((cluster, sockets, Checker::new(VDISK_BYTES / BLOCK, 2)))
}

/// Does something to the network while a client is at work, undoes it, and waits until all is well.
fn trouble(cluster: &Cluster, load: &Load, what: &str, lasting: Duration, begin: impl FnOnce(&Net)) {
    let net = cluster.net.as_ref().expect("the cluster has a net");
    load.go_on(SOME);
    load.tell_pause("before");
    begin(net);
    std::thread::sleep(lasting);
    net.heal();
    load.go_on(SOME);
    load.tell_pause(what);
    cluster.wait_until_whole();
    load.tell_pause("all is whole again");
}

/// Its owner, not on the client's node, so that requests are forwarded.
fn owner_elsewhere(cluster: &Cluster, place: u32) -> u32 {
    let owner = cluster.wait_until_served("v");
    if owner != place {
        return owner;
    }
    let other = cluster.other_than(&[place]);
    cluster.weft(&["vdisk", "move", "v", "--to", &other.to_string()]);
    cluster.wait_for_owner("v", |owner| owner == other)
}

#[test]
fn nodes_that_are_cut_off_do_no_harm() {
    let Some((cluster, sockets, checker)) = cluster_of("net-cut", 3) else { return };
    let place = cluster.other_than(&[cluster.wait_until_served("v")]);
    let load = Load::start(checker, &sockets[place as usize]);
    let long = Duration::from_secs(10);
    for _ in 0..rounds() {
        let owner = owner_elsewhere(&cluster, place);
        let third = cluster.other_than(&[place, owner]);
        trouble(&cluster, &load, "a member was cut off for 10 s", long, |net| net.isolate(third));
        trouble(&cluster, &load, "the owner was cut off for 10 s", long, |net| net.isolate(owner));
        let owner = owner_elsewhere(&cluster, place);
        trouble(&cluster, &load, "the owner was cut off from etcd for 10 s", long, |net| {
            net.cut_from_etcd(owner)
        });
        let owner = owner_elsewhere(&cluster, place);
        load.go_on(SOME);
        load.tell_pause("before");
        let net = cluster.net.as_ref().expect("the cluster has a net");
        net.cut(owner, place);
        cluster.wait_for_owner("v", |owner| owner == place);
        load.go_on(SOME);
        load.tell_pause(
            "the owner and the client's node were cut from each other, until the vDisk came there",
        );
        net.heal();
        cluster.wait_until_whole();
    }
    cluster.compare_and_check(&sockets, load.stop());
}

/// It renews its lease, and can serve nobody: others have to take what it serves while it is cut off, not when it is back.
#[test]
fn an_owner_that_reaches_etcd_and_nobody_else_gives_its_vdisks_up() {
    let Some((cluster, sockets, checker)) = cluster_of("net-alone", 3) else { return };
    let place = cluster.other_than(&[cluster.wait_until_served("v")]);
    let load = Load::start(checker, &sockets[place as usize]);
    for _ in 0..rounds() {
        let owner = owner_elsewhere(&cluster, place);
        let third = cluster.other_than(&[place, owner]);
        let net = cluster.net.as_ref().expect("the cluster has a net");
        load.go_on(SOME);
        load.tell_pause("before");
        net.cut(owner, place);
        net.cut(owner, third);
        load.go_on(SOME);
        load.tell_pause("the owner reached etcd and no other node");
        assert_ne!(cluster.wait_until_served("v"), owner);
        net.heal();
        cluster.wait_until_whole();
        load.go_on(SOME);
        load.tell_pause("all is whole again");
    }
    cluster.compare_and_check(&sockets, load.stop());
}

/// Two nodes are cut from each other. All clients were on the other one, and nobody but the owner has what came last: where the clients
/// were it could not be opened, and here it can be used.
#[test]
fn an_owner_without_which_nobody_knows_the_end_of_the_log_keeps_its_vdisk() {
    let Some((cluster, sockets, checker)) = cluster_of("net-two", 2) else { return };
    let owner = cluster.wait_until_served("v");
    let place = cluster.other_than(&[owner]);
    let load = Load::start(checker, &sockets[place as usize]);
    load.go_on(SOME);
    let checker = load.stop();
    let net = cluster.net.as_ref().expect("the cluster has a net");
    net.cut(owner, place);
    // Longer than it takes until a vDisk is sent to clients that its owner does not reach.
    std::thread::sleep(Duration::from_secs(12));
    let load = Load::start(checker, &sockets[owner as usize]);
    load.go_on(SOME);
    assert_eq!(cluster.wait_until_served("v"), owner);
    net.heal();
    cluster.wait_until_whole();
    load.go_on(SOME);
    // What was written while there was one node gets its second copies behind this.
    cluster.compare(&sockets, load.stop());
}

/// The network between the nodes is away, for all of them. Nobody goes on alone, and all are there again when it is back.
#[test]
fn nodes_of_which_nobody_reaches_another_wait_for_the_network() {
    let Some((cluster, sockets, checker)) = cluster_of("net-all-alone", 3) else { return };
    let place = cluster.other_than(&[cluster.wait_until_served("v")]);
    let load = Load::start(checker, &sockets[place as usize]);
    load.go_on(SOME);
    // How long the network is away is how long this machine takes: longer, perhaps, than clients wait.
    let checker = load.stop();
    let net = cluster.net.as_ref().expect("the cluster has a net");
    for (one, other) in [(0, 1), (1, 2), (2, 0)] {
        net.cut(one, other);
    }
    wait_until("everybody has given up", || {
        (0..3).all(|node| cluster.node_view(node).is_ok_and(|view| view["alive"] == false))
    });
    net.heal();
    cluster.wait_until_whole();
    let load = Load::start(checker, &sockets[place as usize]);
    load.go_on(SOME);
    cluster.compare_and_check(&sockets, load.stop());
}

#[test]
fn one_way_cuts_do_no_harm() {
    let Some((cluster, sockets, checker)) = cluster_of("net-one-way", 3) else { return };
    let place = cluster.other_than(&[cluster.wait_until_served("v")]);
    let load = Load::start(checker, &sockets[place as usize]);
    let long = Duration::from_secs(10);
    for _ in 0..rounds() {
        let owner = owner_elsewhere(&cluster, place);
        let third = cluster.other_than(&[place, owner]);
        trouble(&cluster, &load, "a member did not hear the owner for 10 s", long, |net| {
            net.cut_one_way(owner, third);
        });
        let owner = owner_elsewhere(&cluster, place);
        let third = cluster.other_than(&[place, owner]);
        trouble(&cluster, &load, "the owner did not hear the others for 10 s", long, |net| {
            net.cut_one_way(third, owner);
            net.cut_one_way(place, owner);
        });
    }
    cluster.compare_and_check(&sockets, load.stop());
}

#[test]
fn a_network_that_loses_packets_or_is_narrow_only_slows_things_down() {
    let Some((cluster, sockets, checker)) = cluster_of("net-loss", 3) else { return };
    let place = cluster.other_than(&[cluster.wait_until_served("v")]);
    let load = Load::start(checker, &sockets[place as usize]);
    let long = Duration::from_secs(8);
    for _ in 0..rounds() {
        trouble(&cluster, &load, "every node lost 5 % of what it got for 8 s", long, |net| {
            for node in 0..3 {
                net.lose(node, 5);
            }
        });
        trouble(&cluster, &load, "every node had a narrow line for 8 s", long, |net| {
            for node in 0..3 {
                net.narrow(node);
            }
        });
    }
    let net = cluster.net.as_ref().expect("the cluster has a net");
    let tells = |what: &str| {
        let told = cluster.json(&["cluster", "status"]);
        told.is_ok_and(|status| status["cluster"]["lines"].to_string().contains(what))
    };
    let way = format!("to node {place} is poor");
    wait_until("no way is told to be poor", || !tells(" is poor"));
    let began = Instant::now();
    net.lose(place, 5);
    wait_until("the way to the client's node is told to be poor", || tells(&way));
    step(&format!("told {:.0} s after the loss began", began.elapsed().as_secs_f64()));
    net.heal();
    wait_until("it is told to be poor no more", || !tells(&way));
    cluster.compare_and_check(&sockets, load.stop());
}
