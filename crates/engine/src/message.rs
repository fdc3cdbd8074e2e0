//! What shards say to each other: an owner asks the keeper of a drive, and the keeper answers.
//! Every question may be asked again with the same call number when no answer came: keepers make each
//! of them idempotent. Nothing here relies on order between messages.

use crate::buffer::Buffer;
use crate::codec::Codec;
use crate::formats::packing::Packing;
use crate::formats::record::Record;
use crate::identity::{Block, DriveId, EgroupId, Epoch, FamilyId, Seq};
use std::sync::Arc;

#[derive(Debug, Clone)]
pub enum Message {
    /// Owner to keeper.
    Ask { call: u64, drive: DriveId, family: FamilyId, epoch: Epoch, question: Question },
    /// Keeper to owner. `free` is what the drive could still give to new egroups, in bytes.
    Answer { call: u64, drive: DriveId, family: FamilyId, free: u64, answer: Result<Answer, Refusal> },
    /// Keeper to the last known owner, not asked for: the ring runs full and this family's oldest record
    /// at `seq` is in the way of its reuse. Drain and checkpoint past it, please.
    Press { drive: DriveId, family: FamilyId, seq: Seq },
}

#[derive(Debug, Clone)]
pub enum Question {
    /// Refuse every owner older than the asking epoch from now on, and tell what is held. Records at or
    /// after `first` (the beginning of the family's last segment) of an epoch older than `since` (that in
    /// which the segment was made) are leftovers of an owner that lost: the keeper lets go of them first.
    Fence { first: Seq, since: Epoch },
    /// Make these records durable. They follow each other without gaps. `trim`: records up to and
    /// including it are not needed any more. `first` is the first number of the current segment: a
    /// keeper that holds nothing at or after it, and nothing right before `records`, may begin there.
    Append { first: Seq, trim: Seq, records: Vec<Record> },
    /// Make these records of an earlier segment (or of the last one, before there is a new one) durable as well: it begins at `first`,
    /// and owners since `since` have written it. They follow each other, and may come after what is newer. What the keeper has of older epochs from `first` on never counted.
    /// `urgent`: an opening waits for it, so it goes where other records go. Others leave the room that lets go of records.
    AppendLate { first: Seq, since: Epoch, records: Vec<Record>, urgent: bool },
    /// Records up to and including this are not needed any more.
    Trim { up_to: Seq },
    /// Records from `from` on, in order, up to about `bytes` of data; of damaged ones what is known.
    ReadLog { from: Seq, bytes: u32 },
    /// Store a whole egroup and flush it. Written once: if the name exists with the same content
    /// it is a success. `replace`: a repair; a copy that exists is replaced. `sharing`: what lies there already need not be
    /// written again.
    WriteEgroup {
        egroup: EgroupId,
        class: Class,
        content: Content,
        blocks: Vec<u64>,
        replace: bool,
        sharing: Option<Sharing>,
        lacking: Lacking,
    },
    /// Units of an egroup, verified. `frames`: those of them that are compressed are wanted as they are stored as well, to be
    /// kept in memory. Only who shares it with the drive asks for that; other nodes are not told. `behind`: no client waits for
    /// them, so they take their turn behind what one waits for.
    ReadUnits { egroup: EgroupId, runs: Vec<UnitRun>, frames: bool, behind: bool },
    /// The frames in which these units lie, verified and as they are stored: for copies, which are alike byte for byte.
    ReadFrames { egroup: EgroupId, runs: Vec<UnitRun> },
    /// The vDisk blocks (or page keys) that the units of an egroup were written for, and how it is packed.
    DescribeEgroup { egroup: EgroupId },
    /// These egroups are not needed any more. Unknown names are fine.
    DeleteEgroups { egroups: Vec<EgroupId> },
    /// Names of this family's egroups after `after`, in order, at most some thousand.
    ListEgroups { after: EgroupId },
    /// Everything of the family goes: records, egroups, fence.
    DropFamily,
}

/// An owner's wish that a drive shares what lies on it already.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Egroups of the family that go soon, because their units are moved: what only they have is written again, or nothing of them
    /// would become free.
    pub moved_from: Vec<EgroupId>,
}

/// What of a copy no drive could give. Something else comes in its place, which is damaged from the first moment; unlike of
/// [`Content::Lost`] nobody says of it that no copy is better. Who has a copy keeps that instead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lacking {
    /// By their numbers in the egroup.
    pub frames: Vec<u32>,
    /// For what blocks its units were written.
    pub blocks: bool,
}

impl Lacking {
    pub fn is_nothing(&self) -> bool {
        self.frames.is_empty() && !self.blocks
    }
}

/// What is in an egroup, as all its members store it.
#[derive(Debug, Clone)]
pub enum Content {
    /// Units as they are, joined or not.
    Units(Vec<Buffer>),
    /// Frames one behind the other, and zeros up to a whole block.
    Packed { packing: Arc<Packing>, bytes: Buffer },
    /// So many units that were lost before they came to an egroup: they are damaged there from the first moment, so that they are
    /// never taken for anything else.
    Lost { units: u32 },
}

impl Content {
    pub fn units(&self) -> usize {
        match self {
            Content::Units(units) => units.iter().map(Buffer::blocks).sum(),
            Content::Packed { packing, .. } => packing.units() as usize,
            Content::Lost { units } => *units as usize,
        }
    }

    /// Units that are read and verified together. None of what is lost can be read.
    pub fn frames(&self) -> usize {
        match self {
            Content::Packed { packing, .. } => packing.frame_count(),
            Content::Units(_) => self.units(),
            Content::Lost { .. } => 0,
        }
    }

    /// Blocks that it takes on a drive.
    pub fn blocks(&self) -> usize {
        match self {
            Content::Units(units) => units.iter().map(Buffer::blocks).sum(),
            Content::Packed { packing, .. } => packing.blocks() as usize,
            Content::Lost { units } => *units as usize,
        }
    }
}

/// Who may use the last free space of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Client data: leaves a reserve untouched.
    Data,
    /// Client data that is in the way of a full log ring: leaves half of the reserve untouched.
    Pressed,
    /// Compaction and repair: leave a quarter of the reserve untouched.
    Reserve,
    /// Pages of the map: without them nothing is ever deleted.
    Pages,
}

/// `count` units from `first` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitRun {
    pub first: u32,
    pub count: u32,
}

impl UnitRun {
    pub fn overlaps(self, other: UnitRun) -> bool {
        self.first < other.first + other.count && other.first < self.first + self.count
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Fenced(Held),
    /// Everything of this family up to and including `up_to` that this keeper was ever given in this
    /// segment is durable here. `room`: bytes of new client data this family may have outstanding
    /// (sent, not yet answered) on this ring.
    Appended {
        up_to: Seq,
        room: u64,
    },
    Trimmed {
        room: u64,
    },
    /// `end`: no record held here lies after the last one given. `lost`: writes among them of which only that is left. `unread`: what is held
    /// as well, and was not given: it may be the next time.
    Records {
        records: Vec<Record>,
        lost: Vec<LostWrite>,
        unread: Vec<Seq>,
        end: bool,
    },
    EgroupWritten,
    /// One entry for each run asked for: the units joined, or the first unit that is damaged.
    Units(Vec<Result<Buffer, BadUnit>>),
    /// The same, and the compressed frames that they came out of, in order.
    UnitsAndFrames(Vec<Result<Buffer, BadUnit>>, Vec<PackedFrame>),
    /// One entry for each run asked for: its frames one behind the other, or the first unit that is damaged.
    Frames(Vec<Result<Buffer, BadUnit>>),
    /// `blocks`: one for each unit, or none if the drive does not know them any more.
    Egroup {
        blocks: Vec<u64>,
        /// None: every unit is a frame.
        packing: Option<Arc<Packing>>,
    },
    Deleted,
    /// Names in order; `end`: there are no more after the last.
    Listed {
        egroups: Vec<EgroupId>,
        end: bool,
    },
    Dropped,
}

/// A compressed frame, verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedFrame {
    pub first: u32,
    pub units: u32,
    pub codec: Codec,
    pub bytes: Buffer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadUnit {
    pub unit: u32,
    /// It was lost before it came here, see [`Content::Lost`]: no copy is better.
    pub is_lost: bool,
}

impl BadUnit {
    /// It does not fit its checksum any more, or is not there.
    pub fn damaged(unit: u32) -> Self {
        Self { unit, is_lost: false }
    }
}

/// A data record that was there, as its frame says, whose blocks do not fit their checksum any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostWrite {
    pub seq: Seq,
    pub block: Block,
    pub count: u64,
}

/// What a keeper holds of a family's log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// The lowest and highest record held, or lost to damage; both 0 if none.
    pub low: Seq,
    pub high: Seq,
    /// Records may have been behind `high` that damage has made unreadable: nobody here knows of what families.
    pub incomplete: bool,
    /// The same, but a frame that was not whole is all that speaks for it: most likely it was never finished.
    pub torn: bool,
    /// The drive has egroups of the family.
    pub egroups: bool,
    /// Checkpoint records among those held, in order.
    pub checkpoints: Vec<Seq>,
    /// See [`Answer::Appended`].
    pub room: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// A newer owner was here.
    Fenced(Epoch),
    /// The ring has no room for this now; ask again after trims.
    LogFull,
    /// The drive has no room for this egroup; a smaller one may fit.
    NoSpace,
    /// The records do not follow what is held: begin at this one.
    Gap { expected: Seq },
    /// The egroup is not here.
    NotFound,
    /// The drive is not open here, or has failed.
    DriveGone,
}
