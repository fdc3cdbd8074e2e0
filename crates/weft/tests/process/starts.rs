//! Directories and addresses that a node does not start with, and leaves as they are.

use crate::support::{
    Node, Scratch, await_ready, expect, nbd_uri, spawn_node_telling, wait_until, weft_output, write,
};
use serde_json::Value;
use std::net::TcpListener;
use std::path::Path;

/// What `weft up` says when it refuses, in one line and with exit code 2.
fn refused(dir: &Path, arguments: &[&str]) -> String {
    refused_with(2, dir, arguments)
}

/// The same with this exit code: 1 where what it was told is right, and what is there is not.
fn refused_with(code: i32, dir: &Path, arguments: &[&str]) -> String {
    let line = ["up", "--dir", dir.to_str().expect("a plain name")];
    let output = weft_output(&[&line[..], arguments].concat());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{told}");
    assert_eq!(told.lines().filter(|line| line.starts_with("weft: ")).count(), 1, "{told}");
    told
}

#[test]
fn a_directory_on_its_way_into_a_cluster_does_not_start_alone() {
    let scratch = Scratch::new("on-its-way");
    let dir = scratch.file("node");
    std::fs::create_dir_all(&dir).expect("a directory can be made");
    let mark = dir.join("joining.json");
    for (way, command) in [
        (r#", "way": "join""#, "weft node join --cluster main --dir "),
        (r#", "way": "init""#, "weft cluster init --name main --dir "),
        ("", "weft node join --cluster main --dir "),
    ] {
        std::fs::write(&mark, format!(r#"{{ "cluster": "main", "id": 7, "stamp": 9{way} }}"#))
            .expect("it can be written");
        let told = refused(&dir, &["--api", "127.0.0.1:0"]);
        assert!(told.contains(command), "{told}");
        assert!(!dir.join("config.redb").exists() && !dir.join("drive-0.data").exists(), "nothing was made");
    }
}

#[test]
fn a_member_is_not_told_to_the_cluster_at_an_address_that_is_none() {
    let scratch = Scratch::new("anywhere");
    let dir = scratch.file("node");
    std::fs::create_dir_all(&dir).expect("a directory can be made");
    let membership = r#"{ "cluster": "main", "id": 7, "endpoints": ["http://127.0.0.1:1"], "node": 0, "stage": "member", "incarnation": 1 }"#;
    std::fs::write(dir.join("cluster.json"), membership).expect("it can be written");
    for (option, address) in [("--api", "0.0.0.0:7070"), ("--transport", "[::]:7071")] {
        let told = refused(&dir, &[option, address]);
        assert!(told.contains(option) && told.contains(address), "{told}");
        let file = scratch.file("weft.toml");
        std::fs::write(&file, format!("{} = \"{address}\"", option.trim_start_matches('-')))
            .expect("it can be written");
        let told = refused(&dir, &["--config", file.to_str().expect("a plain name")]);
        assert!(told.contains(option) && told.contains(address), "{told}");
    }
}

#[test]
fn a_node_whose_terminal_goes_stops_cleanly() {
    let scratch = Scratch::new("hangup");
    let dir = scratch.file("node");
    let mut node = Node::start(&dir, &["--drive-size", "256M"]);
    assert!(dir.join("api").exists());
    // Of a shell and of the kernel; a session that ends says it in yet another way.
    for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGHUP] {
        node.signal(signal);
    }
    wait_until("it has ended", || !node.is_running());
    assert!(!dir.join("api").exists(), "nothing is left of the run: {}", node.log_text());
    assert!(!node.log_text().contains("at once"), "{}", node.log_text());
}

#[test]
fn vdisks_on_drives_that_are_there_are_served_although_one_waits_for_a_drive_that_is_away() {
    let scratch = Scratch::new("one-away");
    let dir = scratch.file("node");
    let node = Node::start(&dir, &["--drives", "2", "--drive-size", "256M", "--rf", "2"]);
    let (both, one) = (scratch.socket("both"), scratch.socket("one"));
    // Of vDisks with one copy, some have their log on the second drive.
    let names: Vec<String> = (0..8).map(|number| format!("one{number}")).collect();
    node.export_new("both", "32M", &both);
    for name in &names {
        node.weft(&["vdisk", "create", name, "--size", "16M", "--rf", "1"]);
        node.export(name, &one.with_extension(name));
        write(&nbd_uri(&one.with_extension(name), name), 3, "0 1M");
    }
    write(&nbd_uri(&both, "both"), 7, "0 1M");
    node.kill();
    let (data, away) = (dir.join("drive-1.data"), dir.join("drive-1.away"));
    std::fs::rename(&data, &away).expect("a drive can be taken away");
    let node = Node::start(&dir, &[]);
    expect(&nbd_uri(&both, "both"), 7, "0 1M");
    write(&nbd_uri(&both, "both"), 8, "1M 1M");
    let listed = node.json(&["vdisk", "ls"]);
    let vdisks = listed.as_array().or_else(|| listed["vdisks"].as_array()).expect("a list");
    let waiting: Vec<&Value> = vdisks.iter().filter(|vdisk| vdisk["state"] == "opening").collect();
    assert!(!waiting.is_empty(), "some have what they need on the drive that is away: {listed:#}");
    for vdisk in waiting {
        let trouble = vdisk["trouble"].as_str().expect("a line");
        assert!(trouble.contains("drive 1"), "{vdisk:#}");
        let name = vdisk["name"].as_str().expect("it has a name");
        let shown = node.weft(&["vdisk", "show", name]);
        assert!(shown.contains("drive that is away (drive 1)"), "{shown}");
    }
    let told = node.weft(&["status"]);
    assert!(told.contains("is not served yet") && told.contains("drive 1"), "{told}");
    node.stop();
    std::fs::rename(&away, &data).expect("a drive can be brought back");
    let node = Node::start(&dir, &[]);
    for name in &names {
        expect(&nbd_uri(&one.with_extension(name), name), 3, "0 1M");
    }
    expect(&nbd_uri(&both, "both"), 8, "1M 1M");
    node.stop();
}

#[test]
fn a_node_goes_on_although_nobody_reads_what_it_tells() {
    let scratch = Scratch::new("unread");
    let dir = scratch.file("node");
    // A pipe that nobody reads, with room for a page or two.
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    // SAFETY: a plain call on an open descriptor.
    let set = unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&writer), libc::F_SETPIPE_SZ, 4096) };
    assert!(set >= 4096, "the pipe is small");
    let stderr = std::fs::File::from(std::os::fd::OwnedFd::from(writer));
    let mut child = spawn_node_telling(&dir, &["--drive-size", "256M", "--log", "trace"], stderr);
    await_ready(&mut child, &dir).expect("it starts");
    let run = |arguments: &[&str]| {
        let output = weft_output(&[arguments, &["--dir", dir.to_str().expect("a plain name")]].concat());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    };
    let socket = scratch.socket("v");
    run(&["vdisk", "create", "v", "--size", "32M"]);
    run(&["vdisk", "export", "v", "--nbd", &format!("unix:{}", socket.display())]);
    for number in 0..50 {
        run(&["vdisk", "create", &format!("v{number}"), "--size", "16M"]);
    }
    write(&nbd_uri(&socket, "v"), 7, "0 1M");
    expect(&nbd_uri(&socket, "v"), 7, "0 1M");
    run(&["down"]);
    wait_until("it has ended", || child.try_wait().expect("a child can be asked").is_some());
    let mut told = Vec::new();
    let mut reader = reader;
    std::io::Read::read_to_end(&mut reader, &mut told).expect("a pipe can be read");
    assert!(!told.is_empty(), "it told of something before the pipe was full");
}

#[test]
fn an_export_that_does_not_open_stays_trouble_until_it_is_ended() {
    let scratch = Scratch::new("export-trouble");
    let dir = scratch.file("node");
    let node = Node::start(&dir, &[]);
    node.weft(&["vdisk", "create", "v", "--size", "64M"]);
    let place =
        TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("there is a free port");
    node.weft(&["vdisk", "export", "v", "--nbd", &format!("tcp:{place}")]);
    node.weft(&["snapshot", "create", "v", "s"]);
    node.export("v@s", &scratch.socket("s"));
    node.stop();
    let _other = TcpListener::bind(place).expect("the node has gone");
    let node = Node::start(&dir, &[]);
    let told = || node.json(&["status"])["trouble"].to_string();
    let line = format!("vDisk v is not exported at tcp:{place}");
    wait_until("it is told", || told().contains(&line));
    node.weft(&["vdisk", "unexport", "v@s"]);
    assert!(told().contains(&line), "the export of a snapshot was another one: {}", told());
    node.weft(&["vdisk", "unexport", "v"]);
    assert!(!told().contains(&line), "nobody wants it any more: {}", told());
    node.stop();
}

#[test]
fn a_pipe_where_a_file_should_be_is_told_and_not_waited_for() {
    let scratch = Scratch::new("pipe");
    let dir = scratch.file("node");
    Node::start(&dir, &[]).stop();
    for name in ["drive-0.data", "drive-0.log", "lock"] {
        let (file, aside) = (dir.join(name), scratch.file(name));
        std::fs::rename(&file, &aside).expect("a rename works");
        crate::support::tool(&["mkfifo", file.to_str().expect("a plain name")]);
        let told = refused_with(1, &dir, &["--api", "127.0.0.1:0"]);
        assert!(told.contains(name) && told.contains("no file"), "{told}");
        std::fs::rename(&aside, &file).expect("a rename works");
    }
    Node::start(&dir, &[]).stop();
}
