//! Whether everything has as many copies as an owner says, at the very moment when it says so: egroups that it names lie in groups
//! of that size, and each member holds them safe from a power cut.

use crate::drive::Drive;
use crate::judge::placement::Named;
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::formats::layout::Layout;
use weft_engine::formats::table::TablePage;
use weft_engine::interface::Area;
use weft_engine::{DriveId, EgroupId, FamilyId};

/// The egroups of one family, of which each should have `factor` copies. Nothing is asked of drives that are `excused`.
pub fn all_have_copies(
    named: &[Named],
    factor: u32,
    drives: &[Drive],
    excused: impl Fn(DriveId) -> bool,
) -> Result<(), String> {
    let mut there: BTreeMap<DriveId, BTreeSet<EgroupId>> = BTreeMap::new();
    for Named { family, egroup, members, .. } in named {
        if members.len() != factor as usize {
            return Err(format!(
                "egroup {egroup} lies in a group of {} drives, and {factor} copies are said to be there",
                members.len()
            ));
        }
        for &drive in members.iter().filter(|&&drive| !excused(drive)) {
            let held = there.entry(drive).or_insert_with(|| safely_held(&drives[drive.0 as usize], *family));
            if !held.contains(egroup) {
                return Err(format!(
                    "egroup {egroup} is said to have {factor} copies, but drive {drive} has none that is safe"
                ));
            }
        }
    }
    Ok(())
}

/// What of the family a drive would still have after a power cut that loses everything it may.
fn safely_held(drive: &Drive, family: FamilyId) -> BTreeSet<EgroupId> {
    let data = drive.area(Area::Data);
    let layout = Layout::of(drive.geometry.data);
    let pages = (layout.table..layout.units).filter_map(|at| data.safe_content(at as usize).as_ref());
    let pages = pages.filter_map(|page| TablePage::decode(page.bytes()));
    pages.filter(|page| page.family == family).map(|page| page.egroup).collect()
}
