//! The content of writes: every sector of every write is unlike any other, and tells which write it is of. Some writes
//! compress well, some a little, some not at all.

use weft_engine::buffer::{Buffer, Pages};

pub const SECTOR: usize = 512;

const TAG: u64 = 0xa5 << 56;
const NUMBERS: u64 = 1 << 28;
const PLACES: u64 = 1 << 20;

/// The mark in the first and last 8 bytes of `sector` when write `number` of `family` put it there.
pub fn stamp(family: usize, number: u32, sector: u64) -> u64 {
    debug_assert!(number > 0 && u64::from(number) < NUMBERS, "numbers begin at 1 and fit");
    let place = (sector ^ (sector >> 20)) % PLACES;
    TAG | (family as u64 & 0xff) << 48 | u64::from(number) << 20 | place
}

/// What is in a sector: the number of the write that put it there, 0 for zeros.
/// Err: neither zeros nor anything a write of `family` put into `sector`.
pub fn number_in(family: usize, sector: u64, bytes: &[u8]) -> Result<u32, u64> {
    let head = u64::from_le_bytes(bytes[..8].try_into().expect("a sector has more than 8 bytes"));
    let tail = u64::from_le_bytes(bytes[SECTOR - 8..].try_into().expect("a sector has more than 8 bytes"));
    if head != tail {
        return Err(head);
    }
    if head == 0 {
        return Ok(0);
    }
    let number = ((head >> 20) % NUMBERS) as u32;
    if number > 0 && stamp(family, number, sector) == head { Ok(number) } else { Err(head) }
}

/// The bytes of a write of whole sectors.
pub fn content(family: usize, number: u32, first_sector: u64, sectors: u64) -> Buffer {
    let len = sectors as usize * SECTOR;
    let mut pages = Pages::zeroed(len);
    let bytes = pages.bytes_mut();
    for index in 0..sectors {
        let mark = stamp(family, number, first_sector + index).to_le_bytes();
        let at = index as usize * SECTOR;
        bytes[at..at + 8].copy_from_slice(&mark);
        fill(number, u64::from_le_bytes(mark), &mut bytes[at + 8..at + SECTOR - 8]);
        bytes[at + SECTOR - 8..at + SECTOR].copy_from_slice(&mark);
    }
    pages.freeze().slice(0..len)
}

/// Noise between the marks: none in most writes, half of it or everything in others.
fn fill(number: u32, mark: u64, bytes: &mut [u8]) {
    let noise = match number % 8 {
        0..4 => 0,
        4..6 => bytes.len() / 2,
        _ => bytes.len(),
    };
    let mut state = mark;
    for word in bytes[..noise].chunks_exact_mut(8) {
        state =
            (state ^ (state >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&state.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_tells_its_write_and_its_place() {
        let bytes = content(3, 77, 1_000_000, 4);
        assert_eq!(number_in(3, 1_000_002, &bytes.bytes()[2 * SECTOR..3 * SECTOR]), Ok(77));
        assert!(number_in(3, 1_000_003, &bytes.bytes()[2 * SECTOR..3 * SECTOR]).is_err(), "misplaced");
        assert!(
            number_in(4, 1_000_002, &bytes.bytes()[2 * SECTOR..3 * SECTOR]).is_err(),
            "of another family"
        );
        assert_eq!(number_in(3, 5, &[0; SECTOR]), Ok(0));
    }
}
