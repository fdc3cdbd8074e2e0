//! Which drives a node has at its start: those of its config store, and those it is told to add.
//! Promises: a drive gets its record before its files, so that files without a record are somebody else's; a drive
//! that is not whole is not used, and one that is missing does not stop the others.

use super::start::{Settings, StartError};
use crate::config::{Config, ConfigStore, DriveRecord, DriveRecordState, Place, RedbStore, WEIGHT_WHOLE};
use crate::drives::{self, Access, DRIVE_BYTES_MIN, DriveError, OpenDrive, divide, file_paths};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use weft_engine::DriveId;

/// Drives of one node.
const DRIVES_MAX: u32 = 48;

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
        config: &mut Config,
        store: &mut RedbStore,
    ) -> Result<Self, StartError> {
        let mut plan = Self { found: BTreeMap::new() };
        forget_half_made(dir, config, store)?;
        for record in &mut config.drives {
            plan.open_known(dir, settings, record, store)?;
        }
        check_copies(settings, config)?;
        plan.add_devices(dir, settings, config, store)?;
        plan.add_files(dir, settings, config, store)?;
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
        store: &mut RedbStore,
    ) -> Result<(), StartError> {
        let id = record.id();
        if record.state == DriveRecordState::Lost {
            self.found.insert(id, Found::Lost);
            return Ok(());
        }
        let found = match drives::open(dir, record, Access::Node) {
            Ok(open) => Found::Open { open, format: false },
            Err(error @ DriveError::Missing { .. }) if settings.replace_lost => {
                eprintln!("weft: drive {id} is given up: {error}");
                record.state = DriveRecordState::Lost;
                store.put_drive(record)?;
                Found::Lost
            }
            Err(error) => Found::Unusable(error),
        };
        self.found.insert(id, found);
        Ok(())
    }

    fn add_devices(
        &mut self,
        dir: &Path,
        settings: &Settings,
        config: &mut Config,
        store: &mut RedbStore,
    ) -> Result<(), StartError> {
        for path in &settings.drive_paths {
            let path = path.canonicalize().map_err(|_| DriveError::Missing { path: path.clone() })?;
            let known = config.drives.iter().any(|record| {
                record.place == Place::Device(path.clone()) && record.state != DriveRecordState::Lost
            });
            if known {
                continue;
            }
            let bytes = drives::examine_device(&path, settings.force)?;
            self.add(dir, Place::Device(path), bytes, config, store)?;
        }
        Ok(())
    }

    fn add_files(
        &mut self,
        dir: &Path,
        settings: &Settings,
        config: &mut Config,
        store: &mut RedbStore,
    ) -> Result<(), StartError> {
        let (there, wanted) = file_drives(settings, config)?;
        for _ in there..wanted {
            self.add(dir, Place::Files, settings.drive_size, config, store)?;
        }
        Ok(())
    }

    fn add(
        &mut self,
        dir: &Path,
        place: Place,
        bytes: u64,
        config: &mut Config,
        store: &mut RedbStore,
    ) -> Result<(), StartError> {
        if config.drives.len() as u32 >= DRIVES_MAX {
            return Err(StartError::BadInput(format!("a node has at most {DRIVES_MAX} drives")));
        }
        let drive = config.node.next_drive;
        let geometry = divide(bytes).ok_or_else(|| DriveError::TooSmall {
            place: format!("drive {drive}"),
            has: bytes,
            least: DRIVE_BYTES_MIN,
        })?;
        let record = DriveRecord {
            drive,
            node: 0,
            shard: 0,
            place,
            log: geometry.log,
            data: geometry.data,
            weight: WEIGHT_WHOLE,
            state: DriveRecordState::Making,
        };
        if record.place == Place::Files {
            refuse_existing(&file_paths(dir, record.id()))?;
        }
        config.node.next_drive = drive + 1;
        store.put_node(&config.node)?;
        // The record first: should this be cut short, the files are known to be ours and of no value.
        store.put_drive(&record)?;
        let made = make_files(dir, &record).and_then(|()| drives::open(dir, &record, Access::Node));
        let open = match made {
            Ok(open) => open,
            Err(error) => {
                forget(dir, &record, store)?;
                return Err(error.into());
            }
        };
        self.found.insert(record.id(), Found::Open { open, format: true });
        config.drives.push(record);
        Ok(())
    }
}

/// File-backed drives there are, and there shall be.
fn file_drives(settings: &Settings, config: &Config) -> Result<(u32, u32), StartError> {
    let there = config
        .drives
        .iter()
        .filter(|record| record.place == Place::Files && record.state != DriveRecordState::Lost)
        .count() as u32;
    let is_new = config.drives.is_empty() && settings.drive_paths.is_empty();
    let wanted = settings.drives.unwrap_or(u32::from(is_new));
    if wanted > DRIVES_MAX {
        return Err(StartError::BadInput(format!(
            "{wanted} drives are too many for one node: choose at most {DRIVES_MAX} (--drives)"
        )));
    }
    if wanted < there && settings.drives.is_some() {
        eprintln!(
            "weft: {there} file-backed drives exist and all are used; --drives {wanted} takes none away"
        );
    }
    Ok((there, wanted.max(there)))
}

/// Refuses a number of copies that the drives there will be cannot hold, before anything is made.
fn check_copies(settings: &Settings, config: &Config) -> Result<(), StartError> {
    let Some(factor) = settings.factor else { return Ok(()) };
    let (_, files) = file_drives(settings, config)?;
    let devices: BTreeSet<&PathBuf> = config
        .drives
        .iter()
        .filter(|record| record.state != DriveRecordState::Lost)
        .filter_map(|record| match &record.place {
            Place::Device(path) => Some(path),
            Place::Files => None,
        })
        .chain(&settings.drive_paths)
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
fn forget_half_made(dir: &Path, config: &mut Config, store: &mut RedbStore) -> Result<(), StartError> {
    for record in config.drives.iter().filter(|record| record.state == DriveRecordState::Making) {
        forget(dir, record, store)?;
    }
    config.drives.retain(|record| record.state != DriveRecordState::Making);
    Ok(())
}

fn forget(dir: &Path, record: &DriveRecord, store: &mut RedbStore) -> Result<(), StartError> {
    if record.place == Place::Files {
        for path in file_paths(dir, record.id()) {
            // It may never have been made.
            let _ = std::fs::remove_file(path);
        }
    }
    // The files first: files without a record would be taken for somebody else's.
    store.remove_drive(record.id())?;
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
    eprintln!("weft: making drive {id}: {} MiB at {}", bytes >> 20, drives::describe(dir, record));
    let mut told = std::time::Instant::now();
    drives::make(dir, record, &mut |written| {
        if told.elapsed().as_secs() >= 2 {
            told = std::time::Instant::now();
            eprintln!(
                "weft: making drive {id}: {} of {} MiB of its log written",
                written >> 20,
                record.log >> 20
            );
        }
    })
}
