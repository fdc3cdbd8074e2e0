//! Opening a drive: superblock, then everything that lies on it, then once more what of the table was not sound, then the
//! first frame of the session if frames were dropped; or formatting it. Nothing is answered before the end.

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
use crate::keeper::sweep::Sweep;
use crate::limits::Limits;

/// A drive with more pages that are not sound is not to be trusted with erasing them: it may give them all tomorrow.
const DOUBTS_MAX: usize = 64;

pub(super) struct Opening {
    geometry: Geometry,
    format: bool,
    step: Step,
}

enum Step {
    /// Reading the superblocks; `left` of them one by one.
    Superblock { bytes: Vec<u8>, left: usize },
    /// Writing the superblocks of an empty drive.
    Format,
    /// What is found may be in the drive's cache only, if a process ended but not the machine: flushes (and
    /// repairs of a superblock) that have not ended.
    Flush { left: usize },
    /// Reading the ring and the table.
    Sweep(Box<Sweeps>),
    /// Reading, or erasing, pages of the table that were not sound, one after the other.
    Doubts(Box<Sweeps>),
    /// Writing the first frame of the session.
    FirstFrame,
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
    pub fn begin(geometry: Geometry, format: bool, desk: &mut Desk) -> Self {
        let read = DriveWork::Read { offset: 0, len: (COPIES * BLOCK) as u32 };
        desk.submit(Area::Data, read, Work::Superblock { copy: None });
        Self { geometry, format, step: Step::Superblock { bytes: vec![0; COPIES * BLOCK], left: 1 } }
    }

    /// Superblocks were read: both, or one; None if that was not possible.
    pub fn on_superblock(
        &mut self,
        copy: Option<usize>,
        read: Option<Buffer>,
        limits: &Limits,
        ring: &mut Ring,
        store: &mut Store,
        desk: &mut Desk,
    ) -> Progress {
        let Step::Superblock { bytes, left } = &mut self.step else {
            unreachable!("superblocks are read first");
        };
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
            (Some(_), None) => {}
        }
        *left -= 1;
        if *left > 0 {
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
        let write = DriveWork::Write { offset: 0, pieces: vec![superblock.encode()], durable: true };
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
        if superblock.geometry != self.geometry {
            return Progress::Failed(DriveTrouble::OtherGeometry);
        }
        *ring = Ring::empty(self.geometry.log, superblock.incarnation, limits);
        *store = Store::empty(self.geometry.data, superblock.incarnation, limits.shared_entries_max);
        let mut left = 2;
        let whole = superblock.encode();
        if whole.bytes() != bytes {
            let write = DriveWork::Write { offset: 0, pieces: vec![whole], durable: true };
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
        area: Area,
        offset: u64,
        len: u32,
        read: Option<Buffer>,
        ring: &mut Ring,
        store: &mut Store,
        desk: &mut Desk,
    ) -> Progress {
        let Step::Sweep(sweeps) = &mut self.step else { unreachable!("areas are read after the flushes") };
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
        let Step::Sweep(mut sweeps) = std::mem::replace(&mut self.step, Step::FirstFrame) else {
            unreachable!("just seen");
        };
        let Sweeps { data, table, .. } = &mut *sweeps;
        data.unreadable().iter().for_each(|offset| table.doubt(store, *offset));
        if table.doubts() > DOUBTS_MAX {
            return Progress::Failed(DriveTrouble::TableDamaged);
        }
        self.step = Step::Doubts(sweeps);
        self.clear_doubts(ring, store, desk)
    }

    /// Reads the next doubtful page again. When there is none, what was found is what there is.
    pub fn clear_doubts(&mut self, ring: &mut Ring, store: &mut Store, desk: &mut Desk) -> Progress {
        let Step::Doubts(sweeps) = &mut self.step else { unreachable!("doubts follow the sweep") };
        if let Some(slot) = sweeps.table.next_doubtful() {
            let read = DriveWork::Read { offset: store.layout.page_offset(slot), len: BLOCK as u32 };
            desk.submit(Area::Data, read, Work::Doubtful { slot });
            return Progress::Waiting;
        }
        let Step::Doubts(sweeps) = std::mem::replace(&mut self.step, Step::FirstFrame) else {
            unreachable!("just seen");
        };
        sweeps.table.finish(store, desk);
        let replayed = ring.replay(&sweeps.scan.finish());
        for offset in replayed.damage {
            desk.notice(Notice::Damage { drive: desk.drive, damage: Damage::Log { offset } });
        }
        if !replayed.dropped {
            return Progress::Ready;
        }
        ring.write_first(desk);
        Progress::Waiting
    }

    /// A doubtful page was read again; None if it could not be. What is sound now is what lies there. What is not is erased before
    /// anything is put on the drive: nobody knows which blocks it names, and were it sound once more at a later opening,
    /// it would name what is another's by then.
    pub fn on_read_again(
        &mut self,
        slot: u32,
        read: Option<Buffer>,
        ring: &mut Ring,
        store: &mut Store,
        desk: &mut Desk,
    ) -> Progress {
        let Step::Doubts(sweeps) = &mut self.step else { unreachable!("doubts follow the sweep") };
        let offset = store.layout.page_offset(slot);
        if let Some(read) = &read {
            sweeps.table.feed(store, offset, read.bytes());
        }
        if read.is_some() && !sweeps.table.takes_back(slot) {
            return self.clear_doubts(ring, store, desk);
        }
        desk.notice(Notice::Damage { drive: desk.drive, damage: Damage::Table { offset } });
        let write = DriveWork::Write { offset, pieces: vec![zeros(BLOCK)], durable: true };
        desk.submit(Area::Data, write, Work::Erased);
        Progress::Waiting
    }

    /// A frame was written, which can only be the first of the session.
    pub fn on_first_frame(&mut self, now: Time, number: u64, ring: &mut Ring, desk: &mut Desk) -> Progress {
        assert!(matches!(self.step, Step::FirstFrame), "only the first frame is written while opening");
        ring.on_frame_written(now, number, desk);
        Progress::Ready
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
