//! Whether space is exact (I8) and every egroup lies where its family believes, once everything has settled:
//! runs never overlap, nothing is missing, nothing is left over, and all copies are the same bytes.

use crate::drive::Drive;
use crate::platter::Content;
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::buffer::{BLOCK, Buffer, is_zero, zeros};
use weft_engine::checksum::unit_checksum;
use weft_engine::formats::layout::Layout;
use weft_engine::formats::references::References;
use weft_engine::formats::table::TablePage;
use weft_engine::interface::Area;
use weft_engine::{DriveId, EgroupId, FamilyId};

/// An egroup as a drive's keeper has it. Blocks are of the drive's data area; the units come first, packed or not, but for those
/// that lie elsewhere.
#[derive(Clone, Debug)]
pub struct Held {
    pub drive: DriveId,
    pub family: FamilyId,
    pub egroup: EgroupId,
    pub first: u64,
    pub blocks: u64,
    pub units: u64,
    /// Blocks that the units take, and bytes.
    pub stored: u64,
    pub bytes: u32,
    pub references: References,
}

/// What a drive's keeper says of its blocks: free, in runs or held by references, on their way; and those that only references hold.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    pub drive: DriveId,
    pub free: u64,
    pub stored: u64,
    pub moving: u64,
    pub held: u64,
}

/// An egroup as its family has it, and the drives that should hold it.
#[derive(Clone, Debug)]
pub struct Named {
    pub family: FamilyId,
    pub egroup: EgroupId,
    pub units: u64,
    pub stored: u64,
    pub members: Vec<DriveId>,
    /// Drives where a copy may still lie.
    pub former: Vec<DriveId>,
}

/// No two egroups of one drive share a block, and all lie inside.
pub fn runs_are_apart(held: &[Held], blocks: impl Fn(DriveId) -> u64) -> Result<(), String> {
    let mut runs: Vec<&Held> = held.iter().collect();
    runs.sort_by_key(|run| (run.drive, run.first));
    for run in &runs {
        let elsewhere = u64::from(run.references.bytes() / BLOCK as u32);
        if run.first + run.blocks > blocks(run.drive) || run.stored > run.blocks + elsewhere {
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

/// Each block of a drive is in a run, referred to, or free, and its keeper counts it so. Err: the first drive where it is not. Gives the
/// blocks that egroups need not have of their own, and those that only references hold.
pub fn blocks_are_counted(
    held: &[Held],
    counted: &[Counted],
    blocks: impl Fn(DriveId) -> u64,
) -> Result<(u64, u64), String> {
    let (mut shared, mut left) = (0, 0);
    for counted in counted {
        let mine = held.iter().filter(|held| held.drive == counted.drive);
        let mut runs: Vec<(u64, u64)> =
            mine.clone().map(|held| (held.first, held.first + held.blocks)).collect();
        let in_runs = covered(&mut runs);
        runs.extend(mine.clone().flat_map(|held| held.references.iter()).map(|reference| {
            let blocks = reference.blocks();
            (blocks.start, blocks.end)
        }));
        let in_all = covered(&mut runs);
        let units = blocks(counted.drive);
        if (counted.stored, counted.held, counted.free + counted.stored) != (in_all, in_all - in_runs, units)
        {
            return Err(format!(
                "of {units} blocks of drive {} {in_all} are in runs or referred to, {} of them only referred to; its keeper says {counted:?}",
                counted.drive,
                in_all - in_runs
            ));
        }
        shared += mine.map(|held| u64::from(held.references.bytes()) / BLOCK as u64).sum::<u64>();
        left += counted.held;
    }
    Ok((shared, left))
}

/// Blocks in any of these ranges.
fn covered(ranges: &mut [(u64, u64)]) -> u64 {
    ranges.sort_unstable();
    let (mut sum, mut next) = (0, 0);
    for &mut (first, end) in ranges {
        sum += end.saturating_sub(first.max(next));
        next = next.max(end);
    }
    sum
}

/// What drives hold is what families name.
pub fn nothing_missing_nothing_left(named: &[Named], held: &[Held]) -> Result<(), String> {
    let there: BTreeMap<(FamilyId, EgroupId, DriveId), (u64, u64)> =
        held.iter().map(|held| ((held.family, held.egroup, held.drive), (held.units, held.stored))).collect();
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
                Some(&sizes) if sizes != (name.units, name.stored) => {
                    let (units, stored) = sizes;
                    return Err(format!(
                        "family {} egroup {} has {units} units in {stored} blocks on drive {drive}, its family says \
                         {} in {}",
                        name.family, name.egroup, name.units, name.stored
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

/// What the comparison of copies found.
#[derive(Default)]
pub struct Compared {
    pub blocks: u64,
    /// Blocks that are not what their own checksums say, where that may be: the engine knows as soon as it reads them.
    pub unread_damage: u64,
}

/// All copies of an egroup are the same bytes. A block that does not fit the checksum beside it is damage that
/// was not met yet, or that cannot be made good, of which a copy may have none but those that `may_be_bad`.
pub fn copies_are_equal(
    held: &[Held],
    drives: &[Drive],
    may_be_bad: impl Fn(&Held, u64) -> bool,
) -> Result<Compared, String> {
    let mut first: BTreeMap<(FamilyId, EgroupId), &Held> = BTreeMap::new();
    let mut compared = Compared::default();
    for copy in held {
        let Some(other) = first.get(&(copy.family, copy.egroup)) else {
            first.insert((copy.family, copy.egroup), copy);
            continue;
        };
        for block in 0..copy.stored {
            let (a, b) = (&content(other, block, drives), &content(copy, block, drives));
            compared.blocks += 1;
            if same(a, b) {
                continue;
            }
            let bad: Vec<&Held> =
                [*other, copy].into_iter().filter(|held| !fits_its_checksum(held, block, drives)).collect();
            if !bad.is_empty() && bad.iter().all(|held| may_be_bad(held, block)) {
                compared.unread_damage += 1;
                continue;
            }
            let begin = |content: &Content| content.as_ref().map(|content| content.bytes()[..8].to_vec());
            return Err(format!(
                "block {block} of family {} egroup {} differs: {other:?} begins {:02x?}, {copy:?} begins {:02x?}; \
                 not what their checksums say: {bad:?}",
                copy.family,
                copy.egroup,
                begin(a),
                begin(b)
            ));
        }
    }
    Ok(compared)
}

/// A block of the egroup, as if all of it were its own.
fn content(held: &Held, block: u64, drives: &[Drive]) -> Content {
    let data = drives[held.drive.0 as usize].area(Area::Data);
    if held.references.is_empty() {
        return data.content((held.first + block) as usize).clone();
    }
    let mut bytes = Vec::with_capacity(BLOCK);
    let at = block as u32 * BLOCK as u32;
    let behind = (at + BLOCK as u32).min(held.bytes);
    while at + (bytes.len() as u32) < behind {
        let begin = at + bytes.len() as u32;
        // References begin and end anywhere.
        let edges = held.references.iter().flat_map(|reference| [reference.at, reference.at + reference.len]);
        let end = edges.filter(|&edge| edge > begin).min().unwrap_or(behind).min(behind);
        let mut left = (end - begin) as usize;
        let mut place = held.references.place_of(held.first, begin);
        while left > 0 {
            let from = (place % BLOCK as u64) as usize;
            let count = left.min(BLOCK - from);
            match data.content((place / BLOCK as u64) as usize) {
                Some(content) => bytes.extend_from_slice(&content.bytes()[from..from + count]),
                None => bytes.resize(bytes.len() + count, 0),
            }
            (left, place) = (left - count, place + count as u64);
        }
    }
    bytes.resize(BLOCK, 0);
    Some(Buffer::copied(&bytes))
}

fn same(a: &Content, b: &Content) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => std::ptr::eq(a.bytes(), b.bytes()) || a == b,
        (None, None) => true,
        (Some(a), None) | (None, Some(a)) => is_zero(a.bytes()),
    }
}

/// What a drive's table says of the copy that begins there.
pub fn page_of(drive: &Drive, family: FamilyId, egroup: EgroupId, first: u64) -> Option<TablePage> {
    let layout = Layout::of(drive.geometry.data);
    let mut pages =
        (layout.table..layout.units).filter_map(|at| drive.area(Area::Data).content(at as usize).as_ref());
    let is_it = |page: &TablePage| page.family == family && page.egroup == egroup && page.first == first;
    pages.find_map(|page| TablePage::decode(page.bytes()).filter(is_it))
}

/// Whether the frames that lie on this block of the run are what the egroup's page in the drive's table says.
fn fits_its_checksum(held: &Held, block: u64, drives: &[Drive]) -> bool {
    let drive = &drives[held.drive.0 as usize];
    let Some(page) = page_of(drive, held.family, held.egroup, held.first) else { return false };
    let frames = (0..page.units()).map(|unit| page.frame_of(unit));
    let mut there = frames.filter(|frame| frame.blocks().contains(&(block as u32)));
    there.all(|frame| {
        let mut bytes = Vec::new();
        for block in frame.blocks() {
            let content = content(held, u64::from(block), drives).unwrap_or_else(|| zeros(BLOCK));
            bytes.extend_from_slice(content.bytes());
        }
        let start = frame.offset as usize % BLOCK;
        let bytes = &bytes[start..start + frame.len as usize];
        page.checksums.get(frame.index as usize)
            == Some(&unit_checksum(held.family, held.egroup, frame.first, bytes))
    })
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
            stored: 9,
            bytes: 9 * BLOCK as u32,
            references: References::default(),
        }
    }

    fn named(egroup: u64, members: &[u32]) -> Named {
        Named {
            family: FamilyId(1),
            egroup: EgroupId(egroup),
            units: 9,
            stored: 9,
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
    fn blocks_that_are_counted_wrong_are_seen() {
        let references = References::of([(0, 4, 18 * BLOCK as u64)], None, 9).expect("it is sound");
        let copy = Held { blocks: 6, references, ..held(0, 2, 10) };
        let judge = |held: &[Held], free, stored, only| {
            let counted = Counted { drive: DriveId(0), free, stored, moving: 0, held: only };
            blocks_are_counted(held, &[counted], |_| 50)
        };
        let home = held(0, 1, 16);
        assert_eq!(judge(&[home.clone(), copy.clone()], 34, 16, 0), Ok((4, 0)));
        assert_eq!(judge(std::slice::from_ref(&copy), 40, 10, 4), Ok((4, 4)));
        assert!(judge(std::slice::from_ref(&copy), 44, 6, 0).is_err(), "freed although referred to");
        assert!(judge(&[home], 36, 14, 4).is_err(), "held although nobody refers to it");
    }

    #[test]
    fn missing_and_left_over_egroups_are_seen() {
        let judge = nothing_missing_nothing_left;
        assert_eq!(judge(&[named(1, &[0, 1])], &[held(0, 1, 0), held(1, 1, 0)]), Ok(()));
        assert!(judge(&[named(1, &[0, 1])], &[held(0, 1, 0)]).is_err());
        assert!(judge(&[], &[held(0, 1, 0)]).is_err());
    }
}
