//! kill -9 of the node in the middle of writes: nothing acknowledged is lost, and no block is a mixture.
//! WEFT_KILLS says how often (6); a long run is `WEFT_KILLS=60 cargo test --release -p weft --test process -- kill::`.

use crate::support::checker::{BLOCK, Checker};
use crate::support::nbd::NbdClient;
use crate::support::{Node, Scratch, nbd_uri, spawn_node, step, tool, try_tool};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::time::{Duration, Instant};

const DEPTH: usize = 32;
const VDISK_BYTES: usize = 96 << 20;

fn kills() -> u32 {
    std::env::var("WEFT_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

#[test]
fn nothing_acknowledged_is_lost_with_one_copy() {
    kill_again_and_again("kill-rf1", &["--drive-size", "512M"], 1);
}

#[test]
fn nothing_acknowledged_is_lost_with_two_copies() {
    kill_again_and_again("kill-rf2", &["--drives", "2", "--drive-size", "512M"], 2);
}

fn kill_again_and_again(name: &str, arguments: &[&str], seed: u64) {
    let scratch = Scratch::new(name);
    let (dir, socket) = (scratch.file("node"), scratch.socket("v"));
    let mut random = SmallRng::seed_from_u64(seed);
    let mut checker = Checker::new(VDISK_BYTES / BLOCK, seed);
    let mut node = Node::start(&dir, arguments);
    node.export_new("v", &VDISK_BYTES.to_string(), &socket);
    for round in 0..kills() {
        let mut client = NbdClient::connect_patiently(&socket, "v");
        checker.verify_all(&mut client);
        let count = random.random_range(200..6000);
        checker.load(&mut client, DEPTH, count).expect("the connection holds while the node lives");
        node.kill();
        // What the node had sent before it died counts as acknowledged.
        checker.drain(&mut client);
        checker.connection_lost();
        if random.random_bool(0.3) {
            // Killed again while it starts, perhaps in the middle of its recovery.
            let (mut child, _) = spawn_node(&dir, arguments);
            std::thread::sleep(Duration::from_millis(random.random_range(0..400)));
            let _ = child.kill();
            let _ = child.wait();
        }
        // What was on its way when it died is no damage.
        crate::support::run_weft(&["check", dir.to_str().expect("a plain name")]);
        let begun = Instant::now();
        node = Node::start(&dir, arguments);
        step(&format!(
            "round {round}: {} writes acknowledged so far, serving again after {} ms",
            checker.acknowledged,
            begun.elapsed().as_millis()
        ));
    }
    let mut client = NbdClient::connect_patiently(&socket, "v");
    checker.verify_all(&mut client);
    client.disconnect();
    node.stop();
    crate::support::run_weft(&["check", dir.to_str().expect("a plain name")]);
}

#[test]
fn what_fio_wrote_before_the_kill_verifies_after_it() {
    let scratch = Scratch::new("kill-fio");
    let (dir, socket) = (scratch.file("node"), scratch.socket("v"));
    let node = Node::start(&dir, &["--drive-size", "512M"]);
    node.export_new("v", "96M", &socket);
    let uri = format!("--uri={}", nbd_uri(&socket, "v"));
    let common = ["fio", "--name=k", "--ioengine=nbd", &uri, "--rw=randwrite", "--bs=4k", "--randseed=7"];
    let verify = ["--size=48M", "--offset=0", "--iodepth=32", "--verify=crc32c"];
    let first: Vec<&str> = common.iter().chain(&verify).copied().chain(["--do_verify=0"]).collect();
    tool(&first);
    // A second load, on the other half, that the kill interrupts.
    let mut second = std::process::Command::new("timeout")
        .args(["-k", "5", "120"])
        .args(common)
        .args(["--offset=48M", "--size=48M", "--iodepth=32", "--time_based", "--runtime=100"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("fio can be started");
    let before = node.vdisk_writes("v");
    crate::support::wait_until("the second load runs", || node.vdisk_writes("v") > before);
    node.kill();
    let _ = second.wait();
    let node = Node::start(&dir, &[]);
    let check: Vec<&str> = common.iter().chain(&verify).copied().chain(["--verify_only"]).collect();
    let output = try_tool(&check);
    assert!(
        output.status.success(),
        "fio found damage after the kill: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    node.stop();
}
