//! `/latency`: where time goes.

use super::html::{Page, bar, duration, escape, number, time};
use crate::api::{LatencyView, StageView, TimesView};

/// Groups with what is said about them.
const GROUPS: [(&str, &str); 4] = [
    ("request", "Requests, from their arrival to their reply, by the slowest thing they needed"),
    ("wait", "What owners of vDisks wait for: parts of requests, and of work in the background"),
    ("drive", "What the drives of this node do"),
    ("core", "What the cores of this node's shards do"),
];

pub fn latency(view: &LatencyView) -> String {
    let mut page = Page::new("Where time goes", "/latency");
    let since = if view.since_reset_us + 2_000_000 < view.uptime_us {
        format!("{} ago it was reset", duration(view.since_reset_us))
    } else {
        "it was never reset".to_string()
    };
    page.line(&format!("counted since the start {} ago; {since}", duration(view.uptime_us)));
    page.raw(
        "<form method=\"post\" action=\"/latency/reset\"><p><button>Begin again</button> \
         <span class=\"dim\">(what is counted since the start stays)</span></p></form>",
    );
    for (group, what) in GROUPS {
        page.heading(what);
        table(&mut page, view.stages.iter().filter(|stage| stage.group == group));
    }
    page.end()
}

fn table<'a>(page: &mut Page, stages: impl Iterator<Item = &'a StageView> + Clone) {
    let most = stages.clone().map(|stage| stage.since_reset.total_us as u64).max().unwrap_or(0);
    page.raw(
        "<table><tr><th class=\"t\" rowspan=\"2\">stage</th><th colspan=\"5\">since the reset</th>\
         <th class=\"t\" rowspan=\"2\">time in all</th><th colspan=\"3\">since the start</th>\
         <th class=\"t\" rowspan=\"2\">what it is</th></tr>\
         <tr><th>times</th><th>mean</th><th>half up to</th><th>99 % up to</th><th>all up to</th>\
         <th>times</th><th>mean</th><th>99 % up to</th></tr>",
    );
    for stage in stages {
        let cell = |times: &TimesView, us: f64| if times.count == 0 { "-".to_string() } else { time(us) };
        let (lately, always) = (&stage.since_reset, &stage.since_start);
        page.raw(&format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td class=\"w\">{}</td></tr>",
            escape(&stage.stage),
            number(lately.count),
            cell(lately, lately.mean_us),
            cell(lately, lately.p50_us),
            cell(lately, lately.p99_us),
            cell(lately, lately.max_us),
            bar(lately.total_us as u64, most, false),
            number(always.count),
            cell(always, always.mean_us),
            cell(always, always.p99_us),
            escape(&stage.meaning),
        ));
    }
    page.end_table();
}
