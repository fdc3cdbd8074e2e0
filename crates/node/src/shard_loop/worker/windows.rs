//! How much of what clients ask here may be open at a shard of another node at a time.
//! Promises: what clients of one vDisk ask never takes more than its share, so that one that waits there (for its limit, for room
//! in its log) leaves room for others; what owners ask each other for is not counted, so that nothing a client's request waits
//! for stands behind requests of clients.
//! Leaves to others: asking again what had no room (`forward`: to whoever asks the engine is busy).

use crate::shard_loop::peer::link;
use std::collections::BTreeMap;
use weft_engine::{FamilyId, ShardId};
use weft_frontends::nbd::limits::PAYLOAD_BYTES_MAX;

/// Requests and bytes (what they carry, or will bring) open at one shard; the last request may go over it ...
const WHOLE: Room = Room { requests: 1024, bytes: 64 << 20 };

/// ... and of these of one vDisk.
const SHARE: Room = Room { requests: 256, bytes: 16 << 20 };

/// A vDisk that has less than this open finds room beside others that wait with all they may have ...
const LITTLE: Room = Room { requests: 8, bytes: 1 << 20 };

/// ... up to this.
const UTMOST: Room = Room { requests: 1536, bytes: 88 << 20 };
const _: () = assert!(UTMOST.requests < link::OPEN_REQUESTS_MAX, "whoever keeps to it is always read");
const _: () = assert!(UTMOST.bytes + PAYLOAD_BYTES_MAX as usize <= link::OPEN_BYTES_MAX, "likewise");

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Room {
    requests: usize,
    bytes: usize,
}

impl Room {
    /// Whether one more request goes. The last one may be larger than what is left: else it would have to wait until there is
    /// nothing else, which never comes.
    fn is_there_in(self, most: Room) -> bool {
        self.requests < most.requests && self.bytes < most.bytes
    }

    fn add(&mut self, bytes: usize) {
        self.requests += 1;
        self.bytes += bytes;
    }

    fn take_off(&mut self, bytes: usize) {
        assert!(self.requests > 0 && self.bytes >= bytes, "what is given back was taken");
        self.requests -= 1;
        self.bytes -= bytes;
    }
}

#[derive(Default)]
pub(super) struct Windows(BTreeMap<ShardId, Window>);

#[derive(Default)]
struct Window {
    open: Room,
    of: BTreeMap<FamilyId, Room>,
}

impl Windows {
    /// Takes room for a request of a client. False: there is none, now.
    pub fn open(&mut self, shard: ShardId, family: FamilyId, bytes: usize) -> bool {
        let window = self.0.entry(shard).or_default();
        let own = window.of.entry(family).or_default();
        let has_room = own.is_there_in(SHARE) && window.open.is_there_in(WHOLE);
        let has_little = own.is_there_in(LITTLE) && window.open.is_there_in(UTMOST);
        if !has_room && !has_little {
            if own.requests == 0 {
                window.of.remove(&family);
            }
            return false;
        }
        own.add(bytes);
        window.open.add(bytes);
        true
    }

    /// Gives back what a request had taken.
    pub fn close(&mut self, shard: ShardId, family: FamilyId, bytes: usize) {
        let window = self.0.get_mut(&shard).expect("what is open there is counted");
        window.open.take_off(bytes);
        let own = window.of.get_mut(&family).expect("what is open is open for a vDisk");
        own.take_off(bytes);
        if own.requests == 0 {
            window.of.remove(&family);
        }
        if window.open.requests == 0 {
            self.0.remove(&shard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_vdisk_leaves_room_for_others() {
        let mut windows = Windows::default();
        let (a, b) = (ShardId(1), ShardId(2));
        let mib = 1 << 20;
        let mut opened = |shard, family, bytes| windows.open(shard, FamilyId(family), bytes);
        assert!((0..16).all(|_| opened(a, 1, mib)) && !opened(a, 1, mib), "its share");
        assert!(opened(a, 2, mib) && opened(b, 1, mib), "others have their own, and so has another shard");
        assert!(opened(a, 2, 32 * mib), "a large one does not wait until there is nothing else");
        assert!(!opened(a, 2, 1), "it was the last one");
        assert!((0..256).all(|_| opened(a, 5, 0)) && !opened(a, 5, 0), "many small ones likewise");
        assert!(opened(a, 3, 32 * mib), "there is room left");
        assert!(
            (0..8).all(|_| opened(a, 4, 1)) && !opened(a, 4, 1),
            "all together have no more, but for a little of each"
        );
        assert!(!opened(a, 1, 1), "who has much waits");
        windows.close(a, FamilyId(3), 32 * mib);
        for _ in 0..15 {
            windows.close(a, FamilyId(1), mib);
        }
        assert!((0..15).all(|_| windows.open(a, FamilyId(1), mib)), "what was answered makes room");
        windows.close(b, FamilyId(1), mib);
        assert!(!windows.0.contains_key(&b), "nothing is kept of what is over");
    }
}
