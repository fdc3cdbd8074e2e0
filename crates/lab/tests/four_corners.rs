//! The whole lab on a small file: every file it promises is there and makes sense. Nothing here depends on speed.

use std::path::PathBuf;
use weft_lab::{LabError, Prefill, Results, RowSet, RunSettings, Target};

/// A directory of its own, removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("lab-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the target directory is writable");
        Place(path)
    }

    fn file_target(&self, label: &str) -> Target {
        let path = self.0.join(format!("{label}.img"));
        Target::parse(&format!("{label}=file:{}", path.display()), &|_| None).expect("a file target")
    }

    fn settings(&self, labels: &[&str]) -> RunSettings {
        RunSettings {
            targets: labels.iter().map(|label| self.file_target(label)).collect(),
            out: self.0.join("out"),
            size: 24 << 20,
            runtime_s: 2,
            warm_up_s: 0,
            idle_s: Some(0),
            depth: 4,
            ..Default::default()
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn two_files_are_measured_compared_and_reported() {
    let place = Place::new("pair");
    let mut settings = place.settings(&["one", "two"]);
    settings.baseline = Some("two".into());
    settings.repeats = 2;
    let outcome = weft_lab::run(settings.clone()).expect("fio runs on files");
    assert!(!outcome.failed, "{}", outcome.table);
    assert!(!outcome.interrupted);
    let results = outcome.results;
    assert_eq!(results.measurements.len(), 8, "four corners, two targets");
    for measurement in &results.measurements {
        let summary = measurement.summary.as_ref().expect("it gave figures");
        assert!(summary.iops_median > 0.0);
        let way = if measurement.row.contains("read") { &summary.read } else { &summary.write };
        let latency = way.expect("the row's direction has latencies");
        assert!(latency.us_p50 <= latency.us_p99 && latency.us_p99 <= latency.us_p999, "{latency:?}");
        let run = &measurement.runs[0];
        assert_eq!(measurement.runs.len(), 2);
        assert!(!run.read.series.is_empty() || !run.write.series.is_empty(), "samples are kept");
        for ending in ["fio", "json"] {
            let file = settings.out.join("raw").join(format!("{}.{ending}", run.files));
            assert!(file.exists(), "{}", file.display());
        }
    }
    for row in &results.rows {
        let began = |target: &str, repeat: usize| {
            let mut of_row = results.of_row(&row.key);
            of_row.find(|one| one.target == target).expect("measured").runs[repeat].started_s
        };
        assert!(began("one", 0) < began("two", 0) && began("two", 1) < began("one", 1), "they take turns");
    }
    for target in &results.targets {
        assert!(target.prefilled);
        assert_eq!(target.never_written_bytes, Some(0), "all was filled");
    }
    assert!(outcome.table.contains("two"));
    for name in ["run.json", "results.json", "results.csv", "results.md", "report.html"] {
        assert!(settings.out.join(name).exists(), "{name}");
    }
    let text = std::fs::read_to_string(settings.out.join("results.json")).expect("just written");
    let kept: Results = serde_json::from_str(&text).expect("its own format");
    assert_eq!(kept.baseline, "two");
    weft_lab::report(&settings.out).expect("it can be written again");

    // Once more: what the lab has filled it knows again, and does not fill twice.
    settings.prefill = Prefill::IfNeeded;
    settings.targets.truncate(1);
    settings.baseline = None;
    settings.runtime_s = 1;
    let outcome = weft_lab::run(settings).expect("the file is the lab's own");
    assert!(!outcome.results.targets[0].prefilled);
    assert!(outcome.results.warnings.iter().any(|text| text.contains("not freshly filled")));
}

#[test]
fn the_table_has_all_its_rows_and_mixes_show_both_directions() {
    let place = Place::new("table");
    let mut settings = place.settings(&["raw"]);
    settings.rows = RowSet::Table;
    settings.runtime_s = 1;
    let outcome = weft_lab::run(settings).expect("fio runs on files");
    assert!(!outcome.failed, "{}", outcome.table);
    assert_eq!(outcome.results.measurements.len(), 11);
    for row in ["mix-8k-32", "durable-mix-8k-32"] {
        let mix = outcome.results.measurements.iter().find(|one| one.row == row).expect("both mixes");
        let summary = mix.summary.as_ref().expect("figures");
        assert!(summary.read.is_some() && summary.write.is_some(), "{row}");
    }
}

#[test]
fn data_that_compresses_and_data_that_does_not_are_measured_in_one_run() {
    let place = Place::new("compression");
    let mut settings = place.settings(&["raw"]);
    settings.rows = RowSet::Compression { percent: 75 };
    settings.runtime_s = 1;
    let outcome = weft_lab::run(settings.clone()).expect("fio runs on files");
    assert!(!outcome.failed, "{}", outcome.table);
    assert_eq!(outcome.results.scenario, "compression");
    assert_eq!(outcome.results.measurements.len(), 10);
    // The last thing written was noise; the job of the first fill says what the data before was.
    let job = |name: &str| std::fs::read_to_string(settings.out.join("raw").join(name)).expect("it was run");
    assert!(job("prefill-0-0.fio").contains("buffer_compress_percentage=75\n"));
    assert!(!job("prefill-1-0.fio").contains("buffer_compress_percentage"));
    let image = std::fs::read(place.0.join("raw.img")).expect("it is there");
    assert!(!image[2 << 20..].chunks(4096).any(has_pattern), "all of it was filled again");
    settings.prefill = Prefill::IfNeeded;
    assert!(weft_lab::run(settings).expect_err("the fill is the point").is_bad_input());
}

/// Whether most of a block is what the lab lets compress away.
fn has_pattern(block: &[u8]) -> bool {
    block.windows(64).any(|part| part.chunks(4).all(|word| word == &part[..4]))
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_is_touched() {
    let place = Place::new("refused");
    let mut settings = place.settings(&["data"]);
    let data = place.0.join("data.img");
    std::fs::write(&data, vec![7; 24 << 20]).expect("writable");
    let error = weft_lab::run(settings.clone()).expect_err("somebody's data");
    assert!(matches!(error, LabError::HoldsData { .. }) && error.is_bad_input(), "{error}");
    assert!(std::fs::read(&data).expect("readable").iter().all(|byte| *byte == 7));

    settings.fio = PathBuf::from("/nowhere/fio");
    let error = weft_lab::run(settings.clone()).expect_err("no fio");
    assert!(error.to_string().contains("apt-get install fio"), "{error}");
    settings.fio = PathBuf::from("fio");

    let nobody = format!("nbd+unix:///x?socket={}", place.0.join("nobody").display());
    settings.targets = vec![Target::parse(&nobody, &|_| None).expect("well formed")];
    let error = weft_lab::run(settings.clone()).expect_err("nobody listens");
    assert!(matches!(error, LabError::Unreachable { .. }), "{error}");
    assert!(!error.to_string().contains('\n'));

    settings.targets.clear();
    assert!(weft_lab::run(settings).expect_err("no target").is_bad_input());
}

#[test]
fn a_second_run_into_the_same_place_shows_nothing_of_the_first() {
    let place = Place::new("again");
    let mut settings = place.settings(&["one"]);
    settings.runtime_s = 4;
    weft_lab::run(settings.clone()).expect("fio runs on files");
    settings.runtime_s = 2;
    let outcome = weft_lab::run(settings.clone()).expect("the directory is the lab's own");
    for measurement in &outcome.results.measurements {
        let run = &measurement.runs[0];
        let last = run.read.series.iter().chain(&run.write.series).map(|sample| sample.second).max();
        assert!(last.is_some_and(|last| last <= 3), "{}: second {last:?}", measurement.row);
    }
    let job = |files: &str| {
        let text = std::fs::read_to_string(settings.out.join("raw").join(files)).expect("it was run");
        text.lines().find(|line| line.starts_with("randseed=")).expect("every job has one").to_string()
    };
    assert_ne!(job("random-read-8k-0-0.fio"), job("random-write-8k-0-0.fio"), "rows touch other blocks");

    // Somebody else's directory is none for a report.
    settings.out = place.0.join("foreign");
    std::fs::create_dir_all(&settings.out).expect("writable");
    std::fs::write(settings.out.join("results.csv"), "mine").expect("writable");
    let error = weft_lab::run(settings.clone()).expect_err("it is not the lab's");
    assert!(matches!(error, LabError::NotOurs { .. }) && error.is_bad_input(), "{error}");
    assert_eq!(std::fs::read_to_string(settings.out.join("results.csv")).expect("left alone"), "mine");
}

#[test]
fn two_names_of_one_file_are_one_target() {
    let place = Place::new("names");
    let mut settings = place.settings(&["one"]);
    std::fs::write(place.0.join("one.img"), "").expect("writable");
    std::os::unix::fs::symlink(place.0.join("one.img"), place.0.join("two.img")).expect("writable");
    settings.targets.push(place.file_target("two"));
    let error = weft_lab::run(settings).expect_err("they would overwrite each other");
    assert!(matches!(error, LabError::SamePlace { .. }), "{error}");
}
