//! The lab's label: the first MiB of a target, by which the lab knows again what it may overwrite.
//! Promises: a target that holds anything else is refused unless that may go, and nothing is written before all targets
//! have been looked at.
//! Leaves to others: the fill itself, which only touches what is behind the label (`plan`).

use crate::error::LabError;
use crate::nbd_client::Client;
use crate::settings::{Prefill, RunSettings};
use crate::target::{Kind, Target};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Bytes at the start of a target that are the label's; the load begins behind them.
pub const LABEL_BYTES: u64 = 1 << 20;
const MAGIC: &str = "weft lab: this is a measured target, its contents are of no value\n";

/// An opened target: where the label is read and written.
enum Place {
    Nbd(Client),
    File(File),
}

impl Place {
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        match self {
            Place::Nbd(client) => client.read_at(offset, bytes),
            Place::File(file) => file.read_exact_at(bytes, offset),
        }
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        match self {
            Place::Nbd(client) => client.write_at(offset, bytes),
            Place::File(file) => file.write_all_at(bytes, offset).and_then(|()| file.sync_data()),
        }
    }
}

/// What is known about a target that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// Bytes the target has.
    pub capacity: u64,
    /// Whether it has to be filled before it is measured.
    pub fill: bool,
}

/// Looks at a target: reachable, large enough, and either empty or the lab's own. Writes nothing but an absent file's length.
pub fn look_at(target: &Target, settings: &RunSettings) -> std::result::Result<Looked, LabError> {
    let unreachable = |why| LabError::Unreachable { label: target.label.clone(), why };
    let (mut place, capacity) = match &target.kind {
        Kind::Nbd { uri, .. } => {
            let client = Client::connect(uri).map_err(unreachable)?;
            if client.read_only {
                return Err(unreachable(std::io::Error::new(
                    ErrorKind::ReadOnlyFilesystem,
                    "it is read-only",
                )));
            }
            let size = client.size;
            (Place::Nbd(client), size)
        }
        Kind::File(path) => {
            let (file, size) = open_file(path, settings.size)?;
            (Place::File(file), size)
        }
        Kind::Device(path) => {
            let (file, size) = open_device(path)?;
            (Place::File(file), size)
        }
    };
    if capacity < settings.size {
        return Err(LabError::TooSmall {
            label: target.label.clone(),
            holds: capacity,
            wanted: settings.size,
        });
    }
    let mut first = vec![0; LABEL_BYTES as usize];
    place.read_at(0, &mut first).map_err(unreachable)?;
    let own = first.starts_with(MAGIC.as_bytes());
    if !own && !settings.destroy {
        // Also the end: partition tables and RAID members keep something there.
        let mut last = vec![0; LABEL_BYTES as usize];
        place.read_at(capacity - LABEL_BYTES, &mut last).map_err(unreachable)?;
        if first.iter().chain(&last).any(|byte| *byte != 0) {
            return Err(LabError::HoldsData { place: target.place().to_string(), bytes: settings.size });
        }
    }
    let filled = if own { filled_bytes(&first) } else { 0 };
    let fill = match settings.prefill {
        Prefill::Always => true,
        Prefill::IfNeeded => filled < settings.size,
        Prefill::Never => false,
    };
    Ok(Looked { capacity, fill })
}

/// Writes the label: that this target is the lab's, and how far it is filled.
pub fn write(target: &Target, filled: u64) -> std::result::Result<(), LabError> {
    // All of its range, so that no hole is left before the load.
    let mut label = format!("{MAGIC}filled {filled}\n").into_bytes();
    label.resize(LABEL_BYTES as usize, 0);
    let mut place = match &target.kind {
        Kind::Nbd { uri, .. } => Client::connect(uri).map(Place::Nbd),
        Kind::File(path) | Kind::Device(path) => {
            OpenOptions::new().read(true).write(true).open(path).map(Place::File)
        }
    }
    .map_err(|why| LabError::Unreachable { label: target.label.clone(), why })?;
    place.write_at(0, &label).map_err(|why| LabError::Unreachable { label: target.label.clone(), why })
}

fn filled_bytes(label: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(&label[..4096]);
    let line = text.lines().find_map(|line| line.strip_prefix("filled "));
    line.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Opens the file; one that is absent or empty gets its length (and the fill writes every block of it).
fn open_file(path: &Path, size: u64) -> std::result::Result<(File, u64), LabError> {
    let failed = |why| LabError::File { path: path.to_path_buf(), why };
    if path.is_dir() {
        return Err(failed(std::io::Error::new(ErrorKind::IsADirectory, "a directory: name a file in it")));
    }
    let file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    if length == 0 {
        if let Some(free) = free_bytes(path)
            && free < size
        {
            let place = path.display().to_string();
            drop(file);
            // Nothing was in it a moment ago, and nothing is now.
            let _ = std::fs::remove_file(path);
            return Err(LabError::NoSpace { place, wanted: size, free });
        }
        file.set_len(size).map_err(failed)?;
        return Ok((file, size));
    }
    Ok((file, length))
}

/// Opens the device for this process alone: a mounted one refuses that.
fn open_device(path: &Path) -> std::result::Result<(File, u64), LabError> {
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_EXCL).open(path).map_err(|why| {
            match why.raw_os_error() {
                Some(libc::EBUSY) => LabError::InUse { place: path.display().to_string() },
                _ => LabError::File { path: path.to_path_buf(), why },
            }
        })?;
    use std::io::{Seek, SeekFrom};
    let size =
        (&file).seek(SeekFrom::End(0)).map_err(|why| LabError::File { path: path.to_path_buf(), why })?;
    Ok((file, size))
}

/// Free space of the file system, as `df` tells it; none if it cannot be asked.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let output = std::process::Command::new("df").args(["--output=avail", "-B1"]).arg(path).output().ok()?;
    String::from_utf8_lossy(&output.stdout).lines().nth(1)?.trim().parse().ok()
}

/// Bytes of the touched range that were never written, if that can be found out.
pub fn never_written(target: &Target, size: u64) -> Option<u64> {
    match &target.kind {
        Kind::Nbd { uri, .. } => {
            // nbdinfo asks for base:allocation; where it is not installed, nothing is claimed.
            let output =
                std::process::Command::new("nbdinfo").args(["--map", "--json", uri]).output().ok()?;
            if !output.status.success() {
                return None;
            }
            holes_in_map(&serde_json::from_slice(&output.stdout).ok()?, size)
        }
        Kind::File(path) => {
            use std::os::unix::fs::MetadataExt;
            let facts = std::fs::metadata(path).ok()?;
            // Blocks allocated but never written do not show here; the fill writes every one of them anyhow.
            Some(facts.len().saturating_sub(facts.blocks() * 512).min(size))
        }
        Kind::Device(_) => None,
    }
}

/// Adds up the holes and zero extents of `nbdinfo --map --json` between the label and `size`.
fn holes_in_map(map: &serde_json::Value, size: u64) -> Option<u64> {
    let mut bytes = 0;
    for extent in map.as_array()? {
        let offset = extent.get("offset")?.as_u64()?;
        let end = offset.checked_add(extent.get("length")?.as_u64()?)?;
        // Bit 0: a hole; bit 1: reads as zeros. Either way a read of it need not touch a drive.
        if extent.get("type")?.as_u64()? & 3 != 0 {
            bytes += end.min(size).saturating_sub(offset.max(LABEL_BYTES));
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_target(name: &str) -> (Target, RunSettings) {
        let path = std::env::temp_dir().join(format!("weft-label-{}-{name}", std::process::id()));
        let target = Target {
            label: name.into(),
            kind: Kind::File(path),
            durability: crate::target::Durability::OpenDsync,
        };
        let settings = RunSettings { size: 16 << 20, ..Default::default() };
        (target, settings)
    }

    fn remove(target: &Target) {
        std::fs::remove_file(target.place()).expect("the test made it");
    }

    #[test]
    fn a_file_with_somebodys_data_is_refused_and_left_as_it_is() {
        let (target, mut settings) = file_target("data");
        let mut content = vec![0; 16 << 20];
        *content.last_mut().expect("not empty") = 1;
        std::fs::write(target.place(), &content).expect("writable");
        assert!(matches!(look_at(&target, &settings), Err(LabError::HoldsData { .. })));
        assert_eq!(std::fs::read(target.place()).expect("readable"), content);
        settings.destroy = true;
        assert!(look_at(&target, &settings).expect("it may go").fill);
        remove(&target);
    }

    #[test]
    fn a_target_is_known_again_by_its_label() {
        let (target, mut settings) = file_target("label");
        settings.prefill = Prefill::IfNeeded;
        assert_eq!(look_at(&target, &settings).expect("absent"), Looked { capacity: 16 << 20, fill: true });
        write(&target, 16 << 20).expect("writable");
        let file = OpenOptions::new().write(true).open(target.place()).expect("there");
        file.write_all_at(&[1; 4096], LABEL_BYTES * 2).expect("writable");
        assert_eq!(look_at(&target, &settings).expect("its own"), Looked { capacity: 16 << 20, fill: false });
        settings.size += 1 << 20;
        assert!(matches!(look_at(&target, &settings), Err(LabError::TooSmall { .. })));
        remove(&target);
    }

    #[test]
    fn holes_are_counted_inside_the_touched_range_only() {
        let map = serde_json::json!([
            { "offset": 0, "length": 2 << 20, "type": 3 },
            { "offset": 2 << 20, "length": 2 << 20, "type": 0 },
            { "offset": 4 << 20, "length": 4 << 20, "type": 2 },
        ]);
        assert_eq!(holes_in_map(&map, 5 << 20), Some(2 << 20));
        assert_eq!(holes_in_map(&serde_json::json!({}), 5), None);
    }
}
