//! One vDisk at rest, opened as an owner would open it: newest checkpoint, pages, then the records behind it.
//! Promises: reads only; what is missing or damaged is told, and the rest is still looked at. What may be on drives of the
//! cluster that are not here is called unseen, not lost.
//! Leaves to others: copies of what the map names (`copies`).

use super::contents::Contents;
use super::ends::{Ends, MemberEnd};
use super::findings::Findings;
use super::held::{self, HeldRecord};
use super::units;
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::formats::frame::{RecordHeader, RecordKind};
use weft_engine::formats::record::{
    Body, Checkpoint, MapRecord, Mark, NamedEgroup, PageKind, PagePlace, Record, UnitMove,
};
use weft_engine::interface::{FamilyRecord, Segment};
use weft_engine::limits::EGROUP_UNITS;
use weft_engine::map::directory::Directory;
use weft_engine::map::edits::{Edits, Place};
use weft_engine::map::index::PageIndex;
use weft_engine::map::leaf::Leaf;
use weft_engine::map::past::Past;
use weft_engine::{Block, DriveId, EgroupId, Epoch, FamilyId, Generation, GroupId, Seq, SnapshotId};
use weft_node::offline::{FamilyConfig, Offline, Policy};

pub struct Family<'a> {
    pub name: &'a str,
    pub record: FamilyRecord,
    pub drives: &'a BTreeMap<DriveId, Contents>,
    offline: &'a Offline,
    /// What of it may be on drives of the cluster that are not looked at.
    pub unseen: Unseen,
    /// The drives that hold the egroups of a group, former members last.
    pub groups: BTreeMap<GroupId, Group>,
    pub checkpoint: Option<(Seq, Checkpoint)>,
    /// There was one, and nobody can read it.
    checkpoint_lost: bool,
    pub index: PageIndex,
    /// Egroups of data, as of the checkpoint and as named since.
    pub directory: Directory,
    /// Of those, the ones named since.
    pub fresh: BTreeSet<EgroupId>,
    pub map_egroups: BTreeMap<EgroupId, NamedEgroup>,
    /// What was changed since the checkpoint, by the generation of the data.
    pub edits: BTreeMap<Generation, Edits>,
    /// Units that have got another place since then, in this egroup.
    moves: Vec<(EgroupId, UnitMove)>,
    /// The snapshots there are.
    pub snapshots: BTreeMap<Generation, SnapshotId>,
    pub ends: Ends,
    pub replayed: u64,
    /// Bytes of data in replayed records, drained or not.
    pub replayed_bytes: u64,
}

/// What may be on drives elsewhere.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Unseen {
    /// The end of the log, and so the newest checkpoint: nothing of the map is known.
    pub log: bool,
    pub records: u64,
    /// Pages that tell where other pages are, and which egroups there are.
    pub index_pages: u64,
    pub directory_pages: u64,
}

impl Unseen {
    /// All egroups of the family are known.
    pub fn knows_egroups(&self) -> bool {
        !self.log && self.records + self.index_pages + self.directory_pages == 0
    }
}

/// Why a page cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// A drive elsewhere may have it.
    Unseen,
    Lost(String),
}

pub struct Group {
    pub members: Vec<DriveId>,
    pub former: Vec<DriveId>,
}

impl Group {
    /// Everybody who may have a copy.
    pub fn holders(&self) -> Vec<DriveId> {
        self.members.iter().chain(&self.former).copied().collect()
    }
}

/// What each drive holds of this family's log, as an owner would be told when it fences them.
type HeldBy = BTreeMap<DriveId, BTreeMap<Seq, HeldRecord>>;

impl<'a> Family<'a> {
    pub fn read(
        config: &'a FamilyConfig,
        offline: &'a Offline,
        drives: &'a BTreeMap<DriveId, Contents>,
        findings: &mut Findings,
    ) -> Family<'a> {
        let groups = offline.groups.iter().map(|group| {
            let view = group.view();
            (group.id(), Group { members: view.members, former: view.former })
        });
        let mut family = Family {
            name: &config.name,
            // How data is packed is told by each egroup.
            record: config.record(&Policy::default()),
            drives,
            offline,
            unseen: Unseen::default(),
            groups: groups.collect(),
            checkpoint: None,
            checkpoint_lost: false,
            index: PageIndex::default(),
            directory: Directory::default(),
            fresh: BTreeSet::new(),
            map_egroups: BTreeMap::new(),
            edits: BTreeMap::new(),
            moves: Vec::new(),
            snapshots: BTreeMap::new(),
            ends: Ends::default(),
            replayed: 0,
            replayed_bytes: 0,
        };
        if family.record.segments.is_empty() {
            findings.note(
                "never_opened",
                None,
                Some(&config.name),
                "it was never opened, and is empty".into(),
            );
            return family;
        }
        let held = family.held();
        family.find_ends(&held, findings);
        family.load_checkpoint(&held, findings);
        if family.sees_log() && !family.unseen.log {
            family.load_pages(findings);
            family.replay(&held, findings);
        } else {
            family.forget_checkpoint();
            family.tell_unseen_log(findings);
        }
        family
    }

    pub fn id(&self) -> FamilyId {
        self.record.family
    }

    fn problem(&self, findings: &mut Findings, kind: &'static str, drive: Option<DriveId>, text: String) {
        findings.problem(kind, drive, Some(self.name), text);
    }

    /// None of these drives can be read here, and one of them is elsewhere.
    fn is_elsewhere(&self, drives: &[DriveId]) -> bool {
        !drives.iter().any(|drive| self.drives.contains_key(drive)) && self.may_be_elsewhere(drives)
    }

    pub fn may_be_elsewhere(&self, drives: &[DriveId]) -> bool {
        drives.iter().any(|drive| self.offline.elsewhere.contains_key(drive))
    }

    /// It was given up: it is not among the drives in use, here or elsewhere.
    pub fn is_lost(&self, drive: DriveId) -> bool {
        !self.may_be_elsewhere(&[drive]) && !self.offline.drives.iter().any(|here| here.drive == drive)
    }

    /// Whether a drive that can be read, or one that should be readable, tells of every record from the newest
    /// checkpoint on. What is acknowledged is on all members, so one of each segment is enough to know that no
    /// newer checkpoint counts. Without that, an old one might name what was deleted since.
    fn sees_log(&self) -> bool {
        let from = self.checkpoint.as_ref().map_or(Seq(0), |(seq, _)| *seq);
        let segments = &self.record.segments;
        let nexts = segments.iter().skip(1).map(|segment| segment.first).chain([Seq(u64::MAX)]);
        // When all members are lost, who was absent at the end knows it.
        let is_elsewhere = |segment: &Segment| {
            let is_lost = segment.members.iter().all(|&drive| self.is_lost(drive));
            self.is_elsewhere(&segment.members) || is_lost && self.is_elsewhere(&segment.absent)
        };
        segments.iter().zip(nexts).all(|(segment, next)| next <= from || !is_elsewhere(segment))
    }

    fn forget_checkpoint(&mut self) {
        self.checkpoint = None;
        self.map_egroups.clear();
        self.snapshots.clear();
        self.unseen.log = true;
    }

    fn tell_unseen_log(&self, findings: &mut Findings) {
        let drives = self.record.segments.iter().flat_map(Segment::drives);
        let nodes: BTreeSet<u32> =
            drives.filter_map(|drive| self.offline.elsewhere.get(&drive)).copied().collect();
        let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
        let text = format!(
            "its log is not on these drives, so nothing was checked of its map; give the directory of node {} too",
            nodes.join(" or ")
        );
        findings.note("log_elsewhere", None, Some(self.name), text);
    }

    fn held(&self) -> HeldBy {
        let last = self.record.segments.last().expect("a family with a log has segments");
        let segments = &self.record.segments;
        let of = |contents: &Contents| {
            let mut records =
                contents.held.get(&self.id()).map(|held| held.records.clone()).unwrap_or_default();
            // The next owner makes void what older epochs wrote into the last segment.
            // Of who was absent at the end of an older one nobody knows that it had anything of it.
            let counts = |seq: Seq, epoch: Epoch| {
                let segment = segment_of(segments, seq);
                let is_judged = segment.first == last.first || segment.absent.contains(&contents.drive);
                !is_judged || epoch >= segment.epoch
            };
            records.retain(|seq, record| counts(*seq, record.header.epoch));
            records
        };
        self.drives.values().map(|contents| (contents.drive, of(contents))).collect()
    }

    fn find_ends(&mut self, held: &HeldBy, findings: &mut Findings) {
        let last = self.record.segments.last().expect("a family with a log has segments");
        let before = last.first.previous();
        let end_of = |drive: &DriveId| {
            let missing = self.drives.get(drive)?.chain.missing.last().copied();
            Some((*drive, MemberEnd::of(held.get(drive)?, missing, before)))
        };
        let members = last.members.iter().filter_map(end_of).collect();
        match Ends::of(&members) {
            Some(ends) => self.ends = ends,
            // Everything before is known to be acknowledged.
            None if self.may_be_elsewhere(&last.members) => self.ends = Ends::before(before),
            None => {
                let text = "none of the drives that hold the end of its log can be read".to_string();
                self.problem(findings, "log_unreachable", None, text);
            }
        }
    }

    fn load_checkpoint(&mut self, held: &HeldBy, findings: &mut Findings) {
        let mut found: BTreeMap<Seq, Vec<DriveId>> = BTreeMap::new();
        for (drive, records) in held {
            for (seq, record) in records {
                let member = segment_of(&self.record.segments, *seq).drives().any(|member| member == *drive);
                if record.header.kind == RecordKind::Checkpoint && member {
                    found.entry(*seq).or_default().push(*drive);
                }
            }
        }
        while let Some((seq, holders)) = found.pop_last() {
            let record = holders.iter().find_map(|drive| held::read(&self.drives[drive], &held[drive][&seq]));
            if let Some(Body::Checkpoint(checkpoint)) = record.map(|record| record.body) {
                let named = checkpoint.map_egroups.iter();
                self.map_egroups = named.map(|named| (named.egroup, *named)).collect();
                self.snapshots = checkpoint.snapshots.iter().copied().collect();
                self.checkpoint = Some((seq, Checkpoint::clone(&checkpoint)));
                return;
            }
            if self.may_be_elsewhere(&self.drives_of(seq)) {
                for drive in holders {
                    let text = format!("its newest checkpoint, record {seq}, is damaged here");
                    self.problem(findings, "record_copy_missing", Some(drive), text);
                }
                self.unseen.log = true;
                return;
            }
            if seq <= self.ends.acknowledged {
                let text = format!(
                    "its newest checkpoint, record {seq}, is damaged on every drive: the map is lost"
                );
                self.checkpoint_lost = true;
                return self.problem(findings, "checkpoint_lost", None, text);
            }
            // It never was on all members, so the one before still counts. The damage is told by the replay.
        }
    }

    /// A page of the map from wherever it is sound.
    pub fn page(&self, place: PagePlace) -> Result<Vec<u8>, Missing> {
        let group = self.map_egroups.get(&place.egroup).and_then(|named| self.groups.get(&named.group));
        let holders = group.map(Group::holders).unwrap_or_default();
        let name = (self.id(), place.egroup);
        match units::read_anywhere(self.drives, &holders, &name, place.unit, place.units) {
            Some(page) => Ok(page),
            None if self.may_be_elsewhere(&holders) => Err(Missing::Unseen),
            None => Err(Missing::Lost("it is on no drive, or damaged on every one".to_string())),
        }
    }

    /// Leaf `number`, which the index knows.
    pub fn leaf(&self, number: u64, place: PagePlace) -> Result<Leaf, Missing> {
        let page = self.page(place)?;
        Leaf::decode(&page, number, self.id()).map_err(|error| Missing::Lost(error.to_string()))
    }

    /// Page `number` of the past, which the index knows.
    pub fn past(&self, number: u64, place: PagePlace) -> Result<Past, Missing> {
        let page = self.page(place)?;
        Past::decode(&page, number, self.id()).map_err(|error| Missing::Lost(error.to_string()))
    }

    fn load_pages(&mut self, findings: &mut Findings) {
        let Some((_, checkpoint)) = &self.checkpoint else { return };
        let mut seen = BTreeSet::new();
        for named in checkpoint.index.clone() {
            let what = match named.kind {
                PageKind::Leaf => "leaf",
                PageKind::Directory => "directory",
                PageKind::Past => "past",
            };
            if !seen.insert((named.kind, named.number)) {
                let text = format!("{what} index page {} is named twice", named.number);
                self.problem(findings, "index_page_twice", None, text);
                continue;
            }
            let loaded = self.page(named.place).and_then(|page| {
                let loaded = self.index.load_chunk(&named, &page, self.record.family);
                loaded.map_err(|error| Missing::Lost(error.to_string()))
            });
            match loaded {
                Ok(()) => {}
                Err(Missing::Unseen) => self.unseen.index_pages += 1,
                Err(Missing::Lost(reason)) => {
                    let text = format!("{what} index page {} is lost: {reason}", named.number);
                    self.problem(findings, "index_page_lost", None, text);
                }
            }
        }
        let directory: Vec<(u64, PagePlace)> = self
            .index
            .iter()
            .filter(|(kind, ..)| *kind == PageKind::Directory)
            .map(|(_, number, place)| (number, place))
            .collect();
        for (number, place) in directory {
            let loaded = self.page(place).and_then(|page| {
                let loaded = self.directory.load_page(&page, number, self.record.family);
                loaded.map_err(|error| Missing::Lost(error.to_string()))
            });
            match loaded {
                Ok(()) => {}
                Err(Missing::Unseen) => self.unseen.directory_pages += 1,
                Err(Missing::Lost(reason)) => {
                    let text = format!("directory page {number} is lost: {reason}");
                    self.problem(findings, "directory_page_lost", None, text);
                }
            }
        }
    }

    /// Reads every record the next owner would read, and applies map records.
    fn replay(&mut self, held: &HeldBy, findings: &mut Findings) {
        let checkpoint = self.checkpoint.as_ref();
        let from = match checkpoint {
            Some((_, checkpoint)) => checkpoint.replay_from,
            // What came before the oldest record that is left may have been trimmed.
            None if self.checkpoint_lost => {
                held.values().filter_map(|records| records.keys().next()).min().copied().unwrap_or(Seq(1))
            }
            None => Seq(1),
        };
        let map_to = checkpoint.map_or(Seq(0), |(_, checkpoint)| checkpoint.map_to);
        let settled = checkpoint.map_or(Seq(0), |(seq, _)| *seq).max(self.ends.acknowledged);
        // What lies behind the end is looked at too: it may be damaged.
        let last = self.ends.end;
        let mut seq = from;
        while seq <= last {
            match self.find_record(seq, held, findings) {
                _ if seq > self.ends.end => {}
                None if self.may_be_elsewhere(&self.drives_of(seq)) => {
                    self.unseen.records += 1;
                }
                // Some members lack it and the others cannot read it: the log ends in front of it, which is no loss.
                None if seq > settled => self.ends.end = seq.previous(),
                None => match self.lost_write(seq, held) {
                    Some((block, count)) => {
                        let text = format!(
                            "record {seq} of its log is damaged on every drive that has it: what it wrote to {count} blocks from \
                             block {block} on cannot be read, unless that was drained, until they are written again"
                        );
                        self.problem(findings, "write_lost", None, text);
                    }
                    None => {
                        let text = format!(
                            "record {seq} of its log is on no drive, or damaged on every one: the vDisk will not open"
                        );
                        self.problem(findings, "record_lost", None, text);
                    }
                },
                Some(record) => {
                    self.replayed += 1;
                    match &record.body {
                        Body::Data { data, .. } => self.replayed_bytes += data.len() as u64,
                        Body::Map(map) if seq > map_to => self.apply(seq, map, findings),
                        // The checkpoint tells what the marks up to `map_to` have come to.
                        Body::Mark(mark) if seq > map_to => self.apply_mark(*mark),
                        Body::Map(_) | Body::Zero { .. } | Body::Checkpoint(_) | Body::Mark(_) => {}
                    }
                }
            }
            seq = seq.next();
        }
    }

    /// Where this write went, if somebody has it, damaged.
    fn lost_write(&self, seq: Seq, held: &HeldBy) -> Option<(u64, u64)> {
        let told = self.drives_of(seq).into_iter().filter_map(|drive| held.get(&drive)?.get(&seq).copied());
        let mut told = told.filter(|record| record.header.kind == RecordKind::Data);
        told.next().map(|record| (record.header.block, record.header.count))
    }

    /// The drives that may have a record.
    fn drives_of(&self, seq: Seq) -> Vec<DriveId> {
        segment_of(&self.record.segments, seq).drives().collect()
    }

    /// One record from the first member that has it sound; members that lack it or have something else are told. If none has, from who
    /// was absent when its segment ended.
    fn find_record(&self, seq: Seq, held: &HeldBy, findings: &mut Findings) -> Option<Record> {
        let Segment { members, absent, .. } = segment_of(&self.record.segments, seq);
        let mut found: Option<Record> = None;
        let mut first: Option<(DriveId, RecordHeader)> = None;
        for drive in members {
            let Some(records) = held.get(drive) else { continue };
            let copy = records.get(&seq).filter(|record| record.sound);
            if copy.is_none() && self.ends.is_due(*drive, seq) {
                let text = format!("record {seq} of its log is missing or damaged here");
                self.problem(findings, "record_copy_missing", Some(*drive), text);
            }
            if let Some(copy) = copy.filter(|_| seq <= self.ends.acknowledged) {
                match first {
                    Some((other, header)) if !is_same(&header, &copy.header) => {
                        let text = format!("record {seq} of its log is not what drive {other} has");
                        self.problem(findings, "record_copies_differ", Some(*drive), text);
                    }
                    Some(_) => {}
                    None => first = Some((*drive, copy.header)),
                }
            }
            if found.is_none() {
                found = copy.and_then(|copy| held::read(&self.drives[drive], copy));
            }
        }
        let mut others = absent.iter().filter_map(|drive| Some((drive, held.get(drive)?.get(&seq)?)));
        found.or_else(|| others.find_map(|(drive, copy)| held::read(&self.drives[drive], copy)))
    }

    fn apply_mark(&mut self, mark: Mark) {
        match mark {
            Mark::Taken { generation, snapshot } => drop(self.snapshots.insert(generation, snapshot)),
            Mark::Dropped { generation } => drop(self.snapshots.remove(&generation)),
            // What was edited since is gone. (The leaf pages say so from the next checkpoint on.)
            Mark::RolledBack { to, .. } => self.edits.retain(|generation, _| *generation <= to),
        }
    }

    fn apply(&mut self, seq: Seq, map: &MapRecord, findings: &mut Findings) {
        if let Some(named) = map.named {
            if named.units == 0 || named.units > EGROUP_UNITS as u32 {
                let text = format!("record {seq} names an egroup of {} units", named.units);
                return self.problem(findings, "map_record_wrong", None, text);
            }
            if !self.directory.contains(named.egroup) {
                self.directory.insert(named);
            }
            self.fresh.insert(named.egroup);
        }
        for edit in &map.edits {
            let place = match (edit.unit, map.named) {
                (None, _) => Place::Nowhere,
                (Some(unit), Some(named)) if u64::from(unit) + edit.count <= u64::from(named.units) => {
                    Place::At { egroup: named.egroup, unit }
                }
                (Some(unit), _) => {
                    let text = format!("record {seq} puts block {} at unit {unit} of no egroup", edit.block);
                    self.problem(findings, "map_record_wrong", None, text);
                    continue;
                }
            };
            if edit.count == 0 || edit.block.0.checked_add(edit.count).is_none() {
                let text = format!("record {seq} changes no blocks, or more than there are");
                self.problem(findings, "map_record_wrong", None, text);
                continue;
            }
            self.edits.entry(map.generation).or_default().set(edit.block, edit.count, place);
        }
        for moved in &map.moves {
            match map.named {
                Some(named)
                    if moved.count > 0
                        && u64::from(moved.unit) + u64::from(moved.count) <= u64::from(named.units)
                        && moved.block.0.checked_add(u64::from(moved.count)).is_some() =>
                {
                    self.moves.push((named.egroup, *moved));
                }
                _ => {
                    let text = format!("record {seq} moves block {} to no place", moved.block);
                    self.problem(findings, "map_record_wrong", None, text);
                }
            }
        }
    }

    /// Calls `each` with every run of mapped blocks as of the last record, in no particular order: first block,
    /// count, egroup, first unit.
    pub fn mapped(&self, leaf: &Leaf, number: u64, each: &mut dyn FnMut(Block, u32, EgroupId, u32)) {
        self.runs_of(leaf, number, |first, count, egroup, unit| {
            for (block, count) in self.uncovered(None, first, count) {
                each(block, count as u32, egroup, unit + (block.0 - first.0) as u32);
            }
        });
    }

    /// The same for what was changed since the checkpoint.
    pub fn mapped_since(&self, each: &mut dyn FnMut(Block, u32, EgroupId, u32)) {
        self.edits_at_places(|generation, first, count, egroup, unit| {
            for (block, count) in self.uncovered(Some(generation), first, count) {
                each(block, count as u32, egroup, unit + (block.0 - first.0) as u32);
            }
        });
    }

    /// Like `mapped`, with what the present does not see any more and a snapshot may.
    pub fn kept(&self, leaf: &Leaf, number: u64, each: &mut dyn FnMut(Block, u32, EgroupId, u32)) {
        self.runs_of(leaf, number, |first, count, egroup, unit| {
            let born = self.directory.get(egroup).map_or(Generation(0), |entry| entry.generation);
            for (block, count) in self.seen(born, None, first, count) {
                each(block, count as u32, egroup, unit + (block.0 - first.0) as u32);
            }
        });
    }

    /// The same for what was changed since the checkpoint, and for units that have got another place since.
    pub fn kept_since(&self, each: &mut dyn FnMut(Block, u32, EgroupId, u32)) {
        self.edits_at_places(|generation, first, count, egroup, unit| {
            for (block, count) in self.seen(generation, Some(generation), first, count) {
                each(block, count as u32, egroup, unit + (block.0 - first.0) as u32);
            }
        });
        for (egroup, moved) in &self.moves {
            each(moved.block, moved.count, *egroup, moved.unit);
        }
    }

    fn runs_of(&self, leaf: &Leaf, number: u64, mut each: impl FnMut(Block, u64, EgroupId, u32)) {
        let base = number * weft_engine::limits::LEAF_BLOCKS;
        for run in leaf.iter().filter(|run| !run.egroup.is_hole()) {
            each(Block(base + u64::from(run.start())), u64::from(run.count()), run.egroup, run.unit());
        }
    }

    fn edits_at_places(&self, mut each: impl FnMut(Generation, Block, u64, EgroupId, u32)) {
        for (generation, edits) in &self.edits {
            for (block, count, place) in edits.iter() {
                if let Place::At { egroup, unit } = place {
                    each(*generation, block, count, egroup, unit);
                }
            }
        }
    }

    /// The edits of generations behind this one (None: all), oldest first.
    fn later(&self, than: Option<Generation>) -> impl Iterator<Item = (Generation, &Edits)> {
        let all = self.edits.iter().map(|(generation, edits)| (*generation, edits));
        all.filter(move |(generation, _)| than.is_none_or(|than| *generation > than))
    }

    /// The parts of a range that later edits leave as it is.
    fn uncovered(&self, than: Option<Generation>, first: Block, count: u64) -> Vec<(Block, u64)> {
        let mut rest = vec![(first, count)];
        for (_, edits) in self.later(than) {
            let parts = rest.iter().flat_map(|(block, count)| edits.over(*block, *count));
            let untouched = parts.filter(|(.., edit)| edit.is_none());
            rest = untouched.map(|(block, count, _)| (block, count)).collect();
        }
        rest
    }

    /// The parts of a range of data of generation `born` that somebody sees: the present, or a snapshot that was taken before they
    /// were edited.
    fn seen(
        &self,
        born: Generation,
        than: Option<Generation>,
        first: Block,
        count: u64,
    ) -> Vec<(Block, u64)> {
        let mut seen = Vec::new();
        let mut rest = vec![(first, count)];
        for (generation, edits) in self.later(than) {
            let by_snapshot = born < generation && self.snapshots.range(born..generation).next().is_some();
            let parts: Vec<_> = rest.iter().flat_map(|(block, count)| edits.over(*block, *count)).collect();
            rest.clear();
            for (block, count, edit) in parts {
                if edit.is_none() {
                    rest.push((block, count));
                } else if by_snapshot {
                    seen.push((block, count));
                }
            }
        }
        seen.extend(rest);
        seen
    }
}

/// Two copies of a record say the same. Their epochs may differ: what was not acknowledged is sent again.
fn is_same(one: &RecordHeader, other: &RecordHeader) -> bool {
    let content = |header: &RecordHeader| {
        (header.kind, header.payload_crc, header.payload_len, header.block, header.count)
    };
    content(one) == content(other)
}

/// The segment that a record belongs to.
pub fn segment_of(segments: &[Segment], seq: Seq) -> &Segment {
    let after = segments.partition_point(|segment| segment.first <= seq);
    &segments[after.saturating_sub(1)]
}
