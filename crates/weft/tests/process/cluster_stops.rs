//! What a node of a cluster leaves to others when it is stopped, and in which order.

use crate::support::cluster::{Cluster, Options, wait_for};
use crate::support::nbd::NbdClient;
use std::collections::BTreeMap;
use weft_engine::ShardId;
use weft_node::config::cluster::{Change, ClusterStore, News};
use weft_node::config::etcd::Etcd;

#[test]
fn a_node_that_stops_leaves_its_office_first_and_is_given_nothing_more() {
    let mut cluster = Cluster::start("stopping", Options::default());
    cluster.weft(&["vdisk", "create", "v", "--size", "16M", "--rf", "3"]);
    let etcd = Etcd::new(std::slice::from_ref(&cluster.etcd.url)).expect("it is an address");
    let store = ClusterStore::new(etcd, "main").expect("it is a name");
    let stopped = store.load().expect("it loads").controller.expect("somebody decides").record.node;
    let killed = cluster.other_than(&[stopped]);
    let third = cluster.other_than(&[stopped, killed]);
    cluster.weft(&["vdisk", "move", "v", "--to", &killed.to_string()]);
    cluster.wait_for_owner("v", |owner| owner == killed);
    // A client whose answers take long: the stop waits for them for some seconds.
    cluster.weft(&["vdisk", "create", "slow", "--size", "16M", "--rf", "3", "--iops-limit", "1"]);
    let socket = cluster.export("slow", stopped);
    let mut client = NbdClient::connect_patiently(&socket, "slow");
    for _ in 0..64 {
        client.submit_read(0, 4096).expect("the connection holds");
    }
    let mut news = store.follow();
    let mut epochs = BTreeMap::new();
    wait_for("all is loaded", || match news.try_recv() {
        Ok(News::Loaded(config)) => {
            epochs.extend(config.families.iter().map(|(&family, entry)| (family, entry.record.epoch)));
            Ok(())
        }
        other => Err(format!("{other:?}")),
    });
    cluster.member(killed).kill();
    cluster.member(stopped).stop();
    cluster.wait_for_owner("v", |owner| owner == third);

    // In which order it was, whatever time it took.
    let (mut resigned, mut told, mut ended) = (None, None, None);
    wait_for("all is heard of", || {
        while let Ok(News::Changed { revision, changes }) = news.try_recv() {
            for change in changes {
                match change {
                    Change::Controller(now) if now.as_ref().is_none_or(|now| now.record.node != stopped) => {
                        resigned = resigned.or(Some(revision));
                    }
                    Change::Alive(node, Some(alive)) if node == stopped && alive.record.stopping => {
                        told = told.or(Some(revision));
                    }
                    Change::Alive(node, None) if node == stopped => ended = ended.or(Some(revision)),
                    Change::Family(id, Some(family)) => {
                        let epoch = family.record.epoch;
                        let is_given = epochs.insert(id, epoch).is_none_or(|before| before < epoch);
                        let owner = family.record.owner.map(|shard| ShardId(shard).node());
                        assert!(!is_given || told.is_none() || owner != Some(stopped), "{id} is given to it");
                    }
                    _ => {}
                }
            }
        }
        ended.map(drop).ok_or_else(|| "it has not ended".to_string())
    });
    assert!(
        resigned.is_some() && resigned < ended,
        "another can decide while it stops: {resigned:?}, {ended:?}"
    );
    assert!(told.is_some() && told < ended, "all know that it stops: {told:?}, {ended:?}");
    cluster.start_all();
    cluster.wait_until_whole();
}

#[test]
fn what_may_be_the_last_copy_is_not_given_up_by_accident() {
    let mut cluster = Cluster::start("last-copy", Options::default());
    cluster.weft(&["vdisk", "create", "v", "--size", "16M", "--rf", "2"]);
    let here = cluster.wait_until_served("v");
    let gone = cluster.other_than(&[here]);
    let away = cluster.other_than(&[here, gone]);
    let [dead, waiting] = [gone, away].map(|number| cluster.drive_of(number));
    cluster.member(gone).kill();
    cluster.member(away).kill();
    let is_down = |cluster: &Cluster, drive: u32| {
        let drives = cluster.json(&["drive", "ls"])?;
        let mut all = drives.as_array().into_iter().flatten();
        let is_down = |found: &serde_json::Value| found["drive"] == drive && found["state"] != "up";
        if all.any(is_down) { Ok(()) } else { Err(format!("drive {drive} is up: {drives}")) }
    };
    wait_for("both drives are away", || is_down(&cluster, dead).and_then(|()| is_down(&cluster, waiting)));
    let (dead, gone) = (dead.to_string(), gone.to_string());
    // The two share a group, of which nobody else has a copy.
    for command in [["drive", "remove", &dead, "--lost"], ["node", "remove", &gone, "--force"]] {
        let output = cluster.member(here).try_weft(&command);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{command:?}");
        assert!(told.contains(&format!("drive(s) {waiting}")) && told.contains("--lose-data"), "{told}");
    }
    cluster.member(away).start();
    wait_for("it is given up when the other is back", || {
        let output = cluster.member(here).try_weft(&["node", "remove", &gone, "--force"]);
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    });
    cluster.member(away).kill();
    wait_for("it is away again", || is_down(&cluster, waiting));
    let remaining = waiting.to_string();
    let output = cluster.member(here).try_weft(&["drive", "remove", &remaining, "--lost"]);
    assert!(output.status.success(), "the first one has a copy: {output:?}");
}
