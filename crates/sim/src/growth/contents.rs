//! What lies on a drive's data area: blocks by number, shared with whoever wrote them, so that writing copies nothing.

use crate::memory::gathered;
use weft_engine::buffer::{BLOCK, Buffer};

pub struct Contents(Vec<Option<Buffer>>);

impl Contents {
    pub fn new(bytes: u64) -> Self {
        Self(vec![None; bytes as usize / BLOCK])
    }

    pub fn write(&mut self, offset: u64, pieces: &[Buffer]) {
        let mut block = offset as usize / BLOCK;
        for piece in pieces {
            for index in 0..piece.blocks() {
                self.0[block] = Some(piece.block(index));
                block += 1;
            }
        }
    }

    pub fn read(&self, offset: u64, len: u32) -> Buffer {
        let first = offset as usize / BLOCK;
        let blocks = &self.0[first..first + len as usize / BLOCK];
        // Units are often still beside each other in the memory they came from.
        let mut whole = blocks[0].clone();
        for block in &blocks[1..] {
            whole = match (whole, block) {
                (Some(before), Some(block)) if before.is_followed_by(block) => Some(before.joined(block)),
                _ => None,
            };
        }
        whole.unwrap_or_else(|| gathered(blocks))
    }

    pub fn discard(&mut self, offset: u64, len: u64) {
        let first = offset as usize / BLOCK;
        self.0[first..first + len as usize / BLOCK].fill(None);
    }
}
