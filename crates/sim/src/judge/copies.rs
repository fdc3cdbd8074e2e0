//! Whether an acknowledged write lies durably on as many drives as it must (I1), at the very moment of the
//! acknowledgement: looks at what each drive would still hold after a power cut that loses everything it may.

use crate::drive::Drive;
use crate::platter::Platter;
use weft_engine::FamilyId;
use weft_engine::buffer::{BLOCK, zeros};
use weft_engine::checksum::unit_checksum;
use weft_engine::codec::Decompressor;
use weft_engine::formats::layout::Layout;
use weft_engine::formats::table::{TablePage, decode_trailer};
use weft_engine::interface::Area;

/// How many of `drives` hold, safe from a power cut, `block` of a family as it is when it begins with `mark`: as it is, or in
/// a frame of a packed egroup.
pub fn durable_copies<'a>(
    drives: impl Iterator<Item = &'a Drive>,
    family: FamilyId,
    block: u64,
    mark: u64,
) -> usize {
    drives
        .filter(|drive| {
            drive.area(Area::Log).holds_safely(mark)
                || drive.area(Area::Data).holds_safely(mark)
                || holds_packed(drive, family, block, mark)
        })
        .count()
}

fn holds_packed(drive: &Drive, family: FamilyId, block: u64, mark: u64) -> bool {
    let data = drive.area(Area::Data);
    let layout = Layout::of(drive.geometry.data);
    let pages = (layout.table..layout.units).filter_map(|at| data.safe_content(at as usize).as_ref());
    let mut packed = pages
        .filter_map(|page| TablePage::decode(page.bytes()))
        .filter(|page| page.family == family && page.packing.is_some());
    packed.any(|page| {
        let (first, blocks) = page.trailer();
        let trailer = safe_bytes(data, first, first + blocks);
        let written_for = decode_trailer(&trailer, page.units(), page.trailer_crc).unwrap_or_default();
        let units = (0..).zip(&written_for).filter(|(_, other)| **other == block);
        units.into_iter().any(|(unit, _)| mark_of_unit(data, &page, unit) == Some(mark))
    })
}

/// The first 8 bytes of a unit, if its frame is sound.
fn mark_of_unit(data: &Platter, page: &TablePage, unit: u32) -> Option<u64> {
    let frame = page.frame_of(unit);
    let (block, place) = (BLOCK as u64, page.place_of(&frame));
    let bytes = safe_bytes(data, place / block, (place + u64::from(frame.len)).div_ceil(block));
    let stored = &bytes[(place % block) as usize..][..frame.len as usize];
    if page.checksums[frame.index as usize] != unit_checksum(page.family, page.egroup, frame.first, stored) {
        return None;
    }
    let mut units = stored.to_vec();
    if !frame.is_raw() {
        units = vec![0; frame.units as usize * BLOCK];
        let codec = page.packing.as_ref()?.codec();
        Decompressor::default().unpack(codec, stored, &mut units).then_some(())?;
    }
    let unit = &units[(unit - frame.first) as usize * BLOCK..];
    unit.first_chunk().copied().map(u64::from_le_bytes)
}

/// Blocks as they would be after a power cut that loses everything it may.
fn safe_bytes(data: &Platter, first: u64, end: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for at in first..end {
        let content = data.safe_content(at as usize).clone().unwrap_or_else(|| zeros(BLOCK));
        bytes.extend_from_slice(content.bytes());
    }
    bytes
}
