//! The config store of a single node: one redb file in its directory.
//! Promises: as [`ConfigStore`]; redb commits are durable when they return, and a cut in between leaves the
//! old state.

use super::{
    Config, ConfigError, ConfigStore, ConsistencyRecord, ContainerRecord, DriveRecord, FamilyConfig,
    GroupRecord, NodeRecord, ScheduleRecord, SegmentRecord, SnapshotRecord, durable_file,
};
use redb::backends::InMemoryBackend;
use redb::{
    Database, ReadableTable, StorageBackend, StorageError, TableDefinition, TableError, TransactionError,
    WriteTransaction,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::fs::File;
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
}

impl RedbStore {
    /// Opens the store in `dir`; makes an empty one if there is none and `create` says so.
    pub fn open(dir: &Path, create: bool) -> Result<Self, ConfigError> {
        if create && !dir.join(CONFIG_FILE).exists() {
            Self::make(dir).map_err(|reason| ConfigError::Make { path: dir.join(CONFIG_FILE), reason })?;
        }
        let mut store = Self::open_with(dir, create, |path| {
            let database = if create { Database::create(path) } else { Database::open(path) };
            database.map_err(|error| error.to_string())
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

    /// Opens a copy of the store in memory: one that was not closed is repaired there, and the file stays as it is.
    pub fn open_copy(dir: &Path) -> Result<Self, ConfigError> {
        Self::open_with(dir, false, |path| {
            let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
            let memory = InMemoryBackend::new();
            let copied = memory.set_len(bytes.len() as u64).and_then(|()| memory.write(0, &bytes));
            copied.map_err(|error| error.to_string())?;
            Database::builder().create_with_backend(memory).map_err(|error| error.to_string())
        })
    }

    fn open_with(
        dir: &Path,
        create: bool,
        open: impl FnOnce(&Path) -> Result<Database, String>,
    ) -> Result<Self, ConfigError> {
        let path = dir.join(CONFIG_FILE);
        guarded(&path, || {
            let mut store = Self { database: Some(open(&path)?), file: None };
            if create {
                store.make_tables().map_err(|error| error.to_string())?;
            }
            store.load().map_err(|error| error.to_string())?;
            Ok(store)
        })
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

    fn begin_write(&mut self) -> Result<WriteTransaction, ConfigError> {
        let mut transaction = self.begin()?;
        // What is written is durable before anything says that it counts: a change that the drive or a full file system refuses at the
        // flush would otherwise be there at the next opening, though it was answered as one that was not made. (So is one whose very last
        // flush fails, of the header alone.)
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
        let opened = guarded(file, || Database::open(file).map_err(|error| error.to_string()))?;
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
    fn change<K: redb::Key + 'static, T>(
        &mut self,
        table: Definition<K>,
        change: impl FnOnce(&mut redb::Table<K, &'static str>) -> Result<T, ConfigError>,
    ) -> Result<T, ConfigError> {
        let transaction = self.begin_write()?;
        let result = {
            let mut open = transaction.open_table(table).map_err(failed)?;
            change(&mut open)?
        };
        transaction.commit().map_err(failed)?;
        Ok(result)
    }

    fn put<T: Serialize>(&mut self, table: Table, records: &[(u32, &T)]) -> Result<(), ConfigError> {
        self.change(table, |open| {
            for (key, record) in records {
                insert(open, *key, record)?;
            }
            Ok(())
        })
    }
}

/// A damaged file can make redb panic; that is bad input, not wrong code.
fn guarded<T>(path: &Path, open: impl FnOnce() -> Result<T, String>) -> Result<T, ConfigError> {
    let _alone = PANIC_HOOK.lock().unwrap_or_else(PoisonError::into_inner);
    let silent = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let opened = catch_unwind(AssertUnwindSafe(open));
    std::panic::set_hook(silent);
    opened
        .unwrap_or_else(|_| Err("it is damaged".to_string()))
        .map_err(|reason| ConfigError::Open { path: path.to_path_buf(), reason })
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

fn insert<'a, K, T>(
    open: &mut redb::Table<K, &'static str>,
    key: impl std::borrow::Borrow<K::SelfType<'a>>,
    record: &T,
) -> Result<(), ConfigError>
where
    K: redb::Key + 'static,
    T: Serialize,
{
    let text = serde_json::to_string(record).expect("records are plain data with text keys");
    open.insert(key, text.as_str()).map_err(failed)?;
    Ok(())
}

fn family_of(
    open: &redb::Table<u32, &'static str>,
    family: FamilyId,
) -> Result<Option<FamilyConfig>, ConfigError> {
    match open.get(family.0).map_err(failed)? {
        Some(text) => Ok(Some(parse("families", family.0, text.value())?)),
        None => Ok(None),
    }
}

impl ConfigStore for RedbStore {
    fn load(&self) -> Result<Config, ConfigError> {
        Ok(Config {
            node: self.read_all(NODE, "node")?.pop().unwrap_or_default(),
            drives: self.read_all(DRIVES, "drives")?,
            groups: self.read_all(GROUPS, "groups")?,
            families: self.read_all(FAMILIES, "families")?,
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
        self.change(DRIVES, |open| {
            open.remove(drive.0).map_err(failed)?;
            Ok(())
        })
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
        {
            let mut families = transaction.open_table(FAMILIES).map_err(failed)?;
            families.remove(family.0).map_err(failed)?;
            let mut schedules = transaction.open_table(SCHEDULES).map_err(failed)?;
            schedules.remove(family.0).map_err(failed)?;
            let mut snapshots = transaction.open_table(SNAPSHOTS).map_err(failed)?;
            let mut gone = Vec::new();
            for entry in snapshots.iter().map_err(failed)? {
                let (key, value) = entry.map_err(failed)?;
                let record: SnapshotRecord = parse("snapshots", key.value(), value.value())?;
                gone.extend((record.family() == family).then_some(record.snapshot));
            }
            for snapshot in gone {
                snapshots.remove(snapshot).map_err(failed)?;
            }
        }
        transaction.commit().map_err(failed)
    }

    fn put_snapshots(&mut self, snapshots: &[SnapshotRecord]) -> Result<(), ConfigError> {
        self.change(SNAPSHOTS, |open| {
            for record in snapshots {
                insert(open, record.snapshot, record)?;
            }
            Ok(())
        })
    }

    fn remove_snapshot(&mut self, snapshot: SnapshotId) -> Result<(), ConfigError> {
        self.change(SNAPSHOTS, |open| {
            open.remove(snapshot.0).map_err(failed)?;
            Ok(())
        })
    }

    fn put_schedule(&mut self, schedule: &ScheduleRecord) -> Result<(), ConfigError> {
        self.put(SCHEDULES, &[(schedule.family, schedule)])
    }

    fn remove_schedule(&mut self, family: FamilyId) -> Result<(), ConfigError> {
        self.change(SCHEDULES, |open| {
            open.remove(family.0).map_err(failed)?;
            Ok(())
        })
    }

    fn put_consistency(&mut self, group: &ConsistencyRecord) -> Result<(), ConfigError> {
        self.change(CONSISTENCY, |open| insert(open, group.name.as_str(), group))
    }

    fn remove_consistency(&mut self, group: &str) -> Result<(), ConfigError> {
        self.change(CONSISTENCY, |open| {
            open.remove(group).map_err(failed)?;
            Ok(())
        })
    }

    fn put_container(&mut self, container: &ContainerRecord) -> Result<(), ConfigError> {
        self.change(CONTAINERS, |open| insert(open, container.name.as_str(), container))
    }

    fn remove_container(&mut self, container: &str) -> Result<(), ConfigError> {
        self.change(CONTAINERS, |open| {
            open.remove(container).map_err(failed)?;
            Ok(())
        })
    }

    fn take_epoch(&mut self, family: FamilyId) -> Result<Option<FamilyConfig>, ConfigError> {
        self.change(FAMILIES, |open| {
            let Some(mut record) = family_of(open, family)? else { return Ok(None) };
            record.epoch = record.next_epoch();
            insert(open, family.0, &record)?;
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
            insert(open, family.0, &record)?;
            Ok(true)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        CeilingRecord, CompressionRecord, FamilyState, Policy, SnapshotOrigin, SnapshotState,
    };
    use weft_engine::Seq;

    #[test]
    fn what_was_cut_while_it_was_made_is_made_again() {
        let dir = directory("cut");
        std::fs::write(dir.join(format!("{CONFIG_FILE}.new")), [0; 100]).expect("writable");
        let store = RedbStore::open(&dir, true).expect("the beginning of another try is in nobody's way");
        drop(store);
        let names: Vec<_> =
            std::fs::read_dir(&dir).expect("readable").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names, [CONFIG_FILE], "and is not left");
        // Where it cannot be made, nothing is there that could not be opened the next time.
        let nowhere = dir.join("nowhere");
        let Err(error) = RedbStore::open(&nowhere, true) else { panic!("there is no such directory") };
        assert!(matches!(error, ConfigError::Make { .. }), "{error}");
        std::fs::remove_dir_all(&dir).expect("the test made it");
    }

    fn directory(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("weft-config-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("the temporary directory can be written");
        dir
    }

    fn family() -> FamilyConfig {
        FamilyConfig {
            family: 4,
            name: "four".to_string(),
            size: 1 << 30,
            factor: 2,
            inherits_factor: false,
            created: 0,
            epoch: 1,
            owner: None,
            life: 0,
            moving_to: None,
            segments: Vec::new(),
            version: 0,
            exports: Vec::new(),
            state: FamilyState::Live,
            origin: None,
            rollback: None,
            clones_made: 0,
            attached: Vec::new(),
            rolled_back: None,
            container: "default".to_string(),
            compression: None,
            dedup: None,
            ceiling: CeilingRecord::default(),
        }
    }

    #[test]
    fn segments_change_only_for_the_owner_that_knows_the_last_version() {
        let dir = directory("segments");
        let mut store = RedbStore::open(&dir, true).expect("a new store opens");
        store.put_family(&family()).expect("a record can be put");
        let segments = [Segment { first: Seq(1), epoch: Epoch(1), members: vec![DriveId(0), DriveId(1)] }];
        let four = FamilyId(4);
        assert!(store.change_segments(four, Epoch(1), 1, &segments).expect("it works"));
        assert!(
            store.change_segments(four, Epoch(1), 1, &segments).expect("it works"),
            "who did not hear of it asks again"
        );
        let others = [Segment { first: Seq(1), epoch: Epoch(1), members: vec![DriveId(2)] }];
        assert!(
            !store.change_segments(four, Epoch(1), 1, &others).expect("it works"),
            "the version is used up"
        );
        let raised = store.take_epoch(four).expect("it works").expect("the family exists");
        assert_eq!((raised.epoch, raised.version), (2, 1));
        assert!(
            !store.change_segments(four, Epoch(1), 2, &segments).expect("it works"),
            "an old owner is refused"
        );
        assert!(store.change_segments(four, Epoch(2), 2, &segments).expect("it works"));
        drop(store);
        let loaded = RedbStore::open(&dir, false).expect("it opens again").load().expect("it loads");
        assert_eq!(loaded.families[0].record(&Policy::default()).segments, segments);
        std::fs::remove_dir_all(dir).expect("it can be removed");
    }

    fn snapshot(family: u32, name: &str, snapshot: u64) -> SnapshotRecord {
        SnapshotRecord {
            snapshot,
            family,
            name: name.to_string(),
            state: SnapshotState::Creating,
            generation: None,
            size: 1 << 30,
            created: 7,
            origin: SnapshotOrigin::default(),
            trouble: String::new(),
            exports: Vec::new(),
            follows: None,
            clones: Vec::new(),
            attached: Vec::new(),
        }
    }

    #[test]
    fn snapshots_and_schedules_go_with_their_vdisk() {
        let dir = directory("snapshots");
        let mut store = RedbStore::open(&dir, true).expect("a new store opens");
        store.put_family(&family()).expect("a record can be put");
        let mut first = snapshot(4, "a", u64::MAX);
        let all = [first.clone(), snapshot(4, "b", 2), snapshot(5, "a", 3)];
        store.put_snapshots(&all).expect("records can be put");
        let schedule = ScheduleRecord { family: 4, every_seconds: 60, keep: 3, since: 1 };
        store.put_schedule(&schedule).expect("a record can be put");
        first.state = SnapshotState::Ready;
        first.generation = Some(9);
        store.put_snapshots(std::slice::from_ref(&first)).expect("it can be changed");
        store.remove_snapshot(SnapshotId(2)).expect("it can be removed");
        drop(store);
        let mut store = RedbStore::open(&dir, false).expect("it opens again");
        let config = store.load().expect("it loads");
        assert_eq!(config.snapshots, [all[2].clone(), first]);
        assert_eq!(config.schedules, [schedule]);
        let mut group = ConsistencyRecord { name: "g".to_string(), families: vec![4] };
        store.put_consistency(&group).expect("it can be put");
        group.families.push(5);
        store.put_consistency(&group).expect("it can be changed");
        assert_eq!(store.load().expect("it loads").consistency, [group]);
        store.remove_consistency("g").expect("it can be removed");
        assert!(store.load().expect("it loads").consistency.is_empty());
        store.remove_family(FamilyId(4)).expect("it can be removed");
        let config = store.load().expect("it loads");
        assert_eq!(config.snapshots, [all[2].clone()], "those of other vDisks stay");
        assert!(config.schedules.is_empty() && config.families.is_empty());
        std::fs::remove_dir_all(dir).expect("it can be removed");
    }

    #[test]
    fn containers_are_kept_by_name_and_say_what_holds_for_a_vdisk() {
        let dir = directory("containers");
        let mut store = RedbStore::open(&dir, true).expect("a new store opens");
        let off = CompressionRecord::default();
        let lz4 = off.with(Some("lz4"), None).expect("it is one");
        let mut fast = ContainerRecord { name: "fast".to_string(), compression: lz4, ..Default::default() };
        store.put_container(&ContainerRecord::default()).expect("it can be put");
        store.put_container(&fast).expect("it can be put");
        fast.factor = Some(2);
        fast.ceiling.iops = Some(500);
        fast.dedup = true;
        store.put_container(&fast).expect("it can be changed");
        let inside = FamilyConfig { container: "fast".to_string(), ..family() };
        store.put_family(&inside).expect("it can be put");
        drop(store);
        let mut store = RedbStore::open(&dir, false).expect("it opens again");
        let config = store.load().expect("it loads");
        assert_eq!(config.containers, [ContainerRecord::default(), fast.clone()]);
        assert_eq!(config.families, std::slice::from_ref(&inside));
        let policy = inside.policy(Some(&fast));
        assert_eq!((policy.compression, policy.ceiling), (lz4, fast.ceiling));
        let own = FamilyConfig { compression: Some(off), ..inside };
        assert_eq!(own.policy(Some(&fast)).compression, off, "its own word counts");
        assert!(own.policy(Some(&fast)).packing().share);
        let alone = FamilyConfig { dedup: Some(false), ..own };
        assert!(!alone.policy(Some(&fast)).packing().share);
        store.remove_container("fast").expect("it can be removed");
        assert_eq!(store.load().expect("it loads").containers, [ContainerRecord::default()]);
        std::fs::remove_dir_all(dir).expect("it can be removed");
    }

    #[test]
    fn a_store_of_an_older_version_has_no_snapshots() {
        let dir = directory("older");
        let database = Database::create(dir.join(CONFIG_FILE)).expect("it can be made");
        let transaction = database.begin_write().expect("it can be written");
        for table in [NODE, DRIVES, GROUPS, FAMILIES] {
            transaction.open_table(table).expect("a table can be made");
        }
        transaction.commit().expect("it can be written");
        drop(database);
        let config = RedbStore::open(&dir, false).expect("it opens").load().expect("it loads");
        assert!(config.snapshots.is_empty() && config.schedules.is_empty() && config.containers.is_empty());
        let mut store = RedbStore::open(&dir, true).expect("it opens");
        store.put_snapshots(&[snapshot(1, "a", 1)]).expect("now it can have some");
        std::fs::remove_dir_all(dir).expect("it can be removed");
    }

    #[test]
    fn garbage_is_refused_with_a_line() {
        let dir = directory("garbage");
        for text in [&b""[..], b"this is no database", &[0x55; 100_000]] {
            std::fs::write(dir.join(CONFIG_FILE), text).expect("it can be written");
            if let Err(error) = RedbStore::open(&dir, false) {
                assert!(error.to_string().contains("put a good copy"));
            } else {
                assert!(text.is_empty(), "only an empty file may pass for an empty store");
            }
        }
        std::fs::remove_dir_all(dir).expect("it can be removed");
    }

    /// A small file system, unmounted with the test.
    struct Small(PathBuf);

    impl Small {
        /// None where nobody may mount one.
        fn new(name: &str) -> Option<Self> {
            let dir = directory(name);
            let options = ["-t", "tmpfs", "-o", "size=8m", "none"];
            let mounted = std::process::Command::new("mount").args(options).arg(&dir).status();
            mounted.is_ok_and(|status| status.success()).then_some(Self(dir))
        }
    }

    impl Drop for Small {
        fn drop(&mut self) {
            let unmounted = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
            assert!(unmounted.is_ok_and(|status| status.success()), "what was mounted can be unmounted");
            let _ = std::fs::remove_dir(&self.0);
        }
    }

    #[test]
    fn it_takes_changes_again_once_there_is_room() {
        let Some(small) = Small::new("full") else {
            println!("SKIPPED: no file system can be mounted here");
            return;
        };
        let mut store = RedbStore::open(&small.0, true).expect("an empty store can be made");
        let filler = small.0.join("filler");
        let filled = std::fs::write(&filler, vec![1; 16 << 20]);
        assert!(filled.is_err(), "8 MiB do not hold 16");
        let large = |number: u32, seed: u8| FamilyConfig {
            family: number,
            name: format!("{number}-{seed}").repeat(40_000),
            ..family()
        };
        let mut stored = 0;
        let trouble = loop {
            match store.put_family(&large(stored, 0)) {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
            assert!(stored < 1_000, "a full file system takes no more");
        };
        println!("{stored} stored, then: {trouble}");
        assert!(store.put_family(&large(stored, 0)).is_err(), "it is still full");
        std::fs::remove_file(&filler).expect("room can be made");
        store.put_family(&large(stored, 1)).expect("there is room again");
        assert_eq!(store.load().expect("it is sound").families.len() as u32, stored + 1);
        drop(store);
        let again = RedbStore::open(&small.0, false).expect("it can be opened");
        assert_eq!(again.load().expect("it is sound").families.len() as u32, stored + 1, "nothing was lost");
    }
}
