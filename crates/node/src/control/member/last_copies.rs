//! Whether drives that are to be given up may have the only copy that there is now.
//! Promises: who gives a drive up while all others with the same data are away is told, and says that it is meant.
//! Leaves to others: giving up (`nodes.rs`). Who has which copies in truth owners alone know: here a drive that is up and shares a group
//! or a log counts as one that has them.

use super::status::drives_up;
use crate::config::cluster::ClusterConfig;
use crate::config::{DriveRecordState, FamilyState};
use crate::control::refusal::Refusal;
use std::collections::BTreeSet;

/// vDisks that are named in a refusal.
const NAMED_MAX: usize = 5;

/// What nobody else has who is up.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LastCopies {
    groups: usize,
    /// Whose logs.
    vdisks: BTreeSet<String>,
    /// Drives that would have it and are away.
    away: BTreeSet<u32>,
}

impl LastCopies {
    /// What of groups in use and logs lies on these drives and on no other that is up.
    pub fn of(config: &ClusterConfig, going: &BTreeSet<u32>) -> Self {
        let up = drives_up(config);
        let lost = config.drives.values().filter(|drive| drive.record.state == DriveRecordState::Lost);
        let lost = lost.map(|drive| drive.record.drive).collect();
        let among = Among { going, up: &up, lost: &lost };
        let living = || config.families.values().filter(|family| family.record.state == FamilyState::Live);
        // Groups of one drive stay when nothing is in them any more.
        let has_single = living().any(|family| config.policy(&family.record).factor == 1);
        let mut found = Self::default();
        for group in config.groups.values().map(|group| &group.record) {
            let drives = group.members.iter().chain(&group.former).copied();
            if (group.members.len() > 1 || has_single)
                && let Some(away) = among.last(drives)
            {
                found.groups += 1;
                found.away.extend(away);
            }
        }
        for family in living().map(|family| &family.record) {
            for away in family.segments.iter().filter_map(|segment| among.last(segment.drives().copied())) {
                found.vdisks.insert(family.name.clone());
                found.away.extend(away);
            }
        }
        found
    }

    /// `what`: a drive or a node, as it is to be called. None: others have everything.
    pub fn refusal(&self, what: &str) -> Option<Refusal> {
        if *self == Self::default() {
            return None;
        }
        let mut parts = Vec::new();
        if self.groups > 0 {
            parts.push(format!("{} placement group(s)", self.groups));
        }
        if !self.vdisks.is_empty() {
            let named: Vec<&str> = self.vdisks.iter().map(String::as_str).take(NAMED_MAX).collect();
            let more = self.vdisks.len().saturating_sub(NAMED_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            parts.push(format!("the log(s) of {}{more}", named.join(", ")));
        }
        let away: Vec<String> = self.away.iter().map(u32::to_string).collect();
        let advice = if away.is_empty() {
            "nobody else has it; --lose-data gives it up".to_string()
        } else {
            format!(
                "drive(s) {} may have it too and are away: start them first (`weft drive ls` shows where they are), or, if they are gone \
                 for good as well, say --lose-data",
                away.join(", ")
            )
        };
        Some(Refusal::conflict(format!(
            "{what} may have the only copy of what is in {} that there is now; {advice}",
            parts.join(" and in ")
        )))
    }
}

struct Among<'a> {
    going: &'a BTreeSet<u32>,
    up: &'a BTreeSet<u32>,
    lost: &'a BTreeSet<u32>,
}

impl Among<'_> {
    /// Of drives with the same data: if some of them go and nobody else is up, those that are away.
    fn last(&self, drives: impl Iterator<Item = u32>) -> Option<Vec<u32>> {
        let (going, others): (Vec<u32>, Vec<u32>) =
            drives.filter(|drive| !self.lost.contains(drive)).partition(|drive| self.going.contains(drive));
        let is_last = !going.is_empty() && !others.iter().any(|drive| self.up.contains(drive));
        is_last.then_some(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_up_beside_those_that_go_has_the_copies() {
        let set = |drives: &[u32]| drives.iter().copied().collect::<BTreeSet<u32>>();
        let (going, up, lost) = (set(&[1]), set(&[2, 4]), set(&[5]));
        let among = Among { going: &going, up: &up, lost: &lost };
        let last = |drives: &[u32]| among.last(drives.iter().copied());
        assert_eq!(last(&[1, 2]), None);
        assert_eq!(last(&[3, 5]), None, "it does not concern who goes");
        assert_eq!(last(&[1, 3]), Some(vec![3]), "it is away");
        assert_eq!(last(&[1, 5]), Some(vec![]), "it is lost");
        assert_eq!(last(&[1, 3, 4]), None, "a former member counts");
        let both = set(&[1, 2]);
        let among = Among { going: &both, ..among };
        assert_eq!(among.last([1, 2].into_iter()), Some(vec![]), "they go together");
    }

    #[test]
    fn a_refusal_names_what_and_whom() {
        assert!(LastCopies::default().refusal("drive 1").is_none());
        let vdisks = (0..7).map(|number| format!("vm{number}")).collect();
        let found = LastCopies { groups: 2, vdisks, away: BTreeSet::from([3]) };
        let told = found.refusal("drive 1").expect("it is the last copy").to_string();
        for part in ["drive 1 may", "2 placement", "vm0", "and 2 more", "drive(s) 3", "--lose-data"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
}
