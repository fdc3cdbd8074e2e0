//! The openings of a shard's drives, and what is under way on each of them.
//! Promises: a drive is opened again only when everything that its earlier openings asked of it has ended: a slow write of
//! theirs would land on what has come to lie there since. Numbers last: those of openings are used again, those of operations are
//! enough for as long as a drive lives.
//! Leaves to others: what a drive is opened for (`keeper`).

use crate::identity::DriveId;
use crate::interface::{DriveOperation, Geometry};
use std::collections::BTreeMap;

/// Tokens of operations begin with the number of the opening; these bits are left for what its keeper asks for. At a million operations
/// a second that is nine years of one opening.
pub(crate) const TOKEN_BITS: u32 = 48;

/// Numbers of openings. One is used again when all of the others were, and only if nothing of it is under way any more.
const NUMBERS: u64 = 1 << (u64::BITS - TOKEN_BITS);

struct Opening {
    drive: DriveId,
    /// Operations that have not ended.
    under_way: u64,
    is_closed: bool,
}

/// How a drive is to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    pub geometry: Geometry,
    pub format: bool,
    /// See [`crate::interface::Order::OpenDrive`].
    pub incarnation: Option<u64>,
}

#[derive(Default)]
pub struct Openings {
    openings: BTreeMap<u64, Opening>,
    /// The number that was given last.
    last: u64,
    /// Drives that will be opened when what is under way there has ended.
    waiting: BTreeMap<DriveId, Wish>,
}

/// Whose operation has ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The present opening's of this drive.
    Own(DriveId),
    /// One's that was closed since.
    Closed(DriveId),
    /// Nobody's who is known here.
    Unknown,
}

impl Openings {
    /// A new opening, whose tokens begin with the answer; None while the drive still has something to end: it is then
    /// remembered, for [`Self::may_open`].
    pub fn open(&mut self, drive: DriveId, wish: Wish) -> Option<u64> {
        self.close(drive);
        if self.is_busy(drive) {
            self.waiting.insert(drive, wish);
            return None;
        }
        assert!((self.openings.len() as u64) < NUMBERS, "a shard has fewer drives than numbers");
        self.last = (self.last + 1) % NUMBERS;
        while self.openings.contains_key(&self.last) {
            self.last = (self.last + 1) % NUMBERS;
        }
        self.openings.insert(self.last, Opening { drive, under_way: 0, is_closed: false });
        Some(self.last << TOKEN_BITS)
    }

    /// Nobody wants to use it any more.
    pub fn close(&mut self, drive: DriveId) {
        self.waiting.remove(&drive);
        for opening in self.openings.values_mut().filter(|opening| opening.drive == drive) {
            opening.is_closed = true;
        }
        self.openings.retain(|_, opening| !opening.is_closed || opening.under_way > 0);
    }

    /// An operation begins.
    pub fn begins(&mut self, operation: &DriveOperation) {
        let number = operation.token >> TOKEN_BITS;
        self.openings.get_mut(&number).expect("who asks has an opening").under_way += 1;
    }

    /// The operation with this token has ended.
    pub fn ended(&mut self, token: u64) -> Ended {
        let number = token >> TOKEN_BITS;
        let Some(opening) = self.openings.get_mut(&number) else { return Ended::Unknown };
        let drive = opening.drive;
        opening.under_way -= 1;
        if !opening.is_closed {
            return Ended::Own(drive);
        }
        if opening.under_way == 0 {
            self.openings.remove(&number);
        }
        Ended::Closed(drive)
    }

    /// How `drive` is to be opened, if that waited for what has now ended.
    pub fn may_open(&mut self, drive: DriveId) -> Option<Wish> {
        if self.is_busy(drive) { None } else { self.waiting.remove(&drive) }
    }

    fn is_busy(&self, drive: DriveId) -> bool {
        self.openings.values().any(|opening| opening.drive == drive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::{Area, DriveWork};

    const DRIVE: DriveId = DriveId(3);

    fn wish() -> Wish {
        Wish { geometry: Geometry { log: 1 << 20, data: 1 << 20 }, format: false, incarnation: None }
    }

    fn operation(token: u64) -> DriveOperation {
        DriveOperation { token, drive: DRIVE, area: Area::Log, work: DriveWork::Flush }
    }

    #[test]
    fn a_drive_is_opened_again_when_all_that_was_asked_of_it_has_ended() {
        let mut openings = Openings::default();
        let first = openings.open(DRIVE, wish()).expect("nothing is under way");
        openings.begins(&operation(first + 1));
        openings.begins(&operation(first + 2));
        assert!(openings.open(DRIVE, wish()).is_none());
        assert!(openings.open(DriveId(4), wish()).is_some(), "another drive has nothing to do with it");
        assert_eq!(openings.ended(first + 2), Ended::Closed(DRIVE));
        assert!(openings.may_open(DRIVE).is_none(), "one is left");
        assert_eq!(openings.ended(first + 1), Ended::Closed(DRIVE));
        assert!(openings.may_open(DRIVE).is_some());
        assert!(openings.may_open(DRIVE).is_none(), "once");
        let second = openings.open(DRIVE, wish()).expect("nothing is under way");
        openings.begins(&operation(second + 1));
        assert_eq!(openings.ended(first + 1), Ended::Unknown);
        assert_eq!(openings.ended(second + 1), Ended::Own(DRIVE));
    }

    #[test]
    fn a_drive_that_is_closed_meanwhile_stays_closed() {
        let mut openings = Openings::default();
        let first = openings.open(DRIVE, wish()).expect("nothing is under way");
        openings.begins(&operation(first));
        assert!(openings.open(DRIVE, wish()).is_none());
        openings.close(DRIVE);
        assert_eq!(openings.ended(first), Ended::Closed(DRIVE));
        assert!(openings.may_open(DRIVE).is_none());
    }

    #[test]
    fn a_drive_can_be_opened_for_ever() {
        let mut openings = Openings { last: NUMBERS - 2, ..Openings::default() };
        let other = DriveId(4);
        let stays = openings.open(other, wish()).expect("nothing is under way");
        openings.begins(&operation(stays + 1));
        let mut before = stays;
        for _ in 0..2 * NUMBERS {
            let token = openings.open(DRIVE, wish()).expect("nothing is under way");
            assert!(token != before && token != stays, "somebody else has this number");
            before = token;
            openings.begins(&operation(token + 1));
            assert_eq!(openings.ended(token + 1), Ended::Own(DRIVE));
        }
        assert_eq!(openings.ended(stays + 1), Ended::Own(other));
    }
}
