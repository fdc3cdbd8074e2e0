//! The numbers of the protocol, under the names its document gives them (without the prefix `NBD_`).
//! All integers on the wire are big-endian.

pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
pub(super) const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(super) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Lengths of headers in bytes.
pub(super) const CLIENT_FLAGS_BYTES: usize = 4;
pub(super) const OPTION_HEADER_BYTES: usize = 16;
pub(super) const REQUEST_HEADER_BYTES: usize = 28;

/// Flags of the handshake, the same from the server and from the client.
pub(super) const FLAG_FIXED_NEWSTYLE: u16 = 1;
pub(super) const FLAG_NO_ZEROES: u16 = 2;

pub(super) const OPT_EXPORT_NAME: u32 = 1;
pub(super) const OPT_ABORT: u32 = 2;
pub(super) const OPT_LIST: u32 = 3;
pub(super) const OPT_STARTTLS: u32 = 5;
pub(super) const OPT_INFO: u32 = 6;
pub(super) const OPT_GO: u32 = 7;
pub(super) const OPT_STRUCTURED_REPLY: u32 = 8;
pub(super) const OPT_LIST_META_CONTEXT: u32 = 9;
pub(super) const OPT_SET_META_CONTEXT: u32 = 10;

pub(super) const REP_ACK: u32 = 1;
pub(super) const REP_SERVER: u32 = 2;
pub(super) const REP_INFO: u32 = 3;
pub(super) const REP_META_CONTEXT: u32 = 4;
pub(super) const REP_ERR_UNSUP: u32 = 0x8000_0001;
pub(super) const REP_ERR_INVALID: u32 = 0x8000_0003;
pub(super) const REP_ERR_UNKNOWN: u32 = 0x8000_0006;
pub(super) const REP_ERR_TOO_BIG: u32 = 0x8000_0009;

pub(super) const INFO_EXPORT: u16 = 0;
pub(super) const INFO_NAME: u16 = 1;
pub(super) const INFO_DESCRIPTION: u16 = 2;
pub(super) const INFO_BLOCK_SIZE: u16 = 3;

/// Flags of an export.
pub(super) const FLAG_HAS_FLAGS: u16 = 1;
pub(super) const FLAG_READ_ONLY: u16 = 1 << 1;
pub(super) const FLAG_SEND_FLUSH: u16 = 1 << 2;
pub(super) const FLAG_SEND_FUA: u16 = 1 << 3;
pub(super) const FLAG_SEND_TRIM: u16 = 1 << 5;
pub(super) const FLAG_SEND_WRITE_ZEROES: u16 = 1 << 6;
pub(super) const FLAG_SEND_DF: u16 = 1 << 7;
pub(super) const FLAG_CAN_MULTI_CONN: u16 = 1 << 8;
pub(super) const FLAG_SEND_CACHE: u16 = 1 << 10;
pub(super) const FLAG_SEND_FAST_ZERO: u16 = 1 << 11;

/// The one metadata context there is, and the number we give it.
pub(super) const BASE_ALLOCATION: &str = "base:allocation";
pub(super) const BASE_ALLOCATION_ID: u32 = 1;
pub(super) const STATE_HOLE: u32 = 1;
pub(super) const STATE_ZERO: u32 = 2;

pub(super) const CMD_DISC: u16 = 2;

/// Commands that are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Read,
    Write,
    Flush,
    Trim,
    Cache,
    WriteZeroes,
    BlockStatus,
}

impl Command {
    pub(super) fn of(number: u16) -> Option<Self> {
        Some(match number {
            0 => Command::Read,
            1 => Command::Write,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            _ => return None,
        })
    }

    /// Whether it changes the export.
    pub(super) fn changes(self) -> bool {
        matches!(self, Command::Write | Command::Trim | Command::WriteZeroes)
    }
}

/// Flags of a command.
pub(super) const CMD_FLAG_FUA: u16 = 1;
pub(super) const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub(super) const CMD_FLAG_DF: u16 = 1 << 2;
pub(super) const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
pub(super) const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

pub(super) const REPLY_FLAG_DONE: u16 = 1;
pub(super) const REPLY_OFFSET_DATA: u16 = 1;
pub(super) const REPLY_OFFSET_HOLE: u16 = 2;
pub(super) const REPLY_BLOCK_STATUS: u16 = 5;
pub(super) const REPLY_ERROR: u16 = 0x8001;

/// Error numbers on the wire, which are those of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Errno {
    Permission = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
}
