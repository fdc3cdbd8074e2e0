//! The names of things: each number that could be mistaken for another is its own type.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// Microseconds on this shard's own monotonic clock; the origin means nothing.
    Time(u64)
);
number!(
    /// One engine on one core. Shards of a cluster have distinct numbers.
    ShardId(u32)
);
number!(
    /// A drive, or a slice of one. Distinct over the cluster, never reused.
    DriveId(u32)
);
number!(
    /// A vDisk with its snapshots: one owner, one log, one garbage accounting.
    FamilyId(u32)
);
number!(
    /// Fences every earlier owner of a family.
    Epoch(u32)
);
number!(
    /// Counts the snapshots ever taken of a vDisk. What is written between two snapshots is of one generation, and a
    /// snapshot is named by the generation that it ended: it sees what is of that one and of earlier ones.
    Generation(u32)
);
number!(
    /// Names a snapshot to the control plane, which gives it out; asking again with it makes no second snapshot.
    SnapshotId(u64)
);
number!(
    /// A 4 KiB block of a vDisk's address space.
    Block(u64)
);
number!(
    /// The place of a record in its family's log; the first record is 1, 0 stands for "none".
    Seq(u64)
);
number!(
    /// A placement group: an ordered set of drives in distinct fault domains.
    GroupId(u32)
);
number!(
    /// Names one request of a frontend; the reply carries it back.
    Ticket(u64)
);

/// A node has this many numbers for its shards at most: node n those from n times as many on.
pub const SHARDS_PER_NODE: u32 = 64;

impl ShardId {
    /// Shard `index` of a node.
    pub fn of(node: u32, index: u32) -> Self {
        assert!(index < SHARDS_PER_NODE, "a node has at most {SHARDS_PER_NODE} shards");
        let first = node.checked_mul(SHARDS_PER_NODE).expect("sixty million nodes are never reached");
        Self(first + index)
    }

    /// The node it belongs to.
    pub fn node(self) -> u32 {
        self.0 / SHARDS_PER_NODE
    }
}

/// The name of an egroup inside its family: the epoch of the owner that made it, and a counter.
/// Two owners can therefore never give out the same name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EgroupId(pub u64);

impl EgroupId {
    /// The `counter`-th egroup made by the owner of `epoch`.
    pub fn new(epoch: Epoch, counter: u32) -> Self {
        Self(u64::from(epoch.0) << 32 | u64::from(counter))
    }

    /// What stands in a clone's map for blocks that were trimmed in this generation: they are not the origin's any more. No
    /// owner has epoch 0, so no egroup has such a name.
    pub fn hole(generation: Generation) -> Self {
        Self(u64::from(generation.0))
    }

    pub fn is_hole(self) -> bool {
        self.0 >> 32 == 0
    }

    /// The epoch of the owner that made it.
    pub fn epoch(self) -> Epoch {
        Epoch((self.0 >> 32) as u32)
    }
}

impl fmt::Display for EgroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

impl Time {
    /// This instant and `us` microseconds.
    pub fn after(self, us: u64) -> Time {
        Time(self.0 + us)
    }

    /// Microseconds since `earlier`, 0 if that is in the future.
    pub fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Block {
    /// The block `count` blocks further on.
    pub fn plus(self, count: u64) -> Block {
        Block(self.0 + count)
    }
}

impl Generation {
    /// The one that follows.
    pub fn next(self) -> Generation {
        Generation(self.0 + 1)
    }
}

impl Seq {
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }

    /// The number before; 0 stays 0.
    pub fn previous(self) -> Seq {
        Seq(self.0.saturating_sub(1))
    }
}
