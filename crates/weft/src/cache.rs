//! `weft cache ...` and `weft vdisk warm`: the memory that a node keeps data in for reads.

use crate::arguments::{CacheCommand, Place};
use crate::client::{Client, path_part};
use crate::cluster::document;
use crate::output::{self, Table};
use crate::size;
use crate::trouble::Trouble;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use weft_node::api::{CacheView, WarmView};

/// A node that is starting or busy answers later; the vDisk may be moving to another one.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(command: CacheCommand, json: bool) -> Result<(), Trouble> {
    match command {
        CacheCommand::Show { place } => {
            let answer = Client::find(&place)?.get("/v1/cache")?;
            if json {
                output::json(&answer);
            } else {
                table(&document(answer)?).print();
            }
        }
        CacheCommand::Resize { size, place } => {
            let answer = Client::find(&place)?.post("/v1/cache", &json!({ "bytes": size }))?;
            if json {
                output::json(&answer);
            } else {
                output::line(&format!(
                    "the read cache has {} now, until the node is started again; to keep it, start with --read-cache",
                    size::show(size)
                ));
            }
        }
    }
    Ok(())
}

fn table(view: &CacheView) -> Table {
    let share = |part: u64, rest: u64| match part + rest {
        0 => String::new(),
        all => format!(" ({:.1} %)", part as f64 * 100.0 / all as f64),
    };
    let mut table = Table::new(&["size", &size::show(view.bytes)]);
    table.row(vec!["used".into(), size::show(view.used_bytes)]);
    let hits = format!("{} blocks{}", view.hits, share(view.hits, view.misses));
    table.row(vec!["hits".into(), hits]);
    table.row(vec!["misses".into(), format!("{} blocks", view.misses)]);
    let hits = format!("{}{}", view.page_hits, share(view.page_hits, view.page_misses));
    table.row(vec!["map pages found".into(), hits]);
    table.row(vec!["map pages fetched".into(), view.page_misses.to_string()]);
    let used = format!("{} of {} blocks", view.ahead_used, view.ahead_issued);
    table.row(vec!["read ahead and used".into(), used]);
    table.row(vec!["read ahead in vain".into(), format!("{} blocks", view.ahead_wasted)]);
    let found = format!("{}{}", view.egroup_map_hits, share(view.egroup_map_hits, view.egroup_map_misses));
    table.row(vec!["egroups found".into(), found]);
    let shared = &view.shared;
    let found = format!("{} of {} hashed", size::show(shared.bytes_found), size::show(shared.bytes_hashed));
    table.row(vec!["shared".into(), found]);
    let known =
        format!("{} of {} hashes, {}", shared.entries, shared.entries_max, size::show(shared.memory_bytes));
    table.row(vec!["known to drives".into(), known]);
    table.row(vec!["saved by sharing".into(), size::show(shared.saved_bytes)]);
    let minute = &view.minute;
    let hits = format!("{} blocks{}", minute.hits, share(minute.hits, minute.misses));
    table.row(vec!["hits, last minute".into(), hits]);
    let hits = format!("{}{}", minute.page_hits, share(minute.page_hits, minute.page_misses));
    table.row(vec!["pages, last minute".into(), hits]);
    table
}

/// Warms step by step, with a line that shows how far it is.
pub fn warm(place: &Place, name: &str, data: bool, json: bool) -> Result<(), Trouble> {
    let client = Client::find(place)?;
    let path = format!("/v1/vdisks/{}/warm", path_part(name));
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{msg}  {bar:20} {percent:>3} %  {elapsed}")
        .expect("the template is a constant");
    bar.set_style(style);
    bar.set_message(format!("warming {name}"));
    let mut all = WarmView { to: 0, size: 0, pages: 0, bytes: 0, full: false };
    let mut came_further = Instant::now();
    loop {
        let answer = client.post(&path, &json!({ "from": all.to, "data": data }));
        let step: WarmView = match answer {
            Ok(answer) => document(answer)?,
            Err(trouble @ Trouble::BadInput(_)) => return Err(trouble),
            Err(trouble) if came_further.elapsed() > PATIENCE => return Err(trouble),
            Err(trouble) => {
                bar.set_message(trouble.line());
                std::thread::sleep(Duration::from_secs(1));
                continue;
            }
        };
        came_further = Instant::now();
        all = WarmView { pages: all.pages + step.pages, bytes: all.bytes + step.bytes, ..step };
        bar.set_length(all.size);
        bar.set_position(all.to);
        bar.set_message(format!("warming {name}"));
        if all.to >= all.size || all.full {
            break;
        }
    }
    bar.finish_and_clear();
    if json {
        output::json(&serde_json::to_value(&all).unwrap_or(Value::Null));
        return Ok(());
    }
    output::line(&told(name, data, &all));
    Ok(())
}

fn told(name: &str, data: bool, all: &WarmView) -> String {
    let brought = format!("{name}: brought in {} pages of its map", all.pages);
    match (data, all.full) {
        (false, false) => brought,
        (false, true) => {
            format!("{brought}, up to {}; the memory for pages of one vDisk is full", size::show(all.to))
        }
        (true, false) => format!("{brought} and {} of its data", size::show(all.bytes)),
        (true, true) => format!(
            "{brought} and {} of its data, up to {}; the read cache is full, `weft cache resize` makes room",
            size::show(all.bytes),
            size::show(all.to)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_node::api::{MinuteView, SharedView};

    #[test]
    fn a_cache_that_was_not_asked_yet_has_no_shares() {
        let mut view = CacheView {
            bytes: 256 << 20,
            used_bytes: 0,
            hits: 0,
            misses: 0,
            page_hits: 3,
            page_misses: 1,
            ahead_issued: 0,
            ahead_used: 0,
            ahead_wasted: 0,
            egroup_map_hits: 0,
            egroup_map_misses: 0,
            shared: SharedView::default(),
            minute: MinuteView::default(),
        };
        let text = table(&view).render();
        assert!(text.contains("hits                 0 blocks\n") && text.contains("3 (75.0 %)"), "{text}");
        view.hits = 1;
        assert!(table(&view).render().contains("1 blocks (100.0 %)"));
    }

    #[test]
    fn who_warms_is_told_when_there_is_no_more_room() {
        let mut all = WarmView { to: 4 << 20, size: 8 << 20, pages: 2, bytes: 3 << 20, full: false };
        assert_eq!(told("v", false, &all), "v: brought in 2 pages of its map");
        assert!(told("v", true, &all).ends_with("2 pages of its map and 3 MiB of its data"));
        all.full = true;
        assert!(told("v", false, &all).contains("up to 4 MiB; the memory for pages"));
        assert!(told("v", true, &all).contains("full") && told("v", true, &all).contains("up to 4 MiB"));
    }
}
