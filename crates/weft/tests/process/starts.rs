//! Directories and addresses that a node does not start with, and leaves as they are.

use crate::support::{Node, Scratch, wait_until, weft_output};
use std::path::Path;

/// What `weft up` says when it refuses, in one line and with exit code 2.
fn refused(dir: &Path, arguments: &[&str]) -> String {
    let line = ["up", "--dir", dir.to_str().expect("a plain name")];
    let output = weft_output(&[&line[..], arguments].concat());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{told}");
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
    node.signal(libc::SIGHUP);
    wait_until("it has ended", || !node.is_running());
    assert!(!dir.join("api").exists(), "nothing is left of the run: {}", node.log_text());
}
