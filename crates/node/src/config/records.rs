//! The records of the config store, of a single node and of a cluster. Kept as JSON: they are few, and people
//! can read them.
//! Promises: what an older version wrote is read: a field that came later has a default that is right for a
//! single node.

use super::ceiling::CeilingRecord;
use super::compression::CompressionRecord;
use super::containers::{Policy, default_container, is_default_container};
use super::lost_numbers::LostNumbers;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weft_engine::interface::{FamilyRecord, GroupView, Origin, Segment};
use weft_engine::{DriveId, Epoch, FamilyId, Generation, GroupId, Seq, SnapshotId};

/// What a single node has one of. Of a cluster there is a `ClusterRecord`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Made up at the first start.
    pub node: u64,
    /// The next numbers to be given out; none is ever used again.
    pub next_drive: u32,
    pub next_family: u32,
    pub next_group: u32,
    #[serde(default, skip_serializing_if = "LostNumbers::is_empty")]
    pub lost: LostNumbers,
    /// How often the node was started with these records; 0: by versions that do not count.
    #[serde(default)]
    pub starts: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveRecord {
    pub drive: u32,
    /// The node it is in, and which of that node's shards keeps it. A single node deals its drives in turn instead.
    #[serde(default)]
    pub node: u32,
    #[serde(default)]
    pub shard: u32,
    pub place: Place,
    /// Bytes of the two areas.
    pub log: u64,
    pub data: u64,
    /// How much of the share that its size gives it, it shall get: in percent.
    #[serde(default = "whole_share")]
    pub weight: u32,
    /// What the superblock says besides the number, so that another node's drive of the same number is not taken for it. None until it
    /// was formatted, and where an older version made it until this one has opened it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    pub state: DriveRecordState,
}

/// The weight of a drive about which nothing was said.
pub const WEIGHT_WHOLE: u32 = 100;

fn whole_share() -> u32 {
    WEIGHT_WHOLE
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// `drive-N.log` and `drive-N.data` in the node's directory.
    Files,
    Device(PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriveRecordState {
    /// Not formatted yet: nothing of value is on it.
    Making,
    Formatted,
    /// In use, and being emptied: nothing new is put there.
    Draining,
    /// Given up; its number is never used again.
    Lost,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    pub group: u32,
    /// Copies kept by this group.
    pub factor: u32,
    pub members: Vec<u32>,
    pub former: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FamilyConfig {
    pub family: u32,
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Copies of everything: its own word, or with `inherits_factor` what holds where its container says nothing.
    pub factor: u32,
    #[serde(default, skip_serializing_if = "is_false")]
    pub inherits_factor: bool,
    /// Seconds since 1970.
    pub created: u64,
    pub epoch: u32,
    /// The shard that may serve it in `epoch`; None: nobody, or (on a single node) the one its number gives.
    #[serde(default)]
    pub owner: Option<u32>,
    /// The life of the owner's node in which it was given to it: in another life that node does not serve it.
    #[serde(default)]
    pub life: u64,
    /// The node that its owner shall hand it to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving_to: Option<u32>,
    pub segments: Vec<SegmentRecord>,
    pub version: u64,
    pub exports: Vec<ExportRecord>,
    pub state: FamilyState,
    /// The name of the container whose policy it has where it has none of its own.
    #[serde(default = "default_container", skip_serializing_if = "is_default_container")]
    pub container: String,
    /// None: as its container says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<CompressionRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedup: Option<bool>,
    #[serde(default, skip_serializing_if = "CeilingRecord::is_default")]
    pub ceiling: CeilingRecord,
    /// What a clone begins with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<CloneOrigin>,
    /// The snapshot that it is on its way back to; nobody is served meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<RollbackRecord>,
    /// How many clones have been made of its snapshots: one that comes while it is being deleted is noticed by this.
    #[serde(default, skip_serializing_if = "is_none_made")]
    pub clones_made: u64,
    /// In a cluster: the nodes on which it is a block device. A node that was removed may still stand here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attached: Vec<u32>,
    /// The last rollback that was done: who asked for it sees by this whether it was, or was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolled_back: Option<u64>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_none_made(count: &u64) -> bool {
    *count == 0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollbackRecord {
    /// Drawn at random: what is done is not begun again while the news of it are on their way.
    pub id: u64,
    pub generation: u32,
    /// Bytes that the vDisk had then, and gets again.
    pub size: u64,
}

/// The snapshot that a clone reads what it has not written from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloneOrigin {
    pub family: u32,
    pub generation: u32,
    /// Bytes of the snapshot.
    pub size: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FamilyState {
    Live,
    /// Being destroyed; goes on after a restart.
    Dropping,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentRecord {
    pub first: u64,
    /// The epoch of the owner that began it.
    pub epoch: u32,
    pub members: Vec<u32>,
    /// Former members that did not answer when it was ended, and may have what the others lose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportRecord {
    pub address: String,
    pub read_only: bool,
    /// The node that listens there. A node that is alone listens everywhere, also in a cluster that it was moved into.
    #[serde(default)]
    pub node: u32,
    /// Under which clients find it; None: that of the vDisk or snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A snapshot of a vDisk. Small, and beside the vDisk's record: thousands of them cost that nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// Drawn at random, never used again: by it the engine knows whether it has taken it already.
    pub snapshot: u64,
    pub family: u32,
    /// Of all snapshots of the vDisk only this one has it.
    pub name: String,
    pub state: SnapshotState,
    /// What the engine calls it; None: not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// Bytes that the vDisk had.
    pub size: u64,
    /// Seconds since 1970.
    pub created: u64,
    #[serde(default, skip_serializing_if = "SnapshotOrigin::is_asked")]
    pub origin: SnapshotOrigin,
    /// Of a group's: the snapshot whose record decides whether all that were taken with it count. None: this one's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<Followed>,
    /// Why the engine did not take it; empty otherwise.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trouble: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exports: Vec<ExportRecord>,
    /// In a cluster: vDisks that were made from it. Those that are gone again may still stand here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clones: Vec<u32>,
    /// In a cluster: the nodes on which it is a block device. A node that was removed may still stand here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attached: Vec<u32>,
}

/// A snapshot of another vDisk, of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    pub family: u32,
    pub snapshot: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotState {
    /// The owner is to take it, or has taken it and could not say so; or it is not known yet whether the others of its group were
    /// taken too.
    Creating,
    Ready,
    /// The owner is to drop it; then the record goes.
    Deleting,
}

/// Why there is a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotOrigin {
    #[default]
    Asked,
    Schedule,
    /// With others of this consistency group, at one instant.
    Group(String),
}

/// Snapshots that are taken by themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleRecord {
    pub family: u32,
    pub every_seconds: u64,
    /// So many of its own snapshots stay, the newest.
    pub keep: u32,
    /// Seconds since 1970: the first is due one interval later.
    pub since: u64,
}

/// vDisks whose snapshots are taken together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsistencyRecord {
    pub name: String,
    /// Those that are not there any more do not count.
    pub families: Vec<u32>,
}

impl DriveRecord {
    pub fn id(&self) -> DriveId {
        DriveId(self.drive)
    }
}

impl GroupRecord {
    pub fn id(&self) -> GroupId {
        GroupId(self.group)
    }

    pub fn view(&self) -> GroupView {
        GroupView {
            members: self.members.iter().copied().map(DriveId).collect(),
            former: self.former.iter().copied().map(DriveId).collect(),
        }
    }
}

impl FamilyConfig {
    pub fn id(&self) -> FamilyId {
        FamilyId(self.family)
    }

    /// That of the next owner.
    pub fn next_epoch(&self) -> u32 {
        self.epoch.checked_add(1).expect("four thousand million starts are never reached")
    }

    /// As the engine wants it.
    pub fn record(&self, policy: &Policy) -> FamilyRecord {
        FamilyRecord {
            family: self.id(),
            epoch: Epoch(self.epoch),
            size: self.size,
            factor: policy.factor,
            segments: self.segments.iter().map(SegmentRecord::segment).collect(),
            version: self.version,
            origin: self.origin.map(|origin| Origin {
                family: FamilyId(origin.family),
                snapshot: Generation(origin.generation),
                size: origin.size,
            }),
            rollback: self.rollback.map(|to| Generation(to.generation)),
            compression: policy.packing(),
            ceiling: policy.ceiling.engine(),
        }
    }
}

impl SnapshotRecord {
    /// One that is to be taken of a vDisk of `size` bytes.
    pub fn new(
        snapshot: u64,
        family: u32,
        name: &str,
        size: u64,
        created: u64,
        origin: SnapshotOrigin,
    ) -> Self {
        Self {
            snapshot,
            family,
            name: name.to_string(),
            state: SnapshotState::Creating,
            generation: None,
            size,
            created,
            origin,
            follows: None,
            trouble: String::new(),
            exports: Vec::new(),
            clones: Vec::new(),
            attached: Vec::new(),
        }
    }

    pub fn id(&self) -> SnapshotId {
        SnapshotId(self.snapshot)
    }

    pub fn family(&self) -> FamilyId {
        FamilyId(self.family)
    }

    /// Can be read.
    pub fn ready(&self) -> Option<Generation> {
        self.generation.filter(|_| self.state == SnapshotState::Ready).map(Generation)
    }

    /// Where it stands among all snapshots.
    pub fn key(&self) -> SnapshotKey {
        (self.family(), self.name.clone())
    }
}

/// A snapshot's vDisk and name.
pub type SnapshotKey = (FamilyId, String);

impl SnapshotOrigin {
    fn is_asked(&self) -> bool {
        *self == Self::Asked
    }
}

impl SegmentRecord {
    pub fn of(segment: &Segment) -> Self {
        Self {
            first: segment.first.0,
            epoch: segment.epoch.0,
            members: segment.members.iter().map(|drive| drive.0).collect(),
            absent: segment.absent.iter().map(|drive| drive.0).collect(),
        }
    }

    pub fn segment(&self) -> Segment {
        Segment {
            first: Seq(self.first),
            epoch: Epoch(self.epoch),
            members: self.members.iter().copied().map(DriveId).collect(),
            absent: self.absent.iter().copied().map(DriveId).collect(),
        }
    }

    /// All drives that may have some of it.
    pub fn drives(&self) -> impl Iterator<Item = &u32> {
        self.members.iter().chain(&self.absent)
    }
}

#[cfg(test)]
mod tests {
    use super::super::containers::ContainerRecord;
    use super::*;

    #[test]
    fn records_of_the_first_version_are_read() {
        let drive = r#"{"drive":3,"place":"files","log":1048576,"data":2097152,"state":"formatted"}"#;
        let drive: DriveRecord = serde_json::from_str(drive).expect("it is understood");
        assert_eq!((drive.node, drive.shard, drive.weight), (0, 0, WEIGHT_WHOLE));
        let family = r#"{"family":4,"name":"four","size":4096,"factor":1,"created":0,"epoch":9,
            "segments":[{"first":1,"epoch":8,"members":[0,3]}],"version":2,"exports":[],"state":"live"}"#;
        let family: FamilyConfig = serde_json::from_str(family).expect("it is understood");
        assert_eq!((family.epoch, family.owner), (9, None));
        let segment = family.segments[0].segment();
        assert_eq!(segment, Segment::new(Seq(1), Epoch(8), vec![DriveId(0), DriveId(3)]));
        let absent = Segment { absent: vec![DriveId(7)], ..segment };
        assert_eq!(SegmentRecord::of(&absent).segment(), absent);
        assert_eq!((family.container.as_str(), family.compression), ("default", None));
        assert_eq!(family.own_policy().factor, Some(1), "what it was made with stays its own word");
        let three = ContainerRecord { factor: Some(3), ..ContainerRecord::default() };
        assert_eq!(family.policy(Some(&three)).factor, 1);
        let mut inherits = family.clone();
        inherits.set_own_factor(None);
        let (kept, said) = (inherits.policy(None).factor, inherits.policy(Some(&three)).factor);
        assert_eq!((kept, said), (1, 3), "its container's, if that says one");
        inherits.set_own_factor(Some(2));
        assert_eq!(inherits.policy(Some(&three)).factor, 2);
        let packed = r#"{"family":4,"name":"four","size":4096,"factor":1,"created":0,"epoch":9,"segments":[],"version":2,
            "exports":[],"state":"live","compression":{"method":"lz4","unit":32768}}"#;
        let packed: FamilyConfig = serde_json::from_str(packed).expect("it is understood");
        let lz4 = CompressionRecord::default().with(Some("lz4"), Some(32_768)).expect("it is one");
        assert_eq!(packed.compression, Some(lz4), "what it was told stays its own word");
    }
}
