//! What people write: `VDISK`, or `VDISK@SNAPSHOT`.

use crate::control::refusal::Refusal;
use crate::control::vdisks::check_name;
use jiff::Timestamp;
use std::fmt;

/// The name of a vDisk or of one of its snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskName {
    pub vdisk: String,
    pub snapshot: Option<String>,
}

impl DiskName {
    pub fn parse(text: &str) -> Self {
        match text.split_once('@') {
            Some((vdisk, snapshot)) => {
                Self { vdisk: vdisk.to_string(), snapshot: Some(snapshot.to_string()) }
            }
            None => Self { vdisk: text.to_string(), snapshot: None },
        }
    }

    /// The vDisk and the snapshot, or a line that says that one is missing.
    pub fn of_snapshot(text: &str) -> Result<(String, String), Refusal> {
        let name = Self::parse(text);
        let snapshot = name.snapshot.filter(|snapshot| !snapshot.is_empty());
        let snapshot = snapshot.ok_or_else(|| {
            Refusal::bad_input(format!(
                "{text:?} names no snapshot; write VDISK@SNAPSHOT, such as vol1@monday"
            ))
        })?;
        Ok((name.vdisk, snapshot))
    }
}

impl fmt::Display for DiskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.snapshot {
            Some(snapshot) => write!(f, "{}@{snapshot}", self.vdisk),
            None => f.write_str(&self.vdisk),
        }
    }
}

/// Whether a snapshot can be called so: it becomes part of URIs, paths and keys.
pub fn check_snapshot_name(name: &str) -> Result<(), Refusal> {
    check_name(name).map_err(|_| {
        Refusal::bad_input(format!(
            "{name:?} cannot be the name of a snapshot: use up to 63 letters, digits, dots, dashes and underscores, the \
             first a letter or digit"
        ))
    })
}

/// A time as it can stand in a name: `20260131-120000`, in UTC.
pub fn time_name(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.unwrap_or(Timestamp::MAX).strftime("%Y%m%d-%H%M%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_and_put_together() {
        for text in ["vol1", "vol1@monday"] {
            assert_eq!(DiskName::parse(text).to_string(), text);
        }
        assert_eq!(DiskName::of_snapshot("a@b"), Ok(("a".to_string(), "b".to_string())));
        assert!(DiskName::of_snapshot("a").is_err() && DiskName::of_snapshot("a@").is_err());
        assert!(check_snapshot_name("a@b").is_err() && check_snapshot_name("a/b").is_err());
    }

    #[test]
    fn times_make_names() {
        assert_eq!(time_name(0), "19700101-000000");
        assert_eq!(time_name(1_709_208_000), "20240229-120000");
        assert!(check_snapshot_name(&time_name(1_709_208_000)).is_ok());
    }
}
