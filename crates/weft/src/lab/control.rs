//! What the lab's scenarios ask of a node, said to its API.

use crate::client::{Client, path_part};
use serde_json::json;
use std::path::Path;
use weft_lab::NodeControl;

pub struct Node {
    client: Client,
    pid: Option<u32>,
}

impl Node {
    pub fn new(client: Client, pid: Option<u32>) -> Node {
        Node { client, pid }
    }
}

impl NodeControl for Node {
    fn create(&self, vdisk: &str, bytes: u64, socket: &Path) -> Result<String, String> {
        let path = format!("/v1/vdisks/{}", path_part(vdisk));
        self.client.post("/v1/vdisks", &json!({ "name": vdisk, "size": bytes })).map_err(|why| why.line())?;
        let body = json!({ "address": format!("unix:{}", socket.display()), "read_only": false });
        let exported = self.client.post(&format!("{path}/exports"), &body);
        match exported.map(|export| export["uri"].as_str().map(str::to_string)) {
            Ok(Some(uri)) => Ok(uri),
            other => {
                // It was made a moment ago, and nobody else will remove it.
                let _ = self.client.delete(&format!("{path}?force=true"));
                Err(other.err().map_or_else(|| "the node named no address".to_string(), |why| why.line()))
            }
        }
    }

    fn group(&self, group: &str, vdisks: &[String]) -> Result<(), String> {
        let body = json!({ "name": group, "vdisks": vdisks });
        self.client.post("/v1/consistency", &body).map(|_| ()).map_err(|why| why.line())
    }

    fn snapshot(&self, group: &str, name: &str) -> Result<(), String> {
        let path = format!("/v1/consistency/{}/snapshots", path_part(group));
        self.client.post(&path, &json!({ "name": name })).map(|_| ()).map_err(|why| why.line())
    }

    fn remove_group(&self, group: &str) -> Result<(), String> {
        let path = format!("/v1/consistency/{}", path_part(group));
        self.client.delete(&path).map(|_| ()).map_err(|why| why.line())
    }

    fn remove(&self, vdisk: &str) -> Result<(), String> {
        let path = format!("/v1/vdisks/{}?force=true&with_snapshots=true", path_part(vdisk));
        self.client.delete(&path).map(|_| ()).map_err(|why| why.line())
    }

    fn pid(&self) -> Option<u32> {
        self.pid
    }

    fn in_cluster(&self) -> bool {
        self.client.get("/v1/cluster").is_ok_and(|cluster| cluster["this_node"].is_u64())
    }
}
