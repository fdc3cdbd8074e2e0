//! What goes to stdout: lines, JSON and plain tables; and lines for people on stderr.
//! Promises: a reader that went away (`weft ... | head`) ends the command quietly, with the exit code that was due; anything else that
//! keeps the output from being written (a full drive) is told, and ends it with 1. What cannot be said on stderr is lost.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

/// Writes bytes to stdout. When nobody reads them any more, there is nothing left to do.
pub fn write(bytes: &[u8]) {
    write_due(bytes, 0);
}

/// The same for a command that will end with the exit code `due`, whether somebody reads all of it or not.
pub fn write_due(bytes: &[u8], due: u8) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        if error.kind() != ErrorKind::BrokenPipe {
            complain(format_args!(
                "the output cannot be written: {error}; see where stdout leads (a full drive?) and do it again"
            ));
        }
        std::process::exit(exit_code(&error, due));
    }
}

fn exit_code(error: &io::Error, due: u8) -> i32 {
    if error.kind() == ErrorKind::BrokenPipe { i32::from(due) } else { 1 }
}

pub fn line(text: &str) {
    write(format!("{text}\n").as_bytes());
}

pub fn json(value: &serde_json::Value) {
    line(&json_text(value));
}

pub fn json_text(value: &serde_json::Value) -> String {
    serde_json::to_string_pretty(value).expect("a JSON value can always be written")
}

/// A line on stderr, where errors are told.
pub fn complain(text: impl Display) {
    say(format_args!("weft: {text}"));
}

/// A line on stderr. That nobody hears it, or that there is no room for it, is no reason to fail.
pub fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Rows under a heading, columns as wide as their widest cell.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|cell| (*cell).to_string()).collect()] }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.rows[0].len(), "every row has a cell for every column");
        self.rows.push(cells);
    }

    /// The whole table, each row ending in a line break.
    pub fn render(&self) -> String {
        let columns = self.rows[0].len();
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }

    pub fn print(&self) {
        write(self.render().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_that_went_away_is_no_failure() {
        let gone = io::Error::from(ErrorKind::BrokenPipe);
        assert_eq!((exit_code(&gone, 0), exit_code(&gone, 1)), (0, 1), "what was due");
        let full = io::Error::from(ErrorKind::StorageFull);
        assert_eq!((exit_code(&full, 0), exit_code(&full, 1)), (1, 1));
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", "SIZE"]);
        table.row(vec!["a-long-name".into(), "8 GiB".into()]);
        table.row(vec!["b".into(), "1 GiB".into()]);
        assert_eq!(table.render(), "NAME         SIZE\na-long-name  8 GiB\nb            1 GiB\n");
    }
}
