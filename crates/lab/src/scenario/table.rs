//! The verdicts as text: a table for the terminal, the same and more as Markdown, CSV with every second, and warnings.

use super::results::{ScenarioResults, TargetRun};
use super::verdict::{Comparison, DEGRADED_LATENCY, DEGRADED_RATE};
use crate::table::{markdown_line, quoted, thousands};

/// The columns, with what they mean. One place, so that pages cannot disagree.
pub const COLUMNS: &[(&str, &str)] = &[
    ("target", "What was disturbed; several lines if it was run more than once."),
    ("IOPS", "Mean rate of the database over the whole run. It was asked for a fixed one."),
    (
        "in band",
        "Share of the seconds in which the rate was where a load that comes at random has 95 of 100 seconds: \
         expected ± 1.96 · √expected. Expected is the rate that was asked for.",
    ),
    (
        "CV",
        "Standard deviation of the seconds' rates over their mean. A perfect target shows less than 1 / √expected.",
    ),
    ("below 90 %", "Seconds with less than nine tenths of the expected rate."),
    ("worst 5 s", "How much was missing to the expected rate in the worst five seconds in a row."),
    (
        "lost I/Os",
        "Sum over the seconds of what was missing. What is made up for later does not count against it.",
    ),
    ("p50 us", "Half of the database's I/Os took no longer, in microseconds, reads and writes together."),
    ("p99 us", "99 of 100 took no longer."),
    ("max ms", "The longest one took, in milliseconds."),
    ("errors", "I/Os that failed."),
    (
        "CPU us",
        "User and system time of the target's server per I/O of the database, in microseconds. A dash: the work is done by the \
         kernel, the process is not known, or it served a neighbour as well.",
    ),
];

/// Columns of the phases.
pub const PHASE_COLUMNS: &[(&str, &str)] = &[
    ("phase", "A part of the timeline; the first second of the run is in none."),
    ("seconds", "How long it was."),
    ("log p50 us", "Half of the log's writes took no longer: what a commit waits for."),
    ("log p99 us", "99 of 100 of the log's writes took no longer."),
    ("scan MiB/s", "What the neighbour read."),
];

fn cells(run: &TargetRun) -> Vec<String> {
    let mut cells = vec![run.target.clone()];
    let Some(verdict) = &run.verdict else {
        cells.push(format!("failed: {}", run.error.as_deref().unwrap_or("too short for figures")));
        cells.resize(COLUMNS.len(), String::new());
        return cells;
    };
    cells.extend([
        thousands(verdict.iops_mean),
        percent(verdict.in_band_share),
        format!("{:.1} %", verdict.variation * 100.0),
        verdict.below_90_s.to_string(),
        percent(verdict.worst_shortfall.max(0.0)),
        thousands(verdict.lost_ios.round()),
        thousands(run.whole.us_p50),
        thousands(run.whole.us_p99),
        format!("{:.1}", run.whole.us_max / 1000.0),
        run.errors.to_string(),
        run.server
            .and_then(|server| server.cpu_us_per_io)
            .map_or_else(|| "-".to_string(), |us| format!("{us:.1}")),
    ]);
    cells
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn phase_lines(results: &ScenarioResults) -> Vec<Vec<String>> {
    let mut lines = Vec::new();
    for run in &results.runs {
        for phase in &run.phases {
            let window = &phase.window;
            lines.push(vec![
                run.target.clone(),
                phase.name.clone(),
                window.seconds.to_string(),
                thousands(window.iops_mean),
                percent(window.in_band_share),
                thousands(window.us_p50),
                thousands(window.us_p99),
                format!("{:.1}", window.us_max / 1000.0),
                thousands(phase.log_us_p50),
                thousands(phase.log_us_p99),
                if window.scan_bytes_per_s > 0.0 {
                    thousands(window.scan_bytes_per_s / 1048576.0)
                } else {
                    "-".to_string()
                },
            ]);
        }
    }
    lines
}

const PHASE_TITLES: &[&str] = &[
    "target",
    "phase",
    "seconds",
    "IOPS",
    "in band",
    "p50 us",
    "p99 us",
    "max ms",
    "log p50 us",
    "log p99 us",
    "scan MiB/s",
];

/// In words: what the disturbance did to each target.
pub fn sentences(results: &ScenarioResults) -> Vec<String> {
    results.runs.iter().filter(|run| run.verdict.is_some()).map(|run| sentence(results, run)).collect()
}

fn sentence(results: &ScenarioResults, run: &TargetRun) -> String {
    let name = &run.target;
    if run.events.iter().any(|event| event.text == "neighbour") {
        let [before, during, after] = &run.phases[..] else {
            return format!("{name}: the run ended before its middle third was over.");
        };
        let us = |phase: &super::results::Phase| thousands(phase.window.us_p99);
        return format!(
            "{name}: {} of the seconds in the band before, {} beside the neighbour, {} afterwards; p99 {} / {} / {} us; \
             the neighbour {}.",
            percent(before.window.in_band_share),
            percent(during.window.in_band_share),
            percent(after.window.in_band_share),
            us(before),
            us(during),
            us(after),
            match run.events.iter().find_map(|event| event.error.as_ref()) {
                Some(why) => format!("failed, so this is no comparison: {why}"),
                None => format!("read {} MiB/s", thousands(during.window.scan_bytes_per_s / 1048576.0)),
            }
        );
    }
    let good = run.events.iter().filter(|event| event.error.is_none()).count();
    let after_all = run.after_all.as_ref().map_or(String::new(), after_all);
    if run.events.is_empty() {
        // Only whoever takes none at all is the control.
        let is_stopped = results.interrupted
            && (run.phases.is_empty()
                || results.targets.iter().any(|t| t.label == run.target && t.takes_snapshots));
        return if is_stopped {
            format!("{name}: the run ended before anything was done to it.")
        } else {
            format!("{name}: no snapshots, the control.{after_all}")
        };
    }
    let slowest = run.took_s_max().unwrap_or(0.0) * 1000.0;
    let failed = match run.events.len() - good {
        0 => String::new(),
        failed => format!(", {failed} failed"),
    };
    let degraded = run.events.iter().filter(|event| event.degraded).count();
    let verdict = match (degraded, run.first_degraded) {
        (0, _) => "not degraded by any".to_string(),
        (_, Some(number)) => {
            format!("degraded behind {degraded} of them, twice in a row from snapshot {number} on")
        }
        (_, None) => format!("degraded behind {degraded} of them, never twice in a row"),
    };
    format!("{name}: {good} snapshots{failed}, the slowest took {slowest:.0} ms; {verdict}.{after_all}")
}

/// What differs by chance in one of twenty comparisons is not told as a difference.
const CHANCE: f64 = 0.05;

fn chance(p: f64) -> String {
    if p < 0.005 { "p < 0.01".to_string() } else { format!("p = {p:.2}") }
}

/// Before the first snapshot and after the last one.
fn after_all(compared: &Comparison) -> String {
    let Comparison { seconds, iops, us, iops_p, us_p, .. } = compared;
    let says = |p: f64, fell: bool, less: &'static str, more: &'static str| match () {
        () if p >= CHANCE => "not told apart",
        () if fell => less,
        () => more,
    };
    let ranked = (us.0.unwrap_or(f64::INFINITY), us.1.unwrap_or(f64::INFINITY));
    let iops_fell = compared.iops_fell.unwrap_or(iops.1 < iops.0);
    let us_fell = compared.us_fell.unwrap_or(ranked.1 < ranked.0);
    let told = |us: Option<f64>| us.map_or_else(|| "(without any I/O)".to_string(), thousands);
    format!(
        " Before and after all of them ({} and {} seconds): {} and {} I/Os per second, {} ({}); {} and {} us on \
         average in the middle second, {} ({}).",
        seconds.0,
        seconds.1,
        thousands(iops.0),
        thousands(iops.1),
        says(*iops_p, iops_fell, "fewer", "more"),
        chance(*iops_p),
        told(us.0),
        told(us.1),
        says(*us_p, us_fell, "faster", "slower"),
        chance(*us_p)
    )
}

/// For the terminal.
pub fn terminal(results: &ScenarioResults) -> String {
    let titles: Vec<String> = COLUMNS.iter().map(|(title, _)| title.to_string()).collect();
    let mut text = aligned(&titles, &results.runs.iter().map(cells).collect::<Vec<_>>());
    text.push('\n');
    let titles: Vec<String> = PHASE_TITLES.iter().map(|title| title.to_string()).collect();
    text += &aligned(&titles, &phase_lines(results));
    text.push('\n');
    for sentence in sentences(results) {
        text += &sentence;
        text.push('\n');
    }
    for warning in &results.warnings {
        text += &format!("warning: {warning}\n");
    }
    text
}

/// Columns under their titles, the first one at the left.
fn aligned(titles: &[String], lines: &[Vec<String>]) -> String {
    let failed = |line: &Vec<String>| line[1].starts_with("failed");
    let width = |column: usize| {
        let own = lines.iter().filter(|line| !failed(line)).map(|line| line[column].chars().count());
        own.chain([titles[column].chars().count()]).max().unwrap_or(0)
    };
    let first = lines.iter().map(|line| line[0].chars().count()).chain([titles[0].len()]).max().unwrap_or(0);
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let mut text = String::new();
    for line in std::iter::once(&titles.to_vec()).chain(lines) {
        let mut out = format!("{:<first$}", line[0]);
        if failed(line) {
            out += &format!("  {}", line[1]);
        } else {
            for (cell, width) in line.iter().zip(&widths).skip(1) {
                out += &format!("  {cell:>width$}");
            }
        }
        text += out.trim_end();
        text.push('\n');
    }
    text
}

/// The same in Markdown.
pub fn markdown(results: &ScenarioResults) -> String {
    let mut text = format!("{}\n\n", results.explanation);
    let titles: Vec<&str> = COLUMNS.iter().map(|(title, _)| *title).collect();
    text += &markdown_table(&titles, &results.runs.iter().map(cells).collect::<Vec<_>>());
    text.push('\n');
    text += &markdown_table(PHASE_TITLES, &phase_lines(results));
    text.push('\n');
    for sentence in sentences(results) {
        text += &format!("- {sentence}\n");
    }
    text += &format!(
        "\nExpected {} I/Os per second, band {} to {}{}.\n",
        thousands(results.band.expected_iops),
        thousands(results.band.lower_iops),
        thousands(results.band.upper_iops),
        results.client.map_or_else(String::new, |client| format!(
            "; on nothing this client reaches {} with a CV of {:.1} % and {} of its seconds in the band",
            thousands(client.iops_mean),
            client.variation * 100.0,
            percent(client.in_band_share)
        ))
    );
    text += &results.provenance.sentence("of database", "");
    if !results.warnings.is_empty() {
        text += "\nWarnings of the run:\n\n";
        for warning in &results.warnings {
            text += &format!("- {warning}\n");
        }
    }
    text
}

fn markdown_table(titles: &[&str], lines: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|---|{}\n", titles.join(" | "), "---:|".repeat(titles.len() - 1));
    for line in lines {
        text += &markdown_line(line);
    }
    text
}

/// One line per second and stream, for other programs.
pub fn csv(results: &ScenarioResults) -> String {
    let mut text = String::from(
        "target,repeat,stream,second,ios,bytes,latency_us_mean,latency_us_p50,latency_us_p99,latency_us_p999,latency_us_max\n",
    );
    for run in &results.runs {
        for series in &run.series {
            let stream = serde_json::to_value(series.stream).expect("a name");
            for (at, second) in series.seconds.iter().enumerate() {
                text += &format!(
                    "{},{},{},{at},{},{},{:.1},{:.1},{:.1},{:.1},{:.1}\n",
                    quoted(&run.target),
                    run.repeat,
                    stream.as_str().expect("a name"),
                    second.ios,
                    second.bytes,
                    second.us_mean,
                    second.us_p50,
                    second.us_p99,
                    second.us_p999,
                    second.us_max
                );
            }
        }
    }
    text
}

/// One line per disturbance.
pub fn events_csv(results: &ScenarioResults) -> String {
    let mut text = String::from(
        "target,repeat,number,text,at_s,took_s,before_iops,after_iops,before_us_middle,after_us_middle,after_us_p99,after_us_max,\
         recovery_s,degraded,error\n",
    );
    let middle = |us: Option<f64>| us.map_or_else(String::new, |us| format!("{us:.1}"));
    for run in &results.runs {
        for event in &run.events {
            text += &format!(
                "{},{},{},{},{:.3},{:.4},{:.1},{:.1},{},{},{:.1},{:.1},{},{},{}\n",
                quoted(&run.target),
                run.repeat,
                event.number,
                event.text,
                event.at_s,
                event.took_s,
                event.before.iops_mean,
                event.after.iops_mean,
                middle(event.before.us_middle),
                middle(event.after.us_middle),
                event.after.us_p99,
                event.after.us_max,
                event.recovery_s.map_or_else(String::new, |seconds| seconds.to_string()),
                event.degraded,
                quoted(event.error.as_deref().unwrap_or_default())
            );
        }
    }
    text
}

/// When the figures should not be trusted.
pub fn warnings(results: &ScenarioResults) -> Vec<String> {
    let mut warnings = Vec::new();
    match results.client {
        None => warnings.push(
            "What this client makes of the load on nothing is not known, so the client may be what is judged."
                .to_string(),
        ),
        Some(client) if client.in_band_share < 0.8 => warnings.push(format!(
            "On nothing at all only {} of this client's seconds lie in the band: it is too busy to judge a target by them. \
             Use a lower --rate or a calmer machine.",
            percent(client.in_band_share)
        )),
        Some(_) => {}
    }
    for target in results.targets.iter().filter(|target| target.in_cluster) {
        warnings.push(format!(
            "{}: of its cluster only the node that was asked is in the CPU; what other nodes do for it is not counted.",
            target.label
        ));
    }
    for run in &results.runs {
        let place = format!("{}, run {}", run.target, run.repeat + 1);
        if let Some(error) = &run.error {
            warnings.push(format!("{place}: {error}"));
        }
        let failed: Vec<&super::results::Event> =
            run.events.iter().filter(|event| event.error.is_some()).collect();
        if let Some(first) = failed.first() {
            let why = first.error.as_deref().unwrap_or_default();
            warnings.push(format!(
                "{place}: {} of {} failed, the first: {why}",
                failed.len(),
                run.events.len()
            ));
        }
        if run.errors > 0 {
            warnings.push(format!("{place}: {} I/Os failed.", run.errors));
        }
        let before = run.phases.first().map(|phase| phase.window).filter(|window| window.seconds > 0);
        if let Some(before) = before.filter(|_| run.verdict.is_some())
            && before.iops_mean < results.band.expected_iops * DEGRADED_RATE
        {
            warnings.push(format!(
                "{place}: it did not reach the rate even before anything was done to it ({} of {}), so what came later says \
                 little. Use a lower --rate.",
                thousands(before.iops_mean),
                thousands(results.band.expected_iops)
            ));
        }
    }
    if results.interrupted {
        warnings.push(
            "The run was stopped before its end; the figures cover what was measured until then.".into(),
        );
    }
    warnings
}

/// What `degraded` means, for the page.
pub fn degraded_explained() -> String {
    format!(
        "A snapshot counts as degraded if until the next one the mean rate was below {} of the expected one, or the mean latency \
         of the middle second above {DEGRADED_LATENCY} times that before the first snapshot. The first of two such in a row is \
         the first degraded snapshot.",
        percent(DEGRADED_RATE)
    )
}

#[cfg(test)]
mod tests {
    use super::super::results::{ClientFloor, Event, Phase, Window};
    use super::super::verdict::{Band, Verdict};
    use super::*;
    use crate::measurement::ServerUse;
    use crate::provenance::Provenance;

    fn results(run: TargetRun) -> ScenarioResults {
        ScenarioResults {
            format: 1,
            scenario: "snapshot-impact".into(),
            explanation: "A database.".into(),
            interrupted: false,
            provenance: Provenance::default(),
            client: Some(ClientFloor { iops_mean: 100.0, variation: 0.05, in_band_share: 0.97 }),
            band: Band::around(100.0),
            targets: Vec::new(),
            runs: vec![run],
            warnings: Vec::new(),
        }
    }

    fn calm() -> TargetRun {
        let window = Window { seconds: 9, iops_mean: 99.0, ..Window::default() };
        let event =
            |number, took_s| Event { number, took_s, text: format!("snapshot {number}"), ..Event::default() };
        TargetRun {
            target: "one".into(),
            verdict: Some(Verdict { iops_mean: 99.0, in_band_share: 0.96, ..Verdict::default() }),
            phases: vec![Phase { name: "before the first snapshot".into(), window, ..Phase::default() }],
            events: vec![event(1, 0.02), event(2, 0.31)],
            ..TargetRun::default()
        }
    }

    #[test]
    fn a_calm_run_is_told_without_warnings() {
        let results = results(calm());
        assert_eq!(warnings(&results), Vec::<String>::new());
        assert_eq!(sentences(&results), ["one: 2 snapshots, the slowest took 310 ms; not degraded by any."]);
        let text = terminal(&results);
        assert!(
            text.lines().nth(1).is_some_and(|line| line.starts_with("one") && line.contains("96 %")),
            "{text}"
        );
        assert_eq!(events_csv(&results).lines().count(), 3);
    }

    #[test]
    fn cpu_that_went_into_other_ios_too_is_not_divided_by_those_of_the_database() {
        let used = |cpu_us_per_io| {
            let server = ServerUse { cpu_us: 500, cpu_us_per_io, resident_bytes: 7 };
            cells(&TargetRun { server: Some(server), ..calm() }).pop().expect("the last column")
        };
        assert_eq!((used(Some(5.0)), used(None)), ("5.0".to_string(), "-".to_string()));
    }

    #[test]
    fn before_and_after_are_told_with_how_likely_they_are() {
        let mut run = calm();
        let (iops, us) = ((99.0, 100.0), (Some(400.0), Some(520.0)));
        run.after_all = Some(Comparison {
            seconds: (9, 10),
            iops,
            us,
            iops_p: 0.4,
            us_p: 0.001,
            ..Comparison::default()
        });
        let told = sentences(&results(run)).join("");
        assert!(told.ends_with(
            "Before and after all of them (9 and 10 seconds): 99 and 100 I/Os per second, not told apart (p = 0.40); \
             400 and 520 us on average in the middle second, slower (p < 0.01)."
        ), "{told}");
        let mut run = calm();
        let same_medians =
            Comparison { iops: (99.0, 99.0), iops_p: 0.03, iops_fell: Some(true), ..Comparison::default() };
        run.after_all = Some(same_medians);
        let told = sentences(&results(run)).join("");
        assert!(told.contains("99 and 99 I/Os per second, fewer (p = 0.03)"), "{told}");
    }

    #[test]
    fn each_trouble_is_named() {
        let told = |change: &dyn Fn(&mut ScenarioResults)| {
            let mut results = results(calm());
            change(&mut results);
            (warnings(&results).join("; "), sentences(&results).join("; "))
        };
        let busy =
            |results: &mut ScenarioResults| results.client.as_mut().expect("known").in_band_share = 0.5;
        assert!(told(&busy).0.contains("only 50 % of this client's seconds"));
        assert!(told(&|results| results.client = None).0.contains("is not known"));
        assert!(told(&|results| results.runs[0].errors = 7).0.contains("7 I/Os failed"));
        assert!(told(&|results| results.interrupted = true).0.contains("stopped before its end"));
        let slow = |results: &mut ScenarioResults| results.runs[0].phases[0].window.iops_mean = 80.0;
        assert!(told(&slow).0.contains("did not reach the rate even before"));
        let failing =
            |results: &mut ScenarioResults| results.runs[0].events[1].error = Some("no space".into());
        let (warned, sentence) = told(&failing);
        assert!(warned.contains("1 of 2 failed, the first: no space"), "{warned}");
        assert!(sentence.contains("1 snapshots, 1 failed, the slowest took 20 ms"), "{sentence}");
        let degraded = |results: &mut ScenarioResults| results.runs[0].first_degraded = Some(10);
        assert!(told(&degraded).1.ends_with("not degraded by any."), "the events say what was");
        let degraded = |results: &mut ScenarioResults| {
            results.runs[0].events.iter_mut().for_each(|event| event.degraded = true);
            results.runs[0].first_degraded = Some(1);
        };
        assert!(told(&degraded).1.ends_with("degraded behind 2 of them, twice in a row from snapshot 1 on."));
        let once = |results: &mut ScenarioResults| results.runs[0].events[1].degraded = true;
        assert!(told(&once).1.ends_with("degraded behind 1 of them, never twice in a row."));
        let stopped = |results: &mut ScenarioResults| {
            results.interrupted = true;
            results.runs[0].events.clear();
            results.runs[0].phases.clear();
        };
        let (warned, sentence) = told(&stopped);
        assert!(sentence.ends_with("ended before anything was done to it."), "{sentence}");
        assert!(!warned.contains("did not reach"), "nothing is known of it: {warned}");
        let gone = |results: &mut ScenarioResults| {
            results.runs[0].verdict = None;
            results.runs[0].error = Some("the server has ended".into());
            let text = terminal(results);
            assert!(text.contains("  failed: the server has ended"), "{text}");
        };
        assert!(told(&gone).0.contains("the server has ended"));
    }
}
