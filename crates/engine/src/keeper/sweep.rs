//! Reading through a whole area at opening: large reads, several in flight, given out in order.
//! What cannot be read is read again block by block; a block that cannot be read at all counts as zeros, and is remembered.

use crate::buffer::{BLOCK, Buffer, Pages, zeros};
use crate::interface::{Area, DriveWork};
use crate::keeper::desk::{Desk, Work};
use std::collections::BTreeMap;

const CHUNK: u64 = 1 << 20;
const IN_FLIGHT: usize = 4;

enum Chunk {
    Reading,
    Read(Buffer),
    /// `left` blocks are still being read one by one.
    Piecewise {
        left: usize,
        pages: Pages,
    },
}

pub(super) struct Sweep {
    area: Area,
    submitted: u64,
    end: u64,
    /// By offset: what is in flight or not given out yet.
    chunks: BTreeMap<u64, Chunk>,
    /// Blocks that could not be read, by offset.
    unreadable: Vec<u64>,
}

impl Sweep {
    /// Reads bytes `from..end`, both whole blocks.
    pub fn begin(area: Area, from: u64, end: u64, desk: &mut Desk) -> Self {
        let mut sweep = Self { area, submitted: from, end, chunks: BTreeMap::new(), unreadable: Vec::new() };
        sweep.submit(desk);
        sweep
    }

    fn submit(&mut self, desk: &mut Desk) {
        while self.chunks.len() < IN_FLIGHT && self.submitted < self.end {
            let (offset, len) = (self.submitted, (self.end - self.submitted).min(CHUNK) as u32);
            self.chunks.insert(offset, Chunk::Reading);
            let work = Work::Sweep { area: self.area, offset, len };
            desk.submit(self.area, DriveWork::Read { offset, len }, work);
            self.submitted += u64::from(len);
        }
    }

    /// A read came back; None is what could not be read.
    pub fn on_read(&mut self, offset: u64, len: u32, bytes: Option<Buffer>, desk: &mut Desk) {
        let start = self.chunks.range(..=offset).next_back().map(|(start, _)| *start);
        let start = start.expect("only chunks that were begun are read");
        let chunk = self.chunks.get_mut(&start).expect("just found");
        let chunk_len = (self.end - start).min(CHUNK) as usize;
        match (&mut *chunk, bytes) {
            (Chunk::Reading, Some(bytes)) => *chunk = Chunk::Read(bytes),
            (Chunk::Reading, None) if chunk_len == BLOCK => {
                self.unreadable.push(offset);
                *chunk = Chunk::Read(zeros(BLOCK));
            }
            (Chunk::Reading, None) => {
                *chunk = Chunk::Piecewise { left: chunk_len / BLOCK, pages: Pages::zeroed(chunk_len) };
                for offset in (offset..offset + u64::from(len)).step_by(BLOCK) {
                    let work = Work::Sweep { area: self.area, offset, len: BLOCK as u32 };
                    desk.submit(self.area, DriveWork::Read { offset, len: BLOCK as u32 }, work);
                }
            }
            (Chunk::Piecewise { left, pages }, bytes) => {
                if let Some(bytes) = bytes {
                    let at = (offset - start) as usize;
                    pages.bytes_mut()[at..at + BLOCK].copy_from_slice(bytes.bytes());
                } else {
                    self.unreadable.push(offset);
                }
                *left -= 1;
                if *left == 0 {
                    let pages = std::mem::replace(pages, Pages::zeroed(0));
                    *chunk = Chunk::Read(pages.freeze());
                }
            }
            (Chunk::Read(_), _) => unreachable!("a chunk is read once"),
        }
    }

    /// The next chunk in order, if it has been read.
    pub fn next(&mut self, desk: &mut Desk) -> Option<(u64, Buffer)> {
        let first = self.chunks.first_entry()?;
        if !matches!(first.get(), Chunk::Read(_)) {
            return None;
        }
        let (offset, chunk) = first.remove_entry();
        self.submit(desk);
        match chunk {
            Chunk::Read(bytes) => Some((offset, bytes)),
            Chunk::Reading | Chunk::Piecewise { .. } => unreachable!("checked above"),
        }
    }

    /// Blocks of what was read that could not be, by offset, in any order.
    pub fn unreadable(&self) -> &[u64] {
        &self.unreadable
    }

    /// Whether everything was read and given out.
    pub fn is_done(&self) -> bool {
        self.submitted == self.end && self.chunks.is_empty()
    }
}
