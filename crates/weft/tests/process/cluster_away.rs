//! Nodes that are away while something of the others is lost.

use crate::cluster::cluster_of;
use crate::support::checker::BLOCK;
use crate::support::cluster::{Cluster, Load, Options, wait_for};
use crate::support::flip_bit;
use std::path::Path;
use std::time::Duration;
use weft_engine::formats::frame::FrameHeader;

/// Behind so long what is written would have been drained for its age, and be in pages.
const AGED: Duration = Duration::from_secs(40);
/// Requests.
const SOME: u64 = 300;

#[test]
fn of_two_nodes_one_is_away_and_a_drive_of_the_other_is_lost() {
    let (mut cluster, sockets, checker) = cluster_of("pair", 2);
    for number in [0, 1] {
        cluster.member(number).weft(&["drive", "add", "--files", "1", "--size", "1G"]);
    }
    cluster.wait_until_whole();
    let here = cluster.wait_until_served("v");
    let away = cluster.other_than(&[here]);
    let load = Load::start(checker, &sockets[here as usize]);
    load.go_on(SOME);
    cluster.member(away).kill();
    load.go_on(SOME);
    let checker = load.stop();
    std::thread::sleep(AGED);
    let drive = cluster.drive_of(here);
    cluster.member(here).kill();
    let dir = cluster.member(here).dir.clone();
    for area in ["log", "data"] {
        std::fs::remove_file(dir.join(format!("drive-{drive}.{area}"))).expect("the drive is a file");
    }
    cluster.member(here).start();
    cluster.member(away).start();
    cluster.wait_until_served("v");
    cluster.weft(&["drive", "remove", &drive.to_string(), "--lost"]);
    cluster.member(here).weft(&["drive", "add", "--files", "1", "--size", "1G"]);
    cluster.wait_until_whole();
    cluster.compare_and_check(&sockets, checker);
}

/// Flips a bit in the payload of the last frame of this ring, or in its header if it has none.
fn damage_the_end(ring: &Path) {
    let bytes = std::fs::read(ring).expect("the log area can be read");
    let headers = bytes.chunks_exact(BLOCK).enumerate().filter_map(|(position, block)| {
        FrameHeader::decode(block).filter(|header| header.position == position as u64)
    });
    let last = headers.max_by_key(|header| header.number).expect("something was written");
    let block = last.position + if last.payload_blocks() > 0 { last.header_blocks() } else { 0 };
    flip_bit(ring, block * BLOCK as u64 + 500);
}

#[test]
fn a_node_whose_last_write_is_damaged_waits_for_the_other_one() {
    let (mut cluster, sockets, checker) = cluster_of("torn-end", 2);
    let load = Load::start(checker, &sockets[0]);
    load.go_on(SOME);
    let checker = load.stop();
    cluster.kill_all();
    // Whose end is sound serves alone.
    cluster.member(0).start();
    cluster.wait_until_served("v");
    cluster.start_all();
    cluster.wait_until_whole();

    let load = Load::start(checker, &sockets[0]);
    load.go_on(SOME);
    let checker = load.stop();
    let drives = [0, 1].map(|number| cluster.drive_of(number));
    cluster.kill_all();
    damage_the_end(&cluster.member(0).dir.join(format!("drive-{}.log", drives[0])));
    cluster.member(0).start();
    wait_for("it is told what is waited for", || {
        let told = cluster.member(0).weft(&["cluster", "status"]);
        let awaited = format!("drive(s) {} of its log are away", drives[1]);
        if told.contains(&awaited) { Ok(()) } else { Err(told) }
    });
    assert_eq!(cluster.owner("v"), Ok(None), "it may be the last thing that was acknowledged");
    cluster.start_all();
    cluster.wait_until_whole();
    cluster.compare_and_check(&sockets, checker);
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
