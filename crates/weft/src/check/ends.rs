//! Where the log of a vDisk ends, from what the members of its last segment hold: as an owner that opens it decides
//! (docs/decisions/0030-where-a-damaged-log-ends.md).
//! Promises: a record counts for where the log ended whether it can be read or not, or damage at the end would look like a log
//! that is shorter.
//! Leaves to others: what the records say (`family`), which of a drive's frames count (`held`).

use super::held::HeldRecord;
use std::collections::BTreeMap;
use weft_engine::{DriveId, Seq};

/// What one member of the last segment tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberEnd {
    /// The last record it holds, or the one before the segment.
    pub last: Seq,
    /// A frame is missing that may have held more.
    pub incomplete: bool,
}

impl MemberEnd {
    /// `missing`: the last frame of the drive that should be there and is not. `before`: what comes before the segment.
    pub fn of(records: &BTreeMap<Seq, HeldRecord>, missing: Option<u64>, before: Seq) -> Self {
        let last = records.keys().next_back().copied().unwrap_or(Seq(0)).max(before);
        // What is behind the damage follows it: a gap would be noticed.
        let last_frame = records.values().rev().find(|record| record.sound).map_or(0, |record| record.frame);
        Self { last, incomplete: missing.is_some_and(|missing| last_frame < missing) }
    }
}

/// Where the log ends.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Ends {
    /// The last record that every member holds: what comes after was never acknowledged.
    pub acknowledged: Seq,
    /// The last record that any member holds.
    pub end: Seq,
    /// The last record of each member.
    of_members: BTreeMap<DriveId, Seq>,
}

impl Ends {
    /// None: no member can be read.
    pub fn of(members: &BTreeMap<DriveId, MemberEnd>) -> Option<Self> {
        // Who has lost a part of its ring does not know where the log ended, as long as somebody else does.
        let knows = members.values().any(|member| !member.incomplete);
        let counted =
            || members.values().filter(|member| !(knows && member.incomplete)).map(|member| member.last);
        Some(Self {
            acknowledged: counted().min()?,
            end: counted().max()?,
            of_members: members.iter().map(|(drive, member)| (*drive, member.last)).collect(),
        })
    }

    /// Nothing of the last segment can be told: the log as it is known ends in front of it.
    pub fn before(last: Seq) -> Self {
        Self { acknowledged: last, end: last, of_members: BTreeMap::new() }
    }

    /// Whether this member has to have a sound copy of the record. What only some have at the very end is what was on its way when
    /// the node ended; but what a member has, or has something behind, it had wholly.
    pub fn is_due(&self, drive: DriveId, seq: Seq) -> bool {
        seq <= self.acknowledged || self.of_members.get(&drive).is_some_and(|last| seq <= *last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(members: &[(u32, u64, bool)]) -> Ends {
        let members = members
            .iter()
            .map(|&(drive, last, incomplete)| (DriveId(drive), MemberEnd { last: Seq(last), incomplete }));
        Ends::of(&members.collect()).expect("there are members")
    }

    #[test]
    fn what_one_member_lacks_at_the_end_was_on_its_way() {
        let ends = ends(&[(1, 9, false), (2, 7, false)]);
        assert_eq!((ends.acknowledged, ends.end), (Seq(7), Seq(9)));
        assert!(ends.is_due(DriveId(2), Seq(7)) && !ends.is_due(DriveId(2), Seq(8)), "it never had it");
        assert!(
            ends.is_due(DriveId(1), Seq(9)) && !ends.is_due(DriveId(1), Seq(10)),
            "what it has, it has whole"
        );
        assert!(!ends.is_due(DriveId(3), Seq(8)), "no member of the last segment");
    }

    #[test]
    fn who_has_lost_a_part_of_its_ring_does_not_know_the_end() {
        let ends_of_both = ends(&[(1, 9, false), (2, 4, true)]);
        assert_eq!((ends_of_both.acknowledged, ends_of_both.end), (Seq(9), Seq(9)));
        assert!(ends_of_both.is_due(DriveId(2), Seq(9)), "it had what the other one has");
        let alone = ends(&[(2, 4, true)]);
        assert_eq!(
            (alone.acknowledged, alone.end),
            (Seq(4), Seq(4)),
            "if nobody else is left it is believed"
        );
        assert_eq!(Ends::of(&BTreeMap::new()), None);
    }
}
