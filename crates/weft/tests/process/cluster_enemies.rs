//! Enemies and clumsy operators: copied directories, another cluster where etcd was, garbage at the ports, storms of
//! orders from several nodes at once. What they do is refused or harmless, and nothing is left over.

use crate::support::checker::{BLOCK, content};
use crate::support::cluster::{Cluster, Options, free_port, wait_for};
use crate::support::nbd::NbdClient;
use crate::support::{WEFT, spawn_node, tool, try_tool, weft_output};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn start(name: &str, nodes: u32) -> Cluster {
    Cluster::start(name, Options { nodes, drive_size: "512M", ..Options::default() })
}

/// `weft up` of a directory that must refuse; what it said.
fn refused(dir: &Path) -> String {
    let dir = dir.to_str().expect("a plain name");
    let output = try_tool(&["timeout", "60", WEFT, "up", "--dir", dir, "--api", "127.0.0.1:0"]);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{dir} has to be refused: {}", told(&output));
    told(&output)
}

fn copy(from: &Path, to: &Path) {
    let plain = |path: &Path| path.to_str().expect("a plain name").to_string();
    tool(&["cp", "-r", "--sparse=always", &plain(from), &plain(to)]);
}

#[test]
fn copies_of_a_directory_live_one_at_a_time_and_only_the_newest() {
    let mut cluster = start("enemy-copy", 2);
    cluster.create("v", "16M");
    let socket = cluster.export("v", 1);
    let mut client = NbdClient::connect_patiently(&socket, "v");
    client.write(0, &content(0, 1)).expect("a write works");
    let before = cluster.node_view(0).expect("it is there");
    let original = cluster.member(0).dir.clone();
    let copied = cluster.scratch.file("copy");
    copy(&original, &copied);

    // While the node lives, the copy is refused, and nobody is told to look for the node there.
    assert!(refused(&copied).contains("lives elsewhere"));
    let after = cluster.node_view(0).expect("it is there");
    for field in ["alive", "incarnation", "api", "transport"] {
        assert_eq!(before[field], after[field], "{field} of the node");
    }
    client.write(BLOCK as u64, &content(1, 1)).expect("a write works");

    // The machine is gone, and the copy takes its place; then the original is the old one.
    cluster.member(0).kill();
    let (mut child, log) = spawn_node(&copied, &[]);
    if let Err(reason) = crate::support::await_ready(&mut child, &log) {
        panic!("the copy did not start: {reason}");
    }
    client.write(2 * BLOCK as u64, &content(2, 1)).expect("a write works");
    child.kill().expect("it runs");
    child.wait().expect("it ran");
    assert!(refused(&original).contains("is an old copy"));
    for block in 0..3 {
        let bytes = client.read((block * BLOCK) as u64, BLOCK as u32).expect("a read works");
        assert!(bytes == content(block, 1), "block {block} is as it was written");
    }
}

#[test]
fn another_cluster_where_etcd_was_gets_nothing_and_gives_nothing() {
    let mut cluster = start("enemy-etcd", 2);
    cluster.create("v", "16M");
    let socket = cluster.export("v", 0);
    let mut client = NbdClient::connect_patiently(&socket, "v");
    client.write(0, &content(0, 1)).expect("a write works");
    client.disconnect();

    // Another etcd has come to the address, and in it another cluster of the same name, with nodes of the same numbers.
    cluster.etcd.replace("another-etcd");
    let strange: Vec<PathBuf> =
        (0..2).map(|number| cluster.scratch.file(&format!("stranger{number}"))).collect();
    for (number, dir) in strange.iter().enumerate() {
        let dir = dir.to_str().expect("a plain name");
        let line = match number {
            0 => ["cluster", "init", "--name"],
            _ => ["node", "join", "--cluster"],
        };
        let place =
            ["main", "--etcd", &cluster.etcd.url, "--dir", dir, "--api", "127.0.0.1:0", "--transport"];
        let output = weft_output(&[&line[..], &place, &["127.0.0.1:0"]].concat());
        assert!(output.status.success(), "{}", told(&output));
    }
    for number in 0..2 {
        let log = cluster.member(number).dir.with_extension("log");
        wait_for("a node sees that this is not its cluster", || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let knows = text.contains("is another one") && text.contains("is not back in the cluster");
            if knows { Ok(()) } else { Err(text) }
        });
    }
    // Had one of them taken the stranger's number, this would be refused.
    let (mut child, log) = spawn_node(&strange[1], &["--drive-size", "256M"]);
    if let Err(reason) = crate::support::await_ready(&mut child, &log) {
        panic!("the stranger did not start: {reason}");
    }
    let dir = strange[1].to_str().expect("a plain name");
    // It may be ready a moment before the news of its own life has come back to it.
    wait_for("the stranger knows that it lives, and nobody else", || {
        let nodes = weft_output(&["--json", "node", "ls", "--dir", dir]);
        let nodes: Value = serde_json::from_slice(&nodes.stdout).map_err(|error| error.to_string())?;
        let is_so = nodes[0]["alive"] == false && nodes[1]["incarnation"] == 1;
        if is_so { Ok(()) } else { Err(format!("{nodes:#}")) }
    });
    child.kill().expect("it runs");
    child.wait().expect("it ran");

    // A node of ours that starts now says what is wrong, and changes nothing.
    cluster.member(1).kill();
    assert!(refused(&cluster.member(1).dir.clone()).contains("is another one"));

    cluster.etcd.replace("etcd");
    cluster.member(1).start();
    cluster.wait_until_whole();
    cluster.wait_until_served("v");
    let mut client = NbdClient::connect_patiently(&socket, "v");
    assert!(client.read(0, BLOCK as u32).expect("a read works") == content(0, 1));
}

/// How many keys there are below a prefix of the cluster's.
fn keys_below(cluster: &Cluster, below: &str) -> u64 {
    let encode = |text: String| tool(&["sh", "-c", "printf %s \"$0\" | base64 -w0", &text]);
    let body = serde_json::json!({
        "key": encode(format!("/weft/main/{below}/")), "range_end": encode(format!("/weft/main/{below}0")),
        "count_only": true,
    });
    let url = format!("{}/v3/kv/range", cluster.etcd.url);
    let answer = tool(&["curl", "-sf", "-m", "20", "-d", &body.to_string(), &url]);
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("etcd answers JSON");
    answer["count"].as_str().map_or(0, |count| count.parse().expect("a number"))
}

/// Bytes of egroups on all drives, as their nodes count them.
fn used(cluster: &mut Cluster) -> Result<u64, String> {
    let mut sum = 0;
    for number in 0..3 {
        let stats = cluster.member(number).json(&["stats"])?;
        for drive in stats["drives"].as_array().ok_or("no drives")? {
            sum += drive["used_bytes"].as_u64().ok_or("a drive does not tell")?;
        }
    }
    Ok(sum)
}

#[test]
fn storms_of_orders_leave_unique_names_and_nothing_over() {
    let mut cluster = start("enemy-storm", 3);
    let dirs: Vec<String> = (0..3).map(|number| cluster.member(number).dir_text().to_string()).collect();
    let names = ["a", "b", "c"];
    let before = used(&mut cluster).expect("all are up");
    let everywhere = |work: &(dyn Fn(usize, &str, &str) -> Output + Sync)| -> Vec<(String, Output)> {
        std::thread::scope(|scope| {
            let mut working = Vec::new();
            for (number, dir) in dirs.iter().enumerate() {
                for name in names {
                    working.push((name, scope.spawn(move || work(number, dir, name))));
                }
            }
            let done = working.into_iter();
            done.map(|(name, done)| (name.to_string(), done.join().expect("it does not panic"))).collect()
        })
    };
    for round in 0..2 {
        let made = everywhere(&|_, dir, name| {
            weft_output(&["vdisk", "create", name, "--size", "8M", "--rf", "2", "--dir", dir])
        });
        for name in names {
            let of_name: Vec<_> = made.iter().filter(|(other, _)| other == name).collect();
            let all: Vec<String> = of_name.iter().map(|(_, output)| told(output)).collect();
            let won = of_name.iter().filter(|(_, output)| output.status.success()).count();
            assert_eq!(won, 1, "one of three makes {name} in round {round}: {all:?}");
            let exist = all.iter().filter(|text| text.contains("exists already")).count();
            assert_eq!(exist, 2, "and the others hear why not: {all:?}");
        }
        // Written, moved and exported by everybody at once; what is refused is refused.
        for name in names {
            cluster.wait_until_served(name);
            let socket = cluster.export(name, 0);
            let mut client = NbdClient::connect_patiently(&socket, name);
            for block in 0..64 {
                client.write((block * BLOCK) as u64, &content(block, 1)).expect("a write works");
            }
            client.disconnect();
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                everywhere(&|number, dir, name| {
                    weft_output(&[
                        "vdisk",
                        "move",
                        name,
                        "--to",
                        &((number + 1) % 3).to_string(),
                        "--dir",
                        dir,
                    ])
                })
            });
            // In the midst of it.
            std::thread::sleep(Duration::from_millis(150 * (round + 1)));
            let gone =
                everywhere(&|_, dir, name| weft_output(&["vdisk", "rm", name, "--force", "--dir", dir]));
            for (name, output) in &gone {
                let text = told(output);
                let fine =
                    output.status.success() || text.contains("no vDisk") || text.contains("there is no");
                assert!(fine, "deleting {name}: {text}");
            }
        });
        for what in ["families", "names"] {
            wait_for("nothing is left in the store", || match keys_below(&cluster, what) {
                0 => Ok(()),
                count => Err(format!("{count} {what}: {:?}", cluster.json(&["vdisk", "ls"]))),
            });
        }
    }
    wait_for("the drives have as much room as before", || match used(&mut cluster)? {
        now if now <= before => Ok(()),
        now => Err(format!("{now} bytes are used, and {before} were")),
    });
}

#[test]
fn garbage_at_the_ports_harms_nobody() {
    let mut cluster = start("enemy-garbage", 2);
    cluster.create("v", "16M");
    let owner = cluster.wait_until_served("v");
    // Requests of this client cross the transport port that is attacked.
    let socket = cluster.export("v", 1 - owner);
    let mut client = NbdClient::connect_patiently(&socket, "v");
    let view = cluster.node_view(owner).expect("it is there");
    let ports = [view["transport"][0].as_str(), view["api"].as_str()];
    let noise: Vec<u8> =
        (0..200_000_u32).flat_map(|at| (at.wrapping_mul(2_654_435_761) >> 7).to_le_bytes()).collect();
    let mut attacks: Vec<Vec<u8>> = (0..16).map(|from| noise[from * 1000..].to_vec()).collect();
    attacks.push(b"POST /v1/vdisks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n{".to_vec());
    attacks.push(b"PUT /v1/cluster HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 21\r\n\r\n{\"away_seconds\":-1.5}".to_vec());
    attacks.push(vec![0; 1 << 20]);
    let mut kept = Vec::new();
    for port in ports.into_iter().flatten() {
        for (number, attack) in attacks.iter().enumerate() {
            let mut stream = TcpStream::connect(port).expect("somebody listens");
            stream.set_write_timeout(Some(Duration::from_secs(5))).expect("it can be set");
            stream.set_read_timeout(Some(Duration::from_secs(1))).expect("it can be set");
            // A refusal may come before everything is sent.
            let _ = stream.write_all(attack);
            match number % 3 {
                0 => kept.push(stream),
                1 => drop(stream),
                _ => {
                    let _ = stream.shutdown(Shutdown::Write);
                    let _ = stream.read(&mut [0; 1000]);
                }
            }
            client.write((number * BLOCK) as u64, &content(number, 1)).expect("a write works");
        }
    }
    for number in 0..attacks.len() {
        let bytes = client.read((number * BLOCK) as u64, BLOCK as u32).expect("a read works");
        assert!(bytes == content(number, 1));
    }
    client.disconnect();
    for number in 0..2 {
        let log =
            std::fs::read_to_string(cluster.member(number).dir.with_extension("log")).unwrap_or_default();
        assert!(!log.contains("panicked"), "{log}");
    }
    cluster.wait_until_whole();
    assert_eq!(cluster.owner("v").expect("it is there"), Some(owner), "nobody had to take over");
}

#[test]
fn exports_end_where_that_was_asked_for() {
    let mut cluster = start("enemy-unexport", 2);
    cluster.create("v", "16M");
    let sockets = [cluster.export("v", 0), cluster.export("v", 1)];
    let mut client = NbdClient::connect_patiently(&sockets[1], "v");
    cluster.member(0).weft(&["vdisk", "unexport", "v"]);
    wait_for("node 0 listens no more", || match UnixStream::connect(&sockets[0]) {
        Ok(_) => Err("it does".to_string()),
        Err(_) => Ok(()),
    });
    client.write(0, &content(0, 1)).expect("what another node exports stays");
    client.disconnect();
    // Nothing of it is here: then those of others are meant.
    cluster.member(0).weft(&["vdisk", "unexport", "v"]);
    let gone = cluster.member(1).try_weft(&["vdisk", "unexport", "v"]);
    assert_eq!(gone.status.code(), Some(2), "nothing is left to end");
}

#[test]
fn exports_that_are_made_at_once_let_clients_in_at_once() {
    let mut cluster = start("enemy-exports", 2);
    let names: Vec<String> = (0..8).map(|number| format!("v{number}")).collect();
    for name in &names {
        cluster.weft(&["vdisk", "create", name, "--size", "16M", "--rf", "2"]);
    }
    let dir = cluster.member(1).dir_text().to_string();
    // News of one come while another one is on its way to the store.
    let exporting: Vec<_> = { names.iter() }
        .map(|name| {
            let (name, dir, port) = (name.clone(), dir.clone(), free_port());
            std::thread::spawn(move || {
                let place = format!("tcp:127.0.0.1:{port}");
                let made = weft_output(&["vdisk", "export", &name, "--nbd", &place, "--dir", &dir, "--json"]);
                assert!(made.status.success(), "{}", told(&made));
                let made: Value = serde_json::from_slice(&made.stdout).expect("JSON");
                assert_eq!(made["trouble"], "", "{made}");
                tool(&["nbdinfo", "--size", &format!("nbd://127.0.0.1:{port}/{name}")])
            })
        })
        .collect();
    for exported in exporting {
        assert_eq!(exported.join().expect("it is exported").trim(), (16 << 20).to_string());
    }
    let log = std::fs::read_to_string(cluster.member(1).dir.with_extension("log")).unwrap_or_default();
    assert!(!log.contains("an export does not open"), "{log}");
}

/// The status of a request whose answer may have to be waited for.
fn status_of(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("it can be set");
    stream.read_to_string(&mut answer).expect("an answer comes");
    answer.split(' ').nth(1).expect("it is HTTP").to_string()
}

#[test]
fn what_was_done_at_one_node_is_known_at_the_next() {
    let mut cluster = start("enemy-behind", 2);
    let api = std::fs::read_to_string(cluster.member(1).dir.join("api")).expect("it runs");
    for round in 0..20 {
        // Node 1 finds the request before the news of what it asks for, or at the same time.
        cluster.member(1).suspend();
        let name = format!("c{round}");
        cluster.member(0).weft(&["container", "create", &name]);
        let mut stream = TcpStream::connect(api.trim()).expect("the kernel answers for it");
        write!(stream, "GET /v1/containers/{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .expect("there is room in the socket");
        cluster.member(1).resume();
        assert_eq!(status_of(stream), "200", "round {round}");
    }
    let mut stream = TcpStream::connect(api.trim()).expect("it listens");
    write!(stream, "GET /v1/containers/none HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .expect("it is sent");
    assert_eq!(status_of(stream), "404", "what is not there is still not there");
    let mut stream = TcpStream::connect(api.trim()).expect("it listens");
    let head =
        "POST /v1/shutdown HTTP/1.1\r\nHost: x\r\nOrigin: https://evil.example\r\nContent-Length: 0\r\n";
    write!(stream, "{head}Connection: close\r\n\r\n").expect("it is sent");
    assert_eq!(status_of(stream), "403", "a page in somebody's browser gives no orders");
}
