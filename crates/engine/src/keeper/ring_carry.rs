//! Going on beside what pins the ring. A family that lets go of nothing (nobody can serve it, or its owner waits for a drive that is
//! away) would keep all others from the ring once its records are the oldest ones. They are carried on: read, and written again
//! at the head. `docs/decisions/0041-what-pins-a-ring-is-carried-on.md`.
//! Promises: a record lies where it lay until its copy counts; only what passes its checksum is carried on, as it is.

use crate::buffer::{BLOCK, Buffer};
use crate::formats::frame::{FrameHeader, RecordHeader, header_blocks};
use crate::identity::{FamilyId, Seq, Time};
use crate::interface::{Area, DriveWork};
use crate::keeper::desk::{Desk, Work};
use crate::keeper::holding::{Home, Place};
use crate::keeper::ring::{LAST_BLOCKS, Ring};
use crate::keeper::ring_write::DATA_RECORDS_MAX;
use crate::sabotage::{Bug, planted};
use std::collections::BTreeSet;

/// While the ring is short, owners have this long to let go of what is in its oldest frame.
const PINNED_US: u64 = 5_000_000;

/// What is known of whoever keeps the ring from going round.
#[derive(Default)]
pub(super) struct Carrying {
    seen: Option<Seen>,
    /// Families that let go of nothing while all waited for them, and not since.
    stuck: BTreeSet<FamilyId>,
    load: Option<Load>,
    /// Since which frame a round of the ring is counted, and the blocks carried on in it.
    round: (u64, u64),
    /// More than half of the ring was: nobody would gain anything by another round.
    exhausted: bool,
}

/// The oldest frame that is needed, while the ring is short.
#[derive(Clone, Copy)]
struct Seen {
    number: u64,
    since: Time,
    /// Records that were held in it when it was read and found to hold some that are not stuck.
    looked_at: Option<u32>,
}

/// The records of the oldest frames on their way to the head.
struct Load {
    /// Numbers of frames that lie side by side, and where each begins.
    frames: Vec<(u64, u64)>,
    /// Whatever is in the first is stuck.
    is_pinned: bool,
    /// With the frames they lie in, and their payloads. None while they are read.
    records: Option<Vec<Held>>,
}

type Held = (u64, RecordHeader, Buffer);

/// A record that a frame in flight carries on.
pub(super) struct Carried {
    pub family: FamilyId,
    pub seq: Seq,
    /// The frame it lies in as long as the other does not count.
    pub from: u64,
    /// Where the new frame has its payload.
    pub payload: u64,
}

impl Carrying {
    /// For people who wonder why the ring stands still.
    pub fn describe(&self) -> String {
        let load = match &self.load {
            None => "",
            Some(Load { records: None, .. }) => ", the oldest frames are read",
            Some(Load { records: Some(_), .. }) => ", the oldest frames wait for room",
        };
        let exhausted = if self.exhausted { ", they leave no room to go on beside them" } else { "" };
        format!("{} families stuck{load}{exhausted}", self.stuck.len())
    }

    /// What has been read has no place in the ring.
    pub fn waits_for_room(&self) -> bool {
        self.load.as_ref().is_some_and(|load| load.records.is_some())
    }

    /// The family lets go of something, or is no more.
    pub fn moves_again(&mut self, family: FamilyId) {
        self.stuck.remove(&family);
        self.exhausted = false;
    }
}

impl Ring {
    /// Begins to carry on what is in the oldest frame if it has been waited for.
    pub fn carry(&mut self, now: Time, desk: &mut Desk) {
        let oldest =
            self.frames.get(self.dead).filter(|frame| frame.live > 0 && frame.number <= self.settled);
        let Some(oldest) = oldest.filter(|_| self.is_urgent() && !planted(Bug::PinsStay)) else {
            self.carrying.seen = None;
            self.carrying.exhausted = false;
            return;
        };
        let (number, position, live) = (oldest.number, oldest.position, oldest.live);
        let begun = Seen { number, since: now, looked_at: None };
        let seen = self.carrying.seen.filter(|seen| seen.number == number).unwrap_or(begun);
        self.carrying.seen = Some(seen);
        let is_pinned = now.since(seen.since) >= PINNED_US;
        let may_be_stuck = !self.carrying.stuck.is_empty() && seen.looked_at != Some(live);
        if self.carrying.load.is_some() || self.carrying.exhausted || !is_pinned && !may_be_stuck {
            return;
        }
        if is_pinned {
            // If nothing comes of it, it is tried again after the same time.
            self.carrying.seen = Some(begun);
        }
        let (frames, end) = self.oldest_side_by_side();
        let len = u32::try_from((end - position) * BLOCK as u64).expect("frames are smaller than 4 GiB");
        let read = DriveWork::Read { offset: position * BLOCK as u64, len };
        desk.submit(Area::Log, read, Work::Load);
        self.carrying.load = Some(Load { frames, is_pinned, records: None });
    }

    /// The oldest frame that is needed and those behind it that go into one frame with it, and where they end.
    fn oldest_side_by_side(&self) -> (Vec<(u64, u64)>, u64) {
        let mut oldest =
            self.frames.iter().skip(self.dead).take(self.frames.len() - self.flying.len() - self.dead);
        let first = oldest.next().expect("the caller has seen it");
        let (mut frames, mut live) = (vec![(first.number, first.position)], first.live);
        let mut end = self.blocks;
        for next in oldest {
            end = if next.position > first.position { next.position } else { self.blocks };
            live += next.live;
            let fits = end - first.position <= self.frame_blocks_max && live as usize <= DATA_RECORDS_MAX;
            if !fits || end == self.blocks {
                return (frames, end);
            }
            frames.push((next.number, next.position));
        }
        (frames, end)
    }

    /// The frames that may be carried on were read; None if they could not be.
    pub fn on_load_read(&mut self, read: Option<Buffer>, desk: &Desk) {
        let mut load = self.carrying.load.take().expect("it is kept while it is read");
        let Some(read) = read else { return };
        let mut records = Vec::new();
        let first = load.frames[0];
        for &(number, position) in &load.frames {
            let bytes = read.slice((position - first.1) as usize * BLOCK..read.len());
            // What is not as it was written stays, and is tried again.
            let Some(held) = self.held_in(number, position, &bytes, desk) else { break };
            if load.is_pinned && number == first.0 {
                self.carrying.stuck.extend(held.iter().map(|(_, record, _)| record.family));
            }
            if held.iter().any(|(_, record, _)| !self.carrying.stuck.contains(&record.family)) {
                break;
            }
            records.extend(held);
        }
        if records.is_empty() {
            return self.look_no_more(first.0);
        }
        load.records = Some(records);
        self.carrying.load = Some(load);
    }

    /// Not before something of it is let go of, or its time has come.
    fn look_no_more(&mut self, number: u64) {
        let live = self.frame_mut(number).map(|frame| frame.live);
        if let Some(seen) = self.carrying.seen.as_mut().filter(|seen| seen.number == number) {
            seen.looked_at = live;
        }
    }

    /// What is held in a frame, read from the drive; None if that is not all, or not sound.
    fn held_in(&self, number: u64, position: u64, read: &Buffer, desk: &Desk) -> Option<Vec<Held>> {
        let frame = self.frames.get(self.frames.partition_point(|frame| frame.number < number))?;
        let blocks = FrameHeader::claimed_blocks(read.bytes(), desk.drive, self.incarnation, position)?;
        let mut at = blocks as usize * BLOCK;
        let header = FrameHeader::decode(read.bytes().get(..at)?)?;
        if header.number != number || frame.number != number {
            return None;
        }
        let mut held = Vec::new();
        for record in header.records {
            let end = at + record.payload_blocks() as usize * BLOCK;
            if self.is_held_in(&record, number) {
                let payload = (end <= read.len()).then(|| read.slice(at..end))?;
                let is_sound = record.payload_len == 0
                    || payload.slice(0..record.payload_len as usize).checksum() == record.payload_crc;
                if !is_sound && !planted(Bug::CarriedUnchecked) {
                    return None;
                }
                held.push((number, record, payload));
            }
            at = end;
        }
        (held.len() == frame.live as usize).then_some(held)
    }

    fn is_held_in(&self, record: &RecordHeader, number: u64) -> bool {
        let holding = self.holdings.get(&record.family).filter(|_| record.kind.is_logged());
        let place = holding.and_then(|holding| holding.places.get(&record.seq));
        place.is_some_and(|place| place.home == Home::Frame(number) && place.epoch == record.epoch)
    }

    /// Writes what was read, as far as it is still held, in a frame of its own. At least as much as it takes becomes free when it counts.
    pub fn write_carried(&mut self, desk: &mut Desk) {
        let Some(mut load) = self.carrying.load.take_if(|load| load.records.is_some()) else { return };
        let mut held = load.records.take().expect("just seen");
        held.retain(|(number, record, _)| self.is_held_in(record, *number));
        if held.is_empty() || self.begins_a_round_in_vain(load.frames[0].0) {
            return;
        }
        let blocks_of = |held: &[Held]| {
            header_blocks(held.len()) + held.iter().map(|(_, record, _)| record.payload_blocks()).sum::<u64>()
        };
        if self.place(blocks_of(&held), LAST_BLOCKS).is_none() {
            // All of them together may not fit before the end of the ring, nor at its beginning.
            let first = held[0].0;
            held.retain(|(number, ..)| *number == first);
        }
        let blocks = blocks_of(&held);
        // Into the slack as well: it lets go of the oldest record.
        let Some(position) = self.place(blocks, LAST_BLOCKS) else {
            load.records = Some(held);
            self.carrying.load = Some(load);
            return;
        };
        self.carrying.round.1 += blocks;
        for (_, record, _) in &mut held {
            record.carried = true;
        }
        self.write_frame_with(position, 0, 0, held, desk);
    }

    /// When what was carried on comes round again: whether that was more than half of the ring.
    fn begins_a_round_in_vain(&mut self, number: u64) -> bool {
        let (first, blocks) = self.carrying.round;
        if number < first {
            return false;
        }
        self.carrying.exhausted = first > 0 && blocks > self.blocks / 2;
        self.carrying.round = (self.next_number, 0);
        self.carrying.exhausted
    }

    /// A frame counts: what it carries on is held there from now on, as far as it is held at all.
    pub fn settle_carried(&mut self, number: u64, carried: Vec<Carried>) {
        for Carried { family, seq, from, payload } in carried {
            let holding = self.holdings.get_mut(&family);
            let place = holding.and_then(|holding| {
                holding.was_carried = true;
                holding.places.get_mut(&seq)
            });
            if let Some(place) = place.filter(|place| place.home == Home::Frame(from)) {
                let moved =
                    Place { home: Home::Frame(number), payload, carried: true, told: false, ..*place };
                let former = std::mem::replace(place, moved);
                self.let_go(&former);
            } else {
                self.frame_mut(number).expect("a frame that settles now is there").live -= 1;
            }
        }
    }
}
