//! Which drives a node has at its start: those of its config store, and those it is told to add.
//! Promises: a drive gets its record before its files, so that files without a record are somebody else's; a drive
//! that is not whole is not used, and one that is missing does not stop the others.

use super::start::{Settings, StartError};
use super::{Drive, Standing};
use crate::config::{ConfigStore, DriveRecord, DriveRecordState, NodeRecord, Place, RedbStore, WEIGHT_WHOLE};
use crate::drives::{self, Access, DRIVE_BYTES_MIN, DriveError, OpenDrive, divide, file_paths};
use crate::words::say;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use weft_engine::DriveId;
use weft_engine::formats::superblock::Superblock;

/// Drives that a node can have.
pub const DRIVES_MAX: u32 = 48;

/// Where the records of drives are kept.
pub trait DriveBook {
    /// Stores the record of a new drive, under a number that it gives it.
    fn add(&mut self, record: DriveRecord) -> Result<DriveRecord, StartError>;
    fn put(&mut self, record: &DriveRecord) -> Result<(), StartError>;
    fn remove(&mut self, drive: DriveId) -> Result<(), StartError>;
}

/// The book of a node that is alone.
pub struct OwnBook<'a> {
    pub store: &'a mut RedbStore,
    pub node: &'a mut NodeRecord,
}

impl DriveBook for OwnBook<'_> {
    fn add(&mut self, mut record: DriveRecord) -> Result<DriveRecord, StartError> {
        record.drive = self.node.next_drive;
        self.node.next_drive += 1;
        self.store.put_node(self.node)?;
        self.store.put_drive(&record)?;
        Ok(record)
    }

    fn put(&mut self, record: &DriveRecord) -> Result<(), StartError> {
        Ok(self.store.put_drive(record)?)
    }

    fn remove(&mut self, drive: DriveId) -> Result<(), StartError> {
        Ok(self.store.remove_drive(drive)?)
    }
}

/// What was found of each drive in the config store.
pub struct DrivePlan {
    pub found: BTreeMap<DriveId, Found>,
}

pub enum Found {
    Open {
        open: OpenDrive,
        /// It is new: nothing on it is of value.
        format: bool,
    },
    Unusable(DriveError),
    Lost,
}

impl DrivePlan {
    /// Opens the drives there are and makes those that are wanted besides. Records of new ones are stored.
    pub fn make(
        dir: &Path,
        settings: &Settings,
        records: &mut Vec<DriveRecord>,
        book: &mut dyn DriveBook,
    ) -> Result<Self, StartError> {
        let mut plan = Self::open(dir, settings, records, book)?;
        check_copies(settings, records, &settings.drive_paths)?;
        plan.add_wanted(dir, settings, records, book)?;
        // Without those of which none was made.
        check_copies(settings, records, &[])?;
        if plan.usable() > 0 {
            return Ok(plan);
        }
        // The exact reason of the first one is what helps.
        match plan.found.into_values().find_map(|found| match found {
            Found::Unusable(error) => Some(error),
            _ => None,
        }) {
            Some(error) => Err(error.into()),
            None => {
                Err(StartError::BadInput("there is no drive; give --drives N or --drive PATH".to_string()))
            }
        }
    }

    /// The same for a member of a cluster: what it cannot use others can do without, and copies are the cluster's matter.
    pub fn make_for_member(
        dir: &Path,
        settings: &Settings,
        records: &mut Vec<DriveRecord>,
        book: &mut dyn DriveBook,
    ) -> Result<Self, StartError> {
        let mut plan = Self::open(dir, settings, records, book)?;
        plan.add_wanted(dir, settings, records, book)?;
        Ok(plan)
    }

    /// Opens the drives there are.
    fn open(
        dir: &Path,
        settings: &Settings,
        records: &mut Vec<DriveRecord>,
        book: &mut dyn DriveBook,
    ) -> Result<Self, StartError> {
        let mut plan = Self { found: BTreeMap::new() };
        forget_half_made(dir, records, book)?;
        let found = look_at_devices(&settings.drive_paths, records);
        find_devices(&settings.drive_paths, &found, records, book)?;
        for record in records.iter_mut() {
            plan.open_known(dir, settings, record, &found, book)?;
        }
        Ok(plan)
    }

    /// Makes the drives that are wanted besides.
    fn add_wanted(
        &mut self,
        dir: &Path,
        settings: &Settings,
        records: &mut Vec<DriveRecord>,
        book: &mut dyn DriveBook,
    ) -> Result<(), StartError> {
        self.add_devices(dir, settings, records, book)?;
        self.add_files(dir, settings, records, book)
    }

    /// Makes drives beside those that are there, all of them or none; `settings.drives` of them are files.
    pub fn add_more(
        dir: &Path,
        settings: &Settings,
        records: &mut Vec<DriveRecord>,
        book: &mut dyn DriveBook,
    ) -> Result<Self, StartError> {
        for path in &settings.drive_paths {
            if let Some(known) = drive_at(path, records) {
                let (path, drive) = (path.display(), known.drive);
                return Err(StartError::BadInput(format!("{path} is drive {drive} of this node already")));
            }
        }
        let before = records.len();
        check_number(before, settings.drive_paths.len() + settings.drives.unwrap_or(0) as usize)?;
        let mut plan = Self { found: BTreeMap::new() };
        let mut devices = settings.drive_paths.iter();
        let made = devices.try_for_each(|path| plan.add_device(dir, path, settings.force, records, book));
        let made = made.and_then(|()| {
            let mut files = 0..settings.drives.unwrap_or(0);
            files.try_for_each(|_| plan.add(dir, Place::Files, settings.drive_size, records, book))
        });
        let Err(error) = made else { return Ok(plan) };
        // All of them or none. Those that were made are let go of first.
        drop(plan);
        for record in records.drain(before..) {
            if let Err(error) = forget(dir, &record, book) {
                tracing::warn!(drive = record.drive, %error, "a drive that is not wanted stays until the next start");
            }
        }
        Err(error)
    }

    /// The drives of these records as they stand before any is opened.
    pub fn drives(
        &self,
        records: &[DriveRecord],
        keeper: impl Fn(&DriveRecord) -> usize,
    ) -> BTreeMap<DriveId, Drive> {
        let drive = |record: &DriveRecord| {
            let standing = match &self.found[&record.id()] {
                Found::Open { .. } => Standing::Opening,
                Found::Unusable(error) => Standing::Down(error.to_string()),
                Found::Lost => Standing::Lost,
            };
            (record.id(), Drive { record: record.clone(), keeper: keeper(record), standing, in_news: false })
        };
        records.iter().map(drive).collect()
    }

    /// Drives that could be opened.
    pub fn usable(&self) -> usize {
        self.found.values().filter(|found| matches!(found, Found::Open { .. })).count()
    }

    /// Drives that are not given up, whether they could be opened or not.
    pub fn kept(&self) -> usize {
        self.found.values().filter(|found| !matches!(found, Found::Lost)).count()
    }

    fn open_known(
        &mut self,
        dir: &Path,
        settings: &Settings,
        record: &mut DriveRecord,
        looked: &BTreeMap<PathBuf, Superblock>,
        book: &mut dyn DriveBook,
    ) -> Result<(), StartError> {
        let id = record.id();
        if let Place::Device(path) = &record.place
            && record.state != DriveRecordState::Lost
            && let Some(other) = looked.get(path).filter(|found| drives::is_other(found, record))
        {
            let error = DriveError::Foreign { path: path.clone(), drive: other.drive };
            self.found.insert(id, Found::Unusable(error));
            return Ok(());
        }
        if record.state == DriveRecordState::Lost {
            self.found.insert(id, Found::Lost);
            return Ok(());
        }
        let found = match drives::open(dir, record, Access::Node) {
            Ok(open) => Found::Open { open, format: false },
            Err(error @ DriveError::Missing { .. }) if settings.replace_lost => {
                say!("weft: drive {id} is given up: {error}");
                record.state = DriveRecordState::Lost;
                book.put(record)?;
                Found::Lost
            }
            Err(error) => Found::Unusable(error),
        };
        self.found.insert(id, found);
        Ok(())
    }

    /// Makes drives of the devices that are named and none yet. Where there are drives already, a device that cannot be one is told
    /// and left out: the node serves what it has, also when a device that was named long ago is gone.
    fn add_devices(
        &mut self,
        dir: &Path,
        settings: &Settings,
        records: &mut Vec<DriveRecord>,
        book: &mut dyn DriveBook,
    ) -> Result<(), StartError> {
        let is_new = records.is_empty();
        for path in &settings.drive_paths {
            if drive_at(path, records).is_some() {
                continue;
            }
            match self.add_device(dir, path, settings.force, records, book) {
                Err(StartError::Drive(error)) if !is_new => say!("weft: no drive is made of it: {error}"),
                made => made?,
            }
        }
        Ok(())
    }

    fn add_device(
        &mut self,
        dir: &Path,
        path: &Path,
        force: bool,
        records: &mut Vec<DriveRecord>,
        book: &mut dyn DriveBook,
    ) -> Result<(), StartError> {
        let bytes = drives::examine_device(path, force)?;
        // Under the name it was given: the kernel's own names go to other devices at another start.
        let path = std::path::absolute(path).map_err(|_| DriveError::Missing { path: path.to_path_buf() })?;
        self.add(dir, Place::Device(path), bytes, records, book)
    }

    fn add_files(
        &mut self,
        dir: &Path,
        settings: &Settings,
        records: &mut Vec<DriveRecord>,
        book: &mut dyn DriveBook,
    ) -> Result<(), StartError> {
        let (there, wanted) = file_drives(settings, records)?;
        for _ in there..wanted {
            self.add(dir, Place::Files, settings.drive_size, records, book)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        dir: &Path,
        place: Place,
        bytes: u64,
        records: &mut Vec<DriveRecord>,
        book: &mut dyn DriveBook,
    ) -> Result<(), StartError> {
        check_number(records.len(), 1)?;
        let geometry = divide(bytes).ok_or_else(|| DriveError::TooSmall {
            place: "a new drive".to_string(),
            has: bytes,
            least: DRIVE_BYTES_MIN,
        })?;
        let record = DriveRecord {
            drive: 0,
            node: 0,
            shard: 0,
            place,
            log: geometry.log,
            data: geometry.data,
            weight: WEIGHT_WHOLE,
            incarnation: None,
            state: DriveRecordState::Making,
        };
        // The record first: should this be cut short, the files are known to be ours and of no value.
        let record = book.add(record)?;
        if record.place == Place::Files
            && let Err(error) = refuse_existing(&file_paths(dir, record.id()))
        {
            book.remove(record.id())?;
            return Err(error.into());
        }
        let made = make_files(dir, &record).and_then(|()| drives::open(dir, &record, Access::Node));
        let open = match made {
            Ok(open) => open,
            Err(error) => {
                forget(dir, &record, book)?;
                return Err(error.into());
            }
        };
        self.found.insert(record.id(), Found::Open { open, format: true });
        records.push(record);
        Ok(())
    }
}

/// The drive that a device is, if it is one: by this name, or by another one of the same device.
fn drive_at<'a>(path: &Path, records: &'a [DriveRecord]) -> Option<&'a DriveRecord> {
    let is_here = |record: &&DriveRecord| match &record.place {
        Place::Device(place) => record.state != DriveRecordState::Lost && is_same_device(place, path),
        Place::Files => false,
    };
    records.iter().find(is_here)
}

fn is_same_device(one: &Path, other: &Path) -> bool {
    let same = |(one, other): (PathBuf, PathBuf)| one == other;
    std::path::absolute(one).ok().zip(std::path::absolute(other).ok()).is_some_and(same)
        || one.canonicalize().ok().zip(other.canonicalize().ok()).is_some_and(same)
}

/// What lies on the devices that are named, and on those that drives should be, if any drive is a device.
fn look_at_devices(named: &[PathBuf], records: &[DriveRecord]) -> BTreeMap<PathBuf, Superblock> {
    let places = records.iter().filter(|record| record.state != DriveRecordState::Lost);
    let places = places.filter_map(|record| match &record.place {
        Place::Device(path) => Some(path.clone()),
        Place::Files => None,
    });
    let mut paths: BTreeSet<PathBuf> = places.collect();
    if !paths.is_empty() {
        paths.extend(named.iter().filter_map(|path| std::path::absolute(path).ok()));
    }
    drives::look_at(paths)
}

/// Notes where the drives of these records are now, by what lies on the devices that are named: the kernel gives its names in
/// another order after each start of the machine.
fn find_devices(
    named: &[PathBuf],
    looked: &BTreeMap<PathBuf, Superblock>,
    records: &mut [DriveRecord],
    book: &mut dyn DriveBook,
) -> Result<(), StartError> {
    for path in named {
        let Ok(path) = std::path::absolute(path) else { continue };
        // One that is known by its number alone stays where it was: another node's has the same.
        let is_device = |record: &DriveRecord| {
            matches!(record.place, Place::Device(_))
                && record.state != DriveRecordState::Lost
                && record.incarnation.is_some()
        };
        let Some(found) = looked.get(&path) else { continue };
        let Some(record) =
            records.iter_mut().find(|record| is_device(record) && drives::is_of(found, record))
        else {
            continue;
        };
        let place = Place::Device(path.clone());
        let Place::Device(before) = &record.place else { continue };
        // Two that hold the same drive are told apart by nothing: the one that was it stays it.
        let is_there_too = || looked.get(before).is_some_and(|found| drives::is_of(found, record));
        if record.place == place || (!is_same_device(before, &path) && is_there_too()) {
            continue;
        }
        say!("weft: drive {} is at {} now (it was at {})", record.id(), path.display(), before.display());
        record.place = place;
        book.put(record)?;
    }
    Ok(())
}

/// Refuses `more` drives than a node can have, before any of them is made.
fn check_number(there: usize, more: usize) -> Result<(), StartError> {
    if there + more <= DRIVES_MAX as usize {
        return Ok(());
    }
    Err(StartError::BadInput(format!("a node has at most {DRIVES_MAX} drives, and has {there}")))
}

/// File-backed drives there are, and there shall be.
fn file_drives(settings: &Settings, records: &[DriveRecord]) -> Result<(u32, u32), StartError> {
    let there = records
        .iter()
        .filter(|record| record.place == Place::Files && record.state != DriveRecordState::Lost)
        .count() as u32;
    let is_new = records.is_empty() && settings.drive_paths.is_empty();
    let wanted = settings.drives.unwrap_or(u32::from(is_new));
    if wanted > DRIVES_MAX {
        return Err(StartError::BadInput(format!(
            "{wanted} drives are too many for one node: choose at most {DRIVES_MAX} (--drives)"
        )));
    }
    if wanted < there && settings.drives.is_some() {
        say!("weft: {there} file-backed drives exist and all are used; --drives {wanted} takes none away");
    }
    Ok((there, wanted.max(there)))
}

/// Refuses a number of copies that the drives there will be cannot hold, before anything is made.
fn check_copies(settings: &Settings, records: &[DriveRecord], named: &[PathBuf]) -> Result<(), StartError> {
    let Some(factor) = settings.factor else { return Ok(()) };
    let (_, files) = file_drives(settings, records)?;
    let devices: BTreeSet<&PathBuf> = records
        .iter()
        .filter(|record| record.state != DriveRecordState::Lost)
        .filter_map(|record| match &record.place {
            Place::Device(path) => Some(path),
            Place::Files => None,
        })
        .chain(named)
        .collect();
    let drives = files + devices.len() as u32;
    if factor > drives {
        return Err(StartError::BadInput(format!(
            "{factor} copies (--rf) need {factor} drives, and there are {drives}; add drives (--drives {factor}) or \
             choose fewer copies"
        )));
    }
    Ok(())
}

/// Drives that were being made when a start was cut short: nothing of value is on them.
fn forget_half_made(
    dir: &Path,
    records: &mut Vec<DriveRecord>,
    book: &mut dyn DriveBook,
) -> Result<(), StartError> {
    for record in records.iter().filter(|record| record.state == DriveRecordState::Making) {
        forget(dir, record, book)?;
    }
    records.retain(|record| record.state != DriveRecordState::Making);
    Ok(())
}

fn forget(dir: &Path, record: &DriveRecord, book: &mut dyn DriveBook) -> Result<(), StartError> {
    match &record.place {
        Place::Files => {
            for path in file_paths(dir, record.id()) {
                // It may never have been made.
                let _ = std::fs::remove_file(path);
            }
        }
        // What was being made there must not pass for a drive.
        Place::Device(path) => drives::unmake(path, record),
    }
    // The files first: files without a record would be taken for somebody else's.
    book.remove(record.id())?;
    Ok(())
}

fn refuse_existing(paths: &[PathBuf]) -> Result<(), DriveError> {
    match paths.iter().find(|path| path.exists()) {
        Some(path) => Err(DriveError::Unknown { path: path.clone() }),
        None => Ok(()),
    }
}

fn make_files(dir: &Path, record: &DriveRecord) -> Result<(), DriveError> {
    let id = record.id();
    let bytes = record.log + record.data;
    say!("weft: making drive {id}: {} MiB at {}", bytes >> 20, drives::describe(dir, record));
    let mut told = std::time::Instant::now();
    drives::make(dir, record, &mut |written| {
        if told.elapsed().as_secs() >= 2 {
            told = std::time::Instant::now();
            say!("weft: making drive {id}: {} of {} MiB of its log written", written >> 20, record.log >> 20);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Default)]
    struct Book(BTreeMap<DriveId, DriveRecord>, u32);

    impl DriveBook for Book {
        fn add(&mut self, mut record: DriveRecord) -> Result<DriveRecord, StartError> {
            record.drive = 100 + self.1;
            self.1 += 1;
            self.0.insert(record.id(), record.clone());
            Ok(record)
        }

        fn put(&mut self, record: &DriveRecord) -> Result<(), StartError> {
            self.0.insert(record.id(), record.clone());
            Ok(())
        }

        fn remove(&mut self, drive: DriveId) -> Result<(), StartError> {
            self.0.remove(&drive);
            Ok(())
        }
    }

    #[test]
    fn drives_are_added_all_or_none() {
        // Where tests are built there is room, and direct I/O.
        let dir = std::env::current_exe().expect("a test has a file");
        let dir = dir.with_file_name(format!("drives-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("it can be made");
        let mut book = Book::default();
        let mut records = Vec::new();
        let settings =
            |drives| Settings { drives: Some(drives), drive_size: DRIVE_BYTES_MIN, ..Settings::of(&dir) };
        DrivePlan::add_more(&dir, &settings(1), &mut records, &mut book).expect("there is room");
        let first = records[0].clone();
        while records.len() as u32 + 1 < DRIVES_MAX {
            records.push(first.clone());
        }
        let before = records.clone();
        let files = || std::fs::read_dir(&dir).expect("it is there").count();
        let (files_before, had) = (files(), book.0.clone());
        let refused = DrivePlan::add_more(&dir, &settings(2), &mut records, &mut book);
        assert!(refused.is_err_and(|error| error.to_string().contains("at most")));
        assert!(records == before && book.0 == had, "the one that there was room for is forgotten");
        assert_eq!(files(), files_before, "and its files are gone");
        std::fs::remove_dir_all(&dir).expect("it goes");
    }
}
