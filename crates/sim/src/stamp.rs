//! The content of writes: every sector of every write is unlike any other, and tells which write it is of; but for parts of an
//! image, which are alike whoever writes them, at the same place of any vDisk. Some compress well, some a little, some not at all.

use weft_engine::buffer::{Buffer, Pages};

pub const SECTOR: usize = 512;

const TAG: u64 = 0xa5 << 56;
const IMAGE_TAG: u64 = 0x1a << 56;
const NUMBERS: u64 = 1 << 28;
const PLACES: u64 = 1 << 20;

/// The mark in the first and last 8 bytes of `sector` when write `number` of `family` put it there.
pub fn stamp(family: usize, number: u32, sector: u64) -> u64 {
    debug_assert!(number > 0 && u64::from(number) < NUMBERS, "numbers begin at 1 and fit");
    let place = (sector ^ (sector >> 20)) % PLACES;
    TAG | (family as u64 & 0xff) << 48 | u64::from(number) << 20 | place
}

/// The mark in a sector of an image.
pub fn image_stamp(image: u8, sector: u64) -> u64 {
    let place = (sector ^ (sector >> 20)) % PLACES;
    IMAGE_TAG | u64::from(image) << 48 | place
}

/// What is in a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Zeros,
    /// What this write of this family put there.
    Of {
        family: usize,
        number: u32,
    },
    /// What is there in this image, whoever wrote it.
    Image(u8),
}

/// What is in `sector`. Err: neither zeros nor anything that a write put there.
pub fn mark_in(sector: u64, bytes: &[u8]) -> Result<Mark, u64> {
    let head = u64::from_le_bytes(bytes[..8].try_into().expect("a sector has more than 8 bytes"));
    let tail = u64::from_le_bytes(bytes[SECTOR - 8..].try_into().expect("a sector has more than 8 bytes"));
    if head != tail {
        return Err(head);
    }
    if head == 0 {
        return Ok(Mark::Zeros);
    }
    if head >> 56 == IMAGE_TAG >> 56 {
        let image = (head >> 48) as u8;
        return if image_stamp(image, sector) == head { Ok(Mark::Image(image)) } else { Err(head) };
    }
    let (family, number) = ((head >> 48 & 0xff) as usize, ((head >> 20) % NUMBERS) as u32);
    let is_sound = number > 0 && stamp(family, number, sector) == head;
    if is_sound { Ok(Mark::Of { family, number }) } else { Err(head) }
}

/// What a read showed: sectors in order, and what is in each.
pub type Shown = Vec<(u64, Mark)>;

/// What is in the sectors from `first` on.
pub fn marks(first: u64, pieces: &[Buffer]) -> Result<Shown, String> {
    let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut stream = Stream { pieces, piece: 0, offset: 0, spanning: [0; SECTOR] };
    let sectors = first..first + (bytes / SECTOR) as u64;
    let mark = |sector| match mark_in(sector, stream.next()) {
        Ok(mark) => Ok((sector, mark)),
        Err(mark) => Err(format!("sector {sector} holds what no write put there: {mark:#018x}")),
    };
    sectors.map(mark).collect()
}

/// Goes over the pieces of a reply sector by sector.
struct Stream<'a> {
    pieces: &'a [Buffer],
    piece: usize,
    offset: usize,
    spanning: [u8; SECTOR],
}

impl Stream<'_> {
    fn next(&mut self) -> &[u8] {
        while self.offset == self.pieces[self.piece].len() {
            self.piece += 1;
            self.offset = 0;
        }
        let piece = self.pieces[self.piece].bytes();
        if piece.len() - self.offset >= SECTOR {
            self.offset += SECTOR;
            return &piece[self.offset - SECTOR..self.offset];
        }
        let mut filled = 0;
        while filled < SECTOR {
            let rest = &self.pieces[self.piece].bytes()[self.offset..];
            let part = rest.len().min(SECTOR - filled);
            self.spanning[filled..filled + part].copy_from_slice(&rest[..part]);
            filled += part;
            self.offset += part;
            if filled < SECTOR {
                self.piece += 1;
                self.offset = 0;
            }
        }
        &self.spanning
    }
}

/// The bytes of a write of whole sectors.
pub fn content(family: usize, number: u32, first_sector: u64, sectors: u64) -> Buffer {
    marked(number, first_sector, sectors, |sector| stamp(family, number, sector))
}

/// The bytes of a part of an image.
pub fn image_content(image: u8, first_sector: u64, sectors: u64) -> Buffer {
    marked(image.into(), first_sector, sectors, |sector| image_stamp(image, sector))
}

fn marked(kind: u32, first_sector: u64, sectors: u64, mark: impl Fn(u64) -> u64) -> Buffer {
    let len = sectors as usize * SECTOR;
    let mut pages = Pages::zeroed(len);
    let bytes = pages.bytes_mut();
    for index in 0..sectors {
        let mark = mark(first_sector + index).to_le_bytes();
        let at = index as usize * SECTOR;
        bytes[at..at + 8].copy_from_slice(&mark);
        fill(kind, u64::from_le_bytes(mark), &mut bytes[at + 8..at + SECTOR - 8]);
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
        let sector = &bytes.bytes()[2 * SECTOR..3 * SECTOR];
        assert_eq!(mark_in(1_000_002, sector), Ok(Mark::Of { family: 3, number: 77 }));
        assert!(mark_in(1_000_003, sector).is_err(), "misplaced");
        assert_eq!(mark_in(5, &[0; SECTOR]), Ok(Mark::Zeros));
        let image = image_content(2, 40, 8);
        assert_eq!(mark_in(43, &image.bytes()[3 * SECTOR..4 * SECTOR]), Ok(Mark::Image(2)));
        assert!(mark_in(44, &image.bytes()[3 * SECTOR..4 * SECTOR]).is_err(), "misplaced");
    }

    #[test]
    fn pieces_may_end_within_a_sector() {
        let bytes = content(2, 9, 40, 6);
        let pieces = [bytes.slice(0..700), bytes.slice(700..900), bytes.slice(900..6 * SECTOR)];
        let shown = marks(40, &pieces).expect("it is all of one write");
        let mark = Mark::Of { family: 2, number: 9 };
        assert_eq!(shown, (40..46).map(|sector| (sector, mark)).collect::<Vec<_>>());
    }
}
