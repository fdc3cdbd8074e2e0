//! What goes into a shard and what comes out: the whole boundary between deciding and doing.
//! The node and the simulator speak exactly this; the engine knows no file, socket, clock or thread.

use crate::buffer::Buffer;
pub use crate::census::Census;
use crate::counters::Source;
use crate::identity::{
    DriveId, EgroupId, Epoch, FamilyId, Generation, GroupId, Seq, ShardId, SnapshotId, Ticket,
};
use crate::message::Message;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Something that happened. Each is handled at once and completely; nothing waits inside.
#[derive(Debug)]
pub enum Input {
    /// A frontend asks. Exactly one [`Reply`] with this ticket follows (I9).
    Request { ticket: Ticket, family: FamilyId, request: Request },
    /// The drive operation `token` ended.
    DriveDone { token: u64, result: Result<DriveResult, DriveFault> },
    /// Another shard (or this one, by way of the network) says something.
    Message { from: ShardId, message: Message },
    /// What was asked of another shard lately may not have arrived, and it can be reached (again): what has no answer yet
    /// is asked again at once. Harmless at any time.
    Unheard { shard: ShardId },
    /// The answer to one of [`Outputs::requests`].
    Told { family: FamilyId, ask: u64, reply: Reply },
    /// The control plane decides something.
    Order(Order),
    /// The time of [`crate::Shard::wake_at`] has come. Harmless at any other time.
    Wake,
}

/// A request on a vDisk. Offsets and lengths are bytes; any alignment is allowed.
#[derive(Debug, Clone)]
pub enum Request {
    Read {
        offset: u64,
        len: u32,
    },
    /// `data` is best page-aligned; then it is written without a copy.
    Write {
        offset: u64,
        data: Buffer,
    },
    /// Makes the range read as zeros, and frees its space.
    Zero {
        offset: u64,
        len: u64,
    },
    /// All acknowledged writes are durable already (I1): answered at once.
    Flush,
    /// Which parts of the range hold data. At most `limit` extents are told.
    Extents {
        offset: u64,
        len: u64,
        limit: u32,
    },
    /// Has the pages of the map that tell of the range read into memory, and with `data` what they name too, as far as
    /// there is room for it. One reply covers a part from the beginning of the range: see [`Warmed::to`].
    Warm {
        offset: u64,
        len: u64,
        data: bool,
    },
    /// Like `Read`, of a snapshot. Its size is for the caller to know: beyond what was written it reads as zeros.
    ReadSnapshot {
        snapshot: Generation,
        offset: u64,
        len: u32,
    },
    /// Like `ReadSnapshot`, asked by a clone for a request of its own clients: its own limits have let that in.
    ReadOrigin {
        snapshot: Generation,
        offset: u64,
        len: u32,
    },
    /// Like `Extents`, of a snapshot.
    SnapshotExtents {
        snapshot: Generation,
        offset: u64,
        len: u64,
        limit: u32,
    },
    /// What may differ between a snapshot and another one or (None) the present; answered with extents, of which those with
    /// `data` may differ. What is told as equal is.
    Differences {
        from: Generation,
        to: Option<Generation>,
        offset: u64,
        len: u64,
        limit: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A write, zero or flush is done and durable.
    Done,
    /// The bytes asked for, in order; together exactly as long as the read.
    Data(Vec<Buffer>),
    /// From the offset asked for on, in order, without gaps.
    Extents(Vec<Extent>),
    Warmed(Warmed),
    Error(RequestError),
}

/// What is in memory after [`Request::Warm`], from the offset asked for up to `to`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Warmed {
    /// Behind the offset asked for: the rest is asked for again.
    pub to: u64,
    /// Pages of the map.
    pub pages: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// There is no room for more.
    pub full: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub len: u64,
    /// False: reads as zeros and takes no space.
    pub data: bool,
}

/// Why a request failed. Frontends turn it into their protocol's error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("the range is outside the vDisk")]
    OutOfRange,
    /// Nobody serves it here now, or every good copy of what is read is on a drive that is away: who asks again later may get it.
    #[error("no shard serves this vDisk here")]
    NotServed,
    #[error("the pool is full")]
    NoSpace,
    /// Every copy of the block is damaged or gone.
    #[error("block {block} is damaged or gone on every drive that held it")]
    Damaged { block: u64 },
    /// The owner lost its place (a newer epoch exists) or gave up: the outcome is not known.
    #[error("this node no longer owns the vDisk")]
    Fenced,
    /// Too many requests are open; the client has to wait for replies first.
    #[error("too many requests are waiting")]
    Busy,
    #[error("the vDisk has no such snapshot")]
    NoSnapshot,
}

/// The two regions of a drive. Offsets in each begin at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Area {
    /// The ring of the oplog; its files are written once at creation.
    Log,
    /// Superblock, egroup table, egroups.
    Data,
}

/// Work for a drive. Offsets and lengths are whole blocks of 4 KiB.
#[derive(Debug)]
pub struct DriveOperation {
    /// Comes back in [`Input::DriveDone`]; unique over the shard's life.
    pub token: u64,
    pub drive: DriveId,
    pub area: Area,
    pub work: DriveWork,
}

#[derive(Debug)]
pub enum DriveWork {
    Read {
        offset: u64,
        len: u32,
    },
    /// One write of all pieces, one behind the other. `durable`: when it ends, the bytes (these, not
    /// others) have been flushed too. Otherwise they are in a cache that a power cut empties. `awaited`: clients wait for it
    /// and for nothing else, and it is small; what is large may go behind it.
    Write {
        offset: u64,
        pieces: Vec<Buffer>,
        durable: bool,
        awaited: bool,
    },
    /// Makes durable every write of this area that had **ended** before this was submitted.
    Flush,
    /// The bytes are not needed any more; a hint, after which they read as anything.
    Discard {
        offset: u64,
        len: u64,
    },
}

#[derive(Debug)]
pub enum DriveResult {
    Read(Buffer),
    Done,
    /// A hint, of a drive that has no use for any.
    Ignored,
}

/// What a drive says when it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriveFault {
    /// This range cannot be read or written; the rest of the drive may be fine.
    Unreadable,
    /// The drive does not answer any more.
    Gone,
}

/// What the control plane wants. Orders to one shard arrive in the order they were given.
#[derive(Debug, Clone)]
pub enum Order {
    /// Who is where and alive. Replaces the former view whole.
    View(View),
    /// Use this drive, as soon as nothing is under way there any more that was asked of it before: `format` makes it empty
    /// first; otherwise it has to be of this `incarnation`, if that is known. Ends in [`Notice::DriveReady`] or `DriveFailed`.
    OpenDrive { drive: DriveId, geometry: Geometry, format: bool, incarnation: Option<u64> },
    /// The process is about to end: drives are to tell now what they would tell with the next frame of their logs, so that everything
    /// that was acknowledged is known to have been there.
    Rest,
    /// Stop using this drive at once. What becomes of what is in flight there concerns nobody, but its end is still told in
    /// [`Input::DriveDone`].
    CloseDrive { drive: DriveId },
    /// Serve this family in `record.epoch`, which is higher than that of any owner before.
    OpenFamily(FamilyRecord),
    /// Stop serving it. Requests still open are answered with [`RequestError::Fenced`].
    CloseFamily { family: FamilyId },
    /// Destroy everything of the family on all drives in the view. Ends in [`Notice::FamilyDropped`].
    DropFamily { family: FamilyId, epoch: Epoch },
    /// Look whether this shard's drives hold anything of families that are no more. Ends in a [`Notice::StrayFound`] for each.
    Census(Census),
    /// Destroy what this drive holds of a family that is no more, and take nothing of it from now on.
    DropStray { drive: DriveId, family: FamilyId },
    /// The size of a served family has changed (in bytes).
    Resize { family: FamilyId, size: u64 },
    /// What is placed from now on is packed so; what was placed before is packed again in the background.
    SetCompression { family: FamilyId, compression: Compression },
    /// What its clients may ask for in a second, from now on.
    SetCeiling { family: FamilyId, ceiling: Ceiling },
    /// So many copies of everything from now on: of what is written at once, of what there is in the background. Ends in
    /// [`Notice::FactorReached`].
    SetFactor { family: FamilyId, factor: u32 },
    /// The answer to [`Notice::ChangeSegments`]: true if the config store took it.
    SegmentsChanged { family: FamilyId, epoch: Epoch, version: u64, taken: bool },
    /// Drain everything and write a checkpoint, to make the next start quick.
    /// Ends in [`Notice::FamilySettled`].
    Settle { family: FamilyId },
    /// It is not wanted any more: drain when it is time, as before.
    StopSettling { family: FamilyId },
    /// Keep at most so many bytes of egroups in memory for reads from now on; 0: none, and read nothing ahead.
    SetCache { bytes: u64 },
    /// Take a snapshot: it is the vDisk between two writes, with everything acknowledged before this order. Asked again
    /// (of whoever is owner then) it makes no second one. Ends in [`Notice::SnapshotTaken`] or `SnapshotRefused`.
    TakeSnapshot { family: FamilyId, snapshot: SnapshotId },
    /// The snapshot of this generation is not needed any more; unknown ones are fine. What only it held becomes free in
    /// the background. Ends in [`Notice::SnapshotDropped`].
    DropSnapshot { family: FamilyId, generation: Generation },
    /// The vDisk shall be again what its newest snapshot is. Ends in [`Notice::RolledBack`] or `RollbackRefused`. Requests are
    /// answered as busy until [`Order::Resume`]: the record of the family has to say that it is done before a client writes,
    /// because an owner to whom it says that it is not does it again.
    RollBack { family: FamilyId, to: Generation },
    /// The record of the family says that it is rolled back.
    Resume { family: FamilyId },
}

/// News for the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    DriveReady {
        drive: DriveId,
    },
    /// The drive failed, at opening or later; the engine does not use it any more.
    DriveFailed {
        drive: DriveId,
        reason: DriveTrouble,
    },
    /// Served from now on.
    FamilyReady {
        family: FamilyId,
        epoch: Epoch,
        replayed: u64,
        /// The snapshots there are, in order. (One that the control plane does not know was begun by an owner that died
        /// before it could tell: it may be dropped.)
        snapshots: Vec<(Generation, SnapshotId)>,
    },
    /// The snapshot is durable, and is named by this generation from now on.
    SnapshotTaken {
        family: FamilyId,
        epoch: Epoch,
        snapshot: SnapshotId,
        generation: Generation,
    },
    SnapshotRefused {
        family: FamilyId,
        epoch: Epoch,
        snapshot: SnapshotId,
        reason: SnapshotTrouble,
    },
    RolledBack {
        family: FamilyId,
        epoch: Epoch,
        to: Generation,
    },
    RollbackRefused {
        family: FamilyId,
        epoch: Epoch,
        to: Generation,
        reason: RollbackTrouble,
    },
    /// Nobody can read it any more.
    SnapshotDropped {
        family: FamilyId,
        epoch: Epoch,
        generation: Generation,
    },
    /// Not served: it cannot be opened, or lost its place.
    FamilyFailed {
        family: FamilyId,
        epoch: Epoch,
        reason: FamilyTrouble,
    },
    /// A drive holds something of a family that is no more, by the last census. Told after each one, and after the opening of a
    /// drive, until [`Order::DropStray`] lets it go.
    StrayFound {
        drive: DriveId,
        family: FamilyId,
    },
    /// A drive holds something of a family of which the last census knows nothing. Told after each one, and after the opening of a drive.
    UnknownFound {
        drive: DriveId,
        family: FamilyId,
    },
    FamilyDropped {
        family: FamilyId,
    },
    FamilySettled {
        family: FamilyId,
    },
    /// Put these segments into the family's config record if its epoch is still `epoch` and its version
    /// `version - 1`; answered by [`Order::SegmentsChanged`].
    ChangeSegments {
        family: FamilyId,
        epoch: Epoch,
        version: u64,
        segments: Vec<Segment>,
    },
    /// Everything of the family, in its log and in egroups, has so many copies, and they were all found. Told once in each
    /// epoch, and again when the factor has changed, or behind [`Notice::FactorMissed`].
    FactorReached {
        family: FamilyId,
        epoch: Epoch,
        factor: u32,
    },
    /// A drive has come or gone since: what was told with [`Notice::FactorReached`] may not be so any more.
    FactorMissed {
        family: FamilyId,
        epoch: Epoch,
    },
    /// Under the view of version `view`, every member of these groups has every egroup that this family keeps there.
    /// Told of groups with former members: when every owner has said so, those may be forgotten.
    GroupsWhole {
        family: FamilyId,
        epoch: Epoch,
        view: u64,
        groups: Vec<GroupId>,
    },
    /// A damaged or missing copy was met, or repaired.
    Damage {
        drive: DriveId,
        damage: Damage,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DriveTrouble {
    #[error("the drive does not answer")]
    Gone,
    #[error("the drive's superblock is damaged in both copies")]
    NoSuperblock,
    #[error("many pages of the drive's table of egroups cannot be read; nothing on it was changed")]
    TableDamaged,
    #[error("the drive was formatted with another geometry")]
    OtherGeometry,
    #[error("the drive holds a format this version does not know")]
    OtherFormat,
    #[error("the drive belongs to drive number {0}")]
    OtherDrive(DriveId),
    #[error(
        "the drive has the number and the size of the one that is meant, and was formatted at another time"
    )]
    OtherLife,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FamilyTrouble {
    #[error("no member of its log answers")]
    NoMember,
    #[error("record {0} of its log is lost on every member; what is after it cannot be trusted")]
    RecordLost(Seq),
    #[error("page {0} of its map is damaged on every drive")]
    PageLost(u64),
    #[error("a newer owner exists")]
    Fenced,
    #[error("all names of egroups of this epoch are used; the next epoch has others")]
    NamesUsed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotTrouble {
    #[error("a vDisk has at most {} snapshots at a time; remove some first", crate::limits::SNAPSHOTS_MAX)]
    TooMany,
    #[error(
        "this vDisk has had {} snapshots in its life, and can have no more; copy it to a new one",
        crate::limits::GENERATIONS_MAX
    )]
    TooManyEver,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RollbackTrouble {
    #[error("the vDisk has no such snapshot")]
    NoSnapshot,
    #[error("the vDisk has newer snapshots, which would lose what they are made of; remove them first")]
    NewerSnapshots,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// A part of the log ring at this byte could not be read or verified at opening.
    Log { offset: u64 },
    /// A page of the table of egroups at this byte of the data area could not be read or verified at opening, twice: an
    /// egroup may be missing. Others have its copies; nobody knows yet which one it was.
    Table { offset: u64 },
    /// An egroup's copy is bad or missing here.
    CopyBad { family: FamilyId, egroup: EgroupId },
    /// ... and is good again.
    CopyRepaired { family: FamilyId, egroup: EgroupId },
    /// A copy was made without what no drive could give of it.
    CopyPartial { family: FamilyId, egroup: EgroupId },
    /// A copy was asked for where it is still to be made: no damage, only the way of things while copies move.
    CopyAwaited { family: FamilyId, egroup: EgroupId },
    /// These blocks were written, and all members of the log have something else in that place: they cannot be read until they are
    /// written again. It may be that they have been already: what is newer has been found, or will be.
    WriteLost { family: FamilyId, block: u64, count: u64 },
    /// No good copy of this block was found anywhere.
    BlockLost { family: FamilyId, block: u64 },
}

/// How a drive is divided. Fixed when it is formatted. Bytes, whole MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Length of the log area.
    pub log: u64,
    /// Length of the data area.
    pub data: u64,
}

/// Who is where, as the control plane sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// Grows with every change; an older view is ignored.
    pub version: u64,
    pub drives: BTreeMap<DriveId, DriveView>,
    /// Shared by all who know this view: hundreds of groups, of which each change touches a few.
    pub groups: Arc<BTreeMap<GroupId, GroupView>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveView {
    pub shard: ShardId,
    /// Drives with the same number fail together (a node; on a single node, the drive itself).
    pub domain: u32,
    pub state: DriveState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriveState {
    Up,
    /// Answers, but far too late: nothing new goes there that can go elsewhere as safely.
    Slow,
    /// Works like one that is up, but is to be emptied: nothing new goes there.
    Draining,
    /// Not answering now; its data is expected back.
    Down,
    /// Its data is gone for good.
    Lost,
}

impl DriveState {
    /// It can be asked.
    pub fn is_up(self) -> bool {
        matches!(self, DriveState::Up | DriveState::Slow | DriveState::Draining)
    }

    /// New things go there rather than to others.
    pub fn is_open(self) -> bool {
        self == DriveState::Up
    }

    /// What lies there is there, and need not be elsewhere.
    pub fn keeps(self) -> bool {
        matches!(self, DriveState::Up | DriveState::Slow)
    }

    /// It belongs to the pool for the time to come, though it may be away at the moment.
    pub fn stays(self) -> bool {
        matches!(self, DriveState::Up | DriveState::Slow | DriveState::Down)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupView {
    /// As many as the replication factor, in distinct fault domains where there are enough.
    pub members: Vec<DriveId>,
    /// Drives that were members before and may still hold egroups that the new ones have not got yet.
    pub former: Vec<DriveId>,
}

/// What the config store holds of a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilyRecord {
    pub family: FamilyId,
    pub epoch: Epoch,
    /// Bytes.
    pub size: u64,
    /// How many copies of everything.
    pub factor: u32,
    /// The oplog, oldest first; empty before the first opening.
    pub segments: Vec<Segment>,
    /// Counts changes of `segments`.
    pub version: u64,
    /// What a clone begins with.
    pub origin: Option<Origin>,
    /// It has to go back to this snapshot before anybody is served: see [`Order::RollBack`].
    pub rollback: Option<Generation>,
    /// Of what is placed from now on.
    pub compression: Compression,
    /// What its clients may ask for in a second.
    pub ceiling: Ceiling,
}

/// How far the copies of a family are what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FactorProgress {
    pub wanted: u32,
    /// All that is acknowledged from now on, and what the log still holds, has so many copies.
    pub log: bool,
    /// Bytes, as one member holds them, of egroups that lie in groups with another number of copies.
    pub left_bytes: u64,
    /// Bytes of data on all drives together, by the groups that it lies in.
    pub copies_bytes: u64,
    /// Every member of the groups in use is up, and was found to have everything.
    pub whole: bool,
    /// There is no room to make more copies.
    pub short: bool,
    /// It was told: [`Notice::FactorReached`].
    pub reached: bool,
    /// At the rate of the last time; None: nobody can say.
    pub remaining_us: Option<u64>,
}

/// What the clients of a vDisk may ask for in a second; requests beyond it wait. None (or 0): as much as there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ceiling {
    /// Reads, writes and trims, of any size.
    pub iops: Option<u32>,
    /// Bytes read and written.
    pub bytes: Option<u64>,
}

/// How data is packed when it goes into egroups, and whether drives share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compression {
    pub method: Method,
    /// Units of 4 KiB that are packed together: 1, 2, 4 or 8. More compress better, and more is read for one of them.
    pub frame_units: u8,
    /// What nobody has read for long is packed once more, for good.
    pub cold: Option<Cold>,
    /// What lies on a drive already is not written there again.
    pub share: bool,
}

/// When data is cold, and the level of zstd that it is packed with then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cold {
    pub after_s: u32,
    pub level: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Off,
    Lz4,
    Zstd { level: u8 },
}

impl Default for Compression {
    fn default() -> Self {
        Self { method: Method::Off, frame_units: 2, cold: None, share: false }
    }
}

/// A snapshot of another family, which stays as long as a clone needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    pub family: FamilyId,
    pub snapshot: Generation,
    /// Of the snapshot, in bytes: what is beyond reads as zeros.
    pub size: u64,
}

/// A request to whoever serves another family. It may be carried out more than once: it only reads.
#[derive(Debug)]
pub struct OriginRequest {
    /// The answer goes to this family of this shard, with this number: [`Input::Told`].
    pub asker: FamilyId,
    pub ask: u64,
    pub family: FamilyId,
    pub request: Request,
}

/// A run of a family's log with a fixed member set. It ends where the next one begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    pub first: Seq,
    /// The epoch of the owner that began it. Older records at or after `first` do not count.
    pub epoch: Epoch,
    pub members: Vec<DriveId>,
    /// Members that did not answer the owner that ended it: what was acknowledged they have, but perhaps not all that it found at the
    /// end. They count as no copy, and are asked for what no member can give any more (decision 0053).
    pub absent: Vec<DriveId>,
}

impl Segment {
    pub fn new(first: Seq, epoch: Epoch, members: Vec<DriveId>) -> Self {
        Self { first, epoch, members, absent: Vec::new() }
    }

    /// All drives that may have some of it, members in front.
    pub fn drives(&self) -> impl Iterator<Item = DriveId> + Clone + '_ {
        self.members.iter().chain(&self.absent).copied()
    }
}

/// Everything one step wants done. The caller empties it after each step; order matters only
/// inside `operations` of one drive area (a flush covers what ended before it, nothing else).
#[derive(Debug, Default)]
pub struct Outputs {
    pub operations: Vec<DriveOperation>,
    pub messages: Vec<(ShardId, Message)>,
    pub replies: Vec<(Ticket, Reply)>,
    /// Of replies to reads, in their order: the slowest place that the data came from. For statistics.
    pub sources: Vec<(Ticket, Source)>,
    pub notices: Vec<Notice>,
    pub requests: Vec<OriginRequest>,
}

impl Outputs {
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
            && self.messages.is_empty()
            && self.replies.is_empty()
            && self.notices.is_empty()
            && self.requests.is_empty()
    }
}
