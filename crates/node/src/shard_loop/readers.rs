//! Whether anybody reads from a drive beside what is written to it in large pieces.
//! Promises: a few reads for each MiB written, such as those of the map's own pages that large writes need, are nobody; whoever comes
//! or goes is noticed.
//! Leaves to others: what is done for readers (`drive_io`).

/// It is looked again when so much has been written.
const WINDOW_BYTES: usize = 8 << 20;

/// So many reads for that much are a reader's. Large writes alone make one or two.
const READS_MIN: usize = 4;

/// Each of so many windows readers are taken to be there: one who asks for one thing at a time may get no more than that behind writes
/// that go whole, and is noticed when they do not.
const LOOK_EVERY: usize = 16;

pub struct Readers {
    reads: usize,
    written: usize,
    windows: usize,
    are_there: bool,
}

impl Default for Readers {
    /// Until it is known, they are.
    fn default() -> Self {
        Self { reads: 0, written: 0, windows: 0, are_there: true }
    }
}

impl Readers {
    pub fn note_read(&mut self) {
        self.reads += 1;
    }

    pub fn note_write(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written >= WINDOW_BYTES {
            let windows = (self.windows + 1) % LOOK_EVERY;
            *self =
                Self { reads: 0, written: 0, windows, are_there: windows == 0 || self.reads >= READS_MIN };
        }
    }

    pub fn are_there(&self) -> bool {
        self.are_there || self.reads >= READS_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_come_and_go() {
        let mut readers = Readers::default();
        assert!(readers.are_there(), "nobody knows yet");
        for _ in 1..LOOK_EVERY {
            readers.note_read();
            readers.note_write(WINDOW_BYTES);
            assert!(!readers.are_there(), "one read for all of that is the map's");
        }
        readers.note_write(WINDOW_BYTES);
        assert!(readers.are_there(), "now and then it is tried");
        readers.note_write(WINDOW_BYTES);
        for _ in 0..READS_MIN {
            assert!(!readers.are_there());
            readers.note_read();
        }
        assert!(readers.are_there(), "at once");
        readers.note_write(WINDOW_BYTES);
        assert!(readers.are_there(), "they were in that window");
        readers.note_write(WINDOW_BYTES - 1);
        assert!(readers.are_there(), "the next is not over");
        readers.note_write(1);
        assert!(!readers.are_there());
    }

    /// A drive that works on what it has in turn, and a reader that asks for one thing at a time.
    #[test]
    fn who_gets_nothing_beside_whole_writes_is_noticed() {
        const WHOLE: usize = 8 << 20;
        const PIECE: usize = 256 << 10;
        let mut readers = Readers::default();
        for _ in 0..LOOK_EVERY {
            readers.note_write(WINDOW_BYTES);
        }
        let mut beside_pieces = 0;
        for _ in 0..1_000 {
            let ahead = if readers.are_there() { PIECE } else { WHOLE };
            readers.note_read();
            readers.note_write(ahead);
            beside_pieces += usize::from(ahead == PIECE);
        }
        assert!(beside_pieces >= 1_000 - LOOK_EVERY, "{beside_pieces} of its reads");
    }
}
