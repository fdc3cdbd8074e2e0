//! How far a long check is, on one line of a terminal.
//! Promises: nothing where stderr is no terminal.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub struct Progress {
    shown: bool,
    begun: Instant,
    total: AtomicU64,
    done: AtomicU64,
    ended: AtomicBool,
}

impl Progress {
    pub fn begin() -> Self {
        Self {
            shown: std::io::stderr().is_terminal(),
            begun: Instant::now(),
            total: AtomicU64::new(0),
            done: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        }
    }

    #[cfg(test)]
    pub fn on_a_terminal() -> Self {
        Self { shown: true, ..Self::begin() }
    }

    /// So many bytes more are to be read.
    pub fn expect(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
    }

    /// So many bytes more have been read.
    pub fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Shows the line until [`Progress::end`]; to be run on a thread of its own.
    pub fn show(&self) {
        while self.shown && !self.ended.load(Ordering::Relaxed) {
            std::thread::park_timeout(Duration::from_millis(250));
            let (done, total) = (self.bytes(), self.total.load(Ordering::Relaxed).max(1));
            let percent = (done * 100 / total).min(100);
            let mut stderr = std::io::stderr();
            let _ = write!(stderr, "\rchecking: {percent} % of {} MiB read", total >> 20);
            let _ = stderr.flush();
        }
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}
