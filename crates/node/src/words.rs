//! Words for whoever started the node, on stderr and stdout.
//! Promises: that nobody reads them, or that there is no room for them, is no reason to fail: a node whose log file is on a full
//! drive serves, and one whose pipe is closed stops cleanly.

use std::fmt::Arguments;
use std::io::Write;

/// A line on stderr; `say!` is shorter.
pub fn to_stderr(line: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
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
