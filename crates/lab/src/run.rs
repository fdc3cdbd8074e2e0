//! The run itself: look at all targets, fill, warm up, measure row by row with the targets taking turns, report.
//! Promises: what was measured before a failure or Ctrl-C is kept and reported; targets are compared within minutes of
//! each other, because each row goes over all of them before the next one begins.

use crate::error::LabError;
use crate::fio::{self, Failure, Job, Live};
use crate::fio_output::FioResult;
use crate::interrupt::Watch;
use crate::label::{self, LABEL_BYTES, Label, Looked};
use crate::measurement::{Measurement, NullRate, Results, RunFigures, ServerUse, Summary, TargetFacts};
use crate::plan::{self, Row};
use crate::process::{self, Usage};
use crate::profile::{Parameters, Profile, complete, seed_of};
use crate::progress::{Progress, rates};
use crate::rest::Rest;
use crate::settings::{RowSet, RunSettings};
use crate::target::{Kind, NOT_FOR_JOB_FILES, Target, survives_a_job_file};
use crate::{caution, provenance, report, table};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Version of `results.json`.
pub const FORMAT: u32 = 1;
/// Seconds each load runs on nothing, to see what the client can do.
const NULL_S: u64 = 1;
/// Seconds a server is watched before any load.
const IDLE_LOOK_S: u64 = 3;

/// What a run leaves behind.
#[derive(Debug)]
pub struct Outcome<R> {
    pub results: R,
    /// For the terminal.
    pub table: String,
    /// The HTML report.
    pub report: PathBuf,
    /// True if somebody stopped the run; what there was is reported all the same.
    pub interrupted: bool,
    /// True if some of it gave no figures, or a disturbance failed.
    pub failed: bool,
}

/// Runs a scenario of rows. Errors come before anything is measured; later trouble is in the results.
pub fn run(settings: RunSettings) -> Result<Outcome<Results>, LabError> {
    settings.check()?;
    let needs_nbd = settings.targets.iter().any(|target| matches!(target.kind, Kind::Nbd { .. }));
    let fio_version = fio::version(&settings.fio, needs_nbd)?;
    let settings = absolute(settings)?;
    report::check_own(&settings.out)?;
    let mut looked = Vec::new();
    for target in &settings.targets {
        looked.push(label::look_at(target, &settings)?);
    }
    let raw = settings.out.join("raw");
    std::fs::create_dir_all(&raw).map_err(|why| LabError::File { path: raw.clone(), why })?;
    for target in &settings.targets {
        label::make(target, settings.size)?;
    }
    label::mark(&settings.targets, &mut looked, settings.size)?;
    report::remove_old(&settings.out)?;
    Session::begin(settings, raw, &fio_version, &looked).go()
}

/// fio runs in the directory of its job file, so paths must not depend on ours.
fn absolute(mut settings: RunSettings) -> Result<RunSettings, LabError> {
    let full = |path: &Path| {
        std::path::absolute(path).map_err(|why| LabError::File { path: path.to_path_buf(), why })
    };
    settings.out = full(&settings.out)?;
    check_out(&settings.out)?;
    for target in &mut settings.targets {
        if let Kind::File(path) | Kind::Device(path) = &mut target.kind {
            *path = full(path)?;
        }
    }
    // Two names of one file, or of one device, are one place.
    let same = |path: &Path| std::fs::canonicalize(path).ok();
    let mut places = Vec::new();
    for target in &settings.targets {
        if let Kind::File(path) | Kind::Device(path) = &target.kind
            && let Some(place) = same(path)
        {
            if places.contains(&place) {
                return Err(LabError::SamePlace { place: place.display().to_string() });
            }
            places.push(place);
        }
    }
    // Whole writes of the fill reach to the very end.
    settings.size -= settings.size % LABEL_BYTES;
    Ok(settings)
}

/// fio gets the names of its logs in the job file.
pub(crate) fn check_out(out: &Path) -> Result<(), LabError> {
    if out.to_str().is_some_and(survives_a_job_file) {
        return Ok(());
    }
    Err(LabError::BadSetting { what: "the path of --out cannot be used", want: NOT_FOR_JOB_FILES })
}

struct Session {
    settings: RunSettings,
    raw: PathBuf,
    results: Results,
    looked: Vec<Looked>,
    progress: Progress,
    watch: Watch,
    began: Instant,
    io_uring: bool,
    /// What ended the run early, when there were figures already.
    trouble: Option<String>,
}

impl Session {
    fn begin(settings: RunSettings, raw: PathBuf, fio_version: &str, looked: &[Looked]) -> Session {
        let rows = plan::rows(&settings);
        let stages = plan::stages(&rows).count();
        let fills = looked.iter().filter(|looked| looked.fill).count() * stages;
        let warm_ups = plan::warm_ups(&settings).len() * settings.targets.len() * stages;
        let servers = settings.targets.iter().filter(|target| target.server_pid().is_some()).count();
        let runs = rows.len() * (settings.targets.len() * settings.repeats as usize + 1);
        let results = Results {
            format: FORMAT,
            scenario: match settings.rows {
                RowSet::Compression { .. } => "compression",
                RowSet::Corners | RowSet::Table => "four-corners",
            }
            .to_string(),
            baseline: settings.baseline_label().to_string(),
            interrupted: false,
            provenance: provenance::gather(&settings, fio_version),
            targets: settings
                .targets
                .iter()
                .zip(looked)
                .map(|(target, looked)| facts(target, looked, settings.size))
                .collect(),
            rows,
            null: Vec::new(),
            measurements: Vec::new(),
            warnings: Vec::new(),
        };
        Session {
            raw,
            results,
            looked: looked.to_vec(),
            progress: Progress::begin(servers + fills + warm_ups + runs),
            watch: Watch::begin(),
            began: Instant::now(),
            io_uring: fio::io_uring_allowed(),
            trouble: None,
            settings,
        }
    }

    fn go(mut self) -> Result<Outcome<Results>, LabError> {
        report::write_run_file(&self.settings.out, &self.settings, &self.results.provenance)?;
        self.watch_idle_servers();
        let rows = self.results.rows.clone();
        for (number, stage) in plan::stages(&rows).enumerate() {
            let ready = self.fill(number, stage[0].compressible_percent).and_then(|()| self.warm_up(number));
            if let Err(error) = ready {
                if self.results.measurements.is_empty() {
                    return Err(error);
                }
                self.trouble = Some(format!("The run ended before its last rows: {error}."));
                break;
            }
            if number == 0 {
                self.measure_null();
            }
            for row in stage {
                self.measure(row);
                self.keep();
            }
        }
        self.finish()
    }

    /// What the servers use while nothing is asked of them.
    fn watch_idle_servers(&mut self) {
        for (index, target) in self.settings.targets.clone().iter().enumerate() {
            let Some(pid) = target.server_pid() else { continue };
            if self.watch.asked() {
                return;
            }
            self.progress.step(format!("{}: idle server", target.label));
            let before = process::usage(pid);
            let began = Instant::now();
            self.watch.rest(Duration::from_secs(IDLE_LOOK_S));
            let (Some(before), Some(after)) = (before, process::usage(pid)) else {
                self.progress.done("its process was not found");
                continue;
            };
            let percent = after.percent_since(&before, began.elapsed());
            let facts = &mut self.results.targets[index];
            facts.idle_cpu_percent = Some(percent);
            facts.idle_resident_bytes = Some(after.resident_bytes);
            let mib = after.resident_bytes >> 20;
            self.progress.done(&format!("{percent:.1} % of a core, {mib} MiB of memory"));
        }
    }

    /// Writes the touched range once, with random data, and the label before and after it.
    fn fill(&mut self, stage: usize, compressible_percent: Option<u32>) -> Result<(), LabError> {
        let profile = Profile::named("prefill").expect("shipped");
        for (index, target) in self.settings.targets.clone().iter().enumerate() {
            if self.looked[index].fill && !self.watch.asked() {
                self.progress.step(format!("{}: prefill", target.label));
                // First the label without a fill: if we are stopped in between, the target is still ours to overwrite.
                self.write_label(index, 0)?;
                let lines = target.fio_lines(false, self.io_uring);
                let files = format!("prefill-{stage}-{index}");
                // Of each target its own: two that share what is alike would keep one copy of the same bytes.
                let seed = self.seed(&[&files]);
                let asked = Asked { depth: 8, compressible_percent, seed, ..Asked::default() };
                let result = self.load(profile, &lines, &files, asked);
                let result = result.map_err(|failure| self.step_failed("prefill", &target.label, failure))?;
                if !self.watch.asked() {
                    self.write_label(index, self.settings.size)?;
                }
                self.progress.done(&rates(result.write.iops, result.write.bytes_per_s));
            }
            self.results.targets[index].never_written_bytes =
                label::never_written(target, self.settings.size);
        }
        Ok(())
    }

    fn write_label(&mut self, index: usize, filled: u64) -> Result<(), LabError> {
        let label = &mut self.looked[index].label;
        *label = Label { filled, ..*label };
        label::write(&self.settings.targets[index], *label)
    }

    /// Reads everything once, and then here and there for some time.
    fn warm_up(&mut self, stage: usize) -> Result<(), LabError> {
        for (name, runtime_s) in plan::warm_ups(&self.settings) {
            let profile = Profile::named(name).expect("shipped");
            for (index, target) in self.settings.targets.clone().iter().enumerate() {
                if self.watch.asked() {
                    return Ok(());
                }
                self.progress.step(format!("{}: {name}", target.label));
                let lines = target.fio_lines(false, self.io_uring);
                let files = format!("{name}-{stage}-{index}");
                let seed = self.seed(&[name, &stage.to_string()]);
                let asked = Asked { depth: self.settings.depth, runtime_s, seed, ..Asked::default() };
                let result = self.load(profile, &lines, &files, asked);
                let result = result.map_err(|failure| self.step_failed(name, &target.label, failure))?;
                self.progress.done(&rates(result.read.iops, result.read.bytes_per_s));
                Rest { asked_s: self.settings.idle_s, writes: false }.take(&self.watch, None, None);
            }
        }
        Ok(())
    }

    /// The same load on nothing. A failure here costs only the warning that needs it.
    fn measure_null(&mut self) {
        for row in self.results.rows.clone() {
            if self.watch.asked() {
                return;
            }
            self.progress.step(format!("nothing: {}", row.title));
            let profile = Profile::named(&row.profile).expect("rows name shipped profiles");
            let files = format!("{}-null", row.key);
            let seed = self.seed(&[&row.key, "null"]);
            let asked = Asked { runtime_s: Some(NULL_S), seed, ..Asked::of(&row) };
            match self.load(profile, "ioengine=null\n", &files, asked) {
                Ok(result) => {
                    let iops = result.read.iops + result.write.iops;
                    self.progress.done(&rates(iops, result.read.bytes_per_s + result.write.bytes_per_s));
                    self.results.null.push(NullRate { row: row.key.clone(), iops });
                }
                Err(failure) => self.progress.done(&failure.why),
            }
        }
    }

    /// One row: all repeats, in each of them all targets in turn. Each repeat begins with another target: what one leaves behind
    /// (work put off, a warm CPU, a full cache of the host) is not always the same one's to bear.
    fn measure(&mut self, row: &Row) {
        let targets = self.settings.targets.clone();
        let mut runs: Vec<Vec<RunFigures>> = vec![Vec::new(); targets.len()];
        for repeat in 0..self.settings.repeats {
            for index in plan::turn(targets.len(), repeat) {
                if self.watch.asked() {
                    break;
                }
                let figures = self.measure_once(row, index, &targets[index], repeat);
                // Stopped before fio had anything to say: no run, and no failure of the target either.
                if !figures.cut || figures.has_figures() {
                    runs[index].push(figures);
                }
            }
        }
        for (target, runs) in targets.iter().zip(runs) {
            if !runs.is_empty() {
                let summary = Summary::of(&runs, row.figure);
                let (row, target) = (row.key.clone(), target.label.clone());
                self.results.measurements.push(Measurement { row, target, runs, summary });
            }
        }
    }

    fn measure_once(&mut self, row: &Row, index: usize, target: &Target, repeat: u32) -> RunFigures {
        let mut name = format!("{}: {}", target.label, row.title);
        if self.settings.repeats > 1 {
            name += &format!(", {} of {}", repeat + 1, self.settings.repeats);
        }
        self.progress.step(name);
        let files = format!("{}-{index}-{repeat}", row.key);
        let mut figures = RunFigures {
            repeat,
            started_s: self.began.elapsed().as_secs_f64(),
            read: Default::default(),
            write: Default::default(),
            flush: Default::default(),
            client_cpu_percent: 0.0,
            server: None,
            cut: false,
            error: None,
            files: files.clone(),
        };
        let profile = Profile::named(&row.profile).expect("rows name shipped profiles");
        let lines = target.fio_lines(row.durable, self.io_uring);
        let before = target.server_pid().and_then(process::usage);
        let runtime_s = Some(self.settings.runtime_s);
        // All targets are asked for the same blocks in the same order, and each repeat for others.
        let seed = self.seed(&[&row.key, &repeat.to_string()]);
        let asked = Asked { runtime_s, keep_samples: true, seed, ..Asked::of(row) };
        let result = self.load(profile, &lines, &files, asked);
        figures.cut = self.watch.asked();
        // Work put off until later is work of this row: the rest belongs to it.
        let idle_percent = self.results.targets[index].idle_cpu_percent;
        Rest { asked_s: self.settings.idle_s, writes: profile.writes() }.take(
            &self.watch,
            target.server_pid(),
            idle_percent,
        );
        let after = target.server_pid().and_then(process::usage);
        match result {
            Ok(result) => {
                let rate = result.read.iops + result.write.iops;
                self.progress.done(&rates(rate, result.read.bytes_per_s + result.write.bytes_per_s));
                take(&mut figures, result, before, after);
            }
            Err(failure) => {
                self.progress.done(&format!("failed: {}", failure.why));
                figures.error = Some(failure.why);
            }
        }
        figures
    }

    /// One run of fio with a completed profile.
    fn load(
        &mut self,
        profile: Profile,
        target_lines: &str,
        files: &str,
        asked: Asked,
    ) -> Result<FioResult, Failure> {
        let prefix = self.raw.join(files);
        let runtime_s = asked.runtime_s;
        let text = complete(
            profile,
            &Parameters {
                target_lines,
                offset: LABEL_BYTES,
                span: self.settings.size - LABEL_BYTES,
                depth: asked.depth,
                runtime_s,
                seed: asked.seed,
                compressible_percent: asked.compressible_percent,
                logs: asked.keep_samples.then_some(prefix.as_path()),
            },
        );
        let job = Job { fio: &self.settings.fio, text: &text, prefix: &prefix, runtime_s };
        let progress = &mut self.progress;
        let whole = runtime_s.is_none().then_some(self.settings.size - LABEL_BYTES);
        job.run(&self.watch, &mut |live: Live| progress.live(live, whole))
    }

    fn seed(&self, names: &[&str]) -> u64 {
        seed_of(self.settings.seed, names)
    }

    fn step_failed(&mut self, step: &str, label: &str, failure: Failure) -> LabError {
        self.progress.done("failed");
        LabError::Step {
            step: step.to_string(),
            label: label.to_string(),
            why: failure.why,
            log: failure.log,
        }
    }

    /// Keeps what has been measured so far, as a run that was stopped here: whatever ends the lab, `weft lab report` shows it.
    /// Should it not be possible, the end tells.
    fn keep(&mut self) {
        self.results.interrupted = true;
        self.results.provenance.ended_unix_s = provenance::now();
        self.results.warnings = caution::warnings(&self.results);
        let _ = report::keep(&self.settings.out, &self.results);
    }

    fn finish(mut self) -> Result<Outcome<Results>, LabError> {
        self.progress.end();
        self.results.interrupted = self.watch.asked();
        self.results.provenance.ended_unix_s = provenance::now();
        self.results.warnings = caution::warnings(&self.results);
        let failed = self.trouble.is_some()
            || self.results.measurements.iter().any(|one| one.runs.iter().any(|run| run.error.is_some()));
        self.results.warnings.extend(self.trouble.take());
        let table = table::terminal(&self.results);
        let report = report::write_all(&self.settings.out, &self.results)
            .map_err(|error| LabError::Unwritten { why: error.to_string(), table: table.clone() })?;
        Ok(Outcome { table, interrupted: self.results.interrupted, failed, report, results: self.results })
    }
}

/// What a run of fio is asked for besides its profile.
#[derive(Clone, Copy, Default)]
struct Asked {
    depth: u32,
    seed: u64,
    /// None: until everything is written once.
    runtime_s: Option<u64>,
    keep_samples: bool,
    compressible_percent: Option<u32>,
}

impl Asked {
    fn of(row: &Row) -> Asked {
        Asked { depth: row.depth, compressible_percent: row.compressible_percent, ..Asked::default() }
    }
}

fn take(figures: &mut RunFigures, result: FioResult, before: Option<Usage>, after: Option<Usage>) {
    figures.read = result.read;
    figures.write = result.write;
    figures.flush = result.flush;
    figures.client_cpu_percent = result.client_cpu_percent;
    if let (Some(before), Some(after)) = (before, after) {
        figures.server = Some(ServerUse::between(before, after, Some(figures.ios())));
    }
}

fn facts(target: &Target, looked: &Looked, size: u64) -> TargetFacts {
    TargetFacts {
        label: target.label.clone(),
        place: target.place().to_string(),
        kind: match &target.kind {
            Kind::Nbd { .. } => "nbd",
            Kind::File(_) => "file",
            Kind::Device(_) => "device",
        }
        .to_string(),
        durable_writes: target.durability_explained().to_string(),
        capacity_bytes: looked.capacity,
        server_pid: target.server_pid(),
        in_cluster: matches!(target.kind, Kind::Nbd { in_cluster: true, .. }),
        idle_cpu_percent: None,
        idle_resident_bytes: None,
        prefilled: looked.fill,
        never_written_bytes: None,
        was_filled: Some(looked.fill || looked.label.filled >= size),
    }
}
