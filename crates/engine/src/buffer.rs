//! Bytes that travel without being copied: counted, page-aligned, never changed once shared.
//! Promises: a [`Buffer`] may be given to a drive as it is when its start and length are whole pages.
//! Leaves to others: memory registered with the kernel, which the node brings as a [`Memory`].

use crate::checksum::{BlockSums, crc32c, with_block};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a block, the grain of the map, of checksums and of drive transfers.
pub const BLOCK: usize = 4096;

/// Memory that somebody else allocated, such as a registered arena. It must not change while shared.
pub trait Memory: Send + Sync {
    fn bytes(&self) -> &[u8];

    /// The number under which the kernel knows this memory, where it is registered.
    fn registered(&self) -> Option<u16> {
        None
    }

    /// Where the checksums of its blocks are remembered, if anywhere. What is remembered when it begins to be shared is right.
    fn sums(&self) -> Option<&BlockSums> {
        None
    }
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; BLOCK]);

/// Whole pages of memory that are still being filled by their one holder.
pub struct Pages {
    pages: Vec<Page>,
    sums: BlockSums,
}

impl Pages {
    /// Zeroed memory of `len` bytes, rounded up to whole pages.
    pub fn zeroed(len: usize) -> Self {
        Self { pages: bytemuck::zeroed_vec(len.div_ceil(BLOCK)), sums: BlockSums::default() }
    }

    /// Page-aligned memory that holds `bytes`, and zeros up to the next page.
    pub fn copied(bytes: &[u8]) -> Self {
        // Each byte is written once: not zeros first.
        let (whole, rest) = bytes.as_chunks::<BLOCK>();
        let mut pages = Vec::with_capacity(bytes.len().div_ceil(BLOCK));
        pages.extend(whole.iter().map(|chunk| Page(*chunk)));
        if !rest.is_empty() {
            let mut last = Page([0; BLOCK]);
            last.0[..rest.len()].copy_from_slice(rest);
            pages.push(last);
        }
        Self { pages, sums: BlockSums::default() }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.sums = BlockSums::default();
        bytemuck::cast_slice_mut(&mut self.pages)
    }

    /// No more changes: the memory can be shared from here on.
    pub fn freeze(self) -> Buffer {
        let len = self.pages.len() * BLOCK;
        Buffer::of(Arc::new(self), len)
    }
}

impl Memory for Pages {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.pages)
    }

    fn sums(&self) -> Option<&BlockSums> {
        Some(&self.sums)
    }
}

/// A counted piece of memory. Cloning and slicing copy no bytes.
#[derive(Clone)]
pub struct Buffer {
    memory: Arc<dyn Memory>,
    start: u32,
    len: u32,
}

impl Buffer {
    /// The first `len` bytes of `memory`.
    pub fn of(memory: Arc<dyn Memory>, len: usize) -> Self {
        assert!(len <= memory.bytes().len(), "a buffer lies inside its memory");
        Self { memory, start: 0, len: u32::try_from(len).expect("a buffer is smaller than 4 GiB") }
    }

    /// Page-aligned memory that holds a copy of `bytes`; its length is that of `bytes`.
    pub fn copied(bytes: &[u8]) -> Self {
        Self::of(Arc::new(Pages::copied(bytes)), bytes.len())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.memory.bytes()[self.start as usize..(self.start + self.len) as usize]
    }

    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the memory that is not given back while this buffer is there, of which it may be a small part. Zeros that all share
    /// are there anyway.
    pub fn kept_len(&self) -> usize {
        let is_zeros = ZEROS.get().is_some_and(|zeros| zeros.shares_memory(self));
        if is_zeros { 0 } else { self.memory.bytes().len() }
    }

    /// Whether both keep the same memory.
    pub fn shares_memory(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
    }

    /// A part of it, sharing the memory. `range` is in bytes and lies inside.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "a slice lies inside its buffer");
        Self {
            memory: Arc::clone(&self.memory),
            start: self.start + range.start as u32,
            len: (range.end - range.start) as u32,
        }
    }

    /// Block `index` of it.
    pub fn block(&self, index: usize) -> Self {
        self.slice(index * BLOCK..(index + 1) * BLOCK)
    }

    /// How many whole blocks it has.
    pub fn blocks(&self) -> usize {
        self.len() / BLOCK
    }

    /// CRC-32C of all of it. Of whole blocks it is computed once, and remembered with the memory.
    pub fn checksum(&self) -> u32 {
        let sum = self.block_sums().and_then(|_| self.block_checksums().reduce(with_block));
        sum.unwrap_or_else(|| crc32c(self.bytes()))
    }

    /// CRC-32C of each whole block of it, likewise.
    pub fn block_checksums(&self) -> impl Iterator<Item = u32> {
        let (memory, sums) = (self.memory.bytes(), self.block_sums());
        (0..self.blocks()).map(move |block| match sums {
            Some((first, sums)) => sums.of_block(memory, first + block),
            None => crc32c(&self.bytes()[block * BLOCK..(block + 1) * BLOCK]),
        })
    }

    /// Whether all bytes are zero. Of a block whose checksum is known they are not even looked at, if it is not that of zeros.
    pub fn is_zero(&self) -> bool {
        if self.len() == BLOCK
            && let Some((first, sums)) = self.block_sums()
            && sums.known(first).is_some_and(|sum| sum != ZERO_BLOCK_SUM)
        {
            return false;
        }
        is_zero(self.bytes())
    }

    /// Where the checksums of its blocks are remembered, and which the first one is there; None if they are not.
    fn block_sums(&self) -> Option<(usize, &BlockSums)> {
        let is_whole = (self.start as usize).is_multiple_of(BLOCK) && self.len().is_multiple_of(BLOCK);
        Some((self.start as usize / BLOCK, self.memory.sums().filter(|_| is_whole)?))
    }

    /// The number of the registered memory it lies in, if it lies in one.
    pub fn registered(&self) -> Option<u16> {
        self.memory.registered()
    }

    /// Whether `next` is the memory right behind this buffer: then both can be one.
    pub fn is_followed_by(&self, next: &Buffer) -> bool {
        self.shares_memory(next) && self.start + self.len == next.start
    }

    /// This buffer and the one that follows it in the same memory, as one.
    pub fn joined(&self, next: &Buffer) -> Self {
        assert!(self.is_followed_by(next), "only neighbours in memory can be joined");
        Self { memory: Arc::clone(&self.memory), start: self.start, len: self.len + next.len }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Buffer {}

static ZEROS: std::sync::OnceLock<Buffer> = std::sync::OnceLock::new();

/// `len` zero bytes for which nothing is allocated anew; `len` is at most 1 MiB.
pub fn zeros(len: usize) -> Buffer {
    ZEROS.get_or_init(|| Pages::zeroed(1 << 20).freeze()).slice(0..len)
}

/// Of a block of zeros.
const ZERO_BLOCK_SUM: u32 = 0x98f9_4189;

/// Whether all bytes are zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    // Wide words first: a block that is not zero is usually told by its first word.
    let (head, words, tail) = bytemuck::pod_align_to::<u8, u128>(bytes);
    head.iter().all(|&b| b == 0) && words.iter().all(|&w| w == 0) && tail.iter().all(|&b| b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_and_join_again() {
        let whole = Buffer::copied(&[7; 3 * BLOCK]);
        let (a, b) = (whole.block(0), whole.block(1));
        assert!(a.is_followed_by(&b) && !b.is_followed_by(&a));
        assert_eq!(a.joined(&b).len(), 2 * BLOCK);
        assert_eq!(whole.bytes().as_ptr() as usize % BLOCK, 0, "drives need whole pages");
    }

    #[test]
    fn a_part_keeps_the_whole() {
        let whole = Buffer::copied(&[7; 3 * BLOCK]);
        let part = whole.slice(5..6);
        assert_eq!((part.len(), part.kept_len()), (1, 3 * BLOCK));
        assert!(part.shares_memory(&whole) && !part.shares_memory(&Buffer::copied(&[7])));
        assert_eq!(zeros(BLOCK).kept_len(), 0, "nobody has to give them back");
    }

    #[test]
    fn checksums_are_those_of_the_bytes() {
        let mut pages = Pages::zeroed(4 * BLOCK);
        for (place, byte) in pages.bytes_mut().iter_mut().enumerate() {
            *byte = (place % 251) as u8;
        }
        let whole = pages.freeze();
        let parts = [0..4 * BLOCK, BLOCK..3 * BLOCK, 2 * BLOCK..3 * BLOCK, 5..BLOCK + 5, 0..BLOCK + 1, 0..0];
        for _ in 0..2 {
            for part in parts.clone() {
                let part = whole.slice(part);
                assert_eq!(part.checksum(), crc32c(part.bytes()));
            }
            for part in [BLOCK..4 * BLOCK, 5..2 * BLOCK + 6] {
                let part = whole.slice(part);
                let blocks = part.bytes().chunks_exact(BLOCK).map(crc32c);
                assert!(part.block_checksums().eq(blocks));
            }
        }
    }

    #[test]
    fn memory_that_is_filled_again_has_other_checksums() {
        let mut pages = Pages::copied(&[7; BLOCK]);
        assert_eq!(pages.sums.of_block(pages.bytes(), 0), crc32c(&[7; BLOCK]));
        pages.bytes_mut().fill(8);
        assert_eq!(pages.freeze().checksum(), crc32c(&[8; BLOCK]));
    }

    #[test]
    fn zeros_are_known_by_their_checksum() {
        assert_eq!(crc32c(&[0; BLOCK]), ZERO_BLOCK_SUM);
        for (byte, zero) in [(0, true), (1, false)] {
            let buffer = Buffer::copied(&[byte; BLOCK]);
            assert_eq!(buffer.is_zero(), zero);
            buffer.checksum();
            assert_eq!(buffer.is_zero(), zero, "also when its checksum is known");
        }
    }

    #[test]
    fn zero_is_told_from_nearly_zero() {
        let mut bytes = vec![0; BLOCK];
        assert!(is_zero(&bytes));
        for place in [0, 1, 2047, 4095] {
            bytes[place] = 1;
            assert!(!is_zero(&bytes));
            bytes[place] = 0;
        }
    }
}
