//! Stories of one shard, told to the engine as a node would. One program, because each costs a build of its own.

mod around_the_log;
mod away;
mod bad_copies;
mod cached;
mod clones;
mod compression;
mod doors;
mod ends;
mod factors;
mod full;
mod late;
mod lost_writes;
mod neighbours;
mod observed;
mod one_shard;
mod paced;
mod reopened;
mod scattered;
mod snapshots;
mod undrained;
mod world;
