//! The payloads of map and checkpoint records. (The payload of a data record is its blocks.)
//! Lengths are those that [`Record::payload_bytes`] tells, before padding to whole blocks.

use crate::buffer::{Buffer, Pages};
use crate::formats::fields::{put_u32, put_u64, u32_at, u64_at};
use crate::formats::frame::RecordKind;
use crate::formats::recipe::Recipe;
use crate::formats::record::{
    Body, Checkpoint, Edit, IndexPlace, MapRecord, Mark, NamedEgroup, PageKind, PagePlace, Record,
    TrimmedLeaves, UnitMove,
};
use crate::identity::{Block, EgroupId, Generation, GroupId, Seq, SnapshotId};
use std::sync::Arc;

const MAP_MAGIC: u32 = u32::from_le_bytes(*b"WfMR");
const CHECKPOINT_MAGIC: u32 = u32::from_le_bytes(*b"WfCP");
pub const VERSION: u32 = 2;
const HEAD: usize = 64;
const EDIT: usize = 40;
const MOVE: usize = 32;
const NAMED: usize = 24;
/// The last byte of an egroup's stored blocks tells how they were packed.
const RECIPE_SHIFT: u32 = 24;
const INDEX: usize = 40;
const SNAPSHOT: usize = 16;
const DROPPED: usize = 4;
const HOLE: usize = 24;

const MARK_TAKEN: u64 = 1;
const MARK_DROPPED: u64 = 2;
const MARK_ROLLED_BACK: u64 = 3;

/// The payload of a record, padded to whole blocks, without a copy where it is data already; None for
/// records without one.
pub fn encode(record: &Record) -> Option<Buffer> {
    match &record.body {
        Body::Data { data, .. } => Some(data.clone()),
        Body::Zero { .. } | Body::Mark(_) => None,
        Body::Map(map) => {
            let mut pages = Pages::zeroed(record.payload_bytes());
            encode_map(map, pages.bytes_mut());
            Some(pages.freeze())
        }
        Body::Checkpoint(checkpoint) => {
            let mut pages = Pages::zeroed(record.payload_bytes());
            encode_checkpoint(checkpoint, pages.bytes_mut());
            Some(pages.freeze())
        }
    }
}

/// The record whose header said `kind`, `block` and `count`, with this payload (without padding).
pub fn decode(seq: Seq, kind: RecordKind, block: u64, count: u64, payload: Buffer) -> Option<Record> {
    let body = match kind {
        RecordKind::Data => Body::Data { block: Block(block), data: payload },
        RecordKind::Zero => Body::Zero { block: Block(block), count },
        RecordKind::Map => Body::Map(Arc::new(decode_map(payload.bytes())?)),
        RecordKind::Checkpoint => Body::Checkpoint(Arc::new(decode_checkpoint(payload.bytes())?)),
        RecordKind::Mark => Body::Mark(decode_mark(block, count)?),
        RecordKind::Fence | RecordKind::Trim | RecordKind::Drop => return None,
    };
    Some(Record { seq, body })
}

/// What stands for a record in its header: its kind, and two numbers (of data and zeros the range).
pub fn header_fields(record: &Record) -> (RecordKind, u64, u64) {
    match &record.body {
        Body::Data { block, data } => (RecordKind::Data, block.0, data.blocks() as u64),
        Body::Zero { block, count } => (RecordKind::Zero, block.0, *count),
        Body::Map(_) => (RecordKind::Map, 0, 0),
        Body::Checkpoint(_) => (RecordKind::Checkpoint, 0, 0),
        Body::Mark(mark) => {
            let (block, count) = mark_fields(*mark);
            (RecordKind::Mark, block, count)
        }
    }
}

/// The two numbers of a mark: what it says (high half) with the generation (low half), and the snapshot.
pub fn mark_fields(mark: Mark) -> (u64, u64) {
    match mark {
        Mark::Taken { generation, snapshot } => (MARK_TAKEN << 32 | u64::from(generation.0), snapshot.0),
        Mark::Dropped { generation } => (MARK_DROPPED << 32 | u64::from(generation.0), 0),
        Mark::RolledBack { to, generation } => {
            (MARK_ROLLED_BACK << 32 | u64::from(generation.0), u64::from(to.0))
        }
    }
}

fn decode_mark(what: u64, snapshot: u64) -> Option<Mark> {
    let generation = Generation(what as u32);
    match what >> 32 {
        MARK_TAKEN => Some(Mark::Taken { generation, snapshot: SnapshotId(snapshot) }),
        MARK_DROPPED if snapshot == 0 => Some(Mark::Dropped { generation }),
        MARK_ROLLED_BACK if snapshot < u64::from(generation.0) => {
            Some(Mark::RolledBack { to: Generation(snapshot as u32), generation })
        }
        _ => None,
    }
}

fn put_named(bytes: &mut [u8], named: &NamedEgroup) {
    put_u64(bytes, 0, named.egroup.0);
    put_u32(bytes, 8, named.group.0);
    put_u32(bytes, 12, named.units);
    put_u32(bytes, 16, named.generation.0);
    // Never more than the units of an egroup.
    put_u32(bytes, 20, named.stored | u32::from(named.recipe.byte()) << RECIPE_SHIFT);
}

fn named_at(bytes: &[u8]) -> Option<NamedEgroup> {
    let stored = u32_at(bytes, 20);
    Some(NamedEgroup {
        egroup: EgroupId(u64_at(bytes, 0)),
        group: GroupId(u32_at(bytes, 8)),
        units: u32_at(bytes, 12),
        generation: Generation(u32_at(bytes, 16)),
        stored: stored & ((1 << RECIPE_SHIFT) - 1),
        recipe: Recipe::from_byte((stored >> RECIPE_SHIFT) as u8)?,
    })
}

fn encode_map(map: &MapRecord, bytes: &mut [u8]) {
    put_u32(bytes, 0, MAP_MAGIC);
    put_u32(bytes, 4, VERSION);
    put_u32(bytes, 8, map.edits.len() as u32);
    if let Some(named) = &map.named {
        put_u32(bytes, 12, 1);
        put_named(&mut bytes[16..], named);
    }
    put_u32(bytes, 40, map.generation.0);
    put_u32(bytes, 44, map.moves.len() as u32);
    let (edits, moves) = bytes[HEAD..].split_at_mut(EDIT * map.edits.len());
    for (moved, bytes) in map.moves.iter().zip(moves.chunks_exact_mut(MOVE)) {
        put_u64(bytes, 0, moved.block.0);
        put_u64(bytes, 8, moved.from.0);
        put_u32(bytes, 16, moved.from_unit);
        put_u32(bytes, 20, moved.unit);
        put_u32(bytes, 24, moved.count);
    }
    for (edit, bytes) in map.edits.iter().zip(edits.chunks_exact_mut(EDIT)) {
        put_u64(bytes, 0, edit.block.0);
        put_u64(bytes, 8, edit.count);
        put_u64(bytes, 16, edit.covers.0);
        put_u32(bytes, 24, u32::from(edit.unit.is_some()));
        put_u32(bytes, 28, edit.unit.unwrap_or(0));
    }
}

/// None if these bytes are not a whole map record.
pub fn decode_map(bytes: &[u8]) -> Option<MapRecord> {
    if bytes.len() < HEAD || u32_at(bytes, 0) != MAP_MAGIC || u32_at(bytes, 4) != VERSION {
        return None;
    }
    let (edits, moves) = (u32_at(bytes, 8) as usize, u32_at(bytes, 44) as usize);
    if edits.checked_mul(EDIT)?.checked_add(moves.checked_mul(MOVE)?)? != bytes.len() - HEAD {
        return None;
    }
    let named = match u32_at(bytes, 12) {
        0 => None,
        1 => Some(named_at(&bytes[16..])?),
        _ => return None,
    };
    let generation = Generation(u32_at(bytes, 40));
    let (edits, moves) = bytes[HEAD..].split_at(edits * EDIT);
    let moves = moves.chunks_exact(MOVE).map(|bytes| UnitMove {
        block: Block(u64_at(bytes, 0)),
        from: EgroupId(u64_at(bytes, 8)),
        from_unit: u32_at(bytes, 16),
        unit: u32_at(bytes, 20),
        count: u32_at(bytes, 24),
    });
    let moves = moves.collect();
    let mut map = MapRecord { generation, named, edits: Vec::with_capacity(edits.len() / EDIT), moves };
    for bytes in edits.chunks_exact(EDIT) {
        let unit = match u32_at(bytes, 24) {
            0 => None,
            1 => Some(u32_at(bytes, 28)),
            _ => return None,
        };
        map.edits.push(Edit {
            block: Block(u64_at(bytes, 0)),
            count: u64_at(bytes, 8),
            covers: Seq(u64_at(bytes, 16)),
            unit,
        });
    }
    Some(map)
}

fn encode_checkpoint(checkpoint: &Checkpoint, bytes: &mut [u8]) {
    put_u32(bytes, 0, CHECKPOINT_MAGIC);
    put_u32(bytes, 4, VERSION);
    put_u32(bytes, 8, checkpoint.map_egroups.len() as u32);
    put_u32(bytes, 12, checkpoint.index.len() as u32);
    put_u64(bytes, 16, checkpoint.replay_from.0);
    put_u64(bytes, 24, checkpoint.mapped);
    put_u64(bytes, 32, checkpoint.map_to.0);
    put_u32(bytes, 40, checkpoint.replay_generation.0);
    put_u32(bytes, 44, checkpoint.generation.0);
    put_u32(bytes, 48, checkpoint.snapshots.len() as u32);
    put_u32(bytes, 52, checkpoint.dropped.len() as u32);
    // Zeros in what was written before there were any.
    put_u32(bytes, 56, checkpoint.holes.len() as u32);
    let (named, rest) = bytes[HEAD..].split_at_mut(NAMED * checkpoint.map_egroups.len());
    let (index, rest) = rest.split_at_mut(INDEX * checkpoint.index.len());
    let (snapshots, rest) = rest.split_at_mut(SNAPSHOT * checkpoint.snapshots.len());
    let (dropped, holes) = rest.split_at_mut(DROPPED * checkpoint.dropped.len());
    for (hole, bytes) in checkpoint.holes.iter().zip(holes.chunks_exact_mut(HOLE)) {
        put_u64(bytes, 0, hole.first);
        put_u64(bytes, 8, hole.count);
        put_u32(bytes, 16, hole.generation.0);
    }
    for ((generation, snapshot), bytes) in
        checkpoint.snapshots.iter().zip(snapshots.chunks_exact_mut(SNAPSHOT))
    {
        put_u64(bytes, 0, snapshot.0);
        put_u32(bytes, 8, generation.0);
    }
    for (generation, bytes) in checkpoint.dropped.iter().zip(dropped.chunks_exact_mut(DROPPED)) {
        put_u32(bytes, 0, generation.0);
    }
    for (egroup, bytes) in checkpoint.map_egroups.iter().zip(named.chunks_exact_mut(NAMED)) {
        put_named(bytes, egroup);
    }
    for (entry, bytes) in checkpoint.index.iter().zip(index.chunks_exact_mut(INDEX)) {
        let kind = match entry.kind {
            PageKind::Leaf => 1,
            PageKind::Directory => 2,
            PageKind::Past => 3,
        };
        put_u32(bytes, 0, kind);
        put_u64(bytes, 8, entry.number);
        put_u64(bytes, 16, entry.place.egroup.0);
        put_u32(bytes, 24, entry.place.unit);
        put_u32(bytes, 28, entry.place.units);
    }
}

/// None if these bytes are not a whole checkpoint record.
pub fn decode_checkpoint(bytes: &[u8]) -> Option<Checkpoint> {
    if bytes.len() < HEAD || u32_at(bytes, 0) != CHECKPOINT_MAGIC || u32_at(bytes, 4) != VERSION {
        return None;
    }
    let (egroups, entries) = (u32_at(bytes, 8) as usize, u32_at(bytes, 12) as usize);
    let named_bytes = egroups.checked_mul(NAMED)?;
    let index_bytes = entries.checked_mul(INDEX)?;
    let snapshot_bytes = (u32_at(bytes, 48) as usize).checked_mul(SNAPSHOT)?;
    let dropped_bytes = (u32_at(bytes, 52) as usize).checked_mul(DROPPED)?;
    let hole_bytes = (u32_at(bytes, 56) as usize).checked_mul(HOLE)?;
    let parts = [index_bytes, snapshot_bytes, dropped_bytes, hole_bytes];
    let whole = parts.into_iter().try_fold(named_bytes, usize::checked_add)?;
    if whole != bytes.len() - HEAD {
        return None;
    }
    let (named, rest) = bytes[HEAD..].split_at(named_bytes);
    let (index, rest) = rest.split_at(index_bytes);
    let (snapshots, rest) = rest.split_at(snapshot_bytes);
    let (dropped, holes) = rest.split_at(dropped_bytes);
    let mut places = Vec::with_capacity(entries);
    for bytes in index.chunks_exact(INDEX) {
        let kind = match u32_at(bytes, 0) {
            1 => PageKind::Leaf,
            2 => PageKind::Directory,
            3 => PageKind::Past,
            _ => return None,
        };
        let egroup = EgroupId(u64_at(bytes, 16));
        let place = PagePlace { egroup, unit: u32_at(bytes, 24), units: u32_at(bytes, 28) };
        places.push(IndexPlace { kind, number: u64_at(bytes, 8), place });
    }
    Some(Checkpoint {
        map_to: Seq(u64_at(bytes, 32)),
        replay_from: Seq(u64_at(bytes, 16)),
        replay_generation: Generation(u32_at(bytes, 40)),
        generation: Generation(u32_at(bytes, 44)),
        snapshots: snapshots
            .chunks_exact(SNAPSHOT)
            .map(|bytes| (Generation(u32_at(bytes, 8)), SnapshotId(u64_at(bytes, 0))))
            .collect(),
        dropped: dropped.chunks_exact(DROPPED).map(|bytes| Generation(u32_at(bytes, 0))).collect(),
        mapped: u64_at(bytes, 24),
        map_egroups: named.chunks_exact(NAMED).map(named_at).collect::<Option<_>>()?,
        index: places,
        holes: holes.chunks_exact(HOLE).map(hole_at).collect::<Option<_>>()?,
    })
}

fn hole_at(bytes: &[u8]) -> Option<TrimmedLeaves> {
    let (first, count) = (u64_at(bytes, 0), u64_at(bytes, 8));
    // Such leaves cannot be, and sums with them would not fit.
    let sound = count > 0 && first.checked_add(count)? < 1 << 63;
    sound.then_some(TrimmedLeaves { first, count, generation: Generation(u32_at(bytes, 16)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::BLOCK;
    use rand::rngs::SmallRng;
    use rand::{Rng, RngCore, SeedableRng};

    fn random_named(random: &mut SmallRng) -> NamedEgroup {
        NamedEgroup {
            egroup: EgroupId(random.random()),
            group: GroupId(random.random()),
            units: random.random(),
            stored: random.random_range(0..1 << RECIPE_SHIFT),
            recipe: Recipe::from_byte([0, 5, 11][random.random_range(0..3)]).expect("it is one"),
            generation: Generation(random.random()),
        }
    }

    fn random_body(random: &mut SmallRng) -> Body {
        if random.random() {
            let edits = (0..random.random_range(0..300)).map(|_| Edit {
                block: Block(random.random()),
                count: random.random(),
                unit: random.random::<bool>().then(|| random.random()),
                covers: Seq(random.random()),
            });
            let edits = edits.collect();
            let moves = (0..random.random_range(0..300)).map(|_| UnitMove {
                block: Block(random.random()),
                count: random.random(),
                from: EgroupId(random.random()),
                from_unit: random.random(),
                unit: random.random(),
            });
            let moves = moves.collect();
            Body::Map(Arc::new(MapRecord {
                generation: Generation(random.random()),
                named: random.random::<bool>().then(|| random_named(random)),
                edits,
                moves,
            }))
        } else {
            let index = (0..random.random_range(0..200)).map(|_| IndexPlace {
                kind: [PageKind::Leaf, PageKind::Past, PageKind::Directory][random.random_range(0..3)],
                number: random.random(),
                place: PagePlace {
                    egroup: EgroupId(random.random()),
                    unit: random.random(),
                    units: random.random(),
                },
            });
            let index = index.collect();
            let map_egroups = (0..random.random_range(0..50)).map(|_| random_named(random)).collect();
            let (map_to, replay_from) = (Seq(random.random()), Seq(random.random()));
            let mapped = random.random();
            let snapshots = (0..random.random_range(0..50))
                .map(|_| (Generation(random.random()), SnapshotId(random.random())))
                .collect();
            let dropped = (0..random.random_range(0..9)).map(|_| Generation(random.random())).collect();
            Body::Checkpoint(Arc::new(Checkpoint {
                map_to,
                replay_from,
                replay_generation: Generation(random.random()),
                generation: Generation(random.random()),
                snapshots,
                dropped,
                mapped,
                map_egroups,
                index,
                holes: (0..random.random_range(0..9))
                    .map(|_| TrimmedLeaves {
                        first: random.random_range(0..1 << 40),
                        count: random.random_range(1..1 << 40),
                        generation: Generation(random.random()),
                    })
                    .collect(),
            }))
        }
    }

    #[test]
    fn marks_live_in_the_header_of_their_record() {
        let generation = Generation(u32::MAX - 1);
        let marks = [
            Mark::Taken { generation, snapshot: SnapshotId(u64::MAX) },
            Mark::Dropped { generation },
            Mark::RolledBack { to: Generation(5), generation },
        ];
        for mark in marks {
            let record = Record { seq: Seq(7), body: Body::Mark(mark) };
            assert_eq!(encode(&record), None);
            let (kind, block, count) = header_fields(&record);
            assert_eq!(decode(Seq(7), kind, block, count, crate::buffer::zeros(0)), Some(record));
        }
        for (what, snapshot) in
            [(0, 0), (4 << 32, 0), (MARK_DROPPED << 32, 1), (MARK_ROLLED_BACK << 32 | 5, 5)]
        {
            assert_eq!(decode(Seq(7), RecordKind::Mark, what, snapshot, crate::buffer::zeros(0)), None);
        }
    }

    #[test]
    fn records_come_back_as_they_were() {
        let mut random = SmallRng::seed_from_u64(3);
        for number in 0..300 {
            let record = Record { seq: Seq(number), body: random_body(&mut random) };
            let payload = encode(&record).expect("both kinds have a payload");
            assert_eq!(payload.len(), record.payload_bytes().next_multiple_of(BLOCK));
            let payload = payload.slice(0..record.payload_bytes());
            let kind = match record.body {
                Body::Map(_) => RecordKind::Map,
                _ => RecordKind::Checkpoint,
            };
            assert_eq!(decode(Seq(number), kind, 0, 0, payload.clone()), Some(record));
            let shorter = payload.slice(0..random.random_range(0..payload.len()));
            assert_eq!(decode(Seq(number), kind, 0, 0, shorter), None);
        }
    }

    #[test]
    fn any_bytes_may_come() {
        let mut random = SmallRng::seed_from_u64(4);
        for _ in 0..3000 {
            let mut bytes = vec![0; random.random_range(0..400)];
            random.fill_bytes(&mut bytes);
            if bytes.len() >= HEAD && random.random() {
                put_u32(&mut bytes, 0, if random.random() { MAP_MAGIC } else { CHECKPOINT_MAGIC });
                put_u32(&mut bytes, 4, VERSION);
                put_u32(&mut bytes, 8, random.random_range(0..10));
                put_u32(&mut bytes, 12, random.random_range(0..10));
            }
            let _ = decode_map(&bytes);
            let _ = decode_checkpoint(&bytes);
        }
    }
}
