//! Small files that are whole or not there, whatever is cut; and what is no file at all.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Whether something else is there: of a pipe, opening alone would wait for somebody at the other end.
pub fn is_no_file(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file())
}

/// What is at `name` in `dir`; None: nothing.
pub fn read(dir: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(dir.join(name)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Puts `text` at `name` in `dir`, durably, in the place of what was there.
pub fn replace(dir: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    let mut file = File::create(unnamed(dir, name))?;
    file.write_all(text)?;
    give_name(dir, name, &file)
}

/// Where a file is made that [`give_name`] puts at `name`.
pub fn unnamed(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.new"))
}

/// Puts what was made at [`unnamed`] at `name` in `dir`, durably.
pub fn give_name(dir: &Path, name: &str, file: &File) -> io::Result<()> {
    // The bytes before the name, and the name before anybody is told: a cut leaves the old file or the new one.
    file.sync_all()?;
    std::fs::rename(unnamed(dir, name), dir.join(name))?;
    File::open(dir)?.sync_all()
}
