//! Going on beside what pins the ring. A family that lets go of nothing (nobody can serve it, or its owner waits for a drive that is
//! away) would keep all others from the ring once its records are the oldest ones. They are carried on: read, and written again
//! at the head. `docs/decisions/0041-what-pins-a-ring-is-carried-on.md`.
//! Promises: a record lies where it lay until its copy counts; only what passes its checksum is carried on, as it is; of what could not
//! be read any more it stays known that it was there.

use crate::buffer::{BLOCK, Buffer, zeros};
use crate::formats::frame::{Copied, FrameHeader, RECORDS_IN_ONE_BLOCK, RecordHeader, TORN, payload_blocks};
use crate::identity::{Epoch, FamilyId, Seq, Time};
use crate::interface::{Area, Damage, DriveWork, Notice};
use crate::keeper::desk::{Desk, Work};
use crate::keeper::holding::{Holding, Home, Place};
use crate::keeper::ring::{DATA_RECORDS_MAX, Ring, place_of_frame};
use crate::keeper::torn_end::unsure;
use crate::sabotage::{Bug, planted};
use std::collections::{BTreeMap, BTreeSet};

/// While the ring is short, owners have this long to let go of what is in its oldest frame.
const PINNED_US: u64 = 5_000_000;
/// What could not be read so often, five seconds apart, is taken for lost, as the next opening would.
const UNREAD_MAX: u32 = 3;
/// Others have to get at least this part of the ring in a round, or another one is in vain.
const GAINED_PART: u64 = 16;

/// What is known of whoever keeps the ring from going round.
#[derive(Default)]
pub(super) struct Carrying {
    seen: Option<Seen>,
    /// Families that let go of nothing while all waited for them, and not since.
    stuck: BTreeSet<FamilyId>,
    load: Option<Load>,
    /// How often records of the oldest frame could not be read by themselves, five seconds apart.
    unread: BTreeMap<(FamilyId, Seq), u32>,
    round: Round,
    /// The last round was in vain.
    exhausted: bool,
}

/// The oldest frame that is needed, while the ring is short.
#[derive(Clone, Copy)]
struct Seen {
    number: u64,
    since: Time,
    /// Records that were held in it when it was read and could not be carried on, or not all of them.
    looked_at: Option<u32>,
    /// It cannot be read as a whole: what is held in it is read piece by piece.
    in_pieces: bool,
}

/// Once round the ring: what was carried on first in it, and blocks of all frames since, and of those with copies.
#[derive(Default)]
struct Round {
    first: u64,
    blocks: u64,
    carried: u64,
}

/// The records of the oldest frames on their way to the head.
struct Load {
    /// Numbers of frames that lie side by side, and where each begins.
    frames: Vec<(u64, u64)>,
    records: Vec<Held>,
    /// Reads that have not ended, and whether one failed.
    reads: usize,
    /// Its time had come: it counts for what cannot be read.
    is_pinned: bool,
    failed: bool,
    /// Records that could not be read by themselves, as places in `records`.
    bad: Vec<usize>,
}

/// A record, the frame it lies in, and its payload.
pub(super) type Held = (u64, RecordHeader, Buffer);

/// What a frame carries on.
#[derive(Default)]
pub(super) struct Copies {
    pub held: Vec<Held>,
    /// It says itself that the frames are free which it carries all on from that is held in them: there is no room for another one that does.
    pub frees: bool,
}

/// A record that a frame in flight carries on.
pub(super) struct Carried {
    pub family: FamilyId,
    pub seq: Seq,
    /// It is carried on as one that nobody can read.
    pub is_lost: bool,
    /// The frame it lies in as long as the other does not count.
    pub from: u64,
    /// Where the new frame has its payload, and of how many bytes.
    pub payload: u64,
    pub payload_len: u32,
    /// Of what says that an end is not known: what it says.
    pub doubt: (Epoch, u64),
}

impl Carrying {
    /// What has been read has no place in the ring.
    pub fn waits_for_room(&self) -> bool {
        self.load.as_ref().is_some_and(|load| load.reads == 0)
    }

    /// Nothing more is carried on, as nobody would gain anything by it.
    pub fn is_in_vain(&self) -> bool {
        self.exhausted
    }

    /// A frame of so many blocks was written.
    pub fn note_frame(&mut self, blocks: u64) {
        self.round.blocks += blocks;
    }

    /// For people who wonder why the ring stands still.
    pub fn describe(&self) -> String {
        let load = match &self.load {
            None => "",
            Some(Load { reads: 0, .. }) => ", the oldest frames wait for room",
            Some(_) => ", the oldest frames are read",
        };
        let exhausted = if self.exhausted { ", they leave no room to go on beside them" } else { "" };
        format!("{} families stuck{load}{exhausted}", self.stuck.len())
    }
}

impl Load {
    /// Nothing of it is read yet.
    fn of(frames: Vec<(u64, u64)>, is_pinned: bool) -> Self {
        Self { frames, records: Vec::new(), reads: 0, is_pinned, failed: false, bad: Vec::new() }
    }
}

impl Holding {
    /// Whether the record, if it is held in this frame, is lost.
    fn is_lost_in(&self, record: &RecordHeader, number: u64) -> Option<bool> {
        let is_it = |place: &Place| place.home == Home::Frame(number) && place.epoch == record.epoch;
        if self.places.get(&record.seq).is_some_and(is_it) {
            return Some(false);
        }
        self.lost.get(&record.seq).is_some_and(is_it).then_some(true)
    }

    /// The header of a record as its frame would have it.
    fn header(&self, family: FamilyId, seq: Seq, place: &Place, copied: Copied) -> RecordHeader {
        let Place { epoch, kind, payload_crc, payload_len, block, count, .. } = *place;
        // Of an older epoch nothing is left that this could make void.
        let begin = if epoch == self.run.epoch { self.run.begin } else { seq };
        RecordHeader { family, epoch, seq, kind, payload_crc, payload_len, block, count, begin, copied }
    }
}

impl Ring {
    /// The family lets go of something, or is no more.
    pub fn lets_go(&mut self, now: Time, family: FamilyId) {
        if let Some(holding) = self.holdings.get_mut(&family) {
            holding.let_go_at = now;
        }
        if self.carrying.stuck.remove(&family) {
            // What was carried on of it does not speak against the others.
            self.carrying.exhausted = false;
            self.carrying.round = Round::default();
        }
    }

    /// Begins to carry on what is in the oldest frame if it has been waited for.
    pub fn carry(&mut self, now: Time, desk: &mut Desk) {
        // One in which nothing is held is needed because of the floor alone, or its fence, which is carried on by itself.
        let oldest = self
            .frames
            .get(self.dead)
            .filter(|frame| (frame.live > 0 || self.floor.is_some()) && frame.number <= self.settled);
        let Some(oldest) = oldest.filter(|_| self.is_urgent() && !planted(Bug::PinsStay)) else {
            self.carrying.seen = None;
            self.carrying.exhausted = false;
            return;
        };
        let (number, live) = (oldest.number, oldest.live);
        let begun = Seen { number, since: now, looked_at: None, in_pieces: false };
        let mut seen = self.carrying.seen.filter(|seen| seen.number == number).unwrap_or(begun);
        let is_pinned = now.since(seen.since) >= PINNED_US;
        let may_be_stuck = !self.carrying.stuck.is_empty() && seen.looked_at != Some(live);
        self.carrying.seen = Some(seen);
        // What a frame in flight carries on would only be read and written once more.
        let is_on_its_way =
            self.carrying.load.is_some() || self.flying.iter().any(|flying| !flying.carried.is_empty());
        if is_on_its_way || self.carrying.exhausted || !is_pinned && !may_be_stuck {
            return;
        }
        if is_pinned {
            let lets_go = |holding: &Holding| holding.let_go_at > seen.since;
            let stuck = self.holdings.iter().filter(|(_, holding)| !lets_go(holding));
            self.carrying.stuck.extend(stuck.map(|(family, _)| *family));
            // If nothing comes of it, it is tried again after the same time.
            seen.since = now;
            self.carrying.seen = Some(seen);
        }
        // Beneath the floor nothing is freed by carrying anything on.
        if live == 0 || self.is_on_the_floor() {
            return self.load_the_unsure(number);
        }
        if seen.in_pieces {
            return self.load_pieces(number, is_pinned, desk);
        }
        let (frames, end) = self.oldest_side_by_side();
        let first = frames[0].1;
        let len = u32::try_from((end - first) * BLOCK as u64).expect("frames are smaller than 4 GiB");
        let read = DriveWork::Read { offset: first * BLOCK as u64, len };
        desk.submit(Area::Log, read, Work::Load { piece: None });
        self.carrying.load = Some(Load { reads: 1, ..Load::of(frames, is_pinned) });
    }

    /// The ring is not freed beyond its floor: of the families for which it is kept, it is written that their end is not known.
    fn load_the_unsure(&mut self, number: u64) {
        let mut records = self.unsure_of_the_floor(number);
        // What may have been anybody's has room beside them.
        records.truncate(RECORDS_IN_ONE_BLOCK - 1);
        if !records.is_empty() {
            self.carrying.load = Some(Load { records, ..Load::of(vec![(number, 0)], true) });
        }
    }

    /// What is written of them, `from` the frame that is kept for them.
    pub(super) fn unsure_of_the_floor(&self, from: u64) -> Vec<(u64, RecordHeader, Buffer)> {
        let families = self.floor.iter().flat_map(|(_, families)| families);
        families.map(|(&family, &epoch)| (from, unsure(family, epoch, 0), zeros(0))).collect()
    }

    /// The oldest frame that is needed and those behind it that go into one frame with it, and where they end.
    fn oldest_side_by_side(&self) -> (Vec<(u64, u64)>, u64) {
        let settled = self.frames.len() - self.flying.len();
        let first = &self.frames[self.dead];
        let (mut frames, mut live) = (vec![(first.number, first.position)], first.live);
        let mut end = self.end_of(self.dead);
        for at in self.dead + 1..settled {
            let (next, behind) = (&self.frames[at], self.end_of(at));
            live += next.live;
            if next.position < first.position
                || behind - first.position > self.frame_blocks_max
                || live as usize > DATA_RECORDS_MAX
            {
                break;
            }
            frames.push((next.number, next.position));
            end = behind;
        }
        (frames, end)
    }

    /// Where the next frame begins, or the ring ends: a frame never wraps.
    fn end_of(&self, at: usize) -> u64 {
        let next = self.frames.get(at + 1).map_or(self.head, |next| next.position);
        if next > self.frames[at].position { next } else { self.blocks }
    }

    /// Reads only what is held in this frame, each payload by itself: something beside it cannot be read.
    fn load_pieces(&mut self, number: u64, is_pinned: bool, desk: &mut Desk) {
        let mut load = Load::of(vec![(number, 0)], is_pinned);
        for (&family, holding) in &self.holdings {
            // What counts as lost may be readable by now.
            let held =
                holding.places.iter().chain(holding.lost.iter().filter(|(_, place)| place.payload_len > 0));
            for (&seq, place) in held.filter(|(_, place)| place.home == Home::Frame(number)) {
                let blocks = place.blocks();
                if blocks > 0 {
                    let len = u32::try_from(blocks * BLOCK as u64).expect("records are smaller than 4 GiB");
                    let read = DriveWork::Read { offset: place.payload * BLOCK as u64, len };
                    desk.submit(Area::Log, read, Work::Load { piece: Some(load.records.len()) });
                    load.reads += 1;
                }
                let header = holding.header(family, seq, place, Copied::On);
                load.records.push((number, header, zeros(0)));
            }
            if let Some(place) = holding.unsure.filter(|place| place.home == Home::Frame(number)) {
                load.records.push((number, unsure(family, place.epoch, place.count), zeros(0)));
            }
            for (&seq, place) in holding.lost.iter().filter(|(_, place)| place.payload_len == 0) {
                if place.home == Home::Frame(number) {
                    let header = holding.header(family, seq, place, Copied::Lost);
                    load.records.push((number, as_lost(header), zeros(0)));
                }
            }
        }
        self.carrying.load = Some(load);
        self.end_load(desk);
    }

    /// Frames that may be carried on were read, or a payload; None if that was not possible.
    pub fn on_load_read(&mut self, piece: Option<usize>, read: Option<Buffer>, desk: &mut Desk) {
        let mut load = self.carrying.load.take().expect("it is kept while it is read");
        load.reads -= 1;
        match (piece, read) {
            (None, Some(read)) => self.take_frames(&mut load, &read, desk),
            (Some(at), read) => self.take_piece(&mut load, at, read),
            (None, None) => load.failed = true,
        }
        load.failed |= !load.bad.is_empty();
        self.carrying.load = Some(load);
        self.end_load(desk);
    }

    /// A payload was read by itself; None if that was not possible.
    fn take_piece(&mut self, load: &mut Load, at: usize, read: Option<Buffer>) {
        let (number, record, payload) = &mut load.records[at];
        let is_lost =
            self.holdings.get(&record.family).and_then(|holding| holding.is_lost_in(record, *number));
        match read.filter(|read| is_sound(record, read)) {
            Some(read) => {
                *payload = read;
                let (family, seq, home) = (record.family, record.seq, Home::Frame(*number));
                self.find_again(family, seq, home);
            }
            None if is_lost == Some(true) => *record = as_lost(*record),
            None => load.bad.push(at),
        }
    }

    /// All was read.
    fn end_load(&mut self, desk: &mut Desk) {
        let Some(load) = self.carrying.load.take_if(|load| load.reads == 0) else { return };
        let first = load.frames[0].0;
        let is_stuck = |held: &Held| self.carrying.stuck.contains(&held.1.family);
        if !load.failed && !load.records.is_empty() && load.records.iter().all(is_stuck) {
            self.carrying.load = Some(load);
            return;
        }
        // Not before something of it is let go of, or its time has come.
        let live = self.frame_mut(first).map(|frame| frame.live);
        if let Some(seen) = self.carrying.seen.as_mut().filter(|seen| seen.number == first) {
            // Piece by piece at once, if that was not tried.
            seen.looked_at = if load.failed && !seen.in_pieces { None } else { live };
            seen.in_pieces |= load.failed;
        }
        if load.is_pinned {
            self.count_unread(&load, desk);
        }
    }

    fn count_unread(&mut self, load: &Load, desk: &mut Desk) {
        let bad: BTreeSet<_> =
            load.bad.iter().map(|&at| &load.records[at].1).map(|bad| (bad.family, bad.seq)).collect();
        let counted = std::mem::take(&mut self.carrying.unread);
        self.carrying.unread =
            bad.iter().map(|bad| (*bad, counted.get(bad).map_or(1, |times| times + 1))).collect();
        if self.carrying.unread.values().any(|times| *times >= UNREAD_MAX) {
            self.take_for_lost(load, desk);
            if let Some(seen) = &mut self.carrying.seen {
                seen.looked_at = None;
            }
        }
    }

    /// What cannot be read is as lost as the next opening would find it; that it was there is carried on.
    fn take_for_lost(&mut self, load: &Load, desk: &mut Desk) {
        for (number, record, _) in load.bad.iter().map(|&at| &load.records[at]) {
            if self.carrying.unread.get(&(record.family, record.seq)).is_none_or(|times| *times < UNREAD_MAX)
            {
                continue;
            }
            let Some(holding) = self.holdings.get_mut(&record.family) else { continue };
            let is_it = |place: &Place| place.home == Home::Frame(*number) && place.epoch == record.epoch;
            if !holding.places.get(&record.seq).is_some_and(is_it) {
                continue;
            }
            let place = holding.places.remove(&record.seq).expect("just seen");
            if !place.told {
                let damage = Damage::Log { offset: place.payload * BLOCK as u64 };
                desk.notice(Notice::Damage { drive: desk.drive, damage });
            }
            if let Some(former) = holding.lost.insert(record.seq, place) {
                self.let_go(&former);
            }
        }
    }

    /// What is held in frames that were read together, up to the first that holds something of others.
    fn take_frames(&mut self, load: &mut Load, read: &Buffer, desk: &Desk) {
        let first = load.frames[0];
        for &(number, position) in &load.frames.clone() {
            let bytes = read.slice((position - first.1) as usize * BLOCK..read.len());
            let Some(held) = self.held_in(number, position, &bytes, desk) else {
                // What is not as it was written stays for now.
                load.failed = number == first.0;
                return;
            };
            for (_, record, _) in held.iter().filter(|(_, record, _)| record.copied == Copied::On) {
                self.find_again(record.family, record.seq, Home::Frame(number));
            }
            let is_others = held.iter().any(|held| !self.carrying.stuck.contains(&held.1.family));
            load.records.extend(if is_others && number != first.0 { Vec::new() } else { held });
            if is_others {
                return;
            }
        }
    }

    /// What is held in a frame, read from the drive; None if that is not all, or not sound.
    fn held_in(&self, number: u64, position: u64, read: &Buffer, desk: &Desk) -> Option<Vec<Held>> {
        let frame = self.frames.get(place_of_frame(&self.frames, number)?)?;
        let blocks = FrameHeader::claimed_blocks(read.bytes(), desk.drive, self.incarnation, position)?;
        let mut at = blocks as usize * BLOCK;
        let header = FrameHeader::decode(read.bytes().get(..at)?)?;
        if header.number != number {
            return None;
        }
        let mut held = Vec::new();
        for record in header.records {
            let end = at + record.payload_blocks() as usize * BLOCK;
            if let Some(is_lost) = self.is_held_in(&record, number) {
                let payload = (end <= read.len()).then(|| read.slice(at..end))?;
                if record.copied == Copied::Unsure {
                    held.push((number, record, zeros(0)));
                } else if record.copied != Copied::Lost && is_sound(&record, &payload) {
                    held.push((number, RecordHeader { copied: Copied::On, ..record }, payload));
                } else if is_lost {
                    held.push((number, as_lost(record), zeros(0)));
                } else {
                    return None;
                }
            }
            at = end;
        }
        (held.len() == frame.live as usize).then_some(held)
    }

    /// Whether the record is held in this frame, and cannot be read.
    fn is_held_in(&self, record: &RecordHeader, number: u64) -> Option<bool> {
        let holding = self.holdings.get(&record.family).filter(|_| record.kind.is_logged())?;
        if record.copied == Copied::Unsure {
            let is_written = holding.unsure.is_some_and(|place| place.home == Home::Frame(number));
            return (is_written || self.has_floor_for(record.family)).then_some(false);
        }
        holding.is_lost_in(record, number)
    }

    /// Writes what was read, as far as it is still held, in a frame of its own. At least as much as it takes becomes free when it counts.
    pub fn write_carried(&mut self, desk: &mut Desk) {
        let Some(mut load) = self.carrying.load.take_if(|load| load.reads == 0) else { return };
        let mut held = std::mem::take(&mut load.records);
        held.retain(|(number, record, _)| self.is_held_in(record, *number).is_some());
        let is_found = |(number, record, _): &Held| {
            record.copied == Copied::Lost && self.is_held_in(record, *number) == Some(false)
        };
        if held.iter().any(is_found) {
            // It could be read meanwhile: so that it is carried on as it is, all is read again.
            if let Some(seen) = &mut self.carrying.seen {
                seen.looked_at = None;
            }
            return;
        }
        let is_unsure = held.iter().all(|(_, record, _)| record.copied == Copied::Unsure);
        if held.is_empty() || !is_unsure && self.begins_a_round_in_vain(load.frames[0].0) {
            return;
        }
        // What it says of anybody is not to be behind what is written over what speaks for it.
        let anybody = usize::from(self.wants_anybody());
        // All of them together may not fit before the end of the ring, nor at its beginning. A part of the oldest frame would take space
        // and free none.
        let least = held.iter().filter(|(number, ..)| *number == held[0].0).count();
        let most =
            (least..=held.len()).rev().find_map(|most| Some((most, self.place_to_carry(&held[..most])?)));
        let Some((most, (position, blocks, frees))) = most else {
            load.records = held;
            self.carrying.load = Some(load);
            return;
        };
        held.truncate(most);
        self.carrying.round.carried += blocks;
        self.write_frame_with(position, 0, anybody, Copies { held, frees }, desk);
    }

    /// When what was carried on comes round again: whether others have gained nothing by it. More than half of the ring was carried
    /// on, or hardly anything else was written.
    fn begins_a_round_in_vain(&mut self, number: u64) -> bool {
        let Round { first, blocks, carried } = self.carrying.round;
        if number < first {
            return false;
        }
        let gained = blocks.saturating_sub(carried);
        let in_vain = carried > self.blocks / 2 || gained < self.blocks / GAINED_PART;
        self.carrying.exhausted = first > 0 && in_vain;
        self.carrying.round = Round { first: self.next_number, blocks: 0, carried: 0 };
        self.carrying.exhausted
    }

    /// A frame counts: what it carries on is held there from now on, as far as it is held at all.
    pub fn settle_carried(&mut self, number: u64, carried: Vec<Carried>) {
        for Carried { family, seq, is_lost, from, payload, payload_len, doubt } in carried {
            if seq == Seq(0) {
                self.settle_unsure(number, family, from, doubt);
                continue;
            }
            let place = self.holdings.get_mut(&family).and_then(|holding| {
                holding.was_carried = true;
                let is_there = |place: &&mut Place| place.home == Home::Frame(from);
                // One that could be read while this was on its way stays where it lies.
                let place = holding.places.get_mut(&seq).filter(|_| !is_lost).filter(is_there);
                place.or_else(|| holding.lost.get_mut(&seq).filter(is_there))
            });
            if let Some(place) = place {
                let home = Home::Frame(number);
                let moved = Place { home, payload, payload_len, carried: true, told: false, ..*place };
                let former = std::mem::replace(place, moved);
                self.let_go(&former);
            } else {
                let frame = self.frame_mut(number).expect("a frame that settles now is there");
                frame.let_go(payload_blocks(payload_len));
            }
        }
    }

    fn settle_unsure(&mut self, number: u64, family: FamilyId, from: u64, doubt: (Epoch, u64)) {
        let (epoch, count) = doubt;
        let is_told = count == TORN && self.torn_end.untold.remove(&family).is_some();
        let is_floor = count != TORN && self.has_floor_for(family);
        let known = self.holdings.get(&family).and_then(|holding| holding.unsure);
        let is_carried = known.is_some_and(|place| place.home == Home::Frame(from));
        if !is_told && !is_floor && !is_carried {
            self.frame_mut(number).expect("a frame that settles now is there").let_go(0);
            return;
        }
        let record = unsure(family, epoch, count);
        let place = super::ring_replay::place_of(number, 0, &record);
        let former = self.holdings.entry(family).or_default().unsure.replace(place);
        former.iter().for_each(|former| self.let_go(former));
        if is_floor {
            self.lift_floor(family);
        }
    }
}

fn is_sound(record: &RecordHeader, payload: &Buffer) -> bool {
    let len = record.payload_len as usize;
    len == 0
        || payload.len() >= len && payload.slice(0..len).checksum() == record.payload_crc
        || planted(Bug::CarriedUnchecked)
}

/// What says of a record that it was there.
fn as_lost(record: RecordHeader) -> RecordHeader {
    RecordHeader { copied: Copied::Lost, payload_crc: 0, payload_len: 0, ..record }
}
