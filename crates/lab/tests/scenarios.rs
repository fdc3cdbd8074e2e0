//! Scenarios with a timeline, small: real qcow2 images, real snapshots, a real load. Nothing here depends on speed: whether a
//! target kept its rate is not asked, only that what is told is there and fits together.

use std::path::PathBuf;
use weft_lab::{Disturbance, PlatformTarget, ScenarioResults, ScenarioSettings};

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("scenario-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the target directory is writable");
        Place(path)
    }

    fn platform(&self, kind: &str) -> PlatformTarget {
        let text = format!("{kind}:{}", self.0.join(kind).display());
        PlatformTarget::parse(&text, &|| None).expect("well formed")
    }

    fn settings(&self, kinds: &[&str], disturbance: Disturbance) -> ScenarioSettings {
        ScenarioSettings {
            disturbance,
            targets: kinds.iter().map(|kind| self.platform(kind)).collect(),
            out: self.0.join("out"),
            size: 256 << 20,
            rate_iops: 160,
            lead_s: 3,
            idle_s: 0,
            ..Default::default()
        }
    }

    fn is_empty(&self, kind: &str) -> bool {
        std::fs::read_dir(self.0.join(kind)).expect("it was made").next().is_none()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn snapshots_of_three_kinds_of_target_are_laid_over_each_other() {
    let place = Place::new("snapshots");
    let kinds = ["qcow2-internal", "qcow2-chain", "file"];
    let settings = place.settings(&kinds, Disturbance::Snapshots { count: 3, every_s: 2 });
    let outcome = weft_lab::run_scenario(settings.clone()).expect("everything it needs is installed");
    assert!(!outcome.failed && !outcome.interrupted, "{}", outcome.table);
    let results = outcome.results;
    assert_eq!(results.scenario, "snapshot-impact");
    assert_eq!(results.runs.len(), 3);
    for run in &results.runs {
        assert_eq!(run.errors, 0);
        assert!(run.verdict.is_some());
        let database = &run.series[0];
        let ios: u64 = database.seconds.iter().map(|second| second.ios).sum();
        assert!(ios > 0 && ios <= run.whole.ios, "{ios} of {}", run.whole.ios);
        let parts: u64 = run.series[1..].iter().flat_map(|one| &one.seconds).map(|second| second.ios).sum();
        assert_eq!(ios, parts, "the database is the sum of its streams");
        let whole = run.whole;
        assert!(whole.us_p50 <= whole.us_p99 && whole.us_p99 <= whole.us_max, "{whole:?}");
        for ending in [".fio", ".json", "_lat.1.log", "_lat.6.log", "-fill.fio"] {
            let file = settings.out.join("raw").join(format!("{}{ending}", run.files));
            assert!(file.exists(), "{}", file.display());
        }
        assert!(place.is_empty(&run.target), "what was made is removed");
        if run.target == "file" {
            assert!(run.events.is_empty(), "the control has none");
            continue;
        }
        assert!(run.server.is_some(), "the daemon's CPU is known");
        assert_eq!(run.events.len(), 3);
        let times: Vec<f64> = run.events.iter().map(|event| event.at_s).collect();
        assert!(times.is_sorted(), "{times:?}");
        for event in &run.events {
            assert_eq!(event.error, None);
            assert!(event.took_s > 0.0);
        }
    }
    for file in ["results.json", "results.csv", "events.csv", "results.md", "report.html", "run.json"] {
        assert!(settings.out.join(file).exists(), "{file}");
    }
    let seconds = std::fs::read_to_string(settings.out.join("results.csv")).expect("just written");
    assert!(seconds.lines().any(|line| line.starts_with("qcow2-chain,0,log-writes,2,")), "{seconds}");
    let events = std::fs::read_to_string(settings.out.join("events.csv")).expect("just written");
    assert_eq!(events.lines().count(), 1 + 6, "{events}");
    let text = std::fs::read_to_string(settings.out.join("results.json")).expect("just written");
    let kept: ScenarioResults = serde_json::from_str(&text).expect("its own format");
    assert_eq!(kept.runs.len(), 3);
    let page = std::fs::read(&outcome.report).expect("just written");
    std::fs::remove_file(&outcome.report).expect("just written");
    assert_eq!(weft_lab::report(&settings.out).expect("it can be written again"), outcome.report);
    assert!(outcome.report.exists());
    for outside in ["src=\"http", "href=\"http", "/*DATA*/", "/*SCRIPT*/"] {
        assert!(!String::from_utf8_lossy(&page).contains(outside), "{outside}");
    }
}

#[test]
fn a_neighbour_reads_in_the_middle_third() {
    let place = Place::new("neighbour");
    let settings = place.settings(&["file"], Disturbance::Neighbour { runtime_s: 9, depth: 2 });
    let outcome = weft_lab::run_scenario(settings).expect("fio is installed");
    assert!(!outcome.failed, "{}", outcome.table);
    let run = &outcome.results.runs[0];
    let names: Vec<&str> = run.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(names, ["before", "beside the neighbour", "afterwards"]);
    assert_eq!(run.phases[0].window.scan_bytes_per_s, 0.0);
    assert!(run.phases[1].window.scan_bytes_per_s > 0.0);
    assert_eq!(run.phases[0].window.to_s, run.phases[1].window.from_s);
    assert_eq!(run.events.len(), 1);
    let [event, beside] = [&run.events[0].after, &run.phases[1].window];
    assert_eq!((event.from_s, event.to_s), (beside.from_s, beside.to_s), "what is behind it is not its own");
    assert!(outcome.table.contains("the neighbour read"), "{}", outcome.table);
}

#[test]
fn what_cannot_be_run_is_refused_before_anything_is_measured() {
    let place = Place::new("refused");
    let disturbance = Disturbance::Snapshots { count: 2, every_s: 1 };
    let mut settings = place.settings(&["file"], disturbance);
    assert!(weft_lab::run_scenario(settings.clone()).expect_err("no snapshots").is_bad_input());
    settings = place.settings(&["qcow2-chain"], disturbance);
    std::fs::create_dir_all(place.0.join("qcow2-chain")).expect("writable");
    let mine = place.0.join("qcow2-chain/data-2.qcow2");
    std::fs::write(&mine, "mine").expect("writable");
    let error = weft_lab::run_scenario(settings.clone()).expect_err("it is there already");
    assert!(error.to_string().contains("data-2.qcow2"), "{error}");
    assert!(!error.to_string().contains('\n'), "one line: {error}");
    assert_eq!(std::fs::read_to_string(&mine).expect("left alone"), "mine");
    settings.fio = PathBuf::from("/nowhere/fio");
    let error = weft_lab::run_scenario(settings).expect_err("no fio");
    assert!(error.to_string().contains("apt-get install fio"), "{error}");
}
