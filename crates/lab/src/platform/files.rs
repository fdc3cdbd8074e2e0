//! Plain files: what the drive gives without anybody in between. They have no snapshots.

use super::{Platform, PlatformTarget, Volume};
use crate::error::LabError;
use crate::target::{Durability, Kind, Target};
use std::path::{Path, PathBuf};

pub struct Files {
    paths: Vec<PathBuf>,
    targets: Vec<Target>,
}

impl Files {
    pub fn open(platform: &PlatformTarget, dir: &Path, volumes: &[Volume]) -> Result<Files, LabError> {
        let dir = prepared(dir, volumes, 0)?;
        let mut files = Files { paths: Vec::new(), targets: Vec::new() };
        for volume in volumes {
            let path = dir.join(format!("{}.img", volume.name));
            make_new(&path, volume.bytes).map_err(|why| platform.failed("making the files", why))?;
            files.paths.push(path.clone());
            let durability = if volume.durable { Durability::OpenDsync } else { Durability::EveryWrite };
            files.targets.push(Target { label: volume.name.clone(), kind: Kind::File(path), durability });
        }
        Ok(files)
    }
}

impl Platform for Files {
    fn targets(&self) -> &[Target] {
        &self.targets
    }

    fn snapshot(&mut self, _number: u32) -> Result<(), String> {
        Err("files have no snapshots".to_string())
    }

    fn remove(&mut self) -> Result<(), String> {
        remove_all(&mut self.paths)
    }
}

/// Removes these files, each whatever came of the others.
pub fn remove_all(paths: &mut Vec<PathBuf>) -> Result<(), String> {
    let mut outcome = Ok(());
    for path in paths.drain(..) {
        let removed = std::fs::remove_file(&path);
        outcome = outcome.and(removed.map_err(|why| format!("{}: {why}", path.display())));
    }
    outcome
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = self.remove();
    }
}

/// The directory, made if it is not there, with room for the volumes and for what snapshots keep of them.
pub fn prepared(dir: &Path, volumes: &[Volume], snapshot_bytes: u64) -> Result<PathBuf, LabError> {
    let failed = |why| LabError::File { path: dir.to_path_buf(), why };
    std::fs::create_dir_all(dir).map_err(failed)?;
    let dir = std::path::absolute(dir).map_err(failed)?;
    let wanted = volumes.iter().map(|volume| volume.bytes).sum::<u64>() + snapshot_bytes;
    match crate::label::free_bytes(&dir) {
        Some(free) if free < wanted => {
            Err(LabError::NoSpace { place: dir.display().to_string(), wanted, free })
        }
        _ => Ok(dir),
    }
}

/// A file that was not there before.
pub fn make_new(path: &Path, bytes: u64) -> std::io::Result<()> {
    let file = std::fs::File::options().write(true).create_new(true).open(path).map_err(|why| {
        std::io::Error::new(
            why.kind(),
            format!("{}: {why}; remove it, or name another directory", path.display()),
        )
    })?;
    file.set_len(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_cannot_be_removed_does_not_keep_the_others() {
        let dir = std::env::temp_dir().join(format!("weft-lab-files-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("writable");
        let paths: Vec<PathBuf> = ["gone", "there"].map(|name| dir.join(name)).to_vec();
        std::fs::write(&paths[1], "x").expect("writable");
        let mut files = Files { paths, targets: Vec::new() };
        let why = files.remove().expect_err("the first is not there");
        assert!(why.contains("gone"), "{why}");
        std::fs::remove_dir(&dir).expect("nothing is left in it");
    }
}
