//! Every byte that Weft puts on a drive: little-endian, versioned, checksummed. `docs/formats.md` tells
//! the same in prose, byte by byte.

pub mod record;
