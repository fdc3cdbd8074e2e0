//! The keeper's desk: which calls are open, which drive operations are in flight and what each is for,
//! and what this step wants done.
//! Promises: each call is answered once; each token is used once.

use crate::identity::{DriveId, EgroupId, FamilyId, ShardId};
use crate::interface::{Area, DriveOperation, DriveWork, Notice};
use crate::keeper::Effects;
use crate::message::{Answer, Message, Refusal};
use crate::openings::TOKEN_BITS;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Who asked, and what to call the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Caller {
    pub from: ShardId,
    pub call: u64,
    pub family: FamilyId,
}

/// What a drive operation in flight is for.
#[derive(Debug)]
pub(super) enum Work {
    /// Superblocks: both copies, or the one of this number after both could not be read at once.
    Superblock {
        copy: Option<usize>,
    },
    /// The write of both superblocks at formatting.
    Format,
    /// A flush before the drive is looked through.
    FirstFlush,
    /// A part of an area that is looked through at opening.
    Sweep {
        area: Area,
        offset: u64,
        len: u32,
    },
    /// A page of the table that was not sound when it was looked through: read again, or erased.
    Doubtful {
        slot: u32,
    },
    Erased,
    /// A frame of the log.
    Frame {
        number: u64,
    },
    /// Frames of the log that are read to be carried on, or the payload of a record of theirs.
    Load {
        piece: Option<usize>,
    },
    /// A part of a job of reading the log.
    LogPart {
        job: u64,
        part: usize,
    },
    /// Something an egroup's job wrote to the data area.
    Stored {
        job: u64,
    },
    /// The flush of the data area.
    Flush,
    /// A part of a job of reading units.
    Units {
        job: u64,
        part: usize,
    },
    /// The frame that begins with this unit, read again alone.
    UnitsAgain {
        job: u64,
        unit: u32,
    },
    /// The trailer of an egroup.
    Trailer {
        job: u64,
    },
    /// The trailer of an egroup found at opening, for its hashes; the name, and the slot that it had.
    Refill {
        name: (FamilyId, EgroupId),
        slot: u32,
    },
    /// A run that an egroup's job may refer to, and that nobody has seen yet.
    Proof {
        job: u64,
        run: usize,
    },
    /// After this the run may be used again.
    Discard {
        first: u64,
        blocks: u64,
    },
}

impl Work {
    pub fn is_hint(&self) -> bool {
        matches!(self, Work::Discard { .. })
    }

    /// Whether it only reads.
    pub fn is_read(&self) -> bool {
        match self {
            Work::Superblock { .. }
            | Work::Sweep { .. }
            | Work::Doubtful { .. }
            | Work::Load { .. }
            | Work::LogPart { .. }
            | Work::Units { .. }
            | Work::UnitsAgain { .. }
            | Work::Trailer { .. }
            | Work::Refill { .. }
            | Work::Proof { .. } => true,
            Work::Format
            | Work::FirstFlush
            | Work::Erased
            | Work::Frame { .. }
            | Work::Stored { .. }
            | Work::Flush
            | Work::Discard { .. } => false,
        }
    }
}

pub(super) struct Desk {
    pub drive: DriveId,
    token_base: u64,
    counter: u64,
    flights: BTreeMap<u64, Work>,
    calls: BTreeMap<(ShardId, u64), FamilyId>,
    pub effects: Effects,
    /// Calls that were answered in this step.
    pub answered: Vec<Caller>,
}

impl Desk {
    pub fn new(drive: DriveId, token_base: u64) -> Self {
        assert!(token_base.trailing_zeros() >= TOKEN_BITS, "the low bits of a token are the keeper's own");
        Self {
            drive,
            token_base,
            counter: 0,
            flights: BTreeMap::new(),
            calls: BTreeMap::new(),
            effects: Effects::default(),
            answered: Vec::new(),
        }
    }

    pub fn submit(&mut self, area: Area, work: DriveWork, purpose: Work) {
        self.counter += 1;
        assert!(self.counter < 1 << TOKEN_BITS, "a keeper does fewer operations than it has numbers");
        let token = self.token_base | self.counter;
        self.flights.insert(token, purpose);
        self.effects.operations.push(DriveOperation { token, drive: self.drive, area, work });
    }

    /// What the operation that ended was for; None if it was forgotten.
    pub fn landed(&mut self, token: u64) -> Option<Work> {
        self.flights.remove(&token)
    }

    /// False if this very call is being worked on already, or another one that somebody has given the same number.
    pub fn begin(&mut self, caller: Caller) -> bool {
        match self.calls.entry((caller.from, caller.call)) {
            Entry::Vacant(place) => {
                place.insert(caller.family);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    pub fn answer(&mut self, caller: Caller, answer: Result<Answer, Refusal>) {
        let known = self.calls.remove(&(caller.from, caller.call));
        assert!(known == Some(caller.family), "each call is answered once");
        self.answered.push(caller);
        let Caller { from, call, family } = caller;
        // What is free is filled in at the end of the step, when it is known.
        let message = Message::Answer { call, drive: self.drive, family, free: 0, answer };
        self.effects.messages.push((from, message));
    }

    pub fn refuse(&mut self, caller: Caller, refusal: Refusal) {
        self.answer(caller, Err(refusal));
    }

    pub fn notice(&mut self, notice: Notice) {
        self.effects.notices.push(notice);
    }

    /// The drive failed: nothing comes back any more, and nobody waits any longer.
    pub fn abandon(&mut self) {
        self.flights.clear();
        self.effects.operations.clear();
        self.answered.clear();
        for ((from, call), family) in std::mem::take(&mut self.calls) {
            let answer = Err(Refusal::DriveGone);
            let message = Message::Answer { call, drive: self.drive, family, free: 0, answer };
            self.effects.messages.push((from, message));
        }
    }

    /// Hands over what this step wants done. `has_egroups`: of a family, for whoever opens it.
    pub fn hand_over(&mut self, free: u64, has_egroups: impl Fn(FamilyId) -> bool, effects: &mut Effects) {
        for (_, message) in &mut self.effects.messages {
            if let Message::Answer { free: place, family, answer, .. } = message {
                *place = free;
                if let Ok(Answer::Fenced(held)) = answer {
                    held.egroups = has_egroups(*family);
                }
            }
        }
        effects.operations.append(&mut self.effects.operations);
        effects.messages.append(&mut self.effects.messages);
        effects.notices.append(&mut self.effects.notices);
        effects.tally.add(std::mem::take(&mut self.effects.tally));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_used_for_longer_than_some_weeks() {
        let opening = 3 << TOKEN_BITS;
        let desk = Desk::new(DriveId(1), opening);
        let mut desk = Desk { counter: (1 << 40) - 1, ..desk };
        for _ in 0..3 {
            desk.submit(Area::Data, DriveWork::Flush, Work::Flush);
        }
        let tokens: Vec<u64> = desk.effects.operations.iter().map(|operation| operation.token).collect();
        assert_eq!(tokens, [0, 1, 2].map(|more| opening + (1 << 40) + more));
        assert!(tokens.iter().all(|&token| desk.landed(token).is_some()));
    }
}
