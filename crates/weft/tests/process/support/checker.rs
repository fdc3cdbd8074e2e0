//! Knows for every block the last acknowledged content and everything submitted after it.
//! Promises: a block that reads as anything else, or as a mixture, fails the test (I1, I5).

use super::nbd::{NbdClient, TRIM, WRITE_ZEROES};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

pub const BLOCK: usize = 4096;

/// Blocks of one large write at most: enough to go around the log now and then.
const LARGE_BLOCKS: usize = 128;

/// Version 0 reads as zeros, and so does every version whose write was one of zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Version {
    number: u64,
    zeros: bool,
}

#[derive(Clone)]
struct BlockState {
    acknowledged: Version,
    /// Submitted after it, with no reply or a failed one: each may be there or not.
    uncertain: Vec<Version>,
    in_flight: bool,
}

#[derive(Clone)]
struct OpenRequest {
    first: usize,
    count: usize,
    /// None for a read.
    version: Option<Version>,
    submitted: Instant,
}

#[derive(Clone)]
pub struct Checker {
    blocks: Vec<BlockState>,
    random: SmallRng,
    version: u64,
    open: HashMap<u64, OpenRequest>,
    pub acknowledged: u64,
    /// Of a hundred requests so many are large writes.
    pub large: u32,
    /// The longest that any request took.
    slowest: Duration,
}

impl Checker {
    pub fn new(blocks: usize, seed: u64) -> Self {
        let fresh = BlockState {
            acknowledged: Version { number: 0, zeros: true },
            uncertain: Vec::new(),
            in_flight: false,
        };
        Self {
            blocks: vec![fresh; blocks],
            random: SmallRng::seed_from_u64(seed),
            version: 0,
            open: HashMap::new(),
            acknowledged: 0,
            large: 10,
            slowest: Duration::ZERO,
        }
    }

    /// Keeps `depth` random requests in flight until `count` have been answered since the call.
    pub fn load(&mut self, client: &mut NbdClient, depth: usize, count: u64) -> io::Result<()> {
        let mut answered = 0;
        while answered < count {
            while client.in_flight() < depth {
                self.submit(client)?;
            }
            self.take_reply(client)?;
            answered += 1;
        }
        Ok(())
    }

    /// Takes the replies that are still on their way; the end of the connection ends it.
    pub fn drain(&mut self, client: &mut NbdClient) {
        while client.in_flight() > 0 && self.take_reply(client).is_ok() {}
    }

    /// Whatever was not answered may have been done or not.
    pub fn connection_lost(&mut self) {
        for request in std::mem::take(&mut self.open).into_values() {
            for state in &mut self.blocks[request.first..request.first + request.count] {
                state.in_flight = false;
            }
        }
    }

    fn submit(&mut self, client: &mut NbdClient) -> io::Result<()> {
        let kind = self.random.random_range(0..100);
        let is_large = (90 - self.large..90).contains(&kind);
        let wanted = if is_large { self.random.random_range(2..=LARGE_BLOCKS) } else { 1 };
        let Some((first, count)) = self.pick(wanted) else { return self.take_reply(client) };
        let offset = (first * BLOCK) as u64;
        let bytes = (count * BLOCK) as u32;
        let is_read = kind >= 95;
        let version = (!is_read).then(|| {
            self.version += 1;
            Version { number: self.version, zeros: (90..95).contains(&kind) }
        });
        for state in &mut self.blocks[first..first + count] {
            state.in_flight = true;
            // Before it is sent: a send that breaks off may have arrived.
            state.uncertain.extend(version);
        }
        // The client counts cookies; the request is entered under the one it will have.
        let request = OpenRequest { first, count, version, submitted: Instant::now() };
        let sent = match version {
            None => client.submit_read(offset, bytes),
            Some(version) if version.zeros => {
                let command = if version.number % 2 == 0 { TRIM } else { WRITE_ZEROES };
                client.submit(command, 0, offset, bytes, &[])
            }
            Some(version) => {
                let data: Vec<u8> =
                    (first..first + count).flat_map(|block| content(block, version.number)).collect();
                client.submit_write(offset, &data)
            }
        };
        match sent {
            Ok(cookie) => {
                self.open.insert(cookie, request);
                Ok(())
            }
            Err(error) => {
                for state in &mut self.blocks[first..first + count] {
                    state.in_flight = false;
                }
                Err(error)
            }
        }
    }

    /// A run of blocks that nothing is in flight on.
    fn pick(&mut self, wanted: usize) -> Option<(usize, usize)> {
        for _ in 0..1000 {
            let first = self.random.random_range(0..self.blocks.len());
            let run = self.blocks[first..].iter().take(wanted).take_while(|state| !state.in_flight).count();
            if run > 0 {
                return Some((first, run));
            }
        }
        None
    }

    /// The longest that any request took since the last time it was asked.
    pub fn take_slowest(&mut self) -> Duration {
        std::mem::take(&mut self.slowest)
    }

    /// The vDisk is again what it was when `past` knew it. What is written from now on has numbers that nothing had.
    pub fn went_back_to(&mut self, past: &Checker) {
        assert!(self.open.is_empty(), "nothing is in flight when a vDisk goes back");
        self.blocks.clone_from(&past.blocks);
    }

    /// What was read elsewhere must be what the book says, too.
    pub fn check_read(&mut self, first: usize, data: &[u8]) {
        let wrong = self.compare(first, data, true);
        assert!(wrong.is_empty(), "a read is wrong: {}", wrong.join("; "));
    }

    pub fn take_reply(&mut self, client: &mut NbdClient) -> io::Result<()> {
        let done = client.next_reply()?;
        let request = self.open.remove(&done.cookie).expect("a reply answers an open request");
        self.slowest = self.slowest.max(request.submitted.elapsed());
        for state in &mut self.blocks[request.first..request.first + request.count] {
            state.in_flight = false;
        }
        assert_eq!(done.error, 0, "a request failed: block {} and {} more", request.first, request.count - 1);
        match request.version {
            Some(version) => {
                self.acknowledged += 1;
                for state in &mut self.blocks[request.first..request.first + request.count] {
                    state.acknowledged = version;
                    state.uncertain.clear();
                }
            }
            None => {
                let wrong = self.compare(request.first, &done.data, true);
                assert!(wrong.is_empty(), "a read under load is wrong: {}", wrong.join("; "));
            }
        }
        Ok(())
    }

    /// Reads everything and compares. What was uncertain is decided by it.
    pub fn verify_all(&mut self, client: &mut NbdClient) {
        self.read_all(client, true);
    }

    /// The same while writes of a client that is gone may still come true: nothing is decided by it.
    pub fn look_at_all(&mut self, client: &mut NbdClient) {
        self.read_all(client, false);
    }

    fn read_all(&mut self, client: &mut NbdClient, decides: bool) {
        assert!(self.open.is_empty(), "nothing is in flight when everything is compared");
        let mut wrong = Vec::new();
        for first in (0..self.blocks.len()).step_by(256) {
            let count = (self.blocks.len() - first).min(256);
            let data = client
                .read((first * BLOCK) as u64, (count * BLOCK) as u32)
                .unwrap_or_else(|error| panic!("reading block {first} failed with {error}"));
            wrong.extend(self.compare(first, &data, decides));
        }
        let shown = &wrong[..wrong.len().min(20)];
        assert!(
            wrong.is_empty(),
            "{} blocks are wrong (the newest version is {}):\n{}",
            wrong.len(),
            self.version,
            shown.join("\n")
        );
    }

    /// Tells what is neither acknowledged nor was submitted later.
    fn compare(&mut self, first: usize, data: &[u8], decides: bool) -> Vec<String> {
        let mut wrong = Vec::new();
        for (number, bytes) in data.chunks_exact(BLOCK).enumerate() {
            let block = first + number;
            let state = &mut self.blocks[block];
            let seen = std::iter::once(state.acknowledged)
                .chain(state.uncertain.iter().copied())
                .find(|version| is_content(bytes, block, *version));
            match seen {
                Some(_) if !decides => {}
                Some(version) => {
                    // From now on it must stay so: what has been read was decided.
                    state.acknowledged = version;
                    state.uncertain.clear();
                }
                None => wrong.push(format!(
                    "block {block} holds {}, but {:?} was acknowledged and {:?} submitted after it",
                    describe(bytes),
                    state.acknowledged,
                    state.uncertain
                )),
            }
        }
        wrong
    }
}

/// Unique for every block and version, in every 16 bytes.
pub fn content(block: usize, version: u64) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    for pair in bytes.chunks_exact_mut(16) {
        pair[..8].copy_from_slice(&(block as u64 | 1 << 63).to_le_bytes());
        pair[8..].copy_from_slice(&version.to_le_bytes());
    }
    bytes
}

fn is_content(bytes: &[u8], block: usize, version: Version) -> bool {
    if version.zeros { bytes.iter().all(|byte| *byte == 0) } else { bytes == content(block, version.number) }
}

fn describe(bytes: &[u8]) -> String {
    if bytes.iter().all(|byte| *byte == 0) {
        return "zeros".to_string();
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let uniform = bytes.chunks_exact(16).all(|pair| pair == &bytes[..16]);
    let mixed = if uniform { "" } else { " at its start and a mixture" };
    format!("version {} of block {}{mixed}", word(8), word(0) & !(1 << 63))
}
