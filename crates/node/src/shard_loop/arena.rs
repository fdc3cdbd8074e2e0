//! Page-aligned memory that is used again and again: what comes from sockets and drives lands here.
//! Promises: no allocation, clearing or page fault on the data path while there is room; a piece returns when the
//! last buffer that shares it is dropped, on whatever thread. When there is no room the heap serves.
//! Leaves to others: registering the memory with the ring (`ring`).

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};
use weft_engine::buffer::{BLOCK, Buffer, Memory, Pages};
use weft_engine::checksum::BlockSums;

/// The arena is cut into chunks; each serves pieces of one size at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// What is longer than a chunk, such as an egroup that comes from another node, lies in the heap, in this much ...
const LARGE_BYTES: usize = 4 << 20;

/// ... and so many of those are kept: fresh memory of that size would be cleared twice, by the kernel and by us.
const LARGE_KEPT: usize = 4;

/// Sizes of pieces: 4 KiB, 8 KiB, ... 1 MiB.
const CLASSES: usize = 9;

/// A stretch of memory given out in pieces.
pub struct Arena {
    base: *mut u8,
    len: usize,
    /// The number under which the ring knows it.
    registered: Option<u16>,
    free: Mutex<Free>,
    /// Large memory that nobody uses.
    large: Mutex<Vec<Pages>>,
}

// SAFETY: the memory behind `base` is owned by the arena; each piece of it has one holder (`free` sees to that), and
// that holder shares it only after it stopped changing it.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

struct Free {
    chunks: Vec<Chunk>,
    /// Chunks of which no piece is in use. The lowest is taken first, so that memory once touched is touched again.
    empty: BTreeSet<u32>,
    /// For each class the chunks with free pieces.
    partial: [Vec<u32>; CLASSES],
}

#[derive(Default)]
struct Chunk {
    class: usize,
    /// Numbers of free pieces.
    free: Vec<u16>,
}

fn class_of(len: usize) -> usize {
    len.max(BLOCK).next_power_of_two().trailing_zeros() as usize - BLOCK.trailing_zeros() as usize
}

fn class_bytes(class: usize) -> usize {
    BLOCK << class
}

impl Arena {
    /// `len` bytes, a multiple of 1 MiB. The machine's memory is taken only as it is touched.
    pub fn new(len: usize) -> io::Result<Self> {
        assert!(len > 0 && len.is_multiple_of(CHUNK_BYTES), "an arena is made of whole chunks");
        // SAFETY: a new anonymous mapping; nothing else knows it.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let chunks = len / CHUNK_BYTES;
        let free = Free {
            chunks: (0..chunks).map(|_| Chunk::default()).collect(),
            empty: (0..chunks as u32).collect(),
            partial: std::array::from_fn(|_| Vec::new()),
        };
        Ok(Self { base: base.cast(), len, registered: None, free: Mutex::new(free), large: Mutex::default() })
    }

    /// Its whole memory, for registering it.
    pub fn span(&self) -> libc::iovec {
        libc::iovec { iov_base: self.base.cast(), iov_len: self.len }
    }

    /// The kernel knows all of it under this number from now on.
    pub fn set_registered(&mut self, number: u16) {
        self.registered = Some(number);
    }

    /// Memory for `len` bytes whose content is arbitrary; from the heap if there is no room here, or if it is large.
    pub fn take(self: &Arc<Self>, len: usize) -> Space {
        if len <= CHUNK_BYTES {
            let class = class_of(len);
            let mut free = self.free.lock().expect("no holder of this lock panics");
            if let Some((chunk, piece)) = free.take(class) {
                let start = chunk as usize * CHUNK_BYTES + piece as usize * class_bytes(class);
                return Space::Arena(Piece {
                    arena: Arc::clone(self),
                    chunk,
                    piece,
                    start,
                    len: class_bytes(class),
                    sums: BlockSums::default(),
                });
            }
        }
        if len > CHUNK_BYTES && len <= LARGE_BYTES {
            let kept = self.large.lock().expect("no holder of this lock panics").pop();
            let pages = kept.unwrap_or_else(|| Pages::zeroed(LARGE_BYTES));
            return Space::Large(Large { arena: Arc::clone(self), pages });
        }
        Space::Heap(Pages::zeroed(len))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: pieces keep the arena alive, so nothing points into the mapping any more.
        let result = unsafe { libc::munmap(self.base.cast(), self.len) };
        assert!(result == 0, "an arena's own mapping can be unmapped");
    }
}

impl Free {
    fn take(&mut self, class: usize) -> Option<(u32, u16)> {
        if self.partial[class].is_empty() {
            let chunk = self.empty.pop_first().or_else(|| self.uncut())?;
            let pieces = (CHUNK_BYTES / class_bytes(class)) as u16;
            let entry = &mut self.chunks[chunk as usize];
            assert!(entry.free.is_empty(), "an empty chunk has no pieces cut");
            entry.class = class;
            entry.free.extend((0..pieces).rev());
            self.partial[class].push(chunk);
        }
        let chunk = *self.partial[class].last().expect("a chunk with free pieces was just ensured");
        let entry = &mut self.chunks[chunk as usize];
        let piece = entry.free.pop().expect("a partial chunk has a free piece");
        if entry.free.is_empty() {
            self.partial[class].pop();
        }
        Some((chunk, piece))
    }

    /// A chunk that is cut for another size and not used.
    fn uncut(&mut self) -> Option<u32> {
        for (class, partial) in self.partial.iter_mut().enumerate() {
            let whole = CHUNK_BYTES / class_bytes(class);
            let unused = partial.iter().position(|&chunk| self.chunks[chunk as usize].free.len() == whole);
            if let Some(position) = unused {
                let chunk = partial.swap_remove(position);
                self.chunks[chunk as usize].free.clear();
                return Some(chunk);
            }
        }
        None
    }

    fn give(&mut self, chunk: u32, piece: u16) {
        let entry = &mut self.chunks[chunk as usize];
        let class = entry.class;
        entry.free.push(piece);
        if entry.free.len() == 1 {
            self.partial[class].push(chunk);
        }
        // One chunk of each class in use stays cut, or a lone piece would cut its chunk anew each time.
        let entry = &mut self.chunks[chunk as usize];
        if entry.free.len() == CHUNK_BYTES / class_bytes(class) && self.partial[class].len() > 1 {
            entry.free.clear();
            self.partial[class].retain(|&other| other != chunk);
            self.empty.insert(chunk);
        }
    }
}

/// A piece of an arena in use.
pub struct Piece {
    arena: Arc<Arena>,
    chunk: u32,
    piece: u16,
    start: usize,
    len: usize,
    /// Those of nobody until it is shared.
    sums: BlockSums,
}

impl Memory for Piece {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies in the mapping, which lives as long as `arena`, and belongs to this piece alone.
        // Nobody changes it while it is shared: `bytes_mut` needs the only holder.
        unsafe { std::slice::from_raw_parts(self.arena.base.add(self.start), self.len) }
    }

    fn registered(&self) -> Option<u16> {
        self.arena.registered
    }

    fn sums(&self) -> Option<&BlockSums> {
        Some(&self.sums)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.arena.free.lock().expect("no holder of this lock panics").give(self.chunk, self.piece);
    }
}

/// Large memory in use.
pub struct Large {
    arena: Arc<Arena>,
    pages: Pages,
}

impl Memory for Large {
    fn bytes(&self) -> &[u8] {
        self.pages.bytes()
    }

    fn sums(&self) -> Option<&BlockSums> {
        self.pages.sums()
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        let mut kept = self.arena.large.lock().expect("no holder of this lock panics");
        if kept.len() < LARGE_KEPT {
            kept.push(std::mem::replace(&mut self.pages, Pages::zeroed(0)));
        }
    }
}

/// Memory that is being filled by its one holder: by the kernel or by us.
pub enum Space {
    Arena(Piece),
    Large(Large),
    Heap(Pages),
}

impl Space {
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            // SAFETY: as in `Piece::bytes`; `&mut self` is the only holder.
            Space::Arena(piece) => unsafe {
                std::slice::from_raw_parts_mut(piece.arena.base.add(piece.start), piece.len)
            },
            Space::Large(large) => large.pages.bytes_mut(),
            Space::Heap(pages) => pages.bytes_mut(),
        }
    }

    /// The number of the registered memory it lies in.
    pub fn registered(&self) -> Option<u16> {
        match self {
            Space::Arena(piece) => piece.registered(),
            Space::Large(_) | Space::Heap(_) => None,
        }
    }

    /// The first `len` bytes, all of which have been filled, to be shared from here on.
    pub fn freeze(self, len: usize) -> Buffer {
        match self {
            Space::Arena(piece) => Buffer::of(Arc::new(piece), len),
            Space::Large(large) => Buffer::of(Arc::new(large), len),
            Space::Heap(pages) => pages.freeze().slice(0..len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};
    use weft_engine::checksum::crc32c;

    #[test]
    fn pieces_never_overlap_and_all_of_them_return() {
        let arena = Arc::new(Arena::new(4 << 20).expect("4 MiB can be mapped"));
        let mut random = SmallRng::seed_from_u64(7);
        let mut held: Vec<(u8, Buffer)> = Vec::new();
        for round in 0..20_000 {
            if random.random_bool(0.5) || held.is_empty() {
                let longest = 1 << random.random_range(1..21);
                let len = 1 + random.random_range(0..longest);
                let mut space = arena.take(len);
                let mark = round as u8;
                space.bytes_mut()[..len].fill(mark);
                assert_eq!(space.bytes_mut().as_ptr() as usize % BLOCK, 0, "drives need whole pages");
                held.push((mark, space.freeze(len)));
            } else {
                let (mark, buffer) = held.swap_remove(random.random_range(0..held.len()));
                assert!(buffer.bytes().iter().all(|&byte| byte == mark), "nobody else wrote there");
            }
            if held.len() > 40 {
                held.clear();
            }
        }
        held.clear();
        // Everything returned: the whole arena can be had in its largest pieces.
        let whole: Vec<_> = (0..4).map(|_| arena.take(1 << 20)).collect();
        assert!(whole.iter().all(|space| matches!(space, Space::Arena(_))), "chunks serve other sizes again");
    }

    #[test]
    fn a_full_arena_sends_to_the_heap() {
        let arena = Arc::new(Arena::new(1 << 20).expect("1 MiB can be mapped"));
        let first = arena.take(1 << 20);
        assert!(matches!(first, Space::Arena(_)));
        assert!(matches!(arena.take(4096), Space::Heap(_)));
        drop(first);
        assert!(matches!(arena.take(1 << 20), Space::Arena(_)));
        assert!(matches!(arena.take((1 << 20) + 1), Space::Large(_)), "no piece is larger than a chunk");
        assert!(matches!(arena.take((4 << 20) + 1), Space::Heap(_)), "what is larger still is not kept");
    }

    #[test]
    fn memory_that_is_used_again_has_the_checksums_of_what_is_in_it_now() {
        let arena = Arc::new(Arena::new(1 << 20).expect("1 MiB can be mapped"));
        for len in [BLOCK, 8 * BLOCK, 3 << 20] {
            let mut places = BTreeSet::new();
            for byte in 0..3 {
                let mut space = arena.take(len);
                space.bytes_mut().fill(byte);
                places.insert(space.bytes_mut().as_ptr());
                let buffer = space.freeze(len);
                assert_eq!(buffer.checksum(), crc32c(&vec![byte; len]));
                assert_eq!(buffer.block(len / BLOCK - 1).checksum(), crc32c(&[byte; BLOCK]));
            }
            assert_eq!(places.len(), 1, "the same memory each time");
        }
    }

    #[test]
    fn large_memory_is_used_again_and_little_of_it_is_kept() {
        let arena = Arc::new(Arena::new(1 << 20).expect("1 MiB can be mapped"));
        let mut space = arena.take(3 << 20);
        space.bytes_mut().fill(7);
        let at = space.bytes_mut().as_ptr();
        let buffer = space.freeze(3 << 20);
        assert_eq!(buffer.len(), 3 << 20);
        let part = buffer.slice(0..BLOCK);
        drop(buffer);
        assert!(arena.large.lock().unwrap().is_empty(), "a part of it is still used");
        assert_eq!(part.bytes(), [7; BLOCK]);
        drop(part);
        assert_eq!(arena.take(2 << 20).bytes_mut().as_ptr(), at, "the same memory again");
        let many: Vec<_> = (0..3 * LARGE_KEPT).map(|_| arena.take(2 << 20)).collect();
        drop(many);
        assert_eq!(arena.large.lock().unwrap().len(), LARGE_KEPT);
    }
}
