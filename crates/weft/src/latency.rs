//! `weft latency`: where the time of a node goes.

use crate::arguments::LatencyArguments;
use crate::client::Client;
use crate::cluster::document;
use crate::output::{self, Table};
use crate::trouble::Trouble;
use serde_json::json;
use weft_node::api::LatencyView;

pub fn run(arguments: &LatencyArguments, json: bool) -> Result<(), Trouble> {
    let client = Client::find(&arguments.place)?;
    if arguments.reset {
        let answer = client.post("/v1/latency/reset", &json!({}))?;
        if json {
            output::json(&answer);
        } else {
            output::line("counted from now on; what is counted since the start stays");
        }
        return Ok(());
    }
    let answer = client.get("/v1/latency")?;
    if json {
        output::json(&answer);
    } else {
        output::write(render(&document(answer)?, arguments.all).as_bytes());
    }
    Ok(())
}

fn render(view: &LatencyView, all: bool) -> String {
    let mut table =
        Table::new(&["STAGE", "GROUP", "TIMES", "MEAN", "P50", "P99", "MAX", "SINCE START", "WHAT IT IS"]);
    let shown = view.stages.iter().filter(|stage| all || stage.since_start.count > 0);
    let mut rows = 0;
    for stage in shown {
        let lately = &stage.since_reset;
        let cell = |us: f64| if lately.count == 0 { "-".to_string() } else { time(us) };
        table.row(vec![
            stage.stage.clone(),
            stage.group.clone(),
            lately.count.to_string(),
            cell(lately.mean_us),
            cell(lately.p50_us),
            cell(lately.p99_us),
            cell(lately.max_us),
            stage.since_start.count.to_string(),
            stage.meaning.clone(),
        ]);
        rows += 1;
    }
    if rows == 0 { "nothing has happened yet; --all lists the stages\n".to_string() } else { table.render() }
}

/// Microseconds in the unit that fits.
pub fn time(us: f64) -> String {
    match us {
        us if us < 10.0 => format!("{us:.1}us"),
        us if us < 1_000.0 => format!("{us:.0}us"),
        us if us < 10_000.0 => format!("{:.2}ms", us / 1_000.0),
        us if us < 1_000_000.0 => format!("{:.0}ms", us / 1_000.0),
        us => format!("{:.1}s", us / 1_000_000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_node::api::{StageView, TimesView};

    #[test]
    fn stages_that_nothing_passed_are_left_out_unless_all_are_wanted() {
        let times = TimesView { count: 3, mean_us: 1_500.0, max_us: 2.0, ..TimesView::default() };
        let passed = StageView {
            stage: "map_page".to_string(),
            since_start: times.clone(),
            since_reset: times,
            ..StageView::default()
        };
        let before = StageView { since_reset: TimesView::default(), ..passed.clone() };
        let never = StageView { stage: "throttled".to_string(), ..StageView::default() };
        let view = LatencyView { stages: vec![passed, before, never], ..LatencyView::default() };
        let text = render(&view, false);
        assert!(
            text.contains("map_page") && text.contains("1.50ms") && !text.contains("throttled"),
            "{text}"
        );
        assert!(
            text.lines().nth(2).is_some_and(|line| line.contains(" 0 ") && line.contains(" - ")),
            "{text}"
        );
        assert!(render(&view, true).contains("throttled"));
        assert!(render(&LatencyView::default(), false).starts_with("nothing has happened"));
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        let told = [0.4, 12.3, 999.0, 1_234.0, 45_600.0, 2_500_000.0].map(time);
        assert_eq!(told, ["0.4us", "12us", "999us", "1.23ms", "46ms", "2.5s"]);
    }
}
