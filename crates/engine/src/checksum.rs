//! Checksums: CRC-32C (Castagnoli), the polynomial of iSCSI, which processors compute in hardware.
//! Promises: of a block in memory it is computed once, however often it is asked for ([`BlockSums`]), and that of several
//! blocks follows from theirs. So what guards a block on drives and wires is what was computed when it came, and tells also of
//! memory that changed meanwhile.

use crate::buffer::BLOCK;
use crate::identity::{EgroupId, FamilyId};
use crc_fast::{CrcAlgorithm, checksum, checksum_combine};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, OnceLock};

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The checksum of bytes followed by a block, from that of the bytes and that of the block.
pub fn with_block(sum: u32, block: u32) -> u32 {
    let bytes = SHIFT.iter().zip(sum.to_le_bytes());
    bytes.fold(block, |sum, (table, byte)| sum ^ table[byte as usize])
}

/// What a block of zeros behind it does to a checksum, for each value of each of its bytes. It is a linear map over GF(2): what it
/// does to the whole is the sum of what it does to each bit, which the library tells, but too slowly for every block.
static SHIFT: LazyLock<[[u32; 256]; 4]> = LazyLock::new(|| {
    let of_bit = |bit| checksum_combine(CrcAlgorithm::Crc32Iscsi, 1_u64 << bit, 0, BLOCK as u64) as u32;
    let of_bits: [u32; 32] = std::array::from_fn(of_bit);
    std::array::from_fn(|byte| {
        std::array::from_fn(|value| {
            let bits = (0..8).filter(|bit| value >> bit & 1 == 1);
            bits.fold(0, |sum, bit| sum ^ of_bits[8 * byte + bit])
        })
    })
});

/// Of the blocks of a memory that does not change: the checksums that somebody has asked for.
#[derive(Debug, Default)]
pub struct BlockSums {
    /// Of the first block. 0 stands for one that nobody knows; it costs one computation in four billion a second time.
    first: AtomicU32,
    others: OnceLock<Box<[AtomicU32]>>,
}

impl BlockSums {
    /// Of block `index` of `memory`, which is the one that this belongs to. Panics if there is no such block.
    pub fn of_block(&self, memory: &[u8], index: usize) -> u32 {
        let place = self.place(memory, index);
        // Two threads may both compute it, and come to the same.
        let known = place.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        let sum = crc32c(&memory[index * BLOCK..(index + 1) * BLOCK]);
        place.store(sum, Ordering::Relaxed);
        sum
    }

    /// Of block `index`, if it was computed.
    pub fn known(&self, index: usize) -> Option<u32> {
        let place = match index.checked_sub(1) {
            None => &self.first,
            Some(other) => self.others.get()?.get(other)?,
        };
        Some(place.load(Ordering::Relaxed)).filter(|&sum| sum != 0)
    }

    fn place(&self, memory: &[u8], index: usize) -> &AtomicU32 {
        let Some(other) = index.checked_sub(1) else { return &self.first };
        let make = || (1..memory.len() / BLOCK).map(|_| AtomicU32::new(0)).collect();
        &self.others.get_or_init(make)[other]
    }
}

/// The checksum of one unit of an egroup. It is bound to the unit's name, so that sound bytes that a
/// drive put in the wrong place, or never replaced, are told from the right ones.
pub fn unit_checksum(family: FamilyId, egroup: EgroupId, unit: u32, bytes: &[u8]) -> u32 {
    bound(family, egroup, unit, crc32c(bytes))
}

/// The same, of bytes whose CRC-32C is `sum`.
pub fn bound(family: FamilyId, egroup: EgroupId, unit: u32, sum: u32) -> u32 {
    // The finaliser of SplitMix64 spreads names that differ in one bit over all bits.
    let mut name = egroup.0 ^ (u64::from(family.0) << 24) ^ (u64::from(unit) << 48);
    name = (name ^ (name >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    name = (name ^ (name >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    sum ^ (name ^ (name >> 31)) as u32
}

/// Of what is lost: no bytes fit it, and of those that came with it this is seen.
pub fn lost_sum(bound: u32) -> u32 {
    !bound
}

/// Of what is not there: what came in its place does not fit it, and nothing tells it from damage.
pub fn lacking_sum(sum: u32) -> u32 {
    sum ^ 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Epoch;

    #[test]
    fn the_published_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283, "the check value of CRC-32/ISCSI");
    }

    #[test]
    fn the_sum_of_several_blocks_follows_from_theirs() {
        let bytes: Vec<u8> = (0..5 * BLOCK as u32).map(|n| ((n * n) >> 7) as u8).collect();
        let sums = BlockSums::default();
        let of_block = |index| sums.of_block(&bytes, index);
        assert_eq!(of_block(3), crc32c(&bytes[3 * BLOCK..4 * BLOCK]));
        assert_eq!((1..5).map(of_block).fold(of_block(0), with_block), crc32c(&bytes));
        let (odd, rest) = bytes.split_at(BLOCK + 7);
        assert_eq!(with_block(crc32c(odd), crc32c(&rest[..BLOCK])), crc32c(&bytes[..2 * BLOCK + 7]));
    }

    #[test]
    fn a_sum_is_computed_once() {
        let bytes = [7; 3 * BLOCK];
        let sums = BlockSums::default();
        assert_eq!(sums.known(0), None);
        let (first, last) = (sums.of_block(&bytes, 0), sums.of_block(&bytes, 2));
        assert_eq!((sums.known(0), sums.known(1), sums.known(2)), (Some(first), None, Some(last)));
        assert_eq!(sums.known(3), None);
        // Whoever changes the bytes all the same is found out.
        assert_eq!(sums.of_block(&[8; 3 * BLOCK], 2), last);
    }

    #[test]
    fn a_unit_in_the_wrong_place_does_not_pass() {
        let egroup = EgroupId::new(Epoch(1), 7);
        let sum = unit_checksum(FamilyId(1), egroup, 3, b"data");
        assert_ne!(sum, unit_checksum(FamilyId(1), egroup, 4, b"data"));
        assert_ne!(sum, unit_checksum(FamilyId(2), egroup, 3, b"data"));
        assert_ne!(sum, unit_checksum(FamilyId(1), EgroupId::new(Epoch(1), 8), 3, b"data"));
    }
}
