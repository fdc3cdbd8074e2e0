//! Checksums: CRC-32C (Castagnoli), the polynomial of iSCSI, which processors compute in hardware.

use crate::identity::{EgroupId, FamilyId};
use crc_fast::{CrcAlgorithm, checksum};

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The checksum of one unit of an egroup. It is bound to the unit's name, so that sound bytes that a
/// drive put in the wrong place, or never replaced, are told from the right ones.
pub fn unit_checksum(family: FamilyId, egroup: EgroupId, unit: u32, bytes: &[u8]) -> u32 {
    // The finaliser of SplitMix64 spreads names that differ in one bit over all bits.
    let mut name = egroup.0 ^ (u64::from(family.0) << 24) ^ (u64::from(unit) << 48);
    name = (name ^ (name >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    name = (name ^ (name >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    crc32c(bytes) ^ (name ^ (name >> 31)) as u32
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
    fn a_unit_in_the_wrong_place_does_not_pass() {
        let egroup = EgroupId::new(Epoch(1), 7);
        let sum = unit_checksum(FamilyId(1), egroup, 3, b"data");
        assert_ne!(sum, unit_checksum(FamilyId(1), egroup, 4, b"data"));
        assert_ne!(sum, unit_checksum(FamilyId(2), egroup, 3, b"data"));
        assert_ne!(sum, unit_checksum(FamilyId(1), EgroupId::new(Epoch(1), 8), 3, b"data"));
    }
}
