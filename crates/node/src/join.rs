//! Making a cluster, and taking a directory into one: what is done against etcd before a node runs.
//! Promises: a directory is one node of one cluster. Cut anywhere, the same command finishes it: it finds the record that
//! it had put, by a stamp. If it is never repeated, at most a node is left that never started, whose name says so, and
//! which `weft node remove` clears.
//! Leaves to others: moving a single node's records (`config::import`), running the node (`control`).

mod mark;
mod name;

pub use name::default_name;

use crate::calendar;
use crate::config::cluster::{ClusterConfig, ClusterError, ClusterNodeRecord, ClusterStore, NodeState};
use crate::config::etcd::{Etcd, EtcdError};
use crate::config::seen::Seen;
use crate::config::{
    CONFIG_FILE, ConfigError, ConfigStore, DirectoryLock, ImportError, LockError, Membership,
    MembershipError, MembershipStage, RedbStore, import,
};
use crate::words::say;
use mark::{Mark, Way};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// How a new node shall be.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// For people, and unique among the nodes there are; None: see [`default_name`].
    pub name: Option<String>,
    /// Where its API and its shards shall be reached; other nodes must reach both. Port 0: any that is free at
    /// the start.
    pub api: SocketAddr,
    pub transport: SocketAddr,
    pub shards: u32,
    /// Empty: not told.
    pub zone: String,
    pub rack: String,
    /// It holds data and serves no vDisks.
    pub storage_only: bool,
}

#[derive(Debug, Clone)]
pub struct InitSettings {
    /// Of etcd.
    pub endpoints: Vec<String>,
    /// Of the cluster.
    pub name: String,
    /// Becomes the first node; None: a cluster without nodes.
    pub dir: Option<PathBuf>,
    pub node: NodeOptions,
}

#[derive(Debug, Clone)]
pub struct JoinSettings {
    pub endpoints: Vec<String>,
    /// Of the cluster.
    pub name: String,
    pub dir: PathBuf,
    pub node: NodeOptions,
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    pub cluster: String,
    pub id: u64,
    /// None: a cluster without nodes was made.
    pub node: Option<MadeNode>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeNode {
    pub record: ClusterNodeRecord,
    pub dir: PathBuf,
    /// The drives and vDisks that it brought with it; None: it is a new node.
    pub brought: Option<Brought>,
    /// Of the record, what may keep others from reaching the node; empty: nothing.
    pub note: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Brought {
    pub drives: usize,
    pub vdisks: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Locked(#[from] LockError),
    #[error(transparent)]
    Membership(#[from] MembershipError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{path} cannot be used: {source}; check the directory and its permissions")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is damaged; remove the file if the directory has never been a node")]
    DamagedMark { path: PathBuf },
    #[error(
        "there is a cluster {name} in this etcd already; join it with `weft node join --cluster {name}`, or choose \
         another name"
    )]
    Exists { name: String },
    #[error(
        "{dir} is node {node} of the cluster {cluster} already; start it with `weft up`, or use a new directory"
    )]
    Member { dir: PathBuf, node: u32, cluster: String },
    #[error(
        "{dir} is being moved into the cluster {cluster}; finish that with `weft cluster init --name {cluster}`"
    )]
    Importing { dir: PathBuf, cluster: String },
    #[error("{dir} has begun to join the cluster {cluster}; finish that, or use a new directory")]
    JoiningElsewhere { dir: PathBuf, cluster: String },
    #[error(
        "{dir} is on its way into the cluster {cluster} by another command, which was cut; finish that (`{command}`, with the options \
         that it had), or use a new directory"
    )]
    Begun { dir: PathBuf, cluster: String, command: String },
    #[error(
        "{dir} holds a node with data of its own, and only the first node of a cluster can bring its data (`weft \
         cluster init --dir`); use a new directory"
    )]
    HoldsData { dir: PathBuf },
    #[error("{dir} holds drives ({file}) without the config they belong to; use a new directory")]
    HoldsDrives { dir: PathBuf, file: String },
    #[error(
        "{name:?} is no name for a node; use 1 to 63 letters, digits, dots, dashes and underscores, not all digits"
    )]
    BadName { name: String },
    #[error("node {node} is called {name} already; choose another name (--name)")]
    NameTaken { name: String, node: u32 },
    #[error(
        "node {node} ({name}) has the address {address} already; give this node another that the others can reach ({option})"
    )]
    AddressTaken { address: String, node: u32, name: String, option: &'static str },
    #[error("{address} is no address that other nodes can be told; give one of this machine's ({option})")]
    Unspecified { address: SocketAddr, option: &'static str },
    #[error(
        "a node that brings vDisks cannot be for storage only: nobody would serve them; leave --storage-only away"
    )]
    StorageOnly,
    #[error(
        "config.redb in {dir} is older than the node has seen it ({starts} starts are missing): somebody has put it back; put the newest \
         back, or, if there is none any more, see `weft up --help` for --accept-records"
    )]
    OlderRecords { dir: PathBuf, starts: u64 },
}

impl JoinError {
    /// Whether what was asked for is wrong, so that the very same will never work. What is not as it should be where it is done (etcd
    /// that is away or full, a drive that fails) may pass.
    pub fn is_of_input(&self) -> bool {
        match self {
            Self::Cluster(error) | Self::Import(ImportError::Cluster(error)) => is_cluster_of_input(error),
            Self::Import(error) => match error {
                ImportError::Member { .. } | ImportError::Elsewhere { .. } | ImportError::NeverStarted => {
                    true
                }
                ImportError::Cluster(_) | ImportError::Config(_) | ImportError::Membership(_) => false,
            },
            // The directory is a file, or its name is none.
            Self::Io { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::AlreadyExists
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::InvalidFilename
            ),
            Self::Locked(_) | Self::Membership(_) | Self::Config(_) | Self::DamagedMark { .. } => false,
            Self::Exists { .. }
            | Self::Member { .. }
            | Self::Importing { .. }
            | Self::JoiningElsewhere { .. }
            | Self::Begun { .. }
            | Self::HoldsData { .. }
            | Self::HoldsDrives { .. }
            | Self::BadName { .. }
            | Self::NameTaken { .. }
            | Self::AddressTaken { .. }
            | Self::Unspecified { .. }
            | Self::OlderRecords { .. }
            | Self::StorageOnly => true,
        }
    }
}

fn is_cluster_of_input(error: &ClusterError) -> bool {
    match error {
        ClusterError::Etcd(EtcdError::BadEndpoint { .. })
        | ClusterError::BadName { .. }
        | ClusterError::NoCluster { .. }
        | ClusterError::NotEmpty { .. }
        | ClusterError::OtherCluster { .. }
        | ClusterError::NameTaken { .. }
        | ClusterError::ContainerExists { .. }
        | ClusterError::NoContainer { .. }
        | ClusterError::SnapshotExists { .. }
        | ClusterError::GroupExists { .. }
        | ClusterError::NodeRemoved { .. }
        | ClusterError::OldDirectory { .. } => true,
        ClusterError::Etcd(_)
        | ClusterError::NewerFormat { .. }
        | ClusterError::Importing { .. }
        | ClusterError::Record { .. }
        | ClusterError::NotThere { .. }
        | ClusterError::Changed { .. }
        | ClusterError::Contended { .. }
        | ClusterError::ContainerChanged { .. }
        | ClusterError::SnapshotUnderWay { .. }
        | ClusterError::GoingBack { .. }
        | ClusterError::NothingToGoBackTo { .. }
        | ClusterError::AliveElsewhere { .. }
        | ClusterError::NotController
        | ClusterError::NodeLives { .. }
        | ClusterError::OlderRecords { .. }
        | ClusterError::RecordsBefore { .. }
        | ClusterError::RecordsAccepted { .. } => false,
    }
}

/// Makes a cluster. A directory that has been a single node brings its data and becomes node 0, an empty one becomes
/// a new node.
pub fn init(settings: &InitSettings) -> Result<Made, JoinError> {
    let store = open_store(&settings.endpoints, &settings.name, true)?;
    let Some(dir) = &settings.dir else {
        let made = store.init(new_id()).map_err(explain_exists)?;
        return Ok(Made { cluster: settings.name.clone(), id: made.record.id, node: None });
    };
    settings.node.check()?;
    // First of all, so that no directory is made beside an etcd that does not answer.
    id_there(&store)?;
    let (dir, lock) = open_directory(dir)?;
    if dir.join(CONFIG_FILE).exists() {
        return bring(&store, &dir, &lock, &settings.node);
    }
    if let Some(made) = finish_member(&store, &dir, Way::Init)? {
        return Ok(made);
    }
    refuse_drives(&dir)?;
    // The mark has the cluster's id before the cluster has it: a repeat knows its own cluster from one that was there.
    let mark = match mark_of(&store, &dir, Way::Init)? {
        // One that does not say what it is of may have the id of a cluster that there is elsewhere, and no two must have one id.
        Some(mark) if mark.way.is_some() || has_id(&store, mark.id)? => mark,
        _ => Mark::make(&dir, store.name(), new_id(), Way::Init)?,
    };
    match store.init(mark.id) {
        Ok(_) => {}
        Err(ClusterError::NotEmpty { .. }) if has_id(&store, mark.id)? => {}
        Err(error) => {
            if let ClusterError::NotEmpty { .. } = error {
                Mark::remove(&dir)?;
            }
            return Err(explain_exists(error));
        }
    }
    enter(&store, &dir, &mark, &settings.node)
}

/// Makes an empty directory a node of a cluster.
pub fn join(settings: &JoinSettings) -> Result<Made, JoinError> {
    settings.node.check()?;
    let store = open_store(&settings.endpoints, &settings.name, false)?;
    // First of all, so that no directory is made for a cluster that is not there.
    let id = store.cluster_record()?.record.id;
    let (dir, _lock) = open_directory(&settings.dir)?;
    if let Some(made) = finish_member(&store, &dir, Way::Join)? {
        return Ok(made);
    }
    if dir.join(CONFIG_FILE).exists() {
        return Err(JoinError::HoldsData { dir });
    }
    refuse_drives(&dir)?;
    let mark = match mark_of(&store, &dir, Way::Join)? {
        Some(mark) if mark.id == id => mark,
        // None, or of a cluster that was made anew since: nothing of the mark is in this one.
        _ => Mark::make(&dir, store.name(), id, Way::Join)?,
    };
    enter(&store, &dir, &mark, &settings.node)
}

/// Takes the records that are in etcd for the newest that there are, although nodes have seen newer ones. Gives how many vDisks they have.
pub fn accept_records(endpoints: &[String], name: &str) -> Result<usize, JoinError> {
    Ok(open_store(endpoints, name, true)?.accept_records(new_id(), calendar::now())?)
}

/// How many vDisks there are in records that can be accepted.
pub fn acceptable_records(endpoints: &[String], name: &str) -> Result<usize, JoinError> {
    Ok(open_store(endpoints, name, true)?.acceptable_records()?)
}

/// Refuses a directory that has begun to become a node of a cluster and is none yet: as a node that stands alone it could never become
/// one, and its number in the cluster would be nobody's.
pub fn refuse_unfinished(dir: &Path) -> Result<(), JoinError> {
    match Mark::read(dir)? {
        // An older version has made it a node that stands alone, so there is nothing to finish any more.
        Some(_) if dir.join(CONFIG_FILE).exists() => Ok(()),
        Some(mark) => Err(JoinError::Begun {
            dir: dir.to_path_buf(),
            command: mark.command(dir),
            cluster: mark.cluster,
        }),
        None => Ok(()),
    }
}

/// `tells`: what is no error of etcd's members is said. An address that is not etcd's is one.
fn open_store(endpoints: &[String], name: &str, tells: bool) -> Result<ClusterStore, JoinError> {
    let etcd = Etcd::new(endpoints).map_err(ClusterError::from)?;
    let store = ClusterStore::new(etcd, name)?;
    let notes = store.etcd().look_at_all().map_err(ClusterError::from)?;
    if tells {
        notes.iter().for_each(|note| say!("weft: {note}"));
    }
    Ok(store)
}

fn open_directory(dir: &Path) -> Result<(PathBuf, DirectoryLock), JoinError> {
    let failed = |source| JoinError::Io { path: dir.to_path_buf(), source };
    std::fs::create_dir_all(dir).map_err(failed)?;
    let dir = dir.canonicalize().map_err(failed)?;
    let lock = DirectoryLock::take(&dir)?;
    Ok((dir, lock))
}

/// Whether the cluster in this etcd, if there is one, is that of this id.
fn has_id(store: &ClusterStore, id: u64) -> Result<bool, JoinError> {
    Ok(id_there(store)? == Some(id))
}

/// The id of the cluster in this etcd. None: etcd answers, and there is none.
fn id_there(store: &ClusterStore) -> Result<Option<u64>, JoinError> {
    match store.cluster_record() {
        Ok(found) => Ok(Some(found.record.id)),
        Err(ClusterError::NoCluster { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Never 0, which says that a node was never started.
fn new_id() -> u64 {
    rand::random::<u64>() | 1
}

fn explain_exists(error: ClusterError) -> JoinError {
    match error {
        ClusterError::NotEmpty { name } => JoinError::Exists { name },
        error => error.into(),
    }
}

/// What a directory that is a member already comes to: finished, if only the end was missing; refused otherwise.
/// None: it is no member.
fn finish_member(store: &ClusterStore, dir: &Path, way: Way) -> Result<Option<Made>, JoinError> {
    let Some(membership) = Membership::read(dir)? else { return Ok(None) };
    let (cluster, node) = (membership.cluster.clone(), membership.node);
    if membership.stage == MembershipStage::Importing {
        return Err(JoinError::Importing { dir: dir.to_path_buf(), cluster });
    }
    match Mark::read(dir)? {
        Some(mark) if mark.cluster == store.name() && mark.id == membership.id => {
            expect_way(&mark, dir, way)?;
            store.check(mark.id)?;
            Ok(Some(finish(store, dir, &mark, node)?))
        }
        _ => Err(JoinError::Member { dir: dir.to_path_buf(), node, cluster }),
    }
}

/// Drives whose config is gone: a new node would take their names.
fn refuse_drives(dir: &Path) -> Result<(), JoinError> {
    let failed = |source| JoinError::Io { path: dir.to_path_buf(), source };
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let file = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if file.starts_with("drive-") && (file.ends_with(".log") || file.ends_with(".data")) {
            return Err(JoinError::HoldsDrives { dir: dir.to_path_buf(), file });
        }
    }
    Ok(())
}

/// The mark of the directory, if it has begun to enter this cluster.
fn mark_of(store: &ClusterStore, dir: &Path, way: Way) -> Result<Option<Mark>, JoinError> {
    match Mark::read(dir)? {
        Some(mark) if mark.cluster != store.name() => {
            Err(JoinError::JoiningElsewhere { dir: dir.to_path_buf(), cluster: mark.cluster })
        }
        Some(mark) => expect_way(&mark, dir, way).map(|()| Some(mark)),
        None => Ok(None),
    }
}

fn expect_way(mark: &Mark, dir: &Path, way: Way) -> Result<(), JoinError> {
    if mark.way.is_none_or(|begun| begun == way) {
        return Ok(());
    }
    let (dir, cluster, command) = (dir.to_path_buf(), mark.cluster.clone(), mark.command(dir));
    Err(JoinError::Begun { dir, cluster, command })
}

/// Moves a single node's records. What is cut is found and finished by `import` itself.
fn bring(
    store: &ClusterStore,
    dir: &Path,
    lock: &DirectoryLock,
    options: &NodeOptions,
) -> Result<Made, JoinError> {
    let config = RedbStore::open(dir, false)?.load()?;
    let brought = Brought { drives: config.drives.len(), vdisks: config.families.len() };
    if let Some(starts) = Seen::read(dir)?.and_then(|seen| seen.starts_missing(&config.node)) {
        return Err(JoinError::OlderRecords { dir: dir.to_path_buf(), starts });
    }
    if options.storage_only && brought.vdisks > 0 {
        return Err(JoinError::StorageOnly);
    }
    let record = options.record(options.name_in(dir)?);
    let membership = import(store, dir, lock, &record).map_err(|error| match error {
        ImportError::Member { .. } => member_error(dir),
        ImportError::Cluster(error) => explain_exists(error),
        error => error.into(),
    })?;
    // What is there now: a cut import may have put the record of an earlier command.
    let record = store.node(membership.node)?.map_or(record, |found| found.record);
    let note = reach(&store.load()?, &record);
    let node = MadeNode { record, dir: dir.to_path_buf(), brought: Some(brought), note };
    Ok(Made { cluster: membership.cluster, id: membership.id, node: Some(node) })
}

fn member_error(dir: &Path) -> JoinError {
    match Membership::read(dir) {
        Ok(Some(found)) => {
            JoinError::Member { dir: dir.to_path_buf(), node: found.node, cluster: found.cluster }
        }
        Ok(None) => unreachable!("an import refuses members only"),
        Err(error) => error.into(),
    }
}

/// Puts the node's record, and then the directory's own file. The record has the stamp of the mark in its name until
/// the file is there, so a repeat knows it, and people see what it is.
fn enter(store: &ClusterStore, dir: &Path, mark: &Mark, options: &NodeOptions) -> Result<Made, JoinError> {
    let config = store.load()?;
    let wanted = options.record(options.name_in(dir)?);
    let nodes = config.nodes.values().map(|found| &found.record);
    // One that was removed meanwhile stays so.
    let begun =
        nodes.filter(|record| record.state != NodeState::Removed).find(|record| mark.is_on(&record.name));
    if begun.is_none()
        && let Err(refused) = fits(&config, &wanted)
    {
        // Nothing was put yet: the directory is as it was.
        Mark::remove(dir)?;
        return Err(refused);
    }
    let node = match begun {
        // The cut may have been before a change of mind about the options.
        Some(begun) => store.change_node(begun.node, |record| mark.put_on(record, &wanted))?.record.node,
        None => {
            let mut record = wanted.clone();
            mark.put_on(&mut record, &wanted);
            store.join(&record)?.record.node
        }
    };
    let membership = Membership {
        cluster: mark.cluster.clone(),
        id: mark.id,
        endpoints: store.etcd().endpoints().to_vec(),
        node,
        stage: MembershipStage::Member,
        incarnation: 0,
    };
    membership.write(dir)?;
    finish(store, dir, mark, node)
}

/// Takes the stamp off.
fn finish(store: &ClusterStore, dir: &Path, mark: &Mark, node: u32) -> Result<Made, JoinError> {
    let record = store.change_node(node, |record| mark.take_off(record))?.record;
    if record.state == NodeState::Removed {
        return Err(ClusterError::NodeRemoved { node }.into());
    }
    Mark::remove(dir)?;
    let note = reach(&store.load()?, &record);
    let node = MadeNode { record, dir: dir.to_path_buf(), brought: None, note };
    Ok(Made { cluster: mark.cluster.clone(), id: mark.id, node: Some(node) })
}

fn others<'a>(
    config: &'a ClusterConfig,
    record: &'a ClusterNodeRecord,
) -> impl Iterator<Item = &'a ClusterNodeRecord> {
    let there = config.nodes.values().map(|found| &found.record);
    there.filter(move |other| other.state != NodeState::Removed && other.node != record.node)
}

/// Refuses what people or other nodes could not tell apart. Two who join at the same moment may still take the same
/// name: it is for people, numbers are what counts.
fn fits(config: &ClusterConfig, wanted: &ClusterNodeRecord) -> Result<(), JoinError> {
    for other in others(config, wanted) {
        let (node, name) = (other.node, other.name.clone());
        if other.name == wanted.name {
            return Err(JoinError::NameTaken { name, node });
        }
        let taken = |address: &str, option| JoinError::AddressTaken {
            address: address.to_string(),
            node,
            name: name.clone(),
            option,
        };
        if other.api == wanted.api && is_fixed(&wanted.api) {
            return Err(taken(&wanted.api, "--api"));
        }
        for address in &wanted.transport {
            if other.transport.contains(address) && is_fixed(address) {
                return Err(taken(address, "--transport"));
            }
        }
    }
    Ok(())
}

/// Port 0 is chosen at the start.
fn is_fixed(address: &str) -> bool {
    !address.ends_with(":0")
}

/// A cluster on the loopback only is for trying; with some nodes on it and some not, they do not reach each other.
fn reach(config: &ClusterConfig, record: &ClusterNodeRecord) -> String {
    let is_local = |record: &ClusterNodeRecord| {
        let addresses = record.transport.iter().chain([&record.api]);
        addresses.filter_map(|text| text.parse::<SocketAddr>().ok()).any(|address| address.ip().is_loopback())
    };
    if is_local(record) {
        return "its addresses are on the loopback: only nodes on this machine reach it (--transport, --api)"
            .to_string();
    }
    match others(config, record).find(|other| is_local(other)) {
        Some(other) => format!(
            "node {} ({}) has addresses on the loopback of its machine: this one cannot reach it",
            other.node, other.name
        ),
        None => String::new(),
    }
}

/// Refuses what others cannot be told: they would look for the node on their own machines.
pub fn check_addresses(api: Option<SocketAddr>, transport: Option<SocketAddr>) -> Result<(), JoinError> {
    for (address, option) in [(api, "--api"), (transport, "--transport")] {
        if let Some(address) = address.filter(|address| address.ip().is_unspecified()) {
            return Err(JoinError::Unspecified { address, option });
        }
    }
    Ok(())
}

impl NodeOptions {
    fn check(&self) -> Result<(), JoinError> {
        check_addresses(Some(self.api), Some(self.transport))?;
        match &self.name {
            Some(name) if !name::is_good(name) => Err(JoinError::BadName { name: name.clone() }),
            _ => Ok(()),
        }
    }

    fn name_in(&self, dir: &Path) -> Result<String, JoinError> {
        Ok(self.name.clone().unwrap_or_else(|| default_name(dir)))
    }

    fn record(&self, name: String) -> ClusterNodeRecord {
        ClusterNodeRecord {
            // Given by the cluster.
            node: u32::MAX,
            name,
            api: self.api.to_string(),
            // One listener hands connections to the shards.
            transport: vec![self.transport.to_string(); self.shards as usize],
            shards: self.shards,
            zone: self.zone.clone(),
            rack: self.rack.clone(),
            storage_only: self.storage_only,
            last_life: 0,
            starts: 0,
            state: NodeState::In,
        }
    }
}
