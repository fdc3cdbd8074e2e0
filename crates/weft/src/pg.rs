//! `weft pg ls`: which drives hold copies together.

use crate::arguments::PgCommand;
use crate::client::Client;
use crate::cluster::document;
use crate::output::{self, Table};
use crate::status::list;
use crate::trouble::Trouble;
use serde_json::Value;
use weft_node::api::GroupPlaceView;

pub fn run(command: PgCommand, json: bool) -> Result<(), Trouble> {
    let PgCommand::Ls { unsettled, place } = command;
    let answer = Client::find(&place)?.get("/v1/groups")?;
    let mut shown = Vec::new();
    for entry in list(&answer) {
        let group: GroupPlaceView = document(entry.clone())?;
        if !unsettled || !is_settled(&group) {
            shown.push((entry.clone(), group));
        }
    }
    if json {
        output::json(&Value::Array(shown.into_iter().map(|(entry, _)| entry).collect()));
    } else if shown.is_empty() && unsettled {
        output::line("nothing is missing or moving: every group is whole");
    } else {
        table(shown.iter().map(|(_, group)| group)).print();
    }
    Ok(())
}

/// Everything is where it shall be, and nobody else is needed.
fn is_settled(group: &GroupPlaceView) -> bool {
    group.whole && !group.thin && group.former.is_empty()
}

fn table<'a>(groups: impl Iterator<Item = &'a GroupPlaceView>) -> Table {
    let mut table = Table::new(&["GROUP", "COPIES", "MEMBERS", "FORMER", "STATE"]);
    for group in groups {
        let state = match (group.thin, group.former.is_empty()) {
            (true, _) => "a member is away",
            (false, false) => "moving",
            (false, true) if group.whole => "whole",
            (false, true) => "not whole yet",
        };
        table.row(vec![
            group.group.to_string(),
            group.factor.to_string(),
            numbers(&group.members),
            numbers(&group.former),
            state.to_string(),
        ]);
    }
    table
}

fn numbers(drives: &[u32]) -> String {
    if drives.is_empty() {
        return "-".to_string();
    }
    drives.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_says_what_is_not_settled() {
        let group = |former: &[u32], whole, thin| GroupPlaceView {
            members: vec![1, 5],
            former: former.to_vec(),
            whole,
            thin,
            ..GroupPlaceView::default()
        };
        let all = [group(&[], true, false), group(&[3, 4], false, false), group(&[], false, true)];
        assert_eq!(all.iter().map(is_settled).collect::<Vec<_>>(), [true, false, false]);
        let text = table(all.iter()).render();
        let ends: Vec<&str> =
            text.lines().skip(1).map(|line| line.rsplit("  ").next().unwrap_or("")).collect();
        assert_eq!(ends, ["whole", "moving", "a member is away"], "{text}");
        assert!(text.contains("1,5      3,4 "), "{text}");
    }
}
