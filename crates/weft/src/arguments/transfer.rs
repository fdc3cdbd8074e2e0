//! What may be said about images.

use super::Place;
use clap::Args;
use std::path::{Path, PathBuf};

/// How an image is laid out.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Raw,
    Qcow2,
}

impl Format {
    /// By the ending of the name.
    pub fn of(file: &Path) -> Self {
        let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if ending.eq_ignore_ascii_case("qcow2") { Self::Qcow2 } else { Self::Raw }
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  weft import debian.qcow2 root1
  weft import --format raw disk.img data1 --rf 2

The vDisk gets the image's size, rounded up to whole blocks of 4 KiB, which read as zeros behind the image's end. Holes of
the image take no space. Needs qemu-img, on the machine of the node. Ended by Ctrl-C it removes what it made; a vDisk that it
wrote over (--overwrite) stays half overwritten.")]
pub struct ImportArguments {
    /// A raw or qcow2 image
    pub file: PathBuf,
    /// The vDisk that is made of it
    pub vdisk: String,
    /// [default: what the image looks like]
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// Read what the image names besides itself too: a backing file, or a file for its data
    #[arg(long)]
    pub follow: bool,
    /// Copies of everything, on distinct drives [default: the container's, or the node's]
    #[arg(long, value_name = "R", conflicts_with = "overwrite", value_parser = clap::value_parser!(u32).range(1..=3))]
    pub rf: Option<u32>,
    /// The container that the vDisk is put into [default: default]
    #[arg(long, value_name = "NAME", conflicts_with = "overwrite")]
    pub container: Option<String>,
    /// Into a vDisk that exists: what it holds is destroyed
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub place: Place,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:
  weft export vol1 vol1.qcow2               as it is now: from a snapshot that is gone afterwards
  weft export vol1@monday monday.img

Holes stay holes. Needs qemu-img, on the machine of the node.")]
pub struct ExportArguments {
    /// The vDisk, or VDISK@SNAPSHOT
    #[arg(value_name = "VDISK[@SNAPSHOT]")]
    pub disk: String,
    /// The image; while it is being written it is called FILE and an ending in .part
    pub file: PathBuf,
    /// [default: qcow2 if the file ends so, else raw]
    #[arg(long, value_enum)]
    pub format: Option<Format>,
    /// Replace the file if there is one; what is no regular file is never replaced
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub place: Place,
}
