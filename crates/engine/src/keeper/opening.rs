//! Opening a drive: superblock, then everything that lies on it, then once more what of it was not sound, then the first frame of the
//! session if frames were dropped, or nobody knows where logs end; or formatting it. Nothing is answered before the end.
//! Promises: only the drive that is meant is opened; what it does not give is asked for some times more, some seconds apart, before it
//! counts as damaged.

use crate::buffer::{BLOCK, Buffer, zeros};
use crate::checksum::crc32c;
use crate::formats::superblock::{COPIES, Superblock, SuperblockFault};
use crate::identity::Time;
use crate::interface::{Area, Damage, DriveTrouble, DriveWork, Geometry, Notice};
use crate::keeper::desk::{Desk, Work};
use crate::keeper::egroup_load::TableLoad;
use crate::keeper::egroups::Store;
use crate::keeper::ring::Ring;
use crate::keeper::ring_scan::RingScan;
use crate::keeper::second_look::SecondLook;
use crate::keeper::sweep::Sweep;
use crate::limits::Limits;

/// A drive that does not give more pages than this is not to be trusted with erasing them: it may give them all tomorrow.
const REFUSED_MAX: usize = 64;
/// Nor is one that gives more of them, but not as they were written. Twice what is erased together when vDisks are dropped: a cut may tear
/// all of that.
const DOUBTS_MAX: usize = 512;

/// What cannot be read is read so often, and so far apart: a drive may be away for a moment, as when a path to it changes.
const LOOKS_MAX: u32 = 4;
const AGAIN_US: u64 = 3_000_000;

pub(super) struct Opening {
    geometry: Geometry,
    format: bool,
    /// The life of the drive that is meant, if that is known.
    incarnation: Option<u64>,
    step: Step,
}

enum Step {
    /// Reading the superblocks.
    Superblock(Superblocks),
    /// Writing the superblocks of an empty drive.
    Format,
    /// What is found may be in the drive's cache only, if a process ended but not the machine: flushes (and
    /// repairs of a superblock) that have not ended.
    Flush { left: usize },
    /// Reading the ring and the table.
    Sweep(Box<Sweeps>),
    /// Reading again what was not sound: parts of the ring, then pages of the table one after the other, which are erased if they are
    /// not sound again.
    Doubts(Box<Doubts>),
    /// Writing the first frame of the session.
    FirstFrame,
}

struct Superblocks {
    bytes: Vec<u8>,
    /// Reads under way: of both, or one by one.
    left: usize,
    /// Not both were given in this look.
    unread: bool,
    looks: Looks,
}

impl Superblocks {
    fn begin(looks: Looks, desk: &mut Desk) -> Self {
        let read = DriveWork::Read { offset: 0, len: (COPIES * BLOCK) as u32 };
        desk.submit(Area::Data, read, Work::Superblock { copy: None });
        Self { bytes: vec![0; COPIES * BLOCK], left: 1, unread: false, looks }
    }
}

/// How often it was looked at what the drive did not give, and when the next look begins.
#[derive(Clone, Copy, Default)]
struct Looks {
    /// Before the present one.
    ended: u32,
    again_at: Option<Time>,
}

impl Looks {
    /// False: this was the last one.
    fn wait(&mut self, now: Time) -> bool {
        let waits = self.ended + 1 < LOOKS_MAX;
        self.again_at = waits.then_some(now.after(AGAIN_US));
        waits
    }

    fn is_last(&self) -> bool {
        self.ended + 1 >= LOOKS_MAX
    }

    /// Whether the time has come.
    fn is_due(&mut self, now: Time) -> bool {
        let due = self.again_at.take_if(|at| *at <= now).is_some();
        self.ended += u32::from(due);
        due
    }
}

struct Doubts {
    log: SecondLook,
    table: TableLoad,
    /// Pages that could not be read in this look.
    unread: Vec<u32>,
    /// Pages that were not sound, or not given, to the end: to be erased if they are not too many.
    bad: Vec<u32>,
    /// How many of these were not given.
    refused: usize,
    looks: Looks,
}

struct Sweeps {
    log: Sweep,
    scan: RingScan,
    data: Sweep,
    table: TableLoad,
}

/// How an opening goes on.
pub(super) enum Progress {
    Waiting,
    Ready,
    Failed(DriveTrouble),
}

impl Opening {
    pub fn begin(geometry: Geometry, format: bool, incarnation: Option<u64>, desk: &mut Desk) -> Self {
        let step = Step::Superblock(Superblocks::begin(Looks::default(), desk));
        Self { geometry, format, incarnation, step }
    }

    /// Superblocks were read: both, or one; None if that was not possible.
    #[expect(clippy::too_many_arguments, reason = "a read and where it belongs")]
    pub fn on_superblock(
        &mut self,
        now: Time,
        copy: Option<usize>,
        read: Option<Buffer>,
        limits: &Limits,
        ring: &mut Ring,
        store: &mut Store,
        desk: &mut Desk,
    ) -> Progress {
        let Step::Superblock(superblocks) = &mut self.step else {
            unreachable!("superblocks are read first");
        };
        let Superblocks { bytes, left, unread, looks } = superblocks;
        match (copy, read) {
            (None, Some(read)) => bytes.copy_from_slice(read.bytes()),
            (None, None) => {
                for copy in 0..COPIES {
                    let read = DriveWork::Read { offset: (copy * BLOCK) as u64, len: BLOCK as u32 };
                    desk.submit(Area::Data, read, Work::Superblock { copy: Some(copy) });
                    *left += 1;
                }
            }
            (Some(copy), Some(read)) => bytes[copy * BLOCK..][..BLOCK].copy_from_slice(read.bytes()),
            (Some(_), None) => *unread = true,
        }
        *left -= 1;
        if *left > 0 {
            return Progress::Waiting;
        }
        // One of them is enough.
        let may_be_given = *unread && Superblock::newest(bytes).is_err() && !self.format;
        if may_be_given && looks.wait(now) {
            return Progress::Waiting;
        }
        let bytes = std::mem::take(bytes);
        if self.format {
            self.write_superblocks(&bytes, limits, ring, store, desk);
            return Progress::Waiting;
        }
        self.judge(&bytes, limits, ring, store, desk)
    }

    /// Makes the drive empty: a new incarnation voids every frame and page that lies there.
    fn write_superblocks(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
        ring: &mut Ring,
        store: &mut Store,
        desk: &mut Desk,
    ) {
        let former = Superblock::newest(bytes);
        let formatted = former.map_or(0, |former| former.formatted) + 1;
        let salt = former.map_or(u64::from(crc32c(bytes)), |former| former.incarnation);
        let incarnation = spread(salt.wrapping_add(formatted) ^ u64::from(desk.drive.0) << 40);
        let superblock = Superblock { drive: desk.drive, geometry: self.geometry, incarnation, formatted };
        let write =
            DriveWork::Write { offset: 0, pieces: vec![superblock.encode()], durable: true, awaited: false };
        desk.submit(Area::Data, write, Work::Format);
        *ring = Ring::empty(self.geometry.log, incarnation, limits);
        *store = Store::empty(self.geometry.data, incarnation, limits.shared_entries_max);
        self.step = Step::Format;
    }

    fn judge(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
        ring: &mut Ring,
        store: &mut Store,
        desk: &mut Desk,
    ) -> Progress {
        let superblock = match Superblock::newest(bytes) {
            Ok(superblock) => superblock,
            Err(SuperblockFault::NotSound) => return Progress::Failed(DriveTrouble::NoSuperblock),
            Err(SuperblockFault::OtherVersion(_)) => return Progress::Failed(DriveTrouble::OtherFormat),
        };
        if superblock.drive != desk.drive {
            return Progress::Failed(DriveTrouble::OtherDrive(superblock.drive));
        }
        if self.incarnation.is_some_and(|meant| meant != superblock.incarnation) {
            return Progress::Failed(DriveTrouble::OtherLife);
        }
        if superblock.geometry != self.geometry {
            return Progress::Failed(DriveTrouble::OtherGeometry);
        }
        *ring = Ring::empty(self.geometry.log, superblock.incarnation, limits);
        *store = Store::empty(self.geometry.data, superblock.incarnation, limits.shared_entries_max);
        let mut left = 2;
        let whole = superblock.encode();
        if whole.bytes() != bytes {
            let write = DriveWork::Write { offset: 0, pieces: vec![whole], durable: true, awaited: false };
            desk.submit(Area::Data, write, Work::FirstFlush);
            left += 1;
        }
        desk.submit(Area::Data, DriveWork::Flush, Work::FirstFlush);
        desk.submit(Area::Log, DriveWork::Flush, Work::FirstFlush);
        self.step = Step::Flush { left };
        Progress::Waiting
    }

    /// One of the first flushes ended.
    pub fn on_first_flush(&mut self, ring: &Ring, store: &Store, desk: &mut Desk) -> Progress {
        let Step::Flush { left } = &mut self.step else {
            unreachable!("these flushes end before anything else begins");
        };
        *left -= 1;
        if *left == 0 {
            let block = BLOCK as u64;
            let sweeps = Sweeps {
                log: Sweep::begin(Area::Log, 0, ring.blocks * block, desk),
                scan: RingScan::new(desk.drive, ring.incarnation),
                data: Sweep::begin(Area::Data, store.layout.table * block, store.layout.units * block, desk),
                table: TableLoad::default(),
            };
            self.step = Step::Sweep(Box::new(sweeps));
        }
        Progress::Waiting
    }

    /// A part of an area was read; None if it could not be.
    #[expect(clippy::too_many_arguments, reason = "a read and where it belongs")]
    pub fn on_sweep(
        &mut self,
        now: Time,
        area: Area,
        offset: u64,
        len: u32,
        read: Option<Buffer>,
        ring: &mut Ring,
        store: &mut Store,
        desk: &mut Desk,
    ) -> Progress {
        let sweeps = match &mut self.step {
            Step::Sweep(sweeps) => sweeps,
            Step::Doubts(doubts) => {
                return if doubts.log.on_read(offset, len, read, desk) {
                    self.clear_doubts(now, ring, store, desk)
                } else {
                    Progress::Waiting
                };
            }
            _ => unreachable!("areas are read after the flushes"),
        };
        match area {
            Area::Log => sweeps.log.on_read(offset, len, read, desk),
            Area::Data => sweeps.data.on_read(offset, len, read, desk),
        }
        while let Some((offset, bytes)) = sweeps.log.next(desk) {
            sweeps.scan.feed(offset / BLOCK as u64, bytes.bytes());
        }
        while let Some((offset, bytes)) = sweeps.data.next(desk) {
            sweeps.table.feed(store, offset, bytes.bytes());
        }
        if !sweeps.log.is_done() || !sweeps.data.is_done() {
            return Progress::Waiting;
        }
        let Step::Sweep(sweeps) = std::mem::replace(&mut self.step, Step::FirstFrame) else {
            unreachable!("just seen");
        };
        let Sweeps { log, scan, data, mut table } = *sweeps;
        data.unreadable().iter().for_each(|offset| table.doubt(store, *offset));
        let log = SecondLook::new(scan, log.unreadable(), ring);
        let (unread, bad) = (Vec::new(), Vec::new());
        let mut doubts = Doubts { log, table, unread, bad, refused: 0, looks: Looks::default() };
        let nothing_to_read = doubts.log.begin(desk);
        self.step = Step::Doubts(Box::new(doubts));
        if nothing_to_read { self.clear_doubts(now, ring, store, desk) } else { Progress::Waiting }
    }

    /// Reads the next doubtful page again. When there is none, what was found is what there is, unless something is to be looked at
    /// once more.
    pub fn clear_doubts(
        &mut self,
        now: Time,
        ring: &mut Ring,
        store: &mut Store,
        desk: &mut Desk,
    ) -> Progress {
        let Step::Doubts(doubts) = &mut self.step else { unreachable!("doubts follow the sweep") };
        // A drive that refuses so much takes its time for each refusal: this look has told what it can.
        if doubts.unread.len() > REFUSED_MAX {
            doubts.unread.extend(std::iter::from_fn(|| doubts.table.next_doubtful()));
        }
        if doubts.refused > REFUSED_MAX {
            return Progress::Failed(DriveTrouble::TableDamaged);
        }
        if let Some(slot) = doubts.table.next_doubtful() {
            let read = DriveWork::Read { offset: store.layout.page_offset(slot), len: BLOCK as u32 };
            desk.submit(Area::Data, read, Work::Doubtful { slot });
            return Progress::Waiting;
        }
        if (doubts.log.is_unread() || !doubts.unread.is_empty()) && doubts.looks.wait(now) {
            return Progress::Waiting;
        }
        if doubts.bad.len() > DOUBTS_MAX {
            return Progress::Failed(DriveTrouble::TableDamaged);
        }
        if let Some(slot) = doubts.bad.pop() {
            let offset = store.layout.page_offset(slot);
            desk.notice(Notice::Damage { drive: desk.drive, damage: Damage::Table { offset } });
            let write =
                DriveWork::Write { offset, pieces: vec![zeros(BLOCK)], durable: true, awaited: false };
            desk.submit(Area::Data, write, Work::Erased);
            return Progress::Waiting;
        }
        let Step::Doubts(doubts) = std::mem::replace(&mut self.step, Step::FirstFrame) else {
            unreachable!("just seen");
        };
        doubts.table.finish(store, desk);
        let replayed = ring.replay(&doubts.log.finish());
        for offset in replayed.damage {
            desk.notice(Notice::Damage { drive: desk.drive, damage: Damage::Log { offset } });
        }
        if ring.write_first(replayed.dropped, desk) { Progress::Waiting } else { Progress::Ready }
    }

    /// When to look again at what could not be read.
    pub fn wake_at(&self) -> Option<Time> {
        match &self.step {
            Step::Superblock(superblocks) => superblocks.looks.again_at,
            Step::Doubts(doubts) => doubts.looks.again_at,
            _ => None,
        }
    }

    /// The time has come, or another.
    pub fn on_wake(&mut self, now: Time, ring: &mut Ring, store: &mut Store, desk: &mut Desk) -> Progress {
        let doubts = match &mut self.step {
            Step::Superblock(superblocks) => {
                if superblocks.looks.is_due(now) {
                    *superblocks = Superblocks::begin(superblocks.looks, desk);
                }
                return Progress::Waiting;
            }
            Step::Doubts(doubts) => doubts,
            _ => return Progress::Waiting,
        };
        if !doubts.looks.is_due(now) {
            return Progress::Waiting;
        }
        doubts.table.doubt_slots(std::mem::take(&mut doubts.unread));
        if doubts.log.begin_again(desk) {
            self.clear_doubts(now, ring, store, desk)
        } else {
            Progress::Waiting
        }
    }

    /// A doubtful page was read again; None if it could not be. What is sound now is what lies there. What is not is erased before
    /// anything is put on the drive: nobody knows which blocks it names, and were it sound once more at a later opening,
    /// it would name what is another's by then.
    pub fn on_read_again(
        &mut self,
        now: Time,
        slot: u32,
        read: Option<Buffer>,
        ring: &mut Ring,
        store: &mut Store,
        desk: &mut Desk,
    ) -> Progress {
        let Step::Doubts(doubts) = &mut self.step else { unreachable!("doubts follow the sweep") };
        let offset = store.layout.page_offset(slot);
        match &read {
            Some(read) => {
                doubts.table.feed(store, offset, read.bytes());
                if !doubts.table.takes_back(slot) {
                    return self.clear_doubts(now, ring, store, desk);
                }
            }
            None if !doubts.looks.is_last() => {
                doubts.unread.push(slot);
                return self.clear_doubts(now, ring, store, desk);
            }
            None => doubts.refused += 1,
        }
        doubts.bad.push(slot);
        self.clear_doubts(now, ring, store, desk)
    }

    /// A frame was written, which can only be one of the first of the session.
    pub fn on_first_frame(&mut self, now: Time, number: u64, ring: &mut Ring, desk: &mut Desk) -> Progress {
        assert!(matches!(self.step, Step::FirstFrame), "only the first frame is written while opening");
        ring.on_frame_written(now, number, desk);
        if ring.write_first(false, desk) { Progress::Waiting } else { Progress::Ready }
    }

    /// The superblocks of an empty drive are written.
    pub fn on_formatted(&self) -> Progress {
        assert!(matches!(self.step, Step::Format), "superblocks are written by formatting");
        Progress::Ready
    }
}

/// The finaliser of SplitMix64: inputs that differ in one bit give outputs that look unrelated.
fn spread(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
