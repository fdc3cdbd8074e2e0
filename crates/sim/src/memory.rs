//! Where the pretend machine's memory comes from. Blocks and whole pages of them, and small pieces, are asked for and given
//! back millions of times; those are kept in lists by size instead of going back to the system each time.
//! Promises: of pages no more is kept than a bound, of small pieces no more than were once held. Everything else goes straight
//! to the system.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use weft_engine::buffer::{BLOCK, Buffer, Memory};

/// Sizes of up to this many pages are kept.
const CLASSES: usize = 257;
/// A thread keeps no more bytes than this.
const KEPT_MAX: usize = 256 << 20;

/// The allocator of the simulator and of its tests.
pub struct Recycler;

/// Small pieces come in sizes of so many bytes ...
const STEP: usize = 16;
/// ... up to this.
const SMALL_MAX: usize = 512;

thread_local! {
    /// Of each small size the first free piece, likewise.
    static SMALL: [Cell<*mut u8>; SMALL_MAX / STEP + 1] =
        const { [const { Cell::new(null_mut()) }; SMALL_MAX / STEP + 1] };
    /// Of each size the first free piece, which begins with the address of the next.
    static FREE: [Cell<*mut u8>; CLASSES] = const { [const { Cell::new(null_mut()) }; CLASSES] };
    static KEPT: Cell<usize> = const { Cell::new(0) };
}

/// The list for pieces of this layout, if there is one.
fn class(layout: Layout) -> Option<usize> {
    let pages = layout.size() / BLOCK;
    let whole = layout.align() == BLOCK && layout.size().is_multiple_of(BLOCK);
    (whole && pages > 0 && pages < CLASSES).then_some(pages)
}

/// The list for a small piece, and the layout that all in it have.
fn small(layout: Layout) -> Option<(usize, Layout)> {
    if layout.size() == 0 || layout.size() > SMALL_MAX || layout.align() > STEP {
        return None;
    }
    let class = layout.size().div_ceil(STEP);
    // SAFETY: the alignment is a power of two, and the size far from the largest.
    Some((class, unsafe { Layout::from_size_align_unchecked(class * STEP, STEP) }))
}

// SAFETY: pieces come from the system's allocator and are handed out to one holder at a time: a piece is in
// a list only between its release and the next request of exactly its layout.
unsafe impl GlobalAlloc for Recycler {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some((class, whole)) = small(layout) {
            let piece = SMALL.try_with(|small| small[class].get()).unwrap_or(null_mut());
            if piece.is_null() {
                // SAFETY: at least as large and as well aligned as what the caller wants.
                return unsafe { System.alloc(whole) };
            }
            // SAFETY: a piece in a list is one that nobody holds; its first bytes were set to the address of the next one
            // when it was given back.
            let next = unsafe { piece.cast::<*mut u8>().read() };
            SMALL.with(|small| small[class].set(next));
            return piece;
        }
        if let Some(class) = class(layout) {
            let piece = FREE.try_with(|free| free[class].get()).unwrap_or(null_mut());
            if !piece.is_null() {
                // SAFETY: a piece in a list is whole pages that nobody holds; its first bytes were set to the
                // address of the next one when it was given back.
                let next = unsafe { piece.cast::<*mut u8>().read() };
                FREE.with(|free| free[class].set(next));
                KEPT.with(|kept| kept.set(kept.get() - layout.size()));
                return piece;
            }
        }
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's as well.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if class(layout).is_none() && small(layout).is_none() {
            // SAFETY: the caller keeps the contract, which is the system's as well.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: the caller keeps the contract of `alloc`.
        let piece = unsafe { self.alloc(layout) };
        if !piece.is_null() {
            // SAFETY: the piece is `size` bytes, and ours alone until it is returned.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `realloc`: the size, rounded up to the alignment, fits.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (small(layout), small(wanted)) {
            (Some((before, _)), Some((after, _))) if before == after => return piece,
            (None, None) if class(layout).is_none() && class(wanted).is_none() => {
                // SAFETY: it came from the system with this layout.
                return unsafe { System.realloc(piece, layout, size) };
            }
            _ => {}
        }
        // SAFETY: the contract of `alloc` is kept as that of `realloc` is.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both are as long as the shorter of the two, and the new one was nobody's.
            unsafe { moved.copy_from_nonoverlapping(piece, layout.size().min(size)) };
            // SAFETY: the holder has given it up for the new one.
            unsafe { self.dealloc(piece, layout) };
        }
        moved
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if let Some((class, whole)) = small(layout) {
            match SMALL.try_with(|small| small[class].replace(piece)) {
                // SAFETY: the holder has given the piece up, and it is at least 16 bytes, aligned as an address.
                Ok(next) => unsafe { piece.cast::<*mut u8>().write(next) },
                // SAFETY: it came from the system with this layout.
                Err(_) => unsafe { System.dealloc(piece, whole) },
            }
            return;
        }
        if let Some(class) = class(layout) {
            let room = KEPT.try_with(Cell::get).is_ok_and(|kept| kept + layout.size() <= KEPT_MAX);
            if room {
                let next = FREE.with(|free| free[class].replace(piece));
                // SAFETY: the holder has given the piece up, and it is at least a page, aligned as a page.
                unsafe { piece.cast::<*mut u8>().write(next) };
                KEPT.with(|kept| kept.set(kept.get() + layout.size()));
                return;
            }
        }
        // SAFETY: it came from the system with this layout, at once or by way of a list.
        unsafe { System.dealloc(piece, layout) }
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; BLOCK]);

struct Gathered(Box<[Page]>);

impl Memory for Gathered {
    fn bytes(&self) -> &[u8] {
        // SAFETY: pages are bytes without gaps, one behind the other.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * BLOCK) }
    }
}

/// One buffer with the content of all `blocks` in order; None stands for zeros. Nothing is written twice.
pub fn gathered(blocks: &[Option<Buffer>]) -> Buffer {
    let mut pages = Box::<[Page]>::new_uninit_slice(blocks.len());
    for (page, block) in pages.iter_mut().zip(blocks) {
        let start = page.as_mut_ptr().cast::<u8>();
        match block {
            // SAFETY: a block has BLOCK bytes, as the page has, and they cannot overlap: the page is new.
            Some(block) => unsafe { start.copy_from_nonoverlapping(block.bytes()[..BLOCK].as_ptr(), BLOCK) },
            // SAFETY: the page has BLOCK bytes.
            None => unsafe { start.write_bytes(0, BLOCK) },
        }
    }
    // SAFETY: every page was written above.
    let pages: Box<[Page]> = unsafe { pages.assume_init() };
    let len = pages.len() * BLOCK;
    Buffer::of(std::sync::Arc::new(Gathered(pages)), len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathered_blocks_are_in_order_and_gaps_are_zeros() {
        // Memory that was used before, so that zeros must have been written.
        drop(Buffer::copied(&[9; 3 * BLOCK]));
        let buffer = gathered(&[Some(Buffer::copied(&[1; BLOCK])), None, Some(Buffer::copied(&[2; BLOCK]))]);
        assert_eq!(buffer.bytes()[..BLOCK], [1; BLOCK]);
        assert_eq!(buffer.bytes()[BLOCK..2 * BLOCK], [0; BLOCK]);
        assert_eq!(buffer.bytes()[2 * BLOCK..], [2; BLOCK]);
    }

    #[test]
    fn pieces_of_any_size_keep_their_bytes_as_they_grow_and_shrink() {
        for most in [40usize, 700, 3 * BLOCK] {
            let mut bytes: Vec<u8> = Vec::new();
            for index in 0..most {
                bytes.push(index as u8);
                bytes.shrink_to_fit();
            }
            let other = vec![7u8; most];
            bytes.truncate(most / 2);
            bytes.shrink_to_fit();
            assert!(bytes.iter().enumerate().all(|(index, &byte)| byte == index as u8));
            drop(other);
            assert!(vec![0u8; most].iter().all(|&byte| byte == 0), "what was used before");
        }
    }

    #[test]
    fn memory_that_comes_back_is_zero_when_zeros_are_asked_for() {
        drop(Buffer::copied(&[7; 5 * BLOCK]));
        let pages = weft_engine::buffer::Pages::zeroed(5 * BLOCK).freeze();
        assert!(weft_engine::buffer::is_zero(pages.bytes()));
    }
}
