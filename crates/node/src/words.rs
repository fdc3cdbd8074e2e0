//! Words for whoever started the node, on stderr and stdout.
//! Promises: that nobody reads them, or that there is no room for them, is no reason to fail: a node whose log file is on a full
//! drive serves, one whose pipe is closed stops cleanly, and one whose pipe is full goes on: whatever writes a line may hold what I/O
//! waits for.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Lines that wait for whoever reads stderr; more are lost.
const WAITING_MAX: usize = 4096;
/// What is still to be written when the process ends has so long.
const LAST_WORDS: Duration = Duration::from_secs(1);

static WORDS: OnceLock<Words> = OnceLock::new();

struct Words {
    lines: SyncSender<Line>,
    lost: AtomicU64,
}

enum Line {
    Text(Vec<u8>),
    /// All before it is written.
    Written(SyncSender<()>),
}

/// Stderr, written by a thread of its own: whoever writes here waits for nobody.
#[derive(Clone, Copy)]
pub struct Stderr(());

/// While it lives, the process has not ended; dropped, it gives the last lines a moment.
pub struct Listener(());

/// From now on nobody waits for whoever reads stderr, and what a panic says goes there as well.
pub fn stderr_without_waiting() -> (Stderr, Listener) {
    let (lines, waiting) = sync_channel(WAITING_MAX);
    let writer = std::thread::Builder::new().name("words".to_string());
    if writer.spawn(move || write_all(&waiting)).is_ok()
        && WORDS.set(Words { lines, lost: AtomicU64::new(0) }).is_ok()
    {
        // The hook of the standard library takes the lock of stderr, which somebody may hold who waits for a reader.
        std::panic::set_hook(Box::new(|panic| {
            let thread = std::thread::current();
            let backtrace = std::backtrace::Backtrace::capture();
            let name = thread.name().unwrap_or("without a name");
            to_stderr(format_args!("thread {name}: {panic}\n{backtrace}"));
        }));
    }
    (Stderr(()), Listener(()))
}

fn write_all(waiting: &Receiver<Line>) {
    while let Ok(line) = waiting.recv() {
        let mut stderr = std::io::stderr();
        let lost = WORDS.get().map_or(0, |words| words.lost.swap(0, Ordering::Relaxed));
        if lost > 0 {
            let _ = writeln!(stderr, "weft: {lost} lines are missing here: nobody read them in time");
        }
        match line {
            Line::Text(text) => drop(stderr.write_all(&text)),
            Line::Written(told) => drop(told.try_send(())),
        }
    }
}

/// Waits a moment for what has been said: before an end that does not drop the [`Listener`].
pub fn last_words() {
    let Some(words) = WORDS.get() else { return };
    let (told, written) = sync_channel(1);
    if words.lines.try_send(Line::Written(told)).is_ok() {
        let _ = written.recv_timeout(LAST_WORDS);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        last_words();
    }
}

impl Write for Stderr {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        match WORDS.get() {
            None => std::io::stderr().write(text),
            Some(words) => {
                if words.lines.try_send(Line::Text(text.to_vec())).is_err() {
                    words.lost.fetch_add(1, Ordering::Relaxed);
                }
                Ok(text.len())
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A line on stderr; `say!` is shorter.
pub fn to_stderr(line: Arguments<'_>) {
    let _ = Stderr(()).write_all(format!("{line}\n").as_bytes());
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
