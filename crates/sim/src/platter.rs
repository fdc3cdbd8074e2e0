//! What one area of a drive holds: the bytes a read would find, and which of them a power cut may take back.
//! Promises: a write that has ended is in a volatile cache; only a flush submitted after that, or a durable
//! write, makes it safe. At a power cut every block that is not safe becomes any of the versions it had since
//! the last safe one, and rarely a mix of two by 512-byte sectors.

use crate::memory::gathered;
use rand::Rng;
use rand::rngs::SmallRng;
use std::cell::RefCell;
use std::collections::BTreeMap;
use weft_engine::buffer::{BLOCK, Buffer, Pages, zeros};

const SECTOR: usize = 512;
/// Blocks per region; of each region is known when it last changed.
const REGION: usize = 64;
/// So many zeros are there without being made.
const ZEROS_BYTES_MAX: usize = 1 << 20;
/// Long reads that are remembered.
const LONG_READS: usize = 64;

/// A block's content; None reads as zeros.
pub type Content = Option<Buffer>;

/// How a power cut treats what is not safe.
#[derive(Clone, Copy, Debug)]
pub enum Mood {
    LosesAll,
    KeepsAll,
    /// Every block on its own; the number is how many of 100 keep the newest.
    Mixed(u32),
}

#[derive(Clone, Debug)]
struct Version {
    /// The number of the write that made it; 0 for the safe one.
    write: u64,
    content: Content,
}

/// One area of a drive.
pub struct Platter {
    blocks: Vec<Content>,
    /// The first 8 bytes of each block: the judge of copies looks for them in all blocks at once.
    marks: Vec<u64>,
    /// How many changes there were, and the last of each region.
    changes: u64,
    changed: Vec<u64>,
    /// What long reads found, and at which change: openings read the same again and again.
    long_reads: RefCell<BTreeMap<(usize, usize), (u64, Buffer)>>,
    /// Of blocks that are not safe: the safe version first, then every later one in order; the last is what
    /// a read finds.
    unsafe_versions: BTreeMap<u32, Vec<Version>>,
    ended: u64,
    /// Where the last write began.
    newest: usize,
    /// Blocks that cannot be read until they are written again.
    unreadable: BTreeMap<u32, ()>,
    /// Blocks that hold something wrong, and what they should hold.
    damaged: BTreeMap<u32, Content>,
}

impl Platter {
    pub fn new(bytes: u64) -> Self {
        let count = usize::try_from(bytes).expect("a pretend drive fits into memory") / BLOCK;
        Self {
            blocks: vec![None; count],
            marks: vec![0; count],
            changes: 0,
            changed: vec![0; count.div_ceil(REGION)],
            long_reads: RefCell::default(),
            unsafe_versions: BTreeMap::new(),
            ended: 0,
            newest: 0,
            unreadable: BTreeMap::new(),
            damaged: BTreeMap::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// What a read of `count` blocks finds, or None where a block cannot be read.
    pub fn read(&self, first: usize, count: usize) -> Option<Buffer> {
        assert!(first + count <= self.blocks.len(), "a read lies inside the area");
        if self.unreadable.range(first as u32..(first + count) as u32).next().is_some() {
            return None;
        }
        let blocks = &self.blocks[first..first + count];
        // Without a copy where the blocks lie behind each other in memory, as those of one write do.
        if let Some(joined) = joined(blocks) {
            return Some(joined);
        }
        if count * BLOCK <= ZEROS_BYTES_MAX && blocks.iter().all(Option::is_none) {
            return Some(zeros(count * BLOCK));
        }
        if count < REGION {
            return Some(gathered(blocks));
        }
        let mut long_reads = self.long_reads.borrow_mut();
        let newest = self.changed[first / REGION..=(first + count - 1) / REGION].iter().max();
        let newest = *newest.expect("a read covers a region at least");
        if let Some((at, bytes)) = long_reads.get(&(first, count))
            && *at >= newest
        {
            return Some(bytes.clone());
        }
        if long_reads.len() >= LONG_READS {
            long_reads.clear();
        }
        let bytes = gathered(blocks);
        long_reads.insert((first, count), (self.changes, bytes.clone()));
        Some(bytes)
    }

    /// The one place where what a read finds changes.
    fn set(&mut self, at: usize, content: Content) {
        self.marks[at] = mark_of(&content);
        self.changes += 1;
        self.changed[at / REGION] = self.changes;
        self.blocks[at] = content;
    }

    /// Whether a block that begins with `mark` would be here after a power cut that loses all it may.
    pub fn holds_safely(&self, mark: u64) -> bool {
        let safe = |versions: &Vec<Version>| mark_of(&versions[0].content) == mark;
        if self.unsafe_versions.values().any(safe) {
            return true;
        }
        // By regions, each without a look at the way out: then processors compare many marks at once.
        self.marks.chunks(REGION).enumerate().any(|(region, marks)| {
            let found = marks.iter().fold(false, |found, &other| found | (other == mark));
            let unsafe_at = |at: usize| self.unsafe_versions.contains_key(&((region * REGION + at) as u32));
            found && (0..marks.len()).any(|at| marks[at] == mark && !unsafe_at(at))
        })
    }

    /// A write of `pieces` ended.
    pub fn write(&mut self, first: usize, pieces: &[Buffer], durable: bool) {
        self.ended += 1;
        self.newest = first;
        let mut at = first;
        for piece in pieces {
            for index in 0..piece.blocks() {
                self.put(at, Some(piece.block(index)), durable);
                at += 1;
            }
        }
    }

    /// One block of a write ended.
    pub fn put(&mut self, at: usize, content: Content, durable: bool) {
        assert!(at < self.blocks.len(), "a write lies inside the area");
        let key = at as u32;
        if !self.unreadable.is_empty() {
            self.unreadable.remove(&key);
        }
        if !self.damaged.is_empty() {
            self.damaged.remove(&key);
        }
        if durable {
            self.unsafe_versions.remove(&key);
        } else {
            let before = &self.blocks[at];
            let versions = self
                .unsafe_versions
                .entry(key)
                .or_insert_with(|| vec![Version { write: 0, content: before.clone() }]);
            versions.push(Version { write: self.ended, content: content.clone() });
        }
        self.set(at, content);
    }

    /// What a flush submitted now will cover.
    pub fn flush_mark(&self) -> u64 {
        self.ended
    }

    /// A flush that was submitted at `mark` ended.
    pub fn flushed(&mut self, mark: u64) {
        self.unsafe_versions.retain(|_, versions| {
            let covered = versions.iter().rposition(|version| version.write <= mark);
            versions.drain(..covered.expect("the safe version is covered by every flush"));
            versions[0].write = 0;
            versions.len() > 1
        });
    }

    /// The bytes are not wanted any more.
    pub fn discard(&mut self, first: usize, count: usize, rng: &mut SmallRng) {
        // Half of the drives keep the old bytes, others give zeros. Nobody may read them, so nobody can tell.
        if rng.random_bool(0.5) {
            for at in first..(first + count).min(self.blocks.len()) {
                self.put(at, None, true);
            }
        }
    }

    /// The power went: nothing is in the cache any more.
    pub fn power_cut(&mut self, mood: Mood, rng: &mut SmallRng) {
        for (block, versions) in std::mem::take(&mut self.unsafe_versions) {
            let newest = versions.len() - 1;
            let chosen = match mood {
                Mood::LosesAll => 0,
                Mood::KeepsAll => newest,
                Mood::Mixed(percent) if rng.random_range(0..100) < percent => newest,
                Mood::Mixed(_) => rng.random_range(0..newest),
            };
            let mut content = versions[chosen].content.clone();
            if rng.random_range(0..32) == 0 {
                content = torn(&content, &versions[rng.random_range(0..=newest)].content, rng);
            }
            self.set(block as usize, content);
        }
    }

    /// What would be here after a power cut that loses everything it may.
    pub fn safe_content(&self, at: usize) -> &Content {
        match self.unsafe_versions.get(&(at as u32)) {
            Some(versions) => &versions[0].content,
            None => &self.blocks[at],
        }
    }

    pub fn content(&self, at: usize) -> &Content {
        &self.blocks[at]
    }

    /// A write was reported as done, but `content` never got here.
    pub fn lose(&mut self, at: usize, content: Content) {
        self.damaged.insert(at as u32, content);
    }

    /// The block silently changes to `content`.
    pub fn damage(&mut self, at: usize, content: Content) {
        let right = self.blocks[at].clone();
        self.damaged.entry(at as u32).or_insert(right);
        self.unsafe_versions.remove(&(at as u32));
        self.set(at, content);
    }

    /// The block cannot be read until it is written again.
    pub fn make_unreadable(&mut self, at: usize) {
        self.unreadable.insert(at as u32, ());
    }

    pub fn make_readable(&mut self, at: usize) {
        self.unreadable.remove(&(at as u32));
    }

    /// Undoes all damage that nobody has met and repaired, so that the next victim may be another drive.
    pub fn restore(&mut self) {
        for (block, right) in std::mem::take(&mut self.damaged) {
            self.set(block as usize, right);
        }
        self.unreadable.clear();
    }

    /// One of the first two blocks of the last write: in a log, the header of a frame, or what it carries.
    pub fn newest_written(&self, rng: &mut SmallRng) -> Option<usize> {
        let at = self.newest + rng.random_range(0..2);
        self.blocks.get(at)?.is_some().then_some(at)
    }

    /// A block that was written, near a random place.
    pub fn any_written(&self, rng: &mut SmallRng) -> Option<usize> {
        let start = rng.random_range(0..self.blocks.len());
        (start..self.blocks.len()).chain(0..start).find(|&at| self.blocks[at].is_some())
    }
}

/// The first 8 bytes, 0 where there are none.
fn mark_of(content: &Content) -> u64 {
    content.as_ref().map_or(0, |content| {
        u64::from_le_bytes(content.bytes()[..8].try_into().expect("a block has more than 8 bytes"))
    })
}

/// All blocks as one buffer, where that needs no copy.
fn joined(blocks: &[Content]) -> Option<Buffer> {
    let Some(first) = blocks.first()? else {
        let all_zero = blocks.iter().all(Option::is_none) && blocks.len() * BLOCK <= 1 << 20;
        return all_zero.then(|| zeros(blocks.len() * BLOCK));
    };
    let mut whole = first.clone();
    for next in &blocks[1..] {
        let next = next.as_ref()?;
        if !whole.is_followed_by(next) {
            return None;
        }
        whole = whole.joined(next);
    }
    Some(whole)
}

/// Some sectors of one version and the others of another.
pub fn torn(one: &Content, other: &Content, rng: &mut SmallRng) -> Content {
    let mut pages = Pages::zeroed(BLOCK);
    for sector in 0..BLOCK / SECTOR {
        let range = sector * SECTOR..(sector + 1) * SECTOR;
        let source = if rng.random_bool(0.5) { one } else { other };
        if let Some(source) = source {
            pages.bytes_mut()[range.clone()].copy_from_slice(&source.bytes()[range]);
        }
    }
    Some(pages.freeze())
}

/// A copy with one bit changed. Half of the time the bit is one that every reader looks at.
pub fn flipped(content: &Buffer, rng: &mut SmallRng) -> Buffer {
    let mut pages = Pages::copied(content.bytes());
    let len = content.len();
    let byte = if rng.random_bool(0.5) {
        rng.random_range(0..len / SECTOR) * SECTOR + rng.random_range(0..8)
    } else {
        rng.random_range(0..len)
    };
    pages.bytes_mut()[byte] ^= 1 << rng.random_range(0..8);
    pages.freeze().slice(0..len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn block(byte: u8) -> Buffer {
        Buffer::copied(&[byte; BLOCK])
    }

    #[test]
    fn a_flush_saves_what_had_ended_before_it_was_submitted_and_nothing_else() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut platter = Platter::new(1 << 20);
        platter.write(0, &[block(1)], false);
        let mark = platter.flush_mark();
        platter.write(0, &[block(2)], false);
        platter.write(1, &[block(3)], false);
        platter.flushed(mark);
        assert_eq!(platter.read(0, 1), Some(block(2)), "a read finds the newest");
        platter.power_cut(Mood::LosesAll, &mut rng);
        let survivor = platter.read(0, 1).expect("nothing is unreadable");
        assert!(
            survivor == block(1) || survivor.bytes().iter().all(|&byte| byte == 1 || byte == 2),
            "the flushed version is kept, or rarely torn with a later one"
        );
        assert_ne!(platter.read(1, 1), Some(block(4)), "what never was is not found");
    }

    #[test]
    fn a_durable_write_survives() {
        let mut rng = SmallRng::seed_from_u64(2);
        let mut platter = Platter::new(1 << 20);
        platter.write(7, &[block(1), block(2)], true);
        platter.power_cut(Mood::LosesAll, &mut rng);
        assert_eq!(platter.read(8, 1), Some(block(2)));
        assert_eq!(platter.safe_content(7), &Some(block(1)));
    }

    #[test]
    fn damage_is_undone_unless_it_was_written_over() {
        let mut platter = Platter::new(1 << 20);
        platter.write(0, &[block(1), block(2)], true);
        platter.damage(0, Some(block(9)));
        platter.damage(1, Some(block(9)));
        platter.make_unreadable(0);
        assert_eq!(platter.read(0, 1), None);
        platter.write(1, &[block(5)], true);
        platter.restore();
        assert_eq!(platter.read(0, 1), Some(block(1)));
        assert_eq!(platter.read(1, 1), Some(block(5)));
    }
}
