//! One run of fio: started, watched, ended.
//! Promises: the process does not outlive the call (nor this process, should that be killed); a run that does not end in
//! time is ended; everything fio said is kept in files.
//! Leaves to others: what the job does (`profile`), what its output means (`fio_output`).

use crate::error::LabError;
use crate::fio_output::{self, Documents, FioResult};
use crate::interrupt::Watch;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long fio may take beyond its runtime, and how long it may get nothing done, before it is ended.
const PATIENCE: Duration = Duration::from_secs(120);
/// The same for what is written once: it ends with a flush, which counts as nothing done, and a server may have much in memory by then.
const FLUSH_PATIENCE: Duration = Duration::from_secs(15 * 60);
/// How long fio may take to write its results after it was told to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// A completed job file and where its output goes.
pub struct Job<'a> {
    pub fio: &'a Path,
    /// Text of the job file.
    pub text: &'a str,
    /// Path without ending: `.fio`, `.json`, `.txt` and fio's log endings are added.
    pub prefix: &'a Path,
    pub runtime_s: Option<u64>,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Live {
    pub bytes: u64,
    /// Of the last second or so.
    pub iops: f64,
    pub bytes_per_s: f64,
    /// I/Os that have failed so far.
    pub errors: u64,
}

/// Why a run gave no figures.
#[derive(Debug)]
pub struct Failure {
    pub why: String,
    pub log: PathBuf,
}

impl<'a> Job<'a> {
    pub fn path(&self, ending: &str) -> PathBuf {
        let mut path = self.prefix.as_os_str().to_owned();
        path.push(ending);
        PathBuf::from(path)
    }

    /// What an earlier run left under this name: fio appends to its logs, and the seconds of both would be taken for one run's.
    fn remove_old(&self) -> std::io::Result<()> {
        let parent = self.prefix.parent().expect("a job has a directory");
        let name = self.prefix.file_name().expect("a job has a name").to_string_lossy().into_owned();
        for entry in std::fs::read_dir(parent)? {
            let entry = entry?;
            let file = entry.file_name();
            let rest = file.to_str().and_then(|file| file.strip_prefix(&name));
            let is_old = rest.is_some_and(|rest| {
                [".json", ".txt"].contains(&rest) || (rest.starts_with('_') && rest.ends_with(".log"))
            });
            if is_old {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Runs it to its end. When somebody asks to stop meanwhile, fio is told to stop and what it has measured is returned.
    pub fn run(&self, watch: &Watch, on_live: &mut dyn FnMut(Live)) -> Result<FioResult, Failure> {
        let log = self.path(".txt");
        let fail = |why: String| Failure { why, log: log.clone() };
        let job_file = self.path(".fio");
        self.remove_old().map_err(|why| fail(why.to_string()))?;
        std::fs::write(&job_file, self.text).map_err(|why| fail(why.to_string()))?;
        let errors = std::fs::File::create(&log).map_err(|why| fail(why.to_string()))?;
        let mut command = Command::new(self.fio);
        command.args(["--output-format=json+", "--status-interval=1", "--eta=never"]).arg(&job_file);
        // fio puts a state file into its directory when it is stopped; the job's paths are absolute.
        command.current_dir(job_file.parent().expect("a file lies in a directory"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors).process_group(0);
        end_with_parent(&mut command);
        let mut child = command.spawn().map_err(|why| fail(format!("fio did not start: {why}")))?;
        let lines = reader(&mut child);
        let outcome = self.follow(&mut child, &lines, watch, on_live);
        // Whatever happened above, nothing stays behind.
        let _ = child.kill();
        let status = child.wait().map_err(|why| fail(why.to_string()))?;
        let (document, said) = outcome;
        if !said.is_empty() {
            let before = std::fs::read_to_string(&log).unwrap_or_default();
            std::fs::write(&log, before + &said).map_err(|why| fail(why.to_string()))?;
        }
        if let Some(document) = &document {
            std::fs::write(self.path(".json"), document).map_err(|why| fail(why.to_string()))?;
        }
        let result = document.as_deref().and_then(fio_output::parse);
        match result {
            // An error that the load went on behind is a count, not the end of the run.
            Some(mut result)
                if (result.error == 0 || result.errors > 0) && (status.success() || watch.asked()) =>
            {
                fio_output::add_series(&mut result, self.prefix);
                if std::fs::metadata(&log).is_ok_and(|facts| facts.len() == 0) {
                    // fio had nothing to say beside its figures; the file would only be clutter.
                    let _ = std::fs::remove_file(&log);
                }
                Ok(result)
            }
            _ => Err(fail(reason(&log, result.map_or(0, |result| result.error)))),
        }
    }

    /// Reads until fio ends. Returns its last document and its other words.
    fn follow(
        &self,
        child: &mut Child,
        lines: &Receiver<String>,
        watch: &Watch,
        on_live: &mut dyn FnMut(Live),
    ) -> (Option<String>, String) {
        let started = Instant::now();
        let limit = self.runtime_s.map(|seconds| Duration::from_secs(seconds) + PATIENCE);
        let patience = if self.runtime_s.is_some() { PATIENCE } else { FLUSH_PATIENCE };
        let mut documents = Documents::default();
        let mut last_document = None;
        let (mut last_totals, mut last_change) = (fio_output::Totals::default(), started);
        let mut told_to_stop: Option<Instant> = None;
        loop {
            match lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => {
                    if let Some(document) = documents.take(&line) {
                        if let Some(totals) = fio_output::totals(&document)
                            && totals != last_totals
                        {
                            let seconds = last_change.elapsed().as_secs_f64().max(0.001);
                            on_live(Live {
                                bytes: totals.bytes,
                                iops: totals.ios.saturating_sub(last_totals.ios) as f64 / seconds,
                                bytes_per_s: totals.bytes.saturating_sub(last_totals.bytes) as f64 / seconds,
                                errors: totals.errors,
                            });
                            (last_totals, last_change) = (totals, Instant::now());
                        }
                        last_document = Some(document);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return (last_document, documents.said),
            }
            if watch.asked() && told_to_stop.is_none() {
                told_to_stop = Some(Instant::now());
                stop(child);
            }
            let stuck =
                last_change.elapsed() > patience || limit.is_some_and(|limit| started.elapsed() > limit);
            let unwilling = told_to_stop.is_some_and(|since| since.elapsed() > STOP_PATIENCE);
            if stuck || unwilling {
                documents.said += "the lab ended fio, which had got nothing done or did not stop in time\n";
                // The last document is no result then: I/Os were hanging.
                return (None, documents.said);
            }
        }
    }
}

fn reader(child: &mut Child) -> Receiver<String> {
    let output = child.stdout.take().expect("stdout was asked to be a pipe");
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// A child is ended by the kernel if the thread that started it ends without a word.
pub(crate) fn end_with_parent(command: &mut Command) {
    // SAFETY: prctl with these arguments is async-signal-safe and touches no memory of ours.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// Asks fio to stop and to report what it has.
fn stop(child: &Child) {
    // SAFETY: a signal to a child that has not been waited for, so its number cannot be another process's.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
}

/// The line in fio's words that tells most: usually the first, what follows are consequences.
fn reason(log: &Path, error: i64) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let chatter = ["terminating on signal", "connected to NBD server"];
    let telling = |line: &&str| !line.trim().is_empty() && !chatter.iter().any(|words| line.contains(words));
    let ended = text.lines().find(|line| line.contains("the lab ended fio"));
    match (ended.or_else(|| text.lines().find(telling)), error) {
        (Some(line), _) => line.trim().trim_start_matches("fio: ").to_string(),
        (None, 0) => "fio ended without a result".to_string(),
        (None, code) => std::io::Error::from_raw_os_error(code as i32).to_string(),
    }
}

/// fio's version, if it is there; and that it has the NBD engine, if that is needed.
pub fn version(fio: &Path, needs_nbd: bool) -> Result<String, LabError> {
    let missing = || LabError::NoFio { fio: fio.to_path_buf() };
    let output = Command::new(fio).arg("--version").output().map_err(|_| missing())?;
    if !output.status.success() {
        return Err(missing());
    }
    if needs_nbd {
        let engines = Command::new(fio).arg("--enghelp").output().map_err(|_| missing())?;
        let text = String::from_utf8_lossy(&engines.stdout).into_owned();
        if !text.lines().any(|line| line.trim() == "nbd") {
            return Err(LabError::NoNbdEngine);
        }
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Whether fio may use io_uring here; some systems switch it off.
pub fn io_uring_allowed() -> bool {
    match std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled") {
        Ok(text) => text.trim() == "0",
        // Kernels before 6.6 have no switch.
        Err(_) => true,
    }
}
