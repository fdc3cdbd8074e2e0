//! Which reads of a vDisk belong to sequential streams, however many of them come interleaved, and how far each may be
//! read ahead.
//! Promises: a stream is known by three reads in a row, so random reads make none; so many streams at most, the one
//! that was read least lately goes first (I10).
//! Leaves to others: reading (`volume/ahead.rs`).

use crate::limits::Limits;
use std::collections::VecDeque;
use std::ops::Range;

/// Streams of one vDisk that are followed.
const STREAMS_MAX: usize = 32;

/// Reads that may turn out to begin a stream.
const CANDIDATES_MAX: usize = 64;

/// Reads that follow each other on before they count as a stream.
const FOLLOWERS: u32 = 2;

/// Several requests of one stream may come in another order than they were made: so far (bytes) from where it goes on, a
/// read still belongs to it.
const NEAR_BYTES: u64 = 512 << 10;

/// So many such reads, and none that went on where it should: it was none of ours.
const STRAYS_MAX: u32 = 8;

#[derive(Debug)]
struct Candidate {
    next: u64,
    followers: u32,
}

/// All places are bytes of the vDisk.
#[derive(Debug)]
struct Stream {
    next: u64,
    /// Up to here it was read ahead.
    ahead: u64,
    /// How far ahead it is read.
    window: u64,
    strays: u32,
    /// The job of the read before.
    last_job: u64,
}

/// What is known of a read when it comes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// It belongs to a stream.
    pub sequential: bool,
    /// What to read ahead now.
    pub wanted: Option<Range<u64>>,
}

#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// The one read last is at the end.
    streams: Vec<Stream>,
    /// Likewise.
    candidates: VecDeque<Candidate>,
}

impl Streams {
    /// A client reads. `room` is what all streams together may have ahead of them. `job` names this read, and `is_open` says
    /// whether an earlier one has no answer yet: who has several reads of a stream under way reads ahead by itself.
    pub fn on_read(
        &mut self,
        offset: u64,
        len: u64,
        job: u64,
        room: u64,
        limits: &Limits,
        is_open: impl Fn(u64) -> bool,
    ) -> Seen {
        let end = offset + len;
        let share = room / self.streams.len().max(1) as u64;
        let most = share.clamp(limits.ahead_bytes_begin, limits.ahead_bytes_max);
        if let Some(index) = self.streams.iter().position(|stream| stream.next == offset) {
            let mut stream = self.streams.remove(index);
            let goes_alone = !is_open(stream.last_job);
            stream.next = end;
            stream.strays = 0;
            stream.last_job = job;
            let wanted = if goes_alone { stream.wanted(len, most) } else { None };
            self.streams.push(stream);
            return Seen { sequential: true, wanted };
        }
        if let Some(index) = self.streams.iter().position(|stream| stream.next.abs_diff(offset) <= NEAR_BYTES)
        {
            let stream = &mut self.streams[index];
            stream.next = stream.next.max(end);
            stream.strays += 1;
            stream.last_job = job;
            if stream.strays > STRAYS_MAX {
                self.streams.remove(index);
            }
            return Seen { sequential: true, wanted: None };
        }
        let Some(index) = self.candidates.iter().position(|candidate| candidate.next == offset) else {
            if self.candidates.len() == CANDIDATES_MAX {
                self.candidates.pop_front();
            }
            self.candidates.push_back(Candidate { next: end, followers: 0 });
            return Seen { sequential: false, wanted: None };
        };
        let candidate = self.candidates.remove(index).expect("it was just found");
        let followers = candidate.followers + 1;
        if followers < FOLLOWERS {
            self.candidates.push_back(Candidate { next: end, followers });
            return Seen { sequential: false, wanted: None };
        }
        if self.streams.len() == STREAMS_MAX {
            self.streams.remove(0);
        }
        let window = limits.ahead_bytes_begin;
        let mut stream = Stream { next: end, ahead: end, window, strays: 0, last_job: job };
        let wanted = stream.wanted(len, most);
        self.streams.push(stream);
        Seen { sequential: true, wanted }
    }

    /// Of what was wanted for the last read, nothing from here on is under way: it is wanted again next time.
    pub fn stopped_at(&mut self, offset: u64) {
        if let Some(stream) = self.streams.last_mut() {
            stream.ahead = stream.ahead.min(offset);
        }
    }
}

impl Stream {
    /// With less than half of its window left ahead of it, the stream gets a whole one, which is twice as long from
    /// then on.
    fn wanted(&mut self, len: u64, most: u64) -> Option<Range<u64>> {
        let window = self.window.max(2 * len).min(most);
        let from = self.ahead.max(self.next);
        if from - self.next >= window.div_ceil(2) {
            return None;
        }
        self.ahead = self.next + window;
        self.window = (window * 2).min(most);
        (from < self.ahead).then_some(from..self.ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = 16 << 10;

    /// Reads one after the other, each answered before the next comes.
    fn read(streams: &mut Streams, offset: u64, len: u64) -> Seen {
        streams.on_read(offset, len, 1, 16 << 20, &Limits::default(), |_| false)
    }

    #[test]
    fn the_third_read_in_a_row_makes_a_stream_and_what_follows_is_wanted_once() {
        let mut streams = Streams::default();
        let mut wanted_to = 0;
        for at in 0..1000 {
            let seen = read(&mut streams, at * PIECE, PIECE);
            assert_eq!(seen.sequential, at >= 2, "read {at}");
            let end = (at + 1) * PIECE;
            if at == 2 {
                wanted_to = end;
            }
            if let Some(wanted) = seen.wanted {
                assert_eq!(wanted.start, wanted_to, "nothing is wanted twice, and nothing left out");
                assert!(wanted.end <= end + Limits::default().ahead_bytes_max, "not too far ahead");
                wanted_to = wanted.end;
            }
            assert!(at < 2 || wanted_to > end, "read {at} is followed by what was read ahead");
        }
    }

    #[test]
    fn the_window_grows_while_it_is_used() {
        let mut streams = Streams::default();
        let wanted: Vec<u64> = (0..200)
            .filter_map(|at| read(&mut streams, at * PIECE, PIECE).wanted)
            .map(|wanted| wanted.end - wanted.start)
            .collect();
        assert_eq!(wanted[0], Limits::default().ahead_bytes_begin);
        assert!(wanted.iter().any(|&bytes| bytes >= Limits::default().ahead_bytes_max / 2), "{wanted:?}");
    }

    #[test]
    fn streams_that_come_interleaved_with_each_other_and_with_random_reads_stay_streams() {
        let mut streams = Streams::default();
        let mut random = 1u64;
        for at in 0..100 {
            for stream in 0..STREAMS_MAX as u64 {
                let seen = read(&mut streams, (stream << 32) + at * PIECE, PIECE);
                assert_eq!(seen.sequential, at >= 2, "read {at} of stream {stream}");
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let seen = read(&mut streams, (1 << 40) + (random >> 24) * 4096, 4096);
                assert_eq!(seen, Seen { sequential: false, wanted: None });
            }
        }
    }

    #[test]
    fn many_streams_share_the_room_there_is() {
        let mut streams = Streams::default();
        let mut ahead = [0; STREAMS_MAX];
        for at in 0..400 {
            for (stream, ahead) in ahead.iter_mut().enumerate() {
                let end = ((stream as u64) << 32) + (at + 1) * PIECE;
                if let Some(wanted) = read(&mut streams, end - PIECE, PIECE).wanted {
                    *ahead = wanted.end - end;
                }
            }
        }
        assert!(ahead.iter().sum::<u64>() <= 16 << 20, "{ahead:?}");
        assert!(ahead.iter().all(|&bytes| bytes >= 128 << 10), "{ahead:?}");
    }

    #[test]
    fn random_reads_make_no_stream() {
        let mut streams = Streams::default();
        let mut random = 7u64;
        for _ in 0..100_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // A small vDisk, where neighbours are met by chance now and then.
            let seen = read(&mut streams, (random >> 33) % (1 << 18) * 4096, 4096);
            assert_eq!(seen.wanted, None);
        }
    }

    #[test]
    fn who_has_many_requests_under_way_needs_nobody_to_read_ahead() {
        let mut streams = Streams::default();
        for at in 0..100 {
            let seen = streams.on_read(at * PIECE, PIECE, at, 16 << 20, &Limits::default(), |job| job > 2);
            assert!(at < 4 || seen.wanted.is_none(), "read {at}");
            assert_eq!(seen.sequential, at >= 2);
        }
    }

    #[test]
    fn requests_of_a_stream_may_change_places() {
        let mut streams = Streams::default();
        let order = [0, 1, 2, 4, 3, 5, 6, 8, 7, 9, 10];
        let seen: Vec<bool> =
            order.iter().map(|at| read(&mut streams, at * PIECE, PIECE).sequential).collect();
        assert!(seen[2..].iter().all(|&sequential| sequential), "{seen:?}");
    }
}
