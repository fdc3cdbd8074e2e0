//! The config store of a single node: one redb file in its directory.
//! Promises: as [`ConfigStore`]; redb commits are durable when they return, a cut in between leaves the
//! old state, and a change that was answered with an error is not there; a file that was damaged since is refused.

mod changes;

use self::changes::{Key, Open, Undo};
use super::{
    Config, ConfigError, ConfigStore, ConsistencyRecord, ContainerRecord, DriveRecord, FamilyConfig,
    GroupRecord, NodeRecord, ScheduleRecord, SegmentRecord, SnapshotRecord, durable_file,
};
use redb::backends::InMemoryBackend;
use redb::{
    Database, DatabaseError, ReadableTable, StorageBackend, StorageError, TableDefinition, TableError,
    TransactionError, WriteTransaction,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use weft_engine::interface::Segment;
use weft_engine::{DriveId, Epoch, FamilyId, SnapshotId};

/// Its name in the node's directory.
pub const CONFIG_FILE: &str = "config.redb";

type Definition<K> = TableDefinition<'static, K, &'static str>;
type Table = Definition<u32>;

const NODE: Table = TableDefinition::new("node");
const DRIVES: Table = TableDefinition::new("drives");
const GROUPS: Table = TableDefinition::new("groups");
const FAMILIES: Table = TableDefinition::new("families");
/// By [`SnapshotId`].
const SNAPSHOTS: Definition<u64> = TableDefinition::new("snapshots");
const SCHEDULES: Table = TableDefinition::new("schedules");
/// By name.
const CONSISTENCY: Definition<&'static str> = TableDefinition::new("consistency");
/// By name.
const CONTAINERS: Definition<&'static str> = TableDefinition::new("containers");

/// The process has one panic hook: of two who put it aside at once, one would never put it back.
static PANIC_HOOK: Mutex<()> = Mutex::new(());

pub struct RedbStore {
    /// None: it had an error, and could not be opened again yet.
    database: Option<Database>,
    /// The file; a copy in memory has none.
    file: Option<PathBuf>,
    /// Takes back what was answered with an error, and may be in the file, before anything else is changed.
    undo: Vec<Undo>,
}

impl RedbStore {
    /// Opens the store in `dir`; makes an empty one if there is none and `create` says so.
    pub fn open(dir: &Path, create: bool) -> Result<Self, ConfigError> {
        if create && !dir.join(CONFIG_FILE).exists() {
            Self::make(dir).map_err(|reason| ConfigError::Make { path: dir.join(CONFIG_FILE), reason })?;
        }
        let mut store = Self::open_with(dir, create, |path| {
            let database = if create { Database::create(path) } else { Database::open(path) };
            database.map_err(Unopened::from)
        })?;
        store.file = Some(dir.join(CONFIG_FILE));
        Ok(store)
    }

    /// Makes a store with nothing in it under another name first: one that was cut while it was made could never be opened, and has no
    /// good copy.
    fn make(dir: &Path) -> Result<(), String> {
        let new = durable_file::unnamed(dir, CONFIG_FILE);
        let _ = std::fs::remove_file(&new);
        let named = Database::create(&new).map(drop).map_err(|error| error.to_string()).and_then(|()| {
            let named = File::open(&new).and_then(|file| durable_file::give_name(dir, CONFIG_FILE, &file));
            named.map_err(|error| error.to_string())
        });
        if named.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        named
    }

    /// What a copy of the store in memory has: one that was not closed is repaired there, and the file stays as it is.
    pub fn read_copy(dir: &Path) -> Result<Config, ConfigError> {
        let path = dir.join(CONFIG_FILE);
        guarded(&path, || {
            let bytes = std::fs::read(&path).map_err(Unopened::of)?;
            let memory = InMemoryBackend::new();
            memory
                .set_len(bytes.len() as u64)
                .and_then(|()| memory.write(0, &bytes))
                .map_err(Unopened::of)?;
            // It is closed in here as well: that writes, and so may meet what is damaged. Of memory nothing else is in the way.
            let database = Database::builder().create_with_backend(memory).map_err(Unopened::from);
            let read = database.and_then(|database| Self::checked(database, false));
            read.map(|(_, config)| config).map_err(|error| Unopened { is_damaged: true, ..error })
        })
    }

    fn open_with(
        dir: &Path,
        create: bool,
        open: impl FnOnce(&Path) -> Result<Database, Unopened>,
    ) -> Result<Self, ConfigError> {
        let path = dir.join(CONFIG_FILE);
        guarded(&path, || Ok(Self::checked(open(&path)?, create)?.0))
    }

    fn checked(mut database: Database, create: bool) -> Result<(Self, Config), Unopened> {
        // Otherwise what was damaged behind its back passes for what was written.
        database.check_integrity()?;
        let mut store = Self { database: Some(database), file: None, undo: Vec::new() };
        if create {
            store.make_tables().map_err(Unopened::of)?;
        }
        let config =
            store.load().map_err(|error| Unopened { reason: error.to_string(), is_damaged: true })?;
        Ok((store, config))
    }

    fn make_tables(&mut self) -> Result<(), ConfigError> {
        let transaction = self.begin_write()?;
        for table in [NODE, DRIVES, GROUPS, FAMILIES, SCHEDULES] {
            transaction.open_table(table).map_err(failed)?;
        }
        transaction.open_table(SNAPSHOTS).map_err(failed)?;
        transaction.open_table(CONSISTENCY).map_err(failed)?;
        transaction.open_table(CONTAINERS).map_err(failed)?;
        transaction.commit().map_err(failed)
    }

    /// Whatever has to be taken back has been.
    fn begin_write(&mut self) -> Result<WriteTransaction, ConfigError> {
        let transaction = self.begin_durable()?;
        if self.undo.is_empty() {
            return Ok(transaction);
        }
        for undo in self.undo.iter().rev() {
            undo(&transaction)?;
        }
        transaction.commit().map_err(failed)?;
        self.undo.clear();
        self.begin_durable()
    }

    fn begin_durable(&mut self) -> Result<WriteTransaction, ConfigError> {
        let mut transaction = self.begin()?;
        // What is written is durable before anything says that it counts: a change that the drive or a full file system refuses at the
        // flush would otherwise be there at the next opening, though it was answered as one that was not made. (One whose very last
        // flush fails, of the header alone, has to be taken back.)
        transaction.set_two_phase_commit(true);
        Ok(transaction)
    }

    /// Behind an error of the file system redb takes no more changes until it is opened again.
    fn begin(&mut self) -> Result<WriteTransaction, ConfigError> {
        if let Some(database) = &self.database {
            match database.begin_write() {
                Err(TransactionError::Storage(StorageError::PreviousIo)) if self.file.is_some() => {}
                begun => return begun.map_err(failed),
            }
        }
        let file = self.file.as_deref().expect("what is only in memory is not closed");
        // Nobody else can open it meanwhile: the node has its directory to itself.
        drop(self.database.take());
        let opened = guarded(file, || Database::open(file).map_err(Unopened::from))?;
        let database = self.database.insert(opened);
        tracing::info!("the config store was opened again after an error");
        database.begin_write().map_err(failed)
    }

    fn read_all<K, T>(&self, table: Definition<K>, name: &'static str) -> Result<Vec<T>, ConfigError>
    where
        K: for<'a> redb::Key<SelfType<'a>: fmt::Display> + 'static,
        T: DeserializeOwned,
    {
        let database = self.database.as_ref().ok_or_else(|| failed(StorageError::PreviousIo))?;
        let transaction = database.begin_read().map_err(failed)?;
        let open = match transaction.open_table(table) {
            Ok(open) => open,
            // A store that an older version made, and that nobody has changed since.
            Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut records = Vec::new();
        for entry in open.iter().map_err(failed)? {
            let (key, value) = entry.map_err(failed)?;
            records.push(parse(name, key.value(), value.value())?);
        }
        Ok(records)
    }

    /// One transaction on one table.
    fn change<K: Key, T>(
        &mut self,
        table: Definition<K>,
        change: impl FnOnce(&mut Open<K>) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        let transaction = self.begin_write()?;
        let mut undo = Vec::new();
        let result = change(&mut Open::new(&transaction, table, &mut undo)?)?;
        self.commit(transaction, undo)?;
        Ok(result)
    }

    fn commit(&mut self, transaction: WriteTransaction, undo: Vec<Undo>) -> Result<(), ConfigError> {
        let Err(error) = transaction.commit() else { return Ok(()) };
        // All of it may be in the file. If that cannot be opened now, it is taken back when it can.
        self.undo.extend(undo);
        drop(self.begin_write());
        Err(failed(error))
    }

    fn put<T: Serialize>(&mut self, table: Table, records: &[(u32, &T)]) -> Result<(), ConfigError> {
        self.change(table, |open| records.iter().try_for_each(|(key, record)| open.put(*key, record)))
    }
}

/// Why the store could not be opened, and whether that is the file's fault.
struct Unopened {
    reason: String,
    is_damaged: bool,
}

impl Unopened {
    fn of(error: impl fmt::Display) -> Self {
        Self { reason: error.to_string(), is_damaged: false }
    }
}

impl From<DatabaseError> for Unopened {
    fn from(error: DatabaseError) -> Self {
        let is_damaged = match &error {
            DatabaseError::DatabaseAlreadyOpen => false,
            // What redb finds in a file that is none of its own.
            DatabaseError::Storage(StorageError::Io(error)) => {
                matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof)
            }
            _ => true,
        };
        Self { reason: error.to_string(), is_damaged }
    }
}

/// A damaged file can make redb panic; that is bad input, not wrong code.
fn guarded<T>(path: &Path, open: impl FnOnce() -> Result<T, Unopened>) -> Result<T, ConfigError> {
    let _alone = PANIC_HOOK.lock().unwrap_or_else(PoisonError::into_inner);
    let silent = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let opened = catch_unwind(AssertUnwindSafe(open));
    std::panic::set_hook(silent);
    let damaged = |_| Err(Unopened { reason: "it is damaged".to_string(), is_damaged: true });
    opened.unwrap_or_else(damaged).map_err(|Unopened { reason, is_damaged }| {
        let path = path.to_path_buf();
        if is_damaged { ConfigError::Damaged { path, reason } } else { ConfigError::Open { path, reason } }
    })
}

fn failed(error: impl Into<redb::Error>) -> ConfigError {
    ConfigError::Store(Box::new(error.into()))
}

fn parse<T: DeserializeOwned>(
    table: &'static str,
    key: impl fmt::Display,
    text: &str,
) -> Result<T, ConfigError> {
    serde_json::from_str(text).map_err(|source| ConfigError::Record { table, key: key.to_string(), source })
}

fn family_of(open: &Open<u32>, family: FamilyId) -> Result<Option<FamilyConfig>, ConfigError> {
    open.get(family.0)?.map(|text| parse("families", family.0, &text)).transpose()
}

impl ConfigStore for RedbStore {
    fn load(&self) -> Result<Config, ConfigError> {
        let mut node: NodeRecord = self.read_all(NODE, "node")?.pop().unwrap_or_default();
        let families: Vec<FamilyConfig> = self.read_all(FAMILIES, "families")?;
        // A number that was given out is not given out again, whatever the node's own record says.
        let newest = families.iter().map(|record| record.family).max().unwrap_or(0);
        node.next_family = node.next_family.max(newest.saturating_add(1));
        Ok(Config {
            node,
            drives: self.read_all(DRIVES, "drives")?,
            groups: self.read_all(GROUPS, "groups")?,
            families,
            snapshots: self.read_all(SNAPSHOTS, "snapshots")?,
            schedules: self.read_all(SCHEDULES, "schedules")?,
            consistency: self.read_all(CONSISTENCY, "consistency")?,
            containers: self.read_all(CONTAINERS, "containers")?,
        })
    }

    fn put_node(&mut self, node: &NodeRecord) -> Result<(), ConfigError> {
        self.put(NODE, &[(0, node)])
    }

    fn put_drive(&mut self, drive: &DriveRecord) -> Result<(), ConfigError> {
        self.put(DRIVES, &[(drive.drive, drive)])
    }

    fn remove_drive(&mut self, drive: DriveId) -> Result<(), ConfigError> {
        self.change(DRIVES, |open| open.remove(drive.0))
    }

    fn put_groups(&mut self, groups: &[GroupRecord]) -> Result<(), ConfigError> {
        let records: Vec<_> = groups.iter().map(|group| (group.group, group)).collect();
        self.put(GROUPS, &records)
    }

    fn put_families(&mut self, families: &[FamilyConfig]) -> Result<(), ConfigError> {
        let entries: Vec<(u32, &FamilyConfig)> =
            families.iter().map(|family| (family.family, family)).collect();
        self.put(FAMILIES, &entries)
    }

    fn put_family(&mut self, family: &FamilyConfig) -> Result<(), ConfigError> {
        self.put(FAMILIES, &[(family.family, family)])
    }

    fn remove_family(&mut self, family: FamilyId) -> Result<(), ConfigError> {
        let transaction = self.begin_write()?;
        let mut undo = Vec::new();
        Open::new(&transaction, FAMILIES, &mut undo)?.remove(family.0)?;
        Open::new(&transaction, SCHEDULES, &mut undo)?.remove(family.0)?;
        {
            let mut snapshots = Open::new(&transaction, SNAPSHOTS, &mut undo)?;
            let mut gone = Vec::new();
            for (key, text) in snapshots.all()? {
                let record: SnapshotRecord = parse("snapshots", key, &text)?;
                gone.extend((record.family() == family).then_some(record.snapshot));
            }
            gone.into_iter().try_for_each(|snapshot| snapshots.remove(snapshot))?;
        }
        self.commit(transaction, undo)
    }

    fn put_snapshots(&mut self, snapshots: &[SnapshotRecord]) -> Result<(), ConfigError> {
        self.change(SNAPSHOTS, |open| {
            snapshots.iter().try_for_each(|record| open.put(record.snapshot, record))
        })
    }

    fn remove_snapshot(&mut self, snapshot: SnapshotId) -> Result<(), ConfigError> {
        self.change(SNAPSHOTS, |open| open.remove(snapshot.0))
    }

    fn put_schedule(&mut self, schedule: &ScheduleRecord) -> Result<(), ConfigError> {
        self.put(SCHEDULES, &[(schedule.family, schedule)])
    }

    fn remove_schedule(&mut self, family: FamilyId) -> Result<(), ConfigError> {
        self.change(SCHEDULES, |open| open.remove(family.0))
    }

    fn put_consistency(&mut self, group: &ConsistencyRecord) -> Result<(), ConfigError> {
        self.change(CONSISTENCY, |open| open.put(group.name.as_str(), group))
    }

    fn remove_consistency(&mut self, group: &str) -> Result<(), ConfigError> {
        self.change(CONSISTENCY, |open| open.remove(group))
    }

    fn put_container(&mut self, container: &ContainerRecord) -> Result<(), ConfigError> {
        self.change(CONTAINERS, |open| open.put(container.name.as_str(), container))
    }

    fn remove_container(&mut self, container: &str) -> Result<(), ConfigError> {
        self.change(CONTAINERS, |open| open.remove(container))
    }

    fn take_epoch(&mut self, family: FamilyId) -> Result<Option<FamilyConfig>, ConfigError> {
        self.change(FAMILIES, |open| {
            let Some(mut record) = family_of(open, family)? else { return Ok(None) };
            record.epoch = record.next_epoch();
            open.put(family.0, &record)?;
            Ok(Some(record))
        })
    }

    fn change_segments(
        &mut self,
        family: FamilyId,
        epoch: Epoch,
        version: u64,
        segments: &[Segment],
    ) -> Result<bool, ConfigError> {
        self.change(FAMILIES, |open| {
            let Some(mut record) = family_of(open, family)? else { return Ok(false) };
            let segments: Vec<SegmentRecord> = segments.iter().map(SegmentRecord::of).collect();
            // Asked again, because it was not known what had come of it.
            if record.epoch == epoch.0 && record.version == version && record.segments == segments {
                return Ok(true);
            }
            if record.epoch != epoch.0 || record.version + 1 != version {
                return Ok(false);
            }
            record.version = version;
            record.segments = segments;
            open.put(family.0, &record)?;
            Ok(true)
        })
    }
}

#[cfg(test)]
mod tests;
