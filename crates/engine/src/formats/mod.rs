//! Every byte that Weft puts on a drive or a wire: little-endian, versioned, checksummed. `docs/formats.md` tells
//! the same in prose, byte by byte.
//!
//! Everything here is total: any bytes may be decoded, and what is not sound is told so.

mod fields;
pub mod frame;
pub mod layout;
pub mod packing;
pub mod payload;
pub mod recipe;
pub mod record;
pub mod references;
pub mod superblock;
pub mod table;
pub mod wire;
