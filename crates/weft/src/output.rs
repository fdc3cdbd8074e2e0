//! What goes to stdout: lines, JSON and plain tables.
//! Promises: a reader that went away (`weft ... | head`) ends the command quietly.

use std::io::Write;

/// Writes bytes to stdout. When nobody reads them any more, there is nothing left to do.
pub fn write(bytes: &[u8]) {
    let mut stdout = std::io::stdout().lock();
    if stdout.write_all(bytes).and_then(|()| stdout.flush()).is_err() {
        std::process::exit(0);
    }
}

pub fn line(text: &str) {
    write(format!("{text}\n").as_bytes());
}

pub fn json(value: &serde_json::Value) {
    line(&serde_json::to_string_pretty(value).expect("a JSON value can always be written"));
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
    fn columns_line_up() {
        let mut table = Table::new(&["NAME", "SIZE"]);
        table.row(vec!["a-long-name".into(), "8 GiB".into()]);
        table.row(vec!["b".into(), "1 GiB".into()]);
        assert_eq!(table.render(), "NAME         SIZE\na-long-name  8 GiB\nb            1 GiB\n");
    }
}
