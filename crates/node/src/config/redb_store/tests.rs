//! Stories of the store of a single node.

use super::*;
use crate::config::{CeilingRecord, CompressionRecord, FamilyState, Policy, SnapshotOrigin, SnapshotState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
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
    let segments = [Segment::new(Seq(1), Epoch(1), vec![DriveId(0), DriveId(1)])];
    let four = FamilyId(4);
    assert!(store.change_segments(four, Epoch(1), 1, &segments).expect("it works"));
    assert!(
        store.change_segments(four, Epoch(1), 1, &segments).expect("it works"),
        "who did not hear of it asks again"
    );
    let others = [Segment::new(Seq(1), Epoch(1), vec![DriveId(2)])];
    assert!(!store.change_segments(four, Epoch(1), 1, &others).expect("it works"), "the version is used up");
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
    SnapshotRecord::new(snapshot, family, name, 1 << 30, 7, SnapshotOrigin::default())
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

/// A file of which one flush fails, though what was written has reached it.
#[derive(Debug)]
struct Failing {
    file: redb::backends::FileBackend,
    /// Flushes until one fails.
    left: Arc<AtomicU32>,
}

impl StorageBackend for Failing {
    fn len(&self) -> std::io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, len: usize) -> std::io::Result<Vec<u8>> {
        self.file.read(offset, len)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self, eventual: bool) -> std::io::Result<()> {
        self.file.sync_data(eventual)?;
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(1) => Err(std::io::ErrorKind::Other.into()),
            _ => Ok(()),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.file.write(offset, data)
    }
}

/// A store with one vDisk, and a snapshot of it, that fails at the given flush from now on.
fn failing_at(dir: &Path, flush: u32) -> RedbStore {
    let mut store = RedbStore::open(dir, true).expect("a new store opens");
    store.put_family(&family()).expect("a record can be put");
    store.put_snapshots(&[snapshot(4, "a", 1)]).expect("a record can be put");
    drop(store);
    let path = dir.join(CONFIG_FILE);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("it is there");
    let left = Arc::new(AtomicU32::new(0));
    let file = redb::backends::FileBackend::new(file).expect("nobody has it open");
    let backend = Failing { file, left: Arc::clone(&left) };
    let database = Database::builder().create_with_backend(backend).expect("it opens");
    left.store(flush, Ordering::Relaxed);
    RedbStore { database: Some(database), file: Some(path), undo: Vec::new() }
}

#[test]
fn what_was_answered_with_an_error_is_not_there_whichever_flush_failed() {
    let dropping = FamilyConfig { state: FamilyState::Dropping, ..family() };
    let other = FamilyConfig { family: 5, ..family() };
    type Change<'a> = &'a dyn Fn(&mut RedbStore) -> Result<(), ConfigError>;
    let changes: [Change; 4] = [
        &|store| store.put_family(&dropping),
        &|store| store.put_family(&other),
        &|store| store.remove_family(FamilyId(4)),
        &|store| store.remove_snapshot(SnapshotId(1)),
    ];
    let mut failures = 0;
    for flush in 1..6 {
        for (at, change) in changes.iter().enumerate() {
            let dir = directory(&format!("flush-{flush}-{at}"));
            let mut store = failing_at(&dir, flush);
            let changed = change(&mut store);
            let told = store.load().expect("it was opened again");
            drop(store);
            let config = RedbStore::open(&dir, false).expect("it opens again").load().expect("it loads");
            assert_eq!(told.families, config.families);
            if changed.is_err() {
                failures += 1;
                assert_eq!(config.families, [family()], "flush {flush}, change {at}");
                assert_eq!(config.snapshots, [snapshot(4, "a", 1)], "flush {flush}, change {at}");
            }
            std::fs::remove_dir_all(dir).expect("it can be removed");
        }
    }
    assert!(failures >= 8, "two flushes make a change: {failures}");
}

#[test]
fn a_bit_that_has_changed_is_seen_before_anything_is_done_with_it() {
    let dir = directory("flipped");
    let mut store = RedbStore::open(&dir, true).expect("a new store opens");
    store.put_node(&NodeRecord { next_family: 5, ..NodeRecord::default() }).expect("a record can be put");
    store.put_family(&family()).expect("a record can be put");
    drop(store);
    let path = dir.join(CONFIG_FILE);
    let sound = std::fs::read(&path).expect("it is there");
    for (text, bit) in [("\"next_family\":5", 4), ("\"size\":1073741824", 1)] {
        let mut bytes = sound.clone();
        let places = (0..bytes.len() - text.len()).filter(|&at| bytes[at..].starts_with(text.as_bytes()));
        let places: Vec<usize> = places.map(|at| at + text.len() - 1).collect();
        assert!(!places.is_empty(), "{text}");
        // What was replaced may lie there still.
        places.into_iter().for_each(|at| bytes[at] ^= bit);
        std::fs::write(&path, bytes).expect("it can be written");
        for opened in [RedbStore::open(&dir, true).map(drop), RedbStore::read_copy(&dir).map(drop)] {
            let Err(error) = opened else { panic!("{text} was changed") };
            assert!(matches!(error, ConfigError::Damaged { .. }), "{error}");
        }
    }
    std::fs::write(&path, sound).expect("it can be written");
    let _open = RedbStore::open(&dir, true).expect("a good copy");
    let Err(error) = RedbStore::open(&dir, true) else { panic!("somebody has it open") };
    assert!(matches!(error, ConfigError::Open { .. }), "nothing is wrong with the file: {error}");
    std::fs::remove_dir_all(dir).expect("it can be removed");
}

#[test]
fn whatever_is_damaged_in_a_file_is_told_and_ends_nothing() {
    let dir = directory("damaged");
    let mut store = RedbStore::open(&dir, true).expect("a new store opens");
    store.put_family(&family()).expect("a record can be put");
    drop(store);
    let path = dir.join(CONFIG_FILE);
    let sound = std::fs::read(&path).expect("it is there");
    let config = RedbStore::read_copy(&dir).expect("it is sound");
    let mut seen = 0;
    // Pages that nobody has used yet are zeros.
    let used =
        (0..sound.len()).step_by(1024).filter(|&at| sound[at..].iter().take(64).any(|&byte| byte != 0));
    for at in used {
        let mut bytes = sound.clone();
        bytes[at..].iter_mut().take(64).for_each(|byte| *byte ^= 0x55);
        std::fs::write(&path, bytes).expect("it can be written");
        match RedbStore::read_copy(&dir) {
            // What lies there is not in use, or its other copy is.
            Ok(read) => assert_eq!(read.families, config.families, "at {at}"),
            Err(error) => {
                assert!(matches!(error, ConfigError::Damaged { .. }), "at {at}: {error}");
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "some of it matters");
    assert_eq!(std::fs::read(&path).expect("it is there").len(), sound.len(), "the file stays as it is");
    std::fs::remove_dir_all(dir).expect("it can be removed");
}

#[test]
fn a_number_that_was_given_out_is_not_given_out_again() {
    let dir = directory("numbers");
    let mut store = RedbStore::open(&dir, true).expect("a new store opens");
    store.put_node(&NodeRecord { next_family: 2, ..NodeRecord::default() }).expect("a record can be put");
    store.put_family(&family()).expect("a record can be put");
    assert_eq!(store.load().expect("it loads").node.next_family, 5);
    std::fs::remove_dir_all(dir).expect("it can be removed");
}

#[test]
fn what_was_killed_passes_for_sound() {
    let dir = directory("killed");
    let copies = directory("killed-copies");
    let mut store = RedbStore::open(&dir, true).expect("a new store opens");
    for number in 0..40u32 {
        let changed = FamilyConfig { family: number % 7, name: "n".repeat(number as usize * 50), ..family() };
        store.put_family(&changed).expect("a record can be put");
        std::fs::copy(dir.join(CONFIG_FILE), copies.join(CONFIG_FILE)).expect("it can be copied");
        let config = RedbStore::open(&copies, true).expect("it is sound").load().expect("it loads");
        assert!(config.families.contains(&changed), "{number}");
    }
    for dir in [dir, copies] {
        std::fs::remove_dir_all(dir).expect("it can be removed");
    }
}
