//! `weft node ...`: the nodes of a cluster, as the node that is asked knows them.

use crate::arguments::{NodeCommand, Place};
use crate::client::Client;
use crate::cluster::{self, document};
use crate::emptying::{self, Begun, Left};
use crate::output::{self, Table};
use crate::status::{list, text};
use crate::trouble::Trouble;
use serde_json::{Value, json};
use weft_node::api::{ClusterDriveView, NodeView};

pub fn run(command: NodeCommand, json: bool) -> Result<(), Trouble> {
    match command {
        NodeCommand::Join(arguments) => cluster::join(arguments, json),
        NodeCommand::Ls { place } => ls(&place, json),
        NodeCommand::Drain { node, undo, no_wait, place } => drain(&place, &node, undo, !no_wait, json),
        NodeCommand::Remove { node, force, lose_data, place } => {
            remove(&place, &node, force.then_some(lose_data), json)
        }
    }
}

fn ls(place: &Place, json: bool) -> Result<(), Trouble> {
    let nodes = Client::find(place)?.get("/v1/nodes")?;
    if json {
        output::json(&nodes);
        return Ok(());
    }
    let nodes: Vec<NodeView> = document(nodes)?;
    table(&nodes).print();
    Ok(())
}

fn table(nodes: &[NodeView]) -> Table {
    let mut table = Table::new(&[
        "NODE",
        "NAME",
        "STATE",
        "SHARDS",
        "DRIVES",
        "VDISKS",
        "ZONE",
        "RACK",
        "STARTS",
        "API",
        "TRANSPORT",
    ]);
    for node in nodes {
        let dash = |text: &str| if text.is_empty() { "-".to_string() } else { text.to_string() };
        // Shards share an address as a rule: each is told once.
        let mut transport = node.transport.clone();
        transport.dedup();
        table.row(vec![
            node.node.to_string(),
            dash(&node.name),
            standing(node).to_string(),
            node.shards.to_string(),
            format!("{} of {} up", node.drives_up, node.drives),
            if node.storage_only { "storage only".to_string() } else { node.vdisks_served.to_string() },
            dash(&node.zone),
            dash(&node.rack),
            node.incarnation.to_string(),
            dash(&node.api),
            dash(&transport.join(",")),
        ]);
    }
    table
}

/// How a node stands, in a word or two.
pub fn standing(node: &NodeView) -> &'static str {
    match (node.state.as_str(), node.alive) {
        ("removed", _) => "removed",
        ("draining", _) if node.drained => "drained",
        ("draining", false) => "draining, away",
        ("draining", true) => "draining",
        (_, false) if node.incarnation == 0 => "never started",
        (_, false) => "away",
        (_, true) if !node.reachable_from_here => "up, not reached",
        (_, true) => "up",
    }
}

/// The number of the node that is meant by a number or a name.
pub fn resolve(client: &Client, wanted: &str) -> Result<u32, Trouble> {
    let nodes: Vec<NodeView> = document(client.get("/v1/nodes")?)?;
    find(&nodes, wanted).map(|node| node.node)
}

fn find<'a>(nodes: &'a [NodeView], wanted: &str) -> Result<&'a NodeView, Trouble> {
    if let Ok(number) = wanted.parse::<u32>() {
        let numbered = nodes.iter().find(|node| node.node == number);
        return numbered
            .ok_or_else(|| Trouble::bad_input(format!("no node {number}: `weft node ls` lists them")));
    }
    let mut named = nodes.iter().filter(|node| node.name == wanted && node.state != "removed");
    match (named.next(), named.next()) {
        (Some(node), None) => Ok(node),
        (Some(one), Some(other)) => Err(Trouble::bad_input(format!(
            "nodes {} and {} are both called {wanted}: use the number",
            one.node, other.node
        ))),
        (None, _) => {
            Err(Trouble::bad_input(format!("no node is called `{wanted}`: `weft node ls` lists them")))
        }
    }
}

fn drain(place: &Place, wanted: &str, undo: bool, wait: bool, json: bool) -> Result<(), Trouble> {
    let client = Client::find(place)?;
    let node = resolve(&client, wanted)?;
    let answer = client.post(&format!("/v1/nodes/{node}/drain"), &json!({ "undo": undo }))?;
    if undo {
        tell(json, &answer, || format!("node {node} gets its share again"));
        return Ok(());
    }
    if !wait {
        tell(json, &answer, || {
            format!("node {node} is being emptied; `weft node ls` shows when it is drained")
        });
        return Ok(());
    }
    let undoing = format!("`weft node drain {node} --undo` takes it back");
    let (what, mut begun) = (format!("node {node}"), Begun::default());
    let last = emptying::wait(&what, &undoing, || {
        let (left, found) = left(&client, node)?;
        begun.note(&what, found["state"] == "draining", "somebody took it back or removed it")?;
        Ok((left, found))
    })?;
    tell(json, &last, || {
        format!("node {node} is drained; `weft node remove {node}` takes it out of the cluster")
    });
    Ok(())
}

/// What is still on the node, and its document.
fn left(client: &Client, node: u32) -> Result<(Left, Value), Trouble> {
    let nodes = client.get("/v1/nodes")?;
    let found = list(&nodes).iter().find(|entry| entry["node"] == node).cloned();
    let found = found.ok_or_else(|| Trouble::bad_input(format!("node {node} was removed meanwhile")))?;
    let view: NodeView = document(found.clone())?;
    let drives: Vec<ClusterDriveView> = document(client.get("/v1/drives")?)?;
    let mine = drives.iter().filter(|drive| drive.node == node);
    let groups = mine.map(|drive| drive.groups + drive.former).sum();
    Ok((Left { vdisks: view.vdisks_served, groups, done: view.drained }, found))
}

/// `forced`: by force, and whether with data of which there is no other copy.
fn remove(place: &Place, wanted: &str, forced: Option<bool>, json: bool) -> Result<(), Trouble> {
    let client = Client::find(place)?;
    let node = resolve(&client, wanted)?;
    let query = match forced {
        None => "",
        Some(false) => "?force=true",
        Some(true) => "?force=true&lose_data=true",
    };
    let answer = client.delete(&format!("/v1/nodes/{node}{query}"))?;
    tell(json, &answer, || {
        let note = text(&answer["note"]);
        let note = if note == "-" { String::new() } else { format!("; {note}") };
        format!("node {node} is no longer in the cluster{note}")
    });
    Ok(())
}

pub fn tell(json: bool, answer: &Value, line: impl FnOnce() -> String) {
    if json {
        output::json(answer);
    } else {
        output::line(&line());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_node(node: u32, name: &str, state: &str) -> NodeView {
        NodeView { node, name: name.to_string(), state: state.to_string(), ..NodeView::default() }
    }

    #[test]
    fn a_node_is_found_by_number_or_name() {
        let nodes = [
            a_node(0, "a", "removed"),
            a_node(1, "a", "in"),
            a_node(2, "twin", "in"),
            a_node(3, "twin", "draining"),
        ];
        let found = |wanted| find(&nodes, wanted).map(|node| node.node).map_err(|trouble| trouble.line());
        assert_eq!(found("0"), Ok(0));
        assert_eq!(found("a"), Ok(1), "who has left does not keep its name");
        assert!(found("twin").is_err_and(|line| line.contains("nodes 2 and 3")));
        assert!(found("7").is_err() && found("b").is_err() && found("-1").is_err());
    }

    #[test]
    fn a_node_stands_in_one_way() {
        let node = |state, alive, incarnation, drained| NodeView {
            alive,
            incarnation,
            drained,
            reachable_from_here: true,
            ..a_node(1, "a", state)
        };
        assert_eq!(standing(&node("in", false, 0, false)), "never started");
        assert_eq!(standing(&node("in", false, 3, false)), "away");
        assert_eq!(standing(&node("in", true, 3, false)), "up");
        assert_eq!(
            standing(&NodeView { reachable_from_here: false, ..node("in", true, 3, false) }),
            "up, not reached"
        );
        assert_eq!(standing(&node("draining", true, 3, false)), "draining");
        assert_eq!(standing(&node("draining", false, 3, true)), "drained");
        assert_eq!(standing(&node("removed", false, 3, true)), "removed");
    }
}
