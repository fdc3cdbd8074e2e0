//! The storage engine of Weft: it decides, and does nothing itself.
//!
//! One [`shard::Shard`] is one engine on one core. Everything that happens enters through `Shard::step` and
//! everything it wants done leaves in [`interface::Outputs`]; there is no clock, file, socket, thread or
//! randomness in here, so the same code runs in a node and, millions of events a second, in the simulator.

pub mod buffer;
pub mod cache;
pub mod census;
pub mod checksum;
pub mod cluster;
pub mod codec;
pub mod context;
pub mod counters;
pub mod curator;
pub mod drain;
pub mod egroup;
pub mod formats;
pub mod histogram;
pub mod identity;
pub mod interface;
pub mod keeper;
pub mod limits;
pub mod log;
pub mod map;
pub mod message;
pub mod openings;
pub mod pace;
pub mod sabotage;
pub mod shard;
pub mod stages;
pub mod volume;

pub use identity::{
    Block, DriveId, EgroupId, Epoch, FamilyId, Generation, GroupId, Seq, ShardId, SnapshotId, Ticket, Time,
};
pub use interface::{Input, Notice, Order, Outputs, Reply, Request};
pub use limits::Limits;
