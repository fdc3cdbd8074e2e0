//! What went wrong, as the person at the terminal hears it.
//! Promises: one line, and the exit code that goes with it.

use std::process::ExitCode;
use weft_node::offline::OfflineError;

/// Both hold the whole line: what, why, what to do.
#[derive(Debug)]
pub enum Trouble {
    /// What was asked for cannot be done as asked: exit code 2.
    BadInput(String),
    /// It could have worked, but did not: exit code 1.
    Failed(String),
}

impl Trouble {
    pub fn bad_input(text: impl Into<String>) -> Self {
        Self::BadInput(text.into())
    }

    pub fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }

    /// The same, and what else is to be said about it.
    pub fn and(self, more: impl std::fmt::Display) -> Self {
        match self {
            Self::BadInput(text) => Self::BadInput(format!("{text}; {more}")),
            Self::Failed(text) => Self::Failed(format!("{text}; {more}")),
        }
    }

    /// A check that ends in an error could not begin. Always 2, whatever the reason: 1 says that drives are not sound.
    pub fn from_check(error: &anyhow::Error) -> Self {
        Self::BadInput(told(error))
    }

    /// The directory or the place is wrong, unless it is etcd that is away.
    pub fn from_inspect(error: &anyhow::Error) -> Self {
        let text = told(error);
        match error.downcast_ref::<OfflineError>() {
            Some(OfflineError::NoEtcd { .. }) => Self::Failed(text),
            _ => Self::BadInput(text),
        }
    }

    /// The text without line breaks, whatever it was made of.
    pub fn line(&self) -> String {
        let (Self::BadInput(text) | Self::Failed(text)) = self;
        text.lines().map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
    }

    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::BadInput(_) => ExitCode::from(2),
            Self::Failed(_) => ExitCode::from(1),
        }
    }
}

/// An error and its causes, without those that it tells of itself.
pub fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn a_cause_is_told_once() {
        let cause = || std::io::Error::other("not a directory");
        let error = Err::<(), _>(cause()).context("a cannot be used: not a directory; look at it");
        assert_eq!(told(&error.expect_err("it is one")), "a cannot be used: not a directory; look at it");
        let error = Err::<(), _>(cause()).context("reading a").context("checking b");
        assert_eq!(told(&error.expect_err("it is one")), "checking b: reading a: not a directory");
    }

    #[test]
    fn a_trouble_of_several_lines_is_told_in_one() {
        assert_eq!(Trouble::failed("first\n\n  second\n").line(), "first; second");
    }
}
