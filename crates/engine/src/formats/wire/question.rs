//! Questions of owners to keepers. What a keeper asserts about a question is checked here: to it, a question from
//! elsewhere is as sound as one of its own shard.

use super::fields::{Reader, Writer};
use super::header::PAYLOAD_BYTES_MAX;
use super::{packing, records};
use crate::buffer::{BLOCK, Buffer};
use crate::formats::record::Record;
use crate::identity::EgroupId;
use crate::limits::EGROUP_UNITS;
use crate::message::{Class, Content, Lacking, Question, Sharing, UnitRun};

const FENCE: u32 = 1;
const APPEND: u32 = 2;
const TRIM: u32 = 3;
const READ_LOG: u32 = 4;
const WRITE_EGROUP: u32 = 5;
const READ_UNITS: u32 = 6;
const DESCRIBE_EGROUP: u32 = 7;
const DELETE_EGROUPS: u32 = 8;
const LIST_EGROUPS: u32 = 9;
const DROP_FAMILY: u32 = 10;
const READ_FRAMES: u32 = 11;
const READ_UNITS_BEHIND: u32 = 12;
const APPEND_LATE: u32 = 13;

/// What is said of an egroup that is written: a copy that is there is replaced; a list of egroups that it moves from follows, and
/// it shares what lies there; its units are lost; what it lacks follows.
const REPLACE: u32 = 1;
const SHARE: u32 = 2;
const LOST: u32 = 4;
const LACKING: u32 = 8;

/// Units that one answer can carry.
const UNITS_MAX: u64 = (PAYLOAD_BYTES_MAX / BLOCK) as u64;

/// A piece of a log that one answer can carry beside a last record that goes over it.
const READ_LOG_BYTES_MAX: u32 = 16 << 20;

pub(super) fn put(question: &Question, writer: &mut Writer) {
    match question {
        Question::Fence { first, since } => {
            writer.u32(FENCE);
            writer.u64(first.0);
            writer.u32(since.0);
        }
        Question::Append { first, trim, records } => {
            writer.u32(APPEND);
            writer.u64(first.0);
            writer.u64(trim.0);
            records::put(records, writer);
        }
        Question::AppendLate { first, since, records, urgent } => {
            writer.u32(APPEND_LATE);
            writer.u64(first.0);
            writer.u32(since.0);
            writer.u32(u32::from(*urgent));
            records::put(records, writer);
        }
        Question::Trim { up_to } => {
            writer.u32(TRIM);
            writer.u64(up_to.0);
        }
        Question::ReadLog { from, bytes } => {
            writer.u32(READ_LOG);
            writer.u64(from.0);
            writer.u32(*bytes);
        }
        Question::WriteEgroup { egroup, class, content, blocks, replace, sharing, lacking } => {
            writer.u32(WRITE_EGROUP);
            writer.u64(egroup.0);
            writer.u32(match class {
                Class::Data => 1,
                Class::Reserve => 2,
                Class::Pressed => 3,
                Class::Pages => 4,
            });
            let replace = if *replace { REPLACE } else { 0 };
            let lost = if matches!(content, Content::Lost { .. }) { LOST } else { 0 };
            let lacks = if lacking.is_nothing() { 0 } else { LACKING };
            writer.u32(replace | lost | lacks | if sharing.is_some() { SHARE } else { 0 });
            if let Some(Sharing { moved_from }) = sharing {
                writer.count(moved_from.len());
                moved_from.iter().for_each(|egroup| writer.u64(egroup.0));
            }
            if !lacking.is_nothing() {
                writer.u32(u32::from(lacking.blocks));
                writer.count(lacking.frames.len());
                lacking.frames.iter().for_each(|frame| writer.u32(*frame));
            }
            writer.count(blocks.len());
            blocks.iter().for_each(|block| writer.u64(*block));
            match content {
                Content::Units(units) => {
                    packing::put(None, writer);
                    units.iter().for_each(|unit| writer.payload(unit));
                }
                Content::Packed { packing, bytes } => {
                    packing::put(Some(packing), writer);
                    writer.payload(bytes);
                }
                Content::Lost { .. } => packing::put(None, writer),
            }
        }
        Question::ReadUnits { egroup, runs, frames: _, behind } => {
            writer.u32(if *behind { READ_UNITS_BEHIND } else { READ_UNITS });
            put_runs(*egroup, runs, writer);
        }
        Question::ReadFrames { egroup, runs } => {
            writer.u32(READ_FRAMES);
            put_runs(*egroup, runs, writer);
        }
        Question::DescribeEgroup { egroup } => {
            writer.u32(DESCRIBE_EGROUP);
            writer.u64(egroup.0);
        }
        Question::DeleteEgroups { egroups } => {
            writer.u32(DELETE_EGROUPS);
            writer.count(egroups.len());
            egroups.iter().for_each(|egroup| writer.u64(egroup.0));
        }
        Question::ListEgroups { after } => {
            writer.u32(LIST_EGROUPS);
            writer.u64(after.0);
        }
        Question::DropFamily => writer.u32(DROP_FAMILY),
    }
}

pub(super) fn take(reader: &mut Reader) -> Option<Question> {
    Some(match reader.u32()? {
        FENCE => Question::Fence { first: reader.seq()?, since: reader.epoch()? },
        APPEND => Question::Append {
            first: reader.seq()?,
            trim: reader.seq()?,
            records: records::take(reader).filter(|records| follow_each_other(records))?,
        },
        APPEND_LATE => {
            let (first, since, urgent) = (reader.seq()?, reader.epoch()?, reader.flag()?);
            let records = records::take(reader).filter(|records| follow_each_other(records))?;
            records.first().filter(|record| first <= record.seq)?;
            Question::AppendLate { first, since, records, urgent }
        }
        TRIM => Question::Trim { up_to: reader.seq()? },
        READ_LOG => Question::ReadLog { from: reader.seq()?, bytes: reader.u32()?.min(READ_LOG_BYTES_MAX) },
        WRITE_EGROUP => {
            let egroup = reader.egroup()?;
            let class = match reader.u32()? {
                1 => Class::Data,
                2 => Class::Reserve,
                3 => Class::Pressed,
                4 => Class::Pages,
                _ => return None,
            };
            let said = reader.u32().filter(|said| said & !(REPLACE | SHARE | LOST | LACKING) == 0)?;
            let replace = said & REPLACE != 0;
            let sharing = match said & SHARE {
                0 => None,
                _ => Some(Sharing { moved_from: reader.list(8, Reader::egroup)? }),
            };
            let lacking = match said & LACKING {
                0 => Lacking::default(),
                _ => Lacking { blocks: reader.flag()?, frames: reader.list(4, Reader::u32)? },
            };
            let blocks = reader.list(8, Reader::u64)?;
            let packing = packing::take(reader)?;
            let bytes: Buffer = reader.rest_of_payload();
            let is_lost = said & LOST != 0;
            let content = match packing {
                None if is_lost => Content::Lost { units: u32::try_from(blocks.len()).ok()? },
                None => Content::Units(vec![bytes.clone()]),
                Some(_) if is_lost => return None,
                Some(packing) => Content::Packed { packing, bytes: bytes.clone() },
            };
            let stored = if is_lost { 0 } else { content.blocks() };
            let whole = content.units() == blocks.len() && stored * BLOCK == bytes.len();
            let frames = &lacking.frames;
            let is_there = frames.is_sorted_by(|a, b| a < b)
                && frames.last().is_none_or(|&last| (last as usize) < content.frames());
            if !(1..=EGROUP_UNITS).contains(&blocks.len()) || !whole || !is_there {
                return None;
            }
            Question::WriteEgroup { egroup, class, content, blocks, replace, sharing, lacking }
        }
        kind @ (READ_UNITS | READ_UNITS_BEHIND) => {
            let (egroup, runs) = take_runs(reader)?;
            Question::ReadUnits { egroup, runs, frames: false, behind: kind == READ_UNITS_BEHIND }
        }
        READ_FRAMES => {
            let (egroup, runs) = take_runs(reader)?;
            // Frames are longer than what is asked of them: each run may bring two that it only touches.
            (runs.len() <= EGROUP_UNITS).then_some(())?;
            Question::ReadFrames { egroup, runs }
        }
        DESCRIBE_EGROUP => Question::DescribeEgroup { egroup: reader.egroup()? },
        DELETE_EGROUPS => Question::DeleteEgroups { egroups: reader.list(8, Reader::egroup)? },
        LIST_EGROUPS => Question::ListEgroups { after: reader.egroup()? },
        DROP_FAMILY => Question::DropFamily,
        _ => return None,
    })
}

fn put_runs(egroup: EgroupId, runs: &[UnitRun], writer: &mut Writer) {
    writer.u64(egroup.0);
    writer.count(runs.len());
    for run in runs {
        writer.u32(run.first);
        writer.u32(run.count);
    }
}

fn take_runs(reader: &mut Reader) -> Option<(EgroupId, Vec<UnitRun>)> {
    let egroup = reader.egroup()?;
    let runs = reader.list(8, |reader| Some(UnitRun { first: reader.u32()?, count: reader.u32()? }))?;
    let units = EGROUP_UNITS as u32;
    let inside = |run: &UnitRun| run.first < units && run.count <= units - run.first;
    let total: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
    (runs.iter().all(inside) && total <= UNITS_MAX).then_some((egroup, runs))
}

fn follow_each_other(records: &[Record]) -> bool {
    records.is_sorted_by(|a, b| a.seq.next() == b.seq)
}
