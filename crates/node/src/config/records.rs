//! The records of the config store. Kept as JSON: they are few, and people can read them.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use weft_engine::interface::{FamilyRecord, GroupView, Segment};
use weft_engine::{DriveId, Epoch, FamilyId, GroupId, Seq};

/// What there is one of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Made up at the first start.
    pub node: u64,
    /// The next numbers to be given out; none is ever used again.
    pub next_drive: u32,
    pub next_family: u32,
    pub next_group: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveRecord {
    pub drive: u32,
    pub place: Place,
    /// Bytes of the two areas.
    pub log: u64,
    pub data: u64,
    pub state: DriveRecordState,
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
    pub factor: u32,
    /// Seconds since 1970.
    pub created: u64,
    pub epoch: u32,
    pub segments: Vec<SegmentRecord>,
    pub version: u64,
    pub exports: Vec<ExportRecord>,
    pub state: FamilyState,
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
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportRecord {
    pub address: String,
    pub read_only: bool,
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

    /// As the engine wants it.
    pub fn record(&self) -> FamilyRecord {
        FamilyRecord {
            family: self.id(),
            epoch: Epoch(self.epoch),
            size: self.size,
            factor: self.factor,
            segments: self.segments.iter().map(SegmentRecord::segment).collect(),
            version: self.version,
        }
    }
}

impl SegmentRecord {
    pub fn of(segment: &Segment) -> Self {
        Self {
            first: segment.first.0,
            epoch: segment.epoch.0,
            members: segment.members.iter().map(|drive| drive.0).collect(),
        }
    }

    pub fn segment(&self) -> Segment {
        Segment {
            first: Seq(self.first),
            epoch: Epoch(self.epoch),
            members: self.members.iter().copied().map(DriveId).collect(),
        }
    }
}
