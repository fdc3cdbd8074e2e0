//! One pretend drive: two areas, what is in flight, and the ways it can fail.
//! Promises: what an operation did is visible when it ends, not before; what was in flight at a cut happened
//! or not, block by block. Leaves to others: what bytes survive (`platter`), when anything fails (`atlas`).

use crate::coverage::{Coverage, Fault};
use crate::platter::{Mood, Platter, flipped, torn};
use rand::Rng;
use rand::rngs::SmallRng;
use weft_engine::buffer::{BLOCK, Buffer};
use weft_engine::interface::{Area, DriveFault, DriveResult, DriveWork, Geometry};

/// An operation on its way.
pub struct Flight {
    pub incarnation: u32,
    pub token: u64,
    pub area: Area,
    pub work: DriveWork,
    /// Of a flush: what it covers.
    mark: u64,
}

/// How often, of 10,000 operations, a drive does something wrong. Only victims have any of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rot {
    pub flip_on_read: u32,
    pub lost_write: u32,
    pub misdirected_write: u32,
}

pub struct Drive {
    pub shard: usize,
    pub geometry: Geometry,
    log: Platter,
    data: Platter,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// How often the power was cut, or the process died: what was in flight before never ends.
    pub cuts: u32,
    pub rot: Rot,
    /// Service time is this many times the usual one.
    pub slowness: u64,
    pub hung_since: u64,
    pub hung_until: u64,
    /// Not there: everything fails.
    pub gone: bool,
}

impl Drive {
    pub fn new(shard: usize, geometry: Geometry) -> Self {
        Self {
            shard,
            geometry,
            log: Platter::new(geometry.log),
            data: Platter::new(geometry.data),
            flights: Vec::new(),
            free: Vec::new(),
            cuts: 0,
            rot: Rot::default(),
            slowness: 1,
            hung_since: 0,
            hung_until: 0,
            gone: false,
        }
    }

    pub fn area(&self, area: Area) -> &Platter {
        match area {
            Area::Log => &self.log,
            Area::Data => &self.data,
        }
    }

    pub fn area_mut(&mut self, area: Area) -> &mut Platter {
        match area {
            Area::Log => &mut self.log,
            Area::Data => &mut self.data,
        }
    }

    /// Takes an operation; the answer names it for [`Drive::end`], and says how long it takes.
    pub fn submit(
        &mut self,
        incarnation: u32,
        token: u64,
        area: Area,
        work: DriveWork,
        rng: &mut SmallRng,
    ) -> (usize, u64) {
        let bytes = self.check(area, &work);
        let is_hint = matches!(work, DriveWork::Discard { .. });
        let mark = if matches!(work, DriveWork::Flush) { self.area(area).flush_mark() } else { 0 };
        let flight = Flight { incarnation, token, area, work, mark };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.flights[slot] = Some(flight);
                slot
            }
            None => {
                self.flights.push(Some(flight));
                self.flights.len() - 1
            }
        };
        // About 50 to 150 microseconds, and 1 GB/s. Hints may take long everywhere.
        let hint_us = if is_hint { rng.random_range(0..20_000) } else { 0 };
        (slot, (rng.random_range(30..150) + bytes / 1000) * self.slowness + hint_us)
    }

    /// Both sides check what crosses the line: whole blocks, inside the area.
    fn check(&self, area: Area, work: &DriveWork) -> u64 {
        let (offset, len) = match work {
            DriveWork::Read { offset, len } => (*offset, u64::from(*len)),
            DriveWork::Write { offset, pieces, .. } => {
                let whole = pieces.iter().all(|piece| piece.len().is_multiple_of(BLOCK) && !piece.is_empty());
                assert!(whole, "a drive takes whole blocks");
                (*offset, pieces.iter().map(|piece| piece.len() as u64).sum())
            }
            DriveWork::Flush => return 0,
            DriveWork::Discard { offset, len } => (*offset, *len),
        };
        let block = BLOCK as u64;
        assert!(
            offset.is_multiple_of(block) && len.is_multiple_of(block) && len > 0,
            "a drive takes whole blocks"
        );
        assert!(
            offset + len <= self.area(area).len() as u64 * block,
            "an operation lies inside its area: {area:?} {offset}+{len}"
        );
        if matches!(work, DriveWork::Discard { .. }) { 0 } else { len }
    }

    /// An operation ends: what it did, and what the drive says.
    pub fn end(
        &mut self,
        slot: usize,
        rng: &mut SmallRng,
        coverage: &mut Coverage,
    ) -> (Flight, Result<DriveResult, DriveFault>) {
        let flight = self.flights[slot].take().expect("an operation ends once");
        self.free.push(slot);
        if self.gone {
            return (flight, Err(DriveFault::Gone));
        }
        let rot = self.rot;
        let platter = match flight.area {
            Area::Log => &mut self.log,
            Area::Data => &mut self.data,
        };
        let result = match &flight.work {
            DriveWork::Read { offset, len } => {
                match platter.read(*offset as usize / BLOCK, *len as usize / BLOCK) {
                    None => {
                        coverage.met(Fault::UnreadableBlock);
                        Err(DriveFault::Unreadable)
                    }
                    Some(bytes) if rot.flip_on_read > 0 && rng.random_range(0..10_000) < rot.flip_on_read => {
                        coverage.fault(Fault::FlipOnRead);
                        Ok(DriveResult::Read(flipped(&bytes, rng)))
                    }
                    Some(bytes) => Ok(DriveResult::Read(bytes)),
                }
            }
            DriveWork::Write { offset, pieces, durable, .. } => {
                let at = *offset as usize / BLOCK;
                let dice = if rot.lost_write + rot.misdirected_write > 0 {
                    rng.random_range(0..10_000)
                } else {
                    u32::MAX
                };
                if dice < rot.lost_write {
                    coverage.fault(Fault::LostWrite);
                    lose(platter, at, pieces);
                } else if dice < rot.lost_write + rot.misdirected_write {
                    coverage.fault(Fault::MisdirectedWrite);
                    misdirect(platter, at, pieces, rng);
                } else {
                    platter.write(at, pieces, *durable);
                }
                Ok(DriveResult::Done)
            }
            DriveWork::Flush => {
                platter.flushed(flight.mark);
                Ok(DriveResult::Done)
            }
            DriveWork::Discard { offset, len } => {
                platter.discard(*offset as usize / BLOCK, *len as usize / BLOCK, rng);
                Ok(DriveResult::Done)
            }
        };
        (flight, result)
    }

    /// The power of the drive goes: the cache is emptied, what is in flight happened or not.
    pub fn power_cut(&mut self, mood: Mood, rng: &mut SmallRng) {
        self.log.power_cut(mood, rng);
        self.data.power_cut(mood, rng);
        let share = match mood {
            Mood::LosesAll => 0,
            Mood::KeepsAll => 100,
            Mood::Mixed(percent) => percent,
        };
        self.leave_flights(rng, |rng| rng.random_range(0..100) < share, true);
    }

    /// The process dies, the drive keeps its power: the cache stays, each operation in flight happens whole,
    /// in part, or not.
    pub fn process_dies(&mut self, rng: &mut SmallRng) {
        let mood = rng.random_range(0..4);
        self.leave_flights(
            rng,
            |rng| match mood {
                0 => false,
                1 => true,
                _ => rng.random_bool(0.5),
            },
            false,
        );
    }

    fn leave_flights(&mut self, rng: &mut SmallRng, mut keep: impl FnMut(&mut SmallRng) -> bool, safe: bool) {
        self.cuts += 1;
        self.free.clear();
        for flight in std::mem::take(&mut self.flights).into_iter().flatten() {
            let platter = match flight.area {
                Area::Log => &mut self.log,
                Area::Data => &mut self.data,
            };
            if let DriveWork::Discard { offset, len } = &flight.work {
                // A part of it happens, if any.
                let blocks = rng.random_range(0..=*len as usize / BLOCK);
                platter.discard(*offset as usize / BLOCK, blocks, rng);
            }
            let DriveWork::Write { offset, pieces, .. } = &flight.work else { continue };
            // Often all blocks of an operation share their fate; that is the order drives prefer.
            let together = rng.random_bool(0.5).then(|| keep(rng));
            let mut at = *offset as usize / BLOCK;
            for piece in pieces {
                for index in 0..piece.blocks() {
                    if together.unwrap_or_else(|| keep(rng)) {
                        let mut content = Some(piece.block(index));
                        if safe && rng.random_range(0..32) == 0 {
                            content = torn(&content, platter.content(at), rng);
                        }
                        platter.put(at, content, safe);
                    }
                    at += 1;
                }
            }
        }
    }

    /// Nothing new goes wrong from now on; what was damaged stays so, and a drive that hangs still takes its
    /// time: what is in flight there must end before anybody opens it again.
    pub fn end_faults(&mut self) {
        self.rot = Rot::default();
        self.slowness = 1;
    }

    /// Damage that nobody has met is undone, so that another drive may be the next victim.
    pub fn restore(&mut self) {
        self.log.restore();
        self.data.restore();
    }
}

fn lose(platter: &mut Platter, first: usize, pieces: &[Buffer]) {
    let mut at = first;
    for piece in pieces {
        for index in 0..piece.blocks() {
            platter.lose(at, Some(piece.block(index)));
            at += 1;
        }
    }
}

/// The bytes land somewhere else in the area; where they belong, the old ones stay.
fn misdirect(platter: &mut Platter, first: usize, pieces: &[Buffer], rng: &mut SmallRng) {
    let blocks: usize = pieces.iter().map(Buffer::blocks).sum();
    let mut wrong = rng.random_range(0..=platter.len() - blocks);
    lose(platter, first, pieces);
    for piece in pieces {
        for index in 0..piece.blocks() {
            // Where both ranges overlap, the right bytes may lie in a place that is right by chance.
            platter.damage(wrong, Some(piece.block(index)));
            wrong += 1;
        }
    }
}
