//! The doing half of a Weft node: threads, drives, sockets, the config store and the API.
//! Promises: what the engine decides is done, in order, and what happens reaches it; nothing here decides about data.
//! Leaves to others: deciding (`weft_engine`), protocols (`weft_frontends`), the command line (`weft`).

pub mod api;
mod attach;
mod calendar;
pub mod config;
mod control;
mod descriptors;
mod drives;
pub mod join;
mod memory;
pub mod offline;
mod shard_loop;
mod uri;
mod words;

pub use attach::boot_id;
pub use control::{DRIVES_MAX, READ_CACHE_DEFAULT, Settings, StartError, run};
pub use drives::DRIVE_BYTES_MIN;
pub use uri::path_part;
pub use words::stderr_without_waiting;
