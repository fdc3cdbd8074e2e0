//! The table of `weft top`: plain text, or drawn over the one before on a terminal.
//! Promises: pure, but for the question how large the terminal is.

use super::interval::{Interval, Percentiles, Row};
use crate::latency::time;
use crate::output::Table;
use crate::size;

/// Rows and columns of the terminal.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub rows: usize,
    pub columns: usize,
}

/// Of stdout; what most have if it does not tell.
pub fn terminal_size() -> Size {
    // SAFETY: all zeros is a valid answer; the kernel fills in no more than the structure.
    let (result, answer) = unsafe {
        let mut answer: libc::winsize = std::mem::zeroed();
        (libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut answer), answer)
    };
    if result == 0 && answer.ws_row > 0 && answer.ws_col > 0 {
        Size { rows: answer.ws_row.into(), columns: answer.ws_col.into() }
    } else {
        Size { rows: 24, columns: 80 }
    }
}

pub fn render(interval: &Interval) -> String {
    let mut text = heading(interval);
    text.push('\n');
    text.push_str(&table(interval));
    for line in remarks(interval) {
        text.push_str(&format!("{line}\n"));
    }
    text.push('\n');
    text
}

/// The same over what was drawn before: each line is cut to the terminal and ended there, and what is below goes. The
/// cursor stays where it is, below the table, so that whatever ends this leaves a terminal as it should be.
pub fn redraw(interval: &Interval, size: Size) -> String {
    let whole = render(interval);
    // The last row is the cursor's.
    let lines = whole.trim_end().lines().take(size.rows.saturating_sub(1).max(2));
    let mut text = "\x1b[H".to_string();
    for line in lines {
        text.extend(line.chars().take(size.columns));
        text.push_str("\x1b[K\n");
    }
    text.push_str("\x1b[J");
    text
}

fn heading(interval: &Interval) -> String {
    let sum = |of: fn(&Row) -> f64| interval.rows.iter().map(of).sum::<f64>();
    format!(
        "{} vDisks: {:.0} reads/s, {:.0} writes/s, {}/s read, {}/s written, {} outstanding; over {:.1} s",
        interval.rows.len(),
        sum(|row| row.reads),
        sum(|row| row.writes),
        size::show(sum(|row| row.read_bytes) as u64),
        size::show(sum(|row| row.write_bytes) as u64),
        interval.rows.iter().map(|row| u64::from(row.outstanding)).sum::<u64>(),
        interval.seconds
    )
}

fn table(interval: &Interval) -> String {
    let in_cluster = interval.rows.iter().any(|row| row.node.is_some());
    let has_errors = interval.rows.iter().any(|row| row.errors > 0);
    let mut heading = vec!["VDISK"];
    heading.extend(in_cluster.then_some("NODE"));
    heading.extend(["R/S", "W/S", "READ/S", "WRITTEN/S", "R p50", "R p99", "W p50", "W p99", "QD"]);
    heading.extend(has_errors.then_some("ERRORS"));
    heading.extend(["FROM", "TO"]);
    let mut table = Table::new(&heading);
    for row in &interval.rows {
        let half = |times: Option<Percentiles>| times.map_or("-".to_string(), |it| time(it.p50 as f64));
        let most = |times: Option<Percentiles>| times.map_or("-".to_string(), |it| time(it.p99 as f64));
        let mut cells = vec![row.name.clone()];
        cells.extend(in_cluster.then(|| row.node.map_or("-".to_string(), |node| node.to_string())));
        cells.extend([
            format!("{:.0}", row.reads),
            format!("{:.0}", row.writes),
            size::show(row.read_bytes as u64),
            size::show(row.write_bytes as u64),
            half(row.read_us),
            most(row.read_us),
            half(row.write_us),
            most(row.write_us),
            row.outstanding.to_string(),
        ]);
        cells.extend(has_errors.then(|| row.errors.to_string()));
        cells.extend([Row::parts(&row.from), Row::parts(&row.to)]);
        table.row(cells);
    }
    table.render()
}

fn remarks(interval: &Interval) -> Vec<String> {
    let mut remarks = Vec::new();
    if interval.rows.is_empty() && interval.unknown.is_empty() {
        remarks.push("no vDisks; make one with `weft vdisk create NAME --size 8G`".to_string());
    }
    if !interval.silent.is_empty() {
        let nodes: Vec<String> = interval.silent.iter().map(u32::to_string).collect();
        remarks.push(format!("no answer from node {}", nodes.join(", ")));
    }
    if !interval.unknown.is_empty() {
        remarks.push(format!("nothing is known now of {}", interval.unknown.join(", ")));
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::super::interval::tests::an_interval;
    use super::*;

    #[test]
    fn the_table_says_what_everybody_does() {
        let text = render(&an_interval());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("3 vDisks: 50 reads/s, 0 writes/s, 200 KiB/s read"), "{text}");
        assert!(lines[1].starts_with("VDISK  NODE  R/S") && !lines[1].contains("ERRORS"), "{text}");
        assert!(lines[2].starts_with("busy   0     50") && lines[2].contains("12us"), "{text}");
        assert!(lines[2].ends_with("cache 75.0% local 25.0%  -"), "{text}");
        assert!(text.contains("no answer from node 2") && text.contains("nothing is known now of lost"));
    }

    #[test]
    fn a_table_that_is_drawn_again_fits_the_terminal_and_changes_nothing_of_it() {
        let text = redraw(&an_interval(), Size { rows: 4, columns: 30 });
        assert!(text.starts_with("\x1b[H") && text.ends_with("\x1b[J"));
        let lines: Vec<&str> = text[3..text.len() - 3].lines().collect();
        assert_eq!(lines.len(), 3);
        for line in lines {
            let shown = line.strip_suffix("\x1b[K").expect("what was there before is wiped");
            assert!(shown.chars().count() <= 30 && !shown.contains('\x1b'), "{line}");
        }
    }
}
