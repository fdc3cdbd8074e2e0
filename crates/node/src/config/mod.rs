//! The config store: small records that change seldom and must survive everything.
//! Promises: each call is one transaction, durable when it returns; segments change only by compare-and-set.
//! Leaves to others: what the records mean (`control`, the engine).
//! A single node keeps them in its directory ([`RedbStore`]); a cluster keeps them in etcd
//! ([`cluster::ClusterStore`]), where several change them at once.

mod ceiling;
pub mod cluster;
mod compression;
mod containers;
pub(crate) mod durable_file;
pub mod etcd;
mod import;
mod lock;
mod lost_numbers;
mod membership;
mod records;
mod redb_store;
pub(crate) mod seen;
mod snapshot_names;

pub use ceiling::CeilingRecord;
pub use compression::{ColdRecord, CompressionRecord};
pub use containers::{ContainerRecord, DEFAULT_CONTAINER, OwnPolicy, Policy};
pub use import::{ImportError, import};
pub use lock::{DirectoryLock, LockError};
pub use lost_numbers::LostNumbers;
pub use membership::{Life, MEMBERSHIP_FILE, Membership, MembershipError, MembershipStage};
pub use records::{
    CloneOrigin, ConsistencyRecord, DriveRecord, DriveRecordState, ExportRecord, FamilyConfig, FamilyState,
    Followed, GroupRecord, NodeRecord, Place, RollbackRecord, ScheduleRecord, SegmentRecord, SnapshotKey,
    SnapshotOrigin, SnapshotRecord, SnapshotState, WEIGHT_WHOLE,
};
pub use redb_store::{CONFIG_FILE, RedbStore};
pub(crate) use snapshot_names::numbered;

use std::path::PathBuf;
use weft_engine::interface::Segment;
use weft_engine::{DriveId, Epoch, FamilyId, SnapshotId};

/// Everything the store holds.
#[derive(Debug, Clone, Default)]
pub struct Config {
    pub node: NodeRecord,
    pub drives: Vec<DriveRecord>,
    pub groups: Vec<GroupRecord>,
    pub families: Vec<FamilyConfig>,
    pub snapshots: Vec<SnapshotRecord>,
    pub schedules: Vec<ScheduleRecord>,
    pub consistency: Vec<ConsistencyRecord>,
    pub containers: Vec<ContainerRecord>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the config store {path} cannot be opened: {reason}; put a good copy of the file back")]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "the config store {path} cannot be opened: {reason}; see that its file system has room and works, and that no other process \
         uses the directory"
    )]
    Open { path: PathBuf, reason: String },
    #[error(
        "the config store {path} cannot be made: {reason}; see that its file system has room and can be written, and try again"
    )]
    Make { path: PathBuf, reason: String },
    #[error(
        "the config store holds a record that this version does not understand ({table} {key}: {source}); use the \
             version that wrote it"
    )]
    Record { table: &'static str, key: String, source: serde_json::Error },
    #[error("the config store failed: {0}; check the file system it is on")]
    Store(Box<redb::Error>),
}

/// Where the config records of a single node are kept.
pub trait ConfigStore: Send {
    fn load(&self) -> Result<Config, ConfigError>;
    fn put_node(&mut self, node: &NodeRecord) -> Result<(), ConfigError>;
    fn put_drive(&mut self, drive: &DriveRecord) -> Result<(), ConfigError>;
    fn remove_drive(&mut self, drive: DriveId) -> Result<(), ConfigError>;
    fn put_groups(&mut self, groups: &[GroupRecord]) -> Result<(), ConfigError>;
    /// Puts a family's record as a whole, except what a newer owner may have changed: see the other calls.
    fn put_family(&mut self, family: &FamilyConfig) -> Result<(), ConfigError>;
    /// With its snapshots and its schedule.
    fn remove_family(&mut self, family: FamilyId) -> Result<(), ConfigError>;
    /// All of them, or none.
    fn put_families(&mut self, families: &[FamilyConfig]) -> Result<(), ConfigError>;
    fn put_snapshots(&mut self, snapshots: &[SnapshotRecord]) -> Result<(), ConfigError>;
    fn remove_snapshot(&mut self, snapshot: SnapshotId) -> Result<(), ConfigError>;
    fn put_schedule(&mut self, schedule: &ScheduleRecord) -> Result<(), ConfigError>;
    fn remove_schedule(&mut self, family: FamilyId) -> Result<(), ConfigError>;
    fn put_consistency(&mut self, group: &ConsistencyRecord) -> Result<(), ConfigError>;
    fn remove_consistency(&mut self, group: &str) -> Result<(), ConfigError>;
    fn put_container(&mut self, container: &ContainerRecord) -> Result<(), ConfigError>;
    fn remove_container(&mut self, container: &str) -> Result<(), ConfigError>;
    /// Raises the family's epoch by one and gives the record as it then is; None if there is no such family.
    fn take_epoch(&mut self, family: FamilyId) -> Result<Option<FamilyConfig>, ConfigError>;
    /// Puts `segments` under `version` if the record still has `epoch` and `version - 1`; false otherwise.
    fn change_segments(
        &mut self,
        family: FamilyId,
        epoch: Epoch,
        version: u64,
        segments: &[Segment],
    ) -> Result<bool, ConfigError>;
}
