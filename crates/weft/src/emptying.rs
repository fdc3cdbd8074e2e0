//! Waiting until a node or a drive is empty, with a line that shows how far it is.
//! Promises: the line goes to stderr, and where that is no terminal a line is written now and then; a node that
//! does not answer for a while does not end the waiting.

use crate::output;
use crate::trouble::Trouble;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// What is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub vdisks: u32,
    /// Memberships in groups, former ones too.
    pub groups: u32,
    pub done: bool,
}

/// Whether what is being emptied is still to be. Whoever is asked may hear of it a little later than the config store.
#[derive(Default)]
pub struct Begun(bool);

impl Begun {
    /// `leaving`: whether it is to be emptied, as just told; `otherwise`: what may have become of that since it was.
    pub fn note(&mut self, what: &str, leaving: bool, otherwise: &str) -> Result<(), Trouble> {
        if self.0 && !leaving {
            return Err(Trouble::bad_input(format!("{what} is not being emptied any more: {otherwise}")));
        }
        self.0 |= leaving;
        Ok(())
    }
}

const ASK: Duration = Duration::from_secs(1);

/// Between lines where there is no terminal.
const SAY: Duration = Duration::from_secs(30);

/// Nothing got less for so long: it may be stuck.
const STUCK: Duration = Duration::from_secs(60);

/// The node that is asked may restart meanwhile.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Asks until all has gone; gives the last document. `undoing`: how to take it back.
pub fn wait(
    what: &str,
    undoing: &str,
    mut ask: impl FnMut() -> Result<(Left, Value), Trouble>,
) -> Result<Value, Trouble> {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{msg}  {bar:20} {percent:>3} %  {elapsed}")
        .expect("the template is a constant");
    bar.set_style(style);
    let mut course = Course::new(Instant::now());
    let mut said: Option<Instant> = None;
    let mut answered = Instant::now();
    loop {
        match ask() {
            Ok((left, document)) => {
                answered = Instant::now();
                if left.done {
                    bar.finish_and_clear();
                    return Ok(document);
                }
                course.note(left, answered);
                let line = course.line(what, undoing, answered);
                bar.set_length(course.total);
                bar.set_position(course.gone());
                bar.set_message(line.clone());
                if !std::io::stderr().is_terminal() && said.is_none_or(|at| at.elapsed() > SAY) {
                    output::say(&line);
                    said = Some(answered);
                }
            }
            // The same request will be refused again, or the node has been away for long.
            Err(trouble @ Trouble::BadInput(_)) => return Err(trouble),
            Err(trouble) if answered.elapsed() > SILENCE_MAX => return Err(trouble),
            Err(trouble) => bar.set_message(trouble.line()),
        }
        std::thread::sleep(ASK);
    }
}

/// How it went so far.
struct Course {
    /// The most there ever was.
    total: u64,
    left: Left,
    /// When something was last seen to have gone.
    moved: Instant,
}

impl Course {
    fn new(now: Instant) -> Self {
        Self { total: 0, left: Left { vdisks: 0, groups: 0, done: false }, moved: now }
    }

    fn note(&mut self, left: Left, now: Instant) {
        if left != self.left {
            self.moved = now;
        }
        self.left = left;
        self.total = self.total.max(self.remaining());
    }

    fn remaining(&self) -> u64 {
        u64::from(self.left.vdisks) + u64::from(self.left.groups)
    }

    fn gone(&self) -> u64 {
        self.total - self.remaining()
    }

    fn line(&self, what: &str, undoing: &str, now: Instant) -> String {
        let mut parts = Vec::new();
        if self.left.vdisks > 0 {
            parts.push(format!("{} vDisks to move", self.left.vdisks));
        }
        if self.left.groups > 0 {
            parts.push(format!("copies of {} groups to make elsewhere", self.left.groups));
        }
        if parts.is_empty() {
            parts.push("almost".to_string());
        }
        let mut line = format!("emptying {what}: {}", parts.join(", "));
        let still = now.saturating_duration_since(self.moved);
        if still >= STUCK {
            line.push_str(&format!(
                "; nothing moved for {} s: `weft cluster status` may say why, {undoing}",
                still.as_secs()
            ));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(vdisks: u32, groups: u32) -> Left {
        Left { vdisks, groups, done: false }
    }

    #[test]
    fn the_line_says_what_is_left_and_when_nothing_moves() {
        let begin = Instant::now();
        let mut course = Course::new(begin);
        course.note(left(2, 8), begin);
        assert_eq!(
            course.line("node 1", "undo", begin),
            "emptying node 1: 2 vDisks to move, copies of 8 groups to make elsewhere"
        );
        course.note(left(0, 4), begin + Duration::from_secs(5));
        assert_eq!((course.gone(), course.total), (6, 10));
        let late = begin + Duration::from_secs(100);
        course.note(left(0, 4), late);
        assert!(
            course.line("node 1", "undo", late).contains("nothing moved for 95 s"),
            "it tells that it is stuck"
        );
        // More may come, when a move begins elsewhere.
        course.note(left(3, 20), late);
        assert_eq!((course.gone(), course.total), (0, 23));
        assert!(!course.line("node 1", "undo", late).contains("nothing moved"));
    }

    #[test]
    fn waiting_ends_when_all_has_gone_or_somebody_says_no() {
        let mut asked = 0;
        let last = wait("node 1", "undo", || {
            asked += 1;
            Ok((Left { done: asked == 2, ..left(0, 1) }, Value::from(asked)))
        });
        assert_eq!(last.expect("it ends"), Value::from(2));
        let refused = wait("node 1", "undo", || Err(Trouble::bad_input("no")));
        assert!(matches!(refused, Err(Trouble::BadInput(_))));
    }
}
