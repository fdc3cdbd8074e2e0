//! kill -9 of the node in the middle of writes: nothing acknowledged is lost, and no block is a mixture.
//! WEFT_KILLS says how often (6); a long run is `WEFT_KILLS=60 cargo test --release -p weft --test process -- kill::`.

use crate::support::checker::{BLOCK, Checker};
use crate::support::nbd::NbdClient;
use crate::support::{Ended, Node, Scratch, nbd_uri, spawn_node, step, wait_until};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const DEPTH: usize = 32;
const VDISK_BYTES: usize = 96 << 20;

fn kills() -> u32 {
    std::env::var("WEFT_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

#[test]
fn nothing_acknowledged_is_lost_with_one_copy() {
    kill_again_and_again("kill-rf1", &["--drive-size", "512M"], 1, 10);
}

#[test]
fn nothing_acknowledged_is_lost_with_two_copies() {
    kill_again_and_again("kill-rf2", &["--drives", "2", "--drive-size", "512M"], 2, 10);
}

/// Most of these go around the log, over small ones that are still in it.
#[test]
fn nothing_acknowledged_is_lost_where_large_writes_overwrite_small_ones() {
    let around = kill_again_and_again("kill-large", &["--drives", "2", "--drive-size", "768M"], 3, 45);
    assert!(around > 100, "{around} writes went around the log");
}

/// Of a hundred requests `large` are large writes. Gives how many went around the log.
fn kill_again_and_again(name: &str, arguments: &[&str], seed: u64, large: u32) -> u64 {
    let scratch = Scratch::new(name);
    let (dir, socket) = (scratch.file("node"), scratch.socket("v"));
    let mut random = SmallRng::seed_from_u64(seed);
    let mut checker = Checker::new(VDISK_BYTES / BLOCK, seed);
    checker.large = large;
    let mut around_the_log = 0;
    let mut node = Node::start(&dir, arguments);
    node.export_new("v", &VDISK_BYTES.to_string(), &socket);
    for round in 0..kills() {
        let mut client = NbdClient::connect_patiently(&socket, "v");
        checker.verify_all(&mut client);
        // Large ones are as many bytes in fewer requests.
        let count = random.random_range(200..6000) * 10 / u64::from(large.max(10));
        checker.load(&mut client, DEPTH, count).expect("the connection holds while the node lives");
        around_the_log += node.writes_around_the_log("v");
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
    around_the_log
}

/// fio checks what it wrote as it goes along, and all of it at the end, while the node dies under it. Between them is a server of
/// nbdkit that connects again, and asks again what had no answer, as a client does that is to survive this.
#[test]
fn what_fio_writes_verifies_while_the_node_is_killed_under_it() {
    let scratch = Scratch::new("kill-fio");
    let (dir, socket, outer) = (scratch.file("node"), scratch.socket("v"), scratch.socket("again"));
    let mut node = Node::start(&dir, &["--drive-size", "512M"]);
    node.export_new("v", "96M", &socket);
    let target = format!("uri={}", nbd_uri(&socket, "v"));
    let mut server = Ended(
        Command::new("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--threads", "32", "--unix"])
            .arg(&outer)
            .args(["--filter=retry", "nbd", &target, "retry-delay=1", "retries=60", "retry-exponential=no"])
            .spawn()
            .expect("nbdkit can be started"),
    );
    wait_until("nbdkit listens", || outer.exists());
    let uri = format!("--uri={}", nbd_uri(&outer, ""));
    let mut fio = Ended(
        Command::new("timeout")
            .args(["-k", "5", "240", "fio", "--name=k", "--ioengine=nbd", &uri, "--rw=randwrite", "--bs=4k"])
            .args(["--size=56M", "--iodepth=32", "--rate_iops=2500", "--randseed=7"])
            .args(["--verify=crc32c", "--verify_fatal=1", "--verify_backlog=500", "--do_verify=1"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("fio can be started"),
    );
    for round in 0..kills().min(10) {
        let before = node.vdisk_writes("v");
        wait_until("fio writes", || node.vdisk_writes("v") > before + 500);
        node.kill();
        node = Node::start(&dir, &[]);
        let goes_on = fio.0.try_wait().expect("it is our child").is_none();
        assert!(goes_on, "fio ended before kill {round}: it is to be longer");
    }
    let status = fio.0.wait().expect("it is our child");
    let mut said = String::new();
    let out = fio.0.stdout.as_mut().expect("it is piped");
    std::io::Read::read_to_string(out, &mut said).expect("text");
    assert!(status.success(), "fio found damage: {said}");
    let _ = server.0.kill();
    node.stop();
}
