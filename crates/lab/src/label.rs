//! The lab's label: the first MiB of a target, by which the lab knows again what it may overwrite.
//! Promises: a target that holds anything else is refused unless that may go, and nothing is written or made before all
//! targets have been looked at; nothing is written by a target's second address before it was found to be the same storage.
//! Leaves to others: the fill itself, which only touches what is behind the label (`run`).

use crate::error::LabError;
use crate::nbd_client::Client;
use crate::settings::{Prefill, RunSettings};
use crate::target::{Kind, Target};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Bytes at the start of a target that are the label's; the load begins behind them.
pub const LABEL_BYTES: u64 = 1 << 20;
/// How long a server may take to say what was never written.
const MAP_PATIENCE: Duration = Duration::from_secs(30);
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

    /// None: there is something else.
    fn label(&mut self) -> Result<Option<Label>> {
        let mut first = vec![0; LABEL_BYTES as usize];
        self.read_at(0, &mut first)?;
        Ok(Label::read(&first))
    }
}

/// What is known about a target that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// Bytes the target has.
    pub capacity: u64,
    /// Whether it has to be filled before it is measured.
    pub fill: bool,
    /// What the lab knows of it so far.
    pub label: Label,
}

/// What the label says. Both from the start of the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// Bytes that are filled with random data.
    pub filled: u64,
    /// Bytes that some run may have written: behind them nothing is the lab's.
    pub touched: u64,
    /// A number of this target in this run, by which it is known by whatever address; 0 in labels of older versions.
    pub mark: u64,
}

impl Label {
    /// The whole of its MiB, so that no hole is left before the load.
    fn bytes(self) -> Vec<u8> {
        let Label { filled, touched, mark } = self;
        whole(&format!("filled {filled}\ntouched {touched}\nmark {mark}\n"))
    }

    /// Reads it back. None if even one byte of the MiB is another one: somebody else has used the target since.
    fn read(bytes: &[u8]) -> Option<Label> {
        let text = String::from_utf8_lossy(&bytes[..4096]);
        let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        let filled = number("filled ")?;
        let (label, is_whole) = match (number("touched "), number("mark ")) {
            (Some(touched), Some(mark)) => {
                let label = Label { filled, touched, mark };
                (label, label.bytes() == bytes)
            }
            (Some(touched), None) => {
                let lines = format!("filled {filled}\ntouched {touched}\n");
                (Label { filled, touched, mark: 0 }, whole(&lines) == bytes)
            }
            // As it was before what runs have touched was noted: they had filled what they touched.
            (None, _) => {
                (Label { filled, touched: filled, mark: 0 }, whole(&format!("filled {filled}\n")) == bytes)
            }
        };
        is_whole.then_some(label)
    }
}

/// A label with these lines.
fn whole(lines: &str) -> Vec<u8> {
    let mut bytes = format!("{MAGIC}{lines}").into_bytes();
    bytes.resize(LABEL_BYTES as usize, 0);
    bytes
}

/// Looks at a target: reachable, large enough, and either empty or the lab's own. Writes and makes nothing.
pub fn look_at(target: &Target, settings: &RunSettings) -> std::result::Result<Looked, LabError> {
    let unreachable = |why| LabError::Unreachable { label: target.label.clone(), why };
    let (mut place, capacity) = match &target.kind {
        Kind::Nbd { uri, .. } => {
            let client = writable(uri).map_err(unreachable)?;
            let size = client.size;
            (Place::Nbd(client), size)
        }
        Kind::File(path) => match open_file(path, settings.size)? {
            Some((file, size)) => (Place::File(file), size),
            None => {
                let fill = settings.prefill != Prefill::Never;
                return Ok(Looked { capacity: settings.size, fill, label: Label::default() });
            }
        },
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
    let label = Label::read(&first);
    if !settings.destroy {
        // Also the end: partition tables and RAID members keep something there.
        let mut last = vec![0; LABEL_BYTES as usize];
        if label.is_none_or(|label| label.touched <= capacity - LABEL_BYTES) {
            place.read_at(capacity - LABEL_BYTES, &mut last).map_err(unreachable)?;
        }
        let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        if !(label.is_some() || is_zero(&first)) || !is_zero(&last) {
            return Err(LabError::HoldsData { place: target.place().to_string(), bytes: settings.size });
        }
    }
    // The server may take one connection at a time.
    drop(place);
    if let Some(uri) = target.second_address() {
        look_at_second(target, uri, capacity, &first)?;
    }
    let label = label.unwrap_or_default();
    let fill = match settings.prefill {
        Prefill::Always => true,
        Prefill::IfNeeded => label.filled < settings.size,
        Prefill::Never => false,
    };
    Ok(Looked { capacity, fill, label })
}

/// Looks at the address by which durable writes go: whoever mistypes it would have somebody else's export overwritten. So it must
/// show what the first address has shown, whatever may be destroyed there.
fn look_at_second(
    target: &Target,
    uri: &str,
    capacity: u64,
    first: &[u8],
) -> std::result::Result<(), LabError> {
    let unreachable = |why| LabError::Unreachable { label: format!("{} (durable={uri})", target.label), why };
    let mut client = writable(uri).map_err(unreachable)?;
    if client.size != capacity {
        let why = format!("it holds {} bytes, and {} holds {capacity}", client.size, target.place());
        return Err(other_storage(target, uri, why));
    }
    let mut own = vec![0; LABEL_BYTES as usize];
    client.read_at(0, &mut own).map_err(unreachable)?;
    if own != first {
        return Err(other_storage(target, uri, format!("it does not begin as {} does", target.place())));
    }
    Ok(())
}

fn other_storage(target: &Target, uri: &str, why: String) -> LabError {
    LabError::OtherStorage { label: target.label.clone(), uri: uri.to_string(), why }
}

fn writable(uri: &str) -> Result<Client> {
    let client = Client::connect(uri)?;
    if client.read_only {
        return Err(std::io::Error::new(ErrorKind::ReadOnlyFilesystem, "it is read-only"));
    }
    Ok(client)
}

/// Gives each target its label for a run that uses `size` bytes of it, with a mark of its own, and then reads the marks by all
/// addresses: exports that are alike, because all are empty, cannot be told apart sooner.
pub fn mark(targets: &[Target], looked: &mut [Looked], size: u64) -> std::result::Result<(), LabError> {
    for (target, looked) in targets.iter().zip(looked.iter_mut()) {
        let Label { filled, touched, .. } = looked.label;
        looked.label = Label { filled, touched: touched.max(size), mark: rand::random_range(1..=u64::MAX) };
        write(target, looked.label)?;
    }
    for (index, target) in targets.iter().enumerate() {
        let unreachable = |why| LabError::Unreachable { label: target.label.clone(), why };
        // Should it read something else that is no other target's, it is a server that keeps nothing: good enough for its speed.
        let read = open(target).and_then(|mut place| place.label()).map_err(unreachable)?;
        let is_of = |looked: &Looked| read.is_some_and(|read| read.mark == looked.label.mark);
        if let Some(other) = looked.iter().position(is_of).filter(|&other| other != index) {
            let (one, other) = (target.label.clone(), targets[other].label.clone());
            return Err(LabError::SameStorage { one, other });
        }
        if let Some(uri) = target.second_address() {
            let mut place = Place::Nbd(Client::connect(uri).map_err(unreachable)?);
            if place.label().map_err(unreachable)? != Some(looked[index].label) {
                let why = format!("what was just written to {} is not read there", target.place());
                return Err(other_storage(target, uri, why));
            }
        }
    }
    Ok(())
}

/// Makes a file that is absent or empty as long as it has to be. The fill writes every block of it.
pub fn make(target: &Target, size: u64) -> std::result::Result<(), LabError> {
    let Kind::File(path) = &target.kind else { return Ok(()) };
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    file.and_then(|file| if file.metadata()?.len() == 0 { file.set_len(size) } else { Ok(()) })
        .map_err(|why| LabError::File { path: path.to_path_buf(), why })
}

/// Writes the label: that this target is the lab's, and how far.
pub fn write(target: &Target, label: Label) -> std::result::Result<(), LabError> {
    open(target)
        .and_then(|mut place| place.write_at(0, &label.bytes()))
        .map_err(|why| LabError::Unreachable { label: target.label.clone(), why })
}

fn open(target: &Target) -> Result<Place> {
    match &target.kind {
        Kind::Nbd { uri, .. } => Client::connect(uri).map(Place::Nbd),
        Kind::File(path) | Kind::Device(path) => {
            OpenOptions::new().read(true).write(true).open(path).map(Place::File)
        }
    }
}

/// Opens the file, and gives its length. None for one that is absent or empty: it will be made.
fn open_file(path: &Path, size: u64) -> std::result::Result<Option<(File, u64)>, LabError> {
    let failed = |why| LabError::File { path: path.to_path_buf(), why };
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => Some(file),
        Err(why) if why.kind() == ErrorKind::NotFound => None,
        Err(why) => return Err(failed(why)),
    };
    if let Some(file) = file {
        let facts = file.metadata().map_err(failed)?;
        if !facts.is_file() {
            return Err(failed(std::io::Error::new(ErrorKind::InvalidInput, "that is no file")));
        }
        if facts.len() > 0 {
            return Ok(Some((file, facts.len())));
        }
    }
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    if !dir.is_dir() {
        return Err(failed(std::io::Error::new(
            ErrorKind::NotFound,
            "there is no such directory to make it in",
        )));
    }
    match free_bytes(dir) {
        Some(free) if free < size => {
            Err(LabError::NoSpace { place: path.display().to_string(), wanted: size, free })
        }
        _ => Ok(None),
    }
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
    let output = Command::new("df").args(["--output=avail", "-B1"]).arg(path).output().ok()?;
    String::from_utf8_lossy(&output.stdout).lines().nth(1)?.trim().parse().ok()
}

/// Bytes of the touched range that were never written, if that can be found out.
pub fn never_written(target: &Target, size: u64) -> Option<u64> {
    match &target.kind {
        Kind::Nbd { uri, .. } => {
            // nbdinfo asks for base:allocation; where it is not installed, nothing is claimed.
            let mut command = Command::new("nbdinfo");
            let said = output_within(command.args(["--map", "--json", uri]), MAP_PATIENCE)?;
            holes_in_map(&serde_json::from_slice(&said).ok()?, size)
        }
        // Blocks allocated but never written do not show here; the fill writes every one of them anyhow.
        Kind::File(path) => holes_in_file(&File::open(path).ok()?, size),
        Kind::Device(_) => None,
    }
}

/// What a program says that ends well, and in time; it is ended otherwise.
fn output_within(command: &mut Command, patience: Duration) -> Option<Vec<u8>> {
    crate::fio::end_with_parent(command);
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped()).spawn().ok()?;
    let mut output = child.stdout.take().expect("stdout was asked to be a pipe");
    let (told, answer) = std::sync::mpsc::channel();
    let listen = move || {
        let mut said = Vec::new();
        let read = output.read_to_end(&mut said);
        told.send(read.map(|_| said))
    };
    std::thread::spawn(listen);
    let said = answer.recv_timeout(patience);
    if said.is_err() {
        let _ = child.kill();
    }
    let is_well = child.wait().is_ok_and(|status| status.success());
    said.ok()?.ok().filter(|_| is_well)
}

/// Adds up the holes between the label and `size`.
fn holes_in_file(file: &File, size: u64) -> Option<u64> {
    use std::os::fd::AsRawFd;
    // SAFETY: a call without memory, on a file that is open as long as it is borrowed.
    let seek = |at: u64, whence| unsafe { libc::lseek(file.as_raw_fd(), at as libc::off_t, whence) };
    let (mut bytes, mut at) = (0, LABEL_BYTES);
    while at < size {
        // Every file ends with a hole, so this finds one.
        let hole = u64::try_from(seek(at, libc::SEEK_HOLE)).ok()?.min(size);
        // No data behind it (ENXIO): a hole up to the end.
        at = u64::try_from(seek(hole, libc::SEEK_DATA)).map_or(size, |data| data.min(size));
        bytes += at - hole;
    }
    Some(bytes)
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
    fn a_program_that_hangs_is_not_waited_for() {
        let shell = |script: &str, patience| output_within(Command::new("sh").args(["-c", script]), patience);
        assert_eq!(shell("echo yes", MAP_PATIENCE).as_deref(), Some(&b"yes\n"[..]));
        assert_eq!(shell("echo no; exit 1", MAP_PATIENCE), None);
        assert_eq!(shell("exec sleep 1000000", Duration::from_millis(100)), None);
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
        let size = settings.size;
        let absent = Looked { capacity: size, fill: true, label: Label::default() };
        assert_eq!(look_at(&target, &settings).expect("absent"), absent);
        assert!(!Path::new(target.place()).exists(), "looking makes nothing");
        make(&target, size).expect("writable");
        let label = Label { filled: size, touched: size, mark: 7 };
        write(&target, label).expect("writable");
        let file = OpenOptions::new().write(true).open(target.place()).expect("there");
        file.write_all_at(&[1; 4096], LABEL_BYTES * 2).expect("writable");
        file.write_all_at(&[1; 4096], size - 4096).expect("writable");
        let own = Looked { capacity: size, fill: false, label };
        assert_eq!(look_at(&target, &settings).expect("its own"), own);
        settings.size += 1 << 20;
        assert!(matches!(look_at(&target, &settings), Err(LabError::TooSmall { .. })));
        remove(&target);
    }

    #[test]
    fn a_label_says_nothing_of_what_somebody_has_written_since() {
        let (target, settings) = file_target("since");
        let size = settings.size;
        make(&target, size).expect("writable");
        let file = OpenOptions::new().write(true).open(target.place()).expect("there");
        let is_refused = || matches!(look_at(&target, &settings), Err(LabError::HoldsData { .. }));
        write(&target, Label { filled: size / 2, touched: size / 2, mark: 7 }).expect("writable");
        assert!(!is_refused());
        // The end of a device, behind all that the lab has ever touched.
        file.write_all_at(&[1], size - 1).expect("writable");
        assert!(is_refused());
        file.write_all_at(&[0], size - 1).expect("writable");
        // A partition table, a superblock at 4 KiB: all leave the first bytes as they were.
        for at in [440, 512, 4096, LABEL_BYTES - 1] {
            write(&target, Label { filled: size, touched: size, mark: 7 }).expect("writable");
            assert!(!is_refused());
            file.write_all_at(&[7], at).expect("writable");
            assert!(is_refused(), "{at}");
        }
        remove(&target);
    }

    #[test]
    fn labels_of_older_versions_are_known() {
        for (lines, touched) in
            [("filled 5000000\n", 5_000_000), ("filled 5000000\ntouched 6000000\n", 6_000_000)]
        {
            let mut older = whole(lines);
            assert_eq!(Label::read(&older), Some(Label { filled: 5_000_000, touched, mark: 0 }));
            older[4096] = 1;
            assert_eq!(Label::read(&older), None);
        }
    }

    #[test]
    fn two_targets_that_are_one_storage_are_found_by_their_marks() {
        let (one, settings) = file_target("one");
        make(&one, settings.size).expect("writable");
        // Another way to the same bytes that no comparison of paths finds.
        let hard_link = std::env::temp_dir().join(format!("weft-label-{}-link", std::process::id()));
        std::fs::hard_link(one.place(), &hard_link).expect("the same directory");
        let two = Target { label: "two".into(), kind: Kind::File(hard_link), ..one.clone() };
        let looked = look_at(&one, &settings).expect("empty");
        let error = mark(&[one.clone(), two.clone()], &mut [looked, looked], settings.size);
        assert!(matches!(&error, Err(LabError::SameStorage { .. })), "{error:?}");
        assert!(mark(std::slice::from_ref(&two), &mut [looked], settings.size).is_ok());
        remove(&one);
        remove(&two);
    }

    #[test]
    fn holes_of_a_file_are_counted_where_it_is_read() {
        let (target, _) = file_target("holes");
        let file = File::create(target.place()).expect("writable");
        file.set_len(64 << 20).expect("writable");
        file.write_all_at(&vec![1; 3 << 20], LABEL_BYTES).expect("writable");
        file.write_all_at(&vec![1; 1 << 20], 6 << 20).expect("writable");
        let file = File::open(target.place()).expect("there");
        assert_eq!(holes_in_file(&file, 4 << 20), Some(0), "what lies behind is not read");
        assert_eq!(holes_in_file(&file, 8 << 20), Some(3 << 20));
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
