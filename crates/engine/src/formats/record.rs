//! The records of a family's log.

use crate::buffer::Buffer;
use crate::formats::recipe::Recipe;
use crate::identity::{Block, EgroupId, Generation, GroupId, Seq, SnapshotId};
use std::sync::Arc;

/// One record. Its family and epoch stand beside it, in the message or in the frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub seq: Seq,
    pub body: Body,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A write of whole blocks, at most [`crate::limits::RECORD_BLOCKS`].
    Data { block: Block, data: Buffer },
    /// The range reads as zeros from here on.
    Zero { block: Block, count: u64 },
    /// An egroup is durable on all members of its group, and these blocks lie there now.
    Map(Arc<MapRecord>),
    /// The map up to this record is in pages; replay begins at `replay_from`.
    Checkpoint(Arc<Checkpoint>),
    /// A snapshot comes or goes at this place of the log.
    Mark(Mark),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// What is before this record is of `generation` or older and stays as it is; what comes behind is newer.
    Taken { generation: Generation, snapshot: SnapshotId },
    /// The snapshot of this generation is not needed any more.
    Dropped { generation: Generation },
    /// The vDisk is what snapshot `to` is, the newest there is; what was written since, up to and including `generation`, is
    /// gone.
    RolledBack { to: Generation, generation: Generation },
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MapRecord {
    /// Of the data that the edits are about; the egroup named holds data of this generation only.
    pub generation: Generation,
    /// None when the edits only unmap.
    pub named: Option<NamedEgroup>,
    pub edits: Vec<Edit>,
    /// Units that the egroup has copies of, so that it can take the place of others.
    pub moves: Vec<UnitMove>,
}

/// `count` units from `from_unit` on of another egroup, which hold the blocks from `block` on for whoever sees them there, are
/// also at `unit` onwards of the record's egroup, which is of the same generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitMove {
    pub block: Block,
    pub count: u32,
    pub from: EgroupId,
    pub from_unit: u32,
    pub unit: u32,
}

/// An egroup and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedEgroup {
    pub egroup: EgroupId,
    pub group: GroupId,
    pub units: u32,
    /// Blocks that the units take on a drive: fewer if they are packed.
    pub stored: u32,
    pub recipe: Recipe,
    /// Of all that is in it; of pages: the newest that they can tell of.
    pub generation: Generation,
}

/// `count` blocks from `block` on are now at `unit` onwards of the record's egroup, or nowhere (zeros).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edit {
    pub block: Block,
    pub count: u64,
    pub unit: Option<u32>,
    /// Data and zero records of these blocks up to and including this number are done with: what the
    /// log index holds of them goes. 0 for what went around the log.
    pub covers: Seq,
}

/// The root of a family's map, as of this record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checkpoint {
    /// The map holds the edits of map records up to and including this one.
    pub map_to: Seq,
    /// Replay begins here, at most at `map_to + 1`: every data or zero record below it is covered by a map
    /// record up to `map_to`.
    pub replay_from: Seq,
    /// The generation of the records at `replay_from`, and of those behind `map_to`.
    pub replay_generation: Generation,
    pub generation: Generation,
    /// The snapshots there are, in order, and generations whose snapshots are gone but still told of in pages of the past.
    pub snapshots: Vec<(Generation, SnapshotId)>,
    pub dropped: Vec<Generation>,
    /// Blocks mapped to units.
    pub mapped: u64,
    /// The egroups that hold pages. (Those that hold data are in the directory pages.)
    pub map_egroups: Vec<NamedEgroup>,
    /// Where the index pages are, in order of their keys.
    pub index: Vec<IndexPlace>,
    /// Of a clone, leaves without a page that were trimmed whole, in order.
    pub holes: Vec<TrimmedLeaves>,
}

/// `count` leaves from `first` on, which were trimmed in this generation: see `map/holes.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrimmedLeaves {
    pub first: u64,
    pub count: u64,
    pub generation: Generation,
}

/// Where the index page `number` of a kind of pages is: it tells the places of pages
/// `number * 256 ..` of that kind (128 of the past).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexPlace {
    pub kind: PageKind,
    pub number: u64,
    pub place: PagePlace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageKind {
    /// Where 1024 blocks are.
    Leaf,
    /// Where some of the 1024 blocks of a leaf were when snapshots were taken.
    Past,
    /// 128 egroup numbers: group, units, live units.
    Directory,
}

/// Where a page is. Content there never changes, so a place is also the best cache key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PagePlace {
    pub egroup: EgroupId,
    pub unit: u32,
    pub units: u32,
}

impl Record {
    /// Blocks of payload behind the record's header in a frame. (Map and checkpoint records are encoded
    /// into whole blocks as well.)
    pub fn payload_bytes(&self) -> usize {
        match &self.body {
            Body::Data { data, .. } => data.len(),
            Body::Zero { .. } | Body::Mark(_) => 0,
            Body::Map(map) => 64 + 40 * map.edits.len() + 32 * map.moves.len(),
            Body::Checkpoint(checkpoint) => {
                64 + 24 * checkpoint.map_egroups.len()
                    + 40 * checkpoint.index.len()
                    + 16 * checkpoint.snapshots.len()
                    + 4 * checkpoint.dropped.len()
                    + 24 * checkpoint.holes.len()
            }
        }
    }
}
