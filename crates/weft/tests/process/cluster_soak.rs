//! Whatever happens to a cluster, one upon the other in random order, while people go on asking for things: nodes that are
//! killed, stopped or stand still, an etcd that is away, a network that is cut or loses packets; and vDisks that move, are packed
//! otherwise, copied more often, cloned, have snapshots taken and go back to them; nodes and drives that are being emptied, and new ones.
//! Nothing that was acknowledged is lost, each snapshot stays what the vDisk was when it was taken, and each command ends with a line.
//! WEFT_CLUSTER_ROUNDS makes it longer, and WEFT_SOAK_SEED another history (as far as it is the test's: the nodes have their own).

use crate::support::checker::{BLOCK, Checker};
use crate::support::cluster::{Cluster, Load, Options, rounds, wait_for};
use crate::support::nbd::NbdClient;
use crate::support::net::Net;
use crate::support::step;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::process::Output;
use std::thread::JoinHandle;
use std::time::Duration;

const NODES: u32 = 4;
const VDISK_BYTES: usize = 32 << 20;
const SOME: u64 = 500;
/// Snapshots that are kept, so that there are some of several rounds.
const KEPT: usize = 3;

#[derive(Debug, Clone, Copy)]
enum Trouble {
    Killed(u32),
    Stopped(u32),
    StandsStill(u32),
    Alone(u32),
    WithoutEtcd(u32),
    OneWay(u32, u32),
    Lossy(u32),
    Narrow(u32),
    EtcdAway,
}

impl Trouble {
    /// Some node, but not so that the process at `place` ends: there is a client whose connection has to hold.
    fn any(random: &mut SmallRng, place: u32) -> Self {
        let one = random.random_range(0..NODES);
        let other = (one + random.random_range(1..NODES)) % NODES;
        let mortal = if one == place { other } else { one };
        match random.random_range(0..9) {
            0 => Self::Killed(mortal),
            1 => Self::Stopped(mortal),
            2 => Self::StandsStill(one),
            3 => Self::Alone(one),
            4 => Self::WithoutEtcd(one),
            5 => Self::OneWay(one, other),
            6 => Self::Lossy(one),
            7 => Self::Narrow(one),
            _ => Self::EtcdAway,
        }
    }

    /// Whether it is something that happens to a process: one after the other.
    fn process(self) -> Option<Option<u32>> {
        match self {
            Self::Killed(node) | Self::Stopped(node) | Self::StandsStill(node) => Some(Some(node)),
            Self::EtcdAway => Some(None),
            _ => None,
        }
    }

    fn begin(self, cluster: &mut Cluster) {
        let net = cluster.net.as_ref().expect("the cluster has a net");
        match self {
            Self::Killed(node) => cluster.member(node).kill(),
            Self::Stopped(node) => cluster.member(node).stop(),
            Self::StandsStill(node) => cluster.member(node).suspend(),
            Self::Alone(node) => net.isolate(node),
            Self::WithoutEtcd(node) => net.cut_from_etcd(node),
            Self::OneWay(from, to) => net.cut_one_way(from, to),
            Self::Lossy(node) => net.lose(node, 20),
            Self::Narrow(node) => net.narrow(node),
            Self::EtcdAway => cluster.etcd.kill(),
        }
    }

    /// Of the network nothing: that is healed as a whole, before.
    fn end(self, cluster: &mut Cluster) {
        match self {
            Self::Killed(node) | Self::Stopped(node) => cluster.member(node).start(),
            Self::StandsStill(node) => cluster.member(node).resume(),
            Self::EtcdAway => cluster.etcd.launch(),
            _ => {}
        }
    }
}

/// A command that somebody gives, and does not wait for.
fn ask(cluster: &Cluster, node: u32, line: Vec<String>) -> JoinHandle<(Vec<String>, Output)> {
    let words: Vec<&str> = line.iter().map(String::as_str).collect();
    let mut command = cluster.asking(node, &words);
    std::thread::spawn(move || {
        let output = command.output().expect("weft can be run");
        (line, output)
    })
}

/// Something that people do, as words of a command.
fn anything(random: &mut SmallRng, round: u64) -> Vec<String> {
    let node = random.random_range(0..NODES);
    let line = match random.random_range(0..14) {
        0 | 1 => format!("vdisk move v --to {node}"),
        2 => format!("vdisk set v --compression {}", ["lz4", "zstd", "off"][node as usize % 3]),
        3 => format!("vdisk set v --rf {}", 2 + node % 2),
        4 => format!("snapshot create v by-the-way-{round}"),
        5 => format!("snapshot rm v@by-the-way-{}", random.random_range(0..=round)),
        6 => format!("clone v@round-{} clone-{round}", round.saturating_sub(random.random_range(0..3))),
        7 => format!("vdisk rm clone-{}", random.random_range(0..=round)),
        8 => format!("node drain {node} --no-wait"),
        9 => "cluster status".to_string(),
        10 => "vdisk ls".to_string(),
        11 => "drive add --files 1 --size 1G".to_string(),
        12 => format!("drive remove {} --no-wait", random.random_range(0..NODES + round as u32 / 8)),
        _ => format!("vdisk set v --iops-limit {}", if node == 0 { "5000" } else { "none" }),
    };
    words(&line)
}

/// It ends, with a line that tells why if it was not done.
fn is_decent((line, output): (Vec<String>, Output)) {
    let code = output.status.code();
    let told = String::from_utf8_lossy(&output.stderr);
    step(&format!("  weft {}: {code:?} {}", line.join(" "), told.trim()));
    assert!(matches!(code, Some(0..=2)), "{line:?} does not end well: {output:?}");
    assert!(code == Some(0) || told.starts_with("weft: "), "{line:?} does not tell why: {output:?}");
    assert!(!told.contains("panicked"), "{line:?}: {told}");
}

fn drive_numbers(cluster: &Cluster) -> Vec<String> {
    let drives = cluster.json(&["drive", "ls"]).expect("it lists them");
    drives.as_array().expect("a list").iter().map(|drive| drive["drive"].to_string()).collect()
}

/// Drives that are being emptied go, or stay.
fn decide_drives(cluster: &Cluster, random: &mut SmallRng) {
    let drives = cluster.json(&["drive", "ls"]).expect("it lists them");
    for drive in drives.as_array().expect("a list") {
        if drive["state"].as_str() != Some("draining") {
            continue;
        }
        let number = drive["drive"].to_string();
        if random.random_ratio(1, 2) {
            // Refused if others have no room or places for what is on it, and not done in time where that is much.
            for _ in 0..20 {
                let line = words(&format!("drive remove {number} --no-wait"));
                let asked = ask(cluster, 0, line).join().expect("nothing panics");
                let is_gone =
                    !asked.1.status.success() || drive_numbers(cluster).iter().all(|one| *one != number);
                is_decent(asked);
                if is_gone {
                    break;
                }
                std::thread::sleep(Duration::from_millis(500));
            }
        }
        insist(cluster, &["drive", "remove", &number, "--undo"]);
    }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_string).collect()
}

/// A snapshot, and what is in it.
struct Past {
    name: String,
    book: Checker,
}

/// Asks any node until it is done.
fn insist(cluster: &Cluster, line: &[&str]) {
    insist_at(cluster, cluster.other_than(&[]), line);
}

fn insist_at(cluster: &Cluster, by: u32, line: &[&str]) {
    wait_for(&line.join(" "), || {
        let output = cluster.asking(by, line).output().expect("weft can be run");
        let told = String::from_utf8_lossy(&output.stderr);
        // It was done, and the answer got lost.
        let is_there = ["already", "there is no", "no drive", "is not exported"]
            .iter()
            .any(|words| told.contains(words));
        if output.status.success() || is_there { Ok(()) } else { Err(told.trim().to_string()) }
    });
}

impl Past {
    fn take(cluster: &Cluster, checker: &Checker, round: u64) -> Self {
        let name = format!("round-{round}");
        insist(cluster, &["snapshot", "create", "v", &name]);
        Self { name, book: checker.clone() }
    }

    fn compare(&mut self, cluster: &Cluster, node: u32) {
        let name = format!("v@{}", self.name);
        let socket = cluster.socket(&name, node);
        let address = format!("unix:{}", socket.display());
        insist_at(cluster, node, &["vdisk", "export", &name, "--nbd", &address]);
        let mut client = NbdClient::connect_patiently(&socket, &name);
        self.book.verify_all(&mut client);
        client.disconnect();
        insist(cluster, &["vdisk", "unexport", &name]);
    }
}

#[test]
fn a_cluster_lives_through_whatever_happens() {
    let seed = std::env::var("WEFT_SOAK_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let Some(net) = Net::make(NODES) else { return };
    let options = Options { nodes: NODES, net: Some(net), ..Options::default() };
    let mut cluster = Cluster::start("cluster-soak", options);
    cluster.create("v", &VDISK_BYTES.to_string());
    let sockets: Vec<_> = cluster.numbers().into_iter().map(|number| cluster.export("v", number)).collect();
    let mut checker = Checker::new(VDISK_BYTES / BLOCK, seed);
    let mut random = SmallRng::seed_from_u64(seed);
    let mut pasts: Vec<Past> = Vec::new();
    for round in 0..3 * rounds() {
        pasts.push(Past::take(&cluster, &checker, round));
        let place = random.random_range(0..NODES);
        // In every other round much is outstanding, so that large writes go around the log, over what is still in it.
        checker.large = if round % 2 == 0 { 10 } else { 75 };
        let load = Load::start(checker, &sockets[place as usize]);
        load.go_on(SOME);
        load.tell_pause("before");
        let mut troubles: Vec<Trouble> = Vec::new();
        let mut asked = Vec::new();
        for _ in 0..random.random_range(1..=3) {
            let trouble = Trouble::any(&mut random, place);
            let is_same =
                |other: &Trouble| trouble.process().is_some() && trouble.process() == other.process();
            if troubles.iter().any(is_same) {
                continue;
            }
            step(&format!("round {round}: {trouble:?}"));
            trouble.begin(&mut cluster);
            troubles.push(trouble);
            if random.random_ratio(2, 3) {
                let stands =
                    |node: &u32| troubles.iter().any(|trouble| trouble.process() == Some(Some(*node)));
                let up: Vec<u32> = (0..NODES).filter(|node| !stands(node)).collect();
                let by = *up.choose(&mut random).expect("three troubles leave one of four");
                asked.push(ask(&cluster, by, anything(&mut random, round)));
            }
            std::thread::sleep(Duration::from_millis(random.random_range(0..5000)));
        }
        cluster.net.as_ref().expect("the cluster has a net").heal();
        // Nobody starts without etcd.
        troubles.sort_by_key(|trouble| !matches!(trouble, Trouble::EtcdAway));
        for trouble in troubles {
            trouble.end(&mut cluster);
        }
        for asked in asked {
            is_decent(asked.join().expect("nothing panics"));
        }
        load.go_on(SOME);
        load.tell_pause(&format!("round {round}"));
        checker = load.stop();
        for node in 0..NODES {
            insist(&cluster, &["node", "drain", &node.to_string(), "--undo"]);
        }
        decide_drives(&cluster, &mut random);
        if random.random_ratio(1, 2) {
            cluster.wait_until_whole();
        }
        if random.random_ratio(1, 6) {
            step(&format!("round {round}: all nodes are killed"));
            cluster.kill_all();
            cluster.start_all();
        }
        let at = random.random_range(0..pasts.len());
        pasts[at].compare(&cluster, random.random_range(0..NODES));
        if random.random_ratio(1, 5) {
            pasts.truncate(at + 1);
            go_back(&cluster, &pasts[at], &mut checker);
        }
        if pasts.len() > KEPT {
            let past = pasts.remove(random.random_range(0..pasts.len()));
            remove(&cluster, &past.name);
        }
    }
    cluster.wait_until_whole();
    for past in &mut pasts {
        past.compare(&cluster, random.random_range(0..NODES));
    }
    cluster.compare_and_check(&sockets, checker);
}

/// What was cloned stays until its clones are gone.
fn remove_clones(cluster: &Cluster) {
    let all = cluster.json(&["vdisk", "ls"]).expect("it lists them");
    for vdisk in all.as_array().expect("a list") {
        let vdisk = vdisk["name"].as_str().expect("each has a name");
        if vdisk.starts_with("clone-") {
            insist(cluster, &["vdisk", "rm", vdisk]);
        }
    }
}

fn go_back(cluster: &Cluster, past: &Past, checker: &mut Checker) {
    step(&format!("v goes back to {}", past.name));
    remove_clones(cluster);
    insist(cluster, &["snapshot", "rollback", &format!("v@{}", past.name), "--force", "--discard-newer"]);
    checker.went_back_to(&past.book);
}

fn remove(cluster: &Cluster, name: &str) {
    remove_clones(cluster);
    insist(cluster, &["snapshot", "rm", &format!("v@{name}")]);
}
