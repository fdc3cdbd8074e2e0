//! `weft group ...`: vDisks whose snapshots are taken together.

use crate::arguments::GroupCommand;
use crate::client::{Client, path_part};
use crate::output::{self, Table};
use crate::status::{list, text};
use crate::trouble::Trouble;
use crate::vdisk::tell;
use serde_json::{Value, json};

pub fn run(command: GroupCommand, json: bool) -> Result<(), Trouble> {
    match command {
        GroupCommand::Create { group, vdisks, place } => {
            let body = json!({ "name": group, "vdisks": vdisks });
            let made = Client::find(&place)?.post("/v1/consistency", &body)?;
            tell(json, &made, || format!("created {group}: {}", names(&made["vdisks"])));
        }
        GroupCommand::Add { group, vdisks, place } => {
            let changed = change(&Client::find(&place)?, &group, &json!({ "add": vdisks }))?;
            tell(json, &changed, || format!("{group}: {}", names(&changed["vdisks"])));
        }
        GroupCommand::Remove { group, vdisks, place } => {
            let changed = change(&Client::find(&place)?, &group, &json!({ "remove": vdisks }))?;
            tell(json, &changed, || format!("{group}: {}", names(&changed["vdisks"])));
        }
        GroupCommand::Ls { place } => {
            let groups = Client::find(&place)?.get("/v1/consistency")?;
            if json {
                output::json(&groups);
            } else if list(&groups).is_empty() {
                output::line("no groups; make one with `weft group create NAME VDISK...`");
            } else {
                let mut table = Table::new(&["GROUP", "VDISKS"]);
                for group in list(&groups) {
                    table.row(vec![text(&group["name"]), names(&group["vdisks"])]);
                }
                table.print();
            }
        }
        GroupCommand::Rm { group, place } => {
            let answer = Client::find(&place)?.delete(&format!("/v1/consistency/{}", path_part(&group)))?;
            tell(json, &answer, || format!("removed {group}; its vDisks and snapshots stay"));
        }
        GroupCommand::Snapshot { group, name, place } => {
            let body = name.map_or_else(|| json!({}), |name| json!({ "name": name }));
            let path = format!("/v1/consistency/{}/snapshots", path_part(&group));
            let taken = Client::find(&place)?.post(&path, &body)?;
            tell(json, &taken, || {
                let names: Vec<String> =
                    list(&taken).iter().map(|snapshot| text(&snapshot["name"])).collect();
                format!("took {}", names.join(", "))
            });
        }
    }
    Ok(())
}

fn change(client: &Client, group: &str, body: &Value) -> Result<Value, Trouble> {
    client.post(&format!("/v1/consistency/{}", path_part(group)), body)
}

fn names(vdisks: &Value) -> String {
    let names: Vec<String> = list(vdisks).iter().map(text).collect();
    if names.is_empty() { "no vDisks".to_string() } else { names.join(", ") }
}
