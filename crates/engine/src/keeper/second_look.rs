//! Looking once more at what of a ring was not sound when it was read through: a bit may have changed on its way, and a drive may have
//! been away for a moment. What is unsound again is damaged; what the drive does not give is asked for some times more.
//! Promises: whether the end of what was written can be told at all: not if a block cannot be read where more may have been; and whether
//! a header lies there that is not sound.
//! Leaves to others: what counts of what was found (`ring_replay`), and when it is looked again (`opening`).

use crate::buffer::{BLOCK, Buffer};
use crate::formats::frame::HEADER_BLOCKS_MAX;
use crate::interface::Area;
use crate::keeper::desk::Desk;
use crate::keeper::ring::Ring;
use crate::keeper::ring_replay::{Chain, chain};
use crate::keeper::ring_scan::{FoundFrame, RingScan};
use crate::keeper::sweep::Sweep;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What a ring has, and how sure that is.
pub(super) struct Findings {
    pub found: BTreeMap<u64, FoundFrame>,
    /// A block that nobody could read, behind the last frame that counts: something may have been written there.
    pub unknown: Option<u64>,
    /// Where the next frame would begin, one does that has no sound header.
    pub is_header_torn: bool,
}

pub(super) struct SecondLook {
    found: BTreeMap<u64, FoundFrame>,
    /// Blocks that look like the beginning of a header, and of none that is sound.
    suspects: BTreeSet<u64>,
    incarnation: u64,
    /// Blocks of the ring, of its largest frames, and so many of them behind the last frame that what was in flight may lie in.
    blocks: u64,
    frame_blocks: u64,
    end_blocks: u64,
    /// Parts of the ring that are still to be looked at.
    parts: Vec<Range<u64>>,
    looking: Option<(Range<u64>, Sweep, RingScan)>,
    /// Blocks that could not be read in this look.
    unreadable: Vec<u64>,
}

impl SecondLook {
    /// At what was found by reading through the ring, of which these bytes could not be read.
    pub fn new(scan: RingScan, unreadable: &[u64], ring: &Ring) -> Self {
        let (found, suspects) = scan.finish();
        let frame = ring.frame_blocks_max + HEADER_BLOCKS_MAX;
        Self {
            found,
            suspects,
            incarnation: ring.incarnation,
            blocks: ring.blocks,
            // One more: a frame that does not fit before the end of the ring begins it anew.
            frame_blocks: frame,
            end_blocks: (frame * (ring.frames_in_flight as u64 + 1)).min(ring.blocks),
            parts: Vec::new(),
            looking: None,
            unreadable: unreadable.iter().map(|offset| offset / BLOCK as u64).collect(),
        }
    }

    /// Looks at all that is doubtful; says whether there is nothing to be waited for.
    pub fn begin(&mut self, desk: &mut Desk) -> bool {
        self.parts = self.doubtful();
        self.unreadable.clear();
        self.look_further(desk)
    }

    /// The same where the drive gave nothing.
    pub fn begin_again(&mut self, desk: &mut Desk) -> bool {
        self.parts = self.doubtful();
        let unreadable = std::mem::take(&mut self.unreadable);
        self.parts.retain(|part| unreadable.iter().any(|block| part.contains(block)));
        self.look_further(desk)
    }

    /// A part of the ring was read; None if it could not be. Says whether this was all.
    pub fn on_read(&mut self, offset: u64, len: u32, read: Option<Buffer>, desk: &mut Desk) -> bool {
        let (_, sweep, scan) = self.looking.as_mut().expect("whoever reads is looking");
        sweep.on_read(offset, len, read, desk);
        while let Some((offset, bytes)) = sweep.next(desk) {
            scan.feed(offset / BLOCK as u64, bytes.bytes());
        }
        if !sweep.is_done() {
            return false;
        }
        let (part, sweep, scan) = self.looking.take().expect("just seen");
        self.unreadable.extend(sweep.unreadable().iter().map(|offset| offset / BLOCK as u64));
        let (found, suspects) = scan.finish();
        self.suspects.retain(|block| !part.contains(block) || suspects.contains(block));
        for (number, seen) in found {
            let frame = self.found.entry(number).or_insert(FoundFrame { sound: Vec::new(), ..seen });
            frame.sound.resize(frame.header.records.len(), false);
            frame.sound.iter_mut().zip(seen.sound).for_each(|(sound, again)| *sound |= again);
        }
        self.look_further(desk)
    }

    fn look_further(&mut self, desk: &mut Desk) -> bool {
        let Some(part) = self.parts.pop() else { return true };
        let block = BLOCK as u64;
        let sweep = Sweep::begin(Area::Log, part.start * block, part.end * block, desk);
        self.looking = Some((part, sweep, RingScan::new(desk.drive, self.incarnation)));
        false
    }

    /// Whether something was not given that may be given later.
    pub fn is_unread(&self) -> bool {
        !self.unreadable.is_empty()
    }

    pub fn finish(self) -> Findings {
        let chain = chain(&self.found);
        let end = chain.kept.last().map_or(0, |last| self.end_of(&self.found[last]));
        let reach = self.reach(&chain, end);
        let behind = |block: &&u64| (**block + self.blocks - end) % self.blocks < reach;
        let unknown = self.unreadable.iter().find(behind).copied();
        // Behind a frame that is not whole too. One that does not fit before the end of the ring begins it anew.
        let torn = self.found.range(chain.last + 1..).map(|(_, frame)| self.end_of(frame));
        let is_header_torn = torn.chain([end]).any(|end| {
            self.suspects.contains(&end)
                || end + self.frame_blocks > self.blocks && self.suspects.contains(&0)
        });
        Findings { found: self.found, unknown, is_header_torn }
    }

    /// How far behind `end` what was in flight may lie: never beyond the oldest frame that is needed.
    fn reach(&self, chain: &Chain, end: u64) -> u64 {
        let oldest = chain.kept.first().map(|first| self.found[first].header.position);
        let free = oldest.map_or(self.blocks, |oldest| (oldest + self.blocks - end) % self.blocks);
        self.end_blocks.min(free)
    }

    fn end_of(&self, frame: &FoundFrame) -> u64 {
        (frame.header.position + frame.header.blocks()) % self.blocks
    }

    /// Where payloads are unsound, where frames are missing, and where one may follow the last.
    fn doubtful(&self) -> Vec<Range<u64>> {
        let chain = chain(&self.found);
        let mut parts = Vec::new();
        let mut add = |start: u64, len: u64| {
            let end = start + len;
            if len > 0 {
                parts.push(start..end.min(self.blocks));
            }
            if end > self.blocks {
                parts.push(0..end - self.blocks);
            }
        };
        let torn = self.found.range(chain.last + 1..).map(|(number, _)| number);
        let mut former: Option<&FoundFrame> = None;
        for number in chain.kept.iter().chain(torn) {
            let frame = &self.found[number];
            let header = &frame.header;
            match former {
                Some(former) => {
                    let before = former.header.number;
                    let is_next = header.number == before + 1
                        || header.number == header.session_first && header.session_after == before;
                    if !is_next {
                        let end = self.end_of(former);
                        add(end, (header.position + self.blocks - end) % self.blocks);
                    }
                }
                None if chain.missing.first().is_some_and(|missing| missing < number) => {
                    let start = (header.position + self.blocks - self.end_blocks) % self.blocks;
                    add(start, self.end_blocks);
                }
                None => {}
            }
            if !frame.sound.iter().all(|sound| *sound) {
                add(header.position, header.blocks());
            }
            former = Some(frame);
        }
        match former {
            Some(last) => {
                let end = self.end_of(last);
                add(end, self.reach(&chain, end));
            }
            // Nothing was ever written there, or the very first frames cannot be read.
            None if self.unreadable.iter().chain(&self.suspects).any(|block| *block < self.end_blocks) => {
                add(0, self.end_blocks)
            }
            None => {}
        }
        parts
    }
}
