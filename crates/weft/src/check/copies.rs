//! Whether everything that the map of a vDisk names is there, in as many copies as it should be, all the same, and only
//! once. What drives elsewhere may have is counted, not missed.
//! Leaves to others: finding the map (`family`), verifying units (`units`).

use super::contents::{Contents, Name};
use super::family::{Family, Group, Missing};
use super::findings::Findings;
use super::units::{self, Damaged};
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::formats::record::PageKind;
use weft_engine::formats::table::TablePage;
use weft_engine::map::past;
use weft_engine::{Block, DriveId, EgroupId, GroupId};

/// Losses behind which there may be egroups that are in use.
const NAMING: [&str; 5] =
    ["log_unreachable", "checkpoint_lost", "record_lost", "index_page_lost", "directory_page_lost"];

/// A run of mapped blocks in an egroup.
struct Mapped {
    unit: u32,
    count: u32,
    block: Block,
}

/// Units of an egroup that pages name.
#[derive(Debug, Clone, Copy, Default)]
struct Live {
    units: u32,
    /// Those of them that pages of the past name.
    past: u32,
}

/// What was counted.
#[derive(Debug, Default)]
pub struct Counted {
    pub leaves: u64,
    pub mapped_blocks: u64,
    /// Egroups with mapped blocks or pages in use.
    pub egroups: u64,
    /// Copies of egroups compared with the map.
    pub copies: u64,
    pub orphans: u64,
    pub orphan_bytes: u64,
    /// Egroups that nothing names, as is known for certain: nobody will ever read them.
    pub unnamed: BTreeSet<Name>,
    pub unseen: UnseenCopies,
}

/// What drives elsewhere may have.
#[derive(Debug, Default)]
pub struct UnseenCopies {
    pub leaf_pages: u64,
    pub copies: u64,
    /// Blocks and pages of which no sound copy is here.
    pub units: u64,
}

struct Check<'a> {
    family: &'a Family<'a>,
    damaged: &'a BTreeMap<DriveId, Damaged>,
    counted: Counted,
    /// Copies that present members of groups lack, and former ones have.
    owed: u64,
    /// Copies that were on drives that are given up.
    lost: BTreeMap<DriveId, Lost>,
}

#[derive(Debug, Default)]
struct Lost {
    egroups: u64,
    groups: BTreeSet<GroupId>,
}

/// Walks the whole map.
pub fn check(family: &Family, damaged: &BTreeMap<DriveId, Damaged>, findings: &mut Findings) -> Counted {
    let mut check = Check { family, damaged, counted: Counted::default(), owed: 0, lost: BTreeMap::new() };
    if family.unseen.log {
        return check.counted;
    }
    let by_egroup = check.walk(findings);
    for (egroup, runs) in &by_egroup {
        check.data_egroup(*egroup, runs, findings);
    }
    // Of these it is only known that they are in use: the leaf pages that name them are elsewhere.
    for (egroup, entry) in family.directory.iter() {
        if entry.live > 0 && check.counted.unseen.leaf_pages > 0 && !by_egroup.contains_key(&egroup) {
            check.copies(egroup, entry.group, (entry.units, entry.stored), &[], findings);
        }
    }
    check.map_egroups(findings);
    if family.unseen.knows_egroups() {
        check.orphans(findings);
    }
    check.tell_owed(findings);
    check.tell_lost(findings);
    check.counted
}

impl Check<'_> {
    fn problem(&self, findings: &mut Findings, kind: &'static str, drive: Option<DriveId>, text: String) {
        findings.problem(kind, drive, Some(self.family.name), text);
    }

    /// Reads all leaves. Gives the mapped blocks by egroup, and compares live counts of the checkpoint.
    fn walk(&mut self, findings: &mut Findings) -> BTreeMap<EgroupId, Vec<Mapped>> {
        let family = self.family;
        let mut by_egroup: BTreeMap<EgroupId, Vec<Mapped>> = BTreeMap::new();
        let mut live: BTreeMap<EgroupId, Live> = BTreeMap::new();
        let mut all_leaves = family.unseen.knows_egroups();
        let mut put = |block, count, egroup, unit| {
            by_egroup.entry(egroup).or_default().push(Mapped { unit, count, block });
        };
        for (kind, number, place) in family.index.iter() {
            if kind == PageKind::Past {
                match family.past(number, place) {
                    Ok(past) => {
                        let runs = past.iter().flat_map(|(_, group)| group.iter());
                        for run in runs.filter(|run| !run.egroup.is_hole()) {
                            let live = live.entry(run.egroup).or_default();
                            live.units += run.count();
                            live.past += run.count();
                            let base = past::leaf_of(number) * weft_engine::limits::LEAF_BLOCKS;
                            put(Block(base + u64::from(run.start())), run.count(), run.egroup, run.unit());
                        }
                    }
                    Err(Missing::Unseen) => {
                        all_leaves = false;
                        self.counted.unseen.leaf_pages += 1;
                    }
                    Err(Missing::Lost(reason)) => {
                        all_leaves = false;
                        let leaf = past::leaf_of(number);
                        let first = leaf * weft_engine::limits::LEAF_BLOCKS;
                        let text = format!(
                            "a page of what snapshots see of the blocks from {first} on is lost: {reason}"
                        );
                        self.problem(findings, "past_page_lost", None, text);
                    }
                }
            }
            if kind != PageKind::Leaf {
                continue;
            }
            let leaf = match family.leaf(number, place) {
                Ok(leaf) => leaf,
                Err(Missing::Unseen) => {
                    all_leaves = false;
                    self.counted.unseen.leaf_pages += 1;
                    continue;
                }
                Err(Missing::Lost(reason)) => {
                    all_leaves = false;
                    let first = number * weft_engine::limits::LEAF_BLOCKS;
                    let text = format!("leaf page {number} (blocks from {first} on) is lost: {reason}");
                    self.problem(findings, "leaf_page_lost", None, text);
                    continue;
                }
            };
            self.counted.leaves += 1;
            for run in leaf.iter().filter(|run| !run.egroup.is_hole()) {
                live.entry(run.egroup).or_default().units += run.count();
            }
            family.kept(&leaf, number, &mut put);
        }
        family.kept_since(&mut put);
        if all_leaves && !findings.counts.contains_key("directory_page_lost") {
            self.compare_live(&live, findings);
        }
        by_egroup
    }

    /// The directory pages tell how many units of each egroup the leaf pages and the pages of the past name.
    fn compare_live(&self, live: &BTreeMap<EgroupId, Live>, findings: &mut Findings) {
        for (egroup, entry) in self.family.directory.iter() {
            let counted = live.get(&egroup).copied().unwrap_or_default();
            if entry.live != counted.units {
                let text = format!(
                    "egroup {egroup} has {} live units, but the directory says {}",
                    counted.units, entry.live
                );
                self.problem(findings, "live_count_wrong", None, text);
            }
            if entry.past != counted.past {
                let text = format!(
                    "egroup {egroup} has {} units that only snapshots see, but the directory says {}",
                    counted.past, entry.past
                );
                self.problem(findings, "past_count_wrong", None, text);
            }
        }
        let Some((seq, checkpoint)) = &self.family.checkpoint else { return };
        let total: u64 = live.values().map(|live| u64::from(live.units)).sum();
        if checkpoint.mapped != total {
            let text = format!(
                "checkpoint {seq} tells of {} mapped blocks, the leaves of {total}",
                checkpoint.mapped
            );
            self.problem(findings, "mapped_count_wrong", None, text);
        }
    }

    fn data_egroup(&mut self, egroup: EgroupId, runs: &[Mapped], findings: &mut Findings) {
        let Some(entry) = self.family.directory.get(egroup) else {
            if !self.family.unseen.knows_egroups() {
                return self.counted.unseen.units += runs.iter().map(|run| u64::from(run.count)).sum::<u64>();
            }
            let block = runs[0].block;
            let text =
                format!("block {block} is mapped to egroup {egroup}, which the directory does not know");
            return self.problem(findings, "egroup_unknown", None, text);
        };
        let mut owner: Vec<Option<Block>> = vec![None; entry.units as usize];
        for run in runs {
            for index in 0..run.count {
                let (unit, block) = (run.unit + index, run.block.plus(u64::from(index)));
                let Some(place) = owner.get_mut(unit as usize) else {
                    let text =
                        format!("block {block} is mapped to unit {unit} of egroup {egroup}, which has fewer");
                    self.problem(findings, "unit_outside", None, text);
                    continue;
                };
                if let Some(other) = place.replace(block) {
                    let text = format!(
                        "blocks {other} and {block} are both mapped to unit {unit} of egroup {egroup}"
                    );
                    self.problem(findings, "unit_shared", None, text);
                }
                self.counted.mapped_blocks += 1;
            }
        }
        let used: Vec<(u32, Option<Block>)> = (0..)
            .zip(&owner)
            .filter(|(_, block)| block.is_some())
            .map(|(unit, block)| (unit, *block))
            .collect();
        self.copies(egroup, entry.group, (entry.units, entry.stored), &used, findings);
    }

    /// The egroups of pages: what the index says to be in use.
    fn map_egroups(&mut self, findings: &mut Findings) {
        let family = self.family;
        let pages = family.index.iter().map(|(_, _, place)| place);
        let chunks =
            family.checkpoint.as_ref().map(|(_, checkpoint)| checkpoint.index.clone()).unwrap_or_default();
        let mut used: BTreeMap<EgroupId, BTreeSet<u32>> = BTreeMap::new();
        for place in pages.chain(chunks.iter().map(|named| named.place)) {
            for unit in place.unit..place.unit + place.units {
                if !used.entry(place.egroup).or_default().insert(unit) {
                    let text = format!("two pages lie at unit {unit} of egroup {}", place.egroup);
                    self.problem(findings, "unit_shared", None, text);
                }
            }
        }
        for (egroup, units) in used {
            let Some(named) = family.map_egroups.get(&egroup) else {
                let text = format!("pages lie in egroup {egroup}, which the checkpoint does not name");
                self.problem(findings, "egroup_unknown", None, text);
                continue;
            };
            let used: Vec<(u32, Option<Block>)> = units.into_iter().map(|unit| (unit, None)).collect();
            self.copies(egroup, named.group, (named.units, named.stored), &used, findings);
        }
    }

    /// Every unit in use is sound on every member of the group.
    fn copies(
        &mut self,
        egroup: EgroupId,
        group: GroupId,
        (units, stored): (u32, u32),
        used: &[(u32, Option<Block>)],
        findings: &mut Findings,
    ) {
        self.counted.egroups += 1;
        let Some(view) = self.family.groups.get(&group) else {
            let text = format!("egroup {egroup} is in group {group}, which the config store does not know");
            return self.problem(findings, "group_unknown", None, text);
        };
        let name = (self.family.id(), egroup);
        // While a group changes, copies on former members count for those that present ones do not have yet.
        let has = |drive: &&DriveId| {
            let contents = self.family.drives.get(drive);
            contents.map_or_else(
                || self.family.may_be_elsewhere(&[**drive]),
                |contents| contents.egroups.contains_key(&name),
            )
        };
        let mut spare = view.former.iter().filter(has).count();
        let mut first: Option<&TablePage> = None;
        for drive in &view.members {
            let Some(contents) = self.family.drives.get(drive) else {
                self.counted.unseen.copies += u64::from(self.family.may_be_elsewhere(&[*drive]));
                // What a drive that cannot be read lacks was told once, for the drive. One that was given up is not looked at.
                if self.family.is_lost(*drive) {
                    if spare > 0 {
                        spare -= 1;
                        self.owed += 1;
                        continue;
                    }
                    let lost = self.lost.entry(*drive).or_default();
                    lost.egroups += 1;
                    lost.groups.insert(group);
                }
                continue;
            };
            self.counted.copies += 1;
            let Some(page) = contents.egroups.get(&name) else {
                if spare > 0 {
                    spare -= 1;
                    self.owed += 1;
                    continue;
                }
                let text = format!("the copy of egroup {egroup} is missing here");
                self.problem(findings, "copy_missing", Some(*drive), text);
                continue;
            };
            if (page.units(), page.data_blocks()) != (units, stored) {
                let text = format!(
                    "egroup {egroup} has {} units in {} blocks here and should have {units} in {stored}",
                    page.units(),
                    page.data_blocks()
                );
                self.problem(findings, "copy_wrong", Some(*drive), text);
                continue;
            }
            let other = *first.get_or_insert(page);
            if page.packing != other.packing {
                let text = format!("egroup {egroup} is packed in another way than another copy of it");
                self.problem(findings, "copies_differ", Some(*drive), text);
                continue;
            }
            let differ = |(unit, _): &&(u32, Option<Block>)| {
                let sum = page.frame_of(*unit).index as usize;
                page.checksums[sum] != other.checksums[sum]
            };
            if let Some((unit, _)) = used.iter().find(differ) {
                let text = format!("unit {unit} of egroup {egroup} is not what another copy of it has");
                self.problem(findings, "copies_differ", Some(*drive), text);
            }
            let blocks = units::trailer(contents, page).unwrap_or_default();
            for (unit, block) in used {
                let (Some(block), Some(written_for)) = (block, blocks.get(*unit as usize)) else { continue };
                if block.0 != *written_for {
                    let text = format!(
                        "unit {unit} of egroup {egroup} was written for block {written_for}, but the map says {block}"
                    );
                    self.problem(findings, "unit_of_another_block", Some(*drive), text);
                }
            }
        }
        self.lost_units(egroup, view, used, findings);
    }

    fn lost_units(
        &mut self,
        egroup: EgroupId,
        group: &Group,
        used: &[(u32, Option<Block>)],
        findings: &mut Findings,
    ) {
        let name = (self.family.id(), egroup);
        let holders: Vec<&Contents> = group
            .holders()
            .iter()
            .filter_map(|drive| self.family.drives.get(drive))
            .filter(|contents| contents.egroups.contains_key(&name))
            .collect();
        let is_elsewhere = self.family.may_be_elsewhere(&group.holders());
        for (unit, block) in used {
            let sound = |contents: &&Contents| {
                contents.egroups[&name].units() > *unit
                    && self.damaged[&contents.drive].is_sound(&name, *unit)
            };
            if holders.iter().any(sound) {
                continue;
            }
            if is_elsewhere {
                self.counted.unseen.units += 1;
                continue;
            }
            let what = block.map_or("a page of the map".to_string(), |block| format!("block {block}"));
            let text = format!("{what} (egroup {egroup}, unit {unit}) is sound on no drive that can be read");
            self.problem(findings, "block_lost", None, text);
        }
    }

    fn tell_owed(&self, findings: &mut Findings) {
        if self.owed > 0 {
            let text = format!(
                "{} copies are on former members of their groups, and not on the new ones yet; the nodes go on with that",
                self.owed
            );
            findings.note("copies_owed", None, Some(self.family.name), text);
        }
    }

    /// One line for each drive: all that it had is gone for one reason.
    fn tell_lost(&self, findings: &mut Findings) {
        for (drive, lost) in &self.lost {
            let text = format!(
                "it was given up, and {} egroups in {} groups have a copy less without it; the nodes make these again when a \
                 drive can take its place",
                lost.egroups,
                lost.groups.len()
            );
            self.problem(findings, "copies_lost", Some(*drive), text);
        }
    }

    /// Egroups of the family that nothing names.
    fn orphans(&mut self, findings: &mut Findings) {
        let family = self.family;
        // What names egroups may be among what is lost.
        let whole = !NAMING.iter().any(|kind| findings.counts.contains_key(kind));
        for contents in family.drives.values() {
            for ((owner, egroup), page) in &contents.egroups {
                let known = family.directory.contains(*egroup) || family.map_egroups.contains_key(egroup);
                if *owner == family.id() && !known {
                    if whole {
                        self.counted.unnamed.insert((*owner, *egroup));
                    }
                    self.counted.orphans += 1;
                    self.counted.orphan_bytes += page.blocks() * weft_engine::buffer::BLOCK as u64;
                }
            }
        }
        if self.counted.orphans > 0 {
            let text = format!(
                "{} egroups are named by nothing (written or replaced shortly before the end); the node deletes them",
                self.counted.orphans
            );
            findings.note("orphans", None, Some(family.name), text);
        }
    }
}
