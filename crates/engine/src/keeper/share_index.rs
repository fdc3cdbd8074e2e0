//! What lies on the drive and may be shared, by the hash of its stored bytes.
//! Promises: whatever is told was put there durably, in blocks that are not free: entries come when an egroup is durable, and go when
//! a block is freed or found damaged. Never more entries than the limit: what came first goes first, unless it was used since (I10).
//! Leaves to others: hashing (`sharing`), filling it again after an opening (`refill`), a look at what nobody has seen since then (`proof`).
//!
//! Entries lie in batches, one for each stretch of bytes that was written together: so the neighbours of what was found are known,
//! and a copy of a whole image is found in long runs although some of its blocks are in it many times.

use crate::formats::table::Hash;
use crate::limits::EGROUP_UNITS;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

/// Memory that an entry takes at most: 24 bytes in its batch, and 17 in a table of which 44 to 88 percent are in use.
pub const ENTRY_COST: u64 = 63;

/// No batch is longer.
const BATCH_BYTES_MAX: u64 = (EGROUP_UNITS * crate::buffer::BLOCK) as u64;

/// A stored frame: where it begins in its batch, its bytes, and their hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub at: u32,
    pub len: u16,
    /// It was written, or read and found right, since the drive was opened.
    pub proven: bool,
    pub hash: Hash,
}

const _: () = assert!(size_of::<Entry>() == 24, "an entry costs what is said above");

#[derive(Debug)]
struct Batch {
    /// In order of place.
    entries: Vec<Entry>,
    /// Something of it was found since it was looked at for eviction.
    is_used: bool,
}

/// The byte of the data area where a batch begins, and a number, because what is left of an older one may begin there too.
type Key = (u64, u64);

#[derive(Debug, Default)]
pub(super) struct ShareIndex {
    limit: usize,
    len: usize,
    batches: BTreeMap<Key, Batch>,
    /// The first known place of what has this hash, by a half of it. No order of a hash is ever seen.
    known: HashMap<u64, u64, BuildHasherDefault<Prefix>>,
    /// Oldest first; some have gone.
    order: VecDeque<Key>,
    numbered: u64,
}

impl ShareIndex {
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn limit(&self) -> usize {
        self.limit
    }

    /// What lies from the byte `start` of the data area on; durable.
    pub fn add(&mut self, start: u64, entries: Vec<Entry>) {
        if entries.is_empty() || entries.len() > self.limit {
            return;
        }
        self.len += entries.len();
        for entry in &entries {
            // What was there first stays: its neighbours are those of the first copy, and the next one will be like it.
            self.known.entry(prefix(&entry.hash)).or_insert(start + u64::from(entry.at));
        }
        self.numbered += 1;
        let key = (start, self.numbered);
        self.batches.insert(key, Batch { entries, is_used: false });
        self.order.push_back(key);
        while self.len > self.limit {
            self.evict();
        }
    }

    fn evict(&mut self) {
        let Some(key) = self.order.pop_front() else { unreachable!("what is counted is in a batch") };
        match self.batches.get_mut(&key) {
            None => {}
            Some(batch) if batch.is_used => {
                batch.is_used = false;
                self.order.push_back(key);
            }
            Some(_) => {
                let batch = self.batches.remove(&key).expect("it was just found");
                self.len -= batch.entries.len();
                batch.entries.iter().for_each(|entry| self.unlearn(key.0, entry));
            }
        }
    }

    fn unlearn(&mut self, start: u64, entry: &Entry) {
        let prefix = prefix(&entry.hash);
        if self.known.get(&prefix) == Some(&(start + u64::from(entry.at))) {
            self.known.remove(&prefix);
        }
    }

    /// The place of stored bytes with this hash.
    pub fn find(&mut self, hash: &Hash) -> Option<u64> {
        let place = *self.known.get(&prefix(hash))?;
        let (key, _) = self.entry_at(place, hash)?;
        self.batches.get_mut(&key).expect("it was just found").is_used = true;
        Some(place)
    }

    /// Whether what begins at `place` has this hash.
    pub fn is_at(&self, place: u64, hash: &Hash) -> bool {
        self.entry_at(place, hash).is_some()
    }

    /// Whether what begins at `place` has this hash, and was seen to have it.
    pub fn is_proven(&self, place: u64, hash: &Hash) -> bool {
        self.entry_at(place, hash).is_some_and(|(key, index)| self.batches[&key].entries[index].proven)
    }

    /// What begins at `place` was seen to have this hash. Nothing happens if it is not known to.
    pub fn prove(&mut self, place: u64, hash: &Hash) {
        if let Some((key, index)) = self.entry_at(place, hash) {
            self.batches.get_mut(&key).expect("it was just found").entries[index].proven = true;
        }
    }

    /// The stored bytes that end at `place`, if they have this hash: where they begin.
    pub fn ending_at(&self, place: u64, len: u32, hash: &Hash) -> Option<u64> {
        let begin = place.checked_sub(len.into())?;
        self.is_at(begin, hash).then_some(begin)
    }

    /// The batch of what begins at `place` and has this hash, and where it is in there.
    fn entry_at(&self, place: u64, hash: &Hash) -> Option<(Key, usize)> {
        let low = place.saturating_sub(BATCH_BYTES_MAX);
        let mut batches = self.batches.range((low, 0)..=(place, u64::MAX)).rev();
        batches.find_map(|(key, batch)| {
            let at = (place - key.0) as u32;
            let index = batch.entries.binary_search_by_key(&at, |entry| entry.at).ok()?;
            (batch.entries[index].hash == *hash).then_some((*key, index))
        })
    }

    /// Nothing that lies on these bytes of the data area is to be found any more.
    pub fn forget(&mut self, bytes: Range<u64>) {
        let low = bytes.start.saturating_sub(BATCH_BYTES_MAX);
        let keys: Vec<Key> = self.batches.range((low, 0)..(bytes.end, 0)).map(|(key, _)| *key).collect();
        for key in keys {
            let batch = self.batches.get_mut(&key).expect("it was just listed");
            let is_inside = |entry: &Entry| {
                let begin = key.0 + u64::from(entry.at);
                begin < bytes.end && begin + u64::from(entry.len) > bytes.start
            };
            let (gone, kept): (Vec<Entry>, Vec<Entry>) = batch.entries.iter().copied().partition(is_inside);
            if gone.is_empty() {
                continue;
            }
            self.len -= gone.len();
            if kept.is_empty() {
                self.batches.remove(&key);
            } else {
                batch.entries = kept;
            }
            gone.iter().for_each(|entry| self.unlearn(key.0, entry));
        }
        // Names of batches that have gone are few beside those that are there.
        if self.order.len() > 2 * self.batches.len() + 64 {
            self.order.retain(|key| self.batches.contains_key(key));
        }
    }
}

fn prefix(hash: &Hash) -> u64 {
    let mut half = [0; 8];
    half.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(half)
}

/// What is looked up is a hash already.
#[derive(Default)]
struct Prefix(u64);

impl Hasher for Prefix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only halves of hashes are looked up")
    }

    fn write_u64(&mut self, half: u64) {
        self.0 = half;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    fn hash(of: u8) -> Hash {
        [of.wrapping_mul(37); 16]
    }

    fn batch(of: &[u8]) -> Vec<Entry> {
        let entries = (0..).zip(of).map(|(index, &of)| Entry {
            at: index * 4096,
            len: 4096,
            proven: false,
            hash: hash(of),
        });
        entries.collect()
    }

    #[test]
    fn what_was_first_is_found_and_its_neighbours_are_known() {
        let mut index = ShareIndex::new(100);
        index.add(8192, batch(&[1, 2, 1, 3]));
        index.add(100 * 4096, batch(&[2, 9]));
        assert_eq!((index.find(&hash(1)), index.find(&hash(2))), (Some(8192), Some(12_288)));
        assert!(index.is_at(16_384, &hash(1)) && !index.is_at(16_384, &hash(2)));
        assert_eq!(index.ending_at(12_288, 4096, &hash(1)), Some(8192));
        index.forget(12_288..12_289);
        assert_eq!(index.find(&hash(2)), None, "of another place nobody has learnt");
        assert!(index.is_at(100 * 4096, &hash(2)), "but there it is");
        assert_eq!((index.find(&hash(3)), index.len()), (Some(20_480), 5));
    }

    #[test]
    fn what_was_seen_in_one_place_is_proven_there_until_it_is_forgotten() {
        let mut index = ShareIndex::new(100);
        index.add(0, batch(&[1, 2, 1]));
        index.prove(4096, &hash(2));
        index.prove(0, &hash(2));
        assert!(index.is_proven(4096, &hash(2)) && !index.is_proven(4096, &hash(1)));
        assert!(!index.is_proven(0, &hash(1)) && !index.is_proven(8192, &hash(1)));
        index.forget(4096..8192);
        index.add(4096, batch(&[2]));
        assert!(index.is_at(4096, &hash(2)) && !index.is_proven(4096, &hash(2)), "it is told once more");
    }

    #[test]
    fn the_limit_is_kept_and_what_is_used_stays_longer() {
        let mut index = ShareIndex::new(4);
        index.add(0, batch(&[1, 2]));
        index.add(1 << 20, batch(&[3, 4]));
        assert!(index.find(&hash(1)).is_some());
        index.add(2 << 20, batch(&[5, 6]));
        assert_eq!((index.find(&hash(1)), index.find(&hash(3)), index.len()), (Some(0), None, 4));
        index.add(3 << 20, batch(&[7, 8, 9, 10, 11]));
        assert_eq!((index.find(&hash(7)), index.len()), (None, 4), "what does not fit is left out");
    }

    #[test]
    fn what_is_found_is_what_a_map_of_places_says() {
        let mut random = SmallRng::seed_from_u64(6);
        let mut index = ShareIndex::new(400);
        let mut there: BTreeMap<u64, Hash> = BTreeMap::new();
        for _ in 0..3000 {
            let start = random.random_range(0..60) * 4096 * 10;
            let end = start + 10 * 4096;
            if there.range(start..end).next().is_none() && random.random() {
                let of: Vec<u8> =
                    (0..random.random_range(1..=10)).map(|_| random.random_range(0..90)).collect();
                there.extend((0..).zip(&of).map(|(at, &of)| (start + at * 4096, hash(of))));
                index.add(start, batch(&of));
            } else {
                let bytes = start + random.random_range(0..4) * 4096..end - random.random_range(0..4) * 4096;
                there.retain(|place, _| !bytes.contains(place));
                index.forget(bytes);
            }
            assert!(index.len() <= 400 && index.len() <= there.len());
            let wanted = hash(random.random_range(0..90));
            if let Some(place) = index.find(&wanted) {
                assert_eq!(there.get(&place), Some(&wanted), "what is told lies there");
            }
        }
        assert!(index.len() > 50, "it was used");
        index.forget(0..1 << 30);
        assert_eq!((index.len(), index.known.len(), index.batches.len()), (0, 0, 0), "nothing is left over");
    }
}
