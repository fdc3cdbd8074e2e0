//! Whether space is exact (I8) and every egroup lies where its family believes, once everything has settled:
//! runs never overlap, nothing is missing, nothing is left over, and all copies are the same bytes.

use crate::drive::Drive;
use crate::platter::Content;
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::interface::Area;
use weft_engine::{DriveId, EgroupId, FamilyId};

/// An egroup as a drive's keeper has it. Blocks are of the drive's data area; the units come first.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub drive: DriveId,
    pub family: FamilyId,
    pub egroup: EgroupId,
    pub first: u64,
    pub blocks: u64,
    pub units: u64,
}

/// An egroup as its family has it, and the drives that should hold it.
#[derive(Clone, Debug)]
pub struct Named {
    pub family: FamilyId,
    pub egroup: EgroupId,
    pub units: u64,
    pub members: Vec<DriveId>,
    /// Drives where a copy may still lie.
    pub former: Vec<DriveId>,
}

/// No two egroups of one drive share a block, and all lie inside.
pub fn runs_are_apart(held: &[Held], blocks: impl Fn(DriveId) -> u64) -> Result<(), String> {
    let mut runs: Vec<&Held> = held.iter().collect();
    runs.sort_by_key(|run| (run.drive, run.first));
    for run in &runs {
        if run.first + run.blocks > blocks(run.drive) || run.units > run.blocks {
            return Err(format!("an egroup lies outside its drive: {run:?}"));
        }
    }
    match runs
        .windows(2)
        .find(|two| two[0].drive == two[1].drive && two[0].first + two[0].blocks > two[1].first)
    {
        Some(two) => Err(format!("two egroups share blocks: {:?} and {:?}", two[0], two[1])),
        None => Ok(()),
    }
}

/// What drives hold is what families name.
pub fn nothing_missing_nothing_left(named: &[Named], held: &[Held]) -> Result<(), String> {
    let there: BTreeMap<(FamilyId, EgroupId, DriveId), u64> =
        held.iter().map(|held| ((held.family, held.egroup, held.drive), held.units)).collect();
    let mut allowed = BTreeSet::new();
    for name in named {
        for &drive in &name.members {
            match there.get(&(name.family, name.egroup, drive)) {
                None => {
                    return Err(format!(
                        "family {} egroup {} is missing on drive {drive}",
                        name.family, name.egroup
                    ));
                }
                Some(&units) if units != name.units => {
                    return Err(format!(
                        "family {} egroup {} has {units} units on drive {drive}, its family says {}",
                        name.family, name.egroup, name.units
                    ));
                }
                Some(_) => {}
            }
            allowed.insert((name.family, name.egroup, drive));
        }
        allowed.extend(name.former.iter().map(|&drive| (name.family, name.egroup, drive)));
    }
    match there.keys().find(|key| !allowed.contains(key)) {
        Some((family, egroup, drive)) => {
            Err(format!("family {family} egroup {egroup} lies on drive {drive}, but nobody names it there"))
        }
        None => Ok(()),
    }
}

/// All copies of an egroup are the same bytes.
pub fn copies_are_equal(held: &[Held], drives: &[Drive]) -> Result<u64, String> {
    let mut first: BTreeMap<(FamilyId, EgroupId), &Held> = BTreeMap::new();
    let mut compared = 0;
    for copy in held {
        let Some(other) = first.get(&(copy.family, copy.egroup)) else {
            first.insert((copy.family, copy.egroup), copy);
            continue;
        };
        let (one, two) =
            (drives[other.drive.0 as usize].area(Area::Data), drives[copy.drive.0 as usize].area(Area::Data));
        for unit in 0..copy.units {
            let (a, b) =
                (one.content((other.first + unit) as usize), two.content((copy.first + unit) as usize));
            let same = match (a, b) {
                (Some(a), Some(b)) => std::ptr::eq(a.bytes(), b.bytes()) || a == b,
                (None, None) => true,
                (Some(a), None) | (None, Some(a)) => weft_engine::buffer::is_zero(a.bytes()),
            };
            if !same {
                let begin = |content: &Content| content.as_ref().map(|content| content.bytes()[..8].to_vec());
                return Err(format!(
                    "unit {unit} of family {} egroup {} differs: {other:?} begins {:02x?}, {copy:?} begins {:02x?}",
                    copy.family,
                    copy.egroup,
                    begin(a),
                    begin(b)
                ));
            }
            compared += 1;
        }
    }
    Ok(compared)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(drive: u32, egroup: u64, first: u64) -> Held {
        Held {
            drive: DriveId(drive),
            family: FamilyId(1),
            egroup: EgroupId(egroup),
            first,
            blocks: 10,
            units: 9,
        }
    }

    fn named(egroup: u64, members: &[u32]) -> Named {
        Named {
            family: FamilyId(1),
            egroup: EgroupId(egroup),
            units: 9,
            members: members.iter().map(|&drive| DriveId(drive)).collect(),
            former: Vec::new(),
        }
    }

    #[test]
    fn overlaps_are_seen() {
        assert!(runs_are_apart(&[held(0, 1, 0), held(0, 2, 10), held(1, 3, 5)], |_| 20).is_ok());
        assert!(runs_are_apart(&[held(0, 1, 0), held(0, 2, 9)], |_| 20).is_err());
        assert!(runs_are_apart(&[held(0, 1, 11)], |_| 20).is_err());
    }

    #[test]
    fn missing_and_left_over_egroups_are_seen() {
        assert!(nothing_missing_nothing_left(&[named(1, &[0, 1])], &[held(0, 1, 0), held(1, 1, 0)]).is_ok());
        assert!(nothing_missing_nothing_left(&[named(1, &[0, 1])], &[held(0, 1, 0)]).is_err());
        assert!(nothing_missing_nothing_left(&[], &[held(0, 1, 0)]).is_err());
    }
}
