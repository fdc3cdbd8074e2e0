//! What lies on one drive at rest: superblocks, the frames of its log ring, the pages of its egroup table.
//! Promises: reads only; whatever the drive holds is understood or told as a problem.
//! Leaves to others: which records count (`held`), whether units are sound (`units`), what it all means (`family`).

use super::findings::Findings;
use super::held::{self, Held};
use anyhow::{Context, bail};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use weft_engine::buffer::BLOCK;
use weft_engine::formats::layout::Layout;
use weft_engine::formats::superblock::{COPIES, Superblock, SuperblockFault};
use weft_engine::formats::table::TablePage;
use weft_engine::interface::Area;
use weft_engine::keeper::ring_replay::{Chain, chain};
use weft_engine::keeper::ring_scan::{FoundFrame, RingScan};
use weft_engine::{DriveId, EgroupId, FamilyId};
use weft_node::offline::{AreaReader, DriveReader, Offline, OfflineDrive};

/// Bytes read at once.
const CHUNK: u64 = 1 << 20;

/// An egroup's name on a drive.
pub type Name = (FamilyId, EgroupId);

pub struct Contents {
    pub drive: DriveId,
    pub place: String,
    pub reader: DriveReader,
    pub superblock: Superblock,
    pub layout: Layout,
    /// By name, the newest revision of each.
    pub egroups: BTreeMap<Name, TablePage>,
    /// Pages whose egroup was replaced: a cut came before they were erased.
    pub replaced: Vec<TablePage>,
    pub frames: BTreeMap<u64, FoundFrame>,
    pub chain: Chain,
    pub held: BTreeMap<FamilyId, Held>,
}

impl Contents {
    /// Reads everything except units. An error is a drive that cannot be understood at all.
    pub fn read(
        drive: &OfflineDrive,
        findings: &mut Findings,
        progress: &dyn Fn(u64),
    ) -> anyhow::Result<Contents> {
        let reader = match &drive.present {
            Ok(reader) => reader.clone(),
            Err(error) => bail!("{error}"),
        };
        let superblock = read_superblock(drive, &reader, findings)?;
        let layout = Layout::of(superblock.geometry.data);
        let mut contents = Contents {
            drive: drive.drive,
            place: drive.place.clone(),
            reader,
            superblock,
            layout,
            egroups: BTreeMap::new(),
            replaced: Vec::new(),
            frames: BTreeMap::new(),
            chain: Chain::default(),
            held: BTreeMap::new(),
        };
        contents.read_log(findings, progress);
        contents.read_table(findings, progress);
        Ok(contents)
    }

    /// Bytes of egroups: units and trailers.
    pub fn egroup_bytes(&self) -> u64 {
        self.egroups.values().map(|page| page.blocks() * BLOCK as u64).sum()
    }

    /// Bytes that egroups share, and those that are there only because egroups refer to them: no run has them.
    pub fn shared_bytes(&self) -> (u64, u64) {
        let of = |page: &TablePage| u64::from(page.data_blocks() - page.own_blocks());
        let mut runs: Vec<(u64, u64)> =
            self.egroups.values().map(|page| (page.first, page.first + page.blocks())).collect();
        let in_runs = covered(&mut runs);
        let references = self.egroups.values().flat_map(|page| page.references.iter());
        runs.extend(references.map(|reference| (reference.blocks().start, reference.blocks().end)));
        let block = BLOCK as u64;
        (self.egroups.values().map(of).sum::<u64>() * block, (covered(&mut runs) - in_runs) * block)
    }

    fn read_log(&mut self, findings: &mut Findings, progress: &dyn Fn(u64)) {
        let mut scan = RingScan::new(self.drive, self.superblock.incarnation);
        let log = self.reader.area(Area::Log).clone();
        sweep(&log, 0, log.len(), self.drive, "log", findings, &mut |offset, bytes| {
            scan.feed(offset / BLOCK as u64, bytes);
            progress(bytes.len() as u64);
        });
        self.frames = scan.finish().0;
        self.chain = chain(&self.frames);
        if let (Some(first), Some(last)) = (self.chain.missing.first(), self.chain.missing.last()) {
            let count = self.chain.missing.len();
            let text =
                format!("{count} frames of the log ring are damaged or missing, between {first} and {last}");
            findings.problem("log_frames_missing", Some(self.drive), None, text);
        }
        self.held = held::replay(&self.frames, &self.chain);
    }

    fn read_table(&mut self, findings: &mut Findings, progress: &dyn Fn(u64)) {
        let block = BLOCK as u64;
        let data = self.reader.area(Area::Data).clone();
        let (begin, end) = (self.layout.table * block, self.layout.units * block);
        let mut pages = Vec::new();
        let (layout, incarnation, drive) = (self.layout, self.superblock.incarnation, self.drive);
        let mut unsound = 0_u64;
        sweep(&data, begin, end, drive, "egroup table", findings, &mut |offset, bytes| {
            let first = offset / block - layout.table;
            for (slot, bytes) in (first..).zip(bytes.chunks_exact(BLOCK)) {
                match TablePage::decode(bytes) {
                    Some(page) if page.incarnation != incarnation => {}
                    Some(page) if u64::from(page.slot) == slot && is_inside(&layout, &page) => {
                        pages.push(page)
                    }
                    Some(_) => unsound += 1,
                    None => unsound += u64::from(!weft_engine::buffer::is_zero(bytes)),
                }
            }
            progress(bytes.len() as u64);
        });
        if unsound > 0 {
            // A file system may leave anything in a page that was never written, so this alone is no problem: an
            // egroup that is missing for it is told as missing.
            let text = format!("{unsound} pages of the egroup table are neither free nor sound");
            findings.note("table_pages_unsound", Some(drive), None, text);
        }
        pages.sort_unstable_by_key(|page| (page.family, page.egroup, std::cmp::Reverse(page.revision)));
        let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
        for page in pages {
            let (first, end) = (page.first, page.first + page.blocks());
            let overlaps = taken.range(..end).next_back().is_some_and(|(_, &other_end)| other_end > first);
            let name = (page.family, page.egroup);
            if overlaps {
                let text = format!("egroup {} of family {} lies on blocks of another egroup", name.1, name.0);
                findings.problem("egroups_overlap", Some(drive), None, text);
                continue;
            }
            taken.insert(first, end);
            match self.egroups.entry(name) {
                Entry::Vacant(entry) => drop(entry.insert(page)),
                Entry::Occupied(_) => self.replaced.push(page),
            }
        }
        if !self.replaced.is_empty() {
            let text = format!("{} replaced egroups will be erased at the next start", self.replaced.len());
            findings.note("egroups_replaced", Some(drive), None, text);
        }
    }
}

/// Whether all that a page names is inside the units.
fn is_inside(layout: &Layout, page: &TablePage) -> bool {
    layout.holds(page.first, page.blocks())
        && page.references.iter().all(|reference| {
            let blocks = reference.blocks();
            layout.holds(blocks.start, blocks.end - blocks.start)
        })
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

fn read_superblock(
    drive: &OfflineDrive,
    reader: &DriveReader,
    findings: &mut Findings,
) -> anyhow::Result<Superblock> {
    let mut bytes = vec![0; COPIES * BLOCK];
    for (copy, bytes) in bytes.chunks_exact_mut(BLOCK).enumerate() {
        if let Err(error) = reader.area(Area::Data).read((copy * BLOCK) as u64, bytes) {
            let text = format!("superblock {copy} cannot be read: {error}");
            findings.problem("superblock_unreadable", Some(drive.drive), None, text);
        }
    }
    let superblock = match Superblock::newest(&bytes) {
        Ok(superblock) => superblock,
        Err(SuperblockFault::NotSound) => bail!("the superblock is damaged in both copies"),
        Err(SuperblockFault::OtherVersion(version)) => {
            bail!("the drive has format version {version}, which this version of weft does not know")
        }
    };
    if superblock.drive != drive.drive {
        bail!("the superblock says that this is drive {}", superblock.drive);
    }
    if superblock.geometry != drive.geometry {
        bail!("the superblock tells of another division of the drive than the config store");
    }
    if superblock.encode().bytes() != bytes {
        let text = "one copy of the superblock is damaged; the next start repairs it".to_string();
        findings.problem("superblock_copy_damaged", Some(drive.drive), None, text);
    }
    Ok(superblock)
}

/// Reads `begin..end` of an area in order. What cannot be read is told, and comes as zeros.
fn sweep(
    area: &AreaReader,
    begin: u64,
    end: u64,
    drive: DriveId,
    name: &str,
    findings: &mut Findings,
    each: &mut dyn FnMut(u64, &[u8]),
) {
    let mut bytes = vec![0; CHUNK as usize];
    let mut offset = begin;
    while offset < end {
        let len = (end - offset).min(CHUNK) as usize;
        if area.read(offset, &mut bytes[..len]).is_err() {
            for (index, block) in bytes[..len].chunks_mut(BLOCK).enumerate() {
                let at = offset + (index * BLOCK) as u64;
                if let Err(error) = area.read(at, block) {
                    block.fill(0);
                    let text = format!("byte {at} of the {name} cannot be read: {error}");
                    findings.problem("unreadable", Some(drive), None, text);
                }
            }
        }
        each(offset, &bytes[..len]);
        offset += len as u64;
    }
}

/// The drive of this number, or what to give instead.
pub fn find(offline: &Offline, number: u32) -> anyhow::Result<&OfflineDrive> {
    offline.drives.iter().find(|drive| drive.drive.0 == number).with_context(|| {
        if let Some(node) = offline.elsewhere.get(&DriveId(number)) {
            return format!("drive {number} is in node {node} of the cluster; give its directory");
        }
        let known: Vec<String> = offline.drives.iter().map(|drive| drive.drive.to_string()).collect();
        match known.is_empty() {
            true => format!("there is no drive {number}; there is none here"),
            false => format!("there is no drive {number}; there is {} here", known.join(", ")),
        }
    })
}
