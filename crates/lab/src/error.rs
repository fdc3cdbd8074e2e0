//! Why a run could not begin or go on: one line each, saying what, why, and what to do.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("{} was not found, and the lab makes its load with fio: install it (Debian: apt-get install fio)", fio.display())]
    NoFio { fio: PathBuf },
    #[error(
        "this fio has no nbd engine, which NBD targets need: install one built with libnbd (Debian's fio 3.33 is)"
    )]
    NoNbdEngine,
    #[error("{what}: {want}")]
    BadSetting { what: &'static str, want: &'static str },
    #[error("cannot read the target '{}': {why}", one_line(text))]
    BadTarget { text: String, why: &'static str },
    #[error("two targets are called '{label}': give one another label, as in --target LABEL=PLACE")]
    SameLabel { label: String },
    #[error("the place {place} is named by two targets, which would overwrite each other: name it once")]
    SamePlace { place: String },
    #[error(
        "{one} and {other} are the same storage, for what was written to the one is read from the other: name it once"
    )]
    SameStorage { one: String, other: String },
    #[error(
        "{label}: durable={uri} leads to other storage: {why}. Nothing was written there; name an address of the same export"
    )]
    OtherStorage { label: String, uri: String, why: String },
    #[error(
        "no target is called '{label}', so it cannot be the baseline: use the label of one of the targets"
    )]
    NoSuchBaseline { label: String },
    #[error(
        "the target {label} cannot be reached: {why}; check that its server runs and the address is right"
    )]
    Unreachable { label: String, why: std::io::Error },
    #[error("the vDisk '{name}' is not known here: check `weft vdisk ls`, and that the node is up")]
    NoSuchVdisk { name: String },
    #[error(
        "the target {label} holds {holds} bytes, fewer than the {wanted} asked for: use a smaller --size"
    )]
    TooSmall { label: String, holds: u64, wanted: u64 },
    #[error(
        "{place} holds data that the lab did not write; measuring would overwrite its first {bytes} bytes: \
         give --destroy if that may go"
    )]
    HoldsData { place: String, bytes: u64 },
    #[error("{place} is in use (mounted, or part of something else): stop that first")]
    InUse { place: String },
    #[error("not enough free space for {place}: it needs {wanted} bytes and the file system has {free}")]
    NoSpace { place: String, wanted: u64, free: u64 },
    #[error("{}: {why}", path.display())]
    File { path: PathBuf, why: std::io::Error },
    #[error(
        "{} is not the lab's (there is no run.json of a lab run beside it), and the run would put its own in its place: \
         name another directory with --out", path.display()
    )]
    NotOurs { path: PathBuf },
    #[error("the results could not be written: {why}; this is what they say\n{table}")]
    Unwritten { why: String, table: String },
    #[error("{} holds no results of a run that can be read ({why}): name the --out directory of a lab run", dir.display())]
    NoResults { dir: PathBuf, why: String },
    #[error("stopped before anything was measured; what was in the directory of the report is as it was")]
    Stopped,
    #[error("{label}: {step} failed: {why}")]
    Platform { label: String, step: &'static str, why: String },
    #[error("{step} on {label} failed: {why}; all that fio said is in {}", log.display())]
    Step { step: String, label: String, why: String, log: PathBuf },
}

/// What somebody typed, so that it stays one line.
fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

impl LabError {
    /// True when the request itself was at fault, which a command answers with exit code 2.
    pub fn is_bad_input(&self) -> bool {
        use LabError::*;
        matches!(
            self,
            BadSetting { .. }
                | BadTarget { .. }
                | SameLabel { .. }
                | SamePlace { .. }
                | SameStorage { .. }
                | OtherStorage { .. }
                | NoSuchBaseline { .. }
                | NoSuchVdisk { .. }
                | TooSmall { .. }
                | HoldsData { .. }
                | InUse { .. }
                | NotOurs { .. }
                | NoResults { .. }
        )
    }
}
