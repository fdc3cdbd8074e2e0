//! Answers and refusals of keepers.

use super::fields::{Reader, Writer};
use super::{packing, records};
use crate::buffer::{BLOCK, Buffer};
use crate::identity::Block;
use crate::limits::RECORD_BLOCKS;
use crate::message::{Answer, BadUnit, Held, LostWrite, Refusal};

const FENCED: u32 = 1;
const APPENDED: u32 = 2;
const TRIMMED: u32 = 3;
const RECORDS: u32 = 4;
const EGROUP_WRITTEN: u32 = 5;
const UNITS: u32 = 6;
const EGROUP: u32 = 7;
const DELETED: u32 = 8;
const LISTED: u32 = 9;
const DROPPED: u32 = 10;
const FRAMES: u32 = 11;
const REFUSED_FENCED: u32 = 101;
const REFUSED_LOG_FULL: u32 = 102;
const REFUSED_NO_SPACE: u32 = 103;
const REFUSED_GAP: u32 = 104;
const REFUSED_NOT_FOUND: u32 = 105;
const REFUSED_DRIVE_GONE: u32 = 106;

pub(super) fn put(answer: &Result<Answer, Refusal>, writer: &mut Writer) {
    match answer {
        Ok(Answer::Fenced(Held { low, high, incomplete, torn, egroups, checkpoints, room })) => {
            writer.u32(FENCED);
            writer.u64(low.0);
            writer.u64(high.0);
            writer.u32(u32::from(*incomplete));
            writer.u32(u32::from(*torn));
            writer.u32(u32::from(*egroups));
            writer.u64(*room);
            writer.count(checkpoints.len());
            checkpoints.iter().for_each(|seq| writer.u64(seq.0));
        }
        Ok(Answer::Appended { up_to, room }) => {
            writer.u32(APPENDED);
            writer.u64(up_to.0);
            writer.u64(*room);
        }
        Ok(Answer::Trimmed { room }) => {
            writer.u32(TRIMMED);
            writer.u64(*room);
        }
        Ok(Answer::Records { records, lost, unread, end }) => {
            writer.u32(RECORDS);
            writer.u32(u32::from(*end));
            writer.count(lost.len());
            for LostWrite { seq, block, count } in lost {
                writer.u64(seq.0);
                writer.u64(block.0);
                writer.u64(*count);
            }
            writer.count(unread.len());
            unread.iter().for_each(|seq| writer.u64(seq.0));
            records::put(records, writer);
        }
        Ok(Answer::EgroupWritten) => writer.u32(EGROUP_WRITTEN),
        Ok(Answer::Units(runs) | Answer::UnitsAndFrames(runs, _)) => {
            writer.u32(UNITS);
            put_runs(runs, writer);
        }
        Ok(Answer::Frames(runs)) => {
            writer.u32(FRAMES);
            put_runs(runs, writer);
        }
        Ok(Answer::Egroup { blocks, packing }) => {
            writer.u32(EGROUP);
            writer.count(blocks.len());
            blocks.iter().for_each(|block| writer.u64(*block));
            packing::put(packing.as_ref(), writer);
        }
        Ok(Answer::Deleted) => writer.u32(DELETED),
        Ok(Answer::Listed { egroups, end }) => {
            writer.u32(LISTED);
            writer.u32(u32::from(*end));
            writer.count(egroups.len());
            egroups.iter().for_each(|egroup| writer.u64(egroup.0));
        }
        Ok(Answer::Dropped) => writer.u32(DROPPED),
        Err(Refusal::Fenced(epoch)) => {
            writer.u32(REFUSED_FENCED);
            writer.u32(epoch.0);
        }
        Err(Refusal::LogFull) => writer.u32(REFUSED_LOG_FULL),
        Err(Refusal::NoSpace) => writer.u32(REFUSED_NO_SPACE),
        Err(Refusal::Gap { expected }) => {
            writer.u32(REFUSED_GAP);
            writer.u64(expected.0);
        }
        Err(Refusal::NotFound) => writer.u32(REFUSED_NOT_FOUND),
        Err(Refusal::DriveGone) => writer.u32(REFUSED_DRIVE_GONE),
    }
}

pub(super) fn take(reader: &mut Reader) -> Option<Result<Answer, Refusal>> {
    Some(match reader.u32()? {
        FENCED => {
            let (low, high) = (reader.seq()?, reader.seq()?);
            let (incomplete, torn, egroups) = (reader.flag()?, reader.flag()?, reader.flag()?);
            let room = reader.u64()?;
            let checkpoints = reader.list(8, Reader::seq)?;
            Ok(Answer::Fenced(Held { low, high, incomplete, torn, egroups, checkpoints, room }))
        }
        APPENDED => Ok(Answer::Appended { up_to: reader.seq()?, room: reader.u64()? }),
        TRIMMED => Ok(Answer::Trimmed { room: reader.u64()? }),
        RECORDS => {
            let end = reader.flag()?;
            let lost = reader.list(24, take_lost)?;
            let unread = reader.list(8, Reader::seq)?;
            Ok(Answer::Records { end, lost, unread, records: records::take(reader)? })
        }
        EGROUP_WRITTEN => Ok(Answer::EgroupWritten),
        UNITS => {
            let runs = take_runs(reader)?;
            let whole = |run: &Run| run.as_ref().map_or(true, |units| units.len().is_multiple_of(BLOCK));
            runs.iter().all(whole).then_some(())?;
            Ok(Answer::Units(runs))
        }
        FRAMES => Ok(Answer::Frames(take_runs(reader)?)),
        EGROUP => {
            let blocks = reader.list(8, Reader::u64)?;
            Ok(Answer::Egroup { blocks, packing: packing::take(reader)? })
        }
        DELETED => Ok(Answer::Deleted),
        LISTED => {
            let end = reader.flag()?;
            let egroups = reader.list(8, Reader::egroup)?;
            let in_order = egroups.is_sorted_by(|a, b| a < b) && (end || !egroups.is_empty());
            in_order.then_some(())?;
            Ok(Answer::Listed { egroups, end })
        }
        DROPPED => Ok(Answer::Dropped),
        REFUSED_FENCED => Err(Refusal::Fenced(reader.epoch()?)),
        REFUSED_LOG_FULL => Err(Refusal::LogFull),
        REFUSED_NO_SPACE => Err(Refusal::NoSpace),
        REFUSED_GAP => Err(Refusal::Gap { expected: reader.seq()? }),
        REFUSED_NOT_FOUND => Err(Refusal::NotFound),
        REFUSED_DRIVE_GONE => Err(Refusal::DriveGone),
        _ => return None,
    })
}

type Run = Result<Buffer, BadUnit>;

const DAMAGED_UNIT: u32 = 0;
const RUN: u32 = 1;
const LOST_UNIT: u32 = 2;

fn take_lost(reader: &mut Reader) -> Option<LostWrite> {
    let seq = reader.seq()?;
    let (block, count) = reader.blocks().filter(|(_, count)| (1..=RECORD_BLOCKS).contains(count))?;
    Some(LostWrite { seq, block: Block(block), count })
}

fn put_runs(runs: &[Run], writer: &mut Writer) {
    writer.count(runs.len());
    for run in runs {
        match run {
            Ok(bytes) => {
                writer.u32(RUN);
                writer.count(bytes.len());
                writer.payload(bytes);
            }
            Err(BadUnit { unit, is_lost }) => {
                writer.u32(if *is_lost { LOST_UNIT } else { DAMAGED_UNIT });
                writer.u32(*unit);
            }
        }
    }
}

fn take_runs(reader: &mut Reader) -> Option<Vec<Run>> {
    reader.list(8, |reader| match reader.u32()? {
        RUN => {
            let len = reader.u32()? as usize;
            reader.payload(len).map(Ok)
        }
        kind @ (DAMAGED_UNIT | LOST_UNIT) => {
            let is_lost = kind == LOST_UNIT;
            reader.u32().map(|unit| Err(BadUnit { unit, is_lost }))
        }
        _ => None,
    })
}
