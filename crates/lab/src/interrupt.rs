//! Ctrl-C, termination and a terminal that goes: a flag that the run looks at, so that it can end its load and report what it has.
//! Promises: the first signal asks to stop, a second one is not needed; without a run in progress nothing is changed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    ASKED.store(true, Ordering::SeqCst);
}

/// While it lives, SIGINT, SIGTERM and SIGHUP set the flag instead of ending the process.
pub struct Watch {
    before: [(libc::c_int, libc::sighandler_t); 3],
}

impl Watch {
    pub fn begin() -> Watch {
        ASKED.store(false, Ordering::SeqCst);
        let before = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].map(|signal| {
            let handler = on_signal as extern "C" fn(libc::c_int) as *const () as libc::sighandler_t;
            // SAFETY: the handler only stores to an atomic, which is safe in a signal handler.
            let before = unsafe { libc::signal(signal, handler) };
            // Under nohup it shall go on without its terminal.
            if signal == libc::SIGHUP && before == libc::SIG_IGN {
                // SAFETY: puts back what was there a moment ago.
                unsafe { libc::signal(signal, before) };
            }
            (signal, before)
        });
        Watch { before }
    }

    pub fn asked(&self) -> bool {
        ASKED.load(Ordering::SeqCst)
    }

    /// Waits, but not longer than until somebody asks to stop.
    pub fn rest(&self, time: Duration) {
        let end = Instant::now() + time;
        while !self.asked() && Instant::now() < end {
            std::thread::sleep((end - Instant::now()).min(Duration::from_millis(100)));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for (signal, handler) in self.before {
            // SAFETY: puts back what `begin` was given by the same call.
            unsafe { libc::signal(signal, handler) };
        }
    }
}
