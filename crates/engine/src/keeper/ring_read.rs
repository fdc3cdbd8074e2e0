//! Reading records back from the ring, for owners that open a family.
//! Promises: what is given out passed its checksum; what does not, twice, is left out and told once, and of a write its place is said. What
//! could not be read may be readable the next time: only that it is there is said, until it has been so for long (`withheld`).

use crate::buffer::{BLOCK, Buffer};
use crate::formats::frame::RecordKind;
use crate::formats::payload;
use crate::formats::record::Record;
use crate::identity::{Block, FamilyId, Seq, Time};
use crate::interface::{Area, Damage, DriveWork, Notice};
use crate::keeper::desk::{Caller, Desk, Work};
use crate::keeper::holding::{Holding, Home, Place};
use crate::keeper::ring::{Frame, Ring, place_of_frame};
use crate::keeper::withheld::Withheld;
use crate::message::{Answer, LostWrite};
use crate::sabotage::{Bug, planted};
use std::collections::{BTreeMap, VecDeque};

/// Blocks between two payloads that are rather read along than left for a read of their own.
const GAP_BLOCKS: u64 = 8;
/// Bytes of one joined read at most; a single larger record gets one of its own.
const READ_BYTES_MAX: u64 = 1 << 20;

/// The records being read.
#[derive(Default)]
pub(super) struct LogReads {
    jobs: BTreeMap<u64, Job>,
    counter: u64,
    withheld: Withheld,
}

struct Job {
    caller: Caller,
    from: Seq,
    records: Vec<Wanted>,
    parts: Vec<Part>,
    /// Parts that are still being read.
    left: usize,
    /// No held record lies after the last one.
    end: bool,
    /// The bad ones are being read for the second time.
    again: bool,
}

struct Wanted {
    seq: Seq,
    place: Place,
    /// The part its payload is in; records without a payload have none.
    part: Option<usize>,
    /// If the drive did not give it at first: the header of its frame, to see whether it gives anything.
    beside: Option<usize>,
}

struct Part {
    first: u64,
    blocks: u64,
    bytes: Option<Buffer>,
}

impl Part {
    fn is_read(&self) -> bool {
        self.bytes.as_ref().is_some_and(|bytes| !bytes.is_empty())
    }
}

impl Wanted {
    fn payload(&self, parts: &[Part]) -> Option<Buffer> {
        let Some(part) = self.part else { return Some(crate::buffer::zeros(0)) };
        let part = &parts[part];
        let start = (self.place.payload - part.first) as usize * BLOCK;
        let bytes = part.bytes.as_ref()?.slice(start..start + self.place.payload_len as usize);
        (bytes.checksum() == self.place.payload_crc).then_some(bytes)
    }

    /// If its blocks were read, and are not what was written.
    fn as_lost(&self, parts: &[Part]) -> Option<LostWrite> {
        let is_read = parts[self.part?].is_read();
        lost_write(self.seq, &self.place).filter(|_| is_read)
    }

    /// If only they were not given, and what lies beside them was.
    fn as_withheld(&self, parts: &[Part]) -> Option<LostWrite> {
        let is_given = |part: usize| parts[part].is_read();
        let gives_others = self.beside.is_some_and(is_given) || planted(Bug::SilentDriveBelieved);
        let is_withheld = !is_given(self.part?) && gives_others && !planted(Bug::WithheldForEver);
        lost_write(self.seq, &self.place).filter(|_| is_withheld)
    }

    fn record(&self, parts: &[Part]) -> Option<Record> {
        let payload = self.payload(parts)?;
        payload::decode(self.seq, self.place.kind, self.place.block, self.place.count, payload)
    }
}

impl Ring {
    /// See [`crate::message::Question::ReadLog`].
    pub fn read_log(&mut self, now: Time, caller: Caller, from: Seq, bytes: u32, desk: &mut Desk) {
        let mut job =
            Job { caller, from, records: Vec::new(), parts: Vec::new(), left: 0, end: true, again: false };
        let mut total = 0;
        let holding = self.holdings.get(&caller.family);
        for (seq, place) in held_from(holding, from).filter(|(_, place)| place.is_settled(self.settled)) {
            if !job.records.is_empty() && total >= u64::from(bytes) {
                job.end = false;
                break;
            }
            total += u64::from(place.payload_len).max(64);
            let part = job.part_of(place);
            job.records.push(Wanted { seq: *seq, place: *place, part, beside: None });
        }
        self.reads.counter += 1;
        let number = self.reads.counter;
        job.submit(number, desk);
        self.reads.jobs.insert(number, job);
        self.finish_read(now, number, desk);
    }

    /// A part was read; None if it could not be.
    pub fn on_log_read(
        &mut self,
        now: Time,
        number: u64,
        part: usize,
        bytes: Option<Buffer>,
        desk: &mut Desk,
    ) {
        let job = self.reads.jobs.get_mut(&number).expect("a job stays until all of it was read");
        job.parts[part].bytes = bytes;
        job.left -= 1;
        self.finish_read(now, number, desk);
    }

    fn finish_read(&mut self, now: Time, number: u64, desk: &mut Desk) {
        let job = self.reads.jobs.get_mut(&number).expect("the caller knows it");
        if job.left > 0 {
            return;
        }
        let holding = self.holdings.get(&job.caller.family);
        if !job.again && job.read_bad_ones_again(number, holding, &self.frames, desk) {
            return;
        }
        let job = self.reads.jobs.remove(&number).expect("just seen");
        let mut records = Vec::with_capacity(job.records.len());
        // What was lost before it was carried on has no payload any more.
        let mut lost = self.carried_as_lost(&job);
        let mut unread = Vec::new();
        for wanted in &job.records {
            if let Some(record) = wanted.record(&job.parts) {
                self.find_again(job.caller.family, wanted.seq, wanted.place.home);
                self.reads.withheld.forget(job.caller.family, wanted.seq);
                records.push(record);
                continue;
            }
            let is_still_there = self.is_still_there(job.caller.family, wanted);
            let is_lost_now = |_: &LostWrite| {
                is_still_there
                    && self.reads.withheld.count(job.caller.family, wanted.seq, wanted.place.home, now)
            };
            let withheld = wanted.as_withheld(&job.parts).filter(is_lost_now);
            match wanted.as_lost(&job.parts).filter(|_| is_still_there).or(withheld) {
                Some(write) => lost.push(write),
                None => unread.push(wanted.seq),
            }
            self.tell_damage(job.caller, wanted, desk);
        }
        let holdings = &self.holdings;
        self.reads
            .withheld
            .keep(|family, seq| holdings.get(&family).is_some_and(|holding| holding.is_there(seq)));
        desk.answer(job.caller, Ok(Answer::Records { records, lost, unread, end: job.end }));
    }

    /// Writes in the range of this job of which nothing is left but where they went.
    fn carried_as_lost(&self, job: &Job) -> Vec<LostWrite> {
        let last = job.records.last().map_or(job.from, |wanted| wanted.seq);
        let to = if job.end { Seq(u64::MAX) } else { last };
        let holding = self.holdings.get(&job.caller.family);
        let lost = holding.into_iter().flat_map(|holding| holding.lost.range(job.from..=to));
        lost.filter(|(_, place)| place.payload_len == 0)
            .filter_map(|(seq, place)| lost_write(*seq, place))
            .collect()
    }

    /// Not trimmed, or carried on, while it was read: then something else may lie in its place.
    fn is_still_there(&self, family: FamilyId, wanted: &Wanted) -> bool {
        let holding = self.holdings.get(&family);
        let places = holding.map(|holding| [holding.places.get(&wanted.seq), holding.lost.get(&wanted.seq)]);
        places.into_iter().flatten().flatten().any(|place| place.home == wanted.place.home)
    }

    /// Data records in frames of which later ones say that they have settled, and the block of the ring where the payload of each begins.
    pub fn settled_writes(&self) -> impl Iterator<Item = (FamilyId, LostWrite, u64)> + '_ {
        let told = self.settled.saturating_sub(self.frames_in_flight as u64);
        let all = self
            .holdings
            .iter()
            .flat_map(|(family, holding)| holding.places.iter().map(|place| (*family, place)));
        let settled = all.filter(move |(_, (_, place))| place.is_settled(told) && place.payload_len > 0);
        settled.filter_map(|(family, (seq, place))| Some((family, lost_write(*seq, place)?, place.payload)))
    }

    /// A record that counted as lost has been read where it lies.
    pub(super) fn find_again(&mut self, family: FamilyId, seq: Seq, home: Home) {
        let Some(holding) = self.holdings.get_mut(&family) else { return };
        if let Some(place) = holding.lost.get(&seq).copied()
            && place.home == home
            && !holding.places.contains_key(&seq)
        {
            holding.lost.remove(&seq);
            holding.places.insert(seq, place);
        }
    }

    /// A record was trimmed while it was read, or is damaged; the latter is told once.
    fn tell_damage(&mut self, caller: Caller, wanted: &Wanted, desk: &mut Desk) {
        let holding = self.holdings.get_mut(&caller.family);
        let place = holding.and_then(|holding| holding.places.get_mut(&wanted.seq));
        let Some(place) = place.filter(|place| place.home == wanted.place.home && !place.told) else {
            return;
        };
        place.told = true;
        let damage = Damage::Log { offset: place.payload * BLOCK as u64 };
        desk.notice(Notice::Damage { drive: desk.drive, damage });
    }
}

fn lost_write(seq: Seq, place: &Place) -> Option<LostWrite> {
    let write = LostWrite { seq, block: Block(place.block), count: place.count };
    (place.kind == RecordKind::Data).then_some(write)
}

fn frame_of(frames: &VecDeque<Frame>, home: Home) -> Option<&Frame> {
    let Home::Frame(number) = home else { return None };
    frames.get(place_of_frame(frames, number)?)
}

/// What a family holds from `from` on, in order, and what could not be read when the drive was opened: it may be readable by now.
fn held_from(holding: Option<&Holding>, from: Seq) -> impl Iterator<Item = (&Seq, &Place)> {
    let mut places = holding.into_iter().flat_map(move |holding| holding.places.range(from..)).peekable();
    let lost = holding.into_iter().flat_map(move |holding| holding.lost.range(from..));
    let mut lost = lost.filter(|(_, place)| place.payload_len > 0).peekable();
    std::iter::from_fn(move || {
        let is_lost_next = match (places.peek(), lost.peek()) {
            (Some((held, _)), Some((lost, _))) => lost < held,
            (held, _) => held.is_none(),
        };
        if is_lost_next { lost.next() } else { places.next() }
    })
}

impl Job {
    /// The part that reads the payload of `place`: the last one if it is near, or a new one.
    fn part_of(&mut self, place: &Place) -> Option<usize> {
        let blocks = place.blocks();
        if blocks == 0 {
            return None;
        }
        if let Some(last) = self.parts.last_mut() {
            let end = last.first + last.blocks;
            let joined = (place.payload + blocks).saturating_sub(last.first);
            let near = place.payload >= end && place.payload - end <= GAP_BLOCKS;
            if near && joined * BLOCK as u64 <= READ_BYTES_MAX {
                last.blocks = joined;
                return Some(self.parts.len() - 1);
            }
        }
        self.parts.push(Part { first: place.payload, blocks, bytes: None });
        Some(self.parts.len() - 1)
    }

    fn submit(&mut self, number: u64, desk: &mut Desk) {
        for (index, part) in self.parts.iter().enumerate().filter(|(_, part)| part.bytes.is_none()) {
            let len = u32::try_from(part.blocks * BLOCK as u64).expect("records are smaller than 4 GiB");
            let read = DriveWork::Read { offset: part.first * BLOCK as u64, len };
            desk.submit(Area::Log, read, Work::LogPart { job: number, part: index });
            self.left += 1;
        }
    }

    /// Reads each bad record again alone: the fault may be a neighbour's, or have passed, or the record was carried on meanwhile.
    fn read_bad_ones_again(
        &mut self,
        number: u64,
        holding: Option<&Holding>,
        frames: &VecDeque<Frame>,
        desk: &mut Desk,
    ) -> bool {
        self.again = true;
        for part in &mut self.parts {
            part.bytes.get_or_insert_with(|| crate::buffer::zeros(0));
        }
        let parts = &mut self.parts;
        let mut bad = false;
        for wanted in &mut self.records {
            let readable =
                wanted.part.is_none_or(|part| !parts[part].bytes.as_ref().is_none_or(Buffer::is_empty));
            if readable && wanted.payload(parts).is_some() {
                continue;
            }
            bad = true;
            let now = holding.and_then(|holding| holding.places.get(&wanted.seq));
            if let Some(place) = now.filter(|place| place.carried && place.epoch == wanted.place.epoch) {
                wanted.place = *place;
            }
            let blocks = wanted.place.blocks();
            parts.push(Part { first: wanted.place.payload, blocks, bytes: None });
            wanted.part = Some(parts.len() - 1);
            if !readable && let Some(frame) = frame_of(frames, wanted.place.home) {
                parts.push(Part { first: frame.position, blocks: 1, bytes: None });
                wanted.beside = Some(parts.len() - 1);
            }
        }
        self.submit(number, desk);
        bad
    }
}
