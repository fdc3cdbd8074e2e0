//! Why a drive cannot be used: each with what to do about it.

use std::io;
use std::path::PathBuf;
use weft_engine::DriveId;

#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    #[error("{path} is missing; put the file back, or start with --replace-lost to give its drive up")]
    Missing { path: PathBuf },
    #[error(
        "{path} is no file, and should be one of a drive; take it away and put the file back, or start with --replace-lost then"
    )]
    NoFile { path: PathBuf },
    #[error("{path} was cut short: it has {has} bytes and should have {should}; put the whole file back")]
    CutShort { path: PathBuf, has: u64, should: u64 },
    #[error(
        "{path} exists, but the config store knows no such drive; move the file away, or put the config.redb that \
             belongs to it back"
    )]
    Unknown { path: PathBuf },
    #[error("{path} is no block device; for drives in files use --drives N")]
    NoDevice { path: PathBuf },
    #[error("{path} is mounted or otherwise in use; free it first")]
    InUse { path: PathBuf },
    #[error("{path} holds something already ({what}); give --force to lose that, or another device")]
    NotEmpty { path: PathBuf, what: &'static str },
    #[error(
        "{path} is a drive of Weft already (drive {number}) and may hold the only copy of something: start the node \
             that it belongs to, or take it out of the list of drives; --force destroys what it holds"
    )]
    IsDrive { path: PathBuf, number: String },
    #[error(
        "{path} holds drive {drive}, but of another node or of another life: names of devices may have changed; put the \
             right device there, and name devices by /dev/disk/by-id"
    )]
    Foreign { path: PathBuf, drive: DriveId },
    #[error(
        "{path} is of drive {drive} of another node or of another life; put this node's own file back (what a node has in its \
             directory belongs together: config.redb and the files of its drives)"
    )]
    ForeignFile { path: PathBuf, drive: DriveId },
    #[error("there is no {path}; name a block device that there is, best by /dev/disk/by-id")]
    NoSuchDevice { path: PathBuf },
    #[error("{place} has {has} bytes, and a drive needs at least {least}; use a larger one")]
    TooSmall { place: String, has: u64, least: u64 },
    #[error("{path} has sectors of {sector} bytes; drives need sectors of at most 4096 bytes")]
    LargeSectors { path: PathBuf, sector: u64 },
    #[error(
        "not enough room for {path}: {needed} bytes are needed and {free} are free; free some, or choose a smaller \
             --drive-size"
    )]
    NoRoom { path: PathBuf, needed: u64, free: u64 },
    #[error("the file system of {path} cannot open it for direct I/O; use another file system")]
    NoDirectIo { path: PathBuf },
    #[error("cannot {doing} {path}: {source}; check the path and its permissions")]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

impl DriveError {
    /// Whether it is about what somebody named, and would be said again of the same.
    pub fn is_of_input(&self) -> bool {
        match self {
            Self::Missing { .. }
            | Self::NoSuchDevice { .. }
            | Self::NoDevice { .. }
            | Self::NotEmpty { .. }
            | Self::IsDrive { .. }
            | Self::TooSmall { .. }
            | Self::LargeSectors { .. }
            | Self::NoDirectIo { .. } => true,
            Self::NoFile { .. }
            | Self::CutShort { .. }
            | Self::Unknown { .. }
            | Self::Foreign { .. }
            | Self::ForeignFile { .. }
            | Self::InUse { .. }
            | Self::NoRoom { .. }
            | Self::Io { .. } => false,
        }
    }

    /// For `map_err`: what was being done, to what.
    pub(super) fn io<'a>(
        doing: &'static str,
        path: &'a std::path::Path,
    ) -> impl FnOnce(io::Error) -> DriveError + 'a {
        move |source| DriveError::Io { doing, path: path.to_path_buf(), source }
    }
}
