//! The commands of a cluster against answers that this test makes up: what is asked in which order, and what people
//! are told.

use crate::support::weft_output;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A node's API: answers what `answer` says to (method and path, body, number of the request).
struct Api {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Api {
    fn new(answer: impl Fn(&str, &Value, usize) -> (u16, Value) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Some((request, body)) = receive(&stream) else { continue };
                let mut log = log.lock().expect("no thread panics");
                let (status, document) = answer(&request, &body, log.len());
                log.push(if body.is_null() { request } else { format!("{request} {body}") });
                send(stream, status, &document);
            }
        });
        Self { address, asked }
    }

    /// What was asked so far, without looking around.
    fn orders(&self) -> Vec<String> {
        let asked = self.asked.lock().expect("no thread panics");
        asked.iter().filter(|request| !request.starts_with("GET")).cloned().collect()
    }

    /// Exit code, stdout and stderr of `weft ARGUMENTS` at this node.
    fn weft(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = weft_output(&[arguments, &["--api", &self.address]].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
    }
}

fn receive(stream: &TcpStream) -> Option<(String, Value)> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let request = line.rsplit_once(" HTTP/")?.0.to_string();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let header = header.trim().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(text) = header.strip_prefix("content-length:") {
            length = text.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((request, serde_json::from_slice(&body).unwrap_or(Value::Null)))
}

fn send(mut stream: TcpStream, status: u16, document: &Value) {
    let body = document.to_string();
    let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
}

fn nodes(state: &str, drained: bool) -> Value {
    json!([
        { "node": 0, "name": "db-0", "state": "in", "alive": true, "reachable_from_here": true },
        { "node": 7, "name": "db-7", "state": state, "alive": true, "reachable_from_here": true, "drained": drained },
    ])
}

/// Drive 3 is in node 7 and keeps copies of so many groups.
fn drives(groups: usize) -> Value {
    drives_with(groups, groups > 0, true)
}

fn drives_with(groups: usize, needed: bool, leaving: bool) -> Value {
    json!([
        { "drive": 1, "node": 0, "state": "up", "groups": 32, "needed": true },
        { "drive": 3, "node": 7, "state": "up", "groups": groups, "former": 0, "needed": needed, "leaving": leaving },
    ])
}

#[test]
fn a_node_is_drained_by_name_and_waited_for() {
    let api = Api::new(|request, _, number| match request {
        // The view of the node that is asked is behind for a moment; later it is away for a moment.
        "GET /v1/nodes" if number < 3 => (200, nodes("in", false)),
        "GET /v1/nodes" if number == 5 => (503, json!({ "error": "starting" })),
        "GET /v1/nodes" => (200, nodes("draining", number > 8)),
        "GET /v1/drives" => (200, drives(20_usize.saturating_sub(number))),
        _ => (200, json!({})),
    });
    let (code, told, complaints) = api.weft(&["node", "drain", "db-7"]);
    assert_eq!(code, 0, "{complaints}");
    assert!(told.contains("node 7 is drained") && told.contains("weft node remove 7"), "{told}");
    assert!(complaints.contains("emptying node 7: copies of "), "it says how far it is: {complaints}");
    assert_eq!(api.orders(), [r#"POST /v1/nodes/7/drain {"undo":false}"#]);
}

#[test]
fn draining_ends_when_somebody_takes_it_back() {
    let api = Api::new(|request, _, number| match request {
        "GET /v1/nodes" => (200, nodes(if number < 5 { "draining" } else { "in" }, false)),
        "GET /v1/drives" => (200, drives(9)),
        _ => (200, json!({})),
    });
    let (code, _, complaints) = api.weft(&["node", "drain", "7"]);
    assert!(code == 2 && complaints.contains("somebody took it back"), "{code}: {complaints}");
}

#[test]
fn draining_can_be_begun_only_and_taken_back() {
    let api = Api::new(|request, _, _| match request {
        "GET /v1/nodes" => (200, nodes("in", false)),
        _ => (200, json!({ "node": 7 })),
    });
    assert_eq!(api.weft(&["node", "drain", "7", "--no-wait"]).0, 0);
    assert_eq!(api.weft(&["node", "drain", "7", "--undo"]).0, 0);
    assert_eq!(api.weft(&["node", "drain", "nobody"]).0, 2);
    assert_eq!(api.weft(&["node", "remove", "db-7", "--force"]).0, 0);
    assert_eq!(
        api.orders(),
        [
            r#"POST /v1/nodes/7/drain {"undo":false}"#,
            r#"POST /v1/nodes/7/drain {"undo":true}"#,
            "DELETE /v1/nodes/7?force=true"
        ]
    );
}

#[test]
fn a_drive_is_emptied_before_it_is_forgotten() {
    let api = Api::new(|request, _, number| match request {
        "GET /v1/drives" => (200, drives(4_usize.saturating_sub(number))),
        "DELETE /v1/drives/3" if number < 5 => (409, json!({ "error": "drive 3 is not empty" })),
        _ => (200, json!({ "done": true })),
    });
    let (code, told, complaints) = api.weft(&["drive", "remove", "3"]);
    assert!(code == 0 && told.contains("drive 3 is empty"), "{code}: {told}{complaints}");
    assert_eq!(api.orders(), [r#"POST /v1/drives/3/drain {"undo":false}"#, "DELETE /v1/drives/3"]);
}

#[test]
fn a_drive_without_groups_is_waited_for_while_a_log_names_it() {
    let is_needed = |number: usize| number < 6;
    let api = Api::new(move |request, _, number| match request {
        "GET /v1/drives" => (200, drives_with(4_usize.saturating_sub(number), is_needed(number), true)),
        "DELETE /v1/drives/3" if is_needed(number) => (409, json!({ "error": "drive 3 is still needed" })),
        _ => (200, json!({ "done": true })),
    });
    let (code, told, complaints) = api.weft(&["drive", "remove", "3"]);
    assert!(code == 0 && told.contains("drive 3 is empty"), "{code}: {told}{complaints}");
    assert_eq!(api.orders(), [r#"POST /v1/drives/3/drain {"undo":false}"#, "DELETE /v1/drives/3"]);
}

#[test]
fn a_drive_that_somebody_takes_back_is_not_forgotten() {
    let api = Api::new(|request, _, number| match request {
        // It was taken back when it was all but empty.
        "GET /v1/drives" if number < 4 => (200, drives(4)),
        "GET /v1/drives" => (200, drives_with(0, false, false)),
        _ => (200, json!({ "done": true })),
    });
    let (code, _, complaints) = api.weft(&["drive", "remove", "3"]);
    assert!(code == 2 && complaints.contains("somebody took it back"), "{code}: {complaints}");
    assert_eq!(api.orders(), [r#"POST /v1/drives/3/drain {"undo":false}"#]);
}

#[test]
fn a_dead_drive_is_given_up_at_once() {
    let api = Api::new(|request, _, _| match request {
        "GET /v1/drives" => (200, drives(4)),
        _ => (200, json!({ "done": true })),
    });
    assert_eq!(api.weft(&["drive", "remove", "3", "--lost"]).0, 0);
    assert_eq!(api.weft(&["drive", "remove", "4"]).0, 2, "there is no such drive");
    assert_eq!(api.orders(), ["DELETE /v1/drives/3?lost=true"]);
}

#[test]
fn what_was_given_up_is_not_taken_back() {
    let api = Api::new(|request, _, _| match request {
        "GET /v1/drives" => {
            (200, json!([{ "drive": 3, "node": 7, "state": "lost", "groups": 0, "former": 0 }]))
        }
        _ => (200, json!({ "done": true })),
    });
    let (code, told, complaints) = api.weft(&["drive", "remove", "3", "--undo"]);
    assert!(code == 2 && complaints.contains("given up as lost"), "{code}: {told}{complaints}");
    assert_eq!(complaints.lines().count(), 1, "{complaints}");
    assert_eq!(api.orders(), [""; 0], "nothing was asked for");
    assert_eq!(api.weft(&["drive", "remove", "3"]).0, 0, "it can be forgotten");
    assert_eq!(api.orders(), ["DELETE /v1/drives/3"]);
}

#[test]
fn drives_are_added_with_paths_that_the_node_understands() {
    let api = Api::new(|_, _, _| (201, json!([{ "drive": 4 }, { "drive": 5 }])));
    let (code, told, _) =
        api.weft(&["drive", "add", "--files", "1", "--size", "1G", "--path", "/dev/../dev/x"]);
    assert!(code == 0 && told.contains("added drives 4, 5"), "{told}");
    let orders = api.orders();
    assert!(orders[0].contains(r#""files":1"#) && orders[0].contains(r#""size":1073741824"#), "{orders:?}");
    api.weft(&["drive", "add", "--path", "x.img"]);
    let orders = api.orders();
    let body = orders[1].strip_prefix("POST /v1/drives ").expect("a body");
    let body: Value = serde_json::from_str(body).expect("it is JSON");
    let path = body["paths"][0].as_str().expect("a path");
    assert!(path.starts_with('/') && path.ends_with("/x.img"), "{path}");
    assert_eq!(body["files"], 0, "no files were asked for");
}

#[test]
fn a_vdisk_is_moved_to_a_node_by_name() {
    let api = Api::new(|request, _, _| match request {
        "GET /v1/nodes" => (200, nodes("in", false)),
        _ => (200, json!({ "name": "v", "owner_node": 7, "served": false })),
    });
    let (code, told, _) = api.weft(&["vdisk", "move", "v", "--to", "db-7"]);
    assert!(code == 0 && told.contains("moves to node 7"), "it is not there yet: {told}");
    assert_eq!(api.orders(), [r#"POST /v1/vdisks/v/move {"to":7}"#]);
}

#[test]
fn a_node_that_stands_alone_says_so() {
    let api = Api::new(|_, _, _| (409, json!({ "error": "this node is not a member of a cluster" })));
    for command in [&["cluster", "status"][..], &["node", "ls"], &["drive", "ls"], &["pg", "ls"]] {
        let (code, told, complaints) = api.weft(command);
        assert_eq!((code, told.as_str()), (2, ""), "{command:?}");
        assert_eq!(complaints, "weft: this node is not a member of a cluster\n", "{command:?}");
    }
}

#[test]
fn the_state_of_a_cluster_is_a_page_or_json() {
    let api = Api::new(|request, _, _| match request {
        // Of a newer version: it tells more, and not everything that was told before.
        "GET /v1/cluster" => (200, json!({ "name": "main", "health": "ok", "groups": 8, "weather": "fine" })),
        "GET /v1/nodes" => (200, nodes("in", false)),
        "GET /v1/groups" => (200, json!([{ "group": 1, "whole": true }, { "group": 2, "former": [5] }])),
        _ => (404, json!({ "error": "there is nothing at this path" })),
    });
    let (code, page, complaints) = api.weft(&["cluster", "status"]);
    assert_eq!(code, 0, "{complaints}");
    assert!(page.starts_with("cluster main: OK\n") && page.contains("db-7"), "{page}");
    let (_, text, _) = api.weft(&["cluster", "status", "--json"]);
    let both: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(both["cluster"]["weather"], "fine", "nothing is left away");
    assert_eq!(both["nodes"][1]["name"], "db-7");
    let (_, text, _) = api.weft(&["pg", "ls", "--unsettled", "--json"]);
    let groups: Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(groups, json!([{ "group": 2, "former": [5] }]));
}

#[test]
fn a_device_of_another_machine_is_not_printed_in_any_form() {
    let api =
        Api::new(|_, _, _| (200, json!({ "device": "/dev/loop7", "read_only": false, "boot": "another" })));
    for form in [&[][..], &["--json"]] {
        let (code, told, complaints) = api.weft(&[&["vdisk", "attach", "v"][..], form].concat());
        assert_eq!((code, told.as_str()), (1, ""), "{form:?}: {complaints}");
        assert!(complaints.contains("not on this one"), "{form:?}: {complaints}");
    }
}
