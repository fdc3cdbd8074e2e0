//! Little-endian numbers at fixed places of a block, and the head that every block begins with:
//! magic (4 bytes), checksum (4 bytes, CRC-32C of everything behind it).

use crate::checksum::crc32c;

/// Bytes before the part that the checksum covers.
pub(crate) const HEAD: usize = 8;

pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// The number at `at`; callers have checked the length.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

/// The number at `at`; callers have checked the length.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

/// Puts the head on bytes that are otherwise complete.
pub(crate) fn seal(bytes: &mut [u8], magic: u32) {
    put_u32(bytes, 0, magic);
    let sum = crc32c(&bytes[HEAD..]);
    put_u32(bytes, 4, sum);
}

/// Whether the head is right for `bytes`, all of which the checksum covers.
pub(crate) fn is_sealed(bytes: &[u8], magic: u32) -> bool {
    bytes.len() > HEAD && u32_at(bytes, 0) == magic && u32_at(bytes, 4) == crc32c(&bytes[HEAD..])
}
