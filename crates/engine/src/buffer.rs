//! Bytes that travel without being copied: counted, page-aligned, never changed once shared.
//! Promises: a [`Buffer`] may be given to a drive as it is when its start and length are whole pages.
//! Leaves to others: memory registered with the kernel, which the node brings as a [`Memory`].

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
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4096))]
struct Page([u8; BLOCK]);

/// Whole pages of memory that are still being filled by their one holder.
pub struct Pages(Vec<Page>);

impl Pages {
    /// Zeroed memory of `len` bytes, rounded up to whole pages.
    pub fn zeroed(len: usize) -> Self {
        Self(bytemuck::zeroed_vec(len.div_ceil(BLOCK)))
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
        Self(pages)
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }

    /// No more changes: the memory can be shared from here on.
    pub fn freeze(self) -> Buffer {
        let len = self.0.len() * BLOCK;
        Buffer::of(Arc::new(self), len)
    }
}

impl Memory for Pages {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
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

    /// The number of the registered memory it lies in, if it lies in one.
    pub fn registered(&self) -> Option<u16> {
        self.memory.registered()
    }

    /// Whether `next` is the memory right behind this buffer: then both can be one.
    pub fn is_followed_by(&self, next: &Buffer) -> bool {
        Arc::ptr_eq(&self.memory, &next.memory) && self.start + self.len == next.start
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

/// `len` zero bytes for which nothing is allocated anew; `len` is at most 1 MiB.
pub fn zeros(len: usize) -> Buffer {
    static ZEROS: std::sync::OnceLock<Buffer> = std::sync::OnceLock::new();
    ZEROS.get_or_init(|| Pages::zeroed(1 << 20).freeze()).slice(0..len)
}

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
