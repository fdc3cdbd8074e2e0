//! `weft cluster ...` and `weft node join`: making a cluster, joining it, and seeing how it is.

mod page;

use crate::arguments::{ClusterCommand, InitArguments, JoinArguments, NodeArguments, Place};
use crate::client::Client;
use crate::output;
use crate::trouble::Trouble;
use page::Looks;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;
use weft_node::api::{ClusterView, NodeView};
use weft_node::join::{self, InitSettings, JoinError, JoinSettings, Made, MadeNode, NodeOptions};

/// Between two pages of `--watch`.
const WATCH: Duration = Duration::from_secs(2);

pub fn run(command: ClusterCommand, json: bool) -> Result<(), Trouble> {
    match command {
        ClusterCommand::Init(arguments) => init(arguments, json),
        ClusterCommand::AcceptRecords { etcd, name, lose_data } => {
            accept_records(&endpoints(&etcd.etcd), &name, lose_data, json)
        }
        ClusterCommand::Status { watch, place } => status(&place, watch, json),
        ClusterCommand::Set { away_after, place } => {
            let answer = Client::find(&place)?.post("/v1/cluster", &json!({ "away_seconds": away_after }))?;
            if json {
                output::json(&answer);
            } else {
                output::line(answer["note"].as_str().unwrap_or_default());
            }
            Ok(())
        }
    }
}

fn init(arguments: InitArguments, json: bool) -> Result<(), Trouble> {
    let settings = InitSettings {
        endpoints: endpoints(&arguments.etcd.etcd),
        name: arguments.name,
        dir: arguments.dir,
        node: node_options(arguments.node_name, arguments.node),
    };
    let made = join::init(&settings).map_err(|error| trouble(&error))?;
    if json {
        output::json(&made_json(&made));
        return Ok(());
    }
    output::line(&format!("made the cluster {} in {}", made.cluster, settings.endpoints.join(", ")));
    match &made.node {
        Some(node) => tell_node(&made.cluster, node),
        None => output::line(&format!(
            "it has no nodes yet: `weft node join --etcd {} --cluster {} --dir DIR` makes one",
            settings.endpoints.join(","),
            made.cluster
        )),
    }
    Ok(())
}

fn accept_records(endpoints: &[String], name: &str, lose_data: bool, json: bool) -> Result<(), Trouble> {
    if !lose_data {
        let vdisks = join::acceptable_records(endpoints, name).map_err(|error| trouble(&error))?;
        return Err(Trouble::bad_input(format!(
            "the records of the cluster {name} in this etcd have {vdisks} vDisks; what was done after them may be lost when nodes go by \
             them: if there are no newer ones any more, add --lose-data (see --help)"
        )));
    }
    let vdisks = join::accept_records(endpoints, name).map_err(|error| trouble(&error))?;
    if json {
        output::json(&json!({ "cluster": name, "vdisks": vdisks }));
    } else {
        output::line(&format!(
            "nodes go by these records of the cluster {name} from now on; they have {vdisks} vDisks"
        ));
        output::line(
            "start all nodes (`weft up`), and look at `weft status` of each before you make anything new",
        );
    }
    Ok(())
}

pub fn join(arguments: JoinArguments, json: bool) -> Result<(), Trouble> {
    let settings = JoinSettings {
        endpoints: endpoints(&arguments.etcd.etcd),
        name: arguments.cluster,
        dir: arguments.dir,
        node: node_options(arguments.name, arguments.node),
    };
    let made = join::join(&settings).map_err(|error| trouble(&error))?;
    if json {
        output::json(&made_json(&made));
    } else if let Some(node) = &made.node {
        tell_node(&made.cluster, node);
    }
    Ok(())
}

/// `10.0.0.1:2379` means `http://10.0.0.1:2379`.
fn endpoints(given: &[String]) -> Vec<String> {
    let whole = |text: &String| {
        let text = text.trim();
        if text.contains("://") { text.to_string() } else { format!("http://{text}") }
    };
    given.iter().map(whole).collect()
}

fn node_options(name: Option<String>, arguments: NodeArguments) -> NodeOptions {
    NodeOptions {
        name,
        api: arguments.api,
        transport: arguments.transport,
        shards: arguments.shards,
        zone: arguments.zone,
        rack: arguments.rack,
        storage_only: arguments.storage_only,
    }
}

fn trouble(error: &JoinError) -> Trouble {
    if error.is_of_input() {
        Trouble::bad_input(error.to_string())
    } else {
        Trouble::failed(error.to_string())
    }
}

fn made_json(made: &Made) -> Value {
    let node = made.node.as_ref().map(|node| {
        json!({
            "node": node.record.node,
            "name": node.record.name,
            "dir": node.dir.display().to_string(),
            "api": node.record.api,
            "transport": node.record.transport,
            "drives_brought": node.brought.map_or(0, |brought| brought.drives),
            "vdisks_brought": node.brought.map_or(0, |brought| brought.vdisks),
            "note": node.note,
        })
    });
    json!({ "cluster": made.cluster, "id": made.id, "node": node })
}

fn tell_node(cluster: &str, node: &MadeNode) {
    let (record, dir) = (&node.record, shell_word(&node.dir));
    output::line(&format!(
        "node {} ({}) of {cluster}: API {}, transport {}",
        record.node,
        record.name,
        record.api,
        record.transport.first().map_or("-", String::as_str)
    ));
    match node.brought {
        Some(brought) => {
            output::line(&format!(
                "it brought {} drives and {} vDisks with their data",
                brought.drives, brought.vdisks
            ));
            output::line(&format!("start it with `weft up --dir {dir}`"));
        }
        None => output::line(&format!(
            "start it with `weft up --dir {dir}`: it makes a drive of 16 GiB there, or the drives that you say (`--drives N \
             --drive-size SIZE`, or `--drive DEVICE`)"
        )),
    }
    if !node.note.is_empty() {
        output::line(&format!("note: {}", node.note));
    }
}

/// For lines that people copy.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,@".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// A document of the API, whatever fields this version knows of it.
pub fn document<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, Trouble> {
    serde_json::from_value(value).map_err(|error| {
        Trouble::failed(format!(
            "the node's answer is not understood ({error}); use the `weft` of its version"
        ))
    })
}

fn status(place: &Place, watch: bool, json: bool) -> Result<(), Trouble> {
    let client = Client::find(place)?;
    let looks = Looks::of_stdout();
    if !watch {
        let (cluster, nodes) = ask(&client)?;
        return show(cluster, nodes, json, looks);
    }
    let mut answered = false;
    loop {
        match ask(&client) {
            Ok((cluster, nodes)) => {
                answered = true;
                if !json {
                    clear();
                }
                show(cluster, nodes, json, looks)?;
            }
            // Watching goes on while the node is away: that is when people watch.
            Err(trouble) if answered => output::complain(trouble.line()),
            Err(trouble) => return Err(trouble),
        }
        std::thread::sleep(WATCH);
    }
}

fn ask(client: &Client) -> Result<(Value, Value), Trouble> {
    Ok((client.get("/v1/cluster")?, client.get("/v1/nodes")?))
}

fn show(cluster: Value, nodes: Value, json: bool, looks: Looks) -> Result<(), Trouble> {
    if json {
        output::json(&json!({ "cluster": cluster, "nodes": nodes }));
        return Ok(());
    }
    let cluster: ClusterView = document(cluster)?;
    let nodes: Vec<NodeView> = document(nodes)?;
    output::write(page::render(&cluster, &nodes, looks).as_bytes());
    Ok(())
}

/// The next page takes the place of the last one on a terminal, and follows it elsewhere.
fn clear() {
    if std::io::stdout().is_terminal() {
        output::write(b"\x1b[H\x1b[2J");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_needs_no_scheme() {
        let given = ["10.0.0.1:2379".to_string(), " http://b:1".to_string(), "https://c:2".to_string()];
        assert_eq!(endpoints(&given), ["http://10.0.0.1:2379", "http://b:1", "https://c:2"]);
    }

    #[test]
    fn lines_can_be_copied_into_a_shell() {
        assert_eq!(shell_word(Path::new("/a/b-1")), "/a/b-1");
        assert_eq!(shell_word(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }
}
