//! The run of a scenario: all targets one after the other, each with setup, timeline and teardown.
//! Promises: before anything is measured every target has made its volumes, taken a snapshot if the scenario takes any, and removed
//! both; a target that fails later costs its own figures only; what a target made is removed, however its run ends.

use super::load::{self, Common, Load, Rates, Stream};
use super::recorded::Recorded;
use super::results::{ClientFloor, Event, Phase, PlatformFacts, ScenarioResults, TargetRun, Window};
use super::settings::{Disturbance, ScenarioSettings};
use super::verdict::{self, Band, Comparison, Verdict};
use super::{page, table};
use crate::error::LabError;
use crate::fio::{self, Failure, Job, Live};
use crate::fio_output::FioResult;
use crate::interrupt::Watch;
use crate::measurement::ServerUse;
use crate::platform::{Platform, PlatformTarget, Volume};
use crate::process;
use crate::progress::{Progress, rates};
use crate::provenance;
use crate::run::Outcome;
use crate::target::Target;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Version of the scenarios' `results.json`.
pub const FORMAT: u32 = 1;
/// Seconds the load runs on nothing.
const NULL_S: u64 = 10;
/// How often the timeline looks what is due.
const LOOK: Duration = Duration::from_millis(20);
/// Seconds before and behind a disturbance that are compared, unless the next one comes sooner.
const BESIDE_S: u64 = 10;

/// Runs a scenario. Errors come before anything is measured; later trouble is in the results.
pub fn run(settings: ScenarioSettings) -> Result<Outcome<ScenarioResults>, LabError> {
    settings.check()?;
    let needs_nbd = settings.targets.iter().any(PlatformTarget::over_nbd);
    let fio_version = fio::version(&settings.fio, needs_nbd)?;
    let out = std::path::absolute(&settings.out)
        .map_err(|why| LabError::File { path: settings.out.clone(), why })?;
    crate::run::check_out(&out)?;
    crate::report::check_own(&out)?;
    let raw = out.join("raw");
    std::fs::create_dir_all(&raw).map_err(|why| LabError::File { path: raw.clone(), why })?;
    let settings = ScenarioSettings { out, ..settings };
    let watch = Watch::begin();
    let session = Session {
        volumes: volumes(&settings),
        rates: Rates::of(settings.rate_iops),
        band: Band::around(Rates::of(settings.rate_iops).sum() as f64),
        raw,
        watch,
        io_uring: fio::io_uring_allowed(),
        progress: Mutex::new(Progress::begin(
            1 + settings.targets.len() * (1 + 2 * settings.repeats as usize),
        )),
        settings,
    };
    session.go(&fio_version)
}

/// The database's volumes, and behind them the neighbour's.
fn volumes(settings: &ScenarioSettings) -> Vec<Volume> {
    let mut volumes = load::database_volumes(settings.size);
    if matches!(settings.disturbance, Disturbance::Neighbour { .. }) {
        volumes.push(load::scan_volume(settings.size));
    }
    volumes
}

struct Session {
    settings: ScenarioSettings,
    volumes: Vec<Volume>,
    rates: Rates,
    band: Band,
    raw: PathBuf,
    watch: Watch,
    io_uring: bool,
    progress: Mutex<Progress>,
}

/// What was done to the platform, by the clock of the day.
struct Done {
    text: String,
    at: SystemTime,
    took: Duration,
    error: Option<String>,
}

/// What fio and the timeline left.
struct Timeline {
    database: Result<FioResult, Failure>,
    scan: Option<Result<FioResult, Failure>>,
    done: Vec<Done>,
    /// When failed I/Os were noticed, and how many.
    errors: Vec<(SystemTime, u64)>,
}

impl Session {
    /// What snapshots keep at most: from one to the next each write changes another cluster, until all have changed.
    fn snapshot_bytes(&self) -> u64 {
        match self.settings.disturbance {
            Disturbance::Snapshots { count, every_s } => {
                u64::from(count) * (self.rates.changed_bytes_per_s() * every_s).min(self.settings.size)
            }
            Disturbance::Neighbour { .. } => 0,
        }
    }

    fn go(self, fio_version: &str) -> Result<Outcome<ScenarioResults>, LabError> {
        let dirs = self.settings.targets.iter().filter_map(PlatformTarget::dir);
        let places: Vec<&Path> = std::iter::once(self.settings.out.as_path()).chain(dirs).collect();
        let mut results = ScenarioResults {
            format: FORMAT,
            scenario: self.settings.disturbance.name().to_string(),
            explanation: explanation(&self.settings, self.rates),
            interrupted: false,
            provenance: provenance::machine(&places, &self.settings.command_line, fio_version),
            client: None,
            band: self.band,
            targets: self.settings.targets.iter().map(facts).collect(),
            runs: Vec::new(),
            warnings: Vec::new(),
        };
        results.provenance.size_bytes = self.settings.size;
        results.provenance.runtime_s = self.settings.runtime_s();
        results.provenance.idle_s = Some(self.settings.idle_s);
        if let Disturbance::Neighbour { depth, .. } = self.settings.disturbance {
            results.provenance.depth = Some(depth);
        }
        results.provenance.repeats = self.settings.repeats;
        results.provenance.seed = self.settings.seed;
        for target in self.settings.targets.iter().take_while(|_| !self.watch.asked()) {
            self.look_at(target)?;
        }
        if self.watch.asked() {
            self.progress.lock().expect("no thread panics with it").end();
            return Err(LabError::Stopped);
        }
        // Not before: what cannot be run leaves an earlier report as it is.
        crate::report::write_run_file(&self.settings.out, &self.settings, &results.provenance)?;
        crate::report::remove_old(&self.settings.out)?;
        results.client = self.measure_null();
        for repeat in 0..self.settings.repeats {
            for (index, target) in self.settings.targets.iter().enumerate() {
                if !self.watch.asked() {
                    let run = self.run_target(target, index, repeat);
                    // Stopped before its load began: no run, and no failure of the target either.
                    if run.verdict.is_some() || run.error.is_some() || !self.watch.asked() {
                        results.runs.push(run);
                        self.keep(&mut results);
                    }
                }
            }
        }
        self.finish(results)
    }

    /// Everything that the run will need of a target, once and small in time: nobody wants to hear after an hour that the last
    /// one cannot take snapshots.
    fn look_at(&self, target: &PlatformTarget) -> Result<(), LabError> {
        self.step(format!("{}: looking at it", target.label));
        let failed = |step: &'static str, why: String| {
            self.progress.lock().expect("no thread panics with it").end();
            LabError::Platform { label: target.label.clone(), step, why }
        };
        let mut platform = target.open(&self.volumes, self.snapshot_bytes()).inspect_err(|_| {
            self.progress.lock().expect("no thread panics with it").end();
        })?;
        if target.takes_snapshots() && matches!(self.settings.disturbance, Disturbance::Snapshots { .. }) {
            platform.snapshot(1).map_err(|why| failed("taking a snapshot to try it", why))?;
        }
        platform.remove().map_err(|why| failed("removing what it had made to try it", why))?;
        self.done("volumes can be made and taken away");
        Ok(())
    }

    /// The load on nothing: what this client gives at best. A failure costs only the comparison with it.
    fn measure_null(&self) -> Option<ClientFloor> {
        self.step("nothing: the load alone".to_string());
        let prefix = self.raw.join("null");
        let seconds = NULL_S.min(self.settings.runtime_s());
        let database = &self.volumes[..self.database_volumes()];
        let common = self.common(seconds, &prefix);
        let load = load::database(&common, database, None, self.rates);
        let job =
            Job { fio: &self.settings.fio, text: &load.text, prefix: &prefix, runtime_s: Some(seconds) };
        let floor = job.run(&self.watch, &mut |_| {}).ok().and_then(|result| {
            let recorded = Recorded::read((&prefix, &load.parts), result.runtime_ms, &[]).ok()?;
            let series = recorded.series();
            let all = series.iter().find(|one| one.stream == Stream::Database)?;
            let samples = verdict::rates(verdict::seconds_between(&all.seconds, 0, recorded.seconds));
            let own = Verdict::of(&samples, &self.band)?;
            // Too short to say anything otherwise.
            (samples.len() >= 3).then_some(ClientFloor {
                iops_mean: own.iops_mean,
                variation: own.variation,
                in_band_share: own.in_band_share,
            })
        });
        match floor {
            Some(floor) => self.done(&format!(
                "{:.0} of {} I/Os per second, {:.0} % of the seconds in the band",
                floor.iops_mean,
                self.rates.sum(),
                floor.in_band_share * 100.0
            )),
            None => self.done("no figures"),
        }
        floor
    }

    fn run_target(&self, target: &PlatformTarget, index: usize, repeat: u32) -> TargetRun {
        let files = format!("{index}-{repeat}");
        let mut run =
            TargetRun { target: target.label.clone(), repeat, files: files.clone(), ..Default::default() };
        let outcome = target.open(&self.volumes, self.snapshot_bytes()).and_then(|mut platform| {
            self.fill(target, platform.as_ref(), &files)?;
            self.watch.rest(Duration::from_secs(self.settings.idle_s));
            if !self.watch.asked() {
                self.measure(target, platform.as_mut(), &files, &mut run)?;
            }
            let removed = platform.remove();
            removed.map_err(|why| self.failed(target, "removing what it had made", why))
        });
        if let Err(error) = outcome {
            self.done(&format!("failed: {error}"));
            run.error.get_or_insert(error.to_string());
        }
        run
    }

    fn failed(&self, target: &PlatformTarget, step: &'static str, why: String) -> LabError {
        LabError::Platform { label: target.label.clone(), step, why }
    }

    fn fill(&self, target: &PlatformTarget, platform: &dyn Platform, files: &str) -> Result<(), LabError> {
        self.step(format!("{}: fill", target.label));
        let prefix = self.raw.join(format!("{files}-fill"));
        let text = load::fill(&self.volumes, platform.targets(), self.io_uring);
        let job = Job { fio: &self.settings.fio, text: &text, prefix: &prefix, runtime_s: None };
        let whole = self.volumes.iter().map(|volume| volume.bytes).sum();
        let result = job.run(&self.watch, &mut |live| self.live(live, Some(whole)));
        let result = result.map_err(|failure| self.failed(target, "filling the volumes", failure.why))?;
        self.done(&rates(result.write.iops, result.write.bytes_per_s));
        Ok(())
    }

    fn measure(
        &self,
        target: &PlatformTarget,
        platform: &mut dyn Platform,
        files: &str,
        run: &mut TargetRun,
    ) -> Result<(), LabError> {
        self.step(format!("{}: {}", target.label, self.settings.disturbance.name()));
        let pid = platform.targets()[0].server_pid();
        let before = pid.and_then(process::usage);
        let prefixes = [self.raw.join(files), self.raw.join(format!("{files}-scan"))];
        let targets = platform.targets().to_vec();
        let count = self.database_volumes();
        let common = self.common(self.settings.runtime_s(), &prefixes[0]);
        let database = load::database(&common, &self.volumes[..count], Some(&targets[..count]), self.rates);
        let scan = self.scan(&targets, &prefixes[1]);
        let timeline = self.timeline(
            target,
            platform,
            (&database, &prefixes[0]),
            scan.as_ref().map(|s| (s, prefixes[1].as_path())),
        );
        let after = pid.and_then(process::usage);
        let result = timeline
            .database
            .as_ref()
            .map_err(|failure| self.failed(target, "the database load", failure.why.clone()))?;
        let scanned = matches!(timeline.scan, Some(Ok(_)));
        let others: Vec<(&Path, &[load::Part])> = match &scan {
            Some(load) if scanned => vec![(prefixes[1].as_path(), load.parts.as_slice())],
            _ => Vec::new(),
        };
        let recorded = Recorded::read((&prefixes[0], &database.parts), result.runtime_ms, &others)
            .map_err(|why| self.failed(target, "reading fio's logs", why.to_string()))?;
        run.errors = result.errors;
        if let (Some(before), Some(after)) = (before, after) {
            // What it did for the neighbour too is in its CPU, and cannot be told apart.
            let is_alone = !matches!(self.settings.disturbance, Disturbance::Neighbour { .. });
            let ios = is_alone.then_some(result.read.ios + result.write.ios);
            run.server = Some(ServerUse::between(before, after, ios));
        }
        match &timeline.scan {
            Some(Err(failure)) => run.error = Some(format!("the neighbour: {}", failure.why)),
            Some(Ok(scan)) if scan.errors > 0 => {
                run.error = Some(format!("the neighbour: {} of its reads failed", scan.errors));
            }
            _ => {}
        }
        if let Disturbance::Snapshots { count, .. } = self.settings.disturbance
            && target.takes_snapshots()
            && !self.watch.asked()
            && timeline.done.len() < count as usize
        {
            let taken = timeline.done.len();
            run.error = Some(format!(
                "only {taken} of {count} snapshots were taken: one took longer than there was between two (use a longer --every)"
            ));
        }
        judge(run, &recorded, &timeline, self.band, &self.settings);
        self.done(&match &run.verdict {
            Some(verdict) => format!(
                "{:.0} I/Os per second, {:.0} % of the seconds in the band",
                verdict.iops_mean,
                verdict.in_band_share * 100.0
            ),
            None => "too short for figures".to_string(),
        });
        Ok(())
    }

    fn scan(&self, targets: &[Target], prefix: &Path) -> Option<Load> {
        let Disturbance::Neighbour { runtime_s, depth } = self.settings.disturbance else { return None };
        let common = self.common(runtime_s / 3, prefix);
        let (volume, target) = (self.volumes.last()?, targets.last()?);
        Some(load::scan(&common, volume, target, depth))
    }

    /// The database runs from beginning to end; meanwhile things are done when their time comes.
    fn timeline(
        &self,
        target: &PlatformTarget,
        platform: &mut dyn Platform,
        (database, prefix): (&Load, &Path),
        scan: Option<(&Load, &Path)>,
    ) -> Timeline {
        let runtime_s = self.settings.runtime_s();
        let errors = Mutex::new(Vec::new());
        // Times are those of the load, as in what it records: it may take a while to connect and begin.
        let began = OnceLock::new();
        let mut done = Vec::new();
        let mut scanned = None;
        let job = |load: &Load, prefix: &Path, seconds, on_live: &mut dyn FnMut(Live)| {
            let job = Job { fio: &self.settings.fio, text: &load.text, prefix, runtime_s: Some(seconds) };
            job.run(&self.watch, on_live)
        };
        let database = std::thread::scope(|threads| {
            let load = threads.spawn(|| {
                let mut seen = 0;
                job(database, prefix, runtime_s, &mut |live: Live| {
                    if live.bytes > 0 {
                        began.get_or_init(Instant::now);
                    }
                    if live.errors > seen {
                        let mut errors = errors.lock().expect("no thread panics with it");
                        errors.push((SystemTime::now(), live.errors - seen));
                        seen = live.errors;
                    }
                    self.live(live, None);
                })
            });
            let due =
                |at_s: u64| began.get().is_some_and(|began| began.elapsed() >= Duration::from_secs(at_s));
            let mut neighbour = None;
            while !load.is_finished() {
                match self.settings.disturbance {
                    Disturbance::Snapshots { count, every_s } => {
                        let number = done.len() as u32 + 1;
                        let at_s = self.settings.lead_s + u64::from(number - 1) * every_s;
                        let wanted = target.takes_snapshots() && number <= count && !self.watch.asked();
                        if wanted && due(at_s) {
                            done.push(take_snapshot(platform, number));
                        }
                    }
                    Disturbance::Neighbour { runtime_s, .. } => {
                        if let Some((load, prefix)) = scan
                            && neighbour.is_none()
                            && due(runtime_s / 3)
                            && !self.watch.asked()
                        {
                            let begun = SystemTime::now();
                            neighbour = Some((
                                begun,
                                threads.spawn(move || {
                                    let result = job(load, prefix, runtime_s / 3, &mut |_| {});
                                    (result, SystemTime::now())
                                }),
                            ));
                        }
                    }
                }
                std::thread::sleep(LOOK);
            }
            if let Some((at, thread)) = neighbour {
                let (result, ended) = thread.join().expect("the lab's threads do not panic");
                let took = ended.duration_since(at).unwrap_or_default();
                // Who stopped the lab stopped the neighbour as well: that is no failure of it.
                let failure = result.as_ref().err().filter(|_| !self.watch.asked());
                let error = failure.map(|failure| failure.why.clone());
                done.push(Done { text: "neighbour".to_string(), at, took, error });
                scanned = Some(result);
            }
            load.join().expect("the lab's threads do not panic")
        });
        let errors = errors.into_inner().expect("no thread panics with it");
        Timeline { database, scan: scanned, done, errors }
    }

    /// Keeps what has been measured so far, as a run that was stopped here: whatever ends the lab, `weft lab report` shows it.
    /// Should it not be possible, the end tells.
    fn keep(&self, results: &mut ScenarioResults) {
        results.interrupted = true;
        results.provenance.ended_unix_s = provenance::now();
        results.warnings = table::warnings(results);
        let _ = page::keep(&self.settings.out, results);
    }

    fn finish(self, mut results: ScenarioResults) -> Result<Outcome<ScenarioResults>, LabError> {
        self.progress.lock().expect("no thread panics with it").end();
        results.interrupted = self.watch.asked();
        results.provenance.ended_unix_s = provenance::now();
        results.warnings = table::warnings(&results);
        let table = table::terminal(&results);
        let report = page::write_all(&self.settings.out, &results)
            .map_err(|error| LabError::Unwritten { why: error.to_string(), table: table.clone() })?;
        Ok(Outcome {
            table,
            report,
            interrupted: results.interrupted,
            failed: results.runs.iter().any(TargetRun::is_troubled),
            results,
        })
    }

    fn database_volumes(&self) -> usize {
        match self.settings.disturbance {
            Disturbance::Snapshots { .. } => self.volumes.len(),
            Disturbance::Neighbour { .. } => self.volumes.len() - 1,
        }
    }

    fn common<'a>(&self, runtime_s: u64, logs: &'a Path) -> Common<'a> {
        Common { runtime_s, seed: self.settings.seed, logs, io_uring: self.io_uring }
    }

    fn step(&self, name: String) {
        self.progress.lock().expect("no thread panics with it").step(name);
    }

    fn live(&self, live: Live, whole: Option<u64>) {
        self.progress.lock().expect("no thread panics with it").live(live, whole);
    }

    fn done(&self, outcome: &str) {
        self.progress.lock().expect("no thread panics with it").done(outcome);
    }
}

fn take_snapshot(platform: &mut dyn Platform, number: u32) -> Done {
    let at = SystemTime::now();
    let begun = Instant::now();
    let error = platform.snapshot(number).err();
    Done { text: format!("snapshot {number}"), at, took: begun.elapsed(), error }
}

/// Cuts the run into windows at what was done, and applies the formulas.
fn judge(
    run: &mut TargetRun,
    recorded: &Recorded,
    timeline: &Timeline,
    band: Band,
    settings: &ScenarioSettings,
) {
    let since = |at: SystemTime| {
        let ms = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as f64;
        (ms - recorded.began_ms as f64) / 1000.0
    };
    run.began_unix_s = recorded.began_ms / 1000;
    run.series = recorded.series();
    run.whole = recorded.between(Stream::Database, 0, u64::MAX);
    run.errors_by_second =
        timeline.errors.iter().map(|(at, count)| (since(*at).max(0.0) as u64, *count)).collect();
    let seconds = run.seconds(Stream::Database).to_vec();
    let end = recorded.seconds;
    run.verdict = Verdict::of(&verdict::rates(verdict::seconds_between(&seconds, 0, end)), &band);
    let window = |from_s: u64, to_s: u64| window(recorded, &seconds, band, from_s, to_s);
    let starts: Vec<u64> = timeline.done.iter().map(|done| since(done.at).max(0.0) as u64).collect();
    let phase = |name: &str, from_s: u64, to_s: u64| {
        let log = recorded.between(Stream::LogWrites, from_s.max(1), to_s);
        Phase {
            name: name.to_string(),
            window: window(from_s, to_s),
            log_us_p50: log.us_p50,
            log_us_p99: log.us_p99,
        }
    };
    match settings.disturbance {
        Disturbance::Snapshots { .. } => {
            // Where none is taken (the control), the same times are told apart.
            let first = starts.first().copied().unwrap_or(settings.lead_s).min(end);
            let ended = |done: &Done| (since(done.at) + done.took.as_secs_f64()).max(0.0) as u64;
            let last = timeline.done.last().map_or(settings.last_at_s(), ended);
            let last = (last + 1).clamp(first, end);
            run.phases = vec![
                phase("before the first snapshot", 0, first),
                phase("with snapshots", first, last),
                phase("after the last snapshot", last, end),
            ];
            let [before, after] = [(0, first), (last, end)]
                .map(|(from_s, to_s)| verdict::seconds_between(&seconds, from_s, to_s));
            run.after_all = Comparison::of(before, after);
        }
        Disturbance::Neighbour { .. } => {
            if let Some(done) = timeline.done.first() {
                let (from, to) =
                    (starts[0].min(end), (since(done.at) + done.took.as_secs_f64()).max(0.0).ceil() as u64);
                let to = to.clamp(from, end);
                run.phases = vec![
                    phase("before", 0, from),
                    phase("beside the neighbour", from, to),
                    phase("afterwards", to, end),
                ];
                if let Some(Ok(scan)) = &timeline.scan {
                    // Of the time in which it read: its process begins before, and ends behind that.
                    run.phases[1].window.scan_bytes_per_s = scan.read.bytes_per_s;
                }
            }
        }
    }
    let base = run.phases.first().map(|phase| phase.window).unwrap_or_default();
    let lasts = matches!(settings.disturbance, Disturbance::Neighbour { .. });
    for (index, done) in timeline.done.iter().enumerate() {
        let from = starts[index].min(end);
        let next = starts.get(index + 1).copied().unwrap_or(end).min(end);
        // A disturbance that lasts is judged while it does, and what comes back comes back behind it.
        let until = if lasts { run.phases[1].window.to_s } else { next };
        let over = if lasts { until } else { from };
        let last = if index == 0 { 0 } else { starts[index - 1].min(from) };
        let reach = BESIDE_S.min(until.saturating_sub(from)).max(1);
        let after = window(from, until);
        run.events.push(Event {
            number: index as u32 + 1,
            text: done.text.clone(),
            at_s: since(done.at),
            took_s: done.took.as_secs_f64(),
            error: done.error.clone(),
            before: window(from.saturating_sub(reach).max(last), from),
            degraded: verdict::degraded(&after, &base, &band),
            recovery_s: verdict::recovery_s(&seconds, over, next, &base, &band),
            after,
        });
    }
    if matches!(settings.disturbance, Disturbance::Snapshots { .. }) {
        run.first_degraded = verdict::first_degraded(&run.events);
    }
}

fn window(
    recorded: &Recorded,
    seconds: &[super::results::Second],
    band: Band,
    from_s: u64,
    to_s: u64,
) -> Window {
    let own = verdict::seconds_between(seconds, from_s, to_s);
    let samples = verdict::rates(own);
    let all = recorded.between(Stream::Database, from_s.max(1), to_s);
    let scan = recorded.between(Stream::Scan, from_s, to_s);
    Window {
        from_s,
        to_s,
        seconds: own.len(),
        // Not sum(), which is -0 for nothing.
        iops_mean: samples.iter().fold(0.0, |sum, iops| sum + iops) / samples.len().max(1) as f64,
        in_band_share: band.share(&samples),
        us_mean: all.us_mean,
        us_p50: all.us_p50,
        us_p99: all.us_p99,
        us_p999: all.us_p999,
        us_max: all.us_max,
        us_middle: verdict::middle_us(own),
        scan_bytes_per_s: scan.bytes as f64 / to_s.saturating_sub(from_s).max(1) as f64,
    }
}

fn facts(target: &PlatformTarget) -> PlatformFacts {
    PlatformFacts {
        label: target.label.clone(),
        place: target.place(),
        snapshots: target.snapshots_explained().to_string(),
        takes_snapshots: target.takes_snapshots(),
        durable_writes: target.durability_explained().to_string(),
        in_cluster: target.in_cluster(),
    }
}

fn explanation(settings: &ScenarioSettings, rates: Rates) -> String {
    let load = format!(
        "A database of {} volumes does {} I/Os per second (random 8 KiB and 32 KiB reads and writes, and 32 KiB log writes), \
         whatever happens",
        load::database_volumes(settings.size).len(),
        rates.sum()
    );
    match settings.disturbance {
        Disturbance::Snapshots { count, every_s } => format!(
            "{load}. After {} s all its volumes are snapshotted at once, then every {every_s} s, {count} times in all; the \
             snapshots stay.",
            settings.lead_s
        ),
        Disturbance::Neighbour { runtime_s, depth } => format!(
            "{load}, for {runtime_s} s. In the middle third somebody reads another volume of the same platform in sequence, \
             1 MiB at a time with {depth} outstanding, as fast as it goes."
        ),
    }
}
