//! Whatever may be said, made up at random.

use super::super::*;
use crate::buffer::{BLOCK, Buffer, Pages, zeros};
use crate::codec::Codec;
use crate::formats::packing::{Packing, tests::some_sizes};
use crate::formats::recipe::Recipe;
use crate::formats::record::{
    Body, Checkpoint, Edit, IndexPlace, MapRecord, Mark, NamedEgroup, PageKind, PagePlace, Record, UnitMove,
};
use crate::identity::{
    Block, DriveId, EgroupId, Epoch, FamilyId, Generation, GroupId, Seq, ShardId, SnapshotId,
};
use crate::interface::{Extent, RequestError, Warmed};
use crate::limits::RECORD_BLOCKS;
use crate::message::{
    Answer, BadUnit, Class, Content, Held, Lacking, LostWrite, Question, Refusal, Sharing, UnitRun,
};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore};
use std::sync::Arc;

/// Questions, answers, refusals, requests and replies of each kind, and the four frames beside them.
pub(super) const QUESTIONS: u32 = 12;
pub(super) const ANSWERS: u32 = 17;
pub(super) const REQUESTS: u32 = 10;
pub(super) const REPLIES: u32 = 11;
pub(super) const KINDS: u32 = QUESTIONS + ANSWERS + REQUESTS + REPLIES + 4;

pub(super) fn some_bytes(random: &mut SmallRng, len: usize) -> Buffer {
    let mut pages = Pages::zeroed(len.max(1));
    random.fill_bytes(&mut pages.bytes_mut()[..len]);
    pages.freeze().slice(0..len)
}

pub(super) fn some_blocks(random: &mut SmallRng, most: usize) -> Buffer {
    let blocks = random.random_range(1..=most);
    some_bytes(random, blocks * BLOCK)
}

pub(super) fn some_seq(random: &mut SmallRng) -> Seq {
    Seq(random.random_range(0..1 << 60))
}

pub(super) fn numbers(random: &mut SmallRng, most: usize) -> Vec<u64> {
    (0..random.random_range(0..=most)).map(|_| random.random()).collect()
}

pub(super) fn some_named(random: &mut SmallRng) -> NamedEgroup {
    NamedEgroup {
        egroup: EgroupId(random.random()),
        group: GroupId(random.random()),
        units: random.random(),
        stored: random.random_range(0..1 << 24),
        recipe: Recipe::from_byte([0, 5, 11][random.random_range(0..3)]).expect("it is one"),
        generation: Generation(random.random()),
    }
}

pub(super) fn some_body(random: &mut SmallRng) -> Body {
    let block = Block(random.random_range(0..1 << 40));
    let generation = Generation(random.random());
    match random.random_range(0..6) {
        4 => Body::Mark(Mark::Taken { generation, snapshot: SnapshotId(random.random()) }),
        5 => Body::Mark(Mark::Dropped { generation }),
        0 => Body::Data { block, data: some_blocks(random, 5) },
        1 => Body::Zero { block, count: random.random_range(1..1 << 30) },
        2 => {
            let edits = (0..random.random_range(0..300)).map(|_| Edit {
                block,
                count: random.random(),
                unit: random.random::<bool>().then(|| random.random()),
                covers: Seq(random.random()),
            });
            let edits = edits.collect();
            let named = random.random::<bool>().then(|| some_named(random));
            Body::Map(Arc::new(MapRecord { generation, named, edits, moves: some_moves(random) }))
        }
        _ => {
            let egroup = EgroupId(random.random());
            let place = PagePlace { egroup, unit: random.random(), units: random.random() };
            let index = vec![
                IndexPlace { kind: PageKind::Leaf, number: random.random(), place };
                random.random_range(0..200)
            ];
            let map_egroups = (0..random.random_range(0..20)).map(|_| some_named(random)).collect();
            let (map_to, replay_from) = (some_seq(random), some_seq(random));
            let mapped = random.random();
            Body::Checkpoint(Arc::new(Checkpoint {
                map_to,
                replay_from,
                replay_generation: Generation(random.random()),
                generation,
                snapshots: vec![(generation, SnapshotId(random.random())); random.random_range(0..30)],
                dropped: vec![generation; random.random_range(0..30)],
                mapped,
                map_egroups,
                index,
                holes: Vec::new(),
            }))
        }
    }
}

pub(super) fn some_moves(random: &mut SmallRng) -> Vec<UnitMove> {
    let one = UnitMove {
        block: Block(random.random()),
        count: random.random(),
        from: EgroupId(random.random()),
        from_unit: random.random(),
        unit: random.random(),
    };
    vec![one; random.random_range(0..50)]
}

pub(super) fn some_records(random: &mut SmallRng) -> Vec<Record> {
    let first = random.random_range(1..1 << 60);
    (0..random.random_range(0..20))
        .map(|at| Record { seq: Seq(first + at), body: some_body(random) })
        .collect()
}

/// How an egroup of so many units could be packed; None: it is not.
pub(super) fn some_packing(random: &mut SmallRng, units: u32) -> Option<Arc<Packing>> {
    let codec = if random.random() { Codec::Lz4 } else { Codec::Zstd };
    let sizes = random.random::<bool>().then(|| some_sizes(random, units))?;
    Packing::of(codec, sizes).map(Arc::new)
}

pub(super) fn some_question(which: u32, random: &mut SmallRng) -> Question {
    let egroup = EgroupId(random.random());
    match which {
        0 => Question::Fence { first: some_seq(random), since: Epoch(random.random()) },
        1 => Question::Append {
            first: some_seq(random),
            trim: some_seq(random),
            records: some_records(random),
        },
        2 => Question::Trim { up_to: some_seq(random) },
        3 => Question::ReadLog { from: some_seq(random), bytes: random.random_range(0..1 << 23) },
        4 => {
            let count = if random.random_bool(0.1) { 960 } else { random.random_range(1..=100) };
            let whole = some_bytes(random, count * BLOCK);
            // In several pieces, as the drain gives them: neighbours and strangers.
            let cut = random.random_range(0..=count) * BLOCK;
            let units = vec![whole.slice(0..cut), Buffer::copied(&whole.bytes()[cut..])];
            let blocks = (0..count).map(|_| random.random()).collect();
            let class =
                [Class::Data, Class::Pressed, Class::Reserve, Class::Pages][random.random_range(0..4)];
            let mut content = Content::Units(units);
            if let Some(packing) = some_packing(random, count as u32) {
                let bytes = some_bytes(random, packing.blocks() as usize * BLOCK);
                content = Content::Packed { packing, bytes };
            }
            if random.random_ratio(1, 4) {
                content = Content::Lost { units: count as u32 };
            }
            let mut lacking = Lacking { frames: Vec::new(), blocks: random.random_ratio(1, 4) };
            if random.random_ratio(1, 4) {
                lacking.frames.extend((0..content.frames() as u32).filter(|_| random.random_ratio(1, 8)));
            }
            let moved_from = numbers(random, 8).into_iter().map(EgroupId).collect();
            let sharing = random.random::<bool>().then_some(Sharing { moved_from });
            let replace = random.random();
            Question::WriteEgroup { egroup, class, content, blocks, replace, sharing, lacking }
        }
        5 | 10 => {
            let run = |random: &mut SmallRng| {
                let first = random.random_range(0..960);
                UnitRun { first, count: random.random_range(0..=(960 - first).min(9)) }
            };
            let runs = (0..random.random_range(0..50)).map(|_| run(random)).collect();
            if which == 10 {
                return Question::ReadFrames { egroup, runs };
            }
            Question::ReadUnits { egroup, runs, frames: false, behind: random.random() }
        }
        6 => Question::DescribeEgroup { egroup },
        7 => Question::DeleteEgroups { egroups: numbers(random, 1024).into_iter().map(EgroupId).collect() },
        8 => Question::ListEgroups { after: egroup },
        11 => {
            let mut records = some_records(random);
            records.push(Record {
                seq: records.last().map_or(Seq(9), |last| last.seq.next()),
                body: some_body(random),
            });
            let first = Seq(records[0].seq.0 - random.random_range(0..=records[0].seq.0));
            Question::AppendLate { first, since: Epoch(random.random()), records, urgent: random.random() }
        }
        _ => Question::DropFamily,
    }
}

pub(super) fn some_answer(which: u32, random: &mut SmallRng) -> Result<Answer, Refusal> {
    Ok(match which {
        0 => Answer::Fenced(Held {
            low: some_seq(random),
            high: some_seq(random),
            incomplete: random.random(),
            torn: random.random(),
            egroups: random.random(),
            checkpoints: (0..random.random_range(0..9)).map(|_| some_seq(random)).collect(),
            room: random.random(),
        }),
        1 => Answer::Appended { up_to: some_seq(random), room: random.random() },
        2 => Answer::Trimmed { room: random.random() },
        3 => {
            let lost = |random: &mut SmallRng| LostWrite {
                seq: some_seq(random),
                block: Block(random.random_range(0..1 << 30)),
                count: random.random_range(1..=RECORD_BLOCKS),
            };
            let lost = (0..random.random_range(0..4)).map(|_| lost(random)).collect();
            let unread = (0..random.random_range(0..4)).map(|_| some_seq(random)).collect();
            Answer::Records { records: some_records(random), lost, unread, end: random.random() }
        }
        4 => Answer::EgroupWritten,
        5 => {
            let run = |random: &mut SmallRng| match random.random_range(0..4) {
                0 => Err(BadUnit { unit: random.random(), is_lost: random.random() }),
                1 => Ok(zeros(0)),
                _ => Ok(some_blocks(random, 7)),
            };
            Answer::Units((0..random.random_range(0..20)).map(|_| run(random)).collect())
        }
        6 => {
            let blocks = numbers(random, 960);
            Answer::Egroup { packing: some_packing(random, blocks.len() as u32), blocks }
        }
        7 => Answer::Deleted,
        8 => {
            let mut egroups: Vec<_> = numbers(random, 4096).into_iter().map(EgroupId).collect();
            egroups.sort_unstable();
            egroups.dedup();
            let end = egroups.is_empty() || random.random();
            Answer::Listed { egroups, end }
        }
        9 => Answer::Dropped,
        10 => return Err(Refusal::Fenced(Epoch(random.random()))),
        11 => return Err(Refusal::LogFull),
        12 => return Err(Refusal::NoSpace),
        13 => return Err(Refusal::Gap { expected: some_seq(random) }),
        14 => return Err(Refusal::NotFound),
        15 => {
            let run = |random: &mut SmallRng| match random.random_range(0..4) {
                0 => Err(BadUnit { unit: random.random(), is_lost: random.random() }),
                _ => {
                    let len = random.random_range(0..9_000);
                    Ok(some_bytes(random, len))
                }
            };
            Answer::Frames((0..random.random_range(0..20)).map(|_| run(random)).collect())
        }
        _ => return Err(Refusal::DriveGone),
    })
}

pub(super) fn some_request(which: u32, random: &mut SmallRng) -> Request {
    let offset = random.random();
    match which {
        0 => Request::Read { offset, len: random.random_range(0..32 << 20) },
        1 => {
            let len = random.random_range(0..3 * BLOCK);
            Request::Write { offset, data: some_bytes(random, len) }
        }
        2 => Request::Zero { offset, len: random.random() },
        3 => Request::Flush,
        7 => Request::Warm { offset, len: random.random(), data: random.random() },
        4 => Request::ReadSnapshot {
            snapshot: Generation(random.random()),
            offset,
            len: random.random_range(0..32 << 20),
        },
        8 => Request::ReadOrigin {
            snapshot: Generation(random.random()),
            offset,
            len: random.random_range(0..32 << 20),
        },
        5 => Request::SnapshotExtents {
            snapshot: Generation(random.random()),
            offset,
            len: random.random(),
            limit: random.random_range(0..4096),
        },
        6 => Request::Differences {
            from: Generation(random.random()),
            to: random.random_bool(0.5).then(|| Generation(random.random_range(0..u32::MAX))),
            offset,
            len: random.random(),
            limit: random.random_range(0..4096),
        },
        _ => Request::Extents { offset, len: random.random(), limit: random.random_range(0..4096) },
    }
}

pub(super) fn some_reply(which: u32, random: &mut SmallRng) -> Reply {
    match which {
        0 => Reply::Done,
        1 => {
            let piece = |random: &mut SmallRng| {
                let len = random.random_range(1..3 * BLOCK);
                if random.random() { zeros(len) } else { some_bytes(random, len) }
            };
            Reply::Data((0..random.random_range(0..9)).map(|_| piece(random)).collect())
        }
        2 => {
            let extent = |random: &mut SmallRng| Extent { len: random.random(), data: random.random() };
            Reply::Extents((0..random.random_range(0..99)).map(|_| extent(random)).collect())
        }
        3 => Reply::Error(RequestError::OutOfRange),
        4 => Reply::Error(RequestError::NotServed),
        5 => Reply::Error(RequestError::NoSpace),
        6 => Reply::Error(RequestError::Damaged { block: random.random() }),
        7 => Reply::Error(RequestError::Fenced),
        8 => Reply::Warmed(Warmed {
            to: random.random(),
            pages: random.random(),
            bytes: random.random(),
            full: random.random(),
        }),
        9 => Reply::Error(RequestError::NoSnapshot),
        _ => Reply::Error(RequestError::Busy),
    }
}

pub(super) fn some_hello(random: &mut SmallRng) -> Hello {
    Hello {
        cluster: random.random(),
        life: random.random(),
        number: random.random(),
        from: ShardId(random.random()),
        to: ShardId(random.random()),
        lane: Lane::ALL[random.random_range(0..3)],
    }
}

/// The packet number `which` of [`KINDS`].
pub(super) fn some_packet(which: u32, random: &mut SmallRng) -> Packet {
    let (drive, family, epoch) =
        (DriveId(random.random()), FamilyId(random.random()), Epoch(random.random()));
    let number = random.random();
    let mut which = which;
    let mut is_one_of = |kinds: u32| {
        let is_here = which < kinds;
        which = if is_here { which } else { which - kinds };
        is_here.then_some(which)
    };
    if let Some(which) = is_one_of(QUESTIONS) {
        let question = some_question(which, random);
        return Packet::Message(Message::Ask { call: number, drive, family, epoch, question });
    }
    if let Some(which) = is_one_of(ANSWERS) {
        let answer = some_answer(which, random);
        return Packet::Message(Message::Answer {
            call: number,
            drive,
            family,
            free: random.random(),
            answer,
        });
    }
    if let Some(which) = is_one_of(REQUESTS) {
        return Packet::Request { number, family, epoch, request: some_request(which, random) };
    }
    if let Some(which) = is_one_of(REPLIES) {
        return Packet::Reply { number, reply: some_reply(which, random) };
    }
    match which {
        0 => Packet::Message(Message::Press { drive, family, seq: some_seq(random) }),
        1 => Packet::Ping,
        2 => Packet::Pong,
        _ => Packet::Hello(some_hello(random)),
    }
}
