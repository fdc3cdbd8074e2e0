//! Operations of a shard's drives, with files that are none and a ring of their own.

use super::*;
use crate::drives::AreaFile;
use crate::shard_loop::files::Named;
use crate::shard_loop::ring::FILES_MAX;
use flight::vectors_in;
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use weft_engine::buffer::{BLOCK, Pages};
use weft_engine::interface::Geometry;

const A: DriveId = DriveId(1000);
const B: DriveId = DriveId(1001);

/// How many blocks the files of drives have.
const BLOCKS: usize = 4;

/// A hint was.
const IGNORED: u8 = 0xff;

struct Rig {
    now: Time,
    table: DriveTable,
    ring: Ring,
    reads: Arc<Arena>,
    stages: Stages,
    /// What the kernel says of what ends next, in place of what it does say.
    says: VecDeque<i32>,
    news: Vec<News>,
}

/// A file of blocks that are full of `fill`, and that nobody else can open.
fn file(fill: u8) -> File {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("weft-drive-io-{}-{number}", std::process::id()));
    let mut options = File::options();
    let mut file = options.read(true).write(true).create_new(true).open(&path).expect("a file can be made");
    std::fs::remove_file(path).expect("it was just made");
    file.write_all(&[fill; BLOCKS * BLOCK]).expect("it can be written");
    file
}

impl Rig {
    fn new() -> Self {
        Self {
            now: Time(1_000_000),
            table: DriveTable::new(0),
            ring: Ring::new().expect("there are rings"),
            reads: Arc::new(Arena::new(4 << 20).expect("there is memory")),
            stages: Stages::default(),
            says: VecDeque::new(),
            news: Vec::new(),
        }
    }

    /// A drive, opened for the first time or again, of which all blocks are full of `fill`.
    fn add(&mut self, drive: DriveId, fill: u8) {
        let len = (BLOCKS * BLOCK) as u64;
        let area = || AreaFile { file: Arc::new(file(fill)), offset: 0 };
        let geometry = Geometry { log: len, data: len };
        let open = OpenDrive { drive, geometry, log: area(), data: area(), takes_discards: false };
        self.table.add(open, &self.ring);
    }

    fn start(&mut self, token: u64, drive: DriveId, work: DriveWork) {
        self.start_in(Area::Data, token, drive, work);
    }

    fn start_in(&mut self, area: Area, token: u64, drive: DriveId, work: DriveWork) {
        let operation = DriveOperation { token, drive, area, work };
        let ended = self.table.start(self.now, operation, &self.reads, &mut self.ring);
        assert!(ended.is_none(), "the drive is there");
    }

    fn read(&mut self, token: u64, drive: DriveId) {
        self.start(token, drive, DriveWork::Read { offset: 0, len: BLOCK as u32 });
    }

    fn on_time(&mut self) {
        self.table.on_time(self.now, &mut self.ring, |news| self.news.push(news));
    }

    /// One turn, which takes a while. What has ended: its token, and what was read first or 0.
    fn turn(&mut self) -> Vec<(u64, Result<u8, DriveFault>)> {
        self.now = self.now.after(5_000);
        self.ring.enter(Some(Duration::from_millis(1)));
        let mut completions = Vec::new();
        self.ring.completions(&mut completions);
        let mut ended = Vec::new();
        for (tag, result) in completions {
            let result = self.says.pop_front().unwrap_or(result);
            let input =
                self.table.on_completed(self.now, tag as u32, result, &mut self.stages, &mut self.ring);
            let Some(Input::DriveDone { token, result }) = input else { continue };
            let first = |done| match done {
                DriveResult::Read(data) => data.bytes()[0],
                DriveResult::Done => 0,
                DriveResult::Ignored => IGNORED,
            };
            ended.push((token, result.map(first)));
        }
        self.on_time();
        ended
    }

    /// Until all has ended.
    fn run(&mut self) -> Vec<(u64, Result<u8, DriveFault>)> {
        let mut ended = Vec::new();
        while self.table.in_flight() > 0 {
            ended.extend(self.turn());
        }
        assert!(
            self.table.drives.values().all(|attached| attached.pace.is_idle()),
            "all that began has ended"
        );
        ended
    }
}

/// Until a drive of which each request takes a quarter of a second is told to be slow.
fn slow() -> Rig {
    let mut rig = Rig::new();
    rig.add(A, 7);
    for _ in 0..100 {
        rig.read(1, A);
        rig.now = rig.now.after(250_000);
        rig.run();
        if rig.news.iter().any(|news| matches!(news, News::DriveSlow { drive: A, slow: true })) {
            return rig;
        }
    }
    panic!("nobody called it slow");
}

#[test]
fn a_slow_drive_that_is_in_use_is_asked_for_what_nobody_waits_for() {
    let mut rig = slow();
    rig.news.clear();
    assert_eq!(rig.table.probe_at(|_| false), None, "it was closed");
    let reads = rig.table.statistics()[&A].reads;
    while rig.news.is_empty() {
        let at = rig.table.probe_at(|_| true).expect("it is slow");
        rig.now = rig.now.max(at);
        rig.table.probe(rig.now, |_| false, &rig.reads, &mut rig.ring);
        assert_eq!(rig.table.in_flight(), 0, "it was closed");
        rig.table.probe(rig.now, |_| true, &rig.reads, &mut rig.ring);
        assert_eq!((rig.table.in_flight(), rig.table.probe_at(|_| true)), (1, None));
        assert!(rig.run().is_empty(), "nobody waits for it");
    }
    assert!(matches!(rig.news[..], [News::DriveSlow { drive: A, slow: false }]), "{:?}", rig.news);
    assert_eq!(rig.table.statistics()[&A].reads, reads, "it is no work");
}

#[test]
fn a_probe_that_fails_is_no_fault_of_anybody() {
    let mut rig = slow();
    rig.now = rig.table.probe_at(|_| true).expect("it is slow");
    rig.table.probe(rig.now, |_| true, &rig.reads, &mut rig.ring);
    rig.says.push_back(-libc::EIO);
    assert!(rig.run().is_empty());
    assert_eq!(rig.table.statistics()[&A].faults, 0);
    let next = rig.table.probe_at(|_| true).expect("it is slow");
    assert!(next > rig.now.after(60_000_000), "not for long");
}

#[test]
fn what_is_under_way_ends_at_the_files_where_it_began() {
    let mut rig = Rig::new();
    rig.add(A, 1);
    rig.read(1, A);
    rig.add(A, 2);
    // Would get the numbers in the ring of the files of before.
    rig.add(B, 3);
    rig.read(2, A);
    let mut ended = rig.run();
    ended.sort_unstable_by_key(|(token, _)| *token);
    assert_eq!(ended, [(1, Ok(1)), (2, Ok(2))]);
}

#[test]
fn what_is_under_way_at_files_that_the_ring_does_not_know_ends_there_too() {
    let mut rig = Rig::new();
    for number in 0..FILES_MAX / 2 {
        rig.add(DriveId(number), 9);
    }
    rig.add(A, 1);
    rig.read(1, A);
    rig.add(A, 2);
    // Would get the numbers in the process of the files of before.
    let _others = [file(3), file(3), file(3), file(3)];
    rig.read(2, A);
    let mut ended = rig.run();
    ended.sort_unstable_by_key(|(token, _)| *token);
    assert_eq!(ended, [(1, Ok(1)), (2, Ok(2))]);
}

#[test]
fn drives_that_are_opened_again_and_again_use_up_no_numbers_of_files() {
    let mut rig = Rig::new();
    for turn in 0..FILES_MAX {
        rig.add(A, turn as u8);
        rig.read(1, A);
        assert_eq!(rig.run(), [(1, Ok(turn as u8))]);
    }
    let last = rig.table.drives[&A].data.file.named();
    assert!(matches!(last, Named::Number(_)), "the ring knows the file");
}

#[test]
fn looking_for_drives_that_hang_costs_what_is_in_flight() {
    let mut rig = Rig::new();
    rig.add(A, 1);
    for _ in 0..3 {
        for token in 0..500 {
            rig.read(token, A);
        }
        assert_eq!(rig.run().len(), 500);
        rig.read(500, A);
        rig.now = rig.now.after(500_000);
        rig.on_time();
        assert_eq!(rig.run(), [(500, Ok(1))]);
        // From now on that few are in flight.
        for token in 501..504 {
            rig.read(token, A);
            rig.now = rig.now.after(500_000);
            rig.on_time();
            assert_eq!(rig.run(), [(token, Ok(1))]);
        }
        assert!(rig.table.flights.len() <= 1, "{} places are looked at", rig.table.flights.len());
    }
}

#[test]
fn what_the_kernel_has_no_memory_for_is_tried_again() {
    let mut rig = Rig::new();
    rig.add(A, 1);
    rig.says = VecDeque::from([-libc::ENOMEM, -libc::ENOBUFS, -libc::ENOMEM]);
    rig.read(1, A);
    let began = rig.now;
    assert_eq!(rig.run(), [(1, Ok(1))]);
    assert!(rig.now.since(began) >= 3 * 10_000, "not at once");
    rig.says = VecDeque::from([-libc::ENOBUFS, -libc::ENOMEM]);
    let pieces = vec![Pages::zeroed(BLOCK).freeze()];
    rig.start(2, A, DriveWork::Write { offset: 0, pieces, durable: true, awaited: false });
    assert_eq!(rig.run(), [(2, Ok(0))]);
    rig.read(3, A);
    assert_eq!(rig.run(), [(3, Ok(0))], "it was written");
    assert_eq!(rig.news, []);
}

#[test]
fn a_drive_that_the_kernel_has_no_memory_for_hangs_after_a_while() {
    let mut rig = Rig::new();
    rig.add(A, 1);
    rig.says = vec![-libc::ENOMEM; 1_000].into();
    rig.read(1, A);
    let began = rig.now;
    while rig.now.since(began) < 5_000_000 {
        assert_eq!(rig.turn(), []);
    }
    assert_eq!(rig.news, [News::DriveHangs { drive: A }]);
    rig.says.clear();
    assert_eq!(rig.run(), [(1, Ok(1))]);
    rig.now = rig.now.after(500_000);
    rig.on_time();
    assert_eq!(rig.news[1..], [News::DriveAnswers { drive: A }]);
}

#[test]
fn a_read_that_fails_does_not_take_the_drive_away_while_others_may_be_well() {
    for (error, result) in [
        (libc::EIO, DriveFault::Unreadable),
        (libc::ETIME, DriveFault::Unreadable),
        (libc::EBUSY, DriveFault::Unreadable),
        (libc::ENOLINK, DriveFault::Unreadable),
        (libc::ENODEV, DriveFault::Gone),
        (libc::EBADF, DriveFault::Gone),
    ] {
        let mut rig = Rig::new();
        rig.add(A, 1);
        rig.says.push_back(-error);
        rig.read(1, A);
        assert_eq!(rig.run(), [(1, Err(result))], "error {error}");
    }
    for error in [libc::EIO, libc::EBUSY, libc::ENOSPC] {
        let mut rig = Rig::new();
        rig.add(A, 1);
        rig.says.push_back(-error);
        let pieces = vec![Pages::zeroed(BLOCK).freeze()];
        rig.start(1, A, DriveWork::Write { offset: 0, pieces, durable: false, awaited: false });
        assert_eq!(rig.run(), [(1, Err(DriveFault::Gone))], "who cannot be written is no use: {error}");
    }
}

#[test]
fn large_writes_are_cut_at_the_stride_and_lose_nothing() {
    let whole = Pages::zeroed(300 * BLOCK).freeze();
    let apart = Pages::zeroed(BLOCK).freeze();
    let pieces = [whole.slice(0..100 * BLOCK), whole.slice(100 * BLOCK..300 * BLOCK), apart];
    let cut = vectors(&pieces, STRIDE);
    let mut left = &cut[..];
    let mut calls = Vec::new();
    while !left.is_empty() {
        let count = vectors_in(left, STRIDE);
        calls.push(left[..count].iter().map(|vector| vector.iov_len).sum::<usize>() / BLOCK);
        left = &left[count..];
    }
    assert!(calls.iter().all(|blocks| (1..=STRIDE / BLOCK).contains(blocks)), "{calls:?}");
    assert_eq!(calls.iter().sum::<usize>(), 301);
    assert_eq!(cut[0].iov_base.cast_const().cast(), whole.bytes().as_ptr());
    assert_eq!(vectors_in(&cut, usize::MAX), cut.len(), "nobody waits: all of it at once");
    assert_eq!(vectors(&pieces, usize::MAX).len(), 2, "neighbours are one");
    let large = vectors(&pieces[..2], usize::MAX);
    assert_eq!(vectors_in(&large, STRIDE), 1, "one at least");
}

#[test]
fn large_writes_go_in_pieces_while_small_ones_or_readers_wait() {
    let write = |awaited| {
        let pieces = vec![Pages::zeroed(BLOCKS * BLOCK).freeze()];
        DriveWork::Write { offset: 0, pieces, durable: false, awaited }
    };
    let mut rig = Rig::new();
    rig.add(A, 1);
    fn is_cut(rig: &mut Rig, write: DriveWork) -> bool {
        rig.start(2, A, write);
        let is_piece = |flight: &Flight| flight.turn == Turn::Piece;
        let is_cut = rig.table.flights.iter().flatten().any(is_piece);
        let now = rig.now;
        let ended = rig.run();
        assert_eq!(ended.iter().find(|(token, _)| *token == 2), Some(&(2, Ok(0))));
        // Less than the time for which small writes count.
        rig.now = now.after(1_000);
        is_cut
    }
    assert!(is_cut(&mut rig, write(false)), "nobody knows yet whether there are readers");
    while rig.table.drives[&A].readers.are_there() {
        rig.table.drives.get_mut(&A).expect("just added").readers.note_write(BLOCK);
    }
    for (awaited, expected) in [(false, false), (true, true), (false, true)] {
        rig.start_in(Area::Log, 1, A, write(awaited));
        assert_eq!(is_cut(&mut rig, write(false)), expected, "behind a frame that is awaited: {awaited}");
    }
    rig.now = rig.now.after(AWAITED_US);
    assert!(!is_cut(&mut rig, write(false)), "nobody waits any more");
    for _ in 0..100 {
        rig.read(1, A);
        rig.run();
    }
    assert!(is_cut(&mut rig, write(false)), "somebody reads");
}

/// A drive that takes discards, as far as is known.
fn hinted() -> Rig {
    let mut rig = Rig::new();
    rig.add(A, 7);
    rig.table.drives.get_mut(&A).expect("just added").open.takes_discards = true;
    rig
}

const HINT: DriveWork = DriveWork::Discard { offset: 0, len: 4 * BLOCK as u64 };

#[test]
fn the_kernel_is_asked_to_discard_in_two_ways_and_then_not_any_more() {
    let mut rig = hinted();
    // A file knows only the second.
    rig.start(1, A, HINT);
    assert_eq!(rig.run(), [(1, Ok(0))]);
    rig.read(2, A);
    assert_eq!(rig.run(), [(2, Ok(0))], "there is a hole");
    rig.says = [-libc::EOPNOTSUPP, -libc::EOPNOTSUPP].into();
    rig.start(3, A, HINT);
    assert_eq!(rig.run(), [(3, Ok(IGNORED))]);
    assert_eq!(rig.table.statistics()[&A].discards, 2);
    let operation = DriveOperation { token: 4, drive: A, area: Area::Data, work: HINT };
    let ended = rig.table.start(rig.now, operation, &rig.reads, &mut rig.ring);
    assert!(matches!(ended, Some(Input::DriveDone { token: 4, result: Ok(DriveResult::Ignored) })));
    assert_eq!(rig.table.statistics()[&A].discards, 2, "the drive heard nothing of it");
}

#[test]
fn a_discard_says_where_as_the_kernel_reads_it() {
    let rig = hinted();
    let file = rig.table.drives[&A].data.clone();
    let work = Work::Discard { offset: 3 << 20, len: 5 << 20, way: Way::Command };
    let mut flight = Flight::new(rig.now, None, A, Stage::DriveDiscard, file, work);
    let entry = flight.entry(usize::MAX);
    // SAFETY: an entry is the kernel's struct of 64 bytes, all of them set.
    let bytes: [u8; 64] = unsafe { std::mem::transmute(entry) };
    let number = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let command = u32::from_ne_bytes(bytes[8..12].try_into().expect("four bytes"));
    assert_eq!((command, number(16), number(48)), (0x1200, 3 << 20, 5 << 20));
    assert_eq!(number(24), 0, "the kernel wants nothing else there");
}

#[test]
fn a_drive_that_is_slow_with_a_hint_hangs_only_after_long() {
    let hangs_after = |work: DriveWork| {
        let mut rig = hinted();
        rig.start(1, A, work);
        // Nobody takes what has ended from the ring.
        let looks = (1..1_000).map(|look| {
            rig.now = rig.now.after(400_000);
            rig.on_time();
            (look * 400, rig.news.iter().any(|news| matches!(news, News::DriveHangs { drive: A })))
        });
        let ms = looks.skip_while(|(_, hangs)| !hangs).map(|(ms, _)| ms).next();
        rig.run();
        ms
    };
    assert_eq!(hangs_after(DriveWork::Flush), Some(2_400));
    assert_eq!(hangs_after(HINT), Some(62_400));
}
