//! Data of a real cluster that follows its vDisk: what is read often from another node lies on the owner's own drive after a while.

use crate::support::checker::{BLOCK, content};
use crate::support::cluster::{Cluster, Options};
use crate::support::nbd::NbdClient;
use crate::support::{counted_by_shards, step};
use std::time::{Duration, Instant};

/// Blocks of the vDisk that are written: several egroups of them.
const BLOCKS: usize = 4096;
/// Every so many of them are read each time, none beside the other.
const APART: usize = 61;

/// Blocks that clients of the vDisk have got from drives of the owner's node, and from those of others.
fn blocks_read(cluster: &mut Cluster, owner: u32) -> (u64, u64) {
    let stats = cluster.member(owner).json(&["stats", "v"]).expect("the owner tells figures");
    let counted = &stats["vdisks"][0]["engine"];
    let blocks = |name: &str| counted[name].as_u64().unwrap_or_else(|| panic!("{name} is counted: {stats}"));
    (blocks("blocks_read_from_local"), blocks("blocks_read_from_remote"))
}

fn followed(cluster: &mut Cluster, owner: u32) -> u64 {
    let stats = cluster.member(owner).json(&["stats"]).expect("the owner tells figures");
    counted_by_shards(&stats, "egroups_followed")
}

#[test]
fn data_that_is_read_often_follows_its_vdisk() {
    let mut cluster = Cluster::start("cluster-follow", Options::default());
    cluster.weft(&["vdisk", "create", "v", "--size", "64M", "--rf", "1"]);
    let before = cluster.wait_until_served("v");
    let mut client = NbdClient::connect_patiently(&cluster.export("v", before), "v");
    for block in 0..BLOCKS {
        client.write((block * BLOCK) as u64, &content(block, 1)).expect("there is room");
    }
    client.disconnect();
    let place = cluster.other_than(&[before]);
    cluster.weft(&["vdisk", "move", "v", "--to", &place.to_string()]);
    cluster.wait_for_owner("v", |owner| owner == place);
    // What comes from memory is near enough.
    cluster.member(place).weft(&["cache", "resize", "0"]);
    let mut client = NbdClient::connect_patiently(&cluster.export("v", place), "v");
    let mut read_some = |round: usize| {
        for block in (round % APART..BLOCKS).step_by(APART) {
            let bytes = client.read((block * BLOCK) as u64, BLOCK as u32).expect("it can be read");
            assert!(bytes == content(block, 1), "block {block} is as it was written");
        }
    };
    let (_, far_at_first) = blocks_read(&mut cluster, place);
    read_some(0);
    let (_, far) = blocks_read(&mut cluster, place);
    assert!(far > far_at_first, "the only copy is on node {before}");
    let began = Instant::now();
    for round in 1.. {
        let (near, far) = blocks_read(&mut cluster, place);
        read_some(round);
        let now = blocks_read(&mut cluster, place);
        if now.1 == far {
            assert!(now.0 > near, "it comes from drives");
            break;
        }
        assert!(
            began.elapsed() < Duration::from_secs(300),
            "{} of {} blocks still come from node {before}, after {} egroups were moved",
            now.1 - far,
            BLOCKS / APART,
            followed(&mut cluster, place)
        );
        std::thread::sleep(Duration::from_secs(1));
    }
    step(&format!(
        "after {:.0} s of reading everything came from the node of the owner; {} egroups were moved",
        began.elapsed().as_secs_f64(),
        followed(&mut cluster, place)
    ));
    cluster.wait_until_whole();
    cluster.cut_and_check();
}
