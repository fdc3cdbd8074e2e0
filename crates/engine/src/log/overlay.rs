//! Acknowledged data of a family that is in the log but not yet in egroups: the newest version of every block.
//! Promises: what a read finds here is durable and newer than anything in the map; the drain gets it oldest
//! first; a version goes only when something newer, or a map record that covers it, has taken its place.
//! Leaves to others: when to put in and let go (`log`), what to take and where to (`drain`).
//!
//! Nothing here steps over the blocks of a zero range: a trim of the whole vDisk is one range.

use crate::buffer::{BLOCK, Buffer};
use crate::identity::{Block, Seq};
use crate::log::aged::{Aged, AgedRecords};
use crate::map::interval::{IntervalMap, Slice};

/// What a zero record counts against the limit of dirty bytes, however long it is.
pub const ZERO_BYTES: u64 = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// As many whole blocks as the range has.
    Data(Buffer),
    Zero,
    /// What was written there is lost: nobody knows what it was. So many whole blocks, which count as if they were here.
    Lost(u64),
}

impl Content {
    /// Bytes of data, none for zeros.
    fn bytes(&self) -> u64 {
        match self {
            Content::Data(data) => data.len() as u64,
            Content::Zero => 0,
            Content::Lost(blocks) => blocks * BLOCK as u64,
        }
    }

    /// `count` of its blocks from `from` on.
    fn part(&self, from: u64, count: u64) -> Content {
        match self {
            Content::Data(data) => {
                let (from, count) = (from as usize, count as usize);
                Content::Data(data.slice(from * BLOCK..(from + count) * BLOCK))
            }
            Content::Zero => Content::Zero,
            Content::Lost(_) => Content::Lost(count),
        }
    }
}

/// A part of a record that is still the newest version of its blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirty {
    pub block: Block,
    pub count: u64,
    pub seq: Seq,
    pub content: Content,
}

/// A part of a range that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub block: Block,
    pub count: u64,
    /// None: nothing dirty here, ask the map.
    pub version: Option<(Seq, Content)>,
}

#[derive(Debug, Clone)]
struct Version {
    seq: Seq,
    content: Content,
    /// The drain has it in hand. The mark goes with the version when that is overwritten.
    draining: bool,
}

impl Slice for Version {
    fn slice(&self, from: u64, count: u64) -> Self {
        Version { seq: self.seq, content: self.content.part(from, count), draining: self.draining }
    }
}

#[derive(Debug, Default)]
pub struct Overlay {
    versions: IntervalMap<Version>,
    records: AgedRecords,
    dirty_bytes: u64,
    /// Records of zeros that are here.
    zeroes: usize,
}

impl Overlay {
    /// A record became durable everywhere. Records come in the order of their numbers, each in one piece.
    pub fn insert(&mut self, block: Block, count: u64, seq: Seq, content: Content) {
        let zero = content == Content::Zero;
        if zero {
            self.dirty_bytes += ZERO_BYTES;
            self.zeroes += 1;
        } else {
            assert_eq!(content.bytes(), count * BLOCK as u64, "data is as long as its range");
            self.dirty_bytes += content.bytes();
        }
        let replaced = self.versions.insert(block.0, count, Version { seq, content, draining: false });
        for piece in replaced {
            assert!(piece.value.seq < seq, "a block's versions come in order");
            self.forget(&piece.value, piece.count);
        }
        self.records.push(seq, Aged { block, count, zero, present: count, waiting: count });
    }

    /// Lets go of what the range holds up to and including `covers`. Gives the dirty bytes this freed.
    pub fn release(&mut self, block: Block, count: u64, covers: Seq) -> u64 {
        let before = self.dirty_bytes;
        for piece in self.versions.extract(block.0, count, |version| version.seq <= covers) {
            self.forget(&piece.value, piece.count);
        }
        before - self.dirty_bytes
    }

    /// The range in order, gaps included.
    pub fn over(&self, block: Block, count: u64) -> impl Iterator<Item = Found> + '_ {
        self.versions.over(block.0, count).map(|(at, count, version)| Found {
            block: Block(at),
            count,
            version: version.map(|version| (version.seq, version.content)),
        })
    }

    /// The parts of the range of which this record is the newest version, in order.
    pub fn newest_of(&self, block: Block, count: u64, seq: Seq) -> impl Iterator<Item = (Block, u64)> + '_ {
        let parts = self.versions.parts(block.0, count);
        parts.filter(move |(_, _, version)| version.seq == seq).map(|(at, count, _)| (Block(at), count))
    }

    /// The number of the record that holds the block's newest version, if that is here.
    pub fn version(&self, block: Block) -> Option<Seq> {
        self.versions.peek(block.0).map(|version| version.seq)
    }

    /// Whether anything in the range is dirty.
    pub fn overlaps(&self, block: Block, count: u64) -> bool {
        self.versions.overlaps(block.0, count)
    }

    /// Bytes of the data here, by block. (Memory that a small rest of a large write keeps alive is not seen.)
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The lowest record still needed here, in hand of the drain or not: replay has to begin there.
    pub fn oldest(&self) -> Option<Seq> {
        self.records.oldest()
    }

    /// The lowest record that has something the drain has not got in hand.
    pub fn oldest_waiting(&self) -> Option<Seq> {
        self.records.oldest_waiting()
    }

    /// The oldest dirty pieces that the drain has not got in hand, in order of their records (inside one, of
    /// address), up to `units_max` blocks of data; the last may be cut. A piece of zeros counts as one block,
    /// so that the answer is bounded. `skip` leaves out pieces by their first block and record.
    /// Nothing is removed or marked.
    pub fn take_oldest(&self, units_max: u64, skip: impl Fn(Block, Seq) -> bool) -> Vec<Dirty> {
        self.take(units_max, |_| true, skip)
    }

    /// Likewise, pieces of zeros only, up to `most`. Costs next to nothing where there are none, whatever else waits.
    pub fn take_zeroes(&self, most: u64) -> Vec<Dirty> {
        if self.zeroes == 0 {
            return Vec::new();
        }
        self.take(most, |record| record.zero, |_, _| false)
    }

    fn take(
        &self,
        units_max: u64,
        wants: impl Fn(&Aged) -> bool,
        skip: impl Fn(Block, Seq) -> bool,
    ) -> Vec<Dirty> {
        let mut taken = Vec::new();
        let mut left = units_max;
        for (seq, record) in self.records.waiting().filter(|(_, record)| wants(record)) {
            for piece in self.versions.pieces(record.block.0, record.count) {
                if left == 0 {
                    return taken;
                }
                let version = piece.value;
                let block = Block(piece.start);
                if version.seq != seq || version.draining || skip(block, seq) {
                    continue;
                }
                let count =
                    if version.content == Content::Zero { piece.count } else { piece.count.min(left) };
                left -= if version.content == Content::Zero { 1 } else { count };
                taken.push(Dirty { block, count, seq, content: version.content.part(0, count) });
            }
        }
        taken
    }

    /// Dirty pieces of records up to `up_to` that the drain has not got in hand, in order of address from `from`
    /// on, up to `units_max` blocks; the last may be cut. A piece of zeros counts as one block. Nothing is removed
    /// or marked. The second value is where to go on, None when nothing is left.
    pub fn take_from(&self, from: Block, up_to: Seq, units_max: u64) -> (Vec<Dirty>, Option<Block>) {
        assert!(units_max > 0, "a step of a sweep takes something");
        let mut taken = Vec::new();
        let mut left = units_max;
        for (at, count, version) in self.versions.ranges_from(from.0) {
            if version.draining || version.seq > up_to {
                continue;
            }
            let skipped = from.0.saturating_sub(at);
            let (block, mut count) = (Block(at + skipped), count - skipped);
            if version.content == Content::Zero {
                left -= 1;
            } else {
                count = count.min(left);
                left -= count;
            }
            let content = version.content.part(skipped, count);
            taken.push(Dirty { block, count, seq: version.seq, content });
            if left == 0 {
                // The piece may have been cut short: what is left of it comes next.
                return (taken, Some(block.plus(count)));
            }
        }
        (taken, None)
    }

    /// The highest record with something here.
    pub fn newest(&self) -> Option<Seq> {
        self.records.newest()
    }

    /// The drain has this in hand now: neither `take_oldest` nor `take_from` gives it again. Parts that have been
    /// overwritten or let go since are not touched.
    pub fn mark_draining(&mut self, block: Block, count: u64, seq: Seq) {
        self.set_mark(block, count, seq, true);
    }

    /// The drain failed to write this and lets go of it: it waits again.
    pub fn unmark(&mut self, block: Block, count: u64, seq: Seq) {
        self.set_mark(block, count, seq, false);
    }

    fn set_mark(&mut self, block: Block, count: u64, seq: Seq, draining: bool) {
        let concerns = |version: &Version| version.seq == seq && version.draining != draining;
        let blocks = self.versions.change(block.0, count, concerns, |version| version.draining = draining);
        if blocks == 0 {
            return;
        }
        if draining {
            self.records.take(seq, blocks);
        } else {
            self.records.give_back(seq, blocks);
        }
    }

    /// `count` blocks of this version are not the newest any more, or are not needed.
    fn forget(&mut self, version: &Version, count: u64) {
        self.dirty_bytes -= version.content.bytes();
        let gone = self.records.forget(version.seq, count, version.draining);
        if gone.is_some_and(|record| record.zero) {
            self.dirty_bytes -= ZERO_BYTES;
            self.zeroes -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use std::collections::{BTreeMap, BTreeSet};

    /// Some records are lost.
    fn is_lost(seq: u64) -> bool {
        seq.is_multiple_of(5)
    }

    /// `count` blocks, each beginning with the record's number and its own address.
    fn data(block: u64, count: u64, seq: u64) -> Content {
        if is_lost(seq) {
            return Content::Lost(count);
        }
        let mut bytes = vec![0; count as usize * BLOCK];
        for i in 0..count as usize {
            bytes[i * BLOCK..][..8].copy_from_slice(&seq.to_le_bytes());
            bytes[i * BLOCK + 8..][..8].copy_from_slice(&(block + i as u64).to_le_bytes());
        }
        Content::Data(Buffer::copied(&bytes))
    }

    fn check_content(block: u64, count: u64, seq: u64, content: &Content, zero: bool) {
        match content {
            Content::Zero => assert!(zero, "a zero record was written"),
            Content::Lost(blocks) => assert!(!zero && is_lost(seq) && *blocks == count),
            Content::Data(bytes) => {
                assert!(!zero && !is_lost(seq));
                assert_eq!(bytes.blocks() as u64, count);
                for i in 0..count {
                    let bytes = bytes.block(i as usize);
                    assert_eq!(bytes.bytes()[..8], seq.to_le_bytes());
                    assert_eq!(bytes.bytes()[8..16], (block + i).to_le_bytes());
                }
            }
        }
    }

    /// One entry per block: record, zero or not, in hand or not.
    #[derive(Default)]
    struct Model(BTreeMap<u64, (u64, bool, bool)>);

    impl Model {
        fn dirty_bytes(&self) -> u64 {
            let zeros: BTreeSet<u64> = self.0.values().filter(|v| v.1).map(|v| v.0).collect();
            let data = self.0.values().filter(|v| !v.1).count();
            data as u64 * BLOCK as u64 + zeros.len() as u64 * ZERO_BYTES
        }

        fn oldest(&self) -> Option<Seq> {
            self.0.values().map(|v| Seq(v.0)).min()
        }

        fn oldest_waiting(&self) -> Option<Seq> {
            self.0.values().filter(|v| !v.2).map(|v| Seq(v.0)).min()
        }
    }

    #[test]
    fn it_agrees_with_one_entry_per_block_under_random_input() {
        let mut random = SmallRng::seed_from_u64(7);
        for _ in 0..20 {
            let mut overlay = Overlay::default();
            let mut model = Model::default();
            let mut seq = 0;
            let mut in_hand: Vec<Dirty> = Vec::new();
            for _ in 0..500 {
                let block = random.random_range(0..200);
                let count = random.random_range(1..=24);
                let range = block..block + count;
                match random.random_range(0..8) {
                    0..3 => {
                        seq += random.random_range(1..3);
                        let zero = random.random_bool(0.3);
                        let content = if zero { Content::Zero } else { data(block, count, seq) };
                        overlay.insert(Block(block), count, Seq(seq), content);
                        model.0.extend(range.map(|b| (b, (seq, zero, false))));
                    }
                    3 => {
                        let covers = random.random_range(0..=seq);
                        let freed = overlay.release(Block(block), count, Seq(covers));
                        let before = model.dirty_bytes();
                        model.0.retain(|b, v| !range.contains(b) || v.0 > covers);
                        assert_eq!(freed, before - model.dirty_bytes());
                    }
                    4..6 => in_hand.append(&mut take(&mut overlay, &mut model, random.random_range(1..60))),
                    6 if !in_hand.is_empty() => {
                        let dirty = in_hand.swap_remove(random.random_range(0..in_hand.len()));
                        give_back(&mut overlay, &mut model, &dirty, random.random_bool(0.5));
                    }
                    _ => {}
                }
                compare(&overlay, &model, block, count);
                let up_to = random.random_range(0..=seq);
                compare_sweep(&overlay, &model, block, up_to, random.random_range(1..9));
            }
            overlay.release(Block(0), 1 << 40, Seq(seq));
            assert!(overlay.is_empty() && overlay.dirty_bytes() == 0 && overlay.oldest_waiting().is_none());
        }
    }

    /// The drain takes some, checked to be the oldest, and marks it.
    fn take(overlay: &mut Overlay, model: &mut Model, units: u64) -> Vec<Dirty> {
        let taken = overlay.take_oldest(units, |block, _| block.0 % 13 == 12);
        let mut left = units;
        for dirty in &taken {
            left -= if dirty.content == Content::Zero { 1 } else { dirty.count };
            for block in dirty.block.0..dirty.block.0 + dirty.count {
                let entry = model.0.get_mut(&block).expect("only what is dirty is taken");
                assert_eq!((entry.0, entry.2), (dirty.seq.0, false), "the newest version, and only once");
                check_content(block, 1, entry.0, &content_at(dirty, block), entry.1);
                entry.2 = true;
            }
            overlay.mark_draining(dirty.block, dirty.count, dirty.seq);
        }
        assert!(taken.is_sorted_by_key(|dirty| dirty.seq), "oldest first");
        if left > 0 {
            // Everything was taken, except pieces that began at a skipped block.
            assert!(overlay.take_oldest(1, |block, _| block.0 % 13 == 12).is_empty());
        }
        taken
    }

    fn content_at(dirty: &Dirty, block: u64) -> Content {
        dirty.content.part(block - dirty.block.0, 1)
    }

    /// The drain succeeds, or fails, with a piece it has in hand.
    fn give_back(overlay: &mut Overlay, model: &mut Model, dirty: &Dirty, success: bool) {
        let range = dirty.block.0..dirty.block.0 + dirty.count;
        if success {
            overlay.release(dirty.block, dirty.count, dirty.seq);
            model.0.retain(|b, v| !range.contains(b) || v.0 > dirty.seq.0);
        } else {
            overlay.unmark(dirty.block, dirty.count, dirty.seq);
            for (_, entry) in model.0.range_mut(range).filter(|(_, entry)| entry.0 == dirty.seq.0) {
                entry.2 = false;
            }
        }
    }

    fn compare(overlay: &Overlay, model: &Model, block: u64, count: u64) {
        assert_eq!(overlay.dirty_bytes(), model.dirty_bytes());
        assert_eq!(overlay.oldest(), model.oldest());
        assert_eq!(overlay.oldest_waiting(), model.oldest_waiting());
        assert_eq!(overlay.is_empty(), model.0.is_empty());
        assert_eq!(overlay.version(Block(block)), model.0.get(&block).map(|v| Seq(v.0)));
        let any = model.0.range(block..block + count).next().is_some();
        assert_eq!(overlay.overlaps(Block(block), count), any);
        let mut at = block;
        for found in overlay.over(Block(block), count) {
            assert_eq!(found.block.0, at);
            for b in at..at + found.count {
                assert_eq!(model.0.get(&b).map(|v| v.0), found.version.as_ref().map(|v| v.0.0));
            }
            if let Some((seq, content)) = &found.version {
                check_content(at, found.count, seq.0, content, model.0[&at].1);
            }
            at += found.count;
        }
        assert_eq!(at, block + count);
    }

    /// A sweep in small steps finds what waits, up to a record, once and in order of address.
    fn compare_sweep(overlay: &Overlay, model: &Model, from: u64, up_to: u64, units: u64) {
        let mut found = Vec::new();
        let mut next = Some(Block(from));
        while let Some(at) = next {
            let (dirty, goes_on) = overlay.take_from(at, Seq(up_to), units);
            for piece in &dirty {
                for block in piece.block.0..piece.block.0 + piece.count {
                    let zero = model.0[&block].1;
                    check_content(block, 1, piece.seq.0, &content_at(piece, block), zero);
                    found.push((block, piece.seq.0));
                }
            }
            next = goes_on;
        }
        let wanted = model.0.range(from..).filter(|(_, v)| v.0 <= up_to && !v.2);
        assert_eq!(found, wanted.map(|(&block, v)| (block, v.0)).collect::<Vec<_>>());
    }

    #[test]
    fn a_trim_of_everything_is_one_piece_until_it_is_written_over() {
        let mut overlay = Overlay::default();
        overlay.insert(Block(0), 1 << 50, Seq(1), Content::Zero);
        assert_eq!(overlay.dirty_bytes(), ZERO_BYTES);
        overlay.insert(Block(1 << 20), 2, Seq(2), data(1 << 20, 2, 2));
        let taken = overlay.take_oldest(100, |_, _| false);
        assert_eq!(taken.iter().map(|dirty| dirty.seq.0).collect::<Vec<_>>(), [1, 1, 2]);
        overlay.mark_draining(Block(0), 1 << 50, Seq(1));
        assert_eq!(overlay.oldest_waiting(), Some(Seq(2)));
        assert_eq!(overlay.oldest(), Some(Seq(1)));
        assert_eq!(overlay.release(Block(0), 1 << 50, Seq(1)), ZERO_BYTES);
        assert_eq!(overlay.oldest(), Some(Seq(2)));
    }

    #[test]
    fn what_is_overwritten_while_the_drain_has_it_waits_again() {
        let mut overlay = Overlay::default();
        overlay.insert(Block(0), 4, Seq(1), data(0, 4, 1));
        overlay.mark_draining(Block(0), 4, Seq(1));
        assert!(overlay.take_oldest(10, |_, _| false).is_empty());
        overlay.insert(Block(1), 1, Seq(2), data(1, 1, 2));
        overlay.release(Block(0), 4, Seq(1));
        let taken = overlay.take_oldest(10, |_, _| false);
        assert_eq!(taken, [Dirty { block: Block(1), count: 1, seq: Seq(2), content: data(1, 1, 2) }]);
    }

    #[test]
    #[should_panic(expected = "versions come in order")]
    fn an_older_version_cannot_replace_a_newer_one() {
        let mut overlay = Overlay::default();
        overlay.insert(Block(0), 1, Seq(2), Content::Zero);
        overlay.insert(Block(0), 1, Seq(1), Content::Zero);
    }
}
