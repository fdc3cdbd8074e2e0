//! The units of egroups, packed or not: read, compared with their checksums and unpacked.

use super::contents::{Contents, Name};
use std::collections::{BTreeMap, BTreeSet};
use weft_engine::DriveId;
use weft_engine::buffer::BLOCK;
use weft_engine::checksum::{lost_sum, unit_checksum};
use weft_engine::codec::Decompressor;
use weft_engine::formats::packing::{Frame, frames_between};
use weft_engine::formats::table::{TablePage, decode_trailer};
use weft_engine::interface::Area;

/// What is wrong with the copies of egroups on one drive; egroups that are sound do not appear.
#[derive(Debug, Default)]
pub struct Damaged {
    pub units: BTreeMap<Name, BTreeSet<u32>>,
    pub verified: u64,
    /// The same in words; whether it is a problem is known when the maps are.
    pub faults: Vec<Fault>,
}

#[derive(Debug)]
pub struct Fault {
    pub name: Name,
    pub kind: &'static str,
    pub text: String,
}

impl Damaged {
    /// Whether this unit of an egroup that is there can be read.
    pub fn is_sound(&self, name: &Name, unit: u32) -> bool {
        self.units.get(name).is_none_or(|units| !units.contains(&unit))
    }
}

/// Reads every unit on a drive.
pub fn verify(contents: &Contents, progress: &dyn Fn(u64)) -> Damaged {
    let mut damaged = Damaged::default();
    // In order of place, so that a rotating or read-ahead drive is read as fast as it can be.
    let mut pages: Vec<&TablePage> = contents.egroups.values().collect();
    pages.sort_unstable_by_key(|page| page.first);
    for page in pages {
        let name = (page.family, page.egroup);
        let whole = page.references.is_empty().then(|| read_run(contents, page));
        let units: BTreeSet<u32> = match whole {
            Some(Ok(bytes)) => {
                let bad = frames(page, 0, page.units())
                    .filter(|frame| unpacked(page, frame, &bytes[frame.bytes()]).is_none());
                bad.flat_map(|frame| frame.first..frame.end()).collect()
            }
            // Some of it lies elsewhere, or something in the run cannot be read: each unit on its own.
            _ => (0..page.units()).filter(|&unit| read(contents, page, unit, 1).is_none()).collect(),
        };
        damaged.verified += u64::from(page.units());
        if !units.is_empty() {
            let list: Vec<String> = units.iter().take(8).map(u32::to_string).collect();
            let more = if units.len() > 8 { ", ..." } else { "" };
            // No copy of these is better: they came so from a log.
            let (kind, what) = match units.iter().all(|&unit| is_lost(contents, page, unit)) {
                true => ("units_lost", "are those of a write that was damaged in the log, and is lost"),
                false => ("units_damaged", "are damaged"),
            };
            let text = format!(
                "egroup {} of family {}: {} of {} units {what} ({}{more})",
                page.egroup,
                page.family,
                units.len(),
                page.units(),
                list.join(", "),
            );
            damaged.faults.push(Fault { name, kind, text });
            damaged.units.insert(name, units);
        }
        if trailer(contents, page).is_none() {
            let text = format!("the trailer of egroup {} of family {} is damaged", page.egroup, page.family);
            damaged.faults.push(Fault { name, kind: "trailer_damaged", text });
        }
        progress(page.blocks() * BLOCK as u64);
    }
    damaged
}

/// Whether a unit says of itself that it was lost before it came here; such ones are never packed.
fn is_lost(contents: &Contents, page: &TablePage, unit: u32) -> bool {
    let Some(frame) = frames(page, unit, 1).next().filter(|frame| page.packing.is_none() && frame.units == 1)
    else {
        return false;
    };
    let mut stored = vec![0; BLOCK];
    contents.reader.area(Area::Data).read(page.place_of(&frame), &mut stored).is_ok()
        && page.checksums[frame.index as usize]
            == lost_sum(unit_checksum(page.family, page.egroup, frame.first, &stored))
}

/// The frames that `count` units from `first` on lie in.
fn frames(page: &TablePage, first: u32, count: u32) -> impl Iterator<Item = Frame> + '_ {
    frames_between(first..first + count, |unit| page.frame_of(unit))
}

/// The units of a frame, if its stored bytes are sound.
fn unpacked(page: &TablePage, frame: &Frame, stored: &[u8]) -> Option<Vec<u8>> {
    let sum = unit_checksum(page.family, page.egroup, frame.first, stored);
    if page.checksums[frame.index as usize] != sum {
        return None;
    }
    match &page.packing {
        Some(packing) if !frame.is_raw() => {
            let mut units = vec![0; frame.units as usize * BLOCK];
            Decompressor::default().unpack(packing.codec(), stored, &mut units).then_some(units)
        }
        _ => Some(stored.to_vec()),
    }
}

fn read_run(contents: &Contents, page: &TablePage) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; page.data_blocks() as usize * BLOCK];
    contents.reader.area(Area::Data).read(page.first * BLOCK as u64, &mut bytes)?;
    Ok(bytes)
}

/// `count` units from `first` on, if all of them are there and sound.
pub fn read(contents: &Contents, page: &TablePage, first: u32, count: u32) -> Option<Vec<u8>> {
    let end = first.checked_add(count).filter(|&end| end <= page.units())?;
    let mut bytes = Vec::with_capacity(count as usize * BLOCK);
    for frame in frames(page, first, count) {
        let (block, place) = (BLOCK as u64, page.place_of(&frame));
        let begin = place / block * block;
        let mut stored = vec![0; (place + u64::from(frame.len) - begin).next_multiple_of(block) as usize];
        contents.reader.area(Area::Data).read(begin, &mut stored).ok()?;
        let at = (place - begin) as usize;
        let units = unpacked(page, &frame, &stored[at..at + frame.len as usize])?;
        let (from, to) = (frame.first.max(first), frame.end().min(end));
        let range = (from - frame.first) as usize * BLOCK..(to - frame.first) as usize * BLOCK;
        bytes.extend_from_slice(&units[range]);
    }
    Some(bytes)
}

/// The blocks of the vDisk that the units were written for; None if the trailer is damaged.
pub fn trailer(contents: &Contents, page: &TablePage) -> Option<Vec<u64>> {
    let (first, blocks) = page.trailer();
    let mut bytes = vec![0; blocks as usize * BLOCK];
    contents.reader.area(Area::Data).read(first * BLOCK as u64, &mut bytes).ok()?;
    decode_trailer(&bytes, page.units(), page.trailer_crc)
}

/// Units of an egroup from the first drive that has them sound, those in `prefer` before others.
pub fn read_anywhere(
    drives: &BTreeMap<DriveId, Contents>,
    prefer: &[DriveId],
    name: &Name,
    first: u32,
    count: u32,
) -> Option<Vec<u8>> {
    let others = drives.keys().filter(|drive| !prefer.contains(drive));
    prefer.iter().chain(others).find_map(|drive| {
        let contents = drives.get(drive)?;
        read(contents, contents.egroups.get(name)?, first, count)
    })
}
