//! Small files that are whole or not there, whatever is cut.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Puts `text` at `name` in `dir`, durably, in the place of what was there.
pub fn replace(dir: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    let (path, new) = (dir.join(name), dir.join(format!("{name}.new")));
    // The bytes before the name, and the name before anybody is told: a cut leaves the old file or the new one.
    let mut file = File::create(&new)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(&new, &path)?;
    File::open(dir)?.sync_all()
}
