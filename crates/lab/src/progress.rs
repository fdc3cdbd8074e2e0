//! How far the run is, all the time: a bar on a terminal, plain lines elsewhere. Goes to stderr; results go to stdout.

use crate::fio::Live;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Without a terminal, a step that takes long says so this often.
const LINE_EVERY: Duration = Duration::from_secs(10);

pub struct Progress {
    bar: Option<ProgressBar>,
    steps: usize,
    step: usize,
    name: String,
    began: Instant,
    last_line: Instant,
}

impl Progress {
    pub fn begin(steps: usize) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(steps as u64);
            let style =
                ProgressStyle::with_template("{bar:24.cyan/blue} {pos}/{len} {wide_msg} {elapsed_precise}")
                    .expect("the template is a constant");
            bar.set_style(style);
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Progress {
            bar,
            steps,
            step: 0,
            name: String::new(),
            began: Instant::now(),
            last_line: Instant::now(),
        }
    }

    /// A step begins.
    pub fn step(&mut self, name: String) {
        self.step += 1;
        self.name = name;
        self.began = Instant::now();
        self.last_line = Instant::now();
        if let Some(bar) = &self.bar {
            bar.set_position(self.step as u64 - 1);
            bar.set_message(self.name.clone());
        }
    }

    /// The step goes on; `whole` is given if it ends after so many bytes.
    pub fn live(&mut self, live: Live, whole: Option<u64>) {
        let share = whole.map(|whole| format!("{} %, ", live.bytes * 100 / whole.max(1))).unwrap_or_default();
        let text = format!("{}: {share}{}", self.name, rates(live.iops, live.bytes_per_s));
        if let Some(bar) = &self.bar {
            bar.set_message(text);
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            say(&format!("[{}/{}] {text}, {} s", self.step, self.steps, self.began.elapsed().as_secs()));
        }
    }

    /// The step is over.
    pub fn done(&mut self, outcome: &str) {
        let line = format!("[{}/{}] {}: {outcome}", self.step, self.steps, self.name);
        match &self.bar {
            Some(bar) => {
                bar.set_position(self.step as u64);
                bar.println(line);
            }
            None => say(&line),
        }
    }

    pub fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

/// Whoever read this may be gone (a pipe into `tee` that the same Ctrl-C has ended); the run goes on to its report.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// `38,211 IOPS, 298 MiB/s`.
pub fn rates(iops: f64, bytes_per_s: f64) -> String {
    format!(
        "{} IOPS, {} MiB/s",
        crate::table::thousands(iops),
        crate::table::thousands(bytes_per_s / 1048576.0)
    )
}
