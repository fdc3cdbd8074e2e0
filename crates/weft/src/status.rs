//! `weft status` and `weft down`.

use crate::arguments::Place;
use crate::client::Client;
use crate::output::{self, Table};
use crate::size;
use crate::trouble::Trouble;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};
use weft_node::api::is_drive_up;

/// A node settles its vDisks for some seconds at most when it stops; this is well above.
const STOP_SECONDS: u64 = 60;

pub fn status(place: &Place, json: bool) -> Result<(), Trouble> {
    let status = Client::find(place)?.get("/v1/status")?;
    if json {
        output::json(&status);
    } else {
        show(&status);
    }
    Ok(())
}

fn show(status: &Value) {
    let drives = list(&status["drives"]);
    let up = drives.iter().filter(|drive| is_drive_up(&text(&drive["state"]))).count();
    output::line(&format!(
        "{} since {} s: drives up {up} of {}, vDisks {}, copies of new vDisks {}, directory {}",
        text(&status["state"]),
        status["uptime_us"].as_u64().unwrap_or(0) / 1_000_000,
        drives.len(),
        text(&status["vdisks"]),
        text(&status["factor"]),
        text(&status["dir"]),
    ));
    let mut table = Table::new(&["DRIVE", "STATE", "SHARD", "LOG", "DATA", "FREE", "PLACE", "REASON"]);
    for drive in drives {
        table.row(vec![
            text(&drive["drive"]),
            text(&drive["state"]),
            text(&drive["shard"]),
            bytes(&drive["log_bytes"]),
            bytes(&drive["data_bytes"]),
            bytes(&drive["free_bytes"]),
            text(&drive["place"]),
            text(&drive["reason"]),
        ]);
    }
    table.print();
    for trouble in list(&status["trouble"]) {
        output::line(&format!("trouble: {}", text(trouble)));
    }
}

/// The entries of a JSON list; nothing if it is none.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[][..], Vec::as_slice)
}

/// A cell of a table: nothing is shown as "-".
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_string(),
        Value::String(text) if text.is_empty() => "-".to_string(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Where something is attached, as `/dev/loop3`, or the node that alone knows.
pub fn device(attached: &Value) -> String {
    match (attached["device"].as_str(), attached["node"].as_u64()) {
        (Some(""), Some(node)) => format!("on node {node}"),
        (Some(device), Some(node)) => format!("{device} on node {node}"),
        (Some(device), _) => device.to_string(),
        (None, _) => "-".to_string(),
    }
}

pub fn bytes(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_string(), size::show)
}

/// A process that has ended but that nobody has waited for yet counts as gone.
fn is_alive(pid: u64) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state stands behind the name, which is in parentheses and may hold anything.
    text.rsplit_once(')').is_some_and(|(_, fields)| !fields.trim_start().starts_with(['Z', 'X']))
}

/// Whether a process of this machine has the lock of a node's directory open, as the node has that runs there.
fn has_locked(pid: u64, dir: &Path) -> bool {
    let Ok(lock) = dir.join("lock").canonicalize() else { return false };
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
    files
        .into_iter()
        .flatten()
        .flatten()
        .any(|file| std::fs::read_link(file.path()).is_ok_and(|it| it == lock))
}

/// Asks the node to stop, and waits until it has.
pub fn down(place: &Place, json: bool) -> Result<(), Trouble> {
    let client = Client::find(place)?;
    // Of a node on another machine, or in a container, the number may be that of any process here.
    let process = client.get("/v1/status")?["pid"].as_u64();
    let process = process.filter(|&pid| client.dir().is_some_and(|dir| has_locked(pid, dir)));
    client.post("/v1/shutdown", &json!({}))?;
    let deadline = Instant::now() + Duration::from_secs(STOP_SECONDS);
    loop {
        // Without a process to look at, the API is the last thing that goes.
        if !client.is_there() && !process.is_some_and(is_alive) {
            break;
        }
        if Instant::now() > deadline {
            return Err(Trouble::failed(format!(
                "the node has not stopped within {STOP_SECONDS} s; see its log for what it waits for"
            )));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    if json {
        output::json(&json!({ "stopped": true }));
    } else {
        output::line("stopped; the data stays");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_has_the_lock_is_the_node_of_a_directory() {
        let dir = std::env::temp_dir().join(format!("weft-lock-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory can be made");
        let own = u64::from(std::process::id());
        assert!(!has_locked(own, &dir), "nobody has made the lock");
        let lock = std::fs::File::create(dir.join("lock")).expect("a file can be made");
        assert!(has_locked(own, &dir) && !has_locked(1, &dir));
        drop(lock);
        assert!(!has_locked(own, &dir));
        std::fs::remove_dir_all(&dir).expect("it is there");
    }
}
