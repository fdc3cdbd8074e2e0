//! Bytes on their way to the client: small ones written here, payload as the buffers the engine gave.
//! Promises: payload is not copied, and let go as soon as it is sent; what was allocated is used again.
//! Leaves to others: sending (the node, with one `sendmsg` of many slices).

use std::collections::VecDeque;
use std::ops::Range;
use weft_engine::buffer::Buffer;

/// Memory kept for the next replies when a list becomes empty; what is more is given back.
const KEPT_BYTES: usize = 64 << 10;

/// A list of pieces to send in order. The memory that [`Outgoing::slices`] points to stays where it is until the
/// next push, so a list that the kernel works on is one that nobody adds to (see [`super::Connection::swap_outgoing`]).
#[derive(Debug, Default)]
pub struct Outgoing {
    /// The small bytes of all pieces, one behind the other.
    bytes: Vec<u8>,
    pieces: VecDeque<Piece>,
    /// How much of the first piece has been sent.
    first_sent: usize,
    /// Bytes not sent yet.
    len: usize,
    /// The sum of [`Piece::kept`].
    kept: usize,
}

/// So many pieces before a buffer are looked at for others of its memory: reads of what few large writes have brought take turns.
const LOOKED_BACK: usize = 32;

#[derive(Debug)]
enum Piece {
    /// These of `bytes`.
    Bytes(Range<usize>),
    /// Memory of which several pieces near each other are parts counts for the last of them, with which it goes.
    Buffer { buffer: Buffer, kept: usize },
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Bytes(range) => range.len(),
            Piece::Buffer { buffer, .. } => buffer.len(),
        }
    }

    /// Bytes of memory that are given back with it.
    fn kept(&self) -> usize {
        size_of::<Self>()
            + match self {
                Piece::Bytes(range) => range.len(),
                Piece::Buffer { kept, .. } => *kept,
            }
    }
}

impl Outgoing {
    /// Bytes not sent yet.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory that it stands for until it is sent. A reply may be a small part of what it keeps.
    pub fn memory_bytes(&self) -> usize {
        self.len.max(self.kept)
    }

    /// What is not sent yet, in order; no slice is empty.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().enumerate().map(|(index, piece)| {
            let bytes = match piece {
                Piece::Bytes(range) => &self.bytes[range.clone()],
                Piece::Buffer { buffer, .. } => buffer.bytes(),
            };
            if index == 0 { &bytes[self.first_sent..] } else { bytes }
        })
    }

    /// The first `count` bytes have been sent.
    pub fn sent(&mut self, count: usize) {
        assert!(count <= self.len, "no more can be sent than there is");
        self.len -= count;
        let mut sent = self.first_sent + count;
        while let Some(piece) = self.pieces.front() {
            if sent < piece.len() {
                break;
            }
            sent -= piece.len();
            self.kept -= piece.kept();
            self.pieces.pop_front();
        }
        self.first_sent = sent;
        if self.pieces.is_empty() {
            assert!(self.len == 0 && sent == 0, "an empty list has nothing to send");
            assert_eq!(self.kept, 0, "an empty list keeps nothing");
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_BYTES);
        }
    }

    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.len += bytes.len();
        self.kept += bytes.len();
        match self.pieces.back_mut() {
            // All small bytes lie one behind the other, so if the last piece is of them, it ends where these begin.
            Some(Piece::Bytes(range)) => range.end = self.bytes.len(),
            _ => {
                self.pieces.push_back(Piece::Bytes(start..self.bytes.len()));
                self.kept += size_of::<Piece>();
            }
        }
    }

    pub(super) fn push_buffer(&mut self, buffer: Buffer) {
        if buffer.is_empty() {
            return;
        }
        let before = self.pieces.iter_mut().rev().take(LOOKED_BACK).find_map(|piece| match piece {
            Piece::Buffer { buffer: before, kept } if before.shares_memory(&buffer) => Some(kept),
            Piece::Buffer { .. } | Piece::Bytes(_) => None,
        });
        if let Some(kept) = before {
            self.kept -= std::mem::take(kept);
        }
        self.len += buffer.len();
        let piece = Piece::Buffer { kept: buffer.kept_len(), buffer };
        self.kept += piece.kept();
        self.pieces.push_back(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_sent_in_order_however_they_are_cut() {
        for step in 1..30 {
            let mut outgoing = Outgoing::default();
            outgoing.push_bytes(b"one ");
            outgoing.push_bytes(b"two ");
            outgoing.push_buffer(Buffer::copied(b"three "));
            outgoing.push_buffer(Buffer::copied(b""));
            outgoing.push_bytes(b"four");
            assert_eq!(outgoing.slices().count(), 3, "small bytes side by side are one piece");
            let mut sent = Vec::new();
            while !outgoing.is_empty() {
                let all: Vec<u8> = outgoing.slices().flatten().copied().collect();
                assert_eq!(all.len(), outgoing.len());
                let count = step.min(all.len());
                sent.extend_from_slice(&all[..count]);
                outgoing.sent(count);
            }
            assert_eq!(sent, b"one two three four");
            assert_eq!(outgoing.slices().count(), 0);
        }
    }

    #[test]
    fn memory_counts_until_the_last_part_of_it_is_sent() {
        let large = Buffer::copied(&vec![7; 1 << 20]);
        let mut outgoing = Outgoing::default();
        for at in 0..100 {
            outgoing.push_bytes(b"header");
            outgoing.push_buffer(large.slice(at..at + 1));
        }
        let little = 100 * 2 * size_of::<Piece>() + 100 * 6;
        let is_once = |outgoing: &Outgoing| (1 << 20..=(1 << 20) + little).contains(&outgoing.memory_bytes());
        assert!(is_once(&outgoing), "{}", outgoing.memory_bytes());
        outgoing.sent(99 * 7 + 6);
        assert!(outgoing.len() == 1 && is_once(&outgoing), "{}", outgoing.memory_bytes());
        outgoing.sent(1);
        assert_eq!(outgoing.memory_bytes(), 0);
        let others: Vec<Buffer> = (0..4).map(|_| Buffer::copied(&vec![7; 1 << 20])).collect();
        for at in 0..20 {
            outgoing.push_buffer(others[at % 4].slice(at..at + 1));
        }
        assert!((4 << 20..5 << 20).contains(&outgoing.memory_bytes()), "{}", outgoing.memory_bytes());
        outgoing.sent(20);
        assert_eq!(outgoing.memory_bytes(), 0);
    }
}
