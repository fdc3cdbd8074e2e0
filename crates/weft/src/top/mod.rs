//! `weft top`: what every vDisk does now, the busiest first.
//! Promises: the terminal is left as it was, however it ends: nothing of it is changed but what is written; a node that does
//! not answer is named and done without.
//! Leaves to others: what happened between two looks (`interval`), the table (`table`).

mod interval;
mod table;

use crate::arguments::{Place, TopArguments};
use crate::client::Client;
use crate::cluster::document;
use crate::output;
use crate::trouble::Trouble;
use interval::{Interval, Look};
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use weft_node::api::VdiskFiguresListView;

/// Another node that takes longer is done without. It waits itself, up to a second, for shards that are busy.
const OTHERS_WAIT: Duration = Duration::from_secs(5);

/// The node at hand may restart; looking goes on meanwhile.
const SILENCE_MAX: Duration = Duration::from_secs(60);

pub fn run(arguments: &TopArguments, json: bool) -> Result<(), Trouble> {
    let client = Client::find(&arguments.place)?;
    let every = Duration::from_secs_f64(arguments.interval);
    let redraws = !arguments.once && !json && std::io::stdout().is_terminal();
    let mut before = look(&client, &arguments.place)?;
    let mut answered = Instant::now();
    if redraws {
        output::line("looking ...");
    }
    loop {
        std::thread::sleep(every.saturating_sub(before.at.elapsed()));
        let now = match look(&client, &arguments.place) {
            Ok(now) => now,
            Err(trouble) if arguments.once || answered.elapsed() > SILENCE_MAX => return Err(trouble),
            // People look when something is wrong.
            Err(trouble) => {
                output::complain(trouble.line());
                std::thread::sleep(every);
                continue;
            }
        };
        answered = Instant::now();
        let interval = Interval::between(&before, &now);
        if json {
            output::line(&interval.json().to_string());
        } else if redraws {
            output::write(table::redraw(&interval, table::terminal_size()).as_bytes());
        } else {
            output::write(table::render(&interval).as_bytes());
        }
        if arguments.once {
            return Ok(());
        }
        before = now;
    }
}

/// Asks the node at hand, and those that serve vDisks which it does not.
fn look(client: &Client, place: &Place) -> Result<Look, Trouble> {
    let list: VdiskFiguresListView = document(client.get("/v1/vdisk_stats")?)?;
    let at = Instant::now();
    let others: BTreeMap<u32, String> =
        list.elsewhere.iter().filter_map(|vdisk| Some((vdisk.node?, vdisk.api.clone()?))).collect();
    let asked: Vec<_> = others
        .into_iter()
        .map(|(node, api)| {
            let place = Place { api: Some(api), ..place.clone() };
            (node, std::thread::spawn(move || ask(&place)))
        })
        .collect();
    let mut look = Look::new(at);
    look.add(at, list);
    for (node, asked) in asked {
        match asked.join() {
            Ok(Ok((at, list))) => look.add(at, list),
            _ => look.silent.push(node),
        }
    }
    Ok(look)
}

/// What a node tells, and when it did.
fn ask(place: &Place) -> Result<(Instant, VdiskFiguresListView), Trouble> {
    let list = document(Client::find(place)?.get_within("/v1/vdisk_stats", OTHERS_WAIT)?)?;
    Ok((Instant::now(), list))
}
