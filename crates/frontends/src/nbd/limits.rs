//! Every limit of an NBD connection, checked against each other.

/// The largest read or write; told to clients as the maximum block size.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// Requests of one connection that wait for the engine. At this many, no more bytes are wanted.
pub const REQUESTS_MAX: usize = 256;

/// Payload of open requests, and memory of replies that wait to be sent, of one connection. At this much, no more bytes
/// are wanted; requests accepted before may go over it by what their replies keep.
pub const BYTES_MAX: usize = 64 << 20;

/// Data of one option of the handshake.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;

/// The longest name of an export (the protocol's own limit on strings).
pub const NAME_BYTES_MAX: u32 = 4096;

/// Bytes a client may send before it has chosen an export; then the connection is closed.
pub const HANDSHAKE_BYTES_MAX: u64 = 1 << 20;

/// Options a client may send before it has chosen an export; then the connection is closed.
pub const HANDSHAKE_OPTIONS_MAX: u32 = 1024;

/// Extents told in one answer to a question for the block status. The client asks on from where they end.
pub const EXTENTS_MAX: u32 = 4096;

const _: () = assert!(PAYLOAD_BYTES_MAX as usize <= BYTES_MAX, "one request of the largest size fits");
const _: () = assert!(NAME_BYTES_MAX < OPTION_BYTES_MAX, "a name fits into an option");
const _: () = assert!((OPTION_BYTES_MAX as u64) < HANDSHAKE_BYTES_MAX, "some options fit into a handshake");
const _: () = assert!(REQUESTS_MAX <= u32::MAX as usize, "a handle is a u32");
