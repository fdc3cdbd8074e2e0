//! Words for whoever started the node, on stderr and stdout.
//! Promises: that nobody reads them, or that there is no room for them, is no reason to fail: a node whose log file is on a full
//! drive serves, one whose pipe is closed stops cleanly, and one whose pipe is full goes on: whatever writes a line may hold what I/O
//! waits for.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::OnceLock;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};

/// Lines that wait for whoever reads stderr; more are lost.
const WAITING_MAX: usize = 4096;

static STDERR: OnceLock<NonBlocking> = OnceLock::new();

/// From now on lines for stderr are written by a thread of their own, and nobody waits for it. What is still to be written when the
/// guard is dropped has a moment for that.
pub fn stderr_without_waiting() -> (NonBlocking, WorkerGuard) {
    let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_MAX);
    let (writer, guard) = builder.thread_name("words").finish(std::io::stderr());
    (STDERR.get_or_init(|| writer).clone(), guard)
}

/// A line on stderr; `say!` is shorter.
pub fn to_stderr(line: Arguments<'_>) {
    let line = format!("{line}\n");
    let _ = match STDERR.get() {
        Some(writer) => writer.clone().write_all(line.as_bytes()),
        None => std::io::stderr().write_all(line.as_bytes()),
    };
}

/// A line on stdout.
pub fn to_stdout(line: Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// A line on stderr, as `eprintln!` writes it, that may be lost.
macro_rules! say {
    ($($words:tt)*) => { $crate::words::to_stderr(format_args!($($words)*)) };
}
pub(crate) use say;
