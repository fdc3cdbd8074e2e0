//! Drive operations in flight: from what the engine wants to entries of the ring, and back.
//! Promises: every operation ends exactly once; what the kernel works on stays in memory until then; short transfers
//! are continued, so the engine sees only whole ones.
//! Leaves to others: order between operations (the engine), opening drives (`drives`), what one operation is to the kernel (`flight`).

mod flight;
mod probes;

use super::News;
use super::arena::Arena;
use super::crowd::Crowd;
use super::files::Files;
use super::hangs::Hangs;
use super::pieces::Pieces;
use super::readers::Readers;
use super::ring::Ring;
use super::slow::Pace;
use super::statistics::DriveStatistics;
use crate::drives::{AreaFile, OpenDrive};
use flight::{Flight, Progress, Target, Way, Work, vectors};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use weft_engine::interface::{Area, DriveFault, DriveOperation, DriveResult, DriveWork, Input};
use weft_engine::stages::{Stage, Stages};
use weft_engine::{DriveId, Time};

/// While clients wait for the log of a drive, or read from it, large writes to its other area go there in pieces of this size: what is
/// handed over as one lies in the drive's queue as one, and the next frame of the log, or the next read, behind it.
const STRIDE: usize = 256 << 10;

/// Pages of a table that are erased at a drive at a time.
const ERASES_MAX: usize = 16;

/// A hint may take so much longer than other things before its drive hangs.
const HINT_US: u64 = 60_000_000;

const STAY: &str = "drives are never taken away";

/// What the kernel has no memory for is tried again after this time.
const AGAIN_US: u64 = 10_000;

/// So long after the last small writes of clients they are taken to wait for the next ones.
const AWAITED_US: u64 = 5_000;

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
    /// When clients' small writes were handed over last.
    awaited: Option<Time>,
    readers: Readers,
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
        let (awaited, readers, statistics) = (None, Readers::default(), DriveStatistics::default());
        let attached = Attached { open, log, data, awaited, readers, waiting, pace, statistics };
        self.drives.insert(attached.open.drive, attached);
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
                if area == Area::Data {
                    attached.readers.note_read();
                }
                let offset = inside(offset, u64::from(len));
                Work::Read { space: reads.take(len as usize), offset, len, done: 0 }
            }
            DriveWork::Write { offset, pieces, durable, awaited } => {
                let rest = vectors(&pieces, if area == Area::Data { STRIDE } else { usize::MAX });
                let bytes: usize = rest.iter().map(|piece| piece.iov_len).sum();
                statistics.writes += 1;
                statistics.write_bytes += bytes as u64;
                let offset = inside(offset, bytes as u64);
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                self.durable_writes += usize::from(durable);
                if awaited {
                    attached.awaited = Some(now);
                }
                if area == Area::Data {
                    attached.readers.note_write(bytes);
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
            Work::Discard { way: Way::Refused, .. } => {
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
            // What waits for its turn was not asked of the drive.
            let in_flight = self.flights.iter().flatten().filter(|flight| !flight.waits);
            let since = |flight: &Flight| match flight.stage {
                Stage::DriveDiscard => flight.since.after(HINT_US),
                _ => flight.since,
            };
            self.hangs.look(now, in_flight.map(|flight| (flight.drive, since(flight))), &mut tell);
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
        let Attached { awaited, readers, waiting, .. } = self.drives.get_mut(&flight.drive).expect(STAY);
        let is_awaited = awaited.is_some_and(|at| now.since(at) < AWAITED_US);
        let turn = match flight.stage {
            Stage::DriveWrite if flight.work.erases() => Turn::Erase,
            Stage::DriveWrite if is_awaited || readers.are_there() => Turn::Piece,
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

#[cfg(test)]
mod tests;
