//! What people see of a real node: known requests through NBD, and what the documents, the pages and `weft top` say of them.

use crate::support::checker::{BLOCK, content};
use crate::support::cluster::{Cluster, Options};
use crate::support::http::{Answer, api_of, request};
use crate::support::nbd::{FLUSH, NbdClient, TRIM, WRITE_ZEROES};
use crate::support::{Ended, Node, Scratch, WEFT, send_signal, step, wait_until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A page that is whole: every element ends, in the right order, and nothing is fetched from elsewhere.
fn page(api: &str, path: &str) -> String {
    let Answer { status, head, body } = request(api, "GET", path, "");
    assert_eq!(status, 200, "{path}: {body}");
    assert!(head.contains("content-type: text/html"), "{path}: {head}");
    let rest = body.strip_prefix("<!DOCTYPE html>").expect("a page says what it is");
    let mut open: Vec<&str> = Vec::new();
    for tag in rest.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').expect("a tag ends");
        assert!(!text.contains('>'), "{path}: text is escaped: {text}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{path}: elements end in the right order");
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().expect("an element has a name"));
        }
    }
    assert!(open.is_empty(), "{path}: left open: {open:?}");
    assert!(!body.contains("<script") && !body.contains(" src="), "{path} is whole in itself");
    body
}

/// A node with a vDisk `v` and a connection to it.
fn a_node(scratch: &Scratch, arguments: &[&str]) -> (Node, NbdClient) {
    let node = Node::start(&scratch.file("node"), &[&["--drive-size", "256M"], arguments].concat());
    node.export_new("v", "64M", &scratch.socket("v"));
    let client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    (node, client)
}

fn data(block: usize, blocks: usize) -> Vec<u8> {
    (block..block + blocks).flat_map(|block| content(block, 1)).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number is wanted: {value}"))
}

/// How many values a histogram has counted in the bucket that begins with this one.
fn in_bucket(histogram: &Value, low: u64) -> u64 {
    let buckets = histogram["buckets"].as_array().expect("a histogram has buckets");
    buckets.iter().find(|bucket| bucket[0] == low).map_or(0, |bucket| number(&bucket[1]))
}

fn counts(histogram: &Value) -> u64 {
    let buckets = histogram["buckets"].as_array().expect("a histogram has buckets");
    let sum = buckets.iter().map(|bucket| number(&bucket[1])).sum();
    assert_eq!(number(&histogram["count"]), sum, "{histogram}");
    sum
}

/// How often each stage was passed: since the reset, and since the start.
fn stages(node: &Node) -> BTreeMap<String, (u64, u64)> {
    let view = node.json(&["latency"]);
    let stages = view["stages"].as_array().expect("stages are listed").clone();
    let of = |stage: &Value| {
        let name = stage["stage"].as_str().expect("a stage has a name").to_string();
        let (reset, start) = (&stage["since_reset"], &stage["since_start"]);
        assert!(reset["p99_us"].as_f64() >= reset["p50_us"].as_f64(), "{stage}");
        (name, (number(&reset["count"]), number(&start["count"])))
    };
    stages.iter().map(of).collect()
}

#[test]
fn known_requests_are_counted_as_what_they_are() {
    let scratch = Scratch::new("pages");
    let (node, mut client) = a_node(&scratch, &["--shards", "2"]);

    step("reads of what was never written, far from each other");
    let begun = Instant::now();
    for at in 0..20 {
        let bytes = client.read(at * 3 * MIB, BLOCK as u32).expect("it can be read");
        assert!(bytes.iter().all(|&byte| byte == 0));
    }
    assert_eq!(stages(&node)["FoundZeroes"], (20, 20));

    step("writes in two streams, a write of zeros, a trim, flushes");
    for block in 0..64 {
        client.write((block * BLOCK) as u64, &data(block, 1)).expect("there is room");
    }
    for piece in 0..16 {
        let block = 2048 + piece * 16;
        client.write((block * BLOCK) as u64, &data(block, 16)).expect("there is room");
    }
    let zeros = client.call(WRITE_ZEROES, 0, 40 * MIB, 65536, &[]).expect("the connection holds");
    let trim = client.call(TRIM, 0, 44 * MIB, 65536, &[]).expect("the connection holds");
    client.write(48 * MIB, &vec![0; 8192]).expect("there is room");
    for _ in 0..3 {
        assert_eq!(client.call(FLUSH, 0, 0, 0, &[]).expect("the connection holds").error, 0);
    }
    assert_eq!((zeros.error, trim.error), (0, 0));

    step("what was written is read back");
    for piece in 0..16 {
        let block = 2048 + piece * 16;
        let bytes = client.read((block * BLOCK) as u64, 65536).expect("it can be read");
        assert!(bytes == data(block, 16));
    }
    let stats = node.json(&["vdisk", "stats", "v"]);
    assert_eq!((counts(&stats["read_us"]), counts(&stats["write_us"])), (36, 81), "{stats}");
    assert_eq!(counts(&stats["flush_us"]), 3);
    let (read, write) = (&stats["read_size"], &stats["write_size"]);
    assert_eq!((in_bucket(read, 4096), in_bucket(read, 65536)), (20, 16), "{read}");
    assert_eq!((in_bucket(write, 4096), in_bucket(write, 65536), in_bucket(write, 8192)), (64, 16, 1));
    assert_eq!(number(&write["total"]), 64 * 4096 + 16 * 65536 + 8192);
    assert_eq!(counts(&stats["outstanding"]), 36 + 81 + 3 + 2, "one after the other");
    assert_eq!(number(&stats["outstanding"]["max"]), 1);
    assert_eq!(number(&stats["outstanding_now"]), 0);
    // The first two of a stream are not known to be one; the write of zeros stands alone.
    let pattern = &stats["pattern"];
    assert_eq!((number(&pattern["reads_random"]), number(&pattern["reads_sequential"])), (22, 14));
    assert_eq!((number(&pattern["writes_random"]), number(&pattern["writes_sequential"])), (5, 76));
    let sources = &stats["read_sources"];
    assert_eq!(number(&sources["zeroes"]["reads"]), 20, "{sources}");
    let blocks: u64 = sources.as_object().expect("by name").values().map(|it| number(&it["blocks"])).sum();
    assert_eq!(blocks, 20 + 16 * 16, "{sources}");
    let to = &stats["write_destinations"];
    assert_eq!((number(&to["log"]["writes"]), number(&to["log"]["bytes"])), (80, 64 * 4096 + 16 * 65536));
    assert_eq!((number(&to["zeroes"]["writes"]), number(&to["zeroes"]["bytes"])), (1, 8192));
    assert_eq!(number(&to["bypass"]["writes"]), 0);
    // 4 ranges of 64 KiB for the small writes, 16 for the others, 1 of zeros; 20 scattered reads, of which two are in ranges
    // that were written, and those 16 again.
    // On a machine that is very busy the first requests may be older than the short window.
    let short = (begun.elapsed() < Duration::from_secs(100)).then_some("minutes");
    for window in ["hour"].into_iter().chain(short) {
        let set = &stats["working_set"][window];
        let ranges = |key: &str| number(&set[key]) / 65536;
        assert!(ranges("written_bytes").abs_diff(21) <= 2, "{set}");
        assert!(ranges("read_bytes").abs_diff(36) <= 2 && ranges("bytes").abs_diff(39) <= 3, "{set}");
    }
    let now = stages(&node);
    for (stage, count) in [("write", 81), ("flush", 3), ("trim", 2), ("FoundZeroes", 20)] {
        assert_eq!(now[stage].1, count, "{stage}: {now:?}");
    }
    for stage in ["log_local", "drive_log", "decide", "reply"] {
        assert!(now[stage].1 > 0, "{stage}: {now:?}");
    }
    assert_eq!(now["throttled"].1, 0);

    step("a reset keeps what was counted since the start");
    node.weft(&["latency", "--reset"]);
    let after = stages(&node);
    assert_eq!((after["FoundZeroes"], after["write"]), ((0, 20), (0, 81)));
    client.read(63 * MIB, BLOCK as u32).expect("it can be read");
    assert_eq!(stages(&node)["FoundZeroes"], (1, 21));
    let api = api_of(&node.dir);
    let answer = request(&api, "POST", "/latency/reset", "");
    assert!(answer.status == 303 && answer.head.contains("location: /latency"), "{}", answer.head);
    assert_eq!(stages(&node)["FoundZeroes"], (0, 21));

    step("text for people, and numbers for Prometheus");
    let text = node.weft(&["vdisk", "stats", "v"]);
    assert!(text.contains("SIZES OF WRITES: 81") && text.contains("zeroes"), "{text}");
    let text = node.weft(&["latency"]);
    assert!(text.contains("FoundZeroes") && !text.contains("throttled"), "{text}");
    assert!(node.weft(&["latency", "--all"]).contains("throttled"));
    let metrics = request(&api, "GET", "/metrics", "").body;
    assert!(metrics.contains("weft_vdisk_write_seconds_count{name=\"v\"} 81\n"), "{metrics}");
    assert!(metrics.contains("weft_stage_seconds_count{stage=\"FoundZeroes\"} 21\n"));
    client.disconnect();
    node.stop();
}

#[test]
fn reads_of_drives_and_of_memory_are_told_apart_and_pages_show_them() {
    let scratch = Scratch::new("pages-sources");
    let (node, mut client) = a_node(&scratch, &[]);
    for piece in 0..64 {
        client.write((piece * 64 * BLOCK) as u64, &data(piece * 64, 64)).expect("there is room");
    }
    client.disconnect();
    // A clean stop drains everything.
    node.stop();
    let node = Node::start(&scratch.file("node"), &["--drive-size", "256M"]);
    let mut client = NbdClient::connect_patiently(&scratch.socket("v"), "v");
    // Two passes over blocks that do not follow each other.
    for _ in 0..2 {
        for at in 0..40 {
            let block = at * 37 % 64 * 64 + at;
            assert!(
                client.read((block * BLOCK) as u64, BLOCK as u32).expect("it can be read") == data(block, 1)
            );
        }
    }
    let stats = node.json(&["vdisk", "stats", "v"]);
    let sources = &stats["read_sources"];
    assert_eq!((number(&sources["local"]["reads"]), number(&sources["cache"]["reads"])), (40, 40), "{stats}");
    let stages = stages(&node);
    assert_eq!((stages["read_local"].1, stages["read_cache"].1, stages["units_local"].1), (40, 40, 40));
    assert!(stages["map_page"].1 >= 1 && stages["drive_read"].1 >= 41, "{stages:?}");
    let cache = node.json(&["cache", "show"]);
    assert_eq!((number(&cache["hits"]), number(&cache["misses"])), (40, 40), "{cache}");
    let minute = &cache["minute"];
    assert!(number(&minute["us"]) > 0 && number(&minute["us"]) <= 60_000_000, "{cache}");
    assert!(number(&minute["hits"]) <= 40 && number(&minute["egroup_map_misses"]) == 0, "{cache}");
    assert!(number(&cache["egroup_map_hits"]) >= 41, "{cache}");

    step("the pages");
    let api = api_of(&node.dir);
    let index = page(&api, "/");
    for path in ["/vdisk_stats", "/latency", "/cache_stats"] {
        assert!(index.contains(&format!("href=\"{path}\"")), "{path}");
        page(&api, path);
    }
    assert!(page(&api, "/vdisk_stats").contains("<a href=\"/vdisk_stats/v\">v</a>"));
    let of_v = page(&api, "/vdisk_stats/v");
    assert!(of_v.contains("<h1>v</h1>") && of_v.contains("Working set"), "{of_v}");
    assert!(page(&api, "/latency").contains("FoundZeroes"));
    assert!(page(&api, "/cache_stats").contains("egroup map"));
    let unknown = request(&api, "GET", "/vdisk_stats/%3Cscript%3E", "");
    assert_eq!(unknown.status, 404);
    assert!(unknown.head.contains("application/json"), "what was asked for is never shown as HTML");
    let output = node.try_weft(&["vdisk", "stats", "nobody"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    client.disconnect();
    node.stop();
}

/// Reads of one block, again and again, until it is dropped.
struct Load {
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Load {
    fn begin(mut client: NbdClient) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                client.read(5 * MIB, BLOCK as u32).expect("it can be read");
            }
        });
        Self { over, thread: Some(thread) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().expect("it is ended once").join();
        assert!(ended.is_ok() || std::thread::panicking(), "the load went on until it was told to end");
    }
}

#[test]
fn top_shows_what_happens_now_and_leaves_the_terminal_alone() {
    let scratch = Scratch::new("pages-top");
    let (node, mut client) = a_node(&scratch, &[]);
    node.weft(&["vdisk", "create", "a-quiet-one", "--size", "8M"]);
    // What happened before does not count.
    client.write(0, &data(0, 1)).expect("there is room");
    let load = Load::begin(client);

    step("once, as JSON");
    let mut interval = Value::Null;
    wait_until("an interval has reads", || {
        interval = node.json(&["top", "--once"]);
        interval["vdisks"][0]["reads_per_second"].as_f64().is_some_and(|reads| reads > 0.0)
    });
    let vdisks = interval["vdisks"].as_array().expect("vDisks are listed");
    let names: Vec<&str> = vdisks.iter().filter_map(|vdisk| vdisk["name"].as_str()).collect();
    assert_eq!(names, ["v", "a-quiet-one"], "the busiest first");
    assert!(interval["seconds"].as_f64().is_some_and(|seconds| seconds >= 0.9), "{interval}");
    assert_eq!(vdisks[0]["reads_from"]["zeroes"], 1.0, "{interval}");
    assert!(vdisks[0]["read_us"]["p99"].as_u64() >= vdisks[0]["read_us"]["p50"].as_u64());
    assert_eq!((&vdisks[0]["write_us"], &vdisks[0]["writes_per_second"]), (&Value::Null, &0.0.into()));
    assert_eq!(vdisks[1]["reads_per_second"], 0.0);

    step("once, as a table");
    wait_until("the vDisk has a row with reads", || {
        let table = node.weft(&["top", "--once", "--interval", "0.3"]);
        assert!(!table.contains('\x1b'), "stdout is no terminal: {table}");
        let line = table.lines().find(|line| line.starts_with("v ")).expect("the vDisk has a row");
        line.contains("zeroes 100.0%")
    });

    step("on a terminal, until Ctrl-C");
    let (mut terminal, other) = a_terminal();
    let arguments = ["top", "--interval", "0.2", "--dir", node.dir.to_str().expect("a plain path")];
    let stdout = Stdio::from(other);
    let top = Command::new(WEFT).args(arguments).stdin(Stdio::null()).stdout(stdout).spawn();
    let mut top = Ended(top.expect("weft can be started"));
    let (sender, shown) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = terminal.read(&mut piece) {
            let _ = sender.send(piece[..count].to_vec());
        }
    });
    let mut seen = Vec::new();
    wait_until("it has been drawn three times", || {
        seen.extend(shown.try_iter().flatten());
        String::from_utf8_lossy(&seen).matches("\x1b[H").count() >= 3
    });
    send_signal(&top.0, libc::SIGINT);
    let mut ended = None;
    wait_until("Ctrl-C ends it", || {
        ended = top.0.try_wait().expect("a child can be asked");
        ended.is_some()
    });
    while let Ok(piece) = shown.recv_timeout(Duration::from_secs(1)) {
        seen.extend(piece);
    }
    let seen = String::from_utf8_lossy(&seen);
    for sequence in seen.split('\x1b').skip(1) {
        let known = ["[H", "[K", "[J"].iter().any(|known| sequence.starts_with(known));
        assert!(known, "nothing of the terminal is changed that would have to be put back: {sequence:?}");
    }
    drop(load);
    for refused in ["0", "never", "-1"] {
        let output = node.try_weft(&["top", &format!("--interval={refused}")]);
        assert_eq!(output.status.code(), Some(2), "{refused}: {output:?}");
    }
    node.stop();
}

/// Both ends of a terminal.
fn a_terminal() -> (std::fs::File, OwnedFd) {
    let (mut ours, mut theirs) = (-1, -1);
    let none = std::ptr::null_mut();
    // SAFETY: two descriptors are written into live variables; the other pointers may be null.
    let made = unsafe { libc::openpty(&raw mut ours, &raw mut theirs, none, none.cast(), none.cast()) };
    assert_eq!(made, 0, "a terminal can be made");
    // SAFETY: both are new and nobody else's.
    unsafe { (std::fs::File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) }
}

#[test]
fn in_a_cluster_every_node_says_who_knows_about_a_vdisk() {
    let mut cluster = Cluster::start("pages-cluster", Options { nodes: 2, ..Options::default() });
    cluster.create("v", "64M");
    let owner = cluster.wait_until_served("v");
    let other = cluster.other_than(&[owner]);
    // Clients of both: one that all its clients come to would be given the vDisk after a minute.
    let sockets = [owner, other].map(|node| cluster.export("v", node));
    let mut clients = sockets.map(|socket| NbdClient::connect_patiently(&socket, "v"));
    for at in 0..10 {
        let client = &mut clients[at as usize % 2];
        client.write(at * MIB, &data(at as usize * 256, 1)).expect("there is room");
    }
    step("the node that serves it has counted, whoever is asked");
    for node in [owner, other] {
        let stats = cluster.member(node).json(&["vdisk", "stats", "v"]).expect("somebody knows");
        assert_eq!(counts(&stats["write_us"]), 10, "asked by way of node {node}");
        wait_until("all nodes have answered in time", || {
            let interval = cluster.member(node).json(&["top", "--once"]).expect("all nodes are asked");
            let vdisks = interval["vdisks"].as_array().expect("vDisks are listed").clone();
            let of_v = vdisks.iter().find(|vdisk| vdisk["name"] == "v");
            assert!(of_v.is_none_or(|vdisk| vdisk["node"] == owner), "{interval}");
            of_v.is_some()
        });
    }
    let apis: Vec<String> = [owner, other].map(|node| api_of(&cluster.member(node).dir)).to_vec();
    assert!(page(&apis[0], "/vdisk_stats").contains("href=\"/vdisk_stats/v\""));
    let link = format!("<a href=\"http://{}/vdisk_stats/v\">node {owner}</a>", apis[0]);
    for path in ["/vdisk_stats", "/vdisk_stats/v"] {
        let text = page(&apis[1], path);
        assert!(text.contains(&link), "{path} says {link}: {text}");
    }
    let misdirected = request(&apis[1], "GET", "/v1/vdisk_stats/v", "");
    assert_eq!(misdirected.status, 421);
    let told: Value = serde_json::from_str(&misdirected.body).expect("JSON");
    assert_eq!((&told["node"], &told["api"]), (&owner.into(), &apis[0].as_str().into()), "{told}");
    assert!(told["error"].as_str().is_some_and(|error| error.contains("not served by this node")));
    clients.into_iter().for_each(NbdClient::disconnect);
}
