//! Drive operations in flight: from what the engine wants to entries of the ring, and back.
//! Promises: every operation ends exactly once; what the kernel works on stays in memory until then; short transfers
//! are continued, so the engine sees only whole ones.
//! Leaves to others: order between operations (the engine), opening drives (`drives`).

mod probes;

use super::News;
use super::arena::{Arena, Space};
use super::crowd::Crowd;
use super::files::{DriveFile, Files, Named};
use super::hangs::Hangs;
use super::pieces::Pieces;
use super::ring::Ring;
use super::slow::Pace;
use super::statistics::DriveStatistics;
use crate::drives::{AreaFile, OpenDrive};
use io_uring::{opcode, squeue, types};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use weft_engine::buffer::{BLOCK, Buffer};
use weft_engine::interface::{Area, DriveFault, DriveOperation, DriveResult, DriveWork, Input};
use weft_engine::stages::{Stage, Stages};
use weft_engine::{DriveId, Time};

/// Pieces handed to the kernel in one call at most (IOV_MAX).
const PIECES_MAX: usize = 1024;

/// While clients wait for the log of a drive, large writes to its other area go there in pieces of this size: what is handed
/// over as one lies in the drive's queue as one, and the next frame of the log behind it.
const STRIDE: usize = 256 << 10;

/// Pages of a table that are erased at a drive at a time.
const ERASES_MAX: usize = 16;

/// `BLOCK_URING_CMD_DISCARD`, `_IO(0x12, 0)`.
const DISCARD_COMMAND: u32 = 0x1200;

/// `FALLOC_FL_NO_HIDE_STALE`: with it a hole in a device is a discard, and not zeros, which a device may take for a write.
const NO_HIDE_STALE: i32 = 4;

const STAY: &str = "drives are never taken away";

/// What the kernel has no memory for is tried again after this time.
const AGAIN_US: u64 = 10_000;

/// So long after the last frame of the log clients are taken to wait for the next one.
const LOG_IS_USED_US: u64 = 5_000;

/// The drives of this shard and what they are doing.
pub struct DriveTable {
    drives: BTreeMap<DriveId, Attached>,
    flights: Vec<Option<Flight>>,
    /// Places in front are used first, so that those behind them become free.
    free: BinaryHeap<Reverse<u32>>,
    /// What the kernel had no memory for, and when it is tried again.
    again: VecDeque<(Time, u32)>,
    /// Tells entries of drives from others in the ring.
    tag: u64,
    files: Files,
    durable_writes: usize,
    hangs: Hangs,
}

struct Attached {
    open: OpenDrive,
    log: Target,
    data: Target,
    /// When a frame of the log was handed over last.
    log_used: Option<Time>,
    waiting: Waiting,
    pace: Pace,
    statistics: DriveStatistics,
}

/// What has its turn at a drive later.
struct Waiting {
    pieces: Pieces,
    erases: Crowd,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { pieces: Pieces::default(), erases: Crowd::new(ERASES_MAX) }
    }
}

impl Waiting {
    /// Whether flight `index` goes to the drive now; otherwise it has its turn later.
    fn begin(&mut self, turn: Turn, index: u32) -> bool {
        match turn {
            Turn::Alone => true,
            Turn::Piece => self.pieces.begin(index),
            Turn::Erase => self.erases.begin(index),
        }
    }

    /// What flight `index` had at the drive ended after `us`; it has more or not.
    fn end(&mut self, turn: Turn, index: u32, has_more: bool, us: u64) {
        match turn {
            Turn::Alone => {}
            Turn::Piece => self.pieces.end(index, has_more, us),
            Turn::Erase => self.erases.end(),
        }
    }

    fn take_next(&mut self, turn: Turn) -> Option<u32> {
        match turn {
            Turn::Alone => None,
            Turn::Piece => self.pieces.take_next(),
            Turn::Erase => self.erases.take_next(),
        }
    }
}

/// With what a flight shares the drive, if it does not go there at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Alone,
    Piece,
    Erase,
}

/// Where an area's bytes are.
#[derive(Clone)]
struct Target {
    file: Arc<DriveFile>,
    base: u64,
}

struct Flight {
    /// None: it was asked only to see how long it takes.
    token: Option<u64>,
    drive: DriveId,
    stage: Stage,
    began: Time,
    /// When the kernel got it, or last did a part of it.
    since: Time,
    /// The drive has nothing of it, because others have their turn.
    waits: bool,
    /// As what the kernel got it last.
    turn: Turn,
    target: Target,
    work: Work,
}

enum Work {
    Read { space: Space, offset: u64, len: u32, done: u32 },
    Write { pieces: Vec<Buffer>, rest: Vec<libc::iovec>, first: usize, offset: u64, flags: i32 },
    Flush,
    Discard { offset: u64, len: u64, way: Way },
}

/// How the kernel is asked to discard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Since Linux 6.12 ...
    Command,
    /// ... and before.
    Hole,
    /// In vain.
    Unknown,
}

// SAFETY: the pointers in `rest` point into `pieces`, which travel with them.
unsafe impl Send for Work {}

impl DriveTable {
    pub fn new(tag: u64) -> Self {
        Self {
            drives: BTreeMap::new(),
            flights: Vec::new(),
            free: BinaryHeap::new(),
            again: VecDeque::new(),
            tag,
            files: Files::new(),
            durable_writes: 0,
            hangs: Hangs::default(),
        }
    }

    /// Operations that have not ended.
    pub fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// Whether a write is in flight that ends only when it is on the drive.
    pub fn has_durable_write(&self) -> bool {
        self.durable_writes > 0
    }

    pub fn statistics(&self) -> BTreeMap<DriveId, DriveStatistics> {
        self.drives.iter().map(|(&drive, attached)| (drive, attached.statistics.clone())).collect()
    }

    /// From now on operations may name this drive. A drive opened again gets its new files; what is under way ends at the old ones.
    pub fn add(&mut self, open: OpenDrive, ring: &Ring) {
        let mut target = |area: &AreaFile| {
            let file = self.files.add(Arc::clone(&area.file), ring);
            Target { file, base: area.offset }
        };
        let (log, data) = (target(&open.log), target(&open.data));
        let before = self.drives.remove(&open.drive);
        // What waits of a drive that is opened again still has its turn, and what is in flight still ends.
        let (waiting, pace) = before.map_or_else(Default::default, |before| {
            self.files.remove(before.log.file);
            self.files.remove(before.data.file);
            (before.waiting, before.pace)
        });
        self.files.release(ring);
        let (log_used, statistics) = (None, DriveStatistics::default());
        self.drives.insert(open.drive, Attached { open, log, data, log_used, waiting, pace, statistics });
    }

    /// Queues an operation. What ends at once (a drive that is not there) is given back.
    pub fn start(
        &mut self,
        now: Time,
        operation: DriveOperation,
        reads: &Arc<Arena>,
        ring: &mut Ring,
    ) -> Option<Input> {
        let DriveOperation { token, drive, area, work } = operation;
        let Some(attached) = self.drives.get_mut(&drive) else {
            return Some(Input::DriveDone { token, result: Err(DriveFault::Gone) });
        };
        let (target, end) = match area {
            Area::Log => (attached.log.clone(), attached.open.geometry.log),
            Area::Data => (attached.data.clone(), attached.open.geometry.data),
        };
        let inside = |offset: u64, len: u64| {
            assert!(offset.is_multiple_of(4096) && len.is_multiple_of(4096), "drives work in whole blocks");
            assert!(
                offset.checked_add(len).is_some_and(|last| last <= end),
                "operations stay inside their area"
            );
            offset + target.base
        };
        let statistics = &mut attached.statistics;
        let work = match work {
            DriveWork::Read { offset, len } => {
                statistics.reads += 1;
                statistics.read_bytes += u64::from(len);
                let offset = inside(offset, u64::from(len));
                Work::Read { space: reads.take(len as usize), offset, len, done: 0 }
            }
            DriveWork::Write { offset, pieces, durable } => {
                let rest = vectors(&pieces, if area == Area::Data { STRIDE } else { usize::MAX });
                let bytes: usize = rest.iter().map(|piece| piece.iov_len).sum();
                statistics.writes += 1;
                statistics.write_bytes += bytes as u64;
                let offset = inside(offset, bytes as u64);
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                self.durable_writes += usize::from(durable);
                if area == Area::Log {
                    attached.log_used = Some(now);
                }
                Work::Write { pieces, rest, first: 0, offset, flags }
            }
            DriveWork::Flush => {
                statistics.flushes += 1;
                Work::Flush
            }
            DriveWork::Discard { offset, len } => {
                if !attached.open.takes_discards {
                    return Some(Input::DriveDone { token, result: Ok(DriveResult::Ignored) });
                }
                statistics.discards += 1;
                Work::Discard { offset: inside(offset, len), len, way: Way::Command }
            }
        };
        let stage = match (&work, area) {
            (Work::Read { .. }, _) => Stage::DriveRead,
            (Work::Write { .. }, Area::Log) => Stage::DriveLog,
            (Work::Write { .. }, Area::Data) => Stage::DriveWrite,
            (Work::Flush, _) => Stage::DriveFlush,
            (Work::Discard { .. }, _) => Stage::DriveDiscard,
        };
        self.launch(Flight::new(now, Some(token), drive, stage, target, work), ring);
        None
    }

    fn launch(&mut self, flight: Flight, ring: &mut Ring) {
        let now = flight.began;
        let pace = &mut self.drives.get_mut(&flight.drive).expect(STAY).pace;
        pace.begin(now, flight.stage == Stage::DriveDiscard);
        self.hangs.begin(now);
        let index = self.free.pop().map_or_else(
            || {
                self.flights.push(None);
                (self.flights.len() - 1) as u32
            },
            |Reverse(index)| index,
        );
        self.flights[index as usize] = Some(flight);
        self.submit(now, index, ring);
    }

    /// The entry for flight `index` ended with `result`. None: it goes on.
    pub fn on_completed(
        &mut self,
        now: Time,
        index: u32,
        result: i32,
        stages: &mut Stages,
        ring: &mut Ring,
    ) -> Option<Input> {
        let flight = self.flights[index as usize].as_mut().expect("a completion belongs to a flight");
        let progress = flight.advance(result);
        let (drive, turn, us) = (flight.drive, flight.turn, now.since(flight.since));
        let mut has_ended = false;
        let input = match progress {
            Progress::GoOn if turn == Turn::Piece => {
                flight.waits = true;
                None
            }
            Progress::GoOn if turn == Turn::Alone => {
                self.submit(now, index, ring);
                return None;
            }
            Progress::GoOn => {
                self.hand_over(now, index, turn, ring);
                return None;
            }
            Progress::Again => {
                self.again.push_back((now.after(AGAIN_US), index));
                return None;
            }
            Progress::Ended(result) => {
                has_ended = true;
                let input = self.end(now, index, result, stages);
                self.files.release(ring);
                input
            }
        };
        if turn != Turn::Alone {
            let waiting = &mut self.drives.get_mut(&drive).expect(STAY).waiting;
            waiting.end(turn, index, !has_ended, us);
            while let Some(next) = self.drives.get_mut(&drive).expect(STAY).waiting.take_next(turn) {
                self.hand_over(now, next, turn, ring);
            }
        }
        input
    }

    fn end(
        &mut self,
        now: Time,
        index: u32,
        result: Result<(), DriveFault>,
        stages: &mut Stages,
    ) -> Option<Input> {
        let flight = self.flights[index as usize].take().expect("the flight was just looked at");
        self.free.push(Reverse(index));
        if let Work::Write { flags, .. } = flight.work {
            self.durable_writes -= usize::from(flags != 0);
        }
        let attached = self.drives.get_mut(&flight.drive).expect(STAY);
        let Some(token) = flight.token else {
            match result {
                Ok(()) => attached.pace.end(now, false, flight.work.bytes()),
                Err(_) => attached.pace.probe_failed(now),
            }
            return None;
        };
        if result.is_ok() {
            stages.record_us(flight.stage, now.since(flight.began));
        }
        attached.pace.end(now, flight.stage == Stage::DriveDiscard, flight.work.bytes());
        if let Err(fault) = &result {
            attached.statistics.faults += 1;
            tracing::warn!(drive = flight.drive.0, ?fault, "a drive operation failed");
        }
        let result = result.map(|()| match flight.work {
            Work::Read { space, len, .. } => DriveResult::Read(space.freeze(len as usize)),
            Work::Discard { way: Way::Unknown, .. } => {
                attached.open.takes_discards = false;
                DriveResult::Ignored
            }
            Work::Write { .. } | Work::Flush | Work::Discard { .. } => DriveResult::Done,
        });
        Some(Input::DriveDone { token, result })
    }

    /// When drives that hang are to be looked for, or something is to be tried again.
    pub fn wake_at(&self) -> Option<Time> {
        let again = self.again.front().map(|(at, _)| *at);
        self.hangs.look_at().into_iter().chain(again).min()
    }

    /// Tells which drives hang or are slow, and which are not any more. To be called when all that has ended was taken.
    pub fn on_time(&mut self, now: Time, ring: &mut Ring, mut tell: impl FnMut(News)) {
        while let Some((_, index)) = self.again.pop_front_if(|(at, _)| *at <= now) {
            let flight = self.flights[index as usize].as_ref().expect("what is tried again has not ended");
            let (since, turn) = (flight.since, flight.turn);
            self.hand_over(now, index, turn, ring);
            // Nothing of it was done: if memory stays short, others are not to wait for this drive.
            self.flights[index as usize].as_mut().expect("it was just handed over").since = since;
        }
        if self.hangs.is_due(now) {
            self.forget_free_places();
            let late_us = self.hangs.late_us(now);
            // What waits for its turn was not asked of the drive, and a hint may take its time.
            let is_asked = |flight: &&Flight| !flight.waits && flight.stage != Stage::DriveDiscard;
            let in_flight = self.flights.iter().flatten().filter(is_asked);
            self.hangs.look(now, in_flight.map(|flight| (flight.drive, flight.since)), &mut tell);
            for (&drive, attached) in &mut self.drives {
                if let Some(slow) = attached.pace.look(now, late_us) {
                    tell(News::DriveSlow { drive, slow });
                }
            }
        }
    }

    /// Gives back the places behind the last one in use: looks do not cost for ever what was once in flight.
    fn forget_free_places(&mut self) {
        while self.flights.pop_if(|place| place.is_none()).is_some() {}
        self.free.retain(|Reverse(index)| (*index as usize) < self.flights.len());
    }

    /// Hands a flight over, or lets it wait for its turn.
    fn submit(&mut self, now: Time, index: u32, ring: &mut Ring) {
        let flight = self.flights[index as usize].as_mut().expect("what is submitted is in the table");
        let Attached { log_used, waiting, .. } = self.drives.get_mut(&flight.drive).expect(STAY);
        let is_log_used = log_used.is_some_and(|at| now.since(at) < LOG_IS_USED_US);
        let turn = match flight.stage {
            Stage::DriveWrite if flight.work.erases() => Turn::Erase,
            Stage::DriveWrite if is_log_used => Turn::Piece,
            _ => Turn::Alone,
        };
        if waiting.begin(turn, index) {
            self.hand_over(now, index, turn, ring);
        } else {
            flight.waits = true;
        }
    }

    fn hand_over(&mut self, now: Time, index: u32, turn: Turn, ring: &mut Ring) {
        let flight = self.flights[index as usize].as_mut().expect("what is handed over is in the table");
        (flight.since, flight.turn, flight.waits) = (now, turn, false);
        let bytes = if turn == Turn::Piece { STRIDE } else { usize::MAX };
        let entry = flight.entry(bytes).user_data(self.tag | u64::from(index));
        // SAFETY: everything the entry points to is in the flight, on the heap, and stays in the table until the
        // completion has been taken; so is the file.
        unsafe { ring.push(entry) };
    }
}

impl Flight {
    fn new(now: Time, token: Option<u64>, drive: DriveId, stage: Stage, target: Target, work: Work) -> Self {
        Self { token, drive, stage, began: now, since: now, waits: false, turn: Turn::Alone, target, work }
    }
}

impl Work {
    /// As many as are moved to the drive or from it.
    fn bytes(&self) -> u64 {
        match self {
            Work::Read { len, .. } => u64::from(*len),
            Work::Write { pieces, .. } => pieces.iter().map(|piece| piece.len() as u64).sum(),
            Work::Flush | Work::Discard { .. } => 0,
        }
    }

    /// A block of zeros: nobody is told before all of them are written and flushed, so it may take its time.
    fn erases(&self) -> bool {
        let Work::Write { pieces, .. } = self else { return false };
        matches!(pieces.as_slice(), [block] if block.len() == ZEROS.len() && *block.bytes() == ZEROS)
    }
}

/// As a page of a table is erased.
static ZEROS: [u8; BLOCK] = [0; BLOCK];

/// Pieces as the kernel wants them; neighbours in memory become one, of `longest` bytes at most.
fn vectors(pieces: &[Buffer], longest: usize) -> Vec<libc::iovec> {
    let mut vectors: Vec<libc::iovec> = Vec::with_capacity(pieces.len());
    for part in pieces.iter().flat_map(|piece| piece.bytes().chunks(longest)) {
        let (base, len) = (part.as_ptr(), part.len());
        match vectors.last_mut() {
            Some(last)
                if last.iov_base.cast_const().wrapping_byte_add(last.iov_len) == base.cast()
                    && last.iov_len <= longest - len =>
            {
                last.iov_len += len;
            }
            _ => vectors.push(libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len }),
        }
    }
    vectors
}

/// How many of these are handed over in one call: `bytes` in all, or one.
fn vectors_in(left: &[libc::iovec], bytes: usize) -> usize {
    let mut sum = 0_usize;
    let fits = |vector: &&libc::iovec| {
        sum = sum.saturating_add(vector.iov_len);
        sum <= bytes
    };
    left.iter().take(PIECES_MAX).take_while(fits).count().max(1)
}

enum Progress {
    GoOn,
    /// Not now: later.
    Again,
    Ended(Result<(), DriveFault>),
}

impl Flight {
    /// The entry for what is left to do; of a write, so many bytes at most.
    fn entry(&mut self, write_max: usize) -> squeue::Entry {
        macro_rules! with_file {
            ($file:ident => $build:expr) => {
                match self.target.file.named() {
                    Named::Number($file) => $build,
                    Named::File($file) => $build,
                }
            };
        }
        match &mut self.work {
            Work::Read { space, offset, len, done } => {
                let registered = space.registered();
                let bytes = &mut space.bytes_mut()[*done as usize..*len as usize];
                let (start, count, at) = (bytes.as_mut_ptr(), *len - *done, *offset + u64::from(*done));
                match registered {
                    Some(number) => with_file!(file =>
                        opcode::ReadFixed::new(file, start, count, number).offset(at).build()),
                    None => with_file!(file => opcode::Read::new(file, start, count).offset(at).build()),
                }
            }
            Work::Write { pieces, rest, first, offset, flags } => {
                let left = &rest[*first..];
                let is_one = pieces.len() == 1 && rest.len() == 1;
                let registered = if is_one { pieces[0].registered() } else { None };
                match registered {
                    Some(number) => {
                        let (start, count) = (left[0].iov_base as *const u8, left[0].iov_len as u32);
                        with_file!(file => opcode::WriteFixed::new(file, start, count, number)
                            .offset(*offset).rw_flags(*flags).build())
                    }
                    None => {
                        let count = vectors_in(left, write_max) as u32;
                        with_file!(file => opcode::Writev::new(file, left.as_ptr(), count)
                            .offset(*offset).rw_flags(*flags).build())
                    }
                }
            }
            Work::Flush => {
                with_file!(file => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build())
            }
            Work::Discard { offset, len, way: Way::Command } => {
                let mut command = [0; 16];
                command[..8].copy_from_slice(&len.to_ne_bytes());
                with_file!(file => opcode::UringCmd16::new(file, DISCARD_COMMAND)
                    .addr(Some(*offset)).cmd(command).build())
            }
            Work::Discard { offset, len, way: _ } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE | NO_HIDE_STALE;
                with_file!(file => opcode::Fallocate::new(file, *len).offset(*offset).mode(mode).build())
            }
        }
    }

    fn advance(&mut self, result: i32) -> Progress {
        if result == -libc::EINTR || result == -libc::EAGAIN {
            return Progress::GoOn;
        }
        // That memory is short says nothing of the drive. A flush that failed cannot be repeated: what it did not write may be
        // taken for written by then.
        let is_repeatable = matches!(self.work, Work::Read { .. } | Work::Write { .. });
        if is_repeatable && (result == -libc::ENOMEM || result == -libc::ENOBUFS) {
            return Progress::Again;
        }
        match &mut self.work {
            Work::Read { len, done, .. } => match result {
                // The file is shorter than it was: the drive has lost its end.
                0 => Progress::Ended(Err(DriveFault::Unreadable)),
                count if count > 0 => {
                    *done += count as u32;
                    assert!(*done <= *len, "no more is read than was asked for");
                    if *done == *len { Progress::Ended(Ok(())) } else { Progress::GoOn }
                }
                error => Progress::Ended(Err(fault(-error))),
            },
            Work::Write { rest, first, offset, .. } => match result {
                0 => Progress::Ended(Err(DriveFault::Gone)),
                count if count > 0 => {
                    let mut count = count as usize;
                    *offset += count as u64;
                    while *first < rest.len() && count >= rest[*first].iov_len {
                        count -= rest[*first].iov_len;
                        *first += 1;
                    }
                    if *first == rest.len() {
                        assert!(count == 0, "no more is written than was asked for");
                        return Progress::Ended(Ok(()));
                    }
                    rest[*first].iov_base = rest[*first].iov_base.wrapping_byte_add(count);
                    rest[*first].iov_len -= count;
                    Progress::GoOn
                }
                // A drive that cannot be written is no use any more, whatever the reason; a file system under
                // file-backed drives that has run full counts as that too.
                error => {
                    tracing::error!(drive = self.drive.0, error = -error, "a drive refuses to be written");
                    Progress::Ended(Err(DriveFault::Gone))
                }
            },
            Work::Flush if result < 0 => {
                tracing::error!(drive = self.drive.0, error = -result, "a drive refuses to flush");
                Progress::Ended(Err(DriveFault::Gone))
            }
            Work::Discard { way, .. } if *way == Way::Command && is_unknown(result) => {
                *way = Way::Hole;
                Progress::GoOn
            }
            Work::Discard { way, .. } if is_unknown(result) => {
                *way = Way::Unknown;
                Progress::Ended(Ok(()))
            }
            // A discard is a hint, also when it fails.
            Work::Flush | Work::Discard { .. } => Progress::Ended(Ok(())),
        }
    }
}

/// Whether the kernel or the drive does not know what it was asked for.
fn is_unknown(result: i32) -> bool {
    [libc::EOPNOTSUPP, libc::ENOTTY, libc::EINVAL].contains(&-result)
}

/// What a read that failed says of its drive.
fn fault(error: i32) -> DriveFault {
    match error {
        libc::EIO | libc::EILSEQ | libc::ENODATA | libc::EREMOTEIO | libc::EBADMSG | libc::EUCLEAN => {
            DriveFault::Unreadable
        }
        // The drive took too long over this sector, or a way to it was in use or cut: the next read may be well.
        libc::ETIMEDOUT | libc::ETIME | libc::EBUSY | libc::ENOLINK => DriveFault::Unreadable,
        _ => DriveFault::Gone,
    }
}

#[cfg(test)]
mod tests;
