//! Every limit of the engine in one place, checked against each other (I10).
//! The node uses [`Limits::default`]; the simulator small ones, so that every limit is met often.

use crate::buffer::BLOCK;
use crate::keeper::DISCARD_BLOCKS_MIN;

/// Units of 4 KiB in an egroup at most: with its table page it is a little under 4 MiB.
pub const EGROUP_UNITS: usize = 960;

/// Blocks of one data record at most (1 MiB): larger writes are cut.
pub const RECORD_BLOCKS: u64 = 256;

/// Blocks covered by one leaf page of the map (4 MiB of address space).
pub const LEAF_BLOCKS: u64 = 1024;

/// Snapshots of one vDisk at a time: each takes 16 bytes of every checkpoint record.
pub const SNAPSHOTS_MAX: usize = 16_384;

/// Snapshots that a vDisk can have in its life: pages of the past have the generation in their number.
pub const GENERATIONS_MAX: u32 = 1 << 22;

/// The largest vDisk in bytes: what NBD and Linux can address.
pub const VDISK_BYTES_MAX: u64 = i64::MAX as u64 & !4095;

/// Egroups that an owner may still have written in the step in which it has given out as many names as it should.
const NAMES_IN_A_STEP: u32 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Requests open on one family at most; more are refused as busy.
    pub requests_max: usize,
    /// Bytes of acknowledged, undrained data one family keeps in memory at most.
    pub dirty_bytes_max: u64,
    /// All families of a shard together keep no more than this ...
    pub dirty_bytes_shard: u64,
    /// ... but each may keep so much whatever the others have.
    pub dirty_bytes_least: u64,
    /// Drain begins when this much is dirty, for larger and better sorted egroups, and so that a burst of writes has the drive for
    /// itself. Of a family that may keep less than `dirty_bytes_max`, in proportion.
    pub drain_bytes_begin: u64,
    /// ... or when the oldest dirty data is this old.
    pub drain_age_us: u64,
    /// Behind the beginning of a whole egroup of a drain without haste, if clients do not write as much sooner; behind a smaller one
    /// less, in proportion.
    pub drain_pause_us: u64,
    /// Egroups being written by one family's drain at once.
    pub drain_egroups_max: usize,
    /// Map edits kept beside the tree at most; a checkpoint begins at half of it.
    pub edits_max: usize,
    /// Pages of the past of one leaf that a checkpoint changes at the same instant, besides those that have to.
    pub past_pages_together: usize,
    /// A page of the past is filled so far with groups of several snapshots; a page holds 16 KiB at most.
    pub past_page_bytes: usize,
    /// Bytes of leaf pages kept in memory per family.
    pub pages_bytes_max: usize,
    /// Log bytes one family keeps before it checkpoints to trim them.
    pub log_bytes_checkpoint: u64,
    /// Bytes of one log frame at most, without its header.
    pub frame_bytes_max: usize,
    /// Log frames in flight per drive at most.
    pub frames_in_flight: usize,
    /// Writes of at least this many bytes may bypass the log ...
    pub bypass_write_bytes: u64,
    /// ... when this much is outstanding on the vDisk.
    pub bypass_outstanding_bytes: u64,
    /// While several vDisks use a drive, so many bytes of what they read are in flight there, and as many of background work.
    pub turn_bytes: u64,
    /// A question to another shard is asked again after this time.
    pub call_retry_us: u64,
    /// Egroups whose live share is under this many percent are compacted when space is wanted.
    pub compact_live_percent: u32,
    /// Names of egroups that an owner gives out: then the vDisk is given up, to be opened in a new epoch, which has names of its own.
    pub egroup_names_max: u32,
    /// Egroups being compacted by one family at once.
    pub compact_egroups_max: usize,
    /// Of what lies on a drive so much is known by its hash, to be found when it is written again. An entry takes 63 bytes of
    /// memory at most, and there are none on drives where nothing wishes to be shared.
    pub shared_entries_max: usize,
    /// Copies that one family owes at most: what else is missing is found by the next list of the drive.
    pub copies_owed_max: usize,
    /// Egroups of vDisks that are no more that a drive deletes at the same time.
    pub erased_together: usize,
    /// A drive is told of space that has been free for so long ...
    pub discard_after_us: u64,
    /// ... and of so much at once.
    pub discard_bytes_max: u64,
    /// Names of egroups in one part of a drive's list.
    pub names_listed_max: usize,
    /// Every family asks its drives for their lists of egroups this often.
    pub audit_interval_us: u64,
    /// What no drive gives of an egroup for so long, a copy is made without.
    pub partial_after_us: u64,
    /// Bytes of egroups that a shard keeps in memory for reads, until it is told another number.
    pub cache_bytes: u64,
    /// When what is read from other nodes is moved to the one of the owner.
    pub touches: Touches,
    /// A sequential stream is read so far ahead at first ...
    pub ahead_bytes_begin: u64,
    /// ... and so far at most.
    pub ahead_bytes_max: u64,
}

/// An egroup that is read so often from the drives of other nodes follows its vDisk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touches {
    /// Reads within so long are one touch.
    pub touch_us: u64,
    /// So long touches are counted.
    pub count_us: u64,
    /// So many touches by random reads are enough, or so many by sequential ones.
    pub random: u32,
    pub sequential: u32,
    /// Egroups of one vDisk whose touches are counted at most.
    pub egroups_max: usize,
}

impl Touches {
    /// Nothing is touched often enough.
    pub const NEVER: Self = Self { random: 1 << 15, sequential: 1 << 15, ..Self::NODE };

    const NODE: Self =
        Self { touch_us: 10_000_000, count_us: 600_000_000, random: 3, sequential: 10, egroups_max: 4096 };
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests_max: 4096,
            dirty_bytes_max: 448 << 20,
            dirty_bytes_shard: 1 << 30,
            dirty_bytes_least: 64 << 20,
            drain_bytes_begin: 320 << 20,
            drain_age_us: 5_000_000,
            drain_pause_us: 20_000,
            drain_egroups_max: 4,
            edits_max: 1 << 18,
            past_pages_together: 64,
            past_page_bytes: 16 << 10,
            pages_bytes_max: 64 << 20,
            log_bytes_checkpoint: 512 << 20,
            frame_bytes_max: 1 << 20,
            frames_in_flight: 3,
            bypass_write_bytes: 128 << 10,
            bypass_outstanding_bytes: 3 << 19,
            // Two large reads, which keep a drive busy, and room for small ones beside them.
            turn_bytes: 3 << 20,
            call_retry_us: 1_000_000,
            compact_live_percent: 75,
            egroup_names_max: u32::MAX - NAMES_IN_A_STEP,
            compact_egroups_max: 2,
            // 4 GiB of units, or 16 of what is packed by four: 63 MiB of memory at most.
            shared_entries_max: 1 << 20,
            copies_owed_max: 4096,
            erased_together: 256,
            discard_after_us: 10_000_000,
            discard_bytes_max: 16 << 20,
            names_listed_max: 4096,
            audit_interval_us: 60_000_000,
            partial_after_us: 60_000_000,
            cache_bytes: 64 << 20,
            // 16 GiB at a time.
            touches: Touches::NODE,
            ahead_bytes_begin: 128 << 10,
            ahead_bytes_max: 1 << 20,
        }
    }
}

impl Limits {
    /// Small limits for the simulator.
    pub fn small() -> Self {
        Self {
            requests_max: 64,
            dirty_bytes_max: 512 << 10,
            dirty_bytes_shard: 1 << 20,
            dirty_bytes_least: 128 << 10,
            drain_bytes_begin: 128 << 10,
            drain_age_us: 200_000,
            drain_pause_us: 40_000,
            drain_egroups_max: 2,
            edits_max: 512,
            past_pages_together: 2,
            past_page_bytes: 128,
            pages_bytes_max: 64 << 10,
            log_bytes_checkpoint: 512 << 10,
            frame_bytes_max: 64 << 10,
            frames_in_flight: 2,
            bypass_write_bytes: 32 << 10,
            bypass_outstanding_bytes: 64 << 10,
            turn_bytes: 64 << 10,
            call_retry_us: 50_000,
            compact_live_percent: 75,
            egroup_names_max: u32::MAX - NAMES_IN_A_STEP,
            compact_egroups_max: 2,
            shared_entries_max: 1024,
            copies_owed_max: 4096,
            erased_together: 4,
            discard_after_us: 200_000,
            discard_bytes_max: 256 << 10,
            names_listed_max: 4096,
            audit_interval_us: 2_000_000,
            partial_after_us: 6_000_000,
            cache_bytes: 256 << 10,
            touches: Touches {
                touch_us: 20_000,
                count_us: 4_000_000,
                random: 2,
                sequential: 3,
                egroups_max: 16,
            },
            ahead_bytes_begin: 16 << 10,
            ahead_bytes_max: 64 << 10,
        }
    }

    /// Panics if limits contradict each other.
    pub fn check(&self) {
        assert!(self.drain_bytes_begin < self.dirty_bytes_max, "drain begins before memory is full");
        assert!(self.dirty_bytes_max <= 1 << 32, "products of two of them are computed");
        assert!(
            self.dirty_bytes_least <= self.dirty_bytes_max,
            "what each may keep is within what one may keep"
        );
        assert!(self.bypass_write_bytes <= self.bypass_outstanding_bytes, "a bypassing write counts itself");
        assert!(self.frames_in_flight > 0 && self.drain_egroups_max > 0, "work needs a place to happen");
        assert!(self.ahead_bytes_begin <= self.ahead_bytes_max, "read-ahead begins small");
        assert!(
            self.ahead_bytes_max <= 1 << 20,
            "what is read ahead at once is no larger than a large request"
        );
        assert!(self.egroup_names_max <= u32::MAX - NAMES_IN_A_STEP, "a step may go on beyond the last name");
        assert!(self.erased_together > 0, "what is dropped goes some time");
        let hint_bytes_min = DISCARD_BLOCKS_MIN * BLOCK as u64;
        assert!(self.discard_bytes_max >= hint_bytes_min, "what a drive is told at once is worth telling");
        let Touches { touch_us, count_us, random, sequential, .. } = self.touches;
        assert!(0 < touch_us && touch_us <= count_us, "touches are counted for longer than one takes");
        assert!(random > 0 && sequential > 0, "what nobody touches stays where it is");
        assert!(self.requests_max > 0 && self.edits_max >= 64, "something must be allowed");
    }
}
